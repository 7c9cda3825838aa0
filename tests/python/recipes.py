# SPDX-License-Identifier: Apache-2.0
"""The recipes of docs/python.md, for the tests here and those on a machine with a GPU: their texts, and the world they run in."""

import io
import json
import pathlib
import re
import struct
import tarfile

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


def write_checkpoint(path):
    """model.safetensors: three tensors, by the format's description."""
    header, data = {}, b""
    for name, count in (("embed.weight", 1000), ("norm.weight", 64), ("head.weight", 3000)):
        piece = struct.pack(f"<{count}f", *range(count))
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_tar(path, samples=64):
    """train-0000.tar: samples of an image of 300 bytes and a class."""
    with tarfile.open(path, "w") as tar:
        for number in range(samples):
            for suffix, content in (("img", bytes([number]) * 300), ("cls", str(number % 10).encode())):
                member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def prepare(folder):
    """The files that recipes read."""
    write_checkpoint(folder / "model.safetensors")
    write_tar(folder / "train-0000.tar")
