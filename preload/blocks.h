/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade's blocks that the program holds, by address, as requested. One table for pinned memory, one for device memory.
 *
 * B1  A block is in the table from the moment at which the program knows its address until the program frees it: if two
 *     threads free one address, one of them takes the block.
 * Locks: one for each shard; it is held during no call.
 */
#ifndef LADE_PRELOAD_BLOCKS_H
#define LADE_PRELOAD_BLOCKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uthash.h>

typedef struct preload_block {
  UT_hash_handle hh;          /* in its shard */
  struct preload_block *next; /* in the list of blocks freed together */
  void *pointer;
  size_t bytes;   /* as asked for */
  int device;     /* ordinal of its pool's device */
  unsigned flags; /* pinned: of cuMemHostAlloc, as asked for */
  bool by_alloc_host;
  bool waits_for_all; /* pinned: streams that its pool does not know may use it */
  bool is_ordered;    /* device memory: of cuMemAllocAsync */
} preload_block;

typedef struct preload_blocks preload_blocks;
extern preload_blocks ladei_preload_pinned_blocks, ladei_preload_device_blocks;

/* False: no memory for the table; the block stays the caller's. */
bool ladei_preload_blocks_add(preload_blocks *all, preload_block *block);
/* A copy of the block that begins there. */
bool ladei_preload_blocks_find(preload_blocks *all, const void *pointer, preload_block *out);
/* Whether a block has bytes in [begin, end). Looks at every block. */
bool ladei_preload_blocks_overlap(preload_blocks *all, uintptr_t begin, uintptr_t end);
/* Takes out the block that begins there; NULL: there is none. */
preload_block *ladei_preload_blocks_take(preload_blocks *all, const void *pointer);
/* Takes out all blocks of a device, linked by `next`. */
preload_block *ladei_preload_blocks_take_all(preload_blocks *all, int device);
/* Notes that the free of the block must wait for all streams. */
void ladei_preload_blocks_wait_for_all(preload_blocks *all, const void *pointer);

/* Recounts the table. Says what is wrong; NULL: nothing. */
const char *ladei_preload_blocks_check(preload_blocks *all);

#endif /* LADE_PRELOAD_BLOCKS_H */
