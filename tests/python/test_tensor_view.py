# SPDX-License-Identifier: Apache-2.0
"""What the package takes as memory, and what it refuses: lade.memory_info shows it."""

import array
import mmap
import sys
import types

import numpy as np
import pytest

import lade


@pytest.mark.parametrize(
    "make, nbytes, read_only",
    [
        (lambda: np.zeros((3, 4), "f4"), 48, False),
        (lambda: np.zeros((3, 0), "f4"), 0, False),
        (lambda: np.zeros((), "f8"), 8, False),
        (lambda: np.zeros((1, 5), "i2").T, 10, False),
        (lambda: b"abc", 3, True),
        (lambda: bytearray(4), 4, False),
        (lambda: memoryview(b"abcd")[1:3], 2, True),
        (lambda: array.array("d", [1, 2]), 16, False),
        (lambda: mmap.mmap(-1, 4096), 4096, False),
        (lambda: np.zeros(3, "M8[s]"), 24, False),
        (lambda: np.zeros(2, "U3"), 24, False),
    ],
)
def test_memory_of_the_host(make, nbytes, read_only):
    info = lade.memory_info(make())
    assert (info["nbytes"], info["read_only"], info["on_device"]) == (nbytes, read_only, False)
    assert (info["ptr"] == 0) == (nbytes == 0)


def test_numpy_address_type_and_shape():
    numbers = np.arange(6, dtype=np.int16).reshape(2, 3)
    info = lade.memory_info(numbers, writable=True)
    assert (info["ptr"], info["dtype"], info["shape"]) == (numbers.ctypes.data, "int16", (2, 3))


def test_names_of_fields_are_no_types():
    """An "O" in them was taken for that of Python objects."""
    records = np.zeros(3, [("Offset", "<i4"), ("OO", [("O", "<f4"), ("x", "<u2", (2, 2))])])
    info = lade.memory_info(records)
    assert (info["ptr"], info["nbytes"], info["shape"]) == (records.ctypes.data, records.nbytes, (3,))
    with pytest.raises(lade.InvalidArgumentError, match="Python objects"):
        lade.memory_info(np.zeros(3, [("number", "<i4"), ("part", [("object", "O")])]))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: np.zeros((4, 4)).T, "not contiguous in C order"),
        (lambda: np.zeros((4, 4))[:, 1], "not contiguous in C order"),
        (lambda: np.zeros(4)[::-1], "not contiguous in C order"),
        (lambda: memoryview(b"abcd")[::2], "not contiguous in C order"),
        (lambda: np.array([object()]), "Python objects"),
        (lambda: np.ma.masked_equal([1, 2, 3], 2), r"mask would be lost; expected \.filled\(value\)"),
        (lambda: np.ma.array([1, 2, 3], ">i4"), "mask would be lost"),
        (lambda: np.ma.masked, "mask would be lost"),
        (lambda: 7, "object is a int, which shows no memory; expected"),
        (lambda: "text", "object is a str, which shows no memory"),
        (lambda: None, "shows no memory"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(lade.InvalidArgumentError, match=words):
        lade.memory_info(make())


@pytest.mark.parametrize("make", [lambda: b"abc", lambda: np.broadcast_to(np.zeros(1), 1), lambda: memoryview(b"abc")])
def test_read_only_memory_is_not_written(make):
    lade.memory_info(make())
    with pytest.raises(lade.InvalidArgumentError, match="which is read-only; expected one that may be written"):
        lade.memory_info(make(), writable=True)


class Interface:
    """An object with one of the array interfaces."""

    def __init__(self, name, **keys):
        setattr(self, name, {"version": 3, "shape": (2, 3), "typestr": "<f4", "data": (4096, False), **keys})


def test_cuda_array_interface():
    info = lade.memory_info(Interface("__cuda_array_interface__", stream=7))
    assert info["on_device"] and (info["ptr"], info["nbytes"], info["stream"]) == (4096, 24, 7)
    assert info["dtype"] == "float32" and info["ordinal"] == -1
    with pytest.raises(lade.InvalidArgumentError, match="not contiguous"):
        lade.memory_info(Interface("__cuda_array_interface__", strides=(4, 8)))
    with pytest.raises(lade.InvalidArgumentError, match="with a mask"):
        lade.memory_info(Interface("__cuda_array_interface__", mask=1))
    with pytest.raises(lade.InvalidArgumentError, match="read-only"):
        lade.memory_info(Interface("__cuda_array_interface__", data=(4096, True)), writable=True)


@pytest.mark.parametrize(
    "keys", [{"shape": (-1,)}, {"typestr": "f4"}, {"typestr": "|O8"}, {"data": None}, {"shape": (1 << 62, 1 << 62)}, {"strides": (4,)},
             {"data": (-1, False)}, {"data": ("x", False)}, {"shape": (1 << 70, 3)}, {"strides": ("x", 4)}, {"strides": (1 << 70, 4)},
             {"shape": 6}, {"strides": 4}, {"shape": (2.5, 3)}, {"shape": "23"}, {"shape": (None, 3)}]
)
def test_broken_interfaces_are_refused(keys):
    with pytest.raises(lade.InvalidArgumentError):
        lade.memory_info(Interface("__array_interface__", **keys))
    with pytest.raises(lade.InvalidArgumentError):
        lade.memory_info(Interface("__cuda_array_interface__", **keys))


def closed_views():
    view, mapping = memoryview(bytes(8)), mmap.mmap(-1, 8)
    view.release()
    mapping.close()
    return view, mapping


def test_memory_that_is_gone_is_an_error(device, pool):
    """Regression: the process was ended, by an error that was no longer there when it was raised."""
    target = lade.DeviceAllocator(device).empty(8, "uint8")
    for gone in closed_views():
        with pytest.raises(ValueError, match="released|closed"):
            lade.memory_info(gone)
        with pytest.raises(ValueError, match="released|closed"):
            pool.record(gone, 0)
        with pytest.raises(ValueError, match="released|closed"):
            lade.Pipeline(device).copy(gone, target)


@pytest.mark.parametrize("stream", ["x", -1, 1 << 70])
def test_a_broken_stream_of_an_interface_is_refused(stream):
    with pytest.raises(lade.InvalidArgumentError, match="wrong type or size"):
        lade.memory_info(Interface("__cuda_array_interface__", stream=stream))


class OnlyDlpack:
    """An array that shows itself by DLPack alone, as JAX's do; `versions` says whether it knows max_version."""

    def __init__(self, wrapped, versions):
        self.wrapped, self.versions = wrapped, versions

    def __dlpack_device__(self):
        return self.wrapped.__dlpack_device__()

    def __dlpack__(self, **keywords):
        if "max_version" in keywords and not self.versions:
            raise TypeError("unexpected keyword max_version")
        return self.wrapped.__dlpack__(**keywords)


@pytest.mark.parametrize("versions", [False, True])
def test_dlpack_of_others(versions):
    numbers = np.arange(12, dtype="f8").reshape(3, 4)
    info = lade.memory_info(OnlyDlpack(numbers, versions))
    assert (info["ptr"], info["nbytes"], info["dtype"], info["shape"]) == (numbers.ctypes.data, 96, "float64", (3, 4))
    with pytest.raises(lade.InvalidArgumentError, match="not contiguous"):
        lade.memory_info(OnlyDlpack(numbers.T, versions))


def test_dlpack_says_what_is_read_only():
    numbers = np.arange(3)
    numbers.flags.writeable = False
    with pytest.raises(lade.InvalidArgumentError, match="read-only"):
        lade.memory_info(OnlyDlpack(numbers, True), writable=True)


def test_buffers_of_lade(device, pool):
    allocator = lade.DeviceAllocator(device)
    stream = device.stream()
    pinned, on_device = pool.empty(8, "i4"), allocator.empty((2, 4), "i4", stream)
    assert lade.memory_info(pinned)["ptr"] == pinned.ptr
    info = lade.memory_info(on_device)
    assert (info["ptr"], info["on_device"], info["ordinal"], info["stream"]) == (on_device.ptr, True, 0, stream.handle)


def test_a_copy_there_and_back(device, pool):
    allocator = lade.DeviceAllocator(device)
    stream = device.stream()
    source, on_device, back = pool.empty((50, 3), "f4"), allocator.empty((50, 3), "f4", stream), pool.empty(600)
    source.numpy()[...] = np.random.default_rng(1).random((50, 3), "f4")
    lade.copy_async(device, on_device, source, stream)
    lade.copy_async(device, back, on_device, stream)
    stream.synchronize()
    assert bytes(back) == bytes(source)
    lade.fill_async(device, on_device, 255, stream)
    assert (np.from_dlpack(on_device).view("u1") == 255).all()


def test_memory_of_the_wrong_device():
    one = lade.software_device(clock="cpu", device_count=2)
    other = lade.software_device(clock="cpu")
    buffer = lade.PinnedPool(other).empty(16)
    far = lade.DeviceAllocator(one.sibling(1)).alloc(16)
    near = lade.DeviceAllocator(one).alloc(16)
    with pytest.raises(lade.InvalidArgumentError, match="source is of cpu:0 of another runtime"):
        lade.copy_async(one, near, buffer, None)
    with pytest.raises(lade.InvalidArgumentError, match="destination is on device 1; expected"):
        lade.copy_async(one, far, near, None)
    with pytest.raises(lade.InvalidArgumentError, match="memory of a GPU; expected memory for the software device"):
        lade.copy_async(one, near, Interface("__cuda_array_interface__", shape=(4,)), None)
    with pytest.raises(lade.InvalidArgumentError, match="source has 15 bytes and destination 16"):
        lade.copy_async(one, near, bytes(15), None)


class Named:
    """What PyTorch has for layouts and types: no str, but with one."""

    def __init__(self, text):
        self.text = text

    def __str__(self):
        return self.text


class StandInTensor:
    """As much of torch.Tensor as is asked of one on a GPU."""

    is_conj = is_neg = lambda self: False
    is_contiguous = lambda self: True
    data_ptr = lambda self: 4096
    nbytes, shape = 12, (3,)

    def __init__(self, layout="torch.strided", dtype="torch.float32"):
        self.device = types.SimpleNamespace(type="cuda", index=0)
        self.layout, self.dtype = Named(layout), Named(dtype)


@pytest.fixture
def stand_in(monkeypatch):
    torch = types.ModuleType("torch")
    torch.Tensor = StandInTensor
    monkeypatch.setitem(sys.modules, "torch", torch)


# The bug: a layout was taken for a str, and each tensor of a GPU ended the process.
def test_tensors_of_pytorch_on_a_gpu(stand_in):
    info = lade.memory_info(StandInTensor())
    assert (info["ptr"], info["nbytes"], info["dtype"], info["shape"]) == (4096, 12, "float32", (3,))
    assert info["on_device"]
    with pytest.raises(lade.InvalidArgumentError, match="of layout torch.sparse_coo; expected a strided tensor"):
        lade.memory_info(StandInTensor(layout="torch.sparse_coo"))


def test_no_copy_takes_a_masked_array(device, tmp_path):
    """Regression: what is masked was copied and written as if it were a value."""
    masked = np.ma.masked_equal(np.arange(8, dtype=np.uint8), 3)
    buffer, stream = lade.DeviceAllocator(device).alloc(8), device.stream()
    pinned = lade.PinnedPool(device).empty(8)
    with lade.Pipeline(device) as pipeline:
        for call in (
            lambda: pipeline.copy(masked, buffer),
            lambda: pipeline.copy(buffer, masked),
            lambda: pipeline.write_from(tmp_path / "file", 0, masked),
            lambda: lade.copy_async(device, pinned, masked, stream),
            lambda: lade.fill_async(device, masked, 0, stream),
        ):
            with pytest.raises(lade.InvalidArgumentError, match="MaskedArray, whose mask would be lost"):
                call()
        pipeline.copy(masked.filled(9), buffer).wait()
    assert bytes(np.from_dlpack(buffer)) == bytes([0, 1, 2, 9, 4, 5, 6, 7]) and not (tmp_path / "file").exists()
