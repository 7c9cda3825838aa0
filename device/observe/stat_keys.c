/* SPDX-License-Identifier: Apache-2.0 */
/* The names of a device allocator's statistics: the 122 keys under which PyTorch's allocator shows the same quantities. */
#include "base/stat_keys.h"
#include "lade/device.h"

static int64_t split_limit(const void *stats) {
  uint64_t bytes = ((const lade_device_stats *)stats)->max_split_bytes;
  return bytes == 0 ? -1 : (int64_t)bytes;
}

#define GAUGES(name)       LADEI_STAT_ROW_GAUGES(lade_device_stats, #name, name)
#define GAUGE(name)        LADEI_STAT_ROW_GAUGE(lade_device_stats, #name, name)
#define COUNT(name, field) LADEI_STAT_ROW_PLAIN(lade_device_stats, name, field, LADEI_STAT_U64)

static const ladei_stat_metric metrics[] = {
    GAUGES(active),
    GAUGES(active_bytes),
    GAUGES(allocated_bytes),
    GAUGES(allocation),
    GAUGES(inactive_split),
    GAUGES(inactive_split_bytes),
    LADEI_STAT_ROW_COMPUTED("max_split_size", split_limit),
    COUNT("num_alloc_retries", alloc_retries),
    COUNT("num_device_alloc", device_allocs),
    COUNT("num_device_free", device_frees),
    COUNT("num_ooms", ooms),
    COUNT("num_sync_all_streams", sync_all_streams),
    GAUGE(oversize_allocations),
    GAUGE(oversize_segments),
    GAUGES(requested_bytes),
    GAUGES(reserved_bytes),
    GAUGES(segment),
};

/* What stat_keys.c takes for granted. */
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

lade_status lade_device_stats_find(const lade_device_stats *stats, const char *key, int64_t *out) {
  return ladei_stat_keys_find(&table, __func__, stats, key, out);
}
