#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the files of this folder: checkpoints with the `safetensors` package (0.8.0 wrote those that are stored), tar shards.

Byte i of every tensor is (7 * i + 3) mod 256. Not part of the build: the tests read the stored files.
"""

import ctypes
import io
import json
import math
import pathlib
import tarfile

from safetensors._safetensors_rust import TensorSpec, serialize_file

HERE = pathlib.Path(__file__).resolve().parent
BYTES = ctypes.create_string_buffer(bytes((7 * i + 3) % 256 for i in range(8192)), 8192)
DTYPES = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e5m2": 1, "float8_e4m3fn": 1, "float8_e8m0fnu": 1, "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1, "float4_e2m1fn_x2": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4,
    "uint32": 4, "float32": 4, "complex64": 8, "float64": 8, "int64": 8, "uint64": 8,
}


def spec(dtype, *shape):
    size = math.prod(shape) * DTYPES[dtype]
    return TensorSpec(dtype=dtype, shape=list(shape), data_ptr=ctypes.addressof(BYTES), data_len=size)


def member_add(shard, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    shard.addfile(info, io.BytesIO(data))


def shards_write():
    """Two shards of three samples, each with a text and a class."""
    for number in range(2):
        with tarfile.open(HERE / f"samples-{number}.tar", "w", format=tarfile.PAX_FORMAT) as shard:
            for i in range(3):
                sample = 3 * number + i
                member_add(shard, f"train/{sample:04d}.txt", f"sample {sample}\n".encode() * (i + 1))
                member_add(shard, f"train/{sample:04d}.cls", str(i).encode())


def main():
    shards_write()
    tensors = {f"dtype.{dtype}": spec(dtype, 2, 3) for dtype in DTYPES}
    tensors |= {
        "scalar": spec("float32"),
        "empty": spec("float32", 0, 3),
        "large": spec("float16", 7, 333),
        "b": spec("int64", 5),
        "a": spec("int64", 1),
        "aa": spec("int64", 2),
        "\u00fc \u20ac \U0001f680": spec("uint8", 3),
        'quote" back\\ slash/ tab\t line\n bell\x07 unit\x1f del\x7f': spec("uint8", 5),
    }
    serialize_file(tensors, HERE / "all.safetensors", {"format": "p\u00e4\"\u0001t"})
    serialize_file({}, HERE / "empty.safetensors")
    shards = {
        "sharded-00001-of-00002.safetensors": {"x": spec("float32", 4, 5), "y": spec("uint8", 7)},
        "sharded-00002-of-00002.safetensors": {"\u00fcber": spec("bfloat16", 31)},
    }
    for name, content in shards.items():
        serialize_file(content, HERE / name, {"format": "pt"})
    index = {"metadata": {"total_size": 80 + 7 + 62},
             "weight_map": {tensor: name for name, content in shards.items() for tensor in content}}
    (HERE / "sharded.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
