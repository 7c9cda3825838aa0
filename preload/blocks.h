/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks that the program holds of lade: what it asked for, by address.
 *
 * B1  A block is in the table from the moment its address is known to the program until the program frees it: of two threads
 *     that free one address, one takes it.
 * Locks: one for each shard; nothing is called under it.
 */
#ifndef LADE_PRELOAD_BLOCKS_H
#define LADE_PRELOAD_BLOCKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct preload_block {
  struct preload_block *next; /* in its shard's bucket; later among the blocks freed together */
  void *pointer;
  size_t bytes;   /* as asked for */
  unsigned flags; /* of cuMemHostAlloc, as asked for */
  int device;     /* ordinal: whose pool it is of */
  bool by_alloc_host;
  bool in_graph; /* a node of a graph may use it; streams that launch it are not seen */
} preload_block;

/* False: no memory for the table; the block stays the caller's. */
bool ladei_preload_blocks_add(preload_block *block);
/* A copy of the block that begins there. */
bool ladei_preload_blocks_find(const void *pointer, preload_block *out);
/* Whether a block has bytes in [begin, end). Looks at every block. */
bool ladei_preload_blocks_overlap(uintptr_t begin, uintptr_t end);
/* The block that begins there, taken out; NULL: there is none. */
preload_block *ladei_preload_blocks_take(const void *pointer);
/* All blocks of a device, taken out and linked by `next`. */
preload_block *ladei_preload_blocks_take_all(int device);
/* Notes that a graph may use the block. */
void ladei_preload_blocks_note_graph(const void *pointer);

#endif /* LADE_PRELOAD_BLOCKS_H */
