# SPDX-License-Identifier: Apache-2.0
"""lade.graphs on a software device: real bytes, moved by copies that are recorded.

Functions are made of copies: they turn rows around, pick rows of a table, or write rows into a cache.
"""

import collections
import contextlib
import copy
import gc
import json
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest

import lade
import lade.graphs

ROWS = 8


class World:
    """A device with what functions need."""

    def __init__(self, device, **options):
        self.device, self.stream = device, device.stream()
        self.allocator, self.pool = lade.DeviceAllocator(device), lade.PinnedPool(device)
        self.tree = lade.graphs.Tree(self.allocator, stream=self.stream, **options)
        self.calls = []

    def put(self, values):
        values = np.asarray(values, "f4")
        array, host = self.allocator.empty(values.shape, "float32", self.stream), self.pool.empty(values.shape, "float32")
        host.numpy()[...] = values
        lade.copy_blocks(self.device, array, host, range(len(values)), range(len(values)), self.stream)
        self.stream.synchronize()
        return array

    def move(self, to, source, to_rows, source_rows):
        """In a function: copies of rows on its stream."""
        lade.copy_blocks(self.device, to, source, to_rows, source_rows, lade.graphs.stream())

    def new(self, shape):
        return self.allocator.empty(shape, "float32", lade.graphs.stream())

    def flip(self, x):
        self.calls.append("flip")
        out = self.new(x.shape)
        self.move(out, x, range(len(x)), range(len(x))[::-1])
        return out

    def roll(self, x):
        self.calls.append("roll")
        out = self.new(x.shape)
        self.move(out, x, range(len(x)), [len(x) - 1, *range(len(x) - 1)])
        return out


@pytest.fixture
def world(device):
    return World(device)


def values(array):
    return np.from_dlpack(array).tolist()


ONE = [float(i) for i in range(ROWS)]


def test_a_function_is_warmed_up_recorded_and_replayed(world):
    flip = world.tree.function(world.flip)
    for i in range(6):
        x = world.put([each + i for each in ONE])
        out = flip(x)
        assert type(out) is lade.GraphArray and out.shape == (ROWS,) and out.dtype == "float32"
        assert values(out) == [each + i for each in ONE[::-1]]
        assert values(x) == [each + i for each in ONE]
    assert world.calls == ["flip", "flip"]
    stats = world.tree.stats()
    assert (stats["warmups"], stats["recordings"], stats["replays"], stats["eager_runs"]) == (1, 1, 4, 0)
    assert stats["copied_bytes"] == 5 * ROWS * 4


def test_without_warmups_the_first_call_records(device):
    world = World(device, warmups=0)
    assert values(world.tree.function(world.flip)(world.put(ONE))) == ONE[::-1]
    assert world.tree.stats()["recordings"] == 1


def test_each_form_has_recordings_of_its_own(world):
    def pick(x, rows, reverse=False, note=None):
        world.calls.append((rows, reverse))
        out = world.new((len(rows),))
        world.move(out, x, range(len(rows)), rows[::-1] if reverse else rows)
        return out

    run = world.tree.function(pick)
    x, short = world.put(ONE), world.put(ONE[:4])
    for _ in range(4):
        assert values(run(x, (1, 2))) == [1.0, 2.0]
        assert values(run(x, [1, 2])) == [1.0, 2.0]
        assert values(run(x, (1, 2), reverse=True)) == [2.0, 1.0]
        assert values(run(x, (1, 2), reverse=1)) == [2.0, 1.0]
        assert values(run(short, (1, 3), note="text")) == [1.0, 3.0]
    assert len(world.calls) == 10 and world.tree.stats()["recordings"] == 5


Pair = collections.namedtuple("Pair", "first second")


def test_arguments_and_results_nest(world):
    def both(pair, more):
        assert type(pair) is Pair and type(more["list"]) is list and more["none"] is None
        return {"a": world.flip(pair.first), "b": [world.flip(more["list"][0]), "text", None], "c": Pair(1, (2.5, b"x"))}

    run = world.tree.function(both)
    a, b = world.put(ONE), world.put(ONE[:3])
    for _ in range(4):
        out = run(Pair(a, 7), more={"list": [b], "none": None})
        assert values(out["a"]) == ONE[::-1] and values(out["b"][0]) == [2.0, 1.0, 0.0]
        assert out["b"][1:] == ["text", None] and out["c"] == Pair(1, (2.5, b"x"))
        del out
    assert world.tree.stats()["replays"] == 2


def test_an_array_without_elements_passes(world):
    def two(x, empty):
        return world.flip(x), empty, world.allocator.empty((0, 3), "float32", lade.graphs.stream())

    run = world.tree.function(two)
    x, empty = world.put(ONE), world.allocator.empty((0, 2), "float32", world.stream)
    for _ in range(3):
        out, same, fresh = run(x, empty)
        assert values(out) == ONE[::-1] and same.shape == (0, 2) and fresh.shape == (0, 3)


# ---- Outputs -------------------------------------------------------------------------------------------------------------


def test_an_output_that_outlives_its_step_says_so(world):
    flip = world.tree.function(world.flip, name="my flip")
    outs = []
    for i in range(4):
        outs.append(flip(world.put([each + i for each in ONE])))
        assert outs[-1].valid and not any(each.valid for each in outs[:-1])
        assert values(outs[-1]) == [each + i for each in ONE[::-1]]
    for out in outs[:-1]:
        for use in (values, flip, lambda each: each.__dlpack__(), lambda each: world.tree.record_stream(each, world.stream)):
            with pytest.raises(lade.OverwrittenError, match="output of my flip was overwritten.*copy what is to outlive its step"):
                use(out)
    assert values(outs[-1]) == [each + 3 for each in ONE[::-1]]


def test_outputs_of_a_step_stay_and_are_inputs_in_place(world):
    flip, roll = world.tree.function(world.flip), world.tree.function(world.roll)
    x = world.put(ONE)
    for _ in range(4):
        world.tree.step()
        a = flip(x)
        copied = world.tree.stats()["copied"]
        b = roll(a)
        c = flip(b)
        assert values(a) == ONE[::-1] and values(b) == [0.0, *ONE[:0:-1]] and values(c) == [*ONE[1:], 0.0]
        assert world.tree.stats()["copied"] == copied and world.tree.stats()["carried"] == 0
        del a, b, c
    stats = world.tree.stats()
    assert stats["recordings"] == 3 and stats["overwritten"] == 0


def test_the_last_steps_output_goes_into_the_next_step(world):
    flip = world.tree.function(world.flip)
    state = world.put(ONE)
    for i in range(7):
        world.tree.step()
        state = flip(state)
        assert values(state) == (ONE[::-1] if i % 2 == 0 else ONE)
    assert world.tree.stats()["carried"] > 0


def test_an_output_of_a_step_before_goes_into_a_function_that_is_cold_or_plain_python(world):
    flip, roll = world.tree.function(world.flip), world.tree.function(world.roll)

    def write(x):
        world.move(x, x, [1], [0])
        return x, world.flip(x)

    plain = world.tree.function(write, mutates=["x"])
    for i in range(5):
        x = world.put([each + i for each in ONE])
        world.tree.step()
        a = flip(x)
        world.tree.step()
        b = roll(a)  # its own memory may be that of `a`
        assert values(b) == [float(i), *[each + i for each in ONE[:0:-1]]]
        world.tree.step()
        same, c = plain(b)
        written = [float(i), float(i), *[each + i for each in ONE[-2:0:-1]]]
        assert values(same) == written and values(c) == written[::-1]
        del a, b, c, same
    assert world.tree.stats()["carried"] >= 5


def test_branches_share_memory(world):
    roots = {n: world.tree.function(world.flip, name=f"branch {n}") for n in range(8)}
    big = world.put(np.arange(1 << 16))
    expected = np.arange(1 << 16, dtype="f4")[::-1].tolist()
    for _ in range(3):
        for branch in roots.values():
            world.tree.step()
            out = branch(big)
            assert values(out) == expected
            del out
    stats = world.tree.stats()
    assert stats["recordings"] == 8 and stats["alone_bytes"] == 8 * (2 << 18)
    assert stats["pool_peak_bytes"] < stats["alone_bytes"] * 7 + (2 << 20)
    assert stats["saved_bytes"] > 0 or stats["pool_peak_bytes"] >= stats["alone_bytes"]


def test_memory_that_the_function_frees_counts_as_what_it_needs(world):
    """Regression: of what a function allocates by itself, as PyTorch does, only its results counted."""
    def chain(x):
        first = world.new(x.shape)
        second = world.new(x.shape)
        del first
        return world.new(x.shape) if second is not None else None

    call = world.tree.function(chain)
    x = world.put(np.arange(1 << 16))
    for _ in range(3):
        call(x)
    assert world.tree.stats()["recordings"] == 1 and world.tree.stats()["alone_bytes"] == 3 << 18


def test_an_output_alive_makes_another_recording_that_leaves_it_alone(world):
    flip, roll = world.tree.function(world.flip), world.tree.function(world.roll)
    x = world.put(ONE)
    for keep in (False, False, False, True, True, True):
        world.tree.step()
        a = flip(x)
        if not keep:
            del a
        b = roll(x)
        assert values(b) == [ONE[-1], *ONE[:-1]]
        if keep:
            assert values(a) == ONE[::-1]
            del a
        del b
    assert world.tree.stats()["recordings"] >= 3 and world.tree.stats()["overwritten"] == 0


def test_a_result_that_is_an_argument_or_the_programs(world):
    table = world.put(ONE)

    def passes(x, kept):
        world.calls.append("passes")
        return x, kept, table, world.flip(x)

    run = world.tree.function(passes, static=["kept"])
    kept = world.put([9.0])
    for i in range(4):
        x = world.put([each + i for each in ONE])
        same, held, whole, flipped = run(x, kept)
        assert values(same) == values(x) and values(held) == [9.0] and values(whole) == ONE
        assert values(flipped) == [each + i for each in ONE[::-1]]
        assert whole is table and held is kept
        del same, flipped
    assert world.tree.stats()["replays"] == 2


def test_a_part_of_an_output_is_an_input(world):
    np_tree = world.tree
    flip = np_tree.function(world.flip)
    x = world.put(ONE)
    for _ in range(4):
        np_tree.step()
        a = flip(x)
        whole = np.from_dlpack(a)
        assert whole.tolist() == ONE[::-1]
        del whole
        b = flip(a)
        assert values(b) == ONE
        del a, b


def test_memory_of_an_output_is_used_again_when_all_views_are_gone(world):
    flip = world.tree.function(world.flip)
    x = world.put(ONE)
    for _ in range(3):
        flip(x)
    out = flip(x)
    seen = weakref.ref(out)
    view = np.from_dlpack(out)
    del out
    assert seen() is None and world.tree.stats()["buffers"] == 1 and view.tolist() == ONE[::-1]
    del view
    assert world.tree.stats()["buffers"] == 0


# ---- Static and mutated arguments ----------------------------------------------------------------------------------------


def test_a_static_argument_is_in_place_and_may_be_written(world):
    def append(cache, row, at):
        world.move(cache, row, [at], [0])
        return world.flip(cache)

    run = world.tree.function(append, static=["cache"], mutates=["cache"])
    cache, expected = world.put([0.0] * ROWS), [0.0] * ROWS
    for i in range(24):
        expected[i % ROWS] = float(i)
        assert values(run(cache, world.put([float(i)]), i % ROWS)) == expected[::-1]
        assert values(cache) == expected
    assert world.tree.stats()["eager_runs"] == 0 and world.tree.stats()["replays"] == 8
    moved = world.put(ONE)
    assert values(run(moved, world.put([50.0]), 0)) == [*ONE[:0:-1], 50.0]
    assert values(cache) == expected and world.tree.stats()["mismatches.static"] == 1


def test_a_mutated_argument_that_is_not_static_runs_as_plain_python(world):
    def write(x, row):
        world.calls.append("write")
        world.move(x, row, [0], [0])
        return world.flip(x)

    run = world.tree.function(write, mutates=["x"])
    for i in range(4):
        x = world.put(ONE)
        out = run(x, world.put([70.0 + i]))
        assert values(out) == [*ONE[:0:-1], 70.0 + i] and values(x)[0] == 70.0 + i
        assert type(out) is lade.DeviceBuffer
    assert world.tree.stats()["eager.mutated"] == 4 and world.calls.count("write") == 4


def test_a_call_takes_no_full_collection(world):
    """Regression: each call that ran as plain Python, and each warm-up and recording, took one of all objects of the process."""
    run, x, generations = world.tree.function(world.flip, mutates=["x"]), world.put(ONE), []
    gc.disable()
    gc.callbacks.append(lambda phase, info: generations.append(info["generation"]))
    try:
        run(x)
        assert not generations and world.tree.stats()["eager.mutated"] == 1
        flip = world.tree.function(world.flip)
        for _ in range(2):
            flip(x)
        assert 0 in generations and 2 not in generations and world.tree.stats()["recordings"] == 1
    finally:
        gc.enable()
        del gc.callbacks[-1]


def test_weights_are_looked_at_by_address(world):
    table = world.put(ONE)
    held = {"table": table}

    def pick(n):
        world.calls.append("pick")
        out = world.new((1,))
        world.move(out, held["table"], [0], [n])
        return out

    run = world.tree.function(pick, weights=[table])
    for _ in range(3):
        assert values(run(3)) == [3.0]
    assert len(world.calls) == 2
    moved = held["table"] = world.put(ONE[::-1])
    run.weights[0] = moved
    assert values(run(3)) == [4.0] and len(world.calls) == 3


def test_names_of_parameters_are_checked(world):
    with pytest.raises(lade.InvalidArgumentError, match="static or mutates has 'y'; expected parameters of .*flip: x"):
        world.tree.function(world.flip, static=["y"])
    with pytest.raises(TypeError, match="static is a str; expected an iterable of names"):
        world.tree.function(world.flip, static="x")
    with pytest.raises(TypeError, match="function is a int; expected a function"):
        world.tree.function(3)
    flip = world.tree.function(world.flip)
    with pytest.raises(TypeError, match=r"flip: x is a object; expected an array, a number, a text or None"):
        flip(object())
    with pytest.raises(lade.InvalidArgumentError, match=r"flip: x is in host memory; expected device memory of cpu:0"):
        flip(np.zeros(4, "f4"))
    with pytest.raises(TypeError, match="allocator is a int; expected a lade.DeviceAllocator or None"):
        lade.graphs.Tree(3)


@pytest.mark.parametrize("name, value", [("static", 3), ("static", b"x"), ("mutates", 3), ("weights", 3), ("weights", np.zeros(1)),
                                         ("outputs", 1.5)])
def test_options_of_a_function_are_refused_by_name(world, name, value):
    with pytest.raises(lade.ArgumentTypeError, match=f"^{name} is a .*; expected an"):
        world.tree.function(world.flip, **{name: value})


def test_numbers_are_refused_by_name(world):
    with pytest.raises(lade.ArgumentTypeError, match=r"^weights\[1\] is a int; expected an array"):
        world.tree.function(world.flip, weights=[world.put(ONE), 3])
    for value in (-1, 65535):
        with pytest.raises(lade.InvalidArgumentError, match=f"^outputs is {value}; expected 0 to 65534"):
            world.tree.function(world.flip, outputs=value)
    assert values(world.tree.function(world.flip, outputs=65534)(world.put(ONE))) == ONE[::-1]
    for name in ("warmups", "max_nodes", "max_driver_bytes"):
        with pytest.raises(lade.InvalidArgumentError, match=f"^{name} is -1; expected an integer from 0 on"):
            lade.graphs.Tree(world.allocator, **{name: -1})
        with pytest.raises(lade.ArgumentTypeError, match=f"^{name} is a float; expected an integer from 0 on"):
            lade.graphs.Tree(world.allocator, **{name: 1.5})
    with pytest.raises(lade.InvalidArgumentError, match="^nbytes is -1; expected an integer from 0 on"):
        world.tree.reserve(-1)


@pytest.mark.parametrize("one, other", [(0.0, -0.0), (0j, complex(0, -0.0)), (1, 1.0), (1, True)])
def test_values_that_are_equal_and_not_the_same_are_other_forms(world, one, other):
    """Regression: -0.0 replayed the recording of 0.0."""
    run, x = world.tree.function(lambda x, value: (world.flip(x), value), name="run"), world.put(ONE)
    given = [repr(run(x, value)[1]) for value in (one, one, one, other, other, other)]
    assert given == [repr(one)] * 3 + [repr(other)] * 3


def test_nan_is_one_form(world):
    """Regression: each call with NaN was another form, which was never recorded, and stayed."""
    run, x = world.tree.function(lambda x, value: world.flip(x), name="run"), world.put(ONE)
    for _ in range(5):
        run(x, float("nan"))
    assert len(world.calls) == 2 and world.tree.stats()["replays"] == 3


def test_more_results_than_agreed(world):
    run = world.tree.function(lambda x: [1] * 17, name="many")
    with pytest.raises(lade.InvalidArgumentError, match=r"many returns 17 values; expected at most 16, or more by tree.function\(outputs=...\)"):
        run(world.put(ONE))
    more = world.tree.function(lambda x: [world.flip(x) for _ in range(40)], outputs=40)
    for _ in range(3):
        outs = more(world.put(ONE))
        assert len(outs) == 40 and all(values(each) == ONE[::-1] for each in outs)
        del outs


# ---- Functions that do wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collects", [False, True])
def test_what_is_left_in_cycles_is_no_memory_of_a_recording(world, collects):
    def leaves_cycles(x):
        for _ in range(4):
            cycle = [world.new(x.shape)]
            cycle.append(cycle)
            if collects:
                gc.collect(0)  # so that the cycle, which lives yet, is in an older generation at the end
        del cycle
        return world.flip(x)

    run = world.tree.function(leaves_cycles)
    x = world.put(ONE)
    gc.disable()
    try:
        for _ in range(3):
            assert values(run(x)) == ONE[::-1]
    finally:
        gc.enable()
    assert world.tree.stats()["recordings"] == 1 and world.tree.stats()["eager_runs"] == 0


class Refused(Exception):
    pass


@pytest.mark.parametrize("when", ["warm-up", "recording"])
def test_an_exception_passes_and_leaves_all_as_it_was(world, when):
    raises = [when == "warm-up"]
    alive = []

    def fails(x):
        out = world.flip(x)
        alive.append(weakref.ref(out))
        if raises[0]:
            cycle = [out]
            cycle.append(cycle)
            raise Refused("no")
        return out

    run, flip = world.tree.function(fails), world.tree.function(world.flip)
    x = world.put(ONE)
    for _ in range(3):
        world.tree.step()
        flip(x)
    if when == "recording":
        world.tree.step()
        run(x)
        raises[0] = True
    world.tree.step()
    older = flip(x)
    before = world.tree.stats()
    for _ in range(3):
        with pytest.raises(Refused, match="no") as caught:
            run(x)
        assert [each() for each in alive].count(None) == len(alive)
        assert ["recorded" in each for each in getattr(caught.value, "__notes__", [])] == [True] * (when == "recording")
    assert values(older) == ONE[::-1]
    after = world.tree.stats()
    assert after["recordings"] == before["recordings"] and after["buffers"] == 1 and after["errors"] == before["errors"] + 3
    raises[0] = False
    for _ in range(3):
        world.tree.step()
        out = run(x)
        assert values(out) == ONE[::-1]
        del out


def test_what_is_kept_of_a_result_or_left_in_the_pool_is_named(world):
    kept = []

    def keeps(x):
        out = world.flip(x)
        kept.append(out)
        return out

    def leaves(x):
        kept.append(world.flip(x))
        return None

    x = world.put(ONE)
    for function, words in ((keeps, "kept the block"), (leaves, "left 1 blocks in the pool")):
        run = world.tree.function(function)
        with pytest.raises(lade.CallbackError, match=words) as caught:
            run(x)
        assert function.__name__ in str(caught.value)
        kept.clear()
    flip = world.tree.function(world.flip)
    for _ in range(3):
        assert values(flip(x)) == ONE[::-1]


def test_an_argument_that_is_kept_is_none_any_more(world):
    kept = []

    def keeps(x):
        kept.append(x)
        return world.flip(x)

    run = world.tree.function(keeps)
    for _ in range(2):
        run(world.put(ONE))
    assert type(kept[0]) is lade.DeviceBuffer and type(kept[1]) is lade.GraphArray
    with pytest.raises(lade.OverwrittenError, match="was an argument of .*keeps while that was recorded"):
        values(kept[1])


def test_an_allocation_on_another_stream_is_refused(world):
    other = world.device.stream()

    def wrong(x):
        return world.allocator.empty((4,), "float32", other)

    run = world.tree.function(wrong)
    with pytest.raises(lade.CallbackError, match="allocated on another stream than its own"):
        run(world.put(ONE))


def test_a_wait_in_a_recording_is_refused(world):
    def waits(x):
        out = world.flip(x)
        world.values = np.from_dlpack(out)  # waits for the stream
        del world.values
        return out

    run = world.tree.function(waits)
    assert values(run(world.put(ONE))) == ONE[::-1]
    for _ in range(2):
        with pytest.raises(lade.Error):
            run(world.put(ONE))
    assert world.tree.stats()["recordings"] == 0
    flip = world.tree.function(world.flip)
    for _ in range(3):
        assert values(flip(world.put(ONE))) == ONE[::-1]


def test_functions_within_functions_are_parts_of_the_outer_one(world):
    inner = world.tree.function(world.flip)
    other = lade.graphs.Tree(world.allocator, stream=world.stream).function(world.roll)

    def outer(x):
        return other(inner(x))

    run = world.tree.function(outer)
    for _ in range(4):
        assert values(run(world.put(ONE))) == [0.0, *ONE[:0:-1]]
    assert world.tree.stats()["recordings"] == 1 and other.tree.stats()["runs"] == 0


def test_changes_of_the_tree_from_within_are_refused(world):
    errors = []

    def inside(x):
        for change in (world.tree.step, world.tree.trim, lambda: world.tree.reserve(1), world.tree.close,
                       lambda: world.tree.retire_stream(world.stream), lambda: world.tree._native.add("f", [], [], 1)):
            with pytest.raises(lade.BusyError):
                change()
            errors.append(1)
        return world.flip(x)

    run = world.tree.function(inside)
    for _ in range(3):
        assert values(run(world.put(ONE))) == ONE[::-1]
    assert len(errors) == 12


def test_the_stream_is_known_inside_alone(world):
    with pytest.raises(lade.InvalidArgumentError, match="outside of a function"):
        lade.graphs.stream()
    world.tree.function(lambda x: world.flip(x))(world.put(ONE))
    with pytest.raises(lade.InvalidArgumentError):
        lade.graphs.stream()


def test_out_of_memory_in_a_function_leaves_the_tree(device):
    world = World(device)
    flip = world.tree.function(world.flip)
    x = world.put(ONE)
    for op in ("device_alloc", "capture_begin", "capture_end", "graph_launch"):
        for nth in (1, 2):
            with contextlib.suppress(lade.Error, MemoryError):
                device.soft_fault(op, nth)
                world.tree.step()
                world.tree.function(world.flip)(x)
                world.tree.function(world.flip)(x)
            device.soft_fault_clear()
            for _ in range(3):
                world.tree.step()
                out = flip(x)
                assert values(out) == ONE[::-1]
                del out


# ---- Threads, lifetimes --------------------------------------------------------------------------------------------------


def test_threads_share_a_tree(world):
    flip, roll = world.tree.function(world.flip), world.tree.function(world.roll)
    x = world.put(ONE)
    failures, lock, barrier = [], threading.Lock(), threading.Barrier(4)

    def work(function, expected):
        try:
            for _ in range(40):  # all at once: another thread's call ends the step of this one's
                function(x)
            barrier.wait()
            for _ in range(40):
                with lock:
                    world.tree.step()
                    assert values(function(x)) == expected
        except BaseException as error:  # noqa: BLE001
            failures.append(error)
            barrier.abort()

    rolled = [ONE[-1], *ONE[:-1]]
    threads = [threading.Thread(target=work, args=each) for each in [(flip, ONE[::-1]), (roll, rolled)] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and world.tree.stats()["runs"] == 320


def test_trees_of_threads(device):
    failures = []

    def work():
        try:
            world = World(device)
            flip = world.tree.function(world.flip)
            for i in range(30):
                assert values(flip(world.put([each + i for each in ONE]))) == [each + i for each in ONE[::-1]]
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_outputs_die_in_a_recording_of_another_function(world):
    flip = world.tree.function(world.flip)
    x = world.put(ONE)
    held = [flip(x)]
    other = lade.graphs.Tree(world.allocator, stream=world.stream)
    elsewhere = [other.function(world.flip)(x)]
    del other

    def drops(y):
        held.clear()
        elsewhere.clear()  # the last one of its tree: that goes after the run
        gc.collect()
        return world.roll(y)

    run = world.tree.function(drops)
    for _ in range(3):
        world.tree.step()
        held[:] = [flip(x)]
        elsewhere[:] = [lade.graphs.Tree(world.allocator, stream=world.stream).function(world.flip)(x)]
        out = run(x)
        assert values(out) == [ONE[-1], *ONE[:-1]]
        del out
    gc.collect()


def test_streams_may_go_after_a_call(world):
    flip = lade.graphs.Tree(world.allocator).function(world.flip)
    for _ in range(5):
        stream = world.device.stream()
        tree = lade.graphs.Tree(world.allocator, stream=stream)
        run = tree.function(world.flip)
        out = run(world.put(ONE))
        other = world.device.stream()
        tree.record_stream(out, other)
        del stream, other
        gc.collect()
        assert values(out) == ONE[::-1]
        assert values(flip(world.put(ONE))) == ONE[::-1]
    with pytest.raises(lade.InvalidArgumentError, match="no output of this Tree"):
        tree.record_stream(world.put(ONE), world.stream)


def test_a_tree_lives_as_long_as_its_outputs(world):
    out = lade.graphs.Tree(world.allocator, stream=world.stream).function(world.flip)(world.put(ONE))
    gc.collect()
    assert out.valid and values(out) == ONE[::-1]
    view = np.from_dlpack(out)
    del out
    gc.collect()
    assert view.tolist() == ONE[::-1]


def test_closing(world):
    flip = world.tree.function(world.flip)
    out = flip(world.put(ONE))
    with pytest.raises(lade.BusyError, match="1 outputs, tensors over them, or calls"):
        world.tree.close()
    with pytest.raises(lade.BusyError), world.tree:
        pass
    del out
    world.tree.close()
    world.tree.close()
    assert world.tree.closed
    for call in (world.tree.step, world.tree.stats, lambda: flip(world.put(ONE)), lambda: world.tree.function(world.flip)(world.put(ONE))):
        with pytest.raises(lade.InvalidArgumentError, match="the Tree is closed"):
            call()
    flip = None
    gc.collect()
    world.allocator.close()


def test_memory_comes_back(world):
    before = world.allocator.usage()["allocated_bytes"]
    tree = lade.graphs.Tree(world.allocator, stream=world.stream)
    flip = tree.function(world.flip)
    for _ in range(4):
        flip(world.put(ONE))
    tree.reserve(8 << 20)
    assert tree.stats()["pool_reserved_bytes"] >= 8 << 20
    assert tree.trim() >= 8 << 20
    assert [each["name"] for each in json.loads(tree.dump())["functions"]] == [flip.name]
    del flip, tree
    gc.collect()
    assert world.allocator.usage()["allocated_bytes"] == before


def test_a_function_goes_with_its_recordings(world):
    x = world.put(ONE)
    flip = world.tree.function(world.flip)
    for _ in range(3):
        flip(x)
    assert world.tree.stats()["nodes"] == 1
    del flip
    gc.collect()
    assert world.tree.stats()["nodes"] == 0


def test_nodes_have_a_limit(device):
    world = World(device, max_nodes=3)
    pick = world.tree.function(lambda x, n: world.flip(x))
    x = world.put(ONE)
    for n in range(10):
        for _ in range(3):
            assert values(pick(x, n)) == ONE[::-1]
    stats = world.tree.stats()
    assert stats["nodes"] == 3 and stats["evictions"] == 7


def test_copies_and_pickles_are_refused(world):
    flip = world.tree.function(world.flip)
    out = flip(world.put(ONE))
    for each in (world.tree, flip, out):
        for use in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="not copied or pickled"):
                use(each)


def test_a_decorator_keeps_the_functions_name(world):
    @world.tree.function(static=["x"])
    def named(x):
        """Its text."""
        return world.flip(x)

    assert named.__name__ == "named" and named.__doc__ == "Its text." and named.name.endswith("named")
    assert values(named(world.put(ONE))) == ONE[::-1]


HEAD = """
import gc, sys, threading, lade, lade.graphs
device = lade.software_device(clock="cpu")
allocator, stream = lade.DeviceAllocator(device), device.stream()
tree = lade.graphs.Tree(allocator, stream=stream)
x = allocator.empty((8,), "float32", stream)
@tree.function
def flip(x):
    out = allocator.empty(x.shape, x.dtype, lade.graphs.stream())
    lade.copy_blocks(device, out, x, range(8), range(8)[::-1], lade.graphs.stream())
    return out
"""


@pytest.mark.parametrize("text", [
    "outs = [flip(x) for _ in range(4)]",
    "out = flip(x); tree.self = tree; del tree",
    "import atexit; atexit.register(lambda: flip(x)); flip(x)",
    "sys.modules['kept'] = [flip(x), flip, tree]",
    "t = threading.Thread(target=lambda: [flip(x) for _ in range(100000)], daemon=True); t.start(); flip(x)",
])
def test_the_interpreter_ends(text):
    done = subprocess.run([sys.executable, "-c", HEAD + textwrap.dedent(text)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_a_forked_child_is_refused_and_ends():
    text = HEAD + textwrap.dedent("""
        import os
        out = flip(x)
        child = os.fork()
        if child == 0:
            try:
                flip(x)
                os._exit(1)
            except lade.Error:
                pass
            del out, flip, tree
            gc.collect()
            os._exit(0)
        print(os.waitpid(child, 0)[1], out.valid)
    """)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["0", "True"], done.stderr
