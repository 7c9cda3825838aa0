# SPDX-License-Identifier: Apache-2.0
"""PinnedPool.adopt(): memory of the program's own, pinned where it lies."""

import gc
import mmap
import multiprocessing
import os
import threading
import weakref
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

import lade

PAGE = mmap.PAGESIZE


def array(nbytes=3 * PAGE):
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


def is_pinned(pool, data):
    """Whether the driver has these pages: it registers none twice."""
    try:
        with pool.adopt(data):
            return False
    except lade.InvalidArgumentError:
        return True


def test_memory_is_pinned_until_the_end_of_the_block(pool):
    data = array()
    with pool.adopt(data) as adopted:
        assert is_pinned(pool, data) and not adopted.closed and adopted.nbytes == data.nbytes
        assert repr(adopted) == "<lade.Adopted 12.0 KiB>"
    assert adopted.closed and not is_pinned(pool, data) and repr(adopted) == "<lade.Adopted, closed>" and adopted.nbytes == 0
    adopted.close()  # again: nothing happens


def test_what_is_dropped_is_closed(pool):
    data = array()
    adopted = pool.adopt(data)
    del adopted
    gc.collect()
    assert not is_pinned(pool, data)


def test_the_array_and_the_pool_are_kept(device):
    pool = lade.PinnedPool(device)
    data = array()
    kept = weakref.ref(data)
    adopted = pool.adopt(data)
    with pytest.raises(lade.BusyError, match="cannot be closed"):
        pool.close()
    del data, pool
    gc.collect()
    assert kept() is not None
    adopted.close()
    gc.collect()
    assert kept() is None


def test_bytes_go_to_the_device_and_back(device, pool):
    data = array(5 * PAGE)
    data[:] = np.arange(data.size) % 251
    memory = lade.DeviceAllocator(device)
    with pool.adopt(data), lade.Pipeline(device, pool=pool) as pipeline:
        there = memory.empty(data.size, "uint8")
        pipeline.copy(there, data).wait()
        back = np.zeros_like(data)
        pipeline.copy(back, there).wait()
    assert (back == data).all()


def test_kinds_of_memory(pool, tmp_path):
    part = np.ones(PAGE, np.float32)[100:200]  # pages that begin and end elsewhere
    with pool.adopt(part):
        pass
    path = tmp_path / "file"
    path.write_bytes(bytes(PAGE))
    with open(path, "rb") as file:
        only_read = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with pool.adopt(only_read):
        with pytest.raises(BufferError):
            only_read.close()
    only_read.close()


def test_what_is_refused(device, pool):
    data = array()
    for wrong, error, words in [
        (None, TypeError, "array is"),
        (3, TypeError, "array is"),
        (data[::2], lade.InvalidArgumentError, "contiguous"),
        (data[:0], lade.InvalidArgumentError, "array has no bytes"),
        (pool.empty(10), lade.InvalidArgumentError, "pinned memory already"),
        (lade.DeviceAllocator(device).empty(10), lade.InvalidArgumentError, "device memory"),
    ]:
        with pytest.raises(error, match=words):
            pool.adopt(wrong)
    with pytest.raises(TypeError):
        pool.adopt(data, True)
    pool.close()
    with pytest.raises(lade.InvalidArgumentError, match="the PinnedPool is closed"):
        pool.adopt(data)


def test_refusals_of_the_driver_leave_things_as_they_were(device, pool):
    data = array()
    device.soft_fault("host_register", 1, lade.DriverError.status)
    with pytest.raises(lade.DriverError):
        pool.adopt(data)
    adopted = pool.adopt(data)
    device.soft_fault("host_unregister", 1, lade.DriverError.status)
    with pytest.raises(lade.DriverError):
        adopted.close()
    assert not adopted.closed and is_pinned(pool, data)
    adopted.close()
    assert not is_pinned(pool, data)


def test_one_of_several_threads_closes(pool):
    for _ in range(50):
        data = array()
        adopted = pool.adopt(data)
        threads = [threading.Thread(target=adopted.close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert adopted.closed and not is_pinned(pool, data)


def _fill(name, nbytes, rank, ranks, barrier):
    """A rank: fills its part of the shared memory, and copies all of it to its device."""
    device = lade.software_device(clock="cpu")
    pool = lade.PinnedPool(device)
    shared = SharedMemory(name)
    data = np.frombuffer(shared.buf, np.uint8)[:nbytes]
    with pool.adopt(data), lade.Pipeline(device, pool=pool) as pipeline:
        data[rank * nbytes // ranks : (rank + 1) * nbytes // ranks] = rank + 1
        barrier.wait()
        there = lade.DeviceAllocator(device).empty(nbytes, "uint8")
        pipeline.copy(there, data).wait()
        back = np.zeros(nbytes, np.uint8)
        pipeline.copy(back, there).wait()
    good = (back == np.repeat(np.arange(1, ranks + 1), nbytes // ranks)).all()
    del data
    shared.close()
    os._exit(0 if good else 1)


def test_processes_pin_memory_that_they_share():
    ranks, nbytes = 3, 3 * 5 * PAGE
    context = multiprocessing.get_context("spawn")
    shared = SharedMemory(create=True, size=nbytes)
    try:
        barrier = context.Barrier(ranks)
        processes = [context.Process(target=_fill, args=(shared.name, nbytes, rank, ranks, barrier)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * ranks
    finally:
        shared.close()
        shared.unlink()
