/* SPDX-License-Identifier: Apache-2.0 */
/* How much of a file is in the page cache. */
#ifndef LADE_LOADERS_PAGE_CACHE_H
#define LADE_LOADERS_PAGE_CACHE_H

#include <stdint.h>

/* About how many of `bytes` bytes from `offset` on are in the page cache; all of them where the kernel does not tell. */
uint64_t ladei_loader_cached_bytes(int fd, uint64_t offset, uint64_t bytes);

#endif /* LADE_LOADERS_PAGE_CACHE_H */
