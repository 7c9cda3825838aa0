# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, saved."""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
import re
import weakref
from typing import TYPE_CHECKING, Any, Literal, overload

import lade
from lade import _lade
from lade._arguments import take, take_function, take_path, wrong_type
from lade.safetensors._format import _error
from lade.safetensors._rows import _rows_of, _same_memory, _target_of, _texts_of, _within

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    import torch

    from lade._lade import StreamLike
    from lade.safetensors._types import _Path, _SaveWay


def _count(name, value):
    try:
        number = operator.index(value)
    except TypeError:
        raise wrong_type(name, value, "an int of 0 or more") from None
    if not 0 <= number < 1 << 64:
        raise lade.InvalidArgumentError(f"{name} is {number}; expected an int of 0 or more, below 2^64")
    return number


@contextlib.contextmanager
def _saving():
    """Turns errors of writing into those of the package."""
    try:
        yield
    except (lade.CancelledError, TimeoutError):
        raise
    except OSError as error:
        code = getattr(error, "native_code", 0) or error.errno or 0
        raise _error(f"Error while serializing: I/O error: {os.strerror(code)} (os error {code}): {error}") from error


_saves: weakref.WeakSet[Save] = weakref.WeakSet()


def _drop_in_child():
    """A forked child has none of the threads that its parent's saves go on in."""
    for save in list(_saves):
        save._native = save._tensors = None


os.register_at_fork(after_in_child=_drop_in_child)


@atexit.register
def _finish_saves():
    """What is being saved when the program ends comes to its end."""
    for save in list(_saves):
        save.close()


class Save:
    """A save that goes on by itself: what ``save_file(..., wait=False)`` returns.

    The tensors must stay as they are until it is staged, and are held until then. The last reference, and the end of the program,
    wait for its end. Threads: any; :meth:`close` waits for calls that wait on a stream, and ends those that wait for a mark.
    """

    def __init__(self, native, tensors):
        self._native = native
        self._tensors = tensors
        _saves.add(self)

    def _open(self):
        native = self._native
        if native is None:
            raise lade.InvalidArgumentError("the Save is closed")
        return native

    def _wait(self, durable, timeout):
        with _saving():
            self._open().wait(durable, timeout)
        self._tensors = None

    def wait_staged(self, timeout: float | None = None) -> None:
        """Wait until tensors may change.

        Parameters
        ----------
        timeout : float or None
            In seconds; None: no limit.

        Raises
        ------
        TimeoutError
            Not yet; the save goes on.
        SafetensorError
            It failed; the file is as it was.
        """
        self._wait(False, timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the new file is in place, and, with ``sync``, on stable storage. As :meth:`wait_staged`."""
        self._wait(True, timeout)

    def wait_on(self, stream: StreamLike = None) -> None:
        """Let work that is queued on a stream from now on wait until it may change the tensors of the device.

        Returns when the last copy is queued.

        Parameters
        ----------
        stream : Stream, int, object with __cuda_stream__ or None
            None: the default stream.
        """
        self._open().wait_on(stream)

    def close(self, *, cancel: bool = False) -> None:
        """Wait for its end, whatever that is.

        Parameters
        ----------
        cancel : bool
            Give it up, unless the new file is being put in place already: the old one stays.
        """
        native = self._native
        if native is not None:
            native.end(cancel)
        self._native = self._tensors = None

    def __del__(self):
        if getattr(self, "_native", None) is not None:
            self.close()

    def __reduce__(self):
        raise lade.ArgumentTypeError("a Save is not copied or pickled: the end of a copy would be that of the save")

    def _state(self):
        native, state = self._native, "under way"
        if native is None:
            return "closed"
        try:
            for durable, reached in (False, "staged"), (True, "durable"):
                native.wait(durable, 0)
                state = reached
        except TimeoutError:
            pass
        except lade.Error:
            state = "failed"
        return state

    def __repr__(self):
        return f"<lade.safetensors.Save: {self._state()}>"


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def _size(name, value):
    """Bytes of an int, or of a text such as "5GB" or "500 MiB"."""
    if not isinstance(value, str):
        return _count(name, value)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    unit = _UNITS.get(found[2].upper()) if found else None
    if unit is None:
        raise lade.InvalidArgumentError(f'{name} is {value!r}; expected bytes, such as 5000000000, "5GB" or "4.5GiB"')
    return _count(name, int(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit)


if TYPE_CHECKING:

    @overload
    def save_file(tensors: Mapping[str, Any], filename: _Path, metadata: Mapping[str, str] | None = None, *, wait: Literal[False],
                  **options: Unpack[_SaveWay]) -> Save: ...
    @overload
    def save_file(tensors: Mapping[str, Any], filename: _Path, metadata: Mapping[str, str] | None = None, *, wait: Literal[True] = True,
                  **options: Unpack[_SaveWay]) -> None: ...


def save_file(tensors, filename, metadata=None, *, max_shard_bytes=0, max_shard_size=None, sync=True, progress=None, wait=True,
              stage_bytes=0, pipeline=None, allocator=None, stream=None, local_ranks=None):
    """Save tensors in the format, byte for byte as the ``safetensors`` package does.

    The file appears under its name when it is complete; after an error the name is as it was. A name may be an ``s3://`` URL.

    Parameters
    ----------
    tensors : dict
        By name: contiguous tensors of torch or CuPy, NumPy arrays, DeviceBuffers, and what else shows its memory. Those of a device
        must be of one device; those of the host are written from where they are.
    filename : str or os.PathLike
    metadata : dict of str or None
        Texts for the header.
    max_shard_bytes : int
        Of tensors in one file; when there are more, several files and an index ``filename + ".index.json"`` are written. 0: one
        file.
    max_shard_size : int, str or None
        The same, also as text: ``"5GB"`` (10^9), ``"5GiB"`` (2^30). None: max_shard_bytes.
    sync : bool
        The file is on stable storage before it gets its name.
    progress : function(bytes_done, bytes) or None
        Called from time to time, in this thread; what it raises ends the save. None with ``wait=False``.
    wait : bool
        False: return a :class:`Save` at once, which goes on while the program does.
    stage_bytes : int
        With ``wait=False``: pinned memory that copies of tensors may wait in until they are written, at most. 0: as much as they need, at
        most half of the cap of the pool.
    pipeline, allocator, stream, local_ranks
        As for :func:`load_file`. What is queued on the stream, and on those of DeviceBuffers, is waited for by the copies.

    Raises
    ------
    ValueError
        A tensor is sparse, masked, not contiguous, or no tensor; a name or text of the metadata has a null character.
    RuntimeError
        torch tensors share memory.
    SafetensorError
        Writing failed, or a tensor has a dtype that the format has not.
    """
    path = take_path("filename", filename)
    max_shard_bytes = _count("max_shard_bytes", max_shard_bytes)
    if max_shard_size is not None:
        if max_shard_bytes:
            raise lade.InvalidArgumentError(f"max_shard_size is {max_shard_size!r} and max_shard_bytes {max_shard_bytes}; expected one of both")
        max_shard_bytes = _size("max_shard_size", max_shard_size)
    take("sync", sync, bool, "True or False")
    take_function("progress", progress, "a function(bytes_done, bytes)")
    take("pipeline", pipeline, _lade.Pipeline, "a lade.Pipeline", optional=True)
    take("allocator", allocator, _lade.DeviceAllocator, "a lade.DeviceAllocator", optional=True)
    take("wait", wait, bool, "True or False")
    stage_bytes = _count("stage_bytes", stage_bytes)
    if not wait and progress is not None:
        raise lade.InvalidArgumentError(f"progress is {progress!r}; expected None with wait=False")
    texts = _texts_of(metadata)
    rows = _rows_of(tensors)
    shared = rows.shared()
    if shared:
        raise RuntimeError(f"Some tensors share memory, which a file would hold twice: {sorted(set(shared))}; save one of them, or clones")
    with _saving():
        targets = _target_of(rows, pipeline, allocator, stream, local_ranks)
        if not wait:
            return Save(_lade._save_begin(path, targets, rows, texts, max_shard_bytes, sync, stage_bytes), rows)
        _lade._save(path, targets, rows, texts, max_shard_bytes, sync, progress)


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a file with these tensors: what :func:`save_file` writes.

    Parameters
    ----------
    tensors, metadata
        As for :func:`save_file`.

    Returns
    -------
    bytes
    """
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        path = os.path.join(folder, "tensors")
        save_file(tensors, path, metadata, sync=False)
        with open(path, "rb") as file:
            return file.read()


def save_model(model: torch.nn.Module, filename: _Path, metadata: Mapping[str, str] | None = None, force_contiguous: bool = True,
               **options: Unpack[_SaveWay]) -> None:
    """Save the tensors of a module of torch. Tied weights are saved once, by the first of their names, sorted, and parts of others with them.

    Parameters
    ----------
    model : torch.nn.Module
    filename : str or os.PathLike
    metadata : dict of str or None
        Texts for the header, which also tells the other names of tied weights, and of parts.
    force_contiguous : bool
        Save copies of tensors that are not in C order. False: they are a ValueError.
    **options
        Of :func:`save_file`.
    """
    take("force_contiguous", force_contiguous, bool, "True or False")
    state = model.state_dict()
    same = _same_memory(state)
    held = {**same, **_within(state, same)}
    texts = {**held, **(metadata or {})}
    tensors = {name: tensor.contiguous() if force_contiguous else tensor for name, tensor in state.items() if name not in held}
    save_file(tensors, filename, texts or metadata, **options)
