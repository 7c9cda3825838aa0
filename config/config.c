/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The settings of all rooms together: the public calls that read them from text.
 *
 * C1  The caller's struct is written once, after the whole text was understood.
 * C2  An unknown key is an error everywhere except in PyTorch's own variables.
 */
#include "config/config.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/local_ranks.h"
#include "base/options.h"
#include "config/budget.h"
#include "config/environment.h"
#include "device/api/config_keys.h"
#include "host/api/config_keys.h"
#include "pipeline/api/config_keys.h"

const ladei_settings_table *const ladei_config_tables[] = {&ladei_device_settings, &ladei_pinned_settings,
                                                           &ladei_pipe_settings};
const size_t ladei_config_table_count = sizeof ladei_config_tables / sizeof ladei_config_tables[0];
_Static_assert(sizeof ladei_config_tables / sizeof ladei_config_tables[0] <= LADEI_SETTINGS_TABLE_MAX,
               "raise LADEI_SETTINGS_TABLE_MAX");

/* With `skips` the text is from PyTorch's variables, which may have keys that do not concern lade. */
static lade_status text_read(const char *text, bool pytorch_only, ladei_settings_skips *skips, lade_config *own) {
  return ladei_settings_read(ladei_config_tables, ladei_config_table_count, text, pytorch_only, skips, own);
}

static lade_status parse(const char *text, bool pytorch_only, const char *call, lade_config *config) {
  if (text == NULL || config == NULL) return ladei_error_null(call, text == NULL ? "text" : "config");
  lade_config own;
  lade_status status = ladei_options_read("lade_config", config, &own, sizeof own);
  if (status == LADE_OK) status = text_read(text, pytorch_only, NULL, &own);
  return status == LADE_OK ? ladei_stats_write("lade_config", &own, sizeof own, config) : status;
}

lade_status lade_config_parse(const char *text, lade_config *config) { return parse(text, false, __func__, config); }

lade_status ladei_config_parse_reference(const char *text, lade_config *config) {
  return parse(text, true, __func__, config);
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

static lade_status settings_from_env(lade_config *own, const variable **out, ladei_settings_skips *skips) {
  const char *text = NULL;
  const variable *v = variable_find(&text);
  *out = v;
  if (v == NULL) return LADE_OK;
  lade_status status = text_read(text, false, v->of_pytorch ? skips : NULL, own);
  return status == LADE_OK ? LADE_OK : ladei_error_prefix(status, "%s: ", v->name);
}

const char *ladei_config_variable(ladei_settings_skips *skips) {
  lade_config own;
  const variable *v;
  lade_config_init(&own);
  skips->count = 0;
  return settings_from_env(&own, &v, skips) == LADE_OK && v != NULL ? v->name : NULL;
}

/* Settings override the launcher. A doubtful variable of the launcher is no error of the program, which may not even
 * know about it: the log names it. */
static void ranks_from_env(lade_config *own) {
  ladei_local_ranks ranks;
  lade_error saved;
  if (own->pinned_local_ranks != 0) return;
  ladei_error_save(&saved);
  if (ladei_local_ranks_read(getenv, &ranks) != LADE_OK)
    ladei_environment_ranks_log(lade_last_error()->text, "");
  else if (ranks.launcher != NULL)
    own->pinned_local_ranks = ranks.count;
  else if (ranks.lone_rank != NULL)
    ladei_environment_ranks_log(ranks.lone_rank, " is set without a count beside it");
  ladei_error_restore(&saved);
}

lade_status lade_config_from_env(lade_config *config) {
  if (config == NULL) return ladei_error_null(__func__, "config");
  lade_config own;
  const variable *v = NULL;
  ladei_settings_skips skips = {.count = 0};
  lade_status status = ladei_options_read("lade_config", config, &own, sizeof own);
  if (status == LADE_OK) status = settings_from_env(&own, &v, &skips);
  /* PyTorch turns caching off if this variable exists, whatever its value. */
  if (getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != NULL) own.device_uncached = 1;
  if (status == LADE_OK) status = ladei_budget_from_env(getenv("LADE_BUDGET"), &own);
  if (status == LADE_OK) status = ladei_environment_apply();
  if (status != LADE_OK) return status;
  ranks_from_env(&own);
  ladei_environment_skips_log(v == NULL ? "" : v->name, &skips);
  return ladei_stats_write("lade_config", &own, sizeof own, config);
}
