/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of the device cache in settings as text. */
#ifndef LADE_DEVICE_API_CONFIG_KEYS_H
#define LADE_DEVICE_API_CONFIG_KEYS_H

#include "base/config.h"

/* Of lade_device_options. */
extern const ladei_settings_table ladei_device_keys;

#endif /* LADE_DEVICE_API_CONFIG_KEYS_H */
