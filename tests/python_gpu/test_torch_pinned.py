# SPDX-License-Identifier: Apache-2.0
"""What PyTorch documents of pinned memory, with lade serving it, on a GPU."""

import ast
import gc
import os
import subprocess
import sys
import textwrap
import threading

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

import lade
import lade.torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import torch_calls  # noqa: E402

MINOR = int(torch.__version__.split(".")[1])
SLEEP_CYCLES = 400_000_000  # some tenths of a second
MIB = 1 << 20


@pytest.fixture
def pool():
    pool = lade.torch.install_pinned()
    yield pool
    torch.cuda.synchronize()
    gc.collect()
    lade.torch.uninstall_pinned()
    assert lade.torch._native().lade_torch_pinned_refused_frees() == 0


def program(text):
    result = subprocess.run([sys.executable, "-c", "import gc, os, torch, lade, lade.torch\n" + textwrap.dedent(text)],
                            capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def in_use(pool):
    return pool.stats()["in_use_blocks.current"]


# ---- Tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [
    lambda: torch.arange(1000).pin_memory(),
    lambda: torch.empty(1000, pin_memory=True),
    lambda: torch.zeros(10, 100, pin_memory=True),
    lambda: torch.rand(7, 3).to(torch.bfloat16).pin_memory(),
    lambda: torch.empty_like(torch.empty(100), pin_memory=True),
    lambda: torch.ones(30, 30).t().pin_memory(),
])
def test_pinned_tensors_are_lades(pool, make):
    before = in_use(pool)
    tensor = make()
    assert tensor.is_pinned() and in_use(pool) == before + 1
    del tensor
    gc.collect()
    assert in_use(pool) == before


def test_pinning_keeps_the_values(pool):
    source = torch.randn(1000, 13)
    assert torch.equal(source.pin_memory(), source)


def test_a_pinned_tensor_is_pinned_already(pool):
    tensor = torch.empty(100, pin_memory=True)
    assert tensor.pin_memory().data_ptr() == tensor.data_ptr()
    assert tensor.untyped_storage().is_pinned()


def test_views_are_pinned(pool):
    tensor = torch.arange(10_000, dtype=torch.float32).pin_memory()
    view = tensor[1000:2000]
    assert view.is_pinned()
    assert torch.equal(view.cuda(non_blocking=True).cpu(), torch.arange(1000, 2000, dtype=torch.float32))


def test_an_empty_tensor(pool):
    tensor = torch.empty(0, pin_memory=True)
    assert tensor.numel() == 0
    tensor.cuda(non_blocking=True)


def test_storages_can_grow(pool):
    tensor = torch.empty(10, dtype=torch.int64, pin_memory=True)  # a storage of pin_memory() cannot grow, also without lade
    tensor.copy_(torch.arange(10))
    tensor.resize_(100_000)
    assert tensor.is_pinned() and torch.equal(tensor[:10], torch.arange(10))


def test_numpy_sees_the_memory(pool):
    numpy = pytest.importorskip("numpy")
    tensor = torch.zeros(100, pin_memory=True)
    array = tensor.numpy()
    array[:] = 5
    del tensor
    gc.collect()
    assert numpy.all(array == 5)


# ---- Copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4096, 70_000, 5 * MIB + 3])
def test_bytes_there_and_back(pool, size):
    source = torch.randint(0, 256, (size,), dtype=torch.uint8)
    there = source.pin_memory().to("cuda", non_blocking=True)
    back = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    back.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, source)


def test_a_free_block_is_reused(pool):
    tensor = torch.empty(1000, pin_memory=True)
    pointer = tensor.data_ptr()
    del tensor
    assert torch.empty(1000, pin_memory=True).data_ptr() == pointer


@pytest.mark.parametrize("direction", ["to the device", "from the device"])
@pytest.mark.parametrize("part", [slice(None), slice(1000, 2000)])
def test_a_block_that_is_copied_is_not_reused(pool, direction, part):
    stream = torch.cuda.Stream()
    tensor = torch.ones(MIB, dtype=torch.uint8, pin_memory=True)
    pointer = tensor.data_ptr()
    other = torch.full((MIB,), 9, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        if direction == "to the device":
            other[part].copy_(tensor[part], non_blocking=True)
        else:
            tensor[part].copy_(other[part], non_blocking=True)
    del tensor
    fresh = [torch.zeros(MIB, dtype=torch.uint8, pin_memory=True) for _ in range(4)]
    assert not stream.query(), "the copy was over before the test"
    assert pointer not in [each.data_ptr() for each in fresh]
    stream.synchronize()
    if direction == "to the device":
        assert bool((other[part] == 1).all())
    assert all(int(each.max()) == 0 for each in fresh)


def test_each_stream_is_waited_for(pool):
    streams = [torch.cuda.Stream() for _ in range(3)]
    tensor = torch.ones(MIB, dtype=torch.uint8, pin_memory=True)
    pointer = tensor.data_ptr()
    targets = [torch.empty(MIB, dtype=torch.uint8, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for i, (stream, target) in enumerate(zip(streams, targets)):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP_CYCLES // 4 * (i + 1))
            target.copy_(tensor, non_blocking=True)
    del tensor
    streams[0].synchronize()
    again = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    assert not streams[2].query() and again.data_ptr() != pointer
    torch.cuda.synchronize()
    assert all(bool((target == 1).all()) for target in targets)


def test_the_default_stream_is_waited_for(pool):
    tensor = torch.ones(MIB, dtype=torch.uint8, pin_memory=True)
    pointer = tensor.data_ptr()
    target = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    target.copy_(tensor, non_blocking=True)
    del tensor
    assert torch.empty(MIB, dtype=torch.uint8, pin_memory=True).data_ptr() != pointer
    torch.cuda.synchronize()
    assert bool((target == 1).all())


def test_a_copy_that_does_not_wait_lands_in_pinned_memory(pool):
    before = in_use(pool)
    back = torch.arange(MIB, device="cuda").to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    assert back.is_pinned() and in_use(pool) == before + 1 and torch.equal(back, torch.arange(MIB))
    waited = torch.arange(10, device="cuda").to("cpu")
    assert not waited.is_pinned() and in_use(pool) == before + 1


def test_copies_that_convert(pool):
    """PyTorch converts in device memory, and the pinned side is one of two copies."""
    source, host, target = torch.full((1000,), 3.0, device="cuda"), torch.zeros(1000, pin_memory=True), None
    torch.cuda._sleep(SLEEP_CYCLES)
    host.copy_(source, non_blocking=True)
    target = torch.empty(1000, dtype=torch.int64, device="cuda")
    target.copy_(host, non_blocking=True)
    del host
    others = [torch.zeros(1000, pin_memory=True) for _ in range(4)]
    torch.cuda.synchronize()
    assert bool((target == 3).all()) and all(bool((each == 0).all()) for each in others)


def test_record_stream_of_a_copys_result(pool):
    side = torch.cuda.Stream()
    host = torch.arange(MIB, dtype=torch.int32).pin_memory()
    with torch.cuda.stream(side):
        device = host.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    device.record_stream(torch.cuda.current_stream())
    total = device.sum()
    del device, host
    assert int(total) == sum(range(MIB)) & ((1 << 63) - 1)


def test_pageable_copies_go_on(pool):
    source = torch.arange(100_000)
    assert torch.equal(source.to("cuda", non_blocking=True).cpu(), source)


def test_a_last_reference_dropped_by_another_thread(pool):
    tensor = torch.ones(MIB, dtype=torch.uint8, pin_memory=True)
    pointer, target = tensor.data_ptr(), torch.empty(MIB, dtype=torch.uint8, device="cuda")
    stream, holder = torch.cuda.Stream(), [tensor]
    del tensor
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        target.copy_(holder[0], non_blocking=True)
    thread = threading.Thread(target=holder.clear)
    thread.start()
    thread.join()
    assert torch.empty(MIB, dtype=torch.uint8, pin_memory=True).data_ptr() != pointer
    torch.cuda.synchronize()
    assert bool((target == 1).all())


def test_a_copy_is_the_first_that_a_thread_asks_of_cuda(pool):
    host = torch.full((MIB,), 4, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    pointer, torn = host.data_ptr(), []
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)

    def work():
        try:
            target.copy_(host, non_blocking=True)  # noqa: F821 on the default stream, which the sleep holds up
        except RuntimeError as error:
            torn.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    del host, work
    assert not torn and torch.empty(MIB, dtype=torch.uint8, pin_memory=True).data_ptr() != pointer
    torch.cuda.synchronize()
    assert bool((target == 4).all())


@pytest.mark.skipif(torch_calls.path(torch.__version__) is None, reason="LADE_TORCH_CALLS names no module")
def test_the_default_stream_of_a_thread_without_a_context(pool):
    """record_event itself is the first that the thread asks of CUDA."""
    calls = torch_calls.Calls(torch.__version__)
    block, known = calls.allocate(1000), []
    thread = threading.Thread(target=lambda: known.append(calls.record(calls.pointer(block), None, 0, 0)))
    thread.start()
    thread.join()
    calls.release(block)
    assert known == [True]


def test_threads_copy_beside_each_other(pool):
    wrong = []

    def work(seed):
        stream = torch.cuda.Stream()
        generator = torch.Generator().manual_seed(seed)
        with torch.cuda.stream(stream):
            for _ in range(150):
                size = int(torch.randint(1, 300_000, (1,), generator=generator))
                host = torch.empty(size, dtype=torch.uint8, pin_memory=True).fill_(seed)
                device = host.to("cuda", non_blocking=True)
                del host
                back = torch.empty(size, dtype=torch.uint8, pin_memory=True)
                back.copy_(device, non_blocking=True)
                stream.synchronize()
                if int(back.min()) != seed or int(back.max()) != seed:
                    wrong.append((seed, size))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- Data loading ----------------------------------------------------------------------------------------------------


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return {"value": torch.full((index % 7 + 1, 100), index), "name": str(index)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_pins_with_lade(pool, workers):
    hits = pool.stats()["hits"] + pool.stats()["misses"]
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=None, num_workers=workers, pin_memory=True)
    total = 0
    for item in loader:
        assert item["value"].is_pinned()
        total += int(item["value"].to("cuda", non_blocking=True)[0, 0])
    assert total == sum(range(256))
    assert pool.stats()["hits"] + pool.stats()["misses"] >= hits + 256


class Pair:
    """A batch that pins itself, as DataLoader lets it."""

    def __init__(self, items):
        self.left = torch.stack([item[0] for item in items])
        self.right = torch.stack([item[1] for item in items])

    def pin_memory(self):
        self.left, self.right = self.left.pin_memory(), self.right.pin_memory()
        return self


def pairs_of(items):
    return Pair(items)


def nested_of(items):
    sequence = torch.nn.utils.rnn.pack_sequence([item[0] for item in items], enforce_sorted=False)
    return {"tuple": (items[0][0], [items[0][1], "text"]), "sequence": sequence, "number": 7}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_pins_whatever_holds_tensors(pool, workers):
    data = torch.utils.data.TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))
    for batch in torch.utils.data.DataLoader(data, batch_size=2, collate_fn=pairs_of, num_workers=workers, pin_memory=True):
        assert batch.left.is_pinned() and batch.right.is_pinned()
    for batch in torch.utils.data.DataLoader(data, batch_size=2, collate_fn=nested_of, num_workers=workers, pin_memory=True):
        assert batch["tuple"][0].is_pinned() and batch["tuple"][1][0].is_pinned() and batch["sequence"].data.is_pinned()
        assert batch["tuple"][1][1] == "text" and batch["number"] == 7


# ---- Figures and the cache -------------------------------------------------------------------------------------------


def test_host_memory_stats_tell_lades_figures(pool):
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    theirs, mine = torch.cuda.host_memory_stats(), pool.stats()
    old = {"allocation": "active_requests", "segment": "allocations", "allocated_bytes": "active_bytes",
           "reserved_bytes": "allocated_bytes"} if MINOR < 10 else {}
    compared = 0
    for key, value in theirs.items():
        name, _, cell = key.partition(".")
        mapped = f"{old.get(name, name)}.{cell}" if cell else name
        if mapped in mine:
            assert mine[mapped] == value, key
            compared += 1
    assert compared >= 24
    del tensor


def test_reference_counts_what_pytorchs_cache_counts():
    """The figures of both in programs of their own: PyTorch's cache, and lade that decides as it does."""
    text = """
        torch.cuda.init()  # PyTorch has no figures before
        if {lade}:
            lade.torch.install_pinned(reference=True)
        def figures():
            stats = torch.cuda.host_memory_stats()
            return {{key: value for key, value in stats.items() if ("time" not in key or key.endswith("count")) and "bucket" not in key}}
        seen, kept = [figures()], []
        for count in (10_000, 20_000, 100, 8_192):
            kept.append(torch.ones(count, pin_memory=True))
            seen.append(figures())
        del kept[1]
        seen.append(figures())
        kept.append(torch.ones(17_000, pin_memory=True))
        seen.append(figures())
        kept.clear()
        torch._C._host_emptyCache()
        seen.append(figures())
        print(seen)
    """
    theirs, ours = (ast.literal_eval(program(text.format(lade=which))) for which in (False, True))
    # PyTorch lowers its figures of active blocks only where a block was used on a stream.
    of_driver = [key for key in theirs[0] if not key.startswith("active")]
    assert [(at, key, a[key], b[key]) for at, (a, b) in enumerate(zip(theirs, ours)) for key in of_driver if a[key] != b[key]] == []
    sizes = [1 << 16, 1 << 17, 1 << 9, 1 << 15]
    first = [sum(sizes[:count]) for count in range(5)]
    assert [each["active_bytes.current"] for each in ours] == [*first, first[4] - sizes[1], first[4], 0]
    assert [each["active_requests.current"] for each in ours] == [0, 1, 2, 3, 4, 3, 4, 0]


def test_pytorchs_settings_of_pinned_memory_are_taken(pool):
    """They tell PyTorch's own cache how to ask the driver, and lade's pools have options of their own."""
    for setting in ("pinned_use_cuda_host_register:True", "pinned_use_background_threads:True", "pinned_use_cuda_host_register:False"):
        torch.cuda.memory._set_allocator_settings(setting)
        assert torch.ones(1 << 20, pin_memory=True).is_pinned()


def test_statistics_can_be_reset(pool):
    torch.empty(MIB, pin_memory=True)
    torch.cuda.reset_accumulated_host_memory_stats()
    torch.cuda.reset_peak_host_memory_stats()
    stats = torch.cuda.host_memory_stats()
    assert stats["num_host_alloc"] == 0
    assert stats["allocated_bytes.peak"] == stats["allocated_bytes.current"]


def test_the_cache_can_be_emptied(pool):
    tensor = torch.empty(100 * MIB, dtype=torch.uint8, pin_memory=True)
    del tensor
    held = pool.stats()["reserved_bytes.current"]
    torch._C._host_emptyCache()
    assert pool.stats()["reserved_bytes.current"] <= held - 100 * MIB


def test_the_cap_is_an_out_of_memory_error():
    with lade.torch.pinned(max_bytes=64 * MIB) as pool:
        with pytest.raises(torch.OutOfMemoryError, match="pinned pool"):
            torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
        assert torch.empty(MIB, pin_memory=True).is_pinned()
        assert pool.stats()["reserved_bytes.current"] <= 64 * MIB


# ---- Installing ------------------------------------------------------------------------------------------------------


def test_pytorchs_own_blocks_go_on():
    lade.torch.uninstall_pinned()
    before = torch.ones(MIB, dtype=torch.uint8, pin_memory=True)
    pointer = before.data_ptr()
    pool = lade.torch.install_pinned()
    try:
        target = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP_CYCLES)
        target.copy_(before, non_blocking=True)  # recorded by PyTorch's own allocator
        del before
        lade.torch.uninstall_pinned()
        assert torch.empty(MIB, dtype=torch.uint8, pin_memory=True).data_ptr() != pointer
        torch.cuda.synchronize()
        assert bool((target == 1).all())
        assert in_use(pool) == 0
    finally:
        lade.torch.uninstall_pinned()


def test_lades_blocks_go_on_after_uninstall():
    pool = lade.torch.install_pinned()
    tensor = torch.ones(MIB, dtype=torch.uint8, pin_memory=True)
    pointer = tensor.data_ptr()
    lade.torch.uninstall_pinned()
    other = torch.empty(MIB, pin_memory=True)
    assert in_use(pool) == 1 and other.is_pinned()
    target = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    target.copy_(tensor, non_blocking=True)
    del tensor
    with lade.torch.pinned():
        assert torch.empty(MIB, dtype=torch.uint8, pin_memory=True).data_ptr() != pointer
    torch.cuda.synchronize()
    assert bool((target == 1).all())


def test_the_process_ends_with_copies_under_way():
    assert program("""
        lade.torch.install_pinned()
        host = torch.ones(64 << 20, dtype=torch.uint8, pin_memory=True)
        torch.cuda._sleep(200_000_000)
        device = host.to("cuda", non_blocking=True)
        del host
        kept = torch.empty(100, pin_memory=True)
        print("done")
    """) == "done"


def test_a_forked_child_is_told():
    assert program("""
        lade.torch.install_pinned()
        kept = torch.empty(100, pin_memory=True)
        child = os.fork()
        if child == 0:
            try:
                torch.empty(100, pin_memory=True)
            except RuntimeError as error:
                del kept
                gc.collect()
                os._exit(0)
            os._exit(1)
        print(os.waitpid(child, 0)[1])
    """) == "0"


# ---- Graphs ----------------------------------------------------------------------------------------------------------


def captured(work):
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        work()
    return graph


def test_a_captured_copy_reads_its_memory_at_each_replay(pool):
    host = torch.zeros(MIB, dtype=torch.int32, pin_memory=True)
    device = torch.empty(MIB, dtype=torch.int32, device="cuda")
    graph = captured(lambda: device.copy_(host, non_blocking=True))
    for value in (3, 4):
        host.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((device == value).all())


def test_a_dropped_tensor_of_a_graph_is_not_reused(pool):
    host = torch.full((MIB,), 5, dtype=torch.int32, pin_memory=True)
    pointer = host.data_ptr()
    device = torch.empty(MIB, dtype=torch.int32, device="cuda")
    graph = captured(lambda: device.copy_(host, non_blocking=True))  # noqa: F821
    del host
    gc.collect()
    others = [torch.zeros(MIB, dtype=torch.int32, pin_memory=True) for _ in range(8)]
    assert pointer not in [each.data_ptr() for each in others]
    graph.replay()
    torch.cuda.synchronize()
    assert bool((device == 5).all())


@pytest.mark.skipif(MINOR < 11, reason="pools of host memory came with PyTorch 2.11")
@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.parametrize("graphs", [1, 2])
def test_a_pool_of_graphs_hands_out_again_what_nobody_uses(pool, graphs, is_used, is_dropped):
    """Two pinned tensors, in one capture or in two that share their pool: one address where the first is dropped and not copied."""
    shared, pointers, kept = torch.cuda.graph_pool_handle(), [], []
    target = torch.empty(8, device="cuda")

    def take():
        host = torch.zeros(8).pin_memory()
        pointers.append(host.data_ptr())
        if is_used:
            target.copy_(host, non_blocking=True)
        if not is_dropped:
            kept.append(host)

    torch.cuda.synchronize()
    recorded = [torch.cuda.CUDAGraph() for _ in range(graphs)]
    for graph in recorded:
        with torch.cuda.graph(graph, pool=shared, capture_error_mode="thread_local"):
            take()
            if graphs == 1:
                take()
    assert (pointers[0] == pointers[1]) == (is_dropped and not is_used)
    kept.clear()
    del recorded, graph
    gc.collect()


def test_copies_of_pageable_memory_are_refused_in_captures(pool):
    target, pageable = torch.empty(8, device="cuda"), torch.empty(8)
    for destination, source in ((target, pageable), (pageable, target)):
        with pytest.raises(RuntimeError, match="during CUDA graph capture"):
            captured(lambda: destination.copy_(source, non_blocking=True))
    torch.cuda.synchronize()
    assert torch.ones(8).pin_memory().cuda().sum() == 8, "and the program goes on"


def test_memory_that_is_allocated_in_a_capture(pool):
    device = torch.full((MIB,), 8, dtype=torch.int32, device="cuda")
    kept = []

    def work():
        host = torch.empty(MIB, dtype=torch.int32, pin_memory=True)
        host.copy_(device, non_blocking=True)
        kept.append(host)

    graph = captured(work)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((kept[0] == 8).all())
    graph.replay()
    kept.clear()
    torch.cuda.synchronize()
    del graph
    gc.collect()
    torch._C._host_emptyCache()
    assert pool.stats()["in_use_blocks.current"] == 0


def test_copies_on_other_streams_go_on_beside_a_capture(pool):
    side = torch.cuda.Stream()
    host = torch.ones(MIB, dtype=torch.int32, pin_memory=True)
    device = torch.empty(MIB, dtype=torch.int32, device="cuda")
    with torch.cuda.stream(side):
        torch.empty(MIB, dtype=torch.int32, device="cuda").copy_(host, non_blocking=True)

    def work():
        device.copy_(host, non_blocking=True)
        device.add_(1)

    graph = captured(work)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((device == 2).all())


@pytest.mark.skipif(MINOR < 14, reason="snapshots have host memory from 2.14 on")
def test_snapshots_have_host_memory(pool):
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    try:
        tensor = torch.empty(5 * MIB, dtype=torch.uint8, pin_memory=True)
        snapshot = torch.cuda.memory._snapshot()
        assert str(tensor.data_ptr()) in repr(snapshot) or any(
            tensor.data_ptr() == each.get("address") for key in snapshot for each in snapshot[key]
            if isinstance(each, dict))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_streams_of_another_device(pool):
    host = torch.ones(MIB, dtype=torch.uint8, pin_memory=True)
    pointer = host.data_ptr()
    target = torch.empty(MIB, dtype=torch.uint8, device="cuda:1")
    torch.cuda.synchronize(1)
    with torch.cuda.device(1):
        torch.cuda._sleep(SLEEP_CYCLES)
    target.copy_(host, non_blocking=True)  # on the default stream of device 1, while device 0 is current
    del host
    assert torch.empty(MIB, dtype=torch.uint8, pin_memory=True).data_ptr() != pointer
    torch.cuda.synchronize(1)
    assert bool((target == 1).all())
