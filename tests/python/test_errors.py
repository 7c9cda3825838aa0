# SPDX-License-Identifier: Apache-2.0
"""Errors of other processes: each class goes there and back, with its text, status and native code."""

import concurrent.futures
import multiprocessing
import pickle
import sys

import doubles
import pytest

import lade
import lade.safetensors as ours

CLASSES = sorted((value for value in vars(lade).values() if isinstance(value, type) and issubclass(value, lade.Error)), key=str)
STARTS = ["fork", "spawn"]


def facts(error):
    return type(error), error.args, str(error), error.status, error.native_code


def test_all_classes_are_looked_at():
    assert len(CLASSES) > 25 and {lade.Error, lade.IOError, lade.ArgumentTypeError, lade.NotReadyError} < set(CLASSES)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_is_pickled(kind):
    error = kind("what went wrong")
    error.native_code = 28
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert facts(pickle.loads(pickle.dumps(error, protocol))) == facts(error)
        assert pickle.loads(pickle.dumps(kind, protocol)) is kind


@pytest.mark.parametrize("imported", [False, True])
def test_errors_of_checkpoints_are_pickled(tmp_path, monkeypatch, imported):
    """Regression: once the package safetensors was imported, the class was no name of any module."""
    if imported:
        pytest.importorskip("safetensors")
    else:
        monkeypatch.delitem(sys.modules, "safetensors", raising=False)
    (tmp_path / "bad").write_bytes(b"abc")
    with pytest.raises(ours.SafetensorError) as caught:
        ours.load_file(tmp_path / "bad", "cpu")
    error = caught.value
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert facts(pickle.loads(pickle.dumps(error, protocol))) == facts(error)
        assert pickle.loads(pickle.dumps(type(error), protocol)) is type(error)
    sent = pickle.dumps(error)
    monkeypatch.delitem(sys.modules, "safetensors", raising=False)
    assert type(pickle.loads(sent)) is ours.SafetensorError and str(pickle.loads(sent)) == str(error)


class Own(ours.SafetensorError):
    """A program's own error."""


def test_a_program_s_own_class_stays_its_own():
    error = pickle.loads(pickle.dumps(Own("text")))
    assert type(error) is Own and error.args == ("text",)


def test_cupy_s_error_is_pickled(monkeypatch):
    """Regression: its class was local to a function."""
    import lade.cupy

    double = doubles.cupy()
    for name, module in double.items():
        monkeypatch.setitem(sys.modules, name, module)
    error = lade.cupy._out_of_memory(1 << 20, "1 MiB asked for, 3 bytes free")
    got = pickle.loads(pickle.dumps(error))
    assert type(got) is type(error) and str(got) == "1 MiB asked for, 3 bytes free" and got.nbytes == 1 << 20
    assert isinstance(got, sys.modules["cupy.cuda.memory"].OutOfMemoryError) and pickle.loads(pickle.dumps(type(error))) is type(error)


def load(path):
    """In a worker, with the package imported."""
    import safetensors  # noqa: F401

    return ours.load_file(path, "cpu", framework="lade")


def refused(_):
    raise lade.InvalidArgumentError("refused")


def full(_):
    error = lade.IOError("no space")
    error.native_code = 28
    raise error


@pytest.mark.parametrize("start", STARTS)
def test_pools_of_processes(start, tmp_path):
    """Regression: the parent waited for ever."""
    package = pytest.importorskip("safetensors")
    (tmp_path / "bad").write_bytes(b"abc")
    context = multiprocessing.get_context(start)
    with context.Pool(1) as pool:
        with pytest.raises(package.SafetensorError, match="header too small") as caught:
            pool.apply_async(load, (tmp_path / "bad",)).get(100)
        assert isinstance(caught.value, ours.SafetensorError)
        with pytest.raises(lade.IOError, match="no space") as caught:
            pool.apply_async(full, (None,)).get(100)
        assert caught.value.native_code == 28 and caught.value.status == lade.IOError.status
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        with pytest.raises(ours.SafetensorError, match="header too small"):
            executor.submit(load, tmp_path / "bad").result(100)
        with pytest.raises(lade.InvalidArgumentError, match="refused"):
            executor.submit(refused, None).result(100)


def send(queue, path):
    try:
        load(path)
    except ours.SafetensorError as error:
        queue.put(error)


def test_queues(tmp_path):
    package = pytest.importorskip("safetensors")
    (tmp_path / "bad").write_bytes(b"abc")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=send, args=(queue, tmp_path / "bad"))
    process.start()
    error = queue.get(timeout=100)
    process.join()
    assert isinstance(error, package.SafetensorError) and "header too small" in str(error)


class Files:
    """A data set of checkpoints."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 1

    def __getitem__(self, _):
        return load(self.path)


@pytest.mark.parametrize("start", STARTS)
def test_workers_of_torch_s_data_loader(start, tmp_path):
    """Regression: a worker that met a bad file was waited for, for ever."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    (tmp_path / "bad").write_bytes(b"abc")
    loader = torch.utils.data.DataLoader(Files(tmp_path / "bad"), num_workers=1, multiprocessing_context=start, timeout=100)
    with pytest.raises(ours.SafetensorError, match="header too small"):
        next(iter(loader))
