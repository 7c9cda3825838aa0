/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: single graphs and threads: launches of one graph from several of them while it is updated and its handles
 * are read, graphs of several threads in one allocator, ends of graphs whose launches are under way. For the thread sanitiser.
 */
#include <pthread.h>
#include <string.h>

#include "device/state/tally.h"
#include "lade/graph.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

enum { BYTES = 4096, THREADS = 4, ROUNDS = 40 };

/* Of each thread. While another one captures, the memory of destroyed graphs cannot go back to the driver, and with some luck one always
 * does: all graphs together have to fit into the device, 2 MiB each. */
enum { CAPTURES = 24 };

typedef struct shared {
  device_fixture f;
  lade_graph *graph;
  char *target;
  unsigned char value;
  int extra;
} shared;

typedef struct worker {
  pthread_t thread;
  shared *s;
  int number;
  lade_stream stream;
} worker;

static lade_status work_run(lade_stream stream, void *user) {
  shared *s = user;
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(s->f.allocator, BYTES, stream, &block));
  LADE_EXPECT_OK(lade_fill_async(s->f.runtime, block, s->value, BYTES, stream));
  for (int i = 0; i <= s->extra; i++) LADE_EXPECT_OK(lade_copy_async(s->f.runtime, s->target, block, BYTES, stream));
  LADE_EXPECT_OK(lade_device_free(s->f.allocator, block));
  return LADE_OK;
}

static lade_graph_options options_of(lade_stream stream) {
  lade_graph_options options;
  lade_graph_options_init(&options);
  options.stream = stream;
  return options;
}

static bool users_are_gone(void *user) { return atomic_load(&((shared *)user)->f.allocator->users) == 0; }

static void workers_run(shared *s, void *(*main)(void *)) {
  worker workers[THREADS];
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){.s = s, .number = i};
    LADE_EXPECT_OK(lade_stream_create(s->f.runtime, 0, &workers[i].stream));
    LADE_ASSERT(pthread_create(&workers[i].thread, NULL, main, &workers[i]) == 0);
  }
  if (s->graph != NULL) {
    for (int i = 0; i < ROUNDS; i++) {
      s->value = (unsigned char)(i + 1);
      s->extra = i % 3;
      LADE_EXPECT_OK(lade_graph_update(s->graph, work_run, s, NULL));
    }
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(workers[i].thread, NULL);
    LADE_EXPECT_OK(lade_stream_synchronize(s->f.runtime, workers[i].stream));
    LADE_EXPECT_OK(lade_device_stream_retire(s->f.allocator, workers[i].stream));
    LADE_EXPECT_OK(lade_stream_destroy(s->f.runtime, workers[i].stream));
  }
}

static void *launcher(void *user) {
  worker *w = user;
  lade_graph_info info;
  lade_graph_info_init(&info);
  for (int i = 0; i < ROUNDS; i++) {
    LADE_EXPECT_OK(lade_graph_launch(w->s->graph, w->stream));
    LADE_EXPECT_OK(lade_graph_info_get(w->s->graph, &info));
    if (i % 8 == 0) LADE_EXPECT_OK(lade_stream_synchronize(w->s->f.runtime, w->stream));
  }
  return NULL;
}

LADE_TEST_P(SingleGraphThreads, LaunchWhileItIsUpdated, SUPPORT_THREADED_RUNTIMES, name) {
  shared s = {.value = 100};
  if (!device_fixture_open_bytes(&s.f, name, NULL)) return;
  s.target = device_fixture_alloc(&s.f, BYTES, 0);
  lade_graph_options options = options_of(s.f.streams[0]);
  LADE_ASSERT_OK(lade_graph_capture(s.f.allocator, &options, work_run, &s, &s.graph));
  workers_run(&s, launcher);
  LADE_EXPECT_OK(lade_graph_launch(s.graph, s.f.streams[1]));
  device_fixture_expect_bytes(&s.f, s.target, ROUNDS, BYTES, 1);
  LADE_EXPECT_OK(lade_graph_destroy(s.graph, true));
  LADE_EXPECT(support_wait(s.f.runtime, users_are_gone, &s));
#ifndef LADE_TEST_ON_CUDA
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(s.f.runtime, &report));
  LADE_EXPECT_EQ_UINT(report.unordered_reuse, 0);
  LADE_EXPECT_EQ_UINT(report.freed_memory_used, 0);
#endif
  device_fixture_free(&s.f, s.target);
  device_fixture_close(&s.f);
}

/* Each with graphs of its own, destroyed while their launches are under way. */
static void *capturer(void *user) {
  worker *w = user;
  device_fixture *f = &w->s->f;
  void *target = NULL;
  unsigned char host[BYTES], wanted[BYTES];
  LADE_EXPECT_OK(lade_device_alloc(f->allocator, BYTES, w->stream, &target));
  for (int i = 0; i < CAPTURES; i++) {
    shared own = {.f = *f, .target = target, .value = (unsigned char)(w->number * CAPTURES + i)};
    lade_graph_options options = options_of(w->stream);
    lade_graph *graph = NULL;
    LADE_EXPECT_OK(lade_graph_capture(f->allocator, &options, work_run, &own, &graph));
    if (graph == NULL) break;
    LADE_EXPECT_OK(lade_graph_launch(graph, w->stream));
    LADE_EXPECT_OK(lade_graph_destroy(graph, i % 2 == 0));
    LADE_EXPECT_OK(lade_stream_synchronize(f->runtime, w->stream));
    LADE_EXPECT_OK(f->runtime->ops->copy_sync(f->runtime->self, 0, LADEI_COPY_D2H, host, target, BYTES));
    memset(wanted, own.value, BYTES);
    LADE_EXPECT_EQ_MEM(host, wanted, BYTES);
  }
  LADE_EXPECT_OK(lade_device_free(f->allocator, target));
  return NULL;
}

LADE_TEST_P(SingleGraphThreads, CaptureAndDestroyInOneAllocator, SUPPORT_THREADED_RUNTIMES, name) {
  shared s = {.value = 0};
  if (!device_fixture_open_bytes(&s.f, name, NULL)) return;
  workers_run(&s, capturer);
  LADE_EXPECT(support_wait(s.f.runtime, users_are_gone, &s));
  device_fixture_close(&s.f);
}

/* Another thread may not end a capture, unless it was begun so. */
static void *ender(void *user) {
  lade_graph_capture_state *state = user;
  lade_graph *graph = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_graph_capture_end(state, &graph));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "expected the one that began the capture");
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_graph_capture_abort(state));
  return NULL;
}

static void *relaxed_ender(void *user) {
  lade_graph_capture_state *state = user;
  lade_graph *graph = NULL;
  LADE_EXPECT_OK(lade_graph_capture_end(state, &graph));
  return graph;
}

LADE_TEST_P(SingleGraphThreads, EndInTheThreadThatBeganUnlessRelaxed, SUPPORT_THREADED_RUNTIMES, name) {
  shared s = {.value = 3};
  if (!device_fixture_open_bytes(&s.f, name, NULL)) return;
  s.target = device_fixture_alloc(&s.f, BYTES, 0);
  lade_graph_options options = options_of(s.f.streams[0]);
  for (int relaxed = 0; relaxed < 2; relaxed++) {
    lade_graph_capture_state *state = NULL;
    lade_graph *graph = NULL;
    void *result = NULL;
    pthread_t thread;
    options.strictness = relaxed ? LADE_GRAPH_RELAXED : LADE_GRAPH_GLOBAL;
    LADE_ASSERT_OK(lade_graph_capture_begin(s.f.allocator, &options, &state));
    LADE_EXPECT_OK(work_run(s.f.streams[0], &s));
    LADE_ASSERT(pthread_create(&thread, NULL, relaxed ? relaxed_ender : ender, state) == 0);
    pthread_join(thread, &result);
    graph = result;
    if (!relaxed) LADE_ASSERT_OK(lade_graph_capture_end(state, &graph));
    LADE_ASSERT(graph != NULL);
    LADE_EXPECT_OK(lade_graph_launch(graph, s.f.streams[0]));
    device_fixture_expect_bytes(&s.f, s.target, 3, BYTES, 0);
    LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  }
  device_fixture_free(&s.f, s.target);
  device_fixture_close(&s.f);
}
