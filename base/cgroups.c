/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups of this process, and the number of processors that it may use.
 *
 * A line of /proc/self/cgroup is "4:memory:/path" in version 1 and "0::/path" in version 2. /proc/self/mountinfo says
 * where the files of that group are: a mount shows the groups from one group (its root) downwards; in a container the
 * root may be the container's own group.
 *
 *   0::/docker/abc/sub                                                       group         /docker/abc/sub
 *   30 22 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw            root, point   /docker/abc, /sys/fs/cgroup
 *                                                                            its files     /sys/fs/cgroup/sub
 *
 * I1  Every file may be missing, unreadable or malformed; it then limits nothing. Without a known mount, version 2 is
 *     taken to be at /sys/fs/cgroup, and a controller of version 1 in a folder of its name there.
 * I2  If no mount shows the group, the groups that are shown count as its ancestors.
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

/* From the folder `root` + `point` + `below` up to `root` + `point`. */
static void groups_visit(const char *root, const char *point, const char *below, bool version_2,
                         ladei_cgroup_visit visit, void *user) {
  char folder[PATH_BYTES];
  int top = snprintf(folder, sizeof folder, "%s%s", root, point);
  int length = snprintf(folder, sizeof folder, "%s%s%s", root, point, below);
  if (top < 0 || length < 0 || (size_t)length >= sizeof folder) return;
  if (length > top && folder[length - 1] == '/') folder[length - 1] = '\0'; /* the group "/" */
  for (;;) {
    visit(folder, version_2, user);
    char *slash = strrchr(folder + top, '/');
    if (slash == NULL) return;
    *slash = '\0';
  }
}

/* Whether a comma-separated list has the name. */
static bool list_has(const char *list, const char *name) {
  size_t length = strlen(name);
  for (const char *at = list;; at++) {
    if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0')) return true;
    at = strchr(at, ',');
    if (at == NULL) return false;
  }
}

/* ---- Mounts ------------------------------------------------------------------------------------------------------ */

typedef struct cgroup_mount {
  size_t root_length;
  const char *below; /* rest of the group's path below the root; NULL: the mount does not show the group */
  char point[PATH_BYTES];
} cgroup_mount;

/* A blank, a tab, a newline and a backslash are written as a backslash and three octal digits. */
static void octal_decode(char *text) {
  char *to = text;
  for (const char *from = text; *from != '\0'; to++) {
    bool coded = from[0] == '\\' && strspn(from + 1, "01234567") >= 3;
    *to = coded ? (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0')) : *from;
    from += coded ? 4 : 1;
  }
  *to = '\0';
}

static const char *group_below(const char *group, const char *root) {
  size_t length = strcmp(root, "/") == 0 ? 0 : strlen(root);
  bool shown = strncmp(group, root, length) == 0 && (group[length] == '/' || group[length] == '\0');
  return shown ? group + length : NULL;
}

/* Takes one line if it is a mount of version 2, or of version 1 with the controller, and better than *out, if that is
 * set. Better: it shows the group, and more groups above it. Of equals the later one wins, as it may hide the other. */
static bool mount_take(char *line, const char *controller, bool version_2, const char *group, bool there,
                       cgroup_mount *out) {
  char *behind = strstr(line, " - "), *fields = line, *root, *point;
  if (behind == NULL) return false;
  *behind = '\0';
  behind += strlen(" - ");
  for (int i = 0; i < 3; i++) (void)strsep(&fields, " ");
  root = strsep(&fields, " ");
  point = strsep(&fields, " ");
  const char *type = strsep(&behind, " ");
  (void)strsep(&behind, " "); /* the options follow */
  if (point == NULL || behind == NULL || strlen(point) >= sizeof out->point) return false;
  if (version_2 ? strcmp(type, "cgroup2") != 0 : strcmp(type, "cgroup") != 0 || !list_has(behind, controller))
    return false;
  octal_decode(root);
  octal_decode(point);
  const char *below = group_below(group, root);
  size_t root_length = strlen(root);
  bool shows_more = below != NULL && (out->below == NULL || root_length <= out->root_length);
  if (there && !shows_more && (below != NULL || out->below != NULL)) return false;
  out->root_length = root_length;
  out->below = below;
  memcpy(out->point, point, strlen(point) + 1);
  return true;
}

/* Lines that are too long are skipped: they belong to other file systems, with long options. */
static void mount_find(const char *root, const char *controller, bool version_2, const char *group, cgroup_mount *out) {
  char line[2 * PATH_BYTES];
  bool found = false, begins = true;
  out->root_length = 0;
  out->below = NULL;
  snprintf(line, sizeof line, "%s/proc/self/mountinfo", root);
  FILE *file = fopen(line, "re");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    char *end = strchr(line, '\n');
    if (begins && end != NULL) {
      *end = '\0';
      found = mount_take(line, controller, version_2, group, found, out) || found;
    }
    begins = end != NULL;
  }
  if (file != NULL) fclose(file);
  if (found) return;
  snprintf(out->point, sizeof out->point, "/sys/fs/cgroup%s%s", version_2 ? "" : "/", version_2 ? "" : controller);
  out->below = group_below(group, "/");
}

static void line_visit(const char *root, char *line, const char *controller, ladei_cgroup_visit visit, void *user) {
  cgroup_mount mount;
  line[strcspn(line, "\n")] = '\0';
  char *controllers = strchr(line, ':');
  char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
  if (group == NULL) return;
  *group++ = '\0';
  bool version_2 = *++controllers == '\0';
  if (!version_2 && !list_has(controllers, controller)) return;
  mount_find(root, controller, version_2, group, &mount);
  groups_visit(root, mount.point, mount.below == NULL ? "" : mount.below, version_2, visit, user);
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

/* "max", -1 and malformed values are no quota. */
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

/* Number of processors in a list such as "0-3,8"; 0 if it is malformed or empty. */
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

/* A group without the file has its parent's processors. */
static void set_visit(const char *folder, bool version_2, void *user) {
  unsigned *least = user;
  char line[LIST_BYTES];
  line_read(folder, version_2 ? "cpuset.cpus.effective" : "cpuset.effective_cpus", line, sizeof line);
  unsigned count = list_count(line);
  if (count > 0 && count < *least) *least = count;
}

static unsigned unsigned_min(unsigned a, unsigned b) { return a < b ? a : b; }

/* The groups' processors that are online. */
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
  /* With more processors than the set has bits the call fails, and the mask is unknown. */
  unsigned own = sched_getaffinity(0, sizeof set, &set) == 0 ? unsigned_min(online, (unsigned)CPU_COUNT(&set)) : online;
  unsigned most = unsigned_min(own, share);
  return most == 0 ? 1 : most;
}
