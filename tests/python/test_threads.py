# SPDX-License-Identifier: Apache-2.0
"""Threads that use one object at once, and close it under each other. In a free-threaded interpreter they run at the same time.

A call may find an object closed or in use; it finds no other state, and what was counted is counted once.
"""

import gc
import sys
import threading

import numpy as np
import pytest

import lade
import lade.graphs

THREADS = 6
REFUSED = (lade.BusyError, lade.InvalidArgumentError)


def all_at_once(*functions, count=THREADS):
    """Runs functions(number) in threads that begin together. What one raises is raised here."""
    functions = functions if len(functions) > 1 else functions * count
    barrier, raised = threading.Barrier(len(functions)), []

    def run(function, number):
        try:
            barrier.wait()
            function(number)
        except BaseException as error:  # told in the thread of the test
            raised.append(error)

    threads = [threading.Thread(target=run, args=(function, number)) for number, function in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), "a thread waits for ever"
    if raised:
        raise raised[0]


def several(function, rounds=200):
    return lambda number: [function(number) for _ in range(rounds)]


def refused_or(call):
    """A call beside a close: it may be refused."""
    try:
        return call()
    except REFUSED:
        return None


@pytest.mark.skipif(getattr(sys, "_is_gil_enabled", lambda: True)() and "t" not in sys.abiflags, reason="this interpreter has a global lock")
def test_the_import_takes_no_global_lock():
    assert not sys._is_gil_enabled()


def test_one_pool_for_all(pool):
    def use(number):
        buffer = pool.empty((number + 1) * 1000, "f4")
        array = buffer.numpy()
        array[:] = number
        pool.record(array, 0)
        view = memoryview(buffer)
        del buffer
        assert (array == number).all() and view.nbytes == (number + 1) * 4000
        pool.stats()

    all_at_once(several(use))
    gc.collect()
    assert pool.stats()["in_use_bytes.current"] == 0


@pytest.mark.parametrize("kind", ["pool", "allocator"])
def test_close_beside_calls(device, kind):
    """One that is closed while others call it: each call works, or is refused; the close works, or says that it is in use."""
    for _ in range(30):
        made = lade.PinnedPool(device) if kind == "pool" else lade.DeviceAllocator(device)
        closed = []

        def use(number, made=made):
            for _ in range(20):
                refused_or(lambda: made.empty(64 << number % 3))
                refused_or(made.stats)
                refused_or(lambda: made.record_history(10))
                refused_or(made.snapshot)
                repr(made)

        def close(number, made=made, closed=closed):
            while not made.closed:
                try:
                    made.close()
                except lade.BusyError:
                    continue
                closed.append(number)

        all_at_once(use, use, close, close)
        assert made.closed and closed
        with pytest.raises(lade.InvalidArgumentError, match="closed"):
            made.stats()


def test_blocks_end_in_other_threads(device):
    allocator = lade.DeviceAllocator(device)
    kept = [allocator.empty(1024) for _ in range(200)]
    capsules = [buffer.__dlpack__() for buffer in kept]

    def drop(number):
        for each in range(number, len(capsules), THREADS):
            capsules[each] = None
            kept[each] = None

    all_at_once(drop)
    assert allocator.usage()["allocated_bytes"] == 0
    allocator.close()


def test_element_types_are_learnt_by_all(pool):
    names = ["float32", "<f4", "f4", np.dtype("f4"), np.float32, "int64", np.int64, float, int, bool, np.dtype("i2"), "bfloat16"]
    all_at_once(several(lambda number: [pool.empty(3, name).dtype for name in names], 50))
    assert pool.empty(3, np.float32).dtype == "float32"


def test_one_ticket_for_all(device, pool, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    allocator = lade.DeviceAllocator(device)
    with lade.Pipeline(device, pool=pool) as pipeline:
        for _ in range(40):
            heard = []
            target = allocator.empty(256 * 64)
            ticket = pipeline.read_into(path, 0, target)

            def wait(number, ticket=ticket, heard=heard):
                ticket.add_done_callback(heard.append)
                if number % 2:
                    assert ticket.result() is not None
                else:
                    ticket.wait()
                ticket.done(), ticket.bytes_done, repr(ticket)

            all_at_once(wait)
            assert ticket.exception() is None and bytes(memoryview(np.from_dlpack(target))) == path.read_bytes()
    assert len(heard) == THREADS


def test_a_pipeline_that_closes_beside_reads(device, pool, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4096)
    allocator = lade.DeviceAllocator(device)
    for _ in range(10):
        pipeline = lade.Pipeline(device, pool=pool)

        def read(number, pipeline=pipeline):
            target = allocator.empty(4096)
            for _ in range(20):
                ticket = refused_or(lambda: pipeline.read_into(path, 0, target))
                if ticket is not None:
                    ticket.wait()

        all_at_once(read, read, read, lambda number, pipeline=pipeline: pipeline.close())
        assert pipeline.closed


def test_an_index_beside_readers(tmp_path):
    path = tmp_path / "records"
    path.write_bytes(b"r" * 400)
    index = lade.RecordIndex()

    def add(number):
        for _ in range(50):
            while True:
                try:
                    index.add_fixed(path, 100)
                    break
                except lade.BusyError:
                    continue

    def read(number):
        for _ in range(300):
            count = refused_or(lambda: len(index))
            if count:
                refused_or(lambda count=count: index.range(count - 1))
                refused_or(lambda: index.key(0))
            repr(index)

    all_at_once(add, add, read, read)
    assert len(index) == 2 * 50 * 4


def test_batches_go_to_one_thread_each(device, tmp_path):
    path = tmp_path / "records"
    path.write_bytes(b"".join(number.to_bytes(8, "little") for number in range(600)))
    index = lade.RecordIndex()
    index.add_fixed(path, 8)
    seen, lock = [], threading.Lock()
    with lade.Loader(index, 4, device=device, epochs=1, prefetch=8) as loader:

        def take(number):
            while True:
                try:
                    batch = next(loader)
                except StopIteration:
                    return
                records, array = batch.numbers(), batch[0]
                with lock:
                    seen.extend(records)
                refused_or(lambda: loader.state_dict())
                del array
                batch.release()

        all_at_once(take, count=4)
    assert sorted(seen) == list(range(600))


def test_a_batch_released_by_all(device, tmp_path):
    path = tmp_path / "records"
    path.write_bytes(b"r" * 6400)
    index = lade.RecordIndex()
    index.add_fixed(path, 64)
    with lade.Loader(index, 2, device=device, epochs=1) as loader:
        for batch in loader:

            def use(number, batch=batch):
                refused_or(lambda: batch[0])
                refused_or(batch.numbers)
                batch.release()

            all_at_once(use, count=4)
            assert repr(batch) == "<lade.Batch, released>"


def test_a_publisher_closed_by_all(pool):
    for _ in range(20):
        publisher = lade.publish(pool, interval=60)

        def use(number, publisher=publisher):
            for _ in range(10):
                refused_or(publisher.update)
            publisher.close()

        all_at_once(use, count=4)
    pool.close()


def test_adopted_memory_closed_by_all(pool):
    for _ in range(30):
        adopted = pool.adopt(np.zeros(1 << 16, np.uint8))

        def close(number, adopted=adopted):
            repr(adopted), adopted.nbytes
            adopted.close()

        all_at_once(close, count=4)
        assert adopted.closed


def test_trees_close_beside_runs(device):
    allocator = lade.DeviceAllocator(device)
    for _ in range(10):
        stream = device.stream()
        source = allocator.empty((8, 16), "float32", stream)
        tree = lade.graphs.Tree(allocator, stream=stream)

        def body(x):
            out = allocator.empty(x.shape, "float32", lade.graphs.stream())
            lade.copy_blocks(device, out, x, range(8), range(8), lade.graphs.stream())
            return out

        function = tree.function(body)

        def run(number, function=function, tree=tree, source=source):
            for _ in range(5):
                refused_or(lambda: function(source))
                refused_or(tree.stats)

        def close(number, tree=tree):
            for _ in range(20):
                refused_or(tree.close)

        all_at_once(run, close)
        del function, run, close, body
        gc.collect()
        refused_or(tree.close)
        stream.synchronize()


def test_stacks_are_captured_by_all(pool, tmp_path):
    pool.record_history(1000)
    all_at_once(several(lambda number: pool.empty(100 + number), 50))
    assert gc.isenabled()
    pool.snapshot(tmp_path / "pool.json")
    assert "test_threads.py" in (tmp_path / "pool.json").read_text()
