# SPDX-License-Identifier: Apache-2.0
"""Tensors that a program passes, to be saved or loaded into."""

from __future__ import annotations

import functools
import operator
import sys

import lade
from lade import _lade
from lade._arguments import class_text, wrong_type
from lade.safetensors._format import _NAMES, _TORCH_PACKS, _error
from lade.safetensors._frameworks import _loaded, _stream_from
from lade.safetensors._stages import _stage


def _same_memory(state):
    """Of torch tensors by name: the name of the first, sorted, that lies in the same bytes, for each that is not that one."""
    first, same = {}, {}
    for name in sorted(state):
        tensor = state[name]
        place = (tensor.device, tensor.data_ptr(), tensor.nbytes)
        if tensor.nbytes and tensor.data_ptr() and first.setdefault(place, name) != name:
            same[name] = first[place]
    return same


def _extent(tensor):
    """Bytes from the first to the last of a torch tensor."""
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride()))
    return (1 + last) * tensor.element_size()


def _within(state, same):
    """Of torch tensors by name: the name of one in C order that has all of its bytes and more, for each that has such a one. `same`: of
    _same_memory()."""
    rows = sorted((str(tensor.device), tensor.data_ptr(), -_extent(tensor), not tensor.is_contiguous(), name)
                  for name, tensor in state.items() if name not in same and tensor.nbytes and tensor.data_ptr())
    found, device, end, cover = {}, None, 0, None
    for place, address, negative, is_strided, name in rows:
        if place == device and address - negative <= end:
            found[name] = cover
        elif not is_strided:
            device, end, cover = place, address - negative, name
    return {**found, **{name: found[first] for name, first in same.items() if first in found}}


_text = functools.cache(str)  # of dtypes and layouts, which are few


def _torch_facts(name, tensor):
    if _text(tensor.layout) != "torch.strided":
        raise ValueError(f"tensor `{name}` is sparse ({tensor.layout}); expected a dense one, as .to_dense() gives")
    if not tensor.is_contiguous():
        raise ValueError(f"non contiguous tensor: `{name}`; expected one in C order, as .contiguous() gives")
    device = tensor.device
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"tensor `{name}` is on device {device.type}; expected memory of the host or of CUDA")
    kind = _text(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    pack = _TORCH_PACKS.get(_NAMES.get(kind), 1)
    if pack > 1 and not shape:
        raise ValueError(f"tensor `{name}` of {kind} has no dimension; expected one or more, of which a file has twice as many elements")
    if pack > 1:
        shape = (*shape[:-1], shape[-1] * pack)
    return kind, shape, device.type == "cuda", device.index


def _shared_names(tensors):
    """torch tensors that lie in the same bytes, which a file would have twice."""
    rows = sorted((tensor.data_ptr(), tensor.nbytes, name) for name, tensor in tensors.items() if tensor.nbytes and tensor.data_ptr())
    names, end = set(), 0
    for i, (address, count, name) in enumerate(rows):
        if i and address < end:
            names.update((rows[i - 1][2], name))
        end = max(end, address + count)
    return names


def _shape_of(name, tensor):
    try:
        shape = tuple(operator.index(extent) for extent in tensor.shape)
    except TypeError:
        shape = (-1,)
    if not all(0 <= extent < 1 << 63 for extent in shape):
        raise ValueError(f"tensor `{name}` is a {class_text(tensor)} of the shape {tensor.shape!r}; expected extents of 0 to 2^63 - 1")
    return shape


def _facts(name, tensor):
    """(kind, shape, whether it is on a GPU, its number) of what is to be saved, and no tensor of torch."""
    if isinstance(tensor, lade.DeviceBuffer) or (isinstance(tensor, lade.DeviceView) and not tensor.device.software):
        return str(tensor.dtype), tuple(tensor.shape), True, tensor.device.ordinal
    if not hasattr(tensor, "dtype") or not hasattr(tensor, "shape"):
        raise ValueError(f"Key `{name}` is invalid, expected a tensor but received {type(tensor)}")
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())
    if isinstance(tensor, masked):
        raise ValueError(f"tensor `{name}` is masked, and a file has no mask; expected .filled(value) of it, or its .data")
    on_gpu = hasattr(tensor, "__cuda_array_interface__")
    ordinal = getattr(getattr(tensor, "device", None), "id", None) if on_gpu else None
    if on_gpu and not isinstance(ordinal, int):
        raise ValueError(f"tensor `{name}` is a {class_text(tensor)} that does not tell its device; expected one of torch or CuPy, "
                         "or a DeviceBuffer")
    if getattr(getattr(tensor, "flags", None), "c_contiguous", True) is False:
        raise ValueError(f"non contiguous tensor: `{name}`; expected one in C order, as .copy() gives")
    return str(getattr(tensor.dtype, "name", tensor.dtype)), _shape_of(name, tensor), on_gpu, ordinal


def _check_text(what, text):
    """Refuses a text that no header can have, or that lade could not read again."""
    if not text.isascii():
        text.encode("utf-8")
    if "\0" in text:
        raise lade.InvalidArgumentError(f"{what} has {text!r}; expected no null character")


def _texts_of(metadata):
    """The pairs of a file's metadata, checked; None: it has none."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise wrong_type("metadata", metadata, "a dict of str, or None")
    texts = []
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata {key!r}: {value!r} is no pair of texts; expected str: str")
        _check_text("metadata", key)
        _check_text("metadata", value)
        texts.append((key, value))
    return texts


def _read(name, tensor):
    """(dtype of the format, shape, tensor or what stands for it, device or None, whether it is of torch) of one that tensor_rows.cpp does
    not know by itself; refuses what the format or the package refuses."""
    torch = _loaded("torch")
    of_torch = bool(torch and isinstance(tensor, torch.Tensor))
    kind, shape, on_gpu, ordinal = (_torch_facts if of_torch else _facts)(name, tensor)
    if of_torch:
        tensor = tensor.detach()  # an alias, which holds the memory whatever becomes of the program's tensor
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()  # whose bytes are its values
    if kind not in _NAMES:
        raise _error(f'Unknown dtype "{kind}". Supported dtypes: {", ".join(_NAMES)}')
    if not on_gpu:
        return _NAMES[kind], shape, _laid_out(tensor), None, of_torch
    of_lade = not of_torch and isinstance(tensor, (lade.DeviceBuffer, lade.DeviceView))
    return _NAMES[kind], shape, tensor, tensor.device if of_lade else lade.cuda_device(ordinal), of_torch


def _rows_of(tensors, read=_read, writable=False):
    """The tensors as rows, held; refuses what the format or the package refuses."""
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, tensor] but received {type(tensors)}")
    torch = _loaded("torch")
    types = (torch.Tensor, torch.nn.Parameter) if torch else ()
    return _lade._Rows(tensors, types, _NAMES, read, lade.cuda_device, writable)


def _laid_out(tensor):
    """A host tensor with its values in memory of its own, as a file has them.

    NumPy's scalars show memory that is gone when they have shown it: they become arrays. Those of the other byte order are turned round.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if isinstance(tensor, getattr(torch, "Tensor", ())):
        return tensor
    if numpy is not None and isinstance(tensor, numpy.generic):
        tensor = tensor[...]
    dtype = getattr(tensor, "dtype", None)
    if getattr(dtype, "byteorder", "=") == ">":
        return tensor.astype(dtype.newbyteorder("<"))
    return tensor


def _target_of(rows, pipeline, allocator, stream, local_ranks):
    """What tensors of a device are saved through, in a list; none where all are of the host."""
    devices = [found for found in rows.devices() if found[0] is not None]
    if not devices:
        return []
    stage = _stage(devices[0][0], pipeline, allocator, local_ranks)
    for device, name in devices:
        if device != stage.device:
            raise lade.InvalidArgumentError(f"tensor {name} is on {device}; expected {stage.device}, as the others are")
    if stream is None and not stage.device.software:
        framework = "torch" if rows.has_torch_on_device() else "cupy" if _loaded("cupy") else "lade"
        stream = _stream_from(None, framework, stage.device)
    return [(stage.pipeline, stage.allocator, stream)]
