#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one allocation and its free cost in CuPy: with CuPy's own pools, and with lade's (lade.cupy.install()).

Question: does lade cost a CuPy program time? A pair is cupy.cuda.alloc(n) or cupy.cuda.alloc_pinned_memory(n), and the drop of what
it gave, in Python, warm: the pools have what is asked for. Baseline: CuPy's default pools, in the same run, rounds in turn. Each
figure is the median of the rounds, with the least and the most; with 8 threads that of all threads together by pair, which the
interpreter's lock holds apart. And what a cold pool pays: the first pair of each size.

usage: benchmarks/python/cupy_alloc.py [--small] [--out FILE]
  --small  few rounds, on a software device behind a double of CuPy where there is no GPU: to see that it runs; worth no figure
  --out    one JSON object a line: measured, what, size_bytes, threads, unit, median, least, most; standard output without it
exit status: 0; 77 without CuPy or a GPU (not with --small)
"""

import argparse
import gc
import json
import pathlib
import statistics
import sys
import threading
import time

import lade

SIZES = {"device": [512, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20], "pinned": [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]}


def double_of_cupy():
    """A CuPy for machines without a GPU: the tests' double, over a software device."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "python"))
    import doubles

    modules = doubles.cupy()
    sys.modules.update(modules)
    cupy = modules["cupy"]
    device = lade.software_device(clock="cpu")
    lade.cuda_device = device.sibling
    cupy.get_default_memory_pool = lambda: None
    return cupy


def pairs_ns(function, size, count):
    """Nanoseconds of one pair, over `count` of them."""
    begin = time.perf_counter_ns()
    for _ in range(count):
        function(size)
    return (time.perf_counter_ns() - begin) / count


def threads_ns(function, size, count, threads):
    """Nanoseconds from the first to the last, by pair of all threads. Each has its own clock: one may end before another is woken."""
    start = threading.Barrier(threads)
    begun, ended = [], []

    def work():
        function(size)
        start.wait()
        begun.append(time.perf_counter_ns())
        for _ in range(count):
            function(size)
        ended.append(time.perf_counter_ns())

    workers = [threading.Thread(target=work) for _ in range(threads)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    return (max(ended) - min(begun)) / (count * threads)


class Owners:
    """Who serves CuPy: lade or CuPy itself, exchanged between rounds, each with the memory it has got so far."""

    def __init__(self, cupy):
        import lade.cupy

        self.cupy = cupy
        self.lade = lade.cupy
        self.given = {}

    def let(self, name):
        self.lade.uninstall()
        if name == "lade":
            memory = self.lade.install(**self.given)
            if not self.given:
                self.given = {"device": {0: memory.device(0)}, "pinned": {0: memory.pinned(0)}}


def measure(cupy, small):
    """Rows of figures."""
    owners = Owners(cupy)
    functions = {"device": cupy.cuda.alloc, "pinned": cupy.cuda.alloc_pinned_memory}
    rounds, count = (3, 20) if small else (15, 2000)
    for what, function in functions.items():
        for size in SIZES[what][: 2 if small else None]:
            cold = {}
            for name in ("cupy", "lade"):
                owners.let(name)
                cold[name] = pairs_ns(function, size, 1)
                yield row(name, f"{what}, first pair", size, 1, [cold[name]])
            for threads in (1, 8):
                found = {"cupy": [], "lade": []}
                for number in range(rounds):
                    for name in ("cupy", "lade") if number % 2 else ("lade", "cupy"):
                        owners.let(name)
                        function(size)
                        gc.collect()
                        found[name].append(pairs_ns(function, size, count) if threads == 1 else threads_ns(function, size, count // 4, threads))
                for name, values in found.items():
                    yield row(name, f"{what}, pair", size, threads, values)
    owners.lade.uninstall()


def row(name, what, size, threads, values):
    return {"measured": name, "what": what, "size_bytes": size, "threads": threads, "unit": "ns", "median": statistics.median(values),
            "least": min(values), "most": max(values)}


def real_cupy():
    try:
        import cupy

        cupy.cuda.runtime.getDevice()
        return cupy
    except Exception as error:  # no package, no driver, no device: all the same here
        print(f"cupy_alloc: no CuPy with a GPU: {error}", file=sys.stderr)
        return None


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[2])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=argparse.FileType("w"), default=sys.stdout)
    options = parser.parse_args()
    cupy = real_cupy()
    if cupy is None and not options.small:
        return 77
    sys.setswitchinterval(0.0005)  # as short as a pair of 8 threads' turns, or one thread runs all of its pairs alone
    for figures in measure(cupy or double_of_cupy(), options.small):
        options.out.write(json.dumps(figures) + "\n")
        options.out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
