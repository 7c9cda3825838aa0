/* SPDX-License-Identifier: Apache-2.0 */
/* Driver calls for expandable segments; model in expandable.c. */
#ifndef LADE_DEVICE_NATIVE_EXPANDABLE_H
#define LADE_DEVICE_NATIVE_EXPANDABLE_H

#include "device/state/allocator.h"

/* A block of at least request->rounded bytes in an expandable segment, mapping what is missing; BUSY. Lock as above.
 * There is room for one more block after success. */
lade_status ladei_device_expandable_alloc(lade_device_allocator *allocator, const ladei_device_request *request,
                                          ladei_device_block **out);

/* Unmaps a BUSY block of whole granules, without the lock. *out_gone is false if it stayed as it was. */
lade_status ladei_device_expandable_unmap(lade_device_allocator *allocator, const ladei_device_block *block,
                                          bool *out_gone);

/* Commits it, with the lock, if it is gone: a hole. */
void ladei_device_expandable_unmapped(lade_device_allocator *allocator, ladei_device_block *block);

/* Offers what the driver refused once more (E2). Lock as above; no thread gives a peer access. The first refusal. */
lade_status ladei_device_expandable_retry(lade_device_allocator *allocator);
/* Takes the memory out from under granules [first, first + count); what the driver refuses stays (E2). The first
 * refusal. No lock held; no grant is under way. */
lade_status ladei_device_expandable_leave(lade_device_allocator *allocator, ladei_device_heap_segment *segment,
                                          size_t first, size_t count);
/* Puts memory under them again, also where they have some: all of them or none. Likewise. */
lade_status ladei_device_expandable_return(lade_device_allocator *allocator, ladei_device_heap_segment *segment,
                                           size_t first, size_t count);
/* How many of them have memory. */
size_t ladei_device_expandable_remaining(const ladei_device_heap_segment *segment, size_t first, size_t count);
/* Whether memory of them may be open in other processes. */
bool ladei_device_expandable_exportable(const ladei_device_heap_segment *segment, size_t first, size_t count);

/* The bytes of a HOLE, or BUSY hole of the caller's, that the driver has not taken back. */
uint64_t ladei_device_expandable_held(const ladei_device_block *block);

/* Gives back the addresses of a segment whose BUSY hole covers all of it. Lock as above. */
lade_status ladei_device_expandable_release(lade_device_allocator *allocator, ladei_device_heap_segment *segment);

/* Gives a device access to everything mapped in expandable segments, then calls `append` under the same hold of the
 * lock that found nothing left to do. On failure it was not called. No lock held. */
lade_status ladei_device_expandable_grant(lade_device_allocator *allocator, int peer,
                                          lade_status (*append)(lade_device_allocator *allocator, int peer));

#endif /* LADE_DEVICE_NATIVE_EXPANDABLE_H */
