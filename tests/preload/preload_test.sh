#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Plain programs under liblade_preload.so: what they print and their exit status are as without it, and the report is right.
# usage: preload_test.sh PRELOAD LIBRARY DRIVER STAND_IN STAND_IN_LINKED LOOKS PLUGIN
set -u
preload=$PWD/$1
driver=$(dirname "$PWD/$3")
stand_in=$4
stand_in_linked=$5
looks=$6
plugin=$PWD/$7
LADE_PRELOAD_LIBRARY=$PWD/$2
export LADE_PRELOAD_LIBRARY
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# under NAME=VALUE... COMMAND...: with the library and the loopback driver; leaves $dir/out, $dir/err, $status
under() {
  env LD_PRELOAD="$preload" LD_LIBRARY_PATH="$driver" "$@" >"$dir/out" 2>"$dir/err"
  status=$?
}
plain() {
  env LD_LIBRARY_PATH="$driver" "$@" >"$dir/plain_out" 2>"$dir/plain_err"
  plain_status=$?
}
# same COMMAND...: output and status are as without the library
same() {
  plain "$@"
  under "$@"
  [ "$status" = "$plain_status" ] || fail "$*: status $status, without the library $plain_status: $(cat "$dir/err")"
  cmp -s "$dir/out" "$dir/plain_out" || fail "$*: another output"
  cmp -s "$dir/err" "$dir/plain_err" || fail "$*: on stderr: $(cat "$dir/err")"
}
value() { sed -n "s/^  \"$1\": \([^,]*\),*$/\1/p" "$dir/report"; }
is() { [ "$(value "$1")" = "$2" ] || fail "$1 is $(value "$1"), not $2, in: $(cat "$dir/report")"; }

# Programs without CUDA: nothing is written, nothing is opened, no thread is made.
for program in "ls -l /usr" "cat /proc/self/comm" "sh -c false" "false"; do
  # shellcheck disable=SC2086
  LADE_PRELOAD_REPORT=$dir/none same $program
done
python=$(command -v python3)
if [ -n "$python" ]; then
  LADE_PRELOAD_REPORT=$dir/none same "$python" -c 'import ctypes, json; print(ctypes.CDLL(None).getpid is not None, json.dumps([1]))'
  under "$python" -c 'import os; print(len(os.listdir("/proc/self/task")))
maps = open("/proc/self/maps").read()
print("liblade.so" in maps, "hwloc" in maps, "libcuda" in maps)'
  [ "$(tr '\n' ' ' <"$dir/out")" = "1 False False False " ] || fail "python3 has more than it asked for: $(cat "$dir/out")"
fi
[ -e "$dir/none" ] && fail "a report of a program without CUDA"

# Look-ups of a program and of a library that knows nothing of either.
same "$looks"
[ "$status" = 0 ] || fail "look-ups: $(cat "$dir/out")"

# Both kinds of program, in each mode.
for program in "$stand_in" "$stand_in_linked"; do
  for mode in safe fast; do
    rm -f "$dir/report"
    plain "$program" 100 keep
    under LADE_PRELOAD_MODE=$mode LADE_PRELOAD_REPORT="$dir/report" "$program" 100 keep
    [ "$status$(cat "$dir/out")" = "$plain_status$(cat "$dir/plain_out")" ] || fail "$program: $status, $(cat "$dir/out" "$dir/err")"
    [ -s "$dir/err" ] && fail "$program: on stderr: $(cat "$dir/err")"
    is mode "\"$mode\""
    is allocs_served 100
    is frees_served 100
    is bytes_served 10000000
    is allocs_passed_flags 1
    is frees_passed 1
    is misses 1
    is hits 99
    is hit_rate 0.990000
    is device "\"off\""
    is device_allocs_served 0
    is device_frees_passed 0
  done
  for device in malloc all; do
    rm -f "$dir/report"
    plain "$program" 100 keep
    under LADE_PRELOAD_DEVICE=$device LADE_PRELOAD_REPORT="$dir/report" "$program" 100 keep
    [ "$status$(cat "$dir/out")" = "$plain_status$(cat "$dir/plain_out")" ] || fail "$program: $status, $(cat "$dir/out" "$dir/err")"
    [ -s "$dir/err" ] && fail "$program: on stderr: $(cat "$dir/err")"
    is device "\"$device\""
    is allocs_served 100
    is device_allocs_served 100
    is device_async_allocs_served 0
    is device_bytes_served 10000000
    is device_frees_served 100
    is device_frees_passed 0
    is device_driver_allocs 1
    is device_peak_reserved_bytes 2097152
  done
done

# Names and values that are wrong: said once, and the driver serves.
for wrong in LADE_PRELOAD_MODE=quick LADE_PRELOAD_MAX_BYTES=12Q LADE_PRELOAD_MAX_BYTES= LADE_PRELOAD_SEGMENT_BYTES=1000 \
  LADE_PRELOAD_PENDING_BYTES=-1 LADE_PRELOAD_MAX_BYTES=99999999T LADE_PRELOAD_MODUS=safe LADE_PRELOAD_REPORT= \
  LADE_PRELOAD_DEVICE=yes LADE_PRELOAD_DEVICE=; do
  for program in "$stand_in" "$stand_in_linked"; do
    under "$wrong" "$program" 3
    [ "$status" = 0 ] || fail "$wrong: status $status"
    [ "$(wc -l <"$dir/err")" = 1 ] || fail "$wrong: not one line: $(cat "$dir/err")"
    grep -q "liblade_preload: .*${wrong%%=*}" "$dir/err" || fail "$wrong: not named: $(cat "$dir/err")"
  done
  [ "$(under "$wrong" ls / && cat "$dir/err")" = "" ] || fail "$wrong: said by ls"
done
# Of a long name the start is said; it was the rest of its length by 100.
long=$(printf 'LADE_PRELOAD_%0100d' 7)
under "${long}XYZ=1" "$stand_in" 3
grep -q "there is no variable $long;" "$dir/err" || fail "a long name: $(cat "$dir/err")"
rm -f "$dir/report"
under LADE_PRELOAD_MODE=off LADE_PRELOAD_REPORT="$dir/report" "$stand_in" 3
[ "$status" = 0 ] && [ ! -s "$dir/err" ] && [ ! -e "$dir/report" ] || fail "mode off: status $status, $(cat "$dir/err")"

# A library that is not there, a report that cannot be written: one line each, the program runs.
under LADE_PRELOAD_LIBRARY="$dir/nothing.so" "$stand_in" 3
[ "$status" = 0 ] && [ "$(wc -l <"$dir/err")" = 1 ] && grep -q nothing.so "$dir/err" || fail "no library: $status, $(cat "$dir/err")"
under LADE_PRELOAD_REPORT="$dir/no/such/folder" "$stand_in" 3
[ "$status" = 0 ] && grep -q no/such/folder "$dir/err" || fail "no folder for the report: $status, $(cat "$dir/err")"

# A name that is too long was said to be something else: what the last call of the C library had against it.
long=$(printf '%05000d' 0)
under LADE_PRELOAD_REPORT="$dir/$long" "$stand_in" 3
[ "$status" = 0 ] && [ "$(wc -l <"$dir/err")" = 1 ] || fail "a long name: $status, $(cat "$dir/err")"
grep -q "liblade_preload: LADE_PRELOAD_REPORT: .*$((${#dir} + 5001)) bytes.*expected at most 4095" "$dir/err" ||
  fail "a long name: $(cat "$dir/err")"

# The budget that all processes share, and what launchers say: LADE_BUDGET is obeyed, or named.
name=preload-$$-$(date +%N)
ledger=/dev/shm/lade-budget-$(id -u)-$name
trap 'rm -rf "$dir" "$ledger"' EXIT
# asked SERVED NAME=VALUE...: how many of three requests lade serves
asked() {
  served=$1
  shift
  rm -f "$dir/report"
  under "$@" LADE_PRELOAD_REPORT="$dir/report" "$stand_in" 3
  [ "$status$(cat "$dir/out")" = "03 blocks" ] || fail "$*: status $status, $(cat "$dir/out" "$dir/err")"
  is allocs_served "$served"
  is allocs_passed_failure $((3 - served))
}
asked 3 "LADE_BUDGET=name:$name,mb:4096"
[ -s "$ledger" ] || [ ! -w /dev/shm ] || fail "no ledger of the name that LADE_BUDGET says"
asked 3 LADE_BUDGET=off
asked 0 LADE_BUDGET=off LOCAL_RANK=0 LOCAL_WORLD_SIZE=1048576 # of half the memory each has some kilobytes
asked 0 LADE_BUDGET=nonsense
[ "$(wc -l <"$dir/err")" = 1 ] && grep -q 'liblade_preload: .*LADE_BUDGET' "$dir/err" || fail "LADE_BUDGET=nonsense: $(cat "$dir/err")"

# A name for each process.
under LADE_PRELOAD_REPORT="$dir/report.%p" "$stand_in" 3
set -- "$dir"/report.[0-9]*
[ $# = 1 ] && [ -s "$1" ] || fail "report.%p: $*"

# A driver that was closed and opened again was taken for a second one, and none of its calls was served.
rm -f "$dir/report"
under LADE_PRELOAD_REPORT="$dir/report" "$stand_in" 3 probe
[ "$status$(cat "$dir/out")" = "03 blocks" ] || fail "probe: status $status, $(cat "$dir/out" "$dir/err")"
is allocs_served 3

# Settings were read where they stood, long after a program had written something else there.
rm -f "$dir/report"
under LADE_PRELOAD_REPORT="$dir/report" "$stand_in" 3 retitle
[ "$status$(cat "$dir/out" "$dir/err")" = "03 blocks" ] || fail "retitle: status $status, $(cat "$dir/out" "$dir/err")"
is allocs_served 3

# Where the locale has a decimal comma, so had the report.
rm -f "$dir/report"
if localedef --no-archive -i de_DE -f UTF-8 "$dir/comma" >"$dir/out" 2>&1; then
  under LOCPATH="$dir" LC_ALL=comma LADE_PRELOAD_REPORT="$dir/report" "$stand_in" 100 locale
  [ "$status$(cat "$dir/out" "$dir/err")" = "0100 blocks" ] || fail "locale: status $status, $(cat "$dir/out" "$dir/err")"
  is hit_rate 0.990000
fi

# Work that never ends keeps no process from ending.
rm -f "$dir/report"
under LADE_PRELOAD_REPORT="$dir/report" timeout 60 "$stand_in" 3 busy
[ "$status$(cat "$dir/out")" = "03 blocks" ] || fail "busy: status $status, $(cat "$dir/out" "$dir/err")"
is allocs_served 4
rm -f "$dir/report"
under LADE_PRELOAD_DEVICE=all LADE_PRELOAD_REPORT="$dir/report" timeout 60 "$stand_in" 3 busy
[ "$status$(cat "$dir/out")" = "03 blocks" ] || fail "busy, device memory: status $status, $(cat "$dir/out" "$dir/err")"
is device_allocs_served 4

# A constructor of a library, which has the loader's lock, waited for threads that needed that lock: for ever.
for case in reset destroy; do
  PLUGIN_CASE=$case same timeout 60 "$stand_in" 0 plugin "$plugin"
  [ "$status$(cat "$dir/out")" = "0plugin" ] || fail "plugin, $case: status $status, $(cat "$dir/out" "$dir/err")"
done

# Without a driver the program says so by itself.
same env LD_LIBRARY_PATH="$dir" "$stand_in" 3
exit $((failures != 0))
