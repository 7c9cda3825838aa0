/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: LADE_DEVICE_STREAMS_ARE_RETIRED: a thread asks the driver for its last stream no more, and asks again for a
 * handle that may be another stream's. Streams are destroyed here behind lade's back, as a program's own are.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lade/pinned.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"

enum { PAIRS = 20 };

static bool open_with(device_fixture *f, uint32_t flags) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = flags;
  return device_fixture_open(f, "sim", 256 * MIB, &options);
}

static bool open_retired(device_fixture *f) { return open_with(f, LADE_DEVICE_STREAMS_ARE_RETIRED); }

/* A pair on the stream. */
static void pair(device_fixture *f, lade_stream stream) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(f->allocator, 1000, stream, &block));
  LADE_EXPECT_OK(lade_device_free(f->allocator, block));
}

/* What so many pairs on the stream ask the driver for. */
static uint64_t questions(device_fixture *f, lade_stream stream) {
  uint64_t before = support_call_count(f->runtime, "stream_resolve");
  for (int i = 0; i < PAIRS; i++) pair(f, stream);
  return support_call_count(f->runtime, "stream_resolve") - before;
}

LADE_TEST(DeviceRetiredStreams, LastStreamIsAskedForOnce) {
  device_fixture f;
  if (!open_retired(&f)) return;
  LADE_EXPECT_EQ_UINT(questions(&f, f.streams[0]), 1);
  LADE_EXPECT_EQ_UINT(questions(&f, f.streams[0]), 0);
  LADE_EXPECT_EQ_UINT(questions(&f, f.streams[1]), 1);
  LADE_EXPECT_EQ_UINT(questions(&f, f.streams[0]), 1);
  device_fixture_close(&f);
}

LADE_TEST(DeviceRetiredStreams, WithoutThePromiseItIsAskedForEachTime) {
  device_fixture f;
  lade_device_options options;
  if (!open_with(&f, 0)) return;
  LADE_EXPECT_EQ_UINT(questions(&f, f.streams[0]), PAIRS);
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_STREAMS_ARE_RETIRED;
  LADE_EXPECT_OK(lade_device_configure(f.allocator, &options));
  LADE_EXPECT_EQ_UINT(questions(&f, f.streams[0]), 1);
  LADE_EXPECT_OK(lade_device_configure(f.allocator, NULL));
  LADE_EXPECT_EQ_UINT(questions(&f, f.streams[0]), PAIRS);
  device_fixture_close(&f);
}

LADE_TEST(DeviceRetiredStreams, SpecialHandlesAreAskedForEachTime) {
  device_fixture f;
  if (!open_retired(&f)) return;
  LADE_ASSERT_OK(f.runtime->ops->current_device_set(f.runtime->self, 0));
  LADE_EXPECT_EQ_UINT(questions(&f, NULL), PAIRS);
  LADE_EXPECT_EQ_UINT(questions(&f, LADE_STREAM_LEGACY), PAIRS);
  pair(&f, LADE_STREAM_PER_THREAD); /* its first segment needs the legacy stream, too */
  LADE_EXPECT_EQ_UINT(questions(&f, LADE_STREAM_PER_THREAD), PAIRS);
  device_fixture_close(&f);
}

/* ---- Recycled handles -------------------------------------------------------------------------------------------- */

typedef struct retirement {
  device_fixture *f;
  lade_pinned_pool *pool; /* NULL: by the allocator */
  lade_stream stream;
} retirement;

/* Retires the stream, destroys it, and gives its handle to another one. */
static void *handle_recycle(void *user) {
  const retirement *r = user;
  lade_runtime *runtime = r->f->runtime;
  lade_stream next = NULL;
  LADE_EXPECT_OK(r->pool == NULL ? lade_device_stream_retire(r->f->allocator, r->stream)
                                 : lade_pinned_stream_retire(r->pool, r->stream));
  LADE_EXPECT_OK(runtime->ops->stream_destroy(runtime->self, r->stream));
  LADE_EXPECT_OK(runtime->ops->stream_create(runtime->self, 0, 0, 0, &next));
  LADE_EXPECT_EQ_PTR(next, r->stream); /* the software device recycles handles */
  return NULL;
}

/* Memory of the stream that was must not serve the stream that is. */
static void recycled_run(bool pinned, bool elsewhere) {
  device_fixture f;
  if (!open_retired(&f)) return;
  retirement r = {.f = &f};
  if (pinned) LADE_ASSERT_OK(lade_pinned_pool_create(f.runtime, NULL, &r.pool));
  LADE_ASSERT_OK(f.runtime->ops->stream_create(f.runtime->self, 0, 0, 0, &r.stream));
  void *cached = NULL, *block = NULL;
  LADE_ASSERT_OK(lade_device_alloc(f.allocator, 30 * MIB, r.stream, &cached));
  LADE_EXPECT_OK(lade_device_free(f.allocator, cached));
  pthread_t thread;
  if (elsewhere) {
    LADE_ASSERT(pthread_create(&thread, NULL, handle_recycle, &r) == 0);
    pthread_join(thread, NULL);
  } else {
    (void)handle_recycle(&r);
  }
  LADE_ASSERT_OK(lade_device_alloc(f.allocator, 30 * MIB, r.stream, &block));
  LADE_EXPECT_NE_PTR(block, cached);
  LADE_EXPECT_OK(lade_device_free(f.allocator, block));
  LADE_EXPECT_OK(lade_device_stream_retire(f.allocator, r.stream));
  if (pinned) LADE_EXPECT_OK(lade_pinned_pool_destroy(r.pool, true));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, r.stream));
  device_fixture_close(&f);
}

LADE_TEST(DeviceRetiredStreams, HandleRecycledBehindARetirementIsAskedForAgain) { recycled_run(false, false); }
LADE_TEST(DeviceRetiredStreams, AlsoBehindOneByThePinnedPool) { recycled_run(true, false); }
LADE_TEST(DeviceRetiredStreams, AlsoBehindOneByAnotherThread) { recycled_run(false, true); }

/* One of lade's own streams is known to be gone without any retirement. */
LADE_TEST(DeviceRetiredStreams, DestroyedStreamIsForgotten) {
  device_fixture f;
  lade_stream first = NULL, second = NULL;
  if (!open_retired(&f)) return;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &first));
  pair(&f, first);
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, first));
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &second));
  LADE_EXPECT_EQ_PTR(second, first);
  LADE_EXPECT_EQ_UINT(questions(&f, second), 1);
  LADE_EXPECT_OK(lade_device_stream_retire(f.allocator, second));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, second));
  device_fixture_close(&f);
}

static void *stream_destroy(void *user) {
  const retirement *r = user;
  LADE_EXPECT_OK(lade_stream_destroy(r->f->runtime, r->stream));
  return NULL;
}

/* The call had its stream forgotten once it was destroyed: a thread that got the handle in between had its memory still. */
LADE_TEST(DeviceRetiredStreams, DestroyedStreamIsForgottenBeforeItsHandleIsFree) {
  device_fixture f;
  lade_stream next = NULL;
  pthread_t thread;
  if (!open_retired(&f)) return;
  retirement r = {.f = &f};
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &r.stream));
  pair(&f, r.stream);
  support_hold(f.runtime, "stream_destroy", 1, SUPPORT_HOLD_AFTER);
  LADE_ASSERT(pthread_create(&thread, NULL, stream_destroy, &r) == 0);
  support_hold_await(f.runtime);
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &next));
  LADE_EXPECT_EQ_PTR(next, r.stream);
  LADE_EXPECT_EQ_UINT(questions(&f, next), 1);
  support_hold_end(f.runtime);
  pthread_join(thread, NULL);
  LADE_EXPECT_OK(lade_device_stream_retire(f.allocator, next));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, next));
  device_fixture_close(&f);
}

/* ---- Runtimes, processes ----------------------------------------------------------------------------------------- */

/* Another runtime may lie where a closed one lay, with equal handles. */
LADE_TEST(DeviceRetiredStreams, ClosedRuntimeIsForgotten) {
  device_fixture f;
  lade_runtime *other = NULL;
  if (!open_retired(&f)) return;
  LADE_ASSERT_OK(lade_runtime_open("sim", NULL, &other));
  pair(&f, f.streams[0]);
  LADE_EXPECT_OK(lade_runtime_close(other));
  LADE_EXPECT_EQ_UINT(questions(&f, f.streams[0]), 1);
  device_fixture_close(&f);
}

LADE_TEST(DeviceRetiredStreams, EachRuntimeIsAskedForItsOwn) {
  device_fixture f, other;
  if (!open_retired(&f) || !open_retired(&other)) return;
  lade_stream same = f.streams[0];
  pair(&f, same);
  uint64_t before = support_call_count(other.runtime, "stream_resolve");
  void *block = NULL;
  if (lade_device_alloc(other.allocator, 1000, same, &block) == LADE_OK) (void)lade_device_free(other.allocator, block);
  LADE_EXPECT_EQ_UINT(support_call_count(other.runtime, "stream_resolve"), before + 1);
  device_fixture_close(&other);
  device_fixture_close(&f);
}

LADE_TEST(DeviceRetiredStreams, ForkedChildIsRefusedAllTheSame) {
  device_fixture f;
  if (!open_retired(&f)) return;
  pair(&f, f.streams[0]);
  pid_t child = fork();
  LADE_ASSERT(child >= 0);
  if (child == 0) {
    void *block = NULL;
    _exit(lade_device_alloc(f.allocator, 1000, f.streams[0], &block) == LADE_ERR_FORKED ? 0 : 1);
  }
  int status = 0;
  LADE_EXPECT(waitpid(child, &status, 0) == child && status == 0);
  device_fixture_close(&f);
}
