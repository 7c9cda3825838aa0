#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `lade doctor` as a user types it. What it finds is the machine's; that it says what to do, and the exit status, are not.
# usage: command_test.sh LADE
set -u
. tests/tools/command.sh

# doctor STATUS ARGUMENT...: as run, but 0 and 1 are both the machine's where STATUS is "any"
doctor() {
  wanted=$1
  shift
  "$lade" doctor "$@" >"$dir/out" 2>"$dir/err"
  status=$?
  [ "$wanted" = any ] && [ "$status" -le 1 ] && wanted=$status
  [ "$status" = "$wanted" ] || fail "lade doctor $*: exit status $status, not $wanted: $(cat "$dir/err")"
}

doctor any
for check in driver gpu registration memlock cgroup io_uring membarrier numa huge_pages cuda_headers libarchive stacks cufile python pytorch settings; do
  grep -q "^$check  *[a-z]" "$dir/out" || fail "no line for $check: $(cat "$dir/out")"
done
grep -q "to do" "$dir/out"
[ $? = $((1 - status)) ] || fail "exit status $status, but: $(cat "$dir/out")"

doctor any --json
python3 - "$dir/out" "$status" <<'PYTHON' || fail "the JSON is not what it should be"
import json, sys
report = json.load(open(sys.argv[1]))
assert set(report) == {"version", "checks"} and report["version"] == 1, report
names = [check["name"] for check in report["checks"]]
assert len(set(names)) == len(names) == 16, names
for check in report["checks"]:
    assert set(check) == {"name", "state", "found", "advice"}, check
    assert check["state"] in ("ok", "optional", "to do") and check["found"], check
    assert (check["advice"] is None) == (check["state"] == "ok"), check
assert any(check["state"] == "to do" for check in report["checks"]) == (sys.argv[2] == "1")
PYTHON

# What the environment says is the test's.
unset LADE_ALLOC_CONF PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF
doctor any
grep -q '^settings  *ok  *no variable is set' "$dir/out" || fail "settings: $(grep settings "$dir/out")"
PYTORCH_ALLOC_CONF=max_split_size_mb:33,alien:1 doctor 1
grep -q '^settings  *to do  *from PYTORCH_ALLOC_CONF; 1 key passed over, the first: alien' "$dir/out" ||
  fail "settings: $(grep settings "$dir/out")"
LADE_ALLOC_CONF=alien:1 doctor 1
grep -q '^settings  *to do  *LADE_ALLOC_CONF: configuration: unknown key "alien"' "$dir/out" ||
  fail "settings: $(grep settings "$dir/out")"

# A container without /sys: what is not to be seen is no fault of the machine's.
if unshare -rm mount -t tmpfs none /sys 2>/dev/null; then
  unshare -rm sh -c 'mount -t tmpfs none /sys && exec "$0" doctor' "$lade" >"$dir/out"
  grep -A 1 '^huge_pages  *optional  *transparent huge pages: unknown' "$dir/out" | grep -q 'mount /sys' || fail "huge_pages: $(cat "$dir/out")"
fi

# What python3 answers is the test's.
pythons() { # ANSWER: of the python3 that comes first
  mkdir -p "$dir/bin"
  printf '#!/bin/sh\necho "%s"\n' "$1" >"$dir/bin/python3"
  chmod +x "$dir/bin/python3"
  PATH=$dir/bin:$PATH doctor any
}
says() { # CHECK WORDS
  grep -q "^$1  *$2" "$dir/out" || fail "$1 is not \"$2\": $(grep "^$1" "$dir/out")"
}
pythons "3.11.7 0.2.0 - 2.11.0+cu130 native"
says python 'ok  *Python 3.11.7, liblade 0.2.0'
says pytorch 'ok  *PyTorch 2.11.0+cu130, lade.torch has its native part'
pythons "3.11.7 0.2.0 - 2.11.0+cu130 -"
says pytorch 'optional  *PyTorch 2.11.0+cu130, without the native part'
pythons "3.11.7 - other - -"
says python 'to do  *Python 3.11.7, with a package lade that is another'
says pytorch 'ok  *none'
pythons "3.11.7 - - - -"
says python 'optional  *Python 3.11.7, without liblade'
pythons ""
says python 'optional  *no python3 that answers'

doctor 0 --help
grep -q -- --json "$dir/out" || fail "--help does not tell of --json"
doctor 2 --nonsense
[ -s "$dir/out" ] && fail "a usage error on standard output"
grep -q 'lade doctor' "$dir/err" || fail "the message does not say who speaks: $(cat "$dir/err")"
doctor 2 nonsense
if [ -w /dev/full ]; then
  for option in "" --json; do
    "$lade" doctor $option >/dev/full 2>"$dir/err"
    [ $? = 1 ] && grep -q 'cannot be written' "$dir/err" || fail "a full disk was not noticed"
  done
fi

finish
