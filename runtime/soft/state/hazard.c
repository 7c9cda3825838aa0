/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hazard reports: races that hardware hides.
 *
 *   bytes    |--- segment: write by A 3 ---|-- segment: read by B 7, read by C 2 --|      (only tracked memory)
 *
 * Each access of queued work is checked against earlier ones to the same bytes: two of them, one a write, on different
 * streams, must be ordered by an event, by the legacy stream, or because the program learned of the first one's end
 * before it submitted the second. This is decided when the second is submitted and so does not depend on timing: a race
 * that happens to go well is found too.
 *
 * I1  Segments do not overlap. A segment's accesses are at most one write and the reads since, one per stream.
 * I2  An access that the program knows to have ended (observed) can be in no race and is dropped when met; each access
 *     also sweeps two segments, so that roughly only accesses in flight remain.
 * I3  Without memory for a record an access is not tracked: reports may be missed, but never invented.
 * I4  A launch of a graph has one number on its stream, so accesses within one graph are not compared here:
 *     submit/races.c does that, when its capture ends.
 * An access costs the logarithm of the number of segments, plus the segments that it covers.
 * Locks: rt->lock.
 */
#include "runtime/soft/state/hazard.h"

#include <stdlib.h>

#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/order.h"

typedef struct hazard_access {
  soft_point point;
  bool write;
  struct hazard_access *next;
} hazard_access;

typedef struct hazard_segment {
  soft_tree_node node; /* by first address */
  uint64_t end;
  hazard_access *accesses;
  struct hazard_segment *next; /* free list */
} hazard_segment;

enum { RECORDS_PER_SLAB = 128, SWEEP_STEPS = 2 };

typedef struct hazard_slab {
  struct hazard_slab *next;
  hazard_access accesses[RECORDS_PER_SLAB];
  hazard_segment segments[RECORDS_PER_SLAB];
} hazard_slab;

typedef struct soft_hazards {
  soft_tree segments;
  hazard_access *free_accesses;
  hazard_segment *free_segments;
  hazard_slab *slabs;
  uint64_t sweep_address;
} soft_hazards;

/* ---- records ----------------------------------------------------------------------------------------------------- */

bool ladei_soft_hazards_open(soft_runtime *rt) {
  rt->hazards = calloc(1, sizeof *rt->hazards);
  return rt->hazards != NULL;
}

void ladei_soft_hazards_close(soft_runtime *rt) {
  hazard_slab *slab = rt->hazards == NULL ? NULL : rt->hazards->slabs;
  while (slab != NULL) {
    hazard_slab *next = slab->next;
    free(slab);
    slab = next;
  }
  free(rt->hazards);
}

static void access_free(soft_hazards *hazards, hazard_access *access) {
  access->next = hazards->free_accesses;
  hazards->free_accesses = access;
}

static bool records_ready(soft_hazards *hazards) {
  if (hazards->free_accesses != NULL && hazards->free_segments != NULL) return true;
  hazard_slab *slab = malloc(sizeof *slab);
  if (slab == NULL) return false;
  slab->next = hazards->slabs;
  hazards->slabs = slab;
  for (int i = 0; i < RECORDS_PER_SLAB; i++) {
    access_free(hazards, &slab->accesses[i]);
    slab->segments[i].next = hazards->free_segments;
    hazards->free_segments = &slab->segments[i];
  }
  return true;
}

static bool access_add(soft_hazards *hazards, hazard_segment *segment, soft_point point, bool write) {
  if (!records_ready(hazards)) return false;
  hazard_access *access = hazards->free_accesses;
  hazards->free_accesses = access->next;
  *access = (hazard_access){point, write, segment->accesses};
  segment->accesses = access;
  return true;
}

static hazard_segment *segment_new(soft_hazards *hazards, uint64_t begin, uint64_t end) {
  if (!records_ready(hazards)) return NULL;
  hazard_segment *segment = hazards->free_segments;
  hazards->free_segments = segment->next;
  segment->end = end;
  segment->accesses = NULL;
  soft_tree_insert(&hazards->segments, &segment->node, begin);
  return segment;
}

static void segment_remove(soft_hazards *hazards, hazard_segment *segment) {
  while (segment->accesses != NULL) {
    hazard_access *access = segment->accesses;
    segment->accesses = access->next;
    access_free(hazards, access);
  }
  ladei_ordered_set_remove(&hazards->segments, &segment->node);
  segment->next = hazards->free_segments;
  hazards->free_segments = segment;
}

static hazard_segment *segment_from(const soft_hazards *hazards, uint64_t address) {
  return (hazard_segment *)soft_tree_ceiling(&hazards->segments, address);
}

/* Makes `address` a border. False: no memory; the segment is then dropped whole. */
static bool segment_split(soft_hazards *hazards, uint64_t address) {
  hazard_segment *segment = (hazard_segment *)soft_tree_floor(&hazards->segments, address);
  if (segment == NULL || soft_tree_key(&segment->node) == address || segment->end <= address) return true;
  hazard_segment *rest = segment_new(hazards, address, segment->end);
  bool copied = rest != NULL;
  for (hazard_access *access = segment->accesses; access != NULL && copied; access = access->next)
    copied = access_add(hazards, rest, access->point, access->write);
  segment->end = address;
  if (!copied && rest != NULL) segment_remove(hazards, rest);
  return copied;
}

/* ---- the check --------------------------------------------------------------------------------------------------- */

static bool is_observed(const soft_point *point) {
  return point->number <= atomic_load_explicit(&point->stream->observed, memory_order_relaxed);
}

static void segment_prune(soft_hazards *hazards, hazard_segment *segment) {
  hazard_access **place = &segment->accesses;
  while (*place != NULL) {
    hazard_access *access = *place;
    if (is_observed(&access->point)) {
      *place = access->next;
      access_free(hazards, access);
    } else {
      place = &access->next;
    }
  }
}

static void sweep(soft_hazards *hazards) {
  for (int i = 0; i < SWEEP_STEPS; i++) {
    hazard_segment *segment = segment_from(hazards, hazards->sweep_address);
    if (segment == NULL) {
      hazards->sweep_address = 0;
      return;
    }
    hazards->sweep_address = segment->end;
    segment_prune(hazards, segment);
    if (segment->accesses == NULL) segment_remove(hazards, segment);
  }
}

/* The access of the segment that races with the new one, or NULL. */
static const hazard_access *segment_race(const hazard_segment *segment, const soft_stream *stream, bool write) {
  for (const hazard_access *access = segment->accesses; access != NULL; access = access->next) {
    const soft_point *point = &access->point;
    if ((!write && !access->write) || point->stream == stream || is_observed(point)) continue;
    if (!ladei_soft_order_has(&stream->order, point->stream, point->number)) return access;
  }
  return NULL;
}

static void report(soft_runtime *rt, const hazard_segment *segment, const hazard_access *earlier,
                   const soft_stream *stream, bool write) {
  ladei_soft_finding(rt, &rt->findings.unordered_reuse,
                     "bytes %#llx to %#llx: %s on stream %llu is not ordered after the %s on stream %llu",
                     (unsigned long long)soft_tree_key(&segment->node), (unsigned long long)segment->end,
                     write ? "a write" : "a read", (unsigned long long)stream->id, earlier->write ? "write" : "read",
                     (unsigned long long)earlier->point.stream->id);
}

/* Adds a read to the reads of the segment; each stream's last one stands for all of the stream. */
static void segment_read(soft_hazards *hazards, hazard_segment *segment, soft_point point) {
  segment_prune(hazards, segment);
  for (hazard_access *access = segment->accesses; access != NULL; access = access->next) {
    if (access->point.stream == point.stream && !access->write) {
      access->point.number = point.number;
      return;
    }
  }
  access_add(hazards, segment, point, false);
}

/* Checks all segments in [begin, end) and, for a read, records it there and in the gaps. */
static void range_visit(soft_runtime *rt, uint64_t begin, uint64_t end, soft_point point, bool write) {
  soft_hazards *hazards = rt->hazards;
  bool reported = false;
  while (begin < end) {
    hazard_segment *segment = segment_from(hazards, begin);
    uint64_t gap_end = segment == NULL || soft_tree_key(&segment->node) > end ? end : soft_tree_key(&segment->node);
    if (gap_end > begin) {
      hazard_segment *gap = write ? NULL : segment_new(hazards, begin, gap_end);
      if (gap != NULL) segment_read(hazards, gap, point);
      begin = gap_end;
      continue;
    }
    const hazard_access *earlier = reported ? NULL : segment_race(segment, point.stream, write);
    if (earlier != NULL) report(rt, segment, earlier, point.stream, write);
    reported = reported || earlier != NULL;
    if (!write) segment_read(hazards, segment, point);
    begin = segment->end;
  }
}

static void range_remove(soft_hazards *hazards, uint64_t begin, uint64_t end) {
  hazard_segment *segment;
  while ((segment = segment_from(hazards, begin)) != NULL && soft_tree_key(&segment->node) < end)
    segment_remove(hazards, segment);
}

void ladei_soft_hazard_access(soft_runtime *rt, soft_stream *stream, uint64_t number, const void *address, size_t bytes,
                              bool write) {
  soft_hazards *hazards = rt->hazards;
  uint64_t begin = (uint64_t)(uintptr_t)address, end = begin + bytes;
  soft_point point = {stream, number};
  sweep(hazards);
  segment_split(hazards, begin);
  segment_split(hazards, end);
  range_visit(rt, begin, end, point, write);
  if (!write) return;
  /* Later accesses must be ordered after this write, and so after all that this write was ordered after. */
  range_remove(hazards, begin, end);
  hazard_segment *segment = segment_new(hazards, begin, end);
  if (segment != NULL) access_add(hazards, segment, point, true);
}

void ladei_soft_hazard_forget(soft_runtime *rt, uint64_t address, size_t bytes) {
  segment_split(rt->hazards, address);
  segment_split(rt->hazards, address + bytes);
  range_remove(rt->hazards, address, address + bytes);
}

const char *ladei_soft_hazards_check(const soft_runtime *rt) {
  uint64_t next = 0;
  const hazard_segment *segment;
  while ((segment = segment_from(rt->hazards, next)) != NULL) {
    if (segment->end <= soft_tree_key(&segment->node)) return "hazards I1: an empty segment";
    int writes = 0;
    for (const hazard_access *access = segment->accesses; access != NULL; access = access->next)
      writes += access->write;
    if (writes > 1) return "hazards I1: a write that another one followed";
    next = segment->end;
    const soft_tree_node *before = soft_tree_floor(&rt->hazards->segments, next - 1);
    if (before != &segment->node) return "hazards I1: segments overlap";
  }
  return NULL;
}
