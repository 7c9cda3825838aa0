/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a pinned pool.
 *
 * I1  Current values and sums are exact whenever no thread is inside the pool.
 * I2  The peaks of reserved and pending are exact. Those of what is in use are taken when threads refill or flush a
 *     magazine, and at each read; they are wrong by at most what magazines and bins hold. Those of cached blocks are
 *     taken at each read, when memory came and before it goes.
 * I3  A node's counters are the sums of its classes', the pool's those of its nodes'. Peaks are each level's own.
 *
 * Note [Peak of pending]
 *   A free counts with its thread alone, or every free of every thread would meet in one word. Pending grows with frees
 *   and shrinks only where blocks come back, many at a time; so its highest values stand just before those moments, and
 *   there, or where it is read, all threads' counters are summed.
 *
 * Locks: pool->lock keeps the list of threads still while it is summed, and guards the pool's part of pending; every
 * other counter is an atomic of its own.
 */
#include "host/stats.h"

#include "base/error.h"
#include "base/options.h"
#include "host/pool.h"

static uint64_t counter_read(const _Atomic(uint64_t) *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

static void peak_raise(_Atomic(uint64_t) *peak, uint64_t value) {
  uint64_t old = atomic_load_explicit(peak, memory_order_relaxed);
  while (old < value &&
         !atomic_compare_exchange_weak_explicit(peak, &old, value, memory_order_relaxed, memory_order_relaxed)) {
  }
}

void ladei_gauge_sub(ladei_gauge *gauge, uint64_t amount) {
  atomic_fetch_sub_explicit(&gauge->current, amount, memory_order_relaxed);
}

bool ladei_gauge_add_below(ladei_gauge *gauge, uint64_t amount, uint64_t max) {
  uint64_t current = ladei_gauge_current(gauge);
  do {
    if (current > max || amount > max - current) {
      return false;
    }
  } while (!atomic_compare_exchange_weak_explicit(&gauge->current, &current, current + amount, memory_order_relaxed,
                                                  memory_order_relaxed));
  ladei_count(&gauge->allocated, amount);
  peak_raise(&gauge->peak, current + amount);
  return true;
}

void ladei_published_change(ladei_published *published, uint64_t before, uint64_t now) {
  if (now != before) {
    uint64_t change = now - before; /* modulo 2^64 */
    uint64_t current = atomic_fetch_add_explicit(&published->current, change, memory_order_relaxed) + change;
    if ((int64_t)current > 0) {
      peak_raise(&published->peak, current);
    }
  }
}

void ladei_timer_init(ladei_timer *timer) { atomic_init(&timer->min_ns, UINT64_MAX); }

void ladei_timer_add(ladei_timer *timer, uint64_t calls, uint64_t ns) {
  uint64_t shortest = atomic_load_explicit(&timer->min_ns, memory_order_relaxed);
  if (calls == 0) {
    return;
  }
  ladei_count(&timer->count, calls);
  ladei_count(&timer->total_ns, ns);
  peak_raise(&timer->max_ns, ns);
  while (shortest > ns && !atomic_compare_exchange_weak_explicit(&timer->min_ns, &shortest, ns, memory_order_relaxed,
                                                                 memory_order_relaxed)) {
  }
}

/* ---- In use ------------------------------------------------------------------------------------------------------ */

static void told_change(ladei_told *told, const ladei_use *before, const ladei_use *now) {
  ladei_published_change(&told->blocks, before->blocks, now->blocks);
  ladei_published_change(&told->bytes, before->bytes, now->bytes);
  ladei_published_change(&told->requested, before->requested, now->requested);
}

/* The pool's peaks are those of its node; only where there are several are they sums of their own. */
static void pool_peaks_raise(lade_pinned_pool *pool) {
  ladei_use sum = {0, 0, 0};
  uint32_t count = ladei_pool_node_count(pool);
  for (uint32_t i = 0; count > 1 && i < count; i++) {
    const ladei_told *told = &ladei_pool_node(pool, i)->counters.level.in_use;
    sum.blocks += counter_read(&told->blocks.current);
    sum.bytes += counter_read(&told->bytes.current);
    sum.requested += counter_read(&told->requested.current);
  }
  if (count > 1 && (int64_t)sum.blocks > 0 && (int64_t)sum.bytes > 0 && (int64_t)sum.requested > 0) {
    peak_raise(&pool->counters.in_use.blocks.peak, sum.blocks);
    peak_raise(&pool->counters.in_use.bytes.peak, sum.bytes);
    peak_raise(&pool->counters.in_use.requested.peak, sum.requested);
  }
}

void ladei_in_use_tell(lade_pinned_pool *pool, unsigned node, unsigned class_index, const ladei_use *before,
                       const ladei_use *now) {
  ladei_node_counters *counters = &ladei_pool_node(pool, node)->counters;
  told_change(&counters->level.in_use, before, now);
  told_change(&counters->classes[class_index].level.in_use, before, now);
  pool_peaks_raise(pool);
}

/* ---- Pending ----------------------------------------------------------------------------------------------------- */

void ladei_pending_add(lade_pinned_pool *pool, ladei_tallies *tallies, unsigned node, unsigned class_index,
                       uint64_t bytes) {
  if (tallies != NULL) {
    ladei_tally_add(&tallies->pending.blocks, 1);
    ladei_tally_add(&tallies->pending.bytes, bytes);
    ladei_tally_add(&tallies->class_pending[class_index].blocks, 1);
    ladei_tally_add(&tallies->class_pending[class_index].bytes, bytes);
    return;
  }
  tallies = ladei_pool_departed(pool, node); /* of several threads */
  ladei_count(&tallies->pending.blocks, 1);
  ladei_count(&tallies->pending.bytes, bytes);
  ladei_count(&tallies->class_pending[class_index].blocks, 1);
  ladei_count(&tallies->class_pending[class_index].bytes, bytes);
}

static void flow_sum(ladei_amount *sum, const ladei_flow *flow) {
  sum->blocks += counter_read(&flow->blocks);
  sum->bytes += counter_read(&flow->bytes);
}

/* All that ever became pending on a node. Under pool->lock, as the next four. */
static ladei_amount node_pending_allocated(const lade_pinned_pool *pool, unsigned node) {
  ladei_amount sum = {0, 0};
  flow_sum(&sum, &ladei_pool_departed(pool, node)->pending);
  for (const ladei_thread_cache *cache = pool->threads; cache != NULL; cache = cache->next) {
    const ladei_tallies *tallies = ladei_thread_tallies(cache, node);
    if (tallies != NULL) {
      flow_sum(&sum, &tallies->pending);
    }
  }
  return sum;
}

static ladei_amount class_pending_allocated(const lade_pinned_pool *pool, unsigned node, unsigned class_index) {
  ladei_amount sum = {0, 0};
  flow_sum(&sum, &ladei_pool_departed(pool, node)->class_pending[class_index]);
  for (const ladei_thread_cache *cache = pool->threads; cache != NULL; cache = cache->next) {
    const ladei_tallies *tallies = ladei_thread_tallies(cache, node);
    if (tallies != NULL) {
      flow_sum(&sum, &tallies->class_pending[class_index]);
    }
  }
  return sum;
}

/* What is pending now, which may be a peak. Note [Peak of pending] */
static ladei_amount pending_now(ladei_amount allocated, const ladei_amount *retired, ladei_amount *peak) {
  ladei_amount now = {allocated.blocks - retired->blocks, allocated.bytes - retired->bytes};
  peak->blocks = now.blocks > peak->blocks ? now.blocks : peak->blocks;
  peak->bytes = now.bytes > peak->bytes ? now.bytes : peak->bytes;
  return now;
}

/* Of the whole pool, and of each node on the way. */
static ladei_amount pool_pending_now(lade_pinned_pool *pool, ladei_amount *out_allocated) {
  ladei_amount allocated = {0, 0};
  for (uint32_t i = 0; i < ladei_pool_node_count(pool); i++) {
    ladei_level_counters *level = &ladei_pool_node(pool, i)->counters.level;
    ladei_amount own = node_pending_allocated(pool, i);
    (void)pending_now(own, &level->pending_retired, &level->pending_peak);
    allocated.blocks += own.blocks;
    allocated.bytes += own.bytes;
  }
  *out_allocated = allocated;
  return pending_now(allocated, &pool->counters.pending_retired, &pool->counters.pending_peak);
}

static void amount_add(ladei_amount *sum, ladei_amount amount) {
  sum->blocks += amount.blocks;
  sum->bytes += amount.bytes;
}

void ladei_pending_sub(lade_pinned_pool *pool, unsigned node, unsigned class_index, ladei_amount amount) {
  ladei_node_counters *counters = &ladei_pool_node(pool, node)->counters;
  ladei_level_counters *level = &counters->classes[class_index].level;
  ladei_amount allocated;
  ladei_lock_acquire(&pool->lock);
  (void)pool_pending_now(pool, &allocated);
  (void)pending_now(class_pending_allocated(pool, node, class_index), &level->pending_retired, &level->pending_peak);
  amount_add(&pool->counters.pending_retired, amount);
  amount_add(&counters->level.pending_retired, amount);
  amount_add(&level->pending_retired, amount);
  ladei_lock_release(&pool->lock);
}

ladei_amount ladei_pending_read(lade_pinned_pool *pool) {
  ladei_amount allocated;
  ladei_lock_acquire(&pool->lock);
  ladei_amount now = pool_pending_now(pool, &allocated);
  ladei_lock_release(&pool->lock);
  return now;
}

/* ---- Sums over the threads: under pool->lock --------------------------------------------------------------------- */

static void tally_sum(const lade_pinned_pool *pool, const ladei_tallies *tallies, unsigned class_index,
                      ladei_usage *sum) {
  const ladei_tally *tally = &tallies->classes[class_index];
  uint64_t allocs = counter_read(&tally->allocs), frees = counter_read(&tally->frees);
  bool fixed = !ladei_pool_counts_bytes(pool, class_index);
  sum->allocs += allocs;
  sum->frees += frees;
  sum->requested_allocated += counter_read(&tally->requested_allocated);
  sum->requested_freed += counter_read(&tally->requested_freed);
  sum->bytes_allocated += fixed ? allocs * tally->block_bytes : counter_read(&tally->bytes_allocated);
  sum->bytes_freed += fixed ? frees * tally->block_bytes : counter_read(&tally->bytes_freed);
  flow_sum(&sum->pending_allocated, &tallies->class_pending[class_index]);
}

static ladei_usage class_usage(const lade_pinned_pool *pool, unsigned node, unsigned class_index) {
  ladei_usage sum = {0};
  tally_sum(pool, ladei_pool_departed(pool, node), class_index, &sum);
  for (const ladei_thread_cache *cache = pool->threads; cache != NULL; cache = cache->next) {
    const ladei_tallies *tallies = ladei_thread_tallies(cache, node);
    if (tallies != NULL) {
      tally_sum(pool, tallies, class_index, &sum);
    }
  }
  return sum;
}

static void usage_add(ladei_usage *sum, const ladei_usage *usage) {
  sum->allocs += usage->allocs;
  sum->frees += usage->frees;
  sum->requested_allocated += usage->requested_allocated;
  sum->requested_freed += usage->requested_freed;
  sum->bytes_allocated += usage->bytes_allocated;
  sum->bytes_freed += usage->bytes_freed;
  amount_add(&sum->pending_allocated, usage->pending_allocated);
}

void ladei_usage_read(lade_pinned_pool *pool, ladei_usage *out) {
  *out = (ladei_usage){0};
  ladei_lock_acquire(&pool->lock);
  for (uint32_t i = 0; i < ladei_pool_node_count(pool); i++) {
    for (unsigned c = 0; c < LADEI_PINNED_CLASSES; c++) {
      ladei_usage usage = class_usage(pool, i, c);
      usage_add(out, &usage);
    }
  }
  ladei_lock_release(&pool->lock);
}

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

/* What is read now is a peak as good as what threads told. */
static lade_pinned_gauge in_use_gauge(uint64_t allocated, uint64_t freed, ladei_published *published) {
  lade_pinned_gauge out = gauge_of(allocated, freed, counter_read(&published->peak));
  peak_raise(&published->peak, out.peak);
  return out;
}

/* The same of a peak that pool->lock guards. */
static lade_pinned_gauge guarded_gauge(uint64_t allocated, uint64_t freed, uint64_t *peak) {
  lade_pinned_gauge out = gauge_of(allocated, freed, *peak);
  *peak = out.peak;
  return out;
}

/* What came to the cached blocks from below, free memory or the driver, and what went back there. */
typedef struct supply {
  ladei_amount in, out;
} supply;

/* One class, node, or the pool: cached is what came from below, was freed without a stream in use, or is not pending any
 * more; less what was handed out or went back below. Under pool->lock. */
static void gauges_read(const ladei_usage *usage, const supply *below, ladei_told *in_use, const ladei_amount *retired,
                        ladei_amount *pending_peak, ladei_amount *cached_peak, ladei_gauges *out) {
  const ladei_amount *pending = &usage->pending_allocated;
  out->in_use_blocks = in_use_gauge(usage->allocs, usage->frees, &in_use->blocks);
  out->in_use_bytes = in_use_gauge(usage->bytes_allocated, usage->bytes_freed, &in_use->bytes);
  out->requested_bytes = in_use_gauge(usage->requested_allocated, usage->requested_freed, &in_use->requested);
  out->pending_blocks = guarded_gauge(pending->blocks, retired->blocks, &pending_peak->blocks);
  out->pending_bytes = guarded_gauge(pending->bytes, retired->bytes, &pending_peak->bytes);
  out->cached_blocks = guarded_gauge(below->in.blocks + usage->frees - pending->blocks + retired->blocks,
                                     below->out.blocks + usage->allocs, &cached_peak->blocks);
  out->cached_bytes = guarded_gauge(below->in.bytes + usage->bytes_freed - pending->bytes + retired->bytes,
                                    below->out.bytes + usage->bytes_allocated, &cached_peak->bytes);
}

static void level_read(const ladei_usage *usage, const supply *below, ladei_level_counters *level, ladei_gauges *out) {
  gauges_read(usage, below, &level->in_use, &level->pending_retired, &level->pending_peak, &level->cached_peak, out);
}

/* Under pool->lock. `out_classes` may be NULL. */
static void node_read(lade_pinned_pool *pool, unsigned node, ladei_node_gauges *out, ladei_gauges *out_classes,
                      ladei_usage *usage, supply *below) {
  ladei_node_counters *counters = &ladei_pool_node(pool, node)->counters;
  *usage = (ladei_usage){0};
  *below = (supply){{0, 0}, {0, 0}};
  for (unsigned c = 0; c < LADEI_PINNED_CLASSES; c++) {
    ladei_class_counters *own = &counters->classes[c];
    ladei_usage class_sum = class_usage(pool, node, c);
    supply class_below = {{0, 0}, {0, 0}};
    ladei_gauges unused;
    flow_sum(&class_below.in, &own->cut);
    flow_sum(&class_below.out, &own->joined);
    level_read(&class_sum, &class_below, &own->level, out_classes == NULL ? &unused : &out_classes[c]);
    usage_add(usage, &class_sum);
    below->in.blocks += class_below.in.blocks;
    below->out.blocks += class_below.out.blocks;
  }
  ladei_node_reserved(ladei_pool_node(pool, node), &out->reserved_bytes);
  below->in.bytes = out->reserved_bytes.allocated;
  below->out.bytes = out->reserved_bytes.freed;
  level_read(usage, below, &counters->level, &out->gauges);
}

void ladei_node_stats_read(lade_pinned_pool *pool, unsigned node, ladei_node_gauges *out, ladei_gauges *out_classes) {
  ladei_usage usage;
  supply below;
  ladei_lock_acquire(&pool->lock);
  node_read(pool, node, out, out_classes, &usage, &below);
  ladei_lock_release(&pool->lock);
}

static void peaks_take_over(ladei_told *pool, const ladei_told *node) {
  peak_raise(&pool->blocks.peak, counter_read(&node->blocks.peak));
  peak_raise(&pool->bytes.peak, counter_read(&node->bytes.peak));
  peak_raise(&pool->requested.peak, counter_read(&node->requested.peak));
}

static void pool_read(lade_pinned_pool *pool, ladei_gauges *out) {
  ladei_pool_counters *counters = &pool->counters;
  ladei_usage sum = {0}, usage;
  supply total = {{0, 0}, {0, 0}}, below;
  ladei_node_gauges node;
  ladei_lock_acquire(&pool->lock);
  for (uint32_t i = 0; i < ladei_pool_node_count(pool); i++) {
    node_read(pool, i, &node, NULL, &usage, &below);
    usage_add(&sum, &usage);
    amount_add(&total.in, below.in);
    amount_add(&total.out, below.out);
    peaks_take_over(&counters->in_use, &ladei_pool_node(pool, i)->counters.level.in_use);
  }
  gauges_read(&sum, &total, &counters->in_use, &counters->pending_retired, &counters->pending_peak,
              &counters->cached_peak, out);
  ladei_lock_release(&pool->lock);
}

void ladei_cached_note(lade_pinned_pool *pool) {
  ladei_gauges unused;
  pool_read(pool, &unused);
}

static void usage_read(lade_pinned_pool *pool, lade_pinned_stats *out) {
  ladei_gauges gauges;
  pool_read(pool, &gauges);
  out->in_use_blocks = gauges.in_use_blocks;
  out->in_use_bytes = gauges.in_use_bytes;
  out->requested_bytes = gauges.requested_bytes;
  out->pending_blocks = gauges.pending_blocks;
  out->pending_bytes = gauges.pending_bytes;
  out->cached_blocks = gauges.cached_blocks;
  out->cached_bytes = gauges.cached_bytes;
  out->misses = counter_read(&pool->counters.misses);
  out->hits = gauges.in_use_blocks.allocated > out->misses ? gauges.in_use_blocks.allocated - out->misses : 0;
}

static void counters_read(const ladei_pool_counters *counters, lade_pinned_stats *out) {
  uint64_t reserved = counter_read(&counters->reserved_bytes.allocated);
  out->reserved_bytes = gauge_of(reserved, reserved - ladei_gauge_current(&counters->reserved_bytes),
                                 counter_read(&counters->reserved_bytes.peak));
  out->driver_allocs = counter_read(&counters->driver_allocs.count);
  out->driver_alloc_ns = counter_read(&counters->driver_allocs.total_ns);
  out->driver_alloc_min_ns = out->driver_allocs == 0 ? 0 : counter_read(&counters->driver_allocs.min_ns);
  out->driver_alloc_max_ns = counter_read(&counters->driver_allocs.max_ns);
  out->driver_frees = counter_read(&counters->driver_frees.count);
  out->driver_free_ns = counter_read(&counters->driver_frees.total_ns);
  out->driver_free_min_ns = out->driver_frees == 0 ? 0 : counter_read(&counters->driver_frees.min_ns);
  out->driver_free_max_ns = counter_read(&counters->driver_frees.max_ns);
  out->limit_waits = counter_read(&counters->limit_waits);
  out->other_node_takes = counter_read(&counters->other_node_takes);
  out->unreached_caches = counter_read(&counters->unreached_caches);
}

const char *lade_pinned_debug_last(lade_pinned_pool *pool) {
  return pool == NULL || pool->debug == NULL ? "" : ladei_debug_last(pool->debug);
}

lade_status lade_pinned_stats_get(lade_pinned_pool *pool, lade_pinned_stats *stats) {
  if (pool == NULL) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: pool is NULL", __func__);
  }
  lade_status status = ladei_runtime_check_process(pool->runtime);
  if (status != LADE_OK) {
    return status;
  }
  lade_pinned_stats own;
  ladei_retire_counters retire;
  lade_pinned_stats_init(&own);
  usage_read(pool, &own);
  counters_read(&pool->counters, &own);
  own.debug_findings = pool->debug == NULL ? 0 : ladei_debug_findings(pool->debug);
  ladei_retire_counters_get(pool->retire, &retire);
  own.events_recorded = retire.events_recorded;
  own.events_queried = retire.events_queried;
  own.streams_queried = retire.streams_queried;
  own.quarantined_uses = retire.quarantined_uses;
  return ladei_stats_write("lade_pinned_stats", &own, sizeof own, stats);
}
