# SPDX-License-Identifier: Apache-2.0
"""lade.torch.offload() on a GPU: its streams and events, and CUDA graphs. A module that is not offloaded judges, bit for bit.

Blocks are large and compute little, so that a kernel that does not wait for its layer's copy is early.
"""

import copy
import gc

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
import lade  # noqa: E402
import lade.torch  # noqa: E402

WIDTH, COUNT = 2048, 12


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, x):
        return x + self.scale * self.down(torch.relu(self.up(self.norm(x))))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(COUNT))
        self.last = torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield
    torch.cuda.synchronize()


@pytest.fixture(scope="module")
def judge():
    torch.manual_seed(0)
    with torch.device("cuda"):
        return Model().bfloat16()


def nbytes(module):
    return sum(each.numel() * each.element_size() for each in [*module.parameters(), *module.buffers()])


def third(module, **options):
    return lade.torch.offload(module, resident_bytes=nbytes(module) // 3 + (1 << 20), pool=lade.PinnedPool(max_bytes=8 << 30, budget=False), **options)


def inputs(count, rows=16):
    return [torch.randn(rows, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(count)]


@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_outputs_are_equal(judge, ahead, where):
    module = copy.deepcopy(judge).to(where)
    module.last.to("cpu")
    with lade.torch.offload(module, resident_bytes=nbytes(module) // 2, ahead=ahead, pool=lade.PinnedPool(max_bytes=8 << 30, budget=False)) as offloaded:
        assert offloaded.streamed and all(each.is_cuda for each in module.buffers())
        xs = inputs(5)
        found = [module(x) for x in xs]  # without a wait between them
        assert all(torch.equal(one, judge(x)) for one, x in zip(found, xs))
        assert offloaded.stats()["missed"] == 0
        with torch.inference_mode():
            assert torch.equal(module(xs[0]), judge(xs[0]))
        state = module.state_dict()
        assert all(torch.equal(value.cuda(), state[key].cuda()) for key, value in judge.state_dict().items())
        assert not any(state[f"{name}.up.weight"].is_cuda for name in offloaded.streamed)


def test_device_memory_is_within_the_bound(judge):
    whole = nbytes(judge)
    gc.collect()
    before = torch.cuda.memory_allocated()
    module = copy.deepcopy(judge)
    offloaded = third(module)
    stats = offloaded.stats()
    assert stats["resident_bytes"] + stats["slot_bytes"] <= whole // 3 + (1 << 20)
    assert torch.cuda.memory_allocated() - before <= whole // 3 + (2 << 20)
    module(inputs(1)[0])
    del module, offloaded
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


def test_a_graph_replays_between_eager_forwards(judge):
    module = copy.deepcopy(judge)
    offloaded = third(module)
    source, *xs = inputs(6)
    module(source)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module(source)
    fetches = offloaded.stats()["fetches"]
    for turn, x in enumerate(xs):
        source.copy_(x)
        graph.replay()
        assert torch.equal(out, judge(x))
        if turn % 2:
            assert torch.equal(module(x), judge(x))
            source.copy_(x)
            graph.replay()
            graph.replay()
            assert torch.equal(out, judge(x))
    assert offloaded.stats()["fetches"] == fetches + 2 * len(offloaded.streamed)
    torch.cuda.synchronize()
    other = copy.deepcopy(judge)
    for one in other.parameters():
        one.add_(0.01)
    module.load_state_dict(other.state_dict())  # a replay copies what the host has
    source.copy_(xs[0])
    graph.replay()
    assert torch.equal(out, other(xs[0])) and torch.equal(module(xs[0]), other(xs[0]))
    del graph
    torch.cuda.synchronize()
    offloaded.close()


def test_a_graph_of_some_layers(judge):
    module = copy.deepcopy(judge)
    with third(module) as offloaded:
        names = offloaded.streamed[:3]  # the first and the last of one slot
        (source,) = inputs(1)
        module(source)
        graphs = []
        for name in names:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = module.get_submodule(name)(source)
            graphs.append((name, graph, out))
        for name, graph, out in [*graphs, *reversed(graphs)]:
            graph.replay()
            assert torch.equal(out, judge.get_submodule(name)(source))
        assert torch.equal(module(source), judge(source))
        del graph, graphs
        torch.cuda.synchronize()


def test_forwards_on_several_streams(judge):
    module = copy.deepcopy(judge)
    with third(module):
        streams = [torch.cuda.Stream() for _ in range(3)]
        xs, found = inputs(9, 2048), []
        torch.cuda.synchronize()
        for turn, x in enumerate(xs):
            with torch.cuda.stream(streams[turn % 3]):  # that wait for nothing of each other
                found.append(module(x))
        torch.cuda.synchronize()
        assert all(torch.equal(one, judge(x)) for one, x in zip(found, xs))


def test_memory_that_goes_early_is_not_copied_into(judge):
    """The module goes while its copies are queued."""
    for _ in range(3):
        module = copy.deepcopy(judge)
        third(module)
        (x,) = inputs(1)
        torch.cuda.synchronize()
        out = module(x)
        del module
        gc.collect()
        taken = [torch.zeros(1 << 26, dtype=torch.uint8, device="cuda") for _ in range(8)]
        torch.cuda.synchronize()
        assert torch.equal(out, judge(x)) and not any(bool(each.any()) for each in taken)


def test_changes_by_a_forward_are_written_back(judge):
    module, own = copy.deepcopy(judge), copy.deepcopy(judge)
    with third(module) as offloaded:
        def grow(up, *_):
            up.bias.add_(1)

        for each in (module, own):
            each.get_submodule(offloaded.streamed[1]).up.register_forward_hook(grow)
        for x in inputs(3):
            assert torch.equal(module(x), own(x))
        assert offloaded.stats()["written_back"] == 3
        assert torch.equal(module.get_submodule(offloaded.streamed[1]).up.bias.cuda(), own.get_submodule(offloaded.streamed[1]).up.bias)
        module(x)
        torch.cuda.synchronize()
        with pytest.raises(lade.UnsupportedError, match="changes its parameters in a capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            module(x)


def test_too_little_pinned_memory_leaves_the_module_as_it_was(judge):
    module = copy.deepcopy(judge)
    with pytest.raises(lade.LimitError):
        lade.torch.offload(module, resident_bytes=nbytes(module) // 3, pool=lade.PinnedPool(max_bytes=256 << 20))
    assert all(each.is_cuda for each in module.parameters())
    (x,) = inputs(1)
    assert torch.equal(module(x), judge(x))


@pytest.mark.parametrize("what", ["module", "layers", "reduce-overhead"])
def test_compiled_afterwards(judge, what):
    module = copy.deepcopy(judge)
    mode = "reduce-overhead" if what == "reduce-overhead" else None
    with third(module) as offloaded:
        if what == "layers":
            for block in module.blocks:
                block.compile(mode=mode)
        called = module if what == "layers" else torch.compile(module, mode=mode)
        (x,) = inputs(1)
        for times in range(1, 5):
            torch.testing.assert_close(called(x).clone(), judge(x), rtol=0.05, atol=0.05)
            assert offloaded.stats()["fetches"] == times * len(offloaded.streamed) and offloaded.stats()["missed"] == 0
    torch._dynamo.reset()
