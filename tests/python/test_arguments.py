# SPDX-License-Identifier: Apache-2.0
"""Arguments of a wrong type: a TypeError that names the argument, the type of the value, and what was expected."""

import re

import numpy
import pytest

import lade
import lade.safetensors


class Unknown:
    """Of no type that anything here takes."""


@pytest.fixture
def files(tmp_path, device):
    """What the calls below are given: an index of a file of records, a checkpoint, a pipeline and an allocator."""
    (tmp_path / "rows.bin").write_bytes(bytes(64))
    lade.safetensors.save_file({"a": numpy.zeros(4, "uint8")}, tmp_path / "one.safetensors")
    index = lade.RecordIndex()
    index.add_fixed(tmp_path / "rows.bin", 16)
    pipeline = lade.Pipeline(device)

    class Files:
        rows, checkpoint, folder = tmp_path / "rows.bin", tmp_path / "one.safetensors", tmp_path

        def loader(self, *arguments, **options):
            return lade.Loader(*(arguments or (index, 4)), **{"pipeline": pipeline, **options})

        def load(self, **options):
            return lade.safetensors.load_file(self.checkpoint, "cpu", **options)

        def save(self, **options):
            return lade.safetensors.save_file({"a": numpy.zeros(4, "uint8")}, self.folder / "two.safetensors", **options)

        def open(self, **options):
            return lade.safetensors.safe_open(self.checkpoint, **options)

    return Files()


def refused(name, value, call):
    """The call raises a TypeError with the words that the argument's value calls for."""
    kind = type(value)
    text = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    with pytest.raises(TypeError, match=rf"^{re.escape(name)} is a {re.escape(text)}[;,] .*expected ") as fault:
        call()
    assert isinstance(fault.value, lade.ArgumentTypeError)


def test_the_class_is_a_type_error_and_an_invalid_argument():
    assert issubclass(lade.ArgumentTypeError, (lade.InvalidArgumentError,)) and issubclass(lade.ArgumentTypeError, TypeError)
    assert lade.ArgumentTypeError.status == lade.InvalidArgumentError.status
    assert lade.ArgumentTypeError.__module__ == "lade"


LOADER = {
    "pipeline": 3, "allocator": "a", "layout": 3, "convert": 3, "return_timeout": "1", "state": [1], "shuffle": 1, "padded": "yes",
    "equal_ranks": None, "drop_last": 0, "skip_unreadable": 1.0, "batch_bytes": 1.5, "epochs": "2", "rank": None, "world": 1.0,
    "prefetch": "4", "seed": 0.5, "alignment": "8", "stream": "legacy",
}


@pytest.mark.parametrize("name", LOADER)
def test_a_loader_refuses_a_wrong_type_by_name(files, name):
    refused(name, LOADER[name], lambda: files.loader(**{name: LOADER[name]}))


def test_a_loader_refuses_what_it_cannot_read_from(files):
    refused("source", 3, lambda: files.loader(3, 4, record_bytes=16))
    refused("batch_size", "4", lambda: files.loader([files.rows], "4", record_bytes=16))
    refused("batch_size", 2.0, lambda: files.loader([files.rows], 2.0, record_bytes=16))
    batch_size = numpy.zeros(3, int)
    refused("batch_size", batch_size, lambda: files.loader([files.rows], batch_size, record_bytes=16))
    refused("record_bytes", "16", lambda: files.loader([files.rows], 4, record_bytes="16"))
    refused("fields", 3, lambda: lade.Loader([files.rows], 4, fields=3))
    refused("path", 3, lambda: files.loader([3], 4, record_bytes=16))
    refused("device", 1.5, lambda: lade.Loader([files.rows], 4, record_bytes=16, device=1.5))
    refused("local_ranks", "2", lambda: lade.Loader([files.rows], 4, record_bytes=16, local_ranks="2"))
    refused("layout['']", "uint8", lambda: files.loader(layout={"": "uint8"}))


def test_a_loader_and_its_batches_refuse_a_wrong_type_by_name(files):
    with files.loader() as loader:
        batch = next(loader)
        for call in (batch.__getitem__, batch.records, batch.lengths):
            refused("field", 1.5, lambda: call(1.5))
            refused("field", None, lambda: call(None))
        refused("state", None, lambda: loader.load_state_dict(None))
        refused('state["seed"]', 0.5, lambda: loader.load_state_dict({**loader.state_dict(), "seed": 0.5}))
        assert next(loader).number == 1  # the loader is as before
        batch.release()


def test_an_index_refuses_a_wrong_type_by_name(files):
    index = lade.RecordIndex()
    refused("path", None, lambda: index.add_fixed(None, 1))
    refused("record_bytes", None, lambda: index.add_fixed(files.rows, None))
    refused("skip_bytes", 0.5, lambda: index.add_fixed(files.rows, 1, skip_bytes=0.5))
    refused("ranges", 3, lambda: index.add(3))
    for ranges in ([3], [(0, 0, "1")]):
        with pytest.raises(lade.ArgumentTypeError, match="^ranges has .* a? ?(int|str); expected"):
            index.add(ranges)
    assert len(index) == 0


@pytest.mark.parametrize("name, value", [("pipeline", 3), ("allocator", 3), ("progress", 3), ("tensors", 3), ("tensors", "a"),
                                         ("per_tensor", 1), ("direct", "no"), ("stream", "legacy"), ("local_ranks", 1.5)])
def test_a_load_refuses_a_wrong_type_by_name(files, name, value):
    refused(name, value, lambda: files.load(**{name: value}))


@pytest.mark.parametrize("name, value", [("pipeline", 3), ("allocator", 3), ("direct", 1)])
def test_an_open_refuses_a_wrong_type_by_name(files, name, value):
    refused(name, value, lambda: files.open(**{name: value}))


@pytest.mark.parametrize("name, value", [("metadata", 3), ("max_shard_bytes", "1G"), ("max_shard_bytes", 1.5), ("sync", 1),
                                         ("progress", 3), ("pipeline", 3), ("allocator", 3)])
def test_a_save_refuses_a_wrong_type_by_name(files, name, value):
    refused(name, value, lambda: files.save(**{name: value}))
    assert not (files.folder / "two.safetensors").exists()


def test_a_checkpoint_refuses_a_wrong_type_by_name(files):
    refused("filename", 3, lambda: lade.safetensors.load_file(3))
    refused("filename", None, lambda: lade.safetensors.safe_open(None))
    refused("filename", 3, lambda: lade.safetensors.save_file({}, 3))
    with files.open() as file:
        refused("name", ["a"], lambda: file.get_tensor(["a"]))
        refused("name", 3, lambda: file.get_slice(3))
    refused("name", 3, lambda: files.load(tensors=[3]))


def test_tensors_by_name_are_loaded_once(files):
    assert list(files.load(tensors=iter(["a", "a"]))) == ["a"]


def test_pools_and_allocators_refuse_a_wrong_type_by_name(device, pool):
    allocator = lade.DeviceAllocator(device)
    refused("device", Unknown(), lambda: lade.PinnedPool(Unknown()))
    refused("max_bytes", "1G", lambda: lade.PinnedPool(device, max_bytes="1G"))
    array = numpy.zeros(3, int)  # has __index__, which refuses
    refused("max_bytes", array, lambda: lade.PinnedPool(device, max_bytes=array))
    refused("sources", 3, lambda: lade.PinnedPool(device, sources=3))
    refused("flags", 3, lambda: lade.DeviceAllocator(device, flags=3))
    refused("flags", "debug", lambda: lade.DeviceAllocator(device, flags="debug"))
    refused("nbytes", 1.5, lambda: allocator.alloc(1.5))
    for wrong in (-1, 1 << 63, 1 << 64):
        with pytest.raises(lade.InvalidArgumentError, match=f"^nbytes is {wrong}; expected "):
            allocator.alloc(wrong)
    refused("stream", "legacy", lambda: allocator.alloc(16, "legacy"))
    refused("buffer", 3, lambda: allocator.record_stream(3, None))
    refused("buffer", 3, lambda: pool.record(3, None))
    refused("path", 3, lambda: pool.snapshot(3))
    refused("path", 3, lambda: allocator.snapshot(3))
    for shape in ("3", 1.5, [2, "3"]):
        with pytest.raises(lade.ArgumentTypeError, match="^shape is .* a (str|float); expected"):
            pool.empty(shape)
    with pytest.raises(lade.ArgumentTypeError, match="^dtype is .* a float; expected"):
        pool.empty(3, 1.5)


def test_a_pipeline_refuses_a_wrong_type_by_name(files, device):
    pipeline = lade.Pipeline(device)
    tensor = lade.DeviceAllocator(device).alloc(16)
    refused("pool", 3, lambda: lade.Pipeline(device, pool=3))
    refused("depth", "3", lambda: lade.Pipeline(device, depth="3"))
    refused("path", Unknown(), lambda: pipeline.read_into(Unknown(), 0, tensor))
    refused("offset", 0.5, lambda: pipeline.read_into(files.rows, 0.5, tensor))
    refused("tensor", Unknown(), lambda: pipeline.read_into(files.rows, 0, Unknown()))
    array = numpy.zeros(3, int)
    refused("offset", array, lambda: pipeline.read_into(files.rows, array, tensor))
    refused("bytes", "16", lambda: pipeline.read_into(files.rows, 0, tensor, bytes="16"))
    refused("progress", 3, lambda: pipeline.read_into(files.rows, 0, tensor, progress=3))
    refused("pieces", 3, lambda: pipeline.read_many(3))
    refused("pieces[0]", 3, lambda: pipeline.read_many([3]))
    ticket = pipeline.read_into(files.rows, 0, tensor)
    refused("timeout", "1", lambda: ticket.wait("1"))
    refused("callback", 3, lambda: ticket.add_done_callback(3))
    ticket.wait()


def test_an_array_without_dimensions_is_an_extent(pool):
    """Regression: len() of unsized object."""
    assert pool.empty(numpy.array(3), "uint8").shape == (3,)
    with pytest.raises(lade.ArgumentTypeError, match="^shape is array.*, a numpy.ndarray; expected an int"):
        pool.empty(numpy.array(1.5))
    with pytest.raises(lade.InvalidArgumentError, match="^shape is array.*; expected an int of 0 or more"):
        pool.empty(numpy.array(-1))


def test_a_path_with_a_null_character_is_refused_by_name(pool, device):
    """Regression: embedded null byte."""
    tensor = lade.DeviceAllocator(device).alloc(16)
    for path in ("a\0b", b"a\0b"):
        for call in (lambda: lade.Pipeline(device).read_into(path, 0, tensor), lambda: pool.snapshot(path),
                     lambda: lade.RecordIndex().add_file(path)):
            with pytest.raises(lade.InvalidArgumentError, match=r"^path is .*a\\x00b'; expected a path without null characters"):
                call()
    with pytest.raises(UnicodeEncodeError):
        pool.snapshot("\ud800.html")
