/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of the implementations of a group. Locks: none. */
#include "group/frame.h"

#include <stdio.h>
#include <time.h>

#include "base/error.h"

lade_status ladei_group_timeout_read(const char *call, uint64_t *timeout_ns) {
  if (*timeout_ns == 0) *timeout_ns = LADEI_GROUP_TIMEOUT_NS;
  if (*timeout_ns <= LADEI_GROUP_MOST_TIMEOUT_NS) return LADE_OK;
  return ladei_error_argument(call, "options.timeout_ns", "an hour at most", "%llu", (unsigned long long)*timeout_ns);
}

void ladei_group_needs_note(ladei_group_needs *needs, lade_status status) {
  needs->status = (int32_t)status;
  if (status != LADE_OK) (void)snprintf(needs->text, sizeof needs->text, "%.250s", lade_last_error()->text);
}

/* Another rank wrote `needs`: its text may lack a 0 at its end. */
lade_status ladei_group_needs_check(const ladei_group_needs *needs, uint32_t rank) {
  if (needs->status == LADE_OK) return LADE_OK;
  return ladei_error((lade_status)needs->status, 0, "rank %u: %.*s", rank, (int)sizeof needs->text - 1, needs->text);
}

lade_status ladei_group_undo(const char *call, lade_status status, void (*undo)(void *self), void *self) {
  lade_error first;
  (void)ladei_error_prefix(status, "%s: ", call);
  ladei_error_save(&first);
  undo(self);
  ladei_error_restore(&first);
  return status;
}

lade_status ladei_group_outcome(lade_status status, lade_error *error) {
  if (status != LADE_OK) ladei_error_save(error);
  return status;
}

uint64_t ladei_group_parts_hash(const uint64_t *bytes, uint32_t count) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (uint32_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  return hash;
}

uint64_t ladei_group_parts_before(const uint64_t *bytes, uint32_t rank) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < rank; i++) sum += bytes[i];
  return sum;
}

lade_status ladei_group_own_part_copy(const lade_runtime *runtime, const void *part, void *to, uint64_t bytes,
                                      const ladei_stream *stream) {
  if (bytes == 0 || part == to) return LADE_OK;
  return runtime->ops->copy(runtime->self, LADEI_COPY_D2D, to, part, bytes, stream);
}
