/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, waiting, holds.
 *
 * I1  Every wait ends: virtual time when nothing can happen any more, real time after WAIT_LIMIT_S.
 * I2  A latch is freed by whoever comes last of the hold and the host function that waits on it.
 * Locks: a latch's mutex guards its fields; nothing is called under it.
 */
#include "tests/support/runtimes.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"

enum { WAIT_LIMIT_S = 50 };

const char *const support_sim_only[] = {"sim", NULL};
const char *const support_soft_runtimes[] = {"sim", "cpu", NULL};
const char *const support_cpu_only[] = {"cpu", NULL};
const char *const support_cuda_only[] = {"cuda", NULL};

/* --- Opening ------------------------------------------------------------------------------------------------------ */

void support_description_init(support_description *description) {
  memset(description, 0, sizeof *description);
  for (int i = 0; i < SUPPORT_DEVICE_COUNT; i++) {
    description->devices[i].memory_bytes = SUPPORT_DEVICE_BYTES;
    description->devices[i].numa_node = i + 1; /* the field holds the node plus 1 */
  }
  lade_soft_options_init(&description->soft);
  description->soft.devices = description->devices;
  description->soft.device_count = SUPPORT_DEVICE_COUNT;
  lade_runtime_options_init(&description->options);
  description->options.soft = &description->soft;
}

lade_runtime *support_runtime_open(const char *name) { return support_runtime_open_with(name, NULL); }

lade_runtime *support_runtime_open_with(const char *name, const lade_runtime_options *options) {
  support_description standard;
  support_description_init(&standard);
  lade_runtime *runtime;
  lade_status status = lade_runtime_open(name, options != NULL ? options : &standard.options, &runtime);
  if (status == LADE_OK) return runtime;
  if (status == LADE_ERR_NO_DEVICE && strcmp(name, "cuda") == 0)
    ladet_skip(__FILE__, __LINE__, lade_last_error()->text);
  else
    LADE_FAIL("cannot open the runtime %s: %s", name, lade_last_error()->text);
  return NULL;
}

void support_runtime_close(lade_runtime *runtime) { LADE_EXPECT_OK(lade_runtime_close(runtime)); }

/* --- Waiting ------------------------------------------------------------------------------------------------------ */

bool support_is_virtual(const lade_runtime *runtime) { return runtime->ops->step != NULL; }

static bool wait_virtual(lade_runtime *runtime, bool (*done)(void *user), void *user) {
  while (!done(user))
    if (runtime->ops->step(runtime->self) != LADE_OK) return done(user);
  return true;
}

static bool wait_real(bool (*done)(void *user), void *user) {
  struct timespec start, now;
  clock_gettime(CLOCK_MONOTONIC, &start);
  while (!done(user)) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec - start.tv_sec > WAIT_LIMIT_S) return false;
    nanosleep(&(struct timespec){0, 50 * 1000}, NULL);
  }
  return true;
}

bool support_wait(lade_runtime *runtime, bool (*done)(void *user), void *user) {
  return support_is_virtual(runtime) ? wait_virtual(runtime, done, user) : wait_real(done, user);
}

void support_let_run(lade_runtime *runtime) {
  if (support_is_virtual(runtime))
    while (runtime->ops->step(runtime->self) == LADE_OK) continue;
  else
    nanosleep(&(struct timespec){0, 3 * 1000 * 1000}, NULL);
}

typedef struct query {
  lade_runtime *runtime;
  lade_event event;
  const ladei_stream *stream;
  lade_status status;
} query;

/* An error ends the wait too: the caller reports it. */
static bool event_is_done(void *user) {
  query *q = user;
  q->status = q->runtime->ops->event_query(q->runtime->self, q->event);
  return q->status != LADE_NOT_READY;
}

static bool stream_is_done(void *user) {
  query *q = user;
  q->status = q->runtime->ops->stream_query(q->runtime->self, q->stream);
  return q->status != LADE_NOT_READY;
}

bool support_wait_event(lade_runtime *runtime, lade_event event) {
  query q = {.runtime = runtime, .event = event};
  support_wait(runtime, event_is_done, &q);
  return ladet_equal_status(__FILE__, __LINE__, "support_wait_event", LADE_OK, q.status);
}

bool support_wait_stream(lade_runtime *runtime, lade_stream stream) {
  ladei_stream resolved;
  lade_status status = runtime->ops->stream_resolve(runtime->self, stream, &resolved);
  if (status == LADE_OK) {
    query q = {.runtime = runtime, .stream = &resolved};
    support_wait(runtime, stream_is_done, &q);
    status = q.status;
  }
  return ladet_equal_status(__FILE__, __LINE__, "support_wait_stream", LADE_OK, status);
}

/* --- Gates -------------------------------------------------------------------------------------------------------- */

struct support_stream_hold_latch {
  pthread_mutex_t lock;
  pthread_cond_t opened;
  bool open;
  int users; /* the hold and the host function */
};

static void latch_leave(struct support_stream_hold_latch *latch) {
  /* Called with the lock held; gives it up. */
  bool last = --latch->users == 0;
  pthread_mutex_unlock(&latch->lock);
  if (!last) return;
  pthread_cond_destroy(&latch->opened);
  pthread_mutex_destroy(&latch->lock);
  free(latch);
}

static void latch_wait(void *user) {
  struct support_stream_hold_latch *latch = user;
  pthread_mutex_lock(&latch->lock);
  while (!latch->open) pthread_cond_wait(&latch->opened, &latch->lock);
  latch_leave(latch);
}

static struct support_stream_hold_latch *latch_create(void) {
  struct support_stream_hold_latch *latch = malloc(sizeof *latch);
  if (latch == NULL) abort();
  pthread_mutex_init(&latch->lock, NULL);
  pthread_cond_init(&latch->opened, NULL);
  latch->open = false;
  latch->users = 2;
  return latch;
}

static lade_status hold_queue(support_stream_hold *hold) {
  ladei_stream stream;
  lade_status status = hold->runtime->ops->stream_resolve(hold->runtime->self, hold->stream, &stream);
  if (status != LADE_OK) return status;
  hold->latch = latch_create();
  status = hold->runtime->ops->host_function(hold->runtime->self, &stream, latch_wait, hold->latch);
  if (status != LADE_OK) {
    free(hold->latch);
    hold->latch = NULL;
  }
  return status;
}

bool support_stream_hold_begin(support_stream_hold *hold, lade_runtime *runtime, lade_stream stream) {
  /* Not through an interposer: the hold is no call of the code under test. */
  *hold = (support_stream_hold){support_inner(runtime), stream, NULL};
  lade_status status = lade_soft_stream_hold(hold->runtime, stream, true);
  if (status == LADE_ERR_UNSUPPORTED) status = hold_queue(hold);
  return ladet_equal_status(__FILE__, __LINE__, "support_stream_hold_begin", LADE_OK, status);
}

void support_stream_hold_end(support_stream_hold *hold) {
  struct support_stream_hold_latch *latch = hold->latch;
  if (latch == NULL) {
    LADE_EXPECT_OK(lade_soft_stream_hold(hold->runtime, hold->stream, false));
    return;
  }
  pthread_mutex_lock(&latch->lock);
  latch->open = true;
  pthread_cond_signal(&latch->opened);
  latch_leave(latch);
}
