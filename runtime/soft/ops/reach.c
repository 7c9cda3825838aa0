/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that an op names, and whether a stream's device may access it.
 *
 * Locks: rt->lock.
 */
#include "runtime/soft/ops/reach.h"

#include <stdio.h>

#include "runtime/soft/state/address.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/mappings.h"

lade_status ladei_soft_bad_memory(soft_runtime *rt, soft_op op, const void *address, size_t bytes) {
  const soft_range *range = ladei_soft_range_at(rt, address);
  if (range == NULL && ladei_soft_address_was_used(rt, address)) {
    ladei_soft_finding(rt, &rt->findings.freed_memory_used, "%s: %zu bytes at %p were freed before",
                       ladei_soft_op_name(op), bytes, address);
  }
  if (range != NULL && !ladei_soft_range_covers(range, address, bytes)) {
    char expected[96];
    snprintf(expected, sizeof expected, "bytes within the %zu at %p of one %s", range->bytes,
             (void *)(uintptr_t)soft_tree_key(&range->node),
             range->kind == SOFT_RANGE_REGISTERED ? "registration" : "allocation");
    return ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_VALUE, "memory", expected, "%zu bytes at %p", bytes,
                             address);
  }
  return ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_VALUE, "memory",
                           range == NULL ? "live memory of the kind that the direction names"
                                         : "memory that is mapped and that the device may access",
                           "%zu bytes at %p", bytes, address);
}

bool ladei_soft_range_accessible(const soft_runtime *rt, const soft_range *range, const void *address, size_t bytes,
                                 int device) {
  switch (range->kind) {
  case SOFT_RANGE_RESERVED: return ladei_soft_mapping_accessible(rt, address, bytes, device);
  case SOFT_RANGE_POOL: return range->device == device || (range->pool->access >> device & 1) != 0;
  default: return range->device == device || (rt->devices[device].peers >> range->device & 1) != 0;
  }
}

soft_range *ladei_soft_reach(soft_runtime *rt, const soft_stream *stream, const void *address, size_t bytes) {
  soft_range *range = ladei_soft_range_at(rt, address);
  if (range == NULL || !ladei_soft_range_covers(range, address, bytes)) return NULL;
  return range->host || ladei_soft_range_accessible(rt, range, address, bytes, stream->device) ? range : NULL;
}
