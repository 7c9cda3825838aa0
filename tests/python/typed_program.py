# SPDX-License-Identifier: Apache-2.0
"""A program as users write it, for mypy --strict: the package's types serve it. Not run."""

import pathlib
from typing import Any, assert_type

import lade
import lade.safetensors
import numpy.typing


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


def checkpoints(path: pathlib.Path) -> None:
    arrays = lade.safetensors.load_file(path, lade.device(), framework="np", tensors=["a"])
    assert_type(arrays, dict[str, numpy.typing.NDArray[Any]])
    with lade.safetensors.safe_open(path, "np", direct=False) as file:
        assert_type(file.get_tensor("a"), numpy.typing.NDArray[Any])
        assert_type(file.get_slice("a")[1:2], numpy.typing.NDArray[Any])
    with lade.safetensors.safe_open(path, device="cuda:0") as other:
        assert_type(other.get_tensor("a"), lade.safetensors.Tensor)
        print(other.get_tensor("a").shape, other.metadata())
    assert_type(lade.safetensors.load_file(path, framework="lade"), dict[str, lade.DeviceView])
    assert_type(lade.safetensors.save_file(arrays, path, wait=False), lade.safetensors.Save)
    lade.safetensors.save_file(arrays, path, max_shard_size="5GB")
    assert_type(lade.safetensors.save(arrays), bytes)


def batches(path: str) -> lade.Batch:
    loader = lade.Loader([path], 8, fields="img,cls", epochs=2, convert=numpy.asarray)
    for batch in loader:
        print(batch["img"], batch.keys(), loader.state_dict())
    return next(loader)


def watched(pool: lade.PinnedPool) -> lade.Snapshot:
    pool.record_history(100, stacks=True)
    with lade.publish(pool, interval=0.5) as publisher:
        publisher.update()
    pool.snapshot("a.html")
    lade.Pipeline(lade.Stream("cpu").device).copy(pool.empty(3), b"abc").wait()
    assert_type(pool.empty(3).numpy(), numpy.typing.NDArray[Any])
    return pool.snapshot()
