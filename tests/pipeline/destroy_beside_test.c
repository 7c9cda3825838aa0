/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Destroying a pipeline beside calls on its tickets: a call is stopped after each of its unlocks in
 * turn, the pipeline is destroyed there by another thread, as far as that gets, and the call goes on.
 *
 * The unlocks of the library are the linker's (--wrap=ladei_lock_release); builds with NDEBUG have them inline, and make the
 * same calls without stops.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/state/state.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"
#include "tests/support/soak.h"

enum { CHUNK = 4096 };

/* --- stops -------------------------------------------------------------------------------------------------------- */

typedef struct scene scene;
static void scene_unlocked(scene *s) __attribute__((unused)); /* with NDEBUG */

static _Thread_local scene *watched;          /* whose call this thread makes */
static _Thread_local support_random *yielder; /* this thread yields at random */

#ifndef NDEBUG
void __real_ladei_lock_release(ladei_lock *lock);
void __wrap_ladei_lock_release(ladei_lock *lock);
void __wrap_ladei_lock_release(ladei_lock *lock) {
  __real_ladei_lock_release(lock);
  if (watched != NULL && lock->rank == LADEI_RANK_PIPELINE) scene_unlocked(watched);
  if (yielder != NULL && support_random_between(yielder, 0, 1) == 0) sched_yield();
}
#endif

/* --- one call beside one destroy ---------------------------------------------------------------------------------- */

typedef enum call_kind {
  CALL_WAIT,
  CALL_WAIT_NONE,
  CALL_QUERY,
  CALL_CANCEL,
  CALL_STREAM_WAIT,
  CALL_STREAM_WAIT_PREFIX,
  CALL_RELEASE,
  CALL_KINDS
} call_kind;

struct scene {
  fixture f;
  call_kind kind;
  bool cancel;
  lade_stream stream; /* held until the first unlock: the transfer is queued after it */
  bool held;
  lade_stream waiter; /* that stream waits are for */
  lade_ticket *ticket;
  unsigned stop;       /* after so many unlocks more */
  bool stopped;        /* there were so many */
  bool under_way;      /* the destroyer was started */
  lade_status outcome; /* of the destroy */
  atomic_bool destroyed;
  pthread_t destroyer;
  char host[CHUNK];
};

static void *destroy_main(void *user) {
  scene *s = user;
  s->outcome = lade_pipeline_destroy(s->f.pipeline, s->cancel);
  atomic_store(&s->destroyed, true);
  return NULL;
}

/* Nothing is left that destroy could wait for but this thread's call. */
static bool waits_for_call(lade_pipeline *pipeline) {
  ladei_lock_acquire(&pipeline->lock);
  const ladei_pipe_core *core = &pipeline->core;
  bool waits = pipeline->stopping && pipeline->calls > 0 && core->unfinished == 0 && core->orders_out == 0 &&
               core->counters.blocks == 0;
  ladei_lock_release(&pipeline->lock);
  return waits;
}

static void scene_let_go(scene *s) {
  if (s->held) {
    s->held = false;
    LADE_EXPECT_OK(lade_soft_stream_hold(s->f.runtime, s->stream, false));
  }
}

static void scene_unlocked(scene *s) {
  watched = NULL;
  scene_let_go(s);
  if (s->stop-- > 0) {
    watched = s;
    return;
  }
  s->stopped = true;
  s->under_way = pthread_create(&s->destroyer, NULL, destroy_main, s) == 0;
  /* Of a ticket that is being released nothing may be looked at: nor does destroy wait for that. */
  while (!atomic_load(&s->destroyed) && (s->kind == CALL_RELEASE || !waits_for_call(s->f.pipeline))) sched_yield();
}

static lade_status call_make(scene *s) {
  switch (s->kind) {
  case CALL_WAIT: return lade_ticket_wait(s->ticket, LADE_WAIT_FOREVER);
  case CALL_WAIT_NONE: return lade_ticket_wait(s->ticket, 0);
  case CALL_QUERY: return lade_ticket_query(s->ticket, NULL);
  case CALL_CANCEL: return lade_ticket_cancel(s->ticket);
  case CALL_STREAM_WAIT: return lade_stream_wait_ticket(s->waiter, s->ticket);
  case CALL_STREAM_WAIT_PREFIX: return lade_stream_wait_ticket_prefix(s->waiter, s->ticket, CHUNK / 2);
  case CALL_RELEASE:
  case CALL_KINDS: lade_ticket_release(s->ticket); return LADE_OK;
  }
  return LADE_ERR_INTERNAL;
}

static void answer_check(const scene *s, lade_status status) {
  bool may = status == LADE_OK || status == LADE_ERR_CANCELLED;
  may = may || (s->kind == CALL_WAIT_NONE && status == LADE_ERR_TIMEOUT);
  may = may || (s->kind == CALL_QUERY && status == LADE_NOT_READY);
  LADE_EXPECT(may);
  LADE_EXPECT(s->kind != CALL_CANCEL || status == LADE_OK);
}

/* A transfer behind a stream that is stopped, its copy queued: unfinished until scene_let_go. */
static bool scene_begin(scene *s) {
  if (!fixture_open(&s->f, "cpu", 2 * (size_t)CHUNK, NULL)) return false;
  LADE_EXPECT_OK(lade_stream_create(s->f.runtime, 0, &s->stream));
  LADE_EXPECT_OK(lade_stream_create(s->f.runtime, 0, &s->waiter));
  LADE_EXPECT_OK(lade_soft_stream_hold(s->f.runtime, s->stream, true));
  s->held = true;
  LADE_EXPECT_OK(lade_copy_async(s->f.runtime, s->f.device, s->f.device + CHUNK, CHUNK, s->stream));
  lade_transfer transfer = fixture_transfer(&s->f, LADE_TO_DEVICE, lade_endpoint_memory(s->host), CHUNK);
  transfer.after_stream = 1;
  transfer.stream = s->stream;
  LADE_EXPECT_OK(lade_pipeline_submit(s->f.pipeline, &transfer, &s->ticket));
  return !lade_test_has_failed();
}

/* The ticket answers when the pipeline is gone, without a runtime. */
static void orphan_check(lade_ticket *ticket) {
  lade_status status = lade_ticket_query(ticket, NULL);
  LADE_EXPECT(status == LADE_OK || status == LADE_ERR_CANCELLED);
  LADE_EXPECT_EQ_INT(lade_ticket_wait(ticket, LADE_WAIT_FOREVER), status);
  LADE_EXPECT_EQ_INT(lade_stream_wait_ticket(NULL, ticket), status);
  LADE_EXPECT_OK(lade_ticket_cancel(ticket));
  lade_ticket_release(ticket);
}

/* Whether the call had so many unlocks. */
static bool scene_run(call_kind kind, bool cancel, unsigned stop) {
  scene s;
  memset(&s, 0, sizeof s);
  s.kind = kind;
  s.cancel = cancel;
  s.stop = stop;
  lade_test_context("call %d, destroy(%d), stopped after unlock %u", (int)kind, (int)cancel, stop + 1);
  if (!scene_begin(&s)) return false;
  if (kind == CALL_STREAM_WAIT)
    LADE_EXPECT_OK(lade_stream_wait_ticket(s.waiter, s.ticket)); /* so that the next one finds all queued */
  watched = &s;
#ifdef NDEBUG
  scene_let_go(&s); /* no unlock will */
#endif
  answer_check(&s, call_make(&s));
  watched = NULL;
  scene_let_go(&s);
  if (s.under_way)
    pthread_join(s.destroyer, NULL);
  else
    destroy_main(&s);
  LADE_EXPECT_OK(s.outcome);
  LADE_EXPECT_OK(lade_stream_destroy(s.f.runtime, s.stream));
  LADE_EXPECT_OK(lade_stream_destroy(s.f.runtime, s.waiter));
  s.f.pipeline = NULL;
  fixture_close(&s.f);
  if (kind != CALL_RELEASE) orphan_check(s.ticket);
  return s.stopped;
}

/* Bug: cancel went on to wake the threads of a pipeline that was gone (NULL dereference), lade_stream_wait_ticket to record
 * an event on its destroyed stream (use after free), lade_ticket_wait to ask a closed runtime for the time. */
LADE_TEST(Destroy, IsSafeAtEachUnlockOfACallOnATicket) {
  unsigned stops = 0;
  for (int kind = 0; kind < CALL_KINDS; kind++) {
    for (unsigned stop = 0; stop < 16 && !lade_test_has_failed(); stop++) {
      bool stopped = scene_run((call_kind)kind, false, stop);
      stopped = scene_run((call_kind)kind, true, stop) || stopped;
      stops += stopped ? 2 : 0;
      if (!stopped) break;
    }
  }
  lade_test_context("%u stops", stops);
#ifndef NDEBUG
  LADE_EXPECT_GE_UINT(stops, 2 * CALL_KINDS);
#endif
}

/* --- many calls beside one destroy -------------------------------------------------------------------------------- */

enum { TICKETS = 4 };

typedef struct caller {
  lade_ticket *ticket;
  lade_stream stream;
  uint64_t seed;
} caller;

static void *caller_main(void *user) {
  const caller *c = user;
  support_random random;
  support_random_start_quietly(&random, c->seed);
  yielder = &random;
  for (int i = 0; i < 3; i++) {
    switch (support_random_between(&random, 0, 4)) {
    case 0: (void)lade_ticket_wait(c->ticket, 1000); break;
    case 1: (void)lade_ticket_query(c->ticket, NULL); break;
    case 2: LADE_EXPECT_OK(lade_ticket_cancel(c->ticket)); break;
    case 3: (void)lade_stream_wait_ticket(c->stream, c->ticket); break;
    default: (void)lade_ticket_wait(c->ticket, LADE_WAIT_FOREVER); break;
    }
  }
  yielder = NULL;
  lade_ticket_release(c->ticket);
  return NULL;
}

static void crowd_run(uint64_t seed) {
  fixture f;
  char host[8 * CHUNK];
  pthread_t threads[TICKETS];
  caller callers[TICKETS];
  support_random random;
  support_random_start(&random, seed);
  lade_test_context("LADE_TEST_SEED=%llu", (unsigned long long)seed);
  if (!fixture_open(&f, "cpu", sizeof host, NULL)) return;
  lade_stream stream;
  memset(host, 1, sizeof host);
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  for (unsigned i = 0; i < TICKETS; i++) {
    callers[i].stream = stream;
    size_t bytes = support_random_between(&random, 1, sizeof host);
    lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), bytes);
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &callers[i].ticket));
    callers[i].seed = seed * 16 + i;
    LADE_ASSERT(pthread_create(&threads[i], NULL, caller_main, &callers[i]) == 0);
  }
  yielder = &random;
  LADE_EXPECT_OK(lade_pipeline_destroy(f.pipeline, support_random_between(&random, 0, 1) == 1));
  yielder = NULL;
  f.pipeline = NULL;
  for (unsigned i = 0; i < TICKETS; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  fixture_close(&f);
}

LADE_TEST(Destroy, IsSafeBesideACrowdOfCallsOnTickets) {
  support_soak soak = support_soak_begin(0.3);
  for (uint64_t seed = 1; support_soak_goes_on(&soak) && !lade_test_has_failed(); seed++) crowd_run(seed);
}

/* --- submits of callbacks ----------------------------------------------------------------------------------------- */

typedef struct chain {
  fixture f;
  char host[CHUNK];
  unsigned links;
  lade_status refused; /* the first answer but LADE_OK */
} chain;

static lade_status chain_submit(chain *c);

static lade_status chain_next(void *user, lade_ticket *ticket, const lade_error *outcome) {
  chain *c = user;
  (void)ticket;
  (void)outcome;
  c->links++;
  c->refused = chain_submit(c);
  return LADE_OK;
}

static lade_status chain_submit(chain *c) {
  lade_ticket *ticket;
  lade_transfer transfer = fixture_transfer(&c->f, LADE_TO_DEVICE, lade_endpoint_memory(c->host), CHUNK);
  transfer.on_complete = chain_next;
  transfer.on_complete_user = c;
  lade_status status = lade_pipeline_submit(c->f.pipeline, &transfer, &ticket);
  if (status == LADE_OK) lade_ticket_release(ticket);
  return status;
}

/* Bug: each completion submits the next transfer, which nothing cancels, so destroy(cancel) never ended. */
LADE_TEST_P(Destroy, CancelsWhatCallbacksWouldSubmit, support_soft_runtimes, name) {
  static chain c;
  lade_pipeline_options options;
  memset(&c, 0, sizeof c);
  fixture_options(&options);
  options.drain_timeout_ns =
      strcmp(name, "sim") == 0 ? UINT64_C(2000000000) : UINT64_C(40000000000); /* a failed test ends */
  if (!fixture_open(&c.f, name, CHUNK, &options)) return;
  LADE_ASSERT_OK(chain_submit(&c));
  LADE_EXPECT_OK(lade_pipeline_destroy(c.f.pipeline, true));
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, c.refused);
  c.f.pipeline = NULL;
  fixture_close(&c.f);
}

/* A source that submits a transfer after a stream that stands still. */
typedef struct late_source {
  fixture f;
  char host[CHUNK];
  lade_stream stream;
  lade_ticket *ticket;
  lade_status submitted;
} late_source;

static lade_status late_range(void *user, uint64_t offset, void *buffer, size_t bytes) {
  late_source *source = user;
  (void)offset;
  memset(buffer, 0, bytes);
  lade_transfer transfer = fixture_transfer(&source->f, LADE_TO_DEVICE, lade_endpoint_memory(source->host), CHUNK);
  transfer.after_stream = 1;
  transfer.stream = source->stream;
  source->submitted = lade_pipeline_submit(source->f.pipeline, &transfer, &source->ticket);
  return LADE_OK;
}

static void *late_destroy_main(void *user) {
  late_source *source = user;
  static lade_status status;
  status = lade_pipeline_destroy(source->f.pipeline, true);
  return &status;
}

static bool is_closed(lade_pipeline *pipeline) {
  ladei_lock_acquire(&pipeline->lock);
  bool closed = pipeline->closed;
  ladei_lock_release(&pipeline->lock);
  return closed;
}

/* Bug: a callback's submit that had its place before destroy(cancel) closed the pipeline, and added its transfer after that had
 * cancelled all there were, was not cancelled: destroy waited for the stream that the transfer waited for. */
LADE_TEST(Destroy, CancelsWhatACallbackWasSubmitting) {
  static late_source source;
  lade_pipeline_options options;
  lade_ticket *ticket;
  pthread_t destroyer;
  void *outcome;
  fixture_options(&options);
  options.drain_timeout_ns = UINT64_C(20000000000); /* a failed test ends */
  lade_runtime *runtime = support_interposer_open("cpu", NULL);
  if (runtime == NULL || !fixture_open_on(&source.f, runtime, 2 * (size_t)CHUNK, &options)) return;
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &source.stream));
  LADE_ASSERT_OK(lade_soft_stream_hold(runtime, source.stream, true));
  LADE_ASSERT_OK(lade_copy_async(runtime, source.f.device, source.f.device + CHUNK, CHUNK, source.stream));
  support_hold(runtime, "event_record", 1, SUPPORT_HOLD_BEFORE); /* that of the callback's submit */
  lade_transfer transfer =
      fixture_transfer(&source.f, LADE_TO_DEVICE, lade_endpoint_callback(late_range, &source), CHUNK);
  LADE_ASSERT_OK(lade_pipeline_submit(source.f.pipeline, &transfer, &ticket));
  support_hold_await(runtime);
  LADE_ASSERT(pthread_create(&destroyer, NULL, late_destroy_main, &source) == 0);
  while (!is_closed(source.f.pipeline)) sched_yield();
  support_hold_end(runtime);
  pthread_join(destroyer, &outcome);
  LADE_EXPECT_OK(*(lade_status *)outcome);
  LADE_EXPECT_OK(lade_soft_stream_hold(runtime, source.stream, false));
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(source.submitted);
  if (source.submitted == LADE_OK && *(lade_status *)outcome == LADE_OK)
    LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(source.ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(source.ticket);
  if (*(lade_status *)outcome == LADE_OK) source.f.pipeline = NULL;
  LADE_EXPECT_OK(lade_stream_destroy(runtime, source.stream));
  fixture_close(&source.f);
}

/* Bug: a destroy that the driver let fail had ended the threads; the next submit met their absence (NULL dereference). */
LADE_TEST(Destroy, ThatFailedHalfWayRefusesSubmitsAndIsCalledAgain) {
  fixture f;
  lade_ticket *ticket;
  char host[CHUNK] = {0};
  if (!fixture_open(&f, "cpu", CHUNK, NULL)) return;
  LADE_ASSERT_OK(lade_soft_fault_add(f.runtime, "stream_destroy", 1, LADE_ERR_DRIVER));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_pipeline_destroy(f.pipeline, false));
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), CHUNK);
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "being destroyed");
  LADE_EXPECT_OK(lade_pipeline_destroy(f.pipeline, false));
  f.pipeline = NULL;
  fixture_close(&f);
}
