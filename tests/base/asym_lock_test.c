/* SPDX-License-Identifier: Apache-2.0 */
/* Gates: who gets in, what a visitor may rely on, and that it sleeps while it waits. */
#include "base/asym_lock.h"

#include <dlfcn.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/shim/lade_test.h"
#include "tests/support/asleep.h"

/* How often the process registered for membarrier. */
static atomic_int registrations;

/* Instead of libc's own. */
long syscall(long number, ...) {
  long (*next)(long, ...) = (long (*)(long, ...))(uintptr_t)dlsym(RTLD_NEXT, "syscall");
  long at[6];
  va_list arguments;
  va_start(arguments, number);
  for (int i = 0; i < 6; i++) at[i] = va_arg(arguments, long);
  va_end(arguments);
  /* The kernel takes the command as an int, and so is it passed. */
  if (number == SYS_membarrier && (int)at[0] == MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
    atomic_fetch_add(&registrations, 1);
  return next(number, at[0], at[1], at[2], at[3], at[4], at[5]);
}

static void *owner_begins(void *user) {
  (void)user;
  ladei_asym_lock lock;
  ladei_asym_lock_init(&lock);
  LADE_EXPECT(ladei_asym_lock_enter(&lock));
  ladei_asym_lock_leave(&lock);
  return NULL;
}

static int registrations_of_owners(void) {
  enum { OWNERS = 4 };
  pthread_t threads[OWNERS];
  int before = atomic_load(&registrations);
  for (int i = 0; i < OWNERS; i++) LADE_EXPECT_EQ_INT(pthread_create(&threads[i], NULL, owner_begins, NULL), 0);
  for (int i = 0; i < OWNERS; i++) pthread_join(threads[i], NULL);
  return atomic_load(&registrations) - before;
}

/* The bug: the first call of each thread registered the process, which waits for all processors: 20 ms with 16 of them,
 * before the first bytes of the first transfer. */
LADE_TEST(Gate, OwnersDoNotWaitForTheProcessToRegister) {
  LADE_EXPECT_EQ_INT(registrations_of_owners(), 0);
  int status = -1;
  pid_t child = fork();
  if (child == 0) _exit(registrations_of_owners() == 0 && ladei_asym_lock_barrier() ? 0 : 1);
  LADE_ASSERT(waitpid(child, &status, 0) == child && WIFEXITED(status));
  LADE_EXPECT_EQ_INT(WEXITSTATUS(status), 0);
}

LADE_TEST(Gate, OwnerStaysOutWhileAVisitorIsThere) {
  ladei_asym_lock lock;
  ladei_asym_lock_init(&lock);
  LADE_EXPECT(ladei_asym_lock_enter(&lock));
  ladei_asym_lock_leave(&lock);
  (void)ladei_asym_lock_close(&lock);
  LADE_EXPECT(ladei_asym_lock_wait(&lock, ladei_asym_lock_barrier()));
  LADE_EXPECT(!ladei_asym_lock_enter(&lock));
  LADE_EXPECT(!ladei_asym_lock_is_called(&lock));
  ladei_asym_lock_open(&lock);
  LADE_EXPECT(ladei_asym_lock_enter(&lock));
}

LADE_TEST(Gate, OwnerThatCannotBeFencedIsCalledAndPaysFromThenOn) {
  ladei_asym_lock lock;
  ladei_asym_lock_init(&lock);
  LADE_EXPECT(ladei_asym_lock_close(&lock));
  LADE_EXPECT(!ladei_asym_lock_wait(&lock, false));
  LADE_EXPECT(!ladei_asym_lock_enter(&lock));
  LADE_EXPECT(ladei_asym_lock_is_called(&lock));
  ladei_asym_lock_answer(&lock);
  LADE_EXPECT(ladei_asym_lock_enter(&lock));
  ladei_asym_lock_leave(&lock);
  LADE_EXPECT(!ladei_asym_lock_close(&lock)); /* needs no barrier */
  LADE_EXPECT(ladei_asym_lock_wait(&lock, false));
  ladei_asym_lock_open(&lock);
}

/* ---- A visitor waits --------------------------------------------------------------------------------------------- */

typedef struct visitor {
  ladei_asym_lock lock;
  pthread_t thread;
  _Atomic(int) id; /* of the thread, for the system; 0: not yet there */
} visitor;

/* Above what other threads of the test have, where that is allowed. */
static void priority_raise(void) {
  const struct sched_param high = {.sched_priority = 10};
  (void)pthread_setschedparam(pthread_self(), SCHED_FIFO, &high);
}

static void *visit(void *user) {
  visitor *own = user;
  priority_raise();
  (void)ladei_asym_lock_close(&own->lock);
  atomic_store(&own->id, (int)syscall(SYS_gettid));
  LADE_EXPECT(ladei_asym_lock_wait(&own->lock, ladei_asym_lock_barrier()));
  ladei_asym_lock_open(&own->lock);
  return NULL;
}

static bool falls_asleep(const visitor *own) {
  enum { LOOKS = 400000 }; /* 40 s: on a machine that does much else it may come late */
  const struct timespec pause = {.tv_nsec = 100 * 1000};
  for (int i = 0; i < LOOKS; i++) {
    int thread = atomic_load(&own->id);
    if (thread != 0 && support_thread_sleeps(thread)) return true;
    nanosleep(&pause, NULL);
  }
  return false;
}

/* The bug: it only yielded, which a thread of real-time priority does to its equals alone. An owner that was taken off
 * the same processor inside its lock stayed there until the scheduler had enough of the visitor, for a second. */
LADE_TEST(Gate, VisitorSleepsUntilTheOwnerIsOut) {
  static visitor own;
  ladei_asym_lock_init(&own.lock);
  LADE_ASSERT(ladei_asym_lock_enter(&own.lock));
  LADE_ASSERT_EQ_INT(pthread_create(&own.thread, NULL, visit, &own), 0);
  LADE_EXPECT(falls_asleep(&own));
  ladei_asym_lock_leave(&own.lock);
  pthread_join(own.thread, NULL);
  LADE_EXPECT(ladei_asym_lock_enter(&own.lock));
}
