/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds pages that the system does not pin, in /proc/self/maps.
 *
 *   pinned for writing: readable and writable pages; no shared ones of a file that is written back
 *   pinned for reading: readable pages
 *
 * Locks: none; the mappings may change meanwhile, as they may under a driver.
 */
#include "runtime/soft/ops/pages.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/statfs.h>

#include "runtime/soft/ops/ops.h"

enum { MAP_LINE = 4352 }; /* a path and the text before it */

/* A line of the table of mappings. */
typedef struct map_line {
  uint64_t begin, end;
  bool readable, writable, shared;
  char path[4097]; /* "" for none */
} map_line;

static bool line_read(const char *text, map_line *out) {
  char access[5] = "";
  out->path[0] = '\0';
  int read =
      sscanf(text, "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %*s %4096[^\n]", &out->begin, &out->end, access, out->path);
  out->readable = access[0] == 'r';
  out->writable = access[1] == 'w';
  out->shared = access[3] == 's';
  return read >= 3;
}

/* Whether writes to the mapping go to a file that the system keeps, and not to memory under a name. A deleted file has
 * lost its path, but not its folder. */
static bool is_written_back(const char *path) {
  enum { TMPFS = 0x01021994, RAMFS = 0x858458f6 - 0x100000000, HUGETLBFS = 0x958458f6 - 0x100000000 };
  static const char *const own[] = {"/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage"};
  char folder[4097];
  struct statfs where;
  if (path[0] != '/') return false;
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
    if (strncmp(path, own[i], strlen(own[i])) == 0) return false;
  snprintf(folder, sizeof folder, "%s", path);
  char *slash = strrchr(folder, '/');
  slash[slash == folder ? 1 : 0] = '\0';
  if (statfs(folder, &where) != 0) return true;
  int32_t kind = (int32_t)where.f_type;
  return kind != TMPFS && kind != (int32_t)RAMFS && kind != (int32_t)HUGETLBFS;
}

static const char *line_refused(const map_line *line, bool read_only) {
  if (!line->readable) return "pages that may be read";
  if (read_only) return NULL;
  if (!line->writable) return "pages that may be written, or are pinned for reading alone";
  return line->shared && is_written_back(line->path) ? "no shared mapping of a file, or one pinned for reading alone"
                                                     : NULL;
}

const char *ladei_soft_pages_refused(const void *pointer, size_t bytes, bool read_only) {
  uint64_t next = (uint64_t)(uintptr_t)pointer, end = next + bytes;
  const char *expected = NULL;
  char text[MAP_LINE];
  map_line line;
  FILE *file = fopen("/proc/self/maps", "re");
  if (file == NULL) return NULL;
  while (next < end && expected == NULL && fgets(text, sizeof text, file) != NULL) {
    if (!line_read(text, &line) || line.end <= next) continue;
    expected = line.begin > next ? "memory without a hole" : line_refused(&line, read_only);
    next = line.end;
  }
  fclose(file);
  return expected == NULL && next < end ? "memory without a hole" : expected;
}
