# SPDX-License-Identifier: Apache-2.0
"""Small doubles of CuPy, RMM and Numba, for machines without them: what their documents say of the interfaces that lade uses.

Where the real package can be imported, the same tests run over it too, with its current device and stream replaced.
"""

import contextlib
import ctypes
import sys
import threading
import types
import weakref


class Stream:
    """A stream as CuPy has it: its handle is `ptr`."""

    def __init__(self, handle=0):
        self.ptr = handle

    def __cuda_stream__(self):
        return (0, self.ptr)


def _module(name, **members):
    module = types.ModuleType(name)
    vars(module).update(members)
    return module


# --- CuPy -------------------------------------------------------------------------------------------------------------------


class CupyStream(Stream):
    """A stream that CuPy made, which it destroys with the object."""

    def __init__(self, stream, log):
        super().__init__(stream.handle)
        self._stream, self._log = stream, log

    def __del__(self):
        self._log.append(("destroyed", self.ptr))


class CupyOutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size:,} bytes")


class BaseMemory:
    """Its address, size and device: a class of Python has them in no fixed place."""


class UnownedMemory(BaseMemory):
    def __init__(self, ptr, size, owner, device_id=-1):
        assert device_id >= 0, "the real one asks the driver then"
        self.ptr, self.size, self._owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem, offset):
        assert mem.ptr != 0 or offset == 0
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id


class PinnedMemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset

    def size(self):
        return self.mem.size - (self.ptr - self.mem.ptr)


def _own_device_memory(nbytes):
    return MemoryPointer(UnownedMemory(0, 0, None, 0), 0)


class _PinnedPool:
    def malloc(self, nbytes):
        block = ctypes.create_string_buffer(nbytes)
        return PinnedMemoryPointer(types.SimpleNamespace(ptr=ctypes.addressof(block), size=nbytes, block=block), 0)


def cupy():
    """Modules by name, of a CuPy of its own."""
    local = threading.local()
    pool = _PinnedPool()
    state = types.SimpleNamespace(device=_own_device_memory, pinned=pool.malloc)

    def get_allocator():
        return getattr(local, "allocator", None) or state.device

    def set_allocator(allocator=None):
        if getattr(local, "allocator", None) is not None:
            raise ValueError("Can't change the global allocator inside `using_allocator` context manager")
        state.device = allocator or _own_device_memory

    def alloc(nbytes):
        memory = get_allocator()(nbytes)
        if not isinstance(memory, MemoryPointer):
            raise TypeError(f"Cannot convert {type(memory).__name__} to cupy.cuda.memory.MemoryPointer")
        return memory

    def set_pinned_memory_allocator(allocator=None):
        state.pinned = allocator or pool.malloc

    def alloc_pinned_memory(nbytes):
        memory = state.pinned(nbytes)
        if not isinstance(memory, PinnedMemoryPointer):
            raise TypeError(f"Cannot convert {type(memory).__name__} to cupy.cuda.pinned_memory.PinnedMemoryPointer")
        return memory

    @contextlib.contextmanager
    def using_allocator(allocator=None):
        local.allocator = allocator or _own_device_memory
        try:
            yield
        finally:
            local.allocator = None

    memory = _module("cupy.cuda.memory", BaseMemory=BaseMemory, OutOfMemoryError=CupyOutOfMemoryError)
    runtime = _module("cupy.cuda.runtime", getDevice=lambda: 0, getDeviceCount=lambda: 1, is_hip=False)
    cuda = _module(
        "cupy.cuda", memory=memory, runtime=runtime, UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer,
        PinnedMemoryPointer=PinnedMemoryPointer, set_allocator=set_allocator, get_allocator=get_allocator, alloc=alloc,
        set_pinned_memory_allocator=set_pinned_memory_allocator, alloc_pinned_memory=alloc_pinned_memory,
        using_allocator=using_allocator, get_current_stream=Stream, Stream=CupyStream,
    )
    package = _module("cupy", cuda=cuda, __version__="14.2.0", get_default_pinned_memory_pool=lambda: pool)
    return {module.__name__: module for module in (package, cuda, memory, runtime)}


def _capsule(function, signature, *types_of):
    """A function of C as Cython's modules offer it to each other. Function and name live as long as the program."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    _capsule.kept += [ctypes.PYFUNCTYPE(*types_of)(function), ctypes.create_string_buffer(signature.encode())]
    return new(ctypes.cast(_capsule.kept[-2], ctypes.c_void_p), ctypes.cast(_capsule.kept[-1], ctypes.c_char_p), None)


_capsule.kept = []


def cupy_offers(package):
    """Lets a double of CuPy offer its current device and stream to compiled modules, too."""
    cuda = package.cuda
    device = _capsule(lambda _: cuda.runtime.getDevice(), "int (int __pyx_skip_dispatch)", ctypes.c_int, ctypes.c_int)
    stream = _capsule(lambda: cuda.get_current_stream().ptr, "intptr_t (void)", ctypes.c_ssize_t)
    cuda.runtime.__pyx_capi__ = {"getDevice": device}
    cuda.stream = _module("cupy.cuda.stream", __pyx_capi__={"get_current_stream_ptr": stream})


# --- RMM --------------------------------------------------------------------------------------------------------------------


class CallbackMemoryResource:
    def __init__(self, allocate_func, deallocate_func):
        self._allocate, self._deallocate = allocate_func, deallocate_func

    def allocate(self, nbytes, stream=None):
        try:
            return self._allocate(nbytes, stream or Stream())
        except MemoryError as error:
            raise MemoryError(f"std::bad_alloc: out_of_memory: {error}") from None

    def deallocate(self, ptr, nbytes, stream=None):
        self._deallocate(ptr, nbytes, stream or Stream())


def rmm():
    stream = _module("rmm.pylibrmm.stream", Stream=Stream)
    pylibrmm = _module("rmm.pylibrmm", stream=stream)
    mr = _module("rmm.mr", CallbackMemoryResource=CallbackMemoryResource)
    package = _module("rmm", mr=mr, pylibrmm=pylibrmm, __version__="26.10.00")
    return {module.__name__: module for module in (package, pylibrmm, stream, mr)}


# --- Numba ------------------------------------------------------------------------------------------------------------------


class GetIpcHandleMixin:
    def get_ipc_handle(self, memory):
        raise NotImplementedError


class HostOnlyCUDAMemoryManager:
    def __init__(self, *args, **kwargs):
        if "context" not in kwargs:
            raise RuntimeError("Memory manager requires a context")
        self.context = kwargs.pop("context")
        self.allocations = {}
        self.deferred = 0

    def memhostalloc(self, size, mapped=False, portable=False, wc=False):
        return ("Numba's own", size)

    def mempin(self, owner, pointer, size, mapped=False):
        return ("Numba's own", pointer, size)

    def reset(self):
        self.allocations.clear()

    @contextlib.contextmanager
    def defer_cleanup(self):
        self.deferred += 1
        yield
        self.deferred -= 1


class NumbaMemoryPointer:
    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        self.context, self.device_pointer, self.size, self.refct = context, pointer, size, 1
        self._finalizer = weakref.finalize(self, finalizer)

    @property
    def device_pointer_value(self):
        return self.device_pointer.value

    def free(self):
        self._finalizer()


class NumbaPinnedMemory:
    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        self.context, self.host_pointer, self.size = context, pointer, size
        self._bufptr_ = pointer.value
        weakref.finalize(self, finalizer)


class _Owner:
    def __init__(self, memory):
        self._memory = weakref.proxy(memory)
        memory.refct += 1
        weakref.finalize(self, _Owner._let_go, self._memory)

    @staticmethod
    def _let_go(memory):
        with contextlib.suppress(ReferenceError):  # a reset has taken the memory before
            memory.refct -= 1
            if memory.refct == 0:
                memory.free()

    def __getattr__(self, name):
        return getattr(self._memory, name)


class NumbaMappedMemory(NumbaMemoryPointer):
    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        super().__init__(context, pointer, size, owner, finalizer)
        self.host_pointer, self._bufptr_, self.refct = pointer, pointer.value, 0

    def own(self):
        return _Owner(self)


class NumbaMemoryInfo:
    def __init__(self, free, total):
        self.free, self.total = free, total


def numba():
    managers = []

    def set_memory_manager(manager):
        assert manager(context=None).interface_version == 1
        managers.append(manager)

    driver = _module("numba.cuda.cudadrv.driver", USE_NV_BINDING=False, driver=types.SimpleNamespace(list_devices=list))
    cudadrv = _module("numba.cuda.cudadrv", driver=driver)
    cuda = _module(
        "numba.cuda", cudadrv=cudadrv, GetIpcHandleMixin=GetIpcHandleMixin, HostOnlyCUDAMemoryManager=HostOnlyCUDAMemoryManager,
        MemoryPointer=NumbaMemoryPointer, PinnedMemory=NumbaPinnedMemory, MappedMemory=NumbaMappedMemory,
        MemoryInfo=NumbaMemoryInfo, set_memory_manager=set_memory_manager, managers=managers,
    )
    package = _module("numba", cuda=cuda, __version__="0.61.0")
    return {module.__name__: module for module in (package, cuda, cudadrv, driver)}


@contextlib.contextmanager
def imported(modules, *of_lade):
    """These modules in place of whatever is imported; lade's modules named are imported anew, and forgotten afterwards."""
    prefix = next(iter(modules))
    hidden = [name for name in sys.modules if name == prefix or name.startswith(prefix + ".") or name in of_lade]
    kept = {name: sys.modules.pop(name) for name in hidden}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in [*modules, *of_lade]:
            sys.modules.pop(name, None)
        sys.modules.update(kept)
        for name in of_lade:  # `import lade.numba as module` looks at the package first
            package, _, attribute = name.rpartition(".")
            if name in kept:
                setattr(sys.modules[package], attribute, kept[name])
            else:
                vars(sys.modules[package]).pop(attribute, None)
