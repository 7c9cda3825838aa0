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
``cupy.cuda.Stream`` may die before its arrays: lade holds it until nobody else refers to it, and retires it before it lets it go, when
another new stream comes or at ``uninstall()``. The handle of an ``ExternalStream`` or of ``Stream.from_external()`` is its owner's:
retire it before it is destroyed, ``memory.device(0).retire_stream(handle)``. PyTorch's streams are never destroyed.

Not served: cupy.cuda.malloc_managed, malloc_async, and what CUDA's libraries (cuBLAS, NCCL) allocate by themselves. CuPy's memory
hooks and the figures of its pools (``cupy.get_default_memory_pool().used_bytes()``) do not see lade's memory.
"""

from __future__ import annotations

import threading
import types
from typing import Any, Callable, Mapping

import lade
from lade._cupy_streams import Streams
from lade._third_party import PerDevice, require, table

__all__ = ["Installation", "install", "uninstall", "installed", "record_stream"]

_OLDEST = "12.0"
_NEEDED = {
    "cupy.cuda": (
        "set_allocator get_allocator set_pinned_memory_allocator UnownedMemory MemoryPointer PinnedMemoryPointer"
        " Stream get_current_stream runtime"
    ).split(),
    "cupy.cuda.memory": ["OutOfMemoryError"],
    "cupy.cuda.runtime": ["getDevice"],
}

# Guards what is installed; taken around every change of CuPy's allocators by this module.
_lock = threading.RLock()
_current: Installation | None = None

# Streams outlive installations, as arrays do.
_streams = Streams()


def _checked_cupy() -> types.ModuleType:
    cupy = require("cupy", _OLDEST, _NEEDED)
    if getattr(cupy.cuda.runtime, "is_hip", False):
        raise ImportError(f"lade serves CUDA; cupy {cupy.__version__} is built for ROCm", name="cupy")
    return cupy


def _device_function(cupy: types.ModuleType, allocators: PerDevice[lade.DeviceAllocator]) -> Callable[[int], Any]:
    """What cupy.cuda.set_allocator() takes: bytes to MemoryPointer."""
    current_device, current_stream = cupy.cuda.runtime.getDevice, cupy.cuda.get_current_stream
    memory, pointer, allocator_of = cupy.cuda.UnownedMemory, cupy.cuda.MemoryPointer, allocators.get
    held, hold = _streams.held, _streams.hold

    class OutOfMemoryError(cupy.cuda.memory.OutOfMemoryError):  # type: ignore[misc, name-defined]
        """CuPy's error with lade's text, which names what was asked for, what is free and who has the rest."""

        def __str__(self) -> str:
            return str(self.__cause__ or super().__str__())

    def lade_device_memory(nbytes: int) -> Any:
        ordinal = current_device()
        allocator = allocator_of(ordinal)
        stream = current_stream()  # referred to until the call is over: so it is not retired meanwhile
        handle = stream.ptr
        if handle not in held:
            hold(stream)
        try:
            block = allocator.alloc(nbytes, handle)
        except (lade.OutOfDeviceMemoryError, lade.LimitError) as error:
            raise OutOfMemoryError(nbytes, -1) from error
        # CuPy's memory holds the block, and a view of the array holds CuPy's memory.
        return pointer(memory(block.ptr, nbytes, (block, allocator), ordinal), 0)

    return lade_device_memory


class _PinnedMemory:
    """What CuPy expects behind a PinnedMemoryPointer: an address, a size, and that the block lives as long as this."""

    __slots__ = ("ptr", "size", "block")

    def __init__(self, block: Any, size: int) -> None:
        self.ptr = block.ptr
        self.size = size
        self.block = block


def _pinned_function(cupy: types.ModuleType, pools: PerDevice[lade.PinnedPool]) -> Callable[[int], Any]:
    """What cupy.cuda.set_pinned_memory_allocator() takes: bytes to PinnedMemoryPointer."""
    current_device, pointer, pool_of = cupy.cuda.runtime.getDevice, cupy.cuda.PinnedMemoryPointer, pools.get

    def lade_pinned_memory(nbytes: int) -> Any:
        return pointer(_PinnedMemory(pool_of(current_device()).empty(nbytes, "uint8"), nbytes), 0)

    return lade_pinned_memory


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
        if self._allocators is None:
            raise lade.UnsupportedError("device memory is CuPy's own: lade.cupy.install() was called with device=False")
        return self._allocators.get(ordinal)

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
        if self._pools is None:
            raise lade.UnsupportedError("pinned memory is CuPy's own: lade.cupy.install() was called with pinned=False")
        return self._pools.get(ordinal)

    def _put(self) -> None:
        """Sets both allocators, or none: CuPy refuses the first inside of using_allocator(), the second never."""
        cuda = self._cupy.cuda
        if self._function:
            self._before = cuda.get_allocator()
            cuda.set_allocator(self._function)
        if self._pools:
            cuda.set_pinned_memory_allocator(_pinned_function(self._cupy, self._pools))

    def _take(self) -> None:
        cuda = self._cupy.cuda
        if self._function and cuda.get_allocator() is self._function:  # else the program has set another one since
            cuda.set_allocator(self._before)
        if self._pools:
            cuda.set_pinned_memory_allocator(self._cupy.get_default_pinned_memory_pool().malloc)

    def uninstall(self) -> None:
        """Give CuPy its allocators back. Arrays made meanwhile live on; a second call does nothing.

        Device memory: the allocator that was there before, unless the program has set another one since. Pinned memory:
        CuPy's default pool, as CuPy does not tell what was there before.
        """
        global _current
        with _lock:
            if _current is self:
                self._take()
                _current = None
        _streams.retire_unused()

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *error: object) -> None:
        self.uninstall()


def _allocators(given: Any) -> PerDevice[lade.DeviceAllocator] | None:
    made = table(lambda ordinal: _streams.add_arena(lade.DeviceAllocator(lade.cuda_device(ordinal))), given, lade.DeviceAllocator, "device")
    for _, allocator in made.items() if made else ():
        _streams.add_arena(allocator)
    return made


def _pools(given: Any) -> PerDevice[lade.PinnedPool] | None:
    made = table(lambda ordinal: _streams.add_arena(lade.PinnedPool(lade.cuda_device(ordinal))), given, lade.PinnedPool, "pinned")
    for _, pool in made.items() if made else ():
        _streams.add_arena(pool)
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
    allocators, pools = _allocators(device), _pools(pinned)
    installation = Installation(cupy, allocators, pools)
    with _lock:
        if _current is not None:
            raise lade.BusyError("lade serves CuPy already: lade.cupy.uninstall() ends that")
        installation._put()
        _current = installation
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
    owner = getattr(getattr(getattr(array, "data", None), "mem", None), "_owner", None)
    if not (isinstance(owner, tuple) and len(owner) == 2 and isinstance(owner[0], lade.DeviceBuffer)):
        raise lade.ForeignPointerError(f"array is a {type(array).__name__} whose memory is not lade's; expected a CuPy array with memory of lade")
    block, allocator = owner
    if getattr(stream, "ptr", 0) not in _streams.held:
        _streams.hold(stream)
    allocator.record_stream(block, stream)
