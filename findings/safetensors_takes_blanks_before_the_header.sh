#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# safetensors: the description of the format says that a header begins with '{' and is padded with spaces at its end; the package
# takes tabs, line ends and spaces before and behind it, and refuses other blanks.
# Seen: safetensors 0.8.0, numpy 2.4.6:
#   ' ' before: ['a']    behind: ['a']
#   '\t' before: ['a']    behind: ['a']
#   '\n' before: ['a']    behind: ['a']
#   '\r' before: ['a']    behind: ['a']
#   '\x0b' before: refused    behind: refused
#   '\x00' before: refused    behind: refused
# Exit status: 0 as above; 1 otherwise.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install safetensors==0.8.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder/file.safetensors" <<'END'
import sys

import numpy
import safetensors

PATH = sys.argv[1]
HEADER = b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'


def names(header):
    with open(PATH, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + b"xy")
    try:
        with safetensors.safe_open(PATH, "np") as opened:
            return str(opened.keys())
    except safetensors.SafetensorError:
        return "refused"


print("safetensors", safetensors.__version__, "numpy", numpy.__version__)
right = True
for blank, wanted in ((" ", "['a']"), ("\t", "['a']"), ("\n", "['a']"), ("\r", "['a']"), ("\v", "refused"), ("\0", "refused")):
    before, behind = names(blank.encode() + HEADER), names(HEADER + blank.encode())
    print(f"{blank!r} before: {before}    behind: {behind}")
    right &= before == wanted and behind == wanted
sys.exit(0 if right else 1)
END
