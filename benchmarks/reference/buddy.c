/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The binary buddy allocator: see buddy.h.
 *
 * Addresses are made up: segment i of 2^k bytes begins at a multiple of 2^k, so the buddy of a block is found by
 * flipping one bit of its address.
 *
 * I1  `blocks` holds every block, free or in use, by address; together they cover the segments.
 * I2  free_heads[k] lists the free blocks of 2^k bytes. No two buddies inside a segment are both free.
 * Locks: none.
 */
#include "benchmarks/reference/buddy.h"

#include <stdlib.h>

#define HASH_FUNCTION(key, length, hash) (hash) = address_hash(key, length)
static unsigned address_hash(const void *key, size_t length);
#include <uthash.h>
#include <utlist.h>

enum { MIN_ORDER = 9, MAX_ORDER = 48 };

typedef struct buddy_block {
  uint64_t address;
  unsigned order;         /* it has 2^order bytes */
  unsigned segment_order; /* of the segment that it lies in */
  bool free;
  struct buddy_block *next, *prev; /* in a free list */
  UT_hash_handle hh;
} buddy_block;

struct buddy {
  unsigned segment_order;
  uint64_t next_address;
  uint64_t reserved_bytes;
  buddy_block *blocks;
  buddy_block *free_heads[MAX_ORDER + 1];
};

static unsigned address_hash(const void *key, size_t length) {
  (void)length;
  uint64_t address = *(const uint64_t *)key;
  return (unsigned)((address * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

static unsigned order_of(size_t bytes) {
  unsigned order = MIN_ORDER;
  while (((uint64_t)1 << order) < bytes) order++;
  return order;
}

static void block_list(buddy *b, buddy_block *block) {
  block->free = true;
  DL_APPEND(b->free_heads[block->order], block);
}

static void block_unlist(buddy *b, buddy_block *block) {
  block->free = false;
  DL_DELETE(b->free_heads[block->order], block);
}

static buddy_block *block_add(buddy *b, uint64_t address, unsigned order, unsigned segment_order) {
  buddy_block *block = calloc(1, sizeof *block);
  if (block != NULL) {
    block->address = address;
    block->order = order;
    block->segment_order = segment_order;
    HASH_ADD(hh, b->blocks, address, sizeof block->address, block);
  }
  return block;
}

static void block_remove(buddy *b, buddy_block *block) {
  HASH_DEL(b->blocks, block);
  free(block);
}

/* A segment as one block in use. */
static buddy_block *segment_add(buddy *b, unsigned order) {
  uint64_t bytes = (uint64_t)1 << order;
  uint64_t address = (b->next_address + bytes - 1) / bytes * bytes;
  buddy_block *block = block_add(b, address, order, order);
  if (block != NULL) {
    b->next_address = address + bytes;
    b->reserved_bytes += bytes;
  }
  return block;
}

/* The smallest free block of at least 2^order bytes, or a new segment; out of its list. */
static buddy_block *block_take(buddy *b, unsigned order) {
  unsigned largest = order > b->segment_order ? order : b->segment_order;
  for (unsigned from = order; from <= largest; from++) {
    buddy_block *block = b->free_heads[from];
    if (block != NULL) {
      block_unlist(b, block);
      return block;
    }
  }
  return segment_add(b, largest);
}

uint64_t buddy_alloc(buddy *b, size_t bytes) {
  unsigned order = order_of(bytes);
  buddy_block *block = order > MAX_ORDER ? NULL : block_take(b, order);
  while (block != NULL && block->order > order) {
    unsigned half = block->order - 1;
    buddy_block *upper = block_add(b, block->address + ((uint64_t)1 << half), half, block->segment_order);
    if (upper == NULL) {
      block_list(b, block);
      return 0;
    }
    block->order = half;
    block_list(b, upper);
  }
  return block == NULL ? 0 : block->address;
}

void buddy_free(buddy *b, uint64_t address) {
  buddy_block *block;
  HASH_FIND(hh, b->blocks, &address, sizeof address, block);
  while (block->order < block->segment_order) {
    uint64_t other = block->address ^ ((uint64_t)1 << block->order);
    buddy_block *partner;
    HASH_FIND(hh, b->blocks, &other, sizeof other, partner);
    if (partner == NULL || !partner->free || partner->order != block->order) break;
    block_unlist(b, partner);
    buddy_block *lower = block->address < partner->address ? block : partner;
    block_remove(b, lower == block ? partner : block);
    block = lower;
    block->order++;
  }
  block_list(b, block);
}

void buddy_trim(buddy *b) {
  buddy_block *block, *next;
  HASH_ITER (hh, b->blocks, block, next) {
    if (block->free && block->order == block->segment_order) {
      block_unlist(b, block);
      b->reserved_bytes -= (uint64_t)1 << block->order;
      block_remove(b, block);
    }
  }
}

uint64_t buddy_reserved_bytes(const buddy *b) { return b->reserved_bytes; }

buddy *buddy_create(size_t segment_bytes) {
  buddy *b = calloc(1, sizeof *b);
  if (b != NULL) {
    b->segment_order = order_of(segment_bytes);
    b->next_address = (uint64_t)1 << MAX_ORDER;
  }
  return b;
}

void buddy_destroy(buddy *b) {
  if (b == NULL) return;
  buddy_block *block, *next;
  HASH_ITER (hh, b->blocks, block, next) block_remove(b, block);
  free(b);
}
