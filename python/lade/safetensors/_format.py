# SPDX-License-Identifier: Apache-2.0
"""The format: its types, the package's errors, and what it says about a file that is none."""

from __future__ import annotations

import errno
import json
import os
import sys

import lade
from lade._arguments import is_url
from lade._errors import Joined


_HEADER_MOST = 100_000_000

# Name in files: name in torch, name in NumPy and ml_dtypes (None: has none), bits.
_DTYPES = {
    "BOOL": ("bool", "bool", 8),
    "F4": ("float4_e2m1fn_x2", None, 4),
    "F6_E2M3": (None, None, 6),
    "F6_E3M2": (None, None, 6),
    "U8": ("uint8", "uint8", 8),
    "I8": ("int8", "int8", 8),
    "F8_E5M2": ("float8_e5m2", "float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", "float8_e4m3fn", 8),
    "F8_E8M0": ("float8_e8m0fnu", "float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", "float8_e5m2fnuz", 8),
    "I16": ("int16", "int16", 16),
    "U16": ("uint16", "uint16", 16),
    "F16": ("float16", "float16", 16),
    "BF16": ("bfloat16", "bfloat16", 16),
    "I32": ("int32", "int32", 32),
    "U32": ("uint32", "uint32", 32),
    "F32": ("float32", "float32", 32),
    "C64": ("complex64", "complex64", 64),
    "F64": ("float64", "float64", 64),
    "I64": ("int64", "int64", 64),
    "U64": ("uint64", "uint64", 64),
}
# Elements of the file in one of torch's.
_TORCH_PACKS = {"F4": 2}
_NAMES = {torch_name: name for name, (torch_name, _, _) in _DTYPES.items() if torch_name is not None}
# Of these each is converted to each other on the way to a device.
_NUMBERS = ("F32", "F16", "BF16", "F8_E5M2", "F8_E4M3")
_ML_DTYPES = ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz")


def _error_class():
    """The class to raise: also the package's own, where a program has imported it."""
    package = sys.modules.get("safetensors")
    theirs = getattr(package, "SafetensorError", None)
    if theirs is None:
        return SafetensorError
    if theirs not in _error_classes:
        body = {"__doc__": SafetensorError.__doc__, "__module__": SafetensorError.__module__, "_make": staticmethod(_error_class)}
        _error_classes[theirs] = Joined("SafetensorError", (SafetensorError, theirs), body)
    return _error_classes[theirs]


class SafetensorError(lade.Error, metaclass=Joined):
    """What is wrong with a file, a name or a slice; the text is that of the ``safetensors`` package where it has one."""


_error_classes: dict = {}


def _error(text):
    return _error_class()(text)


def _header_fault(path):
    """What the safetensors package says about a file that lade refuses; None where it would say nothing, or there is no telling."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            return "header too small"
        length = int.from_bytes(file.read(8), "little")
        if length > _HEADER_MOST:
            return "header too large"
        if length + 8 > size:
            return "invalid header length"
        raw = file.read(length)
    try:
        header = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as fault:
        end = "" if fault.reason == "unexpected end of data" else f" of {fault.end - fault.start} bytes"
        return f"invalid UTF-8 in header: invalid utf-8 sequence{end} from index {fault.start}"
    except (ValueError, RecursionError):
        return None
    return _layout_fault(header, size - 8 - length) if isinstance(header, dict) else None


def _layout_fault(header, data_bytes):
    """The first rule that the offsets of a header break; None where its entries are none."""
    rows = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            (begin, end), shape, bits = entry["data_offsets"], entry["shape"], _DTYPES[entry["dtype"]][2]
            numbers = [begin, end, *shape]
        except (KeyError, TypeError, ValueError):
            return None
        if not all(type(number) is int and 0 <= number < 1 << 64 for number in numbers):
            return None
        rows.append((begin, end, name, shape, bits))
    at = 0
    for begin, end, name, shape, bits in sorted(rows, key=lambda row: row[:2]):
        if begin != at or end < begin:
            return f"invalid offset for tensor `{name}`"
        at = end
        for extent in shape:
            bits *= extent
            if bits >= 1 << 64:
                return "overflow computing buffer size from shape and/or element type"
        if bits % 8 != 0:
            return "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte boundary, this is invalid."
        if bits // 8 != end - begin:
            return "invalid shape, data type, or offset for tensor"
    return None if at == data_bytes else "incomplete metadata, file not fully covered"


def _open_error(path, error):
    """The error of a file that could not be opened, as the package has it."""
    if isinstance(error, lade.InvalidArgumentError):
        return IsADirectoryError(str(error)) if os.path.isdir(path) else OSError(str(error))
    if isinstance(error, lade.IOError):
        if error.native_code != errno.ENOENT:
            return error
        return FileNotFoundError(str(error) if os.path.exists(path) or is_url(path) else f"No such file or directory: {path}")  # else one of an index
    fault = None
    if not str(path).endswith(".json") and not is_url(path):
        try:
            fault = _header_fault(path)
        except OSError:
            fault = None
    return _error(f"Error while deserializing header: {fault or f'invalid JSON in header: {error}'}")
