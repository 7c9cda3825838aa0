#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shared library has the static probes that docs/tuning.md names, with their arguments.
# usage: probes_test.sh LIBRARY
set -u
notes=$(readelf -n "$1") || exit 1
for probe in device_alloc:4 device_free:1; do
  name=${probe%:*}
  # "Provider: lade", "Name: NAME", ..., "Arguments: 8@%rax ...": one word per argument.
  found=$(echo "$notes" | awk -v name="$name" '
    $1 == "Provider:" { provider = $2 }
    $1 == "Name:" { this = provider == "lade" && $2 == name }
    $1 == "Arguments:" && this { print NF - 1; exit }')
  [ "$found" = "${probe#*:}" ] || { echo "probe lade:$name: '$found' arguments"; exit 1; }
done
