/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Scheduling: urgent transfers overtake bulk ones, submitters share by bytes; on_complete; and the
 * first bytes of a transfer, which are ready before the rest.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

enum { CHUNK = 4096, BULK = 100 * CHUNK, DEVICE_BYTES = 4 * BULK };

/* Where the order of ends is written down. */
typedef struct ends {
  int order[64];
  int count;
} ends;

typedef struct ending {
  ends *all;
  int name;
  lade_status answer;
  lade_status seen;
} ending;

static lade_status note_end(void *user, lade_ticket *ticket, const lade_error *outcome) {
  ending *e = user;
  /* Not over yet for those who wait. */
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_ticket_query(ticket, NULL));
  e->seen = outcome->status;
  e->all->order[e->all->count++] = e->name;
  return e->answer;
}

static lade_status nothing(void *user, uint64_t offset, void *buffer, size_t bytes) {
  (void)user;
  (void)offset;
  (void)buffer;
  (void)bytes;
  return LADE_OK;
}

static lade_transfer bulk(const fixture *f, lade_direction direction, size_t bytes, ending *e) {
  lade_endpoint host = lade_endpoint_callback(nothing, NULL);
  host.concurrent = 1;
  lade_transfer transfer = fixture_transfer(f, direction, host, bytes);
  transfer.on_complete = note_end;
  transfer.on_complete_user = e;
  return transfer;
}

/* Submitted last, over first: the most it waits for is what the ring has begun. */
LADE_TEST(Priority, UrgentOvertakesBulkBothWays) {
  for (int down = 0; down < 2; down++) {
    fixture f;
    ends all = {.count = 0};
    ending e[3];
    lade_ticket *tickets[3];
    static const int32_t priorities[] = {LADE_PRIORITY_BACKGROUND, LADE_PRIORITY_NORMAL, LADE_PRIORITY_URGENT};
    if (!fixture_open(&f, "sim", DEVICE_BYTES, NULL)) return;
    for (int i = 0; i < 3; i++) {
      e[i] = (ending){.all = &all, .name = i};
      lade_transfer transfer = bulk(&f, down ? LADE_TO_DEVICE : LADE_TO_HOST, i == 2 ? 2 * CHUNK : BULK, &e[i]);
      transfer.device_memory = f.device + i * BULK;
      transfer.priority = priorities[i];
      LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[i]));
    }
    LADE_EXPECT_OK(lade_ticket_wait(tickets[2], LADE_WAIT_FOREVER));
    lade_ticket_info info;
    lade_ticket_info_init(&info);
    LADE_EXPECT_STATUS(LADE_NOT_READY, lade_ticket_query(tickets[0], &info));
    LADE_EXPECT_LE_UINT(info.bytes_done, 3 * CHUNK); /* the ring's depth: what was begun before */
    for (int i = 0; i < 3; i++) {
      LADE_EXPECT_OK(lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER));
      lade_ticket_release(tickets[i]);
      LADE_EXPECT_EQ_INT(all.order[i], 2 - i);
    }
    fixture_close(&f);
  }
}

/* One submitter has nine transfers queued, the other comes later with one of the same size: it gets half of the turns. */
LADE_TEST(Fairness, SubmittersShareByBytes) {
  fixture f;
  ends all = {.count = 0};
  ending e[10];
  lade_ticket *tickets[10];
  if (!fixture_open(&f, "sim", DEVICE_BYTES, NULL)) return;
  for (int i = 0; i < 10; i++) {
    e[i] = (ending){.all = &all, .name = i};
    lade_transfer transfer = bulk(&f, LADE_TO_DEVICE, 20 * CHUNK, &e[i]);
    transfer.device_memory = f.device + i * 20 * CHUNK;
    transfer.submitter = i == 9 ? 2 : 1;
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[i]));
  }
  LADE_EXPECT_OK(lade_ticket_wait(tickets[9], LADE_WAIT_FOREVER));
  /* Beside its 20 chunks as many of the other's, but for what the ring holds: its first transfer is over or nearly so, and
   * its second is not. */
  lade_ticket_info info;
  lade_ticket_info_init(&info);
  (void)lade_ticket_query(tickets[0], &info);
  LADE_EXPECT_GE_UINT(info.bytes_done, 18 * CHUNK);
  LADE_EXPECT_LE_INT(all.count, 3);
  for (int i = 0; i < 10; i++) {
    LADE_EXPECT_OK(lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER));
    lade_ticket_release(tickets[i]);
  }
  fixture_close(&f);
}

/* What a thread of its own submits, as itself. */
typedef struct by_thread {
  fixture *f;
  ending *endings;
  lade_ticket **tickets;
  int first, end;
} by_thread;

static void *submit_by_thread(void *user) {
  const by_thread *own = user;
  for (int i = own->first; i < own->end; i++) {
    lade_transfer transfer = bulk(own->f, LADE_TO_DEVICE, 20 * CHUNK, &own->endings[i]);
    transfer.device_memory = own->f->device + i * 20 * CHUNK;
    LADE_EXPECT_OK(lade_pipeline_submit(own->f->pipeline, &transfer, &own->tickets[i]));
    if (i == 4) LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_submit(own->f->pipeline, NULL, NULL));
  }
  return NULL;
}

/* Without a number each thread is a submitter, and stays the same one. They were told apart by their error records: threads in
 * which nothing had failed were one submitter, and its first failure made another one of a thread. */
LADE_TEST(Fairness, ThreadsAreSubmitters) {
  fixture f;
  ends all = {.count = 0};
  ending e[10];
  lade_ticket *tickets[10];
  by_thread halves[] = {{&f, e, tickets, 0, 9}, {&f, e, tickets, 9, 10}};
  if (!fixture_open(&f, "sim", DEVICE_BYTES, NULL)) return;
  for (int i = 0; i < 10; i++) e[i] = (ending){.all = &all, .name = i};
  for (int i = 0; i < 2; i++) {
    pthread_t thread;
    LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, submit_by_thread, &halves[i]), 0);
    pthread_join(thread, NULL);
  }
  LADE_EXPECT_OK(lade_ticket_wait(tickets[9], LADE_WAIT_FOREVER));
  lade_ticket_info info;
  lade_ticket_info_init(&info);
  (void)lade_ticket_query(tickets[0], &info); /* as in SubmittersShareByBytes */
  LADE_EXPECT_GE_UINT(info.bytes_done, 18 * CHUNK);
  LADE_EXPECT_LE_INT(all.count, 3);
  (void)lade_ticket_query(tickets[5], &info); /* behind 1 to 4, which have hardly begun */
  LADE_EXPECT_EQ_UINT(info.bytes_done, 0);
  for (int i = 0; i < 10; i++) {
    LADE_EXPECT_OK(lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER));
    lade_ticket_release(tickets[i]);
  }
  fixture_close(&f);
}

/* A fair queue that was idle for long has saved up nothing: it does not delay the others when it comes back. */
LADE_TEST(Fairness, IdleTimeIsNotSavedUp) {
  fixture f;
  ends all = {.count = 0};
  ending e[3];
  lade_ticket *tickets[3];
  static const uint64_t submitters[] = {1, 1, 2};
  if (!fixture_open(&f, "sim", DEVICE_BYTES, NULL)) return;
  for (int i = 0; i < 3; i++) {
    e[i] = (ending){.all = &all, .name = i};
    lade_transfer transfer = bulk(&f, LADE_TO_DEVICE, BULK, &e[i]);
    transfer.device_memory = f.device + i * BULK;
    transfer.submitter = submitters[i];
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[i]));
    if (i == 0) LADE_EXPECT_OK(lade_ticket_wait(tickets[0], LADE_WAIT_FOREVER));
  }
  lade_ticket_info info;
  lade_ticket_info_init(&info);
  LADE_EXPECT_OK(lade_ticket_wait(tickets[1], LADE_WAIT_FOREVER));
  (void)lade_ticket_query(tickets[2], &info);
  LADE_EXPECT_GE_UINT(info.bytes_done, BULK - 8 * CHUNK); /* in step with the other, but for what the ring holds */
  for (int i = 0; i < 3; i++) {
    LADE_EXPECT_OK(lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER));
    lade_ticket_release(tickets[i]);
  }
  fixture_close(&f);
}

/* Called once, before waits return, with the outcome; a refusal becomes the error of a transfer that had none. */
LADE_TEST_P(Completion, IsToldOnceWithTheOutcome, support_soft_runtimes, name) {
  fixture f;
  lade_ticket *ticket;
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  for (int fails = 0; fails < 2; fails++) {
    ends all = {.count = 0};
    ending e = {.all = &all, .answer = fails ? LADE_ERR_LIMIT : LADE_OK};
    lade_transfer transfer = bulk(&f, LADE_TO_DEVICE, 5 * CHUNK, &e);
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
    LADE_EXPECT_STATUS(fails ? LADE_ERR_CALLBACK : LADE_OK, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
    LADE_EXPECT_EQ_INT(all.count, 1);
    LADE_EXPECT_OK(e.seen);
    if (fails) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "LADE_ERR_LIMIT");
    lade_ticket_release(ticket);
  }
  /* A transfer of nothing is over at once, and calls it. One that is cancelled stays so, whatever it returns. */
  ends all = {.count = 0};
  ending e = {.all = &all, .answer = LADE_ERR_LIMIT};
  lade_transfer transfer = bulk(&f, LADE_TO_HOST, 0, &e);
  e.answer = LADE_OK;
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  LADE_EXPECT_EQ_INT(all.count, 1);
  transfer = bulk(&f, LADE_TO_HOST, BULK, &e);
  e.answer = LADE_ERR_LIMIT;
  lade_stream stream;
  support_stream_hold hold;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  LADE_ASSERT(support_stream_hold_begin(&hold, f.runtime, stream));
  transfer.after_stream = 1;
  transfer.stream = stream;
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  LADE_EXPECT_OK(lade_ticket_cancel(ticket));
  support_stream_hold_end(&hold);
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, e.seen);
  LADE_EXPECT_EQ_INT(all.count, 2);
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  fixture_close(&f);
}

/* A chain: each end submits the next transfer and gives its own ticket back. */
typedef struct chain {
  fixture *f;
  lade_transfer transfer;
  int left;
  sem_t done;
} chain;

static lade_status chain_next(void *user, lade_ticket *ticket, const lade_error *outcome) {
  chain *c = user;
  lade_ticket *next;
  LADE_EXPECT_OK(outcome->status);
  lade_ticket_release(ticket);
  if (--c->left == 0) {
    sem_post(&c->done);
    return LADE_OK;
  }
  return lade_pipeline_submit(c->f->pipeline, &c->transfer, &next);
}

/* A transfer of nothing lets "sim" go on too. */
static bool chain_is_done(void *user) {
  chain *c = user;
  int posted;
  lade_transfer empty = fixture_transfer(c->f, LADE_TO_DEVICE, lade_endpoint_memory(NULL), 0);
  LADE_EXPECT_OK(fixture_run(c->f, &empty));
  return sem_getvalue(&c->done, &posted) == 0 && posted == 1;
}

LADE_TEST_P(Completion, MaySubmitAndRelease, support_soft_runtimes, name) {
  fixture f;
  chain c = {.f = &f, .left = 50};
  lade_ticket *ticket;
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  sem_init(&c.done, 0, 0);
  ending unused = {.answer = LADE_OK};
  c.transfer = bulk(&f, LADE_TO_DEVICE, CHUNK, &unused);
  c.transfer.on_complete = chain_next;
  c.transfer.on_complete_user = &c;
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &c.transfer, &ticket));
  LADE_EXPECT(support_wait(f.runtime, chain_is_done, &c));
  fixture_close(&f);
  sem_destroy(&c.done);
}

/* The first part of a transfer is there long before the rest: a stream can go on with it. */
LADE_TEST_P(Prefix, IsReadyBeforeTheRest, support_soft_runtimes, name) {
  fixture f;
  lade_stream stream;
  lade_ticket *ticket;
  char *host = malloc(BULK);
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  support_pattern_fill(host, BULK, 3, 0);
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), BULK);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_stream_wait_ticket_prefix(stream, ticket, BULK + 1));
  LADE_EXPECT_OK(lade_stream_wait_ticket_prefix(stream, ticket, 2 * CHUNK));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, f.device + BULK, f.device, 2 * CHUNK, stream));
  if (support_is_virtual(f.runtime)) {
    /* Exactly known there: most of the transfer is not even read. */
    lade_ticket_info info;
    lade_ticket_info_init(&info);
    LADE_EXPECT_STATUS(LADE_NOT_READY, lade_ticket_query(ticket, &info));
    LADE_EXPECT_LE_UINT(info.bytes_done, 10 * CHUNK);
    LADE_EXPECT_LE_UINT(info.bytes_ready, info.bytes_done);
  }
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, stream));
  fixture_expect_device_pattern(&f, BULK, 2 * CHUNK, 3, 0);
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_info info;
  lade_ticket_info_init(&info);
  LADE_EXPECT_OK(lade_ticket_query(ticket, &info));
  LADE_EXPECT_EQ_UINT(info.bytes_ready, BULK);
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  fixture_close(&f);
  free(host);
}
