/* SPDX-License-Identifier: Apache-2.0 */
/* The log: levels, lines that wait for a lock, sinks that are replaced, re-entrancy, fork, cancellation. */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "tests/shim/lade_test.h"

enum { HEARD_MOST = 64 };

typedef struct heard {
  int count;
  lade_log_level levels[HEARD_MOST];
  char texts[HEARD_MOST][128];
} heard;

static void hear(void *user, lade_log_level level, const char *text) {
  heard *h = user;
  if (h->count == HEARD_MOST) return;
  h->levels[h->count] = level;
  snprintf(h->texts[h->count++], sizeof h->texts[0], "%s", text);
}

static void log_off(void) { (void)lade_log_set(NULL, NULL, LADE_LOG_OFF); }

LADE_TEST(Log, IsOffAtFirst) {
  LADE_EXPECT_EQ_INT(atomic_load(&ladei_log_level), LADE_LOG_OFF);
  LADE_EXPECT(!ladei_log_wants(LADE_LOG_ERROR));
}

LADE_TEST(Log, HasALevelAndThoseAboveIt) {
  heard h = {0};
  LADE_ASSERT_OK(lade_log_set(hear, &h, LADE_LOG_WARN));
  ladei_log(LADE_LOG_ERROR, "e %d", 1);
  ladei_log(LADE_LOG_WARN, "w %d", 2);
  ladei_log(LADE_LOG_INFO, "i %d", 3);
  ladei_log(LADE_LOG_DEBUG, "d %d", 4);
  log_off();
  ladei_log(LADE_LOG_ERROR, "off");
  LADE_ASSERT_EQ_INT(h.count, 2);
  LADE_EXPECT_EQ_STR(h.texts[0], "e 1");
  LADE_EXPECT_EQ_STR(h.texts[1], "w 2");
  LADE_EXPECT_EQ_INT(h.levels[1], LADE_LOG_WARN);
}

static int evaluated;
static int evaluate(void) { return ++evaluated; }

LADE_TEST(Log, DoesNotMakeTheArgumentsOfALineThatIsOff) {
  evaluated = 0;
  ladei_log(LADE_LOG_ERROR, "%d", evaluate());
  ladei_log_later(LADE_LOG_ERROR, "%d", evaluate());
  LADE_EXPECT_EQ_INT(evaluated, 0);
}

LADE_TEST(Log, RefusesLevelsThatAreNone) {
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_log_set(hear, NULL, (lade_log_level)5));
  LADE_EXPECT_EQ_STR(lade_last_error()->text,
                     "lade_log_set: level is 5; expected LADE_LOG_OFF to LADE_LOG_DEBUG (0 to 4)");
  LADE_EXPECT_EQ_INT(atomic_load(&ladei_log_level), LADE_LOG_OFF);
  LADE_EXPECT_EQ_STR(ladei_log_level_name(LADE_LOG_WARN), "warn");
  LADE_EXPECT_EQ_STR(ladei_log_level_name((lade_log_level)7), "unknown");
}

LADE_TEST(Log, IsFitForATerminal) {
  heard h = {0};
  LADE_ASSERT_OK(lade_log_set(hear, &h, LADE_LOG_DEBUG));
  ladei_log(LADE_LOG_WARN, "file \x1b[2J\n");
  log_off();
  LADE_EXPECT_EQ_STR(h.texts[0], "file ?[2J?");
}

/* --- locks -------------------------------------------------------------------------------------------------------- */

/* In a build without NDEBUG a callback under a lock ends the program. */
LADE_TEST(Log, LinesUnderALockWaitForItsRelease) {
  heard h = {0};
  ladei_lock lock;
  ladei_lock_init(&lock, LADEI_RANK_LEAF);
  LADE_ASSERT_OK(lade_log_set(hear, &h, LADE_LOG_DEBUG));
  ladei_lock_acquire(&lock);
  ladei_log_later(LADE_LOG_ERROR, "first");
  ladei_log_later(LADE_LOG_INFO, "second");
  LADE_EXPECT_EQ_INT(h.count, 0);
  ladei_lock_release(&lock);
  ladei_log_flush();
  LADE_ASSERT_EQ_INT(h.count, 2);
  LADE_EXPECT_EQ_STR(h.texts[0], "first");
  LADE_EXPECT_EQ_STR(h.texts[1], "second");
  ladei_log_later(LADE_LOG_WARN, "before");
  ladei_log(LADE_LOG_WARN, "after");
  log_off();
  LADE_ASSERT_EQ_INT(h.count, 4);
  LADE_EXPECT_EQ_STR(h.texts[2], "before");
  LADE_EXPECT_EQ_STR(h.texts[3], "after");
  ladei_lock_destroy(&lock);
}

LADE_TEST(Log, CountsLinesThatFindNoRoomToWait) {
  heard h = {0};
  LADE_ASSERT_OK(lade_log_set(hear, &h, LADE_LOG_DEBUG));
  for (int i = 0; i < 35; i++) ladei_log_later(LADE_LOG_INFO, "line %d", i);
  ladei_log_flush();
  log_off();
  LADE_ASSERT_EQ_INT(h.count, 33);
  LADE_EXPECT_EQ_STR(h.texts[31], "line 31");
  LADE_EXPECT_EQ_STR(h.texts[32], "log: 3 lines are missing: too many waited for a lock");
  LADE_EXPECT_EQ_UINT(atomic_load(&ladei_log_waiting_count), 0);
}

LADE_TEST(Log, LinesThatWaitGoToTheirOwnSink) {
  heard old = {0}, next = {0};
  LADE_ASSERT_OK(lade_log_set(hear, &old, LADE_LOG_DEBUG));
  ladei_log_later(LADE_LOG_INFO, "of the old one");
  LADE_ASSERT_OK(lade_log_set(hear, &next, LADE_LOG_DEBUG));
  ladei_log_flush();
  log_off();
  LADE_EXPECT_EQ_INT(old.count, 1);
  LADE_EXPECT_EQ_INT(next.count, 0);
}

/* --- what the caller has ------------------------------------------------------------------------------------------ */

static void spoil(void *user, lade_log_level level, const char *text) {
  hear(user, level, text);
  errno = EIO;
  (void)lade_log_set(NULL, NULL, (lade_log_level)9); /* fails */
}

LADE_TEST(Log, LeavesErrnoAndTheLastErrorAlone) {
  heard h = {0};
  LADE_ASSERT_OK(lade_log_set(spoil, &h, LADE_LOG_DEBUG));
  (void)ladei_error(LADE_ERR_LIMIT, 7, "mine");
  errno = ENOENT;
  ladei_log(LADE_LOG_INFO, "a line");
  LADE_EXPECT_EQ_INT(errno, ENOENT);
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "mine");
  LADE_EXPECT_EQ_INT(h.count, 1);
  log_off();
}

static void log_again(void *user, lade_log_level level, const char *text) {
  hear(user, level, text);
  ladei_log(LADE_LOG_INFO, "of the callback");
  ladei_log_later(LADE_LOG_INFO, "of the callback");
  ladei_log_flush();
}

LADE_TEST(Log, LinesOfTheCallbackAreDropped) {
  heard h = {0};
  LADE_ASSERT_OK(lade_log_set(log_again, &h, LADE_LOG_DEBUG));
  ladei_log(LADE_LOG_INFO, "one");
  ladei_log(LADE_LOG_INFO, "two");
  log_off();
  LADE_ASSERT_EQ_INT(h.count, 2);
  LADE_EXPECT_EQ_STR(h.texts[1], "two");
}

static void log_end(void *user, lade_log_level level, const char *text) {
  hear(user, level, text);
  (void)lade_log_set(NULL, NULL, LADE_LOG_OFF);
}

/* A setter that waited for the callback which it is in would wait for ever. */
LADE_TEST(Log, IsSetFromWithinItsCallback) {
  heard h = {0};
  LADE_ASSERT_OK(lade_log_set(log_end, &h, LADE_LOG_DEBUG));
  ladei_log(LADE_LOG_INFO, "one");
  ladei_log(LADE_LOG_INFO, "two");
  LADE_EXPECT_EQ_INT(h.count, 1);
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

typedef struct gate {
  _Atomic(int) inside, open, left;
} gate;

static void hold(void *user, lade_log_level level, const char *text) {
  gate *g = user;
  (void)level;
  (void)text;
  atomic_store(&g->inside, 1);
  while (atomic_load(&g->open) == 0) sched_yield();
  atomic_store(&g->left, 1);
}

static void *one_line(void *user) {
  (void)user;
  ladei_log(LADE_LOG_INFO, "a line");
  return NULL;
}

static void *gate_open(void *user) {
  gate *g = user;
  for (int i = 0; i < 100; i++) sched_yield(); /* the setter most likely waits by now */
  atomic_store(&g->open, 1);
  return NULL;
}

LADE_TEST(Log, SettingWaitsForCallsOfTheFormerCallback) {
  gate g = {0};
  pthread_t line, opener;
  LADE_ASSERT_OK(lade_log_set(hold, &g, LADE_LOG_DEBUG));
  LADE_ASSERT_EQ_INT(pthread_create(&line, NULL, one_line, NULL), 0);
  while (atomic_load(&g.inside) == 0) sched_yield();
  LADE_ASSERT_EQ_INT(pthread_create(&opener, NULL, gate_open, &g), 0);
  log_off();
  LADE_EXPECT_EQ_INT(atomic_load(&g.left), 1);
  pthread_join(line, NULL);
  pthread_join(opener, NULL);
}

static void count_line(void *user, lade_log_level level, const char *text) {
  (void)level;
  (void)text;
  ++*(_Atomic(int) *)user;
}

static void *many_lines(void *user) {
  (void)user;
  for (int i = 0; i < 300; i++) {
    ladei_log_later(LADE_LOG_INFO, "waits %d", i);
    ladei_log(LADE_LOG_INFO, "line %d", i);
  }
  return NULL;
}

/* Under the thread sanitiser: lines beside setters. With the last setter gone, nothing is delivered any more. */
LADE_TEST(Log, ManyThreadsWriteWhileSinksChange) {
  _Atomic(int) counts[2] = {0};
  pthread_t threads[3];
  LADE_ASSERT_OK(lade_log_set(count_line, &counts[0], LADE_LOG_DEBUG));
  for (int i = 0; i < 3; i++) LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, many_lines, NULL), 0);
  for (int i = 0; i < 100; i++) LADE_EXPECT_OK(lade_log_set(count_line, &counts[i % 2], LADE_LOG_DEBUG));
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  ladei_log_flush();
  log_off();
  int sum = atomic_load(&counts[0]) + atomic_load(&counts[1]);
  LADE_EXPECT_GE_INT(sum, 900);
  LADE_EXPECT_LE_INT(sum, 1800);
  LADE_EXPECT_EQ_UINT(atomic_load(&ladei_log_waiting_count), 0);
}

static void cancellation_point(void *user, lade_log_level level, const char *text) {
  (void)level;
  (void)text;
  pthread_testcancel();
  ++*(int *)user;
}

static void *cancelled_thread(void *user) {
  (void)user;
  pthread_cancel(pthread_self());
  ladei_log(LADE_LOG_INFO, "a line");
  pthread_testcancel();
  return NULL;
}

/* A thread that ended in the callback would leave a delivery behind that every setter waits for. */
LADE_TEST(Log, HoldsCancellationOff) {
  int count = 0;
  void *result = NULL;
  pthread_t thread;
  LADE_ASSERT_OK(lade_log_set(cancellation_point, &count, LADE_LOG_DEBUG));
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, cancelled_thread, NULL), 0);
  pthread_join(thread, &result);
  LADE_EXPECT(result == PTHREAD_CANCELED);
  LADE_EXPECT_EQ_INT(count, 1);
  log_off();
}

/* --- fork --------------------------------------------------------------------------------------------------------- */

static int child_status(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The other thread's delivery does not go on in the child: its setter must not wait for it. */
LADE_TEST(Log, ChildHasTheSinkAndWaitsForNoThreadOfItsParent) {
  gate g = {0};
  pthread_t line;
  LADE_ASSERT_OK(lade_log_set(hold, &g, LADE_LOG_DEBUG));
  LADE_ASSERT_EQ_INT(pthread_create(&line, NULL, one_line, NULL), 0);
  while (atomic_load(&g.inside) == 0) sched_yield();
  pid_t child = fork();
  if (child == 0) {
    heard h = {0};
    alarm(20); /* ends a child that waits for ever */
    if (atomic_load(&ladei_log_level) != LADE_LOG_DEBUG) _exit(1);
    if (lade_log_set(hear, &h, LADE_LOG_DEBUG) != LADE_OK) _exit(2);
    ladei_log(LADE_LOG_INFO, "of the child");
    _exit(h.count == 1 ? 0 : 3);
  }
  LADE_EXPECT_EQ_INT(child_status(child), 0);
  atomic_store(&g.open, 1);
  pthread_join(line, NULL);
  log_off();
}

static void fork_in_it(void *user, lade_log_level level, const char *text) {
  (void)level;
  (void)text;
  *(pid_t *)user = fork();
}

LADE_TEST(Log, ForksInItsCallback) {
  pid_t child = -1;
  LADE_ASSERT_OK(lade_log_set(fork_in_it, &child, LADE_LOG_DEBUG));
  ladei_log(LADE_LOG_INFO, "a line");
  if (child == 0) {
    alarm(20);
    _exit(lade_log_set(NULL, NULL, LADE_LOG_OFF) == LADE_OK ? 0 : 1);
  }
  LADE_EXPECT_EQ_INT(child_status(child), 0);
  log_off();
}
