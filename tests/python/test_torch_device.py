# SPDX-License-Identifier: Apache-2.0
"""lade as PyTorch's device allocator, without a GPU: PyTorch's own interfaces ask it, and its memory is a software device's.

Each test is a process, as an allocator is chosen once. Skipped where there is no PyTorch with CUDA.
"""

import os
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch has no CUDA", allow_module_level=True)
import lade.torch  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_calls  # noqa: E402

needs_calls = pytest.mark.skipif(torch_calls.path(torch.__version__) is None, reason="LADE_TORCH_CALLS names no module")
MINOR = int(torch.__version__.split(".")[1])
if not os.path.exists(lade.torch._native_path(MINOR)):
    pytest.skip("this build of lade has no native part for this PyTorch", allow_module_level=True)

HEAD = """
import gc, pickle, threading, torch, lade, lade.torch, torch_calls
C, MIB = torch._C, 1 << 20
torch.cuda._lazy_init = lambda: None  # PyTorch would ask for a driver
def install(settings=""):
    lade.torch._device_native = lade.torch._native()
    lade.torch._follow_settings()
    lade.torch._call(lade.torch._native().lade_torch_device_install, b"cpu", settings.encode())
def alloc(size, stream=0): return C._cuda_cudaCachingAllocator_raw_alloc(size, stream)
free = C._cuda_cudaCachingAllocator_raw_delete
def stat(key):
    value = C._cuda_memoryStats(0)
    for part in key.split("."): value = value[part]
    return value
def snapshot(): return C._cuda_memorySnapshot((0, 0))
"""


def program(text, head="install()\n", **environment):
    here = f"import sys\nsys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
    result = subprocess.run([sys.executable, "-c", here + HEAD + head + textwrap.dedent(text)], capture_output=True, text=True, timeout=100,
                            env={**os.environ, **environment})
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_blocks_are_counted_and_come_back():
    assert program("""
        a, b = alloc(1000), alloc(3 * MIB)
        print(stat("allocation.all.current"), stat("requested_bytes.all.current") == 1000 + 3 * MIB)
        print(stat("allocated_bytes.small_pool.current"), stat("reserved_bytes.large_pool.current") == 20 * MIB)
        free(a); c = alloc(900)
        print(a == c, alloc(0))
        free(b); free(c)
        print(stat("allocated_bytes.all.current"), stat("allocated_bytes.all.peak") == 3 * MIB + 1024, stat("max_split_size"))
        C._cuda_resetPeakMemoryStats(0); C._cuda_resetAccumulatedMemoryStats(0)
        print(stat("allocated_bytes.all.peak"), stat("allocation.all.allocated"))
        C._cuda_emptyCache()
        print(stat("reserved_bytes.all.current"), C._cuda_getAllocatorBackend())
    """) == "2 True 1024 True True 0 0 True -1 0 0 0 native".split()


def test_a_snapshot_has_segments_blocks_and_settings():
    assert program("""
        a, b = alloc(1000), alloc(3 * MIB)
        free(a)
        s = snapshot()
        for each in sorted(s["segments"], key=lambda each: each["total_size"]):
            print(each["total_size"], each["segment_type"], each["allocated_size"], [x["state"] for x in each["blocks"]][:1])
        print(len(s["device_traces"]), "allocator_settings" in s)
        pickle.dumps(s)
    """) == [str(2 << 20), "small", "0", "['inactive']", str(20 << 20), "large", str(3 << 20), "['active_allocated']", "1", "True"]


@needs_calls
def test_contexts_stand_with_blocks_and_events():
    assert program("""
        calls = torch_calls.Calls(torch.__version__)
        native = calls.native
        before = alloc(500)
        ALLOC, FREED, SEGMENT, ANY = 0, 2, 3, 7
        for level in (1, 2, 3):
            native.calls_device_history(1, level, 1)
            a = alloc(3 * MIB * level)
            print(native.calls_device_block_context(a) > 0, native.calls_device_event_context(ALLOC) > 0, C._cuda_isHistoryEnabled(),
                  native.calls_device_block_context(before))
            free(a)
            print(native.calls_device_event_context(FREED) > 0)
        native.calls_device_history(0, 0, 0)
        print(len(snapshot()["device_traces"][0]), C._cuda_isHistoryEnabled())
    """) == ["True", "False", "True", "0", "False", *["True", "True", "True", "0", "True"] * 2, "0", "False"]


@needs_calls
def test_trackers_and_observers_hear_of_later_allocators_too():
    assert program("""
        native = torch_calls.Calls(torch.__version__).native
        native.calls_device_listen()
        a = alloc(1000); free(a)
        try: alloc(1 << 50)
        except torch.OutOfMemoryError: pass
        print([native.calls_device_tracked(action) for action in (0, 1, 2, 3, 8)], native.calls_device_failures(), stat("num_ooms"))
    """) == ["[1,", "1,", "1,", "1,", "1]", "1", "1"]


@needs_calls
@pytest.mark.parametrize("settings, action", [("", 4), ("expandable_segments:True", 6)])
def test_trackers_hear_once_of_each_segment_that_goes(settings, action):
    assert program(f"""
        native = torch_calls.Calls(torch.__version__).native
        install({settings!r})
        native.calls_device_listen()
        for turn in range(3):
            free(alloc(30 * MIB)); free(alloc(1000))
            C._cuda_emptyCache()
            print(native.calls_device_tracked({action}), stat("reserved_bytes.all.current"))
    """, head="") == ["2", "0", "4", "0", "6", "0"]


def test_a_pool_is_led_to_by_the_thread_that_begins_it():
    assert program("""
        pool = (0, 77)
        C._cuda_beginAllocateCurrentThreadToPool(0, pool)
        inside = alloc(1000)
        other = []
        t = threading.Thread(target=lambda: other.append(alloc(1000))); t.start(); t.join()
        C._cuda_endAllocateToPool(0, pool)
        outside = alloc(1000)
        owner = {b: s["segment_pool_id"] for s in snapshot()["segments"] for b in [x["address"] for x in s["blocks"]]}
        print(owner[inside], owner[other[0]], owner[outside])
        print(C._cuda_checkPoolLiveAllocations(0, pool, {inside}), C._cuda_checkPoolLiveAllocations(0, pool, set()))
        for each in (inside, other[0], outside): free(each)
        C._cuda_emptyCache()
        print(stat("reserved_bytes.all.current"))
        C._cuda_releasePool(0, pool)
        C._cuda_emptyCache()
        print(stat("reserved_bytes.all.current"))
        try: C._cuda_endAllocateToPool(0, pool)
        except RuntimeError as error: print("expected" in str(error))
    """) == ["(0,", "77)", "(0,", "0)", "(0,", "0)", "True", "False", str(2 << 20), "0", "True"]


def test_the_newest_pool_leads():
    assert program("""
        outer, inner = (0, 5), (0, 6)
        C._cuda_beginAllocateCurrentThreadToPool(0, outer)
        C._cuda_beginAllocateCurrentThreadToPool(0, inner)
        a = alloc(1000)
        C._cuda_endAllocateToPool(0, inner)
        b = alloc(1000)
        C._cuda_endAllocateToPool(0, outer)
        owner = {x["address"]: s["segment_pool_id"] for s in snapshot()["segments"] for x in s["blocks"]}
        print(owner[a], owner[b])
    """) == ["(0,", "6)", "(0,", "5)"]


def test_a_pool_is_restored():
    assert program("""
        pool = (0, 9)
        C._cuda_beginAllocateCurrentThreadToPool(0, pool)
        kept, gone = alloc(1000), alloc(2000)
        C._cuda_endAllocateToPool(0, pool)
        state = C._cuda_getCheckpointState(0, pool)
        free(gone); free(kept)
        print(C._cuda_checkPoolLiveAllocations(0, pool, set()))
        storages = []
        C._cuda_setCheckpointPoolState(0, state, [], storages)
        print(C._cuda_checkPoolLiveAllocations(0, pool, {kept, gone}))
    """) == ["True", "True"]


def test_a_lack_of_memory_has_the_words_that_programs_look_for():
    out = program("""
        for size in (1 << 50, 1 << 61):
            try: alloc(size)
            except torch.OutOfMemoryError as error: print(str(error).replace(" ", "_"))
    """)
    assert out[0].startswith("CUDA_out_of_memory._Tried_to_allocate_1048576.00_GiB._GPU_0_has_a_total_capacity_of_")
    assert "_is_free._lade:_Device_0:_" in out[0]
    assert out[1].startswith("CUDA_out_of_memory._Tried_to_allocate_more_than_1EB_memory._lade:_")


def test_a_fraction_is_a_limit_and_can_be_asked_for():
    assert program("""
        print(C._cuda_getMemoryFraction(0))
        C._cuda_setMemoryFraction(0.25, 0)
        print(C._cuda_getMemoryFraction(0))
        try: C._cuda_setMemoryFraction(0.5, 7)
        except RuntimeError as error: print("Invalid device" in str(error))
    """) == ["1.0", "0.25", "True"]


def test_settings_of_pytorch_reach_lade():
    assert program("""
        setter = C._accelerator_setAllocatorSettings if hasattr(C, "_accelerator_setAllocatorSettings") else C._cuda_cudaCachingAllocator_set_allocator_settings
        a = alloc(1000); free(a)
        setter("roundup_power2_divisions:2")
        b = alloc(5 * MIB)
        print(stat("allocated_bytes.all.current") // MIB)
        free(b)
        setter("max_split_size_mb:40")
        b = alloc(5 * MIB)
        print(stat("allocated_bytes.all.current") // MIB)
    """) == ["6", "5"]


def test_settings_of_later_versions_are_no_error():
    """Regression: PyTorch took keys that only it knows, and lade refused them behind it."""
    assert program("""
        call = lambda text: lade.torch._call(lade.torch._native().lade_torch_device_settings, text.encode())
        for text in ("expandable_segments_reserve:0.5", "expandable_segments_reserve:40G,pinned_free_catch_all:True",
                     "expandable_segments_reserve_by_class:[serving:0.25,other:8G],max_split_size_mb:40"):
            call(text)
        b = alloc(5 * MIB)
        print(stat("allocated_bytes.all.current") // MIB)
        try: call("expandable_segments_reserved:1")
        except lade.UnsupportedError as error: print("unknown key" in str(error))
    """) == ["5", "True"]


def test_another_backend_is_refused_by_name():
    """PyTorch fails an assertion later, where its settings name another allocator than the one that is there."""
    text = """
        try: install(SETTINGS)
        except lade.UnsupportedError as error: print("expected backend:native" in str(error), lade.torch.device_is_installed())
    """
    assert program(text, head="SETTINGS = ''\n", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync") == ["True", "False"]
    assert program(text, head="SETTINGS = 'backend:cudaMallocAsync'\n") == ["True", "False"]


def test_a_fraction_among_the_settings_is_told():
    assert program("print(C._cuda_getMemoryFraction(0))", head="install('per_process_memory_fraction:0.5')\n") == ["0.5"]


def test_the_environment_counts():
    assert program("""
        a = alloc(3 * MIB)
        print(snapshot()["segments"][0]["is_expandable"])
    """, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True") == ["True"]


@needs_calls
def test_metadata_stand_with_events():
    if MINOR < 10:
        pytest.skip("user metadata came with PyTorch 2.10")
    assert program("""
        torch_calls.Calls(torch.__version__).native.calls_device_history(1, 0, 1)
        C._cuda_setMemoryMetadata("step 3")
        a = alloc(1000)
        C._cuda_setMemoryMetadata("")
        free(a)
        events = snapshot()["device_traces"][0]
        print([e["user_metadata"] for e in events if e["action"] in ("alloc", "free_completed")])
        print(C._cuda_getMemoryMetadata() == "", [e["action"] for e in events][-1])
    """) == ["['step", "3',", "'']", "True", "free_completed"]


@needs_calls
def test_names_of_the_compiler_leave_the_programs_scopes():
    """Regression: the end of a compile context whose name was refused ended a scope of the program's."""
    assert program("""
        native = torch_calls.Calls(torch.__version__).native
        native.calls_device_history(1, 0, 1)
        library = ctypes.CDLL(next(line.split()[-1] for line in open("/proc/self/maps") if "liblade.so" in line))
        print(library.lade_history_scope_push(b"program"))
        for name_bytes in (5000, 100):
            print(native.calls_device_compile_context(ctypes.c_size_t(name_bytes)), native.calls_device_compile_context(ctypes.c_size_t(0)))
        print(library.lade_history_scope_pop(), library.lade_history_scope_pop() != 0)
    """, head="import ctypes\ninstall()\n") == ["0", "0", "0", "0", "0", "0", "True"]


@needs_calls
def test_long_metadata_are_whole_for_the_program_and_cut_in_events():
    """Regression: more than lade keeps of a label was an error, and PyTorch has no limit."""
    if MINOR < 10:
        pytest.skip("user metadata came with PyTorch 2.10")
    assert program("""
        torch_calls.Calls(torch.__version__).native.calls_device_history(1, 0, 1)
        text = "x" * 4094 + "\\u00e9" * 500
        C._cuda_setMemoryMetadata(text)
        a = alloc(1000)
        print(C._cuda_getMemoryMetadata() == text)
        print([len(e["user_metadata"]) for e in snapshot()["device_traces"][0] if e["action"] == "alloc"])
    """) == ["True", "[4094]"]


@needs_calls
def test_threads_with_pools_beside_histories_and_snapshots():
    """Pools begin and end in four threads while a fifth turns the history on and off and looks at everything."""
    assert program("""
        native, rounds, wrong = torch_calls.Calls(torch.__version__).native, 60, []
        native.calls_device_listen()
        def pools(which):
            for i in range(rounds):
                pool = (0, 1000 * which + i + 1)
                C._cuda_beginAllocateCurrentThreadToPool(0, pool)
                inside = [alloc(700 * (k + 1)) for k in range(5)]
                C._cuda_endAllocateToPool(0, pool)
                outside = alloc(3 * MIB)
                if not C._cuda_checkPoolLiveAllocations(0, pool, set(inside)): wrong.append(pool)
                state = C._cuda_getCheckpointState(0, pool)
                for each in inside: free(each)
                C._cuda_releasePool(0, pool)
                free(outside)
        def look():
            while any(t.is_alive() for t in threads):
                native.calls_device_history(1, 3, 1)
                native.calls_device_event_context(0)
                native.calls_device_history(0, 0, 0)
                C._cuda_emptyCache()
        threads = [threading.Thread(target=pools, args=(k,)) for k in range(4)]
        looker = threading.Thread(target=look)
        for t in (*threads, looker): t.start()
        for t in (*threads, looker): t.join()
        C._cuda_emptyCache()
        print(wrong, stat("allocation.all.current"), stat("reserved_bytes.all.current"), native.calls_device_tracked(0) == 4 * rounds * 6,
              lade.torch._native().lade_torch_device_refused_frees())
    """) == ["[]", "0", "0", "True", "0"]


def test_a_forked_child_gives_nothing_back_and_is_refused():
    assert program("""
        import os, sys
        a = alloc(1000)
        child = os.fork()
        if child == 0:
            free(a)
            try: alloc(1000)
            except RuntimeError: os._exit(7)
            os._exit(8)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), stat("allocation.all.current"))
        free(a)
        print(lade.torch._native().lade_torch_device_refused_frees())
    """) == ["7", "1", "0"]


def test_blocks_that_go_while_the_interpreter_ends():
    """Finalizers, functions of atexit and a thread free and allocate until the end."""
    assert program("""
        import atexit, sys
        class Late:
            def __init__(self): self.block = alloc(3 * MIB)
            def __del__(self):
                free(self.block)
                free(alloc(700))
        def last():
            kept.clear()
            over.set()  # a daemon in a call of PyTorch's would end the process, as without lade
            thread.join()
            print(stat("allocation.all.current") >= 1, lade.torch._native().lade_torch_device_refused_frees())
        kept = [Late() for _ in range(4)]
        sys.late, cycle = Late(), Late()
        cycle.self = cycle
        atexit.register(last)
        C._cuda_beginAllocateCurrentThreadToPool(0, (0, 5))
        inside = Late()
        C._cuda_endAllocateToPool(0, (0, 5))
        def run():
            while not over.is_set(): free(alloc(1000))
        over, thread = threading.Event(), threading.Thread(target=run, daemon=True)
        thread.start()
        print("done")
    """) == ["done", "True", "0"]


def test_a_snapshot_of_a_million_blocks():
    """Beside a thread that allocates: every block is in it once, and lies in its segment."""
    assert program("""
        count, over = 1 << 20, threading.Event()
        blocks = [alloc(512) for _ in range(count)]
        def work():
            while not over.is_set(): free(alloc(3 * MIB))
        thread = threading.Thread(target=work)
        thread.start()
        gc.disable()
        segments = snapshot()["segments"]
        over.set()
        thread.join()
        starts = set()
        for segment in segments:
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated" and block["size"] == 512: starts.add(address)
                address += block["size"]
            if address != segment["address"] + segment["total_size"]: print("not covered")
        print(len(starts) == count, starts.issuperset(blocks), stat("allocation.all.current") == count)
        for block in blocks: free(block)
        print(stat("allocated_bytes.all.current"), lade.torch._native().lade_torch_device_refused_frees())
    """) == ["True", "True", "True", "0", "0"]


# PyTorch's own classes ask the driver. These do what they do besides.
SLEEP = """
import contextlib, ctypes
torch.cuda.device = lambda ordinal: contextlib.nullcontext()
torch.cuda.is_current_stream_capturing = lambda: False  # so would 2.15, in use_mem_pool()
class MemPool:
    def __init__(self, allocator=None):
        MemPool.made += 1
        self.id, self.allocator = (0, 700 + MemPool.made), allocator
        if allocator is None:
            C._cuda_beginAllocateCurrentThreadToPool(0, self.id); C._cuda_endAllocateToPool(0, self.id)
    made = 0
torch.cuda.MemPool = MemPool
def write(p, value): ctypes.memset(p, value, 3 * MIB)
def read(p): return set(ctypes.string_at(p, 3 * MIB))
"""


def test_a_sleep_pool_suspends_pools_of_pytorch(tmp_path):
    assert program(f"""
        pool = lade.torch.SleepPool(0)
        with pool.use("a"): a = alloc(3 * MIB)
        with pool.use("b"): b = alloc(3 * MIB)
        outside = alloc(1000)
        write(a, 5); write(b, 6)
        before = stat("reserved_bytes.all.current")
        print(pool.mem_pool("a").id, pool.mem_pool("b").id, before >> 20)
        for options in ({{}}, {{"keep": "file", "path": {str(tmp_path)!r}}}):
            print(pool.suspend(**options) >> 20, stat("reserved_bytes.all.current") >> 20)
            try:
                with pool.use("a"): pass
            except RuntimeError as error: print("suspended" in str(error))
            pool.resume()
            print(read(a), read(b), stat("reserved_bytes.all.current") == before)
        pool.suspend("a"); free(a); free(b)
        print(stat("allocation.all.current"), lade.torch._native().lade_torch_device_refused_frees())
        pool.resume(keep_backup=False)
        print(pool.backup_bytes)
    """, head='install("expandable_segments:True")\n' + SLEEP) == [
        "(0,", "701)", "(0,", "702)", "42", *["40", "2", "True", "{5}", "{6}", "True"] * 2, "1", "0", "0"]


def test_a_sleep_pool_suspends_segments_for_pytorchs_own_allocator():
    assert program("""
        native = lade.torch._native()
        native.lade_torch_segment_alloc.restype = ctypes.c_void_p
        native.lade_torch_segment_alloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        native.lade_torch_segment_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        lade.torch._call(native.lade_torch_device_configure, b"cpu", b"expandable_segments:True")
        torch.cuda.use_mem_pool = lambda pool, device: contextlib.nullcontext()
        pool = lade.torch.SleepPool(0)
        with pool.use("a"): a = native.lade_torch_segment_alloc(20 * MIB, 0, None)
        outside = native.lade_torch_segment_alloc(2 * MIB, 0, None)
        write(a, 5)
        print(pool.suspend() >> 20, pool.allocator.usage()["reserved_bytes"] >> 20)
        pool.resume()
        print(read(a), pool.mem_pool("a").allocator is not None)
        pool.suspend()
        native.lade_torch_segment_free(a, 20 * MIB, 0, None)
        pool.close()
        print(native.lade_torch_device_refused_frees(), pool.allocator.usage()["allocated_bytes"] >> 20)
        pool.allocator.empty_cache()
        print(pool.allocator.usage()["reserved_bytes"] >> 20)
    """, head=SLEEP) == ["20", "20", "{5}", "True", "0", "2", "20"]


@needs_calls
def test_a_pool_ends_while_it_is_suspended():
    assert program("""
        native = torch_calls.Calls(torch.__version__).native
        pool = lade.torch.SleepPool(0)
        with pool.use("a"): a = alloc(3 * MIB)
        first, second = pool.mem_pool("a").id
        pool.suspend()
        pool.close()
        print(native.calls_device_pool_end(ctypes.c_uint64(first), ctypes.c_uint64(second)))
        free(a)
        C._cuda_emptyCache()
        print(stat("allocation.all.current"), lade.torch._native().lade_torch_device_refused_frees())
    """, head='install("expandable_segments:True")\n' + SLEEP) == ["0", "0", "0"]


def test_a_sleep_pool_wants_expandable_segments():
    assert program("""
        try: lade.torch.SleepPool(0)
        except lade.UnsupportedError as error: print("lack expandable_segments:True" in str(error))
    """, head="install()\n" + SLEEP) == ["True"]
