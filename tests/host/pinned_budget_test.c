/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: pools that share the budget of pinned memory, on a machine of the test's own: a folder with /dev/shm and /proc. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "host/budget/ledger.h"
#include "host/budget/ledger_survey.h"
#include "host/budget/pressure.h"
#include "tests/host/budget_machine.h"
#include "tests/shim/lade_test.h"
#include "tests/support/heard.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

static const char *const both[] = {"sim", "cpu", NULL};

static void charge_check(lade_pinned_pool *pool) {
  ladei_ledger_state state;
  ladei_ledger_state_get(pool->budget.ledger, &state);
  LADE_EXPECT_EQ_UINT(state.held_bytes, stats_of(pool).reserved_bytes.current);
}

/* By the file. */
static uint64_t held_on(const machine *own, const char *name) {
  char path[LADEI_LEDGER_PATH_BYTES];
  ladei_ledger_survey survey;
  LADE_EXPECT(ladei_ledger_path(own->folder.path, (uint32_t)geteuid(), name, path));
  LADE_EXPECT_OK(ladei_ledger_survey_take(path, false, &ladei_ledger_system_calls, &survey));
  uint64_t sum = survey.answer.held_bytes;
  ladei_ledger_survey_release(&survey);
  return sum;
}

static uint32_t budget_in_force(const char *runtime) {
  machine own;
  lade_pinned_options options, settings;
  if (!machine_open(&own, runtime)) return 77;
  lade_pinned_options_init(&options);
  lade_pinned_options_init(&settings);
  lade_pinned_pool *pool = pool_open(&own, &options);
  LADE_EXPECT_OK(lade_pinned_settings_get(pool, &settings));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  machine_close(&own);
  return settings.budget;
}

LADE_TEST(PinnedBudget, IsOnByDefaultButForVirtualTime) {
  LADE_EXPECT_EQ_UINT(budget_in_force("cpu"), LADE_PINNED_BUDGET_ON);
  LADE_EXPECT_EQ_UINT(budget_in_force("sim"), LADE_PINNED_BUDGET_OFF);
}

/* Three pools in two processes pinned one and a half times what the machine had. */
LADE_TEST_P(PinnedBudget, IsOneForAllPools, both, runtime) {
  machine own;
  void *block = NULL;
  if (!machine_open(&own, runtime)) return;
  lade_pinned_options options = options_of();
  lade_pinned_pool *a = pool_open(&own, &options), *b = pool_open(&own, &options);
  void *first = segments_alloc(a, 10);
  void *second = segments_alloc(b, 6);
  LADE_EXPECT_EQ_UINT(held_on(&own, NULL), 16 * SEGMENT);
  LADE_EXPECT_EQ_INT(lade_pinned_alloc(b, SEGMENT, &block), LADE_ERR_LIMIT);
  LADE_EXPECT(strstr(lade_last_error()->text, "budget of all pools: 33554432 of 33554432 are held by 2 pools") != NULL);
  LADE_EXPECT_EQ_UINT(stats_of(b).budget_bytes, 16 * SEGMENT);
  LADE_EXPECT_EQ_UINT(stats_of(b).budget_held_bytes, 16 * SEGMENT);
  LADE_EXPECT_GE_UINT(stats_of(b).budget_refusals, 1);
  LADE_EXPECT_EQ_UINT(stats_of(b).budget_faults, 0);
  charge_check(b);
  LADE_EXPECT_OK(lade_pinned_free(a, first));
  LADE_EXPECT_OK(lade_pinned_process_events(a)); /* gives back what b asked for */
  LADE_EXPECT_EQ_UINT(stats_of(a).budget_returns, 1);
  block = segments_alloc(b, 1);
  LADE_EXPECT_OK(lade_pinned_free(b, block));
  LADE_EXPECT_OK(lade_pinned_free(b, second));
  LADE_EXPECT_OK(lade_pinned_empty_cache(b));
  LADE_EXPECT_EQ_UINT(held_on(&own, NULL), 0);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(a, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(b, true));
  machine_close(&own);
}

/* Smaller segments where the budget does not leave the usual size, as at the cap. */
LADE_TEST_P(PinnedBudget, WhatIsLeftIsUsed, both, runtime) {
  machine own;
  if (!machine_open(&own, runtime)) return;
  lade_pinned_options options = options_of();
  options.budget_bytes = SEGMENT + 8192;
  lade_pinned_pool *pool = pool_open(&own, &options);
  void *first = segments_alloc(pool, 1), *second = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 4096, &second));
  LADE_EXPECT_EQ_UINT(stats_of(pool).reserved_bytes.current, SEGMENT + 8192);
  charge_check(pool);
  LADE_EXPECT_OK(lade_pinned_free(pool, first));
  LADE_EXPECT_OK(lade_pinned_free(pool, second));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  machine_close(&own);
}

LADE_TEST_P(PinnedBudget, NamesAndPartsAreKept, both, runtime) {
  machine own;
  void *block = NULL;
  lade_pinned_options settings;
  if (!machine_open(&own, runtime)) return;
  lade_pinned_options options = options_of();
  options.budget_name = "train";
  options.budget_bytes = 8 * SEGMENT;
  lade_pinned_pool *a = pool_open(&own, &options);
  options.budget_share = LADE_PINNED_BUDGET_PART;
  options.budget_part_bytes = 3 * SEGMENT;
  lade_pinned_pool *b = pool_open(&own, &options);
  void *second = segments_alloc(b, 1); /* a pool is in the budget from its first segment on */
  LADE_EXPECT_EQ_INT(lade_pinned_alloc(a, 6 * SEGMENT, &block), LADE_ERR_LIMIT);
  void *first = segments_alloc(a, 5);
  LADE_EXPECT_EQ_INT(lade_pinned_alloc(b, 3 * SEGMENT, &block), LADE_ERR_LIMIT);
  LADE_EXPECT(strstr(lade_last_error()->text, "named train") != NULL);
  LADE_EXPECT(strstr(lade_last_error()->text, "by its share") != NULL);
  LADE_EXPECT_EQ_UINT(held_on(&own, "train"), 6 * SEGMENT);
  lade_pinned_options_init(&settings);
  LADE_EXPECT_OK(lade_pinned_settings_get(b, &settings));
  LADE_EXPECT_EQ_STR(settings.budget_name, "train");
  LADE_EXPECT_EQ_UINT(settings.budget_part_bytes, 3 * SEGMENT);
  LADE_EXPECT_OK(lade_pinned_free(a, first));
  LADE_EXPECT_OK(lade_pinned_free(b, second));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(a, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(b, true));
  machine_close(&own);
}

LADE_TEST(PinnedBudget, OptionsThatCannotBeAreNamed) {
  static const struct {
    uint32_t budget, share;
    const char *name;
    uint64_t part;
    const char *field;
  } cases[] = {{3, 0, NULL, 0, "options.budget"},
               {0, 3, NULL, 0, "options.budget_share"},
               {0, 0, "a/b", 0, "options.budget_name is \"a/b\""},
               {0, 0, "", 0, "options.budget_name"},
               {0, LADE_PINNED_BUDGET_PART, NULL, 0, "options.budget_part_bytes is 0"},
               {0, 0, NULL, 5, "options.budget_part_bytes is 5"}};
  machine own;
  if (!machine_open(&own, "sim")) return;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    lade_pinned_pool *pool = NULL;
    lade_pinned_options options = options_of();
    options.budget = cases[i].budget;
    options.budget_share = cases[i].share;
    options.budget_name = cases[i].name;
    options.budget_part_bytes = cases[i].part;
    LADE_EXPECT_EQ_INT(ladei_pinned_pool_create(own.runtime, &options, &own.hooks, &pool), LADE_ERR_INVALID_ARGUMENT);
    if (strstr(lade_last_error()->text, cases[i].field) == NULL)
      LADE_EXPECT_EQ_STR(lade_last_error()->text, cases[i].field);
  }
  machine_close(&own);
}

/* ---- Where the ledger cannot be asked ---------------------------------------------------------------------------- */

LADE_TEST_P(PinnedBudget, PoolGoesByItsOwnCapWhereTheLedgerIsBad, both, runtime) {
  machine own;
  support_heard heard;
  char name[64];
  if (!machine_open(&own, runtime)) return;
  snprintf(name, sizeof name, "dev/shm/lade-budget-%u", (unsigned)geteuid());
  support_temp_dir_write(&own.folder, name, "not a ledger");
  char *path = support_temp_dir_path(&own.folder, name);
  LADE_EXPECT_EQ_INT(chmod(path, 0600), 0);
  lade_pinned_options options = options_of();
  lade_pinned_pool *pool = pool_open(&own, &options);
  support_heard_begin(&heard, LADE_LOG_WARN);
  void *first = segments_alloc(pool, 10), *second = segments_alloc(pool, 6), *third = NULL;
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_WARN, ": goes by its own cap of "), 1);
  LADE_EXPECT_EQ_UINT(stats_of(pool).budget_faults, 2);
  LADE_EXPECT_EQ_INT(lade_pinned_alloc(pool, SEGMENT, &third), LADE_ERR_LIMIT); /* that cap */
  LADE_EXPECT_EQ_INT(unlink(path), 0);
  LADE_EXPECT_OK(lade_pinned_process_events(pool)); /* tells the new one what is held */
  LADE_EXPECT_EQ_UINT(held_on(&own, NULL), 16 * SEGMENT);
  /* Damaged while it is in use: what is given back cannot be told. */
  support_file_write(path, "damaged", 7);
  support_heard_begin(&heard, LADE_LOG_WARN);
  LADE_EXPECT_OK(lade_pinned_free(pool, first));
  LADE_EXPECT_OK(lade_pinned_empty_cache(pool));
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_WARN, ": what was given back is told to its budget later: "),
                     1);
  LADE_EXPECT_OK(lade_pinned_free(pool, second));
  charge_check(pool);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  free(path);
  machine_close(&own);
}

/* Without a ledger each of four ranks would take half of the machine. */
LADE_TEST_P(PinnedBudget, LocalRanksDivideTheCapWhereThereIsNoLedger, both, runtime) {
  machine own;
  void *block = NULL;
  lade_pinned_options settings;
  if (!machine_open(&own, runtime)) return;
  lade_pinned_options options = options_of();
  options.local_ranks = 4;
  own.hooks.root = own.folder.path;
  lade_pinned_pool *pool = pool_open(&own, &options);
  void *first = segments_alloc(pool, 5); /* the budget is all ranks' */
  LADE_EXPECT_OK(lade_pinned_free(pool, first));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  char *shm = support_temp_dir_path(&own.folder, "dev/shm"), *gone = support_temp_dir_path(&own.folder, "dev/gone");
  LADE_EXPECT_EQ_INT(rename(shm, gone), 0);
  pool = pool_open(&own, &options);
  LADE_EXPECT_EQ_INT(lade_pinned_alloc(pool, 5 * SEGMENT, &block), LADE_ERR_LIMIT);
  LADE_EXPECT(strstr(lade_last_error()->text, "cannot be asked: ") != NULL);
  LADE_EXPECT(strstr(lade_last_error()->text, "No such file") != NULL);
  charge_check(pool);
  first = segments_alloc(pool, 4);
  LADE_EXPECT_OK(lade_pinned_free(pool, first));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  options.budget = LADE_PINNED_BUDGET_OFF;
  pool = pool_open(&own, &options);
  lade_pinned_options_init(&settings);
  LADE_EXPECT_OK(lade_pinned_settings_get(pool, &settings));
  LADE_EXPECT_EQ_UINT(settings.max_bytes, 4 * SEGMENT);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  free(shm);
  free(gone);
  machine_close(&own);
}

/* I3 of segments.c: what the driver refuses is not charged, and what it does not take back is. */
LADE_TEST_P(PinnedBudget, ChargesAreWhatIsHeldAfterAnyFailureOfTheDriver, both, runtime) {
  machine own;
  void *block = NULL;
  if (!machine_open(&own, runtime)) return;
  lade_pinned_options options = options_of();
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  lade_pinned_pool *pool = pool_open(&own, &options);
  support_fail(own.runtime, "host_register", 1, 10);
  LADE_EXPECT_EQ_INT(lade_pinned_alloc(pool, SEGMENT, &block), LADE_ERR_OUT_OF_PINNED_MEMORY);
  LADE_EXPECT_EQ_UINT(held_on(&own, NULL), 0);
  support_fail(own.runtime, "host_register", 3, 10);
  LADE_EXPECT_EQ_INT(lade_pinned_reserve(pool, 5 * SEGMENT, 0), LADE_ERR_OUT_OF_PINNED_MEMORY);
  LADE_EXPECT_EQ_UINT(held_on(&own, NULL), 0);
  support_fail(own.runtime, "host_register", 1, 0);
  block = segments_alloc(pool, 2);
  LADE_EXPECT_OK(lade_pinned_free(pool, block));
  support_fail(own.runtime, "host_unregister", 1, 1);
  LADE_EXPECT(lade_pinned_empty_cache(pool) != LADE_OK);
  LADE_EXPECT_EQ_UINT(held_on(&own, NULL), 2 * SEGMENT);
  LADE_EXPECT_OK(lade_pinned_empty_cache(pool));
  LADE_EXPECT_EQ_UINT(held_on(&own, NULL), 0);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  machine_close(&own);
}

/* ---- Waiting, and what background threads do --------------------------------------------------------------------- */

LADE_TEST(PinnedBudget, WaitingPoolGetsWhatTheOthersDoNotUse) {
  machine own;
  if (!machine_open(&own, "cpu")) return;
  lade_pinned_options options = options_of();
  options.flags = LADE_PINNED_BACKGROUND;
  lade_pinned_pool *a = pool_open(&own, &options);
  options.flags = 0;
  options.wait_ms = 60000;
  lade_pinned_pool *b = pool_open(&own, &options);
  LADE_EXPECT_OK(lade_pinned_free(a, segments_alloc(a, 16))); /* cached */
  void *block = segments_alloc(b, 4);                         /* a's background thread is asked */
  LADE_EXPECT_OK(lade_pinned_free(b, block));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(a, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(b, true));
  machine_close(&own);
}

LADE_TEST(PinnedBudget, WaitEndsWhereNobodyGivesBack) {
  machine own;
  void *block = NULL;
  if (!machine_open(&own, "cpu")) return;
  lade_pinned_options options = options_of();
  lade_pinned_pool *a = pool_open(&own, &options);
  options.wait_ms = 20;
  lade_pinned_pool *b = pool_open(&own, &options);
  void *held = segments_alloc(a, 16);
  LADE_EXPECT_EQ_INT(lade_pinned_alloc(b, SEGMENT, &block), LADE_ERR_LIMIT);
  LADE_EXPECT_EQ_UINT(stats_of(b).limit_waits, 1);
  LADE_EXPECT(strstr(lade_last_error()->text, "budget of all pools") != NULL);
  LADE_EXPECT_OK(lade_pinned_free(a, held));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(a, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(b, true));
  machine_close(&own);
}

/* With the files that are here, if there are any. */
LADE_TEST(PinnedBudget, PressureOfThisMachineIsLookedAtTenTimesASecond) {
  ladei_pressure pressure;
  ladei_pressure_init(&pressure, "");
  LADE_EXPECT(!ladei_pressure_look(&pressure, 1)); /* nothing to compare it with */
  uint64_t stalled_us = pressure.stalled_us;
  LADE_EXPECT(!ladei_pressure_look(&pressure, 1 + 99999999));
  LADE_EXPECT_EQ_UINT(pressure.looked_ns, 1);
  (void)ladei_pressure_look(&pressure, 1 + 100000000);
  LADE_EXPECT_EQ_UINT(pressure.looked_ns, 1 + 100000000);
  LADE_EXPECT_GE_UINT(pressure.stalled_us, stalled_us); /* it only grows */
}

/* Whatever the kernel says: each file alone makes the pool give back what it does not use. */
LADE_TEST(PinnedBudget, BackgroundThreadGivesBackUnderPressure) {
  static const struct {
    const char *path, *before, *after;
  } cases[] = {{"proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n",
                "some avg10=99.00 avg60=9.00 avg300=2.00 total=99000001000\n"},
               {"sys/fs/cgroup/job/memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
                "some avg10=99.00 avg60=9.00 avg300=2.00 total=99000000000\n"},
               {"sys/fs/cgroup/job/memory.events", "low 0\nhigh 3\nmax 0\noom 0\n", "low 0\nhigh 4\nmax 0\noom 0\n"},
               {"sys/fs/cgroup/memory.events", "low 0\nhigh 0\nmax 7\noom 0\n", "low 0\nhigh 0\nmax 8\noom 0\n"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    machine own;
    if (!machine_open(&own, "cpu")) return;
    support_temp_dir_write(&own.folder, "proc/self/cgroup", "0::/job\n");
    support_temp_dir_write(&own.folder, cases[i].path, cases[i].before);
    lade_pinned_options options = options_of();
    options.flags = LADE_PINNED_BACKGROUND;
    lade_pinned_pool *pool = pool_open(&own, &options);
    void *kept = segments_alloc(pool, 2);
    LADE_EXPECT_OK(lade_pinned_free(pool, segments_alloc(pool, 3)));
    usleep(150000); /* a look at the files as they are */
    LADE_EXPECT_EQ_UINT(stats_of(pool).pressure_returns, 0);
    LADE_EXPECT_EQ_UINT(stats_of(pool).reserved_bytes.current, 5 * SEGMENT);
    machine_file_replace(&own, cases[i].path, cases[i].after);
    while (stats_of(pool).pressure_returns == 0) usleep(1000);
    LADE_EXPECT_EQ_UINT(stats_of(pool).reserved_bytes.current, 2 * SEGMENT);
    LADE_EXPECT_OK(lade_pinned_free(pool, kept));
    LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
    machine_close(&own);
  }
}
