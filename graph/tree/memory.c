/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool's memory: reserves it in one piece, and gives back segments that no recording needs.
 *
 * A recording's work touches the memory that its body was given, at every replay, also memory that the body freed:
 * node->used_ranges. Alive storages of the path lie in ranges of the path's recordings, except those of evicted
 * recordings and warm-ups: these storages are kept, too.
 */
#include <stdlib.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "graph/tree/tree.h"

static lade_status segments_read(lade_graph_tree *tree) {
  ladei_tree_blocks blocks = {0};
  lade_status status = ladei_tree_pool_read(tree, &blocks);
  free(blocks.list);
  return status;
}

static lade_status pool_reserve(lade_graph_tree *tree, size_t bytes) {
  ladei_tree_routes routes;
  void *block = NULL;
  LADEI_TRY(ladei_tree_routes_begin(tree, false, &routes));
  lade_status status = lade_device_alloc(tree->allocator, bytes, tree->stream.handle, &block);
  ladei_tree_routes_end(tree, &routes);
  if (status != LADE_OK) return status;
  ladei_tree_block_free(tree, (uint64_t)(uintptr_t)block);
  return segments_read(tree);
}

lade_status lade_graph_tree_reserve(lade_graph_tree *tree, size_t bytes) {
  if (bytes == 0) return ladei_error_argument(__func__, "bytes", "from 1 on", "0");
  LADEI_TRY(ladei_tree_enter(tree, __func__));
  int cancellation = ladei_cancellation_hold();
  lade_status status = ladei_tree_awake_begin(tree, __func__);
  if (status == LADE_OK) {
    status = pool_reserve(tree, bytes);
    ladei_tree_awake_end(tree);
  }
  ladei_tree_leave(tree);
  ladei_cancellation_resume(cancellation);
  return status;
}

/* ---- Trim -------------------------------------------------------------------------------------------------------- */

static size_t node_ranges(const ladei_tree_node *node, lade_device_range *out) {
  for (size_t i = 0; out != NULL && i < node->used_range_count; i++) out[i] = node->used_ranges[i];
  return node->used_range_count;
}

/* Returns the number of ranges; `out` NULL: lists none. */
static size_t kept_ranges(const lade_graph_tree *tree, lade_device_range *out) {
  const ladei_tree_path *path = &tree->core.path;
  size_t count = 0;
  for (const ladei_tree_node *node = tree->core.first_node; node != NULL; node = node->list_next)
    count += node_ranges(node, out == NULL ? NULL : out + count);
  for (size_t i = 0; i < path->count; i++)
    if (path->entries[i].node != NULL && !path->entries[i].node->listed)
      count += node_ranges(path->entries[i].node, out == NULL ? NULL : out + count);
  for (size_t i = 0; i < path->row_count; i++) {
    const ladei_tree_storage *storage = path->rows[i];
    if (!ladei_tree_alive(storage) || storage->outside) continue;
    if (out != NULL) out[count] = (lade_device_range){(void *)(uintptr_t)storage->address, storage->bytes};
    count++;
  }
  return count;
}

static lade_status pool_trim(lade_graph_tree *tree, uint64_t *out_bytes) {
  lade_device_range *keep = calloc(kept_ranges(tree, NULL) + 1, sizeof *keep);
  if (keep == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_graph_tree_trim: no memory for a list of ranges");
  size_t count = kept_ranges(tree, keep);
  /* The allocator queries the tree's stream about free memory: so the stream must be ordered after all runs. */
  lade_status status = ladei_tree_order_before(tree, &tree->stream);
  if (status == LADE_OK) {
    ladei_tree_order_commit(tree, &tree->stream);
    ladei_tree_pool_enter(tree);
    status = lade_device_pool_trim(tree->allocator, tree->pool, keep, count, out_bytes);
    ladei_tree_pool_leave(tree);
  }
  free(keep);
  return status;
}

lade_status lade_graph_tree_trim(lade_graph_tree *tree, uint64_t *out_bytes) {
  LADEI_TRY(ladei_tree_enter(tree, __func__));
  int cancellation = ladei_cancellation_hold();
  lade_status status = ladei_tree_awake_begin(tree, __func__);
  if (status == LADE_OK) {
    status = pool_trim(tree, out_bytes);
    lade_status read = segments_read(tree);
    if (status == LADE_OK) status = read;
    ladei_tree_awake_end(tree);
  }
  ladei_tree_leave(tree);
  ladei_cancellation_resume(cancellation);
  return status;
}
