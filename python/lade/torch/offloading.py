# SPDX-License-Identifier: Apache-2.0
"""A module whose layers wait in pinned memory and are fetched ahead, while it runs: what ``lade.torch.offload()`` makes.

The layers that do not fit share slots of device memory. Each has one slot for good, so that its addresses never change::

    host      | 1 | 2 | 4 | 5 |              pinned, a block for each streamed layer
                    |                        copy stream: 2 is fetched
    device    | 0 | 3 | slot: 1 | slot: 2 |  current stream: 1 computes; then slot 0 is free for 4
"""

# Model. A layer is a submodule that is called as a whole. Its parameters are on the host, in the layer's block, except while it is called: hooks
# around its forward let them be views of its slot. Parameters in no layer or in several, those of resident layers, and all buffers are on the
# device. The plan is the order in which the last forward of the whole module called the layers; what it says is a guess: a layer that no
# fetch was begun for is fetched when it is called.
#
# I1  Outside of their layer's forward, streamed parameters are on the host, with the newest values.
# I2  slot.holds is a layer: a copy of its block into the slot is queued on the copy stream, slot.ready is recorded behind it, and nothing was
#     copied there since.
# I3  While a layer is in its slot (slot.inside), nothing is copied there.
# I4  A copy into a slot comes after all work that used the slot: the copy stream waits for the current stream at that moment, and for the
#     stream that used the slot before, if that is another one.
# I5  A forward of the module relies on no copy of an earlier one. So it sees what the program has done to parameters between the two, and a
#     captured graph fetches all that it uses.
#
# The lock guards slots, plan and counters. Copies are queued under it; no code of the module runs under it.

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from torch.utils._pytree import tree_leaves  # type: ignore[import-not-found,unused-ignore]

import lade
from lade._arguments import class_text, take, wrong_type
from lade.torch._shared_region import Region

__all__ = ["Offload"]

_ALIGNMENT = 256  # of each parameter in a block, as kernels that read 16 bytes at once want; PyTorch's allocator gives 512
_MOST_AHEAD = 64


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _nbytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


# ---- Devices ---------------------------------------------------------------------------------------------------------


class _Gpu:
    """A GPU as PyTorch has it. Copies are on a stream of their own, which events order with the current one."""

    def __init__(self, index: int) -> None:
        self.torch = torch.device("cuda", index)
        self.lade = lade.cuda_device(index)
        self.stream = torch.cuda.Stream(self.torch)
        self.handle = self.stream.cuda_stream

    def empty(self, nbytes: int) -> torch.Tensor:
        memory = torch.empty(nbytes, dtype=torch.uint8, device=self.torch)
        memory.record_stream(self.stream)
        return memory

    def prepare(self, slot: _Slot) -> None:
        slot.before, slot.ready, slot.used = (torch.cuda.Event() for _ in range(3))
        slot.streams = {torch.cuda.current_stream(self.torch)}

    def capturing(self) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())

    def follow(self, slot: _Slot) -> None:
        """I4. In a capture the work before it is done: torch.cuda.graph waits for the device first."""
        now = torch.cuda.current_stream(self.torch)
        slot.before.record(now)
        self.stream.wait_event(slot.before)
        if slot.user not in (None, now) and not self.capturing():
            self.stream.wait_event(slot.used)

    def fetched(self, slot: _Slot) -> None:
        slot.ready.record(self.stream)

    def wait(self, slot: _Slot) -> None:
        """Lets the current stream wait for the slot's bytes, and for another stream that used them."""
        now = torch.cuda.current_stream(self.torch)
        now.wait_event(slot.ready)
        if self.capturing():
            return
        if slot.user not in (None, now):
            now.wait_event(slot.used)
        if now not in slot.streams:
            slot.memory.record_stream(now)
            slot.streams.add(now)

    def leave(self, slot: _Slot) -> None:
        """Events of a capture are waited for in it alone."""
        slot.user = None if self.capturing() else torch.cuda.current_stream(self.torch)
        if slot.user is not None:
            slot.used.record(slot.user)

    def join(self) -> None:
        """A capture ends with all its streams joined."""
        if self.capturing():
            torch.cuda.current_stream(self.torch).wait_stream(self.stream)

    def synchronize(self) -> None:
        self.stream.synchronize()

    def finish(self) -> None:
        torch.cuda.synchronize(self.torch)


class _Software:
    """A software device, whose memory PyTorch sees as the host's. The module computes in the thread that calls it: nothing is pending."""

    def __init__(self, device: lade.Device) -> None:
        self.torch = torch.device("cpu")
        self.lade = device
        self.handle = device.stream()
        self._allocator = lade.DeviceAllocator(device)

    def empty(self, nbytes: int) -> torch.Tensor:
        return torch.from_dlpack(self._allocator.empty(nbytes, "uint8"))

    def prepare(self, slot: _Slot) -> None:
        pass

    def capturing(self) -> bool:
        return False

    def follow(self, slot: _Slot) -> None:
        pass

    def fetched(self, slot: _Slot) -> None:
        pass

    def wait(self, slot: _Slot) -> None:
        self.handle.synchronize()

    def leave(self, slot: _Slot) -> None:
        pass

    def join(self) -> None:
        pass

    def synchronize(self) -> None:
        self.handle.synchronize()

    finish = synchronize


def _device_from(device: Any) -> _Gpu | _Software:
    if isinstance(device, lade.Device):
        return _Software(device) if device.software else _Gpu(device.ordinal)
    if device is None:
        if not torch.cuda.is_available():
            raise lade.NoDeviceError("device is None, and PyTorch sees no GPU; expected a GPU, or lade.software_device() to try out")
        return _Gpu(torch.cuda.current_device())
    named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if named.type != "cuda":
        raise lade.InvalidArgumentError(f"device is {device!r}; expected a GPU, such as 'cuda:0', or a lade.Device")
    return _Gpu(torch.cuda.current_device() if named.index is None else named.index)


# ---- Layers and slots ------------------------------------------------------------------------------------------------


class _Slot:
    """Device memory that streamed layers share. Events and streams are the device's to use."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.holds: _Layer | None = None
        self.inside: _Layer | None = None
        self.thread, self.depth = 0, 0  # of the calls of `inside`
        self.user: Any = None  # the stream that used it last, outside of captures
        self.streams: set[Any] = set()  # which the allocator of `memory` knows
        self.before: Any = None
        self.ready: Any = None
        self.used: Any = None


class _Place:
    """A parameter of a streamed layer, as one submodule names it. Refers to no module, so that modules go with their last reference."""

    def __init__(self, name: str, named: dict[str, Any], key: str) -> None:
        self.name, self._named, self._key = name, named, key
        self.parameter: Any = named[key]
        self.offset = 0
        self.host: Any = None
        self.device: Any = None
        self.address = 0  # of host

    def is_where_it_was_put(self) -> bool:
        found = self._named.get(self._key)
        return found is not None and found is self.parameter and bool(found.data_ptr() == self.address)


class _Layer:
    """A submodule that is called as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.places: list[_Place] = []
        self.size = 0  # bytes of its parameters
        self.nbytes = 0  # of its block
        self.block: Any = None
        self.slot: Any = None
        self.bytes_of_slot: Any = None
        self.version = 0

    def arrange(self, places: list[_Place]) -> None:
        """Offsets in its block. Names of one tensor share one."""
        offsets: dict[Any, int] = {}
        self.places = places
        for place in places:
            identity = _identity(place.parameter)
            if identity not in offsets:
                offsets[identity] = self.nbytes
                self.size += _nbytes(place.parameter)
                self.nbytes += _aligned(_nbytes(place.parameter))
            place.offset = offsets[identity]

    def versions(self) -> int:
        """Grows with each change of its parameters in place."""
        return sum(place.parameter._version for place in self.places)


def _identity(tensor: torch.Tensor) -> Any:
    """Equal for tensors that are the same bytes, and for no others."""
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) if tensor.numel() else id(tensor)


def _lists_of_layers(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Entries of the outermost ModuleLists and Sequentials; of those that are no more than lists, their entries."""
    lists = (torch.nn.ModuleList, torch.nn.ModuleDict)
    within = isinstance(module, (*lists, torch.nn.Sequential))
    for child in module.children():
        if within and not isinstance(child, lists):
            yield child
        else:
            yield from _lists_of_layers(child)


def _layers_from(module: torch.nn.Module, layers: Iterable[torch.nn.Module] | None) -> dict[torch.nn.Module, _Layer]:
    names = {each: name for name, each in module.named_modules()}
    if layers is None:
        chosen = list(dict.fromkeys(_lists_of_layers(module)))
        if not chosen:
            raise lade.InvalidArgumentError(
                f"module is a {class_text(module)} without nn.ModuleList and nn.Sequential; expected the submodules to fetch in layers="
            )
    else:
        chosen = list(layers)
    found: dict[torch.nn.Module, _Layer] = {}
    for layer in chosen:
        take("layers", layer, torch.nn.Module, "a list of torch.nn.Module")
        if layer is module or layer not in names:
            raise lade.InvalidArgumentError(f"layers has a {class_text(layer)} that is not in the module; expected submodules of it")
        found[layer] = _Layer(names[layer])
    for layer in found:
        for within in layer.modules():
            if within is not layer and within in found:
                raise lade.InvalidArgumentError(f"layers has {names[layer]!r} and {names[within]!r} in it; expected each apart")
    return found


def _check_parameter(name: str, parameter: torch.nn.Parameter) -> None:
    kind = None
    if type(parameter) is not torch.nn.Parameter or type(parameter.data) is not torch.Tensor:
        kind = f"a {class_text(parameter)} of {class_text(parameter.data)}"
    elif parameter.layout != torch.strided or parameter.device.type not in ("cpu", "cuda"):
        kind = f"on {parameter.device} with layout {parameter.layout}"
    elif parameter.is_inference():
        kind = "made in torch.inference_mode()"
    if kind is not None:
        raise lade.UnsupportedError(f"parameter {name!r} is {kind}; expected a plain torch.nn.Parameter with values, of the host or a GPU")


def _check_module(module: torch.nn.Module) -> None:
    take("module", module, torch.nn.Module, "a torch.nn.Module")
    for name, each in module.named_modules():
        if isinstance(each, torch.jit.ScriptModule):
            raise lade.UnsupportedError(f"module {name!r} is a torch.jit.ScriptModule, which takes no such hooks; expected the module before scripting")
        if each._compiled_call_impl is not None or hasattr(each, "_orig_mod"):
            raise lade.UnsupportedError(f"module {name!r} was compiled before; expected torch.compile() after offload()")
        if any(isinstance(hook, _Hook) for hook in each._forward_pre_hooks.values()):
            raise lade.InvalidArgumentError(f"module {name!r} is offloaded already; expected one that is not, or close() before")
    for name, parameter in module.named_parameters():
        _check_parameter(name, parameter)


# ---- What stays on the device ----------------------------------------------------------------------------------------


def _spread(count: int, streamed: int) -> list[int]:
    """Which of so many layers are streamed: evenly, so that each copy has as much computing beside it; a resident one is first."""
    return [at for at in range(count) if (at + 1) * streamed // count > at * streamed // count]


def _choose(sizes: list[int], blocks: list[int], budget: int, slot_count: int) -> tuple[int, list[int], list[int]]:
    """(Bytes needed, the streamed layers, bytes of slots): as few layers as the budget allows, or what needs least where it is too small."""
    choices = []
    for streamed_count in range(len(sizes) + 1):
        streamed = _spread(len(sizes), streamed_count)
        slots = [max(blocks[at] for at in streamed[slot::slot_count]) for slot in range(min(slot_count, streamed_count))]
        choices.append((sum(sizes) - sum(sizes[at] for at in streamed) + sum(slots), streamed, slots))
        if choices[-1][0] <= budget:
            return choices[-1]
    return min(choices, key=lambda choice: choice[0])


# ---- Hooks -----------------------------------------------------------------------------------------------------------


def _no_hook(*_arguments: Any) -> None:
    """In a copy of a module, which is a plain module of the host."""


def _hook_of_a_copy() -> Callable[..., None]:
    return _no_hook


class _Hook:
    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    @torch.compiler.disable(reason="lade.torch.offload() fetches layers in hooks, between graphs: without fullgraph=True")
    def __call__(self, *arguments: Any) -> None:
        self._function(*arguments)

    def __reduce__(self) -> Any:
        return _hook_of_a_copy, ()


class Offload:
    """A module whose layers are fetched while it runs. See ``lade.torch.offload()``, which makes it.

    Until ``close()`` the module is called as before; what it computes is the same, bit for bit. Outside of their layer's forward, streamed
    parameters are tensors of the host, in pinned memory: ``state_dict()``, ``load_state_dict()``, ``copy.deepcopy()`` and ``torch.save()`` see
    all values. What changes them waits for the module's work on the device before. A copy of the module is a plain one.

    A context manager, whose end is ``close()``.

    Threads: one at a time runs a layer, or ``lade.BusyError``.
    """

    def __init__(
        self, module: Any, *, resident_bytes: int, ahead: int = 1, layers: Any = None, device: Any = None, pool: Any = None, group: Any = None
    ) -> None:
        _check_module(module)
        take("resident_bytes", resident_bytes, int, "an int")
        take("ahead", ahead, int, "an int")
        take("pool", pool, lade.PinnedPool, "a lade.PinnedPool", optional=True)
        if not 1 <= ahead <= _MOST_AHEAD:
            raise lade.InvalidArgumentError(f"ahead is {ahead}; expected 1 to {_MOST_AHEAD}")
        if layers is not None and not isinstance(layers, Iterable):
            raise wrong_type("layers", layers, "a list of torch.nn.Module or None")
        self._lock = threading.RLock()
        self._hooks: list[Any] = []
        self._slots: list[_Slot] = []
        self._layers: list[_Layer] = []
        self._running = False
        self._sequence: list[_Layer] = []  # called in this forward
        self._counts = {"fetches": 0, "missed": 0, "written_back": 0}
        found = _layers_from(module, layers)
        self._share_out(module, found)
        streamed = self._divide([layer for layer in found.values() if layer.nbytes], resident_bytes, ahead + 1)
        self._device = _device_from(device)
        self._pool = pool if pool is not None else lade.PinnedPool(self._device.lade)
        self._plan: list[_Layer] = []
        self._upcoming: list[list[_Layer]] = []
        self._set_plan(streamed)
        self._region = None if group is None else Region(group)
        with contextlib.ExitStack() as undo:  # in reverse: what a failure puts back
            with self._agreed():
                self._take_memory(streamed)
                self._keep_resident(module, streamed, undo)
            if self._region is not None and streamed:
                self._region.map(_layout(streamed), sum(layer.nbytes for layer in streamed), self._pool, self._device)
            for first in (True, False):  # the first rank of a group has filled the blocks before the others look at them
                with self._agreed():
                    if first is (self._region is None or self._region.rank == 0):
                        for layer in streamed:
                            self._send_to_host(layer, undo)
            self._layers = streamed
            if streamed:
                self._add_hooks(module, found)
            undo.pop_all()

    # -- how it is divided

    def _share_out(self, module: torch.nn.Module, layers: dict[torch.nn.Module, _Layer]) -> None:
        """Gives each layer the parameters that are its own. Tensors in several layers, or outside of them, stay on the device."""
        names = {each: name for name, each in module.named_modules()}
        inside = {each for layer in layers for each in layer.modules()}
        groups: list[tuple[_Layer | None, Iterable[torch.nn.Module]]] = [(layer, of.modules()) for of, layer in layers.items()]
        groups.append((None, [each for each in module.modules() if each not in inside]))
        places: list[tuple[_Layer | None, _Place]] = []
        users: dict[Any, set[_Layer | None]] = {}
        for layer, modules in groups:
            for each in modules:
                for key, parameter in each._parameters.items():
                    if parameter is not None:
                        places.append((layer, _Place(f"{names[each]}.{key}".lstrip("."), each._parameters, key)))
                        users.setdefault(_identity(parameter), set()).add(layer if parameter.numel() else None)
        stem: dict[Any, int] = {}
        own: dict[_Layer, list[_Place]] = {layer: [] for layer in layers.values()}
        for layer, place in places:
            identity = _identity(place.parameter)
            if layer is not None and users[identity] == {layer}:
                own[layer].append(place)
            else:
                stem[identity] = _nbytes(place.parameter)
        for layer, its in own.items():
            layer.arrange(its)
        self._stem_bytes = sum(stem.values()) + sum(_nbytes(buffer) for buffer in module.buffers())

    def _divide(self, layers: list[_Layer], resident_bytes: int, slot_count: int) -> list[_Layer]:
        sizes, blocks = [layer.size for layer in layers], [layer.nbytes for layer in layers]
        needed, streamed, self._slot_sizes = _choose(sizes, blocks, resident_bytes - self._stem_bytes, slot_count)
        if self._stem_bytes + needed > resident_bytes:
            raise lade.InvalidArgumentError(
                f"resident_bytes is {resident_bytes}; expected {self._stem_bytes + needed} or more: {self._stem_bytes} of buffers and of "
                f"parameters in no layer or in several, and {needed} for {len(layers)} layers, of which the largest has {max(sizes, default=0)}"
            )
        self._resident_bytes = self._stem_bytes + needed - sum(self._slot_sizes)
        for number, at in enumerate(streamed):
            layers[at].slot = number % slot_count  # until there are slots
        return [layers[at] for at in streamed]

    # -- what moves

    def _take_memory(self, streamed: list[_Layer]) -> None:
        for size in self._slot_sizes:
            self._slots.append(_Slot(self._device.empty(size)))
            self._device.prepare(self._slots[-1])
        for layer in streamed:
            layer.slot = self._slots[layer.slot]
            layer.bytes_of_slot = layer.slot.memory[: layer.nbytes]
            for place in layer.places:
                tensor = layer.slot.memory[place.offset : place.offset + _nbytes(place.parameter)].view(place.parameter.dtype)
                place.device = tensor.as_strided(place.parameter.shape, torch.empty_like(place.parameter, device="meta").stride())

    def _keep_resident(self, module: torch.nn.Module, streamed: list[_Layer], undo: contextlib.ExitStack) -> None:
        away = {id(place.parameter) for layer in streamed for place in layer.places}
        moved: dict[Any, torch.Tensor] = {}  # tensors that are the same stay so
        for parameter in module.parameters():
            if id(parameter) not in away and parameter.device != self._device.torch:
                identity = _identity(parameter)
                if identity not in moved:
                    moved[identity] = parameter.data.to(self._device.torch)
                undo.callback(_put_back, parameter, parameter.device)
                parameter.data = moved[identity]
        for each in module.modules():
            for key, buffer in each._buffers.items():
                if buffer is not None and buffer.device != self._device.torch:
                    identity = _identity(buffer)
                    if identity not in moved:
                        moved[identity] = buffer.to(self._device.torch)
                    undo.callback(each._buffers.__setitem__, key, buffer)
                    each._buffers[key] = moved[identity]

    def _agreed(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._region is None else self._region.agreed()

    def _send_to_host(self, layer: _Layer, undo: contextlib.ExitStack) -> None:
        """Its parameters become views of its block. Their old memory goes one by one."""
        if self._region is not None:
            layer.block = self._region.block(layer.nbytes)
        else:
            layer.block = self._pool.empty(layer.nbytes, "uint8")
            self._pool.record(layer.block, self._device.handle)
        for place in layer.places:
            parameter = place.parameter
            flat = torch.frombuffer(layer.block, dtype=parameter.dtype, count=parameter.numel(), offset=place.offset)
            place.host = flat.as_strided(parameter.shape, place.device.stride())
            place.address = place.host.data_ptr()
        for place in layer.places:
            if place.parameter.data_ptr() != place.address:
                if self._region is None or self._region.rank == 0:
                    place.host.copy_(place.parameter.data)
                elif not _same_bytes(place.host, place.parameter.data):
                    raise lade.InvalidArgumentError(f"group: parameter {place.name!r} differs from rank 0's; expected the same values in all ranks")
                undo.callback(_put_back, place.parameter, place.parameter.device)
                place.parameter.data = place.host

    def _add_hooks(self, module: torch.nn.Module, layers: dict[torch.nn.Module, _Layer]) -> None:
        for each, layer in layers.items():
            if layer in self._layers:
                self._add_hooks_of(each, layer)
        self._add(module, lambda *_: self._begin(), lambda _module, _arguments, output: self._end(output))

    def _add_hooks_of(self, module: torch.nn.Module, layer: _Layer) -> None:
        def enter(_module: Any, arguments: Any, named: Any) -> None:
            self._enter(layer, arguments, named)

        def leave(_module: Any, _arguments: Any, output: Any) -> None:
            self._leave(layer, output)

        self._add(module, enter, leave)

    def _add(self, module: torch.nn.Module, enter: Callable[..., None], leave: Callable[..., None]) -> None:
        self._hooks.append(module.register_forward_pre_hook(_Hook(enter), prepend=True, with_kwargs=True))
        self._hooks.append(module.register_forward_hook(_Hook(leave), always_call=True))

    # -- a forward of the module

    def _set_plan(self, plan: list[_Layer]) -> None:
        """After each call of the plan: the next layer of each slot, in the order of their calls. At -1, the last entry: before the first call."""
        self._plan = plan
        self._position = -1
        upcoming: dict[int, _Layer] = {}
        self._upcoming = [[]]
        for layer in reversed(plan):
            upcoming = {id(layer.slot): layer, **{slot: other for slot, other in upcoming.items() if slot != id(layer.slot)}}
            self._upcoming.insert(0, list(upcoming.values()))
        self._upcoming.append(self._upcoming.pop(0))

    def _begin(self) -> None:
        with self._lock:
            for slot in self._slots:
                if slot.inside is not None and slot.thread == threading.get_ident():
                    self._bring_home(slot)  # a signal's handler has ended the forward, past the hooks
            self._forget()
            self._running, self._sequence, self._position = True, [], -1
            self._fetch_ahead()

    def _end(self, output: Any) -> None:
        """Without output: the forward has failed, and says nothing of the order."""
        with self._lock:
            self._device.join()
            if output is not None and self._sequence and self._sequence != self._plan:
                self._set_plan(self._sequence)
            self._running = False
            self._forget()

    def _forget(self) -> None:
        """I5."""
        for slot in self._slots:
            if slot.inside is None:
                slot.holds = None

    def _fetch_ahead(self) -> None:
        for layer in self._upcoming[self._position]:
            if layer.slot.inside is None and layer.slot.holds is not layer:
                self._fetch(layer)

    def _fetch(self, layer: _Layer) -> None:
        slot = layer.slot
        assert slot.inside is None  # I3
        slot.holds = None
        self._device.follow(slot)
        lade.copy_async(self._device.lade, layer.bytes_of_slot, layer.block, self._device.handle)
        self._device.fetched(slot)
        slot.holds = layer
        self._counts["fetches"] += 1

    def _find(self, layer: _Layer) -> None:
        """Where the plan has this call: behind the one before, else anywhere."""
        if self._running:
            self._sequence.append(layer)
        count = len(self._plan)
        for step in range(1, count + 1):
            at = (self._position + step) % count
            if self._plan[at] is layer:
                self._position = at
                return

    def _enter(self, layer: _Layer, arguments: Any, named: Any) -> None:
        if torch.is_grad_enabled():
            _refuse_gradients(layer, (arguments, named))
        with self._lock:
            slot = layer.slot
            if slot.inside is not None:
                self._enter_again(layer)
                return
            for place in layer.places:
                if not place.is_where_it_was_put():
                    raise lade.UnsupportedError(
                        f"parameter {place.name!r} was replaced, by .to(), .data = or load_state_dict(assign=True) for example; "
                        "expected such changes before offload() or after close()"
                    )
            self._find(layer)
            if slot.holds is not layer:
                self._counts["missed"] += 1
                self._fetch(layer)
            self._device.wait(slot)
            slot.inside, slot.thread, slot.depth = layer, threading.get_ident(), 1
            for place in layer.places:
                place.parameter.data = place.device
            layer.version = layer.versions()
            if self._running:
                self._fetch_ahead()

    def _enter_again(self, layer: _Layer) -> None:
        slot = layer.slot
        if slot.thread != threading.get_ident():
            raise lade.BusyError(f"layer {layer.name!r} is called while another thread runs {slot.inside.name!r} in its memory; expected one at a time")
        if slot.inside is not layer:
            raise lade.UnsupportedError(
                f"layer {layer.name!r} is called within {slot.inside.name!r}, whose memory it shares; expected layers that do not call each other"
            )
        slot.depth += 1

    def _leave(self, layer: _Layer, output: Any) -> None:
        with self._lock:
            slot = layer.slot
            if slot.inside is not layer or slot.thread != threading.get_ident():
                return  # it was refused
            slot.depth -= 1
            if slot.depth > 0:
                return
            changed = layer.versions() != layer.version
            self._bring_home(slot)
            if changed:
                self._write_back(layer)
            self._device.leave(slot)
            if self._running:
                self._fetch_ahead()
            else:
                slot.holds = None
        if torch.is_grad_enabled():
            _refuse_gradients(layer, output)

    def _bring_home(self, slot: _Slot) -> None:
        layer, slot.inside = slot.inside, None
        if layer is not None:
            for place in layer.places:
                place.parameter.data = place.host

    def _write_back(self, layer: _Layer) -> None:
        if self._region is not None:
            raise lade.UnsupportedError(f"layer {layer.name!r} changes its parameters, which all ranks of the group have; expected none that does")
        if self._device.capturing():
            raise lade.UnsupportedError(f"layer {layer.name!r} changes its parameters in a capture; expected changes outside of graphs")
        self._device.follow(layer.slot)
        lade.copy_async(self._device.lade, layer.block, layer.bytes_of_slot, self._device.handle)
        self._device.synchronize()
        self._counts["written_back"] += 1

    # -- for the program

    @property
    def streamed(self) -> tuple[str, ...]:
        """Names of the layers that are fetched; the others are on the device."""
        return tuple(layer.name for layer in self._layers)

    def stats(self) -> dict[str, int]:
        """Bytes and counts.

        Returns
        -------
        dict[str, int]
            ``resident_bytes``: of the device, for parameters and buffers that stay. ``slot_bytes``: of the device, for layers that are
            fetched. ``host_bytes``: pinned. ``fetches``: of layers, so far. ``missed``: fetches that began when the layer was called.
            ``written_back``: layers whose forward has changed parameters in place.
        """
        with self._lock:
            return {
                "resident_bytes": self._resident_bytes,
                "slot_bytes": sum(slot.memory.numel() for slot in self._slots),
                "host_bytes": sum(layer.nbytes for layer in self._layers),
                **self._counts,
            }

    def close(self) -> None:
        """Waits for the device, and takes the hooks away. Streamed parameters stay on the host: ``module.to()`` moves them.

        Graphs that were captured from the module are not launched any more.

        Raises
        ------
        lade.BusyError
            A layer runs.
        """
        with self._lock:
            for slot in self._slots:
                if slot.inside is not None:
                    raise lade.BusyError(f"layer {slot.inside.name!r} runs; expected close() outside of a forward")
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
            self._device.finish()
            self._slots.clear()
            for layer in self._layers:
                layer.slot = layer.bytes_of_slot = None
                for place in layer.places:
                    place.device = None

    def __enter__(self) -> Offload:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        stats = self.stats()
        return (
            f"<lade.torch.offloading.Offload: {len(self._layers)} layers fetched, {stats['host_bytes'] >> 20} MiB on the host, "
            f"{stats['resident_bytes'] + stats['slot_bytes'] >> 20} MiB on the device>"
        )


def _layout(layers: list[_Layer]) -> Any:
    """What ranks that share blocks have in common."""
    return [(place.name, place.offset, str(place.parameter.dtype), *place.parameter.shape, *place.device.stride()) for layer in layers for place in layer.places]


def _same_bytes(host: torch.Tensor, other: torch.Tensor) -> bool:
    """Also of numbers that are not equal to themselves."""
    mine = torch.empty_like(host).copy_(other)
    return bool(torch.equal(mine.flatten().view(torch.uint8), host.flatten().view(torch.uint8)))


def _put_back(parameter: torch.nn.Parameter, device: torch.device) -> None:
    parameter.data = parameter.data.to(device, copy=True)


def _refuse_gradients(layer: _Layer, tensors: Any) -> None:
    """What autograd keeps of a streamed layer's parameters would be another layer's by the time of the backward."""
    name = next((place.name for place in layer.places if place.parameter.requires_grad), None)
    if name is None and any(isinstance(each, torch.Tensor) and each.requires_grad for each in tree_leaves(tensors)):
        name = "what it gets or gives"
    if name is not None:
        raise lade.UnsupportedError(
            f"layer {layer.name!r} is fetched and cannot have gradients: {name} requires grad; expected torch.no_grad(), "
            "torch.inference_mode(), or nothing there that requires grad"
        )
