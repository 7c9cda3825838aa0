/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All programs of up to three functions and four calls over the bodies below, each against eager execution. A program of fewer calls is
 * the beginning of a longer one, and memory is compared after each call.
 *
 *   turn    drop the input; alloc; out local
 *   pass    out input
 *   both    alloc; out local, out input
 *   change  the input is static and mutated; mutate; alloc; out local, out input
 *
 * A call takes the program's memory, or lends or takes the newest output; before it a step may begin. LADE_SOAK_SECONDS: five calls.
 * Builds with sanitisers, which take ten times as long: three.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/graph/checker.h"
#include "tests/shim/lade_test.h"
#include "tests/support/soak.h"

enum { BODIES = 4, ARGUMENTS = 3, STEPS = 2, CHOICES = BODIES * ARGUMENTS * STEPS, FUNCTIONS_AT_MOST = 3, CALLS = 4 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LENGTH = CALLS - 1, PROGRAMS_AT_LEAST = 400 };
#else
enum { LENGTH = CALLS, PROGRAMS_AT_LEAST = 9000 };
#endif

static const char head[] = "lade-trees 1\ntree warmup:0\nmemory p 1000\n"
                           "function turn inference -\ndrop 0\nalloc 0 1000\nout local 0\nend\n"
                           "function pass inference -\nout input 0\nend\n"
                           "function both inference -\nalloc 0 1000\nout local 0\nout input 0\nend\n"
                           "function change inference sm\nmutate 0\nalloc 0 1000\nout local 0\nout input 0\nend\n";

static const char *const names[BODIES + 1] = {"turn", "pass", "both", "change", NULL};

typedef struct programs {
  const char *first; /* the body of the first call */
  size_t length;
  int calls[CALLS + 1];
  uint64_t count, whole; /* that were written; that are programs: a memory cannot be taken */
  char text[2048];
} programs;

static int body_of(int call) { return call / (ARGUMENTS * STEPS); }

/* How many functions the first `count` calls have. */
static int functions_count(const programs *p, size_t count) {
  unsigned used = 0;
  for (size_t i = 0; i < count; i++) used |= 1u << body_of(p->calls[i]);
  return __builtin_popcount(used);
}

static void program_write(programs *p) {
  char *to = p->text + sprintf(p->text, "%s", head);
  for (size_t i = 0; i < p->length; i++) {
    int argument = p->calls[i] / STEPS % ARGUMENTS;
    if (p->calls[i] % STEPS == 1) to += sprintf(to, "step\n");
    to += sprintf(to, "run r%zu %s 1 ", i, names[body_of(p->calls[i])]);
    if (argument == 0)
      to += sprintf(to, "p\n");
    else
      to += sprintf(to, "r%zu.0%s\n", i - 1, argument == 2 ? "!" : "");
  }
}

static void programs_run(programs *p, size_t at) {
  if (lade_test_has_failed()) return;
  if (at == p->length) {
    bool whole = false;
    program_write(p);
    bool right = checker_text_right(p->text, 1, &whole);
    p->count++;
    p->whole += whole;
    if (right) return;
    fprintf(stderr, "%s", p->text);
    LADE_EXPECT(false);
    return;
  }
  for (int call = 0; call < CHOICES; call++) {
    if (at == 0 && call % (ARGUMENTS * STEPS) != 0) continue; /* nothing was before it */
    if (at == 0 && names[body_of(call)] != p->first) continue;
    p->calls[at] = call;
    if (functions_count(p, at + 1) <= FUNCTIONS_AT_MOST) programs_run(p, at + 1);
  }
}

/* A case for each body that a program begins with, so that several run at once. */
LADE_TEST_P(GraphPrograms, AllShortOnesAreRight, names, first) {
  programs p = {.first = first, .length = support_soak_seconds(0) > 0 ? CALLS + 1 : LENGTH};
  programs_run(&p, 0);
  printf("%llu programs of %zu calls\n", (unsigned long long)p.whole, p.length);
  LADE_EXPECT_GE_UINT(p.whole, PROGRAMS_AT_LEAST);
}
