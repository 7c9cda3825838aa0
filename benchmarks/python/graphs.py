#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Graphs of PyTorch functions: lade.graphs beside PyTorch's graph trees and torch.cuda.CUDAGraph.

Question: what does a replay cost the host, what do many branches take in memory, what does a new branch after replays cost? Each kind
is a process of its own, as an allocator is chosen once; the kinds in turn, the median of the processes, with least and most, and the
ratio to each of PyTorch's ways.

  lade     lade.graphs under lade.torch.install_device(), with a step for each call
  trees    torch._inductor.cudagraph_trees.cudagraphify_impl, with a step for each call: what torch.compile(mode="reduce-overhead")
           makes of a function, without its guards
  graph    torch.cuda.CUDAGraph by hand, all in one pool: copies of the inputs, one replay; outputs are the same tensors each time
  eager    no graph
  software lade.graphs alone on a software device, whose work takes time on the host, too: with --small, where there is no GPU

  replay N       a function of N inputs and N outputs of 16 KiB, 16 kernels: host time of a call, in batches of 50 calls that the
                 device keeps up with, each batch behind a wait
  branches       64 functions of one input in one pool, each with 8 temporary arrays of 8 MiB and a result of 8 MiB, called in turn, each in a step
                 of its own: reserved bytes over those before, and host time of a call
  restore        a prefix with 500 outputs alive is replayed, then a function that was not called before: host time of that first call, over
                 20 such functions

Results of each are compared with eager ones; a difference ends the process.

usage: benchmarks/python/graphs.py [--small] [--rounds N] [--seconds N] [--out FILE]
  --rounds N    processes of each kind (3)
  --seconds N   no further process begins after these (600)
  --out         one JSON object a line, as they come: of each process, and at the end of each pair of kinds with the ratio
exit status: 0; 77 without PyTorch or a GPU, but for --small; 1 where a kind failed
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()
KINDS = ("lade", "trees", "graph", "eager")
BRANCHES, CALLS, BATCHES = 64, 50, 40


# ---- Each way to run a function as a graph ---------------------------------------------------------------------------


class Lade:
    def __init__(self, torch):
        import lade.graphs

        self.tree = lade.graphs.Tree()

    def begin(self):
        self.tree.step()

    def make(self, function, inputs):
        return self.tree.function(function, outputs=512)

    def state(self):
        stats = self.tree.stats()
        return {key: stats[key] for key in ("recordings", "replays", "eager_runs", "restores", "pool_peak_bytes", "alone_bytes")}


class Trees:
    def __init__(self, torch):
        from torch._inductor import cudagraph_trees

        self.trees = cudagraph_trees

    def begin(self):
        self.trees.mark_step_begin()

    def make(self, function, inputs):
        count = []

        def model(given):
            arguments = list(given)
            given.clear()
            results = list(function(*arguments))
            count[:] = [len(results)]
            return results

        made = self.trees.cudagraphify_impl(model, list(inputs), [], device_index=0, is_backward=False, is_inference=True,
                                            stack_traces=[""] * len(function(*inputs)))
        return lambda *arguments: made(list(arguments))

    def state(self):
        return {}


class Graph:
    def __init__(self, torch):
        self.torch, self.pool = torch, torch.cuda.graph_pool_handle()

    def begin(self):
        pass

    def make(self, function, inputs):
        torch = self.torch
        static = [each.clone() for each in inputs]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function(*static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            results = function(*static)

        def call(*arguments):
            for to, source in zip(static, arguments):
                to.copy_(source)
            graph.replay()
            return results

        return call

    def state(self):
        return {}


class Eager:
    def __init__(self, torch):
        pass

    def begin(self):
        pass

    def make(self, function, inputs):
        return function

    def state(self):
        return {}


WAYS = {"lade": Lade, "trees": Trees, "graph": Graph, "eager": Eager}


# ---- What is measured ------------------------------------------------------------------------------------------------


def same(results, expected, what):
    if any(not bool((a == b).all()) for a, b in zip(results, expected)) or len(results) != len(expected):
        sys.exit(f"{what}: results differ from those without a graph")


def replay(torch, way, small):
    for count in (1, 8, 64):
        def function(*inputs):
            results = [each + 1 for each in inputs]
            for _ in range(max(0, 16 // count - 1)):
                results = [each * 0.5 for each in results]
            return results

        inputs = [torch.full((4096,), float(i), device="cuda") for i in range(count)]
        expected = function(*inputs)
        call = way.make(function, inputs)
        for _ in range(4):
            way.begin()
            results = call(*inputs)
        same(results, expected, f"replay {count}")
        times = []
        for _ in range(2 if small else BATCHES):
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                way.begin()
                results = None
                results = call(*inputs)
            times.append((time.perf_counter_ns() - begin) / CALLS)
        results = None
        yield f"replay {count}", "ns", statistics.median(times)


def branches(torch, way, small):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    x = torch.arange(2 << 20, device="cuda", dtype=torch.float32)

    def branch(number):
        def function(given):
            results = [given * (number + i) for i in range(8)]
            return [sum(results[1:], results[0])]

        return function

    functions = [branch(i) for i in range(BRANCHES)]
    calls = [way.make(each, [x]) for each in functions]
    for turn in range(3):
        for function, call in zip(functions, calls):
            way.begin()
            results = call(x)
            if turn == 2:
                same(results, function(x), "branches")
            results = None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    yield "branches reserved", "MiB", (torch.cuda.memory_reserved() - before) / (1 << 20)
    times = []
    for _ in range(1 if small else 20):
        begin = time.perf_counter_ns()
        for call in calls:
            way.begin()
            call(x)
        times.append((time.perf_counter_ns() - begin) / BRANCHES)
        torch.cuda.synchronize()
    yield "branches call", "ns", statistics.median(times)


def restore(torch, way, small):
    x = torch.ones(4096, device="cuda")

    def prefix(given):
        return [given + i for i in range(500)]

    first = way.make(prefix, [x])
    for _ in range(4):
        way.begin()
        held = first(x)
        held = None
    times = []
    for i in range(2 if small else 20):
        function = (lambda number: lambda given: [given * number])(i)
        call = way.make(function, [x])
        way.begin()
        held = first(x)
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        results = call(x)
        times.append(time.perf_counter_ns() - begin)
        same(results, function(x), "restore")
        same(held, prefix(x), "restore: what was alive before")
        held = results = None
    yield "restore", "ns", statistics.median(times)


def software(small):
    import lade
    import lade.graphs

    device = lade.software_device(clock="cpu")
    allocator, stream = lade.DeviceAllocator(device), device.stream()
    tree = lade.graphs.Tree(allocator, stream=stream)
    x = allocator.empty((64,), "float32", stream)

    def function(*inputs):
        results = [allocator.empty(each.shape, each.dtype, lade.graphs.stream()) for each in inputs]
        for to, source in zip(results, inputs):
            lade.copy_blocks(device, to, source, range(64), range(64), lade.graphs.stream())
        return results

    for count in (1, 8):
        call = tree.function(function)
        for _ in range(3):
            call(*[x] * count)
        begin = time.perf_counter_ns()
        for _ in range(100 if small else 2000):
            call(*[x] * count)
        yield f"replay {count}", "ns", (time.perf_counter_ns() - begin) / (100 if small else 2000)
        stream.synchronize()
    if tree.stats()["recordings"] != 2:
        sys.exit("software: it has recorded too often")


def measure(kind, small):
    """In a process of its own: prints the figures as they come."""
    if kind == "software":
        for row in software(small):
            print(json.dumps(row), flush=True)
        return
    import torch

    if kind == "lade":
        import lade.torch

        lade.torch.install_device()
    torch.zeros(1, device="cuda")
    with torch.no_grad():
        for part in (replay, branches, restore):
            if kind in ("graph", "eager") and part is restore:
                continue
            way = WAYS[kind](torch)
            for row in part(torch, way, small):
                print(json.dumps([*row, way.state()]), flush=True)
            del way


# ---- Processes -------------------------------------------------------------------------------------------------------


def run(kind, small, tell):
    """The figures of one process, as they come. False: it failed."""
    command = [sys.executable, HERE, "--measure", kind] + ["--small"] * small
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("["):
                tell(kind, *json.loads(line))
    return process.returncode == 0


def has_gpu():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--small", action="store_true", help="one round, to see that it runs")
    parser.add_argument("--out")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.small)
        return 0
    kinds = KINDS if has_gpu() else ("software",) if arguments.small else ()
    if not kinds:
        return 77
    out = open(arguments.out, "a", encoding="utf-8") if arguments.out else sys.stdout
    values, failed = {}, set()

    def tell(kind, what, unit, value, *state):
        values.setdefault((what, unit), {}).setdefault(kind, []).append(value)
        print(json.dumps({"measured": "graphs", "kind": kind, "what": what, "unit": unit, "value": value, "state": state[0] if state else {}}),
              file=out, flush=True)

    ends = time.monotonic() + arguments.seconds
    for _ in range(1 if arguments.small else arguments.rounds):
        for kind in kinds:
            if time.monotonic() < ends and not run(kind, arguments.small, tell):
                failed.add(kind)
    for (what, unit), found in values.items():
        for kind in found:
            if kind == "lade" or "lade" not in found:
                continue
            row = {"measured": "graphs", "what": what, "unit": unit, "beside": kind}
            for name in ("lade", kind):
                row[name] = [statistics.median(found[name]), min(found[name]), max(found[name])]
            row["ratio"] = row["lade"][0] / row[kind][0] if row[kind][0] else None
            print(json.dumps(row), file=out, flush=True)
            if out is not sys.stdout:
                print(f"{what}: lade {row['lade'][0]:.0f} {unit}, {kind} {row[kind][0]:.0f} {unit}, ratio {row['ratio'] or 0:.2f}")
    for kind in failed:
        print(f"{kind} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
