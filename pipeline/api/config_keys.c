/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers: settings as text, one row per key, and what they change in the options.
 *
 * A new setting is a field of lade_config, a row here and a line in the function below; `lade settings` and
 * docs/tuning.md are made from the rows.
 */
#include "pipeline/api/config_keys.h"

#include "lade/config.h"

static const ladei_setting_word storages[] = {{"auto", LADE_STORAGE_AUTO, true},
                                              {"uring", LADE_STORAGE_URING, true},
                                              {"pread", LADE_STORAGE_PREAD, true},
                                              {"cufile", LADE_STORAGE_CUFILE, true},
                                              {NULL, 0, false}};

static const ladei_setting settings[] = {
    {.key = "storage",
     .kind = LADEI_SETTING_WORD,
     LADEI_SETTING_FIELD(lade_config, storage),
     .words = storages,
     .default_value = "auto",
     .option = "storage",
     .help = "What moves the bytes of files"},
};

_Static_assert(sizeof settings / sizeof settings[0] <= LADEI_SETTINGS_MAX, "raise LADEI_SETTINGS_MAX");

const ladei_settings_table ladei_pipe_settings = {"pipeline", "Pipeline", "lade_pipeline_options", settings,
                                                  sizeof settings / sizeof settings[0]};

void lade_config_apply_pipeline(const lade_config *config, lade_pipeline_options *options) {
  options->storage = (int32_t)config->storage;
  options->local_ranks = config->pinned_local_ranks;
}
