#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# For scripts that add up what others ran. They source this file, and make a folder $scratch for count_suite; passed, failed and skipped are the sums,
# failures has the names of what failed.

passed=0
failed=0
skipped=0
failures=()

# count_check NAME COMMAND...: exit status 0 passed, 77 skipped, else failed
count_check() {
  local name=$1 status
  shift
  "$@"
  status=$?
  case $status in
  0) passed=$((passed + 1)); echo "passed: $name" ;;
  77) skipped=$((skipped + 1)); echo "skipped: $name" ;;
  *) failed=$((failed + 1)); failures+=("$name"); echo "FAILED: $name" ;;
  esac
}

# The names in lines "FAILED NAME", each once: what a test printed is there, too, such as unittest's "FAILED (errors=1)" and
# pytest's own list.
failed_names() { # FILE
  sed -n 's/^FAILED \([^(]\)/\1/p' "$1" | awk '!seen[$0]++'
}

# count_suite NAME COMMAND...: adds up the closing line of a command that runs tests. One that ends badly or without that line has
# failed, whatever it says.
count_suite() {
  local name=$1 output=$scratch/output status what names=() numbers=()
  shift
  "$@" 2>&1 | tee "$output"
  status=${PIPESTATUS[0]}
  if [[ $(tail -n 1 "$output") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
    numbers=("${BASH_REMATCH[@]}")
    passed=$((passed + numbers[1]))
    failed=$((failed + numbers[2]))
    skipped=$((skipped + ${numbers[4]:-0}))
  fi
  [ "${numbers[2]-}" = 0 ] || mapfile -t names < <(failed_names "$output")
  if [ "$status" -ne 0 ] || [ "${#numbers[@]}" -eq 0 ]; then
    [ "${#names[@]}" -ne 0 ] || names=("ended with status $status")
    [ "${numbers[2]:-0}" -ne 0 ] || failed=$((failed + ${#names[@]}))
  fi
  for what in "${names[@]}"; do failures+=("$name: $what"); done
}
