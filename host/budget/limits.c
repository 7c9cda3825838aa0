/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits on pinned memory.
 *
 * A group's headroom is its limit less its use, without page cache: the kernel drops cache before it refuses memory.
 * Version 2 keeps memory.max, memory.high, memory.current and memory.stat in the group's folder; version 1
 * memory.limit_in_bytes, memory.usage_in_bytes and memory.stat. The limits of all groups above hold as well. Above
 * memory.high the kernel refuses nothing: it reclaims, and slows the group down until it is below again. Pinned memory
 * cannot be reclaimed, so the excess stays there, and the group is slow for good. Hence memory.high is a limit here.
 *
 * I1  Every file may be missing, unreadable or malformed; it then limits nothing.
 * Locks: none.
 */
#include "host/budget/limits.h"

#include <limits.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cgroups.h"
#include "base/file_number.h"

enum { PATH_BYTES = PATH_MAX };

static uint64_t meminfo_available(const char *root) {
  char path[PATH_BYTES];
  uint64_t kib;
  snprintf(path, sizeof path, "%s/proc/meminfo", root);
  return ladei_file_number(path, "MemAvailable:", &kib) ? kib << 10 : LADEI_PINNED_NO_LIMIT;
}

/* ---- Control groups ---------------------------------------------------------------------------------------------- */

/* How one version of control groups names its files and page cache. */
typedef struct group_files {
  const char *limits[2];              /* the smaller one holds */
  const char *usage, *cache, *shared; /* shared memory counts as cache there, yet cannot be dropped */
} group_files;

static const group_files version_1 = {
    {"memory.limit_in_bytes", NULL}, "memory.usage_in_bytes", "total_cache ", "total_shmem "};
static const group_files version_2 = {{"memory.max", "memory.high"}, "memory.current", "file ", "shmem "};

static bool group_number(const char *folder, const char *name, const char *key, uint64_t *out) {
  char path[PATH_BYTES];
  int length = snprintf(path, sizeof path, "%s/%s", folder, name);
  return length > 0 && (size_t)length < sizeof path && ladei_file_number(path, key, out);
}

/* Version 1 writes this where there is none: the largest signed number, rounded down to pages of up to 64 KiB. */
#define VERSION_1_NO_LIMIT ((uint64_t)INT64_MAX & ~UINT64_C(0xffff))

/* "max" is no number, and is none. */
static uint64_t group_limit(const char *folder, const group_files *files) {
  uint64_t limit = LADEI_PINNED_NO_LIMIT, own;
  for (int i = 0; i < 2 && files->limits[i] != NULL; i++)
    if (group_number(folder, files->limits[i], "", &own) && own < limit) limit = own;
  return limit >= VERSION_1_NO_LIMIT ? LADEI_PINNED_NO_LIMIT : limit;
}

static uint64_t group_headroom(const char *folder, const group_files *files) {
  uint64_t limit = group_limit(folder, files), usage, cache = 0, shared = 0;
  if (limit == LADEI_PINNED_NO_LIMIT || !group_number(folder, files->usage, "", &usage))
    return LADEI_PINNED_NO_LIMIT; /* or no memory controller here */
  (void)group_number(folder, "memory.stat", files->cache, &cache);
  (void)group_number(folder, "memory.stat", files->shared, &shared);
  cache -= shared < cache ? shared : cache;
  usage -= cache < usage ? cache : usage;
  return usage < limit ? limit - usage : 0;
}

static void headroom_visit(const char *folder, bool version_2_here, void *user) {
  ladei_pinned_limits *limits = user;
  struct stat found;
  uint64_t own = group_headroom(folder, version_2_here ? &version_2 : &version_1);
  if (own == LADEI_PINNED_NO_LIMIT || own > limits->cgroup_headroom_bytes) return;
  limits->cgroup_headroom_bytes = own;
  limits->cgroup_id = stat(folder, &found) == 0 ? (uint64_t)found.st_ino : 0;
}

/* The smallest of all groups. */
static void cgroup_headroom(const char *root, ladei_pinned_limits *out) {
  out->cgroup_headroom_bytes = LADEI_PINNED_NO_LIMIT;
  out->cgroup_id = 0;
  ladei_cgroups_each(root, "memory", headroom_visit, out);
}

/* ---- NUMA nodes -------------------------------------------------------------------------------------------------- */

/* "Node 0 MemFree:   1234 kB" */
static bool node_number(const char *path, int node, const char *name, uint64_t *out) {
  char key[64];
  uint64_t kib;
  snprintf(key, sizeof key, "Node %d %s:", node, name);
  bool found = ladei_file_number(path, key, &kib);
  *out = found ? kib << 10 : 0;
  return found;
}

uint64_t ladei_pinned_limits_node_free(const char *root, int node) {
  char path[PATH_BYTES];
  uint64_t unused, active, inactive;
  snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/meminfo", root, node);
  if (!node_number(path, node, "MemFree", &unused)) return LADEI_PINNED_NO_LIMIT;
  (void)node_number(path, node, "Active(file)", &active);
  (void)node_number(path, node, "Inactive(file)", &inactive);
  return unused + active + inactive;
}

enum { MOST_NODES = 1024, WORD_BITS = 8 * (int)sizeof(unsigned long) };

bool ladei_pinned_limits_bound_free(const char *root, uint64_t *out) {
  unsigned long nodes[MOST_NODES / WORD_BITS] = {0};
  int policy = MPOL_DEFAULT;
  if (syscall(SYS_get_mempolicy, &policy, nodes, (unsigned long)MOST_NODES, NULL, 0ul) != 0 ||
      (policy & ~MPOL_MODE_FLAGS) != MPOL_BIND)
    return false;
  *out = 0;
  for (int node = 0; node < MOST_NODES; node++) {
    if ((nodes[node / WORD_BITS] >> (node % WORD_BITS) & 1) != 0) {
      uint64_t own = ladei_pinned_limits_node_free(root, node);
      *out = own > LADEI_PINNED_NO_LIMIT - *out ? LADEI_PINNED_NO_LIMIT : *out + own;
    }
  }
  return true;
}

/* ---- All together ------------------------------------------------------------------------------------------------ */

void ladei_pinned_limits_read(const char *root, ladei_pinned_limits *out) {
  struct rlimit memlock;
  out->available_bytes = meminfo_available(root);
  cgroup_headroom(root, out);
  out->memlock_bytes = LADEI_PINNED_NO_LIMIT;
  if (getrlimit(RLIMIT_MEMLOCK, &memlock) == 0 && memlock.rlim_cur != RLIM_INFINITY)
    out->memlock_bytes = memlock.rlim_cur;
}

/* The program, the driver's own bookkeeping and page tables need memory in the same group: with all of it pinned, the
 * next page fault of any of its processes ends in the kernel's killer. */
static uint64_t without_an_eighth(uint64_t bytes) { return bytes == LADEI_PINNED_NO_LIMIT ? bytes : bytes - bytes / 8; }

uint64_t ladei_pinned_limits_group_cap(const ladei_pinned_limits *limits) {
  return without_an_eighth(limits->cgroup_headroom_bytes);
}

uint64_t ladei_pinned_limits_half(const ladei_pinned_limits *limits) {
  return limits->available_bytes == LADEI_PINNED_NO_LIMIT ? LADEI_PINNED_NO_LIMIT : limits->available_bytes / 2;
}

uint64_t ladei_pinned_limits_default_cap(const ladei_pinned_limits *limits) {
  uint64_t half = ladei_pinned_limits_half(limits), group = ladei_pinned_limits_group_cap(limits);
  return half < group ? half : group;
}

bool ladei_pinned_limits_cap_is_of_group(const ladei_pinned_limits *limits) {
  return limits->cgroup_headroom_bytes != LADEI_PINNED_NO_LIMIT &&
         ladei_pinned_limits_default_cap(limits) == ladei_pinned_limits_group_cap(limits);
}
