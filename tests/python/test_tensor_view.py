# SPDX-License-Identifier: Apache-2.0
"""What the package takes as memory, and what it refuses: lade.memory_info shows it."""

import array
import ctypes
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
            lade.Pipeline(device).copy(target, gone)


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
        lade.fill_async(one, far, 1, None)
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
            lambda: pipeline.copy(buffer, masked),
            lambda: pipeline.copy(masked, buffer),
            lambda: pipeline.write_from(tmp_path / "file", 0, masked),
            lambda: lade.copy_async(device, pinned, masked, stream),
            lambda: lade.fill_async(device, masked, 0, stream),
        ):
            with pytest.raises(lade.InvalidArgumentError, match="MaskedArray, whose mask would be lost"):
                call()
        pipeline.copy(buffer, masked.filled(9)).wait()
    assert bytes(np.from_dlpack(buffer)) == bytes([0, 1, 2, 9, 4, 5, 6, 7]) and not (tmp_path / "file").exists()


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class DLManaged(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class DLVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", DLTensor)]


class Capsule:
    """Memory that is shown by a capsule with whatever it says of itself: four floats in two rows, but for what is changed."""

    def __init__(self, versioned, shape=(2, 2), strides=(2, 1), told=None, **changed):
        self.memory = (ctypes.c_float * 8)(*range(8))
        self.shape = (ctypes.c_int64 * len(shape))(*shape) if shape is not None else None
        self.strides = (ctypes.c_int64 * len(strides))(*strides) if strides is not None else None
        self.managed = DLVersioned(major=1, minor=1) if versioned else DLManaged()
        tensor = self.managed.tensor
        tensor.data, tensor.device_type, tensor.code, tensor.bits, tensor.lanes = ctypes.addressof(self.memory), 1, 2, 32, 1
        tensor.ndim = 2 if shape is None else len(shape)
        tensor.shape, tensor.strides = self.shape, self.strides
        for name, value in changed.items():
            setattr(self.managed if name == "major" else tensor, name, value)
        self.name = b"dltensor_versioned" if versioned else b"dltensor"
        self.told = (tensor.device_type, 0) if told is None else told

    def __dlpack_device__(self):
        return self.told

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), self.name, None)


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("honest, nbytes", [
    ({}, 16), ({"strides": None}, 16), ({"byte_offset": 4}, 16), ({"shape": (), "strides": ()}, 4), ({"shape": (1, 4), "strides": (-99, 1)}, 16),
    ({"shape": (1, 4), "strides": (1 << 62, 1)}, 16), ({"shape": (0, 4), "strides": (7, 7), "data": None}, 0), ({"code": 77}, 16),
    ({"shape": None, "ndim": 0}, 4),
])
def test_capsules_that_are_right(versioned, honest, nbytes):
    capsule = Capsule(versioned, **honest)
    info = lade.memory_info(capsule)
    address = ctypes.addressof(capsule.memory) + honest.get("byte_offset", 0) if nbytes else 0
    assert (info["nbytes"], info["ptr"], info["on_device"]) == (nbytes, address, False)


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("lie, words", [
    ({"ndim": -1}, "-1 dimensions; expected 0 to 64"),
    ({"ndim": 65}, "65 dimensions; expected 0 to 64"),
    ({"ndim": 1 << 30}, "1073741824 dimensions; expected 0 to 64"),
    ({"shape": None}, "2 dimensions and no shape"),
    ({"shape": (-1, 2)}, "an extent of -1; expected 0 or more"),
    ({"shape": (-1, 0)}, "an extent of -1; expected 0 or more"),
    ({"shape": (-2, -2)}, "an extent of -2; expected 0 or more"),
    ({"shape": (1 << 62, 4), "strides": None}, "more bytes than an address space"),
    ({"shape": (1 << 61, 1), "strides": None}, "more bytes than an address space"),
    ({"strides": (-2, 1)}, "not contiguous"),
    ({"strides": (2, -1)}, "not contiguous"),
    ({"strides": (1, 2)}, "not contiguous"),
    ({"strides": (0, 0)}, "not contiguous"),
    ({"strides": ((1 << 62) + 2, 1)}, "not contiguous"),  # of 4 bytes each: 8, where that wraps around
    ({"data": None}, "16 bytes at no address"),
    ({"data": None, "byte_offset": 64}, "16 bytes at no address"),
    ({"byte_offset": (1 << 64) - 1}, "beyond the end of the address space"),
    ({"data": (1 << 64) - 15}, "beyond the end of the address space"),
    ({"bits": 0}, "elements of 0 bits"),
    ({"bits": 4}, "elements of 4 bits"),
    ({"bits": 24}, "elements of 24 bits"),
    ({"bits": 248}, "elements of 248 bits"),
    ({"lanes": 0}, "elements of 0 lanes; expected 1"),
    ({"lanes": 4}, "elements of 4 lanes; expected 1"),
    ({"device_type": 4}, "DLPack's type 4"),
    ({"device_type": 2, "told": (1, 0)}, "another device than __dlpack_device__ says"),
    ({"told": (2, 0)}, "another device than __dlpack_device__ says"),
    ({"device_type": 2, "device_id": -1}, "device -1; expected 0 or more"),
    ({"told": 1}, r"__dlpack_device__ gave 1; expected \(device_type, device_id\)"),
    ({"told": ()}, r"__dlpack_device__ gave \(\); expected"),
    ({"told": ("1", 0)}, "__dlpack_device__ gave .*; expected"),
])
def test_capsules_that_lie_are_refused(versioned, lie, words, device):
    """Regression: dimensions, extents, strides and addresses were taken as they were said, and read from there."""
    capsule = Capsule(versioned, **lie)
    with pytest.raises(lade.InvalidArgumentError, match=f"^object is a .*Capsule, .*{words}"):
        lade.memory_info(capsule)
    target = lade.DeviceAllocator(device).alloc(16)
    with pytest.raises(lade.InvalidArgumentError, match=words):
        lade.Pipeline(device).copy(target, capsule)
    with pytest.raises(lade.InvalidArgumentError, match=words):
        lade.copy_async(device, target, capsule, None)


def test_a_capsule_of_another_major_version_is_refused():
    with pytest.raises(lade.InvalidArgumentError, match="major version 2; expected 1"):
        lade.memory_info(Capsule(True, major=2))


@pytest.mark.parametrize("name", ["__array_interface__", "__cuda_array_interface__"])
@pytest.mark.parametrize("address, words", [(0, "24 bytes at no address"), ((1 << 64) - 8, "beyond the end of the address space")])
def test_interfaces_whose_address_cannot_be_are_refused(name, address, words):
    with pytest.raises(lade.InvalidArgumentError, match=words):
        lade.memory_info(Interface(name, data=(address, False)))


ML_DTYPES = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]


@pytest.mark.parametrize("name", ML_DTYPES)
def test_types_of_ml_dtypes_have_a_name(name):
    """Regression: their dtype was None."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numbers = np.zeros((2, 3), getattr(ml_dtypes, name))
    info = lade.memory_info(numbers)
    assert (info["ptr"], info["dtype"], info["shape"], info["nbytes"]) == (numbers.ctypes.data, name, (2, 3), numbers.nbytes)


@pytest.mark.parametrize("kind", [np.dtype(">f4"), np.dtype([("float32", "<f4")]), np.dtype("V2"), np.dtype("M8[s]")])
def test_other_types_have_none(kind):
    for array_like in (np.zeros(2, kind), Interface("__array_interface__", **np.zeros(2, kind).__array_interface__)):
        assert lade.memory_info(array_like)["dtype"] is None


def refusing(pool, name):
    """An array whose type the buffer protocol cannot name, and which shows its memory by DLPack, as JAX's and TensorFlow's do."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    buffer = pool.empty((2, 3), name)

    class Refusing(np.ndarray):
        def __getattribute__(self, key):
            if key in ("__array_interface__", "__array_struct__"):
                raise AttributeError(key)
            return super().__getattribute__(key)

        def __dlpack__(self, **keywords):
            return buffer.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return buffer.__dlpack_device__()

    return buffer, np.zeros((2, 3), getattr(ml_dtypes, name)).view(Refusing)


@pytest.mark.parametrize("name", ML_DTYPES)
def test_dlpack_where_the_buffer_protocol_refuses(pool, name):
    """Regression: the refusal of the buffer protocol was the end."""
    buffer, array_like = refusing(pool, name)
    with pytest.raises((BufferError, ValueError, TypeError)):
        memoryview(array_like)
    info = lade.memory_info(array_like)
    assert (info["ptr"], info["dtype"], info["shape"]) == (buffer.ptr, name, (2, 3))


def test_what_shows_its_memory_in_no_other_way_raises_its_own_error():
    ml_dtypes = pytest.importorskip("ml_dtypes")

    class Refusing(np.ndarray):
        def __getattribute__(self, key):
            if key in ("__array_interface__", "__array_struct__", "__dlpack__"):
                raise AttributeError(key)
            return super().__getattribute__(key)

    with pytest.raises((BufferError, ValueError)):
        lade.memory_info(np.zeros(2, ml_dtypes.bfloat16).view(Refusing))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "int8"])
def test_arrays_of_jax(name):
    """Regression: of bfloat16 and float8 a TypeError of the buffer protocol."""
    jax = pytest.importorskip("jax")
    array = jax.numpy.ones((2, 3), name)
    info = lade.memory_info(array)
    assert (info["dtype"], info["shape"], info["nbytes"], info["ptr"]) == (name, (2, 3), array.nbytes, array.unsafe_buffer_pointer())


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_arrays_of_tensorflow(name):
    """Regression: of bfloat16 a ValueError of the buffer protocol. Of float8 TensorFlow shows no memory: its DLPack refuses that."""
    tensorflow = pytest.importorskip("tensorflow")
    info = lade.memory_info(tensorflow.cast(tensorflow.ones((2, 3)), name))
    assert (info["dtype"], info["shape"]) == (name, (2, 3))


def test_data_of_an_array_interface_that_are_bytes():
    """Regression: Pillow's images were refused."""
    data = bytes(range(12))
    keys = {"version": 3, "shape": (2, 3), "typestr": "<i2", "data": data}
    info = lade.memory_info(Interface("__array_interface__", **keys))
    assert (info["nbytes"], info["read_only"], info["dtype"], info["shape"]) == (12, True, "int16", (2, 3))
    assert ctypes.string_at(info["ptr"], 12) == data
    later = lade.memory_info(Interface("__array_interface__", **{**keys, "shape": (2,), "offset": 3}))
    assert (later["ptr"], later["nbytes"]) == (info["ptr"] + 3, 4)
    writable = lade.memory_info(Interface("__array_interface__", **{**keys, "data": bytearray(data)}), writable=True)
    assert not writable["read_only"]
    for changed, words in (({"shape": (2, 4)}, "shows 16 bytes from byte 0 on of data of 12"), ({"offset": 1}, "12 bytes from byte 1 on of data of 12"),
                           ({"offset": 1 << 62}, "of data of 12"), ({"offset": -1}, "wrong type or size"), ({"data": memoryview(data)[::2]}, "not contiguous"),
                           ({"strides": (2, 4)}, "not contiguous in C order")):
        with pytest.raises(lade.InvalidArgumentError, match=words):
            lade.memory_info(Interface("__array_interface__", **{**keys, **changed}))
    with pytest.raises(lade.InvalidArgumentError, match="read-only"):
        lade.memory_info(Interface("__array_interface__", **keys), writable=True)
    with pytest.raises(lade.InvalidArgumentError, match="no address"):
        lade.memory_info(Interface("__cuda_array_interface__", **keys))


def test_images_of_pillow():
    image = pytest.importorskip("PIL.Image")
    info = lade.memory_info(image.new("RGB", (3, 2), (1, 2, 3)))
    assert (info["shape"], info["dtype"]) == ((2, 3, 3), "uint8")
