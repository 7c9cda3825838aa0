#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/setup on machines that lack something, played by stand-ins for dpkg-query, id, sudo and apt-get.
# usage: setup_test.sh SETUP
set -u
setup=$PWD/$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
problems=0

stand_in() { # NAME BODY
  printf '#!/bin/sh\n%s\n' "$2" >"$folder/$1"
  chmod +x "$folder/$1"
}

# play EXPECTED_STATUS WHAT: runs setup, keeps its words in $folder/words
play() {
  : >"$folder/calls"
  PATH=$folder:$PATH sh "$setup" </dev/null >"$folder/words" 2>&1
  status=$?
  [ "$status" -eq "$1" ] && return
  echo "$2: exit status $status instead of $1"
  cat "$folder/words"
  problems=$((problems + 1))
}

demand() { # WHAT FILE TEXT
  grep -qF -- "$3" "$folder/$2" && return
  echo "$1: '$3' is not in $2:"
  cat "$folder/$2"
  problems=$((problems + 1))
}

forbid_any() { # WHAT FILE
  [ -s "$folder/$2" ] || return 0
  echo "$1: $2 should be empty:"
  cat "$folder/$2"
  problems=$((problems + 1))
}

# All packages are there but those in the file `missing`.
: >"$folder/missing"
stand_in dpkg-query 'shift 2; for p; do grep -qx "$p" "'"$folder"'/missing" || echo "$p installed"; done'
stand_in id 'echo 0'
stand_in apt-get 'echo "apt-get $*" >>"'"$folder"'/calls"; : >"'"$folder"'/missing"'
stand_in sudo 'exit 1'

play 0 "all there"
forbid_any "all there" words
forbid_any "all there" calls

echo libhwloc-dev >"$folder/missing"
play 0 "root"
demand "root" calls 'apt-get install -y --no-install-recommends libhwloc-dev'
demand "root" words 'libhwloc-dev        hwloc: NUMA topology'

stand_in id 'echo 1000'
printf 'gcc\nliburing-dev\n' >"$folder/missing"
play 3 "neither root nor sudo"
demand "neither root nor sudo" words 'apt-get install -y --no-install-recommends gcc liburing-dev'
forbid_any "neither root nor sudo" calls

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

exit "$((problems > 0))"
