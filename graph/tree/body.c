/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A body's context: its questions, allocations and outputs, and their fate when it returns.
 *
 *   locals   its allocations: it frees them, or they become outputs, or they are freed after it
 *   inputs   in place, or in a recording in blocks of the pool
 *   outputs  named by address; their kind is that of the memory that the address lies in
 *
 * B1  Each block of the pool is known: a local, an input's copy, or a storage's; or lade_device_alloc() left it over.
 * B2  Until the commit outputs hold counts of their storages (`counted`), outputs in older storages from their naming
 *     on: so a storage that an input gives up stays alive if an output is in it.
 * B3  Takes that are given up can come back until the commit: their slots end there.
 * B4  A block is lent (ladei_device_lend()) from lade_graph_output_freed() to the program's free of it, or the body's end.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/size.h"
#include "device/for_graphs.h"
#include "graph/tree/tree.h"

/* ---- Life -------------------------------------------------------------------------------------------------------- */

lade_status ladei_tree_context_open(ladei_tree_context *context, ladei_tree_run *run, lade_graph_stage stage,
                                    lade_stream stream) {
  const ladei_tree_instance *instance = run->call.instance;
  *context = (ladei_tree_context){.shown = {.struct_size = sizeof context->shown,
                                            .stage = stage,
                                            .stream = stream,
                                            .key = instance->key_count == 0 ? NULL : instance->key,
                                            .key_count = instance->key_count},
                                  .run = run};
  memset(run->tree->outs, 0, run->function->output_count * sizeof *run->tree->outs);
  context->inputs = calloc(run->call.count + 1, sizeof *context->inputs);
  context->input_count = context->inputs == NULL ? 0 : run->call.count;
  if (context->inputs == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "graph tree: no memory for a body of %zu inputs",
                       run->call.count);
  for (size_t i = 0; i < run->call.count; i++) context->inputs[i].address = run->call.inputs[i].address;
  return LADE_OK;
}

void ladei_tree_context_close(ladei_tree_context *context) {
  free(context->locals);
  free(context->table);
  free(context->inputs);
  free(context->by_address);
  free(context->older);
  free(context->ranges);
}

/* ---- Locals ------------------------------------------------------------------------------------------------------ */

static size_t table_place(const ladei_tree_context *context, uint64_t address) {
  return (size_t)((address >> 4) * 0x9e3779b97f4a7c15u >> 32) & (context->table_count - 1);
}

/* Replaces a freed local of the address, which no search needs: so an address that is reused often has one entry. */
static void table_put(ladei_tree_context *context, uint32_t local) {
  uint64_t address = context->locals[local].address;
  size_t place = table_place(context, address);
  for (; context->table[place] != 0; place = (place + 1) & (context->table_count - 1)) {
    const ladei_tree_local *other = &context->locals[context->table[place] - 1];
    if (other->address == address && other->freed) break;
  }
  context->table[place] = local + 1;
}

/* The local not freed that begins at the address. */
static ladei_tree_local *local_find(const ladei_tree_context *context, uint64_t address) {
  if (context->table_count == 0) return NULL;
  for (size_t place = table_place(context, address); context->table[place] != 0;
       place = (place + 1) & (context->table_count - 1)) {
    ladei_tree_local *local = &context->locals[context->table[place] - 1];
    if (local->address == address && !local->freed) return local;
  }
  return NULL;
}

static bool locals_reserve(ladei_tree_context *context) {
  if (context->local_count < context->local_capacity) return true;
  size_t capacity = context->local_capacity * 2 + 32;
  ladei_tree_local *locals = realloc(context->locals, capacity * sizeof *locals);
  if (locals == NULL) return false;
  context->locals = locals;
  size_t table_count = 64;
  while (table_count < capacity * 2) table_count *= 2;
  uint32_t *table = calloc(table_count, sizeof *table);
  if (table == NULL) return false;
  free(context->table);
  context->table = table;
  context->table_count = table_count;
  context->local_capacity = capacity;
  for (uint32_t i = 0; i < context->local_count; i++) table_put(context, i);
  return true;
}

static bool ranges_reserve(ladei_tree_context *context, size_t more) {
  return LADEI_ARRAY_ROOM(context->ranges, context->range_capacity, context->range_count + more);
}

static uint64_t block_bytes(uint64_t bytes) { return (bytes + 511) & ~(uint64_t)511; }

static void range_add(ladei_tree_context *context, uint64_t address, uint64_t bytes) {
  if (context->shown.stage == LADE_GRAPH_STAGE_EAGER) return;
  assert(context->range_count < context->range_capacity);
  context->ranges[context->range_count++] = (lade_device_range){(void *)(uintptr_t)address, block_bytes(bytes)};
}

static lade_device_allocator *memory_of(const ladei_tree_context *context) {
  const lade_graph_tree *tree = context->run->tree;
  return context->shown.stage == LADE_GRAPH_STAGE_EAGER ? tree->outside : tree->allocator;
}

static void local_add(ladei_tree_context *context, uint64_t address, uint64_t bytes, bool adopted) {
  ladei_tree_local *former = local_find(context, address);
  if (former != NULL) former->freed = true; /* the body has freed it: its block is handed out again */
  assert(context->local_count < context->local_capacity);
  uint32_t index = (uint32_t)context->local_count++;
  context->locals[index] = (ladei_tree_local){.address = address, .bytes = bytes, .adopted = adopted};
  table_put(context, index);
  range_add(context, address, bytes);
}

static void local_free(ladei_tree_context *context, ladei_tree_local *local) {
  (void)ladei_device_free_kept(memory_of(context), (void *)(uintptr_t)local->address);
  local->freed = true;
}

void ladei_tree_context_free_locals(ladei_tree_context *context) {
  for (size_t i = 0; i < context->local_count; i++)
    if (!context->locals[i].freed) local_free(context, &context->locals[i]);
  for (size_t i = 0; i < context->input_count; i++) {
    ladei_tree_body_input *input = &context->inputs[i];
    if (input->block != 0) ladei_tree_block_free(context->run->tree, input->block);
    input->block = 0;
  }
}

static lade_status no_memory(const char *call) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for one more block", call);
}

lade_status lade_graph_alloc(lade_graph_context *shown, size_t bytes, void **out) {
  ladei_tree_context *context = (ladei_tree_context *)shown;
  if (context == NULL) return ladei_error_null(__func__, "context");
  if (out == NULL) return ladei_error_null(__func__, "out");
  if (bytes == 0) return ladei_error_argument(__func__, "bytes", "from 1 on", "0");
  if (!locals_reserve(context) || !ranges_reserve(context, 1)) return no_memory(__func__);
  void *address = NULL;
  LADEI_TRY(lade_device_alloc(memory_of(context), bytes, context->shown.stream, &address));
  local_add(context, (uint64_t)(uintptr_t)address, bytes, false);
  *out = address;
  return LADE_OK;
}

lade_status lade_graph_free(lade_graph_context *shown, void *address) {
  ladei_tree_context *context = (ladei_tree_context *)shown;
  if (context == NULL) return ladei_error_null(__func__, "context");
  ladei_tree_local *local = local_find(context, (uint64_t)(uintptr_t)address);
  if (local == NULL || local->is_output || local->adopted)
    return ladei_error(LADE_ERR_FOREIGN_POINTER, 0, "%s: %p %s", __func__, address,
                       local != NULL && local->is_output ? "is an output"
                                                         : "is not of lade_graph_alloc() in this body");
  local_free(context, local);
  return LADE_OK;
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------ */

lade_status ladei_tree_context_inputs(ladei_tree_context *context) {
  const ladei_tree_run *run = context->run;
  if (!ranges_reserve(context, run->call.count)) return no_memory("lade_graph_tree_run");
  for (size_t i = 0; i < run->call.count; i++) {
    void *block = NULL;
    if (run->call.inputs[i].class != LADE_GRAPH_CLASS_COPIED) continue;
    lade_status status =
        lade_device_alloc(run->tree->allocator, run->call.inputs[i].bytes, context->shown.stream, &block);
    if (status != LADE_OK) return ladei_error_prefix(status, "lade_graph_tree_run: memory for input %zu: ", i);
    context->inputs[i].address = context->inputs[i].block = (uint64_t)(uintptr_t)block;
    range_add(context, context->inputs[i].block, run->call.inputs[i].bytes);
  }
  return LADE_OK;
}

static lade_status input_check(const ladei_tree_context *context, const char *call, size_t index) {
  if (context == NULL) return ladei_error_null(call, "context");
  if (index >= context->run->call.count)
    return ladei_error_argument(call, "index", "one of an input", "%zu of %zu", index, context->run->call.count);
  if (!context->inputs[index].dropped) return LADE_OK;
  return ladei_error_argument(call, "index", "an input that was not dropped", "%zu", index);
}

lade_status lade_graph_input_get(const lade_graph_context *shown, size_t index, lade_graph_value *out) {
  const ladei_tree_context *context = (const ladei_tree_context *)shown;
  LADEI_TRY(input_check(context, __func__, index));
  if (out == NULL) return ladei_error_null(__func__, "out");
  *out = (lade_graph_value){.kind = LADE_GRAPH_MEMORY,
                            .address = (void *)(uintptr_t)context->inputs[index].address,
                            .bytes = context->run->call.inputs[index].bytes,
                            .tag = context->run->function->input_tags[index]};
  return LADE_OK;
}

void ladei_tree_give_up(ladei_tree_run *run, size_t index, bool free_block) {
  lade_graph_tree *tree = run->tree;
  ladei_tree_input *input = &run->call.inputs[index];
  ladei_tree_storage *storage = input->storage;
  ladei_lock_acquire(&tree->lock);
  assert(input->taken && input->slot->takes > 0);
  ladei_tree_count_take(&tree->core, input->slot, 1);
  input->slot->takes--;
  ladei_lock_release(&tree->lock);
  if (!free_block || storage->counts > 0 || !storage->has_block || storage->outside) return;
  ladei_tree_block_free(tree, storage->address);
  storage->has_block = false;
}

static void input_give_up(ladei_tree_context *context, size_t index) {
  ladei_tree_body_input *own = &context->inputs[index];
  if (!context->run->call.inputs[index].taken || own->given_up) return;
  own->given_up = true;
  ladei_tree_give_up(context->run, index, true);
}

void ladei_tree_context_takes_return(ladei_tree_context *context) {
  ladei_tree_run *run = context->run;
  for (size_t i = 0; i < context->input_count; i++) {
    if (!context->inputs[i].given_up) continue;
    context->inputs[i].given_up = false;
    ladei_lock_acquire(&run->tree->lock);
    ladei_tree_count_add(&run->tree->core, run->call.inputs[i].slot, 1);
    run->call.inputs[i].slot->takes++;
    ladei_lock_release(&run->tree->lock);
  }
}

static void input_block_free(ladei_tree_context *context, size_t index) {
  ladei_tree_body_input *own = &context->inputs[index];
  if (own->block == 0) return;
  ladei_tree_block_free(context->run->tree, own->block);
  own->block = 0;
}

lade_status lade_graph_input_drop(lade_graph_context *shown, size_t index) {
  ladei_tree_context *context = (ladei_tree_context *)shown;
  LADEI_TRY(input_check(context, __func__, index));
  if (context->inputs[index].is_output)
    return ladei_error_argument(__func__, "index", "an input that is no output", "%zu", index);
  context->inputs[index].dropped = true;
  input_block_free(context, index);
  bool managed = context->run->call.inputs[index].class == LADE_GRAPH_CLASS_MANAGED;
  if (managed || context->shown.stage != LADE_GRAPH_STAGE_RECORD) input_give_up(context, index);
  return LADE_OK;
}

/* ---- Outputs ----------------------------------------------------------------------------------------------------- */

/* B2 */
static void out_count(ladei_tree_run *run, ladei_tree_out *out, ladei_tree_storage *storage) {
  assert(!out->counted);
  out->storage = storage;
  out->counted = true;
  storage->references++;
  ladei_lock_acquire(&run->tree->lock);
  ladei_tree_storage_count(&run->tree->core, storage, true);
  ladei_lock_release(&run->tree->lock);
}

static bool range_has(uint64_t begin, uint64_t length, uint64_t address, uint64_t bytes) {
  return address >= begin && address - begin < length && length - (address - begin) >= bytes;
}

static bool input_has(const ladei_tree_context *context, size_t index, const ladei_tree_out *out) {
  return !context->inputs[index].dropped &&
         range_has(context->inputs[index].address, context->run->call.inputs[index].bytes, out->address, out->bytes);
}

/* Sorts many inputs by address: the keys are all starts, then for each the farthest end of the inputs up to it. */
static void inputs_order(ladei_tree_context *context) {
  enum { FEW = 16 };
  size_t count = context->run->call.count;
  uint64_t reach = 0;
  if (context->by_address != NULL || count <= FEW) return;
  ladei_sort_key *keys = ladei_sort_keys_create(count);
  if (keys == NULL) return;
  for (size_t i = 0; i < count; i++) keys[i] = (ladei_sort_key){context->inputs[i].address, i};
  ladei_sort_keys(keys, count, count);
  for (size_t i = 0; i < count; i++) {
    uint64_t end = keys[i].key + context->run->call.inputs[keys[i].index].bytes;
    if (end > reach) reach = end;
    keys[count + i].key = reach;
  }
  context->by_address = keys;
}

/* The number of keys that are at most the address. */
static size_t keys_before(const ladei_sort_key *keys, size_t count, uint64_t address) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (keys[middle].key <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* The first input that contains all of an output; their number: none. Among many it searches from the last one that
 * begins at or before the output, down to where no input reaches the output's end. */
static size_t input_find(ladei_tree_context *context, const ladei_tree_out *out) {
  size_t count = context->run->call.count, found = count;
  inputs_order(context);
  const ladei_sort_key *keys = context->by_address;
  for (size_t i = 0; keys == NULL && i < count && found == count; i++)
    if (input_has(context, i, out)) found = i;
  if (keys == NULL) return found;
  for (size_t k = keys_before(keys, count, out->address); k > 0; k--) {
    if (keys[count + k - 1].key < out->address + out->bytes) break;
    size_t index = (size_t)keys[k - 1].index;
    if (index < found && input_has(context, index, out)) found = index;
  }
  return found;
}

static bool name_input(ladei_tree_context *context, ladei_tree_out *out) {
  size_t index = input_find(context, out);
  if (index == context->run->call.count) return false;
  context->inputs[index].is_output = true;
  out->named = LADEI_TREE_NAMED_INPUT;
  out->index = (uint32_t)index;
  return true;
}

/* A local that begins before the address: that of the block that is handed out there. Without such a block (the body
 * has freed it by itself, or the allocator does not know it) all locals are searched. */
static ladei_tree_local *local_around(const ladei_tree_context *context, const ladei_tree_out *out) {
  lade_device_range block;
  if (ladei_tree_block_at(memory_of(context), out->address, &block))
    return local_find(context, (uint64_t)(uintptr_t)block.address);
  for (size_t i = 0; i < context->local_count; i++) {
    ladei_tree_local *local = &context->locals[i];
    if (!local->freed && range_has(local->address, local->bytes, out->address, out->bytes)) return local;
  }
  return NULL;
}

static bool name_local(ladei_tree_context *context, ladei_tree_out *out) {
  if (context->local_count == 0) return false;
  ladei_tree_local *found = local_find(context, out->address);
  if (found == NULL) found = local_around(context, out);
  if (found == NULL || !range_has(found->address, found->bytes, out->address, out->bytes)) return false;
  found->is_output = true;
  out->named = LADEI_TREE_NAMED_LOCAL;
  out->index = (uint32_t)(found - context->locals);
  return true;
}

/* Sorts the alive memories of a path with many outputs by address, each with its first row. Alive memories do not
 * overlap, and none becomes alive in a body. */
static void older_order(ladei_tree_context *context) {
  enum { FEW = 16 };
  const ladei_tree_path *path = &context->run->tree->core.path;
  if (context->older != NULL || path->row_count <= FEW) return;
  ladei_sort_key *keys = ladei_sort_keys_create(path->row_count);
  if (keys == NULL) return;
  size_t alive = 0, count = 0;
  for (size_t i = 0; i < path->row_count; i++)
    if (ladei_tree_alive(path->rows[i])) keys[alive++] = (ladei_sort_key){path->rows[i]->address, i};
  ladei_sort_keys(keys, alive, path->row_count);
  for (size_t i = 0; i < alive; i++)
    if (count == 0 || keys[i].key != keys[count - 1].key) keys[count++] = keys[i];
  context->older = keys;
  context->older_count = count;
}

static bool older_has(const ladei_tree_path *path, size_t row, const ladei_tree_out *out) {
  const ladei_tree_storage *storage = path->rows[row];
  return ladei_tree_alive(storage) && range_has(storage->address, storage->bytes, out->address, out->bytes);
}

/* The first row whose memory contains all of an output; the number of rows: none. */
static size_t older_find(ladei_tree_context *context, const ladei_tree_out *out) {
  const ladei_tree_path *path = &context->run->tree->core.path;
  older_order(context);
  if (context->older == NULL) {
    size_t row = 0;
    while (row < path->row_count && !older_has(path, row, out)) row++;
    return row;
  }
  size_t before = keys_before(context->older, context->older_count, out->address);
  size_t row = before == 0 ? path->row_count : (size_t)context->older[before - 1].index;
  return row < path->row_count && older_has(path, row, out) ? row : path->row_count;
}

/* By the last entry that begins at or before the row: an entry without outputs begins where the next one does. */
static ladei_tree_position row_position(const ladei_tree_path *path, size_t row) {
  size_t low = 0, high = path->count; /* entries from `high` on begin after the row */
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (path->entries[middle].row <= row)
      low = middle + 1;
    else
      high = middle;
  }
  return (ladei_tree_position){(uint32_t)(low - 1), (uint32_t)(row - path->entries[low - 1].row)};
}

static bool name_older(ladei_tree_context *context, ladei_tree_out *out) {
  const ladei_tree_path *path = &context->run->tree->core.path;
  size_t row = older_find(context, out);
  if (row == path->row_count) return false;
  out->named = LADEI_TREE_NAMED_OLDER;
  out->position = row_position(path, row);
  out->storage = path->rows[row];
  return true;
}

/* Whether the block belongs to a storage of the path. */
static bool is_of_the_path(const ladei_tree_context *context, uint64_t block) {
  const ladei_tree_path *path = &context->run->tree->core.path;
  for (size_t i = 0; i < path->row_count; i++) {
    const ladei_tree_storage *storage = path->rows[i];
    if (storage != NULL && storage->has_block && !storage->outside && storage->address == block) return true;
  }
  return false;
}

/* Names an output in a block that lade_device_alloc() gave on the body's stream. */
static lade_status name_adopted(ladei_tree_context *context, ladei_tree_out *out, bool *out_named) {
  lade_device_range block;
  *out_named = false;
  if (context->shown.stage == LADE_GRAPH_STAGE_EAGER) return LADE_OK;
  if (!ladei_tree_pool_block(context->run->tree, out->address, &block)) return LADE_OK;
  uint64_t begin = (uint64_t)(uintptr_t)block.address;
  if (is_of_the_path(context, begin)) return LADE_OK; /* beyond the older output's end */
  for (size_t i = 0; i < context->run->call.count; i++)
    if (context->inputs[i].block == begin) return LADE_OK; /* beyond the input's end */
  if (local_find(context, begin) != NULL || !range_has(begin, block.bytes, out->address, out->bytes)) return LADE_OK;
  if (!locals_reserve(context) || !ranges_reserve(context, 1)) return no_memory("lade_graph_output_memory");
  local_add(context, begin, block.bytes, true);
  *out_named = name_local(context, out);
  return LADE_OK;
}

static lade_status name_outside(ladei_tree_context *context, ladei_tree_out *out) {
  const lade_graph_tree *tree = context->run->tree;
  ladei_pointer_attributes attributes;
  void *address = (void *)(uintptr_t)out->address;
  lade_status status = ladei_tree_ops(tree)->pointer_attributes(tree->runtime->self, address, &attributes);
  if (status != LADE_OK) return status;
  bool device = attributes.kind == LADEI_MEMORY_DEVICE || attributes.kind == LADEI_MEMORY_MANAGED;
  ladei_tree_blocks blocks = {0};
  if (device) status = ladei_tree_pool_read((lade_graph_tree *)(uintptr_t)tree, &blocks); /* it may have grown */
  free(blocks.list);
  if (status != LADE_OK) return status;
  if (device && !ladei_tree_pool_has(tree, out->address, out->bytes) &&
      range_has(attributes.base, attributes.bytes, out->address, out->bytes)) {
    out->named = LADEI_TREE_NAMED_OUTSIDE;
    return LADE_OK;
  }
  return ladei_error_argument(
      "lade_graph_output_memory", "address",
      "memory of this body, of an input, of an older output that is alive, or device memory outside "
      "of the pool, all of the bytes",
      "%p, %llu bytes, %s", address, (unsigned long long)out->bytes,
      device ? "free or not all of it" : "host memory or none");
}

static lade_status output_check(const ladei_tree_context *context, const char *call, size_t index) {
  if (context == NULL) return ladei_error_null(call, "context");
  if (index >= context->run->function->output_count)
    return ladei_error_argument(call, "index", "one of an output", "%zu of %u", index,
                                context->run->function->output_count);
  if (context->run->tree->outs[index].named == LADEI_TREE_NAMED_NOT) return LADE_OK;
  return ladei_error_argument(call, "index", "an output that was not named yet", "%zu", index);
}

lade_status lade_graph_output_memory(lade_graph_context *shown, size_t index, void *address, size_t bytes) {
  ladei_tree_context *context = (ladei_tree_context *)shown;
  lade_status status = output_check(context, __func__, index);
  if (status != LADE_OK) return status;
  if (address == NULL || bytes == 0 || bytes >= LADEI_SIZE_LIMIT)
    return ladei_error_argument(__func__, address == NULL ? "address" : "bytes", "memory of 1 byte to 2^60 - 1",
                                "%zu bytes at %p", bytes, address);
  ladei_tree_out out = {.address = (uint64_t)(uintptr_t)address, .bytes = bytes};
  bool named = name_input(context, &out) || name_local(context, &out) || name_older(context, &out);
  if (!named) status = name_adopted(context, &out, &named);
  if (status == LADE_OK && !named) status = name_outside(context, &out);
  if (status != LADE_OK) return status;
  context->run->tree->outs[index] = out;
  if (out.named == LADEI_TREE_NAMED_OLDER) out_count(context->run, &context->run->tree->outs[index], out.storage);
  return LADE_OK;
}

lade_status lade_graph_output_freed(lade_graph_context *shown, size_t index, void *address, size_t bytes,
                                    bool *out_awaited) {
  ladei_tree_context *context = (ladei_tree_context *)shown;
  LADEI_TRY(lade_graph_output_memory(shown, index, address, bytes));
  bool is_local = context->run->tree->outs[index].named == LADEI_TREE_NAMED_LOCAL;
  ladei_tree_local *local = is_local ? &context->locals[context->run->tree->outs[index].index] : NULL;
  if (is_local && local->adopted && !local->lent)
    local->lent = ladei_device_lend(context->run->tree->allocator, (void *)(uintptr_t)local->address);
  if (out_awaited != NULL) *out_awaited = is_local && local->lent;
  return LADE_OK;
}

lade_status lade_graph_output_integer(lade_graph_context *shown, size_t index, uint64_t value) {
  ladei_tree_context *context = (ladei_tree_context *)shown;
  LADEI_TRY(output_check(context, __func__, index));
  context->run->tree->outs[index] = (ladei_tree_out){.named = LADEI_TREE_NAMED_INTEGER, .address = value};
  return LADE_OK;
}

/* ---- The call ---------------------------------------------------------------------------------------------------- */

static lade_status callback_failed(const ladei_tree_context *context, const char *which, lade_status status) {
  lade_error inner;
  ladei_error_save(&inner);
  return ladei_error(LADE_ERR_CALLBACK, 0,
                     "lade_graph_tree_run: %s of function %s returned %s; the last failure of the "
                     "thread: %.200s",
                     which, context->run->function->name, lade_status_name(status), inner.text);
}

static lade_status freed_wrongly(const ladei_tree_context *context, uint64_t address) {
  return ladei_error(LADE_ERR_CALLBACK, 0,
                     "lade_graph_tree_run: the body of function %s freed %p, which is not its own or an output",
                     context->run->function->name, (void *)(uintptr_t)address);
}

static lade_status outputs_check(const ladei_tree_context *context) {
  const lade_graph_function *function = context->run->function;
  for (uint32_t i = 0; i < function->output_count; i++) {
    const ladei_tree_out *out = &context->run->tree->outs[i];
    if (out->named == LADEI_TREE_NAMED_NOT)
      return ladei_error(LADE_ERR_CALLBACK, 0, "lade_graph_tree_run: the body of function %s did not name output %u",
                         function->name, i);
    if (out->named == LADEI_TREE_NAMED_LOCAL && context->locals[out->index].freed)
      return freed_wrongly(context, context->locals[out->index].address);
  }
  return LADE_OK;
}

/* B4 */
static lade_status lent_end(ladei_tree_context *context, lade_status status) {
  const lade_graph_function *function = context->run->function;
  for (size_t i = 0; i < context->local_count; i++) {
    ladei_tree_local *local = &context->locals[i];
    if (!local->lent) continue;
    local->lent = false;
    void *address = (void *)(uintptr_t)local->address;
    if (ladei_device_lent_end(context->run->tree->allocator, address) && status == LADE_OK)
      status =
          ladei_error(LADE_ERR_CALLBACK, 0,
                      "lade_graph_tree_run: the body of function %s kept the block at %p, %llu bytes, that it named "
                      "as an output; expected that it frees it before it returns",
                      function->name, address, (unsigned long long)local->bytes);
  }
  return status;
}

lade_status ladei_tree_context_call(ladei_tree_context *context) {
  lade_graph_tree *tree = context->run->tree;
  const lade_graph_function *function = context->run->function;
  lade_status status =
      tree->before == NULL ? LADE_OK : tree->before(tree->hook_user, context->shown.stage, context->shown.stream);
  if (status != LADE_OK) return callback_failed(context, "the callback before the body", status);
  status = function->body(&context->shown, function->user);
  if (status != LADE_OK) status = callback_failed(context, "the body", status);
  status = lent_end(context, status);
  if (tree->after != NULL) {
    lade_status after = tree->after(tree->hook_user, context->shown.stage, context->shown.stream);
    if (status == LADE_OK && after != LADE_OK) status = callback_failed(context, "the callback after the body", after);
  }
  if (status == LADE_OK) status = outputs_check(context);
  if (status == LADE_OK && (context->run->faults & LADEI_TREE_FAULT_CALLBACK) != 0)
    status = ladei_error(LADE_ERR_CALLBACK, 0, "lade_graph_tree_run: let fail: callback");
  return status;
}

/* ---- Leftovers --------------------------------------------------------------------------------------------------- */

static int address_compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a;
  uint64_t y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Starts of the known blocks (B1), ascending. A storage in several rows is listed once; an address that is still listed
 * twice was freed by the body, and handed out to it again. */
static size_t known_list(const ladei_tree_context *context, uint64_t *list) {
  const ladei_tree_path *path = &context->run->tree->core.path;
  size_t rows = 0, count = 0;
  for (size_t i = 0; i < path->row_count; i++)
    if (path->rows[i] != NULL && path->rows[i]->has_block && !path->rows[i]->outside)
      list[rows++] = path->rows[i]->address;
  if (rows > 0) qsort(list, rows, sizeof *list, address_compare);
  for (size_t i = 0; i < rows; i++)
    if (count == 0 || list[i] != list[count - 1]) list[count++] = list[i];
  for (size_t i = 0; i < context->local_count; i++)
    if (!context->locals[i].freed) list[count++] = context->locals[i].address;
  for (size_t i = 0; i < context->run->call.count; i++)
    if (context->inputs[i].block != 0) list[count++] = context->inputs[i].block;
  if (count > 0) qsort(list, count, sizeof *list, address_compare);
  return count;
}

typedef struct leftovers {
  char text[256];
  size_t length, count;
} leftovers;

static void leftover_free(ladei_tree_context *context, const lade_device_range *block, leftovers *l) {
  if (l->length < sizeof l->text - 48)
    l->length += (size_t)snprintf(l->text + l->length, sizeof l->text - l->length, "%s%p (%zu bytes)",
                                  l->count == 0 ? "" : ", ", block->address, block->bytes);
  l->count++;
  ladei_tree_block_free(context->run->tree, (uint64_t)(uintptr_t)block->address);
}

/* A block of an input's copy or of a storage is no longer handed out. */
static lade_status block_gone(ladei_tree_context *context, uint64_t address) {
  for (size_t i = 0; i < context->run->call.count; i++)
    if (context->inputs[i].block == address) context->inputs[i].block = 0;
  ladei_tree_path *path = &context->run->tree->core.path;
  for (size_t i = 0; i < path->row_count; i++)
    if (path->rows[i] != NULL && path->rows[i]->address == address && !path->rows[i]->outside)
      path->rows[i]->has_block = false;
  return freed_wrongly(context, address);
}

/* A local is no longer handed out: the body freed it by itself. */
static lade_status local_gone(ladei_tree_context *context, uint64_t address) {
  ladei_tree_local *local = local_find(context, address);
  if (local != NULL && !local->is_output) {
    local->freed = true;
    return LADE_OK;
  }
  if (local != NULL) local->freed = true;
  return block_gone(context, address);
}

lade_status ladei_tree_context_leftovers(ladei_tree_context *context) {
  lade_graph_tree *tree = context->run->tree;
  uint64_t foreign = tree->foreign_segments;
  ladei_tree_blocks blocks = {0};
  leftovers left = {.length = 0};
  uint64_t *known =
      calloc(context->local_count + context->run->call.count + tree->core.path.row_count + 1, sizeof *known);
  lade_status status = known == NULL ? no_memory("lade_graph_tree_run") : ladei_tree_pool_read(tree, &blocks);
  if (status != LADE_OK) {
    free(known);
    return status;
  }
  size_t count = known_list(context, known), i = 0, j = 0;
  while (i < count || j < blocks.count) {
    uint64_t block = j < blocks.count ? (uint64_t)(uintptr_t)blocks.list[j].address : UINT64_MAX;
    if (i > 0 && i < count && known[i] == known[i - 1]) {
      lade_status gone = block_gone(context, known[i++]);
      if (status == LADE_OK) status = gone;
    } else if (i < count && known[i] == block) {
      i++;
      j++;
    } else if (i < count && known[i] < block) {
      lade_status gone = local_gone(context, known[i++]);
      if (status == LADE_OK) status = gone;
    } else {
      leftover_free(context, &blocks.list[j++], &left);
    }
  }
  free(known);
  free(blocks.list);
  if (left.count > 0)
    return ladei_error(LADE_ERR_CALLBACK, 0,
                       "lade_graph_tree_run: the body of function %s left %zu blocks in the pool: %s",
                       context->run->function->name, left.count, left.text);
  if (status == LADE_OK && tree->foreign_segments > foreign)
    status = ladei_error(LADE_ERR_CALLBACK, 0,
                         "lade_graph_tree_run: the body of function %s allocated on another stream than its own",
                         context->run->function->name);
  return status;
}

/* ---- Settling ---------------------------------------------------------------------------------------------------- */

static void out_drop(lade_graph_tree *tree, ladei_tree_out *out) {
  ladei_tree_storage *storage = out->storage;
  assert(out->counted && storage->references > 0); /* B2 */
  out->counted = false;
  ladei_lock_acquire(&tree->lock);
  ladei_tree_storage_count(&tree->core, storage, false);
  bool fresh = storage->references == 1; /* its block was freed with the locals */
  bool left = !fresh && storage->counts == 0 && storage->has_block && !storage->outside; /* an input gave it up */
  uint64_t block = storage->address;
  if (fresh || left) storage->has_block = false;
  ladei_tree_storage_unreference(&tree->core, storage);
  ladei_lock_release(&tree->lock);
  if (left) ladei_tree_block_free(tree, block);
}

void ladei_tree_outs_drop(ladei_tree_run *run) {
  for (uint32_t i = 0; i < run->function->output_count; i++)
    if (run->tree->outs[i].counted) out_drop(run->tree, &run->tree->outs[i]);
}

/* Settles an output in a block of the run. */
static void out_own(ladei_tree_run *run, uint32_t index, ladei_tree_owned *owned, uint64_t address, uint64_t bytes,
                    bool outside, uint32_t kind) {
  ladei_tree_out *out = &run->tree->outs[index];
  out->kind = kind;
  out->block = address;
  out->block_bytes = bytes;
  if (owned->storage == NULL) {
    ladei_lock_acquire(&run->tree->lock);
    ladei_tree_storage *storage = owned->storage = ladei_tree_storage_make(&run->tree->core);
    ladei_lock_release(&run->tree->lock);
    storage->address = address;
    storage->bytes = bytes;
    storage->outside = outside;
    storage->stream_id = run->stream.id;
    storage->has_block = true;
  } else if (kind == LADE_GRAPH_OUTPUT_NEW) {
    out->kind = LADE_GRAPH_OUTPUT_SAME;
    out->source = owned->output;
  }
  owned->output = index;
  out_count(run, out, owned->storage);
}

static void out_input(ladei_tree_context *context, uint32_t index) {
  ladei_tree_run *run = context->run;
  ladei_tree_out *out = &run->tree->outs[index];
  const ladei_tree_input *input = &run->call.inputs[out->index];
  ladei_tree_body_input *own = &context->inputs[out->index];
  out->source = out->index;
  if (context->shown.stage == LADE_GRAPH_STAGE_RECORD && input->class == LADE_GRAPH_CLASS_COPIED) {
    out_own(run, index, &own->owned, own->block, input->bytes, false, LADE_GRAPH_OUTPUT_NEW);
  } else if (input->carried) {
    out_own(run, index, &own->owned, own->address, input->bytes, true, LADE_GRAPH_OUTPUT_INPUT);
    run->tree->carried_blocks[out->index] = NULL; /* it is the storage's */
  } else {
    bool managed = input->class == LADE_GRAPH_CLASS_MANAGED && context->shown.stage != LADE_GRAPH_STAGE_EAGER;
    out->kind = managed ? LADE_GRAPH_OUTPUT_PRIOR : LADE_GRAPH_OUTPUT_INPUT;
    if (input->storage != NULL) out_count(run, out, input->storage);
  }
}

static void out_settle(ladei_tree_context *context, uint32_t index) {
  ladei_tree_run *run = context->run;
  ladei_tree_out *out = &run->tree->outs[index];
  bool eager = context->shown.stage == LADE_GRAPH_STAGE_EAGER;
  out->source = LADEI_TREE_BY_POSITION;
  switch ((ladei_tree_named)out->named) {
  case LADEI_TREE_NAMED_LOCAL: {
    ladei_tree_local *local = &context->locals[out->index];
    out_own(run, index, &local->owned, local->address, local->bytes, eager,
            eager ? LADE_GRAPH_OUTPUT_PLAIN : LADE_GRAPH_OUTPUT_NEW);
    break;
  }
  case LADEI_TREE_NAMED_INPUT: out_input(context, index); break;
  case LADEI_TREE_NAMED_OLDER: out->kind = eager ? LADE_GRAPH_OUTPUT_INPUT : LADE_GRAPH_OUTPUT_PRIOR; break;
  case LADEI_TREE_NAMED_INTEGER: out->kind = LADE_GRAPH_OUTPUT_INTEGER; break;
  default: out->kind = LADE_GRAPH_OUTPUT_OUTSIDE; break;
  }
}

void ladei_tree_context_settle(ladei_tree_context *context) {
  ladei_tree_run *run = context->run;
  for (uint32_t i = 0; i < run->function->output_count; i++) out_settle(context, i);
  for (size_t i = 0; i < run->call.count; i++) {
    if (context->inputs[i].dropped) continue;
    if (!context->inputs[i].is_output) input_block_free(context, i);
    if (run->call.inputs[i].class == LADE_GRAPH_CLASS_MANAGED) input_give_up(context, i);
  }
  for (size_t i = 0; i < context->local_count; i++)
    if (!context->locals[i].freed && !context->locals[i].is_output) local_free(context, &context->locals[i]);
  for (size_t i = 0; i < run->call.count; i++) input_give_up(context, i);
}
