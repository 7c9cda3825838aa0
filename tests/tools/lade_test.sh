#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `lade` itself as a user types it: help, version, commands that there are not.
# usage: lade_test.sh LADE
set -u
. tests/tools/command.sh

run 0 --version
grep -Eq '^lade [0-9]+\.[0-9]+\.[0-9]+$' "$dir/out" || fail "no version: $(cat "$dir/out")"
run 0 --help
cp "$dir/out" "$dir/help"
for command in budget doctor load replay save settings topo trees; do says "  $command " out; done
run 0 help
cmp -s "$dir/out" "$dir/help" || fail "help and --help differ"
run 0 help settings
cp "$dir/out" "$dir/help"
run 0 settings --help
cmp -s "$dir/out" "$dir/help" || fail "'help settings' and 'settings --help' differ"
run 2 help nonsense
says 'unknown command "nonsense"' err
run 2 nonsense
says 'unknown command "nonsense"' err
[ -s "$dir/out" ] && fail "a usage error on standard output"
run 2

export LADE_LOG=loud
run 2 settings
says 'lade: LADE_LOG is "loud"; expected error, warn, info, debug or off' err
run 0 --version
LADE_LOG=debug
run 0 settings
unset LADE_LOG

# Under another name, that name shows in its help and messages.
ln -s "$(realpath "$lade")" "$dir/lade2"
lade=$dir/lade2
run 0 --help
says "usage: lade2 COMMAND" out
run 0 load --help
says "lade2 load" out
run 2 snapshot
says "lade2 snapshot: FILE or PID is missing" err
run 2 nonsense
says "lade2: unknown command" err
finish
