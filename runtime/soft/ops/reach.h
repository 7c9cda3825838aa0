/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that an op names. Under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_OPS_REACH_H
#define LADE_RUNTIME_SOFT_OPS_REACH_H

#include "runtime/soft/state/model.h"

/* Whether a device reads and writes device memory of a live range on its own. Access between devices (peer_enable) is to
 * memory of device_alloc alone; mapped memory, and that of pools, has its own. */
bool ladei_soft_range_accessible(const soft_runtime *rt, const soft_range *range, const void *address, size_t bytes,
                                 int device);

/* The range that holds these bytes, of memory that the device of the stream reads or writes on its own: device memory it
 * may access, or pinned memory. NULL: they are none. */
soft_range *ladei_soft_reach(soft_runtime *rt, const soft_stream *stream, const void *address, size_t bytes);

/* The refusal of an op's memory, and a finding where it was freed before. */
lade_status ladei_soft_bad_memory(soft_runtime *rt, soft_op op, const void *address, size_t bytes);

#endif /* LADE_RUNTIME_SOFT_OPS_REACH_H */
