# SPDX-License-Identifier: Apache-2.0
"""lade as PyTorch's device allocator, and behind its memory pools. Each test is a process: an allocator is chosen once."""

import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

INSTALL = "lade.torch.install_device()\n"


def program(text, head=INSTALL):
    text = "import gc, threading, torch, lade, lade.torch\n" + head + textwrap.dedent(text)
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_tensors_compute_and_memory_returns():
    assert program("""
        print(lade.torch.device_is_installed())
        a = torch.randn(512, 512, device="cuda", dtype=torch.float64)
        b = torch.linalg.inv(a)
        print(bool(torch.allclose(a @ b, torch.eye(512, device="cuda", dtype=torch.float64), atol=1e-6)))
        empty = torch.empty(0, device="cuda")
        print(lade.torch.device_stats()["allocated_bytes.all.current"] >= a.numel() * 8)
        del a, b, empty
        gc.collect()
        torch.cuda.synchronize()
        big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        before = lade.torch.device_stats()["reserved_bytes.all.current"]
        del big
        torch.cuda.empty_cache()
        print(before - lade.torch.device_stats()["reserved_bytes.all.current"] >= 1 << 30)
        print(lade.torch._native().lade_torch_device_refused_frees())
    """) == ["True", "True", "True", "True", "0"]


def test_training_steps():
    assert program("""
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        x = torch.randn(1024, 64, device="cuda"); y = x.sum(1, keepdim=True)
        losses = []
        for _ in range(100):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            losses.append(loss.item())
        print(losses[-1] < losses[0] / 20)
    """) == ["True"]


def test_a_request_that_fails_is_an_out_of_memory_error():
    assert program("""
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(str(error).startswith("CUDA out of memory. Tried to allocate 1048576.00 GiB. GPU 0 has a total capacity of "))
        print(int(torch.ones(1000, device="cuda").sum()))
    """) == ["True", "1000"]


def test_the_memory_fraction_is_a_limit():
    assert program("""
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(0.05)
        try:
            torch.empty(total // 10, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            print("refused")
        print(torch.empty(total // 100, dtype=torch.uint8, device="cuda").numel() > 0)
    """) == ["refused", "True"]


def test_record_stream_keeps_a_block():
    assert program("""
        side = torch.cuda.Stream()
        block = torch.full((1 << 20,), 7, dtype=torch.uint8, device="cuda")
        pointer = block.data_ptr()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(400_000_000)
            copy = block.clone()
        block.record_stream(side)
        del block
        other = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        print(other.data_ptr() != pointer)
        torch.cuda.synchronize()
        print(bool((copy == 7).all()))
    """) == ["True", "True"]


def test_graphs_keep_their_memory():
    assert program("""
        x = torch.ones(1 << 20, device="cuda")
        side = torch.cuda.Stream()
        def work():
            y = x * 2
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                z = y + 1
            torch.cuda.current_stream().wait_stream(side)
            return (y + z).relu()
        work(); torch.cuda.synchronize()
        graphs, outs = [], []
        pool = torch.cuda.graph_pool_handle()
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                outs.append(work())
            graphs.append(graph)
        noise = [torch.full((1 << 20,), 99.0, device="cuda") for _ in range(32)]
        for value in (1.0, 3.0):
            x.fill_(value)
            for graph, out in zip(graphs, outs):
                graph.replay()
                torch.cuda.synchronize()
                print(bool((out == 4 * value + 1).all()))
        print(all(bool((each == 99).all()) for each in noise))
        del graphs, graph, outs, out
        gc.collect()
        torch.cuda.synchronize(); torch.cuda.empty_cache()
    """) == ["True"] * 5


def test_threads_and_streams():
    assert program("""
        wrong = []
        def work(seed):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for i in range(200):
                    a = torch.full((1000 + i * 37,), float(seed), device="cuda")
                    b = a * 2
                    if float(b.sum()) != 2.0 * seed * a.numel(): wrong.append(seed)
        threads = [threading.Thread(target=work, args=(s,)) for s in range(1, 9)]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(len(wrong), lade.torch._native().lade_torch_device_refused_frees())
    """) == ["0", "0"]


FRESH = """
def fresh(call):
    failures = []
    def work():
        try:
            call()
        except Exception as error:
            failures.append(error)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for each in failures: raise each
"""


def test_threads_without_a_current_context():
    """The first that a thread asks of CUDA is memory on the default stream, as of autograd's threads."""
    assert program("""
        blocks, kept = [], torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        fresh(lambda: blocks.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda")))
        fresh(lambda: kept.record_stream(torch.cuda.default_stream()))
        fresh(blocks.clear)
        fresh(lambda: blocks.append(torch.full((1 << 20,), 5, dtype=torch.uint8, device="cuda").sum().item()))
        print(blocks[0] == 5 << 20, bool((kept == 0).all()))
        print(lade.torch._native().lade_torch_device_refused_frees())
    """, head=INSTALL + FRESH) == ["True", "True", "0"]


def test_a_mempool_of_a_thread_without_a_current_context():
    assert program("""
        pool, kept = torch.cuda.MemPool(lade.torch.mempool_allocator()), []
        def work():
            with torch.cuda.use_mem_pool(pool):
                kept.append(torch.empty(3 << 20, device="cuda"))
        fresh(work)
        print(lade.torch.device_stats()["allocated_bytes.all.current"] >= 12 << 20)
        print(bool((kept[0].fill_(2) == 2).all()))
        fresh(kept.clear)
    """, head=FRESH) == ["True", "True"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_default_streams_of_two_devices():
    """A block is its own device's, whichever context is current: PyTorch sets a device that it has not used yet late."""
    assert program("""
        def work(order):
            for device in order:
                with torch.cuda.device(device):
                    block = torch.full((1 << 20,), device + 1, dtype=torch.uint8, device="cuda")
                    other = torch.ones(1 << 20, dtype=torch.uint8, device=f"cuda:{1 - device}")
                    other.record_stream(torch.cuda.default_stream(1 - device))
                    print(block.device.index == device and int(block.sum()) == (device + 1) << 20)
        for order in ((0, 1), (1, 0), (1,), (0,)): fresh(lambda: work(order))
        print(lade.torch._native().lade_torch_device_refused_frees())
    """, head=INSTALL + FRESH) == ["True"] * 6 + ["0"]


def test_expandable_segments():
    assert program("""
        tensors = [torch.full((1 << 20,), i, dtype=torch.int32, device="cuda") for i in range(64)]
        print(all(bool((t == i).all()) for i, t in enumerate(tensors)))
    """, head="lade.torch.install_device('expandable_segments:True')\n") == ["True"]


def test_statistics_are_pytorchs_own():
    assert program("""
        a = torch.empty(1000, dtype=torch.uint8, device="cuda")
        print(torch.cuda.memory_allocated(), torch.accelerator.memory_allocated(), torch.cuda.max_memory_reserved())
        print(torch.cuda.get_allocator_backend(), "Allocated memory" in torch.cuda.memory_summary())
        del a
        torch.accelerator.empty_cache() if hasattr(torch.accelerator, "empty_cache") else torch.cuda.empty_cache()
        print(torch.cuda.memory_reserved(), torch.cuda.memory_stats()["num_device_free"])
        print(torch.cuda.get_per_process_memory_fraction())
        torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:2")
        b = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
        print(torch.cuda.memory_allocated() >> 20)
    """) == ["1024", "1024", str(2 << 20), "native", "True", "0", "1", "1.0", "6"]


def test_a_history_has_frames_for_pytorchs_viewer():
    assert program("""
        from torch.cuda._memory_viz import segment_plot, trace_plot
        torch.cuda.memory._record_memory_history()
        def the_allocating_function(): return torch.empty(1 << 20, device="cuda")
        kept = the_allocating_function()
        snapshot = torch.cuda.memory._snapshot()
        block = [b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"][0]
        events = snapshot["device_traces"][0]
        for each in (block, events[-1]):
            print(any("the_allocating_function" == f["name"] for f in each["frames"]))
        print([e["action"] for e in events], len(trace_plot(snapshot)) > 1000, len(segment_plot(snapshot)) > 1000)
        torch.cuda.memory._record_memory_history(None)
        print(len(torch.cuda.memory._snapshot()["device_traces"][0]))
    """) == ["True", "True", "['segment_alloc',", "'alloc']", "True", "True", "0"]


def test_graphs_of_one_pool_share_its_memory():
    """Also what a second stream of a capture used comes back for the next graph of the pool."""
    out = program("""
        side, pool, graphs = torch.cuda.Stream(), torch.cuda.graph_pool_handle(), []
        x = torch.randn(1 << 20, device="cuda")
        for i in range(8):
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                here = torch.cuda.current_stream()
                for k in range(8):
                    t = x * 2
                    side.wait_stream(here)
                    with torch.cuda.stream(side): u = t + 1
                    t.record_stream(side); here.wait_stream(side); u.record_stream(here)
                    del t, u
            graphs.append(graph)
            print(torch.cuda.memory_reserved())
    """)
    assert len(set(out[1:])) == 1, out


def test_mempools_are_lades():
    assert program("""
        pool, other = torch.cuda.MemPool(), torch.cuda.MemPool(lade.torch.mempool_allocator())
        with torch.cuda.use_mem_pool(pool):
            inside = torch.full((3 << 20,), 5.0, device="cuda")
        outside = torch.ones(3 << 20, device="cuda")
        owners = {s["segment_pool_id"] for s in torch.cuda.memory_snapshot()}
        print(owners == {(0, 0), pool.id}, [s["allocated_size"] >> 20 for s in pool.snapshot()], pool.use_count())
        del inside
        before = torch.cuda.memory_reserved()
        del pool
        gc.collect()
        print(before - torch.cuda.memory_reserved() >> 20)
    """) == ["True", "[12]", "1", "12"]


def test_a_pool_with_an_allocator_of_its_own_for_segments():
    assert program("""
        import ctypes
        runtime = ctypes.CDLL("libcuda.so.1")
        taken = []
        def give(size, device, stream):
            pointer = ctypes.c_uint64()
            assert runtime.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
            taken.append(pointer.value)
            return pointer.value
        def take(pointer, size, device, stream):
            taken.remove(pointer)
            runtime.cuMemFree_v2(ctypes.c_uint64(pointer))
        give_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        take_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        kept = give_type(give), take_type(take)
        allocator = torch._C._cuda_customAllocator(*(ctypes.cast(each, ctypes.c_void_p).value for each in kept))
        pool = torch.cuda.MemPool(allocator)
        with torch.cuda.use_mem_pool(pool):
            inside = torch.full((1000,), 5.0, device="cuda")
        print(len(taken), inside.data_ptr() == taken[0], bool((inside == 5).all()))
        del inside, pool
        gc.collect(); torch.cuda.empty_cache()
        print(len(taken))
    """) == ["1", "True", "True", "0"]


@pytest.mark.parametrize("settings", ["", "expandable_segments:True,device_expandable_ipc:True"])
def test_tensors_are_shared_with_other_processes(tmp_path, settings):
    """In both orders of the frees. The child has lade, too."""
    (tmp_path / "shared_child.py").write_text(textwrap.dedent(f"""
        import lade.torch
        lade.torch.install_device({settings!r})
        import torch
        def child(queue, answers):
            for _ in range(2):
                tensor = queue.get()
                answers.put(float(tensor.sum()))
                tensor += 1
                torch.cuda.synchronize()
                queue.get()
                del tensor
                answers.put("freed")
    """))
    out = program(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import torch.multiprocessing, shared_child
        if __name__ == "__main__":
            context = torch.multiprocessing.get_context("spawn")
            queue, answers = context.Queue(), context.Queue()
            process = context.Process(target=shared_child.child, args=(queue, answers))
            process.start()
            kept = torch.ones(100, device="cuda")
            for first in ("child", "parent"):
                tensor = torch.ones(1 << 20, device="cuda")
                queue.put(tensor)
                print(answers.get(timeout=60))
                if first == "parent": del tensor
                queue.put("free")
                print(answers.get(timeout=60))
                if first == "child": print(float(tensor.sum()))
            process.join(60)
            print(process.exitcode, lade.torch._native().lade_torch_device_refused_frees())
    """, head="")
    assert out == ["1048576.0", "freed", "2097152.0", "1048576.0", "freed", "0", "0"]


def test_graph_trees_of_compiled_functions():
    """torch.compile(mode="reduce-overhead") over varying shapes: the same numbers as without, in no more memory."""
    text = """
        torch.manual_seed(0)
        torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = False
        model = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
        losses = []
        for step in range(20):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(4 + 4 * (step % 2), 32, 128, device="cuda")
            loss = compiled(x).square().mean()
            loss.backward()
            optimizer.step(); optimizer.zero_grad(set_to_none=True)
            losses.append(f"{loss.item():.6f}")
        print(" ".join(losses), torch.cuda.max_memory_reserved())
    """
    native = program(text, head="")
    ours = program(text)
    assert ours[:-1] == native[:-1]
    assert int(ours[-1]) <= int(native[-1])


def test_too_late_is_refused_by_name():
    assert program("""
        kept = torch.ones(1, device="cuda")
        try:
            lade.torch.install_device()
        except lade.UnsupportedError as error:
            print("before" in str(error), lade.torch.device_is_installed())
        print(torch.cuda.memory_allocated() >= kept.nbytes)
    """, head="") == ["True", "False", "True"]


def test_device_and_pinned_memory_together():
    assert program("""
        lade.torch.install_pinned()
        host = torch.arange(1 << 20).pin_memory()
        print(torch.equal(host.cuda(non_blocking=True).cpu(), host))
    """) == ["True"]


def test_the_process_ends_with_tensors_alive():
    assert program("""
        kept = [torch.ones(1 << 20, device="cuda") for _ in range(8)]
        class Late: pass
        Late.kept = kept
        print("done")
    """) == ["done"]


def test_captures_of_several_threads():
    """Each thread captures into a pool of its own while the others do, and allocates between: no graph names another's memory."""
    assert program("""
        wrong = []
        def work(seed):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                x = torch.full((1 << 16,), float(seed), device="cuda")
                stream.synchronize()
                graphs = []
                for i in range(8):
                    graph = torch.cuda.CUDAGraph()
                    graph.capture_begin(capture_error_mode="thread_local")
                    y = x * (i + 1)
                    z = y + seed
                    del y
                    graph.capture_end()
                    graphs.append((graph, z, seed * (i + 1) + seed))
                    noise = torch.full((1 << 16,), -1.0, device="cuda")
                for graph, z, _ in graphs: graph.replay()
                stream.synchronize()
                wrong.extend((seed, i) for i, (_, z, value) in enumerate(graphs) if not bool((z == value).all()))
        torch.ones(1, device="cuda")
        threads = [threading.Thread(target=work, args=(k + 1,)) for k in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        gc.collect(); torch.cuda.synchronize(); torch.cuda.empty_cache()
        print(wrong, lade.torch._native().lade_torch_device_refused_frees())
    """) == ["[]", "0"]


def test_a_capture_that_fails():
    """What was allocated in it is freed, as much stays reserved as with PyTorch's own allocator, or less, and the next capture works."""
    text = """
        x = torch.ones(1 << 20, device="cuda")
        kept = torch.cuda.memory_allocated()
        for _ in range(3):
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    y = x * 2
                    y.sum().item()
            except RuntimeError as error:
                print("captur" in str(error))
            del graph, y
            gc.collect(); torch.cuda.synchronize(); torch.cuda.empty_cache()
            print(torch.cuda.memory_allocated() - kept, torch.cuda.memory_reserved() >> 20)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): z = x * 3
        graph.replay(); torch.cuda.synchronize()
        print(bool((z == 3).all()))
    """
    ours, native = program(text), program(text, head="")
    assert len(ours) == 10 and [each for each in ours if each in ("True", "0")] == [each for each in native if each in ("True", "0")]
    assert all(int(a) <= int(b) for a, b in zip(ours, native) if a != "True")


def test_a_kernel_that_fails_in_a_graph():
    """The device's error reaches the program at each call, frees raise nothing, and the process ends by itself."""
    assert program("""
        data, index = torch.ones(16, device="cuda"), torch.zeros(4, dtype=torch.long, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): out = data[index]
        index.fill_(1 << 40)
        graph.replay()
        try: torch.cuda.synchronize()
        except RuntimeError: print("failed")
        try: torch.empty(1 << 28, device="cuda")
        except RuntimeError: print("refused")
        del out, data, index, graph
        gc.collect()
        print("done")
    """) == ["failed", "refused", "done"]


def test_a_program_that_has_mempools_is_too_late():
    """Refused with what to do, and the pools go on in PyTorch's own allocator."""
    assert program("""
        torch.cuda.init()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool): inside = torch.full((1 << 20,), 3.0, device="cuda")
        try: lade.torch.install_device()
        except lade.UnsupportedError as error: print("before" in str(error), lade.torch.device_is_installed())
        with torch.cuda.use_mem_pool(pool): more = inside * 2
        print(bool((more == 6).all()), len(pool.snapshot()) > 0)
        del inside, more, pool
        gc.collect(); torch.cuda.empty_cache()
    """, head="") == ["True", "False", "True", "True"]


def test_objects_that_go_while_the_interpreter_ends():
    """Tensors, graphs and pools that are alive at the end: finalizers and functions of atexit free and allocate."""
    assert program("""
        import atexit, sys
        class Late:
            def __init__(self): self.tensor = torch.ones(1 << 20, device="cuda")
            def __del__(self): self.tensor = None
        def last():
            kept.clear()
            print(int(torch.ones(1000, device="cuda").sum()))
        kept = [Late() for _ in range(4)]
        sys.late = Late()
        atexit.register(last)
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
        with torch.cuda.graph(graph): inside = kept[0].tensor * 2
        with torch.cuda.use_mem_pool(pool): pooled = torch.ones(1 << 20, device="cuda")
        print("done")
    """) == ["done", "1000"]


def test_a_device_that_the_program_resets():
    """Memory of before is gone: calls say so, frees of it do no harm, and the process ends by itself."""
    assert program("""
        import ctypes
        runtime = ctypes.CDLL(None)
        kept = torch.ones(1 << 20, device="cuda")
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool): inside = torch.ones(1 << 20, device="cuda")
        torch.cuda.synchronize()
        print(runtime.cudaDeviceReset())
        for call in (lambda: torch.empty(1 << 28, device="cuda"), torch.cuda.empty_cache):
            try: call()
            except Exception as error: print("raised", file=__import__("sys").stderr)
        del kept, inside, pool
        gc.collect()
        print("done")
    """) == ["0", "done"]


def test_a_snapshot_of_a_million_blocks():
    """Beside a thread that allocates."""
    assert program("""
        state, core = {"stop": False}, torch._C
        alloc, free = core._cuda_cudaCachingAllocator_raw_alloc, core._cuda_cudaCachingAllocator_raw_delete
        torch.ones(1, device="cuda")
        blocks = [alloc(512, 0) for _ in range(1 << 20)]
        def work():
            while not state["stop"]: free(alloc(1 << 20, 0))
        thread = threading.Thread(target=work)
        thread.start()
        segments = torch.cuda.memory.memory_snapshot()
        state["stop"] = True
        thread.join()
        print(sum(b["state"] == "active_allocated" and b["size"] == 512 for s in segments for b in s["blocks"]) >= 1 << 20)
        for block in blocks: free(block)
        torch.cuda.empty_cache()
        print(lade.torch._native().lade_torch_device_refused_frees())
    """) == ["True", "0"]


def test_a_mempool_takes_segments_from_lade():
    assert program("""
        pool = torch.cuda.MemPool(lade.torch.mempool_allocator())
        outside = torch.ones(1 << 20, device="cuda")
        print(lade.torch.device_stats()["allocated_bytes.all.current"])
        with torch.cuda.use_mem_pool(pool):
            inside = torch.full((3 << 20,), 5.0, device="cuda")
        print(lade.torch.device_stats()["allocated_bytes.all.current"] >= 12 << 20)
        print(bool((inside * 2 == 10).all()))
        after = torch.ones(1 << 20, device="cuda")
        held = lade.torch.device_stats()["allocated_bytes.all.current"]
        del inside
        with torch.cuda.use_mem_pool(pool):
            again = torch.empty(3 << 20, device="cuda")
        print(lade.torch.device_stats()["allocated_bytes.all.current"] == held)
        del again, pool
        gc.collect(); torch.cuda.synchronize(); torch.cuda.empty_cache()
        print(lade.torch.device_stats()["allocated_bytes.all.current"])
        print(torch.cuda.memory_allocated() > 0)
    """, head="") == ["0", "True", "True", "True", "0", "True"]


def test_a_mempool_of_a_graph():
    assert program("""
        pool = torch.cuda.MemPool(lade.torch.mempool_allocator())
        x = torch.ones(1 << 20, device="cuda")
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=pool.id):
            y = x * 3
        for _ in range(2):
            x.add_(1)
            graph.replay()
        torch.cuda.synchronize()
        print(bool((y == 9).all()))
    """, head="") == ["True"]
