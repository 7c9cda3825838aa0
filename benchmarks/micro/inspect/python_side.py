# SPDX-License-Identifier: Apache-2.0
"""The baselines of snapshot_files: Python's pickle and json on the same objects.

usage: python_side.py PICKLE JSON SCRATCH

Answers each line of standard input, a name of a function below, with a number. The collector is off, which is Python's best.
"""

import functools
import gc
import io
import json
import os
import pickle
import sys
import time

PICKLE, JSON, SCRATCH = sys.argv[1:]


def seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def dump(module, thing, *options):
    with open(SCRATCH, "w" if module is json else "wb") as file:
        module.dump(thing, file, *options)


def pickle_dump():
    return seconds(lambda: dump(pickle, OBJECT, 4))


def pickle_bytes():
    pickle_dump()
    return os.path.getsize(SCRATCH)


def json_load():
    return seconds(lambda: json.loads(COLUMNS_TEXT))


def json_dump():
    return seconds(lambda: dump(json, COLUMNS))


@functools.lru_cache(None)
def json_bytes():
    """Of json.dump of the pickle's object: the sum of its rows, since as a whole it takes minutes."""
    rows = [row for rows in OBJECT["device_traces"] for row in rows] + OBJECT["segments"]
    return sum(len(json.dumps(row)) + 2 for row in rows)


gc.disable()
with open(PICKLE, "rb") as pickle_file:
    DATA = pickle_file.read()
OBJECT = pickle.load(io.BytesIO(DATA))
with open(JSON, encoding="utf-8") as json_file:
    COLUMNS_TEXT = json_file.read()
COLUMNS = json.loads(COLUMNS_TEXT)
for line in sys.stdin:
    print(globals()[line.strip()](), flush=True)
