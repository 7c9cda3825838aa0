# SPDX-License-Identifier: Apache-2.0
"""Counts the test cases of one `bazel test` run and names the failed ones.

usage: summary.py EVENTS BAZEL_EXIT_STATUS

EVENTS is what --build_event_json_file wrote. It names the targets and the test.xml files of this run alone; the folder
bazel-testlogs also holds those of earlier runs and of targets that are gone.

Counted are the <testcase> elements. Besides, one failure is counted for each target that
  - did not build,
  - failed without a failed case: it crashed, ran out of time, or a sanitiser complained at its end.
A test target that cannot run here (a GPU is missing) counts as one skipped.

The last line is "N passed, N failed" or "N passed, N failed, N skipped". Exit status 1 if anything failed.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree


class Counts:
    def __init__(self):
        self.passed = 0
        self.skipped = 0
        self.failures = []  # what failed, in words


def read_events(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def label_of(event, kind):
    return event.get("id", {}).get(kind, {}).get("label")


def test_reports(events):
    """For each label the test.xml files of its final attempts (one per shard and run)."""
    reports = {}
    for event in events:
        label = label_of(event, "testResult")
        if not label or "testResult" not in event:
            continue
        files = reports.setdefault(label, {})
        identity = event["id"]["testResult"]
        for output in event["testResult"].get("testActionOutput", []):
            if output.get("name") == "test.xml":
                path = urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
                files[(identity.get("run"), identity.get("shard"))] = path
    return {label: list(files.values()) for label, files in reports.items()}


def count_case(label, case, counts):
    name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
    if case.find("failure") is not None or case.find("error") is not None:
        counts.failures.append(f"{label} {name}")
    elif case.find("skipped") is not None or case.get("status") == "notrun":
        counts.skipped += 1
    else:
        counts.passed += 1


def count_report(label, path, counts):
    """Whether the report could be read."""
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return False
    for case in root.iter("testcase"):
        count_case(label, case, counts)
    return True


def count_tests(events, counts):
    """Counts all tests that ran; returns their labels."""
    reports = test_reports(events)
    labels = set()
    for event in events:
        label = label_of(event, "testSummary")
        if not label or "testSummary" not in event:
            continue
        labels.add(label)
        status = event["testSummary"].get("overallStatus", "NO_STATUS")
        failed_before = len(counts.failures)
        readable = [count_report(label, path, counts) for path in reports.get(label, [])]
        if len(counts.failures) > failed_before:
            continue
        if status not in ("PASSED", "FLAKY"):
            counts.failures.append(f"{label} ({status.lower().replace('_', ' ')})")
        elif not readable or not all(readable):
            counts.failures.append(f"{label} (passed, but left no report)")
    return labels


def kinds_of_targets(events):
    kinds = {}
    for event in events:
        label = label_of(event, "targetConfigured")
        if label and "configured" in event:
            kinds[label] = event["configured"].get("targetKind", "")
    return kinds


def count_broken_and_skipped(events, tested, counts):
    kinds = kinds_of_targets(events)
    seen = set(tested)
    for event in events:
        for kind in ("targetCompleted", "configuredLabel", "unconfiguredLabel", "pattern"):
            label = label_of(event, kind)
            if kind == "pattern" and "pattern" in event.get("id", {}):
                label = " ".join(event["id"]["pattern"].get("pattern", []))
            if not label or label in seen:
                continue
            reason = event.get("aborted", {}).get("reason")
            if reason == "SKIPPED":
                seen.add(label)
                counts.skipped += "_test" in kinds.get(label, "_test")
            elif reason or ("completed" in event and not event["completed"].get("success")):
                seen.add(label)
                counts.failures.append(f"{label} (not built)")


def summarise(events, bazel_status):
    counts = Counts()
    tested = count_tests(events, counts)
    count_broken_and_skipped(events, tested, counts)
    # 0 all passed, 4 no tests among the targets; anything else must have left a failure behind.
    if bazel_status not in (0, 4) and not counts.failures:
        counts.failures.append(f"bazel (exit status {bazel_status})")
    if bazel_status in (0, 4) and not counts.passed and not counts.skipped and not counts.failures:
        counts.failures.append("no test was found")
    return counts


def main(arguments):
    counts = summarise(read_events(arguments[1]), int(arguments[2]))
    for failure in sorted(counts.failures):
        print(f"FAILED {failure}")
    skipped = f", {counts.skipped} skipped" if counts.skipped else ""
    print(f"{counts.passed} passed, {len(counts.failures)} failed{skipped}")
    return 1 if counts.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
