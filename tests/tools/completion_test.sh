#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The completion of `lade` in bash, sourced and asked as bash asks it.
# usage: completion_test.sh LADE COMPLETION
set -u
lade=$1
source "$2"
problems=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# completes "WANTED..." WORD...: what the last word of `lade WORD...` may become, sorted
completes() {
  local wanted=$1
  shift
  COMP_WORDS=("$lade" "$@")
  COMP_CWORD=$#
  COMPREPLY=()
  _lade
  local got
  got=$(printf '%s\n' "${COMPREPLY[@]}" | sort | paste -sd ' ')
  [ "$got" = "$wanted" ] && return
  echo "lade $*: '$got', not '$wanted'"
  problems=$((problems + 1))
}

# has WANTED WORD...: WANTED is one of them
has() {
  local wanted=$1
  shift
  COMP_WORDS=("$lade" "$@")
  COMP_CWORD=$#
  COMPREPLY=()
  _lade
  printf '%s\n' "${COMPREPLY[@]}" | grep -qx -- "$wanted" && return
  echo "lade $*: no '$wanted' in: ${COMPREPLY[*]}"
  problems=$((problems + 1))
}

[ "$(complete -p lade)" = "complete -F _lade lade" ] || { echo "not registered"; problems=1; }

completes "replay" re
completes "save settings snapshot stats" s
completes "--version" --v
completes "top topo" help t
for command in budget diff load replay save settings snapshot stats top topo; do
  has "$command" ''
  has --json "$command" --
done
completes "--max-shard-size" save --m
completes "--compare --conf" replay --co
completes "cpu cuda" load --runtime c
completes "cpu cuda" load --runtime = c
completes "cpu cuda sim" load --runtime =
completes "pread" load --storage p
completes "" load --repeat ''
completes "off on" snapshot 7 --history ''
completes "on" snapshot 7 --history = on
completes "" snapshot 7 --entries ''
has --history snapshot 7 --h
touch "$folder/one.safetensors" "$folder/two"
completes "$folder/one.safetensors" load "$folder/o"
completes "$folder/one.safetensors $folder/two" load --verify "$folder/"

# Every option that the tools have is offered.
for command in diff load replay save settings snapshot stats top topo; do
  for option in $("$lade" "$command" --help | grep -oE '^ +(-., )?--[a-z-]+' | grep -oE -- '--[a-z-]+'); do
    has "$option" "$command" "${option:0:4}"
  done
done
exit $((problems > 0))
