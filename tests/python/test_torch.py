# SPDX-License-Identifier: Apache-2.0
"""lade.torch without a GPU: PyTorch's own registry and interfaces, with pools on a software device behind them.

Skipped where there is no PyTorch. What needs PyTorch's C++ interface is skipped, too, where LADE_TORCH_CALLS does not name the
folder with python/torch's test module.
"""

import ctypes
import gc
import itertools
import os
import subprocess
import sys
import textwrap
import threading

import pytest

torch = pytest.importorskip("torch")
import lade  # noqa: E402

if torch.version.cuda is None:
    pytest.skip("this PyTorch has no CUDA", allow_module_level=True)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_calls  # noqa: E402

import lade.torch  # noqa: E402

MINOR = int(torch.__version__.split(".")[1])
needs_calls = pytest.mark.skipif(torch_calls.path(torch.__version__) is None, reason="LADE_TORCH_CALLS names no module")
needs_pools = pytest.mark.skipif(MINOR < 11, reason="host pools came with PyTorch 2.11")
needs_history = pytest.mark.skipif(MINOR < 14, reason="history of host memory came with PyTorch 2.14")

if not os.path.exists(lade.torch._native_path(MINOR)):
    pytest.skip("this build of lade has no native part for this PyTorch", allow_module_level=True)


@pytest.fixture(scope="module")
def device():
    return lade.software_device()


@pytest.fixture(scope="module")
def the_pool(device):
    """One pool for all tests here: a process has room for eight."""
    return lade.PinnedPool(device, segment_bytes=1 << 20)


@pytest.fixture
def calls():
    return torch_calls.Calls(torch.__version__)


@pytest.fixture
def served(the_pool):
    lade.torch.install_pinned(the_pool)
    yield the_pool
    lade.torch.uninstall_pinned()
    assert lade.torch._native().lade_torch_pinned_refused_frees() == 0


def in_use(pool):
    return pool.stats()["in_use_blocks.current"]


def program(text, **environment):
    """Runs a program of its own, which must end well."""
    here = os.path.dirname(os.path.abspath(__file__))
    head = f"import os, sys\nsys.path.insert(0, {here!r})\nimport torch, lade, lade.torch, torch_calls\n"
    result = subprocess.run([sys.executable, "-c", head + textwrap.dedent(text)], capture_output=True, text=True,
                            env={**os.environ, **environment}, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


# ---- Installation ----------------------------------------------------------------------------------------------------


def test_install_answers_the_pool_that_serves(served):
    assert lade.torch.pinned_pool() is served
    assert lade.torch.pinned_is_installed()
    lade.torch.uninstall_pinned()
    assert lade.torch.pinned_pool() is None
    assert not lade.torch.pinned_is_installed()


def test_the_same_settings_are_the_same_pool(device):
    settings = {"device": device, "segment_bytes": 2 << 20, "sources": ["register", "driver"]}
    first = lade.torch.install_pinned(**settings)
    lade.torch.uninstall()
    assert lade.torch.install_pinned(**settings) is first
    lade.torch.uninstall()


def test_a_pool_excludes_its_settings(the_pool):
    with pytest.raises(TypeError, match="either pool or these"):
        lade.torch.install_pinned(the_pool, max_bytes=1 << 30)
    with pytest.raises(TypeError, match="expected a lade.PinnedPool"):
        lade.torch.install_pinned("pool")


def test_an_installed_pool_cannot_be_closed(served):
    with pytest.raises(lade.BusyError):
        served.close()


@needs_calls
def test_the_router_is_registered_once_and_stays(served, calls):
    router = calls.allocator()
    lade.torch.uninstall_pinned()
    assert calls.allocator() == router
    lade.torch.install_pinned(served)
    assert calls.allocator() == router


def test_pinned_serves_inside_alone(the_pool):
    assert lade.torch.pinned_pool() is None
    with lade.torch.pinned(the_pool) as pool:
        assert pool is the_pool and lade.torch.pinned_pool() is the_pool
    assert lade.torch.pinned_pool() is None


def test_pinned_restores_after_an_exception(the_pool):
    with pytest.raises(KeyError):
        with lade.torch.pinned(the_pool):
            raise KeyError
    assert lade.torch.pinned_pool() is None


def test_overlapping_parts_of_two_threads(the_pool):
    first, second = lade.torch.pinned(the_pool), lade.torch.pinned(the_pool)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert lade.torch.pinned_pool() is the_pool
    second.__exit__(None, None, None)
    assert lade.torch.pinned_pool() is None


@pytest.mark.parametrize("version", ["2.7.1+cu126", "2.16.0", "3.0.0", "2.11.0a0+git1234", "2.12.0.dev20260101+cu130"])
def test_other_versions_are_refused_by_name(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(lade.UnsupportedError, match=version.replace("+", r"\+")):
        lade.torch._minor()


def test_other_builds_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(lade.UnsupportedError, match="without CUDA"):
        lade.torch._check_build()
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(lade.UnsupportedError, match="ROCm 6.4"):
        lade.torch._check_build()


def test_a_missing_native_part_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(lade.torch, "_native_path", lambda minor: "/nowhere/_torch.so")
    with pytest.raises(lade.UnsupportedError, match=f"PyTorch 2.{MINOR}"):
        lade.torch._native.__wrapped__()


def test_refusals_install_nothing():
    out = program("""
        torch.__version__ = "2.7.0"
        try:
            lade.torch.install_pinned(device=lade.software_device())
        except lade.UnsupportedError as error:
            print("2.7.0" in str(error), lade.torch.pinned_pool())
    """)
    assert out == "True None"


def test_without_torch_the_import_says_so(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    result = subprocess.run([sys.executable, "-c", "import lade\nimport lade.torch"], capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}, timeout=60)
    assert "lade.torch needs PyTorch 2.8 to 2.15" in result.stderr


def test_lade_alone_imports_no_torch():
    result = subprocess.run([sys.executable, "-c", "import lade, sys; sys.exit('torch' in sys.modules)"], timeout=60)
    assert result.returncode == 0


@pytest.mark.parametrize("order", ["import torch, lade, lade.torch", "import lade, torch, lade.torch", "import lade.torch"])
def test_either_may_be_imported_first(order):
    text = f"{order}\nimport lade\nprint(lade.torch.install_pinned(device=lade.software_device()) is not None)"
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "True", result.stderr


def test_without_a_gpu_the_default_is_refused():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError):
        lade.torch.install_pinned()
    assert lade.torch.pinned_pool() is None


# ---- Blocks ----------------------------------------------------------------------------------------------------------


@needs_calls
def test_a_block_is_of_the_pool_and_returns(served, calls):
    before = in_use(served)
    block = calls.allocate(100_000)
    assert in_use(served) == before + 1
    assert calls.context(block) == calls.pointer(block)
    ctypes.memset(calls.pointer(block), 7, 100_000)
    calls.release(block)
    assert in_use(served) == before


@needs_calls
def test_no_bytes_are_no_block(served, calls):
    block = calls.allocate(0)
    assert calls.pointer(block) is None
    calls.release(block)


@needs_calls
def test_sizes_are_not_rounded_to_powers_of_two(served, calls):
    reserved = served.stats()["in_use_bytes.current"]
    size = (64 << 10) + 4096
    block = calls.allocate(size)
    assert served.stats()["in_use_bytes.current"] - reserved <= size * 9 // 8
    calls.release(block)


@needs_calls
def test_a_noted_stream_keeps_the_block(device, calls):
    """Freed with a copy under way, the bytes are nobody's until it is done; the context may be anything."""
    sim = lade.software_device(clock="sim")
    pool = lade.PinnedPool(sim, segment_bytes=1 << 20, event_batch=1)
    stream = sim.stream()
    with lade.torch.pinned(pool):
        block = calls.allocate(1 << 20)
        pointer = calls.pointer(block)
        fill(pool, pointer, 1 << 20, stream)
        for context in (None, 1, 0xDEADBEEF, pointer):
            assert calls.record(pointer + 4096, context, stream.handle)
        calls.release(block)
        assert pool.stats()["pending_blocks.current"] == 1
        stream.synchronize()
        again = calls.allocate(1 << 20)
        assert calls.pointer(again) == pointer
        calls.release(again)


def fill(pool, pointer, size, stream):
    """Queues work on pinned memory, by the C library that the package has loaded."""
    library = ctypes.CDLL("liblade.so.0")
    library.lade_fill_async.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint8, ctypes.c_size_t, ctypes.c_void_p]
    assert library.lade_fill_async(pool._lend()[1], pointer, 7, size, stream.handle) == 0


@needs_calls
@pytest.mark.parametrize("stream", [0, 1, 2], ids=["null", "legacy", "per-thread"])
def test_special_streams_of_a_thread_without_a_current_device(served, calls, stream):
    """As autograd's threads are before their first kernel: PyTorch names the device."""
    block, unknown, known = calls.allocate(1000), ctypes.create_string_buffer(100), []

    def work():
        known.append(calls.record(ctypes.addressof(unknown), None, stream, 0))
        known.append(calls.record(calls.pointer(block), None, stream, 0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    calls.release(block)
    assert known == [False, True]


@needs_calls
def test_unknown_pointers_are_not_known(served, calls):
    bytes_of_python = ctypes.create_string_buffer(4096)
    assert not calls.record(ctypes.addressof(bytes_of_python), None)
    assert not calls.record(0x1234, 0x5678)


@needs_calls
def test_addresses_inside_a_block_are_known_by_any_context(device, served, calls):
    """PyTorch's cache knows a block by its begin or its context alone, and does not protect the rest."""
    stream = device.stream()
    block = calls.allocate(50_000)
    pointer = calls.pointer(block)
    for offset, context in ((0, None), (0, pointer + 8), (49_999, None), (4096, 1), (100, pointer)):
        assert calls.record(pointer + offset, context, stream.handle)
    calls.release(block)
    stream.synchronize()


@needs_calls
def test_a_freed_block_is_refused(served, calls):
    block = calls.allocate(8192)
    pointer = calls.pointer(block)
    calls.release(block)
    with pytest.raises(torch_calls.Refused, match="lade"):
        calls.record(pointer, None)


@needs_calls
def test_clone_copies_the_bytes(served, calls):
    block = calls.allocate(5000)
    ctypes.memset(calls.pointer(block), 42, 5000)
    copy = calls.clone(block, 5000)
    assert ctypes.string_at(calls.pointer(copy), 5000) == b"\x2a" * 5000
    calls.release(copy)
    calls.release(block)


@needs_calls
def test_the_cap_is_an_out_of_memory_error(device, calls):
    pool = lade.PinnedPool(device, max_bytes=4 << 20, segment_bytes=1 << 20)
    with lade.torch.pinned(pool):
        with pytest.raises(torch_calls.Refused, match="^out of memory: CUDA out of memory. pinned pool: .*"):
            calls.allocate(64 << 20)
        calls.release(calls.allocate(1 << 20))


@needs_calls
def test_accelerate_tries_again_with_less(device, calls):
    """With its own function, for what lade raises and for the words that PyTorch passes on."""
    memory = pytest.importorskip("accelerate.utils.memory")
    pool = lade.PinnedPool(device, max_bytes=8 << 20, segment_bytes=1 << 20)
    allocator = lade.DeviceAllocator(lade.software_device(clock="cpu", memory_bytes=64 << 20))
    capped = lade.DeviceAllocator(device, max_bytes=40 << 20)

    def pinned_by_pytorch(nbytes):
        with lade.torch.pinned(pool):
            calls.release(calls.allocate(nbytes))

    for most, allocate in ((64, allocator.alloc), (32, capped.alloc), (8, lambda nbytes: pool.empty(nbytes, "uint8")), (8, pinned_by_pytorch)):
        tried = []

        @memory.find_executable_batch_size(starting_batch_size=256, reduce_batch_size_fn=lambda: tried[-1] // 2)
        def train(size):
            tried.append(size)
            allocate(size << 20)
            return size

        assert train() == most
        assert tried[0] == 256


@needs_calls
def test_pools_are_told_apart_and_limited(device):
    out = program("""
        calls = torch_calls.Calls(torch.__version__)
        device = lade.software_device()
        pools = [lade.PinnedPool(device, segment_bytes=1 << 20) for _ in range(9)]
        blocks, stream = [], device.stream()
        for pool in pools[:8]:
            lade.torch.install_pinned(pool)
            blocks.append(calls.allocate(4096))
        try:
            lade.torch.install_pinned(pools[8])
        except lade.UnsupportedError as error:
            print("8 pools" in str(error), lade.torch.pinned_pool() is pools[7])
        pools[8].close()  # nobody has it
        for block in blocks:
            assert calls.record(calls.pointer(block), None, stream.handle)
            calls.release(block)
        stream.synchronize()
        print([p.stats()["in_use_blocks.current"] for p in pools[:8]])
    """)
    assert out.splitlines() == ["True True", "[0, 0, 0, 0, 0, 0, 0, 0]"]


@needs_calls
def test_blocks_of_an_uninstalled_pool_are_still_known(served, calls):
    block = calls.allocate(4096)
    lade.torch.uninstall_pinned()
    stream = served.device.stream()
    assert calls.record(calls.pointer(block), None, stream.handle)
    calls.release(block)
    stream.synchronize()


@needs_calls
def test_uninstalled_pytorch_serves_again(served, calls):
    lade.torch.uninstall_pinned()
    before = served.stats()["hits"] + served.stats()["misses"]
    try:
        calls.release(calls.allocate(4096))
    except torch_calls.Refused as error:
        assert "CUDA" in str(error)  # PyTorch's own allocator, which needs a GPU
    assert served.stats()["hits"] + served.stats()["misses"] == before


@needs_calls
def test_empty_cache_gives_segments_back(device, calls):
    pool = lade.PinnedPool(device, segment_bytes=1 << 20)
    with lade.torch.pinned(pool):
        calls.release(calls.allocate(1 << 20))
        try:
            calls.empty_cache()
        except torch_calls.Refused as error:
            assert "CUDA" in str(error)  # of PyTorch's own cache, after lade's
        assert pool.stats()["reserved_bytes.current"] == 0


# ---- Figures ---------------------------------------------------------------------------------------------------------


@needs_calls
def test_host_memory_stats_tell_the_pools_figures(served, calls):
    block = calls.allocate(300_000)
    mine, theirs = served.stats(), calls.stats()
    for key in theirs:
        assert theirs[key] == mine[key], key
    assert theirs["active_requests.current"] >= 1
    calls.release(block)


@needs_calls
def test_reference_counts_what_pytorchs_cache_counts():
    """Programs that count blocks: a call of the driver for each, of the next power of two."""
    assert program("""
        pool = lade.torch.install_pinned(lade.PinnedPool(lade.software_device(), reference=True))
        calls = torch_calls.Calls(torch.__version__)

        def figures():
            stats = calls.stats()
            names = ("active_requests", "allocations", "active_bytes", "allocated_bytes")
            return [stats[f"{name}.{cell}"] for name in names for cell in ("current", "peak", "allocated", "freed")] + [
                stats["num_host_alloc"], stats["num_host_free"]]

        assert figures() == [0] * 18
        blocks = []
        for number, size, total in ((1, 40_000, 64 << 10), (2, 80_000, 192 << 10)):
            blocks.append(calls.allocate(size))
            assert figures() == [number, number, number, 0] * 2 + [total, total, total, 0] * 2 + [number, 0]
        pool.empty_cache()  # nothing of it is free
        assert figures() == [2, 2, 2, 0] * 2 + [192 << 10] * 3 + [0] + [192 << 10] * 3 + [0] + [2, 0]
        address = calls.pointer(blocks[0])
        calls.release(blocks.pop(0))
        blocks.append(calls.allocate(33_000))
        assert calls.pointer(blocks[-1]) == address, "of the same power of two"
        for block in blocks:
            calls.release(block)
        pool.empty_cache()
        assert figures()[-2:] == [2, 2] and pool.stats()["reserved_bytes.current"] == 0
        print("equal")
    """) == "equal"


@needs_calls
def test_resets_reach_the_pool(served, calls):
    calls.release(calls.allocate(1 << 19))
    calls.reset(peaks=False)
    assert served.stats()["allocated_bytes.allocated"] == 0
    block = calls.allocate(1 << 19)
    calls.release(block)
    calls.reset(peaks=True)
    assert calls.stats()["active_bytes.peak"] == calls.stats()["active_bytes.current"]


# ---- Graph captures --------------------------------------------------------------------------------------------------

_pools = itertools.count(1000)


@pytest.fixture
def current_stream(device):
    """Software streams that PyTorch's current one stands for."""
    native = lade.torch._native()
    yield native.lade_torch_software_stream
    native.lade_torch_software_stream(None)


@needs_calls
@needs_pools
class TestCapture:
    @pytest.fixture(autouse=True)
    def fresh_pool(self):
        self.pool = (next(_pools), 0)  # PyTorch has no number twice

    def begin(self, calls, current_stream, stream):
        current_stream(stream)
        calls.pool("begin", self.pool, stream)

    def test_blocks_stay_in_their_pool(self, served, calls, current_stream):
        stream = served.device.stream()
        self.begin(calls, current_stream, stream.handle)
        inside = calls.allocate(50_000)
        pointer = calls.pointer(inside)
        calls.release(inside)
        again = calls.allocate(40_000)
        assert calls.pointer(again) == pointer  # unrecorded: the same capture may have it again
        calls.release(again)
        calls.pool("end", self.pool)
        outside = [calls.allocate(50_000) for _ in range(8)]
        assert pointer not in [calls.pointer(each) for each in outside]
        for each in outside:
            calls.release(each)
        calls.pool("release", self.pool)
        used = in_use(served)
        try:
            calls.empty_cache()
        except torch_calls.Refused as error:
            assert "CUDA" in str(error)
        assert in_use(served) == used - 1

    def test_a_recorded_block_is_not_handed_out_again(self, served, calls, current_stream):
        stream = served.device.stream()
        self.begin(calls, current_stream, stream.handle)
        used = in_use(served)
        block = calls.allocate(50_000)
        pointer = calls.pointer(block)
        assert calls.record(pointer + 10, None, stream.handle)
        calls.release(block)
        again = calls.allocate(50_000)
        assert calls.pointer(again) != pointer
        calls.release(again)
        calls.pool("end", self.pool)
        assert in_use(served) == used + 2
        calls.pool("release", self.pool)
        assert in_use(served) == used + 1  # the recorded one went back; lade knows when its stream is done
        stream.synchronize()

    def test_other_streams_are_not_taken(self, served, calls, current_stream):
        stream, other = served.device.stream(), served.device.stream()
        self.begin(calls, current_stream, stream.handle)
        current_stream(other.handle)
        used = in_use(served)
        calls.release(calls.allocate(50_000))
        assert in_use(served) == used
        calls.pool("end", self.pool)
        calls.pool("release", self.pool)

    def test_a_tensor_may_outlive_the_pool(self, served, calls, current_stream):
        stream = served.device.stream()
        self.begin(calls, current_stream, stream.handle)
        used = in_use(served)
        block = calls.allocate(50_000)
        assert calls.record(calls.pointer(block), None, stream.handle)
        calls.pool("end", self.pool)
        calls.pool("release", self.pool)
        assert in_use(served) == used + 1
        calls.release(block)
        assert in_use(served) == used
        stream.synchronize()

    def test_captures_that_share_a_pool(self, served, calls, current_stream):
        stream = served.device.stream()
        for _ in range(2):
            self.begin(calls, current_stream, stream.handle)
            calls.release(calls.allocate(50_000))
            calls.pool("end", self.pool)
        used = in_use(served)
        calls.pool("release", self.pool)
        assert in_use(served) == used
        calls.pool("release", self.pool)

    @pytest.mark.parametrize("is_used", [False, True])
    @pytest.mark.parametrize("is_dropped", [False, True])
    def test_the_next_capture_of_a_pool_gets_what_nobody_uses(self, served, calls, current_stream, is_used, is_dropped):
        stream = served.device.stream()
        blocks, pointers = [], []
        for _ in range(2):
            self.begin(calls, current_stream, stream.handle)
            blocks.append(calls.allocate(32))
            pointers.append(calls.pointer(blocks[-1]))
            if is_used:
                assert calls.record(pointers[-1], None, stream.handle)
            if is_dropped:
                calls.release(blocks.pop())
            calls.pool("end", self.pool)
        assert (pointers[0] == pointers[1]) == (is_dropped and not is_used)
        for block in blocks:
            calls.release(block)
        for _ in range(2):
            calls.pool("release", self.pool)
        stream.synchronize()

    def test_an_end_without_a_begin_is_pytorchs_error(self, served, calls):
        with pytest.raises(torch_calls.Refused):
            calls.pool("end", (99, 0))

    def test_begin_twice_is_pytorchs_error_and_changes_nothing(self, served, calls, current_stream):
        stream = served.device.stream()
        self.begin(calls, current_stream, stream.handle)
        with pytest.raises(torch_calls.Refused):
            calls.pool("begin", self.pool, stream.handle)
        calls.pool("end", self.pool)
        calls.release(calls.allocate(4096))  # no capture is left


# ---- History ---------------------------------------------------------------------------------------------------------


@needs_calls
@needs_history
class TestHistory:
    ALLOC, FREE_REQUESTED, FREE_COMPLETED = 0, 1, 2
    ALL = 3

    def traces(self, calls, action, address):
        contexts, is_sorted = ctypes.c_int(), ctypes.c_int()
        count = calls.native.calls_traces(action, address, ctypes.byref(contexts), ctypes.byref(is_sorted))
        assert count >= 0 and is_sorted.value
        return count, contexts.value

    def segment(self, calls, address):
        size, pool = ctypes.c_uint64(), ctypes.c_uint64()
        return calls.native.calls_segment(address, ctypes.byref(size), ctypes.byref(pool)), size.value

    def test_events_have_pytorchs_contexts(self, served, calls):
        assert calls.native.calls_history(1, 1 << 63, self.ALL, 1) == 1
        block = calls.allocate(70_000)
        pointer = calls.pointer(block)
        assert self.traces(calls, self.ALLOC, pointer) == (1, 1)
        state, size = self.segment(calls, pointer)
        assert state == 7 and size >= 70_000
        calls.release(block)
        assert self.traces(calls, self.FREE_REQUESTED, pointer)[0] == 1
        assert self.traces(calls, self.FREE_COMPLETED, pointer)[0] == 1
        assert calls.native.calls_history(0, 1, self.ALL, 0) == 0
        assert self.traces(calls, self.ALLOC, pointer) == (1, 1)  # kept until they are cleared
        calls.native.calls_history(0, 1, self.ALL, 1)
        assert self.traces(calls, -1, 0) == (0, 0)
        alive = ctypes.c_int()
        assert calls.native.calls_contexts(ctypes.byref(alive)) > 0
        assert alive.value == 0

    def test_registrations_of_others_go_to_pytorch(self, served, calls):
        memory = ctypes.create_string_buffer(4096)
        calls.native.calls_history(1, 1000, self.ALL, 1)
        assert calls.native.calls_external(ctypes.addressof(memory), 4096) == 0
        assert self.traces(calls, self.ALLOC, ctypes.addressof(memory))[0] == 1
        assert calls.native.calls_external(ctypes.addressof(memory), 0) == 0
        calls.native.calls_history(0, 1, self.ALL, 1)


# ---- Threads, processes, the end -------------------------------------------------------------------------------------


@needs_calls
def test_threads_allocate_free_and_switch(served, calls):
    """Blocks freed by other threads than theirs, with streams noted, while lade is installed and uninstalled."""
    stop, failures, handed = threading.Event(), [], []
    lock = threading.Lock()
    stream = served.device.stream()

    def work(seed):
        try:
            for i in range(300):
                block = calls.allocate(512 + (i * 37 + seed) % 60_000)
                ctypes.memset(calls.pointer(block), seed, 512)
                if i % 3 == 0:
                    assert calls.record(calls.pointer(block), None, stream.handle)
                with lock:
                    handed.append(block)
                    other = handed.pop(0) if len(handed) > 10 else None
                if other is not None:
                    calls.release(other)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    def switch():
        while not stop.is_set():
            with lade.torch.pinned(served):
                pass

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    switcher = threading.Thread(target=switch)
    switcher.start()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    stop.set()
    switcher.join()
    for block in handed:
        calls.release(block)
    assert not failures
    stream.synchronize()


@needs_calls
def test_a_forked_child_frees_nothing_and_is_refused():
    out = program("""
        calls = torch_calls.Calls(torch.__version__)
        pool = lade.torch.install_pinned(device=lade.software_device())
        block = calls.allocate(4096)
        child = os.fork()
        if child == 0:
            try:
                calls.release(block)
                calls.allocate(4096)
                os._exit(1)
            except torch_calls.Refused as error:
                os._exit(0 if "fork" in str(error) else 2)
        print(os.waitpid(child, 0)[1], pool.stats()["in_use_blocks.current"])
        calls.release(block)
        print(pool.stats()["in_use_blocks.current"])
    """)
    assert out.splitlines() == ["0 1", "0"]


def test_workers_of_a_dataloader_run_beside_the_router():
    out = program("""
        lade.torch.install_pinned(device=lade.software_device())
        class Numbers(torch.utils.data.Dataset):
            def __len__(self): return 64
            def __getitem__(self, i): return torch.full((100,), i)
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2)
        print(int(sum(batch.sum() for batch in loader)))
    """)
    assert out == str(sum(range(64)) * 100)


@needs_calls
def test_the_process_ends_with_blocks_alive():
    assert program("""
        calls = torch_calls.Calls(torch.__version__)
        lade.torch.install_pinned(device=lade.software_device())
        import atexit
        first, second = calls.allocate(4096), calls.allocate(1 << 20)
        class Late:
            def __del__(self): calls.release(second)
        late = Late()
        late.itself = late
        atexit.register(calls.release, first)
        print("done")
    """) == "done"


@needs_calls
def test_a_last_reference_dropped_by_another_thread(served, calls):
    stream = served.device.stream()
    block = calls.allocate(1 << 16)
    assert calls.record(calls.pointer(block), None, stream.handle)
    used = in_use(served)
    dropper = threading.Thread(target=calls.release, args=(block,))
    dropper.start()
    dropper.join()
    assert in_use(served) == used - 1
    stream.synchronize()


def test_a_dropped_pool_object_changes_nothing(device):
    pool = lade.PinnedPool(device)
    with lade.torch.pinned(pool):
        del pool
        gc.collect()
        assert lade.torch.pinned_pool() is not None


# ---- Device memory ---------------------------------------------------------------------------------------------------


def test_the_allocator_of_mempools_lives_for_ever():
    out = program("""
        lade.torch._call(lade.torch._native().lade_torch_device_configure, b"cpu", b"")
        first = id(lade.torch.mempool_allocator())
        print(first == id(lade.torch.mempool_allocator()))
    """)
    assert out == "True"


def test_segments_of_mempools_come_from_lade_and_go_back():
    """Also where a thread has no current device, as autograd's before their first kernel: an exception would end the process."""
    out = program("""
        import ctypes, threading
        native = lade.torch._native()
        def configure(settings): lade.torch._call(native.lade_torch_device_configure, b"cpu", settings)
        configure(b"expandable_segments:False")
        alloc, free = native.lade_torch_segment_alloc, native.lade_torch_segment_free
        alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        blocks = []
        def fresh(call):
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
        for stream in (0, 1, 2): fresh(lambda: blocks.append(alloc(1000, 0, stream)))
        print(alloc(0, 0, 0), None in blocks, len(set(blocks)), lade.torch.device_stats(0)["allocation.all.current"])
        for block in blocks: fresh(lambda: free(block, 0, 0, None))
        print(lade.torch.device_stats("cuda:0")["allocation.all.current"], native.lade_torch_device_refused_frees())
        try: configure(b"")
        except lade.UnsupportedError as error: print("settings stay" in str(error))
    """)
    assert out.splitlines() == ["None False 3 3", "0 0", "True"]


def test_wrong_settings_are_refused():
    out = program("""
        try: lade.torch._call(lade.torch._native().lade_torch_device_configure, b"cpu", b"no_such_setting:1")
        except lade.UnsupportedError as error: print("no_such_setting" in str(error))
    """)
    assert out == "True"


def test_the_device_allocator_is_refused_after_cuda_began(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(lade.UnsupportedError, match="before anything uses the GPU"):
        lade.torch.install_device()
    assert not lade.torch.device_is_installed()


# ---- Checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_load_stands_in_for_load_file(tmp_path, device):
    import json
    import struct

    weights = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    header = json.dumps({"weights": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<6f", *range(6)))
    loaded = lade.torch.load(path, device=device)
    assert list(loaded) == ["weights"] and isinstance(loaded["weights"], torch.Tensor)
    assert torch.equal(loaded["weights"], weights)
    assert lade.torch.load_file is lade.torch.load
