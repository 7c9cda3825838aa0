# SPDX-License-Identifier: Apache-2.0
"""Storage of torch.distributed.checkpoint: what its saves and loads write and read, by lade.

::

    import torch.distributed.checkpoint as dcp
    from lade.torch.checkpoint import Reader, Writer

    future = dcp.async_save(state, storage_writer=Writer("step-100"), async_stager=stager)
    dcp.load(state, storage_reader=Reader("step-100"))

Each rank writes one file in the format of safetensors. A checkpoint of tensors alone is also read by
``torch.distributed.checkpoint.HuggingFaceStorageReader``, and each file by all that reads the format.

Staging is PyTorch's: its planner wants tensors of the host before it knows which rank writes what, so a save that begins with the copies of
tensors of the device (``lade.safetensors.save_file(wait=False)``) has no place in it. ``DefaultStager`` copies in a thread of its own; under
``lade.torch.install_pinned()`` its pinned memory is a pool's, which keeps it from one save to the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import pathlib
import shutil
from typing import Any

import torch
from torch.distributed import checkpoint as _dcp
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

import lade
from lade.safetensors import safe_open, save_file
from lade.safetensors._rows import _shared_names

__all__ = ["Reader", "Writer"]

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def _exchange(new: str, old: str) -> None:
    """Each path gets the other's folder, in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE):
        error = ctypes.get_errno()
        raise OSError(error, f"the new checkpoint cannot take the place of the old one in one step ({os.strerror(error)}); remove it first", old)


def _flush(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _future(value: Any) -> Any:
    future: Any = Future()
    future.set_result(value)
    return future


class Writer(_dcp.FileSystemWriter):
    """A StorageWriter that puts a checkpoint in place as a whole.

    The folder appears under its name when all ranks have written, or takes the place of the one that was there: a save that fails, or a
    process that is killed, leaves that as it was, and a folder ``.NAME.lade`` beside it, which the next save of this name removes. One save
    of a name at a time; all ranks see the folder.

    Parameters
    ----------
    path : str or os.PathLike
        The folder of the checkpoint. A ``checkpoint_id`` of a save comes in its place.
    sync : bool
        All is on stable storage before it gets its name.
    """

    path: Any

    def __init__(self, path: str | os.PathLike[str], *, sync: bool = True) -> None:
        super().__init__(path, sync_files=sync)

    @property
    def _folder(self) -> pathlib.Path:
        path = pathlib.Path(os.path.abspath(self.path))
        return path.with_name(f".{path.name}.lade")

    def prepare_local_plan(self, plan: Any) -> Any:
        """By each rank."""
        if not self.use_collectives:
            raise lade.UnsupportedError("use_collectives is False; expected True, as one rank puts the checkpoint of all in place")
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """By one rank, while no rank writes."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._folder)
        os.makedirs(self._folder)
        return super().prepare_global_plan(plans)

    def write_data(self, plan: Any, planner: Any) -> Any:
        """By each rank: its file. Tensors that share memory are written one by one."""
        name = f"{plan.storage_data.prefix}0.safetensors"
        tensors: dict[str, torch.Tensor] = {}
        offsets: dict[str, Any] = {}
        results = []
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                tensor = torch.frombuffer(bytearray(data.getvalue()), dtype=torch.uint8)
            else:
                tensor = data.detach()
                tensor = tensor.contiguous() if tensor.layout == torch.strided else tensor  # others are refused by name
            key = item.index.fqn if item.index.fqn not in tensors else f"{item.index.fqn}#{len(tensors)}"
            tensors[key] = tensor
            offsets[key] = {"saved_offsets": list(item.index.offset or [0] * tensor.dim())}
            results.append(WriteResult(item.index, tensor.numel() * tensor.element_size(), (name, key)))
        if tensors:
            for key in _shared_names(tensors):
                tensors[key] = tensors[key].clone()
            metadata = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)}
            save_file(tensors, self._folder / name, metadata, sync=self.sync_files)
        return _future(results)

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """By one rank, when all have written."""
        path, folder = os.path.abspath(self.path), str(self._folder)
        asked, self.path = self.path, self._folder
        try:
            super().finish(metadata, results)
        finally:
            self.path = asked
        if self.sync_files:
            _flush(folder)
        if os.path.lexists(path):
            _exchange(folder, path)
        else:
            os.rename(folder, path)
        if self.sync_files:
            _flush(os.path.dirname(path))
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)


class Reader(_dcp.FileSystemReader):
    """A StorageReader of what :class:`Writer` wrote, by any number of ranks. Tensors of a GPU are read into its memory.

    The metadata are a pickle, as torch.distributed.checkpoint has them: read checkpoints that you trust.

    Parameters
    ----------
    path : str or os.PathLike
        The folder of the checkpoint.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)

    def read_data(self, plan: Any, planner: Any) -> Any:
        """By each rank: the parts that it wants, from all files."""
        by_file: dict[tuple[str, str], list[Any]] = {}
        for item in plan.items:
            target = "cpu" if item.type == LoadItemType.BYTE_IO else str(planner.resolve_tensor(item).device)
            by_file.setdefault((self.storage_data[item.storage_index][0], target), []).append(item)
        for (name, device), items in by_file.items():
            with safe_open(os.path.join(self.path, name), framework="pt", device=device) as file:
                for item in items:
                    key = self.storage_data[item.storage_index][1]
                    if item.type == LoadItemType.BYTE_IO:
                        planner.load_bytes(item, io.BytesIO(bytes(file.get_tensor(key).numpy())))
                        continue
                    begins = zip(item.storage_offsets, item.lengths)
                    part = file.get_slice(key)[tuple(slice(begin, begin + length) for begin, length in begins)]
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(part)
                    planner.commit_tensor(item, target)
        return _future(None)
