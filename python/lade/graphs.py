# SPDX-License-Identifier: Apache-2.0
"""Functions of arrays as CUDA graphs that follow one another in one pool.

::

    import torch, lade.torch, lade.graphs

    lade.torch.install_device()              # before anything uses the GPU
    tree = lade.graphs.Tree()

    @tree.function(static=["cache"], mutates=["cache"])
    def decode(state, cache): ...            # of PyTorch

    with torch.no_grad():
        state = prefill(prompt, cache)       # another function of the tree
        for _ in range(100):
            tree.step()                      # outputs of the step before may go
            state = decode(state, cache)     # warm-up, recording, replay, replay, ...

The first call of a function with arguments of a form warms it up, the second records it, later ones replay. Where a call comes in
another place, or with other outputs alive, it is recorded once more; all recordings share one pool, and no byte under an output
that is alive changes (docs/graphs.md).

*Forms.* Arrays count by shape, strides and type; everything else (numbers, texts, None) by its value. Tuples, lists and dicts may
nest. PyTorch's grad mode, inference mode and autocast are part of the form. What the function reads besides its arguments is not
looked at: name it in ``weights``.

*Arguments* are copied into the recording before each replay, in one batch, except for outputs of the tree, which are used in place, and
for those named in ``static``, which are used in place and looked at by address: one that moved is another recording.

*Outputs* are tensors for PyTorch, else ``lade.GraphArray``. An output is valid until its step is over; each call is a step until
the first ``tree.step()``, from which on these calls begin them. Access to one that was overwritten raises: OverwrittenError for a
GraphArray, RuntimeError for a tensor, both with the function's name. Of views of a tensor PyTorch can refuse no access: a RuntimeWarning
tells of them. Copy (``tensor.clone()``) what is to stay longer. Everything in a
result that is no array is what the recording gave.

*Memory.* What the function allocates comes from the tree's allocator: under ``lade.torch.install_device()`` or
``lade.cupy.install()``, or by ``allocator.empty(shape, dtype, lade.graphs.stream())``. It allocates on its own stream, joins what
it forks, and leaves nothing behind but its result: a gradient that a training step makes is there before.

*Random numbers* of PyTorch on the GPU are refused, by PyTorch, when the function is recorded: pass them in. *Autograd* does not cross
a function: results have no history, and arguments that require gradients are refused unless static. A whole step, with its backward
pass, may be a function.

*Threads.* Any thread may call; calls of a tree come one after the other, and each, or each ``tree.step()``, ends the step of all threads. A function of a tree that is called within another one runs
as plain Python, as a part of that. An exception passes to the caller, and leaves the tree as it was; frames of the function are cleared.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import lade
from lade import _lade
from lade._arguments import take, wrong_type

__all__ = ["Function", "Tree", "stream"]

_WARMUP, _RECORD, _EAGER = 0, 1, 2
_STATIC, _MUTATED = 1, 2
_OVERWRITTEN = "was overwritten by a later call: copy what is to outlive its step before the next one (tensor.clone())"
_PLAIN = (bool, int, float, complex, str, bytes, type(None))

_inside = threading.local()


def stream() -> int:
    """The handle of the stream that the function which runs queues its work on.

    Raises
    ------
    lade.InvalidArgumentError
        No function of a tree runs in this thread.
    """
    handle: int | None = getattr(_inside, "stream", None)
    if handle is None:
        raise lade.InvalidArgumentError("lade.graphs.stream() is called outside of a function that a Tree runs")
    return handle


# ---- Arguments and results -------------------------------------------------------------------------------------------


def _flatten(value: Any, leaves: list[Any]) -> Any:
    """Puts the leaves of tuples, lists and dicts into the list; returns what is around them, which can be hashed."""
    kind = type(value)
    if kind is tuple or kind is list or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return (kind, *[_flatten(each, leaves) for each in value])
    if kind is dict:
        return (dict, tuple(value), *[_flatten(each, leaves) for each in value.values()])
    leaves.append(value)
    return None


def _unflatten(around: Any, leaves: Iterator[Any]) -> Any:
    if around is None:
        return next(leaves)
    if around[0] is dict:
        return dict(zip(around[1], [_unflatten(each, leaves) for each in around[2:]]))
    parts = [_unflatten(each, leaves) for each in around[1:]]
    return around[0](parts) if around[0] in (list, tuple) else around[0](*parts)


class _Constant:
    """What is no memory: a part of the form, or of what a recording gave."""

    nbytes = 0

    def __init__(self, value: Any) -> None:
        self.value = value


class _Memory:
    """An array of any package, contiguous. `key`: shape, type, package."""

    def __init__(self, key: tuple[Any, ...], nbytes: int) -> None:
        self.shape, self.dtype, self.package = key
        self.nbytes = nbytes

    def as_result(self) -> Any:
        return _lade._GraphResult(self.shape, self.dtype, False)

    def of_input(self, tree: Any, name: str, address: int, handle: int) -> tuple[Any, Any]:
        """The argument of a recording, and the GraphArray behind it."""
        array = tree.borrow(name, address, self.shape, self.dtype, handle)
        return (_as_cupy(array) if self.package == "cupy" else array), array


class _Tensor:
    """A strided tensor of PyTorch. Types of a byte that are no integers go as bytes: PyTorch 2.8 takes none of them from DLPack."""

    def __init__(self, tensor: Any) -> None:
        self.shape, self.strides, self.dtype = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype
        self.extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides))
        self.nbytes = self.extent * tensor.element_size()
        is_bytes = self.dtype.is_floating_point and tensor.element_size() == 1
        self.sent = sys.modules["torch"].uint8 if is_bytes else self.dtype
        self.is_flat = tensor.is_contiguous() and not is_bytes

    def as_result(self) -> Any:
        if self.is_flat:
            return _lade._GraphResult(self.shape, self.dtype, True)
        return _lade._GraphResult(self.extent, self.sent, True), self.strided

    def strided(self, flat: Any) -> Any:
        tensor = flat if self.sent == self.dtype else flat.new_empty(0, dtype=self.dtype)
        return tensor.set_(flat.untyped_storage(), 0, self.shape, self.strides)  # no view, which would hold another tensor

    def of_input(self, tree: Any, name: str, address: int, handle: int) -> tuple[Any, Any]:
        array = tree.borrow(name, address, self.extent, self.sent, handle)
        tensor = sys.modules["torch"]._C._from_dlpack(array._capsule(self.shape if self.is_flat else self.extent, self.sent))
        return (tensor if self.is_flat else self.strided(tensor)), array


def _as_cupy(array: Any) -> Any:
    cuda = sys.modules["cupy"].cuda
    pointer = cuda.MemoryPointer(cuda.UnownedMemory(array.ptr, array.nbytes, array), 0)
    return sys.modules["cupy"].ndarray(array.shape, array.dtype, pointer)


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _tensor_class() -> Any:
    """torch.Tensor, or what nothing is an instance of."""
    return getattr(sys.modules.get("torch"), "Tensor", ())


def _mode(torch: Any) -> tuple[Any, ...]:
    """What of PyTorch's state a function may depend on."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
    )


def _clear(error: BaseException | None) -> None:
    """Lets go of what the frames of an error's functions hold, which lies in the pool."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()


def _collections() -> int:
    """Of Python's garbage, so far. A full one takes 60 ms in a process with PyTorch."""
    return sum(each["collections"] for each in gc.get_stats())


# ---- One form --------------------------------------------------------------------------------------------------------


class _Spec:
    """What a call of the function gave. `kept` has the objects, behind a place for the number, that are not in the tree's memory;
    `plan` says how the others of a run become objects, after the function that makes a tensor."""

    def __init__(self, around: Any, described: list[Any], kept: list[Any]) -> None:
        self.around, self.described, self.kept = around, described, kept
        torch = sys.modules["torch"] if any(type(each) is _Tensor for each in described) else None
        self.plan = (torch and torch._C._from_dlpack, *[each.as_result() if each.nbytes else None for each in described])

    def result(self, values: tuple[Any, ...]) -> Any:
        leaves: list[Any] = []
        for i, each in enumerate(self.described, 1):
            value = values[i]
            if each.nbytes == 0:
                leaves.append(each.value)
            elif value is None:  # memory of the program's
                leaves.append(self.kept[i])
            else:
                leaves.append(value)
        return _unflatten(self.around, iter(leaves))


class _Form:
    """A function with arguments of one form: it has warm-ups and recordings of its own. Holds no array but those of results."""

    def __init__(self, function: Function, around: Any, described: list[Any], names: list[str], torch: Any, cupy: Any) -> None:
        self.around, self.described, self.names, self.torch, self.cupy = around, described, names, torch, cupy
        self.specs: list[_Spec | None] = []
        self.inputs = [i for i, each in enumerate(described) if each.nbytes]
        flags = [_STATIC * (names[i] in function.static) + _MUTATED * (names[i] in function.mutates) for i in self.inputs]
        self.unwritten = [i for i, each in zip(self.inputs, flags) if not each & _MUTATED and type(described[i]) is _Tensor]
        sizes = [described[i].nbytes for i in self.inputs] + [function.tree._describe(each, "a weight")[0].nbytes for each in function.weights]
        flags += [_STATIC] * len(function.weights)
        self.native = function.tree._native.add(function.name, sizes, flags, 1 + function.outputs)

    def settle(self, call: _Call) -> None:
        """After a run of a body: a recording keeps what its replays need, also where objects of its first results could not be made;
        anything else keeps nothing."""
        spec = None if call.number is None else self.specs[call.number]
        if spec is None or call.number is None:
            return
        if call.buffers is None or call.stage != _RECORD:
            self.specs[call.number] = None
        for i in call.buffers or ():
            if i < len(spec.kept):
                spec.kept[i] = None


class _Call:
    """One call; what its body does, in the thread of the call."""

    def __init__(self, function: Function, form: _Form, leaves: list[Any], places: tuple[int, ...]) -> None:
        self.function, self.form, self.leaves, self.places = function, form, leaves, places
        self.stage: int | None = None  # None: a replay
        self.number: int | None = None  # of the spec that it made
        self.buffers: list[int] | None = None  # values that are the tree's; None: no run with this body has succeeded

    def __call__(self, stage: int, handle: int, addresses: tuple[int, ...]) -> tuple[tuple[Any, ...], list[Any]]:
        self.stage = stage
        borrowed: list[Any] = []
        _inside.stream = handle
        try:
            with self.function.tree._streams(self.form, handle, stage):
                return self._run(self._arguments(handle, addresses, borrowed))
        except BaseException as error:
            _clear(error)
            if stage == _RECORD:
                error.add_note(f"lade.graphs: raised while {self.function.name} was recorded; the tree is as it was before the call")
            raise
        finally:
            _inside.stream = None
            for array in borrowed:
                array._end()

    def _arguments(self, handle: int, addresses: tuple[int, ...], borrowed: list[Any]) -> list[Any]:
        """Arguments that the tree has copied are where the copies are."""
        form, leaves = self.form, list(self.leaves)
        for i, address, place in zip(form.inputs, addresses, self.places):
            if address != place:
                leaves[i], array = form.described[i].of_input(self.function.tree._native, self.function.name, address, handle)
                borrowed.append(array)
        return leaves

    def _run(self, arguments: list[Any]) -> tuple[tuple[Any, ...], list[Any]]:
        form, function, collections = self.form, self.function, _collections()
        versions = [-1 if arguments[i].is_inference() else arguments[i]._version for i in form.unwritten]
        args, kwargs = _unflatten(form.around, iter(arguments))
        result = function._function(*args, **kwargs)
        for i, version in zip(form.unwritten, versions):
            if version != -1 and arguments[i]._version != version:
                raise lade.InvalidArgumentError(f"{function.name} writes to {form.names[i]}; expected its name in mutates")
        leaves: list[Any] = []
        around = _flatten(result, leaves)
        if len(leaves) > function.outputs:
            raise lade.InvalidArgumentError(
                f"{function.name} returns {len(leaves)} values; expected at most {function.outputs}, or more by tree.function(outputs=...)"
            )
        described = [function.tree._describe(each, f"value {i} that {function.name} returns", True) for i, each in enumerate(leaves)]
        leaves = [leaf if each.nbytes else None for leaf, (each, _) in zip(leaves, described)]  # an empty one may be part of a block
        spec = _Spec(around, [each for each, _ in described], [None, *leaves])
        form.specs.append(spec)
        self.number = len(form.specs) - 1  # bodies of a tree come one after the other
        values = [(address, each.nbytes) if each.nbytes else 0 for each, address in described]
        del args, kwargs, arguments, result, leaves
        if self.stage != _EAGER:  # what the call has left in cycles lies in the pool; it is young unless a collection has run since
            gc.collect(0 if _collections() == collections else 2)
        return (self.number, *values), spec.kept


# ---- What programs see -----------------------------------------------------------------------------------------------


class Function:
    """A function that a ``Tree`` runs: ``tree.function()`` makes it. It is called as the function itself."""

    def __init__(self, tree: Tree, function: Callable[..., Any], name: str, static: frozenset[str], mutates: frozenset[str],
                 weights: list[Any], outputs: int) -> None:
        self.tree, self.name, self.static, self.mutates, self.weights, self.outputs = tree, name, static, mutates, weights, outputs
        self._function = function
        self._forms: dict[Any, _Form] = {}
        with contextlib.suppress(AttributeError, TypeError):
            functools.update_wrapper(self, function, updated=())
        try:
            self._parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            self._parameters = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "stream", None) is not None:
            return self._function(*args, **kwargs)
        tree, tensor_class = self.tree, _tensor_class()
        leaves: list[Any] = []
        around = _flatten((args, kwargs), leaves)
        keys: list[Any] = []
        addresses: list[Any] = []
        has_tensor = tree._torch is not None
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, tensor_class):
                has_tensor = True
                try:
                    keys.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.get_device(), leaf.requires_grad, leaf.is_conj(), leaf.is_neg()))
                    addresses.append(leaf.data_ptr())
                except RuntimeError:  # without strides, or memory of its own
                    tree._describe_tensor(leaf, f"{self.name}: {self._names(around)[i]}", False)
                    raise
            elif isinstance(leaf, _PLAIN):
                keys.append((type(leaf), repr(leaf) if isinstance(leaf, (float, complex)) else leaf))  # 0.0 is no -0.0, and NaN is NaN
                addresses.append(0)
            else:
                key, address = self._other(leaf, around, i)
                keys.append(key)
                addresses.append(address)
        torch = sys.modules["torch"] if has_tensor else None
        key = (around, tuple(keys), _mode(torch) if torch else None)
        form = self._forms.get(key) or self._form(key, leaves, torch)
        places = tuple([addresses[i] for i in form.inputs] + [tree._address(each) for each in self.weights])
        call = _Call(self, form, leaves, places)
        try:
            values = tree._native.run(form.native, tree._stream_of(form), places, call, not tree._marks, form.specs, tree._given)
        except BaseException:
            form.settle(call)
            raise
        result = self._result(form, call, values)
        del values  # which would count as views
        tree._given_check()
        return result

    def _result(self, form: _Form, call: _Call, values: tuple[Any, ...]) -> Any:
        number = values[0]
        spec = form.specs[number]
        assert spec is not None
        if call.stage is not None:
            form.settle(call)
        return spec.result(values)

    def _names(self, around: Any) -> list[str]:
        """The parameter of each leaf."""
        positional, keywords = around[1], around[2]
        names: list[str] = []
        for i, each in enumerate(positional[1:]):
            parameter = self._parameters[min(i, len(self._parameters) - 1)] if self._parameters else None
            names += [parameter.name if parameter else str(i)] * _count(each)
        for name, each in zip(keywords[1], keywords[2:]):
            names += [name] * _count(each)
        return names

    def _other(self, leaf: Any, around: Any, index: int) -> tuple[Any, Any]:
        """The key and address of an argument that is neither PyTorch's nor plain."""
        if _is_array(leaf):
            address, _, shape, dtype = self.tree._native.memory(leaf, f"{self.name}: {self._names(around)[index]}")
            return (shape, dtype, _package(leaf)), address
        torch = sys.modules["torch"] if _package(leaf) == "torch" else None
        if torch and isinstance(leaf, (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)):
            return (type(leaf), leaf), 0
        raise wrong_type(f"{self.name}: {self._names(around)[index]}", leaf, "an array, a number, a text or None")

    def _form(self, key: Any, leaves: list[Any], torch: Any) -> _Form:
        names = self._names(key[0])
        described = [self.tree._describe(leaf, f"{self.name}: {name}")[0] for leaf, name in zip(leaves, names)]
        for leaf, each, name in zip(leaves, described, names):
            if type(each) is _Tensor and leaf.requires_grad and torch.is_grad_enabled() and name not in self.static:
                raise lade.InvalidArgumentError(
                    f"{self.name}: {name} requires gradients, which do not cross a recording; expected a call under torch.no_grad(), "
                    "or the backward pass in the function and static arguments"
                )
        cupy = any(_package(leaf) == "cupy" for leaf in leaves)
        if cupy:
            self.tree._check_cupy()
        return self._forms.setdefault(key, _Form(self, key[0], described, names, torch, cupy))

    def __reduce__(self) -> Any:
        raise lade.ArgumentTypeError("a Function of a Tree is not copied or pickled; expected the function itself")


def _count(around: Any) -> int:
    if around is None:
        return 1
    return sum(_count(each) for each in (around[2:] if around[0] is dict else around[1:]))


def _is_array(value: Any) -> bool:
    return hasattr(type(value), "__dlpack__") or hasattr(type(value), "__cuda_array_interface__")


class Tree:
    """Recordings of functions that share a pool of memory.

    Parameters
    ----------
    allocator : lade.DeviceAllocator
        Its memory; of the native backend. None: PyTorch's under ``lade.torch.install_device()``, that of its current device, else
        CuPy's under ``lade.cupy.install()``.
    stream : int or object
        The stream whose work calls follow, and which their outputs are ready for. None: the current one of the package whose arrays
        the arguments are, else the legacy default stream. Runs are ordered one after the other, whatever their streams. A stream that
        is no lade.Stream or PyTorch's is given to ``retire_stream()`` before it is destroyed.
    warmups : int
        Calls of each form before it is recorded; 0: none.
    max_nodes : int
        Recordings kept: at the limit the one longest unused goes that none follows. None: no limit.
    max_driver_bytes : int
        Device memory that the driver may take for all graphs together; beyond it recordings go likewise. None: no limit.

    Raises
    ------
    lade.UnsupportedError
        The allocator has no pools, or its device no graphs.
    """

    def __init__(self, allocator: lade.DeviceAllocator | None = None, *, stream: Any = None, warmups: int = 1,
                 max_nodes: int | None = None, max_driver_bytes: int | None = None) -> None:
        take("allocator", allocator, lade.DeviceAllocator, "a lade.DeviceAllocator", optional=True)
        self._torch: Any = None  # PyTorch, where the allocator is its
        self.allocator = allocator or _installed_allocator()
        served = sys.modules.get("lade.torch")
        if served is not None and any(self.allocator is each for each in served._device_allocators.values()):
            self._torch = sys.modules["torch"]
        self._native = _lade._GraphTree(self.allocator, warmups, max_nodes or 0, max_driver_bytes or 0)
        self._stream = stream
        self._marks = False
        self._given: dict[int, Any] = {}  # weak: tensors by the numbers of their outputs; some are gone
        self._given_most = 4096

    @property
    def device(self) -> lade.Device:
        """Its device."""
        return self._native.device

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._native.closed

    def function(self, function: Callable[..., Any] | None = None, *, static: Iterable[str] = (), mutates: Iterable[str] = (),
                 weights: Any = None, outputs: int = 16, name: str | None = None) -> Callable[..., Any]:
        """Make a function one that this tree runs. A decorator, with or without arguments.

        Parameters
        ----------
        function : callable
            It does the same work each time for arguments of one form.
        static : iterable of str
            Arguments, by the names of parameters, whose memory stays where it is from call to call, such as key-value caches: used in
            place.
        mutates : iterable of str
            Arguments that it writes to. One that is neither static nor an output of the tree runs as plain Python each time.
        weights : iterable of arrays, or torch.nn.Module
            What it reads besides its arguments: looked at by address before each replay, and kept. Of a module that is the function
            itself: its own.
        outputs : int
            The most values that it returns.
        name : str
            In messages. None: its own.

        Returns
        -------
        Function

        Raises
        ------
        TypeError
            An argument is none of these.
        lade.InvalidArgumentError
            A name in static or mutates is that of no parameter.
        """
        if function is None:
            return functools.partial(self.function, static=static, mutates=mutates, weights=weights, outputs=outputs, name=name)
        if not callable(function):
            raise wrong_type("function", function, "a function")
        take("outputs", outputs, int, "an int")
        if not 0 <= outputs < 65535:  # one more is the tree's
            raise lade.InvalidArgumentError(f"outputs is {outputs}; expected 0 to 65534")
        take("name", name, str, "a str", optional=True)
        for what, names in {"static": static, "mutates": mutates}.items():
            if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
                raise wrong_type(what, names, "an iterable of names")
        modules = hasattr(weights, "parameters") and weights or (weights is None and hasattr(function, "parameters") and function)
        if weights is not None and not modules and (_is_array(weights) or not isinstance(weights, Iterable)):
            raise wrong_type("weights", weights, "an iterable of arrays, or a torch.nn.Module")
        read = [*modules.parameters(), *modules.buffers()] if modules else list(weights or ())  # type: ignore[union-attr]
        for i, each in enumerate(read):
            if not _is_array(each):
                raise wrong_type(f"weights[{i}]", each, "an array")
        made = Function(self, function, name or str(getattr(function, "__name__", type(function).__name__)), frozenset(static),
                        frozenset(mutates), read, outputs)
        known = [each.name for each in made._parameters]
        takes_any = not known or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in made._parameters)
        for each in [*made.static, *made.mutates]:
            if each not in known and not takes_any:
                raise lade.InvalidArgumentError(f"static or mutates has {each!r}; expected parameters of {made.name}: {', '.join(known)}")
        return made

    def step(self) -> None:
        """Begin a step: the next call may write over all outputs so far that it does not take. From the first one on, calls are no
        steps of their own."""
        self._native.step()
        self._marks = True

    def record_stream(self, array: Any, stream: Any) -> None:
        """Say that another stream uses an output: the next call waits on the device for the work queued there until then.

        A tensor's own ``record_stream()`` does not reach the tree.
        """
        self._native.record_stream(self._address(array), stream)

    def retire_stream(self, stream: Any) -> None:
        """Tell the tree that a stream of its calls, or of ``record_stream()``, is about to be destroyed."""
        self._native.retire_stream(stream)

    def reserve(self, nbytes: int) -> None:
        """Have the pool get so many bytes in one piece, before recordings of ascending size take it in small ones."""
        self._native.reserve(nbytes)

    def trim(self) -> int:
        """Give back what no recording ever used, after a wait for the device's work. Returns the bytes."""
        return self._native.trim()

    def stats(self) -> dict[str, Any]:
        """State and counters: runs of each kind, recordings, bytes copied, memory, and what did not match or ran as plain Python, by
        reason (``lade_graph_tree_stats``)."""
        return self._native.stats()

    def dump(self) -> str:
        """The whole tree as JSON (docs/formats.md)."""
        return self._native.dump()

    def close(self) -> None:
        """Destroy the recordings and give the pool back, after a wait for the work.

        Raises
        ------
        lade.BusyError
            Outputs, tensors over them, or calls of other threads still use it.
        """
        self._native.close()

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self.close()
        except lade.BusyError:
            if error[0] is None:
                raise

    def __reduce__(self) -> Any:
        raise lade.ArgumentTypeError("a Tree is not copied or pickled: its recordings are of this process")

    # ---- For functions

    def _address(self, array: Any) -> int:
        if isinstance(array, _tensor_class()):
            return array.data_ptr()  # type: ignore[no-any-return]
        return self._native.memory(array, "array")[0]

    def _describe(self, leaf: Any, name: str, is_result: bool = False) -> tuple[Any, int]:
        """A description of an argument or result, and its address."""
        if isinstance(leaf, _tensor_class()):
            return self._describe_tensor(leaf, name, is_result)
        if not _is_array(leaf):
            return _Constant(leaf), 0
        address, nbytes, shape, dtype = self._native.memory(leaf, name)
        if nbytes == 0:
            return _Constant(leaf), 0
        return _Memory((shape, dtype, _package(leaf)), nbytes), address

    def _describe_tensor(self, tensor: Any, name: str, is_result: bool) -> tuple[Any, int]:
        expected = "cpu" if self.device.software else f"cuda:{self.device.ordinal}"
        if str(tensor.device) != expected or "strided" not in str(tensor.layout):
            raise lade.InvalidArgumentError(
                f"{name} is a tensor on {tensor.device} of layout {tensor.layout}; expected one on {expected}, of torch.strided"
            )
        if expected != "cpu" and self._torch is None:
            raise lade.UnsupportedError(
                f"{name} is PyTorch's, whose memory does not come from the tree's allocator; expected lade.torch.install_device() at the "
                "program's begin, and Tree() or Tree(lade.torch.device_allocator())"
            )
        if is_result and tensor.requires_grad:
            raise lade.InvalidArgumentError(
                f"{name} requires gradients, which do not cross a recording; expected tensor.detach(), or a call under torch.no_grad()"
            )
        if tensor.is_conj() or tensor.is_neg():
            raise lade.InvalidArgumentError(f"{name} has bytes that are not its values yet; expected tensor.resolve_conj().resolve_neg()")
        if tensor.numel() == 0:
            return _Constant(tensor.new_empty_strided(tensor.shape, tensor.stride()) if is_result else tensor), 0
        return _Tensor(tensor), tensor.data_ptr()

    def _check_cupy(self) -> None:
        served = sys.modules["lade.cupy"].installed() if "lade.cupy" in sys.modules else None
        if served is None or served.device(self.device.ordinal) is not self.allocator:
            raise lade.UnsupportedError(
                "an argument is CuPy's, whose memory does not come from the tree's allocator; expected lade.cupy.install(), and "
                "Tree(lade.cupy.installed().device())"
            )

    def _stream_of(self, form: _Form) -> Any:
        if self._stream is not None or self.device.software:
            return self._stream
        if form.torch:
            return form.torch._C._cuda_getCurrentRawStream(self.device.ordinal)
        return sys.modules["cupy"].cuda.get_current_stream() if form.cupy else None

    @contextlib.contextmanager
    def _streams(self, form: _Form, handle: int, stage: int) -> Iterator[None]:
        """The stream of a body is the current one of the packages; what PyTorch's libraries keep for it goes again."""
        with contextlib.ExitStack() as stack:
            if form.torch and not self.device.software:
                cuda = form.torch.cuda
                stack.enter_context(cuda.stream(cuda.ExternalStream(handle, device=self.device.ordinal)))
                if stage != _EAGER:
                    stack.callback(form.torch._C._cuda_clearCublasWorkspaces)
            if form.cupy:
                stack.enter_context(sys.modules["cupy"].cuda.ExternalStream(handle, self.device.ordinal))
            yield

    # ---- Tensors that were given out: access to one that was written over is refused

    def _given_check(self) -> None:
        found = [(number, self._given.pop(number, None), name) for number, name in self._native.overwritten()]  # told to one thread
        told = [(number, tensor, name) for number, tensor, name in found if tensor is not None]  # None: gone since, and forgotten below
        for _, tensor, name in told:
            alive = tensor()
            if alive is not None:
                sys.modules["torch"]._C._set_storage_access_error_msg(alive, f"lade.graphs: an output of {name} {_OVERWRITTEN}")
            del alive
        if told or len(self._given) > self._given_most:
            known = list(self._given)  # before `held`: other threads add to it
            held = set(self._native.held())
            for number, _, name in told:
                if number in held:
                    warnings.warn(f"lade.graphs: an output of {name}, of which there are views, {_OVERWRITTEN}", RuntimeWarning, stacklevel=3)
            for number in known:
                if number not in held:
                    self._given.pop(number, None)
            self._given_most = max(4096, 2 * len(self._given))


def _installed_allocator() -> lade.DeviceAllocator:
    """That of the package which lade serves."""
    served = sys.modules.get("lade.torch")
    if served is not None and served.device_is_installed():
        return served.device_allocator()  # type: ignore[no-any-return]
    installed = sys.modules["lade.cupy"].installed() if "lade.cupy" in sys.modules else None
    if installed is not None:
        return installed.device(sys.modules["cupy"].cuda.runtime.getDevice())  # type: ignore[no-any-return]
    raise lade.InvalidArgumentError(
        "allocator is None; expected a lade.DeviceAllocator, or lade.torch.install_device() or lade.cupy.install() before"
    )
