/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend cudaMallocAsync: memory from a driver pool, on software devices, through runtime/cuda on the loopback
 * driver, and on a GPU where there is one.
 */
#include <pthread.h>

#include "device/state/backend.h"
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/listener.h"
#include "tests/support/runtimes.h"

static bool open_batch(device_fixture *f, const char *name, uint64_t max_bytes, uint32_t event_batch) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.backend = LADE_DEVICE_CUDA_MALLOC_ASYNC;
  options.max_bytes = max_bytes;
  options.event_batch = event_batch;
  return device_fixture_open_bytes(f, name, &options);
}

static bool open_limited(device_fixture *f, const char *name, uint64_t max_bytes) {
  return open_batch(f, name, max_bytes, 1);
}

static uint64_t frees(device_fixture *f) { return support_call_count(f->runtime, "pool_free"); }

/* ---- Memory and counters ----------------------------------------------------------------------------------------- */

LADE_TEST_P(DevicePoolBackend, BlocksAreUsableMemoryAndCounted, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!open_limited(&f, name, 0)) return;
  LADE_EXPECT_EQ_STR(f.allocator->backend->name, "cudaMallocAsync");
  char *a = device_fixture_alloc(&f, 1000, 0);
  char *b = device_fixture_alloc(&f, 3 * MIB, 1);
  device_fixture_fill(&f, a, 3, 1000, 0);
  device_fixture_fill(&f, b, 5, 3 * MIB, 1);
  device_fixture_expect_bytes(&f, a, 3, 1000, 0);
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.allocation.all.current, 2);
  LADE_EXPECT_EQ_UINT(stats.allocated_bytes.all.current, 1000 + 3 * MIB);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.all.current, 1000 + 3 * MIB);
  LADE_EXPECT_EQ_UINT(stats.allocation.small_pool.current + stats.allocation.large_pool.current, 0);
  LADE_EXPECT_EQ_UINT(stats.device_allocs, 2);
  LADE_EXPECT_EQ_UINT(stats.segment.all.current, 0);
  LADE_EXPECT(stats.reserved_bytes.all.current >= 1000 + 3 * MIB);
  LADE_EXPECT(stats.reserved_bytes.all.peak >= stats.reserved_bytes.all.current);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.active_bytes.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats.active_bytes.all.peak, 1000 + 3 * MIB);
  LADE_EXPECT_EQ_UINT(stats.device_frees, 2);
  device_fixture_close(&f);
}

/* What is freed stays with the pool until the cache is emptied; then the peaks can start anew from nothing. */
LADE_TEST_P(DevicePoolBackend, EmptyCacheTrimsThePool, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!open_limited(&f, name, 0)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 3 * MIB, 0));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
  LADE_EXPECT(device_fixture_stats(&f).reserved_bytes.all.current >= 3 * MIB);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  LADE_EXPECT(device_fixture_stats(&f).reserved_bytes.all.peak >= 3 * MIB);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).sync_all_streams, 1);
  LADE_EXPECT_OK(lade_device_stats_reset(f.allocator, LADE_STATS_RESET_PEAKS));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.peak, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active_bytes.all.peak, 0);
  device_fixture_close(&f);
}

LADE_TEST_P(DevicePoolBackend, WrongPointersAreToldApart, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!open_limited(&f, name, 0)) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_STATUS(LADE_ERR_NOT_BLOCK_START, lade_device_free(f.allocator, a + 8));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_free(f.allocator, a + 1000));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_record_stream(f.allocator, &f, f.streams[1]));
  LADE_EXPECT_OK(lade_device_record_stream(f.allocator, a + 999, f.streams[0]));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(f.allocator, true));
  device_fixture_free(&f, a);
  device_fixture_free(&f, NULL);
  device_fixture_close(&f);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

LADE_TEST_P(DevicePoolBackend, AnotherStreamsUseDelaysTheFree, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!open_limited(&f, name, 0)) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[1]));
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, f.runtime, f.streams[1]));
  device_fixture_fill(&f, a, 1, 1000, 1);
  LADE_EXPECT_OK(lade_device_record_stream(f.allocator, a, f.streams[1]));
  device_fixture_free(&f, a);
  LADE_EXPECT_EQ_UINT(frees(&f), 0);
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_device_free(f.allocator, a));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocation.all.current, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 1);
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(f.runtime, f.streams[1]));
  char *b = device_fixture_alloc(&f, 1000, 0); /* looks for what is done */
  LADE_EXPECT_EQ_UINT(frees(&f), 1);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

/* An open batch of events does not keep memory from the pool: the next request closes it. */
LADE_TEST_P(DevicePoolBackend, TheNextRequestFindsWhatIsDone, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!open_batch(&f, name, 0, 0)) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  device_fixture_fill(&f, a, 1, 1000, 1);
  LADE_EXPECT_OK(lade_device_record_stream(f.allocator, a, f.streams[1]));
  device_fixture_free(&f, a);
  LADE_EXPECT(support_wait_stream(f.runtime, f.streams[1]));
  LADE_EXPECT_EQ_UINT(frees(&f), 0);
  char *b = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_EQ_UINT(frees(&f), 1);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

/* Nothing names a stream after its retirement, and its last work is waited for all the same. */
LADE_TEST_P(DevicePoolBackend, BlocksOutliveTheirStream, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!open_limited(&f, name, 0)) return;
  char *a = device_fixture_alloc(&f, MIB, 1);
  device_fixture_fill(&f, a, 9, MIB, 1);
  LADE_EXPECT_OK(lade_device_stream_retire(f.allocator, f.streams[1]));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, f.streams[1]));
  f.streams[1] = NULL;
  device_fixture_fill(&f, a + 512, 4, 100, 0);
  LADE_EXPECT_OK(lade_device_record_stream(f.allocator, a, f.streams[0]));
  device_fixture_free(&f, a);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 0);
  device_fixture_close(&f);
}

typedef struct holder {
  device_fixture *f;
  void *block;
} holder;

static void *alien_alloc(void *user) {
  holder *self = user;
  LADE_EXPECT_OK(lade_runtime_set_device(self->f->runtime, 0));
  LADE_EXPECT_OK(lade_device_alloc(self->f->allocator, 1000, LADE_STREAM_PER_THREAD, &self->block));
  return NULL;
}

/* A per-thread stream may be named by its own thread alone: what another one frees goes back when the device is idle. */
LADE_TEST_P(DevicePoolBackend, AnotherThreadsStreamIsNotNamed, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!open_limited(&f, name, 0)) return;
  holder self = {&f, NULL};
  pthread_t thread;
  LADE_ASSERT(pthread_create(&thread, NULL, alien_alloc, &self) == 0);
  pthread_join(thread, NULL);
  device_fixture_free(&f, self.block);
  LADE_EXPECT_EQ_UINT(frees(&f), 0);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(frees(&f), 1);
  void *mine = NULL;
  LADE_EXPECT_OK(lade_device_alloc(f.allocator, 1000, LADE_STREAM_PER_THREAD, &mine));
  device_fixture_free(&f, mine);
  LADE_EXPECT_EQ_UINT(frees(&f), 2);
  device_fixture_close(&f);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 3, ROUNDS = 200, HELD = 4 };

static void *churn(void *user) {
  device_fixture *f = user;
  void *held[HELD] = {NULL};
  for (int i = 0; i < ROUNDS; i++) {
    void **slot = &held[i % HELD];
    LADE_EXPECT_OK(lade_device_free(f->allocator, *slot));
    LADE_EXPECT_OK(lade_device_alloc(f->allocator, 700 + (size_t)i, f->streams[i % 2], slot));
    if (i % 3 == 0) LADE_EXPECT_OK(lade_device_record_stream(f->allocator, *slot, f->streams[0]));
    if (i % 50 == 49) LADE_EXPECT_OK(lade_device_empty_cache(f->allocator));
  }
  for (int i = 0; i < HELD; i++) LADE_EXPECT_OK(lade_device_free(f->allocator, held[i]));
  return NULL;
}

LADE_TEST_P(DevicePoolBackend, ManyThreadsShareTheLedger, SUPPORT_THREADED_RUNTIMES, name) {
  device_fixture f;
  if (!open_limited(&f, name, 0)) return;
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) LADE_ASSERT(pthread_create(&threads[i], NULL, churn, &f) == 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).device_allocs, THREADS * ROUNDS);
  device_fixture_close(&f);
}

/* ---- Limits ------------------------------------------------------------------------------------------------------ */

LADE_TEST_P(DevicePoolBackend, LimitsHoldWithoutAskingTheDriver, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!open_limited(&f, name, 8 * MIB)) return;
  char *a = device_fixture_alloc(&f, 5 * MIB, 0);
  uint64_t calls = support_call_count(f.runtime, "pool_alloc");
  void *b = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_device_alloc(f.allocator, 4 * MIB, f.streams[0], &b));
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "pool_alloc"), calls);
  LADE_EXPECT_EQ_PTR(b, NULL);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "4.00 MiB");
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.ooms, 1);
  LADE_EXPECT_EQ_UINT(stats.alloc_retries, 1);
  char *c = device_fixture_alloc(&f, 3 * MIB, 0);
  device_fixture_free(&f, a);
  device_fixture_free(&f, c);
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 0.0));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 1, f.streams[0], &b));
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "pool_alloc"), calls + 1);
  device_fixture_close(&f);
}

static lade_status reclaim(void *user) {
  holder *self = user;
  if (self->block == NULL) return LADE_NOT_READY;
  LADE_EXPECT_OK(lade_device_free(self->f->allocator, self->block));
  self->block = NULL;
  return LADE_OK;
}

LADE_TEST_P(DevicePoolBackend, ReclaimersMakeRoom, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!open_limited(&f, name, 8 * MIB)) return;
  holder self = {&f, device_fixture_alloc(&f, 5 * MIB, 0)};
  LADE_EXPECT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(reclaim, reclaim, &self)));
  char *b = device_fixture_alloc(&f, 8 * MIB, 0);
  LADE_EXPECT(b != NULL);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).alloc_retries, 0);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

/* ---- What it refuses --------------------------------------------------------------------------------------------- */

LADE_TEST_P(DevicePoolBackend, RefusalsNameCallAndBackend, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!open_limited(&f, name, 0)) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  lade_device_shared shared;
  lade_device_pool_id id = {1, 0};
  lade_device_checkpoint *checkpoint = NULL;
  lade_device_shared_init(&shared);
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_shared_export(f.allocator, a, &shared));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_pool_begin(f.allocator, id, NULL, 0));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "pool_begin: the backend cudaMallocAsync");
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_pool_end(f.allocator, id));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_pool_release(f.allocator, id));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_checkpoint_get(f.allocator, id, &checkpoint));
  /* It keeps no history: asking for one is an error, and a note for nobody to read is none. */
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_history_set(f.allocator, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_history_take(f.allocator, &(lade_history *){NULL}));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "history_take: the backend cudaMallocAsync does not support it");
  LADE_EXPECT_OK(lade_device_annotate(f.allocator, NULL, "note"));
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

/* Memory of a capture would belong to its graph; a free waits until the capture is over. */
LADE_TEST_P(DevicePoolBackend, ACapturingStreamIsLeftAlone, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!open_limited(&f, name, 0)) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  ladei_stream on = device_fixture_resolve(&f, 0);
  ladei_graph graph = NULL;
  LADE_ASSERT_OK(f.runtime->ops->capture_begin(f.runtime->self, &on, LADEI_CAPTURE_THREAD_LOCAL));
  void *b = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_alloc(f.allocator, 1000, f.streams[0], &b));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "private pools");
  device_fixture_free(&f, a);
  LADE_EXPECT_EQ_UINT(frees(&f), 0);
  char *c = device_fixture_alloc(&f, 1000, 1); /* tries the free again, and leaves the capture valid */
  LADE_EXPECT_EQ_UINT(frees(&f), 0);
  LADE_ASSERT_OK(f.runtime->ops->capture_end(f.runtime->self, &on, &graph));
  LADE_EXPECT_OK(f.runtime->ops->graph_destroy(f.runtime->self, graph));
  device_fixture_free(&f, c);
  char *d = device_fixture_alloc(&f, 1000, 1);
  LADE_EXPECT_EQ_UINT(frees(&f), 2);
  device_fixture_free(&f, d);
  device_fixture_close(&f);
}

/* ---- Peers ------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(DevicePoolBackend, PeersGetAccessToThePool, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!open_limited(&f, name, 0)) return;
  int count = 0;
  LADE_EXPECT_OK(f.runtime->ops->device_count(f.runtime->self, &count));
  LADE_EXPECT_OK(lade_device_peer_add(f.allocator, 0));
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "pool_set_access"), 0);
  if (count > 1) {
    LADE_EXPECT_OK(lade_device_peer_add(f.allocator, 1));
    LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "pool_set_access"), 1);
  }
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_device_peer_add(f.allocator, 99));
  device_fixture_close(&f);
}
