/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many processes that start at once: each joins with its first charge, whoever is first. LADE_TEST_PROCESSES says how many.
 *
 * The clock of their waits goes on by sleeping alone: on a machine with other work the one that has the lock may not run for
 * long, and the others would be right not to wait for it.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/budget/ledger.h"
#include "host/budget/ledger_survey.h"
#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"

enum { MOST = 8000, LEAST = 64 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { USUAL = 128 };
#else
enum { USUAL = 1024 };
#endif

typedef struct member {
  pid_t process;       /* 0: it was ended */
  _Atomic(int) result; /* of its charge; below 0: none yet */
} member;

/* Of all processes. */
typedef struct arena {
  _Atomic(int) done; /* members that have obeyed the last order */
  member members[MOST];
} arena;

static arena *shared;
static support_temp_dir folder;
static char path[LADEI_LEDGER_PATH_BYTES];

/* ---- A member ---------------------------------------------------------------------------------------------------- */

static uint64_t slept_ns;
static uint64_t sleep_clock(void *user) {
  (void)user;
  return slept_ns + 1;
}
static void sleep_count(void *user, uint64_t ns) {
  ladei_ledger_system_calls.sleep(user, ns);
  slept_ns += ns;
}

static uint64_t bytes_of(int number) { return (uint64_t)number % 7 + 1; }

/* What all wait for: its other end is closed. */
static void gate_wait(int gate) {
  char byte;
  while (read(gate, &byte, 1) < 0 && errno == EINTR) {
  }
}

static void member_main(int number, const int gates[2]) {
  ladei_ledger_terms terms = {.default_bytes = 100 * MOST};
  ladei_ledger_calls calls = ladei_ledger_system_calls;
  ladei_ledger_answer answer;
  calls.monotonic_ns = sleep_clock;
  calls.sleep = sleep_count;
  ladei_ledger *pool = ladei_ledger_create(path, &terms, &calls);
  gate_wait(gates[0]);
  atomic_store(&shared->members[number].result, (int)ladei_ledger_charge(pool, bytes_of(number), &answer));
  atomic_fetch_add(&shared->done, 1);
  gate_wait(gates[1]);
  ladei_ledger_destroy(pool);
  _exit(0);
}

/* ---- The judge --------------------------------------------------------------------------------------------------- */

static int usual_count(void) {
  const char *text = getenv("LADE_TEST_PROCESSES");
  long count = text == NULL ? USUAL : strtol(text, NULL, 10);
  return count < LEAST ? LEAST : count > MOST ? MOST : (int)count;
}

static bool gate_make(int gate[2]) { return pipe(gate) == 0; }

/* As many as the machine gives, up to `most`. */
static int members_start(int most, const int first[2], const int last[2]) {
  const int gates[2] = {first[0], last[0]};
  for (int i = 0; i < most; i++) {
    shared->members[i].result = -1;
    pid_t process = fork();
    if (process < 0) return i;
    if (process == 0) {
      close(first[1]);
      close(last[1]);
      member_main(i, gates);
    }
    shared->members[i].process = process;
  }
  return most;
}

/* Every member's result is there, and none has ended by itself. */
static void all_wait(int count) {
  while (atomic_load(&shared->done) < count) {
    pid_t ended = waitpid(-1, NULL, WNOHANG);
    LADE_EXPECT_EQ_INT(ended, 0);
    if (ended != 0) return;
    usleep(1000);
  }
}

static ladei_ledger_survey survey_take(void) {
  ladei_ledger_survey survey;
  LADE_EXPECT_OK(ladei_ledger_survey_take(path, false, &ladei_ledger_system_calls, &survey));
  return survey;
}

static uint64_t all_compare(int count) {
  uint64_t sum = 0;
  int granted = 0;
  for (int i = 0; i < count; i++) {
    granted += atomic_load(&shared->members[i].result) == LADEI_LEDGER_GRANTED;
    sum += bytes_of(i);
  }
  LADE_EXPECT_EQ_INT(granted, count);
  ladei_ledger_survey survey = survey_take();
  LADE_EXPECT_EQ_SIZE(survey.count, (size_t)count);
  LADE_EXPECT_EQ_UINT(survey.answer.held_bytes, sum);
  LADE_EXPECT_EQ_UINT(survey.answer.pools, (unsigned)count);
  ladei_ledger_survey_release(&survey);
  return sum;
}

/* Two of three, all at once. */
static uint64_t most_kill(int count, uint64_t sum) {
  for (int i = 0; i < count; i++) {
    if (i % 3 == 0) continue;
    sum -= bytes_of(i);
    LADE_EXPECT_EQ_INT(kill(shared->members[i].process, SIGKILL), 0);
  }
  for (int i = 0; i < count; i++) {
    if (i % 3 == 0) continue;
    LADE_EXPECT_EQ_INT(waitpid(shared->members[i].process, NULL, 0), shared->members[i].process);
    shared->members[i].process = 0;
  }
  return sum;
}

static void all_end(int count) {
  for (int i = 0; i < count; i++)
    if (shared->members[i].process != 0)
      LADE_EXPECT_EQ_INT(waitpid(shared->members[i].process, NULL, 0), shared->members[i].process);
}

/* In one charge, which needs all that is left. */
static void rest_charge(uint64_t bytes) {
  ladei_ledger_terms terms = {.default_bytes = 1};
  ladei_ledger_answer answer;
  ladei_ledger *pool = ladei_ledger_create(path, &terms, &ladei_ledger_system_calls);
  LADE_EXPECT_EQ_INT(ladei_ledger_charge(pool, bytes, &answer), LADEI_LEDGER_GRANTED);
  ladei_ledger_destroy(pool);
}

LADE_TEST(LedgerMany, ProcessesThatStartAtOnceAllJoin) {
  int first[2], last[2];
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  LADE_ASSERT(shared != MAP_FAILED && gate_make(first) && gate_make(last) && support_temp_dir_create(&folder));
  snprintf(path, sizeof path, "%.200s/ledger", folder.path);
  fflush(NULL);
  int count = members_start(usual_count(), first, last);
  close(first[0]);
  close(last[0]);
  close(first[1]); /* go */
  all_wait(count);
  uint64_t sum = all_compare(count);
  sum = most_kill(count, sum);
  rest_charge(100 * MOST - sum);
  close(last[1]);
  all_end(count);
  ladei_ledger_survey survey = survey_take();
  for (size_t i = 0; i < survey.count; i++) LADE_EXPECT(!survey.rows[i].has_owner);
  ladei_ledger_survey_release(&survey);
  if (count < LEAST) LADE_SKIP("the machine has no room for many processes");
  printf("%d processes\n", count);
  munmap(shared, sizeof *shared);
  support_temp_dir_remove(&folder);
}
