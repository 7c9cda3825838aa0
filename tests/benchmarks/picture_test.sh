#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The picture in the documents is drawn of the result that they name; `benchmarks/run_all --report benchmarks/results` draws it.
# usage: picture_test.sh PROGRAM RESULT PICTURE
drawn=$(mktemp) || exit 1
trap 'rm -f "$drawn"' EXIT
"$1" --draw "$2" --plot "$drawn" && cmp "$drawn" "$3"
