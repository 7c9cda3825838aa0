/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding and starting devices.
 *
 * Locks: rt->lock to start one.
 */
#include "runtime/soft/state/devices.h"

#include "runtime/soft/state/findings.h"

soft_device *ladei_soft_device_use(soft_runtime *rt, soft_op op, int device, lade_status *out_status) {
  if (device < 0 || device >= rt->device_count) {
    *out_status = ladei_error(LADE_ERR_NO_DEVICE, LADEI_SOFT_NATIVE_INVALID_DEVICE,
                              "%s: no device %d, there are %d software devices", ladei_soft_op_name(op), device,
                              rt->device_count);
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
                                       ladei_soft_op_name(op), device->ordinal);
}
