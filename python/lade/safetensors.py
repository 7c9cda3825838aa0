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

from __future__ import annotations

import atexit
import collections
import collections.abc
import contextlib
import errno
import functools
import json
import operator
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypedDict, TypeVar, overload

import lade
from lade import _lade
from lade import _slices
from lade._arguments import class_text, take, take_function, take_path, wrong_type
from lade._errors import Joined

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

# --- types -------------------------------------------------------------------------------------------------------------


class Tensor(Protocol):
    """What tensors of every framework have. Say the framework for the type of its own: ``framework="pt"``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""

    @property
    def dtype(self) -> object:
        """Type of the elements, as the framework has it."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


_T = TypeVar("_T", covariant=True)

if TYPE_CHECKING:
    from typing import Unpack

    import cupy
    import numpy.typing
    import torch

    from lade._lade import DeviceLike, DeviceView, StreamLike

    _Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
    _Array = numpy.typing.NDArray[Any]
    _Bytes = bytes | bytearray | memoryview
    _Progress = Callable[[int, int], object]
    _OfTorch = Literal["pt", "torch", "pytorch"]
    _OfNumpy = Literal["np", "numpy"]
    _OfCupy = Literal["cp", "cupy"]

    class _Way(TypedDict, total=False):
        pipeline: _lade.Pipeline | None
        allocator: _lade.DeviceAllocator | None
        stream: StreamLike
        direct: bool | None
        local_ranks: int | None

    class _TensorsWay(_Way, total=False):
        tensors: Iterable[str] | None
        dtype: object

    class _LoadWay(_TensorsWay, total=False):
        per_tensor: bool
        progress: _Progress | None

    class _IterateWay(_TensorsWay, total=False):
        max_transient_bytes: int

    class _OpenWay(_Way, total=False):
        backend: str

    class _SaveWay(TypedDict, total=False):
        max_shard_bytes: int
        max_shard_size: int | str | None
        sync: bool
        progress: _Progress | None
        stage_bytes: int
        pipeline: _lade.Pipeline | None
        allocator: _lade.DeviceAllocator | None
        stream: StreamLike
        local_ranks: int | None


_HEADER_MOST = 100_000_000
_KEPT_DEVICES = 8

# Name in files: name in torch, name in NumPy and ml_dtypes (None: has none), bits.
_DTYPES = {
    "BOOL": ("bool", "bool", 8),
    "F4": ("float4_e2m1fn_x2", None, 4),
    "F6_E2M3": (None, None, 6),
    "F6_E3M2": (None, None, 6),
    "U8": ("uint8", "uint8", 8),
    "I8": ("int8", "int8", 8),
    "F8_E5M2": ("float8_e5m2", "float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", "float8_e4m3fn", 8),
    "F8_E8M0": ("float8_e8m0fnu", "float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", "float8_e5m2fnuz", 8),
    "I16": ("int16", "int16", 16),
    "U16": ("uint16", "uint16", 16),
    "F16": ("float16", "float16", 16),
    "BF16": ("bfloat16", "bfloat16", 16),
    "I32": ("int32", "int32", 32),
    "U32": ("uint32", "uint32", 32),
    "F32": ("float32", "float32", 32),
    "C64": ("complex64", "complex64", 64),
    "F64": ("float64", "float64", 64),
    "I64": ("int64", "int64", 64),
    "U64": ("uint64", "uint64", 64),
}
# Elements of the file in one of torch's.
_TORCH_PACKS = {"F4": 2}
_NAMES = {torch_name: name for name, (torch_name, _, _) in _DTYPES.items() if torch_name is not None}
# Of these each is converted to each other on the way to a device.
_NUMBERS = ("F32", "F16", "BF16", "F8_E5M2", "F8_E4M3")
_ML_DTYPES = ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz")

_FRAMEWORKS = {"pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy", "numpy": "numpy", "cp": "cupy", "cupy": "cupy",
               "lade": "lade"}


# --- errors ------------------------------------------------------------------------------------------------------------


def _error_class():
    """The class to raise: also the package's own, where a program has imported it."""
    package = sys.modules.get("safetensors")
    theirs = getattr(package, "SafetensorError", None)
    if theirs is None:
        return SafetensorError
    if theirs not in _error_classes:
        body = {"__doc__": SafetensorError.__doc__, "__module__": __name__, "_make": staticmethod(_error_class)}
        _error_classes[theirs] = Joined("SafetensorError", (SafetensorError, theirs), body)
    return _error_classes[theirs]


class SafetensorError(lade.Error, metaclass=Joined):
    """What is wrong with a file, a name or a slice; the text is that of the ``safetensors`` package where it has one."""


_error_classes: dict = {}


def _error(text):
    return _error_class()(text)


def _header_fault(path):
    """What the safetensors package says about a file that lade refuses; None where it would say nothing, or there is no telling."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            return "header too small"
        length = int.from_bytes(file.read(8), "little")
        if length > _HEADER_MOST:
            return "header too large"
        if length + 8 > size:
            return "invalid header length"
        raw = file.read(length)
    try:
        header = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as fault:
        end = "" if fault.reason == "unexpected end of data" else f" of {fault.end - fault.start} bytes"
        return f"invalid UTF-8 in header: invalid utf-8 sequence{end} from index {fault.start}"
    except (ValueError, RecursionError):
        return None
    return _layout_fault(header, size - 8 - length) if isinstance(header, dict) else None


def _layout_fault(header, data_bytes):
    """The first rule that the offsets of a header break; None where its entries are none."""
    rows = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            (begin, end), shape, bits = entry["data_offsets"], entry["shape"], _DTYPES[entry["dtype"]][2]
            numbers = [begin, end, *shape]
        except (KeyError, TypeError, ValueError):
            return None
        if not all(type(number) is int and 0 <= number < 1 << 64 for number in numbers):
            return None
        rows.append((begin, end, name, shape, bits))
    at = 0
    for begin, end, name, shape, bits in sorted(rows, key=lambda row: row[:2]):
        if begin != at or end < begin:
            return f"invalid offset for tensor `{name}`"
        at = end
        for extent in shape:
            bits *= extent
            if bits >= 1 << 64:
                return "overflow computing buffer size from shape and/or element type"
        if bits % 8 != 0:
            return "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte boundary, this is invalid."
        if bits // 8 != end - begin:
            return "invalid shape, data type, or offset for tensor"
    return None if at == data_bytes else "incomplete metadata, file not fully covered"


def _open_error(path, error):
    """The error of a file that could not be opened, as the package has it."""
    if isinstance(error, lade.InvalidArgumentError):
        return IsADirectoryError(str(error)) if os.path.isdir(path) else OSError(str(error))
    if isinstance(error, lade.IOError):
        if error.native_code != errno.ENOENT:
            return error
        return FileNotFoundError(str(error) if os.path.exists(path) else f"No such file or directory: {path}")  # else one of an index
    fault = None
    if not str(path).endswith(".json"):
        try:
            fault = _header_fault(path)
        except OSError:
            fault = None
    return _error(f"Error while deserializing header: {fault or f'invalid JSON in header: {error}'}")


# --- devices -----------------------------------------------------------------------------------------------------------

_Stage = collections.namedtuple("_Stage", "device pipeline allocator local_ranks")
_stages: collections.OrderedDict = collections.OrderedDict()
_stages_lock = threading.RLock()  # signals' handlers may load, and release


def _drop_in_child():
    """A forked child has none of its parent's pipelines, and its lock may be held by a thread that is gone."""
    global _stages, _stages_lock
    _stages, _stages_lock = collections.OrderedDict(), threading.RLock()
    for save in list(_saves):
        save._native = save._tensors = None


os.register_at_fork(after_in_child=_drop_in_child)


def release() -> None:
    """Give back the pipelines, pinned memory and cached device memory that are kept for the next call.

    Memory of tensors that are alive stays theirs.
    """
    with _stages_lock:
        gone = list(_stages.values())
        _stages.clear()
    del gone


def _device_from(device):
    if isinstance(device, lade.Device):
        return device
    text = str(device)
    if isinstance(device, int) and not isinstance(device, bool):
        text = f"cuda:{device}"
    kind, _, ordinal = text.partition(":")
    if kind not in ("cuda", "cpu") or (ordinal and not ordinal.isdecimal()) or text.endswith(":"):
        raise _error(f"device {text} is invalid")
    try:
        return lade.device(text)
    except (lade.NoDeviceError, lade.UnsupportedError) as error:
        raise type(error)(f'{error}; device="cpu" loads into host memory') from error


def _stage(device, pipeline, allocator, local_ranks):
    """What a load goes through: what was passed, else what is kept for the device, which is made when it is first needed."""
    take("pipeline", pipeline, _lade.Pipeline, "a lade.Pipeline", optional=True)
    take("allocator", allocator, _lade.DeviceAllocator, "a lade.DeviceAllocator", optional=True)
    if pipeline is not None and local_ranks is not None:
        raise lade.InvalidArgumentError(f"local_ranks is {local_ranks!r}; expected None with a pipeline, which has its own")
    if pipeline is not None and allocator is not None:
        return _Stage(pipeline.device, pipeline, allocator, None)
    device = pipeline.device if pipeline is not None else _device_from(device)
    with _stages_lock:
        kept = _stages.get(device, _Stage(device, None, None, None))
        if pipeline is None and (kept.pipeline is None or kept.pipeline.closed or local_ranks not in (None, kept.local_ranks)):
            kept = kept._replace(pipeline=lade.Pipeline(device, local_ranks=local_ranks), local_ranks=local_ranks or 1)
        if allocator is None and kept.allocator is None:
            kept = kept._replace(allocator=lade.DeviceAllocator(device))
        _stages[device] = kept
        while len(_stages) > _KEPT_DEVICES:
            _stages.popitem(last=False)
        _stages.move_to_end(device)
    return kept._replace(pipeline=pipeline or kept.pipeline, allocator=allocator or kept.allocator)


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


# --- tensors -----------------------------------------------------------------------------------------------------------


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


# --- mapped files ------------------------------------------------------------------------------------------------------


_ALONE_BYTES = 1 << 20
_ALONE_MOST = 1024  # mappings of a load; by default a process may have 65,530 (vm.max_map_count)


class _Mapped:
    """The files of a checkpoint in the process' address space, for tensors that are views of them. The views keep the mappings."""

    def __init__(self, file, count, total):
        self._file, self._maps = file, {}
        self._copies = count == 1  # what is small: programs take all tensors one by one, and keep them
        self._alone = 0 if self._copies else max(_ALONE_BYTES, total // _ALONE_MOST)

    def _map(self, entry):
        """(memory, the tensor's place in it)."""
        if entry.bytes >= self._alone:
            return self._file.map(entry.number, True), 0
        if entry.file not in self._maps:
            self._maps[entry.file] = self._file.map(entry.number, False)
        return self._maps[entry.file], entry.offset

    def tensor(self, of, entry, kind, shape, device):
        """A tensor of the framework; where its elements do not begin at a multiple of their size, in memory of its own."""
        if entry.bytes == 0:
            return _torch_empty(kind, shape, device) if of == "torch" else _loaded_numpy().empty(shape, kind)
        (mapped, at), size = self._map(entry), kind.itemsize
        if entry.offset + entry.bytes > mapped.file_bytes:
            raise lade.TruncatedError(f"tensor {entry.name} ends at byte {entry.offset + entry.bytes} of a file that has "
                                      f"{mapped.file_bytes} now")
        copies = entry.offset % size or (self._copies and entry.bytes < _ALONE_BYTES)
        if of == "numpy":
            array = _loaded_numpy().ndarray(shape, kind, mapped, at)
            return array.copy() if copies else array
        torch = _loaded("torch")
        tensor = torch.frombuffer(mapped, dtype=torch.uint8, count=entry.bytes, offset=at)
        return (tensor.clone() if copies else tensor).view(kind).view(shape)


def _loaded_numpy():
    import numpy

    return numpy


_Entry = collections.namedtuple("_Entry", "number name dtype shape bytes file offset")


class SafeSlice(Generic[_T]):
    """A tensor of a file, of which parts are read: ``f.get_slice(name)[1:3, :, 0]``."""

    def __init__(self, owner, entry):
        self._owner, self._entry = owner, entry
        self._file = owner._open_file()

    def get_shape(self) -> list[int]:
        """The tensor's shape, as a list."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """The tensor's type as the format names it, such as ``"F32"``."""
        return self._entry.dtype

    def __getitem__(self, index: Any) -> _T:
        """The part as a tensor of its own. Only its bytes are read, or where they are many small pieces, what lies around them.

        With torch the index means what it means there; None, bools, lists and tensors in it read the whole tensor.
        """
        return self._owner._read_slice(self._file, self._entry, index)

    def __repr__(self):
        return f"<lade.safetensors.SafeSlice {self._entry.name!r} {self._entry.dtype} {list(self._entry.shape)}>"


class safe_open(Generic[_T]):
    """A checkpoint whose tensors are read one by one.

    Parameters
    ----------
    filename : str or os.PathLike
        A file in the format, or the ``.json`` index of several.
    framework : str or None
        ``"pt"`` (torch), ``"np"`` (NumPy), ``"cupy"``, ``"lade"`` (DeviceBuffers of bytes). None: see the module.
    device : str, int, torch.device or lade.Device
        ``"cpu"``: the software device, whose memory is host memory.
    backend : str
        Of the ``safetensors`` package; has no effect here.
    pipeline, allocator : lade.Pipeline, lade.DeviceAllocator or None
        What the bytes go through, and what the memory is from. None: kept ones of the device.
    stream : Stream, int, object with __cuda_stream__ or None
        Memory is allocated on it. None: the current stream of torch or CuPy.
    direct : bool or None
        Past the page cache (O_DIRECT), or through it. None: past it where it has next to nothing of the file; parts of tensors through
        it.
    local_ranks : int or None
        Processes of this job on this machine, such as LOCAL_WORLD_SIZE says under torchrun: they share processors and cache. None:
        as for the kept pipeline, which is made for one. With another number it is made anew.

    Any thread may call anything; calls wait with the GIL released.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    SafetensorError
        It is not in the format, and in which way.
    """

    if TYPE_CHECKING:

        @overload
        def __init__(self: safe_open[torch.Tensor], filename: _Path, framework: _OfTorch, device: DeviceLike = "cpu",
                     **options: Unpack[_OpenWay]) -> None: ...
        @overload
        def __init__(self: safe_open[_Array], filename: _Path, framework: _OfNumpy, device: DeviceLike = "cpu",
                     **options: Unpack[_OpenWay]) -> None: ...
        @overload
        def __init__(self: safe_open[cupy.ndarray], filename: _Path, framework: _OfCupy, device: DeviceLike = "cpu",
                     **options: Unpack[_OpenWay]) -> None: ...
        @overload
        def __init__(self: safe_open[DeviceView], filename: _Path, framework: Literal["lade"], device: DeviceLike = "cpu",
                     **options: Unpack[_OpenWay]) -> None: ...
        @overload
        def __init__(self: safe_open[Tensor], filename: _Path, framework: None = None, device: DeviceLike = "cpu",
                     **options: Unpack[_OpenWay]) -> None: ...

    def __init__(self, filename, framework=None, device="cpu", *, backend="mmap", pipeline=None, allocator=None, stream=None,
                 direct=None, local_ranks=None):
        if backend not in ("mmap", "pread"):
            raise _error(f'backend {backend} is invalid (expected one of: "mmap", "pread")')
        self._file = None
        path = take_path("filename", filename)
        take("direct", direct, bool, "True or False", optional=True)
        if framework is not None and str(framework) not in _FRAMEWORKS:
            raise _error(f"framework {framework} is invalid")
        plain = all(value is None for value in (pipeline, allocator, stream, direct, local_ranks))
        self._stage = None if plain else _stage(device, pipeline, allocator, local_ranks)
        self._device = _device_from(device) if plain else self._stage.device
        self._framework = _framework_from(framework, self._device)
        if self._framework == "torch" and not _loaded("torch"):
            import torch  # noqa: F401
        self._stream, self._direct = stream, direct
        try:
            self._file = _lade._Checkpoint(path)
        except (lade.FormatError, lade.TruncatedError, lade.IOError, lade.InvalidArgumentError) as error:
            raise _open_error(os.fsdecode(path), error) from error
        self._numbers = None  # of the tensors, by name, once one is asked for
        self._is_mapped = plain and self._framework in ("torch", "numpy") and self._device == lade.software_device()

    @property
    def _at(self):
        """What is read goes through it: made when it is first needed."""
        if self._stage is None:
            self._stage = _stage(self._device, None, None, None)
        return self._stage

    def __enter__(self) -> safe_open[_T]:
        self._open_file()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Tensors stay; slices that were taken can still be read, and keep the files open."""
        self._file = None

    def _open_file(self):
        if self._file is None:
            raise _error("File is closed")
        return self._file

    def _names(self):
        """Numbers of the tensors by name, in the order of their bytes."""
        file = self._open_file()
        if self._numbers is None:
            self._numbers = {name: number for number, name in enumerate(file.names())}
        return self._numbers

    def keys(self) -> list[str]:
        """Names of the tensors, sorted."""
        return sorted(self._names())

    def offset_keys(self) -> list[str]:
        """Names of the tensors in the order of their bytes."""
        return list(self._names())

    def metadata(self) -> dict[str, str] | None:
        """The texts of the header, or None where it has none."""
        file = self._open_file()
        texts = dict(file.metadata())
        return texts if texts or _has_metadata(file.files()) else None

    def _number(self, name):
        numbers = self._names()
        take("name", name, str, "a str")
        number = numbers.get(name)
        if number is None:
            raise _error(f"File does not contain tensor {name}")
        return number

    def _entry(self, name):
        number = self._number(name)
        return _Entry(number, name, *self._open_file().tensor(number))

    def _target(self):
        stream = _stream_from(self._stream, self._framework, self._device)
        return (self._at.pipeline, self._at.allocator, stream)

    def _load(self, numbers=None, per_tensor=False, progress=None, mark=lambda step: None, dtype=None):
        """The tensors of these numbers by name; None: all. They are made while their bytes are read. `mark` is told each step."""
        file, device, of = self._open_file(), self._device, _OF_FRAMEWORK[self._framework]
        dtypes = None
        if dtype is not None:
            numbers = list(range(file.count())) if numbers is None else numbers
            dtypes = self._wanted(file, numbers, dtype)
        kinds = self._kinds(file, numbers, dtypes)  # before anything is read
        if self._is_mapped and not per_tensor and dtypes is None:
            return self._load_mapped(file, numbers, kinds, progress)
        load = file.start(self._target(), numbers, per_tensor, self._direct, dtypes=dtypes)
        tensors = {}
        try:
            mark("reads begun")
            names = file.names(numbers)
            mark("names")
            tensors = of.make_all(load, names, kinds, device)
            mark("tensors made")
            load.wait(progress)
            mark("bytes there")
        except BaseException:
            tensors.clear()
            load.close()
            raise
        return tensors

    def _load_mapped(self, file, numbers, kinds, progress):
        of, tensors = _OF_FRAMEWORK[self._framework], {}
        names = file.names(numbers)
        entries = [_Entry(number, name, *file.tensor(number)) for number, name in zip(range(len(names)) if numbers is None else numbers, names)]
        total = sum(entry.bytes for entry in entries)
        mapped = _Mapped(file, len(entries), total)
        for entry in entries:
            shape = of.shape(entry.name, entry.dtype, entry.shape)
            tensors[entry.name] = mapped.tensor(self._framework, entry, kinds[entry.dtype], shape, self._device)
        if progress is not None:
            progress(total, total)
        return tensors

    def _wanted(self, file, numbers, dtype):
        """The type that each tensor is converted to, or None; None for all if no tensor is."""
        if isinstance(dtype, collections.abc.Mapping):
            by_number = {self._number(name): _dtype_name(wanted) for name, wanted in dtype.items()}
            out = [by_number.get(number) for number in numbers]
        else:
            name = _dtype_name(dtype)
            out = [name if file.tensor(number)[0] in _NUMBERS else None for number in numbers]
        return out if any(out) else None

    def _kinds(self, file, numbers, dtypes=None):
        """The framework's types by those of the tensors in memory; refuses what it has not."""
        of, kinds = _OF_FRAMEWORK[self._framework], {}
        if dtypes is not None:
            kept = [number for number, wanted in zip(numbers, dtypes) if wanted is None]
            kinds = self._kinds(file, kept) if kept else {}
            for number, wanted in zip(numbers, dtypes):
                if wanted is not None and wanted not in kinds:
                    kinds[wanted] = of.dtype(file.names([number])[0], wanted)
            return kinds
        for dtype, first in file.dtypes(numbers):
            kinds[dtype] = of.dtype(file.names([first])[0], dtype)
            if self._framework == "torch" and dtype in _TORCH_PACKS:
                for number in range(first, file.count()) if numbers is None else numbers:
                    of_tensor, shape, *_ = file.tensor(number)
                    if of_tensor == dtype:
                        of.shape(file.names([number])[0], dtype, shape)
        return kinds

    def _kind_and_shape(self, entry):
        """Type and shape of a tensor in the framework; refuses what it has not."""
        of = _OF_FRAMEWORK[self._framework]
        return of.dtype(entry.name, entry.dtype), of.shape(entry.name, entry.dtype, entry.shape)

    def _make(self, buffer, kind, shape):
        return _OF_FRAMEWORK[self._framework].make(buffer, kind, shape, self._device)

    def get_tensor(self, name: str) -> _T:
        """One tensor, in memory of its own."""
        return self._load([self._number(name)])[name]

    def get_tensors(self) -> dict[str, _T]:
        """All tensors by name, in the order of their bytes, in one block of memory."""
        return self._load()

    def get_slice(self, name: str) -> SafeSlice[_T]:
        """A tensor to take parts of."""
        return SafeSlice(self, self._entry(name))

    def _read_slice(self, file, entry, index):
        (kind, shape), bits, pack = self._kind_and_shape(entry), _DTYPES[entry.dtype][2], _TORCH_PACKS.get(entry.dtype, 1)
        if self._framework == "torch":
            torch = _loaded("torch")
            plain = _slices.torch_index(torch, index, entry.shape)
            index = index if plain is None else plain
            if pack > 1:
                index, bits = _slices.packed_index(torch, index, entry.shape, pack, _error), bits * pack
            if plain is None:
                return self._part(file, entry, [(0, entry.bytes)], entry.bytes, shape, index)
        plan = _slices.plan(index, shape, bits, _error, self._framework != "lade")
        if plan.inner is not None:
            return self._part(file, entry, plan.ranges, plan.bytes, plan.around, plan.inner, plan.shape)
        return self._make(file.read(self._target(), entry.number, plan.ranges, plan.bytes, bool(self._direct)), kind, plan.shape)

    def _part(self, file, entry, ranges, count, shape, index, part_shape=None):
        """tensor[index], in memory of its own, of the tensor of that shape that is read."""
        kind, _ = self._kind_and_shape(entry)
        # torch takes no part of a tensor of F4. What is as wide as bytes is taken as bytes.
        taken = _loaded("torch").uint8 if self._framework == "torch" and kind.itemsize == 1 else kind
        part = self._make(file.read(self._target(), entry.number, ranges, count, bool(self._direct)), taken, shape)[index]
        part = part if part_shape is None else part.reshape(part_shape)
        return part.clone().view(kind) if self._framework == "torch" else part.copy()


def _has_metadata(paths):
    """Whether a header has a "__metadata__" that is empty, which the library does not tell from none."""
    for path in paths:
        try:
            with open(path, "rb") as file:
                header = file.read(min(int.from_bytes(file.read(8), "little"), _HEADER_MOST))
                if b'"__metadata__"' in header and isinstance(json.loads(header).get("__metadata__"), dict):
                    return True
        except (OSError, ValueError):
            continue
    return False


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
        A file in the format, or the ``.json`` index of several.
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


def _numbers_of(file, tensors):
    """Numbers of tensors by name; None: all."""
    if isinstance(tensors, str) or not isinstance(tensors, (collections.abc.Iterable, type(None))):
        raise wrong_type("tensors", tensors, "an iterable of str, or None")
    return None if tensors is None else list(dict.fromkeys(map(file._number, tensors)))


# Loads of iterate(): the first is short, so that its first tensor comes early, and the others are as long as four under way may be.
_WAVE_FIRST_BYTES = 16 << 20
_WAVES = 4
# A load that is under way: numbers, types and names of its tensors, and these, which its iteration takes out as it hands them out.
_Wave = collections.namedtuple("_Wave", "load numbers dtypes names tensors bytes")


def _waves_plan(file, numbers, dtypes, most):
    """Which tensors each load has, as (numbers, their types, bytes in memory); they follow each other in the files."""
    limit, taken, wanted, total = min(_WAVE_FIRST_BYTES, most // _WAVES), [], [], 0
    for i in sorted(range(len(numbers)), key=numbers.__getitem__):
        dtype, _, count, *_ = file.tensor(numbers[i])
        if dtypes is not None and dtypes[i] is not None:
            count = count * _DTYPES[dtypes[i]][2] // _DTYPES[dtype][2]
        if taken and total + count > limit:
            yield taken, wanted, total
            limit, taken, wanted, total = most // _WAVES, [], [], 0
        taken.append(numbers[i])
        wanted.append(None if dtypes is None else dtypes[i])
        total += count
    if taken:
        yield taken, wanted, total


def _next_wave(waves):
    """The first load that is there, else the first."""
    chosen = next((wave for wave in waves if wave.load.ready()), waves[0])
    waves.remove(chosen)
    return chosen


def _wave_close(wave):
    is_begun = len(wave.tensors) < len(wave.names)
    wave.tensors.clear()
    if is_begun:  # so that its memory is that of the tensors handed out, each for itself
        with contextlib.suppress(lade.Error):
            wave.load.wait(None)
    wave.load.close()


def _iterate_mapped(owner, file, numbers, kinds):
    of, entries = _OF_FRAMEWORK[owner._framework], [_Entry(number, file.names([number])[0], *file.tensor(number)) for number in numbers]
    mapped = _Mapped(file, len(entries), sum(entry.bytes for entry in entries))
    for entry in entries:
        shape = of.shape(entry.name, entry.dtype, entry.shape)
        yield entry.name, mapped.tensor(owner._framework, entry, kinds[entry.dtype], shape, owner._device)


def _iterate(owner, file, numbers, dtypes, kinds, most):
    of, target, plan = _OF_FRAMEWORK[owner._framework], owner._target(), collections.deque(_waves_plan(file, numbers, dtypes, most))
    waves: list = []
    wave, name = None, None
    try:
        while plan or waves:
            while plan and (not waves or sum(other.bytes for other in waves) + plan[0][2] <= most):
                taken, wanted, count = plan[0]
                try:
                    load = file.start(target, taken, True, owner._direct, dtypes=wanted if any(wanted) else None)
                except lade.Error:
                    if not waves:
                        name = file.names(taken)[0]
                        raise
                    break  # tried again when those before it are handed out: their memory may be free then
                names = file.names(taken)
                waves.append(_Wave(load, taken, wanted, names, {}, count))
                waves[-1].tensors.update(of.make_all(load, names, kinds, owner._device))
                plan.popleft()
            wave = _next_wave(waves)
            for i, name in enumerate(wave.names):
                try:
                    wave.load.wait_tensor(i)
                except lade.Error:
                    if len(wave.names) == 1:
                        raise
                    rest = _waves_plan(file, wave.numbers[i:], wave.dtypes[i:], 1)  # each by itself, which tells the one at fault
                    plan.extendleft(reversed(list(rest)))
                    break
                yield name, wave.tensors.pop(name)
            _wave_close(wave)
            wave = name = None
    except lade.Error as error:
        raise error if name is None else type(error)(f"tensor `{name}`: {error}") from error
    finally:
        owner.close()
        file = None  # which a traceback would keep open with this frame
        for other in waves if wave is None else [wave, *waves]:
            _wave_close(other)


if TYPE_CHECKING:

    @overload
    def iterate(filename: _Path, device: DeviceLike = "cuda:0", *, framework: _OfTorch,
                **options: Unpack[_IterateWay]) -> Generator[tuple[str, torch.Tensor], None, None]: ...
    @overload
    def iterate(filename: _Path, device: DeviceLike = "cuda:0", *, framework: _OfNumpy,
                **options: Unpack[_IterateWay]) -> Generator[tuple[str, _Array], None, None]: ...
    @overload
    def iterate(filename: _Path, device: DeviceLike = "cuda:0", *, framework: _OfCupy,
                **options: Unpack[_IterateWay]) -> Generator[tuple[str, cupy.ndarray], None, None]: ...
    @overload
    def iterate(filename: _Path, device: DeviceLike = "cuda:0", *, framework: Literal["lade"],
                **options: Unpack[_IterateWay]) -> Generator[tuple[str, DeviceView], None, None]: ...
    @overload
    def iterate(filename: _Path, device: DeviceLike = "cuda:0", *, framework: None = None,
                **options: Unpack[_IterateWay]) -> Generator[tuple[str, Tensor], None, None]: ...


def iterate(filename, device="cuda:0", *, framework=None, tensors=None, dtype=None, max_transient_bytes=256 << 20, pipeline=None,
            allocator=None, stream=None, direct=None, local_ranks=None):
    """Load a checkpoint tensor by tensor: those that follow are read meanwhile.

    Each tensor has a block of device memory of its own. When the program lets go of it, the block goes back to the allocator, which gives
    it to a tensor that follows, after the work queued on ``stream``. So a program that keeps none needs about ``max_transient_bytes``
    for a checkpoint of any size.

    Parameters
    ----------
    filename, device, framework, tensors, dtype, pipeline, allocator, direct, local_ranks
        As for :func:`load_file`.
    stream : Stream, int, object with __cuda_stream__ or None
        Memory is allocated on it, after the work queued there. None: the current stream of torch or CuPy when the first tensor is asked
        for. Other streams that use a tensor must be done when it goes.
    max_transient_bytes : int
        Device memory of tensors that are read ahead and not handed out yet, at most; of the types they have in memory. A larger tensor
        goes alone.

    Yields
    ------
    tuple of (str, tensor)
        Name and tensor, whose bytes are there: in the order of the files, except that parts of the checkpoint that are there go before
        parts that are not.

    Raises
    ------
    FileNotFoundError, SafetensorError
        As for :func:`load_file`, by the call.
    lade.Error
        Reading or copying failed: raised in place of the tensor, which the text names, after it was tried by itself; those before it stay
        good. The iteration is over.

    The iterator is closed by its end, an error, ``close()``, and when it is let go of, as by ``break``: reads that are under way are
    cancelled, and files closed. Tensors that were handed out stay.
    """
    take("max_transient_bytes", max_transient_bytes, int, "an int of 1 or more")
    if max_transient_bytes < 1:
        raise lade.InvalidArgumentError(f"max_transient_bytes is {max_transient_bytes}; expected 1 or more")
    owner = safe_open(filename, framework, device, pipeline=pipeline, allocator=allocator, stream=stream, direct=direct,
                      local_ranks=local_ranks)
    file = owner._open_file()
    numbers = _numbers_of(owner, tensors)
    numbers = list(range(file.count())) if numbers is None else numbers
    dtypes = None if dtype is None else owner._wanted(file, numbers, dtype)
    kinds = owner._kinds(file, numbers, dtypes)
    if owner._is_mapped and dtypes is None:
        return _iterate_mapped(owner, file, numbers, kinds)
    return _iterate(owner, file, numbers, dtypes, kinds, max_transient_bytes)


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


def _named(tensors):
    """Tensors by name, of a dict or a module."""
    if callable(getattr(tensors, "state_dict", None)):
        tensors = tensors.state_dict()
    if not isinstance(tensors, dict):
        raise wrong_type("tensors", tensors, "a dict of tensors, or a torch.nn.Module")
    return tensors


def _into_row(file, name, row, convert, slices):
    """(number, tensor, type to convert to or None, part or None) of a tensor to load into; None where it gets no bytes."""
    entry, (_, dtype, shape, tensor, _) = file._entry(name), row
    index = None if slices is None else slices(name, entry.shape)
    part, expected = (None, tuple(entry.shape)) if index is None else _slices.one_part(index, entry.shape, lade.InvalidArgumentError)
    may = entry.dtype in _NUMBERS and dtype in _NUMBERS
    if tuple(shape) != expected or (dtype != entry.dtype and not (convert and may)):
        hint = "; convert=True converts" if may and not convert and tuple(shape) == expected else ""
        raise lade.InvalidArgumentError(f"tensor `{name}` is {dtype} {tuple(shape)}; expected {entry.dtype} {expected}, as in the file{hint}")
    if 0 in expected:
        return None
    return entry.number, tensor, None if dtype == entry.dtype else dtype, part


def load_into(tensors, filename, *, strict=True, convert=False, slices=None, pipeline=None, stream=None, direct=None, progress=None,
              local_ranks=None):
    """Load a checkpoint into tensors that are there: no device memory beside them is taken.

    Parameters
    ----------
    tensors : dict or torch.nn.Module
        By name: contiguous tensors of torch or CuPy on one GPU, or DeviceBuffers, with the shapes and types of the file. A module's
        are those of its ``state_dict()``. Tensors of the file that are not among them are not read.
    filename : str or os.PathLike
        A file in the format, or the ``.json`` index of several.
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
        As for :func:`load_file`.
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
    rows = {row[0]: row for row in _checked(own, None)}
    of_torch = {name: row[3] for name, row in rows.items() if hasattr(row[3], "data_ptr")}
    for name, tensor in of_torch.items():
        if tensor.data_ptr() != own[name].data_ptr():
            raise lade.InvalidArgumentError(f"tensor `{name}` is a conjugate or negative view; expected one whose bytes are its values")
    same = _same_memory(of_torch)
    devices = {row[4] for row in rows.values()}
    if len(devices) > 1 or None in devices:
        found = ", ".join(sorted("the host" if device is None else str(device) for device in devices))
        raise lade.InvalidArgumentError(f"tensors are on {found}; expected all on one GPU, or DeviceBuffers of one device")
    device = devices.pop() if devices else lade.device()
    with safe_open(filename, "lade", device, pipeline=pipeline, stream=stream, direct=direct, local_ranks=local_ranks) as file:
        names = file.offset_keys()
        missing, unexpected = _unfit(rows, same, names)
        if strict and (missing or unexpected):
            raise RuntimeError(f"{os.fsdecode(os.fspath(filename))} does not fit: missing {missing}, unexpected {unexpected}")
        names = {same.get(name, name): name for name in names if name in rows}.values()
        wanted = [row for row in (_into_row(file, name, rows[name], convert, slices) for name in names) if row is not None]
        target = _target_of(list(rows.values()), file._at.pipeline, file._at.allocator, stream, local_ranks)
        if not wanted:
            return missing, unexpected
        numbers, into, dtypes, parts = zip(*wanted)
        load = file._open_file().start(target[0], numbers, True, direct, into, dtypes, parts)
        try:
            load.wait(progress)
        finally:
            load.close()
    return missing, unexpected


def _same_memory(state):
    """Of torch tensors by name: the name of the first, sorted, that lies in the same bytes, for each that is not that one."""
    first, same = {}, {}
    for name in sorted(state):
        tensor = state[name]
        place = (str(tensor.device), tensor.data_ptr(), tensor.nbytes)
        if tensor.nbytes and tensor.data_ptr() and first.setdefault(place, name) != name:
            same[name] = first[place]
    return same


def _unfit(own, same, there):
    """Names of `own` that are not there, and names there that are none of them. `same`: of _same_memory(); one name of a memory will do."""
    given = {same.get(name, name) for name in there}
    return [name for name in own if same.get(name, name) not in given], [name for name in there if name not in own]


def load_model(model: torch.nn.Module, filename: _Path, strict: bool = True, device: DeviceLike = "cpu",
               **options: Unpack[_LoadWay]) -> tuple[list[str], list[str]]:
    """Load a checkpoint into a module of torch.

    Names that the file lacks are no miss where the model has their memory under a name that the file has: tied weights.

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
    missing, unexpected = _unfit(own, _same_memory(own), tensors)
    if strict and (missing or unexpected):
        raise RuntimeError(f"{os.fsdecode(os.fspath(filename))} does not fit {type(model).__name__}: missing {missing}, unexpected {unexpected}")
    model.load_state_dict(tensors, strict=False)
    return missing, unexpected


# --- saving ------------------------------------------------------------------------------------------------------------


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


def _checked(tensors, metadata):
    """Rows (name, dtype of the format, shape, tensor, device or None); refuses what the format or the package refuses."""
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, tensor] but received {type(tensors)}")
    if metadata is not None and not isinstance(metadata, dict):
        raise wrong_type("metadata", metadata, "a dict of str, or None")
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata {key!r}: {value!r} is no pair of texts; expected str: str")
        _check_text("metadata", key)
        _check_text("metadata", value)
    rows = []
    torch = _loaded("torch")
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"name {name!r} is a {type(name).__name__}; expected str")
        _check_text("name", name)
        if name == "__metadata__":
            raise lade.InvalidArgumentError('name is "__metadata__"; expected another one than the format\'s own')
        of_torch = torch and isinstance(tensor, torch.Tensor)
        kind, shape, on_gpu, ordinal = (_torch_facts if of_torch else _facts)(name, tensor)
        if of_torch:
            tensor = tensor.detach()  # an alias, which holds the memory whatever becomes of the program's tensor
            if tensor.is_conj() or tensor.is_neg():
                tensor = tensor.resolve_conj().resolve_neg()  # whose bytes are its values
        if kind not in _NAMES:
            raise _error(f'Unknown dtype "{kind}". Supported dtypes: {", ".join(_NAMES)}')
        of_lade = on_gpu and not of_torch and isinstance(tensor, (lade.DeviceBuffer, lade.DeviceView))
        device = None if not on_gpu else tensor.device if of_lade else lade.cuda_device(ordinal)
        rows.append((name, _NAMES[kind], shape, tensor, device))
    return rows


def _unshared(rows):
    """Refuses tensors that share memory."""
    torch = _loaded("torch")
    shared = _shared_names({row[0]: row[3] for row in rows if torch and isinstance(row[3], torch.Tensor)})
    if shared:
        raise RuntimeError(f"Some tensors share memory, which a file would hold twice: {sorted(shared)}; save one of them, or clones")


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
    on_devices = [row for row in rows if row[4] is not None]
    if not on_devices:
        return []
    stage = _stage(on_devices[0][4], pipeline, allocator, local_ranks)
    for name, _, _, _, device in on_devices:
        if device != stage.device:
            raise lade.InvalidArgumentError(f"tensor {name} is on {device}; expected {stage.device}, as the others are")
    torch = _loaded("torch")
    if stream is None and not stage.device.software:
        is_torch = torch and any(isinstance(row[3], torch.Tensor) for row in on_devices)
        stream = _stream_from(None, "torch" if is_torch else "cupy" if _loaded("cupy") else "lade", stage.device)
    return [(stage.pipeline, stage.allocator, stream)]


def _count(name, value):
    try:
        number = operator.index(value)
    except TypeError:
        raise wrong_type(name, value, "an int of 0 or more") from None
    if not 0 <= number < 1 << 64:
        raise lade.InvalidArgumentError(f"{name} is {number}; expected an int of 0 or more, below 2^64")
    return number


@contextlib.contextmanager
def _saving():
    """Turns errors of writing into those of the package."""
    try:
        yield
    except (lade.CancelledError, TimeoutError):
        raise
    except OSError as error:
        code = getattr(error, "native_code", 0) or error.errno or 0
        raise _error(f"Error while serializing: I/O error: {os.strerror(code)} (os error {code}): {error}") from error


_saves: weakref.WeakSet[Save] = weakref.WeakSet()


@atexit.register
def _finish_saves():
    """What is being saved when the program ends comes to its end."""
    for save in list(_saves):
        save.close()


class Save:
    """A save that goes on by itself: what ``save_file(..., wait=False)`` returns.

    The tensors must stay as they are until it is staged, and are held until then. The last reference, and the end of the program,
    wait for its end. Threads: any; :meth:`close` waits for calls that wait on a stream, and ends those that wait for a mark.
    """

    def __init__(self, native, tensors):
        self._native = native
        self._tensors = tensors
        _saves.add(self)

    def _open(self):
        native = self._native
        if native is None:
            raise lade.InvalidArgumentError("the Save is closed")
        return native

    def _wait(self, durable, timeout):
        with _saving():
            self._open().wait(durable, timeout)
        self._tensors = None

    def wait_staged(self, timeout: float | None = None) -> None:
        """Wait until tensors may change.

        Parameters
        ----------
        timeout : float or None
            In seconds; None: no limit.

        Raises
        ------
        TimeoutError
            Not yet; the save goes on.
        SafetensorError
            It failed; the file is as it was.
        """
        self._wait(False, timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the new file is in place, and, with ``sync``, on stable storage. As :meth:`wait_staged`."""
        self._wait(True, timeout)

    def wait_on(self, stream: StreamLike = None) -> None:
        """Let work that is queued on a stream from now on wait until it may change the tensors of the device.

        Returns when the last copy is queued.

        Parameters
        ----------
        stream : Stream, int, object with __cuda_stream__ or None
            None: the default stream.
        """
        self._open().wait_on(stream)

    def close(self, *, cancel: bool = False) -> None:
        """Wait for its end, whatever that is.

        Parameters
        ----------
        cancel : bool
            Give it up, unless the new file is being put in place already: the old one stays.
        """
        native = self._native
        if native is not None:
            native.end(cancel)
        self._native = self._tensors = None

    def __del__(self):
        if getattr(self, "_native", None) is not None:
            self.close()

    def __reduce__(self):
        raise lade.ArgumentTypeError("a Save is not copied or pickled: the end of a copy would be that of the save")

    def _state(self):
        native, state = self._native, "under way"
        if native is None:
            return "closed"
        try:
            for durable, reached in (False, "staged"), (True, "durable"):
                native.wait(durable, 0)
                state = reached
        except TimeoutError:
            pass
        except lade.Error:
            state = "failed"
        return state

    def __repr__(self):
        return f"<lade.safetensors.Save: {self._state()}>"


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def _size(name, value):
    """Bytes of an int, or of a text such as "5GB" or "500 MiB"."""
    if not isinstance(value, str):
        return _count(name, value)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    unit = _UNITS.get(found[2].upper()) if found else None
    if unit is None:
        raise lade.InvalidArgumentError(f'{name} is {value!r}; expected bytes, such as 5000000000, "5GB" or "4.5GiB"')
    return _count(name, int(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit)


if TYPE_CHECKING:

    @overload
    def save_file(tensors: Mapping[str, Any], filename: _Path, metadata: Mapping[str, str] | None = None, *, wait: Literal[False],
                  **options: Unpack[_SaveWay]) -> Save: ...
    @overload
    def save_file(tensors: Mapping[str, Any], filename: _Path, metadata: Mapping[str, str] | None = None, *, wait: Literal[True] = True,
                  **options: Unpack[_SaveWay]) -> None: ...


def save_file(tensors, filename, metadata=None, *, max_shard_bytes=0, max_shard_size=None, sync=True, progress=None, wait=True,
              stage_bytes=0, pipeline=None, allocator=None, stream=None, local_ranks=None):
    """Save tensors in the format, byte for byte as the ``safetensors`` package does.

    The file appears under its name when it is complete; after an error the name is as it was.

    Parameters
    ----------
    tensors : dict
        By name: contiguous tensors of torch or CuPy, NumPy arrays, DeviceBuffers, and what else shows its memory. Those of a device
        must be of one device; those of the host are written from where they are.
    filename : str or os.PathLike
    metadata : dict of str or None
        Texts for the header.
    max_shard_bytes : int
        Of tensors in one file; when there are more, several files and an index ``filename + ".index.json"`` are written. 0: one
        file.
    max_shard_size : int, str or None
        The same, also as text: ``"5GB"`` (10^9), ``"5GiB"`` (2^30). None: max_shard_bytes.
    sync : bool
        The file is on stable storage before it gets its name.
    progress : function(bytes_done, bytes) or None
        Called from time to time, in this thread; what it raises ends the save. None with ``wait=False``.
    wait : bool
        False: return a :class:`Save` at once, which goes on while the program does.
    stage_bytes : int
        With ``wait=False``: pinned memory that copies of tensors may wait in until they are written, at most. 0: as much as they need, at
        most half of the cap of the pool.
    pipeline, allocator, stream, local_ranks
        As for :func:`load_file`. What is queued on the stream, and on those of DeviceBuffers, is waited for by the copies.

    Raises
    ------
    ValueError
        A tensor is sparse, masked, not contiguous, or no tensor; a name or text of the metadata has a null character.
    RuntimeError
        torch tensors share memory.
    SafetensorError
        Writing failed, or a tensor has a dtype that the format has not.
    """
    path = take_path("filename", filename)
    max_shard_bytes = _count("max_shard_bytes", max_shard_bytes)
    if max_shard_size is not None:
        if max_shard_bytes:
            raise lade.InvalidArgumentError(f"max_shard_size is {max_shard_size!r} and max_shard_bytes {max_shard_bytes}; expected one of both")
        max_shard_bytes = _size("max_shard_size", max_shard_size)
    take("sync", sync, bool, "True or False")
    take_function("progress", progress, "a function(bytes_done, bytes)")
    take("pipeline", pipeline, _lade.Pipeline, "a lade.Pipeline", optional=True)
    take("allocator", allocator, _lade.DeviceAllocator, "a lade.DeviceAllocator", optional=True)
    take("wait", wait, bool, "True or False")
    stage_bytes = _count("stage_bytes", stage_bytes)
    if not wait and progress is not None:
        raise lade.InvalidArgumentError(f"progress is {progress!r}; expected None with wait=False")
    rows = _checked(tensors, metadata)
    _unshared(rows)
    with _saving():
        targets = _target_of(rows, pipeline, allocator, stream, local_ranks)
        entries = [(name, dtype, shape, tensor if device is not None else _laid_out(tensor), device is not None)
                   for name, dtype, shape, tensor, device in rows]
        texts = None if metadata is None else list(metadata.items())
        if not wait:
            return Save(_lade._save_begin(path, targets, entries, texts, max_shard_bytes, sync, stage_bytes), entries)
        _lade._save(path, targets, entries, texts, max_shard_bytes, sync, progress)


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a file with these tensors: what :func:`save_file` writes.

    Parameters
    ----------
    tensors, metadata
        As for :func:`save_file`.

    Returns
    -------
    bytes
    """
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        path = os.path.join(folder, "tensors")
        save_file(tensors, path, metadata, sync=False)
        with open(path, "rb") as file:
            return file.read()


def save_model(model: torch.nn.Module, filename: _Path, metadata: Mapping[str, str] | None = None, force_contiguous: bool = True,
               **options: Unpack[_SaveWay]) -> None:
    """Save the tensors of a module of torch. Tied weights are saved once, by the first of their names, sorted.

    Parameters
    ----------
    model : torch.nn.Module
    filename : str or os.PathLike
    metadata : dict of str or None
        Texts for the header, which also tells the other names of tied weights.
    force_contiguous : bool
        Save copies of tensors that are not in C order. False: they are a ValueError.
    **options
        Of :func:`save_file`.
    """
    take("force_contiguous", force_contiguous, bool, "True or False")
    state = model.state_dict()
    same = _same_memory(state)
    texts = {**same, **(metadata or {})}
    tensors = {name: tensor.contiguous() if force_contiguous else tensor for name, tensor in state.items() if name not in same}
    save_file(tensors, filename, texts or metadata, **options)
