# SPDX-License-Identifier: Apache-2.0
"""DeviceAllocator and Device."""

import collections
import functools
import operator
import sys
import threading
import time

import numpy as np
import pytest

import lade


def test_blocks_go_back(device):
    allocator = lade.DeviceAllocator(device)
    stream = device.stream()
    buffer = allocator.empty((4, 5), "f4", stream)
    assert (buffer.nbytes, buffer.shape, buffer.dtype, buffer.stream) == (80, (4, 5), "float32", stream.handle)
    assert allocator.usage()["requested_bytes"] == 80
    address = buffer.ptr
    del buffer
    assert allocator.usage()["allocated_bytes"] == 0
    assert allocator.alloc(80, stream).ptr == address
    allocator.empty_cache()
    assert allocator.stats()["reserved_bytes.all.current"] == 0


@pytest.mark.skipif("t" in sys.abiflags, reason="this interpreter has no such lock")
def test_cached_memory_is_taken_with_the_interpreters_lock_held(device):
    """Another thread, which asks for the lock all the time, does not get it meanwhile. No code of Python runs, where it could."""
    allocator, pool, stream = lade.DeviceAllocator(device), lade.PinnedPool(device), device.stream()
    turns, before, after, ended = [], [], [], threading.Event()
    calls = [functools.partial(allocator.alloc, 5000, stream), functools.partial(pool.empty, 5000)]
    for call in calls:
        call()  # whose memory is cached from here on

    def take_turns():
        while not ended.is_set():
            turns.append(None)
            time.sleep(0)

    thread, interval = threading.Thread(target=take_turns), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        marks = [functools.partial(before.extend, turns), functools.partial(after.extend, turns)]
        collections.deque(map(operator.call, [marks[0], *calls * 5000, marks[1]]), maxlen=0)
    finally:
        ended.set()
        sys.setswitchinterval(interval)
    thread.join()
    assert len(after) == len(before)
    assert allocator.stats()["allocation.all.allocated"] == 5001


def test_dlpack_shows_the_memory_of_software_devices(device):
    allocator = lade.DeviceAllocator(device)
    stream = device.stream()
    buffer = allocator.empty((3, 4), "i4", stream)
    lade.copy_async(device, buffer, np.arange(12, dtype="i4"), stream)
    array = np.from_dlpack(buffer)
    del buffer
    assert array.tolist() == np.arange(12).reshape(3, 4).tolist()
    assert allocator.usage()["allocated_bytes"] > 0
    del array
    assert allocator.usage()["allocated_bytes"] == 0


def check_dlpack_arguments(buffer):
    """Numbers beyond C's are numbers, and `copy` is a truth."""
    assert "dltensor_versioned" in repr(buffer.__dlpack__(max_version=(1 << 70, 0)))
    assert "dltensor_versioned" not in repr(buffer.__dlpack__(max_version=(-1 << 70, 0)))
    with pytest.raises(lade.InvalidArgumentError, match="dl_device"):
        buffer.__dlpack__(dl_device=(1 << 40, 0))
    for copy in (0, 1, np.bool_(True)):
        assert "dltensor" in repr(buffer.__dlpack__(copy=copy))
    with pytest.raises(ValueError, match="truth value of an array"):
        buffer.__dlpack__(copy=np.zeros(2))


def test_dlpack_arguments(device):
    allocator = lade.DeviceAllocator(device)
    buffer = allocator.empty(4)
    assert buffer.__dlpack_device__() == (1, 0)
    with pytest.raises(lade.InvalidArgumentError, match="expected None on a software device"):
        buffer.__dlpack__(stream=1)
    with pytest.raises(BufferError, match=r"dl_device is \(2, 0\)"):
        buffer.__dlpack__(dl_device=(2, 0))
    with pytest.raises(lade.InvalidArgumentError, match="max_version"):
        buffer.__dlpack__(max_version=1)
    copied = np.from_dlpack(buffer, copy=True)
    assert copied.ctypes.data != buffer.ptr
    check_dlpack_arguments(buffer)
    check_dlpack_arguments(lade.PinnedPool(device).empty(4))
    assert not hasattr(buffer, "__cuda_array_interface__")


def test_a_stream_lives_as_long_as_its_memory(sim):
    allocator = lade.DeviceAllocator(sim)
    buffer = allocator.alloc(8, sim.stream())
    assert sim.soft_report()["streams"] == 1
    del buffer
    assert sim.soft_report()["streams"] == 0 and sim.soft_report()["stale_handles"] == 0


def test_record_stream(sim):
    allocator = lade.DeviceAllocator(sim, event_batch=1)
    one, other = sim.stream(), sim.stream()
    buffer = allocator.alloc(1 << 20, one)
    address = buffer.ptr
    lade.fill_async(sim, buffer, 7, other)
    allocator.record_stream(buffer, other)
    del buffer
    assert allocator.alloc(1 << 20, one).ptr != address
    assert sim.soft_report()["freed_memory_used"] == 0 and sim.soft_report()["unordered_reuse"] == 0


def test_limits():
    device = lade.software_device(clock="cpu", memory_bytes=64 << 20)
    allocator = lade.DeviceAllocator(device)
    with pytest.raises(lade.OutOfDeviceMemoryError, match="64.0 MiB|67108864"):
        allocator.alloc(1 << 30)
    capped = lade.DeviceAllocator(device, max_bytes=2 << 20)
    with pytest.raises(lade.LimitError):
        capped.alloc(4 << 20)
    # What programs look for that know PyTorch's error.
    for refused in (lambda: allocator.alloc(1 << 30), lambda: capped.alloc(4 << 20),
                    lambda: lade.PinnedPool(device, max_bytes=2 << 20).empty(4 << 20, "uint8")):
        with pytest.raises(RuntimeError, match="^CUDA out of memory. ") as error:
            refused()
        assert isinstance(error.value, MemoryError) and error.value.args == (str(error.value),)
    with pytest.raises(lade.InvalidArgumentError):
        allocator.alloc(1 << 61)


@pytest.mark.parametrize(
    "keywords, words",
    [
        ({"flags": ["fast"]}, "flags has 'fast'; expected \"uncached\""),
        ({"flags": "uncached"}, "flags is a str"),
        ({"backend": "pool"}, 'backend is "pool"; expected'),
        ({"max_bytes": 0}, "max_bytes is 0"),
        ({"memory_fraction": -1.0}, "memory_fraction is -1"),
        ({"settings": "nonsense:1"}, "nonsense"),
    ],
)
def test_arguments_that_are_refused(device, keywords, words):
    with pytest.raises(lade.Error, match=words):
        lade.DeviceAllocator(device, **keywords)


def test_the_wrong_device():
    device = lade.software_device(clock="cpu", device_count=2)
    allocator = lade.DeviceAllocator(device)
    far = device.sibling(1).stream()
    with pytest.raises(lade.InvalidArgumentError, match="stream is on device 1; expected a stream on cpu:0"):
        allocator.alloc(8, far)
    with pytest.raises(lade.Error):
        allocator.alloc(8, far.handle)
    with pytest.raises(lade.NoDeviceError, match="no device 2: runtime cpu has 2"):
        device.sibling(2)


@pytest.mark.parametrize("keywords", [{}, {"expandable_segments": True}, {"backend": "cudaMallocAsync"}])
def test_copies_between_devices_with_and_without_access(keywords):
    near = lade.software_device(clock="cpu", device_count=2)
    far = near.sibling(1)
    ends = [lade.DeviceAllocator(device, **keywords) for device in (near, far)]
    streams = [device.stream() for device in (near, far)]
    buffers = [allocator.alloc(1 << 16, stream) for allocator, stream in zip(ends, streams)]
    for round, access in enumerate([False, True, True]):
        if access:
            ends[0].peer_add(far)
            ends[1].peer_add(near)
        for device, on in zip((near, far), streams):
            lade.fill_async(near, buffers[0], round + 1, streams[0])
            streams[0].synchronize()
            lade.copy_async(device, buffers[1], buffers[0], on)
            on.synchronize()
            host = bytearray(1 << 16)
            lade.copy_async(far, host, buffers[1], streams[1])
            streams[1].synchronize()
            assert host == bytes([round + 1]) * len(host)
    ends[0].peer_add(near)
    with pytest.raises(lade.InvalidArgumentError, match="peer is cpu:0; expected a device of the runtime of cpu:0"):
        ends[0].peer_add(lade.software_device(clock="cpu"))
    with pytest.raises(lade.ArgumentTypeError):
        ends[0].peer_add(1.5)


def test_a_closed_allocator(device):
    allocator = lade.DeviceAllocator(device)
    buffer = allocator.alloc(8)
    capsule = buffer.__dlpack__()
    del buffer
    with pytest.raises(lade.BusyError):
        allocator.close()
    del capsule
    allocator.close()
    for call in (lambda: allocator.alloc(8), lambda: allocator.alloc(0), allocator.stats, allocator.usage, allocator.empty_cache):
        with pytest.raises(lade.InvalidArgumentError, match="the DeviceAllocator is closed"):
            call()


def test_a_lost_device():
    device = lade.software_device(clock="cpu")
    allocator, pool = lade.DeviceAllocator(device), lade.PinnedPool(device)
    buffer, pinned = allocator.alloc(8), pool.empty(8)
    device.soft_lose()
    with pytest.raises(lade.DeviceLostError):
        lade.copy_async(device, buffer, pinned, None)
    del buffer, pinned
    pool.close()


def test_devices():
    shared = lade.software_device()
    assert shared == lade.software_device() and hash(shared) == hash(lade.software_device())
    assert shared == lade.device("cpu") and shared != lade.software_device(clock="cpu")
    assert str(shared) == "cpu:0" and shared.software and shared.count == 1
    for bad in ("cuda:", "cuda:x", "mps", "cpu:1:2", "cuda:-1"):
        with pytest.raises(lade.InvalidArgumentError, match="expected \"cuda\", \"cuda:N\" or \"cpu\""):
            lade.device(bad)
    with pytest.raises(lade.NoDeviceError):
        lade.device("cpu:7")
    with pytest.raises(lade.InvalidArgumentError, match="device is -1; expected"):
        lade.device(-1)
    with pytest.raises(lade.InvalidArgumentError, match="clock is"):
        lade.software_device(clock="gpu")
    with pytest.raises(lade.InvalidArgumentError, match="device_count is 65"):
        lade.software_device(device_count=65)
