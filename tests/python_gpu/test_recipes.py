# SPDX-License-Identifier: Apache-2.0
"""All recipes of docs/python.md, on a GPU."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import recipes

NEEDS = {"dataloader": "torch", "cupy": "cupy"}


@pytest.mark.parametrize("name", sorted(recipes.recipes()))
def test_a_recipe_runs(name, tmp_path):
    needed = NEEDS.get(name)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    recipes.prepare(tmp_path)
    done = subprocess.run([sys.executable, "-c", recipes.recipes()[name]], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout, done.stdout + done.stderr
