/* SPDX-License-Identifier: Apache-2.0 */
/* Whether work is over that may use free memory. */
#ifndef LADE_DEVICE_NATIVE_FINISH_H
#define LADE_DEVICE_NATIVE_FINISH_H

#include "device/state/allocator.h"

/*
 * Returns when the work is over that may use free memory of the segment: LADE_OK, also where the device is lost.
 * LADE_ERR_CAPTURE: it stays, as a capture forbids asking. Else why it is not known. `wait`: waits for
 * the stream itself also where it is idle. No lock held.
 */
lade_status ladei_device_segment_finish(lade_device_allocator *allocator, const ladei_device_heap_segment *segment,
                                        bool wait);
/* Returns when all work on the device is over: LADE_ERR_CAPTURE while the allocator knows of a capture. No lock
 * held. */
lade_status ladei_device_finish(lade_device_allocator *allocator);
/* In the thread that the segment is got for: what finishing its own stream's work will need. No lock held. */
void ladei_device_segment_legacy_resolve(lade_device_allocator *allocator, ladei_device_heap_segment *segment);

/* An event after all work of a stream, in no segment. LADE_ERR_CAPTURE while the stream captures. No lock held. */
lade_status ladei_device_last_event_make(lade_device_allocator *allocator, const ladei_stream *stream,
                                         ladei_device_last_event **out);
/* Destroys a list. No lock held. */
void ladei_device_last_event_destroy(lade_device_allocator *allocator, ladei_device_last_event *list);
/* Destroys those that no segment refers to any more. No lock held. */
void ladei_device_last_events_drop(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_NATIVE_FINISH_H */
