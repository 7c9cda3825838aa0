# SPDX-License-Identifier: Apache-2.0
"""Loads into tensors that are there, from files of the safetensors package."""

import gc
import os
import threading
import time

import numpy as np
import pytest

import lade
import lade.safetensors as ours

TENSORS = {name: np.random.default_rng(at).integers(0, 1 << 15, (3, 1000 + at), np.int16) for at, name in enumerate("abc")}


@pytest.fixture
def path(tmp_path):
    writer = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "m.safetensors"
    writer.save_file(TENSORS, path)
    return path


@pytest.fixture
def model(device):
    """Buffers as of a model, some in one block, and the allocator."""
    allocator = lade.DeviceAllocator(device)
    model = {name: allocator.empty(value.shape, "int16") for name, value in TENSORS.items()}
    for buffer in model.values():
        np.from_dlpack(buffer)[:] = -1
    model["allocator"] = allocator
    return model


def buffers(model):
    return {name: buffer for name, buffer in model.items() if name != "allocator"}


def expect(model, name, value):
    np.testing.assert_array_equal(np.from_dlpack(model[name]), value)


def test_bytes_arrive_where_the_tensors_are(model, path):
    before = model["allocator"].stats()["allocated_bytes.all.allocated"]
    calls = []
    assert ours.load_into(buffers(model), path, progress=lambda done, total: calls.append((done, total))) == ([], [])
    for name, value in TENSORS.items():
        expect(model, name, value)
    assert model["allocator"].stats()["allocated_bytes.all.allocated"] == before
    assert calls[-1][0] == calls[-1][1] == sum(value.nbytes for value in TENSORS.values())


def test_names_may_differ(model, path):
    model["more"] = model.pop("b")
    with pytest.raises(RuntimeError, match=r"does not fit: missing \['more'\], unexpected \['b'\]"):
        ours.load_into(buffers(model), path)
    expect(model, "a", -1)  # nothing was read
    assert ours.load_into(buffers(model), path, strict=False) == (["more"], ["b"])
    expect(model, "a", TENSORS["a"])
    expect(model, "more", -1)


def test_shapes_and_types_are_those_of_the_file(model, path):
    allocator = model["allocator"]
    for wrong, text in ((allocator.empty((3, 7), "int16"), r"`c` is I16 \(3, 7\); expected I16 \(3, 1002\), as in the file"),
                        (allocator.empty((3, 1002), "uint16"), "`c` is U16")):
        with pytest.raises(ValueError, match=text):
            ours.load_into({**buffers(model), "c": wrong}, path)
    expect(model, "a", -1)


def test_what_is_no_tensor_of_a_device_is_refused(model, path):
    with pytest.raises(lade.InvalidArgumentError, match="tensors are on the host; expected all on one GPU, or DeviceBuffers of one device"):
        ours.load_into(dict(TENSORS), path)
    with pytest.raises(TypeError, match="tensors is a list; expected a dict of tensors, or a torch.nn.Module"):
        ours.load_into([], path)
    with pytest.raises(FileNotFoundError):
        ours.load_into(buffers(model), "no.safetensors")
    with pytest.raises(TypeError, match="strict"):
        ours.load_into(buffers(model), path, strict=1)


def test_nothing_to_load(path):
    assert ours.load_into({}, path, strict=False) == ([], ["a", "b", "c"])


def test_a_file_that_ends_early_is_told(model, path):
    with ours.safe_open(path) as file:
        assert file.keys() == ["a", "b", "c"]
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    with pytest.raises(ours.SafetensorError):
        ours.load_into(buffers(model), path)
    expect(model, "a", -1)


def test_rows_of_half_bytes_are_counted_whole(tmp_path):
    """Regression: two rows of 12 bits had 2 bytes in place of 3."""
    header = b'{"a":{"dtype":"F4","shape":[4,3],"data_offsets":[0,6]}}'
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(6)))
    with ours.safe_open(tmp_path / "a", "lade") as file:
        load = file._open_file().start(file._target(), [0], True, None, parts=[(2, 4, 0)])
        (view,) = load.views()
        load.wait(None)
        assert bytes(np.from_dlpack(view)) == bytes((3, 4, 5))
        load.close()


def test_two_names_of_one_memory_are_one_tensor(tmp_path, device):
    """Regression: of buffers, which are not torch's, both were read, at the same time; which bytes stayed was chance."""
    path, own = tmp_path / "tied.safetensors", lade.DeviceAllocator(device).empty((1 << 18,), "int64")
    first, last = np.full(1 << 18, 3), np.full(1 << 18, 4)
    lade.safetensors.save_file({"a": first, "b": last, "c": first}, path)
    for names, wanted in (["a", "b"], last), (["b", "none"], last), (["c", "a", "b"], first):
        assert lade.safetensors.load_into(dict.fromkeys(names, own), path, strict=False)[0] == []
        there = np.zeros_like(first)
        lade.Pipeline(device).copy(there, own).wait()
        assert (there == wanted).all()


@pytest.mark.parametrize("order", [1, -1, 7])
def test_many_tensors(tmp_path, device, order):
    """Their file is opened while they are looked at, and they are found in any order."""
    count, path = 2000, tmp_path / "many.safetensors"
    values = {f"t{number:05}": np.full(number % 5, number, np.int64) for number in range(count)}
    lade.safetensors.save_file(values, path)
    allocator, names = lade.DeviceAllocator(device), list(values)
    names = [names[(number * order) % count] for number in range(count)]
    own = {name: allocator.empty(values[name].shape, "int64") for name in names}
    assert ours.load_into(own, path) == ([], [])
    for name in names:
        np.testing.assert_array_equal(np.from_dlpack(own[name]), values[name])
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        ours.load_into(own, tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ours.SafetensorError):
        ours.load_into(own, tmp_path / "bad.safetensors")
    with pytest.raises(ValueError):  # before the thread that opens the file is done, perhaps: what it opens is dropped
        ours.load_into({**own, "t00003": [1, 2, 3]}, path)
    with pytest.raises(lade.InvalidArgumentError, match="t00003"):
        ours.load_into({**own, "t00003": allocator.empty(4, "int64")}, path)
    with pytest.raises(RuntimeError, match=r"missing \['more'\], unexpected \[\]"):
        ours.load_into({**own, "more": allocator.empty(4, "int64")}, path)
    end = time.monotonic() + 20
    while len(os.listdir("/proc/self/fd")) > descriptors and time.monotonic() < end:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.mark.parametrize("count", [10, 2000])
def test_a_file_that_cannot_be_opened_keeps_no_tensor(tmp_path, device, count):
    """Regression: the error of the thread that opened the file referred to itself, and its frames to the tensors, until a collection."""
    allocator = lade.DeviceAllocator(device)
    own = {str(number): allocator.empty(3, "int64") for number in range(count)}
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(FileNotFoundError) as caught:
            ours.load_into(own, tmp_path / "none.safetensors")
        del own, caught
        assert allocator.usage()["allocated_bytes"] == 0
    finally:
        gc.enable()


def test_no_thread_is_needed(tmp_path, device, monkeypatch):
    path = tmp_path / "many.safetensors"
    lade.safetensors.save_file({f"t{number}": np.arange(3) for number in range(1000)}, path)
    allocator = lade.DeviceAllocator(device)
    own = {f"t{number}": allocator.empty(3, "int64") for number in range(1000)}

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert ours.load_into(own, path) == ([], [])
    np.testing.assert_array_equal(np.from_dlpack(own["t999"]), np.arange(3))
