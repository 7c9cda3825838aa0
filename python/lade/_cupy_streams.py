# SPDX-License-Identifier: Apache-2.0
"""CuPy's streams that lade's memory is ordered by, kept alive until lade has retired them.

CuPy destroys a stream with its Python object, and cannot be told to ask first. A driver may crash on the handle of a stream
that is gone, and lade names a stream for as long as it has memory of it. So this holds the object:

K1  A stream of CuPy's own is held from before its first use for lade's memory, so that its handle is neither destroyed nor given
    to another stream.
K2  A stream is retired on all allocators and pools of its runtime after the last reference of others to it has gone, and its
    object is let go after that. So nothing is queued on it between its retirement and its end.
K3  Where it cannot be retired, because it captures or an allocator is just being closed, it stays until a later look.

Default streams end with the process, and a stream that CuPy has from elsewhere belongs to other code: neither is held.
Locks: `_looking` is held by the one thread that looks for streams to retire, also while allocators wait; no thread waits for it: the others
leave it to a later look. `_adding` guards the list of arenas, and no other lock is taken under it. `held` is changed by single
operations under the GIL.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any, TypeVar

import lade

Arena = TypeVar("Arena", lade.DeviceAllocator, lade.PinnedPool)

_DEFAULT_STREAMS = (0, 1, 2)  # NULL, legacy, per thread


def _references(streams: dict[int, Any], handle: int) -> int:
    """References to a held stream as sys.getrefcount() counts them from here; also those of this function."""
    return sys.getrefcount(streams[handle])


# What it counts where the table alone refers to a stream: that differs between versions of Python.
_OURS = _references({0: object()}, 0)


class Streams:
    """The streams of CuPy in use, and the allocators and pools that may know them."""

    def __init__(self) -> None:
        # Stream objects by handle. Default streams are in it, so that a look into it is all that a known stream costs.
        self.held: dict[int, Any] = dict.fromkeys(_DEFAULT_STREAMS)
        # With the device of each, whose runtime knows it until it is closed: that may be later than its object ends.
        self._arenas: tuple[tuple[weakref.ref[Any], lade.Device], ...] = ()
        self._adding = threading.Lock()
        self._looking = threading.Lock()

    def add_arena(self, arena: Arena) -> Arena:
        """Note an allocator or pool, on which streams are retired as long as it lives. Returns it."""
        with self._adding:
            others = tuple(entry for entry in self._arenas if entry[0]() is not None and entry[0]() is not arena)
            self._arenas = others + ((weakref.ref(arena), arena.device),)
        return arena

    def hold(self, stream: Any) -> None:
        """Hold a stream that is not held yet, if it is one that CuPy destroys (K1). Any thread."""
        owning = sys.modules["cupy.cuda"].Stream
        if isinstance(stream, owning) and getattr(stream, "_foreign_stream_ref", None) is None:  # not Stream.from_external()
            self.held.setdefault(stream.ptr, stream)
            self.retire_unused()

    def retire_unused(self) -> None:
        """Retire the streams that only lade refers to, and let them go (K2, K3). Any thread."""
        if not self._looking.acquire(blocking=False):
            return  # another thread looks; or this one does, and an object that ended on the way has come here
        try:
            for handle in list(self.held):
                if handle not in _DEFAULT_STREAMS and _references(self.held, handle) <= _OURS and self._retire(handle):
                    del self.held[handle]
        finally:
            self._looking.release()

    def _retire(self, handle: int) -> bool:
        """Whether no allocator and no pool needs the stream any more."""
        return all(device._retire_stream(handle) for device in {device for _, device in self._arenas})
