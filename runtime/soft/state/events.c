/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event records: found by handle. Their meaning is in runtime/soft/ops/event.c.
 *
 * Locks: rt->lock.
 */
#include "runtime/soft/state/events.h"

#include <stdlib.h>

#include "runtime/soft/state/findings.h"

soft_event *ladei_soft_event_find(soft_runtime *rt, soft_op op, lade_event handle, lade_status *out_status) {
  uint64_t number = (uint64_t)(uintptr_t)handle;
  soft_event *event = ladei_soft_table_find(&rt->event_table, number);
  if (event == NULL) {
    *out_status = ladei_soft_stale(rt, op, LADE_ERR_INVALID_ARGUMENT, "event", number);
    return NULL;
  }
  if (atomic_load_explicit(&rt->devices[event->device].lost, memory_order_acquire)) {
    *out_status = ladei_soft_lost(op, event->device);
    return NULL;
  }
  return event;
}

void ladei_soft_events_close(soft_runtime *rt) {
  for (uint32_t i = 0; i < atomic_load(&rt->event_table.count); i++) {
    soft_event *event = ladei_soft_table_at(&rt->event_table, i);
    free(event->order.points);
    free(event->frontier);
  }
}
