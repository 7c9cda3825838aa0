/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page map: a radix tree over 48-bit addresses.
 *
 *   address   47........36 | 35...............21 | 20......12 | 11..0
 *             root: 4096   | middle: 32768       | leaf: 512  | in the page
 *
 *   root --> middle (64 GiB) --> NULL | value of the whole 2 MiB | leaf + 1 --> value of one page | NULL
 *
 * A middle node is 256 KiB of addresses; the system backs only the pages that are written: 4 KiB per GiB of map. So 64
 * MiB segments cost 8 bytes per 2 MiB, single pages 8 bytes per 4 KiB (0.2 %) plus the rest of their leaf.
 *
 * I1  A node, once reachable, stays reachable at the same place until the map is destroyed. So readers need no lock,
 *     reference or generation: they read words that always exist.
 * I2  A middle entry is even (NULL or value: the range of that value covers all of the 2 MiB) or odd (leaf). It goes
 *     from even to odd at most once, while it is NULL, and never back. So clearing a range as it was set never needs a
 *     new node, and cannot fail.
 * I3  Each page has at most one value.
 * I4  Values are published by store-release and found by load-acquire.
 * Locks: map->lock serialises writers. Readers take none.
 */
#include "base/pagemap.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/size.h"

enum {
  PAGE_SHIFT = 12,
  CHUNK_SHIFT = 21, /* the range of one middle entry */
  MIDDLE_SHIFT = 36,
  ADDRESS_BITS = 48,
  LEAF_ENTRIES = 1 << (CHUNK_SHIFT - PAGE_SHIFT),
  MIDDLE_ENTRIES = 1 << (MIDDLE_SHIFT - CHUNK_SHIFT),
  ROOT_ENTRIES = 1 << (ADDRESS_BITS - MIDDLE_SHIFT),
  ENTRIES_PER_PAGE = LADEI_PAGEMAP_PAGE_BYTES / 8,
};

static const uint64_t CHUNK_BYTES = (uint64_t)1 << CHUNK_SHIFT;

typedef _Atomic(uintptr_t) entry;

typedef struct leaf_node {
  entry pages[LEAF_ENTRIES];
} leaf_node;

typedef struct middle_node {
  entry chunks[MIDDLE_ENTRIES];
} middle_node;

struct ladei_pagemap_root {
  _Atomic(middle_node *) middles[ROOT_ENTRIES];
  uint64_t touched[ROOT_ENTRIES]; /* per middle node, a bit for each page of it that was written; map->lock */
  size_t bytes;                   /* occupied; map->lock */
};

/* ---- Places in the tree ------------------------------------------------------------------------------------------ */

static uint64_t address_of(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

static bool entry_is_leaf(uintptr_t word) { return (word & 1) != 0; }

static leaf_node *entry_leaf(uintptr_t word) { return (leaf_node *)(word - 1); }

static entry *leaf_page(leaf_node *leaf, uint64_t address) {
  return &leaf->pages[(address >> PAGE_SHIFT) % LEAF_ENTRIES];
}

static middle_node *root_middle(const struct ladei_pagemap_root *root, uint64_t address) {
  return atomic_load_explicit(&root->middles[address >> MIDDLE_SHIFT], memory_order_acquire);
}

static entry *middle_chunk(middle_node *middle, uint64_t address) {
  return &middle->chunks[(address >> CHUNK_SHIFT) % MIDDLE_ENTRIES];
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

void *ladei_pagemap_get(const ladei_pagemap *map, const void *pointer) {
  uint64_t address = address_of(pointer);
  if (address >> ADDRESS_BITS != 0) return NULL;
  middle_node *middle = root_middle(map->root, address);
  if (middle == NULL) return NULL;
  uintptr_t word = atomic_load_explicit(middle_chunk(middle, address), memory_order_acquire);
  if (entry_is_leaf(word)) word = atomic_load_explicit(leaf_page(entry_leaf(word), address), memory_order_acquire);
  return (void *)word;
}

/* ---- Growing: under map->lock ------------------------------------------------------------------------------------ */

static void *zero_pages(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

/* The middle node of an address, made if needed; NULL when there is no memory. */
static middle_node *middle_need(struct ladei_pagemap_root *root, uint64_t address) {
  middle_node *middle = root_middle(root, address);
  if (middle == NULL) {
    middle = zero_pages(sizeof *middle);
    if (middle != NULL) atomic_store_explicit(&root->middles[address >> MIDDLE_SHIFT], middle, memory_order_release);
  }
  return middle;
}

/* Notes that the middle entry of an address is about to be written, which makes its page occupied. */
static void middle_touch(struct ladei_pagemap_root *root, uint64_t address) {
  uint64_t page = (address >> CHUNK_SHIFT) % MIDDLE_ENTRIES / ENTRIES_PER_PAGE;
  uint64_t bit = (uint64_t)1 << page;
  if ((root->touched[address >> MIDDLE_SHIFT] & bit) == 0) {
    root->touched[address >> MIDDLE_SHIFT] |= bit;
    root->bytes += LADEI_PAGEMAP_PAGE_BYTES;
  }
}

/* Puts a leaf under an entry that is NULL. */
static bool leaf_need(struct ladei_pagemap_root *root, entry *chunk, uint64_t address) {
  leaf_node *leaf = zero_pages(sizeof *leaf);
  if (leaf == NULL) return false;
  middle_touch(root, address);
  root->bytes += sizeof *leaf;
  atomic_store_explicit(chunk, (uintptr_t)leaf + 1, memory_order_release);
  return true;
}

/* ---- Ranges ------------------------------------------------------------------------------------------------------ */

/* A range in whole pages, walked chunk by chunk. */
typedef struct range {
  uint64_t begin, end;
} range;

static bool range_make(const void *pointer, size_t bytes, range *out) {
  uint64_t address = address_of(pointer);
  if (bytes == 0 || bytes >= LADEI_SIZE_LIMIT || address >> ADDRESS_BITS != 0) return false;
  out->begin = address & ~(uint64_t)(LADEI_PAGEMAP_PAGE_BYTES - 1);
  out->end = (address + bytes + LADEI_PAGEMAP_PAGE_BYTES - 1) & ~(uint64_t)(LADEI_PAGEMAP_PAGE_BYTES - 1);
  return out->end <= (uint64_t)1 << ADDRESS_BITS;
}

/* The part of the range that lies in the chunk where it begins. */
static range range_first_chunk(range whole) {
  uint64_t chunk_end = (whole.begin | (CHUNK_BYTES - 1)) + 1;
  return (range){whole.begin, whole.end < chunk_end ? whole.end : chunk_end};
}

static bool range_fills_chunk(range part) { return part.end - part.begin == CHUNK_BYTES; }

static bool leaf_part_free(leaf_node *leaf, range part) {
  for (uint64_t page = part.begin; page < part.end; page += LADEI_PAGEMAP_PAGE_BYTES)
    if (atomic_load_explicit(leaf_page(leaf, page), memory_order_relaxed) != 0) return false;
  return true;
}

/* Makes sure that the part of a chunk is free and that its entries exist. */
static lade_status part_prepare(struct ladei_pagemap_root *root, range part) {
  middle_node *middle = middle_need(root, part.begin);
  if (middle == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "page map: no memory for a node of %zu bytes", sizeof *middle);
  entry *chunk = middle_chunk(middle, part.begin);
  uintptr_t word = atomic_load_explicit(chunk, memory_order_relaxed);
  bool is_free = entry_is_leaf(word) ? leaf_part_free(entry_leaf(word), part) : word == 0;
  if (!is_free) {
    return ladei_error_argument("ladei_pagemap_set", "range", "addresses of which none is set", "0x%llx..0x%llx",
                                (unsigned long long)part.begin, (unsigned long long)part.end);
  }
  if (word == 0 && !range_fills_chunk(part) && !leaf_need(root, chunk, part.begin)) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "page map: no memory for a leaf of %zu bytes",
                       sizeof(leaf_node));
  }
  return LADE_OK;
}

/* Writes `word` to the entries of a part that was prepared. */
static void part_store(struct ladei_pagemap_root *root, range part, uintptr_t word) {
  entry *chunk = middle_chunk(root_middle(root, part.begin), part.begin);
  uintptr_t present = atomic_load_explicit(chunk, memory_order_relaxed);
  if (!entry_is_leaf(present)) {
    assert(range_fills_chunk(part)); /* I2: cleared as it was set */
    middle_touch(root, part.begin);
    atomic_store_explicit(chunk, word, memory_order_release);
    return;
  }
  for (uint64_t page = part.begin; page < part.end; page += LADEI_PAGEMAP_PAGE_BYTES)
    atomic_store_explicit(leaf_page(entry_leaf(present), page), word, memory_order_release);
}

static lade_status range_prepare(ladei_pagemap *map, range whole) {
  ladei_lock_assert_held(&map->lock);
  lade_status status = LADE_OK;
  while (status == LADE_OK && whole.begin < whole.end) {
    range part = range_first_chunk(whole);
    status = part_prepare(map->root, part);
    whole.begin = part.end;
  }
  return status;
}

static void range_store(ladei_pagemap *map, range whole, uintptr_t word) {
  ladei_lock_assert_held(&map->lock);
  while (whole.begin < whole.end) {
    range part = range_first_chunk(whole);
    part_store(map->root, part, word);
    whole.begin = part.end;
  }
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

lade_status ladei_pagemap_set(ladei_pagemap *map, const void *address, size_t bytes, void *value) {
  range whole;
  if (value == NULL || ((uintptr_t)value & 1) != 0 || bytes == 0)
    return ladei_error_argument("ladei_pagemap_set", "value", "an even pointer, for more than 0 bytes",
                                "%p for %zu bytes", value, bytes);
  if (!range_make(address, bytes, &whole)) {
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "page map: %zu bytes at %p reach beyond 48-bit addresses", bytes,
                       address);
  }
  ladei_lock_acquire(&map->lock);
  lade_status status = range_prepare(map, whole);
  if (status == LADE_OK) range_store(map, whole, (uintptr_t)value);
  ladei_lock_release(&map->lock);
  return status;
}

void ladei_pagemap_prepare(ladei_pagemap *map, const void *address, size_t bytes) {
  range whole;
  lade_error saved;
  if (!range_make(address, bytes, &whole)) return;
  ladei_error_save(&saved);
  ladei_lock_acquire(&map->lock);
  (void)range_prepare(map, whole);
  ladei_lock_release(&map->lock);
  ladei_error_restore(&saved);
}

void ladei_pagemap_clear(ladei_pagemap *map, const void *address, size_t bytes) {
  range whole;
  bool valid = range_make(address, bytes, &whole);
  assert(valid);
  if (!valid) return;
  ladei_lock_acquire(&map->lock);
  range_store(map, whole, 0);
  ladei_lock_release(&map->lock);
}

size_t ladei_pagemap_metadata_bytes(ladei_pagemap *map) {
  ladei_lock_acquire(&map->lock);
  size_t bytes = map->root->bytes;
  ladei_lock_release(&map->lock);
  return bytes;
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

lade_status ladei_pagemap_init(ladei_pagemap *map) {
  map->root = zero_pages(sizeof *map->root);
  if (map->root == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "page map: no memory for a root of %zu bytes",
                       sizeof *map->root);
  }
  map->root->bytes = sizeof *map->root;
  ladei_lock_init(&map->lock, LADEI_RANK_PAGEMAP);
  return LADE_OK;
}

static void middle_destroy(middle_node *middle, uint64_t touched) {
  for (unsigned i = 0; i < MIDDLE_ENTRIES; i++) {
    if ((touched >> (i / ENTRIES_PER_PAGE) & 1) == 0) continue;
    uintptr_t word = atomic_load_explicit(&middle->chunks[i], memory_order_relaxed);
    if (entry_is_leaf(word)) munmap(entry_leaf(word), sizeof(leaf_node));
  }
  munmap(middle, sizeof *middle);
}

void ladei_pagemap_destroy(ladei_pagemap *map) {
  if (map->root == NULL) return;
  for (unsigned i = 0; i < ROOT_ENTRIES; i++) {
    middle_node *middle = atomic_load_explicit(&map->root->middles[i], memory_order_relaxed);
    if (middle != NULL) middle_destroy(middle, map->root->touched[i]);
  }
  munmap(map->root, sizeof *map->root);
  map->root = NULL;
  ladei_lock_destroy(&map->lock);
}
