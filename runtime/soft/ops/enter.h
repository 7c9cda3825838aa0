/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way into every op (model in enter.c).
 */
#ifndef LADE_RUNTIME_SOFT_OPS_ENTER_H
#define LADE_RUNTIME_SOFT_OPS_ENTER_H

#include "base/lock.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/model.h"

extern _Atomic(uint32_t) ladei_soft_fork_generation; /* forks of this process so far, as seen by the child */

lade_status ladei_soft_enter_slowly(soft_runtime *rt, soft_op op);

/* LADE_ERR_FORKED in a child of fork(), where the lock may be held by a thread that does not exist. */
lade_status ladei_soft_enter_process(const soft_runtime *rt, const char *call);

/* Counts the call, applies the fault plan, charges its cost. First statement of every op; not under the lock. */
static inline lade_status ladei_soft_enter(soft_runtime *rt, soft_op op) {
  ladei_lock_assert_none_held();
  atomic_fetch_add_explicit(&rt->calls[op].count, 1, memory_order_relaxed);
  uint32_t generation = atomic_load_explicit(&ladei_soft_fork_generation, memory_order_relaxed);
  uint32_t attention = atomic_load_explicit(&rt->attention, memory_order_relaxed);
  return (attention | (generation ^ rt->fork_generation)) == 0 ? LADE_OK : ladei_soft_enter_slowly(rt, op);
}

/* The same; with LADE_OK the lock is held. */
static inline lade_status ladei_soft_enter_locked(soft_runtime *rt, soft_op op) {
  lade_status status = ladei_soft_enter(rt, op);
  if (status == LADE_OK) ladei_soft_lock(rt);
  return status;
}

/* Advances the virtual time by `ns` for the caller of an op. No effect on "cpu". */
void ladei_soft_charge(soft_runtime *rt, uint64_t ns);

/* At the opening of a runtime: sets its costs, and its fork generation. */
void ladei_soft_enter_open(soft_runtime *rt);

/* Finds an op by its name; not those without a status, which are neither counted nor made to fail. */
bool ladei_soft_op_by_name(const char *name, soft_op *out_op);

#endif /* LADE_RUNTIME_SOFT_OPS_ENTER_H */
