# SPDX-License-Identifier: Apache-2.0
"""Pipelines and allocators of devices, kept for the next call."""

from __future__ import annotations

import collections
import os
import threading

import lade
from lade import _lade
from lade._arguments import take
from lade.safetensors._format import _error


_KEPT_DEVICES = 8

_Stage = collections.namedtuple("_Stage", "device pipeline allocator local_ranks")
_stages: collections.OrderedDict = collections.OrderedDict()
_stages_lock = threading.RLock()  # signals' handlers may load, and release


def _drop_in_child():
    """A forked child has none of its parent's pipelines, and its lock may be held by a thread that is gone."""
    global _stages, _stages_lock
    _stages, _stages_lock = collections.OrderedDict(), threading.RLock()


os.register_at_fork(after_in_child=_drop_in_child)


def release() -> None:
    """Give back the pipelines, pinned memory and cached device memory that are kept for the next call.

    Memory of tensors that are alive stays theirs.
    """
    with _stages_lock:
        gone = list(_stages.values())
        _stages.clear()
    del gone


def _device_from(device):
    if isinstance(device, lade.Device):
        return device
    text = str(device)
    if isinstance(device, int) and not isinstance(device, bool):
        text = f"cuda:{device}"
    kind, _, ordinal = text.partition(":")
    if kind not in ("cuda", "cpu") or (ordinal and not ordinal.isdecimal()) or text.endswith(":"):
        raise _error(f"device {text} is invalid")
    return lade.device(text)


def _stage(device, pipeline, allocator, local_ranks):
    """What a load goes through: what was passed, else what is kept for the device, which is made when it is first needed."""
    take("pipeline", pipeline, _lade.Pipeline, "a lade.Pipeline", optional=True)
    take("allocator", allocator, _lade.DeviceAllocator, "a lade.DeviceAllocator", optional=True)
    if pipeline is not None and local_ranks is not None:
        raise lade.InvalidArgumentError(f"local_ranks is {local_ranks!r}; expected None with a pipeline, which has its own")
    if pipeline is not None and allocator is not None:
        return _Stage(pipeline.device, pipeline, allocator, None)
    device = pipeline.device if pipeline is not None else _device_from(device)
    with _stages_lock:
        kept = _stages.get(device, _Stage(device, None, None, None))
        if pipeline is None and (kept.pipeline is None or kept.pipeline.closed or local_ranks not in (None, kept.local_ranks)):
            kept = kept._replace(pipeline=lade.Pipeline(device, local_ranks=local_ranks), local_ranks=local_ranks or 1)
        if allocator is None and kept.allocator is None:
            kept = kept._replace(allocator=lade.DeviceAllocator(device))
        _stages[device] = kept
        while len(_stages) > _KEPT_DEVICES:
            _stages.popitem(last=False)
        _stages.move_to_end(device)
    return kept._replace(pipeline=pipeline or kept.pipeline, allocator=allocator or kept.allocator)
