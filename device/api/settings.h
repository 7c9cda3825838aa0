/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of an allocator, from its options. */
#ifndef LADE_DEVICE_API_SETTINGS_H
#define LADE_DEVICE_API_SETTINGS_H

#include "device/state/allocator.h"

/* LADE_ERR_INVALID_ARGUMENT names the first field that is wrong; `call` is the public function. */
lade_status ladei_device_settings_check(const char *call, const lade_device_options *options);

/* Fills in what checked options of a creation leave to others of them. */
void ladei_device_settings_imply(lade_device_options *options);

/* Puts into force, of checked options, those that lade_device_configure takes; takes the lock. */
void ladei_device_settings_apply(lade_device_allocator *allocator, const lade_device_options *options);

#endif /* LADE_DEVICE_API_SETTINGS_H */
