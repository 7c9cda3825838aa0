/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of an allocator's segments and blocks.
 *
 * S1  The arrays have room for as many entries as there are blocks: each run has a block, and each block one entry.
 * S2  `context` of an entry is the record, counted; in the public snapshot what the program captured, and the records
 *     are in `contexts`.
 * S3  Segments and counters are of one moment and go by one definition: what is on its way back to the driver is shown,
 *     as a cached block, and counted, until the driver has it. A block that a thread is freeing is handed out until
 *     counters have its free; no thread cache that a visitor reached has a block meanwhile.
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
  for (size_t i = 0; i < snapshot->block_count; i++)
    ladei_history_context_release(ladei_device_snapshot_context(snapshot->blocks[i].context));
  for (size_t i = 0; i < snapshot->segment_count; i++)
    ladei_history_context_release(ladei_device_snapshot_context(snapshot->segments[i].context));
  for (size_t i = 0; i < snapshot->note_count; i++) ladei_history_context_release(snapshot->notes[i].note);
  free(snapshot->notes);
  free(snapshot->segments);
  free(snapshot->blocks);
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
  case LADEI_DEVICE_HEAP_ALLOCATED:
  case LADEI_DEVICE_HEAP_THREAD: return LADE_DEVICE_BLOCK_ALLOCATED; /* S3 */
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

/* Counts the records in the snapshot, which are spread over memory: it asks for each some time ahead. */
static void contexts_retain(const ladei_device_snapshot *snapshot) {
  enum { AHEAD = 16 };
  for (size_t i = 0; i < snapshot->block_count; i++) {
    if (i + AHEAD < snapshot->block_count) __builtin_prefetch(snapshot->blocks[i + AHEAD].context, 1);
    ladei_history_context_retain(ladei_device_snapshot_context(snapshot->blocks[i].context));
  }
  for (size_t i = 0; i < snapshot->segment_count; i++)
    ladei_history_context_retain(ladei_device_snapshot_context(snapshot->segments[i].context));
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
    uint64_t active_bytes = ladei_device_gauges_current(&heap->counters, LADEI_DEVICE_ACTIVE_BYTES);
    ladei_device_history_event(heap, LADE_DEVICE_SNAPSHOT, 0, active_bytes, NULL, (lade_device_pool_id){0, 0});
  }
  snapshot->ticks = heap->listener == NULL ? 0 : ladei_device_history_ticks(&allocator->history);
  snapshot->events_end = allocator->history.appended;
  return true;
}

/* ---- Taking ------------------------------------------------------------------------------------------------------ */

static bool snapshot_reserve(ladei_device_snapshot *snapshot, size_t room, size_t notes) {
  *snapshot = (ladei_device_snapshot){.note_room = notes,
                                      .notes = malloc((notes + 1) * sizeof *snapshot->notes),
                                      .segments = malloc((room + 1) * sizeof *snapshot->segments),
                                      .blocks = ladei_history_memory(room + 1, sizeof *snapshot->blocks)};
  if (snapshot->segments != NULL && snapshot->blocks != NULL && snapshot->notes != NULL) return true;
  ladei_device_snapshot_destroy(snapshot);
  return false;
}

lade_status ladei_device_snapshot_take(lade_device_allocator *allocator, const lade_device_pool_id *only,
                                       ladei_device_snapshot *out) {
  LADEI_TRY(ladei_device_check_heap(allocator, "lade_device_snapshot_take"));
  for (;;) {
    size_t notes;
    size_t room = block_count(allocator, &notes);
    ladei_device_snapshot snapshot;
    if (!snapshot_reserve(&snapshot, room, notes))
      return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_device_snapshot_take: no memory for %zu blocks", room);
    ladei_device_history_lock(allocator);
    bool filled = snapshot_fill(allocator, only, room, &snapshot);
    ladei_lock_release(&allocator->lock);
    if (filled) {
      *out = snapshot;
      return LADE_OK;
    }
    ladei_device_snapshot_destroy(&snapshot);
  }
}

void ladei_device_moment_destroy(ladei_device_moment *moment) {
  ladei_device_snapshot_destroy(&moment->memory);
  ladei_history_copy_destroy(&moment->history);
}

/* The snapshot first: its event ends the history that is copied then. */
static lade_status moment_fill(lade_device_allocator *allocator, const lade_device_pool_id *only, bool events,
                               ladei_device_moment *out) {
  ladei_device_moment moment = {.history = {.events = NULL}};
  lade_status status = ladei_device_snapshot_take(allocator, only, &moment.memory);
  uint64_t end = events ? moment.memory.events_end : 0;
  if (status == LADE_OK) status = ladei_device_history_read(allocator, end, &moment.history);
  if (status != LADE_OK) {
    ladei_device_moment_destroy(&moment);
    return status;
  }
  ladei_device_report_retire_counters(allocator, &moment.memory.stats);
  *out = moment;
  return LADE_OK;
}

lade_status ladei_device_moment_take(lade_device_allocator *allocator, const lade_device_pool_id *only, bool events,
                                     ladei_device_moment *out) {
  ladei_device_operation op;
  bool watched = ladei_device_history_watched(allocator);
  if (watched) ladei_device_history_begin(allocator, LADEI_DEVICE_CONTEXT_NOT_WANTED, &op);
  lade_status status = moment_fill(allocator, only, events, out);
  if (watched) ladei_device_history_end(allocator, &op);
  return status;
}

/* ---- The public snapshot ----------------------------------------------------------------------------------------- */

/* The program gets the public view, which borrows from the rest. */
typedef struct snapshot_view {
  lade_device_snapshot public;
  ladei_device_snapshot memory;
  ladei_history_context **contexts; /* S2; NULL: not shown yet */
  size_t context_count;
  ladei_device_history_shown history;
} snapshot_view;

/* S2: moves the record of an entry. */
static void context_show(snapshot_view *view, const void **context) {
  ladei_history_context *record = ladei_device_snapshot_context(*context);
  if (record == NULL) return;
  view->contexts[view->context_count++] = record;
  *context = record->handle;
}

static lade_status contexts_show(snapshot_view *view, const char *call) {
  const ladei_device_snapshot *memory = &view->memory;
  size_t count = memory->block_count + memory->segment_count;
  view->contexts = malloc((count + 1) * sizeof *view->contexts);
  if (view->contexts == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu contexts", call, count);
  for (size_t i = 0; i < memory->block_count; i++) context_show(view, &memory->blocks[i].context);
  for (size_t i = 0; i < memory->segment_count; i++) context_show(view, &memory->segments[i].context);
  return LADE_OK;
}

static void contexts_hide(snapshot_view *view) {
  if (view->contexts == NULL) return;
  for (size_t i = 0; i < view->context_count; i++) ladei_history_context_release(view->contexts[i]);
  for (size_t i = 0; i < view->memory.block_count; i++) view->memory.blocks[i].context = NULL;
  for (size_t i = 0; i < view->memory.segment_count; i++) view->memory.segments[i].context = NULL;
  free(view->contexts);
}

static lade_status view_fill(lade_device_allocator *allocator, const lade_device_pool_id *only, const char *call,
                             snapshot_view *view) {
  ladei_device_moment moment;
  LADEI_TRY(ladei_device_moment_take(allocator, only, true, &moment));
  view->memory = moment.memory;
  lade_status status = ladei_device_history_show(&moment.history, &view->history);
  if (status == LADE_OK) status = contexts_show(view, call);
  view->public = (lade_device_snapshot){
      .segments = view->memory.segments,
      .segment_count = view->memory.segment_count,
      .blocks = view->memory.blocks,
      .block_count = view->memory.block_count,
      .stats = view->memory.stats,
      .events = (const lade_device_event *)(const void *)view->history.copy.events,
      .event_count = view->history.copy.count,
      .lost_count = view->history.copy.lost_count,
      .device = allocator->device,
  };
  return status;
}

static lade_status view_make(lade_device_allocator *allocator, const lade_device_pool_id *only, const char *call,
                             lade_device_snapshot **out) {
  snapshot_view *view = calloc(1, sizeof *view);
  if (view == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory", call);
  lade_status status = view_fill(allocator, only, call, view);
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
  return LADEI_UNCANCELLED(view_make(allocator, only, call, out));
}

/* The pool's events alone. */
static void view_narrow(snapshot_view *view, lade_device_pool_id id) {
  lade_device_event *events = (lade_device_event *)(void *)view->history.copy.events;
  size_t kept = 0;
  for (size_t i = 0; i < view->public.event_count; i++)
    if (ids_equal(events[i].pool, id)) events[kept++] = events[i];
  view->public.event_count = kept;
}

lade_status lade_device_snapshot_take(lade_device_allocator *allocator, const lade_device_pool_id *pool,
                                      lade_device_snapshot **out) {
  lade_device_pool_info info = {.struct_size = sizeof info};
  if (pool != NULL) LADEI_TRY(lade_device_pool_info_get(allocator, *pool, &info)); /* whether there is one */
  lade_status status = view_take(allocator, pool, __func__, out);
  if (status == LADE_OK && pool != NULL) view_narrow((snapshot_view *)(void *)*out, *pool);
  return status;
}

void lade_device_snapshot_destroy(lade_device_snapshot *snapshot) {
  if (snapshot == NULL) return;
  snapshot_view *view = (snapshot_view *)(void *)snapshot;
  contexts_hide(view);
  ladei_device_snapshot_destroy(&view->memory);
  ladei_device_history_shown_destroy(&view->history);
  free(view);
}
