/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of transfers in settings as text. */
#ifndef LADE_PIPELINE_API_CONFIG_KEYS_H
#define LADE_PIPELINE_API_CONFIG_KEYS_H

#include "base/config.h"

/* Of lade_pipeline_options. */
extern const ladei_settings_table ladei_pipe_keys;

#endif /* LADE_PIPELINE_API_CONFIG_KEYS_H */
