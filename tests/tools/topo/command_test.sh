#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `lade topo` as a user types it: output, errors on standard error, exit status.
# usage: command_test.sh LADE
set -u
. tests/tools/command.sh

export HWLOC_SYNTHETIC="package:2 node:4 core:2 pu:1"

run 0 topo --runtime sim
awk 'length($0) > 80 || NR > 40 { exit 1 }' "$dir/out" || fail "the table does not fit a screen: $(cat "$dir/out")"
grep -q 'software device, no GPU' "$dir/out" || fail "a software device that is not called so"

run 0 topo --runtime cpu --json --try
python3 - "$dir/out" <<'PYTHON' || fail "the JSON is not what it should be"
import json, sys
report = json.load(open(sys.argv[1]))
assert set(report) == {"version", "runtime", "software_device", "devices", "nodes", "limits", "pinned"}, report
assert report["runtime"] == "cpu" and report["software_device"] is True
assert [node["node"] for node in report["nodes"]] == list(range(8))
assert all(node["distances"] == [None] * 8 and node["cpu_count"] == 2 for node in report["nodes"])
assert report["devices"][0]["trial"]["source"] == "register", report["devices"]
assert report["pinned"]["sources"] == ["register", "driver", "pool"]
assert 0 < report["pinned"]["max_bytes"] <= report["limits"]["available_bytes"]
PYTHON

run 0 topo --help
grep -q -- --try "$dir/out" || fail "--help does not tell of --try"
run 2 topo --nonsense
[ -s "$dir/out" ] && fail "a usage error on standard output"
grep -q 'lade topo' "$dir/err" || fail "the message does not say who speaks: $(cat "$dir/err")"
run 2 topo nonsense
run 2 topo --runtime nonsense
[ -e /dev/nvidiactl ] || {
  run 1 topo --runtime cuda
  grep -q 'no runtime' "$dir/err" || fail "no word on the missing GPU: $(cat "$dir/err")"
}
HWLOC_SYNTHETIC="" run 0 topo --runtime sim
if [ -w /dev/full ]; then
  for option in "" --json; do
    "$lade" topo --runtime sim $option >/dev/full 2>"$dir/err"
    [ $? = 1 ] || fail "a full disk was not noticed"
  done
fi

# Sandboxes and containers hide some of /sys: then less is told, and all the same.
unset HWLOC_SYNTHETIC
for hidden in /sys /sys/devices/system/node /sys/fs/cgroup; do
  unshare -rm mount -t tmpfs none "$hidden" 2>"$dir/err" || {
    echo "skipped: no namespace of its own to hide $hidden in: $(cat "$dir/err")"
    continue
  }
  unshare -rm sh -c "mount -t tmpfs none $hidden && '$lade' topo --runtime cpu --json --try" \
    >"$dir/out" 2>"$dir/err" || fail "no report without $hidden: $(cat "$dir/err")"
  python3 - "$dir/out" <<'PYTHON' || fail "the report without $hidden is not what it should be"
import json, sys
report = json.load(open(sys.argv[1]))
assert report["devices"][0]["trial"]["status"] == "LADE_OK", report["devices"]
assert len(report["nodes"]) >= 1, report["nodes"]
PYTHON
done

finish
