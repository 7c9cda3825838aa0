/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of graph trees, one by one: the acceptance checks of the behaviour by number, and each criterion of a match. */
#include <string.h>

#include "graph/tree/tree.h"
#include "tests/graph/fixture.h"
#include "tests/shim/lade_test.h"

/* An output of 1 MiB with byte `value`. */
#define MAKER(value)                                                                                                   \
  { {{GRAPH_ALLOC, 0, MIB}, {GRAPH_FILL, 0, (value)}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0 }
/* An output that is a copy of the input. */
#define COPIER                                                                                                         \
  { {{GRAPH_ALLOC, 0, MIB}, {GRAPH_COPY, 0, 0}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0 }

static lade_status run_again(graph_fixture *f, lade_graph_function *function, lade_graph_value *out) {
  graph_fixture_step(f);
  return graph_fixture_call(f, function, NULL, 0, out);
}

LADE_TEST(GraphRules, FirstWarmupThenRecordingThenReplay) { /* check 1 */
  graph_fixture f;
  graph_script script = MAKER(7);
  lade_graph_value out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *function = graph_fixture_function(&f, &script, 0, NULL, 1);
  static const lade_graph_did dids[] = {LADE_GRAPH_DID_WARMUP, LADE_GRAPH_DID_RECORD, LADE_GRAPH_DID_REPLAY,
                                        LADE_GRAPH_DID_REPLAY};
  static const lade_graph_state states[] = {LADE_GRAPH_STATE_WARMUP, LADE_GRAPH_STATE_RECORDING,
                                            LADE_GRAPH_STATE_EXECUTION, LADE_GRAPH_STATE_EXECUTION};
  for (size_t i = 0; i < 4; i++) {
    LADE_EXPECT_OK(run_again(&f, function, &out));
    LADE_EXPECT_EQ_UINT(f.last.record.did, (unsigned)dids[i]);
    LADE_EXPECT_EQ_UINT(graph_fixture_state(&f), (unsigned)states[i]);
    graph_fixture_expect(&f, &out, 7);
    graph_fixture_release(&f, out);
  }
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).nodes, 1);
  LADE_EXPECT_EQ_SIZE(script.calls, 2);
  graph_fixture_close(&f);
}

/* Warms a function up and leaves nothing behind. */
static void warm(graph_fixture *f, lade_graph_function *function, const lade_graph_value *inputs, size_t count) {
  lade_graph_value outs[4];
  graph_fixture_step(f);
  LADE_EXPECT_OK(graph_fixture_call(f, function, inputs, count, outs));
  LADE_EXPECT_EQ_UINT(f->last.record.did, LADE_GRAPH_DID_WARMUP);
  for (size_t i = 0; i < f->last.record.output_count; i++)
    if (outs[i].kind == LADE_GRAPH_BUFFER) graph_fixture_release(f, outs[i]);
}

LADE_TEST(GraphRules, BranchesShareTheTrunk) { /* check 2 */
  graph_fixture f;
  graph_script a = {{{GRAPH_ALLOC, 0, 30 * MIB}, {GRAPH_FILL, 0, 1}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0};
  graph_script b = {{{GRAPH_ALLOC, 0, 40 * MIB}, {GRAPH_FILL, 0, 2}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0};
  graph_script c = {{{GRAPH_ALLOC, 0, 40 * MIB}, {GRAPH_FILL, 0, 3}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0};
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *functions[3] = {graph_fixture_function(&f, &a, 0, NULL, 1),
                                       graph_fixture_function(&f, &b, 0, NULL, 1),
                                       graph_fixture_function(&f, &c, 0, NULL, 1)};
  for (size_t i = 0; i < 3; i++) warm(&f, functions[i], NULL, 0);
  lade_graph_value trunk, branch;
  for (size_t round = 0; round < 6; round++) {
    lade_graph_did did = round == 0 ? LADE_GRAPH_DID_RECORD : LADE_GRAPH_DID_REPLAY;
    graph_fixture_step(&f);
    graph_fixture_run(&f, functions[0], NULL, 0, &trunk, did);
    graph_fixture_run(&f, functions[1 + round % 2], NULL, 0, &branch,
                      round < 2 ? LADE_GRAPH_DID_RECORD : LADE_GRAPH_DID_REPLAY);
    LADE_EXPECT_EQ_INT(f.last.record.restored, round == 1);
    graph_fixture_expect(&f, &trunk, 1);
    graph_fixture_expect(&f, &branch, (unsigned char)(2 + round % 2));
    graph_fixture_release(&f, trunk);
    graph_fixture_release(&f, branch);
  }
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).nodes, 3);
  LADE_EXPECT_LE_UINT(graph_fixture_stats(&f).pool_peak_bytes, 70 * MIB);
  LADE_EXPECT_GE_UINT(graph_fixture_stats(&f).saved_bytes, 40 * MIB);
  graph_fixture_close(&f);
}

LADE_TEST(GraphRules, EarlyDeathReplaysLateDeathIsASibling) { /* check 3 */
  graph_fixture f;
  graph_script a = MAKER(1), b = MAKER(2);
  lade_graph_value out, second;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fb = graph_fixture_function(&f, &b, 0, NULL, 1);
  warm(&f, fa, NULL, 0);
  warm(&f, fb, NULL, 0);
  graph_fixture_step(&f);
  graph_fixture_run(&f, fa, NULL, 0, &out, LADE_GRAPH_DID_RECORD);
  graph_fixture_release(&f, out);
  graph_fixture_run(&f, fb, NULL, 0, &second, LADE_GRAPH_DID_RECORD); /* a root: nothing of the path was alive */
  LADE_EXPECT_EQ_UINT(f.last.record.ended, LADE_GRAPH_ENDED_DEAD);
  graph_fixture_release(&f, second);
  lade_graph_value other;
  graph_fixture_step(&f);
  graph_fixture_run(&f, fa, NULL, 0, &out, LADE_GRAPH_DID_REPLAY);
  graph_fixture_run(&f, fa, NULL, 0, &other, LADE_GRAPH_DID_RECORD); /* keeps the path alive */
  graph_fixture_run(&f, fb, NULL, 0, &second, LADE_GRAPH_DID_RECORD);
  graph_fixture_expect(&f, &second, 2);
  graph_fixture_expect(&f, &other, 1);
  graph_fixture_expect(&f, &out, 1);
  graph_fixture_release(&f, out);
  graph_fixture_release(&f, other);
  graph_fixture_release(&f, second);
  /* Recorded with `out` alive: dead now is as good. */
  graph_fixture_step(&f);
  graph_fixture_run(&f, fa, NULL, 0, &out, LADE_GRAPH_DID_REPLAY);
  graph_fixture_run(&f, fa, NULL, 0, &other, LADE_GRAPH_DID_REPLAY);
  graph_fixture_release(&f, out);
  graph_fixture_run(&f, fb, NULL, 0, &second, LADE_GRAPH_DID_REPLAY);
  graph_fixture_expect(&f, &other, 1);
  graph_fixture_release(&f, other);
  graph_fixture_release(&f, second);
  graph_fixture_close(&f);
}

LADE_TEST(GraphRules, AliveThatWasDeadIsASibling) { /* check 3, the other way */
  graph_fixture f;
  graph_script a = MAKER(1), b = MAKER(2);
  lade_graph_value first, keep, out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fb = graph_fixture_function(&f, &b, 0, NULL, 1);
  warm(&f, fa, NULL, 0);
  warm(&f, fb, NULL, 0);
  for (int round = 0; round < 3; round++) {
    graph_fixture_step(&f);
    lade_graph_did did = round == 0 ? LADE_GRAPH_DID_RECORD : LADE_GRAPH_DID_REPLAY;
    graph_fixture_run(&f, fa, NULL, 0, &first, did);
    graph_fixture_run(&f, fa, NULL, 0, &keep, did);
    if (round == 0) graph_fixture_release(&f, first);
    graph_fixture_run(&f, fb, NULL, 0, &out, round < 2 ? LADE_GRAPH_DID_RECORD : LADE_GRAPH_DID_REPLAY);
    LADE_EXPECT_EQ_SIZE(f.last.record.why_count, round > 0);
    if (round > 0) {
      LADE_EXPECT_EQ_UINT(f.last.why[0], LADE_GRAPH_REASON_DEAD_BEFORE);
      graph_fixture_expect(&f, &first, 1);
      graph_fixture_release(&f, first);
    }
    graph_fixture_expect(&f, &keep, 1);
    graph_fixture_expect(&f, &out, 2);
    graph_fixture_release(&f, keep);
    graph_fixture_release(&f, out);
  }
  graph_fixture_close(&f);
}

LADE_TEST(GraphRules, ManagedInputsAreNotCopiedForeignOnesAre) { /* check 5 */
  graph_fixture f;
  graph_script a = MAKER(1), b = COPIER;
  lade_graph_value out, copy;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fb = graph_fixture_function(&f, &b, 1, NULL, 1);
  lade_graph_value memory = graph_fixture_memory(&f, MIB, 9);
  warm(&f, fa, NULL, 0);
  warm(&f, fb, &memory, 1);
  for (int round = 0; round < 3; round++) {
    lade_graph_did did = round == 0 ? LADE_GRAPH_DID_RECORD : LADE_GRAPH_DID_REPLAY;
    graph_fixture_step(&f);
    graph_fixture_run(&f, fb, &memory, 1, &copy, did);
    LADE_EXPECT_EQ_UINT(f.last.classes[0], LADE_GRAPH_CLASS_COPIED);
    graph_fixture_expect(&f, &copy, 9);
    graph_fixture_run(&f, fa, NULL, 0, &out, did);
    graph_fixture_release(&f, copy);
    graph_fixture_run(&f, fb, &out, 1, &copy, did);
    LADE_EXPECT_EQ_UINT(f.last.classes[0], LADE_GRAPH_CLASS_MANAGED);
    graph_fixture_expect(&f, &copy, 1);
    graph_fixture_release(&f, copy);
    graph_fixture_release(&f, out);
    LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).copied, (unsigned)(round + 1));
  }
  graph_fixture_memory_free(&f, memory);
  graph_fixture_close(&f);
}

static uint64_t pieces_by_kernel(graph_fixture *f) {
  lade_copy_stats stats;
  lade_copy_stats_init(&stats);
  LADE_EXPECT_OK(lade_copy_stats_get(f->runtime, 0, &stats));
  return stats.kernel_pieces;
}

/* Also where its launch fails: that run fails, the next one does not. */
LADE_TEST(GraphRules, ManyCopiedInputsGoByOneKernel) {
  enum { INPUTS = 6, BYTES = 4096 };
  graph_fixture f;
  graph_script each = {0};
  lade_graph_value memory[INPUTS], out[INPUTS];
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  for (uint64_t i = 0; i < INPUTS; i++) {
    each.steps[3 * i] = (graph_script_step){GRAPH_ALLOC, i, BYTES};
    each.steps[3 * i + 1] = (graph_script_step){GRAPH_COPY, i, i};
    each.steps[3 * i + 2] = (graph_script_step){GRAPH_OUT_LOCAL, i, 0};
    memory[INPUTS - 1 - i] = graph_fixture_memory(&f, BYTES, (unsigned char)(10 + i)); /* no neighbours, to be merged */
  }
  lade_graph_function *function = graph_fixture_function(&f, &each, INPUTS, NULL, INPUTS);
  for (int round = 0; round < 5; round++) {
    uint64_t before = pieces_by_kernel(&f);
    graph_fixture_step(&f);
    if (round == 3) {
      LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, "copy_kernel", 1, LADE_ERR_DRIVER));
      LADE_EXPECT_STATUS(LADE_ERR_DRIVER, graph_fixture_call(&f, function, memory, INPUTS, out));
      LADE_EXPECT_EQ_UINT(pieces_by_kernel(&f), before);
      continue;
    }
    LADE_EXPECT_OK(graph_fixture_call(&f, function, memory, INPUTS, out));
    LADE_EXPECT_EQ_UINT(pieces_by_kernel(&f) - before, round == 0 ? 0u : INPUTS);
    for (size_t i = 0; i < INPUTS; i++) {
      graph_fixture_expect(&f, &out[i], (unsigned char)(10 + INPUTS - 1 - i));
      graph_fixture_release(&f, out[i]);
    }
  }
  for (size_t i = 0; i < INPUTS; i++) graph_fixture_memory_free(&f, memory[i]);
  graph_fixture_close(&f);
}

LADE_TEST(GraphRules, TheLastStepsOutputsAreInputsOfThisOne) {
  graph_fixture f;
  graph_script b = COPIER;
  lade_graph_value out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fb = graph_fixture_function(&f, &b, 1, NULL, 1);
  lade_graph_value memory = graph_fixture_memory(&f, MIB, 9);
  lade_graph_value in = memory;
  for (int round = 0; round < 6; round++) {
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, fb, &in, 1, &out));
    LADE_EXPECT_EQ_SIZE(f.last.record.carried_count, round > 0);
    LADE_EXPECT_EQ_SIZE(f.last.record.lost_count, 0);
    if (round > 1) LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_REPLAY);
    if (round > 0) LADE_EXPECT(!graph_fixture_valid(&f, in));
    graph_fixture_expect(&f, &out, 9);
    in = graph_taken(out);
  }
  graph_fixture_release(&f, out);
  graph_fixture_memory_free(&f, memory);
  graph_fixture_close(&f);
}

LADE_TEST(GraphRules, StepsTakeBuffersInEveryState) { /* check 8; HZ1, HZ2 */
  graph_fixture f;
  graph_script a = MAKER(1);
  lade_graph_value out, before = {0};
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1);
  for (int round = 0; round < 4; round++) {
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &out));
    if (round > 0) {
      LADE_EXPECT_EQ_UINT(f.last.record.ended, LADE_GRAPH_ENDED_BOUNDARY);
      LADE_EXPECT_EQ_SIZE(f.last.record.lost_count, 1);
      LADE_EXPECT_STATUS(LADE_ERR_OVERWRITTEN, lade_graph_buffer_get(f.tree, before.buffer, NULL, NULL));
      LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "step's begin");
      LADE_EXPECT_STATUS(LADE_ERR_OVERWRITTEN, lade_graph_buffer_release(f.tree, before.buffer));
      LADE_EXPECT_STATUS(LADE_ERR_OVERWRITTEN, lade_graph_buffer_retain(f.tree, before.buffer));
      LADE_EXPECT_STATUS(LADE_ERR_OVERWRITTEN, lade_graph_buffer_record_stream(f.tree, before.buffer, f.streams[1]));
    }
    before = out;
  }
  graph_fixture_release(&f, out);
  LADE_EXPECT_STATUS(LADE_ERR_OVERWRITTEN, lade_graph_buffer_release(f.tree, out.buffer));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "was released");
  graph_fixture_close(&f);
}

/* A step in which the function runs, and nothing of it stays. */
static void warm_or_record(graph_fixture *f, lade_graph_function *function, unsigned char byte) {
  lade_graph_value out;
  graph_fixture_step(f);
  LADE_EXPECT_OK(graph_fixture_call(f, function, NULL, 0, &out));
  graph_fixture_expect(f, &out, byte);
  graph_fixture_release(f, out);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

LADE_TEST(GraphRules, SuspendedTreesKeepBuffersAndRecordings) {
  graph_fixture f;
  graph_script a = MAKER(1);
  lade_graph_value out, other;
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!graph_fixture_open_device(&f, "sim", NULL, &options)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1);
  for (int round = 0; round < 3; round++) { /* in WARMUP, RECORDING, EXECUTION */
    uint64_t bytes = 0;
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &out));
    LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &other));
    LADE_EXPECT_OK(lade_device_pool_suspend(f.allocator, graph_fixture_pool(&f), NULL, &bytes));
    LADE_EXPECT_GE_UINT(bytes, 2 * MIB);
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_pool_suspend(f.allocator, graph_fixture_pool(&f), NULL, NULL));
    lade_graph_call call;
    lade_graph_call_init(&call);
    call.stream = f.streams[0];
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_run(f.tree, fa, &call, &other, 1, NULL));
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_reserve(f.tree, MIB));
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_trim(f.tree, NULL));
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, ladei_tree_verify(f.tree));
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_destroy(f.tree, false));
    LADE_EXPECT_OK(lade_graph_buffer_release(f.tree, other.buffer)); /* its block goes behind the resume */
    LADE_EXPECT_OK(lade_device_pool_resume(f.allocator, graph_fixture_pool(&f)));
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_resume(f.allocator, graph_fixture_pool(&f)));
    LADE_EXPECT_OK(ladei_tree_verify(f.tree));
    graph_fixture_expect(&f, &out, 1);
    graph_fixture_release(&f, out);
  }
  LADE_EXPECT_EQ_SIZE(a.calls, 4);
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).replays, 2);
  graph_fixture_close(&f);
}

LADE_TEST(GraphRules, ReserveGivesOneSegmentTrimWhatNobodyUses) {
  graph_fixture f;
  graph_script small = {{{GRAPH_ALLOC, 0, 24 * MIB}, {GRAPH_FILL, 0, 1}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0};
  graph_script large = {{{GRAPH_ALLOC, 0, 40 * MIB}, {GRAPH_FILL, 0, 2}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0};
  lade_graph_value out;
  uint64_t bytes = 1;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_graph_tree_reserve(f.tree, 0));
  LADE_EXPECT_OK(lade_graph_tree_reserve(f.tree, 40 * MIB));
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).pool_reserved_bytes, 40 * MIB);
  lade_graph_function *fs = graph_fixture_function(&f, &small, 0, NULL, 1);
  lade_graph_function *fl = graph_fixture_function(&f, &large, 0, NULL, 1);
  for (int round = 0; round < 2; round++) {
    warm_or_record(&f, fs, 1);
    warm_or_record(&f, fl, 2);
  }
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).pool_reserved_bytes, 40 * MIB);
  LADE_EXPECT_OK(lade_graph_tree_trim(f.tree, &bytes));
  LADE_EXPECT_EQ_UINT(bytes, 0);
  /* A third one, while the first two recordings' memory is taken: in a segment of its own. */
  graph_fixture_step(&f);
  lade_graph_value kept;
  graph_fixture_run(&f, fl, NULL, 0, &kept, LADE_GRAPH_DID_REPLAY);
  graph_fixture_run(&f, fs, NULL, 0, &out, LADE_GRAPH_DID_RECORD);
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).pool_reserved_bytes, 64 * MIB);
  LADE_EXPECT_OK(lade_graph_tree_function_remove(f.tree, fs));
  LADE_EXPECT_OK(lade_graph_tree_trim(f.tree, &bytes));
  LADE_EXPECT_EQ_UINT(bytes, 0); /* the path still has it */
  graph_fixture_expect(&f, &out, 1);
  graph_fixture_release(&f, out);
  graph_fixture_release(&f, kept);
  graph_fixture_step(&f);
  graph_fixture_run(&f, fl, NULL, 0, &kept, LADE_GRAPH_DID_REPLAY);
  LADE_EXPECT_OK(lade_graph_tree_trim(f.tree, &bytes));
  LADE_EXPECT_EQ_UINT(bytes, 24 * MIB);
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).pool_reserved_bytes, 40 * MIB);
  graph_fixture_expect(&f, &kept, 2);
  graph_fixture_release(&f, kept);
  graph_fixture_close(&f);
}

/* ---- Steps by themselves ----------------------------------------------------------------------------------------- */

static lade_graph_value run_auto(graph_fixture *f, lade_graph_function *function) {
  lade_graph_value out = {0};
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = f->streams[0];
  call.flags = LADE_GRAPH_CALL_AUTO;
  LADE_EXPECT_OK(graph_fixture_call_with(f, function, &call, &out));
  return out;
}

LADE_TEST(GraphRules, ForwardsWaitForOneBackward) { /* check 9 */
  graph_fixture f;
  graph_script a = MAKER(1), b = MAKER(2);
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *forward = graph_fixture_function_mode(&f, &a, 0, NULL, 1, LADE_GRAPH_FORWARD);
  lade_graph_function *backward = graph_fixture_function_mode(&f, &b, 0, NULL, 1, LADE_GRAPH_BACKWARD);
  for (int round = 0; round < 4; round++) {
    lade_graph_value first = run_auto(&f, forward), second = run_auto(&f, forward);
    LADE_EXPECT_EQ_UINT(f.last.record.ended, LADE_GRAPH_ENDED_NOT);
    LADE_EXPECT(graph_fixture_valid(&f, first));
    lade_graph_value gradient = run_auto(&f, backward);
    LADE_EXPECT_EQ_UINT(f.last.record.ended, LADE_GRAPH_ENDED_NOT);
    graph_fixture_expect(&f, &first, 1);
    graph_fixture_expect(&f, &second, 1);
    graph_fixture_expect(&f, &gradient, 2);
    lade_graph_value next = run_auto(&f, forward); /* the backward call is done: a new step */
    LADE_EXPECT_EQ_UINT(f.last.record.ended, LADE_GRAPH_ENDED_BOUNDARY);
    LADE_EXPECT_EQ_SIZE(f.last.record.lost_count, 3);
    LADE_EXPECT(!graph_fixture_valid(&f, first));
    LADE_EXPECT_OK(lade_graph_tree_backward_done(f.tree));
    graph_fixture_release(&f, next);
  }
  graph_fixture_close(&f);
}

/* ---- Functions that go ------------------------------------------------------------------------------------------- */

LADE_TEST(GraphRules, AFunctionGoesWithWhatFollowsIt) {
  graph_fixture f;
  graph_script a = MAKER(1), b = MAKER(2);
  lade_graph_value out, second, third;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fb = graph_fixture_function(&f, &b, 0, NULL, 1);
  warm(&f, fa, NULL, 0);
  warm(&f, fb, NULL, 0);
  for (int round = 0; round < 2; round++) { /* a, b, b; and b as a root */
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &out));
    LADE_EXPECT_OK(graph_fixture_call(&f, fb, NULL, 0, &second));
    LADE_EXPECT_OK(graph_fixture_call(&f, fb, NULL, 0, &third));
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, fb, NULL, 0, &out));
    graph_fixture_release(&f, out);
  }
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).nodes, 4);
  graph_fixture_step(&f);
  LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &out));
  LADE_EXPECT_OK(graph_fixture_call(&f, fb, NULL, 0, &second));
  LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_REPLAY);
  LADE_EXPECT_OK(lade_graph_tree_function_remove(f.tree, fa));
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).nodes, 1);       /* b as a root */
  LADE_EXPECT_OK(graph_fixture_call(&f, fb, NULL, 0, &third)); /* behind the path's nodes, which are in no list */
  LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_RECORD);
  graph_fixture_expect(&f, &out, 1);
  graph_fixture_expect(&f, &second, 2);
  graph_fixture_expect(&f, &third, 2);
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).nodes, 2);
  graph_fixture_step(&f);
  LADE_EXPECT_OK(graph_fixture_call(&f, fb, NULL, 0, &out)); /* with the path goes what nobody can come to */
  LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_REPLAY);
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).nodes, 1);
  graph_fixture_release(&f, out);
  graph_fixture_close(&f);
}

/* ---- Callbacks around bodies ------------------------------------------------------------------------------------- */

typedef struct hooks_heard {
  unsigned before, after, stages; /* stages: a bit for each */
  lade_status answer;             /* of `before` */
} hooks_heard;

static lade_status hook_before(void *user, lade_graph_stage stage, lade_stream stream) {
  hooks_heard *heard = user;
  heard->before += stream != NULL;
  heard->stages |= 1u << stage;
  return heard->answer;
}

static lade_status hook_after(void *user, lade_graph_stage stage, lade_stream stream) {
  hooks_heard *heard = user;
  heard->after += stream != NULL && (heard->stages >> stage & 1u) != 0;
  return LADE_OK;
}

LADE_TEST(GraphRules, CallbacksStandAroundEachBody) {
  graph_fixture f;
  graph_script a = MAKER(1), m = {{{GRAPH_FILL_INPUT, 0, 5}, {GRAPH_OUT_INTEGER, 0, 0}}, NULL, NULL, 0};
  static const uint32_t flags[] = {LADE_GRAPH_MUTATED};
  hooks_heard said = {.answer = LADE_OK};
  lade_graph_value out;
  lade_graph_tree_options options;
  lade_graph_tree_options_init(&options);
  options.before = hook_before;
  options.after = hook_after;
  options.user = &said;
  if (!graph_fixture_open(&f, "sim", &options)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fm = graph_fixture_function(&f, &m, 1, flags, 1);
  for (int round = 0; round < 4; round++) warm_or_record(&f, fa, 1);
  LADE_EXPECT_EQ_UINT(said.stages, 1u << LADE_GRAPH_STAGE_WARMUP | 1u << LADE_GRAPH_STAGE_RECORD);
  lade_graph_value memory = graph_fixture_memory(&f, KIB, 1);
  LADE_EXPECT_OK(graph_fixture_call(&f, fm, &memory, 1, &out));
  LADE_EXPECT_EQ_UINT(said.before, 3);
  LADE_EXPECT_EQ_UINT(said.after, 3);
  said.answer = LADE_ERR_LIMIT;
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, graph_fixture_call(&f, fm, &memory, 1, &out));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "the callback before the body");
  LADE_EXPECT_EQ_UINT(said.after, 3);
  said.answer = LADE_OK;
  LADE_EXPECT_OK(graph_fixture_call(&f, fm, &memory, 1, &out));
  graph_fixture_expect(&f, &memory, 5);
  graph_fixture_memory_free(&f, memory);
  graph_fixture_close(&f);
}

/* ---- Closing with trees alive ------------------------------------------------------------------------------------ */

LADE_TEST(GraphRules, AnAllocatorOutlivesItsTrees) {
  graph_fixture f;
  graph_script a = MAKER(1);
  lade_device_allocator *outside = NULL;
  lade_graph_tree_options options;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  LADE_EXPECT_OK(lade_device_allocator_create(f.runtime, 0, NULL, &outside));
  lade_graph_tree_options_init(&options);
  options.outside = outside;
  LADE_EXPECT_OK(lade_graph_tree_destroy(f.tree, true));
  LADE_EXPECT_OK(lade_graph_tree_create(f.allocator, &options, &f.tree));
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1);
  for (int round = 0; round < 3; round++) {
    warm_or_record(&f, fa, 1); /* no block of it is handed out */
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(f.allocator, true));
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(outside, true));
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_runtime_close(f.runtime));
  }
  LADE_EXPECT_OK(lade_graph_tree_destroy(f.tree, true));
  LADE_EXPECT_OK(lade_device_allocator_destroy(outside, true));
  LADE_EXPECT_OK(lade_graph_tree_create(f.allocator, NULL, &f.tree));
  graph_fixture_close(&f);
}

/* ---- The device -------------------------------------------------------------------------------------------------- */

LADE_TEST(GraphRules, ALostDeviceLetsTheTreeGo) {
  graph_fixture f;
  graph_script a = MAKER(1);
  lade_graph_value out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1);
  for (int round = 0; round < 3; round++) warm_or_record(&f, fa, 1);
  graph_fixture_step(&f);
  LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &out));
  LADE_EXPECT_OK(lade_soft_device_lose(f.runtime, 0, 0));
  lade_graph_value none;
  graph_fixture_step(&f);
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, graph_fixture_call(&f, fa, NULL, 0, &none));
  if (graph_fixture_valid(&f, out)) LADE_EXPECT_OK(lade_graph_buffer_release(f.tree, out.buffer));
  LADE_EXPECT_OK(lade_graph_tree_destroy(f.tree, true));
  for (size_t i = 0; i < 2; i++) LADE_EXPECT_OK(lade_stream_destroy(f.runtime, f.streams[i]));
  LADE_EXPECT_OK(lade_device_allocator_destroy(f.allocator, true));
  LADE_EXPECT_OK(lade_runtime_close(f.runtime));
}

LADE_TEST(GraphRules, ALostDeviceLetsASuspendedTreeGo) {
  graph_fixture f;
  graph_script a = MAKER(1);
  lade_graph_value out;
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!graph_fixture_open_device(&f, "sim", NULL, &options)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1);
  LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &out));
  LADE_EXPECT_OK(lade_device_pool_suspend(f.allocator, graph_fixture_pool(&f), NULL, NULL));
  LADE_EXPECT_OK(lade_soft_device_lose(f.runtime, 0, 0));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, lade_device_pool_resume(f.allocator, graph_fixture_pool(&f)));
  LADE_EXPECT_OK(lade_graph_buffer_release(f.tree, out.buffer));
  LADE_EXPECT_OK(lade_graph_tree_destroy(f.tree, true));
  for (size_t i = 0; i < 2; i++) LADE_EXPECT_OK(lade_stream_destroy(f.runtime, f.streams[i]));
  LADE_EXPECT_OK(lade_device_allocator_destroy(f.allocator, true));
  LADE_EXPECT_OK(lade_runtime_close(f.runtime));
}

typedef struct dump_target {
  char *text;
  size_t room;
  size_t *used;
} dump_target;

static lade_status dump_append(void *user, const void *data, size_t bytes) {
  const dump_target *target = user;
  if (bytes >= target->room - *target->used) return LADE_ERR_LIMIT;
  memcpy(target->text + *target->used, data, bytes);
  *target->used += bytes;
  return LADE_OK;
}

static lade_status dump_refuse(void *user, const void *data, size_t bytes) {
  (void)user;
  (void)data;
  (void)bytes;
  return LADE_ERR_TIMEOUT;
}

LADE_TEST(GraphRules, DumpsAreWhole) {
  graph_fixture f;
  graph_script a = MAKER(1);
  lade_graph_value out;
  static char text[1 << 16];
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1);
  for (int round = 0; round < 2; round++) warm_or_record(&f, fa, 1);
  LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &out));
  size_t used = 0;
  dump_target target = {text, sizeof text, &used};
  LADE_EXPECT_OK(lade_graph_tree_dump(f.tree, dump_append, &target));
  text[used] = 0;
  LADE_EXPECT_CONTAINS_STR(text, "{\"version\":1,\"pool\":[0,1]");
  LADE_EXPECT_CONTAINS_STR(text, "\"state\":\"EXECUTION\"");
  LADE_EXPECT_CONTAINS_STR(
      text, "\"nodes\":[{\"id\":0,\"parent\":null,\"function\":\"script\",\"key\":[1],\"dead_before\":[]");
  LADE_EXPECT_CONTAINS_STR(text, "\"outputs\":[{\"alive\":true,\"counts\":1");
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_graph_tree_dump(f.tree, dump_refuse, NULL));
  graph_fixture_release(&f, out);
  graph_fixture_close(&f);
}
