/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places where physical memory is mapped. All under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_STATE_MAPPINGS_H
#define LADE_RUNTIME_SOFT_STATE_MAPPINGS_H

#include "runtime/soft/state/model.h"

static inline void *soft_address_of(uint64_t key) { return (void *)(uintptr_t)key; }

static inline uint64_t soft_key_of(const void *address) { return (uint64_t)(uintptr_t)address; }

/* The first mapping at or after an address and before `end`; NULL if none. */
soft_mapping *ladei_soft_mapping_from(const soft_runtime *rt, uint64_t address, uint64_t end);

/* The mapping that holds `address`, or NULL. */
soft_mapping *ladei_soft_mapping_at(const soft_runtime *rt, const void *address);

/* All of [address, address + bytes) is mapped, and accessible to `device` (-1: to any). */
bool ladei_soft_mapping_accessible(const soft_runtime *rt, const void *address, size_t bytes, int device);
/* The device that has the memory of a live range; -1 for host memory and NULL. */
int32_t ladei_soft_memory_device(const soft_runtime *rt, const soft_range *range, const void *address);

/* At the end of a runtime: frees handles that were not released. */
void ladei_soft_vm_close(soft_runtime *rt);

#endif /* LADE_RUNTIME_SOFT_STATE_MAPPINGS_H */
