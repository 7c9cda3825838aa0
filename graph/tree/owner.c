/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that owns the tree.
 *
 *   free --enter--> owned --leave: queued counts take effect, memory without counts is freed--> free
 *
 * A thread that owns a tree does not wait for another tree: two threads, each in a callback of the tree that the other
 * one wants, would wait for ever. Its call is refused if another thread owns that tree.
 */
#include <assert.h>

#include "base/error.h"
#include "base/thread.h"
#include "device/for_graphs.h"
#include "graph/tree/tree.h"

/* ---- Entering ---------------------------------------------------------------------------------------------------- */

static lade_status tree_check(const lade_graph_tree *tree, const char *call) {
  return tree == NULL ? ladei_error_null(call, "tree") : ladei_runtime_check_process(tree->runtime);
}

static lade_status busy_inside(const char *call) {
  return ladei_error(LADE_ERR_BUSY, 0, "%s: called from within a body or callback of the tree", call);
}

static lade_status busy_elsewhere(const char *call) {
  return ladei_error(
      LADE_ERR_BUSY, 0,
      "%s: another thread is in a call of the tree, and the caller in a body or callback of another tree: "
      "waiting there could last for ever",
      call);
}

/* This thread has the tree to itself. */
static void owned_assert(const lade_graph_tree *tree) {
  assert(tree->owned && tree->owner == ladei_thread_number());
  (void)tree;
}

void ladei_tree_own_locked(lade_graph_tree *tree) {
  ladei_lock_assert_held(&tree->lock);
  assert(!tree->owned);
  tree->owned = true;
  tree->owner = ladei_thread_number();
  ladei_thread.trees++;
}

lade_status ladei_tree_enter(lade_graph_tree *tree, const char *call) {
  LADEI_TRY(tree_check(tree, call));
  uint64_t self = ladei_thread_number();
  ladei_lock_acquire(&tree->lock);
  bool inside = tree->owned && tree->owner == self;
  while (tree->owned && !inside && ladei_thread.trees == 0) ladei_condition_wait(&tree->left, &tree->lock);
  bool free = !tree->owned;
  if (free) ladei_tree_own_locked(tree);
  ladei_lock_release(&tree->lock);
  return free ? LADE_OK : inside ? busy_inside(call) : busy_elsewhere(call);
}

static bool is_inside(lade_graph_tree *tree) {
  ladei_lock_acquire(&tree->lock);
  bool inside = tree->owned && tree->owner == ladei_thread_number();
  ladei_lock_release(&tree->lock);
  return inside;
}

/* In a run of another tree requests go to that tree's pool, and its recording would miss this run's work. */
lade_status ladei_tree_enter_run(lade_graph_tree *tree, const char *call) {
  if (!ladei_thread.in_run) return ladei_tree_enter(tree, call);
  LADEI_TRY(tree_check(tree, call));
  if (is_inside(tree)) return busy_inside(call);
  return ladei_error(LADE_ERR_BUSY, 0, "%s: called from within a body or callback of a run of another tree", call);
}

lade_status ladei_tree_enter_reading(lade_graph_tree *tree, const char *call, bool *out_inside) {
  LADEI_TRY(tree_check(tree, call));
  *out_inside = is_inside(tree);
  return *out_inside ? LADE_OK : ladei_tree_enter(tree, call);
}

/* ---- While its pool is not suspended ----------------------------------------------------------------------------- */

bool ladei_tree_suspended(const lade_graph_tree *tree) {
  ladei_lock_assert_none_held();
  return ladei_device_pool_is_suspended(tree->allocator, tree->pool);
}

lade_status ladei_tree_awake_begin(const lade_graph_tree *tree, const char *call) {
  ladei_lock_assert_none_held();
  return ladei_device_launch_begin(tree->allocator, call, tree->memory);
}

void ladei_tree_awake_end(const lade_graph_tree *tree) { ladei_device_launch_end(tree->memory); }

/* ---- Effects delayed until the owner leaves ---------------------------------------------------------------------- */

/* Applies retains and releases of other threads, in the order of each slot's first one. With the lock. */
static void queue_apply(lade_graph_tree *tree) {
  ladei_lock_assert_held(&tree->lock);
  owned_assert(tree);
  while (tree->queue != NULL) {
    ladei_tree_slot *slot = tree->queue;
    assert(slot->queued);
    tree->queue = slot->queue_next;
    if (tree->queue == NULL) tree->queue_end = &tree->queue;
    slot->queue_next = NULL;
    slot->queued = false;
    ladei_tree_storage *storage = slot->storage;
    uint32_t retains = slot->retains, releases = slot->releases;
    slot->retains = slot->releases = 0;
    if (storage == NULL) continue; /* the run took it, or its path has ended */
    ladei_tree_count_add(&tree->core, slot, retains);
    ladei_tree_count_take(&tree->core, slot, releases < slot->counts ? releases : slot->counts);
    if (slot->counts > 0) continue;
    if (storage->counts == 0) ladei_tree_garbage_add(tree, storage);
    ladei_tree_slot_end(&tree->core, slot, LADEI_TREE_END_RELEASED);
  }
}

void ladei_tree_garbage_add(lade_graph_tree *tree, ladei_tree_storage *storage) {
  ladei_lock_assert_held(&tree->lock);
  assert(storage->counts == 0);
  if (!storage->has_block || storage->is_garbage) return;
  storage->is_garbage = true;
  storage->references++;
  storage->next = tree->garbage;
  tree->garbage = storage;
}

/* As the owner, without the lock. */
static void garbage_free(lade_graph_tree *tree, ladei_tree_storage *garbage) {
  ladei_lock_assert_none_held();
  owned_assert(tree);
  for (ladei_tree_storage *storage = garbage; storage != NULL; storage = storage->next)
    (void)ladei_device_free_kept(storage->outside ? tree->outside : tree->allocator,
                                 (void *)(uintptr_t)storage->address);
}

static void garbage_forget(lade_graph_tree *tree, ladei_tree_storage *garbage) {
  ladei_lock_assert_held(&tree->lock);
  for (ladei_tree_storage *storage = garbage, *next = NULL; storage != NULL; storage = next) {
    next = storage->next;
    assert(storage->is_garbage && storage->has_block && storage->counts == 0);
    storage->has_block = storage->is_garbage = false;
    ladei_tree_storage_unreference(&tree->core, storage);
  }
}

void ladei_tree_settle_locked(lade_graph_tree *tree) {
  ladei_lock_assert_held(&tree->lock);
  queue_apply(tree);
  while (tree->garbage != NULL) {
    ladei_tree_storage *garbage = tree->garbage;
    tree->garbage = NULL;
    ladei_lock_release(&tree->lock);
    garbage_free(tree, garbage);
    ladei_lock_acquire(&tree->lock);
    garbage_forget(tree, garbage);
    queue_apply(tree);
  }
}

/* ---- Leaving ----------------------------------------------------------------------------------------------------- */

void ladei_tree_leave_locked(lade_graph_tree *tree) {
  ladei_tree_settle_locked(tree);
  owned_assert(tree);
  assert(tree->queue == NULL && tree->ending.count == 0); /* T1, T3 */
  tree->owned = false;
  ladei_thread.trees--;
  ladei_lock_release(&tree->lock);
  ladei_condition_broadcast(&tree->left);
}

void ladei_tree_leave(lade_graph_tree *tree) {
  ladei_lock_acquire(&tree->lock);
  ladei_tree_leave_locked(tree);
}
