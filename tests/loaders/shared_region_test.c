/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that all ranks of a group share: ranks are threads, or processes. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/budget/ledger.h"
#include "host/budget/ledger_survey.h"
#include "lade/pinned.h"
#include "lade/soft.h"
#include "tests/group/ranks.h"
#include "tests/shim/lade_test.h"

enum { RANKS = 3, PART = 8192, BYTES = RANKS * PART - 100, PAGES = RANKS * PART };

static lade_pinned_pool *pool_open(lade_runtime *runtime) {
  lade_pinned_pool *pool = NULL;
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.budget = LADE_PINNED_BUDGET_OFF;
  LADE_EXPECT_OK(lade_pinned_pool_create(runtime, &options, &pool));
  return pool;
}

static bool is_all(const char *memory, size_t bytes, int value) {
  size_t same = 0;
  while (same < bytes && memory[same] == value) same++;
  return same == bytes;
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

static void share(ranks_one *one) {
  lade_pinned_pool *pool = pool_open(one->runtime);
  char *memory = NULL;
  LADE_ASSERT_OK(lade_pinned_shared_create(pool, one->group, BYTES, (void **)&memory));
  LADE_EXPECT(is_all(memory + one->rank * PART, PART - 100, 0));
  memset(memory + one->rank * PART, (int)one->rank + 1, PART - 100);
  LADE_EXPECT_OK(lade_group_barrier(one->group));
  for (uint32_t i = 0; i < RANKS; i++) LADE_EXPECT(is_all(memory + i * PART, PART - 100, (int)i + 1));
  if (one->rank == 0) LADE_EXPECT_OK(lade_pinned_disown(pool, memory)); /* the others have it still */
  LADE_EXPECT_OK(lade_group_barrier(one->group));
  if (one->rank != 0) LADE_EXPECT(is_all(memory, PART - 100, 1));
  if (one->rank != 0) LADE_EXPECT_OK(lade_pinned_disown(pool, memory));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_pinned_disown(pool, memory));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
}

LADE_TEST(SharedRegion, AllRanksSeeTheSameBytes) {
  ranks_run(&(ranks_plan){.runtime = "cpu", .size = RANKS, .body = share});
  ranks_run(&(ranks_plan){.runtime = "sim", .size = RANKS, .body = share});
}

typedef struct failure {
  uint32_t rank;
  const char *op; /* NULL: it asks for other bytes */
  lade_status expected;
  const char *words;
} failure;

static void fail(ranks_one *one) {
  const failure *f = one->plan->user;
  lade_pinned_pool *pool = pool_open(one->runtime);
  bool fails = one->rank == f->rank;
  void *memory = NULL;
  if (fails && f->op != NULL) LADE_EXPECT_OK(lade_soft_fault_add(one->runtime, f->op, 1, LADE_ERR_DRIVER));
  uint64_t bytes = fails && f->op == NULL ? BYTES + PART : BYTES;
  LADE_EXPECT_STATUS(f->expected, lade_pinned_shared_create(pool, one->group, bytes, &memory));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, f->words);
  LADE_EXPECT_EQ_PTR(memory, NULL);
  LADE_EXPECT_OK(lade_pinned_shared_create(pool, one->group, BYTES, &memory)); /* the group goes on */
  LADE_EXPECT_OK(lade_pinned_disown(pool, memory));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true)); /* nothing is adopted */
}

LADE_TEST(SharedRegion, AllRanksHaveItOrNone) {
  static failure failures[] = {
      {0, "host_register", LADE_ERR_DRIVER, "rank 0: "},
      {2, "host_register", LADE_ERR_DRIVER, "rank 2: "},
      {1, NULL, LADE_ERR_PEER, "bytes is 32668 on rank 1, 24476 on rank 0"},
  };
  for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++)
    ranks_run(&(ranks_plan){.runtime = "cpu", .size = RANKS, .body = fail, .user = &failures[i]});
}

/* The bug: the pool could not be destroyed, as it had memory that its program did not know of. */
static void refuse_twice(ranks_one *one) {
  lade_pinned_pool *pool = pool_open(one->runtime);
  void *memory = NULL;
  if (one->rank == 0) LADE_EXPECT_OK(lade_soft_fault_add(one->runtime, "host_unregister", 1, LADE_ERR_DRIVER));
  if (one->rank == 1) LADE_EXPECT_OK(lade_soft_fault_add(one->runtime, "host_register", 1, LADE_ERR_DRIVER));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_pinned_shared_create(pool, one->group, BYTES, &memory));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "rank 1: ");
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
}

LADE_TEST(SharedRegion, ARefusedUndoIsTriedAgainByDestroy) {
  ranks_run(&(ranks_plan){.runtime = "cpu", .size = RANKS, .body = refuse_twice});
}

static void ask_for_nothing(ranks_one *one) {
  lade_pinned_pool *pool = pool_open(one->runtime);
  void *memory = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_pinned_shared_create(pool, one->group, one->rank == 1 ? 0 : BYTES, &memory));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "rank 1: lade_pinned_shared_create: bytes is 0");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_shared_create(pool, NULL, BYTES, &memory));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_shared_create(pool, one->group, BYTES, NULL));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
}

LADE_TEST(SharedRegion, RefusalsReachAllRanks) {
  ranks_run(&(ranks_plan){.runtime = "cpu", .size = RANKS, .body = ask_for_nothing});
}

/* ---- Processes --------------------------------------------------------------------------------------------------- */

typedef struct board {
  _Atomic(int) written;
  _Atomic(bool) dead;
} board;

/* When a rank dies: by the test, or by itself. */
typedef enum death { ONCE_ALL_HAVE_WRITTEN, BEFORE_IT_CALLS } death;

/* What the ledger of the ranks' budget, which has the name of their group, says of the living. */
static uint64_t held_by_file(const char *name) {
  char path[LADEI_LEDGER_PATH_BYTES];
  ladei_ledger_survey survey;
  LADE_EXPECT(ladei_ledger_path("", (uint32_t)geteuid(), name, path));
  lade_status status = ladei_ledger_survey_take(path, false, &ladei_ledger_system_calls, &survey);
  LADE_EXPECT_OK(status);
  if (status != LADE_OK) return UINT64_MAX;
  uint64_t held = survey.answer.held_bytes;
  ladei_ledger_survey_release(&survey);
  return held;
}

static void file_remove(const char *name) {
  char path[LADEI_LEDGER_PATH_BYTES];
  if (ladei_ledger_path("", (uint32_t)geteuid(), name, path)) unlink(path);
}

/* 0, or the number of the step that went wrong. */
static int process_run(board *told, const char *name, uint32_t rank, death when, uint32_t victim) {
  lade_runtime *runtime = NULL;
  lade_pinned_pool *pool = NULL;
  lade_group *group = NULL;
  lade_group_local_options options;
  lade_pinned_options pinned;
  char *memory = NULL;
  lade_group_local_options_init(&options);
  options.name = name;
  options.rank = rank;
  options.size = RANKS;
  lade_pinned_options_init(&pinned);
  pinned.budget = LADE_PINNED_BUDGET_ON;
  pinned.budget_name = name;
  pinned.budget_bytes = UINT64_C(1) << 30;
  if (lade_runtime_open("cpu", NULL, &runtime) != LADE_OK) return 1;
  if (lade_group_create_local(runtime, &options, &group) != LADE_OK) return 2;
  if (lade_pinned_pool_create(runtime, &pinned, &pool) != LADE_OK) return 3;
  if (when == BEFORE_IT_CALLS && rank == victim) raise(SIGKILL);
  lade_status status = lade_pinned_shared_create(pool, group, BYTES, (void **)&memory);
  if (when == BEFORE_IT_CALLS) /* the pool has adopted nothing */
    return status == LADE_ERR_PEER && lade_pinned_pool_destroy(pool, true) == LADE_OK ? 0 : 9;
  if (status != LADE_OK) return 4;
  memset(memory + rank * PART, (int)rank + 1, PART - 100);
  atomic_fetch_add(&told->written, 1);
  while (atomic_load(&told->written) < RANKS) usleep(1000);
  if (rank == victim)
    for (;;) pause();
  while (!atomic_load(&told->dead)) usleep(1000);
  for (uint32_t i = 0; i < RANKS; i++)
    if (!is_all(memory + i * PART, PART - 100, (int)i + 1)) return 5;
  if (lade_pinned_disown(pool, memory) != LADE_OK) return 6;
  if (lade_pinned_pool_destroy(pool, true) != LADE_OK) return 7;
  (void)lade_group_destroy(group);
  return lade_runtime_close(runtime) == LADE_OK ? 0 : 8;
}

static void processes_run(death when, uint32_t victim) {
  char name[64];
  pid_t children[RANKS];
  int status = -1;
  board *told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  LADE_ASSERT(told != MAP_FAILED);
  ranks_name(name, sizeof name);
  for (uint32_t i = 0; i < RANKS; i++) {
    children[i] = fork(); /* before any opens a runtime */
    LADE_ASSERT(children[i] >= 0);
    if (children[i] == 0) _exit(process_run(told, name, i, when, victim));
  }
  if (when == ONCE_ALL_HAVE_WRITTEN) {
    while (atomic_load(&told->written) < RANKS) usleep(1000);
    LADE_EXPECT_EQ_UINT(held_by_file(name), PAGES);
    LADE_EXPECT_EQ_INT(kill(children[victim], SIGKILL), 0);
  }
  LADE_EXPECT(waitpid(children[victim], &status, 0) == children[victim]);
  LADE_EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  /* Bug: of a rank 0 that died the budget forgot the memory, which the others had still. */
  if (when == ONCE_ALL_HAVE_WRITTEN) LADE_EXPECT_EQ_UINT(held_by_file(name), PAGES);
  atomic_store(&told->dead, true);
  for (uint32_t i = 0; i < RANKS; i++) {
    if (i == victim) continue;
    LADE_EXPECT(waitpid(children[i], &status, 0) == children[i]);
    LADE_EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  if (when == ONCE_ALL_HAVE_WRITTEN) LADE_EXPECT_EQ_UINT(held_by_file(name), 0);
  file_remove(name);
  munmap(told, sizeof *told);
}

static bool budgets_are_there(void) { return access("/dev/shm", W_OK) == 0; }

LADE_TEST(SharedRegion, ARankThatDiesLeavesItToTheOthers) {
  if (!budgets_are_there()) LADE_SKIP("no folder for ledgers: /dev/shm");
  for (uint32_t victim = 0; victim < RANKS; victim++) processes_run(ONCE_ALL_HAVE_WRITTEN, victim);
}

LADE_TEST(SharedRegion, WithoutARankNoneHasIt) {
  if (!budgets_are_there()) LADE_SKIP("no folder for ledgers: /dev/shm");
  processes_run(BEFORE_IT_CALLS, 0);
}

/* ---- The budget -------------------------------------------------------------------------------------------------- */

/* Threads, whose pools are in one ledger as processes' are. */
static void exceed(ranks_one *one) {
  const char *name = one->plan->user;
  lade_pinned_pool *pool = NULL;
  lade_pinned_options options;
  void *memory = NULL;
  lade_pinned_options_init(&options);
  options.budget = LADE_PINNED_BUDGET_ON;
  options.budget_name = name;
  options.budget_bytes = 2 * BYTES;
  LADE_EXPECT_OK(lade_pinned_pool_create(one->runtime, &options, &pool));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_shared_create(pool, one->group, 3 * BYTES, &memory));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "would exceed the budget of all pools");
  LADE_EXPECT_OK(lade_group_barrier(one->group));
  if (one->rank == 0) LADE_EXPECT_EQ_UINT(held_by_file(name), 0);
  LADE_EXPECT_OK(lade_pinned_shared_create(pool, one->group, BYTES, &memory)); /* once, not for each rank */
  if (one->rank == 2) LADE_EXPECT_EQ_UINT(held_by_file(name), PAGES);
  LADE_EXPECT_OK(lade_group_barrier(one->group));
  LADE_EXPECT_OK(lade_pinned_disown(pool, memory));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
}

LADE_TEST(SharedRegion, TheBudgetRefusesItToAllOrCountsItOnce) {
  char name[64];
  if (!budgets_are_there()) LADE_SKIP("no folder for ledgers: /dev/shm");
  ranks_name(name, sizeof name);
  ranks_run(&(ranks_plan){.runtime = "cpu", .size = RANKS, .body = exceed, .user = name});
  file_remove(name);
}
