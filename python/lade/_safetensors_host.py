# SPDX-License-Identifier: Apache-2.0
"""Host tensors into a file of the safetensors format.

    temporary file beside it --> header --> bytes of the tensors, from where they are --> flushed --> renamed
"""

import ctypes
import io
import json
import math
import os
import stat
import sys

_STEP = 64 << 20  # bytes of a write: signals are seen between two
_NAME_START = 200  # bytes of a file's name that its temporary name begins with: file systems take 255


def _in_order(shape, strides, item_bytes):
    """Whether rows follow each other without a gap."""
    step = item_bytes
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True


def _array_memory(name, tensor):
    """(address, bytes) of an array, by what its memory is and not by what it says of itself beside that."""
    facts = getattr(tensor, "__array_interface__", {})
    data, strides = facts.get("data"), facts.get("strides")
    if not isinstance(data, tuple) or not data or not isinstance(data[0], int) or facts.get("mask") is not None:
        raise ValueError(f"tensor `{name}` is a {type(tensor).__name__} that shows no address; expected an array with memory of its own")
    shape, item_bytes = facts["shape"], int(facts["typestr"][2:])
    if strides is not None and 0 not in shape and not _in_order(shape, strides, item_bytes):
        raise ValueError(f"non contiguous tensor: `{name}`; expected one in C order, as .copy() gives")
    return data[0], math.prod(shape) * item_bytes


def _memory(name, tensor, wanted):
    """The tensor's bytes as a memoryview, `wanted` ones; they are not copied."""
    address, count = (tensor.data_ptr(), tensor.nbytes) if hasattr(tensor, "data_ptr") else _array_memory(name, tensor)
    if count != wanted:
        raise ValueError(f"tensor `{name}` has {count} bytes of memory; expected {wanted}, as its dtype and shape say")
    if count and not 0 < address < (1 << 64) - count:
        raise ValueError(f"tensor `{name}` has {count} bytes of memory at address {address}, where none can be")
    return memoryview((ctypes.c_char * count).from_address(address)).cast("B") if count else memoryview(b"")


def laid_out(tensor):
    """The tensor with its values in memory of its own, as a file has them.

    NumPy's scalars show memory that is gone when they have shown it: they become arrays. Those of the other byte order are turned round.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, numpy.generic):
        tensor = tensor[...]
    dtype = getattr(tensor, "dtype", None)
    if getattr(dtype, "byteorder", "=") == ">":
        return tensor.astype(dtype.newbyteorder("<"))
    return tensor


def _header(rows, metadata, bytes_of):
    header, at = {}, 0
    if metadata is not None:
        header["__metadata__"] = dict(metadata)
    for name, dtype, shape, _ in rows:
        end = at + bytes_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": [int(extent) for extent in shape], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, at


def _write(file, view):
    while len(view):
        view = view[file.write(view[:_STEP]):]


def _replaceable(path):
    """Refuses to put a file where a folder or a device is."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, "Is a directory", path)
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise OSError(22, "neither a file nor a link, so it cannot be replaced", path)


def _temporary(folder, name, made):
    """Make a new file beside the one that is written, and put it and its path into the list.

    With no step of Python between: a signal's handler that raises there would leave a file that nobody removes.
    """
    start = os.fsdecode(os.fsencode(name)[:_NAME_START])
    for number in range(1, 1000):
        path = os.path.join(folder, f".{start}.lade-{os.getpid()}-{number}")
        try:
            return made.extend(zip([path], map(io.FileIO, [path], ["x"])))
        except FileExistsError:
            continue
    raise FileExistsError(17, "a thousand temporary files lie beside it", os.path.join(folder, name))


def save_host(rows, path, metadata, order, bytes_of, sync, progress):
    """Write rows (name, dtype, shape, tensor). `order` numbers the dtypes, later ones first; `bytes_of(dtype, shape)`."""
    rows = sorted(rows, key=lambda row: (-order[row[1]], row[0]))
    header, total = _header(rows, metadata, bytes_of)
    path = os.fsdecode(path)
    _replaceable(path)
    folder, name = os.path.split(path)
    made = []
    try:
        _temporary(folder, name, made)
        (temporary, file), = made
        with file:
            _write(file, memoryview(header))
            done = 0
            for key, dtype, shape, tensor in rows:
                tensor = laid_out(tensor)
                view = _memory(key, tensor, bytes_of(dtype, shape))
                _write(file, view)
                done += len(view)
                if progress is not None:
                    progress(done, total)
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        for temporary, file in made:
            try:
                os.unlink(temporary)
            except FileNotFoundError:
                pass
            file.close()
        raise
    if sync:
        _flush_folder(folder)


def _flush_folder(folder):
    opened = []
    try:
        # No step of Python between, as in _temporary().
        opened.extend(map(os.open, [folder or "."], [os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC]))
        os.fsync(opened[0])
    finally:
        for fd in opened:
            os.close(fd)
