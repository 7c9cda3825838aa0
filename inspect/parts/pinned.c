/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned pools as parts. */
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "host/api/history_api.h"
#include "host/api/snapshot.h"
#include "host/state/pool_state.h"
#include "inspect/contexts.h"
#include "inspect/events.h"
#include "inspect/part.h"
#include "inspect/parts/clock.h"

static int device_of(const void *object) {
  (void)object;
  return -1;
}

static lade_runtime *runtime_of(const void *object) { return ((const lade_pinned_pool *)object)->runtime; }

static lade_status pinned_counters(void *object, lade_stat_visit visit, void *user) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADEI_TRY(lade_pinned_stats_get(object, &stats));
  return lade_pinned_stats_each(&stats, visit, user);
}

/* Blocks of one segment: views [first, first + count). */
typedef struct segment_run {
  uintptr_t address;
  size_t bytes;
  const ladei_pinned_block_view *views;
  size_t count;
  int numa_node;
} segment_run;

typedef struct segment_runs {
  segment_run *runs;
  size_t count, room;
  ladei_pinned_block_view **views; /* of each node; freed at the end */
  size_t node_count;
} segment_runs;

static void runs_free(segment_runs *list) {
  for (size_t i = 0; i < list->node_count; i++) free(list->views[i]);
  free(list->views);
  free(list->runs);
}

static lade_status segment_run_add(segment_runs *list, const ladei_pinned_block_view *view, int numa_node) {
  if (!LADEI_ARRAY_ROOM(list->runs, list->room, list->count + 1))
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory for %zu segments", list->count + 1);
  list->runs[list->count++] = (segment_run){view->segment_address, view->segment_bytes, view, 0, numa_node};
  return LADE_OK;
}

static lade_status node_add(segment_runs *list, ladei_pinned_node *node) {
  size_t count;
  LADEI_TRY(ladei_pinned_snapshot_node(node, &list->views[list->node_count], &count));
  const ladei_pinned_block_view *views = list->views[list->node_count++];
  for (size_t i = 0; i < count; i++) {
    if (i == 0 || views[i].segment_address != views[i - 1].segment_address)
      LADEI_TRY(segment_run_add(list, &views[i], node->os_index));
    list->runs[list->count - 1].count++;
  }
  return LADE_OK;
}

static int segment_run_compare(const void *a, const void *b) {
  uintptr_t x = ((const segment_run *)a)->address, y = ((const segment_run *)b)->address;
  return (x > y) - (x < y);
}

static lade_status runs_take(lade_pinned_pool *pool, segment_runs *list) {
  uint32_t nodes = ladei_pinned_pool_node_count(pool);
  list->views = calloc(nodes + 1, sizeof *list->views);
  if (list->views == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory for %u nodes", nodes);
  for (uint32_t i = 0; i < nodes; i++) LADEI_TRY(node_add(list, ladei_pinned_pool_node(pool, i)));
  if (list->count > 0) qsort(list->runs, list->count, sizeof *list->runs, segment_run_compare);
  return LADE_OK;
}

static lade_device_block_state state_of(ladei_pinned_block_state state) {
  switch (ladei_pinned_public_state(state)) {
  case LADE_PINNED_IN_USE: return LADE_DEVICE_BLOCK_ALLOCATED;
  case LADE_PINNED_PENDING: return LADE_DEVICE_BLOCK_PENDING_FREE;
  default: return LADE_DEVICE_BLOCK_INACTIVE;
  }
}

static lade_status block_add(lade_snapshot *snapshot, uint64_t address, uint64_t bytes, uint64_t requested_bytes,
                             lade_device_block_state state) {
  ladei_snapshot_block *block = LADEI_INSPECT_ADD(&snapshot->blocks);
  if (block == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *block = (ladei_snapshot_block){.address = address,
                                  .bytes = bytes,
                                  .requested_bytes = requested_bytes,
                                  .state = state,
                                  .stack = LADEI_SNAPSHOT_NONE};
  return LADE_OK;
}

/* Blocks below a page leave the end of their pages unused: that shows as inactive. */
static lade_status segment_add(lade_snapshot *snapshot, const segment_run *run) {
  ladei_snapshot_segment *segment = LADEI_INSPECT_ADD(&snapshot->segments);
  if (segment == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  size_t row = snapshot->segments.count - 1;
  *segment = (ladei_snapshot_segment){.address = run->address,
                                      .total_bytes = run->bytes,
                                      .first_block = snapshot->blocks.count,
                                      .stack = LADEI_SNAPSHOT_NONE,
                                      .flags = LADEI_SNAPSHOT_SEGMENT_LARGE,
                                      .numa_node = run->numa_node};
  uint64_t at = run->address, end = run->address + run->bytes;
  for (size_t i = 0; i < run->count; i++) {
    const ladei_pinned_block_view *view = &run->views[i];
    if (view->address > at) LADEI_TRY(block_add(snapshot, at, view->address - at, 0, LADE_DEVICE_BLOCK_INACTIVE));
    lade_device_block_state state = state_of(view->state);
    LADEI_TRY(block_add(snapshot, view->address, view->bytes, view->requested_bytes, state));
    at = view->address + view->bytes;
  }
  if (at < end) LADEI_TRY(block_add(snapshot, at, end - at, 0, LADE_DEVICE_BLOCK_INACTIVE));
  snapshot->segments.rows[row].block_count = snapshot->blocks.count - snapshot->segments.rows[row].first_block;
  return LADE_OK;
}

static lade_status memory_copy(lade_pinned_pool *pool, lade_snapshot *snapshot) {
  segment_runs list = {.count = 0};
  lade_status status = runs_take(pool, &list);
  for (size_t i = 0; status == LADE_OK && i < list.count; i++) status = segment_add(snapshot, &list.runs[i]);
  runs_free(&list);
  return status;
}

static lade_status live_copy(const ladei_pinned_history_live *live, const ladei_inspect_wanted *wanted,
                             lade_snapshot *snapshot, ladei_snapshot_block *block) {
  LADEI_TRY(ladei_inspect_context_stack(wanted->contexts, snapshot, live->context, &block->stack));
  if (live->note != NULL) LADEI_TRY(ladei_inspect_text(snapshot, live->note->label, &block->note));
  if (block->state == LADE_DEVICE_BLOCK_PENDING_FREE)
    block->requested_bytes = live->bytes; /* its record does not know */
  return LADE_OK;
}

/* Both are in the order of addresses. A life without a block, or with an inactive one, came or went meanwhile. */
static lade_status lives_copy(const ladei_pinned_history_lives *lives, const ladei_inspect_wanted *wanted,
                              lade_snapshot *snapshot) {
  ladei_snapshot_block *block = snapshot->blocks.rows + ladei_inspect_part(snapshot)->first_block;
  const ladei_snapshot_block *end = snapshot->blocks.rows + snapshot->blocks.count;
  for (size_t i = 0; i < lives->count; i++) {
    while (block < end && block->address < lives->list[i].address) block++;
    if (block == end) break;
    if (block->address == lives->list[i].address && block->state != LADE_DEVICE_BLOCK_INACTIVE)
      LADEI_TRY(live_copy(&lives->list[i], wanted, snapshot, block));
  }
  return LADE_OK;
}

static uint64_t active_bytes(lade_snapshot *snapshot) {
  uint64_t bytes = 0;
  for (size_t i = ladei_inspect_part(snapshot)->first_block; i < snapshot->blocks.count; i++)
    if (snapshot->blocks.rows[i].state != LADE_DEVICE_BLOCK_INACTIVE) bytes += snapshot->blocks.rows[i].bytes;
  return bytes;
}

static lade_status events_copy(lade_pinned_pool *pool, ladei_history_copy *history, const ladei_inspect_wanted *wanted,
                               lade_snapshot *snapshot) {
  if (history->capacity == 0) return LADE_OK; /* it was turned off meanwhile */
  return ladei_inspect_events_add(snapshot, wanted->contexts, history, ladei_inspect_is_simulated(pool->runtime), NULL);
}

/*
 * Segments of the pool are shown as they are now; changes while they are copied are among the events. The contexts of
 * blocks are held until those of the events are named: C2 in inspect/contexts.h.
 */
static lade_status history_copy(lade_pinned_pool *pool, const ladei_inspect_wanted *wanted, lade_snapshot *snapshot) {
  ladei_pinned_history_lives lives;
  ladei_history_copy history = {.events = NULL};
  bool events = (wanted->options.flags & LADE_SNAPSHOT_NO_EVENTS) == 0;
  LADEI_TRY(ladei_pinned_lives_read(pool, &lives));
  lade_status status = lives_copy(&lives, wanted, snapshot);
  if (status == LADE_OK && events) {
    ladei_pinned_snapshot_record(pool, active_bytes(snapshot));
    status = ladei_pinned_history_read(pool, &history);
    if (status == LADE_OK) status = events_copy(pool, &history, wanted, snapshot);
    ladei_history_copy_destroy(&history);
  }
  ladei_pinned_history_lives_destroy(&lives);
  return status;
}

static lade_status pinned_copy_part(void *object, const ladei_inspect_wanted *wanted, lade_snapshot *snapshot) {
  lade_pinned_pool *pool = object;
  ladei_snapshot_part *part = ladei_inspect_part(snapshot);
  part->time_ns = ladei_inspect_now_ns(pool->runtime);
  LADEI_TRY(pinned_counters(pool, ladei_inspect_counter_visit, snapshot));
  if ((wanted->options.flags & (LADE_SNAPSHOT_NO_BLOCKS | LADE_SNAPSHOT_ONE_POOL)) != 0) return LADE_OK;
  LADEI_TRY(memory_copy(pool, snapshot));
  return ladei_pinned_pool_recording(pool) == NULL ? LADE_OK : history_copy(pool, wanted, snapshot);
}

static lade_status pinned_history_set(void *object, const lade_history_options *options) {
  return lade_pinned_history_set(object, options);
}

static const lade_history_options *pinned_history_options(const void *object) {
  return ladei_pinned_history_options(ladei_pinned_pool_recording(object));
}

const ladei_inspect_part_ops ladei_inspect_part_pinned = {.device = device_of,
                                                          .runtime = runtime_of,
                                                          .copy = pinned_copy_part,
                                                          .counters = pinned_counters,
                                                          .history_set = pinned_history_set,
                                                          .history_options = pinned_history_options};
