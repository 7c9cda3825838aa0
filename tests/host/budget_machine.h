/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine of a test's own, in a folder with /dev/shm and /proc, and pools on it that share the budget of pinned memory.
 *
 *   machine own;
 *   if (!machine_open(&own, "cpu")) return;
 *   lade_pinned_options options = options_of();
 *   lade_pinned_pool *pool = pool_open(&own, &options);
 *   LADE_EXPECT_OK(lade_pinned_free(pool, segments_alloc(pool, 3)));
 *   LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
 *   machine_close(&own);
 */
#ifndef LADE_TESTS_HOST_BUDGET_MACHINE_H
#define LADE_TESTS_HOST_BUDGET_MACHINE_H

#include "base/size.h"
#include "host/api/pool.h"
#include "lade/pinned.h"
#include "tests/support/temp_dir.h"

#define SEGMENT (2 * LADEI_MIB)

typedef struct machine {
  support_temp_dir folder;
  ladei_pinned_hooks hooks;
  lade_runtime *runtime;
} machine;

/* 64 MiB are available, so 32 are the budget: 16 segments. False, with nothing open: the test ends. */
bool machine_open(machine *own, const char *runtime);
void machine_close(machine *own);

/* In the budget also on "sim", with segments of SEGMENT and nothing kept by threads. */
lade_pinned_options options_of(void);
lade_pinned_pool *pool_open(const machine *own, const lade_pinned_options *options);
lade_pinned_stats stats_of(lade_pinned_pool *pool);
/* `count` segments, each one block. */
void *segments_alloc(lade_pinned_pool *pool, uint64_t count);
/* What is written there appears at once, as files of the kernel change. */
void machine_file_replace(const machine *own, const char *name, const char *text);

#endif /* LADE_TESTS_HOST_BUDGET_MACHINE_H */
