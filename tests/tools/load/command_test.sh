#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `lade load` and `lade save` as a user types them: output, errors on standard error, exit status, files.
# usage: command_test.sh LADE
set -u
. tests/tools/command.sh
golden=tests/loaders/golden

head -c 300000 /dev/urandom >"$dir/bytes"
: >"$dir/nothing"
head -c 100 /dev/zero >"$dir/bad.safetensors"

for runtime in sim cpu; do
  run 0 load --runtime $runtime --to all --verify --list $golden/all.safetensors $golden/sharded.safetensors.index.json \
    "$dir/bytes" "$dir/nothing"
  says "28 tensors in 1 file, 5104 bytes" out
  says "3 tensors in 2 files, 149 bytes" out
  says "$dir/bytes: 300000 bytes" out
  says "$dir/nothing: 0 bytes" out
  says "large [7, 333]" out
  says "bell? unit? del?" out
  [ "$(grep -c 'verified$' "$dir/out")" = 4 ] || fail "not all verified: $(cat "$dir/out")"
  [ -s "$dir/err" ] && fail "a progress bar without a terminal: $(cat "$dir/err")"
done

run 0 load --json --to sim:0 --verify $golden/all.safetensors "$dir/bytes"
python3 - "$dir/out" <<'PYTHON' || fail "the JSON report is not what it should be"
import json, sys
report = json.load(open(sys.argv[1]))
assert set(report) == {"version", "runtime", "files"} and report["version"] == 1 and report["runtime"] == "sim", report
checkpoint, other = report["files"]
assert checkpoint["kind"] == "checkpoint" and checkpoint["tensors"] == 28 and checkpoint["verified"] is True, checkpoint
assert 0 < checkpoint["first_tensor_seconds"] <= checkpoint["seconds"], checkpoint
assert other["kind"] == "bytes" and other["bytes"] == 300000 and other["first_tensor_seconds"] is None, other
PYTHON

run 1 load --runtime sim "$dir/absent" "$dir/bad.safetensors" "$dir/bytes"
says "lade load: $dir/absent: No such file" err
says "does not begin with '{'" err
says "$dir/bytes: 300000 bytes" out
run 1 load --to sim:7 "$dir/bytes"

export LADE_ALLOC_CONF=storage:tape
run 1 load --runtime cpu "$dir/bytes"
says "LADE_ALLOC_CONF" err
LADE_ALLOC_CONF=storage:uring
run 0 load --runtime cpu --verify "$dir/bytes"
unset LADE_ALLOC_CONF
run 2 load
run 2 load --to gpu "$dir/bytes"
run 2 load --to 0,0 "$dir/bytes"
run 2 load --runtime metal "$dir/bytes"

run 0 save --runtime sim $golden/all.safetensors "$dir/again.safetensors"
says "28 tensors, 5104 bytes" out
cmp "$dir/again.safetensors" $golden/all.safetensors || fail "saved bytes differ"
run 0 save --on cpu:0 --no-sync $golden/sharded.safetensors.index.json "$dir/one.safetensors"
run 0 save --runtime sim --max-shard-size 87 --json $golden/sharded.safetensors.index.json "$dir/sharded.safetensors"
python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["tensors"] == 3' "$dir/out" || fail "no JSON report"
[ "$(cd "$dir" && echo sharded*)" = "sharded-1-00001-of-00002.safetensors sharded-1-00002-of-00002.safetensors \
sharded.safetensors.index.json" ] || fail "not these files: $(ls "$dir")"
run 0 load --runtime sim --verify --list "$dir/sharded.safetensors.index.json"
says "3 tensors in 2 files, 149 bytes" out
run 0 save --runtime sim --max-shard-size 50 "$dir/sharded.safetensors.index.json" "$dir/sharded.safetensors"
[ "$(ls "$dir"/sharded* | wc -l)" = 4 ] || fail "not the second save's files alone: $(ls "$dir")"
run 0 save --runtime sim "$dir/sharded.safetensors.index.json" "$dir/one.safetensors"
grep -q lade_save "$dir/one.safetensors" && fail "the id of a save in a single file"
run 1 save --runtime sim $golden/all.safetensors "$dir/no/folder.safetensors"
says "lade save: saving: " err
run 1 save --runtime sim "$dir/bad.safetensors" "$dir/never.safetensors"
[ -e "$dir/never.safetensors" ] && fail "a file in spite of an error"
run 2 save one
run 2 save one two three
run 2 save --max-shard-size 5XB one two
ls -A "$dir" | grep -q '^\.' && fail "parts are left: $(ls -A "$dir")"

finish
