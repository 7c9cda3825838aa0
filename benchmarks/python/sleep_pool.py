#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long device memory takes to go to sleep and to wake: 8 GiB of tensors, whose bytes wait in pinned memory, in a file, or nowhere.

Baselines in the same run: torch_memory_saver (0.0.10) with the same keeping, and the link, a copy of pinned memory each way. Each way is a
process of its own, as allocators are chosen once. Every value is compared after every cycle that keeps bytes. The first cycle pins memory,
later ones find it there, so they are rows of their own; "later" is the median of the others with the least and the most.
  lade pinned, lade file, lade none       lade.torch.SleepPool, and lade.SleepPool without PyTorch
  saver pinned                            the pinned memory goes back after each cycle, as is the package's default
  saver pinned kept                       retain_cpu_backup = True
  saver file, saver none                  enable_disk_backup, or no backup
  link                                    a copy of 1 GiB to pinned memory and back; "later" alone

usage: benchmarks/python/sleep_pool.py [--small] [--out FILE] [--folder DIR] [--gib N] [--cycles N] [--way NAME]
  --small   32 MiB and three cycles, also without a GPU or PyTorch: to see that it runs; worth no figure
  --folder  where files are made, on a disk: not tmpfs (the working folder)
  --gib     bytes of the tensors (8)
  --cycles  of suspend and resume (6)
  --way     one way alone, in this process
exit status: 0; 1 where values differ or a way fails; 77 without PyTorch and a GPU (not with --small)
"""

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time

import lade

MIB = 1 << 20
PIECE = 16 * MIB
WAYS = ["lade pinned", "lade file", "lade none", "saver pinned", "saver pinned kept", "saver file", "saver none", "link"]


class Left(Exception):
    """A way that cannot run here."""


def module(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Left(f"{name} is not installed") from None


class Native:
    """lade without PyTorch, on whatever device there is."""

    def __init__(self, arguments, keep):
        self.pool, self.options = lade.SleepPool(), {"keep": keep}
        if keep == "file":
            self.options["path"] = arguments.folder
        with self.pool.use("weights"):
            self.buffers = [self.pool.allocator.empty(PIECE, "u1") for _ in range(arguments.pieces)]
        self.device = self.pool.allocator.device

    def values(self, write):
        """Bytes of each piece, or what differs."""
        pool = self.pinned = getattr(self, "pinned", None) or lade.PinnedPool(self.device)
        host, stream, wrong = pool.empty(PIECE), self.device.stream(), 0
        for index, buffer in enumerate(self.buffers):
            wanted = bytes([index % 251]) * PIECE
            if write:
                memoryview(host)[:] = wanted
                lade.copy_async(self.device, buffer, host, stream)
            else:
                lade.copy_async(self.device, host, buffer, stream)
            stream.synchronize()
            wrong += not write and bytes(memoryview(host)) != wanted
        return wrong

    def suspend(self):
        self.pool.suspend(**self.options)

    def resume(self):
        self.pool.resume()


class Torch:
    """Tensors of PyTorch; `suspend` and `resume` are set by the kinds below."""

    def __init__(self, arguments, region):
        self.torch = module("torch")
        with region:
            self.tensors = [self.torch.empty(PIECE, dtype=self.torch.uint8, device="cuda") for _ in range(arguments.pieces)]

    def values(self, write):
        wrong = 0
        for index, tensor in enumerate(self.tensors):
            if write:
                tensor.fill_(index % 251)
            else:
                wrong += not bool((tensor == index % 251).all())
        self.torch.cuda.synchronize()
        return wrong


class OfLade(Torch):
    def __init__(self, arguments, keep):
        lade_torch = module("lade.torch")
        self.pool, self.options = lade_torch.SleepPool(), {"keep": keep}
        if keep == "file":
            self.options["path"] = arguments.folder
        super().__init__(arguments, self.pool.use("weights"))

    def suspend(self):
        self.pool.suspend(**self.options)

    def resume(self):
        self.pool.resume()


class OfSaver(Torch):
    def __init__(self, arguments, keep, kept=False):
        self.saver = module("torch_memory_saver").torch_memory_saver
        if kept:
            self.saver.retain_cpu_backup = True
        if keep == "file":
            self.saver.set_disk_backup_dir(arguments.folder)
        super().__init__(arguments, self.saver.region("weights", enable_cpu_backup=keep == "pinned", enable_disk_backup=keep == "file"))

    def suspend(self):
        self.torch.cuda.synchronize()
        self.saver.pause("weights")

    def resume(self):
        self.saver.resume("weights")


def hooks_of(way):
    """The environment of a way's process: the package's way by default is to be loaded before the program."""
    if not way.startswith("saver") or importlib.util.find_spec("torch_memory_saver") is None:
        return contextlib.nullcontext()
    return importlib.import_module("torch_memory_saver").configure_subprocess()


def link(arguments):
    torch = module("torch")
    count = min(arguments.pieces * PIECE, 1024 * MIB)
    device, host = torch.empty(count, dtype=torch.uint8, device="cuda"), torch.empty(count, dtype=torch.uint8, pin_memory=True)

    def timed(target, source):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        return count / (time.perf_counter() - begin)

    rows = [(timed(host, device), timed(device, host)) for _ in range(arguments.cycles)]
    return {"way": "link", "suspend_gbps": statistics.median(row[0] for row in rows) / 1e9,
            "resume_gbps": statistics.median(row[1] for row in rows) / 1e9}


def measured(arguments, way):
    """The row of a way."""
    gpu = has_gpu()
    if way == "link" or way.startswith("saver"):
        if not gpu:
            raise Left("there is no GPU with PyTorch")
    if way == "link":
        return link(arguments)
    kind, keep, *kept = way.split()
    keep = None if keep == "none" else keep
    made = OfSaver(arguments, keep, bool(kept)) if kind == "saver" else (OfLade if gpu else Native)(arguments, keep)
    made.values(write=True)
    total, times = arguments.pieces * PIECE, []
    for _ in range(arguments.cycles):
        begin = time.perf_counter()
        made.suspend()
        away = time.perf_counter()
        made.resume()
        times.append((away - begin, time.perf_counter() - away))
        wrong = made.values(write=keep is None)
        if wrong:
            sys.exit(f"{way}: {wrong} of {arguments.pieces} pieces differ")
    row = {"way": way, "bytes": total, "device": "cuda" if gpu else str(made.device), "cycles": arguments.cycles}
    for index, name in enumerate(("suspend", "resume")):
        later = [each[index] for each in times[1:]]
        row[f"{name}_first_s"] = times[0][index]
        row |= {f"{name}_s": statistics.median(later), f"{name}_least_s": min(later), f"{name}_most_s": max(later)}
        row[f"{name}_gbps"] = total / row[f"{name}_s"] / 1e9
    return row


def has_gpu():
    try:
        return bool(module("torch").cuda.is_available())
    except Left:
        return False


def main():
    parser = argparse.ArgumentParser(usage="see the top of this file", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--folder", default=os.getcwd())
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--cycles", type=int, default=6)
    parser.add_argument("--way", choices=WAYS)
    arguments = parser.parse_args()
    if arguments.help:
        print(__doc__)
        return 0
    if arguments.small:
        arguments.gib, arguments.cycles = 32 / 1024, 3
    arguments.pieces = max(1, int(arguments.gib * 1024 * MIB) // PIECE)
    if arguments.way:
        try:
            print(json.dumps(measured(arguments, arguments.way)))
        except Left as left:
            print(json.dumps({"way": arguments.way, "skipped": str(left)}))
        return 0
    if not arguments.small and not has_gpu():
        print("there is no GPU with PyTorch", file=sys.stderr)
        return 77
    failed = False
    out = open(arguments.out, "w") if arguments.out else None
    for way in WAYS:
        again = [sys.executable, os.path.abspath(__file__), "--way", way, "--folder", arguments.folder, "--gib", str(arguments.gib),
                 "--cycles", str(arguments.cycles)]
        with hooks_of(way):
            done = subprocess.run(again, stdout=subprocess.PIPE, text=True)
        row = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"way": way, "failed": done.returncode}
        failed = failed or "failed" in row
        if out:
            print(json.dumps(row), file=out, flush=True)
        figures = row.get("skipped", "failed" if "failed" in row else "")
        if not figures:
            figures = "suspend {suspend_gbps:7.2f}   resume {resume_gbps:7.2f} GB/s".format(**row)
            if "suspend_first_s" in row:
                figures += "   first {suspend_first_s:.3f} s, {resume_first_s:.3f} s".format(**row)
        print(f"{way:18} {figures}", flush=True)
    if out:
        out.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
