/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of small blocks.
 *
 * I1  Every page of a run says RUN and leads to its run, from before the first small block is handed out until after
 *     the last one is back.
 * I2  Bit i of free_mask is set if and only if small block i is FREE.
 * Locks: the node's. Lookups take none; see Note [Stale lookups] in pointer_lookup.c.
 */
#include "host/blocks/run.h"

#include "base/error.h"

/* With k granules of 512 B per block, 8 / gcd(k, 8) blocks fill k / gcd(k, 8) pages exactly. */
static unsigned common_factor(unsigned class_index) {
  unsigned granules = class_index + 1;
  return granules & (0u - granules); /* the power of two in it: gcd(granules, 8) for granules below 8 */
}

size_t ladei_pinned_run_pages(unsigned class_index) { return (class_index + 1) / common_factor(class_index); }

unsigned ladei_pinned_run_blocks(unsigned class_index) {
  return LADEI_PINNED_RUN_MAX_BLOCKS / common_factor(class_index);
}

static unsigned run_class(const ladei_pinned_run *run) {
  return atomic_load_explicit(&run->class_index, memory_order_relaxed);
}

static void small_block_open(ladei_pinned_run *run, unsigned i, unsigned class_index, unsigned node) {
  ladei_pinned_block *block = &run->blocks[i];
  uint64_t word = atomic_load_explicit(&block->word, memory_order_relaxed);
  word = word >> LADEI_PINNED_BLOCK_GENERATION_SHIFT << LADEI_PINNED_BLOCK_GENERATION_SHIFT;
  word |= (uint64_t)node << LADEI_PINNED_BLOCK_NODE_SHIFT | (uint64_t)class_index << LADEI_PINNED_BLOCK_CLASS_SHIFT;
  uintptr_t address = ladei_pinned_block_address(run->pages) + i * ladei_pinned_class_bytes(class_index);
  atomic_store_explicit(&block->address, address, memory_order_relaxed);
  ladei_pinned_block_word_set(block, word | LADEI_PINNED_BLOCK_FREE);
}

void ladei_pinned_run_open(ladei_pinned_run *run, ladei_pinned_segment *segment, ladei_pinned_block *pages,
                           unsigned class_index) {
  unsigned count = ladei_pinned_run_blocks(class_index);
  run->pages = pages;
  run->next = run->prev = NULL;
  run->free_mask = (1u << count) - 1;
  atomic_store_explicit(&run->class_index, class_index, memory_order_relaxed);
  atomic_store_explicit(&run->base, ladei_pinned_block_address(pages), memory_order_relaxed);
  for (unsigned i = 0; i < count; i++) small_block_open(run, i, class_index, ladei_pinned_segment_node(segment));
  for (size_t i = 0; i < ladei_pinned_run_pages(class_index); i++) {
    ladei_pinned_block_run_set(&pages[i], run);
    ladei_pinned_block_state_set(&pages[i], LADEI_PINNED_BLOCK_RUN);
  }
}

void ladei_pinned_run_close(ladei_pinned_run *run) {
  for (unsigned i = 0; i < ladei_pinned_run_blocks(run_class(run)); i++)
    ladei_pinned_block_state_set(&run->blocks[i], LADEI_PINNED_BLOCK_NONE);
  for (size_t i = 0; i < ladei_pinned_run_pages(run_class(run)); i++) {
    ladei_pinned_block_run_set(&run->pages[i], NULL);
    ladei_pinned_block_state_set(&run->pages[i], i == 0 ? LADEI_PINNED_BLOCK_FREE : LADEI_PINNED_BLOCK_NONE);
  }
  atomic_store_explicit(&run->base, 0, memory_order_relaxed);
  run->pages = NULL;
}

ladei_pinned_block *ladei_pinned_run_take(ladei_pinned_run *run) {
  unsigned i = (unsigned)__builtin_ctz(run->free_mask);
  run->free_mask &= run->free_mask - 1;
  ladei_pinned_block_state_set(&run->blocks[i], LADEI_PINNED_BLOCK_CACHED);
  return &run->blocks[i];
}

void ladei_pinned_run_put(ladei_pinned_run *run, ladei_pinned_block *block) {
  ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_FREE);
  run->free_mask |= 1u << (unsigned)(block - run->blocks);
}

lade_status ladei_pinned_run_check(const ladei_pinned_run *run) {
  unsigned class_index = run_class(run);
  for (unsigned i = 0; i < ladei_pinned_run_blocks(class_index); i++) {
    uint64_t word = ladei_pinned_block_word(&run->blocks[i]);
    bool is_free = ladei_pinned_word_state(word) == LADEI_PINNED_BLOCK_FREE;
    if (is_free != ((run->free_mask >> i & 1) != 0) || ladei_pinned_word_class(word) != class_index) {
      return ladei_error(LADE_ERR_INTERNAL, 0, "run %p of class %u: I2 is broken at block %u", (const void *)run,
                         class_index, i);
    }
  }
  for (size_t i = 0; i < ladei_pinned_run_pages(class_index); i++)
    if (ladei_pinned_word_state(ladei_pinned_block_word(&run->pages[i])) != LADEI_PINNED_BLOCK_RUN ||
        ladei_pinned_block_run(&run->pages[i]) != run)
      return ladei_error(LADE_ERR_INTERNAL, 0, "run %p: I1 is broken at page %zu", (const void *)run, i);
  return LADE_OK;
}
