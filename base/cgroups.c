/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups of this process, and the processors that it may use.
 *
 * A line of /proc/self/cgroup is "4:memory:/path" in version 1 and "0::/path" in version 2. Version 2 is mounted at
 * /sys/fs/cgroup, a controller of version 1 in a folder of its name there.
 *
 * I1  Every file may be missing, unreadable or malformed; it then limits nothing.
 * Locks: none.
 */
#include "base/cgroups.h"

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = PATH_MAX };
enum { LIST_BYTES = 4096, LIST_LAST = 1 << 20 }; /* more processors than Linux knows */

/* From the folder `root` + `mount` + `group` up to `root` + `mount`. */
static void groups_visit(const char *root, const char *mount, const char *group, bool version_2,
                         ladei_cgroup_visit visit, void *user) {
  char folder[PATH_BYTES];
  int top = snprintf(folder, sizeof folder, "%s%s", root, mount);
  int length = snprintf(folder, sizeof folder, "%s%s%s", root, mount, group);
  if (top < 0 || length < 0 || (size_t)length >= sizeof folder) return;
  for (;;) {
    visit(folder, version_2, user);
    char *slash = strrchr(folder + top, '/');
    if (slash == NULL) return;
    *slash = '\0';
  }
}

static void line_visit(const char *root, char *line, const char *controller, ladei_cgroup_visit visit, void *user) {
  char mount[64];
  line[strcspn(line, "\n")] = '\0';
  char *controllers = strchr(line, ':');
  char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
  if (group == NULL) return;
  *group++ = '\0';
  controllers++;
  if (controllers[0] == '\0') groups_visit(root, "/sys/fs/cgroup", group, true, visit, user);
  snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", controller);
  for (char *rest = controllers, *name; (name = strsep(&rest, ",")) != NULL;)
    if (strcmp(name, controller) == 0) groups_visit(root, mount, group, false, visit, user);
}

void ladei_cgroups_each(const char *root, const char *controller, ladei_cgroup_visit visit, void *user) {
  char path[PATH_BYTES];
  char line[PATH_BYTES];
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *file = fopen(path, "re");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) line_visit(root, line, controller, visit, user);
  if (file != NULL) fclose(file);
}

/* ---- Processors -------------------------------------------------------------------------------------------------- */

/* The first line of a group's file; "" where there is none. */
static void line_read(const char *folder, const char *name, char *line, int bytes) {
  char path[PATH_BYTES];
  int length = snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = length > 0 && (size_t)length < sizeof path ? fopen(path, "re") : NULL;
  line[0] = '\0';
  if (file == NULL) return;
  if (fgets(line, bytes, file) == NULL) line[0] = '\0';
  fclose(file);
}

/* "max" and -1 are no quota; neither is what makes no sense. */
static void quota_visit(const char *folder, bool version_2, void *user) {
  unsigned *least = user;
  char quota_line[64], period_line[64], *quota_end, *period_end, *period_begin = period_line;
  line_read(folder, version_2 ? "cpu.max" : "cpu.cfs_quota_us", quota_line, sizeof quota_line);
  if (!version_2) line_read(folder, "cpu.cfs_period_us", period_line, sizeof period_line);
  long long quota = strtoll(quota_line, &quota_end, 10);
  if (version_2) period_begin = quota_end;
  long long period = strtoll(period_begin, &period_end, 10);
  if (quota_end == quota_line || period_end == period_begin || quota <= 0 || period <= 0) return;
  long long share = quota / period + (quota % period != 0);
  if (share < *least) *least = (unsigned)share;
}

unsigned ladei_processor_quota(const char *root) {
  unsigned least = LADEI_NO_QUOTA;
  ladei_cgroups_each(root, "cpu", quota_visit, &least);
  return least;
}

/* Of a list as "0-3,8"; 0 where it makes no sense, or is empty. */
static unsigned list_count(const char *list) {
  unsigned long count = 0;
  for (const char *at = list;; at++) {
    char *end;
    unsigned long first = strtoul(at, &end, 10);
    unsigned long last = first;
    if (end == at || first > LIST_LAST) return 0;
    if (*end == '-') {
      at = end + 1;
      last = strtoul(at, &end, 10);
      if (end == at || last < first || last > LIST_LAST) return 0;
    }
    count += last - first + 1;
    at = end;
    if (*at == '\0' || *at == '\n') return count > LIST_LAST ? 0 : (unsigned)count;
    if (*at != ',') return 0;
  }
}

/* A group without the file has the processors of the one above. */
static void set_visit(const char *folder, bool version_2, void *user) {
  unsigned *least = user;
  char line[LIST_BYTES];
  line_read(folder, version_2 ? "cpuset.cpus.effective" : "cpuset.effective_cpus", line, sizeof line);
  unsigned count = list_count(line);
  if (count > 0 && count < *least) *least = count;
}

static unsigned unsigned_min(unsigned a, unsigned b) { return a < b ? a : b; }

/* Of those that are online, the groups of the process. */
static unsigned group_processors(const char *root, unsigned online) {
  unsigned least = UINT_MAX;
  ladei_cgroups_each(root, "cpuset", set_visit, &least);
  return unsigned_min(least == UINT_MAX ? online : least, ladei_processor_quota(root));
}

unsigned ladei_processors(const char *root, unsigned processes) {
  cpu_set_t set;
  long known = sysconf(_SC_NPROCESSORS_ONLN);
  unsigned online = known < 1 ? 1 : (unsigned)known;
  unsigned share = group_processors(root, online) / (processes == 0 ? 1 : processes);
  /* More processors than the set has bits: the call fails, and the mask is not known. */
  unsigned own = sched_getaffinity(0, sizeof set, &set) == 0 ? unsigned_min(online, (unsigned)CPU_COUNT(&set)) : online;
  unsigned most = unsigned_min(own, share);
  return most == 0 ? 1 : most;
}
