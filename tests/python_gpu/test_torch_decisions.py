# SPDX-License-Identifier: Apache-2.0
"""lade decides as PyTorch's own allocator does: programs that run with each of the two, whose histories are compared event by event.

Run as a program, `test_torch_decisions.py WHO SETTINGS [FOLDER]` is one of the two: it prints the events of all programs as JSON, and leaves
snapshots in the folder. Addresses differ, so an event has the number of its region, counted as they appear, and the place in it.
"""

import bisect
import gc
import itertools
import json
import os
import random
import subprocess
import sys

MIB = 1 << 20
SETTINGS = {
    "plain": "",
    "expandable": "expandable_segments:True",
    "split": "max_split_size_mb:32",
    "powers": "roundup_power2_divisions:4",
    "collect": "garbage_collection_threshold:0.5",
    "reuse": "graph_capture_record_stream_reuse:True",
    "expandable reuse": "expandable_segments:True,graph_capture_record_stream_reuse:True",
}
LAST = ["pool_within_a_capture"]
VARIABLE = "PYTORCH_ALLOC_CONF"


# ---- Programs: t is torch, s three streams ---------------------------------------------------------------------------


def empty(t, size):
    return t.empty(size, dtype=t.uint8, device="cuda")


def limit(t, mib):
    t.cuda.set_per_process_memory_fraction(mib * MIB / t.cuda.get_device_properties(0).total_memory)


def tried(t, size, kept):
    """Whether there was memory."""
    try:
        kept.append(empty(t, size))
    except t.OutOfMemoryError:
        return False
    return True


def random_run(t, s, steps, sizes, streams=1, record=0.0, flush=0.0, seed=1):
    draw, kept = random.Random(seed), []
    for _ in range(steps):
        with t.cuda.stream(s[draw.randrange(streams)]):
            if kept and draw.random() < 0.5:
                del kept[draw.randrange(len(kept))]
            else:
                tried(t, draw.randrange(1, draw.choice(sizes)), kept)
            if kept and draw.random() < record:
                kept[-1].record_stream(s[draw.randrange(streams)])
            if draw.random() < flush:
                t.cuda.empty_cache()


def program_small_and_large(t, s):
    random_run(t, s, 300, [4000, 2 * MIB, 12 * MIB, 50 * MIB])


def program_streams(t, s):
    random_run(t, s, 300, [4000, 2 * MIB, 12 * MIB], streams=3, seed=2)


def program_records(t, s):
    kept = []
    for i in range(40):
        with t.cuda.stream(s[i % 3]):
            kept.append(empty(t, 600_000 + i * 1000))
        kept[-1].record_stream(s[(i + 1) % 3])
        if i % 5 == 4:
            kept.clear()
            t.cuda.synchronize()
            kept.append(empty(t, 100))  # looks for what is free again


def program_flushes(t, s):
    random_run(t, s, 200, [4000, 2 * MIB, 30 * MIB], flush=0.1, seed=3)


def program_limit(t, s):
    limit(t, 64)
    kept = []
    for mib in (20, 10, 20, 30):
        tried(t, mib * MIB, kept)
    del kept[0]
    tried(t, 30 * MIB, kept)
    tried(t, 1 * MIB, kept)
    kept.clear()
    tried(t, 60 * MIB, kept)


def program_random_limit(t, s):
    limit(t, 200)
    random_run(t, s, 300, [4000, 2 * MIB, 30 * MIB, 80 * MIB], streams=2, seed=4)


def program_oversize(t, s):
    limit(t, 300)
    random_run(t, s, 200, [20 * MIB, 40 * MIB, 100 * MIB], seed=5)


def program_pool(t, s):
    pool, kept = t.cuda.MemPool(), []
    with t.cuda.use_mem_pool(pool):
        random_run(t, s, 100, [4000, 2 * MIB, 30 * MIB], seed=6)
        kept.append(empty(t, 3 * MIB))
    outside = empty(t, 5 * MIB)
    kept.clear()
    with t.cuda.use_mem_pool(pool):
        kept.append(empty(t, 2 * MIB))
    del pool, outside, kept
    empty(t, 5 * MIB)


def program_pool_streams(t, s):
    pool = t.cuda.MemPool()
    with t.cuda.use_mem_pool(pool):
        random_run(t, s, 100, [4000, 2 * MIB, 12 * MIB], streams=3, seed=7)


def program_nested_pools(t, s):
    a, b = t.cuda.MemPool(), t.cuda.MemPool()
    with t.cuda.use_mem_pool(a):
        first = empty(t, 3 * MIB)
        with t.cuda.use_mem_pool(b):
            second = empty(t, 3 * MIB)
        third = empty(t, 3 * MIB)
    del first, second, third
    with t.cuda.use_mem_pool(b):
        empty(t, 2 * MIB)
    with t.cuda.use_mem_pool(a):
        empty(t, 2 * MIB)


def program_pool_lends(t, s):
    pool = t.cuda.MemPool(use_on_oom=True)
    with t.cuda.use_mem_pool(pool):
        first = empty(t, 1_000_000)
    del first
    limit(t, 32)
    kept = []
    tried(t, 20 * MIB, kept)
    tried(t, 10 * MIB, kept)
    del kept[0]
    tried(t, 500_000, kept)
    tried(t, 25 * MIB, kept)
    tried(t, 100, kept)


def program_pool_without_splits(t, s):
    pool = t.cuda.MemPool(no_split=True)
    with t.cuda.use_mem_pool(pool):
        random_run(t, s, 80, [4000, 2 * MIB, 30 * MIB], seed=8)


def program_pool_limit(t, s):
    limit(t, 64)
    pool, kept = t.cuda.MemPool(), []
    tried(t, 30 * MIB, kept)
    kept.clear()
    with t.cuda.use_mem_pool(pool):
        tried(t, 20 * MIB, kept)
        tried(t, 30 * MIB, kept)
        tried(t, 10 * MIB, kept)
    tried(t, 30 * MIB, kept)


def program_flush_within_pool(t, s):
    pool = t.cuda.MemPool()
    other = empty(t, 30 * MIB)
    with t.cuda.use_mem_pool(pool):
        mine = empty(t, 30 * MIB)
        small = empty(t, 1000)
        del other, mine
        t.cuda.empty_cache()
        mine = empty(t, 20 * MIB)
    del mine
    t.cuda.empty_cache()
    del small
    t.cuda.empty_cache()
    del pool
    t.cuda.empty_cache()


def program_pool_ends_with_blocks(t, s):
    pool = t.cuda.MemPool()
    with t.cuda.use_mem_pool(pool):
        kept = [empty(t, 3 * MIB) for _ in range(10)]
    del pool
    empty(t, 3 * MIB)
    del kept[::2]
    empty(t, 3 * MIB)
    kept.clear()
    t.cuda.empty_cache()


def graph_of(t, body, **options):
    graph = t.cuda.CUDAGraph()
    with t.cuda.graph(graph, capture_error_mode="thread_local", **options):
        kept = body()
    return graph, kept


def program_graph(t, s):
    def body():
        a = empty(t, 3 * MIB).zero_()
        b = empty(t, 700).zero_()
        del a
        return b, empty(t, 2 * MIB).zero_()

    graph, kept = graph_of(t, body)
    graph.replay()
    t.cuda.synchronize()
    graph.reset()
    t.cuda.empty_cache()
    del kept
    t.cuda.empty_cache()


def program_graphs_of_one_pool(t, s):
    pool, graphs = t.cuda.graph_pool_handle(), []

    def body():
        return [empty(t, size).zero_() for size in (4 * MIB, 900, 25 * MIB)][:1]

    for i in range(4):
        graph, kept = graph_of(t, body, pool=pool)
        graphs.append((graph, kept if i == 1 else None))
    graphs[0][0].reset()
    t.cuda.empty_cache()
    graphs.append(graph_of(t, body, pool=pool))
    for graph, _ in graphs[1:]:
        graph.reset()
    t.cuda.empty_cache()
    del graphs
    t.cuda.empty_cache()


def program_graphs_with_side_streams(t, s):
    pool, graphs = t.cuda.graph_pool_handle(), []

    def body():
        side = s[1]
        a = empty(t, 8 * MIB).zero_()
        side.wait_stream(t.cuda.current_stream())
        with t.cuda.stream(side):
            a.record_stream(side)
            b = empty(t, 4 * MIB).zero_()
        t.cuda.current_stream().wait_stream(side)
        del a
        c = empty(t, 8 * MIB).zero_()
        b.record_stream(t.cuda.current_stream())
        del b, c
        return empty(t, 1000).zero_()

    for _ in range(6):
        graphs.append(graph_of(t, body, pool=pool))


def program_flush_in_a_capture(t, s):
    cached = empty(t, 30 * MIB)
    del cached

    def body():
        a = empty(t, 30 * MIB).zero_()
        del a
        t.cuda.empty_cache()
        return empty(t, 25 * MIB).zero_()

    graph, kept = graph_of(t, body)
    t.cuda.empty_cache()
    del kept
    graph.reset()
    t.cuda.empty_cache()


def program_graph_in_a_mempool(t, s):
    pool = t.cuda.MemPool()
    with t.cuda.use_mem_pool(pool):
        before = empty(t, 6 * MIB)
    del before
    graph, kept = graph_of(t, lambda: empty(t, 5 * MIB).zero_(), pool=pool.id)
    with t.cuda.use_mem_pool(pool):
        after = empty(t, 6 * MIB)
    del after, kept
    graph.reset()
    del graph, pool
    t.cuda.empty_cache()


def program_capture_limit(t, s):
    limit(t, 64)
    cached = empty(t, 40 * MIB)
    del cached
    got = []

    def body():
        kept = []
        got.append(tried(t, 20 * MIB, kept))
        got.append(tried(t, 30 * MIB, kept))
        got.append(tried(t, 1000, kept))
        for each in kept:
            each.zero_()
        return kept

    graph, kept = graph_of(t, body)
    tried(t, 30 * MIB, kept)


def program_graphs_that_overlap(t, s):
    """Outputs of one are alive while the next is captured, as in graph trees."""
    pool, outputs, graphs = t.cuda.graph_pool_handle(), [], []
    for i in range(5):
        graph, output = graph_of(t, lambda: [empty(t, (i + 1) * MIB).zero_() for i in range(4)], pool=pool)
        graphs.append(graph)
        outputs.append(output[: 1 + i % 3])
        if i == 3:
            outputs[:2] = []
    outputs.clear()
    graphs.clear()
    t.cuda.empty_cache()


def program_pool_within_a_capture(t, s):
    """The last one: PyTorch's own allocator, with graph_capture_record_stream_reuse, fails in it and keeps the capture's memory."""
    pool = t.cuda.MemPool()

    def body():
        a = empty(t, 3 * MIB).zero_()
        with t.cuda.use_mem_pool(pool):
            b = empty(t, 3 * MIB).zero_()
        del a
        return b, empty(t, 3 * MIB).zero_()

    graph, kept = graph_of(t, body)
    del kept
    graph.reset()
    t.cuda.empty_cache()


PROGRAMS = {name.removeprefix("program_"): each for name, each in list(globals().items()) if name.startswith("program_")}


# ---- One of the two --------------------------------------------------------------------------------------------------


class Places:
    """Of addresses: the number of the region, and the place in it. `joins`: memory that touches a region makes it longer, as where segments
    are mapped piece by piece; else each segment is a region."""

    def __init__(self, joins):
        self.joins, self.count, self.begins, self.regions = joins, 0, [], {}

    def add(self, address, size):
        at = bisect.bisect_right(self.begins, address) - 1
        if self.joins and at >= 0 and address <= self.regions[self.begins[at]][1]:
            number, end = self.regions[self.begins[at]]
            self.regions[self.begins[at]] = (number, max(end, address + size))
            return
        if address not in self.regions:
            bisect.insort(self.begins, address)
        self.regions[address] = (self.count, address + size)
        self.count += 1

    def of(self, address):
        at = bisect.bisect_right(self.begins, address) - 1
        return (-1, 0) if at < 0 else (self.regions[self.begins[at]][0], address - self.begins[at])


def events_of(trace, joins):
    places, streams, events = Places(joins), {}, []
    for each in trace:
        action, size = each["action"], each["size"]
        if action in ("segment_alloc", "segment_map"):
            places.add(each["addr"], size)
        place = () if action == "oom" else places.of(each["addr"])
        events.append([action, *place, size, streams.setdefault(each["stream"], len(streams))])
    return completions_in_order(events)


def completions_in_order(events):
    """Frees that are completed by one look at the streams have no order of their own: PyTorch goes over a table by hashes."""
    runs = itertools.groupby(events, key=lambda event: event[0] == "free_completed")
    return [event for completed, run in runs for event in (sorted(run) if completed else run)]


def one(who, settings, folder):
    if who == "native":
        os.environ[VARIABLE] = settings
    import torch

    if who == "lade":
        import lade.torch

        lade.torch.install_device(",".join(["device_policy:reference", *filter(None, [settings])]))
    torch.cuda.init()
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    graph_of(torch, lambda: empty(torch, 10).zero_())  # what the first capture needs
    told = {}
    for name, program in PROGRAMS.items():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=100_000)
        try:
            program(torch, streams)
            failed = None
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
        gc.collect()
        snapshot = torch.cuda.memory._snapshot()
        told[name] = {"failed": failed, "events": events_of(snapshot["device_traces"][0], "expandable" in settings)}
        if folder:
            torch.cuda.memory._dump_snapshot(os.path.join(folder, f"{name}.pickle"))
    print(json.dumps(told))


# ---- Both ------------------------------------------------------------------------------------------------------------


def told_by(who, settings, folder=""):
    command = [sys.executable, os.path.abspath(__file__), who, settings, folder]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "LADE_"))}
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def difference(native, lade):
    if native["failed"] is not None:
        return None
    if lade["failed"] is not None:
        return lade["failed"]
    for number, (a, b) in enumerate(zip(native["events"], lade["events"])):
        if a != b:
            return f"event {number} of {len(native['events'])}: {a}, lade {b}"
    if len(native["events"]) != len(lade["events"]):
        return f"{len(native['events'])} events, lade {len(lade['events'])}"
    return None


if __name__ == "__main__":
    one(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "")
else:
    import pytest

    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU", allow_module_level=True)

    @pytest.mark.parametrize("name", SETTINGS)
    def test_each_event_is_pytorchs(name):
        native, lade = (told_by(who, SETTINGS[name]) for who in ("native", "lade"))
        found = {each: difference(native[each], lade[each]) for each in PROGRAMS}
        assert {each: what for each, what in found.items() if what is not None} == {}
        assert [each for each in PROGRAMS if native[each]["failed"] is not None] == (LAST if "reuse" in name else [])
