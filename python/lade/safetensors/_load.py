# SPDX-License-Identifier: Apache-2.0
"""Whole checkpoints into memory of their own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, overload

from lade._arguments import take, take_function
from lade.safetensors._open import _numbers_of, safe_open

if TYPE_CHECKING:
    from typing import Unpack

    import cupy
    import torch

    from lade._lade import DeviceLike, DeviceView
    from lade.safetensors._types import Tensor, _Array, _Bytes, _LoadWay, _OfCupy, _OfNumpy, _OfTorch, _Path

if TYPE_CHECKING:

    @overload
    def load_file(filename: _Path, device: DeviceLike = "cuda:0", *, framework: _OfTorch,
                  **options: Unpack[_LoadWay]) -> dict[str, torch.Tensor]: ...
    @overload
    def load_file(filename: _Path, device: DeviceLike = "cuda:0", *, framework: _OfNumpy,
                  **options: Unpack[_LoadWay]) -> dict[str, _Array]: ...
    @overload
    def load_file(filename: _Path, device: DeviceLike = "cuda:0", *, framework: _OfCupy,
                  **options: Unpack[_LoadWay]) -> dict[str, cupy.ndarray]: ...
    @overload
    def load_file(filename: _Path, device: DeviceLike = "cuda:0", *, framework: Literal["lade"],
                  **options: Unpack[_LoadWay]) -> dict[str, DeviceView]: ...
    @overload
    def load_file(filename: _Path, device: DeviceLike = "cuda:0", *, framework: None = None,
                  **options: Unpack[_LoadWay]) -> dict[str, Tensor]: ...


def load_file(filename, device="cuda:0", *, framework=None, tensors=None, dtype=None, pipeline=None, allocator=None, stream=None,
              direct=None, per_tensor=False, progress=None, local_ranks=None):
    """Load a checkpoint into device memory.

    Parameters
    ----------
    filename : str or os.PathLike
        A file in the format, or the ``.json`` index of several; or the URL of either (docs/sources.md).
    device : str, int, torch.device or lade.Device
        ``"cpu"``: the software device, whose memory is host memory.
    framework : str or None
        As for :class:`safe_open`.
    tensors : iterable of str or None
        Names of those to load. None: all.
    dtype : str, dtype of torch or NumPy, dict of these by name, or None
        Types that tensors have in memory: one for all of F32, F16, BF16, F8_E4M3 and F8_E5M2, or those of some of these by name. They
        are converted on their way to the device, as ``.to()`` of torch does on the CPU, in no memory beside. None: as in the file.
    pipeline, allocator : lade.Pipeline, lade.DeviceAllocator or None
        What the bytes go through, and what the memory is from. None: kept ones of the device.
    stream : Stream, int, object with __cuda_stream__ or None
        Memory is allocated on it, after the work queued there. None: the current stream of torch or CuPy. Other streams that use
        a tensor must be done when the last tensor goes.
    direct : bool or None
        Past the page cache (O_DIRECT), or through it. None: past it where it has next to nothing of the file, which the next load then
        reads from the disk again.
    per_tensor : bool
        A block of device memory for each tensor. False: one for all, given back with the last of them, which is faster.
    progress : function(bytes_done, bytes) or None
        Called about 50 times a second, in this thread; what it raises ends the load.
    local_ranks : int or None
        As for :class:`safe_open`.

    Returns
    -------
    dict
        Tensors by name, in the order of their bytes. All bytes are there.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    SafetensorError
        It is not in the format, and in which way; or it has no tensor of a name.
    lade.Error
        Reading or copying failed; nothing stays allocated. KeyboardInterrupt cancels, too.
    """
    take("per_tensor", per_tensor, bool, "True or False")
    take_function("progress", progress, "a function(bytes_done, bytes)")
    with safe_open(filename, framework, device, pipeline=pipeline, allocator=allocator, stream=stream, direct=direct,
                   local_ranks=local_ranks) as file:
        return file._load(_numbers_of(file, tensors), per_tensor, progress, dtype=dtype)


if TYPE_CHECKING:

    @overload
    def load(data: _Bytes, device: DeviceLike = "cpu", *, framework: _OfTorch) -> dict[str, torch.Tensor]: ...
    @overload
    def load(data: _Bytes, device: DeviceLike = "cpu", *, framework: _OfNumpy) -> dict[str, _Array]: ...
    @overload
    def load(data: _Bytes, device: DeviceLike = "cpu", *, framework: str | None = None) -> dict[str, Tensor]: ...


def load(data, device="cpu", *, framework=None):
    """Load tensors from the bytes of a file in the format.

    Parameters
    ----------
    data : bytes
        Or what shows its memory as bytes do.
    device, framework
        As for :func:`load_file`.

    Returns
    -------
    dict
        Tensors by name, in the order of their bytes.

    Raises
    ------
    SafetensorError
        The bytes are not in the format, and in which way.
    """
    view = memoryview(data)
    file = os.memfd_create("lade.safetensors.load")
    try:
        for begin in range(0, view.nbytes, 1 << 30):
            rest = view.cast("B")[begin : begin + (1 << 30)]
            while rest:
                rest = rest[os.write(file, rest) :]
        return load_file(f"/proc/self/fd/{file}", device, framework=framework)
    finally:
        os.close(file)
