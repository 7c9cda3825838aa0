/* SPDX-License-Identifier: Apache-2.0 */
/* What meets a tree from outside: memory that bodies free by themselves, captures around calls, pools that are suspended by their id,
 * threads between the steps of a call, who is told of runs. */
#include <pthread.h>
#include <time.h>

#include "graph/tree/tree.h"
#include "tests/graph/fixture.h"
#include "tests/shim/lade_test.h"

#define MAKER(value)                                                                                                   \
  { {{GRAPH_ALLOC, 0, MIB}, {GRAPH_FILL, 0, (value)}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0 }

/* ---- Memory that a body frees by itself -------------------------------------------------------------------------- */

static lade_status fill(graph_fixture *f, lade_graph_context *context, void *address, unsigned char byte) {
  return lade_fill_async(f->runtime, address, byte, MIB, context->stream);
}

static lade_status frees_and_allocates(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  void *first = NULL, *second = NULL;
  LADE_EXPECT_OK(lade_graph_alloc(context, MIB, &first));
  LADE_EXPECT_OK(lade_device_free(f->allocator, first));
  LADE_EXPECT_OK(lade_graph_alloc(context, MIB, &second));
  LADE_EXPECT_EQ_PTR(first, second);
  LADE_EXPECT_OK(fill(f, context, second, (unsigned char)a));
  return lade_graph_output_memory(context, 0, second, MIB);
}

LADE_TEST(GraphCorner, BodyFreesByItselfAndGetsTheBlockAgain) {
  graph_fixture f;
  graph_script script = {{{GRAPH_CALL, 7, 0}}, frees_and_allocates, NULL, 0};
  lade_graph_value out;
  static const lade_graph_did dids[] = {LADE_GRAPH_DID_WARMUP, LADE_GRAPH_DID_RECORD, LADE_GRAPH_DID_REPLAY};
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *function = graph_fixture_function(&f, &script, 0, NULL, 1);
  for (size_t i = 0; i < 3; i++) {
    graph_fixture_step(&f);
    graph_fixture_run(&f, function, NULL, 0, &out, dids[i]);
    LADE_EXPECT_OK(ladei_tree_verify(f.tree));
    graph_fixture_expect(&f, &out, 7);
    graph_fixture_release(&f, out);
  }
  graph_fixture_close(&f);
}

/* Named first, freed and had again then: of the two one is not its own. */
static lade_status frees_an_output(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  void *first = NULL, *second = NULL;
  (void)a;
  LADE_EXPECT_OK(lade_graph_alloc(context, MIB, &first));
  LADE_EXPECT_OK(lade_graph_output_memory(context, 0, first, MIB));
  LADE_EXPECT_OK(lade_device_free(f->allocator, first));
  LADE_EXPECT_OK(lade_graph_alloc(context, MIB, &second));
  LADE_EXPECT_EQ_PTR(first, second);
  return LADE_OK;
}

LADE_TEST(GraphCorner, BodyFreesAnOutputAndGetsTheBlockAgain) {
  graph_fixture f;
  graph_script script = {{{GRAPH_CALL, 0, 0}}, frees_an_output, NULL, 0};
  lade_graph_value out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *function = graph_fixture_function(&f, &script, 0, NULL, 1);
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, graph_fixture_call(&f, function, NULL, 0, &out));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "not its own");
  LADE_EXPECT_OK(ladei_tree_verify(f.tree));
  graph_fixture_close(&f);
}

/* Named, freed as a tensor does, and not had again: the output keeps it. A block beside it is freed as ever. */
static lade_status output_goes(graph_fixture *f, lade_graph_context *context, uint64_t a, bool frees) {
  void *first = NULL, *second = NULL, *third = NULL;
  LADE_EXPECT_OK(lade_device_alloc(f->allocator, MIB, context->stream, &first));
  LADE_EXPECT_OK(lade_device_alloc(f->allocator, MIB, context->stream, &second));
  LADE_EXPECT_OK(fill(f, context, first, (unsigned char)a));
  bool awaited[2] = {false, false};
  LADE_EXPECT_OK(lade_graph_output_freed(context, 0, first, MIB, &awaited[0]));
  LADE_EXPECT_OK(lade_graph_output_freed(context, 1, (char *)first + MIB / 2, MIB / 2, &awaited[1]));
  LADE_EXPECT_EQ_INT(awaited[0] && awaited[1], 1);
  if (frees) LADE_EXPECT_OK(lade_device_free(f->allocator, first));
  LADE_EXPECT_OK(lade_device_free(f->allocator, second));
  LADE_EXPECT_OK(lade_device_alloc(f->allocator, MIB, context->stream, &third));
  LADE_EXPECT_EQ_PTR(second, third);
  LADE_EXPECT_OK(fill(f, context, third, (unsigned char)(a + 1)));
  return lade_device_free(f->allocator, third);
}

static lade_status frees_its_output(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  return output_goes(f, context, a, true);
}
static lade_status keeps_its_output(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  return output_goes(f, context, a, context->stage != LADE_GRAPH_STAGE_RECORD);
}

LADE_TEST(GraphCorner, BodyFreesTheOutputThatItNamedAsFreed) {
  graph_fixture f;
  graph_script script = {{{GRAPH_CALL, 7, 0}}, frees_its_output, NULL, 0};
  lade_graph_value out[2];
  static const lade_graph_did dids[] = {LADE_GRAPH_DID_WARMUP, LADE_GRAPH_DID_RECORD, LADE_GRAPH_DID_REPLAY};
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *function = graph_fixture_function(&f, &script, 0, NULL, 2);
  for (size_t i = 0; i < 3; i++) {
    graph_fixture_step(&f);
    graph_fixture_run(&f, function, NULL, 0, out, dids[i]);
    LADE_EXPECT_OK(ladei_tree_verify(f.tree));
    graph_fixture_expect(&f, &out[0], 7);
    graph_fixture_expect(&f, &out[1], 7);
    graph_fixture_release(&f, out[0]);
    graph_fixture_release(&f, out[1]);
  }
  graph_fixture_close(&f);
}

LADE_TEST(GraphCorner, BodyThatKeepsAnOutputNamedAsFreedFails) {
  graph_fixture f;
  graph_script script = {{{GRAPH_CALL, 7, 0}}, keeps_its_output, NULL, 0};
  lade_graph_value out[2];
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *function = graph_fixture_function(&f, &script, 0, NULL, 2);
  graph_fixture_run(&f, function, NULL, 0, out, LADE_GRAPH_DID_WARMUP);
  graph_fixture_release(&f, out[0]);
  graph_fixture_release(&f, out[1]);
  graph_fixture_step(&f);
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, graph_fixture_call(&f, function, NULL, 0, out));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "kept the block");
  LADE_EXPECT_OK(ladei_tree_verify(f.tree));
  graph_fixture_close(&f);
}

/* The copy of its input, in a recording; the block is an output then. */
static lade_status frees_its_input(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  lade_graph_value in;
  void *block = NULL;
  (void)a;
  LADE_EXPECT_OK(lade_graph_input_get(context, 0, &in));
  bool wrong = context->stage == LADE_GRAPH_STAGE_RECORD;
  if (wrong) LADE_EXPECT_OK(lade_device_free(f->allocator, in.address));
  LADE_EXPECT_OK(lade_graph_alloc(context, in.bytes, &block));
  if (wrong) LADE_EXPECT_EQ_PTR(in.address, block);
  lade_status status = lade_graph_input_drop(context, 0);
  return status == LADE_OK ? lade_graph_output_memory(context, 0, block, in.bytes) : status;
}

static lade_status frees_its_input_undropped(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  lade_graph_value in;
  void *block = NULL;
  (void)a;
  LADE_EXPECT_OK(lade_graph_input_get(context, 0, &in));
  if (context->stage == LADE_GRAPH_STAGE_RECORD) LADE_EXPECT_OK(lade_device_free(f->allocator, in.address));
  LADE_EXPECT_OK(lade_graph_alloc(context, in.bytes, &block));
  return lade_graph_output_integer(context, 0, 1);
}

static void input_freed(lade_status (*body)(graph_fixture *, lade_graph_context *, uint64_t)) {
  graph_fixture f;
  graph_script script = {{{GRAPH_CALL, 0, 0}}, body, NULL, 0};
  lade_graph_value out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_value in = graph_fixture_memory(&f, MIB, 3);
  lade_graph_function *function = graph_fixture_function(&f, &script, 1, NULL, 1);
  graph_fixture_run(&f, function, &in, 1, &out, LADE_GRAPH_DID_WARMUP);
  if (out.kind == LADE_GRAPH_BUFFER) graph_fixture_release(&f, out);
  graph_fixture_step(&f);
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, graph_fixture_call(&f, function, &in, 1, &out));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "not its own");
  LADE_EXPECT_OK(ladei_tree_verify(f.tree));
  graph_fixture_memory_free(&f, in);
  graph_fixture_close(&f);
}

LADE_TEST(GraphCorner, BodyFreesItsInputAndGetsTheBlock) { input_freed(frees_its_input); }
LADE_TEST(GraphCorner, BodyFreesItsInputAndKeepsTheBlock) { input_freed(frees_its_input_undropped); }

static void *older;
static lade_status frees_an_older_output(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  void *block = NULL;
  (void)a;
  LADE_EXPECT_OK(lade_device_free(f->allocator, older));
  LADE_EXPECT_OK(lade_graph_alloc(context, MIB, &block));
  LADE_EXPECT_EQ_PTR(older, block);
  return lade_graph_output_memory(context, 0, block, MIB);
}

LADE_TEST(GraphCorner, BodyFreesAnOlderOutputAndGetsTheBlock) {
  graph_fixture f;
  graph_script maker = MAKER(1), script = {{{GRAPH_CALL, 0, 0}}, frees_an_older_output, NULL, 0};
  lade_graph_value made, out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1),
                      *wrong = graph_fixture_function(&f, &script, 0, NULL, 1);
  graph_fixture_run(&f, make, NULL, 0, &made, LADE_GRAPH_DID_WARMUP);
  older = made.address;
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, graph_fixture_call(&f, wrong, NULL, 0, &out));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "not its own");
  LADE_EXPECT_OK(ladei_tree_verify(f.tree));
  LADE_EXPECT(!graph_fixture_valid(&f, made)); /* the body freed it */
  graph_fixture_close(&f);
}

/* An older output, of 100 bytes in a block of 512. */
static lade_status names_more_than_there_is(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  char *address = older;
  (void)f;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_output_memory(context, 0, address, 200));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_output_memory(context, 0, address + 100, 1));
  return lade_graph_output_integer(context, 0, a);
}

LADE_TEST(GraphCorner, BodyNamesMoreThanAnOlderOutputHas) {
  graph_fixture f;
  graph_script maker = {{{GRAPH_ALLOC, 0, 100}, {GRAPH_FILL, 0, 3}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0};
  graph_script script = {{{GRAPH_CALL, 5, 0}}, names_more_than_there_is, NULL, 0};
  lade_graph_value made, out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1),
                      *name = graph_fixture_function(&f, &script, 0, NULL, 1);
  for (int i = 0; i < 3; i++) { /* behind a warm-up, a recording, a replay */
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &made));
    older = made.address;
    LADE_EXPECT_OK(graph_fixture_call(&f, name, NULL, 0, &out));
    LADE_EXPECT_EQ_UINT(out.integer, 5);
    graph_fixture_expect(&f, &made, 3);
    graph_fixture_release(&f, made);
  }
  graph_fixture_close(&f);
}

/* Output 0 is the lower half of an older output's memory, whose upper half is the input. It is dropped, and memory wanted for more. */
static lade_status names_and_drops(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_graph_output_memory(context, 0, older, MIB));
  LADE_EXPECT_OK(lade_graph_input_drop(context, 0));
  LADE_EXPECT_OK(lade_graph_alloc(context, 2 * MIB, &block));
  LADE_EXPECT_OK(fill(f, context, block, 9));
  LADE_EXPECT_OK(fill(f, context, (char *)block + MIB, 9));
  return (lade_status)a;
}

static void older_output_is_dropped(lade_status answer, const uint32_t *flags) {
  graph_fixture f;
  graph_script maker = {
      {{GRAPH_ALLOC, 0, 2 * MIB}, {GRAPH_FILL, 0, 3}, {GRAPH_OUT_LOCAL, 0, 0}, {GRAPH_OUT_PART, 0, 0}}, NULL, NULL, 0};
  graph_script script = {{{GRAPH_CALL, answer, 0}}, names_and_drops, NULL, 0};
  lade_graph_value made[2], inputs[2], out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_value written = graph_fixture_memory(&f, MIB, 1);
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 2),
                      *drop = graph_fixture_function(&f, &script, flags == NULL ? 1 : 2, flags, 1);
  for (int i = 0; i < 4; i++) { /* behind a warm-up, a recording, replays */
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, made));
    older = made[0].address;
    graph_fixture_release(&f, made[0]);
    inputs[0] = graph_taken(made[1]);
    inputs[1] = written;
    lade_status status = graph_fixture_call(&f, drop, inputs, flags == NULL ? 1 : 2, &out);
    if (answer == LADE_OK) {
      LADE_EXPECT_OK(status);
      LADE_EXPECT_EQ_PTR(out.address, older);
      graph_fixture_expect(&f, &out, 3);
      graph_fixture_release(&f, out);
    } else {
      LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, status);
      if (graph_fixture_valid(&f, made[1])) graph_fixture_release(&f, made[1]);
    }
  }
  graph_fixture_memory_free(&f, written);
  graph_fixture_close(&f);
}

LADE_TEST(GraphCorner, BodyDropsTheInputWhoseMemoryItsOutputIsIn) {
  static const uint32_t eager[] = {0, LADE_GRAPH_MUTATED};
  older_output_is_dropped(LADE_OK, NULL);
  older_output_is_dropped(LADE_ERR_IO, NULL);
  older_output_is_dropped(LADE_OK, eager);
  older_output_is_dropped(LADE_ERR_IO, eager);
}

/* ---- Streams of earlier runs -------------------------------------------------------------------------------------- */

/* The first run's stream goes when the next run is over: one that is refused its recording, behind so many runs of the function. */
static void stream_goes_behind_a_failure(size_t runs) {
  graph_fixture f;
  graph_script maker = MAKER(1), fails = {{{GRAPH_FAIL, LADE_ERR_IO, 0}}, NULL, NULL, 0};
  lade_graph_value out;
  lade_stream goes = NULL;
  lade_graph_call call;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1),
                      *fail = graph_fixture_function(&f, &maker, 0, NULL, 1);
  for (size_t i = 0; i < runs; i++) {
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, fail, NULL, 0, &out));
    graph_fixture_release(&f, out);
  }
  LADE_EXPECT_OK(lade_stream_create(f.runtime, 0, &goes));
  lade_graph_call_init(&call);
  call.stream = goes;
  graph_fixture_step(&f);
  LADE_EXPECT_OK(graph_fixture_call_with(&f, make, &call, &out));
  graph_fixture_release(&f, out);
  maker = fails;
  maker.fixture = &f;
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, graph_fixture_call(&f, fail, NULL, 0, &out));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, goes));
  maker = (graph_script)MAKER(1);
  maker.fixture = &f;
  graph_fixture_step(&f);
  LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &out));
  graph_fixture_expect(&f, &out, 1);
  graph_fixture_release(&f, out);
  graph_fixture_close(&f); /* no finding: nothing names the stream any more */
}

LADE_TEST(GraphCorner, StreamOfARunGoesWhenTheNextOneHasFailed) {
  stream_goes_behind_a_failure(0);
  stream_goes_behind_a_failure(1);
}

/* ---- Captures around calls --------------------------------------------------------------------------------------- */

/* The calling thread is that of a capture's code, which has no memory of its own. */
static lade_graph_capture_state *capture_around(graph_fixture *f) {
  lade_graph_capture_state *state = NULL;
  lade_graph_options options;
  lade_graph_options_init(&options);
  options.stream = f->streams[1];
  LADE_EXPECT_OK(lade_graph_capture_begin(f->allocator, &options, &state));
  return state;
}

LADE_TEST(GraphCorner, BuffersAreReleasedInTheCodeOfACapture) {
  graph_fixture f;
  graph_script maker = MAKER(1);
  lade_graph_value out;
  lade_graph *graph = NULL;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1);
  for (int i = 0; i < 2; i++) { /* a warm-up's, a recording's */
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &out));
    lade_graph_capture_state *state = capture_around(&f);
    graph_fixture_release(&f, out);
    LADE_EXPECT_OK(lade_graph_capture_end(state, &graph));
    LADE_EXPECT_OK(lade_graph_destroy(graph, true));
    LADE_EXPECT_OK(ladei_tree_verify(f.tree));
  }
  graph_fixture_close(&f);
}

LADE_TEST(GraphCorner, PathsEndInTheCodeOfACapture) {
  graph_fixture f;
  graph_script a = MAKER(1), b = MAKER(2);
  lade_graph_value out, other;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fb = graph_fixture_function(&f, &b, 0, NULL, 1);
  for (int i = 0; i < 2; i++) {
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, fb, NULL, 0, &other));
    graph_fixture_release(&f, other);
  }
  for (int i = 0; i < 2; i++) {
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &out));
    if (i == 0) graph_fixture_release(&f, out);
  }
  LADE_EXPECT_EQ_UINT(graph_fixture_state(&f), LADE_GRAPH_STATE_RECORDING);
  lade_graph_capture_state *state = capture_around(&f);
  graph_fixture_step(&f);
  graph_fixture_run(&f, fb, NULL, 0, &other, LADE_GRAPH_DID_REPLAY);
  LADE_EXPECT_OK(lade_graph_capture_abort(state));
  LADE_EXPECT(!graph_fixture_valid(&f, out));
  LADE_EXPECT_OK(ladei_tree_verify(f.tree));
  graph_fixture_release(&f, other);
  graph_fixture_close(&f);
}

/* Recordings are made and go by calls that a driver refuses the code of a capture, and the capture with it. */
LADE_TEST(GraphCorner, RecordingsAreMadeAndGoInTheCodeOfACapture) {
  static const uint32_t written = LADE_GRAPH_STATIC | LADE_GRAPH_MUTATED;
  graph_fixture f;
  graph_script writer = {{{GRAPH_FILL_INPUT, 0, 6}, {GRAPH_OUT_INTEGER, 1, 0}}, NULL, NULL, 0};
  lade_graph_value out;
  lade_graph *graph = NULL;
  lade_soft_report report;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_value memory = graph_fixture_memory(&f, MIB, 1);
  lade_graph_function *write = graph_fixture_function(&f, &writer, 1, &written, 1);
  graph_fixture_run(&f, write, &memory, 1, &out, LADE_GRAPH_DID_WARMUP);
  graph_fixture_step(&f);
  lade_graph_capture_state *state = capture_around(&f);
  graph_fixture_run(&f, write, &memory, 1, &out, LADE_GRAPH_DID_RECORD);
  LADE_EXPECT_OK(lade_graph_capture_end(state, &graph));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  graph_fixture_expect(&f, &memory, 6);
  graph_fixture_step(&f);
  graph_fixture_run(&f, write, &memory, 1, &out, LADE_GRAPH_DID_REPLAY);
  state = capture_around(&f);
  LADE_EXPECT_OK(lade_graph_tree_function_remove(f.tree, write));
  lade_graph_function *other = graph_fixture_function(&f, &writer, 1, &written, 1);
  graph_fixture_step(&f);
  graph_fixture_run(&f, other, &memory, 1, &out, LADE_GRAPH_DID_WARMUP); /* the path ends, and with it the recording */
  LADE_EXPECT_OK(lade_graph_capture_end(state, &graph));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(f.runtime, &report));
  LADE_EXPECT_EQ_UINT(report.graphs, 0);
  graph_fixture_memory_free(&f, memory);
  graph_fixture_close(&f);
}

/* On stream 1. */
static lade_status run_beside(graph_fixture *f, lade_graph_function *function, lade_graph_value *out) {
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = f->streams[1];
  return graph_fixture_call_with(f, function, &call, out);
}

/* What ran last, or uses a buffer, is on stream 0, which captures then: a run elsewhere can have no event of it. Behind so many runs of
 * its function it would be a warm-up, a recording, a replay. */
static void capture_of_an_earlier_stream(bool noted, size_t runs) {
  graph_fixture f;
  graph_script maker = MAKER(1), first = MAKER(2);
  lade_graph_value made, out;
  lade_graph *graph = NULL;
  lade_graph_info info;
  lade_graph_options options;
  lade_graph_capture_state *state = NULL;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1);
  lade_graph_function *begin = graph_fixture_function(&f, &first, 0, NULL, 1);
  for (size_t i = 0; i < runs; i++) {
    graph_fixture_step(&f);
    LADE_EXPECT_OK(run_beside(&f, make, &out));
    graph_fixture_release(&f, out);
  }
  graph_fixture_step(&f);
  if (noted) {
    LADE_EXPECT_OK(run_beside(&f, begin, &made));
    LADE_EXPECT_OK(lade_graph_buffer_record_stream(f.tree, made.buffer, f.streams[0]));
  } else {
    LADE_EXPECT_OK(graph_fixture_call(&f, begin, NULL, 0, &made));
  }
  lade_graph_options_init(&options);
  options.stream = f.streams[0];
  LADE_EXPECT_OK(lade_graph_capture_begin(f.allocator, &options, &state));
  graph_fixture_step(&f);
  lade_graph_state before = graph_fixture_state(&f);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, run_beside(&f, make, &out));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "captures");
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_graph_tree_trim(f.tree, NULL));
  LADE_EXPECT_EQ_UINT(graph_fixture_state(&f), before);
  LADE_EXPECT(graph_fixture_valid(&f, made));
  LADE_EXPECT_OK(lade_graph_capture_end(state, &graph)); /* nothing has come into it */
  lade_graph_info_init(&info);
  LADE_EXPECT_OK(lade_graph_info_get(graph, &info));
  LADE_EXPECT_EQ_UINT(info.node_count, 0);
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT_OK(run_beside(&f, make, &out));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[1]));
  graph_fixture_expect(&f, &out, 1);
  graph_fixture_release(&f, out);
  graph_fixture_close(&f);
}

LADE_TEST(GraphCorner, StreamThatARunComesBehindCaptures) {
  for (size_t runs = 0; runs < 3; runs++) {
    capture_of_an_earlier_stream(false, runs);
    capture_of_an_earlier_stream(true, runs);
  }
}

LADE_TEST(GraphCorner, NotesPileUpWhileEveryRunFails) {
  graph_fixture f;
  graph_script maker = MAKER(1);
  lade_graph_value made, out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1);
  LADE_EXPECT_OK(run_beside(&f, make, &made));
  for (int i = 0; i < 50; i++) {
    LADE_EXPECT_OK(lade_graph_buffer_record_stream(f.tree, made.buffer, f.streams[0]));
    LADE_EXPECT_OK(lade_graph_buffer_record_stream(f.tree, made.buffer, f.streams[1]));
    LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, "stream_wait_event", 1, LADE_ERR_DRIVER));
    LADE_EXPECT_STATUS(LADE_ERR_DRIVER, run_beside(&f, make, &out));
    LADE_EXPECT_EQ_SIZE(f.tree->noted_count, 2);
  }
  graph_fixture_step(&f);
  LADE_EXPECT_OK(run_beside(&f, make, &out));
  LADE_EXPECT_EQ_SIZE(f.tree->noted_count, 0);
  graph_fixture_release(&f, out);
  graph_fixture_close(&f);
}

LADE_TEST(GraphCorner, BufferIsNotedForAThreadsOwnStreamThatCaptures) {
  graph_fixture f;
  graph_script maker = MAKER(1);
  lade_graph_value made, out;
  lade_graph *graph = NULL;
  lade_graph_options options;
  lade_graph_capture_state *state = NULL;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1);
  graph_fixture_run(&f, make, NULL, 0, &made, LADE_GRAPH_DID_WARMUP);
  lade_graph_options_init(&options);
  options.stream = LADE_STREAM_PER_THREAD;
  LADE_EXPECT_OK(lade_graph_capture_begin(f.allocator, &options, &state));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_graph_buffer_record_stream(f.tree, made.buffer, LADE_STREAM_PER_THREAD));
  LADE_EXPECT_OK(lade_graph_capture_end(state, &graph));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT_OK(lade_graph_buffer_record_stream(f.tree, made.buffer, LADE_STREAM_PER_THREAD));
  graph_fixture_step(&f);
  graph_fixture_run(&f, make, NULL, 0, &out, LADE_GRAPH_DID_RECORD);
  graph_fixture_expect(&f, &out, 1);
  graph_fixture_release(&f, out);
  LADE_EXPECT_OK(lade_device_stream_retire(f.allocator, LADE_STREAM_PER_THREAD));
  graph_fixture_close(&f);
}

LADE_TEST(GraphCorner, CallThatIsRefusedForItsStreamBeginsNoStep) {
  graph_fixture f;
  graph_script maker = MAKER(1);
  lade_graph_value made, out;
  lade_graph_call call;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1);
  lade_graph_call_init(&call);
  call.flags = LADE_GRAPH_CALL_AUTO;
  call.stream = f.streams[0];
  LADE_EXPECT_OK(graph_fixture_call_with(&f, make, &call, &made));
  lade_graph_capture_state *state = capture_around(&f);
  call.stream = f.streams[1];
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, graph_fixture_call_with(&f, make, &call, &out));
  LADE_EXPECT_EQ_UINT(f.last.record.rule, 0);
  LADE_EXPECT_OK(lade_graph_capture_abort(state));
  LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &out)); /* of the same step */
  LADE_EXPECT_EQ_UINT(f.last.record.ended, LADE_GRAPH_ENDED_NOT);
  LADE_EXPECT(graph_fixture_valid(&f, made));
  graph_fixture_release(&f, made);
  graph_fixture_release(&f, out);
  graph_fixture_close(&f);
}

/* ---- Pools that are suspended by their id ------------------------------------------------------------------------ */

LADE_TEST(GraphCorner, PoolIsSuspendedAndResumedByItsId) {
  graph_fixture f;
  graph_script maker = MAKER(1);
  lade_device_options device;
  lade_graph_value first, out;
  lade_graph_tree_stats state;
  lade_graph_tree_stats_init(&state);
  lade_device_options_init(&device);
  device.expandable_segments = 1;
  device.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!graph_fixture_open_device(&f, "sim", NULL, &device)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1);
  LADE_EXPECT_OK(lade_graph_tree_stats_get(f.tree, &state));
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = f.streams[0];
  for (int i = 0; i < 3; i++) { /* behind a warm-up, a recording, a replay */
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &out));
    LADE_EXPECT_OK(lade_device_pool_suspend(f.allocator, state.pool, NULL, NULL));
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_run(f.tree, make, &call, &out, 1, NULL));
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_destroy(f.tree, false));
    LADE_EXPECT_OK(lade_graph_buffer_release(f.tree, out.buffer)); /* its block goes behind the resume */
    LADE_EXPECT_OK(lade_device_pool_resume(f.allocator, state.pool));
    LADE_EXPECT_OK(ladei_tree_verify(f.tree));
  }
  graph_fixture_run(&f, make, NULL, 0, &first, LADE_GRAPH_DID_REPLAY);
  graph_fixture_run(&f, make, NULL, 0, &out, LADE_GRAPH_DID_RECORD); /* behind it, so that both have blocks */
  LADE_EXPECT_OK(lade_device_pool_suspend(f.allocator, state.pool, NULL, NULL));
  LADE_EXPECT_OK(lade_graph_buffer_release(f.tree, first.buffer));
  LADE_EXPECT_OK(lade_graph_buffer_release(f.tree, out.buffer));
  LADE_EXPECT_OK(lade_device_pool_resume(f.allocator, state.pool));
  LADE_EXPECT_OK(ladei_tree_verify(f.tree));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_resume(f.allocator, state.pool));
  graph_fixture_step(&f);
  graph_fixture_run(&f, make, NULL, 0, &out, LADE_GRAPH_DID_REPLAY);
  graph_fixture_expect(&f, &out, 1);
  graph_fixture_release(&f, out);
  graph_fixture_close(&f);
}

static struct {
  const lade_runtime_ops *below;
  graph_fixture *fixture;
  lade_device_pool_id pool;
} suspending;

static void suspend_beside(void) {
  LADE_EXPECT_STATUS(LADE_ERR_BUSY,
                     lade_device_pool_suspend(suspending.fixture->allocator, suspending.pool, NULL, NULL));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "launches graphs");
}

/* Another thread might, just before the launch reaches the driver. */
static lade_status graph_launch_beside(void *self, ladei_graph_exec exec, const ladei_stream *stream) {
  suspend_beside();
  return suspending.below->graph_launch(self, exec, stream);
}

static lade_status suspends(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  (void)f, (void)a;
  if (context->stage == LADE_GRAPH_STAGE_WARMUP) suspend_beside();
  return LADE_OK;
}

LADE_TEST(GraphCorner, PoolIsSuspendedBesideARun) {
  graph_fixture f;
  graph_script maker = {
      {{GRAPH_CALL, 0, 0}, {GRAPH_ALLOC, 0, MIB}, {GRAPH_FILL, 0, 1}, {GRAPH_OUT_LOCAL, 0, 0}}, suspends, NULL, 0};
  lade_device_options device;
  lade_graph_value out;
  lade_graph_tree_stats state;
  lade_graph_tree_stats_init(&state);
  lade_device_options_init(&device);
  device.expandable_segments = 1;
  device.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!graph_fixture_open_device(&f, "sim", NULL, &device)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1);
  LADE_EXPECT_OK(lade_graph_tree_stats_get(f.tree, &state));
  lade_runtime_ops ops = *f.runtime->ops;
  suspending.below = f.runtime->ops;
  suspending.fixture = &f;
  suspending.pool = state.pool;
  ops.graph_launch = graph_launch_beside;
  f.runtime->ops = &ops;
  for (int i = 0; i < 3; i++) { /* in a warm-up, beside the launches of a recording and a replay */
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &out));
    graph_fixture_expect(&f, &out, 1);
    LADE_EXPECT_OK(lade_device_pool_suspend(f.allocator, state.pool, NULL, NULL)); /* and behind it */
    LADE_EXPECT_OK(lade_device_pool_resume(f.allocator, state.pool));
    graph_fixture_expect(&f, &out, 1);
    graph_fixture_release(&f, out);
  }
  f.runtime->ops = suspending.below;
  graph_fixture_close(&f);
}

static void *destroys(void *user) {
  graph_fixture *f = user;
  return lade_graph_tree_destroy(f->tree, true) == LADE_ERR_BUSY ? f : NULL;
}

LADE_TEST(GraphCorner, PoolIsSuspendedWhileADestructionWaitsForABuffer) {
  graph_fixture f;
  graph_script maker = MAKER(1);
  lade_device_options device;
  lade_graph_value out;
  lade_graph_tree_stats state;
  pthread_t thread;
  void *result = NULL;
  const struct timespec pause = {0, 20000000};
  lade_graph_tree_stats_init(&state);
  lade_device_options_init(&device);
  device.expandable_segments = 1;
  device.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!graph_fixture_open_device(&f, "sim", NULL, &device)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1);
  LADE_EXPECT_OK(lade_graph_tree_stats_get(f.tree, &state));
  LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &out)); /* a warm-up: its block is handed out */
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, destroys, &f), 0);
  (void)nanosleep(&pause, NULL); /* it waits by then, most likely */
  LADE_EXPECT_OK(lade_device_pool_suspend(f.allocator, state.pool, NULL, NULL));
  LADE_EXPECT_OK(lade_graph_buffer_release(f.tree, out.buffer)); /* its block cannot go yet */
  LADE_EXPECT_EQ_INT(pthread_join(thread, &result), 0);
  LADE_ASSERT(result == &f);
  LADE_EXPECT_OK(lade_device_pool_resume(f.allocator, state.pool));
  graph_fixture_close(&f);
}

/* ---- Runs of other trees within a body --------------------------------------------------------------------------- */

/* Of another tree of the same allocator, which runs eagerly: its output would lie in the pool of the tree whose body this is. */
static struct {
  lade_graph_tree *tree;
  lade_graph_function *function;
  lade_graph_value memory;
  size_t refused;
} another;

static lade_status runs_another(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  lade_graph_value out;
  lade_graph_call call;
  (void)context, (void)a;
  lade_graph_call_init(&call);
  call.stream = f->streams[1];
  call.inputs = &another.memory;
  call.input_count = 1;
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_run(another.tree, another.function, &call, &out, 1, NULL));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "another tree");
  LADE_EXPECT_OK(lade_graph_tree_step(another.tree));
  another.refused++;
  return LADE_OK;
}

LADE_TEST(GraphCorner, AnotherTreeIsRunWithinABody) {
  static const uint32_t mutated = LADE_GRAPH_MUTATED;
  graph_fixture f, inner;
  graph_script runner = {
      {{GRAPH_CALL, 0, 0}, {GRAPH_ALLOC, 0, MIB}, {GRAPH_FILL, 0, 1}, {GRAPH_OUT_LOCAL, 0, 0}}, runs_another, NULL, 0};
  graph_script writer = {
      {{GRAPH_FILL_INPUT, 0, 2}, {GRAPH_ALLOC, 0, MIB}, {GRAPH_FILL, 0, 2}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0};
  lade_graph_value out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  inner = f;
  LADE_ASSERT_OK(lade_graph_tree_create(f.allocator, NULL, &inner.tree));
  another.tree = inner.tree;
  another.function = graph_fixture_function(&inner, &writer, 1, &mutated, 1);
  another.memory = graph_fixture_memory(&f, MIB, 0);
  another.refused = 0;
  lade_graph_function *run = graph_fixture_function(&f, &runner, 0, NULL, 1);
  for (int i = 0; i < 3; i++) { /* in a warm-up and in a recording; the replay has no body */
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, run, NULL, 0, &out));
    graph_fixture_expect(&f, &out, 1);
    graph_fixture_release(&f, out);
  }
  LADE_EXPECT_EQ_UINT(another.refused, 2);
  LADE_EXPECT_OK(graph_fixture_call(&inner, another.function, &another.memory, 1, &out)); /* outside it runs */
  graph_fixture_expect(&inner, &out, 2);
  graph_fixture_release(&inner, out);
  LADE_EXPECT_OK(lade_graph_tree_destroy(inner.tree, true));
  graph_fixture_memory_free(&f, another.memory);
  graph_fixture_close(&f);
}

/* ---- Threads between the steps of a call ------------------------------------------------------------------------- */

typedef struct retaining {
  lade_graph_tree *tree;
  lade_graph_buffer buffer;
  lade_status status;
} retaining;

static void *retains(void *user) {
  retaining *r = user;
  r->status = lade_graph_buffer_retain(r->tree, r->buffer);
  return NULL;
}

LADE_TEST(GraphCorner, BufferIsRetainedBeforeTheRunThatTakesItHasReadIts) {
  graph_fixture f;
  graph_script maker = MAKER(1), taker = {{{GRAPH_OUT_INTEGER, 1, 0}}, NULL, NULL, 0};
  lade_graph_value out;
  ladei_tree_call read;
  pthread_t thread;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1),
                      *take = graph_fixture_function(&f, &taker, 1, NULL, 1);
  LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &out));
  lade_graph_value taken = graph_taken(out);
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.inputs = &taken;
  call.input_count = 1;
  /* A run has the tree, and has not looked at its inputs yet. */
  LADE_EXPECT_OK(ladei_tree_enter(f.tree, "test"));
  retaining r = {f.tree, out.buffer, LADE_ERR_INTERNAL};
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, retains, &r), 0);
  LADE_EXPECT_EQ_INT(pthread_join(thread, NULL), 0);
  LADE_EXPECT_OK(r.status);
  LADE_EXPECT_OK(ladei_tree_call_read(f.tree, take, &call, &read));
  LADE_EXPECT_EQ_UINT(read.inputs[0].slot->counts, 2); /* the run takes one of them, and the other one stays */
  ladei_lock_acquire(&f.tree->lock);
  ladei_tree_call_reset(f.tree, &read);
  ladei_lock_release(&f.tree->lock);
  ladei_tree_leave(f.tree);
  graph_fixture_release(&f, out);
  LADE_EXPECT(graph_fixture_valid(&f, out));
  graph_fixture_release(&f, out);
  graph_fixture_close(&f);
}

/* What another thread does between an event of lade's on a stream and what lade does next. */
static struct {
  const lade_runtime_ops *below;
  graph_fixture *fixture;
  lade_graph_value value;
} meanwhile;

static lade_status event_record_and_note(void *self, lade_event event, const ladei_stream *stream) {
  graph_fixture *f = meanwhile.fixture;
  lade_status status = meanwhile.below->event_record(self, event, stream);
  if (stream->handle != f->streams[1]) return status;
  f->runtime->ops = meanwhile.below; /* once */
  LADE_EXPECT_OK(lade_fill_async(f->runtime, meanwhile.value.address, 7, MIB, f->streams[1]));
  LADE_EXPECT_OK(lade_graph_buffer_record_stream(f->tree, meanwhile.value.buffer, f->streams[1]));
  return status;
}

LADE_TEST(GraphCorner, BufferIsNotedForAStreamThatIsBeingRetired) {
  graph_fixture f;
  graph_script maker = MAKER(1);
  lade_graph_value out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1);
  lade_graph_value long_work = graph_fixture_memory(&f, 128 * MIB, 0);
  for (int i = 0; i < 3; i++) { /* the third one is a replay */
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &out));
    if (i < 2) graph_fixture_release(&f, out);
  }
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
  LADE_EXPECT_OK(lade_fill_async(f.runtime, long_work.address, 2, long_work.bytes, f.streams[1]));
  LADE_EXPECT_OK(lade_graph_buffer_record_stream(f.tree, out.buffer, f.streams[1]));
  lade_runtime_ops ops = *f.runtime->ops;
  meanwhile.below = f.runtime->ops;
  meanwhile.fixture = &f;
  meanwhile.value = out;
  ops.event_record = event_record_and_note;
  f.runtime->ops = &ops;
  LADE_EXPECT_OK(lade_graph_tree_stream_retire(f.tree, f.streams[1]));
  LADE_EXPECT_EQ_PTR(f.runtime->ops, meanwhile.below);
  graph_fixture_release(&f, out);
  graph_fixture_step(&f);
  graph_fixture_run(&f, make, NULL, 0, &out, LADE_GRAPH_DID_REPLAY); /* behind the fill of the same memory */
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[1]));
  graph_fixture_expect(&f, &out, 1);
  graph_fixture_release(&f, out);
  graph_fixture_memory_free(&f, long_work);
  graph_fixture_close(&f);
}

/* A buffer of an eager run lies outside of the pool. It is made on the stream that goes, read by a run there, or noted for it. */
typedef enum use_of_gone { MADE, READ, NOTED } use_of_gone;

static void stream_of_a_buffer_outside_goes(use_of_gone use) {
  static const uint32_t mutated = LADE_GRAPH_MUTATED;
  graph_fixture f;
  graph_script writer = MAKER(4), reader = {{{GRAPH_OUT_INTEGER, 1, 0}}, NULL, NULL, 0};
  lade_graph_value made, out;
  lade_stream goes = NULL;
  lade_graph_call call;
  void *block = NULL;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_value input = graph_fixture_memory(&f, MIB, 1);
  lade_graph_function *eager = graph_fixture_function(&f, &writer, 1, &mutated, 1),
                      *read = graph_fixture_function(&f, &reader, 1, NULL, 1);
  LADE_EXPECT_OK(lade_stream_create(f.runtime, 0, &goes));
  lade_graph_call_init(&call);
  call.inputs = &input;
  call.input_count = 1;
  call.stream = use == MADE ? goes : f.streams[0];
  LADE_EXPECT_OK(graph_fixture_call_with(&f, eager, &call, &made));
  LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_EAGER);
  call.inputs = &made;
  call.stream = goes;
  if (use == READ) LADE_EXPECT_OK(graph_fixture_call_with(&f, read, &call, &out));
  if (use == NOTED) {
    LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
    LADE_EXPECT_OK(lade_fill_async(f.runtime, made.address, 5, MIB, goes));
    LADE_EXPECT_OK(lade_graph_buffer_record_stream(f.tree, made.buffer, goes));
  }
  LADE_EXPECT_OK(graph_fixture_call(&f, read, &made, 1, &out));
  LADE_EXPECT_OK(lade_graph_tree_stream_retire(f.tree, goes));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, goes));
  graph_fixture_release(&f, made);
  LADE_EXPECT_OK(lade_device_alloc(f.allocator, MIB, f.streams[0], &block));
  LADE_EXPECT_OK(lade_fill_async(f.runtime, block, 9, MIB, f.streams[0]));
  LADE_EXPECT_OK(lade_device_free(f.allocator, block));
  graph_fixture_memory_free(&f, input);
  LADE_EXPECT_OK(lade_device_empty_cache(f.allocator));
  graph_fixture_close(&f); /* no finding: nothing names the stream any more */
}

LADE_TEST(GraphCorner, StreamsOfBuffersOutsideOfThePoolAreRetired) {
  stream_of_a_buffer_outside_goes(MADE);
  stream_of_a_buffer_outside_goes(READ);
  stream_of_a_buffer_outside_goes(NOTED);
}

/* A run on the thread's own stream, which no other thread may name, while the n-th call of an op fails. */
typedef struct own_stream_run {
  graph_fixture *f;
  lade_graph_function *function;
  lade_graph_value out;
  lade_status status;
} own_stream_run;

static void *runs_on_its_own_stream(void *user) {
  own_stream_run *r = user;
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = LADE_STREAM_PER_THREAD;
  LADE_EXPECT_OK(lade_runtime_set_device(r->f->runtime, 0));
  r->status = lade_graph_tree_run(r->f->tree, r->function, &call, &r->out, 1, NULL);
  LADE_EXPECT_OK(lade_soft_fault_clear(r->f->runtime));
  return NULL;
}

/* Whether the op was called as often. */
static bool own_stream_fails(const char *op, uint64_t nth) {
  graph_fixture f;
  graph_script maker = MAKER(1),
               copier = {{{GRAPH_ALLOC, 0, MIB}, {GRAPH_COPY, 0, 0}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0};
  lade_graph_value out;
  pthread_t thread;
  if (!graph_fixture_open(&f, "sim", NULL)) return false;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1),
                      *copy = graph_fixture_function(&f, &copier, 1, NULL, 1);
  for (int i = 0; i < 2; i++) {
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &out));
    graph_fixture_release(&f, out);
  }
  graph_fixture_step(&f);
  own_stream_run r = {&f, make, {0}, LADE_OK};
  uint64_t calls = 0, after = 0;
  LADE_EXPECT_OK(lade_soft_call_count(f.runtime, op, &calls));
  LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, op, nth, LADE_ERR_DRIVER));
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, runs_on_its_own_stream, &r), 0);
  LADE_EXPECT_EQ_INT(pthread_join(thread, NULL), 0);
  LADE_EXPECT_OK(lade_soft_call_count(f.runtime, op, &after));
  if (r.status == LADE_OK) {
    lade_graph_value copied;
    LADE_EXPECT_OK(graph_fixture_call(&f, copy, &r.out, 1, &copied));
    graph_fixture_expect(&f, &copied, 1);
    graph_fixture_release(&f, copied);
    graph_fixture_release(&f, r.out);
  } else {
    LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &out));
    graph_fixture_release(&f, out);
  }
  graph_fixture_close(&f);
  return after - calls >= nth;
}

LADE_TEST(GraphCorner, EventsOfAThreadsOwnStreamFail) {
  static const char *const ops[] = {"event_create", "event_record"};
  for (size_t i = 0; i < 2; i++)
    for (uint64_t nth = 1; own_stream_fails(ops[i], nth) && nth < 20;) nth++;
}

/* ---- Joins that fail --------------------------------------------------------------------------------------------- */

/* A cold function behind the end of a path: its input is carried, and read on the tree's stream. Whether the op was called as often. */
static bool warmup_join_fails(const char *op, uint64_t nth) {
  graph_fixture f;
  graph_script maker = MAKER(1),
               copier = {{{GRAPH_ALLOC, 0, MIB}, {GRAPH_COPY, 0, 0}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0};
  lade_graph_value made, copied;
  void *block = NULL;
  uint64_t calls = 0, after = 0;
  if (!graph_fixture_open(&f, "sim", NULL)) return false;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1),
                      *copy = graph_fixture_function(&f, &copier, 1, NULL, 1);
  LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &made));
  graph_fixture_step(&f);
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = f.streams[0];
  call.inputs = &made;
  call.input_count = 1;
  LADE_EXPECT_OK(lade_soft_call_count(f.runtime, op, &calls));
  LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, op, nth, LADE_ERR_DRIVER));
  lade_status status = lade_graph_tree_run(f.tree, copy, &call, &copied, 1, NULL);
  LADE_EXPECT_OK(lade_soft_fault_clear(f.runtime));
  LADE_EXPECT_OK(lade_soft_call_count(f.runtime, op, &after));
  LADE_EXPECT_OK(ladei_tree_verify(f.tree));
  /* The memory of the copy, most likely: what the program does with it is ordered behind the body. */
  LADE_EXPECT_OK(lade_device_alloc(f.allocator, MIB, f.streams[0], &block));
  LADE_EXPECT_OK(lade_fill_async(f.runtime, block, 9, MIB, f.streams[0]));
  LADE_EXPECT_OK(lade_device_free(f.allocator, block));
  if (status == LADE_OK) {
    graph_fixture_expect(&f, &copied, 1);
    graph_fixture_release(&f, copied);
  }
  if (graph_fixture_valid(&f, made)) graph_fixture_release(&f, made);
  graph_fixture_close(&f); /* no finding */
  return after - calls >= nth;
}

LADE_TEST(GraphCorner, JoinOfAWarmupFails) {
  static const char *const ops[] = {"event_create", "event_record", "stream_wait_event"};
  for (size_t i = 0; i < 3; i++)
    for (uint64_t nth = 1; warmup_join_fails(ops[i], nth) && nth < 20;) nth++;
}

/* ---- Threads that are cancelled ---------------------------------------------------------------------------------- */

static lade_status piece_cancels(void *user, const void *data, size_t bytes) {
  (void)user;
  (void)data;
  (void)bytes;
  pthread_testcancel();
  return LADE_OK;
}

static void *asks_as_it_ends(void *user) {
  LADE_EXPECT_EQ_INT(pthread_cancel(pthread_self()), 0);
  LADE_EXPECT_OK(lade_graph_tree_dump(user, piece_cancels, NULL));
  pthread_testcancel();
  return NULL;
}

LADE_TEST(GraphCorner, CancelledThreadsLeaveTheTree) {
  graph_fixture f;
  graph_script maker = MAKER(1);
  lade_graph_value out;
  pthread_t thread;
  void *result = NULL;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *make = graph_fixture_function(&f, &maker, 0, NULL, 1);
  for (int i = 0; i < 2; i++) {
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, make, NULL, 0, &out));
    graph_fixture_release(&f, out);
  }
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, asks_as_it_ends, f.tree), 0);
  LADE_EXPECT_EQ_INT(pthread_join(thread, &result), 0);
  LADE_EXPECT(result == PTHREAD_CANCELED);
  LADE_ASSERT(!f.tree->owned);
  graph_fixture_close(&f);
}

/* ---- Who is told of runs ----------------------------------------------------------------------------------------- */

static void told_count(void *user, const lade_graph_run_record *record) {
  (void)record;
  ++*(size_t *)user;
}

static lade_status fails(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  (void)f, (void)context;
  return (lade_status)a;
}

/* Of a warm-up, a recording, a replay, an eager run (its input is written to) and one that fails, so many are told. */
static void expect_told(lade_graph_log_level level, size_t warmup, size_t record, size_t replay, size_t others) {
  graph_fixture f;
  size_t told = 0;
  graph_script script = MAKER(3), writer = MAKER(4), wrong = {{{GRAPH_CALL, LADE_ERR_IO, 0}}, fails, NULL, 0};
  const uint32_t mutated = LADE_GRAPH_MUTATED;
  const size_t expected[] = {warmup, record, replay};
  lade_graph_value out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *function = graph_fixture_function(&f, &script, 0, NULL, 1);
  lade_graph_function *failing = graph_fixture_function(&f, &wrong, 0, NULL, 1);
  lade_graph_function *eager = graph_fixture_function(&f, &writer, 1, &mutated, 1);
  lade_graph_value input = graph_fixture_memory(&f, MIB, 1);
  LADE_EXPECT_OK(lade_graph_tree_log_set(f.tree, told_count, &told, level));
  for (size_t i = 0; i < 3; i++) {
    size_t before = told;
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, function, NULL, 0, &out));
    LADE_EXPECT_EQ_SIZE(told - before, expected[i]);
    graph_fixture_release(&f, out);
  }
  size_t before = told;
  LADE_EXPECT_OK(graph_fixture_call(&f, eager, &input, 1, &out));
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).eager[LADE_GRAPH_REASON_MUTATED], 1);
  graph_fixture_release(&f, out);
  LADE_EXPECT_EQ_SIZE(told - before, others);
  before = told;
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, graph_fixture_call(&f, failing, NULL, 0, &out));
  LADE_EXPECT_EQ_SIZE(told - before, others);
  graph_fixture_memory_free(&f, input);
  graph_fixture_close(&f);
}

LADE_TEST(GraphCorner, LogTellsWhatItsLevelSays) {
  expect_told(LADE_GRAPH_LOG_OFF, 0, 0, 0, 0);
  expect_told(LADE_GRAPH_LOG_EAGER, 0, 0, 0, 1);
  expect_told(LADE_GRAPH_LOG_CHANGES, 1, 1, 0, 1);
  expect_told(LADE_GRAPH_LOG_ALL, 1, 1, 1, 1);
}
