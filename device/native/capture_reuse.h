/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that come back within a capture, with LADE_DEVICE_CAPTURE_REUSE; model in capture_reuse.c. */
#ifndef LADE_DEVICE_NATIVE_CAPTURE_REUSE_H
#define LADE_DEVICE_NATIVE_CAPTURE_REUSE_H

#include "device/state/allocator.h"

/* A block has just become DEFERRED, and is `marking` until this call ends: sees where its streams are in the capture.
 * No lock held. Never fails: a block without markers comes back after the capture. */
void ladei_device_capture_reuse_mark(lade_device_allocator *allocator, ladei_device_block *block);
/* Gives back the DEFERRED blocks of the stream whose uses the capture orders before its next work. No lock held. */
void ladei_device_capture_reuse_settle(lade_device_allocator *allocator, const ladei_stream *stream);
/* The same where it may find any: the check before a request. */
static inline void ladei_device_capture_reuse(lade_device_allocator *allocator, const ladei_stream *stream) {
  if (atomic_load_explicit(&allocator->seen.capture_reuse, memory_order_relaxed) &&
      atomic_load_explicit(&allocator->deferred.count, memory_order_relaxed) != 0)
    ladei_device_capture_reuse_settle(allocator, stream);
}

/* The block is no longer DEFERRED. Lock held. */
void ladei_device_markers_drop(ladei_device_block *block);
/* The capture into the pool is over. Lock held. */
void ladei_device_capture_walks_drop(ladei_device_private_pool *pool);

#endif /* LADE_DEVICE_NATIVE_CAPTURE_REUSE_H */
