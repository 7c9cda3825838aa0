#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model of graph-tree traces by itself: cases worked out by hand, and that random traces reach every rule.

usage: model_test.py
"""

import collections
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import model
import traces


def runs(text):
    return [entry for entry in model.report("lade-trees 1\n" + text)["entries"] if "run" in entry]


class ByHand(unittest.TestCase):
    def test_values_are_fnv_1a_of_words(self):
        self.assertEqual(model.fnv(), 0xCBF29CE484222325)
        # Eight bytes 'a' 0 0 0 0 0 0 0: each step once more with the prime.
        value = 0xCBF29CE484222325
        for byte in b"a\0\0\0\0\0\0\0":
            value = (value ^ byte) * 0x100000001B3 % 2**64
        self.assertEqual(model.fnv(ord("a")), value)

    def test_a_path_of_its_own(self):
        text = "memory p 1000\nfunction f inference -\nalloc 0 1000\nout local 0\nend\n"
        for number in range(3):
            text += f"run r{number} f 1 p\nrelease r{number}.0\n"
        warmup, record, replay = runs(text)
        self.assertEqual((warmup["did"], warmup["node"], warmup["state"], warmup["ended"]), ("warmup", -1, "WARMUP", None))
        self.assertEqual(warmup["outputs"], [{"kind": "new", "at": [0, 0]}])
        self.assertEqual(warmup["live"], [[0, 0, 1024]])
        self.assertEqual((record["did"], record["node"], record["ended"]), ("record", 0, "dead"))
        # The input's copy comes first, and goes behind the body.
        self.assertEqual(record["outputs"], [{"kind": "new", "at": [0, 1024]}])
        self.assertEqual(record["classes"], ["copied"])
        self.assertEqual((replay["did"], replay["node"], replay["why"], replay["live"]), ("replay", 0, [], []))

    def test_a_dropped_copy_is_the_bodys_memory(self):
        text = "tree warmup:0\nmemory p 1000\nfunction f inference -\ndrop 0\nalloc 0 1000\nout local 0\nend\nrun r f 1 p\n"
        self.assertEqual(runs(text)[0]["outputs"], [{"kind": "new", "at": [0, 0]}])

    def test_output_of_last_step_is_carried(self):
        text = "tree warmup:0\nmemory p 8\nfunction f inference -\nalloc 0 8\nout local 0\nend\n"
        text += "run a f 1 p\nstep\nrun b f 1 a.0\nread a.0\n"
        entries = model.report("lade-trees 1\n" + text)["entries"]
        self.assertEqual((entries[1]["ended"], entries[1]["carried"], entries[1]["lost"]), ("boundary", [0], ["a.0"]))
        self.assertEqual((entries[1]["did"], entries[1]["node"]), ("replay", 0))
        self.assertEqual((entries[2]["state"], entries[2]["value"]), ("lost", None))

    def test_lines_that_are_wrong(self):
        head = "lade-trees 1\nmemory p 8\nfunction f inference m\nalloc 0 8\nout local 0\nout input 0\nend\nrun a f 1 p\n"
        for line in (
            "memory p 8",
            "memory q 7",
            "memory q 268435457",
            "tree warmup:0",
            "run a f 1 p",
            "run b f 0 p",
            "run b f 1",
            "run b f 1 q",
            "run b f 1 a.2",
            "run b f 1 a.1!",
            "release a.1",
            "release a",
            "run b g 1 p",
            "fail it",
            "snapshot a-b",
            "step now",
            "alloc 0 8",
            "function g forward x",
        ):
            with self.assertRaises(model.TraceError, msg=line) as raised:
                model.report(head + line + "\n")
            self.assertEqual(raised.exception.line, 9)
        model.report(head + "run b f 1 a.1 # another word\n\nrelease a.0\n")


class Random(unittest.TestCase):
    """What the model asserts of itself holds; and no rule is out of reach of the traces that are compared."""

    WANTED = (
        [("did", did) for did in ("eager", "warmup", "record", "replay", "error")]
        + [("why", why) for why in ("form", "managed", "static", "dead_before", "dead_after")]
        + [("why", why) for why in ("mutated", "limit", "checkpoint")]
        + [("status", f"LADE_ERR_{name}") for name in ("CALLBACK", "DRIVER", "INVALID_ARGUMENT", "OVERWRITTEN")]
        + [("ended", ended) for ended in ("boundary", "dead", None)]
        + [(did, kind) for did in ("record", "replay") for kind in ("new", "same", "prior", "input", "integer")]
        + [("warmup", kind) for kind in ("new", "same", "prior", "input", "integer")]
        + [("eager", kind) for kind in ("plain", "input", "integer")]
        + [("carried", did) for did in ("eager", "warmup", "record", "replay")]
        + [("restored", did) for did in ("warmup", "record")]
        + [("replayed", name) for name in ("managed", "static", "copied")]
    )

    def test_every_rule_is_reached(self):
        seen = collections.Counter()
        for seed in range(500):
            for entry in model.report(traces.generate(seed))["entries"]:
                if "run" not in entry:
                    continue
                did = entry["did"]
                seen.update([("did", did), ("status", entry["status"]), ("ended", entry["ended"])])
                seen.update(("why", why) for why in entry["why"])
                seen.update((did, output["kind"]) for output in entry["outputs"])
                seen["carried", did] += bool(entry["carried"])
                seen["restored", did] += entry["restored"]
                if did == "replay":
                    seen.update(("replayed", name) for name in entry["classes"])
        self.assertEqual([what for what in self.WANTED if not seen[what]], [])


if __name__ == "__main__":
    unittest.main()
