/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: A pool in a process that the system holds short: of locked memory, of memory altogether. Each test is
 * a child process of its own, which gives up what it needs to be held short. What the machine does not let it do is
 * told, and skipped.
 */
#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/size.h"
#include "host/api/pool.h"
#include "host/budget/limits.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

enum { CHILD_PASSED = 0, CHILD_FAILED = 1, CHILD_CANNOT = 2 };

/* Runs `body` in a child; what it expects in vain is printed there and fails the test here. */
static int child_run(int (*body)(void)) {
  int status = 0;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    int result = body();
    fflush(NULL);
    _exit(lade_test_has_failed() ? CHILD_FAILED : result);
  }
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status)) return CHILD_FAILED;
  return WEXITSTATUS(status);
}

/* ---- Locked memory ----------------------------------------------------------------------------------------------- */

enum { MEMLOCK_BYTES = 64 * 1024 };

/* False: this process may lock what it likes all the same. */
static bool memlock_hold_short(void) {
  const struct rlimit limit = {MEMLOCK_BYTES, MEMLOCK_BYTES};
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2];
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || syscall(SYS_capget, &header, data) != 0) return false;
  data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  data[CAP_TO_INDEX(CAP_IPC_LOCK)].permitted &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  if (syscall(SYS_capset, &header, data) != 0) return false;
  void *area = mmap(NULL, 4 * MEMLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool held = area != MAP_FAILED && mlock(area, 4 * MEMLOCK_BYTES) != 0;
  munmap(area, 4 * MEMLOCK_BYTES);
  return held;
}

/* The driver pins, and the limit is none of its business: neither is it of the pool's cap. */
static int default_pool_in_child(void) {
  ladei_pinned_limits limits;
  pinned_fixture own;
  if (!memlock_hold_short()) return CHILD_CANNOT;
  ladei_pinned_limits_read("", &limits);
  LADE_EXPECT_EQ_UINT(limits.memlock_bytes, MEMLOCK_BYTES);
  LADE_EXPECT_GT_UINT(ladei_pinned_limits_default_cap(&limits), MEMLOCK_BYTES);
  lade_pinned_options options = pinned_fixture_options();
  if (!pinned_fixture_open(&own, support_interposer_open("cpu", NULL), &options)) return CHILD_FAILED;
  char *block = pinned_fixture_alloc(&own, 8 * LADEI_MIB);
  memset(block, 1, 8 * LADEI_MIB);
  LADE_EXPECT_EQ_INT(pinned_fixture_info(&own, block).source, LADE_PINNED_SOURCE_REGISTER);
  pinned_fixture_use(&own, block, 0);
  pinned_fixture_free(&own, block);
  pinned_fixture_close(&own);
  return CHILD_PASSED;
}

LADE_TEST(PinnedProcessLimits, MemlockOf64KiBDoesNotHinderTheDriver) {
  int result = child_run(default_pool_in_child);
  if (result == CHILD_CANNOT) LADE_SKIP("this machine does not hold locked memory short");
  LADE_EXPECT_EQ_INT(result, CHILD_PASSED);
}

/* A driver that locks pages in the process's name. */
static lade_runtime_ops locking_ops;
static lade_status (*register_below)(void *self, int device, void *pointer, size_t bytes, unsigned flags);

static lade_status locking_register(void *self, int device, void *pointer, size_t bytes, unsigned flags) {
  if (mlock(pointer, bytes) != 0) {
    return ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, errno, "host_register: mlock of %zu bytes: %s", bytes,
                       strerror(errno));
  }
  return register_below(self, device, pointer, bytes, flags); /* unmapped, it is unlocked */
}

static bool open_locking(pinned_fixture *own, uint32_t sources) {
  lade_runtime *runtime = support_runtime_open("sim");
  lade_pinned_options options = pinned_fixture_options();
  options.sources = sources;
  if (runtime == NULL) return false;
  locking_ops = *runtime->ops;
  register_below = locking_ops.host_register;
  locking_ops.host_register = locking_register;
  runtime->ops = &locking_ops;
  return pinned_fixture_open(own, runtime, &options);
}

/* A segment of the usual size is refused; what the limit leaves is pinned page by page, and then refused by name. */
static int locking_driver_in_child(void) {
  pinned_fixture own;
  void *blocks[32] = {NULL};
  int count = 0;
  if (!memlock_hold_short()) return CHILD_CANNOT;
  if (!open_locking(&own, LADE_PINNED_SOURCE_REGISTER)) return CHILD_FAILED;
  for (int round = 0; round < 2; round++) {
    lade_status status = LADE_OK;
    for (count = 0; status == LADE_OK && count < 32; count += status == LADE_OK ? 1 : 0)
      status = lade_pinned_alloc(own.pool, 4096, &blocks[count]);
    LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, status);
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "mlock");
    LADE_EXPECT(count >= 8 && count <= MEMLOCK_BYTES / 4096);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, (uint64_t)count * 4096);
    while (count > 0) pinned_fixture_free(&own, blocks[--count]);
    LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool)); /* gives the locked memory back: the next round finds as much */
  }
  pinned_fixture_close(&own);
  if (!open_locking(&own, LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_PAGEABLE)) return CHILD_FAILED;
  blocks[0] = pinned_fixture_alloc(&own, LADEI_MIB);
  LADE_EXPECT_EQ_INT(pinned_fixture_info(&own, blocks[0]).source, LADE_PINNED_SOURCE_PAGEABLE);
  pinned_fixture_free(&own, blocks[0]);
  pinned_fixture_close(&own);
  return CHILD_PASSED;
}

LADE_TEST(PinnedProcessLimits, MemlockOf64KiBIsANamedErrorWhereItCounts) {
  int result = child_run(locking_driver_in_child);
  if (result == CHILD_CANNOT) LADE_SKIP("this machine does not hold locked memory short");
  LADE_EXPECT_EQ_INT(result, CHILD_PASSED);
}

/* ---- Control group ----------------------------------------------------------------------------------------------- */

#define GROUP_BYTES (256 * LADEI_MIB)

static char group[512]; /* a memory group made for the test; "" where that cannot be */

static bool file_put(const char *folder, const char *name, const char *text) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "we");
  if (file == NULL) return false;
  bool written = fputs(text, file) >= 0;
  return fclose(file) == 0 && written;
}

/* The folder of this process's memory group: of version 1, or where the memory controller is, of version 2. */
static bool group_parent(char *out, size_t out_bytes) {
  char line[400], name[400];
  bool found = false;
  FILE *file = fopen("/proc/self/cgroup", "re");
  while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "%*d:memory:%399s", name) == 1) {
      snprintf(out, out_bytes, "/sys/fs/cgroup/memory%s", name);
      found = true;
    } else if (sscanf(line, "0::%399s", name) == 1) {
      snprintf(out, out_bytes, "/sys/fs/cgroup%s", name);
    }
  }
  if (file != NULL) fclose(file);
  return out[0] != '\0';
}

static bool group_make(void) {
  char parent[450] = "", limit[32];
  if (!group_parent(parent, sizeof parent)) return false;
  snprintf(group, sizeof group, "%s/lade_test_%d", parent, (int)getpid());
  snprintf(limit, sizeof limit, "%llu", (unsigned long long)GROUP_BYTES);
  if (mkdir(group, 0755) != 0) {
    group[0] = '\0';
    return false;
  }
  return file_put(group, "memory.limit_in_bytes", limit) || file_put(group, "memory.max", limit);
}

static int limited_group_in_child(void) {
  ladei_pinned_limits limits;
  lade_pinned_options settings, options;
  pinned_fixture own;
  void *block = NULL;
  if (!file_put(group, "cgroup.procs", "0")) return CHILD_CANNOT;
  ladei_pinned_limits_read("", &limits);
  LADE_EXPECT_LE_UINT(limits.cgroup_headroom_bytes, GROUP_BYTES);
  LADE_EXPECT_GT_UINT(limits.cgroup_headroom_bytes, GROUP_BYTES / 2);
  lade_pinned_options_init(&options);
  options.segment_bytes = PINNED_FIXTURE_SEGMENT_BYTES;
  if (!pinned_fixture_open(&own, support_interposer_open("cpu", NULL), &options)) return CHILD_FAILED;
  lade_pinned_options_init(&settings);
  LADE_EXPECT_OK(lade_pinned_settings_get(own.pool, &settings));
  LADE_EXPECT_LE_UINT(settings.max_bytes, GROUP_BYTES);
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, GROUP_BYTES, &block)); /* not killed for it */
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_register"), 0);
  block = pinned_fixture_alloc(&own, GROUP_BYTES / 4); /* pinned for real */
  ladei_pinned_limits_read("", &limits);
  LADE_EXPECT_LE_UINT(limits.cgroup_headroom_bytes, GROUP_BYTES - GROUP_BYTES / 4);
  pinned_fixture_free(&own, block);
  pinned_fixture_close(&own);
  return CHILD_PASSED;
}

LADE_TEST(PinnedProcessLimits, ControlGroupsLimitIsTheCap) {
  int result = group_make() ? child_run(limited_group_in_child) : CHILD_CANNOT;
  if (group[0] != '\0') LADE_EXPECT_EQ_INT(rmdir(group), 0);
  if (result == CHILD_CANNOT) LADE_SKIP("no control group can be made or entered here");
  LADE_EXPECT_EQ_INT(result, CHILD_PASSED);
}
