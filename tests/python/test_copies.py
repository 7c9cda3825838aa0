# SPDX-License-Identifier: Apache-2.0
"""lade.copy_blocks: pages between arrays by number."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import lade

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Caches:
    """A pinned array of 40 blocks with other values in each, and a device array of 30 blocks of zeros."""

    def __init__(self, device, shape=(7, 3), dtype="float32"):
        self.device, self.stream = device, device.stream()
        self.pool, self.allocator = lade.PinnedPool(device), lade.DeviceAllocator(device)
        self.host = self.pool.empty((40, *shape), dtype)
        self.pages = np.asarray(self.host)
        self.pages[...] = np.arange(self.pages.size).reshape(self.pages.shape)
        self.on_device = self.allocator.empty((30, *shape), dtype, self.stream)
        lade.fill_async(device, self.on_device, 0, self.stream)

    def read(self):
        out = self.pool.empty(self.on_device.shape, self.on_device.dtype)
        lade.copy_async(self.device, out, self.on_device, self.stream)
        self.stream.synchronize()
        return np.asarray(out)


@pytest.mark.parametrize("ids", [list, tuple, np.array, lambda values: [np.int64(value) for value in values], lambda values: np.array(values, "int32")])
def test_pages_go_out_and_in(device, ids):
    caches = Caches(device)
    to, source = [3, 29, 0, 17], [39, 0, 5, 5]
    lade.copy_blocks(device, caches.on_device, caches.host, ids(to), ids(source), caches.stream)
    expected = np.zeros((30, 7, 3), "float32")
    expected[to] = caches.pages[source]
    np.testing.assert_array_equal(caches.read(), expected)
    back = caches.pool.empty((10, 7, 3), "float32")
    np.asarray(back)[...] = -1
    lade.copy_blocks(device, back, caches.on_device, ids([9, 1]), ids([29, 3]), caches.stream)
    caches.stream.synchronize()
    np.testing.assert_array_equal(np.asarray(back)[[9, 1]], expected[[29, 3]])
    assert (np.asarray(back)[[0, 2, 3, 4, 5, 6, 7, 8]] == -1).all()


def test_layers_share_their_ids(device):
    layers = [Caches(device) for _ in range(3)]
    stream = layers[0].stream
    lade.copy_blocks(device, [c.on_device for c in layers], tuple(c.host for c in layers), range(5), range(10, 15), stream)
    stream.synchronize()
    for caches in layers:
        np.testing.assert_array_equal(caches.read()[:5], caches.pages[10:15])


def test_ids_on_the_device(device):
    caches = Caches(device)
    lade.copy_prepare(device)
    ids = caches.allocator.empty((2, 4), "int64", caches.stream)
    host = caches.pool.empty((2, 4), "int64")
    np.asarray(host)[...] = [[1, 2, 3, 4], [30, 20, 10, 0]]
    lade.copy_async(device, ids, host, caches.stream)
    to, source = (caches.allocator.empty(4, "int64", caches.stream) for _ in range(2))
    lade.copy_blocks(device, [to], [source], [], [], caches.stream)  # nothing
    for row, target in enumerate((to, source)):
        values = caches.pool.empty(4, "int64")
        np.asarray(values)[...] = np.asarray(host)[row]
        lade.copy_async(device, target, values, caches.stream)
        caches.stream.synchronize()
    lade.copy_blocks(device, caches.on_device, caches.host, to, source, caches.stream)
    np.testing.assert_array_equal(caches.read()[[1, 2, 3, 4]], caches.pages[[30, 20, 10, 0]])
    assert lade.copy_stats(device)["kernel_pieces"] == 4
    with pytest.raises(lade.InvalidArgumentError, match="expected ids in device memory, as the other list"):
        lade.copy_blocks(device, caches.on_device, caches.host, to, [1, 2, 3, 4], caches.stream)


def test_many_short_blocks_go_by_the_kernel(device):
    caches = Caches(device)
    lade.copy_prepare(device)
    lade.copy_blocks(device, caches.on_device, caches.host, list(range(0, 30, 2)), list(range(15)), caches.stream)
    np.testing.assert_array_equal(caches.read()[::2], caches.pages[:15])
    stats = lade.copy_stats(device)
    assert (stats["kernel_pieces"], stats["kernel_bytes"], stats["kernel_loaded"]) == (15, 15 * 84, 1)
    assert stats["engine_from_bytes.to_device"] > 84 and stats["kernel_blocks.from_device"] >= 8


def test_refusals_name_the_block(device):
    caches = Caches(device)

    def copy(to, source, destination=caches.on_device, origin=caches.host):
        lade.copy_blocks(device, destination, origin, to, source, caches.stream)

    for to, source, text in (
            ([1, 30], [0, 1], r"dst_ids\[1\] is 30; expected 0 to 29"),
            ([1, 2], [0, 40], r"src_ids\[1\] is 40; expected 0 to 39"),
            ([1, 2], [0, -1], r"src_ids\[1\]"),
            ([4, 5, 4], [0, 1, 2], "each once"),
            ([1], [0, 1], "source_ids has 2 ids and destination_ids 1"),
            ([1, "x"], [0, 1], "destination_ids has a str"),
            ([True], [0], "destination_ids has a bool"),
            ([1 << 70], [0], "destination_ids has 1180591620717411303424; expected ids below"),
            (np.array([1.0]), [0], "of type float64"),
            (np.array([[1]]), [0], "2 dimensions"),
            (np.array([1], "int32"), np.array([1], "int64"), "two types")):
        with pytest.raises(lade.InvalidArgumentError, match=text):
            copy(to, source)
    with pytest.raises(lade.InvalidArgumentError, match="blocks of one size"):
        copy([0], [0], origin=caches.pool.empty((4, 5)))
    with pytest.raises(lade.InvalidArgumentError, match="no blocks"):
        copy([0], [0], origin=caches.pool.empty((0, 5)))
    with pytest.raises(lade.InvalidArgumentError, match="lists of as many arrays"):
        copy([0], [0], origin=[caches.host])
    with pytest.raises(lade.InvalidArgumentError, match="pinned"):
        copy([0], [0], origin=np.zeros((40, 7, 3), "float32"))
    assert not caches.read().any()


def test_the_example_moves_pages():
    done = subprocess.run([sys.executable, str(ROOT / "examples" / "paged_cache.py"), "--software"], check=True, text=True, stdout=subprocess.PIPE)
    kernel, engine = (int(re.search(f"'{way}_pieces': ([0-9]+)", done.stdout)[1]) for way in ("kernel", "engine"))
    assert kernel + engine == 2 * 11 * 4 * 1024  # all pages; the processor's copies may be as fast either way
