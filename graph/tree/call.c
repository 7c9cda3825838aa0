/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a call's inputs, and reads them into the tree's own list.
 *
 * Errors of form are reported before a buffer that is no longer valid. Takes and lends are counted in the slots and
 * storages that they name, until the run ends.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "graph/tree/tree.h"

static const char call_name[] = "lade_graph_tree_run";

/* ---- Instances --------------------------------------------------------------------------------------------------- */

static bool key_equals(const ladei_tree_instance *instance, const uint64_t *key, size_t count) {
  if (instance->key_count != count) return false;
  for (size_t i = 0; i < count; i++)
    if (instance->key[i] != key[i]) return false;
  return true;
}

lade_status ladei_tree_instance_get(lade_graph_function *function, const lade_graph_call *call,
                                    ladei_tree_instance **out) {
  for (ladei_tree_instance **link = &function->instances; *link != NULL; link = &(*link)->next) {
    ladei_tree_instance *instance = *link;
    if (!key_equals(instance, call->key, call->key_count)) continue;
    *link = instance->next; /* to the front */
    instance->next = function->instances;
    function->instances = *out = instance;
    return LADE_OK;
  }
  ladei_tree_instance *instance = calloc(1, sizeof *instance + call->key_count * sizeof *instance->key);
  if (instance == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for a key", call_name);
  instance->function = function;
  instance->key_count = call->key_count;
  if (call->key_count > 0) memcpy(instance->key, call->key, call->key_count * sizeof *instance->key);
  instance->next = function->instances;
  function->instances = *out = instance;
  return LADE_OK;
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------ */

static lade_status memory_read(const lade_graph_tree *tree, size_t index, const lade_graph_value *value,
                               ladei_tree_input *out) {
  size_t end;
  if (value->address == NULL || value->bytes == 0 || value->bytes >= LADEI_SIZE_LIMIT ||
      !ladei_size_add((size_t)(uintptr_t)value->address, value->bytes, &end))
    return ladei_error_argument(call_name, "call.inputs", "memory of 1 byte to 2^60 - 1",
                                "input %zu of %llu bytes at %p", index, (unsigned long long)value->bytes,
                                value->address);
  out->address = (uint64_t)(uintptr_t)value->address;
  out->bytes = value->bytes;
  out->slot = NULL;
  out->storage = NULL;
  if (!ladei_tree_pool_has(tree, out->address, out->bytes)) return LADE_OK;
  return ladei_error_argument(call_name, "call.inputs", "a buffer, or memory outside of the tree's pool",
                              "input %zu at %p, in the pool", index, value->address);
}

/* A stale buffer leaves out->slot NULL; *stale becomes the index of the first one. */
static lade_status buffer_read(const lade_graph_tree *tree, size_t index, const lade_graph_value *value,
                               ladei_tree_input *out, size_t *stale) {
  bool known = false;
  ladei_tree_slot *slot = NULL;
  ladei_tree_found found = ladei_tree_slot_find(&tree->core, value->buffer, &slot, &known);
  out->slot = NULL;
  out->storage = NULL;
  if (found == LADEI_TREE_FOREIGN) return ladei_tree_buffer_error(tree, call_name, value->buffer, found, NULL, false);
  if (found == LADEI_TREE_STALE) {
    if (*stale > index) *stale = index;
    return LADE_OK;
  }
  if (value->bytes != 0 && value->bytes != slot->bytes)
    return ladei_error_argument(call_name, "call.inputs", "a buffer's bytes, or 0", "input %zu with %llu bytes of %llu",
                                index, (unsigned long long)value->bytes, (unsigned long long)slot->bytes);
  out->address = slot->address;
  out->bytes = slot->bytes;
  out->slot = slot;
  out->storage = slot->storage;
  out->taken = value->kind == LADE_GRAPH_BUFFER_TAKEN;
  slot->storage->inputs++;
  if (out->taken) {
    slot->takes++;
    slot->storage->takes++;
  } else {
    slot->lends++;
  }
  return LADE_OK;
}

static lade_status input_read(const lade_graph_tree *tree, size_t index, const lade_graph_value *value,
                              ladei_tree_input *out, size_t *stale) {
  out->taken = out->carried = false;
  if (value->kind == LADE_GRAPH_MEMORY) return memory_read(tree, index, value, out);
  if (value->kind == LADE_GRAPH_BUFFER || value->kind == LADE_GRAPH_BUFFER_TAKEN)
    return buffer_read(tree, index, value, out, stale);
  return ladei_error_argument(call_name, "call.inputs", "LADE_GRAPH_MEMORY, _BUFFER or _BUFFER_TAKEN",
                              "input %zu of kind %u", index, value->kind);
}

static lade_status takes_check(const ladei_tree_call *call) {
  for (size_t i = 0; i < call->count; i++) {
    const ladei_tree_slot *slot = call->inputs[i].slot;
    if (slot == NULL || slot->takes == 0) continue;
    if (slot->takes > slot->counts || (slot->takes == slot->counts && slot->lends > 0))
      return ladei_error_argument(call_name, "call.inputs",
                                  "a buffer taken as often as it is held, less one if lent too",
                                  "input %zu, taken %u times, held %u times", i, slot->takes, slot->counts);
  }
  return LADE_OK;
}

static lade_status touching(size_t mutated, size_t other) {
  return ladei_error_argument(call_name, "call.inputs", "a mutated input that is no other input, too",
                              "input %zu, which is input %zu", mutated, other);
}

static bool is_mutated(const ladei_tree_input *input) { return (input->flags & LADE_GRAPH_MUTATED) != 0; }

static lade_status storages_check(const ladei_tree_call *call) {
  for (size_t i = 0; i < call->count; i++) {
    const ladei_tree_storage *storage = call->inputs[i].storage;
    if (!is_mutated(&call->inputs[i]) || storage == NULL || storage->inputs == 1) continue;
    size_t other = 0;
    while (other == i || call->inputs[other].storage != storage) other++;
    return touching(i, other);
  }
  return LADE_OK;
}

/* By address: compares each input with the farthest reaching one before it, and with the last mutated one. */
static lade_status ranges_check(lade_graph_tree *tree, const ladei_tree_call *call) {
  const ladei_tree_input *inputs = call->inputs;
  size_t reach = SIZE_MAX, mutated = SIZE_MAX;
  for (size_t i = 0; i < call->count; i++) tree->order[i] = (ladei_sort_key){inputs[i].address, i};
  ladei_sort_keys(tree->order, call->count, tree->order_room);
  for (size_t k = 0; k < call->count; k++) {
    size_t i = (size_t)tree->order[k].index;
    uint64_t begin = inputs[i].address, end = begin + inputs[i].bytes;
    if (is_mutated(&inputs[i]) && reach != SIZE_MAX && inputs[reach].address + inputs[reach].bytes > begin)
      return touching(i, reach);
    if (mutated != SIZE_MAX && inputs[mutated].address + inputs[mutated].bytes > begin) return touching(mutated, i);
    if (reach == SIZE_MAX || end > inputs[reach].address + inputs[reach].bytes) reach = i;
    if (is_mutated(&inputs[i])) mutated = i; /* it begins after the end of the one before */
  }
  return LADE_OK;
}

static lade_status mutated_check(lade_graph_tree *tree, const ladei_tree_call *call) {
  lade_status status = storages_check(call);
  return status == LADE_OK ? ranges_check(tree, call) : status;
}

void ladei_tree_call_reset(lade_graph_tree *tree, const ladei_tree_call *call) {
  ladei_lock_assert_held(&tree->lock); /* other threads read takes */
  for (size_t i = 0; i < call->count; i++) {
    const ladei_tree_input *input = &call->inputs[i];
    if (input->slot != NULL) input->slot->takes = input->slot->lends = 0;
    if (input->storage != NULL) input->storage->takes = input->storage->inputs = 0;
  }
}

static lade_status inputs_read(lade_graph_tree *tree, const lade_graph_function *function, const lade_graph_call *call,
                               ladei_tree_call *out) {
  size_t stale = function->input_count;
  ladei_lock_assert_held(&tree->lock);
  assert(function->input_count <= tree->input_room);
  lade_status status = LADE_OK;
  for (size_t i = 0; i < function->input_count && status == LADE_OK; i++) {
    tree->inputs[i].flags = function->input_flags[i];
    status = input_read(tree, i, &call->inputs[i], &tree->inputs[i], &stale);
    if (status == LADE_OK) out->count++;
  }
  if (status == LADE_OK) status = takes_check(out);
  if (status == LADE_OK && stale < function->input_count) {
    bool known = false;
    ladei_tree_slot *slot = NULL;
    lade_graph_buffer buffer = call->inputs[stale].buffer;
    ladei_tree_found found = ladei_tree_slot_find(&tree->core, buffer, &slot, &known);
    return ladei_tree_buffer_error(tree, call_name, buffer, found, slot, known);
  }
  if (status == LADE_OK && function->mutates) status = mutated_check(tree, out);
  return status;
}

static lade_status form_check(const lade_graph_function *function, const lade_graph_call *call) {
  enum { MOST_KEYS = 64 };
  if (call->input_count != function->input_count)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: call.input_count is %llu; expected %u, as function %s has",
                       call_name, (unsigned long long)call->input_count, function->input_count, function->name);
  if (call->input_count > 0 && call->inputs == NULL) return ladei_error_null(call_name, "call.inputs");
  if (call->key_count > MOST_KEYS)
    return ladei_error_argument(call_name, "call.key_count", "at most 64", "%llu", (unsigned long long)call->key_count);
  if (call->key_count > 0 && call->key == NULL) return ladei_error_null(call_name, "call.key");
  if ((call->flags & ~(uint32_t)LADE_GRAPH_CALL_AUTO) != 0)
    return ladei_error_argument(call_name, "call.flags", "LADE_GRAPH_CALL_... flags only", "0x%x", call->flags);
  return LADE_OK;
}

lade_status ladei_tree_call_read(lade_graph_tree *tree, lade_graph_function *function, const lade_graph_call *call,
                                 ladei_tree_call *out) {
  lade_status status = form_check(function, call);
  *out = (ladei_tree_call){.inputs = tree->inputs, .automatic = (call->flags & LADE_GRAPH_CALL_AUTO) != 0};
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&tree->lock); /* other threads read takes */
  ladei_tree_settle_locked(tree);  /* applies earlier retains, whose counts the call may not take */
  status = inputs_read(tree, function, call, out);
  if (status != LADE_OK) ladei_tree_call_reset(tree, out);
  ladei_lock_release(&tree->lock);
  if (status != LADE_OK) out->count = 0;
  return status;
}
