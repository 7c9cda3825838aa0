/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: All orders of two threads in a device allocator, on "sim": every pair of its calls, each also with
 * itself, with plain and with expandable segments; of some calls also with thread caches.
 *
 * Work is a host function that counts how much of a stream is done. The model keeps every block that was handed out, with
 * how much of each stream must be done before its memory may serve another stream, or go back to the driver: on streams
 * that were recorded, and on its own, what was queued when the free began; on a retired stream what was queued when the
 * retirement began. Memory that comes back earlier, is handed out twice, or is lost, calls that wait for ever, and an
 * invariant that does not hold, each fail the test with the schedule that led there.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "device/api/device.h"
#include "lade/soft.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/model_stream.h"
#include "tests/stress/scheduler.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

enum {
  STREAMS = 2,
  BLOCKS_MAX = 64,
  /* Of each thread, and of all (the last row): blocks in use, on stream 0. */
  FRESH = 0, /* nothing recorded */
  RECORDED,  /* on stream 1, by its thread */
  OWN_BLOCKS,
  ROWS = 4,
  ALL = ROWS - 1,
};

static const size_t SMALL = 4096, LARGE = 12 * MIB, HUGE_BYTES = 40 * MIB, MEMORY = 72 * MIB;
static const lade_device_pool_id SAVED = {7, 7}, SHARED = {8, 8}, LENDS = {9, 9};

typedef struct model_block {
  char *address;
  size_t bytes;
  int stream;
  bool in_use, recorded[STREAMS]; /* recorded on its own stream: always */
  uint64_t must[STREAMS];         /* items that must be done before others have the memory */
} model_block;

typedef struct bench bench;

typedef struct operation {
  const char *name;
  void (*run)(bench *own, int thread);
} operation;

struct bench {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_device_options options;
  const operation *table;
  model_stream streams[STREAMS];
  model_block blocks[BLOCKS_MAX]; /* all that were ever handed out; those not in use are free, the newest is right */
  int block_count;
  int own_blocks[ROWS][OWN_BLOCKS];
  int held;                        /* holds of frees: the driver gets nothing */
  void *saved_block;               /* of the pool with a checkpoint, as the next ones */
  void *pooled[SCHEDULER_THREADS]; /* came after the checkpoint; with thread caches, and until it is freed */
  lade_device_checkpoint *checkpoint;
  const operation *operations[SCHEDULER_THREADS];
};

static bench *the_bench; /* for ops of the driver, which know no test */

/* ---- The model --------------------------------------------------------------------------------------------------- */

static void work(bench *own, int s) { model_stream_work(own->runtime, &own->streams[s]); }

static bool overlap(const model_block *block, const char *address, size_t bytes) {
  return block->address < address + bytes && address < block->address + block->bytes;
}

enum { DRIVER = -1 };

/* The memory goes to a block of `stream`, or to the driver. */
static void model_leave(bench *own, const char *address, size_t bytes, int stream) {
  for (int i = 0; i < own->block_count; i++) {
    const model_block *block = &own->blocks[i];
    if (!overlap(block, address, bytes)) continue;
    const char *to = stream == DRIVER ? "the driver" : "another block";
    if (block->in_use) LADE_FAIL("%zu bytes go to %s that block %d has", bytes, to, i);
    for (int s = 0; s < STREAMS; s++) {
      if (own->streams[s].done >= block->must[s] || (s == stream && s == block->stream)) continue;
      LADE_FAIL("the memory of block %d goes to %s early: %" PRIu64 " of the %" PRIu64
                " items of stream %d that use it are done",
                i, to, own->streams[s].done, block->must[s], s);
    }
  }
}

static int model_alloc(bench *own, void *address, size_t bytes, int stream) {
  const model_block fresh = {.address = address, .bytes = bytes, .stream = stream, .in_use = true};
  model_leave(own, address, bytes, stream);
  if (own->block_count == BLOCKS_MAX) LADE_FAIL("more blocks than the model has room for");
  own->blocks[own->block_count % BLOCKS_MAX] = fresh;
  own->blocks[own->block_count % BLOCKS_MAX].recorded[stream] = true;
  return own->block_count++ % BLOCKS_MAX;
}

static int alloc(bench *own, size_t bytes, int stream) {
  void *address = NULL;
  lade_status status = lade_device_alloc(own->allocator, bytes, own->streams[stream].handle, &address);
  if (status == LADE_OK) return model_alloc(own, address, bytes, stream);
  LADE_FAIL("alloc ended with %s: %s", lade_status_name(status), lade_last_error()->text);
  return -1;
}

static void record(bench *own, model_block *block, int s) {
  lade_status status = lade_device_record_stream(own->allocator, block->address, own->streams[s].handle);
  if (status == LADE_ERR_STREAM_RETIRED && own->streams[s].retired) return;
  if (status != LADE_OK) LADE_FAIL("record ended with %s: %s", lade_status_name(status), lade_last_error()->text);
  block->recorded[s] = true;
}

/* Before the free: from its end on another thread may have the memory. */
static void model_free(bench *own, model_block *block) {
  for (int s = 0; s < STREAMS; s++) {
    const model_stream *stream = &own->streams[s];
    if (block->recorded[s]) block->must[s] = stream->retired ? stream->covered : stream->queued;
  }
  block->in_use = false;
}

static void block_free(bench *own, model_block *block) {
  model_free(own, block);
  LADE_EXPECT_OK(lade_device_free(own->allocator, block->address));
}

/* ---- The driver -------------------------------------------------------------------------------------------------- */

static lade_runtime_ops watched;
static lade_status (*free_below)(void *self, int device, void *pointer);
static lade_status (*unmap_below)(void *self, void *address, size_t bytes);

/* Of the segment that begins here. One thread runs at a time, so no lock is needed. */
static size_t segment_bytes(const void *pointer) {
  const ladei_device_heap *heap = &the_bench->allocator->heap;
  for (const ladei_device_heap_segment *segment = ladei_device_heap_counted_first(heap); segment != NULL;
       segment = ladei_device_heap_counted_next(heap, segment))
    if (segment->address == (uint64_t)(uintptr_t)pointer) return segment->size;
  return 1;
}

/* Before and after each call of the driver that takes memory. */
static void model_held(const bench *own) {
  if (own->held > 0) LADE_FAIL("memory goes to the driver while frees are held");
}

static lade_status watched_free(void *self, int device, void *pointer) {
  model_held(the_bench);
  model_leave(the_bench, pointer, segment_bytes(pointer), DRIVER);
  lade_status status = free_below(self, device, pointer);
  model_held(the_bench);
  return status;
}

static lade_status watched_unmap(void *self, void *address, size_t bytes) {
  model_held(the_bench);
  model_leave(the_bench, address, bytes, DRIVER);
  lade_status status = unmap_below(self, address, bytes);
  model_held(the_bench);
  return status;
}

static void driver_watch(bench *own) {
  watched = *own->runtime->ops;
  free_below = watched.device_free;
  unmap_below = watched.vm_unmap;
  watched.device_free = watched_free;
  watched.vm_unmap = watched_unmap;
  own->runtime->ops = &watched;
  the_bench = own;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static model_block *block_of(bench *own, int row, int which) { return &own->blocks[own->own_blocks[row][which]]; }

static void op_alloc(bench *own, int thread) {
  (void)thread;
  (void)alloc(own, SMALL, 0);
}

static void op_alloc_other(bench *own, int thread) {
  (void)thread;
  (void)alloc(own, SMALL, 1);
}

/* More than is left beside what is cached. Two of them do not fit. */
static void op_hold(bench *own, int thread);

static void op_alloc_huge(bench *own, int thread) {
  void *address = NULL;
  lade_status status = lade_device_alloc(own->allocator, HUGE_BYTES, own->streams[0].handle, &address);
  bool held = own->operations[1 - thread]->run == op_hold; /* what is cached may not go back for it */
  if (status == LADE_ERR_OUT_OF_DEVICE_MEMORY && (held || own->operations[0] == own->operations[1])) return;
  if (status != LADE_OK) LADE_FAIL("alloc ended with %s: %s", lade_status_name(status), lade_last_error()->text);
  if (status != LADE_OK) return;
  int place = model_alloc(own, address, HUGE_BYTES, 0);
  work(own, 0);
  block_free(own, &own->blocks[place]);
}

/* One block again and again: it is freed as a recent one (device/heap/recent.h), in whatever moment of the other. */
static void op_pairs(bench *own, int thread) {
  (void)thread;
  for (int i = 0; i < 2; i++) {
    int place = alloc(own, SMALL, 0);
    if (place < 0) return;
    work(own, 0);
    block_free(own, &own->blocks[place]);
  }
}

static void op_free(bench *own, int thread) { block_free(own, block_of(own, thread, FRESH)); }

static void op_free_recorded(bench *own, int thread) {
  work(own, 1);
  block_free(own, block_of(own, thread, RECORDED));
}

static void op_record(bench *own, int thread) {
  (void)thread;
  work(own, 1);
  record(own, block_of(own, ALL, FRESH), 1);
}

static void op_cycle(bench *own, int thread) {
  (void)thread;
  int place = alloc(own, SMALL, 0);
  if (place < 0) return;
  work(own, 0);
  work(own, 1);
  record(own, &own->blocks[place], 1);
  block_free(own, &own->blocks[place]);
}

static void stream_retire(bench *own, int s) {
  if (!own->streams[s].retired) own->streams[s].covered = own->streams[s].queued;
  own->streams[s].retired = true;
  LADE_EXPECT_OK(lade_device_stream_retire(own->allocator, own->streams[s].handle));
}

static void op_retire_own(bench *own, int thread) {
  (void)thread;
  stream_retire(own, 0);
}

static void op_retire_recorded(bench *own, int thread) {
  (void)thread;
  stream_retire(own, 1);
}

static void op_empty_cache(bench *own, int thread) {
  (void)thread;
  LADE_EXPECT_OK(lade_device_empty_cache(own->allocator));
}

static void pool_cycle(bench *own, lade_device_pool_id id) {
  lade_status status = lade_device_pool_begin(own->allocator, id, &own->streams[0].handle, 1);
  if (status == LADE_ERR_CAPTURE || status == LADE_ERR_INVALID_ARGUMENT) return; /* the other thread has it */
  LADE_EXPECT_OK(status);
  int place = alloc(own, SMALL, 0);
  if (place >= 0) block_free(own, &own->blocks[place]);
  LADE_EXPECT_OK(lade_device_pool_end(own->allocator, id));
  LADE_EXPECT_OK(lade_device_pool_release(own->allocator, id));
}

static void op_pool(bench *own, int thread) { pool_cycle(own, (lade_device_pool_id){1, 1 + (uint64_t)thread}); }

static void op_pool_shared(bench *own, int thread) {
  (void)thread;
  pool_cycle(own, SHARED);
}

/* Released in its capture, whose allocations come only after everything unused was given back. */
static void op_pool_released(bench *own, int thread) {
  const lade_device_pool_id id = {2, 1 + (uint64_t)thread};
  LADE_EXPECT_OK(lade_device_pool_begin(own->allocator, id, &own->streams[0].handle, 1));
  LADE_EXPECT_OK(lade_device_pool_release(own->allocator, id));
  LADE_EXPECT_OK(lade_device_empty_cache(own->allocator));
  int place = alloc(own, SMALL, 0);
  if (place >= 0) block_free(own, &own->blocks[place]);
  LADE_EXPECT_OK(lade_device_pool_end(own->allocator, id));
}

/* A block of each kind in a pool that lends; one is freed inside the scope, one behind it. */
static void op_scope(bench *own, int thread) {
  uint64_t scope;
  (void)thread;
  LADE_EXPECT_OK(lade_device_scope_begin(own->allocator, LENDS, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
  int small = alloc(own, SMALL, 0), large = alloc(own, LARGE, 0);
  if (small >= 0) block_free(own, &own->blocks[small]);
  LADE_EXPECT_OK(lade_device_scope_end(own->allocator, scope));
  work(own, 0);
  if (large >= 0) block_free(own, &own->blocks[large]);
}

/* The last use goes while the scope is open, and the cache with it; the pool only when its block is free. */
static void op_object(bench *own, int thread) {
  lade_device_pool_id id;
  uint64_t scope;
  (void)thread;
  LADE_EXPECT_OK(lade_device_pool_create(own->allocator, NULL, &id));
  LADE_EXPECT_OK(lade_device_scope_begin(own->allocator, id, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
  LADE_EXPECT_OK(lade_device_pool_release(own->allocator, id));
  LADE_EXPECT_OK(lade_device_empty_cache(own->allocator));
  int place = alloc(own, SMALL, 0);
  LADE_EXPECT_OK(lade_device_scope_end(own->allocator, scope));
  if (place >= 0) block_free(own, &own->blocks[place]);
}

static void op_trim(bench *own, int thread) {
  lade_status status = lade_device_pool_trim(own->allocator, LENDS, NULL, 0, NULL);
  if (own->operations[1 - thread]->run == op_hold && status == LADE_ERR_BUSY) return;
  LADE_EXPECT_OK(status);
}

/* Blocks of the default pools come from the driver and go back to it; the other thread's, too, in between. */
static void op_uncached(bench *own, int thread) {
  device_fixture_caching(own->allocator, false);
  op_free(own, thread);
  op_cycle(own, thread);
  device_fixture_caching(own->allocator, true);
}

static void op_hold(bench *own, int thread) {
  LADE_EXPECT_OK(lade_device_frees_hold(own->allocator, true));
  own->held++;
  op_free(own, thread);
  LADE_EXPECT_OK(lade_device_empty_cache(own->allocator));
  own->held--;
  LADE_EXPECT_OK(lade_device_frees_hold(own->allocator, false));
}

/* The pool is in its saved state always, so what a set frees and makes is the same block. */
static void op_checkpoint_get(bench *own, int thread) {
  lade_device_checkpoint *checkpoint = NULL;
  (void)thread;
  lade_status status = lade_device_checkpoint_get(own->allocator, SAVED, &checkpoint);
  if (status == LADE_ERR_CAPTURE) return;
  LADE_EXPECT_OK(status);
  lade_device_checkpoint_destroy(checkpoint);
}

static void op_checkpoint_set(bench *own, int thread);

/* A set frees it, too. */
static void pooled_free(bench *own, int thread) {
  bool sets = own->operations[0]->run == op_checkpoint_set || own->operations[1]->run == op_checkpoint_set;
  lade_status status = lade_device_free(own->allocator, own->pooled[thread]);
  own->pooled[thread] = NULL;
  if (!sets || status != LADE_ERR_DOUBLE_FREE) LADE_EXPECT_OK(status);
}

static void op_pooled_free(bench *own, int thread) { pooled_free(own, thread); }

static void op_checkpoint_set(bench *own, int thread) {
  lade_device_restored *restored = NULL;
  lade_status status = lade_device_checkpoint_set(own->allocator, own->checkpoint, &restored);
  if (status == LADE_ERR_CAPTURE) return;
  if (status == LADE_ERR_BUSY && own->operations[1 - thread]->run == op_pooled_free) return; /* in the middle of it */
  LADE_EXPECT_OK(status);
  if (status != LADE_OK) return;
  LADE_EXPECT_EQ_UINT(restored->created_count, 1);
  LADE_EXPECT_EQ_PTR(restored->created[0], own->saved_block);
  lade_device_restored_destroy(restored);
}

static void op_snapshot(bench *own, int thread) {
  lade_device_snapshot *snapshot = NULL;
  uint64_t allocated = 0, active = 0;
  (void)thread;
  lade_status status = lade_device_snapshot_take(own->allocator, NULL, &snapshot);
  LADE_EXPECT_OK(status);
  if (status != LADE_OK) return;
  for (size_t i = 0; i < snapshot->block_count; i++) {
    const lade_device_snapshot_block *block = &snapshot->blocks[i];
    if (block->state == LADE_DEVICE_BLOCK_ALLOCATED) allocated += block->bytes;
    if (block->state != LADE_DEVICE_BLOCK_INACTIVE) active += block->bytes;
  }
  LADE_EXPECT_EQ_UINT(allocated, snapshot->stats.allocated_bytes.all.current);
  LADE_EXPECT_EQ_UINT(active, snapshot->stats.active_bytes.all.current);
  lade_device_snapshot_destroy(snapshot);
}

static void op_history(bench *own, int thread) {
  lade_history_options options;
  (void)thread;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.max_entries = 8;
  LADE_EXPECT_OK(lade_device_history_set(own->allocator, &options));
  LADE_EXPECT_OK(lade_device_history_set(own->allocator, NULL));
}

static void op_stats(bench *own, int thread) {
  lade_device_stats stats;
  (void)thread;
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(own->allocator, &stats));
}

/* Two blocks of a size go back, and a third one, which another stream used. */
static void op_free_some(bench *own, int thread) {
  op_free(own, thread);
  op_pairs(own, thread);
  op_free_recorded(own, thread);
}

/* Of the other thread's blocks, which has some of its own in its cache. */
static void op_free_foreign(bench *own, int thread) {
  if (own->operations[0] == own->operations[1] || own->operations[1 - thread]->run != op_pairs) return;
  block_free(own, block_of(own, 1 - thread, FRESH));
}

/* All memory that there is beside what is in use: what threads have ready must be given for it. */
static void op_alloc_rest(bench *own, int thread) {
  if (own->operations[0] != own->operations[1]) op_alloc_huge(own, thread);
}

static void op_peer_add(bench *own, int thread) {
  (void)thread;
  LADE_EXPECT_OK(lade_device_peer_add(own->allocator, 1));
}

static void op_step(bench *own, int thread) {
  (void)thread;
  for (int i = 0; i < 2; i++) (void)own->runtime->ops->step(own->runtime->self);
}

#define OPERATIONS_LIST(X)                                                                                             \
  X("alloc", op_alloc)                                                                                                 \
  X("alloc_other", op_alloc_other)                                                                                     \
  X("alloc_huge", op_alloc_huge)                                                                                       \
  X("free", op_free)                                                                                                   \
  X("free_recorded", op_free_recorded)                                                                                 \
  X("record", op_record)                                                                                               \
  X("pairs", op_pairs)                                                                                                 \
  X("cycle", op_cycle)                                                                                                 \
  X("retire_own", op_retire_own)                                                                                       \
  X("retire_recorded", op_retire_recorded)                                                                             \
  X("empty_cache", op_empty_cache)                                                                                     \
  X("pool", op_pool)                                                                                                   \
  X("pool_shared", op_pool_shared)                                                                                     \
  X("pool_released", op_pool_released)                                                                                 \
  X("scope", op_scope)                                                                                                 \
  X("object", op_object)                                                                                               \
  X("uncached", op_uncached)                                                                                           \
  X("hold", op_hold)                                                                                                   \
  X("trim", op_trim)                                                                                                   \
  X("checkpoint_get", op_checkpoint_get)                                                                               \
  X("checkpoint_set", op_checkpoint_set)                                                                               \
  X("snapshot", op_snapshot)                                                                                           \
  X("history", op_history)                                                                                             \
  X("stats", op_stats)                                                                                                 \
  X("peer_add", op_peer_add)                                                                                           \
  X("step", op_step)

static const operation operations[] = {
#define OPERATION_ENTRY(name, function) {name, function},
    OPERATIONS_LIST(OPERATION_ENTRY)
#undef OPERATION_ENTRY
};

/* ---- A schedule -------------------------------------------------------------------------------------------------- */

static void checkpoint_make(bench *own) {
  LADE_EXPECT_OK(lade_device_pool_begin(own->allocator, SAVED, &own->streams[0].handle, 1));
  LADE_EXPECT_OK(lade_device_alloc(own->allocator, SMALL, own->streams[0].handle, &own->saved_block));
  LADE_EXPECT_OK(lade_device_pool_end(own->allocator, SAVED));
  LADE_EXPECT_OK(lade_device_checkpoint_get(own->allocator, SAVED, &own->checkpoint));
}

static void lending_pool_make(bench *own) {
  lade_device_pool_options options;
  lade_device_pool_id id;
  lade_device_pool_options_init(&options);
  options.id = LENDS;
  options.flags = LADE_DEVICE_POOL_USE_ON_OOM;
  LADE_EXPECT_OK(lade_device_pool_create(own->allocator, &options, &id));
}

static void prepare(void *user) {
  bench *own = user;
  own->block_count = 0;
  memset(own->pooled, 0, sizeof own->pooled);
  model_streams_reset(own->streams, STREAMS);
  LADE_EXPECT_OK(lade_device_allocator_create(own->runtime, 0, &own->options, &own->allocator));
  checkpoint_make(own);
  lending_pool_make(own);
  for (int i = 0; i < OWN_BLOCKS; i++) own->own_blocks[ALL][i] = alloc(own, SMALL, 0);
  work(own, 0);
  work(own, 1);
}

static void pooled_make(bench *own, int thread) {
  uint64_t scope;
  LADE_EXPECT_OK(lade_device_scope_begin(own->allocator, SAVED, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
  LADE_EXPECT_OK(lade_device_alloc(own->allocator, SMALL, own->streams[0].handle, &own->pooled[thread]));
  LADE_EXPECT_OK(lade_device_scope_end(own->allocator, scope));
}

/* Each thread has blocks in use, and freed ones: ready on its stream alone, and pending. */
static void warm(void *user, int thread) {
  bench *own = user;
  for (int i = 0; i < OWN_BLOCKS; i++) own->own_blocks[thread][i] = alloc(own, SMALL, 0);
  record(own, block_of(own, thread, RECORDED), 1);
  int ready = alloc(own, LARGE, thread), pending = alloc(own, SMALL, 0);
  record(own, &own->blocks[pending], 1);
  block_free(own, &own->blocks[ready]);
  block_free(own, &own->blocks[pending]);
  if ((own->options.flags & LADE_DEVICE_THREAD_CACHES) != 0) pooled_make(own, thread);
}

static void body(void *user, int thread) {
  bench *own = user;
  own->operations[thread]->run(own, thread);
}

/* Everything is given back, though nothing of it may be early: what waits, waits for the device. */
static void all_given(bench *own) {
  lade_device_stats stats;
  LADE_EXPECT_OK(lade_device_free(own->allocator, own->saved_block));
  for (int i = 0; i < SCHEDULER_THREADS; i++)
    if (own->pooled[i] != NULL) pooled_free(own, i);
  LADE_EXPECT_OK(lade_device_pool_release(own->allocator, SAVED));
  LADE_EXPECT_OK(lade_device_pool_release(own->allocator, LENDS));
  lade_device_checkpoint_destroy(own->checkpoint);
  for (int i = 0; i < own->block_count; i++)
    if (own->blocks[i].in_use) block_free(own, &own->blocks[i]);
  LADE_EXPECT_OK(ladei_device_allocator_check(own->allocator));
  LADE_EXPECT_OK(lade_device_empty_cache(own->allocator));
  LADE_EXPECT_OK(ladei_device_allocator_check(own->allocator));
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(own->allocator, &stats));
  LADE_EXPECT_EQ_UINT(stats.allocated_bytes.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats.active_bytes.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats.quarantined_uses, 0);
  if (own->allocator->limits.growing_bytes != 0 || own->allocator->returns.in_flight != 0 ||
      own->allocator->slow_paths.threads != 0) {
    LADE_FAIL("counts of calls in flight: %" PRIu64 " bytes grow, %" PRIu64 " return, %" PRIu64 " in the slow path",
              own->allocator->limits.growing_bytes, own->allocator->returns.in_flight,
              own->allocator->slow_paths.threads);
  }
}

static void judge(void *user) {
  bench *own = user;
  LADE_EXPECT_OK(ladei_device_allocator_check(own->allocator));
  for (int s = 0; s < STREAMS; s++)
    if (own->streams[s].retired) LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->streams[s].handle));
  all_given(own);
  LADE_EXPECT_OK(lade_device_allocator_destroy(own->allocator, true));
  LADE_EXPECT_EQ_INT(support_live(own->runtime, SUPPORT_LIVE_EVENTS), 0);
  LADE_EXPECT_EQ_INT(support_live(own->runtime, SUPPORT_LIVE_DEVICE_MEMORY), 0);
  LADE_EXPECT_EQ_INT(support_live(own->runtime, SUPPORT_LIVE_VM_MAPPED_BYTES), 0);
  LADE_EXPECT_EQ_INT(support_live(own->runtime, SUPPORT_LIVE_VM_RESERVED_BYTES), 0);
  LADE_EXPECT_EQ_INT(support_live(own->runtime, SUPPORT_LIVE_VM_HANDLES), 0);
  while (own->runtime->ops->step(own->runtime->self) == LADE_OK) continue;
  for (int s = 0; s < STREAMS; s++)
    if (own->streams[s].retired) model_stream_open(own->runtime, &own->streams[s]);
}

static bool bench_open(bench *own, bool expandable, uint32_t flags) {
  support_description description;
  memset(own, 0, sizeof *own);
  support_description_init(&description);
  description.devices[0].memory_bytes = MEMORY;
  description.devices[0].addresses_only = true;
  own->runtime = support_interposer_open("sim", &description.options);
  if (own->runtime == NULL) return false;
  for (int s = 0; s < STREAMS; s++) model_stream_open(own->runtime, &own->streams[s]);
  lade_device_options_init(&own->options);
  own->options.event_batch = 3;
  own->options.expandable_segments = expandable;
  own->options.flags = flags;
  own->table = operations;
  model_calls_switch(own->runtime, true);
  driver_watch(own);
  return true;
}

static void bench_close(bench *own) {
  model_calls_switch(own->runtime, false);
  for (int s = 0; s < STREAMS; s++) LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->streams[s].handle));
  support_expect_nothing_live(own->runtime);
  support_runtime_close(own->runtime);
}

static void choose(void *user, int thread, int number) {
  bench *own = user;
  own->operations[thread] = &own->table[number];
}

/* For LADE_TEST_P. */
static const char *const names[] = {
#define OPERATION_NAME(name, function) name,
    OPERATIONS_LIST(OPERATION_NAME) NULL
#undef OPERATION_NAME
};

/* The named operation with itself and all behind it in the list: one switch, or two where there is time. Closes the bench. */
static void pairs_of(bench *own, const char *const *names_of_all, const char *name) {
  const scheduler_plan plan = {.preemptions = scheduler_preemptions(1),
                               .prepare = prepare,
                               .warm = warm,
                               .body = body,
                               .judge = judge,
                               .names = names_of_all,
                               .choose = choose};
  scheduler_explore_pairs(&plan, own, name);
  bench_close(own);
}

static void pairs(const char *name, bool expandable) {
  bench own;
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  if (bench_open(&own, expandable, expandable ? LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS : 0)) pairs_of(&own, names, name);
}

LADE_TEST_P(DeviceSchedule, Pairs, names, name) { pairs(name, false); }

LADE_TEST_P(DeviceScheduleExpandable, Pairs, names, name) { pairs(name, true); }

/* ---- Thread caches ----------------------------------------------------------------------------------------------- */

#define CACHED_LIST(X)                                                                                                 \
  X("pairs", op_pairs)                                                                                                 \
  X("free_some", op_free_some)                                                                                         \
  X("free_foreign", op_free_foreign)                                                                                   \
  X("record", op_record)                                                                                               \
  X("alloc_rest", op_alloc_rest)                                                                                       \
  X("empty_cache", op_empty_cache)                                                                                     \
  X("retire_own", op_retire_own)                                                                                       \
  X("scope", op_scope)                                                                                                 \
  X("pool", op_pool)                                                                                                   \
  X("pooled_free", op_pooled_free)                                                                                     \
  X("checkpoint_get", op_checkpoint_get)                                                                               \
  X("checkpoint_set", op_checkpoint_set)                                                                               \
  X("snapshot", op_snapshot)                                                                                           \
  X("history", op_history)                                                                                             \
  X("stats", op_stats)

static const operation cached_operations[] = {
#define OPERATION_ENTRY(name, function) {name, function},
    CACHED_LIST(OPERATION_ENTRY)
#undef OPERATION_ENTRY
};

static const char *const cached_names[] = {
#define OPERATION_NAME(name, function) name,
    CACHED_LIST(OPERATION_NAME) NULL
#undef OPERATION_NAME
};

LADE_TEST_P(DeviceScheduleThreadCaches, Pairs, cached_names, name) {
  bench own;
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  if (!bench_open(&own, false, LADE_DEVICE_THREAD_CACHES)) return;
  own.table = cached_operations;
  pairs_of(&own, cached_names, name);
}
