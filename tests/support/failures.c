/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a scenario once for every call of every op, with that call failing.
 *
 * I1  Each run has a runtime of its own, so that no run sees what an earlier one broke.
 */
#include "tests/support/failures.h"

#include <inttypes.h>
#include <stdlib.h>

#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

typedef struct failure_run {
  const char *runtime_name;
  support_scenario scenario;
  support_failure_options options;
  void *user;
} failure_run;

static void run_check(const failure_run *run, lade_runtime *runtime, const support_failure *failure,
                      lade_status status) {
  support_expect_nothing_live(runtime);
  if (failure->op == NULL) {
    LADE_EXPECT_STATUS(LADE_OK, status);
  } else {
    if (support_failed_calls(runtime) == 0) LADE_FAIL("the scenario did not reach that call when run again");
    if (status != LADE_OK) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, failure->op);
  }
  if (run->options.check != NULL) run->options.check(runtime, failure, status, run->user);
}

/* One run; stores the calls of each op where counts is not NULL. */
static void run_once(const failure_run *run, const support_failure *failure, uint64_t *counts) {
  lade_runtime *runtime = support_interposer_open(run->runtime_name, NULL);
  if (runtime == NULL) return;
  if (failure->op != NULL) support_fail(runtime, failure->op, failure->nth, run->options.forever ? UINT64_MAX : 1);
  lade_status status = run->scenario(runtime, run->user);
  run_check(run, runtime, failure, status);
  for (size_t op = 0; counts != NULL && op < support_op_count(); op++)
    counts[op] = support_call_count(runtime, support_op_name(op));
  /* Closing is not part of the scenario: no planned failure may hit it. */
  if (failure->op != NULL) support_fail(runtime, failure->op, 1, 0);
  support_runtime_close(runtime);
}

static void run_each_call(const failure_run *run, const char *op, uint64_t calls) {
  for (uint64_t nth = 1; nth <= calls && !lade_test_has_failed(); nth++) {
    lade_test_context("%s: call %" PRIu64 " of %" PRIu64 " fails", op, nth, calls);
    run_once(run, &(support_failure){op, nth}, NULL);
  }
}

void support_for_each_failure(const char *runtime_name, support_scenario scenario,
                              const support_failure_options *options, void *user) {
  failure_run run = {runtime_name, scenario, {0}, user};
  if (options != NULL) run.options = *options;
  uint64_t *counts = calloc(support_op_count(), sizeof *counts);
  if (counts == NULL) abort();
  lade_test_context("undisturbed run");
  run_once(&run, &(support_failure){NULL, 0}, counts);
  for (size_t op = 0; op < support_op_count() && !lade_test_has_failed(); op++) {
    if (support_op_releases(op) && !run.options.releases_too) continue;
    run_each_call(&run, support_op_name(op), counts[op]);
  }
  if (!lade_test_has_failed()) lade_test_context("%s", "");
  free(counts);
}
