# SPDX-License-Identifier: Apache-2.0
"""Random graph-tree traces, and the smallest part of one that still shows something.

A trace is a program: templates of calls that are run step after step with small changes, so that recordings match, miss
for every reason, and paths end in every way. The model is fed while the lines are made, so that a line can use what lives.
usage: traces.py SEED
"""

import random
import sys

import model

MODES = ("forward", "backward", "inference")
SMALL = (8, 9, 64, 512, 513, 1000, 4096, 5000)
MIDDLE = (100000, 300000, 524288, 700000, 1048576)
LARGE = (1048577, 1500000, 2097152, 3000000, 5000000)
HUGE = (10485760, 10485249, 11000000, 20971520, 22000001)


class Trace:
    """Lines so far, and the model that has read them."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []
        self.reader = model.Reader("")
        self.runs = 0
        self.memories = []
        self.functions = []
        self.templates = []
        self.add("lade-trees 1")

    def add(self, line):
        """False: the line is none that a trace may have here."""
        try:
            self.reader.feed(line)
        except model.TraceError:
            return False
        self.lines.append(line)
        return True

    def chance(self, probability):
        return self.random.random() < probability

    def size(self):
        r = self.random
        kind = r.random()
        if self.chance(0.3):
            return self.usual
        if kind < self.small:
            return r.choice(SMALL)
        if kind < self.small + 0.15:
            return r.choice(MIDDLE)
        return r.choice(LARGE) if kind < 0.985 or not self.huge else r.choice(HUGE)


def options_add(t):
    r = t.random
    pairs = []
    if t.chance(0.6):
        pairs.append(f"warmup:{int(t.chance(0.4))}")
    if t.chance(0.15):
        pairs.append("rerecord:0")
    if t.chance(0.3):
        pairs.append(f"max_nodes:{r.choice((0, 1, 2, 3, 3, 4, 6))}")
    if t.chance(0.3):
        pairs.append(f"max_rerecords:{r.choice((0, 1, 1, 2, 3))}")
    r.shuffle(pairs)
    if pairs:
        t.add("tree " + ",".join(pairs))


def function_add(t):
    r = t.random
    name = f"f{len(t.functions)}"
    inputs = r.choice((0, 1, 1, 2, 2, 3, 4))
    flags = [r.choices(("-", "s", "m", "sm"), (6, 3, t.mutating, 1))[0] for _ in range(inputs)]
    t.add(" ".join(["function", name, r.choice(MODES), *flags]))
    live, dropped, number = [], set(), 0
    for _ in range(r.randrange(7)):
        word = r.random()
        if word < 0.55:
            size = t.size()
            star = "*" if size < 200000 and t.chance(0.2) else ""
            if t.add(f"alloc {number} {size}{star}"):
                live.append(number)
            number += r.choice((1, 1, 1, 3))
        elif word < 0.7 and live:
            t.add(f"free {live.pop(r.randrange(len(live)))}")
        elif word < 0.85 and inputs:
            index = r.randrange(inputs)
            if t.add(f"drop {index}"):
                dropped.add(index)
        elif inputs:
            t.add(f"mutate {r.randrange(inputs)}")
    outputs = 0
    for _ in range(r.choice((0, 1, 1, 2, 2, 3))):
        word = r.random()
        if word < 0.6 and live:
            outputs += t.add(f"out local {r.choice(live)}")
        elif word < 0.85 and inputs:
            outputs += t.add(f"out input {r.randrange(inputs)}")
        elif word < 0.9:
            outputs += t.add(f"out integer {r.choice((0, 7, 2**64 - 1))}")
    t.add("end")
    t.functions.append((name, inputs))


def memory_add(t):
    name = f"p{len(t.memories)}"
    t.add(f"memory {name} {t.size()}")
    t.memories.append(name)


def template_make(t, place):
    """The call at a place of a step: function, key, where its inputs come from, what is released after it."""
    r = t.random
    name, inputs = r.choice(t.functions)
    return {
        "function": name,
        "key": r.choice((1, 1, 1, 2, 3)),
        "inputs": [source_make(t, place) for _ in range(inputs)],
        "release": [r.randrange(1, place + 2) for _ in range(r.choice((0, 1, 1, 2)))] if t.chance(t.releasing) else [],
        "auto": t.chance(t.auto),
    }


def source_make(t, place):
    """("memory", name), or ("output", calls back, output, taken); mostly of a call of the same step."""
    r = t.random
    if t.memories and (t.chance(t.foreign) or (place == 0 and t.chance(0.7))):
        return ("memory", r.choice(t.memories))
    back = r.randrange(1, place + 1) if place > 0 and not t.chance(t.far) else r.randrange(1, 8)
    return ("output", back, r.randrange(3), t.chance(t.taking))


def handles_live(t, lost=0.03):
    handles = [h for h in t.reader.tree.handles if h.count > 0] if t.reader.tree else []
    if t.random.random() >= lost:
        handles = [h for h in handles if not h.storage.lost]
    return handles


def word_of(t, source):
    r = t.random
    if source[0] == "memory":
        return source[1]
    _, back, output, taken = source
    run = t.runs - back
    results = t.reader.runs.get(f"r{run}") or []
    whats = [what for what in results if what is not None]
    if whats:
        index = results.index(whats[output % len(whats)])
        what = results[index]
        if isinstance(what, model.Memory):
            return f"r{run}.{index}"
        if what.count > 0 and (not what.storage.lost or t.chance(0.02)):
            return f"r{run}.{index}" + ("!" if taken else "")
    handles = handles_live(t)
    if handles and t.chance(0.5):
        return r.choice(handles).name + ("!" if taken else "")
    return r.choice(t.memories) if t.memories else "p0"


def call_add(t, template, place):
    inputs = list(template["inputs"])
    for index in range(len(inputs)):
        if t.chance(t.change):
            inputs[index] = source_make(t, place)
    for _ in range(4):
        words = [word_of(t, source) for source in inputs]
        auto = ["auto"] if template["auto"] else []
        if t.add(" ".join(["run", f"r{t.runs}", template["function"], str(template["key"]), *auto, *words])):
            break
        inputs = [source_make(t, place) for _ in inputs]
    else:
        return
    t.runs += 1
    for back in template["release"]:
        if not t.chance(t.wobble):
            release_of(t, t.runs - back)
    if t.chance(t.wobble):
        release_of(t, t.runs - t.random.randrange(1, place + 2))


def release_of(t, run):
    for handle in [h for h in t.reader.tree.handles if h.name.startswith(f"r{run}.") and h.count > 0]:
        t.add(f"release {handle.name}")


def noise_add(t):
    r = t.random
    word = r.random()
    handles = [h for h in t.reader.tree.handles if h.count > 0] if t.reader.tree else []
    if word < 0.3 and handles:
        t.add(f"release {r.choice(handles).name}")
    elif word < 0.4 and handles:
        t.add(f"retain {r.choice(handles).name}")
    elif word < 0.55 and handles:
        t.add(f"read {r.choice(handles).name}")
    elif word < 0.6:
        t.add(f"read r{r.randrange(t.runs + 1)}.{r.randrange(3)}")
    elif word < 0.7:
        t.add(f"snapshot s{r.randrange(3)}")
    elif word < 0.78:
        t.add("step")
    elif word < 0.82:
        t.add("backward_done")
    elif word < 0.86:
        function_add(t)
    elif word < 0.88:
        memory_add(t)
    elif word < 0.94:
        place = r.randrange(len(t.templates))
        t.templates[place].append(template_make(t, place))
    elif t.failing > 0:
        fail_add(t)


def fail_add(t):
    for _ in range(t.random.choice((1, 1, 1, 2, 3))):
        t.add(f"fail {t.random.choice(model.OPS)}")


def generate(seed, runs=None):
    t = Trace(seed)
    r = t.random
    t.small = r.choice((0.4, 0.7, 0.84))
    t.huge = t.chance(0.1)
    t.usual = r.choice(SMALL)
    t.mutating = r.choice((0, 0.3, 2))
    t.releasing = r.choice((0.1, 0.5, 0.9))
    t.wobble = r.choice((0, 0.1, 0.3))
    t.far = r.choice((0, 0.1, 0.3))
    t.auto = r.choice((0, 0.2, 0.5))
    t.foreign = r.choice((0.2, 0.4, 0.6))
    t.taking = r.choice((0, 0.3, 0.7))
    t.change = r.choice((0, 0.03, 0.15))
    t.failing = r.choice((0, 0, 0.05, 0.2))
    t.noise = r.choice((0.05, 0.2, 0.4))
    stepping = r.choice((0, 0.3, 0.9, 1))
    clearing = r.choice((0, 0.3, 0.9))
    options_add(t)
    for _ in range(r.choice((1, 2, 3))):
        memory_add(t)
    for _ in range(r.choice((1, 2, 3, 4))):
        function_add(t)
    t.templates = [[template_make(t, place)] for place in range(r.choice((1, 2, 3, 4, 5, 6)))]
    for place, others in enumerate(t.templates):
        while t.chance(0.25):
            others.append(template_make(t, place))
    runs = runs or r.choice((8, 15, 30, 60))
    attempts = 0
    while t.runs < runs and attempts < 4 * runs:
        for place, others in enumerate(t.templates):
            attempts += 1
            if t.failing > 0 and t.chance(t.failing):
                fail_add(t)
            call_add(t, r.choice(others), place)
            if t.chance(t.noise):
                noise_add(t)
        if t.chance(clearing):
            for handle in [h for h in t.reader.tree.handles if h.count > 0]:
                if t.chance(0.9):
                    t.add(f"release {handle.name}")
        if t.chance(stepping):
            t.add("step")
    for handle in [h for h in t.reader.tree.handles if h.count > 0][-6:]:
        t.add(f"read {handle.name}")
    t.add("snapshot end")
    return "\n".join(t.lines) + "\n"


# ---- Wrong traces ---------------------------------------------------------------------------------------------------

WORDS = ("run", "r0.0", "r1.0!", "r0.1", "f0", "p0", "0", "1", "8", "7", "auto", "end", "out", "local", "*", "fail", "-", "")


def spoil(text, seed):
    """The trace with a mistake in it, most likely."""
    r = random.Random(seed)
    lines = text.rstrip("\n").split("\n")
    for _ in range(r.choice((1, 1, 2))):
        at = r.randrange(1, len(lines)) if r.random() < 0.95 else 0
        words = lines[at].split(" ")
        place = r.randrange(len(words))
        kind = r.random()
        if kind < 0.25:
            del words[place]
        elif kind < 0.5:
            words.insert(place, r.choice(WORDS))
        elif kind < 0.8:
            words[place] = r.choice(WORDS)
        elif kind < 0.9:
            lines[at] = lines[r.randrange(len(lines))]
            continue
        else:
            del lines[at]
            continue
        lines[at] = " ".join(words)
    return "\n".join(lines) + "\n"


# ---- Shrinking ------------------------------------------------------------------------------------------------------


def shrink(text, shows):
    """The fewest lines for which shows(text) holds; it holds for `text`. Later shows that are errors are its business."""
    lines = text.rstrip("\n").split("\n")
    chunk = max(1, len(lines) // 2)
    while True:
        at, smaller = 1, False
        while at < len(lines):
            fewer = lines[:at] + lines[at + chunk :]
            if shows("\n".join(fewer) + "\n"):
                lines, smaller = fewer, True
            else:
                at += chunk
        if chunk == 1 and not smaller:
            return "\n".join(lines) + "\n"
        if not smaller:
            chunk //= 2


if __name__ == "__main__":
    sys.stdout.write(generate(int(sys.argv[1])))
