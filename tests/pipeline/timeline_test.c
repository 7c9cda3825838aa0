/* SPDX-License-Identifier: Apache-2.0 */
/* The timeline: every chunk is there with what was done to it, in order; the ring keeps the newest. */
#include <stdlib.h>

#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

enum { CHUNK = 4096, CHUNKS = 10, BYTES = CHUNK * CHUNKS, ROOM = 4096 };

static lade_timeline_event events[ROOM];

/* Room for `count` events. */
static bool open_with(fixture *f, const char *runtime, uint64_t count) {
  lade_pipeline_options options;
  fixture_options(&options);
  options.timeline_events = count;
  return fixture_open(f, runtime, BYTES, &options);
}

static lade_status fill(void *user, uint64_t offset, void *buffer, size_t bytes) {
  (void)user;
  support_pattern_fill(buffer, bytes, 3, offset);
  return LADE_OK;
}

static lade_status drain(void *user, uint64_t offset, void *buffer, size_t bytes) {
  (void)user;
  LADE_EXPECT_PATTERN(buffer, bytes, 3, offset);
  return LADE_OK;
}

/* The one event of this kind for the chunk at `offset` of a transfer. */
static const lade_timeline_event *find(size_t count, lade_timeline_kind kind, uint64_t transfer, uint64_t offset) {
  const lade_timeline_event *found = NULL;
  for (size_t i = 0; i < count; i++) {
    if (events[i].kind == (uint32_t)kind && events[i].transfer == transfer && events[i].offset == offset) {
      LADE_EXPECT_EQ_PTR(found, NULL);
      found = &events[i];
    }
  }
  LADE_EXPECT_NE_PTR(found, NULL);
  return found;
}

static void expect_before(const lade_timeline_event *first, const lade_timeline_event *second) {
  LADE_EXPECT_LE_UINT(first->begin_ns, first->end_ns);
  LADE_EXPECT_LE_UINT(first->end_ns, second->begin_ns);
  LADE_EXPECT_EQ_UINT(first->bytes, CHUNK);
  LADE_EXPECT_EQ_INT(first->direction, second->direction);
  LADE_EXPECT_EQ_INT(first->status, LADE_OK);
}

LADE_TEST_P(Timeline, HasEveryChunkInItsOrder, support_soft_runtimes, name) {
  fixture f;
  size_t count = 0;
  uint64_t lost = 99;
  if (!open_with(&f, name, ROOM)) return;
  LADE_ASSERT_OK(fixture_move(&f, LADE_TO_DEVICE, lade_endpoint_callback(fill, NULL), BYTES));
  LADE_ASSERT_OK(fixture_move(&f, LADE_TO_HOST, lade_endpoint_callback(drain, NULL), BYTES));
  LADE_ASSERT_OK(lade_pipeline_timeline_read(f.pipeline, events, ROOM, &count, &lost));
  LADE_EXPECT_EQ_UINT(lost, 0);
  for (uint64_t offset = 0; offset < BYTES; offset += CHUNK) {
    const lade_timeline_event *read = find(count, LADE_TIMELINE_READ, 1, offset);
    const lade_timeline_event *copy = find(count, LADE_TIMELINE_COPY, 1, offset);
    const lade_timeline_event *flight = find(count, LADE_TIMELINE_FLIGHT, 1, offset);
    if (read == NULL || copy == NULL || flight == NULL) break;
    expect_before(read, copy);
    expect_before(copy, flight);
    LADE_EXPECT_EQ_UINT(copy->end_ns, flight->begin_ns);
    LADE_EXPECT_EQ_UINT(flight->thread, 0);
    LADE_EXPECT_GE_UINT(read->thread, 1);
    flight = find(count, LADE_TIMELINE_FLIGHT, 2, offset);
    const lade_timeline_event *write = find(count, LADE_TIMELINE_WRITE, 2, offset);
    if (flight == NULL || write == NULL) break;
    expect_before(flight, write);
    LADE_EXPECT_EQ_INT(write->direction, LADE_TO_HOST);
  }
  fixture_close(&f);
}

/* Bug: of chunks whose copies were queued together (Note [Joined copies] in core_pick.c) only the first had its event. */
LADE_TEST(Timeline, HasEveryChunkOfThoseQueuedTogether) {
  enum { PART = 64 << 10, LONG = 4 << 20 };
  fixture f;
  size_t count = 0, copies = 0;
  uint64_t bytes = 0;
  lade_endpoint source = lade_endpoint_callback(fill, NULL);
  lade_pipeline_options options;
  lade_pipeline_options_init(&options);
  options.chunk_bytes = PART;
  options.readers = 16; /* faster than the link */
  options.depth = 48;
  options.timeline_events = ROOM;
  source.concurrent = 1;
  if (!fixture_open(&f, "sim", LONG, &options)) return;
  LADE_ASSERT_OK(fixture_move(&f, LADE_TO_DEVICE, source, LONG));
  LADE_ASSERT_OK(lade_pipeline_timeline_read(f.pipeline, events, ROOM, &count, NULL));
  LADE_EXPECT_LT_UINT(fixture_info(&f).copies, LONG / PART);
  for (size_t i = 0; i < count; i++) {
    if (events[i].kind != (uint32_t)LADE_TIMELINE_COPY) continue;
    copies++;
    bytes += events[i].bytes;
    LADE_EXPECT_LE_UINT(events[i].begin_ns, events[i].end_ns);
  }
  LADE_EXPECT_EQ_UINT(copies, LONG / PART);
  LADE_EXPECT_EQ_UINT(bytes, LONG);
  fixture_close(&f);
}

LADE_TEST(Timeline, KeepsTheNewest) {
  fixture f;
  lade_timeline_event all[ROOM];
  size_t count = 0, fewer = 0;
  uint64_t lost = 0, lost_of_few = 0;
  if (!open_with(&f, "sim", 8)) return;
  LADE_ASSERT_OK(fixture_move(&f, LADE_TO_DEVICE, lade_endpoint_callback(fill, NULL), BYTES));
  LADE_ASSERT_OK(lade_pipeline_timeline_read(f.pipeline, all, ROOM, &count, &lost));
  LADE_EXPECT_EQ_UINT(count, 8);
  LADE_EXPECT_GE_UINT(lost, 2 * CHUNKS);
  LADE_EXPECT_EQ_UINT(all[7].kind, LADE_TIMELINE_FINISH + 0u);
  LADE_ASSERT_OK(lade_pipeline_timeline_read(f.pipeline, events, 3, &fewer, &lost_of_few));
  LADE_EXPECT_EQ_UINT(fewer, 3);
  LADE_EXPECT_EQ_UINT(lost_of_few, lost + 5);
  for (size_t i = 0; i < fewer; i++) {
    LADE_EXPECT_EQ_UINT(events[i].end_ns, all[5 + i].end_ns);
    LADE_EXPECT_EQ_UINT(events[i].kind, all[5 + i].kind);
  }
  fixture_close(&f);
}

LADE_TEST(Timeline, IsRefusedWhereItIsNotKept) {
  fixture f;
  size_t count = 77;
  lade_pipeline *pipeline = NULL;
  lade_pipeline_options options;
  if (!open_with(&f, "sim", 0)) return;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_pipeline_timeline_read(f.pipeline, events, ROOM, &count, NULL));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "timeline_events");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_timeline_read(f.pipeline, NULL, 1, &count, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_timeline_read(NULL, events, 1, &count, NULL));
  LADE_EXPECT_EQ_UINT(count, 77);
  fixture_options(&options);
  options.timeline_events = (UINT64_C(1) << 24) + 1;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_create(f.runtime, f.pool, &options, &pipeline));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "16777217");
  fixture_close(&f);
}
