#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of tests/summary.py: nothing that went wrong may be missing in the closing line."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import summary  # noqa: E402

TWO_CASES = '<testsuites><testsuite><testcase classname="A" name="x"/><testcase classname="A" name="y"/></testsuite></testsuites>'
ONE_BAD = '<testsuites><testcase classname="A" name="x"/><testcase classname="A" name="y"><failure/></testcase></testsuites>'
ONE_SKIPPED = '<testsuites><testcase name="x"><skipped/></testcase><testcase name="y" status="notrun"/></testsuites>'


class SummaryTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.events = []

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def add_test(self, label, status, xml):
        path = self.path(f"{len(self.events)}.xml")
        if xml is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(xml)
        output = [{"name": "test.log", "uri": "file:///nowhere"}, {"name": "test.xml", "uri": "file://" + path}]
        self.events.append({"id": {"testResult": {"label": label, "run": 1, "shard": 1}},
                            "testResult": {"testActionOutput": output, "status": status}})
        self.events.append({"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}})

    def add_target(self, label, kind, **outcome):
        self.events.append({"id": {"targetConfigured": {"label": label}}, "configured": {"targetKind": kind}})
        self.events.append({"id": {"targetCompleted": {"label": label}}, **outcome})

    def run_summary(self, bazel_status):
        with open(self.path("events"), "w", encoding="utf-8") as file:
            file.write("\n".join(json.dumps(event) for event in self.events))
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = summary.main(["summary.py", self.path("events"), str(bazel_status)])
        return output.getvalue().splitlines(), status

    def test_all_passed(self):
        self.add_test("//a:t", "PASSED", TWO_CASES)
        self.assertEqual(self.run_summary(0), (["2 passed, 0 failed"], 0))

    def test_failed_case_is_named(self):
        self.add_test("//a:t", "FAILED", ONE_BAD)
        self.assertEqual(self.run_summary(3), (["FAILED //a:t A.y", "1 passed, 1 failed"], 1))

    def test_skipped_and_disabled_cases_are_not_passed(self):
        self.add_test("//a:t", "PASSED", ONE_SKIPPED)
        self.assertEqual(self.run_summary(0), (["0 passed, 0 failed, 2 skipped"], 0))

    def test_target_that_failed_after_its_cases_passed(self):
        self.add_test("//a:t", "FAILED", TWO_CASES)
        self.assertEqual(self.run_summary(3), (["FAILED //a:t (failed)", "2 passed, 1 failed"], 1))

    def test_timeout_without_report(self):
        self.add_test("//a:t", "TIMEOUT", None)
        self.assertEqual(self.run_summary(3), (["FAILED //a:t (timeout)", "0 passed, 1 failed"], 1))

    def test_passed_target_without_report_is_a_failure(self):
        self.add_test("//a:t", "PASSED", "<testsuites>")
        lines, status = self.run_summary(0)
        self.assertEqual((lines[-1], status), ("0 passed, 1 failed", 1))

    def test_target_that_does_not_build(self):
        self.add_test("//a:t", "PASSED", TWO_CASES)
        self.add_target("//a:lib", "cc_library rule", completed={})
        self.add_target("//a:good", "cc_library rule", completed={"success": True})
        self.assertEqual(self.run_summary(1), (["FAILED //a:lib (not built)", "2 passed, 1 failed"], 1))

    def test_incompatible_test_is_skipped_and_incompatible_library_not_counted(self):
        self.add_test("//a:t", "PASSED", TWO_CASES)
        self.add_target("//a:gpu_test", "cc_test rule", aborted={"reason": "SKIPPED"})
        self.add_target("//a:gpu", "cc_library rule", aborted={"reason": "SKIPPED"})
        self.assertEqual(self.run_summary(0), (["2 passed, 0 failed, 1 skipped"], 0))

    def test_analysis_failure_is_counted_once(self):
        failure = {"aborted": {"reason": "ANALYSIS_FAILURE"}}
        self.events.append({"id": {"unconfiguredLabel": {"label": "//a:t"}}, **failure})
        self.add_target("//a:t", "cc_test rule", **failure)
        self.assertEqual(self.run_summary(1), (["FAILED //a:t (not built)", "0 passed, 1 failed"], 1))

    def test_bazel_failing_alone_is_a_failure(self):
        self.add_test("//a:t", "PASSED", TWO_CASES)
        self.assertEqual(self.run_summary(1), (["FAILED bazel (exit status 1)", "2 passed, 1 failed"], 1))

    def test_nothing_ran_is_a_failure(self):
        lines, status = self.run_summary(0)
        self.assertEqual((lines[-1], status), ("0 passed, 1 failed", 1))


if __name__ == "__main__":
    unittest.main()
