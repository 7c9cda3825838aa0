#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long an epoch of raw images takes: a tar file of records of uint8, consumed on the GPU in batches of 256.

  dataloader  torch's DataLoader with PyTorch's pinned memory, persistent workers: 0, 2, 4, 8, 16; the baseline is the best of them
  pinned      the same DataLoader, at the best number of workers, with lade's pinned memory (lade.torch.install_pinned())
  loader      lade.Loader
Each reads the same records in the same order from a file in the page cache. The consumer adds up each batch on the GPU with weights
that depend on the place; these sums are compared. An epoch before is not counted. Figures are medians of the epochs, with the least
and the most, in seconds.

usage: benchmarks/python/loader_epoch.py [--small] [--out FILE] [--folder DIR] [--records N] [--epochs N]
  --small   64 small records, also without a GPU or PyTorch: to see that it runs; worth no figure
exit status: 0; 1 where sums differ; 77 without PyTorch and a GPU (not with --small)
"""

import argparse
import gc
import io
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time

import numpy as np

import lade


def torch_or_none():
    try:
        import torch

        return torch
    except ImportError:
        return None


TORCH = torch_or_none()


def tar_make(path, count, shape):
    size = int(np.prod(shape))
    rng = np.random.default_rng(0)
    pool = rng.integers(0, 256, size + 4096, dtype=np.uint8)
    offsets = []
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for record in range(count):
            info = tarfile.TarInfo(f"{record:08}.img")
            info.size = size
            offsets.append(archive.offset + 512)
            begin = record % 4096
            archive.addfile(info, io.BytesIO(pool[begin:begin + size].tobytes()))
    return offsets


if TORCH:

    class Records(TORCH.utils.data.Dataset):
        """Record by number, read where it lies."""

        def __init__(self, path, offsets, shape):
            self.path, self.offsets, self.shape, self.fd = path, offsets, shape, None

        def __len__(self):
            return len(self.offsets)

        def __getitem__(self, record):
            if self.fd is None:
                self.fd = os.open(self.path, os.O_RDONLY)
            out = TORCH.empty(self.shape, dtype=TORCH.uint8)
            os.preadv(self.fd, [out.numpy().reshape(-1)], self.offsets[record])
            return out


class Consumer:
    """Adds a batch up: with weights by place, so that another order gives another sum."""

    def __init__(self, gpu, shape):
        self.gpu = gpu
        if TORCH:
            self.weights = TORCH.arange(1, int(np.prod(shape)) + 1, dtype=TORCH.float32, device="cuda" if gpu else "cpu").remainder_(97)
        else:
            self.weights = np.arange(1, int(np.prod(shape)) + 1).astype(np.float32) % 97
        self.sums = []

    def take(self, batch):
        flat = batch.reshape(len(batch), -1)
        if TORCH:
            self.sums.append((flat.to(TORCH.float32) @ self.weights).double().sum())
        else:
            self.sums.append(float((flat.astype(np.float32) @ self.weights).astype(np.float64).sum()))

    def end(self):
        sums = [float(value) for value in self.sums]
        self.sums = []
        return sums


def epoch_dataloader(loader, consumer):
    for batch in loader:
        consumer.take(batch.to("cuda", non_blocking=True) if consumer.gpu else batch)
    return consumer.end()


def epoch_loader(loader, consumer):
    for batch in loader:
        consumer.take(batch["img"])
    return consumer.end()


def timed(name, epoch, epochs, emit, **facts):
    """Median of the epochs behind the first; and the sums of the last."""
    seconds = []
    for number in range(epochs + 1):
        gc.collect()
        begin = time.perf_counter()
        sums = epoch()
        seconds.append(time.perf_counter() - begin)
        emit({"way": name, "epoch": number, "counted": number > 0, "seconds": seconds[-1], **facts})
    counted = seconds[1:]
    median = statistics.median(counted)
    emit({"way": name, "median_s": median, "least_s": min(counted), "most_s": max(counted), "batches": len(sums), **facts})
    print(f"{name:12} {facts}  {median:8.3f} s  ({min(counted):.3f} to {max(counted):.3f})")
    return median, sums


class Bench:
    def __init__(self, arguments, folder, emit):
        self.gpu = bool(TORCH and TORCH.cuda.is_available())
        self.small, self.emit = arguments.small, emit
        self.shape = (3, 16, 16) if self.small else (3, 224, 224)
        self.count = 64 if self.small else arguments.records
        self.batch = 16 if self.small else 256
        self.epochs = 2 if self.small else arguments.epochs
        self.path = os.path.join(folder, "set.tar")
        self.offsets = tar_make(self.path, self.count, self.shape)
        self.consumer = Consumer(self.gpu, self.shape)
        cores = len(os.sched_getaffinity(0))
        self.workers = [0, 2] if self.small else [number for number in (0, 2, 4, 8, 16) if number <= max(cores, 2)]

    def dataloader(self, name, workers):
        options = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
        loader = TORCH.utils.data.DataLoader(Records(self.path, self.offsets, self.shape), self.batch, num_workers=workers,
                                             pin_memory=self.gpu, **options)
        result = timed(name, lambda: epoch_dataloader(loader, self.consumer), self.epochs, self.emit, workers=workers)  # noqa: F821
        del loader
        gc.collect()
        return result

    def loader(self):
        convert = TORCH.from_dlpack if TORCH else np.asarray
        loader = lade.Loader(self.path, self.batch, fields="img", device="cuda:0" if self.gpu else "cpu", convert=convert,
                             layout={"img": ("uint8", self.shape)})
        result = timed("loader", lambda: epoch_loader(loader, self.consumer), self.epochs, self.emit)
        loader.close()
        return result

    def pinned(self, workers):
        import lade.torch

        lade.torch.install_pinned()
        try:
            return self.dataloader("pinned", workers)
        finally:
            lade.torch.uninstall_pinned()

    def rounds(self, workers):
        """PyTorch's pinned memory and lade's in turn: the medians of the rounds, and the sums of the last."""
        ways = {"dataloader": lambda: self.dataloader("dataloader", workers)}
        if self.gpu:
            ways["pinned"] = lambda: self.pinned(workers)
        taken = {name: [] for name in ways}
        for _ in range(1 if self.small else 3):
            for name, way in ways.items():
                taken[name].append(way())
        return {name: (statistics.median(median for median, _ in runs), runs[-1][1]) for name, runs in taken.items()}

    def run(self):
        results = {}
        if TORCH:
            by_workers = {workers: self.dataloader("dataloader", workers)[0] for workers in self.workers}
            results.update(self.rounds(min(by_workers, key=by_workers.get)))
        results["loader"] = self.loader()
        same = all(sums == results["loader"][1] for _, sums in results.values())
        base = results.get("dataloader", results["loader"])[0]
        self.emit({"sums_equal": same, "records": self.count, "bytes": self.count * int(np.prod(self.shape)),
                   "times_faster": {name: base / median for name, (median, _) in results.items()}})
        print("sums equal" if same else "SUMS DIFFER", {name: round(base / median, 2) for name, (median, _) in results.items()})
        return 0 if same else 1


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--folder")
    parser.add_argument("--records", type=int, default=20000)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    if not arguments.small and not (TORCH and TORCH.cuda.is_available()):
        print("needs PyTorch and a GPU", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, open(arguments.out or os.devnull, "w") as out:
        return Bench(arguments, folder, lambda row: print(json.dumps(row), file=out, flush=True)).run()


if __name__ == "__main__":
    sys.exit(main())
