/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots of a pinned pool: all blocks, and the counters of each size class.
 *
 * I1  What is shown is first written down, under the lock that keeps it still, and then given to the caller's callback
 *     with no lock held.
 * Locks: node->lock for blocks (in node.c), pool->lock for the list of threads.
 */
#include <stdlib.h>

#include "base/error.h"
#include "host/pool.h"

static lade_status enter(const lade_pinned_pool *pool, bool arguments_valid, const char *function) {
  if (pool == NULL || !arguments_valid) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: an argument is NULL", function);
  }
  return ladei_runtime_check_process(pool->runtime);
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

lade_pinned_state ladei_pinned_public_state(ladei_block_state state) {
  return state == LADEI_BLOCK_IN_USE    ? LADE_PINNED_IN_USE
         : state == LADEI_BLOCK_PENDING ? LADE_PINNED_PENDING
                                        : LADE_PINNED_CACHED;
}

/* Views of all of a node's blocks; the caller frees them. NULL with *out_count 0 where there are none. */
static lade_status node_views(ladei_node *node, ladei_block_view **out, size_t *out_count) {
  ladei_block_view *views = NULL;
  size_t capacity = 0;
  for (;;) {
    size_t count = ladei_node_view(node, views, capacity);
    if (count <= capacity) {
      *out = views;
      *out_count = count;
      return LADE_OK;
    }
    capacity = count + count / 4; /* more may come until the next look */
    free(views);
    views = malloc(capacity * sizeof *views);
    if (views == NULL) {
      return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pinned pool: no memory to show %zu blocks", count);
    }
  }
}

static lade_status node_blocks_show(const lade_pinned_pool *pool, ladei_node *node, lade_pinned_block_visit visit,
                                    void *user) {
  ladei_block_view *views = NULL;
  size_t count = 0;
  lade_status status = node_views(node, &views, &count);
  for (size_t i = 0; i < count && status == LADE_OK; i++) {
    lade_pinned_info info;
    lade_pinned_info_init(&info);
    info.base = (void *)views[i].address;
    info.bytes = views[i].bytes;
    info.requested_bytes = views[i].requested_bytes;
    info.numa_node = node->os_index;
    info.state = (int32_t)ladei_pinned_public_state(views[i].state);
    info.source = views[i].source;
    info.chunk_bytes = views[i].in_chunks ? pool->source.register_chunk_bytes : 0;
    status = visit(&info, user);
  }
  free(views);
  return status;
}

lade_status lade_pinned_blocks_each(lade_pinned_pool *pool, lade_pinned_block_visit visit, void *user) {
  lade_status status = enter(pool, visit != NULL, __func__);
  for (uint32_t i = 0; status == LADE_OK && i < ladei_pool_node_count(pool); i++) {
    status = node_blocks_show(pool, ladei_pool_node(pool, i), visit, user);
  }
  return status;
}

/* ---- Classes ----------------------------------------------------------------------------------------------------- */

static uint64_t counter_read(const _Atomic(uint64_t) *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

static void class_add(lade_pinned_class_stats *sum, const ladei_tally *tally, bool fixed) {
  uint64_t allocs = counter_read(&tally->allocs), frees = counter_read(&tally->frees);
  sum->allocs += allocs;
  sum->frees += frees;
  sum->requested_allocated += counter_read(&tally->requested_allocated);
  sum->requested_freed += counter_read(&tally->requested_freed);
  if (fixed) {
    sum->in_use_allocated += allocs * tally->block_bytes;
    sum->in_use_freed += frees * tally->block_bytes;
    sum->cached_blocks += ladei_magazine_count(tally);
  } else {
    sum->in_use_allocated += counter_read(&tally->bytes_allocated);
    sum->in_use_freed += counter_read(&tally->bytes_freed);
  }
}

static void tallies_add(const lade_pinned_pool *pool, lade_pinned_class_stats *sums, const ladei_tallies *tallies) {
  for (unsigned c = 0; tallies != NULL && c < LADEI_PINNED_CLASSES; c++) {
    class_add(&sums[c], &tallies->classes[c], !ladei_pool_counts_bytes(pool, c));
  }
}

/* The sums of one node, over all threads. */
static void node_classes_sum(lade_pinned_pool *pool, uint32_t index, lade_pinned_class_stats *sums) {
  const ladei_node *node = ladei_pool_node(pool, index);
  for (unsigned c = 0; c < LADEI_PINNED_CLASSES; c++) {
    sums[c] = (lade_pinned_class_stats){.struct_size = sizeof *sums, .numa_node = node->os_index, .class_index = c};
    sums[c].block_bytes = ladei_pinned_class_bytes(c);
    sums[c].cached_blocks = c < LADEI_MAGAZINE_CLASSES ? 0 : ladei_bins_cached(&node->bins, c);
  }
  ladei_lock_acquire(&pool->lock);
  tallies_add(pool, sums, ladei_pool_departed(pool, index));
  for (const ladei_thread_cache *cache = pool->threads; cache != NULL; cache = cache->next) {
    tallies_add(pool, sums, ladei_thread_tallies(cache, index));
  }
  ladei_lock_release(&pool->lock);
}

lade_status lade_pinned_class_stats_each(lade_pinned_pool *pool, lade_pinned_class_stats_visit visit, void *user) {
  lade_status status = enter(pool, visit != NULL, __func__);
  if (status != LADE_OK) {
    return status;
  }
  lade_pinned_class_stats *sums = malloc(LADEI_PINNED_CLASSES * sizeof *sums);
  if (sums == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %u classes", __func__,
                       (unsigned)LADEI_PINNED_CLASSES);
  }
  for (uint32_t i = 0; status == LADE_OK && i < ladei_pool_node_count(pool); i++) {
    node_classes_sum(pool, i, sums);
    for (unsigned c = 0; status == LADE_OK && c < LADEI_PINNED_CLASSES; c++) {
      if (sums[c].allocs > 0 || sums[c].frees > 0 || sums[c].cached_blocks > 0) {
        status = visit(&sums[c], user);
      }
    }
  }
  free(sums);
  return status;
}
