#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model's pool against `lade replay`: the same blocks after each step of random allocations, frees, checkpoints.

usage: pool_judge_test.py LADE
"""

import json
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from pool import Pool

SMALL = (8, 512, 513, 5000, 100000, 524288, 1048576)
SIZES = SMALL + (1048577, 1500000, 3000000, 9000000, 10485249, 10485760, 20971520, 22000001)
SEEDS, STEPS = 40, 60


class Trace:
    """Lines of a trace, and what its snapshots must show."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.small = self.random.random()
        self.pool = Pool()
        self.lines = ["lade-trace 1"]
        self.places = {}  # ID -> place
        self.count = 0
        self.saved = {}  # key of a checkpoint -> (blocks, places)
        self.expected = []

    def allocations(self):
        r = self.random
        self.lines.append("pool_begin 1 0")
        for _ in range(r.randrange(6)):
            if self.places and r.random() < 0.45:
                number = r.choice(list(self.places))
                self.lines.append(f"free {number}")
                self.pool.free(self.places.pop(number))
            else:
                size = r.choice(SMALL if r.random() < self.small else SIZES) + r.choice((0, 0, 1, 512, 3000))
                self.count += 1
                self.lines.append(f"alloc {self.count} {size} 0")
                self.places[self.count] = self.pool.alloc(size)
        self.lines.append("pool_end 1")

    def checkpoints(self, step):
        r = self.random
        if r.random() < 0.2:
            self.saved[step] = dict(self.pool.blocks), dict(self.places)
            self.lines.append(f"checkpoint 1 {step}")
        if self.saved and r.random() < 0.15:
            key = r.choice(list(self.saved))
            blocks, places = self.saved[key]
            self.lines.append(f"restore 1 {key}")
            self.pool.restore(blocks)
            self.places = dict(places)

    def snapshot(self):
        self.lines.append("snapshot step")
        self.expected.append((self.pool.live(), [size for size, _ in self.pool.segments]))


def trace_make(seed):
    trace = Trace(seed)
    for step in range(STEPS):
        trace.allocations()
        trace.checkpoints(step)
        trace.snapshot()
    return trace


def shown(snapshot):
    """(blocks handed out, sizes of segments) of pool 1."""
    segments = [segment for segment in snapshot["segments"] if segment["pool"] == [1, 0]]
    live = [
        [number, block["offset"], block["size"]]
        for number, segment in enumerate(segments)
        for block in segment["blocks"]
        if block["state"] != "inactive"
    ]
    return live, [segment["total_size"] for segment in segments]


def main():
    path = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), f"pool.{os.getpid()}.trace")
    for seed in range(SEEDS):
        trace = trace_make(seed)
        with open(path, "w") as file:
            file.write("\n".join(trace.lines) + "\n")
        out = subprocess.run([sys.argv[1], "replay", "--json", path], stdout=subprocess.PIPE, check=True).stdout
        snapshots = json.loads(out)["snapshots"]
        assert len(snapshots) == STEPS
        for snapshot, expected in zip(snapshots, trace.expected):
            if shown(snapshot) != expected:
                print(f"seed {seed}, line {snapshot['line']}: {shown(snapshot)}, by the model {expected}")
                return 1
    os.remove(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
