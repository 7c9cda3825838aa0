#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `lade replay` as a user types it: output, errors on standard error, exit status.
# usage: command_test.sh LADE
set -u
. tests/tools/command.sh

printf 'lade-trace 1\nalloc 1 1000 0\nsnapshot first\nalloc 2 30000000 0\nfree 1\nsnapshot last\n' >"$dir/good"
printf 'lade-trace 1\nalloc 1 1000 0\nsnapshot first\nfree 2\n' >"$dir/bad"

run 0 replay --json "$dir/good"
python3 - "$dir/out" <<'PYTHON' || fail "the JSON report is not what it should be"
import json, sys
report = json.load(open(sys.argv[1]))
assert report["version"] == 1 and len(report["snapshots"]) == 2, report
first, last = report["snapshots"]
assert first["label"] == "first" and first["line"] == 3 and last["line"] == 6
assert len(first["stats"]) == 122, len(first["stats"])
assert set(first) == {"label", "line", "oom", "stats", "segments", "pinned"}
assert set(first["pinned"]) == {"in_use_blocks", "requested_bytes", "reserved_bytes", "driver_allocs", "driver_frees",
                                "events_recorded", "pending_blocks"}
assert last["segments"][1]["blocks"][0]["id"] == 2
PYTHON

run 0 replay "$dir/good"
grep -q 'last (line 6)' "$dir/out" || fail "no summary of the second snapshot"
run 0 replay - <"$dir/good"
grep -q 'first (line 3)' "$dir/out" || fail "standard input was not read"

run 2 replay --json "$dir/bad"
[ -s "$dir/out" ] && fail "a report in spite of an error"
grep -q "^$dir/bad:4: free: ID 2 is not live" "$dir/err" || fail "no file and line: $(cat "$dir/err")"

run 0 replay "$dir/good" --compare expandable_segments:True max_split_size_mb:21
[ "$(wc -l <"$dir/out")" = 4 ] || fail "not one row per setting: $(cat "$dir/out")"
run 0 replay --compare expandable_segments:True "$dir/good"
[ "$(wc -l <"$dir/out")" = 3 ] || fail "the trace may come last"
# Peaks and counts of a comparison are those of the whole replay, whatever the trace resets.
{
  printf 'lade-trace 1\ndevice 41943040\n'
  printf 'alloc 1 31457280 0\nalloc 2 31457280 0\nfree 2\nfree 1\nempty_cache\nreset_peak\nreset_accumulated\n'
  printf 'alloc 3 20971520 0\nalloc 4 31457280 0\n'
} >"$dir/resets"
run 0 replay "$dir/resets" --compare
grep -Eq '^\(as in the trace\) +30\.00 +30\.00 +0\.0000 +2 +2 +2$' "$dir/out" ||
  fail "a comparison forgets what came before a reset: $(cat "$dir/out")"
printf 'lade-trace 1\nhalloc 1 9000000\n' >"$dir/pinned"
run 2 replay "$dir/pinned" --compare pinned_max_mb:64 pinned_max_mb:1
grep -q "^lade replay: that was with pinned_max_mb:1\$" "$dir/err" || fail "which settings fail? $(cat "$dir/err")"
[ ! -s "$dir/out" ] || fail "half a comparison"
run 2 replay "$dir/good" --compare nonsense
run 2 replay --json "$dir/good" --conf nonsense:1
printf 'lade-trace 1\n' >"$dir/empty"
run 2 replay "$dir/empty" --conf nonsense:1
grep -q 'unknown key "nonsense"' "$dir/err" || fail "settings of an empty trace were not looked at: $(cat "$dir/err")"
run 2 replay "$dir/no_such_file" --compare expandable_segments:True nonsense:1
grep -q 'unknown key "nonsense"' "$dir/err" || fail "settings to compare were not looked at first: $(cat "$dir/err")"
run 1 replay "$dir"
(
  # shellcheck disable=SC3045 # dash and bash have it
  ulimit -v 60000
  "$lade" --help >/dev/null 2>&1 || exit 0 # a sanitiser does not even start in so little
  awk 'BEGIN { print "lade-trace 1"; for (i = 1; i <= 600000; i++) print "alloc", i, 1, 0 }' >"$dir/large"
  "$lade" replay "$dir/large" >"$dir/out" 2>"$dir/err"
  [ $? = 1 ]
) || fail "running out of memory is not exit status 1: $(cat "$dir/err")"

run 0 --help
run 0 replay --help
grep -q '^Usage: lade replay \[OPTION...\] TRACE' "$dir/out" || fail "the help has not the style of other commands"
run 2
run 2 nonsense
run 2 replay
run 2 replay --nonsense
run 2 replay a b
run 1 replay "$dir/no_such_file"
if [ -w /dev/full ]; then
  "$lade" replay "$dir/good" >/dev/full 2>"$dir/err"
  [ $? = 1 ] || fail "a full disk was not noticed"
fi

# What a trace says is no command to a terminal.
escape=$(printf '\033[31m')
printf 'lade-trace 1\nsnapshot x\033[31my\n' >"$dir/label.trace"
run 0 replay "$dir/label.trace"
says 'x?[31my (line 2)' out
printf 'lade-trace 1\nmove\033[31m 1\n' >"$dir/move.trace"
run 2 replay "$dir/move.trace"
LC_ALL=C grep -qF "$escape" "$dir/out" "$dir/err" && fail "a trace's words reach the terminal"

# A file of zeros was read to its end for its first line, which took as much memory.
{ head -c 300000000 /dev/zero && : >"$dir/all_read"; } 2>"$dir/head" | "$lade" replay - >"$dir/out" 2>"$dir/err"
says "standard input:1: malformed line: it holds a zero byte" err
[ ! -e "$dir/all_read" ] || fail "all of a file of zeros is read"

finish
