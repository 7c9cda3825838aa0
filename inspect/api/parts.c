/* SPDX-License-Identifier: Apache-2.0 */
/* The table of parts. */
#include <stdio.h>

#include "base/error.h"
#include "inspect/part.h"

const ladei_inspect_part_ops *ladei_inspect_part_ops_of(uint32_t kind) {
  switch (kind) {
  case LADE_PART_DEVICE: return &ladei_inspect_part_device;
  case LADE_PART_PINNED: return &ladei_inspect_part_pinned;
  case LADE_PART_PIPELINE: return &ladei_inspect_part_pipeline;
  default: return NULL;
  }
}

lade_status ladei_inspect_part_check(const char *call, size_t index, const lade_part *part) {
  if (ladei_inspect_part_ops_of(part->kind) == NULL) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: parts[%zu].kind is %u; expected 1 (device) to 3 (pipeline)",
                       call, index, part->kind);
  }
  if (part->object == NULL)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: parts[%zu].object is NULL", call, index);
  return LADE_OK;
}

const char *ladei_inspect_part_name(const lade_part *part, size_t index, char room[64]) {
  if (part->name != NULL) return part->name;
  snprintf(room, 64, "%s %zu", ladei_inspect_kind_name(part->kind), index);
  return room;
}
