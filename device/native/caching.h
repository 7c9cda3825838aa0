/* SPDX-License-Identifier: Apache-2.0 */
/* Caching off and on at run time, and holds of the driver's frees; model in caching.c. */
#ifndef LADE_DEVICE_NATIVE_CACHING_H
#define LADE_DEVICE_NATIVE_CACHING_H

#include "device/state/allocator.h"

/* Turns caching off, or on again. Lock held. */
void ladei_device_caching_set(lade_device_allocator *allocator, bool enabled);
/* Sets up the pool of uncached memory; before the first call. */
void ladei_device_uncached_init(lade_device_allocator *allocator);

/* Whether there is memory that goes back as soon as it is free. Lock held. */
static inline bool ladei_device_uncached_any(const lade_device_allocator *allocator) {
  return allocator->caching.uncached.segment_count > 0;
}
/* Gives back what of it is free; what is refused stays for the next time. No lock held; keeps the thread's error
 * record. */
void ladei_device_uncached_give_back(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_NATIVE_CACHING_H */
