/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend cudaMallocAsync: memory from a driver pool, on software devices, through runtime/cuda on the loopback
 * driver, and on a GPU where there is one.
 */
#include <pthread.h>
#include <string.h>

#include "device/allocator.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

#define MIB ((size_t)1 << 20)

enum { STREAMS = 2 };

typedef struct rig {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream streams[STREAMS];
} rig;

static bool rig_open_batch(rig *r, const char *name, uint64_t max_bytes, uint32_t event_batch) {
  memset(r, 0, sizeof *r);
  lade_device_options options;
  lade_device_options_init(&options);
  options.backend = LADE_DEVICE_CUDA_MALLOC_ASYNC;
  options.max_bytes = max_bytes;
  options.event_batch = event_batch;
  r->runtime = support_interposer_open(name, NULL);
  if (r->runtime == NULL) return false;
  LADE_EXPECT_OK(lade_runtime_set_device(r->runtime, 0));
  for (int i = 0; i < STREAMS; i++) LADE_EXPECT_OK(lade_stream_create(r->runtime, 0, &r->streams[i]));
  LADE_EXPECT_OK(lade_device_allocator_create(r->runtime, 0, &options, &r->allocator));
  return !lade_test_has_failed();
}

static bool rig_open(rig *r, const char *name, uint64_t max_bytes) { return rig_open_batch(r, name, max_bytes, 1); }

static void rig_check(rig *r) { LADE_EXPECT_OK(ladei_device_allocator_check(r->allocator)); }

static void rig_close(rig *r) {
  rig_check(r);
  LADE_EXPECT_OK(lade_device_allocator_destroy(r->allocator, true));
  for (int i = 0; i < STREAMS; i++) {
    if (r->streams[i] != NULL) LADE_EXPECT_OK(lade_stream_destroy(r->runtime, r->streams[i]));
  }
  support_expect_nothing_live(r->runtime);
  support_runtime_close(r->runtime);
}

static char *block_alloc(rig *r, size_t bytes, int stream) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(r->allocator, bytes, r->streams[stream], &block));
  rig_check(r);
  return block;
}

static void block_free(rig *r, void *block) {
  LADE_EXPECT_OK(lade_device_free(r->allocator, block));
  rig_check(r);
}

static ladei_stream resolved(rig *r, lade_stream stream) {
  ladei_stream out = {0};
  LADE_EXPECT_OK(r->runtime->ops->stream_resolve(r->runtime->self, stream, &out));
  return out;
}

static void block_fill(rig *r, void *block, unsigned char value, size_t bytes, int stream) {
  ladei_stream on = resolved(r, r->streams[stream]);
  LADE_EXPECT_OK(r->runtime->ops->fill(r->runtime->self, block, value, bytes, &on));
}

static lade_device_stats stats_of(rig *r) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(r->allocator, &stats));
  return stats;
}

static uint64_t frees(rig *r) { return support_call_count(r->runtime, "pool_free"); }

/* ---- Memory and counters ----------------------------------------------------------------------------------------- */

LADE_TEST_P(DevicePoolBackend, BlocksAreUsableMemoryAndCounted, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, 0)) return;
  LADE_EXPECT_EQ_STR(lade_device_backend_name(r.allocator), "cudaMallocAsync");
  char *a = block_alloc(&r, 1000, 0);
  char *b = block_alloc(&r, 3 * MIB, 1);
  block_fill(&r, a, 3, 1000, 0);
  block_fill(&r, b, 5, 3 * MIB, 1);
  unsigned char host[1000], expected[1000];
  memset(expected, 3, sizeof expected);
  LADE_EXPECT_OK(lade_stream_synchronize(r.runtime, r.streams[0]));
  LADE_EXPECT_OK(r.runtime->ops->copy_sync(r.runtime->self, 0, LADEI_COPY_D2H, host, a, sizeof host));
  LADE_EXPECT_EQ_MEM(host, expected, sizeof host);
  lade_device_stats stats = stats_of(&r);
  LADE_EXPECT_EQ_UINT(stats.allocation.all.current, 2);
  LADE_EXPECT_EQ_UINT(stats.allocated_bytes.all.current, 1000 + 3 * MIB);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.all.current, 1000 + 3 * MIB);
  LADE_EXPECT_EQ_UINT(stats.allocation.small_pool.current + stats.allocation.large_pool.current, 0);
  LADE_EXPECT_EQ_UINT(stats.device_allocs, 2);
  LADE_EXPECT_EQ_UINT(stats.segment.all.current, 0);
  LADE_EXPECT(stats.reserved_bytes.all.current >= 1000 + 3 * MIB);
  LADE_EXPECT(stats.reserved_bytes.all.peak >= stats.reserved_bytes.all.current);
  block_free(&r, a);
  block_free(&r, b);
  stats = stats_of(&r);
  LADE_EXPECT_EQ_UINT(stats.active_bytes.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats.active_bytes.all.peak, 1000 + 3 * MIB);
  LADE_EXPECT_EQ_UINT(stats.device_frees, 2);
  rig_close(&r);
}

/* What is freed stays with the pool until the cache is emptied; then the peaks can start anew from nothing. */
LADE_TEST_P(DevicePoolBackend, EmptyCacheTrimsThePool, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, 0)) return;
  block_free(&r, block_alloc(&r, 3 * MIB, 0));
  LADE_EXPECT_OK(lade_stream_synchronize(r.runtime, r.streams[0]));
  LADE_EXPECT(stats_of(&r).reserved_bytes.all.current >= 3 * MIB);
  LADE_EXPECT_OK(lade_device_empty_cache(r.allocator));
  LADE_EXPECT_EQ_UINT(stats_of(&r).reserved_bytes.all.current, 0);
  LADE_EXPECT(stats_of(&r).reserved_bytes.all.peak >= 3 * MIB);
  LADE_EXPECT_EQ_UINT(stats_of(&r).sync_all_streams, 1);
  LADE_EXPECT_OK(lade_device_stats_reset_peak(r.allocator));
  LADE_EXPECT_EQ_UINT(stats_of(&r).reserved_bytes.all.peak, 0);
  LADE_EXPECT_EQ_UINT(stats_of(&r).active_bytes.all.peak, 0);
  rig_close(&r);
}

LADE_TEST_P(DevicePoolBackend, WrongPointersAreToldApart, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, 0)) return;
  char *a = block_alloc(&r, 1000, 0);
  LADE_EXPECT_STATUS(LADE_ERR_NOT_BLOCK_START, lade_device_free(r.allocator, a + 8));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_free(r.allocator, a + 1000));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_record_stream(r.allocator, &r, r.streams[1]));
  LADE_EXPECT_OK(lade_device_record_stream(r.allocator, a + 999, r.streams[0]));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(r.allocator, true));
  block_free(&r, a);
  LADE_EXPECT_OK(lade_device_free(r.allocator, NULL));
  rig_close(&r);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

LADE_TEST_P(DevicePoolBackend, AnotherStreamsUseDelaysTheFree, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, 0)) return;
  char *a = block_alloc(&r, 1000, 0);
  LADE_EXPECT_OK(lade_stream_synchronize(r.runtime, r.streams[1]));
  support_gate gate;
  LADE_ASSERT(support_gate_close(&gate, r.runtime, r.streams[1]));
  block_fill(&r, a, 1, 1000, 1);
  LADE_EXPECT_OK(lade_device_record_stream(r.allocator, a, r.streams[1]));
  block_free(&r, a);
  LADE_EXPECT_EQ_UINT(frees(&r), 0);
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_device_free(r.allocator, a));
  LADE_EXPECT_EQ_UINT(stats_of(&r).allocation.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats_of(&r).active.all.current, 1);
  support_gate_open(&gate);
  LADE_EXPECT(support_wait_stream(r.runtime, r.streams[1]));
  char *b = block_alloc(&r, 1000, 0); /* looks for what is done */
  LADE_EXPECT_EQ_UINT(frees(&r), 1);
  block_free(&r, b);
  rig_close(&r);
}

/* An open batch of events does not keep memory from the pool: the next request closes it. */
LADE_TEST_P(DevicePoolBackend, TheNextRequestFindsWhatIsDone, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open_batch(&r, name, 0, 0)) return;
  char *a = block_alloc(&r, 1000, 0);
  block_fill(&r, a, 1, 1000, 1);
  LADE_EXPECT_OK(lade_device_record_stream(r.allocator, a, r.streams[1]));
  block_free(&r, a);
  LADE_EXPECT(support_wait_stream(r.runtime, r.streams[1]));
  LADE_EXPECT_EQ_UINT(frees(&r), 0);
  char *b = block_alloc(&r, 1000, 0);
  LADE_EXPECT_EQ_UINT(frees(&r), 1);
  block_free(&r, b);
  rig_close(&r);
}

/* Nothing names a stream after its retirement, and its last work is waited for all the same. */
LADE_TEST_P(DevicePoolBackend, BlocksOutliveTheirStream, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, 0)) return;
  char *a = block_alloc(&r, MIB, 1);
  block_fill(&r, a, 9, MIB, 1);
  LADE_EXPECT_OK(lade_device_stream_retire(r.allocator, r.streams[1]));
  LADE_EXPECT_OK(lade_stream_destroy(r.runtime, r.streams[1]));
  r.streams[1] = NULL;
  block_fill(&r, a + 512, 4, 100, 0);
  LADE_EXPECT_OK(lade_device_record_stream(r.allocator, a, r.streams[0]));
  block_free(&r, a);
  LADE_EXPECT_OK(lade_device_empty_cache(r.allocator));
  LADE_EXPECT_EQ_UINT(stats_of(&r).active.all.current, 0);
  rig_close(&r);
}

typedef struct alien {
  rig *r;
  void *block;
} alien;

static void *alien_alloc(void *user) {
  alien *self = user;
  LADE_EXPECT_OK(lade_runtime_set_device(self->r->runtime, 0));
  LADE_EXPECT_OK(lade_device_alloc(self->r->allocator, 1000, LADE_STREAM_PER_THREAD, &self->block));
  return NULL;
}

/* A per-thread stream may be named by its own thread alone: what another one frees goes back when the device is idle. */
LADE_TEST_P(DevicePoolBackend, AnotherThreadsStreamIsNotNamed, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, 0)) return;
  alien self = {&r, NULL};
  pthread_t thread;
  LADE_ASSERT(pthread_create(&thread, NULL, alien_alloc, &self) == 0);
  pthread_join(thread, NULL);
  block_free(&r, self.block);
  LADE_EXPECT_EQ_UINT(frees(&r), 0);
  LADE_EXPECT_OK(lade_device_empty_cache(r.allocator));
  LADE_EXPECT_EQ_UINT(frees(&r), 1);
  void *mine = NULL;
  LADE_EXPECT_OK(lade_device_alloc(r.allocator, 1000, LADE_STREAM_PER_THREAD, &mine));
  block_free(&r, mine);
  LADE_EXPECT_EQ_UINT(frees(&r), 2);
  rig_close(&r);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 3, ROUNDS = 200, HELD = 4 };

static void *churn(void *user) {
  alien *self = user;
  void *held[HELD] = {NULL};
  for (int i = 0; i < ROUNDS; i++) {
    void **slot = &held[i % HELD];
    LADE_EXPECT_OK(lade_device_free(self->r->allocator, *slot));
    LADE_EXPECT_OK(lade_device_alloc(self->r->allocator, 700 + (size_t)i, self->r->streams[i % 2], slot));
    if (i % 3 == 0) LADE_EXPECT_OK(lade_device_record_stream(self->r->allocator, *slot, self->r->streams[0]));
    if (i % 50 == 49) LADE_EXPECT_OK(lade_device_empty_cache(self->r->allocator));
  }
  for (int i = 0; i < HELD; i++) LADE_EXPECT_OK(lade_device_free(self->r->allocator, held[i]));
  return NULL;
}

LADE_TEST_P(DevicePoolBackend, ManyThreadsShareTheLedger, SUPPORT_THREADED_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, 0)) return;
  alien self = {&r, NULL};
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) LADE_ASSERT(pthread_create(&threads[i], NULL, churn, &self) == 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_OK(lade_device_empty_cache(r.allocator));
  LADE_EXPECT_EQ_UINT(stats_of(&r).active.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats_of(&r).device_allocs, THREADS * ROUNDS);
  rig_close(&r);
}

/* ---- Limits ------------------------------------------------------------------------------------------------------ */

LADE_TEST_P(DevicePoolBackend, LimitsHoldWithoutAskingTheDriver, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, 8 * MIB)) return;
  char *a = block_alloc(&r, 5 * MIB, 0);
  uint64_t calls = support_call_count(r.runtime, "pool_alloc");
  void *b = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_device_alloc(r.allocator, 4 * MIB, r.streams[0], &b));
  LADE_EXPECT_EQ_UINT(support_call_count(r.runtime, "pool_alloc"), calls);
  LADE_EXPECT_EQ_PTR(b, NULL);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "4.00 MiB");
  lade_device_stats stats = stats_of(&r);
  LADE_EXPECT_EQ_UINT(stats.ooms, 1);
  LADE_EXPECT_EQ_UINT(stats.alloc_retries, 1);
  char *c = block_alloc(&r, 3 * MIB, 0);
  block_free(&r, a);
  block_free(&r, c);
  LADE_EXPECT_OK(lade_device_set_memory_fraction(r.allocator, 0.0));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(r.allocator, 1, r.streams[0], &b));
  LADE_EXPECT_EQ_UINT(support_call_count(r.runtime, "pool_alloc"), calls + 1);
  rig_close(&r);
}

typedef struct reclaimer {
  rig *r;
  void *kept;
} reclaimer;

static lade_status reclaim(void *user) {
  reclaimer *self = user;
  if (self->kept == NULL) return LADE_NOT_READY;
  LADE_EXPECT_OK(lade_device_free(self->r->allocator, self->kept));
  self->kept = NULL;
  return LADE_OK;
}

LADE_TEST_P(DevicePoolBackend, ReclaimersMakeRoom, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, 8 * MIB)) return;
  reclaimer self = {&r, block_alloc(&r, 5 * MIB, 0)};
  LADE_EXPECT_OK(lade_device_reclaimer_add(r.allocator, reclaim, &self));
  char *b = block_alloc(&r, 8 * MIB, 0);
  LADE_EXPECT(b != NULL);
  LADE_EXPECT_EQ_UINT(stats_of(&r).alloc_retries, 0);
  block_free(&r, b);
  rig_close(&r);
}

/* ---- What it refuses --------------------------------------------------------------------------------------------- */

LADE_TEST_P(DevicePoolBackend, RefusalsNameCallAndBackend, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, 0)) return;
  char *a = block_alloc(&r, 1000, 0);
  void *base = NULL;
  size_t bytes = 0;
  lade_device_ipc_handle handle;
  lade_device_pool_id id = {1, 0};
  lade_device_checkpoint *checkpoint = NULL;
  bool equal = false;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_base_get(r.allocator, a, &base, &bytes));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "base_get: the backend cudaMallocAsync does not support it");
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_ipc_export(r.allocator, a, &handle, &bytes));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_pool_begin(r.allocator, id, NULL, 0));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "pool_begin: the backend cudaMallocAsync");
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_pool_end(r.allocator, id));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_pool_release(r.allocator, id));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_pool_live_equals(r.allocator, id, NULL, 0, &equal));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_checkpoint_get(r.allocator, id, &checkpoint));
  LADE_EXPECT_OK(lade_device_largest_get(r.allocator, &bytes));
  LADE_EXPECT(bytes > 0);
  block_free(&r, a);
  rig_close(&r);
}

/* Memory of a capture would belong to its graph; a free waits until the capture is over. */
LADE_TEST_P(DevicePoolBackend, ACapturingStreamIsLeftAlone, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, 0)) return;
  char *a = block_alloc(&r, 1000, 0);
  ladei_stream on = resolved(&r, r.streams[0]);
  ladei_graph graph = NULL;
  LADE_ASSERT_OK(r.runtime->ops->capture_begin(r.runtime->self, &on, LADEI_CAPTURE_THREAD_LOCAL));
  void *b = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_alloc(r.allocator, 1000, r.streams[0], &b));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "private pools");
  block_free(&r, a);
  LADE_EXPECT_EQ_UINT(frees(&r), 0);
  char *c = block_alloc(&r, 1000, 1); /* tries the free again, and leaves the capture valid */
  LADE_EXPECT_EQ_UINT(frees(&r), 0);
  LADE_ASSERT_OK(r.runtime->ops->capture_end(r.runtime->self, &on, &graph));
  LADE_EXPECT_OK(r.runtime->ops->graph_destroy(r.runtime->self, graph));
  block_free(&r, c);
  char *d = block_alloc(&r, 1000, 1);
  LADE_EXPECT_EQ_UINT(frees(&r), 2);
  block_free(&r, d);
  rig_close(&r);
}

/* ---- Peers ------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(DevicePoolBackend, PeersGetAccessToThePool, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, 0)) return;
  int count = 0;
  LADE_EXPECT_OK(r.runtime->ops->device_count(r.runtime->self, &count));
  LADE_EXPECT_OK(lade_device_peer_add(r.allocator, 0));
  LADE_EXPECT_EQ_UINT(support_call_count(r.runtime, "pool_set_access"), 0);
  if (count > 1) {
    LADE_EXPECT_OK(lade_device_peer_add(r.allocator, 1));
    LADE_EXPECT_EQ_UINT(support_call_count(r.runtime, "pool_set_access"), 1);
  }
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_device_peer_add(r.allocator, 99));
  rig_close(&r);
}
