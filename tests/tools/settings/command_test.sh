#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `lade settings` as a user types it: output, errors on standard error, exit status.
# usage: command_test.sh LADE
set -u
. tests/tools/command.sh

run 0 settings
says 'Pinned pool (host/, lade_pinned_options)' out
says 'a number from 0 to 4294967295 (ms)' out
says 'auto, uring, pread or cufile' out

run 0 settings --json
python3 - "$dir/out" <<'PYTHON' || fail "the JSON is not what it should be"
import json, sys
report = json.load(open(sys.argv[1]))
assert set(report) == {"version", "settings"} and report["version"] == 1, report
settings = {setting["key"]: setting for setting in report["settings"]}
assert len(settings) == len(report["settings"]), "a key twice"
assert {setting["room"] for setting in settings.values()} == {"device", "host", "pipeline"}
assert all(setting["help"] and setting["values"] and setting["default"] for setting in settings.values())
assert settings["pinned_segment_mb"]["values"] == "a number from 0 to 1048576"
assert settings["pinned_segment_mb"]["unit"] == "MiB" and settings["storage"]["unit"] is None
assert settings["backend"]["origin"] == "PyTorch" and settings["release_lock_on_cudamalloc"]["option"] is None
PYTHON

run 0 settings --markdown
says '| `pinned_source` | `sources` | some of register, driver, pool, pageable, with bars between | register\|driver\|pool |' out

run 0 settings --help
grep -q -- --json "$dir/out" || fail "--help does not tell of --json"
run 2 settings --nonsense
[ -s "$dir/out" ] && fail "a usage error on standard output"
grep -q 'lade settings' "$dir/err" || fail "the message does not say who speaks: $(cat "$dir/err")"
run 2 settings nonsense
run 2 settings --json --markdown
if [ -w /dev/full ]; then
  for option in "" --json --markdown; do
    "$lade" settings $option >/dev/full 2>"$dir/err"
    [ $? = 1 ] || fail "a full disk was not noticed"
  done
fi

finish
