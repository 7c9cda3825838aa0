/* SPDX-License-Identifier: Apache-2.0 */
/* Callbacks of the program; model in callbacks.c. */
#ifndef LADE_DEVICE_OBSERVE_CALLBACKS_H
#define LADE_DEVICE_OBSERVE_CALLBACKS_H

#include "device/state/allocator.h"

/* Runs all reclaimers; whether any freed something. Lock held at call and return, released in between. */
bool ladei_device_callbacks_reclaim(lade_device_allocator *allocator);
/* Calls all observers of failed allocations. No lock held. */
void ladei_device_callbacks_report_oom(lade_device_allocator *allocator, const lade_device_oom *oom);
/* Calls what hears of memory that the driver is about to be asked to take back. No lock held. */
void ladei_device_callbacks_leave(lade_device_allocator *allocator, const ladei_device_heap_segment *segment,
                                  lade_device_action action, uint64_t address, uint64_t bytes);

#endif /* LADE_DEVICE_OBSERVE_CALLBACKS_H */
