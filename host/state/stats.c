/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of a pinned pool: gauges from the counters, of classes, nodes and the pool.
 *
 * I1  A node's values are the sums of its classes', the pool's those of its nodes'. Peaks are each level's own.
 * I2  A reset of the sums notes them (pool->counters.base), and changes no counter of threads. A reset of peaks takes
 *     them to 0, from where the read that follows raises them to the current values.
 * I3  The peaks of reserved are exact; usage.c gives the error of those in use and pending. Those of cached blocks are
 *     taken at each read, when memory came and before it goes.
 * Locks: pool->threads.lock while threads are summed; it guards the peaks of cached blocks and pool->counters.base.
 */
#include "host/state/stats.h"

#include "base/options.h"
#include "base/stat_keys.h"
#include "host/state/call.h"
#include "host/state/usage.h"

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

/* A value that is read now is as good a peak as one that threads published. */
static lade_pinned_gauge in_use_gauge(uint64_t allocated, uint64_t freed, ladei_pinned_published *published) {
  lade_pinned_gauge out = gauge_of(allocated, freed, ladei_pinned_counter_read(&published->peak));
  ladei_pinned_peak_raise(&published->peak, out.peak);
  return out;
}

/* The same of a peak that pool->threads.lock guards. */
static lade_pinned_gauge guarded_gauge(uint64_t allocated, uint64_t freed, uint64_t *peak) {
  lade_pinned_gauge out = gauge_of(allocated, freed, *peak);
  *peak = out.peak;
  return out;
}

/* Memory that came to the cached blocks from below, free memory or the driver, and memory that went back there. */
typedef struct supply {
  ladei_pinned_amount in, out;
} supply;

/* The same of pending blocks. `retired` was read before the rest, so nothing is missing in it, but blocks that came
 * back meanwhile are in; these must not raise the peak. */
static lade_pinned_gauge pending_gauge(uint64_t allocated, uint64_t retired, uint64_t retired_now,
                                       _Atomic(uint64_t) *peak) {
  ladei_pinned_peak_raise(peak, allocated > retired_now ? allocated - retired_now : 0);
  lade_pinned_gauge out = gauge_of(allocated, retired, ladei_pinned_counter_read(peak));
  return out;
}

/* U2 in usage.c: counts that threads did not show must not make impossible peaks. */
static void in_use_peaks_limit(lade_pinned_gauge *in_use, lade_pinned_gauge *requested, uint64_t reserved_peak) {
  in_use->peak = ladei_size_max(ladei_size_min(in_use->peak, reserved_peak), in_use->current);
  requested->peak = ladei_size_max(ladei_size_min(requested->peak, in_use->peak), requested->current);
}

/* Counters of a class, a node, or the pool. */
typedef struct level {
  ladei_pinned_published_use *in_use;
  ladei_pinned_pending *pending; /* its peaks */
  ladei_pinned_amount *cached_peak;
} level;

static level level_of(ladei_pinned_level_counters *counters) {
  return (level){&counters->in_use, &counters->pending, &counters->cached_peak};
}

/* One class, node, or the pool: cached are blocks that came from below, were freed without a stream in use, or are not
 * pending any more; less those handed out or gone back below. Under pool->threads.lock. */
static void gauges_read(const ladei_pinned_usage *usage, const supply *below, const level *own,
                        const ladei_pinned_amount *retired_now, ladei_pinned_gauges *out) {
  const ladei_pinned_amount *pending = &usage->pending_allocated, *retired = &usage->pending_retired;
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

/* Under pool->threads.lock. `out_classes` may be NULL. */
static void node_read(lade_pinned_pool *pool, unsigned node, ladei_pinned_node_gauges *out,
                      ladei_pinned_gauges *out_classes, ladei_pinned_usage *usage, supply *below) {
  ladei_lock_assert_held(&pool->threads.lock);
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  level whole = level_of(&counters->level);
  *usage = (ladei_pinned_usage){0};
  *below = (supply){{0, 0}, {0, 0}};
  ladei_pinned_node_settle(ladei_pinned_pool_node(pool, node));
  for (unsigned c = 0; c < LADEI_PINNED_CLASSES; c++) {
    level part = level_of(&counters->classes[c]);
    ladei_pinned_usage class_sum = ladei_pinned_class_usage_read(pool, node, c);
    supply class_below = {{0, 0}, {0, 0}};
    ladei_pinned_gauges unused;
    ladei_pinned_node_supply(ladei_pinned_pool_node(pool, node), c, &class_below.in, &class_below.out);
    ladei_pinned_amount retired_now = ladei_pinned_class_retired_read(pool, node, c);
    gauges_read(&class_sum, &class_below, &part, &retired_now, out_classes == NULL ? &unused : &out_classes[c]);
    ladei_pinned_usage_add(usage, &class_sum);
    below->in.blocks += class_below.in.blocks;
    below->out.blocks += class_below.out.blocks;
  }
  ladei_pinned_node_reserved(ladei_pinned_pool_node(pool, node), &out->reserved_bytes);
  below->in.bytes = out->reserved_bytes.allocated;
  below->out.bytes = out->reserved_bytes.freed;
  ladei_pinned_amount retired_now = ladei_pinned_node_retired_read(pool, node);
  gauges_read(usage, below, &whole, &retired_now, &out->gauges);
}

void ladei_pinned_node_stats_read(lade_pinned_pool *pool, unsigned node, ladei_pinned_node_gauges *out,
                                  ladei_pinned_gauges *out_classes) {
  ladei_pinned_usage usage;
  supply below;
  ladei_lock_acquire(&pool->threads.lock);
  node_read(pool, node, out, out_classes, &usage, &below);
  ladei_lock_release(&pool->threads.lock);
  in_use_peaks_limit(&out->gauges.in_use_bytes, &out->gauges.requested_bytes, out->reserved_bytes.peak);
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
  ladei_lock_acquire(&pool->threads.lock);
  level whole = {&counters->in_use, &counters->pending, &counters->cached_peak};
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    node_read(pool, i, &node, NULL, &usage, &below);
    ladei_pinned_usage_add(&sum, &usage);
    ladei_pinned_amount_add(&total.in, below.in);
    ladei_pinned_amount_add(&total.out, below.out);
    peaks_take_over(counters, &ladei_pinned_pool_node(pool, i)->counters.level);
  }
  ladei_pinned_amount retired_now = ladei_pinned_retired_read(pool);
  gauges_read(&sum, &total, &whole, &retired_now, out);
  ladei_lock_release(&pool->threads.lock);
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
  /* A miss is counted before its alloc, and read after it: so this is at most the true value, and never falls. */
  out->misses = ladei_pinned_counter_read(&pool->counters.misses);
  uint64_t allocs = gauges.in_use_blocks.allocated;
  ladei_pinned_peak_raise(&pool->counters.hits, allocs > out->misses ? allocs - out->misses : 0);
  out->hits = ladei_pinned_counter_read(&pool->counters.hits);
}

static uint64_t timer_min_read(const ladei_pinned_timer *timer) {
  uint64_t shortest = ladei_pinned_counter_read(&timer->min_ns);
  return shortest == UINT64_MAX ? 0 : shortest;
}

static void counters_read(const ladei_pinned_pool_counters *counters, lade_pinned_stats *out) {
  uint64_t reserved = ladei_pinned_counter_read(&counters->reserved_bytes.allocated);
  out->reserved_bytes = gauge_of(reserved, reserved - ladei_pinned_gauge_current(&counters->reserved_bytes),
                                 ladei_pinned_counter_read(&counters->reserved_bytes.peak));
  uint64_t segments = ladei_pinned_counter_read(&counters->segments.allocated);
  out->segments = gauge_of(segments, segments - ladei_pinned_gauge_current(&counters->segments),
                           ladei_pinned_counter_read(&counters->segments.peak));
  out->driver_allocs = ladei_pinned_counter_read(&counters->driver_allocs.count);
  out->driver_alloc_ns = ladei_pinned_counter_read(&counters->driver_allocs.total_ns);
  out->driver_alloc_min_ns = timer_min_read(&counters->driver_allocs);
  out->driver_alloc_max_ns = ladei_pinned_counter_read(&counters->driver_allocs.max_ns);
  out->driver_frees = ladei_pinned_counter_read(&counters->driver_frees.count);
  out->driver_free_ns = ladei_pinned_counter_read(&counters->driver_frees.total_ns);
  out->driver_free_min_ns = timer_min_read(&counters->driver_frees);
  out->driver_free_max_ns = ladei_pinned_counter_read(&counters->driver_frees.max_ns);
#define COUNTER_READ(name) out->name = ladei_pinned_counter_read(&counters->name);
  LADEI_PINNED_STATS(LADEI_PINNED_STAT_NONE, LADEI_PINNED_STAT_NONE, COUNTER_READ, LADEI_PINNED_STAT_NONE)
#undef COUNTER_READ
}

const char *lade_pinned_debug_last(lade_pinned_pool *pool) {
  return pool == NULL || pool->debug == NULL ? "" : ladei_pinned_debug_last(pool->debug);
}

/* All counters, from the creation of the pool on. */
static void stats_read(lade_pinned_pool *pool, lade_pinned_stats *out) {
  ladei_retire_counters retire;
  lade_pinned_stats_init(out);
  usage_read(pool, out);
  counters_read(&pool->counters, out);
  in_use_peaks_limit(&out->in_use_bytes, &out->requested_bytes, out->reserved_bytes.peak);
  out->debug_findings = pool->debug == NULL ? 0 : ladei_pinned_debug_findings(pool->debug);
  ladei_retire_shards_counters_get(pool->retire, &retire);
  out->events_recorded = retire.events_recorded;
  out->events_queried = retire.events_queried;
  out->streams_queried = retire.streams_queried;
  out->quarantined_uses = retire.quarantined_uses;
  out->budget_bytes = ladei_pinned_counter_read(&pool->budget.budget_bytes);
  out->budget_held_bytes = ladei_pinned_counter_read(&pool->budget.held_bytes);
}

/* ---- Resets ------------------------------------------------------------------------------------------------------ */

/* Below 0 if a reset came between two reads: the count now is less than that of the reset. */
static uint64_t since(uint64_t sum, uint64_t base) { return sum > base ? sum - base : 0; }

static void base_subtract(const lade_pinned_stats *base, lade_pinned_stats *stats) {
#define GAUGE_SUBTRACT(name)                                                                                           \
  stats->name.allocated = since(stats->name.allocated, base->name.allocated);                                          \
  stats->name.freed = since(stats->name.freed, base->name.freed);
#define SUM_SUBTRACT(name) stats->name = since(stats->name, base->name);
  LADEI_PINNED_STATS(GAUGE_SUBTRACT, SUM_SUBTRACT, SUM_SUBTRACT, LADEI_PINNED_STAT_NONE)
#undef GAUGE_SUBTRACT
#undef SUM_SUBTRACT
}

lade_status lade_pinned_stats_get(lade_pinned_pool *pool, lade_pinned_stats *stats) {
  LADEI_TRY(ladei_pinned_enter_with(pool, stats != NULL, "stats", __func__));
  lade_pinned_stats own;
  stats_read(pool, &own);
  ladei_lock_acquire(&pool->threads.lock);
  base_subtract(&pool->counters.base, &own);
  ladei_lock_release(&pool->threads.lock);
  return ladei_stats_write("lade_pinned_stats", &own, sizeof own, stats);
}

static void sums_restart(lade_pinned_pool *pool) {
  lade_pinned_stats now;
  stats_read(pool, &now);
  ladei_pinned_timer_reset_extremes(&pool->counters.driver_allocs);
  ladei_pinned_timer_reset_extremes(&pool->counters.driver_frees);
  ladei_lock_acquire(&pool->threads.lock);
  pool->counters.base = now;
  ladei_lock_release(&pool->threads.lock);
}

static void counter_clear(_Atomic(uint64_t) *counter) { atomic_store_explicit(counter, 0, memory_order_relaxed); }

static void use_peaks_clear(ladei_pinned_published_use *in_use, ladei_pinned_pending *pending) {
  counter_clear(&in_use->blocks.peak);
  counter_clear(&in_use->bytes.peak);
  counter_clear(&in_use->requested.peak);
  counter_clear(&pending->peak_blocks);
  counter_clear(&pending->peak_bytes);
}

static void level_peaks_clear(ladei_pinned_level_counters *counters) {
  use_peaks_clear(&counters->in_use, &counters->pending);
  counters->cached_peak = (ladei_pinned_amount){0, 0};
}

/* One that several threads raise, after their change of the current value. */
static void gauge_peak_reset(ladei_pinned_gauge *gauge) {
  counter_clear(&gauge->peak);
  ladei_pinned_peak_raise(&gauge->peak, ladei_pinned_gauge_current(gauge));
}

/* Under pool->threads.lock. */
static void peaks_clear(lade_pinned_pool *pool) {
  ladei_lock_assert_held(&pool->threads.lock);
  use_peaks_clear(&pool->counters.in_use, &pool->counters.pending);
  pool->counters.cached_peak = (ladei_pinned_amount){0, 0};
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    ladei_pinned_node *node = ladei_pinned_pool_node(pool, i);
    level_peaks_clear(&node->counters.level);
    for (unsigned c = 0; c < LADEI_PINNED_CLASSES; c++) level_peaks_clear(&node->counters.classes[c]);
    ladei_pinned_node_reserved_peak_reset(node);
  }
}

static void peaks_restart(lade_pinned_pool *pool) {
  ladei_lock_acquire(&pool->threads.lock);
  peaks_clear(pool);
  ladei_lock_release(&pool->threads.lock);
  gauge_peak_reset(&pool->counters.reserved_bytes);
  gauge_peak_reset(&pool->counters.segments);
  ladei_pinned_cached_note(pool); /* a read, for I2 */
}

lade_status lade_pinned_stats_reset(lade_pinned_pool *pool, uint32_t what) {
  LADEI_TRY(ladei_pinned_enter(pool, __func__));
  LADEI_TRY(ladei_stats_reset_check(__func__, what));
  if ((what & LADE_STATS_RESET_SUMS) != 0) sums_restart(pool);
  if ((what & LADE_STATS_RESET_PEAKS) != 0) peaks_restart(pool);
  return LADE_OK;
}
