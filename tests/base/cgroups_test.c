/* SPDX-License-Identifier: Apache-2.0 */
/* The processors that a process may use, read from files as a kernel writes them. */
#include "base/cgroups.h"

#include <sched.h>
#include <stdio.h>

#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"

typedef struct machine_file {
  const char *path, *text;
} machine_file;

/* Of a machine with these files, up to the one without a path. */
static unsigned quota_of(const machine_file *files) {
  support_temp_dir root;
  if (!support_temp_dir_create(&root)) return 0;
  for (; files->path != NULL; files++) support_temp_dir_write(&root, files->path, files->text);
  unsigned quota = ladei_processor_quota(root.path);
  support_temp_dir_remove(&root);
  return quota;
}

LADE_TEST(Cgroups, NothingReadableIsNoQuota) { LADE_EXPECT_EQ_UINT(ladei_processor_quota("/nonexistent"), UINT_MAX); }

LADE_TEST(Cgroups, QuotaOfVersion2IsRoundedUp) {
  static const char *const texts[] = {"200000 100000\n", "150000 100000\n", "10000 100000\n",
                                      "1 9223372036854775807\n"};
  static const unsigned quotas[] = {2, 2, 1, 1};
  for (int i = 0; i < 4; i++) {
    const machine_file files[] = {
        {"proc/self/cgroup", "0::/job\n"}, {"sys/fs/cgroup/job/cpu.max", texts[i]}, {NULL, NULL}};
    LADE_EXPECT_EQ_UINT(quota_of(files), quotas[i]);
  }
}

LADE_TEST(Cgroups, SmallestQuotaOnTheWayUpDecides) {
  const machine_file files[] = {{"proc/self/cgroup", "0::/a/b/c\n"},
                                {"sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n"},
                                {"sys/fs/cgroup/a/b/cpu.max", "900000 100000\n"},
                                {"sys/fs/cgroup/a/cpu.max", "350000 50000\n"},
                                {"sys/fs/cgroup/cpu.max", "800000 100000\n"},
                                {NULL, NULL}};
  LADE_EXPECT_EQ_UINT(quota_of(files), 7);
}

LADE_TEST(Cgroups, QuotaOfVersion1IsThatOfTheCpuController) {
  const machine_file files[] = {{"proc/self/cgroup", "5:memory:/x\n4:cpuacct,cpu:/a\n0::/\n"},
                                {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "100000\n"},
                                {"sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"},
                                {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n"},
                                {"sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"},
                                {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "1250000\n"},
                                {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "250000\n"},
                                {NULL, NULL}};
  LADE_EXPECT_EQ_UINT(quota_of(files), 5);
}

/* A process in a group below its container's had the container's limits: the mount shows that group at its top, and the path in
 * /proc/self/cgroup, which begins at the machine's, was looked for below it. */
LADE_TEST(Cgroups, MountsShowPartsOfTheHierarchy) {
  static const char other[] = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n";
  static const struct {
    const char *mounts, *group, *file, *text;
    unsigned quota;
  } cases[] = {
      {"30 22 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n", "0::/docker/abc/sub\n",
       "sys/fs/cgroup/sub/cpu.max", "200000 100000\n", 2},
      {"30 22 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n", "0::/docker/abc\n", "sys/fs/cgroup/cpu.max",
       "200000 100000\n", 2},
      /* a name that begins as the root does is not below it */
      {"30 22 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n", "0::/docker/abcd\n",
       "sys/fs/cgroup/d/cpu.max", "200000 100000\n", UINT_MAX},
      /* what shows more of the groups above counts */
      {"30 22 0:26 /docker/abc /sys/fs/cgroup ro shared:1 - cgroup2 cgroup2 rw\n"
       "31 22 0:26 / /host/sys/fs/cgroup ro shared:1 master:2 - cgroup2 cgroup2 rw\n",
       "0::/docker/abc\n", "host/sys/fs/cgroup/docker/cpu.max", "300000 100000\n", 3},
      /* version 2 beside version 1, elsewhere */
      {"30 22 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "0::/a\n", "sys/fs/cgroup/unified/a/cpu.max",
       "400000 100000\n", 4},
      /* blanks of names are written in octal */
      {"30 22 0:26 /my\\040pod /sys/fs/c\\134group rw - cgroup2 none rw\n", "0::/my pod/sub\n",
       "sys/fs/c\\group/sub/cpu.max", "500000 100000\n", 5},
      {"not a line\n\n1 2 3\n30 22 0:26 /x - cgroup2\n", "0::/a\n", "sys/fs/cgroup/a/cpu.max", "600000 100000\n", 6},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char mounts[1024];
    snprintf(mounts, sizeof mounts, "%s%s", other, cases[i].mounts);
    const machine_file files[] = {{"proc/self/mountinfo", mounts},
                                  {"proc/self/cgroup", cases[i].group},
                                  {cases[i].file, cases[i].text},
                                  {NULL, NULL}};
    LADE_EXPECT_EQ_UINT(quota_of(files), cases[i].quota);
  }
}

LADE_TEST(Cgroups, MountsOfVersion1AreToldByTheirControllers) {
  const machine_file files[] = {
      {"proc/self/mountinfo", "30 22 0:26 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
                              "31 22 0:27 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
                              "32 22 0:28 /docker/abc /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"},
      {"proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc/sub\n3:cpuset:/docker/abc\n"},
      {"sys/fs/cgroup/cpu,cpuacct/sub/cpu.cfs_quota_us", "300000\n"},
      {"sys/fs/cgroup/cpu,cpuacct/sub/cpu.cfs_period_us", "100000\n"},
      {"sys/fs/cgroup/memory/sub/cpu.cfs_quota_us", "100000\n"},
      {"sys/fs/cgroup/memory/sub/cpu.cfs_period_us", "100000\n"},
      {NULL, NULL}};
  LADE_EXPECT_EQ_UINT(quota_of(files), 3);
}

LADE_TEST(Cgroups, MalformedQuotasLimitNothing) {
  static const char *const texts[] = {"",           "\n",         "max\n",       "100000\n",
                                      "0 100000\n", "100000 0\n", "-5 100000\n", "x y\n"};
  for (int i = 0; i < 8; i++) {
    const machine_file files[] = {{"proc/self/cgroup", "nothing\n0::/job\n"},
                                  {"sys/fs/cgroup/job/cpu.max", texts[i]},
                                  {"sys/fs/cgroup/job/cpu.cfs_quota_us", "100000\n"},
                                  {NULL, NULL}};
    LADE_EXPECT_EQ_UINT(quota_of(files), UINT_MAX);
  }
}

/* The affinity mask alone was obeyed: a container of one processor on a machine of many got sixteen threads. */
LADE_TEST(Cgroups, ProcessorsObeyMaskAndQuota) {
  support_temp_dir root;
  cpu_set_t before, one;
  LADE_ASSERT_EQ_INT(sched_getaffinity(0, sizeof before, &before), 0);
  LADE_ASSERT(support_temp_dir_create(&root));
  support_temp_dir_write(&root, "proc/self/cgroup", "0::/job\n");
  LADE_EXPECT_EQ_UINT(ladei_processors(root.path, 1), (unsigned)CPU_COUNT(&before));
  support_temp_dir_write(&root, "sys/fs/cgroup/job/cpu.max", "100000 100000\n");
  LADE_EXPECT_EQ_UINT(ladei_processors(root.path, 1), 1);
  support_temp_dir_write(&root, "sys/fs/cgroup/job/cpu.max", "max 100000\n");
  size_t first = 0;
  while (!CPU_ISSET(first, &before)) first++;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  LADE_ASSERT_EQ_INT(sched_setaffinity(0, sizeof one, &one), 0);
  LADE_EXPECT_EQ_UINT(ladei_processors(root.path, 1), 1);
  LADE_ASSERT_EQ_INT(sched_setaffinity(0, sizeof before, &before), 0);
  support_temp_dir_remove(&root);
}

/* The mask of a rank that its launcher had bound to a part of the machine was divided by the ranks once more. */
LADE_TEST(Cgroups, ProcessesShareTheGroupAndNotTheMask) {
  static const struct {
    const char *line, *file, *list;
    unsigned processes, most; /* as far as the mask goes */
  } cases[] = {{"0::/job\n", "sys/fs/cgroup/job/cpuset.cpus.effective", "0-1023\n", 8, 128},
               {"0::/job\n", "sys/fs/cgroup/job/cpuset.cpus.effective", "0-511,600,700-701\n", 257, 2},
               {"0::/job/rank\n", "sys/fs/cgroup/job/cpuset.cpus.effective", "3\n", 1, 1},
               {"0::/job\n", "sys/fs/cgroup/job/cpuset.cpus.effective", "0-3", 4, 1},
               {"0::/job\n", "sys/fs/cgroup/job/cpuset.cpus.effective", "0-3", 100, 1},
               {"3:cpuset:/job\n", "sys/fs/cgroup/cpuset/job/cpuset.effective_cpus", "0-1023\n", 0, 1024},
               {"3:cpuset:/job\n", "sys/fs/cgroup/cpuset/job/cpuset.effective_cpus", "0-7\n", 8, 1},
               {"0::/job\n", "sys/fs/cgroup/job/cpu.max", "800000 100000\n", 8, 1}};
  cpu_set_t mask;
  LADE_ASSERT_EQ_INT(sched_getaffinity(0, sizeof mask, &mask), 0);
  unsigned own = (unsigned)CPU_COUNT(&mask);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    support_temp_dir root;
    LADE_ASSERT(support_temp_dir_create(&root));
    support_temp_dir_write(&root, "proc/self/cgroup", cases[i].line);
    support_temp_dir_write(&root, cases[i].file, cases[i].list);
    LADE_EXPECT_EQ_UINT(ladei_processors(root.path, cases[i].processes), cases[i].most < own ? cases[i].most : own);
    support_temp_dir_remove(&root);
  }
}

/* Then all processors of the machine are the group's. */
LADE_TEST(Cgroups, MalformedSetsLimitNothing) {
  static const char *const lists[] = {"", "\n", "-1\n", "x\n", "0,\n", "3-1\n", "0-\n", "0 1\n", "0-99999999999\n"};
  support_temp_dir root;
  LADE_ASSERT(support_temp_dir_create(&root));
  support_temp_dir_write(&root, "proc/self/cgroup", "0::/job\n");
  unsigned without = ladei_processors(root.path, 1);
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
    support_temp_dir_write(&root, "sys/fs/cgroup/job/cpuset.cpus.effective", lists[i]);
    LADE_EXPECT_EQ_UINT(ladei_processors(root.path, 1), without);
  }
  support_temp_dir_remove(&root);
}
