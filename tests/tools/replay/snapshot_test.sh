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

# Pickles as PyTorch writes them: what their programs held at the end, the replay holds too, and what it cannot know it says.
cat >"$dir/pickles.py" <<'END'
import json, pickle, sys

MIB = 1 << 20
LOW, HIGH = 0x7F0000000000, 0x7F0010000000


def segment(address, mib, pool, *blocks):
    rows = [{"size": size, "requested_size": size if used else 0, "state": "active_allocated" if used else "inactive"}
            for size, used in blocks]
    return {"address": address, "total_size": mib * MIB, "stream": 0, "segment_type": "large", "segment_pool_id": pool, "blocks": rows}


def event(action, address, mib, **more):
    return {"action": action, "addr": address, "size": mib * MIB, "stream": 0, "time_us": 1, **more}


def freed(address, mib, **more):
    return [event("free_requested", address, mib, **more), event("free_completed", address, mib, **more)]


def oom(mib, free):
    return {"action": "oom", "device_free": free * MIB, "size": mib * MIB, "stream": 0, "time_us": 1}


NONE, POOL = (0, 0), {"pool_id": (0, 1)}
USED = [(20 * MIB, True)]
FREE = [(20 * MIB, False)]
CASES = {
    # Of two free blocks of a size the one at the lower address is taken: it was the other one.
    "addresses": ([segment(LOW, 20, NONE, *USED), segment(HIGH, 20, NONE, *FREE)],
                  [event("segment_alloc", HIGH, 20), event("alloc", HIGH, 20), event("segment_alloc", LOW, 20), event("alloc", LOW, 20),
                   *freed(HIGH, 20), *freed(LOW, 20), event("alloc", LOW, 20)]),
    # Events without pools, as of versions that do not write them: the second block was put into the pool's segment.
    "pools": ([segment(LOW, 20, (0, 1), (3 * MIB, True), (17 * MIB, False)), segment(HIGH, 20, NONE, (3 * MIB, True), (17 * MIB, False))],
              [event("segment_alloc", LOW, 20), event("alloc", LOW, 3), event("segment_alloc", HIGH, 20), event("alloc", HIGH, 3)]),
    # The end of a pool gave everything cached back.
    "end": ([segment(HIGH, 20, NONE, *FREE)],
            [event("segment_alloc", HIGH, 20), event("alloc", HIGH, 20), event("segment_alloc", LOW, 20, **POOL),
             event("alloc", LOW, 20, **POOL), *freed(HIGH, 20), *freed(LOW, 20, **POOL), event("segment_free", LOW, 20, **POOL)]),
    # What the driver had free at a failed allocation was not looked at: it was served.
    "limit": ([segment(LOW, 20, NONE, *USED)], [event("segment_alloc", LOW, 20), event("alloc", LOW, 20), oom(30, 12)]),
    # What went back for a request does so in the replay: the retry was not counted.
    "retry": ([segment(LOW, 30, NONE, (30 * MIB, True))],
              [event("segment_alloc", HIGH, 20), event("alloc", HIGH, 20), *freed(HIGH, 20), event("segment_free", HIGH, 20),
               event("segment_alloc", LOW, 30), event("alloc", LOW, 30), oom(40, 10)]),
    "no_limit": ([segment(LOW, 20, NONE, *USED)], [event("segment_alloc", LOW, 20), event("alloc", LOW, 20), oom(30, 100)]),
    "partial": ([segment(HIGH, 20, NONE, *FREE)],
                [event("segment_alloc", HIGH, 20), event("alloc", HIGH, 20), event("segment_alloc", LOW, 20), event("alloc", LOW, 20),
                 *freed(HIGH, 20), *freed(LOW, 20), event("segment_free", LOW, 20)]),
}


def held(segments, used):
    return sorted((int(str(s["address"]), 0), s["total_size"], any(s["pool" if used == "allocated_size" else "segment_pool_id"]),
                   sum(b["size"] for b in s["blocks"] if b["state"] == "active_allocated")) for s in segments)


case = CASES[sys.argv[1]]
if len(sys.argv) == 3:
    with open(sys.argv[2], "wb") as file:
        pickle.dump({"segments": case[0], "device_traces": [case[1]]}, file)
else:
    entry = json.load(sys.stdin)["snapshots"][-1]
    want, have = held(case[0], ""), held(entry["segments"], "allocated_size")
    sys.exit(0 if want == have and len(entry["oom"]) == (sys.argv[1] in ("limit", "retry")) else f"{want} became {have}, {entry['oom']}")
END
replays() {
  python3 "$dir/pickles.py" "$1" "$dir/$1.pickle" || fail "no pickle of $1"
  run 0 replay "$dir/$1.pickle" --json
}
for case in addresses pools end limit retry; do
  replays $case
  python3 "$dir/pickles.py" $case <"$dir/out" 2>"$dir/difference" || fail "$case: $(cat "$dir/difference")"
  case $case in
  pools | end)
    says "not exact: 1 private pools: when captures" err
    [ "$(wc -l <"$dir/err")" = 1 ] || fail "$case: $(cat "$dir/err")"
    ;;
  *) [ ! -s "$dir/err" ] || fail "$case is exact: $(cat "$dir/err")" ;;
  esac
done
says '"num_alloc_retries":2' out
replays no_limit
says "not exact: 1 allocations failed at a limit that it does not name" err
says "not exact: the program reserved at most 20971520 bytes, its replay 52428800" err
replays partial
says "not exact: single segments went back" err
run 0 replay "$dir/partial.pickle" --compare expandable_segments:True
[ "$(grep -c "single segments" "$dir/err")" = 1 ] || fail "said for each row: $(cat "$dir/err")"

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
