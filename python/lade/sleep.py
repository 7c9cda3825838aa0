# SPDX-License-Identifier: Apache-2.0
"""Device memory that goes back while its program sleeps, at addresses that stay.

::

    pool = lade.SleepPool()
    with pool.use("weights"):
        weights = pool.allocator.empty((4096, 4096), "float16")
    pool.suspend()                    # the bytes wait in pinned memory; others have the device's
    pool.resume()                     # under the same addresses, with the bytes

It is lade_device_pool_suspend() by tags: docs/sleep.md.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lade import _lade
from lade._arguments import take, take_path

if TYPE_CHECKING:
    from lade._lade import DeviceAllocator, DeviceLike

__all__ = ["SleepPool"]

# As settings() writes them.
_NEEDED = ("expandable_segments:True", "device_expandable_pools:True")


def _check_allocator(allocator: DeviceAllocator) -> None:
    settings = allocator.settings().split(",")
    missing = [text for text in _NEEDED if text not in settings]
    if missing:
        raise _lade.UnsupportedError(
            f"the allocator's settings lack {' and '.join(missing)}; memory whose addresses stay is in expandable segments of private pools"
        )


class SleepPool:
    """Device memory by tags; the memory of a tag is there, or is suspended.

    What a thread allocates from the allocator within ``with pool.use(tag)`` is the tag's, through whatever leads to the allocator:
    ``allocator.empty()``, CuPy under ``lade.cupy.install(device=pool.allocator)``. It is used as any other while it is there. Arrays of a
    suspended tag can be dropped at any time; nothing else may touch them, and no graph that uses them may be launched, from the call of
    ``suspend()`` until ``resume()`` has returned. A save that was begun reads them until it is staged.

    A context manager, whose end is ``close()``.

    Parameters
    ----------
    allocator : DeviceAllocator, optional
        With ``expandable_segments=True`` and the flag ``"expandable_private_pools"``. Default: a new one of this kind.
    device : Device, int, str, torch.device or None
        Of the new allocator, as lade.device().

    Raises
    ------
    UnsupportedError
        The allocator has other settings.
    """

    def __init__(self, allocator: DeviceAllocator | None = None, *, device: DeviceLike = None) -> None:
        take("allocator", allocator, _lade.DeviceAllocator, "a lade.DeviceAllocator", optional=True)
        if allocator is None:
            allocator = _lade.DeviceAllocator(device, expandable_segments=True, flags=("expandable_private_pools",))
        elif device is not None:
            raise TypeError("an allocator has its device already: give either allocator or device")
        _check_allocator(allocator)
        self._allocator = allocator
        self._lock = threading.Lock()  # guards what follows
        self._pools: dict[str, Any] = {}
        self._files: dict[str, str] = {}  # of suspended tags, by the name that the user gave
        self._turns: dict[str, Any] = {}  # of each tag: held while it is suspended or resumed, and its file named or removed
        self._pipeline: _lade.Pipeline | None = None

    @property
    def allocator(self) -> DeviceAllocator:
        """Where the memory is from."""
        return self._allocator

    def _make(self, tag: str) -> Any:
        """The native pool of a new tag. With the lock."""
        return _lade._DevicePool(self._allocator)

    def _pool(self, tag: str) -> Any:
        take("tag", tag, str, "a str")
        with self._lock:
            if tag not in self._pools:
                self._pools[tag] = self._make(tag)
            return self._pools[tag]

    def _turn(self, tag: str) -> Any:
        with self._lock:
            return self._turns.setdefault(tag, threading.RLock())

    def _chosen(self, tags: tuple[str, ...], suspended: bool) -> list[tuple[str, Any]]:
        """Those that are named, else all in that state."""
        with self._lock:
            known = dict(self._pools)
        for tag in tags:
            take("tag", tag, str, "a str")
            if tag not in known:
                raise _lade.InvalidArgumentError(f"tag is {tag!r}; expected one that was used: {', '.join(map(repr, known)) or 'there is none'}")
        return [(tag, known[tag]) for tag in dict.fromkeys(tags)] or [each for each in known.items() if each[1].info()[0] == suspended]

    @contextlib.contextmanager
    def use(self, tag: str = "default") -> Iterator[SleepPool]:
        """Let this thread's allocations come from a tag's memory; a tag is made by its first use.

        Raises
        ------
        BusyError
            The tag is suspended.
        """
        pool = self._pool(tag)
        scope = pool.begin()
        try:
            yield self
        finally:
            pool.end(scope)

    def suspend(self, *tags: str, keep: str | None = "pinned", path: str | os.PathLike[str] | None = None) -> int:
        """Give the physical memory of tags back. Waits for all work on the device.

        Tags go one after the other. One that fails stays as it was, those before it are suspended; the error has a note with the tag.

        Parameters
        ----------
        *tags : str
            Default: all that are there.
        keep : str or None
            Where the bytes wait. ``"pinned"``: in pinned memory, which stays for the next suspend. ``"file"``: in a file, through a
            pipeline's staging blocks. None: nowhere; after the resume they are anything.
        path : str or os.PathLike, optional
            With ``"file"``: a folder, in which the file has no name and is gone with the process (default: tempfile.gettempdir()); or a new
            file for one tag, which is removed by the resume.

        Returns
        -------
        int
            Bytes that went back.

        Raises
        ------
        BusyError
            Graphs, captures or a launch under way use the memory, or the tag is suspended already; the text says which.
        UnsupportedError
            The memory is shared with other processes.
        IOError, OutOfPinnedMemoryError
            The bytes find no place.
        """
        if keep not in ("pinned", "file", None):
            raise _lade.InvalidArgumentError(f'keep is {keep!r}; expected "pinned", "file" or None')
        if path is not None and keep != "file":
            raise _lade.InvalidArgumentError(f'path is {path!r}; expected None with keep={keep!r}')
        import tempfile  # by no import of lade

        where = None if keep != "file" else take_path("path", tempfile.gettempdir() if path is None else path)
        chosen = self._chosen(tags, suspended=False)
        is_name = where is not None and not os.path.isdir(where)
        if is_name and len(chosen) > 1:
            raise _lade.InvalidArgumentError(f"path is {path!r}, one file, for {len(chosen)} tags; expected a folder, or one tag")
        total = 0
        for tag, pool in chosen:
            with _noted(tag), self._turn(tag):
                if where is None:
                    total += pool.suspend(keep is None, None, -1)
                elif is_name:
                    total += self._suspend_to(tag, pool, where)
                else:
                    with tempfile.TemporaryFile(dir=where) as file:
                        total += pool.suspend(False, self._staging(), file.fileno())
        return total

    def _suspend_to(self, tag: str, pool: Any, name: Any) -> int:
        with open(name, "xb+") as file:
            try:
                bytes_given: int = pool.suspend(False, self._staging(), file.fileno())
            except BaseException:
                os.unlink(name)
                raise
        with self._lock:
            is_open = self._pools.get(tag) is pool
            if is_open:
                self._files[tag] = name
        if not is_open:  # closed meanwhile
            os.unlink(name)
        return bytes_given

    def _staging(self) -> _lade.Pipeline:
        with self._lock:
            if self._pipeline is None:
                self._pipeline = _lade.Pipeline(self._allocator.device)
            return self._pipeline

    def resume(self, *tags: str, keep_backup: bool = True) -> None:
        """Put memory under tags again, at the same addresses, with the bytes. Waits for the copy.

        Tags go one after the other. One that fails stays suspended with its bytes where they wait; those before it are there.

        Parameters
        ----------
        *tags : str
            Default: all that are suspended.
        keep_backup : bool
            False: the pinned memory in which bytes have waited goes back to the system, with what the allocator has cached:
            ``allocator.empty_cache()``.

        Raises
        ------
        OutOfDeviceMemoryError, LimitError
            There is too little memory, also without what is cached.
        IOError, TruncatedError
            The file cannot be read.
        """
        take("keep_backup", keep_backup, bool, "True or False")
        for tag, pool in self._chosen(tags, suspended=True):
            with _noted(tag), self._turn(tag):
                pool.resume()
                with self._lock:
                    name = self._files.pop(tag, None)
                if name is not None:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name)
        if not keep_backup:
            self._allocator.empty_cache()

    def usage(self) -> dict[str, tuple[bool, int]]:
        """By tag: whether it is suspended, and the bytes of memory that it has, or had."""
        with self._lock:
            known = dict(self._pools)
        return {tag: pool.info() for tag, pool in known.items()}

    @property
    def backup_bytes(self) -> int:
        """Pinned memory of the allocator in which bytes wait, with what is kept for the next suspend."""
        return _lade._backup_bytes(self._allocator)

    def close(self) -> None:
        """Let go of all tags. Arrays live on; memory of suspended tags is given up with their last array."""
        with self._lock:
            pools, pipeline, names = self._pools, self._pipeline, self._files
            self._pools, self._pipeline, self._files = {}, None, {}
        pools.clear()
        for name in names.values():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        if pipeline is not None:
            pipeline.close()

    def __enter__(self) -> SleepPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        tags = ", ".join(f"{tag} {'suspended' if away else 'there'} {count >> 20} MiB" for tag, (away, count) in self.usage().items())
        return f"<lade.SleepPool: {tags or 'no tags'}>"


@contextlib.contextmanager
def _noted(tag: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"tag {tag!r} of a SleepPool")
        raise
