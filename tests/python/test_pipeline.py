# SPDX-License-Identifier: Apache-2.0
"""Pipelines and tickets, on software devices."""

import asyncio
import contextlib
import gc
import os
import threading
import weakref

import numpy as np
import pytest

import lade

SIZE = 3 * 1024 * 1024 + 17


class Stage:
    """A device with what a transfer needs, and a file of random bytes."""

    def __init__(self, device, folder):
        self.device = device
        self.stream = device.stream()
        self.allocator = lade.DeviceAllocator(device)
        self.pipeline = lade.Pipeline(device)
        self.data = os.urandom(SIZE)
        self.path = folder / "source.bin"
        self.path.write_bytes(self.data)

    def empty(self, count=SIZE):
        return self.allocator.empty(count, "uint8", stream=self.stream)

    def held(self, count=SIZE):
        """A transfer that does not end before release(): it runs after a stream that is held."""
        self.stream.soft_hold()
        return self.pipeline.read_into(self.path, 0, self.empty(count), stream=self.stream)

    def release(self):
        self.stream.soft_release()

    def bytes_of(self, buffer):
        out = np.empty(buffer.nbytes, np.uint8)
        self.pipeline.copy(out, buffer).wait()
        return out.tobytes()


@pytest.fixture
def stage(device, tmp_path):
    return Stage(device, tmp_path)


def test_file_to_device_and_back(stage, tmp_path):
    buffer = stage.empty()
    ticket = stage.pipeline.read_into(stage.path, 0, buffer)
    assert ticket.result() is buffer
    assert ticket.done() and not ticket.cancelled() and ticket.exception() is None
    assert ticket.bytes == ticket.bytes_done == SIZE
    assert bytes(np.from_dlpack(buffer)) == stage.data
    target = tmp_path / "target.bin"
    stage.pipeline.write_from(target, 5, buffer, atomic=True, sync=True).wait()
    assert target.read_bytes() == b"\0" * 5 + stage.data


def test_part_of_a_file(stage):
    buffer = stage.empty(1000)
    stage.pipeline.read_into(os.fspath(stage.path), 77, buffer, bytes=900).wait()
    assert stage.bytes_of(buffer)[:900] == stage.data[77:977]


def test_descriptor_may_be_closed_at_once(stage):
    buffer = stage.empty()
    with open(stage.path, "rb") as file:
        by_object = stage.pipeline.read_into(file, 0, buffer)
    by_object.wait()
    fd = os.open(stage.path, os.O_RDONLY)
    by_number = stage.pipeline.read_into(fd, 1, stage.empty(SIZE - 1))
    os.close(fd)
    by_number.wait()
    assert stage.bytes_of(buffer) == stage.data
    assert stage.bytes_of(by_number.result()) == stage.data[1:]


def test_no_descriptor_is_left(stage):
    stage.pipeline.read_into(stage.path, 0, stage.empty(100)).wait()  # what the pipeline opens for itself is open then
    before = len(os.listdir("/proc/self/fd"))
    with open(stage.path, "rb") as file:
        for _ in range(20):
            stage.pipeline.read_into(file, 0, stage.empty(100)).wait()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_refused_transfer_leaves_no_descriptor(stage):
    """Of an open file that was passed, where what comes behind it is refused."""
    buffer = stage.empty(100)
    with open(stage.path, "r+b") as file:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(lade.InvalidArgumentError, match="expected a path then"):
                stage.pipeline.write_from(file, 0, buffer, atomic=True)
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_refused_transfer_lets_go_of_its_tensors(stage):
    """Of pieces before the one that is refused: they stayed alive until the end of the process."""
    tensors = [stage.empty(16), stage.empty(16)]
    gone = [weakref.ref(tensor) for tensor in tensors]
    with pytest.raises(lade.InvalidArgumentError, match="offset is -1"):
        stage.pipeline.read_many([(stage.path, 0, tensors[0]), (stage.path, -1, tensors[1])])
    del tensors
    assert [of() for of in gone] == [None, None]
    stage.allocator.close()


def test_memory_to_device_and_back(stage):
    source = np.frombuffer(stage.data, np.uint8)
    buffer = stage.empty()
    stage.pipeline.copy(buffer, source).wait()
    pinned = lade.PinnedPool(stage.device).empty(SIZE, "uint8")
    other = stage.empty()
    stage.pipeline.copy(pinned, buffer).wait()
    stage.pipeline.copy(other, pinned).wait()
    again = stage.empty()
    stage.pipeline.copy(again, other).wait()
    assert stage.bytes_of(again) == stage.data


def test_source_bytes_stay_alive_and_unchanged(stage):
    """The view is held, so a bytearray cannot be resized under the copy."""
    source = bytearray(stage.data)
    stage.stream.soft_hold()
    ticket = stage.pipeline.copy(stage.empty(), source, stream=stage.stream)
    with pytest.raises(BufferError):
        source.append(1)
    stage.release()
    ticket.wait()
    source.append(1)


def test_many_pieces(stage):
    tensors = [stage.empty(count) for count in (10, 0, 4096, 100000)]
    offsets = [0, 5, 100, 1000]
    ticket = stage.pipeline.read_many([(stage.path, offset, tensor) for offset, tensor in zip(offsets, tensors)])
    assert ticket.bytes == 104106
    ticket.wait()
    for offset, tensor in zip(offsets, tensors):
        if tensor.nbytes:
            assert stage.bytes_of(tensor) == stage.data[offset:offset + tensor.nbytes]


def test_no_bytes(stage, tmp_path):
    buffer = stage.empty(0)
    stage.pipeline.read_into(stage.path, 0, buffer).wait()
    stage.pipeline.write_from(tmp_path / "none", 0, buffer).wait()
    stage.pipeline.copy(buffer, b"").wait()
    assert (tmp_path / "none").read_bytes() == b""


def test_wait_times_out_and_goes_on(stage):
    ticket = stage.held()
    assert not ticket.done()
    for call in (ticket.wait, ticket.result, ticket.exception):
        with pytest.raises(lade.TimeoutError) as caught:
            call(timeout=0.01)
        assert isinstance(caught.value, TimeoutError)
    with pytest.raises(TimeoutError):
        ticket.wait(0)
    stage.release()
    ticket.wait()
    assert ticket.done()


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", []])
def test_timeouts_that_are_none(stage, timeout):
    ticket = stage.pipeline.read_into(stage.path, 0, stage.empty())
    with pytest.raises(lade.InvalidArgumentError, match="timeout is"):
        ticket.wait(timeout)
    ticket.wait(float("inf"))


def test_cancel(stage):
    ticket = stage.held()
    assert ticket.cancel() is True
    stage.release()
    with pytest.raises(lade.CancelledError):
        ticket.wait()
    assert ticket.cancelled() and ticket.done() and ticket.cancel() is False
    assert isinstance(ticket.exception(), lade.CancelledError)


def test_callbacks_are_called_once_in_order(stage):
    ticket = stage.held()
    calls, ended = [], threading.Event()
    for number in range(3):
        ticket.add_done_callback(lambda t, number=number: calls.append((number, t is ticket, threading.current_thread())))
    ticket.add_done_callback(lambda t: ended.set())
    assert calls == []
    stage.release()
    assert ended.wait(30)
    assert [call[:2] for call in calls] == [(0, True), (1, True), (2, True)]
    assert threading.main_thread() not in [call[2] for call in calls]
    ticket.add_done_callback(lambda t: calls.append("late"))
    assert calls[3:] == ["late"]


def test_callback_of_a_dropped_ticket(stage):
    ended = threading.Event()
    seen = []
    ticket = stage.held()
    ticket.add_done_callback(lambda t: (seen.append(t.exception()), ended.set()))
    del ticket
    gc.collect()
    stage.release()
    assert ended.wait(30)
    assert seen == [None]


def test_callback_may_submit_and_wait(stage):
    """The chain of a reader: the next transfer begins in the callback of the one before."""
    ended, buffers = threading.Event(), [stage.empty(1000) for _ in range(4)]

    def go_on(ticket, number=0):
        following = stage.pipeline.read_into(stage.path, number, buffers[number])
        following.wait()
        if number + 1 < len(buffers):
            following.add_done_callback(lambda t: go_on(t, number + 1))
        else:
            ended.set()

    stage.pipeline.read_into(stage.path, 0, stage.empty(10)).add_done_callback(go_on)
    assert ended.wait(30)
    assert [stage.bytes_of(buffer) for buffer in buffers] == [stage.data[at:at + 1000] for at in range(4)]


def test_progress(stage):
    calls, ended = [], threading.Event()
    ticket = stage.pipeline.read_into(stage.path, 0, stage.empty(), progress=lambda done, total: calls.append((done, total)))
    ticket.add_done_callback(lambda t: ended.set())
    assert ended.wait(30)
    assert calls[-1] == (SIZE, SIZE)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_progress_is_reported_meanwhile(stage):
    shown = threading.Event()
    stage.stream.soft_hold()
    ticket = stage.pipeline.read_into(stage.path, 0, stage.empty(), stream=stage.stream, progress=lambda done, total: shown.set())
    assert shown.wait(30) and not ticket.done()
    stage.release()
    ticket.wait()


def test_tensor_lives_as_long_as_its_transfer(stage):
    class Tensor(np.ndarray):
        pass

    source = np.frombuffer(stage.data, np.uint8).view(Tensor)
    alive = weakref.ref(source)
    stage.stream.soft_hold()
    ticket = stage.pipeline.copy(stage.empty(), source, stream=stage.stream)
    del source
    gc.collect()
    assert alive() is not None
    stage.release()
    ticket.wait()
    assert alive() is None


def test_everything_dropped_while_under_way(stage, tmp_path):
    target = tmp_path / "written.bin"
    buffer = stage.empty()
    stage.pipeline.read_into(stage.path, 0, buffer).wait()
    stage.stream.soft_hold()
    pipeline = lade.Pipeline(stage.device)
    ended = threading.Event()
    pipeline.write_from(target, 0, buffer, stream=stage.stream).add_done_callback(lambda t: ended.set())
    del pipeline, buffer
    gc.collect()
    stage.release()
    assert ended.wait(30)
    assert target.read_bytes() == stage.data


def test_tensor_dropped_by_another_thread_while_copied(stage):
    """The memory that the copy writes is not handed out again before it ends."""
    box = [stage.empty()]
    stage.stream.soft_hold()
    ticket = stage.pipeline.read_into(stage.path, 0, box[0], stream=stage.stream)
    address = box[0].ptr
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert stage.empty().ptr != address
    stage.release()
    assert bytes(np.from_dlpack(ticket.result())) == stage.data


def test_cycle_through_a_ticket_is_collected(stage):
    class Tensor(np.ndarray):
        pass

    destination = np.empty(SIZE, np.uint8).view(Tensor)
    destination.ticket = stage.pipeline.copy(destination, stage.empty())
    alive = weakref.ref(destination)
    destination.ticket.wait()
    del destination
    gc.collect()
    assert alive() is None


def test_cycle_is_not_collected_while_under_way(stage):
    class Tensor(np.ndarray):
        pass

    destination = np.empty(SIZE, np.uint8).view(Tensor)
    alive = weakref.ref(destination)
    stage.stream.soft_hold()
    destination.ticket = stage.pipeline.copy(destination, stage.empty(), stream=stage.stream)
    ticket = weakref.ref(destination.ticket)
    del destination
    gc.collect()
    assert alive() is not None
    stage.release()
    deadline = threading.Event()
    for _ in range(3000):
        gc.collect()
        if ticket() is None:
            break
        deadline.wait(0.01)
    assert ticket() is None and alive() is None


def test_await(stage):
    async def main():
        buffer = stage.empty()
        assert await stage.pipeline.read_into(stage.path, 0, buffer) is buffer
        results = await asyncio.gather(*(stage.pipeline.read_into(stage.path, at, stage.empty(100)) for at in range(10)))
        assert [stage.bytes_of(result) for result in results] == [stage.data[at:at + 100] for at in range(10)]
        with pytest.raises(lade.TruncatedError):
            await stage.pipeline.read_into(stage.path, 1, buffer)

    asyncio.run(main())


def test_await_of_one_that_is_over(stage):
    ticket = stage.pipeline.read_into(stage.path, 0, stage.empty())
    ticket.wait()

    async def main():
        assert await ticket is ticket.result()
        assert await ticket is ticket.result()

    asyncio.run(main())


def test_cancelled_task_cancels_the_transfer(stage):
    async def main():
        ticket = stage.held()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ticket, 0.05)
        stage.release()
        with pytest.raises(lade.CancelledError):
            await ticket

    asyncio.run(main())


def test_shielded_task_does_not(stage):
    async def main():
        ticket = stage.held()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(ticket), 0.05)
        stage.release()
        assert await ticket is ticket.result()

    asyncio.run(main())


def test_loop_closed_before_the_transfer_is_over(stage, unraisable):
    ticket = stage.held()

    async def main():
        asyncio.ensure_future(asyncio.shield(ticket))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    stage.release()
    ended = threading.Event()
    ticket.wait()
    ticket.add_done_callback(lambda t: ended.set())
    assert ended.wait(30)
    assert unraisable == []


def test_close_waits(stage):
    ticket = stage.held()
    with pytest.raises(lade.TimeoutError):
        stage.pipeline.close(timeout=0.02)
    assert not stage.pipeline.closed
    stage.pipeline.read_into(stage.path, 0, stage.empty(1))
    threading.Timer(0.05, stage.release).start()
    stage.pipeline.close()
    assert stage.pipeline.closed and ticket.done() and ticket.exception() is None
    stage.pipeline.close()
    assert ticket.bytes_done == SIZE


def test_close_cancels(stage):
    ticket = stage.held()
    threading.Timer(0.05, stage.release).start()
    stage.pipeline.close(cancel=True)
    assert ticket.cancelled()


def test_context_manager(stage):
    with lade.Pipeline(stage.device) as pipeline:
        ticket = pipeline.read_into(stage.path, 0, stage.empty())
    assert pipeline.closed and ticket.exception() is None
    with pytest.raises(RuntimeError, match="mine"):
        with lade.Pipeline(stage.device) as pipeline:
            raise RuntimeError("mine")
    assert pipeline.closed


# --- short copies, which calls do themselves ---------------------------------------------------------------------------


def switches_of_others():
    """How often each other thread of this process has gone to sleep."""
    counts = {}
    for task in set(os.listdir("/proc/self/task")) - {str(threading.get_native_id())}:
        # One that an earlier test left may end meanwhile.
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/status", encoding="ascii") as file:
            counts[task] = sum(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
    return counts


def test_short_copies_wake_no_thread(stage):
    """Each woke a reader, which called on_complete, and the thread for callbacks, which had nothing to call."""
    source, buffer = lade.PinnedPool(stage.device).empty(4096), stage.empty(4096)
    stage.pipeline.copy(buffer, source).wait()

    def switches_of_100():
        before = switches_of_others()
        for _ in range(100):
            stage.pipeline.copy(buffer, source).wait()
        return sum(count - before.get(task, 0) for task, count in switches_of_others().items())

    assert any(switches_of_100() < 50 for _ in range(50))  # others may want the processors meanwhile, but not always


def eventually(condition):
    for _ in range(3000):
        if condition():
            return True
        gc.collect()
        threading.Event().wait(0.005)
    return False


class Tensor(np.ndarray):
    pass


def tensor():
    return np.frombuffer(os.urandom(4096), np.uint8).view(Tensor)


@pytest.mark.parametrize("end", ["wait", "result", "exception", "done", "callback", "await", "drop"])
def test_short_copies_let_go_of_their_tensors(stage, end):
    buffer = stage.empty(4096)

    async def await_one(ticket):
        return await ticket

    for _ in range(50):
        source = tensor()
        alive, data = weakref.ref(source), source.tobytes()
        ticket, ended = stage.pipeline.copy(buffer, source), threading.Event()
        del source
        if end == "done":
            while not ticket.done():
                pass
        elif end == "callback":
            ticket.add_done_callback(lambda t, ended=ended: ended.set())
            assert ended.wait(30)
        elif end == "await":
            assert asyncio.run(await_one(ticket)) is buffer
        elif end != "drop":
            getattr(ticket, end)()
        late = []
        if end != "drop":
            ticket.add_done_callback(late.append)
            assert eventually(lambda: late == [ticket])
        ticket = late = None
        assert eventually(lambda: alive() is None)
        assert stage.bytes_of(buffer) == data


def test_short_copies_of_threads(stage):
    """Calls of one thread end the copies of others, which wait, ask, leave them to callbacks or drop them."""
    count, called = 100, []

    def run(number):
        buffer, data = stage.empty(4096), tensor()
        for i in range(count):
            ticket = stage.pipeline.copy(buffer, data)
            if (i + number) % 4 == 0:
                ticket.wait()
            elif (i + number) % 4 == 1:
                ticket.add_done_callback(called.append)
            elif (i + number) % 4 == 2:
                ticket.done()
            ticket = None
        assert stage.bytes_of(buffer) == data.tobytes()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stage.pipeline.close()
    assert eventually(lambda: len(called) == count)


def test_more_transfers_than_places(stage):
    pipeline = lade.Pipeline(stage.device, max_transfers=2)
    buffers = [stage.empty(1000) for _ in range(50)]
    tickets = [pipeline.read_into(stage.path, at, buffer) for at, buffer in enumerate(buffers)]
    for at, ticket in enumerate(tickets):
        ticket.wait()
        assert stage.bytes_of(buffers[at]) == stage.data[at:at + 1000]


def test_wait_on_a_stream(stage):
    stream = stage.device.stream()
    buffer, out = stage.empty(), stage.empty()
    stage.pipeline.read_into(stage.path, 0, buffer).wait_on(stream)
    stage.pipeline.copy(out, buffer, stream=stream).wait()
    assert stage.bytes_of(out) == stage.data
    assert stage.device.soft_report()["unordered_reuse"] == 0


def test_stats_and_repr(stage):
    ticket = stage.pipeline.read_into(stage.path, 0, stage.empty())
    ticket.wait()
    stats = stage.pipeline.stats()
    assert stats["transfers_submitted"] == 1 and stats["bytes_completed"] == SIZE
    assert repr(ticket) == f"<lade.Ticket of {SIZE} bytes: done>"
    assert repr(stage.pipeline).startswith("<lade.Pipeline on cpu:0")


def test_pool_is_shared_and_outlives_the_pipeline(stage):
    pool = lade.PinnedPool(stage.device)
    pipeline = lade.Pipeline(pool=pool)
    with pytest.raises(lade.BusyError):
        pool.close()
    pipeline.read_into(stage.path, 0, stage.empty()).wait()
    pipeline.close()
    del pipeline
    gc.collect()
    pool.close()


def test_virtual_clock(sim, tmp_path):
    """On "sim" one thread does everything, callbacks included."""
    stage = Stage(sim, tmp_path)
    calls = []
    ticket = stage.pipeline.read_into(stage.path, 0, stage.empty(), progress=lambda done, total: calls.append(done))
    ticket.add_done_callback(lambda t: calls.append(threading.current_thread()))
    assert not ticket.done()
    ticket.wait()
    assert calls == [SIZE, threading.main_thread()]
    with pytest.raises(lade.TimeoutError):
        stage.held().wait()
    stage.release()
    stage.pipeline.close()


def test_await_with_a_virtual_clock(sim, tmp_path):
    """Regression: nobody let the transfer go on, and the task waited for ever."""
    stage = Stage(sim, tmp_path)

    async def main():
        buffer = stage.empty()
        assert await asyncio.wait_for(stage.pipeline.read_into(stage.path, 0, buffer), 30) is buffer
        with pytest.raises(lade.TruncatedError):
            await asyncio.wait_for(stage.pipeline.read_into(stage.path, 1, buffer), 30)

    asyncio.run(main())


def test_threads(stage):
    """Eight threads read, wait, cancel and drop on one pipeline."""
    faults = []

    def work(seed):
        try:
            for round_ in range(12):
                buffer = stage.empty(5000)
                ticket = stage.pipeline.read_into(stage.path, seed * 100 + round_, buffer)
                if round_ % 4 == 1:
                    ticket.cancel()
                elif round_ % 4 == 2:
                    del ticket
                else:
                    ticket.add_done_callback(lambda t: t.exception())
                    ticket.wait()
                    assert bytes(np.from_dlpack(buffer)) == stage.data[seed * 100 + round_:][:5000]
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    stage.pipeline.close()


def test_progress_bar(stage):
    """As the description of lade.Pipeline has it."""
    tqdm = pytest.importorskip("tqdm").tqdm
    buffer = stage.empty()
    with open(os.devnull, "w") as nowhere, tqdm(total=buffer.nbytes, file=nowhere) as bar:
        ended = threading.Event()
        ticket = stage.pipeline.read_into(stage.path, 0, buffer, progress=lambda done, _: bar.update(done - bar.n))
        ticket.add_done_callback(lambda t: ended.set())
        assert ended.wait(30)
        assert bar.n == SIZE
