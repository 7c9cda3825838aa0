# SPDX-License-Identifier: Apache-2.0
"""lade in PyTorch 2.8 to 2.15: pinned memory, device memory, checkpoints, offloading.

``install_pinned()`` lets lade serve every pinned allocation of PyTorch: ``tensor.pin_memory()``,
``torch.empty(pin_memory=True)``, ``DataLoader(pin_memory=True)``, and what copies with ``non_blocking=True`` record.
``install_device()`` makes lade the allocator of device memory; ``mempool_allocator()`` gives one for a ``torch.cuda.MemPool``.
``load()`` reads a checkpoint, ``offload()`` lets a module run that is larger than the device's memory.

Each minor version of PyTorch has a native part of its own in this package. Other versions are refused by name, and so is
what a version cannot do; nothing is installed then.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

try:
    import torch  # type: ignore[import-not-found,unused-ignore]
except ImportError as _missing:
    raise ImportError(f"lade.torch needs PyTorch 2.8 to 2.15, which cannot be imported: {_missing}") from _missing

import lade
from lade import _lade
from lade._arguments import take

if TYPE_CHECKING:
    from lade.torch.offloading import Offload

__all__ = [
    "SleepPool",
    "device_allocator",
    "device_is_installed",
    "device_stats",
    "install_device",
    "install_pinned",
    "load",
    "load_file",
    "mempool_allocator",
    "offload",
    "pinned",
    "pinned_is_installed",
    "pinned_pool",
    "uninstall",
    "uninstall_pinned",
]

_FIRST_MINOR, _LAST_MINOR = 8, 15
_TEXT_BYTES = 2048
_MOST_POOLS = 8  # as many as the router has deleters for
_PREVIOUS = -1  # the index of PyTorch's own host allocator among the sources

_lock = threading.RLock()


# ---- The native part -------------------------------------------------------------------------------------------------


def _minor() -> int:
    """The minor version of PyTorch 2, or a refusal by name."""
    version = str(torch.__version__)
    release = re.fullmatch(r"2\.(\d+)\.\d+(\+[\w.]+)?", version)
    if release is None or not _FIRST_MINOR <= int(release[1]) <= _LAST_MINOR:
        raise lade.UnsupportedError(
            f"this is PyTorch {version}; lade.torch knows the releases 2.{_FIRST_MINOR} to 2.{_LAST_MINOR}, "
            "whose interfaces differ"
        )
    return int(release[1])


def _check_build() -> None:
    version = torch.__version__
    if torch.version.hip is not None:
        raise lade.UnsupportedError(f"this is PyTorch {version} for ROCm {torch.version.hip}; lade.torch needs CUDA")
    if torch.version.cuda is None:
        raise lade.UnsupportedError(
            f"this is PyTorch {version} without CUDA, which pins no memory; lade.torch's allocators need a build with it, load() does not"
        )
    if not torch.compiled_with_cxx11_abi():
        raise lade.UnsupportedError(f"this PyTorch {version} was built with the C++ ABI of before 2011")


def _declare(library: ctypes.CDLL) -> None:
    text: list[Any] = [ctypes.c_char_p, ctypes.c_size_t]
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.lade_torch_library.restype = pointer
    library.lade_torch_pinned_install.argtypes = [pointer, pointer, number, *text]
    library.lade_torch_pinned_serve.argtypes = [number]
    library.lade_torch_pinned_serve.restype = None
    library.lade_torch_pinned_refused_frees.restype = ctypes.c_uint64
    library.lade_torch_software_stream.argtypes = [pointer]
    library.lade_torch_software_stream.restype = None
    library.lade_torch_device_configure.argtypes = [ctypes.c_char_p, ctypes.c_char_p, *text]
    library.lade_torch_device_install.argtypes = [ctypes.c_char_p, ctypes.c_char_p, *text]
    library.lade_torch_device_settings.argtypes = [ctypes.c_char_p, *text]
    library.lade_torch_device_allocator.argtypes = [number]
    library.lade_torch_device_allocator.restype = pointer
    library.lade_torch_device_lend.argtypes = [number, ctypes.POINTER(pointer), *text]
    library.lade_torch_device_stats.argtypes = [number, _Visit, pointer, *text]
    library.lade_torch_device_refused_frees.restype = ctypes.c_uint64


_Visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p)


def _native_path(minor: int) -> str:
    return os.path.join(os.path.dirname(__file__), f"_torch_2_{minor}.so")


@functools.cache
def _native() -> ctypes.CDLL:
    """The native part for this PyTorch. Its functions run without the interpreter's lock."""
    minor = _minor()
    _check_build()
    path = _native_path(minor)
    if not os.path.exists(path):
        without = "" if torch.cuda.is_available() else ". It serves GPUs alone, and PyTorch sees none here"
        raise lade.UnsupportedError(
            f"this build of lade has no native part for PyTorch 2.{minor}: {os.path.basename(path)} is missing. In a clone of lade, "
            f"`{sys.executable} -m pip install --force-reinstall --no-deps ./python` builds it for this PyTorch{without}"
        )
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise lade.UnsupportedError(f"lade's native part for PyTorch 2.{minor} does not fit this PyTorch: {error}") from None
    _declare(library)
    if library.lade_torch_minor() != minor:
        raise lade.UnsupportedError(f"{path} is for PyTorch 2.{library.lade_torch_minor()}; this is {torch.__version__}")
    if not library.lade_torch_library_fits():
        raise lade.UnsupportedError(f"{path} was linked with an older liblade than it needs: another copy was loaded first")
    return library


def _call(function: Any, *arguments: Any) -> int:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    result: int = function(*arguments, text, _TEXT_BYTES)
    if result < 0:
        raise lade.UnsupportedError(text.value.decode(errors="replace").removeprefix("lade: "))
    return result


# ---- Pinned memory ---------------------------------------------------------------------------------------------------


class _Serving:
    """Who serves PyTorch's pinned allocations: the newest open ``with pinned()``, else what was installed last.

    A signal's handler may raise where a function begins and behind every call: who changes `base` or `scopes` puts them back then, and
    applies what they say. So the native part, which lets a new pool serve at once, agrees with them again.
    """

    def __init__(self) -> None:
        self.native: Any = None  # once it was asked to install
        self.base = _PREVIOUS
        self.scopes: list[_Scope] = []
        self.pools: dict[int, lade.PinnedPool] = {}  # by index of the source; kept for ever, as their blocks may be

    def index(self) -> int:
        newest = self.scopes[-1:]  # one step: leave() takes from the list without the lock
        return newest[0].index if newest else self.base

    def apply(self) -> None:
        if self.native is not None:
            self.native.lade_torch_pinned_serve(self.index())

    def install(self, pool: lade.PinnedPool) -> int:
        for index, known in self.pools.items():
            if known is pool:
                return index
        if len(self.pools) == _MOST_POOLS:
            raise lade.UnsupportedError(
                f"PyTorch has had {_MOST_POOLS} pools in this process, which all stay: install one of these again"
            )
        native = _native()
        handle, runtime, is_software, library = pool._lend()
        if native.lade_torch_library() != library:
            raise lade.UnsupportedError("two copies of liblade are loaded: the pool is of the other one")
        self.native = native
        index = _call(native.lade_torch_pinned_install, handle, runtime, int(is_software))
        self.pools[index] = pool
        return index

    def put_back(self, index: int | None, before: int) -> None:
        """Ends an installation that did not come to its end, unless another one came after it."""
        with _lock:
            if self.base == index:
                self.base = before
            self.apply()

    def leave(self, scope: _Scope) -> None:
        """Takes a scope away that may not be there. First from the list: a wait for the lock may be interrupted."""
        if scope in self.scopes:
            self.scopes.remove(scope)
        with _lock:
            self.apply()


class _Scope:
    index = _PREVIOUS


_serving = _Serving()
# By device and options; with the device, so that no other one gets its id().
_default_pools: dict[tuple[Any, str], tuple[Any, lade.PinnedPool]] = {}


def _pool_from(pool: lade.PinnedPool | None, device: Any, options: dict[str, Any]) -> lade.PinnedPool:
    if pool is not None:
        if not isinstance(pool, lade.PinnedPool):
            raise TypeError(f"pool is a {type(pool).__name__}; expected a lade.PinnedPool")
        if device is not None or options:
            raise TypeError("a pool has its device and options already: give either pool or these")
        return pool
    if device is None:
        device = torch.cuda.current_device()
    name = id(device) if isinstance(device, lade.Device) else str(device)
    key = (name, repr(sorted(options.items())))
    if key not in _default_pools:
        _default_pools[key] = (device, lade.PinnedPool(device, **options))
    return _default_pools[key][1]


def install_pinned(pool: lade.PinnedPool | None = None, *, device: Any = None, **options: Any) -> lade.PinnedPool:
    """Let lade serve PyTorch's pinned allocations from now on, in all threads of this process.

    Blocks that PyTorch's own allocator has handed out stay with it. The allocator that is installed is a router, which stays
    until the process ends, as do the pools: see ``uninstall_pinned()``. A call with other settings lets another pool serve,
    at most eight in a process.

    Not reached: ``torch.cuda.cudart().cudaHostRegister()``, and what NCCL pins for itself.

    Parameters
    ----------
    pool : lade.PinnedPool, optional
        The pool to serve from, of a GPU. It stays open for ever. Default: a new one, or that of an earlier call with the
        same settings.
    device : int or str or torch.device, optional
        The GPU whose NUMA node memory is near to. Default: PyTorch's current one. Where the machine's GPUs are near
        different nodes, memory is near the device that is current at each allocation.
    **options
        Options of ``lade.PinnedPool``: ``max_bytes``, ``segment_bytes``, ``background`` and so on.

    Returns
    -------
    lade.PinnedPool
        The pool that serves, for ``stats()``, ``trim()`` and ``reserve()``. PyTorch shows the same figures by
        ``torch.cuda.host_memory_stats()``.

    Raises
    ------
    lade.UnsupportedError
        This PyTorch is not one that lade knows, or another library keeps its host allocator. Nothing is installed.
    lade.Error
        The pool cannot be made.
    """
    index, before = None, _PREVIOUS
    try:
        with _lock:
            _native()
            served = _pool_from(pool, device, options)
            before = _serving.base
            index = _serving.install(served)
            _serving.base = index
            _serving.apply()
            return served
    except BaseException:
        _serving.put_back(index, before)
        raise


def uninstall_pinned() -> None:
    """Let PyTorch's own allocator serve pinned allocations again.

    Tensors in memory of lade stay valid, and their streams go on to be recorded: the router that ``install_pinned()`` has put in
    place stays, because PyTorch's allocator knows nothing of these blocks. Does nothing where lade is not installed.
    """
    with _lock:
        if not _serving.pools:
            return
        _serving.base = _PREVIOUS
        try:
            _serving.apply()
        except BaseException:
            _serving.apply()
            raise


uninstall = uninstall_pinned


@contextlib.contextmanager
def pinned(pool: lade.PinnedPool | None = None, *, device: Any = None, **options: Any) -> Iterator[lade.PinnedPool]:
    """Let lade serve PyTorch's pinned allocations in a part of a program, in all threads.

    Of several such parts that are open, in whatever threads, the one opened last serves. ``install_pinned()`` and
    ``uninstall_pinned()`` take effect behind the last one. Parameters and errors: as ``install_pinned()``.

    Yields
    ------
    lade.PinnedPool
        The pool that serves.
    """
    scope = _Scope()
    try:
        with _lock:
            _native()
            served = _pool_from(pool, device, options)
            scope.index = _serving.install(served)
            _serving.scopes.append(scope)
            _serving.apply()
        yield served
    finally:
        try:
            _serving.leave(scope)
        except BaseException:
            _serving.leave(scope)
            raise


def pinned_pool() -> lade.PinnedPool | None:
    """The pool that serves PyTorch's pinned allocations at the moment; None: PyTorch's own allocator does."""
    with _lock:
        return _serving.pools.get(_serving.index()) if _serving.pools else None


def pinned_is_installed() -> bool:
    """Whether lade serves PyTorch's pinned allocations at the moment."""
    return pinned_pool() is not None


# ---- Device memory ---------------------------------------------------------------------------------------------------

_device_native: Any = None  # once it was asked to install; it knows whether it has

# PyTorch's setters of allocator settings, which change with its versions.
_SETTERS = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")


def _check_settings(settings: str) -> None:
    if "\0" in settings:
        raise lade.InvalidArgumentError(f"settings is {settings!r}; expected a str without null characters")


@functools.cache
def _follow_settings() -> None:
    """What PyTorch's setters are told holds for lade, too: PyTorch keeps settings outside of its allocators."""
    for name in _SETTERS:
        setter = getattr(torch._C, name, None)
        if setter is None:
            continue

        @functools.wraps(setter)
        def both(env: str, *, _setter: Any = setter) -> Any:
            result = _setter(env)  # refuses what is wrong
            if device_is_installed():
                _call(_native().lade_torch_device_settings, env.encode())
            return result

        setattr(torch._C, name, both)


def install_device(settings: str = "") -> None:
    """Make lade the allocator of PyTorch's device memory, for the whole process.

    To be called before anything uses the GPU: PyTorch replaces no allocator that has begun to work. There is no way back.
    All that PyTorch asks of its own allocator it asks of lade from then on: statistics, snapshots, histories, graph captures,
    ``torch.cuda.MemPool``, checkpoints of pools (the graph trees of ``torch.compile(mode="reduce-overhead")``), CUDA IPC.

    Parameters
    ----------
    settings : str
        Settings of the device cache, as PYTORCH_CUDA_ALLOC_CONF is written: ``"expandable_segments:True"``. They come on top of those
        of the environment (``LADE_ALLOC_CONF``, else PyTorch's variables).

    Raises
    ------
    lade.UnsupportedError
        This PyTorch is not one that lade knows, or has begun to use its own allocator; or a setting is wrong. Nothing is installed.
    """
    global _device_native
    take("settings", settings, str, "a str")
    _check_settings(settings)
    with _lock:
        if device_is_installed():
            raise lade.UnsupportedError("lade is PyTorch's device allocator already")
        _device_native = _native()
        if torch.cuda.is_initialized():
            raise lade.UnsupportedError(
                "PyTorch has initialised CUDA and its allocator, which cannot be replaced any more: call "
                "lade.torch.install_device() before anything uses the GPU"
            )
        _follow_settings()
        _call(_device_native.lade_torch_device_install, b"cuda", settings.encode())


def device_is_installed() -> bool:
    """Whether lade is the allocator of PyTorch's device memory."""
    return _device_native is not None and bool(_device_native.lade_torch_device_is_installed())


_device_allocators: dict[int, lade.DeviceAllocator] = {}  # by device, kept for ever


def device_allocator(device: Any = None) -> lade.DeviceAllocator:
    """The allocator that serves PyTorch's memory of a device under ``install_device()``, for lade's own calls: ``lade.graphs.Tree``.

    Parameters
    ----------
    device : int or torch.device, optional
        Default: PyTorch's current one.

    Returns
    -------
    lade.DeviceAllocator
        The same one each time; it stays open until the process ends.

    Raises
    ------
    lade.UnsupportedError
        lade is not PyTorch's device allocator, or the device cannot be used.
    """
    if not device_is_installed():
        raise lade.UnsupportedError("lade is not PyTorch's device allocator; expected lade.torch.install_device() at the program's begin")
    return _allocator_of(_ordinal(device))


def _allocator_of(ordinal: int) -> lade.DeviceAllocator:
    with _lock:
        if ordinal not in _device_allocators:
            parts = (ctypes.c_void_p * 3)()
            _call(_native().lade_torch_device_lend, ordinal, parts)
            allocator, runtime, library = (part or 0 for part in parts)
            _device_allocators[ordinal] = _lade._allocator_of_module(allocator, runtime, ordinal, library)
    return _device_allocators[ordinal]


def _ordinal(device: Any) -> int:
    ordinal = device if isinstance(device, int) else None if device is None else torch.device(device).index
    return torch.cuda.current_device() if ordinal is None else ordinal  # type: ignore[no-any-return]


@functools.cache
def _segment_allocator() -> Any:
    """What MemPool takes. It holds no reference to it, so that it must live until the process ends."""
    path = _native_path(_minor())
    return torch.cuda.memory.CUDAPluggableAllocator(path, "lade_torch_segment_alloc", "lade_torch_segment_free")._allocator


def mempool_allocator(settings: str | None = None) -> Any:
    """An allocator for a pool of PyTorch: ``torch.cuda.MemPool(lade.torch.mempool_allocator())``.

    PyTorch's own allocator takes the pool's segments from lade and cuts them up; statistics, snapshots and graphs are PyTorch's.
    A segment goes back after a wait for its device, as by cudaFree. Where lade is PyTorch's allocator (``install_device()``) pools are
    lade's as they are, and this is None.

    Parameters
    ----------
    settings : str, optional
        As of ``install_device()``. They hold for all such allocators and cannot be changed once one has memory.

    Raises
    ------
    lade.UnsupportedError
        This PyTorch is not one that lade knows, or settings come too late.
    """
    take("settings", settings, str, "a str", optional=True)
    _check_settings(settings or "")
    with _lock:
        if device_is_installed():
            if settings is not None:
                raise lade.UnsupportedError("lade is PyTorch's device allocator already: its settings hold for pools, too")
            return None
        if settings is not None or not _native().lade_torch_device_is_configured():
            _call(_native().lade_torch_device_configure, b"cuda", (settings or "").encode())
        return _segment_allocator()


class SleepPool(lade.SleepPool):
    """Tensors by tags whose device memory goes back while the program sleeps: lade.SleepPool for PyTorch.

    What a thread allocates within ``with pool.use(tag)`` is the tag's, in a ``torch.cuda.MemPool`` of its own. Tensors keep their addresses,
    so CUDA graphs that use them can be launched after the resume; between ``suspend()`` and the return of ``resume()`` nothing may touch
    them. They may be dropped at any time.

    Under ``install_device()`` the pools are lade's, and graphs can have their memory in one: ``torch.cuda.graph(graph,
    pool=pool.mem_pool("graphs").id)``. Without, PyTorch's allocator takes the pools' segments from lade; a capture within
    ``use()`` gets no new segment then.

    Parameters
    ----------
    device : int or torch.device, optional
        Default: PyTorch's current one.

    Raises
    ------
    lade.UnsupportedError
        This PyTorch is not one that lade knows; or ``install_device()`` or ``mempool_allocator()`` was called without
        ``"expandable_segments:True"``.
    """

    def __init__(self, device: Any = None) -> None:
        self._ordinal = _ordinal(device)
        self._segments: Any = None  # what MemPool takes
        with _lock:
            if not device_is_installed():
                settings = None if _native().lade_torch_device_is_configured() else "expandable_segments:True"
                self._segments = mempool_allocator(settings)
        self._mem_pools: dict[str, Any] = {}
        super().__init__(_allocator_of(self._ordinal))

    def _make(self, tag: str) -> Any:
        with torch.cuda.device(self._ordinal):
            self._mem_pools[tag] = torch.cuda.MemPool(self._segments)
        own = self._mem_pools[tag].id if self._segments is None else None
        return _lade._DevicePool(self._allocator, own)

    def mem_pool(self, tag: str = "default") -> Any:
        """The ``torch.cuda.MemPool`` of a tag, which is made if it is new."""
        self._pool(tag)
        return self._mem_pools[tag]

    @contextlib.contextmanager
    def use(self, tag: str = "default") -> Iterator[SleepPool]:
        """As lade.SleepPool.use(), for PyTorch's allocations of this thread on the pool's device."""
        with contextlib.ExitStack() as stack:
            if self._segments is not None:
                stack.enter_context(super().use(tag))
            stack.enter_context(torch.cuda.use_mem_pool(self.mem_pool(tag), device=self._ordinal))
            yield self

    def close(self) -> None:
        """As lade.SleepPool.close(), for tensors."""
        super().close()
        self._mem_pools.clear()


def offload(
    module: Any,
    *,
    resident_bytes: int,
    ahead: int = 1,
    layers: Any = None,
    device: Any = None,
    pool: lade.PinnedPool | None = None,
    group: Any = None,
) -> Offload:
    """Let a module run whose parameters are more than the device's memory: layers wait in pinned memory, and are fetched ahead.

    What fits stays on the device. The other layers share as much memory as ``ahead + 1`` of them, and each has the same addresses whenever it
    runs: CUDA graphs may be captured. Where all fits, the module is as after ``module.to(device)``. See docs/offload.md.

    ``torch.compile()`` comes after it, without ``fullgraph=True``. Gradients of or through layers that are fetched are refused.

    Parameters
    ----------
    module : torch.nn.Module
        On the host, or on a GPU; it is changed in place. Its own forward is called, or those of the layers.
    resident_bytes : int
        Device memory that parameters and buffers may take, all together.
    ahead : int
        How many layers are fetched while one runs, at most: 1 to 64.
    layers : iterable of torch.nn.Module, optional
        Submodules that are each called as a whole. Default: the entries of the outermost ``nn.ModuleList`` and ``nn.Sequential``. What they
        share, and what is in none of them, stays on the device, as all buffers do.
    device : int or str or torch.device or lade.Device, optional
        Default: PyTorch's current GPU. ``lade.software_device()`` needs none.
    pool : lade.PinnedPool, optional
        Where layers wait, each in a block of its size. Default: a new pool.
    group : torch.distributed.ProcessGroup, optional
        Ranks of one host, whose modules are the same: their fetched layers wait in one piece of memory, which the pools pin. All of them
        call it, and it fails in all or in none.

    Returns
    -------
    lade.torch.offloading.Offload
        To ``close()`` when the module is used otherwise.

    Raises
    ------
    lade.InvalidArgumentError
        Also for too few bytes; the text says how many are needed.
    lade.UnsupportedError
        A parameter that is not plain, a module that was compiled before.
    lade.LimitError, lade.OutOfPinnedMemoryError, torch.OutOfMemoryError
        There is too little memory; the module is as it was.
    """
    from lade.torch.offloading import Offload  # it brings in torch.compiler

    return Offload(module, resident_bytes=resident_bytes, ahead=ahead, layers=layers, device=device, pool=pool, group=group)


def device_stats(device: Any = None) -> dict[str, int]:
    """Statistics of lade's allocator of a device, by the names of ``torch.cuda.memory_stats()`` and lade's own.

    Parameters
    ----------
    device : int or torch.device, optional
        Default: PyTorch's current one.

    Returns
    -------
    dict[str, int]
        All 0 while lade has given out no memory there.
    """
    stats: dict[str, int] = {}

    def visit(key: bytes, value: int, _user: object) -> int:
        stats[key.decode()] = value
        return 0

    _call(_native().lade_torch_device_stats, _ordinal(device), _Visit(visit), None)
    return stats


# ---- Checkpoints -----------------------------------------------------------------------------------------------------


def load(path: Any, device: Any = "cpu", **options: Any) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file, or of the files that an index names: ``lade.safetensors.load_file``.

    Stands in for ``safetensors.torch.load_file(path, device)`` in programs that load models. It takes the options of that function:
    ``local_ranks`` under torchrun, for example.
    """
    from lade.safetensors import load_file as load_tensors

    return load_tensors(path, device=str(device) if isinstance(device, torch.device) else device, **options)


load_file = load
