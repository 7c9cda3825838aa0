/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the history, and its end. */
#ifndef LADE_DEVICE_API_HISTORY_API_H
#define LADE_DEVICE_API_HISTORY_API_H

#include "device/state/allocator.h"
#include "history/copy.h"

/* The last events go to the trackers, memory and contexts are released. Excludes every other call. No lock held. */
void ladei_device_history_destroy(lade_device_allocator *allocator);

/* Copies the events that were put into the ring before number `end` of them: history/copy.h. No lock held.
 * LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_device_history_read(lade_device_allocator *allocator, uint64_t end, ladei_history_copy *out);

/* A copy whose events are lade_device_event, and what they borrow from. */
typedef struct ladei_device_history_kept {
  ladei_history_context *context;
  ladei_history_tags *tags;
} ladei_device_history_kept;

typedef struct ladei_device_history_shown {
  ladei_history_copy copy;
  ladei_device_history_kept *kept; /* parallel to its events */
} ladei_device_history_shown;

/* Takes the copy, also where it fails: LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_device_history_show(ladei_history_copy *copy, ladei_device_history_shown *out);
void ladei_device_history_shown_destroy(ladei_device_history_shown *shown);

#endif /* LADE_DEVICE_API_HISTORY_API_H */
