#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `trees` as it is typed: its report, errors on standard error, exit status.
# usage: command_test.sh TREES
set -u
. tests/tools/command.sh

cat >"$dir/good" <<'TRACE'
lade-trees 1
memory p 1000
function f inference -
alloc 0 1000
out local 0
out integer 7
end
run a f 1 p
release a.0
run b f 1 p
run c f 1 b.0
read c.0
step
run d f 1 p
run e f 2 d.0!
snapshot last
TRACE

run 0 "$dir/good"
python3 - "$dir/out" <<'PYTHON' || fail "the JSON report is not what it should be"
import json, sys
report = json.load(open(sys.argv[1]))
assert report["version"] == 1
a, b, c, read, d, e, last = report["entries"]
assert set(a) == {"line", "run", "did", "status", "why", "ended", "restored", "carried", "classes", "node", "state", "outputs",
                  "lost", "live"}, a
assert (a["line"], a["did"], a["node"], a["state"]) == (8, "warmup", -1, "WARMUP"), a
assert a["outputs"] == [{"kind": "new", "at": [0, 0]}, {"kind": "integer", "at": None}], a
assert (b["did"], b["ended"], b["lost"]) == ("record", "dead", []), b
assert read["read"] == "c.0" and read["state"] == "alive" and len(read["value"]) == 16, read
assert (d["did"], d["ended"], d["lost"], d["live"]) == ("replay", "boundary", ["b.0", "c.0"], []), d
assert (e["did"], e["restored"], e["node"]) == ("warmup", True, -2), e
assert set(last) == {"line", "label", "nodes", "segments"} and [node["id"] for node in last["nodes"]] == [0, 1], last
PYTHON

printf 'lade-trees 1\n' >"$dir/empty"
run 0 "$dir/empty"
says '{"version":1,"entries":[]}' out

# A file of zeros was read to its end for its first line, which took as much memory.
{ head -c 300000000 /dev/zero && : >"$dir/all_read"; } 2>"$dir/head" | "$lade" - >"$dir/out" 2>"$dir/err"
says "standard input:1: malformed line: it holds a zero byte" err
[ ! -e "$dir/all_read" ] || fail "all of a file of zeros is read"

# Errors: a line for each kind, none with a report.
wrong() {
  printf '%s\n' "$2" | cat "$dir/good" - >"$dir/bad"
  run 2 "$dir/bad"
  [ -s "$dir/out" ] && fail "a report in spite of: $2"
  says "$dir/bad:$1: " err
}
for line in 'move p' 'run z f 0 p' 'run z f 1' 'run z f 1 q' 'run z f 1 c.1' 'run z f 1 c.2' 'run z f 1 c.0!' 'run a f 1 p' \
  'run z g 1 p' 'run z f 1 a.0' 'release a.0' 'release b.1' 'retain p' 'read z.0' 'tree warmup:1' 'memory p 8' 'memory q 7' \
  'function f inference' 'function g eager' 'function g inference ms' 'fail that' 'snapshot a-b' 'step 1'; do
  case $line in
  *c.0!) # lost, and not taken too often: no error of the line
    printf '%s\n' "$line" | cat "$dir/good" - >"$dir/lost"
    run 0 "$dir/lost"
    says 'LADE_ERR_OVERWRITTEN' out
    ;;
  *) wrong 17 "$line" ;;
  esac
done
wrong 18 "function g inference -
alloc 0 4"
wrong 18 "function g inference -
free 0"
wrong 18 "function g inference -
mutate 0"
wrong 19 "function g inference -
drop 0
out input 0"
wrong 19 "function g inference -
out integer 1
alloc 0 8"
wrong 17 "function g inference -"
wrong 20 "function g inference
alloc 0 8*
end
run z g 33554433"

run 0 - <"$dir/good"
run 2
run 2 "$dir/good" "$dir/good"
run 1 "$dir/no_such_file"
run 1 "$dir"
if [ -w /dev/full ]; then
  "$lade" "$dir/good" >/dev/full 2>"$dir/err"
  [ $? = 1 ] || fail "a full disk was not noticed"
fi

# What a trace says is no command to a terminal.
escape=$(printf '\033[31m')
printf 'lade-trees 1\nmove\033[31m 1\n' >"$dir/move"
run 2 "$dir/move"
LC_ALL=C grep -qF "$escape" "$dir/out" "$dir/err" && fail "a trace's words reach the terminal"

finish
