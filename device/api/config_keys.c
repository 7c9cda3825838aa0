/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device cache: settings as text, one row per key, the field of the options that it is.
 *
 * A new setting is a field of the options and a row here; `lade settings` and docs/tuning.md are made from the rows.
 */
#include "device/api/config_keys.h"

#include "lade/device.h"

static const ladei_setting_word backends[] = {
    {"native", LADE_DEVICE_NATIVE, false}, {"cudaMallocAsync", LADE_DEVICE_CUDA_MALLOC_ASYNC, true}, {NULL, 0, false}};

static const ladei_setting_word policies[] = {
    {"default", 0, true},
    {"reference", LADE_DEVICE_REFERENCE, true},
    {"older_reference", LADE_DEVICE_REFERENCE | LADE_DEVICE_OLDER_REFERENCE, true},
    {"threads", LADE_DEVICE_THREAD_CACHES, true},
    {NULL, 0, false}};

static const ladei_setting settings[] = {
    {.key = "backend",
     .kind = LADEI_SETTING_WORD,
     .origin = LADEI_SETTING_OF_PYTORCH,
     LADEI_SETTING_FIELD(lade_device_options, backend),
     .words = backends,
     .default_value = "native",
     .help = "Who allocates: the cache, or the stream-ordered allocator of the driver"},
    {.key = "max_split_size_mb",
     LADEI_SETTING_MIB(lade_device_options, max_split_bytes, 21, LADEI_SETTING_MIB_MAX),
     .origin = LADEI_SETTING_OF_PYTORCH,
     .default_value = "no limit",
     .help = "Blocks of at least this size are not split"},
    {.key = "garbage_collection_threshold",
     .kind = LADEI_SETTING_THRESHOLD,
     .origin = LADEI_SETTING_OF_PYTORCH,
     LADEI_SETTING_FIELD(lade_device_options, collection_threshold),
     .default_value = "never",
     .help = "Share of the memory fraction from which old cached segments are given back"},
    {.key = "expandable_segments",
     LADEI_SETTING_SWITCH(lade_device_options, expandable_segments),
     .origin = LADEI_SETTING_OF_PYTORCH,
     .help = "One growing range of addresses per stream in place of separate segments"},
    {.key = "roundup_power2_divisions",
     .kind = LADEI_SETTING_DIVISIONS,
     .origin = LADEI_SETTING_OF_PYTORCH,
     LADEI_SETTING_FIELD(lade_device_options, roundup_divisions),
     .default_value = "off",
     .help = "Sizes are rounded up to so many steps per power of two"},
    {.key = "release_lock_on_cudamalloc",
     LADEI_SETTING_NO_EFFECT,
     .origin = LADEI_SETTING_OF_PYTORCH,
     .help = "No effect: lade never holds a lock in a driver call"},
    {.key = "release_lock_on_hipmalloc",
     LADEI_SETTING_NO_EFFECT,
     .origin = LADEI_SETTING_OF_PYTORCH,
     .help = "As release_lock_on_cudamalloc"},
    {.key = "max_non_split_rounding_mb",
     LADEI_SETTING_MIB(lade_device_options, max_unsplit_slack_bytes, 21, LADEI_SETTING_MIB_MAX),
     .origin = LADEI_SETTING_OF_LATER_PYTORCH,
     .default_value = "20",
     .help = "With max_split_size_mb: unsplit blocks serve requests that leave less than this unused"},
    {.key = "large_segment_size_mb",
     LADEI_SETTING_MIB(lade_device_options, large_segment_bytes, 11, LADEI_SETTING_MIB_MAX),
     .origin = LADEI_SETTING_OF_LATER_PYTORCH,
     .default_value = "20",
     .help = "Size of segments for requests of 1 to 10 MiB"},
    {.key = "graph_capture_record_stream_reuse",
     LADEI_SETTING_BIT(lade_device_options, flags, LADE_DEVICE_CAPTURE_REUSE),
     .origin = LADEI_SETTING_OF_LATER_PYTORCH,
     .help = "Blocks that other streams of a capture used come back within it, by the order of its nodes"},
    {.key = "throw_on_cudamalloc_oom",
     LADEI_SETTING_BIT(lade_device_options, flags, LADE_DEVICE_REFUSE_BEYOND_LIMIT),
     .origin = LADEI_SETTING_OF_LATER_PYTORCH,
     .help = "Requests that would exceed the memory fraction are refused before the cache goes back for them"},
    {.key = "per_process_memory_fraction",
     .kind = LADEI_SETTING_FRACTION,
     .origin = LADEI_SETTING_OF_LATER_PYTORCH,
     LADEI_SETTING_FIELD(lade_device_options, memory_fraction),
     .default_value = "no limit",
     .help = "Share of the device above which requests fail; 0: no limit"},
    {.key = "device_max_mb",
     LADEI_SETTING_MIB(lade_device_options, max_bytes, 0, LADEI_SETTING_MIB_MAX),
     .default_value = "no limit",
     .help = "Cap on the memory that the cache holds; 0: no limit"},
    {.key = "device_event_batch",
     LADEI_SETTING_RANGE(lade_device_options, event_batch, 0, 65536),
     .unit = "frees",
     .default_value = "16",
     .help = "Frees that one event covers; 0: the default"},
    {.key = "device_expandable_pools",
     LADEI_SETTING_BIT(lade_device_options, flags, LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS),
     .help = "With expandable_segments: private pools have expandable segments, too"},
    {.key = "device_expandable_ipc",
     LADEI_SETTING_BIT(lade_device_options, flags, LADE_DEVICE_EXPANDABLE_IPC),
     .help = "Memory of expandable segments can be exported to other processes"},
    {.key = "device_newest_pool",
     LADEI_SETTING_BIT(lade_device_options, flags, LADE_DEVICE_NEWEST_POOL),
     .help = "Of overlapping captures, the one begun last gets the allocations"},
    {.key = "device_streams_are_retired",
     LADEI_SETTING_BIT(lade_device_options, flags, LADE_DEVICE_STREAMS_ARE_RETIRED),
     .help = "The program retires each stream before it destroys it: threads remember their last stream"},
    {.key = "device_uncached",
     LADEI_SETTING_BIT(lade_device_options, flags, LADE_DEVICE_UNCACHED),
     .help = "Each block is a driver allocation: for tools that look for wrong accesses"},
    {.key = "device_policy",
     .kind = LADEI_SETTING_WORD,
     LADEI_SETTING_PLACE(lade_device_options, flags),
     .mask = LADE_DEVICE_REFERENCE | LADE_DEVICE_OLDER_REFERENCE | LADE_DEVICE_THREAD_CACHES,
     .words = policies,
     .default_value = "default",
     .option = "LADE_DEVICE_REFERENCE, LADE_DEVICE_OLDER_REFERENCE, LADE_DEVICE_THREAD_CACHES",
     .help =
         "reference: decide as the allocator of PyTorch 2.11 does; older_reference: as that of versions before it had "
         "pools as objects; threads: caches per thread in front of the pools"},
};

_Static_assert(sizeof settings / sizeof settings[0] <= LADEI_SETTINGS_MAX, "raise LADEI_SETTINGS_MAX");

const ladei_settings_table ladei_device_keys = {"device", "Device cache", "lade_device_options", settings,
                                                sizeof settings / sizeof settings[0]};
