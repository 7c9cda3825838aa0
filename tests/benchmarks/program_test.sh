#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A benchmark on the common frame: lists its cases, runs quickly, writes rows of the agreed shape, refuses nonsense.
# usage: program_test.sh PROGRAM
set -u
program=$1
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failures=0
fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# Allocators that are measured beside lade are not made for the thread sanitiser.
if grep -qa __tsan_init "$program" && grep -qa je_malloc "$program"; then
  echo "left out under the thread sanitiser"
  exit 0
fi
if [ "${program##*/}" = urls ] && ! PATH=$PATH:/usr/sbin command -v nginx >/dev/null; then
  echo "left out: no nginx"
  exit 0
fi
"$program" --list >"$folder/list" || fail "--list"
[ -s "$folder/list" ] || fail "--list lists nothing"
"$program" --quick --json "$folder/json" >"$folder/out" || fail "--quick"
python3 - "$folder/json" "$folder/list" <<'EOF' || fail "rows"
import json, sys
rows = json.load(open(sys.argv[1]))
cases = [line.split()[0] for line in open(sys.argv[2])]
assert {row["case"] for row in rows} == set(cases), cases
for row in rows:
    assert set(row) == {"case", "params", "unit", "lade", "baselines", "spread"}, row
    assert row["baselines"] or row["unit"] == "x", row  # ratios have their baseline in them
    assert set(row["spread"]) == set(row["baselines"]) | {"lade"}, row
    low, high = row["spread"]["lade"]
    assert low <= row["lade"] <= high, row
EOF
"$program" --quick no-such-case >/dev/null 2>"$folder/err"
[ $? -eq 2 ] || fail "an unknown case is no bad usage"
grep -q no-such-case "$folder/err" || fail "the unknown case is not named"
"$program" --no-such-flag >/dev/null 2>&1
[ $? -eq 2 ] || fail "an unknown flag is no bad usage"
first=$(awk 'NR == 1 { print $1 }' "$folder/list")
"$program" --quick --json /dev/full "$first" >/dev/null 2>&1 && fail "a full disk is a success"
[ $failures -eq 0 ] && echo "all cases passed"
exit $((failures != 0))
