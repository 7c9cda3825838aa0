# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around the package: exits, forks, signals, cycles, other copies of the library. Each case is a process of its
own, which prints "done" last and nothing to stderr unless the case says so."""

import copy
import gc
import os
import pathlib
import pickle
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

import conftest
import lade

TIMEOUT_S = 120


def run(program, *, stderr="", returncode=0, **environment):
    """Runs a program, and sees that it ends as it should; gives what it wrote."""
    done = subprocess.run(
        # Since Python 3.12 fork() warns where there are threads.
        [sys.executable, "-X", "faulthandler", "-W", "ignore:This process:DeprecationWarning", "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, **environment},
    )
    shown = f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == returncode, shown
    assert re.search(stderr, done.stderr) if stderr else done.stderr == "", shown
    return done.stdout


def finishes(program, **more):
    assert run(program, **more).endswith("done\n")


# --- the interpreter's exit -------------------------------------------------------------------------------------------------

ALIVE = """
    import lade
    device = lade.software_device()
    pool = lade.PinnedPool(device)
    allocator = lade.DeviceAllocator(device)
    stream = device.stream()
    buffer = pool.empty(1 << 20, "uint8")
    block = allocator.alloc(1 << 20, stream)
    view = memoryview(buffer)
    pool.record(buffer, stream)
"""


def test_exit_with_everything_alive():
    finishes(ALIVE + "    print('done')")


def test_exit_with_everything_alive_in_a_cycle():
    finishes(ALIVE + """
    class Holder: pass
    holder = Holder()
    holder.self, holder.all = holder, [pool, allocator, stream, buffer, block, view]
    del pool, allocator, stream, buffer, block, view
    print('done')
    """)


def test_exit_with_a_held_stream_does_not_wait():
    finishes(ALIVE + """
    stream.soft_hold()
    del buffer, view
    print('done')
    """)


def test_exit_by_sys_exit_while_threads_allocate():
    finishes(ALIVE + """
    import threading, time, sys
    def work():
        while True:
            kept = [pool.empty(5000, "uint8") for _ in range(10)]
    for _ in range(4): threading.Thread(target=work, daemon=True).start()
    time.sleep(0.2)
    print('done', flush=True)
    sys.exit(0)
    """)


def test_exit_functions_of_the_program_may_use_buffers():
    """atexit's functions run in reverse order: this one was registered before lade was imported, so it runs after lade's."""
    run("""
    import atexit
    def last():
        bytes(memoryview(kept)[:4])
        print("done")
    atexit.register(last)
    import lade
    kept = lade.PinnedPool(lade.software_device()).empty(10, "uint8")
    """)


def test_objects_of_a_module_that_is_torn_down_last():
    finishes("""
    import lade, sys, builtins
    pool = lade.PinnedPool(lade.software_device())
    builtins.kept = [pool, pool.empty(100, "uint8")]   # dies after all modules
    print("done")
    """)


def test_a_dlpack_capsule_that_nobody_took():
    finishes("""
    import lade, gc
    pool = lade.PinnedPool(lade.software_device())
    capsule = pool.empty(100, "uint8").__dlpack__()
    gc.collect()
    assert pool.stats()["requested_bytes.current"] == 100
    del capsule
    assert pool.stats()["requested_bytes.current"] == 0
    kept = pool.empty(100, "uint8").__dlpack__()
    print("done")
    """)


# --- fork -------------------------------------------------------------------------------------------------------------------


def test_a_forked_child_gets_a_clear_error_and_ends():
    finishes(ALIVE + """
    import os, gc
    def refused(call):
        try: call()
        except lade.ForkedError as error: assert "expected one that its child" in str(error), error
        else: raise AssertionError(call)
    child = os.fork()
    if child == 0:
        refused(lambda: pool.empty(10, "uint8"))
        refused(lambda: allocator.alloc(10))
        refused(lambda: pool.stats())
        refused(lambda: pool.record(buffer, stream))
        refused(lambda: memoryview(buffer))
        refused(lambda: buffer.__dlpack__())
        del buffer, block, view
        del pool, allocator, stream, device
        gc.collect()
        raise SystemExit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert pool.empty(10, "uint8").ptr
    print("done")
    """)


def test_a_forked_child_may_open_its_own():
    finishes("""
    import lade, os
    kept = lade.PinnedPool(lade.software_device())
    child = os.fork()
    if child == 0:
        own = lade.PinnedPool(lade.software_device(clock="cpu", device_count=1))
        buffer = own.empty(4, "uint8")
        memoryview(buffer)[:] = b"abcd"
        os._exit(0 if bytes(memoryview(buffer)) == b"abcd" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("done")
    """)


def test_a_child_forked_while_the_parent_has_no_runtime_open():
    finishes("""
    import lade, os, gc
    lade.PinnedPool(lade.software_device()).empty(10, "uint8")
    gc.collect()
    child = os.fork()
    if child == 0:
        lade.PinnedPool(lade.software_device()).empty(10, "uint8")
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    print("done")
    """)


def test_multiprocessing_workers(tmp_path):
    """Workers forked under a parent with pools: they may not use them, and their exit breaks nothing. Spawned ones open their own."""
    program = tmp_path / "workers.py"
    program.write_text(textwrap.dedent("""
        import multiprocessing, sys
        import lade
        def forked(number):
            try: pool.empty(10, "uint8")
            except lade.ForkedError: return "refused"
        def spawned(number):
            return lade.PinnedPool(lade.software_device()).empty(number, "uint8").nbytes
        if __name__ == "__main__":
            pool = lade.PinnedPool(lade.software_device())
            kept = pool.empty(10, "uint8")
            with multiprocessing.get_context("fork").Pool(2) as workers:
                assert workers.map(forked, range(4)) == ["refused"] * 4
            with multiprocessing.get_context("spawn").Pool(2) as workers:
                assert workers.map(spawned, [1, 2]) == [1, 2]
            memoryview(kept)[:] = b"0123456789"
            print("done")
    """))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


# --- libraries --------------------------------------------------------------------------------------------------------------


def _library():
    """The liblade that the package has loaded."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    found = {line.split()[-1] for line in maps.splitlines() if re.search(r"/liblade[-.\w]*\.so", line)}
    assert len(found) == 1, found
    return pathlib.Path(found.pop())


def test_two_copies_of_the_library_in_one_process(tmp_path):
    """Pointers of one are foreign to the other, and neither's end disturbs the other."""
    other = tmp_path / "liblade_other.so"
    shutil.copy(_library(), other)
    finishes(f"""
    import ctypes, lade
    pool = lade.PinnedPool(lade.software_device())
    buffer = pool.empty(5000, "uint8")
    # the libraries beside the first copy are loaded by now
    other = ctypes.CDLL({str(other)!r}, mode=ctypes.RTLD_LOCAL)
    runtime, theirs, block = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert other.lade_runtime_open(b"cpu", None, ctypes.byref(runtime)) == 0
    assert other.lade_pinned_pool_create(runtime, None, ctypes.byref(theirs)) == 0
    assert other.lade_pinned_alloc(theirs, ctypes.c_size_t(5000), ctypes.byref(block)) == 0
    assert other.lade_pinned_free(theirs, ctypes.c_void_p(buffer.ptr)) == lade.ForeignPointerError.status
    memoryview(buffer)[:] = b"x" * 5000
    ctypes.memset(block, 1, 5000)
    assert other.lade_pinned_free(theirs, block) == 0
    assert other.lade_pinned_pool_destroy(theirs, True) == 0
    assert other.lade_runtime_close(runtime) == 0
    del buffer
    assert pool.stats()["requested_bytes.current"] == 0
    assert pool.empty(5000, "uint8").ptr
    print("done")
    """)


# --- garbage ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool():
    return lade.PinnedPool(lade.software_device(clock="cpu"))


@pytest.fixture
def allocator():
    return lade.DeviceAllocator(lade.software_device(clock="cpu"))


class Holder:
    pass


def test_cyclic_garbage_with_buffers(pool, allocator):
    for _ in range(10):
        holder = Holder()
        holder.self, holder.buffer, holder.block = holder, pool.empty(1000, "uint8"), allocator.alloc(1000)
        holder.view = memoryview(holder.buffer)
    del holder
    gc.collect()
    assert pool.stats()["requested_bytes.current"] == 0
    assert allocator.usage()["allocated_bytes"] == 0


def test_a_cycle_through_the_pool_is_collected():
    device = lade.software_device(clock="cpu")
    holder = Holder()
    holder.self, holder.pool = holder, lade.PinnedPool(device)
    holder.buffer = holder.pool.empty(1000, "uint8")
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None
    assert device.soft_report()["pinned_bytes"] == 0, "the pool has gone with it"


def test_buffers_outlive_their_pool_and_device():
    pool = lade.PinnedPool(lade.software_device(clock="cpu"))
    view = memoryview(pool.empty(1000, "uint8"))
    del pool
    gc.collect()
    view[:] = b"x" * 1000
    assert bytes(view[-1:]) == b"x"


def test_the_last_reference_dies_on_another_thread(pool, allocator):
    held = [[pool.empty(3000, "uint8"), allocator.alloc(3000)] for _ in range(100)]
    device_of_pool = pool.device
    threads = [threading.Thread(target=lambda: [held.pop() for _ in range(25)]) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert pool.stats()["requested_bytes.current"] == 0 and allocator.usage()["allocated_bytes"] == 0
    assert device_of_pool.software


# What waits for a stream's work is waited for without the interpreter's lock, which the thread that ends the work needs.
HELD_UP = """
    import threading, time
    import lade
    device = lade.software_device(clock="cpu")
    held, stream = device.stream(), device.stream()
    {prepare}
    time.sleep(0.2)
    def end_of_work():
        time.sleep(0.2)
        held.soft_release()
    thread = threading.Thread(target=end_of_work)
    thread.start()
    {call}
    thread.join()
    print("done")
"""

# The last buffer of `stream` is the only owner of the stream, too: its end waits for the trim.
TRIMMED = """
    allocator = lade.DeviceAllocator(device)
    used, buffers = allocator.alloc(30 << 20, held), [allocator.alloc(30 << 20, stream)]
    del stream
    held.soft_hold()
    lade.fill_async(device, used, 1, held)
    del used
    trimming = threading.Thread(target=allocator.trim)
    trimming.start()
    time.sleep(0.2)
"""

UNCACHED = """
    allocator = lade.DeviceAllocator(device, flags=["uncached"])
    buffer = allocator.alloc(3 << 20, held)
    held.soft_hold()
    lade.fill_async(device, buffer, 1, held)
"""


@pytest.mark.parametrize("prepare, call", [
    (TRIMMED, "buffers.clear()"),
    (TRIMMED + "    threading.Thread(target=buffers.clear).start()", "lade.PinnedPool(device)"),
    (TRIMMED + "    other = lade.DeviceAllocator(device)\n    threading.Thread(target=buffers.clear).start()", "time.sleep(0.1); other.close()"),
    (UNCACHED, "del buffer"),
], ids=["end of a stream", "new pool beside it", "close beside it", "free of memory that is not cached"])
def test_a_wait_for_a_stream_lets_others_run(prepare, call):
    """Regression: these waited with the interpreter's lock held."""
    if "buffers.clear)" in prepare:
        conftest.ends_in_the_dropping_thread()
    finishes(HELD_UP.format(prepare=prepare.strip(), call=call))


def test_thousands_of_buffers_on_many_threads(pool, allocator):
    """Each thread writes its mark into what it has, and hands some to the next: nobody finds another's mark."""
    import queue

    passed, failures = queue.SimpleQueue(), []

    def work(mark):
        mine = []
        for number in range(1000):
            buffer = pool.empty((number * 37) % 5000 + 1, "uint8")
            view = memoryview(buffer)
            view[:] = bytes([mark]) * buffer.nbytes
            mine.append((mark, view))
            mine.append((mark, allocator.alloc(number + 1)))
            if number % 7 == 0:
                passed.put(mine.pop(-2))
            if number % 11 == 0 and not passed.empty():
                try:
                    mine.insert(0, passed.get_nowait())
                except queue.Empty:
                    pass
            while len(mine) > 20:
                owner, block = mine.pop(0)
                if isinstance(block, memoryview) and block.tobytes() != bytes([owner]) * block.nbytes:
                    failures.append((mark, owner, number))

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    while not passed.empty():
        passed.get()
    gc.collect()
    assert failures == []
    assert pool.stats()["requested_bytes.current"] == 0
    assert allocator.usage()["allocated_bytes"] == 0


# --- the protocols of Python ------------------------------------------------------------------------------------------------


def _objects():
    device = lade.software_device(clock="cpu")
    pool, allocator = lade.PinnedPool(device), lade.DeviceAllocator(device)
    yield from (device, device.stream(), pool, pool.empty(10, "uint8"), allocator, allocator.alloc(10), lade.Pipeline(device))


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_and_copying_are_refused_by_name(attempt):
    for thing in _objects():
        name = type(thing).__name__
        with pytest.raises(TypeError, match=name):
            attempt(thing)


def test_every_object_has_a_size_a_truth_and_a_representation():
    for thing in _objects():
        assert sys.getsizeof(thing) > 0
        assert bool(thing) is True
        assert type(thing).__name__ in repr(thing)
        assert "0x" not in str(thing) or isinstance(thing, object)


def test_lengths(pool):
    assert len(pool.empty((3, 4), "float32")) == 3
    with pytest.raises(TypeError):
        len(pool)


def test_weak_references(pool, allocator):
    for make in (lambda: pool.empty(10, "uint8"), lambda: allocator.alloc(10)):
        thing = make()
        seen = []
        reference = weakref.ref(thing, seen.append)
        assert reference() is thing
        del thing
        assert reference() is None and seen == [reference]


def test_no_attributes_of_the_programs_own(pool):
    """A mistyped attribute is an error, and not a new attribute."""
    with pytest.raises(AttributeError):
        pool.max_byte = 3


# --- transfers: exit, fork, signals, callbacks --------------------------------------------------------------------------------

TRANSFER = """
    import lade, os, tempfile
    device = lade.software_device()
    allocator, stream = lade.DeviceAllocator(device), device.stream()
    file = tempfile.NamedTemporaryFile()
    file.write(bytes(range(256)) * 4096)
    file.flush()
    pipeline = lade.Pipeline(device)
    block = allocator.alloc(1 << 20, stream)
    stream.soft_hold()                                       # the copies wait for the stream
    ticket = pipeline.read_into(file.name, 0, block, stream=stream)
"""


def test_exit_with_a_transfer_under_way():
    finishes(TRANSFER + """
    called = []
    ticket.add_done_callback(called.append)
    print("done")
    """)


def test_exit_with_a_transfer_in_a_cycle():
    finishes(TRANSFER + """
    class Holder: pass
    holder = Holder()
    holder.self, holder.all = holder, [pipeline, ticket, block]
    ticket.add_done_callback(lambda ticket, holder=holder: None)
    del pipeline, ticket, block
    print("done")
    """)


def test_exit_while_a_thread_waits_for_a_transfer():
    finishes(TRANSFER + """
    import threading, time
    def wait():
        try: ticket.wait()
        except lade.CancelledError: pass   # the exit cancels what is under way, and may come round to saying so
    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.2)
    print("done")
    """)


def test_a_forked_child_may_not_wait_for_the_parents_transfer():
    finishes(TRANSFER + """
    import gc
    child = os.fork()
    if child == 0:
        for call in (ticket.wait, lambda: pipeline.read_into(file.name, 0, block)):
            try: call()
            except lade.ForkedError: pass
            else: os._exit(1)
        del pipeline, ticket, block
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stream.soft_release()
    ticket.wait()
    print("done")
    """)


def test_a_buffer_that_another_thread_drops_while_its_transfer_runs():
    """The transfer holds the memory: what is allocated meanwhile is other memory."""
    finishes(TRANSFER + """
    import threading
    address, held = block.ptr, [block]
    del block
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert all(allocator.alloc(1 << 20, stream).ptr != address for _ in range(3))
    stream.soft_release()
    ticket.wait()
    del ticket
    print("done")
    """)


def test_sigint_ends_a_wait_for_a_transfer():
    """The wait ends in time, although the transfer does not."""
    program = TRANSFER + """
    try:
        print("waits", flush=True)
        ticket.wait()
    except KeyboardInterrupt:
        print("interrupted", ticket.done(), flush=True)
    stream.soft_release()
    ticket.wait()
    print("done")
    """
    child = subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "waits\n"
        time.sleep(0.3)  # until it is inside of the call; before it, the signal would raise as well
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=TIMEOUT_S)
    finally:
        child.kill()
    assert (child.returncode, out, err) == (0, "interrupted False\ndone\n", "")


def test_an_error_in_a_callback_is_reported_and_stops_nothing():
    out = run(TRANSFER + """
    import threading
    called, last = [], threading.Event()
    def wrong(ticket): raise ValueError("of the callback")
    ticket.add_done_callback(lambda ticket: called.append(1))
    ticket.add_done_callback(wrong)
    ticket.add_done_callback(lambda ticket: last.set())
    stream.soft_release()
    ticket.wait()
    assert last.wait(60) and called == [1], called
    print("done")
    """, stderr="ValueError: of the callback")
    assert out == "done\n"


def test_a_callback_that_exits_ends_no_thread_of_lade():
    out = run(TRANSFER + """
    import sys, threading
    last = threading.Event()
    ticket.add_done_callback(lambda ticket: sys.exit(3))
    ticket.add_done_callback(lambda ticket: last.set())
    stream.soft_release()
    assert last.wait(60)
    pipeline.read_into(file.name, 0, block).wait()
    print("done")
    """, stderr="SystemExit")
    assert out == "done\n"


# --- other interpreters -----------------------------------------------------------------------------------------------------


def test_a_subinterpreter_is_refused_and_leaves_the_main_one_alone():
    """An import there put its classes of errors into the place of the main interpreter's, which caught none of them any more; later,
    a refused one still did so with the classes of pools and buffers, and every call of the main interpreter was a TypeError."""
    run("""
    import lade, textwrap
    kept = lade.PinnedPool(lade.software_device()).empty(10, "uint8")
    try: import _xxsubinterpreters as interpreters
    except ImportError: import _interpreters as interpreters
    one = interpreters.create()
    program = textwrap.dedent('''
    try: import lade
    except ImportError as error: assert "main interpreter" in str(error) or "subinterpreters" in str(error), error
    else: raise AssertionError("imported")
    ''')
    failure = interpreters.run_string(one, program)
    assert failure is None, failure
    interpreters.destroy(one)
    try: lade.device("no device")
    except lade.InvalidArgumentError: pass
    memoryview(kept)[:] = b"0123456789"
    lade.PinnedPool(lade.software_device()).empty(10, "uint8")
    print("done", flush=True)
    """)
