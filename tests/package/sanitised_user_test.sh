#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A program that uses a freed block of a pool in debug mode is told so where it does: by its address sanitiser, which the library was not
# built with, and by valgrind. Nothing is said of one that does right.
# usage: sanitised_user_test.sh LIBRARY HEADER...
set -u
library=$(readlink -f "$1")
include=$(dirname "$(dirname "$(readlink -f "$2")")")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*"; cat "$scratch/out"; exit 1; }
cat >"$scratch/program.c" <<'C'
#include <lade/lade.h>
#include <string.h>
int main(int argc, char **argv) {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_pinned_options options;
  void *block;
  (void)argv;
  lade_pinned_options_init(&options);
  options.flags = LADE_PINNED_DEBUG;
  if (lade_runtime_open("cpu", NULL, &runtime) != LADE_OK || lade_pinned_pool_create(runtime, &options, &pool) != LADE_OK) return 3;
  for (int i = 0; i < 3; i++) {
    if (lade_pinned_alloc(pool, 1000, &block) != LADE_OK) return 3;
    memset(block, i, 1000);
    if (lade_pinned_free(pool, block) != LADE_OK) return 3;
  }
  if (argc > 1) ((volatile char *)block)[500] = 1;
  return lade_pinned_pool_destroy(pool, true) == LADE_OK && lade_runtime_close(runtime) == LADE_OK ? 0 : 3;
}
C
folder=$(dirname "$library")
build() { cc -g -I "$include" -o "$scratch/program" "$scratch/program.c" "$library" -Wl,-rpath,"$folder" "$@" >"$scratch/out" 2>&1; }

build -fsanitize=address || fail "it does not build"
export ASAN_OPTIONS=detect_leaks=0
"$scratch/program" >"$scratch/out" 2>&1 || fail "the sanitiser tells of a correct program"
"$scratch/program" wrong >"$scratch/out" 2>&1 && fail "the sanitiser says nothing"
grep -q 'use-after-poison' "$scratch/out" || fail "the sanitiser says something else"

command -v valgrind >/dev/null || { echo "valgrind is not installed: its half is left out"; exit 0; }
[ -e /usr/include/valgrind/memcheck.h ] || { echo "valgrind's header is not installed: its half is left out"; exit 0; }
build || fail "it does not build"
valgrind -q --error-exitcode=9 "$scratch/program" >"$scratch/out" 2>&1 || fail "valgrind tells of a correct program"
valgrind -q --error-exitcode=9 "$scratch/program" wrong >"$scratch/out" 2>&1
[ $? -eq 9 ] || fail "valgrind says nothing"
grep -q 'Invalid write of size 1' "$scratch/out" || fail "valgrind says something else"
