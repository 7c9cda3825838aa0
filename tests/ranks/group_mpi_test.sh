#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Groups over a real MPI: the suite of all groups, with several numbers of ranks. staging_throughput --ranks under mpirun.
# usage: group_mpi_test.sh CONFORMANCE PLUGIN STAGING_THROUGHPUT
set -u
conformance=$1 plugin=$2 staging=$3
. tests/ranks/mpi_run.sh
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failures=0
LD_LIBRARY_PATH=$PWD/$(dirname "$plugin")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
unset GTEST_OUTPUT XML_OUTPUT_FILE TEST_PREMATURE_EXIT_FILE TEST_SHARD_INDEX TEST_TOTAL_SHARDS # ranks would write one file

fail() {
  echo "FAILED: $*" >&2
  grep -h 'gave\|differs\|Failure' "$folder/out" | sort | uniq -c | head -n 20 >&2
  tail -n 60 "$folder/out" "$folder/err" | sed 's/^/  /' >&2
  failures=$((failures + 1))
}

for ranks in 1 2 4; do
  mpi_run $ranks "$conformance" >"$folder/out" 2>"$folder/err" || fail "the suite with $ranks ranks"
  [ "$(grep -c 'PASSED.* tests' "$folder/out")" = $ranks ] || fail "not all of $ranks ranks ran the suite"
done

# Each rank with its share, one table.
head -c 500000 /dev/urandom >"$folder/input"
mpi_run 4 "$staging" --ranks --runtime cpu --input "$folder/input" --chunk 16K --passes 1 --direction h2d \
  --json "$folder/json" >"$folder/out" 2>"$folder/err" || fail "staging_throughput under mpirun"
[ "$(grep -c '^ranks     4 on 1 host and 1 device (ranks share devices), started by ' "$folder/out")" = 1 ] ||
  fail "not one table of four ranks"
grep -q '"bytes": 500000,' "$folder/json" || fail "the shares are not the input"

# As on four hosts: the group is one over MPI.
cat >"$folder/host" <<'EOF'
#!/bin/sh
export OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1
exec "$@"
EOF
chmod +x "$folder/host"
mpi_run 4 "$folder/host" "$staging" --ranks --runtime cpu --input "$folder/input" --chunk 16K --passes 1 --direction h2d \
  --json "$folder/json" >"$folder/out" 2>"$folder/err" || fail "staging_throughput as on four hosts"
grep -q '"bytes": 500000,' "$folder/json" || fail "the shares of four hosts are not the input"

# One of them is killed: all end, and somebody says so.
cat >"$folder/rank" <<'EOF'
#!/bin/sh
echo $$ >"$1/pid.${OMPI_COMM_WORLD_RANK-$PMI_RANK}"
exec "$2" --ranks --runtime cpu --input "$1/input" --chunk 4K --passes 99
EOF
chmod +x "$folder/rank"
mpi_run 3 "$folder/rank" "$folder" "$staging" >"$folder/out" 2>"$folder/err" &
job=$!
while [ ! -s "$folder/pid.1" ]; do sleep 0.1; done
sleep 1
kill -9 "$(cat "$folder/pid.1")"
wait $job
status=$?
[ $status -ne 0 ] && [ $status -ne 124 ] || fail "a rank is killed: exit status $status"
# MPICH's launcher ends the others at once, and names the signal.
grep -q 'rank 1' "$folder/err" || grep -q 'Killed (signal 9)' "$folder/out" || fail "nobody says that rank 1 was killed"

[ $failures -eq 0 ]
