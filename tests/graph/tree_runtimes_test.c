/* SPDX-License-Identifier: Apache-2.0 */
/* A tree on every runtime: software devices, the loopback driver, a GPU. The same program, the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "graph/tree/tree.h"
#include "lade/graph.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

enum { BYTES = 1 << 20 };

typedef struct program {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_graph_tree *tree;
  lade_stream streams[2];
} program;

/* The key as bytes, by way of a block that is freed again. */
static lade_status maker_body(lade_graph_context *context, void *user) {
  const program *p = user;
  void *scratch = NULL, *block = NULL;
  if (context->key_count != 1) return LADE_ERR_CALLBACK;
  const uint64_t *key = context->key;
  lade_stream stream = context->stream;
  lade_status status = lade_graph_alloc(context, BYTES, &scratch);
  if (status == LADE_OK) status = lade_fill_async(p->runtime, scratch, (unsigned char)key[0], BYTES, stream);
  if (status == LADE_OK) status = lade_graph_alloc(context, BYTES, &block);
  if (status == LADE_OK) status = lade_copy_async(p->runtime, block, scratch, BYTES, stream);
  if (status == LADE_OK) status = lade_graph_free(context, scratch);
  return status != LADE_OK ? status : lade_graph_output_memory(context, 0, block, BYTES);
}

static lade_status copier_body(lade_graph_context *context, void *user) {
  const program *p = user;
  lade_graph_value in;
  void *block = NULL;
  lade_status status = lade_graph_input_get(context, 0, &in);
  if (status == LADE_OK) status = lade_graph_alloc(context, BYTES, &block);
  if (status == LADE_OK) status = lade_copy_async(p->runtime, block, in.address, BYTES, context->stream);
  if (status == LADE_OK) status = lade_graph_input_drop(context, 0);
  return status != LADE_OK ? status : lade_graph_output_memory(context, 0, block, BYTES);
}

static bool program_open(program *p, const char *name) {
  *p = (program){.runtime = support_runtime_open(name)};
  if (p->runtime == NULL) return false;
  LADE_EXPECT_OK(lade_runtime_set_device(p->runtime, 0));
  LADE_EXPECT_OK(lade_device_allocator_create(p->runtime, 0, NULL, &p->allocator));
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_stream_create(p->runtime, 0, &p->streams[i]));
  LADE_EXPECT_OK(lade_graph_tree_create(p->allocator, NULL, &p->tree));
  return !lade_test_has_failed();
}

static void program_close(program *p) {
  LADE_EXPECT_OK(lade_graph_tree_destroy(p->tree, true));
  for (int i = 0; i < 2; i++) {
    LADE_EXPECT_OK(lade_device_stream_retire(p->allocator, p->streams[i]));
    LADE_EXPECT_OK(lade_stream_destroy(p->runtime, p->streams[i]));
  }
  LADE_EXPECT_OK(lade_device_allocator_destroy(p->allocator, true));
  support_runtime_close(p->runtime);
}

static lade_graph_function *function_add(program *p, lade_graph_body body, size_t inputs) {
  lade_graph_function *function = NULL;
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  options.body = body;
  options.user = p;
  options.input_count = inputs;
  options.output_count = 1;
  LADE_EXPECT_OK(lade_graph_tree_function_add(p->tree, &options, &function));
  return function;
}

static lade_graph_value run(program *p, lade_graph_function *function, uint64_t key, const lade_graph_value *in,
                            int stream) {
  lade_graph_value out = {0};
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = p->streams[stream];
  call.key = &key;
  call.key_count = 1;
  call.inputs = in;
  call.input_count = in != NULL;
  LADE_EXPECT_OK(lade_graph_tree_run(p->tree, function, &call, &out, 1, NULL));
  LADE_EXPECT_OK(ladei_tree_verify(p->tree));
  return out;
}

static void expect_bytes(program *p, const lade_graph_value *value, unsigned char byte, int stream) {
  static unsigned char got[BYTES], want[BYTES];
  memset(want, byte, sizeof want);
  LADE_EXPECT_OK(lade_stream_synchronize(p->runtime, p->streams[stream]));
  LADE_EXPECT_OK(p->runtime->ops->copy_sync(p->runtime->self, 0, LADEI_COPY_D2H, got, value->address, sizeof got));
  LADE_EXPECT_EQ_MEM(got, want, sizeof got);
}

static void release(program *p, const lade_graph_value *value) {
  LADE_EXPECT_OK(lade_graph_buffer_release(p->tree, value->buffer));
}

/* A prefill, and steps whose last output is the next one's input; two branches in turn, on two streams. */
LADE_TEST_P(GraphRuntimes, StepsWithBranches, SUPPORT_RUNTIMES, name) {
  program p;
  if (!program_open(&p, name)) return;
  lade_graph_function *maker = function_add(&p, maker_body, 0), *copier = function_add(&p, copier_body, 1);
  lade_graph_value state = run(&p, maker, 5, NULL, 0);
  for (int i = 0; i < 16 && !lade_test_has_failed(); i++) {
    lade_graph_value taken = state;
    taken.kind = LADE_GRAPH_BUFFER_TAKEN;
    LADE_EXPECT_OK(lade_graph_tree_step(p.tree));
    state = run(&p, copier, 1, &taken, 0); /* carried out of the last step's path */
    lade_graph_value branch = run(&p, maker, 6 + (uint64_t)(i % 2), NULL, i % 4 == 3);
    expect_bytes(&p, &branch, (unsigned char)(6 + i % 2), i % 4 == 3);
    expect_bytes(&p, &state, 5, 0);
    release(&p, &branch);
  }
  release(&p, &state);
  lade_graph_tree_stats stats;
  lade_graph_tree_stats_init(&stats);
  LADE_EXPECT_OK(lade_graph_tree_stats_get(p.tree, &stats));
  LADE_EXPECT_EQ_UINT(stats.nodes, 3);
  LADE_EXPECT_GE_UINT(stats.replays, 20);
  LADE_EXPECT_GE_UINT(stats.restores, 1);
  LADE_EXPECT_EQ_UINT(stats.eager_runs, 0);
  LADE_EXPECT_OK(lade_graph_tree_trim(p.tree, NULL));
  program_close(&p);
}

LADE_TEST_P(GraphRuntimes, DestroyedWithWorkUnderWay, SUPPORT_RUNTIMES, name) {
  program p;
  if (!program_open(&p, name)) return;
  lade_graph_function *maker = function_add(&p, maker_body, 0);
  for (int i = 0; i < 4; i++) {
    LADE_EXPECT_OK(lade_graph_tree_step(p.tree));
    lade_graph_value out = run(&p, maker, 1, NULL, i % 2);
    release(&p, &out);
  }
  program_close(&p);
}
