# SPDX-License-Identifier: Apache-2.0
"""PinnedPool: what its arguments mean, what it refuses, when memory comes back."""

import _thread
import glob
import os
import sys
import threading

import numpy as np
import pytest

import lade

MiB = 1 << 20


def in_use(pool):
    return pool.stats()["in_use_blocks.current"]


@pytest.mark.parametrize(
    "dtype, name",
    [
        (None, "uint8"),
        ("f4", "float32"),
        ("<f8", "float64"),
        ("int16", "int16"),
        (np.float32, "float32"),
        (np.dtype("c8"), "complex64"),
        (np.bool_, "bool"),
        (bool, "bool"),
        (float, "float64"),
        (int, "int64"),
        (complex, "complex128"),
        ("bfloat16", "bfloat16"),
        ("float8_e4m3fn", "float8_e4m3fn"),
    ],
)
def test_dtypes(pool, dtype, name):
    for _ in range(2):  # the second time it is known already
        assert pool.empty(3, dtype).dtype == name


@pytest.mark.parametrize("dtype", ["float33", ">f4", np.dtype(">i4"), "O", object, np.dtype("M8[s]"), [("a", "f4")], 3, b"f4", ""])
def test_unknown_dtypes_are_refused(pool, dtype):
    for _ in range(2):
        with pytest.raises(lade.InvalidArgumentError, match="^dtype is .*expected a name such as"):
            pool.empty(1, dtype)


@pytest.mark.parametrize(
    "shape, expected", [(0, (0,)), ((), ()), ((2, 0, 3), (2, 0, 3)), ([2, 3], (2, 3)), (np.int32(4), (4,)), ((1,) * 64, (1,) * 64), (range(3), (0, 1, 2))]
)
def test_shapes(pool, shape, expected):
    buffer = pool.empty(shape, "i4")
    assert buffer.shape == expected and buffer.nbytes == 4 * int(np.prod(expected))
    assert np.asarray(buffer).shape == expected
    assert np.from_dlpack(buffer).shape == expected


@pytest.mark.parametrize("shape", [-1, (2, -3), None, "3", 1.5, (1, None), b"ab", 1 << 64, -(1 << 70), {3}])
def test_shapes_that_are_none(pool, shape):
    with pytest.raises(lade.InvalidArgumentError, match="^shape is .*expected an int of 0 or more"):
        pool.empty(shape)


def test_shapes_that_are_too_large(pool):
    with pytest.raises(lade.InvalidArgumentError, match="shape has 65 dimensions; expected at most 64"):
        pool.empty((1,) * 65)
    for shape in ((1 << 62, 2), (1 << 40, 1 << 40), (1 << 62,)):
        with pytest.raises(lade.InvalidArgumentError, match="more bytes than an address space"):
            pool.empty(shape, "i4")
    with pytest.raises(lade.InvalidArgumentError):
        pool.empty(1 << 60)
    with pytest.raises((lade.LimitError, lade.OutOfPinnedMemoryError)) as error:
        pool.empty(1 << 50)
    assert isinstance(error.value, MemoryError) and in_use(pool) == 0


def test_the_cap(device):
    pool = lade.PinnedPool(device, max_bytes=4 * MiB, segment_bytes=MiB, magazine_bytes=0)
    kept = [pool.empty(MiB) for _ in range(4)]
    with pytest.raises(lade.LimitError) as error:
        pool.empty(MiB)
    assert error.value.status == lade.LimitError.status == 6
    del kept[0]
    assert pool.empty(MiB).nbytes == MiB
    assert pool.settings()["max_bytes"] == 4 * MiB


@pytest.mark.parametrize(
    "keywords, words",
    [
        ({"max_bytes": 0}, "max_bytes is 0; expected 1 or more"),
        ({"segment_bytes": 12345}, "segment_bytes"),
        ({"max_bytes": -1}, "max_bytes is -1; expected an int of 0 or more"),
        ({"max_bytes": 1.5}, "max_bytes is a float; expected an int"),
        ({"max_bytes": 1 << 64}, "max_bytes is 18446744073709551616; expected"),
        ({"event_batch": 0}, "event_batch is 0"),
        ({"wait_ms": 1 << 32}, "wait_ms is 4294967296; expected at most 4294967295"),
        ({"sources": "disk"}, "sources has 'disk'; expected"),
        ({"sources": []}, "sources is empty"),
        ({"settings": "nonsense:1"}, "nonsense"),
        ({"budget_name": "a b"}, "budget_name is \"a b\"; expected 1 to 63 letters"),
        ({"budget_name": "a\0b"}, r"budget_name is 'a\\x00b'; expected a str without null"),
        ({"budget_name": 3}, "budget_name is a int; expected a str"),
        ({"budget_share": "most"}, "budget_share is 'most'; expected"),
        ({"budget_share": "part"}, "budget_part_bytes is 0; expected more than 0"),
        ({"budget_part_bytes": 1}, "budget_part_bytes is 1; expected 0 without"),
        ({"budget_bytes": 0}, "budget_bytes is 0; expected 1 or more"),
        ({"local_ranks": 0}, "local_ranks is 0; expected 1 or more"),
        ({"device": "gpu0"}, 'device is "gpu0"; expected'),
        ({"device": 1.5}, "device is a float; expected"),
        ({"device": np.int64(-1)}, "device is -1; expected a GPU.s number from 0 on"),
        ({"device": True}, "device is a bool; expected"),
    ],
)
def test_arguments_that_are_refused(device, keywords, words):
    with pytest.raises(lade.Error, match=words):
        lade.PinnedPool(**{"device": device, **keywords})


def test_settings_as_text(device):
    pool = lade.PinnedPool(device, settings="pinned_max_mb:64,pinned_event_batch:3", event_batch=2)
    assert pool.settings()["max_bytes"] == 64 * MiB and pool.settings()["event_batch"] == 2


@pytest.mark.skipif("t" in sys.abiflags, reason="this interpreter has no such lock")
def test_warm_blocks_are_taken_without_letting_go_of_the_interpreter(device):
    pool = lade.PinnedPool(device)
    closed, ran = _thread.allocate_lock(), []
    closed.acquire()

    def wait():
        with closed:
            ran.append(True)

    other = threading.Thread(target=wait)
    other.start()
    pool.empty(1), pool.empty(1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # so it runs when this one lets go
    try:
        closed.release()
        for _ in range(20000):
            pool.empty(1)
        at_the_end = list(ran)
    finally:
        sys.setswitchinterval(interval)
    other.join()
    assert not at_the_end and ran


def test_the_constructor_takes_settings_in_force(device):
    pool = lade.PinnedPool(device, wait_ms=3)
    alike = lade.PinnedPool(device, **pool.settings())
    assert alike.settings() == pool.settings() and pool.settings()["segment_bytes"] is None
    kept = pool.empty(1), alike.empty(1)
    assert alike.stats()["reserved_bytes.current"] == pool.stats()["reserved_bytes.current"]
    del kept


@pytest.fixture
def budget_name():
    """Of a budget that no other process is in; its file goes with the test."""
    name = f"lade-test-{os.getpid()}"
    yield name
    for path in glob.glob(f"/dev/shm/lade-budget-{os.geteuid()}*{name}*"):
        os.unlink(path)


def test_pools_share_a_budget(device, budget_name):
    one, other = [lade.PinnedPool(device, budget=True, budget_name=budget_name, budget_bytes=8 * MiB, segment_bytes=MiB) for _ in "ab"]
    kept = [one.empty(MiB) for _ in range(6)], [other.empty(MiB) for _ in range(2)]
    with pytest.raises(lade.LimitError, match="budget"):
        other.empty(MiB)
    assert other.stats()["budget_held_bytes"] == 8 * MiB
    assert glob.glob(f"/dev/shm/*{budget_name}*")
    del kept


def test_settings_of_a_budget(device, budget_name):
    """Its name was read after the settings that it is part of were gone."""
    wanted = {"budget": True, "budget_name": budget_name, "budget_bytes": 64 * MiB, "budget_share": "part", "budget_part_bytes": MiB,
              "local_ranks": 3}
    text = f"pinned_budget:on,pinned_budget_name:{budget_name},pinned_budget_mb:64,pinned_budget_share:part,pinned_budget_part_mb:1"
    by_text = lade.PinnedPool(device, settings=text, local_ranks=3)
    by_name = lade.PinnedPool(device, **wanted)
    for pool in (by_text, by_name, lade.PinnedPool(device, **by_text.settings())):
        assert {key: pool.settings()[key] for key in wanted} == wanted
    without = lade.PinnedPool(device, budget=False).settings()
    assert without["budget"] is False and without["budget_name"] is None and without["budget_share"] == "first_come"


def test_a_buffer_in_flight_is_not_handed_out(sim):
    pool = lade.PinnedPool(sim, event_batch=1)
    target = lade.DeviceAllocator(sim).alloc(MiB)
    stream = sim.stream()
    buffer = pool.empty(MiB)
    address = buffer.ptr
    lade.copy_async(sim, target, buffer, stream)
    pool.record(buffer, stream)
    del buffer
    assert pool.find(address)["state"] == "pending"
    assert pool.empty(MiB).ptr != address
    stream.synchronize()
    pool.process_events()
    assert pool.find(address)["state"] == "cached"
    assert sim.soft_report()["freed_memory_used"] == 0


def test_record_by_any_view(sim):
    pool = lade.PinnedPool(sim, event_batch=1)
    stream = sim.stream()
    target = lade.DeviceAllocator(sim).alloc(4 * MiB)
    array = pool.empty(MiB, "f4").numpy()
    lade.copy_async(sim, target, array, stream)
    pool.record(array[10:20], stream)
    address = array.ctypes.data
    del array
    assert pool.find(address)["state"] == "pending"


def test_record_refuses_by_name(device, pool):
    other = lade.PinnedPool(device)
    with pytest.raises(lade.ForeignPointerError, match="another PinnedPool"):
        pool.record(other.empty(8), 0)
    with pytest.raises(lade.ForeignPointerError):
        pool.record(np.zeros(8), 0)
    with pytest.raises(lade.InvalidArgumentError, match="buffer is a int"):
        pool.record(8, 0)
    with pytest.raises(lade.InvalidArgumentError, match="in device memory; expected pinned memory"):
        pool.record(lade.DeviceAllocator(device).alloc(8), 0)
    pool.record(pool.empty(0), 0)  # nothing to note
    array = pool.empty((4, 4)).numpy()
    for view in (array[:0], array.reshape(-1)[0:0]):
        pool.record(view, 0)
    with pytest.raises(lade.InvalidArgumentError, match="not contiguous"):
        pool.record(array[:, ::2], 0)


def test_record_by_views_of_each_kind(sim):
    pool = lade.PinnedPool(sim, event_batch=1, segment_bytes=MiB)
    stream = sim.stream()
    target = lade.DeviceAllocator(sim).alloc(MiB)
    views = [
        lambda array: memoryview(array),
        lambda array: array[5:6],
        lambda array: array.view("V16"),
        lambda array: (array.setflags(write=False), array)[1],
        lambda array: array.reshape(2, -1)[1],
    ]
    for view in views:
        array = pool.empty(MiB, "u1").numpy()
        lade.copy_async(sim, target, array, stream)
        pool.record(view(array), stream)
        address = array.ctypes.data
        del array
        assert pool.find(address)["state"] == "pending"
        stream.synchronize()
        pool.process_events()


@pytest.mark.parametrize("call", ["record", "record_use"])
def test_a_stream_that_closes_the_pool_when_it_is_asked(pool, call):
    """Regression: the pool was used nevertheless."""

    class Stream:
        def __cuda_stream__(self):
            pool.close()
            return 0, 1

    with pytest.raises(lade.InvalidArgumentError, match="closed"):
        getattr(pool, call)(bytearray(100), Stream())


def test_reserve_trim_and_statistics(device):
    pool = lade.PinnedPool(device, segment_bytes=MiB)
    pool.reserve(3 * MiB)
    assert pool.stats()["reserved_bytes.current"] == 3 * MiB
    pool.trim(MiB)
    assert pool.stats()["reserved_bytes.current"] == MiB
    pool.empty_cache()
    assert pool.stats()["reserved_bytes.current"] == 0
    assert pool.stats()["allocated_bytes.peak"] == 3 * MiB
    for call in (pool.trim, pool.reserve):
        for bad in (-1, None, "1", 1 << 70):
            with pytest.raises(lade.InvalidArgumentError, match="bytes is .*expected an int of 0 or more"):
                call(bad)
    pool.reset_peak_stats()
    assert pool.stats()["allocated_bytes.peak"] == 0
    assert "Reserved memory" in pool.summary() and len(pool.summary()) > len(pool.summary(abbreviated=True))


def test_a_failing_driver(device):
    pool = lade.PinnedPool(device, sources="register")
    device.soft_fault("host_register", 0, lade.OutOfPinnedMemoryError.status)
    with pytest.raises(lade.OutOfPinnedMemoryError):
        pool.empty(8)
    device.soft_fault_clear()
    assert pool.empty(8).nbytes == 8


@pytest.mark.parametrize("suffix, words", [
    (".trace.json", "traceEvents"),
    (".json", "lade-snapshot"),
    (".segments.folded", ";seg_"),
    (".folded", ";active_allocated;"),
    (".openmetrics", "# EOF"),
])
def test_suffixes_mean_what_lade_snapshot_takes_them_for(pool, tmp_path, suffix, words):
    """.trace.json was lade's JSON."""
    buffer = pool.empty(4096)
    pool.snapshot(tmp_path / ("pool" + suffix))
    assert words in (tmp_path / ("pool" + suffix)).read_text()
    assert buffer.nbytes == 4096


def test_snapshots(pool, tmp_path):
    pool.record_history(1000)
    buffer = pool.empty(4096)
    for suffix in (".json", ".pickle", ".html", ".prom"):
        pool.snapshot(tmp_path / ("pool" + suffix))
        assert (tmp_path / ("pool" + suffix)).stat().st_size > 100
    pool.snapshot(str(tmp_path / "text"), format="json")
    with pytest.raises(lade.InvalidArgumentError, match="whose suffix means no format"):
        pool.snapshot(tmp_path / "pool.doc")
    with pytest.raises(lade.InvalidArgumentError, match='format is "doc"; expected one of pickle'):
        pool.snapshot(tmp_path / "pool.json", format="doc")
    with pytest.raises(OSError) as error:
        pool.snapshot(tmp_path / "no folder" / "pool.json")
    assert isinstance(error.value, lade.IOError) and error.value.native_code == 2
    pool.record_history(None)
    assert buffer.nbytes == 4096


def test_latencies(pool):
    pool.record_latencies()
    pool.empty(8)
    assert pool.latencies()["alloc_ns.count"] == 1


def test_a_closed_pool(device):
    pool = lade.PinnedPool(device)
    buffer = pool.empty(8)
    with pytest.raises(lade.BusyError, match="1 buffers"):
        pool.close()
    assert pool.empty(8).nbytes == 8  # it stays usable
    del buffer
    pool.close()
    pool.close()
    assert pool.closed and "closed" in repr(pool)
    for call in (lambda: pool.empty(1), lambda: pool.empty(0), pool.stats, pool.trim, pool.process_events, lambda: pool.reserve(1)):
        with pytest.raises(ValueError, match="the PinnedPool is closed"):
            call()


def test_close_waits_or_says_that_it_would(sim):
    pool = lade.PinnedPool(sim, event_batch=1)
    target = lade.DeviceAllocator(sim).alloc(MiB)
    stream = sim.stream()
    buffer = pool.empty(MiB)
    lade.copy_async(sim, target, buffer, stream)
    pool.record(buffer, stream)
    del buffer
    with pytest.raises(lade.NotReadyError):
        pool.close(wait=False)
    assert not pool.closed
    pool.close()
    assert pool.closed


def test_threads(device):
    pool = lade.PinnedPool(device, segment_bytes=MiB)
    stream = device.stream()
    failures = []

    def work(seed):
        try:
            random = np.random.default_rng(seed)
            kept = []
            for _ in range(300):
                buffer = pool.empty(int(random.integers(1, 5000)))
                view = np.asarray(buffer)
                view[:] = seed
                pool.record(view, stream)
                kept.append(view)
                if len(kept) > 8:
                    assert (kept.pop(0) == seed).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and in_use(pool) == 0
