# SPDX-License-Identifier: Apache-2.0
"""Pinned buffers and device memory on a GPU: the CUDA array interface, DLPack, streams of others."""

import gc
import subprocess
import sys

import numpy as np
import pytest

import lade


@pytest.fixture(scope="module")
def device():
    try:
        return lade.cuda_device(0)
    except lade.NoDeviceError as error:
        pytest.skip(str(error))


@pytest.fixture
def pool(device):
    return lade.PinnedPool(device)


@pytest.fixture
def allocator(device):
    return lade.DeviceAllocator(device)


def pattern(count):
    return np.random.default_rng(count).integers(0, 256, count, "u1")


def test_there_and_back(device, pool, allocator):
    stream = device.stream()
    source, on_device, back = pool.empty(1 << 20), allocator.alloc(1 << 20, stream), pool.empty(1 << 20)
    source.numpy()[...] = pattern(1 << 20)
    lade.copy_async(device, on_device, source, stream)
    pool.record(source, stream)
    del source
    lade.copy_async(device, back, on_device, stream)
    stream.synchronize()
    assert (back.numpy() == pattern(1 << 20)).all()


def test_a_buffer_in_flight_is_not_handed_out(device, allocator):
    pool = lade.PinnedPool(device, event_batch=1)
    stream = device.stream()
    on_device = allocator.alloc(64 << 20, stream)
    for turn in range(8):
        source = pool.empty(64 << 20)
        source.numpy()[:] = turn
        lade.copy_async(device, on_device, source, stream)
        pool.record(source, stream)
        del source
    back = pool.empty(64 << 20)
    lade.copy_async(device, back, on_device, stream)
    stream.synchronize()
    assert (back.numpy() == 7).all()


def test_the_cuda_array_interface(device, allocator):
    stream = device.stream()
    interface = allocator.empty((2, 3), "f4", stream).__cuda_array_interface__
    assert (interface["version"], interface["shape"], interface["typestr"], interface["stream"]) == (3, (2, 3), "<f4", stream.handle)
    assert allocator.empty(3).__cuda_array_interface__["stream"] == 1  # 0 is not allowed there


def test_where_memory_is(pool, allocator):
    assert pool.empty(3).__dlpack_device__() == (3, 0) and allocator.empty(3).__dlpack_device__() == (2, 0)
    assert np.from_dlpack(pool.empty((2, 3), "i4")).shape == (2, 3)


def test_streams_of_consumers(device, allocator):
    stream = device.stream()
    buffer = allocator.empty(3, "f4", device.stream())
    for consumer in (None, -1, 1, 2, stream.handle):
        for version in (None, (1, 0)):
            capsule = buffer.__dlpack__(stream=consumer, max_version=version)
            assert ("versioned" in repr(capsule)) == (version is not None)
    with pytest.raises(lade.InvalidArgumentError, match="stream is 0"):
        buffer.__dlpack__(stream=0)
    del capsule, buffer
    gc.collect()
    assert allocator.usage()["allocated_bytes"] == 0


def test_the_default_stream_in_a_thread_without_a_context(device):
    program = "import lade; device = lade.cuda_device(0); print(lade.DeviceAllocator(device).alloc(8, None).nbytes)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "8\n", done.stderr


def test_torch_takes_device_memory(device, allocator):
    torch = pytest.importorskip("torch")
    for take in (torch.from_dlpack, lambda buffer: torch.as_tensor(buffer, device="cuda:0")):
        buffer = allocator.empty((4, 5), "f4", torch.cuda.current_stream())
        tensor = take(buffer)
        assert tensor.data_ptr() == buffer.ptr and tensor.shape == (4, 5)
        tensor.fill_(3)
        del buffer
        gc.collect()
        assert allocator.usage()["allocated_bytes"] > 0 and (tensor == 3).all().item()
        del tensor
        gc.collect()
    assert allocator.usage()["allocated_bytes"] == 0


def test_torch_copies_from_pinned_memory(device):
    torch = pytest.importorskip("torch")
    pool = lade.PinnedPool(device, event_batch=1)
    stream = torch.cuda.Stream()
    buffer = pool.empty(1 << 24)
    buffer.numpy()[...] = pattern(1 << 24)
    host = torch.from_numpy(buffer.numpy())
    with torch.cuda.stream(stream):
        on_device = host.to("cuda", non_blocking=True)
    pool.record(host, stream)
    pool.record(buffer, stream.cuda_stream)
    del host, buffer
    gc.collect()
    stream.synchronize()
    assert (on_device.cpu().numpy() == pattern(1 << 24)).all()


def test_memory_of_torch_is_read(device):
    torch = pytest.importorskip("torch")
    tensor = torch.arange(10, device="cuda", dtype=torch.bfloat16).requires_grad_()
    info = lade.memory_info(tensor)
    assert (info["ptr"], info["nbytes"], info["on_device"], info["ordinal"], info["dtype"]) == (tensor.data_ptr(), 20, True, 0, "bfloat16")
    with pytest.raises(lade.InvalidArgumentError, match="not contiguous"):
        lade.memory_info(torch.zeros(4, 4, device="cuda").T)
    with pytest.raises(lade.InvalidArgumentError, match="on device meta"):
        lade.memory_info(torch.zeros(4, device="meta"))
    host = torch.zeros(80, dtype=torch.uint8)
    lade.copy_async(device, host, tensor.detach().repeat(4).contiguous(), torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert host.view(torch.bfloat16)[9] == 9


def test_cupy_takes_device_memory(device, allocator):
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream()
    for take in (cupy.asarray, cupy.from_dlpack):
        buffer = allocator.empty((4, 5), "i4", stream)
        array = take(buffer)
        array[...] = 7
        assert array.data.ptr == buffer.ptr and (cupy.asnumpy(array) == 7).all()
        del array, buffer
    stream.synchronize()
    allocator.retire_stream(stream)  # which goes before the allocator, and CuPy destroys it then


def test_the_wrong_device(allocator):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    with pytest.raises(lade.InvalidArgumentError, match="stream is on device 1"):
        allocator.alloc(8, torch.cuda.Stream(1))
