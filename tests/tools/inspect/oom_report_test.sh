#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The way of docs/inspect.md from "out of memory" to its cause, on each software device.
# usage: oom_report_test.sh LADE OOM_REPORT
set -u
. tests/tools/command.sh

for runtime in cpu sim; do
  # A clean-up call that fails came before the text: on other runtimes than "sim" the reason was that of lade_soft_advance.
  "$2" "$runtime" "$dir" >"$dir/out" || fail "$runtime: the example fails"
  says "out of memory: CUDA out of memory. Device 0: " out
  says "the options' max_bytes are used up" out
  [ -s "$dir/oom.html" ] || fail "$runtime: there is no page"

  run 0 snapshot "$dir/oom.pickle" --top
  says "loss_keep" out
  run 0 snapshot "$dir/oom.pickle" -o "$dir/oom.folded"
  run 0 snapshot "$dir/oom.pickle" --before="$dir/early.pickle" -o "$dir/compare.html"
  run 0 diff "$dir/early.pickle" "$dir/oom.pickle"
  says "loss_keep" out
  run 0 replay "$dir/oom.pickle" --compare expandable_segments:True
  rm "$dir"/*.pickle "$dir"/*.html
done
finish
