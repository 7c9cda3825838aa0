#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# safetensors.numpy of safetensors 0.8.0 writes the bytes of an array as they lie in memory under the array's shape. Those of an array in
# Fortran order, as of a transposed one, come back at other places, without an error.
# Exit status: 0 as described; 1 it has changed; 77 the packages were not fetched.
set -u
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" --disable-pip-version-check install --quiet safetensors==0.8.0 numpy==2.3.5 || exit 77
cd "$folder" && "$folder/venv/bin/python" - <<'END'
import sys

import numpy as np
import safetensors
import safetensors.numpy

print("numpy", np.__version__, "safetensors", safetensors.__version__)
weights = np.arange(6, dtype=np.float32).reshape(3, 2).T
safetensors.numpy.save_file({"w": weights}, "w.safetensors")
file = safetensors.numpy.load_file("w.safetensors")["w"]
memory = safetensors.numpy.load(safetensors.numpy.save({"w": weights}))["w"]
print("saved:", weights.tolist(), "order:", "F" if weights.flags.f_contiguous else "C")
print("load_file(save_file()):", file.tolist())
print("load(save()):", memory.tolist())
print("An array in Fortran order is written as it lies in memory: its values come back at other places.")
laid = weights.ravel(order="K").reshape(weights.shape)
sys.exit(0 if (file == laid).all() and (memory == laid).all() and not (laid == weights).all() else 1)
END
