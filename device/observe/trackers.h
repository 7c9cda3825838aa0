/* SPDX-License-Identifier: Apache-2.0 */
/* Trackers; model in trackers.c. */
#ifndef LADE_DEVICE_OBSERVE_TRACKERS_H
#define LADE_DEVICE_OBSERVE_TRACKERS_H

#include "device/state/allocator.h"

void ladei_device_trackers_queue(ladei_device_history *history, const lade_device_event *event,
                                 const lade_device_event_totals *totals);
/* Delivers what is queued, unless another thread does. Lock held at call and return, released in between. */
void ladei_device_trackers_deliver(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_OBSERVE_TRACKERS_H */
