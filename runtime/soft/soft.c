/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing software devices, reports, the public controls of lade/soft.h.
 *
 * I1  After a refused close the runtime is unchanged.
 * I2  Closing frees everything that the runtime itself holds: default pools, special streams, records.
 * Locks: none at open and close, which must not run concurrently with anything; rt->lock for the report.
 */
#include "runtime/soft/soft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/options.h"
#include "base/size.h"
#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/report.h"
#include "runtime/soft/run/cpu.h"
#include "runtime/soft/run/queue.h"
#include "runtime/soft/run/run.h"
#include "runtime/soft/run/sim.h"
#include "runtime/soft/state/address.h"
#include "runtime/soft/state/events.h"
#include "runtime/soft/state/hazard.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/mappings.h"
#include "runtime/soft/state/pools.h"
#include "runtime/soft/state/streams.h"

static lade_runtime_ops sim_ops, cpu_ops;

static pthread_once_t ops_once = PTHREAD_ONCE_INIT;

/* ---- descriptions ------------------------------------------------------------------------------------------------ */

static uint64_t value_or(uint64_t value, uint64_t default_value) { return value != 0 ? value : default_value; }

static uint64_t default_capacity(bool virtual_time) {
  if (virtual_time) return (uint64_t)16 << 30;
  long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? (uint64_t)pages / 2 * (uint64_t)page : (uint64_t)1 << 30;
}

static lade_status description_check(const lade_soft_device *device, uint64_t index) {
  const char *field = NULL, *expected = NULL;
  uint64_t bytes = 0;
  int32_t value = 0;
  if (device->memory_bytes >= LADEI_SIZE_LIMIT)
    field = "memory_bytes", expected = "less than 2^60", bytes = device->memory_bytes;
  else if (!ladei_is_power_of_two(device->vm_granularity_bytes) || device->vm_granularity_bytes < 4096)
    field = "vm_granularity_bytes", expected = "a power of two from 4096 on", bytes = device->vm_granularity_bytes;
  else if (device->numa_node < 0)
    field = "numa_node", expected = "a node + 1, or 0", value = device->numa_node;
  else if (device->engine_stays != 0 && device->engine_stays != 1)
    field = "engine_stays", expected = "0 or 1", value = device->engine_stays;
  if (field == NULL) return LADE_OK;
  char name[64];
  snprintf(name, sizeof name, "options.soft.devices[%llu].%s", (unsigned long long)index, field);
  if (value != 0) return ladei_error_argument("lade_runtime_open", name, expected, "%d", value);
  return ladei_error_argument("lade_runtime_open", name, expected, "%llu", (unsigned long long)bytes);
}

static lade_status device_describe(soft_runtime *rt, uint64_t index, const lade_soft_device *given) {
  soft_device *device = &rt->devices[index];
  lade_soft_device description = {0};
  if (given != NULL) description = *given;
  description.memory_bytes = value_or(description.memory_bytes, default_capacity(rt->virtual_time));
  description.link_bytes_per_s = value_or(description.link_bytes_per_s, 55000000000u);
  description.memory_bytes_per_s = value_or(description.memory_bytes_per_s, 2000000000000u);
  description.peer_bytes_per_s = value_or(description.peer_bytes_per_s, 50000000000u);
  description.copy_launch_ns = value_or(description.copy_launch_ns, 3000);
  description.vm_granularity_bytes = value_or(description.vm_granularity_bytes, 2 * LADEI_MIB);
  device->description = description;
  device->ordinal = (int32_t)index;
  device->context = index + 1;
  device->lose_at_ns = UINT64_MAX;
  device->memory_file = -1;
  return description_check(&description, index);
}

static void engines_open(soft_runtime *rt) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  for (int32_t i = 0; i < rt->device_count * SOFT_ENGINE_COUNT; i++) {
    soft_engine *engine = &rt->devices[i / SOFT_ENGINE_COUNT].engines[i % SOFT_ENGINE_COUNT];
    engine->runtime = rt;
    engine->device = i / SOFT_ENGINE_COUNT;
    engine->kind = (soft_engine_kind)(i % SOFT_ENGINE_COUNT);
    pthread_cond_init(&engine->cond, &monotonic);
  }
  pthread_condattr_destroy(&monotonic);
}

/* ---- the tables -------------------------------------------------------------------------------------------------- */

static lade_status soft_close(void *self);

static uint64_t now_ns(void *self) {
  soft_runtime *rt = soft_self(self);
  return rt->clock->now_ns(rt);
}

static const char *native_error_text(void *self, int64_t native_code) {
  (void)self;
  switch (native_code) {
  case LADEI_SOFT_NATIVE_INVALID_VALUE: return "software device: invalid value";
  case LADEI_SOFT_NATIVE_OUT_OF_MEMORY: return "software device: out of memory";
  case LADEI_SOFT_NATIVE_INVALID_DEVICE: return "software device: no such device";
  case LADEI_SOFT_NATIVE_INVALID_CONTEXT: return "software device: no such context, or none is current";
  case LADEI_SOFT_NATIVE_INVALID_HANDLE: return "software device: invalid handle";
  case LADEI_SOFT_NATIVE_ILLEGAL_STATE: return "software device: illegal state";
  case LADEI_SOFT_NATIVE_NOT_READY: return "software device: not ready";
  case LADEI_SOFT_NATIVE_ALREADY_REGISTERED: return "software device: host memory is registered already";
  case LADEI_SOFT_NATIVE_NOT_REGISTERED: return "software device: host memory is not registered";
  case LADEI_SOFT_NATIVE_LAUNCH_FAILED: return "software device: lost";
  case LADEI_SOFT_NATIVE_NOT_PERMITTED: return "software device: not permitted in a host function";
  case LADEI_SOFT_NATIVE_NOT_SUPPORTED: return "software device: not supported";
  case LADEI_SOFT_NATIVE_CAPTURE_UNSUPPORTED: return "software device: not permitted while a stream captures";
  case LADEI_SOFT_NATIVE_CAPTURE_INVALIDATED: return "software device: the capture is invalid";
  case LADEI_SOFT_NATIVE_CAPTURE_MERGE: return "software device: two captures would merge";
  case LADEI_SOFT_NATIVE_CAPTURE_UNMATCHED: return "software device: the capture was begun on another stream";
  case LADEI_SOFT_NATIVE_CAPTURE_UNJOINED: return "software device: work of the capture was not joined";
  case LADEI_SOFT_NATIVE_CAPTURE_ISOLATION: return "software device: the capture would depend on work outside of it";
  case LADEI_SOFT_NATIVE_CAPTURE_IMPLICIT: return "software device: the capture forbids the legacy stream";
  case LADEI_SOFT_NATIVE_CAPTURED_EVENT: return "software device: the event was recorded in a capture";
  case LADEI_SOFT_NATIVE_CAPTURE_WRONG_THREAD: return "software device: the capture was begun by another thread";
  default: return "software device: no native code";
  }
}

static void table_fill(lade_runtime_ops *ops, const char *name) {
  ops->struct_size = sizeof *ops;
  ops->name = name;
  ops->close = soft_close;
  ops->now_ns = now_ns;
  ops->native_error_text = native_error_text;
#define PART_FILL(part) ladei_soft_##part##_ops(ops);
  SOFT_OP_TABLES(PART_FILL)
#undef PART_FILL
}

static void tables_fill(void) {
  table_fill(&cpu_ops, "cpu");
  table_fill(&sim_ops, "sim");
  ladei_soft_time_ops(&sim_ops);
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static void runtime_free(soft_runtime *rt) {
  ladei_soft_events_close(rt);
  ladei_soft_streams_close(rt);
  ladei_soft_nodes_close(rt);
  ladei_soft_hazards_close(rt);
  ladei_soft_vm_close(rt);
  for (int32_t i = 0; rt->devices != NULL && i < rt->device_count; i++) {
    if (rt->devices[i].memory_file >= 0) close(rt->devices[i].memory_file);
    for (int j = 0; j < SOFT_ENGINE_COUNT; j++) pthread_cond_destroy(&rt->devices[i].engines[j].cond);
  }
  soft_table *tables[] = {&rt->stream_table, &rt->event_table, &rt->graph_table, &rt->exec_table,
                          &rt->object_table, &rt->pool_table,  &rt->vm_table};
  for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) ladei_soft_table_destroy(tables[i]);
  for (soft_tree_node *thread; (thread = ladei_ordered_set_first(&rt->threads)) != NULL; free(thread))
    ladei_ordered_set_remove(&rt->threads, thread);
  pthread_cond_destroy(&rt->idle_cond);
  pthread_mutex_destroy(&rt->lock);
  free(rt->moments);
  free(rt->faults);
  free(rt->devices);
  free(rt);
}

static void locks_open(soft_runtime *rt) {
  pthread_mutexattr_t adaptive; /* critical sections last tens of nanoseconds */
  pthread_mutexattr_init(&adaptive);
  pthread_mutexattr_settype(&adaptive, PTHREAD_MUTEX_ADAPTIVE_NP);
  pthread_mutex_init(&rt->lock, &adaptive);
  pthread_mutexattr_destroy(&adaptive);
  pthread_cond_init(&rt->idle_cond, NULL);
}

static void tables_open(soft_runtime *rt) {
  ladei_soft_table_init(&rt->stream_table, SOFT_HANDLE_STREAM, sizeof(soft_stream_slot));
  ladei_soft_table_init(&rt->event_table, SOFT_HANDLE_EVENT, sizeof(soft_event));
  ladei_soft_table_init(&rt->graph_table, SOFT_HANDLE_GRAPH, sizeof(soft_graph));
  ladei_soft_table_init(&rt->exec_table, SOFT_HANDLE_EXEC, sizeof(soft_exec));
  ladei_soft_table_init(&rt->object_table, SOFT_HANDLE_USER_OBJECT, sizeof(soft_user_object));
  ladei_soft_table_init(&rt->pool_table, SOFT_HANDLE_POOL, sizeof(soft_pool));
  ladei_soft_table_init(&rt->vm_table, SOFT_HANDLE_VM, sizeof(soft_vm));
}

static lade_status runtime_new(bool virtual_time, const lade_soft_options *options, soft_runtime **out) {
  uint64_t count = options->device_count == 0 ? 1 : options->device_count;
  soft_runtime *rt = NULL;
  if (posix_memalign((void **)&rt, _Alignof(soft_runtime), sizeof *rt) != 0) rt = NULL;
  if (rt == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "software device: no memory to open");
  memset(rt, 0, sizeof *rt);
  rt->virtual_time = virtual_time;
  rt->name = virtual_time ? "sim" : "cpu";
  rt->clock = virtual_time ? &ladei_soft_sim_clock : &ladei_soft_cpu_clock;
  rt->costs = options->costs;
  rt->pinned_limit_bytes = options->pinned_limit_bytes;
  rt->graph_node_bytes = options->graph_node_bytes;
  locks_open(rt);
  tables_open(rt);
  ladei_soft_addresses_open(rt);
  ladei_soft_enter_open(rt);
  lade_status status = LADE_OK;
  rt->devices = calloc(count, sizeof *rt->devices);
  rt->device_count = rt->devices == NULL ? 0 : (int32_t)count;
  for (uint64_t i = 0; rt->devices != NULL && i < count && status == LADE_OK; i++)
    status = device_describe(rt, i, options->devices == NULL ? NULL : &options->devices[i]);
  engines_open(rt);
  bool complete = rt->devices != NULL && ladei_soft_hazards_open(rt) && ladei_soft_streams_open(rt) &&
                  (!virtual_time || ladei_soft_sim_open(rt));
  if (status == LADE_OK && !complete) {
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "software device: no memory to open %llu devices",
                         (unsigned long long)count);
  }
  if (status != LADE_OK) {
    runtime_free(rt);
    return status;
  }
  *out = rt;
  return LADE_OK;
}

lade_status ladei_soft_open(bool virtual_time, const struct lade_soft_options *options,
                            const lade_runtime_ops **out_ops, void **out_self) {
  lade_soft_options own;
  LADEI_TRY(ladei_options_read("lade_soft_options", options, &own, sizeof own));
  if (own.device_count > SOFT_MAX_DEVICES || (own.devices == NULL) != (own.device_count == 0)) {
    return ladei_error_argument("lade_runtime_open", "options.soft.device_count",
                                "at most 64, with that many descriptions in `devices`", "%llu with %s",
                                (unsigned long long)own.device_count, own.devices == NULL ? "none" : "some");
  }
  pthread_once(&ops_once, tables_fill);
  soft_runtime *rt = NULL;
  LADEI_TRY(runtime_new(virtual_time, &own, &rt));
  *out_ops = virtual_time ? &sim_ops : &cpu_ops;
  *out_self = rt;
  return LADE_OK;
}

/* ---- report, close ----------------------------------------------------------------------------------------------- */

/* Lets all queued work end; work of streams that were held when they were destroyed has no effect. */
static void work_drain(soft_runtime *rt) {
  ladei_soft_lock(rt);
  rt->stopping = rt->virtual_time;
  for (int32_t i = 0; i < rt->device_count; i++) {
    bool stuck = false;
    for (uint32_t j = 1; j < rt->stream_count; j++) {
      const soft_stream *stream = ladei_soft_stream_by_index(rt, j);
      stuck = stuck || (stream->held && stream->device == i);
    }
    if (stuck) ladei_soft_device_drop(rt, &rt->devices[i]);
  }
  ladei_soft_run_ready(rt);
  while (rt->virtual_time && ladei_soft_sim_step(rt)) {
  }
  for (uint32_t j = 1; j < rt->stream_count; j++) {
    soft_stream *stream = ladei_soft_stream_by_index(rt, j);
    rt->clock->wait(rt, stream, atomic_load(&stream->submitted), "close");
  }
  ladei_soft_unlock(rt);
}

static lade_status soft_close(void *self) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter(rt, SOFT_OP_close));
  ladei_soft_lock(rt); /* the engines still work: objects go late (I5 in run/objects.c) */
  lade_status status = ladei_soft_close_check(rt);
  ladei_soft_unlock(rt);
  if (status != LADE_OK) return status;
  work_drain(rt);
  if (!rt->virtual_time) ladei_soft_cpu_stop(rt);
  ladei_soft_lock(rt);
  ladei_soft_pools_close(rt);
  ladei_soft_chunk_close(rt);
  ladei_soft_unlock(rt); /* unmaps the rest */
  runtime_free(rt);
  return LADE_OK;
}
