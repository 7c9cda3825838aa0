#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# accelerate and Lightning try again with a smaller batch where memory ran out, and know that by the text of a RuntimeError of one argument
# alone: the class torch.OutOfMemoryError is not looked at, and they look for different words. PyTorch's text of pinned memory that
# ran out, "CUDA error: out of memory", is one for Lightning and none for accelerate.
#
# Runs the functions that decide, as the packages have them, without PyTorch, which they do not call.
# exit status: 0 it is so; 1 it has changed; 77 the packages were not fetched
set -u
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
python3 -m pip --disable-pip-version-check download --quiet --no-deps --dest "$folder" accelerate==1.15.0 pytorch_lightning==2.6.6 || exit 77
for wheel in "$folder"/*.whl; do python3 -m zipfile -e "$wheel" "$folder/all" || exit 1; done
python3 - "$folder/all" <<'EOF'
import ast, sys, pathlib
root = pathlib.Path(sys.argv[1])
print("accelerate 1.15.0, pytorch_lightning 2.6.6, Python", sys.version.split()[0])


def functions(path, *names):
    tree = ast.parse((root / path).read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    space = {}
    exec(compile(tree, path, "exec"), space)
    return space


accelerate = functions("accelerate/utils/memory.py", "should_reduce_batch_size")["should_reduce_batch_size"]
lightning = functions("pytorch_lightning/utilities/memory.py", "is_oom_error", "is_cuda_out_of_memory", "is_cudnn_snafu",
                      "is_out_of_cpu_memory")["is_oom_error"]


class OutOfMemoryError(RuntimeError):
    """As PyTorch's class: below RuntimeError."""


cases = [
    ("device memory, PyTorch's text", OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True, True),
    ("pinned memory, PyTorch's text", RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"), False, True),
    ("the class, other words", OutOfMemoryError("no memory for 2147483648 bytes"), False, False),
    ("the words, a MemoryError", MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), False, False),
    ("the words, two arguments", OutOfMemoryError("CUDA out of memory. ", 2), False, False),
]
same = True
for name, error, by_accelerate, by_lightning in cases:
    seen = bool(accelerate(error)), bool(lightning(error))
    same = same and seen == (by_accelerate, by_lightning)
    print(f"{name:32} accelerate tries again: {seen[0]!s:5}  Lightning: {seen[1]}")
print("as before" if same else "CHANGED")
sys.exit(not same)
EOF
