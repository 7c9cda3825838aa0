#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The libraries that README.md names for users of the static library are all that it needs.
# usage: static_link_test.sh LIBRARY README
set -u
library=$1
readme=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

libraries=$(tr '\n' ' ' <"$readme" | grep -oE 'the static one needs +`[^`]*`' | grep -oE '`.*`' | tr -d '`')
[ -n "$libraries" ] || { echo "README.md does not say what the static library needs"; exit 1; }

echo 'int main(void) { return 0; }' >"$scratch/main.c"
# shellcheck disable=SC2086 # the words of README.md are the arguments
LC_ALL=C cc -o "$scratch/main" "$scratch/main.c" -Wl,--whole-archive "$library" -Wl,--no-whole-archive $libraries 2>"$scratch/errors"
status=$?
# A library that was built for a sanitiser needs its run time library as well.
grep 'undefined reference' "$scratch/errors" | grep -vE 'references? to .__(asan|tsan|ubsan|sanitizer)_' >"$scratch/missing"
if [ -s "$scratch/missing" ]; then
  echo "linked with $libraries, these are missing:"
  sort -u "$scratch/missing"
  exit 1
fi
[ "$status" -eq 0 ] || grep -q 'undefined reference' "$scratch/errors" || { cat "$scratch/errors"; exit 1; }
