/* SPDX-License-Identifier: Apache-2.0 */
/* The backends there are. */
#ifndef LADE_DEVICE_BACKENDS_BACKENDS_H
#define LADE_DEVICE_BACKENDS_BACKENDS_H

#include "device/state/backend.h"

extern const ladei_device_backend ladei_device_backend_native;
extern const ladei_device_backend ladei_device_backend_uncached;
extern const ladei_device_backend ladei_device_backend_pool;
extern const ladei_device_backend ladei_device_backend_plugin;

#endif /* LADE_DEVICE_BACKENDS_BACKENDS_H */
