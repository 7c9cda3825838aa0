# SPDX-License-Identifier: Apache-2.0
"""What is taken as a stream, and what is refused."""

import pytest

import lade


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


def forms(stream):
    return [stream, stream.handle, Protocol((0, stream.handle)), Torch(stream), Cupy(stream)]


@pytest.mark.parametrize("form", range(5))
def test_forms(sim, form):
    pool = lade.PinnedPool(sim, event_batch=1)
    target = lade.DeviceAllocator(sim).alloc(1 << 20)
    stream = sim.stream()
    buffer = pool.empty(1 << 20)
    address = buffer.ptr
    lade.copy_async(sim, target, buffer, stream)
    pool.record(buffer, forms(stream)[form])
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
        (Protocol(7), "gave 7; expected \\(0, handle\\)"),
        (Protocol((0, "x")), "expected \\(0, handle\\)"),
        (Protocol((0,)), "expected \\(0, handle\\)"),
    ],
)
def test_what_is_no_stream(pool, stream, words):
    with pytest.raises(lade.InvalidArgumentError, match=words):
        pool.record(pool.empty(8), stream)


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
