/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pinned pool with real copies on real streams: software devices, runtime/cuda on the loopback driver, and a GPU
 * where there is one.
 */
#include <pthread.h>
#include <stdlib.h>

#include "lade/lade.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

#define MIB ((size_t)1 << 20)

typedef struct rig {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_stream stream;
  char *device; /* DEVICE_BYTES */
} rig;

#define DEVICE_BYTES     (8 * MIB)

#define OP(r, name, ...) ((r)->runtime->ops->name((r)->runtime->self, __VA_ARGS__))

static bool rig_open(rig *r, const char *name, const lade_pinned_options *options) {
  void *device = NULL;
  *r = (rig){.runtime = support_runtime_open(name)};
  if (r->runtime == NULL) return false;
  LADE_EXPECT_OK(lade_runtime_set_device(r->runtime, 0));
  LADE_EXPECT_OK(lade_stream_create(r->runtime, 0, &r->stream));
  LADE_EXPECT_OK(OP(r, device_alloc, 0, DEVICE_BYTES, &device));
  LADE_EXPECT_OK(lade_pinned_pool_create(r->runtime, options, &r->pool));
  r->device = device;
  return !lade_test_has_failed();
}

static void rig_close(rig *r) {
  LADE_EXPECT_OK(lade_pinned_pool_destroy(r->pool, true));
  LADE_EXPECT_OK(OP(r, device_free, 0, r->device));
  LADE_EXPECT_OK(lade_stream_destroy(r->runtime, r->stream));
  support_runtime_close(r->runtime);
}

static void copy_on(rig *r, lade_stream handle, ladei_copy_direction direction, void *dst, const void *src,
                    size_t bytes) {
  ladei_stream stream;
  LADE_ASSERT_OK(OP(r, stream_resolve, handle, &stream));
  LADE_ASSERT_OK(OP(r, copy, direction, dst, src, bytes, &stream));
}

static uint64_t pending_bytes(rig *r) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(r->pool, &stats));
  return stats.pending_bytes.current;
}

static uint64_t reserved_bytes(rig *r) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(r->pool, &stats));
  return stats.reserved_bytes.current;
}

static bool nothing_pending(void *user) {
  rig *r = user;
  LADE_EXPECT_OK(lade_pinned_process_events(r->pool));
  return pending_bytes(r) == 0;
}

/* ---- Reuse ------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedRuntimes, BlockIsNotReusedBeforeItsCopyIsDone, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, NULL)) return;
  enum { BYTES = 1 << 20 };
  support_gate gate;
  void *first = NULL, *second = NULL, *third = NULL;
  LADE_ASSERT_OK(lade_pinned_alloc(r.pool, BYTES, &first));
  LADE_ASSERT_OK(lade_pinned_alloc(r.pool, BYTES, &second)); /* so that the next one need not be pinned in the gate */
  LADE_ASSERT_OK(lade_pinned_free(r.pool, second));
  support_pattern_fill(first, BYTES, 7, 0);
  LADE_ASSERT(support_gate_close(&gate, r.runtime, r.stream));
  copy_on(&r, r.stream, LADEI_COPY_H2D, r.device, first, BYTES);
  LADE_ASSERT_OK(lade_pinned_record_event(r.pool, first, r.stream));
  LADE_ASSERT_OK(lade_pinned_free(r.pool, first));
  LADE_ASSERT_OK(lade_pinned_alloc(r.pool, BYTES, &second));
  LADE_EXPECT(second != first);
  LADE_EXPECT_EQ_UINT(pending_bytes(&r), BYTES);
  support_pattern_fill(second, BYTES, 8, 0);
  support_gate_open(&gate);
  LADE_EXPECT(support_wait_stream(r.runtime, r.stream));
  LADE_EXPECT(support_wait(r.runtime, nothing_pending, &r));
  LADE_ASSERT_OK(OP(&r, copy_sync, 0, LADEI_COPY_D2H, second, r.device, BYTES));
  LADE_EXPECT_PATTERN(second, BYTES, 7, 0);
  LADE_ASSERT_OK(lade_pinned_alloc(r.pool, BYTES, &third));
  LADE_EXPECT_EQ_PTR(third, first);
  LADE_ASSERT_OK(lade_pinned_free(r.pool, second));
  LADE_ASSERT_OK(lade_pinned_free(r.pool, third));
  rig_close(&r);
}

LADE_TEST_P(PinnedRuntimes, PreciseUseAndCallersEventEndWhereTheySay, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, NULL)) return;
  void *used = NULL, *after = NULL;
  uint64_t context = 0;
  ladei_stream stream;
  lade_event event = NULL;
  support_gate gate;
  LADE_ASSERT_OK(OP(&r, device_context, 0, &context));
  LADE_ASSERT_OK(OP(&r, event_create, context, 0, &event));
  LADE_ASSERT_OK(OP(&r, stream_resolve, r.stream, &stream));
  LADE_ASSERT_OK(lade_pinned_alloc(r.pool, MIB, &used));
  LADE_ASSERT_OK(lade_pinned_alloc(r.pool, MIB, &after));
  copy_on(&r, r.stream, LADEI_COPY_H2D, r.device, used, MIB);
  copy_on(&r, r.stream, LADEI_COPY_H2D, r.device + MIB, after, MIB);
  LADE_ASSERT_OK(lade_pinned_record_use(r.pool, used, r.stream));
  LADE_ASSERT_OK(OP(&r, event_record, event, &stream));
  LADE_EXPECT(support_wait_stream(r.runtime, r.stream));
  LADE_ASSERT(support_gate_close(&gate, r.runtime, r.stream)); /* later work, which delays neither */
  LADE_ASSERT_OK(lade_pinned_free(r.pool, used));
  LADE_ASSERT_OK(lade_pinned_free_after(r.pool, after, event));
  LADE_EXPECT(support_wait(r.runtime, nothing_pending, &r));
  support_gate_open(&gate);
  LADE_EXPECT(support_wait_stream(r.runtime, r.stream));
  LADE_EXPECT_OK(OP(&r, event_destroy, event));
  rig_close(&r);
}

/* ---- Where memory comes from ------------------------------------------------------------------------------------- */

static void round_trip(rig *r, void *block, size_t bytes, uint64_t seed) {
  support_pattern_fill(block, bytes, seed, 0);
  copy_on(r, r->stream, LADEI_COPY_H2D, r->device, block, bytes);
  LADE_EXPECT(support_wait_stream(r->runtime, r->stream));
  support_pattern_fill(block, bytes, seed + 1, 0);
  copy_on(r, r->stream, LADEI_COPY_D2H, block, r->device, bytes);
  LADE_EXPECT(support_wait_stream(r->runtime, r->stream));
  LADE_EXPECT_PATTERN(block, bytes, seed, 0);
}

LADE_TEST_P(PinnedRuntimes, EverySourceGivesMemoryThatTheDeviceReaches, SUPPORT_RUNTIMES, name) {
  static const uint32_t sources[] = {LADE_PINNED_SOURCE_REGISTER, LADE_PINNED_SOURCE_DRIVER, LADE_PINNED_SOURCE_POOL,
                                     LADE_PINNED_SOURCE_PAGEABLE};
  for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
    lade_pinned_options options;
    lade_pinned_info info;
    rig r;
    void *block = NULL;
    lade_test_context("source %u", sources[i]);
    lade_pinned_options_init(&options);
    lade_pinned_info_init(&info);
    options.sources = sources[i];
    if (!rig_open(&r, name, &options)) return;
    lade_status status = lade_pinned_alloc(r.pool, 3 * MIB + 512, &block);
    if (status != LADE_ERR_UNSUPPORTED) { /* a runtime without driver pools */
      LADE_ASSERT_OK(status);
      LADE_EXPECT_OK(lade_pinned_find(r.pool, block, &info));
      LADE_EXPECT_EQ_INT(info.source, (int32_t)sources[i]);
      round_trip(&r, block, 3 * MIB + 512, 10 * (i + 1));
      LADE_EXPECT_OK(lade_pinned_free(r.pool, block));
    }
    LADE_EXPECT_OK(lade_pinned_empty_cache(r.pool));
    LADE_EXPECT_EQ_UINT(reserved_bytes(&r), 0);
    rig_close(&r);
  }
  lade_test_context("%s", "");
}

LADE_TEST_P(PinnedRuntimes, PinsAheadAndGivesBack, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, NULL)) return;
  LADE_EXPECT_OK(lade_pinned_reserve(r.pool, 100 * MIB, 0));
  LADE_EXPECT_GE_UINT(reserved_bytes(&r), 100 * MIB);
  LADE_EXPECT_OK(lade_pinned_trim(r.pool, 64 * MIB));
  LADE_EXPECT_LE_UINT(reserved_bytes(&r), 64 * MIB);
  LADE_EXPECT_OK(lade_pinned_empty_cache(r.pool));
  LADE_EXPECT_EQ_UINT(reserved_bytes(&r), 0);
  rig_close(&r);
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedRuntimes, BlockOfAGraphComesBackWithTheGraph, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, NULL)) return;
  if (r.runtime->ops->capture_begin == NULL) {
    rig_close(&r);
    LADE_SKIP("this runtime has no graphs");
  }
  void *block = NULL;
  ladei_stream stream;
  ladei_graph graph = NULL;
  LADE_ASSERT_OK(lade_pinned_alloc(r.pool, MIB, &block));
  LADE_ASSERT_OK(OP(&r, stream_resolve, r.stream, &stream));
  LADE_ASSERT_OK(OP(&r, capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(OP(&r, copy, LADEI_COPY_H2D, r.device, block, MIB, &stream));
  LADE_EXPECT_OK(lade_pinned_record_event(r.pool, block, r.stream));
  LADE_EXPECT_OK(lade_pinned_free(r.pool, block));
  LADE_ASSERT_OK(OP(&r, capture_end, &stream, &graph));
  LADE_EXPECT_OK(lade_pinned_process_events(r.pool));
  LADE_EXPECT_EQ_UINT(pending_bytes(&r), MIB);
  LADE_EXPECT_OK(OP(&r, graph_destroy, graph));
  LADE_EXPECT(support_wait(r.runtime, nothing_pending, &r));
  rig_close(&r);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

#ifdef LADE_TEST_ON_CUDA
enum { THREADS = 4, ROUNDS = 200, PIECE = 96 * 1024, RING = 4 };

typedef struct worker {
  rig *r;
  int index;
  pthread_t thread;
} worker;

/* Each block is written again as soon as the pool hands it out: a copy that had not read it would carry wrong bytes. */
static void *worker_run(void *user) {
  worker *self = user;
  rig *r = self->r;
  lade_stream stream = NULL;
  LADE_EXPECT_OK(lade_runtime_set_device(r->runtime, 0));
  LADE_EXPECT_OK(lade_stream_create(r->runtime, 0, &stream));
  char *own = r->device + (size_t)self->index * RING * PIECE;
  char *back = malloc(PIECE);
  for (unsigned round = 0; round < ROUNDS && back != NULL && !lade_test_has_failed(); round++) {
    for (unsigned i = 0; i < RING; i++) {
      void *block = NULL;
      uint64_t seed = (uint64_t)self->index << 32 | (round * RING + i);
      LADE_EXPECT_OK(lade_pinned_alloc(r->pool, PIECE, &block));
      support_pattern_fill(block, PIECE, seed, 0);
      copy_on(r, stream, LADEI_COPY_H2D, own + i * PIECE, block, PIECE);
      LADE_EXPECT_OK(lade_pinned_record_event(r->pool, block, stream));
      LADE_EXPECT_OK(lade_pinned_free(r->pool, block));
    }
    if (round % 50 != 49) continue;
    LADE_EXPECT_OK(lade_stream_synchronize(r->runtime, stream));
    for (unsigned i = 0; i < RING; i++) {
      LADE_EXPECT_OK(OP(r, copy_sync, 0, LADEI_COPY_D2H, back, own + i * PIECE, PIECE));
      LADE_EXPECT_PATTERN(back, PIECE, (uint64_t)self->index << 32 | (round * RING + i), 0);
    }
  }
  LADE_EXPECT(back != NULL);
  free(back);
  LADE_EXPECT_OK(lade_stream_synchronize(r->runtime, stream));
  LADE_EXPECT_OK(lade_pinned_stream_retire(r->pool, stream));
  LADE_EXPECT_OK(lade_stream_destroy(r->runtime, stream));
  return NULL;
}

LADE_TEST_P(PinnedRuntimes, ThreadsWithStreamsOfTheirOwnNeverOverwriteEachOther, SUPPORT_RUNTIMES, name) {
  rig r;
  worker workers[THREADS];
  if (!rig_open(&r, name, NULL)) return;
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){.r = &r, .index = i};
    LADE_ASSERT_EQ_INT(pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
  LADE_EXPECT(support_wait(r.runtime, nothing_pending, &r));
  rig_close(&r);
}
#endif
