/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library begin with the program's signals blocked. */
#include "base/thread.h"

#include <signal.h>

#include "tests/shim/lade_test.h"

static void *mask_get(void *user) {
  pthread_sigmask(SIG_SETMASK, NULL, user);
  return NULL;
}

LADE_TEST(Thread, BeginsWithTheProgramsSignalsBlocked) {
  sigset_t before, inside, after;
  pthread_t thread;
  pthread_sigmask(SIG_SETMASK, NULL, &before);
  LADE_ASSERT_EQ_INT(ladei_thread_start(&thread, mask_get, &inside), 0);
  pthread_join(thread, NULL);
  pthread_sigmask(SIG_SETMASK, NULL, &after);
  for (int number = 1; number < 32; number++) {
    bool own = number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL || number == SIGTRAP ||
               number == SIGSYS;
    bool never = number == SIGKILL || number == SIGSTOP;
    LADE_EXPECT_EQ_INT(sigismember(&inside, number), own || never ? 0 : 1);
    LADE_EXPECT_EQ_INT(sigismember(&after, number), sigismember(&before, number));
  }
}
