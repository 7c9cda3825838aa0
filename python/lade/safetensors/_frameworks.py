# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch, NumPy and CuPy, made of bytes in memory."""

from __future__ import annotations

import collections
import sys

import lade
from lade.safetensors._format import _DTYPES, _ML_DTYPES, _NAMES, _NUMBERS, _TORCH_PACKS, _error

_FRAMEWORKS = {"pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy", "numpy": "numpy", "cp": "cupy", "cupy": "cupy",
               "lade": "lade"}


def _loaded(name):
    """A package that the program has imported, whole."""
    module = sys.modules.get(name)
    return module if hasattr(module, "from_dlpack") else None


def _framework_from(framework, device):
    if framework is None:
        if _loaded("torch"):
            return "torch"
        if device.software:
            return "numpy"
        return "cupy" if _loaded("cupy") else "lade"
    name = _FRAMEWORKS.get(str(framework))
    if name is None:
        raise _error(f"framework {framework} is invalid")
    if (name == "numpy" and not device.software) or (name == "cupy" and device.software):
        raise _error(f"Device {device} is not supported for framework {name}")
    return name


def _stream_from(stream, framework, device):
    """The stream that memory is allocated on: of torch and CuPy the current one, in whose order they give memory back."""
    if stream is not None or device.software:
        return stream
    if framework == "torch":
        return _loaded("torch").cuda.current_stream(device.ordinal)
    if framework == "cupy":
        cupy = _loaded("cupy")
        with cupy.cuda.Device(device.ordinal):
            return cupy.cuda.get_current_stream()
    return None


def _numpy_dtype(name, dtype):
    import numpy

    numpy_name = _DTYPES[dtype][1]
    if numpy_name is None:
        raise lade.UnsupportedError(f"tensor {name}: NumPy has no dtype for {dtype}; framework=\"lade\" gives its bytes")
    if numpy_name not in _ML_DTYPES:
        return numpy.dtype(numpy_name)
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, numpy_name))
    except (ImportError, AttributeError):
        raise lade.UnsupportedError(
            f"tensor {name}: NumPy has {dtype} through the package ml_dtypes, which is not there; framework=\"lade\" gives its bytes"
        ) from None


def _torch_dtype(name, dtype):
    torch_name = _DTYPES[dtype][0]
    found = getattr(_loaded("torch"), torch_name, None) if torch_name else None
    if found is None:
        raise lade.UnsupportedError(f"tensor {name}: this torch has no dtype for {dtype}; framework=\"lade\" gives its bytes")
    return found


def _torch_shape(name, dtype, shape):
    pack = _TORCH_PACKS.get(dtype, 1)
    if pack == 1:
        return shape
    if shape[-1] % pack:
        raise lade.UnsupportedError(f"tensor {name}: its shape {list(shape)} ends in an odd number, and torch has elements of {dtype} in "
                                    "pairs; framework=\"lade\" gives its bytes")
    return (*shape[:-1], shape[-1] // pack)


def _as_torch(buffer, kind, shape, device):
    torch = _loaded("torch")
    if buffer.nbytes == 0:
        return _torch_empty(kind, shape, device)
    return torch.from_dlpack(buffer).view(kind).view(shape)


def _torch_empty(kind, shape, device):
    return _loaded("torch").empty(shape, dtype=kind, device="cpu" if device.software else f"cuda:{device.ordinal}")


_plain_torch_kinds: dict = {}


def _torch_takes(torch, kind):
    """Whether this torch has the type in DLPack, so that a tensor needs no view to have it."""
    if kind not in _plain_torch_kinds:
        try:
            _plain_torch_kinds[kind] = torch.from_dlpack(torch.empty(1, dtype=kind)).dtype == kind
        except Exception:  # whatever a version of torch raises: views need no such type
            _plain_torch_kinds[kind] = False
    return _plain_torch_kinds[kind]


_BYTES = {8: "uint8", 16: "int16", 32: "int32", 64: "int64"}


def _torch_tensors(load, names, kinds, device):
    """One capsule for each tensor, of its type and shape: no tensor is a view of another, and each has a storage of its own."""
    torch = _loaded("torch")
    types, views = [], {}
    for dtype, kind in kinds.items():
        pack = _TORCH_PACKS.get(dtype, 1)
        name = _DTYPES[dtype][0]
        if pack > 1 or not _torch_takes(torch, kind):
            name, views[dtype] = _BYTES[_DTYPES[dtype][2] * pack], kind
        types.append((dtype, name, pack))
    stream = None if device.software else torch.cuda.current_stream(device.ordinal)
    take_capsule = getattr(torch._C, "_from_dlpack", torch.utils.dlpack.from_dlpack)
    out = dict.fromkeys(names)
    for dtype, of_dtype, capsules in load.capsules(names, types, stream):
        tensors = map(take_capsule, capsules)
        if dtype in views:
            kind = views[dtype]
            tensors = (tensor.view(kind) for tensor in tensors)
        out.update(zip(of_dtype, tensors))
    empty = load.empty()
    if empty:
        rows = load.rows()
        for number in empty:
            dtype, shape, _, _ = rows[number]
            out[names[number]] = _torch_empty(kinds[dtype], _torch_shape(names[number], dtype, shape), device)
    return out


def _as_numpy(buffer, kind, shape, device):
    import numpy

    if buffer.nbytes == 0:
        return numpy.empty(shape, kind)
    return numpy.asarray(buffer).view(kind).reshape(shape)


def _numpy_tensors(load, names, kinds, device):
    """Arrays over one array for each piece of memory."""
    import numpy

    array, empty = numpy.ndarray, numpy.empty
    bases = [numpy.asarray(view) for view in load.segments()]
    return {name: empty(shape, kinds[dtype]) if base is None else array(shape, kinds[dtype], bases[base], offset)
            for name, (dtype, shape, base, offset) in zip(names, load.rows())}


def _as_cupy(buffer, kind, shape, device):
    cupy = _loaded("cupy") or __import__("cupy")
    with cupy.cuda.Device(device.ordinal):
        if buffer.nbytes == 0:
            return cupy.empty(shape, kind)
        return cupy.from_dlpack(buffer).view(kind).reshape(shape)


def _cupy_tensors(load, names, kinds, device):
    """The same in CuPy."""
    cupy = _loaded("cupy") or __import__("cupy")
    with cupy.cuda.Device(device.ordinal):
        array, empty = cupy.ndarray, cupy.empty
        bases = [cupy.from_dlpack(view).data for view in load.segments()]
        return {name: empty(shape, kinds[dtype]) if base is None else array(shape, kinds[dtype], bases[base] + offset)
                for name, (dtype, shape, base, offset) in zip(names, load.rows())}


def _same_shape(name, dtype, shape):
    return shape


# dtype(name, dtype): the framework's own, and shape(name, dtype, shape): that of its tensor; both refuse what it has not.
# make(buffer, dtype, shape, device): its tensor.
# make_all(load, names, dtypes by those of the file, device): the tensors of a load by name, whose bytes are perhaps not there yet.
_Framework = collections.namedtuple("_Framework", "dtype shape make make_all")
_OF_FRAMEWORK = {
    "torch": _Framework(_torch_dtype, _torch_shape, _as_torch, _torch_tensors),
    "numpy": _Framework(_numpy_dtype, _same_shape, _as_numpy, _numpy_tensors),
    "cupy": _Framework(_numpy_dtype, _same_shape, _as_cupy, _cupy_tensors),
    "lade": _Framework(lambda name, dtype: None, _same_shape, lambda buffer, kind, shape, device: buffer,
                       lambda load, names, kinds, device: dict(zip(names, load.views()))),
}


def _dtype_name(dtype):
    """The format's name of a type to convert to: as the format, torch or NumPy name it."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    name = text if text in _DTYPES else _NAMES.get(text.removeprefix("torch."))
    if name not in _NUMBERS:
        raise lade.InvalidArgumentError(f"dtype is {dtype!r}; expected one of {', '.join(_NUMBERS)}, or as torch or NumPy name them")
    return name
