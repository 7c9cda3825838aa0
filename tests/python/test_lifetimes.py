# SPDX-License-Identifier: Apache-2.0
"""Who lives how long: cycles, threads, forks, the interpreter's exit."""

import gc
import pathlib
import shutil
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest

import lade


def run(program, *, status=0):
    """Runs a program in a process of its own. What it prints is returned."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "leak" not in done.stderr, done.stderr
    return done.stdout


def test_cyclic_garbage(pool):
    class Node:
        pass

    node = Node()
    node.buffer, node.view = pool.empty(8), memoryview(pool.empty(8))
    node.self = node
    del node
    gc.collect()
    assert pool.stats()["in_use_blocks.current"] == 0


def test_everything_holds_what_it_stands_on():
    view = memoryview(lade.PinnedPool(lade.software_device(clock="cpu")).empty(4096))
    gc.collect()
    view[:3] = b"abc"
    assert bytes(view[:3]) == b"abc"
    capsule = lade.DeviceAllocator(lade.software_device(clock="cpu")).alloc(8).__dlpack__()
    del capsule
    gc.collect()


def test_weak_references(pool):
    buffer = pool.empty(8)
    reference = weakref.ref(buffer)
    del buffer
    assert reference() is None


def test_a_view_dropped_by_another_thread(pool):
    views = [np.from_dlpack(pool.empty(4096)) for _ in range(50)]
    thread = threading.Thread(target=views.clear)
    thread.start()
    thread.join()
    assert pool.stats()["in_use_blocks.current"] == 0


def test_a_capsule_is_taken_once(pool):
    capsule = pool.empty(8).__dlpack__()

    class Holder:
        def __dlpack__(self, **_):
            return capsule  # noqa: F821

        def __dlpack_device__(self):
            return (1, 0)

    array = np.from_dlpack(Holder())
    assert "used_dltensor" in repr(capsule)
    del capsule
    gc.collect()
    assert pool.stats()["in_use_blocks.current"] == 1 and array.nbytes == 8


@pytest.mark.parametrize("kind", ["buffer", "view", "numpy", "capsule", "device", "stream", "pending", "cycle"])
def test_the_interpreter_exits_with_objects_alive(kind):
    run(f"""
        import lade, numpy as np
        device = lade.software_device(clock="cpu")
        pool, allocator, stream = lade.PinnedPool(device), lade.DeviceAllocator(device), device.stream()
        kind = {kind!r}
        buffer = pool.empty(1 << 20)
        kept = dict(buffer=lambda: buffer, view=lambda: memoryview(buffer), numpy=lambda: np.asarray(buffer),
                    capsule=lambda: buffer.__dlpack__(), device=lambda: allocator.alloc(8, stream), stream=lambda: stream,
                    pending=lambda: (stream.soft_hold(), lade.copy_async(device, allocator.alloc(1 << 20, stream), buffer, stream),
                                     pool.record(buffer, stream)),
                    cycle=lambda: [])[kind]()
        if kind == "cycle":
            kept += [kept, buffer, pool, allocator, stream]
        if kind == "pending":
            del buffer
        """)


def test_a_child_is_told():
    out = run("""
        import os, lade
        device = lade.software_device(clock="cpu")
        pool, allocator, stream = lade.PinnedPool(device), lade.DeviceAllocator(device), device.stream()
        buffer, on_device = pool.empty(4096), allocator.alloc(8, stream)
        child = os.fork()
        if child == 0:
            calls = dict(empty=lambda: pool.empty(8), record=lambda: pool.record(buffer, stream), view=lambda: memoryview(buffer),
                         dlpack=lambda: buffer.__dlpack__(), interface=lambda: buffer.__array_interface__, stats=pool.stats,
                         alloc=lambda: allocator.alloc(8), close=lambda: stream.synchronize(), stream=device.stream)
            for name, call in calls.items():
                try:
                    call()
                    print("no error from", name)
                except lade.ForkedError:
                    pass
            del buffer, on_device, stream, pool, allocator, device
            own = lade.PinnedPool(lade.software_device())
            print("own", own.empty(3).nbytes, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(buffer[:0] if False else memoryview(buffer)[:0]) == b""
        assert pool.empty(8).nbytes == 8
        """)
    assert out == "own 3\n"


def test_the_shared_device_is_opened_anew_in_a_child():
    out = run("""
        import os, lade
        device = lade.software_device()
        pool = lade.PinnedPool(device)
        kept = pool.empty(8)
        child = os.fork()
        if child == 0:
            print(lade.PinnedPool(lade.software_device()).empty(5).nbytes, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """)
    assert out == "5\n"


def test_subinterpreters_are_refused():
    out = run("""
        import sys
        if sys.version_info < (3, 13):
            import _xxsubinterpreters as interpreters
        else:
            import _interpreters as interpreters
        interpreter = interpreters.create()
        try:
            failure = interpreters.run_string(interpreter, "import lade")
        except Exception as error:
            failure = error
        print(failure)
        """)
    assert "subinterpreter" in out


@pytest.mark.parametrize("flags, kind", [("t", "free-threaded "), ("", "")])
def test_an_interpreter_of_the_other_kind_is_refused_by_name(tmp_path, flags, kind):
    """The package has the extension of an interpreter with the global lock, or of one without: in the other it is not found."""
    folder = pathlib.Path(lade.__file__).parent
    shutil.copytree(folder, tmp_path / "lade", ignore=shutil.ignore_patterns("_lade.*so", "liblade*", "torch", "bin"))
    out = run(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        sys.abiflags = {flags!r}
        try:
            import lade
        except ImportError as error:
            print(error, error.name, "lade._lade" in sys.modules)
        """)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert out.startswith(f"this package of lade is not built for a {kind}{sys.implementation.name} {version}: `pip install ./python`")
    assert out.endswith(" lade False\n")


def test_nothing_is_imported_unasked():
    out = run("""
        import sys, lade
        pool = lade.PinnedPool(lade.software_device())
        pool.record(memoryview(pool.empty(8, "f4")), 0)
        print([name for name in ("numpy", "torch", "cupy", "numba", "rmm") if name in sys.modules])
        """)
    assert out == "[]\n"


@pytest.mark.parametrize("ends", [KeyboardInterrupt, ValueError])
def test_an_exception_that_ends_a_with_goes_on(ends, device, tmp_path):
    """Regression: BusyError took its place, as what the block has made is alive then."""
    (tmp_path / "rows").write_bytes(bytes(64))
    for make, use in ((lambda: lade.PinnedPool(device), lambda pool: pool.empty(8)), (lambda: lade.DeviceAllocator(device), lambda of: of.alloc(8)),
                      (lambda: lade.Pipeline(device), lambda of: lade.Loader([tmp_path / "rows"], 2, record_bytes=16, pipeline=of))):
        with pytest.raises(ends) as caught:
            with make() as thing:
                used = use(thing)
                raise ends
        assert caught.value.__context__ is None
        with pytest.raises(lade.BusyError):
            thing.close()  # it is as it was
        with pytest.raises(lade.BusyError):
            with thing:  # nothing else is raised: this is
                pass
        del used, caught
        gc.collect()
        thing.close()
