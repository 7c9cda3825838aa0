# SPDX-License-Identifier: Apache-2.0
"""Buffers as arrays: the buffer protocol, __array_interface__, DLPack."""

import gc

import numpy as np
import pytest

import lade


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
