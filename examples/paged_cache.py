# SPDX-License-Identifier: Apache-2.0
"""Pages of a paged cache go out to pinned memory and come back, as when a server makes room for another request.

usage: paged_cache.py [--software]

Prints GB/s of lade.copy_blocks; benchmarks/python/page_copies.py measures it beside other ways.
"""

import argparse
import time

import numpy

import lade

PAGES, PAGE, LAYERS, MOVED = 4096, 16384, 4, 1024


def rate(stream, move):
    """GB/s of moving the pages of all layers."""
    move()
    stream.synchronize()
    begun = time.perf_counter()
    for _ in range(10):
        move()
    stream.synchronize()
    return 10 * LAYERS * MOVED * PAGE / (time.perf_counter() - begun) * 1e-9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--software", action="store_true", help="on lade's software device")
    device = lade.software_device() if parser.parse_args().software else lade.device()
    lade.copy_prepare(device)  # at the start, as it waits for the device
    stream = device.stream()
    pool, allocator = lade.PinnedPool(device), lade.DeviceAllocator(device)
    cache = [allocator.empty((PAGES, PAGE), "uint8", stream) for _ in range(LAYERS)]
    store = [pool.empty((2 * PAGES, PAGE), "uint8") for _ in range(LAYERS)]
    order = numpy.random.default_rng(1)
    pages, slots = order.permutation(PAGES)[:MOVED], order.permutation(2 * PAGES)[:MOVED]
    for layer, pinned in zip(cache, store):
        numpy.asarray(pinned)[...] = 0
        lade.fill_async(device, layer, 7, stream)
    print(f"out: {rate(stream, lambda: lade.copy_blocks(device, store, cache, slots, pages, stream)):.1f} GB/s")
    print(f"in:  {rate(stream, lambda: lade.copy_blocks(device, cache, store, pages, slots, stream)):.1f} GB/s")
    assert all((numpy.asarray(pinned)[slots] == 7).all() for pinned in store)
    print({key: value for key, value in lade.copy_stats(device).items() if key.startswith(("kernel_p", "engine_p", "engine_f"))})


if __name__ == "__main__":
    main()
