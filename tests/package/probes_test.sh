#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shared library has the static probes that docs/inspect.md lists, with as many arguments, of the sizes that a tracer is to read;
# and no other ones.
# usage: probes_test.sh LIBRARY DOCUMENT
set -u
notes=$(readelf -n "$1") || exit 1
problems=0

# "Provider: lade", "Name: NAME", ..., "Arguments: 8@%rax -4@24(%rsp) ...": "NAME SIZE SIZE ..." of each place. A size below 0 is of
# a signed argument.
found=$(echo "$notes" | awk '
  $1 == "Provider:" { provider = $2 }
  $1 == "Name:" { name = $2 }
  $1 == "Arguments:" && provider == "lade" {
    line = name
    for (i = 2; i <= NF; i++) { split($i, argument, "@"); line = line " " argument[1] }
    print line
  }' | sort -u)

# expect NAME SIZE...: every place of the probe has these. A constant has the size of an int.
expect() {
  name=$1
  places=$(echo "$found" | grep "^$name ")
  [ "$places" = "$*" ] && return
  echo "probe lade:$name: '$places', not '$*'"
  problems=1
}
expect device_alloc 8 -4 8 8
expect device_free 8
expect device_segment_alloc 8 8 8
expect device_segment_free 8 8 8
expect device_oom -4 8 8
expect pinned_alloc 8 8
expect pinned_free 8
expect pinned_segment_alloc 8 8 -4
expect pinned_segment_free 8 8 -4
expect pinned_oom 8
expect copy_begin 8 8 1 8
expect copy_end 8 8 4

listed=$(sed -n 's/^| `\([a-z_]*\)` | .* | .* |$/\1/p' "$2" | grep -E '^(device|pinned|copy)_' | grep -E '_(alloc|free|oom|begin|end)$' | sort)
there=$(echo "$found" | cut -d' ' -f1 | sort -u)
[ "$listed" = "$there" ] || { echo "the document lists"; echo "$listed"; echo "the library has"; echo "$there"; problems=1; }
exit $problems
