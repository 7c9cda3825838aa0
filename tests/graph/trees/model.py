# SPDX-License-Identifier: Apache-2.0
"""An independent model of graph trees: a trace in, its report out.

Written from the rules of the format alone, without a look at the library. The comments name the rule, by section and number.
usage: model.py TRACE
"""

import json
import re
import sys

from pool import Pool

NAME = re.compile(r"[A-Za-z0-9_]{1,32}\Z", re.ASCII)
SIZE_MAX = 1 << 28
OPS = ("callback", "instantiate", "checkpoint_get", "checkpoint_set", "copy", "launch")
DEFAULTS = {"warmup": 1, "rerecord": 1, "max_nodes": 0, "max_rerecords": 128}


class TraceError(Exception):
    def __init__(self, line, what):
        super().__init__(f"{line}: {what}")
        self.line = line


class Failed(Exception):
    """A run that ends in an error."""

    def __init__(self, status):
        super().__init__(status)
        self.status = status


# ---- Values ---------------------------------------------------------------------------------------------------------


def fnv(*words):
    value = 14695981039346656037
    for word in words:
        for byte in word.to_bytes(8, "little"):
            value = ((value ^ byte) * 1099511628211) % (1 << 64)
    return value


# ---- Objects --------------------------------------------------------------------------------------------------------


class Memory:
    """One of the program's."""

    def __init__(self, number, size):
        self.size = size
        self.value = fnv(number)


class Storage:
    def __init__(self, size, value, place=None, owns=False):
        self.size = size
        self.value = value
        self.place = place  # (segment, offset); None: outside the pool
        self.owns = owns  # it has a block handed out
        self.lost = False
        self.handles = []

    def counts(self):
        return sum(handle.count for handle in self.handles)

    def alive(self):
        return not self.lost and self.counts() > 0


class Handle:
    def __init__(self, name, storage):
        self.name = name
        self.storage = storage
        self.count = 1
        storage.handles.append(self)


class Argument:
    """One input of a run: what is given, and how it takes part."""

    def __init__(self, given, taken):
        self.given = given  # Memory or Handle
        self.taken = taken
        self.held = taken  # taken and not given up yet
        self.copy = None  # of a carried input: a Storage outside the pool
        self.kind = None  # its class
        self.pooled = None  # of a copied input in a recording: place of its block

    def memory(self):
        """What the call reads and writes: Memory or Storage."""
        if self.copy is not None:
            return self.copy
        return self.given.storage if isinstance(self.given, Handle) else self.given

    def size(self):
        return self.memory().size


class Function:
    def __init__(self, number, name, mode, flags):
        self.number, self.name, self.mode, self.flags = number, name, mode, flags
        self.body = []  # ("alloc", L, bytes, times key), ("free", L), ("drop", I), ("mutate", I)
        self.outputs = []  # ("local", L), ("input", I), ("integer", N)


class Node:
    def __init__(self, parent, instance):
        self.parent = parent
        self.instance = instance
        self.id = None
        self.row = []  # by output: Storage or None
        self.children = []
        self.record = None  # of graph nodes
        self.listed = False
        self.used = 0


class Record:
    def __init__(self):
        self.inputs = []  # (class, size, address)
        self.outputs = []  # (kind, index or place)
        self.dead_before = self.dead_after = self.after = None
        self.blocks = None  # the checkpoint


def listed(positions):
    return [list(position) for position in positions]


# ---- The tree -------------------------------------------------------------------------------------------------------


class Tree:
    def __init__(self, options):
        self.options = options
        self.pool = Pool()
        self.handles = []  # in order of creation
        self.memories = {}
        self.state = "NONE"
        self.current = None
        self.marks = self.autos = 0
        self.stored = (0, 0)
        self.pending = False
        self.roots = []
        self.nodes = []  # graph nodes in lists
        self.graph_count = self.warmup_count = 0
        self.warm = set()
        self.rerecords = {}
        self.clock = 0

    # ---- Terms (2) ----

    def path(self):
        nodes, node = [], self.current
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def positions(self):
        """[depth, output] -> storage, of all rows of the path."""
        return {
            (depth, output): storage
            for depth, node in enumerate(self.path())
            for output, storage in enumerate(node.row)
            if storage is not None
        }

    def alive(self):
        return {position: storage for position, storage in self.positions().items() if storage.alive()}

    def is_managed(self, argument):
        if argument.copy is not None or not isinstance(argument.given, Handle):
            return False
        return any(storage is argument.given.storage for storage in self.positions().values())

    def classify(self, call):
        for flag, argument in zip(call.function.flags, call.arguments):
            if self.is_managed(argument):
                argument.kind = "managed"
            elif "s" in flag and argument.copy is None:
                argument.kind = "static"
            else:
                argument.kind = "copied"

    def end_reason(self, call):
        """Why the path may end; None where it may not."""
        if self.current is None:
            return None
        for flag, argument in zip(call.function.flags, call.arguments):
            if "m" in flag and self.is_managed(argument):
                return None
        if self.marks != self.stored[0] or (self.autos != self.stored[1] and not self.pending):
            return "boundary"
        return None if self.alive() else "dead"

    def end(self, call, reason):
        for index, argument in enumerate(call.arguments):
            if self.is_managed(argument):
                call.carried.append(index)
        for index in call.carried:
            argument = call.arguments[index]
            argument.copy = Storage(argument.given.storage.size, argument.given.storage.value)
        for storage in dict.fromkeys(self.alive().values()):
            self.block_free(storage)
            storage.lost = True
        self.state, self.current, self.pending = "NONE", None, False
        call.ended = reason
        self.classify(call)

    def block_free(self, storage):
        if storage.owns:
            self.pool.free(storage.place)
            storage.owns = False

    def restore(self):
        """Sets the checkpoint of the current node; what died since is freed."""
        saved = self.current.record.blocks
        blocks = {}
        for storage in self.alive().values():
            blocks[storage.place] = saved[storage.place]
            storage.owns = True
        self.pool.restore(blocks)

    def count_add(self, handle, by):
        handle.count += by
        if not handle.storage.lost and handle.storage.counts() == 0:
            self.block_free(handle.storage)

    def give_up(self, argument):
        if argument.held:
            argument.held = False
            self.count_add(argument.given, -1)

    # ---- Undo ----

    def save(self, call):
        storages = {handle.storage for handle in self.handles}
        return {
            "tree": (self.state, self.current, self.stored, self.pending),
            "blocks": dict(self.pool.blocks),
            "row": [(node, node.row) for node in self.path()],
            "storages": [(storage, storage.owns, storage.lost, storage.value) for storage in storages],
            "counts": [(handle, handle.count) for handle in self.handles],
            "memories": [(memory, memory.value) for memory in self.memories.values()],
            "call": (call.ended, list(call.carried)),
            "held": [(argument, argument.held) for argument in call.arguments],
        }

    def undo(self, call, saved):
        self.state, self.current, self.stored, self.pending = saved["tree"]
        self.pool.restore(saved["blocks"])
        for node, row in saved["row"]:
            node.row = row
        for storage, owns, lost, value in saved["storages"]:
            storage.owns, storage.lost, storage.value = owns, lost, value
        for handle, count in saved["counts"]:
            handle.count = count
        for memory, value in saved["memories"]:
            memory.value = value
        call.ended, call.carried = saved["call"]
        for argument, held in saved["held"]:
            argument.held = held
        call.restored = False

    # ---- A run (3) ----

    def run(self, call):
        """The rules 1 to 8. Raises Failed."""
        self.clock += 1
        if any(isinstance(a.given, Handle) and a.given.storage.lost for a in call.arguments):
            raise Failed("LADE_ERR_OVERWRITTEN")
        call.before = self.save(call)
        self.classify(call)
        if call.auto:  # 1
            self.autos += 1
        cold = self.options["warmup"] == 1 and call.instance not in self.warm
        if self.state in ("RECORDING", "WARMUP") or (self.state == "EXECUTION" and cold):  # 2
            reason = self.end_reason(call)
            if reason:
                self.end(call, reason)
        if any("m" in f and "s" not in f and a.kind != "managed" for f, a in zip(call.function.flags, call.arguments)):
            return self.eager(call, "mutated")  # 3
        if cold or self.state == "WARMUP":  # 4
            return self.warmup(call)
        moved = False
        if self.state != "RECORDING":  # 5
            node = self.look(call)
            if node is None and self.state == "EXECUTION":
                reason = self.end_reason(call)
                if reason:
                    self.end(call, reason)
                    node = self.look(call)
            if node is not None:
                return self.replay(call, node)
            moved = any(why in ("managed", "static") for why in call.why)
        count_key = (self.current, call.instance)  # 6
        if moved and self.rerecords.get(count_key, 0) >= self.options["max_rerecords"]:
            return self.eager(call, "limit")
        if self.options["max_nodes"] and len(self.nodes) >= self.options["max_nodes"]:
            if not self.evict():
                return self.eager(call, "limit")
        if moved:
            self.rerecords[count_key] = self.rerecords.get(count_key, 0) + 1
        return self.record(call)  # 7

    def done(self, call, did):  # 8
        call.did = did
        if did != "eager":
            self.stored = (self.marks, self.autos)
        if call.function.mode == "forward":
            self.pending = True
        elif call.function.mode == "backward":
            self.pending = False

    def look(self, call):
        """The first candidate that matches; reasons of those before it in call.why."""
        call.why = []
        for node in self.current.children if self.current else self.roots:
            if node.instance != call.instance:
                continue
            why = self.mismatch(call, node.record)
            if why is None:
                if any(
                    kind == "static" and argument.memory() is not address
                    for (kind, _, address), argument in zip(node.record.inputs, call.arguments)
                ):
                    raise Failed("LADE_ERR_INVALID_ARGUMENT")  # rerecord:0
                return node
            call.why.append(why)
        return None

    def mismatch(self, call, record):
        pairs = list(zip(record.inputs, call.arguments))
        for (kind, size, _), argument in pairs:
            if argument.size() != size or (argument.kind == "copied") != (kind == "copied"):
                return "form"
        for (kind, _, address), argument in pairs:
            if (argument.kind == "managed") != (kind == "managed"):
                return "managed"
            if kind == "managed" and argument.given.storage.place != address:
                return "managed"
        if self.options["rerecord"]:
            for (kind, _, address), argument in pairs:
                if kind == "static" and argument.memory() is not address:
                    return "static"
        alive = self.alive()
        if any(position in alive for position in record.dead_before):
            return "dead_before"
        for position in record.dead_after:
            if position in alive:
                storage = alive[position]
                takes = sum(
                    1 for a in call.arguments if a.taken and isinstance(a.given, Handle) and a.given.storage is storage
                )
                if storage.counts() > takes:
                    return "dead_after"
        return None

    def evict(self):
        path = self.path()
        leaves = [node for node in self.nodes if not node.children and node not in path]
        if not leaves:
            return False
        node = min(leaves, key=lambda leaf: leaf.used)
        (node.parent.children if node.parent else self.roots).remove(node)
        self.nodes.remove(node)
        node.listed = False
        return True

    # ---- Bodies ----

    def body(self, call, action):
        """The body: memory in `call.locals` (L -> [place or None, size, value, freed]); drops and mutations."""
        call.locals = {}
        call.dropped = set()
        for word, *rest in call.function.body:
            if word == "alloc":
                number, size, times_key = rest
                size *= call.key if times_key else 1
                value = fnv(call.function.number, call.key, number, *self.body_values(call))
                place = self.pool.alloc(size) if action in ("record", "warmup") else None
                call.locals[number] = [place, size, value, False]
            elif word == "free":
                self.local_free(call.locals[rest[0]])
            elif word == "drop":
                self.drop(call, rest[0], action)
            else:
                memory = call.arguments[rest[0]].memory()
                memory.value = fnv(call.function.number, call.key, (1 << 32) + rest[0], memory.value)

    def body_values(self, call):
        return [a.memory().value for index, a in enumerate(call.arguments) if index not in call.dropped]

    def local_free(self, local):
        local[3] = True
        if local[0] is not None:
            self.pool.free(local[0])

    def drop(self, call, index, action):
        argument = call.arguments[index]
        call.dropped.add(index)
        if action == "record":
            if argument.pooled is not None:
                self.pool.free(argument.pooled)
            elif argument.kind == "managed":
                self.give_up(argument)
        elif action in ("warmup", "eager"):
            self.give_up(argument)

    def locals_left(self, call):
        used = {what for word, what in call.function.outputs if word == "local"}
        return [local for number, local in call.locals.items() if number not in used and not local[3]]

    def handle_add(self, call, index, storage):
        handle = Handle(f"{call.name}.{index}", storage)
        self.handles.append(handle)
        return handle

    def output(self, call, kind, what, at=None):
        """`what`: Handle, Memory, or None for an integer."""
        call.outputs.append({"kind": kind, "at": list(at) if at is not None else None})
        call.results.append(what)

    def output_again(self, call, index, argument):
        """An output that is an input where it lies: a memory, or another handle."""
        if isinstance(argument.memory(), Memory):
            self.output(call, "input", argument.memory())
            return None
        storage = argument.memory()
        self.output(call, "input", self.handle_add(call, index, storage), storage.place)
        return storage

    # ---- Actions ----

    def eager(self, call, why):
        call.why = [why]
        call.classes = []
        self.body(call, "eager")
        if "callback" in call.faults:
            raise Failed("LADE_ERR_CALLBACK")
        storages = {}
        for index, (word, what) in enumerate(call.function.outputs):
            if word == "integer":
                self.output(call, "integer", None)
            elif word == "input":
                self.output_again(call, index, call.arguments[what])
            else:
                if what not in storages:
                    _, size, value, _ = call.locals[what]
                    storages[what] = Storage(size, value)
                self.output(call, "plain", self.handle_add(call, index, storages[what]))
        for argument in call.arguments:
            self.give_up(argument)
        self.done(call, "eager")

    def warmup(self, call):
        if not self.restore_for(call):
            return self.eager(call, "checkpoint")
        call.classes = [argument.kind for argument in call.arguments]
        self.body(call, "warmup")
        if "callback" in call.faults:
            for number, local in call.locals.items():
                if not local[3]:
                    self.local_free(local)
            if call.restored:
                for storage in self.alive().values():
                    self.block_free(storage)
                self.state = "EXECUTION"
            raise Failed("LADE_ERR_CALLBACK")
        node = Node(self.current, call.instance)
        self.outputs_make(call, node, "warmup")
        self.warm.add(call.instance)
        self.warmup_current(node)
        self.done(call, "warmup")
        return None

    def warmup_current(self, node):
        self.warmup_count += 1
        node.id = -self.warmup_count
        self.current, self.state = node, "WARMUP"

    def restore_for(self, call):
        """Before a record or warm-up; False: it fails."""
        call.restored = False
        if self.state == "EXECUTION":
            if "checkpoint_set" in call.faults:
                return False
            self.restore()
            call.restored = True
        return True

    def outputs_make(self, call, node, action):
        """Outputs of a record or warm-up, then what is freed and given up. Returns what a recording keeps of the outputs."""
        kept = []
        owners = {}  # ("local", L) or ("input", I) -> (output, storage)
        for index, (word, what) in enumerate(call.function.outputs):
            argument = call.arguments[what] if word == "input" else None
            if word == "integer":
                self.output(call, "integer", None)
                node.row.append(None)
                kept.append(("integer", None))
            elif argument is not None and argument.kind == "managed":
                storage = argument.given.storage
                self.output(call, "prior", self.handle_add(call, index, storage), storage.place)
                node.row.append(storage)
                kept.append(("prior", what))
            elif argument is not None and (argument.kind == "static" or action == "warmup"):
                self.output_again(call, index, argument)
                node.row.append(None)
                kept.append(("input", what))
            elif (word, what) in owners:
                first, storage = owners[word, what]
                self.output(call, "same", self.handle_add(call, index, storage), storage.place)
                node.row.append(storage)
                kept.append(("same", first))
            else:
                if word == "local":
                    place, size, value, _ = call.locals[what]
                else:
                    place, size, value = argument.pooled, argument.size(), argument.memory().value
                storage = Storage(size, value, place, True)
                owners[word, what] = (index, storage)
                self.output(call, "new", self.handle_add(call, index, storage), place)
                node.row.append(storage)
                kept.append(("new", place))
        for index, argument in enumerate(call.arguments):
            if index in call.dropped:
                continue
            if argument.pooled is not None and ("input", index) not in owners:
                self.pool.free(argument.pooled)
            if argument.kind == "managed":
                self.give_up(argument)
        for local in self.locals_left(call):
            self.local_free(local)
        for argument in call.arguments:
            self.give_up(argument)
        return kept

    def record(self, call):
        after_end = self.save(call)
        if not self.restore_for(call):
            return self.eager(call, "checkpoint")
        call.classes = [argument.kind for argument in call.arguments]
        before = self.alive()
        node = Node(self.current, call.instance)
        record = node.record = Record()
        record.dead_before = [p for p in self.current.record.after if p not in before] if self.current else []
        depth = len(self.path())
        for argument in call.arguments:
            if argument.kind == "copied":
                argument.pooled = self.pool.alloc(argument.size())
        for argument in call.arguments:
            if argument.kind == "copied":
                address = None
            else:
                address = argument.given.storage.place if argument.kind == "managed" else argument.memory()
            record.inputs.append((argument.kind, argument.size(), address))
        handle_count = len(self.handles)
        self.body(call, "record")
        record.outputs = self.outputs_make(call, node, "record")
        now = self.alive()
        record.dead_after = [position for position in before if position not in now]
        record.after = sorted(
            [*now, *((depth, index) for index, storage in enumerate(node.row) if storage is not None and storage.alive())]
        )
        record.dead_after.sort()
        record.blocks = dict(self.pool.blocks)
        status, saved = self.record_fault(call, after_end)
        if status:
            del self.handles[handle_count:]
            self.undo(call, saved)
            for handle in self.handles:
                handle.storage.handles = [h for h in handle.storage.handles if h in self.handles]
            raise Failed(status)
        if "checkpoint_get" in call.faults:
            self.warmup_current(node)
        else:
            self.current, self.state = node, "RECORDING"
            node.id = self.graph_count
            self.graph_count += 1
            (node.parent.children if node.parent else self.roots).append(node)
            self.nodes.append(node)
            node.listed = True
            node.used = self.clock
        self.done(call, "record")
        return None

    def record_fault(self, call, after_end):
        """(status, what it goes back to) of the fault that strikes, by section 4."""
        if "callback" in call.faults:
            return "LADE_ERR_CALLBACK", call.before
        if "instantiate" in call.faults:
            return "LADE_ERR_DRIVER", call.before
        return self.work_fault(call), after_end

    def work_fault(self, call):
        copied = any(argument.kind == "copied" for argument in call.arguments)
        strikes = ("copy" in call.faults and copied) or "launch" in call.faults
        return "LADE_ERR_DRIVER" if strikes else None

    def replay(self, call, node):
        status = self.work_fault(call)
        if status:
            raise Failed(status)
        call.classes = [argument.kind for argument in call.arguments]
        # The copies of copied inputs: values as they are now.
        copies = {i: a.memory().value for i, a in enumerate(call.arguments) if a.kind == "copied"}
        self.body(call, "replay")
        node.row = []
        fresh = {}
        for index, ((kind, extra), (word, what)) in enumerate(zip(node.record.outputs, call.function.outputs)):
            storage = None
            if kind == "integer":
                self.output(call, "integer", None)
            elif kind == "input":
                self.output_again(call, index, call.arguments[what])
                call.outputs[-1]["at"] = None
            elif kind == "prior":
                storage = call.arguments[what].given.storage
                self.output(call, "prior", self.handle_add(call, index, storage), storage.place)
            elif kind == "same":
                storage = fresh[extra]
                self.output(call, "same", self.handle_add(call, index, storage), storage.place)
            else:
                if word == "local":
                    _, size, value, _ = call.locals[what]
                else:
                    size, value = call.arguments[what].size(), copies[what]
                storage = fresh[index] = Storage(size, value, extra)
                self.output(call, "new", self.handle_add(call, index, storage), extra)
            node.row.append(storage)
        for argument in call.arguments:
            self.give_up(argument)
        self.current, self.state = node, "EXECUTION"
        node.used = self.clock
        self.done(call, "replay")

    # ---- What must hold ----

    def check(self):
        """The sentence on the pool at the end of section 2, and that no two storages alive share bytes."""
        alive = {storage for storage in self.alive().values()}
        if self.state in ("NONE", "EXECUTION"):
            assert not self.pool.blocks and not any(storage.owns for storage in alive)
        else:
            assert set(self.pool.blocks) == {storage.place for storage in alive}
            assert all(storage.owns for storage in alive)
        assert len({storage.place for storage in alive}) == len(alive), "two storages at one place"
        pooled = {handle.storage for handle in self.handles if handle.storage.place and handle.storage.alive()}
        assert pooled == alive, "a storage in the pool that no row has"
        self.pool.check()


class Call:
    def __init__(self, name, function, key, auto, arguments, faults):
        self.name, self.function, self.key, self.auto = name, function, key, auto
        self.arguments, self.faults = arguments, faults
        self.instance = (function.name, key)
        self.why, self.carried, self.classes, self.outputs, self.results = [], [], [], [], []
        self.ended = None
        self.restored = False
        self.did = "error"


# ---- The file (1) ---------------------------------------------------------------------------------------------------


class Reader:
    def __init__(self, text):
        self.lines = text.split("\n")
        if self.lines and self.lines[-1] == "":
            self.lines.pop()
        self.number = 0
        self.tree = None
        self.functions = {}
        self.runs = {}  # name -> list of Handle, Memory, None
        self.faults = set()
        self.entries = []
        self.function = None  # being read
        self.counts = {"memory": 0, "function": 0}

    def refuse(self, what):
        raise TraceError(self.number, what)

    def read(self):
        for line in self.lines:
            self.feed(line)
        return self.finish()

    def feed(self, line):
        """One line more. A line that is refused changes nothing."""
        self.number += 1
        try:
            words = re.split(r"[ \t]+", line.split("#", 1)[0].strip(" \t"))
            if "\0" in line:
                self.refuse("a zero byte")
            if self.number == 1:
                if words != ["lade-trees", "1"]:
                    self.refuse("the first line is not \"lade-trees 1\"")
            elif words == [""]:
                pass
            elif self.function is not None:
                self.body_line(words)
            else:
                self.line(words)
        except TraceError:
            self.number -= 1
            raise

    def finish(self):
        if self.number == 0:
            raise TraceError(1, "the first line is not \"lade-trees 1\"")
        if self.function is not None:
            self.refuse("\"end\" is missing")
        return {"version": 1, "entries": self.entries}

    # ---- Words ----

    def want(self, condition, what):
        if not condition:
            self.refuse(what)

    def fields(self, words, count):
        self.want(len(words) - 1 == count, "wrong number of fields")

    def text_number(self, text, least=0, most=(1 << 64) - 1):
        self.want(re.fullmatch(r"[0-9]+", text, re.ASCII), "malformed number")
        value = int(text)
        self.want(least <= value <= most, "value out of range")
        return value

    def name(self, text):
        self.want(NAME.match(text), "malformed name")
        return text

    def line(self, words):
        known = {"tree", "memory", "function", "run", "release", "retain", "step", "backward_done", "fail", "read", "snapshot"}
        self.want(words[0] in known, "unknown operation")
        if self.tree is None:
            options = dict(DEFAULTS)
            if words[0] == "tree":
                self.options(words, options)
            self.tree = Tree(options)
            if words[0] == "tree":
                return
        self.want(words[0] != "tree", "tree: not the first line")
        getattr(self, "line_" + words[0])(words)

    def options(self, words, options):
        self.fields(words, 1)
        seen = set()
        for pair in words[1].split(","):
            key, colon, value = pair.partition(":")
            self.want(colon and key in DEFAULTS and key not in seen, "malformed setting")
            seen.add(key)
            options[key] = self.text_number(value, 0, 1 if key in ("warmup", "rerecord") else (1 << 64) - 1)

    def line_memory(self, words):
        self.fields(words, 2)
        name = self.name(words[1])
        self.want(name not in self.tree.memories, "memory a second time")
        size = self.text_number(words[2], 8, SIZE_MAX)
        self.tree.memories[name] = Memory(self.counts["memory"], size)
        self.counts["memory"] += 1

    def line_function(self, words):
        self.want(len(words) >= 3, "wrong number of fields")
        name = self.name(words[1])
        self.want(name not in self.functions, "function a second time")
        self.want(words[2] in ("forward", "backward", "inference"), "unknown mode")
        flags = words[3:]
        for flag in flags:
            self.want(flag in ("-", "s", "m", "sm"), "unknown flag")
        self.function = Function(self.counts["function"], name, words[2], flags)
        self.counts["function"] += 1
        self.locals = {}  # L -> freed
        self.drops = set()

    def body_line(self, words):
        function = self.function
        self.want(words[0] in ("alloc", "free", "drop", "mutate", "out", "end"), "unknown operation")
        self.want(words[0] in ("out", "end") or not function.outputs, "a statement after \"out\"")
        if words[0] == "alloc":
            self.fields(words, 2)
            number = self.text_number(words[1])
            self.want(number not in self.locals, "local a second time")
            times_key = words[2].endswith("*")
            size = self.text_number(words[2][:-1] if times_key else words[2], 8, SIZE_MAX)
            self.locals[number] = False
            function.body.append(("alloc", number, size, times_key))
        elif words[0] == "free":
            self.fields(words, 1)
            number = self.text_number(words[1])
            self.want(self.locals.get(number) is False, "no such local")
            self.locals[number] = True
            function.body.append(("free", number))
        elif words[0] in ("drop", "mutate"):
            self.fields(words, 1)
            index = self.input_index(words[1])
            if words[0] == "drop":
                self.drops.add(index)
            else:
                self.want("m" in function.flags[index], "input is not flagged m")
            function.body.append((words[0], index))
        elif words[0] == "out":
            self.fields(words, 2)
            if words[1] == "local":
                what = self.text_number(words[2])
                self.want(self.locals.get(what) is False, "no such local")
            elif words[1] == "input":
                what = self.input_index(words[2])
            else:
                self.want(words[1] == "integer", "unknown output")
                what = self.text_number(words[2])
            function.outputs.append((words[1], what))
        else:
            self.fields(words, 0)
            self.functions[function.name] = function
            self.function = None

    def input_index(self, text):
        index = self.text_number(text)
        self.want(index < len(self.function.flags) and index not in self.drops, "no such input")
        return index

    # ---- Handles ----

    def output(self, text):
        """What `R.O` is: Handle, Memory, or None for an integer."""
        run, dot, output = text.partition(".")
        self.want(dot, "not an output")
        self.name(run)
        index = self.text_number(output)
        self.want(run in self.runs and index < len(self.runs[run]), "unknown output")
        return self.runs[run][index]

    def counted(self, text):
        what = self.output(text)
        self.want(isinstance(what, Handle), "no handle")
        self.want(what.count > 0, "count 0")
        return what

    def line_release(self, words):
        self.fields(words, 1)
        self.tree.count_add(self.counted(words[1]), -1)

    def line_retain(self, words):
        self.fields(words, 1)
        self.tree.count_add(self.counted(words[1]), 1)

    def line_step(self, words):
        self.fields(words, 0)
        self.tree.marks += 1

    def line_backward_done(self, words):
        self.fields(words, 0)
        self.tree.pending = False

    def line_fail(self, words):
        self.fields(words, 1)
        self.want(words[1] in OPS, "unknown op")
        self.faults.add(words[1])

    def line_read(self, words):
        self.fields(words, 1)
        what = self.output(words[1])
        self.want(what is not None, "an integer")
        entry = {"line": self.number, "read": words[1], "state": "alive"}
        if isinstance(what, Memory):
            value = what.value
        else:
            self.want(what.count > 0, "count 0")
            value = what.storage.value
            if what.storage.lost:
                entry["state"], value = "lost", None
        entry["value"] = None if value is None else f"{value:016x}"
        self.entries.append(entry)

    def line_snapshot(self, words):
        self.fields(words, 1)
        nodes = [
            {
                "id": node.id,
                "function": node.instance[0],
                "key": node.instance[1],
                "parent": None if node.parent is None else node.parent.id,
                "dead_before": listed(node.record.dead_before),
                "dead_after": listed(node.record.dead_after),
                "after": listed(node.record.after),
            }
            for node in sorted(self.tree.nodes, key=lambda node: node.id)
        ]
        segments = [size for size, _ in self.tree.pool.segments]
        self.entries.append({"line": self.number, "label": self.name(words[1]), "nodes": nodes, "segments": segments})

    # ---- Runs ----

    def line_run(self, words):
        self.want(len(words) >= 4, "wrong number of fields")
        name = self.name(words[1])
        self.want(name not in self.runs, "run a second time")
        self.name(words[2])
        self.want(words[2] in self.functions, "unknown function")
        function = self.functions[words[2]]
        key = self.text_number(words[3], 1, (1 << 32) - 1)
        rest = words[4:]
        auto = rest[:1] == ["auto"]
        arguments = [self.argument(text) for text in rest[auto:]]
        self.want(len(arguments) == len(function.flags), "wrong number of inputs")
        self.arguments_check(function, arguments)
        for word, *what in function.body:
            if word == "alloc" and what[2]:
                self.want(what[1] * key <= SIZE_MAX, "size out of range")
        faults, self.faults = self.faults, set()
        self.run_do(Call(name, function, key, auto, arguments, faults))

    def argument(self, text):
        if "." not in text:
            self.want(self.name(text) in self.tree.memories, "unknown memory")
            return Argument(self.tree.memories[text], False)
        taken = text.endswith("!")
        what = self.output(text[:-1] if taken else text)
        self.want(what is not None, "an integer")
        if isinstance(what, Handle):
            self.want(what.count > 0, "count 0")
        else:
            self.want(not taken, "a memory is taken")
        return Argument(what, taken)

    def arguments_check(self, function, arguments):
        for argument in arguments:
            if argument.taken:
                takes = sum(a.taken for a in arguments if a.given is argument.given)
                lent = any(not a.taken for a in arguments if a.given is argument.given)
                self.want(takes + lent <= argument.given.count, "taken more often than held")
        for index, flag in enumerate(function.flags):
            if "m" in flag:
                for other, argument in enumerate(arguments):
                    self.want(other == index or argument.memory() is not arguments[index].memory(), "mutated twice")

    def run_do(self, call):
        tree = self.tree
        lost_before = {handle for handle in tree.handles if handle.storage.lost}
        status = "LADE_OK"
        try:
            tree.run(call)
        except Failed as failed:
            status = failed.status
            call.why, call.classes, call.carried, call.outputs, call.results = [], [], [], [], []
            call.did, call.restored = "error", False
        tree.check()
        self.runs[call.name] = call.results
        self.entries.append(
            {
                "line": self.number,
                "run": call.name,
                "did": call.did,
                "status": status,
                "why": call.why,
                "ended": call.ended,
                "restored": call.restored,
                "carried": call.carried,
                "classes": call.classes,
                "node": tree.current.id if tree.current else None,
                "state": tree.state,
                "outputs": call.outputs,
                "lost": [
                    handle.name
                    for handle in tree.handles
                    if handle.storage.lost and handle not in lost_before and handle.count > 0
                ],
                "live": tree.pool.live(),
            }
        )


def report(text):
    """The report of a trace; TraceError."""
    return Reader(text).read()


def main():
    with open(sys.argv[1], encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        text = file.read()
    try:
        json.dump(report(text), sys.stdout)
        print()
    except TraceError as error:
        print(f"{sys.argv[1]}:{error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
