#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# --skip-setup of tests/run and staging_throughput: no package is looked for, and the option goes no further. Stand-ins play Bazel
# and the package manager.
# usage: skip_setup_test.sh TESTS_RUN STAGING_THROUGHPUT
set -u
run=$PWD/$1
staging=$PWD/$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
problems=0

stand_in() { # NAME BODY
  mkdir -p "$(dirname "$folder/$1")"
  printf '#!/bin/sh\n%s\n' "$2" >"$folder/$1"
  chmod +x "$folder/$1"
}

stand_in dpkg-query 'echo dpkg-query >>"'"$folder"'/calls"'
stand_in dpkg ''
stand_in id 'echo 1000'
stand_in sudo 'exit 1'
stand_in bazel 'echo "bazel $*" >>"'"$folder"'/calls"; [ "$1" != info ] || echo "'"$folder"'"'
stand_in benchmarks/staging_throughput_bin 'echo "program $*" >>"'"$folder"'/calls"'

# play WANTED COMMAND...: the command's calls must have a line that ends in WANTED, and none of dpkg-query
play() {
  wanted=$1
  shift
  : >"$folder/calls"
  PATH=$folder:$PATH "$@" </dev/null >"$folder/words" 2>&1
  grep -q "^bazel" "$folder/calls" && ! grep -qE 'dpkg-query|skip-setup' "$folder/calls" && grep -q -- "$wanted\$" "$folder/calls" &&
    return
  echo "$*:"
  cat "$folder/calls" "$folder/words"
  problems=$((problems + 1))
}

play ' --config=opt //x:y' "$run" --config=opt --skip-setup //x:y
play ' //\.\.\.' "$run" --skip-setup
play '^program --chunk 1 a b' "$staging" --chunk 1 --skip-setup 'a b'
play '^program --json=x' "$staging" --skip-setup --json=x

# Without it the packages are looked for first.
: >"$folder/calls"
if PATH=$folder:$PATH "$run" >"$folder/words" 2>&1 || ! grep -q dpkg-query "$folder/calls"; then
  echo "tests/run without --skip-setup looks for no package"
  problems=$((problems + 1))
fi

exit "$((problems > 0))"
