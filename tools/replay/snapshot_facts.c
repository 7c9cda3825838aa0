/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools. Events of some versions of PyTorch name none; a segment of the snapshot does. So an event's pool is that of the segment around
 * it, as long as this had not gone when the snapshot was taken.
 *
 * Limits. A failed allocation says what the driver had free. With what was reserved that is the memory that the program could have;
 * where every failed allocation needed more than the largest such sum, it is a capacity of which a replay makes the same of them.
 *
 * Flushes. After one, no segment of the default pools is wholly free. Where one is, segments went back by their age or size, or for
 * a request. Where the memory that came next did not fit without them, they went back for it.
 */
#include "tools/replay/snapshot_facts.h"

#include <stdlib.h>

#include "base/error.h"
#include "device/heap/size_rules.h"

/* One walk. */
typedef struct facts_walk {
  const lade_snapshot *snapshot;
  const ladei_snapshot_part *part;
  snapshot_facts *facts;
  bool events_name_pools, segments_name_pools;
  uint64_t reserved;      /* bytes after the event */
  uint64_t room;          /* largest sum of reserved and free bytes at a failed allocation */
  uint64_t least_refused; /* least sum of reserved bytes and those that a failed allocation would have added */
  uint64_t wanted;        /* bytes of the memory that came, or was refused, after those that go back; 0: none */
  bool partial;           /* of these */
  bool private;           /* a private pool is among them */
} facts_walk;

static bool is_pool(lade_device_pool_id pool) { return pool.first != 0 || pool.second != 0; }

static bool gives_back(const ladei_snapshot_event *event) {
  return event->action == LADE_DEVICE_SEGMENT_FREE || event->action == LADE_DEVICE_SEGMENT_UNMAP;
}

static const ladei_snapshot_event *event_at(const facts_walk *walk, uint64_t i) {
  return &walk->snapshot->events.rows[walk->part->first_event + i];
}

static uint64_t segment_end(const ladei_inspect_layout_segment *segment) {
  return segment->row.address + segment->row.total_bytes;
}

static const ladei_inspect_layout_segment *segment_around(const ladei_inspect_layout *layout, uint64_t address) {
  ladei_order_key key = {{address, 0, 0}};
  ladei_order_node *node = ladei_ordered_set_at_most(&layout->segments, key);
  const ladei_inspect_layout_segment *segment = LADEI_ORDER_RECORD(node, ladei_inspect_layout_segment, node);
  return segment != NULL && address < segment_end(segment) ? segment : NULL;
}

static void pool_find(facts_walk *walk, uint64_t i) {
  const ladei_snapshot_event *event = event_at(walk, i);
  walk->facts->events[i].pool = event->pool;
  if (walk->events_name_pools || !walk->segments_name_pools || event->action == LADE_DEVICE_OOM) return;
  const ladei_inspect_layout_segment *segment = segment_around(&walk->facts->start, event->address);
  if (segment != NULL) walk->facts->events[i].pool = segment->row.pool;
}

/* Whether a plain segment of the default pools is wholly free. */
static bool whole_free(const ladei_inspect_layout *layout) {
  const ladei_inspect_layout_segment *segment = NULL;
  const ladei_inspect_layout_block *block = ladei_inspect_layout_next_block(layout, NULL);
  while ((segment = ladei_inspect_layout_next_segment(layout, segment)) != NULL) {
    bool plain = (segment->row.flags & LADEI_SNAPSHOT_SEGMENT_EXPANDABLE) == 0;
    bool free = plain && !is_pool(segment->row.pool);
    for (; block != NULL && block->row.address < segment_end(segment);
         block = ladei_inspect_layout_next_block(layout, block))
      free = free && block->row.state == LADE_DEVICE_BLOCK_INACTIVE;
    if (free) return true;
  }
  return false;
}

/* Bytes that an event added to those reserved, or would have. */
static uint64_t growth_of(const ladei_snapshot_event *event) {
  static const ladei_device_settings settings = {.large_segment_bytes = LADEI_DEVICE_LARGE_SEGMENT};
  switch ((lade_device_action)event->action) {
  case LADE_DEVICE_SEGMENT_ALLOC:
  case LADE_DEVICE_SEGMENT_MAP: return event->bytes;
  case LADE_DEVICE_OOM: return ladei_device_heap_segment_bytes(&settings, event->bytes);
  default: return 0;
  }
}

/* Before the event is undone. Several that give back come as one, the last of them first. */
static void flush_look(facts_walk *walk, uint64_t i) {
  snapshot_event_facts *facts = &walk->facts->events[i];
  bool last = i + 1 == walk->part->event_count || !gives_back(event_at(walk, i + 1));
  bool first = i == 0 || !gives_back(event_at(walk, i - 1));
  if (!gives_back(event_at(walk, i))) return;
  if (last) {
    walk->wanted = i + 1 < walk->part->event_count ? growth_of(event_at(walk, i + 1)) : 0;
    walk->partial = !is_pool(facts->pool) && whole_free(&walk->facts->start);
    walk->private = false;
  }
  walk->private = walk->private || is_pool(facts->pool);
  if (!is_pool(facts->pool) && walk->segments_name_pools && !walk->events_name_pools)
    walk->facts->found.nameless_segments++;
  if (first) facts->partial = walk->partial;
  if (first && walk->wanted > 0 && !walk->private)
    facts->needed_bytes = walk->reserved + event_at(walk, i)->bytes + walk->wanted;
}

static void reserved_look(facts_walk *walk, const ladei_snapshot_event *event) {
  if (walk->facts->found.peak_bytes < walk->reserved) walk->facts->found.peak_bytes = walk->reserved;
  if (gives_back(event)) {
    walk->reserved += event->bytes;
  } else if (event->action == LADE_DEVICE_OOM) {
    uint64_t room = walk->reserved + event->address, wanted = walk->reserved + growth_of(event);
    if (walk->room < room) walk->room = room;
    if (walk->least_refused > wanted) walk->least_refused = wanted;
    walk->facts->found.refused_allocs++;
  } else {
    walk->reserved -= ladei_size_min(growth_of(event), walk->reserved);
  }
}

static void walk_begin(facts_walk *walk) {
  for (uint64_t i = 0; i < walk->part->segment_count; i++) {
    const ladei_snapshot_segment *segment = &walk->snapshot->segments.rows[walk->part->first_segment + i];
    walk->reserved += segment->total_bytes;
    walk->segments_name_pools = walk->segments_name_pools || is_pool(segment->pool);
  }
  for (uint64_t i = 0; i < walk->part->event_count && !walk->events_name_pools; i++)
    walk->events_name_pools = is_pool(event_at(walk, i)->pool);
}

static void walk_end(facts_walk *walk) {
  replay_differences *found = &walk->facts->found;
  const ladei_inspect_layout_block *block = NULL;
  while ((block = ladei_inspect_layout_next_block(&walk->facts->start, block)) != NULL)
    found->earlier_blocks += block->row.state != LADE_DEVICE_BLOCK_INACTIVE;
  if (walk->part->capacity_bytes > 0) {
    walk->facts->capacity_bytes = walk->part->capacity_bytes;
    found->refused_allocs = 0;
  } else if (found->refused_allocs > 0 && walk->room < walk->least_refused && found->peak_bytes <= walk->room) {
    walk->facts->capacity_bytes = walk->room;
    found->refused_allocs = 0;
  }
}

lade_status snapshot_facts_find(const lade_snapshot *snapshot, uint32_t part, snapshot_facts *out) {
  const ladei_snapshot_part *row = &snapshot->parts.rows[part];
  facts_walk walk = {.snapshot = snapshot, .part = row, .facts = out, .least_refused = UINT64_MAX};
  *out = (snapshot_facts){.events = calloc(row->event_count + 1, sizeof *out->events)};
  if (out->events == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for the facts of %llu events",
                       (unsigned long long)row->event_count);
  lade_status status = ladei_inspect_layout_create(snapshot, part, &out->start);
  if (status == LADE_OK) walk_begin(&walk);
  for (uint64_t i = row->event_count; i > 0 && status == LADE_OK; i--) {
    const ladei_snapshot_event *event = event_at(&walk, i - 1);
    pool_find(&walk, i - 1);
    flush_look(&walk, i - 1);
    reserved_look(&walk, event);
    status = ladei_inspect_layout_undo(&out->start, event);
  }
  if (status == LADE_OK)
    walk_end(&walk);
  else
    snapshot_facts_destroy(out);
  return status;
}

void snapshot_facts_destroy(snapshot_facts *facts) {
  ladei_inspect_layout_destroy(&facts->start);
  free(facts->events);
  facts->events = NULL;
}
