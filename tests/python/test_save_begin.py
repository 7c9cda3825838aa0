# SPDX-License-Identifier: Apache-2.0
"""Saves that go on while the program does; the safetensors package reads what they leave."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import lade
import lade.safetensors as ours

BYTES = 1 << 20


@pytest.fixture
def weights(device):
    """(buffers on the device, what they hold)"""
    allocator = lade.DeviceAllocator(device)
    values = {name: np.random.default_rng(at).integers(0, 255, BYTES, np.uint8) for at, name in enumerate("abc")}
    buffers = {name: allocator.empty(BYTES, "u1") for name in values}
    for name, value in values.items():
        np.asarray(memoryview_of(buffers[name]))[:] = value
    return buffers, values


def memoryview_of(buffer):
    """Memory of a software device, as the host has it."""
    return np.from_dlpack(buffer)


def change(buffers):
    for buffer in buffers.values():
        memoryview_of(buffer)[:] = 0


def expect(path, values):
    reader = pytest.importorskip("safetensors.numpy")
    found = reader.load_file(path)
    assert found.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("stage_bytes", [0, 64 << 10])
def test_tensors_may_change_once_they_are_staged(weights, tmp_path, stage_bytes):
    buffers, values = weights
    host = np.arange(1000)
    path = tmp_path / "m.safetensors"
    save = ours.save_file({**buffers, "host": host}, path, {"k": "v"}, wait=False, stage_bytes=stage_bytes)
    assert isinstance(save, ours.Save)
    save.wait_staged()
    change(buffers)
    values = {**values, "host": host.copy()}
    host[:] = 0
    assert repr(save) in ("<lade.safetensors.Save: staged>", "<lade.safetensors.Save: durable>")
    save.wait()
    assert repr(save) == "<lade.safetensors.Save: durable>"
    expect(path, values)
    save.close()
    assert repr(save) == "<lade.safetensors.Save: closed>"
    with pytest.raises(lade.InvalidArgumentError, match="closed"):
        save.wait()


def test_files_are_those_of_a_save_that_waits(weights, tmp_path):
    buffers, _ = weights
    ours.save_file(buffers, tmp_path / "one.safetensors", wait=False).wait()
    ours.save_file(buffers, tmp_path / "two.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    save = ours.save_file(buffers, tmp_path / "many.safetensors", max_shard_bytes=BYTES, wait=False)
    save.wait()
    assert len(list(tmp_path.glob("many-1-*.safetensors"))) == 3


def test_streams_wait_for_the_copies(weights, device, tmp_path):
    buffers, values = weights
    stream = device.stream()
    save = ours.save_file(buffers, tmp_path / "m.safetensors", wait=False)
    save.wait_on(stream)
    stream.synchronize()
    change(buffers)
    save.wait()
    expect(tmp_path / "m.safetensors", values)


def test_a_time_to_wait_may_end(sim, tmp_path):
    buffer = lade.DeviceAllocator(sim).empty(64 << 20, "u1")
    save = ours.save_file({"a": buffer}, tmp_path / "m.safetensors", wait=False)
    with pytest.raises(TimeoutError, match="not durable in the time to wait"):
        save.wait(timeout=1e-6)
    save.wait()
    assert os.path.getsize(tmp_path / "m.safetensors") > 64 << 20


def test_a_save_that_is_given_up_leaves_the_old_file(sim, tmp_path):
    path = tmp_path / "m.safetensors"
    ours.save_file({"a": np.arange(3)}, path)
    before = path.read_bytes()
    save = ours.save_file({"a": lade.DeviceAllocator(sim).empty(64 << 20, "u1")}, path, wait=False)
    save.close(cancel=True)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_a_failure_is_told_by_the_waits(weights, tmp_path):
    buffers, _ = weights
    with pytest.raises(ours.SafetensorError, match="No such file"):
        ours.save_file(buffers, tmp_path / "no" / "m.safetensors", wait=False)
    with pytest.raises(lade.InvalidArgumentError, match="progress is .*expected None with wait=False"):
        ours.save_file(buffers, tmp_path / "m.safetensors", wait=False, progress=print)
    with pytest.raises(lade.InvalidArgumentError, match="stage_bytes is -1"):
        ours.save_file(buffers, tmp_path / "m.safetensors", wait=False, stage_bytes=-1)
    with pytest.raises(TypeError, match="wait"):
        ours.save_file(buffers, tmp_path / "m.safetensors", wait=0)
    assert os.listdir(tmp_path) == []


def test_the_last_reference_waits_for_the_end(weights, tmp_path):
    buffers, values = weights
    ours.save_file(buffers, tmp_path / "m.safetensors", wait=False)
    gc.collect()
    expect(tmp_path / "m.safetensors", values)


@pytest.mark.parametrize("use", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_and_pickles_are_refused(weights, tmp_path, use):
    """Regression: a copy ended the save of which it was one."""
    save = ours.save_file(weights[0], tmp_path / "m.safetensors", wait=False)
    with pytest.raises(TypeError, match="not copied or pickled"):
        use(save)
    save.wait()


def test_threads_may_wait_while_another_closes(weights, tmp_path):
    """The bug: the save was freed under their calls."""
    buffers, _ = weights
    for cancel in (False, True) * 20:
        save = ours.save_file(buffers, tmp_path / "m.safetensors", wait=False, sync=False)
        found = []

        def wait(call=save.wait, found=found):
            try:
                call()
            except lade.InvalidArgumentError as error:
                found.append(str(error))
            except lade.CancelledError:
                found.append("cancelled")

        threads = [threading.Thread(target=wait, args=(call,)) for call in (save.wait, save.wait_staged, save.wait_on) * 2]
        for thread in threads:
            thread.start()
        save.close(cancel=cancel)
        for thread in threads:
            thread.join()
        assert set(found) <= {"the Save is closed", "cancelled"}


def test_a_forked_child_leaves_it_to_its_parent(tmp_path):
    path = tmp_path / "m.safetensors"
    program = textwrap.dedent(f"""
        import os, sys, numpy as np, lade, lade.safetensors
        buffer = lade.DeviceAllocator(lade.software_device()).empty(8 << 20, "u1")
        np.from_dlpack(buffer)[:] = 7
        save = lade.safetensors.save_file({{"a": buffer}}, {str(path)!r}, wait=False)
        child = os.fork()
        if child == 0:
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        """)
    quiet = "ignore:This process:DeprecationWarning"  # of fork(), since Python 3.12
    done = subprocess.run([sys.executable, "-W", quiet, "-c", program], check=True, timeout=60, capture_output=True, text=True)
    assert done.stderr == ""
    expect(path, {"a": np.full(8 << 20, 7, np.uint8)})


def test_the_pipeline_stays_open_for_a_save(weights, device, tmp_path):
    buffers, values = weights
    pipeline = lade.Pipeline(device)
    save = ours.save_file(buffers, tmp_path / "m.safetensors", wait=False, pipeline=pipeline)
    with pytest.raises(lade.Error):
        pipeline.close()
    save.close()
    pipeline.close()
    expect(tmp_path / "m.safetensors", values)


def test_the_end_of_the_program_waits_for_the_end(tmp_path):
    path = tmp_path / "m.safetensors"
    program = textwrap.dedent(f"""
        import numpy as np, lade, lade.safetensors
        buffer = lade.DeviceAllocator(lade.software_device()).empty(8 << 20, "u1")
        np.from_dlpack(buffer)[:] = 7
        save = lade.safetensors.save_file({{"a": buffer}}, {str(path)!r}, wait=False)
        """)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    expect(path, {"a": np.full(8 << 20, 7, np.uint8)})
