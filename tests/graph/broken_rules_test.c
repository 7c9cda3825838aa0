/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model checker notices every rule that is left out: the tree is built with a switch at each (break_rules.py). A rule is tried in a
 * child, since what follows may be an assertion that fails or a wild write.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/graph/checker.h"
#include "tests/shim/lade_test.h"

extern int lade_graph_broken_rule;
extern const char *const lade_graph_rules[];

enum { CALLS_OF_A_PROGRAM = 60, CALLS_AT_MOST = 60000, SECONDS_AT_MOST = 60, EXIT_NOTICED = 7 };

/* In the child: goes on until something is wrong. */
static void programs_run(int rule) {
  struct rlimit none = {0, 0};
  checker_counts counts = {0};
  lade_graph_broken_rule = rule;
  (void)setrlimit(RLIMIT_CORE, &none);
  int nothing = open("/dev/null", O_WRONLY);
  if (nothing >= 0) (void)dup2(nothing, 2);
  alarm(SECONDS_AT_MOST); /* a loop without end is noticed, too */
  for (uint64_t seed = 1; counts.calls < CALLS_AT_MOST; seed++) {
    char *text = NULL;
    if (!checker_program(seed, CALLS_OF_A_PROGRAM, &counts, &text)) _exit(EXIT_NOTICED);
    free(text);
  }
  _exit(0);
}

static bool is_noticed(int rule) {
  int status = 0;
  pid_t child = fork();
  if (child == 0) programs_run(rule);
  if (child < 0 || waitpid(child, &status, 0) != child) return false;
  return WIFSIGNALED(status) || WEXITSTATUS(status) != 0;
}

LADE_TEST(GraphBrokenRules, EveryOneIsNoticed) {
  size_t count = 0;
  for (; lade_graph_rules[count] != NULL; count++) {
    if (is_noticed((int)count + 1)) continue;
    fprintf(stderr, "nobody notices that a rule is left out: %s\n", lade_graph_rules[count]);
    LADE_EXPECT(false);
  }
  printf("%zu rules\n", count);
  LADE_EXPECT_GE_SIZE(count, 15);
}

LADE_TEST(GraphBrokenRules, NothingIsNoticedWhileNoneIs) {
  checker_counts counts = {0};
  for (uint64_t seed = 1; counts.calls < 6000; seed++) {
    char *text = NULL;
    LADE_EXPECT(checker_program(seed, CALLS_OF_A_PROGRAM, &counts, &text));
    free(text);
  }
}
