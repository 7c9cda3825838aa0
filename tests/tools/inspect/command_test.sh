#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `lade snapshot`, `lade stats` and `lade diff` as a user types them.
# usage: command_test.sh LADE SNAPSHOT_FILES
set -u
. tests/tools/command.sh
files=$2
for shape in small long; do "$files" $shape pickle "$dir/$shape.pickle" 2>/dev/null || fail "no $shape.pickle"; done

# Every ending gives a file, and what can be read back says the same.
for ending in pickle json html folded pb.gz trace.json prom openmetrics segments.folded; do
  run 0 snapshot "$dir/small.pickle" -o "$dir/out.$ending"
  [ -s "$dir/out.$ending" ] || fail "out.$ending is empty"
done
run 0 snapshot "$dir/out.json" -o "$dir/again.folded"
cmp -s "$dir/out.folded" "$dir/again.folded" || fail "JSON lost something that the folded text has"
run 0 snapshot "$dir/out.pickle" -o - --format=folded
cmp -s "$dir/out.folded" "$dir/out" || fail "the pickle lost something that the folded text has"
run 0 snapshot "$dir/small.pickle" --json
cmp -s "$dir/out.json" "$dir/out" || fail "--json is not the JSON of --output"
run 0 snapshot "$dir/long.pickle" --before "$dir/small.pickle" --title 'two <snapshots>' -o "$dir/two.html"
grep -qF 'two &lt;snapshots&gt;' "$dir/two.html" || fail "the title is not there, or not escaped"

# Views. The sum of the stacks is that of the folded text.
run 0 snapshot "$dir/small.pickle" --trace --top=3
says "segment_alloc" out
says " blocks" out
folded_sum=$(awk '/;active_allocated;/ && !/<gaps>/ { sum += $NF } END { printf "%d", sum }' "$dir/out.folded")
run 0 snapshot "$dir/small.pickle" --top=1000000
found=$(awk '/ B in .* blocks$/ { sum += $1 } END { printf "%d", sum }' "$dir/out")
[ "$folded_sum" = "$found" ] || fail "--top adds up to $found bytes, the folded text to $folded_sum"

# Frames that are addresses alone, here one of lade itself, are named on request.
main=$(nm "$lade" 2>/dev/null | awk '$3 == "main" { print $1 }')
id=$(readelf -n "$lade" 2>/dev/null | awk '/Build ID:/ { print $3 }')
if [ -n "$main" ] && [ -n "$id" ] && ldconfig -p | grep -q 'libdw\.so\.1 '; then
  python3 - "$(realpath "$lade")" "$id" "$main" >"$dir/raw.json" <<'EOF_JSON'
import json, sys
path, build_id, main = sys.argv[1:]
print(json.dumps({
    "format": "lade-snapshot", "version": 1, "texts": ["", path, build_id],
    "modules": {"path": [1], "build_id": [2], "base": ["0x0"], "bytes": [1 << 30]},
    "frames": {"function": [0], "address": [hex(int(main, 16) + 5)], "module": [0]},
    "stacks": {"frame_count": [1]},
    "parts": [{"kind": "device", "device": 0, "name": "d",
               "segments": {"address": ["0x1000"], "bytes": [512], "block_count": [1]},
               "blocks": {"bytes": [512], "requested_bytes": [500], "state": [1], "stack": [0]}}]}))
EOF_JSON
  run 0 snapshot "$dir/raw.json" --top
  says "+0x" out
  run 0 snapshot "$dir/raw.json" --top --symbols
  says "main" out
  run 0 snapshot "$dir/raw.json" --symbols -o "$dir/named.folded"
  grep -q "main" "$dir/named.folded" || fail "the file has no names"
else
  echo "names are not tested: nm, readelf, libdw.so.1 or the symbols of lade are missing" >&2
fi

# Counters.
run 0 stats "$dir/small.pickle" 'allocated_bytes.all.*'
[ "$(awk '{ print $(NF - 1) }' "$dir/out" | sort -u | grep -cv '^allocated_bytes\.all\.')" = 0 ] || fail "keys that were not asked for"
run 0 stats "$dir/small.pickle" --json
python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["parts"][0]["counters"]' "$dir/out" || fail "no counters in JSON"
run 0 stats "$dir/small.pickle" --prometheus
cmp -s "$dir/out.prom" "$dir/out" || fail "--prometheus is not the file of that ending"
# Metrics had all counters, whatever the pattern was.
for form in prometheus openmetrics; do
  run 0 stats "$dir/small.pickle" 'num_*' --$form
  [ "$(grep -v '^#' "$dir/out" | grep -cv '^lade_[a-z]*_ooms_total{')" = 0 ] || fail "--$form has metrics that were not asked for"
  says "lade_device_ooms_total{" out
done
for form in --prometheus --openmetrics --json ""; do
  run 2 stats "$dir/small.pickle" 'no.such.key' $form
  says "no key matches" err
done

# A snapshot differs from itself in nothing; what is only in one, is only in the other the other way round.
run 2 diff "$dir/small.pickle" "$dir/small.pickle" --top=99999999999999999999
says "--top: '99999999999999999999' is not from 1 to 1000000000" err
run 0 diff "$dir/small.pickle" "$dir/small.pickle"
says "memory in use: +0 B" out
says "only_before: 0 segments" out
run 0 diff "$dir/small.pickle" "$dir/long.pickle" --json
python3 - "$dir/out" <<'PYTHON' || fail "the difference is not what it should be"
import json, sys
report = json.load(open(sys.argv[1]))
assert set(report) == {"version", "stacks", "only_before", "only_after"}, set(report)
changes = [abs(row["after_bytes"] - row["before_bytes"]) for row in report["stacks"]]
assert changes == sorted(changes, reverse=True) and changes[0] > 0
assert len({row["stack"] for row in report["stacks"]}) == len(report["stacks"])
PYTHON
cp "$dir/out" "$dir/forth"
run 0 diff "$dir/long.pickle" "$dir/small.pickle" --json
python3 - "$dir/forth" "$dir/out" <<'PYTHON' || fail "back and forth differ"
import json, sys
forth, back = (json.load(open(path)) for path in sys.argv[1:])
assert forth["only_before"] == back["only_after"] and forth["only_after"] == back["only_before"]
PYTHON

# Sizes that a file claims may add up to more than 2^63: the sums are wrong then, and no more than that.
python3 - "$dir" <<'PYTHON'
import json, sys
def snapshot(name, count):
    asked = [1 << 62] * count
    json.dump({"format": "lade-snapshot", "version": 1, "texts": ["", "f"], "frames": {"function": [1]}, "stacks": {"frame_count": [1]},
               "parts": [{"kind": "device", "device": 0, "name": "d",
                          "segments": {"address": [hex((i + 1) << 12) for i in range(count)], "bytes": [512] * count,
                                       "block_count": [1] * count},
                          "blocks": {"bytes": [512] * count, "requested_bytes": asked, "state": [1] * count, "stack": [0] * count},
                          "events": {"first_time_ns": "5", "action": [0] * count, "elapsed_ns": [1] * count,
                                     "address": ["0x1000"] * count, "bytes": asked, "block_bytes": asked}}]},
              open(f"{sys.argv[1]}/{name}", "w"))
for count in range(4): snapshot(f"claims{count}.json", count)
PYTHON
for count in 1 2 3; do
  run 0 snapshot "$dir/claims$count.json" --top --trace
  run 0 diff "$dir/claims$count.json" "$dir/claims0.json"
  run 0 diff "$dir/claims0.json" "$dir/claims$count.json" --json
  run 0 diff "$dir/claims1.json" "$dir/claims$count.json"
done

# A line break in the name of a function made two lines of its frame.
sed 's/"", "f"/"", "f\\n    g  h.c:1"/' "$dir/claims1.json" >"$dir/breaks.json"
run 0 snapshot "$dir/breaks.json" --top
says '    f?    g  h.c:1  :0' out
run 0 diff "$dir/claims0.json" "$dir/breaks.json" --json
says '"stack": "f?    g  h.c:1  :0\n"' out

# Mistakes.
run 2 snapshot
run 2 snapshot "$dir/small.pickle"
says "nothing to do" err
run 2 snapshot "$dir/small.pickle" -o "$dir/out.unknown"
says "no format has this ending" err
run 2 snapshot "$dir/small.pickle" --top=0
run 1 snapshot "$dir/nothing" --top
printf 'no snapshot' >"$dir/wrong"
run 2 snapshot "$dir/wrong" --top
says "byte 0" err
head -c 1000 "$dir/small.pickle" >"$dir/short"
run 2 stats "$dir/short"
says "no pickle that can be read" err
# The bug: with the end of children ignored, as some servers and supervisors leave it to those that they start, a pickle was not read.
env --ignore-signal=CHLD "$lade" snapshot "$dir/small.pickle" --json >"$dir/unwaited" || fail "a pickle where SIGCHLD is ignored"
cmp -s "$dir/out.json" "$dir/unwaited" || fail "another JSON where SIGCHLD is ignored"
(PATH=$dir; "$lade" snapshot "$dir/small.pickle" --top) 2>"$dir/err" && fail "a pickle without python3"
says "a pickle; python3, which reads it, is not on PATH" err
printf '\200\004cos\nsystem\n(X\002\000\000\000idtR.' >"$dir/calls"
run 2 snapshot "$dir/calls" --top
says "it names os.system: a snapshot is plain data" err
run 1 snapshot "$dir/small.pickle" -o "$dir/no/folder.json"
says "creating" err
printf 'kept' >"$dir/kept.json"
if [ "$(id -u)" != 0 ]; then
  chmod 500 "$dir"
  run_status=0
  "$lade" snapshot "$dir/small.pickle" -o "$dir/kept.json" 2>/dev/null || run_status=$?
  chmod 700 "$dir"
  [ "$run_status" = 1 ] || fail "a folder that cannot be written: exit status $run_status"
fi
[ "$(cat "$dir/kept.json")" = kept ] || fail "a file was changed by a write that failed"
"$lade" snapshot "$dir/long.pickle" --json 2>/dev/null | head -c 10 >/dev/null || fail "a pipe that closes"

# What is no file is written as it is, and not replaced: a name for standard output, a pipe, a device. A reader that goes away
# ends the writing, and no name is touched.
"$lade" snapshot "$dir/small.pickle" -o /dev/stdout --format=folded 2>/dev/null | cmp -s - "$dir/out.folded" || fail "/dev/stdout"
"$lade" snapshot "$dir/long.pickle" -o /dev/stdout --format=json 2>/dev/null | head -1 >/dev/null || fail "/dev/stdout that closes"
[ -L /dev/stdout ] || fail "/dev/stdout was replaced"
"$lade" snapshot "$dir/small.pickle" -o /dev/stdout --format=folded >"$dir/redirected" 2>/dev/null
cmp -s "$dir/redirected" "$dir/out.folded" || fail "/dev/stdout that is a file"
mkfifo "$dir/pipe.json"
cat "$dir/pipe.json" >"$dir/through" &
run 0 snapshot "$dir/small.pickle" -o "$dir/pipe.json"
wait $!
[ -p "$dir/pipe.json" ] || fail "a pipe was replaced"
cmp -s "$dir/out.json" "$dir/through" || fail "a pipe got something else"
head -c 1 "$dir/pipe.json" >/dev/null &
(
  trap '' PIPE # then a pipe without a reader is an error that is told
  run 1 snapshot "$dir/long.pickle" -o "$dir/pipe.json"
  says "Broken pipe" err
  exit $failures
) || fail "a pipe that closes: see above"
wait $!
if [ -c /dev/full ]; then
  run 1 snapshot "$dir/small.pickle" -o /dev/full --format=json
  says "/dev/full: cannot write: No space left on device" err
  [ -c /dev/full ] || fail "a device was replaced"
  "$lade" snapshot "$dir/small.pickle" --json >/dev/full 2>"$dir/err" && fail "a full disk is no error"
  says "No space left on device" err
fi
run 0 snapshot "$dir/small.pickle" -o /dev/null --format=json
[ -c /dev/null ] || fail "/dev/null was replaced"

# A disk that is full: the old file stays, and nothing else is left. (A limit on a file's size is as good as one. The thread sanitiser
# begins with a file of its own, longer than that, and dies of the limit.)
run 0 snapshot "$dir/long.pickle" -o "$dir/long.json"
printf 'kept' >"$dir/kept.json"
(
  grep -qa __tsan_init "$lade" && exit 0
  ulimit -f 8
  trap '' XFSZ
  run 1 snapshot "$dir/long.json" -o "$dir/kept.json"
  says "kept.json" err
  exit $failures
) || fail "a disk that is full: see above"
[ "$(cat "$dir/kept.json")" = kept ] || fail "a full disk cost the old file"
[ -z "$(find "$dir" -name '.*lade-*')" ] || fail "temporary files are left"
finish
