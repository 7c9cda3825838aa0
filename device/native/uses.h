/* SPDX-License-Identifier: Apache-2.0 */
/* Uses of blocks by other streams; model in uses.c. */
#ifndef LADE_DEVICE_NATIVE_USES_H
#define LADE_DEVICE_NATIVE_USES_H

#include "device/state/allocator.h"

/* For ladei_retire_options. */
void ladei_device_uses_done(void *owner, ladei_retire_ticket *list);
uint64_t ladei_device_uses_order(void *owner, const ladei_stream *stream);

/* Hands a block that has just become PENDING to the retire object, one that is DEFERRED and `marking` to
 * capture_reuse.c. No lock held. */
void ladei_device_uses_add(lade_device_allocator *allocator, ladei_device_block *block);

/* Frees deferred during captures that are over get their events; then polls. No lock held. `flags` as
 * ladei_retire_poll. With LADE_DEVICE_REFERENCE it does nothing during captures and scopes. */
lade_status ladei_device_uses_process(lade_device_allocator *allocator, unsigned flags, uint64_t *out_done);
/* Whether it could find anything. */
static inline bool ladei_device_uses_waiting(const lade_device_allocator *allocator) {
  return atomic_load_explicit(&allocator->heap.waiting_count, memory_order_relaxed) != 0;
}
/* Whether a block that is freed with uses must wait for the end of a capture, DEFERRED. Lock held. */
bool ladei_device_uses_deferrable(lade_device_allocator *allocator, ladei_device_block *block);
/* Whether the capture that a deferred free waits for is still under way. Lock held. */
bool ladei_device_uses_captured(const lade_device_allocator *allocator, const ladei_device_block *block);
/* A block that the caller has taken out of the deferred ones becomes PENDING, and is to be added. Lock held. */
void ladei_device_uses_deferred_leave(lade_device_allocator *allocator, ladei_device_block *block);
/* How to note the use of a block handed out: flags of ladei_retire_note. No lock held. */
unsigned ladei_device_uses_flags(const lade_device_allocator *allocator, const ladei_device_block *block,
                                 const ladei_stream *use);
/* The id of the capture that a stream is in; 0: none. Leaves the error record alone. No lock held. */
uint64_t ladei_device_capture_of(const lade_device_allocator *allocator, const ladei_stream *stream);
/* The first half of ladei_device_uses_process. No lock held. */
void ladei_device_uses_settle_deferred(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_NATIVE_USES_H */
