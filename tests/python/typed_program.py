# SPDX-License-Identifier: Apache-2.0
"""A program as users write it, for mypy --strict: the package's types serve it. Not run."""

import lade


def pinned(device: lade.Device) -> lade.Buffer:
    pool = lade.PinnedPool(device, max_bytes=1 << 30, sources=["register", "driver"])
    buffer = pool.empty((3, 4), "float32")
    stream = device.stream()
    pool.record(buffer, stream)
    pool.record(buffer, 0)
    pool.record(memoryview(buffer), None)
    stats: dict[str, int] = pool.stats()
    size: int = buffer.nbytes + stats["reserved_bytes.current"]
    print(size, buffer.shape, len(buffer))
    return buffer


def on_device(device: lade.Device) -> lade.DeviceBuffer:
    with lade.DeviceAllocator(device, expandable_segments=True) as allocator:
        return allocator.empty(10, float, device.stream())


def failure() -> int:
    try:
        pinned(lade.device("cuda:0"))
    except lade.LimitError as error:
        return error.status
    except (lade.Error, MemoryError):
        pass
    return 0
