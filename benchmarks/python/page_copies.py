#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast do pages of a paged cache go out to pinned memory and come back? lade.copy_blocks, and what else does it.

Pages of all layers, at random places of the device's cache, go to as many places of a larger store in pinned memory (`out`), and back
(`in`), all ways in turn in one process, on one stream. A time is that of the call and of the wait for the stream; the pages are compared
once for each way. PyTorch's tensors are the memory of all of them.

  lade         lade.copy_blocks, ids on the host
  torch        indexing: a gather on the device and one copy, and the scatter on the host; for `in` the other way round
  copy_batch   cuMemcpyBatchAsync by cuda.core; its lists of buffers are made before
  lmcache      LMCache's multi_layer_kv_transfer, a token at a time. Its store has the pages one after another: `lmcache` reads and writes
               it over the link, `lmcache staged` by a buffer on the device, as LMCache does with `use_gpu`

usage: benchmarks/python/page_copies.py [--small] [--rounds N] [--out FILE]
  --small   seconds, without PyTorch or a GPU on a software device, lade alone: to see that it runs; worth no figure
  --rounds  of each way (15)
  --out     one JSON object a line: measured, what, direction, page_bytes, pages, unit, median, least, most; standard output without it
exit status: 0; 77 without PyTorch or a GPU (not with --small)
"""

import argparse
import importlib.machinery
import importlib.util
import json
import pathlib
import statistics
import sys
import time

import numpy

import lade

LAYERS, TOKENS = 4, 16  # TOKENS: of a page
SHAPES = [(4 << 10, 16384, 4096), (16 << 10, 4096, 1024), (64 << 10, 2048, 512)]  # bytes, pages of a layer, how many move


def left_out(name, error):
    print(f"page_copies: {name} is left out: {type(error).__name__}: {error}", file=sys.stderr)


class World:
    """Tensors of PyTorch: a cache on the device and a store in pinned memory, a layer each."""

    def __init__(self, page_bytes, pages, moved):
        import torch

        self.torch, self.page_bytes, self.moved = torch, page_bytes, moved
        self.stream = torch.cuda.Stream()
        self.cache = [torch.randint(0, 256, (pages, page_bytes), dtype=torch.uint8, device="cuda") for _ in range(LAYERS)]
        self.store = [torch.zeros((2 * pages, page_bytes), dtype=torch.uint8).pin_memory() for _ in range(LAYERS)]
        order = numpy.random.default_rng(1)
        self.pages, self.slots = order.permutation(pages)[:moved], order.permutation(2 * pages)[:moved]
        self.cache_ids, self.store_ids = torch.from_numpy(self.pages), torch.from_numpy(self.slots)
        self.true = [layer[self.cache_ids.cuda()].cpu() for layer in self.cache]
        torch.cuda.synchronize()

    def wait(self):
        self.stream.synchronize()

    def check(self, name, ways):
        """Out, wiped, in: the pages are the same again; and what is in the store in between is theirs."""
        out, back, stored = ways
        out()
        self.wait()
        for have, true in zip(stored(), self.true):
            assert self.torch.equal(have.view(self.torch.uint8).reshape(true.shape), true), f"{name}: other bytes went out"
        for layer in self.cache:
            layer[self.cache_ids.cuda()] = 0
        self.torch.cuda.synchronize()
        back()
        self.wait()
        for layer, true in zip(self.cache, self.true):
            assert self.torch.equal(layer[self.cache_ids.cuda()].cpu(), true), f"{name}: other bytes came back"

    def in_slots(self):
        return [layer[self.store_ids] for layer in self.store]


def by_lade(world):
    device = lade.device()
    lade.copy_prepare(device)
    return (lambda: lade.copy_blocks(device, world.store, world.cache, world.slots, world.pages, world.stream),
            lambda: lade.copy_blocks(device, world.cache, world.store, world.pages, world.slots, world.stream), world.in_slots)


def by_torch(world):
    torch = world.torch

    def out():
        with torch.cuda.stream(world.stream):
            for store, cache in zip(world.store, world.cache):
                store[world.store_ids] = cache[world.cache_ids.cuda()].cpu()

    def back():
        with torch.cuda.stream(world.stream):
            for store, cache in zip(world.store, world.cache):
                cache[world.cache_ids.cuda()] = store[world.store_ids].cuda()

    return out, back, world.in_slots


def by_copy_batch(world):
    import cuda.core
    from cuda.core.utils import copy_batch

    cuda.core.Device(0).set_current()
    stream = cuda.core.Stream.from_handle(world.stream.cuda_stream)

    def buffers(layers, ids):
        return [cuda.core.Buffer.from_handle(layer.data_ptr() + int(index) * world.page_bytes, world.page_bytes, owner=layer)
                for layer in layers for index in ids]

    slots, pages = buffers(world.store, world.slots), buffers(world.cache, world.pages)
    return (lambda: copy_batch(stream, pages, slots)), (lambda: copy_batch(stream, slots, pages)), world.in_slots


def lmcache_functions():
    """LMCache's compiled functions, without its package, which imports a server's dependencies."""
    found = importlib.util.find_spec("lmcache")
    if found is None:
        raise ImportError("LMCache is not installed")
    for folder in found.submodule_search_locations:
        for path in sorted(pathlib.Path(folder).glob("c*_ops.*.so")):
            name = path.name.split(".")[0]
            spec = importlib.util.spec_from_file_location(name, path, loader=importlib.machinery.ExtensionFileLoader(name, str(path)))
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise ImportError("LMCache has no compiled functions")


def by_lmcache(world, staged):
    torch, functions = world.torch, lmcache_functions()
    tokens, width = world.moved * TOKENS, world.page_bytes // TOKENS // 2
    store = torch.zeros((1, LAYERS, tokens, width), dtype=torch.bfloat16).pin_memory()
    buffer = torch.empty_like(store, device="cuda") if staged else store
    pointers = torch.tensor([layer.data_ptr() for layer in world.cache], dtype=torch.int64, device="cuda")
    token_ids = (world.cache_ids[:, None] * TOKENS + torch.arange(TOKENS)).flatten().cuda()
    torch.cuda.synchronize()

    def move(direction):
        functions.multi_layer_kv_transfer(buffer, pointers, token_ids, world.cache[0].device, len(world.cache[0]) * TOKENS, direction,
                                          functions.EngineKVFormat.NL_X_NB_BS_HS, block_size=TOKENS, head_size=width)

    def out():
        with torch.cuda.stream(world.stream):
            move(functions.TransferDirection.D2H)
            if staged:
                store.copy_(buffer, non_blocking=True)

    def back():
        with torch.cuda.stream(world.stream):
            if staged:
                buffer.copy_(store, non_blocking=True)
            move(functions.TransferDirection.H2D)

    return out, back, lambda: [store[0, layer] for layer in range(LAYERS)]


WAYS = {"lade": by_lade, "torch": by_torch, "copy_batch": by_copy_batch, "lmcache": lambda world: by_lmcache(world, False),
        "lmcache staged": lambda world: by_lmcache(world, True)}


def rate(world, move):
    """GB/s of one move."""
    begun = time.perf_counter()
    move()
    world.wait()
    return LAYERS * world.moved * world.page_bytes / (time.perf_counter() - begun) * 1e-9


def measure(rounds):
    for page_bytes, pages, moved in SHAPES:
        world, ways = World(page_bytes, pages, moved), {}
        for name, make in WAYS.items():
            try:
                ways[name] = make(world)
                world.check(name, ways[name])
            except AssertionError:
                raise
            except Exception as error:  # what is not installed, or another version of it
                ways.pop(name, None)
                left_out(name, error)
        names = list(ways)
        for number, direction in enumerate(("out", "in")):
            found = {name: [] for name in names}
            for turn in range(rounds):
                for step in range(len(names)):
                    name = names[(turn + step) % len(names)]
                    found[name].append(rate(world, ways[name][number]))
            for name in names:
                yield row(name, direction, page_bytes, moved, found[name])


def row(name, direction, page_bytes, moved, values):
    return {"measured": "page_copies", "what": name, "direction": direction, "page_bytes": page_bytes, "pages": LAYERS * moved, "unit": "GB/s",
            "median": statistics.median(values), "least": min(values), "most": max(values)}


def measure_small():
    """On a software device, whose memory is NumPy's."""
    device = lade.software_device(clock="cpu")
    stream, pool, allocator = device.stream(), lade.PinnedPool(device), lade.DeviceAllocator(device)
    cache, store = allocator.empty((64, 4096), "uint8", stream), pool.empty((128, 4096), "uint8")
    lade.fill_async(device, cache, 7, stream)
    slots = numpy.random.default_rng(1).permutation(128)[:32]
    begun = time.perf_counter()
    lade.copy_blocks(device, store, cache, slots, numpy.arange(32), stream)
    stream.synchronize()
    assert (numpy.asarray(store)[slots] == 7).all()
    yield row("lade", "out", 4096, 32, [32 * 4096 / (time.perf_counter() - begun) * 1e-9])


def has_gpu():
    try:
        import torch

        return torch.cuda.is_available()
    except ImportError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=argparse.FileType("w"), default=sys.stdout)
    options = parser.parse_args()
    if not options.small and not has_gpu():
        return 77
    for figures in measure_small() if options.small else measure(options.rounds):
        options.out.write(json.dumps(figures) + "\n")
        options.out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
