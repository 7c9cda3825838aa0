/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of a pinned pool's statistics: the 28 keys under which PyTorch's pinned cache shows the same quantities,
 * then all fields of lade_pinned_stats.
 */
#include "base/stat_keys.h"
#include "host/caches/stat_list.h"
#include "lade/pinned.h"

/* ---- As PyTorch names them --------------------------------------------------------------------------------------- */

/* In use and pending together. A block goes from one to the other, so the peak of both is at least that of each. */
static int64_t active_compute(const lade_pinned_gauge *in_use, const lade_pinned_gauge *pending, size_t cell) {
  uint64_t current = in_use->current + pending->current;
  uint64_t peak = in_use->peak > pending->peak ? in_use->peak : pending->peak;
  uint64_t freed = in_use->freed + pending->freed; /* pending blocks count when they come back */
  switch (cell) {
  case LADEI_STAT_ALLOCATED: return (int64_t)in_use->allocated;
  case LADEI_STAT_CURRENT: return (int64_t)current;
  case LADEI_STAT_FREED: return freed > pending->allocated ? (int64_t)(freed - pending->allocated) : 0;
  default: return (int64_t)(peak > current ? peak : current);
  }
}

static int64_t active_requests(const void *stats, size_t cell) {
  const lade_pinned_stats *own = stats;
  return active_compute(&own->in_use_blocks, &own->pending_blocks, cell);
}

static int64_t active_bytes(const void *stats, size_t cell) {
  const lade_pinned_stats *own = stats;
  return active_compute(&own->in_use_bytes, &own->pending_bytes, cell);
}

typedef struct call_times {
  uint64_t count, total_ns, min_ns, max_ns;
} call_times;

static int64_t times_compute(const call_times *times, size_t figure) {
  enum { NS_PER_US = 1000 };
  switch (figure) {
  case LADEI_STAT_AVG: return times->count == 0 ? 0 : (int64_t)(times->total_ns / times->count / NS_PER_US);
  case LADEI_STAT_COUNT: return (int64_t)times->count;
  case LADEI_STAT_MAX: return (int64_t)(times->max_ns / NS_PER_US);
  case LADEI_STAT_MIN: return (int64_t)(times->min_ns / NS_PER_US);
  default: return (int64_t)(times->total_ns / NS_PER_US);
  }
}

static int64_t alloc_time(const void *stats, size_t figure) {
  const lade_pinned_stats *own = stats;
  return times_compute(
      &(call_times){own->driver_allocs, own->driver_alloc_ns, own->driver_alloc_min_ns, own->driver_alloc_max_ns},
      figure);
}

static int64_t free_time(const void *stats, size_t figure) {
  const lade_pinned_stats *own = stats;
  return times_compute(
      &(call_times){own->driver_frees, own->driver_free_ns, own->driver_free_min_ns, own->driver_free_max_ns}, figure);
}

#define PINNED_COUNT(name, field) LADEI_STAT_ROW_PLAIN(lade_pinned_stats, name, field, LADEI_STAT_U64)
#define PINNED_GAUGE(name, field) LADEI_STAT_ROW_GAUGE(lade_pinned_stats, name, field)
#define PINNED_OWN_COUNT(field)   PINNED_COUNT(#field, field),
#define PINNED_OWN_GAUGE(field)   PINNED_GAUGE(#field, field),

static const ladei_stat_metric of_pytorch[] = {
    LADEI_STAT_ROW_COMPUTED_GAUGE("active_bytes", active_bytes),
    LADEI_STAT_ROW_COMPUTED_GAUGE("active_requests", active_requests),
    PINNED_GAUGE("allocated_bytes", reserved_bytes),
    PINNED_GAUGE("allocations", segments),
    LADEI_STAT_ROW_COMPUTED_TIMES("host_alloc_time", alloc_time),
    LADEI_STAT_ROW_COMPUTED_TIMES("host_free_time", free_time),
    PINNED_COUNT("num_host_alloc", driver_allocs),
    PINNED_COUNT("num_host_free", driver_frees),
};

/* ---- lade's own -------------------------------------------------------------------------------------------------- */

static const ladei_stat_metric of_lade[] = {
    LADEI_PINNED_STATS(PINNED_OWN_GAUGE, PINNED_OWN_COUNT, PINNED_OWN_COUNT, PINNED_OWN_COUNT)};

_Static_assert(offsetof(lade_pinned_gauge, current) == 0 && offsetof(lade_pinned_gauge, peak) == 8 &&
                   offsetof(lade_pinned_gauge, allocated) == 16 && offsetof(lade_pinned_gauge, freed) == 24,
               "the cells of a gauge, as base/stat_keys.c takes them for granted");
_Static_assert(sizeof(lade_pinned_stats) <= LADEI_STAT_STRUCT_MAX, "raise LADEI_STAT_STRUCT_MAX");

static const ladei_stat_table table = {
    {{of_pytorch, sizeof of_pytorch / sizeof of_pytorch[0]}, {of_lade, sizeof of_lade / sizeof of_lade[0]}},
    sizeof(lade_pinned_stats)};

lade_status lade_pinned_stats_each(const lade_pinned_stats *stats, lade_stat_visit visit, void *user) {
  return ladei_stat_keys_each(&table, __func__, stats, visit, user);
}
