/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses, ranges and their charges (model in address.c). All under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_STATE_ADDRESS_H
#define LADE_RUNTIME_SOFT_STATE_ADDRESS_H

#include "runtime/soft/state/model.h"

void ladei_soft_addresses_open(soft_runtime *rt);

/*
 * Maps new memory (device memory of `device`, or host memory) at an address never used before in this runtime, and
 * makes a live range of it. node: NUMA node to bind host memory to, -1: any. Under the lock. NULL: the system refuses.
 */
soft_range *ladei_soft_range_new(soft_runtime *rt, soft_range_kind kind, soft_device *device, bool host, size_t bytes,
                                 size_t align, int32_t node);

/* A live range over the program's own memory. NULL: no memory. */
soft_range *ladei_soft_range_register(soft_runtime *rt, soft_device *device, void *address, size_t bytes);

/* Ends a range: no longer found; unmapped when the last work that names it has ended. Under the lock. */
void ladei_soft_range_end(soft_runtime *rt, soft_range *range);

/* The same for a range that is not in rt->ranges. */
void ladei_soft_range_discard(soft_runtime *rt, soft_range *range);

/* A piece of work no longer names the range. */
void ladei_soft_range_unpin(soft_runtime *rt, soft_range *range);
void ladei_soft_range_unmap(soft_range *range);

/* A small piece of host memory, which begins at a multiple of 512 bytes and shares its pages. NULL: no memory. */
soft_range *ladei_soft_range_place(soft_runtime *rt, soft_device *device, size_t bytes);
/* Whether the address is in the pages for the next such pieces. */
bool ladei_soft_in_chunk(const soft_runtime *rt, const void *address);
/* At close, when nothing is alive. */
void ladei_soft_chunk_close(soft_runtime *rt);

/* The live range that holds `address`, or NULL. */
soft_range *ladei_soft_range_at(const soft_runtime *rt, const void *address);
bool ladei_soft_range_covers(const soft_range *range, const void *address, size_t bytes);
/* The lowest live range that shares a byte with these, or NULL. */
soft_range *ladei_soft_range_overlapping(const soft_runtime *rt, const void *address, size_t bytes);

/* Whether an address that no live range holds was handed out before. */
bool ladei_soft_address_was_used(const soft_runtime *rt, const void *address);

/* Counts device memory; false when the capacity does not allow it. */
bool ladei_soft_memory_charge(soft_device *device, size_t bytes);
void ladei_soft_memory_uncharge(soft_device *device, size_t bytes);
bool ladei_soft_pinned_charge(soft_runtime *rt, size_t bytes);
lade_status ladei_soft_out_of_device_memory(soft_op op, const soft_device *device, size_t bytes);

#endif /* LADE_RUNTIME_SOFT_STATE_ADDRESS_H */
