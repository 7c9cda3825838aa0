/* SPDX-License-Identifier: Apache-2.0 */
/* Private pools; model in private_pool.c. */
#ifndef LADE_DEVICE_NATIVE_PRIVATE_POOL_H
#define LADE_DEVICE_NATIVE_PRIVATE_POOL_H

#include "device/state/allocator.h"

/* NULL if there is none. Lock held. */
ladei_device_private_pool *ladei_device_private_pool_find(const ladei_device_heap *heap, lade_device_pool_id id);

#endif /* LADE_DEVICE_NATIVE_PRIVATE_POOL_H */
