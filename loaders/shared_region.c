/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One piece of memory of a host, pinned in all ranks of a group.
 *
 *   rank 0   makes a memory file --+                 +-- map, register --+
 *                                  gather: which file                    gather: all or none
 *   others   ----------------------+                 +-- open it, map, register
 *
 * S1  Each rank has its own mapping, and no descriptor once the call has returned: the memory lasts until the last rank has
 *     disowned it or died.
 * S2  A rank that fails takes part in both gathers all the same, so that the others learn why; then no rank has the memory.
 * S3  The ranks charge the budget together: it knows the file by their mappings, and counts it once, while any of them has it.
 * Locks: none. The group's calls exclude each other.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "group/frame.h"
#include "host/api/adopt.h"
#include "host/state/call.h"

static const char call[] = "lade_pinned_shared_create";

/* Told in the first gather. The file is named by the process that has it open, and known by its numbers. */
typedef struct region_record {
  ladei_group_needs needs;
  uint64_t bytes, device, inode;
  int64_t process;
  int32_t fd;
  int32_t reserved;
} region_record;

typedef struct region {
  lade_pinned_pool *pool;
  lade_group *group;
  uint32_t rank, size;
  uint64_t bytes;
  int fd;       /* -1: none */
  void *memory; /* NULL: not adopted */
} region;

static lade_status system_error(const region *r, const char *what) {
  int reason = errno;
  return ladei_error(reason == ENOMEM ? LADE_ERR_OUT_OF_HOST_MEMORY : LADE_ERR_IO, reason, "%s of %llu bytes: %s", what,
                     (unsigned long long)r->bytes, strerror(reason));
}

static lade_status file_make(region *r, region_record *own) {
  struct stat info;
  r->fd = memfd_create("lade shared pinned memory", MFD_CLOEXEC);
  if (r->fd < 0) return system_error(r, "making a memory file");
  if (ftruncate(r->fd, (off_t)r->bytes) != 0 || fstat(r->fd, &info) != 0) return system_error(r, "a memory file");
  own->device = info.st_dev;
  own->inode = info.st_ino;
  own->process = getpid();
  own->fd = r->fd;
  return LADE_OK;
}

static lade_status file_open(region *r, const region_record *first) {
  char path[64];
  struct stat info;
  (void)snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)first->process, (int)first->fd);
  r->fd = open(path, O_RDWR | O_CLOEXEC);
  if (r->fd >= 0 && fstat(r->fd, &info) == 0 && info.st_dev == first->device && info.st_ino == first->inode)
    return LADE_OK;
  int reason = r->fd < 0 ? errno : ENOENT;
  return ladei_error(
      LADE_ERR_UNSUPPORTED, reason,
      "the memory file of rank 0 is not reached as %s (%s); expected ranks on one host, of one user, that "
      "see each other's processes",
      path, strerror(reason));
}

static lade_status region_adopt(region *r) {
  void *memory = mmap(NULL, (size_t)r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
  if (memory == MAP_FAILED) return system_error(r, "a mapping");
  lade_status status = ladei_pinned_adopt_mapped(r->pool, memory, r->bytes, call);
  if (status == LADE_OK)
    r->memory = memory;
  else
    munmap(memory, (size_t)r->bytes);
  return status;
}

/* All ranks' needs; the first failure is every rank's. */
static lade_status needs_exchange(const region *r, region_record *own, region_record *all, lade_status status) {
  ladei_group_needs_note(&own->needs, status);
  LADEI_TRY(lade_group_gather(r->group, own, sizeof *own, all));
  for (uint32_t i = 0; i < r->size; i++) LADEI_TRY(ladei_group_needs_check(&all[i].needs, i));
  return LADE_OK;
}

static lade_status bytes_agree(const region *r, const region_record *all) {
  for (uint32_t i = 1; i < r->size; i++)
    if (all[i].bytes != all[0].bytes)
      return ladei_error(LADE_ERR_PEER, 0, "%s: bytes is %llu on rank %u, %llu on rank 0; expected the same", call,
                         (unsigned long long)all[i].bytes, (unsigned)i, (unsigned long long)all[0].bytes);
  return LADE_OK;
}

static lade_status bytes_check(uint64_t bytes) {
  if (bytes > 0 && bytes <= LADEI_PINNED_MAX_BYTES) return LADE_OK;
  return ladei_error_argument(call, "bytes", "1 to 1 TiB", "%llu", (unsigned long long)bytes);
}

static lade_status region_make(region *r, region_record *all) {
  region_record own;
  memset(&own, 0, sizeof own); /* padding is sent, too */
  own.bytes = r->bytes;
  lade_status status = bytes_check(r->bytes);
  if (status == LADE_OK && r->rank == 0) status = file_make(r, &own);
  LADEI_TRY(needs_exchange(r, &own, all, status));
  LADEI_TRY(bytes_agree(r, all));
  status = r->rank == 0 ? LADE_OK : file_open(r, &all[0]);
  if (status == LADE_OK) status = region_adopt(r);
  return needs_exchange(r, &own, all, status); /* S2: rank 0's descriptor is open until here */
}

static lade_status region_create(region *r) {
  region_record *all = calloc(r->size, sizeof *all);
  if (all == NULL) {
    (void)lade_group_abort(r->group, LADE_ERR_OUT_OF_HOST_MEMORY, NULL);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %u ranks", call, r->size);
  }
  lade_status status = region_make(r, all);
  free(all);
  if (r->fd >= 0) close(r->fd);
  if (status != LADE_OK && r->memory != NULL) ladei_pinned_adopted_abandon(r->pool, r->memory);
  return status;
}

lade_status lade_pinned_shared_create(lade_pinned_pool *pool, lade_group *group, uint64_t bytes, void **out) {
  lade_status status = ladei_pinned_enter_with(pool, group != NULL, "group", call);
  if (status == LADE_OK && out == NULL) status = ladei_error_null(call, "out");
  if (status != LADE_OK) return status;
  region r = {.pool = pool, .group = group, .bytes = bytes, .fd = -1};
  r.rank = lade_group_rank(group);
  r.size = lade_group_size(group);
  status = LADEI_HELD(region_create(&r));
  if (status == LADE_OK) *out = r.memory;
  return status;
}
