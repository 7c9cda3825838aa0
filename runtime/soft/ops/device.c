/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices as a program sees them: count, properties, attributes, current device, contexts, peers.
 *
 * I1  A device's context exists (active) from the first op that makes something on it, as a primary context does.
 * I2  The current device is the calling thread's own; -1 until it sets one.
 * Locks: rt->lock.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/state/devices.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/lock.h"

static lade_status no_device(soft_op op, const soft_runtime *rt, int device) {
  return ladei_error(LADE_ERR_NO_DEVICE, LADEI_SOFT_NATIVE_INVALID_DEVICE,
                     "%s: no device %d, there are %d software devices", ladei_soft_op_name(op), device,
                     rt->device_count);
}

/* A device for questions that a lost one answers too. */
static soft_device *device_get(soft_runtime *rt, soft_op op, int device, lade_status *out_status) {
  *out_status = ladei_soft_enter(rt, op);
  if (*out_status != LADE_OK) return NULL;
  if (device >= 0 && device < rt->device_count) return &rt->devices[device];
  *out_status = no_device(op, rt, device);
  return NULL;
}

static lade_status device_count(void *self, int *out_count) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_device_count);
  if (status == LADE_OK) *out_count = rt->device_count;
  return status;
}

static lade_status device_properties(void *self, int ordinal, ladei_device_properties *out) {
  soft_runtime *rt = soft_self(self);
  lade_status status;
  const soft_device *device = device_get(rt, SOFT_OP_device_properties, ordinal, &status);
  if (device == NULL) return status;
  memset(out, 0, sizeof *out);
  snprintf(out->name, sizeof out->name, "lade software device (%s)", rt->name);
  /* A domain that no machine has, so that no real device is found there. */
  snprintf(out->pci_bus_id, sizeof out->pci_bus_id, "ffff:%02x:00.0", (unsigned)ordinal & 0xffu);
  snprintf((char *)out->uuid, sizeof out->uuid, "lade-soft-%02x", (unsigned)ordinal & 0xffu);
  out->total_bytes = device->description.memory_bytes;
  out->numa_node = device->description.numa_node - 1;
  out->compute_major = 1;
  out->multiprocessor_count = 1;
  return LADE_OK;
}

static int64_t attribute_value(const soft_device *device, ladei_device_attribute attribute) {
  const lade_soft_device *description = &device->description;
  switch (attribute) {
  case LADEI_ATTR_ASYNC_ENGINE_COUNT: return description->half_duplex ? 1 : 2;
  case LADEI_ATTR_UNIFIED_ADDRESSING:
  case LADEI_ATTR_CAN_MAP_HOST_MEMORY:
  case LADEI_ATTR_HOST_REGISTER_SUPPORTED:
  case LADEI_ATTR_HOST_REGISTER_READ_ONLY_SUPPORTED:
  case LADEI_ATTR_STREAM_WRITE_VALUE_64: return 1;
  case LADEI_ATTR_VIRTUAL_MEMORY_SUPPORTED:
  case LADEI_ATTR_HANDLE_TYPE_POSIX_FD: return !description->no_virtual_memory;
  case LADEI_ATTR_DRIVER_POOLS_SUPPORTED:
  case LADEI_ATTR_HOST_POOLS_SUPPORTED:
  case LADEI_ATTR_HOST_NUMA_POOLS_SUPPORTED: return !description->no_driver_pools;
  case LADEI_ATTR_STREAM_PRIORITY_HIGHEST: return -5; /* as on recent GPUs; has no effect here */
  case LADEI_ATTR_INTEGRATED:
  case LADEI_ATTR_PAGEABLE_MEMORY_ACCESS:
  case LADEI_ATTR_GPU_DIRECT_RDMA:
  case LADEI_ATTR_HOST_PAGE_TABLES:
  case LADEI_ATTR_CONCURRENT_MANAGED_ACCESS:
  case LADEI_ATTR_STREAM_PRIORITY_LOWEST:
  case LADEI_ATTR_COUNT: break;
  }
  return 0;
}

static lade_status device_attribute(void *self, int ordinal, ladei_device_attribute attribute, int64_t *out_value) {
  lade_status status;
  const soft_device *device = device_get(soft_self(self), SOFT_OP_device_attribute, ordinal, &status);
  if (device == NULL) return status;
  if ((unsigned)attribute >= LADEI_ATTR_COUNT) {
    return ladei_soft_refuse(SOFT_OP_device_attribute, LADEI_SOFT_NATIVE_INVALID_VALUE, "attribute",
                             "a ladei_device_attribute", "%d", (int)attribute);
  }
  *out_value = attribute_value(device, attribute);
  return LADE_OK;
}

static lade_status memory_info(void *self, int ordinal, size_t *out_free_bytes, size_t *out_total_bytes) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_memory_info);
  if (status != LADE_OK) return status;
  soft_device *device = ladei_soft_device_use(rt, SOFT_OP_memory_info, ordinal, &status);
  if (device == NULL) return status;
  ladei_soft_lock(rt);
  *out_free_bytes = device->description.memory_bytes - device->charged;
  *out_total_bytes = device->description.memory_bytes;
  ladei_soft_unlock(rt);
  return LADE_OK;
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

static lade_status current_device(void *self, int *out_device) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter_locked(rt, SOFT_OP_current_device));
  const soft_thread *thread = ladei_soft_thread(rt, false);
  *out_device = thread == NULL ? -1 : thread->current_device;
  ladei_soft_unlock(rt);
  return LADE_OK;
}

static lade_status current_device_set(void *self, int ordinal) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_current_device_set);
  if (status != LADE_OK) return status;
  soft_device *device = ladei_soft_device_use(rt, SOFT_OP_current_device_set, ordinal, &status);
  if (device == NULL) return status;
  ladei_soft_lock(rt);
  status = ladei_soft_device_start(rt, SOFT_OP_current_device_set, device);
  soft_thread *thread = ladei_soft_thread(rt, true);
  if (thread == NULL)
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "current_device_set: no memory for the thread's record");
  else if (status == LADE_OK)
    thread->current_device = ordinal;
  return ladei_soft_unlock_with(rt, status);
}

static lade_status device_context(void *self, int ordinal, uint64_t *out_context) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_device_context);
  if (status != LADE_OK) return status;
  soft_device *device = ladei_soft_device_use(rt, SOFT_OP_device_context, ordinal, &status);
  if (device == NULL) return status;
  ladei_soft_lock(rt);
  device->active = true;
  ladei_soft_unlock(rt);
  *out_context = device->context;
  return LADE_OK;
}

static lade_status device_active(void *self, int ordinal, bool *out_active) {
  soft_runtime *rt = soft_self(self);
  lade_status status;
  const soft_device *device = device_get(rt, SOFT_OP_device_active, ordinal, &status);
  if (device == NULL) return status;
  ladei_soft_lock(rt);
  *out_active = device->active;
  ladei_soft_unlock(rt);
  return LADE_OK;
}

void ladei_soft_device_ops(lade_runtime_ops *ops) {
  ops->device_count = device_count;
  ops->device_properties = device_properties;
  ops->device_attribute = device_attribute;
  ops->memory_info = memory_info;
  ops->current_device = current_device;
  ops->current_device_set = current_device_set;
  ops->device_context = device_context;
  ops->device_active = device_active;
}

/* ---- peers ------------------------------------------------------------------------------------------------------- */

static bool peers_possible(const soft_runtime *rt, int device, int peer) {
  return device != peer && !rt->devices[peer].description.no_peer_access;
}

static lade_status peer_devices(soft_runtime *rt, soft_op op, int device, int peer) {
  lade_status status = ladei_soft_enter(rt, op);
  if (status != LADE_OK) return status;
  if (ladei_soft_device_use(rt, op, device, &status) == NULL) return status;
  return ladei_soft_device_use(rt, op, peer, &status) == NULL ? status : LADE_OK;
}

static lade_status peer_can_access(void *self, int device, int peer, bool *out_can) {
  soft_runtime *rt = soft_self(self);
  lade_status status = peer_devices(rt, SOFT_OP_peer_can_access, device, peer);
  if (status == LADE_OK) *out_can = peers_possible(rt, device, peer);
  return status;
}

static lade_status peer_enable(void *self, int device, int peer) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(peer_devices(rt, SOFT_OP_peer_enable, device, peer));
  if (device == peer) {
    return ladei_soft_refuse(SOFT_OP_peer_enable, LADEI_SOFT_NATIVE_INVALID_DEVICE, "peer",
                             "another device than `device`", "%d", peer);
  }
  if (!peers_possible(rt, device, peer)) {
    return ladei_error(LADE_ERR_UNSUPPORTED, LADEI_SOFT_NATIVE_NOT_SUPPORTED,
                       "peer_enable: device %d cannot use memory of device %d", device, peer);
  }
  ladei_soft_lock(rt);
  rt->devices[device].active = rt->devices[peer].active = true;
  rt->devices[device].peers |= (uint64_t)1 << peer;
  ladei_soft_unlock(rt);
  return LADE_OK;
}

static lade_status peer_disable(void *self, int device, int peer) {
  soft_runtime *rt = soft_self(self);
  lade_status status = peer_devices(rt, SOFT_OP_peer_disable, device, peer);
  if (status != LADE_OK) return status;
  ladei_soft_lock(rt);
  if ((rt->devices[device].peers >> peer & 1) == 0) {
    status = ladei_soft_refuse(SOFT_OP_peer_disable, LADEI_SOFT_NATIVE_INVALID_VALUE, "peer",
                               "a device that `device` has access to", "%d", peer);
  }
  rt->devices[device].peers &= ~((uint64_t)1 << peer);
  return ladei_soft_unlock_with(rt, status);
}

void ladei_soft_peer_ops(lade_runtime_ops *ops) {
  ops->peer_can_access = peer_can_access;
  ops->peer_enable = peer_enable;
  ops->peer_disable = peer_disable;
}
