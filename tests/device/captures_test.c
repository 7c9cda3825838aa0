/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: The device allocator while streams capture: no block comes back early, no capture is broken. On
 * software devices, on the loopback driver and on a GPU, all of which invalidate a capture whose stream is asked or
 * waited for.
 */
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "device/native/uses.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

static const lade_device_pool_id pool_one = {1, 0};
static const lade_device_pool_id pool_two = {2, 0};

#define OPS(f)  ((f)->runtime->ops)
#define SELF(f) ((f)->runtime->self)

static void capture_begin(const device_fixture *f, const ladei_stream *stream) {
  LADE_EXPECT_OK(OPS(f)->capture_begin(SELF(f), stream, LADEI_CAPTURE_GLOBAL));
}

static void expect_active(const device_fixture *f, const ladei_stream *stream) {
  ladei_capture_info info;
  LADE_EXPECT_OK(OPS(f)->stream_capture_info(SELF(f), stream, &info));
  LADE_EXPECT_EQ_INT(info.status, LADEI_CAPTURE_ACTIVE);
}

/* NULL, with the test failed, where something has broken the capture. */
static ladei_graph capture_end(const device_fixture *f, const ladei_stream *stream) {
  ladei_graph graph = NULL;
  expect_active(f, stream);
  LADE_EXPECT_OK(OPS(f)->capture_end(SELF(f), stream, &graph));
  return graph;
}

static void graph_destroy(const device_fixture *f, ladei_graph graph) {
  if (graph != NULL) LADE_EXPECT_OK(OPS(f)->graph_destroy(SELF(f), graph));
}

static void pool_begin(const device_fixture *f, lade_device_pool_id pool, int stream) {
  LADE_EXPECT_OK(lade_device_pool_begin(f->allocator, pool, &f->streams[stream], 1));
}

static uint64_t reserved(device_fixture *f) { return device_fixture_stats(f).reserved_bytes.all.current; }

static bool fixture_open(device_fixture *f, const char *name, bool expandable) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  options.expandable_segments = expandable;
  return device_fixture_open_bytes(f, name, &options);
}

/* ---- Scopes in captures ------------------------------------------------------------------------------------------ */

/* Nothing made the capture known to the pool: its blocks went to others while the graph named them, or never came back. */
LADE_TEST_P(DeviceCaptures, AScopeLeadsNoRequestOfACapture, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  lade_device_pool_id pool;
  uint64_t scopes[2] = {0, 0};
  void *none = NULL;
  if (!fixture_open(&f, name, false)) return;
  ladei_stream on = device_fixture_resolve(&f, 1);
  LADE_EXPECT_OK(lade_device_pool_create(f.allocator, NULL, &pool));
  for (int of_streams = 0; of_streams < 2; of_streams++) {
    lade_test_context("a scope of %s", of_streams ? "streams" : "a thread");
    capture_begin(&f, &on);
    char *plain = device_fixture_alloc(&f, 1000, 1); /* of the default pools */
    if (of_streams)
      LADE_EXPECT_OK(lade_device_scope_begin(f.allocator, pool, NULL, 0, &scopes[0]));
    else
      LADE_EXPECT_OK(lade_device_scope_begin(f.allocator, pool, NULL, LADE_DEVICE_SCOPE_THREAD, &scopes[0]));
    LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_alloc(f.allocator, 1000, f.streams[1], &none));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "expected lade_device_pool_begin()");
    device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0)); /* in no capture */
    pool_begin(&f, pool, 2);                                    /* known: a stream of it is enough */
    LADE_EXPECT_OK(lade_device_scope_begin(f.allocator, pool, NULL, LADE_DEVICE_SCOPE_THREAD, &scopes[1]));
    char *known = device_fixture_alloc(&f, 1000, 1);
    device_fixture_free(&f, known);
    LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 1), known);
    device_fixture_free(&f, known);
    LADE_EXPECT_OK(lade_device_scope_end(f.allocator, scopes[1]));
    LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool));
    LADE_EXPECT_OK(lade_device_scope_end(f.allocator, scopes[0]));
    graph_destroy(&f, capture_end(&f, &on));
    device_fixture_free(&f, plain);
    LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool)); /* the capture's use */
  }
  lade_test_context("%s", "");
  LADE_EXPECT_EQ_PTR(none, NULL);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_close(&f);
}

/* PyTorch's use_mem_pool takes them; the newest of what takes a stream leads. */
LADE_TEST_P(DeviceCaptures, AScopeLeadsRequestsOfACaptureInTheReference, SUPPORT_RUNTIMES, name) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_REFERENCE;
  device_fixture f;
  lade_device_pool_id pool;
  uint64_t scope = 0;
  if (!device_fixture_open_bytes(&f, name, &options)) return;
  ladei_stream on = device_fixture_resolve(&f, 1);
  LADE_EXPECT_OK(lade_device_pool_create(f.allocator, NULL, &pool));
  pool_begin(&f, pool_one, 1);
  capture_begin(&f, &on);
  LADE_EXPECT_OK(lade_device_scope_begin(f.allocator, pool, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
  void *inner = device_fixture_alloc(&f, 1000, 1);
  LADE_EXPECT(device_fixture_pool_has(f.allocator, pool, &inner, 1));
  LADE_EXPECT_OK(lade_device_scope_end(f.allocator, scope));
  void *outer = device_fixture_alloc(&f, 1000, 1);
  LADE_EXPECT(device_fixture_pool_has(f.allocator, pool_one, &outer, 1));
  graph_destroy(&f, capture_end(&f, &on));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  device_fixture_free(&f, inner);
  device_fixture_free(&f, outer);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_close(&f);
}

/* ---- Hazard H9: uses noted while anybody captures ----------------------------------------------------------------- */

LADE_TEST_P(hazard_H09, StreamThatDoesNotCaptureIsWaitedFor, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  support_stream_hold hold;
  char *used, *other;
  if (!device_fixture_use_open(&f, name, &hold, &used, &other)) return;
  ladei_stream on = device_fixture_resolve(&f, 2);
  capture_begin(&f, &on);
  pool_begin(&f, pool_one, 2);
  device_fixture_fill(&f, used, 1, 1000, 1); /* runs when the hold ends */
  device_fixture_record(&f, used, 1);
  device_fixture_free(&f, used);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  graph_destroy(&f, capture_end(&f, &on));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  device_fixture_use_close(&f, &hold, used, other);
}

/* ... and need not wait for the end of a capture that it has no part in. */
LADE_TEST_P(hazard_H09, BlocksComeBackBesideACapture, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  support_stream_hold hold;
  char *used, *other;
  if (!device_fixture_use_open(&f, name, &hold, &used, &other)) return;
  ladei_stream on = device_fixture_resolve(&f, 2);
  pool_begin(&f, pool_one, 2);
  capture_begin(&f, &on);
  device_fixture_record(&f, used, 1);
  device_fixture_free(&f, used);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), other);
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(f.runtime, f.streams[1]));
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), used);
  graph_destroy(&f, capture_end(&f, &on));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  device_fixture_free(&f, used);
  device_fixture_free(&f, other);
  device_fixture_close(&f);
}

typedef struct block_wait {
  device_fixture *f;
  char *expected;
  bool got;
} block_wait;

static bool block_is_back(void *user) {
  block_wait *wait = user;
  void *got = NULL;
  LADE_EXPECT_OK(lade_device_alloc(wait->f->allocator, 1000, wait->f->streams[0], &got));
  wait->got = got == wait->expected;
  if (!wait->got) LADE_EXPECT_OK(lade_device_free(wait->f->allocator, got));
  return wait->got;
}

/* Of two captures at once only one goes into the private pool. What the other one uses lasts as long as its graph. */
LADE_TEST_P(hazard_H09, UseInAnotherCaptureLastsAsLongAsItsGraph, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, false)) return;
  char *used = device_fixture_alloc(&f, 1000, 0);
  ladei_stream on = device_fixture_resolve(&f, 2), other = device_fixture_resolve(&f, 1);
  pool_begin(&f, pool_one, 2);
  capture_begin(&f, &on);
  capture_begin(&f, &other);
  device_fixture_fill(&f, used, 1, 1000, 1);
  device_fixture_record(&f, used, 1);
  device_fixture_free(&f, used);
  graph_destroy(&f, capture_end(&f, &on));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  ladei_graph graph = capture_end(&f, &other);
  char *next = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_NE_PTR(next, used);
  device_fixture_free(&f, next);
  LADE_EXPECT_STATUS(LADE_NOT_READY,
                     lade_device_allocator_destroy(f.allocator, true)); /* nobody can wait for a graph */
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "1 freed blocks are still in use");
  graph_destroy(&f, graph);
  block_wait wait = {&f, used, false};
  LADE_EXPECT(support_wait(f.runtime, block_is_back, &wait));
  if (wait.got) device_fixture_free(&f, used);
  device_fixture_close(&f);
}

/* A stream that has joined the capture of stream 0. */
typedef struct side_stream {
  ladei_stream origin, side;
  lade_event forked, joined;
} side_stream;

static side_stream side_begin(const device_fixture *f) {
  side_stream s = {device_fixture_resolve(f, 0), device_fixture_resolve(f, 1), NULL, NULL};
  LADE_EXPECT_OK(lade_event_create(f->runtime, 0, &s.forked));
  LADE_EXPECT_OK(lade_event_create(f->runtime, 0, &s.joined));
  capture_begin(f, &s.origin);
  LADE_EXPECT_OK(OPS(f)->event_record(SELF(f), s.forked, &s.origin));
  LADE_EXPECT_OK(OPS(f)->stream_wait_event(SELF(f), &s.side, s.forked));
  return s;
}

static ladei_graph side_end(const device_fixture *f, const side_stream *s) {
  LADE_EXPECT_OK(OPS(f)->event_record(SELF(f), s->joined, &s->side));
  LADE_EXPECT_OK(OPS(f)->stream_wait_event(SELF(f), &s->origin, s->joined));
  ladei_graph graph = capture_end(f, &s->origin);
  LADE_EXPECT_OK(lade_event_destroy(f->runtime, s->forked));
  LADE_EXPECT_OK(lade_event_destroy(f->runtime, s->joined));
  return graph;
}

/* Within the capture nothing orders the two streams; after it the graph does. */
LADE_TEST_P(DeviceCaptures, UsesInTheOwnCaptureEndWithIt, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, false)) return;
  pool_begin(&f, pool_one, 0);
  side_stream s = side_begin(&f);
  char *a = device_fixture_alloc(&f, 1000, 0);
  device_fixture_fill(&f, a, 1, 1000, 1);
  device_fixture_record(&f, a, 1);
  device_fixture_free(&f, a);
  char *b = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_NE_PTR(b, a);
  ladei_graph graph = side_end(&f, &s);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));

  pool_begin(&f, pool_one, 0); /* the next graph, while the first one lives */
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), a);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  graph_destroy(&f, graph);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  device_fixture_close(&f);
}

/* Whether a capture is under way was read before the lock, so a thread that had seen none settled the frees of one. */
LADE_TEST_P(DeviceCaptures, DeferredFreesOfARunningCaptureStay, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, false)) return;
  pool_begin(&f, pool_one, 0);
  side_stream s = side_begin(&f);
  char *a = device_fixture_alloc(&f, 1000, 0);
  device_fixture_fill(&f, a, 1, 1000, 1);
  device_fixture_record(&f, a, 1);
  device_fixture_free(&f, a);
  ladei_device_uses_settle_deferred(f.allocator); /* of that thread */
  device_fixture_check(&f);
  pool_begin(&f, pool_two, 3); /* another capture comes and goes */
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_two));
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 2));
  char *b = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_NE_PTR(b, a);
  graph_destroy(&f, side_end(&f, &s));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_two));
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

/* ---- Giving memory back -------------------------------------------------------------------------------------------- */

/* Cached memory of two streams, the first of which captures. */
static void spare_capturing(const char *name, bool expandable) {
  device_fixture f;
  if (!fixture_open(&f, name, expandable)) return;
  char *a = device_fixture_alloc(&f, 12 * MIB, 0), *b = device_fixture_alloc(&f, 12 * MIB, 1);
  uint64_t each = reserved(&f) / 2;
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  ladei_stream on = device_fixture_resolve(&f, 0);
  capture_begin(&f, &on);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(reserved(&f), each);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).capture_kept, 1);
  graph_destroy(&f, capture_end(&f, &on));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(reserved(&f), 0);
  device_fixture_close(&f);
}

LADE_TEST_P(DeviceCaptures, EmptyCacheSparesTheMemoryOfCapturingStreams, SUPPORT_RUNTIMES, name) {
  spare_capturing(name, false);
}

LADE_TEST_P(DeviceCaptures, EmptyCacheSparesExpandableMemoryOfCapturingStreams, SUPPORT_RUNTIMES, name) {
  spare_capturing(name, true);
}

/* The device was waited for, which breaks every capture on it. */
static void retired_goes(const char *name, bool expandable) {
  device_fixture f;
  if (!fixture_open(&f, name, expandable)) return;
  char *a = device_fixture_alloc(&f, 12 * MIB, 3);
  device_fixture_fill(&f, a, 1, 12 * MIB, 3);
  device_fixture_free(&f, a);
  LADE_EXPECT_OK(lade_device_stream_retire(f.allocator, f.streams[3]));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, f.streams[3]));
  f.streams[3] = NULL;
  ladei_stream on = device_fixture_resolve(&f, 0);
  pool_begin(&f, pool_one, 0);
  capture_begin(&f, &on);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(reserved(&f), 0);
  graph_destroy(&f, capture_end(&f, &on));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "device_synchronize"), 0);
  device_fixture_close(&f);
}

LADE_TEST_P(DeviceCaptures, MemoryOfRetiredStreamsGoesWithoutTheDevice, SUPPORT_RUNTIMES, name) {
  retired_goes(name, false);
}

LADE_TEST_P(DeviceCaptures, ExpandableMemoryOfRetiredStreamsGoesWithoutTheDevice, SUPPORT_RUNTIMES, name) {
  retired_goes(name, true);
}

/* A stream destroyed without retirement: only the device knows, and is not asked while the allocator knows of a capture. */
LADE_TEST_P(DeviceCaptures, MemoryOfStreamsThatWereNotRetiredStays, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, false)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 12 * MIB, 3));
  ladei_stream on = device_fixture_resolve(&f, 0);
  bool software = f.runtime->software_device != NULL;
  if (software) { /* of a driver one cannot be sure that it notices */
    LADE_EXPECT_OK(lade_stream_destroy(f.runtime, f.streams[3]));
    f.streams[3] = NULL;
  }
  pool_begin(&f, pool_one, 0);
  capture_begin(&f, &on);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, software ? 1 : 0);
  graph_destroy(&f, capture_end(&f, &on));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(reserved(&f), 0);
  device_fixture_close(&f);
}

/* A blocking stream of the device. */
static ladei_stream blocking_create(const device_fixture *f) {
  lade_stream handle = NULL;
  ladei_stream stream = {0};
  LADE_EXPECT_OK(OPS(f)->stream_create(SELF(f), 0, 0, 0, &handle));
  LADE_EXPECT_OK(OPS(f)->stream_resolve(SELF(f), handle, &stream));
  return stream;
}

static void raw_cached(const device_fixture *f, lade_stream stream) {
  void *a = NULL;
  LADE_EXPECT_OK(lade_device_alloc(f->allocator, 12 * MIB, stream, &a));
  LADE_EXPECT_OK(lade_device_free(f->allocator, a));
}

static void *empty_cache_elsewhere(void *user) {
  device_fixture *f = user;
  LADE_EXPECT_OK(lade_device_empty_cache(f->allocator));
  return NULL;
}

static void empty_in_thread(device_fixture *f) {
  pthread_t thread;
  LADE_ASSERT(pthread_create(&thread, NULL, empty_cache_elsewhere, f) == 0);
  pthread_join(thread, NULL);
}

/* Memory of `stream` stays while a blocking stream captures, and goes while another one does. */
static void legacy_run(const char *name, lade_stream stream, void (*empty)(device_fixture *f)) {
  device_fixture f;
  if (!fixture_open(&f, name, false)) return;
  ladei_stream blocking = blocking_create(&f), on = device_fixture_resolve(&f, 0);
  raw_cached(&f, stream);
  capture_begin(&f, &blocking);
  empty(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 1);
  graph_destroy(&f, capture_end(&f, &blocking));
  capture_begin(&f, &on);
  empty(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 0);
  graph_destroy(&f, capture_end(&f, &on));
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "device_synchronize"), 0);
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, blocking.handle));
  device_fixture_close(&f);
}

/* A question to the legacy stream breaks captures of blocking streams, not others. */
LADE_TEST_P(DeviceCaptures, MemoryOfTheLegacyStreamStaysBesideABlockingCapture, SUPPORT_RUNTIMES, name) {
  legacy_run(name, NULL, device_fixture_empty_cache);
}

/* Another thread cannot name this thread's own stream. The device was waited for. */
LADE_TEST_P(DeviceCaptures, MemoryOfAThreadsOwnStreamGoesByTheLegacyStream, SUPPORT_RUNTIMES, name) {
  legacy_run(name, LADE_STREAM_PER_THREAD, empty_in_thread);
}

LADE_TEST_P(DeviceCaptures, CapturingStreamWithMemoryIsNotRetired, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, false)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 3));
  ladei_stream on = device_fixture_resolve(&f, 3);
  capture_begin(&f, &on);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_stream_retire(f.allocator, f.streams[3]));
  graph_destroy(&f, capture_end(&f, &on));
  LADE_EXPECT_OK(lade_device_stream_retire(f.allocator, f.streams[3]));
  device_fixture_close(&f);
}

typedef struct pool_beginner {
  device_fixture *f;
  atomic_bool begun;
} pool_beginner;

static void *pool_begin_elsewhere(void *user) {
  pool_beginner *beginner = user;
  pool_begin(beginner->f, pool_one, 0);
  atomic_store(&beginner->begun, true);
  return NULL;
}

/* From the begin of the pool on, before the capture itself, nobody asks its stream; and begin waits for who does. */
LADE_TEST_P(DeviceCaptures, StreamsThatAPoolNamesAreNotAsked, SUPPORT_THREADED_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name, false)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 12 * MIB, 0));
  pool_beginner beginner = {.f = &f};
  pthread_t emptying, beginning;
  support_hold(f.runtime, "event_query", 1, SUPPORT_HOLD_BEFORE);
  LADE_ASSERT(pthread_create(&emptying, NULL, empty_cache_elsewhere, &f) == 0);
  support_hold_await(f.runtime);
  LADE_ASSERT(pthread_create(&beginning, NULL, pool_begin_elsewhere, &beginner) == 0);
  while (atomic_load(&f.allocator->routes.captures) == 0) sched_yield();
  for (int i = 0; i < 1000; i++) sched_yield();
  LADE_EXPECT(!atomic_load(&beginner.begun)); /* the question is under way */
  support_hold_end(f.runtime);
  pthread_join(emptying, NULL);
  pthread_join(beginning, NULL);
  LADE_EXPECT_EQ_UINT(reserved(&f), 0);

  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  device_fixture_free(&f, device_fixture_alloc(&f, 12 * MIB, 0));
  pool_begin(&f, pool_one, 0);
  uint64_t asked = support_call_count(f.runtime, "event_query");
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "event_query"), asked);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).capture_kept, 1);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  device_fixture_close(&f);
}

/* ---- Requests in a capture ---------------------------------------------------------------------------------------- */

/* A cap of 30 MiB; 12 MiB cached on stream 0, which captures into a pool, and on stream 1. */
static void retry_in_capture(const char *name, uint32_t flags, lade_status expected) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_bytes = 30 * MIB;
  options.flags = flags;
  device_fixture f;
  if (!device_fixture_open_bytes(&f, name, &options)) return;
  char *a = device_fixture_alloc(&f, 12 * MIB, 0), *b = device_fixture_alloc(&f, 12 * MIB, 1);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  ladei_stream on = device_fixture_resolve(&f, 0);
  void *c = NULL, *d = NULL;
  pool_begin(&f, pool_one, 0);
  capture_begin(&f, &on);
  LADE_EXPECT_STATUS(expected, lade_device_alloc(f.allocator, 14 * MIB, f.streams[0], &c));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_device_alloc(f.allocator, 16 * MIB, f.streams[0], &d));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, expected == LADE_OK ? "12.00 MiB stayed cached, as giving them back"
                                                                        : "a capture forbids giving the cache back");
  graph_destroy(&f, capture_end(&f, &on));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  if (c != NULL) device_fixture_free(&f, c);
  device_fixture_close(&f);
}

LADE_TEST_P(DeviceCaptures, ShortageGivesBackWhatBreaksNoCapture, SUPPORT_RUNTIMES, name) {
  retry_in_capture(name, 0, LADE_OK);
}

LADE_TEST_P(DeviceCaptures, ShortageGivesNothingBackInTheReference, SUPPORT_RUNTIMES, name) {
  retry_in_capture(name, LADE_DEVICE_REFERENCE, LADE_ERR_LIMIT);
}

LADE_TEST_P(DeviceCaptures, CollectionSparesCapturingStreams, SUPPORT_RUNTIMES, name) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.collection_threshold = 0.25;
  device_fixture f;
  if (!device_fixture_open_bytes(&f, name, &options)) return;
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, (double)(64 * MIB) / (double)f.allocator->total_bytes));
  device_fixture_free(&f, device_fixture_alloc(&f, 12 * MIB, 0));
  device_fixture_free(&f, device_fixture_alloc(&f, 12 * MIB, 1));
  ladei_stream on = device_fixture_resolve(&f, 0);
  capture_begin(&f, &on);
  char *a = device_fixture_alloc(&f, 14 * MIB, 2);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).capture_kept, 1);
  graph_destroy(&f, capture_end(&f, &on));
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}
