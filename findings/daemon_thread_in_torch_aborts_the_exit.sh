#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# PyTorch before Python 3.14: a program that ends while a daemon thread is in an operation is aborted, SIGABRT, after its last line. The
# thread wants the interpreter's lock back, Python ends it by pthread_exit(), and that unwinds through a destructor of PyTorch's that may
# not throw. Threads in functions of the standard library that give the lock away end quietly.
# Expected: daemon threads end with the process, whatever they do, and its exit status is 0.
# Seen: Python 3.11.7, PyTorch 2.11.0+cu130, without a GPU:
#   zlib.compress: 0; torch.ones: -6 (five times each), terminate called without an active exception
# Exit status: 0 as above; 1 otherwise; 77 where the packages are not to be had (3 GB), or Python is 3.14 or later.
# PYTHON_WITH_TORCH names an interpreter that has them.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON_WITH_TORCH-}
if [ -z "$python" ]; then
  python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" -q install torch==2.11.0 || exit 77
  python=$folder/venv/bin/python
fi
cat >"$folder/program.py" <<'END'
import sys, threading, time, zlib

import torch

data = bytes(1 << 16)
call = {"torch": lambda: torch.ones(1000), "zlib": lambda: zlib.compress(data)}[sys.argv[1]]


def run():
    while True:
        call()


threading.Thread(target=run, daemon=True).start()
time.sleep(0.5)
END
"$python" - "$folder/program.py" <<'END'
import subprocess, sys

import torch

print("Python", sys.version.split()[0], "PyTorch", torch.__version__)
if sys.version_info >= (3, 14):
    sys.exit(77)
seen = {}
for which in ("zlib", "torch"):
    done = [subprocess.run([sys.executable, sys.argv[1], which], capture_output=True, text=True) for _ in range(5)]
    seen[which] = {each.returncode for each in done}
    print(which, sorted(seen[which]), {each.stderr.strip() for each in done})
sys.exit(seen["zlib"] != {0} or -6 not in seen["torch"])
END
