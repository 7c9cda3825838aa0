# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on the host: mapped files, bytes, models, sizes of files; beside the safetensors package where it is installed."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import textwrap

import numpy as np
import pytest

import lade
import lade.safetensors as ours

TENSORS = {"a": np.arange(12, dtype="float32").reshape(3, 4), "b": np.arange(5, dtype="int16"), "none": np.zeros((0, 2), "uint8")}


@pytest.fixture
def path(tmp_path):
    ours.save_file(TENSORS, tmp_path / "model.safetensors", {"by": "test"})
    return tmp_path / "model.safetensors"


def same(left, right):
    return left.keys() == right.keys() and all((np.asarray(left[name]) == np.asarray(right[name])).all() for name in left)


# ---- Mapped files ----------------------------------------------------------------------------------------------------


def mappings_of(path):
    with open("/proc/self/maps") as maps:
        return sum(str(path) in line for line in maps)


def test_tensors_of_the_host_are_views_of_the_file(path):
    before = len(os.listdir("/proc/self/fd"))
    loaded = ours.load_file(path, device="cpu", framework="np")
    assert same(loaded, TENSORS) and mappings_of(path) == 1 and len(os.listdir("/proc/self/fd")) == before
    loaded["a"][:] = 9  # of this process alone
    assert same(ours.load_file(path, device="cpu", framework="np"), TENSORS)
    kept = loaded["b"]
    del loaded
    assert mappings_of(path) == 1 and (kept == TENSORS["b"]).all()
    del kept
    assert mappings_of(path) == 0


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_large_tensors_go_alone(tmp_path, framework):
    """The memory of a tensor that is dropped goes back, written pages included, while others are kept."""
    torch = pytest.importorskip("torch") if framework == "pt" else None
    large = {name: np.full(3 << 20, number, "uint8") for number, name in enumerate("abc")}
    ours.save_file({**large, "s": np.arange(3, dtype="uint8"), "t": np.arange(4, dtype="uint8")}, tmp_path / "model")
    loaded = ours.load_file(tmp_path / "model", "cpu", framework=framework)
    assert mappings_of(tmp_path / "model") == 4  # one of each, and one of the file for both small ones
    assert all((np.asarray(loaded[name]) == large[name]).all() for name in large) and loaded["t"].tolist() == [0, 1, 2, 3]
    loaded["b"][:] = 9
    kept, small = loaded["a"], loaded["s"]
    del loaded
    assert mappings_of(tmp_path / "model") == 2 and (np.asarray(kept) == 0).all() and small.tolist() == [0, 1, 2]
    del kept
    assert mappings_of(tmp_path / "model") == 1
    with ours.safe_open(tmp_path / "model", framework) as file:
        alone = file.get_tensor("c")
        assert mappings_of(tmp_path / "model") == 2 and (np.asarray(alone) == 2).all()
        os.truncate(tmp_path / "model", 100)
        with pytest.raises(lade.TruncatedError, match="a file that has 100 now"):
            file.get_tensor("b")
    assert torch is None or isinstance(alone, torch.Tensor)


def test_mappings_are_few(tmp_path):
    """A process may have some 65,000: a load takes 1,024 of them, and one for each file."""
    count, size = 1030, 1 << 20
    entries = {f"t{i}": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]} for i in range(count)}
    header = json.dumps(entries).encode()
    with open(tmp_path / "model", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + count * size)
    loaded = ours.load_file(tmp_path / "model", "cpu", framework="np")
    assert len(loaded) == count and mappings_of(tmp_path / "model") == 1


@pytest.mark.parametrize("options", [{"direct": False}, {"per_tensor": True}, {"framework": "lade"}, {"stream": 0}])
def test_others_are_read(path, options):
    loaded = ours.load_file(path, **{"device": "cpu", "framework": "np", **options})
    assert mappings_of(path) == 0 and np.asarray(loaded["a"]).tobytes() == TENSORS["a"].tobytes()
    allocator = lade.DeviceAllocator(lade.software_device())
    loaded = ours.load_file(path, device="cpu", framework="np", allocator=allocator)
    assert allocator.usage()["allocated_bytes"] > 0


def test_progress_is_told_once_all_is_there(path):
    told = []
    ours.load_file(path, device="cpu", framework="np", progress=lambda done, total: told.append((done, total)))
    assert told == [(58, 58)]


def test_tensors_that_begin_anywhere_are_aligned(tmp_path):
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'  # 54 bytes: no multiple of 4 before the data
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1.5, 2.5))
    loaded = ours.load_file(tmp_path / "a", device="cpu", framework="np")
    assert loaded["a"].tolist() == [1.5, 2.5] and loaded["a"].flags.aligned


def test_a_file_that_was_cut_is_an_error(path):
    with ours.safe_open(path, "np") as file:
        os.truncate(path, path.stat().st_size - 20)
        with pytest.raises(lade.TruncatedError, match="a file that has"):
            file.get_tensor("a")


def test_a_file_that_was_cut_to_nothing_is_an_error(path):
    """Regression: Invalid argument."""
    with ours.safe_open(path, "np") as file:
        os.truncate(path, 0)
        with pytest.raises(lade.TruncatedError, match="a file that has 0 now"):
            file.get_tensor("a")


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_small_tensors_that_are_taken_one_by_one_need_no_mappings(tmp_path, framework):
    """Regression: each had a mapping of the file, and a process may have 65,530."""
    if framework == "pt":
        pytest.importorskip("torch")
    ours.save_file({"large": np.zeros(1 << 20, "uint8"), **{f"{i}": np.full(3, i, "int16") for i in range(50)}}, tmp_path / "model")
    with ours.safe_open(tmp_path / "model", framework) as file:
        kept = {name: file.get_tensor(name) for name in file.keys()}
        assert mappings_of(tmp_path / "model") == 1
        kept["7"][:] = 9
        assert file.get_tensor("7").tolist() == [7, 7, 7] and kept["8"].tolist() == [8, 8, 8]
    del kept["large"]
    assert mappings_of(tmp_path / "model") == 0


def test_a_load_needs_no_memory_of_its_own(tmp_path):
    """2 GiB in a process that may have 512 MiB of its own: an address space limit counts mapped files, so private memory is looked at."""
    with open(tmp_path / "big", "wb") as file:
        header = b'{"a":{"dtype":"U8","shape":[2147483648],"data_offsets":[0,2147483648]}}'
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + (2 << 30))
    done = subprocess.run([sys.executable, "-c", textwrap.dedent("""
        import sys, lade, numpy
        def private():
            with open("/proc/self/smaps_rollup") as rollup:
                return sum(int(line.split()[1]) for line in rollup if line.startswith(("Private_Dirty", "Anonymous"))) << 10
        before = private()
        tensors = lade.safetensors.load_file(sys.argv[1], device="cpu", framework="np")
        assert tensors["a"][::1 << 16].sum() == 0 and tensors["a"].nbytes == 2 << 30
        assert private() - before < 64 << 20, private() - before
        print("done")
    """), tmp_path / "big"], capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr


def test_without_a_gpu_the_error_names_the_host(path):
    if not lade.device().software:
        pytest.skip("here is a GPU")
    with pytest.raises(lade.Error, match='device="cpu" needs no GPU') as raised:
        ours.load_file(path)
    assert isinstance(raised.value, (lade.NoDeviceError, lade.UnsupportedError))


# ---- Bytes -----------------------------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_package(path):
    package = pytest.importorskip("safetensors.numpy")
    data = ours.save(TENSORS, {"by": "test"})
    assert data == path.read_bytes() == package.save(TENSORS, {"by": "test"})
    assert same(ours.load(data, framework="np"), package.load(data)) and same(ours.load(bytearray(data), framework="np"), TENSORS)


def test_bytes_that_are_none_are_refused(monkeypatch):
    monkeypatch.setattr(tempfile, "template", f"lade-{os.getpid()}-")
    with pytest.raises(ours.SafetensorError, match="header too small"):
        ours.load(b"123")
    with pytest.raises(TypeError):
        ours.load("text")
    with pytest.raises(ValueError, match="masked"):
        ours.save({"a": np.ma.masked_array([1], [True])})
    assert [name for name in os.listdir("/dev/shm") if name.startswith(tempfile.template)] == []


@pytest.mark.parametrize("size, files", [(64, 2), ("64", 2), ("64B", 2), ("0.0625 KiB", 2), ("1KB", 1), ("5GB", 1), ("4.5GiB", 1)])
def test_sizes_of_files_of_host_tensors(tmp_path, size, files):
    ours.save_file(TENSORS, tmp_path / "m.safetensors", max_shard_size=size if size != 64 else 50)
    found = sorted(name for name in os.listdir(tmp_path) if name.endswith(".safetensors"))
    assert len(found) == files if size not in (64, "64", "64B", "0.0625 KiB") else len(found) >= 1
    whole = tmp_path / ("m.safetensors" if len(found) == 1 else "m.safetensors.index.json")
    assert same(ours.load_file(whole, device="cpu", framework="np"), TENSORS)


@pytest.mark.parametrize("size", ["5 apples", "GB", "", "-1", -1, 2.5])
def test_sizes_that_are_none_are_refused(tmp_path, size):
    with pytest.raises((lade.InvalidArgumentError, TypeError), match="max_shard_size"):
        ours.save_file(TENSORS, tmp_path / "m", max_shard_size=size)
    with pytest.raises(lade.InvalidArgumentError, match="expected one of both"):
        ours.save_file(TENSORS, tmp_path / "m", max_shard_size="5GB", max_shard_bytes=5)
    assert os.listdir(tmp_path) == []


# ---- Models ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def model():
    torch = pytest.importorskip("torch")

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.body, self.head = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

    return Tied


def test_models_are_those_of_the_package(model, tmp_path):
    package = pytest.importorskip("safetensors.torch")
    import torch

    first = model()
    ours.save_model(first, tmp_path / "ours")
    package.save_model(first, str(tmp_path / "theirs"))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    for load in (ours.load_model, package.load_model):
        second = model()
        assert [list(names) for names in load(second, str(tmp_path / "ours"))] == [[], []]
        assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in first.state_dict().items())


@pytest.mark.parametrize("part", ["weight.data[1:3]", "weight.data", "weight.data.view(2, 4)[:, :1].reshape(2)", "weight.data[1:3].view(-1)[1:]"])
def test_a_buffer_that_is_a_part_of_a_parameter_is_saved_with_it(part, tmp_path):
    """Regression: save_model() refused what the package saves, and load_model() missed the part."""
    torch = pytest.importorskip("torch")
    package = pytest.importorskip("safetensors.torch")

    class Parts(torch.nn.Module):
        def __init__(self, fill):
            super().__init__()
            weight = self.weight = torch.nn.Parameter(torch.arange(8.0).reshape(4, 2) + fill)
            self.register_buffer("part", eval(part, {"weight": weight}))
            self.register_buffer("a_part", self.part)

    ours.save_model(Parts(0), tmp_path / "ours")
    package.save_model(Parts(0), str(tmp_path / "theirs"))
    first, theirs = ours.load_file(tmp_path / "ours", "cpu"), ours.load_file(tmp_path / "theirs", "cpu")
    assert first.keys() == theirs.keys() and all(torch.equal(first[name], theirs[name]) for name in first)
    for load in (ours.load_model, package.load_model):
        second = Parts(9)
        assert [list(names) for names in load(second, str(tmp_path / "ours"))] == [[], []]
        assert all(torch.equal(second.state_dict()[name], tensor) for name, tensor in Parts(0).state_dict().items())
    ours.save_file({"part": Parts(0).part.clone()}, tmp_path / "part")
    if part != "weight.data":
        with pytest.raises(RuntimeError, match=r"missing \['weight'\]"):
            ours.load_model(Parts(0), tmp_path / "part")


def test_models_that_do_not_fit_are_refused(model, tmp_path):
    import torch

    state = dict(model().state_dict())
    del state["head.weight"], state["body.bias"]
    ours.save_file({**state, "more": torch.zeros(1)}, tmp_path / "a")
    second = model()
    before = {name: tensor.clone() for name, tensor in second.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"missing \['body.bias'\], unexpected \['more'\]"):
        ours.load_model(second, tmp_path / "a")
    assert all(torch.equal(tensor, before[name]) for name, tensor in second.state_dict().items())
    assert ours.load_model(second, tmp_path / "a", strict=False) == (["body.bias"], ["more"])
    assert torch.equal(second.head.weight, state["embed.weight"])


def test_models_are_saved_in_order(model, tmp_path):
    import torch

    turned = torch.nn.Linear(3, 2, bias=False)
    turned.weight = torch.nn.Parameter(torch.arange(6.0).reshape(3, 2).T)
    ours.save_model(turned, tmp_path / "a")
    assert torch.equal(ours.load_file(tmp_path / "a", "cpu")["weight"], turned.weight)
    with pytest.raises(ValueError, match="non contiguous"):
        ours.save_model(turned, tmp_path / "a", force_contiguous=False)
