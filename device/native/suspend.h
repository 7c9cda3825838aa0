/* SPDX-License-Identifier: Apache-2.0 */
/* Private pools whose memory is away for a while; model in suspend.c. */
#ifndef LADE_DEVICE_NATIVE_SUSPEND_H
#define LADE_DEVICE_NATIVE_SUSPEND_H

#include "device/state/allocator.h"

typedef struct ladei_device_suspension ladei_device_suspension;

/* LADE_ERR_BUSY for a call that needs the pool's memory while it is away. Lock held. */
lade_status ladei_device_suspended_refuse(const lade_device_allocator *allocator, const char *call,
                                          const ladei_device_private_pool *pool);
/* Whether it is away, or on its way. No lock held. */
bool ladei_device_pool_is_suspended(lade_device_allocator *allocator, lade_device_pool_id id);

/* The record of a graph's pool, kept until the graph leaves it; NULL, which the calls below take, too: there is none. No lock held. */
ladei_device_private_pool *ladei_device_pool_visit(lade_device_allocator *allocator, lade_device_pool_id id);
void ladei_device_pool_leave(lade_device_allocator *allocator, ladei_device_private_pool *pool);
/* The caller queues work on the pool's memory from here to the end: no suspend begins meanwhile. LADE_ERR_BUSY, with no end to follow,
 * while the memory is away, or on its way. No lock held, and none taken where no pool is suspended. */
lade_status ladei_device_launch_begin(lade_device_allocator *allocator, const char *call,
                                      ladei_device_private_pool *pool);
void ladei_device_launch_end(ladei_device_private_pool *pool);

/* What the driver has not taken back of the pool's memory, and what of it is away. Lock held. */
uint64_t ladei_device_suspension_held(const ladei_device_suspension *suspension);
uint64_t ladei_device_suspension_bytes(const ladei_device_suspension *suspension);

/* Gives up the contents of a released pool in which nothing is handed out, so that a flush finds what is left of it. Lock held. */
void ladei_device_suspension_abandon(lade_device_allocator *allocator, ladei_device_private_pool *pool);
/* Gives back the pinned memory of those that are over. No lock held. */
void ladei_device_suspensions_drop(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_NATIVE_SUSPEND_H */
