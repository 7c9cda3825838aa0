/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tree's life.
 *
 * A tree with valid buffers is not destroyed: their memory is the pool's. A function is freed with its last node, which
 * the path may hold longer than a list.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/cancellation.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/thread.h"
#include "device/for_graphs.h"
#include "graph/tree/tree.h"
#include "runtime/copies/copies.h"

enum { MOST_VALUES = 65535 };

static _Atomic(uint64_t) trees_made;

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

void ladei_tree_function_forget(lade_graph_function *function) {
  if (!function->removed || function->nodes > 0) return;
  while (function->instances != NULL) {
    ladei_tree_instance *instance = function->instances;
    function->instances = instance->next;
    free(instance);
  }
  free(function->input_flags);
  free(function->input_tags);
  free(function->output_tags);
  free(function);
}

static lade_status native_destroy(const lade_graph_tree *tree, ladei_tree_native *native) {
  const lade_runtime_ops *ops = ladei_tree_ops(tree);
  lade_status status = LADE_OK, graph = LADE_OK;
  if (native->exec != NULL) {
    ladei_capture_mode mode = ladei_capture_mode_relax(tree->allocator->runtime);
    status = ops->graph_exec_destroy(tree->runtime->self, native->exec);
    ladei_capture_mode_restore(tree->allocator->runtime, mode);
    if (status == LADE_OK) native->exec = NULL;
  }
  if (native->graph != NULL) graph = ops->graph_destroy(tree->runtime->self, native->graph);
  if (graph == LADE_OK) native->graph = NULL;
  return status != LADE_OK ? status : graph;
}

static lade_status native_offer(lade_graph_tree *tree, ladei_tree_native *native) {
  ladei_lock_assert_none_held();
  lade_status status = native_destroy(tree, native);
  if (status == LADE_OK) {
    free(native);
  } else {
    native->next = tree->refused;
    tree->refused = native;
  }
  return status;
}

void ladei_tree_native_drop(lade_graph_tree *tree, ladei_tree_native *native) {
  lade_error before;
  if (native == NULL) return;
  ladei_error_save(&before);
  (void)native_offer(tree, native);
  ladei_error_restore(&before);
}

lade_status ladei_tree_refused_drop(lade_graph_tree *tree) {
  lade_status result = LADE_OK;
  ladei_tree_native *list = tree->refused, *next;
  ladei_lock_assert_none_held();
  for (tree->refused = NULL; list != NULL; list = next) {
    next = list->next;
    lade_status status = native_offer(tree, list);
    if (result == LADE_OK) result = status;
  }
  return result;
}

static void node_destroy(lade_graph_tree *tree, ladei_tree_node *node) {
  lade_graph_function *function = node->instance->function;
  ladei_tree_native_drop(tree, node->native);
  lade_device_checkpoint_destroy(node->checkpoint);
  ladei_tree_node_free(node);
  ladei_tree_function_forget(function);
}

void ladei_tree_node_forget(lade_graph_tree *tree, ladei_tree_node *node) {
  while (node != NULL && !node->listed && !node->in_path && node->offspring == 0) {
    ladei_tree_node *parent = node->parent;
    node_destroy(tree, node);
    node = parent;
  }
}

void ladei_tree_node_evict(lade_graph_tree *tree, ladei_tree_node *node) {
  assert(tree->metadata_bytes >= node->metadata_bytes && tree->alone_bytes >= node->alone_bytes);
  tree->metadata_bytes -= node->metadata_bytes;
  tree->alone_bytes -= node->alone_bytes;
  tree->checkpoint_blocks -= node->checkpoint_blocks;
  ladei_tree_node_unlist(&tree->core, node);
  ladei_tree_node_forget(tree, node);
}

/* Evicts the recordings of a removed function, and their descendants. */
static void doomed_evict(lade_graph_tree *tree) {
  ladei_tree_core *core = &tree->core;
  for (ladei_tree_node *node = core->first_node; node != NULL; node = node->list_next) /* parents come first */
    node->doomed = node->doomed || node->instance->function->removed || (node->parent != NULL && node->parent->doomed);
  for (ladei_tree_node *node = core->last_node, *before = NULL; node != NULL; node = before) {
    before = node->list_before;
    if (node->doomed) ladei_tree_node_evict(tree, node);
  }
}

void ladei_tree_ending_clear(lade_graph_tree *tree) {
  ladei_tree_path *path = &tree->ending;
  size_t count = path->count;
  bool doomed = false;
  for (size_t i = 0; i < count; i++) {
    ladei_tree_node *node = path->entries[i].node;
    if (node != NULL && node->doomed && node->children > 0) doomed = true;
  }
  if (doomed) doomed_evict(tree);
  ladei_lock_acquire(&tree->lock);
  ladei_tree_path_clear(&tree->core, path);
  ladei_lock_release(&tree->lock);
  for (size_t i = count; i > 0; i--) { /* the cleared entries still exist; a node's parent is the entry before it */
    ladei_tree_entry entry = path->entries[i - 1];
    if (entry.node != NULL && !entry.node->listed && entry.node->offspring == 0) node_destroy(tree, entry.node);
    entry.function->nodes--;
    ladei_tree_function_forget(entry.function);
  }
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

static lade_status function_check(const lade_graph_function_options *options) {
  static const char call[] = "lade_graph_tree_function_add";
  if (options->body == NULL) return ladei_error_null(call, "options.body");
  if (options->mode > LADE_GRAPH_BACKWARD)
    return ladei_error_argument(call, "options.mode", "a lade_graph_mode", "%u", options->mode);
  if (options->input_count > MOST_VALUES || options->output_count > MOST_VALUES)
    return ladei_error_argument(
        call, options->input_count > MOST_VALUES ? "options.input_count" : "options.output_count", "at most 65,535",
        "%llu",
        (unsigned long long)(options->input_count > MOST_VALUES ? options->input_count : options->output_count));
  for (uint64_t i = 0; options->input_flags != NULL && i < options->input_count; i++)
    if ((options->input_flags[i] & ~(uint32_t)(LADE_GRAPH_STATIC | LADE_GRAPH_MUTATED)) != 0)
      return ladei_error_argument(call, "options.input_flags", "LADE_GRAPH_STATIC and LADE_GRAPH_MUTATED only", "0x%x",
                                  options->input_flags[i]);
  return LADE_OK;
}

static uint64_t *tags_copy(const uint64_t *tags, size_t count) {
  uint64_t *own = calloc(count + 1, sizeof *own);
  for (size_t i = 0; own != NULL && i < count; i++) own[i] = tags != NULL ? tags[i] : i;
  return own;
}

static lade_graph_function *function_make(lade_graph_tree *tree, const lade_graph_function_options *options) {
  lade_graph_function *function = calloc(1, sizeof *function);
  if (function == NULL) return NULL;
  function->tree = tree;
  function->body = options->body;
  function->user = options->user;
  function->mode = options->mode;
  function->input_count = (uint32_t)options->input_count;
  function->output_count = (uint32_t)options->output_count;
  function->input_flags = calloc(options->input_count + 1, sizeof *function->input_flags);
  function->input_tags = tags_copy(options->input_tags, options->input_count);
  function->output_tags = tags_copy(options->output_tags, options->output_count);
  if (options->name != NULL) (void)strncpy(function->name, options->name, sizeof function->name - 1);
  if (function->input_flags == NULL || function->input_tags == NULL || function->output_tags == NULL) {
    function->removed = true;
    ladei_tree_function_forget(function);
    return NULL;
  }
  for (size_t i = 0; options->input_flags != NULL && i < options->input_count; i++) {
    function->input_flags[i] = options->input_flags[i];
    function->mutates = function->mutates || (options->input_flags[i] & LADE_GRAPH_MUTATED) != 0;
  }
  return function;
}

#define GROW(array, count) grow((void **)&(array), (count), sizeof *(array))
static bool grow(void **array, size_t count, size_t bytes) {
  void *grown = realloc(*array, count * bytes);
  if (grown != NULL) *array = grown;
  return grown != NULL;
}

/* Room for a call of any function so far. */
static bool room_make(lade_graph_tree *tree, size_t inputs, size_t outputs, bool mutates) {
  if (mutates && inputs > tree->order_room) {
    ladei_sort_key *order = ladei_sort_keys_create(inputs);
    if (order == NULL) return false;
    free(tree->order);
    tree->order = order;
    tree->order_room = inputs;
  }
  if (inputs > tree->input_room) {
    if (!GROW(tree->inputs, inputs) || !GROW(tree->copies, inputs) || !GROW(tree->classes, inputs) ||
        !GROW(tree->carried, inputs) || !GROW(tree->carried_blocks, inputs))
      return false;
    tree->input_room = inputs;
  }
  if (outputs > tree->output_room) {
    if (!GROW(tree->outs, outputs) || !GROW(tree->values, outputs) || !GROW(tree->kinds, outputs)) return false;
    tree->output_room = outputs;
  }
  return true;
}

/* Inputs that replays may have to copy. */
static size_t copies_most(const lade_graph_function *function) {
  size_t most = 0;
  for (uint32_t i = 0; i < function->input_count; i++) most += (function->input_flags[i] & LADE_GRAPH_STATIC) == 0;
  return most;
}

lade_status lade_graph_tree_function_add(lade_graph_tree *tree, const lade_graph_function_options *options,
                                         lade_graph_function **out) {
  lade_graph_function_options own;
  if (out == NULL) return ladei_error_null(__func__, "out");
  if (options == NULL) return ladei_error_null(__func__, "options");
  lade_status status = ladei_options_read("lade_graph_function_options", options, &own, sizeof own);
  if (status == LADE_OK) status = ladei_options_reserved(__func__, "options.reserved", own.reserved);
  if (status == LADE_OK) status = function_check(&own);
  if (status == LADE_OK) status = ladei_tree_enter(tree, __func__);
  if (status != LADE_OK) return status;
  lade_graph_function *function = function_make(tree, &own);
  if (function == NULL || !room_make(tree, own.input_count + 1, own.output_count + 1, function->mutates)) {
    if (function != NULL) function->removed = true;
    if (function != NULL) ladei_tree_function_forget(function);
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for a function", __func__);
  } else {
    function->next = tree->functions;
    tree->functions = function;
    *out = function;
    ladei_copy_expect(tree->runtime, copies_most(function), &tree->stream);
  }
  ladei_tree_leave(tree);
  return status;
}

static bool function_take_out(lade_graph_tree *tree, const lade_graph_function *function) {
  for (lade_graph_function **link = &tree->functions; *link != NULL; link = &(*link)->next) {
    if (*link != function) continue;
    *link = function->next;
    return true;
  }
  return false;
}

static void groups_drop(ladei_tree_group **groups, const lade_graph_function *function) {
  for (ladei_tree_group **link = groups; *link != NULL;) {
    ladei_tree_group *group = *link;
    if (group->instance->function != function || group->count > 0) {
      link = &group->next;
      continue;
    }
    *link = group->next;
    free(group->buckets);
    free(group);
  }
}

static void function_remove(lade_graph_tree *tree, lade_graph_function *function) {
  ladei_tree_core *core = &tree->core;
  function->removed = true;
  function->nodes++;                              /* keeps it until the end of this function */
  for (size_t i = 0; i < core->path.count; i++) { /* unlisted nodes, too */
    ladei_tree_node *node = core->path.entries[i].node;
    bool own = core->path.entries[i].function == function;
    if (node != NULL && (own || (node->parent != NULL && node->parent->doomed))) node->doomed = true;
  }
  doomed_evict(tree);
  groups_drop(&core->roots, function);
  for (ladei_tree_node *node = core->first_node; node != NULL; node = node->list_next)
    groups_drop(&node->groups, function);
  for (size_t i = 0; i < core->path.count; i++)
    if (core->path.entries[i].node != NULL) groups_drop(&core->path.entries[i].node->groups, function);
  function->nodes--;
  ladei_tree_function_forget(function);
}

lade_status lade_graph_tree_function_remove(lade_graph_tree *tree, lade_graph_function *function) {
  if (function == NULL) return ladei_error_null(__func__, "function");
  lade_status status = ladei_tree_enter(tree, __func__);
  if (status != LADE_OK) return status;
  int cancellation = ladei_cancellation_hold();
  if (function_take_out(tree, function))
    function_remove(tree, function);
  else
    status = ladei_error_argument(__func__, "function", "one of the tree", "%p", (void *)function);
  ladei_tree_leave(tree);
  ladei_cancellation_resume(cancellation);
  return status;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

lade_status lade_graph_tree_step(lade_graph_tree *tree) {
  LADEI_TRY(ladei_tree_enter(tree, __func__));
  tree->core.marks++;
  ladei_tree_leave(tree);
  return LADE_OK;
}

lade_status lade_graph_tree_backward_done(lade_graph_tree *tree) {
  LADEI_TRY(ladei_tree_enter(tree, __func__));
  tree->core.pending = false;
  ladei_tree_leave(tree);
  return LADE_OK;
}

lade_status ladei_tree_fail_next(lade_graph_tree *tree, uint32_t faults) {
  if ((faults & ~(uint32_t)(2 * LADEI_TREE_FAULT_LAUNCH - 1)) != 0)
    return ladei_error_argument(__func__, "faults", "LADEI_TREE_FAULT_... flags only", "0x%x", faults);
  LADEI_TRY(ladei_tree_enter(tree, __func__));
  tree->faults |= faults;
  ladei_tree_leave(tree);
  return LADE_OK;
}

lade_status lade_graph_tree_log_set(lade_graph_tree *tree, lade_graph_log log, void *user, lade_graph_log_level level) {
  if ((unsigned)level > LADE_GRAPH_LOG_ALL)
    return ladei_error_argument(__func__, "level", "a lade_graph_log_level", "%d", (int)level);
  LADEI_TRY(ladei_tree_enter(tree, __func__));
  tree->log = log;
  tree->log_user = user;
  tree->log_level = log == NULL ? LADE_GRAPH_LOG_OFF : level;
  tree->core.every_candidate = tree->log_level == LADE_GRAPH_LOG_ALL;
  ladei_tree_leave(tree);
  return LADE_OK;
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static lade_status options_check(const lade_device_allocator *allocator, const lade_graph_tree_options *options) {
  static const char call[] = "lade_graph_tree_create";
  if ((options->flags & ~(uint32_t)LADE_GRAPH_TREE_FIXED_STATICS) != 0)
    return ladei_error_argument(call, "options.flags", "LADE_GRAPH_TREE_... flags only", "0x%x", options->flags);
  if (options->outside != NULL &&
      (options->outside->runtime != allocator->runtime || options->outside->device != allocator->device))
    return ladei_error_argument(call, "options.outside", "an allocator of the same runtime and device", "of device %d",
                                options->outside->device);
  if (!allocator->backend->has_heap)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: backend %s has no private pools", call, allocator->backend->name);
  if (allocator->runtime->ops->capture_begin == NULL)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: runtime %s has no graphs", call, allocator->runtime->ops->name);
  return LADE_OK;
}

static void settings_take(lade_graph_tree *tree, const lade_graph_tree_options *options) {
  enum { DEFAULT_RERECORDS = 128 };
  ladei_tree_settings *settings = &tree->core.settings;
  settings->warmups = options->warmups == 0 ? 1 : options->warmups == LADE_GRAPH_NONE ? 0 : options->warmups;
  settings->max_nodes = options->max_nodes;
  settings->max_rerecords = options->max_rerecords == 0                 ? DEFAULT_RERECORDS
                            : options->max_rerecords == LADE_GRAPH_NONE ? 0
                                                                        : options->max_rerecords;
  settings->max_driver_bytes = options->max_driver_bytes;
  settings->fixed_statics = (options->flags & LADE_GRAPH_TREE_FIXED_STATICS) != 0;
  tree->before = options->before;
  tree->after = options->after;
  tree->hook_user = options->user;
}

static lade_status pool_take(lade_graph_tree *tree, lade_device_pool_id id) {
  if (id.first == 0 && id.second == 0) return lade_device_pool_create(tree->allocator, NULL, &tree->pool);
  tree->pool = id;
  return ladei_device_private_pool_hold(tree->allocator, "lade_graph_tree_create", id);
}

static lade_status stream_make(lade_graph_tree *tree) {
  lade_stream stream = NULL;
  LADEI_TRY(lade_stream_create(tree->runtime, tree->device, &stream));
  lade_status status = ladei_tree_ops(tree)->stream_resolve(tree->runtime->self, stream, &tree->stream);
  if (status != LADE_OK) (void)lade_stream_destroy(tree->runtime, stream);
  return status;
}

static void tree_free(lade_graph_tree *tree) {
  ladei_tree_core_free(&tree->core);
  ladei_tree_path_free(&tree->ending);
  void *const rooms[] = {tree->inputs,         tree->copies, tree->classes, tree->carried, tree->kinds,
                         tree->carried_blocks, tree->outs,   tree->values,  tree->lost,    tree->lost_list,
                         tree->segments.list,  tree->noted,  tree->order};
  for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) free(rooms[i]);
  ladei_condition_destroy(&tree->left);
  ladei_lock_destroy(&tree->lock);
  free(tree);
}

static lade_status tree_open(lade_graph_tree *tree, const lade_graph_tree_options *options) {
  LADEI_TRY(ladei_runtime_acquire(tree->runtime));
  lade_status status = ladei_event_pool_create(tree->runtime, &tree->events);
  if (status != LADE_OK) goto fail_runtime;
  status = stream_make(tree);
  if (status != LADE_OK) goto fail_events;
  status = pool_take(tree, options->pool);
  if (status != LADE_OK) goto fail_stream;
  tree->memory = ladei_device_pool_visit(tree->allocator, tree->pool);
  status = ladei_tree_pool_own(tree);
  if (status != LADE_OK) goto fail_pool;
  ladei_device_allocator_acquire(tree->allocator);
  ladei_device_allocator_acquire(tree->outside);
  return LADE_OK;
fail_pool:
  ladei_device_pool_leave(tree->allocator, tree->memory);
  (void)lade_device_pool_release(tree->allocator, tree->pool);
fail_stream:
  (void)lade_stream_destroy(tree->runtime, tree->stream.handle);
fail_events:
  (void)ladei_event_pool_destroy(tree->events);
fail_runtime:
  ladei_runtime_release(tree->runtime);
  return status;
}

lade_status lade_graph_tree_create(lade_device_allocator *allocator, const lade_graph_tree_options *options,
                                   lade_graph_tree **out) {
  lade_graph_tree_options own;
  if (allocator == NULL) return ladei_error_null(__func__, "allocator");
  if (out == NULL) return ladei_error_null(__func__, "out");
  lade_status status = ladei_runtime_check_process(allocator->runtime);
  if (status == LADE_OK) status = ladei_options_read("lade_graph_tree_options", options, &own, sizeof own);
  if (status == LADE_OK) status = ladei_options_reserved(__func__, "options.reserved", own.reserved);
  if (status == LADE_OK) status = options_check(allocator, &own);
  if (status != LADE_OK) return status;
  lade_graph_tree *tree = calloc(1, sizeof *tree);
  if (tree == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for a tree", __func__);
  tree->allocator = allocator;
  tree->outside = own.outside != NULL ? own.outside : allocator;
  tree->runtime = allocator->runtime;
  tree->device = allocator->device;
  ladei_lock_init(&tree->lock, LADEI_RANK_TREE);
  ladei_condition_init(&tree->left);
  tree->queue_end = &tree->queue;
  ladei_tree_core_init(&tree->core, atomic_fetch_add_explicit(&trees_made, 1, memory_order_relaxed));
  settings_take(tree, &own);
  int cancellation = ladei_cancellation_hold();
  status = tree_open(tree, &own);
  ladei_cancellation_resume(cancellation);
  if (status != LADE_OK) {
    tree_free(tree);
    return status;
  }
  *out = tree;
  return LADE_OK;
}

/* ---- Destruction ------------------------------------------------------------------------------------------------- */

/* With the lock, as the owner. Waits until no buffer is valid; false: some still are. */
static bool buffers_await(lade_graph_tree *tree, bool wait) {
  ladei_lock_assert_held(&tree->lock);
  while (tree->core.slots.valid_count > 0 && wait) {
    ladei_tree_leave_locked(tree);
    ladei_lock_acquire(&tree->lock);
    while (tree->owned || tree->core.slots.valid_count > 0) {
      if (!tree->owned && tree->core.slots.valid_count == 0) break;
      ladei_condition_wait(&tree->left, &tree->lock);
    }
    ladei_tree_own_locked(tree);
  }
  return tree->core.slots.valid_count == 0;
}

/* Orders the tree's stream after all runs, then waits for it or queries it; a lost device needs no wait. */
static lade_status work_await(lade_graph_tree *tree, bool wait) {
  lade_status status = ladei_tree_order_before(tree, &tree->stream);
  if (status == LADE_OK) ladei_tree_order_commit(tree, &tree->stream);
  if (status == LADE_OK)
    status = wait ? ladei_stream_wait(tree->runtime, &tree->stream) : ladei_stream_ask(tree->runtime, &tree->stream);
  return status == LADE_ERR_DEVICE_LOST ? LADE_OK : status;
}

static void functions_remove(lade_graph_tree *tree) {
  while (tree->functions != NULL) {
    lade_graph_function *function = tree->functions;
    tree->functions = function->next;
    function_remove(tree, function);
  }
}

/* Gives back all that the driver may refuse: recordings, and the stream. After a refusal the tree still exists. */
static lade_status driver_close(lade_graph_tree *tree) {
  assert(tree->core.slots.valid_count == 0); /* no handle names memory of the pool */
  ladei_tree_path_leave(&tree->core, &tree->ending);
  ladei_tree_ending_clear(tree);
  tree->core.state = LADE_GRAPH_STATE_NONE;
  functions_remove(tree);
  LADEI_TRY(ladei_tree_refused_drop(tree));
  (void)lade_device_stream_retire(tree->allocator, tree->stream.handle); /* does nothing on a lost device */
  return lade_stream_destroy(tree->runtime, tree->stream.handle);
}

static void tree_close(lade_graph_tree *tree) {
  assert(tree->core.node_count == 0 && tree->functions == NULL && tree->refused == NULL);
  assert(tree->garbage == NULL && tree->queue == NULL);
  ladei_tree_awake_end(tree);
  ladei_tree_pool_disown(tree);
  (void)lade_device_pool_release(tree->allocator, tree->pool);
  ladei_device_pool_leave(tree->allocator, tree->memory);
  ladei_tree_order_forget(tree);
  (void)ladei_event_pool_destroy(tree->events);
  ladei_runtime_release(tree->runtime);
  ladei_device_allocator_release(tree->outside);
  ladei_device_allocator_release(tree->allocator);
}

lade_status lade_graph_tree_destroy(lade_graph_tree *tree, bool wait) {
  if (tree == NULL) return LADE_OK;
  LADEI_TRY(ladei_tree_enter(tree, __func__));
  int cancellation = ladei_cancellation_hold();
  lade_status status = ladei_tree_awake_begin(tree, __func__);
  if (status == LADE_OK) ladei_tree_awake_end(tree); /* it may wait for buffers */
  ladei_lock_acquire(&tree->lock);
  if (status == LADE_OK && !buffers_await(tree, wait && ladei_thread.trees == 1))
    status =
        ladei_error(LADE_ERR_BUSY, 0, "%s: %zu buffers of the tree are valid", __func__, tree->core.slots.valid_count);
  ladei_lock_release(&tree->lock);
  if (status == LADE_OK)
    status = ladei_tree_awake_begin(tree, __func__); /* its pool may have been suspended meanwhile */
  if (status == LADE_OK) {
    ladei_lock_acquire(&tree->lock);
    ladei_tree_settle_locked(tree); /* what was released meanwhile; the pool stays from here on */
    ladei_lock_release(&tree->lock);
    status = work_await(tree, wait);
    if (status == LADE_OK) status = driver_close(tree);
    if (status != LADE_OK) ladei_tree_awake_end(tree);
  }
  if (status != LADE_OK) {
    ladei_tree_leave(tree);
  } else {
    ladei_backoff backoff = {0};
    while (atomic_load_explicit(&tree->releasing, memory_order_acquire) > 0) ladei_backoff_wait(&backoff);
    tree_close(tree);
    tree_free(tree);
    ladei_thread.trees--;
  }
  ladei_cancellation_resume(cancellation);
  return status;
}
