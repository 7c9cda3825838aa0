#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# safetensors.numpy of safetensors 0.8.0 saves arrays of ml_dtypes' float8 types, and then neither load_file() nor safe_open() gives them
# back: it looks for the types in the module numpy. bfloat16 it loads.
# Exit status: 0 as described; 1 it has changed; 77 the packages were not fetched.
set -u
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" --disable-pip-version-check install --quiet safetensors==0.8.0 numpy==2.3.5 ml_dtypes==0.5.4 || exit 77
cd "$folder" && "$folder/venv/bin/python" - <<'END'
import sys

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

print("numpy", np.__version__, "ml_dtypes", ml_dtypes.__version__, "safetensors", safetensors.__version__)
said = {}
for name in ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]:
    saved = np.array([0.5, 1, 2, 4]).astype(getattr(ml_dtypes, name))
    safetensors.numpy.save_file({"w": saved}, "w.safetensors")
    with safetensors.safe_open("w.safetensors", "np") as file:
        kind = file.get_slice("w").get_dtype()
        for how, load in {"load_file": lambda: safetensors.numpy.load_file("w.safetensors"), "get_tensor": lambda: {"w": file.get_tensor("w")}}.items():
            try:
                said[name, how] = "equal" if (load()["w"] == saved).all() else "other values"
            except AttributeError as error:
                said[name, how] = str(error)
            print(f"{name}, saved as {kind}: {how}: {said[name, how]}")
print("Arrays of float8 are saved and cannot be loaded; those of bfloat16 can.")
expected = {each: f"module 'numpy' has no attribute '{each[0]}'" for each in said if each[0] != "bfloat16"}
sys.exit(0 if said == {**expected, ("bfloat16", "load_file"): "equal", ("bfloat16", "get_tensor"): "equal"} else 1)
END
