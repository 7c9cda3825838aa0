/* SPDX-License-Identifier: Apache-2.0 */
/* Device allocators as parts. */
#include <stdio.h>

#include "base/error.h"
#include "device/api/snapshot.h"
#include "device/state/checks.h"
#include "inspect/contexts.h"
#include "inspect/events.h"
#include "inspect/part.h"
#include "inspect/parts/clock.h"

/* One copy of an allocator on its way into a snapshot. */
typedef struct device_copy {
  const ladei_inspect_wanted *wanted;
  ladei_device_moment from;
  lade_snapshot *to;
  size_t next_note; /* of from.memory.notes */
} device_copy;

static int device_of(const void *object) { return ((const lade_device_allocator *)object)->device; }

static lade_runtime *runtime_of(const void *object) { return ((const lade_device_allocator *)object)->runtime; }

static lade_status device_counters(void *object, lade_stat_visit visit, void *user) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  LADEI_TRY(lade_device_stats_get(object, &stats));
  return lade_device_stats_each(&stats, visit, user);
}

static bool pool_is_wanted(const device_copy *copy, lade_device_pool_id pool) {
  const lade_snapshot_options *options = &copy->wanted->options;
  if ((options->flags & LADE_SNAPSHOT_ONE_POOL) == 0) return true;
  return pool.first == options->pool.first && pool.second == options->pool.second;
}

static lade_status stack_of(const device_copy *copy, const void *context, uint32_t *out) {
  return ladei_inspect_context_stack(copy->wanted->contexts, copy->to, ladei_device_snapshot_context(context), out);
}

/* Notes lie in the order of blocks. */
static lade_status note_of(device_copy *copy, uint64_t address, uint32_t *out) {
  const ladei_device_snapshot *memory = &copy->from.memory;
  *out = 0;
  while (copy->next_note < memory->note_count && memory->notes[copy->next_note].address < address) copy->next_note++;
  if (copy->next_note == memory->note_count || memory->notes[copy->next_note].address != address) return LADE_OK;
  return ladei_inspect_text(copy->to, memory->notes[copy->next_note].note->label, out);
}

static lade_status block_copy(device_copy *copy, const ladei_device_snapshot_block *from) {
  uint32_t stack, note;
  LADEI_TRY(stack_of(copy, from->context, &stack));
  LADEI_TRY(note_of(copy, from->address, &note));
  ladei_snapshot_block *to = LADEI_INSPECT_ADD(&copy->to->blocks);
  if (to == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *to = (ladei_snapshot_block){.address = from->address,
                               .bytes = from->bytes,
                               .requested_bytes = from->requested_bytes,
                               .state = from->state,
                               .stack = stack,
                               .note = note};
  return LADE_OK;
}

static lade_status segment_copy(device_copy *copy, const ladei_device_snapshot_segment *from) {
  uint32_t stack;
  LADEI_TRY(stack_of(copy, from->context, &stack));
  ladei_snapshot_segment *to = LADEI_INSPECT_ADD(&copy->to->segments);
  if (to == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *to = (ladei_snapshot_segment){.address = from->address,
                                 .total_bytes = from->total_bytes,
                                 .stream = (uint64_t)(uintptr_t)from->stream,
                                 .pool = from->pool,
                                 .first_block = copy->to->blocks.count,
                                 .block_count = from->block_count,
                                 .stack = stack,
                                 .numa_node = -1};
  if (from->is_large) to->flags |= LADEI_SNAPSHOT_SEGMENT_LARGE;
  if (from->is_expandable) to->flags |= LADEI_SNAPSHOT_SEGMENT_EXPANDABLE;
  for (size_t i = 0; i < from->block_count; i++)
    LADEI_TRY(block_copy(copy, &copy->from.memory.blocks[from->first_block + i]));
  return LADE_OK;
}

static lade_status memory_copy(device_copy *copy) {
  const ladei_device_snapshot *from = &copy->from.memory;
  LADEI_TRY(LADEI_INSPECT_RESERVE(&copy->to->segments, from->segment_count));
  LADEI_TRY(LADEI_INSPECT_RESERVE(&copy->to->blocks, from->block_count));
  for (size_t i = 0; i < from->segment_count; i++)
    if (pool_is_wanted(copy, from->segments[i].pool)) LADEI_TRY(segment_copy(copy, &from->segments[i]));
  return LADE_OK;
}

/* The history up to the snapshot's own event, which has its moment. */
static lade_status events_copy(device_copy *copy, bool simulated) {
  ladei_history_copy *history = &copy->from.history;
  const lade_snapshot_options *options = &copy->wanted->options;
  ladei_snapshot_part *part = ladei_inspect_part(copy->to);
  if (history->capacity == 0) return LADE_OK; /* it is off */
  part->max_entries = history->capacity;
  part->lost_count = history->lost_count;
  if (copy->from.memory.ticks != 0)
    part->time_ns = ladei_inspect_events_time_ns(history, simulated, copy->from.memory.ticks);
  if ((options->flags & LADE_SNAPSHOT_NO_EVENTS) != 0) return LADE_OK;
  const lade_device_pool_id *pool = (options->flags & LADE_SNAPSHOT_ONE_POOL) != 0 ? &options->pool : NULL;
  return ladei_inspect_events_add(copy->to, copy->wanted->contexts, history, simulated, pool);
}

/* Counters alone, also of a backend without segments of lade's. */
static lade_status counters_copy(lade_device_allocator *allocator, lade_snapshot *snapshot) {
  return device_counters(allocator, ladei_inspect_counter_visit, snapshot);
}

static lade_status device_copy_memory(lade_device_allocator *allocator, const ladei_inspect_wanted *wanted,
                                      lade_snapshot *snapshot) {
  device_copy copy = {.wanted = wanted, .to = snapshot};
  LADEI_TRY(ladei_device_check_call(allocator, "lade_snapshot_take"));
  bool events = (wanted->options.flags & LADE_SNAPSHOT_NO_EVENTS) == 0;
  LADEI_TRY(ladei_device_moment_take(allocator, NULL, events, &copy.from));
  lade_status status = memory_copy(&copy);
  if (status == LADE_OK) status = events_copy(&copy, ladei_inspect_is_simulated(allocator->runtime));
  if (status == LADE_OK)
    status = lade_device_stats_each(&copy.from.memory.stats, ladei_inspect_counter_visit, snapshot);
  ladei_device_moment_destroy(&copy.from);
  return status;
}

static lade_status roundup_copy(const lade_device_options *settings, lade_snapshot *snapshot) {
  for (unsigned i = 0; i < sizeof settings->roundup_divisions / sizeof *settings->roundup_divisions; i++) {
    char key[64];
    snprintf(key, sizeof key, "roundup_power2_divisions.%llu", 1ULL << i);
    LADEI_TRY(ladei_inspect_integer(snapshot, key, (int64_t)settings->roundup_divisions[i]));
  }
  return LADE_OK;
}

/* Under PyTorch's names; -1: no limit. */
static lade_status settings_copy(lade_device_allocator *allocator, lade_snapshot *snapshot) {
  const ladei_snapshot_part *part = ladei_inspect_part(snapshot);
  lade_device_options settings;
  lade_device_options_init(&settings);
  LADEI_TRY(lade_device_settings_get(allocator, &settings));
  int64_t max_split = settings.max_split_bytes == 0 ? -1 : (int64_t)settings.max_split_bytes;
  LADEI_TRY(ladei_inspect_integer(snapshot, "max_split_size", max_split));
  LADEI_TRY(ladei_inspect_real(snapshot, "garbage_collection_threshold", settings.collection_threshold));
  LADEI_TRY(ladei_inspect_bool(snapshot, "expandable_segments", settings.expandable_segments != 0));
  LADEI_TRY(roundup_copy(&settings, snapshot));
  LADEI_TRY(ladei_inspect_integer(snapshot, "trace_alloc_max_entries", (int64_t)part->max_entries));
  return ladei_inspect_bool(snapshot, "trace_alloc_overflowed", part->lost_count > 0);
}

static lade_status device_copy_part(void *object, const ladei_inspect_wanted *wanted, lade_snapshot *snapshot) {
  lade_device_allocator *allocator = object;
  ladei_snapshot_part *part = ladei_inspect_part(snapshot);
  part->capacity_bytes = allocator->total_bytes;
  part->time_ns = ladei_inspect_now_ns(allocator->runtime);
  bool counters_alone = (wanted->options.flags & LADE_SNAPSHOT_NO_BLOCKS) != 0;
  lade_status status = counters_alone ? LADE_ERR_UNSUPPORTED : device_copy_memory(allocator, wanted, snapshot);
  if (status == LADE_ERR_UNSUPPORTED) status = counters_copy(allocator, snapshot);
  return status == LADE_OK ? settings_copy(allocator, snapshot) : status;
}

static lade_status device_history_set(void *object, const lade_history_options *options) {
  return lade_device_history_set(object, options);
}

static const lade_history_options *device_history_options(const void *object) {
  const lade_device_allocator *allocator = object;
  const ladei_device_history_settings *settings =
      atomic_load_explicit(&allocator->history.settings, memory_order_acquire);
  return settings == NULL ? NULL : &settings->options;
}

const ladei_inspect_part_ops ladei_inspect_part_device = {.device = device_of,
                                                          .runtime = runtime_of,
                                                          .copy = device_copy_part,
                                                          .counters = device_counters,
                                                          .history_set = device_history_set,
                                                          .history_options = device_history_options};
