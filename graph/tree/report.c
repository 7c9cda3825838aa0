/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports of a tree: state and counters, a dump as JSON, and the check of its invariants.
 *
 * All calls except the check may be made from within a body or callback, in the thread of the run.
 */
#include <stdlib.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "base/output.h"
#include "graph/tree/tree.h"

static void reading_leave(lade_graph_tree *tree, bool inside) {
  if (!inside) ladei_tree_leave(tree);
}

static void stats_complete(lade_graph_tree *tree, lade_graph_tree_stats *own) {
  const ladei_tree_core *core = &tree->core;
  lade_device_pool_info info;
  lade_device_pool_info_init(&info);
  *own = tree->stats;
  own->struct_size = sizeof *own;
  own->state = core->state;
  own->pending = core->pending;
  own->node = ladei_tree_current_id(core);
  own->depth = core->path.count;
  own->last_run = core->runs;
  own->steps = core->marks;
  own->buffers = core->slots.valid_count;
  own->alive = core->path.alive;
  own->pool = tree->pool;
  own->stream = tree->stream.handle;
  own->suspended = ladei_tree_suspended(tree);
  own->nodes = core->node_count;
  own->driver_bytes = core->driver_bytes;
  own->metadata_bytes = tree->metadata_bytes;
  own->alone_bytes = tree->alone_bytes;
  own->checkpoint_blocks = tree->checkpoint_blocks;
  if (lade_device_pool_info_get(tree->allocator, tree->pool, &info) == LADE_OK)
    own->pool_reserved_bytes = info.reserved_bytes;
  own->pool_peak_bytes = ladei_tree_pool_peak(tree);
  own->saved_bytes = own->alone_bytes > own->pool_reserved_bytes ? own->alone_bytes - own->pool_reserved_bytes : 0;
}

lade_status lade_graph_tree_stats_get(lade_graph_tree *tree, lade_graph_tree_stats *stats) {
  bool inside = false;
  lade_graph_tree_stats own;
  if (stats == NULL) return ladei_error_null(__func__, "stats");
  LADEI_TRY(ladei_tree_enter_reading(tree, __func__, &inside));
  stats_complete(tree, &own);
  reading_leave(tree, inside);
  return ladei_stats_write("lade_graph_tree_stats", &own, sizeof own, stats);
}

lade_status ladei_tree_verify(lade_graph_tree *tree) {
  LADEI_TRY(ladei_tree_enter(tree, __func__));
  lade_status status = ladei_tree_awake_begin(tree, __func__);
  if (status == LADE_OK) {
    status = ladei_tree_check(tree);
    ladei_tree_awake_end(tree);
  }
  ladei_tree_leave(tree);
  return status;
}

/* ---- Dump -------------------------------------------------------------------------------------------------------- */

static const char *const state_names[] = {"NONE", "WARMUP", "RECORDING", "EXECUTION"};
static const char *const mode_names[] = {"inference", "forward", "backward"};
static const char *const class_names[] = {"managed", "static", "copied"};
static const char *const kind_names[] = {"new", "same", "prior", "input", "integer", "plain", "outside"};
static const char *const reason_names[] = {"form",  "managed", "static", "dead_before", "dead_after",
                                           "prior", "mutated", "limit",  "checkpoint"};

static void id_write(ladei_output *out, int64_t id) {
  if (id == LADE_GRAPH_NO_NODE)
    ladei_output_text(out, "null");
  else
    ladei_output_int(out, id);
}

static void key_write(ladei_output *out, const ladei_tree_instance *instance) {
  ladei_output_byte(out, '[');
  for (size_t i = 0; i < instance->key_count; i++)
    ladei_output_format(out, "%s%llu", i == 0 ? "" : ",", (unsigned long long)instance->key[i]);
  ladei_output_byte(out, ']');
}

static void positions_write(ladei_output *out, const char *name, const ladei_tree_positions *positions) {
  ladei_output_format(out, ",\"%s\":[", name);
  for (uint32_t i = 0; i < positions->count; i++)
    ladei_output_format(out, "%s[%u,%u]", i == 0 ? "" : ",", positions->list[i].depth, positions->list[i].output);
  ladei_output_byte(out, ']');
}

static void node_write(ladei_output *out, const ladei_tree_node *node) {
  ladei_output_format(out, "{\"id\":%lld,\"parent\":", (long long)node->id);
  id_write(out, node->parent == NULL ? LADE_GRAPH_NO_NODE : node->parent->id);
  ladei_output_text(out, ",\"function\":");
  ladei_output_json(out, node->instance->function->name);
  ladei_output_text(out, ",\"key\":");
  key_write(out, node->instance);
  positions_write(out, "dead_before", &node->dead_before);
  positions_write(out, "dead_after", &node->dead_after);
  positions_write(out, "after", &node->after);
  ladei_output_text(out, ",\"inputs\":[");
  for (uint32_t i = 0; i < node->input_count; i++)
    ladei_output_format(out, "%s{\"class\":\"%s\",\"address\":\"0x%llx\",\"bytes\":%llu}", i == 0 ? "" : ",",
                        class_names[node->inputs[i].class], (unsigned long long)node->inputs[i].address,
                        (unsigned long long)node->inputs[i].bytes);
  ladei_output_text(out, "],\"outputs\":[");
  for (uint32_t i = 0; i < node->output_count; i++)
    ladei_output_format(out, "%s{\"kind\":\"%s\",\"address\":\"0x%llx\",\"bytes\":%llu}", i == 0 ? "" : ",",
                        kind_names[node->outputs[i].kind], (unsigned long long)node->outputs[i].address,
                        (unsigned long long)node->outputs[i].bytes);
  ladei_output_format(out, "],\"replays\":%llu,\"last_used\":%llu,\"alone_bytes\":%llu,\"driver_bytes\":%llu}",
                      (unsigned long long)node->replays, (unsigned long long)node->used,
                      (unsigned long long)node->alone_bytes, (unsigned long long)node->driver_bytes);
}

static void path_write(ladei_output *out, const ladei_tree_path *path) {
  ladei_output_text(out, ",\"path\":[");
  for (size_t i = 0; i < path->count; i++) {
    const ladei_tree_entry *entry = &path->entries[i];
    ladei_output_format(out, "%s{\"id\":%lld,\"function\":", i == 0 ? "" : ",", (long long)entry->id);
    ladei_output_json(out, entry->function->name);
    ladei_output_text(out, ",\"outputs\":[");
    for (uint32_t j = 0; j < entry->output_count; j++) {
      const ladei_tree_storage *storage = path->rows[entry->row + j];
      if (storage == NULL) {
        ladei_output_text(out, j == 0 ? "null" : ",null");
        continue;
      }
      ladei_output_format(out, "%s{\"alive\":%s,\"counts\":%llu,\"address\":\"0x%llx\",\"bytes\":%llu}",
                          j == 0 ? "" : ",", ladei_tree_alive(storage) ? "true" : "false",
                          (unsigned long long)storage->counts, (unsigned long long)storage->address,
                          (unsigned long long)storage->bytes);
    }
    ladei_output_text(out, "]}");
  }
  ladei_output_byte(out, ']');
}

static void counter_write(ladei_output *out, const char *name, uint64_t value) {
  ladei_output_format(out, "\"%s\":%llu", name, (unsigned long long)value);
}

static void reasons_write(ladei_output *out, const char *name, const uint64_t *counts) {
  ladei_output_format(out, ",\"%s\":{", name);
  for (size_t i = 0; i < LADE_GRAPH_REASON_COUNT; i++) {
    if (i > 0) ladei_output_byte(out, ',');
    counter_write(out, reason_names[i], counts[i]);
  }
  ladei_output_byte(out, '}');
}

static void stats_write(ladei_output *out, const lade_graph_tree_stats *stats) {
  const struct {
    const char *name;
    uint64_t value;
  } counters[] = {{"runs", stats->runs},
                  {"eager_runs", stats->eager_runs},
                  {"warmups", stats->warmups},
                  {"recordings", stats->recordings},
                  {"replays", stats->replays},
                  {"errors", stats->errors},
                  {"ended_boundary", stats->ended_boundary},
                  {"ended_dead", stats->ended_dead},
                  {"restores", stats->restores},
                  {"evictions", stats->evictions},
                  {"carried", stats->carried},
                  {"carried_bytes", stats->carried_bytes},
                  {"copied", stats->copied},
                  {"copied_bytes", stats->copied_bytes},
                  {"overwritten", stats->overwritten},
                  {"checkpoints_failed", stats->checkpoints_failed},
                  {"nodes", stats->nodes},
                  {"pool_reserved_bytes", stats->pool_reserved_bytes},
                  {"pool_peak_bytes", stats->pool_peak_bytes},
                  {"alone_bytes", stats->alone_bytes},
                  {"saved_bytes", stats->saved_bytes},
                  {"driver_bytes", stats->driver_bytes},
                  {"metadata_bytes", stats->metadata_bytes},
                  {"checkpoint_blocks", stats->checkpoint_blocks}};
  ladei_output_text(out, ",\"stats\":{");
  for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
    if (i > 0) ladei_output_byte(out, ',');
    counter_write(out, counters[i].name, counters[i].value);
  }
  reasons_write(out, "mismatches", stats->mismatches);
  reasons_write(out, "eager", stats->eager);
  ladei_output_byte(out, '}');
}

static void functions_write(ladei_output *out, const lade_graph_tree *tree) {
  ladei_output_text(out, ",\"functions\":[");
  for (const lade_graph_function *function = tree->functions; function != NULL; function = function->next) {
    if (function != tree->functions) ladei_output_byte(out, ',');
    ladei_output_text(out, "{\"name\":");
    ladei_output_json(out, function->name);
    ladei_output_format(out, ",\"mode\":\"%s\",\"inputs\":%u,\"outputs\":%u}", mode_names[function->mode],
                        function->input_count, function->output_count);
  }
  ladei_output_byte(out, ']');
}

static void tree_write(ladei_output *out, const lade_graph_tree *tree, const lade_graph_tree_stats *stats) {
  const ladei_tree_core *core = &tree->core;
  const ladei_tree_settings *settings = &core->settings;
  ladei_output_format(out, "{\"version\":1,\"pool\":[%llu,%llu]", (unsigned long long)tree->pool.first,
                      (unsigned long long)tree->pool.second);
  ladei_output_format(
      out,
      ",\"options\":{\"warmups\":%llu,\"max_nodes\":%llu,\"max_rerecords\":%llu,\"max_driver_bytes\":%llu,"
      "\"fixed_statics\":%s}",
      (unsigned long long)settings->warmups, (unsigned long long)settings->max_nodes,
      (unsigned long long)settings->max_rerecords, (unsigned long long)settings->max_driver_bytes,
      settings->fixed_statics ? "true" : "false");
  ladei_output_format(out, ",\"state\":\"%s\",\"pending\":%s,\"steps\":%llu,\"node\":", state_names[core->state],
                      core->pending ? "true" : "false", (unsigned long long)core->marks);
  id_write(out, ladei_tree_current_id(core));
  stats_write(out, stats);
  functions_write(out, tree);
  ladei_output_text(out, ",\"nodes\":[");
  for (const ladei_tree_node *node = core->first_node; node != NULL; node = node->list_next) {
    if (node != core->first_node) ladei_output_byte(out, ',');
    node_write(out, node);
  }
  ladei_output_byte(out, ']');
  path_write(out, &core->path);
  ladei_output_text(out, ",\"segments\":[");
  for (size_t i = 0; i < tree->segments.count; i++)
    ladei_output_format(out, "%s{\"address\":\"0x%llx\",\"bytes\":%zu}", i == 0 ? "" : ",",
                        (unsigned long long)(uintptr_t)tree->segments.list[i].address, tree->segments.list[i].bytes);
  ladei_output_text(out, "]}\n");
}

lade_status lade_graph_tree_dump(lade_graph_tree *tree, lade_graph_writer writer, void *user) {
  bool inside = false;
  lade_graph_tree_stats stats;
  if (writer == NULL) return ladei_error_null(__func__, "writer");
  ladei_output *out = malloc(sizeof *out);
  if (out == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu bytes", __func__, sizeof *out);
  lade_status status = ladei_tree_enter_reading(tree, __func__, &inside);
  if (status == LADE_OK) {
    int cancellation = ladei_cancellation_hold();
    ladei_output_init(out, writer, user);
    stats_complete(tree, &stats);
    tree_write(out, tree, &stats);
    status = ladei_output_flush(out);
    reading_leave(tree, inside);
    ladei_cancellation_resume(cancellation);
  }
  free(out);
  return status;
}
