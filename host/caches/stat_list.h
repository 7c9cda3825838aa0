/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every statistic of a pinned pool, in code-point order: the fields of lade_pinned_stats. Counters, reading, resets, names and the
 * metrics of a snapshot come from here.
 *
 *   GAUGE     goes up and down; its sums only grow
 *   SUM       only grows; read from where it is counted (host/state/stats.c)
 *   COUNTED   only grows; an atomic counter of the pool under the same name: a new statistic is a row here, a field there, and
 *             ladei_pinned_count(&pool->counters.NAME, 1) where it happens
 *   VALUE     is set to what it is now
 */
#ifndef LADE_HOST_CACHES_STAT_LIST_H
#define LADE_HOST_CACHES_STAT_LIST_H

/* For a kind that the user of the list leaves out. */
#define LADEI_PINNED_STAT_NONE(name)

/* clang-format off */
#define LADEI_PINNED_STATS(GAUGE, SUM, COUNTED, VALUE) \
  VALUE(budget_bytes)          \
  COUNTED(budget_faults)       \
  VALUE(budget_held_bytes)     \
  COUNTED(budget_refusals)     \
  COUNTED(budget_returns)      \
  GAUGE(cached_blocks)         \
  GAUGE(cached_bytes)          \
  SUM(debug_findings)          \
  VALUE(driver_alloc_max_ns)   \
  VALUE(driver_alloc_min_ns)   \
  SUM(driver_alloc_ns)         \
  SUM(driver_allocs)           \
  VALUE(driver_free_max_ns)    \
  VALUE(driver_free_min_ns)    \
  SUM(driver_free_ns)          \
  SUM(driver_frees)            \
  SUM(events_queried)          \
  SUM(events_recorded)         \
  SUM(hits)                    \
  GAUGE(in_use_blocks)         \
  GAUGE(in_use_bytes)          \
  COUNTED(limit_waits)         \
  SUM(misses)                  \
  COUNTED(other_node_takes)    \
  GAUGE(pending_blocks)        \
  GAUGE(pending_bytes)         \
  COUNTED(pressure_returns)    \
  VALUE(quarantined_uses)      \
  GAUGE(requested_bytes)       \
  GAUGE(reserved_bytes)        \
  GAUGE(segments)              \
  SUM(streams_queried)         \
  COUNTED(unreached_caches)
/* clang-format on */

#endif /* LADE_HOST_CACHES_STAT_LIST_H */
