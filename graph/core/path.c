/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path: what has run since it began, with the storages of its outputs.
 *
 * A path that ends leaves the core first: for the call that ends it nothing is managed any more. It is cleared when the end stands,
 * and returns where a recording that came after it fails.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "graph/core/core.h"

bool ladei_tree_path_reserve(ladei_tree_path *path, size_t outputs) {
  if (path->count == path->capacity) {
    size_t capacity = path->capacity * 2 + 16;
    ladei_tree_entry *entries = realloc(path->entries, capacity * sizeof *entries);
    if (entries == NULL) return false;
    path->entries = entries;
    path->capacity = capacity;
  }
  if (path->row_count + outputs > path->row_capacity) {
    size_t capacity = (path->row_count + outputs) * 2 + 64;
    ladei_tree_storage **rows = realloc(path->rows, capacity * sizeof(ladei_tree_storage *));
    if (rows == NULL) return false;
    path->rows = rows;
    path->row_capacity = capacity;
  }
  return true;
}

ladei_tree_entry *ladei_tree_path_push(ladei_tree_path *path, ladei_tree_node *node, lade_graph_function *function,
                                       int64_t id, uint32_t output_count) {
  assert(path->count < path->capacity && path->row_count + output_count <= path->row_capacity);
  ladei_tree_entry *entry = &path->entries[path->count++];
  *entry = (ladei_tree_entry){node, function, id, output_count, path->row_count};
  for (uint32_t i = 0; i < output_count; i++) path->rows[path->row_count + i] = NULL;
  path->row_count += output_count;
  function->nodes++;
  if (node != NULL) node->in_path = true;
  return entry;
}

void ladei_tree_path_set(ladei_tree_path *path, size_t depth, uint32_t output, ladei_tree_storage *storage) {
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
  assert(ending->count == 0);
  path_mark(&core->path, false);
  ladei_tree_path empty = *ending;
  *ending = core->path;
  core->path = empty;
}

void ladei_tree_path_return(ladei_tree_core *core, ladei_tree_path *ending) {
  assert(core->path.count == 0);
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
  for (size_t i = 0; i < path->row_count; i++)
    if (path->rows[i] != NULL) ladei_tree_storage_unreference(core, path->rows[i]);
  for (size_t i = 0; i < path->count; i++)
    if (path->entries[i].node != NULL) path->entries[i].node->in_path = false;
  path->count = path->row_count = path->alive = 0;
}

void ladei_tree_path_free(ladei_tree_path *path) {
  free(path->entries);
  free(path->rows);
  memset(path, 0, sizeof *path);
}

uint32_t ladei_tree_path_alive_list(const ladei_tree_path *path, lade_graph_position *list) {
  uint32_t count = 0;
  for (uint32_t depth = 0; depth < path->count; depth++) {
    const ladei_tree_entry *entry = &path->entries[depth];
    for (uint32_t output = 0; output < entry->output_count; output++) {
      if (!ladei_tree_alive(path->rows[entry->row + output])) continue;
      if (list != NULL) list[count] = (lade_graph_position){depth, output};
      count++;
    }
  }
  return count;
}
