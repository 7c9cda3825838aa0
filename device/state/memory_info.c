/* SPDX-License-Identifier: Apache-2.0 */
#include "device/state/memory_info.h"

#include "base/error.h"
#include "base/file_number.h"
#include "runtime/unified.h"

/* The larger of what the driver and the system say, within the device. */
static size_t system_free(size_t free_bytes, size_t total_bytes) {
  uint64_t kib;
  if (!ladei_file_number("/proc/meminfo", "MemAvailable:", &kib)) return free_bytes;
  size_t available_bytes = kib < total_bytes >> 10 ? (size_t)kib << 10 : total_bytes;
  return available_bytes > free_bytes ? available_bytes : free_bytes;
}

lade_status ladei_device_memory_info(const lade_device_allocator *allocator, size_t *out_free_bytes,
                                     size_t *out_total_bytes) {
  const lade_runtime *runtime = allocator->runtime;
  size_t free_bytes, total_bytes;
  ladei_unified unified;
  LADEI_TRY(runtime->ops->memory_info(runtime->self, allocator->device, &free_bytes, &total_bytes));
  ladei_unified_find(runtime, allocator->device, &unified);
  *out_free_bytes = unified.memory_is_systems ? system_free(free_bytes, total_bytes) : free_bytes;
  *out_total_bytes = total_bytes;
  return LADE_OK;
}
