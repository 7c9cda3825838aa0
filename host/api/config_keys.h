/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of the pinned pool in settings as text. */
#ifndef LADE_HOST_API_CONFIG_KEYS_H
#define LADE_HOST_API_CONFIG_KEYS_H

#include "base/config.h"

/* Of lade_pinned_options. */
extern const ladei_settings_table ladei_pinned_keys;

#endif /* LADE_HOST_API_CONFIG_KEYS_H */
