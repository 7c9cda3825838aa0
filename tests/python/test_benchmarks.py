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


def test_the_machine_is_described(tmp_path):
    done = run(tmp_path, "--small", "--only", "no_such_benchmark")
    assert done.stdout.splitlines()[-1] == "0 ran, 0 failed, 0 left out"
    machine = json.loads((tmp_path / "machine.json").read_text())
    assert machine["cores"] > 0 and machine["packages"]["lade"]


def test_wrong_command_lines_are_refused(tmp_path):
    assert run(tmp_path, "--smal").returncode == 2
    assert run(tmp_path, tmp_path).returncode == 2
