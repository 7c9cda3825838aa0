/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of the device cache in settings as text. */
#ifndef LADE_DEVICE_API_CONFIG_KEYS_H
#define LADE_DEVICE_API_CONFIG_KEYS_H

#include "base/config.h"

/* Fields are those of lade_config. */
extern const ladei_settings_table ladei_device_settings;

#endif /* LADE_DEVICE_API_CONFIG_KEYS_H */
