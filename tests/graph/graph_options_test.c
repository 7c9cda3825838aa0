/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All options of graph trees and their functions, and of single graphs, with all others: every output of every run has the bytes
 * that its inputs say, whatever was replayed, recorded or run eagerly.
 */
#include <string.h>

#include "graph/tree/tree.h"
#include "tests/graph/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/crossing.h"

enum { INPUTS = 3, OUTPUTS = 3, RUNS = 8, BYTES = 3000 };

typedef struct crossed {
  lade_graph_tree_options options;
  lade_graph_function_options function;
} crossed;

static const support_option tree_options[] = {
    SUPPORT_OPTION(crossed, options.warmups, 0, 1, 3, LADE_GRAPH_NONE),
    SUPPORT_OPTION(crossed, options.max_nodes, 0, 1, 2, UINT64_MAX),
    SUPPORT_OPTION(crossed, options.max_rerecords, 0, 1, LADE_GRAPH_NONE),
    SUPPORT_OPTION(crossed, options.max_driver_bytes, 0, 1, UINT64_MAX),
    SUPPORT_OPTION(crossed, options.flags, 0, LADE_GRAPH_TREE_FIXED_STATICS),
    SUPPORT_CHOICE("outside", 0, 1),
    SUPPORT_CHOICE("pool", 0, 1),
    SUPPORT_CHOICE("hooks", 0, 1),
    SUPPORT_CHOICE("inputs", 0, 1, INPUTS),
    SUPPORT_CHOICE("input flags", 0, LADE_GRAPH_STATIC),
    SUPPORT_CHOICE("outputs", 0, 1, OUTPUTS),
    SUPPORT_CHOICE("mode", LADE_GRAPH_INFERENCE, LADE_GRAPH_FORWARD, LADE_GRAPH_BACKWARD),
    SUPPORT_CHOICE("moves", 0, 1),
    SUPPORT_CHOICE("steps", 0, 1),
};
static const support_option tree_wrong[] = {
    SUPPORT_OPTION(crossed, options.flags, 2, UINT32_MAX),
    SUPPORT_OPTION(crossed, options.reserved, 1),
    SUPPORT_OPTION(crossed, function.mode, 3, UINT32_MAX),
    SUPPORT_OPTION(crossed, function.reserved, 1),
    SUPPORT_OPTION(crossed, function.input_count, 65536, UINT64_MAX),
    SUPPORT_OPTION(crossed, function.output_count, 65536, UINT64_MAX),
};

typedef struct stage {
  graph_fixture f;
  lade_device_allocator *outside;
  lade_graph_value memory[2][INPUTS]; /* two places of each input */
  int hooks;
} stage;

static lade_status hook_count(void *user, lade_graph_stage at, lade_stream stream) {
  (void)at;
  (void)stream;
  ++*(int *)user;
  return LADE_OK;
}

/* Output i is a copy of input i, or bytes of its own without inputs. */
static void script_write(graph_script *script, uint64_t inputs, uint64_t outputs) {
  graph_script_step *step = script->steps;
  memset(script, 0, sizeof *script);
  for (uint64_t i = 0; i < outputs; i++) {
    *step++ = (graph_script_step){GRAPH_ALLOC, i, BYTES};
    *step++ = inputs > 0 ? (graph_script_step){GRAPH_COPY, i % inputs, i} : (graph_script_step){GRAPH_FILL, i, 7 + i};
    *step++ = (graph_script_step){GRAPH_OUT_LOCAL, i, 0};
  }
}

/* One run with inputs of other bytes than before. False: it was refused, as it may be. */
static bool tree_run(stage *s, const support_crossing *crossing, lade_graph_function *function, int run) {
  const uint64_t inputs = support_crossing_value(crossing, "inputs"),
                 outputs = support_crossing_value(crossing, "outputs");
  const bool moved = support_crossing_value(crossing, "moves") != 0 && run % 4 >= 2;
  lade_graph_value in[INPUTS], out[OUTPUTS];
  unsigned char first = (unsigned char)(16 * run + 1);
  for (uint64_t i = 0; i < inputs; i++) {
    in[i] = s->memory[moved][i];
    LADE_EXPECT_OK(lade_fill_async(s->f.runtime, in[i].address, (uint8_t)(first + i), BYTES, s->f.streams[0]));
  }
  lade_status status = graph_fixture_call(&s->f, function, in, inputs, out);
  bool may_refuse = support_crossing_value(crossing, "moves") != 0 && inputs > 0 &&
                    support_crossing_value(crossing, "input flags") != 0 &&
                    support_crossing_value(crossing, "options.flags") == LADE_GRAPH_TREE_FIXED_STATICS;
  if (status == LADE_ERR_INVALID_ARGUMENT && may_refuse) return false;
  LADE_EXPECT_OK(status);
  for (uint64_t i = 0; i < outputs && status == LADE_OK; i++) {
    graph_fixture_expect(&s->f, &out[i], (unsigned char)(inputs > 0 ? first + i % inputs : 7 + i));
    graph_fixture_release(&s->f, out[i]);
  }
  return status == LADE_OK;
}

static lade_status function_refuse(stage *s, const crossed *given) {
  lade_graph_function *function = NULL;
  lade_status status = lade_graph_tree_function_add(s->f.tree, &given->function, &function);
  LADE_EXPECT_EQ_PTR(function, NULL);
  return status;
}

static lade_status body_none(lade_graph_context *context, void *user) {
  (void)context;
  (void)user;
  return LADE_OK;
}

static void tree_use(stage *s, support_crossing *crossing, const crossed *given) {
  const uint64_t inputs = support_crossing_value(crossing, "inputs"),
                 outputs = support_crossing_value(crossing, "outputs");
  const uint32_t flag = (uint32_t)support_crossing_value(crossing, "input flags"), flags[] = {flag, flag, flag};
  graph_script script;
  if (crossing->wrong != NULL) {
    const char *const field[] = {crossing->wrong + sizeof "function", NULL};
    support_crossing_refused(crossing, function_refuse(s, given), field);
    return;
  }
  script_write(&script, inputs, outputs);
  lade_graph_function *function = graph_fixture_function_mode(
      &s->f, &script, inputs, flags, outputs, (lade_graph_mode)support_crossing_value(crossing, "mode"));
  for (int run = 0; run < RUNS && tree_run(s, crossing, function, run); run++)
    if (support_crossing_value(crossing, "steps") != 0) graph_fixture_step(&s->f);
  LADE_EXPECT_OK(ladei_tree_verify(s->f.tree));
  LADE_EXPECT(support_crossing_value(crossing, "hooks") == 0 || s->hooks > 0);
  lade_graph_tree_stats stats = graph_fixture_stats(&s->f);
  if (given->options.max_nodes != 0) LADE_EXPECT_LE_UINT(stats.nodes, given->options.max_nodes);
}

static void tree_combination(stage *s, support_crossing *crossing, crossed *given) {
  static const char *const none[] = {NULL};
  lade_device_pool_id pool = {0, 0};
  s->hooks = 0;
  s->f.tree = NULL;
  if (support_crossing_value(crossing, "outside") != 0) given->options.outside = s->outside;
  if (support_crossing_value(crossing, "hooks") != 0) given->options.before = given->options.after = hook_count;
  given->options.user = &s->hooks;
  given->function.body = body_none;
  if (support_crossing_value(crossing, "pool") != 0) {
    LADE_EXPECT_OK(lade_device_pool_create(s->f.allocator, NULL, &pool));
    given->options.pool = pool;
  }
  lade_status status = lade_graph_tree_create(s->f.allocator, &given->options, &s->f.tree);
  if (crossing->wrong != NULL && strncmp(crossing->wrong, "options.", 8) == 0) {
    support_crossing_refused(crossing, status, none);
    LADE_EXPECT_EQ_PTR(s->f.tree, NULL);
  } else {
    LADE_EXPECT_OK(status);
    if (status == LADE_OK) tree_use(s, crossing, given);
    LADE_EXPECT_OK(lade_stream_synchronize(s->f.runtime, s->f.streams[0]));
    LADE_EXPECT_OK(lade_graph_tree_destroy(s->f.tree, true));
  }
  if (pool.second != 0) LADE_EXPECT_OK(lade_device_pool_release(s->f.allocator, pool));
}

static void crossed_init(crossed *given) {
  lade_graph_tree_options_init(&given->options);
  lade_graph_function_options_init(&given->function);
}

LADE_TEST_P(GraphOptions, TreesCrossed, support_soft_runtimes, name) {
  stage s;
  support_crossing crossing;
  crossed given;
  if (!graph_fixture_open(&s.f, name, NULL)) return;
  lade_graph_tree *first = s.f.tree;
  LADE_EXPECT_OK(lade_device_allocator_create(s.f.runtime, 0, NULL, &s.outside));
  for (int i = 0; i < 2 * INPUTS; i++) s.memory[i / INPUTS][i % INPUTS] = graph_fixture_memory(&s.f, BYTES, 0);
  support_crossing_start(&crossing, SUPPORT_OPTIONS(tree_options), SUPPORT_OPTIONS(tree_wrong), 32, 20);
  for (crossed_init(&given); support_crossing_next(&crossing, &given); crossed_init(&given))
    tree_combination(&s, &crossing, &given);
  s.f.tree = first;
  for (int i = 0; i < 2 * INPUTS; i++) graph_fixture_memory_free(&s.f, s.memory[i / INPUTS][i % INPUTS]);
  LADE_EXPECT_OK(lade_device_allocator_destroy(s.outside, true));
  graph_fixture_close(&s.f);
}

/* --- single graphs ------------------------------------------------------------------------------------------------ */

static const support_option graph_options[] = {
    SUPPORT_OPTION(lade_graph_options, stream_count, 0, 1),
    SUPPORT_OPTION(lade_graph_options, strictness, LADE_GRAPH_THREAD_LOCAL, LADE_GRAPH_GLOBAL, LADE_GRAPH_RELAXED),
    SUPPORT_OPTION(lade_graph_options, flags, 0, LADE_GRAPH_AUTO_FREE),
    SUPPORT_CHOICE("pool", 0, 1, 2),
    SUPPORT_CHOICE("frees", 0, 1),
    SUPPORT_CHOICE("fails", 0, 0, 1),
};
static const support_option graph_wrong[] = {
    SUPPORT_OPTION(lade_graph_options, stream_count, 64, UINT64_MAX),
    SUPPORT_OPTION(lade_graph_options, strictness, 3, UINT32_MAX),
    SUPPORT_OPTION(lade_graph_options, flags, LADE_GRAPH_BORROW_NATIVE, 8, UINT32_MAX),
};

typedef struct capture_code {
  graph_fixture *f;
  const support_crossing *crossing;
  char *target;
  void *kept;
} capture_code;

static lade_status code_run(lade_stream stream, void *user) {
  capture_code *w = user;
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(w->f->allocator, BYTES, stream, &block));
  LADE_EXPECT_OK(lade_fill_async(w->f->runtime, block, 0x3c, BYTES, stream));
  LADE_EXPECT_OK(lade_copy_async(w->f->runtime, w->target, block, BYTES, stream));
  if (support_crossing_value(w->crossing, "frees") != 0) LADE_EXPECT_OK(lade_device_free(w->f->allocator, block));
  w->kept = support_crossing_value(w->crossing, "frees") != 0 ? NULL : block;
  return support_crossing_value(w->crossing, "fails") != 0 ? LADE_ERR_FORMAT : LADE_OK;
}

static void target_expect(const graph_fixture *f, const char *target, unsigned char byte) {
  unsigned char got[BYTES], want[BYTES];
  memset(want, byte, sizeof want);
  LADE_EXPECT_OK(lade_stream_synchronize(f->runtime, f->streams[0]));
  LADE_EXPECT_OK(f->runtime->ops->copy_sync(f->runtime->self, 0, LADEI_COPY_D2H, got, target, sizeof got));
  LADE_EXPECT_EQ_MEM(got, want, sizeof got);
}

static uint64_t blocks_of(const graph_fixture *f) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(f->allocator, &stats));
  return stats.allocation.all.current;
}

static void graph_launch(graph_fixture *f, lade_graph *graph, capture_code *code) {
  for (int i = 0; i < 3; i++) {
    LADE_EXPECT_OK(lade_fill_async(f->runtime, code->target, 0, BYTES, f->streams[0]));
    target_expect(f, code->target, 0);
    LADE_EXPECT_OK(lade_graph_launch(graph, f->streams[0]));
    target_expect(f, code->target, 0x3c);
  }
  LADE_EXPECT_OK(lade_device_free(f->allocator, code->kept));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
}

static void graph_combination(graph_fixture *f, support_crossing *crossing, lade_graph_options *given, char *target) {
  static const char *const none[] = {NULL};
  const uint64_t pool = support_crossing_value(crossing, "pool"), blocks = blocks_of(f);
  capture_code code = {f, crossing, target, NULL};
  lade_device_pool_id id = {7, crossing->number};
  lade_graph *graph = NULL;
  given->stream = f->streams[0];
  given->streams = &f->streams[1];
  if (pool == 1) LADE_EXPECT_OK(lade_device_pool_create(f->allocator, NULL, &id));
  if (pool != 0) given->pool = id;
  lade_status status = lade_graph_capture(f->allocator, given, code_run, &code, &graph);
  if (crossing->wrong != NULL) {
    support_crossing_refused(crossing, status, none);
  } else if (support_crossing_value(crossing, "fails") != 0) {
    LADE_EXPECT_EQ_INT(status, LADE_ERR_CALLBACK);
  } else {
    LADE_EXPECT_OK(status);
    if (status == LADE_OK) graph_launch(f, graph, &code);
    graph = NULL;
  }
  LADE_EXPECT_EQ_PTR(graph, NULL);
  if (pool == 1) LADE_EXPECT_OK(lade_device_pool_release(f->allocator, id));
  LADE_EXPECT_EQ_UINT(blocks_of(f), blocks);
}

LADE_TEST_P(GraphOptions, SinglesCrossed, support_soft_runtimes, name) {
  graph_fixture f;
  support_crossing crossing;
  lade_graph_options given;
  if (!graph_fixture_open(&f, name, NULL)) return;
  lade_graph_value target = graph_fixture_memory(&f, BYTES, 0);
  support_crossing_start(&crossing, SUPPORT_OPTIONS(graph_options), SUPPORT_OPTIONS(graph_wrong), 33, 20);
  for (lade_graph_options_init(&given); support_crossing_next(&crossing, &given); lade_graph_options_init(&given))
    graph_combination(&f, &crossing, &given, target.address);
  graph_fixture_memory_free(&f, target);
  graph_fixture_close(&f);
}
