#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pickles of snapshots, judged by PyTorch's viewer for the command line.

usage: memory_viz.py MEMORY_VIZ_PY SNAPSHOT_FILES
  MEMORY_VIZ_PY   torch/cuda/_memory_viz.py, out of the wheel `torch` of any platform

Its commands run on lade's file; its flame graphs' lines are lade's folded text, to the byte; and the pages that it makes carry the
same snapshot. .ci/checks/pytorch fetches the file.
"""

import base64
import contextlib
import importlib.util
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import unittest

VIZ = None
VIZ_PATH = None
PROGRAM = None
SHAPES = "small", "long"


def load_viz(path):
    spec = importlib.util.spec_from_file_location("memory_viz", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Plain(pickle.Unpickler):

    def find_class(self, module, name):
        raise AssertionError(f"names {module}.{name}")


class MemoryViz(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, shape, format):
        path = os.path.join(self.folder.name, f"{shape}.{format}")
        subprocess.run([PROGRAM, shape, format, path], check=True, stderr=subprocess.DEVNULL)
        return path

    def snapshot(self, shape):
        with open(self.path(shape, "pickle"), "rb") as file:
            return Plain(file).load()

    def device_lines(self, shape, format):
        """The folded text without the lines of pinned memory, which the viewer does not show."""
        with open(self.path(shape, format), encoding="utf-8") as file:
            return "".join(line for line in file if not line.startswith("pinned_"))

    def command(self, *arguments):
        done = subprocess.run([sys.executable, VIZ_PATH, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              check=False, text=True, cwd=self.folder.name)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_memory_and_segments_are_the_folded_text(self):
        for shape in SHAPES:
            snapshot = self.snapshot(shape)
            self.assertEqual(VIZ.memory(snapshot, lambda lines: lines), self.device_lines(shape, "folded"))
            self.assertEqual(VIZ.segments(snapshot, lambda lines: lines), self.device_lines(shape, "folded-segments"))

    def test_compare_takes_lists_of_segments(self):
        before, after = self.snapshot("small")["segments"], self.snapshot("long")["segments"]
        with contextlib.redirect_stdout(io.StringIO()):
            lines = VIZ.compare(before, after, lambda text: text).splitlines()
        self.assertEqual({line.split(";")[0] for line in lines}, {"only_before", "only_after"})

    def test_stats_sums_up(self):
        for shape in SHAPES:
            text = self.command("stats", self.path(shape, "pickle"))
            self.assertIn(f"segments: {len(self.snapshot(shape)['segments'])}\n", text)

    def test_trace_lists_every_event(self):
        for shape in SHAPES:
            text = self.command("trace", self.path(shape, "pickle"))
            counts = [len(trace) for trace in self.snapshot(shape)["device_traces"]]
            self.assertEqual([int(count) for count in re.findall(r"^(\d+) entries$", text, re.MULTILINE)], counts)

    def check_page(self, path, snapshot):
        with open(path, encoding="utf-8") as file:
            files = json.loads(re.search(r"^const local_files = (.*)$", file.read(), re.MULTILINE).group(1))
        self.assertEqual(Plain(io.BytesIO(base64.b64decode(files[0]["base64"]))).load(), snapshot)

    def test_plots_carry_the_snapshot(self):
        for shape in SHAPES:
            source, page = self.path(shape, "pickle"), os.path.join(self.folder.name, "page.html")
            for options in ["trace_plot"], ["trace_plot", "-s"], ["segment_plot"]:
                self.command(*options, source, "-o", page)
                self.check_page(page, self.snapshot(shape))
            self.command("trace_plot", "-f", source, "-o", page)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(2))
    VIZ_PATH = os.path.abspath(sys.argv.pop(1))
    VIZ = load_viz(VIZ_PATH)
    unittest.main()
