#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# CUDA: cudaGetDevice, which reads a number of the thread, takes some 20 times as long in a thread that has no context yet, at each call, not
# the first alone, although the process uses the device; so an allocator that asks at each allocation is slow in worker threads only.
# Seen: driver 580.159, CUDA 13.0, one H200, CuPy 14.2, a Python call included:
#   main thread 106 ns, another thread 2417 ns, the same thread after its first array 98 ns
# Exit status: 0 as above; 1 otherwise; 77 where there is no device with a driver, or no package.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=python3
if ! "$python" -c 'import cupy' 2>/dev/null; then
  python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" -q install cupy-cuda13x==14.2.0 || exit 77
  python=$folder/venv/bin/python
fi
"$python" - <<'END'
import sys
import threading
import time

import cupy

ask = cupy.cuda.runtime.getDevice
try:
    cupy.zeros(1)
except Exception as error:  # no driver, no device
    print("no device:", error)
    sys.exit(77)


def ns(calls=20000):
    begin = time.perf_counter_ns()
    for _ in range(calls):
        ask()
    return (time.perf_counter_ns() - begin) / calls


def work():
    seen.append(ns())
    cupy.zeros(1)
    seen.append(ns())


seen = [ns()]
thread = threading.Thread(target=work)
thread.start()
thread.join()
print("CuPy", cupy.__version__, "driver of CUDA", cupy.cuda.runtime.driverGetVersion())
print("main thread {:.0f} ns, another thread {:.0f} ns, the same thread after its first array {:.0f} ns".format(*seen))
sys.exit(0 if seen[1] > 5 * max(seen[0], seen[2]) else 1)
END
