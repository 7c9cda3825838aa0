/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every driver call and every allocation of host memory that a tree makes fails once, at each of its places, in each state. Behind
 * a run that failed the pool holds exactly what lives, what is valid has its bytes, and the same run succeeds.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "graph/tree/tree.h"
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
  lade_graph_tree *tree;
  lade_stream streams[3]; /* the last one: the thread's own */
  lade_graph_function *maker, *copier, *writer, *passer;
  lade_graph_value memory; /* with byte 1 */
  lade_status first;
} program;

/* ---- Functions --------------------------------------------------------------------------------------------------- */

/* Output 0: byte 1. A block besides that is freed, and one that is left. */
static lade_status maker_body(lade_graph_context *context, void *user) {
  const program *p = user;
  lade_stream stream = context->stream;
  void *block = NULL, *scratch = NULL, *left = NULL;
  lade_status status = lade_graph_alloc(context, BYTES, &scratch);
  if (status == LADE_OK) status = lade_graph_alloc(context, BYTES, &block);
  if (status == LADE_OK) status = lade_graph_free(context, scratch);
  if (status == LADE_OK) status = lade_graph_alloc(context, 2 * BYTES, &left);
  if (status == LADE_OK) status = lade_fill_async(p->runtime, block, 1, BYTES, stream);
  return status != LADE_OK ? status : lade_graph_output_memory(context, 0, block, BYTES);
}

/* Output 0: a copy of the input, which is dropped. Output 1: a number. */
static lade_status copier_body(lade_graph_context *context, void *user) {
  const program *p = user;
  lade_graph_value in;
  void *block = NULL;
  lade_status status = lade_graph_input_get(context, 0, &in);
  if (status == LADE_OK) status = lade_graph_alloc(context, BYTES, &block);
  if (status == LADE_OK) status = lade_copy_async(p->runtime, block, in.address, BYTES, context->stream);
  if (status == LADE_OK) status = lade_graph_input_drop(context, 0);
  if (status == LADE_OK) status = lade_graph_output_memory(context, 0, block, BYTES);
  return status != LADE_OK ? status : lade_graph_output_integer(context, 1, 5);
}

/* Writes byte 1 to its input, and gives it out again. */
static lade_status writer_body(lade_graph_context *context, void *user) {
  const program *p = user;
  lade_graph_value in;
  lade_status status = lade_graph_input_get(context, 0, &in);
  if (status == LADE_OK) status = lade_fill_async(p->runtime, in.address, 1, BYTES, context->stream);
  return status != LADE_OK ? status : lade_graph_output_memory(context, 0, in.address, BYTES);
}

/* Gives its input out again, and a block of lade_device_alloc(). */
static lade_status passer_body(lade_graph_context *context, void *user) {
  const program *p = user;
  lade_graph_value in;
  void *block = NULL;
  lade_stream stream = context->stream;
  bool eager = context->stage == LADE_GRAPH_STAGE_EAGER;
  lade_status status = lade_graph_input_get(context, 0, &in);
  if (status == LADE_OK)
    status = eager ? lade_graph_alloc(context, BYTES, &block) : lade_device_alloc(p->allocator, BYTES, stream, &block);
  if (status == LADE_OK) status = lade_fill_async(p->runtime, block, 1, BYTES, stream);
  if (status == LADE_OK) status = lade_graph_output_memory(context, 1, block, BYTES);
  return status != LADE_OK ? status : lade_graph_output_memory(context, 0, in.address, BYTES);
}

static lade_graph_function *function_add(program *p, lade_graph_body body, size_t inputs, size_t outputs,
                                         uint32_t flag) {
  lade_graph_function *function = NULL;
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  options.body = body;
  options.user = p;
  options.name = "f";
  options.input_count = inputs;
  options.input_flags = &flag;
  options.output_count = outputs;
  SUPPORT_TWICE(&p->first, lade_graph_tree_function_add(p->tree, &options, &function));
  return function;
}

/* ---- Looks ------------------------------------------------------------------------------------------------------- */

static void expect_ones(program *p, const lade_graph_value *value) {
  failing_memory_rest(true);
  unsigned char host[BYTES] = {0}, wanted[BYTES];
  lade_runtime *inner = support_inner(p->runtime);
  memset(wanted, 1, sizeof wanted);
  LADE_EXPECT_OK(inner->ops->device_synchronize(inner->self, 0));
  LADE_EXPECT_OK(inner->ops->copy_sync(inner->self, 0, LADEI_COPY_D2H, host, value->address, sizeof host));
  LADE_EXPECT_EQ_MEM(host, wanted, sizeof host);
  failing_memory_rest(false);
}

static bool is_valid(program *p, const lade_graph_value *value) {
  failing_memory_rest(true);
  lade_error error;
  ladei_error_save(&error);
  bool valid = lade_graph_buffer_get(p->tree, value->buffer, NULL, NULL) == LADE_OK;
  ladei_error_restore(&error);
  failing_memory_rest(false);
  return valid;
}

static void expect_sound(program *p) {
  failing_memory_rest(true);
  LADE_EXPECT_OK(ladei_tree_verify(p->tree));
  failing_memory_rest(false);
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

/* Runs, if need be twice. `in` may be lost by the first attempt: the program's memory has the same byte. */
static void run(program *p, lade_graph_function *function, lade_graph_value *in, lade_graph_value *out, int stream) {
  lade_graph_value values[2] = {{0}};
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = p->streams[stream];
  call.inputs = in;
  call.input_count = in != NULL;
  lade_status status = lade_graph_tree_run(p->tree, function, &call, values, 2, NULL);
  support_note(&p->first, status);
  expect_sound(p);
  if (status != LADE_OK && in != NULL && in->kind != LADE_GRAPH_MEMORY) {
    if (is_valid(p, in))
      expect_ones(p, in);
    else
      *in = p->memory;
  }
  if (status != LADE_OK) LADE_ASSERT_OK(lade_graph_tree_run(p->tree, function, &call, values, 2, NULL));
  expect_sound(p);
  expect_ones(p, &values[0]);
  if (function == p->passer) {
    expect_ones(p, &values[1]);
    LADE_EXPECT_OK(lade_graph_buffer_release(p->tree, values[1].buffer));
  }
  *out = values[0];
}

static void release(program *p, lade_graph_value *value) {
  if (value->kind != LADE_GRAPH_BUFFER || !is_valid(p, value)) return;
  LADE_EXPECT_OK(lade_graph_buffer_release(p->tree, value->buffer));
  expect_sound(p);
}

static void step(program *p) { LADE_EXPECT_OK(lade_graph_tree_step(p->tree)); }

static void round_run(program *p) {
  lade_graph_value a = {0}, b = {0}, c = {0}, taken;
  step(p);
  run(p, p->maker, NULL, &a, 0);
  run(p, p->copier, &a, &b, 0); /* behind it, with a restore where it was replayed */
  expect_ones(p, &a);
  run(p, p->writer, &b, &c, 1); /* on another stream, in place */
  release(p, &c);
  taken = b;
  taken.kind = LADE_GRAPH_BUFFER_TAKEN;
  step(p);
  run(p, p->copier, &taken, &c, 0); /* carried out of the path that ends */
  release(p, &a);
  release(p, &b);
  step(p);
  taken = p->memory;
  run(p, p->copier, &taken, &b, 0);
  release(p, &c);
  taken = p->memory;
  run(p, p->writer, &taken, &c, 0); /* eager */
  release(p, &b);
  release(p, &c);
}

/* Buffers are noted for streams, taken, given out again and carried, while the pool comes and goes. */
static void round_pass(program *p, bool suspends) {
  lade_graph_value a = {0}, b = {0}, c = {0}, taken;
  lade_graph_tree_stats state;
  lade_graph_tree_stats_init(&state);
  LADE_EXPECT_OK(lade_graph_tree_stats_get(p->tree, &state));
  step(p);
  run(p, p->maker, NULL, &a, 2);
  SUPPORT_TWICE(&p->first, lade_graph_buffer_record_stream(p->tree, a.buffer, p->streams[1]));
  LADE_EXPECT_OK(lade_graph_buffer_retain(p->tree, a.buffer));
  taken = a;
  taken.kind = LADE_GRAPH_BUFFER_TAKEN;
  run(p, p->passer, &taken, &b, 0); /* in place: of the path */
  SUPPORT_TWICE(&p->first, lade_graph_buffer_record_stream(p->tree, b.buffer, p->streams[2]));
  if (suspends) SUPPORT_TWICE(&p->first, lade_device_pool_suspend(p->allocator, state.pool, NULL, NULL));
  if (is_valid(p, &a)) LADE_EXPECT_OK(lade_graph_buffer_release(p->tree, a.buffer));
  if (suspends) SUPPORT_TWICE(&p->first, lade_device_pool_resume(p->allocator, state.pool));
  expect_ones(p, &b);
  step(p);
  taken = b;
  taken.kind = LADE_GRAPH_BUFFER_TAKEN;
  run(p, p->passer, &taken, &c, 1); /* carried */
  release(p, &a);
  release(p, &b);
  release(p, &c);
}

static void tree_pass(program *p) {
  uint64_t bytes = 0;
  lade_graph_tree_options options;
  lade_graph_tree_options_init(&options);
  options.max_rerecords = 2;
  SUPPORT_TWICE(&p->first, lade_graph_tree_create(p->allocator, &options, &p->tree));
  p->maker = function_add(p, maker_body, 0, 1, 0);
  p->passer = function_add(p, passer_body, 1, 2, 0);
  if (lade_test_has_failed()) return;
  for (int i = 0; i < 3 && !lade_test_has_failed(); i++) round_pass(p, i == 1);
  SUPPORT_TWICE(&p->first, lade_graph_tree_stream_retire(p->tree, p->streams[1]));
  SUPPORT_TWICE(&p->first, lade_graph_tree_function_remove(p->tree, p->passer));
  SUPPORT_TWICE(&p->first, lade_graph_tree_trim(p->tree, &bytes));
  expect_sound(p);
  SUPPORT_TWICE(&p->first, lade_graph_tree_destroy(p->tree, true));
}

static void tree_live(program *p) {
  uint64_t bytes = 0;
  lade_graph_tree_options options;
  lade_graph_tree_options_init(&options);
  options.max_nodes = 5;
  SUPPORT_TWICE(&p->first, lade_graph_tree_create(p->allocator, &options, &p->tree));
  p->maker = function_add(p, maker_body, 0, 1, 0);
  p->copier = function_add(p, copier_body, 1, 2, 0);
  p->writer = function_add(p, writer_body, 1, 1, LADE_GRAPH_MUTATED);
  if (lade_test_has_failed()) return;
  SUPPORT_TWICE(&p->first, lade_graph_tree_reserve(p->tree, 64 * BYTES));
  for (int i = 0; i < 4 && !lade_test_has_failed(); i++) round_run(p);
  SUPPORT_TWICE(&p->first, lade_graph_tree_stream_retire(p->tree, p->streams[1]));
  SUPPORT_TWICE(&p->first, lade_graph_tree_trim(p->tree, &bytes));
  SUPPORT_TWICE(&p->first, lade_graph_tree_function_remove(p->tree, p->copier));
  expect_sound(p);
  SUPPORT_TWICE(&p->first, lade_graph_tree_destroy(p->tree, true));
}

static lade_status trees_use(lade_runtime *runtime, void *user) {
  program p = {.runtime = runtime, .memory = {.kind = LADE_GRAPH_MEMORY, .bytes = BYTES}};
  const bool *passes = user;
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = *passes;
  options.flags = *passes ? LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS : 0;
  p.streams[2] = LADE_STREAM_PER_THREAD;
  SUPPORT_TWICE(&p.first, lade_runtime_set_device(runtime, 0));
  SUPPORT_TWICE(&p.first, lade_device_allocator_create(runtime, 0, &options, &p.allocator));
  for (int i = 0; i < 2; i++) SUPPORT_TWICE(&p.first, lade_stream_create(runtime, 0, &p.streams[i]));
  SUPPORT_TWICE(&p.first, lade_device_alloc(p.allocator, BYTES, p.streams[0], &p.memory.address));
  SUPPORT_TWICE(&p.first, lade_fill_async(runtime, p.memory.address, 1, BYTES, p.streams[0]));
  if (*passes)
    tree_pass(&p);
  else
    tree_live(&p);
  SUPPORT_TWICE(&p.first, lade_device_free(p.allocator, p.memory.address));
  for (int i = 0; i < 2; i++) SUPPORT_TWICE(&p.first, lade_device_stream_retire(p.allocator, p.streams[i]));
  SUPPORT_TWICE(&p.first, lade_device_allocator_destroy(p.allocator, true));
  for (int i = 0; i < 2; i++) SUPPORT_TWICE(&p.first, lade_stream_destroy(runtime, p.streams[i]));
  return p.first;
}

static bool yes = true, no = false;

LADE_TEST(GraphTree, LosesNothingWhenAnyDriverCallFails) { support_for_each_failure("sim", trees_use, NULL, &no); }
LADE_TEST(GraphTree, LosesNothingThatIsPassedOnWhenAnyDriverCallFails) {
  support_for_each_failure("sim", trees_use, NULL, &yes);
}

/* The driver refuses to take something back. (Events that it refuses are its own loss: runtime/retire.) */
LADE_TEST(GraphTree, LosesNothingThatTheDriverRefusesToDestroy) {
  static const char *const ops[] = {"graph_exec_destroy", "graph_destroy", "stream_destroy"};
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    bool failed = true;
    for (uint64_t nth = 1; failed && !lade_test_has_failed(); nth++) {
      lade_runtime *runtime = support_interposer_open("sim", NULL);
      if (runtime == NULL) return;
      support_fail(runtime, ops[i], nth, 1);
      (void)trees_use(runtime, &no);
      failed = support_failed_calls(runtime) > 0;
      LADE_EXPECT(failed || nth > 2);
      support_expect_nothing_live(runtime);
      support_runtime_close(runtime);
    }
  }
}

/* A recording fails in its body, or where its graph is made executable, and the driver refuses to take back the graph. */
LADE_TEST(GraphTree, KeepsARecordingThatFailedAndThatTheDriverRefusesToDestroy) {
  static const uint32_t faults[] = {LADEI_TREE_FAULT_CALLBACK, LADEI_TREE_FAULT_INSTANTIATE};
  for (size_t i = 0; i < sizeof faults / sizeof *faults && !lade_test_has_failed(); i++) {
    program p = {.runtime = support_interposer_open("sim", NULL)};
    lade_graph_value out = {0};
    lade_graph_call call;
    LADE_ASSERT(p.runtime != NULL);
    LADE_ASSERT_OK(lade_device_allocator_create(p.runtime, 0, NULL, &p.allocator));
    LADE_ASSERT_OK(lade_stream_create(p.runtime, 0, &p.streams[0]));
    LADE_ASSERT_OK(lade_graph_tree_create(p.allocator, NULL, &p.tree));
    p.maker = function_add(&p, maker_body, 0, 1, 0);
    lade_graph_call_init(&call);
    call.stream = p.streams[0];
    LADE_EXPECT_OK(lade_graph_tree_run(p.tree, p.maker, &call, &out, 1, NULL));
    release(&p, &out);
    LADE_EXPECT_OK(ladei_tree_fail_next(p.tree, faults[i]));
    support_fail(p.runtime, "graph_destroy", 1, 4); /* each refusal is one attempt: in the run, and behind it */
    LADE_EXPECT_NE_INT(lade_graph_tree_run(p.tree, p.maker, &call, &out, 1, NULL), LADE_OK);
    LADE_EXPECT_EQ_UINT(support_live(p.runtime, SUPPORT_LIVE_GRAPHS), 1);
    support_fail(p.runtime, "graph_destroy", 1, 1);
    LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_graph_tree_destroy(p.tree, true));
    LADE_EXPECT_OK(lade_graph_tree_destroy(p.tree, true));
    LADE_EXPECT_OK(lade_device_stream_retire(p.allocator, p.streams[0]));
    LADE_EXPECT_OK(lade_device_allocator_destroy(p.allocator, true));
    LADE_EXPECT_OK(lade_stream_destroy(p.runtime, p.streams[0]));
    support_expect_nothing_live(p.runtime);
    support_runtime_close(p.runtime);
  }
}

static void without_host_memory(bool *passes) {
  uint64_t count = 1;
  for (uint64_t k = 0; k <= count && !lade_test_has_failed(); k++) {
    lade_runtime *runtime = support_interposer_open("sim", NULL);
    LADE_ASSERT(runtime != NULL);
    lade_test_context("allocation %" PRIu64 " of %" PRIu64 " fails", k, count);
    failing_memory_fail(k, FAILING_MEMORY_OF_ALL);
    lade_status status = trees_use(runtime, passes);
    uint64_t allocations = failing_memory_whole();
    if (k == 0) count = allocations;
    bool told = status == LADE_OK || status == LADE_ERR_CALLBACK || status == LADE_ERR_OUT_OF_HOST_MEMORY ||
                status == LADE_ERR_OUT_OF_PINNED_MEMORY; /* of a suspend: the software device's */
    LADE_EXPECT(told || status == LADE_ERR_CAPTURE);     /* what the software device says of joins it cannot look at */
    support_expect_nothing_live(runtime);
    support_runtime_close(runtime);
  }
  lade_test_context("%s", "");
  LADE_EXPECT_GT_UINT(count, 50);
}

LADE_TEST(GraphTree, LosesNothingWithoutHostMemory) { without_host_memory(&no); }
LADE_TEST(GraphTree, LosesNothingThatIsPassedOnWithoutHostMemory) { without_host_memory(&yes); }
