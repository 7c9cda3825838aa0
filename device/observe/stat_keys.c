/* SPDX-License-Identifier: Apache-2.0 */
/* The names of a device allocator's statistics: the 122 keys under which PyTorch's allocator shows the same
 * quantities. */
#include "base/stat_keys.h"
#include "lade/device.h"

static int64_t split_limit(const void *stats, size_t key) {
  (void)key;
  uint64_t bytes = ((const lade_device_stats *)stats)->max_split_bytes;
  return bytes == 0 ? -1 : (int64_t)bytes;
}

#define DEVICE_GAUGES(name)       LADEI_STAT_ROW_GAUGES(lade_device_stats, #name, name)
#define DEVICE_GAUGE(name)        LADEI_STAT_ROW_GAUGE(lade_device_stats, #name, name)
#define DEVICE_COUNT(name, field) LADEI_STAT_ROW_PLAIN(lade_device_stats, name, field, LADEI_STAT_U64)

static const ladei_stat_metric metrics[] = {
    DEVICE_GAUGES(active),
    DEVICE_GAUGES(active_bytes),
    DEVICE_GAUGES(allocated_bytes),
    DEVICE_GAUGES(allocation),
    DEVICE_GAUGES(inactive_split),
    DEVICE_GAUGES(inactive_split_bytes),
    LADEI_STAT_ROW_COMPUTED("max_split_size", split_limit),
    DEVICE_COUNT("num_alloc_retries", alloc_retries),
    DEVICE_COUNT("num_device_alloc", device_allocs),
    DEVICE_COUNT("num_device_free", device_frees),
    DEVICE_COUNT("num_ooms", ooms),
    DEVICE_COUNT("num_sync_all_streams", sync_all_streams),
    DEVICE_GAUGE(oversize_allocations),
    DEVICE_GAUGE(oversize_segments),
    DEVICE_GAUGES(requested_bytes),
    DEVICE_GAUGES(reserved_bytes),
    DEVICE_GAUGES(segment),
};

/* Layouts that stat_keys.c takes for granted. */
_Static_assert(offsetof(lade_device_gauge, current) == 0 && offsetof(lade_device_gauge, peak) == 8 &&
                   offsetof(lade_device_gauge, allocated) == 16 && offsetof(lade_device_gauge, freed) == 24,
               "the cells of a gauge");
_Static_assert(offsetof(lade_device_gauges, all) == 0 && offsetof(lade_device_gauges, small_pool) == 32 &&
                   offsetof(lade_device_gauges, large_pool) == 64,
               "the gauges of the pools");
_Static_assert(sizeof(lade_device_stats) <= LADEI_STAT_STRUCT_MAX, "raise LADEI_STAT_STRUCT_MAX");

static const ladei_stat_table table = {{{metrics, sizeof metrics / sizeof metrics[0]}, {NULL, 0}},
                                       sizeof(lade_device_stats)};

lade_status lade_device_stats_each(const lade_device_stats *stats, lade_stat_visit visit, void *user) {
  return ladei_stat_keys_each(&table, __func__, stats, visit, user);
}
