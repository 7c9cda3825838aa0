/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the history, and its end. */
#ifndef LADE_DEVICE_API_HISTORY_API_H
#define LADE_DEVICE_API_HISTORY_API_H

#include "device/state/allocator.h"

/* The last events go to the trackers, memory and contexts are released. Excludes every other call. No lock held. */
void ladei_device_history_destroy(lade_device_allocator *allocator);

typedef struct ladei_device_history_copy {
  lade_device_event *events;
  ladei_history_context **contexts; /* records behind the events, each counted; parallel to them */
  size_t count;
  uint64_t lost_count;
} ladei_device_history_copy;

void ladei_device_history_copy_destroy(ladei_device_history_copy *copy);

/* Memory for a copy, not cleared, every page of it touched: under the lock the first touch would take longest.
 * NULL when there is none; for free(). */
void *ladei_device_history_memory(size_t count, size_t bytes);

/* Copies the ring's events before the one numbered `end`. No lock held. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_device_history_copy_take(lade_device_allocator *allocator, uint64_t end,
                                           ladei_device_history_copy *out);

#endif /* LADE_DEVICE_API_HISTORY_API_H */
