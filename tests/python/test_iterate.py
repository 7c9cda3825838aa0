# SPDX-License-Identifier: Apache-2.0
"""Checkpoints tensor by tensor: what comes, how much memory is taken ahead of it, and what is left after an error or a break."""

import gc
import json
import os
import threading

import numpy as np
import pytest

import lade
import lade.safetensors as ours
from lade.safetensors import _iterate

writer = pytest.importorskip("safetensors.numpy")

COUNT, ROWS = 60, 4096
TENSORS = {f"t{at:03}": np.random.default_rng(at).integers(0, 1 << 30, (ROWS + at,), np.int32) for at in range(COUNT)}
EACH = 4 * (ROWS + COUNT)  # bytes of a tensor, at most


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "m.safetensors"
    writer.save_file(TENSORS, path)
    return path


@pytest.fixture
def shards(tmp_path):
    names = sorted(TENSORS)
    places = {}
    for at in range(3):
        part = names[at::3]
        writer.save_file({name: TENSORS[name] for name in part}, tmp_path / f"m-{at}.safetensors")
        places.update(dict.fromkeys(part, f"m-{at}.safetensors"))
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index


@pytest.fixture
def way(device):
    pipeline = lade.Pipeline(device)
    with pipeline:
        yield {"pipeline": pipeline, "allocator": lade.DeviceAllocator(device), "framework": "np"}


def in_use(way):
    gc.collect()
    return way["allocator"].stats()["allocated_bytes.all.current"]


def descriptors(folder):
    links = (os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd"))
    return sum(os.path.exists(link) and os.readlink(link).startswith(str(folder)) for link in links)


@pytest.mark.parametrize("most", [1, EACH, 5 * EACH, 1 << 30])
def test_every_tensor_comes_once_and_little_is_read_ahead(way, path, most):
    seen = {}
    for name, tensor in ours.iterate(path, max_transient_bytes=most, **way):
        assert name not in seen
        np.testing.assert_array_equal(tensor, TENSORS[name])
        seen[name] = True
        del tensor
        # `most`, the tensor that was in the program's hands, and that each block is rounded up
        assert in_use(way) <= max(most, EACH) + EACH + 512 * COUNT
    assert sorted(seen) == sorted(TENSORS)
    assert in_use(way) == 0


def test_tensors_that_are_kept_are_the_programs(way, path):
    kept = dict(ours.iterate(path, max_transient_bytes=4 * EACH, **way))
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(kept[name], value)
    before = in_use(way)
    del kept["t007"]
    assert 0 < before - in_use(way) < 2 * EACH  # its own block went


def test_shards_names_and_types(way, shards):
    names = ["t050", "t003", "t004"]
    got = dict(ours.iterate(shards, tensors=names, **way))
    assert sorted(got) == sorted(names)
    for name in names:
        np.testing.assert_array_equal(got[name], TENSORS[name])
    assert len(list(ours.iterate(shards, **way))) == COUNT
    with pytest.raises(ours.SafetensorError, match="File does not contain tensor x"):
        ours.iterate(shards, tensors=["x"], **way)


def test_a_type_that_tensors_are_converted_to(way, tmp_path):
    path = tmp_path / "f.safetensors"
    values = {f"t{at}": np.random.default_rng(at).standard_normal(1000 + at).astype(np.float32) for at in range(9)}
    writer.save_file(values, path)
    for name, tensor in ours.iterate(path, dtype="F16", max_transient_bytes=9000, **way):
        np.testing.assert_array_equal(tensor, values[name].astype(np.float16))
    by_name = dict(ours.iterate(path, dtype={"t3": "F16"}, **way))
    assert {str(tensor.dtype) for name, tensor in by_name.items() if name != "t3"} == {"float32"}
    assert by_name["t3"].dtype == np.float16


def test_a_break_ends_all(way, path, tmp_path):
    for name, tensor in ours.iterate(path, max_transient_bytes=8 * EACH, **way):
        break
    gc.collect()
    assert descriptors(tmp_path) == 0
    np.testing.assert_array_equal(tensor, TENSORS[name])
    assert in_use(way) < 2 * EACH  # the one that is held; neither its neighbours, nor what was read ahead
    iterator = ours.iterate(path, **way)
    iterator.close()  # before the first
    del iterator
    assert descriptors(tmp_path) == 0
    assert list(ours.iterate(path, tensors=[], **way)) == []


@pytest.mark.parametrize("most", [4 * EACH, 1 << 30])
def test_an_error_comes_in_place_of_its_tensor(way, shards, tmp_path, most):
    sizes = [os.path.getsize(tmp_path / f"m-{at}.safetensors") for at in range(3)]
    order = list(ours.load_file(shards, "cpu", framework="np"))
    iterator = ours.iterate(shards, max_transient_bytes=most, **way)
    os.truncate(tmp_path / "m-1.safetensors", sizes[1] // 2)
    seen = []
    with pytest.raises(lade.Error, match="tensor `t[0-9]*`: ") as caught:
        for name, tensor in iterator:
            np.testing.assert_array_equal(tensor, TENSORS[name])
            seen.append(name)
            del tensor
    cut = {f"t{at:03}" for at in range(1, COUNT, 3)}  # in the second file; what is there goes before what is not
    assert not cut & set(seen) and set(order[:COUNT // 3]) <= set(seen)
    assert str(caught.value).split("`")[1] in cut
    assert list(iterator) == []
    assert in_use(way) == 0 and descriptors(tmp_path) == 0


def test_a_load_that_fails_is_tried_tensor_by_tensor(device, path):
    """One copy fails, of a load of all: all come, and those of the load that failed keep no pipeline open."""
    pipeline, allocator = lade.Pipeline(device, chunk_bytes=1 << 16), lade.DeviceAllocator(device)
    device.soft_fault("copy_batch", 6)
    kept = dict(ours.iterate(path, pipeline=pipeline, allocator=allocator, framework="np"))
    assert sorted(kept) == sorted(TENSORS)
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(kept[name], value)
    pipeline.close()
    kept.clear()
    gc.collect()
    assert allocator.stats()["allocated_bytes.all.current"] == 0
    with lade.Pipeline(device) as pipeline:
        for op in ("copy_batch", "copy"):
            device.soft_fault(op, 0)  # every one
        with pytest.raises(lade.DriverError, match="tensor `t000`: "):
            next(ours.iterate(path, pipeline=pipeline, allocator=allocator, framework="np"))
        device.soft_fault_clear()


def test_tensors_of_a_load_that_failed_keep_no_pipeline_open(device, path):
    pipeline, allocator = lade.Pipeline(device), lade.DeviceAllocator(device)
    owner = ours.safe_open(path, "lade", device, pipeline=pipeline, allocator=allocator)
    for op in ("copy_batch", "copy"):
        device.soft_fault(op, 0)
    load = owner._open_file().start(owner._target(), None, True, None)
    kept = load.views()
    with pytest.raises(lade.DriverError):
        load.wait(None)
    device.soft_fault_clear()
    load.close()
    closing = threading.Thread(target=pipeline.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive() and pipeline.closed
    kept.clear()
    gc.collect()
    assert allocator.stats()["allocated_bytes.all.current"] == 0


def test_memory_that_is_short_is_waited_for(device, path):
    """What cannot begin ahead is tried again when those before it are handed out; what cannot begin at all is told."""
    with lade.Pipeline(device) as pipeline:
        allocator = lade.DeviceAllocator(device, max_bytes=4 << 20)
        way = {"pipeline": pipeline, "allocator": allocator, "framework": "np"}
        assert sum(1 for _ in ours.iterate(path, max_transient_bytes=1 << 30, **way)) == COUNT
        kept = []
        with pytest.raises(lade.Error, match="tensor `t[0-9]*`: "):
            for at in range(6):
                kept += list(ours.iterate(path, max_transient_bytes=1 << 20, **way))
        assert len(kept) >= COUNT


def test_views_of_mapped_files(path):
    for name, tensor in ours.iterate(path, "cpu", framework="np"):
        np.testing.assert_array_equal(tensor, TENSORS[name])
        assert not tensor.flags.owndata


def test_the_load_that_is_there_goes_first():
    class Load:
        def __init__(self, is_ready):
            self.is_ready = is_ready

        def ready(self):
            return self.is_ready

    waves = [_iterate._Wave(Load(is_ready), [], [], [], {}, 0) for is_ready in (False, True, True)]
    first, second, third = waves
    assert _iterate._next_wave(waves) is second and waves == [first, third]
    assert _iterate._next_wave(waves) is third
    assert _iterate._next_wave(waves) is first and not waves


def test_what_is_asked_for_is_looked_at_by_the_call(path):
    for wrong, kind in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (None, TypeError)):
        with pytest.raises(kind, match="max_transient_bytes"):
            ours.iterate(path, "cpu", max_transient_bytes=wrong)
    with pytest.raises(FileNotFoundError):
        ours.iterate(str(path) + "x", "cpu")
