/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers: settings as text, one row per key, the field of the options that it is.
 *
 * A new setting is a field of the options and a row here; `lade settings` and docs/tuning.md are made from the rows.
 */
#include "pipeline/api/config_keys.h"

#include "lade/pipeline.h"

static const ladei_setting_word storages[] = {{"auto", LADE_STORAGE_AUTO, true},
                                              {"uring", LADE_STORAGE_URING, true},
                                              {"pread", LADE_STORAGE_PREAD, true},
                                              {"cufile", LADE_STORAGE_CUFILE, true},
                                              {NULL, 0, false}};

static const ladei_setting_word caches[] = {{"auto", LADE_LOAD_CACHE_AUTO, true},
                                            {"always", LADE_LOAD_CACHE_ALWAYS, true},
                                            {"never", LADE_LOAD_CACHE_NEVER, true},
                                            {NULL, 0, false}};

static const ladei_setting settings[] = {
    {.key = "storage",
     .kind = LADEI_SETTING_WORD,
     LADEI_SETTING_FIELD(lade_pipeline_options, storage),
     .words = storages,
     .default_value = "auto",
     .help = "What moves the bytes of files"},
    {.key = "pinned_local_ranks", /* of the pool, too */
     LADEI_SETTING_RANGE(lade_pipeline_options, local_ranks, 0, 1 << 20),
     .unit = "processes",
     .default_value = "1",
     .help = "Processes of the job on this machine: they share readers and staging blocks"},
    {.key = "load_cache",
     .kind = LADEI_SETTING_WORD,
     LADEI_SETTING_FIELD(lade_pipeline_options, load_cache),
     .words = caches,
     .default_value = "auto",
     .help = "Whether checkpoints are read through the page cache"},
    {.key = "url_connect_ms",
     LADEI_SETTING_RANGE(lade_pipeline_options, url_connect_ms, 0, LADEI_PIPE_URL_CONNECT_MOST_MS),
     .unit = "ms",
     .default_value = "10000",
     .help = "How long a connection to a URL's host may take"},
    {.key = "url_stall_s",
     LADEI_SETTING_RANGE(lade_pipeline_options, url_stall_s, 0, LADEI_PIPE_URL_STALL_MOST_S),
     .unit = "s",
     .default_value = "30",
     .help = "How long a request for a URL may bring less than a KiB a second"},
    {.key = "url_attempts",
     LADEI_SETTING_RANGE(lade_pipeline_options, url_attempts, 0, LADEI_PIPE_URL_ATTEMPTS_MOST),
     .unit = "requests",
     .default_value = "10",
     .help = "How often a range of a URL is asked for, where that may help"},
    {.key = "url_requests",
     LADEI_SETTING_RANGE(lade_pipeline_options, url_requests, 0, LADEI_PIPE_URL_REQUESTS_MOST),
     .unit = "requests",
     .default_value = "64",
     .help = "Requests under way to one host at once"},
};

_Static_assert(sizeof settings / sizeof settings[0] <= LADEI_SETTINGS_MAX, "raise LADEI_SETTINGS_MAX");

const ladei_settings_table ladei_pipe_keys = {"pipeline", "Pipeline", "lade_pipeline_options", settings,
                                              sizeof settings / sizeof settings[0]};
