#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# staging_throughput --ranks: several processes that measure together, and what becomes of them when one fails.
# usage: staging_ranks_test.sh PROGRAM
set -u
program=$1
folder=$(mktemp -d) || exit 1
TMPDIR=$folder/tmp
export TMPDIR
mkdir "$TMPDIR" || exit 1
unset LOCAL_RANK LOCAL_WORLD_SIZE RANK WORLD_SIZE SLURM_LOCALID SLURM_NTASKS_PER_NODE
pids=
trap 'for pid in $pids; do kill -9 "$pid" 2>/dev/null; done; rm -rf "$folder"' EXIT
failures=0

fail() {
  echo "FAILED: $*" >&2
  sed 's/^/  stderr: /' "$folder"/err* >&2
  failures=$((failures + 1))
}

# run EXIT_STATUS WORDS_ON_STDERR OPTION...
run() {
  expected=$1 words=$2
  shift 2
  timeout 60 "$program" "$@" >"$folder/out" 2>"$folder/err"
  status=$?
  [ $status -eq "$expected" ] || fail "$*: exit status $status, not $expected"
  [ -z "$words" ] || grep -q -- "$words" "$folder/err" || fail "$*: stderr does not say '$words'"
}

# begin RANK SIZE OPTION...    a rank as torchrun starts it, in the background
begin() {
  rank=$1 size=$2
  shift 2
  LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$size RANK=$rank WORLD_SIZE=$size TORCHELASTIC_RUN_ID=$$ MASTER_PORT=1 \
    timeout 60 "$program" --ranks "$@" >"$folder/out.$rank" 2>"$folder/err.$rank" &
  pids="$pids $!"
}

# finish STATUS...    of the ranks begun, in order
finish() {
  number=0
  for pid in $pids; do
    wait "$pid"
    status=$?
    [ $status -eq "$1" ] || fail "rank $number: exit status $status, not $1"
    shift
    number=$((number + 1))
  done
  pids=
}

head -c 1000001 /dev/urandom >"$folder/a"
head -c 77777 /dev/urandom >"$folder/b"

# One table for all ranks; the shares are the whole, also where the ranks do not divide it.
for ranks in 1 3; do
  run 0 "" --runtime cpu --ranks $ranks --input "$folder/a" --input "$folder/b" --chunk 16K --passes 1 --json "$folder/json"
  [ "$(grep -c '^ranks     ' "$folder/out")" = 1 ] || fail "not one table for $ranks ranks"
  grep -q '^verified  yes, by each rank' "$folder/out" || fail "$ranks ranks: not verified"
  python3 - "$folder/json" $ranks <<'EOF' || fail "JSON of $ranks ranks"
import json, sys
result, count = json.load(open(sys.argv[1])), int(sys.argv[2])
ranks = result["ranks"]
assert [r["rank"] for r in ranks] == list(range(count)) and result["hosts"] == 1 and result["devices"] == 1
assert sum(r["bytes"] for r in ranks) == result["bytes"] == 1077778, [r["bytes"] for r in ranks]
assert max(r["bytes"] for r in ranks) - min(r["bytes"] for r in ranks) <= 8192 + 2
for direction in ("h2d", "d2h"):
    for variant in ("lade", "pinned", "by_hand", "copies", "copies_alone"):
        v = result[direction][variant]
        assert len(v["by_rank_gbps"]) == count and min(v["by_rank_gbps"]) > 0
        assert v["imbalance"]["min"] >= 0.9999 and v["imbalance"]["max"] <= count + 1e-9, v
        if variant != "copies_alone":  # the sum counts from the first start to the last end
            assert v["sum_gbps"]["median"] <= sum(v["by_rank_gbps"]) * 1.02, v  # two clocks
        assert v["slowest_gbps"]["median"] <= max(v["by_rank_gbps"]) * 1.02, v
EOF
done

# As many ranks as processors: each has one reader.
python3 - "$program" "$folder" <<'EOF' || fail "readers of ranks that share the processors"
import json, os, subprocess, sys
program, folder = sys.argv[1:]
processors = sorted(os.sched_getaffinity(0))[:4]
os.sched_setaffinity(0, processors)
subprocess.run([program, "--runtime", "cpu", "--ranks", str(len(processors)), "--input", folder + "/a", "--passes", "1", "--direction", "h2d",
                "--json", folder + "/json"], check=True, stdout=subprocess.DEVNULL, timeout=60)
assert [rank["readers"] for rank in json.load(open(folder + "/json"))["ranks"]] == [1] * len(processors)
EOF

# Virtual time: the sum is the bytes by the longest time, exactly; and the same again.
for round in 1 2; do
  run 0 "" --runtime sim --ranks=3 --input "$folder/a" --chunk 64K --passes 1 --direction h2d --json "$folder/sim$round"
  sed -i '/core_seconds/d' "$folder/sim$round"
done
cmp -s "$folder/sim1" "$folder/sim2" || fail "two runs on virtual time differ"
python3 - "$folder/sim1" <<'EOF' || fail "sum on virtual time"
import json, math, re, sys
result = json.loads(re.sub(r",(\s*})", r"\1", open(sys.argv[1]).read()))
for variant in ("lade", "pinned", "copies"):
    v = result["h2d"][variant]
    times = [r["bytes"] / rate for r, rate in zip(result["ranks"], v["by_rank_gbps"])]
    assert math.isclose(v["sum_gbps"]["median"], result["bytes"] / max(times), rel_tol=1e-4)
    assert math.isclose(v["imbalance"]["median"], max(times) / (sum(times) / 3), rel_tol=1e-4)
assert math.isclose(result["h2d"]["copies_alone"]["sum_gbps"]["median"],
                    sum(result["h2d"]["copies_alone"]["by_rank_gbps"]), rel_tol=1e-4)
assert result["d2h"] is None and result["h2d"]["lade_vs_by_hand"] is None
EOF

# Without inputs each rank makes its part of the random data.
run 0 "" --runtime sim --ranks 3 --passes 1 --no-verify --direction h2d --window 16M --json "$folder/json"
grep -q '"bytes": 1072693248' "$folder/json" || fail "the parts of the random data are not 341 MiB each"

# Ranks that a launcher started.
begin 1 2 --runtime cpu --input "$folder/a" --passes 1 --direction d2h
begin 0 2 --runtime cpu --input "$folder/a" --passes 1 --direction d2h
finish 0 0
grep -q '^ranks     2 on 1 host and 1 device (ranks share devices), started by torchrun' "$folder/out.0" ||
  fail "rank 0 of a launcher prints no table"
[ ! -s "$folder/out.1" ] || fail "rank 1 prints, too"

# They disagree.
begin 0 2 --runtime cpu --input "$folder/a" --passes 1
begin 1 2 --runtime cpu --input "$folder/a" --passes 2
finish 1 1
for rank in 0 1; do
  grep -q -- '--passes: rank 1 was given something else than rank 0' "$folder/err.$rank" || fail "rank $rank: disagreement"
done
begin 0 2 --runtime cpu --input "$folder/a" --passes 1
begin 1 3 --runtime cpu --input "$folder/a" --passes 1
finish 1 1

# One cannot open its input; one does not come.
begin 0 2 --runtime cpu --input "$folder/a" --passes 1
begin 1 2 --runtime cpu --input "$folder/missing" --passes 1
finish 1 1
grep -q 'rank 1.*missing: No such file' "$folder/err.0" || fail "rank 0 does not say what rank 1 lacks"
begin 0 2 --runtime cpu --input "$folder/a" --passes 1 --rank-timeout 1
finish 1
grep -q 'rank 1' "$folder/err.0" || fail "rank 0 does not say who is missing"

# One is killed, in the midst of it: with and without a launcher.
begin 0 3 --runtime cpu --input "$folder/a" --passes 99 --chunk 4K
begin 1 3 --runtime cpu --input "$folder/a" --passes 99 --chunk 4K
LOCAL_RANK=2 LOCAL_WORLD_SIZE=3 RANK=2 WORLD_SIZE=3 TORCHELASTIC_RUN_ID=$$ MASTER_PORT=1 \
  "$program" --ranks --runtime cpu --input "$folder/a" --passes 99 --chunk 4K >/dev/null 2>&1 &
victim=$!
sleep 1
kill -9 $victim
finish 1 1
grep -q 'rank 2' "$folder/err.0" && grep -q 'rank 2' "$folder/err.1" || fail "the survivors do not name rank 2"

"$program" --runtime cpu --ranks 3 --input "$folder/a" --passes 99 --chunk 4K >"$folder/out" 2>"$folder/err" &
parent=$!
sleep 1
victim=$(cut -d ' ' -f 2 /proc/$parent/task/$parent/children)
kill -9 "$victim"
wait $parent
[ $? -eq 1 ] || fail "a rank is killed: the exit status is not 1"
grep -q 'rank 1 was ended by signal 9' "$folder/err" || fail "nobody says which rank was killed"

"$program" --runtime cpu --ranks 2 --input "$folder/a" --passes 99 --chunk 4K >"$folder/out" 2>"$folder/err" &
parent=$!
sleep 1
children=$(cat /proc/$parent/task/$parent/children)
kill -TERM $parent
wait $parent
[ $? -eq 130 ] || fail "interrupted: the exit status is not 130"
for child in $children; do
  kill -0 "$child" 2>/dev/null && fail "rank $child runs on"
done

# Bad usage.
run 1 'no launcher' --runtime cpu --ranks --input "$folder/a"
head -c 4097 /dev/urandom >"$folder/small"
run 1 'too few for 3 ranks' --runtime cpu --ranks 3 --input "$folder/small" --passes 1
run 2 'is not a number from 1 to 128' --ranks 0
run 2 'is not a number from 1 to 128' --ranks=129
run 2 'is not a number from 1 to 128' --ranks=x
run 2 'is no option' --ranks x
run 2 'is no option' --ranks 2 3
run 2 'each rank takes its device' --ranks 2 --device 0
run 2 'shows one process' --ranks 2 --timeline "$folder/t.json"
LOCAL_RANK=two LOCAL_WORLD_SIZE=2 run 1 'LOCAL_RANK is "two"' --runtime cpu --ranks --input "$folder/a"
LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 run 1 'below the count' --runtime cpu --ranks --input "$folder/a"
LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 run 1 'leave the number out' --runtime cpu --ranks 3 --input "$folder/a"
LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 RANK=0 WORLD_SIZE=2 run 1 'several hosts meet by MPI' --runtime cpu --ranks --input "$folder/a"

[ -z "$(ls -A "$TMPDIR")" ] || fail "left behind: $(ls -A "$TMPDIR")"
[ $failures -eq 0 ]
