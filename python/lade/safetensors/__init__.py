# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the safetensors format, loaded straight into device memory and saved from it.

The names are those of the ``safetensors`` package, and so are the errors: ``SafetensorError`` with the same texts. Where that package
was imported, what is raised is also an instance of its own ``SafetensorError``.

    file --pread, io_uring--> pinned memory --copy engine--> device memory, which the tensors are

Tensors are torch's where torch was imported, else CuPy's where that was imported, else NumPy arrays on a software device and
:class:`lade.DeviceBuffer` on a GPU; ``framework`` chooses. Device ``"cpu"`` is the software device: its memory is host memory.

On ``"cpu"`` tensors of torch and NumPy are views of the mapped file, as of the ``safetensors`` package: nothing is read before it is used, and
what is written stays in the process. The file must not be changed or cut meanwhile; to replace it is no change. Tensors of 1 MiB and more are
mapped alone, and their memory goes with them, whatever else is kept; smaller ones, and those of less than 1/1024 of the load, share a mapping
of their file, which goes with the last of them. A smaller one that is loaded alone is read. With a pipeline, an allocator, a stream, ``direct`` or ``per_tensor`` the bytes are read into
memory instead.

A pipeline and an allocator for each device are kept for the next call; :func:`release` gives them back.
"""

from lade.safetensors._format import SafetensorError
from lade.safetensors._into import load_into, load_model
from lade.safetensors._iterate import iterate
from lade.safetensors._load import load, load_file
from lade.safetensors._open import SafeSlice, safe_open
from lade.safetensors._save import Save, save, save_file, save_model
from lade.safetensors._stages import release
from lade.safetensors._types import Tensor

__all__ = [
    "SafeSlice",
    "SafetensorError",
    "Save",
    "Tensor",
    "iterate",
    "load",
    "load_file",
    "load_into",
    "load_model",
    "release",
    "safe_open",
    "save",
    "save_file",
    "save_model",
]

for _name in __all__:  # in messages, help() and pickles
    globals()[_name].__module__ = __name__
