#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The ranks of an MPI job read each record of a data set once, all together, however many they are.
# usage: loader_mpi_test.sh PROGRAM SHARD SHARD    (6 records)
set -u
program=$1 first=$2 second=$3
. tests/ranks/mpi_run.sh
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failures=0

fail() {
  echo "FAILED: $*" >&2
  sed 's/^/  /' "$folder/out" "$folder/err" >&2
  failures=$((failures + 1))
}

# run STATUS RANKS ARGUMENT...
run() {
  expected=$1 ranks=$2
  shift 2
  mpi_run "$ranks" "$program" "$@" >"$folder/out" 2>"$folder/err"
  status=$?
  [ $status -eq "$expected" ] || fail "$ranks ranks, $*: exit status $status, not $expected"
}

# The content is that which one rank alone reads: 2 and 3 ranks divide the 6 records, 4 and 5 do not.
run 0 1 cpu txt,cls "$first" "$second"
grep -q '^6 of 6 records, content [0-9a-f]\{16\}$' "$folder/out" || fail "one rank alone"
grep -q 'content 0000000000000000' "$folder/out" && fail "no content was read"
cp "$folder/out" "$folder/alone"
for ranks in 2 4 5; do
  run 0 $ranks cpu txt,cls "$first" "$second"
  cmp -s "$folder/out" "$folder/alone" || fail "$ranks ranks read something else than one"
done
run 0 3 sim txt,cls "$first" "$second"
cmp -s "$folder/out" "$folder/alone" || fail "on virtual time the ranks read something else"

# Shares of equal size: 6 records of 4 ranks are one each, two are left out.
run 0 4 --equal cpu txt,cls "$first" "$second"
grep -q '^4 of 6 records' "$folder/out" || fail "shares of equal size"
run 0 3 --equal cpu txt,cls "$first" "$second"
cmp -s "$folder/out" "$folder/alone" || fail "equal shares leave something out that they need not"

# More ranks than records: a rank without any says so, and no other one waits for it.
run 1 4 cpu txt,cls "$first"
grep -q 'lade_loader_create.*rank' "$folder/err" || fail "a rank without records does not say why it ends"
# One rank cannot read its data set: all end.
cat >"$folder/rank" <<'EOF'
#!/bin/sh
program=$1 good=$2 bad=$3
if [ "${OMPI_COMM_WORLD_RANK-${PMI_RANK-0}}" = 1 ]; then good=$bad; fi
exec "$program" cpu txt,cls "$good"
EOF
chmod +x "$folder/rank"
own=$program program=$folder/rank
run 1 2 "$own" "$second" "$folder/missing.tar"
grep -q 'missing.tar' "$folder/err" || fail "the rank that ends all does not say why"

[ $failures -eq 0 ]
