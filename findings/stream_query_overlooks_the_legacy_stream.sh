#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# CUDA: an event recorded on a blocking stream is behind what the legacy stream still does; cuStreamQuery of that stream, where nothing but
# the event was queued, says that it is done, and cuStreamSynchronize returns, while the event is pending.
# Seen: driver 580.159, CUDA 13.0, one H200:
#   event: CUDA_ERROR_NOT_READY, stream: CUDA_SUCCESS; after cuStreamSynchronize the event: CUDA_ERROR_NOT_READY
# Exit status: 0 as above; 1 otherwise; 77 where there is no device with a driver, or no package.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=python3
if ! "$python" -c 'import cuda.bindings' 2>/dev/null; then
  python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" -q install cuda-bindings==13.0.3 || exit 77
  python=$folder/venv/bin/python
fi
"$python" - <<'END'
import sys

from cuda.bindings import driver as cu


def must(result):
    code, *values = result
    if code != cu.CUresult.CUDA_SUCCESS:
        sys.exit(f"a call that was to succeed gave {code.name}")
    return values[0] if values else None


try:
    count = cu.cuDeviceGetCount()[1] if cu.cuInit(0)[0] == cu.CUresult.CUDA_SUCCESS else 0
except RuntimeError:  # no libcuda.so.1
    count = 0
if count == 0:
    print("no device")
    sys.exit(77)
print("driver of CUDA", must(cu.cuDriverGetVersion()), must(cu.cuDeviceGetName(64, must(cu.cuDeviceGet(0)))).rstrip(b"\0").decode())
must(cu.cuCtxSetCurrent(must(cu.cuDevicePrimaryCtxRetain(must(cu.cuDeviceGet(0))))))
BYTES = 4 << 30
stream = must(cu.cuStreamCreate(0))  # blocking
event = must(cu.cuEventCreate(2))
memory = must(cu.cuMemAlloc(BYTES))
must(cu.cuMemsetD8Async(memory, 0, 1, stream))
must(cu.cuCtxSynchronize())
for _ in range(200):  # on the legacy stream: hundreds of milliseconds
    must(cu.cuMemsetD8Async(memory, 1, BYTES, 0))
must(cu.cuEventRecord(event, stream))
before, asked = cu.cuEventQuery(event)[0], cu.cuStreamQuery(stream)[0]
must(cu.cuStreamSynchronize(stream))
after = cu.cuEventQuery(event)[0]
print(f"event: {before.name}, stream: {asked.name}; after cuStreamSynchronize the event: {after.name}")
pending = cu.CUresult.CUDA_ERROR_NOT_READY
sys.exit(0 if before == pending and asked == cu.CUresult.CUDA_SUCCESS and after == pending else 1)
END
