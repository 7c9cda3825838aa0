/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of all rooms together. */
#ifndef LADE_CONFIG_CONFIG_H
#define LADE_CONFIG_CONFIG_H

#include "base/config.h"
#include "lade/config.h"

/* The tables of the rooms: of the device cache, the pinned pool, the pipeline. */
extern const ladei_settings_table *const ladei_config_tables[];
extern const size_t ladei_config_table_count;

/* The library's own copy of what a lade_config points to. `pinned.budget_name` may point to `budget_name`. */
typedef struct ladei_config {
  lade_device_options device;
  lade_pinned_options pinned;
  lade_pipeline_options pipeline;
  char budget_name[LADEI_SETTING_NAME_BYTES];
} ladei_config;

/* Reads a text into the copy; on error some fields may be written. Parameters but `own`: as in ladei_settings_source. */
lade_status ladei_config_read(const char *text, const char *prefix, ladei_settings_known known,
                              ladei_settings_skips *skips, ladei_config *own);

/* As lade_config_parse() for the settings in a trace: keys and values that only lade knows are unknown, as are those of
 * later versions of PyTorch unless `later`. */
lade_status ladei_config_parse_reference(const char *text, bool later, lade_config *config);

/*
 * The variable from which lade_config_from_env() would take settings, and its keys that are skipped. NULL: none is set,
 * or its text is bad.
 */
const char *ladei_config_variable(ladei_settings_skips *skips);

/* Reads the text of LADE_BUDGET: off, on, or some of the keys pinned_budget_... without these words before them, which means on. NULL or
 * empty changes nothing. LADE_ERR_CONFIG, naming the variable; then some fields may be written. */
lade_status ladei_config_budget_read(const char *text, ladei_config *own);

#endif /* LADE_CONFIG_CONFIG_H */
