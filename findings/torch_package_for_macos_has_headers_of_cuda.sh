#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# PyTorch: the package for macOS, which is built without CUDA, has the headers of CUDA's part (c10/cuda), all but the one that the build
# writes, of macros: code against them compiles where C10_USING_CUSTOM_GENERATED_MACROS is defined, out of 80 MB in place of the 900 MB of
# the package for Linux.
# Expected: they come with packages that have CUDA.
# Seen: torch 2.11.0, macosx_11_0_arm64: 20 headers below c10/cuda, no macros
# Exit status: 0 as above; 1 otherwise; 77 where the package is not to be had.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q download --no-deps --only-binary :all: --platform macosx_11_0_arm64 --platform macosx_14_0_arm64 \
  --python-version 3.11 --dest "$folder" torch==2.11.0 || exit 77
python3 - "$folder"/torch-*.whl <<'END'
import os
import sys
import zipfile

archive = zipfile.ZipFile(sys.argv[1])
names = [n for n in archive.namelist() if n.startswith("torch/include/c10/cuda/")]
print(os.path.basename(sys.argv[1]), os.path.getsize(sys.argv[1]) >> 20, "MiB:", len(names), "headers below c10/cuda")
config = archive.read("torch/version.py").decode()
print("CUDA of the package:", next(line for line in config.splitlines() if line.startswith("cuda")))
wanted = "torch/include/c10/cuda/CUDACachingAllocator.h" in names
written = any(n.endswith("cuda_cmake_macros.h") for n in names)
print("CUDACachingAllocator.h:", wanted, "cuda_cmake_macros.h:", written)
sys.exit(not (wanted and not written and "None" in config))
END
