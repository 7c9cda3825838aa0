#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/setup on machines that lack something, played by stand-ins for dpkg-query, id, sudo and apt-get.
# usage: setup_test.sh SETUP
set -u
setup=$PWD/$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
problems=0
path=$folder:$PATH

stand_in() { # NAME BODY
  printf '#!/bin/sh\n%s\n' "$2" >"$folder/$1"
  chmod +x "$folder/$1"
}

# play EXPECTED_STATUS WHAT [ARGUMENT...]: runs setup, keeps its words in $folder/words
play() {
  expected=$1 what=$2
  shift 2
  : >"$folder/calls"
  PATH=$path CC=cc sh "$setup" "$@" </dev/null >"$folder/words" 2>&1
  status=$?
  [ "$status" -eq "$expected" ] && return
  echo "$what: exit status $status instead of $expected"
  cat "$folder/words"
  problems=$((problems + 1))
}

demand() { # WHAT FILE TEXT
  grep -qF -- "$3" "$folder/$2" && return
  echo "$1: '$3' is not in $2:"
  cat "$folder/$2"
  problems=$((problems + 1))
}

forbid() { # WHAT FILE TEXT
  grep -qF -- "$3" "$folder/$2" || return 0
  echo "$1: '$3' is in $2:"
  cat "$folder/$2"
  problems=$((problems + 1))
}

forbid_any() { # WHAT FILE
  [ -s "$folder/$2" ] || return 0
  echo "$1: $2 should be empty:"
  cat "$folder/$2"
  problems=$((problems + 1))
}

# --- Debian -------------------------------------------------------------------------------------------------------------

# All packages are there but those in the file `missing`. A header is there if it is not in `missing_headers`.
: >"$folder/missing"
: >"$folder/missing_headers"
: >"$folder/foreign"
stand_in dpkg-query 'shift 2; for p; do
  grep -qx "$p" "'"$folder"'/missing" && continue
  case $p in *:*) echo "${p%:*} ${p#*:} installed" ;; *) echo "$p amd64 installed" ;; esac
done'
stand_in dpkg 'case $1 in
  --print-architecture) echo amd64 ;;
  --print-foreign-architectures) cat "'"$folder"'/foreign" ;;
  *) echo "dpkg $*" >>"'"$folder"'/calls" ;;
esac'
stand_in cc '! grep -qFf "'"$folder"'/missing_headers" -' # reads a source with the header's name
stand_in id 'echo 0'
stand_in apt-get 'echo "apt-get $*" >>"'"$folder"'/calls"; : >"'"$folder"'/missing"'
stand_in sudo 'exit 1'

play 0 "all there"
forbid_any "all there" words
forbid_any "all there" calls
play 2 "unknown group" libraries
demand "unknown group" words 'unknown group libraries'

echo libhwloc-dev >"$folder/missing"
play 0 "root"
demand "root" calls 'apt-get install -y --no-install-recommends libhwloc-dev'
demand "root" words 'libhwloc-dev          hwloc: NUMA topology'

# A group is what it says, no more.
printf 'libgtest-dev\nlibjemalloc-dev\ncmake\nclang-19\n' >"$folder/missing"
play 0 "the library alone" library
demand "the library alone" calls 'recommends cmake'
forbid "the library alone" calls libgtest-dev
printf 'libgtest-dev\nlibjemalloc-dev\ncmake\nclang-19\n' >"$folder/missing"
play 0 "no group"
demand "no group" calls 'recommends cmake libgtest-dev'
forbid "no group" calls libjemalloc-dev
printf 'libgtest-dev\nlibjemalloc-dev\ncmake\nclang-19\n' >"$folder/missing"
play 0 "ci" --ci
demand "ci" calls 'recommends cmake libgtest-dev libjemalloc-dev clang-19'

# Libraries of another architecture are not the machine's own, and apt has to know of it first.
echo libhwloc-dev:arm64 >"$folder/missing"
play 0 "cross" cross
demand "cross" calls 'dpkg --add-architecture arm64'
demand "cross" calls 'apt-get update'
demand "cross" calls 'recommends libhwloc-dev:arm64'
forbid "cross" calls 'libjansson-dev:arm64'
echo arm64 >"$folder/foreign"
echo libhwloc-dev:arm64 >"$folder/missing"
play 0 "cross again" cross
forbid "cross again" calls 'dpkg --add-architecture'

stand_in id 'echo 1000'
stand_in gcc ''
printf 'gcc\nliburing-dev\n' >"$folder/missing"
echo liburing.h >"$folder/missing_headers"
play 3 "neither root nor sudo"
demand "neither root nor sudo" words 'apt-get install -y --no-install-recommends liburing-dev'
forbid_any "neither root nor sudo" calls

# No package, but its header from elsewhere.
echo none >"$folder/missing_headers"
play 0 "neither root nor sudo, but the header"
demand "neither root nor sudo, but the header" words 'packages are missing (gcc liburing-dev), but what they bring is there'

stand_in sudo '[ "$1" != -n ] || shift; exec "$@"'
play 0 "sudo"
demand "sudo" calls 'apt-get install -y --no-install-recommends gcc liburing-dev'

# The lists are stale: the first install fails, the one after update succeeds.
stand_in apt-get 'echo "apt-get $*" >>"'"$folder"'/calls"; [ "$1" = update ] || [ "$(grep -c update "'"$folder"'/calls")" = 1 ]'
echo gcc >"$folder/missing"
play 0 "stale lists"
demand "stale lists" calls 'apt-get update'

stand_in apt-get 'echo "no route to host"; exit 100'
play 4 "no network"
demand "no network" words 'no route to host'

# --- other systems ------------------------------------------------------------------------------------------------------

# Only the stand-ins and what tools/setup itself runs are there.
rm "$folder/dpkg-query" "$folder/apt-get"
for program in awk cat cut grep mktemp rm sed sh sort tr; do ln -s "$(command -v $program)" "$folder/$program"; done
for program in cmake make pkg-config gcc; do stand_in $program ''; done
stand_in ldconfig 'echo libunwind.so.8; echo libdw.so.1'
path=$folder
play 0 "another system with all" library
demand "another system with all" words 'not a Debian system; all headers and programs that it looked for are there'

rm "$folder/cmake"
echo hwloc.h >"$folder/missing_headers"
play 3 "another system" library
demand "another system" words 'libhwloc-dev'
forbid "another system" words 'libjansson-dev'
stand_in dnf ''
play 3 "Fedora" library
demand "Fedora" words 'dnf install cmake hwloc-devel'
forbid "Fedora" words 'no package'
# dpkg and apt, as Fedora has them, know of no package.
stand_in dpkg-query 'echo "dpkg-query: no packages found matching dpkg" >&2; exit 1'
stand_in apt-get 'echo "apt-get $*" >>"'"$folder"'/calls"'
play 3 "Fedora with dpkg" library
demand "Fedora with dpkg" words 'dnf install cmake hwloc-devel'
forbid_any "Fedora with dpkg" calls
play 3 "Fedora without Bazel" library tests
demand "Fedora without Bazel" words 'Fedora has no package'

exit "$((problems > 0))"
