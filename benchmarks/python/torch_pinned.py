#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What pinned memory costs in PyTorch: with its own allocator, and with lade's (lade.torch.install_pinned()).

Questions, each with PyTorch's own allocator as baseline in the same run, rounds in turn:
  pair      nanoseconds of getHostAllocator(kCUDA)->allocate and release from C++, warm, by size, 1 and 8 threads (mean of the
            threads); needs python/torch's test module (LADE_TORCH_CALLS)
  empty     nanoseconds of torch.empty(n, pin_memory=True) and del from Python, warm
  reserved  peak of reserved bytes by peak of requested bytes, with a DataLoader of images of mixed size whose consumer keeps
            8 batches ahead, each copied to the GPU
  pin       GB/s of tensor.pin_memory(): "warm" from the cache; "cold" each with an empty cache; "fill" 256 MiB of such tensors, kept,
            from an empty cache. Values are compared.
Each figure is the median of the rounds, with the least and the most. "lade" is a pool with default settings, "lade 2 MiB" one with
segments of 2 MiB, which pins less at a time.

usage: benchmarks/python/torch_pinned.py [--small] [--out FILE]
  --small  few rounds, and where there is no GPU only "pair" of lade on a software device: to see that it runs; worth no figure
  --out    one JSON object a line; standard output without it
exit status: 0; 77 without PyTorch or a GPU (not with --small)
"""

import argparse
import collections
import gc
import json
import pathlib
import statistics
import sys
import time

KIB, MIB = 1 << 10, 1 << 20
PAIR_SIZES = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB]
PIN_SIZES = [MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "python"))


class Bench:
    def __init__(self, torch, lade, arguments, out):
        self.torch, self.lade, self.out = torch, lade, out
        self.gpu = torch.cuda.is_available()
        self.rounds = 3 if arguments.small else 7
        self.pairs = 2_000 if arguments.small else 50_000
        device = None if self.gpu else lade.software_device()
        # Made and left, so that later installations find them.
        self.pools = {"lade": {"device": device}, "lade 2 MiB": {"device": device, "segment_bytes": 2 * MIB}}
        self.who = ["pytorch", *self.pools] if self.gpu else list(self.pools)

    def choose(self, who):
        if who == "pytorch":
            self.lade.torch.uninstall_pinned()
        else:
            self.lade.torch.install_pinned(**self.pools[who])

    def empty_caches(self):
        gc.collect()
        if self.gpu:
            self.torch.cuda.synchronize()
            self.torch._C._host_emptyCache()

    def row(self, measured, who, values, unit, **more):
        values = sorted(values)
        print(json.dumps({"measured": measured, "who": who, **more, "unit": unit, "median": statistics.median(values),
                          "least": values[0], "most": values[-1], "rounds": len(values)}), file=self.out, flush=True)

    def in_turn(self, measured, unit, function, who=None, **more):
        """Rounds of each allocator in turn, so that what changes on the machine meets all."""
        values = collections.defaultdict(list)
        for _ in range(self.rounds):
            for each in who or self.who:
                self.choose(each)
                values[each].append(function())
        for each, all_values in values.items():
            self.row(measured, each, all_values, unit, **more)

    # ---- What is measured

    def pair(self):
        import torch_calls

        if torch_calls.path(self.torch.__version__) is None:
            print("no test module of python/torch for this PyTorch: \"pair\" is left out", file=sys.stderr)
            return
        calls = torch_calls.Calls(self.torch.__version__)
        for size in PAIR_SIZES:
            for threads in (1, 8):
                count = self.pairs if threads == 1 else self.pairs // 5
                self.in_turn("pair", "ns", lambda: calls.pairs_ns(size, count, threads=threads), bytes=size, threads=threads)
            self.empty_caches()

    def empty(self):
        torch = self.torch

        def once(size, count):
            for _ in range(50):
                del_me = torch.empty(size, dtype=torch.uint8, pin_memory=True)
                del del_me
            begin = time.perf_counter_ns()
            for _ in range(count):
                torch.empty(size, dtype=torch.uint8, pin_memory=True)
            return (time.perf_counter_ns() - begin) / count

        for size in PAIR_SIZES:
            self.in_turn("empty", "ns", lambda: once(size, self.pairs // 5), bytes=size)
            self.empty_caches()

    def reserved(self, batches=40, batch_images=64, ahead=8):
        torch = self.torch

        class Images(torch.utils.data.Dataset):
            def __len__(self):
                return batches * batch_images

            def __getitem__(self, index):
                height, width = 224 + index * 7919 % 1057, 224 + index * 104_729 % 1057
                return torch.full((3, height, width), index % 251, dtype=torch.uint8)

        def peak_reserved():
            stats = torch.cuda.host_memory_stats()
            return stats.get("reserved_bytes.peak", stats["allocated_bytes.peak"])

        for who in self.who:
            self.choose(who)
            self.empty_caches()
            torch.cuda.reset_peak_host_memory_stats()
            loader = torch.utils.data.DataLoader(Images(), batch_size=batch_images, collate_fn=list, pin_memory=True)
            held, requested, live, right = collections.deque(), 0, 0, True
            begin = time.perf_counter()
            for batch in loader:
                held.append(batch)
                live += sum(image.numel() for image in batch)
                requested = max(requested, live)
                if len(held) > ahead:
                    oldest = held.popleft()
                    for image in oldest:
                        image.to("cuda", non_blocking=True)
                    live -= sum(image.numel() for image in oldest)
                    right = right and int(oldest[3][0, 0, 0]) == int(oldest[3].max())
                    del oldest
                    # The copies must be over before the next batch is pinned, or it is a matter of luck what is reserved.
                    torch.cuda.synchronize()
                del batch
            seconds = time.perf_counter() - begin
            self.row("reserved", who, [peak_reserved() / requested], "bytes by byte", requested_bytes=requested, right=right,
                     seconds=seconds)
            held.clear()
            self.empty_caches()

    def pin(self):
        torch = self.torch
        for size in PIN_SIZES:
            source = torch.randint(0, 256, (size,), dtype=torch.uint8)

            def gb_per_s(count, ns):
                return size * count / ns

            def warm():
                for _ in range(3):
                    source.pin_memory()
                count = max(3, 256 * MIB // size // 4)
                begin = time.perf_counter_ns()
                for _ in range(count):
                    source.pin_memory()
                return gb_per_s(count, time.perf_counter_ns() - begin)

            def cold():
                self.empty_caches()
                begin = time.perf_counter_ns()
                pinned = source.pin_memory()
                ns = time.perf_counter_ns() - begin
                assert torch.equal(pinned, source)
                return gb_per_s(1, ns)

            def fill():
                self.empty_caches()
                count = 256 * MIB // size
                begin = time.perf_counter_ns()
                kept = [source.pin_memory() for _ in range(count)]
                ns = time.perf_counter_ns() - begin
                assert torch.equal(kept[-1], source)
                return gb_per_s(count, ns)

            for name, function in (("warm", warm), ("cold", cold), ("fill", fill)):
                self.in_turn("pin", "GB/s", function, bytes=size, state=name)
            self.empty_caches()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=argparse.FileType("w"), default=sys.stdout)
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"left out: {error}", file=sys.stderr)
        return 77
    import lade
    import lade.torch

    if not torch.cuda.is_available() and (not arguments.small or torch.version.cuda is None):
        print("left out: no GPU", file=sys.stderr)
        return 77
    try:
        lade.torch._native()
    except lade.UnsupportedError as error:
        print(f"left out: {error}", file=sys.stderr)
        return 77
    bench = Bench(torch, lade, arguments, arguments.out)
    bench.pair()
    if bench.gpu:
        bench.empty()
        bench.pin()
        bench.reserved(batches=12 if arguments.small else 40)
    lade.torch.uninstall_pinned()
    return 0


if __name__ == "__main__":
    sys.exit(main())
