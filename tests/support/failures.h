/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "The k-th call of every runtime op fails, for every k."
 *
 *   static lade_status use_pool(lade_runtime *runtime, void *user) { ... }    // first error, after cleaning up
 *
 *   LADE_TEST(PinnedPool, LosesNothingWhenAnyCallFails) {
 *     support_for_each_failure("sim", use_pool, NULL, NULL);
 *   }
 *
 * The scenario runs once undisturbed, to count the calls of each op. Then it runs again for each op and each of its
 * calls, on a new runtime in which that call fails. After each run: the call was reached; nothing is alive; the runtime
 * closes; and if the scenario returned an error, the error record names the op.
 */
#ifndef LADE_TESTS_SUPPORT_FAILURES_H
#define LADE_TESTS_SUPPORT_FAILURES_H

#include "lade/runtime.h"

/*
 * Makes objects, works with them, destroys them, and returns the first error it met, or LADE_OK where the code under
 * test got over the failure. It must leave nothing behind either way, and make the same calls each time: use "sim".
 */
typedef lade_status (*support_scenario)(lade_runtime *runtime, void *user);

typedef struct support_failure {
  const char *op; /* NULL in the undisturbed run */
  uint64_t nth;   /* which call of it failed */
} support_failure;

/* Called after each run, before the runtime closes, for checks of the test's own. */
typedef void (*support_failure_check)(lade_runtime *runtime, const support_failure *failure, lade_status status,
                                      void *user);

typedef struct support_failure_options {
  support_failure_check check;
  /* Also fail ops that free, destroy, release, unmap or unregister (support_op_releases). A runtime does not fail those
   * for valid objects, not even when its device is lost, so only code with a second attempt of its own passes. */
  bool releases_too;
  /* Let the failing call and all later ones of its op fail, not just one. */
  bool forever;
} support_failure_options;

/* For scenarios that go on after an error, and clean up: the first one is what they return. */
static inline void support_note(lade_status *first, lade_status status) {
  if (*first == LADE_OK) *first = status;
}

/* A call that must succeed at the second attempt, if not at the first: only one call of the driver fails. */
#define SUPPORT_TWICE(first, call)                                                                                     \
  do {                                                                                                                 \
    lade_status support_status = (call);                                                                               \
    support_note(first, support_status);                                                                               \
    if (support_status != LADE_OK) LADE_EXPECT_OK(call);                                                               \
  } while (0)

/* options may be NULL. Stops at the first failing run, whose op and call the failure messages name. */
void support_for_each_failure(const char *runtime_name, support_scenario scenario,
                              const support_failure_options *options, void *user);

#endif /* LADE_TESTS_SUPPORT_FAILURES_H */
