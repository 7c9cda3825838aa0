/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of a pinned pool: gauges from the counters, of classes, nodes and the pool.
 *
 * I1  A node's values are the sums of its classes', the pool's those of its nodes'. Peaks are each level's own.
 * I2  The peaks of reserved are exact; usage.c says how exact those of what is in use and pending are. Those of cached blocks
 *     are taken at each read, when memory came and before it goes.
 * Locks: pool->threads_lock while threads are summed; it guards the peaks of cached blocks.
 */
#include "host/stats.h"

#include "base/error.h"
#include "base/options.h"
#include "host/pool_state.h"
#include "host/usage.h"

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static lade_pinned_gauge gauge_of(uint64_t allocated, uint64_t freed, uint64_t peak) {
  uint64_t current = allocated - freed;
  lade_pinned_gauge out;
  out.current = (int64_t)current < 0 ? 0 : current; /* a free counted before its alloc, by a thread read later */
  out.peak = peak < out.current ? out.current : peak;
  out.allocated = allocated;
  out.freed = freed;
  return out;
}

/* What is read now is a peak as good as what threads published. */
static lade_pinned_gauge in_use_gauge(uint64_t allocated, uint64_t freed, ladei_pinned_published *published) {
  lade_pinned_gauge out = gauge_of(allocated, freed, ladei_pinned_counter_read(&published->peak));
  ladei_pinned_peak_raise(&published->peak, out.peak);
  return out;
}

/* The same of a peak that pool->threads_lock guards. */
static lade_pinned_gauge guarded_gauge(uint64_t allocated, uint64_t freed, uint64_t *peak) {
  lade_pinned_gauge out = gauge_of(allocated, freed, *peak);
  *peak = out.peak;
  return out;
}

/* What came to the cached blocks from below, free memory or the driver, and what went back there. */
typedef struct supply {
  ladei_pinned_amount in, out;
} supply;

/* The same of what is pending. `retired` was read before the rest, so nothing is missing in it, but what came back
 * meanwhile is in; that must not raise the peak. */
static lade_pinned_gauge pending_gauge(uint64_t allocated, uint64_t retired, uint64_t retired_now,
                                       _Atomic(uint64_t) *peak) {
  ladei_pinned_peak_raise(peak, allocated > retired_now ? allocated - retired_now : 0);
  lade_pinned_gauge out = gauge_of(allocated, retired, ladei_pinned_counter_read(peak));
  return out;
}

/* What belongs to a class, a node, or the pool. */
typedef struct level {
  ladei_pinned_published_use *in_use;
  ladei_pinned_pending *pending; /* its peaks */
  ladei_pinned_amount retired;   /* what is pending no longer: read before what became pending */
  ladei_pinned_amount *cached_peak;
} level;

static level level_of(ladei_pinned_level_counters *counters) {
  return (level){&counters->in_use, &counters->pending, ladei_pinned_counter_pair_read(&counters->pending.retired),
                 &counters->cached_peak};
}

/* One class, node, or the pool: cached is what came from below, was freed without a stream in use, or is not pending any
 * more; less what was handed out or went back below. Under pool->threads_lock. */
static void gauges_read(const ladei_pinned_usage *usage, const supply *below, const level *own,
                        const ladei_pinned_amount *retired_now, ladei_pinned_gauges *out) {
  const ladei_pinned_amount *pending = &usage->pending_allocated, *retired = &own->retired;
  out->in_use_blocks = in_use_gauge(usage->allocs, usage->frees, &own->in_use->blocks);
  out->in_use_bytes = in_use_gauge(usage->bytes_allocated, usage->bytes_freed, &own->in_use->bytes);
  out->requested_bytes = in_use_gauge(usage->requested_allocated, usage->requested_freed, &own->in_use->requested);
  out->pending_blocks =
      pending_gauge(pending->blocks, retired->blocks, retired_now->blocks, &own->pending->peak_blocks);
  out->pending_bytes = pending_gauge(pending->bytes, retired->bytes, retired_now->bytes, &own->pending->peak_bytes);
  out->cached_blocks = guarded_gauge(below->in.blocks + usage->frees - pending->blocks + retired->blocks,
                                     below->out.blocks + usage->allocs, &own->cached_peak->blocks);
  out->cached_bytes = guarded_gauge(below->in.bytes + usage->bytes_freed - pending->bytes + retired->bytes,
                                    below->out.bytes + usage->bytes_allocated, &own->cached_peak->bytes);
}

static void level_read(const ladei_pinned_usage *usage, const supply *below, const level *own,
                       ladei_pinned_gauges *out) {
  ladei_pinned_amount retired_now = ladei_pinned_counter_pair_read(&own->pending->retired);
  gauges_read(usage, below, own, &retired_now, out);
}

/* Under pool->threads_lock. `out_classes` may be NULL. */
static void node_read(lade_pinned_pool *pool, unsigned node, ladei_pinned_node_gauges *out,
                      ladei_pinned_gauges *out_classes, ladei_pinned_usage *usage, supply *below) {
  ladei_lock_assert_held(&pool->threads_lock);
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  level whole = level_of(&counters->level);
  *usage = (ladei_pinned_usage){0};
  *below = (supply){{0, 0}, {0, 0}};
  for (unsigned c = 0; c < LADEI_PINNED_CLASSES; c++) {
    ladei_pinned_class_counters *own = &counters->classes[c];
    level part = level_of(&own->level);
    ladei_pinned_usage class_sum = ladei_pinned_class_usage_read(pool, node, c);
    supply class_below = {{0, 0}, {0, 0}};
    ladei_pinned_gauges unused;
    ladei_pinned_counter_pair_sum(&class_below.in, &own->taken);
    ladei_pinned_counter_pair_sum(&class_below.out, &own->returned);
    level_read(&class_sum, &class_below, &part, out_classes == NULL ? &unused : &out_classes[c]);
    ladei_pinned_usage_add(usage, &class_sum);
    below->in.blocks += class_below.in.blocks;
    below->out.blocks += class_below.out.blocks;
  }
  ladei_pinned_node_reserved(ladei_pinned_pool_node(pool, node), &out->reserved_bytes);
  below->in.bytes = out->reserved_bytes.allocated;
  below->out.bytes = out->reserved_bytes.freed;
  level_read(usage, below, &whole, &out->gauges);
}

void ladei_pinned_node_stats_read(lade_pinned_pool *pool, unsigned node, ladei_pinned_node_gauges *out,
                                  ladei_pinned_gauges *out_classes) {
  ladei_pinned_usage usage;
  supply below;
  ladei_lock_acquire(&pool->threads_lock);
  node_read(pool, node, out, out_classes, &usage, &below);
  ladei_lock_release(&pool->threads_lock);
}

static void peaks_take_over(ladei_pinned_pool_counters *pool, const ladei_pinned_level_counters *node) {
  ladei_pinned_peak_raise(&pool->in_use.blocks.peak, ladei_pinned_counter_read(&node->in_use.blocks.peak));
  ladei_pinned_peak_raise(&pool->in_use.bytes.peak, ladei_pinned_counter_read(&node->in_use.bytes.peak));
  ladei_pinned_peak_raise(&pool->in_use.requested.peak, ladei_pinned_counter_read(&node->in_use.requested.peak));
  ladei_pinned_peak_raise(&pool->pending.peak_blocks, ladei_pinned_counter_read(&node->pending.peak_blocks));
  ladei_pinned_peak_raise(&pool->pending.peak_bytes, ladei_pinned_counter_read(&node->pending.peak_bytes));
}

static void pool_read(lade_pinned_pool *pool, ladei_pinned_gauges *out) {
  ladei_pinned_pool_counters *counters = &pool->counters;
  ladei_pinned_usage sum = {0}, usage;
  supply total = {{0, 0}, {0, 0}}, below;
  ladei_pinned_node_gauges node;
  ladei_lock_acquire(&pool->threads_lock);
  level whole = {&counters->in_use, &counters->pending, ladei_pinned_retired_read(pool), &counters->cached_peak};
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    node_read(pool, i, &node, NULL, &usage, &below);
    ladei_pinned_usage_add(&sum, &usage);
    ladei_pinned_amount_add(&total.in, below.in);
    ladei_pinned_amount_add(&total.out, below.out);
    peaks_take_over(counters, &ladei_pinned_pool_node(pool, i)->counters.level);
  }
  ladei_pinned_amount retired_now = ladei_pinned_retired_read(pool);
  gauges_read(&sum, &total, &whole, &retired_now, out);
  ladei_lock_release(&pool->threads_lock);
}

void ladei_pinned_cached_note(lade_pinned_pool *pool) {
  ladei_pinned_gauges unused;
  pool_read(pool, &unused);
}

static void usage_read(lade_pinned_pool *pool, lade_pinned_stats *out) {
  ladei_pinned_gauges gauges;
  pool_read(pool, &gauges);
  out->in_use_blocks = gauges.in_use_blocks;
  out->in_use_bytes = gauges.in_use_bytes;
  out->requested_bytes = gauges.requested_bytes;
  out->pending_blocks = gauges.pending_blocks;
  out->pending_bytes = gauges.pending_bytes;
  out->cached_blocks = gauges.cached_blocks;
  out->cached_bytes = gauges.cached_bytes;
  /* A miss is counted before its alloc, and read after it: so this is at most what it should be, and never falls. */
  out->misses = ladei_pinned_counter_read(&pool->counters.misses);
  uint64_t allocs = gauges.in_use_blocks.allocated;
  ladei_pinned_peak_raise(&pool->counters.hits, allocs > out->misses ? allocs - out->misses : 0);
  out->hits = ladei_pinned_counter_read(&pool->counters.hits);
}

static void counters_read(const ladei_pinned_pool_counters *counters, lade_pinned_stats *out) {
  uint64_t reserved = ladei_pinned_counter_read(&counters->reserved_bytes.allocated);
  out->reserved_bytes = gauge_of(reserved, reserved - ladei_pinned_gauge_current(&counters->reserved_bytes),
                                 ladei_pinned_counter_read(&counters->reserved_bytes.peak));
  out->driver_allocs = ladei_pinned_counter_read(&counters->driver_allocs.count);
  out->driver_alloc_ns = ladei_pinned_counter_read(&counters->driver_allocs.total_ns);
  out->driver_alloc_min_ns = out->driver_allocs == 0 ? 0 : ladei_pinned_counter_read(&counters->driver_allocs.min_ns);
  out->driver_alloc_max_ns = ladei_pinned_counter_read(&counters->driver_allocs.max_ns);
  out->driver_frees = ladei_pinned_counter_read(&counters->driver_frees.count);
  out->driver_free_ns = ladei_pinned_counter_read(&counters->driver_frees.total_ns);
  out->driver_free_min_ns = out->driver_frees == 0 ? 0 : ladei_pinned_counter_read(&counters->driver_frees.min_ns);
  out->driver_free_max_ns = ladei_pinned_counter_read(&counters->driver_frees.max_ns);
#define SUM_READ(name) out->name = ladei_pinned_counter_read(&counters->name);
  LADEI_PINNED_SUMS(SUM_READ)
#undef SUM_READ
}

const char *lade_pinned_debug_last(lade_pinned_pool *pool) {
  return pool == NULL || pool->debug == NULL ? "" : ladei_pinned_debug_last(pool->debug);
}

lade_status lade_pinned_stats_get(lade_pinned_pool *pool, lade_pinned_stats *stats) {
  if (pool == NULL || stats == NULL) return ladei_error_null(__func__, pool == NULL ? "pool" : "stats");
  lade_status status = ladei_runtime_check_process(pool->runtime);
  if (status != LADE_OK) return status;
  lade_pinned_stats own;
  ladei_retire_counters retire;
  lade_pinned_stats_init(&own);
  usage_read(pool, &own);
  counters_read(&pool->counters, &own);
  own.debug_findings = pool->debug == NULL ? 0 : ladei_pinned_debug_findings(pool->debug);
  ladei_retire_counters_get(pool->retire, &retire);
  own.events_recorded = retire.events_recorded;
  own.events_queried = retire.events_queried;
  own.streams_queried = retire.streams_queried;
  own.quarantined_uses = retire.quarantined_uses;
  return ladei_stats_write("lade_pinned_stats", &own, sizeof own, stats);
}
