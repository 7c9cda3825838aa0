/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run: carries out the plan of core/.
 *
 *   read the call --> decide --> end of a path --> [restore] --> replay, warm-up, record (record.c) or eager --> commit
 *
 * When a run fails:
 *   end          carries come first; after them the end cannot fail. Before a recording the path only leaves the core,
 *                and may come back until inputs are copied; otherwise its end is committed at once
 *   replay       copies and launch come first, after them nothing can fail
 *   warm-up      the body's work stays; its memory is freed, and after a restore the path's blocks, too. If the
 *                caller's stream cannot be made to wait for the work, the call waits
 *   eager        the body's work stays; its memory is freed
 *
 * R1  Handles are made only in ladei_tree_commit(); room for them, and for lost ones, is made before any other step.
 * R2  Slots that are taken, or of a path that ends, end when the run is over: until then it may take counts of them.
 *
 * record.c and this file are one state machine in two files (record.c says why).
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/thread.h"
#include "device/for_graphs.h"
#include "graph/tree/tree.h"
#include "runtime/copies/copies.h"

static const char call_name[] = "lade_graph_tree_run";

/* ---- Ends of paths ----------------------------------------------------------------------------------------------- */

static void carried_free(ladei_tree_run *run) {
  lade_graph_tree *tree = run->tree;
  for (size_t i = 0; i < run->call.count; i++) {
    if (!run->call.inputs[i].carried || tree->carried_blocks[i] == NULL) continue;
    (void)ladei_device_free_kept(tree->outside, tree->carried_blocks[i]);
    tree->carried_blocks[i] = NULL;
  }
}

static lade_status input_carry(ladei_tree_run *run, size_t index) {
  lade_graph_tree *tree = run->tree;
  ladei_tree_input *input = &run->call.inputs[index];
  void *block = NULL;
  lade_status status = lade_device_alloc(tree->outside, input->bytes, run->stream.handle, &block);
  if (status != LADE_OK) return ladei_error_prefix(status, "%s: memory for a copy of input %zu: ", call_name, index);
  status = ladei_tree_ops(tree)->copy(tree->runtime->self, LADEI_COPY_D2D, block, (void *)(uintptr_t)input->address,
                                      input->bytes, &run->stream);
  if (status != LADE_OK) {
    (void)ladei_device_free_kept(tree->outside, block);
    return ladei_error_prefix(status, "%s: copy of input %zu: ", call_name, index);
  }
  tree->carried_blocks[index] = block;
  run->has_carried = true;
  return LADE_OK;
}

static lade_status inputs_carry(ladei_tree_run *run) {
  lade_graph_tree *tree = run->tree;
  lade_status status = LADE_OK;
  for (size_t i = 0; i < run->call.count; i++) tree->carried_blocks[i] = NULL;
  for (size_t i = 0; i < run->call.count && status == LADE_OK; i++)
    if (run->call.inputs[i].carried) status = input_carry(run, i);
  if (status != LADE_OK) {
    carried_free(run);
    return status;
  }
  for (size_t i = 0; i < run->call.count; i++) {
    if (!run->call.inputs[i].carried) continue;
    run->call.inputs[i].address = (uint64_t)(uintptr_t)tree->carried_blocks[i];
    tree->stats.carried++;
    tree->stats.carried_bytes += run->call.inputs[i].bytes;
  }
  return LADE_OK;
}

lade_status ladei_tree_path_end(ladei_tree_run *run) {
  lade_graph_tree *tree = run->tree;
  LADEI_TRY(inputs_carry(run));
  ladei_tree_path_free_blocks(tree, &tree->core.path);
  ladei_lock_acquire(&tree->lock);
  ladei_tree_path_leave(&tree->core, &tree->ending);
  ladei_lock_release(&tree->lock);
  tree->core.state = LADE_GRAPH_STATE_NONE;
  tree->core.pending = false;
  run->end_open = true;
  return LADE_OK;
}

static bool lost_reserve(lade_graph_tree *tree) {
  size_t count = tree->core.slots.valid_count;
  if (count <= tree->lost_room) return true;
  ladei_tree_lost_slot *lost = realloc(tree->lost, count * 2 * sizeof *lost);
  if (lost != NULL) tree->lost = lost;
  lade_graph_lost *list = realloc(tree->lost_list, count * 2 * sizeof *list);
  if (list != NULL) tree->lost_list = list;
  if (lost == NULL || list == NULL) return false;
  tree->lost_room = count * 2;
  return true;
}

/* Notes all slots of a storage: they end with their counts when the run is over. With the lock. */
static void storage_lose(lade_graph_tree *tree, ladei_tree_storage *storage, ladei_tree_end how) {
  if (storage == NULL || storage->lost) return;
  ladei_lock_assert_held(&tree->lock);
  if (storage->in_path && storage->counts > 0) tree->core.path.alive--;
  storage->lost = true;
  for (ladei_tree_slot *slot = storage->slots; slot != NULL; slot = slot->next) {
    assert(tree->lost_count < tree->lost_room); /* R1 */
    tree->lost[tree->lost_count++] = (ladei_tree_lost_slot){.slot = slot, .how = how};
  }
}

void ladei_tree_end_commit(ladei_tree_run *run) {
  lade_graph_tree *tree = run->tree;
  assert(run->end_open);
  run->end_open = false;
  ladei_tree_end how = run->plan.ended == LADE_GRAPH_ENDED_BOUNDARY ? LADEI_TREE_END_BOUNDARY : LADEI_TREE_END_DEAD;
  ladei_lock_acquire(&tree->lock);
  for (size_t i = 0; i < tree->ending.row_count; i++)
    if (ladei_tree_alive(tree->ending.rows[i])) storage_lose(tree, tree->ending.rows[i], how);
  ladei_lock_release(&tree->lock);
  if (run->plan.ended == LADE_GRAPH_ENDED_BOUNDARY)
    tree->stats.ended_boundary++;
  else
    tree->stats.ended_dead++;
  ladei_tree_ending_clear(tree);
}

/* Ends the path for good, if the plan says so. */
static lade_status path_end(ladei_tree_run *run) {
  if (run->plan.ended == LADE_GRAPH_ENDED_NOT || run->end_open) return LADE_OK;
  lade_status status = ladei_tree_path_end(run);
  if (status != LADE_OK) run->plan.ended = LADE_GRAPH_ENDED_NOT;
  if (status == LADE_OK) ladei_tree_end_commit(run);
  return status;
}

static int lost_compare(const void *a, const void *b) {
  uint64_t x = ((const ladei_tree_lost_slot *)a)->serial;
  uint64_t y = ((const ladei_tree_lost_slot *)b)->serial;
  return (x > y) - (x < y);
}

/* R2. Lists the slots that still had counts in tree->lost_list. */
static void lost_end(ladei_tree_run *run) {
  lade_graph_tree *tree = run->tree;
  size_t kept = 0;
  ladei_lock_assert_held(&tree->lock);
  for (size_t i = 0; i < tree->lost_count; i++) {
    ladei_tree_slot *slot = tree->lost[i].slot;
    ladei_tree_end how = tree->lost[i].how;
    if (slot->counts > 0) {
      lade_graph_lost lost = {ladei_tree_slot_name(slot), slot->tag, slot->run, slot->step, slot->output};
      tree->lost[kept++] = (ladei_tree_lost_slot){slot, how, lost, slot->serial};
      ladei_tree_slot_end(&tree->core, slot, how);
    } else {
      ladei_tree_slot_end(&tree->core, slot, LADEI_TREE_END_TAKEN);
    }
  }
  tree->lost_count = kept;
  if (kept > 1) qsort(tree->lost, kept, sizeof *tree->lost, lost_compare);
  for (size_t i = 0; i < kept; i++) tree->lost_list[i] = tree->lost[i].lost;
  tree->stats.overwritten += kept;
}

/* ---- Commit ------------------------------------------------------------------------------------------------------ */

static void output_commit(ladei_tree_run *run, uint32_t index) {
  lade_graph_tree *tree = run->tree;
  ladei_tree_out *out = &tree->outs[index];
  lade_graph_value *value = &tree->values[index];
  *value = (lade_graph_value){.kind = LADE_GRAPH_MEMORY,
                              .address = (void *)(uintptr_t)out->address,
                              .bytes = out->bytes,
                              .tag = run->function->output_tags[index]};
  if (out->kind == LADE_GRAPH_OUTPUT_INTEGER) {
    *value = (lade_graph_value){.kind = LADE_GRAPH_INTEGER, .integer = out->address, .tag = value->tag};
    return;
  }
  if (out->storage == NULL) return;
  ladei_tree_slot *slot = ladei_tree_slot_make(&tree->core, out->storage);
  slot->counts = 1; /* the storage has it already */
  slot->address = out->address;
  slot->bytes = out->bytes;
  slot->tag = value->tag;
  slot->run = tree->core.runs;
  slot->step = tree->core.marks;
  slot->output = index;
  if (out->counted) ladei_tree_storage_unreference(&tree->core, out->storage);
  out->counted = false;
  value->kind = LADE_GRAPH_BUFFER;
  value->buffer = ladei_tree_slot_name(slot);
}

void ladei_tree_commit(ladei_tree_run *run, ladei_tree_node *node, lade_graph_state state) {
  lade_graph_tree *tree = run->tree;
  ladei_tree_core *core = &tree->core;
  bool enters = run->plan.did != LADE_GRAPH_DID_EAGER;
  assert(!run->end_open && (node == NULL || node->listed)); /* R1, C1 */
  ladei_lock_acquire(&tree->lock);
  if (enters)
    (void)ladei_tree_path_push(&core->path, node, run->function, node != NULL ? node->id : core->next_warmup--,
                               run->function->output_count);
  for (uint32_t i = 0; i < run->function->output_count; i++) {
    if (enters && ladei_tree_out_in_row(&tree->outs[i]))
      ladei_tree_path_set(&core->path, core->path.count - 1, i, tree->outs[i].storage);
    output_commit(run, i);
  }
  ladei_lock_release(&tree->lock);
  if (enters) {
    core->state = state;
    core->stored_marks = core->marks;
    core->stored_autos = core->autos;
  }
  if (run->function->mode == LADE_GRAPH_FORWARD) core->pending = true;
  if (run->function->mode == LADE_GRAPH_BACKWARD) core->pending = false;
}

/* ---- Copies and launches ----------------------------------------------------------------------------------------- */

static lade_status let_fail(const char *what) {
  return ladei_error(LADE_ERR_DRIVER, 0, "%s: let fail: %s", call_name, what);
}

/* All sources lie outside of the pool (call.c), and destinations in it: no copy writes bytes that another one reads. */
lade_status ladei_tree_copy_inputs(ladei_tree_run *run, const ladei_tree_node *node) {
  lade_graph_tree *tree = run->tree;
  size_t count = 0, bytes = 0;
  for (size_t i = 0; i < run->call.count; i++) {
    const ladei_tree_input *input = &run->call.inputs[i];
    if (input->class != LADE_GRAPH_CLASS_COPIED) continue;
    tree->copies[count++] = (lade_copy_piece){.dst = (void *)(uintptr_t)node->inputs[i].address,
                                              .src = (const void *)(uintptr_t)input->address,
                                              .bytes = input->bytes};
    bytes += input->bytes;
  }
  if (count == 0) return LADE_OK;
  if ((run->faults & LADEI_TREE_FAULT_COPY) != 0) return let_fail("copy");
  lade_status status = ladei_copy_apart(tree->runtime, LADEI_COPY_D2D, tree->copies, count, bytes, &run->stream);
  if (status != LADE_OK) return ladei_error_prefix(status, "%s: copies of %zu inputs: ", call_name, count);
  tree->stats.copied += count;
  tree->stats.copied_bytes += bytes;
  return LADE_OK;
}

lade_status ladei_tree_launch(ladei_tree_run *run, const ladei_tree_node *node) {
  const lade_graph_tree *tree = run->tree;
  const ladei_tree_native *native = node->native;
  assert(native->exec != NULL);
  if ((run->faults & LADEI_TREE_FAULT_LAUNCH) != 0) return let_fail("launch");
  lade_status status = ladei_tree_ops(tree)->graph_launch(tree->runtime->self, native->exec, &run->stream);
  return status == LADE_OK ? status : ladei_error_prefix(status, "%s: launch: ", call_name);
}

/* ---- Replay ------------------------------------------------------------------------------------------------------ */

/* Makes an output as it was recorded, with this path's memory. */
static void replay_output(ladei_tree_run *run, const ladei_tree_node *node, uint32_t index) {
  lade_graph_tree *tree = run->tree;
  const ladei_tree_node_output *own = &node->outputs[index];
  ladei_tree_out *out = &tree->outs[index];
  *out = (ladei_tree_out){.kind = own->kind, .source = own->source, .address = own->address, .bytes = own->bytes};
  switch (own->kind) {
  case LADE_GRAPH_OUTPUT_NEW:
    out->storage = ladei_tree_storage_make(&tree->core);
    out->storage->address = own->block;
    out->storage->bytes = own->block_bytes;
    break;
  case LADE_GRAPH_OUTPUT_SAME: out->storage = tree->outs[own->source].storage; break;
  case LADE_GRAPH_OUTPUT_PRIOR:
    out->storage = own->source != LADEI_TREE_BY_POSITION ? run->call.inputs[own->source].storage
                                                         : ladei_tree_path_at(&tree->core.path, own->position);
    break;
  case LADE_GRAPH_OUTPUT_INPUT: out->storage = run->call.inputs[own->source].storage; break;
  default: break;
  }
  if (out->storage != NULL) ladei_tree_storage_count(&tree->core, out->storage, true);
}

static void replay_commit(ladei_tree_run *run, ladei_tree_node *node) {
  lade_graph_tree *tree = run->tree;
  ladei_lock_acquire(&tree->lock);
  for (uint32_t i = 0; i < node->output_count; i++) replay_output(run, node, i);
  for (size_t i = 0; i < run->call.count; i++) {
    if (!run->call.inputs[i].taken) continue;
    ladei_tree_count_take(&tree->core, run->call.inputs[i].slot, 1);
    run->call.inputs[i].slot->takes--;
  }
  ladei_lock_release(&tree->lock);
  ladei_tree_commit(run, node, LADE_GRAPH_STATE_EXECUTION);
  node->used = tree->core.runs;
  node->replays++;
  tree->stats.replays++;
}

static lade_status replay(ladei_tree_run *run) {
  ladei_tree_node *node = run->plan.node;
  lade_status status = path_end(run);
  if (status == LADE_OK) status = ladei_tree_copy_inputs(run, node);
  if (status == LADE_OK) status = ladei_tree_launch(run, node);
  if (status == LADE_OK) replay_commit(run, node);
  return status;
}

/* ---- Eager runs -------------------------------------------------------------------------------------------------- */

/* An eager run is slower than a replay, so it is reported: in the program's log once for each function and reason, in
 * the tree's log each time. */
static void eager_tell(const ladei_tree_run *run, uint32_t reason) {
  static const char *const reasons[LADE_GRAPH_REASON_COUNT] = {
      [LADE_GRAPH_REASON_MUTATED] = "it writes to an input that is neither static nor an output of the path",
      [LADE_GRAPH_REASON_LIMIT] = "a limit on recordings is reached",
      [LADE_GRAPH_REASON_CHECKPOINT] = "the pool could not be brought to the state after the path"};
  if ((run->function->eager_told >> reason & 1u) != 0) return;
  run->function->eager_told |= 1u << reason;
  ladei_log(LADE_LOG_WARN, "graph tree: function %s runs eagerly: %s", run->function->name, reasons[reason]);
}

lade_status ladei_tree_eager(ladei_tree_run *run, uint32_t reason) {
  ladei_tree_context context;
  run->plan.did = LADE_GRAPH_DID_EAGER;
  run->plan.reason = run->reason = reason;
  lade_status status = path_end(run);
  if (status == LADE_OK) status = ladei_tree_context_open(&context, run, LADE_GRAPH_STAGE_EAGER, run->stream.handle);
  if (status != LADE_OK) return status;
  status = ladei_tree_context_call(&context);
  if (status == LADE_OK) {
    ladei_tree_context_settle(&context);
    ladei_tree_commit(run, NULL, run->tree->core.state);
    run->tree->stats.eager_runs++;
    run->tree->stats.eager[reason]++;
    eager_tell(run, reason);
  } else {
    ladei_tree_outs_drop(run);
    ladei_tree_context_free_locals(&context);
  }
  ladei_tree_context_close(&context);
  return status;
}

/* ---- Warm-ups ---------------------------------------------------------------------------------------------------- */

/* Runs the body on the tree's stream, forked from the caller's and joined to it again. */
static lade_status warmup_body(ladei_tree_run *run, ladei_tree_context *context) {
  lade_graph_tree *tree = run->tree;
  ladei_tree_routes routes;
  LADEI_TRY(ladei_tree_order_between(tree, &run->stream, &tree->stream));
  LADEI_TRY(ladei_tree_routes_begin(tree, false, &routes));
  lade_status status = ladei_tree_context_call(context);
  ladei_tree_routes_end(tree, &routes);
  lade_error first;
  ladei_error_save(&first);
  lade_status left = ladei_tree_context_leftovers(context);
  if (left != LADE_OK && status != LADE_OK) ladei_error_restore(&first);
  if (status == LADE_OK) status = left;
  ladei_error_save(&first);
  lade_status joined = ladei_tree_order_between(tree, &tree->stream, &run->stream);
  /* Memory that the body reads is free again when the call returns: the inputs, and copies of carried ones. */
  if (joined != LADE_OK) {
    if (status == LADE_OK) ladei_error_save(&first);
    if (ladei_stream_wait(tree->runtime, &tree->stream) != LADE_OK) (void)ladei_tree_order_note(tree, &tree->stream);
    ladei_error_restore(&first);
  }
  return status != LADE_OK ? status : joined;
}

/* Keeps only the work of the body. Memory of the path that the body freed by itself is lost. */
static void warmup_fail(ladei_tree_run *run, ladei_tree_context *context) {
  lade_graph_tree *tree = run->tree;
  ladei_tree_path *path = &tree->core.path;
  ladei_tree_outs_drop(run);
  ladei_tree_context_free_locals(context);
  ladei_lock_acquire(&tree->lock);
  for (size_t i = 0; i < path->row_count; i++)
    if (ladei_tree_alive(path->rows[i]) && !path->rows[i]->has_block)
      storage_lose(tree, path->rows[i], LADEI_TREE_END_FREED);
  ladei_lock_release(&tree->lock);
  if (run->did_restore) ladei_tree_path_free_blocks(tree, path);
}

static lade_status warmup(ladei_tree_run *run) {
  lade_graph_tree *tree = run->tree;
  ladei_tree_context context;
  lade_status status = path_end(run);
  if (status == LADE_OK && run->plan.restore) {
    status = ladei_tree_restore(run);
    if (status != LADE_OK) return ladei_tree_eager(run, LADE_GRAPH_REASON_CHECKPOINT);
  }
  if (status == LADE_OK) {
    status = ladei_tree_context_open(&context, run, LADE_GRAPH_STAGE_WARMUP, tree->stream.handle);
    if (status != LADE_OK && run->did_restore) ladei_tree_path_free_blocks(tree, &tree->core.path);
  }
  if (status != LADE_OK) return status;
  status = warmup_body(run, &context);
  if (status == LADE_OK) {
    ladei_tree_context_settle(&context);
    ladei_tree_commit(run, NULL, LADE_GRAPH_STATE_WARMUP);
    run->call.instance->warmups++;
    tree->stats.warmups++;
  } else {
    warmup_fail(run, &context);
  }
  ladei_tree_context_close(&context);
  return status;
}

lade_status ladei_tree_restore(ladei_tree_run *run) {
  lade_graph_tree *tree = run->tree;
  if ((run->faults & LADEI_TREE_FAULT_CHECKPOINT_SET) != 0) return let_fail("checkpoint_set");
  lade_status status = ladei_tree_pool_restore(tree, ladei_tree_current(&tree->core)->checkpoint);
  assert(!run->did_restore);
  run->did_restore = status == LADE_OK;
  if (run->did_restore) tree->stats.restores++;
  return status;
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static lade_status moved_error(const ladei_tree_run *run) {
  size_t input = ladei_tree_moved_static(&run->call, run->plan.node);
  return ladei_error(
      LADE_ERR_INVALID_ARGUMENT, 0,
      "%s: static input %zu (tag %llu) of function %s is at 0x%llx; expected 0x%llx, where it was recorded", call_name,
      input, (unsigned long long)run->function->input_tags[input], run->function->name,
      (unsigned long long)run->call.inputs[input].address, (unsigned long long)run->plan.node->inputs[input].address);
}

static lade_status act(ladei_tree_run *run) {
  lade_status status = LADE_OK;
  switch (run->plan.did) {
  case LADE_GRAPH_DID_REPLAY: return replay(run);
  case LADE_GRAPH_DID_WARMUP: return warmup(run);
  case LADE_GRAPH_DID_RECORD: return ladei_tree_record(run);
  case LADE_GRAPH_DID_EAGER: return ladei_tree_eager(run, run->plan.reason);
  default: status = path_end(run); return status == LADE_OK ? moved_error(run) : status;
  }
}

/* R1 */
static lade_status room_make(ladei_tree_run *run) {
  lade_graph_tree *tree = run->tree;
  size_t outputs = run->function->output_count;
  ladei_tree_path *path = run->plan.ended != LADE_GRAPH_ENDED_NOT ? &tree->ending : &tree->core.path;
  ladei_lock_acquire(&tree->lock);
  bool may_lose = run->plan.ended != LADE_GRAPH_ENDED_NOT || run->plan.did == LADE_GRAPH_DID_WARMUP;
  bool made = ladei_tree_handles_reserve(&tree->core, outputs, outputs) && ladei_tree_path_reserve(path, outputs) &&
              (!may_lose || lost_reserve(tree));
  ladei_lock_release(&tree->lock);
  return made ? LADE_OK
              : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu outputs", call_name, outputs);
}

/* Memory outside of the pool that belongs to another stream is used by this one, too. */
static lade_status outside_note(ladei_tree_run *run) {
  for (size_t i = 0; i < run->call.count; i++) {
    const ladei_tree_storage *storage = run->call.inputs[i].storage;
    if (storage == NULL || !storage->outside || storage->stream_id == run->stream.id) continue;
    lade_status status =
        lade_device_record_stream(run->tree->outside, (void *)(uintptr_t)storage->address, run->stream.handle);
    if (status != LADE_OK) return status;
  }
  return LADE_OK;
}

static void mismatches_count(ladei_tree_run *run) {
  if (run->plan.did == LADE_GRAPH_DID_REPLAY) return;
  for (size_t i = 0; i < run->plan.why_count; i++) run->tree->stats.mismatches[run->tree->core.why[i]]++;
}

/* Ends slots whose last count was taken, and frees storages without counts. */
static void takes_end(ladei_tree_run *run) {
  lade_graph_tree *tree = run->tree;
  ladei_lock_assert_held(&tree->lock);
  for (size_t i = 0; i < run->call.count; i++) {
    ladei_tree_input *input = &run->call.inputs[i];
    if (input->slot == NULL || input->slot->storage != input->storage || input->slot->counts > 0) continue;
    if (input->storage->lost) continue; /* lost_end */
    if (input->storage->counts == 0) ladei_tree_garbage_add(tree, input->storage);
    ladei_tree_slot_end(&tree->core, input->slot, LADEI_TREE_END_TAKEN);
  }
}

static bool is_told(const lade_graph_tree *tree, const ladei_tree_run *run, lade_status status) {
  if (tree->log_level == LADE_GRAPH_LOG_OFF) return false;
  if (status != LADE_OK || run->plan.did == LADE_GRAPH_DID_EAGER) return true;
  if (run->plan.did == LADE_GRAPH_DID_REPLAY) return tree->log_level >= LADE_GRAPH_LOG_ALL;
  return tree->log_level >= LADE_GRAPH_LOG_CHANGES;
}

static void run_tell(ladei_tree_run *run, lade_status status) {
  lade_graph_tree *tree = run->tree;
  bool failed = status != LADE_OK;
  bool eager = run->plan.did == LADE_GRAPH_DID_EAGER;
  size_t carried = 0;
  uint32_t reason = run->plan.reason;
  for (size_t i = 0; i < run->call.count; i++) {
    tree->classes[i] = run->call.inputs[i].class;
    if (run->call.inputs[i].carried) tree->carried[carried++] = (uint32_t)i;
  }
  for (uint32_t i = 0; i < run->function->output_count; i++) tree->kinds[i] = tree->outs[i].kind;
  lade_graph_run_record record = {
      .struct_size = sizeof record,
      .run = tree->core.runs,
      .step = tree->core.marks,
      .function = run->function,
      .name = run->function->name,
      .key = run->call.instance == NULL ? NULL : run->call.instance->key,
      .key_count = run->call.instance == NULL ? 0 : run->call.instance->key_count,
      .status = (uint32_t)status,
      .did = failed ? LADE_GRAPH_DID_ERROR : run->plan.did,
      .rule = run->plan.rule,
      .ended = run->plan.ended,
      .restored = !failed && run->did_restore,
      .state = tree->core.state,
      .node = ladei_tree_current_id(&tree->core),
      .evicted = run->evicted,
      .why = failed  ? NULL
             : eager ? &reason
                     : tree->core.why,
      .why_count = failed  ? 0
                   : eager ? 1
                           : run->plan.why_count,
      .carried = tree->carried,
      .carried_count = failed ? 0 : carried,
      .classes = tree->classes,
      .class_count = failed || eager ? 0 : run->call.count,
      .outputs = tree->values,
      .output_kinds = tree->kinds,
      .output_count = failed ? 0 : run->function->output_count,
      .lost = tree->lost_list,
      .lost_count = tree->lost_count,
  };
  tree->log(tree->log_user, &record);
}

static void run_finish(ladei_tree_run *run, lade_status status) {
  lade_graph_tree *tree = run->tree;
  assert(!run->end_open); /* the end is committed, or was undone */
  if (run->has_carried) carried_free(run);
  ladei_lock_acquire(&tree->lock);
  takes_end(run);
  ladei_tree_call_reset(tree, &run->call);
  if (tree->lost_count > 0) lost_end(run);
  ladei_lock_release(&tree->lock);
  if (run->is_ordered) ladei_tree_order_commit(tree, &run->stream);
  if (status == LADE_OK)
    tree->stats.runs++;
  else
    tree->stats.errors++;
}

static lade_status run_do(ladei_tree_run *run, const lade_graph_call *call) {
  lade_graph_tree *tree = run->tree;
  lade_status status = ladei_tree_ops(tree)->stream_resolve(tree->runtime->self, call->stream, &run->stream);
  if (status == LADE_OK && run->stream.device != tree->device)
    status =
        ladei_error_argument(call_name, "call.stream", "one of the tree's device", "of device %d", run->stream.device);
  if (status == LADE_OK) status = ladei_tree_instance_get(run->function, call, &run->call.instance);
  if (status == LADE_OK) status = ladei_stream_uncaptured(tree->runtime, &run->stream, call_name);
  if (status == LADE_OK) status = ladei_tree_order_before(tree, &run->stream);
  run->is_ordered = status == LADE_OK;
  if (status == LADE_OK) status = outside_note(run);
  if (status != LADE_OK) return status;
  tree->core.autos += run->call.automatic;
  ladei_tree_decide(&tree->core, &run->call, &run->plan);
  mismatches_count(run);
  status = room_make(run);
  if (status == LADE_OK) return act(run);
  run->plan.ended = LADE_GRAPH_ENDED_NOT; /* the path has not ended */
  return status;
}

static lade_status run_owned(ladei_tree_run *run, const lade_graph_call *call) {
  lade_graph_tree *tree = run->tree;
  run->faults = tree->faults;
  tree->faults = 0;
  run->was = tree->core.state;
  run->was_pending = tree->core.pending;
  assert(tree->owned && tree->owner == ladei_thread_number() && tree->ending.count == 0);
  tree->lost_count = 0;
  lade_status status = ladei_tree_call_read(tree, run->function, call, &run->call);
  if (status == LADE_OK || status == LADE_ERR_OVERWRITTEN) tree->core.runs++;
  if (status == LADE_OK) {
    status = run_do(run, call);
    run_finish(run, status);
  } else if (status == LADE_ERR_OVERWRITTEN) {
    tree->stats.errors++;
  } else {
    return status;
  }
  if (is_told(tree, run, status)) LADEI_ASIDE(run_tell(run, status));
  return status;
}

static lade_status outputs_give(const ladei_tree_run *run, lade_graph_value *outputs, size_t *out_count) {
  uint32_t count = run->function->output_count;
  if (count > 0) memcpy(outputs, run->tree->values, count * sizeof *outputs);
  if (out_count != NULL) *out_count = count;
  return LADE_OK;
}

#ifndef NDEBUG
/* A tree with broken invariants stops the program near the cause. */
static void run_check(lade_graph_tree *tree) {
  LADEI_ASIDE(if (ladei_tree_check(tree) == LADE_ERR_INTERNAL) ladei_error_stop());
}
#else
static void run_check(lade_graph_tree *tree) { (void)tree; }
#endif

lade_status lade_graph_tree_run(lade_graph_tree *tree, lade_graph_function *function, const lade_graph_call *call,
                                lade_graph_value *outputs, size_t capacity, size_t *out_count) {
  lade_graph_call own;
  if (function == NULL) return ladei_error_null(__func__, "function");
  if (call == NULL) return ladei_error_null(__func__, "call");
  lade_status status = ladei_options_read("lade_graph_call", call, &own, sizeof own);
  if (status == LADE_OK) status = ladei_options_reserved(__func__, "call.reserved", own.reserved);
  if (status == LADE_OK) status = ladei_tree_enter_run(tree, __func__);
  if (status != LADE_OK) return status;
  ladei_tree_run run = {.tree = tree, .function = function, .evicted = LADE_GRAPH_NO_NODE};
  int cancellation = ladei_cancellation_hold();
  if (function->tree != tree)
    status = ladei_error_argument(__func__, "function", "one of the tree", "%p", (void *)function);
  else if (capacity < function->output_count || (function->output_count > 0 && outputs == NULL))
    status = ladei_error_argument(__func__, outputs == NULL ? "outputs" : "capacity", "room for the function's outputs",
                                  "%zu of %u", outputs == NULL ? 0 : capacity, function->output_count);
  else
    status = ladei_tree_awake_begin(tree, __func__);
  if (status == LADE_OK) {
    ladei_thread.in_run = true;
    status = run_owned(&run, &own);
    ladei_thread.in_run = false;
    run_check(tree);
    ladei_tree_awake_end(tree);
  }
  if (status == LADE_OK) status = outputs_give(&run, outputs, out_count);
  ladei_tree_leave(tree);
  ladei_cancellation_resume(cancellation);
  return status;
}
