/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recent blocks: coalescing is deferred. A program that frees a block and allocates one of its size again, on the same
 * stream, would have the heap merge the block with the rest that it was cut from, and cut it off again. So its way back
 * into the cache waits until a call could see it.
 *
 *   search   |-------------- M: FREE --------------|
 *   alloc    |-- L: ALLOCATED --|---- F: FREE -----|    the slot of L's stream and kind of pool names L; F may be missing
 *   free     |-- L: RECENT -----|---- F: FREE -----|    counters move and listeners hear as though M were FREE
 *   alloc    |-- L: ALLOCATED --|---- F: FREE -----|    the same size, stream and pool: no search, nothing moves
 *   else     |-------------- M: FREE --------------|    settled, before anything that looks at these blocks
 *
 * No decision is made from a recent block: what the heap would decide with M in place of L and F is known. It found M
 * for this very request, and since then the free blocks of this stream and pool have not changed.
 *
 * K1  A slot names a block that a search has found, or the low part of it, and what was searched for. Nothing has
 *     changed the free blocks of its stream and pool since, nor the settings: whatever does either forgets the slot
 *     first (ladei_device_recent_forget, ladei_device_recent_forget_all). Streams that share a slot by chance forget
 *     each other's.
 * K2  A RECENT block is the one that its slot names, as `freed`. The block below it is not FREE; the one above is FREE
 *     exactly if it is the rest of M. `recent_count` counts them.
 * K3  What looks at blocks or at a free set, as they are shown to the program or decided about, settles first. The
 *     functions that lead there do it themselves: ladei_device_heap_find, ladei_device_heap_segment_block, the
 *     decisions. Other ways to them call ladei_device_recent_settle. The recount (check.c) knows about recent blocks
 *     instead.
 * K4  The FREE block above, or else the RECENT block, has the age that M would have.
 *
 * heap.c and recent.c are one state machine in two files: whatever changes the free blocks settles recent ones first,
 * and settling one is a change of the free blocks.
 * Locks: the allocator's lock, held by the caller of every function here.
 */
#ifndef LADE_DEVICE_HEAP_RECENT_H
#define LADE_DEVICE_HEAP_RECENT_H

#include "device/heap/heap.h"

static inline size_t ladei_device_recent_place(uint64_t stream_key, bool small_pool) {
  return (size_t)(2 * stream_key + small_pool) % LADEI_DEVICE_RECENT_SLOTS;
}

static inline size_t ladei_device_recent_place_of(const ladei_device_heap_segment *segment) {
  return ladei_device_recent_place(segment->stream_key, segment->pool->is_small);
}

/* The three below where there is something to do. */
void ladei_device_recent_settle_slot(ladei_device_heap *heap, ladei_device_recent *slot);
void ladei_device_recent_settle_some(ladei_device_heap *heap);
void ladei_device_recent_keep(ladei_device_heap *heap, ladei_device_recent *slot);

/* The free blocks of the stream and pool are about to change. */
static inline void ladei_device_recent_forget(ladei_device_heap *heap, uint64_t stream_key, bool small_pool) {
  ladei_device_recent *slot = &heap->recent[ladei_device_recent_place(stream_key, small_pool)];
  if (slot->freed) ladei_device_recent_settle_slot(heap, slot);
  slot->block = NULL;
}
/* Those of any stream, or the settings. */
void ladei_device_recent_forget_all(ladei_device_heap *heap);

/* From here on no block is RECENT. No caller can tell the difference, so the heap counts as unchanged. */
static inline void ladei_device_recent_settle(const ladei_device_heap *heap) {
  ladei_device_heap_assert_locked(heap);
  if (heap->recent_count > 0) ladei_device_recent_settle_some((ladei_device_heap *)(uintptr_t)heap);
}

/* K1: a search for `rounded` bytes has just found this block, or the one that it was cut off from. */
static inline void ladei_device_recent_note(ladei_device_heap *heap, ladei_device_block *block, size_t rounded) {
  heap->recent[ladei_device_recent_place_of(block->segment)] = (ladei_device_recent){block, rounded, false};
}

/* The slot of the RECENT block that a search would lead to; NULL: search. */
static inline ladei_device_recent *ladei_device_recent_find(ladei_device_heap *heap,
                                                            const ladei_device_block_pool *pool, uint64_t stream_key,
                                                            size_t rounded) {
  ladei_device_recent *slot = &heap->recent[ladei_device_recent_place(stream_key, pool->is_small)];
  if (!slot->freed || slot->rounded != rounded) return NULL;
  const ladei_device_heap_segment *segment = slot->block->segment;
  return segment->stream_key == stream_key && segment->pool == pool ? slot : NULL;
}

/* As ladei_device_block_hand_out, for what ladei_device_recent_find found. Returns the block. */
ladei_device_block *ladei_device_recent_hand_out(ladei_device_heap *heap, ladei_device_recent *slot, size_t requested);

/* As ladei_device_block_free_complete of a BUSY block, for the free of one that no other stream used. */
static inline void ladei_device_recent_free_complete(ladei_device_heap *heap, ladei_device_block *block) {
  ladei_device_recent *slot = &heap->recent[ladei_device_recent_place_of(block->segment)];
  if (slot->block != block) {
    ladei_device_block_free_complete(heap, block);
    return;
  }
  if (heap->listener != NULL) heap->listener->block_done(heap, block);
  ladei_device_recent_keep(heap, slot);
}

#endif /* LADE_DEVICE_HEAP_RECENT_H */
