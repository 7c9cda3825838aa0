# SPDX-License-Identifier: Apache-2.0
"""SleepPool: memory that goes back by tags and comes again, with its bytes where that was asked for."""

import contextlib
import os
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import lade

MIB = 1 << 20


@pytest.fixture
def pool(device):
    with lade.SleepPool(device=device) as made:
        yield made


def filled(pool, tag, seed, count=3 * MIB):
    """(buffer, what it holds)"""
    with pool.use(tag):
        buffer = pool.allocator.empty(count, "u1")
    value = np.random.default_rng(seed).integers(0, 255, count, np.uint8)
    shown(buffer)[:] = value
    return buffer, value


def shown(buffer):
    return np.from_dlpack(buffer)


def reserved(pool):
    return pool.allocator.usage()["reserved_bytes"]


@pytest.mark.parametrize("keep", ["pinned", "file"])
def test_bytes_come_back_under_their_addresses(pool, tmp_path, keep):
    path = tmp_path if keep == "file" else None
    buffer, value = filled(pool, "weights", 1)
    other, kept = filled(pool, "cache", 2)
    address, before = buffer.ptr, reserved(pool)
    for _ in range(2):
        assert pool.suspend(keep=keep, path=path) == before
        assert reserved(pool) == 0
        assert {tag: away for tag, (away, _) in pool.usage().items()} == {"weights": True, "cache": True}
        assert pool.backup_bytes == (before if keep == "pinned" else 0)
        assert not list(tmp_path.iterdir())
        pool.resume()
        assert reserved(pool) == before and buffer.ptr == address
        np.testing.assert_array_equal(shown(buffer), value)
        np.testing.assert_array_equal(shown(other), kept)
        shown(buffer)[:5] = value[:5] = 7


def test_tags_sleep_by_themselves(pool):
    buffer, value = filled(pool, "weights", 1)
    cache, _ = filled(pool, "cache", 2)
    pool.suspend("cache", keep=None)
    np.testing.assert_array_equal(shown(buffer), value)
    assert pool.usage()["weights"] == (False, pool.usage()["cache"][1])
    pool.suspend()  # those that are there
    pool.resume("weights")
    np.testing.assert_array_equal(shown(buffer), value)
    assert repr(pool) == "<lade.SleepPool: weights there 20 MiB, cache suspended 20 MiB>"
    pool.resume()
    shown(cache)[:] = 1  # there is memory


def test_a_tag_named_twice_is_one(pool, tmp_path):
    buffer, value = filled(pool, "weights", 1)
    before = reserved(pool)
    assert pool.suspend("weights", "weights") == before
    pool.resume("weights", "weights")
    assert pool.suspend("weights", "weights", keep="file", path=tmp_path / "one") == before
    pool.resume()
    np.testing.assert_array_equal(shown(buffer), value)


def test_a_named_file_is_there_until_the_resume(pool, tmp_path):
    buffer, value = filled(pool, "a", 1)
    name = tmp_path / "bytes"
    name.write_bytes(b"the user's")
    with pytest.raises(FileExistsError):
        pool.suspend(keep="file", path=name)
    assert name.read_bytes() == b"the user's" and pool.usage()["a"][0] is False
    name.unlink()
    count = pool.suspend(keep="file", path=name)
    content = name.read_bytes()
    assert len(content) == count and value.tobytes() in content
    os.truncate(name, 1000)
    with pytest.raises(lade.TruncatedError, match="file of a suspended pool") as caught:
        pool.resume()
    assert caught.value.__notes__ == ["tag 'a' of a SleepPool"]
    assert pool.usage()["a"][0] is True and reserved(pool) == 0
    name.write_bytes(content)
    pool.resume()
    np.testing.assert_array_equal(shown(buffer), value)
    assert not name.exists()


class Ending:
    """A native pool, at the end of whose suspend `function` is called."""

    def __init__(self, pool, function):
        self._pool, self._function = pool, function

    def __getattr__(self, name):
        return getattr(self._pool, name)

    def suspend(self, *arguments):
        count = self._pool.suspend(*arguments)
        self._function()
        return count


def test_a_named_file_goes_with_a_resume_at_the_end_of_the_suspend(pool, tmp_path):
    """Regression: a resume of another thread, before the suspend had noted the file, left it there."""
    buffer, value = filled(pool, "a", 1)
    other = threading.Thread(target=pool.resume, args=("a",))

    def resume():
        other.start()
        other.join(0.3)

    pool._pools["a"] = Ending(pool._pools["a"], resume)
    pool.suspend(keep="file", path=tmp_path / "bytes")
    other.join()
    np.testing.assert_array_equal(shown(buffer), value)
    assert pool.usage()["a"][0] is False and not list(tmp_path.iterdir())


def test_a_named_file_goes_with_a_close_at_the_end_of_the_suspend(pool, tmp_path):
    filled(pool, "a", 1)

    def close():
        with pytest.raises(lade.BusyError):  # the suspend uses the pipeline
            pool.close()

    pool._pools["a"] = Ending(pool._pools["a"], close)
    pool.suspend(keep="file", path=tmp_path / "bytes")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("named", [False, True])
def test_a_full_disk_leaves_it_as_it_was(pool, tmp_path, named):
    buffer, value = filled(pool, "a", 1)
    before, path = reserved(pool), tmp_path / "bytes" if named else tmp_path
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        with pytest.raises(lade.IOError):
            pool.suspend(keep="file", path=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert pool.usage()["a"][0] is False and reserved(pool) == before and not list(tmp_path.iterdir())
    np.testing.assert_array_equal(shown(buffer), value)
    pool.suspend(keep="file", path=path)
    pool.resume()
    np.testing.assert_array_equal(shown(buffer), value)


def test_the_backup_is_kept_or_goes_back(pool):
    filled(pool, "a", 1)
    pool.suspend()
    pool.resume()
    assert pool.backup_bytes == reserved(pool)
    pool.suspend()
    pool.resume(keep_backup=False)
    assert pool.backup_bytes == 0


def test_arrays_are_dropped_meanwhile(pool):
    buffer, value = filled(pool, "a", 1)
    dropped, _ = filled(pool, "a", 2)
    address, before = dropped.ptr, pool.allocator.usage()["allocated_bytes"]
    pool.suspend()
    del dropped
    assert pool.allocator.usage()["allocated_bytes"] == before // 2
    pool.resume()
    np.testing.assert_array_equal(shown(buffer), value)
    with pool.use("a"):
        assert pool.allocator.empty(3 * MIB, "u1").ptr == address


@pytest.mark.parametrize("keep", ["pinned", "file", None])
def test_all_goes_while_it_is_suspended(device, tmp_path, keep):
    pool = lade.SleepPool(device=device)
    allocator = pool.allocator
    buffer, _ = filled(pool, "a", 1)
    pool.suspend(keep=keep, path=tmp_path / "bytes" if keep == "file" else None)
    pool.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(lade.BusyError):
        allocator.close()
    del buffer
    allocator.close()


def test_what_keeps_it_awake_is_named(pool, device):
    buffer, _ = filled(pool, "a", 1)
    pool.suspend("a")
    with pytest.raises(lade.BusyError, match="it is suspended") as caught:
        pool.suspend("a")
    assert caught.value.__notes__ == ["tag 'a' of a SleepPool"]
    with pytest.raises(lade.BusyError, match="it is suspended"), pool.use("a"):
        pass
    with pytest.raises(lade.BusyError, match="it is suspended"):
        pool.allocator.record_stream(buffer, device.stream())
    pool.resume("a")
    with pytest.raises(lade.InvalidArgumentError, match="not suspended"):
        pool.resume("a")


def test_wrong_arguments_are_refused(pool, device, tmp_path):
    filled(pool, "a", 1), filled(pool, "b", 2)
    with pytest.raises(lade.InvalidArgumentError, match="tag is 'c'; expected one that was used: 'a', 'b'"):
        pool.suspend("c")
    with pytest.raises(lade.InvalidArgumentError, match='keep is "disk"|keep is \'disk\''):
        pool.suspend(keep="disk")
    with pytest.raises(lade.InvalidArgumentError, match="expected None with keep='pinned'"):
        pool.suspend(path=tmp_path)
    with pytest.raises(lade.InvalidArgumentError, match="one file, for 2 tags"):
        pool.suspend(keep="file", path=tmp_path / "one")
    with pytest.raises(TypeError, match="tag is a int"):
        pool.suspend(1)
    with pytest.raises(lade.UnsupportedError, match="lack expandable_segments:True and device_expandable_pools:True"):
        lade.SleepPool(lade.DeviceAllocator(device))
    assert [away for away, _ in pool.usage().values()] == [False, False]


def test_one_tag_fails_and_those_before_it_sleep(pool, tmp_path):
    buffer, value = filled(pool, "a", 1)
    large, _ = filled(pool, "b", 2, 30 * MIB)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (25 * MIB, hard))
    try:
        with pytest.raises(lade.IOError) as caught:
            pool.suspend(keep="file", path=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.__notes__ == ["tag 'b' of a SleepPool"]
    assert [away for away, _ in pool.usage().values()] == [True, False]
    pool.suspend()
    pool.resume()
    np.testing.assert_array_equal(shown(buffer), value)


def test_threads_go_on_beside_it(pool):
    buffer, value = filled(pool, "a", 1)
    ended, dropped = threading.Event(), []

    def work():
        while not ended.is_set():
            with contextlib.suppress(lade.BusyError), pool.use("a"):
                dropped.append(pool.allocator.empty(5000, "u1"))
            if len(dropped) > 8:
                dropped.clear()  # also while it is suspended

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    cycles = 0
    try:
        while cycles < 20:
            with contextlib.suppress(lade.BusyError):
                pool.suspend("a")
                pool.resume("a")
                cycles += 1
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    np.testing.assert_array_equal(shown(buffer), value)
    dropped.clear()
    assert pool.allocator.usage()["allocated_bytes"] == buffer.nbytes


SLEEPER = """
import sys, lade
pool = lade.SleepPool(device=lade.software_device(clock="cpu"))
with pool.use("w"):
    array = pool.allocator.empty(8 << 20, "uint8")
while True:
    print(pool.suspend("w", keep="file", path=sys.argv[1]), flush=True)
    print(pool.resume("w"), flush=True)
"""


def test_a_kill_leaves_nothing_of_a_file_without_a_name(tmp_path):
    lines = 0
    for at in range(12):  # after a line of it, and some time
        with subprocess.Popen([sys.executable, "-c", SLEEPER, tmp_path], stdout=subprocess.PIPE, text=True) as sleeper:
            for _ in range(1 + at % 4):
                lines += sleeper.stdout.readline() != ""
            time.sleep(at * 1e-3)
            sleeper.kill()
        assert list(tmp_path.iterdir()) == []
    assert lines == sum(1 + at % 4 for at in range(12))
