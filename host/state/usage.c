/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks in use and pending: counted by threads, published to nodes, summed when it is read.
 *
 * U1  Current values and sums are exact whenever no thread is inside the pool.
 * U2  (Note [Peak of what is in use]) The peaks of blocks in use are taken when threads refill or flush a magazine, and
 *     at each read (stats.c); they are too low by at most the content of magazines, the depot and bins, and, of
 *     the node and the pool, the slack of U4; and too high by at most that content and, for each thread that frees others' blocks, fewer than 16 blocks of each class. The pool's are
 *     never more than its reserved bytes. Those of pending are taken at each 16th of a thread's frees of a class,
 *     before blocks come back, and at each read; they are never more than the pending blocks at that moment, and less
 *     by the unpublished blocks of U3.
 * U3  (Note [Peak of pending]) A thread has published of a class at most its own part of the pending blocks, at any
 *     time, and less by fewer blocks than slack_of() says: 64 up to 64 KiB, 16 above.
 * U4  (Note [Peak of what is in use]) When a thread has looked for a peak, the node knows at most its part of what is in
 *     use, as far as the thread has shown it, and less by at most a sixteenth of all divided by the number of threads.
 *
 * Note [Peak of what is in use]
 *   A thread shows its allocs when a magazine is filled, that is before blocks are handed out. Frees that another
 *   request may have at once need not be shown for that: the block is in a magazine. All others have to be, or blocks
 *   count that are pending, or free in their node. A thread shows its frees of all classes before it shows an alloc,
 *   which it can: `shown` has the classes of which it showed allocs. So a thread that frees what it allocates sees its
 *   peaks as they are, whatever the sizes. It shows its frees of others' blocks with each 16th free of a class.
 *   It shows them to the counters of the class, and tells the node its part of the sum only where that has left the slack
 *   of U4: all threads write to the node's counters. A thread that looks for a peak adds the rest of its own part. When each
 *   thread told its node all of it, half the time of 16 threads that replace blocks of random sizes was that
 *   (benchmarks/results/h200/crowd_profile.txt).
 *
 * Note [Peak of pending]
 *   A thread counts alone its frees, and the blocks that come back in its calls, from any thread. The difference is its
 *   own part of the pending blocks, below 0 for a thread that mostly gets back blocks that others freed. The node knows
 *   a lower bound of each part, so its sum is never more than the pending blocks. A thread that looks for a peak adds
 *   the rest of its own part, so a thread alone sees the peak as it is. While a thread's part moves within the slack,
 *   as that of one that frees and gets back batch by batch, it writes nothing that others read; the bound is set so
 *   that this holds for a part that has just risen or fallen out of it. When each batch was published, 16 threads spent
 *   60 ns of each cycle of alloc, record and free on these counters (H200 machine), and when each moment summed all
 *   threads' counters, 57 us for each batch with 1,000 of them.
 *
 * Locks: pool->threads.lock keeps the list of threads still while it is summed; every counter is an atomic of its own.
 * A sum over 1,000 threads takes milliseconds, so it is made without pool->lock: only other readers wait for it, and
 * threads that begin or end.
 */
#include "host/state/usage.h"

#include "host/state/pool_state.h"

/* U4: in sixteenths of all. */
enum { IN_USE_PARTS = 16 };

/* ---- In use ------------------------------------------------------------------------------------------------------ */

static void published_change(ladei_pinned_published *published, uint64_t before, uint64_t now) {
  if (now == before) return;
  uint64_t change = now - before; /* modulo 2^64 */
  uint64_t current = atomic_fetch_add_explicit(&published->current, change, memory_order_relaxed) + change;
  if ((int64_t)current > 0) ladei_pinned_peak_raise(&published->peak, current);
}

static void published_use_change(ladei_pinned_published_use *published, const ladei_pinned_thread_use *before,
                                 const ladei_pinned_thread_use *now) {
  published_change(&published->blocks, before->blocks, now->blocks);
  published_change(&published->bytes, before->bytes, now->bytes);
  published_change(&published->requested, before->requested, now->requested);
}

static void use_add(ladei_pinned_thread_use *sum, const ladei_pinned_thread_use *more,
                    const ladei_pinned_thread_use *less) {
  sum->blocks += more->blocks - less->blocks;
  sum->bytes += more->bytes - less->bytes;
  sum->requested += more->requested - less->requested;
}

/* The pool's peaks are those of its node; only where there are several are they sums of their own, with what the nodes
 * do not know of the calling thread (NULL: one without counters). */
static void pool_peaks_raise(lade_pinned_pool *pool, const ladei_pinned_thread_cache *cache) {
  ladei_pinned_thread_use sum = {0, 0, 0};
  uint32_t count = ladei_pinned_pool_node_count(pool);
  for (uint32_t i = 0; count > 1 && i < count; i++) {
    const ladei_pinned_published_use *published = &ladei_pinned_pool_node(pool, i)->counters.level.in_use;
    const ladei_pinned_thread_counters *own = cache == NULL ? NULL : ladei_pinned_thread_counters_of(cache, i);
    sum.blocks += ladei_pinned_counter_read(&published->blocks.current);
    sum.bytes += ladei_pinned_counter_read(&published->bytes.current);
    sum.requested += ladei_pinned_counter_read(&published->requested.current);
    if (own != NULL) use_add(&sum, &own->shown_use, &own->published);
  }
  if (count > 1 && (int64_t)sum.blocks > 0 && (int64_t)sum.bytes > 0 && (int64_t)sum.requested > 0) {
    ladei_pinned_peak_raise(&pool->counters.in_use.blocks.peak, sum.blocks);
    ladei_pinned_peak_raise(&pool->counters.in_use.bytes.peak, sum.bytes);
    ladei_pinned_peak_raise(&pool->counters.in_use.requested.peak, sum.requested);
  }
}

/* The use of a class by a thread without counters changed. */
static void in_use_publish_shared(lade_pinned_pool *pool, unsigned node, unsigned class_index,
                                  const ladei_pinned_thread_use *before, const ladei_pinned_thread_use *now) {
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  published_use_change(&counters->level.in_use, before, now);
  published_use_change(&counters->classes[class_index].in_use, before, now);
  pool_peaks_raise(pool, NULL);
}

/* U4: `own`, a thread's part, of which the node knows `*known`. */
static void part_look(ladei_pinned_published *published, uint64_t own, uint64_t *known, uint64_t parts) {
  uint64_t current = ladei_pinned_counter_read(&published->current);
  uint64_t slack = (int64_t)current <= 0 ? 0 : current / parts;
  if (own - *known > slack) { /* modulo 2^64: also where it has fallen below */
    uint64_t next = own - slack / 2, change = next - *known;
    current = atomic_fetch_add_explicit(&published->current, change, memory_order_relaxed) + change;
    *known = next;
  }
  current += own - *known;
  if ((int64_t)current > 0) ladei_pinned_peak_raise(&published->peak, current);
}

/* In any quantity. */
static bool use_exceeds(const ladei_pinned_thread_use *a, const ladei_pinned_thread_use *b) {
  return (int64_t)(a->blocks - b->blocks) > 0 || (int64_t)(a->bytes - b->bytes) > 0 ||
         (int64_t)(a->requested - b->requested) > 0;
}

/* The node need not know the rest up to all in use, divided by `parts`. A part that falls makes no peak. */
static void use_look(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters, uint64_t parts) {
  ladei_pinned_published_use *level = &ladei_pinned_pool_node(pool, counters->node)->counters.level.in_use;
  const ladei_pinned_thread_use own = counters->shown_use;
  ladei_pinned_thread_use *known = &counters->published;
  bool rises = use_exceeds(&own, &counters->looked_use), below = use_exceeds(known, &own);
  counters->looked_use = own;
  if (!rises && !below && parts != UINT64_MAX) return;
  part_look(&level->blocks, own.blocks, &known->blocks, parts);
  part_look(&level->bytes, own.bytes, &known->bytes, parts);
  part_look(&level->requested, own.requested, &known->requested, parts);
  pool_peaks_raise(pool, counters->cache);
}

static uint64_t parts_of(const lade_pinned_pool *pool) {
  return IN_USE_PARTS * (uint64_t)ladei_size_max(atomic_load_explicit(&pool->threads.count, memory_order_relaxed), 1);
}

void ladei_pinned_in_use_publish_rest(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters) {
  use_look(pool, counters, UINT64_MAX);
}

/* A thread's use of a class changed: at refill and flush. */
static void in_use_publish(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters, unsigned class_index,
                           const ladei_pinned_thread_use *before, const ladei_pinned_thread_use *now) {
  ladei_pinned_node_counters *level = &ladei_pinned_pool_node(pool, counters->node)->counters;
  published_use_change(&level->classes[class_index].in_use, before, now);
  use_add(&counters->shown_use, now, before);
}

void ladei_pinned_in_use_add_shared(lade_pinned_pool *pool, unsigned node, unsigned class_index, uint64_t requested,
                                    uint64_t bytes) {
  const ladei_pinned_thread_use none = {0, 0, 0}, one = {1, bytes, requested};
  ladei_pinned_class_counts *counts = &ladei_pinned_pool_exited(pool, node)->classes[class_index];
  in_use_publish_shared(pool, node, class_index, &none, &one);
  ladei_pinned_count(&counts->allocs, 1);
  ladei_pinned_count(&counts->requested_allocated, requested);
  if (ladei_pinned_pool_counts_bytes(pool, class_index)) ladei_pinned_count(&counts->bytes_allocated, bytes);
}

void ladei_pinned_in_use_sub_shared(lade_pinned_pool *pool, unsigned node, unsigned class_index, uint64_t requested,
                                    uint64_t bytes) {
  const ladei_pinned_thread_use none = {0, 0, 0}, one = {1, bytes, requested};
  ladei_pinned_class_counts *counts = &ladei_pinned_pool_exited(pool, node)->classes[class_index];
  in_use_publish_shared(pool, node, class_index, &one, &none);
  ladei_pinned_count(&counts->frees, 1);
  ladei_pinned_count(&counts->requested_freed, requested);
  if (ladei_pinned_pool_counts_bytes(pool, class_index)) ladei_pinned_count(&counts->bytes_freed, bytes);
}

/* ---- Thread counters --------------------------------------------------------------------------------------------- */

static uint64_t difference(const _Atomic(uint64_t) *more, const _Atomic(uint64_t) *less) {
  return atomic_load_explicit(more, memory_order_relaxed) - atomic_load_explicit(less, memory_order_relaxed);
}

static void shown_set(ladei_pinned_thread_counters *counters, unsigned class_index, bool shown) {
  unsigned word = class_index / 64;
  uint64_t bit = UINT64_C(1) << (class_index % 64);
  counters->shown[word] = shown ? counters->shown[word] | bit : counters->shown[word] & ~bit;
  uint32_t word_bit = 1u << word;
  counters->shown_words =
      counters->shown[word] != 0 ? counters->shown_words | word_bit : counters->shown_words & ~word_bit;
}

static void class_counts_publish(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters, unsigned class_index) {
  ladei_pinned_class_counts *counts = &counters->classes[class_index];
  ladei_pinned_thread_use before = {counts->published_blocks, 0, counts->published_requested};
  ladei_pinned_thread_use now = {difference(&counts->allocs, &counts->frees), 0,
                                 difference(&counts->requested_allocated, &counts->requested_freed)};
  if (class_index < LADEI_PINNED_MAGAZINE_CLASSES) {
    before.bytes = before.blocks * counts->block_bytes;
    now.bytes = now.blocks * counts->block_bytes;
  } else {
    before.bytes = counters->published_bytes[class_index - LADEI_PINNED_MAGAZINE_CLASSES];
    now.bytes = difference(&counts->bytes_allocated, &counts->bytes_freed);
    counters->published_bytes[class_index - LADEI_PINNED_MAGAZINE_CLASSES] = now.bytes;
  }
  in_use_publish(pool, counters, class_index, &before, &now);
  counts->published_blocks = now.blocks;
  counts->published_requested = now.requested;
  if (now.blocks != before.blocks) shown_set(counters, class_index, (int64_t)now.blocks > 0);
}

/* Blocks of a class that were freed since it was shown, less those allocated. */
static int64_t frees_unpublished(const ladei_pinned_thread_counters *counters, unsigned class_index) {
  const ladei_pinned_class_counts *counts = &counters->classes[class_index];
  return (int64_t)(counts->published_blocks - difference(&counts->allocs, &counts->frees));
}

/* Whether there is nothing new to show. */
static bool class_is_shown(const ladei_pinned_thread_counters *counters, unsigned class_index) {
  const ladei_pinned_class_counts *counts = &counters->classes[class_index];
  if (frees_unpublished(counters, class_index) != 0 ||
      counts->published_requested != difference(&counts->requested_allocated, &counts->requested_freed))
    return false;
  return class_index < LADEI_PINNED_MAGAZINE_CLASSES ||
         counters->published_bytes[class_index - LADEI_PINNED_MAGAZINE_CLASSES] ==
             difference(&counts->bytes_allocated, &counts->bytes_freed);
}

void ladei_pinned_class_counts_publish(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters,
                                       unsigned class_index) {
  if (class_is_shown(counters, class_index)) return; /* no peak rises */
  for (uint32_t words = counters->shown_words; words != 0; words &= words - 1) {
    unsigned word = (unsigned)__builtin_ctz(words);
    for (uint64_t left = counters->shown[word]; left != 0; left &= left - 1) {
      unsigned other = word * 64 + (unsigned)__builtin_ctzl(left);
      if (other != class_index && frees_unpublished(counters, other) > 0) class_counts_publish(pool, counters, other);
    }
  }
  class_counts_publish(pool, counters, class_index);
  use_look(pool, counters, parts_of(pool));
}

static void frees_publish(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters, unsigned class_index,
                          int64_t few) {
  if (frees_unpublished(counters, class_index) < few) return;
  class_counts_publish(pool, counters, class_index);
  use_look(pool, counters, parts_of(pool));
}

void ladei_pinned_class_counts_publish_frees(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters,
                                             unsigned class_index) {
  frees_publish(pool, counters, class_index,
                class_index < LADEI_PINNED_MAGAZINE_CLASSES ? LADEI_PINNED_PENDING_LOOK : 1);
}

/* ---- Pending ----------------------------------------------------------------------------------------------------- */

/* `own`: the thread's blocks that the node does not know. */
static void level_peak_raise(ladei_pinned_pending *pending, ladei_pinned_amount own) {
  uint64_t blocks = ladei_pinned_counter_read(&pending->published.blocks) + own.blocks,
           bytes = ladei_pinned_counter_read(&pending->published.bytes) + own.bytes;
  if ((int64_t)blocks > 0) ladei_pinned_peak_raise(&pending->peak_blocks, blocks);
  if ((int64_t)bytes > 0) ladei_pinned_peak_raise(&pending->peak_bytes, bytes);
}

/* The node's, the class's and the pool's: a sum over nodes would be of several moments. */
static void pending_peaks_raise(lade_pinned_pool *pool, unsigned node, unsigned class_index, ladei_pinned_amount own) {
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  level_peak_raise(&counters->level.pending, own);
  level_peak_raise(&counters->classes[class_index].pending, own);
  level_peak_raise(&pool->counters.pending, own);
}

/* `change`: modulo 2^64. */
static void level_published_add(ladei_pinned_pending *pending, ladei_pinned_amount change) {
  ladei_pinned_counter_pair_add(&pending->published, change.blocks, change.bytes);
}

static void published_add(lade_pinned_pool *pool, unsigned node, unsigned class_index, ladei_pinned_amount change) {
  ladei_pinned_node_counters *counters = &ladei_pinned_pool_node(pool, node)->counters;
  level_published_add(&counters->level.pending, change);
  level_published_add(&counters->classes[class_index].pending, change);
  level_published_add(&pool->counters.pending, change);
}

static ladei_pinned_amount amount_less(ladei_pinned_amount all, ladei_pinned_amount part) {
  return (ladei_pinned_amount){all.blocks - part.blocks, all.bytes - part.bytes};
}

/* A thread's own part of the pending blocks. */
static ladei_pinned_amount flow_now(const ladei_pinned_pending_flow *flow) {
  return amount_less(ladei_pinned_counter_pair_read(&flow->freed), ladei_pinned_counter_pair_read(&flow->retired));
}

/* The node knows of `amount`, less `blocks` blocks of the class. */
static void published_set(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters, unsigned class_index,
                          ladei_pinned_amount amount, uint64_t blocks) {
  amount = amount_less(amount, (ladei_pinned_amount){blocks, blocks * ladei_pinned_class_bytes(class_index)});
  ladei_pinned_amount *published = &counters->class_pending[class_index].published;
  published_add(pool, counters->node, class_index, amount_less(amount, *published));
  *published = amount;
}

/* U3: number of blocks of a class that may be unpublished. */
static uint64_t slack_of(unsigned class_index) {
  enum { FEW = LADEI_PINNED_PENDING_LOOK, MANY = 2 * LADEI_PINNED_MAGAZINE_MAX_BLOCKS };
  return ladei_pinned_class_bytes(class_index) <= 64 * LADEI_KIB ? MANY : FEW;
}

void ladei_pinned_pending_look(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters, unsigned class_index) {
  ladei_pinned_thread_pending *own = &counters->class_pending[class_index];
  ladei_pinned_amount now = flow_now(&own->flow);
  uint64_t slack = slack_of(class_index);
  frees_publish(pool, counters, class_index, LADEI_PINNED_PENDING_LOOK);
  if (now.blocks - own->published.blocks >= slack) published_set(pool, counters, class_index, now, slack - slack / 4);
  pending_peaks_raise(pool, counters->node, class_index, amount_less(now, own->published));
}

void ladei_pinned_pending_publish(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters,
                                  unsigned class_index) {
  ladei_pinned_thread_pending *own = &counters->class_pending[class_index];
  ladei_pinned_amount now = flow_now(&own->flow);
  if (now.blocks == own->published.blocks && now.bytes == own->published.bytes) return;
  published_set(pool, counters, class_index, now, 0);
  pending_peaks_raise(pool, counters->node, class_index, (ladei_pinned_amount){0, 0});
}

void ladei_pinned_pending_add_shared(lade_pinned_pool *pool, unsigned node, unsigned class_index, uint64_t bytes) {
  ladei_pinned_thread_counters *exited = ladei_pinned_pool_exited(pool, node);
  ladei_pinned_counter_pair_add(&exited->pending.freed, 1, bytes);
  ladei_pinned_counter_pair_add(&exited->class_pending[class_index].flow.freed, 1, bytes);
  published_add(pool, node, class_index, (ladei_pinned_amount){1, bytes});
  pending_peaks_raise(pool, node, class_index, (ladei_pinned_amount){0, 0});
}

static void pending_sub_shared(lade_pinned_pool *pool, unsigned node, unsigned class_index,
                               ladei_pinned_amount amount) {
  ladei_pinned_thread_counters *exited = ladei_pinned_pool_exited(pool, node);
  published_add(pool, node, class_index, amount_less((ladei_pinned_amount){0, 0}, amount));
  ladei_pinned_counter_pair_add(&exited->pending.retired, amount.blocks, amount.bytes);
  ladei_pinned_counter_pair_add(&exited->class_pending[class_index].flow.retired, amount.blocks, amount.bytes);
}

/* Of counters with one writer. Release: a thread that sees that blocks came back sees that they were pending. */
static void counter_pair_add_own(ladei_pinned_counter_pair *pair, ladei_pinned_amount amount) {
  ladei_pinned_amount sum = ladei_pinned_counter_pair_read(pair);
  atomic_store_explicit(&pair->blocks, sum.blocks + amount.blocks, memory_order_release);
  atomic_store_explicit(&pair->bytes, sum.bytes + amount.bytes, memory_order_release);
}

void ladei_pinned_pending_sub(lade_pinned_pool *pool, ladei_pinned_thread_counters *counters, unsigned node,
                              unsigned class_index, ladei_pinned_amount amount) {
  if (counters == NULL) {
    pending_sub_shared(pool, node, class_index, amount);
    return;
  }
  ladei_pinned_thread_pending *own = &counters->class_pending[class_index];
  ladei_pinned_pending_look(pool, counters, class_index); /* while the blocks are pending yet */
  ladei_pinned_amount now = amount_less(flow_now(&own->flow), amount);
  if ((int64_t)(now.blocks - own->published.blocks) < 0 || (int64_t)(now.bytes - own->published.bytes) < 0)
    published_set(pool, counters, class_index, now, slack_of(class_index) / 4);
  counter_pair_add_own(&counters->pending.retired, amount);
  counter_pair_add_own(&own->flow.retired, amount);
}

/* ---- Sums over the threads --------------------------------------------------------------------------------------- */

/* One pair of a node's counters, over all threads. */
typedef const ladei_pinned_counter_pair *(*pair_of)(const ladei_pinned_thread_counters *counters, unsigned class_index);

static const ladei_pinned_counter_pair *freed_of(const ladei_pinned_thread_counters *counters, unsigned class_index) {
  (void)class_index;
  return &counters->pending.freed;
}
static const ladei_pinned_counter_pair *retired_of(const ladei_pinned_thread_counters *counters, unsigned class_index) {
  (void)class_index;
  return &counters->pending.retired;
}
static const ladei_pinned_counter_pair *class_retired_of(const ladei_pinned_thread_counters *counters,
                                                         unsigned class_index) {
  return &counters->class_pending[class_index].flow.retired;
}

static inline ladei_pinned_amount pairs_sum(const lade_pinned_pool *pool, unsigned node, pair_of pair,
                                            unsigned class_index) {
  ladei_lock_assert_held(&pool->threads.lock);
  ladei_pinned_amount sum = ladei_pinned_counter_pair_read(pair(ladei_pinned_pool_exited(pool, node), class_index));
  for (const ladei_pinned_thread_cache *cache = pool->threads.first; cache != NULL; cache = cache->next) {
    const ladei_pinned_thread_counters *counters = ladei_pinned_thread_counters_of(cache, node);
    if (counters != NULL) ladei_pinned_amount_add(&sum, ladei_pinned_counter_pair_read(pair(counters, class_index)));
  }
  return sum;
}

ladei_pinned_amount ladei_pinned_node_retired_read(const lade_pinned_pool *pool, unsigned node) {
  return pairs_sum(pool, node, retired_of, 0);
}

ladei_pinned_amount ladei_pinned_class_retired_read(const lade_pinned_pool *pool, unsigned node, unsigned class_index) {
  return pairs_sum(pool, node, class_retired_of, class_index);
}

/* Retired blocks are read first: they were pending before. */
ladei_pinned_amount ladei_pinned_pending_read(lade_pinned_pool *pool) {
  ladei_pinned_amount now = {0, 0};
  ladei_lock_acquire(&pool->threads.lock);
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    ladei_pinned_amount retired = ladei_pinned_node_retired_read(pool, i);
    ladei_pinned_amount_add(&now, amount_less(pairs_sum(pool, i, freed_of, 0), retired));
  }
  ladei_lock_release(&pool->threads.lock);
  return now;
}

ladei_pinned_amount ladei_pinned_retired_read(const lade_pinned_pool *pool) {
  ladei_pinned_amount sum = {0, 0};
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++)
    ladei_pinned_amount_add(&sum, ladei_pinned_node_retired_read(pool, i));
  return sum;
}

uint64_t ladei_pinned_retired_blocks(lade_pinned_pool *pool) {
  ladei_lock_acquire(&pool->threads.lock);
  uint64_t blocks = ladei_pinned_retired_read(pool).blocks;
  ladei_lock_release(&pool->threads.lock);
  return blocks;
}

static void class_counts_sum(const lade_pinned_pool *pool, const ladei_pinned_thread_counters *counters,
                             unsigned class_index, ladei_pinned_usage *sum) {
  const ladei_pinned_class_counts *counts = &counters->classes[class_index];
  uint64_t allocs = ladei_pinned_counter_read(&counts->allocs), frees = ladei_pinned_counter_read(&counts->frees);
  bool fixed = !ladei_pinned_pool_counts_bytes(pool, class_index);
  sum->allocs += allocs;
  sum->frees += frees;
  sum->requested_allocated += ladei_pinned_counter_read(&counts->requested_allocated);
  sum->requested_freed += ladei_pinned_counter_read(&counts->requested_freed);
  sum->bytes_allocated += fixed ? allocs * counts->block_bytes : ladei_pinned_counter_read(&counts->bytes_allocated);
  sum->bytes_freed += fixed ? frees * counts->block_bytes : ladei_pinned_counter_read(&counts->bytes_freed);
  ladei_pinned_counter_pair_sum(&sum->pending_allocated, &counters->class_pending[class_index].flow.freed);
}

ladei_pinned_usage ladei_pinned_class_usage_read(const lade_pinned_pool *pool, unsigned node, unsigned class_index) {
  ladei_lock_assert_held(&pool->threads.lock);
  ladei_pinned_usage sum = {.pending_retired = ladei_pinned_class_retired_read(pool, node, class_index)};
  class_counts_sum(pool, ladei_pinned_pool_exited(pool, node), class_index, &sum);
  for (const ladei_pinned_thread_cache *cache = pool->threads.first; cache != NULL; cache = cache->next) {
    const ladei_pinned_thread_counters *counters = ladei_pinned_thread_counters_of(cache, node);
    if (counters != NULL) class_counts_sum(pool, counters, class_index, &sum);
  }
  return sum;
}

void ladei_pinned_usage_add(ladei_pinned_usage *sum, const ladei_pinned_usage *usage) {
  sum->allocs += usage->allocs;
  sum->frees += usage->frees;
  sum->requested_allocated += usage->requested_allocated;
  sum->requested_freed += usage->requested_freed;
  sum->bytes_allocated += usage->bytes_allocated;
  sum->bytes_freed += usage->bytes_freed;
  ladei_pinned_amount_add(&sum->pending_allocated, usage->pending_allocated);
  ladei_pinned_amount_add(&sum->pending_retired, usage->pending_retired);
}

void ladei_pinned_usage_read(lade_pinned_pool *pool, ladei_pinned_usage *out) {
  *out = (ladei_pinned_usage){0};
  ladei_lock_acquire(&pool->threads.lock);
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    for (unsigned c = 0; c < LADEI_PINNED_CLASSES; c++) {
      ladei_pinned_usage usage = ladei_pinned_class_usage_read(pool, i, c);
      ladei_pinned_usage_add(out, &usage);
    }
  }
  ladei_lock_release(&pool->threads.lock);
}
