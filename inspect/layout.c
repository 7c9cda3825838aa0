/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/layout.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"

typedef ladei_inspect_layout_segment layout_segment;
typedef ladei_inspect_layout_block layout_block;

static ladei_order_key key_of(uint64_t address) { return (ladei_order_key){{address, 0, 0}}; }

static layout_block *block_of(ladei_order_node *node) { return LADEI_ORDER_RECORD(node, layout_block, node); }

static layout_segment *segment_of(ladei_order_node *node) { return LADEI_ORDER_RECORD(node, layout_segment, node); }

static uint64_t block_end(const layout_block *block) { return block->row.address + block->row.bytes; }

static uint64_t segment_end(const layout_segment *segment) { return segment->row.address + segment->row.total_bytes; }

/* The segment that holds the range; NULL: none does. */
static layout_segment *segment_around(const ladei_inspect_layout *layout, uint64_t address, uint64_t bytes) {
  layout_segment *segment = segment_of(ladei_ordered_set_at_most(&layout->segments, key_of(address)));
  bool around = segment != NULL && address < segment_end(segment) && bytes <= segment_end(segment) - address;
  return around ? segment : NULL;
}

static layout_block *block_at(const ladei_inspect_layout *layout, uint64_t address) {
  layout_block *block = block_of(ladei_ordered_set_at_most(&layout->blocks, key_of(address)));
  return block != NULL && block->row.address == address ? block : NULL;
}

static bool block_is_inactive(const layout_block *block) { return block->row.state == LADE_DEVICE_BLOCK_INACTIVE; }

/* --- changes ------------------------------------------------------------------------------------------------------ */

static lade_status no_memory(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory to roll it back");
}

static void block_insert(ladei_inspect_layout *layout, layout_block *block) {
  block->node.key = key_of(block->row.address);
  assert(block->row.bytes > 0 && block_at(layout, block->row.address) == NULL); /* L1 */
  ladei_ordered_set_insert(&layout->blocks, &block->node);
}

static void segment_insert(ladei_inspect_layout *layout, layout_segment *segment) {
  segment->node.key = key_of(segment->row.address);
  assert(segment->row.total_bytes > 0);
  ladei_ordered_set_insert(&layout->segments, &segment->node);
}

static void block_remove(ladei_inspect_layout *layout, layout_block *block) {
  ladei_ordered_set_remove(&layout->blocks, &block->node);
  free(block);
}

static void block_clear(layout_block *block) {
  block->row.state = LADE_DEVICE_BLOCK_INACTIVE;
  block->row.requested_bytes = 0;
  block->row.stack = LADEI_SNAPSHOT_NONE;
  block->row.note = 0;
  block->recalled = false;
}

/* L2: makes the inactive block one with its inactive neighbours in its segment. */
static void block_coalesce(ladei_inspect_layout *layout, layout_block *block) {
  const layout_segment *segment = segment_around(layout, block->row.address, block->row.bytes);
  assert(segment != NULL); /* L1 */
  layout_block *next = block_of(block->node.next);
  if (next != NULL && block_is_inactive(next) && block_end(block) == next->row.address &&
      next->row.address < segment_end(segment)) {
    block->row.bytes += next->row.bytes;
    block_remove(layout, next);
  }
  layout_block *previous = block_of(block->node.previous);
  if (previous != NULL && block_is_inactive(previous) && block_end(previous) == block->row.address &&
      previous->row.address >= segment->row.address) {
    previous->row.bytes += block->row.bytes;
    block_remove(layout, block);
  }
}

/* Makes the inactive block one with those after it, as far as `end`. */
static void block_extend(ladei_inspect_layout *layout, layout_block *block, uint64_t end) {
  const layout_segment *segment = segment_around(layout, block->row.address, block->row.bytes);
  assert(segment != NULL); /* L1 */
  layout_block *next;
  while (block_end(block) < end && block_end(block) < segment_end(segment) &&
         (next = block_of(block->node.next)) != NULL && block_is_inactive(next)) {
    block->row.bytes += next->row.bytes;
    block_remove(layout, next);
  }
}

/*
 * Cuts [address, address + bytes), or its existing part, out of the inactive blocks around it, which leaves up to two
 * others. *out is NULL, and nothing changed, if the range begins in no inactive block.
 */
static lade_status block_carve(ladei_inspect_layout *layout, uint64_t address, uint64_t bytes, layout_block **out) {
  layout_block *around = block_of(ladei_ordered_set_at_most(&layout->blocks, key_of(address)));
  *out = NULL;
  if (around == NULL || !block_is_inactive(around) || address >= block_end(around) || bytes == 0) return LADE_OK;
  if (bytes <= UINT64_MAX - address) block_extend(layout, around, address + bytes);
  uint64_t end = bytes < block_end(around) - address ? address + bytes : block_end(around);
  layout_block *before = address > around->row.address ? calloc(1, sizeof *before) : NULL;
  layout_block *after = end < block_end(around) ? calloc(1, sizeof *after) : NULL;
  if ((address > around->row.address && before == NULL) || (end < block_end(around) && after == NULL)) {
    free(before);
    free(after);
    return no_memory();
  }
  if (after != NULL) {
    after->row = around->row;
    after->row.address = end;
    after->row.bytes = block_end(around) - end;
  }
  if (before != NULL) {
    before->row = around->row;
    before->row.bytes = address - around->row.address;
  }
  ladei_ordered_set_remove(&layout->blocks, &around->node);
  around->row.address = address;
  around->row.bytes = end - address;
  block_insert(layout, around);
  if (before != NULL) block_insert(layout, before);
  if (after != NULL) block_insert(layout, after);
  assert(block_is_inactive(around) && around->row.address == address && block_end(around) == end);
  *out = around;
  return LADE_OK;
}

/* --- undoing ------------------------------------------------------------------------------------------------------ */

static lade_status alloc_undo(ladei_inspect_layout *layout, const ladei_snapshot_event *event, bool *fits) {
  layout_block *block = block_at(layout, event->address);
  *fits = block != NULL && !block_is_inactive(block);
  if (!*fits) return LADE_OK;
  block_clear(block);
  block_coalesce(layout, block);
  return LADE_OK;
}

static void block_take_event(layout_block *block, const ladei_snapshot_event *event, lade_device_block_state state) {
  block->row.state = state;
  block->row.requested_bytes = event->bytes;
  block->row.stack = event->stack;
  block->row.note = 0;
  block->recalled = true;
}

static lade_status free_requested_undo(ladei_inspect_layout *layout, const ladei_snapshot_event *event, bool *fits) {
  layout_block *block = block_at(layout, event->address);
  *fits = block != NULL && block->row.state == LADE_DEVICE_BLOCK_PENDING_FREE;
  if (*fits) block_take_event(block, event, LADE_DEVICE_BLOCK_ALLOCATED);
  return LADE_OK;
}

/* The size that an allocator gives to a request, where the event does not tell, as in files of others. */
static uint64_t block_bytes_of(const ladei_snapshot_event *event) {
  enum { QUANTUM = 512 };
  if (event->block_bytes > 0) return event->block_bytes;
  uint64_t bytes = event->bytes < UINT64_MAX - QUANTUM ? event->bytes : UINT64_MAX - QUANTUM;
  return bytes == 0 ? QUANTUM : (bytes + QUANTUM - 1) / QUANTUM * QUANTUM;
}

static lade_status free_completed_undo(ladei_inspect_layout *layout, const ladei_snapshot_event *event, bool *fits) {
  layout_block *block;
  lade_status status = block_carve(layout, event->address, block_bytes_of(event), &block);
  *fits = block != NULL;
  if (*fits) block_take_event(block, event, LADE_DEVICE_BLOCK_PENDING_FREE);
  return status;
}

static lade_status annotate_undo(ladei_inspect_layout *layout, const ladei_snapshot_event *event, bool *fits) {
  layout_block *block = block_at(layout, event->address);
  *fits = block != NULL && !block_is_inactive(block);
  if (!*fits) return LADE_OK;
  block->row.note = 0;
  block->recalled = true;
  return LADE_OK;
}

/* Whether all of the range is inactive and of one segment. */
static bool range_is_inactive(const ladei_inspect_layout *layout, uint64_t address, uint64_t bytes) {
  if (bytes == 0 || segment_around(layout, address, bytes) == NULL) return false;
  const layout_block *block = block_of(ladei_ordered_set_at_most(&layout->blocks, key_of(address)));
  for (; block != NULL && block->row.address < address + bytes; block = block_of(block->node.next))
    if (!block_is_inactive(block)) return false;
  return true;
}

/* The part of a segment after `address`, as a segment of its own. */
static void segment_split(ladei_inspect_layout *layout, layout_segment *segment, layout_segment *behind,
                          uint64_t address) {
  assert(address > segment->row.address && address < segment_end(segment));
  behind->row = segment->row;
  behind->row.address = address;
  behind->row.total_bytes = segment_end(segment) - address;
  segment->row.total_bytes = address - segment->row.address;
  segment_insert(layout, behind);
}

static void segment_shrink_or_remove(ladei_inspect_layout *layout, layout_segment *segment, uint64_t address,
                                     uint64_t end) {
  assert(end <= segment_end(segment) && address >= segment->row.address);
  if (end < segment_end(segment)) { /* it begins the segment */
    assert(address == segment->row.address);
    ladei_ordered_set_remove(&layout->segments, &segment->node);
    segment->row.total_bytes = segment_end(segment) - end;
    segment->row.address = end;
    segment_insert(layout, segment);
  } else if (address > segment->row.address) {
    segment->row.total_bytes = address - segment->row.address;
  } else {
    ladei_ordered_set_remove(&layout->segments, &segment->node);
    free(segment);
  }
}

/* The range came with the event. */
static lade_status range_remove(ladei_inspect_layout *layout, const ladei_snapshot_event *event, bool *fits) {
  uint64_t address = event->address, bytes = event->bytes;
  *fits = range_is_inactive(layout, address, bytes);
  if (!*fits) return LADE_OK;
  layout_segment *segment = segment_around(layout, address, bytes);
  bool in_the_middle = address > segment->row.address && address + bytes < segment_end(segment);
  layout_segment *behind = in_the_middle ? calloc(1, sizeof *behind) : NULL;
  if (in_the_middle && behind == NULL) return no_memory();
  uint64_t end = address + bytes;
  while (address < end) {
    layout_block *block;
    lade_status status = block_carve(layout, address, end - address, &block);
    if (status != LADE_OK) {
      free(behind);
      return status;
    }
    assert(block != NULL && block_is_inactive(block) && block_end(block) <= end); /* range_is_inactive() */
    address = block_end(block);
    block_remove(layout, block);
  }
  if (in_the_middle) segment_split(layout, segment, behind, end);
  segment_shrink_or_remove(layout, segment, event->address, end);
  return LADE_OK;
}

static bool range_is_free(const ladei_inspect_layout *layout, uint64_t address, uint64_t bytes) {
  if (bytes == 0 || bytes > UINT64_MAX - address) return false;
  const layout_segment *before = segment_of(ladei_ordered_set_at_most(&layout->segments, key_of(address)));
  if (before != NULL && segment_end(before) > address) return false;
  const layout_segment *after = segment_of(ladei_ordered_set_at_least(&layout->segments, key_of(address)));
  return after == NULL || after->row.address >= address + bytes;
}

static bool segments_are_one(const layout_segment *low, const layout_segment *high) {
  return low != NULL && high != NULL && segment_end(low) == high->row.address &&
         (low->row.flags & high->row.flags & LADEI_SNAPSHOT_SEGMENT_EXPANDABLE) != 0 &&
         low->row.stream == high->row.stream && low->row.flags == high->row.flags &&
         low->row.pool.first == high->row.pool.first && low->row.pool.second == high->row.pool.second;
}

/* Mapped memory is shown in runs that are as long as they can be. */
static layout_segment *segment_join(ladei_inspect_layout *layout, layout_segment *low, layout_segment *high) {
  if (!segments_are_one(low, high)) return NULL;
  assert(low->row.part == high->row.part);
  low->row.total_bytes += high->row.total_bytes;
  ladei_ordered_set_remove(&layout->segments, &high->node);
  free(high);
  return low;
}

/* The range went with the event. */
static lade_status range_add(ladei_inspect_layout *layout, const ladei_snapshot_event *event, bool *fits) {
  enum { LARGEST_SMALL_SEGMENT = 2 << 20 }; /* where the event does not tell */
  *fits = range_is_free(layout, event->address, event->bytes);
  if (!*fits) return LADE_OK;
  layout_segment *segment = calloc(1, sizeof *segment);
  layout_block *block = calloc(1, sizeof *block);
  if (segment == NULL || block == NULL) {
    free(segment);
    free(block);
    return no_memory();
  }
  segment->row = (ladei_snapshot_segment){.address = event->address,
                                          .total_bytes = event->bytes,
                                          .stream = event->stream,
                                          .pool = event->pool,
                                          .part = event->part,
                                          .stack = event->stack,
                                          .numa_node = -1};
  if (event->action == LADE_DEVICE_SEGMENT_UNMAP) segment->row.flags |= LADEI_SNAPSHOT_SEGMENT_EXPANDABLE;
  bool is_large =
      event->flags == 0 ? event->bytes > LARGEST_SMALL_SEGMENT : (event->flags & LADEI_SNAPSHOT_SEGMENT_LARGE) != 0;
  if (is_large) segment->row.flags |= LADEI_SNAPSHOT_SEGMENT_LARGE;
  block->row = (ladei_snapshot_block){.address = event->address, .bytes = event->bytes};
  block_clear(block);
  segment_insert(layout, segment);
  block_insert(layout, block);
  layout_segment *low = segment_join(layout, segment_of(segment->node.previous), segment);
  if (low != NULL) segment = low;
  segment_join(layout, segment, segment_of(segment->node.next));
  block_coalesce(layout, block);
  return LADE_OK;
}

lade_status ladei_inspect_layout_undo(ladei_inspect_layout *layout, const ladei_snapshot_event *event) {
  lade_status status = LADE_OK;
  bool fits = true;
  switch ((lade_device_action)event->action) {
  case LADE_DEVICE_ALLOC: status = alloc_undo(layout, event, &fits); break;
  case LADE_DEVICE_FREE_REQUESTED: status = free_requested_undo(layout, event, &fits); break;
  case LADE_DEVICE_FREE_COMPLETED: status = free_completed_undo(layout, event, &fits); break;
  case LADE_DEVICE_SEGMENT_ALLOC:
  case LADE_DEVICE_SEGMENT_MAP: status = range_remove(layout, event, &fits); break;
  case LADE_DEVICE_SEGMENT_FREE:
  case LADE_DEVICE_SEGMENT_UNMAP: status = range_add(layout, event, &fits); break;
  case LADE_DEVICE_ANNOTATE: status = annotate_undo(layout, event, &fits); break;
  default: break; /* changes no memory */
  }
  if (status == LADE_OK && !fits) layout->unfit++;
  return status;
}

/* --- begin and end ------------------------------------------------------------------------------------------------ */

void ladei_inspect_layout_destroy(ladei_inspect_layout *layout) {
  for (ladei_order_node *node = layout->segments.first, *next; node != NULL; node = next) {
    next = node->next;
    free(segment_of(node));
  }
  for (ladei_order_node *node = layout->blocks.first, *next; node != NULL; node = next) {
    next = node->next;
    free(block_of(node));
  }
  *layout = (ladei_inspect_layout){.unfit = 0};
}

static lade_status segment_load(const lade_snapshot *snapshot, const ladei_snapshot_segment *row,
                                ladei_inspect_layout *layout) {
  layout_segment *segment = calloc(1, sizeof *segment);
  if (segment == NULL) return no_memory();
  segment->row = *row;
  segment_insert(layout, segment);
  for (uint64_t i = row->first_block; i < row->first_block + row->block_count; i++) {
    layout_block *block = calloc(1, sizeof *block);
    if (block == NULL) return no_memory();
    block->row = snapshot->blocks.rows[i];
    block_insert(layout, block);
  }
  return LADE_OK;
}

lade_status ladei_inspect_layout_create(const lade_snapshot *snapshot, uint32_t part, ladei_inspect_layout *out) {
  ladei_inspect_layout layout = {.unfit = 0};
  const ladei_snapshot_part *row = &snapshot->parts.rows[part];
  for (uint64_t i = row->first_segment; i < row->first_segment + row->segment_count; i++) {
    lade_status status = segment_load(snapshot, &snapshot->segments.rows[i], &layout);
    if (status == LADE_OK) continue;
    ladei_inspect_layout_destroy(&layout);
    return status;
  }
  *out = layout;
  return LADE_OK;
}

const layout_segment *ladei_inspect_layout_next_segment(const ladei_inspect_layout *layout,
                                                        const layout_segment *segment) {
  return segment_of(segment == NULL ? layout->segments.first : segment->node.next);
}

const layout_block *ladei_inspect_layout_next_block(const ladei_inspect_layout *layout, const layout_block *block) {
  return block_of(block == NULL ? layout->blocks.first : block->node.next);
}
