/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: every driver call and every allocation of host memory that single graphs make fails once, at each of its
 * places. What failed leaves nothing, what was there works on with its bytes, and the second attempt succeeds.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "device/state/checks.h"
#include "device/state/tally.h"
#include "lade/graph.h"
#include "lade/soft.h"
#include "runtime/ops.h"
#include "tests/failing_memory/failing_memory.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

enum { BYTES = 4096 };

typedef struct program {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream streams[2];
  char *target;
  unsigned char value;
  int extra;
  uint64_t blocks; /* handed out outside of captures */
} program;

static lade_status work_run(lade_stream stream, void *user) {
  program *p = user;
  void *block = NULL, *left = NULL;
  lade_status status = lade_device_alloc(p->allocator, BYTES, stream, &block);
  if (status == LADE_OK) status = lade_device_alloc(p->allocator, BYTES, stream, &left);
  if (status == LADE_OK) status = lade_fill_async(p->runtime, block, p->value, BYTES, stream);
  for (int i = 0; i <= p->extra && status == LADE_OK; i++)
    status = lade_copy_async(p->runtime, p->target, block, BYTES, stream);
  if (status != LADE_OK) return status; /* with two blocks left */
  (void)lade_device_free(p->allocator, left);
  (void)lade_device_free(p->allocator, block);
  return LADE_OK;
}

static lade_status work_fail(lade_stream stream, void *user) {
  lade_status status = work_run(stream, user);
  return status == LADE_OK ? LADE_ERR_UNSUPPORTED : status;
}

static void expect_nothing_left(program *p) {
  failing_memory_rest(true);
  ladei_stream stream;
  ladei_capture_info info = {.status = LADEI_CAPTURE_ACTIVE};
  lade_runtime *inner = support_inner(p->runtime);
  LADE_EXPECT_OK(inner->ops->stream_resolve(inner->self, p->streams[0], &stream));
  LADE_EXPECT_OK(inner->ops->stream_capture_info(inner->self, &stream, &info));
  LADE_EXPECT_EQ_INT(info.status, LADEI_CAPTURE_NONE);
  LADE_EXPECT_EQ_PTR(p->allocator->routes.first, NULL);
  LADE_EXPECT_EQ_PTR(p->allocator->tallies.newest, NULL);
  LADE_EXPECT_EQ_UINT(ladei_device_active_count(p->allocator), p->blocks);
  failing_memory_rest(false);
}

/* What the target holds, as the device has it. */
static void expect_value(program *p, unsigned char value) {
  failing_memory_rest(true);
  unsigned char host[BYTES], wanted[BYTES];
  lade_runtime *inner = support_inner(p->runtime);
  memset(wanted, value, sizeof wanted);
  LADE_EXPECT_OK(inner->ops->device_synchronize(inner->self, 0));
  LADE_EXPECT_OK(inner->ops->copy_sync(inner->self, 0, LADEI_COPY_D2H, host, p->target, sizeof host));
  LADE_EXPECT_EQ_MEM(host, wanted, sizeof host);
  failing_memory_rest(false);
}

static void clear(program *p) {
  failing_memory_rest(true);
  unsigned char host[BYTES] = {0};
  lade_runtime *inner = support_inner(p->runtime);
  LADE_EXPECT_OK(inner->ops->device_synchronize(inner->self, 0));
  LADE_EXPECT_OK(inner->ops->copy_sync(inner->self, 0, LADEI_COPY_H2D, p->target, host, sizeof host));
  failing_memory_rest(false);
}

/* Launches the graph on a stream, if need be twice; and it does what it should. */
static void launch(program *p, lade_status *first, lade_graph *graph, int stream, unsigned char value) {
  clear(p);
  SUPPORT_TWICE(first, lade_graph_launch(graph, p->streams[stream]));
  expect_value(p, value);
}

static void update(program *p, lade_status *first, lade_graph *graph, unsigned char former, unsigned char value) {
  bool in_place;
  p->value = value;
  lade_status status = lade_graph_update(graph, work_run, p, &in_place);
  support_note(first, status);
  expect_nothing_left(p);
  if (status == LADE_OK) return;
  launch(p, first, graph, 0, former); /* as it was */
  LADE_EXPECT_OK(lade_graph_update(graph, work_run, p, &in_place));
  expect_nothing_left(p);
}

static void graph_live(program *p, lade_status *first) {
  lade_graph *graph = NULL;
  lade_graph_options options;
  lade_graph_options_init(&options);
  options.stream = p->streams[0];
  options.strictness =
      LADE_GRAPH_RELAXED; /* else a mode that cannot be exchanged fails the next call, in whose words it is told */
  p->value = 1;
  lade_status status = lade_graph_capture(p->allocator, &options, work_run, p, &graph);
  support_note(first, status);
  expect_nothing_left(p);
  if (status != LADE_OK) {
    LADE_EXPECT_EQ_PTR(graph, NULL);
    LADE_EXPECT_EQ_UINT(atomic_load(&p->allocator->users), 0);
    LADE_ASSERT_OK(lade_graph_capture(p->allocator, &options, work_run, p, &graph));
  }
  SUPPORT_TWICE(first, lade_graph_upload(graph, p->streams[1]));
  launch(p, first, graph, 0, 1);
  update(p, first, graph, 1, 2);
  launch(p, first, graph, 1, 2);
  p->extra = 1; /* another node: it is replaced */
  update(p, first, graph, 2, 3);
  launch(p, first, graph, 0, 3);
  p->extra = 0;
  update(p, first, graph, 3, 4); /* nobody launches it */
  SUPPORT_TWICE(first, lade_graph_destroy(graph, true));
  LADE_EXPECT_EQ_UINT(atomic_load(&p->allocator->users), 0);
  expect_nothing_left(p);
}

static lade_status native_make(program *p, ladei_graph *out) {
  failing_memory_rest(true);
  ladei_stream stream;
  lade_runtime *inner = support_inner(p->runtime);
  LADE_EXPECT_OK(inner->ops->stream_resolve(inner->self, p->streams[0], &stream));
  LADE_EXPECT_OK(inner->ops->capture_begin(inner->self, &stream, LADEI_CAPTURE_THREAD_LOCAL));
  LADE_EXPECT_OK(inner->ops->fill(inner->self, p->target, p->value, BYTES, &stream));
  lade_status status = inner->ops->capture_end(inner->self, &stream, out);
  failing_memory_rest(false);
  return status;
}

static void borrowed_live(program *p, lade_status *first) {
  lade_graph *graph = NULL;
  lade_device_pool_id pool;
  ladei_graph native = NULL;
  lade_runtime *inner = support_inner(p->runtime);
  lade_graph_options options;
  lade_graph_options_init(&options);
  options.flags = LADE_GRAPH_BORROW_NATIVE;
  p->value = 5;
  SUPPORT_TWICE(first, lade_device_pool_create(p->allocator, NULL, &pool));
  LADE_ASSERT_OK(native_make(p, &native));
  SUPPORT_TWICE(first, lade_graph_adopt(p->allocator, pool, native, &options, &graph));
  launch(p, first, graph, 1, 5);
  ladei_graph second = NULL;
  p->value = 6;
  LADE_ASSERT_OK(native_make(p, &second));
  lade_status status = lade_graph_update_native(graph, pool, second, NULL);
  support_note(first, status);
  if (status != LADE_OK) {
    launch(p, first, graph, 1, 5);
    LADE_EXPECT_OK(lade_graph_update_native(graph, pool, second, NULL));
  }
  launch(p, first, graph, 0, 6);
  SUPPORT_TWICE(first, lade_graph_destroy(graph, false));
  LADE_EXPECT_LE_UINT(atomic_load(&p->allocator->users), 2); /* of the native graphs, however often they were taken */
  LADE_EXPECT_OK(inner->ops->graph_destroy(inner->self, native));
  LADE_EXPECT_OK(inner->ops->graph_destroy(inner->self, second));
  while (inner->ops->step(inner->self) == LADE_OK) continue; /* the end of its user object */
  LADE_EXPECT_EQ_UINT(atomic_load(&p->allocator->users), 0);
  SUPPORT_TWICE(first, lade_device_pool_release(p->allocator, pool));
}

static lade_status graphs_use(lade_runtime *runtime, void *user) {
  program p = {.runtime = runtime};
  void *target = NULL;
  lade_status first = LADE_OK;
  (void)user;
  SUPPORT_TWICE(&first, lade_device_allocator_create(runtime, 0, NULL, &p.allocator));
  for (int i = 0; i < 2; i++) SUPPORT_TWICE(&first, lade_stream_create(runtime, 0, &p.streams[i]));
  SUPPORT_TWICE(&first, lade_device_alloc(p.allocator, BYTES, p.streams[0], &target));
  p.target = target;
  p.blocks = 1;
  graph_live(&p, &first);
  borrowed_live(&p, &first);
  SUPPORT_TWICE(&first, lade_device_free(p.allocator, target));
  SUPPORT_TWICE(&first, lade_device_allocator_destroy(p.allocator, true));
  for (int i = 0; i < 2; i++) SUPPORT_TWICE(&first, lade_stream_destroy(runtime, p.streams[i]));
  return first;
}

LADE_TEST(SingleGraph, LosesNothingWhenAnyDriverCallFails) {
  support_failure_options options = {.releases_too = true};
  support_for_each_failure("sim", graphs_use, &options, NULL);
}

/* A capture that fails, by its code where `op` is NULL, while the driver refuses to destroy graphs `refusals` times. */
static void refused_open(program *p, const char *op, uint64_t nth, uint64_t refusals) {
  lade_graph *graph = NULL;
  lade_graph_options options;
  lade_graph_options_init(&options);
  *p = (program){.runtime = support_interposer_open("sim", NULL), .value = 1};
  LADE_ASSERT(p->runtime != NULL);
  LADE_ASSERT_OK(lade_device_allocator_create(p->runtime, 0, NULL, &p->allocator));
  LADE_ASSERT_OK(lade_stream_create(p->runtime, 0, &p->streams[0]));
  LADE_ASSERT_OK(lade_device_alloc(p->allocator, BYTES, p->streams[0], (void **)&p->target));
  p->blocks = 1;
  options.stream = p->streams[0];
  support_fail(p->runtime, "graph_destroy", 1, refusals);
  if (op != NULL) support_fail(p->runtime, op, nth, 1);
  lade_status status = lade_graph_capture(p->allocator, &options, op == NULL ? work_fail : work_run, p, &graph);
  LADE_EXPECT_NE_INT(status, LADE_OK);
  if (op != NULL) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, op);
  LADE_EXPECT_EQ_UINT(support_live(p->runtime, SUPPORT_LIVE_GRAPHS), 1);
  LADE_EXPECT_EQ_UINT(atomic_load(&p->allocator->users), 0);
  expect_nothing_left(p);
  LADE_EXPECT_OK(lade_device_free(p->allocator, p->target));
}

static void refused_close(program *p) {
  support_expect_nothing_live(p->runtime);
  support_runtime_close(p->runtime);
}

/* The graph of a capture that failed was lost where the driver refused to destroy it. */
LADE_TEST(SingleGraph, KeepsACaptureThatTheDriverRefusesToDestroy) {
  static const struct {
    const char *op;
    uint64_t nth;
  } failures[] = {
      {NULL, 0},           {"stream_capture_info", 1}, {"stream_capture_info", 2},      {"capture_end", 1},
      {"graph_counts", 1}, {"user_object_create", 1},  {"graph_retain_user_object", 1}, {"graph_instantiate_with", 1}};
  for (size_t i = 0; i < sizeof failures / sizeof *failures && !lade_test_has_failed(); i++) {
    program p;
    lade_graph *graph = NULL;
    lade_graph_options options;
    lade_test_context("%s fails", failures[i].op == NULL ? "the code" : failures[i].op);
    refused_open(&p, failures[i].op, failures[i].nth, 1);
    lade_graph_options_init(&options);
    options.stream = p.streams[0];
    LADE_EXPECT_OK(lade_device_alloc(p.allocator, BYTES, p.streams[0], (void **)&p.target));
    LADE_EXPECT_OK(lade_graph_capture(p.allocator, &options, work_run, &p, &graph));
    LADE_EXPECT_EQ_UINT(support_live(p.runtime, SUPPORT_LIVE_GRAPHS), 1); /* its own */
    LADE_EXPECT_OK(lade_graph_destroy(graph, true));
    LADE_EXPECT_OK(lade_device_free(p.allocator, p.target));
    LADE_EXPECT_OK(lade_device_allocator_destroy(p.allocator, true));
    LADE_EXPECT_OK(lade_stream_destroy(p.runtime, p.streams[0]));
    refused_close(&p);
  }
  lade_test_context("%s", "");
}

LADE_TEST(SingleGraph, ADestructionOffersACaptureThatTheDriverRefused) {
  program p;
  refused_open(&p, NULL, 0, 2);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_device_allocator_destroy(p.allocator, true));
  LADE_EXPECT_OK(lade_device_allocator_destroy(p.allocator, true));
  LADE_EXPECT_OK(lade_stream_destroy(p.runtime, p.streams[0]));
  refused_close(&p);
}

/* A capture whose number could not be asked, and whose end failed once, went on on the program's stream. */
LADE_TEST(SingleGraph, EndsACaptureThatItCannotAsk) {
  program p = {.runtime = support_interposer_open("sim", NULL), .value = 1};
  lade_graph *graph = NULL;
  lade_graph_options options;
  lade_graph_options_init(&options);
  LADE_ASSERT(p.runtime != NULL);
  LADE_EXPECT_OK(lade_device_allocator_create(p.runtime, 0, NULL, &p.allocator));
  LADE_EXPECT_OK(lade_stream_create(p.runtime, 0, &p.streams[0]));
  options.stream = p.streams[0];
  support_fail(p.runtime, "stream_capture_info", 1, 1);
  support_fail(p.runtime, "capture_end", 1, 1);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_graph_capture(p.allocator, &options, work_run, &p, &graph));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "stream_capture_info");
  expect_nothing_left(&p);
  LADE_EXPECT_OK(lade_device_allocator_destroy(p.allocator, true));
  LADE_EXPECT_OK(lade_stream_destroy(p.runtime, p.streams[0]));
  refused_close(&p);
}

LADE_TEST(SingleGraph, LosesNothingWithoutHostMemory) {
  uint64_t count = 1;
  for (uint64_t k = 0; k <= count && !lade_test_has_failed(); k++) {
    lade_runtime *runtime = support_interposer_open("sim", NULL);
    LADE_ASSERT(runtime != NULL);
    failing_memory_fail(k, FAILING_MEMORY_OF_ALL);
    lade_status status = graphs_use(runtime, NULL);
    uint64_t allocations = failing_memory_whole();
    if (k == 0) count = allocations;
    lade_test_context("allocation %" PRIu64 " of %" PRIu64 " fails", k, count);
    bool told = status == LADE_OK || status == LADE_ERR_CALLBACK || status == LADE_ERR_OUT_OF_HOST_MEMORY;
    LADE_EXPECT(told || status == LADE_ERR_CAPTURE); /* what the software device says of joins it cannot look at */
    support_expect_nothing_live(runtime);
    support_runtime_close(runtime);
  }
  lade_test_context("%s", "");
  LADE_EXPECT_GT_UINT(count, 50);
}
