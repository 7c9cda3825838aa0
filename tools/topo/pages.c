/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Huge pages and free memory.
 *
 *   ROOT/sys/kernel/mm/hugepages/hugepages-2048kB/{nr,free}_hugepages       pools of the machine
 *   ROOT/sys/devices/system/node/node0/hugepages/...                        those of a node
 *   ROOT/sys/devices/system/node/node0/meminfo                              "Node 0 MemFree:   9138704 kB"
 *   ROOT/sys/kernel/mm/transparent_hugepage/enabled                         "always [madvise] never"
 *
 * I1  pools[0 .. count) have different sizes, in ascending order.
 */
#include "tools/topo/pages.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_number.h"

static bool pool_read(const char *folder, const char *name, pages_pool *out) {
  char path[PATH_MAX];
  unsigned long long kib;
  if (sscanf(name, "hugepages-%llukB", &kib) != 1) return false;
  out->page_bytes = (uint64_t)kib << 10;
  int length = snprintf(path, sizeof path, "%s/%s/nr_hugepages", folder, name);
  if (length >= (int)sizeof path || !ladei_file_number(path, "", &out->total_count)) return false;
  length = snprintf(path, sizeof path, "%s/%s/free_hugepages", folder, name);
  return length < (int)sizeof path && ladei_file_number(path, "", &out->free_count);
}

static int pool_compare(const void *a, const void *b) {
  uint64_t first = ((const pages_pool *)a)->page_bytes, second = ((const pages_pool *)b)->page_bytes;
  return first < second ? -1 : first > second;
}

void pages_pools_read(const char *root, int node, pages_pools *out) {
  char folder[PATH_MAX];
  out->count = 0;
  if (node < 0)
    snprintf(folder, sizeof folder, "%s/sys/kernel/mm/hugepages", root);
  else
    snprintf(folder, sizeof folder, "%s/sys/devices/system/node/node%d/hugepages", root, node);
  DIR *stream = opendir(folder);
  if (stream == NULL) return;
  for (struct dirent *entry; out->count < PAGES_MAX_SIZES && (entry = readdir(stream)) != NULL;)
    if (pool_read(folder, entry->d_name, &out->pools[out->count])) out->count++;
  closedir(stream);
  qsort(out->pools, out->count, sizeof out->pools[0], pool_compare);
}

uint64_t pages_total_bytes(const pages_pools *pools) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < pools->count; i++) bytes += pools->pools[i].total_count * pools->pools[i].page_bytes;
  return bytes;
}

uint64_t pages_node_free_bytes(const char *root, int node) {
  char path[PATH_MAX];
  char key[64];
  uint64_t kib;
  snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/meminfo", root, node);
  snprintf(key, sizeof key, "Node %d MemFree:", node);
  return ladei_file_number(path, key, &kib) ? kib << 10 : PAGES_UNKNOWN;
}

void pages_transparent_mode(const char *root, char out[PAGES_MODE_BYTES]) {
  char path[PATH_MAX];
  char line[128];
  strcpy(out, "unknown");
  snprintf(path, sizeof path, "%s/sys/kernel/mm/transparent_hugepage/enabled", root);
  FILE *file = fopen(path, "re");
  if (file == NULL) return;
  char *begin = fgets(line, sizeof line, file) == NULL ? NULL : strchr(line, '[');
  char *end = begin == NULL ? NULL : strchr(begin, ']');
  if (end != NULL && end - begin <= PAGES_MODE_BYTES) {
    *end = '\0';
    strcpy(out, begin + 1);
  }
  fclose(file);
}
