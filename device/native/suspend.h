/* SPDX-License-Identifier: Apache-2.0 */
/* Private pools whose memory is away for a while; model in suspend.c. */
#ifndef LADE_DEVICE_NATIVE_SUSPEND_H
#define LADE_DEVICE_NATIVE_SUSPEND_H

#include "device/state/allocator.h"

/* Whether the pool's memory is away, or on its way. No lock held. */
bool ladei_device_pool_is_suspended(lade_device_allocator *allocator, lade_device_pool_id id);

/* The record of a graph's pool, kept until the graph leaves it; NULL, which the calls below take, too: there is none.
 * No lock held. */
ladei_device_private_pool *ladei_device_pool_visit(lade_device_allocator *allocator, lade_device_pool_id id);
void ladei_device_pool_leave(lade_device_allocator *allocator, ladei_device_private_pool *pool);
/* The caller queues work on the pool's memory from here to the end: no suspend begins meanwhile. LADE_ERR_BUSY, with no
 * end to follow, while the memory is away, or on its way. No lock held, and none taken where no pool is suspended. */
lade_status ladei_device_launch_begin(lade_device_allocator *allocator, const char *call,
                                      ladei_device_private_pool *pool);
void ladei_device_launch_end(ladei_device_private_pool *pool);

/* Gives back what the pinned pool keeps unused, or all of it (Z7); the latter where nothing is suspended. No lock held. */
lade_status ladei_device_backup_empty(lade_device_allocator *allocator);
lade_status ladei_device_backup_close(lade_device_allocator *allocator);

/* Once: out of memory, the cache has not been given back for it. No lock held. */
lade_status ladei_device_pool_resume_once(lade_device_allocator *allocator, lade_device_pool_id id);

/* Gives up the contents of a released pool in which nothing is handed out, so that a flush finds what is left of it.
 * Lock held. */
void ladei_device_suspension_abandon(lade_device_allocator *allocator, ladei_device_private_pool *pool);
/* Gives back the pinned memory of those that are over. No lock held. */
void ladei_device_suspensions_drop(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_NATIVE_SUSPEND_H */
