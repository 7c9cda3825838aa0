/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that this process may pin: the machine's available memory, the rest of its control groups, and the limit
 * on locked pages.
 */
#ifndef LADE_HOST_BUDGET_LIMITS_H
#define LADE_HOST_BUDGET_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#define LADEI_PINNED_NO_LIMIT UINT64_MAX

typedef struct ladei_pinned_limits {
  uint64_t available_bytes; /* MemAvailable; LADEI_PINNED_NO_LIMIT where the system does not say */
  uint64_t cgroup_id;       /* inode of the group that gives the headroom; the outermost of several; 0: none does */
  uint64_t cgroup_headroom_bytes; /* smallest over the process's memory groups, page cache counted as free */
  uint64_t memlock_bytes;         /* soft RLIMIT_MEMLOCK; holds only where lade locks pages itself */
} ladei_pinned_limits;

/* `root` stands before /proc and /sys: "" for this machine, a folder for tests. Unreadable files are no limit. */
void ladei_pinned_limits_read(const char *root, ladei_pinned_limits *out);

/* Default of lade_pinned_options.max_bytes: the smaller of half of the available memory and seven eighths of the
 * groups' headroom. */
uint64_t ladei_pinned_limits_default_cap(const ladei_pinned_limits *limits);

/* The two of which it is the smaller one. */
uint64_t ladei_pinned_limits_half(const ladei_pinned_limits *limits);
uint64_t ladei_pinned_limits_group_cap(const ladei_pinned_limits *limits);

/* Whether it is the groups that give that default. */
bool ladei_pinned_limits_cap_is_of_group(const ladei_pinned_limits *limits);

/* Bytes that a NUMA node can give, page cache counted as free; LADEI_PINNED_NO_LIMIT where the system does not say. */
uint64_t ladei_pinned_limits_node_free(const char *root, int node);

/* Whether this thread's memory comes from some NUMA nodes only, by its policy (numactl --membind, set_mempolicy); and
 * the bytes that these can give together. If they have no more, the kernel does not go elsewhere: it kills. */
bool ladei_pinned_limits_bound_free(const char *root, uint64_t *out);

#endif /* LADE_HOST_BUDGET_LIMITS_H */
