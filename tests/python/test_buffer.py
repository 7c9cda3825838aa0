# SPDX-License-Identifier: Apache-2.0
"""Buffers as arrays: the buffer protocol, __array_interface__, DLPack."""

import gc
import warnings

import numpy as np
import pytest

import lade
import lade.safetensors


def test_a_view_holds_the_memory(pool):
    view = memoryview(pool.empty((3, 4), "float32"))
    gc.collect()
    assert view.shape == (3, 4) and view.format == "f" and view.strides == (16, 4)
    assert pool.stats()["in_use_blocks.current"] == 1
    view.release()
    assert pool.stats()["in_use_blocks.current"] == 0


@pytest.mark.parametrize("take", [np.asarray, np.from_dlpack])
def test_numpy_shows_the_same_bytes(pool, take):
    buffer = pool.empty((2, 3), np.int16)
    array = take(buffer)
    array[...] = np.arange(6).reshape(2, 3)
    assert memoryview(buffer).tolist() == [[0, 1, 2], [3, 4, 5]]
    del buffer
    assert pool.stats()["in_use_blocks.current"] == 1
    del array
    assert pool.stats()["in_use_blocks.current"] == 0


def test_errors_say_field_value_and_what_was_expected(pool):
    with pytest.raises(lade.InvalidArgumentError, match=r"shape is -1; expected an int of 0 or more"):
        pool.empty(-1)
    with pytest.raises(lade.InvalidArgumentError, match=r"dtype is 'float33'; expected"):
        pool.empty(1, "float33")
    with pytest.raises(ValueError, match="more bytes than an address space"):
        pool.empty((1 << 40, 1 << 40))


def test_a_buffer_that_no_pool_made_shows_no_memory(pool):
    class Own(lade.Buffer):
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nanobind's, about an object whose class was never called
        for made in (lade.Buffer.__new__(lade.Buffer), Own.__new__(Own)):
            with pytest.raises(BufferError, match="of no pool"):
                memoryview(made)
            with pytest.raises(BufferError, match="of no pool"):
                lade.memory_info(made)
            with pytest.raises(BufferError, match="of no pool"):
                pool.record(made, 0)


@pytest.mark.parametrize("kind", ["Buffer", "DeviceBuffer", "DeviceView"])
def test_every_array_says_what_it_is(tmp_path, kind):
    device, shape, dtype, where = lade.device("cpu"), (2, 3), "int16", "on"
    if kind == "Buffer":
        array, where = lade.PinnedPool(device).empty(shape, dtype), "near"
    elif kind == "DeviceBuffer":
        array = lade.DeviceAllocator(device).empty(shape, dtype)
    else:
        shape, dtype = (12,), "uint8"
        lade.safetensors.save_file({"a": np.zeros(shape, dtype)}, tmp_path / "a")
        array = lade.safetensors.load_file(tmp_path / "a", device="cpu", framework="lade")["a"]
    like = np.from_dlpack(array)
    assert type(array) is getattr(lade, kind)
    assert (array.nbytes, array.shape, array.ndim, array.dtype, array.itemsize) == (12, shape, len(shape), dtype, like.itemsize)
    assert len(array) == shape[0] and array.ptr == like.ctypes.data and array.device == device
    assert repr(array) == f"<lade.{kind} {shape} {dtype}, 12 B {where} cpu:0>"
