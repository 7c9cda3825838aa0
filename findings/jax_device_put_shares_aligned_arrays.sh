#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# On the CPU, jax.device_put() and jax.numpy.asarray() of JAX 0.8.1 make an array that shares the memory of a numpy array where that
# begins at a multiple of 64 bytes, and copy it where it does not. So a staging buffer that is filled again changes arrays that were made of
# it, or does not, by its address. jax.numpy.array() copies.
# Exit status: 0 as described; 1 it has changed; 77 the packages were not fetched.
set -u
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" --disable-pip-version-check install --quiet jax==0.8.1 jaxlib==0.8.1 numpy==2.3.5 || exit 77
cd "$folder" && JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'END'
import sys

import jax
import numpy as np

print("jax", jax.__version__, "numpy", np.__version__)
page = np.zeros(8192, np.uint8)
base = -page.ctypes.data % 4096
said = {}
for offset in (0, 16, 32, 64):
    for name, make in {"device_put": jax.device_put, "asarray": jax.numpy.asarray, "array": jax.numpy.array}.items():
        buffer = page[base + offset : base + offset + 1024].view(np.float32)
        buffer[:] = 1
        made = jax.block_until_ready(make(buffer))
        buffer[:] = 2  # filled again
        said[name, offset] = float(made[0])
        print(f"{name}() of a buffer of ones at 64 n + {offset % 64}, then filled with twos: {said[name, offset]}")
print("An array of device_put() or asarray() changes with the buffer if that is aligned to 64 bytes, and else does not.")
sys.exit(0 if said == {each: 2.0 if each[0] != "array" and each[1] % 64 == 0 else 1.0 for each in said} else 1)
END
