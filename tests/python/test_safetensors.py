# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, call by call beside the safetensors package where that is installed."""

import gc
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import weakref

import numpy as np
import pytest

import lade
import lade.safetensors as ours
from lade.safetensors import _format
from interrupts import everywhere

TENSORS = {
    "weights": np.arange(6 * 5 * 8, dtype=np.float32).reshape(6, 5, 8),
    "bias": np.arange(7, dtype=np.float16),
    "count": np.array(3, dtype=np.int64),
    "mask": np.array([True, False, True]),
    "none": np.zeros((0, 3), np.uint8),
    "wave": np.array([1 + 2j, 3 - 4j], dtype=np.complex64),
    "täg": np.array([250, 3], dtype=np.uint8),
}
SOURCES = {str(path) for path in pathlib.Path(ours.__file__).parent.glob("*.py")}


def raw(path, header, body=b"", length=None):
    """A file of a header, which may be anything, and a body."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    return path


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    ours.save_file(TENSORS, path, metadata={"format": "np"})
    return path


@pytest.fixture
def theirs():
    return pytest.importorskip("safetensors")


def outcome(call):
    """What a call gives or raises, in a form to compare."""
    try:
        value = call()
    except Exception as error:
        return type(error).__name__, str(error)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return value


def test_round_trip(path):
    loaded = ours.load_file(path, device="cpu", framework="np")
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        assert (loaded[name] == tensor).all() and loaded[name].flags.writeable


def test_files_are_those_of_the_package(path, theirs, tmp_path):
    import safetensors.numpy

    safetensors.numpy.save_file(TENSORS, tmp_path / "package", metadata={"format": "np"})
    assert path.read_bytes() == (tmp_path / "package").read_bytes()
    for name, tensor in safetensors.numpy.load_file(path).items():
        assert (tensor == TENSORS[name]).all()


def test_device_tensors_are_saved_the_same(path, device, tmp_path):
    """Through the pipeline, with a host tensor among them."""
    stream, allocator = device.stream(), lade.DeviceAllocator(device)
    pipeline = lade.Pipeline(device)
    rows = {}
    for name in ("bias", "weights"):
        buffer = allocator.empty(TENSORS[name].shape, TENSORS[name].dtype.name, stream=stream)
        pipeline.copy(buffer, TENSORS[name]).wait()
        rows[name] = buffer
    rows["täg"] = TENSORS["täg"]
    calls, texts = [], {"format": "pt", "ä": ""}  # texts of device tensors ended in std::bad_cast
    ours.save_file(rows, tmp_path / "device", texts, pipeline=pipeline, allocator=allocator, stream=stream,
                   progress=lambda done, total: calls.append((done, total)))
    ours.save_file({name: TENSORS[name] for name in rows}, tmp_path / "host", texts)
    assert (tmp_path / "device").read_bytes() == (tmp_path / "host").read_bytes()
    assert calls and calls[-1][0] == calls[-1][1]


def test_several_files_and_an_index(device, tmp_path):
    stream, allocator = device.stream(), lade.DeviceAllocator(device)
    rows = {f"layer{number}": allocator.empty(1000, "float32", stream=stream) for number in range(4)}
    pipeline = lade.Pipeline(device)
    for number, buffer in enumerate(rows.values()):
        pipeline.copy(buffer, np.full(1000, number, np.float32)).wait()
    ours.save_file(rows, tmp_path / "m.safetensors", max_shard_bytes=8000, pipeline=pipeline, allocator=allocator, stream=stream)
    assert not (tmp_path / "m.safetensors").exists()
    loaded = ours.load_file(tmp_path / "m.safetensors.index.json", device="cpu", framework="np")
    assert [int(loaded[f"layer{number}"][999]) for number in range(4)] == [0, 1, 2, 3]
    with ours.safe_open(tmp_path / "m.safetensors.index.json", "np") as file:
        assert file.get_slice("layer3")[10:12].tolist() == [3, 3]


@pytest.mark.parametrize("damage, text", [
    (lambda p: p.write_bytes(b""), "header too small"), (lambda p: p.write_bytes(b"abc"), "header too small"),
    (lambda p: raw(p, {}, length=1 << 40), "header too large"), (lambda p: raw(p, {}, length=50), "invalid header length"),
    (lambda p: raw(p, b'{"\xff":1}'), "invalid UTF-8 in header: invalid utf-8 sequence of 1 bytes from index 2"),
    (lambda p: raw(p, b"notjson!"), "invalid JSON in header"), (lambda p: raw(p, b"[]"), "invalid JSON in header"),
    (lambda p: raw(p, {"a": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "invalid JSON in header"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "invalid JSON in header"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8]}}, bytes(8)), "invalid JSON in header"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}, bytes(8)), "invalid JSON in header"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}}, bytes(8)), "invalid JSON in header"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": None, "data_offsets": [0, 8]}}, bytes(8)), "invalid JSON in header"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]}}, bytes(8)), "invalid JSON in header"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": [1 << 64], "data_offsets": [0, 8]}}, bytes(8)), "invalid JSON in header"),
    (lambda p: raw(p, {"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "invalid JSON in header"),
    (lambda p: raw(p, b"[" * 90_000), "invalid JSON in header"), (lambda p: raw(p, b'{"a":' * 90_000), "invalid JSON in header"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)),
     "invalid shape, data type, or offset for tensor"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, bytes(12)), "invalid offset for tensor `a`"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, bytes(8)), "invalid offset for tensor `a`"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(4)), "incomplete metadata, file not fully covered"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(9)), "incomplete metadata, file not fully covered"),
    (lambda p: raw(p, {"a": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 8]}}, bytes(8)),
     "overflow computing buffer size from shape and/or element type"),
    (lambda p: raw(p, {"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}, bytes(2)), "subbytes dtypes"),
])
def test_damaged_files(tmp_path, damage, text):
    path = tmp_path / "damaged.safetensors"
    damage(path)
    with pytest.raises(ours.SafetensorError) as caught:
        ours.load_file(path, device="cpu")
    assert str(caught.value).startswith("Error while deserializing header: ") and text in str(caught.value)
    assert isinstance(caught.value.__cause__, lade.Error)
    package = sys.modules.get("safetensors") or pytest.importorskip("safetensors")
    said = outcome(lambda: package.safe_open(path, "np"))
    assert said[0] == "SafetensorError"
    if "JSON" not in text:
        assert said[1] == str(caught.value)


def test_errors_are_also_the_package_s_own(path, theirs):
    with ours.safe_open(path, "np") as file, pytest.raises(theirs.SafetensorError):
        file.get_tensor("nose")
    with ours.safe_open(path, "np") as file, pytest.raises(ours.SafetensorError):
        file.get_tensor("nose")


CALLS = [
    lambda f: f.keys(), lambda f: f.offset_keys(), lambda f: f.metadata(), lambda f: f.get_tensor("weights"), lambda f: f.get_tensor("count"),
    lambda f: f.get_tensor("nose"), lambda f: f.get_slice("nose"), lambda f: f.get_slice("weights").get_shape(),
    lambda f: f.get_slice("bias").get_dtype(), lambda f: sorted(f.get_tensors()),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_calls_beside_the_package(path, theirs, number):
    with ours.safe_open(path, "np") as own, theirs.safe_open(path, "np") as package:
        assert outcome(lambda: CALLS[number](own)) == outcome(lambda: CALLS[number](package))
    assert outcome(lambda: CALLS[number](own)) == outcome(lambda: CALLS[number](package)) == ("SafetensorError", "File is closed")


SLICES = [
    "0", "-1", "6", "-7", "1:", ":2", "2:4", "::2", "1:6:2", "::-1", "slice(None,None,0)", ":1, 1:2", "0,0,0", "0,0,0,0", "...", "..., 1",
    "0,...,1", "...,...", "[0,1]", "5:9", "0:9:2", "7:9:2", "'a'", "1.0", ":,:,::3", "[]", "()", "0:2, -1", "0,slice(1,2),slice(0,4,2)",
    "0,'x'", "1:3,0,...,1", "[[],[]]", "np.int64(1)", "np.int64(0):np.int64(2)", "6:", "2:2", "0,-9", "1:3, 20", "..., 9", ":9", "True",
    "None", ":, 1:3, 2:5", "::5, ::4, ::7", "3, :, 7", "2:5, 4", ":, 0:5", "5, 4, 7", "0:6, 0:5, 0:8", ":, :, 3", "::2, 1:2, 4:8",
]


@pytest.mark.parametrize("index", SLICES)
def test_slices_beside_the_package(path, theirs, index):
    with ours.safe_open(path, "np") as own, theirs.safe_open(path, "np") as package:
        mine = outcome(lambda: eval(f"f[{index}]", {"f": own.get_slice("weights"), "np": np}))
        assert mine == outcome(lambda: eval(f"f[{index}]", {"f": package.get_slice("weights"), "np": np}))


@pytest.mark.parametrize("index", ["-1:", "-3:-1", "slice(-10, 2)", "4:1", "3:0, 1"])
def test_slices_that_the_package_does_not_take(path, index):
    """They mean what they do in NumPy."""
    with ours.safe_open(path, "np") as file:
        got = eval(f"f[{index}]", {"f": file.get_slice("weights")})
        assert np.array_equal(got, eval(f"f[{index}]", {"f": TENSORS["weights"]})) and got.dtype == np.float32
        assert file.get_slice("none")[:].shape == (0, 3) and file.get_slice("count")[...] == 3


def test_slices_of_many_small_pieces(tmp_path):
    """What lies around them is read where that is not much more."""
    tensor = np.arange(3000 * 40, dtype=np.int32).reshape(3000, 40)
    ours.save_file({"t": tensor}, tmp_path / "t.safetensors")
    with ours.safe_open(tmp_path / "t.safetensors", "np") as file:
        for index in (np.s_[:, 3], np.s_[100:2900, 5:30], np.s_[::2, ::3], np.s_[1:2900:3, 39], np.s_[:, 0:1], np.s_[5:1500, 7]):
            got = file.get_slice("t")[index]
            assert (got == tensor[index]).all() and got.shape == tensor[index].shape
            assert got.base is None or got.base.nbytes <= 2 * got.nbytes


def test_opening_errors(path, tmp_path, theirs):
    for args in ((tmp_path / "missing", "np"), (path, "xx"), (path, "np", "bogus")):
        assert outcome(lambda: ours.safe_open(*args)) == outcome(lambda: theirs.safe_open(*args))
    for args in ((3, "np"), (None, "np")):
        with pytest.raises(TypeError):
            ours.safe_open(*args)
    with pytest.raises(OSError):
        ours.safe_open(tmp_path, "np")
    with pytest.raises(ours.SafetensorError, match="backend"):
        ours.safe_open(path, "np", backend="magic")
    with pytest.raises(FileNotFoundError):
        ours.load_file(tmp_path / "missing", device="cpu")


def test_no_gpu_is_said(path):
    if not lade.device().software:
        pytest.skip("this machine has a GPU")
    with pytest.raises(lade.NoDeviceError):
        ours.load_file(path)


def test_metadata_beside_the_package(tmp_path, theirs):
    for number, header in enumerate(({}, {"__metadata__": {}}, {"__metadata__": None}, {"__metadata__": {"b": "1", "a": "2"}})):
        path = raw(tmp_path / str(number), header)
        with ours.safe_open(path, "np") as own, theirs.safe_open(path, "np") as package:
            assert own.metadata() == package.metadata() and own.keys() == package.keys() == []


@pytest.mark.parametrize("tensors, error", [
    ([1], ValueError), ({"a": 1}, ValueError), ({1: TENSORS["bias"]}, TypeError), ({"a": TENSORS["weights"].T}, ValueError),
    ({"a": np.array(["x"])}, ours.SafetensorError), ({"a": np.zeros(2, np.longdouble)}, ours.SafetensorError),
    ({"__metadata__": TENSORS["bias"]}, ValueError), ({"\ud800": TENSORS["bias"]}, UnicodeEncodeError),
])
def test_saving_what_cannot_be(tmp_path, tensors, error):
    with pytest.raises(error):
        ours.save_file(tensors, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_empty_metadata_of_a_long_header_beside_the_package(tmp_path, theirs):
    entry = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    for number, beginning in enumerate(({"__metadata__": {}}, {})):
        path = raw(tmp_path / str(number), {**beginning, **{f"{'x' * 100}{i}": entry for i in range(8000)}})
        assert path.stat().st_size > 1 << 20
        with ours.safe_open(path, "np") as mine, theirs.safe_open(path, "np") as package:
            assert mine.metadata() == package.metadata()


def test_saving_where_it_cannot_be(path, tmp_path):
    before = path.read_bytes()
    with pytest.raises(ours.SafetensorError, match="No such file or directory .os error 2."):
        ours.save_file(TENSORS, tmp_path / "no" / "such")
    with pytest.raises(ours.SafetensorError, match="Is a directory"):
        ours.save_file(TENSORS, tmp_path)
    with pytest.raises(ours.SafetensorError):
        ours.save_file(TENSORS, "/dev/full")
    with pytest.raises(TypeError, match="metadata"):
        ours.save_file(TENSORS, path, metadata={"a": 1})

    class Stop(Exception):
        pass

    def stop(done, total):
        raise Stop

    with pytest.raises(Stop):
        ours.save_file(TENSORS, path, progress=stop)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]


def test_scalars_of_numpy_are_saved_from_memory_that_is_there(tmp_path, monkeypatch):
    """NumPy shows their bytes in memory that the next array, of another thread for example, gets."""
    write, arrays = os.write, []

    def slow_write(fd, view):
        arrays.extend(np.full(1, 7, kind) for kind in ("float64", "int16") for _ in range(50))
        return write(fd, view)

    monkeypatch.setattr(os, "write", slow_write)
    ours.save_file({"wide": np.float64(1.5), "short": np.int16(-3)}, tmp_path / "scalars")
    monkeypatch.undo()
    loaded = ours.load_file(tmp_path / "scalars", device="cpu", framework="np")
    assert (loaded["wide"], loaded["short"]) == (1.5, -3) and loaded["wide"].shape == ()


def test_byte_order_is_turned(tmp_path, device):
    """Regression: host arrays among tensors of a device were not turned round."""
    ours.save_file({"a": np.array([1.5, -2], ">f4")}, tmp_path / "a")
    assert ours.load_file(tmp_path / "a", device="cpu", framework="np")["a"].tolist() == [1.5, -2]
    buffer = lade.DeviceAllocator(device).empty(8, "uint8")
    ours.save_file({"a": np.array([1.5, -2], ">f4"), "b": buffer}, tmp_path / "b")
    assert ours.load_file(tmp_path / "b", device="cpu", framework="np")["a"].tolist() == [1.5, -2]


@pytest.mark.parametrize("on_device", [False, True])
def test_texts_that_could_not_be_read_again(tmp_path, device, on_device):
    """Regression: a name ended at its null character, and two could become one; from host memory, such a file could not be opened."""
    tensor = lade.DeviceAllocator(device).empty(8, "uint8") if on_device else TENSORS["bias"]
    for names, metadata in ((["a\0b"], None), (["a"], {"k\0": "v"}), (["a"], {"k": "v\0w"})):
        with pytest.raises(lade.InvalidArgumentError, match="null character"):
            ours.save_file({name: tensor for name in names}, tmp_path / "out", metadata=metadata)
    with pytest.raises(UnicodeEncodeError):
        ours.save_file({"\ud800": tensor}, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["n" * 255, "ä" * 127])
def test_long_file_names(tmp_path, name):
    """Regression: the temporary name beside them was too long."""
    ours.save_file(TENSORS, tmp_path / name)
    assert os.listdir(tmp_path) == [name] and ours.safe_open(tmp_path / name, "np").keys() == sorted(TENSORS)


def test_a_missing_file_of_an_index_is_named(tmp_path):
    """Regression: the message had the index instead, which was there."""
    (tmp_path / "m.json").write_text('{"weight_map": {"a": "part-2"}}')
    with pytest.raises(FileNotFoundError, match="part-2"):
        ours.load_file(tmp_path / "m.json", device="cpu")


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_types_of_ml_dtypes(tmp_path, kind):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensor = np.array([1, 2, 4, 0.5], getattr(ml_dtypes, kind))
    ours.save_file({"a": tensor}, tmp_path / "a")
    loaded = ours.load_file(tmp_path / "a", device="cpu", framework="np")["a"]
    assert loaded.dtype == tensor.dtype and loaded.tobytes() == tensor.tobytes()


def test_types_without_a_name_are_refused(tmp_path, monkeypatch):
    path = raw(tmp_path / "a", {"odd": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}, b"abc")
    with pytest.raises(lade.UnsupportedError, match="odd.*F6_E2M3"):
        ours.load_file(path, device="cpu", framework="np")
    assert bytes(np.asarray(ours.load_file(path, device="cpu", framework="lade")["odd"])) == b"abc"
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    path = raw(tmp_path / "b", {"brain": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, b"ab")
    with pytest.raises(lade.UnsupportedError, match="brain.*ml_dtypes"):
        ours.load_file(path, device="cpu", framework="np")


def test_some_tensors(path):
    loaded = ours.load_file(path, device="cpu", framework="np", tensors=["bias", "mask", "bias"])
    assert list(loaded) == ["bias", "mask"] and (loaded["bias"] == TENSORS["bias"]).all()
    with pytest.raises(ours.SafetensorError, match="File does not contain tensor nose"):
        ours.load_file(path, device="cpu", framework="np", tensors=["nose"])


@pytest.mark.parametrize("per_tensor", [False, True])
def test_memory_goes_back_with_the_last_tensor(path, device, per_tensor):
    pipeline, allocator = lade.Pipeline(device), lade.DeviceAllocator(device)
    stream = device.stream()

    def used():
        return allocator.usage()["allocated_bytes"]

    loaded = ours.load_file(path, framework="np", pipeline=pipeline, allocator=allocator, stream=stream, per_tensor=per_tensor)
    whole = used()
    kept = loaded["bias"]
    alive = weakref.ref(loaded["weights"])
    del loaded
    gc.collect()
    assert alive() is None and (kept == TENSORS["bias"]).all()
    assert (0 < used() < whole) if per_tensor else used() == whole
    del kept
    gc.collect()
    assert used() == 0
    pipeline.close()
    allocator.close()


def test_direct_and_progress(path):
    calls = []
    loaded = ours.load_file(path, device="cpu", framework="np", direct=True, progress=lambda done, total: calls.append((done, total)))
    assert (loaded["weights"] == TENSORS["weights"]).all()
    assert calls[-1][0] == calls[-1][1]
    with pytest.raises(ZeroDivisionError):
        ours.load_file(path, device="cpu", framework="np", progress=lambda done, total: 1 / 0)


def test_release(path):
    loaded = ours.load_file(path, device="cpu", framework="np")
    ours.release()
    assert (loaded["weights"] == TENSORS["weights"]).all()
    assert (ours.load_file(path, device="cpu", framework="np")["bias"] == TENSORS["bias"]).all()


@pytest.mark.parametrize("metadata", [[], [("a", "b")], "text", 3])
def test_metadata_that_is_no_dict(tmp_path, metadata):
    """Regression: an empty list was saved as an empty dict, and others ended in an AttributeError."""
    with pytest.raises(TypeError, match="metadata is a .*; expected a dict of str, or None"):
        ours.save_file({"a": np.zeros(1)}, tmp_path / "file", metadata)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("beside", [False, True])
def test_masked_arrays_are_not_saved(device, tmp_path, beside):
    """Regression: a file got what was masked, as a value."""
    masked = np.ma.masked_equal(np.arange(4, dtype=np.int32), 2)
    others = {"other": lade.DeviceAllocator(device).alloc(4)} if beside else {}
    with pytest.raises(ValueError, match=r"tensor `a` is masked.*\.filled\(value\)"):
        ours.save_file({"a": masked, **others}, tmp_path / "file")
    ours.save_file({"a": masked.filled(-1)}, tmp_path / "file")
    assert ours.load_file(tmp_path / "file", "cpu", framework="np")["a"].tolist() == [0, 1, -1, 3]


def test_a_handler_may_load_and_release_in_the_midst_of_a_load(path, monkeypatch):
    """Regression: a signal's handler that did while its thread made the pipeline that is kept waited for ever."""
    make, inner = lade.Pipeline, []

    def interrupted(device, **options):
        if not inner:
            inner.append(None)  # once
            inner.append(ours.load_file(path, device="cpu", framework="np", direct=False))
            ours.release()
        return make(device, **options)

    ours.release()
    monkeypatch.setattr(lade, "Pipeline", interrupted)
    for loaded in (ours.load_file(path, device="cpu", framework="np", direct=False), inner[1]):
        assert (loaded["weights"] == TENSORS["weights"]).all()


def test_file_replaced_while_open(path, tmp_path, monkeypatch):
    """Regression: parts of a tensor were read from the file that had the name by then, or from none."""
    with ours.safe_open(path, "np") as file:
        ours.save_file({"other": np.zeros(1000)}, path)
        assert (file.get_tensor("weights") == TENSORS["weights"]).all()
        part = file.get_slice("weights")
        assert (part[1:3] == TENSORS["weights"][1:3]).all()
        path.unlink()
        assert (file.get_slice("weights")[:, 2] == TENSORS["weights"][:, 2]).all()
    assert (part[2] == TENSORS["weights"][2]).all()
    monkeypatch.chdir(tmp_path)
    ours.save_file(TENSORS, "beside")
    (tmp_path / "below").mkdir()
    with ours.safe_open("beside", "np") as file:
        os.chdir("below")
        assert (file.get_slice("weights")[4] == TENSORS["weights"][4]).all()


def test_files_are_closed_with_the_last_slice(path):
    def count():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    ours.load_file(path, device="cpu", framework="np")
    before = count()
    file = ours.safe_open(path, "np")
    part = file.get_slice("weights")
    file.close()
    assert count() == before + 1 and (part[0] == TENSORS["weights"][0]).all()
    del part
    assert count() == before


def test_torch(path, tmp_path):
    torch = pytest.importorskip("torch")
    loaded = ours.load_file(path, device="cpu")
    assert isinstance(loaded["weights"], torch.Tensor) and (loaded["weights"].numpy() == TENSORS["weights"]).all()
    assert loaded["mask"].dtype == torch.bool and loaded["count"].shape == () and loaded["none"].shape == (0, 3)
    kinds = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int16, torch.complex64]
    tensors = {str(kind): torch.ones(4, 2).to(kind) for kind in kinds}
    ours.save_file(tensors, tmp_path / "t", metadata={"format": "pt"})
    again = ours.load_file(tmp_path / "t", device=torch.device("cpu"))
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype and again[name].view(torch.uint8).equal(tensor.view(torch.uint8))
    package = pytest.importorskip("safetensors.torch")
    package.save_file(tensors, tmp_path / "p", metadata={"format": "pt"})
    assert (tmp_path / "t").read_bytes() == (tmp_path / "p").read_bytes()
    base = torch.zeros(10)
    for tensors, error in (({"a": base[:6], "b": base[4:]}, RuntimeError), ({"a": torch.zeros(2, 3).T}, ValueError),
                           ({"a": torch.zeros(3).to_sparse()}, ValueError)):
        with pytest.raises(error):
            package.save_file(tensors, tmp_path / "q")
        with pytest.raises(error):
            ours.save_file(tensors, tmp_path / "q")
    with ours.safe_open(path, "pt") as file:
        assert file.get_slice("weights")[1:3, 2].tolist() == TENSORS["weights"][1:3, 2].tolist()


def test_torch_tensors_that_are_conjugated_or_negated_lazily(tmp_path):
    """Regression: their bytes, which are those of other values, were written. The package does so still."""
    torch = pytest.importorskip("torch")
    tensors = {"conj": torch.tensor([1 + 2j]).conj(), "neg": torch.tensor([1 + 2j]).conj().imag}
    ours.save_file(tensors, tmp_path / "t")
    loaded = ours.load_file(tmp_path / "t", device="cpu")
    assert loaded["conj"].tolist() == [1 - 2j] and loaded["neg"].tolist() == [-2]
    with pytest.raises(ValueError, match="meta"):
        ours.save_file({"a": torch.ones(3, device="meta")}, tmp_path / "m")


TORCH_SLICES = [
    "0:100", "4:100", "7:9", "-9:2", "-2:", "::4", "3:1", "...,0:9", "None", "0, None", "[0, 2]", "[True]*6", "True", "6", "-7", "0,0,0,0",
    "...,...", "::-1", "::0", "'a'", "1.5", "np.int64(2), 1:99", "torch.tensor([1, 1])", "np.array(1)", "(slice(1, 3), [0, 1])", "()", "...",
]


@pytest.mark.parametrize("index", TORCH_SLICES)
def test_slices_of_torch_beside_the_package(path, theirs, index):
    """Regression: bounds beyond the tensor were refused, and lists and None, which the package leaves to torch."""
    torch = pytest.importorskip("torch")

    def part(module):
        with module.safe_open(path, "pt") as file:
            got = eval(f"f[{index}]", {"f": file.get_slice("weights"), "np": np, "torch": torch})
            return tuple(got.shape), got.tolist()

    assert outcome(lambda: part(ours)) == outcome(lambda: part(theirs))


def packed_file(path, packed, dtype="F4"):
    """A file of one tensor "w", of bytes in which two elements lie."""
    shape = [*packed.shape[:-1], packed.shape[-1] * 2]
    return raw(path, {"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, packed.nbytes]}}, packed.numpy().tobytes())


def same_index(torch, text, tensor):
    return eval(f"f[{text}]", {"f": tensor, "np": np, "torch": torch})


# Of elements, and the same of bytes in which two lie: of a tensor of 6 x 5 x 8 elements.
PACKED = [(text, text) for text in (
    "0", "-1", "1:3", "4:99", "-9:2", "None", "0, None", "True", "False", "None, True", "...", "()", "[0, 2]", "[5, -1]", "[]", "[True]*6",
    "torch.tensor([5, 0])", "torch.tensor(2)", "torch.tensor([[1, 0], [3, 3]])", "np.array([1, 1])", "torch.arange(6) > 2", "2:2",
    "torch.ones(6, 5, dtype=torch.bool)", "[0, 1], [2, 3]", "::2, ::3", "(slice(1, 3), [0, 1])", ":, torch.tensor([0, 4])", "1, 2",
    "np.int64(2), 1:99", "torch.arange(6, dtype=torch.uint8)", ":, None, 1", "..., 0:0", "..., 6:2", ":, :, 8:", "..., 100:200", "..., []",
)] + [
    ("..., 0:4", "..., 0:2"), (":, :, 4:8", ":, :, 2:4"), (":, 1, 2:6", ":, 1, 1:3"), ("[0, 2], :, 0:4", "[0, 2], :, 0:2"),
    ("None, ..., 2:100", "None, ..., 1:50"), (":, :, -4:", ":, :, -2:"), (":, :, :-2", ":, :, :-1"), ("True, 3, :, 0:2", "True, 3, :, 0:1"),
    ("[True]*6, ..., 6:8", "[True]*6, ..., 3:4"), ("1:5:3, ::4, 2:4", "1:5:3, ::4, 1:2"), ("torch.ones(6, 5, dtype=torch.bool), 2:4",
                                                                                           "torch.ones(6, 5, dtype=torch.bool), 1:2"),
]


@pytest.mark.parametrize("elements, packed", PACKED)
def test_slices_of_packed_elements(tmp_path, elements, packed):
    """Regression: lists, None, bounds beyond the tensor and tensors were refused, and True was row 1."""
    torch = pytest.importorskip("torch")
    whole = torch.arange(120, dtype=torch.uint8).reshape(6, 5, 4)
    try:
        wanted = same_index(torch, packed, whole)
    except IndexError as error:  # 2.8 takes no slice behind a mask of two dimensions
        pytest.skip(f"torch itself: {error}")
    with ours.safe_open(packed_file(tmp_path / "f4", whole), "pt") as file:
        part = same_index(torch, elements, file.get_slice("w"))
    assert part.dtype == torch.float4_e2m1fn_x2 and part.shape == wanted.shape and part.view(torch.uint8).equal(wanted)
    assert part.untyped_storage().nbytes() <= max(2 * wanted.nbytes, 120)


@pytest.mark.parametrize("text", ["6", "-7", "0,0,0,0", "::-1", "..., ::-1", "::0", "'a'", "1.5", "..., 8", "..., -9", "[6]",
                                  "torch.tensor([7])"])
def test_wrong_indexes_of_packed_elements_are_torch_s_errors(tmp_path, text):
    torch = pytest.importorskip("torch")
    whole = torch.arange(120, dtype=torch.uint8).reshape(6, 5, 4)
    with ours.safe_open(packed_file(tmp_path / "f4", whole), "pt") as file:
        mine = outcome(lambda: same_index(torch, text, file.get_slice("w")))
    assert mine == outcome(lambda: same_index(torch, text, torch.zeros(6, 5, 8, dtype=torch.uint8))) and mine[0] != "Tensor"


@pytest.mark.parametrize("text", ["..., 1", "0, 0, 3", "..., 1:3", "..., 0:3", "..., 1:4", "0, 0, 7:", "..., ::2", "..., 2:3", "..., [0, 1]", "0, 0, torch.tensor(1)",
                                  "torch.ones(6, 5, 8, dtype=torch.bool)", "..., [True] * 8", "..., torch.tensor([0])"])
def test_parts_of_packed_elements_are_refused(tmp_path, text):
    torch = pytest.importorskip("torch")
    whole = torch.arange(120, dtype=torch.uint8).reshape(6, 5, 4)
    with ours.safe_open(packed_file(tmp_path / "f4", whole), "pt") as file:
        with pytest.raises(ours.SafetensorError, match="does not end up at a byte boundary"):
            same_index(torch, text, file.get_slice("w"))
        with pytest.raises(ours.SafetensorError, match="expected a tuple of the parts"):
            file.get_slice("w")[[slice(0, 2), slice(0, 2)]]


@pytest.mark.parametrize("shape", [(3000, 4), ((1 << 20) + 1, 4), (1025, 1025, 4)])
def test_slices_of_many_rows_of_packed_elements(tmp_path, shape):
    """Regression: beyond 2^20 ranges they had other columns, without an error."""
    torch = pytest.importorskip("torch")
    whole = torch.randint(0, 256, shape, dtype=torch.uint8)
    with ours.safe_open(packed_file(tmp_path / "f4", whole), "pt") as file:
        part = file.get_slice("w")
        for elements, packed in (("..., 0:4", "..., 0:2"), ("..., 4:8", "..., 2:4"), ("1:, ..., 2:4", "1:, ..., 1:2"), ("::2, ..., 0:6", "::2, ..., 0:3")):
            assert same_index(torch, elements, part).view(torch.uint8).equal(same_index(torch, packed, whole))


@pytest.mark.parametrize("dtype", ["BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ"])
def test_slices_of_bytes(tmp_path, dtype):
    torch = pytest.importorskip("torch")
    whole = torch.arange(240, dtype=torch.uint8).reshape(6, 5, 8) & (1 if dtype == "BOOL" else 255)
    path = raw(tmp_path / "file", {"w": {"dtype": dtype, "shape": [6, 5, 8], "data_offsets": [0, 240]}}, whole.numpy().tobytes())
    with ours.safe_open(path, "pt") as file:
        part = file.get_slice("w")
        for text in ["..., 3", "[0, 2]", "None", "True", "torch.arange(6) > 2", "..., ::3", "4:99", "[0, 1], [2, 3], [4, 5]", "0, 0, 0"]:
            got = same_index(torch, text, part)
            assert got.view(torch.uint8).equal(same_index(torch, text, whole)) and got.dtype == getattr(torch, _format._DTYPES[dtype][0])


def test_packed_elements_that_torch_has_not(tmp_path):
    """Regression: an error of torch's view()."""
    torch = pytest.importorskip("torch")
    path = raw(tmp_path / "odd", {"w": {"dtype": "F4", "shape": [2, 3], "data_offsets": [0, 3]}}, b"abc")
    for call in (lambda file: file.get_tensor("w"), lambda file: file.get_slice("w")[0:1], lambda file: file.get_tensors()):
        with ours.safe_open(path, "pt") as file, pytest.raises(lade.UnsupportedError, match=r"tensor w: its shape \[2, 3\] ends in an odd number"):
            call(file)
    assert bytes(np.asarray(ours.load_file(path, "cpu", framework="lade")["w"])) == b"abc"
    whole = torch.arange(120, dtype=torch.uint8).reshape(6, 5, 4)
    assert ours.load_file(packed_file(tmp_path / "even", whole), "cpu", framework="pt")["w"].view(torch.uint8).equal(whole)


@pytest.mark.parametrize("dtype, bits", [("F32", 32), ("F4", 4), ("F6_E2M3", 6), ("U8", 8)])
def test_slices_as_bytes_of_many_pieces(tmp_path, dtype, bits):
    """Regression: of more than 1,024 pieces a DeviceView was asked for a part of itself."""
    rows, columns = 2000, 100
    whole = np.arange(rows * columns * bits // 8, dtype=np.uint32).astype(np.uint8).reshape(rows, -1)
    path = raw(tmp_path / "file", {"w": {"dtype": dtype, "shape": [rows, columns], "data_offsets": [0, whole.nbytes]}}, whole.tobytes())
    with ours.safe_open(path, "lade") as file:
        part = file.get_slice("w")
        for index, rows_of, columns_of in ((np.s_[:, :48], np.s_[:], 48), (np.s_[::2, 4:100], np.s_[::2], 96), (np.s_[1:1999], np.s_[1:1999], 100)):
            begin = 4 * bits // 8 if columns_of == 96 else 0
            wanted = whole[rows_of, begin:begin + columns_of * bits // 8]
            assert bytes(np.asarray(part[index])) == wanted.tobytes()


def test_slices_as_bytes_of_more_pieces_than_a_transfer_has(tmp_path):
    whole = np.arange(3 * 70_000, dtype=np.uint32).astype(np.uint8).reshape(-1, 3)
    ours.save_file({"w": whole}, tmp_path / "file")
    with ours.safe_open(tmp_path / "file", "lade") as file:
        assert bytes(np.asarray(file.get_slice("w")[:, 1:2])) == whole[:, 1:2].tobytes()
        assert file.get_slice("w")[:, 1:1].nbytes == 0


class Odd:
    """An array that says other things of itself than its memory does."""

    def __init__(self, array, nbytes=None, **facts):
        self._array = array
        self.dtype, self.shape = array.dtype, array.shape
        self.nbytes = array.nbytes if nbytes is None else nbytes
        self.__array_interface__ = {**array.__array_interface__, **facts}


@pytest.mark.parametrize("odd, text", [
    ({"shape": (4,)}, "tensor `odd` has 32 bytes of memory; expected 64, as its dtype and shape say"),
    ({"shape": (16,)}, "tensor `odd` has 128 bytes of memory; expected 64"),
    ({"typestr": "<i4"}, "tensor `odd` has 32 bytes of memory; expected 64"),
    ({"strides": (16,)}, "tensor `odd` is a test_safetensors.Odd, which is not contiguous"),
    ({"strides": (-8,)}, "tensor `odd` is a test_safetensors.Odd, which is not contiguous"),
    ({"data": bytes(63)}, "which shows 64 bytes from byte 0 on of data of 63"),
    ({"data": None}, "tensor `odd` is a test_safetensors.Odd, whose array interface has no address"),
])
def test_host_memory_is_what_its_shape_says(tmp_path, odd, text):
    """Regression: more or less was written, or from an address that was none."""
    path = tmp_path / "file"
    with pytest.raises(ValueError, match=text):
        ours.save_file({"a": np.arange(8), "odd": Odd(np.arange(8), **odd)}, path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nbytes", [0, 8, 1 << 40, -1])
def test_what_an_array_says_of_its_bytes_is_not_asked(tmp_path, nbytes):
    """Regression: `nbytes` was taken for the size of the memory: files that nothing could read were written without an error."""
    path = tmp_path / "file"
    arrays = {"odd": Odd(np.arange(8), nbytes), "strides": Odd(np.arange(8).reshape(1, 8), strides=(1, 8)), "none": Odd(np.zeros((0, 3)), nbytes)}
    ours.save_file(arrays, path)
    loaded = ours.load_file(path, "cpu", framework="np")
    assert {name: array.tolist() for name, array in loaded.items()} == {"odd": list(range(8)), "strides": [list(range(8))], "none": []}


def test_an_interrupted_save_leaves_no_descriptor(tmp_path):
    """Regression: that of the folder, between its opening and the note of it."""
    array = np.arange(4, dtype="f4")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))

    def check(number):
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before, number
        assert set(os.listdir(tmp_path)) <= {"x.safetensors"}, number

    places = everywhere(lambda: lade.safetensors.save_file({"a": array}, tmp_path / "x.safetensors"), SOURCES, check)
    assert places > 50 and os.listdir(tmp_path) == ["x.safetensors"]


def test_an_interrupted_load_leaves_nothing(tmp_path, device):
    path, allocator, pipeline = tmp_path / "x.safetensors", lade.DeviceAllocator(device), lade.Pipeline(device)
    lade.safetensors.save_file({"a": np.arange(4, dtype="f4"), "b": np.zeros((2, 3))}, path)

    def load():
        lade.safetensors.load_file(path, pipeline=pipeline, allocator=allocator)

    load()
    before = len(os.listdir("/proc/self/fd"))

    def check(number):
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before and allocator.usage()["allocated_bytes"] == 0, number

    assert everywhere(load, SOURCES, check) > 50


class ArrayLike:
    """Says of itself what it is given: two floats, but for that."""

    def __init__(self, **facts):
        self.memory = np.zeros(2, "f4")
        self.dtype, self.shape = np.dtype("f4"), (2,)
        for name, value in facts.items():
            setattr(self, name, value)

    @property
    def __array_interface__(self):
        return {**self.memory.__array_interface__, **getattr(self, "changed", {})}


CAI = {"version": 3, "shape": (2,), "typestr": "<f4", "data": (4096, False)}


@pytest.mark.parametrize("facts, text", [
    ({"shape": 3}, "of the shape 3; expected extents"),
    ({"shape": ("a",)}, r"of the shape \('a',\); expected extents"),
    ({"shape": (-1,)}, r"of the shape \(-1,\); expected extents"),
    ({"shape": (1 << 70,)}, r"of the shape \(1180591620717411303424,\); expected extents"),
    ({"shape": (1 << 40,)}, "8 bytes of memory; expected 4398046511104"),
    ({"__cuda_array_interface__": CAI}, "does not tell its device"),
    ({"__cuda_array_interface__": CAI, "device": "cuda:0"}, "does not tell its device"),
    ({"changed": {"data": (0, False)}}, "which shows 8 bytes at no address"),
    ({"changed": {"data": (-1, False)}}, "describes its memory with a value of a wrong type or size"),
    ({"changed": {"data": ((1 << 64) - 4, False)}}, "bytes lie beyond the end of the address space"),
    ({"changed": {"data": ("x", False)}}, "describes its memory with a value of a wrong type or size"),
    ({"changed": {"data": ()}}, "whose array interface has no address"),
])
def test_arrays_that_describe_themselves_wrongly_are_refused_by_name(tmp_path, facts, text):
    """Regression: AttributeError, TypeError of an operator, or an I/O error of "Bad address"."""
    with pytest.raises(ValueError, match=f"tensor `x` .*{text}"):
        ours.save_file({"x": ArrayLike(**facts)}, tmp_path / "x.safetensors")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("facts", [{}, {"flags": {}}, {"flags": 7}, {"shape": [2]}])
def test_other_array_likes_are_saved(tmp_path, facts):
    """Regression: what has flags other than NumPy's was an AttributeError."""
    ours.save_file({"x": ArrayLike(**facts)}, tmp_path / "x.safetensors")
    assert ours.load_file(tmp_path / "x.safetensors", "cpu", framework="np")["x"].shape == (2,)


def tensors_on(device, kind):
    """A small tensor of the host, or of a device."""
    if kind == "host":
        return np.arange(4, dtype=np.uint8)
    allocator = lade.DeviceAllocator(device)
    buffer = allocator.empty(4, "uint8")
    lade.Pipeline(device).copy(buffer, np.arange(4, dtype=np.uint8)).wait()
    return buffer


@pytest.mark.parametrize("kind", ["host", "device"])
def test_metadata_is_the_same_wherever_tensors_lie(tmp_path, device, kind, theirs):
    """Regression: empty metadata was left out of device tensors' files, and a key of lade's own taken, and hidden, with host tensors."""
    import safetensors.numpy

    tensor = tensors_on(device, kind)
    for metadata in (None, {}, {"format": "pt"}):
        ours.save_file({"a": tensor}, tmp_path / "own", metadata)
        safetensors.numpy.save_file({"a": np.arange(4, dtype=np.uint8)}, tmp_path / "package", metadata)
        assert (tmp_path / "own").read_bytes() == (tmp_path / "package").read_bytes()
    with pytest.raises(lade.InvalidArgumentError, match="lade's own"):
        ours.save_file({"a": tensor}, tmp_path / "other", {"lade_save": "1"})
    assert not (tmp_path / "other").exists()


def test_host_tensors_in_several_files(tmp_path):
    """Regression: host tensors were refused there."""
    rows = {f"layer{number}": np.full(1000, number, np.float32) for number in range(4)}
    ours.save_file(rows, tmp_path / "m.safetensors", max_shard_bytes=8000)
    assert not (tmp_path / "m.safetensors").exists()
    loaded = ours.load_file(tmp_path / "m.safetensors.index.json", device="cpu", framework="np")
    assert {name: int(array[999]) for name, array in loaded.items()} == {f"layer{number}": number for number in range(4)}


KILLED = """
import os, signal, sys
import numpy
import lade.safetensors
lade.safetensors.save_file({"a": numpy.zeros(20_000_000, "u1"), "b": numpy.zeros(20_000_000, "u1")}, sys.argv[1],
                           progress=lambda done, total: done and os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_killed_save_leaves_nothing_for_long(tmp_path):
    """Regression: what it had written stayed for ever."""
    path = tmp_path / "model.safetensors"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
        assert done.returncode == -signal.SIGKILL and not path.exists()
    ours.save_file({"a": np.zeros(3)}, path)
    assert os.listdir(tmp_path) == [path.name]


def test_an_array_with_its_bytes_beside_it_is_saved(tmp_path):
    """Regression: Pillow's images, whose array interface has bytes and no address, were refused."""
    ours.save_file({"a": Odd(np.arange(8), data=np.arange(1, 9).tobytes())}, tmp_path / "file")
    assert ours.load_file(tmp_path / "file", "cpu", framework="np")["a"].tolist() == list(range(1, 9))


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_arrays_of_jax(tmp_path, kind):
    """Regression: it has these types by DLPack alone."""
    jax = pytest.importorskip("jax")
    array = jax.numpy.asarray([1, 2, 0.5, -4], kind)
    ours.save_file({"a": array}, tmp_path / "file")
    loaded = ours.load_file(tmp_path / "file", "cpu", framework="np")["a"]
    assert loaded.dtype == array.dtype and loaded.tolist() == array.tolist()
