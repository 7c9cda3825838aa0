#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `lade top`, `lade stats PID` and `lade snapshot PID` on a process that publishes with control, until it is killed.
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
assert all(row["peak_bytes"] >= row["active_bytes"] for row in rows)
assert all(row["interval_ms"] == 1000 for row in rows)
PYTHON
run 0 top "$pid" --once --sort=requested
run 2 top --once --sort=name
until run 0 top "$pid" --once --json && grep -q '"kind":"device"[^}]*"peak_bytes":[1-9]' "$dir/out"; do sleep 0.2; done
# In a terminal: a key sorts, the column stands out, q ends it and leaves the terminal as it was.
python3 - "$lade" "$pid" <<'PYTHON' || fail "keys do not what they should"
import os, pty, re, select, subprocess, sys, termios, time
own, other = pty.openpty()
before = termios.tcgetattr(other)
start = lambda: (os.setsid(), __import__("fcntl").ioctl(other, termios.TIOCSCTTY, 0))
top = subprocess.Popen([sys.argv[1], "top", sys.argv[2], "--interval=30"], stdin=other, stdout=other, stderr=other, preexec_fn=start)
seen = b""
def until(pattern):
    global seen
    limit = time.time() + 60
    while not re.search(pattern, seen):
        assert time.time() < limit and top.poll() is None, seen
        if select.select([own], [], [], 1)[0]:
            seen += os.read(own, 65536)
until(rb"4m +RESERVED\x1b(.|\n|\r)*q:quit")
seen = b""
os.write(own, b"k")
until(rb"4m +PEAK\x1b(.|\n|\r)*q:quit")
rows = [line.split() for line in re.sub(rb"\x1b\[[0-9;]*[A-Za-z]", b"", seen).splitlines() if b"live_counters" in line]
assert len(rows) == 3, rows
os.write(own, b"q")
assert top.wait(60) == 0
assert termios.tcgetattr(other) == before
PYTHON
run 0 top --once --json
grep -q "\"pid\":$pid," "$dir/out" || fail "it is not among all processes: $(cat "$dir/out")"
run 0 stats "$pid" 'allocated_bytes.all.current'
says "activations" out
run 0 stats "$pid" --prometheus
says "lade_pinned_in_use_bytes{part=\"1\",name=\"batches\",pid=\"$pid\",command=\"live_counters\",host=\"$(uname -n)\"}" out
grep -q 'of a later version' "$dir/out" && fail "a metric without a text: $(grep 'of a later version' "$dir/out")"
run 0 stats --all --prometheus
says ",pid=\"$pid\",command=\"live_counters\"" out
[ "$(grep -c '^# TYPE lade_pinned_in_use_bytes gauge$' "$dir/out")" -eq 1 ] || fail "a metric is not once in what --all prints"
! command -v promtool >/dev/null || promtool check metrics <"$dir/out" >"$dir/tool" 2>&1 || fail "promtool: $(cat "$dir/tool")"
run 2 stats --all
run 2 stats "$pid" --all --prometheus

# It takes snapshots, and its histories go on and off from here. A view of each kind works as it does for a file.
run 0 snapshot "$pid" --json
python3 - "$dir/out" "$pid" <<'PYTHON' || fail "the snapshot is not what it should be"
import json, sys
snapshot = json.load(open(sys.argv[1]))
assert snapshot["process_id"] == int(sys.argv[2])
assert {part["name"] for part in snapshot["parts"]} == {"activations", "batches", "pipeline 2"}
assert all(part["counters"] and not part["history"] for part in snapshot["parts"])
PYTHON
events_are() {
  run 0 snapshot "$pid" --trace
  found=$(grep -c ' us  ' "$dir/out")
  test "$found" "$1" "$2" || fail "$found events, not $1 $2"
}
events_are -eq 0
run 0 snapshot "$pid" --history=on --stacks=8 --entries=500
[ ! -s "$dir/out" ] || fail "--history alone prints: $(cat "$dir/out")"
sleep 0.3 # it allocates ten times a second
events_are -gt 10
run 0 snapshot "$pid" --history on -o "$dir/live.json"
run 0 snapshot "$dir/live.json" --top=3
run 0 snapshot "$pid" --top=3 -o "$dir/live.html" --before "$dir/live.json"
grep -q '<html' "$dir/live.html" || fail "no page of a process"
run 0 diff "$dir/live.json" "$pid"
says "memory in use:" out
run 0 snapshot "$pid" --history=off --trace
grep -q ' us  ' "$dir/out" && fail "events after the history was turned off"

run 1 snapshot "$pid" --publisher=1 --top
says "publishes nothing there" err
run 2 snapshot "$pid" --history=maybe
says "is not on or off" err
run 2 snapshot "$pid" --stacks=8 --top
says "need --history=on" err
run 2 snapshot "$pid" --history=on --stacks=65
run 2 snapshot "$pid" --wait=0 --top
run 2 snapshot "$dir/live.json" --history=on
says "are for a PID" err

# A process that stands still answers nobody, and shows as stale; it goes on as if nothing had been.
kill -STOP "$pid"
# The signal is one thread's at first, and the others answer until that one has a processor.
tries=0
while cat "/proc/$pid/task"/*/stat | grep -qv ') T ' && [ $tries -lt 1000 ]; do
  sleep 0.01
  tries=$((tries + 1))
done
run 1 snapshot "$pid" --top --wait=1
says "no answer in time" err
tries=0
until run 0 top "$pid" --once --json && grep -q '"stale":true' "$dir/out"; do
  tries=$((tries + 1))
  [ "$tries" -lt 100 ] || break
  sleep 0.1
done
[ "$tries" -lt 100 ] || fail "a stopped process is not stale"
run 0 top "$pid" --once
grep -q "$pid\*" "$dir/out" || fail "no * in: $(cat "$dir/out")"
kill -CONT "$pid"
run 0 snapshot "$pid" --top

# One that refreshes by hand is never stale; it takes a snapshot when it gets to it.
mkfifo "$dir/pipe2" || exit 1
"$2" sim 600 >"$dir/pipe2" &
by_hand=$!
trap 'kill -9 "$pid" "$by_hand" 2>/dev/null; rm -rf "$dir"' EXIT
read -r line <"$dir/pipe2"
run 0 snapshot "$by_hand" --top
kill -STOP "$by_hand"
run 0 top "$by_hand" --once --json
python3 - "$dir/out" <<'PYTHON' || fail "what is refreshed by hand: $(cat "$dir/out")"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert len(rows) == 3 and all(row["interval_ms"] == 0 and not row["stale"] for row in rows), rows
PYTHON
kill -9 "$by_hand"

# The kernel cuts the name of a program after 15 bytes, here within a character: one such process among all cost `lade top --json`
# its output.
mkfifo "$dir/pipe3" || exit 1
cp "$2" "$dir/fourteen_bytesü" || exit 1
"$dir/fourteen_bytesü" cpu 600 >"$dir/pipe3" &
cut_name=$!
trap 'kill -9 "$pid" "$cut_name" 2>/dev/null; rm -rf "$dir"' EXIT
read -r line <"$dir/pipe3"
run 0 top --once --json
python3 - "$dir/out" "$cut_name" <<'PYTHON' || fail "a name that is cut: $(cat "$dir/out")"
import json, sys
rows = [row for row in json.load(open(sys.argv[1]))["rows"] if row["pid"] == int(sys.argv[2])]
assert len(rows) == 3 and {row["command"] for row in rows} == {"fourteen_bytes?"}, rows
PYTHON
run 0 top "$cut_name" --once
says "fourteen_bytes?" out
kill -9 "$cut_name"

# A publisher may say anything: counters that fall, time that goes back, numbers whose difference has no room; another version.
cat >"$dir/publisher.py" <<'PYTHON'
import fcntl, os, struct, sys, time
versions, works, times = sys.argv[1].split(","), eval(sys.argv[2]), eval(sys.argv[3])
header, texts = 200, b"p\0in_use_blocks.allocated\0"
parts_at, keys_at, texts_at, values_at = header, header + 32, header + 40, header + 80
memories = [os.memfd_create("lade-published", os.MFD_ALLOW_SEALING) for _ in versions]
def write(memory, version, turn):
    data = struct.pack("<8sIIQQQIIQQQQQQQQ", b"LADEPUB\n", int(version), header, values_at + 8, os.getpid(), 1, 1000, 1, 1, parts_at,
                       keys_at, texts_at, len(texts), values_at, 2, times[turn])
    data = data.ljust(header, b"\0") + struct.pack("<IiIIQQ", 2, 0, 0, 0, 0, 1) + struct.pack("<I", 2)
    os.pwrite(memory, (data.ljust(texts_at, b"\0") + texts).ljust(values_at, b"\0") + struct.pack("<q", works[turn]), 0)
for memory, version in zip(memories, versions):
    write(memory, version, 0)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
print("ready", flush=True)
for turn in range(1, len(works)):
    time.sleep(0.5)
    for memory, version in zip(memories, versions):
        write(memory, version, turn)
time.sleep(600)
PYTHON
# publisher VERSION[,VERSION...] WORKS TIMES: starts one process as $hostile, with a publisher of each version
publisher() {
  rm -f "$dir/pipe4"
  mkfifo "$dir/pipe4" || exit 1
  python3 "$dir/publisher.py" "$@" >"$dir/pipe4" &
  hostile=$!
  trap 'kill -9 "$pid" "$hostile" 2>/dev/null; rm -rf "$dir"' EXIT
  read -r line <"$dir/pipe4"
}
rates() { # into out
  timeout 1.5 "$lade" top "$hostile" --interval=0.05 >"$dir/all" 2>"$dir/err"
  sed -n 's/^ *[0-9][0-9]*[ *].* //p' "$dir/all" | sort -u | tr '\n' ' ' >"$dir/out"
}
publisher 1 '[0, 500]' '[2 * 10**9, 10**9]' # time that goes back: by the interval
rates
[ "$(cat "$dir/out")" = "- 0 10000 " ] || fail "the rates are $(cat "$dir/out")$(cat "$dir/err")"
kill -9 "$hostile"
publisher 1 '[2**63 - 1, -2]' '[10**9, 2 * 10**9]'
rates
[ "$(cat "$dir/out")" = "- 0 " ] || fail "the rates of what falls are $(cat "$dir/out")$(cat "$dir/err")"
kill -9 "$hostile"
publisher 2 '[0]' '[1]'
run 1 top "$hostile" --once
says "process $hostile: published counters: version 2; expected 1" err
run 0 top --once
grep -q "^ *$hostile python.* publisher 0 cannot be read: published counters: version 2; expected 1$" "$dir/out" ||
  fail "a publisher that cannot be read is not among all processes: $(cat "$dir/out")"
kill -9 "$hostile"

# One of another version beside one that can be read was not named.
publisher 1,2,3 '[0]' '[1]'
run 0 top "$hostile" --once
[ "$(grep -c "^ *$hostile.* pinned " "$dir/out")" -eq 1 ] || fail "the rows are $(cat "$dir/out")"
for number in 1 2; do says "publisher $number cannot be read: published counters: version $((number + 1)); expected 1" out; done
run 0 top "$hostile" --once --json
python3 - "$dir/out" "$hostile" <<'PYTHON' || fail "what cannot be read: $(cat "$dir/out")"
import json, sys
report = json.load(open(sys.argv[1]))
assert [row["publisher"] for row in report["rows"]] == [0], report
assert [(one["pid"], one["publisher"]) for one in report["unreadable"]] == [(int(sys.argv[2]), 1), (int(sys.argv[2]), 2)], report
assert all("expected 1" in one["why"] and one["command"].startswith("python") for one in report["unreadable"]), report
PYTHON
kill -9 "$hostile"

# Others publish nothing; nor does it, once it is gone.
run 1 top $$ --once
says "publishes nothing" err
kill -9 "$pid"
wait "$pid" 2>/dev/null
run 1 top "$pid" --once
run 1 stats "$pid"
run 1 snapshot "$pid" --top
run 0 top --once # with no row, mostly
run 2 top nobody
# No process has such a number: another one was named, the largest of 64 bits.
run 2 top 99999999999999999999999 --once
says "PID: '99999999999999999999999' is not from 1 to 2147483647" err
run 1 stats 99999999999999999999999
says "99999999999999999999999: cannot open" err
run 1 snapshot 4294967297 --top
says "4294967297: cannot open" err
run 2 top --interval=0
finish
