# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of many tensors: what they are made into, and when their memory goes."""

import contextlib
import ctypes
import gc
import json
import mmap
import os
import random
import struct
import sys
import time
import types

import numpy as np
import pytest

import lade
import lade.safetensors as ours
from lade.safetensors import _format, _frameworks, _open

# Name in files: bytes of an element, NumPy's type of the same size.
TYPES = {
    "BOOL": "u1", "U8": "u1", "I8": "u1", "F8_E5M2": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1", "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1",
    "I16": "u2", "U16": "u2", "F16": "u2", "BF16": "u2", "I32": "u4", "U32": "u4", "F32": "u4", "C64": "u8", "F64": "u8", "I64": "u8",
    "U64": "u8", "F4": "u1",
}
OF_NUMPY = ["BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"]


@pytest.fixture
def stage(device):
    """A pipeline and an allocator of their own, whose memory can be counted."""
    pipeline, allocator = lade.Pipeline(device), lade.DeviceAllocator(device)
    yield pipeline, allocator
    gc.collect()
    assert allocator.usage()["allocated_bytes"] == 0
    pipeline.close()
    allocator.close()


def used(stage):
    return stage[1].usage()["allocated_bytes"]


def file_make(path, seed, kinds, count, words):
    """A file of random tensors, in random order and with blanks; gives (type, shape, bytes) of each by name, in the order of the bytes."""
    draw = random.Random(seed)
    tensors, at, entries, body = {}, 0, [], []
    for number in range(count):
        name = f"{draw.choice(words)}.{number}"
        dtype = draw.choice(kinds)
        shape = [draw.choice([0, 1, 1, 2, 3, 5, 8]) for _ in range(draw.randrange(6))]
        if dtype == "F4":
            shape.append(2 * draw.randrange(4))
        bytes_ = int(np.prod(shape, dtype=np.int64)) * np.dtype(TYPES[dtype]).itemsize // (2 if dtype == "F4" else 1)
        data = draw.randbytes(bytes_) if dtype != "BOOL" else bytes(draw.randrange(2) for _ in range(bytes_))
        body.append(data)
        tensors[name] = dtype, tuple(shape), data
        facts = [("dtype", dtype), ("shape", shape), ("data_offsets", [at, at + bytes_])]
        draw.shuffle(facts)
        entries.append((name, dict(facts)))
        at += bytes_
    draw.shuffle(entries)
    header = json.dumps(dict([("__metadata__", {"format": "pt"}), *entries]), separators=draw.choice([(",", ":"), (" , ", " : ")]),
                        ensure_ascii=draw.random() < 0.5).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"".join(body))
    # Those without bytes come before the one that begins where they lie.
    return tensors


WORDS = [["model.layers.weight", "experts", ""], ["täg", "日本", "a\"b\\c\n"]]


@pytest.mark.parametrize("words", WORDS, ids=["plain", "other"])
@pytest.mark.parametrize("per_tensor", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_random_files(tmp_path, stage, words, per_tensor, seed):
    path = tmp_path / "x.safetensors"
    tensors = file_make(path, seed, OF_NUMPY, 60, words)
    loaded = ours.load_file(path, framework="np", pipeline=stage[0], allocator=stage[1], per_tensor=per_tensor)
    of_lade = ours.load_file(path, framework="lade", pipeline=stage[0], allocator=stage[1], per_tensor=per_tensor)
    assert set(loaded) == set(tensors) and list(loaded) == list(of_lade)
    with ours.safe_open(path, "np", pipeline=stage[0], allocator=stage[1]) as file:
        assert file.offset_keys() == list(loaded) and file.keys() == sorted(tensors)
    for name, (dtype, shape, data) in tensors.items():
        array = loaded[name]
        assert array.shape == shape and array.dtype == np.dtype(_format._DTYPES[dtype][1]) and array.tobytes() == data, name
        assert array.flags.writeable and array.flags.c_contiguous and array.flags.aligned, name
        assert of_lade[name].nbytes == len(data) and bytes(np.asarray(of_lade[name])) == data
    some = random.Random(seed).sample(list(tensors), 7)
    part = ours.load_file(path, framework="np", tensors=some, pipeline=stage[0], allocator=stage[1], per_tensor=per_tensor)
    assert list(part) == some and all(part[name].tobytes() == tensors[name][2] for name in some)
    del loaded, of_lade, part, array


@pytest.mark.parametrize("words", WORDS, ids=["plain", "other"])
@pytest.mark.parametrize("per_tensor", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_random_files_of_torch_beside_the_package(tmp_path, stage, words, per_tensor, seed):
    torch, package = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    path = tmp_path / "x.safetensors"
    kinds = [dtype for dtype in TYPES if hasattr(torch, _format._DTYPES[dtype][0]) and dtype != "F4"]
    tensors = file_make(path, seed, kinds, 60, words)
    loaded = ours.load_file(path, framework="pt", pipeline=stage[0], allocator=stage[1], per_tensor=per_tensor)
    wanted = package.load_file(path)
    assert set(loaded) == set(wanted) == set(tensors)
    for name, tensor in wanted.items():
        own = loaded[name]
        assert own.dtype == tensor.dtype and own.shape == tensor.shape and own.stride() == tensor.stride(), name
        assert own.device == tensor.device and not own.requires_grad
        assert bytes(own.contiguous().reshape(-1).view(torch.uint8).numpy()) == tensors[name][2], name
    del loaded, own


@pytest.mark.parametrize("takes", [True, False])
def test_all_types_of_torch(tmp_path, stage, takes, monkeypatch):
    """Also where torch's DLPack lacks a type."""
    torch = pytest.importorskip("torch")
    if not takes:
        monkeypatch.setattr(_frameworks, "_torch_takes", lambda torch, kind: kind == torch.uint8)
    kinds = [dtype for dtype in TYPES if hasattr(torch, _format._DTYPES[dtype][0])]
    tensors = file_make(tmp_path / "x", 1, kinds, 200, ["a"])
    loaded = ours.load_file(tmp_path / "x", framework="pt", pipeline=stage[0], allocator=stage[1])
    assert {tensors[name][0] for name in loaded} == set(kinds)
    for name, (dtype, shape, data) in tensors.items():
        shape = _frameworks._torch_shape(name, dtype, shape)
        assert loaded[name].dtype == getattr(torch, _format._DTYPES[dtype][0]) and loaded[name].shape == shape, name
        assert bytes(loaded[name].view(torch.uint8).numpy() if shape else loaded[name].reshape(1).view(torch.uint8).numpy()) == data, name
    del loaded


def test_torch_may_refuse_a_type_in_any_way(monkeypatch):
    def refuse(tensor):
        raise AssertionError("no such type")

    monkeypatch.setattr(_frameworks, "_plain_torch_kinds", {})
    assert not _frameworks._torch_takes(types.SimpleNamespace(empty=lambda *_, dtype: dtype, from_dlpack=refuse), "float7")


def test_tensors_of_torch_stand_alone(tmp_path, stage):
    """No tensor is a view of another: each has its own storage, and a change of one is none of another."""
    torch = pytest.importorskip("torch")
    file_make(tmp_path / "x", 3, ["F32"], 30, ["a"])
    loaded = ours.load_file(tmp_path / "x", framework="pt", pipeline=stage[0], allocator=stage[1])
    for tensor in loaded.values():
        assert not tensor._is_view() and tensor.untyped_storage().nbytes() == tensor.nbytes and tensor.storage_offset() == 0
    a, b = [tensor for tensor in loaded.values() if tensor.nbytes][:2]
    b.fill_(3)
    before = b._version
    a.add_(1)
    assert a._version == 1 and b._version == before
    b.requires_grad_()
    (b * b).sum().backward()
    a.zero_()
    assert (b.grad == 6).all()
    del loaded, a, b, tensor


@pytest.mark.parametrize("framework", ["np", "pt", "lade"])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_memory_goes_with_the_last_tensor(tmp_path, stage, framework, per_tensor):
    if framework == "pt":
        pytest.importorskip("torch")
    tensors = file_make(tmp_path / "x", 4, ["F64"], 40, ["a"])
    loaded = ours.load_file(tmp_path / "x", framework=framework, pipeline=stage[0], allocator=stage[1], per_tensor=per_tensor)
    whole = used(stage)
    names = [name for name, (_, _, data) in tensors.items() if data]
    kept = loaded[names[3]]
    del loaded
    gc.collect()
    assert (0 < used(stage) < whole) if per_tensor else used(stage) == whole > 0
    assert bytes(np.asarray(kept)) == tensors[names[3]][2]
    del kept


class Stop(Exception):
    pass


@pytest.mark.parametrize("framework", ["np", "pt", "lade"])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_a_load_that_fails_leaves_nothing(tmp_path, stage, framework, per_tensor):
    """Though its tensors were made, and the error's frames are there."""
    if framework == "pt":
        pytest.importorskip("torch")
    file_make(tmp_path / "x", 5, ["F32"], 40, ["a"])

    def progress(done, whole):
        raise Stop

    with pytest.raises(Stop) as caught:
        ours.load_file(tmp_path / "x", framework=framework, pipeline=stage[0], allocator=stage[1], per_tensor=per_tensor, progress=progress)
    assert caught.value.__traceback__ is not None and used(stage) == 0


@pytest.mark.parametrize("framework", ["np", "pt", "lade"])
def test_tensors_of_a_load_that_fails_keep_its_memory(tmp_path, stage, framework):
    """A debugger may have hold of them."""
    if framework == "pt":
        pytest.importorskip("torch")
    file_make(tmp_path / "x", 6, ["F32"], 40, ["a"])
    taken = []

    def progress(done, whole):
        taken.append(dict(sys._getframe(1).f_locals["tensors"]))
        raise Stop

    with pytest.raises(Stop):
        ours.load_file(tmp_path / "x", framework=framework, pipeline=stage[0], allocator=stage[1], progress=progress)
    assert used(stage) > 0 and len(taken[0]) == 40
    for tensor in taken[0].values():
        assert len(bytes(np.asarray(tensor))) == tensor.nbytes
    del tensor
    taken.clear()
    gc.collect()
    assert used(stage) == 0


def test_bytes_move_before_the_tensors_are_made(tmp_path, stage, monkeypatch):
    tensors = file_make(tmp_path / "x", 7, ["F32"], 40, ["a"])
    whole = sum(len(data) for _, _, data in tensors.values())
    of = _frameworks._OF_FRAMEWORK["numpy"]

    def make_all(*arguments):
        end = time.monotonic() + 60
        while stage[0].stats()["bytes_completed"] < whole and time.monotonic() < end:
            time.sleep(0.001)
        assert stage[0].stats()["bytes_completed"] == whole
        return of.make_all(*arguments)

    monkeypatch.setitem(_frameworks._OF_FRAMEWORK, "numpy", of._replace(make_all=make_all))
    loaded = ours.load_file(tmp_path / "x", framework="np", pipeline=stage[0], allocator=stage[1])
    assert all(loaded[name].tobytes() == data for name, (_, _, data) in tensors.items())
    del loaded


def test_no_type_of_a_framework_is_refused_late(tmp_path, stage):
    file_make(tmp_path / "x", 8, ["F32", "F4"], 40, ["a"])
    before = stage[0].stats()
    with pytest.raises(lade.UnsupportedError, match="NumPy has no dtype for F4"):
        ours.load_file(tmp_path / "x", framework="np", pipeline=stage[0], allocator=stage[1])
    assert stage[0].stats() == before


def test_an_empty_file(tmp_path, stage):
    file_make(tmp_path / "x", 9, ["F32"], 0, ["a"])
    for framework in ("np", "lade"):
        assert ours.load_file(tmp_path / "x", framework=framework, pipeline=stage[0], allocator=stage[1]) == {}
    assert ours.load_file(tmp_path / "x", framework="np", pipeline=stage[0], allocator=stage[1], tensors=[]) == {}


def test_arrays_of_cupy(tmp_path, stage, monkeypatch):
    """As CuPy makes them, which needs a GPU: over pointers into one array for each piece of memory."""
    def address(view):
        return np.asarray(view).__array_interface__["data"][0]

    def ndarray(shape, dtype, pointer):
        count = int(np.prod(shape)) * dtype.itemsize
        return np.frombuffer((ctypes.c_char * count).from_address(pointer), dtype).reshape(shape)

    asked = []
    package = types.ModuleType("cupy")
    package.cuda = types.SimpleNamespace(Device=lambda ordinal: asked.append(ordinal) or contextlib.nullcontext())
    package.ndarray, package.empty = ndarray, np.empty
    package.from_dlpack = lambda view: types.SimpleNamespace(data=address(view))
    monkeypatch.setitem(sys.modules, "cupy", package)
    tensors = file_make(tmp_path / "x", 10, ["F32", "U8"], 40, ["a"])
    monkeypatch.setattr(_open, "_framework_from", lambda framework, device: "cupy")
    for per_tensor in (False, True):
        loaded = ours.load_file(tmp_path / "x", framework="cupy", pipeline=stage[0], allocator=stage[1], per_tensor=per_tensor)
        # The stand-ins do not hold the memory, which has gone back; its bytes are there on a software device.
        assert {name: (array.shape, array.dtype) for name, array in loaded.items()} == {
            name: (shape, np.dtype("f4" if dtype == "F32" else "u1")) for name, (dtype, shape, _) in tensors.items()}
    assert asked == [stage[0].device.ordinal] * 2
    load = ours.safe_open(tmp_path / "x", "np", pipeline=stage[0], allocator=stage[1])
    under_way = load._file.start(load._target(), None, False, False)
    names = load._file.names()
    loaded = _frameworks._cupy_tensors(under_way, names, load._kinds(load._file, None), stage[0].device)
    under_way.wait(None)
    assert all(loaded[name].tobytes() == data for name, (_, _, data) in tensors.items())
    del loaded, under_way


def test_past_the_page_cache_where_it_has_nothing(tmp_path, stage):
    path, count = tmp_path / "x", 32 << 20
    ours.save_file({"a": np.arange(count // 4, dtype="u4")}, path)

    def direct_bytes(direct):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        before = stage[0].stats()
        loaded = ours.load_file(path, framework="np", pipeline=stage[0], allocator=stage[1], direct=direct)
        assert loaded["a"][-1] == count // 4 - 1
        after = stage[0].stats()
        return after["bytes_direct"] - before["bytes_direct"]

    assert direct_bytes(False) == 0
    if direct_bytes(True) > 0 and page_cache_forgets(path):
        assert direct_bytes(None) == direct_bytes(True)
    with pytest.raises(TypeError, match="direct is a str; expected True or False or None"):
        ours.load_file(path, framework="np", pipeline=stage[0], allocator=stage[1], direct="yes")


def page_cache_forgets(path):
    """Not where the file system is memory."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 1 << 20, prot=mmap.PROT_READ) as view:
            held = (ctypes.c_ubyte * ((1 << 20) // mmap.PAGESIZE))()
            libc = ctypes.CDLL(None, use_errno=True)
            address = np.frombuffer(view, "u1").__array_interface__["data"][0]
            assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(1 << 20), held) == 0
            return not any(flag & 1 for flag in held)
