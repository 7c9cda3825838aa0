# SPDX-License-Identifier: Apache-2.0
"""The recipes of docs/python.md, for the tests here and those on a machine with a GPU: their texts, and the world they run in."""

import pathlib
import re
import subprocess
import sys

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"


def recipes():
    """Code by name: what follows `<!-- recipe: NAME -->`."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- recipe: (\w+) -->\n+```python\n(.*?)```", text, re.DOTALL))


def blocks():
    """All code in Python of the document."""
    return re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


def write_programs(folder):
    """The code of all documents as programs, for checkers of types; parts of programs get what they stand on."""
    for path in [DOCUMENT.parents[1] / "README.md", *sorted(DOCUMENT.parent.glob("*.md"))]:
        found = [] if path.name == "python-api.md" else re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
        for number, code in enumerate(found):
            imports = "".join(f"import {name}\n" for name in ("lade", "torch") if not re.search(rf"^import (?:[\w., ]*, )?{name}(?:,|$)", code, re.MULTILINE))
            (folder / f"{path.stem.replace('-', '_')}_{number}.py").write_text(imports + code, encoding="utf-8")


def prepare(folder):
    """The files that recipes read, which one of them makes."""
    subprocess.run([sys.executable, "-c", recipes()["files"]], cwd=folder, check=True, stdout=subprocess.DEVNULL)
