# SPDX-License-Identifier: Apache-2.0
"""Checkpoints tensor by tensor."""

from __future__ import annotations

import collections
import contextlib
from typing import TYPE_CHECKING, Literal, overload

import lade
from lade._arguments import take
from lade.safetensors._format import _DTYPES
from lade.safetensors._frameworks import _OF_FRAMEWORK
from lade.safetensors._open import _Entry, _Mapped, _numbers_of, safe_open

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Unpack

    import cupy
    import torch

    from lade._lade import DeviceLike, DeviceView
    from lade.safetensors._types import Tensor, _Array, _IterateWay, _OfCupy, _OfNumpy, _OfTorch, _Path


# Loads of iterate(): the first is short, so that its first tensor comes early, and the others are as long as four under way may be.
_WAVE_FIRST_BYTES = 16 << 20
_WAVES = 4
# A load that is under way: numbers, types and names of its tensors, and these, which its iteration takes out as it hands them out.
_Wave = collections.namedtuple("_Wave", "load numbers dtypes names tensors bytes")


def _waves_plan(file, numbers, dtypes, most):
    """Which tensors each load has, as (numbers, their types, bytes in memory); they follow each other in the files."""
    limit, taken, wanted, total = min(_WAVE_FIRST_BYTES, most // _WAVES), [], [], 0
    for i in sorted(range(len(numbers)), key=numbers.__getitem__):
        dtype, _, count, *_ = file.tensor(numbers[i])
        if dtypes is not None and dtypes[i] is not None:
            count = count * _DTYPES[dtypes[i]][2] // _DTYPES[dtype][2]
        if taken and total + count > limit:
            yield taken, wanted, total
            limit, taken, wanted, total = most // _WAVES, [], [], 0
        taken.append(numbers[i])
        wanted.append(None if dtypes is None else dtypes[i])
        total += count
    if taken:
        yield taken, wanted, total


def _next_wave(waves):
    """The first load that is there, else the first."""
    chosen = next((wave for wave in waves if wave.load.ready()), waves[0])
    waves.remove(chosen)
    return chosen


def _wave_close(wave):
    is_begun = len(wave.tensors) < len(wave.names)
    wave.tensors.clear()
    if is_begun:  # so that its memory is that of the tensors handed out, each for itself
        with contextlib.suppress(lade.Error):
            wave.load.wait(None)
    wave.load.close()


def _iterate_mapped(owner, file, numbers, kinds):
    of, entries = _OF_FRAMEWORK[owner._framework], [_Entry(number, file.names([number])[0], *file.tensor(number)) for number in numbers]
    mapped = _Mapped(file, len(entries), sum(entry.bytes for entry in entries))
    for entry in entries:
        shape = of.shape(entry.name, entry.dtype, entry.shape)
        yield entry.name, mapped.tensor(owner._framework, entry, kinds[entry.dtype], shape, owner._device)


def _iterate(owner, file, numbers, dtypes, kinds, most):
    of, target, plan = _OF_FRAMEWORK[owner._framework], owner._target(), collections.deque(_waves_plan(file, numbers, dtypes, most))
    waves: list = []
    wave, name = None, None
    try:
        while plan or waves:
            while plan and (not waves or sum(other.bytes for other in waves) + plan[0][2] <= most):
                taken, wanted, count = plan[0]
                try:
                    load = file.start(target, taken, True, owner._direct, dtypes=wanted if any(wanted) else None)
                except lade.Error:
                    if not waves:
                        name = file.names(taken)[0]
                        raise
                    break  # tried again when those before it are handed out: their memory may be free then
                names = file.names(taken)
                waves.append(_Wave(load, taken, wanted, names, {}, count))
                waves[-1].tensors.update(of.make_all(load, names, kinds, owner._device))
                plan.popleft()
            wave = _next_wave(waves)
            for i, name in enumerate(wave.names):
                try:
                    wave.load.wait_tensor(i)
                except lade.Error:
                    if len(wave.names) == 1:
                        raise
                    rest = _waves_plan(file, wave.numbers[i:], wave.dtypes[i:], 1)  # each by itself, which tells the one at fault
                    plan.extendleft(reversed(list(rest)))
                    break
                yield name, wave.tensors.pop(name)
            _wave_close(wave)
            wave = name = None
    except lade.Error as error:
        raise error if name is None else type(error)(f"tensor `{name}`: {error}") from error
    finally:
        owner.close()
        file = None  # which a traceback would keep open with this frame
        for other in waves if wave is None else [wave, *waves]:
            _wave_close(other)


if TYPE_CHECKING:

    @overload
    def iterate(filename: _Path, device: DeviceLike = "cuda:0", *, framework: _OfTorch,
                **options: Unpack[_IterateWay]) -> Generator[tuple[str, torch.Tensor], None, None]: ...
    @overload
    def iterate(filename: _Path, device: DeviceLike = "cuda:0", *, framework: _OfNumpy,
                **options: Unpack[_IterateWay]) -> Generator[tuple[str, _Array], None, None]: ...
    @overload
    def iterate(filename: _Path, device: DeviceLike = "cuda:0", *, framework: _OfCupy,
                **options: Unpack[_IterateWay]) -> Generator[tuple[str, cupy.ndarray], None, None]: ...
    @overload
    def iterate(filename: _Path, device: DeviceLike = "cuda:0", *, framework: Literal["lade"],
                **options: Unpack[_IterateWay]) -> Generator[tuple[str, DeviceView], None, None]: ...
    @overload
    def iterate(filename: _Path, device: DeviceLike = "cuda:0", *, framework: None = None,
                **options: Unpack[_IterateWay]) -> Generator[tuple[str, Tensor], None, None]: ...


def iterate(filename, device="cuda:0", *, framework=None, tensors=None, dtype=None, max_transient_bytes=256 << 20, pipeline=None,
            allocator=None, stream=None, direct=None, local_ranks=None):
    """Load a checkpoint tensor by tensor: those that follow are read meanwhile.

    Each tensor has a block of device memory of its own. When the program lets go of it, the block goes back to the allocator, which gives
    it to a tensor that follows, after the work queued on ``stream``. So a program that keeps none needs about ``max_transient_bytes``
    for a checkpoint of any size.

    Parameters
    ----------
    filename, device, framework, tensors, dtype, pipeline, allocator, direct, local_ranks
        As for :func:`load_file`.
    stream : Stream, int, object with __cuda_stream__ or None
        Memory is allocated on it, after the work queued there. None: the current stream of torch or CuPy when the first tensor is asked
        for. Other streams that use a tensor must be done when it goes.
    max_transient_bytes : int
        Device memory of tensors that are read ahead and not handed out yet, at most; of the types they have in memory. A larger tensor
        goes alone.

    Yields
    ------
    tuple of (str, tensor)
        Name and tensor, whose bytes are there: in the order of the files, except that parts of the checkpoint that are there go before
        parts that are not.

    Raises
    ------
    FileNotFoundError, SafetensorError
        As for :func:`load_file`, by the call.
    lade.Error
        Reading or copying failed: raised in place of the tensor, which the text names, after it was tried by itself; those before it stay
        good. The iteration is over.

    The iterator is closed by its end, an error, ``close()``, and when it is let go of, as by ``break``: reads that are under way are
    cancelled, and files closed. Tensors that were handed out stay.
    """
    take("max_transient_bytes", max_transient_bytes, int, "an int of 1 or more")
    if max_transient_bytes < 1:
        raise lade.InvalidArgumentError(f"max_transient_bytes is {max_transient_bytes}; expected 1 or more")
    owner = safe_open(filename, framework, device, pipeline=pipeline, allocator=allocator, stream=stream, direct=direct,
                      local_ranks=local_ranks)
    file = owner._open_file()
    numbers = _numbers_of(owner, tensors)
    numbers = list(range(file.count())) if numbers is None else numbers
    dtypes = None if dtype is None else owner._wanted(file, numbers, dtype)
    kinds = owner._kinds(file, numbers, dtypes)
    if owner._is_mapped and dtypes is None:
        return _iterate_mapped(owner, file, numbers, kinds)
    return _iterate(owner, file, numbers, dtypes, kinds, max_transient_bytes)
