# SPDX-License-Identifier: Apache-2.0
"""What is taken as a stream, and what is refused."""

import enum
import operator
import threading
import time

import numpy as np
import pytest

import conftest
import lade
import lade.safetensors as ours


class Protocol:
    def __init__(self, answer):
        self.answer = answer

    def __cuda_stream__(self):
        return self.answer


class Torch:
    def __init__(self, stream):
        self.cuda_stream, self.device_index = stream.handle, stream.device.ordinal


class Cupy:
    def __init__(self, stream):
        self.ptr, self.device_id = stream.handle, stream.device.ordinal


class Index:
    def __init__(self, number):
        self.number = number

    def __index__(self):
        return operator.index(self.number)


class Both(Protocol, Index):
    """A stream that is also a number: the protocol's answer counts."""

    def __init__(self, answer, number):
        self.answer, self.number = answer, number


class Attribute:
    def __init__(self, name, value):
        setattr(self, name, value)


FORMS = [
    lambda stream: stream,
    lambda stream: stream.handle,
    lambda stream: Protocol((0, stream.handle)),
    Torch,
    Cupy,
    lambda stream: np.int64(stream.handle),
    lambda stream: np.uint64(stream.handle),
    lambda stream: np.array(stream.handle),
    lambda stream: Index(stream.handle),
    lambda stream: enum.IntEnum("Handles", {"OURS": stream.handle}).OURS,
    lambda stream: Protocol((np.int32(0), np.uint64(stream.handle))),
    lambda stream: Both((0, stream.handle), 0xDEAD00),
    lambda stream: Attribute("cuda_stream", np.int64(stream.handle)),
    lambda stream: Attribute("ptr", Index(stream.handle)),
]


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_forms(sim, form):
    pool = lade.PinnedPool(sim, event_batch=1)
    target = lade.DeviceAllocator(sim).alloc(1 << 20)
    stream = sim.stream()
    buffer = pool.empty(1 << 20)
    address = buffer.ptr
    lade.copy_async(sim, target, buffer, stream)
    pool.record(buffer, FORMS[form](stream))
    del buffer
    assert pool.find(address)["state"] == "pending"


@pytest.mark.parametrize("special", [None, 0, 1, 2])
def test_special_streams(pool, special):
    pool.record(pool.empty(8), special)


@pytest.mark.parametrize(
    "stream, words",
    [
        ("default", "stream is a str; expected a handle"),
        (1.0, "stream is a float; expected"),
        (-1, "stream is -1; expected the handle of a stream"),
        (1 << 64, "expected the handle of a stream"),
        (np.int64(-1), "stream is -1; expected the handle of a stream: 0 or more, below 2\\^64"),
        (np.int8(-128), "stream is -128; expected the handle of a stream"),
        (Index(1 << 64), "stream is 18446744073709551616; expected the handle of a stream"),
        (True, "stream is a bool; expected"),
        (np.True_, "stream is a numpy.bool; expected"),
        (np.float64(1), "stream is a numpy.float64; expected"),
        (np.array([1.5]), "stream is a numpy.ndarray; expected"),
        (np.array([1, 2]), "stream is a numpy.ndarray; expected"),
        (Protocol((0, True)), "gave \\(0, True\\); expected \\(0, handle\\)"),
        (Protocol((0, np.int64(-5))), "the handle that __cuda_stream__ gave is -5; expected"),
        (Attribute("ptr", np.int64(-1)), "ptr is -1; expected the handle"),
        (Attribute("cuda_stream", False), "expected a handle"),
        (Protocol(7), "gave 7; expected \\(0, handle\\)"),
        (Protocol((0, "x")), "expected \\(0, handle\\)"),
        (Protocol((0,)), "expected \\(0, handle\\)"),
    ],
)
def test_what_is_no_stream(pool, stream, words):
    with pytest.raises(lade.InvalidArgumentError, match=words):
        pool.record(pool.empty(8), stream)


def test_errors_of_an_index_pass(pool):
    class Broken:
        def __index__(self):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        pool.record(pool.empty(8), Broken())


def every_call_with_a_stream(device, tmp_path):
    """Calls of the package that take a stream, by name: each takes one argument, the stream."""
    pool, allocator = lade.PinnedPool(device), lade.DeviceAllocator(device)
    pipeline = lade.Pipeline(device, pool=pool)
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    host, block = pool.empty(4096), allocator.alloc(4096)
    loader = lade.Loader([path], 2, record_bytes=1024, device=device)
    native = loader._native
    tensors = tmp_path / "tensors"
    ours.save_file({"x": np.zeros(4, "f4")}, tensors)
    return {
        "record": lambda stream: pool.record(host, stream),
        "record_use": lambda stream: pool.record_use(host, stream),
        "PinnedPool.retire_stream": pool.retire_stream,
        "alloc": lambda stream: allocator.alloc(100, stream),
        "empty": lambda stream: allocator.empty(100, "f4", stream),
        "record_stream": lambda stream: allocator.record_stream(block, stream),
        "DeviceAllocator.retire_stream": allocator.retire_stream,
        "copy_async": lambda stream: lade.copy_async(device, block, host, stream),
        "fill_async": lambda stream: lade.fill_async(device, block, 1, stream),
        "read_into": lambda stream: pipeline.read_into(path, 0, block, stream=stream).wait(),
        "write_from": lambda stream: pipeline.write_from(tmp_path / "out", 0, block, stream=stream).wait(),
        "copy": lambda stream: pipeline.copy(block, host, stream=stream).wait(),
        "wait_on": lambda stream: pipeline.copy(block, host).wait_on(stream),
        "Loader": lambda stream: next(iter(lade.Loader([path], 2, record_bytes=1024, device=device, stream=stream))),
        "Batch": lambda stream: native.next(stream, None),
        "load_file": lambda stream: ours.load_file(tensors, device, stream=stream, pipeline=pipeline, allocator=allocator),
    }


CALLS = (
    "record record_use PinnedPool.retire_stream alloc empty record_stream DeviceAllocator.retire_stream copy_async fill_async"
    " read_into write_from copy wait_on Loader Batch load_file"
).split()


@pytest.mark.parametrize("call", CALLS)
def test_every_call_takes_integers_of_numpy(device, tmp_path, call):
    calls = every_call_with_a_stream(device, tmp_path)
    assert set(calls) == set(CALLS)
    stream = device.stream()
    for number in (np.uint64(stream.handle), np.int64(stream.handle)):
        calls[call](number)
    for wrong, words in ((np.int64(-7), "-7; expected the handle of a stream: 0 or more"), (True, "is a bool; expected"), (1.0, "is a float")):
        with pytest.raises(lade.InvalidArgumentError, match=words):
            calls[call](wrong)


def test_a_device_that_a_stream_tells(device):
    """Numbers that are no device's are not told; others are compared."""
    allocator = lade.DeviceAllocator(device)
    stream = device.stream()
    for told, refused in ((0, False), (np.int64(0), False), (np.int64(5), True), (1 << 40, False), (1 << 80, False), (-3, False)):
        other = Torch(stream)
        other.device_index = told
        if refused:
            with pytest.raises(lade.InvalidArgumentError, match="stream is on device 5; expected"):
                allocator.alloc(8, other)
        else:
            allocator.alloc(8, other)


def test_a_protocol_of_the_future(pool):
    with pytest.raises(lade.UnsupportedError, match="has version 3; this lade knows version 0"):
        pool.record(pool.empty(8), Protocol((3, 1)))


def test_errors_of_the_object_pass(pool):
    class Broken:
        @property
        def __cuda_stream__(self):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        pool.record(pool.empty(8), Broken())


def test_a_stream_of_another_runtime(pool):
    other = lade.software_device(clock="cpu")
    with pytest.raises(lade.InvalidArgumentError, match="of another runtime; expected a stream of runtime cpu"):
        pool.record(pool.empty(8), other.stream())


def test_a_handle_that_is_none(pool):
    with pytest.raises(lade.Error):
        pool.record(pool.empty(8), 0xDEAD00)


def test_a_dropped_stream_retires_itself(sim):
    pool = lade.PinnedPool(sim)
    target = lade.DeviceAllocator(sim).alloc(1 << 20)
    stream = sim.stream()
    buffer = pool.empty(1 << 20)
    lade.copy_async(sim, target, buffer, stream)
    pool.record(buffer, stream)
    del buffer, stream
    assert pool.stats()["quarantined_uses"] == 0
    sim.soft_advance(10**9)
    pool.process_events()
    assert pool.stats()["pending_blocks.current"] == 0
    assert sim.soft_report()["stale_handles"] == 0


def test_wait_and_query(sim):
    stream = sim.stream()
    assert stream.query()
    target = lade.DeviceAllocator(sim).alloc(1 << 20, stream)
    lade.fill_async(sim, target, 1, stream)
    assert not stream.query()
    stream.synchronize()
    assert stream.query()
    assert stream.__cuda_stream__() == (0, stream.handle) and stream.device == sim


@pytest.mark.parametrize("arena", ["PinnedPool", "DeviceAllocator"])
@pytest.mark.parametrize("end", ["close", "last reference"])
def test_a_stream_that_ends_while_its_memory_is_given_back(device, arena, end):
    """Regression: the close on another thread, which waits for a stream here, named one that was destroyed meanwhile."""
    if end == "last reference":
        conftest.ends_in_the_dropping_thread()
    held, stream = device.stream(), device.stream()
    holder = [getattr(lade, arena)(device)]
    if arena == "PinnedPool":
        blocks = [holder[0].empty(1 << 20) for _ in range(2)]
        for block, use in zip(blocks, (held, stream)):
            holder[0].record(block, use)
    else:
        blocks = [holder[0].alloc(30 << 20, use) for use in (held, stream)]
    held.soft_hold()
    for block, use in zip(blocks, (held, stream)):
        lade.fill_async(device, block, 1, use)
    del block, blocks, use
    closing = threading.Thread(target=holder[0].close if end == "close" else holder.clear)
    closing.start()
    time.sleep(0.2)  # it waits for the held stream now
    del stream
    held.soft_release()
    closing.join()
    report = device.soft_report()
    assert (report["stale_handles"], report["streams"]) == (0, 1), device.soft_last_finding()


@pytest.mark.parametrize("call", ["read_many", "copy", "save_file"])
def test_each_buffer_has_its_own_stream(device, tmp_path, call):
    """Regression: only the first one's stream, and for files none, was waited for where no stream was named."""
    allocator, pipeline, path = lade.DeviceAllocator(device), lade.Pipeline(device), tmp_path / "file"
    other, stream = device.stream(), device.stream()
    first, second = (allocator.empty(1000, "uint8", of) for of in (other, stream))
    lade.fill_async(device, first, 1, other)
    lade.fill_async(device, second, 1, stream)
    stream.soft_hold()
    lade.fill_async(device, second, 2, stream)
    releasing = threading.Timer(0.2, stream.soft_release)
    releasing.start()
    if call == "read_many":
        path.write_bytes(bytes([3]) * 1000)
        pipeline.read_many([(path, 0, first), (path, 0, second)]).wait()
        stream.synchronize()
        assert set(np.from_dlpack(second)) == {3}
    elif call == "copy":
        pipeline.copy(first, second).wait()
        assert set(np.from_dlpack(first)) == {2}
    else:
        ours.save_file({"first": first, "second": second}, path)
        assert set(ours.load_file(path, "cpu", framework="np")["second"]) == {2}
    releasing.join()
    del first, second, other
    assert device.soft_report()["stale_handles"] == 0
