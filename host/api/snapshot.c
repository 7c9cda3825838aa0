/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots of a pinned pool: all blocks, and the counters of each size class.
 *
 * I1  The shown data is first written down, under the lock that keeps it still, and then given to the caller's callback
 *     with no lock held.
 * I2  A thread that is cancelled in the callback ends after the call: the written data is freed first.
 * Locks: those of arenas for blocks (in node.c), pool->threads.lock for the list of threads.
 */
#include <stdlib.h>

#include "history/copy.h"
#include "host/api/snapshot.h"
#include "host/state/call.h"
#include "host/state/stats.h"

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

lade_status ladei_pinned_snapshot_node(ladei_pinned_node *node, ladei_pinned_block_view **out, size_t *out_count) {
  ladei_pinned_block_view *views = NULL;
  size_t capacity = 0;
  for (;;) {
    size_t count = ladei_pinned_node_view(node, views, capacity);
    if (count <= capacity) {
      *out = views;
      *out_count = count;
      return LADE_OK;
    }
    capacity = count + count / 4; /* more may come until the next look */
    free(views);
    views = ladei_history_memory(capacity, sizeof *views); /* touched before the lock */
    if (views == NULL)
      return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pinned pool: no memory to show %zu blocks", count);
  }
}

static lade_status node_blocks_show(const lade_pinned_pool *pool, ladei_pinned_node *node,
                                    lade_pinned_block_visit visit, void *user) {
  ladei_lock_assert_none_held();
  ladei_pinned_block_view *views = NULL;
  size_t count = 0;
  lade_status status = ladei_pinned_snapshot_node(node, &views, &count);
  for (size_t i = 0; i < count && status == LADE_OK; i++) {
    lade_pinned_info info;
    lade_pinned_info_init(&info);
    info.base = (void *)views[i].address;
    info.bytes = views[i].bytes;
    info.requested_bytes = views[i].requested_bytes;
    info.numa_node = node->os_index;
    info.state = (int32_t)ladei_pinned_public_state(views[i].state);
    info.source = views[i].source;
    info.chunk_bytes = views[i].in_chunks ? pool->sources.register_chunk_bytes : 0;
    info.contiguous_bytes = ladei_pinned_source_contiguous(&info, 0);
    status = visit(&info, user);
  }
  free(views);
  return status;
}

lade_status lade_pinned_blocks_each(lade_pinned_pool *pool, lade_pinned_block_visit visit, void *user) {
  lade_status status = ladei_pinned_enter_with(pool, visit != NULL, "visit", __func__);
  int cancellation = ladei_cancellation_hold();
  for (uint32_t i = 0; status == LADE_OK && i < ladei_pinned_pool_node_count(pool); i++)
    status = node_blocks_show(pool, ladei_pinned_pool_node(pool, i), visit, user);
  ladei_cancellation_resume(cancellation);
  return status;
}

/* ---- Nodes and classes ------------------------------------------------------------------------------------------- */

static lade_status node_show(lade_pinned_pool *pool, uint32_t index, lade_pinned_node_stats_visit visit, void *user) {
  ladei_lock_assert_none_held();
  ladei_pinned_node_gauges own;
  ladei_pinned_node_stats_read(pool, index, &own, NULL);
  const lade_pinned_node_stats stats = {
      .struct_size = sizeof stats,
      .numa_node = ladei_pinned_pool_node(pool, index)->os_index,
      .requested_bytes = own.gauges.requested_bytes,
      .in_use_bytes = own.gauges.in_use_bytes,
      .pending_bytes = own.gauges.pending_bytes,
      .cached_bytes = own.gauges.cached_bytes,
      .reserved_bytes = own.reserved_bytes,
      .in_use_blocks = own.gauges.in_use_blocks,
      .pending_blocks = own.gauges.pending_blocks,
      .cached_blocks = own.gauges.cached_blocks,
  };
  return visit(&stats, user);
}

lade_status lade_pinned_node_stats_each(lade_pinned_pool *pool, lade_pinned_node_stats_visit visit, void *user) {
  lade_status status = ladei_pinned_enter_with(pool, visit != NULL, "visit", __func__);
  int cancellation = ladei_cancellation_hold();
  for (uint32_t i = 0; status == LADE_OK && i < ladei_pinned_pool_node_count(pool); i++)
    status = node_show(pool, i, visit, user);
  ladei_cancellation_resume(cancellation);
  return status;
}

static lade_status class_show(const ladei_pinned_node *node, unsigned class_index, const ladei_pinned_gauges *own,
                              lade_pinned_class_stats_visit visit, void *user) {
  ladei_lock_assert_none_held();
  const lade_pinned_class_stats stats = {
      .struct_size = sizeof stats,
      .block_bytes = ladei_pinned_class_bytes(class_index),
      .numa_node = node->os_index,
      .class_index = class_index,
      .requested_bytes = own->requested_bytes,
      .in_use_bytes = own->in_use_bytes,
      .pending_bytes = own->pending_bytes,
      .cached_bytes = own->cached_bytes,
      .in_use_blocks = own->in_use_blocks,
      .pending_blocks = own->pending_blocks,
      .cached_blocks = own->cached_blocks,
  };
  return visit(&stats, user);
}

lade_status lade_pinned_class_stats_each(lade_pinned_pool *pool, lade_pinned_class_stats_visit visit, void *user) {
  lade_status status = ladei_pinned_enter_with(pool, visit != NULL, "visit", __func__);
  if (status != LADE_OK) return status;
  ladei_pinned_gauges *classes = malloc(LADEI_PINNED_CLASSES * sizeof *classes);
  if (classes == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %u classes", __func__,
                       (unsigned)LADEI_PINNED_CLASSES);
  }
  int cancellation = ladei_cancellation_hold();
  for (uint32_t i = 0; status == LADE_OK && i < ladei_pinned_pool_node_count(pool); i++) {
    ladei_pinned_node_gauges node;
    ladei_pinned_node_stats_read(pool, i, &node, classes);
    for (unsigned c = 0; status == LADE_OK && c < LADEI_PINNED_CLASSES; c++)
      if (classes[c].in_use_blocks.allocated > 0 || classes[c].cached_blocks.allocated > 0)
        status = class_show(ladei_pinned_pool_node(pool, i), c, &classes[c], visit, user);
  }
  free(classes);
  ladei_cancellation_resume(cancellation);
  return status;
}
