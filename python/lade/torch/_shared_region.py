# SPDX-License-Identifier: Apache-2.0
"""Pinned memory that the ranks of a torch.distributed group share: what offloaded modules have on the host, once for all of them.

Rank 0 makes a memory file, the others map it by its path in /proc. Each rank's pool pins the mapping; the budget counts it once. The
file has no name and goes with its last mapping, so a rank that dies leaves it to the others.

Ranks agree: what fails in one fails in all, and no rank goes on alone.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

import lade


class Region:
    """A rank's mapping. Blocks are cut off it one after the other, the same ones in all ranks."""

    def __init__(self, group: Any) -> None:
        self.rank, self._group = dist.get_rank(group), group
        if self.rank < 0:
            raise lade.InvalidArgumentError("group is one without this process; expected one that it is in")
        self._ranks = dist.get_world_size(group)
        self._adopted: Any = None
        self._device: Any = None
        self._memory: Any = None
        self._used = 0

    def _exchange(self, mine: Any) -> list[Any]:
        found: list[Any] = [None] * self._ranks
        dist.all_gather_object(found, mine, group=self._group)
        return found

    @contextlib.contextmanager
    def agreed(self) -> Iterator[None]:
        """All ranks come to the end of the block, or it fails in all."""
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
        texts = self._exchange(error and f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        failed = next((rank for rank, text in enumerate(texts) if text is not None), None)
        if failed is not None:
            raise lade.PeerError(f"rank {failed} of the group failed: {texts[failed]}")

    def map(self, layout: Any, nbytes: int, pool: lade.PinnedPool, device: Any) -> None:
        """All ranks call it. `layout` says what blocks there will be."""
        self._device = device
        file = -1
        try:
            with self.agreed():
                if self.rank == 0:
                    file = os.memfd_create("lade offload", os.MFD_CLOEXEC)
                    os.ftruncate(file, nbytes)
            found = self._exchange((layout, f"/proc/{os.getpid()}/fd/{file}"))
            with self.agreed():
                other = next((rank for rank, (its, _) in enumerate(found) if its != found[0][0]), None)
                if other is not None:
                    raise lade.InvalidArgumentError(
                        f"group: rank {other} has other layers, bytes or types than rank 0; expected the same module and arguments in all ranks"
                    )
                if self.rank != 0:
                    file = self._open(found[0][1])
                self._memory = mmap.mmap(file, nbytes)
                self._adopted = pool.adopt(self._memory)
        finally:
            if file >= 0:
                os.close(file)

    def _open(self, path: str) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise lade.UnsupportedError(
                f"group: rank {self.rank} does not reach rank 0's memory, {path} ({error.strerror}); expected ranks of one host, user and PID namespace"
            ) from None

    def block(self, nbytes: int) -> memoryview:
        begin, self._used = self._used, self._used + nbytes
        return memoryview(self._memory)[begin : self._used]

    def __del__(self) -> None:
        """The mapping stays with its last tensor, the pin does not: no copy may be under way."""
        if self._adopted is not None:
            with contextlib.suppress(lade.Error):
                self._device.synchronize()
                self._adopted.close()
