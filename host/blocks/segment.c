/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments and their block records.
 *
 *   pages     0    1    2    3    4    5    6    7
 *   blocks    |-- A: 3 pages --|B:1 |--- C: 4 pages ---|      records 0, 3, 4 are live; the others say NONE
 *   starts    1    0    0    1    1    0    0    0
 *
 * I1  The blocks of a segment cover it without gap or overlap; each knows its own pages and those of the one before it.
 * I2  The bit of a page in `starts` is set if and only if a block starts there; a bit of `starts_summary` if and only
 *     if the word is not 0. Under a running change the summary may say yes for an empty word, never the reverse.
 * I3  No two neighbours are both FREE.
 * I4  A page at which no block starts has state NONE, or RUN inside a run.
 * I5  Generations of a record never fall: within a life of the segment the record keeps them, and those of the next
 *     life begin above the highest that came back in this one. So an earlier read of a record never becomes true again,
 *     once the block was handed out since or the segment given back.
 * Locks: the node's guards splitting and coalescing. Lookups take none: a block in use has its bit set before it is
 * handed out and no other bit up to its end until it is taken back, so a search downwards from any of its pages ends at
 * it.
 */
#include "host/blocks/segment.h"

#include <sys/mman.h>

#include "base/error.h"
#include "base/populate.h"

enum { WORD_BITS = 64 };

static size_t words_for(size_t bits) { return (bits + WORD_BITS - 1) / WORD_BITS; }

static size_t round_to_page(size_t bytes) {
  return (bytes + LADEI_PINNED_PAGE_BYTES - 1) & ~((size_t)LADEI_PINNED_PAGE_BYTES - 1);
}

/* ---- Metadata ---------------------------------------------------------------------------------------------------- */

/* Where the parts of the mapping begin. */
typedef struct segment_layout {
  size_t summary, starts, blocks, bytes;
} segment_layout;

static segment_layout layout_of(size_t capacity_pages) {
  segment_layout at;
  size_t words = words_for(capacity_pages);
  at.summary = (sizeof(ladei_pinned_segment) + 63) & ~(size_t)63;
  at.starts = at.summary + words_for(words) * sizeof(uint64_t);
  at.blocks = round_to_page(at.starts + words * sizeof(uint64_t));
  at.bytes = round_to_page(at.blocks + capacity_pages * sizeof(ladei_pinned_block));
  return at;
}

size_t ladei_pinned_segment_capacity(size_t pages) { return (size_t)1 << ladei_log2_ceil(pages); }

ladei_pinned_segment *ladei_pinned_segment_create(size_t pages) {
  size_t capacity = ladei_pinned_segment_capacity(pages);
  segment_layout at = layout_of(capacity);
  char *memory = mmap(NULL, at.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return NULL;
  ladei_pinned_segment *segment = (ladei_pinned_segment *)(void *)memory;
  segment->starts_summary = (_Atomic(uint64_t) *)(void *)(memory + at.summary);
  segment->starts = (_Atomic(uint64_t) *)(void *)(memory + at.starts);
  segment->blocks = (ladei_pinned_block *)(void *)(memory + at.blocks);
  segment->capacity_pages = capacity;
  segment->metadata_bytes = at.bytes;
  return segment;
}

void ladei_pinned_segment_destroy(ladei_pinned_segment *segment) { munmap(segment, segment->metadata_bytes); }

void ladei_pinned_segment_populate(const ladei_pinned_segment *segment) {
  size_t pages = atomic_load_explicit(&segment->page_count, memory_order_relaxed);
  (void)madvise(segment->blocks, pages * sizeof(ladei_pinned_block), MADV_POPULATE_WRITE); /* old kernels refuse */
}

/* Clears the fields that readers of stale pointers and later users of the record look at. Its ticket is idle. */
static void record_clear(ladei_pinned_block *block) {
  if (ladei_pinned_block_word(block) == 0 && ladei_pinned_block_next(block) == NULL &&
      ladei_pinned_block_prev(block) == NULL)
    return; /* never used: its memory is still to be made */
  ladei_pinned_block_word_set(block, 0);
  ladei_pinned_block_next_set(block, NULL);
  ladei_pinned_block_prev_set(block, NULL);
  block->ticket.spare = 0;
}

/* Records read as zero from now on, that is NONE. The kernel keeps memory that the program has locked (mlockall). */
static void records_clear(ladei_pinned_segment *segment) {
  if (madvise(segment->blocks, segment->capacity_pages * sizeof(ladei_pinned_block), MADV_DONTNEED) == 0) return;
  for (size_t page = 0; page < segment->capacity_pages; page++) record_clear(&segment->blocks[page]);
}

void ladei_pinned_segment_reset(ladei_pinned_segment *segment) {
  size_t words = words_for(segment->capacity_pages);
  for (size_t i = 0; i < words_for(words); i++) {
    uint64_t summary = atomic_exchange_explicit(&segment->starts_summary[i], 0, memory_order_relaxed);
    for (; summary != 0; summary &= summary - 1) {
      size_t word = i * WORD_BITS + (size_t)__builtin_ctzl(summary);
      atomic_store_explicit(&segment->starts[word], 0, memory_order_relaxed);
    }
  }
  atomic_store_explicit(&segment->base, 0, memory_order_relaxed);
  atomic_store_explicit(&segment->page_count, 0, memory_order_relaxed);
  atomic_store_explicit(&segment->bytes, 0, memory_order_relaxed);
  segment->generation_least = segment->generation_most = segment->generation_most + 1; /* I5 */
  records_clear(segment);
}

/* ---- Starts of blocks -------------------------------------------------------------------------------------------- */

/* Writers hold the arena's lock, so plain read-modify-write of the words is enough; readers need whole words. */
static void start_set(ladei_pinned_segment *segment, size_t page) {
  _Atomic(uint64_t) *word = &segment->starts[page / WORD_BITS];
  _Atomic(uint64_t) *summary = &segment->starts_summary[page / WORD_BITS / WORD_BITS];
  uint64_t bits = atomic_load_explicit(word, memory_order_relaxed);
  uint64_t words = atomic_load_explicit(summary, memory_order_relaxed);
  atomic_store_explicit(word, bits | (uint64_t)1 << (page % WORD_BITS), memory_order_relaxed);
  atomic_store_explicit(summary, words | (uint64_t)1 << (page / WORD_BITS % WORD_BITS), memory_order_relaxed);
}

static void start_clear(ladei_pinned_segment *segment, size_t page) {
  _Atomic(uint64_t) *word = &segment->starts[page / WORD_BITS];
  _Atomic(uint64_t) *summary = &segment->starts_summary[page / WORD_BITS / WORD_BITS];
  uint64_t bits = atomic_load_explicit(word, memory_order_relaxed) & ~((uint64_t)1 << (page % WORD_BITS));
  atomic_store_explicit(word, bits, memory_order_relaxed);
  if (bits == 0) {
    uint64_t words = atomic_load_explicit(summary, memory_order_relaxed);
    atomic_store_explicit(summary, words & ~((uint64_t)1 << (page / WORD_BITS % WORD_BITS)), memory_order_relaxed);
  }
}

/* The last set bit of `bits` at or below `position`; -1: none. */
static int bit_at_or_below(uint64_t bits, unsigned position) {
  bits &= ~(uint64_t)0 >> (WORD_BITS - 1 - position);
  return bits == 0 ? -1 : (int)(WORD_BITS - 1) - __builtin_clzl(bits);
}

/* Index of the last word of `starts` below `word` that the summary says is not empty; -1: none. */
static ptrdiff_t word_below(const ladei_pinned_segment *segment, size_t word) {
  if (word == 0) return -1;
  word--;
  unsigned position = (unsigned)(word % WORD_BITS);
  for (ptrdiff_t i = (ptrdiff_t)(word / WORD_BITS); i >= 0; i--) {
    int bit = bit_at_or_below(atomic_load_explicit(&segment->starts_summary[i], memory_order_relaxed), position);
    if (bit >= 0) return i * WORD_BITS + bit;
    position = WORD_BITS - 1;
  }
  return -1;
}

/* The page of the last block start at or before `page`; -1: none. */
static ptrdiff_t start_at_or_below(const ladei_pinned_segment *segment, size_t page) {
  ptrdiff_t word = (ptrdiff_t)(page / WORD_BITS);
  unsigned position = (unsigned)(page % WORD_BITS);
  while (word >= 0) {
    int bit = bit_at_or_below(atomic_load_explicit(&segment->starts[word], memory_order_relaxed), position);
    if (bit >= 0) return word * WORD_BITS + bit;
    word = word_below(segment, (size_t)word);
    position = WORD_BITS - 1;
  }
  return -1;
}

ladei_pinned_block *ladei_pinned_segment_find(const ladei_pinned_segment *segment, uintptr_t address) {
  uintptr_t base = ladei_pinned_segment_base(segment);
  size_t page = (address - base) >> LADEI_PINNED_PAGE_SHIFT; /* huge where the segment is another one by now */
  if (page >= segment->capacity_pages) return NULL;
  if (ladei_pinned_word_state(ladei_pinned_block_word(&segment->blocks[page])) != LADEI_PINNED_BLOCK_NONE)
    return &segment->blocks[page];
  ptrdiff_t start = start_at_or_below(segment, page);
  return start < 0 ? NULL : &segment->blocks[start];
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* I5 */
static uint64_t generation_from(const ladei_pinned_segment *segment, const ladei_pinned_block *block) {
  uint64_t generation = ladei_pinned_block_word(block) >> LADEI_PINNED_BLOCK_GENERATION_SHIFT;
  return generation < segment->generation_least ? segment->generation_least : generation;
}

static void block_start(ladei_pinned_segment *segment, size_t page, size_t pages, size_t prev_pages) {
  ladei_pinned_block *block = &segment->blocks[page];
  uint64_t word = generation_from(segment, block) << LADEI_PINNED_BLOCK_GENERATION_SHIFT;
  word |= (uint64_t)ladei_pinned_segment_node(segment) << LADEI_PINNED_BLOCK_NODE_SHIFT;
  word |= (uint64_t)ladei_pinned_class_of_pages(pages) << LADEI_PINNED_BLOCK_CLASS_SHIFT;
  uintptr_t address = ladei_pinned_segment_base(segment) + (page << LADEI_PINNED_PAGE_SHIFT);
  atomic_store_explicit(&block->address, address, memory_order_relaxed);
  block->prev_pages = (uint32_t)prev_pages;
  atomic_store_explicit(&block->pages, (uint32_t)pages, memory_order_relaxed);
  start_set(segment, page);
  ladei_pinned_block_word_set(block, word | LADEI_PINNED_BLOCK_FREE);
}

/* A FREE block's size, and with it its class, changes. */
static void block_resize(ladei_pinned_block *block, size_t pages) {
  uint64_t word = atomic_load_explicit(&block->word, memory_order_relaxed);
  word &= ~((uint64_t)0xff << LADEI_PINNED_BLOCK_CLASS_SHIFT);
  atomic_store_explicit(&block->pages, (uint32_t)pages, memory_order_relaxed);
  ladei_pinned_block_word_set(block, word | (uint64_t)ladei_pinned_class_of_pages(pages)
                                                << LADEI_PINNED_BLOCK_CLASS_SHIFT);
}

/* The block after this one, whatever its state; NULL at the end. */
static ladei_pinned_block *block_after(const ladei_pinned_segment *segment, const ladei_pinned_block *block) {
  size_t page = ladei_pinned_segment_page_of(segment, block) + ladei_pinned_block_pages(block);
  return page < ladei_pinned_segment_page_count(segment) ? &segment->blocks[page] : NULL;
}

static void prev_pages_set(ladei_pinned_segment *segment, const ladei_pinned_block *block) {
  ladei_pinned_block *after = block_after(segment, block);
  if (after != NULL) after->prev_pages = (uint32_t)ladei_pinned_block_pages(block);
}

ladei_pinned_block *ladei_pinned_segment_open(ladei_pinned_segment *segment, unsigned node) {
  atomic_store_explicit(&segment->node, node, memory_order_relaxed);
  segment->arena = 0; /* in use in every node, and not so that of an earlier life in another one */
  block_start(segment, 0, ladei_pinned_segment_page_count(segment), 0);
  return &segment->blocks[0];
}

void ladei_pinned_segment_take_back(ladei_pinned_segment *segment, ladei_pinned_block *block) {
  uint32_t generation = (uint32_t)(ladei_pinned_block_word(block) >> LADEI_PINNED_BLOCK_GENERATION_SHIFT);
  if (generation > segment->generation_most) segment->generation_most = generation;
  ladei_pinned_block_state_set(block, LADEI_PINNED_BLOCK_FREE);
}

ladei_pinned_block *ladei_pinned_segment_split(ladei_pinned_segment *segment, ladei_pinned_block *block, size_t pages) {
  size_t rest = ladei_pinned_block_pages(block) - pages;
  if (rest == 0) return NULL;
  size_t page = ladei_pinned_segment_page_of(segment, block) + pages;
  block_resize(block, pages);
  block_start(segment, page, rest, pages);
  prev_pages_set(segment, &segment->blocks[page]);
  return &segment->blocks[page];
}

static ladei_pinned_block *free_or_null(ladei_pinned_block *block) {
  return block != NULL && ladei_pinned_word_state(ladei_pinned_block_word(block)) == LADEI_PINNED_BLOCK_FREE ? block
                                                                                                             : NULL;
}

ladei_pinned_block *ladei_pinned_segment_before(ladei_pinned_segment *segment, ladei_pinned_block *block) {
  (void)segment;
  return block->prev_pages == 0 ? NULL : free_or_null(block - block->prev_pages);
}

ladei_pinned_block *ladei_pinned_segment_after(ladei_pinned_segment *segment, ladei_pinned_block *block) {
  return free_or_null(block_after(segment, block));
}

void ladei_pinned_segment_coalesce(ladei_pinned_segment *segment, ladei_pinned_block *first,
                                   ladei_pinned_block *second) {
  start_clear(segment, ladei_pinned_segment_page_of(segment, second));
  ladei_pinned_block_state_set(second, LADEI_PINNED_BLOCK_NONE);
  block_resize(first, ladei_pinned_block_pages(first) + ladei_pinned_block_pages(second));
  prev_pages_set(segment, first);
}

/* ---- Check ------------------------------------------------------------------------------------------------------- */

static lade_status broken(const ladei_pinned_segment *segment, const char *invariant, size_t page) {
  return ladei_error(LADE_ERR_INTERNAL, 0, "segment %p: %s is broken at page %zu of %zu",
                     (void *)ladei_pinned_segment_base(segment), invariant, page,
                     ladei_pinned_segment_page_count(segment));
}

static bool start_is_set(const ladei_pinned_segment *segment, size_t page) {
  return atomic_load_explicit(&segment->starts[page / WORD_BITS], memory_order_relaxed) >> (page % WORD_BITS) & 1;
}

/* I4, and the clear bits of I2, between two starts. */
static lade_status check_inside(const ladei_pinned_segment *segment, size_t first, size_t pages) {
  ladei_pinned_block_state outer = ladei_pinned_word_state(ladei_pinned_block_word(&segment->blocks[first]));
  ladei_pinned_block_state inner = outer == LADEI_PINNED_BLOCK_RUN ? LADEI_PINNED_BLOCK_RUN : LADEI_PINNED_BLOCK_NONE;
  for (size_t page = first + 1; page < first + pages; page++) {
    if (start_is_set(segment, page)) return broken(segment, "I2 (no start inside a block)", page);
    if (pages < 4096 && ladei_pinned_word_state(ladei_pinned_block_word(&segment->blocks[page])) != inner)
      return broken(segment, "I4 (pages inside a block say NONE)", page);
  }
  return LADE_OK;
}

lade_status ladei_pinned_segment_check(const ladei_pinned_segment *segment) {
  size_t page = 0, prev_pages = 0, page_count = ladei_pinned_segment_page_count(segment);
  bool prev_free = false;
  while (page < page_count) {
    const ladei_pinned_block *block = &segment->blocks[page];
    size_t pages = ladei_pinned_block_pages(block);
    bool is_free = ladei_pinned_word_state(ladei_pinned_block_word(block)) == LADEI_PINNED_BLOCK_FREE;
    if (pages == 0 || pages > page_count - page || block->prev_pages != prev_pages)
      return broken(segment, "I1 (blocks cover the segment)", page);
    if (!start_is_set(segment, page) || start_at_or_below(segment, page + pages - 1) != (ptrdiff_t)page)
      return broken(segment, "I2 (starts are marked)", page);
    if (is_free && prev_free) return broken(segment, "I3 (free neighbours are coalesced)", page);
    LADEI_TRY(check_inside(segment, page, pages));
    prev_free = is_free;
    prev_pages = pages;
    page += pages;
  }
  return LADE_OK;
}
