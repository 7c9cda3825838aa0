#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A transformer three times as large as what may be on the device: how close lade.torch.offload() comes to what computing and link allow.

Blocks of a decoder (attention, MLP) of bfloat16, without gradients, at several numbers of tokens: with few of them a forward is bound by the link,
with many by computing. Every way runs its forward in turns with the others; the figures are medians of the rounds, with the least and the
most. Each output is compared with that of the module on the device, bit for bit.
  resident        the module on the device: `compute`
  lade resident   the same module in lade.torch.offload() with all of it resident, in pairs with a forward without, each second pair the
                  other way round; "of resident" is the median of the pairs' ratios, with the interval that has it with 95 %
  link            the blocks that lade fetches in a forward, copied one after the other from pinned memory
  lade            a third of the bytes resident; "of bound" is max(compute, link) over its time
  lade ahead 3    the same bytes, with three layers ahead
  lade graph      the same as `lade`, in a CUDA graph
  accelerate      accelerate.cpu_offload() of the same module; "lade" says how many times as long it takes

usage: benchmarks/python/offload.py [--small] [--out FILE] [--layers N] [--width N] [--tokens N]... [--rounds N] [--pairs N] [--way NAME]...
  --small   a few small blocks and two rounds, also without a GPU (a software device): to see that it runs; worth no figure
  --layers, --width   of the module (24 of 4096: 9.7 GB)
  --tokens  may be given several times (512, 8192, 32768)
  --rounds  of one forward of each way (5, after one that is not counted)
  --pairs   of `lade resident`, at least, and for ten seconds (20)
  --way     these alone; `resident` and `link` come with them
exit status: 0; 1 where outputs differ or a way fails; 77 without PyTorch and a GPU (not with --small)
"""

import argparse
import gc
import json
import statistics
import sys
import time

import lade

WAYS = ["resident", "lade resident", "link", "lade", "lade ahead 3", "lade graph", "accelerate"]
SEQUENCE = 2048  # tokens that attend to each other, at most


class Left(Exception):
    """A way that cannot run here."""


def block_class(torch):
    class Block(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.heads = max(1, width // 128)
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))

    return Block


class Bench:
    def __init__(self, torch, arguments):
        self.torch, self.arguments = torch, arguments
        self.gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.gpu else torch.device("cpu")
        self.lade_device = None if self.gpu else lade.software_device(clock="cpu")
        self.dtype = torch.bfloat16 if self.gpu else torch.float32
        self.pool = lade.PinnedPool(self.lade_device, max_bytes=4 * self.module_bytes() + (1 << 30), budget=False)
        self.offloaded = {}

    def module_bytes(self):
        width = self.arguments.width
        return self.arguments.layers * (12 * width * width + 13 * width) * self.dtype.itemsize

    def module(self):
        """The same each time. Made block by block on the device, as fast as its random numbers."""
        torch, Block = self.torch, block_class(self.torch)
        torch.manual_seed(0)
        with self.device:
            return torch.nn.Sequential(*(Block(self.arguments.width).to(self.dtype) for _ in range(self.arguments.layers)))

    def offload(self, way, share, **options):
        module = self.module()
        self.offloaded[way] = lade.torch.offload(
            module, resident_bytes=int(self.module_bytes() * share), device=self.lade_device, pool=self.pool, **options)
        return module

    def synchronize(self):
        if self.gpu:
            self.torch.cuda.synchronize()

    def link(self):
        """A forward's copies, without computing."""
        offloaded = self.offloaded["lade"]
        stream = self.torch.cuda.Stream() if self.gpu else self.lade_device.stream()
        device = lade.cuda_device(self.device.index) if self.gpu else self.lade_device
        handle = stream.cuda_stream if self.gpu else stream

        def run(_x):
            for layer in offloaded._layers:
                lade.copy_async(device, layer.bytes_of_slot, layer.block, handle)
            stream.synchronize()

        return run

    def graph(self, module, x):
        """A captured forward, with an input of its own."""
        torch, source = self.torch, x.clone()
        module(source)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = module(source)

        def run(x):
            source.copy_(x)
            graph.replay()
            return out

        return run

    def accelerate(self):
        try:
            import accelerate
        except ImportError:
            raise Left("accelerate is not installed") from None
        if not self.gpu:
            raise Left("accelerate.cpu_offload() needs a GPU")
        return accelerate.cpu_offload(self.module().cpu(), execution_device=self.device)

    def ways(self):
        """Functions by way, and what was left out."""
        wanted, made, left = self.arguments.way or WAYS, {"resident": self.module()}, {}
        make = {
            "lade": lambda: self.offload("lade", 1 / 3),
            "link": self.link,
            "lade ahead 3": lambda: self.offload("lade ahead 3", 1 / 3, ahead=3),
            "accelerate": self.accelerate,
        }
        for way, function in make.items():
            if way not in wanted and way not in ("lade", "link"):
                continue
            try:
                made[way] = function()
            except Left as reason:
                left[way] = str(reason)
        if "lade graph" in wanted and not self.gpu:
            left["lade graph"] = "graphs need a GPU"
        return made, left

    def timed(self, run, x):
        """(Seconds, output) of one forward, from an idle device to an idle device."""
        self.synchronize()
        begin = time.perf_counter()
        out = run(x)
        self.synchronize()
        return time.perf_counter() - begin, out

    def pairs(self, module, x, reference):
        """Seconds without and with lade of each pair, and whether an output differs. The module is the same: so is where its bytes lie."""
        plain, offloaded, differs = [], [], False
        end = time.perf_counter() + (0 if self.arguments.small else 10)
        while len(plain) < self.arguments.pairs or time.perf_counter() < end:
            for is_lade in (False, True) if len(plain) % 2 == 0 else (True, False):
                held = lade.torch.offload(module, resident_bytes=self.module_bytes(), device=self.lade_device, pool=self.pool)
                if not is_lade:
                    held.close()  # before the forward, so that both come after the same work
                seconds, out = self.timed(module, x)
                held.close()
                (offloaded if is_lade else plain).append(seconds)
                differs = differs or not self.torch.equal(out, reference)
        return plain, offloaded, differs

    def rows(self, made, left, tokens):
        torch, pairs = self.torch, None
        length = min(tokens, SEQUENCE)
        x = torch.randn(tokens // length, length, self.arguments.width, dtype=self.dtype, device=self.device)
        runs = dict(made)
        if self.gpu and "lade graph" in (self.arguments.way or WAYS):
            runs["lade graph"] = self.graph(made["lade"], x)
        times, wrong = {way: [] for way in runs}, dict.fromkeys(runs, False)
        for turn in range(self.arguments.rounds + 1):
            reference = None
            for way, run in runs.items():
                seconds, out = self.timed(run, x)
                if turn:
                    times[way].append(seconds)
                if reference is None:
                    reference = out
                elif out is not None:
                    wrong[way] = wrong[way] or not torch.equal(out, reference)
        if "lade resident" in (self.arguments.way or WAYS):
            pairs = self.pairs(made["resident"], x, made["resident"](x))
            times["lade resident"], wrong["lade resident"] = pairs[1:]
        medians = {way: statistics.median(each) for way, each in times.items()}
        for way in WAYS:
            row = {"way": way, "tokens": tokens, "layers": self.arguments.layers, "width": self.arguments.width, "bytes": self.module_bytes()}
            if way in left:
                yield {**row, "skipped": left[way]}
            elif way in times:
                row |= {"s": medians[way], "least_s": min(times[way]), "most_s": max(times[way]), "equal": not wrong[way]}
                yield {**row, **(of_resident(*pairs[:2]) if way == "lade resident" else self.derived(way, medians))}

    def derived(self, way, medians):
        more = {}
        if way in self.offloaded:
            more |= self.offloaded[way].stats()
        if way == "link":
            fetched = self.offloaded["lade"].stats()["host_bytes"]
            more |= {"fetched_bytes": fetched, "gbps": fetched / medians[way] / 1e9}
        if way in ("lade", "lade ahead 3", "lade graph"):
            more["of_bound"] = max(medians["resident"], medians["link"]) / medians[way]
        if way == "accelerate":
            more["lade"] = medians[way] / medians["lade"]
        return more


def of_resident(plain, offloaded):
    """The median of the pairs' ratios, and the ratios between which it lies with 95 %, whatever they are distributed like."""
    ratios = sorted(with_lade / without for without, with_lade in zip(plain, offloaded))
    low = max(0, int(len(ratios) / 2 - 0.98 * len(ratios)**0.5))
    return {"pairs": len(ratios), "of_resident": statistics.median(ratios), "of_resident_low": ratios[low], "of_resident_high": ratios[-1 - low]}


def shown(row):
    figures = row.get("skipped") or "{s:.4f} s ({least_s:.4f} to {most_s:.4f})".format(**row)
    for key, text in (("of_resident", "of resident"), ("of_bound", "of bound"), ("lade", "x lade"), ("gbps", "GB/s")):
        if key == "of_resident" and key in row:
            figures += "   {of_resident:.4f} ({of_resident_low:.4f} to {of_resident_high:.4f}) of resident, {pairs} pairs".format(**row)
        elif key in row:
            figures += f"   {row[key]:.3f} {text}"
    return f"{row['tokens']:6} tokens  {row['way']:14} {figures}{'' if row.get('equal', True) else '   DIFFERS'}"


def main():
    parser = argparse.ArgumentParser(usage="see the top of this file", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--way", choices=WAYS, action="append")
    arguments = parser.parse_args()
    if arguments.help:
        print(__doc__)
        return 0
    if arguments.small:
        arguments.layers, arguments.width, arguments.tokens, arguments.rounds, arguments.pairs = 12, 128, [64], 2, 2
    try:
        import torch

        import lade.torch  # noqa: F401
    except ImportError:
        print("there is no PyTorch", file=sys.stderr)
        return 77
    if not arguments.small and not torch.cuda.is_available():
        print("PyTorch sees no GPU", file=sys.stderr)
        return 77
    if arguments.small:
        torch.set_num_threads(1)
    failed = False
    out = open(arguments.out, "w", encoding="utf-8") if arguments.out else None
    with torch.inference_mode(False), torch.no_grad():
        bench = Bench(torch, arguments)
        made, left = bench.ways()
        for tokens in arguments.tokens or [512, 8192, 32768]:
            for row in bench.rows(made, left, tokens):
                failed = failed or not row.get("equal", True)
                print(shown(row), flush=True)
                if out:
                    out.write(json.dumps(row) + "\n")
                    out.flush()
            gc.collect()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
