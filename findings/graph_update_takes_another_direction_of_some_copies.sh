#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# CUDA: cuGraphExecUpdate takes a copy to the host, or within the device, in the place of one to the device where both were captured from
# cuMemcpyAsync; where cuMemcpyHtoDAsync captured the first, it refuses them, and the same copy of cuMemcpyHtoDAsync for that of cuMemcpyAsync.
# Seen: driver 580.159, CUDA 13.0, one H200:
#   Async, then Async to the host:   CUDA_SUCCESS
#   Async, then Async in the device: CUDA_SUCCESS
#   HtoD, then DtoH:                 CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
#   Async, then HtoD:                CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
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
BYTES = 4096
stream = must(cu.cuStreamCreate(1))
here, twin = must(cu.cuMemAlloc(BYTES)), must(cu.cuMemAlloc(BYTES))
pinned = int(must(cu.cuMemHostAlloc(BYTES, 1)))


def captured(copy):
    must(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    must(copy())
    return must(cu.cuStreamEndCapture(stream))


def update(name, first, second):
    code = cu.cuGraphExecUpdate(must(cu.cuGraphInstantiate(captured(first), 0)), captured(second))[0]
    print(f"{name + ':':32} {code.name}")
    return code == cu.CUresult.CUDA_SUCCESS


def plain(to, source):
    return lambda: cu.cuMemcpyAsync(to, source, BYTES, stream)


def to_device():
    return cu.cuMemcpyHtoDAsync(here, pinned, BYTES, stream)


answers = [
    update("Async, then Async to the host", plain(here, pinned), plain(pinned, here)),
    update("Async, then Async in the device", plain(here, pinned), plain(here, twin)),
    update("HtoD, then DtoH", to_device, lambda: cu.cuMemcpyDtoHAsync(pinned, here, BYTES, stream)),
    update("Async, then HtoD", plain(here, pinned), to_device),
]
sys.exit(0 if answers == [True, True, False, False] else 1)
END
