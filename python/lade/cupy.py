# SPDX-License-Identifier: Apache-2.0
"""CuPy's memory from lade.

::

    import cupy, lade.cupy

    with lade.cupy.install() as memory:
        x = cupy.ones(1 << 20)               # lade's cache of device memory, on CuPy's current stream
        y = cupyx.empty_pinned((64, 224))    # lade's pinned memory
        print(memory.device(0).stats())

Without ``with`` it stays until ``uninstall()``. Each device that CuPy uses gets a lade.DeviceAllocator and a lade.PinnedPool near
it when it first asks for memory. An array's block goes back when the array dies, on whatever thread; arrays may outlive
``uninstall()``.

Streams. A block belongs to CuPy's current stream at its allocation, and is reused in the order of that stream, as by CuPy's own
pool. An array that another stream uses is either kept until that is done, or named to lade with ``record_stream()``. A
``cupy.cuda.Stream`` may die before its arrays: lade holds it until no other object refers to it, and retires it before it lets it go, when
another new stream comes or at ``uninstall()``. The handle of an ``ExternalStream`` or of ``Stream.from_external()`` is its owner's:
retire it before it is destroyed, ``memory.device(0).retire_stream(handle)``. PyTorch's streams are never destroyed.

Not served: cupy.cuda.malloc_managed, malloc_async, and what CUDA's libraries (cuBLAS, NCCL) allocate by themselves. CuPy's memory
hooks and the figures of its pools (``cupy.get_default_memory_pool().used_bytes()``) do not see lade's memory.
"""

from __future__ import annotations

import importlib
import threading
import types
from typing import Any, Callable, Mapping

import lade
from lade import _lade
from lade._cupy_streams import Arena, Streams
from lade._errors import Joined
from lade._third_party import PerDevice, require, table

__all__ = ["Installation", "install", "uninstall", "installed", "record_stream"]

_OLDEST = "12.0"
_NEEDED = {
    "cupy.cuda": (
        "set_allocator get_allocator set_pinned_memory_allocator MemoryPointer PinnedMemoryPointer"
        " Stream get_current_stream runtime"
    ).split(),
    "cupy.cuda.memory": ["BaseMemory", "OutOfMemoryError"],
    "cupy.cuda.runtime": ["getDevice", "getDeviceCount"],
}

# Guards what is installed; taken around every change of CuPy's allocators by this module.
_lock = threading.RLock()
_current: Installation | None = None

# Streams outlive installations, as arrays do.
_streams = Streams()

# By CuPy's own class.
_error_classes: dict[Any, type[MemoryError]] = {}


def _checked_cupy() -> types.ModuleType:
    cupy = require("cupy", _OLDEST, _NEEDED)
    if getattr(cupy.cuda.runtime, "is_hip", False):
        raise ImportError(f"lade serves CUDA; cupy {cupy.__version__} is built for ROCm", name="cupy")
    return cupy


def _out_of_memory_class() -> type[MemoryError]:
    """CuPy's error with lade's text, which names what was asked for, what is free and who has the rest."""
    theirs = importlib.import_module("cupy.cuda.memory").OutOfMemoryError
    if theirs not in _error_classes:

        class OutOfMemoryError(theirs, metaclass=Joined):  # type: ignore[misc, valid-type]
            _make = staticmethod(_out_of_memory_class)
            nbytes, text = 0, ""

            def __str__(self) -> str:
                return self.text or super().__str__()

            def __reduce__(self) -> tuple[Any, ...]:
                return _out_of_memory, (self.nbytes, self.text)

        _error_classes[theirs] = OutOfMemoryError
    return _error_classes[theirs]


def _out_of_memory(nbytes: int, text: str) -> MemoryError:
    error: Any = _out_of_memory_class()(nbytes, -1)
    error.nbytes, error.text, error.args = nbytes, text, (text,)
    return error  # type: ignore[no-any-return]


def _offered(module: Any, name: str) -> Any:
    """A function that a compiled module of CuPy's offers to others, in a capsule; None: it does not."""
    return getattr(module, "__pyx_capi__", {}).get(name)


def _device_function(cupy: types.ModuleType, allocators: PerDevice[lade.DeviceAllocator]) -> Callable[[int], Any]:
    """What cupy.cuda.set_allocator() takes: bytes to MemoryPointer. Its memory is a _CupyMemory."""

    def failed(nbytes: int, error: BaseException) -> None:
        if isinstance(error, (lade.OutOfDeviceMemoryError, lade.LimitError)):
            raise _out_of_memory(nbytes, str(error)) from error

    cuda = cupy.cuda
    base_memory = importlib.import_module("cupy.cuda.memory").BaseMemory
    return _lade._cupy_device_function(allocators.get, cuda.runtime.getDeviceCount, cuda.runtime.getDevice,
                                       _offered(cuda.runtime, "getDevice"), cuda.MemoryPointer, base_memory, cuda.get_current_stream,
                                       _offered(getattr(cuda, "stream", None), "get_current_stream_ptr"), _streams.held, _streams.hold,
                                       failed)


def _pinned_function(cupy: types.ModuleType, pools: PerDevice[lade.PinnedPool]) -> Callable[[int], Any]:
    """What cupy.cuda.set_pinned_memory_allocator() takes: bytes to PinnedMemoryPointer. Its memory is a _CupyBlock."""
    cuda = cupy.cuda
    return _lade._cupy_pinned_function(pools.get, cuda.runtime.getDeviceCount, cuda.runtime.getDevice,
                                       _offered(cuda.runtime, "getDevice"), cuda.PinnedMemoryPointer)


def _served(field: str, arenas: PerDevice[Arena] | None) -> PerDevice[Arena]:
    if arenas is None:
        raise lade.UnsupportedError(f"{field} memory is CuPy's own: lade.cupy.install() was called with {field}=False")
    return arenas


class Installation:
    """What ``install()`` has put into CuPy. A context manager, whose end uninstalls it."""

    def __init__(
        self, cupy: types.ModuleType, allocators: PerDevice[lade.DeviceAllocator] | None, pools: PerDevice[lade.PinnedPool] | None
    ) -> None:
        self._cupy = cupy
        self._allocators = allocators
        self._pools = pools
        self._function = _device_function(cupy, allocators) if allocators else None
        self._before: Any = None
        self._puts_pinned = False

    def device(self, ordinal: int = 0) -> lade.DeviceAllocator:
        """The allocator of a device's memory, made now if CuPy did not need it yet.

        Parameters
        ----------
        ordinal : int
            CuPy's number of the device.

        Raises
        ------
        lade.UnsupportedError
            Device memory is not lade's: ``install(device=False)``.
        """
        return _served("device", self._allocators).get(ordinal)

    def pinned(self, ordinal: int = 0) -> lade.PinnedPool:
        """The pool of pinned memory near a device, made now if CuPy did not need it yet.

        Parameters
        ----------
        ordinal : int
            CuPy's number of the device.

        Raises
        ------
        lade.UnsupportedError
            Pinned memory is not lade's: ``install(pinned=False)``.
        """
        return _served("pinned", self._pools).get(ordinal)

    def _put(self) -> None:
        """Sets both allocators. CuPy refuses the first inside of using_allocator(), the second never; a signal's handler may raise anywhere."""
        cuda = self._cupy.cuda
        pinned = _pinned_function(self._cupy, self._pools) if self._pools else None
        if self._function:
            self._before = cuda.get_allocator()
            cuda.set_allocator(self._function)
        if pinned:
            self._puts_pinned = True
            cuda.set_pinned_memory_allocator(pinned)

    def _take(self) -> None:
        """Takes back what _put() has set, or may have set where it was interrupted."""
        cuda = self._cupy.cuda
        if self._function:
            # What the program has set since stays. Inside of using_allocator() CuPy shows this thread's alone, and refuses either call.
            now = cuda.get_allocator()
            cuda.set_allocator(self._before if now is self._function else now)
        if self._puts_pinned:
            cuda.set_pinned_memory_allocator(self._cupy.get_default_pinned_memory_pool().malloc)

    def uninstall(self) -> None:
        """Give CuPy its allocators back. Arrays made meanwhile live on; a second call does nothing.

        Device memory: the allocator that was there before, unless the program has set another one since. Pinned memory:
        CuPy's default pool, as CuPy does not tell what was there before.

        Raises
        ------
        ValueError
            Inside of ``cupy.cuda.using_allocator()``: CuPy refuses it. Nothing is changed.
        """
        global _current
        with _lock:
            if _current is self:
                try:
                    self._take()
                except ValueError:
                    raise
                except BaseException:  # a signal's handler, between the two: what is begun ends
                    self._take()
                    _current = None
                    raise
                _current = None
        _streams.retire_unused()

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *error: object) -> None:
        self.uninstall()


def _arenas(kind: type[Arena], given: Any, field: str) -> PerDevice[Arena] | None:
    """The allocators or pools that an argument of install() asks for, by device. Streams are retired on them."""
    made = table(lambda ordinal: _streams.add_arena(kind(lade.cuda_device(ordinal))), given, kind, field)
    for _, arena in made.items() if made else ():
        _streams.add_arena(arena)
    return made


def install(
    *,
    device: bool | lade.DeviceAllocator | Mapping[int, lade.DeviceAllocator] = True,
    pinned: bool | lade.PinnedPool | Mapping[int, lade.PinnedPool] = True,
) -> Installation:
    """Let lade serve CuPy's memory, on all threads, from now on.

    Memory that CuPy has got before stays CuPy's; ``cupy.get_default_memory_pool().free_all_blocks()`` gives its cache back.

    Parameters
    ----------
    device : bool, lade.DeviceAllocator or dict
        Device memory. True: an allocator for each device, with default settings; False: not lade's; an allocator: for its
        device, the others have default settings; a dict: allocators by CuPy's number of the device.
    pinned : bool, lade.PinnedPool or dict
        Pinned memory, likewise: a pool near each device.

    Returns
    -------
    Installation
        To uninstall it, and to reach the allocators. Keep it or not.

    Raises
    ------
    ImportError
        CuPy is not installed, or is one that lade does not serve; the text has the version.
    lade.BusyError
        lade serves CuPy already.
    ValueError
        Inside of ``cupy.cuda.using_allocator()``: CuPy refuses it. Nothing is changed.
    TypeError
        An argument is none of these.
    """
    global _current
    cupy = _checked_cupy()
    allocators, pools = _arenas(lade.DeviceAllocator, device, "device"), _arenas(lade.PinnedPool, pinned, "pinned")
    installation = Installation(cupy, allocators, pools)
    with _lock:
        if _current is not None:
            raise lade.BusyError("lade serves CuPy already: lade.cupy.uninstall() ends that")
        try:
            installation._put()
            _current = installation
        except BaseException:
            _current = None
            installation._take()
            raise
    return installation


def uninstall() -> None:
    """Give CuPy its allocators back. Nothing happens where lade is not installed."""
    with _lock:
        if _current is not None:
            _current.uninstall()


def installed() -> Installation | None:
    """What is installed at the moment; None: nothing."""
    return _current


def record_stream(array: Any, stream: Any) -> None:
    """Say that another stream uses an array, so that its memory is reused only after the work queued there until it dies.

    Parameters
    ----------
    array : cupy.ndarray
        Its memory is lade's; a view will do.
    stream : cupy.cuda.Stream, int or an object with ``__cuda_stream__``
        Of the array's device. First let it wait for the stream that the array was made on.

    Raises
    ------
    lade.ForeignPointerError
        The array's memory is not lade's.
    """
    memory = getattr(getattr(array, "data", None), "mem", None)
    if _lade._is_cupy_memory(memory) and getattr(stream, "ptr", 0) not in _streams.held:
        _streams.hold(stream)
    if not _lade._cupy_record_stream(memory, stream):
        raise lade.ForeignPointerError(f"array is a {type(array).__name__} whose memory is not lade's; expected a CuPy array with memory of lade")
