# SPDX-License-Identifier: Apache-2.0
"""lade.cupy, lade.rmm and lade.numba on a software device: over doubles, and over the real packages where they import."""

import _thread
import collections
import contextlib
import copy
import ctypes
import functools
import gc
import importlib
import operator
import pickle
import random
import sys
import threading
import time
import types
import weakref

import pytest

import conftest
import doubles
from interrupts import everywhere
import lade
from lade._third_party import PerDevice


def _real(name):
    """The package's modules as they are; skips where it cannot be imported."""
    pytest.importorskip(name)
    importlib.import_module(name)
    return {module: sys.modules[module] for module in [name]}


@pytest.fixture
def device():
    return lade.software_device(clock="cpu", device_count=2)


@pytest.fixture(params=["double", "offering double", "real"])
def cupy(request, device, monkeypatch):
    """CuPy over a software device: current device and stream are set by the test; they start as 0 and the default stream."""
    if request.param == "real":
        package = pytest.importorskip("cupy")
        modules = {"cupy": package}
    else:
        modules = doubles.cupy()
        package = modules["cupy"]
    with contextlib.ExitStack() as stack:
        if request.param != "real":
            stack.enter_context(doubles.imported(modules, "lade.cupy"))
        now = types.SimpleNamespace(device=0, stream=0)
        for module in (package.cuda.runtime, getattr(package.cuda, "stream", None)):
            monkeypatch.setattr(module, "__pyx_capi__", {}, raising=False) if module else None
        if request.param == "offering double":
            doubles.cupy_offers(package)
        monkeypatch.setattr(package.cuda.runtime, "getDevice", lambda: now.device)
        monkeypatch.setattr(package.cuda.runtime, "getDeviceCount", lambda: 2)
        current_stream = lambda: now.stream if hasattr(now.stream, "ptr") else doubles.Stream(now.stream)
        monkeypatch.setattr(package.cuda, "get_current_stream", current_stream)
        monkeypatch.setattr(package.cuda, "Stream", doubles.CupyStream)
        monkeypatch.setattr(lade, "cuda_device", device.sibling)
        import lade.cupy as module

        yield types.SimpleNamespace(package=package, cuda=package.cuda, lade=module, now=now)
        module.uninstall()


# --- CuPy -------------------------------------------------------------------------------------------------------------------


def test_device_memory_comes_from_lade_and_goes_back_with_the_array(cupy):
    with cupy.lade.install() as memory:
        pointer = cupy.cuda.alloc(1000)
        assert isinstance(pointer, cupy.cuda.MemoryPointer)
        allocator = memory.device(0)
        assert allocator.usage()["allocated_bytes"] == 1024
        assert pointer.mem.size == 1000 and pointer.mem.device_id == 0
        view = cupy.cuda.MemoryPointer(pointer.mem, 512)
        del pointer
        gc.collect()
        assert allocator.usage()["allocated_bytes"] == 1024, "a view holds the memory"
        del view
        gc.collect()
        assert allocator.usage()["allocated_bytes"] == 0


def test_memory_is_of_the_current_device_and_stream(cupy, device):
    first, second = device.sibling(0).stream(), device.sibling(1).stream()
    with cupy.lade.install() as memory:
        cupy.now.stream = first.handle
        kept = [cupy.cuda.alloc(4096)]
        cupy.now.device, cupy.now.stream = 1, second.handle
        kept += [cupy.cuda.alloc(8192), cupy.cuda.alloc_pinned_memory(10)]
        assert memory.device(0).usage()["allocated_bytes"] == 4096
        assert memory.device(1).usage()["allocated_bytes"] == 8192
        assert kept[1].device_id == 1
        assert memory.pinned(1).stats()["requested_bytes.current"] == 10
        assert memory.pinned(0).stats()["requested_bytes.current"] == 0


def test_the_only_device_is_asked_for_once(cupy, device, monkeypatch):
    """In a thread that has not set a device CUDA's runtime takes 2.4 us to say its number, eight times a pair of pinned memory."""
    asked = []
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 1)
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: asked.append(1) or 0)
    with cupy.lade.install():
        kept = [make(4096) for make in (cupy.cuda.alloc, cupy.cuda.alloc_pinned_memory) for _ in range(3)]
        assert len(kept) == 6
        assert len(asked) == 2


def test_a_block_is_reused_by_its_own_stream_alone(cupy, device):
    first, second = device.stream(), device.stream()
    with cupy.lade.install():
        cupy.now.stream = first.handle
        pointer = cupy.cuda.alloc(4096)
        address = pointer.mem.ptr
        del pointer
        cupy.now.stream = second.handle
        other = cupy.cuda.alloc(4096)
        assert other.mem.ptr != address
        cupy.now.stream = first.handle
        assert cupy.cuda.alloc(4096).mem.ptr == address


def test_a_recorded_stream_delays_the_reuse(cupy, device):
    own, other = device.stream(), device.stream()
    with cupy.lade.install():
        cupy.now.stream = own.handle
        pointer = cupy.cuda.alloc(4096)
        address = pointer.mem.ptr
        array = types.SimpleNamespace(data=pointer)
        other.soft_hold()
        cupy.lade.record_stream(array, doubles.Stream(other.handle))
        del array, pointer
        held = cupy.cuda.alloc(4096)
        assert held.mem.ptr != address
        other.soft_release()
        other.synchronize()


@pytest.fixture
def log(monkeypatch):
    """Notes the streams that are retired, and takes what else shall stand between."""
    noted, retire = [], lade.Device._retire_stream

    def noting(device, handle):
        done = retire(device, handle)
        if done:
            noted.append(("retired", handle))
        return done

    monkeypatch.setattr(lade.Device, "_retire_stream", noting)
    return noted


@pytest.fixture
def noting(cupy, device, log):
    """CuPy with an allocator, what becomes of streams in `log`, and `stream()`, which makes them as CuPy does."""
    allocator = lade.DeviceAllocator(device)
    native = []  # in the place of the driver's: they end after the test

    def stream():
        native.append(device.stream())
        return cupy.cuda.Stream(native[-1], log)

    with cupy.lade.install(device=allocator) as memory:
        yield types.SimpleNamespace(cupy=cupy, allocator=allocator, log=log, stream=stream, memory=memory, native=native)
        cupy.now.stream = 0
    gc.collect()


def _use(noting):
    """Allocates on a new stream of CuPy, which the program forgets. Returns its handle and the memory."""
    noting.cupy.now.stream = noting.stream()
    pointer = noting.cupy.cuda.alloc(4096)
    handle = noting.cupy.now.stream.ptr
    noting.cupy.now.stream = 0
    return handle, pointer


def test_a_stream_that_dies_before_its_array_is_retired_first(noting):
    handle, pointer = _use(noting)
    assert noting.log == [], "its array may still be used on it"
    other, _ = _use(noting)
    assert noting.log == [("retired", handle), ("destroyed", handle)]
    del pointer
    noting.allocator.empty_cache()
    assert noting.allocator.usage()["reserved_bytes"] > 0, "the other stream's"
    noting.memory.uninstall()
    assert noting.log[2:] == [("retired", other), ("destroyed", other)]


def test_a_stream_in_use_is_not_retired(noting):
    kept = noting.stream()
    noting.cupy.now.stream = kept
    address = noting.cupy.cuda.alloc(4096).ptr
    for _ in range(3):
        _use(noting)
    noting.cupy.now.stream = kept
    assert noting.cupy.cuda.alloc(4096).ptr == address
    noting.memory.uninstall()
    assert ("retired", kept.ptr) not in noting.log


def test_streams_made_in_a_loop_are_let_go(noting):
    handles = [_use(noting)[0] for _ in range(50)]
    ended = [handle for what, handle in noting.log if what == "destroyed"]
    assert ended == handles[:-1]
    for handle in ended:
        assert noting.log.index(("retired", handle)) < noting.log.index(("destroyed", handle))


def test_a_recorded_stream_is_retired_before_it_dies(noting):
    pointer = noting.cupy.cuda.alloc(4096)
    other = noting.stream()
    noting.native[-1].soft_hold()
    lade.fill_async(noting.allocator.device, (ctypes.c_char * 4096).from_address(pointer.ptr), 1, noting.native[-1])
    handle = other.ptr
    noting.cupy.lade.record_stream(types.SimpleNamespace(data=pointer), other)
    address = pointer.ptr
    del other, pointer
    assert noting.log == []
    noting.memory.uninstall()
    assert noting.log == [("retired", handle), ("destroyed", handle)]
    held = noting.allocator.alloc(4096)
    assert held.ptr != address, "work of the stream is still to come"
    noting.native[-1].soft_release()


def test_a_stream_that_cannot_be_retired_stays(noting, monkeypatch):
    handle, pointer = _use(noting)
    with monkeypatch.context() as patches:
        patches.setattr(lade.Device, "_retire_stream", lambda device, stream: False)
        _use(noting)
        noting.memory.uninstall()
    assert noting.log == []
    noting.cupy.lade.install(device=noting.allocator)
    _use(noting)
    assert noting.log[:2] == [("retired", handle), ("destroyed", handle)]
    del pointer


def test_a_stream_that_an_allocator_cannot_let_go_is_needed(device):
    allocator, stream = lade.DeviceAllocator(device), device.stream()
    allocator.alloc(4096, stream)
    device.soft_fault("stream_capture_info", 0)
    assert not device._retire_stream(stream.handle)
    device.soft_fault_clear()
    assert device._retire_stream(stream.handle) and device._retire_stream(stream.handle)


def test_streams_of_others_and_default_streams_are_not_held(noting, device):
    own = device.stream()
    for make in [lambda: doubles.Stream(own.handle), lambda: doubles.Stream(1), noting.stream]:
        stream = make()
        stream._foreign_stream_ref = own
        noting.cupy.now.stream = stream
        noting.cupy.cuda.alloc(4096)
        end = weakref.ref(stream)
        noting.cupy.now.stream = stream = None
        noting.cupy.now.stream = 0
        assert end() is None
    assert [what for what, _ in noting.log] == ["destroyed"], "from_external() gives an object of CuPy's own class"


def pinned_is_lades(cupy):
    """Whose pinned memory is. CuPy's own pool asks the driver, which is not there without a GPU."""
    try:
        memory = cupy.cuda.alloc_pinned_memory(10).mem
    except RuntimeError as error:
        assert type(error).__name__ == "CUDARuntimeError"
        return False
    return isinstance(getattr(memory, "_owner", memory), lade._lade._CupyBlock)


@pytest.mark.parametrize("call", ["set_allocator", "set_pinned_memory_allocator"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_install_leaves_nothing(cupy, monkeypatch, call, when):
    """Regression: a KeyboardInterrupt between the two left the first allocator in CuPy, where uninstall() did not know of it."""
    own, real, interrupts = cupy.cuda.get_allocator(), getattr(cupy.cuda, call), [KeyboardInterrupt]

    def interrupted(allocator=None):
        error = interrupts.pop() if interrupts else None
        if error is None or when == "after":
            real(allocator)
        if error is not None:
            raise error

    monkeypatch.setattr(cupy.cuda, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        cupy.lade.install()
    assert cupy.cuda.get_allocator() is own and cupy.lade.installed() is None
    assert not pinned_is_lades(cupy)
    with cupy.lade.install():
        assert cupy.cuda.get_allocator() is not own


def test_an_array_outlives_uninstall_and_the_allocator_ends_before_its_streams(cupy, device):
    log = []
    native = device.stream()
    stream = cupy.now.stream = cupy.cuda.Stream(native, log)
    memory = cupy.lade.install()
    pointer = cupy.cuda.alloc(4096)
    weakref.finalize(memory.device(0), log.append, "allocator")
    memory.uninstall()
    cupy.now.stream = memory = stream = None
    gc.collect()
    assert log == [], "the array's allocator knows the stream"
    del pointer
    gc.collect()
    assert log == ["allocator"]
    cupy.lade.uninstall()
    with cupy.lade.install():
        pass
    assert log == ["allocator", ("destroyed", native.handle)]


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_stream_outlives_the_end_of_an_allocator_in_another_thread(cupy, device, how):
    """Regression: an allocator that is being closed, which waits for the stream, was taken for one that is closed."""
    if how == "dropped":
        conftest.ends_in_the_dropping_thread()
    log, native, kept = [], device.stream(), [lade.DeviceAllocator(device)]
    with cupy.lade.install(device=kept[0], pinned=False) as memory:
        stream = cupy.now.stream = cupy.cuda.Stream(native, log)
        pointer = cupy.cuda.alloc(4096)
    native.soft_hold()
    lade.fill_async(device, (ctypes.c_char * 4096).from_address(pointer.ptr), 1, native)
    del memory, pointer
    gc.collect()
    thread = threading.Thread(target=kept[0].close if how == "closed" else kept.clear)
    thread.start()
    until = time.monotonic() + 60
    while device.soft_call_count("event_synchronize") == 0:
        assert time.monotonic() < until, "no wait for the held stream"
        time.sleep(0.001)
    stream = cupy.now.stream = None
    with cupy.lade.install():
        pass
    assert log == [] and thread.is_alive(), "the allocator still names the stream"
    native.soft_release()
    thread.join()
    with cupy.lade.install():
        pass
    assert log == [("destroyed", native.handle)]


def test_threads_with_streams_of_their_own(cupy, device, log, monkeypatch):
    allocator = lade.DeviceAllocator(device)
    local, native, errors = threading.local(), [], []
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: getattr(local, "stream", None) or doubles.Stream())

    def work():
        try:
            for _ in range(30):
                own = device.stream()
                native.append(own)  # whose last item may be another thread's by now
                local.stream = cupy.cuda.Stream(own, log)
                memory = [cupy.cuda.alloc(4096 * (1 + number)) for number in range(5)]
                again = cupy.cuda.alloc(1 << 20)
                address = again.ptr
                del again
                assert cupy.cuda.alloc(1 << 20).ptr == address, "a stream in use is not retired"
                del memory
        except BaseException as error:  # shown below
            errors.append(error)

    with cupy.lade.install(device=allocator):
        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        del threads
        gc.collect()
    assert errors == []
    ended = [handle for what, handle in log if what == "destroyed"]
    assert len(ended) == len(set(ended)) == len(native) == 120
    for handle in ended:
        assert log.index(("retired", handle)) < log.index(("destroyed", handle))


@pytest.mark.parametrize("kind, name", [("device", "MemoryPointer"), ("pinned", "PinnedMemoryPointer")])
def test_what_fails_behind_the_allocation_gives_the_block_back(cupy, monkeypatch, kind, name):
    def refuse(*arguments):
        assert arguments
        raise KeyError("refused")

    monkeypatch.setattr(cupy.cuda, name, refuse)
    with cupy.lade.install() as memory:
        with pytest.raises(KeyError, match="refused"):
            (cupy.cuda.alloc if kind == "device" else cupy.cuda.alloc_pinned_memory)(4096)
        assert memory.device(0).usage()["allocated_bytes"] == 0
        assert memory.pinned(0).stats()["in_use_blocks.current"] == 0


@pytest.mark.parametrize("name, answer", [("device", ValueError), ("device", "x"), ("device", -1), ("device", None), ("stream", ValueError),
                                          ("stream", object()), ("stream", types.SimpleNamespace(ptr="x"))])
def test_what_cupy_says_wrongly_is_an_error(cupy, monkeypatch, name, answer):
    if cupy.cuda.runtime.__pyx_capi__:
        pytest.skip("ctypes drops what a function raises that C calls")

    def wrong():
        if answer is ValueError:
            raise answer("no device")
        return answer

    monkeypatch.setattr(*((cupy.cuda.runtime, "getDevice") if name == "device" else (cupy.cuda, "get_current_stream")), wrong)
    with cupy.lade.install() as memory:
        with pytest.raises((ValueError, TypeError, OverflowError, AttributeError)):
            cupy.cuda.alloc(4096)
        assert memory.device(0).usage()["allocated_bytes"] == 0


@pytest.mark.parametrize("nbytes", [-1, 1 << 63, 1 << 64, 1.5, "10", None])
def test_wrong_sizes_are_refused(cupy, monkeypatch, nbytes):
    functions = []
    monkeypatch.setattr(cupy.cuda, "set_allocator", functions.append)
    monkeypatch.setattr(cupy.cuda, "set_pinned_memory_allocator", functions.append)
    with cupy.lade.install():
        for function in functions[:2]:
            with pytest.raises(lade.InvalidArgumentError, match="nbytes is"):
                function(nbytes)


def test_blocks_leave_nothing_behind(cupy):
    """Not even a count of their class; their figures are read-only, and only lade makes them."""
    kind = lade._lade._CupyBlock
    with cupy.lade.install():
        cupy.cuda.alloc(4096), cupy.cuda.alloc_pinned_memory(4096)
        count = sys.getrefcount(kind)
        kept = [cupy.cuda.alloc_pinned_memory(4096) for _ in range(100)]
        assert isinstance(kept[0].mem, kind) and sys.getrefcount(kind) == count + 100
        with pytest.raises(AttributeError):
            kept[0].mem.ptr = 1
        kept.clear()
        assert sys.getrefcount(kind) == count
    with pytest.raises(TypeError):
        kind()


def base_memory():
    return sys.modules["cupy.cuda.memory"].BaseMemory


@pytest.mark.parametrize("ordinal, nbytes", [(0, 4096), (1, 1), (0, 0), (1, (1 << 32) + 1)])
def test_device_memory_is_of_cupys_class(cupy, ordinal, nbytes):
    """What CuPy reads of it, of compiled classes by their members, of others by name."""
    cupy.now.device = ordinal
    with cupy.lade.install(pinned=False) as memory:
        pointer = cupy.cuda.alloc(nbytes)
        assert isinstance(pointer.mem, base_memory()) and (pointer.mem.size, pointer.mem.device_id) == (nbytes, ordinal)
        assert pointer.ptr == pointer.mem.ptr and pointer.device_id == ordinal
        assert memory.device(ordinal).usage()["allocated_bytes"] >= nbytes and (pointer.ptr != 0) == (nbytes != 0)
        kind = type(pointer.mem)
        count = sys.getrefcount(kind)
        kept = [cupy.cuda.alloc(512) for _ in range(100)]
        assert sys.getrefcount(kind) == count + 100
        kept.clear()
        assert sys.getrefcount(kind) == count
        with pytest.raises(TypeError):
            kind()


def test_a_copy_of_device_memory_owns_nothing(cupy):
    with cupy.lade.install() as memory:
        pointer = cupy.cuda.alloc(4096)
        try:
            copied = copy.copy(pointer.mem)
        except TypeError:
            copied = None
        assert not lade._lade._is_cupy_memory(copied) and lade._lade._is_cupy_memory(pointer.mem)
        del copied
        assert memory.device(0).usage()["allocated_bytes"] == 4096
        del pointer
        assert memory.device(0).usage()["allocated_bytes"] == 0


def test_a_cupy_with_longer_memory_objects_is_refused(cupy, monkeypatch):
    longer = type("BaseMemory", (base_memory(),), {"__slots__": [f"m{i}" for i in range(12)]})
    monkeypatch.setattr(sys.modules["cupy.cuda.memory"], "BaseMemory", longer)
    before = cupy.cuda.get_allocator()
    with pytest.raises(ImportError, match="more than 64 bytes"):
        cupy.lade.install()
    assert cupy.cuda.get_allocator() is before and cupy.lade.installed() is None


def test_record_stream_refuses_memory_of_others(cupy, device):
    with pytest.raises(lade.ForeignPointerError, match="not lade's"):
        cupy.lade.record_stream(object(), 0)
    with cupy.lade.install():
        pinned = cupy.cuda.alloc_pinned_memory(8).mem
    for owner in (object(), pinned, None):
        foreign = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(4096, 10, owner, 0), 0)
        with pytest.raises(lade.ForeignPointerError, match="not lade's"):
            cupy.lade.record_stream(types.SimpleNamespace(data=foreign), 0)


def test_memory_without_bytes(cupy):
    with cupy.lade.install():
        assert cupy.cuda.alloc(0).ptr == 0
        assert cupy.cuda.alloc_pinned_memory(0).ptr == 0


def test_memory_freed_by_another_thread(cupy):
    with cupy.lade.install() as memory:
        held = [cupy.cuda.alloc(1 << 16) for _ in range(100)]
        held += [cupy.cuda.alloc_pinned_memory(1 << 16) for _ in range(100)]
        threads = [threading.Thread(target=lambda: [held.pop() for _ in range(50)]) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert held == []
        assert memory.device(0).usage()["allocated_bytes"] == 0
        assert memory.pinned(0).stats()["in_use_blocks.current"] == 0


def test_pinned_memory_is_written_and_goes_back(cupy):
    with cupy.lade.install() as memory:
        pointer = cupy.cuda.alloc_pinned_memory(1000)
        assert isinstance(pointer, cupy.cuda.PinnedMemoryPointer)
        assert pointer.size() == 1000
        ctypes.memset(pointer.ptr, 7, 1000)
        assert ctypes.string_at(pointer.ptr, 1000) == b"\x07" * 1000
        assert memory.pinned(0).stats()["requested_bytes.current"] == 1000
        del pointer
        gc.collect()
        assert memory.pinned(0).stats()["requested_bytes.current"] == 0


def test_out_of_memory_is_cupys_error_with_lades_text(cupy, device):
    allocator = lade.DeviceAllocator(device, max_bytes=32 << 20)
    with cupy.lade.install(device=allocator):
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match=str(33 << 20)) as info:
            cupy.cuda.alloc(33 << 20)
        assert isinstance(info.value.__cause__, lade.LimitError)
        assert info.value.args == (str(info.value.__cause__),)
        assert str(info.value).startswith("CUDA out of memory. ")


def test_pinned_memory_at_the_cap(cupy, device):
    with cupy.lade.install(pinned=lade.PinnedPool(device, max_bytes=1 << 20)):
        with pytest.raises(lade.LimitError):
            cupy.cuda.alloc_pinned_memory(2 << 20)


def test_uninstall_gives_cupy_its_allocators_back_and_arrays_live_on(cupy):
    before = cupy.cuda.get_allocator()
    memory = cupy.lade.install()
    assert cupy.lade.installed() is memory
    pointer, pinned = cupy.cuda.alloc(512), cupy.cuda.alloc_pinned_memory(512)
    memory.uninstall()
    memory.uninstall()
    assert cupy.lade.installed() is None
    assert cupy.cuda.get_allocator() == before
    assert memory.device(0).usage()["allocated_bytes"] == 512
    ctypes.memset(pinned.ptr, 1, 512)
    del pointer, pinned
    gc.collect()
    assert memory.device(0).usage()["allocated_bytes"] == 0


def test_uninstall_leaves_a_later_allocator_of_the_program(cupy):
    memory = cupy.lade.install(pinned=False)

    def own(nbytes):
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0, 0, None, 0), 0)

    cupy.cuda.set_allocator(own)
    memory.uninstall()
    assert cupy.cuda.get_allocator() is own
    cupy.cuda.set_allocator(None)


def test_install_twice_is_refused(cupy):
    with cupy.lade.install() as memory:
        with pytest.raises(lade.BusyError, match="already"):
            cupy.lade.install()
        assert cupy.lade.installed() is memory
    with cupy.lade.install():
        pass


def test_install_inside_using_allocator_changes_nothing(cupy):
    own = []

    def raw(nbytes):
        own.append(nbytes)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0, 0, None, 0), 0)

    with cupy.cuda.using_allocator(raw):
        with pytest.raises(ValueError, match="using_allocator"):
            cupy.lade.install()
        assert cupy.lade.installed() is None
        cupy.cuda.alloc(5)
    assert own == [5]


def test_uninstall_inside_using_allocator_changes_nothing(cupy):
    """Regression: CuPy kept lade's allocator, of which nothing knew any more."""
    own = cupy.cuda.get_allocator()
    memory = cupy.lade.install()
    for uninstall in (memory.uninstall, cupy.lade.uninstall):
        with cupy.cuda.using_allocator(own):
            with pytest.raises(ValueError, match="using_allocator"):
                uninstall()
        assert cupy.lade.installed() is memory and cupy.cuda.get_allocator() is not own
    memory.uninstall()
    assert cupy.lade.installed() is None and cupy.cuda.get_allocator() == own


def test_an_interrupted_install_or_uninstall_is_whole(cupy):
    """Regression: of an interrupted uninstall, pinned memory was lade's still."""
    own = cupy.cuda.get_allocator()

    def check(number):
        gc.collect()
        is_there = cupy.lade.installed() is not None
        assert pinned_is_lades(cupy) == is_there == (cupy.cuda.get_allocator() != own), number

    files = (cupy.lade.__file__,)
    assert everywhere(cupy.lade.install, files, check, cupy.lade.uninstall) > 20
    assert everywhere(cupy.lade.uninstall, files, check, lambda: cupy.lade.installed() or cupy.lade.install()) > 5


def test_parts_can_be_left_to_cupy(cupy):
    before = cupy.cuda.get_allocator()
    with cupy.lade.install(device=False) as memory:
        assert cupy.cuda.get_allocator() == before
        with pytest.raises(lade.UnsupportedError, match="device=False"):
            memory.device(0)
    with cupy.lade.install(pinned=False) as memory:
        assert cupy.cuda.get_allocator() != before
        with pytest.raises(lade.UnsupportedError, match="pinned=False"):
            memory.pinned(0)


@pytest.mark.parametrize("field", ["device", "pinned"])
@pytest.mark.parametrize("given", [None, 3, "cuda:0", {0: 3}, {"0": None}])
def test_wrong_arguments_are_named(cupy, field, given):
    with pytest.raises(TypeError, match=field):
        cupy.lade.install(**{field: given})
    assert cupy.lade.installed() is None


def test_a_handler_may_allocate_while_its_thread_makes_the_allocator():
    """Regression: it waited for ever. The device has one object all the same."""
    made = []

    def make(ordinal):
        made.append(own := object())
        if len(made) == 1:
            assert objects.get(ordinal) is made[1]
        return own

    objects = PerDevice(make)
    assert objects.get(0) is objects.get(0) is made[1]


def test_a_thread_may_allocate_while_another_uninstalls(cupy):
    done = threading.Event()
    errors = []

    def work():
        try:
            while not done.is_set():
                kept = [cupy.cuda.get_allocator() for _ in range(10)]
                del kept
                cupy.cuda.alloc_pinned_memory(100)
        except BaseException as error:  # shown by the assert below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    with cupy.lade.install(device=False):
        [thread.start() for thread in threads]
        for _ in range(50):
            cupy.lade.uninstall()
            if hasattr(cupy.package, "__file__"):  # the real one has no pinned memory of its own here
                break
            cupy.lade.install(device=False)
        done.set()
        [thread.join() for thread in threads]
    assert errors == [] or hasattr(cupy.package, "__file__")


@pytest.mark.parametrize("version", ["11.6.0", "9.0", "8"])
def test_an_old_cupy_is_refused_by_name(cupy, monkeypatch, version):
    monkeypatch.setattr(cupy.package, "__version__", version)
    before = cupy.cuda.get_allocator()
    with pytest.raises(ImportError, match=f"cupy {version}"):
        cupy.lade.install()
    assert cupy.cuda.get_allocator() == before


def test_a_cupy_for_rocm_is_refused_by_name(cupy, monkeypatch):
    monkeypatch.setattr(cupy.cuda.runtime, "is_hip", True)
    with pytest.raises(ImportError, match="ROCm"):
        cupy.lade.install()


def test_a_cupy_without_what_is_needed_is_refused_by_name(cupy, monkeypatch):
    monkeypatch.delattr(sys.modules["cupy.cuda.memory"], "BaseMemory")
    with pytest.raises(ImportError, match="BaseMemory"):
        cupy.lade.install()


# --- RMM --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["double", "real"])
def rmm(request):
    if request.param == "real":
        package = pytest.importorskip("rmm")
        import lade.rmm as module

        yield types.SimpleNamespace(package=package, lade=module, Stream=package.pylibrmm.stream.Stream)
        return
    modules = doubles.rmm()
    with doubles.imported(modules, "lade.rmm"):
        import lade.rmm as module

        yield types.SimpleNamespace(package=modules["rmm"], lade=module, Stream=lambda stream: doubles.Stream(stream.handle))


def test_rmm_memory_comes_from_lade(rmm, device):
    allocator = lade.DeviceAllocator(device, event_batch=1)
    resource = rmm.lade.resource(allocator)
    assert isinstance(resource, rmm.package.mr.CallbackMemoryResource)
    stream = device.stream()
    pointer = resource.allocate(5000, rmm.Stream(stream))
    assert pointer % 256 == 0 and allocator.usage()["requested_bytes"] == 5000
    resource.deallocate(pointer, 5000, rmm.Stream(stream))
    assert allocator.usage()["allocated_bytes"] == 0
    pointer = resource.allocate(5000)
    resource.deallocate(pointer, 5000)
    assert resource.allocate(5000) == pointer  # of a default stream: at once
    resource.deallocate(pointer, 5000)


def test_rmm_streams_may_be_destroyed_without_a_word(rmm, device, tmp_path):
    """Regression: a GPU's driver crashed on the handle of a stream that was gone, when its memory went back."""
    allocator = lade.DeviceAllocator(device, event_batch=1)
    resource = rmm.lade.resource(allocator)
    streams = [device.stream() for _ in range(3)]
    for stream in streams:
        pointer = resource.allocate(3 << 20, rmm.Stream(stream))
        resource.deallocate(pointer, 3 << 20, rmm.Stream(stream))
    allocator.snapshot(tmp_path / "memory.pickle", "pickle")
    segments = pickle.loads((tmp_path / "memory.pickle").read_bytes())["segments"]
    assert segments and not {segment["stream"] for segment in segments} & {stream.handle for stream in streams}
    del stream, streams
    allocator.trim()
    assert allocator.usage()["reserved_bytes"] == 0


def test_rmm_frees_leave_no_event_for_later(rmm, device):
    """Regression: events were recorded for several frees at once, later, on a stream that RMM may have destroyed by then."""
    resource = rmm.lade.resource(device)
    stream = device.stream()
    pointers = [resource.allocate(4096, rmm.Stream(stream)) for _ in range(3)]
    stream.soft_hold()
    for count, pointer in enumerate(pointers):
        assert device.soft_call_count("event_record") == count
        resource.deallocate(pointer, 4096, rmm.Stream(stream))
    assert device.soft_call_count("event_record") == len(pointers)
    stream.soft_release()
    stream.synchronize()
    assert resource.allocate(4096, rmm.Stream(stream)) in pointers


def test_rmm_refuses_an_allocator_that_records_events_later(rmm, device):
    with pytest.raises(lade.InvalidArgumentError, match="event_batch=1"):
        rmm.lade.resource(lade.DeviceAllocator(device))


def test_rmm_allocator_is_closed_beside_its_resource(rmm, device):
    allocator = lade.DeviceAllocator(device, event_batch=1)
    resource = rmm.lade.resource(allocator)
    pointer = resource.allocate(4096)
    with pytest.raises(lade.BusyError):
        allocator.close()
    resource.deallocate(pointer, 4096)
    allocator.close()
    with pytest.raises((lade.InvalidArgumentError, RuntimeError, MemoryError), match="closed"):
        resource.allocate(4096)


def test_rmm_refuses_the_pool_of_the_driver(rmm, device):
    """Regression: RMM's streams used memory of cudaMallocAsync while other streams still did, as the software device found."""
    for options in ({"backend": "cudaMallocAsync"}, {"settings": "backend:cudaMallocAsync"}):
        with pytest.raises(lade.InvalidArgumentError, match="backend is cudaMallocAsync; expected native"):
            rmm.lade.resource(lade.DeviceAllocator(device, event_batch=1, **options))


class Memory:
    """Bytes at an address, as lade takes them."""

    def __init__(self, pointer, nbytes):
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 3}


@pytest.mark.parametrize("flags", [[], ["uncached"], ["thread_caches"], ["streams_are_retired"]])
def test_rmm_memory_is_used_in_order_on_every_stream(rmm, sim, flags):
    """The software device counts uses of a block that no stream has ordered behind the ones before."""
    resource = rmm.lade.resource(lade.DeviceAllocator(sim, event_batch=1, flags=flags))
    default = getattr(rmm.package.pylibrmm.stream, "DEFAULT_STREAM", None) or rmm.package.pylibrmm.stream.Stream()
    choices, kept = random.Random(5), [sim.stream() for _ in range(3)]
    streams, live = [default, *map(rmm.Stream, kept)], []
    for _ in range(600):
        if live and choices.random() < 0.5:
            pointer, nbytes, stream = live.pop(choices.randrange(len(live)))
            lade.fill_async(sim, Memory(pointer, nbytes), 1, stream)
            resource.deallocate(pointer, nbytes, stream)
        else:
            nbytes, stream = choices.choice([100, 70000, 3 << 20]), choices.choice(streams)
            live.append((resource.allocate(nbytes, stream), nbytes, stream))
            lade.fill_async(sim, Memory(live[-1][0], nbytes), 2, stream)
    report = sim.soft_report()
    assert (report["unordered_reuse"], report["freed_memory_used"]) == (0, 0), sim.soft_last_finding()
    for block in live:
        resource.deallocate(*block)


def test_rmm_memory_without_bytes(rmm, device):
    resource = rmm.lade.resource(device)
    pointer = resource.allocate(0)
    assert pointer == 0
    resource.deallocate(pointer, 0)


def test_rmm_memory_freed_on_another_stream_waits_for_it(rmm, device):
    allocator = lade.DeviceAllocator(device, event_batch=1)
    resource = rmm.lade.resource(allocator)
    own, other = device.stream(), device.stream()
    pointer = resource.allocate(4096, rmm.Stream(own))
    other.soft_hold()
    resource.deallocate(pointer, 4096, rmm.Stream(other))
    assert allocator.usage()["allocated_bytes"] == 0
    assert resource.allocate(4096, rmm.Stream(own)) != pointer
    other.soft_release()
    other.synchronize()


def test_rmm_out_of_memory_is_a_memory_error(rmm, device):
    resource = rmm.lade.resource(lade.DeviceAllocator(device, max_bytes=32 << 20, event_batch=1))
    with pytest.raises(MemoryError, match="out_of_memory"):
        resource.allocate(33 << 20)


def test_rmm_free_of_a_foreign_pointer_is_reported_and_not_raised(rmm, device, capfd):
    rmm.lade.resource(device).deallocate(0x1000, 10)
    assert "0x1000" in capfd.readouterr().err


def test_rmm_free_that_fails_keeps_the_block(rmm, device, capfd, unraisable):
    if hasattr(rmm.package, "__file__"):
        pytest.skip("the real one makes streams of no odd objects")
    allocator = lade.DeviceAllocator(device, event_batch=1)
    resource = rmm.lade.resource(allocator)
    pointer = resource.allocate(4096)
    resource.deallocate(pointer, 4096, object())
    assert "4096 bytes" in capfd.readouterr().err and [fault[0] for fault in unraisable] == [lade.ArgumentTypeError]
    assert allocator.usage()["allocated_bytes"] == 4096
    resource.deallocate(pointer, 4096)
    assert allocator.usage()["allocated_bytes"] == 0


def called_in_a_row(*calls):
    """Calls functions with no step of Python between them, where handlers of signals run."""
    collections.deque(map(operator.call, calls), maxlen=0)


def test_rmm_free_that_is_interrupted_frees(rmm, device):
    """Regression: KeyboardInterrupt went off in the first step of the function that RMM calls, and the block stayed in use for ever."""
    allocator = lade.DeviceAllocator(device, event_batch=1)
    resource = rmm.lade.resource(allocator)
    stream = device.stream()
    free = resource.deallocate if hasattr(rmm.package, "__file__") else resource._deallocate
    pointer = resource.allocate(4096, rmm.Stream(stream))
    named = rmm.Stream(stream) if hasattr(rmm.package, "__file__") else stream  # the double's would run Python
    with pytest.raises(KeyboardInterrupt):
        called_in_a_row(_thread.interrupt_main, functools.partial(free, pointer, 4096, named))
    assert allocator.usage()["allocated_bytes"] == 0


def test_rmm_free_by_a_stream_that_is_interrupted_hands_it_on(rmm, device, unraisable):
    if hasattr(rmm.package, "__file__"):
        pytest.skip("the real one makes streams of no odd objects")

    class Interrupted:
        def __cuda_stream__(self):
            raise KeyboardInterrupt

    resource = rmm.lade.resource(device)
    pointer = resource.allocate(4096)
    with pytest.raises(KeyboardInterrupt):
        resource.deallocate(pointer, 4096, Interrupted())
    assert [fault[0] for fault in unraisable] == [KeyboardInterrupt]
    resource.deallocate(pointer, 4096)


def test_rmm_on_many_threads(rmm, device):
    allocator = lade.DeviceAllocator(device, event_batch=1)
    resource = rmm.lade.resource(allocator)

    def work():
        for size in range(1, 200):
            resource.deallocate(resource.allocate(size * 100), size * 100)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert allocator.usage()["allocated_bytes"] == 0


def test_an_old_rmm_is_refused_by_name(rmm, monkeypatch):
    monkeypatch.setattr(rmm.package, "__version__", "25.10.00")
    with pytest.raises(ImportError, match="rmm 25.10.00"):
        rmm.lade.resource()


# --- Numba ------------------------------------------------------------------------------------------------------------------


class _Context:
    """A context of Numba, as far as a memory manager sees it."""

    def __init__(self, ordinal):
        self.device = types.SimpleNamespace(id=ordinal)


@pytest.fixture(params=["double", "real"])
def numba(request, device, monkeypatch):
    with contextlib.ExitStack() as stack:
        if request.param == "real":
            pytest.importorskip("numba")
            cuda = pytest.importorskip("numba.cuda")
            if not hasattr(cuda, "set_memory_manager"):
                pytest.skip("Numba simulates CUDA here")
        else:
            stack.enter_context(doubles.imported(doubles.numba(), "lade.numba"))
            cuda = sys.modules["numba.cuda"]
        monkeypatch.setattr(lade, "cuda_device", device.sibling)
        import lade.numba as module

        driver = cuda.cudadrv.driver
        if request.param == "real":
            pointer = (lambda host, flags: host) if module._uses_binding() else (lambda out, host, flags: None)
            monkeypatch.setattr(driver, "driver", types.SimpleNamespace(cuMemHostGetDevicePointer=pointer, list_devices=list))
        context = _Context(0)
        context.memory_manager = module.LadeMemoryManager(context=context)
        context.memory_manager.initialize()
        yield types.SimpleNamespace(cuda=cuda, lade=module, context=context, manager=context.memory_manager)


def _address(pointer):
    return int(getattr(pointer, "value", pointer) or 0)


def test_numba_finds_the_manager_by_its_name(numba):
    assert numba.lade._numba_memory_manager is numba.lade.LadeMemoryManager
    assert numba.lade._numba_memory_manager(context=None).interface_version == 1


def test_numba_device_memory(numba):
    allocator = numba.manager.allocator
    memory = numba.manager.memalloc(1000)
    assert isinstance(memory, numba.cuda.MemoryPointer)
    assert memory.size == 1000 and memory.device_pointer_value
    assert allocator.usage()["requested_bytes"] == 1000
    del memory
    gc.collect()
    assert allocator.usage()["allocated_bytes"] == 0


def test_numba_memory_waits_for_the_default_stream(numba):
    """A freed block is pending until the default stream is known to be done: it is not handed out at once, as one of no use is."""
    manager = numba.manager
    memory, pinned = manager.memalloc(4096), manager.memhostalloc(4096)
    address = memory.device_pointer_value
    del memory, pinned
    gc.collect()
    usage = manager.allocator.usage()
    assert (usage["allocated_bytes"], usage["active_bytes"]) == (0, 4096)
    assert manager.pool.stats()["pending_blocks.current"] == 1
    manager.allocator.empty_cache()
    assert manager.allocator.usage()["reserved_bytes"] == 0, "once it is done it goes back"
    assert address


def test_numba_pinned_memory(numba):
    memory = numba.manager.memhostalloc(1000)
    assert isinstance(memory, numba.cuda.PinnedMemory)
    ctypes.memset(_address(memory.host_pointer), 3, 1000)
    assert numba.manager.pool.stats()["requested_bytes.current"] == 1000
    del memory
    gc.collect()
    assert numba.manager.pool.stats()["in_use_bytes.current"] == 0


def test_numba_mapped_memory_lives_as_long_as_an_owner(numba):
    owner = numba.manager.memhostalloc(1000, mapped=True)
    ctypes.memset(_address(owner.host_pointer), 3, 1000)
    gc.collect()
    assert numba.manager.pool.stats()["requested_bytes.current"] == 1000
    del owner
    gc.collect()
    assert numba.manager.pool.stats()["requested_bytes.current"] == 0
    assert len(numba.manager.allocations) == 0


@pytest.mark.parametrize("name, options", [("MemoryPointer", None), ("PinnedMemory", {}), ("MappedMemory", {"mapped": True})])
@pytest.mark.parametrize("when", ["before", "behind"])
def test_numba_memory_whose_object_fails_goes_back(numba, monkeypatch, name, options, when):
    """Regression: where KeyboardInterrupt went off in Numba's constructor, the block stayed in use until the context was reset."""
    manager, made = numba.manager, getattr(numba.cuda, name)

    def interrupted(*arguments, **keywords):
        if when == "behind":
            made(*arguments, **keywords)
        raise KeyboardInterrupt

    monkeypatch.setattr(numba.cuda, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        manager.memalloc(4096) if options is None else manager.memhostalloc(4096, **options)
    gc.collect()
    assert manager.allocator.usage()["allocated_bytes"] == 0 and manager.pool.stats()["in_use_bytes.current"] == 0
    assert len(manager.allocations) == 0


def test_numba_mapped_memory_leaves_the_table_before_its_block_is_free(numba):
    """Regression: it left later, and took an array of another thread that had got the address since off the table."""
    manager, in_use = numba.manager, []

    class Table(dict):
        def pop(self, *arguments):
            in_use.append(manager.pool.stats()["requested_bytes.current"])
            return super().pop(*arguments)

    manager.allocations = Table()
    owner = manager.memhostalloc(1000, mapped=True)
    del owner
    gc.collect()
    assert in_use == [1000] and manager.pool.stats()["requested_bytes.current"] == 0


def test_numba_reset_frees_everything_and_finalizers_come_later(numba):
    allocator, pool = numba.manager.allocator, numba.manager.pool
    memory, pinned = numba.manager.memalloc(1 << 20), numba.manager.memhostalloc(100)
    mapped = numba.manager.memhostalloc(100, mapped=True)
    numba.manager.reset()
    assert numba.manager.allocator is not allocator, "what lies in a context goes with it"
    assert allocator.usage()["allocated_bytes"] == 0 and pool.stats()["requested_bytes.current"] == 0
    del memory, pinned, mapped
    gc.collect()
    assert numba.manager.memalloc(10).size == 10, "the manager goes on with an allocator anew"


def test_numba_deferred_cleanup(numba):
    allocator = numba.manager.allocator
    memory = numba.manager.memalloc(4096)
    with numba.manager.defer_cleanup():
        with numba.manager.defer_cleanup():
            del memory
            gc.collect()
            assert allocator.usage()["allocated_bytes"] == 4096
        assert allocator.usage()["allocated_bytes"] == 4096
    assert allocator.usage()["allocated_bytes"] == 0


def test_numba_deferral_ends_with_an_error_too(numba):
    memory = numba.manager.memalloc(4096)
    with pytest.raises(ZeroDivisionError):
        with numba.manager.defer_cleanup():
            del memory
            gc.collect()
            raise ZeroDivisionError
    assert numba.manager.allocator.usage()["allocated_bytes"] == 0


def test_numba_interrupts_leave_no_block_and_no_deferral(numba):
    """Regression: of an interrupted deferral, which kept the blocks of all arrays that died from then on."""
    manager = numba.manager

    def call():
        memory, pinned = manager.memalloc(4096), manager.memhostalloc(4096)
        with manager.defer_cleanup():
            del memory, pinned

    def check(number):
        gc.collect()
        assert not manager._deferrals and not manager._deferred and not manager._blocks, number
        assert manager.allocator.usage()["allocated_bytes"] == 0, number

    module = sys.modules[type(manager).__module__]
    assert everywhere(call, (module.__file__, contextlib.__file__), check, finalizers=("let_go",)) > 30


def test_numba_memory_info_counts_the_cache_as_free(numba):
    before = numba.manager.get_memory_info()
    memory = numba.manager.memalloc(4 << 20)
    with_array = numba.manager.get_memory_info()
    del memory
    gc.collect()
    numba.manager.allocator.empty_cache()
    assert before.total == with_array.total > 0
    assert with_array.free == before.free - (4 << 20)


def test_numba_memory_freed_on_other_threads(numba):
    held = [numba.manager.memalloc(1000) for _ in range(200)]
    threads = [threading.Thread(target=lambda: [held.pop() for _ in range(50)]) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    gc.collect()
    assert numba.manager.allocator.usage()["allocated_bytes"] == 0


def test_numba_out_of_memory(numba, device, monkeypatch):
    numba.manager._allocator = lade.DeviceAllocator(device, max_bytes=32 << 20)
    with pytest.raises(MemoryError):
        numba.manager.memalloc(33 << 20)


def test_write_combined_and_empty_memory_is_numbas_own(numba, monkeypatch):
    asked = []
    base = numba.cuda.HostOnlyCUDAMemoryManager
    monkeypatch.setattr(base, "memhostalloc", lambda self, size, **more: asked.append((size, more["wc"])))
    numba.manager.memhostalloc(100, wc=True)
    numba.manager.memhostalloc(0)
    assert asked == [(100, True), (0, False)]


def test_numba_install_before_any_context(numba, monkeypatch):
    chosen = []
    monkeypatch.setattr(numba.cuda, "set_memory_manager", chosen.append)
    numba.lade.install()
    assert chosen == [numba.lade.LadeMemoryManager]
    made = [types.SimpleNamespace(primary_context=numba.context)]
    monkeypatch.setattr(numba.cuda.cudadrv.driver.driver, "list_devices", lambda: made)
    with pytest.raises(lade.BusyError, match="already"):
        numba.lade.install()
    assert len(chosen) == 1


def test_an_old_numba_is_refused_by_name():
    modules = doubles.numba()
    modules["numba"].__version__ = "0.56.4"
    with doubles.imported(modules, "lade.numba"), pytest.raises(ImportError, match="numba 0.56.4"):
        importlib.import_module("lade.numba")


def test_a_numba_without_managers_is_refused_by_name():
    modules = doubles.numba()
    del modules["numba.cuda"].set_memory_manager
    with doubles.imported(modules, "lade.numba"), pytest.raises(ImportError, match="set_memory_manager"):
        importlib.import_module("lade.numba")


# --- none of it is imported unasked -----------------------------------------------------------------------------------------


def test_importing_lade_imports_nobody(tmp_path):
    import subprocess

    program = "import lade, lade.cupy, lade.rmm, sys; print([n for n in ('cupy','rmm','numba','torch','numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ["cupy", "rmm"])
def test_what_is_not_installed_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    module = importlib.import_module(f"lade.{name}")
    with pytest.raises(ImportError, match=name):
        module.install() if name == "cupy" else module.resource()
