/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread ends while the pool that it used is destroyed: it has left the pool's list, and still holds what it kept ready.
 * Destroy waits for it, and what it brings then goes back to the system, too.
 */
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "lade/soft.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/scheduler.h"
#include "tests/support/runtimes.h"

static struct {
  lade_pinned_pool *pool;
  size_t bytes;
  sem_t left;
} all;

static _Thread_local bool ends;

/* Long enough for destroy to come to where it waits; where it is slower, the test proves less and does not fail. */
static void stay(const char *what) {
  const struct timespec some = {.tv_nsec = 20 * 1000 * 1000};
  if (!ends || strcmp(what, "left") != 0) return;
  sem_post(&all.left);
  nanosleep(&some, NULL);
}

static void *use_and_end(void *user) {
  void *block = NULL;
  (void)user;
  LADE_EXPECT_OK(lade_pinned_alloc(all.pool, all.bytes, &block));
  LADE_EXPECT_OK(lade_pinned_free(all.pool, block));
  ends = true;
  return NULL;
}

/* The bug: small blocks came behind the last look at runs without a block in use; their segment stayed pinned for good, and destroy
 * said LADE_OK. */
LADE_TEST(PinnedExit, WhatAnEndingThreadBringsIsGivenBackByDestroy) {
  static const size_t sizes[] = {512, 4 * LADEI_KIB, 64 * LADEI_KIB, 2 * LADEI_MIB};
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  lade_runtime *runtime = support_runtime_open("cpu");
  scheduler_watch(stay);
  for (size_t i = 0; runtime != NULL && i < sizeof sizes / sizeof sizes[0]; i++) {
    lade_pinned_options options;
    lade_soft_report report;
    pthread_t thread;
    lade_pinned_options_init(&options);
    options.max_bytes = 64 * LADEI_MIB;
    options.segment_bytes = 4 * LADEI_MIB;
    lade_test_context("blocks of %zu bytes", sizes[i]);
    all.bytes = sizes[i];
    sem_init(&all.left, 0, 0);
    LADE_EXPECT_OK(lade_pinned_pool_create(runtime, &options, &all.pool));
    LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, use_and_end, NULL), 0);
    while (sem_wait(&all.left) != 0) {
    }
    LADE_EXPECT_OK(lade_pinned_pool_destroy(all.pool, true));
    pthread_join(thread, NULL);
    sem_destroy(&all.left);
    lade_soft_report_init(&report);
    LADE_EXPECT_OK(lade_soft_report_get(runtime, &report));
    LADE_EXPECT_EQ_UINT(report.pinned_ranges, 0);
  }
  scheduler_watch(NULL);
  lade_test_context("%s", "");
  if (runtime != NULL) support_runtime_close(runtime);
}
