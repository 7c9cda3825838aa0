#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Summaries of device memory, judged by the function of PyTorch that users know them from.

usage: summary.py MEMORY_PY SUMMARY_CASES
  MEMORY_PY      torch/cuda/memory.py, out of the wheel `torch` of any platform
  SUMMARY_CASES  the program //tests/inspect:summary_cases

The source of memory_summary() is taken out of the file and run on lade's numbers: the text must be lade's, but for the title.
The names of the numbers are those that it asks for.
"""

import ast
import json
import subprocess
import sys

TITLE_LINE = 1


class Asked(dict):
    """Statistics that note which of them were read."""

    def __init__(self, values):
        super().__init__(values)
        self.keys_read = set()

    def __getitem__(self, key):
        self.keys_read.add(key)
        return super().__getitem__(key)


def summary_function(path):
    """memory_summary(stats, device, abbreviated) of that file."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    own = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "memory_summary"]
    if len(own) != 1:
        raise SystemExit(f"{path}: no function memory_summary")
    own[0].returns = None
    for argument in own[0].args.args:
        argument.annotation = None
    module = ast.Module(body=own, type_ignores=[])
    stats = {}
    names = {"_get_device_index": lambda device, optional=False: device, "memory_stats": lambda device=None: stats["now"]}
    exec(compile(module, path, "exec"), names)

    def summary(values, device, abbreviated):
        stats["now"] = values
        return names["memory_summary"](device, abbreviated)

    return summary


def difference(wanted, got):
    """The first line that differs, the title apart; None: none does."""
    wanted_lines, got_lines = wanted.split("\n"), got.split("\n")
    if len(wanted_lines) != len(got_lines):
        return f"{len(wanted_lines)} lines there, {len(got_lines)} here"
    if len(wanted_lines[TITLE_LINE]) != len(got_lines[TITLE_LINE]):
        return f"the title has {len(got_lines[TITLE_LINE])} columns"
    for number, (a, b) in enumerate(zip(wanted_lines, got_lines)):
        if number != TITLE_LINE and a != b:
            return f"line {number + 1}:\n  there {a}\n  here  {b}"
    return None


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    summary = summary_function(sys.argv[1])
    cases = subprocess.run([sys.argv[2]], check=True, capture_output=True, text=True).stdout.splitlines()
    asked = set()
    for number, line in enumerate(cases):
        case = json.loads(line)
        stats = Asked(case["stats"])
        found = difference(summary(stats, case["device"], case["abbreviated"]), case["text"])
        asked |= stats.keys_read
        if found is not None:
            print(f"case {number}: {found}")
            return 1
    if len(cases) < 100 or len(asked) != 9 * 3 * 4 + 2 * 4:
        print(f"{len(cases)} cases, {len(asked)} of lade's keys were asked for")
        return 1
    print(f"{len(cases)} summaries are equal; {len(asked)} keys were asked for")
    return 0


if __name__ == "__main__":
    sys.exit(main())
