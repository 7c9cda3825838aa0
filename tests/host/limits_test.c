/* SPDX-License-Identifier: Apache-2.0 */
/* The default cap, read from files as a kernel writes them. */
#include "host/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/size.h"
#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"

/* Writes root/path, making folders on the way. */
static void file_write(const support_temp_dir *root, const char *path, const char *text) {
  char *full = support_temp_dir_path(root, path);
  for (char *slash = full + strlen(root->path) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
    *slash = '\0';
    mkdir(full, 0700);
    *slash = '/';
  }
  FILE *file = fopen(full, "w");
  LADE_EXPECT(file != NULL);
  if (file != NULL) {
    fputs(text, file);
    fclose(file);
  }
  free(full);
}

LADE_TEST(Limits, NothingReadableIsNoLimit) {
  ladei_limits limits;
  ladei_limits_read("/nonexistent", &limits);
  LADE_EXPECT_EQ_UINT(limits.available_bytes, LADEI_NO_LIMIT);
  LADE_EXPECT_EQ_UINT(limits.cgroup_headroom_bytes, LADEI_NO_LIMIT);
  LADE_EXPECT_EQ_UINT(ladei_limits_default_cap(&limits), LADEI_NO_LIMIT);
}

LADE_TEST(Limits, DefaultIsHalfOfWhatIsAvailable) {
  support_temp_dir root;
  ladei_limits limits;
  LADE_ASSERT(support_temp_dir_create(&root));
  file_write(&root, "proc/meminfo", "MemTotal:  9999 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n");
  file_write(&root, "proc/self/cgroup", "1:cpu:/\n0::/\n");
  ladei_limits_read(root.path, &limits);
  LADE_EXPECT_EQ_UINT(limits.available_bytes, 8 * LADEI_GIB);
  LADE_EXPECT_EQ_UINT(ladei_limits_default_cap(&limits), 4 * LADEI_GIB);
  support_temp_dir_remove(&root);
}

LADE_TEST(Limits, GroupOfVersion2CountsCacheAsFreeAndSharedMemoryAsUsed) {
  support_temp_dir root;
  ladei_limits limits;
  LADE_ASSERT(support_temp_dir_create(&root));
  file_write(&root, "proc/self/cgroup", "0::/job/step\n");
  file_write(&root, "sys/fs/cgroup/job/step/memory.max", "max\n");
  file_write(&root, "sys/fs/cgroup/job/memory.max", "1000000\n");
  file_write(&root, "sys/fs/cgroup/job/memory.current", "700000\n");
  file_write(&root, "sys/fs/cgroup/job/memory.stat", "anon 100\nfile_mapped 5\nfile 250000\nshmem 50000\n");
  ladei_limits_read(root.path, &limits);
  LADE_EXPECT_EQ_UINT(limits.cgroup_headroom_bytes, 1000000 - (700000 - (250000 - 50000)));
  support_temp_dir_remove(&root);
}

LADE_TEST(Limits, SmallestGroupOnTheWayUpDecides) {
  support_temp_dir root;
  ladei_limits limits;
  LADE_ASSERT(support_temp_dir_create(&root));
  file_write(&root, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a/b\n");
  file_write(&root, "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  file_write(&root, "sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "300\n");
  file_write(&root, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n");
  file_write(&root, "sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000\n");
  file_write(&root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "6000\n");
  file_write(&root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "7000\n");
  file_write(&root, "sys/fs/cgroup/memory/memory.stat", "total_cache 3000\ntotal_shmem 0\n");
  ladei_limits_read(root.path, &limits);
  LADE_EXPECT_EQ_UINT(limits.cgroup_headroom_bytes, 2000);
  file_write(&root, "sys/fs/cgroup/memory/memory.stat", "total_cache 0\n");
  ladei_limits_read(root.path, &limits);
  LADE_EXPECT_EQ_UINT(limits.cgroup_headroom_bytes, 0);
  support_temp_dir_remove(&root);
}

LADE_TEST(Limits, GroupOfVersion1WithoutLimitLimitsNothing) {
  support_temp_dir root;
  ladei_limits limits;
  LADE_ASSERT(support_temp_dir_create(&root));
  file_write(&root, "proc/self/cgroup", "4:memory:/\n");
  file_write(&root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  file_write(&root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "300\n");
  ladei_limits_read(root.path, &limits);
  LADE_EXPECT_EQ_UINT(limits.cgroup_headroom_bytes, LADEI_NO_LIMIT);
  support_temp_dir_remove(&root);
}

LADE_TEST(Limits, MalformedFilesLimitNothing) {
  support_temp_dir root;
  ladei_limits limits;
  LADE_ASSERT(support_temp_dir_create(&root));
  file_write(&root, "proc/meminfo", "MemAvailable: many\n");
  file_write(&root, "proc/self/cgroup", "no colons\n3:memory\n0::/x\n");
  file_write(&root, "sys/fs/cgroup/x/memory.max", "\n");
  file_write(&root, "sys/fs/cgroup/x/memory.current", "");
  ladei_limits_read(root.path, &limits);
  LADE_EXPECT_EQ_UINT(limits.available_bytes, LADEI_NO_LIMIT);
  LADE_EXPECT_EQ_UINT(limits.cgroup_headroom_bytes, LADEI_NO_LIMIT);
  support_temp_dir_remove(&root);
}

LADE_TEST(Limits, LockedMemoryIsTheSoftLimit) {
  struct rlimit old;
  ladei_limits limits;
  LADE_ASSERT_EQ_INT(getrlimit(RLIMIT_MEMLOCK, &old), 0);
  struct rlimit small = {64 * LADEI_KIB, old.rlim_max};
  LADE_ASSERT_EQ_INT(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  ladei_limits_read("/nonexistent", &limits);
  LADE_EXPECT_EQ_UINT(limits.memlock_bytes, 64 * LADEI_KIB);
  LADE_EXPECT_EQ_INT(setrlimit(RLIMIT_MEMLOCK, &old), 0);
}

LADE_TEST(Limits, ThisMachineHasMemory) {
  ladei_limits limits;
  ladei_limits_read("", &limits);
  LADE_EXPECT_GT_UINT(ladei_limits_default_cap(&limits), 0);
  LADE_EXPECT_LT_UINT(limits.available_bytes, LADEI_NO_LIMIT);
}
