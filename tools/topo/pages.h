/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Huge pages and free memory, as the kernel shows them below /proc and /sys.
 *
 * `root` comes before these: "" for this machine, a folder for tests. Unreadable files count as unknown or none.
 */
#ifndef LADE_TOOLS_TOPO_PAGES_H
#define LADE_TOOLS_TOPO_PAGES_H

#include <stddef.h>
#include <stdint.h>

#define PAGES_UNKNOWN UINT64_MAX

enum { PAGES_MAX_SIZES = 8, PAGES_MODE_BYTES = 16 };

/* The pool of huge pages of one size. */
typedef struct pages_pool {
  uint64_t page_bytes;
  uint64_t total_count;
  uint64_t free_count;
} pages_pool;

/* By size, smallest first. */
typedef struct pages_pools {
  size_t count;
  pages_pool pools[PAGES_MAX_SIZES];
} pages_pools;

/* Pools of the whole machine for node -1, otherwise of a NUMA node. */
void pages_pools_read(const char *root, int node, pages_pools *out);

/* Bytes in huge pages of all sizes, used or free. */
uint64_t pages_total_bytes(const pages_pools *pools);

/* Unused memory of a NUMA node, without reclaimable memory; PAGES_UNKNOWN if it is not known. */
uint64_t pages_node_free_bytes(const char *root, int node);

/* Mode of transparent huge pages: "always", "madvise", "never"; "unknown" where it is not known. */
void pages_transparent_mode(const char *root, char out[PAGES_MODE_BYTES]);

#endif /* LADE_TOOLS_TOPO_PAGES_H */
