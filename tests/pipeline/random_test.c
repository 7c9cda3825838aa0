/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Random work on virtual time: several pipelines share one pool with each other and with staging by
 * hand, over streams that wait for each other. Copies take long and read their source when their time comes, so a block
 * that is handed out too early shows as wrong bytes.
 *
 * The second test deliberately breaks the pool's rule of retirement and must find wrong bytes: proof that the first
 * would notice.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/api/pool.h"
#include "lade/pipeline.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"

enum { JOBS = 16, MOST_BYTES = 8000, PIPELINES = 3, STREAMS = 3 };

typedef enum job_kind { JOB_PIPELINE, JOB_ROUND_TRIP, JOB_BY_HAND } job_kind;

/* Bytes that must end up in a place of their own: on the device, and by a second copy at another place there. */
typedef struct job {
  job_kind kind;
  size_t bytes;
  uint64_t seed;
  char *host;   /* source */
  char *back;   /* round trip: sink */
  char *device; /* two places */
  lade_ticket *ticket;
} job;

typedef struct world {
  support_random random;
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_pipeline *pipelines[PIPELINES];
  lade_stream streams[STREAMS];
  char *device;
  char *host;
  job jobs[JOBS];
} world;

/* The sanitised builds are ten times slower; they look for other things than the schedule. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEEDS = 100 };
#else
enum { SEEDS = 1000 };
#endif

static uint64_t pick(world *w, uint64_t low, uint64_t high) { return support_random_between(&w->random, low, high); }

static bool world_open(world *w, bool broken) {
  /* Slow links: copies outlast the reads, so that blocks are freed with work in flight. */
  lade_soft_device device = {.memory_bytes = 64 << 20, .link_bytes_per_s = pick(w, 1, 20) * 100000000, .numa_node = 1};
  lade_soft_options soft;
  lade_runtime_options options;
  lade_pinned_options pinned;
  void *memory;
  lade_soft_options_init(&soft);
  soft.devices = &device;
  soft.device_count = 1;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  w->runtime = support_interposer_open("sim", &options);
  lade_pinned_options_init(&pinned);
  pinned.event_batch = (uint32_t)pick(w, 1, 16);
  pinned.segment_bytes = 1 << 20;
  bool good = w->runtime != NULL && lade_pinned_pool_create(w->runtime, &pinned, &w->pool) == LADE_OK;
  if (good) support_lie_done(w->runtime, broken);
  for (size_t i = 0; good && i < PIPELINES; i++) {
    lade_pipeline_options pipeline;
    lade_pipeline_options_init(&pipeline);
    pipeline.chunk_bytes = pick(w, 100, 3000);
    pipeline.depth = (uint32_t)pick(w, 1, 8);
    pipeline.readers = (uint32_t)pick(w, 1, 4);
    pipeline.storage_latency_ns = pick(w, 0, 3000);
    pipeline.storage_bytes_per_s = pick(w, 1, 200) * 100000000;
    good = lade_pipeline_create(w->runtime, w->pool, &pipeline, &w->pipelines[i]) == LADE_OK;
  }
  for (size_t i = 0; good && i < STREAMS; i++) good = lade_stream_create(w->runtime, 0, &w->streams[i]) == LADE_OK;
  good = good && w->runtime->ops->device_alloc(w->runtime->self, 0, 2 * JOBS * MOST_BYTES, &memory) == LADE_OK;
  w->device = good ? memory : NULL;
  w->host = calloc(2, JOBS * MOST_BYTES);
  LADE_EXPECT(good && w->host != NULL);
  return good && w->host != NULL;
}

static void world_close(world *w) {
  for (size_t i = 0; i < STREAMS; i++) {
    LADE_EXPECT_OK(lade_stream_synchronize(w->runtime, w->streams[i]));
    LADE_EXPECT_OK(lade_pinned_stream_retire(w->pool, w->streams[i]));
    LADE_EXPECT_OK(lade_stream_destroy(w->runtime, w->streams[i]));
  }
  for (size_t i = 0; i < PIPELINES; i++) LADE_EXPECT_OK(lade_pipeline_destroy(w->pipelines[i], false));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(w->pool, true));
  LADE_EXPECT_OK(w->runtime->ops->device_free(w->runtime->self, 0, w->device));
  support_runtime_close(w->runtime);
  free(w->host);
}

static lade_status submit(world *w, const job *j, lade_direction direction, lade_stream after, lade_ticket **out) {
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = (int32_t)direction;
  transfer.host = lade_endpoint_memory(direction == LADE_TO_DEVICE ? j->host : j->back);
  transfer.device_memory = j->device;
  transfer.bytes = j->bytes;
  transfer.after_stream = after != NULL;
  transfer.stream = after;
  return lade_pipeline_submit(w->pipelines[pick(w, 0, PIPELINES - 1)], &transfer, out);
}

/* What people write around cudaMemcpyAsync, with the block freed at once. */
static void stage_by_hand(world *w, const job *j, lade_stream stream) {
  void *block;
  LADE_ASSERT_OK(lade_pinned_alloc(w->pool, j->bytes, &block));
  memcpy(block, j->host, j->bytes);
  LADE_EXPECT_OK(lade_copy_async(w->runtime, j->device, block, j->bytes, stream));
  LADE_EXPECT_OK(lade_pinned_record_event(w->pool, block, stream));
  LADE_EXPECT_OK(lade_pinned_free(w->pool, block));
}

static void job_start(world *w, size_t index) {
  job *j = &w->jobs[index];
  lade_stream stream = w->streams[pick(w, 0, STREAMS - 1)];
  *j = (job){.kind = (job_kind)pick(w, 0, 2), .bytes = (size_t)pick(w, 1, MOST_BYTES), .seed = index + 1};
  j->host = w->host + index * MOST_BYTES;
  j->back = w->host + (JOBS + index) * MOST_BYTES;
  j->device = w->device + 2 * index * MOST_BYTES;
  support_pattern_fill(j->host, j->bytes, j->seed, 0);
  if (j->kind == JOB_BY_HAND) {
    stage_by_hand(w, j, stream);
  } else {
    LADE_ASSERT_OK(submit(w, j, LADE_TO_DEVICE, NULL, &j->ticket));
    LADE_EXPECT_OK(lade_stream_wait_ticket(stream, j->ticket));
  }
  /* A consumer on that stream. */
  LADE_EXPECT_OK(lade_copy_async(w->runtime, j->device + MOST_BYTES, j->device, j->bytes, stream));
  if (j->kind == JOB_ROUND_TRIP) {
    lade_ticket_release(j->ticket);
    LADE_ASSERT_OK(submit(w, j, LADE_TO_HOST, stream, &j->ticket));
  }
}

static bool is_right(const world *w, const job *j, const char *place) {
  char copy[MOST_BYTES];
  LADE_EXPECT_OK(w->runtime->ops->copy_sync(w->runtime->self, 0, LADEI_COPY_D2H, copy, place, j->bytes));
  return support_pattern_mismatch(copy, j->bytes, j->seed, 0) == j->bytes;
}

/* Number of places that hold wrong bytes. */
static unsigned run_seed(uint64_t seed, bool broken) {
  world w;
  unsigned wrong = 0;
  memset(&w, 0, sizeof w);
  support_random_start_quietly(&w.random, seed);
  if (!world_open(&w, broken)) return 0;
  for (size_t i = 0; i < JOBS && !lade_test_has_failed(); i++) {
    job_start(&w, i);
    if (support_random_one_in(&w.random, 4)) LADE_EXPECT_OK(lade_soft_advance(w.runtime, pick(&w, 0, 20000)));
  }
  for (size_t i = 0; i < JOBS && !lade_test_has_failed(); i++) {
    if (w.jobs[i].ticket != NULL) {
      LADE_EXPECT_OK(lade_ticket_wait(w.jobs[i].ticket, LADE_WAIT_FOREVER));
      lade_ticket_release(w.jobs[i].ticket);
    }
  }
  LADE_EXPECT_OK(w.runtime->ops->device_synchronize(w.runtime->self, 0));
  for (size_t i = 0; i < JOBS && !lade_test_has_failed(); i++) {
    const job *j = &w.jobs[i];
    wrong += is_right(&w, j, j->device) ? 0 : 1;
    wrong += is_right(&w, j, j->device + MOST_BYTES) ? 0 : 1;
    wrong += j->kind != JOB_ROUND_TRIP || support_pattern_mismatch(j->back, j->bytes, j->seed, 0) == j->bytes ? 0 : 1;
  }
  world_close(&w);
  return wrong;
}

LADE_TEST(RandomStaging, GetsEveryByteRight) {
  uint64_t first = support_seed(1);
  uint64_t count = first == 1 ? SEEDS : 1;
  for (uint64_t seed = first; seed < first + count && !lade_test_has_failed(); seed++) {
    lade_test_context("LADE_TEST_SEED=%llu", (unsigned long long)seed);
    LADE_EXPECT_EQ_UINT(run_seed(seed, false), 0);
  }
}

LADE_TEST(RandomStaging, NoticesABrokenRuleOfRetirement) {
  unsigned seeds_wrong = 0;
  for (uint64_t seed = 1; seed <= 20 && !lade_test_has_failed(); seed++)
    seeds_wrong += run_seed(seed, true) > 0 ? 1 : 0;
  LADE_EXPECT_GE_UINT(seeds_wrong, 1);
  printf("%u of 20 seeds found it\n", seeds_wrong);
}
