#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `lade trees` as a user types it: output, pictures, errors on standard error, exit status.
# usage: command_test.sh LADE
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

run 0 trees --json "$dir/good"
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

run 0 trees "$dir/good"
says '8: a: f(1) warmup -1; WARMUP, 1024 bytes handed out' out
says '14: d: f(1) replay 0, a step ended the path, 2 lost; EXECUTION' out
says '16: last: 2 recordings; 1 segments, 2097152 bytes' out
run 0 trees - <"$dir/good"
says '10: b: f(1) record 0, the dead path ended' out
printf 'lade-trees 1\n' >"$dir/empty"
run 0 trees --json "$dir/empty"
says '{"version":1,"entries":[]}' out

# Pictures, of a trace and of a dump.
picture() {
  python3 - "$dir/plot.svg" "$@" <<'PYTHON' || fail "the picture is not what it should be"
import sys, xml.etree.ElementTree
svg = "{http://www.w3.org/2000/svg}"
picture = xml.etree.ElementTree.parse(sys.argv[1]).getroot()
texts = [text.text for text in picture.iter(svg + "text")]
for wanted in sys.argv[2:]:
    assert any(wanted in text for text in texts), (wanted, texts)
width, height = float(picture.get("width")), float(picture.get("height"))
boxes = [[float(rect.get(key)) for key in ("x", "y", "width", "height")] for rect in picture.iter(svg + "rect")
         if rect.get("class") in ("node", "path") and float(rect.get("width")) > 100]
assert boxes
for x, y, w, h in boxes:
    assert x >= 0 and y >= 0 and x + w <= width and y + h <= height, (x, y, w, h)
for i, (x, y, w, h) in enumerate(boxes):
    for X, Y, W, H in boxes[:i]:
        assert x + w <= X or X + W <= x or y + h <= Y or Y + H <= y, "boxes overlap"
PYTHON
}
run 0 trees "$dir/good" --plot "$dir/plot.svg"
picture "0 f(1)" "1 f(1)" "2 recordings, state WARMUP" "0 replays" "1 replays"
cat >"$dir/dump.json" <<'JSON'
{"version":1,"state":"EXECUTION","node":3,"options":{"max_rerecords":18446744073709551615},"stats":{"pool_reserved_bytes":2097152,"pool_peak_bytes":4096},
 "nodes":[
 {"id":0,"parent":null,"function":"prefill","key":[1,2],"replays":7,
  "outputs":[{"kind":"new","address":"0x200000000000","bytes":2048},{"kind":"integer","address":"0x7","bytes":0}],"after":[[0,0]]},
 {"id":2,"parent":0,"function":"<decode>","key":[],"replays":0,
  "outputs":[{"kind":"new","address":"0x200000000800","bytes":1024}],"after":[[0,0]]},
 {"id":3,"parent":0,"function":"decode","key":[4],"replays":2,
  "outputs":[{"kind":"new","address":"0x200000000800","bytes":3145728}],"after":[[1,0]]}],
 "path":[{"id":0,"outputs":[]},{"id":3,"outputs":[]},{"id":-4,"outputs":[]}]}
JSON
run 0 trees "$dir/dump.json" --plot "$dir/plot.svg"
picture "0 prefill(1,2)" "2 <decode>()" "3 decode(4)" "3.0M" "0 replays; older: 1 alive (2.0K), 0 dead"
says 'state EXECUTION, 3 recordings, 2097152 bytes reserved' out
says '  2 <decode>(), 0 replays; new 1.0K (dead)' out
grep -q '<title>of 0: 2048 bytes, alive</title>' "$dir/plot.svg" || fail "no mark of an older output"
printf '{"nodes":[{"id":0,"outputs":[{"kind":"new","bytes":8}],"after":[[0,0]]}],"path":[{"id":0,"outputs":[{"alive":false}]}]}' \
  >"$dir/now.json"
run 0 trees "$dir/now.json"
says '0 () *, 0 replays; new 8 (dead)' out
run 2 trees --json "$dir/dump.json"
for wrong in '{' '{}' '{"nodes":[{}]}' '{"nodes":[{"id":1},{"id":0}]}' '{"nodes":[{"id":0,"outputs":[1]}]}' \
  '{"nodes":[{"id":0,"after":[[0]]}]}'; do
  printf '%s' "$wrong" >"$dir/wrong.json"
  run 2 trees "$dir/wrong.json"
  [ -s "$dir/out" ] && fail "a report of $wrong"
done

# A file of zeros was read to its end for its first line, which took as much memory.
for command in trees replay; do
  rm -f "$dir/all_read"
  { head -c 300000000 /dev/zero && : >"$dir/all_read"; } 2>"$dir/head" | "$lade" $command - >"$dir/out" 2>"$dir/err"
  says "standard input:1: malformed line: it holds a zero byte" err
  [ ! -e "$dir/all_read" ] || fail "lade $command reads all of a file of zeros"
done

# Errors: a line for each kind, none with a report.
wrong() {
  printf '%s\n' "$2" | cat "$dir/good" - >"$dir/bad"
  run 2 trees --json "$dir/bad"
  [ -s "$dir/out" ] && fail "a report in spite of: $2"
  says "$dir/bad:$1: " err
}
for line in 'move p' 'run z f 0 p' 'run z f 1' 'run z f 1 q' 'run z f 1 c.1' 'run z f 1 c.2' 'run z f 1 c.0!' 'run a f 1 p' \
  'run z g 1 p' 'run z f 1 a.0' 'release a.0' 'release b.1' 'retain p' 'read z.0' 'tree warmup:1' 'memory p 8' 'memory q 7' \
  'function f inference' 'function g eager' 'function g inference ms' 'fail that' 'snapshot a-b' 'step 1'; do
  case $line in
  *c.0!) # lost, and not taken too often: no error of the line
    printf '%s\n' "$line" | cat "$dir/good" - >"$dir/lost"
    run 0 trees --json "$dir/lost"
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

run 2 trees
run 2 trees "$dir/good" "$dir/good"
run 2 trees --nonsense
run 2 trees --plot "" "$dir/good"
run 1 trees "$dir/no_such_file"
run 1 trees "$dir/good" --plot "$dir/no_such_folder/plot.svg"
run 1 trees "$dir"
run 0 trees --help
grep -q '^Usage: lade trees \[OPTION...\] TRACE' "$dir/out" || fail "the help has not the style of other commands"
if [ -w /dev/full ]; then
  "$lade" trees "$dir/good" >/dev/full 2>"$dir/err"
  [ $? = 1 ] || fail "a full disk was not noticed"
fi

# What a trace says is no command to a terminal.
escape=$(printf '\033[31m')
printf 'lade-trees 1\nmove\033[31m 1\n' >"$dir/move"
run 2 trees "$dir/move"
LC_ALL=C grep -qF "$escape" "$dir/out" "$dir/err" && fail "a trace's words reach the terminal"

finish
