/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Transfers that wait for streams of the program do not delay others.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

enum { CHUNK = 4096, BULK = 24 * CHUNK, SMALL = 5 * CHUNK, PLACES = 40, DEVICE_BYTES = PLACES * BULK };

/* A pipeline, streams that a test holds back, and transfers after them, each with its own place. */
typedef struct scene {
  fixture f;
  lade_direction direction;
  bool pinned;
  char *host;
  lade_stream streams[4];
  support_stream_hold holds[4];
  lade_ticket *tickets[PLACES];
  size_t bytes[PLACES];
  int count;
} scene;

static bool scene_open(scene *s, const char *runtime, lade_direction direction, bool pinned, unsigned depth) {
  lade_pipeline_options options;
  fixture_options(&options);
  options.depth = depth;
  *s = (scene){.direction = direction, .pinned = pinned};
  void *host = NULL;
  lade_runtime *opened = support_interposer_open(runtime, NULL);
  bool good = opened != NULL && fixture_open_on(&s->f, opened, DEVICE_BYTES, &options);
  if (good && pinned) {
    good = lade_pinned_alloc(s->f.pool, DEVICE_BYTES, &host) == LADE_OK;
    s->host = host;
  } else {
    s->host = malloc(DEVICE_BYTES);
  }
  for (int i = 0; i < 4 && good; i++) good = lade_stream_create(s->f.runtime, 0, &s->streams[i]) == LADE_OK;
  LADE_EXPECT(good && s->host != NULL);
  if (good) support_pattern_fill(s->host, DEVICE_BYTES, 8, 0);
  if (good && direction == LADE_TO_HOST) {
    fixture_device_write(&s->f, 0, s->host, DEVICE_BYTES);
    memset(s->host, 0, DEVICE_BYTES);
  }
  return good;
}

static void scene_close(scene *s) {
  for (int i = 0; i < s->count; i++) {
    size_t at = (size_t)i * BULK;
    LADE_EXPECT_OK(lade_ticket_wait(s->tickets[i], LADE_WAIT_FOREVER));
    lade_ticket_release(s->tickets[i]);
    if (s->direction == LADE_TO_DEVICE)
      fixture_expect_device_pattern(&s->f, at, s->bytes[i], 8, at);
    else
      LADE_EXPECT_PATTERN(s->host + at, s->bytes[i], 8, at);
  }
  for (int i = 0; i < 4; i++) LADE_EXPECT_OK(lade_stream_destroy(s->f.runtime, s->streams[i]));
  if (s->pinned)
    LADE_EXPECT_OK(lade_pinned_free(s->f.pool, s->host));
  else
    free(s->host);
  fixture_close(&s->f);
}

/* Index of a new transfer; `stream` negative: after none. */
static int submit(scene *s, size_t bytes, int stream) {
  int index = s->count++;
  size_t at = (size_t)index * BULK;
  lade_transfer transfer = fixture_transfer(&s->f, s->direction, lade_endpoint_memory(s->host + at), bytes);
  transfer.device_memory = s->f.device + at;
  transfer.submitter = 1;
  if (stream >= 0) {
    transfer.after_stream = 1;
    transfer.stream = s->streams[stream];
  }
  s->bytes[index] = bytes;
  LADE_EXPECT_OK(lade_pipeline_submit(s->f.pipeline, &transfer, &s->tickets[index]));
  return index;
}

static void expect_done(scene *s, int index) { LADE_EXPECT_OK(lade_ticket_wait(s->tickets[index], LADE_WAIT_FOREVER)); }

static void expect_none_done(scene *s, int index) {
  lade_ticket_info info;
  lade_ticket_info_init(&info);
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_ticket_query(s->tickets[index], &info));
  LADE_EXPECT_EQ_UINT(info.bytes_done, 0);
}

typedef struct way {
  lade_direction direction;
  bool pinned;
} way;

static const way ways[] = {
    {LADE_TO_DEVICE, false}, {LADE_TO_HOST, false}, {LADE_TO_DEVICE, true}, {LADE_TO_HOST, true}};

/* Later transfers are over before the stream that an earlier one waits for goes on. */
LADE_TEST_P(AfterStream, HoldsUpNoOther, support_soft_runtimes, name) {
  for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
    scene s;
    if (!scene_open(&s, name, ways[w].direction, ways[w].pinned, 3)) return;
    LADE_ASSERT(support_stream_hold_begin(&s.holds[0], s.f.runtime, s.streams[0]));
    int held = submit(&s, BULK, 0);
    int plain = submit(&s, BULK, -1);
    int free_stream = submit(&s, BULK, 1);
    expect_done(&s, plain);
    expect_done(&s, free_stream);
    expect_none_done(&s, held);
    support_stream_hold_end(&s.holds[0]);
    scene_close(&s);
  }
}

/* However many wait for however many streams: there is a slot for one that does not. */
LADE_TEST_P(AfterStream, HoldsUpNoOtherWhenManyWait, support_soft_runtimes, name) {
  for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
    for (unsigned depth = 2; depth <= 12; depth += 5) {
      scene s;
      if (!scene_open(&s, name, ways[w].direction, ways[w].pinned, depth)) return;
      for (int i = 0; i < 3; i++) LADE_ASSERT(support_stream_hold_begin(&s.holds[i], s.f.runtime, s.streams[i]));
      for (int i = 0; i < 30; i++) submit(&s, i % 7 == 0 ? BULK : SMALL, i % 3);
      int plain = submit(&s, BULK, -1);
      expect_done(&s, plain);
      for (int i = 0; i < 30; i++) expect_none_done(&s, i);
      for (int i = 3; i-- > 0;) support_stream_hold_end(&s.holds[i]);
      scene_close(&s);
    }
  }
}

/* A stream that goes on lets its transfers through, while those after another one wait. */
LADE_TEST_P(AfterStream, StreamsDoNotWaitForEachOther, support_soft_runtimes, name) {
  for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
    scene s;
    if (!scene_open(&s, name, ways[w].direction, ways[w].pinned, 8)) return;
    for (int i = 0; i < 2; i++) LADE_ASSERT(support_stream_hold_begin(&s.holds[i], s.f.runtime, s.streams[i]));
    int first = submit(&s, BULK, 0);
    int second = submit(&s, BULK, 1);
    support_stream_hold_end(&s.holds[1]);
    expect_done(&s, second);
    expect_none_done(&s, first);
    support_stream_hold_end(&s.holds[0]);
    scene_close(&s);
  }
}

/*
 * Bug: while a thread was in the driver to let a copy stream wait, as it may be for long where the driver's queues are full, no copy
 * was queued behind that one's.
 */
LADE_TEST_P(AfterStream, HoldsUpNoOtherInTheDriver, support_cpu_only, name) {
  static const char *const ops[] = {"event_query", "stream_wait_event", "copy", "event_record"};
  enum { OPS = sizeof ops / sizeof ops[0] };
  for (size_t i = 0; i < OPS * sizeof ways / sizeof ways[0]; i++) {
    scene s;
    const char *op = ops[i % OPS];
    lade_test_context("%s, way %zu", op, i / OPS);
    if (!scene_open(&s, name, ways[i / OPS].direction, ways[i / OPS].pinned, 8)) return;
    LADE_ASSERT(support_stream_hold_begin(&s.holds[0], s.f.runtime, s.streams[0]));
    bool of_submit = strncmp(op, "event_", 6) == 0; /* it marks the stream's work, and asks for its end: the first */
    support_hold(s.f.runtime, op, of_submit ? 2 : 1, SUPPORT_HOLD_BEFORE);
    int held = submit(&s, SMALL, 0);
    support_hold_await(s.f.runtime);
    int plain = submit(&s, BULK, -1);
    LADE_EXPECT_OK(lade_ticket_wait(s.tickets[plain], UINT64_C(20000000000))); /* a failed test ends */
    expect_none_done(&s, held);
    support_hold_end(s.f.runtime);
    support_stream_hold_end(&s.holds[0]);
    scene_close(&s);
  }
}

/*
 * Bug: what failed behind a stream that stood still, or was cancelled, left the wait on its copy stream. The next transfer after another
 * stream got that one, since nobody had copies there, and stood still, too.
 */
LADE_TEST_P(AfterStream, WhatFailedHoldsUpNoOther, support_soft_runtimes, name) {
  for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
    scene s;
    if (!scene_open(&s, name, ways[w].direction, ways[w].pinned, 3)) return;
    LADE_ASSERT(support_stream_hold_begin(&s.holds[0], s.f.runtime, s.streams[0]));
    support_fail(s.f.runtime, "copy", 1, 1);
    int failed = submit(&s, SMALL, 0);
    LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_ticket_wait(s.tickets[failed], LADE_WAIT_FOREVER));
    lade_ticket_release(s.tickets[failed]);
    s.count--;
    for (int round = 0; round < 2; round++) { /* the second behind what the first has left */
      LADE_ASSERT(support_stream_hold_begin(&s.holds[1], s.f.runtime, s.streams[1]));
      int late = submit(&s, SMALL, 1);
      support_let_run(s.f.runtime);
      support_stream_hold_end(&s.holds[1]);
      expect_done(&s, late);
    }
    support_stream_hold_end(&s.holds[0]);
    scene_close(&s);
  }
}

static bool has_begun(void *ticket) {
  lade_ticket_info info;
  lade_ticket_info_init(&info);
  (void)lade_ticket_query(ticket, &info);
  return info.bytes_done > 0;
}

/*
 * Bug: what had waited for a stream stayed on the copy stream that waited, and no longer counted as one that may stall. Behind a later
 * transfer after the same stream, which stood still by then, it held all blocks, and nothing else went on.
 */
LADE_TEST_P(AfterStream, WhatHasPassedDoesNotWaitForItAgain, support_soft_runtimes, name) {
  for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
    scene s;
    support_stream_hold again;
    if (!scene_open(&s, name, ways[w].direction, ways[w].pinned, 3)) return;
    LADE_ASSERT(support_stream_hold_begin(&s.holds[0], s.f.runtime, s.streams[0]));
    int passed = submit(&s, BULK, 0);
    expect_none_done(&s, passed);
    support_stream_hold_end(&s.holds[0]);
    LADE_EXPECT(support_wait(s.f.runtime, has_begun, s.tickets[passed]));
    LADE_ASSERT(support_stream_hold_begin(&again, s.f.runtime, s.streams[0]));
    int held = submit(&s, SMALL, 0);
    int plain = submit(&s, BULK, -1);
    expect_done(&s, plain);
    expect_done(&s, passed);
    expect_none_done(&s, held);
    support_stream_hold_end(&again);
    scene_close(&s);
  }
}

/* The caller's thread does not wait for the caller's stream: another stream is ordered after copies that still wait. */
LADE_TEST_P(AfterStream, IsWaitedForByAStreamMeanwhile, support_soft_runtimes, name) {
  scene s;
  if (!scene_open(&s, name, LADE_TO_DEVICE, false, 16)) return;
  LADE_ASSERT(support_stream_hold_begin(&s.holds[0], s.f.runtime, s.streams[0]));
  int held = submit(&s, SMALL, 0);
  LADE_EXPECT_OK(lade_stream_wait_ticket(s.streams[1], s.tickets[held]));
  char *copy = s.f.device + (size_t)(PLACES - 1) * BULK;
  LADE_EXPECT_OK(lade_copy_async(s.f.runtime, copy, s.f.device, SMALL, s.streams[1]));
  expect_none_done(&s, held);
  support_stream_hold_end(&s.holds[0]);
  LADE_EXPECT_OK(lade_stream_synchronize(s.f.runtime, s.streams[1]));
  fixture_expect_device_pattern(&s.f, (size_t)(PLACES - 1) * BULK, SMALL, 8, 0);
  scene_close(&s);
}

/* Half of the slots wait. What is left is queued on another copy stream when the first copy is over, and may be over before others. */
LADE_TEST_P(AfterStream, IsWaitedForOnBothCopyStreams, support_soft_runtimes, name) {
  enum { DEPTH = 16, LONG_CHUNK = 1 << 20, BYTES = (DEPTH / 2 + 1) * LONG_CHUNK };
  fixture f;
  void *host;
  lade_stream streams[2];
  lade_ticket *ticket;
  support_stream_hold hold;
  lade_pipeline_options options;
  fixture_options(&options);
  options.depth = DEPTH;
  options.chunk_bytes = LONG_CHUNK; /* an event each */
  if (!fixture_open(&f, name, 2 * (size_t)BYTES, &options)) return;
  LADE_ASSERT_OK(lade_pinned_alloc(f.pool, BYTES, &host));
  support_pattern_fill(host, BYTES, 9, 0);
  for (int i = 0; i < 2; i++) LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &streams[i]));
  LADE_ASSERT(support_stream_hold_begin(&hold, f.runtime, streams[0]));
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), BYTES);
  transfer.after_stream = 1;
  transfer.stream = streams[0];
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  support_let_run(f.runtime);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(lade_stream_wait_ticket(streams[1], ticket));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, f.device + BYTES, f.device, BYTES, streams[1]));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, streams[1]));
  fixture_expect_device_pattern(&f, BYTES, BYTES, 9, 0);
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_stream_destroy(f.runtime, streams[i]));
  LADE_EXPECT_OK(lade_pinned_free(f.pool, host));
  fixture_close(&f);
}

/* With what lade chooses, on the smallest machine: a whole small transfer fits behind a stream that is late. */
LADE_TEST_P(AfterStream, IsWaitedForByAStreamMeanwhileWithAllDefaults, support_soft_runtimes, name) {
  enum { BYTES = 3 << 20 };
  fixture f;
  lade_stream stream;
  lade_stream other;
  lade_ticket *ticket;
  support_stream_hold hold;
  lade_pipeline_options options;
  char *host = malloc(BYTES);
  lade_pipeline_options_init(&options);
  options.readers = 1;
  if (!fixture_open(&f, name, BYTES, &options)) return;
  support_pattern_fill(host, BYTES, 6, 0);
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &other));
  LADE_ASSERT(support_stream_hold_begin(&hold, f.runtime, stream));
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), BYTES);
  transfer.after_stream = 1;
  transfer.stream = stream;
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  LADE_EXPECT_OK(lade_stream_wait_ticket(other, ticket));
  LADE_EXPECT_EQ_INT(lade_ticket_query(ticket, NULL), LADE_NOT_READY);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  fixture_expect_device_pattern(&f, 0, BYTES, 6, 0);
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, other));
  fixture_close(&f);
  free(host);
}

/* What waits is given up at once when it is cancelled, and its stream may then be as slow as it likes. */
LADE_TEST_P(AfterStream, IsCancelledBeforeItsFirstCopy, support_soft_runtimes, name) {
  scene s;
  if (!scene_open(&s, name, LADE_TO_DEVICE, false, 2)) return;
  LADE_ASSERT(support_stream_hold_begin(&s.holds[0], s.f.runtime, s.streams[0]));
  int first = submit(&s, BULK, 0);
  int second = submit(&s, BULK, 0); /* behind the first one's share: nothing of it is begun */
  LADE_EXPECT_OK(lade_ticket_cancel(s.tickets[second]));
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(s.tickets[second], LADE_WAIT_FOREVER));
  lade_ticket_release(s.tickets[second]);
  s.count--;
  expect_none_done(&s, first);
  support_stream_hold_end(&s.holds[0]);
  scene_close(&s);
}
