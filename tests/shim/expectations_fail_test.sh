#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs failing_tests and demands that every test of its suite Fails is reported as failed, with both values, and the one
# of its suite Skips as skipped.
set -u
program=$1
report=$(mktemp)
trap 'rm -f "$report"' EXIT
# GoogleTest would write its XML over this test's own.
unset XML_OUTPUT_FILE
"$program" >"$report" 2>&1
status=$?
problems=0

demand() { # TEXT...: each must be in the report
  for text; do
    grep -qF -- "$text" "$report" || { echo "not reported: $text"; problems=$((problems + 1)); }
  done
}

[ "$status" -eq 1 ] || { echo "exit status $status instead of 1"; problems=1; }
tests=$("$program" --gtest_list_tests --gtest_filter='Fails.*' | grep -c '^  ')
failed=$(grep -c '^\[  FAILED  \] Fails\.[A-Za-z]* (' "$report")
[ "$tests" -ge 20 ] || { echo "only $tests tests listed"; problems=$((problems + 1)); }
[ "$failed" -eq "$tests" ] || { echo "$failed of $tests tests failed"; problems=$((problems + 1)); }

demand 'expected: 1 == 2' 'expected: false' 'expected: NULL == (void *)0x1000' 'expected: -7 == 41' '  -7: -7' '  41: 41' '4096: 4096 (0x1000)' '512: 512 (0x200)' \
  'tolerance 0.25' ': NULL' ': 0x1000' '"bow": "bow"' '"stern": "stern"' '"hull" contains "mast"' \
  '2 of 4 bytes differ, first at 2: 0x63, 0x58' 'block 17 is lost' 'LADE_NOT_READY gives LADE_ERR_BUSY' \
  'but it gave LADE_ERR_LIMIT: 512 bytes over the cap' 'context: seed 99' 'FAILURE KNOWN' \
  'expected: 20 == 22' 'failing_tests.c:' '[       OK ] Passes.WithoutContextOfTheTestBefore' \
  '[  SKIPPED ] Skips.AndReturns' 'no winch aboard'
if [ "$(grep -c 'context:' "$report")" -ne 1 ]; then
  echo "the context of one test shows in another"
  problems=$((problems + 1))
fi
if grep 'AN OLDER FAILURE' "$report"; then
  echo "the text of another error shows"
  problems=$((problems + 1))
fi
if grep 'WENT ON AFTER' "$report"; then
  echo "LADE_ASSERT or LADE_SKIP did not return"
  problems=$((problems + 1))
fi
[ "$problems" -eq 0 ] || { cat "$report"; exit 1; }
