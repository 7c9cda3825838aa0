/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The settings of all rooms together: the public calls that read them from text.
 *
 * C1  The caller's struct is written once, after the whole text was understood.
 */
#include "config/config.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/options.h"
#include "device/api/config_keys.h"
#include "host/config_keys.h"
#include "pipeline/api/config_keys.h"

const ladei_settings_table *const ladei_config_tables[] = {&ladei_device_settings, &ladei_pinned_settings,
                                                           &ladei_pipe_settings};
const size_t ladei_config_table_count = sizeof ladei_config_tables / sizeof ladei_config_tables[0];
_Static_assert(sizeof ladei_config_tables / sizeof ladei_config_tables[0] <= LADEI_SETTINGS_TABLE_MAX,
               "raise LADEI_SETTINGS_TABLE_MAX");

static lade_status parse(const char *text, bool pytorch_only, const char *call, lade_config *config) {
  if (text == NULL || config == NULL) return ladei_error_null(call, text == NULL ? "text" : "config");
  lade_config own;
  lade_status status = ladei_options_read("lade_config", config, &own, sizeof own);
  if (status == LADE_OK)
    status = ladei_settings_read(ladei_config_tables, ladei_config_table_count, text, pytorch_only, &own);
  return status == LADE_OK ? ladei_stats_write("lade_config", &own, sizeof own, config) : status;
}

lade_status lade_config_parse(const char *text, lade_config *config) { return parse(text, false, __func__, config); }

lade_status ladei_config_parse_reference(const char *text, lade_config *config) {
  return parse(text, true, __func__, config);
}

/* PyTorch takes the presence of this variable, whatever its value, for the uncached mode. */
static lade_status uncached_from_env(lade_config *config) {
  lade_config own;
  if (getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") == NULL) return LADE_OK;
  lade_status status = ladei_options_read("lade_config", config, &own, sizeof own);
  own.device_uncached = 1;
  return status == LADE_OK ? ladei_stats_write("lade_config", &own, sizeof own, config) : status;
}

lade_status lade_config_from_env(lade_config *config) {
  if (config == NULL) return ladei_error_null(__func__, "config");
  static const char *const variables[] = {"LADE_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
    const char *text = getenv(variables[i]);
    if (text == NULL) continue;
    lade_status status = lade_config_parse(text, config);
    return status == LADE_OK ? uncached_from_env(config) : ladei_error_prefix(status, "%s: ", variables[i]);
  }
  return uncached_from_env(config);
}
