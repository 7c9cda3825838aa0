/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table of blocks, in shards.
 *
 * Locks: as blocks.h says.
 */
/* For the header, which includes uthash.h. */
#define HASH_NONFATAL_OOM          1
#define uthash_nonfatal_oom(block) added = false
#include "preload/blocks.h"

#include <assert.h>
#include <pthread.h>

enum { SHARDS = 64 };

typedef struct shard {
  pthread_mutex_t lock;
  preload_block *blocks;
} shard;

struct preload_blocks {
  shard shards[SHARDS];
};

preload_blocks ladei_preload_pinned_blocks = {{[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}}};
preload_blocks ladei_preload_device_blocks = {{[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}}};

/* Blocks begin at multiples of 512; Fibonacci hashing spreads what is left of the address over the upper bits. */
static shard *shard_of(preload_blocks *all, const void *pointer) {
  return &all->shards[((uint64_t)(uintptr_t)pointer >> 9) * UINT64_C(0x9e3779b97f4a7c15) >> 58];
}

/* Under the shard's lock. */
static preload_block *shard_find(shard *of, const void *pointer) {
  preload_block *found;
  HASH_FIND_PTR(of->blocks, &pointer, found);
  return found;
}

bool ladei_preload_blocks_add(preload_blocks *all, preload_block *block) {
  bool added = true;
  shard *of = shard_of(all, block->pointer);
  block->next = NULL;
  pthread_mutex_lock(&of->lock);
  assert(shard_find(of, block->pointer) == NULL); /* an address is handed out once: B1 */
  HASH_ADD_PTR(of->blocks, pointer, block);
  pthread_mutex_unlock(&of->lock);
  return added;
}

bool ladei_preload_blocks_find(preload_blocks *all, const void *pointer, preload_block *out) {
  shard *of = shard_of(all, pointer);
  pthread_mutex_lock(&of->lock);
  const preload_block *found = shard_find(of, pointer);
  if (found != NULL) *out = *found;
  pthread_mutex_unlock(&of->lock);
  return found != NULL;
}

static bool shard_overlaps(const shard *of, uintptr_t begin, uintptr_t end) {
  const preload_block *block = of->blocks;
  while (block != NULL && ((uintptr_t)block->pointer >= end || (uintptr_t)block->pointer + block->bytes <= begin))
    block = block->hh.next;
  return block != NULL;
}

bool ladei_preload_blocks_overlap(preload_blocks *all, uintptr_t begin, uintptr_t end) {
  bool found = false;
  for (int i = 0; i < SHARDS && !found; i++) {
    pthread_mutex_lock(&all->shards[i].lock);
    found = shard_overlaps(&all->shards[i], begin, end);
    pthread_mutex_unlock(&all->shards[i].lock);
  }
  return found;
}

preload_block *ladei_preload_blocks_take(preload_blocks *all, const void *pointer) {
  shard *of = shard_of(all, pointer);
  pthread_mutex_lock(&of->lock);
  preload_block *block = shard_find(of, pointer);
  if (block != NULL) HASH_DEL(of->blocks, block);
  pthread_mutex_unlock(&of->lock);
  return block;
}

preload_block *ladei_preload_blocks_take_all(preload_blocks *all, int device) {
  preload_block *taken = NULL, *block, *next;
  for (shard *of = all->shards; of < all->shards + SHARDS; of++) {
    pthread_mutex_lock(&of->lock);
    HASH_ITER (hh, of->blocks, block, next) {
      if (block->device != device) continue;
      HASH_DEL(of->blocks, block);
      block->next = taken;
      taken = block;
    }
    pthread_mutex_unlock(&of->lock);
  }
  return taken;
}

void ladei_preload_blocks_wait_for_all(preload_blocks *all, const void *pointer) {
  shard *of = shard_of(all, pointer);
  pthread_mutex_lock(&of->lock);
  preload_block *block = shard_find(of, pointer);
  if (block != NULL) block->waits_for_all = true;
  pthread_mutex_unlock(&of->lock);
}

/* B1: each block is where a search finds it. */
static const char *shard_check(preload_blocks *all, shard *of) {
  const char *wrong = NULL;
  for (const preload_block *block = of->blocks; block != NULL; block = block->hh.next)
    if (shard_of(all, block->pointer) != of || shard_find(of, block->pointer) != block)
      wrong = "blocks: no search finds one of them";
  return wrong;
}

const char *ladei_preload_blocks_check(preload_blocks *all) {
  const char *wrong = NULL;
  for (int i = 0; i < SHARDS && wrong == NULL; i++) {
    pthread_mutex_lock(&all->shards[i].lock);
    wrong = shard_check(all, &all->shards[i]);
    pthread_mutex_unlock(&all->shards[i].lock);
  }
  return wrong;
}
