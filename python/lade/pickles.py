# SPDX-License-Identifier: Apache-2.0
"""Snapshots of memory in pickles, PyTorch's or lade's, as lade's JSON: ``python3 -m lade.pickles memory.pickle >memory.json``.

The command ``lade`` has this source inside and runs it with python3 when it is given a pickle. So it uses Python's own modules
alone, of 3.8 and later. docs/formats.md describes both formats.

A pickle is read as plain data: one that names a class or calls anything is refused. Nothing here recurses into what a file holds.
Memory is limited to 256 MiB and 32 times the file when this runs as a program.
"""

import itertools
import json
import os
import pickle
import resource
import sys
from typing import BinaryIO, TextIO

__all__ = ["Refused", "convert"]

_ACTIONS = {
    name: number
    for number, name in enumerate((
        "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot",
        "oom", "user_defined", "annotate"))
}
_ACTIONS["free"] = _ACTIONS["free_completed"]  # of files of PyTorch 2.0
_NOTE = _ACTIONS["user_defined"]
_STATES = {"inactive": 0, "active_allocated": 1, "active_pending_free": 2, "active_awaiting_free": 2}
_MOST_DEVICE = 1023
_UINT32, _UINT64 = (1 << 32) - 1, (1 << 64) - 1
_LEAST_MEMORY, _MEMORY_FACTOR = 256 << 20, 32
_BROKEN, _TOO_LARGE = 2, 3  # exit statuses


class Refused(ValueError):
    """The file is no snapshot, or no plain data."""


class _Plain(pickle.Unpickler):
    """Finds no class and no function, so that no opcode has anything to call."""

    def find_class(self, module, name):
        raise Refused(f"it names {module}.{name}: a snapshot is plain data")

    def persistent_load(self, pid):
        raise Refused("it names an object outside of it: a snapshot is plain data")


# --- values ---------------------------------------------------------------------------------------------------------------


def _take(row, key, kinds, otherwise, expected):
    value = row.get(key, otherwise)
    if type(value) not in kinds:
        raise Refused(f"key '{key}' is of type {type(value).__name__}; expected {expected}")
    return value


def _size(row, key, otherwise=0, most=_UINT64):
    value = _take(row, key, (int, bool), otherwise, "a whole number")
    if not 0 <= value <= most:
        raise Refused(f"key '{key}' is a number out of range; expected 0 to {most}")
    return int(value)


def _word(row, key, otherwise=0):
    """64 bits, which some writers take for a signed number: an address, a stream."""
    value = _take(row, key, (int, ), otherwise, "an integer")
    if not -1 << 63 <= value <= _UINT64:
        raise Refused(f"key '{key}' is an integer of more than 64 bits")
    return value & _UINT64


def _text(row, key, otherwise=""):
    return _take(row, key, (str, ), otherwise, "a text")


def _flag(row, key):
    return bool(_take(row, key, (bool, int), False, "a bool"))


def _pool(row, *keys):
    for key in keys:
        pair = _take(row, key, (tuple, ), (0, 0), "a pair of integers")
        if len(pair) != 2 or any(type(half) is not int for half in pair):
            raise Refused(f"key '{key}' is no pair of integers")
        if pair != (0, 0):
            return tuple(_word({key: half}, key) for half in pair)
    return 0, 0


def _rows(row, key, *needed):
    """A list of maps that have these keys."""
    rows = _take(row, key, (list, ), [], "a list")
    for element in rows:
        if type(element) is not dict or not all(name in element for name in needed):
            raise Refused(f"{key} has an element that is no map with the keys {needed}")
    return rows


def _next_rows(rows, count, what):
    taken = list(itertools.islice(rows, count))
    if len(taken) < count:
        raise Refused(f"lade: fewer {what} are there than a part says")
    return taken


def _json_setting(value):
    """JSON has no word for an infinite number: one that is too great for a double."""
    if type(value) is float and value in (float("inf"), float("-inf")):
        return "1e999" if value > 0 else "-1e999"
    return json.dumps(None if value != value else value)


def _settings(settings):
    """The JSON of settings; an entry of a map within them has a key such as "outer.inner"."""
    flat = []
    for key, value in settings.items():
        inner = value.items() if type(value) is dict else ()
        flat += [(f"{key}.{name}", entry) for name, entry in inner]
        if key not in ("trace_alloc_overflowed", "trace_alloc_max_entries"):
            flat.append((key, value))
    kept = [(key, value) for key, value in flat if type(key) is str and type(value) in (bool, int, float, str)]
    return "{" + ",".join(f"{json.dumps(key)}:{_json_setting(value)}" for key, value in kept) + "}"


# --- tables ---------------------------------------------------------------------------------------------------------------


class _Table(dict):
    """Columns of equal length."""

    def __init__(self, *names):
        super().__init__((name, []) for name in names)

    def add(self, *cells):
        for column, cell in zip(self.values(), cells):
            column.append(cell)


class _Snapshot:
    """What all parts refer to by number; parts as texts of JSON."""

    def __init__(self):
        self.texts, self.streams, self.pools, self.stacks = {"": 0}, {0: 0}, {(0, 0): 0}, {}
        self.stack_numbers = {}  # by the identity of a list, which the pickle keeps: rows share their lists of frames
        self.modules = _Table("path", "build_id", "base", "bytes")
        self.parts = []
        self.time_ns = self.process_id = 0

    @staticmethod
    def number(of, thing):
        return of.setdefault(thing, len(of))

    def text(self, text):
        return self.number(self.texts, text)

    def frame(self, frame):
        unnamed = _size(frame, "unnamed")
        line, module = _size(frame, "line"), _size(frame, "module", _UINT64)
        return (self.text("" if unnamed & 2 else _text(frame, "name")), self.text("" if unnamed & 1 else _text(frame, "filename")),
                line if line <= _UINT32 else 0, _word(frame, "address"), module if module < _UINT32 else -1)

    def stack(self, row):
        frames = row.get("frames")
        if not frames:
            return -1
        number = self.stack_numbers.get(id(frames))
        if number is None:
            stack = tuple(self.frame(frame) for frame in _rows(row, "frames", "filename"))
            number = self.stack_numbers[id(frames)] = self.number(self.stacks, stack)
        return number

    def write(self, out):
        frames = _Table("function", "file", "line", "address", "module")
        for stack in self.stacks:
            for function, file, line, address, module in stack:
                frames.add(function, file, line, hex(address), module)
        whole = {
            "format": "lade-snapshot", "version": 1, "time_ns": str(self.time_ns), "process_id": self.process_id,
            "streams": [hex(stream) for stream in self.streams],
            "pools": [[hex(half) for half in pool] for pool in self.pools],
            "texts": list(self.texts), "modules": self.modules,
            "stacks": {"frame_count": [len(stack) for stack in self.stacks]}, "frames": frames,
        }
        out.write(json.dumps(whole)[:-1] + ',"parts":[' + ",".join(self.parts) + "]}\n")


class _Part:
    """One part: a device allocator, a pinned pool or a pipeline."""

    def __init__(self, snapshot, facts):
        self.of, self.facts = snapshot, facts
        self.segments = _Table("address", "bytes", "block_count", "stream", "pool", "stack", "flags", "numa_node")
        self.blocks = _Table("bytes", "requested_bytes", "state", "stack", "note")
        self.events = _Table("action", "time_ns", "address", "bytes", "stream", "pool", "stack", "label", "scopes")

    def segment(self, row, size_key, pool, flags, node, block_count):
        address = _word(row, "address")
        self.segments.add(hex(address), _size(row, size_key), block_count,
                          self.of.number(self.of.streams, _word(row, "stream")), self.of.number(self.of.pools, pool),
                          self.of.stack(row), flags, node)
        return address

    def block(self, row, state, at):
        """The block at this address; the address after it."""
        if _word(row, "address", at) != at:
            raise Refused(f"a block at {hex(_word(row, 'address'))} does not begin where the block before it ends, {hex(at)}")
        size, stack = _size(row, "size"), self.of.stack(row)
        past = _take(row, "history", (list, ), [], "a list")[:1]  # of PyTorch 2.0; the first element is the last allocation
        past = past[0] if past and type(past[0]) is dict and "real_size" in past[0] else {}
        requested = _size(row, "requested_size", _size(past, "real_size", size))
        self.blocks.add(size, requested if state != 0 else 0, state, self.of.stack(past) if stack < 0 else stack,
                        self.of.text(_text(row, "user_metadata")))
        return at + size

    def device_segment(self, row):
        kind = _text(row, "segment_type", "small")
        if kind not in ("large", "small"):
            raise Refused("key 'segment_type' is another text; expected large or small")
        blocks = _rows(row, "blocks", "size", "state")
        flags = (kind == "large") + 2 * _flag(row, "is_expandable")
        at = self.segment(row, "total_size", _pool(row, "segment_pool_id"), flags, -1, len(blocks))
        for block in blocks:
            state = _STATES.get(_text(block, "state"))
            if state is None:
                raise Refused("key 'state' is another text; expected active_allocated, active_pending_free or inactive")
            at = self.block(block, state, at)

    def host_block(self, row, at):
        return self.block(row, 1 if _flag(row, "allocated") else 2 if _flag(row, "active") else 0, at)

    def event(self, row):
        name, label = _text(row, "action"), _text(row, "user_metadata")
        self.events.add(_ACTIONS.get(name, _NOTE), 1000 * _size(row, "time_us", 0, _UINT64 // 1000),
                        hex(_word(row, "addr", _word(row, "device_free"))), _size(row, "size"),
                        self.of.number(self.of.streams, _word(row, "stream")),
                        self.of.number(self.of.pools, _pool(row, "pool_id")), self.of.stack(row),
                        self.of.text(label if label or name in _ACTIONS else name), self.of.text(_text(row, "compile_context")))

    def end(self, settings):
        times = self.events.pop("time_ns")
        events = {"first_time_ns": str(times[0] if times else 0), **self.events,
                  "elapsed_ns": [now - before for before, now in zip(times[:1] + times, times)]}
        tables = {**self.facts, "segments": self.segments, "blocks": self.blocks, "events": events}
        self.of.parts.append(json.dumps(tables)[:-1] + ',"settings":' + _settings(settings) + "}")


def _facts(kind, device, name, history, time_ns, row=None):
    row = {} if row is None else row
    counters = {key: value for key, value in _take(row, "counters", (dict, ), {}, "a map").items()
                if type(key) is str and type(value) is int}
    return {"kind": kind, "device": device, "name": name, "history": history, "time_ns": str(time_ns), "counters": counters,
            **{key: _size(row, key) for key in ("skew_ns", "capacity_bytes", "max_entries", "lost_count")}}


# --- files ----------------------------------------------------------------------------------------------------------------


def _traces(top):
    traces = _take(top, "device_traces", (list, ), [], "a list")
    if len(traces) > _MOST_DEVICE + 1:
        raise Refused("device_traces has more than 1,024 lists")
    return [_rows({"device_traces": trace}, "device_traces", "action") for trace in traces]


def _own_part(snapshot, row, segments, hosts, traces, host_trace):
    kind = _text(row, "kind")
    device = _take(row, "device", (int, ), 0, "an integer")
    if kind not in ("device", "pinned", "pipeline") or not -1 <= device <= _MOST_DEVICE:
        raise Refused("lade: a part's kind is none of device, pinned, pipeline, or its device is not from -1 to 1023")
    part = _Part(snapshot, _facts(kind, device, _text(row, "name"), _flag(row, "history_on"), _size(row, "time_ns"), row))
    trace = host_trace if kind != "device" else traces[max(device, 0)] if device < len(traces) else iter(())
    if kind == "device":
        for segment in _next_rows(segments, _size(row, "segment_count", 0, sys.maxsize), "segments"):
            if _size(segment, "device") != max(device, 0):
                raise Refused("lade: a segment of another device is where a part's own should be")
            part.device_segment(segment)
    else:
        for segment in _rows(row, "pinned_segments", "block_count"):
            blocks = _next_rows(hosts, _size(segment, "block_count", 0, sys.maxsize), "host_segments")
            node = _take(segment, "numa_node", (int, ), -1, "a NUMA node or -1")
            at = part.segment(segment, "bytes", _pool(segment, "segment_pool_id"), 0, node, len(blocks))
            for block in blocks:
                at = part.host_block(block, at)
    for event in _next_rows(trace, _size(row, "event_count", 0, sys.maxsize), "events"):
        part.event(event)
    part.end(_take(row, "settings", (dict, ), {}, "a map"))


def _own(snapshot, own, segments, hosts, traces, host_trace):
    if own.get("version") != 1:
        raise Refused("lade: another version; this reads version 1")
    snapshot.time_ns, snapshot.process_id = _size(own, "time_ns"), _size(own, "process_id")
    for module in _rows(own, "modules"):
        snapshot.modules.add(snapshot.text(_text(module, "path")), snapshot.text(_text(module, "build_id")),
                             hex(_word(module, "base")), _size(module, "bytes"))
    lists = iter(segments), iter(hosts), [iter(trace) for trace in traces], iter(host_trace)
    for part in _rows(own, "parts", "kind"):
        _own_part(snapshot, part, *lists)


def _note(note):
    """An event of what PyTorch has in external_annotations, where a program may add values of any type."""
    words = [note[key] for key in ("name", "stage") if type(note.get(key)) is str and note[key] != ""]
    return {"action": "user_defined", "time_us": note["time_us"], "user_metadata": " ".join(words)}


def _with_notes(trace, notes):
    """Events, each after the notes up to its time."""
    notes = sorted(notes, key=lambda note: _size(note, "time_us"))
    at = 0
    for event in trace:
        while at < len(notes) and notes[at]["time_us"] <= _size(event, "time_us"):
            yield _note(notes[at])
            at += 1
        yield event
    yield from map(_note, notes[at:])


def _others(snapshot, top, segments, hosts, traces, host_trace):
    """A part for each device that has rows, and one for pinned memory."""
    settings = _take(top, "allocator_settings", (dict, ), {}, "a map")
    notes = _rows(top, "external_annotations", "time_us")
    events = itertools.chain(*traces, host_trace)
    snapshot.time_ns = time_ns = 1000 * max((_size(event, "time_us") for event in events), default=0)
    own = {}
    for segment in segments:
        own.setdefault(_size(segment, "device", 0, _MOST_DEVICE), []).append(segment)
    devices = {number for number, trace in enumerate(traces) if trace} | set(own)
    for device in sorted(devices) if devices or hosts or host_trace else [0]:
        trace = traces[device] if device < len(traces) else []
        limits = {"max_entries": _size(settings, "trace_alloc_max_entries"), "lost_count": _size(settings, "trace_alloc_overflowed")}
        part = _Part(snapshot, _facts("device", device, f"device {device}", bool(trace), time_ns, limits))
        for segment in sorted(own.get(device, []), key=lambda row: _word(row, "address")):
            part.device_segment(segment)
        for event in _with_notes(trace, [note for note in notes if _size(note, "device") == device]):
            part.event(event)
        part.end(settings)
        settings = {}
    if hosts or host_trace:
        part = _Part(snapshot, _facts("pinned", -1, "pinned 0", bool(host_trace), time_ns))
        for host in sorted(hosts, key=lambda row: _word(row, "address")):  # PyTorch splits no pinned segment
            part.host_block(host, part.segment(host, "size", _pool(host, "segment_pool_id", "pool_id"), 0, -1, 1))
        for event in host_trace:
            part.event(event)
        part.end({})


def convert(file: BinaryIO, out: TextIO) -> None:
    """
    Read a snapshot out of a pickle and write it as lade's JSON.

    Parameters
    ----------
    file
        A binary file that is open for reading: a pickle of ``torch.cuda.memory._snapshot()``, of PyTorch 2.0 to 2.15, or of lade.
    out
        A text file that is open for writing.

    Raises
    ------
    Refused
        If it is no snapshot, if it is broken, or if it names a class or a function.
    """
    try:
        top = _Plain(file).load()
    except (MemoryError, Refused):
        raise
    except Exception as error:  # the modules of Python raise almost anything for a broken pickle
        raise Refused(f"no pickle that can be read: {type(error).__name__}: {error}") from error
    top = {"segments": top} if type(top) is list else top
    if type(top) is not dict or not ("segments" in top or "device_traces" in top):
        raise Refused("is no snapshot: it has neither 'segments' nor 'device_traces'")
    snapshot = _Snapshot()
    lists = (_rows(top, "segments", "total_size"), _rows(top, "host_segments", "size", "allocated"), _traces(top),
             _rows(top, "host_traces", "action"))
    if "lade" in top:
        _own(snapshot, _take(top, "lade", (dict, ), {}, "a map"), *lists)
    else:
        _others(snapshot, top, *lists)
    snapshot.write(out)


def _main():
    """Writes the JSON; after a failure, its reason alone."""
    if len(sys.argv) != 2:
        sys.exit("usage: python3 -m lade.pickles FILE >OUT.json")
    try:
        with open(sys.argv[1], "rb") as file:
            most = _LEAST_MEMORY + _MEMORY_FACTOR * os.fstat(file.fileno()).st_size
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            convert(file, sys.stdout)
    except MemoryError:
        print(f"takes more memory than {_MEMORY_FACTOR} times its size and 256 MiB")
        sys.exit(_TOO_LARGE)
    except (OSError, Refused) as error:
        print(f"{error}"[:400])
        sys.exit(_BROKEN)


if __name__ == "__main__":
    _main()
