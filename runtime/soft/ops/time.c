/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual time: timers and steps.
 *
 * Locks: none; one thread at a time owns the runtime.
 */
#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/run/sim.h"
#include "runtime/soft/state/findings.h"

static lade_status timer_add(void *self, uint64_t at_ns, ladei_host_function function, void *user) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter(rt, SOFT_OP_timer_add));
  soft_moment moment = {.at_ns = at_ns, .function = function, .user = user};
  if (function == NULL)
    return ladei_soft_refuse(SOFT_OP_timer_add, LADEI_SOFT_NATIVE_INVALID_VALUE, "function", "a function", "NULL");
  return ladei_soft_sim_add(rt, &moment) ? LADE_OK
                                         : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "timer_add: one more timer");
}

static lade_status step(void *self) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter(rt, SOFT_OP_step));
  return ladei_soft_sim_step(rt) ? LADE_OK : LADE_NOT_READY;
}

void ladei_soft_time_ops(lade_runtime_ops *ops) {
  ops->timer_add = timer_add;
  ops->step = step;
}
