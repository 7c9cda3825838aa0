/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool's part in the budget of all pools: its options, the ledger's answers, and the rules when the ledger cannot be
 * asked. Knows nothing of the pool.
 *
 * J1  The bytes charged here are those that the pool has reserved, in any state of the ledger.
 */
#ifndef LADE_HOST_BUDGET_BUDGET_H
#define LADE_HOST_BUDGET_BUDGET_H

#include <stdatomic.h>

#include "host/budget/ledger.h"
#include "host/budget/limits.h"
#include "lade/pinned.h"

typedef struct ladei_pinned_budget {
  ladei_ledger *ledger; /* NULL: the pool is in no budget */
  uint64_t pool_id;
  uint64_t own_most; /* bytes that the pool may hold if the ledger cannot be asked */
  /* As the options say. */
  uint32_t share, local_ranks;
  uint64_t total_bytes, part_bytes;
  char name[LADEI_LEDGER_NAME_BYTES];
  /* Of the last answer; of several threads. */
  _Atomic(bool) is_short; /* the last charge was refused, by it or in its place */
  _Atomic(uint64_t) left_bytes, budget_bytes, held_bytes;
} ladei_pinned_budget;

/* Where a pool's budget and its cap come from. */
typedef struct ladei_pinned_budget_origin {
  const char *root; /* before /dev/shm */
  uint64_t pool_id;
  const ladei_pinned_limits *limits; /* now */
  uint64_t max_bytes;                /* the pool's cap in force */
} ladei_pinned_budget_origin;

/* The options' fields that concern the budget. LADE_ERR_INVALID_ARGUMENT. */
lade_status ladei_pinned_budget_check(const lade_pinned_options *options);

/* Set up without a ledger; nothing to close. */
void ladei_pinned_budget_none(ladei_pinned_budget *budget, const lade_pinned_options *options);
/* With one. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_pinned_budget_open(ladei_pinned_budget *budget, const lade_pinned_options *options,
                                     const ladei_pinned_budget_origin *origin);
void ladei_pinned_budget_close(ladei_pinned_budget *budget);

/*
 * Before memory is pinned. *out_fault: the ledger could not be asked. LADE_ERR_LIMIT: nothing is charged; the text
 * names the request and the budget.
 */
lade_status ladei_pinned_budget_charge(ladei_pinned_budget *budget, uint64_t bytes, bool *out_fault);
void ladei_pinned_budget_credit(ladei_pinned_budget *budget, uint64_t bytes);
/* The same of memory that pools hold together. */
lade_status ladei_pinned_budget_share(ladei_pinned_budget *budget, ladei_ledger_hold *hold, bool *out_fault);
void ladei_pinned_budget_unshare(ladei_pinned_budget *budget, ladei_ledger_hold *hold);

/* The last charge was refused by the budget, and not by the pool's own cap. */
static inline bool ladei_pinned_budget_is_short(const ladei_pinned_budget *budget) {
  return atomic_load_explicit(&budget->is_short, memory_order_relaxed);
}
/* The pool's own cap has refused since: the budget's last answer does not matter. */
static inline void ladei_pinned_budget_set_aside(ladei_pinned_budget *budget) {
  atomic_store_explicit(&budget->is_short, false, memory_order_relaxed);
}
/* Whether the budget leaves `bytes` now, as far as is known; asked only if it is short. */
bool ladei_pinned_budget_leaves(ladei_pinned_budget *budget, uint64_t bytes);
/* Bytes that the last answer left to the pool, UINT64_MAX unless the budget is short. */
uint64_t ladei_pinned_budget_left(const ladei_pinned_budget *budget);
/* Bytes that others ask for since the last call. */
uint64_t ladei_pinned_budget_asked(ladei_pinned_budget *budget);

/* The settings in force, into options. */
void ladei_pinned_budget_settings(const ladei_pinned_budget *budget, lade_pinned_options *out);

#endif /* LADE_HOST_BUDGET_BUDGET_H */
