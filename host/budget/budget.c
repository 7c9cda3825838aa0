/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool's part in the budget of all pools.
 *
 * J1: budget.h. Locks: those of the ledger; the file is asked under none of the pool's.
 */
#include "host/budget/budget.h"

#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/log.h"

_Static_assert((int)LADE_PINNED_BUDGET_FIRST_COME == LADEI_LEDGER_FIRST_COME &&
                   (int)LADE_PINNED_BUDGET_FAIR == LADEI_LEDGER_FAIR &&
                   (int)LADE_PINNED_BUDGET_PART == LADEI_LEDGER_PART,
               "shares are the numbers of the file");

/* ---- Options ----------------------------------------------------------------------------------------------------- */

lade_status ladei_pinned_budget_check(const lade_pinned_options *options) {
  static const char call[] = "lade_pinned_pool_create";
  if (options->budget > LADE_PINNED_BUDGET_OFF)
    return ladei_error_argument(call, "options.budget", "0 (default), 1 (on) or 2 (off)", "%u", options->budget);
  if (options->budget_share > LADE_PINNED_BUDGET_PART)
    return ladei_error_argument(call, "options.budget_share", "0 (first come), 1 (fair) or 2 (part)", "%u",
                                options->budget_share);
  if (options->budget_name != NULL && !ladei_ledger_name_is_good(options->budget_name))
    return ladei_error_argument(call, "options.budget_name", "1 to 63 letters, digits, '-', '_' or '.'", "\"%.80s\"",
                                options->budget_name);
  bool has_part = options->budget_share == LADE_PINNED_BUDGET_PART;
  if (has_part != (options->budget_part_bytes != 0))
    return ladei_error_argument(call, "options.budget_part_bytes",
                                has_part ? "more than 0 with budget_share part" : "0 without budget_share part", "%llu",
                                (unsigned long long)options->budget_part_bytes);
  return LADE_OK;
}

void ladei_pinned_budget_none(ladei_pinned_budget *budget, const lade_pinned_options *options) {
  memset(budget, 0, sizeof *budget);
  budget->share = options->budget_share;
  budget->total_bytes = options->budget_bytes;
  budget->part_bytes = options->budget_part_bytes;
  budget->local_ranks = options->local_ranks;
  if (options->budget_name != NULL) strncpy(budget->name, options->budget_name, sizeof budget->name - 1);
}

static uint64_t part_of(uint64_t bytes, uint32_t ranks) {
  return ranks <= 1 || bytes == LADEI_PINNED_NO_LIMIT ? bytes : bytes / ranks;
}

lade_status ladei_pinned_budget_open(ladei_pinned_budget *budget, const lade_pinned_options *options,
                                     const ladei_pinned_budget_origin *origin) {
  char path[LADEI_LEDGER_PATH_BYTES];
  ladei_ledger_terms terms = {.total_bytes = options->budget_bytes,
                              .default_bytes = ladei_pinned_limits_half(origin->limits),
                              .cap_bytes = options->max_bytes,
                              .part_bytes = options->budget_part_bytes,
                              .group_id = origin->limits->cgroup_id,
                              .group_bytes = ladei_pinned_limits_group_cap(origin->limits),
                              .share = options->budget_share,
                              .local_ranks = options->local_ranks,
                              .pool_id = (uint32_t)origin->pool_id};
  ladei_pinned_budget_none(budget, options);
  budget->pool_id = origin->pool_id;
  budget->own_most = options->max_bytes != 0 ? origin->max_bytes : part_of(origin->max_bytes, options->local_ranks);
  if (!ladei_ledger_path(origin->root, (uint32_t)geteuid(), budget->name, path))
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "pinned pool: the path of the budget's ledger is too long");
  budget->ledger = ladei_ledger_create(path, &terms, &ladei_ledger_system_calls);
  return budget->ledger != NULL ? LADE_OK
                                : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pinned pool: no memory for its budget");
}

void ladei_pinned_budget_close(ladei_pinned_budget *budget) {
  ladei_ledger_destroy(budget->ledger);
  budget->ledger = NULL;
}

void ladei_pinned_budget_settings(const ladei_pinned_budget *budget, lade_pinned_options *out) {
  out->budget = budget->ledger != NULL ? LADE_PINNED_BUDGET_ON : LADE_PINNED_BUDGET_OFF;
  out->budget_share = budget->share;
  out->budget_name = budget->name[0] == '\0' ? NULL : budget->name;
  out->budget_bytes = budget->total_bytes;
  out->budget_part_bytes = budget->part_bytes;
  out->local_ranks = budget->local_ranks;
}

/* ---- Charges ----------------------------------------------------------------------------------------------------- */

static void answer_keep(ladei_pinned_budget *budget, const ladei_ledger_answer *answer, uint64_t own_bytes) {
  uint64_t left = own_bytes < answer->most_bytes ? answer->most_bytes - own_bytes : 0;
  atomic_store_explicit(&budget->left_bytes, left, memory_order_relaxed);
  atomic_store_explicit(&budget->budget_bytes, answer->budget_bytes, memory_order_relaxed);
  atomic_store_explicit(&budget->held_bytes, answer->held_bytes, memory_order_relaxed);
}

static lade_status refusal(const ladei_pinned_budget *budget, uint64_t bytes, const ladei_ledger_answer *answer,
                           const ladei_ledger_state *state) {
  static const char *const reasons[] = {"", ", by its share", ", by the limit of its control group"};
  return ladei_error(
      LADE_ERR_LIMIT, 0,
      "pinned pool: %llu bytes more would exceed the budget of all pools%s%s: %llu of %llu are held by %u "
      "pools (lade budget shows them), %llu by this one, which may hold %llu%s",
      (unsigned long long)bytes, budget->name[0] == '\0' ? "" : " named ", budget->name,
      (unsigned long long)answer->held_bytes, (unsigned long long)answer->budget_bytes, answer->pools,
      (unsigned long long)state->held_bytes, (unsigned long long)answer->most_bytes, reasons[answer->limit]);
}

/* Then the rules of before the ledger hold. `hold`: of the bytes, or NULL. */
static lade_status fault_decide(ladei_pinned_budget *budget, uint64_t bytes, ladei_ledger_hold *hold,
                                const ladei_ledger_state *state) {
  char fault[LADEI_LEDGER_FAULT_BYTES];
  const uint64_t held = state->held_bytes + state->shared_bytes;
  atomic_store_explicit(&budget->is_short, false, memory_order_relaxed);
  if (ladei_ledger_fault_is_new(budget->ledger, fault))
    ladei_log_later(LADE_LOG_WARN, "pinned pool %llu: goes by its own cap of %llu bytes: budget: %s",
                    (unsigned long long)budget->pool_id, (unsigned long long)budget->own_most, fault);
  if (held <= budget->own_most) return LADE_OK;
  if (hold != NULL)
    ladei_ledger_hold_remove(budget->ledger, hold);
  else
    ladei_ledger_credit(budget->ledger, bytes);
  uint64_t before = held - bytes;
  atomic_store_explicit(&budget->left_bytes, before < budget->own_most ? budget->own_most - before : 0,
                        memory_order_relaxed);
  atomic_store_explicit(&budget->is_short, true, memory_order_relaxed);
  return ladei_error(LADE_ERR_LIMIT, 0,
                     "pinned pool: %llu bytes more would exceed its own cap of %llu, which holds because its budget "
                     "cannot be asked: %s",
                     (unsigned long long)bytes, (unsigned long long)budget->own_most, state->fault);
}

/* Takes the ledger's answer to a charge. `hold` as in fault_decide. */
static lade_status result_take(ladei_pinned_budget *budget, uint64_t bytes, ladei_ledger_hold *hold,
                               ladei_ledger_result result, const ladei_ledger_answer *answer) {
  ladei_ledger_state state;
  if (result == LADEI_LEDGER_GRANTED) {
    atomic_store_explicit(&budget->budget_bytes, answer->budget_bytes, memory_order_relaxed);
    atomic_store_explicit(&budget->held_bytes, answer->held_bytes + bytes, memory_order_relaxed);
    if (ladei_pinned_budget_is_short(budget)) atomic_store_explicit(&budget->is_short, false, memory_order_relaxed);
    return LADE_OK;
  }
  ladei_ledger_state_get(budget->ledger, &state);
  if (result == LADEI_LEDGER_FAULT) return fault_decide(budget, bytes, hold, &state);
  answer_keep(budget, answer, hold != NULL ? 0 : state.held_bytes); /* shared memory is in a slot of its own */
  atomic_store_explicit(&budget->is_short, true, memory_order_relaxed);
  return refusal(budget, bytes, answer, &state);
}

lade_status ladei_pinned_budget_charge(ladei_pinned_budget *budget, uint64_t bytes, bool *out_fault) {
  ladei_ledger_answer answer;
  *out_fault = false;
  if (budget->ledger == NULL) return LADE_OK;
  ladei_lock_assert_none_held();
  ladei_ledger_result result = ladei_ledger_charge(budget->ledger, bytes, &answer);
  *out_fault = result == LADEI_LEDGER_FAULT;
  return result_take(budget, bytes, NULL, result, &answer);
}

lade_status ladei_pinned_budget_share(ladei_pinned_budget *budget, ladei_ledger_hold *hold, bool *out_fault) {
  ladei_ledger_answer answer;
  *out_fault = false;
  if (budget->ledger == NULL) return LADE_OK;
  ladei_lock_assert_none_held();
  ladei_ledger_result result = ladei_ledger_hold_add(budget->ledger, hold, &answer);
  *out_fault = result == LADEI_LEDGER_FAULT;
  return result_take(budget, hold->bytes, hold, result, &answer);
}

/* After memory was unpinned. */
static void credit_log(const ladei_pinned_budget *budget) {
  char fault[LADEI_LEDGER_FAULT_BYTES];
  if (ladei_log_wants(LADE_LOG_WARN) && ladei_ledger_fault_is_new(budget->ledger, fault))
    ladei_log_later(LADE_LOG_WARN, "pinned pool %llu: what was given back is told to its budget later: %s",
                    (unsigned long long)budget->pool_id, fault);
}

void ladei_pinned_budget_credit(ladei_pinned_budget *budget, uint64_t bytes) {
  if (budget->ledger == NULL) return;
  ladei_lock_assert_none_held();
  ladei_ledger_credit(budget->ledger, bytes);
  credit_log(budget);
}

void ladei_pinned_budget_unshare(ladei_pinned_budget *budget, ladei_ledger_hold *hold) {
  if (budget->ledger == NULL) return;
  ladei_lock_assert_none_held();
  ladei_ledger_hold_remove(budget->ledger, hold);
  credit_log(budget);
}

bool ladei_pinned_budget_leaves(ladei_pinned_budget *budget, uint64_t bytes) {
  return !ladei_pinned_budget_is_short(budget) || ladei_ledger_leaves(budget->ledger, bytes);
}

uint64_t ladei_pinned_budget_left(const ladei_pinned_budget *budget) {
  return ladei_pinned_budget_is_short(budget) ? atomic_load_explicit(&budget->left_bytes, memory_order_relaxed)
                                              : UINT64_MAX;
}

uint64_t ladei_pinned_budget_asked(ladei_pinned_budget *budget) {
  return budget->ledger == NULL ? 0 : ladei_ledger_asked(budget->ledger);
}
