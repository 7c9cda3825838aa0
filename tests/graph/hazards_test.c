/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What graph trees elsewhere suffer from, by the numbers of their list. Each test is what goes wrong there, and does not here.
 * docs/design.md, "Graphs", names where those are that have no test of their name.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/tree/tree.h"
#include "tests/graph/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/heard.h"

#define MAKER(value)                                                                                                   \
  { {{GRAPH_ALLOC, 0, MIB}, {GRAPH_FILL, 0, (value)}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0 }
#define COPIER                                                                                                         \
  { {{GRAPH_ALLOC, 0, MIB}, {GRAPH_COPY, 0, 0}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0 }

/* A step in which the function runs, whose output is returned. */
static lade_graph_value step_run(graph_fixture *f, lade_graph_function *function, const lade_graph_value *in) {
  lade_graph_value out = {0};
  graph_fixture_step(f);
  LADE_EXPECT_OK(graph_fixture_call(f, function, in, in != NULL, &out));
  return out;
}

/* Until it replays as a root. */
static void make_ready(graph_fixture *f, lade_graph_function *function, const lade_graph_value *in) {
  for (int i = 0; i < 3; i++) graph_fixture_release(f, step_run(f, function, in));
  LADE_EXPECT_EQ_UINT(f->last.record.did, LADE_GRAPH_DID_REPLAY);
}

LADE_TEST(GraphHazard, graph_hazard_HZ01_a_replay_tells_the_last_steps_outputs) {
  graph_fixture f;
  graph_script a = MAKER(1);
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1);
  make_ready(&f, fa, NULL);
  lade_graph_value before = step_run(&f, fa, NULL), now = step_run(&f, fa, NULL);
  LADE_EXPECT_EQ_PTR(before.address, now.address);
  LADE_EXPECT(!graph_fixture_valid(&f, before));
  LADE_EXPECT(graph_fixture_valid(&f, now));
  graph_fixture_release(&f, now);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ02_a_root_is_recorded_behind_replays) {
  graph_fixture f;
  graph_script a = MAKER(1), b = MAKER(2);
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fb = graph_fixture_function(&f, &b, 0, NULL, 1);
  make_ready(&f, fa, NULL);
  graph_fixture_release(&f, step_run(&f, fb, NULL));
  lade_graph_value kept = step_run(&f, fa, NULL);
  lade_graph_value out = step_run(&f, fb, NULL); /* recorded as a root: the path of `kept` ended, and says so */
  LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_RECORD);
  LADE_EXPECT_EQ_SIZE(f.last.record.lost_count, 1);
  LADE_EXPECT(!graph_fixture_valid(&f, kept));
  graph_fixture_release(&f, out);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ03_steps_are_a_trees) {
  graph_fixture f, other;
  graph_script a = MAKER(1), b = MAKER(2);
  if (!graph_fixture_open(&f, "sim", NULL) || !graph_fixture_open(&other, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fb = graph_fixture_function(&other, &b, 0, NULL, 1);
  lade_graph_value kept = step_run(&f, fa, NULL), out = step_run(&other, fb, NULL), second;
  graph_fixture_step(&other);
  LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &second));
  LADE_EXPECT(graph_fixture_valid(&f, kept));
  graph_fixture_release(&f, kept);
  graph_fixture_release(&f, second);
  graph_fixture_release(&other, out);
  graph_fixture_close(&other);
  graph_fixture_close(&f);
}

static lade_status run_auto(graph_fixture *f, lade_graph_function *function, lade_graph_value *out) {
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = f->streams[0];
  call.flags = LADE_GRAPH_CALL_AUTO;
  return graph_fixture_call_with(f, function, &call, out);
}

LADE_TEST(GraphHazard, graph_hazard_HZ04_the_first_step_counts) {
  graph_fixture f;
  graph_script a = MAKER(1);
  lade_graph_value out, second;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1);
  LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &out));
  graph_fixture_step(&f); /* the very first */
  LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &second));
  LADE_EXPECT_EQ_UINT(f.last.record.ended, LADE_GRAPH_ENDED_BOUNDARY);
  graph_fixture_release(&f, second);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ05_marks_and_automatic_steps_both_count) {
  graph_fixture f;
  graph_script a = MAKER(1);
  lade_graph_value out, second;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1);
  out = step_run(&f, fa, NULL);
  LADE_EXPECT_OK(run_auto(&f, fa, &second)); /* after a mark, as before one */
  LADE_EXPECT_EQ_UINT(f.last.record.ended, LADE_GRAPH_ENDED_BOUNDARY);
  LADE_EXPECT(!graph_fixture_valid(&f, out));
  graph_fixture_release(&f, second);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ08_outputs_outlive_their_function) {
  graph_fixture f;
  graph_script a = MAKER(1);
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  for (int round = 0; round < 3; round++) { /* in WARMUP, RECORDING, EXECUTION */
    lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1);
    for (int i = 0; i < round; i++) graph_fixture_release(&f, step_run(&f, fa, NULL));
    lade_graph_value out = step_run(&f, fa, NULL);
    LADE_EXPECT_EQ_UINT(graph_fixture_state(&f), (unsigned)(LADE_GRAPH_STATE_WARMUP + round));
    LADE_EXPECT_OK(lade_graph_tree_function_remove(f.tree, fa));
    LADE_EXPECT_OK(ladei_tree_verify(f.tree));
    LADE_EXPECT_OK(lade_device_empty_cache(f.allocator));
    graph_fixture_expect(&f, &out, 1);
    LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).nodes, 0);
    graph_fixture_release(&f, out);
  }
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ10_rerecordings_are_limited) {
  graph_fixture f;
  graph_script b = COPIER;
  static const uint32_t flags[] = {LADE_GRAPH_STATIC};
  lade_graph_tree_options options;
  lade_graph_tree_options_init(&options);
  options.max_rerecords = 2;
  lade_graph_value memory[5], out;
  if (!graph_fixture_open(&f, "sim", &options)) return;
  lade_graph_function *fb = graph_fixture_function(&f, &b, 1, flags, 1);
  for (unsigned char i = 0; i < 5; i++) memory[i] = graph_fixture_memory(&f, MIB, i);
  graph_fixture_release(&f, step_run(&f, fb, &memory[0]));
  for (unsigned char i = 0; i < 5; i++) {
    out = step_run(&f, fb, &memory[i]);
    LADE_EXPECT_EQ_UINT(f.last.record.did, i < 3 ? LADE_GRAPH_DID_RECORD : LADE_GRAPH_DID_EAGER);
    if (i >= 3) LADE_EXPECT_EQ_UINT(f.last.why[0], LADE_GRAPH_REASON_LIMIT);
    graph_fixture_expect(&f, &out, i);
    graph_fixture_release(&f, out);
  }
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).eager[LADE_GRAPH_REASON_LIMIT], 2);
  for (size_t i = 0; i < 5; i++) graph_fixture_memory_free(&f, memory[i]);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ11_the_leaf_longest_unused_goes) {
  graph_fixture f;
  graph_script scripts[3] = {MAKER(1), MAKER(2), MAKER(3)};
  lade_graph_function *functions[3];
  lade_graph_tree_options options;
  lade_graph_tree_options_init(&options);
  options.max_nodes = 2;
  if (!graph_fixture_open(&f, "sim", &options)) return;
  for (size_t i = 0; i < 3; i++) functions[i] = graph_fixture_function(&f, &scripts[i], 0, NULL, 1);
  for (size_t i = 0; i < 2; i++) make_ready(&f, functions[i], NULL);
  graph_fixture_release(&f, step_run(&f, functions[0], NULL)); /* used last */
  graph_fixture_release(&f, step_run(&f, functions[2], NULL));
  graph_fixture_release(&f, step_run(&f, functions[2], NULL));
  LADE_EXPECT_EQ_INT(f.last.record.evicted, 1);
  LADE_EXPECT_EQ_UINT(graph_fixture_stats(&f).nodes, 2);
  graph_fixture_release(&f, step_run(&f, functions[0], NULL));
  LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_REPLAY);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ12_mutation_is_judged_per_call) {
  graph_fixture f;
  graph_script a = MAKER(1), m = {{{GRAPH_FILL_INPUT, 0, 5}, {GRAPH_OUT_INPUT, 0, 0}}, NULL, NULL, 0};
  static const uint32_t flags[] = {LADE_GRAPH_MUTATED};
  lade_graph_value made, out;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fm = graph_fixture_function(&f, &m, 1, flags, 1);
  lade_graph_value memory = graph_fixture_memory(&f, MIB, 9);
  make_ready(&f, fa, NULL);
  static support_heard said;
  support_heard_begin(&said, LADE_LOG_WARN);
  for (int round = 0; round < 4; round++) {
    made = step_run(&f, fa, NULL);
    LADE_EXPECT_OK(graph_fixture_call(&f, fm, &memory, 1, &out)); /* the program's memory: eager */
    LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_EAGER);
    LADE_EXPECT_EQ_UINT(f.last.why[0], LADE_GRAPH_REASON_MUTATED);
    LADE_EXPECT_OK(graph_fixture_call(&f, fm, &made, 1, &out)); /* the path's: warmed up, recorded, replayed */
    LADE_EXPECT_EQ_UINT(f.last.record.did, round == 0   ? LADE_GRAPH_DID_WARMUP
                                           : round == 1 ? LADE_GRAPH_DID_RECORD
                                                        : LADE_GRAPH_DID_REPLAY);
    LADE_EXPECT_EQ_UINT(f.last.kinds[0], LADE_GRAPH_OUTPUT_PRIOR);
    graph_fixture_expect(&f, &out, 5);
    graph_fixture_release(&f, out);
    graph_fixture_release(&f, made);
  }
  support_heard_end();
  LADE_EXPECT_EQ_INT(
      support_heard_count(&said, LADE_LOG_WARN, "graph tree: function script runs eagerly: it writes to an input"), 1);
  graph_fixture_expect(&f, &memory, 5);
  graph_fixture_memory_free(&f, memory);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ13_a_cold_function_ends_a_path_first) {
  graph_fixture f;
  graph_script a = MAKER(1), b = MAKER(2);
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fb = graph_fixture_function(&f, &b, 0, NULL, 1);
  make_ready(&f, fa, NULL);
  lade_graph_value kept = step_run(&f, fa, NULL), out = step_run(&f, fb, NULL);
  LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_WARMUP);
  LADE_EXPECT_EQ_UINT(f.last.record.ended, LADE_GRAPH_ENDED_BOUNDARY);
  LADE_EXPECT_EQ_UINT(f.last.record.restored, 0);
  LADE_EXPECT(!graph_fixture_valid(&f, kept));
  graph_fixture_release(&f, out);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ15_an_input_that_does_not_die_makes_another_recording) {
  graph_fixture f;
  graph_script a = MAKER(1),
               b = {{{GRAPH_DROP, 0, 0}, {GRAPH_ALLOC, 0, MIB}, {GRAPH_FILL, 0, 2}, {GRAPH_OUT_LOCAL, 0, 0}},
                    NULL,
                    NULL,
                    0};
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fb = graph_fixture_function(&f, &b, 1, NULL, 1);
  lade_graph_value made, out, taken;
  make_ready(&f, fa, NULL);
  for (int round = 0; round < 4; round++) {
    made = step_run(&f, fa, NULL);
    taken = round % 2 == 0 ? graph_taken(made) : made;
    LADE_EXPECT_OK(graph_fixture_call(&f, fb, &taken, 1, &out));
    graph_fixture_expect(&f, &out, 2);
    if (round == 1) LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_RECORD);
    if (round == 2) LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_REPLAY); /* early death is as good */
    if (round % 2 == 1) {
      graph_fixture_expect(&f, &made, 1);
      graph_fixture_release(&f, made);
    }
    graph_fixture_release(&f, out);
  }
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ17_a_failure_leaves_the_state) {
  graph_fixture f;
  graph_script a = MAKER(1), b = COPIER;
  static const uint32_t faults[] = {LADEI_TREE_FAULT_CALLBACK, LADEI_TREE_FAULT_INSTANTIATE, LADEI_TREE_FAULT_COPY,
                                    LADEI_TREE_FAULT_LAUNCH};
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fb = graph_fixture_function(&f, &b, 1, NULL, 1);
  lade_graph_value memory = graph_fixture_memory(&f, MIB, 9), out, copy;
  graph_fixture_release(&f, step_run(&f, fb, &memory));
  make_ready(&f, fa, NULL);
  out = step_run(&f, fa, NULL);
  for (size_t i = 0; i < 4; i++) { /* of a recording behind a replay, restored before */
    LADE_EXPECT_OK(ladei_tree_fail_next(f.tree, faults[i]));
    LADE_EXPECT_STATUS(i == 0 ? LADE_ERR_CALLBACK : LADE_ERR_DRIVER, graph_fixture_call(&f, fb, &memory, 1, &copy));
    LADE_EXPECT_EQ_UINT(f.last.record.state, LADE_GRAPH_STATE_EXECUTION);
    LADE_EXPECT_EQ_INT(f.last.record.node, 0);
    graph_fixture_expect(&f, &out, 1);
  }
  LADE_EXPECT_OK(graph_fixture_call(&f, fb, &memory, 1, &copy));
  LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_RECORD);
  graph_fixture_expect(&f, &copy, 9);
  graph_fixture_release(&f, copy);
  graph_fixture_release(&f, out);
  graph_fixture_memory_free(&f, memory);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ20_no_copy_reads_what_another_writes) {
  graph_fixture f;
  graph_script two = {{{GRAPH_ALLOC, 0, MIB},
                       {GRAPH_COPY, 0, 0},
                       {GRAPH_ALLOC, 1, MIB},
                       {GRAPH_COPY, 1, 1},
                       {GRAPH_OUT_LOCAL, 0, 0},
                       {GRAPH_OUT_LOCAL, 1, 0}},
                      NULL,
                      NULL,
                      0};
  lade_graph_value out[2], in[2];
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *swap = graph_fixture_function(&f, &two, 2, NULL, 2);
  lade_graph_value first = graph_fixture_memory(&f, MIB, 3), second = graph_fixture_memory(&f, MIB, 4);
  in[0] = first;
  in[1] = second;
  for (unsigned char round = 0; round < 6; round++) { /* outputs of the last step come back crosswise */
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, swap, in, 2, out));
    graph_fixture_expect(&f, &out[0], (unsigned char)(3 + round % 2));
    graph_fixture_expect(&f, &out[1], (unsigned char)(4 - round % 2));
    in[0] = graph_taken(out[1]);
    in[1] = graph_taken(out[0]);
  }
  LADE_EXPECT_GE_UINT(graph_fixture_stats(&f).replays, 3);
  graph_fixture_release(&f, out[0]);
  graph_fixture_release(&f, out[1]);
  graph_fixture_memory_free(&f, first);
  graph_fixture_memory_free(&f, second);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ22_parts_keep_their_offset) {
  graph_fixture f;
  graph_script part = {
      {{GRAPH_ALLOC, 0, MIB}, {GRAPH_FILL, 0, 6}, {GRAPH_OUT_PART, 0, 0}, {GRAPH_OUT_LOCAL, 0, 0}}, NULL, NULL, 0};
  lade_graph_value out[2];
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fp = graph_fixture_function(&f, &part, 0, NULL, 2);
  for (int round = 0; round < 3; round++) {
    graph_fixture_step(&f);
    LADE_EXPECT_OK(graph_fixture_call(&f, fp, NULL, 0, out));
    LADE_EXPECT_EQ_PTR(out[0].address, (char *)out[1].address + MIB / 2);
    LADE_EXPECT_EQ_UINT(out[0].bytes, MIB / 2);
    LADE_EXPECT_EQ_UINT(f.last.kinds[0], LADE_GRAPH_OUTPUT_NEW);
    LADE_EXPECT_EQ_UINT(f.last.kinds[1], LADE_GRAPH_OUTPUT_SAME);
    graph_fixture_release(&f, out[1]); /* the memory stays as long as the part does */
    graph_fixture_expect(&f, &out[0], 6);
    graph_fixture_release(&f, out[0]);
  }
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ25_nothing_waits_for_the_device) {
  graph_fixture f;
  graph_script a = MAKER(1);
  uint64_t waits = 0, before = 0;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  static const char *const ops[] = {"device_synchronize", "stream_synchronize", "event_synchronize"};
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1);
  for (size_t i = 0; i < 3; i++) {
    LADE_EXPECT_OK(lade_soft_call_count(f.runtime, ops[i], &waits));
    before += waits;
  }
  make_ready(&f, fa, NULL);
  uint64_t after = 0;
  for (size_t i = 0; i < 3; i++) {
    LADE_EXPECT_OK(lade_soft_call_count(f.runtime, ops[i], &waits));
    after += waits;
  }
  LADE_EXPECT_EQ_UINT(after, before);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ26_runs_on_other_streams_are_ordered) {
  graph_fixture f;
  graph_script a = MAKER(1), b = COPIER;
  lade_graph_value out, copy;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fb = graph_fixture_function(&f, &b, 1, NULL, 1);
  static const uint64_t key[] = {1};
  for (int round = 0; round < 4; round++) {
    out = step_run(&f, fa, NULL);
    lade_graph_call call;
    lade_graph_call_init(&call);
    call.stream = f.streams[1];
    call.key = key;
    call.key_count = 1;
    call.inputs = &out;
    call.input_count = 1;
    LADE_EXPECT_OK(graph_fixture_call_with(&f, fb, &call, &copy));
    LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[1]));
    graph_fixture_expect(&f, &copy, 1);
    graph_fixture_release(&f, copy);
    graph_fixture_release(&f, out);
  }
  graph_fixture_close(&f); /* the software device judges the order */
}

LADE_TEST(GraphHazard, graph_hazard_HZ27_expandable_pools_have_trees) {
  graph_fixture f;
  graph_script a = MAKER(1), b = MAKER(2);
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!graph_fixture_open_device(&f, "sim", NULL, &options)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fb = graph_fixture_function(&f, &b, 0, NULL, 1);
  make_ready(&f, fa, NULL);
  graph_fixture_release(&f, step_run(&f, fb, NULL));
  lade_graph_value out = step_run(&f, fa, NULL), second;
  LADE_EXPECT_OK(graph_fixture_call(&f, fb, NULL, 0, &second));
  LADE_EXPECT_EQ_UINT(f.last.record.restored, 1);
  graph_fixture_expect(&f, &out, 1);
  graph_fixture_expect(&f, &second, 2);
  graph_fixture_release(&f, out);
  graph_fixture_release(&f, second);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ30_a_forward_whose_path_ended_is_not_waited_for) {
  graph_fixture f;
  graph_script a = MAKER(1);
  lade_graph_value out;
  lade_graph_tree_stats state;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *forward = graph_fixture_function_mode(&f, &a, 0, NULL, 1, LADE_GRAPH_FORWARD);
  lade_graph_function *other = graph_fixture_function(&f, &a, 0, NULL, 1);
  LADE_EXPECT_OK(run_auto(&f, forward, &out));
  graph_fixture_release(&f, out);
  LADE_EXPECT_OK(run_auto(&f, other, &out)); /* the path was dead: pending is forgotten with it */
  lade_graph_tree_stats_init(&state);
  LADE_EXPECT_OK(lade_graph_tree_stats_get(f.tree, &state));
  LADE_EXPECT_EQ_UINT(state.pending, 0);
  graph_fixture_release(&f, out);
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ33_a_taken_input_may_be_an_output) {
  graph_fixture f;
  graph_script a = MAKER(1), pass = {{{GRAPH_OUT_INPUT, 0, 0}}, NULL, NULL, 0};
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fp = graph_fixture_function(&f, &pass, 1, NULL, 1);
  make_ready(&f, fa, NULL);
  for (int round = 0; round < 4; round++) {
    lade_graph_value taken = graph_taken(step_run(&f, fa, NULL)), out;
    LADE_EXPECT_OK(graph_fixture_call(&f, fp, &taken, 1, &out));
    LADE_EXPECT_EQ_UINT(f.last.kinds[0], LADE_GRAPH_OUTPUT_PRIOR);
    LADE_EXPECT(!graph_fixture_valid(&f, taken));
    graph_fixture_expect(&f, &out, 1);
    graph_fixture_release(&f, out);
  }
  graph_fixture_close(&f);
}

LADE_TEST(GraphHazard, graph_hazard_HZ34_memory_that_was_no_input_is_not_the_pools) {
  graph_fixture f;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_value memory = graph_fixture_memory(&f, MIB, 8), out;
  graph_script global = {{{GRAPH_OUT_ADDRESS, (uint64_t)(uintptr_t)memory.address, MIB}}, NULL, NULL, 0};
  lade_graph_function *fg = graph_fixture_function(&f, &global, 0, NULL, 1);
  for (int round = 0; round < 3; round++) {
    out = step_run(&f, fg, NULL);
    LADE_EXPECT_EQ_UINT(out.kind, LADE_GRAPH_MEMORY);
    LADE_EXPECT_EQ_PTR(out.address, memory.address);
    LADE_EXPECT_EQ_UINT(f.last.kinds[0], LADE_GRAPH_OUTPUT_OUTSIDE);
  }
  graph_fixture_expect(&f, &memory, 8);
  graph_fixture_memory_free(&f, memory);
  graph_fixture_close(&f);
}

/* An older output that no input names, given out again: it must be alive to match. */
static void *older_address;
static lade_status names_older(graph_fixture *f, lade_graph_context *context, uint64_t a) {
  (void)f;
  (void)a;
  return lade_graph_output_memory(context, 0, older_address, MIB);
}

LADE_TEST(GraphHazard, graph_hazard_HZ23_older_outputs_are_known_by_what_lives) {
  graph_fixture f;
  graph_script a = MAKER(1), again = {{{GRAPH_CALL, 0, 0}}, names_older, NULL, 0};
  lade_graph_value out, kept, alias;
  if (!graph_fixture_open(&f, "sim", NULL)) return;
  lade_graph_function *fa = graph_fixture_function(&f, &a, 0, NULL, 1),
                      *fo = graph_fixture_function(&f, &again, 0, NULL, 1);
  make_ready(&f, fa, NULL);
  for (int round = 0; round < 4; round++) {
    out = step_run(&f, fa, NULL);
    LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &kept));
    older_address = out.address;
    LADE_EXPECT_OK(graph_fixture_call(&f, fo, NULL, 0, &alias));
    LADE_EXPECT_EQ_UINT(f.last.kinds[0], LADE_GRAPH_OUTPUT_PRIOR);
    if (round > 1) LADE_EXPECT_EQ_UINT(f.last.record.did, LADE_GRAPH_DID_REPLAY);
    graph_fixture_release(&f, out); /* the alias keeps the memory */
    graph_fixture_expect(&f, &alias, 1);
    graph_fixture_release(&f, alias);
    graph_fixture_release(&f, kept);
  }
  out = step_run(&f, fa, NULL);
  LADE_EXPECT_OK(graph_fixture_call(&f, fa, NULL, 0, &kept));
  graph_fixture_release(&f, out);
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK,
                     graph_fixture_call(&f, fo, NULL, 0, &alias)); /* no match; the body names what is dead */
  graph_fixture_expect(&f, &kept, 1);
  graph_fixture_release(&f, kept);
  graph_fixture_close(&f);
}
