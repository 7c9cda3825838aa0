/* SPDX-License-Identifier: Apache-2.0 */
/* Engine threads: many submitters, waits in both directions, objects that go while work is in flight. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/runtime/soft/fixture.h"
#include "tests/shim/lade_test.h"

enum { THREADS = 4, ROUNDS = 300, SLOT_BYTES = 4096 };

static soft_fixture shared;
static char *device_memory, *host_memory;

static uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

/* Each thread sends its own pattern to the device on one stream and back on another, checked after an event's end. */
static void *round_trips(void *argument) {
  int thread = (int)(intptr_t)argument;
  const lade_runtime_ops *ops = shared.ops;
  void *self = shared.self;
  uint64_t random = 77u + (uint64_t)thread, context = 0;
  unsigned char *in = (unsigned char *)host_memory + (size_t)thread * 2 * SLOT_BYTES, *back = in + SLOT_BYTES;
  char *device = device_memory + (size_t)thread * SLOT_BYTES;
  lade_stream handles[2];
  ladei_stream streams[2];
  lade_event sent, returned;
  LADE_EXPECT_OK(ops->device_context(self, 0, &context));
  LADE_EXPECT_OK(ops->event_create(self, context, 0, &sent));
  LADE_EXPECT_OK(ops->event_create(self, context, 0, &returned));
  for (int round = 0; round < ROUNDS; round++) {
    if (round % 16 == 0) {
      for (int i = 0; i < 2; i++) {
        if (round != 0) LADE_EXPECT_OK(ops->stream_destroy(self, handles[i])); /* work may be in flight */
        LADE_EXPECT_OK(ops->stream_create(self, 0, 0, LADEI_STREAM_NON_BLOCKING, &handles[i]));
        LADE_EXPECT_OK(ops->stream_resolve(self, handles[i], &streams[i]));
      }
    }
    size_t bytes = 1 + next_random(&random) % SLOT_BYTES;
    memset(in, thread * 50 + round % 50, bytes);
    LADE_EXPECT_OK(ops->copy(self, LADEI_COPY_H2D, device, in, bytes, &streams[0]));
    LADE_EXPECT_OK(ops->event_record(self, sent, &streams[0]));
    LADE_EXPECT_OK(ops->stream_wait_event(self, &streams[1], sent));
    LADE_EXPECT_OK(ops->copy(self, LADEI_COPY_D2H, back, device, bytes, &streams[1]));
    LADE_EXPECT_OK(ops->event_record(self, returned, &streams[1]));
    if (next_random(&random) % 2 == 0)
      LADE_EXPECT_OK(ops->event_synchronize(self, returned));
    else
      while (ops->event_query(self, returned) == LADE_NOT_READY) sched_yield();
    if (memcmp(in, back, bytes) != 0) LADE_FAIL("thread %d, round %d: other bytes came back", thread, round);
  }
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(ops->stream_destroy(self, handles[i]));
  LADE_EXPECT_OK(ops->event_destroy(self, sent));
  LADE_EXPECT_OK(ops->event_destroy(self, returned));
  return NULL;
}

/* Allocates, frees, pins and uses memory beside them. */
static void *memory_churn(void *argument) {
  const lade_runtime_ops *ops = shared.ops;
  void *self = shared.self;
  (void)argument;
  for (int round = 0; round < ROUNDS / 4; round++) {
    void *device = NULL, *host = NULL;
    LADE_EXPECT_OK(ops->device_alloc(self, 0, SLOT_BYTES, &device));
    LADE_EXPECT_OK(ops->host_alloc(self, 0, SLOT_BYTES, 0, &host));
    memset(host, round, SLOT_BYTES);
    LADE_EXPECT_OK(ops->copy_sync(self, 0, LADEI_COPY_H2D, device, host, SLOT_BYTES));
    memset(host, ~round, SLOT_BYTES);
    LADE_EXPECT_OK(ops->copy_sync(self, 0, LADEI_COPY_D2H, host, device, SLOT_BYTES));
    LADE_EXPECT_EQ_INT(((unsigned char *)host)[SLOT_BYTES - 1], round & 255);
    LADE_EXPECT_OK(ops->host_free(self, host));
    LADE_EXPECT_OK(ops->device_free(self, 0, device));
  }
  return NULL;
}

LADE_TEST(CpuStress, ThreadsShareADeviceAndGetTheirOwnBytesBack) {
  shared = soft_fixture_open("cpu", NULL);
  device_memory = soft_fixture_device_memory(&shared, 0, (size_t)THREADS * SLOT_BYTES);
  host_memory = soft_fixture_pinned(&shared, (size_t)THREADS * 2 * SLOT_BYTES);
  pthread_t threads[THREADS + 1];
  for (int i = 0; i < THREADS; i++)
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, round_trips, (void *)(intptr_t)i), 0);
  LADE_ASSERT_EQ_INT(pthread_create(&threads[THREADS], NULL, memory_churn, NULL), 0);
  for (int i = 0; i <= THREADS; i++) pthread_join(threads[i], NULL);
  soft_fixture_expect_no_finding(&shared);
  soft_fixture_close(&shared);
}

/* ---- waits across streams in long chains ------------------------------------------------------------------------- */

LADE_TEST_P(Chains, AThousandStreamsInARowFinishInOrder, soft_fixture_clocks, clock) {
  enum { LINKS = 1000 };
  static lade_stream handles[LINKS];
  soft_fixture f = soft_fixture_open(clock, NULL);
  char *device = soft_fixture_device_memory(&f, 0, 4096), *host = soft_fixture_pinned(&f, 4096);
  lade_event event = soft_fixture_event(&f, 0, 0);
  ladei_stream stream = {0};
  for (int i = 0; i < LINKS; i++) {
    LADE_ASSERT_OK(f.ops->stream_create(f.self, 0, 0, LADEI_STREAM_NON_BLOCKING, &handles[i]));
    LADE_ASSERT_OK(f.ops->stream_resolve(f.self, handles[i], &stream));
    if (i == 0) LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, handles[0], true));
    if (i != 0) LADE_EXPECT_OK(f.ops->stream_wait_event(f.self, &stream, event));
    LADE_EXPECT_OK(f.ops->fill(f.self, device, (unsigned char)i, 64, &stream));
    LADE_EXPECT_OK(f.ops->event_record(f.self, event, &stream));
  }
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_D2H, host, device, 64, &stream));
  LADE_EXPECT_STATUS(LADE_NOT_READY, f.ops->event_query(f.self, event));
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, handles[0], false));
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_INT((unsigned char)host[63], (LINKS - 1) & 255);
  soft_fixture_expect_no_finding(&f);
  for (int i = 0; i < LINKS; i++) LADE_EXPECT_OK(f.ops->stream_destroy(f.self, handles[i]));
  soft_fixture_close(&f);
}

/* ---- a stale handle, while another thread makes streams ---------------------------------------------------------- */

static void *stream_churn(void *argument) {
  (void)argument;
  for (int round = 0; round < ROUNDS; round++) {
    lade_stream stream = NULL;
    LADE_EXPECT_OK(shared.ops->stream_create(shared.self, 0, 0, 0, &stream));
    LADE_EXPECT_OK(shared.ops->stream_destroy(shared.self, stream));
  }
  return NULL;
}

/* Regression: the record of a stream was read while another thread filled it. The thread sanitiser sees it. */
LADE_TEST(CpuStreams, StaleHandleIsResolvedWhileStreamsAreMade) {
  shared = soft_fixture_open("cpu", NULL);
  lade_stream stale = NULL;
  pthread_t thread;
  LADE_ASSERT_OK(shared.ops->stream_create(shared.self, 0, 0, 0, &stale));
  LADE_ASSERT_OK(shared.ops->stream_destroy(shared.self, stale));
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, stream_churn, NULL), 0);
  for (int round = 0; round < ROUNDS; round++) {
    ladei_stream resolved;
    lade_status status = shared.ops->stream_resolve(shared.self, stale, &resolved);
    if (status == LADE_OK)
      LADE_EXPECT(resolved.handle == stale);
    else
      LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, status);
  }
  pthread_join(thread, NULL);
  soft_fixture_close(&shared);
}

/* ---- one thread waits, another releases -------------------------------------------------------------------------- */

static _Atomic(bool) waited;

static void *wait_for_stream(void *argument) {
  LADE_EXPECT_OK(shared.ops->stream_synchronize(shared.self, argument));
  atomic_store(&waited, true);
  return NULL;
}

LADE_TEST(CpuWait, LastsUntilTheStreamIsReleased) {
  shared = soft_fixture_open("cpu", NULL);
  ladei_stream stream = soft_fixture_stream(&shared, 0);
  char *device = soft_fixture_device_memory(&shared, 0, SLOT_BYTES);
  atomic_store(&waited, false);
  LADE_EXPECT_OK(ladei_soft_stream_hold(shared.self, stream.handle, true));
  LADE_EXPECT_OK(shared.ops->fill(shared.self, device, 1, SLOT_BYTES, &stream));
  pthread_t thread;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, wait_for_stream, &stream), 0);
  for (int i = 0; i < 100; i++) sched_yield();
  LADE_EXPECT(!atomic_load(&waited));
  LADE_EXPECT_OK(ladei_soft_stream_hold(shared.self, stream.handle, false));
  pthread_join(thread, NULL);
  LADE_EXPECT(atomic_load(&waited));
  soft_fixture_close(&shared);
}

LADE_TEST(CpuWait, EndsWhenTheDeviceIsLost) {
  shared = soft_fixture_open("cpu", NULL);
  ladei_stream stream = soft_fixture_stream(&shared, 0);
  char *device = soft_fixture_device_memory(&shared, 0, SLOT_BYTES);
  LADE_EXPECT_OK(ladei_soft_stream_hold(shared.self, stream.handle, true));
  LADE_EXPECT_OK(shared.ops->fill(shared.self, device, 1, SLOT_BYTES, &stream));
  LADE_EXPECT_OK(ladei_soft_device_lose(shared.self, 0, soft_fixture_now(&shared) + 5000000));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, shared.ops->stream_synchronize(shared.self, &stream));
  soft_fixture_close(&shared);
}

/* Once a call says that the device is lost, its memory may be used again: no copy still writes to it. */
LADE_TEST(CpuMemory, IsLeftAloneByALostDevice) {
  enum { TRIES = 20 };
  const size_t bytes = (size_t)8 << 20;
  for (int i = 0; i < TRIES; i++) {
    void *own;
    soft_fixture f = soft_fixture_open("cpu", NULL);
    ladei_stream stream = soft_fixture_stream(&f, 0);
    char *device = soft_fixture_device_memory(&f, 0, bytes);
    LADE_EXPECT_OK(f.ops->host_alloc(f.self, 0, bytes, 0, &own));
    for (int k = 0; k < 3; k++) LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_D2H, own, device, bytes, &stream));
    uint64_t until = soft_fixture_now(&f) + (uint64_t)i * 200000; /* from "not started" to "the last one" */
    while (soft_fixture_now(&f) < until) {
    }
    LADE_EXPECT_OK(ladei_soft_device_lose(f.self, 0, 0));
    LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, f.ops->stream_query(f.self, &stream));
    memset(own, 7, bytes);
    until = soft_fixture_now(&f) + 2000000;
    while (soft_fixture_now(&f) < until) {
    }
    size_t same = 0;
    while (same < bytes && ((char *)own)[same] == 7) same++;
    LADE_EXPECT_EQ_SIZE(same, bytes);
    LADE_EXPECT_OK(f.ops->host_free(f.self, own));
    soft_fixture_close(&f);
  }
}

/* Memory that its owner unmaps right after unregistering it, with a copy queued or under way: nobody may crash. */
LADE_TEST(CpuMemory, UnregisterWaitsForACopyThatRuns) {
  enum { TRIES = 40 };
  const size_t bytes = (size_t)4 << 20;
  soft_fixture f = soft_fixture_open("cpu", NULL);
  ladei_stream stream = soft_fixture_stream(&f, 0);
  char *device = soft_fixture_device_memory(&f, 0, bytes);
  for (int i = 0; i < TRIES; i++) {
    void *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    LADE_EXPECT_OK(f.ops->host_register(f.self, 0, own, bytes, 0));
    LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device, own, bytes, &stream));
    uint64_t until = soft_fixture_now(&f) + (uint64_t)i * 20000; /* from "not started" to "done" */
    while (soft_fixture_now(&f) < until) {
    }
    LADE_EXPECT_OK(f.ops->host_unregister(f.self, own));
    munmap(own, bytes);
  }
  soft_fixture_synchronize(&f, &stream);
  soft_fixture_close(&f);
}

/* ---- streams of threads ------------------------------------------------------------------------------------------ */

static ladei_stream seen[2];

static void *own_stream(void *argument) {
  LADE_EXPECT_OK(shared.ops->current_device_set(shared.self, 0));
  ladei_stream *mine = &seen[(intptr_t)argument];
  LADE_EXPECT_OK(shared.ops->stream_resolve(shared.self, LADE_STREAM_PER_THREAD, mine));
  LADE_EXPECT_OK(shared.ops->fill(shared.self, device_memory, (unsigned char)(intptr_t)argument, SLOT_BYTES, mine));
  LADE_EXPECT_OK(shared.ops->stream_synchronize(shared.self, mine));
  return NULL;
}

LADE_TEST(CpuThreads, EachHasItsOwnDefaultStream) {
  shared = soft_fixture_open("cpu", NULL);
  device_memory = soft_fixture_device_memory(&shared, 0, SLOT_BYTES);
  for (intptr_t i = 0; i < 2; i++) {
    pthread_t thread;
    LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, own_stream, (void *)i), 0);
    pthread_join(thread, NULL);
  }
  LADE_EXPECT_NE_UINT(seen[0].id, seen[1].id);
  LADE_EXPECT_EQ_UINT(seen[0].context, seen[1].context);
  soft_fixture_close(&shared);
}
