/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way into every op: the steps that each goes through before it does anything.
 *
 *   count the call -> forked child? -> called from a host function? -> fault plan -> cost in virtual time -> the op
 *
 * I1  Without faults, costs, host functions under way and forks, this is one increment and two loads.
 * I2  If an op has several pending faults, each call counts down all; the one added first decides.
 * I3  A call that is refused here has changed nothing but its count.
 * Locks: rt->lock for the fault plan and the threads.
 */
#include "runtime/soft/ops/enter.h"

#include <pthread.h>
#include <string.h>

#include "runtime/soft/run/run.h"
#include "runtime/soft/run/sim.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/lock.h"

_Atomic(uint32_t) ladei_soft_fork_generation;

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

bool ladei_soft_op_by_name(const char *name, soft_op *out_op) {
  for (unsigned i = 0; name != NULL && i < SOFT_OP_COUNT; i++) {
    bool returns_status = i != SOFT_OP_now_ns && i != SOFT_OP_native_error_text;
    if (returns_status && strcmp(ladei_soft_op_name((soft_op)i), name) == 0) {
      *out_op = (soft_op)i;
      return true;
    }
  }
  return false;
}

static void forked_child(void) { atomic_fetch_add(&ladei_soft_fork_generation, 1); }

static void fork_watch(void) { pthread_atfork(NULL, NULL, forked_child); }

void ladei_soft_enter_open(soft_runtime *rt) {
  pthread_once(&fork_once, fork_watch);
  rt->fork_generation = atomic_load(&ladei_soft_fork_generation);
  const lade_soft_costs *costs = &rt->costs;
  const struct {
    soft_op op;
    uint64_t ns;
  } table[] = {
      {SOFT_OP_event_record, costs->event_record_ns},
      {SOFT_OP_event_query, costs->event_query_ns},
      {SOFT_OP_event_create, costs->event_create_ns},
      {SOFT_OP_copy, costs->submit_ns},
      {SOFT_OP_copy_sync, costs->submit_ns},
      {SOFT_OP_copy_batch, costs->submit_ns},
      {SOFT_OP_copy_peer, costs->submit_ns},
      {SOFT_OP_copy_2d, costs->submit_ns},
      {SOFT_OP_fill, costs->submit_ns},
      {SOFT_OP_host_function, costs->submit_ns},
      {SOFT_OP_stream_write_value, costs->submit_ns},
      {SOFT_OP_graph_launch, costs->submit_ns},
      {SOFT_OP_device_alloc, costs->device_alloc_ns},
      {SOFT_OP_device_free, costs->device_free_ns},
      {SOFT_OP_host_alloc, costs->host_pin_ns},
      {SOFT_OP_host_register, costs->host_pin_ns},
      {SOFT_OP_host_free, costs->host_unpin_ns},
      {SOFT_OP_host_unregister, costs->host_unpin_ns},
      {SOFT_OP_kernel, costs->submit_ns},
      {SOFT_OP_graph_upload, costs->submit_ns},
  };
  for (size_t i = 0; rt->virtual_time && i < sizeof table / sizeof table[0]; i++) {
    rt->cost_ns[table[i].op] = table[i].ns;
    if (table[i].ns != 0) atomic_fetch_or(&rt->attention, SOFT_ATTENTION_COSTS);
  }
}

static lade_status fault_apply(soft_runtime *rt, soft_op op) {
  lade_status status = LADE_OK;
  size_t kept = 0;
  for (size_t i = 0; i < rt->fault_count; i++) {
    soft_fault fault = rt->faults[i];
    bool every = fault.calls_left == 0;
    bool hit = fault.op == op && (every || fault.calls_left == 1);
    if (fault.op == op && !every) fault.calls_left--;
    if (hit && status == LADE_OK) status = fault.status;
    if (!hit || every) rt->faults[kept++] = fault;
  }
  rt->fault_count = kept;
  if (kept == 0) atomic_fetch_and(&rt->attention, ~(uint32_t)SOFT_ATTENTION_FAULTS);
  return status;
}

static void lose_due(soft_runtime *rt) {
  uint64_t now = rt->clock->now_ns(rt);
  for (int32_t i = 0; i < rt->device_count; i++)
    if (rt->devices[i].lose_at_ns <= now) ladei_soft_device_drop(rt, &rt->devices[i]);
  ladei_soft_run_ready(rt);
}

lade_status ladei_soft_enter_process(const soft_runtime *rt, const char *call) {
  if (atomic_load(&ladei_soft_fork_generation) == rt->fork_generation) return LADE_OK;
  return ladei_error(LADE_ERR_FORKED, 0, "%s: the runtime was opened before fork()", call);
}

lade_status ladei_soft_enter_slowly(soft_runtime *rt, soft_op op) {
  lade_status status = ladei_soft_enter_process(rt, ladei_soft_op_name(op));
  if (status != LADE_OK) return status;
  if (ladei_soft_in_callback()) {
    return ladei_error(LADE_ERR_DRIVER, LADEI_SOFT_NATIVE_NOT_PERMITTED, "%s: a host function may make no runtime call",
                       ladei_soft_op_name(op));
  }
  uint32_t attention = atomic_load(&rt->attention);
  if ((attention & (SOFT_ATTENTION_FAULTS | SOFT_ATTENTION_LOSE)) != 0) {
    ladei_soft_lock(rt);
    if (attention & SOFT_ATTENTION_LOSE) lose_due(rt);
    status = fault_apply(rt, op);
    ladei_soft_unlock(rt);
  }
  if (status != LADE_OK)
    return status == LADE_NOT_READY ? status
                                    : ladei_error(status, 0, "%s: fails by the fault plan", ladei_soft_op_name(op));
  ladei_soft_charge(rt, rt->cost_ns[op]);
  return LADE_OK;
}

void ladei_soft_charge(soft_runtime *rt, uint64_t ns) {
  if (!rt->virtual_time || ns == 0) return;
  if (rt->dispatching != 0)
    rt->now_ns += ns; /* due moments happen when the timer that calls us has returned */
  else
    ladei_soft_sim_run_until(rt, rt->now_ns + ns);
}
