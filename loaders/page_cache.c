/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The share of a file that is in the page cache, by a sample: the middle of each sixteenth. cachestat(2) tells it, or where
 * the kernel lacks or forbids that, mincore(2) of a mapping, which says "all" of files that this process may not write.
 *
 * Locks: none.
 */
#include "loaders/page_cache.h"

#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/size.h"

enum { SAMPLES = 16, SAMPLE_BYTES = 1 << 20, PAGES_MOST = SAMPLE_BYTES / 4096 + 1 };

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5, on every processor */
#endif

/* Pages in the cache by cachestat(2); false: it does not tell. */
static bool pages_ask(int fd, uint64_t offset, uint64_t bytes, uint64_t *out_pages) {
  const uint64_t range[2] = {offset, bytes};
  uint64_t found[5] = {0}; /* struct cachestat: in the cache, and four more */
  if (syscall(SYS_cachestat, fd, range, found, 0u) != 0) return false;
  *out_pages = found[0];
  return true;
}

/* The same by mincore(2). `offset` is at a page. */
static bool pages_map(int fd, uint64_t offset, uint64_t bytes, uint64_t page_bytes, uint64_t *out_pages) {
  unsigned char there[PAGES_MOST];
  uint64_t pages = (bytes + page_bytes - 1) / page_bytes, count = 0;
  if (pages > PAGES_MOST) return false;
  void *view = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)offset);
  if (view == MAP_FAILED) return false;
  bool told = mincore(view, bytes, there) == 0;
  for (uint64_t i = 0; told && i < pages; i++) count += there[i] & 1;
  munmap(view, bytes);
  *out_pages = count;
  return told;
}

uint64_t ladei_loader_cached_bytes(int fd, uint64_t offset, uint64_t bytes) {
  const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE), part = bytes / SAMPLES;
  uint64_t seen = 0, cached = 0;
  for (unsigned i = 0; i < SAMPLES; i++) {
    uint64_t count = ladei_size_min(part, SAMPLE_BYTES), pages;
    uint64_t at = (offset + i * part + (part - count) / 2) / page_bytes * page_bytes;
    if (count == 0) return bytes;
    if (!pages_ask(fd, at, count, &pages) && !pages_map(fd, at, count, page_bytes, &pages)) return bytes;
    seen += count;
    cached += ladei_size_min(pages * page_bytes, count);
  }
  return (uint64_t)((double)cached / (double)seen * (double)bytes);
}
