/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of transfers in settings as text. */
#ifndef LADE_PIPELINE_API_CONFIG_KEYS_H
#define LADE_PIPELINE_API_CONFIG_KEYS_H

#include "base/config.h"

/* Fields are those of lade_config. */
extern const ladei_settings_table ladei_pipe_settings;

#endif /* LADE_PIPELINE_API_CONFIG_KEYS_H */
