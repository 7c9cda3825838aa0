/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/stopped.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/lade_test.h"

bool support_stopped(void (*body)(void *user), void *user) {
  pid_t child = fork();
  if (child == 0) {
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGABRT, SIG_DFL);
    (void)!freopen("/dev/null", "w", stderr);
    body(user);
    _exit(0);
  }
  int status = 0;
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}
