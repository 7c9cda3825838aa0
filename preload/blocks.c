/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table of blocks, in shards; each shard doubles its buckets when it has more blocks than buckets.
 *
 * Locks: as blocks.h says.
 */
#include "preload/blocks.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

enum { SHARDS = 64, FIRST_BUCKETS = 64 };

typedef struct shard {
  pthread_mutex_t lock;
  preload_block **buckets;
  size_t bucket_count; /* a power of two, or 0 */
  size_t count;
} shard;

struct preload_blocks {
  shard shards[SHARDS];
};

preload_blocks ladei_preload_pinned_blocks = {{[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}}};
preload_blocks ladei_preload_device_blocks = {{[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}}};

/* Blocks begin at multiples of 512; Fibonacci hashing spreads what is left of the address over the upper bits. */
static uint64_t hash_of(const void *pointer) {
  return ((uint64_t)(uintptr_t)pointer >> 9) * UINT64_C(0x9e3779b97f4a7c15);
}

static shard *shard_of(preload_blocks *all, const void *pointer) { return &all->shards[hash_of(pointer) >> 58]; }

static preload_block **bucket_of(preload_block **buckets, size_t count, const void *pointer) {
  assert(count > 0 && (count & (count - 1)) == 0);
  return &buckets[(hash_of(pointer) >> 16) & (count - 1)];
}

static bool shard_grow(shard *of) {
  size_t count = of->bucket_count == 0 ? FIRST_BUCKETS : 2 * of->bucket_count;
  preload_block **buckets = calloc(count, sizeof *buckets);
  if (buckets == NULL) return of->bucket_count != 0;
  for (size_t i = 0; i < of->bucket_count; i++) {
    preload_block *next;
    for (preload_block *block = of->buckets[i]; block != NULL; block = next) {
      preload_block **bucket = bucket_of(buckets, count, block->pointer);
      next = block->next;
      block->next = *bucket;
      *bucket = block;
    }
  }
  free(of->buckets);
  of->buckets = buckets;
  of->bucket_count = count;
  return true;
}

/* Under the shard's lock: the link to the block, or to the end of its bucket; NULL without buckets. */
static preload_block **link_find(shard *of, const void *pointer) {
  if (of->bucket_count == 0) return NULL;
  preload_block **link = bucket_of(of->buckets, of->bucket_count, pointer);
  while (*link != NULL && (*link)->pointer != pointer) link = &(*link)->next;
  return link;
}

bool ladei_preload_blocks_add(preload_blocks *all, preload_block *block) {
  shard *of = shard_of(all, block->pointer);
  pthread_mutex_lock(&of->lock);
  bool room = of->count < of->bucket_count || shard_grow(of);
  if (room) {
    assert(*link_find(of, block->pointer) == NULL); /* an address is handed out once: B1 */
    preload_block **bucket = bucket_of(of->buckets, of->bucket_count, block->pointer);
    block->next = *bucket;
    *bucket = block;
    of->count++;
  }
  pthread_mutex_unlock(&of->lock);
  return room;
}

bool ladei_preload_blocks_find(preload_blocks *all, const void *pointer, preload_block *out) {
  shard *of = shard_of(all, pointer);
  pthread_mutex_lock(&of->lock);
  preload_block **link = link_find(of, pointer);
  bool found = link != NULL && *link != NULL;
  if (found) *out = **link;
  pthread_mutex_unlock(&of->lock);
  return found;
}

static bool bucket_overlaps(const preload_block *block, uintptr_t begin, uintptr_t end) {
  while (block != NULL && ((uintptr_t)block->pointer >= end || (uintptr_t)block->pointer + block->bytes <= begin))
    block = block->next;
  return block != NULL;
}

bool ladei_preload_blocks_overlap(preload_blocks *all, uintptr_t begin, uintptr_t end) {
  bool found = false;
  for (int i = 0; i < SHARDS && !found; i++) {
    pthread_mutex_lock(&all->shards[i].lock);
    for (size_t j = 0; j < all->shards[i].bucket_count && !found; j++)
      found = bucket_overlaps(all->shards[i].buckets[j], begin, end);
    pthread_mutex_unlock(&all->shards[i].lock);
  }
  return found;
}

preload_block *ladei_preload_blocks_take(preload_blocks *all, const void *pointer) {
  shard *of = shard_of(all, pointer);
  pthread_mutex_lock(&of->lock);
  preload_block **link = link_find(of, pointer);
  preload_block *block = link == NULL ? NULL : *link;
  if (block != NULL) {
    assert(of->count > 0);
    *link = block->next;
    block->next = NULL;
    of->count--;
  }
  pthread_mutex_unlock(&of->lock);
  return block;
}

static preload_block *bucket_take_all(preload_block **link, int device, preload_block *taken, size_t *count) {
  while (*link != NULL) {
    preload_block *block = *link;
    if (block->device != device) {
      link = &block->next;
      continue;
    }
    *link = block->next;
    block->next = taken;
    taken = block;
    assert(*count > 0);
    --*count;
  }
  return taken;
}

preload_block *ladei_preload_blocks_take_all(preload_blocks *all, int device) {
  preload_block *taken = NULL;
  for (int i = 0; i < SHARDS; i++) {
    pthread_mutex_lock(&all->shards[i].lock);
    for (size_t j = 0; j < all->shards[i].bucket_count; j++)
      taken = bucket_take_all(&all->shards[i].buckets[j], device, taken, &all->shards[i].count);
    pthread_mutex_unlock(&all->shards[i].lock);
  }
  return taken;
}

void ladei_preload_blocks_wait_for_all(preload_blocks *all, const void *pointer) {
  shard *of = shard_of(all, pointer);
  pthread_mutex_lock(&of->lock);
  preload_block **link = link_find(of, pointer);
  if (link != NULL && *link != NULL) (*link)->waits_for_all = true;
  pthread_mutex_unlock(&of->lock);
}

/* B1: each block is where a search finds it. */
static const char *shard_check(preload_blocks *all, shard *of) {
  size_t count = 0;
  const char *wrong = NULL;
  for (size_t i = 0; i < of->bucket_count; i++) {
    for (const preload_block *block = of->buckets[i]; block != NULL; block = block->next, count++)
      if (shard_of(all, block->pointer) != of || *link_find(of, block->pointer) != block)
        wrong = "blocks: no search finds one of them";
  }
  return wrong == NULL && count != of->count ? "blocks: a shard counts others than it has" : wrong;
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
