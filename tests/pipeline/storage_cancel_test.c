/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Cancelling requests of storage that never answers, at each place where the cancel can meet them: a
 * pipe that nothing is written to is read by the engine, alone and in a pipeline.
 *
 * Cancellations on their way into the kernel are the linker's (--wrap=io_uring_submit): they can be made to miss.
 */
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pipeline/storage/storage.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"

static const uint64_t second_ns = UINT64_C(1000000000);

/* What has not come by then never comes. */
enum { PATIENCE_S = 40 };

/* --- cancellations that miss -------------------------------------------------------------------------------------- */

static _Atomic(int) misses;            /* so many cancellations from now on ... */
static _Atomic(void *) misses_meet;    /* ... name this instead of a request */
static _Atomic(unsigned) cancels_sent; /* since misses_set, as the next one */
static _Atomic(unsigned) requests_sent;

static void misses_set(int count, void *meet) {
  cancels_sent = 0;
  requests_sent = 0;
  misses_meet = meet;
  misses = count;
}

int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring) {
  for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
    struct io_uring_sqe *sqe = &ring->sq.sqes[i & *ring->sq.kring_mask];
    if (sqe->opcode != IORING_OP_ASYNC_CANCEL) {
      requests_sent++;
      continue;
    }
    cancels_sent++;
    if (misses-- > 0) sqe->addr = (uint64_t)(uintptr_t)misses_meet;
  }
  return __real_io_uring_submit(ring);
}

/* --- the engine alone --------------------------------------------------------------------------------------------- */

/* A pipe, and a request that reads it. */
typedef struct reading {
  ladei_pipe_storage_file *file;
  ladei_pipe_storage_request request;
  char buffer[16];
  int ends[2];
} reading;

typedef struct scene {
  ladei_pipe_storage storage;
  reading first, other;
} scene;

static void reading_open(scene *s, reading *r) {
  LADE_EXPECT_EQ_INT(pipe(r->ends), 0);
  ladei_pipe_storage_source source = {.name = "pipe", .fd = r->ends[0]};
  LADE_EXPECT_OK(ladei_pipe_storage_file_open(&s->storage, &source, false, &r->file));
  r->request = (ladei_pipe_storage_request){
      .file = r->file, .buffer = r->buffer, .bytes = sizeof r->buffer, .block_index = -1, .user = s};
}

static void reading_close(reading *r) {
  LADE_EXPECT_OK(ladei_pipe_storage_file_close(r->file));
  close(r->ends[0]);
  close(r->ends[1]);
}

/* What the pipe's reader waits for. */
static void reading_let_go(reading *r) {
  LADE_EXPECT_EQ_INT((int)write(r->ends[1], r->buffer, sizeof r->buffer), (int)sizeof r->buffer);
}

/* False: the kernel has no io_uring for us. */
static bool scene_open(scene *s) {
  memset(s, 0, sizeof *s);
  misses_set(0, NULL);
  ladei_pipe_storage_open(&s->storage, LADE_STORAGE_URING, true, 4, 4);
  if (s->storage.engine == NULL) return false;
  reading_open(s, &s->first);
  reading_open(s, &s->other);
  return true;
}

static void scene_close(scene *s) {
  LADE_EXPECT_EQ_UINT(ladei_pipe_storage_in_flight(&s->storage), 0);
  reading_close(&s->first);
  reading_close(&s->other);
  ladei_pipe_storage_close(&s->storage);
}

static time_t now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

/* The next request that is over. NULL: it does not come. */
static ladei_pipe_storage_request *reap(scene *s) {
  ladei_pipe_storage_request *done = NULL;
  time_t begin = now_s();
  while (ladei_pipe_storage_reap(&s->storage, second_ns, &done, 1) == 0 && now_s() - begin < PATIENCE_S) continue;
  return done;
}

/* The request comes back, cancelled. One that does not is let go, so that the scene can end. */
static void expect_cancelled(scene *s, reading *r) {
  ladei_pipe_storage_request *done = reap(s);
  LADE_EXPECT_EQ_PTR(done, &r->request);
  if (done == NULL) {
    reading_let_go(r);
    (void)reap(s);
    return;
  }
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, done->status);
}

LADE_TEST(StorageCancel, ReachesARequestInTheKernel) {
  scene s;
  if (!scene_open(&s)) LADE_SKIP("io_uring is forbidden here");
  ladei_pipe_storage_submit(&s.first.request);
  ladei_pipe_storage_file_cancel(s.first.file);
  ladei_pipe_storage_push(&s.storage);
  expect_cancelled(&s, &s.first);
  scene_close(&s);
}

/* A reader thread has taken the order, and not handed the request over yet. It went into the kernel unmarked once, and the
 * transfer, and so the pipeline's destroy, never ended. */
LADE_TEST(StorageCancel, ReachesARequestOnItsWayToTheEngine) {
  scene s;
  if (!scene_open(&s)) LADE_SKIP("io_uring is forbidden here");
  ladei_pipe_storage_file_cancel(s.first.file);
  ladei_pipe_storage_push(&s.storage);
  ladei_pipe_storage_submit(&s.first.request);
  expect_cancelled(&s, &s.first);
  scene_close(&s);
}

static void *submit_main(void *user) {
  ladei_pipe_storage_submit(&((scene *)user)->first.request);
  return NULL;
}

/* Anywhere between the two. */
LADE_TEST(StorageCancel, ReachesARequestThatIsBeingHandedOver) {
  for (unsigned i = 0; i < 100 && !lade_test_has_failed(); i++) {
    scene s;
    pthread_t thread;
    if (!scene_open(&s)) LADE_SKIP("io_uring is forbidden here");
    LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, submit_main, &s), 0);
    usleep(i % 20 * 5);
    ladei_pipe_storage_file_cancel(s.first.file);
    ladei_pipe_storage_push(&s.storage);
    expect_cancelled(&s, &s.first);
    pthread_join(thread, NULL);
    scene_close(&s);
  }
}

/* A thread of the kernel tries the request, and then leaves it with the pipe: a cancel in between was answered with -EALREADY,
 * none was sent again, and the request never came back. */
LADE_TEST(StorageCancel, ReachesARequestThatTheKernelIsTrying) {
  for (unsigned i = 0; i < 1000 && !lade_test_has_failed(); i++) {
    scene s;
    if (!scene_open(&s)) LADE_SKIP("io_uring is forbidden here");
    ladei_pipe_storage_submit(&s.first.request);
    for (_Atomic(unsigned) spins = i * 79 % 2000; spins > 0;) spins--;
    ladei_pipe_storage_file_cancel(s.first.file);
    ladei_pipe_storage_push(&s.storage);
    expect_cancelled(&s, &s.first);
    scene_close(&s);
  }
}

/* The same for certain: the kernel finds nothing by what the first cancellations name. */
LADE_TEST(StorageCancel, IsRepeatedUntilTheRequestIsBack) {
  enum { MISSES = 4 };
  scene s;
  if (!scene_open(&s)) LADE_SKIP("io_uring is forbidden here");
  misses_set(MISSES, NULL);
  ladei_pipe_storage_submit(&s.first.request);
  ladei_pipe_storage_file_cancel(s.first.file);
  ladei_pipe_storage_push(&s.storage);
  expect_cancelled(&s, &s.first);
  LADE_EXPECT_GE_UINT(cancels_sent, MISSES + 1);
  scene_close(&s);
}

/* A reaper that never waits repeats it too. */
LADE_TEST(StorageCancel, IsRepeatedByAReaperThatOnlyLooks) {
  scene s;
  ladei_pipe_storage_request *done = NULL;
  if (!scene_open(&s)) LADE_SKIP("io_uring is forbidden here");
  misses_set(2, NULL);
  ladei_pipe_storage_submit(&s.first.request);
  ladei_pipe_storage_file_cancel(s.first.file);
  ladei_pipe_storage_push(&s.storage);
  time_t begin = now_s();
  while (ladei_pipe_storage_reap(&s.storage, 0, &done, 1) == 0 && now_s() - begin < PATIENCE_S) usleep(100);
  LADE_EXPECT_EQ_PTR(done, &s.first.request);
  if (done == NULL) expect_cancelled(&s, &s.first);
  scene_close(&s);
}

/* The address that a cancellation names may be another request's by the time that the kernel looks. */
LADE_TEST(StorageCancel, LeavesARequestAloneThatHasTheAddressNow) {
  scene s;
  if (!scene_open(&s)) LADE_SKIP("io_uring is forbidden here");
  misses_set(3, &s.other.request);
  ladei_pipe_storage_submit(&s.other.request);
  ladei_pipe_storage_submit(&s.first.request);
  ladei_pipe_storage_file_cancel(s.first.file);
  ladei_pipe_storage_push(&s.storage);
  expect_cancelled(&s, &s.first);
  LADE_EXPECT_EQ_UINT(ladei_pipe_storage_in_flight(&s.storage), 1);
  reading_let_go(&s.other);
  ladei_pipe_storage_request *done = reap(&s);
  LADE_EXPECT_EQ_PTR(done, &s.other.request);
  if (done != NULL) LADE_EXPECT_OK(done->status);
  scene_close(&s);
}

/* Nothing is cancelled any more once the request is back: not the next one in its place either. */
LADE_TEST(StorageCancel, EndsWithTheRequest) {
  scene s;
  if (!scene_open(&s)) LADE_SKIP("io_uring is forbidden here");
  misses_set(2, NULL);
  ladei_pipe_storage_submit(&s.first.request);
  ladei_pipe_storage_file_cancel(s.first.file);
  ladei_pipe_storage_push(&s.storage);
  expect_cancelled(&s, &s.first);
  ladei_pipe_storage_request *done;
  unsigned sent = cancels_sent;
  s.first.request = s.other.request;
  ladei_pipe_storage_submit(&s.first.request);
  for (unsigned i = 0; i < 10; i++)
    LADE_EXPECT_EQ_UINT(ladei_pipe_storage_reap(&s.storage, second_ns / 100, &done, 1), 0);
  LADE_EXPECT_EQ_UINT(cancels_sent, sent);
  reading_let_go(&s.other);
  LADE_EXPECT_EQ_PTR(reap(&s), &s.first.request);
  scene_close(&s);
}

/* --- in a pipeline ------------------------------------------------------------------------------------------------ */

enum { CHUNK = 4096 };

/* False: the kernel has no io_uring for us. */
static bool pipeline_open(fixture *f) {
  lade_pipeline_options options;
  fixture_options(&options);
  options.chunk_bytes = CHUNK;
  options.storage = LADE_STORAGE_URING;
  if (!fixture_open(f, "cpu", CHUNK, &options)) return false;
  if (fixture_info(f).storage_buffered == LADE_STORAGE_URING) return true;
  fixture_close(f);
  return false;
}

/* The transfer of a file that never answers ends when it is cancelled, by itself or with its pipeline, also where the
 * kernel missed the cancellation: the reader that waits in storage repeats it. */
static void transfer_ends(bool by_destroy) {
  fixture f;
  int ends[2];
  lade_ticket *ticket;
  if (!pipeline_open(&f)) LADE_SKIP("io_uring is forbidden here");
  LADE_ASSERT_EQ_INT(pipe(ends), 0);
  misses_set(3, NULL);
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_file(ends[0], 0, "pipe"), CHUNK);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  while (requests_sent == 0) usleep(100);
  if (by_destroy) {
    LADE_EXPECT_OK(lade_pipeline_destroy(f.pipeline, true));
    f.pipeline = NULL;
  } else {
    LADE_EXPECT_OK(lade_ticket_cancel(ticket));
  }
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  fixture_close(&f);
  close(ends[0]);
  close(ends[1]);
}

LADE_TEST(StorageCancel, EndsATransfer) { transfer_ends(false); }

LADE_TEST(StorageCancel, EndsATransferWithItsPipeline) { transfer_ends(true); }
