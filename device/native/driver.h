/* SPDX-License-Identifier: Apache-2.0 */
/* Limits, and driver calls for plain segments. */
#ifndef LADE_DEVICE_NATIVE_DRIVER_H
#define LADE_DEVICE_NATIVE_DRIVER_H

#include "device/state/allocator.h"

/* Whether `bytes` more may be reserved: LADE_OK, LADE_ERR_OUT_OF_DEVICE_MEMORY (fraction), LADE_ERR_LIMIT (options). */
lade_status ladei_device_driver_budget(lade_device_allocator *allocator, size_t bytes);

/* A new plain segment for the request; its block is BUSY. There is room for one more block after success. */
lade_status ladei_device_driver_segment_alloc(lade_device_allocator *allocator, const ladei_device_request *request,
                                              ladei_device_block **out);

/* Offers the memory of a plain segment, at `address`, to the driver or the provider it came from. No lock held. */
lade_status ladei_device_driver_segment_free(lade_device_allocator *allocator, const ladei_device_heap_segment *segment,
                                             uint64_t address);

#endif /* LADE_DEVICE_NATIVE_DRIVER_H */
