/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/unified.h"

#include "base/error.h"

static bool has_attribute(const lade_runtime *runtime, int device, ladei_device_attribute attribute) {
  int64_t value = 0;
  lade_status status;
  LADEI_ASIDE(status = runtime->ops->device_attribute(runtime->self, device, attribute, &value));
  return status == LADE_OK && value != 0;
}

void ladei_unified_find(const lade_runtime *runtime, int device, ladei_unified *out) {
  bool host_tables = has_attribute(runtime, device, LADEI_ATTR_HOST_PAGE_TABLES);
  out->memory_is_systems = has_attribute(runtime, device, LADEI_ATTR_INTEGRATED);
  out->writes_pinned = out->memory_is_systems || host_tables;
  out->writes_managed = out->writes_pinned && has_attribute(runtime, device, LADEI_ATTR_CONCURRENT_MANAGED_ACCESS);
  out->writes_all = host_tables;
}

static bool is_written(const ladei_unified *unified, ladei_memory_kind kind) {
  switch (kind) {
  case LADEI_MEMORY_PINNED: return unified->writes_pinned;
  case LADEI_MEMORY_MANAGED: return unified->writes_managed;
  case LADEI_MEMORY_UNKNOWN: return unified->writes_all;
  case LADEI_MEMORY_DEVICE: break;
  }
  return false;
}

bool ladei_unified_is_written(const lade_runtime *runtime, const ladei_unified *unified, const void *memory,
                              uint64_t bytes) {
  ladei_pointer_attributes found = {.kind = LADEI_MEMORY_DEVICE};
  lade_status status;
  if (!unified->writes_pinned) return false;
  LADEI_ASIDE(status = runtime->ops->pointer_attributes(runtime->self, memory, &found));
  uint64_t offset = (uint64_t)(uintptr_t)memory - found.base;
  bool inside = found.kind == LADEI_MEMORY_UNKNOWN || (offset < found.bytes && bytes <= found.bytes - offset);
  return status == LADE_OK && inside && is_written(unified, found.kind);
}
