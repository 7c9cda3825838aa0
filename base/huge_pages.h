/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Huge pages for large tables: a walk over records scattered across megabytes also misses in the processor's TLB.
 */
#ifndef LADE_BASE_HUGE_PAGES_H
#define LADE_BASE_HUGE_PAGES_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/*
 * Asks the kernel for huge pages if memory that was not touched yet covers whole ones. The tables of a program with few
 * records are smaller than one, and cost no more than before. Nothing depends on the kernel's consent.
 */
static inline void ladei_huge_pages_advise(void *memory, size_t bytes) {
  const uintptr_t page = (uintptr_t)2 << 20;
  uintptr_t begin = ((uintptr_t)memory + page - 1) & ~(page - 1);
  uintptr_t end = ((uintptr_t)memory + bytes) & ~(page - 1);
  if (begin < end) (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

/*
 * Zeroed memory for a table, aligned to a cache line; to a huge page if it is at least that long, so that no part of it
 * is left in small ones. *out_memory is the pointer for free(). NULL: there is no memory, and *out_memory is NULL.
 */
static inline void *ladei_huge_pages_calloc(size_t bytes, void **out_memory) {
  const size_t page = (size_t)2 << 20, line = 64, align = bytes < page ? line : page;
  *out_memory = bytes > SIZE_MAX - align ? NULL : calloc(1, bytes + align - 1);
  if (*out_memory == NULL) return NULL;
  char *memory = (char *)*out_memory + (align - (uintptr_t)*out_memory % align) % align;
  ladei_huge_pages_advise(memory, bytes);
  return memory;
}

#endif /* LADE_BASE_HUGE_PAGES_H */
