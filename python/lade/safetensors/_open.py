# SPDX-License-Identifier: Apache-2.0
"""A checkpoint whose tensors are read one by one, and all together."""

from __future__ import annotations

import collections
import collections.abc
import json
import os
import threading
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

import lade
from lade import _lade
from lade import _slices
from lade._arguments import is_url, take, take_path, wrong_type
from lade.safetensors._format import _DTYPES, _HEADER_MOST, _NUMBERS, _TORCH_PACKS, _error, _open_error
from lade.safetensors._frameworks import (
    _FRAMEWORKS,
    _OF_FRAMEWORK,
    _dtype_name,
    _framework_from,
    _loaded,
    _stream_from,
    _torch_empty,
)
from lade.safetensors._stages import _device_from, _stage
from lade.safetensors._types import _T

if TYPE_CHECKING:
    from typing import Unpack

    import cupy
    import torch

    from lade._lade import DeviceLike, DeviceView
    from lade.safetensors._types import Tensor, _Array, _OfCupy, _OfNumpy, _OfTorch, _OpenWay, _Path


class _Opening:
    """A checkpoint that a thread of its own opens: its caller does something else meanwhile. Ctrl-C ends the wait; what comes later is dropped."""

    def __init__(self, path):
        self._made, self._errors, self._over = made, errors, over = [], [], threading.Event()

        def work():
            try:
                made.append(_lade._Checkpoint(path))
            except BaseException as error:
                errors.append(error)
            over.set()

        threading.Thread(target=work, name="lade.open", daemon=True).start()

    def take(self):
        """The open file, or the error."""
        self._over.wait()
        if self._errors:
            raise self._errors.pop()  # its frames refer to this: kept here, it would keep what they hold until a collection
        return self._made[0]


def _checkpoint(path):
    """The open file. That of a URL is opened by a thread of its own, so that Ctrl-C ends the wait for a server."""
    of_thread = is_url(path) and threading.current_thread() is threading.main_thread()
    return _Opening(path).take() if of_thread else _lade._Checkpoint(path)


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
        A file in the format, or the ``.json`` index of several; or the URL of either (docs/sources.md).
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
            self._file = self._opened(path)
        except (lade.FormatError, lade.TruncatedError, lade.IOError, lade.InvalidArgumentError) as error:
            raise _open_error(os.fsdecode(path), error) from error
        self._numbers = None  # of the tensors, by name, once one is asked for
        self._is_mapped = plain and self._framework in ("torch", "numpy") and self._device == lade.software_device() and not is_url(path)

    def _opened(self, path):
        return _checkpoint(path)

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


def _numbers_of(file, tensors):
    """Numbers of tensors by name; None: all."""
    if isinstance(tensors, str) or not isinstance(tensors, (collections.abc.Iterable, type(None))):
        raise wrong_type("tensors", tensors, "an iterable of str, or None")
    return None if tensors is None else list(dict.fromkeys(map(file._number, tensors)))
