/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The history of a device allocator, as inspect/ needs it. Suites: inspect_hazard_HZnn are weaknesses of PyTorch's introspection,
 * each with the test that lade does not have it; inspect_check_nn are the properties that its users rely on.
 *
 * The linker leads malloc, calloc and the locks through here: a test lets the k-th piece of memory be missing, and sees what is done
 * under a lock.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/api/snapshot.h"
#include "device/observe/history.h"
#include "lade/soft.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/history_on.h"
#include "tests/support/listener.h"

/* ---- Memory and locks -------------------------------------------------------------------------------------------- */

static _Thread_local int missing_in; /* pieces of memory until one is missing; 0: none is */
static _Thread_local bool watching;
static _Thread_local int held, pieces_under_lock, holds;

static bool is_missing(void) {
  if (watching && held > 0) pieces_under_lock++;
  return missing_in > 0 && --missing_in == 0;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes) { return is_missing() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return is_missing() ? NULL : __real_calloc(count, bytes); }

#ifndef NDEBUG
void __real_ladei_lock_acquire(ladei_lock *lock);
void __real_ladei_lock_release(ladei_lock *lock);
void __wrap_ladei_lock_acquire(ladei_lock *lock);
void __wrap_ladei_lock_release(ladei_lock *lock);
void __wrap_ladei_lock_acquire(ladei_lock *lock) {
  __real_ladei_lock_acquire(lock);
  held++;
  holds += watching;
}
void __wrap_ladei_lock_release(ladei_lock *lock) {
  held--;
  __real_ladei_lock_release(lock);
}
#endif

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

typedef struct contexts {
  atomic_int captured, released;
} contexts;

static void *context_capture(void *user) {
  contexts *c = user;
  ladei_lock_assert_none_held();
  atomic_fetch_add(&c->captured, 1);
  return c;
}

static void context_release(void *user, void *context) {
  contexts *c = user;
  ladei_lock_assert_none_held();
  LADE_EXPECT_EQ_PTR(context, user);
  atomic_fetch_add(&c->released, 1);
}

static lade_history_options options_of(contexts *c, lade_device_context_level level) {
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = level;
  if (c != NULL) {
    options.capture = context_capture;
    options.release = context_release;
    options.user = c;
  }
  return options;
}

static void record(device_fixture *f, const lade_history_options *options) {
  LADE_EXPECT_OK(lade_device_history_set(f->allocator, options));
  device_fixture_check(f);
}

static lade_history *take(device_fixture *f) {
  lade_history *history = NULL;
  LADE_EXPECT_OK(lade_device_history_take(f->allocator, &history));
  return history;
}

static void annotate(device_fixture *f, const char *labels) {
  for (; *labels != '\0'; labels++) LADE_EXPECT_OK(lade_device_annotate(f->allocator, NULL, (char[]){*labels, '\0'}));
}

/* Numbers of the events in the ring, and how many it lost. */
static void expect_sequences(device_fixture *f, uint64_t first, size_t count, uint64_t lost) {
  lade_history *history = take(f);
  if (history == NULL) return;
  LADE_EXPECT_EQ_SIZE(history->event_count, count);
  for (size_t i = 0; i < history->event_count; i++) LADE_EXPECT_EQ_UINT(history->events[i].sequence, first + i);
  LADE_EXPECT_EQ_UINT(history->lost_count, lost);
  lade_history_destroy(history);
}

/* ---- The ring ---------------------------------------------------------------------------------------------------- */

LADE_TEST(inspect_check_06, ARingOfFourHoldsTheLastFourOfSix) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  contexts c = {0};
  lade_history_options options = options_of(&c, LADE_CONTEXT_STATE);
  options.max_entries = 4;
  record(&f, &options);
  char *block = device_fixture_alloc(&f, 1000, 0); /* a segment, a block */
  annotate(&f, "1234");
  expect_sequences(&f, 2, 4, 2);
  lade_history *history = take(&f);
  lade_device_snapshot *snapshot = NULL;
  LADE_EXPECT_OK(lade_device_snapshot_take(f.allocator, NULL, &snapshot));
  LADE_ASSERT(history != NULL && snapshot != NULL && snapshot->block_count == 2);
  for (size_t i = 0; i < history->event_count; i++) LADE_EXPECT_EQ_PTR(history->events[i].context, NULL);
  LADE_EXPECT_EQ_PTR(snapshot->blocks[0].context, &c); /* level state: with the block, not in events */
  lade_history_destroy(history);
  lade_device_snapshot_destroy(snapshot);
  record(&f, NULL);
  expect_sequences(&f, 0, 0, 0);
  device_fixture_free(&f, block);
  device_fixture_close(&f);
  LADE_EXPECT_EQ_INT(c.captured, c.released);
}

LADE_TEST(inspect_hazard_HZ06, TheRingHasABoundByDefaultAndInBytes) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_history_options options = options_of(NULL, LADE_CONTEXT_NEVER);
  record(&f, &options);
  annotate(&f, "123");
  expect_sequences(&f, 2, 1, 2);
  options.max_bytes = 5 * sizeof(lade_device_event) + 79;
  record(&f, &options);
  annotate(&f, "4567890");
  expect_sequences(&f, 5, 5, 5);
  options.max_entries = 2;
  record(&f, &options);
  expect_sequences(&f, 8, 2, 8);
  options.max_entries = UINT64_MAX; /* the budget is the bound */
  record(&f, &options);
  options.max_bytes = 1;
  record(&f, &options);
  expect_sequences(&f, 9, 1, 9);
  device_fixture_close(&f);
}

LADE_TEST(inspect_hazard_HZ07, ARingThatShrinksAndGrowsKeepsItsOrder) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_history_options options = options_of(NULL, LADE_CONTEXT_NEVER);
  const struct {
    uint64_t entries;
    const char *events;
    size_t kept;
  } steps[] = {{5, "1234567", 5}, {3, "", 3}, {3, "89", 3}, {9, "", 3}, {9, "abc", 6}, {9, "defghi", 9}, {4, "j", 4}};
  uint64_t written = 0;
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
    options.max_entries = steps[i].entries;
    record(&f, &options);
    annotate(&f, steps[i].events);
    device_fixture_check(&f);
    written += strlen(steps[i].events);
    expect_sequences(&f, written - steps[i].kept, steps[i].kept, written - steps[i].kept);
  }
  device_fixture_close(&f);
}

LADE_TEST(inspect_history, ActionsThatAreSkippedTakeNoPlaceAndNoNumber) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_history_options options = options_of(NULL, LADE_CONTEXT_NEVER);
  options.max_entries = 10;
  options.skip_actions = 1u << LADE_DEVICE_FREE_REQUESTED | 1u << LADE_DEVICE_SEGMENT_ALLOC;
  record(&f, &options);
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  lade_history *history = take(&f);
  LADE_ASSERT(history != NULL && history->event_count == 2);
  LADE_EXPECT_EQ_UINT(history->events[0].action, LADE_DEVICE_ALLOC);
  LADE_EXPECT_EQ_UINT(history->events[1].action, LADE_DEVICE_FREE_COMPLETED);
  LADE_EXPECT_EQ_UINT(history->events[1].sequence, 1);
  lade_history_destroy(history);
  options.skip_actions = 1u << 31;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_history_set(f.allocator, &options));
  device_fixture_close(&f);
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

LADE_TEST(inspect_hazard_HZ09, ACopyIsMadeInShortHoldsAndAllocatesInNone) {
  enum { EVENTS = 10000, MOST_BY_HOLD = 2048 };
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  contexts c = {0};
  lade_history_options options = options_of(&c, LADE_CONTEXT_ALL);
  options.max_entries = EVENTS;
  record(&f, &options);
  char *blocks[100];
  for (int i = 0; i < 100; i++) blocks[i] = device_fixture_alloc(&f, 1000, 0);
  for (int i = 0; i < EVENTS; i++) LADE_EXPECT_OK(lade_device_annotate(f.allocator, NULL, "x"));
  lade_device_snapshot *snapshot = NULL;
  int captured = atomic_load(&c.captured);
  watching = true;
  pieces_under_lock = holds = 0;
  LADE_EXPECT_OK(lade_device_snapshot_take(f.allocator, NULL, &snapshot));
  watching = false;
  LADE_EXPECT_EQ_INT(pieces_under_lock, 0);
#ifndef NDEBUG
  LADE_EXPECT_GE_INT(holds, EVENTS / MOST_BY_HOLD);
#endif
  LADE_EXPECT_EQ_INT(atomic_load(&c.captured), captured); /* contexts are copied, and nothing is asked about them */
  LADE_EXPECT_EQ_SIZE(snapshot->event_count, EVENTS);
  lade_device_snapshot_destroy(snapshot);
  for (int i = 0; i < 100; i++) device_fixture_free(&f, blocks[i]);
  device_fixture_close(&f);
  LADE_EXPECT_EQ_INT(c.captured, c.released);
}

LADE_TEST(inspect_hazard_HZ10, TheMarkerOfASnapshotIsItsLastEvent) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_history_options options = options_of(NULL, LADE_CONTEXT_NEVER);
  options.max_entries = 10;
  record(&f, &options);
  char *block = device_fixture_alloc(&f, 1000, 0);
  lade_device_snapshot *snapshot = NULL;
  LADE_EXPECT_OK(lade_device_snapshot_take(f.allocator, NULL, &snapshot));
  LADE_ASSERT(snapshot != NULL && snapshot->event_count == 3);
  LADE_EXPECT_EQ_UINT(snapshot->events[2].action, LADE_DEVICE_SNAPSHOT);
  LADE_EXPECT_EQ_UINT(snapshot->events[2].bytes, 1024); /* of all active blocks */
  LADE_EXPECT_EQ_UINT(snapshot->events[2].address, 0);
  lade_device_snapshot_destroy(snapshot);
  device_fixture_free(&f, block);
  device_fixture_close(&f);
}

/* ---- Callbacks --------------------------------------------------------------------------------------------------- */

typedef struct caller {
  device_fixture *f;
  pthread_mutex_t own; /* that the program also holds around its calls */
  int heard;
} caller;

static void caller_hear(void *user, const lade_device_event *event, const lade_device_event_totals *totals) {
  caller *c = user;
  (void)totals;
  ladei_lock_assert_none_held();
  c->heard++;
  if (event->action == LADE_DEVICE_ALLOC && event->bytes == 1000) {
    void *nested = NULL;
    LADE_EXPECT_OK(lade_device_alloc(c->f->allocator, 3000, c->f->streams[0], &nested));
    LADE_EXPECT_OK(lade_device_free(c->f->allocator, nested));
  }
}

LADE_TEST(inspect_hazard_HZ16, CallbacksRunUnderNoLockAndMayCallTheAllocator) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  contexts c = {0};
  caller tracker = {.f = &f};
  lade_history_options options = options_of(&c, LADE_CONTEXT_ALL);
  options.max_entries = 2; /* so that contexts are released all the time */
  record(&f, &options);
  LADE_EXPECT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(track, caller_hear, &tracker)));
  char *block = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_OK(lade_device_annotate(f.allocator, block, "a note"));
  device_fixture_free(&f, block);
  LADE_EXPECT_EQ_INT(tracker.heard, 8); /* segment, alloc; alloc, 2 of a free; note; 2 of a free */
  LADE_EXPECT_OK(lade_device_listener_remove(f.allocator, SUPPORT_LISTENER(track, caller_hear, &tracker)));
  device_fixture_close(&f);
  LADE_EXPECT_GT_INT(c.captured, 0);
  LADE_EXPECT_EQ_INT(c.captured, c.released);
}

/* ---- Labels, scopes, notes, clocks ------------------------------------------------------------------------------- */

static void *thread_without_tags(void *user) {
  device_fixture *f = user;
  LADE_EXPECT_OK(lade_device_annotate(f->allocator, NULL, "other"));
  return NULL;
}

LADE_TEST(inspect_history, EventsCarryTheLabelAndTheScopesOfTheirThread) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_history_options options = options_of(NULL, LADE_CONTEXT_NEVER);
  options.max_entries = 10;
  record(&f, &options);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_history_scope_pop());
  annotate(&f, "0");
  LADE_EXPECT_OK(lade_history_label_set("loader"));
  LADE_EXPECT_OK(lade_history_scope_push("epoch 3"));
  annotate(&f, "1");
  LADE_EXPECT_OK(lade_history_scope_push("step 7"));
  annotate(&f, "2");
  LADE_EXPECT_OK(lade_history_scope_pop());
  LADE_EXPECT_OK(lade_history_label_set(NULL));
  annotate(&f, "3");
  LADE_EXPECT_OK(lade_history_scope_pop());
  annotate(&f, "4");
  LADE_EXPECT_OK(lade_history_scope_push("mine"));
  pthread_t thread;
  LADE_ASSERT(pthread_create(&thread, NULL, thread_without_tags, &f) == 0);
  pthread_join(thread, NULL);
  LADE_EXPECT_OK(lade_history_scope_pop());
  lade_history *history = take(&f);
  device_fixture_close(&f);
  LADE_ASSERT(history != NULL && history->event_count == 6);
  const struct {
    const char *label, *scopes;
  } expected[] = {{NULL, NULL},      {"loader", "epoch 3"}, {"loader", "epoch 3/step 7"},
                  {NULL, "epoch 3"}, {NULL, NULL},          {NULL, NULL}};
  for (size_t i = 0; i < 6; i++) {
    const lade_history_event *event = &history->events[i];
    LADE_EXPECT_EQ_STR(event->label == NULL ? "" : event->label, expected[i].label == NULL ? "" : expected[i].label);
    LADE_EXPECT_EQ_STR(event->scopes == NULL ? "" : event->scopes,
                       expected[i].scopes == NULL ? "" : expected[i].scopes);
  }
  lade_history_destroy(history);
}

LADE_TEST(inspect_history, LabelsAndScopesHaveLimits) {
  static char text[5000];
  memset(text, 'x', sizeof text - 1);
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_history_label_set(text));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_history_scope_push(text));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_history_scope_push(NULL));
  text[4095] = '\0';
  LADE_EXPECT_OK(lade_history_label_set(text));
  LADE_EXPECT_OK(lade_history_scope_push(text));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_history_scope_push("")); /* its divider */
  LADE_EXPECT_OK(lade_history_scope_pop());
  for (int i = 0; i < 64; i++) LADE_EXPECT_OK(lade_history_scope_push("s"));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_history_scope_push("s"));
  for (int i = 0; i < 64; i++) LADE_EXPECT_OK(lade_history_scope_pop());
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_history_scope_pop());
  LADE_EXPECT_OK(lade_history_label_set(NULL));
}

LADE_TEST(inspect_history, ANoteStaysWithItsBlockUntilItIsFree) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  char *block = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_OK(lade_device_annotate(f.allocator, block, "nobody listens"));
  LADE_EXPECT_EQ_SIZE(f.allocator->history.note_count, 0);
  lade_history_options options = options_of(NULL, LADE_CONTEXT_NEVER);
  options.max_entries = 10;
  record(&f, &options);
  LADE_EXPECT_OK(lade_device_annotate(f.allocator, block + 100, "weights"));
  LADE_EXPECT_OK(lade_device_annotate(f.allocator, block, "gradients"));
  LADE_EXPECT_EQ_SIZE(f.allocator->history.note_count, 1);
  ladei_device_snapshot snapshot;
  LADE_EXPECT_OK(ladei_device_snapshot_take(f.allocator, NULL, &snapshot));
  LADE_EXPECT_EQ_SIZE(snapshot.note_count, 1);
  LADE_EXPECT_EQ_UINT(snapshot.notes[0].address, (uintptr_t)block);
  LADE_EXPECT_EQ_STR(snapshot.notes[0].note->label, "gradients");
  ladei_device_snapshot_destroy(&snapshot);
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_annotate(f.allocator, &f, "x"));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_annotate(f.allocator, block, NULL));
  device_fixture_check(&f);
  device_fixture_free(&f, block);
  LADE_EXPECT_EQ_SIZE(f.allocator->history.note_count, 0);
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_device_annotate(f.allocator, block, "x"));
  lade_history *history = take(&f);
  LADE_ASSERT(history != NULL && history->event_count == 5);
  LADE_EXPECT_EQ_UINT(history->events[0].action, LADE_DEVICE_ANNOTATE);
  LADE_EXPECT_EQ_STR(history->events[0].text, "weights");
  LADE_EXPECT_EQ_STR(history->events[1].text, "gradients");
  LADE_EXPECT_EQ_UINT(history->events[1].address, (uintptr_t)block);
  LADE_EXPECT_EQ_UINT(history->events[1].bytes, 1000);
  lade_history_destroy(history);
  block = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_OK(lade_device_annotate(f.allocator, block, "again"));
  record(&f, NULL); /* nothing is kept while history is off */
  LADE_EXPECT_EQ_SIZE(f.allocator->history.note_count, 0);
  device_fixture_free(&f, block);
  device_fixture_close(&f);
}

static uint64_t wall_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Conversions are exact to some hundred nanoseconds; the clock of the wall may be set meanwhile, by less than a second. */
LADE_TEST(inspect_history, EventsHaveTheTimeOfBothClocks) {
  enum { INEXACT_NS = 1000000 };
  device_fixture f;
  if (!device_fixture_open(&f, "cpu", 64 * MIB, NULL)) return;
  lade_history_options options = options_of(NULL, LADE_CONTEXT_NEVER);
  options.max_entries = 10;
  record(&f, &options);
  uint64_t wall = wall_ns(), before = lade_runtime_now_ns(f.runtime);
  annotate(&f, "123");
  uint64_t after = lade_runtime_now_ns(f.runtime);
  lade_history *history = take(&f);
  LADE_ASSERT(history != NULL && history->event_count == 3);
  for (size_t i = 0; i < 3; i++) {
    const lade_history_event *event = &history->events[i];
    LADE_EXPECT_GE_UINT(event->time_ns + INEXACT_NS, before);
    LADE_EXPECT_LE_UINT(event->time_ns, after + INEXACT_NS);
    LADE_EXPECT_NEAR((double)event->wall_ns, (double)wall + (double)(event->time_ns - before), 1e9);
    if (i > 0) LADE_EXPECT_GE_UINT(event->time_ns, history->events[i - 1].time_ns);
  }
  lade_history_destroy(history);
  device_fixture_close(&f);
}

LADE_TEST(inspect_history, OnAVirtualClockTheWallMovesWithIt) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_history_options options = options_of(NULL, LADE_CONTEXT_NEVER);
  options.max_entries = 10;
  record(&f, &options);
  annotate(&f, "1");
  LADE_EXPECT_OK(lade_soft_advance(f.runtime, 5000000000u));
  annotate(&f, "2");
  lade_history *history = take(&f);
  LADE_ASSERT(history != NULL && history->event_count == 2);
  LADE_EXPECT_EQ_UINT(history->events[1].time_ns - history->events[0].time_ns, 5000000000u);
  LADE_EXPECT_EQ_UINT(history->events[1].wall_ns - history->events[0].wall_ns, 5000000000u);
  lade_history_destroy(history);
  device_fixture_close(&f);
}

/* ---- No memory --------------------------------------------------------------------------------------------------- */

/* One alloc, note and free in which the k-th piece of memory is missing: what can go on does, and what is lost is counted. */
static bool step_without_memory(int k) {
  device_fixture f;
  contexts c = {0};
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return false;
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  lade_history_options options = options_of(&c, LADE_CONTEXT_ALL);
  options.max_entries = 100;
  record(&f, &options);
  LADE_EXPECT_OK(lade_history_label_set("label"));
  missing_in = k;
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(f.allocator, 1000, f.streams[0], &block));
  lade_status noted = lade_device_annotate(f.allocator, block, "note");
  LADE_EXPECT_OK(lade_device_free(f.allocator, block));
  bool was_missing = missing_in == 0;
  missing_in = 0;
  device_fixture_check(&f);
  lade_history *history = take(&f);
  size_t events = history->event_count;
  LADE_EXPECT_EQ_SIZE(events, noted == LADE_OK ? 4 : 3);
  if (noted != LADE_OK) LADE_EXPECT_EQ_INT(noted, LADE_ERR_OUT_OF_HOST_MEMORY);
  uint64_t lost = history->lost_context_count;
  LADE_EXPECT_EQ_INT(lost > 0, was_missing && noted == LADE_OK);
  lade_history_destroy(history);
  LADE_EXPECT_OK(lade_history_label_set(NULL));
  device_fixture_close(&f);
  LADE_EXPECT_EQ_INT(c.captured, c.released);
  return was_missing;
}

LADE_TEST(inspect_history, EventsAreKeptWhereThereIsNoMemoryForTheirContexts) {
  int k = 1;
  while (step_without_memory(k)) k++;
  LADE_EXPECT_GE_INT(k, 4); /* two contexts, a label, a note */
}

LADE_TEST(inspect_history, TurnsOnAndCopiesWithAllOrNoMemory) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_history_options options = options_of(NULL, LADE_CONTEXT_NEVER);
  options.max_entries = 10;
  lade_status status = LADE_ERR_OUT_OF_HOST_MEMORY;
  for (int k = 1; status != LADE_OK; k++) {
    missing_in = k;
    status = lade_device_history_set(f.allocator, &options);
    missing_in = 0;
    bool enabled = support_device_history_on(f.allocator);
    LADE_EXPECT_EQ_INT(enabled, status == LADE_OK);
  }
  annotate(&f, "1");
  lade_history *history = NULL;
  status = LADE_ERR_OUT_OF_HOST_MEMORY;
  for (int k = 1; status == LADE_ERR_OUT_OF_HOST_MEMORY; k++) {
    missing_in = k;
    status = lade_device_history_take(f.allocator, &history);
    missing_in = 0;
    LADE_EXPECT_EQ_INT(history != NULL, status == LADE_OK);
  }
  LADE_EXPECT_OK(status);
  lade_history_destroy(history);
  device_fixture_close(&f);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, PAIRS = 3000, TOGGLES = 60 };

typedef struct worker {
  device_fixture *f;
  int number;
  atomic_int *running;
} worker;

static void *worker_run(void *user) {
  const worker *w = user;
  lade_device_allocator *allocator = w->f->allocator;
  LADE_EXPECT_OK(lade_history_label_set("worker"));
  for (int i = 0; i < PAIRS; i++) {
    void *block = NULL;
    LADE_EXPECT_OK(lade_device_alloc(allocator, (size_t)(i % 5 + 1) * 600, w->f->streams[w->number], &block));
    if (i % 7 == 0) LADE_EXPECT_OK(lade_history_scope_push("seven"));
    if (i % 7 == 0) LADE_EXPECT_OK(lade_device_annotate(allocator, block, "note"));
    LADE_EXPECT_OK(lade_device_free(allocator, block));
    if (i % 7 == 0) LADE_EXPECT_OK(lade_history_scope_pop());
  }
  atomic_fetch_sub(w->running, 1);
  return NULL;
}

LADE_TEST(inspect_history, IsTurnedOnAndOffWhileThreadsAllocate) {
  device_fixture f;
  if (!device_fixture_open(&f, "cpu", 64 * MIB, NULL)) return;
  contexts c = {0};
  atomic_int running = THREADS;
  pthread_t threads[THREADS];
  worker workers[THREADS];
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){&f, i, &running};
    LADE_ASSERT(pthread_create(&threads[i], NULL, worker_run, &workers[i]) == 0);
  }
  for (int i = 0; i < TOGGLES || atomic_load(&running) > 0; i++) {
    lade_history_options options = options_of(&c, (lade_device_context_level)(i % 4));
    options.max_entries = (uint64_t)(i % 50) + 1;
    LADE_EXPECT_OK(lade_device_history_set(f.allocator, i % 3 == 2 ? NULL : &options));
    lade_history *history = take(&f);
    for (size_t e = 1; e < history->event_count; e++)
      LADE_EXPECT_EQ_UINT(history->events[e].sequence, history->events[e - 1].sequence + 1);
    lade_history_destroy(history);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  device_fixture_check(&f);
  device_fixture_close(&f);
  LADE_EXPECT_EQ_INT(c.captured, c.released);
}
