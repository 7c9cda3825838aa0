/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: All orders of two threads at one graph tree, on "sim": every pair of calls, each also with itself. Behind each
 * schedule every buffer that is valid has its bytes, the tree is sound, nothing is lost to it when it goes, and the device has found
 * no memory that is used too early or too late.
 */
#include <string.h>

#include "device/api/device.h"
#include "device/state/checks.h"
#include "graph/tree/tree.h"
#include "lade/graph.h"
#include "lade/soft.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/scheduler.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

enum { BYTES = 4096, THREADS = 2 };

typedef struct bench {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_graph_tree *tree;
  lade_device_pool_id pool;
  lade_stream streams[THREADS];
  lade_graph_function *maker, *copier;
  lade_graph_value own[THREADS]; /* of the path; byte 1 + thread */
  int held[THREADS];             /* counts of it that the thread has */
  int operations[THREADS];
  bool has_bytes, destroyed;
} bench;

/* ---- Functions --------------------------------------------------------------------------------------------------- */

/* Output i: byte 1 + i. */
static lade_status maker_body(lade_graph_context *context, void *user) {
  const bench *b = user;
  lade_status status = LADE_OK;
  for (size_t i = 0; i < THREADS && status == LADE_OK; i++) {
    void *block = NULL;
    status = lade_graph_alloc(context, BYTES, &block);
    if (status == LADE_OK) status = lade_fill_async(b->runtime, block, (unsigned char)(i + 1), BYTES, context->stream);
    if (status == LADE_OK) status = lade_graph_output_memory(context, i, block, BYTES);
  }
  return status;
}

static lade_status copier_body(lade_graph_context *context, void *user) {
  const bench *b = user;
  lade_graph_value in;
  void *block = NULL;
  lade_status status = lade_graph_input_get(context, 0, &in);
  if (status == LADE_OK) status = lade_graph_alloc(context, BYTES, &block);
  if (status == LADE_OK) status = lade_copy_async(b->runtime, block, in.address, BYTES, context->stream);
  if (status == LADE_OK) status = lade_graph_input_drop(context, 0);
  return status == LADE_OK ? lade_graph_output_memory(context, 0, block, BYTES) : status;
}

static lade_graph_function *function_add(bench *b, lade_graph_body body, size_t inputs, size_t outputs) {
  lade_graph_function *function = NULL;
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  options.body = body;
  options.user = b;
  options.input_count = inputs;
  options.output_count = outputs;
  LADE_EXPECT_OK(lade_graph_tree_function_add(b->tree, &options, &function));
  return function;
}

static lade_status run(bench *b, int thread, lade_graph_function *function, const lade_graph_value *in,
                       lade_graph_value *out) {
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = b->streams[thread];
  call.inputs = in;
  call.input_count = in != NULL;
  return lade_graph_tree_run(b->tree, function, &call, out, THREADS, NULL);
}

/* Where the other thread has ended the path the buffer is gone; where it has suspended the pool a run is refused. */
static bool allowed(lade_status status) {
  bool may = status == LADE_OK || status == LADE_ERR_OVERWRITTEN || status == LADE_ERR_BUSY;
  if (!may) LADE_FAIL("%s", lade_last_error()->text);
  return status == LADE_OK;
}

static void expect_byte(bench *b, const lade_graph_value *value, unsigned char byte) {
  unsigned char host[BYTES] = {0}, wanted[BYTES];
  lade_runtime *inner = support_inner(b->runtime);
  memset(wanted, byte, sizeof wanted);
  LADE_EXPECT_OK(inner->ops->device_synchronize(inner->self, 0));
  LADE_EXPECT_OK(inner->ops->copy_sync(inner->self, 0, LADEI_COPY_D2H, host, value->address, sizeof host));
  LADE_EXPECT_EQ_MEM(host, wanted, sizeof host);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void own_release(bench *b, int thread) {
  if (b->held[thread] == 0) return;
  if (allowed(lade_graph_buffer_release(b->tree, b->own[thread].buffer))) b->held[thread]--;
}

static void op_copy(bench *b, int thread) {
  lade_graph_value out;
  if (!allowed(run(b, thread, b->copier, &b->own[thread], &out))) return;
  (void)allowed(lade_graph_buffer_release(b->tree, out.buffer));
}

static void op_copy_taken(bench *b, int thread) {
  lade_graph_value out, in = b->own[thread];
  in.kind = LADE_GRAPH_BUFFER_TAKEN;
  if (!allowed(run(b, thread, b->copier, &in, &out))) return;
  b->held[thread]--;
  (void)allowed(lade_graph_buffer_release(b->tree, out.buffer));
}

static void op_step_make(bench *b, int thread) {
  lade_graph_value outs[THREADS];
  LADE_EXPECT_OK(lade_graph_tree_step(b->tree));
  if (!allowed(run(b, thread, b->maker, NULL, outs))) return;
  for (int i = 0; i < THREADS; i++) (void)allowed(lade_graph_buffer_release(b->tree, outs[i].buffer));
}

static void op_release(bench *b, int thread) { own_release(b, thread); }

static void op_retain_release(bench *b, int thread) {
  if (!allowed(lade_graph_buffer_retain(b->tree, b->own[thread].buffer))) return;
  b->held[thread]++;
  own_release(b, thread);
  own_release(b, thread);
}

static void op_note(bench *b, int thread) {
  void *address = NULL;
  if (allowed(lade_graph_buffer_get(b->tree, b->own[thread].buffer, &address, NULL)))
    LADE_EXPECT_EQ_PTR(address, b->own[thread].address);
  (void)allowed(lade_graph_buffer_record_stream(b->tree, b->own[thread].buffer, b->streams[1 - thread]));
}

static void op_suspend(bench *b, int thread) {
  (void)thread;
  lade_status status = lade_device_pool_suspend(b->allocator, b->pool, NULL, NULL);
  if (status == LADE_ERR_CAPTURE || !allowed(status)) return;
  LADE_EXPECT_OK(lade_device_pool_resume(b->allocator, b->pool));
}

static void op_memory(bench *b, int thread) {
  uint64_t bytes = 0;
  (void)thread;
  (void)allowed(lade_graph_tree_trim(b->tree, &bytes));
  (void)allowed(lade_graph_tree_reserve(b->tree, 8 * BYTES));
}

static void op_functions(bench *b, int thread) {
  lade_graph_value out;
  lade_graph_function *function = function_add(b, copier_body, 1, 1);
  if (allowed(run(b, thread, function, &b->own[thread], &out)))
    (void)allowed(lade_graph_buffer_release(b->tree, out.buffer));
  LADE_EXPECT_OK(lade_graph_tree_function_remove(b->tree, function));
}

static void op_retire(bench *b, int thread) {
  LADE_EXPECT_OK(lade_graph_tree_stream_retire(b->tree, b->streams[1 - thread]));
}

static void op_look(bench *b, int thread) {
  lade_graph_tree_stats stats;
  (void)thread;
  lade_graph_tree_stats_init(&stats);
  LADE_EXPECT_OK(lade_graph_tree_stats_get(b->tree, &stats));
  (void)allowed(ladei_tree_verify(b->tree));
}

static const struct {
  const char *name;
  void (*run)(bench *b, int thread);
} operations[] = {{"copy", op_copy},
                  {"copy_taken", op_copy_taken},
                  {"step_make", op_step_make},
                  {"release", op_release},
                  {"retain_release", op_retain_release},
                  {"note", op_note},
                  {"suspend", op_suspend},
                  {"memory", op_memory},
                  {"functions", op_functions},
                  {"retire", op_retire},
                  {"look", op_look}};
static const char *const names[] = {"copy",    "copy_taken", "step_make", "release", "retain_release", "note",
                                    "suspend", "memory",     "functions", "retire",  "look",           NULL};

/* ---- Schedules --------------------------------------------------------------------------------------------------- */

static void prepare(void *user) {
  bench *b = user;
  lade_graph_value outs[THREADS];
  lade_graph_tree_stats state;
  lade_graph_tree_stats_init(&state);
  b->destroyed = false;
  LADE_EXPECT_OK(lade_graph_tree_create(b->allocator, NULL, &b->tree));
  LADE_EXPECT_OK(lade_graph_tree_stats_get(b->tree, &state));
  b->pool = state.pool;
  b->maker = function_add(b, maker_body, 0, THREADS);
  b->copier = function_add(b, copier_body, 1, 1);
  for (int i = 0; i < 2; i++) { /* warmed up, recorded */
    LADE_EXPECT_OK(lade_graph_tree_step(b->tree));
    LADE_EXPECT_OK(run(b, 0, b->maker, NULL, outs));
  }
  for (int i = 0; i < THREADS; i++) {
    b->own[i] = outs[i];
    b->held[i] = 1;
  }
}

static void body(void *user, int thread) {
  bench *b = user;
  operations[b->operations[thread]].run(b, thread);
}

static void findings_expect_none(bench *b) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(b->runtime, &report));
  if (report.freed_memory_used + report.unordered_reuse + report.stale_handles > 0)
    LADE_FAIL("the device found: %s", report.last_finding);
}

static void judge(void *user) {
  bench *b = user;
  if (!b->destroyed) {
    LADE_EXPECT_OK(ladei_tree_verify(b->tree));
    for (int i = 0; i < THREADS; i++) {
      bool valid = lade_graph_buffer_get(b->tree, b->own[i].buffer, NULL, NULL) == LADE_OK;
      LADE_EXPECT(b->held[i] > 0 || !valid);
      if (!valid) continue;
      if (b->has_bytes) expect_byte(b, &b->own[i], (unsigned char)(i + 1));
      while (b->held[i] > 0 && !lade_test_has_failed()) own_release(b, i);
    }
    LADE_EXPECT_OK(ladei_tree_verify(b->tree));
    LADE_EXPECT_OK(lade_graph_tree_destroy(b->tree, true));
  }
  LADE_EXPECT_EQ_UINT(ladei_device_active_count(b->allocator), 0);
  LADE_EXPECT_OK(lade_device_empty_cache(b->allocator));
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(b->allocator, &stats));
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.all.current, 0);
  LADE_EXPECT_EQ_UINT(atomic_load(&b->allocator->users), 0);
  LADE_EXPECT_EQ_INT(support_live(b->runtime, SUPPORT_LIVE_GRAPHS), 0);
  LADE_EXPECT_EQ_INT(support_live(b->runtime, SUPPORT_LIVE_GRAPH_EXECS), 0);
  findings_expect_none(b);
}

static void choose(void *user, int thread, int number) { ((bench *)user)->operations[thread] = number; }

static void on_call(void *user, const char *op) {
  (void)user;
  scheduler_point(op);
}

static bool bench_open(bench *b, bool has_bytes) {
  support_description description;
  lade_device_options options;
  support_description_init(&description);
  description.devices[0].addresses_only = !has_bytes;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  *b = (bench){.runtime = support_interposer_open("sim", &description.options), .has_bytes = has_bytes};
  if (b->runtime == NULL) return false;
  LADE_EXPECT_OK(lade_runtime_set_device(b->runtime, 0));
  LADE_EXPECT_OK(lade_device_allocator_create(b->runtime, 0, &options, &b->allocator));
  for (int i = 0; i < THREADS; i++) LADE_EXPECT_OK(lade_stream_create(b->runtime, 0, &b->streams[i]));
  return !lade_test_has_failed();
}

static void bench_close(bench *b) {
  support_on_call(b->runtime, NULL, NULL);
  for (int i = 0; i < THREADS; i++) {
    LADE_EXPECT_OK(lade_device_stream_retire(b->allocator, b->streams[i]));
    LADE_EXPECT_OK(lade_stream_destroy(b->runtime, b->streams[i]));
  }
  LADE_EXPECT_OK(lade_device_allocator_destroy(b->allocator, true));
  support_expect_nothing_live(b->runtime);
  support_runtime_close(b->runtime);
}

LADE_TEST_P(GraphSchedule, Pairs, names, name) {
  bench b;
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  if (!bench_open(&b, true)) return;
  const scheduler_plan plan = {.preemptions = scheduler_preemptions(1),
                               .prepare = prepare,
                               .body = body,
                               .judge = judge,
                               .names = names,
                               .choose = choose};
  support_on_call(b.runtime, on_call, NULL);
  scheduler_explore_pairs(&plan, &b, name);
  bench_close(&b);
}

/* ---- Destructions ------------------------------------------------------------------------------------------------ */

/* Thread 1 releases what a destruction waits for, while the pool goes and comes by its id. */
static void destroy_body(void *user, int thread) {
  bench *b = user;
  if (thread == 1) {
    lade_status status = lade_device_pool_suspend(b->allocator, b->pool, NULL, NULL);
    LADE_EXPECT(status == LADE_OK || status == LADE_ERR_BUSY);
    own_release(b, 1);
    if (status == LADE_OK) LADE_EXPECT_OK(lade_device_pool_resume(b->allocator, b->pool));
    return;
  }
  own_release(b, 0);
  lade_status status = lade_graph_tree_destroy(b->tree, true);
  b->destroyed = status == LADE_OK;
  (void)allowed(status); /* refused while it is suspended */
}

/* Without bytes: each suspend would touch a granule of them, in nine tenths of the time. */
LADE_TEST(GraphSchedule, DestroyBesideASuspend) {
  bench b;
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  if (!bench_open(&b, false)) return;
  const scheduler_plan plan = {.threads = THREADS,
                               .preemptions = scheduler_preemptions(2),
                               .prepare = prepare,
                               .body = destroy_body,
                               .judge = judge};
  uint64_t count = scheduler_explore(&plan, &b);
  if (plan.preemptions > 0)
    LADE_EXPECT_GT_UINT(count, 2);
  else
    LADE_EXPECT_EQ_UINT(count, 2); /* the one first, or the other */
  bench_close(&b);
}
