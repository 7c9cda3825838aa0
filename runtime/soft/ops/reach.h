/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that an op names. Under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_OPS_REACH_H
#define LADE_RUNTIME_SOFT_OPS_REACH_H

#include "runtime/soft/state/model.h"

/* Whether a device itself reads and writes device memory of a live range. Access between devices (peer_enable) covers
 * only memory of device_alloc; mapped memory and pools have their own access. */
bool ladei_soft_range_accessible(const soft_runtime *rt, const soft_range *range, const void *address, size_t bytes,
                                 int device);

/* The range with these bytes, in memory that the stream's device reads or writes itself: device memory it may access,
 * or pinned memory. NULL: none. */
soft_range *ladei_soft_reach(soft_runtime *rt, const soft_stream *stream, const void *address, size_t bytes);

/* Refuses an op's memory; reports a finding if it was freed. */
lade_status ladei_soft_bad_memory(soft_runtime *rt, soft_op op, const void *address, size_t bytes);

#endif /* LADE_RUNTIME_SOFT_OPS_REACH_H */
