/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of one process: a lock of an open file does not keep them apart, the pool's own does. For the thread sanitiser, too. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/budget/ledger.h"
#include "host/budget/ledger_survey.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"

enum { POOLS = 2, THREADS = 4, STEPS = 400, BUDGET = 1000, SHARED = 100 };

typedef struct fixture {
  ladei_ledger *pools[POOLS];
  _Atomic(uint64_t) held[POOLS];
  _Atomic(uint32_t) next;
} fixture;

/* Memory of all threads; each holds it again and again, so that a pool has it twice at times. */
static void shared_step(ladei_ledger *pool, ladei_ledger_hold *hold) {
  ladei_ledger_answer answer;
  if (hold->id != 0)
    ladei_ledger_hold_remove(pool, hold);
  else if (*hold = (ladei_ledger_hold){.id = 7, .bytes = SHARED},
           ladei_ledger_hold_add(pool, hold, &answer) == LADEI_LEDGER_GRANTED)
    return;
  *hold = (ladei_ledger_hold){.id = 0};
}

static void step(fixture *own, support_random *random, uint64_t *mine, int pool) {
  ladei_ledger_answer answer;
  ladei_ledger_state state;
  uint64_t bytes = support_random_between(random, 1, 300);
  if (*mine > 0 && support_random_one_in(random, 2)) {
    ladei_ledger_credit(own->pools[pool], *mine);
    atomic_fetch_sub(&own->held[pool], *mine);
    *mine = 0;
  } else if (ladei_ledger_charge(own->pools[pool], bytes, &answer) == LADEI_LEDGER_GRANTED) {
    LADE_EXPECT_EQ_UINT(answer.budget_bytes, BUDGET);
    atomic_fetch_add(&own->held[pool], bytes);
    *mine += bytes;
  }
  (void)ladei_ledger_leaves(own->pools[pool], bytes);
  (void)ladei_ledger_asked(own->pools[pool]);
  ladei_ledger_state_get(own->pools[pool], &state);
  LADE_EXPECT_LE_UINT(state.held_bytes, BUDGET);
}

static void *thread_run(void *user) {
  fixture *own = user;
  support_random random;
  uint64_t mine = 0;
  uint32_t number = atomic_fetch_add(&own->next, 1);
  support_random_start_quietly(&random, number + 1);
  ladei_ledger_hold hold = {.id = 0};
  for (int i = 0; i < STEPS; i++) {
    step(own, &random, &mine, (int)(number % POOLS));
    shared_step(own->pools[number % POOLS], &hold);
  }
  if (hold.id != 0) ladei_ledger_hold_remove(own->pools[number % POOLS], &hold);
  return NULL;
}

static uint64_t held_by_file(const char *path) {
  ladei_ledger_survey survey;
  uint64_t sum = 0;
  LADE_EXPECT_OK(ladei_ledger_survey_take(path, false, &ladei_ledger_system_calls, &survey));
  for (size_t i = 0; i < survey.count; i++) sum += survey.rows[i].slot.bytes;
  LADE_EXPECT_EQ_SIZE(survey.count, POOLS);
  ladei_ledger_survey_release(&survey);
  return sum;
}

LADE_TEST(LedgerThreads, TwoPoolsOfTwoThreadsEachAreExact) {
  fixture own = {.pools = {NULL}};
  support_temp_dir folder;
  char path[LADEI_LEDGER_PATH_BYTES];
  pthread_t threads[THREADS];
  ladei_ledger_terms terms = {.default_bytes = BUDGET};
  LADE_ASSERT(support_temp_dir_create(&folder));
  snprintf(path, sizeof path, "%.200s/ledger", folder.path);
  for (int i = 0; i < POOLS; i++) own.pools[i] = ladei_ledger_create(path, &terms, &ladei_ledger_system_calls);
  for (int i = 0; i < THREADS; i++) LADE_EXPECT_EQ_INT(pthread_create(&threads[i], NULL, thread_run, &own), 0);
  for (int i = 0; i < 10; i++) { /* the list of open files is whole in a child, which closes them */
    pid_t child = fork();
    if (child == 0) _exit(0);
    LADE_EXPECT_EQ_INT(waitpid(child, NULL, 0), child);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  uint64_t sum = 0;
  for (int i = 0; i < POOLS; i++) {
    ladei_ledger_state state;
    ladei_ledger_state_get(own.pools[i], &state);
    LADE_EXPECT_EQ_UINT(state.held_bytes, atomic_load(&own.held[i]));
    LADE_EXPECT_EQ_UINT(state.faults, 0);
    sum += state.held_bytes;
  }
  LADE_EXPECT_EQ_UINT(held_by_file(path), sum);
  for (int i = 0; i < POOLS; i++) ladei_ledger_destroy(own.pools[i]);
  support_temp_dir_remove(&folder);
}
