/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups of this process, and the number of processors that it may use.
 *
 * A group's limits hold for all groups below it. So the limit of the process is the smallest on the way from its own
 * group up to the mount point.
 */
#ifndef LADE_BASE_CGROUPS_H
#define LADE_BASE_CGROUPS_H

#include <limits.h>
#include <stdbool.h>

/* One group: the folder of its files, and their version. */
typedef void (*ladei_cgroup_visit)(const char *folder, bool version_2, void *user);

/*
 * Visits the groups of the process, each from its own up to the mount point: those of version 2, and those of version 1
 * with `controller`. Groups above the root of the mount (above a container's, for example) are not visible. `root` is
 * put before /proc and /sys: "" for this machine, a folder for tests. Folders need not exist.
 */
void ladei_cgroups_each(const char *root, const char *controller, ladei_cgroup_visit visit, void *user);

/* Processor time that the groups allow (cpu.max; cpu.cfs_quota_us by cpu.cfs_period_us in version 1), in processors,
 * rounded up, so at least 1; LADEI_NO_QUOTA if they limit nothing. */
#define LADEI_NO_QUOTA UINT_MAX
unsigned ladei_processor_quota(const char *root);

/*
 * Processors that the process may use at once, at least 1, as one of `processes` (0 means 1) of a job on this machine
 * in the same control groups. The processes share the processors and the quota of the groups (cpuset.cpus.effective);
 * the affinity mask of the calling thread is this process's own, as a launcher may give each process its part.
 */
unsigned ladei_processors(const char *root, unsigned processes);

#endif /* LADE_BASE_CGROUPS_H */
