/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that processes share, as their mappings of one file show it.
 *
 *   /proc/self/maps    7f00-7f20 rw-s 0000 00:01 1029 /memfd:...      what is adopted: device 00:01, inode 1029, bytes 0 to 0x40 of it
 *                      7f20-7f40 r--s 0020 00:01 1029 /memfd:...
 *
 * M1  The ids of two mappings are the same only if they are of the same bytes of the same file, in the same order.
 * Locks: none. Other mappings may come and go meanwhile; these stay, as their caller has them.
 */
#include "host/budget/ledger_mapping.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Of a line. */
typedef struct mapping_line {
  uintptr_t begin, end;
  char rights[5]; /* the last one: "s" of a shared mapping, "p" of a private one */
  unsigned long long offset, inode;
  unsigned major, minor;
} mapping_line;

/* Its bytes are hashed: it has no padding. */
typedef struct file_bytes {
  uint64_t device, inode, offset, bytes;
} file_bytes;

static bool line_read(const char *line, mapping_line *out) {
  unsigned long long begin, end;
  if (sscanf(line, "%llx-%llx %4s %llx %x:%x %llu", &begin, &end, out->rights, &out->offset, &out->major, &out->minor,
             &out->inode) != 7)
    return false;
  out->begin = (uintptr_t)begin;
  out->end = (uintptr_t)end;
  return true;
}

/* The mapping goes on with the same file where the bytes before it end: M1. */
static bool goes_on(const mapping_line *m, uintptr_t at, uintptr_t begin, const file_bytes *of) {
  return m->begin <= at && at < m->end && m->rights[3] == 's' && m->inode == of->inode &&
         ((uint64_t)m->major << 32 | m->minor) == of->device &&
         m->offset + (at - m->begin) == of->offset + (at - begin);
}

uint64_t ladei_ledger_mapping_id(const void *memory, size_t bytes) {
  const uintptr_t begin = (uintptr_t)memory;
  uintptr_t at = begin; /* up to where all is known */
  file_bytes of = {.bytes = bytes};
  char *line = NULL;
  size_t room = 0;
  FILE *file = fopen("/proc/self/maps", "re");
  if (file == NULL) return 0;
  while (at - begin < bytes && getline(&line, &room, file) > 0) {
    mapping_line m;
    if (!line_read(line, &m) || m.end <= begin) continue;
    if (at == begin) {
      of.device = (uint64_t)m.major << 32 | m.minor;
      of.inode = m.inode;
      of.offset = m.offset + (begin - m.begin);
    }
    if (of.inode == 0 || !goes_on(&m, at, begin, &of)) break;
    at = m.end;
  }
  free(line);
  fclose(file);
  if (at - begin < bytes) return 0;
  const uint64_t id = XXH64(&of, sizeof of, 0);
  return id != 0 ? id : 1;
}
