/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups of this process, and the processors that it may use.
 *
 * The limits of a group hold for all groups below it. So a limit of the process is the smallest one on the way from its own
 * group up to the mount point.
 */
#ifndef LADE_BASE_CGROUPS_H
#define LADE_BASE_CGROUPS_H

#include <limits.h>
#include <stdbool.h>

/* One group: the folder of its files, and whose version they are. */
typedef void (*ladei_cgroup_visit)(const char *folder, bool version_2, void *user);

/*
 * Visits the groups that the process is in, each from its own up to the mount point: those of version 2, and those of version
 * 1 with `controller`. Groups above the root of the mount, such as those above a container's, are not seen. `root` stands before
 * /proc and /sys: "" for this machine, a folder for tests. Folders need not exist.
 */
void ladei_cgroups_each(const char *root, const char *controller, ladei_cgroup_visit visit, void *user);

/* Processors' worth of time that the groups leave (cpu.max; cpu.cfs_quota_us by cpu.cfs_period_us in version 1), rounded up,
 * so 1 at least; LADEI_NO_QUOTA where they limit nothing. */
#define LADEI_NO_QUOTA UINT_MAX
unsigned ladei_processor_quota(const char *root);

/*
 * Processors that the process may use at once, 1 at least, as one of `processes` (0 is 1) of a job on this machine, in the same
 * control groups. What the groups leave (cpuset.cpus.effective, the quota) they share; what the affinity mask of the calling thread
 * leaves is this process's own: a launcher may have given each of them a part.
 */
unsigned ladei_processors(const char *root, unsigned processes);

#endif /* LADE_BASE_CGROUPS_H */
