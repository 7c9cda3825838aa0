#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a program waits for a checkpoint of a GPU, and when it is there: 8 GiB in 300 tensors, in the order of the rows.

  lade          save_file(): waits until all is written
  lade begun    save_file(wait=False): "blocked" is the call, "staged" until tensors may change, "durable" until the file is in place
  dcp async     torch.distributed.checkpoint.async_save() to FileSystemWriter, without ranks: "blocked" is the call, "durable" its future
  safetensors   safetensors.torch.save_file()
  copy          the bytes to pinned memory that is there, and no more: what "staged" cannot be below

Figures are medians of the rounds with the least and the most, in seconds from the call; cpu_s is the processor time of the process. Nothing is
flushed but with --sync. Then a loop of matrix products as a step of training, alone and beside a save that goes on: ms a step; and
copies of 64 KiB to the device, one by one, alone and beside saves until they are staged: ms a copy. Each way saves
once before, and what it saved is loaded and compared. Rows are written as they come.

usage: benchmarks/python/save_file.py [--small] [--out FILE] [--folder DIR] [--gib N] [--tensors N] [--way NAME]... [--rounds N] [--sync]
                                         [--beside SAVES]
  --small   32 MiB and two rounds, also without a GPU or PyTorch: to see that it runs; worth no figure
  --folder  where the files are made, and removed; a temporary folder without it
  --gib     bytes of the tensors (8)
  --tensors how many (300)
  --way     these alone
  --rounds  saves of each way (5)
  --beside  saves that the loops run beside: the first beside the steps, all beside the copies (10); 0: no loops
  --sync    files are on stable storage before they get their names, where a way has that
exit status: 0; 1 where values differ; 77 without PyTorch and a GPU (not with --small)
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

import lade
import lade.safetensors

MIB = 1 << 20


def module(name):
    try:
        return __import__(name, fromlist=["*"])
    except ImportError:
        return None


class Clock:
    """Marks of one save, in seconds from its begin."""

    def __init__(self):
        self.begun, self.cpu, self.marks = time.perf_counter(), time.process_time(), {}

    def mark(self, name):
        self.marks[name] = time.perf_counter() - self.begun

    def end(self):
        self.marks["cpu_s"] = time.process_time() - self.cpu
        return self.marks


class Bench:
    def __init__(self, arguments, folder):
        self.folder, self.sync = folder, arguments.sync
        self.torch = module("torch")
        self.gpu = bool(self.torch and self.torch.cuda.is_available())
        self.device = lade.device("cuda:0" if self.gpu else "cpu")
        self.total = 32 * MIB if arguments.small else int(arguments.gib * 1024) * MIB
        count = arguments.tensors
        each = self.total // count // 256 * 256
        if self.gpu:
            self.tensors = {f"layers.{i}.weight": self.torch.randint(0, 256, (each,), dtype=self.torch.uint8, device="cuda:0") for i in range(count)}
        else:
            allocator = lade.DeviceAllocator(self.device)
            self.tensors = {f"layers.{i}.weight": allocator.empty(each, "uint8") for i in range(count)}
        self.total = each * count
        self.pinned = None

    def path(self, name):
        return os.path.join(self.folder, name)

    def synchronize(self):
        if self.gpu:
            self.torch.cuda.synchronize()

    def ways(self, wanted):
        ways = {"lade": self.lade, "lade begun": self.begun}
        if self.gpu:
            if module("torch.distributed.checkpoint"):
                ways["dcp async"] = self.dcp
            if module("safetensors.torch"):
                ways["safetensors"] = self.package
            ways["copy"] = self.copy
        return {name: way for name, way in ways.items() if not wanted or name in wanted}

    def lade(self, clock):
        lade.safetensors.save_file(self.tensors, self.path("lade"), sync=self.sync)
        clock.mark("durable")

    def begun(self, clock):
        save = lade.safetensors.save_file(self.tensors, self.path("lade begun"), sync=self.sync, wait=False)
        clock.mark("blocked")
        save.wait_staged()
        clock.mark("staged")
        save.wait()
        clock.mark("durable")
        save.close()

    def dcp(self, clock):
        dcp = module("torch.distributed.checkpoint")
        writer = dcp.FileSystemWriter(self.path("dcp"), sync_files=self.sync, overwrite=True)
        future = dcp.async_save({"model": self.tensors}, storage_writer=writer, no_dist=True)
        clock.mark("blocked")
        getattr(future, "upload_completion", future).result()
        clock.mark("durable")

    def package(self, clock):
        module("safetensors.torch").save_file(self.tensors, self.path("safetensors"))
        clock.mark("durable")

    def copy(self, clock):
        if self.pinned is None:
            self.pinned = {name: self.torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for name, tensor in self.tensors.items()}
            self.synchronize()
        for name, tensor in self.tensors.items():
            self.pinned[name].copy_(tensor, non_blocking=True)
        self.synchronize()
        clock.mark("staged")

    def differs(self, name):
        """Whether a file has other values than the tensors."""
        if not os.path.isfile(self.path(name)):
            return False
        for key, value in lade.safetensors.load_file(self.path(name), self.device, framework="torch" if self.gpu else "lade").items():
            same = bool((value == self.tensors[key]).all()) if self.gpu else value.nbytes == self.tensors[key].nbytes
            if not same:
                return True
        return False

    def steps(self, seconds):
        """Milliseconds of each step of a loop that keeps the GPU busy."""
        left = self.torch.randn(4096, 4096, dtype=self.torch.bfloat16, device="cuda:0")
        found, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            begun = time.perf_counter()
            for _ in range(16):
                left @ left
            self.synchronize()
            found.append(1e3 * (time.perf_counter() - begun))
        return found


    def copies(self, goes_on):
        """Milliseconds of each copy of 64 KiB to the device on a stream of its own, until it has arrived."""
        host, to = self.torch.empty(1 << 16, dtype=self.torch.uint8, pin_memory=True), self.torch.empty(1 << 16, dtype=self.torch.uint8, device="cuda:0")
        stream, found = self.torch.cuda.Stream(), []
        while goes_on():
            begun = time.perf_counter()
            with self.torch.cuda.stream(stream):
                to.copy_(host, non_blocking=True)
            stream.synchronize()
            found.append(1e3 * (time.perf_counter() - begun))
        return found

    def copies_beside(self, saves):
        found = []
        for _ in range(saves):
            save = lade.safetensors.save_file(self.tensors, self.path("lade begun"), sync=self.sync, wait=False)
            found += self.copies(lambda: not is_staged(save))
            save.close()
        return found


def is_staged(save):
    try:
        save.wait_staged(0)
    except TimeoutError:
        return False
    return True


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--folder")
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--way", action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--beside", type=int, default=10)
    arguments = parser.parse_args()
    rounds = 2 if arguments.small else arguments.rounds
    folder = tempfile.mkdtemp(dir=arguments.folder)
    out = open(arguments.out, "w") if arguments.out else None

    def row(**fields):
        text = json.dumps(fields)
        print(text, flush=True)
        if out:
            print(text, file=out, flush=True)

    try:
        bench = Bench(arguments, folder)
        if not bench.gpu and not arguments.small:
            print("save_file: PyTorch and a GPU are wanted; --small runs without", file=sys.stderr)
            return 77
        row(device=str(bench.device), bytes=bench.total, sync=arguments.sync, lade=lade.__version__,
            torch=bench.torch.__version__ if bench.torch else None)
        found = {name: [] for name in bench.ways(arguments.way)}
        for at in range(rounds + 1):
            for name, way in bench.ways(arguments.way).items():
                bench.synchronize()
                clock = Clock()
                way(clock)
                if at == 0:
                    if bench.differs(name):
                        print(f"save_file: values of {name} differ", file=sys.stderr)
                        return 1
                else:
                    found[name].append(clock.end())
                    row(way=name, round=at, **found[name][-1])
        for name, marks in found.items():
            row(way=name, **{mark: spread([each[mark] for each in marks]) for mark in marks[0]},
                gb_per_s=bench.total / statistics.median([max(v for k, v in each.items() if k != "cpu_s") for each in marks]) / 1e9)
        if bench.gpu and arguments.beside > 0:
            row(step="alone", ms=spread(bench.steps(3)))
            save = lade.safetensors.save_file(bench.tensors, bench.path("lade begun"), sync=arguments.sync, wait=False)
            row(step="beside a save", ms=spread(bench.steps(3)))
            save.close()
            end = time.perf_counter() + 2
            for name, times in (("alone", bench.copies(lambda: time.perf_counter() < end)), ("beside a save", bench.copies_beside(arguments.beside))):
                row(copy=name, copies=len(times), ms={**spread(times), "p99": statistics.quantiles(times, n=100)[98]})
        return 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if out:
            out.close()


if __name__ == "__main__":
    sys.exit(main())
