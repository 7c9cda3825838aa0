/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device cache: settings as text, one row per key, and what they change in the options.
 *
 * A new setting is a field of lade_config, a row here and a line in the function below; `lade settings` and
 * docs/tuning.md are made from the rows.
 */
#include "device/api/config_keys.h"

#include <string.h>

#include "base/size.h"
#include "lade/config.h"

static const ladei_setting_word backends[] = {
    {"native", LADE_DEVICE_NATIVE, false}, {"cudaMallocAsync", LADE_DEVICE_CUDA_MALLOC_ASYNC, true}, {NULL, 0, false}};

static const ladei_setting_word policies[] = {
    {"default", 0, true}, {"reference", 1, true}, {"threads", 2, true}, {NULL, 0, false}};

static const ladei_setting settings[] = {
    {.key = "backend",
     .kind = LADEI_SETTING_WORD,
     .origin = LADEI_SETTING_OF_PYTORCH,
     LADEI_SETTING_FIELD(lade_config, backend),
     .words = backends,
     .default_value = "native",
     .option = "backend",
     .help = "Who allocates: the cache, or the stream-ordered allocator of the driver"},
    {.key = "max_split_size_mb",
     LADEI_SETTING_RANGE(lade_config, max_split_size_mb, 21, LADEI_SETTING_MIB_MAX),
     .origin = LADEI_SETTING_OF_PYTORCH,
     .unit = "MiB",
     .default_value = "no limit",
     .option = "max_split_bytes",
     .help = "Blocks of at least this size are not split"},
    {.key = "garbage_collection_threshold",
     .kind = LADEI_SETTING_THRESHOLD,
     .origin = LADEI_SETTING_OF_PYTORCH,
     LADEI_SETTING_FIELD(lade_config, garbage_collection_threshold),
     .default_value = "never",
     .option = "collection_threshold",
     .help = "Share of the memory fraction from which old cached segments are given back"},
    {.key = "expandable_segments",
     LADEI_SETTING_SWITCH(lade_config, expandable_segments),
     .origin = LADEI_SETTING_OF_PYTORCH,
     .option = "expandable_segments",
     .help = "One growing range of addresses per stream in place of separate segments"},
    {.key = "roundup_power2_divisions",
     .kind = LADEI_SETTING_DIVISIONS,
     .origin = LADEI_SETTING_OF_PYTORCH,
     LADEI_SETTING_FIELD(lade_config, roundup_power2_divisions),
     .default_value = "off",
     .option = "roundup_divisions",
     .help = "Sizes are rounded up to so many steps per power of two"},
    {.key = "release_lock_on_cudamalloc",
     LADEI_SETTING_SWITCH(lade_config, release_lock_on_cudamalloc),
     .origin = LADEI_SETTING_OF_PYTORCH,
     .help = "No effect: lade never holds a lock in a driver call"},
    {.key = "release_lock_on_hipmalloc",
     LADEI_SETTING_SWITCH(lade_config, release_lock_on_cudamalloc),
     .origin = LADEI_SETTING_OF_PYTORCH,
     .help = "As release_lock_on_cudamalloc"},
    {.key = "max_non_split_rounding_mb",
     LADEI_SETTING_RANGE(lade_config, max_non_split_rounding_mb, 21, LADEI_SETTING_MIB_MAX),
     .origin = LADEI_SETTING_OF_LATER_PYTORCH,
     .unit = "MiB",
     .default_value = "20",
     .option = "max_unsplit_slack_bytes",
     .help = "With max_split_size_mb: unsplit blocks serve requests that leave less than this unused"},
    {.key = "large_segment_size_mb",
     LADEI_SETTING_RANGE(lade_config, large_segment_size_mb, 11, LADEI_SETTING_MIB_MAX),
     .origin = LADEI_SETTING_OF_LATER_PYTORCH,
     .unit = "MiB",
     .default_value = "20",
     .option = "large_segment_bytes",
     .help = "Size of segments for requests of 1 to 10 MiB"},
    {.key = "graph_capture_record_stream_reuse",
     LADEI_SETTING_SWITCH(lade_config, graph_capture_record_stream_reuse),
     .origin = LADEI_SETTING_OF_LATER_PYTORCH,
     .option = "LADE_DEVICE_CAPTURE_REUSE",
     .help = "Blocks that other streams of a capture used come back within it, by the order of its nodes"},
    {.key = "throw_on_cudamalloc_oom",
     LADEI_SETTING_SWITCH(lade_config, throw_on_cudamalloc_oom),
     .origin = LADEI_SETTING_OF_LATER_PYTORCH,
     .option = "LADE_DEVICE_REFUSE_BEYOND_LIMIT",
     .help = "Requests that would exceed the memory fraction are refused before the cache goes back for them"},
    {.key = "per_process_memory_fraction",
     .kind = LADEI_SETTING_FRACTION,
     .origin = LADEI_SETTING_OF_LATER_PYTORCH,
     LADEI_SETTING_FIELD(lade_config, per_process_memory_fraction),
     .default_value = "no limit",
     .option = "memory_fraction",
     .help = "Share of the device above which requests fail; 0: no limit"},
    {.key = "device_max_mb",
     LADEI_SETTING_RANGE(lade_config, device_max_mb, 0, LADEI_SETTING_MIB_MAX),
     .unit = "MiB",
     .default_value = "no limit",
     .option = "max_bytes",
     .help = "Cap on the memory that the cache holds; 0: no limit"},
    {.key = "device_event_batch",
     LADEI_SETTING_RANGE(lade_config, device_event_batch, 0, 65536),
     .unit = "frees",
     .default_value = "16",
     .option = "event_batch",
     .help = "Frees that one event covers; 0: the default"},
    {.key = "device_expandable_pools",
     LADEI_SETTING_SWITCH(lade_config, device_expandable_pools),
     .option = "LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS",
     .help = "With expandable_segments: private pools have expandable segments, too"},
    {.key = "device_expandable_ipc",
     LADEI_SETTING_SWITCH(lade_config, device_expandable_ipc),
     .option = "LADE_DEVICE_EXPANDABLE_IPC",
     .help = "Memory of expandable segments can be exported to other processes"},
    {.key = "device_newest_pool",
     LADEI_SETTING_SWITCH(lade_config, device_newest_pool),
     .option = "LADE_DEVICE_NEWEST_POOL",
     .help = "Of overlapping captures, the one begun last gets the allocations"},
    {.key = "device_streams_are_retired",
     LADEI_SETTING_SWITCH(lade_config, device_streams_are_retired),
     .option = "LADE_DEVICE_STREAMS_ARE_RETIRED",
     .help = "The program retires each stream before it destroys it: threads remember their last stream"},
    {.key = "device_uncached",
     LADEI_SETTING_SWITCH(lade_config, device_uncached),
     .option = "LADE_DEVICE_UNCACHED",
     .help = "Each block is a driver allocation: for tools that look for wrong accesses"},
    {.key = "device_policy",
     .kind = LADEI_SETTING_WORD,
     LADEI_SETTING_FIELD(lade_config, device_reference),
     .words = policies,
     .default_value = "default",
     .option = "LADE_DEVICE_REFERENCE, LADE_DEVICE_THREAD_CACHES",
     .help = "reference: decide as the allocator of PyTorch does; threads: caches per thread in front of the pools"},
};

_Static_assert(sizeof settings / sizeof settings[0] <= LADEI_SETTINGS_MAX, "raise LADEI_SETTINGS_MAX");

const ladei_settings_table ladei_device_settings = {"device", "Device cache", "lade_device_options", settings,
                                                    sizeof settings / sizeof settings[0]};

void lade_config_apply_device(const lade_config *config, lade_device_options *options) {
  options->max_split_bytes = config->max_split_size_mb * LADEI_MIB;
  options->collection_threshold = config->garbage_collection_threshold;
  options->expandable_segments = config->expandable_segments;
  memcpy(options->roundup_divisions, config->roundup_power2_divisions, sizeof options->roundup_divisions);
  options->max_unsplit_slack_bytes = config->max_non_split_rounding_mb * LADEI_MIB;
  options->large_segment_bytes = config->large_segment_size_mb * LADEI_MIB;
  options->backend = config->backend;
  options->flags = config->device_uncached != 0 ? (uint32_t)LADE_DEVICE_UNCACHED : 0;
  options->flags |= config->device_expandable_pools != 0 ? (uint32_t)LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS : 0;
  options->flags |= config->device_expandable_ipc != 0 ? (uint32_t)LADE_DEVICE_EXPANDABLE_IPC : 0;
  options->flags |= config->device_newest_pool != 0 ? (uint32_t)LADE_DEVICE_NEWEST_POOL : 0;
  options->flags |= config->device_streams_are_retired != 0 ? (uint32_t)LADE_DEVICE_STREAMS_ARE_RETIRED : 0;
  options->flags |= config->device_reference == 1 ? (uint32_t)LADE_DEVICE_REFERENCE : 0;
  options->flags |= config->device_reference == 2 ? (uint32_t)LADE_DEVICE_THREAD_CACHES : 0;
  options->flags |= config->throw_on_cudamalloc_oom != 0 ? (uint32_t)LADE_DEVICE_REFUSE_BEYOND_LIMIT : 0;
  options->flags |= config->graph_capture_record_stream_reuse != 0 ? (uint32_t)LADE_DEVICE_CAPTURE_REUSE : 0;
  options->memory_fraction = config->per_process_memory_fraction;
  options->max_bytes = config->device_max_mb * LADEI_MIB;
  options->event_batch = config->device_event_batch;
}
