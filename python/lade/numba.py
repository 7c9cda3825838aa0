# SPDX-License-Identifier: Apache-2.0
"""lade as Numba's external memory manager, for Numba's own CUDA target and for numba-cuda.

Either set ``NUMBA_CUDA_MEMORY_MANAGER=lade.numba`` in the environment, or call this before the first use of a device::

    import lade.numba
    lade.numba.install()

Device arrays, pinned arrays and mapped arrays then lie in lade's memory. ``cuda.pinned(array)`` and ``cuda.mapped(array)``, which
lock memory that the program has already, managed memory and write-combined memory stay Numba's own.

Streams. Numba does not say which stream an array is for. So an array may be used at once on any stream, and when it dies its block
waits for the work queued until then on the legacy default stream, which waits for all streams that Numba makes
(``cuda.stream()``). Streams that do not synchronise with the default stream (``cuda.external_stream()`` of others' streams,
``cuda.per_thread_default_stream()``) are not seen: keep such arrays until the work is done. Other than Numba's own free, this one
does not wait for the device.

``cuda.close()`` destroys the device's primary context with the memory of all libraries of the process, lade's runtime included; it
is not for programs that go on. Importing this module imports Numba.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import threading
import types
import weakref
from typing import Any, Callable, Iterator

import lade
from lade._third_party import require

__all__ = ["LadeMemoryManager", "install"]

_OLDEST = "0.57"
_NEEDED = {
    "numba.cuda": (
        "GetIpcHandleMixin HostOnlyCUDAMemoryManager MappedMemory MemoryInfo MemoryPointer PinnedMemory set_memory_manager"
    ).split()
}
_INTERFACE = 1


def _checked_cuda() -> types.ModuleType:
    require("numba", _OLDEST, _NEEDED)
    return importlib.import_module("numba.cuda")


_cuda = _checked_cuda()

_LEGACY = 1  # CUDA's handle of the legacy default stream


class LadeMemoryManager(_cuda.GetIpcHandleMixin, _cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc, name-defined]
    """The manager of one context of Numba; Numba makes it.

    I1  A block that Numba has is in `_blocks` under a key of its own, until its array dies or the context is reset.
    I2  While cleanup is deferred, blocks of dead arrays are in `_deferred` instead; the end of the outermost deferral frees them.
    I3  Every block is recorded on the legacy stream and belongs to `_stream`, on which nothing runs. So no block is handed out
        again before the work queued until its free is done, whatever stream asks next.
    Locks: `_lock` guards the three. It is taken again by the same thread where the collector runs a finalizer under it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock = threading.RLock()
        self._blocks: dict[object, Any] = {}
        self._deferred: list[Any] = []
        self._deferrals: set[object] = set()  # one for each part that is open
        self._allocator: lade.DeviceAllocator | None = None
        self._pool: lade.PinnedPool | None = None
        self._stream: lade.Stream | None = None

    @property
    def interface_version(self) -> int:
        """Of Numba's interface of memory managers."""
        return _INTERFACE

    @property
    def allocator(self) -> lade.DeviceAllocator:
        """lade's allocator of the context's device: for statistics."""
        self.initialize()
        assert self._allocator is not None
        return self._allocator

    @property
    def pool(self) -> lade.PinnedPool:
        """lade's pool of pinned memory: for statistics."""
        self.initialize()
        assert self._pool is not None
        return self._pool

    def initialize(self) -> None:
        """Make the allocator and the pool, once. Numba calls it whenever it makes the context current."""
        if self._allocator is None:
            with self._lock:
                if self._allocator is None:
                    device = lade.cuda_device(self.context.device.id)
                    self._stream = device.stream()
                    self._pool = lade.PinnedPool(device)
                    self._allocator = lade.DeviceAllocator(device)

    def memalloc(self, size: int) -> Any:
        """Device memory for `size` bytes, usable on every stream."""
        allocator = self.allocator
        block = allocator.alloc(size, self._stream)
        allocator.record_stream(block, _LEGACY)
        return self._made(block, lambda let_go: _cuda.MemoryPointer(
            weakref.proxy(self.context), _device_pointer(block.ptr), size, finalizer=let_go))

    def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
        """Pinned memory. Write-combined memory, and what has no bytes, is Numba's own; lade's is always portable."""
        if wc or size == 0:
            return super().memhostalloc(size, mapped=mapped, portable=portable, wc=wc)
        block = self.pool.empty(size, "uint8")
        self.pool.record(block, _LEGACY)
        context, pointer, address = weakref.proxy(self.context), _host_pointer(block.ptr), block.ptr
        if not mapped:
            return self._made(block, lambda let_go: _cuda.PinnedMemory(context, pointer, size, finalizer=let_go))

        def owner(let_go: Callable[[], None]) -> Any:
            # Numba counts the owners of mapped memory, which hold it weakly: it stays in `allocations` until the last one is gone.
            memory = self.allocations[address] = _cuda.MappedMemory(context, pointer, size, finalizer=let_go)
            return memory.own()

        return self._made(block, owner, lambda: self.allocations.pop(address, None))

    def get_memory_info(self) -> Any:
        """Free and total bytes. Free is what the driver has left, and what lade keeps cached for further arrays."""
        allocator = self.allocator
        free, total = allocator.device_memory()
        usage = allocator.usage()
        return _cuda.MemoryInfo(free=min(total, free + usage["reserved_bytes"] - usage["active_bytes"]), total=total)

    def reset(self) -> None:
        """Free everything that arrays of this context still have, and give the caches back. The arrays are dead."""
        super().reset()
        with self._lock:
            blocks = list(self._blocks.values()) + self._deferred
            self._blocks.clear()
            self._deferred = []
        del blocks
        # What lies in the context goes before it: Numba may destroy it next. A later use makes them anew.
        self._allocator = self._pool = self._stream = None

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """Keep the blocks of arrays that die meanwhile until the end."""
        deferral = object()
        with super().defer_cleanup():
            try:
                self._deferrals.add(deferral)
                yield
            finally:
                try:
                    self._deferral_end(deferral)
                except BaseException:  # a signal's handler
                    self._deferral_end(deferral)
                    raise

    def _deferral_end(self, deferral: object) -> None:
        """Ends one that may have ended."""
        self._deferrals.discard(deferral)
        with self._lock:
            ready, self._deferred = ([], self._deferred) if self._deferrals else (self._deferred, [])
        del ready  # freed without the lock

    def _made(self, block: Any, make: Callable[[Callable[[], None]], Any], forget: Callable[[], object] = lambda: None) -> Any:
        """What `make` gives, which calls its argument when it dies, in any thread: that lets go of the block, and a later call does
        nothing. `forget` runs before the block goes back: the next array may get its address at once, on another thread."""
        key = object()

        def let_go() -> None:
            with self._lock:
                block = self._blocks.pop(key, None)
                if block is None:  # the context was reset meanwhile
                    return
                forget()
                if self._deferrals:
                    self._deferred.append(block)

        try:
            with self._lock:
                self._blocks[key] = block
            return make(let_go)
        except BaseException:
            let_go()
            raise


def _uses_binding() -> bool:
    """Whether Numba has addresses as NVIDIA's binding has them; else as ctypes."""
    return bool(getattr(_cuda.cudadrv.driver, "USE_NV_BINDING", True))


def _device_pointer(address: int) -> Any:
    return _cuda.cudadrv.driver.binding.CUdeviceptr(address) if _uses_binding() else ctypes.c_void_p(address)


def _host_pointer(address: int) -> Any:
    return address if _uses_binding() else ctypes.c_void_p(address)


def install() -> None:
    """Let lade be the manager of all contexts that Numba makes from now on.

    Raises
    ------
    lade.BusyError
        Numba has made a context already: then its memory is Numba's own.
    RuntimeError
        Numba's interface of memory managers has another version.
    """
    devices = _cuda.cudadrv.driver.driver.list_devices()
    if any(device.primary_context is not None for device in devices):
        raise lade.BusyError("Numba has made a context already; install lade before the first use of a device")
    _cuda.set_memory_manager(LadeMemoryManager)


# The name that NUMBA_CUDA_MEMORY_MANAGER looks for.
_numba_memory_manager = LadeMemoryManager
