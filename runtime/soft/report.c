/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of lade/soft.h, and the check for a close.
 *
 * Locks: rt->lock.
 */
#include "runtime/soft/report.h"

#include <stdio.h>

static uint64_t ranges_count(const soft_runtime *rt, bool (*counts)(const soft_range *)) {
  uint64_t count = 0;
  for (const soft_tree_node *node = ladei_ordered_set_first(&rt->ranges); node != NULL; node = ladei_order_next(node))
    count += counts((const soft_range *)node);
  return count;
}

static bool is_device_allocation(const soft_range *range) { return !range->host && range->kind != SOFT_RANGE_RESERVED; }

static bool is_reservation(const soft_range *range) { return range->kind == SOFT_RANGE_RESERVED; }

static bool is_host_pool_block(const soft_range *range) { return range->host && range->kind == SOFT_RANGE_POOL; }

static uint64_t driver_pools(const soft_runtime *rt) {
  uint64_t count = rt->pool_table.live_count;
  for (int32_t i = 0; i < rt->device_count; i++) count -= rt->devices[i].default_pool != NULL;
  return count;
}

/* Objects that only wait for the host engine are no longer the program's. */
static uint64_t user_objects(const soft_runtime *rt) {
  uint64_t count = 0;
  for (uint32_t i = 0; i < atomic_load(&rt->object_table.count); i++) {
    const soft_user_object *object = ladei_soft_table_at(&rt->object_table, i);
    count += atomic_load(&object->slot.live) && object->references > object->late;
  }
  return count;
}

void ladei_soft_report_fill(const soft_runtime *rt, lade_soft_report *report) {
  lade_soft_report_init(report);
  report->freed_memory_used = rt->findings.freed_memory_used;
  report->unordered_reuse = rt->findings.unordered_reuse;
  report->unpinned_copies = rt->findings.unpinned_copies;
  report->stale_handles = rt->findings.stale_handles;
  for (int32_t i = 0; i < rt->device_count; i++) report->device_bytes += rt->devices[i].charged;
  report->pinned_bytes = rt->pinned_bytes;
  report->device_allocations = ranges_count(rt, is_device_allocation) + rt->vm_table.live_count;
  report->pinned_ranges = rt->pinned_ranges;
  report->streams = rt->stream_table.live_count;
  report->events = rt->event_table.live_count;
  report->graphs = rt->graph_table.live_count + rt->exec_table.live_count;
  report->driver_pools = driver_pools(rt);
  report->user_objects = user_objects(rt);
  report->last_finding = rt->findings.text;
}

lade_status ladei_soft_close_check(const soft_runtime *rt) {
  lade_soft_report report;
  ladei_soft_report_fill(rt, &report);
  uint64_t reservations = ranges_count(rt, is_reservation);
  uint64_t host_blocks = ranges_count(rt, is_host_pool_block);
  const struct {
    const char *what;
    uint64_t count;
  } kinds[] = {{"device allocations", report.device_allocations - rt->vm_table.live_count},
               {"memory handles", rt->vm_table.live_count},
               {"memory opened by IPC", rt->ipc_opens},
               {"address reservations", reservations},
               {"pinned ranges", report.pinned_ranges},
               {"host pool blocks", host_blocks},
               {"streams", report.streams},
               {"events", report.events},
               {"graphs", report.graphs},
               {"driver pools", report.driver_pools},
               {"user objects", report.user_objects}};
  char text[320] = "";
  size_t used = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    if (kinds[i].count == 0) continue;
    int written = snprintf(text + used, sizeof text - used, "%s%llu %s", used == 0 ? "" : ", ",
                           (unsigned long long)kinds[i].count, kinds[i].what);
    used += written > 0 ? (size_t)written : 0;
  }
  return used == 0 ? LADE_OK : ladei_error(LADE_ERR_BUSY, 0, "close: still alive: %s", text);
}
