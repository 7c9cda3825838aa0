/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recounts the invariants that core.h states, from slots, storages, rows and nodes themselves. Between runs: then no
 * path is ending, and no output is without its slot.
 */
#include "base/error.h"
#include "graph/core/core.h"

lade_status ladei_tree_wrong(const char *what, uint64_t value, uint64_t expected) {
  return ladei_error(LADE_ERR_INTERNAL, 0, "graph tree: %s is %llu; expected %llu", what, (unsigned long long)value,
                     (unsigned long long)expected);
}

/* ---- Slots and storages ------------------------------------------------------------------------------------------ */

static lade_status free_slots_check(const ladei_tree_slots *slots, size_t valid) {
  size_t count = 0, all = slots->chunk_count * LADEI_TREE_SLOT_CHUNK;
  for (const ladei_tree_slot *slot = slots->first_free; slot != NULL && count <= all; slot = slot->next) {
    if (slot->storage != NULL) return ladei_tree_wrong("the storage of a free buffer", 1, 0);
    count++;
  }
  if (count != slots->free_count) return ladei_tree_wrong("the number of free buffers", slots->free_count, count);
  if (valid != slots->valid_count) return ladei_tree_wrong("the number of valid buffers", slots->valid_count, valid);
  return count + valid == all ? LADE_OK : ladei_tree_wrong("the number of all buffers", count + valid, all);
}

/* G1 */
static lade_status slots_check(const ladei_tree_slots *slots) {
  size_t valid = 0, named = 0;
  for (size_t chunk = 0; chunk < slots->chunk_count; chunk++) {
    for (size_t i = 0; i < LADEI_TREE_SLOT_CHUNK; i++) {
      const ladei_tree_slot *slot = &slots->chunks[chunk][i];
      if (slot->storage == NULL) continue;
      valid++;
      if (slot->counts == 0) return ladei_tree_wrong("the count of a valid buffer", 0, 1);
      if (slot->storage->slots != slot) continue; /* once for each storage */
      uint64_t sum = 0;
      for (const ladei_tree_slot *one = slot->storage->slots; one != NULL; one = one->next, named++) sum += one->counts;
      if (sum != slot->storage->counts) return ladei_tree_wrong("the count of a storage", slot->storage->counts, sum);
    }
  }
  if (named != valid) return ladei_tree_wrong("the number of buffers that storages know", named, valid);
  return free_slots_check(slots, valid);
}

static size_t free_storages(const ladei_tree_storages *storages) {
  size_t count = 0;
  for (const ladei_tree_storage *storage = storages->free; storage != NULL && count <= storages->free_count;
       storage = storage->next)
    count += storage->references == 0;
  return count;
}

static size_t rows_filled(const ladei_tree_path *path) {
  size_t count = 0;
  for (size_t i = 0; i < path->row_count; i++) count += path->rows[i] != NULL;
  return count;
}

/* G2, G3; references as a sum. */
static lade_status storages_check(const ladei_tree_core *core) {
  size_t used = 0, alive = 0, references = 0, garbage = 0;
  for (size_t chunk = 0; chunk < core->storages.chunk_count; chunk++) {
    for (size_t i = 0; i < LADEI_TREE_SLOT_CHUNK; i++) {
      const ladei_tree_storage *storage = &core->storages.chunks[chunk][i];
      if (storage->references == 0) continue; /* free */
      used++;
      references += storage->references;
      garbage += storage->is_garbage;
      alive += storage->in_path && ladei_tree_alive(storage);
    }
  }
  size_t all = core->storages.chunk_count * LADEI_TREE_SLOT_CHUNK;
  size_t expected = core->slots.valid_count + rows_filled(&core->path) + garbage;
  if (free_storages(&core->storages) != core->storages.free_count || used + core->storages.free_count != all)
    return ladei_tree_wrong("the number of free storages", core->storages.free_count, all - used);
  if (references != expected) return ladei_tree_wrong("the number of references to storages", references, expected);
  return alive == core->path.alive
             ? LADE_OK
             : ladei_tree_wrong("the number of memories alive in the path", core->path.alive, alive);
}

/* ---- The path ---------------------------------------------------------------------------------------------------- */

/* G5; rows lie one after the other, and a recording's parent is the one before it. */
static lade_status path_check(const ladei_tree_core *core) {
  const ladei_tree_path *path = &core->path;
  size_t row = 0;
  for (size_t i = 0; i < path->count; i++) {
    const ladei_tree_entry *entry = &path->entries[i];
    const ladei_tree_node *before = i > 0 ? path->entries[i - 1].node : NULL;
    if (entry->row != row) return ladei_tree_wrong("the first place of an entry's row", entry->row, row);
    row += entry->output_count;
    if (entry->node != NULL && !entry->node->in_path)
      return ladei_tree_wrong("whether the path has its recording", 0, 1);
    if (entry->node != NULL && entry->node->parent != before)
      return ladei_tree_wrong("whether a recording of the path follows its parent", 0, 1);
  }
  if (row != path->row_count) return ladei_tree_wrong("the number of places in rows", path->row_count, row);
  for (size_t i = 0; i < row; i++)
    if (path->rows[i] != NULL && !path->rows[i]->in_path)
      return ladei_tree_wrong("whether the path has its memory", 0, 1);
  if ((path->count == 0) != (core->state == LADE_GRAPH_STATE_NONE))
    return ladei_tree_wrong("the state of a path", core->state, path->count);
  return LADE_OK;
}

/* ---- Recordings -------------------------------------------------------------------------------------------------- */

static size_t bucketed(const ladei_tree_group *group) {
  size_t count = 0;
  for (size_t i = 0; i < group->bucket_count; i++)
    for (const ladei_tree_node *node = group->buckets[i]; node != NULL; node = node->bucket_next)
      count += (node->hash & (group->bucket_count - 1)) == i;
  return count;
}

/* G4, of groups after one node, or of the roots. Adds the recordings that they list. */
static lade_status groups_check(const ladei_tree_group *groups, const ladei_tree_node *parent, size_t *listed) {
  size_t all = 0;
  for (const ladei_tree_group *group = groups; group != NULL; group = group->next) {
    size_t count = 0;
    const ladei_tree_node *last = NULL;
    for (const ladei_tree_node *node = group->first; node != NULL; node = node->next, count++) {
      if (!node->listed || node->group != group || node->parent != parent)
        return ladei_tree_wrong("whether a group's recording is listed there, behind its parent", 0, 1);
      last = node;
    }
    if (count != group->count || last != group->last)
      return ladei_tree_wrong("the number of recordings of a group", group->count, count);
    if (group->buckets != NULL && bucketed(group) != count)
      return ladei_tree_wrong("the number of recordings in a group's table", bucketed(group), count);
    all += count;
  }
  if (parent != NULL && (parent->children != all || parent->offspring < all))
    return ladei_tree_wrong("the number of a recording's children", parent->children, all);
  *listed += all;
  return LADE_OK;
}

static lade_status nodes_check(const ladei_tree_core *core) {
  size_t count = 0, reachable = 0, listed = 0, of_path = 0;
  uint64_t driver_bytes = 0;
  const ladei_tree_node *before = NULL;
  lade_status status = groups_check(core->roots, NULL, &listed);
  for (const ladei_tree_node *node = core->first_node; node != NULL && status == LADE_OK; node = node->list_next) {
    if (!node->listed || node->list_before != before || (before != NULL && before->id >= node->id))
      return ladei_tree_wrong("whether recordings are listed by their ids", 0, 1);
    before = node;
    count++;
    reachable += node->parent == NULL || node->parent->listed; /* an evicted one may have listed children */
    driver_bytes += node->driver_bytes;
    status = groups_check(node->groups, node, &listed);
  }
  for (size_t i = 0; i < core->path.count && status == LADE_OK; i++) {
    const ladei_tree_node *node = core->path.entries[i].node;
    if (node != NULL && !node->listed) status = groups_check(node->groups, node, &of_path);
  }
  if (status != LADE_OK) return status;
  if (before != core->last_node || count != core->node_count)
    return ladei_tree_wrong("the number of recordings", core->node_count, count);
  if (listed != reachable) return ladei_tree_wrong("the number of recordings in groups", listed, reachable);
  if (driver_bytes != core->driver_bytes)
    return ladei_tree_wrong("the driver's memory of recordings", core->driver_bytes, driver_bytes);
  return LADE_OK;
}

lade_status ladei_tree_core_check(const ladei_tree_core *core) {
  lade_status status = slots_check(&core->slots);
  if (status == LADE_OK) status = storages_check(core);
  if (status == LADE_OK) status = path_check(core);
  return status == LADE_OK ? nodes_check(core) : status;
}
