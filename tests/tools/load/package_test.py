#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `lade save` writes, judged by the `safetensors` package: one file byte for byte, several files and their index.

usage: package_test.py LADE          exit status: 0 passed, 1 failed, 77 the package is not there
"""

import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    from safetensors import deserialize
    from safetensors._safetensors_rust import TensorSpec, serialize_file
except ImportError as error:
    print(f"skipped: no Python package safetensors ({error}); pip install safetensors")
    sys.exit(77)

SHAPES = {
    "w.0": ("float32", 4, [16, 8]),
    "w.1": ("bfloat16", 2, [7]),
    "w.2": ("float16", 2, [3, 5]),
    "none": ("int64", 8, [0, 2]),
    "scalar": ("float64", 8, []),
    "\u00fcber": ("uint8", 1, [333]),
}


def spec(dtype, item_bytes, shape, buffer, at):
    count = item_bytes
    for extent in shape:
        count *= extent
    return TensorSpec(dtype=dtype, shape=shape, data_ptr=ctypes.addressof(buffer) + at, data_len=count), at + count


def source_write(path, seed, metadata):
    """A checkpoint by the package; the buffer must outlive the call."""
    buffer = ctypes.create_string_buffer(bytes((seed * i + 3) % 256 for i in range(4096)), 4096)
    tensors, at = {}, 0
    for name, (dtype, item_bytes, shape) in SHAPES.items():
        tensors[name], at = spec(dtype, item_bytes, shape, buffer, at)
    serialize_file(tensors, path, metadata)


def tensors_of(path):
    """name -> (dtype, shape, bytes), as the package reads the file."""
    return {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in deserialize(path.read_bytes())}


def metadata_of(path):
    """Of a file that the package has read: its own call for this needs numpy."""
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})


def save(lade, *arguments):
    subprocess.run([lade, "save", "--runtime", "sim", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def sharded_check(index_path, source, number):
    index = json.loads(index_path.read_text())
    files = sorted(set(index["weight_map"].values()))
    expected = tensors_of(source)
    assert list(index) == ["metadata", "weight_map"], index
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in expected.values()), index
    assert set(index["weight_map"]) == set(expected), index
    found = {}
    for i, name in enumerate(files):
        path = index_path.parent / name
        assert name == f"model-{number}-{i + 1:05d}-of-{len(files):05d}.safetensors", name
        metadata = metadata_of(path)
        identity = metadata.pop("lade_save")
        assert identity == index["metadata"]["lade_save"] and identity.startswith(f"{number}-"), identity
        assert metadata == {"format": "pt", **metadata_of(source)}, metadata
        tensors = tensors_of(path)
        assert all(index["weight_map"][tensor] == name for tensor in tensors), name
        found |= tensors
    assert found == expected
    assert len(files) > 2 and len(list(index_path.parent.iterdir())) == len(files) + 1, os.listdir(index_path.parent)


def main(lade):
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as name:
        folder = pathlib.Path(name)
        (folder / "saved").mkdir()
        for number, (seed, metadata) in enumerate(((7, {"format": "pt"}), (11, None), (13, {"epoch": "3"}), (17, {"format": "np"})), start=1):
            source = folder / f"source{seed}.safetensors"
            source_write(source, seed, metadata)
            save(lade, source, folder / "one.safetensors")
            assert (folder / "one.safetensors").read_bytes() == source.read_bytes()
            save(lade, "--max-shard-size", "300", source, folder / "saved" / "model.safetensors")
            sharded_check(folder / "saved" / "model.safetensors.index.json", source, number)
    print("passed")


if __name__ == "__main__":
    main(sys.argv[1])
