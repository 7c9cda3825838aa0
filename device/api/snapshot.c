/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of an allocator's segments and blocks.
 *
 * S1  The arrays have room for as many entries as there are blocks: each run has a block, and each block one entry.
 * S2  While the lock is held, `context` of an entry is the record; afterwards what the program captured.
 * S3  Segments and counters are of one moment and go by one definition: what is on its way back to the driver is shown,
 *     as a cached block, and counted, until the driver has it.
 * Locks: the allocator's lock while copying; memory is allocated without it, and again where the heap grew meanwhile.
 */
#include "device/api/snapshot.h"

#include <stdlib.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "device/api/history_api.h"
#include "device/observe/history.h"
#include "device/observe/report.h"
#include "device/state/checks.h"
#include "device/state/thread_caches.h"
#include "history/contexts.h"

void ladei_device_snapshot_destroy(ladei_device_snapshot *snapshot) {
  for (size_t i = 0; i < snapshot->context_count; i++) ladei_history_context_release(snapshot->contexts[i]);
  for (size_t i = 0; i < snapshot->note_count; i++) ladei_history_context_release(snapshot->notes[i].note);
  free(snapshot->notes);
  free(snapshot->segments);
  free(snapshot->blocks);
  free(snapshot->contexts);
  *snapshot = (ladei_device_snapshot){.segments = NULL};
}

/* Lock held. */
static size_t blocks_counted(const ladei_device_heap *heap) {
  ladei_device_heap_assert_locked(heap);
  return heap->starts.count + heap->hidden.count;
}

static size_t block_count(lade_device_allocator *allocator, size_t *out_notes) {
  ladei_lock_acquire(&allocator->lock);
  size_t count = blocks_counted(&allocator->heap);
  *out_notes = allocator->history.note_count;
  ladei_lock_release(&allocator->lock);
  return count;
}

/* ---- Under the lock ---------------------------------------------------------------------------------------------- */

lade_device_block_state ladei_device_snapshot_state(const ladei_device_block *block) {
  switch ((ladei_device_block_state)block->state) {
  case LADEI_DEVICE_HEAP_ALLOCATED: return LADE_DEVICE_BLOCK_ALLOCATED;
  case LADEI_DEVICE_HEAP_PENDING:
  case LADEI_DEVICE_HEAP_DEFERRED: return LADE_DEVICE_BLOCK_PENDING_FREE;
  default: return LADE_DEVICE_BLOCK_INACTIVE;
  }
}

static void run_begin(ladei_device_snapshot *snapshot, const ladei_device_block *block) {
  const ladei_device_heap_segment *segment = block->segment;
  const ladei_device_private_pool *private_pool = segment->pool->private_pool;
  ladei_device_snapshot_segment *run = &snapshot->segments[snapshot->segment_count++];
  *run = (ladei_device_snapshot_segment){
      .address = block->address,
      .stream = segment->stream.handle,
      .context = segment->context,
      .is_large = !segment->pool->is_small,
      .is_expandable = ladei_device_heap_segment_expandable(segment),
      .first_block = snapshot->block_count,
  };
  if (private_pool != NULL) run->pool = private_pool->id;
}

static void block_copy(ladei_device_snapshot *snapshot, const ladei_device_block *block) {
  ladei_device_snapshot_segment *run = &snapshot->segments[snapshot->segment_count - 1];
  lade_device_block_state state = ladei_device_snapshot_state(block);
  bool active = state != LADE_DEVICE_BLOCK_INACTIVE;
  size_t requested = active ? block->requested : 0;
  snapshot->blocks[snapshot->block_count++] = (ladei_device_snapshot_block){
      .address = block->address,
      .bytes = block->size,
      .requested_bytes = requested,
      .age = block->state == LADEI_DEVICE_HEAP_FREE ? ladei_device_block_age(block) : 0,
      .context = block->context,
      .state = (uint32_t)state,
  };
  run->block_count++;
  run->total_bytes += block->size;
  run->requested_bytes += requested;
  if (active) run->active_bytes += block->size;
  if (state == LADE_DEVICE_BLOCK_ALLOCATED) run->allocated_bytes += block->size;
}

static void note_copy(ladei_device_snapshot *snapshot, const ladei_device_block *block) {
  if (block->note == NULL) return;
  ladei_history_context_retain(block->note);
  snapshot->notes[snapshot->note_count++] = (ladei_device_snapshot_note){block->address, block->note};
}

/* Its mapped runs. */
static void segment_copy(const ladei_device_heap *heap, const ladei_device_heap_segment *segment,
                         ladei_device_snapshot *snapshot) {
  bool in_run = false;
  for (const ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL;
       block = block->next) {
    if (block->mapped && !in_run) run_begin(snapshot, block);
    in_run = block->mapped;
    if (!in_run) continue;
    block_copy(snapshot, block);
    note_copy(snapshot, block);
  }
}

static bool ids_equal(lade_device_pool_id a, lade_device_pool_id b) {
  return a.first == b.first && a.second == b.second;
}

/* Whether the segment is of the pool that is wanted; NULL: all are. */
static bool segment_wanted(const ladei_device_heap_segment *segment, const lade_device_pool_id *only) {
  const ladei_device_private_pool *pool = segment->pool->private_pool;
  return only == NULL || (pool != NULL && ids_equal(pool->id, *only));
}

static void heap_copy(const ladei_device_heap *heap, const lade_device_pool_id *only, ladei_device_snapshot *snapshot) {
  for (const ladei_device_heap_segment *segment = ladei_device_heap_counted_first(heap); segment != NULL;
       segment = ladei_device_heap_counted_next(heap, segment))
    if (segment_wanted(segment, only)) segment_copy(heap, segment, snapshot);
  snapshot->stats = ladei_device_heap_stats(heap);
}

static ladei_history_context *record_of(const void *context) { return (ladei_history_context *)(uintptr_t)context; }

/* Counts the records in the snapshot, which are spread over memory: it asks for each some time ahead. */
static void contexts_retain(const ladei_device_snapshot *snapshot) {
  enum { AHEAD = 16 };
  for (size_t i = 0; i < snapshot->block_count; i++) {
    if (i + AHEAD < snapshot->block_count) __builtin_prefetch(snapshot->blocks[i + AHEAD].context, 1);
    ladei_history_context_retain(record_of(snapshot->blocks[i].context));
  }
  for (size_t i = 0; i < snapshot->segment_count; i++)
    ladei_history_context_retain(record_of(snapshot->segments[i].context));
}

/* Copies and writes the snapshot's event, if there is room for all. */
static bool snapshot_fill(lade_device_allocator *allocator, const lade_device_pool_id *only, size_t room,
                          ladei_device_snapshot *snapshot) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  if (blocks_counted(heap) > room || allocator->history.note_count > snapshot->note_room) return false;
  (void)ladei_device_thread_caches_hold(allocator);
  heap_copy(heap, only, snapshot);
  ladei_device_thread_caches_let(allocator);
  if (allocator->history.enabled) contexts_retain(snapshot);
  if (heap->listener != NULL) {
    uint64_t active_bytes = ladei_device_gauges_current(&heap->counters.active_bytes);
    ladei_device_history_event(heap, LADE_DEVICE_SNAPSHOT, 0, active_bytes, NULL, (lade_device_pool_id){0, 0});
  }
  snapshot->events_end = allocator->history.appended;
  return true;
}

/* ---- Taking ------------------------------------------------------------------------------------------------------ */

/* S2: moves the records into `contexts`. */
static void contexts_show(ladei_device_snapshot *snapshot) {
  for (size_t i = 0; i < snapshot->block_count; i++) {
    ladei_history_context *record = record_of(snapshot->blocks[i].context);
    if (record == NULL) continue;
    snapshot->contexts[snapshot->context_count++] = record;
    snapshot->blocks[i].context = record->handle;
  }
  for (size_t i = 0; i < snapshot->segment_count; i++) {
    ladei_history_context *record = record_of(snapshot->segments[i].context);
    if (record == NULL) continue;
    snapshot->contexts[snapshot->context_count++] = record;
    snapshot->segments[i].context = record->handle;
  }
}

static bool snapshot_reserve(ladei_device_snapshot *snapshot, size_t room, size_t notes, bool contexts) {
  *snapshot = (ladei_device_snapshot){.note_room = notes,
                                      .notes = malloc((notes + 1) * sizeof *snapshot->notes),
                                      .segments = malloc((room + 1) * sizeof *snapshot->segments),
                                      .blocks = ladei_history_memory(room + 1, sizeof *snapshot->blocks),
                                      .contexts = malloc(contexts ? (2 * room + 1) * sizeof *snapshot->contexts : 1)};
  if (snapshot->segments != NULL && snapshot->blocks != NULL && snapshot->contexts != NULL && snapshot->notes != NULL)
    return true;
  ladei_device_snapshot_destroy(snapshot);
  return false;
}

lade_status ladei_device_snapshot_take(lade_device_allocator *allocator, const lade_device_pool_id *only,
                                       ladei_device_snapshot *out) {
  lade_status status = ladei_device_check_heap(allocator, "lade_device_snapshot_take");
  if (status != LADE_OK) return status;
  for (;;) {
    bool watched = ladei_device_history_watched(allocator);
    size_t notes;
    size_t room = block_count(allocator, &notes);
    ladei_device_snapshot snapshot;
    if (!snapshot_reserve(&snapshot, room, notes, watched))
      return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_device_snapshot_take: no memory for %zu blocks", room);
    ladei_device_history_lock(allocator);
    bool filled = (watched || !allocator->history.enabled) && snapshot_fill(allocator, only, room, &snapshot);
    ladei_lock_release(&allocator->lock);
    if (filled) {
      contexts_show(&snapshot);
      *out = snapshot;
      return LADE_OK;
    }
    ladei_device_snapshot_destroy(&snapshot);
  }
}

/* ---- The public snapshot ----------------------------------------------------------------------------------------- */

/* What the program gets: the public view, and what it borrows from. */
typedef struct snapshot_view {
  lade_device_snapshot public;
  ladei_device_snapshot heap;
  ladei_device_history_shown history;
} snapshot_view;

/* The snapshot first: its event ends the history that is copied then. */
static lade_status view_fill(lade_device_allocator *allocator, const lade_device_pool_id *only, snapshot_view *view) {
  lade_status status = ladei_device_snapshot_take(allocator, only, &view->heap);
  ladei_history_copy copy;
  if (status == LADE_OK) status = ladei_device_history_read(allocator, view->heap.events_end, &copy);
  if (status == LADE_OK) status = ladei_device_history_show(&copy, &view->history);
  if (status != LADE_OK) return status;
  view->public = (lade_device_snapshot){
      .segments = view->heap.segments,
      .segment_count = view->heap.segment_count,
      .blocks = view->heap.blocks,
      .block_count = view->heap.block_count,
      .stats = view->heap.stats,
      .events = (const lade_device_event *)(const void *)view->history.copy.events,
      .event_count = view->history.copy.count,
      .lost_count = view->history.copy.lost_count,
      .device = allocator->device,
  };
  ladei_device_report_retire_counters(allocator, &view->public.stats);
  return LADE_OK;
}

static lade_status view_make(lade_device_allocator *allocator, const lade_device_pool_id *only, const char *call,
                             lade_device_snapshot **out) {
  snapshot_view *view = calloc(1, sizeof *view);
  if (view == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory", call);
  ladei_device_operation op;
  bool watched = ladei_device_history_watched(allocator);
  if (watched) ladei_device_history_begin(allocator, LADEI_DEVICE_CONTEXT_NOT_WANTED, &op);
  lade_status status = view_fill(allocator, only, view);
  if (watched) ladei_device_history_end(allocator, &op);
  if (status != LADE_OK) {
    lade_device_snapshot_destroy(&view->public);
    return status;
  }
  *out = &view->public;
  return LADE_OK;
}

static lade_status view_take(lade_device_allocator *allocator, const lade_device_pool_id *only, const char *call,
                             lade_device_snapshot **out) {
  lade_status status = ladei_device_check_call(allocator, call);
  if (status == LADE_OK) status = ladei_device_check_heap(allocator, call);
  if (status != LADE_OK) return status;
  if (out == NULL) return ladei_error_null(call, "out");
  int cancellation = ladei_cancellation_hold();
  status = view_make(allocator, only, call, out);
  ladei_cancellation_resume(cancellation);
  return status;
}

lade_status lade_device_snapshot_take(lade_device_allocator *allocator, lade_device_snapshot **out) {
  return view_take(allocator, NULL, __func__, out);
}

/* The pool's events alone. */
static void view_narrow(snapshot_view *view, lade_device_pool_id id) {
  lade_device_event *events = (lade_device_event *)(void *)view->history.copy.events;
  size_t kept = 0;
  for (size_t i = 0; i < view->public.event_count; i++)
    if (ids_equal(events[i].pool, id)) events[kept++] = events[i];
  view->public.event_count = kept;
}

lade_status lade_device_pool_snapshot_take(lade_device_allocator *allocator, lade_device_pool_id id,
                                           lade_device_snapshot **out) {
  lade_device_pool_info info = {.struct_size = sizeof info};
  lade_status status = lade_device_pool_info_get(allocator, id, &info); /* whether there is one */
  if (status == LADE_OK) status = view_take(allocator, &id, __func__, out);
  if (status == LADE_OK) view_narrow((snapshot_view *)(void *)*out, id);
  return status;
}

void lade_device_snapshot_destroy(lade_device_snapshot *snapshot) {
  if (snapshot == NULL) return;
  snapshot_view *view = (snapshot_view *)(void *)snapshot;
  ladei_device_snapshot_destroy(&view->heap);
  ladei_device_history_shown_destroy(&view->history);
  free(view);
}
