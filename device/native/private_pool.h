/* SPDX-License-Identifier: Apache-2.0 */
/* Private pools; model in private_pool.c. */
#ifndef LADE_DEVICE_NATIVE_PRIVATE_POOL_H
#define LADE_DEVICE_NATIVE_PRIVATE_POOL_H

#include "device/state/allocator.h"

/* Adds a use for a graph that was not captured into the pool: from now on the pool counts as one that was (P4). No lock
 * held. */
lade_status ladei_device_private_pool_hold(lade_device_allocator *allocator, const char *call, lade_device_pool_id id);

#endif /* LADE_DEVICE_NATIVE_PRIVATE_POOL_H */
