#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# safetensors 0.8.0 reads a tensor of F4 whole, and no part of it: get_slice() counts the elements of the header, torch has two in one.
# Exit status: 0 as described; 1 it has changed; 77 the packages were not fetched.
set -u
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" --disable-pip-version-check install --quiet torch==2.11.0 safetensors==0.8.0 numpy==2.4.6 || exit 77
cd "$folder" && "$folder/venv/bin/python" - <<'END'
import sys

import safetensors
import safetensors.torch
import torch

print("torch", torch.__version__, "safetensors", safetensors.__version__)
bytes_of = torch.arange(24, dtype=torch.uint8).reshape(6, 4)
safetensors.torch.save_file({"w": bytes_of.view(torch.float4_e2m1fn_x2)}, "f4.safetensors")
with safetensors.safe_open("f4.safetensors", "pt") as file:
    whole = file.get_tensor("w")
    part = file.get_slice("w")
    print("get_tensor:", tuple(whole.shape), "get_shape:", part.get_shape())
    said = {}
    for name, index in {"...": ..., "0": 0, "0:2": slice(0, 2), ":, 0:4": (slice(None), slice(0, 4))}.items():
        try:
            said[name] = tuple(part[index].shape)
        except RuntimeError as error:
            said[name] = str(error)
        print(f"get_slice('w')[{name}]:", said[name])
print("A tensor of F4 is read whole and in no part: every index of a slice is an error of torch's reshape.")
same = whole.view(torch.uint8).equal(bytes_of) and part.get_shape() == [6, 8]
sys.exit(0 if same and set(said.values()) == {"shape '[6, 8]' is invalid for input of size 24"} else 1)
END
