/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ladder decides what a call does. The rules apply in order until one decides; their numbers are those of
 * lade_graph_run_record.rule.
 *
 *   2  RECORDING, WARMUP, or EXECUTION before a cold function: the path ends, if it may
 *   3  an input is mutated that is neither static nor the path's: eager
 *   4  the function is cold, or the path has come to warm-ups: warm-up
 *   5  a recording matches: replay. None does, after replays: the path ends, if it may, and the roots are searched
 *   6  a limit: eager, or the longest unused recording goes
 *   7  record
 *
 * When a path ends, none of its memory is managed any more; the call's inputs of it are carried. Deciding changes
 * nothing (G6) except the classes of inputs, and core->why.
 */
#include <assert.h>

#include "graph/core/core.h"

typedef struct question {
  ladei_tree_core *core;
  ladei_tree_call *call;
  ladei_tree_plan *plan;
  lade_graph_state state; /* NONE after the end of the path */
  bool moved;             /* in the last search a candidate had an input elsewhere */
} question;

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

lade_graph_ended ladei_tree_may_end(const ladei_tree_core *core, const ladei_tree_call *call) {
  if (core->path.count == 0) return LADE_GRAPH_ENDED_NOT;
  for (size_t i = 0; i < call->count; i++)
    if (call->inputs[i].class == LADE_GRAPH_CLASS_MANAGED && (call->inputs[i].flags & LADE_GRAPH_MUTATED) != 0)
      return LADE_GRAPH_ENDED_NOT;
  if (core->marks != core->stored_marks || (core->autos != core->stored_autos && !core->pending))
    return LADE_GRAPH_ENDED_BOUNDARY;
  return core->path.alive == 0 ? LADE_GRAPH_ENDED_DEAD : LADE_GRAPH_ENDED_NOT;
}

static bool path_ends(question *q) {
  if (q->plan->ended != LADE_GRAPH_ENDED_NOT) return false;
  q->plan->ended = ladei_tree_may_end(q->core, q->call);
  if (q->plan->ended == LADE_GRAPH_ENDED_NOT) return false;
  q->state = LADE_GRAPH_STATE_NONE;
  ladei_tree_classify(q->core, q->call, true);
  return true;
}

static bool is_cold(const question *q) { return q->call->instance->warmups < q->core->settings.warmups; }

static bool decided(question *q, uint32_t rule, lade_graph_did did) {
  assert(q->plan->rule == 0); /* one rule decides */
  q->plan->rule = rule;
  q->plan->did = did;
  q->plan->restore =
      q->state == LADE_GRAPH_STATE_EXECUTION && (did == LADE_GRAPH_DID_WARMUP || did == LADE_GRAPH_DID_RECORD);
  return true;
}

static bool eager(question *q, uint32_t rule, uint32_t reason) {
  assert(reason < LADE_GRAPH_REASON_COUNT);
  q->plan->reason = reason;
  return decided(q, rule, LADE_GRAPH_DID_EAGER);
}

/* ---- Rules ------------------------------------------------------------------------------------------------------- */

static bool rule_end(question *q) {
  bool lazily = q->state == LADE_GRAPH_STATE_EXECUTION && !is_cold(q); /* rule 5 looks for a child first */
  if (q->state != LADE_GRAPH_STATE_NONE && !lazily) (void)path_ends(q);
  return false;
}

static bool rule_mutated(question *q) {
  for (size_t i = 0; i < q->call->count; i++) {
    const ladei_tree_input *input = &q->call->inputs[i];
    bool harmless = (input->flags & LADE_GRAPH_STATIC) != 0 || input->class == LADE_GRAPH_CLASS_MANAGED;
    if ((input->flags & LADE_GRAPH_MUTATED) != 0 && !harmless) return eager(q, 3, LADE_GRAPH_REASON_MUTATED);
  }
  return false;
}

static bool rule_warmup(question *q) {
  return (is_cold(q) || q->state == LADE_GRAPH_STATE_WARMUP) && decided(q, 4, LADE_GRAPH_DID_WARMUP);
}

static ladei_tree_node *look_by_hash(question *q, const ladei_tree_group *group) {
  uint64_t hash = ladei_tree_hash(q->core, q->call);
  for (ladei_tree_node *node = group->buckets[hash & (group->bucket_count - 1)]; node != NULL; node = node->bucket_next)
    if (node->hash == hash && ladei_tree_match(q->core, q->call, node) == LADE_GRAPH_REASON_COUNT) return node;
  return NULL;
}

static ladei_tree_node *look_one_by_one(question *q, const ladei_tree_group *group) {
  for (ladei_tree_node *node = group->first; node != NULL; node = node->next) {
    uint32_t reason = ladei_tree_match(q->core, q->call, node);
    if (reason == LADE_GRAPH_REASON_COUNT) return node;
    assert(q->plan->why_count < q->core->why_capacity);
    q->core->why[q->plan->why_count++] = reason;
    q->moved = q->moved || reason == LADE_GRAPH_REASON_MANAGED || reason == LADE_GRAPH_REASON_STATIC;
  }
  return NULL;
}

/* Searches the children of the current node, or the roots. */
static ladei_tree_node *look(question *q) {
  q->plan->why_count = 0;
  q->moved = false;
  ladei_tree_node *behind = q->state == LADE_GRAPH_STATE_NONE ? NULL : ladei_tree_current(q->core);
  const ladei_tree_group *group = ladei_tree_group_find(q->core, behind, q->call->instance);
  if (group == NULL) return NULL;
  ladei_tree_node *found = group->buckets == NULL || q->core->every_candidate ? NULL : look_by_hash(q, group);
  return found != NULL ? found : look_one_by_one(q, group);
}

static bool rule_replay(question *q) {
  if (q->state == LADE_GRAPH_STATE_RECORDING) return false;
  ladei_tree_node *found = look(q);
  if (found == NULL && q->state == LADE_GRAPH_STATE_EXECUTION && path_ends(q)) found = look(q);
  if (found == NULL) return false;
  q->plan->node = found;
  bool moved = q->core->settings.fixed_statics && ladei_tree_moved_static(q->call, found) < q->call->count;
  return decided(q, 5, moved ? LADE_GRAPH_DID_ERROR : LADE_GRAPH_DID_REPLAY);
}

static bool rule_limit(question *q) {
  const ladei_tree_settings *settings = &q->core->settings;
  ladei_tree_node *behind = q->state == LADE_GRAPH_STATE_NONE ? NULL : ladei_tree_current(q->core);
  if (q->moved) {
    const ladei_tree_group *group = ladei_tree_group_find(q->core, behind, q->call->instance);
    if (group->rerecords >= settings->max_rerecords) return eager(q, 6, LADE_GRAPH_REASON_LIMIT);
  }
  bool many = settings->max_nodes > 0 && q->core->node_count >= settings->max_nodes;
  bool large = settings->max_driver_bytes > 0 && q->core->driver_bytes >= settings->max_driver_bytes;
  if (many || large) {
    assert(q->plan->node == NULL);
    q->plan->evict = ladei_tree_leaf(q->core, q->plan->ended == LADE_GRAPH_ENDED_NOT);
    if (q->plan->evict == NULL) return eager(q, 6, LADE_GRAPH_REASON_LIMIT);
  }
  q->plan->counts = q->moved;
  return false;
}

static bool rule_record(question *q) { return decided(q, 7, LADE_GRAPH_DID_RECORD); }

static bool (*const ladder[])(question *) = {rule_end, rule_mutated, rule_warmup, rule_replay, rule_limit, rule_record};

void ladei_tree_decide(ladei_tree_core *core, ladei_tree_call *call, ladei_tree_plan *plan) {
  question q = {core, call, plan, core->state, false};
  assert((core->path.count == 0) == (core->state == LADE_GRAPH_STATE_NONE)); /* G5 */
  *plan = (ladei_tree_plan){.reason = LADE_GRAPH_REASON_COUNT};
  ladei_tree_classify(core, call, false);
  for (size_t i = 0; i < sizeof ladder / sizeof *ladder; i++)
    if (ladder[i](&q)) return;
  assert(false); /* the last rule decides */
}
