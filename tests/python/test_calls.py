# SPDX-License-Identifier: Apache-2.0
"""Every function of the extension, called as its parameters do not allow: the error names the argument, and nothing of C++. A function that is
added is among them."""

import re
import subprocess
import sys

import numpy
import pytest

import lade
import lade.safetensors
from lade import _lade

CLASSES = [value for value in vars(_lade).values() if isinstance(value, type) and value.__module__ == "lade" and not issubclass(value, BaseException)]
NATIVE = ("nb_func", "nb_method")
FUNCTIONS = {name: value for name, value in vars(_lade).items() if type(value).__name__ in NATIVE}
METHODS = {(kind, name): value for kind in CLASSES for name, value in vars(kind).items() if type(value).__name__ in NATIVE}
BOTH = {**FUNCTIONS, **{f"{kind.__name__}.{name}": value for (kind, name), value in METHODS.items()}}


class Unknown:
    """Of no type that anything here takes."""


def parameters(function):
    return re.search(r"\((.*)\)", function.__nb_signature__[-1][0].rsplit("\n", 1)[-1])[1]


def refused(call):
    """Raises what names an argument; its text."""
    with pytest.raises(lade.ArgumentTypeError) as caught:
        call()
    text = str(caught.value)
    assert "expected " in text and not re.search(r"incompatible|std::|nanobind|lade\._lade|\\", text), text
    return text


def test_all_functions_are_looked_at():
    assert len(FUNCTIONS) > 20 and len(METHODS) > 150 and {"publish", "PinnedPool.__init__", "Ticket.wait", "RecordIndex.open"} < set(BOTH)
    # What a property refused would need its own test.
    assert not [name for kind in CLASSES for name, value in vars(kind).items() if isinstance(value, property) and value.fset is not None]


@pytest.mark.parametrize("name", BOTH)
def test_too_many_arguments_and_unknown_ones(name):
    function, places = BOTH[name], parameters(BOTH[name])
    shown = re.escape(name.removesuffix(".__init__"))
    if "*" not in places.replace("*,", ""):
        assert re.match(rf"{shown}\(\) has [0-9]+ arguments by place; expected [0-9]+ at most$", refused(lambda: function(*[Unknown()] * 60)))
    if "**" not in places:
        assert re.match(rf"{shown}\(\) has no argument nothing_such; expected ", refused(lambda: function(nothing_such=1)))
    if "self" in places.split(", "):
        assert refused(lambda: function()).startswith(name.removesuffix(".__init__") + "() misses self; expected ")


def named(function):
    """Its parameters that have names, the object among them, and those of them that have no default."""
    every = [one for one in re.split(r", (?![^\[]*\])", parameters(function)) if re.match(r"\w+(: .*)?$", one.partition(" = ")[0])]
    return [one.partition(":")[0] for one in every], [one.partition(":")[0] for one in every if " = " not in one]


@pytest.mark.parametrize("name", [name for name in BOTH if "." in name])
def test_a_method_refuses_what_is_not_its_object(name):
    _, needed = named(BOTH[name])
    if needed[:1] != ["self"] or name.endswith(("__eq__", "__ne__", "__enter__", "Buffer.numpy")):
        pytest.skip("static, an operator, or for every object")
    if "/" in parameters(BOTH[name]):
        refused(lambda: BOTH[name](*[Unknown()] * len(needed)))
    else:
        text = refused(lambda: BOTH[name](Unknown(), **{one: Unknown() for one in needed[1:]}))
        assert re.match(rf"({'|'.join(needed)}) is a {__name__}.Unknown; expected ", text), text


@pytest.fixture
def objects(tmp_path, device):
    """An object of each class that programs hold, made anew by a call."""
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(64))

    def index():
        made = lade.RecordIndex()
        made.add_fixed(path, 16)
        return made

    return {
        "Device": lambda: device,
        "Stream": lambda: lade.Stream(device),
        "Buffer": lambda: lade.PinnedPool(device).empty(16),
        "PinnedPool": lambda: lade.PinnedPool(device),
        "Adopted": lambda: lade.PinnedPool(device).adopt(numpy.zeros(1 << 16, "uint8")),
        "DeviceBuffer": lambda: lade.DeviceAllocator(device).alloc(16),
        "DeviceAllocator": lambda: lade.DeviceAllocator(device),
        "Snapshot": lambda: lade.PinnedPool(device).snapshot(),
        "Publisher": lambda: lade.publish(lade.PinnedPool(device)),
        "Ticket": lambda: lade.Pipeline(device).read_into(path, 0, lade.DeviceAllocator(device).alloc(16)),
        "Pipeline": lambda: lade.Pipeline(device),
        "RecordIndex": index,
    }


SHOWN = {kind.__name__ for kind in CLASSES if not kind.__name__.startswith("_")}
UNTRIED = {"DeviceView", "GraphArray"}  # made of tensors of torch, and of graphs


def test_an_object_of_each_class_is_tried(objects):
    assert SHOWN == set(objects) | UNTRIED


@pytest.mark.parametrize("name", [name for name in BOTH if name.partition(".")[0] in SHOWN - UNTRIED or "." not in name])
def test_arguments_of_no_type_that_is_taken(objects, name):
    """Each argument alone, with those that have no default."""
    every, needed = named(BOTH[name])
    kind = name.partition(".")[0]
    if name.startswith("_") or "/" in parameters(BOTH[name]) or name.endswith("__dlpack__") or every in ([], ["self"]):
        pytest.skip("the package's own, or of a protocol, or takes no arguments by name")
    function, places = BOTH[name], []
    if name.endswith(".__init__"):
        function = getattr(lade, kind)
    elif "self" in needed:
        places = [objects[kind]()]
    elif "*parts" in parameters(function):
        places = [objects["PinnedPool"]()]
    for one in [one for one in every if one != "self"]:
        passed = {other: Unknown() for other in [*needed, one] if other != "self"}
        text = refused(lambda: function(*places, **passed))
        assert re.match(rf"({'|'.join(passed)}) is ", text), text


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda pool: pool.empty(), "PinnedPool.empty() misses shape; expected empty(shape: int | collections.abc.Sequence[int], dtype: DTypeLike=None)"),
        (lambda pool: pool.empty(1, shape=1), "PinnedPool.empty() has two values for shape; expected one"),
        (lambda pool: pool.empty(1, "u1", 2), "PinnedPool.empty() has 3 arguments by place; expected 2 at most"),
        (lambda pool: lade.PinnedPool(pool.device, max_byts=1), "PinnedPool() has no argument max_byts; expected max_bytes"),
        (lambda pool: pool.empty(1, nothing=2), "PinnedPool.empty() has no argument nothing; expected shape, dtype"),
        (lambda pool: pool.summary("yes"), "abbreviated is a str; expected a bool"),
        (lambda pool: pool.summary(None), "abbreviated is a NoneType; expected a bool"),
        (lambda pool: lade.copy_stats(None), "device is a NoneType; expected a Device"),
        (lambda pool: lade.PinnedPool.stats(3), "self is a int; expected a PinnedPool"),
        (lambda pool: lade.software_device(1 << 40), "ordinal is 1099511627776; expected a smaller int"),
        (lambda pool: _lade._bytes_text(-1), "bytes is -1; expected an int of 0 or more"),
        (lambda pool: lade.PinnedPool(pool.device, settings=3), "settings is a int; expected a str or None"),
    ],
)
def test_what_errors_say(pool, call, text):
    assert refused(lambda: call(pool)) == text


@pytest.mark.filterwarnings("ignore:nanobind. attempted to access an uninitialized instance")
def test_an_object_whose_init_has_not_run_is_said_to_be_one(device):
    """Regression: the text had the other arguments, which were right."""

    class Own(lade.PinnedPool):
        def __init__(self):
            pass

    text = "whose __init__() has not run; expected one that has"
    assert refused(lambda: Own().empty(3)).endswith(f".Own {text}")
    assert refused(lambda: Own().stats()).startswith("self is a ")
    unmade = lade.Device.__new__(lade.Device)
    assert refused(lambda: lade.copy_async(unmade, 1, 2, 3)) == f"device is a lade.Device {text}"


def test_an_error_of_a_function_that_is_called_is_its_own():
    """A TypeError of a program's function that lade calls passes as it is, whatever its text."""

    def ranges():
        raise TypeError("add(): incompatible function arguments. The following")
        yield

    with pytest.raises(TypeError, match="^add..: incompatible"):
        lade.RecordIndex().add(ranges())


def test_a_call_at_the_interpreter_s_exit():
    """Nothing is imported there any more."""
    code = "import lade\nclass Late:\n  def __del__(self, call=lade.version):\n    try: call(1)\n    except TypeError: print('TypeError')\nimport sys; sys.late = Late()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout in ("TypeError\n", ""), done.stderr
