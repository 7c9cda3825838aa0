/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Huge pages for large tables: a walk over records that lie anywhere in megabytes is a row of misses in the processor's
 * table of pages as well.
 */
#ifndef LADE_BASE_HUGE_PAGES_H
#define LADE_BASE_HUGE_PAGES_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/*
 * Asks the kernel for huge pages where memory that was not touched yet covers whole ones. What a program with few records
 * has is smaller than one, and costs no more than before. A kernel that refuses is as good: nothing depends on it.
 */
static inline void ladei_huge_pages_advise(void *memory, size_t bytes) {
  const uintptr_t page = (uintptr_t)2 << 20;
  uintptr_t begin = ((uintptr_t)memory + page - 1) & ~(page - 1);
  uintptr_t end = ((uintptr_t)memory + bytes) & ~(page - 1);
  if (begin < end) (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

/*
 * Zeroed memory for a table, at the begin of a line of cache; of a huge page where it is as long as one, so that no half of
 * it is left in small ones. *out_memory is what free() takes. NULL: there is no memory, and *out_memory is NULL.
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
