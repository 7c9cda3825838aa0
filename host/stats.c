/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a pinned pool.
 *
 * I1  Current values and sums are exact whenever no thread is inside the pool.
 * I2  The peaks of reserved and pending are exact. Those of what is in use are taken when threads refill or flush a
 *     magazine, and at each read; they are wrong by at most what magazines and bins hold.
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

/* ---- Pending ----------------------------------------------------------------------------------------------------- */

void ladei_pending_add(lade_pinned_pool *pool, ladei_thread_cache *cache, uint64_t bytes) {
  if (cache != NULL) {
    ladei_tally_add(&cache->pending_blocks, 1);
    ladei_tally_add(&cache->pending_bytes, bytes);
  } else {
    ladei_count(&pool->counters.pending_blocks_allocated, 1);
    ladei_count(&pool->counters.pending_bytes_allocated, bytes);
  }
}

/* Under pool->lock. All that ever became pending. */
static ladei_amount pending_allocated(const lade_pinned_pool *pool) {
  ladei_amount sum = {counter_read(&pool->counters.pending_blocks_allocated),
                      counter_read(&pool->counters.pending_bytes_allocated)};
  for (const ladei_thread_cache *cache = pool->threads; cache != NULL; cache = cache->next) {
    sum.blocks += counter_read(&cache->pending_blocks);
    sum.bytes += counter_read(&cache->pending_bytes);
  }
  return sum;
}

/* Under pool->lock. Note [Peak of pending] */
static ladei_amount pending_now(lade_pinned_pool *pool, ladei_amount allocated) {
  ladei_pool_counters *counters = &pool->counters;
  ladei_amount now = {allocated.blocks - counters->pending_retired.blocks,
                      allocated.bytes - counters->pending_retired.bytes};
  if (now.blocks > counters->pending_peak.blocks) {
    counters->pending_peak.blocks = now.blocks;
  }
  if (now.bytes > counters->pending_peak.bytes) {
    counters->pending_peak.bytes = now.bytes;
  }
  return now;
}

void ladei_pending_sub(lade_pinned_pool *pool, uint64_t blocks, uint64_t bytes) {
  ladei_lock_acquire(&pool->lock);
  (void)pending_now(pool, pending_allocated(pool));
  pool->counters.pending_retired.blocks += blocks;
  pool->counters.pending_retired.bytes += bytes;
  ladei_lock_release(&pool->lock);
}

ladei_amount ladei_pending_read(lade_pinned_pool *pool) {
  ladei_lock_acquire(&pool->lock);
  ladei_amount now = pending_now(pool, pending_allocated(pool));
  ladei_lock_release(&pool->lock);
  return now;
}

/* ---- Sums over the threads --------------------------------------------------------------------------------------- */

static void tallies_add(const lade_pinned_pool *pool, const ladei_tallies *tallies, ladei_usage *sum) {
  for (unsigned c = 0; tallies != NULL && c < LADEI_PINNED_CLASSES; c++) {
    const ladei_tally *tally = &tallies->classes[c];
    uint64_t allocs = counter_read(&tally->allocs), frees = counter_read(&tally->frees);
    bool fixed = !ladei_pool_counts_bytes(pool, c);
    sum->allocs += allocs;
    sum->frees += frees;
    sum->requested_allocated += counter_read(&tally->requested_allocated);
    sum->requested_freed += counter_read(&tally->requested_freed);
    sum->bytes_allocated += fixed ? allocs * tally->block_bytes : counter_read(&tally->bytes_allocated);
    sum->bytes_freed += fixed ? frees * tally->block_bytes : counter_read(&tally->bytes_freed);
  }
}

void ladei_usage_read(lade_pinned_pool *pool, ladei_usage *out) {
  *out = (ladei_usage){0};
  ladei_lock_acquire(&pool->lock);
  for (uint32_t i = 0; i < ladei_pool_node_count(pool); i++) {
    tallies_add(pool, ladei_pool_departed(pool, i), out);
  }
  for (const ladei_thread_cache *cache = pool->threads; cache != NULL; cache = cache->next) {
    for (uint32_t i = 0; i < ladei_pool_node_count(pool); i++) {
      tallies_add(pool, ladei_thread_tallies(cache, i), out);
    }
  }
  out->pending_allocated = pending_allocated(pool);
  (void)pending_now(pool, out->pending_allocated);
  out->pending_retired = pool->counters.pending_retired;
  out->pending_peak = pool->counters.pending_peak;
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

static void usage_read(lade_pinned_pool *pool, lade_pinned_stats *out) {
  ladei_pool_counters *counters = &pool->counters;
  ladei_usage usage;
  ladei_usage_read(pool, &usage);
  out->in_use_blocks = in_use_gauge(usage.allocs, usage.frees, &counters->in_use_blocks);
  out->in_use_bytes = in_use_gauge(usage.bytes_allocated, usage.bytes_freed, &counters->in_use_bytes);
  out->requested_bytes = in_use_gauge(usage.requested_allocated, usage.requested_freed, &counters->requested_bytes);
  out->pending_blocks =
      gauge_of(usage.pending_allocated.blocks, usage.pending_retired.blocks, usage.pending_peak.blocks);
  out->pending_bytes = gauge_of(usage.pending_allocated.bytes, usage.pending_retired.bytes, usage.pending_peak.bytes);
  out->misses = counter_read(&counters->misses);
  out->hits = usage.allocs > out->misses ? usage.allocs - out->misses : 0;
}

static void counters_read(const ladei_pool_counters *counters, lade_pinned_stats *out) {
  uint64_t reserved = counter_read(&counters->reserved_bytes.allocated);
  out->reserved_bytes = gauge_of(reserved, reserved - ladei_gauge_current(&counters->reserved_bytes),
                                 counter_read(&counters->reserved_bytes.peak));
  out->driver_allocs = counter_read(&counters->driver_allocs);
  out->driver_frees = counter_read(&counters->driver_frees);
  out->driver_alloc_ns = counter_read(&counters->driver_alloc_ns);
  out->driver_free_ns = counter_read(&counters->driver_free_ns);
  out->limit_waits = counter_read(&counters->limit_waits);
  out->other_node_takes = counter_read(&counters->other_node_takes);
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
