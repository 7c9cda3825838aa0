#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# CUDA: memory that cuMemHostRegister registers with flags 0 is mapped for the device, at the host's own address: the driver names that
# address, says CU_MEMHOSTALLOC_DEVICEMAP of it though it was not asked for, and the device writes there. So do blocks of cuMemHostAlloc.
# Guess that missed: without CU_MEMHOSTREGISTER_DEVICEMAP kernels do not reach the memory, and cuMemHostGetDevicePointer fails.
# Seen: driver 580.159, CUDA 13.0, H200:
#   registered with 0: device address is the host's, flags 2, the device wrote it
#   allocated with 0: device address is the host's, flags 2, the device wrote it
# Exit status: 0 as above; 1 otherwise; 77 where there is no device with a driver.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 - <<'END'
import ctypes
import mmap
import sys

BYTES = 1 << 21
try:
    cu = ctypes.CDLL("libcuda.so.1")
except OSError:
    print("no driver")
    sys.exit(77)
if cu.cuInit(0) != 0:
    print("no device")
    sys.exit(77)


def must(name, *arguments):
    code = getattr(cu, name)(*arguments)
    if code != 0:
        sys.exit(f"{name} gave {code}")


version, context = ctypes.c_int(), ctypes.c_void_p()
must("cuDriverGetVersion", ctypes.byref(version))
must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
must("cuCtxSetCurrent", context)
print("CUDA", version.value)


def told(what, host):
    device, flags = ctypes.c_void_p(), ctypes.c_uint()
    must("cuMemHostGetDevicePointer_v2", ctypes.byref(device), ctypes.c_void_p(host), 0)
    flags_code = cu.cuMemHostGetFlags(ctypes.byref(flags), ctypes.c_void_p(host))
    ctypes.memset(host, 0, 4)
    must("cuMemsetD8_v2", ctypes.c_uint64(device.value), 7, ctypes.c_size_t(4))
    must("cuCtxSynchronize")
    written = ctypes.string_at(host, 4) == b"\7" * 4
    same = device.value == host
    print(f"{what}: device address is {'the host' if same else 'not the host'}'s, flags {flags.value}, the device "
          f"{'wrote it' if written else 'did not write it'}")
    return same and written and flags_code == 0 and flags.value & 2


memory = mmap.mmap(-1, BYTES)
registered, allocated = ctypes.addressof(ctypes.c_char.from_buffer(memory)), ctypes.c_void_p()
must("cuMemHostRegister_v2", ctypes.c_void_p(registered), ctypes.c_size_t(BYTES), 0)
must("cuMemHostAlloc", ctypes.byref(allocated), ctypes.c_size_t(BYTES), 0)
seen = [told("registered with 0", registered), told("allocated with 0", allocated.value)]
must("cuMemHostUnregister", ctypes.c_void_p(registered))
must("cuMemFreeHost", allocated)
sys.exit(0 if all(seen) else 1)
END
