/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pinned pool: settings as text, one row per key, and what they change in the options.
 *
 * A new setting is a field of lade_config, a row here and a line in the function below; `lade settings` and
 * docs/tuning.md are made from the rows.
 */
#include "host/api/config_keys.h"

#include "base/size.h"
#include "lade/config.h"

/* A field that was not said is 0. */
static const ladei_setting_word register_words[] = {{"True", 1, false}, {"False", 2, false}, {NULL, 0, false}};

static const ladei_setting_word sources[] = {{"register", LADE_PINNED_SOURCE_REGISTER, true},
                                             {"driver", LADE_PINNED_SOURCE_DRIVER, true},
                                             {"pool", LADE_PINNED_SOURCE_POOL, true},
                                             {"pageable", LADE_PINNED_SOURCE_PAGEABLE, true},
                                             {NULL, 0, false}};

static const ladei_setting_word budgets[] = {{"default", LADE_PINNED_BUDGET_DEFAULT, true},
                                             {"on", LADE_PINNED_BUDGET_ON, true},
                                             {"off", LADE_PINNED_BUDGET_OFF, true},
                                             {NULL, 0, false}};

static const ladei_setting_word shares[] = {{"first_come", LADE_PINNED_BUDGET_FIRST_COME, true},
                                            {"fair", LADE_PINNED_BUDGET_FAIR, true},
                                            {"part", LADE_PINNED_BUDGET_PART, true},
                                            {NULL, 0, false}};

static const ladei_setting_word policies[] = {{"default", 0, true}, {"reference", 1, true}, {NULL, 0, false}};

static const ladei_setting settings[] = {
    {.key = "pinned_use_cuda_host_register",
     .kind = LADEI_SETTING_WORD,
     .origin = LADEI_SETTING_OF_PYTORCH,
     LADEI_SETTING_FIELD(lade_config, pinned_use_cuda_host_register),
     .words = register_words,
     .default_value = "not said",
     .option = "sources",
     .help = "True: sources is register; False: driver. pinned_source goes before it"},
    {.key = "pinned_use_hip_host_register",
     .kind = LADEI_SETTING_WORD,
     .origin = LADEI_SETTING_OF_PYTORCH,
     LADEI_SETTING_FIELD(lade_config, pinned_use_cuda_host_register),
     .words = register_words,
     .default_value = "not said",
     .option = "sources",
     .help = "As pinned_use_cuda_host_register"},
    {.key = "pinned_num_register_threads",
     .kind = LADEI_SETTING_POWER_OF_TWO,
     .origin = LADEI_SETTING_OF_PYTORCH,
     LADEI_SETTING_FIELD(lade_config, pinned_num_register_threads),
     .low = 1,
     .high = 128,
     .unit = "threads",
     .default_value = "not said",
     .option = "prefault_threads",
     .help = "As pinned_threads, which goes before it"},
    {.key = "pinned_use_background_threads",
     LADEI_SETTING_SWITCH(lade_config, pinned_background),
     .origin = LADEI_SETTING_OF_LATER_PYTORCH,
     .option = "LADE_PINNED_BACKGROUND",
     .help = "As pinned_background"},
    {.key = "pinned_reserve_segment_size_mb",
     LADEI_SETTING_RANGE(lade_config, pinned_segment_mb, 0, UINT64_C(1) << 20),
     .origin = LADEI_SETTING_OF_LATER_PYTORCH,
     .unit = "MiB",
     .default_value = "64",
     .option = "segment_bytes",
     .help = "As pinned_segment_mb; later versions of PyTorch reserve one such segment"},
    {.key = "pinned_max_mb",
     LADEI_SETTING_RANGE(lade_config, pinned_max_mb, 0, LADEI_SETTING_MIB_MAX),
     .unit = "MiB",
     .default_value = "half of the available memory, or 7/8 of what the control groups leave",
     .option = "max_bytes",
     .help = "Cap on the memory that the pool pins; 0: the default"},
    {.key = "pinned_event_batch",
     LADEI_SETTING_RANGE(lade_config, pinned_event_batch, 0, 65536),
     .unit = "frees",
     .default_value = "16",
     .option = "event_batch",
     .help = "Frees that one event covers; 0: the default"},
    {.key = "pinned_wait_ms",
     LADEI_SETTING_RANGE(lade_config, pinned_wait_ms, 0, UINT32_MAX),
     .unit = "ms",
     .default_value = "0",
     .option = "wait_ms",
     .help = "Longest wait for pending blocks at the cap, before an allocation fails"},
    {.key = "pinned_segment_mb",
     LADEI_SETTING_RANGE(lade_config, pinned_segment_mb, 0, UINT64_C(1) << 20),
     .unit = "MiB",
     .default_value = "64",
     .option = "segment_bytes",
     .help = "Memory is pinned in segments of this size; 0: the default"},
    {.key = "pinned_magazine_mb",
     LADEI_SETTING_RANGE(lade_config, pinned_magazine_mb, 0, LADEI_SETTING_MIB_MAX),
     .unit = "MiB",
     .default_value = "64, or an eighth of the cap if that is less",
     .option = "magazine_bytes",
     .help = "Ready blocks that threads keep for themselves, all threads together; 0: the default"},
    {.key = "pinned_max_idle_ms",
     LADEI_SETTING_RANGE(lade_config, pinned_max_idle_ms, 0, UINT32_MAX),
     .unit = "ms",
     .default_value = "never",
     .option = "max_idle_ms",
     .help = "Segments without a block in use for so long are given back; 0: never"},
    {.key = "pinned_threads",
     LADEI_SETTING_RANGE(lade_config, pinned_threads, 0, 1024),
     .unit = "threads",
     .default_value = "chosen by lade, up to 16; none on software devices",
     .option = "prefault_threads",
     .help = "Threads that touch new memory before it is pinned; 0: the default"},
    {.key = "pinned_numa_strict",
     LADEI_SETTING_SWITCH(lade_config, pinned_numa_strict),
     .option = "LADE_PINNED_NUMA_STRICT",
     .help = "Memory for a NUMA node lies on it, or the request fails"},
    {.key = "pinned_background",
     LADEI_SETTING_SWITCH(lade_config, pinned_background),
     .option = "LADE_PINNED_BACKGROUND",
     .help = "A thread of the pool looks at pending blocks"},
    {.key = "pinned_policy",
     .kind = LADEI_SETTING_WORD,
     LADEI_SETTING_FIELD(lade_config, pinned_reference),
     .words = policies,
     .default_value = "default",
     .option = "LADE_PINNED_REFERENCE",
     .help = "reference: decide as the pinned cache of PyTorch does"},
    {.key = "pinned_debug",
     LADEI_SETTING_SWITCH(lade_config, pinned_debug),
     .option = "LADE_PINNED_DEBUG",
     .help = "Free memory is filled and checked, each call takes the slow path: for tests"},
    {.key = "pinned_device_mapped",
     LADEI_SETTING_SWITCH(lade_config, pinned_device_mapped),
     .option = "LADE_PINNED_DEVICE_MAPPED",
     .help = "The memory has an address on the devices"},
    {.key = "pinned_register_chunk_mb",
     LADEI_SETTING_RANGE(lade_config, pinned_register_chunk_mb, 0, UINT64_C(1) << 20),
     .unit = "MiB",
     .default_value = "all at once",
     .option = "register_chunk_bytes",
     .help = "Source register: memory is registered in chunks of this size; 0: all at once"},
    {.key = "pinned_source",
     .kind = LADEI_SETTING_WORD_SET,
     LADEI_SETTING_FIELD(lade_config, pinned_sources),
     .words = sources,
     .default_value = "register|driver|pool",
     .option = "sources",
     .help = "Where memory comes from, tried in the order register, driver, pool, pageable"},
    {.key = "pinned_budget",
     .kind = LADEI_SETTING_WORD,
     LADEI_SETTING_FIELD(lade_config, pinned_budget),
     .words = budgets,
     .default_value = "on; off on sim",
     .option = "budget",
     .help = "Whether the pool is in the budget that the pools of all processes share"},
    {.key = "pinned_budget_name",
     .kind = LADEI_SETTING_NAME,
     LADEI_SETTING_FIELD(lade_config, pinned_budget_name),
     .default_value = "the user's",
     .option = "budget_name",
     .help = "A budget of its own for all pools that say this name"},
    {.key = "pinned_budget_mb",
     LADEI_SETTING_RANGE(lade_config, pinned_budget_mb, 0, LADEI_SETTING_MIB_MAX),
     .unit = "MiB",
     .default_value = "half of the available memory, or 7/8 of what the control groups leave",
     .option = "budget_bytes",
     .help = "What all pools of the budget may pin together; the smallest that one says; 0: the default"},
    {.key = "pinned_budget_share",
     .kind = LADEI_SETTING_WORD,
     LADEI_SETTING_FIELD(lade_config, pinned_budget_share),
     .words = shares,
     .default_value = "first_come",
     .option = "budget_share",
     .help = "How the pool shares the budget: what is left, an equal part, or a part of its own"},
    {.key = "pinned_budget_part_mb",
     LADEI_SETTING_RANGE(lade_config, pinned_budget_part_mb, 0, LADEI_SETTING_MIB_MAX),
     .unit = "MiB",
     .default_value = "none",
     .option = "budget_part_bytes",
     .help = "With share part: what all others leave to the pool, and the most that it pins"},
    {.key = "pinned_local_ranks",
     LADEI_SETTING_RANGE(lade_config, pinned_local_ranks, 0, 1 << 20),
     .unit = "processes",
     .default_value = "1",
     .option = "local_ranks",
     .help = "Processes of the job on this machine: they share the processors, and the default cap where there is no "
             "budget"},
};

_Static_assert(sizeof settings / sizeof settings[0] <= LADEI_SETTINGS_MAX, "raise LADEI_SETTINGS_MAX");

const ladei_settings_table ladei_pinned_settings = {"host", "Pinned pool", "lade_pinned_options", settings,
                                                    sizeof settings / sizeof settings[0]};

void lade_config_apply_pinned(const lade_config *config, lade_pinned_options *options) {
  if (config->pinned_use_cuda_host_register == 1) options->sources = LADE_PINNED_SOURCE_REGISTER;
  if (config->pinned_use_cuda_host_register == 2) options->sources = LADE_PINNED_SOURCE_DRIVER;
  options->max_bytes = config->pinned_max_mb * LADEI_MIB;
  options->event_batch = config->pinned_event_batch;
  options->wait_ms = config->pinned_wait_ms;
  options->segment_bytes = config->pinned_segment_mb * LADEI_MIB;
  options->magazine_bytes = config->pinned_magazine_mb * LADEI_MIB;
  options->max_idle_ms = config->pinned_max_idle_ms;
  options->prefault_threads =
      config->pinned_threads != 0 ? config->pinned_threads : config->pinned_num_register_threads;
  options->flags = config->pinned_numa_strict != 0 ? (uint32_t)LADE_PINNED_NUMA_STRICT : 0;
  options->flags |= config->pinned_background != 0 ? (uint32_t)LADE_PINNED_BACKGROUND : 0;
  options->flags |= config->pinned_debug != 0 ? (uint32_t)LADE_PINNED_DEBUG : 0;
  options->flags |= config->pinned_reference != 0 ? (uint32_t)LADE_PINNED_REFERENCE : 0;
  options->flags |= config->pinned_device_mapped != 0 ? (uint32_t)LADE_PINNED_DEVICE_MAPPED : 0;
  options->register_chunk_bytes = config->pinned_register_chunk_mb * LADEI_MIB;
  if (config->pinned_sources != 0) options->sources = config->pinned_sources;
  options->budget = config->pinned_budget;
  options->budget_name = config->pinned_budget_name[0] == '\0' ? NULL : config->pinned_budget_name;
  options->budget_bytes = config->pinned_budget_mb * LADEI_MIB;
  options->budget_share = config->pinned_budget_share;
  options->budget_part_bytes = config->pinned_budget_part_mb * LADEI_MIB;
  options->local_ranks = config->pinned_local_ranks;
}
