#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# staging_throughput from outside: what it prints, and what it does with bad flags, bad inputs, full disks and Ctrl-C.
# usage: staging_throughput_test.sh PROGRAM SERVERS_PY
set -u
program=$1 servers=$2
folder=$(mktemp -d) || exit 1
TMPDIR=$folder/tmp
export TMPDIR
mkdir "$TMPDIR" || exit 1
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; rm -rf "$folder"' EXIT
failures=0

fail() {
  echo "FAILED: $*" >&2
  sed 's/^/  stderr: /' "$folder/err" >&2
  failures=$((failures + 1))
}

# run EXIT_STATUS WORDS_ON_STDERR OPTION...   (WORDS "" where stderr does not matter)
run() {
  expected=$1 words=$2
  shift 2
  "$program" "$@" >"$folder/out" 2>"$folder/err"
  status=$?
  [ $status -eq "$expected" ] || fail "$*: exit status $status, not $expected"
  [ -z "$words" ] || grep -q -- "$words" "$folder/err" || fail "$*: stderr does not say '$words'"
  [ -z "$(ls -A "$TMPDIR")" ] || fail "$*: left behind: $(ls -A "$TMPDIR")"
}

# A file of random bytes.
make_file() { head -c "$2" /dev/urandom >"$folder/$1"; }

make_file small 1000001
mkdir "$folder/many" "$folder/many/deep" "$folder/hollow"
make_file many/a 70000
make_file many/deep/b 3
make_file many/c 1
: >"$folder/empty"
: >"$folder/many/empty"
truncate -s 4G "$folder/sparse"

# What a good run prints and writes.
run 0 "" --runtime cpu --input "$folder/small" --input "$folder/many" --chunk 16K --passes 2 --json "$folder/json"
head -n 1 "$folder/out" | grep -q 'median of several passes' || fail "the report does not begin with what its ratios mean"
[ "$(wc -l <"$folder/out")" -le 25 ] || fail "the report is longer than 25 lines"
grep -q 'software device, no GPU: its figures prove nothing' "$folder/out" || fail "the report does not say that there is no GPU"
grep -q '^verified  yes' "$folder/out" || fail "the report does not say that it was verified"
[ ! -s "$folder/err" ] || fail "a bar, or something else, on a stderr that is no terminal"
python3 - "$folder/json" <<'EOF' || fail "JSON"
import json, math, sys
result = json.load(open(sys.argv[1]))
keys = {"runtime", "software_device", "device", "numa_node", "verified", "h2d", "d2h", "bytes", "cache_hit_rate",
        "peak_pinned_bytes", "peak_rss_bytes", "cpu_seconds", "settings", "bounds", "by_hand"}
rates = {"gbps_median", "gbps_first", "gbps_min", "gbps_max", "vs_ceiling", "vs_naive", "vs_uncached"}
assert set(result) == keys, set(result) ^ keys
assert set(result["h2d"]) == rates and set(result["d2h"]) == rates
assert result["runtime"] == "cpu" and result["software_device"] is True and result["verified"] is True
assert result["bytes"] == 1000001 + 70000 + 3 + 1 and result["settings"]["chunk_bytes"] == 16384
for direction in ("h2d", "d2h"):
    bounds = result["bounds"][direction]
    rate = result[direction]["gbps_median"]
    lower = min(bounds["copies_alone_gbps"], bounds["reads_alone_gbps"])
    assert math.isclose(bounds["vs_lower"], rate / lower, rel_tol=1e-4)  # six digits are written
    assert math.isclose(bounds["vs_reads_alone"] * bounds["reads_alone_gbps"], rate, rel_tol=1e-4)
    assert result[direction]["gbps_first"] > 0
    assert bounds["core_seconds_per_gib"] > 0 and bounds["loop_gbps"] > 0
    hand = result["by_hand"][direction]
    assert hand["gbps"] > 0 and hand["threads"] >= 1 and hand["buffers"] in (2, 4) and hand["lade_vs_by_hand"] > 0
assert 0 < result["h2d"]["gbps_min"] <= result["h2d"]["gbps_median"] <= result["h2d"]["gbps_max"]
EOF

# Past the page cache, by each kind of storage.
for storage in auto pread uring; do
  run 0 "" --runtime cpu --input "$folder/small" --input "$folder/many" --chunk 64K --passes 1 --direct \
    --storage $storage --json "$folder/json"
  grep -q '^storage   O_DIRECT' "$folder/out" || fail "the report does not say that it went past the page cache"
done

# An object: lade asks the server for ranges, the baselines read a copy. Its query is in no message.
mkfifo "$folder/stop"
mkdir "$folder/served"
cp "$folder/small" "$folder/served/small"
python3 "$servers" faults "$folder/served" <"$folder/stop" >"$folder/port" &
exec 9>"$folder/stop"
for _ in $(seq 500); do [ -s "$folder/port" ] || sleep 0.02; done
url=http://127.0.0.1:$(cat "$folder/port")
run 0 "" --runtime cpu --input "$url/small?hush" --input "$folder/many" --chunk 64K --passes 2 --json "$folder/json"
grep -q '^verified  yes' "$folder/out" || fail "a URL is not verified"
[ "$(grep -c '^206 /small' "$folder/served/log")" -gt 16 ] || fail "lade has not asked for the ranges of a URL"
run 1 "--input: reading $url/none, bytes 0 to 8388607, attempt 1 of 10: HTTP 404" --runtime cpu --input "$url/none?hush"
! grep -q hush "$folder/err" || fail "the query of a URL is shown"
exec 9>&-
wait

# One direction, virtual time, a window smaller than the input and no multiple of anything.
run 0 "" --runtime sim --input "$folder/small" --window 70001 --chunk 5000 --passes 1 --direction h2d --json "$folder/json"
grep -q '"d2h": null' "$folder/json" || fail "a direction that was not measured is in the JSON"
python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["by_hand"] == {"h2d": None, "d2h": None}' "$folder/json" ||
  fail "sim has threads of its own"
run 0 "" --runtime sim --input "$folder/small" --window 9999 --chunk 1M --passes 1 --direction d2h --depth 1 --readers 1 \
  --input "$folder/many/c"
run 0 "" --runtime cpu --input "$folder/small" --passes 1 --no-verify
grep -q '^verified  no' "$folder/out" || fail "--no-verify still verifies"

# Bad usage: exit status 2, and how to do it right.
run 2 'staging_throughput --help' --no-such-flag
run 2 "not a number from 1" --chunk 0
run 2 "not a number from 1" --depth 0
run 2 "not a number" --chunk -1
run 2 "not a number" --chunk 18446744073709551615
run 2 "not a number" --chunk 18446744073709551616
run 2 "not a number" --chunk 99999999999G
run 2 "not a number" --window 12X
run 2 "not a number" --depth 1025
run 2 "not a number" --passes 0
run 2 "not a number" --readers many
run 2 "none of h2d" --direction up
run 2 "none of auto" --storage disk
run 2 "none of auto" --storage uring,backend:native
run 2 "no option" "$folder/small"
run 0 "" --help
grep -q -- '--window' "$folder/out" || fail "--help does not name --window"

# Bad inputs and devices: exit status 1, and what is wrong.
run 1 "No such file" --input "$folder/missing"
run 1 "Not a directory" --input "$folder/small/x"
run 1 "empty: nothing to stage" --input "$folder/empty"
run 1 "no file with any bytes" --input "$folder/hollow"
run 1 "not a regular file" --input /dev/null
if [ "$(id -u)" -ne 0 ]; then
  chmod 000 "$folder/many/a"
  run 1 "Permission denied" --input "$folder/many/a"
  chmod 600 "$folder/many/a"
fi
run 1 "no-such-runtime" --runtime no-such-runtime --input "$folder/small"
run 1 "device 7\|NO_DEVICE" --runtime cpu --device 7 --input "$folder/small"
run 1 "OUT_OF_DEVICE_MEMORY" --runtime cpu --window 900000G --input "$folder/small"
run 1 "pinned\|PINNED\|LIMIT" --runtime cpu --chunk 500000G --input "$folder/small"

# Full disks.
run 1 "No space left" --runtime cpu --input "$folder/small" --passes 1 --no-verify --json /dev/full
if [ -c /dev/full ]; then
  "$program" --runtime cpu --input "$folder/small" --passes 1 --no-verify >/dev/full 2>"$folder/err"
  [ $? -eq 1 ] || fail "a report that cannot be written is a success"
fi
# (ulimit counts 512 or 1024 bytes; either is less than the output. The thread sanitiser itself needs longer files.)
if ! grep -qa __tsan_init "$program"; then
  (ulimit -f 100
   "$program" --runtime cpu --input "$folder/small" --passes 1 --direction d2h 2>"$folder/err" >/dev/null
   [ $? -eq 1 ]) || fail "an output file that cannot grow is a success"
  grep -q 'File too large' "$folder/err" || fail "an output file that cannot grow is not named"
fi

# A pass as a trace, read by a parser that is not ours.
run 0 "" --runtime sim --input "$folder/small" --chunk 16K --passes 1 --timeline "$folder/timeline.json"
grep -q '^timeline  h2d .* copies under way' "$folder/out" || fail "the report does not tell of the timeline"
run 0 "" --runtime sim --input "$folder/small" --chunk 16K --passes 1 --timeline "$folder/first.json" --timeline-first
python3 - "$folder/first.json" "$folder/timeline.json" <<'EOF' || fail "timeline of the first pass"
import json, sys
# The same run twice, to the nanosecond: the first pass lies before the one that is made for the timeline.
first, later = ([e for e in json.load(open(path))["traceEvents"] if e.get("ph") == "X"] for path in sys.argv[1:])
assert max(e["ts"] + e["dur"] for e in first) < min(e["ts"] for e in later)
assert [sum(e["args"]["bytes"] for e in events if e["name"] == "read") for events in (first, later)] == [1000001] * 2
EOF
run 2 "needs --timeline" --timeline-first
python3 - "$folder/timeline.json" <<'EOF' || fail "timeline"
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
for name, bytes in (("read", 1000001), ("write", 1000001)):
    assert sum(e["args"]["bytes"] for e in events if e.get("name") == name) == bytes, name
named = {e["tid"] for e in events if e["name"] == "thread_name"}
assert named and {e["tid"] for e in events if e["ph"] == "X"} <= named
begun = [e["id"] for e in events if e["ph"] == "b"]
assert sorted(begun) == sorted(e["id"] for e in events if e["ph"] == "e") and len(begun) >= 2 * 62
EOF
run 1 "No such file" --runtime cpu --input "$folder/small" --passes 1 --timeline "$folder/nowhere/timeline.json"

# The input gets shorter while it is read.
"$program" --runtime cpu --input "$folder/sparse" --passes 99 >/dev/null 2>"$folder/err" &
pid=$!
sleep 0.5
truncate -s 1M "$folder/sparse"
wait $pid
[ $? -eq 1 ] || fail "an input that gets shorter is a success"
grep -q 'sparse.*ended early\|sparse: it ends at' "$folder/err" || fail "an input that gets shorter is not named"
truncate -s 4G "$folder/sparse"

# interrupted OPTION...: Ctrl-C after a while. Background processes of a script ignore SIGINT unless they ask for it.
interrupted() {
  "$program" "$@" >/dev/null 2>"$folder/err" &
  pid=$!
  sleep 0.3
  kill -INT $pid
  wait $pid
  status=$?
  [ $status -eq 130 ] || fail "interrupted, $*: exit status $status, not 130"
  [ -z "$(ls -A "$TMPDIR")" ] || fail "interrupted, $*: left behind: $(ls -A "$TMPDIR")"
  pid=
}
interrupted --runtime cpu --input "$folder/sparse" --passes 99
interrupted --runtime cpu --input "$folder/sparse" --passes 99 --direction d2h --chunk 64M
interrupted --runtime sim --input "$folder/sparse" --passes 99
interrupted --runtime cpu

[ $failures -eq 0 ] && echo "all cases passed"
exit $((failures != 0))
