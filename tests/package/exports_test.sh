#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shared library exports exactly the functions that the public headers declare, with a version each.
# usage: exports_test.sh LIBRARY HEADER...
set -u
library=$1
shift
exported=$(mktemp)
declared=$(mktemp)
trap 'rm -f "$exported" "$declared"' EXIT

# A small letter marks a local symbol, which the dynamic linker alone uses.
nm -D --defined-only "$library" | awk '$2 ~ /^[B-Z]$/ { print $3 }' | sed 's/@@LADE_[0-9.]*$//' | LC_ALL=C sort -u >"$exported"
# From LADE_API or LADE_INLINE to the first parenthesis of the declaration: the word before it is the name.
cat "$@" | tr '\n' ' ' | grep -oE 'LADE_(API|INLINE) [^(;{}]*\(' | grep -oE 'lade_[a-z0-9_]+ *\($' | tr -d ' (' |
  LC_ALL=C sort -u >"$declared"

# A function that is only declared would be hidden: its users get a link error.
if grep -nE '^(const |struct |unsigned )*[a-z_0-9]+ \**lade_[a-z0-9_]+\(' "$@"; then
  echo "declared without LADE_API"
  exit 1
fi
[ -s "$declared" ] || { echo "no declaration found in $*"; exit 1; }
if ! diff "$declared" "$exported"; then
  echo "'<': declared and not exported; '>': exported and not declared"
  exit 1
fi
