#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call of the Python package costs: pool.empty() and the drop of its buffer, and pool.record().

Question: what does a program pay for a call beside the library's own work? Each figure is the median of rounds, with the least and the
most, in nanoseconds by call; a round is a loop of the same statement, warm: the pool has what is asked for. Baselines, in the same run,
rounds in turn: a statement that does nothing but call a method of a C type (`[].count(0)`), numpy.empty() and its drop where NumPy
is, and torch.empty(pin_memory=True) and its drop where torch and a GPU are. Targets: 400 ns for empty and drop, 250 ns for record.

usage: benchmarks/python/call_overhead.py [--small] [--out FILE]
  --small  few rounds, on a software device where there is no GPU: to see that it runs; worth no figure
  --out    one JSON object a line: measured, device, what, unit, median, least, most, rounds; standard output without it
exit status: 0; 1 if what was counted is wrong
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time

import lade


def statements(device):
    """Name -> (statement, names that it uses). The pool comes back to be looked at."""
    pool = lade.PinnedPool(device)
    stream = device.stream()
    names = {"pool": pool, "buffer": pool.empty(4096), "handle": stream.handle, "stream": stream, "keep": [0]}
    found = {
        "a method call": "keep.count(0)",
        "empty(4096)": "pool.empty(4096)",
        "empty(4096, 'float32')": "pool.empty(4096, 'float32')",
        "empty((64, 64), 'float32')": "pool.empty((64, 64), 'float32')",
        "empty(1 << 20)": "pool.empty(1048576)",
        "record, a handle": "pool.record(buffer, handle)",
        "record, a lade.Stream": "pool.record(buffer, stream)",
    }
    if importlib.util.find_spec("numpy"):
        import numpy

        names.update(numpy=numpy, dtype=numpy.dtype("float32"))
        found["empty(4096, numpy.dtype)"] = "pool.empty(4096, dtype)"
        names["array"] = names["buffer"].numpy()
        found["record of a NumPy array, a handle"] = "pool.record(array, handle)"
        found["numpy.empty(4096, uint8)"] = "numpy.empty(4096, 'u1')"
    if not device.software and importlib.util.find_spec("torch"):
        import torch

        names.update(torch=torch, current=torch.cuda.current_stream())
        found["torch.empty(4096, pin_memory=True)"] = "torch.empty(4096, dtype=torch.uint8, pin_memory=True)"
        found["record, a stream of torch"] = "pool.record(buffer, current)"
    return found, names


def compiled(statement, names):
    """A function that runs the statement `count` times."""
    namespace = dict(names)
    arguments = ", ".join(f"{name}={name}" for name in names)
    exec(f"def loop(count, {arguments}):\n  for _ in range(count):\n    {statement}", namespace)
    return namespace["loop"]


def measure(loops, rounds, count):
    """Nanoseconds by call, of all rounds, by name; one round of each in turn."""
    for loop in loops.values():
        loop(count)
    times = {name: [] for name in loops}
    for _ in range(rounds):
        for name, loop in loops.items():
            begin = time.perf_counter_ns()
            loop(count)
            times[name].append((time.perf_counter_ns() - begin) / count)
    return times


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    device = lade.device()
    found, names = statements(device)
    rounds, count = (3, 200) if arguments.small else (25, 100_000)
    times = measure({name: compiled(statement, names) for name, statement in found.items()}, rounds, count)
    with open(arguments.out, "w", encoding="utf-8") if arguments.out else sys.stdout as file:
        for name, values in times.items():
            line = {"measured": not arguments.small, "device": device.name, "what": name, "unit": "ns", "median": round(statistics.median(values), 1),
                    "least": round(min(values), 1), "most": round(max(values), 1), "rounds": rounds}
            print(json.dumps(line), file=file)
    stats = names["pool"].stats()
    is_wrong = stats["in_use_blocks.current"] != 1 or stats["in_use_blocks.allocated"] < rounds * count
    if is_wrong:
        print(f"call_overhead: the pool counts {stats['in_use_blocks.allocated']} buffers, of which "
              f"{stats['in_use_blocks.current']} are there", file=sys.stderr)
    return is_wrong


if __name__ == "__main__":
    sys.exit(main())
