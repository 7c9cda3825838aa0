/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which parts of a transfer the copy engine reaches by itself: pinned memory, and memory of devices. They need no staging
 * block and no reader.
 *
 * I1  A part is direct only if all of its bytes lie in one pinned range, or in memory of a device.
 * Locks: none. Asks the driver; an answer it refuses to give means "not pinned".
 */
#include "base/error.h"
#include "pipeline/internal.h"

/* Smaller pieces of lists are gathered all the same: one packed copy costs less than a copy for each. */
enum { LEAST_PIECE = 64 << 10 };

/* The pinned range that was found last: pieces of a list often lie in the same. */
typedef struct pinned_range {
  uint64_t begin;
  uint64_t end;
} pinned_range;

static bool range_holds(const pinned_range *range, const ladei_part *part) {
  uint64_t begin = (uint64_t)(uintptr_t)part->host.memory;
  return begin >= range->begin && begin < range->end && part->bytes <= range->end - begin;
}

static bool part_is_pinned(const lade_runtime *runtime, const ladei_part *part, pinned_range *range) {
  ladei_pointer_attributes attributes;
  if (range_holds(range, part)) {
    return true;
  }
  lade_error before;
  ladei_error_save(&before);
  lade_status status = runtime->ops->pointer_attributes(runtime->self, part->host.memory, &attributes);
  ladei_error_restore(&before);
  if (status != LADE_OK || attributes.kind != LADEI_MEMORY_PINNED) {
    return false;
  }
  *range = (pinned_range){attributes.base, attributes.base + attributes.bytes};
  return range_holds(range, part);
}

bool ladei_parts_find_direct(const lade_pipeline *pipeline, ladei_parts *parts) {
  pinned_range range = {0, 0};
  size_t found = 0;
  for (size_t i = 0; i < parts->count; i++) {
    ladei_part *part = &parts->list[i];
    bool large = parts->count == 1 || part->bytes >= LEAST_PIECE;
    part->direct = part->host.kind == LADE_ENDPOINT_DEVICE || (part->host.kind == LADE_ENDPOINT_MEMORY && large &&
                                                               part_is_pinned(pipeline->runtime, part, &range));
    found += part->direct ? 1 : 0;
  }
  return found == parts->count;
}
