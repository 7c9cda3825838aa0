# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of the package run, in small: each script, and what it writes."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "python"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))

pytestmark = pytest.mark.skipif(not SCRIPTS, reason="the tests were taken out of their tree")


def run(out, *arguments):
    return subprocess.run([FOLDER / "run", *arguments, out], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHON": sys.executable})


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_runs_in_small(name, tmp_path):
    done = run(tmp_path, "--small", "--only", name)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    if last == "0 ran, 0 failed, 1 left out":
        pytest.skip(f"{name} cannot run here: {done.stderr.strip()}")
    assert last == "1 ran, 0 failed, 0 left out"
    rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    assert rows and all(isinstance(row, dict) for row in rows)


def load_file(out, *arguments):
    """Rows of a run of load_file.py."""
    pytest.importorskip("ml_dtypes")
    done = subprocess.run([sys.executable, FOLDER / "load_file.py", "--small", "--out", out, *arguments], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in out.read_text().splitlines()], done.stdout


def test_load_file_shows_each_load_and_leaves_the_disk_out(tmp_path):
    rows, shown = load_file(tmp_path / "out", "--direct-gib", "0")
    assert {row["mode"] for row in rows} == {"warm", "many", "fp32"}
    assert {row["way"] for row in rows if "left_out" in row} == {"safetensors prefetch", "fastsafetensors", "instanttensor"}
    phases = [(row["phases_of"], row["phase"]) for row in rows if "phase" in row]
    assert [name for of, name in phases if of == "load"] == ["open", "reads begun", "names", "tensors made", "bytes there", "all", "freed"]
    assert [name for of, name in phases if of == "into"] == ["tensors read", "open", "names matched", "reads begun", "bytes there", "all"]
    loads = [row for row in rows if "round" in row]
    assert loads and shown.count("  round ") == len(loads)


def test_load_file_ends_when_its_time_is_over(tmp_path):
    rows, shown = load_file(tmp_path / "out", "--seconds", "0")
    assert [(row["mode"], row["ended"], row["rounds"]) for row in rows if "ended" in row] == [
        ("warm", 0, {}), ("direct", 0, {}), ("many", 0, {}), ("fp32", 0, {})]
    assert shown.count("ended after 0 s") == 4


def test_load_file_gives_up_a_load_under_way():
    """A wait of lade hears the signal, however long it would last."""
    program = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import lade, load_file
device = lade.software_device(clock="cpu")
stream, pool = device.stream(), lade.PinnedPool(device)
block = lade.DeviceAllocator(device).alloc(4096, stream)
stream.soft_hold()
try:
    load_file.Bound(0.05)(lade.Pipeline(device, pool=pool).copy(block, pool.empty(4096), stream=stream).wait)
except load_file.TimeOver:
    print("given up")
stream.soft_release()
"""
    done = subprocess.run([sys.executable, "-c", program, FOLDER], capture_output=True, text=True, timeout=60)
    assert done.stdout == "given up\n", done.stdout + done.stderr


def test_the_machine_is_described(tmp_path):
    done = run(tmp_path, "--small", "--only", "no_such_benchmark")
    assert done.stdout.splitlines()[-1] == "0 ran, 0 failed, 0 left out"
    machine = json.loads((tmp_path / "machine.json").read_text())
    assert machine["cores"] > 0 and machine["packages"]["liblade"]


def test_wrong_command_lines_are_refused(tmp_path):
    assert run(tmp_path, "--smal").returncode == 2
    assert run(tmp_path, tmp_path).returncode == 2
