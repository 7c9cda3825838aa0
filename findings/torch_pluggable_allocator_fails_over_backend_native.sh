#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# PyTorch: with a CUDAPluggableAllocator in place, PYTORCH_CUDA_ALLOC_CONF=backend:native, the default written out, ends the first use of
# the settings in an internal assertion ("please report a bug"), because they name another backend than the allocator is; any other
# setting in the variable does not.
# Expected: backend:native changes nothing, or is refused where the allocator is replaced.
# Seen: PyTorch 2.11.0+cu130, without a GPU:
#   '': taken; 'max_split_size_mb:200': taken; 'backend:native': INTERNAL ASSERT FAILED ... native != pluggable
# Exit status: 0 as above; 1 otherwise; 77 where the packages are not to be had (3 GB).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" -q install torch==2.11.0 || exit 77
cat >"$folder/program.py" <<'END'
import torch

from torch.cuda.memory import CUDAPluggableAllocator, change_current_allocator

change_current_allocator(CUDAPluggableAllocator("libc.so.6", "malloc", "free"))  # nothing is allocated
try:
    torch._C._accelerator_setAllocatorSettings("max_split_size_mb:100")
    print("taken")
except RuntimeError as error:
    print(str(error).split("\n")[0])
END
"$folder/venv/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
status=0
for settings in '' max_split_size_mb:200 backend:native; do
  answer=$(PYTORCH_CUDA_ALLOC_CONF=$settings "$folder/venv/bin/python" "$folder/program.py" 2>/dev/null) || status=1
  echo "'$settings': $answer"
  case $settings:$answer in
  backend:native:*'INTERNAL ASSERT FAILED'*'native != pluggable'*) ;;
  backend:native:*) status=1 ;;
  *:taken) ;;
  *) status=1 ;;
  esac
done
exit $status
