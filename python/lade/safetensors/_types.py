# SPDX-License-Identifier: Apache-2.0
"""What annotations and type checkers need."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar


class Tensor(Protocol):
    """What tensors of every framework have. Say the framework for the type of its own: ``framework="pt"``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""

    @property
    def dtype(self) -> object:
        """Type of the elements, as the framework has it."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


_T = TypeVar("_T", covariant=True)

if TYPE_CHECKING:
    import numpy.typing

    from lade import _lade
    from lade._lade import StreamLike

    _Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
    _Array = numpy.typing.NDArray[Any]
    _Bytes = bytes | bytearray | memoryview
    _Progress = Callable[[int, int], object]
    _OfTorch = Literal["pt", "torch", "pytorch"]
    _OfNumpy = Literal["np", "numpy"]
    _OfCupy = Literal["cp", "cupy"]

    class _Way(TypedDict, total=False):
        pipeline: _lade.Pipeline | None
        allocator: _lade.DeviceAllocator | None
        stream: StreamLike
        direct: bool | None
        local_ranks: int | None

    class _TensorsWay(_Way, total=False):
        tensors: Iterable[str] | None
        dtype: object

    class _LoadWay(_TensorsWay, total=False):
        per_tensor: bool
        progress: _Progress | None

    class _IterateWay(_TensorsWay, total=False):
        max_transient_bytes: int

    class _OpenWay(_Way, total=False):
        backend: str

    class _SaveWay(TypedDict, total=False):
        max_shard_bytes: int
        max_shard_size: int | str | None
        sync: bool
        progress: _Progress | None
        stage_bytes: int
        pipeline: _lade.Pipeline | None
        allocator: _lade.DeviceAllocator | None
        stream: StreamLike
        local_ranks: int | None
