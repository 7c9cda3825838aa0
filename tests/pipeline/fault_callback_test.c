/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Callbacks that never return, producers and consumers that are slow: others go on, waits with a limit
 * end, and shutting down says what it could not end. Ten thousand tickets at once.
 */
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

enum { CHUNK = 4096, DEVICE_BYTES = 64 * CHUNK };

static const uint64_t short_ns = 10000000;

static lade_status stuck_range(void *user, uint64_t offset, void *buffer, size_t bytes) {
  (void)offset;
  (void)buffer;
  (void)bytes;
  while (sem_wait(user) != 0) {
  }
  return sem_post(user) == 0 ? LADE_OK : LADE_ERR_INTERNAL; /* once open, open for all */
}

static lade_status stuck_end(void *user, lade_ticket *ticket, const lade_error *outcome) {
  (void)ticket;
  (void)outcome;
  return stuck_range(user, 0, NULL, 0);
}

/* Lets all go on, and waits for their transfers. */
static void stuck_end_all(sem_t *gate, lade_ticket **stuck, int count) {
  sem_post(gate);
  for (int i = 0; i < count; i++) {
    LADE_EXPECT_OK(lade_ticket_wait(stuck[i], LADE_WAIT_FOREVER));
    lade_ticket_release(stuck[i]);
  }
}

static void others_go_on(fixture *f, lade_ticket *stuck) {
  char host[3 * CHUNK];
  char back[3 * CHUNK];
  support_pattern_fill(host, sizeof host, 8, 0);
  lade_transfer transfer = fixture_transfer(f, LADE_TO_DEVICE, lade_endpoint_memory(host), sizeof host);
  transfer.device_memory = f->device + 32 * CHUNK;
  LADE_EXPECT_OK(fixture_run(f, &transfer));
  transfer.direction = LADE_TO_HOST;
  transfer.host = lade_endpoint_memory(back);
  LADE_EXPECT_OK(fixture_run(f, &transfer));
  LADE_EXPECT_PATTERN(back, sizeof back, 8, 0);
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_ticket_wait(stuck, short_ns));
}

/* Its drain is short: the thread that has completed the last order may still be on its way out. */
static void pipeline_destroy(fixture *f) {
  lade_status status = LADE_ERR_TIMEOUT;
  while (status == LADE_ERR_TIMEOUT) status = lade_pipeline_destroy(f->pipeline, true);
  LADE_EXPECT_OK(status);
  f->pipeline = NULL;
}

/* With a single reader thread, which is stuck: as source, as sink, and at the end of a transfer. */
LADE_TEST(Callback, ThatNeverReturnsHoldsUpNobodyElse) {
  lade_pipeline_options options;
  fixture_options(&options);
  options.readers = 1;
  options.drain_timeout_ns = short_ns;
  for (int kind = 0; kind < 3; kind++) {
    fixture f;
    sem_t gate;
    lade_ticket *stuck;
    sem_init(&gate, 0, 0);
    if (!fixture_open(&f, "cpu", DEVICE_BYTES, &options)) return;
    lade_endpoint host = kind < 2 ? lade_endpoint_callback(stuck_range, &gate) : lade_endpoint_memory(NULL);
    lade_transfer transfer =
        fixture_transfer(&f, kind == 1 ? LADE_TO_HOST : LADE_TO_DEVICE, host, kind < 2 ? 8 * CHUNK : 0);
    if (kind == 2) {
      transfer.on_complete = stuck_end;
      transfer.on_complete_user = &gate;
    }
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &stuck));
    others_go_on(&f, stuck);
    LADE_EXPECT_OK(lade_ticket_cancel(stuck));
    /* Cancelled, and not over: the callback may still use its buffer. */
    LADE_EXPECT_STATUS(LADE_NOT_READY, lade_ticket_query(stuck, NULL));
    others_go_on(&f, stuck);
    LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_pipeline_destroy(f.pipeline, true));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "1 transfers, ");
    others_go_on(&f, stuck); /* it stayed as it was */
    sem_post(&gate);
    LADE_EXPECT_STATUS(kind < 2 ? LADE_ERR_CANCELLED : LADE_OK, lade_ticket_wait(stuck, LADE_WAIT_FOREVER));
    lade_ticket_release(stuck);
    pipeline_destroy(&f);
    fixture_close(&f);
    sem_destroy(&gate);
  }
}

/* Many at once, all stuck: still others get a thread and slots, in both directions. */
LADE_TEST(Callback, ThatNeverReturnMayBeMany) {
  enum { MANY = 6 };
  fixture f;
  sem_t gate;
  lade_ticket *stuck[MANY];
  lade_pipeline_options options;
  fixture_options(&options);
  options.readers = 1;
  options.depth = MANY + 3;
  sem_init(&gate, 0, 0);
  if (!fixture_open(&f, "cpu", DEVICE_BYTES, &options)) return;
  for (int i = 0; i < MANY; i++) {
    lade_transfer transfer =
        fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_callback(stuck_range, &gate), 4 * CHUNK);
    transfer.device_memory = f.device + i * 4 * CHUNK;
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &stuck[i]));
  }
  others_go_on(&f, stuck[0]);
  stuck_end_all(&gate, stuck, MANY);
  fixture_close(&f);
  sem_destroy(&gate);
}

/* As sinks, whatever lade chooses for readers and depth. */
LADE_TEST(Callback, ThatNeverReturnsAsASinkHoldsUpNoOther) {
  enum { STUCK = 3, BULK = 24 * CHUNK };
  for (uint32_t readers = 1; readers <= 5; readers++) {
    fixture f;
    sem_t gate;
    lade_ticket *stuck[STUCK];
    lade_pipeline_options options;
    char *host = calloc(1, BULK);
    fixture_options(&options);
    options.readers = readers;
    options.depth = 0;
    if (!fixture_open(&f, "cpu", BULK, &options)) return;
    sem_init(&gate, 0, 0);
    for (int i = 0; i < STUCK; i++) {
      lade_transfer transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_callback(stuck_range, &gate), BULK);
      LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &stuck[i]));
    }
    lade_transfer plain = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_memory(host), BULK);
    LADE_EXPECT_OK(fixture_run(&f, &plain));
    stuck_end_all(&gate, stuck, STUCK);
    fixture_close(&f);
    sem_destroy(&gate);
    free(host);
  }
}

/* Answers once, then waits until it may go on. */
typedef struct late_source {
  sem_t go;
  atomic_bool answered;
} late_source;

static lade_status late_range(void *user, uint64_t offset, void *buffer, size_t bytes) {
  late_source *source = user;
  memset(buffer, 7, bytes);
  if (offset > 0) return stuck_range(&source->go, offset, buffer, bytes);
  atomic_store(&source->answered, true);
  return LADE_OK;
}

static bool has_answered(void *user) { return atomic_load(&((late_source *)user)->answered); }

static bool has_stalled(void *user) { return fixture_info(user).callbacks_stalled > 0; }

/* Longer than any of them takes, and no measure of anything: what never comes shall not keep the test. */
static const uint64_t patience_ns = UINT64_C(40000000000);

static void ends_well(lade_ticket *ticket) {
  LADE_EXPECT_OK(lade_ticket_wait(ticket, patience_ns));
  lade_ticket_release(ticket);
}

/* Bug: eight sources that hung had all blocks that a direction takes, and nothing went to the device any more: no file, no
 * memory, and no callback that answers. */
static void sources_hang(uint32_t readers, unsigned stuck_count, bool concurrent) {
  enum { BULK = 24 * CHUNK, MOST = 40 };
  fixture f;
  sem_t gate;
  late_source late = {.answered = false};
  lade_ticket *stuck[MOST], *late_ticket, *plain_ticket;
  lade_pipeline_options options;
  char *host = calloc(1, BULK);
  fixture_options(&options);
  options.readers = readers;
  options.depth = 0;
  if (!fixture_open(&f, "cpu", BULK, &options)) return;
  sem_init(&gate, 0, 0);
  sem_init(&late.go, 0, 0);
  lade_transfer source = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_callback(late_range, &late), BULK);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &source, &late_ticket));
  LADE_EXPECT(support_wait(f.runtime, has_answered, &late));
  source.host = lade_endpoint_callback(stuck_range, &gate);
  source.host.concurrent = concurrent;
  for (unsigned i = 0; i < stuck_count; i++) LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &source, &stuck[i]));
  lade_transfer plain = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), BULK);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &plain, &plain_ticket));
  ends_well(plain_ticket);
  LADE_EXPECT(support_wait(f.runtime, has_stalled, &f)); /* also where the plain one was before all of them */
  sem_post(&late.go);
  ends_well(late_ticket);
  sem_post(&gate);
  for (unsigned i = 0; i < stuck_count; i++) ends_well(stuck[i]);
  LADE_EXPECT_EQ_UINT(fixture_info(&f).callbacks_stalled, 0);
  fixture_close(&f);
  sem_destroy(&gate);
  sem_destroy(&late.go);
  free(host);
}

LADE_TEST(Callback, ThatNeverReturnsAsASourceHoldsUpNoOther) {
  for (uint32_t readers = 1; readers <= 3 && !lade_test_has_failed(); readers += 2) {
    lade_test_context("%u readers", readers);
    sources_hang(readers, 24, false);
  }
  if (!lade_test_has_failed()) sources_hang(2, 3, true);
}

/* A source that was never called before finds a place beside eight that hang. */
LADE_TEST(Callback, IsHeardBesideSourcesThatHang) {
  enum { STUCK = 8 };
  fixture f;
  sem_t gate, open;
  lade_ticket *stuck[STUCK], *fresh;
  lade_pipeline_options options;
  fixture_options(&options);
  options.depth = 0;
  options.readers = 1;
  if (!fixture_open(&f, "cpu", DEVICE_BYTES, &options)) return;
  sem_init(&gate, 0, 0);
  sem_init(&open, 0, 1);
  lade_transfer source = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_callback(stuck_range, &gate), DEVICE_BYTES);
  for (int i = 0; i < STUCK; i++) LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &source, &stuck[i]));
  source.host = lade_endpoint_callback(stuck_range, &open);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &source, &fresh));
  ends_well(fresh);
  stuck_end_all(&gate, stuck, STUCK);
  fixture_close(&f);
  sem_destroy(&gate);
  sem_destroy(&open);
}

/* A producer far slower than the link, and a link far slower than the producer, both ways: every byte right, and no more
 * blocks than reads and writes under way and a few for copies. */
LADE_TEST(Speed, OfOneSideMayBeATenThousandthOfTheOthers) {
  enum { BYTES = 100 * CHUNK };
  static const struct {
    uint64_t storage;
    uint64_t link;
  } sides[] = {{1000000, 10000000000}, {10000000000, 1000000}};
  char *host = malloc(BYTES);
  support_pattern_fill(host, BYTES, 5, 0);
  for (int i = 0; i < 2; i++) {
    fixture f;
    support_description description;
    lade_pipeline_options options;
    support_description_init(&description);
    description.devices[0].link_bytes_per_s = sides[i].link;
    lade_pipeline_options_init(&options);
    options.chunk_bytes = CHUNK;
    options.readers = 2;
    options.storage_bytes_per_s = sides[i].storage;
    lade_runtime *runtime = support_runtime_open_with("sim", &description.options);
    if (runtime == NULL || !fixture_open_on(&f, runtime, BYTES, &options)) return;
    lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), BYTES);
    LADE_EXPECT_OK(fixture_run(&f, &transfer));
    memset(host, 0, BYTES);
    transfer.direction = LADE_TO_HOST;
    LADE_EXPECT_OK(fixture_run(&f, &transfer));
    LADE_EXPECT_PATTERN(host, BYTES, 5, 0);
    lade_pipeline_info info = fixture_info(&f);
    /* Twice as many requests as readers are tried once, and taken back. */
    LADE_EXPECT_LE_UINT(info.blocks_peak, 2 * options.readers + 8);
    LADE_EXPECT_EQ_UINT(info.requests_to_device, options.readers);
    fixture_close(&f);
  }
  free(host);
}

static lade_status count_end(void *user, lade_ticket *ticket, const lade_error *outcome) {
  (void)ticket;
  atomic_fetch_add((atomic_uint *)user, outcome->status == LADE_OK ? 1u : 1u << 16);
  return LADE_OK;
}

/* All submitted before the first is waited for; then again, and all cancelled. */
LADE_TEST_P(Tickets, MayBeTenThousand, support_soft_runtimes, name) {
  enum { MANY = 10000, BYTES = 48, PLACES = 4096 };
  fixture f;
  lade_pipeline_options options;
  lade_ticket **tickets = calloc(MANY, sizeof *tickets);
  char *host = malloc(PLACES * BYTES);
  atomic_uint ends = 0;
  fixture_options(&options);
  options.max_transfers = MANY;
  options.no_wait = 1;
  if (!fixture_open(&f, name, PLACES * BYTES, &options)) return;
  support_pattern_fill(host, PLACES * BYTES, 4, 0);
  for (int cancel = 0; cancel < 2; cancel++) {
    for (size_t i = 0; i < MANY; i++) {
      size_t place = i % PLACES * BYTES;
      lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host + place), BYTES);
      transfer.device_memory = f.device + place;
      transfer.priority = (int32_t)(i % 3) - 1;
      transfer.submitter = i % 5;
      transfer.on_complete = count_end;
      transfer.on_complete_user = &ends;
      LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[i]));
    }
    for (size_t i = 0; cancel && i < MANY; i++) LADE_EXPECT_OK(lade_ticket_cancel(tickets[i]));
    for (size_t i = 0; i < MANY; i++) {
      lade_status status = lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER);
      LADE_EXPECT(status == LADE_OK || (cancel && status == LADE_ERR_CANCELLED));
      lade_ticket_release(tickets[i]);
    }
    if (!cancel) {
      LADE_EXPECT_EQ_UINT(atomic_load(&ends), MANY);
      fixture_expect_device_pattern(&f, 0, PLACES * BYTES, 4, 0);
    }
  }
  unsigned all = atomic_load(&ends);
  LADE_EXPECT_EQ_UINT((all & 0xffff) + (all >> 16), 2 * MANY);
  free(tickets);
  free(host);
  fixture_close(&f);
}

/* The child's calls on tickets of its parent fail, however busy the parent's threads were at the fork. */
LADE_TEST(Tickets, AreRefusedInAForkedChild) {
  fixture f;
  lade_ticket *ticket;
  char *host = calloc(1, DEVICE_BYTES);
  if (!fixture_open(&f, "cpu", DEVICE_BYTES, NULL)) return;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), DEVICE_BYTES);
  for (int round = 0; round < 20; round++) {
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
    pid_t child = fork();
    LADE_ASSERT_GE_INT(child, 0);
    if (child == 0) {
      bool good = lade_ticket_query(ticket, NULL) == LADE_ERR_FORKED &&
                  lade_ticket_wait(ticket, LADE_WAIT_FOREVER) == LADE_ERR_FORKED &&
                  lade_ticket_cancel(ticket) == LADE_ERR_FORKED &&
                  lade_stream_wait_ticket(NULL, ticket) == LADE_ERR_FORKED;
      lade_ticket_release(ticket);
      _exit(good ? 0 : 1);
    }
    int status = -1;
    LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
    LADE_EXPECT_EQ_INT(status, 0);
    LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
    lade_ticket_release(ticket);
  }
  fixture_close(&f);
  free(host);
}

/* A source that submits once, from its callback, to a pipeline that has no place for one more. */
typedef struct nested_source {
  fixture *f;
  atomic_int outcome;
} nested_source;

static lade_status nested_range(void *user, uint64_t offset, void *buffer, size_t bytes) {
  nested_source *source = user;
  static char host[CHUNK];
  lade_ticket *ticket;
  memset(buffer, 0, bytes);
  if (offset == 0) {
    lade_transfer transfer = fixture_transfer(source->f, LADE_TO_DEVICE, lade_endpoint_memory(host), sizeof host);
    atomic_store(&source->outcome, lade_pipeline_submit(source->f->pipeline, &transfer, &ticket));
  }
  return LADE_OK;
}

/* Bug: destroy with `cancel` closed the pipeline without waking who waited in submit for a place. Where that was a callback
 * of the last transfer it waited for its own end, and destroy for the callback. */
LADE_TEST(Destroy, RefusesACallbackThatWaitsForAPlace) {
  fixture f;
  lade_pipeline_options options;
  lade_ticket *ticket;
  nested_source source = {.f = &f, .outcome = -1};
  fixture_options(&options);
  options.max_transfers = 1;
  options.drain_timeout_ns = patience_ns;
  if (!fixture_open(&f, "cpu", DEVICE_BYTES, &options)) return;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_callback(nested_range, &source), CHUNK);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  while (fixture_info(&f).callbacks_stalled == 0) /* until then it may not have come to its wait */
    sched_yield();
  lade_status status = lade_pipeline_destroy(f.pipeline, true);
  LADE_EXPECT_OK(status);
  if (status != LADE_OK) _exit(1); /* its thread waits forever */
  LADE_EXPECT_EQ_INT(atomic_load(&source.outcome), LADE_ERR_CANCELLED);
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  f.pipeline = NULL;
  fixture_close(&f);
}
