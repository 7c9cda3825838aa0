#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What device memory costs a PyTorch program: with PyTorch's own allocator, and with lade's (lade.torch.install_device()).

Question: does lade cost a PyTorch program time or memory? Each figure is of processes of their own, as an allocator is chosen once,
native and lade in turn; the median of the processes, with the least and the most, and the ratio of the medians.

  pair      torch.empty(n, dtype=torch.uint8, device="cuda") and del, in Python, warm
  calls     the same two calls of PyTorch's C++ interface, in 1 and 8 threads on the default stream
  shapes    60 steps of forward and backward of a transformer layer, each of another batch and length: seconds, and bytes reserved at most
  restore   setCheckpointPoolState of a pool with 10,000 blocks: milliseconds

usage: LADE_TORCH_CALLS=FOLDER benchmarks/python/torch_device.py [--small] [--rounds N] [--settings TEXT] [--out FILE]
  LADE_TORCH_CALLS  where python/torch's module for tests is; without it `calls` is left out
  --small           one round, to see that it runs
  --rounds N        processes of each kind (3)
  --settings TEXT   of both: "expandable_segments:True"
  --out             one JSON object a line: measured, what, unit, native, lade (median, least, most), ratio; standard output without it
exit status: 0; 77 without PyTorch or a GPU
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()
SIZES = [512, 64 << 10, 2 << 20, 64 << 20]


def pairs(torch):
    for size in SIZES:
        for _ in range(1000):
            torch.empty(size, dtype=torch.uint8, device="cuda")
        begin = time.perf_counter_ns()
        for _ in range(20000):
            torch.empty(size, dtype=torch.uint8, device="cuda")
        yield f"pair {size}", "ns", (time.perf_counter_ns() - begin) / 20000


def calls(torch):
    sys.path.insert(0, str(HERE.parents[2] / "tests" / "python"))
    import lade.torch  # noqa: F401  # loads what the module is linked against, and installs nothing
    import torch_calls

    if torch_calls.path(torch.__version__) is None:
        return
    native = torch_calls.Calls(torch.__version__).native
    for threads in (1, 8):
        for size in SIZES:
            yield f"calls {size} threads {threads}", "ns", native.calls_device_pairs_ns(size, 100000 // threads, 1, threads)


def shapes(torch):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True).cuda()
    sizes = torch.randint(1, 33, (60, 2)).tolist()
    layer(torch.randn(1, 8, 1024, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for batch, length in sizes:
        layer(torch.randn(batch, 32 * length, 1024, device="cuda")).square().mean().backward()
        layer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    yield "shapes", "s", time.perf_counter() - begin
    yield "shapes reserved", "MiB", torch.cuda.max_memory_reserved() / (1 << 20)


def restore(torch):
    pool, core = (0, 1 << 20), torch._C
    core._cuda_beginAllocateCurrentThreadToPool(0, pool)
    blocks = [core._cuda_cudaCachingAllocator_raw_alloc(512 * (1 + i % 7), 0) for i in range(10000)]
    core._cuda_endAllocateToPool(0, pool)
    state = core._cuda_getCheckpointState(0, pool)
    for block in blocks:
        core._cuda_cudaCachingAllocator_raw_delete(block)
    begin = time.perf_counter()
    core._cuda_setCheckpointPoolState(0, state, [], [])
    yield "restore", "ms", 1000 * (time.perf_counter() - begin)


def measure(kind, settings):
    """In a process of its own: prints the figures."""
    import torch

    if kind == "lade":
        import lade.torch

        lade.torch.install_device(settings)
    torch.zeros(1, device="cuda")
    for part in (pairs, calls, shapes, restore):
        for what, unit, value in part(torch):
            print(json.dumps([what, unit, value]), flush=True)


def run(kind, settings):
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings} if kind == "native" and settings else dict(os.environ)
    out = subprocess.run([sys.executable, HERE, "--measure", kind, "--settings", settings], env=environment, check=True,
                         capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("[")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settings", default="")
    parser.add_argument("--small", action="store_true", help="one round, to see that it runs")
    parser.add_argument("--out")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.settings)
        return 0
    try:
        import torch
    except ImportError:
        return 77
    if not torch.cuda.is_available():
        return 77
    out = open(arguments.out, "a", encoding="utf-8") if arguments.out else sys.stdout
    values = {}
    for _ in range(1 if arguments.small else arguments.rounds):
        for kind in ("native", "lade"):
            for what, unit, value in run(kind, arguments.settings):
                values.setdefault((what, unit), {}).setdefault(kind, []).append(value)
    for (what, unit), kinds in values.items():
        row = {"measured": "torch_device", "what": what, "unit": unit, "settings": arguments.settings}
        for kind, found in kinds.items():
            row[kind] = [statistics.median(found), min(found), max(found)]
        row["ratio"] = row["lade"][0] / row["native"][0]
        print(json.dumps(row), file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
