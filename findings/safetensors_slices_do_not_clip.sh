#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# get_slice() of safetensors 0.8.0 takes slices as Python writes them, but not their rules: a stop past the end, a negative start, a
# range without elements, and every slice of a tensor without elements are errors, where numpy clips.
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
arrays = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "none": np.zeros((0, 4), np.float32)}
safetensors.numpy.save_file(arrays, "w.safetensors")
failed = []
with safetensors.safe_open("w.safetensors", "np") as file:
    for name, index in [("w", slice(1, 3)), ("w", slice(1, 100)), ("w", slice(-2, None)), ("w", slice(3, 3)), ("none", slice(None))]:
        try:
            said = file.get_slice(name)[index].shape
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            failed.append((name, index.start, index.stop))
        print(f"{name}[{index.start}:{index.stop}]: safetensors: {said}; numpy: {arrays[name][index].shape}")
print("Slices that numpy clips or gives back empty are errors of get_slice().")
sys.exit(0 if failed == [("w", 1, 100), ("w", -2, None), ("w", 3, 3), ("none", None, None)] else 1)
END
