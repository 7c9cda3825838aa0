#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# For tests that run `lade` as a user types it. They source this file, called as: NAME_test.sh LADE
#
#   run STATUS ARGUMENT...   runs `lade` and leaves its output in $dir/out and $dir/err; its exit status must be STATUS
#   says WORDS FILE          $dir/FILE, which is out or err, must have the words
#   fail MESSAGE             counts a failure
#   finish                   ends the test
lade=$1
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

run() {
  wanted=$1
  shift
  "$lade" "$@" >"$dir/out" 2>"$dir/err"
  status=$?
  [ "$status" = "$wanted" ] || fail "lade $*: exit status $status, not $wanted: $(cat "$dir/err")"
}

says() { grep -qF -- "$1" "$dir/$2" || fail "no '$1' in: $(cat "$dir/$2")"; }

finish() { exit $((failures != 0)); }
