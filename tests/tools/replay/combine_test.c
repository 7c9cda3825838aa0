/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Combining (device/native/combine.h) changes no decision. Threads allocate and free on one allocator, which
 * logs the order in which calls are executed, by whichever thread. That order is replayed in one thread, by lade replay and
 * by the plain model: addresses, counters with their peaks, segments and blocks must be the same in all three.
 *
 * First by rounds: the lock is held until each thread has published a call. So calls are combined on a machine of any
 * number of processors. Then the threads run as they like.
 */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "device/native/combine.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/tools/replay/model.h"
#include "tools/replay/replay.h"

enum { THREADS = 6, ROUNDS = 300, STEPS = 600, SLOTS = 8, SHARED = 16, LOG_MAX = 40000 };

#define CAPACITY ((size_t)256 * MIB)

/* An executed call, or a new segment of the call behind it. */
typedef struct entry {
  trace_kind kind; /* TRACE_ALLOC, TRACE_FREE; TRACE_DEVICE: a segment */
  uint64_t address, bytes, stream;
} entry;

typedef struct arena {
  device_fixture f;
  entry log[LOG_MAX]; /* guarded by the allocator's lock */
  size_t count;
  _Atomic(void *) shared[SHARED]; /* blocks that any thread frees */
  atomic_int round;               /* that may be run */
  atomic_int finished;            /* threads that are through with it */
} arena;

static arena the_arena;

/* ---- The log ----------------------------------------------------------------------------------------------------- */

static uint64_t stream_number(lade_stream handle) {
  uint64_t number = 0;
  while (number < FIXTURE_STREAMS && the_arena.f.streams[number] != handle) number++;
  return number + 1;
}

static void log_add(entry e) {
  if (the_arena.count == LOG_MAX) abort();
  the_arena.log[the_arena.count++] = e;
}

static void log_alloc(ladei_device_heap *heap, ladei_device_block *block) {
  (void)heap;
  log_add((entry){TRACE_ALLOC, block->address, block->requested, stream_number(block->segment->stream.handle)});
}

static void log_free(ladei_device_heap *heap, ladei_device_block *block) {
  (void)heap;
  log_add((entry){TRACE_FREE, block->address, 0, 0});
}

static void log_done(ladei_device_heap *heap, ladei_device_block *block) {
  (void)heap;
  (void)block;
}

static void log_segment(ladei_device_heap *heap, ladei_device_heap_segment *segment, lade_device_action action,
                        uint64_t address, uint64_t bytes) {
  (void)heap;
  (void)segment;
  if (action == LADE_DEVICE_SEGMENT_ALLOC) log_add((entry){TRACE_DEVICE, address, bytes, 0});
}

static void log_gone(ladei_device_heap *heap, ladei_device_heap_segment *segment) {
  (void)heap;
  (void)segment;
}

static const ladei_device_heap_listener logging = {log_alloc, log_free, log_done, log_segment, log_gone};

/* As a listener that nobody else knows of: a recount would miss the history that it belongs to (H4). */
static void listener_set(const ladei_device_heap_listener *listener) {
  lade_device_allocator *allocator = the_arena.f.allocator;
  ladei_lock_acquire(&allocator->lock);
  allocator->heap.listener = listener;
  atomic_store(&allocator->calls_since_recount, 0);
  atomic_store(&allocator->calls_per_recount, listener != NULL ? SIZE_MAX : 0);
  ladei_lock_release(&allocator->lock);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

static void *block_alloc(size_t bytes, int stream) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(the_arena.f.allocator, bytes, the_arena.f.streams[stream], &block));
  return block;
}

static void block_free(void *block) { LADE_EXPECT_OK(lade_device_free(the_arena.f.allocator, block)); }

/* More memory of each stream than the threads will want, so that none of their calls misses: while one grows, others go on,
 * and what it then takes is no decision that one thread alone would come to. */
static void memory_warm(void) {
  enum { BLOCKS = 24 };
  for (int s = 0; s < FIXTURE_STREAMS; s++) {
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) blocks[i] = block_alloc(MIB, s);
    for (int i = 0; i < BLOCKS; i++) block_free(blocks[i]);
    block_free(block_alloc(24 * MIB, s));
  }
}

static size_t size_make(support_random *random) {
  return support_random_one_in(random, 8) ? support_random_between(random, MIB + 1, 2 * MIB)
                                          : support_random_size(random, 64 * 1024);
}

static void step(support_random *random, void **slots, int stream) {
  void **slot = &slots[support_random_below(random, SLOTS)];
  if (*slot == NULL) {
    *slot = block_alloc(size_make(random), stream);
  } else if (support_random_one_in(random, 4)) {
    *slot = atomic_exchange(&the_arena.shared[support_random_below(random, SHARED)], *slot);
    block_free(*slot);
    *slot = NULL;
  } else {
    block_free(*slot);
    *slot = NULL;
  }
}

static void round_await(int round) {
  while (atomic_load(&the_arena.round) < round) sched_yield();
}

/* Half of the blocks stay. */
static void *worker_run(void *user) {
  int thread = (int)(intptr_t)user;
  support_random random;
  void *slots[SLOTS] = {NULL};
  support_random_start_quietly(&random, support_seed(7) + (uint64_t)thread);
  for (int round = 1; round <= ROUNDS; round++) {
    round_await(round);
    step(&random, slots, thread % FIXTURE_STREAMS);
    atomic_fetch_add(&the_arena.finished, 1);
  }
  for (int i = 0; i < STEPS; i++) step(&random, slots, thread % FIXTURE_STREAMS);
  for (int i = 0; i < SLOTS; i += 2) block_free(slots[i]);
  return NULL;
}

/* The lock is held: who has published, waits. */
static int published_count(const lade_device_allocator *allocator) {
  int count = 0;
  for (const ladei_device_call *call = atomic_load(&allocator->published); call != NULL; call = call->next) count++;
  return count;
}

/* Has each thread publish a call, if its step makes one, and executes them. */
static void round_run(int round) {
  lade_device_allocator *allocator = the_arena.f.allocator;
  ladei_lock_acquire(&allocator->lock);
  atomic_store(&the_arena.finished, 0);
  atomic_store(&the_arena.round, round);
  while (published_count(allocator) + atomic_load(&the_arena.finished) < THREADS) sched_yield();
  ladei_device_combine_release(allocator);
  while (atomic_load(&the_arena.finished) < THREADS) sched_yield();
}

static void threads_run(void) {
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    LADE_ASSERT(pthread_create(&threads[i], NULL, worker_run, (void *)(intptr_t)i) == 0);
  for (int round = 1; round <= ROUNDS; round++) round_run(round);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

/* ---- Replays ----------------------------------------------------------------------------------------------------- */

typedef struct comparison {
  const char *who;
  const lade_device_snapshot *snapshot;
  lade_device_stats stats;
} comparison;

typedef struct stat_list {
  int64_t values[122];
  const char *keys[122];
  size_t count;
} stat_list;

static void stat_collect(void *user, const char *key, int64_t value) {
  stat_list *list = user;
  list->keys[list->count] = key;
  list->values[list->count++] = value;
}

static void stats_compare(const comparison *c, const lade_device_stats *got) {
  stat_list a = {.count = 0}, b = {.count = 0};
  report_stats_each(&c->stats, stat_collect, &a);
  report_stats_each(got, stat_collect, &b);
  for (size_t i = 0; i < a.count; i++)
    if (a.values[i] != b.values[i])
      LADE_FAIL("%s: %s is %" PRId64 ", with threads %" PRId64, c->who, a.keys[i], b.values[i], a.values[i]);
}

static void report_compare(void *user, const report_entry *got) {
  const comparison *c = user;
  lade_test_context("%s", c->who);
  stats_compare(c, got->stats);
  LADE_ASSERT_EQ_SIZE(got->segment_count, c->snapshot->segment_count);
  for (size_t i = 0, at = 0; i < got->segment_count; i++) {
    const report_segment *segment = &got->segments[i];
    const lade_device_snapshot_segment *own = &c->snapshot->segments[i];
    LADE_ASSERT_EQ_UINT(segment->address, own->address);
    LADE_ASSERT_EQ_UINT(segment->total_size, own->total_bytes);
    LADE_ASSERT_EQ_UINT(segment->stream, stream_number(own->stream));
    LADE_ASSERT_EQ_SIZE(segment->block_count, own->block_count);
    for (size_t k = 0; k < segment->block_count; k++, at++) {
      const report_block *block = &got->blocks[at];
      const lade_device_snapshot_block *mine = &c->snapshot->blocks[at];
      LADE_ASSERT_EQ_UINT(segment->address + block->offset, mine->address);
      LADE_ASSERT_EQ_UINT(block->size, mine->bytes);
      LADE_ASSERT_EQ_UINT(block->requested_size, mine->requested_bytes);
    }
  }
  lade_test_context("%s", "");
}

/* The trace of the log: each alloc gets the next ID. */
static size_t trace_make(trace_op *ops) {
  static uint64_t addresses[LOG_MAX]; /* of each ID, while it is live */
  uint64_t ids = 0, at = 0;
  size_t count = 0;
  for (size_t i = 0; i < the_arena.count; i++) {
    const entry *e = &the_arena.log[i];
    trace_op op = {.line = count + 3, .kind = e->kind};
    if (e->kind == TRACE_DEVICE) {
      at = e->address;
      continue;
    }
    uint64_t id = ids + 1;
    if (e->kind == TRACE_ALLOC) {
      addresses[++ids] = e->address;
      op.number[1] = e->bytes;
      op.number[2] = e->stream;
      op.at = at;
      at = 0;
    } else {
      for (id = ids; addresses[id] != e->address;) id--;
      addresses[id] = 0;
    }
    op.number[0] = id;
    ops[count++] = op;
  }
  return count;
}

static void replays_compare(comparison *c) {
  static trace_op ops[LOG_MAX];
  size_t count = trace_make(ops);
  const model_settings own = {.capacity = CAPACITY, .max_split = UINT64_MAX};
  replay_settings settings = {.snapshot = report_compare, .user = c};
  model *m = model_create(&own);
  replay *r = replay_create(&settings);
  trace_reader *reader = trace_reader_create(stdin, "log");
  trace_op device = {.kind = TRACE_DEVICE, .number = {CAPACITY}};
  trace_op snapshot = {.kind = TRACE_SNAPSHOT, .text = "end"};
  (void)replay_step(r, reader, &device);
  for (size_t i = 0; i < count; i++) {
    if (replay_step(r, reader, &ops[i]) != TRACE_OP) LADE_FAIL("replay: %s", trace_error(reader));
    if (!model_step(m, &ops[i])) LADE_FAIL("the model refuses operation %zu", i);
  }
  c->who = "replay";
  (void)replay_step(r, reader, &snapshot);
  c->who = "model";
  report_compare(c, model_report(m));
  replay_destroy(r);
  trace_reader_destroy(reader);
  model_destroy(m);
}

/* ---- The test ---------------------------------------------------------------------------------------------------- */

static void left_free(const lade_device_snapshot *snapshot) {
  for (size_t i = 0; i < snapshot->block_count; i++)
    if (snapshot->blocks[i].state == LADE_DEVICE_BLOCK_ALLOCATED)
      block_free((void *)(uintptr_t)snapshot->blocks[i].address);
}

LADE_TEST(DeviceCombine, OrderOfExecutionReplaysToTheSame) {
  lade_device_options options;
  comparison c = {.who = ""};
  lade_device_snapshot *snapshot = NULL;
  memset(&the_arena, 0, sizeof the_arena);
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_REFERENCE; /* as a replay */
  if (!device_fixture_open(&the_arena.f, "cpu", CAPACITY, &options)) return;
  listener_set(&logging);
  memory_warm();
  uint64_t grown = device_fixture_stats(&the_arena.f).device_allocs;
  threads_run();
  listener_set(NULL);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&the_arena.f).device_allocs, grown);
  LADE_EXPECT_GT_UINT(the_arena.f.allocator->combined, ROUNDS * THREADS / 2);
  c.stats = device_fixture_stats(&the_arena.f);
  LADE_ASSERT_OK(lade_device_snapshot_take(the_arena.f.allocator, &snapshot));
  c.snapshot = snapshot;
  replays_compare(&c);
  left_free(snapshot);
  lade_device_snapshot_destroy(snapshot);
  device_fixture_close(&the_arena.f);
}
