# SPDX-License-Identifier: Apache-2.0
"""lade's device memory as a memory resource of RMM.

::

    import rmm, lade.rmm

    rmm.mr.set_current_device_resource(lade.rmm.resource())

What RAPIDS allocates then comes from lade's cache. The resource is RMM's CallbackMemoryResource, which calls Python for each
allocation: a microsecond or two more than a resource in C++. Adaptors of RMM (statistics, limits, logging) go on top of it.

Memory of the default streams is reused by stream order, at once. Memory of other streams is reused when the work that was queued
before its free is over: RMM does not say when a stream is destroyed, and lade keeps no handle of one that may be gone.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import lade
from lade._third_party import require

__all__ = ["resource"]

_OLDEST = "25.12"  # the first whose streams tell their handle to Python
_NEEDED = {"rmm.mr": ["CallbackMemoryResource"], "rmm.pylibrmm.stream": ["Stream"]}
_DEFAULT_STREAMS = (0, 1, 2)  # NULL, legacy, per thread: they live as long as the process


class _Blocks:
    """The two callables behind a resource.

    I1  A block that RMM has is in `_blocks`, under its address, and nowhere else: the free of that address lets go of it.
    I2  No block is of a stream that somebody else may destroy: it is of a default one, or of `_own`, on which nothing is queued. What
        runs on other streams is recorded by an event within the free (event_batch 1), while RMM promises that they live.
    Locks: none of its own. A dict's insertions and removals are whole, and an address has one owner at a time.
    """

    def __init__(self, allocator: lade.DeviceAllocator) -> None:
        self._allocator = allocator
        self._blocks: dict[int, lade.DeviceBuffer] = {}
        self._own = allocator.device.stream()

    def allocate(self, nbytes: int, stream: Any) -> int:
        lives = stream.__cuda_stream__()[1] in _DEFAULT_STREAMS
        block = self._allocator.alloc(nbytes, stream if lives else self._own)
        if block.ptr:
            self._blocks[block.ptr] = block
        return int(block.ptr)

    def deallocate(self, pointer: int, nbytes: int, stream: Any) -> None:
        """RMM calls it from destructors, where an error ends the process: it is printed. What could not be freed stays in use."""
        if not pointer:
            return
        try:
            # RMM promises order after this stream's work, whatever stream the block was made on.
            self._allocator.record_stream(self._blocks[pointer], stream)
            del self._blocks[pointer]
        except KeyError:
            print(f"lade.rmm: free of {pointer:#x}, which this resource did not give: ignored", file=sys.stderr)
        except Exception:
            print(f"lade.rmm: {nbytes} bytes at {pointer:#x} could not be freed and stay in use:", file=sys.stderr)
            traceback.print_exc()


def _allocator_from(device: Any) -> lade.DeviceAllocator:
    if not isinstance(device, lade.DeviceAllocator):
        return lade.DeviceAllocator(device, event_batch=1)
    if "device_event_batch:1" not in device.settings().split(","):
        raise lade.InvalidArgumentError("the allocator records events after the frees, when RMM may have destroyed the stream; "
                                        "expected lade.DeviceAllocator(..., event_batch=1)")
    return device


def resource(device: lade.DeviceAllocator | lade.Device | int | str | None = None) -> Any:
    """A memory resource for RMM that allocates from lade.

    Parameters
    ----------
    device : lade.DeviceAllocator, lade.Device, int or str
        An allocator with ``event_batch=1``, or the device to make one for, with default settings but for that. None: the first GPU.
        As with any resource of RMM, set it for that device alone, while that device is current.

    Returns
    -------
    rmm.mr.CallbackMemoryResource
        It holds the allocator. Memory may be freed on any thread and stream; it is reused after the work queued on that stream.

    Raises
    ------
    ImportError
        RMM is not installed, or is one that lade does not serve; the text has the version.
    lade.NoDeviceError
        There is no such device.
    lade.InvalidArgumentError
        The allocator has another ``event_batch``: it would name streams that RMM has destroyed.
    """
    rmm = require("rmm", _OLDEST, _NEEDED)
    if not hasattr(rmm.pylibrmm.stream.Stream, "__cuda_stream__"):
        raise ImportError(f"lade cannot serve rmm {rmm.__version__}: its streams have no __cuda_stream__", name="rmm")
    blocks = _Blocks(_allocator_from(device))
    return rmm.mr.CallbackMemoryResource(blocks.allocate, blocks.deallocate)
