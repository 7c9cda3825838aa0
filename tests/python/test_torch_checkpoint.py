# SPDX-License-Identifier: Apache-2.0
"""lade.torch.checkpoint under torch.distributed.checkpoint, without a GPU; PyTorch's reader and safetensors judge what it leaves."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")
if not hasattr(dcp, "HuggingFaceStorageReader"):
    pytest.skip("this PyTorch has no reader of safetensors", allow_module_level=True)

import lade  # noqa: E402
from lade.torch.checkpoint import Reader, Writer  # noqa: E402


def state(seed):
    torch.manual_seed(seed)
    tied = torch.randn(300)
    return {"model": {"weight": torch.randn(64, 32), "half": torch.randn(7, 5).half(), "scalar": torch.tensor(seed), "tied": tied,
                      "same": tied, "empty": torch.empty(0, 4)}, "step": 10 * seed, "names": ["a", "b"]}


def zeros(of):
    if isinstance(of, torch.Tensor):
        return torch.zeros_like(of)
    return {key: zeros(value) for key, value in of.items()} if isinstance(of, dict) else type(of)()


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a) if isinstance(a, dict) else a == b


def loaded(path, like):
    found = zeros(like)
    dcp.load(found, storage_reader=Reader(path), no_dist=True)
    return found


@pytest.mark.parametrize("sync", [True, False])
def test_what_was_saved_is_loaded(tmp_path, sync):
    path, saved = tmp_path / "one", state(1)
    dcp.save(saved, storage_writer=Writer(path, sync=sync), no_dist=True)
    assert equal(loaded(path, saved), saved)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["one"]
    dcp.save(state(2), storage_writer=Writer(path, sync=sync), no_dist=True)  # takes its place
    assert equal(loaded(path, saved), state(2))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["one"]


def test_pytorchs_reader_and_safetensors_read_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    saved = state(1)["model"]
    dcp.save(saved, storage_writer=Writer(tmp_path / "m"), no_dist=True)
    found = zeros(saved)
    dcp.load(found, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path / "m")), no_dist=True)
    assert equal(found, saved)
    (file,) = (tmp_path / "m").glob("*.safetensors")
    assert equal(safetensors.load_file(file), saved)


def test_changes_after_staging_are_not_in_it(tmp_path):
    saved, kept = state(1), state(1)
    future = dcp.async_save(saved, storage_writer=Writer(tmp_path / "m"), no_dist=True)
    saved["model"]["weight"].zero_()
    saved["model"]["tied"].fill_(9)
    future.result()
    assert equal(loaded(tmp_path / "m", kept), kept)


def test_a_save_that_fails_leaves_the_old_one(tmp_path):
    saved = state(1)
    dcp.save(saved, storage_writer=Writer(tmp_path / "m"), no_dist=True)
    with pytest.raises(dcp.api.CheckpointException, match="sparse"):
        dcp.save({"t": torch.eye(3).to_sparse()}, storage_writer=Writer(tmp_path / "m"), no_dist=True)
    assert equal(loaded(tmp_path / "m", saved), saved)
    dcp.save(state(2), storage_writer=Writer(tmp_path / "m"), no_dist=True)
    assert equal(loaded(tmp_path / "m", saved), state(2))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m"]


def test_ranks_without_collectives_are_refused(tmp_path):
    writer = Writer(tmp_path / "m")
    writer.set_up_storage_writer(True, rank=0, use_collectives=False)
    with pytest.raises(lade.UnsupportedError, match="use_collectives is False"):
        writer.prepare_local_plan(None)


KILLED = """
import os, signal, sys, torch, torch.distributed.checkpoint as dcp
import lade.torch.checkpoint as ours
def kill(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)
place, path = sys.argv[1:]
if place == "write": ours.save_file = kill
if place == "finish": ours.Writer.finish = kill
if place == "rename": ours._exchange = kill
if place == "remove":
    real = ours._exchange
    def then(*args): real(*args); kill()
    ours._exchange = then
dcp.save({"t": torch.full((1000,), 2)}, storage_writer=ours.Writer(path), no_dist=True)
"""


@pytest.mark.parametrize("place, value", [("write", 1), ("finish", 1), ("rename", 1), ("remove", 2)])
def test_a_kill_leaves_the_old_or_the_new_one(tmp_path, place, value):
    dcp.save({"t": torch.full((1000,), 1)}, storage_writer=Writer(tmp_path / "m"), no_dist=True)
    done = subprocess.run([sys.executable, "-c", KILLED, place, tmp_path / "m"], capture_output=True, text=True, timeout=200)
    assert done.returncode == -signal.SIGKILL, done.stderr
    like = {"t": torch.zeros(1000, dtype=torch.int64)}
    assert loaded(tmp_path / "m", like)["t"].unique().tolist() == [value]
    dcp.save({"t": torch.full((1000,), 3)}, storage_writer=Writer(tmp_path / "m"), no_dist=True)
    assert loaded(tmp_path / "m", like)["t"].unique().tolist() == [3]
    assert [each.name for each in tmp_path.iterdir()] == ["m"]


RANKS = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from lade.torch.checkpoint import Reader, Writer
dist.init_process_group("gloo")
rank, path = dist.get_rank(), sys.argv[1]
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(35 * 4).reshape(35, 4).float()
saved = {"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "all": distribute_tensor(whole + 1, mesh, [Replicate()]), "step": 7}
future = dcp.async_save(saved, storage_writer=Writer(path))
saved["sharded"].to_local().zero_()
future.result()
found = {"sharded": distribute_tensor(torch.zeros(35, 4), mesh, [Shard(1)]), "all": distribute_tensor(torch.zeros(35, 4), mesh, [Shard(0)]),
         "step": 0}
dcp.load(found, storage_reader=Reader(path))
print(torch.equal(found["sharded"].full_tensor(), whole), torch.equal(found["all"].full_tensor(), whole + 1), found["step"], flush=True)
dist.destroy_process_group()
"""


def test_two_ranks_save_and_load_other_shards(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(RANKS))
    port = str(20000 + os.getpid() % 20000)
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [subprocess.Popen([sys.executable, program, tmp_path / "m"], env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) for rank in range(2)]
    for rank in ranks:
        out, errors = rank.communicate(timeout=300)
        assert rank.returncode == 0, errors
        assert out == "True True 7\n"
    assert len(list((tmp_path / "m").glob("*.safetensors"))) == 2
    whole = {"sharded": torch.zeros(35, 4)}  # by one process, of both files
    dcp.load(whole, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path / "m")), no_dist=True)
    assert torch.equal(whole["sharded"], torch.arange(35 * 4).reshape(35, 4).float())
