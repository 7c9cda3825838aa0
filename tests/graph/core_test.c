/* SPDX-License-Identifier: Apache-2.0 */
/* The ladder alone, without runtime or allocator: which rule decides, in which state, for which call. */
#include <stdlib.h>
#include <string.h>

#include "graph/core/core.h"
#include "tests/shim/lade_test.h"

typedef struct core_fixture {
  ladei_tree_core core;
  lade_graph_function function;
  ladei_tree_instance *instance;
  ladei_tree_input inputs[2];
  ladei_tree_call call;
  ladei_tree_plan plan;
  ladei_tree_node *nodes[16];
  size_t node_count;
} core_fixture;

static void core_open(core_fixture *f, size_t inputs) {
  memset(f, 0, sizeof *f);
  ladei_tree_core_init(&f->core, 1);
  f->core.settings = (ladei_tree_settings){.warmups = 1, .max_rerecords = 2};
  f->instance = calloc(1, sizeof *f->instance);
  f->instance->function = &f->function;
  f->function.input_count = (uint32_t)inputs;
  f->call = (ladei_tree_call){.instance = f->instance, .inputs = f->inputs, .count = inputs};
  for (size_t i = 0; i < inputs; i++) f->inputs[i] = (ladei_tree_input){.address = 4096 * (i + 1), .bytes = 64};
  LADE_EXPECT(ladei_tree_handles_reserve(&f->core, 16, 16));
}

static void core_close(core_fixture *f) {
  ladei_tree_path ending = {0};
  ladei_tree_path_leave(&f->core, &ending);
  ladei_tree_path_clear(&f->core, &ending);
  ladei_tree_path_free(&ending);
  while (f->node_count > 0) {
    ladei_tree_node *node = f->nodes[--f->node_count];
    if (node->listed) ladei_tree_node_unlist(&f->core, node);
    ladei_tree_node_free(node);
  }
  while (f->core.roots != NULL) {
    ladei_tree_group *group = f->core.roots;
    f->core.roots = group->next;
    free(group->buckets);
    free(group);
  }
  ladei_tree_core_free(&f->core);
  free(f->instance);
}

/* A root of the instance as the call is now. */
static ladei_tree_node *root_add(core_fixture *f) {
  ladei_tree_group *group = ladei_tree_group_make(&f->core, NULL, f->instance);
  LADE_EXPECT(ladei_tree_group_reserve(&f->core, group));
  ladei_tree_node *node = ladei_tree_node_make(f->instance, (uint32_t)f->call.count, 1, 0, 0, 1);
  ladei_tree_classify(&f->core, &f->call, false);
  for (size_t i = 0; i < f->call.count; i++)
    node->inputs[i] = (ladei_tree_node_input){f->inputs[i].address, f->inputs[i].bytes, f->inputs[i].class, 0};
  node->hash = ladei_tree_hash(&f->core, &f->call);
  node->id = f->core.next_node++;
  node->used = ++f->core.runs;
  ladei_tree_node_list(&f->core, node, group);
  f->nodes[f->node_count++] = node;
  return node;
}

/* The node is the path, with one output; its count is 1 as long as the slot is. */
static ladei_tree_slot *path_begin(core_fixture *f, ladei_tree_node *node, lade_graph_state state) {
  LADE_EXPECT(ladei_tree_path_reserve(&f->core.path, 1));
  (void)ladei_tree_path_push(&f->core.path, node, &f->function, node != NULL ? node->id : -1, 1);
  ladei_tree_storage *storage = ladei_tree_storage_make(&f->core);
  ladei_tree_path_set(&f->core.path, 0, 0, storage);
  ladei_tree_slot *slot = ladei_tree_slot_make(&f->core, storage);
  ladei_tree_count_add(&f->core, slot, 1);
  f->core.state = state;
  return slot;
}

static void expect_plan(core_fixture *f, lade_graph_did did, uint32_t rule, lade_graph_ended ended) {
  ladei_tree_decide(&f->core, &f->call, &f->plan);
  LADE_EXPECT_EQ_UINT(f->plan.did, (unsigned)did);
  LADE_EXPECT_EQ_UINT(f->plan.rule, rule);
  LADE_EXPECT_EQ_UINT(f->plan.ended, (unsigned)ended);
}

LADE_TEST(GraphCore, ColdIsWarmedUpWarmIsRecordedKnownIsReplayed) {
  core_fixture f;
  core_open(&f, 1);
  expect_plan(&f, LADE_GRAPH_DID_WARMUP, 4, LADE_GRAPH_ENDED_NOT);
  f.instance->warmups = 1;
  expect_plan(&f, LADE_GRAPH_DID_RECORD, 7, LADE_GRAPH_ENDED_NOT);
  (void)root_add(&f);
  expect_plan(&f, LADE_GRAPH_DID_REPLAY, 5, LADE_GRAPH_ENDED_NOT);
  f.core.settings.warmups = 2;
  expect_plan(&f, LADE_GRAPH_DID_WARMUP, 4, LADE_GRAPH_ENDED_NOT);
  f.inputs[0].flags = LADE_GRAPH_MUTATED;
  expect_plan(&f, LADE_GRAPH_DID_EAGER, 3, LADE_GRAPH_ENDED_NOT);
  f.inputs[0].flags = LADE_GRAPH_MUTATED | LADE_GRAPH_STATIC;
  expect_plan(&f, LADE_GRAPH_DID_WARMUP, 4, LADE_GRAPH_ENDED_NOT);
  core_close(&f);
}

LADE_TEST(GraphCore, StatesAndEnds) {
  static const struct {
    lade_graph_state state;
    bool cold, step, alive;
    lade_graph_did did;
    lade_graph_ended ended;
    bool restore;
  } cases[] = {
      {LADE_GRAPH_STATE_WARMUP, false, false, true, LADE_GRAPH_DID_WARMUP, LADE_GRAPH_ENDED_NOT, false},
      {LADE_GRAPH_STATE_WARMUP, false, true, true, LADE_GRAPH_DID_REPLAY, LADE_GRAPH_ENDED_BOUNDARY, false},
      {LADE_GRAPH_STATE_WARMUP, false, false, false, LADE_GRAPH_DID_REPLAY, LADE_GRAPH_ENDED_DEAD, false},
      {LADE_GRAPH_STATE_RECORDING, false, false, true, LADE_GRAPH_DID_RECORD, LADE_GRAPH_ENDED_NOT, false},
      {LADE_GRAPH_STATE_RECORDING, true, false, true, LADE_GRAPH_DID_WARMUP, LADE_GRAPH_ENDED_NOT, false},
      {LADE_GRAPH_STATE_RECORDING, true, true, true, LADE_GRAPH_DID_WARMUP, LADE_GRAPH_ENDED_BOUNDARY, false},
      {LADE_GRAPH_STATE_RECORDING, false, true, true, LADE_GRAPH_DID_REPLAY, LADE_GRAPH_ENDED_BOUNDARY, false},
      {LADE_GRAPH_STATE_EXECUTION, false, false, true, LADE_GRAPH_DID_RECORD, LADE_GRAPH_ENDED_NOT, true},
      {LADE_GRAPH_STATE_EXECUTION, true, false, true, LADE_GRAPH_DID_WARMUP, LADE_GRAPH_ENDED_NOT, true},
      {LADE_GRAPH_STATE_EXECUTION, true, true, true, LADE_GRAPH_DID_WARMUP, LADE_GRAPH_ENDED_BOUNDARY, false},
      {LADE_GRAPH_STATE_EXECUTION, false, true, true, LADE_GRAPH_DID_REPLAY, LADE_GRAPH_ENDED_BOUNDARY, false},
      {LADE_GRAPH_STATE_EXECUTION, false, false, false, LADE_GRAPH_DID_REPLAY, LADE_GRAPH_ENDED_DEAD, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    core_fixture f;
    lade_test_context("case %zu", i);
    core_open(&f, 0);
    ladei_tree_node *node = root_add(&f);
    bool warmup = cases[i].state == LADE_GRAPH_STATE_WARMUP;
    ladei_tree_slot *slot = path_begin(&f, warmup ? NULL : node, cases[i].state);
    f.instance->warmups = !cases[i].cold;
    f.core.marks = cases[i].step;
    if (!cases[i].alive) ladei_tree_count_take(&f.core, slot, 1);
    ladei_tree_decide(&f.core, &f.call, &f.plan);
    LADE_EXPECT_EQ_UINT(f.plan.did, (unsigned)cases[i].did);
    LADE_EXPECT_EQ_UINT(f.plan.ended, (unsigned)cases[i].ended);
    LADE_EXPECT_EQ_INT(f.plan.restore, cases[i].restore);
    LADE_EXPECT_EQ_SIZE(f.core.path.count, 1); /* G6: nothing changed */
    LADE_EXPECT_EQ_UINT(f.core.state, (unsigned)cases[i].state);
    ladei_tree_slot_end(&f.core, slot, LADEI_TREE_END_RELEASED);
    core_close(&f);
  }
  lade_test_context("%s", "");
}

LADE_TEST(GraphCore, AutomaticStepsWaitForABackward) {
  core_fixture f;
  core_open(&f, 0);
  ladei_tree_node *node = root_add(&f);
  ladei_tree_slot *slot = path_begin(&f, node, LADE_GRAPH_STATE_EXECUTION);
  f.instance->warmups = 1;
  f.core.autos = 1;
  f.core.pending = true;
  expect_plan(&f, LADE_GRAPH_DID_RECORD, 7, LADE_GRAPH_ENDED_NOT);
  f.core.pending = false;
  expect_plan(&f, LADE_GRAPH_DID_REPLAY, 5, LADE_GRAPH_ENDED_BOUNDARY);
  ladei_tree_slot_end(&f.core, slot, LADEI_TREE_END_RELEASED);
  core_close(&f);
}

LADE_TEST(GraphCore, AMutatedOutputKeepsThePath) {
  core_fixture f;
  core_open(&f, 1);
  ladei_tree_node *node = root_add(&f);
  ladei_tree_slot *slot = path_begin(&f, node, LADE_GRAPH_STATE_EXECUTION);
  f.instance->warmups = 1;
  f.core.marks = 1;
  f.inputs[0].slot = slot;
  f.inputs[0].storage = slot->storage;
  f.inputs[0].flags = LADE_GRAPH_MUTATED;
  expect_plan(&f, LADE_GRAPH_DID_RECORD, 7, LADE_GRAPH_ENDED_NOT);
  LADE_EXPECT_EQ_UINT(f.inputs[0].class, LADE_GRAPH_CLASS_MANAGED);
  f.inputs[0].flags = 0;
  expect_plan(&f, LADE_GRAPH_DID_REPLAY, 5, LADE_GRAPH_ENDED_BOUNDARY);
  LADE_EXPECT(f.inputs[0].carried);
  LADE_EXPECT_EQ_UINT(f.inputs[0].class, LADE_GRAPH_CLASS_COPIED);
  ladei_tree_slot_end(&f.core, slot, LADEI_TREE_END_RELEASED);
  core_close(&f);
}

LADE_TEST(GraphCore, Limits) {
  core_fixture f;
  core_open(&f, 1);
  f.instance->warmups = 1;
  f.inputs[0].flags = LADE_GRAPH_STATIC;
  ladei_tree_node *first = root_add(&f);
  f.inputs[0].address += 512;
  expect_plan(&f, LADE_GRAPH_DID_RECORD, 7, LADE_GRAPH_ENDED_NOT);
  LADE_EXPECT(f.plan.counts);
  LADE_EXPECT_EQ_UINT(f.core.why[0], LADE_GRAPH_REASON_STATIC);
  first->group->rerecords = 2;
  expect_plan(&f, LADE_GRAPH_DID_EAGER, 6, LADE_GRAPH_ENDED_NOT);
  LADE_EXPECT_EQ_UINT(f.plan.reason, LADE_GRAPH_REASON_LIMIT);
  first->group->rerecords = 0;
  f.core.settings.max_nodes = 1;
  expect_plan(&f, LADE_GRAPH_DID_RECORD, 7, LADE_GRAPH_ENDED_NOT);
  LADE_EXPECT_EQ_PTR(f.plan.evict, first);
  f.core.settings.max_nodes = 0;
  f.core.settings.max_driver_bytes = 100;
  f.core.driver_bytes = 99;
  expect_plan(&f, LADE_GRAPH_DID_RECORD, 7, LADE_GRAPH_ENDED_NOT);
  LADE_EXPECT_EQ_PTR(f.plan.evict, NULL);
  f.core.driver_bytes = 100;
  expect_plan(&f, LADE_GRAPH_DID_RECORD, 7, LADE_GRAPH_ENDED_NOT);
  LADE_EXPECT_EQ_PTR(f.plan.evict, first);
  ladei_tree_slot *slot = path_begin(&f, first, LADE_GRAPH_STATE_EXECUTION); /* a path keeps its nodes */
  expect_plan(&f, LADE_GRAPH_DID_EAGER, 6, LADE_GRAPH_ENDED_NOT);
  f.core.settings.fixed_statics = true;
  f.core.marks = 1;
  expect_plan(&f, LADE_GRAPH_DID_ERROR, 5, LADE_GRAPH_ENDED_BOUNDARY);
  LADE_EXPECT_EQ_SIZE(ladei_tree_moved_static(&f.call, f.plan.node), 0);
  f.core.driver_bytes = 0;
  ladei_tree_slot_end(&f.core, slot, LADEI_TREE_END_RELEASED);
  core_close(&f);
}

LADE_TEST(GraphCore, StaleAndForeignNames) {
  core_fixture f;
  ladei_tree_core other;
  core_open(&f, 0);
  ladei_tree_core_init(&other, 2);
  LADE_EXPECT(ladei_tree_handles_reserve(&other, 1, 1));
  lade_graph_buffer names[40];
  bool known = false;
  ladei_tree_slot *found = NULL;
  for (size_t i = 0; i < 40; i++) {
    ladei_tree_storage *storage = ladei_tree_storage_make(&f.core);
    ladei_tree_slot *slot = ladei_tree_slot_make(&f.core, storage);
    ladei_tree_count_add(&f.core, slot, 1);
    names[i] = ladei_tree_slot_name(slot);
    LADE_EXPECT_EQ_INT(ladei_tree_slot_find(&f.core, names[i], &found, &known), LADEI_TREE_VALID);
    LADE_EXPECT_EQ_INT(ladei_tree_slot_find(&other, names[i], &found, &known), LADEI_TREE_FOREIGN);
    ladei_tree_slot_end(&f.core, slot, LADEI_TREE_END_RELEASED);
  }
  for (size_t i = 0; i < 40; i++) { /* what they were is known for long */
    LADE_EXPECT_EQ_INT(ladei_tree_slot_find(&f.core, names[i], &found, &known), LADEI_TREE_STALE);
    LADE_EXPECT(known);
  }
  names[0].generation++; /* never given out */
  LADE_EXPECT_EQ_INT(ladei_tree_slot_find(&f.core, names[0], &found, &known), LADEI_TREE_FOREIGN);
  names[0].slot = 1u << 30;
  LADE_EXPECT_EQ_INT(ladei_tree_slot_find(&f.core, names[0], &found, &known), LADEI_TREE_FOREIGN);
  ladei_tree_core_free(&other);
  core_close(&f);
}

/* Buffers of one memory, each with as many counts as lade_graph_buffer_retain() gives it. */
LADE_TEST(GraphCore, ManyCountsOfOneMemory) {
  enum { SLOTS = 3 };
  core_fixture f;
  ladei_tree_slot *slots[SLOTS];
  core_open(&f, 0);
  ladei_tree_storage *storage = ladei_tree_storage_make(&f.core);
  LADE_EXPECT(ladei_tree_path_reserve(&f.core.path, 1));
  (void)ladei_tree_path_push(&f.core.path, NULL, &f.function, -1, 1);
  ladei_tree_path_set(&f.core.path, 0, 0, storage);
  for (size_t i = 0; i < SLOTS; i++) {
    slots[i] = ladei_tree_slot_make(&f.core, storage);
    ladei_tree_count_add(&f.core, slots[i], i + 1 < SLOTS ? (uint32_t)1 << 31 : 1);
  }
  LADE_EXPECT_EQ_UINT(storage->counts, ((uint64_t)1 << 32) + 1);
  LADE_EXPECT_EQ_UINT(f.core.path.alive, 1);
  for (size_t i = SLOTS; i > 0; i--) {
    LADE_EXPECT(ladei_tree_alive(storage));
    ladei_tree_slot_end(&f.core, slots[i - 1], LADEI_TREE_END_RELEASED);
  }
  LADE_EXPECT_EQ_UINT(f.core.path.alive, 0);
  core_close(&f);
}

/* Buffers of one memory go in every order. */
LADE_TEST(GraphCore, BuffersOfOneMemoryGoInAnyOrder) {
  enum { SLOTS = 4, ORDERS = SLOTS * SLOTS * SLOTS * SLOTS };
  core_fixture f;
  core_open(&f, 0);
  for (size_t order = 0; order < ORDERS; order++) {
    ladei_tree_slot *slots[SLOTS];
    ladei_tree_storage *storage = ladei_tree_storage_make(&f.core);
    for (size_t i = 0; i < SLOTS; i++) {
      slots[i] = ladei_tree_slot_make(&f.core, storage);
      ladei_tree_count_add(&f.core, slots[i], 1);
    }
    for (size_t left = SLOTS, digits = order; left > 0; left--, digits /= SLOTS) {
      size_t i = digits % left;
      ladei_tree_slot_end(&f.core, slots[i], LADEI_TREE_END_RELEASED);
      slots[i] = slots[left - 1];
      size_t count = 0;
      for (const ladei_tree_slot *slot = storage->slots; slot != NULL && left > 1; slot = slot->next) count++;
      LADE_EXPECT_EQ_UINT(count, left - 1);
    }
  }
  LADE_EXPECT_EQ_UINT(f.core.slots.valid_count, 0);
  core_close(&f);
}

/* Each number is wrong once, and the recount names it. */
LADE_TEST(GraphCore, TheRecountNoticesEachNumber) {
  core_fixture f;
  core_open(&f, 1);
  ladei_tree_node *node = root_add(&f);
  for (int i = 0; i < 2 * LADEI_TREE_GROUP_FEW; i++) (void)root_add(&f); /* so many that the group has a table */
  ladei_tree_slot *slot = path_begin(&f, node, LADE_GRAPH_STATE_EXECUTION);
  ladei_tree_storage *storage = slot->storage;
  LADE_ASSERT_OK(ladei_tree_core_check(&f.core));
  size_t *const sizes[] = {&f.core.slots.valid_count, &f.core.slots.free_count, &f.core.storages.free_count,
                           &f.core.path.alive,        &f.core.path.row_count,   &f.core.path.entries[0].row,
                           &f.core.node_count,        &node->group->count,      &node->children};
  uint32_t *const counts[] = {&storage->references, &slot->counts};
  uint64_t *const bytes[] = {&storage->counts, &f.core.driver_bytes, &node->hash};
  bool *const flags[] = {&storage->in_path, &storage->lost, &storage->is_garbage, &node->in_path, &node->listed};
#define EACH_WRONG(list, change)                                                                                       \
  for (size_t i = 0; i < sizeof(list) / sizeof *(list); i++) {                                                         \
    *(list)[i] = change;                                                                                               \
    LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, ladei_tree_core_check(&f.core));                                             \
    *(list)[i] = change;                                                                                               \
    LADE_EXPECT_OK(ladei_tree_core_check(&f.core));                                                                    \
  }
  EACH_WRONG(sizes, *sizes[i] ^ 1)
  EACH_WRONG(counts, *counts[i] ^ 1)
  EACH_WRONG(bytes, *bytes[i] ^ 1)
  EACH_WRONG(flags, !*flags[i])
#undef EACH_WRONG
  f.core.state = LADE_GRAPH_STATE_NONE;
  LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, ladei_tree_core_check(&f.core));
  f.core.state = LADE_GRAPH_STATE_EXECUTION;
  core_close(&f);
}
