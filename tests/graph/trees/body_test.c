/* SPDX-License-Identifier: Apache-2.0 */
/* Values of graph-tree traces: what fills memory, what is found to differ, what bodies mean. */
#include <string.h>

#include "tests/graph/trees/body.h"
#include "tests/shim/lade_test.h"

LADE_TEST(TreesBody, HashIsThatOfTheEightBytesOfEachWord) {
  /* FNV-1a of "a" is 0xaf63dc4c8601ec8c; a word has seven zeros after it, each of which multiplies once more. */
  uint64_t expected = UINT64_C(0xaf63dc4c8601ec8c);
  for (int i = 0; i < 7; i++) expected *= UINT64_C(1099511628211);
  LADE_EXPECT_EQ_UINT(trees_hash(TREES_HASH_BEGIN, 'a'), expected);
}

LADE_TEST(TreesBody, MemoryIsItsValueOverAndOver) {
  unsigned char memory[21];
  trees_memory_fill(memory, 19, UINT64_C(0x0807060504030201));
  memory[19] = 99;
  for (unsigned i = 0; i < 19; i++) LADE_EXPECT_EQ_UINT(memory[i], i % 8 + 1);
  LADE_EXPECT_EQ_UINT(trees_memory_value(memory), UINT64_C(0x0807060504030201));
  LADE_EXPECT_EQ_UINT(trees_memory_compare(memory, 19, UINT64_C(0x0807060504030201)), 19);
}

LADE_TEST(TreesBody, AnyByteThatDiffersIsFound) {
  unsigned char memory[21];
  for (unsigned at = 0; at < sizeof memory; at++) {
    trees_memory_fill(memory, sizeof memory, UINT64_C(0x1122334455667788));
    memory[at] ^= 1;
    LADE_EXPECT_EQ_UINT(trees_memory_compare(memory, sizeof memory, UINT64_C(0x1122334455667788)), at);
  }
}

LADE_TEST(TreesBody, TruthFollowsTheStatements) {
  trees_step steps[] = {
      {TREES_ALLOC, 0, 8, false}, {TREES_MUTATE, 1, 0, false}, {TREES_DROP, 0, 0, false}, {TREES_ALLOC, 1, 8, false}};
  uint64_t numbers[] = {5, 9};
  uint32_t flags[] = {0, TREES_MUTATED};
  trees_function f = {.number = 3,
                      .flags = flags,
                      .input_count = 2,
                      .steps = steps,
                      .step_count = 4,
                      .locals = numbers,
                      .local_count = 2};
  uint64_t inputs[] = {100, 200}, locals[] = {0, 0};
  uint64_t *values[] = {&inputs[0], &inputs[1]};
  bool dropped[2];
  trees_truth_run(&f, 7, 4, values, dropped, locals);
  uint64_t begin = trees_hash(trees_hash(TREES_HASH_BEGIN, 3), 7);
  uint64_t mutated = trees_hash(trees_hash(begin, (UINT64_C(1) << 32) + 1), 200);
  LADE_EXPECT_EQ_UINT(locals[0], trees_hash(trees_hash(trees_hash(begin, 5), 100), 200));
  LADE_EXPECT_EQ_UINT(locals[1], trees_hash(trees_hash(begin, 9), mutated));
  LADE_EXPECT_EQ_UINT(inputs[0], 100);
  LADE_EXPECT_EQ_UINT(inputs[1], mutated);
  inputs[1] = 200;
  trees_truth_run(&f, 7, 1, values, dropped, locals); /* of a body that failed after its first statement */
  LADE_EXPECT_EQ_UINT(inputs[1], 200);
}
