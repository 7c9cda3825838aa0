/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of transfers in settings as text. */
#ifndef LADE_PIPELINE_API_CONFIG_KEYS_H
#define LADE_PIPELINE_API_CONFIG_KEYS_H

#include "base/config.h"

/* The most that options may say. */
enum {
  LADEI_PIPE_URL_CONNECT_MOST_MS = 3600000,
  LADEI_PIPE_URL_STALL_MOST_S = 86400,
  LADEI_PIPE_URL_ATTEMPTS_MOST = 1000,
  LADEI_PIPE_URL_REQUESTS_MOST = 1024,
};

/* Of lade_pipeline_options. */
extern const ladei_settings_table ladei_pipe_keys;

#endif /* LADE_PIPELINE_API_CONFIG_KEYS_H */
