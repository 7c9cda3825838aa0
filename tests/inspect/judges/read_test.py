#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pickles of snapshots, converted by python/lade/pickles.py and read by lade; lade's JSON and its parser, judged by Python's json.

usage: read_test.py SNAPSHOT_FILES JSON_ACCEPT PICKLES
"""

import importlib.util
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
ACCEPT = None
PICKLES = None
SEED = 20261122

ACTIONS = [
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot",
    "oom", "user_defined", "annotate"
]
STATES = ["inactive", "active_allocated", "active_pending_free"]


class Plain(pickle.Unpickler):

    def find_class(self, module, name):
        raise AssertionError(f"names {module}.{name}")


class OneBatch(pickle._Pickler):
    """Writes lists and maps in one piece each, as PyTorch's pickler in C++ does."""
    _BATCHSIZE = 1 << 30


class Folder(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_program(self, source, format):
        """Bytes of the file, or the message."""
        path = os.path.join(self.folder.name, "out")
        done = subprocess.run([PROGRAM, source, format, path], stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            return done.stderr.decode()
        with open(path, "rb") as file:
            return file.read()

    def sample(self, shape, format):
        data = self.run_program(shape, format)
        self.assertIs(type(data), bytes, data)
        return data

    def convert(self, data):
        """JSON that lade has read and written again, of a pickle; or the message of the program that refuses it."""
        path, made = (os.path.join(self.folder.name, name) for name in ("in", "made"))
        with open(path, "wb") as file:
            file.write(data)
        with open(made, "wb") as file:
            done = subprocess.run([sys.executable, "-I", PICKLES, path], stdout=file, stderr=subprocess.PIPE, check=False)
        if done.returncode != 0 or done.stderr:
            self.assertIn(done.returncode, (2, 3), done.stderr)
            with open(made, encoding="utf-8") as file:
                return file.read()
        return self.run_program(made, "json")


class View:
    """lade's JSON as a pickle shows it."""

    def __init__(self, text):
        self.json = json.loads(text)
        frames = self.rows(self.json["frames"], None)
        self.stacks, at = [], 0
        for count in self.json["stacks"]["frame_count"]:
            self.stacks.append([self.frame(frame) for frame in frames[at:at + count]])
            at += count
        self.parts = [self.part(part) for part in self.json["parts"]]

    @staticmethod
    def rows(table, _):
        columns = {name: values for name, values in table.items() if isinstance(values, list)}
        return [dict(zip(columns, row)) for row in zip(*columns.values())]

    def text(self, number):
        return self.json["texts"][number]

    def frame(self, row):
        """File, line, name; None for what is not known of a frame with an address."""
        named = "address" not in row or row["address"] == "0x0"
        file, function = self.text(row.get("file", 0)), self.text(row["function"])
        return file if named or file else None, row.get("line", 0), function if named or function else None

    def stack(self, row):
        return self.stacks[row["stack"]] if row.get("stack", -1) >= 0 else []

    def pool(self, row):
        return tuple(int(half, 16) for half in self.json["pools"][row.get("pool", 0)])

    def named_modules(self):
        return [{**row, "path": self.text(row["path"]), "build_id": self.text(row.get("build_id", 0))}
                for row in self.rows(self.json["modules"], None)]

    def stream(self, row):
        return int(self.json["streams"][row.get("stream", 0)], 16)

    def part(self, part):
        blocks, at = self.rows(part["blocks"], None), 0
        segments = []
        for row in self.rows(part["segments"], None):
            own, address = [], int(row["address"], 16)
            for block in blocks[at:at + row["block_count"]]:
                own.append((address, block["bytes"], block.get("requested_bytes", 0), STATES[block.get("state", 0)],
                            self.text(block.get("note", 0)), self.stack(block)))
                address += block["bytes"]
            at += row["block_count"]
            flags = row.get("flags", 0)
            segments.append((int(row["address"], 16), row["bytes"], self.stream(row), self.pool(row), flags & 1 != 0,
                             flags & 2 != 0, self.stack(row), own))
        time, events = int(part["events"]["first_time_ns"]), []
        for row in self.rows(part["events"], None):
            time += row["elapsed_ns"]
            events.append((ACTIONS[row["action"]], int(row.get("address", "0x0"), 16), row.get("bytes", 0), self.stream(row),
                           time // 1000, self.pool(row), self.text(row.get("label", 0)), self.text(row.get("scopes", 0)),
                           self.stack(row)))
        return part["kind"], part["device"], segments, events


def frame_of(frame):
    unnamed = frame.get("unnamed", 0)
    return None if unnamed & 1 else frame["filename"], frame["line"], None if unnamed & 2 else frame["name"]


def frames_of(row):
    return [frame_of(frame) for frame in row.get("frames", [])]


def block_of(block):
    return (block["address"], block["size"], block["requested_size"], block["state"], block.get("user_metadata", ""),
            frames_of(block))


def segment_of(segment):
    return (segment["address"], segment["total_size"], segment["stream"], segment["segment_pool_id"],
            segment["segment_type"] == "large", segment["is_expandable"], frames_of(segment),
            [block_of(block) for block in segment["blocks"]])


def event_of(event):
    where = event["device_free"] if event["action"] == "oom" else event["addr"]
    return (event["action"], where, event["size"], event["stream"], event["time_us"], event["pool_id"],
            event["user_metadata"], event["compile_context"], frames_of(event))


class PickleAndJson(Folder):

    def test_say_the_same(self):
        for shape in "small", "long":
            view = View(self.sample(shape, "json"))
            plain = Plain(io.BytesIO(self.sample(shape, "pickle"))).load()
            devices = [part for part in view.parts if part[0] == "device"]
            self.assertEqual([s for part in devices for s in part[2]], [segment_of(s) for s in plain["segments"]])
            for ordinal, trace in enumerate(plain["device_traces"]):
                events = [event for part in devices if part[1] == ordinal for event in part[3]]
                self.assertEqual(events, [event_of(event) for event in trace])
            pinned = [part for part in view.parts if part[0] == "pinned"]
            self.assertEqual([event for part in pinned for event in part[3]],
                             [event_of(event) for event in plain["host_traces"]])
            blocks = [block[:3] + block[4:] for part in pinned for segment in part[2] for block in segment[7]]
            hosts = [(h["address"], h["size"], h["requested_size"], h.get("user_metadata", ""), frames_of(h))
                     for h in plain["host_segments"]]
            self.assertEqual(blocks, hosts)
            for part, own in zip(view.json["parts"], plain["lade"]["parts"]):
                self.assertEqual(part["counters"], own["counters"])
                settings = {k: v for k, v in part["settings"].items() if "." not in k}
                self.assertEqual(settings, {k: v for k, v in own["settings"].items() if not isinstance(v, dict)})

    def test_are_the_same_after_python_has_written_the_pickle_again(self):
        expected = json.loads(self.convert(self.sample("long", "pickle")))
        plain = Plain(io.BytesIO(self.sample("long", "pickle"))).load()
        for protocol in 2, 3, 4, 5:
            for dumps in pickle.dumps, pickle._dumps:
                again = json.loads(self.convert(dumps(plain, protocol)))
                self.assertEqual(View(json.dumps(again)).parts, View(json.dumps(expected)).parts)

    def test_are_the_same_in_one_batch_and_in_another_order(self):
        expected = View(self.convert(self.sample("long", "pickle"))).parts
        plain = Plain(io.BytesIO(self.sample("long", "pickle"))).load()
        for thing in plain, dict(reversed(plain.items())):
            out = io.BytesIO()
            OneBatch(out, 4).dump(thing)
            self.assertEqual(View(self.convert(out.getvalue())).parts, expected)

    def test_json_may_stand_in_a_script(self):
        text = self.sample("small", "json").decode("utf-8")
        self.assertNotIn("</", text)
        json.loads(text, parse_constant=lambda name: self.fail(name))


def pytorch(version):
    """What torch.cuda.memory._snapshot() of that version gives, for two devices."""
    stack = [{"filename": "model.py", "line": 7, "name": "forward"}, {"filename": "train.py", "line": 3, "name": "main"}]
    block = {"size": 512, "state": "active_allocated"}
    rest = {"size": 1536, "state": "inactive"}
    segment = {"device": 1, "address": 0x7F0000000000, "total_size": 2048, "allocated_size": 512, "active_size": 512,
               "stream": 0, "segment_type": "small", "blocks": [block, rest]}
    alloc = {"action": "alloc", "addr": 0x7F0000000000, "size": 500, "stream": 0, "frames": stack}
    oom = {"action": "oom", "device_free": 9, "size": 1 << 40, "stream": 0}
    snapshot = {"segments": [segment], "device_traces": [[], [alloc, oom]]}
    if version == (2, 0):
        block["history"] = [{"addr": 0x7F0000000000, "real_size": 500, "frames": stack}]
        return snapshot
    block.update(requested_size=500, frames=stack, address=0x7F0000000000)
    rest.update(requested_size=77, frames=[], address=0x7F0000000000 + 512)
    segment.update(requested_size=500, is_expandable=False, segment_pool_id=(0, 0), frames=[])
    alloc["time_us"] = 1700000000000001
    oom["time_us"] = 1700000000000005
    snapshot["allocator_settings"] = {
        "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
        "expandable_segments": False, "roundup_power2_divisions": {"1": 0, "2": 4}}
    if version >= (2, 15):
        for event in alloc, oom:
            event.update(pool_id=(0, 0), user_metadata="step", compile_context="0/1", internal_metadata="x")
        snapshot["device_traces"][1].append({"action": "a new one", "addr": 0, "size": 0, "stream": 0, "time_us": 1700000000000009})
        snapshot["allocator_settings"].update(trace_alloc_overflowed=True, trace_alloc_max_entries=2)
        snapshot["external_annotations"] = [
            {"device": 1, "time_us": 1700000000000003, "name": "step 1", "stage": "START"}]
        snapshot["host_segments"] = [
            {"address": 0x5000, "size": 4096, "allocated": True, "active": True, "segment_pool_id": (0, 0), "frames": stack},
            {"address": 0x1000, "size": 4096, "allocated": False, "active": True, "segment_pool_id": (0, 0), "frames": []}]
        snapshot["host_traces"] = [{"action": "alloc", "addr": 0x5000, "size": 4096, "stream": 0, "time_us": 1700000000000002}]
    return snapshot


class PickleOfPyTorch(Folder):

    def check(self, version, data):
        view = View(self.convert(data))
        device = [part for part in view.parts if part[0] == "device"]
        self.assertEqual([part[1] for part in device], [1])
        stack = [("model.py", 7, "forward"), ("train.py", 3, "main")]
        _, _, segments, events = device[0]
        self.assertEqual(segments[0][:3], (0x7F0000000000, 2048, 0))
        self.assertEqual(segments[0][7], [(0x7F0000000000, 512, 500, "active_allocated", "", stack),
                                          (0x7F0000000000 + 512, 1536, 0, "inactive", "", [])])
        self.assertEqual(events[0][:4], ("alloc", 0x7F0000000000, 500, 0))
        self.assertEqual(events[0][8], stack)
        oom = [event for event in events if event[0] == "oom"][0]
        self.assertEqual(oom[1:4], (9, 1 << 40, 0))
        part = [part for part in view.json["parts"] if part["kind"] == "device"][0]
        if version >= (2, 1):
            self.assertEqual(part["settings"]["roundup_power2_divisions.2"], 4)
            self.assertEqual(events[0][4], 1700000000000001)
        if version < (2, 15):
            return
        self.assertEqual([e[0] for e in events], ["alloc", "user_defined", "oom", "user_defined"])
        self.assertEqual([e[6] for e in events], ["step", "step 1 START", "step", "a new one"])
        self.assertEqual((part["max_entries"], part["lost_count"]), (2, 1))
        _, _, pinned, host_events = [part for part in view.parts if part[0] == "pinned"][0]
        self.assertEqual([s[0] for s in pinned], [0x1000, 0x5000])
        self.assertEqual([s[7][0][3] for s in pinned], ["active_pending_free", "active_allocated"])
        self.assertEqual(len(host_events), 1)

    def test_of_every_version_and_protocol_is_read(self):
        for version in (2, 0), (2, 1), (2, 15):
            for protocol in 2, 3, 4, 5:
                for dumps in pickle.dumps, pickle._dumps:
                    with self.subTest(version=version, protocol=protocol):
                        self.check(version, dumps(pytorch(version), protocol))

    def test_may_be_its_segments_alone(self):
        view = View(self.convert(pickle.dumps(pytorch((2, 15))["segments"])))
        self.assertEqual(len(view.parts[0][2]), 1)

    def test_with_code_in_it_is_refused(self):
        snapshot = pytorch((2, 15))
        for thing in print, object(), os.stat_result(range(10)):
            snapshot["extra"] = thing
            message = self.convert(pickle.dumps(snapshot))
            self.assertIs(type(message), str, thing)
            self.assertRegex(message, r"it names [a-z_]+\.[a-z_]+: a snapshot is plain data")


class PickleConverted(Folder):
    """python/lade/pickles.py by itself."""

    def setUp(self):
        super().setUp()
        spec = importlib.util.spec_from_file_location("pickles", PICKLES)
        self.pickles = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.pickles)

    def of(self, data):
        out = io.StringIO()
        self.pickles.convert(io.BytesIO(data), out)
        return json.loads(out.getvalue())

    def refused(self, data):
        with self.assertRaises(self.pickles.Refused) as raised:
            self.of(data)
        return str(raised.exception)

    def test_is_what_the_json_of_the_same_snapshot_says(self):
        for shape in "small", "long":
            expected, made = View(self.sample(shape, "json")), View(self.convert(self.sample(shape, "pickle")))
            self.assertEqual(made.parts, expected.parts)
            self.assertEqual(made.named_modules(), expected.named_modules())
            for mine, other in zip(made.json["parts"], expected.json["parts"]):
                for table in "segments", "blocks", "events":
                    mine.pop(table), other.pop(table)
                self.assertEqual(json.dumps(mine, sort_keys=True), json.dumps(other, sort_keys=True))
            for key in "time_ns", "process_id":
                self.assertEqual(made.json[key], expected.json[key])

    def test_keeps_integers_of_64_bits(self):
        snapshot = pytorch((2, 15))
        alloc, oom = snapshot["device_traces"][1][:2]
        alloc.update(stream=(1 << 64) - 1, size=(1 << 63) + 1)
        oom.update(stream=1 << 63, device_free=(1 << 63) - 1)
        events = View(self.convert(pickle.dumps(snapshot))).parts[0][3]
        self.assertEqual([(e[1], e[2], e[3]) for e in events if e[0] in ("alloc", "oom")],
                         [(0x7F0000000000, (1 << 63) + 1, (1 << 64) - 1), ((1 << 63) - 1, 1 << 40, 1 << 63)])
        alloc["stream"] = -1  # of a writer that takes it for a signed number
        self.assertEqual(View(self.convert(pickle.dumps(snapshot))).parts[0][3][0][3], (1 << 64) - 1)

    def test_of_few_keys_has_what_follows_from_them(self):
        blocks = [{"size": 512, "state": "active_awaiting_free"}, {"size": 512, "state": "inactive"}]
        segments = [{"address": 4096, "total_size": 1024, "device": 3, "blocks": blocks}]
        kind, device, segments, _ = View(self.convert(pickle.dumps(segments))).parts[0]
        self.assertEqual((kind, device, segments[0][7]), ("device", 3, [(4096, 512, 512, "active_pending_free", "", []),
                                                                       (4608, 512, 0, "inactive", "", [])]))

    def test_may_refer_to_a_row_twice(self):
        alloc = {"action": "alloc", "addr": 77}
        events = View(self.convert(pickle.dumps({"device_traces": [[alloc, alloc, alloc]]}))).parts[0][3]
        self.assertEqual([event[1] for event in events], [77] * 3)

    def test_that_is_wrong_is_refused_by_its_key(self):
        segment = {"address": 4096, "total_size": 1024, "blocks": [{"size": 512, "state": "inactive", "address": 8192}]}
        event = {"action": "alloc"}
        wrong = {
            "is no snapshot": [None, {}, 5], "segments' is of type int": {"segments": 1}, "segments has an element": [[]],
            "does not begin where": [segment], "key 'size' is a number out of range": {"device_traces": [[{**event, "size": -1}]]},
            "key 'size' is of type str": {"device_traces": [[{**event, "size": "1"}]]},
            "key 'addr' is an integer of more": {"device_traces": [[{**event, "addr": 1 << 64}]]},
            "key 'action' is of type int": {"device_traces": [[{"action": 1}]]},
            "key 'time_us' is a number out of range": {"device_traces": [[{**event, "time_us": 1 << 63}]]},
            "key 'pool_id' is no pair": {"device_traces": [[{**event, "pool_id": (1, "2")}]]},
            "frames has an element": {"device_traces": [[{**event, "frames": [1]}]]},
            "key 'device' is a number out of range": [{"total_size": 1, "device": 1024}],
            "more than 1,024": {"device_traces": [[]] * 1025}, "another version": {"segments": [], "lade": {}},
            "fewer segments": {"segments": [], "lade": {"version": 1, "parts": [{"kind": "device", "segment_count": 9}]}},
            "fewer events": {"segments": [], "lade": {"version": 1, "parts": [{"kind": "device", "event_count": 1 << 40}]}},
            "a part's kind": {"segments": [], "lade": {"version": 1, "parts": [{"kind": "other"}]}},
        }
        for message, things in wrong.items():
            for thing in things if message == "is no snapshot" else [things]:
                self.assertIn(message, self.refused(pickle.dumps(thing)))

    def test_that_is_a_cycle_is_refused(self):
        ring = []
        ring.append(ring)
        self.assertIn("segments has an element", self.refused(pickle.dumps(ring)))
        self.assertIn("device_traces has an element", self.refused(pickle.dumps({"device_traces": [ring]})))
        whole = {"segments": []}
        whole["lade"] = whole
        self.assertIn("another version", self.refused(pickle.dumps(whole)))

    def test_every_beginning_is_refused(self):
        data = self.sample("small", "pickle")
        for cut in [*range(0, 500), *range(500, len(data) - 200, 97), *range(len(data) - 200, len(data))]:
            self.refused(data[:cut])

    def test_changed_bytes_are_read_or_refused(self):
        data, refused = bytearray(self.sample("small", "pickle")), 0
        for at in range(0, len(data), 131):
            kept = data[at]
            data[at] = kept ^ 1 << at % 8
            try:
                self.of(bytes(data))
            except self.pickles.Refused:
                refused += 1
            except MemoryError:
                pass
            data[at] = kept
        self.assertGreater(refused, 10)

    def test_of_every_opcode_that_calls_or_names_code_is_refused(self):
        for code in b"c\x93RbioPQ\x81\x92\x82\x83\x84\x97":
            self.refused(b"\x80\x04}" + bytes([code]) + b"os\nsystem\n.")

    def test_takes_no_memory_without_bound(self):
        claims = [b"\x80\x04" + code + struct.pack("<Q", 1 << 60) for code in (b"\x8d", b"\x8e", b"\x95", b"\x96")]
        nests = [b"\x80\x04" + text * 1000000 for text in (b"](", b"]", b"}N", b"(")]
        for data in claims + nests:
            self.assertIs(type(self.convert(data)), str)
        self.assertIn("takes more memory than 32 times its size", self.convert(b"\x80\x04Nr\xff\xff\xff\xff."))


class JsonOfPython(Folder):
    # Texts on both sides of each rule.
    TEXTS = [
        b"", b" ", b"null", b"nul", b"nullx", b"true", b"false", b"truefalse", b"0", b"-0", b"00", b"-", b"+1", b"1.", b".5", b"1.5",
        b"1e5", b"1E+5", b"1e", b"1e+", b"0x10", b"01", b"-01", b"1 2", b"1,2", b"\"\"", b"\"a", b"\"\\\"", b"\"\\x\"", b"\"\\u12\"",
        b"\"\\u12g4\"", b"\"\\ud800\"", b"\"\\ud800\\udc00\"", b"\"\t\"", b"\"\x00\"", b"\"\x7f\"", b"\"\xc3\xa4\"", b"\"\xc3\"",
        b"\"\xff\"", b"\"\xed\xa0\x80\"", b"\"\xf4\x90\x80\x80\"", b"\"\xc0\x80\"", b"[]", b"[", b"]", b"[1]", b"[1,]", b"[,1]", b"[1 2]",
        b"[1,,2]", b"{}", b"{", b"}", b"{\"a\":1}", b"{\"a\":1,}", b"{,}", b"{\"a\"}", b"{\"a\":}", b"{a:1}", b"{1:2}", b"{\"a\":1 \"b\":2}",
        b"{\"a\":1,\"a\":2}", b"[}", b"{]", b"[[],{}]", b"[[]", b"[]]", b"'a'", b"// x\n1", b"/* x */1", b"\xef\xbb\xbf1", b"\xc2\xa01",
        b"\x0c1", b"\x0b1", b"\r\n\t 1 \r\n", b"1\x00", b"NaN", b"Infinity", b"-Infinity", b"[1]\n\n", b"{\"\":{\"\":[\"\"]}}", b"\"\\/\"",
        b"-1.5e-10", b"1e400", b"\"\\", b"\"\\u", b"{\"a\":1", b"{\"a", b"{\"a\":", b"[1", b"tru", b"-a",
    ]

    @staticmethod
    def python_accepts(data):

        def refuse(name):
            raise ValueError(name)

        try:
            json.loads(data.decode("utf-8"), parse_constant=refuse)
        except ValueError:
            return "0"
        return "1"

    def changed(self, data, random_source):
        data = bytearray(data)
        for _ in range(random_source.randrange(1, 4)):
            at = random_source.randrange(len(data))
            choice = random_source.randrange(4)
            if choice == 0:
                data[at] = random_source.randrange(256)
            elif choice == 1:
                del data[at]
            elif choice == 2:
                data.insert(at, random_source.choice(b"{}[],:\"\\0123456789.eE-+ntf \n"))
            else:
                del data[at:]
            if not data:
                break
        return bytes(data)

    def test_parser_accepts_what_python_accepts(self):
        random_source = random.Random(SEED)
        texts = list(self.TEXTS)
        seeds = [b'{"a":[1,-2.5e3,"\\u00e4\\n",true,false,null,{"b":[]}],"c":"\xc3\xa4"}', b'[[1,2],[3,{"x":"y"}],"",0]',
                 b'"\\ud83d\\ude00"', b"-12.25E+7", self.sample("small", "json")[:400]]
        texts += [self.changed(random_source.choice(seeds), random_source) for _ in range(20000)]
        lines = "".join(text.hex() + "\n" for text in texts)
        answers = subprocess.run([ACCEPT], input=lines.encode(), stdout=subprocess.PIPE, check=True).stdout.decode().split()
        self.assertEqual(len(answers), len(texts))
        accepted = 0
        for text, answer in zip(texts, answers):
            expected = self.python_accepts(text)
            self.assertEqual(answer, expected, text)
            accepted += expected == "1"
        self.assertGreater(accepted, 1000)


if __name__ == "__main__":
    PICKLES = os.path.abspath(sys.argv.pop(3))
    ACCEPT = os.path.abspath(sys.argv.pop(2))
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
