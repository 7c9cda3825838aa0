/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookup of mappings, by address. The ops that make and end them are in runtime/soft/ops/vm.c.
 *
 * Locks: rt->lock.
 */
#include "runtime/soft/state/mappings.h"

#include <unistd.h>

/* The first mapping at or after an address and before `end`; NULL if none. */
soft_mapping *ladei_soft_mapping_from(const soft_runtime *rt, uint64_t address, uint64_t end) {
  soft_mapping *mapping = (soft_mapping *)soft_tree_ceiling(&rt->mappings, address);
  return mapping != NULL && soft_tree_key(&mapping->node) < end ? mapping : NULL;
}

soft_mapping *ladei_soft_mapping_at(const soft_runtime *rt, const void *address) {
  soft_mapping *mapping = (soft_mapping *)soft_tree_floor(&rt->mappings, soft_key_of(address));
  return mapping != NULL && soft_key_of(address) - soft_tree_key(&mapping->node) < mapping->bytes ? mapping : NULL;
}

bool ladei_soft_mapping_accessible(const soft_runtime *rt, const void *address, size_t bytes, int device) {
  uint64_t next = soft_key_of(address), end = next + bytes;
  while (next < end) {
    const soft_mapping *mapping = ladei_soft_mapping_at(rt, soft_address_of(next));
    if (mapping == NULL || mapping->access == 0) return false;
    if (device >= 0 && (mapping->access >> device & 1) == 0) return false;
    next = soft_tree_key(&mapping->node) + mapping->bytes;
  }
  return true;
}

int32_t ladei_soft_memory_device(const soft_runtime *rt, const soft_range *range, const void *address) {
  if (range == NULL || range->host) return -1;
  return range->kind == SOFT_RANGE_RESERVED ? ladei_soft_mapping_at(rt, address)->vm->device : range->device;
}

void ladei_soft_vm_close(soft_runtime *rt) {
  for (uint32_t i = 0; i < atomic_load(&rt->vm_table.count); i++) {
    const soft_vm *vm = ladei_soft_table_at(&rt->vm_table, i);
    if (vm->file >= 0) close(vm->file);
  }
}
