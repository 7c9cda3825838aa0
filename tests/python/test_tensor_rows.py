# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch that are saved and loaded into: read by DLPack's exchange API, and where they have something else to them by attributes.

Over a small double of torch, whose tensors are "of a GPU" where their memory is the software device's; and over torch where it is there.
"""

import ctypes
import sys
import types
import weakref

import numpy as np
import pytest

import lade
import lade.safetensors as ours


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("dims", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_Read = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_DLTensor))


class _Api(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("unused", ctypes.c_void_p * 4), ("read", _Read),
                ("stream", ctypes.c_void_p)]


_CODES = {"i": 0, "u": 1, "f": 2, "c": 5}


class Storage:
    pass


class Tensor:
    """An array as a tensor. `odd`: what DLPack would not tell."""

    layout = "torch.strided"
    reads = 0

    def __init__(self, array, on_gpu=False, odd=""):
        self.array, self.odd = array, odd
        self.device = types.SimpleNamespace(type="cuda" if on_gpu else "cpu", index=0 if on_gpu else None)
        self.dtype = f"torch.{array.dtype}"
        self.shape, self.nbytes, self.storage = array.shape, array.nbytes, Storage()

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def is_neg(self):
        if self.odd == "replaced":  # as another thread may meanwhile
            self.array, self.storage = self.array.copy(), Storage()
        return self.odd == "negative"

    def is_conj(self):
        return self.odd == "conjugate"

    def resolve_conj(self):
        return Tensor(self.array.conj()) if self.odd == "conjugate" else self

    def resolve_neg(self):
        return Tensor(-self.array) if self.odd == "negative" else self

    def detach(self):
        return self

    def data_ptr(self):
        return self.array.ctypes.data

    def untyped_storage(self):
        return self.storage


class Parameter(Tensor):
    pass


class Other(Tensor):
    """A class that DLPack's struct does not speak of."""


@_Read
def _read(tensor, out):
    if tensor.odd == "refused":
        return -1
    Tensor.reads += 1
    array = tensor.array
    tensor.extents = (ctypes.c_int64 * array.ndim)(*array.shape)
    tensor.steps = (ctypes.c_int64 * array.ndim)(*(step // array.itemsize for step in array.strides))
    out[0] = _DLTensor(array.ctypes.data - 8, 2 if tensor.device.type == "cuda" else 1, 0, array.ndim, _CODES[array.dtype.kind],
                       8 * array.itemsize, 1, tensor.extents, tensor.steps, 8)
    return 0


_api = _Api(1, 3, (None,) * 4, _read, None)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


@pytest.fixture
def torch(monkeypatch, device):
    monkeypatch.setattr(Tensor, "__dlpack_c_exchange_api__", _new_capsule(ctypes.addressof(_api), b"dlpack_exchange_api", None),
                        raising=False)
    monkeypatch.setattr(Tensor, "reads", 0)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(
        Tensor=Tensor, nn=types.SimpleNamespace(Parameter=Parameter), from_dlpack=None))
    monkeypatch.setattr(lade, "cuda_device", lambda ordinal: device)
    return sys.modules["torch"]


ARRAYS = {"a": np.arange(30, dtype=np.float32).reshape(5, 6), "b": np.arange(7, dtype=np.int64), "empty": np.zeros((0, 3), np.int8),
          "one": np.array(2.5), "c": np.arange(4, dtype=np.complex64) * 1j}


@pytest.fixture
def path(tmp_path):
    pytest.importorskip("safetensors.numpy").save_file(ARRAYS, tmp_path / "judge")
    return tmp_path / "judge"


def on_device(device):
    """Tensors "of a GPU" in memory of the software device, and what keeps that."""
    allocator = lade.DeviceAllocator(device)
    kept = {name: allocator.empty(array.shape, array.dtype) for name, array in ARRAYS.items()}
    tensors = {name: Tensor(np.from_dlpack(buffer), True) for name, buffer in kept.items()}
    for tensor in tensors.values():
        tensor.array[...] = -1
    return tensors, (allocator, kept)


@pytest.mark.parametrize("kind", [Tensor, Parameter, Other])
def test_tensors_are_saved(torch, path, tmp_path, kind):
    ours.save_file({name: kind(array) for name, array in ARRAYS.items()}, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == path.read_bytes()
    assert Tensor.reads == (0 if kind is Other else len(ARRAYS))


def test_tensors_that_torch_refuses_to_dlpack_are_saved(torch, path, tmp_path):
    ours.save_file({name: Tensor(array, odd="refused") for name, array in ARRAYS.items()}, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == path.read_bytes()


def test_bytes_that_are_not_the_values_yet(torch, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    ours.save_file({"c": Tensor(ARRAYS["c"], odd="conjugate"), "a": Tensor(ARRAYS["a"], odd="negative")}, tmp_path / "m")
    loaded = safetensors.load_file(tmp_path / "m")
    np.testing.assert_array_equal(loaded["c"], ARRAYS["c"].conj())
    np.testing.assert_array_equal(loaded["a"], -ARRAYS["a"])


def test_what_is_not_contiguous_or_shared_is_refused(torch, tmp_path):
    with pytest.raises(ValueError, match="non contiguous tensor: `a`"):
        ours.save_file({"a": Tensor(ARRAYS["a"].T)}, tmp_path / "m")
    with pytest.raises(RuntimeError, match=r"share memory, which a file would hold twice: \['a', 'part'\]"):
        ours.save_file({"a": Tensor(ARRAYS["a"]), "b": Tensor(ARRAYS["b"]), "part": Tensor(ARRAYS["a"][1:])}, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_tensors_are_loaded_into(torch, path, device):
    tensors, kept = on_device(device)
    assert ours.load_into(tensors, path) == ([], [])
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(tensors[name].array, array)
    assert Tensor.reads == len(ARRAYS)


def test_of_tied_tensors_one_name_will_do(torch, path, device):
    tensors, kept = on_device(device)
    tensors["A"] = Parameter(tensors["a"].array, True)
    assert ours.load_into(tensors, path) == ([], [])
    tensors["more"] = Tensor(tensors["one"].array.reshape(1), True)
    del tensors["one"]
    with pytest.raises(RuntimeError, match=r"missing \['more'\], unexpected \['one'\]"):
        ours.load_into(tensors, path)
    np.testing.assert_array_equal(tensors["a"].array, ARRAYS["a"])


def test_what_cannot_be_loaded_into(torch, path, device):
    tensors, kept = on_device(device)
    for name, wrong, text in (("a", Tensor(tensors["a"].array, True, "negative"), "`a` is a conjugate or negative view"),
                              ("a", Tensor(tensors["a"].array.reshape(6, 5), True), r"`a` is F32 \(6, 5\); expected F32 \(5, 6\)"),
                              ("b", Tensor(ARRAYS["b"]), "tensors are on cpu:0, the host; expected all on one GPU")):
        with pytest.raises(lade.InvalidArgumentError, match=text):
            ours.load_into({**tensors, name: wrong}, path)
    np.testing.assert_array_equal(tensors["c"].array, -1)


def test_a_save_holds_the_storages_until_it_is_staged(torch, tmp_path):
    tensors = {"a": Tensor(ARRAYS["a"].copy())}
    held = weakref.ref(tensors["a"].storage)
    save = ours.save_file(tensors, tmp_path / "m", wait=False)
    del tensors["a"].storage
    assert held() is not None
    save.wait()
    assert held() is None


def test_the_storage_is_that_of_the_bytes(torch):
    tensor = Tensor(ARRAYS["a"].copy(), odd="replaced")
    held = weakref.ref(tensor.storage)
    rows = ours._rows._rows_of({"a": tensor})
    assert tensor.storage is not held() and held() is not None
    del rows
    assert held() is None


@pytest.mark.parametrize("items", [[()], [("a",)], [("b", ARRAYS["b"], 1)], [["b", ARRAYS["b"]]], ["ab"]])
def test_items_that_are_no_pairs(tmp_path, items):
    tensors = type("Odd", (dict,), {"items": lambda self: iter(items)})()
    with pytest.raises(lade.InvalidArgumentError, match=r"^items\(\) of tensors has .*; expected pairs of a name and a tensor$"):
        ours.save_file(tensors, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_metadata_is_asked_for_once(tmp_path):
    asked = iter([[["key", "value"]], [("key",)]])  # what a second call gives is not looked at
    metadata = type("Odd", (dict,), {"items": lambda self: next(asked)})()
    ours.save_file({"b": ARRAYS["b"]}, tmp_path / "m", metadata)
    with ours.safe_open(tmp_path / "m", "np", "cpu") as file:
        assert file.metadata() == {"key": "value"}


def test_tensors_that_are_taken_away_meanwhile(tmp_path):
    tensors = {"b": ARRAYS["b"]}

    class Odd:
        dtype = ARRAYS["b"].dtype
        shape = ARRAYS["b"].shape

        @property
        def __array_interface__(self):
            tensors.clear()
            return ARRAYS["b"].__array_interface__

    tensors["odd"], tensors["more"] = Odd(), ARRAYS["b"]
    with pytest.raises(RuntimeError, match="changed size during iteration"):
        ours.save_file(tensors, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_tensors_of_torch(tmp_path):
    """The same over torch: a tensor of each kind that DLPack tells apart."""
    real = pytest.importorskip("torch")
    if not hasattr(real.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("DLPack's exchange API came with PyTorch 2.10")
    package = pytest.importorskip("safetensors.torch")
    tensors = {"p": real.nn.Parameter(real.randn(3, 4)), "bf16": real.randn(5).bfloat16(), "bool": real.ones(3, dtype=real.bool),
               "f8": real.zeros(4, dtype=real.float8_e4m3fn), "scalar": real.tensor(3), "empty": real.zeros(0, 2)}
    wanted = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    odd = {"neg": real._neg_view(real.randn(3)), "conj": real.randn(2, dtype=real.cfloat).conj()}
    read = []
    rows = ours._rows._rows_of({**tensors, **odd}, lambda name, tensor: read.append(name) or ours._rows._read(name, tensor))
    assert len(rows) == 8 and read == ["neg", "conj"]
    ours.save_file(tensors, tmp_path / "m")
    package.save_file(wanted, tmp_path / "judge")
    assert (tmp_path / "m").read_bytes() == (tmp_path / "judge").read_bytes()
