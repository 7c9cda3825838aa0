/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No wake-up of a reader thread is lost: each of N orders that hang gets one of N threads, however the orders come up and
 * whatever the threads were doing. What hangs is a meeting, which none leaves before all have come: one thread left asleep
 * and it never takes place.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pipeline/state/state.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/asleep.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"

enum { CHUNK = 4096, THREADS = 6, MEET_S = 20 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROUNDS = 100 };
#else
enum { ROUNDS = 300 };
#endif

/* --- a meeting ---------------------------------------------------------------------------------------------------- */

typedef struct meeting {
  pthread_mutex_t lock;
  pthread_cond_t all_there;
  unsigned there;
  unsigned wanted;
  bool failed; /* the time was over */
} meeting;

static void meeting_open(meeting *m, unsigned wanted) {
  *m = (meeting){.wanted = wanted};
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&m->lock, NULL);
  pthread_cond_init(&m->all_there, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

static void meeting_close(meeting *m) {
  LADE_EXPECT(!m->failed);
  LADE_EXPECT_EQ_UINT(m->there, m->wanted);
  pthread_cond_destroy(&m->all_there);
  pthread_mutex_destroy(&m->lock);
}

static lade_status meet(meeting *m) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += MEET_S;
  pthread_mutex_lock(&m->lock);
  if (++m->there >= m->wanted) pthread_cond_broadcast(&m->all_there);
  while (m->there < m->wanted && !m->failed) m->failed = pthread_cond_timedwait(&m->all_there, &m->lock, &until) != 0;
  pthread_mutex_unlock(&m->lock);
  return LADE_OK;
}

static lade_status meet_range(void *user, uint64_t offset, void *buffer, size_t bytes) {
  support_pattern_fill(buffer, bytes, 1, offset);
  return meet(user);
}

static lade_status meet_end(void *user, lade_ticket *ticket, const lade_error *outcome) {
  (void)ticket;
  (void)outcome;
  return meet(user);
}

/* --- the pipeline ------------------------------------------------------------------------------------------------- */

typedef struct scene {
  fixture f;
  support_random random;
  lade_ticket *tickets[THREADS];
  unsigned count;
  char host[THREADS * CHUNK];
} scene;

/* As many threads as may meet, and slots for all of them and others. */
static bool scene_open(scene *s, uint32_t storage) {
  lade_pipeline_options options;
  memset(s, 0, sizeof *s);
  fixture_options(&options);
  options.chunk_bytes = CHUNK;
  options.readers = THREADS;
  options.depth = 4 * THREADS;
  options.storage = (int32_t)storage;
  support_random_start(&s->random, 1);
  return fixture_open(&s->f, "cpu", (size_t)2 * THREADS * CHUNK, &options);
}

static void submit(scene *s, const lade_transfer *transfer) {
  LADE_ASSERT_OK(lade_pipeline_submit(s->f.pipeline, transfer, &s->tickets[s->count]));
  s->count++;
}

/* Where a meeting does not take place its transfers end all the same, after MEET_S. Those that do not end then have found
 * no thread at all, and nothing could be taken apart. */
static void all_wait(scene *s) {
  for (unsigned i = 0; i < s->count; i++) {
    lade_status status = lade_ticket_wait(s->tickets[i], UINT64_C(2) * MEET_S * 1000000000);
    if (status == LADE_ERR_TIMEOUT) {
      fprintf(stderr, "every reader thread sleeps, and there is work: %s\n", lade_last_error()->text);
      abort();
    }
    LADE_EXPECT_OK(status);
    lade_ticket_release(s->tickets[i]);
  }
  s->count = 0;
}

/* For a moment of any length, in which threads run dry, spin, or go to sleep. */
static void moment_pass(scene *s) {
  static const unsigned most[] = {0, 5, 60, 400};
  unsigned us = (unsigned)support_random_between(&s->random, 0, most[support_random_between(&s->random, 0, 3)]);
  if (us > 0) usleep(us);
}

/* A transfer that hangs in its source. */
static lade_transfer hanging(scene *s, meeting *m, size_t chunks, bool concurrent) {
  lade_endpoint source = lade_endpoint_callback(meet_range, m);
  source.concurrent = concurrent ? 1 : 0;
  return fixture_transfer(&s->f, LADE_TO_DEVICE, source, chunks * CHUNK);
}

/* Submits a transfer for each thread that is to meet, `slowly` with a moment before each, and waits until all have met. */
static void meet_by_submits(scene *s, bool slowly) {
  meeting m;
  meeting_open(&m, THREADS);
  for (unsigned i = 0; i < THREADS; i++) {
    lade_transfer transfer = hanging(s, &m, 1, false);
    if (slowly) moment_pass(s);
    submit(s, &transfer);
  }
  all_wait(s);
  meeting_close(&m);
}

/* --- the tests ---------------------------------------------------------------------------------------------------- */

/* One submit brings up all orders: who takes the first wakes the next, and so on. */
LADE_TEST(Threads, WakeEachOtherForTheChunksOfOneTransfer) {
  scene s;
  if (!scene_open(&s, LADE_STORAGE_PREAD)) return;
  for (unsigned round = 0; round < ROUNDS && !lade_test_has_failed(); round++) {
    meeting m;
    meeting_open(&m, THREADS);
    lade_transfer transfer = hanging(&s, &m, THREADS, true);
    submit(&s, &transfer);
    all_wait(&s);
    meeting_close(&m);
    moment_pass(&s);
  }
  fixture_expect_device_pattern(&s.f, 0, THREADS * CHUNK, 1, 0);
  fixture_close(&s.f);
}

/* Submits in close order: most of them find a thread on the way. */
LADE_TEST(Threads, WakeForEachOfManySubmits) {
  scene s;
  if (!scene_open(&s, LADE_STORAGE_PREAD)) return;
  for (unsigned round = 0; round < ROUNDS && !lade_test_has_failed(); round++) meet_by_submits(&s, round % 2 != 0);
  fixture_close(&s.f);
}

/* Beside a copy that a thread polls, spinning or sleeping: the last to come takes that task over. */
LADE_TEST(Threads, WakeWhileOneAsksForTheEndOfCopies) {
  scene s;
  lade_stream stream;
  if (!scene_open(&s, LADE_STORAGE_PREAD)) return;
  LADE_ASSERT_OK(lade_stream_create(s.f.runtime, 0, &stream));
  for (unsigned round = 0; round < ROUNDS && !lade_test_has_failed(); round++) {
    lade_ticket *copying;
    /* The copy waits for a stream that is stopped, so it is under way until the meeting is over. */
    LADE_ASSERT_OK(lade_soft_stream_hold(s.f.runtime, stream, true));
    lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.host), CHUNK);
    LADE_ASSERT_OK(lade_copy_async(s.f.runtime, s.f.device, s.f.device + CHUNK, CHUNK, stream));
    transfer.after_stream = 1;
    transfer.stream = stream;
    LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &copying));
    meet_by_submits(&s, true);
    LADE_EXPECT_OK(lade_soft_stream_hold(s.f.runtime, stream, false));
    LADE_EXPECT_OK(lade_ticket_wait(copying, LADE_WAIT_FOREVER));
    lade_ticket_release(copying);
  }
  LADE_EXPECT_OK(lade_stream_destroy(s.f.runtime, stream));
  fixture_close(&s.f);
}

/* Many transfers end by one event, and each calls back: who found out must not keep them to himself. */
LADE_TEST(Threads, WakeForEachEndOfATransfer) {
  scene s;
  if (!scene_open(&s, LADE_STORAGE_PREAD)) return;
  for (unsigned round = 0; round < ROUNDS && !lade_test_has_failed(); round++) {
    meeting m;
    meeting_open(&m, THREADS);
    for (unsigned i = 0; i < THREADS; i++) {
      lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.host), 100);
      transfer.on_complete = meet_end;
      transfer.on_complete_user = &m;
      submit(&s, &transfer);
    }
    all_wait(&s);
    meeting_close(&m);
    moment_pass(&s);
  }
  fixture_close(&s.f);
}

/* With a read that never ends one thread waits in storage. It comes out when it is the last one. */
LADE_TEST(Threads, WakeTheOneThatWaitsInStorage) {
  scene s;
  int ends[2];
  lade_ticket *reading;
  if (!scene_open(&s, LADE_STORAGE_URING)) return;
  if (fixture_info(&s.f).storage_buffered != LADE_STORAGE_URING) {
    fixture_close(&s.f);
    LADE_SKIP("io_uring is forbidden here");
  }
  LADE_ASSERT_EQ_INT(pipe(ends), 0);
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_file(ends[0], 0, "pipe"), CHUNK);
  LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &reading));
  for (unsigned round = 0; round < ROUNDS && !lade_test_has_failed(); round++) meet_by_submits(&s, round % 2 != 0);
  LADE_EXPECT_OK(lade_ticket_cancel(reading));
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(reading, LADE_WAIT_FOREVER));
  lade_ticket_release(reading);
  close(ends[0]);
  close(ends[1]);
  fixture_close(&s.f);
}

/* A submit with much to read wakes several readers at once, and signals them when the lock is released: while they read, sleep
 * again, and stop. */
LADE_TEST(Threads, StopWhileReadersAreBeingWoken) {
  enum { BYTES = 4 << 20, STOPS = ROUNDS / 50 };
  char *source = malloc(BYTES);
  LADE_ASSERT(source != NULL);
  support_pattern_fill(source, BYTES, 1, 0);
  for (unsigned round = 0; round < STOPS && !lade_test_has_failed(); round++) {
    fixture f;
    lade_pipeline_options options;
    fixture_options(&options);
    options.chunk_bytes = 256 << 10;
    options.readers = THREADS;
    options.depth = 4 * THREADS;
    if (!fixture_open(&f, "cpu", BYTES, &options)) break;
    for (unsigned i = 0; i < 2; i++)
      LADE_EXPECT_OK(fixture_move(&f, LADE_TO_DEVICE, lade_endpoint_memory(source), BYTES));
    fixture_expect_device_pattern(&f, 0, BYTES, 1, 0);
    fixture_close(&f);
  }
  free(source);
}

/* --- who wakes ---------------------------------------------------------------------------------------------------- */

typedef struct served {
  pthread_t threads[THREADS];
  unsigned counts[THREADS];
  unsigned known;
} served;

/* One at a time: each transfer ends before the next is submitted. */
static lade_status serve_note(void *user, uint64_t offset, void *buffer, size_t bytes) {
  served *s = user;
  unsigned i = 0;
  support_pattern_fill(buffer, bytes, 1, offset);
  while (i < s->known && !pthread_equal(s->threads[i], pthread_self())) i++;
  if (i == THREADS) return LADE_ERR_INTERNAL;
  s->known += i == s->known ? 1 : 0;
  s->threads[i] = pthread_self();
  s->counts[i]++;
  return LADE_OK;
}

static bool all_sleep(void *user) {
  (void)user;
  return support_others_sleep();
}

/* Of ROUNDS transfers, one after the other, those that the two threads read that read most. Each is submitted when all
 * threads sleep, and is read by the one that is woken first. */
static unsigned two_serve(scene *s) {
  served by = {.known = 0};
  unsigned most[2] = {0, 0};
  for (unsigned round = 0; round < ROUNDS; round++) {
    lade_transfer transfer = fixture_transfer(&s->f, LADE_TO_DEVICE, lade_endpoint_callback(serve_note, &by), CHUNK);
    LADE_EXPECT(support_wait(s->f.runtime, all_sleep, NULL));
    submit(s, &transfer);
    all_wait(s);
  }
  for (unsigned i = 0; i < by.known; i++) {
    unsigned lesser = by.counts[i] < most[0] ? by.counts[i] : most[0];
    most[0] = by.counts[i] > most[0] ? by.counts[i] : most[0];
    most[1] = lesser > most[1] ? lesser : most[1];
  }
  return most[0] + most[1];
}

/* One transfer after the other takes two threads or three. The sleeper that had slept longest was woken, so all took turns: two
 * of six had a third. On a machine that does much else the others find more to do: so it is tried again. */
LADE_TEST(Threads, AFewDoWhatAFewCanDo) {
  enum { TRIES = 20 };
  scene s;
  unsigned best = 0;
  if (!scene_open(&s, LADE_STORAGE_PREAD)) return;
  for (unsigned i = 0; i < TRIES && best <= ROUNDS / 2; i++) {
    unsigned count = two_serve(&s);
    best = count > best ? count : best;
  }
  LADE_EXPECT_GT_UINT(best, ROUNDS / 2);
  fixture_close(&s.f);
}

/* --- copies that hang in the driver ------------------------------------------------------------------------------- */

static lade_runtime_ops hang_ops;
static const lade_runtime_ops *hang_true_ops;
static pthread_mutex_t hang_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hang_go = PTHREAD_COND_INITIALIZER;
static int hang_left;
static bool hang_open;

static lade_status hang_copy(void *self, ladei_copy_direction direction, void *dst, const void *src, size_t bytes,
                             const ladei_stream *stream) {
  pthread_mutex_lock(&hang_lock);
  bool hangs = hang_left > 0 && direction == LADEI_COPY_H2D;
  if (hangs) hang_left--;
  while (hangs && !hang_open) pthread_cond_wait(&hang_go, &hang_lock);
  pthread_mutex_unlock(&hang_lock);
  return hang_true_ops->copy(self, direction, dst, src, bytes, stream);
}

static lade_status nothing_to_do(void *user, lade_ticket *ticket, const lade_error *outcome) {
  (void)user;
  (void)ticket;
  (void)outcome;
  return LADE_OK;
}

/* One that threads copy: its completion may not run in calls. */
static lade_transfer threads_transfer(scene *s) {
  lade_transfer transfer = fixture_transfer(&s->f, LADE_TO_DEVICE, lade_endpoint_memory(s->host), CHUNK);
  transfer.on_complete = nothing_to_do;
  return transfer;
}

/* The bug: readers whose copies hung, as where a stream's queue is full, kept their places, and nothing was read any more. Of six
 * threads two may read, and as to a GPU they stay. */
LADE_TEST(Threads, CopiesThatHangKeepNoReaderBack) {
  scene s;
  lade_ticket *stuck[2], *other;
  if (!scene_open(&s, LADE_STORAGE_PREAD)) return;
  hang_true_ops = s.f.runtime->ops;
  hang_ops = *hang_true_ops;
  hang_ops.copy = hang_copy;
  hang_left = 2;
  hang_open = false;
  ladei_lock_acquire(&s.f.pipeline->lock);
  s.f.pipeline->core.rings[0].blocks.last_first = true;
  ladei_pipe_core_set_window(&s.f.pipeline->core.rings[0], 2);
  s.f.runtime->ops = &hang_ops; /* to its end: threads of the pipeline read it */
  ladei_lock_release(&s.f.pipeline->lock);
  for (unsigned i = 0; i < 2; i++) {
    lade_transfer transfer = threads_transfer(&s);
    LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &stuck[i]));
  }
  while (true) {
    pthread_mutex_lock(&hang_lock);
    bool both = hang_left == 0;
    pthread_mutex_unlock(&hang_lock);
    if (both) break;
    usleep(1000);
  }
  lade_transfer transfer = threads_transfer(&s);
  LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &other));
  LADE_EXPECT_OK(lade_ticket_wait(other, UINT64_C(60000000000)));
  pthread_mutex_lock(&hang_lock);
  hang_open = true;
  pthread_cond_broadcast(&hang_go);
  pthread_mutex_unlock(&hang_lock);
  for (unsigned i = 0; i < 2; i++) {
    LADE_EXPECT_OK(lade_ticket_wait(stuck[i], LADE_WAIT_FOREVER));
    lade_ticket_release(stuck[i]);
  }
  LADE_EXPECT_OK(lade_ticket_wait(other, LADE_WAIT_FOREVER));
  lade_ticket_release(other);
  fixture_close(&s.f);
}
