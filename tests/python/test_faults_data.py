# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around pipelines, checkpoints and loaders. Exits, forks and signals have a process of their own."""

import gc
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import conftest
import lade
import lade.safetensors as checkpoints

SIZE = 2 * 1024 * 1024

BEGIN = """
    import os, signal, sys, tempfile, threading, time
    import lade, lade.safetensors
    import numpy as np
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "source")
    open(path, "wb").write(os.urandom(1 << 21))
    device = lade.software_device(clock="cpu")
    stream, allocator, pipeline = device.stream(), lade.DeviceAllocator(device), lade.Pipeline(device)
    buffer = allocator.empty(1 << 21, "uint8", stream=stream)

    def interrupt():
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        return time.monotonic()
"""


def run(program, within=60):
    """Runs a program that prints "done" last; gives what it wrote to stderr."""
    quiet = "ignore:This process:DeprecationWarning"  # of fork(), since Python 3.12
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-W", quiet, "-c", textwrap.dedent(BEGIN) + textwrap.dedent(program)],
                          capture_output=True, text=True, timeout=within)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr


class Stage:
    def __init__(self, device, folder):
        self.device, self.folder = device, folder
        self.stream, self.allocator, self.pipeline = device.stream(), lade.DeviceAllocator(device), lade.Pipeline(device)
        self.path = folder / "source.bin"
        self.path.write_bytes(os.urandom(SIZE))

    def empty(self, count=SIZE):
        return self.allocator.empty(count, "uint8", stream=self.stream)


@pytest.fixture
def stage(device, tmp_path):
    return Stage(device, tmp_path)


# --- exits ----------------------------------------------------------------------------------------------------------------


def test_a_write_that_nobody_waited_for_is_whole(tmp_path):
    target = tmp_path / "out"
    assert run(f"""
        pipeline.read_into(path, 0, buffer).wait()
        pipeline.write_from({os.fspath(target)!r}, 0, buffer)
        print("done")
    """) == ""
    assert target.stat().st_size == 1 << 21


def test_exit_while_a_callback_never_returns():
    run("""
        stream.soft_hold()  # the callback of a transfer that is over is called by add_done_callback() itself
        ticket = pipeline.read_into(path, 0, buffer, stream=stream)
        began = threading.Event()
        ticket.add_done_callback(lambda t: (began.set(), time.sleep(3600)))
        stream.soft_release()
        began.wait()
        print("done")
    """)


def test_callbacks_are_called_before_the_exit_ends():
    assert "called" in run("""
        stream.soft_hold()
        ticket = pipeline.read_into(path, 0, buffer, stream=stream)
        ticket.add_done_callback(lambda t: print("called", t.cancelled(), file=sys.stderr, flush=True))
        threading.Timer(0.2, stream.soft_release).start()
        print("done", flush=True)
    """)


def test_exit_with_tensors_and_batches_alive():
    assert run("""
        lade.safetensors.save_file({"a": np.ones(1000)}, path)
        tensors = lade.safetensors.load_file(path, device="cpu")
        slices = lade.safetensors.safe_open(path, "np").get_slice("a")
        open(path + "2", "wb").write(bytes(10000))
        loader = lade.Loader(path + "2", 10, record_bytes=10, device=device)
        batch = next(loader)
        array = np.asarray(batch[0])
        print("done")
    """) == ""


@pytest.mark.parametrize("progress", ["None", "lambda done, total: None"])
def test_exit_while_threads_save_device_memory(progress):
    """Regression: the interpreter ended a thread that asked for its lock out of a save, and the process aborted."""
    run(f"""
        def work(name):
            while True:
                lade.safetensors.save_file({{"a": buffer}}, path + name, sync=False, progress={progress})
                began.set()
        began = threading.Event()
        for name in "12":
            threading.Thread(target=work, args=(name,), daemon=True).start()
        began.wait()
        print("done")
    """)  # where the folder goes meanwhile, stderr tells of its files


@pytest.mark.parametrize("call", [
    "ticket.add_done_callback(forever)", "lade.safetensors.load_file(path, 'cpu', progress=forever)",
    "lade.safetensors.save_file({'a': buffer}, path + '3', sync=False, progress=forever)", "pool.record(pool.empty(8), Forever())",
    "pipeline.copy(buffer, Forever())", "pool.reserve(Forever())",
    "lade.RecordIndex().add(forever() for _ in 'a')", "next(lade.Loader(path, 1, record_bytes=4, device=device, stream=Forever()))",
    "lade.Loader(path, 1, record_bytes=4, device=device, convert=forever).__next__()[0]",
])
def test_exit_while_a_function_of_the_program_runs(call):
    """The interpreter ends the thread in it, by unwinding its stack, and the process crashed where that came to lade's call."""
    assert run(f"""
        lade.safetensors.save_file({{"a": np.ones(1000)}}, path)
        pipeline, pool = lade.Pipeline(device), lade.PinnedPool(device)
        delivered, began = threading.Event(), threading.Event()
        ticket = pipeline.copy(buffer, bytes(buffer.nbytes))
        ticket.add_done_callback(lambda ticket: delivered.set())
        ticket.wait()
        delivered.wait()
        def forever(*_):
            began.set()
            while True:
                pass
        class Forever:
            __cuda_stream__ = __dlpack__ = __index__ = forever
            __dlpack_device__ = lambda _: (1, 0)
        threading.Thread(target=lambda: {call}, daemon=True).start()
        began.wait()
        print("done")
    """) == ""


BESIDE = """
        dropping = threading.Event()
        def drop():
            dropping.set()
            holder.clear()
        thread = threading.Thread(target=drop)
        thread.start()
        dropping.wait()
        stream.soft_release()
        thread.join()
        print("done")
"""


def test_the_last_array_of_a_batch_dropped_while_the_pipeline_has_no_room():
    """It waited for room with the interpreter's lock held, which the thread that makes room waited for."""
    conftest.ends_in_the_dropping_thread()
    run("""
        pipeline = lade.Pipeline(device, max_transfers=2)
        loader = lade.Loader(path, 16, record_bytes=1024, pipeline=pipeline, prefetch=2, convert=np.from_dlpack)
        first, second = next(loader), next(loader)
        holder = [first[0]]
        del first
        stream.soft_hold()
        tickets = [pipeline.read_into(path, 0, allocator.alloc(1000, stream), stream=stream) for _ in "ab"]
    """ + BESIDE)


def test_the_last_array_of_a_pool_dropped_while_a_stream_uses_it():
    """The end of the pool waited for the stream, likewise."""
    conftest.ends_in_the_dropping_thread()
    run("""
        pool = lade.PinnedPool(device)
        pinned = pool.empty(buffer.nbytes)
        holder = [np.from_dlpack(pinned)]
        stream.soft_hold()
        lade.copy_async(device, buffer, pinned, stream)
        pool.record(pinned, stream)
        del pinned, pool
    """ + BESIDE)


@pytest.mark.parametrize("call", ["stats", "skips", "_native.state"])
def test_a_loader_is_asked_while_another_thread_closes_it(call):
    """The close waits for a stream here. The question waited for the close with the interpreter's lock held."""
    run(f"""
        loader = lade.Loader(path, 16, record_bytes=1024, device=device, prefetch=4, stream=stream)
        batches = [next(loader) for _ in range(4)]
        stream.soft_hold()
        lade.fill_async(device, buffer, 1, stream)
        for batch in batches:
            batch.release()
        closing = threading.Thread(target=loader.close)
        closing.start()
        time.sleep(0.2)
        asked = threading.Event()
        def ask():
            asked.set()
            try: loader.{call}()
            except lade.InvalidArgumentError as error: assert "closed" in str(error)
        asking = threading.Thread(target=ask)
        asking.start()
        asked.wait()
        stream.soft_release()
        closing.join()
        asking.join()
        print("done")
    """)


def test_exit_while_a_thread_reads_batches():
    assert run("""
        open(path + "2", "wb").write(bytes(100000))
        loader = lade.Loader(path + "2", 10, record_bytes=10, device=device)
        began = threading.Event()
        def work():
            for batch in iter(lambda: next(loader), None):
                began.set()
        threading.Thread(target=work, daemon=True).start()
        began.wait()
        print("done")
    """) == ""


# --- signals --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", ["ticket.wait()", "ticket.result()", "ticket.exception()", "pipeline.close()", "ticket.wait(60)"])
def test_sigint_ends_a_wait(wait):
    assert run(f"""
        stream.soft_hold()
        ticket = pipeline.read_into(path, 0, buffer, stream=stream)
        began = interrupt()
        try:
            {wait}
        except KeyboardInterrupt:
            assert time.monotonic() - began < 20
        else:
            raise AssertionError
        assert not ticket.done() and not pipeline.closed
        stream.soft_release()
        ticket.wait()
        pipeline.read_into(path, 0, buffer).wait()
        print("done")
    """) == ""


def test_sigint_ends_the_wait_for_a_place():
    assert run("""
        pipeline = lade.Pipeline(device, max_transfers=1)
        stream.soft_hold()
        ticket = pipeline.read_into(path, 0, buffer, stream=stream)
        interrupt()
        try:
            pipeline.read_into(path, 0, buffer, stream=stream)
        except KeyboardInterrupt:
            stream.soft_release()
            ticket.wait()
            print("done")
    """) == ""


def test_a_handler_asks_a_loader_for_its_state_while_its_thread_waits_for_a_batch():
    """Regression: the handler waited for ever."""
    assert run("""
        open(path, "wb").write(bytes(1000))
        loader = lade.Loader(path, 10, record_bytes=10, device=device, prefetch=2)
        batches = [next(loader), next(loader)]
        states = []
        def save(*_):
            states.append(loader.state_dict())
            batches.clear()
        signal.signal(signal.SIGINT, save)
        interrupt()
        assert next(loader).number == 2
        state, = states
        loader.load_state_dict(state)
        assert next(loader).number == 2
        print("done")
    """) == ""


def test_an_interrupted_save_leaves_no_file():
    """Regression: where SIGINT came while the temporary file was made, that stayed, and its descriptor."""
    assert run("""
        tensors = {"a": np.arange(10)}
        def save():
            lade.safetensors.save_file(tensors, os.path.join(folder.name, "file"), sync=False)
        def interrupt(*_):
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, interrupt)
        save()
        before, took, count = (os.listdir(folder.name), os.listdir("/proc/self/fd")), 1, 0
        for _ in range(5):
            began = time.perf_counter()
            save()
            took = min(took, time.perf_counter() - began)
        for number in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, took * (number + 1) / 400)
                save()
                time.sleep(took + 0.1)
            except KeyboardInterrupt:
                count += 1
        assert count == 400
        after = os.listdir(folder.name), os.listdir("/proc/self/fd")
        assert list(map(sorted, after)) == list(map(sorted, before)), after
        print("done")
    """) == ""


def test_a_handler_may_take_a_batch_or_begin_anew_while_its_thread_waits_for_one():
    assert run("""
        open(path, "wb").write(bytes(1000))
        loader = lade.Loader(path, 10, record_bytes=10, device=device, prefetch=2)
        batches, taken = [next(loader), next(loader)], []
        def take(*_):
            batches.clear()
            taken.append(next(loader).number)
        signal.signal(signal.SIGINT, take)
        interrupt()
        taken.append(next(loader).number)
        assert sorted(taken) == [2, 3], taken
        batches += [next(loader), next(loader)]
        begin = loader.state_dict()
        def anew(*_):
            loader.load_state_dict({**begin, "position": 0, "batches": 0})
            batches.clear()
        signal.signal(signal.SIGINT, anew)
        interrupt()
        assert next(loader).number == 0
        print("done")
    """) == ""


def test_sigint_ends_a_load_and_a_wait_for_a_batch():
    assert run("""
        lade.safetensors.save_file({"a": np.ones(1 << 20)}, path)
        stream.soft_hold()
        threading.Timer(1, stream.soft_release).start()
        interrupt()
        try:
            lade.safetensors.load_file(path, framework="np", pipeline=pipeline, allocator=allocator, stream=stream)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError
        assert allocator.usage()["allocated_bytes"] == 1 << 21
        open(path + "2", "wb").write(bytes(1000))
        loader = lade.Loader(path + "2", 10, record_bytes=10, device=device, prefetch=1)
        batch = next(loader)
        interrupt()
        try:
            next(loader)
        except KeyboardInterrupt:
            batch.release()
            assert next(loader).number == 1
            print("done")
    """) == ""


def test_an_interrupted_wait_loses_no_batch():
    """Regression: a batch that came just when SIGINT did was gone, and state_dict() was behind it."""
    assert run("""
        open(path, "wb").write(bytes(1000))
        loader = lade.Loader(path, 10, record_bytes=10, device=device, prefetch=1)
        for number in range(20):
            batch = next(loader)
            assert batch.number == number, (batch.number, number)
            waits = threading.Event()  # the start of a thread may take longer than its sleep
            def interrupt():
                waits.wait()
                time.sleep(0.03)
                os.kill(os.getpid(), signal.SIGINT)
                batch.release()  # now there is one
            thread = threading.Thread(target=interrupt)
            thread.start()
            try:
                waits.set()
                next(loader)
                time.sleep(10)
            except KeyboardInterrupt:
                thread.join()
            assert loader.state_dict()["batches"] == number + 1
        print("done")
    """) == ""


def test_what_is_raised_between_two_lines_loses_no_batch():
    """Regression: a batch was handed out first, and the loop's own questions about it came behind that: 13 of its lines lost it."""
    assert run("""
        open(path, "wb").write(bytes(64))
        class Stop(Exception):
            pass
        def numbers(stop_at):
            \"\"\"Those of the batches, where the line of lade with this number raises; and the function that it is in.\"\"\"
            loader, lines, where, got = lade.Loader(path, 2, record_bytes=8, device=device), 0, None, []
            def local(frame, event, _):
                nonlocal lines, where
                lines += event == "line"
                if lines == stop_at and where is None:
                    where = frame.f_code.co_name
                    raise Stop
                return local
            epoch = iter(loader)
            sys.settrace(lambda frame, *_: local if frame.f_code.co_filename == lade.loader.__file__ else None)
            while True:
                try:
                    got.append(next(epoch))
                except Stop:
                    continue
                except StopIteration:
                    break
            sys.settrace(None)
            return [batch.number for batch in got], where
        losing, stop_at, where = [], 0, ""
        while where is not None:
            stop_at += 1
            got, where = numbers(stop_at)
            if got != [0, 1, 2, 3]:
                losing.append(where)
        assert set(losing) <= {"_take", "__next__"} and len(losing) <= 4 * 4, losing
        print("done")
    """) == ""


# --- forks ----------------------------------------------------------------------------------------------------------------


def test_a_forked_child_loads_with_a_device_of_its_own():
    assert run("""
        lade.safetensors.save_file({"a": np.arange(1000)}, path)
        assert lade.safetensors.load_file(path, device="cpu")["a"][999] == 999
        ticket = pipeline.read_into(path, 0, buffer, bytes=8)
        ticket.wait()
        lade.safetensors._stages._stages_lock.acquire()  # as a thread of the parent may
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for call in (lambda: pipeline.read_into(path, 0, buffer), pipeline.close, pipeline.stats):
                    try:
                        call()
                    except lade.ForkedError:
                        pass
                    else:
                        os._exit(2)
                del ticket, pipeline, buffer
                assert lade.safetensors.load_file(path, device="cpu")["a"][999] == 999
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        lade.safetensors._stages._stages_lock.release()
        assert ticket.done() and lade.safetensors.load_file(path, device="cpu")["a"][999] == 999
        print("done")
    """) == ""


# --- callbacks ------------------------------------------------------------------------------------------------------------


def test_what_callbacks_raise_is_told(stage, unraisable):
    def broken(*_):
        raise ValueError("mine")

    ended = threading.Event()
    ticket = stage.pipeline.read_into(stage.path, 0, stage.empty(), progress=broken)
    ticket.add_done_callback(broken)
    ticket.add_done_callback(lambda t: ended.set())
    assert ended.wait(30)
    ticket.wait()
    ticket.add_done_callback(broken)
    assert len(unraisable) >= 3 and all(fault == (ValueError, "mine", broken) for fault in unraisable)
    for bad in (None, 3, "name"):
        with pytest.raises(lade.InvalidArgumentError, match="callback is"):
            ticket.add_done_callback(bad)
    with pytest.raises(lade.InvalidArgumentError, match="progress is"):
        stage.pipeline.read_into(stage.path, 0, stage.empty(), progress=3)


def test_callbacks_of_a_transfer_that_fails(stage):
    calls, ended = [], threading.Event()
    ticket = stage.pipeline.read_into(stage.path, 1, stage.empty(), progress=lambda *now: calls.append(now))
    ticket.add_done_callback(lambda t: (calls.append(type(t.exception())), ended.set()))
    assert ended.wait(30)
    assert calls[-1] is lade.TruncatedError and (SIZE, SIZE) not in calls


# --- arguments ------------------------------------------------------------------------------------------------------------


def test_memory_that_cannot_be_used(stage):
    two = lade.software_device(device_count=2)
    other = lade.DeviceAllocator(two.sibling(1)).empty(100, "uint8", stream=two.sibling(1).stream())
    own = lade.Pipeline(two)
    read_only = np.zeros(100, np.uint8)
    read_only.flags.writeable = False
    cases = [(own, other, "device 1|cpu:1"), (stage.pipeline, other, "another runtime"), (own, stage.empty(), "another runtime"),
             (stage.pipeline, np.zeros((10, 10), np.uint8).T, "contiguous"), (stage.pipeline, read_only, "read-only"),
             (stage.pipeline, "text", "shows no memory"), (stage.pipeline, None, "shows no memory"),
             (stage.pipeline, lade.PinnedPool(stage.device).empty(100, "uint8"), "host memory")]
    for pipeline, tensor, text in cases:
        with pytest.raises(lade.InvalidArgumentError, match=text):
            pipeline.read_into(stage.path, 0, tensor)
    with pytest.raises(lade.InvalidArgumentError, match="live memory"):
        stage.pipeline.read_into(stage.path, 0, np.zeros(100, np.uint8)).wait()
    with pytest.raises(lade.InvalidArgumentError, match="the same"):
        stage.pipeline.copy(stage.empty(4), b"123")
    with pytest.raises(lade.InvalidArgumentError, match="neither"):
        stage.pipeline.copy(bytearray(3), b"123")
    with pytest.raises(lade.InvalidArgumentError, match="bytes is 101"):
        stage.pipeline.read_into(stage.path, 0, stage.empty(100), bytes=101)


def test_streams_that_cannot_be_used(stage):
    two = lade.software_device(device_count=2)
    pipeline, first = lade.Pipeline(two), two.stream()
    buffer = lade.DeviceAllocator(two).empty(100, "uint8", stream=first)
    with pytest.raises(lade.InvalidArgumentError, match="device 1"):
        pipeline.read_into(stage.path, 0, buffer, stream=two.sibling(1).stream())
    with pytest.raises(lade.InvalidArgumentError, match="another runtime"):
        pipeline.read_into(stage.path, 0, buffer, stream=stage.stream)
    with pytest.raises(lade.InvalidArgumentError, match="stream is a str"):
        pipeline.read_into(stage.path, 0, buffer, stream="0")
    pipeline.read_into(stage.path, 0, buffer).wait()


@pytest.mark.parametrize("options, text", [
    ({"priority": 2}, "priority is 2"), ({"offset": -1}, "offset is -1"), ({"offset": 1.5}, "offset is a float"), ({"bytes": -1}, "bytes is -1"),
    ({"path": 1.5}, "path is a float"), ({"path": None}, "path is a NoneType"),
])
def test_numbers_that_cannot_be_used(stage, options, text):
    arguments = {"path": stage.path, "offset": 0, "tensor": stage.empty(10), **options}
    with pytest.raises(lade.InvalidArgumentError, match=text):
        stage.pipeline.read_into(**arguments)


@pytest.mark.parametrize("options, text", [
    ({"storage": "magic"}, "storage"), ({"depth": 0}, "depth is 0"), ({"chunk_bytes": 0}, "chunk_bytes is 0"), ({"readers": 1 << 40}, "readers"), ({"local_ranks": 0}, "local_ranks is 0"),
    ({"max_transfers": 0}, "max_transfers is 0"), ({"pool": 3}, "pool is a int|pool is an int"),
])
def test_pipelines_that_cannot_be_made(device, options, text):
    with pytest.raises(lade.InvalidArgumentError, match=text):
        lade.Pipeline(None if "pool" in options else device, **options)


def test_dead_objects(stage, tmp_path):
    pool = lade.PinnedPool(stage.device)
    pool.close()
    with pytest.raises(lade.InvalidArgumentError, match="PinnedPool is closed"):
        lade.Pipeline(pool=pool)
    with pytest.raises(lade.InvalidArgumentError, match="the pool is near"):
        lade.Pipeline(lade.software_device(clock="cpu"), pool=lade.PinnedPool(stage.device))
    checkpoints.save_file({"a": np.zeros(3)}, tmp_path / "a")
    pipeline, allocator = lade.Pipeline(stage.device), lade.DeviceAllocator(stage.device)
    pipeline.close()
    for call in (lambda: pipeline.read_into(stage.path, 0, stage.empty()), pipeline.stats,
                 lambda: checkpoints.load_file(tmp_path / "a", pipeline=pipeline, allocator=allocator),
                 lambda: lade.Loader(stage.path, 1, record_bytes=1024, pipeline=pipeline)):
        with pytest.raises(lade.InvalidArgumentError, match="Pipeline is closed"):
            call()
    allocator.close()
    with pytest.raises(lade.InvalidArgumentError, match="DeviceAllocator is closed"):
        checkpoints.load_file(tmp_path / "a", pipeline=stage.pipeline, allocator=allocator)
    with pytest.raises(lade.InvalidArgumentError, match="device"):
        lade.Loader(stage.path, 1, record_bytes=1024, pipeline=stage.pipeline, allocator=lade.DeviceAllocator(lade.software_device(clock="cpu")))


# --- files ----------------------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(stage, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, error in ((tmp_path / "missing", lade.IOError), (tmp_path, lade.Error), (tmp_path / "pipe", lade.IOError)):
        with pytest.raises(error, match=path.name):
            stage.pipeline.read_into(path, 0, stage.empty()).wait()
    with pytest.raises(ValueError):
        stage.pipeline.read_into("a\0b", 0, stage.empty())
    with pytest.raises(lade.IOError, match="descriptor 9999"):
        stage.pipeline.read_into(9999, 0, stage.empty())
    with pytest.raises(lade.TruncatedError, match="source.bin.*ends at byte"):
        stage.pipeline.read_into(stage.path, SIZE, stage.empty(1)).wait()


def test_a_file_that_shrinks_meanwhile(stage):
    stage.stream.soft_hold()
    buffer = stage.empty()
    os.truncate(stage.path, 10)
    ticket = stage.pipeline.read_into(stage.path, 0, buffer, stream=stage.stream)
    stage.stream.soft_release()
    assert isinstance(ticket.exception(), (lade.TruncatedError, lade.IOError))
    stage.path.write_bytes(bytes(SIZE))
    stage.pipeline.read_into(stage.path, 0, buffer).wait()


def test_a_full_disk(stage):
    buffer = stage.empty()
    stage.pipeline.read_into(stage.path, 0, buffer).wait()
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(lade.IOError) as caught:
        stage.pipeline.write_from(full, 0, buffer).wait()
    assert caught.value.native_code == 28 and isinstance(caught.value, OSError)


def test_a_limit_on_files(tmp_path):
    """What is written of a file is not there under its name; the other file stays."""
    target = tmp_path / "model.safetensors"
    checkpoints.save_file({"a": np.arange(10)}, target)
    assert run(f"""
        import resource
        target = {os.fspath(target)!r}
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        pipeline.read_into(path, 0, buffer).wait()
        for call in (lambda: pipeline.write_from(target, 0, buffer, atomic=True).wait(),
                     lambda: lade.safetensors.save_file({{"a": buffer}}, target, pipeline=pipeline, allocator=allocator, stream=stream),
                     lambda: lade.safetensors.save_file({{"a": np.zeros(1 << 20)}}, target)):
            try:
                call()
            except (lade.IOError, lade.safetensors.SafetensorError) as error:
                assert "File too large" in str(error), error
            else:
                raise AssertionError
        print("done")
    """) == ""
    assert checkpoints.load_file(target, device="cpu", framework="np")["a"].tolist() == list(range(10))
    assert os.listdir(tmp_path) == [target.name]


# --- the device -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["copy", "event_record", "event_create"])
def test_each_call_of_the_driver_may_fail(stage, op):
    """Whatever fails, the transfer ends, and the next one goes well."""
    for nth in (1, 2, 3):
        stage.device.soft_fault(op, nth, lade.DriverError.status)
        tickets = []
        for _ in range(3):
            try:
                tickets.append(stage.pipeline.read_into(stage.path, 0, stage.empty()))
            except lade.DriverError:
                pass
        for ticket in tickets:
            assert isinstance(ticket.exception(), (lade.DriverError, type(None)))
        stage.device.soft_fault_clear()
    stage.pipeline.read_into(stage.path, 0, stage.empty()).wait()


def test_loads_that_fail_keep_no_memory(stage, tmp_path):
    checkpoints.save_file({"a": np.arange(1 << 18)}, tmp_path / "a")
    before = stage.allocator.usage()["allocated_bytes"]

    def load():
        return checkpoints.load_file(tmp_path / "a", framework="np", pipeline=stage.pipeline, allocator=stage.allocator, stream=stage.stream)

    for op in ("device_alloc", "copy"):
        stage.device.soft_fault(op, 1, lade.DriverError.status)
        with pytest.raises(lade.Error):
            load()
        stage.device.soft_fault_clear()
        assert stage.allocator.usage()["allocated_bytes"] == before
    assert load()["a"][-1] == (1 << 18) - 1
    gc.collect()
    assert stage.allocator.usage()["allocated_bytes"] == before


def test_a_lost_device(stage, tmp_path):
    checkpoints.save_file({"a": np.arange(10)}, tmp_path / "a")
    ticket = stage.pipeline.read_into(stage.path, 0, stage.empty())
    ticket.exception()
    stage.device.soft_lose()
    with pytest.raises(lade.DeviceLostError):
        stage.pipeline.copy(stage.empty(10), bytes(10)).wait()
    with pytest.raises(lade.DeviceLostError):
        checkpoints.load_file(tmp_path / "a", pipeline=stage.pipeline, allocator=stage.allocator, stream=stage.stream)
    assert ticket.done()
    stage.pipeline.close()


def test_memory_that_is_not_there(tmp_path):
    device = lade.software_device(memory_bytes=4 << 20)
    checkpoints.save_file({"a": np.zeros(1 << 20)}, tmp_path / "a")
    with pytest.raises(MemoryError):
        checkpoints.load_file(tmp_path / "a", device=device)
    device = lade.software_device(pinned_limit_bytes=4096)
    with pytest.raises((lade.LimitError, lade.OutOfPinnedMemoryError)):
        checkpoints.load_file(tmp_path / "a", device=device)
