/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Pipelines on a pool whose cap leaves them one to four blocks together: they wait for each other, and
 * no transfer fails. What the program holds itself is nothing to wait for.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"
#include "tests/support/soak.h"
#include "tests/support/temp_dir.h"

enum { CHUNK = 16 << 10, MOST = 4 * CHUNK, PIPELINES = 2, RINGS = 2 * PIPELINES, PLACES = 12 };

/* Of the combinations of kinds, every so many; a long run takes all. */
enum { STEP = 5 };

typedef enum source_kind { KIND_NONE, KIND_MEMORY, KIND_FILE, KIND_CALLBACK, KINDS } source_kind;

typedef struct transfer_state {
  lade_ticket *ticket;
  lade_direction direction;
  char *device;
  char host[MOST];
  size_t bytes;
  uint64_t seed;
} transfer_state;

typedef struct scene {
  fixture f; /* its pipeline is the first */
  lade_pipeline *pipelines[PIPELINES];
  support_temp_dir dir;
  char *path;
} scene;

static lade_status fill(void *user, uint64_t offset, void *buffer, size_t bytes) {
  const transfer_state *t = user;
  support_pattern_fill(buffer, bytes, t->seed, offset);
  return LADE_OK;
}

static lade_status drain(void *user, uint64_t offset, void *buffer, size_t bytes) {
  transfer_state *t = user;
  memcpy(t->host + offset, buffer, bytes);
  return LADE_OK;
}

/* The file holds the pattern of seed 1. */
static bool scene_open(scene *s, const char *name) {
  memset(s, 0, sizeof *s);
  if (!support_temp_dir_create(&s->dir)) return false;
  s->path = support_temp_dir_path(&s->dir, "source");
  s->f.runtime = support_runtime_open(name);
  s->f.device_bytes = (size_t)PLACES * MOST;
  void *device = NULL;
  bool good = s->f.runtime != NULL && support_temp_file_write(s->path, MOST, 1) &&
              s->f.runtime->ops->device_alloc(s->f.runtime->self, 0, s->f.device_bytes, &device) == LADE_OK;
  s->f.device = device;
  return good;
}

static void scene_close(scene *s) {
  LADE_EXPECT_OK(s->f.runtime->ops->device_free(s->f.runtime->self, 0, s->f.device));
  support_runtime_close(s->f.runtime);
  support_temp_dir_remove(&s->dir);
  free(s->path);
}

static void pool_open(scene *s, unsigned blocks) {
  lade_pinned_options pinned;
  lade_pipeline_options options;
  lade_pinned_options_init(&pinned);
  pinned.max_bytes = (uint64_t)blocks * CHUNK;
  LADE_ASSERT_OK(lade_pinned_pool_create(s->f.runtime, &pinned, &s->f.pool));
  fixture_options(&options);
  options.chunk_bytes = CHUNK;
  options.depth = 4;
  for (int i = 0; i < PIPELINES; i++)
    LADE_ASSERT_OK(lade_pipeline_create(s->f.runtime, s->f.pool, &options, &s->pipelines[i]));
}

static void pool_close(scene *s) {
  for (int i = 0; i < PIPELINES; i++) LADE_EXPECT_OK(lade_pipeline_destroy(s->pipelines[i], false));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(s->f.pool, true));
}

/* Ring `ring`: pipeline ring / 2, to the device and to the host in turn. Each place has device memory of its own. */
static lade_transfer transfer_make(scene *s, transfer_state *t, unsigned place, source_kind kind, size_t bytes) {
  t->direction = place % 2 == 0 ? LADE_TO_DEVICE : LADE_TO_HOST;
  t->bytes = bytes;
  t->seed = kind == KIND_FILE ? 1 : 2 + place;
  t->device = s->f.device + (size_t)place * MOST;
  lade_endpoint host = lade_endpoint_memory(t->host);
  if (kind == KIND_CALLBACK) host = lade_endpoint_callback(t->direction == LADE_TO_DEVICE ? fill : drain, t);
  if (kind == KIND_FILE && t->direction == LADE_TO_DEVICE) host = lade_endpoint_path(s->path, 0, 0);
  if (t->direction == LADE_TO_DEVICE) {
    support_pattern_fill(t->host, bytes, t->seed, 0);
  } else {
    char pattern[MOST];
    memset(t->host, 0, bytes);
    support_pattern_fill(pattern, bytes, t->seed, 0);
    fixture_device_write(&s->f, (size_t)(t->device - s->f.device), pattern, bytes);
  }
  lade_transfer transfer = fixture_transfer(&s->f, t->direction, host, bytes);
  transfer.device_memory = t->device;
  return transfer;
}

static void transfer_check(const scene *s, const transfer_state *t) {
  if (t->direction == LADE_TO_DEVICE)
    fixture_expect_device_pattern(&s->f, (size_t)(t->device - s->f.device), t->bytes, t->seed, 0);
  else
    LADE_EXPECT_PATTERN(t->host, t->bytes, t->seed, 0);
}

static transfer_state states[PLACES];

/* Every ring has a transfer of some kind or none: all of them at once, waited for in an order that the number gives. */
static void rings_run(scene *s, unsigned blocks, unsigned number) {
  pool_open(s, blocks);
  for (unsigned i = 0, kinds = number; i < RINGS; i++, kinds /= KINDS) {
    source_kind kind = (source_kind)(kinds % KINDS);
    states[i].ticket = NULL;
    if (kind == KIND_NONE) continue;
    lade_transfer transfer = transfer_make(s, &states[i], i, kind, (1 + (number + i) % 4) * CHUNK - i);
    LADE_ASSERT_OK(lade_pipeline_submit(s->pipelines[i / 2], &transfer, &states[i].ticket));
  }
  for (unsigned k = 0; k < RINGS; k++) {
    transfer_state *t = &states[(k + number) % RINGS];
    if (t->ticket == NULL) continue;
    LADE_EXPECT_OK(lade_ticket_wait(t->ticket, LADE_WAIT_FOREVER));
    lade_ticket_release(t->ticket);
    transfer_check(s, t);
  }
  pool_close(s);
}

/* Bug: the direction that came second to a pool with one block left got LADE_ERR_LIMIT, at random. */
LADE_TEST(CappedPool, LetsRingsWaitForEachOther) {
  scene s;
  unsigned all = KINDS * KINDS * KINDS * KINDS, step = support_soak_seconds(0) > 0 ? 1 : STEP;
  if (!scene_open(&s, "sim")) return;
  for (unsigned blocks = 1; blocks <= 4; blocks++) {
    for (unsigned number = 1 + blocks % step; number < all && !lade_test_has_failed(); number += step) {
      lade_test_context("%u blocks, kinds %u", blocks, number);
      rings_run(&s, blocks, number);
    }
  }
  scene_close(&s);
}

/* A direction with work for long gives its only block up after a chunk: the other one, and other pipelines, take turns. */
LADE_TEST(CappedPool, IsSharedByTurns) {
  enum { LONG = 32 };
  scene s;
  lade_ticket *tickets[LONG];
  if (!scene_open(&s, "sim")) return;
  pool_open(&s, 1);
  lade_transfer bulk = transfer_make(&s, &states[0], 0, KIND_MEMORY, MOST);
  for (unsigned i = 0; i < LONG; i++) LADE_ASSERT_OK(lade_pipeline_submit(s.pipelines[0], &bulk, &tickets[i]));
  for (unsigned i = 1; i < RINGS; i++) {
    lade_transfer transfer = transfer_make(&s, &states[i], i, KIND_MEMORY, MOST);
    LADE_ASSERT_OK(lade_pipeline_submit(s.pipelines[i / 2], &transfer, &states[i].ticket));
  }
  for (unsigned i = 1; i < RINGS; i++) {
    LADE_EXPECT_OK(lade_ticket_wait(states[i].ticket, LADE_WAIT_FOREVER));
    lade_ticket_release(states[i].ticket);
    transfer_check(&s, &states[i]);
  }
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_ticket_query(tickets[LONG / 2], NULL));
  s.f.pipeline = s.pipelines[1];
  LADE_EXPECT_GE_UINT(fixture_info(&s.f).block_waits, 1);
  for (unsigned i = 0; i < LONG; i++) {
    LADE_EXPECT_OK(lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER));
    lade_ticket_release(tickets[i]);
  }
  pool_close(&s);
  scene_close(&s);
}

static lade_stream stream_held(const scene *s) {
  lade_stream stream;
  LADE_EXPECT_OK(lade_stream_create(s->f.runtime, 0, &stream));
  LADE_EXPECT_OK(lade_soft_stream_hold(s->f.runtime, stream, true));
  return stream;
}

/* Priorities, submitters, callbacks on several threads, a stream that is late; some are cancelled; and the program keeps a
 * part of the blocks, but not all. */
static void crowd_run(scene *s, uint64_t seed) {
  support_random random;
  void *kept[4] = {NULL};
  support_random_start(&random, seed);
  unsigned blocks = (unsigned)support_random_between(&random, 1, 4);
  unsigned keeps = (unsigned)support_random_below(&random, blocks);
  pool_open(s, blocks);
  lade_stream stream = stream_held(s);
  for (unsigned i = 0; i < keeps; i++) LADE_ASSERT_OK(lade_pinned_alloc(s->f.pool, CHUNK, &kept[i]));
  for (unsigned i = 0; i < PLACES; i++) {
    source_kind kind = (source_kind)support_random_between(&random, KIND_MEMORY, KIND_CALLBACK);
    lade_transfer transfer = transfer_make(s, &states[i], i, kind, (size_t)support_random_between(&random, 1, MOST));
    transfer.priority = (int32_t)support_random_below(&random, 3) - 1;
    transfer.submitter = support_random_between(&random, 1, 3);
    transfer.after_stream = support_random_below(&random, 4) == 0;
    transfer.stream = stream;
    transfer.host.concurrent = kind == KIND_CALLBACK && support_random_below(&random, 2) == 0;
    lade_pipeline *pipeline = s->pipelines[i / 2 % PIPELINES];
    LADE_ASSERT_OK(lade_pipeline_submit(pipeline, &transfer, &states[i].ticket));
    if (support_random_below(&random, 3) == 0) (void)lade_ticket_wait(states[i].ticket, 1000);
  }
  LADE_EXPECT_OK(lade_soft_stream_hold(s->f.runtime, stream, false));
  for (unsigned k = 0, first = (unsigned)support_random_below(&random, PLACES); k < PLACES; k++) {
    transfer_state *t = &states[(first + k * 5) % PLACES];
    bool cancels = support_random_below(&random, 6) == 0;
    if (cancels) LADE_EXPECT_OK(lade_ticket_cancel(t->ticket));
    lade_status status = lade_ticket_wait(t->ticket, LADE_WAIT_FOREVER);
    LADE_EXPECT(status == LADE_OK || (cancels && status == LADE_ERR_CANCELLED));
    if (status == LADE_OK) transfer_check(s, t);
    lade_ticket_release(t->ticket);
  }
  for (unsigned i = 0; i < keeps; i++) LADE_EXPECT_OK(lade_pinned_free(s->f.pool, kept[i]));
  LADE_EXPECT_OK(lade_stream_destroy(s->f.runtime, stream));
  pool_close(s);
}

LADE_TEST(CappedPool, LetsACrowdWaitForEachOther) {
  scene s;
  if (!scene_open(&s, "sim")) return;
  support_soak soak = support_soak_begin(0.5);
  for (uint64_t seed = 1; support_soak_goes_on(&soak) && !lade_test_has_failed(); seed++) {
    lade_test_context("LADE_TEST_SEED=%llu", (unsigned long long)seed);
    crowd_run(&s, seed);
  }
  scene_close(&s);
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

typedef struct worker {
  scene *s;
  unsigned ring;
  uint64_t seed;
  transfer_state state;
} worker;

static void *worker_main(void *user) {
  worker *w = user;
  support_random random;
  support_random_start_quietly(&random, w->seed);
  for (int i = 0; i < 12; i++) {
    source_kind kind = (source_kind)support_random_between(&random, KIND_MEMORY, KIND_CALLBACK);
    lade_transfer transfer =
        transfer_make(w->s, &w->state, w->ring, kind, (size_t)support_random_between(&random, 1, MOST));
    lade_status status = lade_pipeline_submit(w->s->pipelines[w->ring / 2], &transfer, &w->state.ticket);
    LADE_EXPECT_OK(status);
    if (status != LADE_OK) break;
    bool cancels = support_random_below(&random, 8) == 0;
    if (cancels) LADE_EXPECT_OK(lade_ticket_cancel(w->state.ticket));
    status = lade_ticket_wait(w->state.ticket, LADE_WAIT_FOREVER);
    LADE_EXPECT(status == LADE_OK || (cancels && status == LADE_ERR_CANCELLED));
    if (status != LADE_OK && status != LADE_ERR_CANCELLED) LADE_FAIL("%s", lade_last_error()->text);
    lade_ticket_release(w->state.ticket);
    if (status == LADE_OK) transfer_check(w->s, &w->state);
  }
  return NULL;
}

/* The same with a thread for each ring, at random, some transfers cancelled. */
LADE_TEST(CappedPool, LetsThreadsWaitForEachOther) {
  static worker workers[RINGS];
  scene s;
  pthread_t threads[RINGS];
  if (!scene_open(&s, "cpu")) return;
  support_soak soak = support_soak_begin(0.5);
  for (uint64_t seed = 1; support_soak_goes_on(&soak) && !lade_test_has_failed(); seed++) {
    unsigned blocks = 1 + (unsigned)(seed % 4);
    lade_test_context("LADE_TEST_SEED=%llu, %u blocks", (unsigned long long)seed, blocks);
    pool_open(&s, blocks);
    for (unsigned i = 0; i < RINGS; i++) {
      workers[i].s = &s;
      workers[i].ring = i;
      workers[i].seed = seed * RINGS + i;
      LADE_ASSERT(pthread_create(&threads[i], NULL, worker_main, &workers[i]) == 0);
    }
    for (unsigned i = 0; i < RINGS; i++) pthread_join(threads[i], NULL);
    pool_close(&s);
  }
  scene_close(&s);
}

/* --- the program's own blocks ------------------------------------------------------------------------------------- */

/* LADE_ERR_LIMIT at once where the program holds the blocks; waiting where it has given them back and a stream uses them. */
LADE_TEST_P(CappedPool, WaitsForPendingBlocksAndNotForTheProgram, support_soft_runtimes, name) {
  scene s;
  void *block;
  lade_stream stream;
  lade_ticket *ticket;
  if (!scene_open(&s, name)) return;
  pool_open(&s, 1);
  LADE_ASSERT_OK(lade_stream_create(s.f.runtime, 0, &stream));
  LADE_ASSERT_OK(lade_pinned_alloc(s.f.pool, CHUNK, &block));
  lade_transfer transfer = transfer_make(&s, &states[0], 0, KIND_MEMORY, 3 * CHUNK);
  s.f.pipeline = s.pipelines[0];
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, fixture_run(&s.f, &transfer));
  LADE_ASSERT_OK(lade_soft_stream_hold(s.f.runtime, stream, true));
  LADE_ASSERT_OK(lade_copy_async(s.f.runtime, s.f.device + MOST, block, CHUNK, stream));
  LADE_ASSERT_OK(lade_pinned_record_event(s.f.pool, block, stream));
  LADE_ASSERT_OK(lade_pinned_free(s.f.pool, block));
  LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_ticket_wait(ticket, 5000000));
  LADE_EXPECT_OK(lade_soft_stream_hold(s.f.runtime, stream, false));
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  transfer_check(&s, &states[0]);
  LADE_EXPECT_OK(lade_stream_destroy(s.f.runtime, stream));
  pool_close(&s);
  scene_close(&s);
}

/* The bug: a reader waited in the pool for the time that the program allows itself, for blocks that its own ring held. */
LADE_TEST(CappedPool, RingsDoNotWaitAsTheProgramDoes) {
  enum { CAP = 1 << 20, BLOCK = 128 << 10, BYTES = 8 << 20 };
  fixture f;
  lade_pinned_stats stats;
  lade_pinned_options pool;
  lade_pipeline_options options;
  lade_pinned_options_init(&pool);
  fixture_options(&options);
  pool.max_bytes = pool.segment_bytes = CAP;
  pool.wait_ms = 60000;
  options.chunk_bytes = BLOCK;
  options.depth = 4 * CAP / BLOCK;
  if (!fixture_open_pool(&f, "cpu", BYTES, &pool, &options)) return;
  char *host = calloc(1, BYTES);
  LADE_ASSERT(host != NULL);
  LADE_EXPECT_OK(fixture_move(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), BYTES));
  LADE_EXPECT_OK(fixture_move(&f, LADE_TO_HOST, lade_endpoint_memory(host), BYTES));
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(f.pool, &stats));
  LADE_EXPECT_EQ_UINT(stats.limit_waits, 0);
  free(host);
  fixture_close(&f);
}
