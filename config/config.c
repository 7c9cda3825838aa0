/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The settings of all rooms together: the public calls that read them from text.
 *
 * C1  The caller's options are written once, after the whole text was understood.
 * C2  An unknown key is an error everywhere except in PyTorch's own variables.
 */
#include "config/config.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/local_ranks.h"
#include "base/options.h"
#include "config/environment.h"
#include "device/api/config_keys.h"
#include "host/api/config_keys.h"
#include "pipeline/api/config_keys.h"

const ladei_settings_table *const ladei_config_tables[] = {&ladei_device_keys, &ladei_pinned_keys, &ladei_pipe_keys};
const size_t ladei_config_table_count = sizeof ladei_config_tables / sizeof ladei_config_tables[0];
_Static_assert(sizeof ladei_config_tables / sizeof ladei_config_tables[0] <= LADEI_SETTINGS_TABLE_MAX,
               "raise LADEI_SETTINGS_TABLE_MAX");

_Static_assert(sizeof((lade_config){0}.budget_name) == LADEI_SETTING_NAME_BYTES, "copied whole");

/* ---- The caller's options, and their copy -------------------------------------------------------------------------- */

static lade_status options_read(const lade_config *config, ladei_config *own) {
  lade_config whole;
  memset(own, 0, sizeof *own);
  LADEI_TRY(ladei_options_read("lade_config", config, &whole, sizeof whole));
  LADEI_TRY(ladei_options_read("lade_device_options", whole.device, &own->device, sizeof own->device));
  LADEI_TRY(ladei_options_read("lade_pinned_options", whole.pinned, &own->pinned, sizeof own->pinned));
  return ladei_options_read("lade_pipeline_options", whole.pipeline, &own->pipeline, sizeof own->pipeline);
}

static lade_status options_write(ladei_config *own, lade_config *config) {
  if (own->pinned.budget_name == own->budget_name) {
    memcpy(config->budget_name, own->budget_name, sizeof config->budget_name);
    own->pinned.budget_name = config->budget_name;
  }
  if (config->device != NULL)
    LADEI_TRY(ladei_stats_write("lade_device_options", &own->device, sizeof own->device, config->device));
  if (config->pinned != NULL)
    LADEI_TRY(ladei_stats_write("lade_pinned_options", &own->pinned, sizeof own->pinned, config->pinned));
  if (config->pipeline == NULL) return LADE_OK;
  return ladei_stats_write("lade_pipeline_options", &own->pipeline, sizeof own->pipeline, config->pipeline);
}

lade_status ladei_config_read(const char *text, const char *prefix, ladei_settings_known known,
                              ladei_settings_skips *skips, ladei_config *own) {
  const ladei_settings_source source = {ladei_config_tables, ladei_config_table_count, prefix, known, skips};
  void *const options[] = {&own->device, &own->pinned, &own->pipeline};
  return ladei_settings_read(&source, text, options, own->budget_name);
}

static lade_status parse(const char *text, ladei_settings_known known, const char *call, lade_config *config) {
  if (text == NULL || config == NULL) return ladei_error_null(call, text == NULL ? "text" : "config");
  ladei_config own;
  LADEI_TRY(options_read(config, &own));
  LADEI_TRY(ladei_config_read(text, "", known, NULL, &own));
  return options_write(&own, config);
}

lade_status lade_config_parse(const char *text, lade_config *config) {
  return parse(text, LADEI_SETTINGS_ALL, __func__, config);
}

lade_status ladei_config_parse_reference(const char *text, bool later, lade_config *config) {
  return parse(text, later ? LADEI_SETTINGS_OF_LATER_PYTORCH : LADEI_SETTINGS_OF_PYTORCH, __func__, config);
}

lade_status ladei_config_budget_read(const char *text, ladei_config *own) {
  if (text == NULL || text[0] == '\0') return LADE_OK;
  bool off = strcmp(text, "off") == 0;
  own->pinned.budget = off ? LADE_PINNED_BUDGET_OFF : LADE_PINNED_BUDGET_ON;
  if (off || strcmp(text, "on") == 0) return LADE_OK;
  lade_status status = ladei_config_read(text, "pinned_budget_", LADEI_SETTINGS_ALL, NULL, own);
  return status == LADE_OK ? LADE_OK
                           : ladei_error_prefix(status, "LADE_BUDGET (off, on, or keys name, mb, share, part_mb): ");
}

/* ---- The environment --------------------------------------------------------------------------------------------- */

typedef struct variable {
  const char *name;
  bool of_pytorch;
} variable;

/* The first one that is set counts. */
static const variable variables[] = {
    {"LADE_ALLOC_CONF", false}, {"PYTORCH_ALLOC_CONF", true}, {"PYTORCH_CUDA_ALLOC_CONF", true}};

/* NULL: none is set. */
static const variable *variable_find(const char **out_text) {
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
    if ((*out_text = getenv(variables[i].name)) != NULL) return &variables[i];
  return NULL;
}

static lade_status settings_from_env(ladei_config *own, const variable **out, ladei_settings_skips *skips) {
  const char *text = NULL;
  const variable *v = variable_find(&text);
  *out = v;
  if (v == NULL) return LADE_OK;
  lade_status status = ladei_config_read(text, "", LADEI_SETTINGS_ALL, v->of_pytorch ? skips : NULL, own);
  return status == LADE_OK ? LADE_OK : ladei_error_prefix(status, "%s: ", v->name);
}

const char *ladei_config_variable(ladei_settings_skips *skips) {
  ladei_config own = {.budget_name = ""};
  const variable *v;
  skips->count = 0;
  return settings_from_env(&own, &v, skips) == LADE_OK && v != NULL ? v->name : NULL;
}

/* Settings come first. An unclear value of a launcher is no error of the program, which may not know of the launcher:
 * the log names it. */
static void ranks_from_env(ladei_config *own) {
  ladei_local_ranks ranks;
  lade_error saved;
  if (own->pinned.local_ranks != 0 || own->pipeline.local_ranks != 0) return;
  ladei_error_save(&saved);
  if (ladei_local_ranks_read(getenv, &ranks) != LADE_OK)
    ladei_environment_ranks_log(lade_last_error()->text, "");
  else if (ranks.launcher != NULL)
    own->pinned.local_ranks = own->pipeline.local_ranks = ranks.count;
  else if (ranks.lone_rank != NULL)
    ladei_environment_ranks_log(ranks.lone_rank, " is set without a count beside it");
  ladei_error_restore(&saved);
}

lade_status lade_config_from_env(lade_config *config) {
  if (config == NULL) return ladei_error_null(__func__, "config");
  ladei_config own;
  const variable *v = NULL;
  ladei_settings_skips skips = {.count = 0};
  lade_status status = options_read(config, &own);
  if (status == LADE_OK) status = settings_from_env(&own, &v, &skips);
  /* PyTorch takes the presence of this variable, whatever its value, for the uncached mode. */
  if (getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != NULL) own.device.flags |= LADE_DEVICE_UNCACHED;
  if (status == LADE_OK) status = ladei_config_budget_read(getenv("LADE_BUDGET"), &own);
  if (status == LADE_OK) status = ladei_environment_apply();
  if (status != LADE_OK) return status;
  ranks_from_env(&own);
  ladei_environment_skips_log(v == NULL ? "" : v->name, &skips);
  return options_write(&own, config);
}
