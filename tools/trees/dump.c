/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading of tree dumps (docs/formats.md). What a document lacks is 0 or empty; what is of another kind than it should be makes it
 * no dump.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tools/trees/picture.h"

static lade_status no_dump(const char *what) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "it is no dump of a graph tree: %s", what);
}

static lade_status no_room(void) { return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "dump: no memory for the tree"); }

/* Numbers may have been read as reals, where one of the document has more than 63 bits. */
static uint64_t number_of(const json_t *number) {
  double value = json_number_value(number);
  if (!(value > 0.0)) return 0;
  if (json_is_integer(number)) return (uint64_t)json_integer_value(number);
  return value < 18446744073709551615.0 ? (uint64_t)value : UINT64_MAX;
}

static uint64_t number_at(const json_t *object, const char *key) { return number_of(json_object_get(object, key)); }

static const char *text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text != NULL ? text : "";
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

/* The place of a recording in the list, by its id; they ascend. */
static size_t node_find(const trees_picture *p, size_t count, int64_t id) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (p->nodes[middle].id < id)
      low = middle + 1;
    else
      high = middle;
  }
  return low < count && p->nodes[low].id == id ? low : SIZE_MAX;
}

static void title_make(trees_picture_node *node, const json_t *object) {
  size_t used =
      (size_t)snprintf(node->title, sizeof node->title, "%" PRId64 " %.48s(", node->id, text_of(object, "function"));
  size_t index;
  json_t *word;
  json_array_foreach(json_object_get(object, "key"), index, word) {
    if (used + 24 >= sizeof node->title) break;
    used += (size_t)snprintf(node->title + used, sizeof node->title - used, "%s%" PRIu64, index > 0 ? "," : "",
                             number_of(word));
  }
  if (used + 1 < sizeof node->title) strcat(node->title, ")");
}

static bool output_read(trees_picture_output *out, const json_t *object) {
  if (!json_is_object(object)) return false;
  snprintf(out->kind, sizeof out->kind, "%.11s", text_of(object, "kind"));
  if (strcmp(out->kind, "integer") == 0) return true;
  out->bytes = number_at(object, "bytes");
  out->address = strtoull(text_of(object, "address"), NULL, 0);
  return true;
}

/* The output at a position of the path to a node; NULL: there is none. */
static trees_picture_output *output_at(trees_picture *p, size_t node, uint64_t depth, uint64_t output) {
  while (node != SIZE_MAX && p->nodes[node].depth > depth) node = p->nodes[node].parent;
  if (node == SIZE_MAX || p->nodes[node].depth != depth || output >= p->nodes[node].output_count) return NULL;
  return &p->outputs[p->nodes[node].first_output + output];
}

/* Outputs of ancestors that are memory, oldest first; all dead so far. False: no memory. */
static bool older_list(trees_picture *p, trees_picture_node *node) {
  size_t count = 0, at;
  for (size_t up = node->parent; up != SIZE_MAX; up = p->nodes[up].parent)
    for (size_t i = 0; i < p->nodes[up].output_count; i++) count += p->outputs[p->nodes[up].first_output + i].bytes > 0;
  node->first_older = p->older_count;
  node->older_dead = count;
  trees_picture_older *larger = realloc(p->older, (p->older_count + count + 1) * sizeof *larger);
  if (larger == NULL) return false;
  p->older = larger;
  p->older_count += count;
  at = p->older_count;
  for (size_t up = node->parent; up != SIZE_MAX; up = p->nodes[up].parent)
    for (size_t i = p->nodes[up].output_count; i-- > 0;)
      if (p->outputs[p->nodes[up].first_output + i].bytes > 0)
        p->older[--at] = (trees_picture_older){p->nodes[up].first_output + i, p->nodes[up].id, false};
  return true;
}

static void older_live(trees_picture *p, trees_picture_node *node, const trees_picture_output *output) {
  size_t place = (size_t)(output - p->outputs);
  for (size_t i = node->first_older; i < p->older_count; i++) {
    if (p->older[i].output != place || p->older[i].alive) continue;
    p->older[i].alive = true;
    node->older_alive++;
    node->older_dead--;
    node->older_alive_bytes += output->bytes;
  }
}

/* Own outputs that are alive behind the recording, and what is alive of older ones. */
static lade_status after_read(trees_picture *p, size_t index, const json_t *object) {
  trees_picture_node *node = &p->nodes[index];
  size_t i;
  json_t *position;
  json_array_foreach(json_object_get(object, "after"), i, position) {
    const json_t *depth = json_array_get(position, 0), *place = json_array_get(position, 1);
    if (!json_is_number(depth) || !json_is_number(place)) return no_dump("a position is no pair of numbers");
    trees_picture_output *output = output_at(p, index, number_of(depth), number_of(place));
    if (output == NULL) continue; /* an ancestor has been evicted */
    if (number_of(depth) == node->depth)
      output->alive = true;
    else
      older_live(p, node, output);
  }
  return LADE_OK;
}

static lade_status outputs_read(trees_picture *p, trees_picture_node *node, const json_t *list) {
  size_t i;
  json_t *object;
  node->first_output = p->output_count;
  node->output_count = json_array_size(list);
  json_array_foreach(list, i, object) {
    if (!output_read(&p->outputs[p->output_count], object)) return no_dump("an output is no object");
    p->output_count++;
  }
  return LADE_OK;
}

static lade_status node_read(trees_picture *p, size_t index, const json_t *object) {
  trees_picture_node *node = &p->nodes[index];
  if (!json_is_number(json_object_get(object, "id"))) return no_dump("a recording has no \"id\"");
  node->id = (int64_t)number_at(object, "id");
  if (index > 0 && node->id <= p->nodes[index - 1].id) return no_dump("ids do not ascend");
  const json_t *parent = json_object_get(object, "parent");
  node->parent = json_is_number(parent) ? node_find(p, index, (int64_t)number_of(parent)) : SIZE_MAX;
  node->depth = node->parent == SIZE_MAX ? 0 : p->nodes[node->parent].depth + 1;
  node->replays = number_at(object, "replays");
  node->alone_bytes = number_at(object, "alone_bytes");
  title_make(node, object);
  lade_status status = outputs_read(p, node, json_object_get(object, "outputs"));
  if (status == LADE_OK && !older_list(p, node)) status = no_room();
  if (status == LADE_OK) status = after_read(p, index, object);
  return status;
}

/* ---- The document ------------------------------------------------------------------------------------------------ */

/* Outputs of the path are as they are now. */
static void path_read(trees_picture *p, trees_picture_node *node, const json_t *outputs) {
  size_t i;
  json_t *output;
  node->in_path = true;
  json_array_foreach(outputs, i, output) {
    if (i >= node->output_count || !json_is_object(output)) continue;
    p->outputs[node->first_output + i].alive = json_is_true(json_object_get(output, "alive"));
  }
}

static void facts_read(trees_picture *p, const json_t *document) {
  const json_t *stats = json_object_get(document, "stats");
  snprintf(p->state, sizeof p->state, "%.15s", text_of(document, "state"));
  p->reserved_bytes = number_at(stats, "pool_reserved_bytes");
  p->peak_bytes = number_at(stats, "pool_peak_bytes");
  p->alone_bytes = number_at(stats, "alone_bytes");
  size_t i;
  json_t *entry;
  json_array_foreach(json_object_get(document, "path"), i, entry) {
    const json_t *id = json_object_get(entry, "id"); /* below 0: a warm-up */
    size_t node = json_number_value(id) < 0.0 ? SIZE_MAX : node_find(p, p->node_count, (int64_t)number_of(id));
    if (node != SIZE_MAX) path_read(p, &p->nodes[node], json_object_get(entry, "outputs"));
  }
}

static bool room_make(trees_picture *out, const json_t *nodes) {
  size_t outputs = 0, i;
  json_t *object;
  json_array_foreach(nodes, i, object) outputs += json_array_size(json_object_get(object, "outputs"));
  out->nodes = calloc(json_array_size(nodes) + 1, sizeof *out->nodes);
  out->outputs = calloc(outputs + 1, sizeof *out->outputs);
  return out->nodes != NULL && out->outputs != NULL;
}

static lade_status document_read(trees_picture *out, const json_t *document) {
  const json_t *nodes = json_object_get(document, "nodes");
  if (!json_is_array(nodes)) return no_dump("\"nodes\" is missing");
  lade_status status = room_make(out, nodes) ? LADE_OK : no_room();
  size_t i;
  json_t *object;
  json_array_foreach(nodes, i, object) {
    if (status == LADE_OK) status = node_read(out, i, object);
    if (status == LADE_OK) out->node_count++;
  }
  if (status == LADE_OK) {
    facts_read(out, document);
    status = trees_picture_lay(out);
  }
  if (status != LADE_OK) trees_picture_destroy(out);
  return status;
}

lade_status trees_picture_read(trees_picture *out, const char *text, size_t length) {
  *out = (trees_picture){0};
  json_error_t error;
  json_t *document = json_loadb(text, length, 0, &error);
  if (document == NULL) document = json_loadb(text, length, JSON_DECODE_INT_AS_REAL, &error);
  if (document == NULL)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "it is no dump of a graph tree: line %d: %s", error.line,
                       error.text);
  lade_status status = document_read(out, document);
  json_decref(document);
  return status;
}
