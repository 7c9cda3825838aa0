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

unsigned ladei_processors(const char *root) {
  cpu_set_t set;
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  unsigned quota = ladei_processor_quota(root);
  /* More processors than the set has bits: the call fails, and the mask is not known. */
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) < online) online = CPU_COUNT(&set);
  unsigned allowed = online < 1 ? 1 : (unsigned)online;
  return quota < allowed ? quota : allowed;
}
