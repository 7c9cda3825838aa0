/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recordings and the groups that list them.
 *
 * A node and all its lists are one piece of memory. A group with more than LADEI_TREE_GROUP_FEW has a table by hash
 * (match.c, Note [Hashes]). Empty groups stay: they count the recordings made anew for inputs that moved.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "graph/core/core.h"

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

ladei_tree_node *ladei_tree_node_make(ladei_tree_instance *instance, uint32_t inputs, uint32_t outputs, uint32_t before,
                                      uint32_t after_dead, uint32_t after) {
  size_t positions = (size_t)before + after_dead + after;
  size_t bytes = sizeof(ladei_tree_node) + inputs * sizeof(ladei_tree_node_input) +
                 outputs * sizeof(ladei_tree_node_output) + positions * sizeof(ladei_tree_position);
  ladei_tree_node *node = calloc(1, bytes);
  if (node == NULL) return NULL;
  node->instance = instance;
  node->metadata_bytes = bytes;
  node->input_count = inputs;
  node->output_count = outputs;
  node->inputs = (ladei_tree_node_input *)(node + 1);
  node->outputs = (ladei_tree_node_output *)(node->inputs + inputs);
  node->dead_before = (ladei_tree_positions){(ladei_tree_position *)(node->outputs + outputs), before};
  node->dead_after = (ladei_tree_positions){node->dead_before.list + before, after_dead};
  node->after = (ladei_tree_positions){node->dead_after.list + after_dead, after};
  instance->function->nodes++;
  return node;
}

static void groups_free(ladei_tree_group *groups) {
  while (groups != NULL) {
    ladei_tree_group *group = groups;
    groups = group->next;
    assert(group->count == 0);
    free(group->buckets);
    free(group);
  }
}

void ladei_tree_node_free(ladei_tree_node *node) {
  assert(!node->listed && !node->in_path && node->offspring == 0);
  if (node->parent != NULL) node->parent->offspring--;
  groups_free(node->groups);
  node->instance->function->nodes--;
  free(node->used_ranges);
  free(node);
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static ladei_tree_group **groups_of(ladei_tree_core *core, ladei_tree_node *parent) {
  return parent == NULL ? &core->roots : &parent->groups;
}

ladei_tree_group *ladei_tree_group_find(ladei_tree_core *core, ladei_tree_node *parent,
                                        const ladei_tree_instance *instance) {
  ladei_tree_group **first = groups_of(core, parent);
  for (ladei_tree_group **link = first; *link != NULL; link = &(*link)->next) {
    ladei_tree_group *group = *link;
    if (group->instance != instance) continue;
    *link = group->next; /* to the front */
    group->next = *first;
    *first = group;
    return group;
  }
  return NULL;
}

ladei_tree_group *ladei_tree_group_make(ladei_tree_core *core, ladei_tree_node *parent, ladei_tree_instance *instance) {
  ladei_tree_group *group = ladei_tree_group_find(core, parent, instance);
  if (group != NULL) return group;
  group = calloc(1, sizeof *group);
  if (group == NULL) return NULL;
  group->instance = instance;
  group->next = *groups_of(core, parent);
  *groups_of(core, parent) = group;
  return group;
}

static void bucket_append(ladei_tree_group *group, ladei_tree_node *node) {
  ladei_tree_node **link = &group->buckets[node->hash & (group->bucket_count - 1)];
  while (*link != NULL) link = &(*link)->bucket_next;
  node->bucket_next = NULL;
  *link = node;
}

bool ladei_tree_group_reserve(ladei_tree_core *core, ladei_tree_group *group) {
  if (!LADEI_ARRAY_ROOM(core->why, core->why_capacity, group->count + 2)) return false;
  if (group->count < LADEI_TREE_GROUP_FEW || group->count < group->bucket_count) return true;
  size_t count = group->bucket_count == 0 ? 16 : group->bucket_count * 4;
  ladei_tree_node **buckets = calloc(count, sizeof(ladei_tree_node *));
  if (buckets == NULL) return false;
  free(group->buckets);
  group->buckets = buckets;
  group->bucket_count = count;
  for (ladei_tree_node *node = group->first; node != NULL; node = node->next) bucket_append(group, node);
  return true;
}

void ladei_tree_node_list(ladei_tree_core *core, ladei_tree_node *node, ladei_tree_group *group) {
  assert(!node->listed && node->instance == group->instance);
  assert(core->last_node == NULL || core->last_node->id < node->id); /* by id */
  node->group = group;
  node->next = NULL;
  if (group->last == NULL)
    group->first = node;
  else
    group->last->next = node;
  group->last = node;
  group->count++;
  if (group->buckets != NULL) bucket_append(group, node);
  node->listed = true;
  node->list_before = core->last_node;
  if (core->last_node == NULL)
    core->first_node = node;
  else
    core->last_node->list_next = node;
  core->last_node = node;
  core->node_count++;
  core->driver_bytes += node->driver_bytes;
  if (node->parent != NULL) node->parent->children++;
}

void ladei_tree_node_unlist(ladei_tree_core *core, ladei_tree_node *node) {
  ladei_tree_group *group = node->group;
  assert(node->listed && node->children == 0 && group->count > 0); /* G4 */
  ladei_tree_node *before = NULL, **link = &group->first;
  for (; *link != node; link = &(*link)->next) before = *link;
  *link = node->next;
  if (group->last == node) group->last = before;
  group->count--;
  if (group->buckets != NULL) {
    link = &group->buckets[node->hash & (group->bucket_count - 1)];
    while (*link != node) link = &(*link)->bucket_next;
    *link = node->bucket_next;
  }
  if (node->list_before == NULL)
    core->first_node = node->list_next;
  else
    node->list_before->list_next = node->list_next;
  if (node->list_next == NULL)
    core->last_node = node->list_before;
  else
    node->list_next->list_before = node->list_before;
  core->node_count--;
  core->driver_bytes -= node->driver_bytes;
  node->listed = false;
  node->group = NULL;
  node->next = node->bucket_next = node->list_next = node->list_before = NULL;
  if (node->parent != NULL) node->parent->children--;
}

ladei_tree_node *ladei_tree_leaf(const ladei_tree_core *core, bool path_counts) {
  ladei_tree_node *oldest = NULL;
  for (ladei_tree_node *node = core->first_node; node != NULL; node = node->list_next) {
    if (node->children > 0 || (path_counts && node->in_path)) continue;
    assert(node->listed);
    if (oldest == NULL || node->used < oldest->used) oldest = node;
  }
  return oldest;
}
