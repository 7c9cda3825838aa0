/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device: free and in all. */
#ifndef LADE_DEVICE_STATE_MEMORY_INFO_H
#define LADE_DEVICE_STATE_MEMORY_INFO_H

#include "device/state/allocator.h"

/*
 * The driver's answer; on a device whose memory is the system's (integrated), free is at least what the system says is available: the driver
 * counts the page cache as used there, which the kernel gives up for an allocation. A driver's call: without lock. Results
 * untouched on error.
 */
lade_status ladei_device_memory_info(const lade_device_allocator *allocator, size_t *out_free_bytes,
                                     size_t *out_total_bytes);

#endif /* LADE_DEVICE_STATE_MEMORY_INFO_H */
