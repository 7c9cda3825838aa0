#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `lade replay` of snapshots: with the program's own settings a replay of its history holds what the program held; other settings
# can be compared.
# usage: snapshot_test.sh LADE RECORDED_PROGRAM
set -u
. tests/tools/command.sh
program=$2
for policy in reference default; do
  for seed in 1 2 3 4 5; do
    happened=$("$program" $seed $policy "$dir/program.pickle") || fail "the program failed"
    run 0 replay "$dir/program.pickle" --json --conf "device_policy:$policy"
    replayed=$(python3 -c '
import json, sys
stats = json.load(open(sys.argv[1]))["snapshots"][-1]["stats"]
print(stats["reserved_bytes.all.peak"], stats["reserved_bytes.all.current"])' "$dir/out")
    [ "$happened" = "$replayed" ] || fail "$policy, seed $seed: $happened bytes at the peak and at the end, replayed $replayed"
  done
done
run 0 replay "$dir/program.pickle" --compare expandable_segments:True
says "expandable_segments:True" out

# A threshold that six places make 0 or 1, which are none, is that of the trace all the same.
for threshold in 0.9999999 0.0000001; do
  printf '{"format":"lade-snapshot","version":1,"parts":[{"kind":"device","device":0,"name":"d","history":true,' >"$dir/threshold.json"
  printf '"settings":{"garbage_collection_threshold":%s},"events":{"first_time_ns":"5","action":[0],' $threshold >>"$dir/threshold.json"
  printf '"elapsed_ns":[1],"address":["0x1000"],"bytes":[512],"block_bytes":[512]}}]}' >>"$dir/threshold.json"
  run 0 replay "$dir/threshold.json"
done

# RMM's log, by the lines of docs/inspect.md.
printf 'Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00:000001,allocate,0x7f0000000000,1000,0\n' >"$dir/rmm_log.csv"
printf '1,00:00:00:000002,allocate failure,0x0,9,0\n1,00:00:00:000003,free,0x7f0000000000,1000,0x5\n' >>"$dir/rmm_log.csv"
printf '1,00:00:00:000004,allocate,0x7f0000000000,1000,0x5\n' >>"$dir/rmm_log.csv"
sed -n '/^    awk -F,/,/rmm.trace$/s/^    //p' docs/inspect.md >"$dir/convert"
(cd "$dir" && sh ./convert) || fail "the lines of docs/inspect.md: $(cat "$dir/convert")"
run 0 replay "$dir/rmm.trace" --json
says '"allocation.all.allocated":2' out

# Snapshots that have no history.
printf '{"lade_snapshot": 1}' >"$dir/empty.json"
run 2 replay "$dir/empty.json"
finish
