/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History: which events are written with which values, where contexts go and that each comes back, the ring's length,
 * trackers, copies and snapshots beside threads that allocate.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/observe/history.h"
#include "lade/soft.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/history_on.h"
#include "tests/support/listener.h"
#include "tests/support/runtimes.h"

/* ---- Contexts of the tests: numbered cells ----------------------------------------------------------------------- */

typedef struct stacks {
  atomic_int captured;
  atomic_int released;
} stacks;

static void *stack_capture(void *user) {
  stacks *s = user;
  int *number = malloc(sizeof *number);
  ladei_lock_assert_none_held();
  if (number != NULL) *number = 1 + atomic_fetch_add(&s->captured, 1);
  return number;
}

static void stack_release(void *user, void *context) {
  stacks *s = user;
  ladei_lock_assert_none_held();
  atomic_fetch_add(&s->released, 1);
  free(context);
}

static int number_of(const void *context) {
  const int *number = context;
  return number == NULL ? 0 : *number;
}

static void record(device_fixture *f, stacks *s, lade_device_context_level level, uint64_t max_entries) {
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = level;
  options.max_entries = max_entries;
  options.capture = stack_capture;
  options.release = stack_release;
  options.user = s;
  LADE_EXPECT_OK(lade_device_history_set(f->allocator, &options));
  device_fixture_check(f);
}

static void record_off(device_fixture *f) {
  LADE_EXPECT_OK(lade_device_history_set(f->allocator, NULL));
  device_fixture_check(f);
}

static lade_history *history_of(device_fixture *f) {
  lade_history *history = NULL;
  LADE_EXPECT_OK(lade_device_history_take(f->allocator, &history));
  return history;
}

/* Appends a line: name, bytes, context's number. */
static void event_write(char text[4096], uint32_t action, uint64_t bytes, const void *context) {
  static const char *const names[] = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
                                      "map",   "unmap",          "snapshot",       "oom",           "user"};
  size_t used = strlen(text);
  snprintf(text + used, 4096 - used, "%s %llu #%d\n", names[action], (unsigned long long)bytes, number_of(context));
}

static const char *history_text(const lade_history *history) {
  static char text[4096];
  text[0] = '\0';
  for (size_t i = 0; i < history->event_count; i++)
    event_write(text, history->events[i].action, history->events[i].bytes, history->events[i].context);
  return text;
}

static const char *snapshot_text(const lade_device_snapshot *snapshot) {
  static char text[4096];
  text[0] = '\0';
  for (size_t i = 0; i < snapshot->event_count; i++)
    event_write(text, snapshot->events[i].action, snapshot->events[i].bytes, snapshot->events[i].context);
  return text;
}

static void expect_events(device_fixture *f, const char *expected) {
  lade_history *history = history_of(f);
  if (history == NULL) return;
  LADE_EXPECT_EQ_STR(history_text(history), expected);
  lade_history_destroy(history);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

LADE_TEST(DeviceHistory, WritesEachStepOfABlock) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  stacks s = {0};
  record(&f, &s, LADE_CONTEXT_ALL, 100);
  LADE_EXPECT_OK(lade_soft_advance(f.runtime, 500));
  char *a = device_fixture_alloc(&f, 1000, 1);
  LADE_EXPECT_OK(lade_soft_advance(f.runtime, 500));
  device_fixture_free(&f, a);
  device_fixture_empty_cache(&f);
  lade_history *history = history_of(&f);
  LADE_ASSERT(history != NULL);
  LADE_EXPECT_EQ_STR(history_text(history), "segment_alloc 2097152 #1\n"
                                            "alloc 1000 #1\n"
                                            "free_requested 1000 #2\n"
                                            "free_completed 1000 #2\n"
                                            "segment_free 2097152 #3\n");
  for (size_t i = 0; i < history->event_count; i++) {
    const lade_history_event *event = &history->events[i];
    LADE_EXPECT_EQ_UINT(event->sequence, i);
    LADE_EXPECT_EQ_UINT(event->address, (uintptr_t)a);
    LADE_EXPECT_EQ_PTR(event->stream, f.streams[1]);
    LADE_EXPECT_EQ_INT(event->device, 0);
    if (i > 0) LADE_EXPECT_LE_UINT(history->events[i - 1].time_ns, event->time_ns);
  }
  LADE_EXPECT_GE_UINT(history->events[1].time_ns, 500);
  LADE_EXPECT_GE_UINT(history->events[2].time_ns, history->events[1].time_ns + 500);
  LADE_EXPECT_EQ_UINT(history->lost_count, 0);
  lade_history_destroy(history);
  record_off(&f);
  LADE_EXPECT_EQ_INT(s.captured, 3);
  LADE_EXPECT_EQ_INT(s.released, 3);
  device_fixture_close(&f);
}

LADE_TEST(DeviceHistory, CompletionComesWhenOtherStreamsAreDone) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, &options)) return;
  stacks s = {0};
  record(&f, &s, LADE_CONTEXT_ALL, 100);
  char *a = device_fixture_alloc(&f, 1000, 0);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, a, 1);
  device_fixture_free(&f, a);
  expect_events(&f, "segment_alloc 2097152 #1\nalloc 1000 #1\nfree_requested 1000 #2\n");
  device_fixture_release(&f, 1);
  char *b = device_fixture_alloc(&f, 2000, 0); /* its call finds the free complete */
  expect_events(&f, "segment_alloc 2097152 #1\nalloc 1000 #1\nfree_requested 1000 #2\n"
                    "free_completed 1000 #3\nalloc 2000 #3\n");
  device_fixture_free(&f, b);
  device_fixture_close(&f);
  LADE_EXPECT_EQ_INT(s.captured, s.released);
}

LADE_TEST(DeviceHistory, ExpandableSegmentsMapAndUnmap) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 256 * MIB, &options)) return;
  stacks s = {0};
  record(&f, &s, LADE_CONTEXT_ALLOC, 100);
  char *a = device_fixture_alloc(&f, 30 * MIB, 0);
  device_fixture_free(&f, a);
  device_fixture_empty_cache(&f);
  expect_events(&f, "map 41943040 #1\nalloc 31457280 #1\nfree_requested 31457280 #1\nfree_completed 31457280 #1\n"
                    "unmap 41943040 #1\n"); /* the segment's context: at this level empty_cache has none */
  device_fixture_close(&f);
  LADE_EXPECT_EQ_INT(s.captured, s.released);
}

LADE_TEST(DeviceHistory, OutOfMemoryIsAnEventWithTheFreeBytes) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  stacks s = {0};
  record(&f, &s, LADE_CONTEXT_ALLOC, 100);
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 100 * MIB + 1, f.streams[2], &none));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "CUDA out of memory. Device 0: ");
  lade_history *history = history_of(&f);
  LADE_ASSERT(history != NULL && history->event_count == 1);
  LADE_EXPECT_EQ_UINT(history->events[0].action, LADE_DEVICE_OOM);
  LADE_EXPECT_EQ_UINT(history->events[0].address, 64 * MIB);
  LADE_EXPECT_EQ_UINT(history->events[0].bytes, 100 * MIB + 512);
  LADE_EXPECT_EQ_PTR(history->events[0].stream, f.streams[2]);
  LADE_EXPECT_EQ_INT(number_of(history->events[0].context), 1);
  lade_history_destroy(history);
  device_fixture_close(&f);
  LADE_EXPECT_EQ_INT(s.captured, s.released);
}

LADE_TEST(DeviceHistory, RestoreWritesItsFreesAndAllocations) {
  static const lade_device_pool_id pool = {7, 0};
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, pool, &f.streams[0], 1));
  char *a = device_fixture_alloc(&f, 1000, 0);
  char *b = device_fixture_alloc(&f, 2000, 0);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool));
  device_fixture_free(&f, b);
  lade_device_checkpoint *checkpoint = NULL;
  LADE_ASSERT_OK(lade_device_checkpoint_get(f.allocator, pool, &checkpoint));
  stacks s = {0};
  record(&f, &s, LADE_CONTEXT_ALL, 100);
  lade_device_restored *restored = NULL;
  LADE_ASSERT_OK(lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  /* a goes; its block and the free rest are made again, then the rest is freed */
  expect_events(&f, "free_requested 1000 #1\nfree_completed 1000 #1\nalloc 1024 #1\nalloc 2096128 #1\n"
                    "free_requested 2096128 #1\nfree_completed 2096128 #1\n");
  lade_history *history = history_of(&f);
  LADE_ASSERT(history != NULL);
  LADE_EXPECT_EQ_UINT(history->events[0].pool.first, 7);
  lade_history_destroy(history);
  lade_device_restored_destroy(restored);
  lade_device_checkpoint_destroy(checkpoint);
  device_fixture_free(&f, a);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_close(&f);
  LADE_EXPECT_EQ_INT(s.captured, s.released);
}

/* ---- Levels ------------------------------------------------------------------------------------------------------ */

/* Contexts captured by one alloc, free and empty_cache; of the block; of the alloc's, the free's, the release's event. */
static void level_run(lade_device_context_level level, int captured, int of_block, const int of_events[3]) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  stacks s = {0};
  record(&f, &s, level, 100);
  char *a = device_fixture_alloc(&f, 1000, 0);
  lade_device_snapshot *snapshot = NULL;
  LADE_ASSERT_OK(lade_device_snapshot_take(f.allocator, NULL, &snapshot));
  LADE_EXPECT_EQ_INT(number_of(snapshot->blocks[0].context), of_block);
  LADE_EXPECT_EQ_INT(number_of(snapshot->segments[0].context), of_block);
  lade_device_snapshot_destroy(snapshot);
  device_fixture_free(&f, a);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_OK(lade_device_annotate(f.allocator, NULL, "epoch 2"));
  lade_history *history = history_of(&f);
  LADE_ASSERT(history != NULL && history->event_count == 7);
  LADE_EXPECT_EQ_INT(number_of(history->events[1].context), of_events[0]);
  LADE_EXPECT_EQ_INT(number_of(history->events[3].context), of_events[1]);
  LADE_EXPECT_EQ_INT(number_of(history->events[5].context), of_events[2]);
  const lade_history_event *note = &history->events[6];
  LADE_EXPECT_EQ_UINT(note->action, LADE_DEVICE_USER_DEFINED);
  LADE_EXPECT_EQ_STR(note->text, level >= LADE_CONTEXT_ALLOC ? "epoch 2" : NULL);
  LADE_EXPECT(note->context == NULL && note->address == 0 && note->bytes == 0 && note->stream == NULL);
  lade_history_destroy(history);
  LADE_EXPECT_EQ_INT(s.captured, captured);
  device_fixture_close(&f);
  LADE_EXPECT_EQ_INT(s.captured, s.released);
}

LADE_TEST(DeviceHistory, LevelsSayWhereContextsAreCaptured) {
  level_run(LADE_CONTEXT_NEVER, 0, 0, (int[]){0, 0, 0});
  level_run(LADE_CONTEXT_STATE, 1, 1, (int[]){0, 0, 0});
  level_run(LADE_CONTEXT_ALLOC, 1, 1, (int[]){1, 1, 1}); /* the free's event has the allocation's */
  level_run(LADE_CONTEXT_ALL, 3, 1, (int[]){1, 2, 3});
}

LADE_TEST(DeviceHistory, CheckpointsCaptureToo) {
  static const lade_device_pool_id pool = {1, 0};
  for (int level = LADE_CONTEXT_NEVER; level <= LADE_CONTEXT_ALL; level++) {
    device_fixture f;
    if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
    LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, pool, NULL, 0));
    LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool));
    stacks s = {0};
    record(&f, &s, (lade_device_context_level)level, 1);
    lade_device_checkpoint *checkpoint = NULL;
    lade_device_restored *restored = NULL;
    LADE_EXPECT_OK(lade_device_checkpoint_get(f.allocator, pool, &checkpoint));
    LADE_EXPECT_EQ_INT(s.captured, level == LADE_CONTEXT_ALL ? 1 : 0);
    LADE_EXPECT_OK(lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
    LADE_EXPECT_EQ_INT(s.captured, level == LADE_CONTEXT_ALL ? 2 : level >= LADE_CONTEXT_STATE ? 1 : 0);
    LADE_EXPECT_EQ_INT(s.captured, s.released); /* nothing kept them */
    lade_device_restored_destroy(restored);
    lade_device_checkpoint_destroy(checkpoint);
    LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
    device_fixture_close(&f);
  }
}

LADE_TEST(DeviceHistory, TurningOffReleasesEverything) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  stacks s = {0};
  LADE_EXPECT(!support_device_history_on(f.allocator));
  record(&f, &s, LADE_CONTEXT_STATE, 10);
  LADE_EXPECT(support_device_history_on(f.allocator));
  char *a = device_fixture_alloc(&f, 1000, 0);
  char *b = device_fixture_alloc(&f, 3 * MIB, 0);
  LADE_EXPECT_EQ_INT(s.released, 0);
  record_off(&f);
  LADE_EXPECT_EQ_INT(s.captured, 2);
  LADE_EXPECT_EQ_INT(s.released, 2);
  LADE_EXPECT(!ladei_device_history_watched(f.allocator));
  expect_events(&f, "");
  device_fixture_free(&f, a);
  record(&f, &s, LADE_CONTEXT_ALLOC, 10);
  device_fixture_free(&f, b); /* handed out while history was off */
  expect_events(&f, "free_requested 3145728 #0\nfree_completed 3145728 #0\n");
  device_fixture_close(&f);
  LADE_EXPECT_EQ_INT(s.captured, s.released);
}

LADE_TEST(DeviceHistory, RefusesLevelsWithoutACapture) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = LADE_CONTEXT_STATE;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_history_set(f.allocator, &options));
  options.level = LADE_CONTEXT_ALL + 1;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_history_set(f.allocator, &options));
  options.level = LADE_CONTEXT_NEVER;
  options.max_entries = UINT64_MAX;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_HOST_MEMORY, lade_device_history_set(f.allocator, &options));
  LADE_EXPECT(!support_device_history_on(f.allocator));
  options.max_entries = 0; /* a ring of one */
  LADE_EXPECT_OK(lade_device_history_set(f.allocator, &options));
  LADE_EXPECT_OK(lade_device_annotate(f.allocator, NULL, "first"));
  LADE_EXPECT_OK(lade_device_annotate(f.allocator, NULL, "second"));
  lade_history *history = history_of(&f);
  LADE_ASSERT(history != NULL && history->event_count == 1);
  LADE_EXPECT_EQ_UINT(history->events[0].sequence, 1);
  LADE_EXPECT_EQ_UINT(history->lost_count, 1);
  lade_history_destroy(history);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_annotate(f.allocator, NULL, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_history_take(f.allocator, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_snapshot_take(f.allocator, NULL, NULL));
  device_fixture_close(&f);
}

/* ---- The ring ---------------------------------------------------------------------------------------------------- */

/* Labels of the ring's events, which are numbers, one character each. */
static void expect_labels(device_fixture *f, const char *labels) {
  lade_history *history = history_of(f);
  if (history == NULL) return;
  char text[64] = "";
  for (size_t i = 0; i < history->event_count && i + 1 < sizeof text; i++) text[i] = history->events[i].text[0];
  LADE_EXPECT_EQ_STR(text, labels);
  lade_history_destroy(history);
}

static void annotate(device_fixture *f, const char *labels) {
  for (; *labels != '\0'; labels++) LADE_EXPECT_OK(lade_device_annotate(f->allocator, NULL, (char[]){*labels, '\0'}));
}

LADE_TEST(DeviceHistory, KeepsTheNewestInOrderWhenResized) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  stacks s = {0};
  record(&f, &s, LADE_CONTEXT_ALLOC, 4);
  annotate(&f, "123456");
  expect_labels(&f, "3456");
  record(&f, &s, LADE_CONTEXT_ALLOC, 8); /* larger, after it had wrapped */
  annotate(&f, "789abc");
  expect_labels(&f, "56789abc");
  record(&f, &s, LADE_CONTEXT_ALLOC, 3); /* smaller */
  expect_labels(&f, "abc");
  annotate(&f, "d");
  expect_labels(&f, "bcd");
  lade_history *history = history_of(&f);
  LADE_ASSERT(history != NULL);
  LADE_EXPECT_EQ_UINT(history->lost_count, 10);
  LADE_EXPECT_EQ_UINT(history->events[0].sequence, 10);
  record_off(&f);
  LADE_EXPECT_EQ_STR(history->events[2].text, "d"); /* the copy keeps what it shows */
  device_fixture_close(&f);
  LADE_EXPECT_EQ_STR(history->events[0].text, "b");
  lade_history_destroy(history);
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

LADE_TEST(DeviceSnapshot, ShowsBlocksContextsAndTheHistoryBefore) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  stacks s = {0};
  record(&f, &s, LADE_CONTEXT_ALLOC, 100);
  char *a = device_fixture_alloc(&f, 1000, 0);
  char *b = device_fixture_alloc(&f, 5 * MIB, 3);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, a, 1);
  device_fixture_free(&f, a);
  lade_device_snapshot *snapshot = NULL;
  LADE_ASSERT_OK(lade_device_snapshot_take(f.allocator, NULL, &snapshot));
  LADE_ASSERT(snapshot->segment_count == 2 && snapshot->block_count == 4);
  const lade_device_snapshot_block *pending = &snapshot->blocks[0];
  LADE_EXPECT_EQ_UINT(pending->state, LADE_DEVICE_BLOCK_PENDING_FREE);
  LADE_EXPECT_EQ_UINT(pending->requested_bytes, 1000);
  LADE_EXPECT_EQ_INT(number_of(pending->context), 1);
  LADE_EXPECT_EQ_UINT(snapshot->blocks[1].state, LADE_DEVICE_BLOCK_INACTIVE);
  LADE_EXPECT_EQ_PTR(snapshot->blocks[1].context, NULL);
  const lade_device_snapshot_segment *large = &snapshot->segments[1];
  LADE_EXPECT_EQ_UINT(large->address, (uintptr_t)b);
  LADE_EXPECT_EQ_UINT(large->total_bytes, 20 * MIB);
  LADE_EXPECT_EQ_UINT(large->allocated_bytes, 5 * MIB);
  LADE_EXPECT_EQ_PTR(large->stream, f.streams[3]);
  LADE_EXPECT_EQ_INT(number_of(large->context), 2);
  LADE_EXPECT(large->is_large && !snapshot->segments[0].is_large && large->first_block == 2 && large->block_count == 2);
  LADE_EXPECT_EQ_UINT(snapshot->stats.active_bytes.all.current, 5 * MIB + 1024);
  LADE_EXPECT_EQ_STR(snapshot_text(snapshot),
                     "segment_alloc 2097152 #1\nalloc 1000 #1\nsegment_alloc 20971520 #2\nalloc 5242880 #2\n"
                     "free_requested 1000 #1\nsnapshot 5243904 #0\n");
  device_fixture_release(&f, 1);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
  LADE_EXPECT_EQ_INT(number_of(large->context), 2); /* the snapshot outlives the allocator */
  LADE_EXPECT_LT_INT(s.released, s.captured);
  lade_device_snapshot_destroy(snapshot);
  LADE_EXPECT_EQ_INT(s.captured, s.released);
}

LADE_TEST(DeviceSnapshot, WritesNothingWhereNobodyListens) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  lade_device_snapshot *snapshot = NULL;
  LADE_ASSERT_OK(lade_device_snapshot_take(f.allocator, NULL, &snapshot));
  LADE_EXPECT_EQ_SIZE(snapshot->block_count, 2);
  LADE_EXPECT_EQ_SIZE(snapshot->event_count, 0);
  LADE_EXPECT_EQ_UINT(f.allocator->history.sequence, 0);
  lade_device_snapshot_destroy(snapshot);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

/* ---- Trackers ---------------------------------------------------------------------------------------------------- */

typedef struct diary {
  device_fixture *f;
  uint64_t next; /* sequence expected */
  char text[2048];
  size_t used;
  bool reacts;
} diary;

static void diary_write(void *user, const lade_device_event *event, const lade_device_event_totals *totals) {
  diary *d = user;
  ladei_lock_assert_none_held();
  LADE_EXPECT_EQ_UINT(event->sequence, d->next);
  d->next = event->sequence + 1;
  d->used += (size_t)snprintf(d->text + d->used, sizeof d->text - d->used, "%u %llu block %llu of %llu in %llu\n",
                              event->action, (unsigned long long)event->bytes, (unsigned long long)totals->block_bytes,
                              (unsigned long long)totals->allocated_bytes, (unsigned long long)totals->reserved_bytes);
  if (!d->reacts || event->action != LADE_DEVICE_ALLOC) return;
  d->reacts = false;
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(d->f->allocator, 600, d->f->streams[0], &block)); /* its events follow */
  LADE_EXPECT_OK(lade_device_free(d->f->allocator, block));
}

LADE_TEST(DeviceTrackers, HearEventsInOrderWithoutHistory) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  diary first = {.f = &f, .reacts = true};
  diary second = {.f = &f};
  LADE_EXPECT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(track, diary_write, &first)));
  LADE_EXPECT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(track, diary_write, &second)));
  char *a = device_fixture_alloc(&f, 1000, 0);
  static const char expected[] = "3 2097152 block 2097152 of 0 in 2097152\n"
                                 "0 1000 block 1024 of 1024 in 2097152\n"
                                 "0 600 block 1024 of 2048 in 2097152\n"
                                 "1 600 block 1024 of 1024 in 2097152\n"
                                 "2 600 block 1024 of 1024 in 2097152\n";
  LADE_EXPECT_EQ_STR(first.text, expected);
  LADE_EXPECT_EQ_STR(second.text, expected);
  LADE_EXPECT_OK(lade_device_listener_remove(f.allocator, SUPPORT_LISTENER(track, diary_write, &first)));
  device_fixture_free(&f, a);
  LADE_EXPECT_EQ_STR(first.text, expected);
  LADE_EXPECT_CONTAINS_STR(second.text, "1 1000 block 1024 of 0 in 2097152\n2 1000 block");
  LADE_EXPECT_OK(lade_device_listener_remove(f.allocator, SUPPORT_LISTENER(track, diary_write, &second)));
  LADE_EXPECT(!ladei_device_history_watched(f.allocator));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_device_listener_remove(f.allocator, SUPPORT_LISTENER(track, diary_write, &second)));
  device_fixture_close(&f);
}

LADE_TEST(DeviceTrackers, HearOfTheEndToo) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  diary d = {.f = &f};
  LADE_EXPECT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(track, diary_write, &d)));
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  device_fixture_close(&f);
  LADE_EXPECT_CONTAINS_STR(d.text, "4 2097152 block 2097152 of 0 in 0\n");
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, STEPS = 400 };

typedef struct crowd {
  device_fixture f;
  stacks s;
  atomic_bool over;
  atomic_uint_least64_t delivered;
  _Atomic(uint64_t) last; /* sequence delivered last */
} crowd;

static void crowd_tell(void *user, const lade_device_event *event, const lade_device_event_totals *totals) {
  crowd *c = user;
  (void)totals;
  uint64_t last = atomic_exchange(&c->last, event->sequence);
  if (atomic_fetch_add(&c->delivered, 1) > 0) LADE_EXPECT_EQ_UINT(event->sequence, last + 1);
}

typedef struct member {
  crowd *c;
  int stream;
} member;

static void *member_run(void *user) {
  member *m = user;
  device_fixture *f = &m->c->f;
  void *blocks[8] = {NULL};
  for (int i = 0; i < STEPS; i++) {
    int at = i % 8;
    LADE_EXPECT_OK(lade_device_free(f->allocator, blocks[at]));
    blocks[at] = NULL;
    LADE_EXPECT_OK(lade_device_alloc(f->allocator, (size_t)(i % 7 + 1) * 700, f->streams[m->stream], &blocks[at]));
    if (i % 3 == 0)
      LADE_EXPECT_OK(lade_device_record_stream(f->allocator, blocks[at], f->streams[(m->stream + 1) % THREADS]));
    if (i % 50 == 0) LADE_EXPECT_OK(lade_device_annotate(f->allocator, NULL, "fifty"));
  }
  for (int at = 0; at < 8; at++) LADE_EXPECT_OK(lade_device_free(f->allocator, blocks[at]));
  return NULL;
}

static void snapshot_expect(const lade_device_snapshot *snapshot) {
  uint64_t allocated = 0;
  for (size_t i = 0; i < snapshot->segment_count; i++) allocated += snapshot->segments[i].allocated_bytes;
  LADE_EXPECT_EQ_UINT(allocated, snapshot->stats.allocated_bytes.all.current);
  for (size_t i = 0; i < snapshot->block_count; i++) {
    bool active = snapshot->blocks[i].state != LADE_DEVICE_BLOCK_INACTIVE;
    LADE_EXPECT(active == (snapshot->blocks[i].context != NULL));
  }
  for (size_t i = 1; i < snapshot->event_count; i++)
    LADE_EXPECT_EQ_UINT(snapshot->events[i].sequence, snapshot->events[i - 1].sequence + 1);
  if (snapshot->event_count > 0)
    LADE_EXPECT_EQ_UINT(snapshot->events[snapshot->event_count - 1].action, LADE_DEVICE_SNAPSHOT);
}

static void *reader_run(void *user) {
  crowd *c = user;
  while (!atomic_load(&c->over)) {
    lade_device_snapshot *snapshot = NULL;
    LADE_EXPECT_OK(lade_device_snapshot_take(c->f.allocator, NULL, &snapshot));
    snapshot_expect(snapshot);
    lade_device_snapshot_destroy(snapshot);
  }
  return NULL;
}

LADE_TEST(DeviceHistory, ThreadsAllocateWhileOthersRead) {
  static crowd c;
  if (!device_fixture_open(&c.f, "cpu", 256 * MIB, NULL)) return;
  record(&c.f, &c.s, LADE_CONTEXT_ALL, 5000);
  LADE_EXPECT_OK(lade_device_listener_add(c.f.allocator, SUPPORT_LISTENER(track, crowd_tell, &c)));
  pthread_t threads[THREADS + 1];
  member members[THREADS];
  LADE_ASSERT(pthread_create(&threads[THREADS], NULL, reader_run, &c) == 0);
  for (int i = 0; i < THREADS; i++) {
    members[i] = (member){&c, i};
    LADE_ASSERT(pthread_create(&threads[i], NULL, member_run, &members[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  atomic_store(&c.over, true);
  pthread_join(threads[THREADS], NULL);
  LADE_EXPECT_EQ_UINT(atomic_load(&c.delivered), c.f.allocator->history.sequence);
  device_fixture_close(&c.f);
  LADE_EXPECT_EQ_INT(c.s.captured, c.s.released);
}
