/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a pinned pool.
 *
 * I1  Current values and sums are exact whenever no thread is inside the pool.
 * I2  The peaks of reserved are exact. Those of what is in use are taken when threads refill or flush a magazine, and at
 *     each read; they are wrong by at most what magazines and bins hold. Those of pending are taken at each batch of a
 *     thread's frees, and at each read; they are wrong by at most what threads have freed since their last batches. Those
 *     of cached blocks are taken at each read, when memory came and before it goes.
 * I3  A node's counters are the sums of its classes', the pool's those of its nodes'. Peaks are each level's own.
 *
 * Note [Peak of pending]
 *   A free counts with its thread alone, or every free of every thread would meet in one word. The thread tells the node
 *   after 16 frees of a class, and before some of the class come back in its own call. So a
 *   peak misses at most 15 blocks of each class and thread, those of other threads than the one in which blocks come
 *   back. Before, every such moment summed all threads' counters: 57 us for each batch with 1,000 of them.
 *
 * Locks: pool->threads_lock keeps the list of threads still while it is summed, and guards the peaks of cached blocks;
 * every other counter is an atomic of its own. A sum over 1,000 threads takes milliseconds, so it is made without
 * pool->lock: only other readers wait for it, and threads that begin or end.
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

void ladei_pinned_gauge_sub(ladei_pinned_gauge *gauge, uint64_t amount) {
  atomic_fetch_sub_explicit(&gauge->current, amount, memory_order_relaxed);
}

bool ladei_pinned_gauge_add_below(ladei_pinned_gauge *gauge, uint64_t amount, uint64_t max) {
  uint64_t current = ladei_pinned_gauge_current(gauge);
  do {
    if (current > max || amount > max - current) return false;
  } while (!atomic_compare_exchange_weak_explicit(&gauge->current, &current, current + amount, memory_order_relaxed,
                                                  memory_order_relaxed));
  ladei_pinned_count(&gauge->allocated, amount);
  peak_raise(&gauge->peak, current + amount);
  return true;
}

void ladei_pinned_published_change(ladei_pinned_published *published, uint64_t before, uint64_t now) {
  if (now != before) {
    uint64_t change = now - before; /* modulo 2^64 */
    uint64_t current = atomic_fetch_add_explicit(&published->current, change, memory_order_relaxed) + change;
    if ((int64_t)current > 0) peak_raise(&published->peak, current);
  }
}

void ladei_pinned_timer_init(ladei_pinned_timer *timer) { atomic_init(&timer->min_ns, UINT64_MAX); }

void ladei_pinned_timer_add(ladei_pinned_timer *timer, uint64_t calls, uint64_t ns) {
  uint64_t shortest = atomic_load_explicit(&timer->min_ns, memory_order_relaxed);
  if (calls == 0) return;
  ladei_pinned_count(&timer->count, calls);
  ladei_pinned_count(&timer->total_ns, ns);
  peak_raise(&timer->max_ns, ns);
  while (shortest > ns && !atomic_compare_exchange_weak_explicit(&timer->min_ns, &shortest, ns, memory_order_relaxed,
                                                                 memory_order_relaxed)) {
  }
}

/* ---- In use ------------------------------------------------------------------------------------------------------ */

static void told_change(ladei_pinned_published_use *told, const ladei_pinned_thread_use *before,
                        const ladei_pinned_thread_use *now) {
  ladei_pinned_published_change(&told->blocks, before->blocks, now->blocks);
  ladei_pinned_published_change(&told->bytes, before->bytes, now->bytes);
  ladei_pinned_published_change(&told->requested, before->requested, now->requested);
}

/* The pool's peaks are those of its node; only where there are several are they sums of their own. */
static void pool_peaks_raise(lade_pinned_pool *pool) {
  ladei_pinned_thread_use sum = {0, 0, 0};
  uint32_t count = ladei_pinned_pool_node_count(pool);
  for (uint32_t i = 0; count > 1 && i < count; i++) {
    const ladei_pinned_published_use *told = &ladei_pinned_pool_node(pool, i)->counters.level.in_use;
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

void ladei_pinned_in_use_tell(lade_pinned_pool *pool, unsigned node, unsigned class_index,
                              const ladei_pinned_thread_use *before, const ladei_pinned_thread_use *now) {
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  told_change(&counters->level.in_use, before, now);
  told_change(&counters->classes[class_index].level.in_use, before, now);
  pool_peaks_raise(pool);
}

/* ---- Pending ----------------------------------------------------------------------------------------------------- */

static void flow_count(ladei_pinned_counter_pair *flow, uint64_t blocks, uint64_t bytes) {
  atomic_fetch_add_explicit(&flow->blocks, blocks, memory_order_release);
  atomic_fetch_add_explicit(&flow->bytes, bytes, memory_order_release);
}

/* Acquire: of a flow that says what came back, all is seen that happened to those blocks before. */
static ladei_pinned_amount flow_read(const ladei_pinned_counter_pair *flow) {
  uint64_t blocks = atomic_load_explicit(&flow->blocks, memory_order_acquire);
  return (ladei_pinned_amount){blocks, atomic_load_explicit(&flow->bytes, memory_order_acquire)};
}

/* Less than nothing: what came back was not told before. */
static void pending_peak_raise(ladei_pinned_pending *pending, uint64_t blocks, uint64_t bytes) {
  if ((int64_t)blocks > 0) peak_raise(&pending->peak_blocks, blocks);
  if ((int64_t)bytes > 0) peak_raise(&pending->peak_bytes, bytes);
}

/* `told` was told last: so never more than what was pending at that moment. */
static ladei_pinned_amount pending_told(ladei_pinned_pending *pending) {
  ladei_pinned_amount told = flow_read(&pending->told), retired = flow_read(&pending->retired);
  return (ladei_pinned_amount){told.blocks - retired.blocks, told.bytes - retired.bytes};
}

static void level_pending_tell(ladei_pinned_pending *pending, uint64_t blocks, uint64_t bytes) {
  flow_count(&pending->told, blocks, bytes);
  ladei_pinned_amount now = pending_told(pending);
  pending_peak_raise(pending, now.blocks, now.bytes);
}

/* The pool's peaks are those of its node; only where there are several are they sums of their own. */
static void pool_pending_raise(lade_pinned_pool *pool) {
  uint32_t count = ladei_pinned_pool_node_count(pool);
  ladei_pinned_amount sum = {0, 0};
  for (uint32_t i = 0; count > 1 && i < count; i++) {
    ladei_pinned_amount now = pending_told(&ladei_pinned_pool_node(pool, i)->counters.level.pending);
    sum.blocks += now.blocks;
    sum.bytes += now.bytes;
  }
  if (count > 1) pending_peak_raise(&pool->counters.pending, sum.blocks, sum.bytes);
}

static void node_pending_tell(lade_pinned_pool *pool, unsigned node, unsigned class_index, uint64_t blocks,
                              uint64_t bytes) {
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  level_pending_tell(&counters->level.pending, blocks, bytes);
  level_pending_tell(&counters->classes[class_index].level.pending, blocks, bytes);
  pool_pending_raise(pool);
}

void ladei_pinned_pending_tell(lade_pinned_pool *pool, ladei_pinned_thread_counters *tallies, unsigned class_index) {
  ladei_pinned_amount now = flow_read(&tallies->class_pending[class_index]),
                      *told = &tallies->pending_told[class_index];
  if (now.blocks != told->blocks) {
    node_pending_tell(pool, tallies->node, class_index, now.blocks - told->blocks, now.bytes - told->bytes);
    *told = now;
  }
}

void ladei_pinned_pending_add(lade_pinned_pool *pool, ladei_pinned_thread_counters *tallies, unsigned node,
                              unsigned class_index, uint64_t bytes) {
  enum { BATCH = 16 };
  if (tallies == NULL) {
    ladei_pinned_thread_counters *departed = ladei_pinned_pool_exited(pool, node); /* of several threads */
    flow_count(&departed->pending, 1, bytes);
    flow_count(&departed->class_pending[class_index], 1, bytes);
    node_pending_tell(pool, node, class_index, 1, bytes);
    return;
  }
  ladei_pinned_counter_pair *own = &tallies->class_pending[class_index];
  ladei_pinned_class_counts_add(&tallies->pending.blocks, 1);
  ladei_pinned_class_counts_add(&tallies->pending.bytes, bytes);
  ladei_pinned_class_counts_add(&own->blocks, 1);
  ladei_pinned_class_counts_add(&own->bytes, bytes);
  uint64_t untold = counter_read(&own->blocks) - tallies->pending_told[class_index].blocks;
  if (untold >= BATCH) ladei_pinned_pending_tell(pool, tallies, class_index);
}

void ladei_pinned_pending_sub(lade_pinned_pool *pool, unsigned node, unsigned class_index, ladei_pinned_amount amount) {
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  const ladei_pinned_thread_cache *cache = ladei_pinned_thread_cache_fast(pool->id);
  ladei_pinned_thread_counters *tallies = cache == NULL ? NULL : ladei_pinned_thread_counters_of(cache, node);
  if (tallies != NULL) ladei_pinned_pending_tell(pool, tallies, class_index); /* while its blocks are pending yet */
  flow_count(&counters->level.pending.retired, amount.blocks, amount.bytes);
  flow_count(&counters->classes[class_index].level.pending.retired, amount.blocks, amount.bytes);
}

static void flow_sum(ladei_pinned_amount *sum, const ladei_pinned_counter_pair *flow) {
  sum->blocks += counter_read(&flow->blocks);
  sum->bytes += counter_read(&flow->bytes);
}

/* All that ever became pending on a node. Under pool->threads_lock. */
static ladei_pinned_amount node_pending_allocated(const lade_pinned_pool *pool, unsigned node) {
  ladei_lock_assert_held(&pool->threads_lock);
  ladei_pinned_amount sum = {0, 0};
  flow_sum(&sum, &ladei_pinned_pool_exited(pool, node)->pending);
  for (const ladei_pinned_thread_cache *cache = pool->threads; cache != NULL; cache = cache->next) {
    const ladei_pinned_thread_counters *tallies = ladei_pinned_thread_counters_of(cache, node);
    if (tallies != NULL) flow_sum(&sum, &tallies->pending);
  }
  return sum;
}

static void amount_add(ladei_pinned_amount *sum, ladei_pinned_amount amount) {
  sum->blocks += amount.blocks;
  sum->bytes += amount.bytes;
}

/* What is retired is read first: it was pending before. */
ladei_pinned_amount ladei_pinned_pending_read(lade_pinned_pool *pool) {
  ladei_pinned_amount now = {0, 0};
  ladei_lock_acquire(&pool->threads_lock);
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    ladei_pinned_pending *pending = &ladei_pinned_pool_node(pool, i)->counters.level.pending;
    ladei_pinned_amount retired = flow_read(&pending->retired), allocated = node_pending_allocated(pool, i);
    ladei_pinned_amount own = {allocated.blocks - retired.blocks, allocated.bytes - retired.bytes};
    amount_add(&now, own);
  }
  ladei_lock_release(&pool->threads_lock);
  return now;
}

ladei_pinned_amount ladei_pinned_retired_read(const lade_pinned_pool *pool) {
  ladei_pinned_amount sum = {0, 0};
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++)
    amount_add(&sum, flow_read(&ladei_pinned_pool_node(pool, i)->counters.level.pending.retired));
  return sum;
}

/* ---- Sums over the threads: under pool->threads_lock ------------------------------------------------------------- */

static void tally_sum(const lade_pinned_pool *pool, const ladei_pinned_thread_counters *tallies, unsigned class_index,
                      ladei_pinned_usage *sum) {
  const ladei_pinned_class_counts *tally = &tallies->classes[class_index];
  uint64_t allocs = counter_read(&tally->allocs), frees = counter_read(&tally->frees);
  bool fixed = !ladei_pinned_pool_counts_bytes(pool, class_index);
  sum->allocs += allocs;
  sum->frees += frees;
  sum->requested_allocated += counter_read(&tally->requested_allocated);
  sum->requested_freed += counter_read(&tally->requested_freed);
  sum->bytes_allocated += fixed ? allocs * tally->block_bytes : counter_read(&tally->bytes_allocated);
  sum->bytes_freed += fixed ? frees * tally->block_bytes : counter_read(&tally->bytes_freed);
  flow_sum(&sum->pending_allocated, &tallies->class_pending[class_index]);
}

static ladei_pinned_usage class_usage(const lade_pinned_pool *pool, unsigned node, unsigned class_index) {
  ladei_lock_assert_held(&pool->threads_lock);
  ladei_pinned_usage sum = {0};
  tally_sum(pool, ladei_pinned_pool_exited(pool, node), class_index, &sum);
  for (const ladei_pinned_thread_cache *cache = pool->threads; cache != NULL; cache = cache->next) {
    const ladei_pinned_thread_counters *tallies = ladei_pinned_thread_counters_of(cache, node);
    if (tallies != NULL) tally_sum(pool, tallies, class_index, &sum);
  }
  return sum;
}

static void usage_add(ladei_pinned_usage *sum, const ladei_pinned_usage *usage) {
  sum->allocs += usage->allocs;
  sum->frees += usage->frees;
  sum->requested_allocated += usage->requested_allocated;
  sum->requested_freed += usage->requested_freed;
  sum->bytes_allocated += usage->bytes_allocated;
  sum->bytes_freed += usage->bytes_freed;
  amount_add(&sum->pending_allocated, usage->pending_allocated);
}

void ladei_pinned_usage_read(lade_pinned_pool *pool, ladei_pinned_usage *out) {
  *out = (ladei_pinned_usage){0};
  ladei_lock_acquire(&pool->threads_lock);
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    for (unsigned c = 0; c < LADEI_PINNED_CLASSES; c++) {
      ladei_pinned_usage usage = class_usage(pool, i, c);
      usage_add(out, &usage);
    }
  }
  ladei_lock_release(&pool->threads_lock);
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
static lade_pinned_gauge in_use_gauge(uint64_t allocated, uint64_t freed, ladei_pinned_published *published) {
  lade_pinned_gauge out = gauge_of(allocated, freed, counter_read(&published->peak));
  peak_raise(&published->peak, out.peak);
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
  peak_raise(peak, allocated > retired_now ? allocated - retired_now : 0);
  lade_pinned_gauge out = gauge_of(allocated, retired, counter_read(peak));
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
  return (level){&counters->in_use, &counters->pending, flow_read(&counters->pending.retired), &counters->cached_peak};
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
  ladei_pinned_amount retired_now = flow_read(&own->pending->retired);
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
    ladei_pinned_usage class_sum = class_usage(pool, node, c);
    supply class_below = {{0, 0}, {0, 0}};
    ladei_pinned_gauges unused;
    flow_sum(&class_below.in, &own->cut);
    flow_sum(&class_below.out, &own->joined);
    level_read(&class_sum, &class_below, &part, out_classes == NULL ? &unused : &out_classes[c]);
    usage_add(usage, &class_sum);
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
  peak_raise(&pool->in_use.blocks.peak, counter_read(&node->in_use.blocks.peak));
  peak_raise(&pool->in_use.bytes.peak, counter_read(&node->in_use.bytes.peak));
  peak_raise(&pool->in_use.requested.peak, counter_read(&node->in_use.requested.peak));
  peak_raise(&pool->pending.peak_blocks, counter_read(&node->pending.peak_blocks));
  peak_raise(&pool->pending.peak_bytes, counter_read(&node->pending.peak_bytes));
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
    usage_add(&sum, &usage);
    amount_add(&total.in, below.in);
    amount_add(&total.out, below.out);
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
  out->misses = counter_read(&pool->counters.misses);
  uint64_t allocs = gauges.in_use_blocks.allocated;
  peak_raise(&pool->counters.hits, allocs > out->misses ? allocs - out->misses : 0);
  out->hits = counter_read(&pool->counters.hits);
}

static void counters_read(const ladei_pinned_pool_counters *counters, lade_pinned_stats *out) {
  uint64_t reserved = counter_read(&counters->reserved_bytes.allocated);
  out->reserved_bytes = gauge_of(reserved, reserved - ladei_pinned_gauge_current(&counters->reserved_bytes),
                                 counter_read(&counters->reserved_bytes.peak));
  out->driver_allocs = counter_read(&counters->driver_allocs.count);
  out->driver_alloc_ns = counter_read(&counters->driver_allocs.total_ns);
  out->driver_alloc_min_ns = out->driver_allocs == 0 ? 0 : counter_read(&counters->driver_allocs.min_ns);
  out->driver_alloc_max_ns = counter_read(&counters->driver_allocs.max_ns);
  out->driver_frees = counter_read(&counters->driver_frees.count);
  out->driver_free_ns = counter_read(&counters->driver_frees.total_ns);
  out->driver_free_min_ns = out->driver_frees == 0 ? 0 : counter_read(&counters->driver_frees.min_ns);
  out->driver_free_max_ns = counter_read(&counters->driver_frees.max_ns);
#define SUM_READ(name) out->name = counter_read(&counters->name);
  LADEI_PINNED_SUMS(SUM_READ)
#undef SUM_READ
}

const char *lade_pinned_debug_last(lade_pinned_pool *pool) {
  return pool == NULL || pool->debug == NULL ? "" : ladei_pinned_debug_last(pool->debug);
}

lade_status lade_pinned_stats_get(lade_pinned_pool *pool, lade_pinned_stats *stats) {
  if (pool == NULL) return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: pool is NULL", __func__);
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
