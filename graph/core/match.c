/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a recording serves a call. Each criterion is checked for all inputs before the next one; the first that fails
 * is the reason.
 *
 * Note [Hashes]
 *   The criteria form, managed and static compare numbers, so a recording with another hash of these cannot match. In a
 *   group with many recordings a search goes only over those of the call's hash, oldest first, and finds the same one.
 *   The reasons of the others are not known then; if nothing matches, a second search goes over all recordings.
 */
#include <assert.h>

#include "graph/core/core.h"

void ladei_tree_classify(const ladei_tree_core *core, ladei_tree_call *call, bool ended) {
  (void)core;
  for (size_t i = 0; i < call->count; i++) {
    ladei_tree_input *input = &call->inputs[i];
    bool was = input->storage != NULL && input->storage->in_path;
    input->carried = was && ended;
    if (was && !ended)
      input->class = LADE_GRAPH_CLASS_MANAGED;
    else
      input->class = (input->flags & LADE_GRAPH_STATIC) != 0 && !input->carried ? LADE_GRAPH_CLASS_STATIC
                                                                                : LADE_GRAPH_CLASS_COPIED;
  }
}

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

uint64_t ladei_tree_hash(const ladei_tree_core *core, const ladei_tree_call *call) {
  uint64_t hash = 1;
  for (size_t i = 0; i < call->count; i++) {
    const ladei_tree_input *input = &call->inputs[i];
    hash = mix(hash, input->bytes * 4 + input->class);
    if (input->class == LADE_GRAPH_CLASS_COPIED) continue;
    if (input->class == LADE_GRAPH_CLASS_STATIC && core->settings.fixed_statics) continue;
    hash = mix(hash, input->address);
  }
  return hash;
}

static bool form_fits(const ladei_tree_input *input, const ladei_tree_node_input *own) {
  return input->bytes == own->bytes &&
         (input->class == LADE_GRAPH_CLASS_COPIED) == (own->class == LADE_GRAPH_CLASS_COPIED);
}

static bool managed_fits(const ladei_tree_input *input, const ladei_tree_node_input *own) {
  bool managed = input->class == LADE_GRAPH_CLASS_MANAGED;
  return managed == (own->class == LADE_GRAPH_CLASS_MANAGED) && (!managed || input->address == own->address);
}

static bool static_fits(const ladei_tree_input *input, const ladei_tree_node_input *own) {
  return input->class != LADE_GRAPH_CLASS_STATIC || input->address == own->address;
}

static bool all_fit(const ladei_tree_call *call, const ladei_tree_node *node,
                    bool (*fits)(const ladei_tree_input *, const ladei_tree_node_input *)) {
  for (size_t i = 0; i < call->count; i++)
    if (!fits(&call->inputs[i], &node->inputs[i])) return false;
  return true;
}

static bool dead_before_fits(const ladei_tree_path *path, const ladei_tree_positions *dead) {
  for (uint32_t i = 0; i < dead->count; i++)
    if (ladei_tree_alive(ladei_tree_path_at(path, dead->list[i]))) return false;
  return true;
}

static bool dead_after_fits(const ladei_tree_path *path, const ladei_tree_positions *dead) {
  for (uint32_t i = 0; i < dead->count; i++) {
    const ladei_tree_storage *storage = ladei_tree_path_at(path, dead->list[i]);
    if (ladei_tree_alive(storage) && storage->counts > storage->takes) return false;
  }
  return true;
}

static bool priors_fit(const ladei_tree_path *path, const ladei_tree_node *node) {
  for (uint32_t i = 0; i < node->output_count; i++) {
    const ladei_tree_node_output *output = &node->outputs[i];
    if (output->kind != LADE_GRAPH_OUTPUT_PRIOR || output->source != LADEI_TREE_BY_POSITION) continue;
    if (!ladei_tree_alive(ladei_tree_path_at(path, output->position))) return false;
  }
  return true;
}

uint32_t ladei_tree_match(const ladei_tree_core *core, const ladei_tree_call *call, const ladei_tree_node *node) {
  assert(call->count == node->input_count && node->listed);
  if (!all_fit(call, node, form_fits)) return LADE_GRAPH_REASON_FORM;
  if (!all_fit(call, node, managed_fits)) return LADE_GRAPH_REASON_MANAGED;
  if (!core->settings.fixed_statics && !all_fit(call, node, static_fits)) return LADE_GRAPH_REASON_STATIC;
  if (!dead_before_fits(&core->path, &node->dead_before)) return LADE_GRAPH_REASON_DEAD_BEFORE;
  if (!dead_after_fits(&core->path, &node->dead_after)) return LADE_GRAPH_REASON_DEAD_AFTER;
  if (!priors_fit(&core->path, node)) return LADE_GRAPH_REASON_PRIOR;
  return LADE_GRAPH_REASON_COUNT;
}

size_t ladei_tree_moved_static(const ladei_tree_call *call, const ladei_tree_node *node) {
  assert(call->count == node->input_count);
  size_t i = 0;
  while (i < call->count && static_fits(&call->inputs[i], &node->inputs[i])) i++;
  return i;
}
