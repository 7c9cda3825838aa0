#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `lade top` and `lade stats PID` on a process that publishes its counters, until it is killed.
# usage: top_test.sh LADE LIVE_COUNTERS
set -u
. tests/tools/command.sh
mkfifo "$dir/pipe" || exit 1
"$2" cpu 600 >"$dir/pipe" &
pid=$!
trap 'kill -9 "$pid" 2>/dev/null; rm -rf "$dir"' EXIT
read -r line <"$dir/pipe" # it publishes from here on
[ "$line" = "watch it: lade top $pid" ] || fail "the program says: $line"

run 0 top "$pid" --once
for words in activations batches pipeline live_counters; do says "$words" out; done
run 0 top "$pid" --once --json
python3 - "$dir/out" "$pid" <<'PYTHON' || fail "the rows are not what they should be: $(cat "$dir/out")"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert [row["pid"] for row in rows] == [int(sys.argv[2])] * 3, rows
assert {row["name"] for row in rows} == {"activations", "batches", "pipeline 2"}, rows
assert all(row["reserved_bytes"] >= row["requested_bytes"] for row in rows)
PYTHON
run 0 top --once --json
grep -q "\"pid\":$pid," "$dir/out" || fail "it is not among all processes: $(cat "$dir/out")"
run 0 stats "$pid" 'allocated_bytes.all.current'
says "activations" out
run 0 stats "$pid" --prometheus
says 'lade_pinned_in_use_bytes{part="1",name="batches"}' out

# Others publish nothing; nor does it, once it is gone.
run 1 top $$ --once
says "publishes nothing" err
kill -9 "$pid"
wait "$pid" 2>/dev/null
run 1 top "$pid" --once
run 1 stats "$pid"
run 2 top nobody
run 2 top --interval=0
finish
