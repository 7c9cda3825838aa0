#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# package_test.py, which is skipped with a word where the Python package safetensors is not installed.
# usage: package_test.sh LADE SCRIPT
python3 "$2" "$1"
status=$?
[ $status = 77 ] && exit 0
exit $status
