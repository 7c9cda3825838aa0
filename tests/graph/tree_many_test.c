/* SPDX-License-Identifier: Apache-2.0 */
/* As many inputs and outputs as a function may have, and blocks of a body. With a look at each pair of them each of these tests takes
 * minutes. */
#include <stdlib.h>

#include "tests/graph/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { COUNT = 65535, BYTES = 16 };

static lade_graph_function *function_add(graph_fixture *f, lade_graph_body body, void *user, size_t inputs,
                                         const uint32_t *flags, size_t outputs) {
  lade_graph_function *function = NULL;
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  options.body = body;
  options.user = user;
  options.name = "many";
  options.input_count = inputs;
  options.input_flags = flags;
  options.output_count = outputs;
  LADE_EXPECT_OK(lade_graph_tree_function_add(f->tree, &options, &function));
  return function;
}

static bool open_quietly(graph_fixture *f) { /* lists of what the fixture hears are short */
  if (!graph_fixture_open(f, "sim", NULL)) return false;
  LADE_EXPECT_OK(lade_graph_tree_log_set(f->tree, NULL, NULL, LADE_GRAPH_LOG_OFF));
  return true;
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------ */

/* Each output is the input of its number. */
static lade_status passes_all(lade_graph_context *context, void *user) {
  lade_status status = LADE_OK;
  (void)user;
  for (size_t i = 0; i < COUNT && status == LADE_OK; i++) {
    lade_graph_value in;
    status = lade_graph_input_get(context, i, &in);
    if (status == LADE_OK) status = lade_graph_output_memory(context, i, in.address, in.bytes);
  }
  return status;
}

LADE_TEST(GraphMany, OutputsInInputs) {
  graph_fixture f;
  if (!open_quietly(&f)) return;
  uint32_t *flags = calloc(COUNT, sizeof *flags);
  lade_graph_value *inputs = calloc(COUNT, sizeof *inputs), *outputs = calloc(COUNT, sizeof *outputs);
  LADE_ASSERT(flags != NULL && inputs != NULL && outputs != NULL);
  lade_graph_value memory = graph_fixture_memory(&f, (size_t)COUNT * BYTES, 1);
  for (size_t i = 0; i < COUNT; i++) {
    flags[i] = LADE_GRAPH_STATIC;
    inputs[i] = memory;
    inputs[i].address = (char *)memory.address + i * 7919 % COUNT * BYTES;
    inputs[i].bytes = BYTES;
  }
  lade_graph_function *function = function_add(&f, passes_all, NULL, COUNT, flags, COUNT);
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = f.streams[0];
  call.inputs = inputs;
  call.input_count = COUNT;
  for (int i = 0; i < 4; i++) {
    graph_fixture_step(&f);
    LADE_EXPECT_OK(lade_graph_tree_run(f.tree, function, &call, outputs, COUNT, NULL));
    for (size_t j = 0; j < COUNT && !lade_test_has_failed(); j++)
      LADE_EXPECT_EQ_PTR(outputs[j].address, inputs[j].address);
  }
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).replays, 2);
  graph_fixture_memory_free(&f, memory);
  free(outputs);
  free(inputs);
  free(flags);
  graph_fixture_close(&f);
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static lade_status one_block(lade_graph_context *context, void *user) {
  const graph_fixture *f = user;
  void *block = NULL;
  lade_status status = lade_graph_alloc(context, BYTES, &block);
  if (status == LADE_OK) status = lade_fill_async(f->runtime, block, 3, BYTES, context->stream);
  for (size_t i = 0; i < COUNT && status == LADE_OK; i++) status = lade_graph_output_memory(context, i, block, BYTES);
  return status;
}

LADE_TEST(GraphMany, OutputsInOneBlock) {
  graph_fixture f;
  if (!open_quietly(&f)) return;
  lade_graph_value *outputs = calloc(COUNT, sizeof *outputs);
  LADE_ASSERT(outputs != NULL);
  lade_graph_function *function = function_add(&f, one_block, &f, 0, NULL, COUNT);
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = f.streams[0];
  for (int i = 0; i < 4; i++) {
    graph_fixture_step(&f);
    LADE_EXPECT_OK(lade_graph_tree_run(f.tree, function, &call, outputs, COUNT, NULL));
    LADE_EXPECT_EQ_PTR(outputs[COUNT - 1].address, outputs[0].address);
    graph_fixture_expect(&f, &outputs[COUNT - 1], 3);
  }
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).replays, 2);
  for (size_t i = 1; i < COUNT && !lade_test_has_failed(); i++)
    LADE_EXPECT_OK(lade_graph_buffer_release(f.tree, outputs[i].buffer));
  graph_fixture_expect(&f, &outputs[0], 3); /* it has one buffer left */
  graph_fixture_release(&f, outputs[0]);
  free(outputs);
  graph_fixture_close(&f);
}

/* Two kinds of function in turn: outputs within blocks of the body's, away from their starts; and outputs within those of the former. */
enum { PARTS = 20000, PART_OFFSET = 256 };

typedef struct parts {
  graph_fixture *f;
  lade_graph_value *outputs; /* of the former function */
  void **blocks;
} parts;

static lade_status makes_parts(lade_graph_context *context, void *user) {
  const parts *p = user;
  lade_status status = LADE_OK;
  for (size_t i = 0; i < PARTS && status == LADE_OK; i++) status = lade_graph_alloc(context, 512, &p->blocks[i]);
  for (size_t i = 0; i < PARTS && status == LADE_OK; i++) {
    char *part = (char *)p->blocks[i * 7919 % PARTS] + PART_OFFSET;
    status = lade_graph_output_memory(context, i, part, PART_OFFSET);
  }
  return status;
}

static lade_status names_parts(lade_graph_context *context, void *user) {
  const parts *p = user;
  lade_status status = LADE_OK;
  for (size_t i = 0; i < PARTS && status == LADE_OK; i++)
    status = lade_graph_output_memory(context, i, (char *)p->outputs[i].address + 1, BYTES);
  return status;
}

static void parts_run(bool eager) {
  static const uint32_t flags[] = {LADE_GRAPH_MUTATED};
  graph_fixture f;
  parts p = {.f = &f};
  if (!open_quietly(&f)) return;
  p.outputs = calloc(PARTS, sizeof *p.outputs);
  p.blocks = calloc(PARTS, sizeof *p.blocks);
  lade_graph_value *named = calloc(PARTS, sizeof *named);
  LADE_ASSERT(p.outputs != NULL && p.blocks != NULL && named != NULL);
  lade_graph_value memory = graph_fixture_memory(&f, BYTES, 1);
  lade_graph_function *make = function_add(&f, makes_parts, &p, eager, eager ? flags : NULL, PARTS),
                      *name = function_add(&f, names_parts, &p, 0, NULL, PARTS);
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = f.streams[0];
  for (int i = 0; i < 3; i++) {
    graph_fixture_step(&f);
    call.inputs = &memory;
    call.input_count = eager;
    LADE_EXPECT_OK(lade_graph_tree_run(f.tree, make, &call, p.outputs, PARTS, NULL));
    call.input_count = 0;
    if (!eager) LADE_EXPECT_OK(lade_graph_tree_run(f.tree, name, &call, named, PARTS, NULL));
    for (size_t j = 0; j < PARTS && !eager && !lade_test_has_failed(); j++)
      LADE_EXPECT_EQ_PTR(named[j].address, (char *)p.outputs[j].address + 1);
    for (size_t j = 0; j < PARTS && !lade_test_has_failed(); j++) {
      LADE_EXPECT_OK(lade_graph_buffer_release(f.tree, p.outputs[j].buffer));
      if (!eager) LADE_EXPECT_OK(lade_graph_buffer_release(f.tree, named[j].buffer));
    }
  }
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).replays, eager ? 0 : 2);
  graph_fixture_memory_free(&f, memory);
  free(named);
  free(p.blocks);
  free(p.outputs);
  graph_fixture_close(&f);
}

LADE_TEST(GraphMany, OutputsWithinBlocksAndOlderOutputs) { parts_run(false); }

LADE_TEST(GraphMany, OutputsWithinBlocksOfEagerRuns) { parts_run(true); }

enum { PAIRS = 100000 };

static lade_status one_address(lade_graph_context *context, void *user) {
  void *block = NULL, *first = NULL;
  lade_status status = LADE_OK;
  (void)user;
  for (size_t i = 0; i < PAIRS && status == LADE_OK; i++) {
    status = lade_graph_alloc(context, BYTES, &block);
    if (i == 0) first = block;
    if (block != first) LADE_FAIL("another address");
    if (status == LADE_OK && i + 1 < PAIRS) status = lade_graph_free(context, block);
  }
  return status == LADE_OK ? lade_graph_output_memory(context, 0, block, BYTES) : status;
}

LADE_TEST(GraphMany, BlocksAtOneAddress) {
  graph_fixture f;
  lade_graph_value out;
  if (!open_quietly(&f)) return;
  lade_graph_function *function = function_add(&f, one_address, NULL, 0, NULL, 1);
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = f.streams[0];
  for (int i = 0; i < 3; i++) {
    graph_fixture_step(&f);
    LADE_EXPECT_OK(lade_graph_tree_run(f.tree, function, &call, &out, 1, NULL));
    graph_fixture_release(&f, out);
  }
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).replays, 1);
  graph_fixture_close(&f);
}

/* ---- Inputs that overlap, against a look at each ----------------------------------------------------------------- */

enum { SOME = 40, NAMES = 30, PROGRAMS = 60 };

typedef struct overlap {
  support_random random;
  uint64_t base; /* the program's memory */
  size_t in_none, in_many;
} overlap;

static size_t input_of(lade_graph_context *context, const bool *dropped, uint64_t address, uint64_t bytes,
                       size_t *out_count) {
  size_t first = SOME;
  *out_count = 0;
  for (size_t i = SOME; i > 0; i--) {
    lade_graph_value in;
    if (dropped[i - 1]) continue;
    LADE_EXPECT_OK(lade_graph_input_get(context, i - 1, &in));
    uint64_t begin = (uint64_t)(uintptr_t)in.address;
    if (address < begin || address + bytes > begin + in.bytes) continue;
    first = i - 1;
    ++*out_count;
  }
  return first;
}

/* Names outputs at random; an input is told by its drop, which is refused where it is an output. */
static lade_status names_at_random(lade_graph_context *context, void *user) {
  overlap *o = user;
  bool dropped[SOME] = {false}, is_output[SOME] = {false};
  for (size_t i = 0; i < NAMES; i++) {
    uint64_t address = o->base + support_random_below(&o->random, 400);
    uint64_t bytes = 1 + support_random_below(&o->random, 12);
    size_t count = 0, expected = input_of(context, dropped, address, bytes, &count);
    LADE_EXPECT_OK(lade_graph_output_memory(context, i, (void *)(uintptr_t)address, bytes)); /* else outside */
    if (expected < SOME) is_output[expected] = true;
    o->in_none += count == 0;
    o->in_many += count > 1;
    size_t other = support_random_below(&o->random, SOME);
    if (dropped[other]) continue;
    LADE_EXPECT_STATUS(is_output[other] ? LADE_ERR_INVALID_ARGUMENT : LADE_OK, lade_graph_input_drop(context, other));
    dropped[other] = !is_output[other];
  }
  for (size_t i = 0; i < SOME; i++)
    if (!dropped[i])
      LADE_EXPECT_STATUS(is_output[i] ? LADE_ERR_INVALID_ARGUMENT : LADE_OK, lade_graph_input_drop(context, i));
  return LADE_OK;
}

LADE_TEST(GraphMany, OutputsInInputsThatOverlap) {
  graph_fixture f;
  overlap o = {.in_none = 0};
  uint32_t flags[SOME];
  lade_graph_value inputs[SOME], outputs[NAMES];
  support_random_start(&o.random, 11);
  if (!open_quietly(&f)) return;
  lade_graph_value memory = graph_fixture_memory(&f, 4096, 1);
  o.base = (uint64_t)(uintptr_t)memory.address;
  for (size_t i = 0; i < SOME; i++) flags[i] = LADE_GRAPH_STATIC;
  lade_graph_function *function = function_add(&f, names_at_random, &o, SOME, flags, NAMES);
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = f.streams[0];
  call.inputs = inputs;
  call.input_count = SOME;
  for (int program = 0; program < PROGRAMS && !lade_test_has_failed(); program++) {
    for (size_t i = 0; i < SOME; i++) {
      inputs[i] = memory;
      inputs[i].address = (char *)memory.address + support_random_below(&o.random, 400);
      inputs[i].bytes = 1 + support_random_below(&o.random, support_random_one_in(&o.random, 8) ? 200 : 20);
    }
    graph_fixture_step(&f);
    LADE_EXPECT_OK(lade_graph_tree_run(f.tree, function, &call, outputs, NAMES, NULL)); /* recorded anew */
  }
  LADE_EXPECT_GT_SIZE(o.in_none, PROGRAMS);
  LADE_EXPECT_GT_SIZE(o.in_many, PROGRAMS);
  graph_fixture_memory_free(&f, memory);
  graph_fixture_close(&f);
}
