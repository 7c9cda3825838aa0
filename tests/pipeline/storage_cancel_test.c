/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Cancelling requests of storage that never answers, at each place where the cancel can meet them: a
 * pipe that nothing is written to is read by the engine alone, without the pipeline around it.
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "pipeline/storage/storage.h"
#include "tests/shim/lade_test.h"

static const uint64_t second_ns = UINT64_C(1000000000);

typedef struct scene {
  ladei_pipe_storage storage;
  ladei_pipe_storage_file *file;
  ladei_pipe_storage_request request;
  char buffer[16];
  int ends[2];
} scene;

/* False: the kernel has no io_uring for us. */
static bool scene_open(scene *s) {
  memset(s, 0, sizeof *s);
  ladei_pipe_storage_open(&s->storage, LADE_STORAGE_URING, true, 4, 4);
  if (s->storage.engine == NULL) return false;
  LADE_EXPECT_EQ_INT(pipe(s->ends), 0);
  ladei_pipe_storage_source source = {"pipe", false, s->ends[0], 0};
  LADE_EXPECT_OK(ladei_pipe_storage_file_open(&s->storage, &source, false, &s->file));
  s->request = (ladei_pipe_storage_request){
      .file = s->file, .buffer = s->buffer, .bytes = sizeof s->buffer, .block_index = -1, .user = s};
  return true;
}

static void scene_close(scene *s) {
  LADE_EXPECT_OK(ladei_pipe_storage_file_close(s->file));
  ladei_pipe_storage_close(&s->storage);
  close(s->ends[0]);
  close(s->ends[1]);
}

/* Returns early for what the kernel says about a cancellation itself, so a few times. */
static unsigned reap(scene *s, ladei_pipe_storage_request **out) {
  unsigned count = 0;
  for (int i = 0; i < 10 && count == 0; i++) count = ladei_pipe_storage_reap(&s->storage, second_ns, out, 1);
  return count;
}

/* The request comes back, cancelled. One that does not is let go by what it waits for, so that the scene can end. */
static void expect_cancelled(scene *s) {
  ladei_pipe_storage_request *done = NULL;
  unsigned count = reap(s, &done);
  LADE_EXPECT_EQ_UINT(count, 1);
  if (count == 0) {
    LADE_EXPECT_EQ_INT((int)write(s->ends[1], s->buffer, sizeof s->buffer), (int)sizeof s->buffer);
    LADE_EXPECT_EQ_UINT(reap(s, &done), 1);
    return;
  }
  LADE_EXPECT(done == &s->request);
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, done->status);
  LADE_EXPECT_EQ_UINT(ladei_pipe_storage_in_flight(&s->storage), 0);
}

LADE_TEST(StorageCancel, ReachesARequestInTheKernel) {
  scene s;
  if (!scene_open(&s)) LADE_SKIP("io_uring is forbidden here");
  ladei_pipe_storage_submit(&s.request);
  ladei_pipe_storage_file_cancel(s.file);
  ladei_pipe_storage_push(&s.storage);
  expect_cancelled(&s);
  scene_close(&s);
}

/* A reader thread has taken the order, and not handed the request over yet. It went into the kernel unmarked once, and the
 * transfer, and so the pipeline's destroy, never ended. */
LADE_TEST(StorageCancel, ReachesARequestOnItsWayToTheEngine) {
  scene s;
  if (!scene_open(&s)) LADE_SKIP("io_uring is forbidden here");
  ladei_pipe_storage_file_cancel(s.file);
  ladei_pipe_storage_push(&s.storage);
  ladei_pipe_storage_submit(&s.request);
  expect_cancelled(&s);
  scene_close(&s);
}

static void *submit_main(void *user) {
  ladei_pipe_storage_submit(&((scene *)user)->request);
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
    ladei_pipe_storage_file_cancel(s.file);
    ladei_pipe_storage_push(&s.storage);
    expect_cancelled(&s);
    pthread_join(thread, NULL);
    scene_close(&s);
  }
}
