/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reuse within a capture (LADE_DEVICE_CAPTURE_REUSE): a block that other streams of the capture used comes back when the graph orders
 * its next use behind theirs, and not before. The graphs are launched: bytes, and on software devices their report, judge.
 */
#include <string.h>

#include "device/api/device.h"
#include "lade/soft.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

enum { BYTES = 1000, LAUNCHES = 2 };

static const lade_device_pool_id pool_one = {1, 0};
static const lade_device_pool_id pool_two = {2, 0};

#define OPS(f)  ((f)->runtime->ops)
#define SELF(f) ((f)->runtime->self)

static bool fixture_open(device_fixture *f, const char *name, uint32_t flags) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  options.flags = flags;
  return device_fixture_open_bytes(f, name, &options);
}

/* Each is followed by a recount of the allocator. */
static void begin(device_fixture *f, lade_device_pool_id pool, int stream) {
  ladei_stream on = device_fixture_resolve(f, stream);
  LADE_EXPECT_OK(lade_device_pool_begin(f->allocator, pool, &f->streams[stream], 1));
  LADE_EXPECT_OK(OPS(f)->capture_begin(SELF(f), &on, LADEI_CAPTURE_RELAXED));
}

static ladei_graph end(device_fixture *f, lade_device_pool_id pool, int stream) {
  ladei_stream on = device_fixture_resolve(f, stream);
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(OPS(f)->capture_end(SELF(f), &on, &graph));
  LADE_EXPECT_OK(lade_device_pool_end(f->allocator, pool));
  return graph;
}

/* `to` waits for what `from` has captured. */
static void order(const device_fixture *f, int from, int to) {
  ladei_stream before = device_fixture_resolve(f, from), after = device_fixture_resolve(f, to);
  lade_event event = NULL;
  LADE_EXPECT_OK(lade_event_create(f->runtime, 0, &event));
  LADE_EXPECT_OK(OPS(f)->event_record(SELF(f), event, &before));
  LADE_EXPECT_OK(OPS(f)->stream_wait_event(SELF(f), &after, event));
  LADE_EXPECT_OK(lade_event_destroy(f->runtime, event));
}

static void copy(const device_fixture *f, void *to, const void *from, int stream) {
  ladei_stream on = device_fixture_resolve(f, stream);
  LADE_EXPECT_OK(OPS(f)->copy(SELF(f), LADEI_COPY_D2D, to, from, BYTES, &on));
}

static void launch(const device_fixture *f, ladei_graph graph) {
  ladei_stream on = device_fixture_resolve(f, 3);
  ladei_graph_exec exec = NULL;
  LADE_ASSERT_OK(OPS(f)->graph_instantiate(SELF(f), graph, &exec));
  for (int i = 0; i < LAUNCHES; i++) LADE_EXPECT_OK(OPS(f)->graph_launch(SELF(f), exec, &on));
  LADE_EXPECT_OK(OPS(f)->stream_synchronize(SELF(f), &on));
  LADE_EXPECT_OK(OPS(f)->graph_exec_destroy(SELF(f), exec));
  LADE_EXPECT_OK(OPS(f)->graph_destroy(SELF(f), graph));
}

static void expect_no_findings(lade_runtime *runtime) {
  lade_soft_report report;
  if (runtime->software_device == NULL) return;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(runtime, &report));
  LADE_EXPECT_EQ_UINT(report.unordered_reuse, 0);
  LADE_EXPECT_EQ_UINT(report.freed_memory_used, 0);
}

static void close_all(device_fixture *f, lade_device_pool_id pool) {
  expect_no_findings(f->runtime);
  LADE_EXPECT_OK(lade_device_pool_release(f->allocator, pool));
  device_fixture_close(f);
}

/* A block of stream 0 that `stream` fills with `value`, copies to `out`, and uses until the free. */
static char *used_by(device_fixture *f, int stream, unsigned char value, char *out) {
  char *block = device_fixture_alloc(f, BYTES, 0);
  order(f, 0, stream);
  device_fixture_fill(f, block, value, BYTES, stream);
  copy(f, out, block, stream);
  device_fixture_record(f, block, stream);
  return block;
}

/* ---- Order ------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(CaptureReuse, ComesBackAfterTheJoinAndNotBefore, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, LADE_DEVICE_CAPTURE_REUSE)) return;
  char *out = device_fixture_alloc(&f, BYTES, 0);
  begin(&f, pool_one, 0);
  char *a = used_by(&f, 1, 1, out);
  device_fixture_free(&f, a);
  char *b = device_fixture_alloc(&f, BYTES, 0);
  LADE_EXPECT_NE_PTR(b, a);
  device_fixture_fill(&f, b, 2, BYTES, 0);
  order(&f, 1, 0);
  char *c = device_fixture_alloc(&f, BYTES, 0);
  LADE_EXPECT_EQ_PTR(c, a);
  device_fixture_fill(&f, c, 3, BYTES, 0);
  launch(&f, end(&f, pool_one, 0));
  device_fixture_expect_bytes(&f, out, 1, BYTES, 0);
  device_fixture_expect_bytes(&f, b, 2, BYTES, 0);
  device_fixture_expect_bytes(&f, c, 3, BYTES, 0);
  device_fixture_free(&f, b);
  device_fixture_free(&f, c);
  device_fixture_free(&f, out);
  close_all(&f, pool_one);
}

LADE_TEST_P(CaptureReuse, IsAtOnceWhereTheJoinCameBeforeTheFree, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, LADE_DEVICE_CAPTURE_REUSE)) return;
  char *out = device_fixture_alloc(&f, BYTES, 0);
  begin(&f, pool_one, 0);
  char *a = used_by(&f, 1, 1, out);
  order(&f, 1, 0);
  device_fixture_free(&f, a);
  for (int i = 0; i < 3; i++) { /* and again: nothing of the first use is left */
    char *b = device_fixture_alloc(&f, BYTES, 0);
    LADE_EXPECT_EQ_PTR(b, a);
    device_fixture_fill(&f, b, 2, BYTES, 0);
    device_fixture_free(&f, b);
  }
  launch(&f, end(&f, pool_one, 0));
  device_fixture_expect_bytes(&f, out, 1, BYTES, 0);
  device_fixture_free(&f, out);
  close_all(&f, pool_one);
}

LADE_TEST_P(CaptureReuse, IsOffByDefault, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, 0)) return;
  char *out = device_fixture_alloc(&f, BYTES, 0);
  begin(&f, pool_one, 0);
  char *a = used_by(&f, 1, 1, out);
  order(&f, 1, 0);
  device_fixture_free(&f, a);
  char *b = device_fixture_alloc(&f, BYTES, 0);
  LADE_EXPECT_NE_PTR(b, a);
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "capture_frontier"), 0);
  launch(&f, end(&f, pool_one, 0));
  device_fixture_free(&f, b);
  device_fixture_free(&f, out);
  close_all(&f, pool_one);
}

/* Work that the side stream captures after the free is not waited for; what it captured before is, also by way of a third. */
LADE_TEST_P(CaptureReuse, WaitsForEveryStreamThatUsedTheBlock, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, LADE_DEVICE_CAPTURE_REUSE)) return;
  char *out = device_fixture_alloc(&f, BYTES, 0), *other = device_fixture_alloc(&f, BYTES, 0);
  begin(&f, pool_one, 0);
  char *a = used_by(&f, 1, 1, out);
  order(&f, 1, 2);
  copy(&f, other, a, 2);
  device_fixture_record(&f, a, 2);
  device_fixture_free(&f, a);
  order(&f, 1, 0); /* the first one alone */
  char *b = device_fixture_alloc(&f, BYTES, 0);
  LADE_EXPECT_NE_PTR(b, a);
  order(&f, 2, 1);
  device_fixture_fill(&f, out, 4, BYTES, 1);
  order(&f, 1, 0); /* through the first one */
  char *c = device_fixture_alloc(&f, BYTES, 0);
  LADE_EXPECT_EQ_PTR(c, a);
  device_fixture_fill(&f, c, 3, BYTES, 0);
  launch(&f, end(&f, pool_one, 0));
  device_fixture_expect_bytes(&f, other, 1, BYTES, 0);
  device_fixture_expect_bytes(&f, c, 3, BYTES, 0);
  char *all[] = {b, c, out, other};
  for (int i = 0; i < 4; i++) device_fixture_free(&f, all[i]);
  close_all(&f, pool_one);
}

/* The stream that allocates must be behind, not another one of the capture. */
LADE_TEST_P(CaptureReuse, JoinsOfOtherStreamsDoNotCount, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, LADE_DEVICE_CAPTURE_REUSE)) return;
  char *out = device_fixture_alloc(&f, BYTES, 0);
  begin(&f, pool_one, 0);
  char *a = used_by(&f, 1, 1, out);
  device_fixture_free(&f, a);
  order(&f, 1, 2);
  device_fixture_free(&f, device_fixture_alloc(&f, BYTES, 2));
  char *b = device_fixture_alloc(&f, BYTES, 0);
  LADE_EXPECT_NE_PTR(b, a);
  device_fixture_fill(&f, b, 2, BYTES, 0);
  order(&f, 1, 0);
  order(&f, 2, 0);
  launch(&f, end(&f, pool_one, 0));
  device_fixture_expect_bytes(&f, out, 1, BYTES, 0);
  device_fixture_free(&f, b);
  device_fixture_free(&f, out);
  close_all(&f, pool_one);
}

/* A use that no graph orders is waited for by itself, after the capture. */
LADE_TEST_P(CaptureReuse, UsesOutsideTheCaptureKeepTheBlock, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, LADE_DEVICE_CAPTURE_REUSE)) return;
  char *out = device_fixture_alloc(&f, BYTES, 0);
  begin(&f, pool_one, 0);
  char *a = used_by(&f, 1, 1, out);
  device_fixture_record(&f, a, 2); /* which does not capture */
  order(&f, 1, 0);
  device_fixture_free(&f, a);
  char *b = device_fixture_alloc(&f, BYTES, 0);
  LADE_EXPECT_NE_PTR(b, a);
  launch(&f, end(&f, pool_one, 0));
  device_fixture_free(&f, b);
  device_fixture_free(&f, out);
  close_all(&f, pool_one);
}

/* ---- Walks ------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(CaptureReuse, LooksAtEachNodeOnce, SUPPORT_RUNTIMES, name) {
  enum { CHAIN = 300 }; /* more than a walk has room for at first */
  device_fixture f;
  if (!fixture_open(&f, name, LADE_DEVICE_CAPTURE_REUSE)) return;
  char *out = device_fixture_alloc(&f, BYTES, 0);
  begin(&f, pool_one, 0);
  char *kept = used_by(&f, 1, 1, out), *last = NULL;
  device_fixture_free(&f, kept);
  for (int i = 0; i < CHAIN; i++) {
    char *b = device_fixture_alloc(&f, BYTES, 0);
    device_fixture_fill(&f, b, 2, BYTES, 0);
    LADE_EXPECT(b != kept && (last == NULL || b == last));
    device_fixture_free(&f, b);
    last = b;
  }
  LADE_EXPECT_LE_UINT(support_call_count(f.runtime, "graph_node_dependencies"), CHAIN + 3);
  order(&f, 1, 0);
  char *b = device_fixture_alloc(&f, BYTES, 0), *c = device_fixture_alloc(&f, BYTES, 0);
  LADE_EXPECT(b == kept || c == kept);
  launch(&f, end(&f, pool_one, 0));
  device_fixture_free(&f, b);
  device_fixture_free(&f, c);
  device_fixture_free(&f, out);
  close_all(&f, pool_one);
}

/* ---- Captures that end ------------------------------------------------------------------------------------------- */

LADE_TEST_P(CaptureReuse, EachCaptureLooksForItself, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, LADE_DEVICE_CAPTURE_REUSE)) return;
  char *out = device_fixture_alloc(&f, BYTES, 0);
  for (int i = 0; i < 3; i++) {
    begin(&f, pool_one, 0);
    char *a = used_by(&f, 1, 1, out);
    device_fixture_free(&f, a); /* is back when the capture is over, at the latest */
    char *b = device_fixture_alloc(&f, BYTES, 0);
    LADE_EXPECT_NE_PTR(b, a);
    device_fixture_fill(&f, b, 2, BYTES, 0);
    device_fixture_free(&f, b);
    order(&f, 1, 0);
    launch(&f, end(&f, pool_one, 0));
    device_fixture_expect_bytes(&f, out, 1, BYTES, 0);
    if (i > 0) LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  }
  device_fixture_free(&f, out);
  close_all(&f, pool_one);
}

LADE_TEST_P(CaptureReuse, TwoCapturesAtOnceDoNotMeet, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, LADE_DEVICE_CAPTURE_REUSE)) return;
  char *out = device_fixture_alloc(&f, BYTES, 0);
  begin(&f, pool_one, 0);
  begin(&f, pool_two, 2);
  char *a = used_by(&f, 1, 1, out), *other = device_fixture_alloc(&f, BYTES, 2);
  device_fixture_fill(&f, other, 5, BYTES, 2);
  device_fixture_free(&f, a);
  LADE_EXPECT_NE_PTR(device_fixture_alloc(&f, BYTES, 2), other);
  order(&f, 1, 0);
  ladei_graph second = end(&f, pool_two, 2);
  char *b = device_fixture_alloc(&f, BYTES, 0);
  LADE_EXPECT_EQ_PTR(b, a);
  launch(&f, end(&f, pool_one, 0));
  launch(&f, second);
  device_fixture_expect_bytes(&f, out, 1, BYTES, 0);
  device_fixture_expect_bytes(&f, other, 5, BYTES, 2);
  char *more = device_fixture_alloc(&f, BYTES, 0);
  char *all[] = {b, other, other + 1024, out, more};
  for (int i = 0; i < 5; i++) device_fixture_free(&f, all[i]);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_two));
  close_all(&f, pool_one);
}

/* The capture is broken while a block has markers: nothing comes back in it, and all does afterwards. */
LADE_TEST_P(CaptureReuse, AbortedCapturesKeepNothing, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, LADE_DEVICE_CAPTURE_REUSE)) return;
  char *out = device_fixture_alloc(&f, BYTES, 0);
  ladei_stream on = device_fixture_resolve(&f, 0);
  ladei_graph none = NULL;
  begin(&f, pool_one, 0);
  char *a = used_by(&f, 1, 1, out), *b = used_by(&f, 1, 1, out);
  device_fixture_free(&f, a);
  order(&f, 1, 0);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OPS(&f)->stream_query(SELF(&f), &on));
  device_fixture_free(&f, b); /* and one whose streams are in no valid capture any more */
  char *c = device_fixture_alloc(&f, BYTES, 0);
  LADE_EXPECT(c != a && c != b);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OPS(&f)->capture_end(SELF(&f), &on, &none));
  char *d = device_fixture_alloc(&f, BYTES, 0); /* the pool does not know yet */
  LADE_EXPECT(d != a && d != b);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  device_fixture_free(&f, c);
  device_fixture_free(&f, d);
  device_fixture_free(&f, device_fixture_alloc(&f, BYTES, 0));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active_bytes.all.current, 1024); /* out */
  device_fixture_free(&f, out);
  close_all(&f, pool_one);
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

/* Lade's own calls fail, those of the program do not. */
static lade_status reuse_run(lade_runtime *runtime, void *user) {
  (void)user;
  lade_runtime *inner = support_inner(runtime);
  device_fixture f = {.runtime = inner};
  lade_device_options options;
  lade_status first = LADE_OK;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_CAPTURE_REUSE;
  for (int i = 0; i < FIXTURE_STREAMS; i++) LADE_EXPECT_OK(lade_stream_create(inner, 0, &f.streams[i]));
  support_note(&first, lade_device_allocator_create(runtime, 0, &options, &f.allocator));
  if (first != LADE_OK) goto fail_create;
  void *a = NULL, *b = NULL;
  SUPPORT_TWICE(&first, lade_device_pool_begin(f.allocator, pool_one, f.streams, 1));
  ladei_stream on = device_fixture_resolve(&f, 0);
  LADE_EXPECT_OK(inner->ops->capture_begin(inner->self, &on, LADEI_CAPTURE_RELAXED));
  SUPPORT_TWICE(&first, lade_device_alloc(f.allocator, BYTES, f.streams[0], &a));
  device_fixture_fill(&f, a, 1, BYTES, 0);
  order(&f, 0, 1);
  device_fixture_fill(&f, a, 2, BYTES, 1);
  SUPPORT_TWICE(&first, lade_device_record_stream(f.allocator, a, f.streams[1]));
  LADE_EXPECT_OK(lade_device_free(f.allocator, a));
  for (int i = 0; i < 2; i++) { /* before and after the join */
    SUPPORT_TWICE(&first, lade_device_alloc(f.allocator, BYTES, f.streams[0], &b));
    LADE_EXPECT(i > 0 || b != a);
    device_fixture_fill(&f, b, 3, BYTES, 0);
    LADE_EXPECT_OK(lade_device_free(f.allocator, b));
    LADE_EXPECT_OK(ladei_device_allocator_check(f.allocator));
    if (i == 0) order(&f, 1, 0);
  }
  launch(&f, end(&f, pool_one, 0));
  expect_no_findings(inner);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  SUPPORT_TWICE(&first, lade_device_empty_cache(f.allocator));
  SUPPORT_TWICE(&first, lade_device_allocator_destroy(f.allocator, true));
fail_create:
  for (int i = 0; i < FIXTURE_STREAMS; i++) LADE_EXPECT_OK(lade_stream_destroy(inner, f.streams[i]));
  return first;
}

LADE_TEST(CaptureReuse, AFailingCallAtMostKeepsTheBlockLonger) {
  support_for_each_failure("sim", reuse_run, NULL, NULL);
}
