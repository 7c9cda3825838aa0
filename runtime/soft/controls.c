/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controls of lade/soft.h: faults, holds, loss of a device, reports, virtual time.
 *
 * Locks: rt->lock.
 */
#include "runtime/soft/soft.h"

#include "base/log.h"

#include <stdlib.h>

#include "base/options.h"
#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/report.h"
#include "runtime/soft/run/run.h"
#include "runtime/soft/run/sim.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/submit/capture.h"

/* ---- For the object of a table ----------------------------------------------------------------------------------- */

static lade_status bad_op(const char *call, const char *op) {
  if (op == NULL) return ladei_error_null(call, "op");
  return ladei_error_argument(call, "op", "an operation of runtime/ops_list.h that returns a status", "\"%s\"", op);
}

lade_status ladei_soft_fault_add(void *self, const char *op, uint64_t nth, lade_status status) {
  soft_runtime *rt = soft_self(self);
  soft_fault fault = {.status = status, .calls_left = nth};
  if (!ladei_soft_op_by_name(op, &fault.op)) return bad_op("lade_soft_fault_add", op);
  if (status == LADE_OK || status == LADE_ERR_TIMEOUT)
    return ladei_error_argument("lade_soft_fault_add", "status", "what a call of a driver can fail with", "%s",
                                lade_status_name(status));
  ladei_soft_lock(rt);
  soft_fault *faults = realloc(rt->faults, (rt->fault_count + 1) * sizeof *faults);
  if (faults != NULL) {
    rt->faults = faults;
    rt->faults[rt->fault_count++] = fault;
    atomic_fetch_or(&rt->attention, SOFT_ATTENTION_FAULTS);
  }
  ladei_soft_unlock(rt);
  return faults != NULL
             ? LADE_OK
             : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_soft_fault_add: no memory for one more fault");
}

lade_status ladei_soft_fault_clear(void *self) {
  soft_runtime *rt = soft_self(self);
  ladei_soft_lock(rt);
  rt->fault_count = 0;
  atomic_fetch_and(&rt->attention, ~(uint32_t)SOFT_ATTENTION_FAULTS);
  ladei_soft_unlock(rt);
  return LADE_OK;
}

lade_status ladei_soft_call_count(void *self, const char *op, uint64_t *out_count) {
  soft_op number;
  if (!ladei_soft_op_by_name(op, &number)) return bad_op("lade_soft_call_count", op);
  *out_count = atomic_load(&soft_self(self)->calls[number].count);
  return LADE_OK;
}

lade_status ladei_soft_device_lose(void *self, int device, uint64_t at_ns) {
  soft_runtime *rt = soft_self(self);
  if (device < 0 || device >= rt->device_count)
    return ladei_error(LADE_ERR_NO_DEVICE, LADEI_SOFT_NATIVE_INVALID_DEVICE,
                       "lade_soft_device_lose: device is %d; expected 0 to %d", device, rt->device_count - 1);
  ladei_soft_lock(rt);
  soft_device *lost = &rt->devices[device];
  bool enough_memory = true;
  if (at_ns <= rt->clock->now_ns(rt)) {
    ladei_soft_device_drop(rt, lost);
    ladei_soft_run_ready(rt);
  } else if (rt->virtual_time) {
    soft_moment moment = {.at_ns = at_ns, .lost = lost};
    enough_memory = ladei_soft_sim_add(rt, &moment);
  } else {
    lost->lose_at_ns = at_ns;
    rt->clock->engine_kick(rt, &lost->engines[0]); /* from now on it sleeps until then */
    atomic_fetch_or(&rt->attention, SOFT_ATTENTION_LOSE);
  }
  ladei_soft_unlock(rt);
  return enough_memory ? LADE_OK
                       : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_soft_device_lose: no memory for a timer");
}

lade_status ladei_soft_stream_hold(void *self, lade_stream handle, bool hold) {
  return ladei_soft_stream_set_held(soft_self(self), handle, hold);
}

lade_status ladei_soft_advance(void *self, uint64_t ns) {
  soft_runtime *rt = soft_self(self);
  if (!rt->virtual_time) {
    return ladei_error(LADE_ERR_UNSUPPORTED, LADEI_SOFT_NATIVE_NOT_SUPPORTED,
                       "lade_soft_advance: runtime is \"%s\"; expected \"sim\", which has a virtual clock", rt->name);
  }
  if (ns > UINT64_MAX - rt->now_ns)
    return ladei_error_argument("lade_soft_advance", "ns", "a time before 2^64 ns", "%llu", (unsigned long long)ns);
  ladei_soft_sim_run_until(rt, rt->now_ns + ns);
  return LADE_OK;
}

lade_status ladei_soft_report(void *self, lade_soft_report *report) {
  soft_runtime *rt = soft_self(self);
  lade_soft_report own;
  ladei_soft_lock(rt);
  ladei_soft_report_fill(rt, &own);
  ladei_soft_unlock(rt);
  return ladei_stats_write("lade_soft_report", &own, sizeof own, report);
}

bool ladei_soft_in_host_function(void) { return ladei_soft_in_callback(); }

bool ladei_soft_of_parent(void *self) {
  const soft_runtime *rt = soft_self(self);
  return rt->fork_generation != atomic_load(&ladei_soft_fork_generation);
}

unsigned ladei_soft_waiting(void *self) { return atomic_load(&soft_self(self)->waiting); }

lade_status ladei_soft_unsafe_call(void *self, const char *what) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter_process(rt, what));
  ladei_soft_lock(rt);
  lade_status status = ladei_soft_unsafe(rt, what);
  return ladei_soft_unlock_with(rt, status);
}

/* ---- For a runtime ----------------------------------------------------------------------------------------------- */

static lade_status soft_of(const lade_runtime *runtime, const char *what, void **out_self) {
  if (runtime == NULL) return ladei_error_null(what, "runtime");
  if (runtime->software_device == NULL)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: runtime is \"%s\"; expected a software device", what,
                       runtime->ops->name);
  *out_self = runtime->software_device;
  return ladei_runtime_check_process(runtime);
}

lade_status lade_soft_report_get(lade_runtime *runtime, lade_soft_report *report) {
  void *self = NULL;
  lade_status status = soft_of(runtime, "lade_soft_report_get", &self);
  return status == LADE_OK ? ladei_soft_report(self, report) : status;
}

lade_status lade_soft_advance(lade_runtime *runtime, uint64_t ns) {
  void *self = NULL;
  lade_status status = soft_of(runtime, "lade_soft_advance", &self);
  return status == LADE_OK ? ladei_soft_advance(self, ns) : status;
}

lade_status lade_soft_fault_add(lade_runtime *runtime, const char *op, uint64_t nth, lade_status failure) {
  void *self = NULL;
  lade_status status = soft_of(runtime, "lade_soft_fault_add", &self);
  return status == LADE_OK ? ladei_soft_fault_add(self, op, nth, failure) : status;
}

lade_status lade_soft_fault_clear(lade_runtime *runtime) {
  void *self = NULL;
  lade_status status = soft_of(runtime, "lade_soft_fault_clear", &self);
  return status == LADE_OK ? ladei_soft_fault_clear(self) : status;
}

lade_status lade_soft_call_count(lade_runtime *runtime, const char *op, uint64_t *out_count) {
  void *self = NULL;
  lade_status status = soft_of(runtime, "lade_soft_call_count", &self);
  return status == LADE_OK ? ladei_soft_call_count(self, op, out_count) : status;
}

lade_status lade_soft_stream_hold(lade_runtime *runtime, lade_stream stream, bool hold) {
  void *self = NULL;
  lade_status status = soft_of(runtime, "lade_soft_stream_hold", &self);
  return status == LADE_OK ? ladei_soft_stream_hold(self, stream, hold) : status;
}

lade_status lade_soft_kernel(lade_runtime *runtime, lade_stream stream, lade_soft_function function,
                             const void *arguments, size_t bytes, const lade_soft_range *ranges, size_t count) {
  void *self = NULL;
  ladei_stream resolved;
  lade_status status = soft_of(runtime, "lade_soft_kernel", &self);
  if (status == LADE_OK && runtime->ops->kernel == NULL)
    status =
        ladei_error(LADE_ERR_UNSUPPORTED, 0, "lade_soft_kernel: the table \"%s\" has no op kernel", runtime->ops->name);
  if (status == LADE_OK) status = runtime->ops->stream_resolve(runtime->self, stream, &resolved);
  if (status != LADE_OK) return status;
  return runtime->ops->kernel(runtime->self, &resolved, function, arguments, bytes, ranges, count);
}

lade_status lade_soft_device_lose(lade_runtime *runtime, int device, uint64_t at_ns) {
  void *self = NULL;
  lade_status status = soft_of(runtime, "lade_soft_device_lose", &self);
  if (status == LADE_OK) status = ladei_soft_device_lose(self, device, at_ns);
  ladei_log_flush();
  return status;
}
