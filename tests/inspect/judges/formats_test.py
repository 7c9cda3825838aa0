#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Profiles, trace events and metrics of a sample snapshot, each judged by a program that reads it.

usage: formats_test.py SNAPSHOT_FILES

The sums of each are those of the folded text. A judge that is not installed is named and skipped.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
DEBIAN_PYTHON = "/usr/bin/python3"  # has Debian's packages


class Formats(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, format, shape="small"):
        path = os.path.join(self.folder.name, f"{shape}.{format}")
        subprocess.run([PROGRAM, shape, format, path], check=True, stderr=subprocess.DEVNULL)
        return path

    def text(self, format, shape="small"):
        with open(self.path(format, shape), encoding="utf-8") as file:
            return file.read()

    def folded(self, shape="small"):
        for line in self.text("folded", shape).splitlines():
            words, value = line.rsplit(" ", 1)
            yield words.split(";"), int(value)

    def in_use(self, shape):
        """Blocks handed out, and the bytes asked for in them."""
        lines = [value for words, value in self.folded(shape) if words[1] == "active_allocated" and words[-1] != "<gaps>"]
        return len(lines), sum(lines)

    def test_metrics_pass_promtool(self):
        if shutil.which("promtool") is None:
            self.skipTest("promtool (Debian's prometheus) is not installed")
        with open(self.path("prometheus"), "rb") as file:
            result = subprocess.run(["promtool", "check", "metrics"], stdin=file, capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_openmetrics_parses(self):
        script = ("import sys; from prometheus_client.openmetrics.parser import text_string_to_metric_families as read;"
                  "print(sum(len(f.samples) for f in read(sys.stdin.read())))")
        if subprocess.run([DEBIAN_PYTHON, "-c", "import prometheus_client"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("python3-prometheus-client is not installed")
        text = self.text("openmetrics")
        result = subprocess.run([DEBIAN_PYTHON, "-c", script], input=text, capture_output=True, text=True)
        self.assertEqual(result.stderr, "")
        samples = [line for line in text.splitlines() if not line.startswith("#")]
        self.assertEqual(int(result.stdout), len(samples))
        self.assertGreater(len(samples), 0)

    def test_pprof_has_the_same_sums(self):
        if shutil.which("go") is None:
            self.skipTest("go (Debian's golang-go) is not installed")
        for shape in "small", "long":
            count, total = self.in_use(shape)
            for index, unit, expected in (("inuse_space", "B", total), ("inuse_objects", "", count)):
                found = self.pprof_total(self.path("pprof", shape), index)
                self.assertEqual(found, expected, f"{shape} {index}")

    def pprof_total(self, path, index):
        environment = dict(os.environ, HOME=self.folder.name, GOCACHE=self.folder.name, PPROF_TMPDIR=self.folder.name)
        command = ["go", "tool", "pprof", "-top", "-unit=B", "-nodecount=100000", f"-sample_index={index}", path]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        # "Showing nodes accounting for 12B, 100% of 12B total", and beneath a line for each function
        return int(re.search(r"of (\d+)B? total", result.stdout).group(1))

    def test_trace_events_balance(self):
        for shape in "small", "long":
            events = json.loads(self.text("chrome-trace", shape))["traceEvents"]
            self.assertGreater(len(events), 0)
            for event in events:
                self.assertIn(event["ph"], "MCbei")
                self.assertGreaterEqual(event["ts"], 0)
            counters = [event["args"] for event in events if event["ph"] == "C"]
            self.assertTrue(all(set(args) == {"allocated", "active", "reserved"} for args in counters))


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
