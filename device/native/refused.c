/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs of captures that failed, and that the driver refused to take back. They never were a graph of the program's,
 * so the allocator keeps them, and offers them again: before each capture, and when it is destroyed.
 *
 * J1  What is in the list is in no other one, and is not launched: its memory may serve others.
 * Locks: the allocator's lock guards the list. A thread that offers has taken it as a whole.
 */
#include "device/native/refused.h"

#include <stdlib.h>

#include "base/error.h"

static lade_status record_offer(lade_device_allocator *allocator, ladei_device_refused_graph *record) {
  lade_runtime *runtime = allocator->runtime;
  ladei_lock_assert_none_held();
  lade_status status = runtime->ops->graph_destroy(runtime->self, record->graph);
  if (status == LADE_OK) {
    free(record);
    return LADE_OK;
  }
  ladei_lock_acquire(&allocator->lock);
  record->next = allocator->refused_graphs;
  allocator->refused_graphs = record;
  ladei_lock_release(&allocator->lock);
  return status;
}

void ladei_device_graph_drop(lade_device_allocator *allocator, ladei_device_refused_graph *record, ladei_graph graph) {
  lade_error before;
  ladei_error_save(&before);
  record->graph = graph;
  (void)record_offer(allocator, record);
  ladei_error_restore(&before);
}

lade_status ladei_device_refused_offer(lade_device_allocator *allocator) {
  lade_status result = LADE_OK;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_refused_graph *list = allocator->refused_graphs, *next;
  allocator->refused_graphs = NULL;
  ladei_lock_release(&allocator->lock);
  for (; list != NULL; list = next) {
    next = list->next;
    lade_status status = record_offer(allocator, list);
    if (result == LADE_OK) result = status;
  }
  return result;
}
