/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Programs that lock all of their memory: the kernel gives none of it back, so records are not zero by
 * themselves.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "host/caches/pointer_lookup.h"
#include "host/source/topology.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"

enum { NOT_ALLOWED = 77 };

static lade_pinned_pool *pool_open(lade_runtime *runtime, uint32_t flags) {
  lade_pinned_options options;
  lade_pinned_pool *pool = NULL;
  lade_pinned_options_init(&options);
  options.segment_bytes = LADEI_MIB;
  options.max_bytes = 4 * LADEI_MIB; /* RLIMIT_MEMLOCK is mostly 8 MiB */
  options.flags = flags;
  LADE_EXPECT_OK(lade_pinned_pool_create(runtime, &options, &pool));
  return pool;
}

/* Each address leads to its block. */
static void inner_addresses_check(lade_pinned_pool *pool, char *block, size_t bytes) {
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  for (size_t offset = 0; offset < bytes; offset += 4096) {
    LADE_ASSERT_OK(lade_pinned_find(pool, block + offset, &info));
    LADE_ASSERT_EQ_PTR(info.base, block);
  }
}

/* Segments come and go, of many sizes and cut in many ways. */
static void churn(lade_pinned_pool *pool) {
  enum { ROUNDS = 60, BLOCKS = 24 };
  void *blocks[BLOCKS];
  support_random random;
  support_random_start(&random, 5);
  for (int round = 0; round < ROUNDS && !lade_test_has_failed(); round++) {
    for (int i = 0; i < BLOCKS; i++) {
      size_t bytes = support_random_size(&random, 160 * LADEI_KIB);
      LADE_ASSERT_OK(lade_pinned_alloc(pool, bytes, &blocks[i]));
      memset(blocks[i], round, bytes);
      inner_addresses_check(pool, blocks[i], bytes);
    }
    LADE_EXPECT_OK(ladei_pinned_pool_check(pool));
    for (int i = BLOCKS; i-- > 0;) LADE_EXPECT_OK(lade_pinned_free(pool, blocks[i]));
    LADE_EXPECT_OK(lade_pinned_empty_cache(pool));
    LADE_EXPECT_OK(ladei_pinned_pool_check(pool));
  }
}

/* In a child, as locking cannot be taken back from a thread's stack. */
static int child_main(uint32_t flags) {
  lade_runtime *runtime = support_runtime_open("sim");
  ladei_topology
      *plugins; /* of hwloc, where they are installed: libraries of megabytes, loaded until the last topology goes */
  if (runtime == NULL || ladei_topology_load(LADEI_TOPOLOGY_SYSTEM, NULL, false, &plugins) != LADE_OK) return 1;
  if (mlockall(MCL_FUTURE) != 0) return NOT_ALLOWED; /* but for the software device, which is large */
  lade_pinned_pool *pool = pool_open(runtime, flags);
  if (pool != NULL) churn(pool);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  support_runtime_close(runtime);
  ladei_topology_destroy(plugins);
  return lade_test_has_failed() ? 1 : 0;
}

static void in_child(uint32_t flags) {
  int status = -1;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    int code = child_main(flags);
    fflush(NULL);
    _exit(code);
  }
  LADE_ASSERT_EQ_INT(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_ALLOWED) LADE_SKIP("RLIMIT_MEMLOCK forbids mlockall here");
  LADE_EXPECT_EQ_INT(status, 0);
}

/* The bug: madvise(MADV_DONTNEED) fails on locked pages, and the records of a segment that was given back were believed
 * by the next one. */
LADE_TEST(Mlockall, ReferencePolicy) { in_child(LADE_PINNED_REFERENCE); }

LADE_TEST(Mlockall, Pool) { in_child(0); }
