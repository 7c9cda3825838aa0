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
for command in budget doctor load replay save settings topo; do says "  $command " out; done
run 0 help
cmp -s "$dir/out" "$dir/help" || fail "help and --help differ"
run 0 help settings
cp "$dir/out" "$dir/help"
run 0 settings --help
cmp -s "$dir/out" "$dir/help" || fail "'help settings' and 'settings --help' differ"
run 2 help nonsense
says 'unknown command "nonsense"' err
# Words too many were passed over.
for words in '--help topo' '--version 2' 'help topo load'; do
  # shellcheck disable=SC2086 # words of a command line
  run 2 $words
  says "${words##* }: is one word too many" err
  [ -s "$dir/out" ] && fail "a usage error on standard output"
done
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

# What standard output does not take is lost: no command says that it went well. Help is printed by argp, which does not look.
if [ -c /dev/full ]; then
  printf 'lade-trace 1\nalloc 1 1000 0\nsnapshot first\n' >"$dir/trace"
  printf '\002\000\000\000\000\000\000\000{}' >"$dir/empty.safetensors"
  for command in --help --version help 'help top' 'top --help' 'replay --usage' settings 'replay --json DIR/trace' \
    'replay DIR/trace --compare' 'load --runtime=cpu DIR/trace' 'load --runtime=cpu --json DIR/trace' \
    'save --runtime=cpu DIR/empty.safetensors DIR/to.safetensors' \
    'save --runtime=cpu --json DIR/empty.safetensors DIR/to.safetensors'; do
    # shellcheck disable=SC2046 # words of a command line
    "$lade" $(echo "$command" | sed "s|DIR|$dir|g") >/dev/full 2>"$dir/err"
    status=$?
    [ "$status" = 1 ] || fail "lade $command on a full disk: exit status $status"
    says "standard output: cannot be written: No space left on device" err
    [ "$(wc -l <"$dir/err")" = 1 ] || fail "lade $command says it twice: $(cat "$dir/err")"
  done
fi
"$lade" --version >&- 2>"$dir/err" && fail "lade --version without standard output"
says "standard output: cannot be written: Bad file descriptor" err

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
