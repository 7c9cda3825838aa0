/* SPDX-License-Identifier: Apache-2.0 */
/* Creating an allocator, and recounting one. */
#ifndef LADE_DEVICE_API_DEVICE_H
#define LADE_DEVICE_API_DEVICE_H

#include "device/state/allocator.h"

/* As the public call. events_only: never ask a stream whether it is done instead of recording an event; for replays, in
 * which only events are held back. */
lade_status ladei_device_allocator_create(lade_runtime *runtime, int device, const lade_device_options *options,
                                          bool events_only, lade_device_allocator **out);

/* As lade_device_free(), for memory that a room above keeps, and frees in whatever thread: also in the code of a
 * capture, which may free its own memory alone. */
lade_status ladei_device_free_kept(lade_device_allocator *allocator, void *pointer);

/* From now on the program's next free of a block does nothing. False: it is not handed out, or lent already. No lock held. */
bool ladei_device_lend(lade_device_allocator *allocator, const void *pointer);
/* Ends that. False: that free has come, or it was not lent. No lock held. */
bool ladei_device_lent_end(lade_device_allocator *allocator, const void *pointer);

/* As lade_device_pool_suspend(), with the calls of lade's pinned pool. */
lade_status ladei_device_pool_suspend(lade_device_allocator *allocator, lade_device_pool_id id,
                                      const lade_device_suspend_options *options,
                                      const ladei_device_backup_calls *calls, uint64_t *out_bytes);

/* Recounts the backend's invariants (heap.h, ledger.h); LADE_ERR_INTERNAL names the one broken. For tests; no call in
 * flight. */
lade_status ladei_device_allocator_check(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_API_DEVICE_H */
