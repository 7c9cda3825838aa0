# SPDX-License-Identifier: Apache-2.0
"""Checkpoints into tensors that are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lade
from lade import _slices
from lade._arguments import path_text, take, take_function, take_path, wrong_type
from lade.safetensors._format import _NUMBERS
from lade.safetensors._load import load_file
from lade.safetensors._open import _Opening, safe_open
from lade.safetensors._rows import _read, _rows_of, _same_memory, _target_of, _within

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Unpack

    import torch

    from lade._lade import DeviceLike, Pipeline, StreamLike
    from lade.safetensors._types import _LoadWay, _Path, _Progress


def _named(tensors):
    """Tensors by name, of a dict or a module."""
    if callable(getattr(tensors, "state_dict", None)):
        tensors = tensors.state_dict()
    if not isinstance(tensors, dict):
        raise wrong_type("tensors", tensors, "a dict of tensors, or a torch.nn.Module")
    return tensors


def _read_into(name, tensor):
    row = _read(name, tensor)
    if row[4] and row[2].data_ptr() != tensor.data_ptr():
        raise lade.InvalidArgumentError(f"tensor `{name}` is a conjugate or negative view; expected one whose bytes are its values")
    return row


_MANY = 1000  # tensors: reading so many takes as long as a header, and as long as it takes to start a thread


class _Begun(safe_open):
    """A checkpoint that is being opened already, or not."""

    def __init__(self, opening, *arguments, **options):
        self._opening = opening
        super().__init__(*arguments, **options)

    def _opened(self, path):
        return self._opening.take() if self._opening else super()._opened(path)


def _begin(filename, count):
    """The file's header is read while the tensors are looked at, if these are many."""
    if count < _MANY:
        return None
    try:
        return _Opening(take_path("filename", filename))
    except RuntimeError:  # no thread can be started
        return None


def _decide(convert, slices):
    """A function that says of a tensor to load into, which the file has of a type and shape: (type to convert to or None, part or None);
    None where it gets no bytes."""

    def decide(name, kind, extents, dtype, shape):
        index = None if slices is None else slices(name, extents)
        part, expected = (None, extents) if index is None else _slices.one_part(index, extents, lade.InvalidArgumentError)
        if shape != expected or dtype != kind:
            may = kind in _NUMBERS and dtype in _NUMBERS
            if shape != expected or not (convert and may):
                hint = "; convert=True converts" if may and not convert and shape == expected else ""
                raise lade.InvalidArgumentError(f"tensor `{name}` is {dtype} {shape}; expected {kind} {expected}, as in the file{hint}")
        return None if 0 in expected else (None if dtype == kind else dtype, part)

    return decide


def load_into(tensors: dict[str, Any] | torch.nn.Module, filename: _Path, *, strict: bool = True, convert: bool = False,
              slices: Callable[[str, tuple[int, ...]], Any] | None = None, pipeline: Pipeline | None = None, stream: StreamLike = None,
              direct: bool | None = None, progress: _Progress | None = None, local_ranks: int | None = None) -> tuple[list[str], list[str]]:
    """Load a checkpoint into tensors that are there: no device memory beside them is taken.

    Parameters
    ----------
    tensors : dict or torch.nn.Module
        By name: contiguous tensors of torch or CuPy on one GPU, or DeviceBuffers, with the shapes and types of the file. A module's
        are those of its ``state_dict()``. Tensors of the file that are not among them are not read.
        Where two share a part of their memory only, both are loaded, and which one's bytes are there is not defined.
    filename : str or os.PathLike
        A file in the format, or the ``.json`` index of several; or the URL of either (docs/sources.md).
    strict : bool
        Refuse names that the file or ``tensors`` lacks, before anything is read. What lies in the same memory, as tied weights, needs
        one of its names.
    convert : bool
        Tensors may have other types than in the file, of F32, F16, BF16, F8_E4M3 and F8_E5M2: converted as by ``dtype`` of
        :func:`load_file`. False: refused.
    slices : function(name, shape) or None
        Says which part of the file's tensor its tensor here gets, as an index such as ``numpy.s_[:, 512:1024]`` or ``numpy.s_[3]``: one
        range of one dimension. None from it: all. Only the part is read.
    pipeline, direct, progress, local_ranks
        As for :func:`load_file`. Each of several ranks loads by itself, whatever the others do: what its own tensors get.
    stream : Stream, int, object with __cuda_stream__ or None
        What is queued on it, and on those of DeviceBuffers, is waited for by the copies. None: the current stream of torch or CuPy.

    Returns
    -------
    tuple of (list of str, list of str)
        Names that the file lacks, and names that are not among the tensors.

    Raises
    ------
    ValueError
        A tensor has another shape or type than in the file, or is not contiguous; all are as they were.
    RuntimeError
        Names are missing or unexpected.
    FileNotFoundError, SafetensorError
        As for :func:`load_file`.
    lade.Error
        Reading or copying failed: the tensors hold some bytes of the file, not all. KeyboardInterrupt cancels, too.
    """
    own = _named(tensors)
    take("strict", strict, bool, "True or False")
    take("convert", convert, bool, "True or False")
    take_function("slices", slices, "a function(name, shape)")
    take_function("progress", progress, "a function(bytes_done, bytes)")
    opening = _begin(filename, len(own))
    rows = _rows_of(own, _read_into, True)
    devices = [device for device, _ in rows.devices()]
    if len(devices) > 1 or None in devices:
        found = ", ".join(sorted("the host" if device is None else str(device) for device in devices))
        raise lade.InvalidArgumentError(f"tensors are on {found}; expected all on one GPU, or DeviceBuffers of one device")
    device = devices[0] if devices else lade.device()
    with _Begun(opening, filename, "lade", device, pipeline=pipeline, stream=stream, direct=direct, local_ranks=local_ranks) as file:
        there = file._open_file()
        fit = there.fit(rows)
        missing, unexpected = fit.missing, fit.unexpected
        if strict and (missing or unexpected):
            raise RuntimeError(f"{path_text(filename)} does not fit: missing {missing}, unexpected {unexpected}")
        target = _target_of(rows, file._at.pipeline, file._at.allocator, stream, None)  # the pipeline has its ranks
        if not target:
            return missing, unexpected
        load = there.start_into(target[0], rows, fit, _decide(convert, slices), slices is not None, direct)
        if load is None:
            return missing, unexpected
        try:
            load.wait(progress)
        finally:
            load.close()
    return missing, unexpected


def _unfit(own, same, there, within=()):
    """Names of `own` that are not there, and names there that are none of them. `same`: of _same_memory(); one name of a memory will do.
    `within`: of _within(); what has a tensor's bytes will do."""
    given = {same.get(name, name) for name in there}
    missing = [name for name in own if same.get(name, name) not in given and (name not in within or within[name] not in given)]
    return missing, [name for name in there if name not in own]


def load_model(model: torch.nn.Module, filename: _Path, strict: bool = True, device: DeviceLike = "cpu",
               **options: Unpack[_LoadWay]) -> tuple[list[str], list[str]]:
    """Load a checkpoint into a module of torch.

    Names that the file lacks are no miss where the model has their memory under a name that the file has: tied weights, and parts of others.

    Parameters
    ----------
    model : torch.nn.Module
    filename : str or os.PathLike
    strict : bool
        Raise RuntimeError where names are missing, or are not the model's.
    device
        Where the tensors are loaded to, before they are copied into the model's.
    **options
        Of :func:`load_file`.

    Returns
    -------
    tuple of (list of str, list of str)
        Names that the file lacks, and names that the model has not.
    """
    take("strict", strict, bool, "True or False")
    tensors = load_file(filename, device, framework="torch", **options)
    own = model.state_dict()
    same = _same_memory(own)
    missing, unexpected = _unfit(own, same, tensors, _within(own, same))
    if strict and (missing or unexpected):
        raise RuntimeError(f"{path_text(filename)} does not fit {type(model).__name__}: missing {missing}, unexpected {unexpected}")
    model.load_state_dict(tensors, strict=False)
    return missing, unexpected
