#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# CUDA: memory of cuMemHostAlloc is unmapped when the context that made it ends, with CU_MEMHOSTALLOC_PORTABLE, too, though another
# context still uses it: a read of the program is a fault then. Memory registered with PORTABLE is registered no more.
# Seen: driver 580.159, CUDA 13.0, two H200:
#   before: known, the system reads it; registered memory known
#   after:  unknown, EFAULT; registered memory unknown
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
import ctypes
import mmap
import os
import sys

from cuda.bindings import driver as cu

BYTES = 1 << 21
libc = ctypes.CDLL(None, use_errno=True)
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
libc.write.restype = ctypes.c_ssize_t


def must(result):
    code, *values = result
    if code != cu.CUresult.CUDA_SUCCESS:
        sys.exit(f"a call that was to succeed gave {code.name}")
    return values[0] if values else None


def known(address):
    return cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)[0] == cu.CUresult.CUDA_SUCCESS


def readable(address):  # by the system, which says EFAULT where the program would fault
    fds = os.pipe()
    return libc.write(fds[1], address, 1) == 1


def tell(when):
    facts = known(pinned), readable(pinned), known(registered)
    words = ("known" if facts[0] else "unknown", "the system reads it" if facts[1] else "EFAULT", "known" if facts[2] else "unknown")
    print(f"{when:7} {words[0]}, {words[1]}; registered memory {words[2]}")
    return facts


try:
    count = cu.cuDeviceGetCount()[1] if cu.cuInit(0)[0] == cu.CUresult.CUDA_SUCCESS else 0
except RuntimeError:  # no libcuda.so.1
    count = 0
if count < 2:
    print("no two devices")
    sys.exit(77)
print("driver of CUDA", must(cu.cuDriverGetVersion()))
devices = [must(cu.cuDeviceGet(i)) for i in range(2)]
contexts = [must(cu.cuDevicePrimaryCtxRetain(device)) for device in devices]
must(cu.cuCtxSetCurrent(contexts[0]))
pages = mmap.mmap(-1, BYTES)
pages[:] = bytes(BYTES)
registered = ctypes.addressof(ctypes.c_char.from_buffer(pages))
pinned = int(must(cu.cuMemHostAlloc(BYTES, cu.CU_MEMHOSTALLOC_PORTABLE)))
must(cu.cuMemHostRegister(registered, BYTES, cu.CU_MEMHOSTREGISTER_PORTABLE))
must(cu.cuCtxSetCurrent(contexts[1]))
before = tell("before:")
must(cu.cuDevicePrimaryCtxRelease(devices[0]))
after = tell("after:")
sys.exit(0 if all(before) and not any(after) else 1)
END
