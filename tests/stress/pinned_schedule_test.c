/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: All orders of two threads in a pinned pool, on "sim": every pair of its calls, each also with itself.
 *
 * Work is a host function that counts how much of a stream is done. The model keeps the memory that was freed, with how
 * much of each stream must be done before it may be handed out again: what was queued when a record_use began; on a
 * recorded stream what was queued when the free began. Memory that comes back earlier, is handed out twice, or is lost,
 * and an invariant or a count that is wrong, each fail the test with the schedule that led there.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "host/grow/give_back.h"
#include "lade/pinned.h"
#include "lade/soft.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/model_stream.h"
#include "tests/stress/scheduler.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

enum {
  STREAMS = 2,
  BLOCKS_MAX = 64,
  /* Of each thread, and of all (the last row): blocks in use. */
  FRESH = 0, /* nothing recorded */
  RECORDED,  /* on stream 0, by its thread */
  OWN_BLOCKS,
  ROWS = SCHEDULER_THREADS + 1,
  ALL = SCHEDULER_THREADS,
};

static const size_t SMALL = 4096, LARGE = 300 * 1024;

typedef struct model_block {
  char *address;
  size_t bytes;
  bool in_use, recorded[STREAMS];
  uint64_t must[STREAMS]; /* items that must be done before the memory is handed out again */
} model_block;

typedef struct bench bench;

typedef struct operation {
  const char *name;
  void (*run)(bench *own, int thread);
} operation;

struct bench {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  uint32_t flags;  /* of the pool */
  uint32_t shards; /* of retirement */
  model_stream streams[STREAMS];
  model_block blocks[BLOCKS_MAX]; /* all that were ever handed out; those not in use are free, the newest is right */
  int block_count;
  int own_blocks[ROWS][OWN_BLOCKS];
  lade_event events[SCHEDULER_THREADS];
  const operation *operations[SCHEDULER_THREADS];
};

static const lade_runtime_ops *driver(const bench *own) { return own->runtime->ops; }

/* ---- The model --------------------------------------------------------------------------------------------------- */

static void work(bench *own, int s) { model_stream_work(own->runtime, &own->streams[s]); }

static bool overlap(const model_block *a, const model_block *b) {
  return a->address < b->address + b->bytes && b->address < a->address + a->bytes;
}

/* Memory that was handed out: nobody has it, and nothing uses it any more. */
static int model_alloc(bench *own, void *address, size_t bytes) {
  model_block fresh = {.address = address, .bytes = bytes, .in_use = true};
  for (int i = 0; i < own->block_count; i++) {
    const model_block *block = &own->blocks[i];
    if (!overlap(block, &fresh)) continue;
    if (block->in_use) LADE_FAIL("%zu bytes were handed out that block %d has", bytes, i);
    for (int s = 0; s < STREAMS; s++) {
      if (own->streams[s].done >= block->must[s]) continue;
      LADE_FAIL("the memory of block %d came back early: %" PRIu64 " of the %" PRIu64
                " items of stream %d that use it are done",
                i, own->streams[s].done, block->must[s], s);
    }
  }
  if (own->block_count == BLOCKS_MAX) LADE_FAIL("more blocks than the model has room for");
  own->blocks[own->block_count % BLOCKS_MAX] = fresh;
  return own->block_count++ % BLOCKS_MAX;
}

static int alloc(bench *own, size_t bytes) {
  void *address = NULL;
  lade_status status = lade_pinned_alloc(own->pool, bytes, &address);
  if (status == LADE_OK) return model_alloc(own, address, bytes);
  LADE_FAIL("alloc ended with %s: %s", lade_status_name(status), lade_last_error()->text);
  return -1;
}

static void record(bench *own, model_block *block, int s, bool now) {
  uint64_t queued = own->streams[s].queued;
  lade_stream stream = own->streams[s].handle;
  lade_status status = now ? lade_pinned_record_use(own->pool, block->address, stream)
                           : lade_pinned_record_event(own->pool, block->address, stream);
  if (status == LADE_ERR_STREAM_RETIRED && own->streams[s].retired) return;
  if (status != LADE_OK) LADE_FAIL("record ended with %s: %s", lade_status_name(status), lade_last_error()->text);
  if (block->must[s] < queued) block->must[s] = queued;
  if (!now) block->recorded[s] = true;
}

/* Before the free: from its end on another thread may have the memory. */
static void model_free(bench *own, model_block *block) {
  for (int s = 0; s < STREAMS; s++)
    if (block->recorded[s] && !own->streams[s].retired) block->must[s] = own->streams[s].queued;
  block->in_use = false;
}

static void block_free(bench *own, model_block *block) {
  model_free(own, block);
  LADE_EXPECT_OK(lade_pinned_free(own->pool, block->address));
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static model_block *block_of(bench *own, int row, int which) { return &own->blocks[own->own_blocks[row][which]]; }

static void op_alloc(bench *own, int thread) {
  (void)thread;
  (void)alloc(own, SMALL);
}

static void op_alloc_large(bench *own, int thread) {
  (void)thread;
  (void)alloc(own, LARGE);
}

static void op_free(bench *own, int thread) { block_free(own, block_of(own, thread, FRESH)); }

static void op_free_recorded(bench *own, int thread) {
  work(own, 0);
  block_free(own, block_of(own, thread, RECORDED));
}

static void op_record(bench *own, int thread) {
  (void)thread;
  work(own, 0);
  record(own, block_of(own, ALL, FRESH), 0, false);
}

static void op_record_use(bench *own, int thread) {
  (void)thread;
  work(own, 0);
  record(own, block_of(own, ALL, FRESH), 0, true);
}

static void op_cycle(bench *own, int thread) {
  (void)thread;
  int place = alloc(own, SMALL);
  if (place < 0) return;
  work(own, 1);
  record(own, &own->blocks[place], 1, false);
  block_free(own, &own->blocks[place]);
}

static void op_free_after(bench *own, int thread) {
  model_block *block = block_of(own, thread, FRESH);
  work(own, 1);
  LADE_EXPECT_OK(driver(own)->event_record(own->runtime->self, own->events[thread], &own->streams[1].resolved));
  block->must[1] = own->streams[1].queued;
  model_free(own, block);
  LADE_EXPECT_OK(lade_pinned_free_after(own->pool, block->address, own->events[thread]));
}

static void op_process_events(bench *own, int thread) {
  (void)thread;
  LADE_EXPECT_OK(lade_pinned_process_events(own->pool));
}

static void op_stream_retire(bench *own, int thread) {
  (void)thread;
  own->streams[0].retired = true;
  LADE_EXPECT_OK(lade_pinned_stream_retire(own->pool, own->streams[0].handle));
}

static void op_empty_cache(bench *own, int thread) {
  (void)thread;
  LADE_EXPECT_OK(lade_pinned_empty_cache(own->pool));
}

static void op_trim(bench *own, int thread) {
  (void)thread;
  LADE_EXPECT_OK(lade_pinned_trim(own->pool, 0));
}

static void op_drain(bench *own, int thread) {
  (void)thread;
  ladei_pinned_pool_drain(own->pool);
}

/* What was asked for is there while a block is in use, and no longer; the block is as long as such a one is. */
static bool described_at_one_moment(const lade_pinned_info *info) {
  if (info->state != LADE_PINNED_IN_USE) return info->requested_bytes == 0;
  bool asked = info->requested_bytes == SMALL || info->requested_bytes == LARGE;
  return asked && info->bytes >= info->requested_bytes &&
         info->bytes <= info->requested_bytes + ladei_size_max(info->requested_bytes / 8, 4096);
}

/* A block in use is found, and described as it is; one that another thread may free, in whatever way. */
static void op_find(bench *own, int thread) {
  const model_block *block = block_of(own, thread, FRESH);
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  LADE_EXPECT_OK(lade_pinned_find(own->pool, block->address + block->bytes - 1, &info));
  if (info.base != block->address || info.state != LADE_PINNED_IN_USE || info.requested_bytes != block->bytes) {
    LADE_FAIL("a block in use is described as base %p, state %d, %" PRIu64 " bytes", info.base, info.state,
              info.requested_bytes);
  }
  block = block_of(own, 1 - thread, FRESH);
  lade_status status = lade_pinned_find(own->pool, block->address + block->bytes - 1, &info);
  if (status != LADE_OK && status != LADE_ERR_FOREIGN_POINTER)
    LADE_FAIL("find ended with %s", lade_status_name(status));
  if (status == LADE_OK && !described_at_one_moment(&info)) {
    LADE_FAIL("memory of others is described as state %d, %" PRIu64 " of %" PRIu64 " bytes", info.state,
              info.requested_bytes, info.bytes);
  }
}

static void op_stats(bench *own, int thread) {
  lade_pinned_stats stats;
  (void)thread;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(own->pool, &stats));
}

static void op_step(bench *own, int thread) {
  (void)thread;
  for (int i = 0; i < 2; i++) (void)driver(own)->step(own->runtime->self);
}

#define OPERATIONS_LIST(X)                                                                                             \
  X("alloc", op_alloc)                                                                                                 \
  X("alloc_large", op_alloc_large)                                                                                     \
  X("free", op_free)                                                                                                   \
  X("free_recorded", op_free_recorded)                                                                                 \
  X("record", op_record)                                                                                               \
  X("record_use", op_record_use)                                                                                       \
  X("cycle", op_cycle)                                                                                                 \
  X("free_after", op_free_after)                                                                                       \
  X("process_events", op_process_events)                                                                               \
  X("stream_retire", op_stream_retire)                                                                                 \
  X("empty_cache", op_empty_cache)                                                                                     \
  X("trim", op_trim)                                                                                                   \
  X("drain", op_drain)                                                                                                 \
  X("find", op_find)                                                                                                   \
  X("stats", op_stats)                                                                                                 \
  X("step", op_step)

static const operation operations[] = {
#define OPERATION_ENTRY(name, function) {name, function},
    OPERATIONS_LIST(OPERATION_ENTRY)
#undef OPERATION_ENTRY
};

/* ---- A schedule -------------------------------------------------------------------------------------------------- */

static void prepare(void *user) {
  bench *own = user;
  const ladei_pinned_hooks machine = {LADEI_TOPOLOGY_SYNTHETIC, "node:1 core:1 pu:1", "/nonexistent", own->shards, 0};
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.segment_bytes = LADEI_MIB;
  options.max_bytes = 16 * LADEI_MIB;
  options.event_batch = 3;
  options.flags = own->flags;
  own->block_count = 0;
  model_streams_reset(own->streams, STREAMS);
  LADE_EXPECT_OK(ladei_pinned_pool_create(own->runtime, &options, &machine, &own->pool));
  for (int i = 0; i < OWN_BLOCKS; i++) own->own_blocks[ALL][i] = alloc(own, SMALL);
  work(own, 0);
}

/* Each thread has a cache, blocks in use, and freed ones: ready, pending and done, pending. */
static void warm(void *user, int thread) {
  bench *own = user;
  for (int i = 0; i < OWN_BLOCKS; i++) own->own_blocks[thread][i] = alloc(own, SMALL);
  record(own, block_of(own, thread, RECORDED), 0, false);
  int ready = alloc(own, LARGE), pending = alloc(own, SMALL), done = alloc(own, SMALL);
  record(own, &own->blocks[pending], 0, false);
  work(own, 1);
  record(own, &own->blocks[done], 1, true);
  block_free(own, &own->blocks[done]);
  LADE_EXPECT_OK(lade_stream_synchronize(own->runtime, own->streams[1].handle));
  block_free(own, &own->blocks[ready]);
  block_free(own, &own->blocks[pending]);
}

static void body(void *user, int thread) {
  bench *own = user;
  own->operations[thread]->run(own, thread);
}

/* Everything that is ready is taken: none of it is in use by a stream or by a block. */
static void all_taken(bench *own) {
  int first = own->block_count;
  for (int i = 0; i < 6; i++) (void)alloc(own, i < 5 ? SMALL : LARGE);
  for (int i = first; i < own->block_count; i++) block_free(own, &own->blocks[i]);
}

/* After: a retired stream is destroyed, everything is freed; the device goes on item by item, and no memory comes back
 * before it may. Then all of it is given back. */
static void judge(void *user) {
  bench *own = user;
  lade_pinned_stats stats;
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  if (own->streams[0].retired) LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->streams[0].handle));
  for (int i = 0; i < own->block_count; i++)
    if (own->blocks[i].in_use) block_free(own, &own->blocks[i]);
  do {
    LADE_EXPECT_OK(lade_pinned_process_events(own->pool));
    if (own->block_count < BLOCKS_MAX - 6) all_taken(own);
  } while (driver(own)->step(own->runtime->self) == LADE_OK);
  LADE_EXPECT_OK(lade_pinned_empty_cache(own->pool));
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(own->pool, &stats));
  LADE_EXPECT_EQ_UINT(stats.in_use_bytes.current, 0);
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.current, 0);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.current, 0);
  LADE_EXPECT_EQ_UINT(stats.pending_bytes.current, 0);
  LADE_EXPECT_EQ_UINT(stats.pending_blocks.current, 0);
  LADE_EXPECT_EQ_UINT(stats.quarantined_uses, 0);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.current, 0);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->pool, false));
  LADE_EXPECT_EQ_INT(support_live(own->runtime, SUPPORT_LIVE_EVENTS), SCHEDULER_THREADS);
  LADE_EXPECT_EQ_INT(support_live(own->runtime, SUPPORT_LIVE_HOST_REGISTRATIONS), 0);
  LADE_EXPECT_EQ_INT(support_live(own->runtime, SUPPORT_LIVE_HOST_MEMORY), 0);
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(own->runtime, &report));
  LADE_EXPECT_EQ_UINT(report.stale_handles, 0);
  if (own->streams[0].retired) model_stream_open(own->runtime, &own->streams[0]);
}

static bool bench_open(bench *own) {
  memset(own, 0, sizeof *own);
  own->runtime = support_interposer_open("sim", NULL);
  if (own->runtime == NULL) return false;
  for (int s = 0; s < STREAMS; s++) model_stream_open(own->runtime, &own->streams[s]);
  for (int t = 0; t < SCHEDULER_THREADS; t++)
    LADE_EXPECT_OK(driver(own)->event_create(own->runtime->self, own->streams[0].resolved.context, 0, &own->events[t]));
  model_calls_switch(own->runtime, true);
  return true;
}

static void bench_close(bench *own) {
  model_calls_switch(own->runtime, false);
  for (int t = 0; t < SCHEDULER_THREADS; t++)
    LADE_EXPECT_OK(driver(own)->event_destroy(own->runtime->self, own->events[t]));
  for (int s = 0; s < STREAMS; s++) LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->streams[s].handle));
  support_expect_nothing_live(own->runtime);
  support_runtime_close(own->runtime);
}

static void choose(void *user, int thread, int number) {
  bench *own = user;
  own->operations[thread] = &operations[number];
}

/* For LADE_TEST_P. */
static const char *const names[] = {
#define OPERATION_NAME(name, function) name,
    OPERATIONS_LIST(OPERATION_NAME) NULL
#undef OPERATION_NAME
};

/* The named operation with itself and all behind it in the list: one switch, or two where there is time. */
static void pairs(const char *name, uint32_t flags, uint32_t shards) {
  bench own;
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  if (!bench_open(&own)) return;
  own.flags = flags;
  own.shards = shards;
  const scheduler_plan plan = {.preemptions = scheduler_preemptions(1),
                               .prepare = prepare,
                               .warm = warm,
                               .body = body,
                               .judge = judge,
                               .names = names,
                               .choose = choose};
  scheduler_explore_pairs(&plan, &own, name);
  bench_close(&own);
}

LADE_TEST_P(PinnedSchedule, Pairs, names, name) { pairs(name, 0, 1); }

LADE_TEST_P(PinnedSchedule, PairsInTwoShards, names, name) { pairs(name, 0, 2); }

LADE_TEST_P(PinnedScheduleReference, Pairs, names, name) { pairs(name, LADE_PINNED_REFERENCE, 1); }
