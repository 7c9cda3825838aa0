#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# CUDA: cuMemcpyPeerAsync ends the capture of its stream, also within one device and with access between the devices, where the
# plain copy of the same bytes is captured.
# Seen: driver 580.159, CUDA 13.0, two H200:
#   plain copy:              CUDA_SUCCESS, ACTIVE
#   peer copy in the device: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, INVALIDATED
#   peer copy:               CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, INVALIDATED
#   peer copy, access:       CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, INVALIDATED
# Exit status: 0 as above; 1 otherwise; 77 where there are no two devices with a driver, or no package.
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

BYTES = 1 << 20


def must(result):
    code, *values = result
    if code != cu.CUresult.CUDA_SUCCESS:
        sys.exit(f"a call that was to succeed gave {code.name}")
    return values[0] if values else None


def captured(name, copy):
    must(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    code = copy()[0]
    status = must(cu.cuStreamIsCapturing(stream))
    cu.cuStreamEndCapture(stream)
    answer = f"{code.name}, {status.name.rsplit('_', 1)[1]}"
    print(f"{name + ':':24} {answer}")
    return answer


try:
    count = cu.cuDeviceGetCount()[1] if cu.cuInit(0)[0] == cu.CUresult.CUDA_SUCCESS else 0
except RuntimeError:  # no libcuda.so.1
    count = 0
if count < 2:
    print("no two devices")
    sys.exit(77)
print("driver of CUDA", must(cu.cuDriverGetVersion()))
contexts = [must(cu.cuDevicePrimaryCtxRetain(must(cu.cuDeviceGet(i)))) for i in range(2)]
memory = []
for context in (contexts[1], contexts[0], contexts[0]):
    must(cu.cuCtxSetCurrent(context))
    memory.append(must(cu.cuMemAlloc(BYTES)))
there, here, twin = memory
stream = must(cu.cuStreamCreate(1))
ENDED = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, INVALIDATED"
right = captured("plain copy", lambda: cu.cuMemcpyAsync(here, there, BYTES, stream)) == "CUDA_SUCCESS, ACTIVE"
right &= captured("peer copy in the device",
                  lambda: cu.cuMemcpyPeerAsync(twin, contexts[0], here, contexts[0], BYTES, stream)) == ENDED
right &= captured("peer copy", lambda: cu.cuMemcpyPeerAsync(here, contexts[0], there, contexts[1], BYTES, stream)) == ENDED
if cu.cuCtxEnablePeerAccess(contexts[1], 0)[0] == cu.CUresult.CUDA_SUCCESS:
    right &= captured("peer copy, access",
                      lambda: cu.cuMemcpyPeerAsync(here, contexts[0], there, contexts[1], BYTES, stream)) == ENDED
sys.exit(0 if right else 1)
END
