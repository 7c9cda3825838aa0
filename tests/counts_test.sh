#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# .ci/counts.sh: what failed is counted and named, and nothing else is.
# usage: counts_test.sh COUNTS
set -u
counts=$PWD/$1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
problems=0

# expect WHAT SUMS NAMES STATUS: of a suite that prints standard input and ends with the status
expect() {
  local sums
  . "$counts"
  cat >"$scratch/lines"
  count_suite s bash -c 'cat "$1"; exit "$2"' - "$scratch/lines" "$4" >/dev/null
  sums="$passed $failed $skipped"
  [ "$sums" = "$2" ] && [ "$(IFS='|'; echo "${failures[*]}")" = "$3" ] && return
  echo "$1: passed, failed, skipped: $sums instead of $2; names:"
  printf '  %s\n' "${failures[@]}"
  problems=$((problems + 1))
}

expect "all passed" "3 0 1" "" 0 <<'END'
FAILED is a word of a log
3 passed, 0 failed, 1 skipped
END
# Bug: the sum that Python's unittest prints was taken for a test's name.
expect "unittest" "3 2 0" "s: //a:x_test X.y|s: //a:z_test (timeout)" 1 <<'END'
FAILED (errors=1)
FAILED (failures=1, errors=1)
FAILED //a:x_test X.y
FAILED //a:z_test (timeout)
3 passed, 2 failed
END
expect "a list twice" "3 1 0" "s: tests/python/test_a.py::test_b - ValueError" 1 <<'END'
FAILED tests/python/test_a.py::test_b - ValueError
FAILED tests/python/test_a.py::test_b - ValueError
3 passed, 1 failed
END
# Bug: a suite that broke off after it had named a failure counted none, and everything passed.
expect "broken off" "0 2 0" "s: one|s: other" 1 <<'END'
FAILED one
FAILED other
END
expect "broken off in unittest" "0 1 0" "s: ended with status 1" 1 <<'END'
FAILED (errors=1)
END
expect "killed at its end" "3 1 0" "s: ended with status 137" 137 <<'END'
3 passed, 0 failed
END
expect "no closing line" "0 1 0" "s: ended with status 0" 0 </dev/null
expect "no names" "2 2 0" "s: ended with status 1" 1 <<'END'
2 passed, 2 failed
END

. "$counts"
count_check good true >/dev/null
count_check away bash -c 'exit 77' >/dev/null
count_check bad false >/dev/null
[ "$passed $failed $skipped ${failures[*]}" = "1 1 1 bad" ] || problems=$((problems + 1))
[ $problems -eq 0 ]
