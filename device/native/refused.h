/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs that the driver refused to take back, and that no other object keeps; model in refused.c. */
#ifndef LADE_DEVICE_NATIVE_REFUSED_H
#define LADE_DEVICE_NATIVE_REFUSED_H

#include "device/state/allocator.h"

/* Made before a graph is, so that what the driver refuses can be kept. */
typedef struct ladei_device_refused_graph {
  struct ladei_device_refused_graph *next;
  ladei_graph graph;
} ladei_device_refused_graph;

/* Gives a graph back to the driver, now or later; takes the record, or frees it. Leaves the error record alone. No lock
 * held. */
void ladei_device_graph_drop(lade_device_allocator *allocator, ladei_device_refused_graph *record, ladei_graph graph);
/* Offers again what was refused so far. The first refusal. No lock held. */
lade_status ladei_device_refused_offer(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_NATIVE_REFUSED_H */
