/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers, for any thread.
 *
 * Slots are read under the lock. During a run retains and releases are noted in the slot and take effect after it: the
 * run's decisions rely on the counts that it has read. So `held` computes the counts that remain after the run.
 */
#include <assert.h>
#include <stdio.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/thread.h"
#include "graph/tree/tree.h"

static uint64_t held(const ladei_tree_slot *slot) {
  assert((uint64_t)slot->counts + slot->retains >= (uint64_t)slot->takes + slot->releases);
  return (uint64_t)slot->counts - slot->takes + slot->retains - slot->releases;
}

static void end_text(const ladei_tree_slot *slot, char *text, size_t bytes) {
  static const char *const ends[] = {"was taken by a run under way", "was released", "was taken by run %llu",
                                     "belonged to a path that ended at a step's begin, in run %llu",
                                     "belonged to a path that ended in run %llu, as nothing of it was alive"};
  char how[128];
  uint32_t end = slot->storage == NULL ? slot->end : LADEI_TREE_END_NONE;
  switch (end) { /* formats are written out, so that the compiler sees them */
  case LADEI_TREE_END_TAKEN:
    (void)snprintf(how, sizeof how, "was taken by run %llu", (unsigned long long)slot->ended_by);
    break;
  case LADEI_TREE_END_BOUNDARY:
    (void)snprintf(how, sizeof how, "belonged to a path that ended at a step's begin, in run %llu",
                   (unsigned long long)slot->ended_by);
    break;
  case LADEI_TREE_END_FREED:
    (void)snprintf(how, sizeof how, "was freed by the body of run %llu", (unsigned long long)slot->ended_by);
    break;
  case LADEI_TREE_END_DEAD:
    (void)snprintf(how, sizeof how, "belonged to a path that ended in run %llu, as nothing of it was alive",
                   (unsigned long long)slot->ended_by);
    break;
  default: (void)snprintf(how, sizeof how, "%s", ends[end == LADEI_TREE_END_RELEASED]); break;
  }
  (void)snprintf(text, bytes, "output %u (tag %llu) of run %llu, step %llu, %s", slot->output,
                 (unsigned long long)slot->tag, (unsigned long long)slot->run, (unsigned long long)slot->step, how);
}

lade_status ladei_tree_buffer_error(const lade_graph_tree *tree, const char *call, lade_graph_buffer buffer,
                                    ladei_tree_found found, const ladei_tree_slot *slot, bool known) {
  (void)tree;
  if (buffer.slot == 0 && buffer.generation == 0)
    return ladei_error_argument(call, "buffer", "one that a run gave out", "{0, 0}");
  if (found == LADEI_TREE_FOREIGN)
    return ladei_error(LADE_ERR_FOREIGN_POINTER, 0, "%s: buffer {%u, %u} was not given out by this tree", call,
                       buffer.slot, buffer.generation);
  char text[256] = "it is gone for long";
  if (known || found == LADEI_TREE_VALID) end_text(slot, text, sizeof text);
  return ladei_error(LADE_ERR_OVERWRITTEN, 0, "%s: buffer {%u, %u} is not valid any more: %s", call, buffer.slot,
                     buffer.generation, text);
}

/* Finds a valid buffer, and returns with the lock held; otherwise without it, and with the error. */
static lade_status buffer_lock(lade_graph_tree *tree, const char *call, lade_graph_buffer buffer, bool counted,
                               ladei_tree_slot **out) {
  if (tree == NULL) return ladei_error_null(call, "tree");
  LADEI_TRY(ladei_runtime_check_process(tree->runtime));
  bool known = false;
  ladei_tree_slot *slot = NULL;
  ladei_lock_acquire(&tree->lock);
  ladei_tree_found found = ladei_tree_slot_find(&tree->core, buffer, &slot, &known);
  if (found == LADEI_TREE_VALID && !slot->storage->lost && slot->counts > 0 && (!counted || held(slot) > 0)) {
    *out = slot;
    return LADE_OK;
  }
  ladei_tree_slot copy = {0};
  if (slot != NULL) copy = *slot;
  ladei_lock_release(&tree->lock);
  return ladei_tree_buffer_error(tree, call, buffer, found, &copy, known);
}

static void slot_queue(lade_graph_tree *tree, ladei_tree_slot *slot) {
  ladei_lock_assert_held(&tree->lock);
  if (slot->queued) return;
  slot->queued = true;
  slot->queue_next = NULL;
  *tree->queue_end = slot;
  tree->queue_end = &slot->queue_next;
}

/* Applies the notes: now, or when the owner leaves. Releases the lock. */
static void queue_settle(lade_graph_tree *tree) {
  ladei_lock_assert_held(&tree->lock);
  if (tree->owned) {
    ladei_lock_release(&tree->lock);
    return;
  }
  ladei_tree_own_locked(tree);
  ladei_tree_leave_locked(tree);
}

lade_status lade_graph_buffer_get(lade_graph_tree *tree, lade_graph_buffer buffer, void **out_address,
                                  size_t *out_bytes) {
  ladei_tree_slot *slot = NULL;
  LADEI_TRY(buffer_lock(tree, __func__, buffer, false, &slot));
  if (out_address != NULL) *out_address = (void *)(uintptr_t)slot->address;
  if (out_bytes != NULL) *out_bytes = slot->bytes;
  ladei_lock_release(&tree->lock);
  return LADE_OK;
}

lade_status lade_graph_buffer_retain(lade_graph_tree *tree, lade_graph_buffer buffer) {
  ladei_tree_slot *slot = NULL;
  LADEI_TRY(buffer_lock(tree, __func__, buffer, true, &slot));
  if (held(slot) + slot->releases >= UINT32_MAX / 2) {
    ladei_lock_release(&tree->lock);
    return ladei_error(LADE_ERR_LIMIT, 0, "%s: buffer {%u, %u} has 2^31 counts", __func__, buffer.slot,
                       buffer.generation);
  }
  slot->retains++;
  slot_queue(tree, slot);
  queue_settle(tree);
  return LADE_OK;
}

lade_status lade_graph_buffer_release(lade_graph_tree *tree, lade_graph_buffer buffer) {
  ladei_tree_slot *slot = NULL;
  if (tree == NULL) return ladei_error_null(__func__, "tree");
  atomic_fetch_add_explicit(&tree->releasing, 1, memory_order_relaxed);
  lade_status status = buffer_lock(tree, __func__, buffer, true, &slot);
  if (status == LADE_OK) {
    slot->releases++;
    slot_queue(tree, slot);
    queue_settle(tree);
  }
  atomic_fetch_sub_explicit(&tree->releasing, 1, memory_order_release);
  return status;
}

lade_status lade_graph_buffer_record_stream(lade_graph_tree *tree, lade_graph_buffer buffer, lade_stream stream) {
  ladei_tree_slot *slot = NULL;
  ladei_stream resolved;
  LADEI_TRY(buffer_lock(tree, __func__, buffer, true, &slot));
  bool outside = slot->storage->outside;
  void *address = (void *)(uintptr_t)slot->address;
  ladei_lock_release(&tree->lock);
  LADEI_TRY(ladei_tree_ops(tree)->stream_resolve(tree->runtime->self, stream, &resolved));
  if (resolved.device != tree->device)
    return ladei_error_argument(__func__, "stream", "one of the tree's device", "of device %d", resolved.device);
  int cancellation = ladei_cancellation_hold(); /* a cancelled thread would leak the event */
  lade_status status =
      outside ? lade_device_record_stream(tree->outside, address, stream) : ladei_tree_order_note(tree, &resolved);
  ladei_cancellation_resume(cancellation);
  return status;
}
