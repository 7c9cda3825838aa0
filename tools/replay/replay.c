/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay of a trace: IDs, and one function per operation.
 *
 *   ID --ids--> address of its block                   (device)
 *   ID --host_ids--> pointer of its block              (pinned)
 *
 * P1  Addresses in ids differ, except null blocks (NULL_BLOCK) and failed allocations (FAILED), which have none. The
 *     way back, from address to ID, is rare and is made when it is needed (owners_collect).
 * P2  The allocators exist from the first operation on, with the settings declared before it.
 */
#include "tools/replay/replay.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "base/size.h"
#include "config/config.h"
#include "device/api/device.h"
#include "device/api/snapshot.h"
#include "lade/pinned.h"
#include "tools/replay/ahead.h"
#include "tools/replay/number_map.h"
#include "tools/replay/replay_device.h"

/* Values in ids that are no address: blocks are aligned to 512 bytes. */
enum { NULL_BLOCK = 0, FAILED = 1 };

#define DEFAULT_CAPACITY UINT64_C(85899345920)

typedef struct stored_state {
  struct stored_state *next;
  uint64_t pool;
  uint64_t key;
  lade_device_checkpoint *checkpoint;
  number_map owners; /* address -> ID of the blocks that were handed out */
} stored_state;

struct replay {
  replay_settings settings;
  lade_config config; /* of the two */
  lade_device_options device_options;
  lade_pinned_options pinned_options;
  uint64_t capacity;
  replay_device *device; /* NULL before the first operation */
  lade_device_allocator *allocator;
  lade_pinned_pool *pinned; /* NULL before the first pinned operation */
  number_map ids;
  number_map host_ids;
  stored_state *states;
  uint64_t *oom; /* since the last snapshot */
  size_t oom_count;
  size_t oom_room;
};

replay *replay_create(const replay_settings *settings) {
  replay *r = calloc(1, sizeof *r);
  if (r == NULL) return NULL;
  r->settings = *settings;
  r->capacity = DEFAULT_CAPACITY;
  lade_device_options_init(&r->device_options);
  lade_pinned_options_init(&r->pinned_options);
  lade_config_init(&r->config);
  r->config.device = &r->device_options;
  r->config.pinned = &r->pinned_options;
  r->device_options.flags = LADE_DEVICE_REFERENCE; /* settings.conf may say otherwise */
  return r;
}

static read_result no_memory(trace_reader *reader, const trace_op *op) {
  return READER_FAIL_AT(trace_frame(reader), op->line, "%s: no memory", trace_kind_name(op->kind));
}

/* A refusal for another reason than memory, by the allocator or by the replay's own records. */
static read_result refused(trace_reader *reader, const trace_op *op) {
  bool host_memory = lade_last_error()->status == LADE_ERR_OUT_OF_HOST_MEMORY;
  return reader_frame_end(trace_frame(reader), host_memory ? READ_FAILED : READ_BAD, op->line, "%s: %s",
                          trace_kind_name(op->kind), lade_last_error()->text);
}

static lade_stream stream_at(replay *r, const trace_op *op, size_t index) {
  return replay_device_stream(r->device, op->number[index]);
}

/* ---- Start and end ----------------------------------------------------------------------------------------------- */

/* Those over the trace's, which cannot ask for anything but the native backend and its cache; these could. */
static lade_status conf_merge(const char *conf, lade_config *config) {
  LADEI_TRY(lade_config_parse(conf, config));
  const lade_device_options *options = config->device;
  if (options->backend == LADE_DEVICE_NATIVE && (options->flags & LADE_DEVICE_UNCACHED) == 0) return LADE_OK;
  return ladei_error(LADE_ERR_CONFIG, 0, "configuration: a replay needs the native backend and its cache");
}

lade_status replay_conf_check(const char *conf) {
  lade_device_options options;
  lade_device_options_init(&options);
  lade_config config;
  lade_config_init(&config);
  config.device = &options;
  return conf_merge(conf, &config);
}

static read_result conf_read(replay *r, trace_reader *reader, const trace_op *op) {
  bool later = trace_version(reader) >= 2;
  return ladei_config_parse_reference(op->text, later, &r->config) == LADE_OK ? READ_ITEM : refused(reader, op);
}

static lade_status allocator_create(replay *r) {
  lade_device_options options = r->device_options;
  if (options.event_batch == 0) options.event_batch = 1;
  return ladei_device_allocator_create(replay_device_runtime(r->device), 0, &options, true, &r->allocator);
}

static read_result start(replay *r, trace_reader *reader, const trace_op *op) {
  lade_status status = LADE_OK;
  if (trace_version(reader) < 2) r->device_options.flags |= LADE_DEVICE_OLDER_REFERENCE;
  if (r->settings.conf != NULL) status = conf_merge(r->settings.conf, &r->config);
  if (status == LADE_OK) status = replay_device_open(r->capacity, &r->device);
  if (status == LADE_OK) status = allocator_create(r);
  return status == LADE_OK ? READ_ITEM : refused(reader, op);
}

static lade_status pinned_start(replay *r) {
  if (r->pinned != NULL) return LADE_OK;
  lade_pinned_options options = r->pinned_options;
  options.sources = LADE_PINNED_SOURCE_DRIVER; /* addresses only: nothing can be mapped or registered */
  if (options.max_bytes == 0) options.max_bytes = UINT64_MAX;
  if (options.event_batch == 0) options.event_batch = 1;
  return lade_pinned_pool_create(replay_device_runtime(r->device), &options, &r->pinned);
}

static void state_destroy(stored_state *state) {
  lade_device_checkpoint_destroy(state->checkpoint);
  number_map_destroy(&state->owners);
  free(state);
}

/* Frees all device blocks, in no order. */
static void blocks_free(replay *r) {
  size_t place = 0;
  number_map_entry entry;
  while (number_map_next(&r->ids, &place, &entry))
    if (entry.value > FAILED) (void)lade_device_free(r->allocator, (void *)(uintptr_t)entry.value);
}

/* Frees the blocks that the trace left, so that the runtime closes. */
static void allocators_destroy(replay *r) {
  while (r->allocator != NULL && r->allocator->routes.first != NULL)
    (void)lade_device_pool_end(r->allocator, r->allocator->routes.first->pool->id);
  blocks_free(r);
  size_t place = 0;
  number_map_entry entry;
  while (number_map_next(&r->host_ids, &place, &entry))
    (void)lade_pinned_free(r->pinned, (void *)(uintptr_t)entry.value);
  (void)lade_pinned_pool_destroy(r->pinned, true);
  (void)lade_device_allocator_destroy(r->allocator, true);
  (void)replay_device_close(r->device);
}

void replay_destroy(replay *r) {
  if (r == NULL) return;
  while (r->states != NULL) {
    stored_state *state = r->states;
    r->states = state->next;
    state_destroy(state);
  }
  if (r->device != NULL) allocators_destroy(r);
  number_map_destroy(&r->ids);
  number_map_destroy(&r->host_ids);
  free(r->oom);
  free(r);
}

/* ---- Device blocks ----------------------------------------------------------------------------------------------- */

static bool oom_add(replay *r, uint64_t id) {
  if (!LADEI_ARRAY_ROOM(r->oom, r->oom_room, r->oom_count + 1)) return false;
  r->oom[r->oom_count++] = id;
  return true;
}

static read_result do_alloc(replay *r, trace_reader *reader, const trace_op *op) {
  uint64_t id = op->number[0];
  uint64_t *value = number_map_need(&r->ids, id, FAILED);
  if (value == NULL) return no_memory(reader, op);
  if (*value != FAILED)
    return READER_REFUSE_AT(trace_frame(reader), op->line, "alloc: ID %llu is live", (unsigned long long)id);
  lade_stream stream = stream_at(r, op, 2);
  if (stream == NULL) return no_memory(reader, op);
  void *block = NULL;
  lade_status status = LADE_ERR_OUT_OF_DEVICE_MEMORY;
  if (op->at != 0) replay_device_place(r->device, op->at);
  if (op->number[1] < LADEI_SIZE_LIMIT) status = lade_device_alloc(r->allocator, op->number[1], stream, &block);
  if (op->at != 0 && !replay_device_placed(r->device)) {
    if (status == LADE_OK) *value = (uint64_t)(uintptr_t)block; /* for the end */
    return READER_REFUSE_AT(trace_frame(reader), op->line, "alloc: driver memory at %llu would end beyond 2^64",
                            (unsigned long long)op->at);
  }
  if (status == LADE_OK) {
    *value = (uint64_t)(uintptr_t)block;
    return READ_ITEM;
  }
  if (!ladei_device_is_exhausted(status)) return refused(reader, op);
  return oom_add(r, id) ? READ_ITEM : no_memory(reader, op);
}

static read_result id_unknown(trace_reader *reader, const trace_op *op) {
  return READER_REFUSE_AT(trace_frame(reader), op->line, "%s: ID %llu is not live", trace_kind_name(op->kind),
                          (unsigned long long)op->number[0]);
}

/* The live ID's address (or NULL_BLOCK, FAILED). */
static read_result id_find(const number_map *ids, trace_reader *reader, const trace_op *op, uint64_t *out) {
  const uint64_t *value = number_map_get(ids, op->number[0]);
  if (value == NULL) return id_unknown(reader, op);
  *out = *value;
  return READ_ITEM;
}

static read_result do_free(replay *r, trace_reader *reader, const trace_op *op) {
  uint64_t address = NULL_BLOCK;
  if (!number_map_take(&r->ids, op->number[0], &address)) return id_unknown(reader, op);
  if (address <= FAILED) return READ_ITEM;
  return lade_device_free(r->allocator, (void *)(uintptr_t)address) == LADE_OK ? READ_ITEM : refused(reader, op);
}

static read_result do_record(replay *r, trace_reader *reader, const trace_op *op) {
  uint64_t address = NULL_BLOCK;
  read_result result = id_find(&r->ids, reader, op, &address);
  if (result != READ_ITEM || address <= FAILED) return result;
  lade_stream stream = stream_at(r, op, 1);
  if (stream == NULL) return no_memory(reader, op);
  lade_status status = lade_device_record_stream(r->allocator, (void *)(uintptr_t)address, stream);
  return status == LADE_OK ? READ_ITEM : refused(reader, op);
}

/* Batches that are still open get their events now, as if they had been recorded at their frees. */
static read_result do_complete(replay *r, trace_reader *reader, const trace_op *op) {
  lade_stream stream = stream_at(r, op, 0);
  if (stream == NULL) return no_memory(reader, op);
  if (ladei_retire_close(r->allocator->retire) != LADE_OK) return refused(reader, op);
  replay_device_complete(stream);
  return READ_ITEM;
}

static read_result do_empty_cache(replay *r, trace_reader *reader, const trace_op *op) {
  return lade_device_empty_cache(r->allocator) == LADE_OK ? READ_ITEM : refused(reader, op);
}

static read_result do_fraction(replay *r, trace_reader *reader, const trace_op *op) {
  return lade_device_set_memory_fraction(r->allocator, op->fraction) == LADE_OK ? READ_ITEM : refused(reader, op);
}

static read_result do_reset(replay *r, trace_reader *reader, const trace_op *op) {
  lade_status status = op->kind == TRACE_RESET_PEAK ? lade_device_stats_reset(r->allocator, LADE_STATS_RESET_PEAKS)
                                                    : lade_device_stats_reset(r->allocator, LADE_STATS_RESET_SUMS);
  return status == LADE_OK ? READ_ITEM : refused(reader, op);
}

/* ---- Private pools ----------------------------------------------------------------------------------------------- */

static lade_device_pool_id pool_id(uint64_t pool) { return (lade_device_pool_id){pool, 0}; }

static read_result do_pool_create(replay *r, trace_reader *reader, const trace_op *op) {
  lade_device_pool_options options;
  lade_device_pool_options_init(&options);
  options.id = pool_id(op->number[0]);
  if ((op->number[1] & TRACE_POOL_NO_SPLIT) != 0) options.flags |= LADE_DEVICE_POOL_NO_SPLIT;
  if ((op->number[1] & TRACE_POOL_USE_ON_OOM) != 0) options.flags |= LADE_DEVICE_POOL_USE_ON_OOM;
  return lade_device_pool_create(r->allocator, &options, &options.id) == LADE_OK ? READ_ITEM : refused(reader, op);
}

static read_result do_pool_begin(replay *r, trace_reader *reader, const trace_op *op) {
  lade_stream *streams = calloc(op->stream_count, sizeof *streams);
  if (streams == NULL) return no_memory(reader, op);
  bool all = true;
  for (size_t i = 0; i < op->stream_count; i++) {
    streams[i] = replay_device_stream(r->device, op->streams[i]);
    all = all && streams[i] != NULL;
  }
  lade_status status = LADE_ERR_OUT_OF_HOST_MEMORY;
  if (all) status = lade_device_pool_begin(r->allocator, pool_id(op->number[0]), streams, op->stream_count);
  free(streams);
  if (!all) return no_memory(reader, op);
  return status == LADE_OK ? READ_ITEM : refused(reader, op);
}

static read_result do_pool_end(replay *r, trace_reader *reader, const trace_op *op) {
  return lade_device_pool_end(r->allocator, pool_id(op->number[0])) == LADE_OK ? READ_ITEM : refused(reader, op);
}

static read_result do_pool_release(replay *r, trace_reader *reader, const trace_op *op) {
  return lade_device_pool_release(r->allocator, pool_id(op->number[0])) == LADE_OK ? READ_ITEM : refused(reader, op);
}

static read_result do_pool_trim(replay *r, trace_reader *reader, const trace_op *op) {
  lade_status status = lade_device_pool_trim(r->allocator, pool_id(op->number[0]), NULL, 0, NULL);
  return status == LADE_OK ? READ_ITEM : refused(reader, op);
}

/* Address -> ID of everything handed out. */
static bool owners_collect(const replay *r, number_map *out) {
  size_t place = 0;
  number_map_entry entry;
  while (number_map_next(&r->ids, &place, &entry))
    if (entry.value > FAILED && !number_map_set(out, entry.value, entry.key)) return false;
  return true;
}

static bool pool_owners_select(const ladei_device_snapshot *snapshot, uint64_t pool, const number_map *owners,
                               number_map *out) {
  for (size_t i = 0; i < snapshot->segment_count; i++) {
    const ladei_device_snapshot_segment *segment = &snapshot->segments[i];
    if (segment->pool.first != pool) continue;
    for (size_t j = 0; j < segment->block_count; j++) {
      const ladei_device_snapshot_block *block = &snapshot->blocks[segment->first_block + j];
      if (block->state != LADE_DEVICE_BLOCK_ALLOCATED) continue;
      if (!number_map_set(out, block->address, *number_map_get(owners, block->address))) return false;
    }
  }
  return true;
}

/* Address -> ID of the blocks handed out from a pool. */
static bool pool_owners(const replay *r, uint64_t pool, number_map *out) {
  ladei_device_snapshot snapshot;
  number_map owners = {.entries = NULL};
  if (ladei_device_snapshot_take(r->allocator, NULL, &snapshot) != LADE_OK) return false;
  bool right = owners_collect(r, &owners) && pool_owners_select(&snapshot, pool, &owners, out);
  number_map_destroy(&owners);
  ladei_device_snapshot_destroy(&snapshot);
  return right;
}

static stored_state **state_find(replay *r, uint64_t pool, uint64_t key) {
  stored_state **link = &r->states;
  while (*link != NULL && ((*link)->pool != pool || (*link)->key != key)) link = &(*link)->next;
  return link;
}

static read_result do_checkpoint(replay *r, trace_reader *reader, const trace_op *op) {
  stored_state *state = calloc(1, sizeof *state);
  if (state == NULL) return no_memory(reader, op);
  state->pool = op->number[0];
  state->key = op->number[1];
  if (lade_device_checkpoint_get(r->allocator, pool_id(state->pool), &state->checkpoint) != LADE_OK) {
    state_destroy(state);
    return refused(reader, op);
  }
  if (!pool_owners(r, state->pool, &state->owners)) {
    state_destroy(state);
    return no_memory(reader, op);
  }
  stored_state **link = state_find(r, state->pool, state->key);
  if (*link != NULL) {
    stored_state *former = *link;
    state->next = former->next;
    state_destroy(former);
  }
  *link = state;
  return READ_ITEM;
}

/* No ID to be brought back may be live outside the pool. */
static read_result owners_check(const replay *r, const stored_state *state, const number_map *pool_now,
                                trace_reader *reader, const trace_op *op) {
  size_t place = 0;
  number_map_entry entry;
  while (number_map_next(&state->owners, &place, &entry)) {
    const uint64_t *now = number_map_get(&r->ids, entry.value);
    if (now == NULL || *now == FAILED) continue;
    if (*now == NULL_BLOCK || number_map_get(pool_now, *now) == NULL) {
      return READER_REFUSE_AT(trace_frame(reader), op->line, "restore: ID %llu is live outside the pool",
                              (unsigned long long)entry.value);
    }
  }
  return READ_ITEM;
}

static bool owners_restore(replay *r, const stored_state *state, const number_map *pool_before,
                           const lade_device_restored *restored) {
  for (size_t i = 0; i < restored->freed_count; i++)
    number_map_remove(&r->ids, *number_map_get(pool_before, (uint64_t)(uintptr_t)restored->freed[i]));
  for (size_t i = 0; i < restored->created_count; i++) {
    uint64_t address = (uint64_t)(uintptr_t)restored->created[i];
    if (!number_map_set(&r->ids, *number_map_get(&state->owners, address), address)) return false;
  }
  return true;
}

static read_result do_restore(replay *r, trace_reader *reader, const trace_op *op) {
  const stored_state *state = *state_find(r, op->number[0], op->number[1]);
  if (state == NULL) {
    return READER_REFUSE_AT(trace_frame(reader), op->line, "restore: pool %llu has no key %llu",
                            (unsigned long long)op->number[0], (unsigned long long)op->number[1]);
  }
  number_map pool_now = {.entries = NULL};
  lade_device_restored *restored = NULL;
  read_result result = pool_owners(r, state->pool, &pool_now) ? READ_ITEM : no_memory(reader, op);
  if (result == READ_ITEM) result = owners_check(r, state, &pool_now, reader, op);
  if (result == READ_ITEM && lade_device_checkpoint_set(r->allocator, state->checkpoint, &restored) != LADE_OK)
    result = refused(reader, op);
  if (result == READ_ITEM && !owners_restore(r, state, &pool_now, restored)) result = no_memory(reader, op);
  /* Frees of a restore record their events here, before later work of either pool on those streams. */
  if (result == READ_ITEM && ladei_retire_close(r->allocator->retire) != LADE_OK) result = refused(reader, op);
  number_map_destroy(&pool_now);
  lade_device_restored_destroy(restored);
  return result;
}

/* ---- Pinned blocks ----------------------------------------------------------------------------------------------- */

static read_result do_halloc(replay *r, trace_reader *reader, const trace_op *op) {
  uint64_t id = op->number[0];
  if (number_map_get(&r->host_ids, id) != NULL)
    return READER_REFUSE_AT(trace_frame(reader), op->line, "halloc: ID %llu is live", (unsigned long long)id);
  void *block = NULL;
  if (op->number[1] > 0) {
    if (pinned_start(r) != LADE_OK || lade_pinned_alloc(r->pinned, op->number[1], &block) != LADE_OK)
      return refused(reader, op);
  }
  return number_map_set(&r->host_ids, id, (uint64_t)(uintptr_t)block) ? READ_ITEM : no_memory(reader, op);
}

static read_result do_hfree(replay *r, trace_reader *reader, const trace_op *op) {
  uint64_t address = NULL_BLOCK;
  if (!number_map_take(&r->host_ids, op->number[0], &address)) return id_unknown(reader, op);
  if (address == NULL_BLOCK) return READ_ITEM;
  return lade_pinned_free(r->pinned, (void *)(uintptr_t)address) == LADE_OK ? READ_ITEM : refused(reader, op);
}

static read_result do_hrecord(replay *r, trace_reader *reader, const trace_op *op) {
  uint64_t address = NULL_BLOCK;
  read_result result = id_find(&r->host_ids, reader, op, &address);
  if (result != READ_ITEM || address == NULL_BLOCK) return result;
  lade_stream stream = stream_at(r, op, 1);
  if (stream == NULL) return no_memory(reader, op);
  lade_status status = lade_pinned_record_event(r->pinned, (void *)(uintptr_t)address, stream);
  return status == LADE_OK ? READ_ITEM : refused(reader, op);
}

static read_result do_hempty(replay *r, trace_reader *reader, const trace_op *op) {
  if (r->pinned == NULL) return READ_ITEM;
  return lade_pinned_empty_cache(r->pinned) == LADE_OK ? READ_ITEM : refused(reader, op);
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

static report_pinned pinned_report(const replay *r) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  if (r->pinned != NULL) (void)lade_pinned_stats_get(r->pinned, &stats);
  report_pinned report = {
      .in_use_blocks = stats.in_use_blocks.current,
      .requested_bytes = stats.requested_bytes.current,
      .reserved_bytes = stats.reserved_bytes.current,
      .driver_allocs = stats.driver_allocs,
      .driver_frees = stats.driver_frees,
      .events_recorded = stats.events_recorded,
      .pending_blocks = stats.pending_blocks.current,
  };
  return report;
}

static report_block block_report(const number_map *owners, const ladei_device_snapshot_segment *segment,
                                 const ladei_device_snapshot_block *block) {
  report_block out = {.offset = block->address - segment->address,
                      .size = block->bytes,
                      .requested_size = block->requested_bytes,
                      .state = (report_state)block->state};
  if (block->state == LADE_DEVICE_BLOCK_ALLOCATED) out.id = *number_map_get(owners, block->address);
  return out;
}

_Static_assert((int)LADE_DEVICE_BLOCK_INACTIVE == (int)REPORT_INACTIVE &&
                   (int)LADE_DEVICE_BLOCK_ALLOCATED == (int)REPORT_ALLOCATED &&
                   (int)LADE_DEVICE_BLOCK_PENDING_FREE == (int)REPORT_PENDING_FREE,
               "states of a snapshot are those of a report");

static report_segment segment_report(const ladei_device_snapshot_segment *segment) {
  return (report_segment){.address = segment->address,
                          .total_size = segment->total_bytes,
                          .stream = replay_stream_number(segment->stream),
                          .pool = segment->pool.first,
                          .is_large = segment->is_large,
                          .is_expandable = segment->is_expandable,
                          .allocated_size = segment->allocated_bytes,
                          .active_size = segment->active_bytes,
                          .requested_size = segment->requested_bytes,
                          .first_block = segment->first_block,
                          .block_count = segment->block_count};
}

static void entry_give(replay *r, const trace_op *op, const ladei_device_snapshot *snapshot, const number_map *owners,
                       report_segment *segments, report_block *blocks) {
  for (size_t i = 0; i < snapshot->segment_count; i++) {
    const ladei_device_snapshot_segment *segment = &snapshot->segments[i];
    segments[i] = segment_report(segment);
    for (size_t j = segment->first_block; j < segment->first_block + segment->block_count; j++)
      blocks[j] = block_report(owners, segment, &snapshot->blocks[j]);
  }
  report_entry entry = {.label = op->text,
                        .line = op->line,
                        .oom = r->oom,
                        .oom_count = r->oom_count,
                        .stats = &snapshot->stats,
                        .segments = segments,
                        .segment_count = snapshot->segment_count,
                        .blocks = blocks,
                        .pinned = pinned_report(r)};
  r->settings.snapshot(r->settings.user, &entry);
}

/* The segments of a snapshot: contiguous runs of memory. The allocator's lock is held. */
static size_t runs_count(const ladei_device_heap *heap, const ladei_device_heap_segment *segment) {
  if (!ladei_device_heap_segment_expandable(segment)) return 1;
  size_t runs = 0;
  bool in_run = false;
  for (const ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL;
       block = block->next) {
    runs += block->mapped && !in_run ? 1 : 0;
    in_run = block->mapped;
  }
  return runs;
}

/* Of 100,000 blocks and their IDs a snapshot is as large as the records of the allocator. */
static void totals_give(replay *r, const trace_op *op) {
  size_t segments = 0;
  ladei_lock_acquire(&r->allocator->lock);
  const ladei_device_heap *heap = &r->allocator->heap;
  lade_device_stats stats = ladei_device_heap_stats(heap);
  for (const ladei_device_heap_segment *segment = ladei_device_heap_counted_first(heap); segment != NULL;
       segment = ladei_device_heap_counted_next(heap, segment))
    segments += runs_count(heap, segment);
  ladei_lock_release(&r->allocator->lock);
  report_entry entry = {.label = op->text,
                        .line = op->line,
                        .oom = r->oom,
                        .oom_count = r->oom_count,
                        .stats = &stats,
                        .segment_count = segments,
                        .pinned = pinned_report(r)};
  r->settings.snapshot(r->settings.user, &entry);
}

static bool blocks_give(replay *r, const trace_op *op) {
  ladei_device_snapshot snapshot;
  if (ladei_device_snapshot_take(r->allocator, NULL, &snapshot) != LADE_OK) return false;
  report_segment *segments = calloc(snapshot.segment_count + 1, sizeof *segments);
  report_block *blocks = calloc(snapshot.block_count + 1, sizeof *blocks);
  number_map owners = {.entries = NULL};
  bool right = segments != NULL && blocks != NULL && owners_collect(r, &owners);
  if (right) entry_give(r, op, &snapshot, &owners, segments, blocks);
  number_map_destroy(&owners);
  free(segments);
  free(blocks);
  ladei_device_snapshot_destroy(&snapshot);
  return right;
}

static read_result do_snapshot(replay *r, trace_reader *reader, const trace_op *op) {
  bool right = true;
  if (r->settings.snapshot != NULL && r->settings.totals_only)
    totals_give(r, op);
  else if (r->settings.snapshot != NULL)
    right = blocks_give(r, op);
  if (!right) return no_memory(reader, op);
  r->oom_count = 0;
  return READ_ITEM;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static read_result operation_run(replay *r, trace_reader *reader, const trace_op *op) {
  switch (op->kind) {
  case TRACE_ALLOC: return do_alloc(r, reader, op);
  case TRACE_FREE: return do_free(r, reader, op);
  case TRACE_RECORD: return do_record(r, reader, op);
  case TRACE_COMPLETE: return do_complete(r, reader, op);
  case TRACE_EMPTY_CACHE: return do_empty_cache(r, reader, op);
  case TRACE_FRACTION: return do_fraction(r, reader, op);
  case TRACE_POOL_CREATE: return do_pool_create(r, reader, op);
  case TRACE_POOL_BEGIN: return do_pool_begin(r, reader, op);
  case TRACE_POOL_END: return do_pool_end(r, reader, op);
  case TRACE_POOL_RELEASE: return do_pool_release(r, reader, op);
  case TRACE_POOL_TRIM: return do_pool_trim(r, reader, op);
  case TRACE_CHECKPOINT: return do_checkpoint(r, reader, op);
  case TRACE_RESTORE: return do_restore(r, reader, op);
  case TRACE_RESET_PEAK:
  case TRACE_RESET_ACCUMULATED: return do_reset(r, reader, op);
  case TRACE_HALLOC: return do_halloc(r, reader, op);
  case TRACE_HFREE: return do_hfree(r, reader, op);
  case TRACE_HRECORD: return do_hrecord(r, reader, op);
  case TRACE_HEMPTY: return do_hempty(r, reader, op);
  case TRACE_SNAPSHOT: return do_snapshot(r, reader, op);
  default: return READ_ITEM;
  }
}

read_result replay_step(replay *r, trace_reader *reader, const trace_op *op) {
  if (op->kind == TRACE_DEVICE) {
    r->capacity = op->number[0];
    return READ_ITEM;
  }
  if (op->kind == TRACE_CONF) return conf_read(r, reader, op);
  if (op->kind == TRACE_STREAM) return READ_ITEM;
  read_result result = r->device == NULL ? start(r, reader, op) : READ_ITEM;
  if (result == READ_ITEM) result = operation_run(r, reader, op);
  if (result == READ_ITEM && r->settings.sample != NULL) {
    lade_device_stats stats;
    lade_device_stats_init(&stats);
    (void)lade_device_stats_get(r->allocator, &stats);
    r->settings.sample(r->settings.user, &stats);
  }
  return result;
}

/* Fewer blocks stay in the cache anyway. */
enum { LOOK_AHEAD_FROM = 2048 };

/* Before a free: brings the memory of the next frees into the cache by steps, each of which reads the memory that the
 * one before has brought. */
static void look_ahead(const replay *r, ahead *queue) {
  const ladei_device_heap *heap = &r->allocator->heap;
  ahead_target *target = ahead_free(queue, 5);
  const uint64_t *address = target != NULL ? number_map_get(&r->ids, target->id) : NULL;
  if (address != NULL && *address > FAILED) {
    target->address = *address;
    ladei_device_heap_prefetch_start(heap, *address);
  }
  target = ahead_free(queue, 3);
  if (target != NULL && target->address != 0) target->block = ladei_device_heap_prefetch_block(heap, target->address);
  target = ahead_free(queue, 1);
  if (target != NULL && target->block != NULL) ladei_device_heap_prefetch_beside(heap, target->block);
}

/* The present or later place of the ID of an operation just read. Inlined by force: gcc finds that a function that only
 * fetches ahead has no effect, and removes the call. */
static inline __attribute__((always_inline)) void id_prefetch(const replay *r, const trace_op *op) {
  if (op->kind == TRACE_ALLOC || op->kind == TRACE_FREE) number_map_prefetch(&r->ids, op->number[0]);
}

read_result replay_run(replay *r, trace_reader *reader) {
  ahead queue;
  ahead_init(&queue, reader);
  for (;;) {
    const trace_op *op;
    read_result result = ahead_next(&queue, &op);
    if (result != READ_ITEM) return result;
    if (r->ids.count >= LOOK_AHEAD_FROM) {
      id_prefetch(r, ahead_newest(&queue));
      if (op->kind == TRACE_FREE) look_ahead(r, &queue);
    }
    result = replay_step(r, reader, op);
    if (result != READ_ITEM) return result;
  }
}
