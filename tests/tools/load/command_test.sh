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
    "$dir/bytes"
  says "28 tensors in 1 file, 5104 bytes" out
  says "3 tensors in 2 files, 149 bytes" out
  says "$dir/bytes: 300000 bytes" out
  says "large [7, 333]" out
  says "bell? unit? del?" out
  [ "$(grep -c 'verified$' "$dir/out")" = 3 ] || fail "not all verified: $(cat "$dir/out")"
  [ -s "$dir/err" ] && fail "a progress bar without a terminal: $(cat "$dir/err")"
done

# A device that the user did not ask for is named.
run 0 load "$dir/bytes"
[ -e /dev/nvidiactl ] || says "lade load: the software device: no GPU can be used" err

# What moved the bytes, and why it is not what was asked for.
run 0 load --runtime cpu --storage pread --repeat 2 --verify "$dir/bytes"
says "by pread, pass 1, verified" out
says "by pread, pass 2, verified" out
run 0 load --runtime cpu --direct --storage pread "$dir/bytes"
grep -q "by pread with O_DIRECT" "$dir/out" || says "O_DIRECT" err
run 0 load --runtime cpu --storage cufile "$dir/bytes"
says "GPUDirect Storage" err
for words in "--storage tape" "--storage pread:segment" "--repeat 0" "--repeat 2x" "--repeat -1"; do
  run 2 load --runtime sim $words "$dir/bytes"
  says "${words%% *}: " err
done

# Nothing was compared: that is not "verified", and no success where it was asked for.
run 0 load --runtime sim "$dir/nothing"
for empty in "$dir/nothing" $golden/empty.safetensors; do
  run 1 load --runtime sim --verify "$empty" "$dir/bytes"
  says "$dir/bytes: 300000 bytes" out
  [ "$(grep -c 'verified$' "$dir/out")" = 1 ] || fail "verified without bytes: $(cat "$dir/out")"
  grep "^$empty: " "$dir/out" | grep -q ", nothing to verify$" || fail "no word of it: $(cat "$dir/out")"
done
run 1 load --runtime sim --verify --json "$dir/nothing"
says '"verified": false' out

# URLs. A query may be a secret, and is in no output.
mkdir "$dir/served"
cp $golden/*.safetensors* "$dir/served"
mkfifo "$dir/stop"
python3 tests/sources/servers.py faults "$dir/served" <"$dir/stop" >"$dir/port" &
exec 9>"$dir/stop"
while [ ! -s "$dir/port" ]; do sleep 0.05; done
url=http://127.0.0.1:$(cat "$dir/port")
run 0 load --runtime cpu "$url/all.safetensors?k=secret" "$url/sharded.safetensors.index.json?k=secret" $golden/all.safetensors
says "$url/all.safetensors: 28 tensors in 1 file, 5104 bytes" out
says "$url/sharded.safetensors.index.json: 3 tensors in 2 files, 149 bytes" out
[ "$(grep -c 'by requests$' "$dir/out")" = 2 ] || fail "not by requests: $(cat "$dir/out")"
grep -q secret "$dir/out" && fail "a secret: $(cat "$dir/out")"
run 0 load --runtime cpu --json "$url/all.safetensors?k=secret"
says '"url": 5104' out
grep -q secret "$dir/out" && fail "a secret: $(cat "$dir/out")"
run 1 load --runtime cpu "$url/none.safetensors?k=secret" "$url/all.safetensors"
says "HTTP 404" err
grep -q secret "$dir/err" && fail "a secret: $(cat "$dir/err")"
says "28 tensors" out
run 1 load --runtime cpu --verify "$url/all.safetensors"
says "$url/all.safetensors: --verify compares with files" err
exec 9>&-

# A JSON file is an index, also with a variant's name; another one is refused. Bug: its own bytes were loaded, and "verified".
mkdir "$dir/index"
cp $golden/sharded-0000?-of-00002.safetensors "$dir/index"
cp $golden/sharded.safetensors.index.json "$dir/index/sharded.safetensors.index.fp16.json"
run 0 load --runtime sim --verify "$dir/index/sharded.safetensors.index.fp16.json"
says "3 tensors in 2 files, 149 bytes" out
printf '{"hidden_size": 8}' >"$dir/index/config.json"
run 1 load --runtime sim --verify "$dir/index/config.json"
says 'config.json: the index has no object "weight_map"' err
printf 'PK\003\004\024\000\000\000\010\000' >"$dir/index/zip.safetensors"
run 1 load --runtime sim "$dir/index/zip.safetensors"
says "it is a zip archive" err

# What files and their names say is no command to a terminal: CSI as two bytes, as C1 in UTF-8 and alone, and a turn of text.
escape=$(printf '\033[31m')
mkdir "$dir/names"
printf '{"weight_map":{"a":"\\u001b[31mx\\u009b2J\\u202e.safetensors"}}' >"$dir/names/m.safetensors.index.json"
run 1 load --runtime sim "$dir/names/m.safetensors.index.json"
LC_ALL=C grep -qF "$escape" "$dir/err" && fail "a file name of an index reaches the terminal: $(cat -v "$dir/err")"
says "?[31mx" err
LC_ALL=C grep -qF "$(printf '\302\233')" "$dir/err" && fail "C1 reaches the terminal: $(cat -v "$dir/err")"
LC_ALL=C grep -qF "$(printf '\342\200\256')" "$dir/err" && fail "text is turned: $(cat -v "$dir/err")"
printf '{"weight_map":{"\\u001b[31ma":"..\\u001b[31m/x"}}' >"$dir/names/n.safetensors.index.json"
run 1 load --runtime sim "$dir/names/n.safetensors.index.json"
LC_ALL=C grep -qF "$escape" "$dir/err" && fail "a tensor's name reaches the terminal: $(cat -v "$dir/err")"
name="$dir/names/$(printf '\033[31m\233.bin')"
head -c 10 /dev/zero >"$name"
for words in "load --runtime sim" "load --runtime sim --verify" "load --to sim:7" "save --runtime sim $golden/all.safetensors"; do
  "$lade" $words "$name" >"$dir/out" 2>"$dir/err"
  LC_ALL=C grep -qF "$escape" "$dir/out" "$dir/err" && fail "lade $words: the path reaches the terminal"
  LC_ALL=C grep -qF "$(printf '\233')" "$dir/out" "$dir/err" && fail "lade $words: the path reaches the terminal"
done
"$lade" load --runtime sim "$name.absent" 2>"$dir/err"
LC_ALL=C grep -qF "$escape" "$dir/err" && fail "a path that is not there reaches the terminal"

run 0 load --json --to sim:0 --verify $golden/all.safetensors "$dir/bytes"
python3 - "$dir/out" <<'PYTHON' || fail "the JSON report is not what it should be"
import json, sys
report = json.load(open(sys.argv[1]))
assert set(report) == {"version", "runtime", "files"} and report["version"] == 1 and report["runtime"] == "sim", report
checkpoint, other = report["files"]
assert checkpoint["kind"] == "checkpoint" and checkpoint["tensors"] == 28 and checkpoint["verified"] is True, checkpoint
assert 0 < checkpoint["first_tensor_seconds"] <= checkpoint["seconds"], checkpoint
assert checkpoint["pass"] == 1 and other["bytes_by"] == {"pread": 300000, "io_uring": 0, "cufile": 0, "url": 0, "direct": 0}, other
assert other["kind"] == "bytes" and other["bytes"] == 300000 and other["first_tensor_seconds"] is None, other
PYTHON

# A path is bytes, JSON is UTF-8: such a file was missing in the report, without a word and with exit status 1.
odd="$dir/odd$(printf '\377\303\251\342\202').bin"
cp "$dir/bytes" "$odd"
run 0 load --json --to sim:0 "$odd"
python3 - "$dir/out" "$odd" <<'PYTHON' || fail "the report of a path that is not UTF-8 is not what it should be"
import json, os, sys
[row] = json.load(open(sys.argv[1], encoding="utf-8"))["files"]
assert row["path"].endswith("/odd\ufffd\u00e9\ufffd\ufffd.bin"), row
assert bytes.fromhex(row["path_bytes"]) == os.fsencode(sys.argv[2]) and row["bytes"] == 300000, row
PYTHON
run 0 save --json --runtime sim $golden/all.safetensors "$odd.safetensors"
python3 - "$dir/out" "$odd" <<'PYTHON' || fail "the report of a save to a path that is not UTF-8 is not what it should be"
import json, os, sys
report = json.load(open(sys.argv[1], encoding="utf-8"))
assert bytes.fromhex(report["path_bytes"]) == os.fsencode(sys.argv[2]) + b".safetensors", report
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
says "--to: '0,0' is no list of devices; expected ordinals" err
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
# A target that is no good is found before anything is read.
run 1 save --runtime sim "$dir/absent.safetensors" "$dir/no/folder.safetensors"
says "lade save: saving: creating $dir/no/folder.safetensors: No such file" err
mkdir "$dir/taken.safetensors" "$dir/held.safetensors.index.json"
run 1 save --runtime sim "$dir/absent.safetensors" "$dir/taken.safetensors"
says "taken.safetensors: Is a directory" err
run 1 save --runtime sim --max-shard-size 50 "$dir/absent.safetensors" "$dir/held.safetensors"
says "held.safetensors.index.json: Is a directory" err
run 1 save --runtime sim "$dir/absent.safetensors" /dev/null
says "creating /dev/null: a device, a pipe" err
ln -s /dev/null "$dir/link.safetensors"
run 1 save --runtime sim "$dir/absent.safetensors" "$dir/link.safetensors"
[ -L "$dir/link.safetensors" ] || fail "a link to a device is replaced"
[ -c /dev/null ] || fail "/dev/null is replaced"
run 1 save --runtime sim "$dir/bad.safetensors" "$dir/never.safetensors"
[ -e "$dir/never.safetensors" ] && fail "a file in spite of an error"
run 2 save one
run 2 save one two three
run 2 save --max-shard-size 5XB one two
says "--max-shard-size: '5XB' is no size; expected a number of bytes" err
find "$dir" -mindepth 1 -name '.*' | grep -q . && fail "parts are left: $(ls -A "$dir")"

finish
