/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single graphs on every runtime: captures and what may go wrong in their code, launches, updates, graphs of the program's.
 */
#include <string.h>

#include "device/state/tally.h"
#include "lade/graph.h"
#include "lade/pinned.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

enum { BYTES = 100000 };

/* What a capture's code does: fills a block of its own and copies it to `target`. */
typedef struct work {
  device_fixture *f;
  char *target;
  unsigned char value;
  bool keeps;       /* its block is not freed ... */
  char *kept;       /* ... and is this one */
  int extra;        /* copies besides, so that the graph has other nodes */
  lade_status ends; /* what it returns */
} work;

static lade_status work_run(lade_stream stream, void *user) {
  work *w = user;
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(w->f->allocator, BYTES, stream, &block));
  LADE_EXPECT_OK(lade_fill_async(w->f->runtime, block, w->value, BYTES, stream));
  LADE_EXPECT_OK(lade_copy_async(w->f->runtime, w->target, block, BYTES, stream));
  for (int i = 0; i < w->extra; i++) LADE_EXPECT_OK(lade_copy_async(w->f->runtime, w->target, block, BYTES, stream));
  w->kept = block;
  if (!w->keeps) LADE_EXPECT_OK(lade_device_free(w->f->allocator, block));
  return w->ends;
}

static lade_graph_options options_of(const device_fixture *f) {
  lade_graph_options options;
  lade_graph_options_init(&options);
  options.stream = f->streams[0];
  return options;
}

static bool fixture_open(device_fixture *f, const char *name) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  return device_fixture_open_bytes(f, name, &options);
}

static uint64_t live_blocks(device_fixture *f) { return device_fixture_stats(f).allocation.all.current; }

static uint64_t users(const device_fixture *f) { return atomic_load(&f->allocator->users); }

static bool users_are_gone(void *user) { return users(user) == 0; }

/* The driver ends graphs on a thread of its own. */
static void expect_no_users(device_fixture *f) { LADE_EXPECT(support_wait(f->runtime, users_are_gone, f)); }

static lade_device_pool_info pool_info(device_fixture *f, lade_device_pool_id pool) {
  lade_device_pool_info info;
  lade_device_pool_info_init(&info);
  LADE_EXPECT_OK(lade_device_pool_info_get(f->allocator, pool, &info));
  return info;
}

static lade_graph_info graph_info(lade_graph *graph) {
  lade_graph_info info;
  lade_graph_info_init(&info);
  LADE_EXPECT_OK(lade_graph_info_get(graph, &info));
  return info;
}

/* Of a graph itself and of its pool. */
static bool one_use_is_left(void *user) { return users(user) == 2; }

/* Nothing of a capture is left: on the stream, in the allocator. */
static void expect_no_capture(device_fixture *f) {
  ladei_stream stream = device_fixture_resolve(f, 0);
  ladei_capture_info info = {.status = LADEI_CAPTURE_ACTIVE};
  LADE_EXPECT_OK(f->runtime->ops->stream_capture_info(f->runtime->self, &stream, &info));
  LADE_EXPECT_EQ_INT(info.status, LADEI_CAPTURE_NONE);
  LADE_EXPECT_EQ_UINT(atomic_load(&f->allocator->routes.captures), 0);
  LADE_EXPECT_EQ_PTR(f->allocator->routes.first, NULL);
  LADE_EXPECT_EQ_PTR(f->allocator->tallies.newest, NULL);
  LADE_EXPECT(!atomic_load(&f->allocator->attention.any));
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

LADE_TEST_P(SingleGraph, CapturesIntoAPoolOfItsOwnAndLaunches, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 7};
  device_fixture_fill(&f, w.target, 1, BYTES, 0);
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  expect_no_capture(&f);
  device_fixture_expect_bytes(&f, w.target, 1, BYTES, 0); /* nothing ran */
  lade_device_pool_id pool = graph_info(graph).pool;
  lade_device_pool_info info = pool_info(&f, pool);
  LADE_EXPECT_EQ_UINT(info.use_count, 1);
  LADE_EXPECT_EQ_UINT(info.allocated_bytes, 0);
  LADE_EXPECT_GE_UINT(info.reserved_bytes, BYTES);
  LADE_EXPECT_EQ_UINT(live_blocks(&f), 1);
  LADE_EXPECT_OK(lade_graph_upload(graph, f.streams[0]));
  for (int i = 0; i < 3; i++) {
    device_fixture_fill(&f, w.target, 2, BYTES, i);
    LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[i]));
    device_fixture_expect_bytes(&f, w.target, 7, BYTES, i);
  }
  LADE_EXPECT_EQ_UINT(graph_info(graph).launches, 3);
  LADE_EXPECT_EQ_UINT(graph_info(graph).node_count, 2);
  LADE_EXPECT_EQ_UINT(graph_info(graph).edge_count, 1);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT_EQ_UINT(users(&f), 0); /* and so the pool's use */
  device_fixture_empty_cache(&f);
  info.struct_size = sizeof info;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_info_get(f.allocator, pool, &info));
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

LADE_TEST_P(SingleGraph, WhatItsCodeLeavesAllocatedIsTheProgramsOwn, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 9, .keeps = true};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  LADE_EXPECT_EQ_UINT(live_blocks(&f), 2);
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  device_fixture_expect_bytes(&f, w.kept, 9, BYTES, 1);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  device_fixture_expect_bytes(&f, w.kept, 9, BYTES, 1);
  device_fixture_free(&f, w.kept);
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

LADE_TEST_P(SingleGraph, CapturesCodeWithoutACallback, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 3};
  lade_graph_options options = options_of(&f);
  lade_graph_capture_state *state = NULL;
  lade_graph *graph = NULL;
  LADE_ASSERT_OK(lade_graph_capture_begin(f.allocator, &options, &state));
  LADE_EXPECT_OK(work_run(f.streams[0], &w));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(f.allocator, false));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_capture_end(state, NULL));
  LADE_ASSERT_OK(lade_graph_capture_end(state, &graph));
  expect_no_capture(&f);
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[0]));
  device_fixture_expect_bytes(&f, w.target, 3, BYTES, 0);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));

  w.keeps = true;
  LADE_ASSERT_OK(lade_graph_capture_begin(f.allocator, &options, &state));
  LADE_EXPECT_OK(work_run(f.streams[0], &w));
  LADE_EXPECT_EQ_UINT(live_blocks(&f), 2);
  LADE_EXPECT_OK(lade_graph_capture_abort(state));
  expect_no_capture(&f);
  LADE_EXPECT_EQ_UINT(live_blocks(&f), 1);
  LADE_EXPECT_EQ_UINT(users(&f), 0);
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

/* Freed memory of one capture serves the next one into the same pool; what was not freed does not. */
LADE_TEST_P(SingleGraph, GraphsOfOnePoolShareWhatTheyFreed, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  work a = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 1}, b = a;
  lade_graph_options options = options_of(&f);
  lade_graph *first = NULL, *second = NULL, *third = NULL;
  options.pool = (lade_device_pool_id){5, 6};
  b.value = 2;
  b.keeps = true;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &a, &first));
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &b, &second));
  LADE_EXPECT_EQ_PTR(b.kept, a.kept);
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &a, &third));
  LADE_EXPECT_NE_PTR(b.kept, a.kept);
  LADE_EXPECT_EQ_UINT(pool_info(&f, options.pool).use_count, 3);
  LADE_EXPECT_OK(lade_graph_launch(second, f.streams[0]));
  device_fixture_expect_bytes(&f, b.target, 2, BYTES, 0);
  LADE_EXPECT_OK(lade_graph_launch(third, f.streams[0]));
  device_fixture_expect_bytes(&f, b.target, 1, BYTES, 0);
  device_fixture_expect_bytes(&f, b.kept, 2, BYTES, 0);
  LADE_EXPECT_OK(lade_graph_destroy(first, true));
  LADE_EXPECT_OK(lade_graph_destroy(third, true));
  LADE_EXPECT_EQ_UINT(pool_info(&f, options.pool).use_count, 1);
  LADE_EXPECT_OK(lade_graph_destroy(second, true));
  device_fixture_free(&f, b.kept);
  device_fixture_free(&f, a.target);
  device_fixture_close(&f);
}

/* ---- What its code may do wrong ---------------------------------------------------------------------------------- */

/* After each of these the capture fails, and nothing is left of it. */
typedef enum misconduct {
  RETURNS_AN_ERROR,
  SYNCHRONISES,
  FORKS_WITHOUT_JOIN,
  ALLOCATES_ELSEWHERE,
  FREES_ANOTHER_POOLS_BLOCK,
  FREES_AN_OLDER_BLOCK,
  ENDS_THE_POOL,
  ENDS_THE_CAPTURE,
  ROUTES_ELSEWHERE,
  CAPTURES_AGAIN,
  CONDUCT_COUNT
} misconduct;

typedef struct misbehaviour {
  work work;
  misconduct conduct;
  char *older; /* of the pool, from before the capture */
  lade_event fork;
  lade_device_pool_id pool;
} misbehaviour;

static const struct {
  lade_status status;
  const char *words;
} expected[CONDUCT_COUNT] = {
    [RETURNS_AN_ERROR] = {LADE_ERR_CALLBACK, "returned LADE_ERR_LIMIT; expected LADE_OK"},
    [SYNCHRONISES] = {LADE_ERR_CAPTURE, "made it invalid"},
    [FORKS_WITHOUT_JOIN] = {LADE_ERR_CAPTURE, "capture_end"},
    [ALLOCATES_ELSEWHERE] = {LADE_ERR_CAPTURE, "name the stream in options.streams"},
    [FREES_ANOTHER_POOLS_BLOCK] = {LADE_ERR_CAPTURE, "was not allocated in the capture whose code frees it"},
    [FREES_AN_OLDER_BLOCK] = {LADE_ERR_CAPTURE, "was not allocated in the capture whose code frees it"},
    [ENDS_THE_POOL] = {LADE_ERR_CAPTURE, "ended its pool"},
    [ENDS_THE_CAPTURE] = {LADE_ERR_CAPTURE, "ended before by its own code"},
    [ROUTES_ELSEWHERE] = {LADE_ERR_CAPTURE, "the memory is of pool (9, 9)"},
    [CAPTURES_AGAIN] = {LADE_ERR_CALLBACK, "a capture into it is under way"},
};

static lade_status misbehave(lade_stream stream, void *user) {
  misbehaviour *m = user;
  device_fixture *f = m->work.f;
  const lade_runtime_ops *ops = f->runtime->ops;
  ladei_stream on = device_fixture_resolve(f, 0);
  ladei_graph native;
  lade_graph *graph = NULL;
  lade_graph_options options = options_of(f);
  void *block = NULL;
  uint64_t scope = 0;
  LADE_EXPECT_OK(work_run(stream, &m->work)); /* leaves a block, and a use of a side stream */
  switch (m->conduct) {
  case RETURNS_AN_ERROR: return LADE_ERR_LIMIT;
  case SYNCHRONISES: /* as a library does, that does not ask lade */
    LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, ops->stream_synchronize(f->runtime->self, &on));
    break;
  case FORKS_WITHOUT_JOIN:
    LADE_EXPECT_OK(lade_event_record(f->runtime, m->fork, stream));
    LADE_EXPECT_OK(lade_stream_wait_event(f->runtime, f->streams[1], m->fork));
    LADE_EXPECT_OK(lade_fill_async(f->runtime, m->work.target, 1, BYTES, f->streams[1]));
    break;
  case ALLOCATES_ELSEWHERE:
    LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_alloc(f->allocator, BYTES, f->streams[2], &block));
    LADE_EXPECT_EQ_PTR(block, NULL);
    break;
  case FREES_ANOTHER_POOLS_BLOCK:
    LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_free(f->allocator, m->work.target));
    break;
  case FREES_AN_OLDER_BLOCK: LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_free(f->allocator, m->older)); break;
  case ENDS_THE_POOL: LADE_EXPECT_OK(lade_device_pool_end(f->allocator, m->pool)); break;
  case ENDS_THE_CAPTURE:
    LADE_EXPECT_OK(ops->capture_end(f->runtime->self, &on, &native));
    LADE_EXPECT_OK(ops->graph_destroy(f->runtime->self, native));
    break;
  case ROUTES_ELSEWHERE: {
    lade_device_pool_options other;
    lade_device_pool_id id;
    lade_device_pool_options_init(&other);
    other.id = (lade_device_pool_id){9, 9};
    LADE_EXPECT_OK(lade_device_pool_create(f->allocator, &other, &id));
    LADE_EXPECT_OK(lade_device_scope_begin(f->allocator, id, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
    LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_alloc(f->allocator, BYTES, stream, &block));
    LADE_EXPECT_OK(lade_device_scope_end(f->allocator, scope));
    LADE_EXPECT_OK(lade_device_pool_release(f->allocator, id));
    break;
  }
  case CAPTURES_AGAIN: /* into the same pool */
    options.pool = m->pool;
    return lade_graph_capture(f->allocator, &options, work_run, &m->work, &graph);
  case CONDUCT_COUNT: break;
  }
  return LADE_OK;
}

static void misbehaviour_open(device_fixture *f, misbehaviour *m, misconduct conduct) {
  lade_graph_options options = options_of(f);
  lade_graph *older = NULL;
  *m = (misbehaviour){.work = {.f = f, .target = device_fixture_alloc(f, BYTES, 0), .keeps = true, .value = 5},
                      .conduct = conduct,
                      .pool = {3, 4}};
  options.pool = m->pool;
  LADE_EXPECT_OK(lade_event_create(f->runtime, 0, &m->fork));
  LADE_EXPECT_OK(lade_graph_capture(f->allocator, &options, work_run, &m->work, &older));
  m->older = m->work.kept;
  LADE_EXPECT_OK(lade_device_pool_retain(f->allocator, m->pool));
  LADE_EXPECT_OK(lade_graph_destroy(older, true));
}

static void misbehaviour_close(device_fixture *f, misbehaviour *m) {
  LADE_EXPECT_OK(lade_device_pool_release(f->allocator, m->pool));
  LADE_EXPECT_OK(lade_event_destroy(f->runtime, m->fork));
  device_fixture_free(f, m->older);
  device_fixture_free(f, m->work.target);
  device_fixture_close(f);
}

static void misbehaves(const char *name, misconduct conduct) {
  device_fixture f;
  misbehaviour m;
  if (!fixture_open(&f, name)) return;
  misbehaviour_open(&f, &m, conduct);
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  options.pool = m.pool;
  lade_test_context("conduct %d", (int)conduct);
  LADE_EXPECT_STATUS(expected[conduct].status, lade_graph_capture(f.allocator, &options, misbehave, &m, &graph));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, expected[conduct].words);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "lade_graph_capture: ");
  LADE_EXPECT_EQ_PTR(graph, NULL);
  expect_no_capture(&f);
  LADE_EXPECT_EQ_UINT(live_blocks(&f), 2);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 2);
  expect_no_users(&f);
  LADE_EXPECT_EQ_UINT(pool_info(&f, m.pool).use_count, 1);
  LADE_EXPECT_EQ_UINT(pool_info(&f, m.pool).capturing, 0);
  lade_test_context("%s", "");
  /* Everything works as before. */
  m.work.keeps = false;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &m.work, &graph));
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[0]));
  device_fixture_expect_bytes(&f, m.work.target, 5, BYTES, 0);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  misbehaviour_close(&f, &m);
}

LADE_TEST_P(SingleGraph, EachMisbehaviourOfItsCodeIsNamedAndLeavesNothing, SUPPORT_RUNTIMES, name) {
  for (int conduct = 0; conduct < CONDUCT_COUNT; conduct++) misbehaves(name, (misconduct)conduct);
}

/* A forked stream whose allocations belong to the capture, and a use on it of a block that is left when the code fails. */
typedef struct forks {
  work work;
  lade_event forked, joined;
  char *block;
} forks;

static lade_status fork_run(lade_stream stream, void *user) {
  forks *s = user;
  device_fixture *f = s->work.f;
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(f->allocator, BYTES, f->streams[1], &block));
  LADE_EXPECT_OK(lade_event_record(f->runtime, s->forked, stream));
  LADE_EXPECT_OK(lade_stream_wait_event(f->runtime, f->streams[1], s->forked));
  LADE_EXPECT_OK(lade_fill_async(f->runtime, block, s->work.value, BYTES, f->streams[1]));
  LADE_EXPECT_OK(lade_event_record(f->runtime, s->joined, f->streams[1]));
  LADE_EXPECT_OK(lade_stream_wait_event(f->runtime, stream, s->joined));
  LADE_EXPECT_OK(lade_copy_async(f->runtime, s->work.target, block, BYTES, stream));
  LADE_EXPECT_OK(lade_device_record_stream(f->allocator, block, stream));
  if (s->work.ends == LADE_OK) LADE_EXPECT_OK(lade_device_free(f->allocator, block));
  return s->work.ends;
}

LADE_TEST_P(SingleGraph, ForkedStreamsAllocateFromThePoolWhereTheyAreNamed, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  forks s = {.work = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 4}};
  LADE_EXPECT_OK(lade_event_create(f.runtime, 0, &s.forked));
  LADE_EXPECT_OK(lade_event_create(f.runtime, 0, &s.joined));
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  options.streams = &f.streams[1];
  options.stream_count = 1;
  s.work.ends = LADE_ERR_IO;
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, lade_graph_capture(f.allocator, &options, fork_run, &s, &graph));
  expect_no_capture(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 1); /* its use ended with the capture */
  s.work.ends = LADE_OK;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, fork_run, &s, &graph));
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[3]));
  device_fixture_expect_bytes(&f, s.work.target, 4, BYTES, 3);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT_OK(lade_event_destroy(f.runtime, s.forked));
  LADE_EXPECT_OK(lade_event_destroy(f.runtime, s.joined));
  device_fixture_free(&f, s.work.target);
  device_fixture_close(&f);
}

/* The code of a capture captures: on a stream and into a pool of its own. */
typedef struct nest {
  work outer, inner;
  lade_graph *graph;
} nest;

static lade_status nest_run(lade_stream stream, void *user) {
  nest *n = user;
  device_fixture *f = n->outer.f;
  void *mine = NULL, *theirs = NULL;
  lade_graph_capture_state *state = NULL;
  lade_graph_options options = options_of(f);
  options.stream = f->streams[2];
  LADE_EXPECT_OK(lade_device_alloc(f->allocator, 1000, stream, &mine));
  LADE_EXPECT_OK(lade_graph_capture_begin(f->allocator, &options, &state));
  LADE_EXPECT_OK(work_run(f->streams[2], &n->inner));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE,
                     lade_device_alloc(f->allocator, 1000, stream, &theirs)); /* the inner one is judged */
  LADE_EXPECT_OK(lade_graph_capture_abort(state));
  LADE_EXPECT_OK(lade_graph_capture(f->allocator, &options, work_run, &n->inner, &n->graph));
  LADE_EXPECT_OK(lade_device_free(f->allocator, mine));
  return work_run(stream, &n->outer);
}

LADE_TEST_P(SingleGraph, CapturesWithinACapture, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  nest n = {.outer = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 1},
            .inner = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 2}};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, nest_run, &n, &graph));
  expect_no_capture(&f);
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[0]));
  LADE_EXPECT_OK(lade_graph_launch(n.graph, f.streams[1]));
  device_fixture_expect_bytes(&f, n.outer.target, 1, BYTES, 0);
  device_fixture_expect_bytes(&f, n.inner.target, 2, BYTES, 1);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT_OK(lade_graph_destroy(n.graph, true));
  LADE_EXPECT_EQ_UINT(live_blocks(&f), 2);
  device_fixture_free(&f, n.outer.target);
  device_fixture_free(&f, n.inner.target);
  device_fixture_close(&f);
}

LADE_TEST_P(SingleGraph, RefusesArguments, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  lade_graph_options options;
  lade_graph *graph = NULL;
  work w = {.f = &f};
  lade_graph_options_init(&options);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "options.stream is NULL");
  options.stream = LADE_STREAM_LEGACY;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "legacy default stream");
  options = options_of(&f);
  options.strictness = 3;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  options = options_of(&f);
  options.flags = LADE_GRAPH_BORROW_NATIVE;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  options = options_of(&f);
  options.stream_count = 64;
  options.streams = f.streams;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  options.streams = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_capture(NULL, &options, work_run, &w, &graph));
  options = options_of(&f);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_capture(f.allocator, &options, NULL, &w, &graph));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_capture(f.allocator, &options, work_run, &w, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_graph_adopt(f.allocator, (lade_device_pool_id){0, 0}, NULL, NULL, &graph));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_launch(NULL, f.streams[0]));
  LADE_EXPECT_OK(lade_graph_destroy(NULL, true));
  LADE_EXPECT_OK(lade_graph_capture_abort(NULL));
  LADE_EXPECT_EQ_PTR(graph, NULL);
  LADE_EXPECT_EQ_UINT(users(&f), 0);
  expect_no_capture(&f);
  device_fixture_close(&f);
}

LADE_TEST_P(SingleGraph, CapturesWhereNothingElseIsCached, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  lade_device_options device;
  lade_device_options_init(&device);
  device.flags = LADE_DEVICE_UNCACHED;
  if (!device_fixture_open_bytes(&f, name, &device)) return;
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 7};
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  LADE_EXPECT_GE_UINT(pool_info(&f, graph_info(graph).pool).reserved_bytes, BYTES);
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[0]));
  device_fixture_expect_bytes(&f, w.target, 7, BYTES, 0);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(SingleGraph, LaunchesUnderWayEndAfterItsDestruction, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  support_stream_hold hold;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 8};
  device_fixture_fill(&f, w.target, 1, BYTES, 1);
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[1]));
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  lade_device_pool_id pool = graph_info(graph).pool;
  if (!support_stream_hold_begin(&hold, f.runtime, f.streams[1])) return;
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  LADE_EXPECT_OK(lade_graph_destroy(graph, false));
  support_let_run(f.runtime);
  LADE_EXPECT_EQ_UINT(pool_info(&f, pool).use_count, 1); /* of the launch */
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(f.allocator, false));
  support_stream_hold_end(&hold);
  device_fixture_expect_bytes(&f, w.target, 8, BYTES, 1);
  expect_no_users(&f);
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

/* Whoever has made executable graphs of the native graph keeps the pool. */
LADE_TEST_P(SingleGraph, ExecutableGraphsOfTheProgramKeepThePool, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  const lade_runtime_ops *ops = f.runtime->ops;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 6};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  void *native = NULL;
  ladei_graph_exec exec = NULL;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  lade_device_pool_id pool = graph_info(graph).pool;
  LADE_EXPECT_OK(lade_graph_native(graph, &native, NULL));
  LADE_ASSERT_OK(ops->graph_instantiate(f.runtime->self, (ladei_graph)native, &exec));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  support_let_run(f.runtime);
  LADE_EXPECT_EQ_UINT(pool_info(&f, pool).use_count, 1);
  ladei_stream on = device_fixture_resolve(&f, 2);
  LADE_EXPECT_OK(ops->graph_launch(f.runtime->self, exec, &on));
  device_fixture_expect_bytes(&f, w.target, 6, BYTES, 2);
  LADE_EXPECT_OK(ops->graph_exec_destroy(f.runtime->self, exec));
  expect_no_users(&f);
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

static ladei_graph native_make(device_fixture *f, work *w) {
  ladei_stream on = device_fixture_resolve(f, 0);
  ladei_graph native = NULL;
  LADE_EXPECT_OK(f->runtime->ops->capture_begin(f->runtime->self, &on, LADEI_CAPTURE_THREAD_LOCAL));
  LADE_EXPECT_OK(lade_fill_async(f->runtime, w->target, w->value, BYTES, f->streams[0]));
  LADE_EXPECT_OK(f->runtime->ops->capture_end(f->runtime->self, &on, &native));
  return native;
}

LADE_TEST_P(SingleGraph, AdoptsGraphsOfTheProgram, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  lade_device_pool_id pool;
  lade_graph *graph = NULL;
  bool in_place;
  LADE_ASSERT_OK(lade_device_pool_create(f.allocator, NULL, &pool));
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 3};
  LADE_ASSERT_OK(lade_graph_adopt(f.allocator, pool, native_make(&f, &w), NULL, &graph));
  LADE_EXPECT_EQ_UINT(graph_info(graph).adopted, 1);
  LADE_EXPECT_EQ_UINT(pool_info(&f, pool).use_count, 2);
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[0]));
  device_fixture_expect_bytes(&f, w.target, 3, BYTES, 0);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_update(graph, work_run, &w, NULL)); /* no stream */
  w.value = 4;
  LADE_EXPECT_OK(lade_graph_update_native(graph, pool, native_make(&f, &w), &in_place));
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  device_fixture_expect_bytes(&f, w.target, 4, BYTES, 1);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  expect_no_users(&f); /* of the graph that was replaced: by the driver's thread */
  LADE_EXPECT_EQ_UINT(pool_info(&f, pool).use_count, 1);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_release(f.allocator, pool));
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

LADE_TEST_P(SingleGraph, AdoptsNoGraphOfAPoolThatLends, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  lade_device_pool_options options;
  lade_device_pool_id pool;
  lade_graph *graph = NULL;
  lade_device_pool_options_init(&options);
  options.flags = LADE_DEVICE_POOL_USE_ON_OOM;
  LADE_ASSERT_OK(lade_device_pool_create(f.allocator, &options, &pool));
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 3};
  ladei_graph native = native_make(&f, &w);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_adopt(f.allocator, pool, native, NULL, &graph));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "a pool that lends nothing");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_graph_adopt(f.allocator, (lade_device_pool_id){8, 8}, native, NULL, &graph));
  LADE_EXPECT_EQ_PTR(graph, NULL);
  LADE_EXPECT_EQ_UINT(pool_info(&f, pool).use_count, 1);
  LADE_EXPECT_OK(f.runtime->ops->graph_destroy(f.runtime->self, native)); /* it is the program's still */
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

LADE_TEST_P(SingleGraph, BorrowedGraphsKeepThePoolAsLongAsTheyLive, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  lade_device_pool_id pool;
  lade_graph *graph = NULL;
  lade_graph_options options;
  void *lent = &pool;
  lade_graph_options_init(&options);
  options.flags = LADE_GRAPH_BORROW_NATIVE;
  LADE_ASSERT_OK(lade_device_pool_create(f.allocator, NULL, &pool));
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 3};
  ladei_graph native = native_make(&f, &w);
  LADE_ASSERT_OK(lade_graph_adopt(f.allocator, pool, native, &options, &graph));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT_EQ_UINT(pool_info(&f, pool).use_count, 2);
  LADE_EXPECT_OK(f.runtime->ops->graph_destroy(f.runtime->self, native));
  expect_no_users(&f);
  LADE_EXPECT_EQ_UINT(pool_info(&f, pool).use_count, 1);

  /* Likewise across an update: each native graph for itself. */
  native = native_make(&f, &w);
  ladei_graph second = native_make(&f, &w);
  bool in_place = false;
  LADE_ASSERT_OK(lade_graph_adopt(f.allocator, pool, native, &options, &graph));
  LADE_EXPECT_OK(lade_graph_update_native(graph, pool, second, &in_place));
  LADE_EXPECT(in_place);
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[0]));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT_EQ_UINT(pool_info(&f, pool).use_count, 3);
  LADE_EXPECT_OK(f.runtime->ops->graph_destroy(f.runtime->self, native));
  LADE_EXPECT_OK(f.runtime->ops->graph_destroy(f.runtime->self, second));
  expect_no_users(&f);

  native = native_make(&f, &w); /* the program's goes first */
  LADE_ASSERT_OK(lade_graph_adopt(f.allocator, pool, native, &options, &graph));
  LADE_EXPECT_OK(lade_graph_native(graph, &lent, NULL));
  LADE_EXPECT_EQ_PTR(lent, NULL);
  LADE_EXPECT_OK(f.runtime->ops->graph_destroy(f.runtime->self, native));
  support_let_run(f.runtime);
  LADE_EXPECT_EQ_UINT(pool_info(&f, pool).use_count, 2);
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[0]));
  device_fixture_expect_bytes(&f, w.target, 3, BYTES, 0);
  LADE_EXPECT_OK(lade_graph_destroy(graph, false));
  expect_no_users(&f);
  LADE_EXPECT_EQ_UINT(pool_info(&f, pool).use_count, 1);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

/* ---- Updates ----------------------------------------------------------------------------------------------------- */

LADE_TEST_P(SingleGraph, UpdatesTellWhetherTheyWereInPlace, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 1};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  bool in_place;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  lade_device_pool_id pool = graph_info(graph).pool;
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  w.value = 2;
  LADE_ASSERT_OK(lade_graph_update(graph, work_run, &w, &in_place));
  LADE_EXPECT(in_place); /* another value in the same nodes */
  expect_no_capture(&f);
  LADE_EXPECT(support_wait(f.runtime, one_use_is_left, &f)); /* the former capture's went with it */
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[2]));
  device_fixture_expect_bytes(&f, w.target, 2, BYTES, 2);
  w.value = 3;
  w.extra = 1; /* another node */
  LADE_ASSERT_OK(lade_graph_update(graph, work_run, &w, &in_place));
  LADE_EXPECT(!in_place);
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[3]));
  device_fixture_expect_bytes(&f, w.target, 3, BYTES, 3);
  lade_graph_info info = graph_info(graph);
  LADE_EXPECT_EQ_UINT(info.updates, 1);
  LADE_EXPECT_EQ_UINT(info.replacements, 1);
  LADE_EXPECT(info.pool.first == pool.first && info.pool.second == pool.second);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT_EQ_UINT(users(&f), 0);
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

LADE_TEST_P(SingleGraph, UpdatesCodeWithoutACallback, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 1};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL, *other = NULL;
  lade_graph_capture_state *state = NULL, *second = NULL;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  LADE_ASSERT_OK(lade_graph_update_begin(graph, &state));
  w.value = 2;
  LADE_EXPECT_OK(work_run(f.streams[0], &w));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_destroy(graph, false));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_graph_update_begin(graph, &second));
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1])); /* as it was */
  device_fixture_expect_bytes(&f, w.target, 1, BYTES, 1);
  LADE_EXPECT_OK(lade_graph_capture_end(state, &other));
  LADE_EXPECT_EQ_PTR(other, graph);
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  device_fixture_expect_bytes(&f, w.target, 2, BYTES, 1);
  LADE_ASSERT_OK(lade_graph_update_begin(graph, &state));
  w.value = 3;
  w.keeps = true;
  LADE_EXPECT_OK(work_run(f.streams[0], &w));
  LADE_EXPECT_OK(lade_graph_capture_abort(state));
  expect_no_capture(&f);
  LADE_EXPECT_EQ_UINT(live_blocks(&f), 1);
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  device_fixture_expect_bytes(&f, w.target, 2, BYTES, 1);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT_EQ_UINT(users(&f), 0);
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

LADE_TEST_P(SingleGraph, AFailedUpdateLeavesItAsItWas, SUPPORT_RUNTIMES, name) {
  for (int conduct = 0; conduct < CONDUCT_COUNT; conduct++) {
    device_fixture f;
    misbehaviour m;
    if (!fixture_open(&f, name)) return;
    misbehaviour_open(&f, &m, (misconduct)conduct);
    lade_graph_options options = options_of(&f);
    lade_graph *graph = NULL;
    bool in_place = true;
    work w = {.f = &f, .target = m.work.target, .value = 11};
    options.pool = m.pool;
    LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
    lade_test_context("conduct %d", conduct);
    LADE_EXPECT_STATUS(expected[conduct].status, lade_graph_update(graph, misbehave, &m, &in_place));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, expected[conduct].words);
    LADE_EXPECT(in_place); /* untouched */
    expect_no_capture(&f);
    LADE_EXPECT_EQ_UINT(live_blocks(&f), 2);
    LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[0]));
    device_fixture_expect_bytes(&f, w.target, 11, BYTES, 0);
    LADE_EXPECT_EQ_UINT(pool_info(&f, m.pool).use_count, 2);
    lade_test_context("%s", "");
    LADE_EXPECT_OK(lade_graph_destroy(graph, true));
    misbehaviour_close(&f, &m);
  }
}

/* ---- Pinned memory ----------------------------------------------------------------------------------------------- */

typedef struct pinned {
  device_fixture *f;
  lade_pinned_pool *pool;
  char *target;
  void *block;
  lade_status ends;
} pinned;

/* Copies a pinned block to the device, and frees it at once: it stays in use as long as the graph may read it. */
static lade_status pinned_run(lade_stream stream, void *user) {
  pinned *p = user;
  LADE_EXPECT_OK(lade_pinned_alloc(p->pool, BYTES, &p->block));
  memset(p->block, 5, BYTES);
  LADE_EXPECT_OK(lade_copy_async(p->f->runtime, p->target, p->block, BYTES, stream));
  LADE_EXPECT_OK(lade_pinned_record_event(p->pool, p->block, stream));
  LADE_EXPECT_OK(lade_pinned_free(p->pool, p->block));
  return p->ends;
}

static bool pinned_is_back(void *user) {
  const pinned *p = user;
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_process_events(p->pool));
  LADE_EXPECT_OK(lade_pinned_stats_get(p->pool, &stats));
  return stats.pending_bytes.current == 0;
}

LADE_TEST_P(SingleGraph, PinnedBlocksOfItsCodeComeBackWithItsEnd, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  lade_pinned_options options;
  pinned p = {.f = &f};
  if (!fixture_open(&f, name)) return;
  lade_pinned_options_init(&options);
  LADE_ASSERT_OK(lade_pinned_pool_create(f.runtime, &options, &p.pool));
  p.target = device_fixture_alloc(&f, BYTES, 0);
  lade_graph_options graph_options = options_of(&f);
  lade_graph *graph = NULL;
  p.ends = LADE_ERR_IO;
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, lade_graph_capture(f.allocator, &graph_options, pinned_run, &p, &graph));
  LADE_EXPECT(support_wait(f.runtime, pinned_is_back, &p));
  p.ends = LADE_OK;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &graph_options, pinned_run, &p, &graph));
  support_let_run(f.runtime);
  LADE_EXPECT(!pinned_is_back(&p));
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  device_fixture_expect_bytes(&f, p.target, 5, BYTES, 1);
  LADE_EXPECT(!pinned_is_back(&p));
  work w = {.f = &f, .target = p.target, .value = 8}; /* uses no pinned block */
  LADE_EXPECT_OK(lade_graph_update(graph, work_run, &w, NULL));
  LADE_EXPECT(support_wait(f.runtime, pinned_is_back, &p));
  bool in_place = false;
  for (int i = 0; i < 2; i++) { /* in place, the graph's uses are those of the last capture */
    LADE_EXPECT_OK(lade_graph_update(graph, pinned_run, &p, &in_place));
    LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
    device_fixture_expect_bytes(&f, p.target, 5, BYTES, 1);
  }
  LADE_EXPECT(in_place);
  LADE_EXPECT(!pinned_is_back(&p));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT(support_wait(f.runtime, pinned_is_back, &p));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(p.pool, true));
  device_fixture_free(&f, p.target);
  device_fixture_close(&f);
}

/* ---- Order across replacements ------------------------------------------------------------------------------------ */

/* The former executable graph still writes when the one in its place is launched on another stream. */
LADE_TEST_P(SingleGraph, LaunchesComeBehindThoseOfTheGraphReplaced, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  support_stream_hold hold;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 1};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  bool in_place = true;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[1]));
  if (!support_stream_hold_begin(&hold, f.runtime, f.streams[1])) return;
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  w.value = 2;
  w.extra = 1;
  LADE_EXPECT_OK(lade_graph_update(graph, work_run, &w, &in_place));
  LADE_EXPECT(!in_place);
  w.extra = 2;
  LADE_EXPECT_OK(lade_graph_update(graph, work_run, &w, &in_place)); /* once more, before it is launched */
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[2]));
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[3]));
  support_let_run(f.runtime);
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_stream_query(f.runtime, f.streams[2]));
  support_stream_hold_end(&hold);
  device_fixture_expect_bytes(&f, w.target, 2, BYTES, 3);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
#ifndef LADE_TEST_ON_CUDA
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(f.runtime, &report));
  LADE_EXPECT_EQ_UINT(report.unordered_reuse, 0);
  LADE_EXPECT_EQ_UINT(report.freed_memory_used, 0);
#endif
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

/* Streams of the program's in another context of the device, such as one of cuCtxCreate(). */
static struct {
  lade_runtime_ops ops;
  const lade_runtime_ops *below;
  lade_stream stream; /* there */
  uint64_t context, other;
  bool launch_fails;
  size_t waits;
} contexts;

static ladei_stream there(const ladei_stream *stream) {
  ladei_stream moved = *stream;
  if (stream->handle == contexts.stream) moved.context = contexts.context;
  return moved;
}

static lade_status resolve_there(void *self, lade_stream stream, ladei_stream *out) {
  lade_status status = contexts.below->stream_resolve(self, stream, out);
  if (status != LADE_OK) return status;
  contexts.context = out->context;
  if (stream == contexts.stream) out->context = contexts.other;
  return LADE_OK;
}

static lade_status event_create_there(void *self, uint64_t context, unsigned flags, lade_event *out) {
  return contexts.below->event_create(self, context == contexts.other ? contexts.context : context, flags, out);
}

static lade_status event_record_there(void *self, lade_event event, const ladei_stream *stream) {
  ladei_stream moved = there(stream);
  return contexts.below->event_record(self, event, &moved);
}

static lade_status wait_there(void *self, const ladei_stream *stream, lade_event event) {
  ladei_stream moved = there(stream);
  contexts.waits++;
  return contexts.below->stream_wait_event(self, &moved, event);
}

static lade_status launch_there(void *self, ladei_graph_exec exec, const ladei_stream *stream) {
  ladei_stream moved = there(stream);
  if (contexts.launch_fails) return LADE_ERR_DRIVER;
  return contexts.below->graph_launch(self, exec, &moved);
}

LADE_TEST_P(SingleGraph, LaunchFailsInAnotherContextBehindTheGraphReplaced, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 1};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  bool in_place = true;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  contexts.below = f.runtime->ops;
  contexts.ops = *f.runtime->ops;
  contexts.stream = f.streams[1];
  contexts.other = UINT64_MAX - 1;
  contexts.ops.stream_resolve = resolve_there;
  contexts.ops.event_create = event_create_there;
  contexts.ops.event_record = event_record_there;
  contexts.ops.stream_wait_event = wait_there;
  contexts.ops.graph_launch = launch_there;
  f.runtime->ops = &contexts.ops;
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[2]));
  w.extra = 1;
  LADE_ASSERT_OK(lade_graph_update(graph, work_run, &w, &in_place));
  LADE_EXPECT(!in_place);
  contexts.launch_fails = true;
  contexts.waits = 0;
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_graph_launch(graph, f.streams[1]));
  LADE_EXPECT_EQ_UINT(contexts.waits, 1);
  contexts.launch_fails = false;
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[0]));
  LADE_EXPECT_EQ_UINT(contexts.waits, 2); /* behind the launch of the graph replaced still */
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  f.runtime->ops = contexts.below;
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

LADE_TEST_P(SingleGraph, TheStreamOfTheLastLaunchMayBeGone, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 1};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  for (int i = 0; i < 2; i++) { /* then an update, and the destruction */
    lade_stream gone = NULL;
    LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &gone));
    LADE_EXPECT_OK(lade_graph_launch(graph, gone));
    LADE_EXPECT_OK(lade_stream_destroy(f.runtime, gone));
    if (i > 0) break;
    w.value = 2;
    w.extra = 1;
    LADE_EXPECT_OK(lade_graph_update(graph, work_run, &w, NULL));
    LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[2]));
    device_fixture_expect_bytes(&f, w.target, 2, BYTES, 2);
  }
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  device_fixture_expect_bytes(&f, w.target, 2, BYTES, 0); /* nothing was under way any more */
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

/* Waiting for the device, in its place, would break another capture. The first form of this asked the driver who the stream is, and
 * a GPU's crashed. */
LADE_TEST_P(SingleGraph, TheStreamOfTheLastLaunchMayBeGoneWhileOthersCapture, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 1}, other = w;
  lade_graph_options options = options_of(&f), other_options = options;
  lade_graph *graph = NULL, *second = NULL;
  lade_graph_capture_state *state = NULL;
  lade_stream gone = NULL;
  other_options.stream = f.streams[1];
  other_options.strictness = LADE_GRAPH_RELAXED;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &gone));
  LADE_EXPECT_OK(lade_graph_launch(graph, gone));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, gone));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, gone));
  LADE_ASSERT_OK(lade_graph_capture_begin(f.allocator, &other_options, &state));
  LADE_EXPECT_OK(work_run(f.streams[1], &other));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_ASSERT_OK(lade_graph_capture_end(state, &second)); /* it was not harmed */
  LADE_EXPECT_OK(lade_graph_destroy(second, true));
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

/* An event was recorded behind the launch, so nothing is asked of the stream. */
LADE_TEST_P(SingleGraph, TheStreamOfTheLastLaunchMayCapture, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 1};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[1]));
  ladei_stream on = device_fixture_resolve(&f, 1);
  ladei_graph other = NULL;
  LADE_EXPECT_OK(f.runtime->ops->capture_begin(f.runtime->self, &on, LADEI_CAPTURE_RELAXED));
  w.extra = 1;
  LADE_EXPECT_OK(lade_graph_update(graph, work_run, &w, NULL));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT_OK(f.runtime->ops->capture_end(f.runtime->self, &on, &other)); /* not harmed */
  LADE_EXPECT_OK(f.runtime->ops->graph_destroy(f.runtime->self, other));
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

/* Neither waiting for it nor recording an event on it would leave that capture as it is. */
LADE_TEST_P(SingleGraph, TheStreamOfItsCapturesMayCaptureOtherwise, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 1};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[0]));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
  ladei_stream on = device_fixture_resolve(&f, 0);
  ladei_graph other = NULL;
  LADE_EXPECT_OK(f.runtime->ops->capture_begin(f.runtime->self, &on, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_graph_update(graph, work_run, &w, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_graph_destroy(graph, true));
  LADE_EXPECT_OK(f.runtime->ops->capture_end(f.runtime->self, &on, &other)); /* not harmed */
  LADE_EXPECT_OK(f.runtime->ops->graph_destroy(f.runtime->self, other));
  LADE_EXPECT_OK(lade_graph_update(graph, work_run, &w, NULL));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

#ifndef LADE_TEST_ON_CUDA

LADE_TEST_P(SingleGraph, GoesWithALostDevice, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  if (!fixture_open(&f, name)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 1};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL, *second = NULL;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[1]));
  LADE_EXPECT_OK(lade_soft_device_lose(f.runtime, 0, 0));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, lade_graph_launch(graph, f.streams[1]));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, lade_graph_update(graph, work_run, &w, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, lade_graph_capture(f.allocator, &options, work_run, &w, &second));
  LADE_EXPECT_EQ_PTR(second, NULL);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT_EQ_UINT(users(&f), 0);
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

#endif

/* ---- Suspended pools ---------------------------------------------------------------------------------------------- */

static struct {
  const lade_runtime_ops *below;
  lade_device_allocator *allocator;
  lade_device_pool_id pool;
} beside;

static void suspend_beside(void) {
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_pool_suspend(beside.allocator, beside.pool, NULL, NULL));
}

static lade_status graph_launch_beside(void *self, ladei_graph_exec exec, const ladei_stream *stream) {
  suspend_beside();
  return beside.below->graph_launch(self, exec, stream);
}

static lade_status graph_upload_beside(void *self, ladei_graph_exec exec, const ladei_stream *stream) {
  suspend_beside();
  return beside.below->graph_upload(self, exec, stream);
}

/* As another thread might suspend it, just before the launch reaches the driver. */
LADE_TEST_P(SingleGraph, PoolIsSuspendedBesideALaunch, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  lade_device_options device;
  lade_device_options_init(&device);
  device.expandable_segments = 1;
  device.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!device_fixture_open_bytes(&f, name, &device)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 7};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  lade_runtime_ops ops = *f.runtime->ops;
  beside.below = f.runtime->ops;
  beside.allocator = f.allocator;
  beside.pool = graph_info(graph).pool;
  ops.graph_launch = graph_launch_beside;
  ops.graph_upload = graph_upload_beside;
  f.runtime->ops = &ops;
  LADE_EXPECT_OK(lade_graph_upload(graph, f.streams[1]));
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  f.runtime->ops = beside.below;
  LADE_EXPECT_OK(lade_device_pool_suspend(f.allocator, beside.pool, NULL, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_launch(graph, f.streams[1]));
  LADE_EXPECT_OK(lade_device_pool_resume(f.allocator, beside.pool));
  device_fixture_expect_bytes(&f, w.target, 7, BYTES, 1);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}

/* Memory that it freed is the graph's, and comes back with what its launch left there. */
LADE_TEST_P(SingleGraph, LaunchesAgainAfterItsPoolWasSuspended, SUPPORT_RUNTIMES, name) {
  device_fixture f;
  lade_device_options device;
  lade_device_options_init(&device);
  device.expandable_segments = 1;
  device.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!device_fixture_open_bytes(&f, name, &device)) return;
  work w = {.f = &f, .target = device_fixture_alloc(&f, BYTES, 0), .value = 7};
  lade_graph_options options = options_of(&f);
  lade_graph *graph = NULL;
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  lade_device_pool_id pool = graph_info(graph).pool;
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  LADE_ASSERT_OK(lade_device_pool_suspend(f.allocator, pool, NULL, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_launch(graph, f.streams[1]));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_upload(graph, f.streams[1])); /* kernels could launch it from here on */
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_update(graph, work_run, &w, NULL));
  device_fixture_fill(&f, w.target, 1, BYTES, 1);
  LADE_ASSERT_OK(lade_device_pool_resume(f.allocator, pool));
  device_fixture_expect_bytes(&f, w.kept, 7, BYTES, 1); /* freed in the capture, written by the launch */
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  device_fixture_expect_bytes(&f, w.target, 7, BYTES, 1);
  LADE_ASSERT_OK(lade_device_pool_suspend(f.allocator, pool, NULL, NULL));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true)); /* the pool's last use */
  device_fixture_free(&f, w.target);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  device_fixture_close(&f);
}
