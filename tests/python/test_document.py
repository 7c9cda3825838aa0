# SPDX-License-Identifier: Apache-2.0
"""docs/python.md: its recipes run, its code compiles, its names are there; and the page of the API is that of the package."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

import lade
import recipes

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEEDS = {"dataloader": "torch", "offload": "torch", "cupy": "cupy"}  # run by tests/python_gpu/test_recipes.py
RECIPES = recipes.recipes()

pytestmark = pytest.mark.skipif(not recipes.DOCUMENT.exists(), reason="the tests were taken out of their tree")


def test_there_are_twelve_and_each_is_short():
    assert sorted(RECIPES) == ["checkpoint", "cupy", "dataloader", "files", "into", "iterate", "offload", "save", "shared", "sleep", "tar_set", "watch"]
    for name, code in RECIPES.items():
        assert len(code.splitlines()) < 20, name


@pytest.mark.parametrize("name", sorted(set(RECIPES) - set(NEEDS)))
def test_a_recipe_runs(name, tmp_path):
    recipes.prepare(tmp_path)
    done = subprocess.run([sys.executable, "-c", RECIPES[name]], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    told = [line for line in done.stderr.splitlines() if "is the software device" not in line]  # without a GPU
    assert done.returncode == 0 and told == [] and done.stdout, done.stdout + done.stderr


def test_code_compiles():
    for code in recipes.blocks():
        compile(code, "docs/python.md", "exec")


def _there(name):
    """Whether a dotted name of the package is defined; of lade.torch and lade.numba, by their sources."""
    module, _, rest = name.removeprefix("lade.").partition(".")
    if module in ("torch", "numba"):
        source = importlib.util.find_spec(f"lade.{module}").origin
        return not rest or re.search(rf"^(def|class) {rest}\b|^{rest} =", pathlib.Path(source).read_text(), re.MULTILINE) is not None
    value = lade
    for part in name.split(".")[1:]:
        if not hasattr(value, part) and value is lade and importlib.util.find_spec(f"lade.{part}"):
            importlib.import_module(f"lade.{part}")
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


def test_names_of_the_package_are_there():
    text = recipes.DOCUMENT.read_text(encoding="utf-8")
    names = set(re.findall(r"\blade(?:\.[A-Za-z_]+)+\b", text))
    assert names
    missing = sorted(name for name in names if not _there(name))
    assert missing == []


def test_the_page_of_the_api_is_what_the_package_says():
    """docs/python-api.md is made of stubs and docstrings, of which everything public has one."""
    script, page = ROOT / "tools" / "manual" / "python_page", ROOT / "docs" / "python-api.md"
    if not (pathlib.Path(lade.__file__).parent / "_lade.pyi").exists():
        pytest.skip("this package was built without its stubs, as those with sanitisers are")
    done = subprocess.run([sys.executable, script, pathlib.Path(lade.__file__).parent], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made, written = done.stdout.splitlines(), page.read_text(encoding="utf-8").splitlines()
    assert written == made, "tools/manual/python_page FOLDER_OF_THE_PACKAGE >docs/python-api.md writes it anew"
