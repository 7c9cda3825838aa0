#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast lade.safetensors brings a checkpoint to the GPU: 8 GiB from the page cache, 1 GiB from the disk, 20,000 tensors, and numbers of
F32 that become BF16 on the way; by load_file(), and as "lade into" by load_into(), as "lade iterate" by iterate().

Baselines in the same run, in turn with it: safetensors.torch.load_file(), the prefetch() of safetensors 0.9 or later with 8 and 16 threads,
fastsafetensors (0.3 or later) and instanttensor where they are installed (a row "left_out" says what is not), and two limits: the link (a copy of pinned memory), and the page cache (threads that
pread the file into pinned memory and leave it there). Every way loads once before; the values are compared with those of the
safetensors package then. Figures are medians of the rounds, with the least and the most, in seconds from the call until the GPU has
all; cpu_s is the processor time of the process in them. Each load is shown when it is over.
  warm    the file is in the page cache
  direct  the file is not in the page cache (dropped before each load); "lade" goes past it by its own choice, "lade cached" through it
  many    tensors of 32 to 96 KiB, in the page cache; "lade numpy", "lade buffers": other frameworks' (numpy without a GPU, else cupy);
          "phases" are those of a load by lade: the file opened, reads begun, names, tensors made while bytes move, and what is left of the
          bytes; and those of a load into tensors: these read, the file opened (which load_into() does meanwhile), names matched, reads
          begun, what is left of the bytes
  fp32    the file has F32, the GPU gets BF16; "lade F32" leaves the numbers as they are, "lade, then to" converts them with PyTorch.
          Bytes are those of the file
Of iterate() no tensor is kept; "reserved_peak_bytes" is the device memory that it had at most.

A mode ends after --seconds: a load of lade that is under way then is given up, one of others is the last. Medians are of the loads
that were over, and the row "ended" tells that there were fewer.

usage: benchmarks/python/load_file.py [--small] [--out FILE] [--folder DIR] [--gib N] [--direct-gib N] [--many N]
                                         [--fp32-gib N] [--way NAME]... [--rounds N] [--seconds N]
  --small       32 MiB and two rounds, also without a GPU or PyTorch: to see that it runs; worth no figure
  --folder      where the file is made, and removed; a temporary folder without it
  --gib         size of the file that is read warm (8); 0: not read
  --direct-gib  size of the file that is read from the disk (1); 0: not read
  --many        tensors in the file of many (20000); 0: not read
  --fp32-gib    size of the file of F32 (8); 0: not read
  --way         these alone
  --rounds      loads of each way in each mode (5)
  --seconds     bound of each mode (120)
exit status: 0; 1 where values differ; 77 without PyTorch and a GPU (not with --small)
"""

import argparse
import concurrent.futures
import gc
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time

import lade
import lade.safetensors
from lade.safetensors import _into

MIB = 1 << 20
WIDTHS = {"BF16": 2, "F32": 4}


def module(name):
    try:
        return __import__(name, fromlist=["*"])
    except ImportError:
        return None


def checkpoint_make(path, total, dtype="BF16"):
    """Tensors as a model of language has them, with small ones between."""
    large = 32 * MIB if total >= 256 * MIB else 2 * MIB
    counts = [("weight", large // WIDTHS[dtype]), ("norm", 4096)]
    layers = -(-total // sum(WIDTHS[dtype] * count for _, count in counts))
    tensors = [(f"layers.{index}.{name}", [count // 1024, 1024]) for index in range(layers) for name, count in counts]
    return tensors_write(path, tensors, dtype)


def many_make(path, count):
    """Tensors of 32 to 96 KiB, as of many experts or adapters."""
    draw = random.Random(5)
    return tensors_write(path, [(f"experts.{i // 8}.{i % 8}.lora.weight", [draw.randrange(16, 49), 1024]) for i in range(count)])


def tensors_write(path, tensors, dtype="BF16"):
    """A file of tensors; no two blocks of bytes are the same. Gives their bytes."""
    header, at = {}, 0
    for name, shape in tensors:
        count = WIDTHS[dtype] * shape[0] * shape[1]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + count]}
        at += count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = bytearray(os.urandom(4 * MIB))
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, at, len(block)):
            block[:8] = begin.to_bytes(8, "little")
            file.write(memoryview(block)[:min(len(block), at - begin)])
        file.flush()
        os.fsync(file.fileno())
    return at


def cache_drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def cache_fill(path):
    piece = bytearray(64 * MIB)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(piece):
            pass


class Bench:
    def __init__(self, arguments, path, total):
        self.path, self.total, self.small, self.wanted = path, total, arguments.small, arguments.way
        self.torch = module("torch")
        self.gpu = bool(self.torch and self.torch.cuda.is_available())
        self.device = lade.device("cuda:0" if self.gpu else "cpu")
        self.pinned = self.there = None
        self.ahead = lade.DeviceAllocator(self.device)

    def model(self):
        """Tensors of BF16 to load into, which stay for the next load."""
        if self.there is None:
            with lade.safetensors.safe_open(self.path, "lade", self.device) as file:
                shapes = {name: file.get_slice(name).get_shape() for name in file.offset_keys()}
            if self.gpu:
                self.there = {name: self.torch.zeros(shape, dtype=self.torch.bfloat16, device="cuda:0") for name, shape in shapes.items()}
            else:
                allocator = lade.DeviceAllocator(self.device)
                self.there = {name: allocator.empty(tuple(shape), "bfloat16") for name, shape in shapes.items()}
        return self.there

    def into(self):
        lade.safetensors.load_into(self.model(), self.path, convert=True)
        return self.there

    def iterate(self, dtype=None):
        for _ in lade.safetensors.iterate(self.path, self.device, framework="lade", dtype=dtype, allocator=self.ahead):
            pass

    def instant(self, into=False):
        with module("instanttensor").safe_open(self.path, framework="pt", device=0, copy=False) as file:
            for name, tensor in file.tensors():
                if into:
                    self.model()[name].copy_(tensor)
        return self.there if into else None

    def left_out(self):
        """Why a peer is not measured, by its name."""
        if not self.gpu:
            return dict.fromkeys(("safetensors prefetch", "fastsafetensors", "instanttensor"), "no GPU")
        gone = {name: "not installed" for name in ("fastsafetensors", "instanttensor") if not module(name)}
        if not hasattr(getattr(module("safetensors"), "safe_open", None), "prefetch"):
            gone["safetensors prefetch"] = "safetensors is older than 0.9"
        return gone

    def ways_fp32(self):
        load, bf16 = lade.safetensors.load_file, getattr(self.torch, "bfloat16", None)
        ways = {"lade": lambda: load(self.path, device=self.device, dtype="BF16"),
                "lade F32": lambda: load(self.path, device=self.device), "lade into": self.into, "lade iterate": lambda: self.iterate("BF16")}
        if self.torch:
            package, place = module("safetensors.torch"), "cuda:0" if self.gpu else "cpu"
            ways["lade, then to"] = lambda: {name: tensor.to(bf16) for name, tensor in load(self.path, device=self.device).items()}
            if package:
                ways["safetensors"] = lambda: {name: tensor.to(bf16) for name, tensor in package.load_file(self.path, device=place).items()}
        if self.gpu and module("instanttensor"):
            ways["instanttensor into"] = lambda: self.instant(into=True)
        if self.gpu:
            ways["link"] = self.link
        ways["page cache"] = self.preads
        return ways

    def synchronize(self):
        if self.gpu:
            self.torch.cuda.synchronize()

    def ways(self, mode):
        """Name: function that loads and gives what must stay alive."""
        direct = mode == "direct"
        if mode == "fp32":
            return self.ways_fp32()
        ways = {"lade": lambda: lade.safetensors.load_file(self.path, device=self.device), "lade into": self.into,
                "lade iterate": self.iterate}
        if direct:
            ways["lade cached"] = lambda: lade.safetensors.load_file(self.path, device=self.device, direct=False)
        if mode == "many":
            other = "cupy" if self.gpu else "numpy"
            if module(other):
                ways["lade " + other] = lambda: lade.safetensors.load_file(self.path, device=self.device, framework=other)
            ways["lade buffers"] = lambda: lade.safetensors.load_file(self.path, device=self.device, framework="lade")
        package = module("safetensors.torch" if self.torch else "safetensors.numpy")
        if package and self.torch:
            ways["safetensors"] = lambda: package.load_file(self.path, device="cuda:0" if self.gpu else "cpu")
        if self.gpu and hasattr(module("safetensors").safe_open, "prefetch"):
            ways["safetensors prefetch 8"] = lambda: self.prefetch(8)
            ways["safetensors prefetch 16"] = lambda: self.prefetch(16)
        if self.gpu and module("fastsafetensors"):
            ways["fastsafetensors"] = lambda: self.fast(direct)
        if self.gpu and module("instanttensor"):
            ways["instanttensor"] = self.instant
            ways["instanttensor into"] = lambda: self.instant(into=True)
        if self.gpu:
            ways["link"] = self.link
        ways["page cache"] = self.preads
        return ways

    def prefetch(self, threads):
        file = module("safetensors").safe_open(self.path, framework="pt", device="cuda:0")
        loader = file.prefetch(device="cuda:0", threads=threads)
        tensors = dict(loader)
        loader.close()
        return tensors

    def fast(self, direct):
        from fastsafetensors import SafeTensorsFileLoader

        os.environ["FASTSAFETENSORS_ODIRECT"] = "1" if direct else "0"
        loader = SafeTensorsFileLoader(None, "cuda:0", nogds=True)
        loader.add_filenames({0: [self.path]})
        buffers = loader.copy_files_to_device()
        tensors = {name: buffers.get_tensor(name) for name in loader.get_keys()}
        return tensors, buffers, loader

    def staging(self):
        if self.pinned is None:
            count = min(self.total, 1 << 30)
            self.pool = lade.PinnedPool(self.device)
            self.pinned = self.pool.empty(count, "uint8")
        return self.pinned

    def link(self):
        source = self.torch.frombuffer(self.staging(), dtype=self.torch.uint8)
        out = self.torch.empty(self.total, dtype=self.torch.uint8, device="cuda:0")
        for begin in range(0, self.total, source.numel()):
            count = min(source.numel(), self.total - begin)
            out[begin:begin + count].copy_(source[:count], non_blocking=True)
        return out

    def preads(self):
        staging = memoryview(self.staging())
        step = 4 * MIB
        fd = os.open(self.path, os.O_RDONLY)
        size = os.fstat(fd).st_size

        def read(begin):
            place = begin % max(len(staging) - step, 1)
            return os.preadv(fd, [staging[place:place + min(step, size - begin, len(staging))]], begin)

        with concurrent.futures.ThreadPoolExecutor(min(16, len(os.sched_getaffinity(0)))) as pool:
            for _ in pool.map(read, range(0, size, step)):
                pass
        os.close(fd)

    def equal(self, name, loaded, wanted):
        """Whether a way gave the values that the safetensors package gives."""
        unlike = ("link", "page cache", "safetensors", "lade buffers", "lade numpy", "lade cupy", "lade F32", "lade iterate", "instanttensor")
        if name in unlike or wanted is None or (name == "lade into" and not self.gpu):
            return None
        tensors = loaded[0] if isinstance(loaded, tuple) else loaded
        return set(tensors) == set(wanted) and all(self.same(tensors[key], wanted[key]) for key in wanted)

    def same(self, left, right):
        """Bit for bit, except which NaN: random bits are no numbers at times."""
        left, right = (tensor.view(self.torch.int16).masked_fill(tensor.isnan(), -1) for tensor in (left, right))
        return left.equal(right)


def release(loaded):
    """What a way gave is over. Loaders of fastsafetensors keep memory of the GPU until they are closed."""
    for each in loaded[1:] if isinstance(loaded, tuple) else ():
        each.close()


class TimeOver(Exception):
    pass


class Bound:
    """Raises TimeOver in this thread's calls when the time is over: by a signal, which a wait of lade sees at once."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def __call__(self, function):
        """Calls it with the signal on. Again each second, where code that is being cleaned up has taken the first."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeOver
        before = signal.signal(signal.SIGALRM, self.ring)
        signal.setitimer(signal.ITIMER_REAL, left, 1)
        try:
            return function()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @staticmethod
    def ring(*_):
        raise TimeOver


def load(bench, way):
    """What a way gives, when the GPU has it."""
    loaded = way()
    bench.synchronize()
    return loaded


def values_compare(bench, mode, ways, bound, emit):
    """The load of each way that comes first. False: values differ."""
    good = True
    wanted = bound(ways["safetensors"]) if "safetensors" in ways else None
    for name, way in ways.items():
        loaded = bound(lambda: load(bench, way))
        same = bench.equal(name, loaded, wanted)
        release(loaded)
        good = good and same is not False
        emit({"mode": mode, "way": name, "values_equal": same})
    return good


def rounds_run(bench, mode, ways, rounds, bound, emit, seconds):
    """Adds the seconds of each load to those of its way."""
    for number in range(rounds):
        for name, way in ways.items():
            gc.collect()
            bound(lambda: (cache_drop if mode == "direct" else cache_fill)(bench.path))
            bench.synchronize()
            begin, cpu_begin = time.perf_counter(), time.process_time()
            loaded = bound(lambda: load(bench, way))
            seconds.setdefault(name, []).append(time.perf_counter() - begin)
            cpu_seconds = time.process_time() - cpu_begin
            release(loaded)
            del loaded
            emit({"mode": mode, "way": name, "round": number, "seconds": seconds[name][-1], "cpu_s": cpu_seconds,
                  "bytes": bench.total})
            print(f"{mode:7} {name:16} {seconds[name][-1]:8.3f} s  round {number + 1} of {rounds}", flush=True)


class Steps:
    """Seconds of each step of loads."""

    def __init__(self, bench):
        self.bench, self.taken, self.times = bench, {}, []

    def begin(self):
        gc.collect()
        self.bench.synchronize()
        self.times = [time.perf_counter()]

    def over(self, name):
        self.times.append(time.perf_counter())
        self.taken.setdefault(name, []).append(self.times[-1] - self.times[-2])

    def all_over(self):
        self.bench.synchronize()
        self.taken.setdefault("all", []).append(time.perf_counter() - self.times[0])
        self.times.append(time.perf_counter())

    def show(self, what, emit):
        for name, list_ in self.taken.items():
            list_ = list_[1:]  # the first is not counted
            median = statistics.median(list_)
            emit({"mode": "many", "phases_of": what, "phase": name, "median_phase_s": median, "least_s": min(list_), "most_s": max(list_)})
            print(f"many    {what} {name:14} {median * 1e3:8.2f} ms ({min(list_) * 1e3:.2f} to {max(list_) * 1e3:.2f})", flush=True)


def phases(bench, rounds, emit):
    """Where the time of a load by lade goes: what load_file() and load_into() do, step by step."""
    loads, into = Steps(bench), Steps(bench)
    for _ in range(rounds + 1):
        loads.begin()
        file = lade.safetensors.safe_open(bench.path, "pt" if bench.torch else "np", bench.device, direct=None if bench.gpu else False)
        loads.over("open")
        tensors = file._load(mark=loads.over)
        loads.all_over()
        del tensors
        loads.over("freed")
    loads.show("load", emit)
    model = bench.model()
    for _ in range(rounds + 1):
        into.begin()
        rows = _into._rows_of(model, _into._read_into, True)
        into.over("tensors read")
        with lade.safetensors.safe_open(bench.path, "lade", bench.device) as file:
            into.over("open")
            fit = file._open_file().fit(rows)
            into.over("names matched")
            target = _into._target_of(rows, file._at.pipeline, file._at.allocator, None, None)
            load = file._open_file().start_into(target[0], rows, fit, _into._decide(False, None), False, None)
            into.over("reads begun")
            load.wait(None)
            into.over("bytes there")
            load.close()
        into.all_over()
    into.show("into", emit)


def measure(bench, mode, rounds, limit, emit):
    ways, seconds, good = bench.ways(mode), {}, True
    ways = {name: way for name, way in ways.items() if not bench.wanted or name in bench.wanted}
    bound = Bound(limit)
    for name, reason in bench.left_out().items():
        emit({"mode": mode, "way": name, "left_out": reason})
    try:
        good = values_compare(bench, mode, ways, bound, emit)
        rounds_run(bench, mode, ways, rounds, bound, emit, seconds)
        if mode == "many":
            bound(lambda: phases(bench, rounds, emit))
    except TimeOver:
        emit({"mode": mode, "ended": limit, "rounds": {name: len(list_) for name, list_ in seconds.items()}})
        print(f"{mode:7} ended after {limit:g} s: the loads above are all", flush=True)
    emit({"mode": mode, "way": "lade iterate", "reserved_peak_bytes": bench.ahead.stats()["reserved_bytes.all.peak"]})
    for name, list_ in seconds.items():
        median = statistics.median(list_)
        emit({"mode": mode, "way": name, "median_s": median, "least_s": min(list_), "most_s": max(list_), "bytes": bench.total,
              "gb_per_s": bench.total / median / 1e9, "times_lade": median / statistics.median(seconds["lade"]) if "lade" in seconds else None})
        print(f"{mode:7} {name:16} {median:8.3f} s  ({min(list_):.3f} to {max(list_):.3f})  {bench.total / median / 1e9:6.2f} GB/s",
              flush=True)
    return good


def measure_file(arguments, mode, size, emit):
    """One mode, with a file of its own."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = os.path.join(folder, "model.safetensors")
        if mode == "many":
            total = many_make(path, 400 if arguments.small else size)
        else:
            total = checkpoint_make(path, 32 * MIB if arguments.small else int(size * (1 << 30)), "F32" if mode == "fp32" else "BF16")
        bench = Bench(arguments, path, total)
        return measure(bench, mode, 2 if arguments.small else arguments.rounds, arguments.seconds, emit)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--folder")
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--direct-gib", type=float, default=1)
    parser.add_argument("--many", type=int, default=20000)
    parser.add_argument("--fp32-gib", type=float, default=8)
    parser.add_argument("--way", action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=120)
    arguments = parser.parse_args()
    torch = module("torch")
    if not arguments.small and not (torch and torch.cuda.is_available()):
        print("needs PyTorch and a GPU", file=sys.stderr)
        return 77
    if not torch and not module("ml_dtypes"):
        print("needs PyTorch, or NumPy and ml_dtypes", file=sys.stderr)
        return 77
    with open(arguments.out or os.devnull, "w") as out:

        def emit(row):
            print(json.dumps(row), file=out, flush=True)

        modes = {"warm": arguments.gib, "direct": arguments.direct_gib, "many": arguments.many, "fp32": arguments.fp32_gib}
        good = [measure_file(arguments, mode, size, emit) for mode, size in modes.items() if size > 0]
    lade.safetensors.release()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
