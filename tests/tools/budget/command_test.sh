#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `lade budget` on processes that hold pinned memory, one of which is killed.
# usage: command_test.sh LADE HOLDER
set -u
. tests/tools/command.sh
holder=$2
name=test-${dir##*/} # not by process id: sandboxes have their own
file=/dev/shm/lade-budget-$(id -u)-$name
[ -w /dev/shm ] || { echo "skipped: /dev/shm cannot be written" && exit 0; }
trap 'rm -rf "$dir" "$file"' EXIT

run 0 budget $name
says "$file: no pool has charged anything" out
run 2 budget a/b
says "'a/b' is no name" err
run 2 budget --watch=0
run 2 budget a b
export LADE_BUDGET=nonsense
run 2 budget
says 'LADE_BUDGET' err
unset LADE_BUDGET

mkfifo "$dir/a" "$dir/b"
"$holder" $name 1000 300 <"$dir/a" >"$dir/a.out" &
a=$!
exec 5>"$dir/a"
until [ -s "$dir/a.out" ]; do sleep 0.01; done
exec 7<>"$file" # a lock of this open file is the second holder's, too
"$holder" $name 1000 200 <"$dir/b" 5>&- >"$dir/b.out" &
b=$!
exec 6>"$dir/b"
until [ -s "$dir/b.out" ]; do sleep 0.01; done

run 0 budget $name
says "500.0 MiB of 1.0 GiB held by 2 pools" out
says "300.0 MiB" out
says "holder" out
says "alive" out
LADE_BUDGET=name:$name run 0 budget --json
python3 - "$dir/out" $a $b <<'END' || fail "JSON: $(cat "$dir/out")"
import json, sys
report = json.load(open(sys.argv[1]))
rows = {row["pid"]: row for row in report["rows"]}
mib = 1 << 20
assert report["version"] == 1 and report["budget_bytes"] == 1000 * mib and report["held_bytes"] == 500 * mib
assert report["pools"] == 2 and not report["busy"] and report["locked_by"] == 0
assert rows[int(sys.argv[2])]["bytes"] == 300 * mib and rows[int(sys.argv[3])]["bytes"] == 200 * mib
assert all(row["state"] == "alive" and row["share"] == "first_come" and row["same_namespace"] for row in rows.values())
assert all(row["since_ns"] > 10**18 and row["command"] == "holder" for row in rows.values())
END

flock -n 7 || fail "the file is locked"
run 0 budget $name
says "500.0 MiB of 1.0 GiB held by 2 pools" out
says "locked by process $b, which may be stopped" out
run 1 budget --release-dead $name
says "is locked for more than 500 ms by a process that may be stopped" err
flock -u 7
run 0 budget $name
grep -q locked "$dir/out" && fail "it is said to be locked: $(cat "$dir/out")"
exec 7>&-

# A third one would be too much, and is told who has it.
"$holder" $name 1000 600 </dev/null >"$dir/out" 2>"$dir/err" && fail "more than the budget was pinned"
says "budget of all pools named $name: 524288000 of 1048576000 are held by 3 pools" err

kill -KILL $a
wait $a 2>/dev/null
run 0 budget $name
says "200.0 MiB of 1.0 GiB held by 1 pools" out
says "dead" out
run 0 budget --release-dead $name
says "released: " out
grep -q dead "$dir/out" && fail "a dead pool is left: $(cat "$dir/out")"

timeout 1 "$lade" budget --watch=0.1 --json $name >"$dir/rounds"
[ "$(wc -l <"$dir/rounds")" -ge 2 ] || fail "no rounds: $(cat "$dir/rounds")"

# Memory that processes share is in a row of its own, and no pool.
"$holder" $name 1000 100 50 <"$dir/a" 5>&- 6>&- >"$dir/c.out" &
c=$!
exec 5>"$dir/a"
until [ -s "$dir/c.out" ]; do sleep 0.01; done
run 0 budget $name
says "350.0 MiB of 1.0 GiB held by 2 pools" out
grep -qE '^ +- +- shared memory +50.0 MiB +- +shared .* alive' "$dir/out" || fail "no row of shared memory: $(cat "$dir/out")"
run 0 budget --release-dead $name
says "350.0 MiB of 1.0 GiB held by 2 pools" out
run 0 budget --json $name
python3 - "$dir/out" <<'END' || fail "JSON: $(cat "$dir/out")"
import json, sys
report = json.load(open(sys.argv[1]))
row, = [row for row in report["rows"] if row["share"] == "shared"]
assert row["pid"] == 0 and row["bytes"] == 50 << 20 and row["state"] == "alive" and row["same_namespace"] and report["pools"] == 2
END
exec 5>&-
wait $c || fail "the third holder failed"
run 0 budget $name
says "200.0 MiB of 1.0 GiB held by 1 pools" out

exec 6>&-
wait $b || fail "the second holder failed"
run 0 budget $name
says "0 B of 0 B held by 0 pools" out

: >"$file" # as where /dev/shm is full
run 0 budget $name
says "no pool has charged anything" out
printf 'no ledger' >"$file"
run 2 budget $name
says "no whole header" err
chmod 644 "$file"
run 1 budget $name
says "permissions 0644; expected 0600" err
finish
