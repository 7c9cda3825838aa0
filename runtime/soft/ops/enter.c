/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: what every op passes before it does anything.
 *
 *   count the call -> forked child? -> called from a host function? -> fault plan -> cost in virtual time -> the op
 *
 * I1  Without faults, costs, host functions under way and forks, the gate is one increment and two loads.
 * I2  Of several pending faults of an op each call counts down all; the one added first decides.
 * I3  A call that the gate refuses has changed nothing but its count.
 * Locks: rt->lock for the fault plan and the threads.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/soft/state/model.h"

_Atomic(uint32_t) ladei_soft_fork_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static _Atomic(uint64_t) thread_identities;
static _Thread_local uint64_t thread_identity;
static _Thread_local bool thread_in_callback;

static const char *const op_names[SOFT_OP_COUNT] = {
#define OP_NAME(name, group) #name,
    LADEI_OPS_LIST(OP_NAME)
#undef OP_NAME
};

const char *ladei_soft_op_name(soft_op op) { return op_names[op]; }

/* Ops that return no status are neither counted nor made to fail. */
static bool op_by_name(const char *name, soft_op *out_op) {
  for (unsigned i = 0; name != NULL && i < SOFT_OP_COUNT; i++) {
    bool returns_status = i != SOFT_OP_now_ns && i != SOFT_OP_native_error_text;
    if (returns_status && strcmp(op_names[i], name) == 0) {
      *out_op = (soft_op)i;
      return true;
    }
  }
  return false;
}

/* ---- threads and forks ------------------------------------------------------------------------------------------- */

static void forked_child(void) { atomic_fetch_add(&ladei_soft_fork_generation, 1); }

static void fork_watch(void) { pthread_atfork(NULL, NULL, forked_child); }

void ladei_soft_gate_open(soft_runtime *rt) {
  pthread_once(&fork_once, fork_watch);
  rt->fork_generation = atomic_load(&ladei_soft_fork_generation);
  const lade_soft_costs *costs = &rt->costs;
  const struct {
    soft_op op;
    uint64_t ns;
  } table[] = {
      {SOFT_OP_event_record, costs->event_record_ns},  {SOFT_OP_event_query, costs->event_query_ns},
      {SOFT_OP_event_create, costs->event_create_ns},  {SOFT_OP_copy, costs->submit_ns},
      {SOFT_OP_copy_sync, costs->submit_ns},           {SOFT_OP_copy_batch, costs->submit_ns},
      {SOFT_OP_copy_peer, costs->submit_ns},           {SOFT_OP_fill, costs->submit_ns},
      {SOFT_OP_host_function, costs->submit_ns},       {SOFT_OP_stream_write_value, costs->submit_ns},
      {SOFT_OP_graph_launch, costs->submit_ns},        {SOFT_OP_device_alloc, costs->device_alloc_ns},
      {SOFT_OP_device_free, costs->device_free_ns},    {SOFT_OP_host_alloc, costs->host_pin_ns},
      {SOFT_OP_host_register, costs->host_pin_ns},     {SOFT_OP_host_free, costs->host_unpin_ns},
      {SOFT_OP_host_unregister, costs->host_unpin_ns},
  };
  for (size_t i = 0; rt->virtual_time && i < sizeof table / sizeof table[0]; i++) {
    rt->cost_ns[table[i].op] = table[i].ns;
    if (table[i].ns != 0) atomic_fetch_or(&rt->attention, SOFT_ATTENTION_COSTS);
  }
}

uint64_t ladei_soft_thread_identity(void) {
  if (thread_identity == 0) thread_identity = atomic_fetch_add(&thread_identities, 1) + 1;
  return thread_identity;
}

soft_thread *ladei_soft_thread(soft_runtime *rt, bool create) {
  uint64_t identity = ladei_soft_thread_identity();
  soft_tree_node *found = soft_tree_floor(&rt->threads, identity);
  if (found != NULL && found->key == identity) return (soft_thread *)found;
  soft_thread *thread = create ? calloc(1, sizeof *thread) : NULL;
  if (thread != NULL) {
    thread->current_device = -1;
    thread->mode = LADEI_CAPTURE_GLOBAL;
    soft_tree_insert(&rt->threads, &thread->node, identity);
  }
  return thread;
}

void ladei_soft_call_out(soft_runtime *rt, ladei_host_function function, void *user) {
  bool before = thread_in_callback;
  atomic_fetch_add(&rt->attention, SOFT_ATTENTION_CALLBACK);
  thread_in_callback = true;
  function(user);
  thread_in_callback = before;
  atomic_fetch_sub(&rt->attention, SOFT_ATTENTION_CALLBACK);
}

/* ---- the lock ---------------------------------------------------------------------------------------------------- */

void ladei_soft_lock(soft_runtime *rt) {
  if (!rt->virtual_time) pthread_mutex_lock(&rt->lock);
}

static void garbage_unmap(soft_range *range) {
  while (range != NULL) {
    soft_range *next = range->next;
    ladei_soft_range_unmap(range);
    range = next;
  }
}

void ladei_soft_unlock(soft_runtime *rt) {
  enum { AT_ONCE = 8 };
  pthread_cond_t *wake[AT_ONCE];
  size_t wake_count = 0;
  for (soft_engine *engine = rt->wake_list; engine != NULL; engine = engine->wake_next) {
    engine->waking = false;
    if (wake_count < AT_ONCE)
      wake[wake_count++] = &engine->cond;
    else
      pthread_cond_signal(&engine->cond);
  }
  rt->wake_list = NULL;
  soft_range *garbage = rt->garbage;
  rt->garbage = NULL;
  if (!rt->virtual_time) pthread_mutex_unlock(&rt->lock);
  for (size_t i = 0; i < wake_count; i++) pthread_cond_signal(wake[i]);
  garbage_unmap(garbage);
}

/* ---- the gate ---------------------------------------------------------------------------------------------------- */

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

lade_status ladei_soft_enter_slowly(soft_runtime *rt, soft_op op) {
  if (atomic_load(&ladei_soft_fork_generation) != rt->fork_generation)
    return ladei_error(LADE_ERR_FORKED, 0, "%s: the runtime was opened before fork()", op_names[op]);
  if (thread_in_callback) {
    return ladei_error(LADE_ERR_DRIVER, LADEI_SOFT_NATIVE_NOT_PERMITTED, "%s: a host function may make no runtime call",
                       op_names[op]);
  }
  lade_status status = LADE_OK;
  uint32_t attention = atomic_load(&rt->attention);
  if ((attention & (SOFT_ATTENTION_FAULTS | SOFT_ATTENTION_LOSE)) != 0) {
    ladei_soft_lock(rt);
    if (attention & SOFT_ATTENTION_LOSE) lose_due(rt);
    status = fault_apply(rt, op);
    ladei_soft_unlock(rt);
  }
  if (status != LADE_OK)
    return status == LADE_NOT_READY ? status : ladei_error(status, 0, "%s: fails by the fault plan", op_names[op]);
  ladei_soft_charge(rt, rt->cost_ns[op]);
  return LADE_OK;
}

void ladei_soft_charge(soft_runtime *rt, uint64_t ns) {
  if (!rt->virtual_time || ns == 0) return;
  if (rt->dispatching != 0)
    rt->now_ns += ns; /* what falls due happens when the timer that calls us has returned */
  else
    ladei_soft_sim_run_until(rt, rt->now_ns + ns);
}

lade_status ladei_soft_lost(soft_op op, int device) {
  return ladei_error(LADE_ERR_DEVICE_LOST, LADEI_SOFT_NATIVE_LAUNCH_FAILED, "%s: software device %d is lost",
                     op_names[op], device);
}

soft_device *ladei_soft_device_use(soft_runtime *rt, soft_op op, int device, lade_status *out_status) {
  if (device < 0 || device >= rt->device_count) {
    *out_status =
        ladei_error(LADE_ERR_NO_DEVICE, LADEI_SOFT_NATIVE_INVALID_DEVICE,
                    "%s: no device %d, there are %d software devices", op_names[op], device, rt->device_count);
    return NULL;
  }
  if (atomic_load_explicit(&rt->devices[device].lost, memory_order_acquire)) {
    *out_status = ladei_soft_lost(op, device);
    return NULL;
  }
  return &rt->devices[device];
}

lade_status ladei_soft_device_start(soft_runtime *rt, soft_op op, soft_device *device) {
  device->active = true;
  if (!device->started) device->started = rt->clock->device_start(rt, device);
  return device->started ? LADE_OK
                         : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: the system refuses threads for device %d",
                                       op_names[op], device->ordinal);
}

lade_status ladei_soft_flags(soft_op op, unsigned flags, unsigned known) {
  if ((flags & ~known) == 0) return LADE_OK;
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, LADEI_SOFT_NATIVE_INVALID_VALUE, "%s: unknown flags %#x", op_names[op],
                     flags & ~known);
}

/* ---- controls ---------------------------------------------------------------------------------------------------- */

lade_status ladei_soft_fault_add(void *self, const char *op, uint64_t nth, lade_status status) {
  soft_runtime *rt = soft_self(self);
  soft_fault fault = {.status = status, .calls_left = nth};
  if (!op_by_name(op, &fault.op))
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "fault plan: no op is called \"%s\"", op == NULL ? "NULL" : op);
  if (status == LADE_OK)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "fault plan: %s cannot fail with LADE_OK", op);
  ladei_soft_lock(rt);
  soft_fault *faults = realloc(rt->faults, (rt->fault_count + 1) * sizeof *faults);
  if (faults != NULL) {
    rt->faults = faults;
    rt->faults[rt->fault_count++] = fault;
    atomic_fetch_or(&rt->attention, SOFT_ATTENTION_FAULTS);
  }
  ladei_soft_unlock(rt);
  return faults != NULL ? LADE_OK : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "fault plan: one more fault");
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
  if (!op_by_name(op, &number))
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "call count: no op is called \"%s\"", op == NULL ? "NULL" : op);
  *out_count = atomic_load(&soft_self(self)->calls[number].count);
  return LADE_OK;
}

lade_status ladei_soft_device_lose(void *self, int device, uint64_t at_ns) {
  soft_runtime *rt = soft_self(self);
  if (device < 0 || device >= rt->device_count)
    return ladei_error(LADE_ERR_NO_DEVICE, LADEI_SOFT_NATIVE_INVALID_DEVICE, "device_lose: no device %d", device);
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
    rt->clock->engine_kick(rt, &lost->engines[0]); /* sleeps until then from now on */
    atomic_fetch_or(&rt->attention, SOFT_ATTENTION_LOSE);
  }
  ladei_soft_unlock(rt);
  return enough_memory ? LADE_OK : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "device_lose: no memory for a timer");
}
