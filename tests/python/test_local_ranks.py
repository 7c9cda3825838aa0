# SPDX-License-Identifier: Apache-2.0
"""Processes that share a machine: everything that opens a pipeline can be told how many they are."""

import os
import subprocess
import sys

import numpy as np
import pytest

import lade
import lade.safetensors

LAUNCHERS = [
    ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}, 8),
    ({"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
    ({"LOCAL_RANK": "3", "LOCAL_SIZE": "4", "RANK": "3", "WORLD_SIZE": "4"}, 4),
    ({"SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": "8", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0"}, 1),
    ({}, 1),
]
PROGRAM = "import lade; print(lade.local_ranks_from_env())"


@pytest.fixture
def opened(monkeypatch):
    """How many ranks each pipeline was made for, in order; none of an earlier test is kept."""
    ranks, pipeline = [], lade.Pipeline

    def noted(*arguments, **options):
        ranks.append(options.get("local_ranks"))
        return pipeline(*arguments, **options)

    lade.safetensors.release()
    monkeypatch.setattr(lade, "Pipeline", noted)
    yield ranks
    lade.safetensors.release()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    lade.safetensors.save_file({"a": np.arange(8)}, path)
    return path


def test_a_load_divides_the_machine(opened, path, device):
    """Regression: of eight ranks that loaded a checkpoint each took the readers and the cache of all."""
    loaded = lade.safetensors.load_file(path, device, framework="np", local_ranks=8)
    assert loaded["a"].tolist() == list(range(8)) and opened == [8]
    lade.safetensors.load_file(path, device)  # by what is kept
    with lade.safetensors.safe_open(path, "np", device, local_ranks=8) as file:
        assert file.get_slice("a")[2:4].tolist() == [2, 3]
    assert opened == [8]
    lade.safetensors.load_file(path, device, local_ranks=4)
    lade.safetensors.load_file(path, device, local_ranks=4)
    assert opened == [8, 4]


INTO = """
import sys, numpy, lade, lade.safetensors
path, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
device = lade.software_device(clock="cpu")
own = lade.DeviceAllocator(device).empty(8 // ranks, "int64")
part = slice(8 // ranks * rank, 8 // ranks * (rank + 1))
assert lade.safetensors.load_into({"a": own}, path, slices=lambda name, shape: part, local_ranks=ranks) == ([], [])
there = numpy.zeros(8 // ranks, numpy.int64)
lade.Pipeline(device).copy(there, own).wait()
print(there.tolist())
"""


def test_ranks_load_into_tensors_each_by_itself(path):
    """There is no group in it: what one gets, and whether it fails, is no other's. Regression: load_into() refused local_ranks, always."""
    ranks = [subprocess.Popen([sys.executable, "-c", INTO, path if rank != 2 else f"{path}.none", str(rank), "4"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) for rank in range(4)]
    for rank, (out, error) in enumerate(process.communicate(timeout=120) for process in ranks):
        if rank == 2:
            assert "FileNotFoundError" in error
        else:
            assert out.split() == [f"[{2 * rank},", f"{2 * rank + 1}]"], error


def test_a_save_divides_the_machine(opened, tmp_path, device):
    tensors = {"a": lade.DeviceAllocator(device).empty(8, "int64")}
    lade.safetensors.save_file(tensors, tmp_path / "file", local_ranks=8)
    assert opened == [8]


def test_the_pool_of_a_pipeline_counts_on_as_many():
    """Regression: the pool that a pipeline makes took itself for the only one of the machine."""
    device = lade.software_device(clock="sim")  # in no budget, so that the ranks divide the default cap
    tensor = lade.DeviceAllocator(device).empty(1000, "uint8")
    lade.Pipeline(device, local_ranks=8).copy(tensor, bytes(1000)).wait()
    with pytest.raises(lade.LimitError, match="under the cap of"):
        lade.Pipeline(device, local_ranks=1 << 28).copy(tensor, bytes(1000)).wait()
    own = lade.Pipeline(device, pool=lade.PinnedPool(device), local_ranks=1 << 28)
    own.copy(tensor, bytes(1000)).wait()


def test_a_loader_divides_the_machine(opened, tmp_path, device):
    (tmp_path / "records").write_bytes(bytes(64))
    with lade.Loader(tmp_path / "records", 2, record_bytes=8, device=device, local_ranks=8):
        assert opened == [8]


def test_no_pipeline_is_opened_beside_the_one_that_is_passed(opened, path, device):
    """Regression: a load through a pipeline of the program's opened another one, for the machine alone, which nothing used."""
    pipeline = lade.Pipeline(device, local_ranks=8)
    lade.safetensors.load_file(path, pipeline=pipeline)
    assert opened == [8]


def test_ranks_beside_a_pipeline_are_refused(path, tmp_path, device):
    (tmp_path / "records").write_bytes(bytes(64))
    pipeline = lade.Pipeline(device)
    for call in (
        lambda: lade.safetensors.load_file(path, pipeline=pipeline, local_ranks=8),
        lambda: lade.Loader(tmp_path / "records", 2, record_bytes=8, pipeline=pipeline, local_ranks=8),
    ):
        with pytest.raises(lade.InvalidArgumentError, match="local_ranks is 8; expected None with a pipeline"):
            call()
    with pytest.raises(lade.InvalidArgumentError, match="local_ranks is 0"):
        lade.safetensors.load_file(path, device, local_ranks=0)


def run(**variables):
    known = ("LOCAL_", "OMPI_", "SLURM_", "MPI_", "PMI_", "LADE_", "PYTORCH_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(known)}
    return subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env={**environment, **variables}, timeout=60)


@pytest.mark.parametrize("variables, count", LAUNCHERS)
def test_the_launcher_says_how_many(variables, count):
    done = run(**variables)
    assert done.stdout.split() == [str(count)], done.stderr


def test_a_launcher_that_says_no_number_is_named_and_stops_nothing():
    done = run(LOCAL_RANK="0", LOCAL_WORLD_SIZE="many", LADE_LOG="warn")
    assert done.stdout.split() == ["1"] and 'LOCAL_WORLD_SIZE is "many"' in done.stderr, done.stderr
