# SPDX-License-Identifier: Apache-2.0
"""lade's device memory as a memory resource of RMM.

::

    import rmm, lade.rmm

    rmm.mr.set_current_device_resource(lade.rmm.resource())

What RAPIDS allocates then comes from lade's cache. The resource is RMM's CallbackMemoryResource, which calls Python for each
allocation: a microsecond or two more than a resource in C++. Adaptors of RMM (statistics, limits, logging) go on top of it.

Memory of the default streams is reused by stream order, at once. Memory of other streams is reused when the work that was queued
before its free is over: RMM does not say when a stream is destroyed, and lade keeps no handle of one that may be gone. So a program that
allocates and frees on such a stream, far ahead of the device, takes new memory each time, up to ``max_bytes`` of the allocator or what
the device has; from there on an allocation waits for frees.
"""

from __future__ import annotations

from typing import Any

import lade
from lade import _lade
from lade._third_party import require

__all__ = ["resource"]

_OLDEST = "25.12"  # the first whose streams tell their handle to Python
_NEEDED = {"rmm.mr": ["CallbackMemoryResource"], "rmm.pylibrmm.stream": ["Stream"]}


def _allocator_from(device: Any) -> lade.DeviceAllocator:
    if not isinstance(device, lade.DeviceAllocator):
        return lade.DeviceAllocator(device, event_batch=1)
    settings = device.settings().split(",")
    if "backend:cudaMallocAsync" in settings:
        # Its blocks are ready for the stream that they were allocated on, in the order of that: of RMM's streams none is (rmm_calls.h, M2).
        raise lade.InvalidArgumentError("the allocator's backend is cudaMallocAsync; expected native: for the driver's pool, RMM has "
                                        "rmm.mr.CudaAsyncMemoryResource")
    if "device_event_batch:1" not in settings:
        raise lade.InvalidArgumentError("the allocator records events after the frees, when RMM may have destroyed the stream; "
                                        "expected lade.DeviceAllocator(..., event_batch=1)")
    return device


def resource(device: lade.DeviceAllocator | lade.Device | int | str | None = None) -> Any:
    """A memory resource for RMM that allocates from lade.

    Parameters
    ----------
    device : lade.DeviceAllocator, lade.Device, int or str
        An allocator of backend ``native`` with ``event_batch=1``, or the device to make one for, with default settings except for that. None: the first GPU.
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
        The allocator has another ``event_batch``: it would name streams that RMM has destroyed. Or another backend: memory would be
        used before the stream that had it is done.
    """
    rmm = require("rmm", _OLDEST, _NEEDED)
    if not hasattr(rmm.pylibrmm.stream.Stream, "__cuda_stream__"):
        raise ImportError(f"lade cannot serve rmm {rmm.__version__}: its streams have no __cuda_stream__", name="rmm")
    allocator = _allocator_from(device)
    blocks = _lade._RmmBlocks(allocator, allocator.device.stream())
    return rmm.mr.CallbackMemoryResource(blocks.allocate, blocks.deallocate)
