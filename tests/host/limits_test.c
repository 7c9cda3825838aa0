/* SPDX-License-Identifier: Apache-2.0 */
/* The default cap, read from files as a kernel writes them. */
#include "host/budget/limits.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/size.h"
#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"

typedef struct machine_file {
  const char *path, *text;
} machine_file;

/* The limits of a machine with these files, up to the one without a path. */
static ladei_pinned_limits limits_of(const machine_file *files) {
  support_temp_dir root;
  ladei_pinned_limits limits;
  memset(&limits, 0, sizeof limits);
  if (!support_temp_dir_create(&root)) return limits;
  for (; files->path != NULL; files++) support_temp_dir_write(&root, files->path, files->text);
  ladei_pinned_limits_read(root.path, &limits);
  support_temp_dir_remove(&root);
  return limits;
}

LADE_TEST(Limits, NothingReadableIsNoLimit) {
  ladei_pinned_limits limits;
  ladei_pinned_limits_read("/nonexistent", &limits);
  LADE_EXPECT_EQ_UINT(limits.available_bytes, LADEI_PINNED_NO_LIMIT);
  LADE_EXPECT_EQ_UINT(limits.cgroup_headroom_bytes, LADEI_PINNED_NO_LIMIT);
  LADE_EXPECT_EQ_UINT(ladei_pinned_limits_default_cap(&limits), LADEI_PINNED_NO_LIMIT);
}

LADE_TEST(Limits, DefaultIsHalfOfWhatIsAvailable) {
  const machine_file files[] = {
      {"proc/meminfo", "MemTotal:  9999 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"},
      {"proc/self/cgroup", "1:cpu:/\n0::/\n"},
      {NULL, NULL},
  };
  ladei_pinned_limits limits = limits_of(files);
  LADE_EXPECT_EQ_UINT(limits.available_bytes, 8 * LADEI_GIB);
  LADE_EXPECT_EQ_UINT(ladei_pinned_limits_default_cap(&limits), 4 * LADEI_GIB);
}

LADE_TEST(Limits, GroupOfVersion2CountsCacheAsFreeAndSharedMemoryAsUsed) {
  const machine_file files[] = {
      {"proc/self/cgroup", "0::/job/step\n"},
      {"sys/fs/cgroup/job/step/memory.max", "max\n"},
      {"sys/fs/cgroup/job/memory.max", "1000000\n"},
      {"sys/fs/cgroup/job/memory.current", "700000\n"},
      {"sys/fs/cgroup/job/memory.stat", "anon 100\nfile_mapped 5\nfile 250000\nshmem 50000\n"},
      {NULL, NULL},
  };
  ladei_pinned_limits limits = limits_of(files);
  LADE_EXPECT_EQ_UINT(limits.cgroup_headroom_bytes, 1000000 - (700000 - (250000 - 50000)));
}

/* All of the headroom was the cap: the next page fault of the program ended in the kernel's killer. */
LADE_TEST(Limits, DefaultLeavesAnEighthOfTheGroupsHeadroom) {
  const machine_file files[] = {
      {"proc/meminfo", "MemAvailable:    8388608 kB\n"},
      {"proc/self/cgroup", "0::/job\n"},
      {"sys/fs/cgroup/job/memory.max", "1000000\n"},
      {"sys/fs/cgroup/job/memory.current", "200000\n"},
      {NULL, NULL},
  };
  ladei_pinned_limits limits = limits_of(files);
  LADE_EXPECT_EQ_UINT(limits.cgroup_headroom_bytes, 800000);
  LADE_EXPECT_EQ_UINT(ladei_pinned_limits_default_cap(&limits), 700000);
}

/* A process in a group below its container's was told what its container had left, and was killed. */
LADE_TEST(Limits, GroupBelowTheContainersIsFound) {
  const machine_file files[] = {
      {"proc/self/mountinfo", "30 22 0:26 /docker/abc /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"},
      {"proc/self/cgroup", "0::/docker/abc/sub\n"},
      {"sys/fs/cgroup/memory.max", "8000000\n"},
      {"sys/fs/cgroup/memory.current", "1000000\n"},
      {"sys/fs/cgroup/sub/memory.max", "2000000\n"},
      {"sys/fs/cgroup/sub/memory.current", "1000000\n"},
      {NULL, NULL},
  };
  LADE_EXPECT_EQ_UINT(limits_of(files).cgroup_headroom_bytes, 1000000);
}

/* Above memory.high a group is slowed down, for good where its memory is pinned. */
LADE_TEST(Limits, HighOfAGroupOfVersion2IsALimitToo) {
  static const char *const maximums[] = {"max\n", "1000000\n", "400000\n"};
  static const uint64_t headrooms[] = {300000, 300000, 200000};
  for (int i = 0; i < 3; i++) {
    const machine_file files[] = {
        {"proc/self/cgroup", "0::/job/step\n"},           {"sys/fs/cgroup/job/memory.max", maximums[i]},
        {"sys/fs/cgroup/job/memory.high", "500000\n"},    {"sys/fs/cgroup/job/memory.current", "200000\n"},
        {"sys/fs/cgroup/job/step/memory.max", "max\n"},   {"sys/fs/cgroup/job/step/memory.high", "max\n"},
        {"sys/fs/cgroup/job/step/memory.current", "1\n"}, {NULL, NULL},
    };
    LADE_EXPECT_EQ_UINT(limits_of(files).cgroup_headroom_bytes, headrooms[i]);
  }
}

LADE_TEST(Limits, SmallestGroupOnTheWayUpDecides) {
  const char *const caches[] = {"total_cache 3000\ntotal_shmem 0\n", "total_cache 0\n"};
  const uint64_t headrooms[] = {2000, 0};
  for (int i = 0; i < 2; i++) {
    const machine_file files[] = {
        {"proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a/b\n"},
        {"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"},
        {"sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "300\n"},
        {"sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n"},
        {"sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000\n"},
        {"sys/fs/cgroup/memory/memory.limit_in_bytes", "6000\n"},
        {"sys/fs/cgroup/memory/memory.usage_in_bytes", "7000\n"},
        {"sys/fs/cgroup/memory/memory.stat", caches[i]},
        {NULL, NULL},
    };
    LADE_EXPECT_EQ_UINT(limits_of(files).cgroup_headroom_bytes, headrooms[i]);
  }
}

LADE_TEST(Limits, GroupOfVersion1WithoutLimitLimitsNothing) {
  const machine_file files[] = {
      {"proc/self/cgroup", "4:memory:/\n"},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {"sys/fs/cgroup/memory/memory.usage_in_bytes", "300\n"},
      {NULL, NULL},
  };
  ladei_pinned_limits limits = limits_of(files);
  LADE_EXPECT_EQ_UINT(limits.cgroup_headroom_bytes, LADEI_PINNED_NO_LIMIT);
}

LADE_TEST(Limits, MalformedFilesLimitNothing) {
  const machine_file files[] = {
      {"proc/meminfo", "MemAvailable: many\n"},
      {"proc/self/cgroup", "no colons\n3:memory\n0::/x\n"},
      {"sys/fs/cgroup/x/memory.max", "\n"},
      {"sys/fs/cgroup/x/memory.current", ""},
      {NULL, NULL},
  };
  ladei_pinned_limits limits = limits_of(files);
  LADE_EXPECT_EQ_UINT(limits.available_bytes, LADEI_PINNED_NO_LIMIT);
  LADE_EXPECT_EQ_UINT(limits.cgroup_headroom_bytes, LADEI_PINNED_NO_LIMIT);
}

LADE_TEST(Limits, LockedMemoryIsTheSoftLimit) {
  struct rlimit old;
  ladei_pinned_limits limits;
  LADE_ASSERT_EQ_INT(getrlimit(RLIMIT_MEMLOCK, &old), 0);
  struct rlimit small = {64 * LADEI_KIB, old.rlim_max};
  LADE_ASSERT_EQ_INT(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  ladei_pinned_limits_read("/nonexistent", &limits);
  LADE_EXPECT_EQ_UINT(limits.memlock_bytes, 64 * LADEI_KIB);
  LADE_EXPECT_EQ_INT(setrlimit(RLIMIT_MEMLOCK, &old), 0);
}

LADE_TEST(Limits, ThisMachineHasMemory) {
  ladei_pinned_limits limits;
  ladei_pinned_limits_read("", &limits);
  LADE_EXPECT_GT_UINT(ladei_pinned_limits_default_cap(&limits), 0);
  LADE_EXPECT_LT_UINT(limits.available_bytes, LADEI_PINNED_NO_LIMIT);
}
