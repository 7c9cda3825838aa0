/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The segments and blocks of one part of a snapshot, which can be rolled back: events are undone one after the other,
 * the newest first, and the result is the memory as it was before them.
 *
 *   undone               before it                       after it
 *   alloc                the block is inactive, one with its inactive neighbours     allocated
 *   free requested       allocated                       pending
 *   free completed       pending                         inactive, one with its neighbours
 *   segment alloc, map   the range is not there          inactive
 *   segment free, unmap  inactive                        not there
 *   annotate             the note before, if any         with the note
 *
 * An event does not contain the block's earlier stack, if a free has one of its own, and its earlier note. The block is
 * then marked as `recalled`, for a caller that has the events before.
 *
 * An event that does not fit the layout, as in another writer's file or after events were lost, is counted and changes
 * nothing.
 *
 * L1  Blocks are ordered by address and do not overlap; each lies in one segment, and they cover all segments.
 * L2  No two inactive blocks of a segment are neighbours once one of them was changed by an undo.
 * Threads: one.
 */
#ifndef LADE_INSPECT_LAYOUT_H
#define LADE_INSPECT_LAYOUT_H

#include "base/ordered_set.h"
#include "inspect/snapshot.h"

typedef struct ladei_inspect_layout_segment {
  ladei_order_node node;      /* by address */
  ladei_snapshot_segment row; /* address and total_bytes are kept true; ranges of blocks and sums are not */
} ladei_inspect_layout_segment;

typedef struct ladei_inspect_layout_block {
  ladei_order_node node; /* by address */
  ladei_snapshot_block row;
  bool recalled;
} ladei_inspect_layout_block;

typedef struct ladei_inspect_layout {
  ladei_ordered_set segments;
  ladei_ordered_set blocks;
  uint64_t unfit; /* events that did not fit */
} ladei_inspect_layout;

/* Copies the memory of a part. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_inspect_layout_create(const lade_snapshot *snapshot, uint32_t part, ladei_inspect_layout *out);
void ladei_inspect_layout_destroy(ladei_inspect_layout *layout);

/* After LADE_ERR_OUT_OF_HOST_MEMORY it can only be destroyed. */
lade_status ladei_inspect_layout_undo(ladei_inspect_layout *layout, const ladei_snapshot_event *event);

/* Neighbours in the order of addresses; NULL at the end. `next_block` of NULL is the first. */
const ladei_inspect_layout_segment *ladei_inspect_layout_next_segment(const ladei_inspect_layout *layout,
                                                                      const ladei_inspect_layout_segment *segment);
const ladei_inspect_layout_block *ladei_inspect_layout_next_block(const ladei_inspect_layout *layout,
                                                                  const ladei_inspect_layout_block *block);

#endif /* LADE_INSPECT_LAYOUT_H */
