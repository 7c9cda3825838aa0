# SPDX-License-Identifier: Apache-2.0
"""lade.torch.offload() on a software device, whose memory PyTorch sees as the host's: any PyTorch will do.

A module that is not offloaded judges: outputs are equal bit for bit.
"""

import copy
import gc
import io
import itertools
import os
import subprocess
import sys
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
import lade  # noqa: E402
import lade.torch  # noqa: E402
from lade.torch import offloading  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self, width, deep=4):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(width), torch.nn.Linear(width, deep * width), torch.nn.Linear(deep * width, width)
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, x):
        return x + self.scale * self.down(torch.relu(self.up(self.norm(x))))


class Model(torch.nn.Module):
    """An embedding whose weight is the head's, too, and blocks; `order` says which of them run."""

    def __init__(self, count=8, width=32):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(50, width), torch.nn.Linear(width, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.blocks = torch.nn.ModuleList(Block(width, 4 + at % 3) for at in range(count))
        self.order = list(range(count))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for at in self.order:
            x = self.blocks[at](x)
        return self.head(x)


TOKENS = torch.arange(20).reshape(2, 10)


@pytest.fixture(autouse=True)
def no_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture(params=["cpu", "sim"])
def device(request):
    return lade.software_device(clock=request.param)


def bytes_of(module):
    return sum(each.numel() * each.element_size() for each in [*module.parameters(), *module.buffers()])


def pair(*arguments, **options):
    """A module to offload, and its judge."""
    module = Model(*arguments, **options)
    return module, copy.deepcopy(module)


def third(module, device, **options):
    return lade.torch.offload(module, resident_bytes=bytes_of(module) // 2, device=device, **options)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def addresses(module):
    return [each.data_ptr() for each in module.parameters()]


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_outputs_are_equal_and_what_is_ahead_was_fetched(device, ahead):
    module, judge = pair(16)
    with third(module, device, ahead=ahead) as offloaded:
        assert 2 * (ahead + 1) <= len(offloaded.streamed) < 16
        stats = offloaded.stats()
        assert stats["resident_bytes"] + stats["slot_bytes"] <= bytes_of(judge) // 2
        for times in range(1, 4):
            assert torch.equal(module(TOKENS), judge(TOKENS))
            assert offloaded.stats()["fetches"] == times * len(offloaded.streamed) and offloaded.stats()["missed"] == 0
    assert torch.equal(module(TOKENS), judge(TOKENS))


def test_a_layer_waits_for_its_bytes():
    """On a stream that is held, the forward stands until it goes on."""
    device = lade.software_device(clock="cpu")
    module, judge = pair()
    offloaded = third(module, device)
    offloaded._device.handle.soft_hold()
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.no_grad()(module)(TOKENS)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    offloaded._device.handle.soft_release()
    thread.join()
    assert torch.equal(found[0], judge(TOKENS))


def test_a_layer_has_the_same_addresses_each_time(device):
    module, _ = pair()
    offloaded, seen = third(module, device), {}
    for name in offloaded.streamed:
        module.get_submodule(name).up.register_forward_hook(lambda up, *_, name=name: seen.setdefault(name, []).append(up.weight.data_ptr()))
    home = addresses(module)
    for _ in range(3):
        module(TOKENS)
        assert addresses(module) == home
    assert len(seen) == len(offloaded.streamed) and all(len(each) == 3 and len(set(each)) == 1 for each in seen.values())
    assert len({each[0] for each in seen.values()}) == 2  # slots
    assert not {each[0] for each in seen.values()} & set(home)


def test_what_fits_stays_and_has_no_hooks(device):
    module, judge = pair()
    before = addresses(module)
    offloaded = lade.torch.offload(module, resident_bytes=bytes_of(module), device=device)
    assert offloaded.streamed == () and addresses(module) == before
    assert not any(each._forward_pre_hooks or each._forward_hooks for each in module.modules())
    assert torch.equal(module(TOKENS), judge(TOKENS))
    offloaded.close()


def test_too_few_bytes_are_refused_with_the_least(device):
    module, judge = pair()
    with pytest.raises(lade.InvalidArgumentError, match=r"resident_bytes is 1000; expected (\d+) or more: 6432 of buffers") as caught:
        lade.torch.offload(module, resident_bytes=1000, device=device)
    least = int(str(caught.value).split("expected ")[1].split()[0])
    with pytest.raises(lade.InvalidArgumentError):
        lade.torch.offload(module, resident_bytes=least - 1, device=device)
    with lade.torch.offload(module, resident_bytes=least, device=device):
        assert torch.equal(module(TOKENS), judge(TOKENS))


def test_what_stays_is_as_much_as_the_budget_allows():
    for count, slots in itertools.product(range(1, 14), range(2, 6)):
        sizes = [100 + 7 * (at % 3) for at in range(count)]
        blocks, before = [-(-size // 16) * 16 for size in sizes], count + 1
        for budget in [*range(0, sum(sizes), 25), sum(sizes)]:
            needed, streamed, of_slots = offloading._choose(sizes, blocks, budget, slots)
            if needed > budget:
                assert before == count + 1
                continue
            assert needed == sum(sizes) - sum(sizes[at] for at in streamed) + sum(of_slots)
            assert streamed == sorted(set(streamed)) and len(of_slots) == min(slots, len(streamed))
            assert all(blocks[at] <= of_slots[number % slots] for number, at in enumerate(streamed))
            before = min(before, len(streamed))
        assert needed == sum(sizes) and streamed == []


def test_state_comes_and_goes(device):
    module, judge = pair()
    with third(module, device) as offloaded:
        module(TOKENS)
        assert equal(module.state_dict(), judge.state_dict())
        other = Model()
        module.load_state_dict(other.state_dict())
        assert torch.equal(module(TOKENS), other(TOKENS)) and equal(module.state_dict(), other.state_dict())
        module.get_submodule(offloaded.streamed[0]).up.weight.data += 1  # no version counts it
        other.get_submodule(offloaded.streamed[0]).up.weight.data += 1
        assert torch.equal(module(TOKENS), other(TOKENS))
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False)(TOKENS), other(TOKENS))


def test_a_copy_is_a_plain_module(device):
    module, judge = pair()
    with third(module, device) as offloaded:
        module(TOKENS)
        copied = copy.deepcopy(module)
        before = offloaded.stats()
        assert torch.equal(copied(TOKENS), judge(TOKENS)) and offloaded.stats() == before
        with third(copied, device):
            assert torch.equal(copied(TOKENS), judge(TOKENS))


def test_what_is_replaced_is_refused_by_name(device):
    module, judge = pair()
    offloaded = third(module, device)
    first = module.get_submodule(offloaded.streamed[0])
    first.double()
    with pytest.raises(lade.UnsupportedError, match=rf"'{offloaded.streamed[0]}\.norm\.weight' was replaced"):
        module(TOKENS)
    offloaded.close()
    first.float()
    with third(module, device):
        assert torch.equal(module(TOKENS), judge(TOKENS))
        module.load_state_dict(judge.state_dict(), assign=True)
        with pytest.raises(lade.UnsupportedError, match="was replaced"):
            module(TOKENS)


def test_order_is_learned(device):
    module, judge = pair()
    offloaded = third(module, device)
    for order, missed in (([7, 6, 5, 4, 3, 2, 1, 0], True), ([1, 1, 2, 1, 7, 7, 7], True), ([3], True), (list(range(8)), True)):
        module.order = judge.order = order
        for turn in range(3):
            before = offloaded.stats()["missed"]
            assert torch.equal(module(TOKENS), judge(TOKENS))
            assert (offloaded.stats()["missed"] > before) is (missed and turn == 0)
    module.order = [1, 1, 1]
    module(TOKENS)
    before = offloaded.stats()["fetches"]
    module(TOKENS)
    assert offloaded.stats()["fetches"] == before + 1


def test_layers_are_called_without_the_module(device):
    module, judge = pair()
    with third(module, device) as offloaded:
        x = torch.randn(3, 32)
        for name in [*offloaded.streamed, *offloaded.streamed]:
            assert torch.equal(module.get_submodule(name)(x), judge.get_submodule(name)(x))
        assert offloaded.stats()["fetches"] == offloaded.stats()["missed"] == 2 * len(offloaded.streamed)
        for _ in range(2):
            for each in (module, judge):
                each.get_submodule(name).up.weight.data += 1  # no version counts it
            assert torch.equal(module.get_submodule(name)(x), judge.get_submodule(name)(x))
        assert torch.equal(module(TOKENS), judge(TOKENS))


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
def test_a_forward_that_raises_leaves_all_in_order(device, raised):
    module, judge = pair()
    offloaded = third(module, device)
    home = addresses(module)

    def fail(*_):
        raise raised("in a layer")

    for name in offloaded.streamed:
        hook = module.get_submodule(name).down.register_forward_pre_hook(fail)
        with pytest.raises(raised, match="in a layer"):
            module(TOKENS)
        hook.remove()
        if raised is RuntimeError:
            assert addresses(module) == home
        assert equal(module.state_dict(), judge.state_dict())
        assert torch.equal(module(TOKENS), judge(TOKENS)) and addresses(module) == home
        assert torch.equal(module(TOKENS), judge(TOKENS))


def test_gradients_are_refused_by_name(device):
    module, judge = pair()
    offloaded = third(module, device)
    name = offloaded.streamed[0]
    with torch.enable_grad(), pytest.raises(lade.UnsupportedError, match=rf"layer '{name}' is fetched and cannot have gradients: {name}.norm.weight"):
        module(TOKENS)
    module.requires_grad_(False)
    judge.requires_grad_(False)
    with torch.enable_grad():
        assert torch.equal(module(TOKENS), judge(TOKENS))
        layer, x = module.get_submodule(name), torch.randn(3, 32)
        with pytest.raises(lade.UnsupportedError, match="what it gets or gives requires grad"):
            layer(x.clone().requires_grad_())
        layer.up.register_forward_hook(lambda _up, _arguments, output: output + torch.zeros(1, requires_grad=True))
        with pytest.raises(lade.UnsupportedError, match="what it gets or gives requires grad"):
            layer(x)
    with torch.inference_mode():
        assert torch.equal(module(TOKENS), judge(TOKENS))


def test_parameters_that_a_forward_changes_are_written_back(device):
    def grow_bias(up, *_):
        up.bias.add_(1)

    def grow_scale(block, *_):
        block.scale.add_(1)  # a buffer, which stays on the device

    module, judge = pair()
    with third(module, device) as offloaded:
        for each in (module, judge):
            each.get_submodule(offloaded.streamed[1]).up.register_forward_hook(grow_bias)
            for block in each.blocks:
                block.register_forward_hook(grow_scale)
        for times in range(1, 4):
            assert torch.equal(module(TOKENS), judge(TOKENS))
            assert equal(module.state_dict(), judge.state_dict()) and offloaded.stats()["written_back"] == times


def test_tensors_with_two_names_are_one(device):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.Sequential(*(Block(32) for _ in range(8)))
            self.blocks[1].up.weight = self.blocks[5].up.weight  # of two layers
            self.blocks[2].extra = self.blocks[2].up.weight  # of one
            self.blocks[3].down.weight.data = self.blocks[6].down.weight.data  # the same bytes, two parameters

        def forward(self, x):
            return self.blocks(x)

    module = Tied()
    judge, x = copy.deepcopy(module), torch.randn(3, 32)
    with third(module, device, layers=list(module.blocks)) as offloaded:
        assert torch.equal(module(x), judge(x)) and equal(module.state_dict(), judge.state_dict())
        assert module.blocks[2].extra is module.blocks[2].up.weight and module.blocks[1].up.weight is module.blocks[5].up.weight
        module.blocks[1].up.weight.add_(1), judge.blocks[1].up.weight.add_(1)
        module.blocks[2].up.weight.add_(1), judge.blocks[2].up.weight.add_(1)
        assert torch.equal(module(x), judge(x))
        assert offloaded.stats()["resident_bytes"] > 2 * 4 * 4 * 32 * 32


def test_layers_are_found_or_named(device):
    blocks = lambda: [Block(32) for _ in range(6)]  # noqa: E731
    nested = torch.nn.Sequential(torch.nn.ModuleDict({"a": torch.nn.ModuleList([torch.nn.Sequential(*blocks()), Block(32)])}), torch.nn.ReLU())
    assert [layer.name for layer in offloading._layers_from(nested, None).values()] == ["0.a.0", "0.a.1", "1"]
    module = Block(32)
    with pytest.raises(lade.InvalidArgumentError, match=r"module is a .*Block without nn.ModuleList and nn.Sequential; expected .* layers="):
        third(module, device)
    with pytest.raises(lade.InvalidArgumentError, match=r"a .*Linear that is not in the module"):
        third(module, device, layers=[torch.nn.Linear(1, 1)])
    with pytest.raises(lade.InvalidArgumentError, match=r"layers has 'blocks.1' and 'blocks.1.up' in it; expected each apart"):
        model = Model()
        third(model, device, layers=[model.blocks[1], model.blocks[1].up])
    with pytest.raises(lade.InvalidArgumentError, match=r"layers has 'blocks.1' and 'blocks.1.up' in it; expected each apart"):
        third(model, device, layers=[model.blocks[1].up, model.blocks[1]])
    module = torch.nn.Sequential(*(torch.nn.Sequential(Block(32), torch.nn.ReLU()) for _ in range(5)))
    judge, x = copy.deepcopy(module), torch.randn(3, 32)
    with third(module, device, layers=(each[0] for each in module), ahead=1) as offloaded:
        assert offloaded.streamed and all(name.endswith(".0") for name in offloaded.streamed)
        assert torch.equal(module(x), judge(x))


@pytest.mark.parametrize("layout", ["channels_last", "half", "expanded", "scalar", "empty"])
def test_types_and_strides_are_kept(device, layout):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(8, 8, 3, padding=1)
            if layout == "channels_last":
                self.conv.to(memory_format=torch.channels_last)
            if layout == "half":
                self.conv.bfloat16()
            self.factor = torch.nn.Parameter({"scalar": torch.tensor(2.0), "empty": torch.empty(0, 3)}.get(layout, torch.ones(1).expand(8)))
            self.numbers = torch.nn.Parameter(torch.arange(5, dtype=torch.int8), requires_grad=False)

        def forward(self, x):
            return self.conv(x) * self.factor.sum() + self.numbers.sum()

    module = torch.nn.Sequential(*(Layer() for _ in range(8)))
    judge = copy.deepcopy(module)
    strides = [each.stride() for each in module.parameters()]
    x = torch.randn(2, 8, 5, 5, dtype=torch.bfloat16 if layout == "half" else torch.float32)
    with third(module, device) as offloaded:
        assert offloaded.streamed
        assert torch.equal(module(x), judge(x)) and equal(module.state_dict(), judge.state_dict())
        names = [name for name, _ in module.named_parameters()]
        dense = [(1,) if stride == (0,) and name.split(".")[0] in offloaded.streamed else stride for name, stride in zip(names, strides)]
        assert [each.stride() for each in module.parameters()] == dense


def inference_model():
    with torch.inference_mode():
        return Model()


@pytest.mark.parametrize("make, words", [
    (lambda: Model().to("meta"), r"'embedding.weight' is on meta with layout torch.strided; expected a plain torch.nn.Parameter with values"),
    (lambda: torch.nn.Sequential(torch.nn.LazyLinear(3)), "a torch.nn.parameter.UninitializedParameter|UninitializedParameter of"),
    (inference_model, r"made in torch.inference_mode\(\)"),
    (lambda: torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2))), "is a torch.jit.ScriptModule"),
    (lambda: torch.compile(Model(), backend="eager"), "was compiled before"),
])
def test_what_cannot_be_offloaded_is_refused_by_name(device, make, words):
    with pytest.raises(lade.UnsupportedError, match=words):
        lade.torch.offload(make(), resident_bytes=1 << 30, device=device)


def test_wrong_arguments_are_refused(device):
    module, judge = pair()
    before = addresses(module)
    for wrong, words in (
        (dict(resident_bytes=1.5), "resident_bytes is a float; expected an int"), (dict(ahead="1"), "ahead is a str"), (dict(pool=1), "pool is a int"),
        (dict(layers=5), "layers is a int; expected a list of torch.nn.Module or None"), (dict(layers=[1]), "layers is a int"),
    ):
        with pytest.raises(TypeError, match=words):
            lade.torch.offload(module, **{"resident_bytes": 1 << 20, "device": device, **wrong})
    with pytest.raises(TypeError, match="module is a int; expected a torch.nn.Module"):
        lade.torch.offload(1, resident_bytes=1, device=device)
    for wrong, words in ((dict(ahead=0), "ahead is 0; expected 1 to 64"), (dict(device="cpu"), "device is 'cpu'; expected a GPU")):
        with pytest.raises(lade.InvalidArgumentError, match=words):
            lade.torch.offload(module, **{"resident_bytes": 1 << 20, "device": device, **wrong})
    with third(module, device), pytest.raises(lade.InvalidArgumentError, match="is offloaded already"):
        third(module, device)
    assert torch.equal(module(TOKENS), judge(TOKENS))
    assert addresses(module) != before


def test_a_failure_leaves_the_module_as_it_was(device):
    """The pool has room for some of the layers."""
    module, judge = pair(16, 128)
    pool = lade.PinnedPool(device, max_bytes=2 << 20, segment_bytes=1 << 20)
    before = {name: each.device for name, each in module.named_parameters()}
    with pytest.raises(lade.LimitError):
        lade.torch.offload(module, resident_bytes=bytes_of(module) // 3, device=device, pool=pool)
    assert equal(module.state_dict(), judge.state_dict()) and {name: each.device for name, each in module.named_parameters()} == before
    assert not any(each._forward_pre_hooks or each._forward_hooks for each in module.modules())
    pool.process_events()
    assert pool.stats()["in_use_blocks.current"] == 0
    assert torch.equal(module(TOKENS), judge(TOKENS))


def test_a_copy_that_fails_fails_the_forward(monkeypatch, device):
    module, judge = pair()
    offloaded = third(module, device)
    real, calls = lade.copy_async, itertools.count()
    for failing in range(len(offloaded.streamed)):
        calls = itertools.count()

        def copy_or_fail(*arguments):
            if next(calls) == failing:
                raise lade.Error("the copy was refused")
            real(*arguments)

        monkeypatch.setattr(lade, "copy_async", copy_or_fail)
        with pytest.raises(lade.Error, match="was refused"):
            module(TOKENS)
        monkeypatch.setattr(lade, "copy_async", real)
        assert equal(module.state_dict(), judge.state_dict())
        assert torch.equal(module(TOKENS), judge(TOKENS))


def test_one_thread_at_a_time(device):
    module, judge = pair()
    offloaded = third(module, device)
    inside, go_on, seen = threading.Event(), threading.Event(), []

    def hold(*_):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            go_on.wait()

    module.get_submodule(offloaded.streamed[0]).norm.register_forward_pre_hook(hold)
    thread = threading.Thread(target=lambda: seen.append(torch.no_grad()(module)(TOKENS)))
    thread.start()
    inside.wait()
    with pytest.raises(lade.BusyError, match=f"layer '{offloaded.streamed[0]}' is called while another thread runs"):
        module(TOKENS)
    with pytest.raises(lade.BusyError, match="runs; expected close"):
        offloaded.close()
    go_on.set()
    thread.join()
    assert torch.equal(seen[0], judge(TOKENS)) and torch.equal(module(TOKENS), judge(TOKENS))


def test_layers_that_call_each_other(device):
    module, judge = pair(12)
    offloaded = third(module, device)
    first, second, third_one = (module.get_submodule(name) for name in offloaded.streamed[:3])
    x = torch.randn(3, 32)
    hook = first.norm.register_forward_hook(lambda _norm, _arguments, output: second(output))  # of the other slot
    of_judge = judge.get_submodule(offloaded.streamed[0]).norm.register_forward_hook(
        lambda _norm, _arguments, output: judge.get_submodule(offloaded.streamed[1])(output))
    assert torch.equal(module(TOKENS), judge(TOKENS))
    hook.remove(), of_judge.remove()
    hook = first.norm.register_forward_hook(lambda _norm, _arguments, output: third_one(output))
    with pytest.raises(lade.UnsupportedError, match="is called within .* whose memory it shares"):
        first(x)
    hook.remove()
    assert torch.equal(module(TOKENS), judge(TOKENS))


@pytest.mark.parametrize("compiled", ["module", "in place", "layers"])
def test_compiled_afterwards(device, compiled):
    module, judge = pair()
    with third(module, device) as offloaded:
        called = module
        if compiled == "module":
            called = torch.compile(module, backend="eager")
        for each in [module] if compiled == "in place" else module.blocks if compiled == "layers" else []:
            each.compile(backend="eager")
        for times in range(1, 4):
            assert torch.equal(called(TOKENS), judge(TOKENS))
            assert offloaded.stats()["fetches"] == times * len(offloaded.streamed) and offloaded.stats()["missed"] == 0
    torch._dynamo.reset()


def test_one_graph_of_all_is_refused_by_name(device):
    module, _ = pair()
    with third(module, device), pytest.raises(Exception, match=r"lade.torch.offload\(\) fetches layers in hooks"):
        torch.compile(module, backend="eager", fullgraph=True)(TOKENS)
    torch._dynamo.reset()


def test_memory_goes_with_the_module(device):
    pool = lade.PinnedPool(device)
    module, _ = pair()
    offloaded = weakref.ref(third(module, device, pool=pool))
    module(TOKENS)
    gc.disable()
    try:
        assert offloaded() is not None and pool.stats()["in_use_blocks.current"] == len(offloaded().streamed)
        del module
        assert offloaded() is None
    finally:
        gc.enable()
    pool.process_events()
    assert pool.stats()["in_use_blocks.current"] == 0


def test_close_leaves_the_values_on_the_host(device):
    module, judge = pair()
    offloaded = third(module, device)
    module(TOKENS)
    offloaded.close()
    offloaded.close()
    assert not any(each._forward_pre_hooks or each._forward_hooks for each in module.modules())
    assert torch.equal(module(TOKENS), judge(TOKENS)) and torch.equal(module.double()(TOKENS), judge.double()(TOKENS))
    assert repr(offloaded).startswith("<lade.torch.offloading.Offload: ")


# ---- The streams of a GPU, played: what is ordered is seen by vector clocks, whenever it would run --------------------


class PlayedCapture:
    def __init__(self, origin):
        self.origin, self.streams, self.live = origin, [], True


class PlayedStream:
    def __init__(self, name):
        self.name, self.count, self.clock, self.capture = name, 0, {}, None

    def tick(self):
        self.count += 1
        self.clock[self.name] = self.count
        return self.name, self.count

    def is_behind(self, moment):
        name, count = moment
        return self.clock.get(name, 0) >= count

    def wait_event(self, event):
        assert event.clock is not None, "the event was never recorded"
        if event.capture is None:
            assert self.capture is None, "a capture waits for what was queued before it"
        else:
            assert event.capture.live, "the event is of a capture that has ended"
            if self.capture is None:
                event.capture.streams.append(self)
            self.capture = event.capture
        for name, count in event.clock.items():
            self.clock[name] = max(self.clock.get(name, 0), count)

    def wait_stream(self, other):
        event = PlayedEvent()
        event.record(other)
        self.wait_event(event)


class PlayedEvent:
    clock = capture = None

    def record(self, stream):
        stream.tick()
        self.clock, self.capture = dict(stream.clock), stream.capture


class PlayedGpu(offloading._Gpu):
    """Copies and kernels are done at once, so values are right; in what order a GPU might do them the clocks say."""

    def __init__(self, monkeypatch):
        self.torch, self.lade = torch.device("cpu"), lade.software_device(clock="sim")
        self.stream, self.handle = PlayedStream("copies"), self.lade.stream()
        self.current, self.memory_of = PlayedStream("main"), set()
        self.written, self.used = {}, {}  # by address of a slot: its copy, and its uses since
        monkeypatch.setattr(torch.cuda, "Event", PlayedEvent)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: self.current)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.current.capture is not None)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda memory, stream: self.memory_of.add((memory.data_ptr(), stream)))
        monkeypatch.setattr(offloading, "_device_from", lambda _device: self)
        monkeypatch.setattr(lade, "copy_async", self.copy)

    def synchronize(self):
        self.current.wait_stream(self.stream)

    def copy(self, _device, to, source, handle):
        assert handle is self.handle
        moment = self.stream.tick()
        if isinstance(to, torch.Tensor):
            slot = to.data_ptr()
            assert all(self.stream.is_behind(use) for use in self.used.get(slot, [])), "the slot is in use"
            assert slot not in self.written or self.stream.is_behind(self.written[slot])
            self.written[slot], self.used[slot] = moment, []
            to.copy_(torch.frombuffer(source, dtype=torch.uint8))
        else:
            assert self.stream.is_behind(self.used[source.data_ptr()][-1])
            torch.frombuffer(to, dtype=torch.uint8).copy_(source)

    def watch(self):
        """A hook of a layer's first submodule, whose parameter is at the begin of the layer's slot: a kernel."""

        def use(norm, *_):
            slot = norm.weight.data_ptr()
            if slot in self.written:
                assert self.current.is_behind(self.written[slot]), "a kernel does not wait for its layer"
                self.used[slot].append(self.current.tick())
                known = self.current.name == "main" or any(stream is self.current for _, stream in self.memory_of)
                assert known or self.current.capture, "the allocator does not know that the stream uses the slot"

        return use

    def capture(self, run):
        """As torch.cuda.graph does it, on a stream of its own."""
        before, self.current = self.current, PlayedStream("capture")
        capture = self.current.capture = PlayedCapture(self.current)
        self.written.clear(), self.used.clear()  # a launch comes when all before is done
        run()
        assert all(self.current.is_behind((each.name, each.count)) for each in capture.streams), "a stream has not joined"
        for each in [self.current, *capture.streams]:
            each.capture = None
        capture.live, self.current = False, before
        self.written.clear(), self.used.clear()


@pytest.mark.parametrize("ahead", [1, 2])
def test_copies_and_kernels_are_ordered_on_a_gpu(monkeypatch, ahead):
    played = PlayedGpu(monkeypatch)
    module, judge = pair(12)
    offloaded = third(module, None, ahead=ahead)
    for name in offloaded.streamed:
        module.get_submodule(name).norm.register_forward_hook(played.watch())
    streams = [played.current, PlayedStream("second"), PlayedStream("third")]
    orders = [list(range(12)), [1, 2, 1, 4, 4, 7, 2], [11, 9, 7, 5, 1], list(range(12))]
    for turn, (stream, order) in enumerate(itertools.product(streams, orders)):
        played.current = stream
        module.order = judge.order = order
        for _ in range(2):
            assert torch.equal(module(TOKENS), judge(TOKENS))
        if turn % 3 == 0:
            played.capture(lambda: module(TOKENS))
            played.capture(lambda: module.get_submodule(offloaded.streamed[turn % 2])(torch.randn(3, 32)))
    for layer, stream in itertools.product(offloaded.streamed[:3] * 2, streams):  # without the module
        played.current = stream
        x = torch.randn(3, 32)
        assert torch.equal(module.get_submodule(layer)(x), judge.get_submodule(layer)(x))
    switch = itertools.cycle(streams)

    def use_the_next_stream(*_):
        played.current = next(switch)

    module.get_submodule(offloaded.streamed[0]).register_forward_hook(use_the_next_stream)  # within a forward, where a layer stays
    module.order = judge.order = [int(offloaded.streamed[0].split(".")[1])] * 5 + list(range(12))
    for _ in range(3):
        assert torch.equal(module(TOKENS), judge(TOKENS))
    assert played.stream.count > 100
    offloaded.close()


def test_what_a_capture_cannot_is_refused(monkeypatch):
    played = PlayedGpu(monkeypatch)
    module, judge = pair(12)
    offloaded = third(module, None)

    def grow(norm, *_):
        norm.bias.add_(1)

    module.get_submodule(offloaded.streamed[0]).norm.register_forward_hook(played.watch())
    module.get_submodule(offloaded.streamed[0]).norm.register_forward_hook(grow)
    judge.get_submodule(offloaded.streamed[0]).norm.register_forward_hook(grow)
    assert torch.equal(module(TOKENS), judge(TOKENS)) and torch.equal(module(TOKENS), judge(TOKENS))

    def refused():
        with pytest.raises(lade.UnsupportedError, match="changes its parameters in a capture"):
            module(TOKENS)

    played.capture(refused)


RANKS = """
import os, sys, torch, torch.distributed as dist, lade, lade.torch
dist.init_process_group("gloo")
rank, what = dist.get_rank(), sys.argv[1]
device = lade.software_device(clock="cpu")
pool = lade.PinnedPool(device, budget_name=sys.argv[2])
torch.manual_seed(0)
module = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
x = torch.randn(3, 64)
with torch.no_grad():
    module[0].bias[0] = float("nan")
    wanted = module(x)
    before = [each.data_ptr() for each in module.parameters()]
    if what == "values" and rank == 1:
        module[5].bias[3] += 1
    options = dict(resident_bytes=70000, device=device, pool=pool, group=dist.group.WORLD)
    if what == "layers" and rank == 1:
        options["ahead"] = 2
    if what == "fails" and rank == 1:
        pool.close()
    try:
        offloaded = lade.torch.offload(module, **options)
    except lade.Error as error:
        print(type(error).__name__, error, [each.data_ptr() for each in module.parameters()] == before)
        assert not module._forward_pre_hooks
        sys.exit()
    same = lambda: bool(torch.equal(module(x).nan_to_num(7), wanted.nan_to_num(7)))
    print(same(), offloaded.stats()["host_bytes"], pool.stats()["budget_held_bytes"])
    dist.barrier()
    if rank == 0:  # what one changes the others see: it is one memory
        module[7].weight.zero_()
    dist.barrier()
    print(bool((module[7].weight == 0).all()))
    dist.barrier()
    if rank == 0:
        os._exit(0)
    module[7].weight.fill_(2)
    module(x)
    print(float(module[7].weight.sum()))
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch is not distributed")
@pytest.mark.parametrize("what", ["shared", "values", "layers", "fails"])
def test_ranks_share_what_they_have_on_the_host(tmp_path, what):
    program = tmp_path / "program.py"
    program.write_text(RANKS)
    port = str(20000 + os.getpid() % 20000)
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, program, what, f"offload-{os.getpid()}"], env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) for rank in range(2)]
    done = [rank.communicate(timeout=120) for rank in ranks]
    said = [out.splitlines() for out, _ in done]
    if what == "shared":
        assert [rank.returncode for rank in ranks] == [0, 0], done[1][1]
        assert all(lines[0].startswith("True ") and lines[1] == "True" for lines in said) and said[1][2] == str(2.0 * 64 * 64), said
        (_, needed, held), (_, _, of_other) = said[0][0].split(), said[1][0].split()
        assert 0 < int(needed) <= int(held) < 2 * int(needed) and of_other == held  # charged once
        return
    assert said[0] and said[1], done
    wrong = {"values": "parameter '5.bias' differs from rank 0's", "layers": "rank 1 has other layers, bytes or types than rank 0", "fails": "closed"}[what]
    for rank, (line,) in enumerate(said):
        assert wrong in line and line.startswith("PeerError rank 1 of the group failed" if rank == 0 and what != "layers" else "")
        assert line.endswith("True") or what == "values"
