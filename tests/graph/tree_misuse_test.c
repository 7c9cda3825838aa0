/* SPDX-License-Identifier: Apache-2.0 */
/* What callers and bodies must not do with a tree: each a named error, and the tree works on. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "graph/tree/tree.h"
#include "tests/graph/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

#define MAKER(value)                                                                                                   \
  { {{GRAPH_ALLOC, 0, MIB}, {GRAPH_FILL, 0, (value)}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0 }
#define COPIER                                                                                                         \
  { {{GRAPH_ALLOC, 0, MIB}, {GRAPH_COPY, 0, 0}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0 }
#define CALLER(function, number)                                                                                       \
  { {{GRAPH_CALL, (number), 0}, {GRAPH_OUT_INTEGER, 3, 0}}, (function), NULL, 0 }

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

typedef struct misuse_fixture {
  graph_fixture f;
  graph_script maker, copier;
  lade_graph_function *make, *copy;
  lade_graph_value out; /* valid, with byte 1 */
} misuse_fixture;

static bool misuse_open(misuse_fixture *m) {
  *m = (misuse_fixture){.maker = MAKER(1), .copier = COPIER};
  if (!graph_fixture_open(&m->f, "sim", NULL)) return false;
  m->make = graph_fixture_function(&m->f, &m->maker, 0, NULL, 1);
  m->copy = graph_fixture_function(&m->f, &m->copier, 1, NULL, 1);
  LADE_EXPECT_OK(graph_fixture_call(&m->f, m->make, NULL, 0, &m->out));
  return true;
}

/* The tree is as it was, and works. */
static void misuse_close(misuse_fixture *m) {
  lade_graph_value copy;
  graph_fixture_expect(&m->f, &m->out, 1);
  LADE_EXPECT_OK(graph_fixture_call(&m->f, m->copy, &m->out, 1, &copy));
  graph_fixture_expect(&m->f, &copy, 1);
  graph_fixture_release(&m->f, copy);
  graph_fixture_release(&m->f, m->out);
  graph_fixture_close(&m->f);
}

static void expect_refused(misuse_fixture *m, lade_status status, const lade_graph_value *inputs, size_t count,
                           const char *words) {
  lade_graph_value copy;
  LADE_EXPECT_STATUS(status, graph_fixture_call(&m->f, m->copy, inputs, count, &copy));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words);
  LADE_EXPECT(graph_fixture_valid(&m->f, m->out));
}

LADE_TEST(GraphMisuse, WrongInputs) {
  misuse_fixture m;
  if (!misuse_open(&m)) return;
  lade_graph_value wrong = m.out, two[2] = {m.out, m.out};
  expect_refused(&m, LADE_ERR_INVALID_ARGUMENT, two, 2, "input_count is 2");
  expect_refused(&m, LADE_ERR_INVALID_ARGUMENT, NULL, 1, "inputs is NULL");
  wrong.kind = 9;
  expect_refused(&m, LADE_ERR_INVALID_ARGUMENT, &wrong, 1, "kind 9");
  wrong = m.out;
  wrong.bytes = 5;
  expect_refused(&m, LADE_ERR_INVALID_ARGUMENT, &wrong, 1, "5 bytes of 1048576");
  wrong = (lade_graph_value){.kind = LADE_GRAPH_MEMORY, .address = m.out.address, .bytes = 16};
  expect_refused(&m, LADE_ERR_INVALID_ARGUMENT, &wrong, 1, "in the pool");
  wrong.bytes = SIZE_MAX;
  expect_refused(&m, LADE_ERR_INVALID_ARGUMENT, &wrong, 1, "1 byte to 2^60 - 1");
  wrong = (lade_graph_value){.kind = LADE_GRAPH_MEMORY, .address = (void *)UINTPTR_MAX, .bytes = 16};
  expect_refused(&m, LADE_ERR_INVALID_ARGUMENT, &wrong, 1, "1 byte to 2^60 - 1");
  wrong = (lade_graph_value){.kind = LADE_GRAPH_MEMORY, .bytes = 16};
  expect_refused(&m, LADE_ERR_INVALID_ARGUMENT, &wrong, 1, "memory of 1 byte");
  misuse_close(&m);
}

LADE_TEST(GraphMisuse, WrongBuffers) {
  misuse_fixture m;
  graph_fixture other;
  graph_script maker = MAKER(2);
  lade_graph_value foreign;
  if (!misuse_open(&m) || !graph_fixture_open(&other, "sim", NULL)) return;
  lade_graph_function *make = graph_fixture_function(&other, &maker, 0, NULL, 1);
  LADE_EXPECT_OK(graph_fixture_call(&other, make, NULL, 0, &foreign));
  expect_refused(&m, LADE_ERR_FOREIGN_POINTER, &foreign, 1, "not given out by this tree");
  lade_graph_value none = {.kind = LADE_GRAPH_BUFFER};
  expect_refused(&m, LADE_ERR_INVALID_ARGUMENT, &none, 1, "{0, 0}");
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_graph_buffer_release(m.f.tree, foreign.buffer));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_buffer_get(m.f.tree, none.buffer, NULL, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_buffer_get(NULL, m.out.buffer, NULL, NULL));
  lade_graph_value stale;
  LADE_EXPECT_OK(graph_fixture_call(&m.f, m.make, NULL, 0, &stale));
  graph_fixture_release(&m.f, stale);
  expect_refused(&m, LADE_ERR_OVERWRITTEN, &stale, 1, "was released");
  LADE_EXPECT_EQ_UINT(m.f.last.record.status, LADE_ERR_OVERWRITTEN);
  graph_fixture_release(&other, foreign);
  graph_fixture_close(&other);
  misuse_close(&m);
}

LADE_TEST(GraphMisuse, TakenMoreOftenThanHeld) {
  misuse_fixture m;
  graph_script pair = {{{GRAPH_OUT_INTEGER, 1, 0}}, NULL, NULL, 0};
  if (!misuse_open(&m)) return;
  lade_graph_function *both = graph_fixture_function(&m.f, &pair, 2, NULL, 1);
  lade_graph_value twice[2] = {graph_taken(m.out), graph_taken(m.out)}, lent[2] = {graph_taken(m.out), m.out}, out;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, graph_fixture_call(&m.f, both, twice, 2, &out));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "taken 2 times, held 1 times");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, graph_fixture_call(&m.f, both, lent, 2, &out));
  LADE_EXPECT_OK(lade_graph_buffer_retain(m.f.tree, m.out.buffer));
  LADE_EXPECT_OK(graph_fixture_call(&m.f, both, lent, 2, &out)); /* one count is left */
  misuse_close(&m);
}

LADE_TEST(GraphMisuse, MutatedInputThatIsAnother) {
  misuse_fixture m;
  graph_script pair = {{{GRAPH_OUT_INTEGER, 1, 0}}, NULL, NULL, 0};
  static const uint32_t flags[] = {LADE_GRAPH_MUTATED, 0};
  if (!misuse_open(&m)) return;
  lade_graph_function *both = graph_fixture_function(&m.f, &pair, 2, flags, 1);
  lade_graph_value same[2] = {m.out, m.out}, out;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, graph_fixture_call(&m.f, both, same, 2, &out));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "input 0, which is input 1");
  lade_graph_value memory = graph_fixture_memory(&m.f, 2 * KIB, 1);
  lade_graph_value upper = memory;
  upper.address = (char *)memory.address + KIB;
  upper.bytes = KIB;
  lade_graph_value overlap[2] = {memory, upper};
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, graph_fixture_call(&m.f, both, overlap, 2, &out));
  memory.bytes = KIB;
  lade_graph_value apart[2] = {memory, upper};
  LADE_EXPECT_OK(graph_fixture_call(&m.f, both, apart, 2, &out));
  graph_fixture_memory_free(&m.f, memory);
  misuse_close(&m);
}

/* As many as there may be. With a look at each pair the test takes minutes. */
LADE_TEST(GraphMisuse, MutatedInputsAreMany) {
  enum { COUNT = 65535, BYTES = 16 };
  misuse_fixture m;
  graph_script none = {{{GRAPH_OUT_INTEGER, 1, 0}}, NULL, NULL, 0};
  if (!misuse_open(&m)) return;
  uint32_t *flags = calloc(COUNT, sizeof *flags);
  lade_graph_value *inputs = calloc(COUNT, sizeof *inputs), out;
  LADE_ASSERT(flags != NULL && inputs != NULL);
  lade_graph_value memory = graph_fixture_memory(&m.f, COUNT * BYTES, 1);
  for (size_t i = 0; i < COUNT; i++) {
    flags[i] = LADE_GRAPH_STATIC | LADE_GRAPH_MUTATED;
    inputs[i] = memory;
    inputs[i].address = (char *)memory.address + i * 7919 % COUNT * BYTES;
    inputs[i].bytes = BYTES;
  }
  lade_graph_function *function = graph_fixture_function(&m.f, &none, COUNT, flags, 1);
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = m.f.streams[0];
  call.inputs = inputs;
  call.input_count = COUNT;
  LADE_EXPECT_OK(lade_graph_tree_log_set(m.f.tree, NULL, NULL, LADE_GRAPH_LOG_OFF)); /* its lists are short */
  for (int i = 0; i < 20; i++) LADE_EXPECT_OK(lade_graph_tree_run(m.f.tree, function, &call, &out, 1, NULL));
  inputs[COUNT - 1].address = (char *)inputs[3].address + 1;
  inputs[COUNT - 1].bytes = 2;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_run(m.f.tree, function, &call, &out, 1, NULL));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "input 65534, which is input 3");
  graph_fixture_memory_free(&m.f, memory);
  free(inputs);
  free(flags);
  misuse_close(&m);
}

/* Against a look at each pair. */
LADE_TEST(GraphMisuse, MutatedInputsAtRandom) {
  enum { COUNT = 6, PROGRAMS = 400 };
  misuse_fixture m;
  graph_script none = {{{GRAPH_OUT_INTEGER, 1, 0}}, NULL, NULL, 0};
  support_random random;
  support_random_start(&random, 7);
  if (!misuse_open(&m)) return;
  lade_graph_value memory = graph_fixture_memory(&m.f, 4096, 1);
  size_t refused = 0;
  for (int program = 0; program < PROGRAMS && !lade_test_has_failed(); program++) {
    uint32_t flags[COUNT];
    lade_graph_value inputs[COUNT], out;
    bool touch = false;
    for (size_t i = 0; i < COUNT; i++) {
      flags[i] = support_random_below(&random, 3) == 0 ? LADE_GRAPH_MUTATED : 0;
      inputs[i] = memory;
      inputs[i].address = (char *)memory.address + support_random_below(&random, 200);
      inputs[i].bytes = 1 + support_random_below(&random, support_random_below(&random, 4) == 0 ? 90 : 9);
      if (support_random_below(&random, 12) == 0) inputs[i] = m.out;
    }
    for (size_t i = 0; i < COUNT; i++)
      for (size_t j = 0; j < COUNT; j++)
        touch = touch || (i != j && (flags[i] & LADE_GRAPH_MUTATED) != 0 &&
                          (char *)inputs[i].address < (char *)inputs[j].address + inputs[j].bytes &&
                          (char *)inputs[j].address < (char *)inputs[i].address + inputs[i].bytes);
    lade_graph_function *function = graph_fixture_function(&m.f, &none, COUNT, flags, 1);
    lade_status status = graph_fixture_call(&m.f, function, inputs, COUNT, &out);
    LADE_EXPECT_STATUS(touch ? LADE_ERR_INVALID_ARGUMENT : LADE_OK, status);
    refused += touch;
    LADE_EXPECT_OK(lade_graph_tree_function_remove(m.f.tree, function));
  }
  LADE_EXPECT(refused > PROGRAMS / 10 && refused < PROGRAMS * 9 / 10);
  graph_fixture_memory_free(&m.f, memory);
  misuse_close(&m);
}

LADE_TEST(GraphMisuse, PoolThatLends) {
  misuse_fixture m;
  if (!misuse_open(&m)) return;
  lade_graph_tree *tree = NULL;
  lade_device_pool_options lends;
  lade_graph_tree_options options;
  lade_device_pool_info info;
  lade_device_pool_options_init(&lends);
  lade_graph_tree_options_init(&options);
  lade_device_pool_info_init(&info);
  lends.flags = LADE_DEVICE_POOL_USE_ON_OOM;
  LADE_EXPECT_OK(lade_device_pool_create(m.f.allocator, &lends, &options.pool));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_create(m.f.allocator, &options, &tree));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "a pool that lends nothing");
  LADE_EXPECT_OK(lade_device_pool_info_get(m.f.allocator, options.pool, &info));
  LADE_EXPECT_EQ_UINT(info.use_count, 1);
  LADE_EXPECT_OK(lade_device_pool_release(m.f.allocator, options.pool));
  misuse_close(&m);
}

/* A tree frees what it finds in its pool behind a body. */
LADE_TEST(GraphMisuse, PoolInUse) {
  misuse_fixture m;
  lade_graph_tree *tree = NULL;
  lade_graph_tree_options options;
  lade_graph_tree_stats state;
  uint64_t scope = 0;
  void *block = NULL;
  lade_graph_tree_options_init(&options);
  lade_graph_tree_stats_init(&state);
  if (!misuse_open(&m)) return;
  LADE_EXPECT_OK(lade_graph_tree_stats_get(m.f.tree, &state));
  options.pool = state.pool; /* of another tree, which has a valid buffer in it */
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_create(m.f.allocator, &options, &tree));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "another graph tree");
  LADE_EXPECT_OK(lade_device_pool_create(m.f.allocator, NULL, &options.pool));
  LADE_EXPECT_OK(lade_device_scope_begin(m.f.allocator, options.pool, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
  LADE_EXPECT_OK(lade_device_alloc(m.f.allocator, MIB, m.f.streams[0], &block));
  LADE_EXPECT_OK(lade_device_scope_end(m.f.allocator, scope));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_create(m.f.allocator, &options, &tree));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "1 blocks");
  LADE_EXPECT_EQ_PTR(tree, NULL);
  LADE_EXPECT_OK(lade_device_free(m.f.allocator, block));
  for (int i = 0; i < 2; i++) { /* one after the other */
    LADE_EXPECT_OK(lade_graph_tree_create(m.f.allocator, &options, &tree));
    LADE_EXPECT_OK(lade_graph_tree_destroy(tree, true));
  }
  LADE_EXPECT_OK(lade_device_pool_release(m.f.allocator, options.pool));
  misuse_close(&m);
}

static void expect_the_trees_alone(lade_status status) {
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, status);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "a graph tree has it to itself");
}

static lade_status captures_nothing(lade_stream stream, void *user) {
  (void)stream, (void)user;
  return LADE_OK;
}

static lade_device_checkpoint *state_of_pool; /* as it was at some time */

/* All that leads the program's blocks into a pool, or takes memory out of it; `in_body`: not what captures refuse by themselves. */
static void expect_pool_refused(graph_fixture *f, bool in_body) {
  lade_graph_tree_stats state;
  lade_device_restored *restored = NULL;
  lade_graph *graph = NULL;
  lade_graph_options options;
  uint64_t scope = 0, bytes = 0;
  lade_graph_tree_stats_init(&state);
  lade_graph_options_init(&options);
  LADE_EXPECT_OK(lade_graph_tree_stats_get(f->tree, &state));
  options.stream = f->streams[1];
  options.pool = state.pool;
  lade_device_allocator *allocator = f->allocator;
  expect_the_trees_alone(lade_device_scope_begin(allocator, state.pool, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
  expect_the_trees_alone(lade_device_scope_begin(allocator, state.pool, f->streams, 2, &scope));
  expect_the_trees_alone(lade_device_scope_begin(allocator, state.pool, NULL, 0, &scope));
  if (in_body) return;
  expect_the_trees_alone(lade_device_pool_begin(allocator, state.pool, f->streams, 2));
  expect_the_trees_alone(lade_device_pool_trim(allocator, state.pool, NULL, 0, &bytes));
  expect_the_trees_alone(lade_device_checkpoint_set(allocator, state_of_pool, &restored));
  expect_the_trees_alone(lade_graph_capture(allocator, &options, captures_nothing, NULL, &graph));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_release(allocator, state.pool));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "a graph tree's");
}

static lade_status uses_the_pool(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  (void)context, (void)a;
  expect_pool_refused(f, true);
  return LADE_OK;
}

/* A block that a scope led into a tree's pool was freed behind the next body, under the program's hands. */
LADE_TEST(GraphMisuse, PoolOfATreeThatLives) {
  misuse_fixture m;
  graph_script user = CALLER(uses_the_pool, 0);
  lade_graph_tree_stats state;
  lade_graph_tree_stats_init(&state);
  if (!misuse_open(&m)) return;
  LADE_EXPECT_OK(lade_graph_tree_stats_get(m.f.tree, &state));
  LADE_EXPECT_OK(lade_device_checkpoint_get(m.f.allocator, state.pool, &state_of_pool)); /* harms nobody */
  lade_graph_function *function = graph_fixture_function(&m.f, &user, 0, NULL, 1);
  for (int i = 0; i < 3; i++) {
    lade_graph_value out;
    expect_pool_refused(&m.f, false);
    LADE_EXPECT_OK(graph_fixture_call(&m.f, function, NULL, 0, &out));
  }
  LADE_EXPECT_OK(lade_device_pool_retain(m.f.allocator, state.pool)); /* a use of the program's own */
  LADE_EXPECT_OK(lade_device_pool_release(m.f.allocator, state.pool));
  lade_device_checkpoint_destroy(state_of_pool);
  misuse_close(&m);
}

LADE_TEST(GraphMisuse, PoolThatAScopeOrACaptureLeadsTo) {
  misuse_fixture m;
  lade_graph_tree *tree = NULL;
  lade_graph_tree_options options;
  uint64_t scope = 0;
  lade_graph_tree_options_init(&options);
  if (!misuse_open(&m)) return;
  LADE_EXPECT_OK(lade_device_pool_create(m.f.allocator, NULL, &options.pool));
  LADE_EXPECT_OK(lade_device_scope_begin(m.f.allocator, options.pool, m.f.streams, 2, &scope));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_create(m.f.allocator, &options, &tree));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "which a scope leads to");
  LADE_EXPECT_OK(lade_device_scope_end(m.f.allocator, scope));
  LADE_EXPECT_OK(lade_device_pool_begin(m.f.allocator, options.pool, m.f.streams, 2));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_create(m.f.allocator, &options, &tree));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "which is captured into");
  LADE_EXPECT_OK(lade_device_pool_end(m.f.allocator, options.pool));
  LADE_EXPECT_OK(lade_device_pool_release(m.f.allocator, options.pool));
  LADE_EXPECT_OK(lade_graph_tree_create(m.f.allocator, &options, &tree));
  LADE_EXPECT_OK(lade_graph_tree_destroy(tree, true));
  LADE_EXPECT_OK(lade_device_scope_begin(m.f.allocator, options.pool, NULL, LADE_DEVICE_SCOPE_THREAD,
                                         &scope)); /* the program's again */
  LADE_EXPECT_OK(lade_device_scope_end(m.f.allocator, scope));
  LADE_EXPECT_OK(lade_device_pool_release(m.f.allocator, options.pool));
  misuse_close(&m);
}

LADE_TEST(GraphMisuse, WrongStructs) {
  misuse_fixture m;
  if (!misuse_open(&m)) return;
  lade_graph_value out;
  struct {
    lade_graph_call call;
    uint64_t later;
  } newer = {.later = 1};
  newer.call.struct_size = sizeof newer;
  newer.call.stream = m.f.streams[0];
  newer.call.inputs = &m.out;
  newer.call.input_count = 1;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_graph_tree_run(m.f.tree, m.copy, &newer.call, &out, 1, NULL));
  newer.later = 0;
  newer.call.flags = 64;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_run(m.f.tree, m.copy, &newer.call, &out, 1, NULL));
  newer.call.flags = 0;
  newer.call.key_count = 65;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_run(m.f.tree, m.copy, &newer.call, &out, 1, NULL));
  newer.call.key_count = 1;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_run(m.f.tree, m.copy, &newer.call, &out, 1, NULL));
  newer.call.key_count = 0;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_run(m.f.tree, m.copy, &newer.call, &out, 0, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_run(m.f.tree, m.copy, &newer.call, NULL, 1, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_run(m.f.tree, NULL, &newer.call, &out, 1, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_run(NULL, m.copy, &newer.call, &out, 1, NULL));
  lade_graph_function_options options;
  lade_graph_function *function = NULL;
  lade_graph_function_options_init(&options);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_function_add(m.f.tree, &options, &function));
  static const uint32_t flags[] = {4};
  options.input_flags = flags;
  options.input_count = 1;
  options.body = (lade_graph_body)(uintptr_t)1;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_function_add(m.f.tree, &options, &function));
  options.input_flags = NULL;
  options.input_count = 65536;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_function_add(m.f.tree, &options, &function));
  options.input_count = 0;
  options.mode = 3;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_function_add(m.f.tree, &options, &function));
  LADE_EXPECT_EQ_PTR(function, NULL);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_tree_fail_next(m.f.tree, 64));
  misuse_close(&m);
}

LADE_TEST(GraphMisuse, BusyAndOthers) {
  misuse_fixture m;
  graph_fixture other;
  if (!misuse_open(&m) || !graph_fixture_open(&other, "sim", NULL)) return;
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_destroy(m.f.tree, false));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "1 buffers");
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_runtime_close(m.f.runtime));
  lade_graph_value out;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, graph_fixture_call(&other, m.make, NULL, 0, &out));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_function_remove(other.tree, m.make));
  graph_fixture_close(&other);
  misuse_close(&m);
}

/* ---- Bodies ------------------------------------------------------------------------------------------------------ */

static lade_status synchronises(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  (void)a;
  ladei_stream stream; /* lade_stream_synchronize() refuses to break a capture */
  LADE_EXPECT_OK(f->runtime->ops->stream_resolve(f->runtime->self, context->stream, &stream));
  (void)f->runtime->ops->stream_synchronize(f->runtime->self, &stream);
  return LADE_OK;
}

static lade_status forks(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  lade_event event;
  (void)a;
  if (context->stage != LADE_GRAPH_STAGE_RECORD) return LADE_OK;
  void *block;
  LADE_EXPECT_OK(lade_graph_alloc(context, KIB, &block));
  LADE_EXPECT_OK(lade_event_create(f->runtime, 0, &event));
  LADE_EXPECT_OK(lade_fill_async(f->runtime, block, 1, KIB, context->stream));
  LADE_EXPECT_OK(lade_event_record(f->runtime, event, context->stream));
  LADE_EXPECT_OK(lade_stream_wait_event(f->runtime, f->streams[1], event));
  LADE_EXPECT_OK(lade_fill_async(f->runtime, block, 1, KIB, f->streams[1]));
  LADE_EXPECT_OK(lade_event_destroy(f->runtime, event));
  return LADE_OK;
}

static lade_status leaves_a_block(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  void *block;
  (void)a;
  return lade_device_alloc(f->allocator, 3 * KIB, context->stream, &block);
}

static void *elsewhere;
static lade_status allocates_elsewhere(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  (void)a;
  (void)context;
  lade_status status = lade_device_alloc(f->allocator, 3 * KIB, f->streams[1], &elsewhere);
  return status == LADE_OK ? lade_device_free(f->allocator, elsewhere) : status;
}

static lade_graph_function *nested;
static lade_status calls_the_tree(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  lade_graph_value out;
  lade_graph_call call;
  (void)a;
  (void)context;
  lade_graph_call_init(&call);
  call.stream = f->streams[0];
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_run(f->tree, nested, &call, &out, 1, NULL));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "from within a body");
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_step(f->tree));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_destroy(f->tree, true));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_function_remove(f->tree, nested));
  lade_graph_tree_stats state;
  lade_graph_tree_stats_init(&state);
  LADE_EXPECT_OK(lade_graph_tree_stats_get(f->tree, &state));
  return LADE_OK;
}

static lade_status names_host_memory(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  static char host[64];
  (void)f;
  (void)a;
  lade_status status = lade_graph_output_memory(context, 0, host, sizeof host);
  LADE_EXPECT_EQ_INT(status, LADE_ERR_INVALID_ARGUMENT);
  return status;
}

static lade_status misuses_context(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  lade_graph_value in;
  void *block, *freed;
  (void)a;
  (void)f;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_input_get(context, 0, &in));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_input_drop(context, 0));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_alloc(context, 0, &block));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_alloc(context, SIZE_MAX, &block));
  LADE_EXPECT_OK(lade_graph_alloc(context, KIB, &block));
  LADE_EXPECT_OK(lade_graph_alloc(context, KIB, &freed));
  LADE_EXPECT_OK(lade_graph_free(context, freed));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_graph_free(context, freed));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_graph_free(context, (char *)block + 16));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_output_memory(context, 0, freed, KIB));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_output_memory(context, 0, block, 2 * KIB));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_output_memory(context, 0, block, 0));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_output_memory(context, 1, block, KIB));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_output_integer(context, 1, 1));
  return LADE_OK;
}

static lade_status frees_an_input(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  (void)context;
  return lade_device_free(f->allocator, (void *)(uintptr_t)a);
}

/* A body that does `what`: in a warm-up, where the status is that of the first, in a recording the second. */
static void body_fails(lade_status (*what)(graph_fixture *, lade_graph_context *, uint64_t), lade_status warmup,
                       lade_status recording, const char *words) {
  misuse_fixture m;
  graph_script wrong = CALLER(what, 0);
  lade_graph_value out;
  if (!misuse_open(&m)) return;
  nested = m.make;
  lade_graph_function *function = graph_fixture_function(&m.f, &wrong, 0, NULL, 1);
  LADE_EXPECT_STATUS(warmup, graph_fixture_call(&m.f, function, NULL, 0, &out));
  if (warmup != LADE_OK) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words);
  if (warmup != LADE_OK) { /* warm it up by what it does not do */
    wrong.steps[0].kind = GRAPH_OUT_INTEGER;
    wrong.steps[1].kind = GRAPH_END;
    LADE_EXPECT_OK(graph_fixture_call(&m.f, function, NULL, 0, &out));
    wrong = (graph_script)CALLER(what, 0);
    wrong.fixture = &m.f;
  }
  /* The path goes: a recording as a root, behind a path that ends by it and returns. */
  lade_graph_function *keep = m.make;
  graph_fixture_step(&m.f);
  graph_fixture_run(&m.f, keep, NULL, 0, &m.out, LADE_GRAPH_DID_RECORD);
  LADE_EXPECT_STATUS(recording, graph_fixture_call(&m.f, function, NULL, 0, &out));
  if (recording != LADE_OK) {
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words);
    LADE_EXPECT_EQ_UINT(graph_fixture_state(&m.f), LADE_GRAPH_STATE_RECORDING);
    LADE_EXPECT_EQ_UINT(graph_fixture_stats(&m.f).nodes, 1);
  }
  misuse_close(&m);
}

LADE_TEST(GraphMisuse, BodySynchronises) { body_fails(synchronises, LADE_OK, LADE_ERR_CAPTURE, "capture"); }
LADE_TEST(GraphMisuse, BodyForksAndDoesNotJoin) { body_fails(forks, LADE_OK, LADE_ERR_CAPTURE, "not joined"); }
LADE_TEST(GraphMisuse, BodyLeavesABlock) {
  body_fails(leaves_a_block, LADE_ERR_CALLBACK, LADE_ERR_CALLBACK, "left 1 blocks in the pool");
}
LADE_TEST(GraphMisuse, BodyCallsTheTree) { body_fails(calls_the_tree, LADE_OK, LADE_OK, ""); }
LADE_TEST(GraphMisuse, BodyMisusesItsContext) { body_fails(misuses_context, LADE_OK, LADE_OK, ""); }
LADE_TEST(GraphMisuse, BodyNamesHostMemory) {
  body_fails(names_host_memory, LADE_ERR_CALLBACK, LADE_ERR_CALLBACK, "host memory");
}

LADE_TEST(GraphMisuse, BodyAllocatesOnAnotherStream) {
  misuse_fixture m;
  graph_script wrong = CALLER(allocates_elsewhere, 0);
  lade_graph_value out;
  if (!misuse_open(&m)) return;
  lade_graph_function *function = graph_fixture_function(&m.f, &wrong, 0, NULL, 1);
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, graph_fixture_call(&m.f, function, NULL, 0, &out));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "another stream");
  misuse_close(&m);
}

LADE_TEST(GraphMisuse, BodyFreesWhatIsNotItsOwn) {
  misuse_fixture m;
  if (!misuse_open(&m)) return;
  graph_script wrong = CALLER(frees_an_input, (uint64_t)(uintptr_t)m.out.address);
  lade_graph_value out;
  lade_graph_function *function = graph_fixture_function(&m.f, &wrong, 0, NULL, 1);
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, lade_graph_tree_run(m.f.tree, function,
                                                            &(lade_graph_call){.struct_size = sizeof(lade_graph_call),
                                                                               .stream = m.f.streams[0]},
                                                            &out, 1, NULL));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "which is not its own");
  LADE_EXPECT_STATUS(LADE_ERR_OVERWRITTEN, lade_graph_buffer_release(m.f.tree, m.out.buffer));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "freed by the body");
  LADE_EXPECT_OK(graph_fixture_call(&m.f, m.make, NULL, 0, &m.out));
  misuse_close(&m);
}

LADE_TEST(GraphMisuse, BodyNamesTooFew) {
  misuse_fixture m;
  graph_script wrong = {{{GRAPH_OUT_INTEGER, 1, 0}}, NULL, NULL, 0};
  lade_graph_value outs[2];
  if (!misuse_open(&m)) return;
  lade_graph_function *function = graph_fixture_function(&m.f, &wrong, 0, NULL, 2);
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, graph_fixture_call(&m.f, function, NULL, 0, outs));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "did not name output 1");
  misuse_close(&m);
}

LADE_TEST(GraphMisuse, BodyReturnsAnError) {
  misuse_fixture m;
  graph_script wrong = {{{GRAPH_ALLOC, 0, MIB}, {GRAPH_FAIL, LADE_ERR_TIMEOUT, 0}}, NULL, NULL, 0};
  lade_graph_value outs[2];
  if (!misuse_open(&m)) return;
  lade_graph_function *function = graph_fixture_function(&m.f, &wrong, 0, NULL, 1);
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, graph_fixture_call(&m.f, function, NULL, 0, outs));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "LADE_ERR_TIMEOUT");
  misuse_close(&m);
}

/* ---- A forked child ---------------------------------------------------------------------------------------------- */

static lade_status empty_work(lade_stream stream, void *user) {
  (void)stream, (void)user;
  return LADE_OK;
}

/* Each call of the child's. The parent's objects are as they were. */
static bool child_is_refused(misuse_fixture *m, lade_graph *graph) {
  lade_graph_tree *tree = m->f.tree, *other = NULL;
  lade_graph_value copy = {0};
  lade_graph_tree_stats stats;
  lade_graph *second = NULL;
  lade_graph_options options;
  void *address = NULL;
  lade_graph_tree_stats_init(&stats);
  lade_graph_options_init(&options);
  options.stream = m->f.streams[0];
  const lade_status answers[] = {
      graph_fixture_call(&m->f, m->copy, &m->out, 1, &copy),
      lade_graph_tree_step(tree),
      ladei_tree_verify(tree),
      lade_graph_tree_stats_get(tree, &stats),
      lade_graph_tree_create(m->f.allocator, NULL, &other),
      lade_graph_buffer_get(tree, m->out.buffer, &address, NULL),
      lade_graph_buffer_retain(tree, m->out.buffer),
      lade_graph_buffer_release(tree, m->out.buffer),
      lade_graph_buffer_record_stream(tree, m->out.buffer, m->f.streams[1]),
      lade_graph_tree_destroy(tree, true),
      lade_graph_capture(m->f.allocator, &options, empty_work, NULL, &second),
      lade_graph_launch(graph, m->f.streams[0]),
      lade_graph_update(graph, empty_work, NULL, NULL),
      lade_graph_destroy(graph, true),
  };
  for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++)
    if (answers[i] != LADE_ERR_FORKED) return false;
  return other == NULL && second == NULL && address == NULL;
}

LADE_TEST(GraphMisuse, ForkedChildGetsAnError) {
  misuse_fixture m;
  lade_graph *graph = NULL;
  lade_graph_options options;
  if (!misuse_open(&m)) return;
  lade_graph_options_init(&options);
  options.stream = m.f.streams[0];
  LADE_ASSERT_OK(lade_graph_capture(m.f.allocator, &options, empty_work, NULL, &graph));
  pid_t child = fork();
  LADE_ASSERT(child >= 0);
  if (child == 0) _exit(child_is_refused(&m, graph) ? 0 : 1);
  int status = -1;
  LADE_ASSERT(waitpid(child, &status, 0) == child);
  LADE_EXPECT_EQ_INT(status, 0);
  LADE_EXPECT_OK(lade_graph_launch(graph, m.f.streams[0]));
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  misuse_close(&m);
}
