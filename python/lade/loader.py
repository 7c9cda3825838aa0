# SPDX-License-Identifier: Apache-2.0
"""Records of files, in batches, in device memory.

    files --readers of the pipeline--> pinned memory --> device memory: a few batches ahead --> Batch

The readers are threads of lade, not processes: nothing is pickled, and no worker is started.

>>> loader = lade.Loader("train.tar", 256, fields="img,label", shuffle=True, device="cuda:0", convert=torch.from_dlpack)
>>> for batch in loader:
...     step(batch["img"], batch["label"])
"""

from __future__ import annotations

import operator
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import lade
from lade import _lade
from lade._arguments import take, take_function, wrong_type

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset

    from lade._lade import DeviceLike, DeviceView, StreamLike

__all__ = ["Batch", "Loader"]

_extension: Any = _lade  # what is not for users is in no stub


class Batch:
    """Records that are in device memory together: ``batch["img"]``.

    The memory is used for another batch when this object and all arrays taken from it are gone, or release() was called and the
    arrays are gone. A loader hands out ``prefetch`` batches at most at a time.

    Of records that are all of one size, or padded, ``batch[field]`` is one array, (records, bytes) of uint8 or as ``layout`` of the
    loader says. So is a field that ``layout`` names where those of another field have several sizes. Else it is a list of one array for
    each record.
    """

    __slots__ = ("_native", "_loader")

    def __init__(self, native: Any, loader: Loader) -> None:
        self._native, self._loader = native, loader

    @property
    def number(self) -> int:
        """From 0, over all epochs."""
        return self._native.number

    @property
    def epoch(self) -> int:
        """From 0."""
        return self._native.epoch

    @property
    def nbytes(self) -> int:
        """Of the records in device memory."""
        return self._native.nbytes

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields."""
        return self._loader.index.fields

    def __len__(self) -> int:
        return self._native.count

    def __getitem__(self, field: str | int) -> Any:
        array = self._native.array(self._field(field))
        return self.records(field) if array is None else self._loader._convert(array)

    def records(self, field: str | int = 0) -> list[Any]:
        """One array of bytes for each record, as a list."""
        return [self._loader._convert(part) for part in self._native.parts(self._field(field))]

    def lengths(self, field: str | int = 0) -> list[int]:
        """Bytes of each record, without padding."""
        return self._native.lengths(self._field(field))

    def numbers(self) -> list[int]:
        """Number of each record in the index."""
        return self._native.records()

    def keys(self) -> list[str | None]:
        """Key of each record in the index; None of one without."""
        return self._native.keys()

    def release(self) -> None:
        """Let go of the batch now. Arrays that were taken from it keep its memory."""
        self._native.release()

    def _field(self, field):
        if isinstance(field, str):
            if field not in self.fields:
                raise KeyError(f"field {field!r}; the records have {', '.join(map(repr, self.fields))}")
            return self.fields.index(field)
        number = _integer("field", field, "a name or a number")
        if not -len(self.fields) <= number < len(self.fields):
            raise IndexError(f"field {number}; the records have {len(self.fields)}")
        return number % len(self.fields)

    def __repr__(self) -> str:
        if self._native.released:
            return "<lade.Batch, released>"
        return f"<lade.Batch {self.number} of {len(self)} records, {_extension._bytes_text(self.nbytes)}, epoch {self.epoch}>"

    def _repr_html_(self) -> str:
        import html

        rows = []
        for number, name in enumerate([] if self._native.released else self.fields):
            lengths = self.lengths(number)
            sizes = sorted({min(lengths), max(lengths)}) if lengths else [0]
            rows.append(f"<tr><td>{html.escape(name)}</td><td>{' to '.join(map(_extension._bytes_text, sizes))}</td></tr>")
        return f"<table><thead><tr><th colspan=\"2\">{html.escape(repr(self))}</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _integer(name, value, expected):
    """An int, or what stands for one."""
    try:
        return operator.index(value)
    except TypeError:  # arrays have __index__ and refuse by it
        raise wrong_type(name, value, expected) from None


def _index_from(source, fields, record_bytes):
    """A RecordIndex, or one of the tar files, or files of fixed records, whose paths were passed."""
    take("source", source, (_lade.RecordIndex, str, bytes, os.PathLike, Iterable), "a lade.RecordIndex, a path, or a sequence of paths")
    if isinstance(source, lade.RecordIndex):
        if fields is not None or record_bytes is not None:
            raise lade.InvalidArgumentError("fields and record_bytes belong to the index; expected None with a RecordIndex")
        return source
    if record_bytes is None and fields is None:
        raise lade.InvalidArgumentError('fields is None; expected names of tar members\' extensions, such as "jpg,cls", or record_bytes')
    index = lade.RecordIndex(fields)
    first = None
    for path in (part for path in ([source] if isinstance(source, (str, bytes, os.PathLike)) else source) for part in _expanded(path)):
        first = path if first is None else first
        if record_bytes is not None:
            index.add_fixed(path, record_bytes)
        else:
            _add_tar(index, path)
    if record_bytes is None and len(index) == 0 and first is not None:
        found = _extensions(first)
        if found:
            raise lade.InvalidArgumentError(f"fields is {fields!r}, which no record has; those of {_text(first)} have {found}")
    return index


def _expanded(path):
    """``"train-{000000..000003}.tar"`` as four paths, one by one, where there is no file of that name."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    found = re.fullmatch(r"(.*?)\{([0-9]{1,9})\.\.([0-9]{1,9})\}(.*)", text, re.DOTALL) if isinstance(text, str) else None
    if found is None or os.path.exists(text):
        yield path
        return
    head, first, last, tail = found.groups()
    if int(first) > int(last):
        raise lade.InvalidArgumentError(f"source has {text!r}; expected numbers that rise in {{{first}..{last}}}")
    width = len(first) if first.startswith("0") else 0
    for number in range(int(first), int(last) + 1):
        yield from _expanded(f"{head}{number:0{width}}{tail}")


def _add_tar(index, path):
    """Adds a tar file; an error about a field that its records lack says which they have."""
    try:
        index.add_tar(path)
    except lade.FormatError as error:
        found = _extensions(path) if "lacks the field" in str(error) else ""
        if not found:
            raise
        raise type(error)(f"{error}; the first records have {found}") from error


def _text(path):
    return os.fsdecode(path)


def _extensions(path):
    """The fields that the first members of a tar file would be, as text."""
    import tarfile

    found = {}
    try:
        with tarfile.open(_text(path), "r:") as archive:
            for member, _ in zip(archive, range(100)):
                _, dot, extension = os.path.basename(member.name).partition(".")
                if member.isfile() and dot:
                    found[extension] = None
    except (tarfile.TarError, OSError):
        return ""
    return ", ".join(map(repr, found))


class _Epoch:
    """The batches of one epoch, or of what is left of it."""

    def __init__(self, loader):
        self._loader, self._epoch = loader, None
        self._told = loader._iterated  # no cycle: a loader that is let go of gives its memory back

    def __iter__(self):
        return self

    def __next__(self):
        if not self._told["is_over"]:
            batch, self._epoch, self._told["is_over"] = self._loader._take(self._epoch)
            if batch is not None:
                return batch
        raise StopIteration


class Loader:
    """Batches of records in device memory, read ahead by threads.

    ``for batch in loader`` goes through one epoch; ``next(loader)`` goes on over all epochs. A ``for`` that comes after another one begins
    an epoch, also where that one ended early, and the first one again where all are over. After load_state_dict(), and after ``next()``, it
    goes through what is left.

    Parameters
    ----------
    source : RecordIndex, path, or sequence of paths
        Paths, or URLs (docs/sources.md), are of tar files, which needs `fields`, or of files of records of one size, which needs
        `record_bytes`.
        ``"train-{000000..000003}.tar"`` is four files.
    batch_size : int or None
        Records of a batch. None: as many as `batch_bytes` allows.
    fields : str or sequence of str
        As for RecordIndex.
    record_bytes : int
        Size of each record.
    device, pipeline, allocator
        Where to, and through what. None: new ones, for the first GPU or the software device.
    stream : Stream, int, object with __cuda_stream__ or None
        Work that is queued on it after a batch was handed out sees the batch. None: torch's or CuPy's current stream at each
        batch where that package was imported, else the default stream.
    shuffle : bool
        Each epoch in an order of its own, that depends on `seed`, the epoch, `rank` and `world` alone.
    epochs : int or None
        None: without end.
    rank, world : int
        This process gets records rank, rank + world, ... of the order.
    equal_ranks : bool
        Leave out the last records, so that all ranks have as many.
    drop_last : bool
        Leave out the last batch of an epoch if it is smaller.
    prefetch : int
        Batches read ahead or handed out, at most: 1 to 64. A loop holds the batch before while it asks for the next one, so it needs
        2 or more.
    padded : bool
        All records take the room of the largest one, with zeros behind them.
    alignment : int or None
        Of each record in a batch, a power of two up to 512. None: 1 where all fields are arrays, else 64, or as much less as leaves no
        gaps in those that ``layout`` names.
    batch_bytes : int
        Bytes of a batch, at most. 0: no limit.
    skip_unreadable : bool
        Leave out records that cannot be read; stats() and skips() tell of them.
    layout : dict
        For fields of records of one size, or padded ones: ``{"img": ("uint8", (3, 224, 224))}``, of the bytes that a record has.
    convert : function(array)
        What is done to each array that is taken from a batch: ``torch.from_dlpack``, ``numpy.asarray`` (software device).
    return_timeout : float or None
        Seconds that a batch is waited for, at most: TimeoutError then says what is missing.
    state : dict or None
        Of state_dict(): where to begin.
    local_ranks : int or None
        Processes of this job on this machine, such as LOCAL_WORLD_SIZE says under torchrun: they share processors and cache. For the
        pipeline that the loader makes. Default 1.

    Raises
    ------
    InvalidArgumentError
        Naming the argument.
    IOError, FormatError
        A file cannot be read or is damaged.

    Threads: any; one batch at a time is taken. A forked child gets ForkedError, also in workers of a DataLoader: see dataset().
    """

    def __init__(self, source: _lade.RecordIndex | str | bytes | os.PathLike[str] | Iterable[str | bytes | os.PathLike[str]],
                 batch_size: int | None = None, *, fields: str | Iterable[str] | None = None, record_bytes: int | None = None,
                 device: DeviceLike = None, pipeline: _lade.Pipeline | None = None, allocator: _lade.DeviceAllocator | None = None,
                 stream: StreamLike = None, shuffle: bool = False, seed: int = 0, epochs: int | None = None, rank: int = 0, world: int = 1,
                 equal_ranks: bool = False, drop_last: bool = False, prefetch: int = 4, padded: bool = False, alignment: int | None = None,
                 batch_bytes: int = 0, skip_unreadable: bool = False,
                 layout: Mapping[str, tuple[Any, int | Iterable[int]]] | None = None, convert: Callable[[DeviceView], object] | None = None,
                 return_timeout: float | None = 60.0, state: Mapping[str, int] | None = None, local_ranks: int | None = None) -> None:
        self._native: Any = None
        self._process = os.getpid()
        self._lock = threading.RLock()  # a signal's handler may ask for the state while its thread waits for a batch
        self._check(batch_size, batch_bytes, epochs, rank, world, prefetch, seed, alignment)
        for name, value in {"shuffle": shuffle, "equal_ranks": equal_ranks, "drop_last": drop_last, "padded": padded,
                            "skip_unreadable": skip_unreadable}.items():
            take(name, value, bool, "True or False")
        take("pipeline", pipeline, _lade.Pipeline, "a lade.Pipeline", optional=True)
        take("allocator", allocator, _lade.DeviceAllocator, "a lade.DeviceAllocator", optional=True)
        take("layout", layout, Mapping, "a dict of (dtype, shape)", optional=True)
        take_function("convert", convert, "a function(array)")
        self.index = _index_from(source, fields, record_bytes)
        layout = dict(layout or {})
        for name, part in layout.items():
            if not isinstance(part, (tuple, list)) or len(part) != 2:
                raise wrong_type(f"layout[{name!r}]", part, "(dtype, shape)")
            if name not in self.index.fields:
                raise lade.InvalidArgumentError(f"layout has {name!r}; the records have {', '.join(map(repr, self.index.fields))}")
        self._convert = convert or (lambda array: array)
        if pipeline is not None and local_ranks is not None:
            raise lade.InvalidArgumentError(f"local_ranks is {local_ranks!r}; expected None with a pipeline, which has its own")
        if pipeline is not None and device is not None and lade.device(device) != pipeline.device:
            raise lade.InvalidArgumentError(f"device is {device!r}; expected None, or {pipeline.device}, with a pipeline of that")
        self._pipeline = pipeline if pipeline is not None else lade.Pipeline(device, local_ranks=local_ranks)
        self._device = self._pipeline.device
        self._allocator = allocator if allocator is not None else lade.DeviceAllocator(self._device)
        self._stream = stream
        self._own_stream = self._device.stream() if stream is None and self._device.software else None
        self._batch_size, self._drop_last, self._bounded = batch_size, drop_last, bool(batch_bytes)
        self._share = self._share_of(len(self.index), rank, world, equal_ranks)
        self._options = dict(batch_records=batch_size or 0, batch_bytes=batch_bytes, seed=seed, epochs=epochs or 0, rank=rank, world=world,
                             prefetch=prefetch, alignment=alignment, padded=padded,
                             layout=[layout.get(name) for name in self.index.fields], shuffle=shuffle, equal_ranks=equal_ranks,
                             drop_last=drop_last, skip_unreadable=skip_unreadable, return_timeout=return_timeout)
        self._begin(state)

    @staticmethod
    def _check(batch_size, batch_bytes, epochs, rank, world, prefetch, seed, alignment):
        """Arguments that the library would take for a default, or that are no numbers of its."""
        limits = {"batch_size": (batch_size, 1, 1 << 24), "epochs": (epochs, 1, (1 << 63) - 1), "world": (world, 1, (1 << 32) - 1),
                  "rank": (rank, 0, (1 << 32) - 1), "prefetch": (prefetch, 1, 64), "batch_bytes": (batch_bytes, 0, (1 << 63) - 1),
                  "seed": (seed, 0, (1 << 64) - 1), "alignment": (alignment, 0, 512)}
        for name, (value, least, most) in limits.items():
            if value is None and name in ("batch_size", "epochs", "alignment"):
                continue
            if not least <= _integer(name, value, f"an int, {least} to {most}") <= most:
                raise lade.InvalidArgumentError(f"{name} is {value!r}; expected {least} to {most}")
        if alignment is not None and alignment & (alignment - 1):
            raise lade.InvalidArgumentError(f"alignment is {alignment!r}; expected a power of two up to 512")
        if rank >= world:
            raise lade.InvalidArgumentError(f"rank is {rank}; expected below {world}, the world")
        if batch_size is None and not batch_bytes:
            raise lade.InvalidArgumentError("batch_size is None; expected records of a batch, or batch_bytes")

    @staticmethod
    def _share_of(count, rank, world, equal_ranks):
        return count // world if equal_ranks else (count - rank + world - 1) // world

    def _begin(self, state):
        self._iterated = None  # the for that was begun last
        self._ahead, self._state_before = [], None  # what was taken and is not handed out: a batch, or None at the end of all
        self._native = _extension._Loader(self.index, self._pipeline, self._allocator, stream=self._own_stream or self._stream, resume=state,
                                     **self._options)

    def _own(self):
        if os.getpid() != self._process:
            raise lade.ForkedError("Loader: made before fork(); its readers are threads of the parent, and only the parent may use it")

    def _stream_now(self):
        if self._own_stream is not None or self._stream is not None:
            return self._own_stream or self._stream
        torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
        if hasattr(torch, "cuda") and torch.cuda.is_initialized():
            return torch.cuda.current_stream(self._device.ordinal)
        if hasattr(cupy, "cuda"):
            return cupy.cuda.get_current_stream()
        return None

    def _take(self, epoch):
        """The next batch of an epoch (None: of any), None at its end and at that of all; its epoch; whether it is known to be the last one.

        The batch is handed out in the last step, behind which what a signal's handler raises would lose it.
        """
        self._own()
        with self._lock:
            while not self._ahead:  # again where a signal's handler has begun anew: that has a list of its own
                self._state_before = self._native.state()  # until the batch is handed out
                try:
                    # No step of Python between the library and the list: what a signal's handler raises would lose the batch there.
                    self._ahead.extend(map(self._native.next, (self._stream_now(),), (None,)))
                finally:
                    if not self._ahead:
                        self._state_before = None
            taken = None, epoch, True
            if self._ahead[0] is not None:
                batch = Batch(self._ahead[0], self)
                if epoch not in (None, batch.epoch):
                    return taken
                taken = batch, batch.epoch, self._at_end(batch.epoch)
            self._state_before = None
            self._ahead.clear()  # the list stays: the thread that a signal's handler has interrupted may wait to extend it
            return taken

    def _at_end(self, epoch):
        """Whether no batch of an epoch is left behind what was taken, as far as that is known without asking for another."""
        state = self._native.state()
        left = self._share - state["position"]
        dropped = self._drop_last and not self._bounded and left < self._batch_size  # with batch_bytes they may be several batches
        return state["epoch"] != epoch or left <= 0 or bool(dropped)

    def __iter__(self) -> Iterator[Batch]:
        self._own()
        with self._lock:
            if self._iterated is not None:
                self._restart(self._iterated["is_over"])
            self._iterated = {"is_over": False}
            return _Epoch(self)

    def _restart(self, is_over):
        """After a ``for``: at the beginning of the next epoch, where that one did not reach its end, or of the first, where all are over."""
        state = self._state_before or self._native.state()
        epoch = state["epoch"] + (state["position"] > 0)
        if epoch >= (self._options["epochs"] or 1 << 64):
            epoch = 0
        elif is_over or state["position"] == 0:
            return  # it is there, and has read ahead
        self.load_state_dict({**state, "epoch": epoch, "position": 0})

    def __next__(self) -> Batch:
        self._iterated = None
        batch, _, _ = self._take(None)
        if batch is None:
            raise StopIteration
        return batch

    def __len__(self) -> int:
        """Batches of an epoch."""
        if self._batch_size is None or self._bounded:
            raise TypeError("a Loader with batch_bytes has no length: how many records fit a batch depends on their order")
        whole, rest = divmod(self._share, self._batch_size)
        return whole if self._drop_last or not rest else whole + 1

    @property
    def device(self) -> _lade.Device:
        """Where the batches are."""
        return self._device

    def state_dict(self) -> dict[str, int]:
        """Where the loader is, behind the batch that was handed out last, as a dict of ints: enough to go on exactly there."""
        self._own()
        with self._lock:
            return self._state_before or self._native.state()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where a state says, with the same files, seed, rank and world. What was read ahead is dropped; batches in use stay.

        Raises
        ------
        InvalidArgumentError
            The state is of other files, or of another order, and the text says which; the loader is as before.
        """
        self._own()
        take("state", state, dict, "a dict of state_dict()")
        with self._lock:
            self._native.state()  # refuses where the loader is closed
            following = _extension._Loader(self.index, self._pipeline, self._allocator, stream=self._own_stream or self._stream, resume=state,
                                      **self._options)
            self._native, self._ahead, self._state_before = following, [], None
            self._iterated = None

    def stats(self) -> dict[str, int]:
        """Counters: batches, records, skipped_records, skipped_batches, skips_listed."""
        self._own()
        return self._native.stats()

    def skips(self) -> list[tuple[int, str | None, int, str]]:
        """Records that were left out: ``(number, key, times, what went wrong)``, at most 1024."""
        self._own()
        return self._native.skips()

    def close(self) -> None:
        """End it. Its memory goes back at once, or with the last batch in use, as what a loop's variable still names."""
        self._own()
        with self._lock:
            self._ahead, self._state_before = [], None
            self._native.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def dataset(self) -> IterableDataset[Batch]:
        """The loader as a ``torch.utils.data.IterableDataset``, for ``DataLoader(loader.dataset(), batch_size=None)``.

        ``num_workers`` must be 0: a worker is a process of its own, and raises.
        """
        return _dataset_class()(self)

    def __reduce__(self):
        raise TypeError("a lade.Loader cannot be sent to another process: its readers are threads of this one. "
                        "With a DataLoader, expected num_workers=0")

    def __getitem__(self, _):
        raise TypeError("a lade.Loader has no record of a number. With a DataLoader, expected loader.dataset() and batch_size=None")

    def __repr__(self):
        return f"<lade.Loader of {len(self.index)} records on {self._device}>"


_dataset = None


def _dataset_class():
    """Made when torch is there: it is not imported before."""
    global _dataset
    if _dataset is not None:
        return _dataset
    from torch.utils.data import IterableDataset, get_worker_info

    class LoaderDataset(IterableDataset):
        """Batches of a lade.Loader."""

        def __init__(self, loader):
            super().__init__()
            self.loader = loader

        def __iter__(self):
            if get_worker_info() is not None:
                raise RuntimeError("lade.Loader: its readers are threads, so a DataLoader of it has no workers; expected num_workers=0")
            return iter(self.loader)

        def __len__(self):
            return len(self.loader)

        def state_dict(self):
            return self.loader.state_dict()

        def load_state_dict(self, state):
            self.loader.load_state_dict(state)

    _dataset = LoaderDataset
    return _dataset
