/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots, which the program's buffers name; storages, the memory of slots; the path, which counts alive storages (G2).
 *
 * Slots and storages lie in chunks that never move. Free slots wait in a queue: while fewer than LADEI_TREE_SLOT_REST
 * wait, new ones are made, so that a stale buffer stays known until that many other slots have ended.
 *
 * The path holds the runs since it began, with their outputs' storages. An ending path leaves the core first: for the
 * call that ends it, none of its memory is managed. It is cleared when the end is final, and returns if a recording
 * after it fails.
 *
 * Note [Generations]
 *   A slot's generation counts from a number of its tree: the tree's number times 2^32 / golden ratio, which puts the
 *   trees of a process far apart. So a buffer is of this tree, valid or stale, if its generation is at most `uses` less
 *   than the slot's; all others are foreign.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "graph/core/core.h"

/* ---- Rooms ------------------------------------------------------------------------------------------------------- */

static void *chunk_add(void ***chunks, size_t count, size_t bytes) {
  void **grown = realloc(*chunks, (count + 1) * sizeof *grown);
  if (grown == NULL) return NULL;
  *chunks = grown;
  grown[count] = calloc(LADEI_TREE_SLOT_CHUNK, bytes);
  return grown[count];
}

static void slot_push(ladei_tree_slots *slots, ladei_tree_slot *slot) {
  slot->next = NULL;
  *slots->last_free = slot;
  slots->last_free = &slot->next;
  slots->free_count++;
}

static bool slots_grow(ladei_tree_slots *slots) {
  ladei_tree_slot *chunk = chunk_add((void ***)&slots->chunks, slots->chunk_count, sizeof *chunk);
  if (chunk == NULL) return false;
  for (uint32_t i = 0; i < LADEI_TREE_SLOT_CHUNK; i++) {
    chunk[i].index = (uint32_t)(slots->chunk_count * LADEI_TREE_SLOT_CHUNK) + i;
    chunk[i].generation = slots->first_generation;
    slot_push(slots, &chunk[i]);
  }
  slots->chunk_count++;
  return true;
}

static bool storages_grow(ladei_tree_storages *storages) {
  ladei_tree_storage *chunk = chunk_add((void ***)&storages->chunks, storages->chunk_count, sizeof *chunk);
  if (chunk == NULL) return false;
  for (uint32_t i = 0; i < LADEI_TREE_SLOT_CHUNK; i++) {
    chunk[i].next = storages->free;
    storages->free = &chunk[i];
  }
  storages->free_count += LADEI_TREE_SLOT_CHUNK;
  storages->chunk_count++;
  return true;
}

bool ladei_tree_handles_reserve(ladei_tree_core *core, size_t slots, size_t storages) {
  while (core->slots.free_count < slots + LADEI_TREE_SLOT_REST)
    if (!slots_grow(&core->slots)) return false;
  while (core->storages.free_count < storages)
    if (!storages_grow(&core->storages)) return false;
  return true;
}

/* ---- Storages ---------------------------------------------------------------------------------------------------- */

ladei_tree_storage *ladei_tree_storage_make(ladei_tree_core *core) {
  ladei_tree_storage *storage = core->storages.free;
  assert(storage != NULL && storage->references == 0 && "G3");
  core->storages.free = storage->next;
  core->storages.free_count--;
  memset(storage, 0, sizeof *storage);
  return storage;
}

void ladei_tree_storage_unreference(ladei_tree_core *core, ladei_tree_storage *storage) {
  assert(storage->references > 0);
  if (--storage->references > 0) return;
  assert(!storage->has_block && !storage->in_path && storage->slots == NULL); /* G3 */
  storage->next = core->storages.free;
  core->storages.free = storage;
  core->storages.free_count++;
}

static void counts_add(ladei_tree_core *core, ladei_tree_storage *storage, uint64_t count) {
  if (count > 0 && storage->counts == 0 && storage->in_path && !storage->lost) core->path.alive++;
  storage->counts += count;
}

static void counts_take(ladei_tree_core *core, ladei_tree_storage *storage, uint64_t count) {
  assert(storage->counts >= count);
  storage->counts -= count;
  if (count > 0 && storage->counts == 0 && storage->in_path && !storage->lost) core->path.alive--;
}

void ladei_tree_storage_count(ladei_tree_core *core, ladei_tree_storage *storage, bool more) {
  if (more)
    counts_add(core, storage, 1);
  else
    counts_take(core, storage, 1);
}

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

ladei_tree_slot *ladei_tree_slot_make(ladei_tree_core *core, ladei_tree_storage *storage) {
  ladei_tree_slots *slots = &core->slots;
  ladei_tree_slot *slot = slots->first_free;
  assert(slot != NULL && slot->storage == NULL);
  slots->first_free = slot->next;
  if (slots->first_free == NULL) slots->last_free = &slots->first_free;
  slots->free_count--;
  slots->valid_count++;
  slot->storage = storage;
  slot->before = NULL;
  slot->next = storage->slots;
  if (slot->next != NULL) slot->next->before = slot;
  storage->slots = slot;
  storage->references++;
  slot->counts = slot->takes = slot->lends = slot->retains = slot->releases = 0;
  slot->serial = ++core->slots_made;
  slot->end = LADEI_TREE_END_NONE;
  return slot;
}

void ladei_tree_count_add(ladei_tree_core *core, ladei_tree_slot *slot, uint32_t count) {
  assert(slot->storage != NULL && slot->end == LADEI_TREE_END_NONE); /* VALID */
  slot->counts += count;
  counts_add(core, slot->storage, count);
}

void ladei_tree_count_take(ladei_tree_core *core, ladei_tree_slot *slot, uint32_t count) {
  assert(slot->counts >= count);
  slot->counts -= count;
  counts_take(core, slot->storage, count);
}

void ladei_tree_slot_end(ladei_tree_core *core, ladei_tree_slot *slot, ladei_tree_end end) {
  ladei_tree_storage *storage = slot->storage;
  assert(end != LADEI_TREE_END_NONE && core->slots.valid_count > 0);
  ladei_tree_count_take(core, slot, slot->counts);
  if (slot->next != NULL) slot->next->before = slot->before;
  if (slot->before != NULL)
    slot->before->next = slot->next;
  else
    storage->slots = slot->next;
  slot->storage = NULL;
  slot->end = end;
  slot->ended_by = core->runs;
  slot->generation++;
  slot->uses++;
  core->slots.valid_count--;
  slot_push(&core->slots, slot);
  ladei_tree_storage_unreference(core, storage);
}

ladei_tree_found ladei_tree_slot_find(const ladei_tree_core *core, lade_graph_buffer buffer, ladei_tree_slot **out,
                                      bool *out_known) {
  size_t index = (size_t)buffer.slot - 1;
  if (buffer.slot == 0 || index / LADEI_TREE_SLOT_CHUNK >= core->slots.chunk_count) return LADEI_TREE_FOREIGN;
  ladei_tree_slot *slot = &core->slots.chunks[index / LADEI_TREE_SLOT_CHUNK][index % LADEI_TREE_SLOT_CHUNK];
  *out = slot;
  if (slot->generation == buffer.generation && slot->storage != NULL) return LADEI_TREE_VALID;
  uint32_t behind = slot->generation - buffer.generation; /* Note [Generations] */
  if (behind == 0 || behind > slot->uses) return LADEI_TREE_FOREIGN;
  *out_known = behind == 1 && slot->storage == NULL;
  return LADEI_TREE_STALE;
}

/* ---- The path ---------------------------------------------------------------------------------------------------- */

bool ladei_tree_path_reserve(ladei_tree_path *path, size_t outputs) {
  return LADEI_ARRAY_ROOM(path->entries, path->capacity, path->count + 1) &&
         LADEI_ARRAY_ROOM(path->rows, path->row_capacity, path->row_count + outputs);
}

ladei_tree_entry *ladei_tree_path_push(ladei_tree_path *path, ladei_tree_node *node, lade_graph_function *function,
                                       int64_t id, uint32_t output_count) {
  assert(path->count < path->capacity && path->row_count + output_count <= path->row_capacity);
  assert(node == NULL || !node->in_path); /* a path has each recording once */
  ladei_tree_entry *entry = &path->entries[path->count++];
  *entry = (ladei_tree_entry){node, function, id, output_count, path->row_count};
  for (uint32_t i = 0; i < output_count; i++) path->rows[path->row_count + i] = NULL;
  path->row_count += output_count;
  function->nodes++;
  if (node != NULL) node->in_path = true;
  return entry;
}

void ladei_tree_path_set(ladei_tree_path *path, size_t depth, uint32_t output, ladei_tree_storage *storage) {
  assert(depth < path->count && output < path->entries[depth].output_count);
  ladei_tree_storage **place = &path->rows[path->entries[depth].row + output];
  assert(*place == NULL);
  *place = storage;
  storage->references++;
  if (storage->in_path) return;
  storage->in_path = true;
  if (ladei_tree_alive(storage)) path->alive++; /* G2 */
}

static void path_mark(ladei_tree_path *path, bool in_path) {
  for (size_t i = 0; i < path->row_count; i++)
    if (path->rows[i] != NULL) path->rows[i]->in_path = in_path;
}

void ladei_tree_path_leave(ladei_tree_core *core, ladei_tree_path *ending) {
  assert(ending->count == 0 && ending->row_count == 0 && ending->alive == 0); /* one path ends at a time */
  path_mark(&core->path, false);
  ladei_tree_path empty = *ending;
  *ending = core->path;
  core->path = empty;
}

void ladei_tree_path_return(ladei_tree_core *core, ladei_tree_path *ending) {
  assert(core->path.count == 0 && core->path.row_count == 0);
  ladei_tree_path empty = core->path;
  core->path = *ending;
  *ending = empty;
  path_mark(&core->path, true);
  core->path.alive = 0;
  for (size_t i = 0; i < core->path.row_count; i++) /* counts may have gone meanwhile: once for each storage */
    if (core->path.rows[i] != NULL) core->path.rows[i]->in_path = false;
  for (size_t i = 0; i < core->path.row_count; i++) {
    ladei_tree_storage *storage = core->path.rows[i];
    if (storage == NULL || storage->in_path) continue;
    storage->in_path = true;
    core->path.alive += ladei_tree_alive(storage);
  }
}

void ladei_tree_path_clear(ladei_tree_core *core, ladei_tree_path *path) {
  for (size_t i = 0; i < path->row_count; i++) {
    if (path->rows[i] == NULL) continue;
    assert(!path->rows[i]->in_path); /* it has left the core */
    ladei_tree_storage_unreference(core, path->rows[i]);
  }
  for (size_t i = 0; i < path->count; i++)
    if (path->entries[i].node != NULL) path->entries[i].node->in_path = false;
  path->count = path->row_count = path->alive = 0;
}

void ladei_tree_path_free(ladei_tree_path *path) {
  free(path->entries);
  free(path->rows);
  memset(path, 0, sizeof *path);
}

uint32_t ladei_tree_path_alive_list(const ladei_tree_path *path, ladei_tree_position *list) {
  uint32_t count = 0;
  for (uint32_t depth = 0; depth < path->count; depth++) {
    const ladei_tree_entry *entry = &path->entries[depth];
    for (uint32_t output = 0; output < entry->output_count; output++) {
      if (!ladei_tree_alive(path->rows[entry->row + output])) continue;
      if (list != NULL) list[count] = (ladei_tree_position){depth, output};
      count++;
    }
  }
  return count;
}

/* ---- The core ---------------------------------------------------------------------------------------------------- */

void ladei_tree_core_init(ladei_tree_core *core, uint64_t tree) {
  memset(core, 0, sizeof *core);
  core->slots.last_free = &core->slots.first_free;
  core->slots.first_generation = (uint32_t)tree * 0x9e3779b1u;
  core->next_warmup = -1;
}

void ladei_tree_core_free(ladei_tree_core *core) {
  assert(core->node_count == 0 && core->first_node == NULL && core->path.count == 0);
  for (size_t i = 0; i < core->slots.chunk_count; i++) free(core->slots.chunks[i]);
  for (size_t i = 0; i < core->storages.chunk_count; i++) free(core->storages.chunks[i]);
  free(core->slots.chunks);
  free(core->storages.chunks);
  ladei_tree_path_free(&core->path);
  free(core->why);
}

ladei_tree_node *ladei_tree_current(const ladei_tree_core *core) {
  return core->path.count == 0 ? NULL : core->path.entries[core->path.count - 1].node;
}

int64_t ladei_tree_current_id(const ladei_tree_core *core) {
  return core->path.count == 0 ? LADE_GRAPH_NO_NODE : core->path.entries[core->path.count - 1].id;
}
