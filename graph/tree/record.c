/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recordings.
 *
 *   [checkpoint of the pool, for the roll-back] --> path leaves --> [eviction] --> [restore]
 *     --> inputs' blocks, capture of the body --> graph --> outputs settled, everything else freed --> checkpoint
 *     --> inputs copied, launch --> commit
 *
 * A capture runs no work. So until inputs are copied no valid byte has changed, and all can be undone: counts come
 * back, a path that has left returns, and the pool is set to its former state. If that fails for lack of memory, the
 * path goes on as if replayed: then its memory needs no blocks. A path that ended in warm-ups stays ended.
 *
 * C1  A node is listed, and its group counts, when nothing can fail any more.
 *
 * run.c and this file are one state machine in two files: a run records; a recording commits, restores and launches.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/for_graphs.h"
#include "graph/tree/tree.h"

static const char call_name[] = "lade_graph_tree_run";

/* ---- Roll-back --------------------------------------------------------------------------------------------------- */

/* Sets the pool's blocks as before the run. */
static void pool_return(ladei_tree_run *run) {
  lade_graph_tree *tree = run->tree;
  ladei_tree_core *core = &tree->core;
  bool owned = core->state == LADE_GRAPH_STATE_RECORDING || core->state == LADE_GRAPH_STATE_WARMUP;
  if (owned && ladei_tree_pool_restore(tree, run->before) == LADE_OK) return;
  ladei_tree_path_free_blocks(tree, &core->path);
  if (!owned) return;
  assert(core->state == LADE_GRAPH_STATE_RECORDING ||
         run->plan.ended != LADE_GRAPH_ENDED_NOT); /* no recording follows a warm-up */
  if (core->state == LADE_GRAPH_STATE_RECORDING) {
    core->state = LADE_GRAPH_STATE_EXECUTION;
    return;
  }
  ladei_lock_acquire(&tree->lock);
  ladei_tree_path_leave(core, &tree->ending);
  ladei_lock_release(&tree->lock);
  core->state = LADE_GRAPH_STATE_NONE;
  run->end_open = true;
  ladei_tree_end_commit(run);
}

static void record_undo(ladei_tree_run *run, ladei_tree_context *context, bool end_stands) {
  lade_graph_tree *tree = run->tree;
  lade_error error;
  ladei_error_save(&error);
  ladei_tree_context_free_locals(context);
  ladei_tree_outs_drop(run);
  ladei_tree_context_takes_return(context);
  if (run->end_open && end_stands) {
    ladei_tree_end_commit(run);
  } else if (run->end_open) {
    assert(tree->core.state == LADE_GRAPH_STATE_NONE);
    ladei_lock_acquire(&tree->lock);
    ladei_tree_path_return(&tree->core, &tree->ending);
    ladei_lock_release(&tree->lock);
    run->end_open = false;
    tree->core.state = run->was;
    tree->core.pending = run->was_pending;
    pool_return(run);
    if (tree->core.path.count > 0) run->plan.ended = LADE_GRAPH_ENDED_NOT;
  } else {
    pool_return(run);
  }
  ladei_error_restore(&error);
}

/* ---- Capture ----------------------------------------------------------------------------------------------------- */

/* Ends the capture for good: a failed end may leave the stream capturing. */
static void capture_abandon(lade_graph_tree *tree, ladei_tree_native *native) {
  enum { ATTEMPTS = 3 };
  const lade_runtime_ops *ops = ladei_tree_ops(tree);
  for (int i = 0; i < ATTEMPTS; i++) {
    ladei_capture_info info;
    bool known = ops->stream_capture_info(tree->runtime->self, &tree->stream, &info) == LADE_OK;
    if (known && info.status == LADEI_CAPTURE_NONE) return;
    if (ops->capture_end(tree->runtime->self, &tree->stream, &native->graph) == LADE_OK) return;
  }
}

static lade_status capture(ladei_tree_run *run, ladei_tree_context *context, ladei_tree_native *native) {
  lade_graph_tree *tree = run->tree;
  const lade_runtime_ops *ops = ladei_tree_ops(tree);
  lade_status status = ladei_tree_context_inputs(context);
  if (status == LADE_OK) status = ops->capture_begin(tree->runtime->self, &tree->stream, LADEI_CAPTURE_THREAD_LOCAL);
  if (status != LADE_OK) return status;
  status = ladei_tree_context_call(context);
  lade_error error;
  ladei_error_save(&error);
  lade_status ended = ops->capture_end(tree->runtime->self, &tree->stream, &native->graph);
  if (status == LADE_OK && ended != LADE_OK) {
    status = ladei_error_prefix(ended, "%s: the body of function %s: ", call_name, run->function->name);
    ladei_error_save(&error);
  }
  if (ended != LADE_OK) capture_abandon(tree, native);
  if (status != LADE_OK) ladei_error_restore(&error);
  return status;
}

static lade_status record_body(ladei_tree_run *run, ladei_tree_context *context, ladei_tree_native *native) {
  ladei_tree_routes routes;
  LADEI_TRY(ladei_tree_routes_begin(run->tree, true, &routes));
  lade_status status = capture(run, context, native);
  ladei_tree_routes_end(run->tree, &routes);
  lade_error error;
  ladei_error_save(&error);
  lade_status left = ladei_tree_context_leftovers(context);
  if (status != LADE_OK) ladei_error_restore(&error);
  return status != LADE_OK ? status : left;
}

/* *driver_bytes: the device memory that the driver took for it. */
static lade_status instantiate(ladei_tree_run *run, ladei_tree_native *native, uint64_t *driver_bytes) {
  lade_graph_tree *tree = run->tree;
  const lade_runtime_ops *ops = ladei_tree_ops(tree);
  size_t before = 0, after = 0, total = 0;
  lade_status status = LADE_OK;
  if ((run->faults & LADEI_TREE_FAULT_INSTANTIATE) != 0)
    status = ladei_error(LADE_ERR_DRIVER, 0, "%s: let fail: instantiate", call_name);
  bool measured = ops->memory_info(tree->runtime->self, tree->device, &before, &total) == LADE_OK;
  ladei_capture_mode mode = ladei_capture_mode_relax(tree->allocator->runtime); /* in the code of another capture */
  if (status == LADE_OK) status = ops->graph_instantiate(tree->runtime->self, native->graph, &native->exec);
  ladei_capture_mode_restore(tree->allocator->runtime, mode);
  measured = measured && ops->memory_info(tree->runtime->self, tree->device, &after, &total) == LADE_OK;
  *driver_bytes = measured && before > after ? before - after : 0;
  LADEI_ASIDE(if (ops->graph_destroy(tree->runtime->self, native->graph) == LADE_OK) native->graph = NULL);
  return status;
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

/* The positions that were alive before the body. */
typedef struct liveness {
  ladei_tree_position *before;
  uint32_t before_count;
} liveness;

static bool liveness_take(const lade_graph_tree *tree, liveness *out) {
  out->before = calloc(tree->core.path.row_count + 1, sizeof *out->before);
  if (out->before == NULL) return false;
  out->before_count = ladei_tree_path_alive_list(&tree->core.path, out->before);
  return true;
}

/* Lists the dead positions of a list in `to`, and returns their number; NULL: no list. */
static uint32_t dead_list(const ladei_tree_path *path, const ladei_tree_position *list, uint32_t count,
                          ladei_tree_position *to) {
  uint32_t dead = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (ladei_tree_alive(ladei_tree_path_at(path, list[i]))) continue;
    if (to != NULL) to[dead] = list[i];
    dead++;
  }
  return dead;
}

static void node_inputs_fill(const ladei_tree_run *run, const ladei_tree_context *context, ladei_tree_node *node) {
  for (uint32_t i = 0; i < node->input_count; i++) {
    const ladei_tree_input *input = &run->call.inputs[i];
    bool copied = input->class == LADE_GRAPH_CLASS_COPIED;
    node->inputs[i] = (ladei_tree_node_input){
        .address = copied ? context->inputs[i].address : input->address, .bytes = input->bytes, .class = input->class};
  }
}

static void node_outputs_fill(const ladei_tree_run *run, ladei_tree_node *node) {
  for (uint32_t i = 0; i < node->output_count; i++) {
    const ladei_tree_out *out = &run->tree->outs[i];
    node->outputs[i] = (ladei_tree_node_output){out->address, out->bytes,  out->block,   out->block_bytes,
                                                out->kind,    out->source, out->position};
  }
}

/* `dead_before`: the positions of the parent's `after` that were dead before the body. */
static ladei_tree_node *node_make(ladei_tree_run *run, const ladei_tree_context *context, const liveness *live,
                                  const ladei_tree_positions *dead_before) {
  const ladei_tree_path *path = &run->tree->core.path;
  uint32_t outputs = run->function->output_count, own = 0;
  for (uint32_t i = 0; i < outputs; i++) own += ladei_tree_out_in_row(&run->tree->outs[i]);
  uint32_t dead_after = dead_list(path, live->before, live->before_count, NULL);
  uint32_t after = ladei_tree_path_alive_list(path, NULL) + own;
  ladei_tree_node *node = ladei_tree_node_make(run->call.instance, (uint32_t)run->call.count, outputs,
                                               dead_before->count, dead_after, after);
  if (node == NULL) return NULL;
  node->parent = ladei_tree_current(&run->tree->core);
  if (node->parent != NULL) node->parent->offspring++;
  node->depth = (uint32_t)path->count;
  if (dead_before->count > 0)
    memcpy(node->dead_before.list, dead_before->list, dead_before->count * sizeof *dead_before->list);
  (void)dead_list(path, live->before, live->before_count, node->dead_after.list);
  uint32_t count = ladei_tree_path_alive_list(path, node->after.list);
  for (uint32_t i = 0; i < outputs; i++)
    if (ladei_tree_out_in_row(&run->tree->outs[i])) node->after.list[count++] = (ladei_tree_position){node->depth, i};
  node_inputs_fill(run, context, node);
  node_outputs_fill(run, node);
  node->hash = ladei_tree_hash(&run->tree->core, &run->call);
  node->alone_bytes = context->pool_use.bytes;
  return node;
}

/* The positions that the parent's recording left alive and that are dead now. */
static bool dead_before_take(const lade_graph_tree *tree, ladei_tree_positions *out) {
  const ladei_tree_node *parent = ladei_tree_current(&tree->core);
  *out = (ladei_tree_positions){NULL, 0};
  if (parent == NULL) return true;
  out->list = calloc((size_t)parent->after.count + 1, sizeof *out->list);
  if (out->list == NULL) return false;
  out->count = dead_list(&tree->core.path, parent->after.list, parent->after.count, out->list);
  return true;
}

static int range_compare(const void *a, const void *b) {
  uint64_t x = (uint64_t)(uintptr_t)((const lade_device_range *)a)->address;
  uint64_t y = (uint64_t)(uintptr_t)((const lade_device_range *)b)->address;
  return (x > y) - (x < y);
}

static size_t ranges_merge(lade_device_range *ranges, size_t count) {
  size_t kept = 0;
  if (count > 0) qsort(ranges, count, sizeof *ranges, range_compare);
  for (size_t i = 0; i < count; i++) {
    const char *begin = ranges[i].address;
    if (kept > 0 && begin <= (const char *)ranges[kept - 1].address + ranges[kept - 1].bytes) {
      size_t end = (size_t)(begin - (const char *)ranges[kept - 1].address) + ranges[i].bytes;
      if (end > ranges[kept - 1].bytes) ranges[kept - 1].bytes = end;
    } else {
      ranges[kept++] = ranges[i];
    }
  }
  return kept;
}

/* Ranges that the work may touch: those given to the body, or all of the pool if it also allocated by itself. */
static bool node_ranges_take(ladei_tree_run *run, ladei_tree_context *context, ladei_tree_node *node, bool exact) {
  const ladei_tree_segments *segments = &run->tree->segments;
  const lade_device_range *from = exact ? context->ranges : segments->list;
  size_t count = exact ? ranges_merge(context->ranges, context->range_count) : segments->count;
  node->used_ranges = calloc(count + 1, sizeof *node->used_ranges);
  if (node->used_ranges == NULL) return false;
  if (count > 0) memcpy(node->used_ranges, from, count * sizeof *from);
  node->used_range_count = count;
  node->metadata_bytes += (count + 1) * sizeof *node->used_ranges;
  return true;
}

/* ---- Recording --------------------------------------------------------------------------------------------------- */

static void node_discard(lade_graph_tree *tree, ladei_tree_node *node) {
  LADEI_ASIDE(ladei_tree_node_forget(tree, node));
}

static lade_status no_memory(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for a recording", call_name);
}

/* Builds a node of the captured graph, and gives it the graph. */
static lade_status node_build(ladei_tree_run *run, ladei_tree_context *context, ladei_tree_native *native,
                              const liveness *live, const ladei_tree_positions *dead_before, ladei_tree_node **out) {
  uint64_t driver_bytes = 0;
  lade_status status = instantiate(run, native, &driver_bytes);
  if (status != LADE_OK)
    return ladei_error_prefix(status, "%s: the graph of function %s: ", call_name, run->function->name);
  ladei_tree_context_settle(context);
  ladei_tree_node *node = node_make(run, context, live, dead_before);
  if (node == NULL || !node_ranges_take(run, context, node, context->range_count == context->pool_use.served)) {
    if (node != NULL) ladei_tree_node_free(node);
    return no_memory();
  }
  node->native = native;
  node->driver_bytes = driver_bytes;
  *out = node;
  return LADE_OK;
}

/* Takes a checkpoint of the pool after the recording. False: it failed, and the recording counts as a warm-up. */
static bool checkpoint_take(ladei_tree_run *run, ladei_tree_node *node) {
  lade_graph_tree *tree = run->tree;
  bool failed = (run->faults & LADEI_TREE_FAULT_CHECKPOINT_GET) != 0 ||
                lade_device_checkpoint_get(tree->allocator, tree->pool, &node->checkpoint) != LADE_OK;
  if (failed) {
    tree->stats.checkpoints_failed++;
  } else {
    size_t blocks = 0;
    node->metadata_bytes += ladei_device_native_checkpoint_bytes(node->checkpoint, &blocks);
    node->checkpoint_blocks = blocks;
  }
  return !failed;
}

static void driver_limit_keep(lade_graph_tree *tree) {
  uint64_t most = tree->core.settings.max_driver_bytes;
  while (most > 0 && tree->core.driver_bytes > most) {
    ladei_tree_node *leaf = ladei_tree_leaf(&tree->core, true);
    if (leaf == NULL) return;
    ladei_tree_node_evict(tree, leaf);
    tree->stats.evictions++;
  }
}

static void record_commit(ladei_tree_run *run, ladei_tree_node *node, ladei_tree_group *group, bool listed) {
  lade_graph_tree *tree = run->tree;
  if (run->end_open) ladei_tree_end_commit(run);
  assert(!node->listed && node->native != NULL);
  tree->stats.recordings++;
  if (!listed) { /* the launch is under way; the driver ends the exec after it */
    node_discard(tree, node);
    ladei_tree_commit(run, NULL, LADE_GRAPH_STATE_WARMUP);
    return;
  }
  node->id = tree->core.next_node++;
  node->used = tree->core.runs;
  ladei_tree_node_list(&tree->core, node, group);
  tree->metadata_bytes += node->metadata_bytes;
  tree->alone_bytes += node->alone_bytes;
  tree->checkpoint_blocks += node->checkpoint_blocks;
  ladei_tree_commit(run, node, LADE_GRAPH_STATE_RECORDING);
  driver_limit_keep(tree);
}

static lade_status record_run(ladei_tree_run *run, ladei_tree_group *group) {
  lade_graph_tree *tree = run->tree;
  ladei_tree_context context;
  ladei_tree_native *native = calloc(1, sizeof *native);
  ladei_tree_node *node = NULL;
  bool end_stands = false;
  ladei_tree_positions dead_before = {NULL, 0}; /* both are taken before the body, which may drop inputs */
  liveness live = {NULL, 0};
  bool room = native != NULL && dead_before_take(tree, &dead_before) && liveness_take(tree, &live);
  lade_status status = ladei_tree_context_open(&context, run, LADE_GRAPH_STAGE_RECORD, tree->stream.handle);
  if (status == LADE_OK && !room) status = no_memory();
  if (status == LADE_OK) {
    ladei_tree_pool_use_begin(tree, &context.pool_use);
    status = record_body(run, &context, native);
    ladei_tree_pool_use_end(tree, &context.pool_use);
    if (status == LADE_OK) status = node_build(run, &context, native, &live, &dead_before, &node);
  }
  if (node == NULL) ladei_tree_native_drop(tree, native);
  free(dead_before.list);
  free(live.before);
  bool listed = status == LADE_OK && checkpoint_take(run, node);
  if (status == LADE_OK) {
    end_stands = true;
    status = ladei_tree_copy_inputs(run, node);
    if (status == LADE_OK) status = ladei_tree_launch(run, node);
  }
  if (status == LADE_OK) {
    record_commit(run, node, group, listed);
  } else {
    if (node != NULL) node_discard(tree, node);
    record_undo(run, &context, end_stands);
  }
  ladei_tree_context_close(&context);
  return status;
}

/* Makes the group, with room for one more recording, since this must not fail later. */
static lade_status record_prepare(ladei_tree_run *run, ladei_tree_group **out) {
  lade_graph_tree *tree = run->tree;
  ladei_tree_node *behind = run->plan.ended != LADE_GRAPH_ENDED_NOT ? NULL : ladei_tree_current(&tree->core);
  *out = ladei_tree_group_make(&tree->core, behind, run->call.instance);
  if (*out == NULL || !ladei_tree_group_reserve(&tree->core, *out)) return no_memory();
  return LADE_OK;
}

static void refused_offer(lade_graph_tree *tree) { LADEI_ASIDE((void)ladei_tree_refused_drop(tree)); }

lade_status ladei_tree_record(ladei_tree_run *run) {
  lade_graph_tree *tree = run->tree;
  ladei_tree_group *group = NULL;
  lade_graph_ended ended = run->plan.ended;
  bool owned = run->was == LADE_GRAPH_STATE_RECORDING || run->was == LADE_GRAPH_STATE_WARMUP;
  assert(!run->end_open && run->before == NULL);
  run->plan.ended = LADE_GRAPH_ENDED_NOT;
  if (tree->refused != NULL) refused_offer(tree);
  if (owned && lade_device_checkpoint_get(tree->allocator, tree->pool, &run->before) != LADE_OK) {
    run->plan.ended = ended;
    return ladei_tree_eager(run, LADE_GRAPH_REASON_CHECKPOINT); /* no recording without a roll-back */
  }
  run->plan.ended = ended;
  lade_status status = record_prepare(run, &group);
  if (status != LADE_OK) run->plan.ended = LADE_GRAPH_ENDED_NOT;
  if (status == LADE_OK && ended != LADE_GRAPH_ENDED_NOT) {
    status = ladei_tree_path_end(run);
    if (status != LADE_OK) run->plan.ended = LADE_GRAPH_ENDED_NOT;
  }
  if (status == LADE_OK && run->plan.evict != NULL) {
    run->evicted = run->plan.evict->id;
    tree->stats.evictions++;
    ladei_tree_node_evict(tree, run->plan.evict);
  }
  if (status == LADE_OK && run->plan.counts) group->rerecords++;
  if (status == LADE_OK && run->plan.restore && ladei_tree_restore(run) != LADE_OK)
    status = ladei_tree_eager(run, LADE_GRAPH_REASON_CHECKPOINT);
  else if (status == LADE_OK)
    status = record_run(run, group);
  lade_device_checkpoint_destroy(run->before);
  run->before = NULL;
  return status;
}
