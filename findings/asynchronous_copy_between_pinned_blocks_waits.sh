#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# CUDA: cuMemcpyAsync from pinned to pinned host memory returns when the work of its stream is done; the same copy as a batch of one returns at
# once.
# Seen: driver 580.159, CUDA 13.0, one H200:
#   cuMemcpyAsync: the work before it is done; cuMemcpyBatchAsync: CUDA_ERROR_NOT_READY
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
BYTES, SMALL = 4 << 30, 4096
stream = must(cu.cuStreamCreate(1))
event = must(cu.cuEventCreate(2))
memory = must(cu.cuMemAlloc(BYTES))
source, target = (must(cu.cuMemHostAlloc(1 << 20, 1)) for _ in range(2))


def after(copy):
    must(cu.cuCtxSynchronize())
    for _ in range(200):  # hundreds of milliseconds
        must(cu.cuMemsetD8Async(memory, 1, BYTES, stream))
    must(cu.cuEventRecord(event, stream))
    must(copy())
    return cu.cuEventQuery(event)[0]


single = after(lambda: cu.cuMemcpyAsync(int(target), int(source), SMALL, stream))
attributes = cu.CUmemcpyAttributes()
attributes.srcAccessOrder = cu.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
batch = after(lambda: cu.cuMemcpyBatchAsync([cu.CUdeviceptr(int(target))], [cu.CUdeviceptr(int(source))], [SMALL], 1, [attributes], [0], 1, stream))
print(f"cuMemcpyAsync: {'the work before it is done' if single == cu.CUresult.CUDA_SUCCESS else single.name}; cuMemcpyBatchAsync: {batch.name}")
sys.exit(0 if single == cu.CUresult.CUDA_SUCCESS and batch == cu.CUresult.CUDA_ERROR_NOT_READY else 1)
END
