/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks without a launcher.
 *
 *   parent: fork, fork, ... -> wait for a child, a signal or the time limit -> exit with what they came to
 *   child:  variables of its rank -> on with the program
 *
 * P1  No rank outlives the parent: the kernel ends it.
 * P2  Once one has failed the others are asked to end (SIGTERM), and after a time ended (SIGKILL): none hangs.
 */
#include "benchmarks/staging_spawn.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "benchmarks/staging_messages.h"

enum { GRACE_SECONDS = 10, EXIT_FAILED = 1, EXIT_INTERRUPTED = 130 };

typedef struct family {
  pid_t *children; /* 0: ended */
  uint32_t count, alive;
  int exit_status;
  bool ending; /* P2 */
} family;

static void all_signal(const family *f, int number) {
  for (uint32_t i = 0; i < f->count; i++)
    if (f->children[i] > 0) (void)kill(f->children[i], number);
}

static void ending_begin(family *f, int exit_status) {
  if (f->exit_status == 0) f->exit_status = exit_status;
  if (f->ending) return;
  f->ending = true;
  all_signal(f, SIGTERM);
}

/* --- a child ------------------------------------------------------------------------------------------------------ */

static bool number_set(const char *name, uint32_t number) {
  char text[16];
  snprintf(text, sizeof text, "%u", number);
  return setenv(name, text, 1) == 0;
}

static bool variables_set(pid_t parent, uint32_t rank, uint32_t count) {
  return number_set("LOCAL_RANK", rank) && number_set("LOCAL_WORLD_SIZE", count) && number_set("RANK", rank) &&
         number_set("WORLD_SIZE", count) && number_set("MASTER_PORT", (uint32_t)parent) &&
         setenv("TORCHELASTIC_RUN_ID", "staging_throughput", 1) == 0;
}

/* P1: the parent may have ended before the kernel was told. */
static void child_begin(pid_t parent, uint32_t rank, uint32_t count, const sigset_t *before) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(EXIT_FAILED);
  sigprocmask(SIG_SETMASK, before, NULL);
  if (variables_set(parent, rank, count)) return;
  staging_error("rank %u: no memory for the variables of a rank", rank);
  _exit(EXIT_FAILED);
}

/* --- the parent --------------------------------------------------------------------------------------------------- */

static uint32_t rank_of(const family *f, pid_t child) {
  uint32_t rank = 0;
  while (rank < f->count && f->children[rank] != child) rank++;
  return rank;
}

/* The outcome of a rank; only the first failure is news. */
static void child_note(family *f, uint32_t rank, int status) {
  f->children[rank] = 0;
  f->alive--;
  if (WIFSIGNALED(status)) {
    if (!f->ending)
      staging_error("rank %u was ended by signal %d (%s)", rank, WTERMSIG(status), strsignal(WTERMSIG(status)));
    ending_begin(f, EXIT_FAILED);
  } else if (WEXITSTATUS(status) != 0) {
    if (!f->ending && WEXITSTATUS(status) != EXIT_INTERRUPTED)
      staging_error("rank %u has failed, with exit status %d", rank, WEXITSTATUS(status));
    ending_begin(f, WEXITSTATUS(status));
  }
}

static void children_reap(family *f) {
  int status;
  pid_t child;
  while ((child = waitpid(-1, &status, WNOHANG)) > 0) {
    uint32_t rank = rank_of(f, child);
    if (rank < f->count) child_note(f, rank, status);
  }
}

static _Noreturn void family_watch(family *f, const sigset_t *watched) {
  const struct timespec grace = {GRACE_SECONDS, 0};
  while (f->alive > 0) {
    int number = f->ending ? sigtimedwait(watched, NULL, &grace) : sigwaitinfo(watched, NULL);
    if (number == SIGINT || number == SIGTERM) ending_begin(f, EXIT_INTERRUPTED);
    if (number < 0 && errno == EAGAIN) all_signal(f, SIGKILL); /* P2 */
    children_reap(f);
  }
  free(f->children);
  exit(f->exit_status);
}

void staging_spawn(uint32_t count) {
  sigset_t watched, before;
  family f = {.children = calloc(count, sizeof(pid_t)), .count = count};
  pid_t parent = getpid();
  if (f.children == NULL) {
    staging_error("no memory for %u ranks", count);
    exit(EXIT_FAILED);
  }
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  sigaddset(&watched, SIGINT);
  sigaddset(&watched, SIGTERM);
  sigprocmask(SIG_BLOCK, &watched, &before);
  for (uint32_t rank = 0; rank < count && !f.ending; rank++) {
    pid_t child = fork();
    if (child == 0) {
      free(f.children);
      child_begin(parent, rank, count, &before);
      return;
    }
    if (child < 0) {
      staging_error("rank %u cannot be started: %s", rank, strerror(errno));
      ending_begin(&f, EXIT_FAILED);
    } else {
      f.children[rank] = child;
      f.alive++;
    }
  }
  family_watch(&f, &watched);
}
