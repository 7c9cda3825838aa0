/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Size classes of pinned blocks.
 *
 *   class   0 ..   6   512 B steps to 3.5 KiB: small blocks, split from runs of pages (run.h)
 *   class   7 ..  14   4 KiB steps to 32 KiB
 *   class  15 ..       eight steps in each power of two above: 36, 40, ... 64, 72, 80, ... KiB
 *
 * A block is at most 1/8 larger than asked, or 4 KiB where that is more (512 B below 4 KiB). Above 1 MiB, where blocks
 * of a class need not be alike, it is divided in 64 steps of a power of two: at most 1/64 larger. Blocks of a page and
 * more consist of whole pages: 4 KiB is the unit of pinning, of direct file reads and of the block records.
 */
#ifndef LADE_HOST_BLOCKS_SIZE_CLASS_H
#define LADE_HOST_BLOCKS_SIZE_CLASS_H

#include "base/size.h"

enum {
  LADEI_PINNED_PAGE_SHIFT = 12,
  LADEI_PINNED_PAGE_BYTES = 1 << LADEI_PINNED_PAGE_SHIFT,
  LADEI_PINNED_GRANULE_SHIFT = 9,
  LADEI_PINNED_GRANULE_BYTES = 1 << LADEI_PINNED_GRANULE_SHIFT,
  LADEI_PINNED_SMALL_CLASSES = 7,
  LADEI_PINNED_LINEAR_CLASSES = LADEI_PINNED_SMALL_CLASSES + 8, /* those with a fixed step */
  LADEI_PINNED_EVEN_PAGES = 256,                                /* up to 1 MiB all blocks of a class are alike */
  LADEI_PINNED_MAX_PAGES_LOG2 = 28,                             /* 1 TiB, the largest block */
  LADEI_PINNED_CLASSES = LADEI_PINNED_LINEAR_CLASSES + 8 * (LADEI_PINNED_MAX_PAGES_LOG2 - 3),
};

#define LADEI_PINNED_MAX_BYTES ((size_t)1 << (LADEI_PINNED_MAX_PAGES_LOG2 + LADEI_PINNED_PAGE_SHIFT))

static inline size_t ladei_pinned_pages(size_t bytes) {
  return (bytes + LADEI_PINNED_PAGE_BYTES - 1) >> LADEI_PINNED_PAGE_SHIFT;
}

/* Smallest class whose blocks hold that many pages; 1 <= pages <= 2^28. */
static inline unsigned ladei_pinned_class_of_pages(size_t pages) {
  if (pages <= 8) return LADEI_PINNED_SMALL_CLASSES - 1 + (unsigned)pages;
  unsigned shift = ladei_log2_floor(pages - 1) - 3;
  return LADEI_PINNED_LINEAR_CLASSES + shift * 8 + (unsigned)((pages - 1) >> shift) - 8;
}

/* Smallest class for a request; 1 <= bytes <= LADEI_PINNED_MAX_BYTES. */
static inline unsigned ladei_pinned_class_of(size_t bytes) {
  if (bytes <= (size_t)LADEI_PINNED_SMALL_CLASSES * LADEI_PINNED_GRANULE_BYTES)
    return (unsigned)((bytes - 1) >> LADEI_PINNED_GRANULE_SHIFT);
  return ladei_pinned_class_of_pages(ladei_pinned_pages(bytes));
}

/* Size of the blocks of a class: the largest request that the class serves. */
static inline size_t ladei_pinned_class_bytes(unsigned class_index) {
  if (class_index < LADEI_PINNED_SMALL_CLASSES) return (size_t)(class_index + 1) << LADEI_PINNED_GRANULE_SHIFT;
  if (class_index < LADEI_PINNED_LINEAR_CLASSES)
    return (size_t)(class_index - LADEI_PINNED_SMALL_CLASSES + 1) << LADEI_PINNED_PAGE_SHIFT;
  unsigned step = class_index - LADEI_PINNED_LINEAR_CLASSES;
  return (size_t)((step & 7) + 9) << ((step >> 3) + LADEI_PINNED_PAGE_SHIFT);
}

/* Blocks up to 1 MiB that move at once between a thread's magazine and the places of all threads: few large ones. */
enum { LADEI_PINNED_BATCH_MOST = 16 };
static inline unsigned ladei_pinned_batch(size_t bytes) {
  return bytes <= 4 * LADEI_KIB     ? LADEI_PINNED_BATCH_MOST
         : bytes <= 32 * LADEI_KIB  ? 8
         : bytes <= 128 * LADEI_KIB ? 2
                                    : 1;
}

/* Pages of a block for a request of at least a page. Never more than those of its class. */
static inline size_t ladei_pinned_pages_per_block(size_t bytes) {
  size_t pages = ladei_pinned_pages(bytes);
  if (pages <= LADEI_PINNED_EVEN_PAGES)
    return ladei_pinned_class_bytes(ladei_pinned_class_of_pages(pages)) >> LADEI_PINNED_PAGE_SHIFT;
  size_t step = (size_t)1 << (ladei_log2_floor(pages - 1) - 6);
  return (pages + step - 1) & ~(step - 1);
}

#endif /* LADE_HOST_BLOCKS_SIZE_CLASS_H */
