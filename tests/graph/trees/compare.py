#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program `trees` against the model: stored traces, then random ones.

usage: compare.py TREES FOLDER [--seconds S | --seeds FIRST LAST] [--keep FOLDER]

FOLDER has traces NAME.trees, and beside each what the model reports of it, NAME.json: reports of both the program and the model must
equal it (compare.py --write FOLDER writes them). A random trace with a difference is shrunk and printed.
"""

import json
import os
import random
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import model
import traces


def expected(text):
    """(exit status, report or line of the error) by the model."""
    try:
        return 0, model.report(text)
    except model.TraceError as error:
        return 2, error.line


def shown(trees, text, path):
    """(exit status, report or line of the error, standard error) by the program."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
    done = subprocess.run([trees, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    message = done.stderr.decode(errors="replace")
    if done.returncode == 0:
        return 0, json.loads(done.stdout), message
    if done.returncode == 2:
        head, _, rest = message.partition(path + ":")
        return 2, int(rest.split(":")[0]) if head == "" and not done.stdout else message, message
    return done.returncode, done.stdout.decode(errors="replace")[-400:], message


def first_difference(wanted, got):
    """The first entry that differs, as text."""
    if wanted[0] != 0 or got[0] != 0:
        return f"model: {wanted[0]} {wanted[1] if wanted[0] else ''}\nprogram: {got[0]} {got[2]}"
    for one, other in zip(wanted[1]["entries"], got[1]["entries"]):
        if one != other:
            keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
            return "\n".join(
                [f"line {one['line']}"]
                + [f"  {key}: model {json.dumps(one.get(key))}, program {json.dumps(other.get(key))}" for key in keys]
            )
    return f"{len(wanted[1]['entries'])} entries by the model, {len(got[1]['entries'])} by the program"


class Comparison:
    def __init__(self, trees, keep):
        self.trees = trees
        self.keep = keep
        self.path = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), f"compare.{os.getpid()}.trees")
        self.count = self.runs = 0

    def differs(self, text, wanted=None):
        """None, or what differs."""
        wanted = wanted or expected(text)
        got = shown(self.trees, text, self.path)
        if (wanted[0], wanted[1]) == (got[0], got[1]):
            return None
        return first_difference(wanted, got)

    def stored(self, folder):
        failed = 0
        names = sorted(name for name in os.listdir(folder) if name.endswith(".trees"))
        for name in names:
            with open(os.path.join(folder, name), encoding="utf-8", newline="\n") as file:
                text = file.read()
            with open(os.path.join(folder, name[: -len("trees")] + "json"), encoding="utf-8") as file:
                report = json.load(file)
            if expected(text) != (0, report):
                print(f"{name}: the model says another thing than its stored report")
                failed += 1
            difference = self.differs(text, (0, report))
            if difference:
                print(f"{name}: {difference}")
                failed += 1
        print(f"{len(names)} stored traces, {failed} differences")
        return failed

    def random(self, seed):
        text = traces.generate(seed)
        if seed % 8 == 7:
            text = traces.spoil(text, seed)
        self.count += 1
        self.runs += text.count("\nrun ")
        difference = self.differs(text)
        if difference is None:
            return 0
        small = traces.shrink(text, lambda fewer: self.differs(fewer) is not None)
        print(f"seed {seed}: {difference}\nshrunk:\n{small}{self.differs(small)}", flush=True)
        if self.keep:
            with open(os.path.join(self.keep, f"{seed}.trees"), "w", encoding="utf-8") as file:
                file.write(small)
        return 1


def write(folder):
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".trees"):
            continue
        with open(os.path.join(folder, name), encoding="utf-8", newline="\n") as file:
            report = model.report(file.read())
        with open(os.path.join(folder, name[: -len("trees")] + "json"), "w", encoding="utf-8") as file:
            file.write('{"version": 1, "entries": [\n')
            file.write(",\n".join(json.dumps(entry) for entry in report["entries"]))
            file.write("\n]}\n")


def main(arguments):
    if arguments[0] == "--write":
        write(arguments[1])
        return 0
    trees, folder, *rest = arguments
    options = {"--seconds": 0.0}
    seeds = None
    keep = None
    while rest:
        word = rest.pop(0)
        if word == "--seconds":
            options[word] = float(rest.pop(0))
        elif word == "--seeds":
            seeds = range(int(rest.pop(0)), int(rest.pop(0)))
        elif word == "--keep":
            keep = rest.pop(0)
        else:
            sys.exit(f"compare.py: what is {word}?")
    comparison = Comparison(trees, keep)
    failed = comparison.stored(folder)
    if seeds is None and options["--seconds"] > 0:
        first = int(os.environ.get("LADE_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
        print(f"seeds from {first} on; LADE_TEST_SEED={first} repeats them")
        seeds = range(first, first + (1 << 32))
    end = time.monotonic() + options["--seconds"] if options["--seconds"] else None
    for seed in seeds or ():
        if failed >= 5 or (end is not None and time.monotonic() > end):
            break
        failed += comparison.random(seed)
    print(f"{comparison.count} random traces with {comparison.runs} runs, {failed} differences in all")
    if os.path.exists(comparison.path):
        os.remove(comparison.path)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
