#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pickles of snapshots, judged by Python's own pickle and pickletools.

usage: pickle_test.py SNAPSHOT_FILES

Loaded with every class and function refused, since a snapshot is data (HZ11). Then its shape is that of PyTorch's, its sums
are right, and its opcodes are those that PyTorch's web viewer reads.
"""

import io
import os
import pickle
import pickletools
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
TAKEN = False  # of a program, and not of a sample that has everything

# The cases of the switch in PyTorch's torch/utils/viz/MemoryViz.js, as pickletools names them.
VIEWER_OPCODES = set(
    "APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPUT BINUNICODE DICT EMPTY_DICT EMPTY_LIST EMPTY_TUPLE FRAME"
    " LIST LONG1 LONG_BINGET LONG_BINPUT MARK MEMOIZE NEWFALSE NEWTRUE NONE PROTO SETITEM SETITEMS SHORT_BINUNICODE STOP TUPLE"
    " TUPLE1 TUPLE2 TUPLE3".split())
BATCH = 1000

EVENT_KEYS = {"action", "size", "stream", "time_us", "pool_id", "user_metadata", "compile_context"}
SEGMENT_KEYS = {
    "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type",
    "segment_pool_id", "is_expandable", "frames", "blocks"
}
BLOCK_KEYS = {"address", "size", "requested_size", "state", "frames"}
HOST_KEYS = {"address", "size", "allocated", "active", "segment_pool_id", "frames"}
STATES = {"active_allocated", "active_pending_free", "inactive"}
ACTIONS = {
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot",
    "oom", "user_defined", "annotate"
}


def run(shape, format):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "out")
        subprocess.run([PROGRAM, shape, format, path], check=True, stderr=subprocess.DEVNULL)
        with open(path, "rb") as file:
            return file.read()


class Plain(pickle.Unpickler):

    def find_class(self, module, name):
        raise AssertionError(f"names {module}.{name}")


def load(data):
    file = io.BytesIO(data)
    snapshot = Plain(file).load()
    assert file.read() == b"", "bytes behind the end"
    return snapshot


def batches(data):
    """Opcodes, and items of each batch."""
    names, sizes, marks, depth = set(), [], [], 0
    for opcode, argument, _ in pickletools.genops(data):
        names.add(opcode.name)
        if isinstance(argument, int) and opcode.name.startswith(("BININT", "LONG1")):
            assert -2**63 <= argument < 2**64, argument
        if opcode.name == "MARK":
            marks.append(depth)
        elif opcode.name in ("APPENDS", "SETITEMS"):
            mark = marks.pop()
            sizes.append((depth - mark) // (2 if opcode.name == "SETITEMS" else 1))
            depth = mark
        else:
            depth += len(opcode.stack_after) - len(opcode.stack_before)
    return names, sizes


class PickleTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.data = run("small", "pickle")
        cls.snapshot = load(cls.data)

    def check_frames(self, frames):
        for frame in frames:
            self.assertLessEqual({"filename", "line", "name"}, set(frame))
            self.assertIs(type(frame["filename"]), str)
            self.assertIs(type(frame["name"]), str)

    def test_segments_have_the_keys_and_sums_of_pytorch(self):
        devices = [part for part in self.snapshot["lade"]["parts"] if part["kind"] == "device"]
        self.assertEqual(len(self.snapshot["segments"]), sum(part["segment_count"] for part in devices))
        for segment in self.snapshot["segments"]:
            self.assertEqual(set(segment), SEGMENT_KEYS)
            self.assertEqual(segment["total_size"], sum(block["size"] for block in segment["blocks"]))
            allocated = sum(b["size"] for b in segment["blocks"] if b["state"] == "active_allocated")
            active = [b for b in segment["blocks"] if b["state"] != "inactive"]
            self.assertEqual(segment["allocated_size"], allocated)
            self.assertEqual(segment["active_size"], sum(b["size"] for b in active))
            self.assertEqual(segment["requested_size"], sum(b["requested_size"] for b in active))
            self.assertIn(segment["segment_type"], ("large", "small"))
            self.assertIs(type(segment["segment_pool_id"]), tuple)
            self.assertIs(type(segment["is_expandable"]), bool)
            self.check_frames(segment["frames"])
            at = segment["address"]
            for block in segment["blocks"]:
                self.assertLessEqual(BLOCK_KEYS, set(block))
                self.assertEqual(block["address"], at)
                self.assertIn(block["state"], STATES)
                self.check_frames(block["frames"])
                at += block["size"]

    def test_events_have_the_keys_of_pytorch(self):
        self.assertEqual(len(self.snapshot["device_traces"]), 2)  # ordinals 0 and 1
        seen = set()
        for trace in self.snapshot["device_traces"] + [self.snapshot["host_traces"]]:
            times = [event["time_us"] for event in trace]
            for event in trace:
                self.assertLessEqual(EVENT_KEYS | {"device_free" if event["action"] == "oom" else "addr"}, set(event))
                self.assertIs(type(event["pool_id"]), tuple)
                self.check_frames(event.get("frames", []))
                seen.add(event["action"])
            self.assertTrue(times)
        self.assertLessEqual(seen, ACTIONS)
        if not TAKEN:
            self.assertEqual(seen, ACTIONS)

    def test_host_segments_have_the_keys_of_pytorch(self):
        pinned = [part for part in self.snapshot["lade"]["parts"] if part["kind"] == "pinned"]
        self.assertEqual(len(self.snapshot["host_segments"]),
                         sum(s["block_count"] for part in pinned for s in part["pinned_segments"]))
        for segment in self.snapshot["host_segments"]:
            self.assertLessEqual(HOST_KEYS, set(segment))
            self.assertLessEqual(segment["allocated"], segment["active"])
            self.check_frames(segment["frames"])

    def test_settings_and_notes_have_the_keys_of_pytorch(self):
        settings = self.snapshot["allocator_settings"]
        self.assertTrue(all(key.isdigit() for key in settings["roundup_power2_divisions"]))
        self.assertIs(type(settings["garbage_collection_threshold"]), float)
        self.assertIs(type(settings["expandable_segments"]), bool)
        self.assertEqual(settings["max_split_size"], -1)
        if not TAKEN:
            self.assertEqual(settings["roundup_power2_divisions"], {"256": 1, "512": 4})
            self.assertEqual(settings["garbage_collection_threshold"], 0.1)
            self.assertIs(settings["expandable_segments"], True)
        self.assertIs(type(settings["trace_alloc_overflowed"]), bool)
        self.assertIs(type(settings["trace_alloc_max_entries"]), int)
        notes = [e for t in self.snapshot["device_traces"] + [self.snapshot["host_traces"]] for e in t
                 if e["action"] == "user_defined"]
        self.assertEqual(sorted(note["name"] for note in self.snapshot["external_annotations"]),
                         sorted(event["user_metadata"] for event in notes))

    def test_counters_are_exact(self):
        counters = self.snapshot["lade"]["parts"][0]["counters"]
        if TAKEN:
            self.assertEqual(len(counters), 122)
            return
        self.assertEqual(counters, {"allocated_bytes.all.current": 2**40, "max_split_size": -1, "num_ooms": 2**63 - 1,
                                    "lowest": -2**63})

    def test_viewers_may_write_into_every_object(self):
        segments = self.snapshot["segments"]
        objects = segments + [b for s in segments for b in s["blocks"]] + self.snapshot["host_segments"]
        objects += [event for trace in self.snapshot["device_traces"] for event in trace]
        self.assertEqual(len(objects), len({id(thing) for thing in objects}))

    def test_stacks_are_in_the_file_once(self):
        stacks = {}
        for trace in self.snapshot["device_traces"]:
            for event in trace:
                if "frames" in event:
                    stacks.setdefault(repr(event["frames"]), set()).add(id(event["frames"]))
        self.assertTrue(all(len(ids) == 1 for ids in stacks.values()))

    def test_the_web_viewer_reads_every_opcode(self):
        names, sizes = batches(self.data)
        self.assertEqual(names - VIEWER_OPCODES, set())
        self.assertLessEqual(max(sizes), BATCH)

    def test_batches_stay_small_in_long_lists(self):
        names, sizes = batches(run("long", "pickle"))
        self.assertEqual(names - VIEWER_OPCODES, set())
        self.assertEqual(max(sizes), BATCH)

    def test_is_no_larger_than_what_python_writes(self):
        for shape in "small", "long":
            data = run(shape, "pickle")
            self.assertLessEqual(len(data), len(pickle.dumps(load(data), 4)))


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    TAKEN = os.path.basename(PROGRAM) == "taken_files"
    unittest.main()
