#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# TensorFlow 2.21 shows the memory of a bfloat16 tensor by DLPack alone, and that of a float8 tensor in no way; JAX shows both by DLPack.
# Exit status: 0 as described; 1 it has changed; 77 the packages were not fetched.
set -u
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" --disable-pip-version-check install --quiet tensorflow-cpu==2.21.0 jax==0.10.2 || exit 77
cd "$folder" && CUDA_VISIBLE_DEVICES='' TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'END'
import sys

import jax
import tensorflow


def ways(array):
    out = []
    try:
        memoryview(array)
        out.append("buffer protocol")
    except (BufferError, ValueError):
        pass
    try:
        array.__dlpack__()
        out.append("DLPack")
    except Exception as error:  # of the package's own class
        print("DLPack:", error)
    return out + ["array interface"] * hasattr(array, "__array_interface__")


print("tensorflow", tensorflow.__version__, "jax", jax.__version__)
seen = {}
for name in ("float32", "bfloat16", "float8_e4m3fn"):
    seen["tensorflow", name] = ways(tensorflow.cast(tensorflow.ones((2, 3)), name))
    seen["jax", name] = ways(jax.numpy.ones((2, 3), name))
for (package, name), found in seen.items():
    print(package, name, found or "no way")
print("A float8 tensor of TensorFlow shows its memory in no way: buffer protocol and DLPack refuse its type.")
both, alone = ["buffer protocol", "DLPack"], ["DLPack"]
sys.exit(list(seen.values()) != [both, both, alone, alone, [], alone])
END
