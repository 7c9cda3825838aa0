/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/lives.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "inspect/pair_map.h"

/* Lives of one part in the making. */
typedef struct lives_builder {
  const lade_snapshot *snapshot;
  ladei_inspect_lives *lives;
  uint32_t part;
  ladei_pair_map open_blocks; /* address -> life without an end */
  ladei_pair_map open_segments;
} lives_builder;

/* V3 */
static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void life_end(ladei_inspect_life *life, uint64_t time_ns) {
  time_ns = later(time_ns, life->start_ns);
  assert(life->end_ns == UINT64_MAX); /* V1: a life ends once */
  if (life->freed_ns == UINT64_MAX) life->freed_ns = time_ns;
  life->end_ns = later(time_ns, life->freed_ns);
  assert(life->start_ns <= life->freed_ns && life->freed_ns <= life->end_ns); /* V3 */
}

static ladei_inspect_life life_of(const lives_builder *b, const ladei_snapshot_event *event, uint64_t start_ns) {
  return (ladei_inspect_life){.address = event->address,
                              .bytes = event->block_bytes > event->bytes ? event->block_bytes : event->bytes,
                              .requested_bytes = event->bytes,
                              .start_ns = start_ns,
                              .freed_ns = UINT64_MAX,
                              .end_ns = UINT64_MAX,
                              .stream = event->stream,
                              .pool = event->pool,
                              .part = b->part,
                              .stack = event->stack,
                              .label = event->label,
                              .scopes = event->scopes};
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

static lade_status block_open(lives_builder *b, const ladei_inspect_life *life) {
  uint32_t *open = ladei_pair_map_value(&b->open_blocks, life->address, 0);
  if (open == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  if (*open != LADEI_SNAPSHOT_NONE) /* V1: its end was not recorded */
    life_end(&b->lives->blocks.rows[*open], life->start_ns);
  ladei_inspect_life *row = LADEI_INSPECT_ADD(&b->lives->blocks);
  if (row == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *row = *life;
  *open = (uint32_t)(b->lives->blocks.count - 1);
  return LADE_OK;
}

/* The life that an event ends, or a step of it; one that began before the history is made. */
static lade_status block_find(lives_builder *b, const ladei_snapshot_event *event, uint32_t **out) {
  *out = ladei_pair_map_value(&b->open_blocks, event->address, 0);
  if (*out == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  if (**out != LADEI_SNAPSHOT_NONE) return LADE_OK;
  ladei_inspect_life *row = LADEI_INSPECT_ADD(&b->lives->blocks);
  if (row == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *row = life_of(b, event, 0);
  row->label = row->scopes = 0; /* those of the free */
  **out = (uint32_t)(b->lives->blocks.count - 1);
  return LADE_OK;
}

static lade_status block_free(lives_builder *b, const ladei_snapshot_event *event) {
  uint32_t *open;
  LADEI_TRY(block_find(b, event, &open));
  assert(*open < b->lives->blocks.count);
  ladei_inspect_life *life = &b->lives->blocks.rows[*open];
  if (life->freed_ns == UINT64_MAX) life->freed_ns = later(event->time_ns, life->start_ns);
  if (event->action != LADE_DEVICE_FREE_COMPLETED) return LADE_OK;
  life_end(life, event->time_ns);
  if (life->bytes < event->block_bytes) life->bytes = event->block_bytes;
  *open = LADEI_SNAPSHOT_NONE;
  return LADE_OK;
}

/* V2: sizes are known now. */
static lade_status block_end(lives_builder *b, const ladei_snapshot_segment *segment,
                             const ladei_snapshot_block *block) {
  if (block->state == LADE_DEVICE_BLOCK_INACTIVE) return LADE_OK;
  const ladei_snapshot_event event = {.address = block->address,
                                      .bytes = block->requested_bytes,
                                      .block_bytes = block->bytes,
                                      .stream = segment->stream,
                                      .pool = segment->pool,
                                      .stack = block->stack};
  uint32_t *open;
  LADEI_TRY(block_find(b, &event, &open));
  ladei_inspect_life *life = &b->lives->blocks.rows[*open];
  life->bytes = block->bytes;
  life->requested_bytes = block->requested_bytes;
  if (block->stack != LADEI_SNAPSHOT_NONE) life->stack = block->stack;
  if (block->note != 0) life->label = block->note;
  assert(life->end_ns == UINT64_MAX && (*open & UINT32_C(1) << 31) == 0); /* alive, and of one block */
  *open |= UINT32_C(1) << 31;                                             /* seen */
  return LADE_OK;
}

/* --- segments ----------------------------------------------------------------------------------------------------- */

static lade_status segment_event(lives_builder *b, const ladei_snapshot_event *event, bool comes) {
  uint32_t *open = ladei_pair_map_value(&b->open_segments, event->address, 0);
  if (open == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  if (comes || *open == LADEI_SNAPSHOT_NONE) {
    ladei_inspect_life *row = LADEI_INSPECT_ADD(&b->lives->segments);
    if (row == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    *row = life_of(b, event, comes ? later(event->time_ns, 1) : 0);
    *open = (uint32_t)(b->lives->segments.count - 1);
  }
  if (comes) return LADE_OK;
  assert(*open < b->lives->segments.count);
  life_end(&b->lives->segments.rows[*open], event->time_ns);
  *open = LADEI_SNAPSHOT_NONE;
  return LADE_OK;
}

/* Whether lives that are open now begin at the segment's address: a run of mapped memory is several. */
static lade_status segment_end(lives_builder *b, const ladei_snapshot_segment *segment) {
  uint32_t *open = ladei_pair_map_value(&b->open_segments, segment->address, 0);
  if (open == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  if (*open != LADEI_SNAPSHOT_NONE) {
    ladei_inspect_life *life = &b->lives->segments.rows[*open];
    if (life->bytes < segment->total_bytes) life->bytes = segment->total_bytes;
    return LADE_OK;
  }
  const ladei_snapshot_event event = {.address = segment->address,
                                      .bytes = segment->total_bytes,
                                      .stream = segment->stream,
                                      .pool = segment->pool,
                                      .stack = segment->stack};
  return segment_event(b, &event, true);
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

static lade_status event_pass(lives_builder *b, const ladei_snapshot_event *event) {
  ladei_inspect_life life;
  switch ((lade_device_action)event->action) {
  case LADE_DEVICE_ALLOC: life = life_of(b, event, later(event->time_ns, 1)); return block_open(b, &life);
  case LADE_DEVICE_FREE_REQUESTED:
  case LADE_DEVICE_FREE_COMPLETED: return block_free(b, event);
  case LADE_DEVICE_SEGMENT_ALLOC:
  case LADE_DEVICE_SEGMENT_MAP: return segment_event(b, event, true);
  case LADE_DEVICE_SEGMENT_FREE:
  case LADE_DEVICE_SEGMENT_UNMAP: return segment_event(b, event, false);
  default: return LADE_OK;
  }
}

/* A block still open and not seen at the end has lost its last events: its life ends with the part. */
static void lives_close(lives_builder *b, uint64_t time_ns) {
  for (size_t i = 0; i < b->open_blocks.room; i++) {
    const ladei_pair_map_entry *entry = &b->open_blocks.entries[i];
    if (!entry->used || entry->value == LADEI_SNAPSHOT_NONE || (entry->value & UINT32_C(1) << 31) != 0) continue;
    life_end(&b->lives->blocks.rows[entry->value], time_ns);
  }
}

static lade_status part_pass(lives_builder *b) {
  const lade_snapshot *snapshot = b->snapshot;
  const ladei_snapshot_part *part = &snapshot->parts.rows[b->part];
  for (uint64_t i = part->first_event; i < part->first_event + part->event_count; i++)
    LADEI_TRY(event_pass(b, &snapshot->events.rows[i]));
  for (uint64_t i = part->first_segment; i < part->first_segment + part->segment_count; i++) {
    const ladei_snapshot_segment *segment = &snapshot->segments.rows[i];
    LADEI_TRY(segment_end(b, segment));
    for (uint64_t k = segment->first_block; k < segment->first_block + segment->block_count; k++)
      LADEI_TRY(block_end(b, segment, &snapshot->blocks.rows[k]));
  }
  if (part->block_count > 0) lives_close(b, part->time_ns);
  return LADE_OK;
}

lade_status ladei_inspect_lives_create(const lade_snapshot *snapshot, ladei_inspect_lives *out) {
  lade_status status = LADE_OK;
  *out = (ladei_inspect_lives){.blocks = {NULL, 0, 0}};
  for (uint32_t part = 0; status == LADE_OK && part < snapshot->parts.count; part++) {
    lives_builder b = {.snapshot = snapshot, .lives = out, .part = part};
    status = part_pass(&b);
    ladei_pair_map_clear(&b.open_blocks);
    ladei_pair_map_clear(&b.open_segments);
  }
  if (status != LADE_OK) ladei_inspect_lives_destroy(out);
  return status;
}

void ladei_inspect_lives_destroy(ladei_inspect_lives *lives) {
  free(lives->blocks.rows);
  free(lives->segments.rows);
  *lives = (ladei_inspect_lives){.blocks = {NULL, 0, 0}};
}
