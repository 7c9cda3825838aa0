/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runtime/cuda/stream_identity.c: all orders of two threads that resolve one handle, which has come to name another stream, of another
 * context. Each gets the id and the context of that stream.
 */
#include "tests/shim/lade_test.h"

#ifdef LADE_HAVE_CUDA_HEADERS
#include <stdlib.h>

#include "runtime/cuda/driver.h"
#include "tests/stress/scheduler.h"

enum { THREADS = 2 };

/* The driver's stream behind the handle. */
static struct {
  unsigned long long id;
  CUcontext context;
  CUstreamCaptureStatus status;
} stream;

static char contexts[2];
static CUstream const handle = (CUstream)(void *)&stream;

static CUresult get_id(CUstream of, unsigned long long *out) {
  LADE_EXPECT(of == handle);
  *out = stream.id;
  return CUDA_SUCCESS;
}
static CUresult get_context(CUstream of, CUcontext *out) {
  LADE_EXPECT(of == handle);
  *out = stream.context;
  return CUDA_SUCCESS;
}
static CUresult is_capturing(CUstream of, CUstreamCaptureStatus *out) {
  LADE_EXPECT(of == handle);
  *out = stream.status;
  return CUDA_SUCCESS;
}

typedef struct bench {
  cuda_runtime *runtime;
  CUcontext context[THREADS];
  uint64_t id[THREADS];
} bench;

static void resolve(bench *own, int thread) {
  LADE_EXPECT_EQ_INT((int)ladei_cuda_stream_identity(own->runtime, handle, LADEI_STREAM_ORDINARY, &own->context[thread],
                                                     &own->id[thread]),
                     CUDA_SUCCESS);
}

static void stream_be(unsigned long long id) {
  stream.id = id;
  stream.context = (CUcontext)(void *)&contexts[id - 1];
}

static void prepare(void *user) {
  bench *own = user;
  own->runtime = calloc(1, sizeof *own->runtime);
  LADE_ASSERT(own->runtime != NULL);
  own->runtime->api.stream_get_id = get_id;
  own->runtime->api.stream_get_ctx = get_context;
  own->runtime->api.stream_is_capturing = is_capturing;
  ladei_cuda_streams_init(&own->runtime->streams);
  stream.status = CU_STREAM_CAPTURE_STATUS_NONE;
  stream_be(1);
  resolve(own, 0);
  stream_be(2);
}

static void body(void *user, int thread) { resolve(user, thread); }

static void judge(void *user) {
  bench *own = user;
  for (int i = 0; i < THREADS; i++) {
    LADE_EXPECT_EQ_UINT(own->id[i], 2);
    LADE_EXPECT_EQ_PTR((void *)own->context[i], (void *)&contexts[1]);
  }
  ladei_cuda_streams_destroy(&own->runtime->streams);
  free(own->runtime);
}

/* A thread that read the id between the stores of another one's believed the context of the stream before. */
LADE_TEST(StreamIdentitySchedule, HandleUsedAgain) {
  bench own = {.runtime = NULL};
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  const scheduler_plan plan = {
      .threads = THREADS, .preemptions = scheduler_preemptions(2), .prepare = prepare, .body = body, .judge = judge};
  LADE_EXPECT_GE_UINT(scheduler_explore(&plan, &own), 1);
}
#endif
