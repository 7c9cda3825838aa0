# SPDX-License-Identifier: Apache-2.0
"""RMM with lade's memory, on a GPU."""

import gc

import pytest

rmm = pytest.importorskip("rmm")
import numpy as np

import lade
import lade.rmm


@pytest.fixture
def allocator():
    allocator = lade.DeviceAllocator("cuda:0", event_batch=1)
    before = rmm.mr.get_current_device_resource()
    rmm.mr.set_current_device_resource(lade.rmm.resource(allocator))
    yield allocator
    gc.collect()
    rmm.mr.set_current_device_resource(before)


def test_device_buffers(allocator):
    data = np.random.default_rng(1).integers(0, 255, 1 << 20, "uint8").tobytes()
    buffer = rmm.DeviceBuffer.to_device(data)
    assert buffer.tobytes() == data
    assert allocator.usage()["requested_bytes"] == 1 << 20
    copy = buffer.copy()
    buffer.resize(4 << 20)
    assert copy.tobytes() == data
    del buffer, copy
    gc.collect()
    assert allocator.usage()["allocated_bytes"] == 0


def test_streams(allocator):
    from rmm.pylibrmm.stream import Stream

    streams = [Stream() for _ in range(3)]
    for number in range(100):
        stream = streams[number % 3]
        buffer = rmm.DeviceBuffer(size=(number + 1) * 1000, stream=stream)
        del buffer
    [stream.synchronize() for stream in streams]
    gc.collect()
    assert allocator.usage()["allocated_bytes"] == 0


def test_adaptors_on_top(allocator):
    statistics = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_current_device_resource())
    pointer = statistics.allocate(1000)
    assert statistics.allocation_counts.current_bytes >= 1000
    statistics.deallocate(pointer, 1000)
    limited = rmm.mr.LimitingResourceAdaptor(rmm.mr.get_current_device_resource(), 1 << 20)
    with pytest.raises(MemoryError):
        limited.allocate(2 << 20)


def test_out_of_memory(allocator):
    with pytest.raises(MemoryError):
        rmm.DeviceBuffer(size=1 << 50)
    assert rmm.DeviceBuffer(size=100).size == 100
