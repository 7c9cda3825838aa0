/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that end, stop, fork and live in other namespaces while they hold something of a ledger. Each pool is in a child
 * of its own, which does what it is told through a pipe.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/budget/ledger.h"
#include "host/budget/ledger_survey.h"
#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

enum { BUDGET = 1000 };

typedef enum order_kind { CHARGE, CREDIT, SHARE, UNSHARE, FORK, RAW_FORK, STOP_IN_NEXT_WRITE } order_kind;
typedef struct order {
  order_kind kind;
  uint64_t bytes;
} order;

typedef struct member {
  pid_t process;
  int to, from;
} member;

static support_temp_dir folder;
static char path[LADEI_LEDGER_PATH_BYTES];

static bool folder_open(void) {
  if (!support_temp_dir_create(&folder)) return false;
  snprintf(path, sizeof path, "%.200s/ledger", folder.path);
  return true;
}

/* ---- A member ---------------------------------------------------------------------------------------------------- */

static bool stop_in_write;

/* As a debugger or a batch system stops it: in the midst of a change. */
static ssize_t stopping_pwrite(void *user, int fd, const void *data, size_t bytes, off_t offset) {
  if (stop_in_write) {
    stop_in_write = false;
    (void)raise(SIGSTOP);
  }
  return ladei_ledger_system_calls.pwrite(user, fd, data, bytes, offset);
}

/* A child that outlives its parent, and has what it inherited. */
static int32_t child_stay(bool raw) {
  pid_t child = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
  if (child != 0) return child;
  for (;;) pause();
}

/* Memory with the id 7. */
static ladei_ledger_hold hold = {.id = 7};

static int32_t order_obey(ladei_ledger *pool, const order *what) {
  ladei_ledger_answer answer;
  switch (what->kind) {
  case CHARGE: return (int32_t)ladei_ledger_charge(pool, what->bytes, &answer);
  case CREDIT: ladei_ledger_credit(pool, what->bytes); return 0;
  case SHARE: hold.bytes = what->bytes; return (int32_t)ladei_ledger_hold_add(pool, &hold, &answer);
  case UNSHARE: ladei_ledger_hold_remove(pool, &hold); return 0;
  case FORK: return child_stay(false);
  case RAW_FORK: return child_stay(true);
  default: stop_in_write = true; return 0;
  }
}

static void member_main(int in, int out) {
  ladei_ledger_terms terms = {.default_bytes = BUDGET};
  ladei_ledger_calls calls = ladei_ledger_system_calls;
  calls.pwrite = stopping_pwrite;
  ladei_ledger *pool = ladei_ledger_create(path, &terms, &calls);
  order next;
  while (read(in, &next, sizeof next) == sizeof next) {
    int32_t result = order_obey(pool, &next);
    if (write(out, &result, sizeof result) != sizeof result) break;
  }
  ladei_ledger_destroy(pool);
  _exit(0);
}

static member member_start(void) {
  int in[2], out[2];
  member own = {.process = -1};
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return own;
  own.process = fork();
  if (own.process == 0) {
    /* Also the ends of other members' pipes: these would not read the end of theirs. */
    for (int fd = STDERR_FILENO + 1; fd < 256; fd++)
      if (fd != in[0] && fd != out[1]) close(fd);
    member_main(in[0], out[1]);
  }
  close(in[0]);
  close(out[1]);
  own.to = in[1];
  own.from = out[0];
  return own;
}

static void member_tell(const member *own, order_kind kind, uint64_t bytes) {
  order next = {.kind = kind, .bytes = bytes};
  LADE_EXPECT_EQ_INT(write(own->to, &next, sizeof next), (int)sizeof next);
}

static int32_t member_answer(const member *own) {
  int32_t result = -1;
  LADE_EXPECT_EQ_INT(read(own->from, &result, sizeof result), (int)sizeof result);
  return result;
}

static int32_t member_do(const member *own, order_kind kind, uint64_t bytes) {
  member_tell(own, kind, bytes);
  return member_answer(own);
}

static void member_end(member *own) {
  close(own->to);
  close(own->from);
  LADE_EXPECT_EQ_INT(waitpid(own->process, NULL, 0), own->process);
}

static void member_kill(member *own) {
  LADE_EXPECT_EQ_INT(kill(own->process, SIGKILL), 0);
  member_end(own);
}

static ladei_ledger_survey survey_of(bool release_dead) {
  ladei_ledger_survey survey;
  LADE_EXPECT_OK(ladei_ledger_survey_take(path, release_dead, &ladei_ledger_system_calls, &survey));
  return survey;
}

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

LADE_TEST(LedgerProcesses, ChargeOfAKilledProcessComesBackWithTheNextOne) {
  LADE_ASSERT(folder_open());
  member a = member_start(), b = member_start();
  LADE_EXPECT_EQ_INT(member_do(&a, CHARGE, 700), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, 700), LADEI_LEDGER_REFUSED);
  member_kill(&a);
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, 700), LADEI_LEDGER_GRANTED);
  ladei_ledger_survey survey = survey_of(false);
  LADE_EXPECT_EQ_SIZE(survey.count, 1);
  LADE_EXPECT_EQ_UINT(survey.answer.held_bytes, 700);
  ladei_ledger_survey_release(&survey);
  member_end(&b);
  support_temp_dir_remove(&folder);
}

LADE_TEST(LedgerProcesses, ReleaseFreesSlotsOfTheDeadAlone) {
  LADE_ASSERT(folder_open());
  member a = member_start(), b = member_start();
  LADE_EXPECT_EQ_INT(member_do(&a, CHARGE, 300), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, 400), LADEI_LEDGER_GRANTED);
  member_kill(&a);
  ladei_ledger_survey survey = survey_of(false);
  LADE_EXPECT_EQ_SIZE(survey.count, 2);
  LADE_EXPECT(!survey.rows[0].has_owner && survey.rows[1].has_owner);
  ladei_ledger_survey_release(&survey);
  survey = survey_of(true);
  LADE_EXPECT_EQ_SIZE(survey.count, 1);
  LADE_EXPECT_EQ_SIZE(survey.released, 1);
  LADE_EXPECT_EQ_UINT(survey.released_bytes, 300);
  ladei_ledger_survey_release(&survey);
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, 600), LADEI_LEDGER_GRANTED);
  member_end(&b);
  support_temp_dir_remove(&folder);
}

/* ---- Memory that several hold together --------------------------------------------------------------------------- */

enum { MEMBERS = 4, SHARED = 600, OWN = 10 };

static void held_expect(uint64_t bytes, uint32_t pools) {
  ladei_ledger_survey survey = survey_of(false);
  LADE_EXPECT_EQ_UINT(survey.answer.held_bytes, bytes);
  LADE_EXPECT_EQ_UINT(survey.answer.pools, pools);
  ladei_ledger_survey_release(&survey);
}

/* Each holds something of its own, too. */
static void members_share(member members[MEMBERS]) {
  for (int i = 0; i < MEMBERS; i++) members[i] = member_start();
  for (int i = 0; i < MEMBERS; i++) {
    LADE_EXPECT_EQ_INT(member_do(&members[i], SHARE, SHARED), LADEI_LEDGER_GRANTED);
    LADE_EXPECT_EQ_INT(member_do(&members[i], CHARGE, OWN), LADEI_LEDGER_GRANTED);
  }
  held_expect(SHARED + MEMBERS * OWN, MEMBERS);
}

/* Bug: what rank 0 had charged for all was forgotten when it died, and others pinned as much again. */
LADE_TEST(LedgerProcesses, SharedMemoryCountsOnceWhileAnyOfItsPoolsLives) {
  for (int first = 0; first < MEMBERS; first++) { /* that is killed: the one that brought it in, or another */
    member members[MEMBERS];
    LADE_ASSERT(folder_open());
    members_share(members);
    for (int i = 0; i < MEMBERS - 1; i++) {
      const int last = (first + MEMBERS - 1) % MEMBERS;
      member_kill(&members[(first + i) % MEMBERS]);
      const uint64_t own = (uint64_t)(MEMBERS - 1 - i) * OWN;
      held_expect(SHARED + own, (uint32_t)(MEMBERS - 1 - i));
      LADE_EXPECT_EQ_INT(member_do(&members[last], CHARGE, BUDGET - SHARED - own + 1), LADEI_LEDGER_REFUSED);
      LADE_EXPECT_EQ_INT(member_do(&members[last], CHARGE, BUDGET - SHARED - own), LADEI_LEDGER_GRANTED);
      LADE_EXPECT_EQ_INT(member_do(&members[last], CREDIT, BUDGET - SHARED - own), 0);
    }
    /* Of --release-dead, too: no process of a living one is gone. */
    ladei_ledger_survey survey = survey_of(true);
    LADE_EXPECT_EQ_SIZE(survey.count, 2);
    LADE_EXPECT_EQ_UINT(survey.answer.held_bytes, SHARED + OWN);
    ladei_ledger_survey_release(&survey);
    member_kill(&members[(first + MEMBERS - 1) % MEMBERS]);
    member next = member_start();
    LADE_EXPECT_EQ_INT(member_do(&next, CHARGE, BUDGET), LADEI_LEDGER_GRANTED);
    held_expect(BUDGET, 1);
    member_end(&next);
    support_temp_dir_remove(&folder);
  }
}

LADE_TEST(LedgerProcesses, SharedMemoryIsFreeWhenTheLastOneGivesItBack) {
  member members[MEMBERS];
  LADE_ASSERT(folder_open());
  members_share(members);
  for (int i = 0; i < MEMBERS; i++) {
    LADE_EXPECT_EQ_INT(member_do(&members[i], UNSHARE, 0), 0);
    held_expect((i + 1 < MEMBERS ? SHARED : 0) + MEMBERS * OWN, MEMBERS);
  }
  LADE_EXPECT_EQ_INT(member_do(&members[3], CHARGE, BUDGET - MEMBERS * OWN), LADEI_LEDGER_GRANTED);
  for (int i = 0; i < MEMBERS; i++) member_end(&members[i]);
  support_temp_dir_remove(&folder);
}

/* A child of a pool that ends does not keep it. */
LADE_TEST(LedgerProcesses, ForkedChildDoesNotKeepSharedMemory) {
  LADE_ASSERT(folder_open());
  member a = member_start(), b = member_start();
  LADE_EXPECT_EQ_INT(member_do(&a, SHARE, SHARED), LADEI_LEDGER_GRANTED);
  pid_t child = (pid_t)member_do(&a, FORK, 0);
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, SHARED), LADEI_LEDGER_REFUSED);
  member_kill(&a);
  while (member_do(&b, CHARGE, SHARED) == LADEI_LEDGER_REFUSED) (void)usleep(1000);
  LADE_EXPECT_EQ_INT(kill(child, SIGKILL), 0);
  member_end(&b);
  support_temp_dir_remove(&folder);
}

/* Killed in the midst of bringing it in: before its slot is written, all is as it was. */
LADE_TEST(LedgerProcesses, ProcessThatIsKilledWhileItBringsSharedMemoryLeavesALedger) {
  int status;
  LADE_ASSERT(folder_open());
  member a = member_start(), b = member_start();
  LADE_EXPECT_EQ_INT(member_do(&a, CHARGE, OWN), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(member_do(&a, STOP_IN_NEXT_WRITE, 0), 0);
  member_tell(&a, SHARE, SHARED);
  LADE_EXPECT_EQ_INT(waitpid(a.process, &status, WUNTRACED), a.process);
  member_kill(&a);
  LADE_EXPECT_EQ_INT(member_do(&b, SHARE, SHARED), LADEI_LEDGER_GRANTED);
  held_expect(SHARED, 1);
  member_end(&b);
  support_temp_dir_remove(&folder);
}

/* ---- Children ---------------------------------------------------------------------------------------------------- */

LADE_TEST(LedgerProcesses, ForkedChildDoesNotKeepWhatItsParentHeld) {
  LADE_ASSERT(folder_open());
  member a = member_start(), b = member_start();
  LADE_EXPECT_EQ_INT(member_do(&a, CHARGE, 700), LADEI_LEDGER_GRANTED);
  pid_t child = (pid_t)member_do(&a, FORK, 0);
  LADE_EXPECT_GT_INT(child, 0);
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, 700), LADEI_LEDGER_REFUSED); /* the parent lives */
  member_kill(&a);
  /* The child closes its copies when it runs for the first time. Were they never closed, this would not end. */
  while (member_do(&b, CHARGE, 700) == LADEI_LEDGER_REFUSED) (void)usleep(1000);
  LADE_EXPECT_EQ_INT(kill(child, SIGKILL), 0);
  member_end(&b);
  support_temp_dir_remove(&folder);
}

static void child_expect_good(pid_t child) {
  int status = 0;
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  LADE_EXPECT(WIFEXITED(status));
  LADE_EXPECT_EQ_INT(WEXITSTATUS(status), 0);
}

/* The number that the next descriptor gets. */
static int next_descriptor(void) {
  int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(next);
  return next;
}

/* In a child, where a file gets the number that pool b had: when pool a goes on, b's number must not be closed in children. */
static int grandchild_look(ladei_ledger *a, int next) {
  ladei_ledger_answer answer;
  int status = 0;
  int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (fd != next) return 2;
  if (ladei_ledger_charge(a, 1, &answer) != LADEI_LEDGER_GRANTED) return 3;
  pid_t child = fork();
  if (child == 0) _exit(fcntl(fd, F_GETFD) < 0);
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 4;
}

LADE_TEST(LedgerProcesses, ChildOfAChildClosesNoFileOfItsOwn) {
  ladei_ledger_terms terms = {.default_bytes = BUDGET};
  ladei_ledger_answer answer;
  LADE_ASSERT(folder_open());
  fflush(NULL);
  int next = next_descriptor();
  ladei_ledger *a = ladei_ledger_create(path, &terms, &ladei_ledger_system_calls);
  ladei_ledger *b = ladei_ledger_create(path, &terms, &ladei_ledger_system_calls);
  LADE_EXPECT_EQ_INT(ladei_ledger_charge(b, 1, &answer), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(ladei_ledger_charge(a, 1, &answer), LADEI_LEDGER_GRANTED);
  pid_t child = fork();
  if (child == 0) _exit(grandchild_look(a, next));
  child_expect_good(child);
  ladei_ledger_destroy(a);
  ladei_ledger_destroy(b);
  support_temp_dir_remove(&folder);
}

/* As a daemon begins: it closes all descriptors, opens its own, and forks. */
LADE_TEST(LedgerProcesses, ChildKeepsTheFileThatHasTheNumberOfTheLedger) {
  ladei_ledger_terms terms = {.default_bytes = BUDGET};
  ladei_ledger_answer answer;
  LADE_ASSERT(folder_open());
  fflush(NULL);
  int next = next_descriptor();
  ladei_ledger *a = ladei_ledger_create(path, &terms, &ladei_ledger_system_calls);
  LADE_EXPECT_EQ_INT(ladei_ledger_charge(a, 1, &answer), LADEI_LEDGER_GRANTED);
  close(next);
  LADE_EXPECT_EQ_INT(open("/dev/null", O_RDONLY | O_CLOEXEC), next);
  pid_t child = fork();
  if (child == 0) _exit(fcntl(next, F_GETFD) < 0);
  child_expect_good(child);
  ladei_ledger_destroy(a);
  LADE_EXPECT_EQ_INT(close(next), 0);
  support_temp_dir_remove(&folder);
}

/* Nobody is told of a fork by a system call: the copy keeps the lock, and only a person can say that it is nobody's. */
LADE_TEST(LedgerProcesses, ChildThatKeepsALockIsSeenAndReleased) {
  LADE_ASSERT(folder_open());
  member a = member_start(), b = member_start();
  LADE_EXPECT_EQ_INT(member_do(&a, CHARGE, 700), LADEI_LEDGER_GRANTED);
  pid_t child = (pid_t)member_do(&a, RAW_FORK, 0);
  LADE_EXPECT_GT_INT(child, 0);
  ladei_ledger_survey survey = survey_of(true);
  LADE_EXPECT_EQ_SIZE(survey.count, 1); /* the parent lives */
  LADE_EXPECT(!survey.rows[0].is_orphan);
  ladei_ledger_survey_release(&survey);
  member_kill(&a);
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, 700), LADEI_LEDGER_REFUSED);
  survey = survey_of(false);
  LADE_EXPECT(survey.rows[0].has_owner && survey.rows[0].is_orphan);
  ladei_ledger_survey_release(&survey);
  survey = survey_of(true);
  LADE_EXPECT_EQ_UINT(survey.released_bytes, 700);
  ladei_ledger_survey_release(&survey);
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, 700), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(kill(child, SIGKILL), 0);
  member_end(&b);
  support_temp_dir_remove(&folder);
}

/* ---- Stops ------------------------------------------------------------------------------------------------------- */

LADE_TEST(LedgerProcesses, ProcessThatIsStoppedInAChangeHoldsNobodyUp) {
  int status;
  LADE_ASSERT(folder_open());
  member a = member_start(), b = member_start();
  LADE_EXPECT_EQ_INT(member_do(&a, CHARGE, 100), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, 100), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(member_do(&a, STOP_IN_NEXT_WRITE, 0), 0);
  member_tell(&a, CHARGE, 50);
  LADE_EXPECT_EQ_INT(waitpid(a.process, &status, WUNTRACED), a.process);
  LADE_EXPECT(WIFSTOPPED(status));
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, 200), LADEI_LEDGER_FAULT);
  LADE_EXPECT_EQ_INT(member_do(&b, CREDIT, 20), 0);
  ladei_ledger_survey survey = survey_of(false);
  LADE_EXPECT(survey.busy);
  LADE_EXPECT_EQ_SIZE(survey.count, 2);
  ladei_ledger_survey_release(&survey);
  LADE_EXPECT_EQ_INT(ladei_ledger_survey_take(path, true, &ladei_ledger_system_calls, &survey), LADE_ERR_BUSY);
  LADE_EXPECT_EQ_INT(kill(a.process, SIGCONT), 0);
  LADE_EXPECT_EQ_INT(member_answer(&a), LADEI_LEDGER_GRANTED);
  /* What b took and gave meanwhile is told with its next charge. */
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, 1), LADEI_LEDGER_GRANTED);
  survey = survey_of(false);
  LADE_EXPECT_EQ_UINT(survey.answer.held_bytes, 150 + 281);
  ladei_ledger_survey_release(&survey);
  member_end(&a);
  member_end(&b);
  support_temp_dir_remove(&folder);
}

/* Killed where it was stopped: the lock of the file ends with it. */
LADE_TEST(LedgerProcesses, ProcessThatIsKilledInAChangeLeavesALedger) {
  int status;
  LADE_ASSERT(folder_open());
  member a = member_start(), b = member_start();
  LADE_EXPECT_EQ_INT(member_do(&a, CHARGE, 100), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(member_do(&a, STOP_IN_NEXT_WRITE, 0), 0);
  member_tell(&a, CHARGE, 50);
  LADE_EXPECT_EQ_INT(waitpid(a.process, &status, WUNTRACED), a.process);
  member_kill(&a);
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, BUDGET), LADEI_LEDGER_GRANTED);
  member_end(&b);
  support_temp_dir_remove(&folder);
}

/* ---- Other namespaces -------------------------------------------------------------------------------------------- */

/* Process ids are the same there, and mean others. */
LADE_TEST(LedgerProcesses, NamespaceOfProcessesDoesNotMatter) {
  LADE_ASSERT(folder_open());
  member b = member_start();
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, 100), LADEI_LEDGER_GRANTED);
  int result[2];
  LADE_EXPECT_EQ_INT(pipe2(result, O_CLOEXEC), 0);
  pid_t outer = fork();
  if (outer == 0) { /* children of this one are in a new namespace */
    if (unshare(CLONE_NEWPID) != 0) _exit(77);
    member a = member_start();
    int32_t granted = a.process < 0 ? -1 : member_do(&a, CHARGE, 800);
    if (write(result[1], &granted, sizeof granted) != sizeof granted) _exit(1);
    pause();
  }
  int32_t granted = -1;
  int status = 0;
  close(result[1]);
  if (read(result[0], &granted, sizeof granted) != sizeof granted) {
    close(result[0]);
    LADE_EXPECT_EQ_INT(waitpid(outer, &status, 0), outer);
    member_end(&b);
    support_temp_dir_remove(&folder);
    LADE_SKIP("no namespace of processes can be made here");
  }
  close(result[0]);
  LADE_EXPECT_EQ_INT(granted, LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(member_do(&b, CHARGE, 200), LADEI_LEDGER_REFUSED);
  ladei_ledger_survey survey = survey_of(true); /* pid 1 there is no process of ours: it stays */
  LADE_EXPECT_EQ_SIZE(survey.count, 2);
  for (size_t i = 0; i < survey.count; i++) LADE_EXPECT(!survey.rows[i].is_orphan);
  ladei_ledger_survey_release(&survey);
  LADE_EXPECT_EQ_INT(kill(outer, SIGKILL), 0); /* its member reads the end of its pipe, and goes */
  LADE_EXPECT_EQ_INT(waitpid(outer, &status, 0), outer);
  while (member_do(&b, CHARGE, 200) == LADEI_LEDGER_REFUSED) (void)usleep(1000);
  member_end(&b);
  support_temp_dir_remove(&folder);
}

/* In a namespace of time whose clock began earlier: 0: nothing is released. */
static int release_in_other_time(void) {
  static const char offset[] = "boottime 100000 0";
  if (unshare(CLONE_NEWTIME) != 0) return 77;
  int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, offset, sizeof offset - 1) < 0) return 77;
  close(fd);
  pid_t child = fork(); /* the first process there */
  if (child == 0) {
    ladei_ledger_survey survey;
    lade_status status = ladei_ledger_survey_take(path, true, &ladei_ledger_system_calls, &survey);
    _exit(status != LADE_OK ? 2 : survey.released != 0 || survey.count != 1 ? 3 : 0);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* The start of a process is a time of the reader's clock, and says nothing where that is another one. */
LADE_TEST(LedgerProcesses, NamespaceOfTimeDoesNotMatter) {
  int status = 0;
  LADE_ASSERT(folder_open());
  member a = member_start();
  LADE_EXPECT_EQ_INT(member_do(&a, CHARGE, 100), LADEI_LEDGER_GRANTED);
  pid_t other = fork();
  if (other == 0) _exit(release_in_other_time());
  LADE_EXPECT_EQ_INT(waitpid(other, &status, 0), other);
  LADE_EXPECT_EQ_INT(member_do(&a, CREDIT, 100), 0);
  member_end(&a);
  support_temp_dir_remove(&folder);
  LADE_ASSERT(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) LADE_SKIP("no namespace of time can be made here");
  LADE_EXPECT_EQ_INT(WEXITSTATUS(status), 0);
}
