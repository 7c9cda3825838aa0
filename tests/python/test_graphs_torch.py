# SPDX-License-Identifier: Apache-2.0
"""lade.graphs with PyTorch's tensors, without a GPU: their memory is a software device's, which PyTorch takes for the host's.

What queues work of PyTorch's on a stream is in tests/python_gpu/test_graphs.py.
"""

import ctypes
import gc
import sys
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")
import lade  # noqa: E402
import lade.graphs  # noqa: E402

ROWS = 8


class World:
    def __init__(self):
        self.device = lade.software_device(clock="cpu")
        self.stream, self.allocator = self.device.stream(), lade.DeviceAllocator(self.device)
        self.tree = lade.graphs.Tree(self.allocator, stream=self.stream)
        self.calls = 0

    def tensor(self, shape, stream, dtype=torch.float32):
        """A tensor that owns a block of the allocator."""
        numel = int(torch.Size(shape).numel())
        block = self.allocator.alloc(numel * dtype.itemsize, stream)
        memory = (ctypes.c_char * block.nbytes).from_address(block.ptr)
        memory.block = block
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    def put(self, values):
        out = self.tensor(values.shape, self.stream, values.dtype)
        self.stream.synchronize()
        out.view(torch.uint8).copy_(values.view(torch.uint8)) if values.element_size() == 1 else out.copy_(values)  # 2.8 copies no float4
        return out

    def flip(self, x):
        """Rows the other way around, on the stream."""
        self.calls += 1
        out = self.tensor(x.shape, lade.graphs.stream(), x.dtype)
        rows = range(len(x))
        lade.copy_blocks(self.device, out, x, rows, rows[::-1], lade.graphs.stream())
        return out

    def read(self, tensor):
        self.stream.synchronize()
        return tensor.clone()


@pytest.fixture
def world():
    return World()


DTYPES = ["float32", "bfloat16", "int64", "bool", "complex64", "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn_x2"]


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES if hasattr(torch, name)])
def test_tensors_go_in_and_come_out(world, dtype):
    flip = world.tree.function(world.flip)
    for i in range(5):
        values = torch.arange(ROWS * 3).view(ROWS, 3).add(i)
        values = values.to(torch.uint8).view(dtype) if dtype.itemsize == 1 and dtype != torch.bool else values.to(dtype)
        out = flip(world.put(values))
        assert type(out) is torch.Tensor and out.dtype == dtype and out.shape == (ROWS, 3)
        assert torch.equal(world.read(out.view(torch.uint8)), values.view(torch.uint8).flip(0))
    assert world.calls == 2 and world.tree.stats()["replays"] == 3


def test_strides_and_views_come_out_as_they_are(world):
    def parts(x):
        out = world.flip(x)
        return out.t(), out[2:4, 1:], out[0, 0], out

    run = world.tree.function(parts)
    values = torch.arange(24.0).view(8, 3)
    for _ in range(4):
        turned, part, number, whole = run(world.put(values))
        expected = values.flip(0)
        world.stream.synchronize()
        assert turned.stride() == (1, 3) and torch.equal(turned, expected.t())
        assert part.shape == (2, 2) and torch.equal(part, expected[2:4, 1:])
        assert number.shape == () and number.item() == 21.0 and torch.equal(whole, expected)
        assert part.data_ptr() == whole[2:4, 1:].data_ptr()


def test_an_argument_that_is_no_block_of_its_own(world):
    flip = world.tree.function(world.flip)
    values = torch.arange(40.0).view(10, 4)
    base = world.put(values)
    for _ in range(4):
        assert torch.equal(world.read(flip(base[1:9])), values[1:9].flip(0))
    assert world.tree.stats()["replays"] == 2


@pytest.mark.parametrize("lazy", [lambda x: x.conj(), lambda x: x._neg_view()])
def test_arguments_whose_bytes_are_not_their_values_are_refused(world, lazy):
    """Regression: the function that was recorded got the bytes as values."""
    x = world.put(torch.complex(torch.arange(8.0), torch.ones(8)))
    run = world.tree.function(lambda x: world.flip(x.resolve_conj().resolve_neg()), name="run")
    for _ in range(2):
        with pytest.raises(lade.InvalidArgumentError, match="run: x has bytes that are not its values yet; expected tensor.resolve"):
            run(lazy(x))
        run(x)


def test_an_empty_part_of_a_block_is_a_result(world):
    """Regression: the block was held until the end of the body, and refused as left behind."""
    run = world.tree.function(lambda x: (world.flip(x)[:0], world.flip(x)[:, :0]), name="run")
    for _ in range(4):
        rows, columns = run(world.put(torch.zeros(ROWS, 3)))
        assert (rows.shape, columns.shape, columns.stride()) == ((0, 3), (ROWS, 0), (3, 1))


def test_sparse_tensors_are_refused_by_name(world):
    run = world.tree.function(lambda first, x: x, name="run")
    for sparse in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()):
        with pytest.raises(lade.InvalidArgumentError, match="run: x is a tensor on cpu of layout torch.sparse_.*; expected one on cpu, of"):
            run(1, sparse)


def test_objects_of_pytorch_that_are_no_values_are_refused(world):
    """Regression: a module was taken for a value, and its weights were not looked at."""
    run = world.tree.function(lambda x, what: world.flip(x), name="run")
    x = world.put(torch.zeros(ROWS))
    for value in (torch.float32, torch.device("cpu"), torch.strided, torch.contiguous_format, torch.Size([1])):
        run(x, value)
    for wrong in (torch.nn.Linear(1, 1), torch.Generator()):
        with pytest.raises(TypeError, match="run: what is a torch.* expected an array, a number, a text or None"):
            run(x, wrong)


def test_a_view_of_an_output_is_an_input_in_place(world):
    flip = world.tree.function(world.flip)
    x = world.put(torch.arange(16.0).view(8, 2))
    for _ in range(5):
        world.tree.step()
        a = flip(x)
        copied = world.tree.stats()["copied"]
        b = flip(a[2:6])
        assert torch.equal(world.read(b), torch.arange(16.0).view(8, 2).flip(0)[2:6].flip(0))
        assert world.tree.stats()["copied"] == copied
        del a, b


def test_a_tensor_that_was_overwritten_refuses_access(world):
    flip = world.tree.function(world.flip, name="my flip")
    x = world.put(torch.arange(8.0))
    for _ in range(4):
        old = flip(x)
        new = flip(x)
        for use in (lambda t: t.clone(), lambda t: t.data_ptr(), flip, lambda t: t.tolist(), lambda t: t[1:] + 1):
            with pytest.raises(RuntimeError, match=r"an output of my flip was overwritten by a later call: copy what .*\(tensor.clone\(\)\)"):
                use(old)
        assert torch.equal(world.read(new), torch.arange(8.0).flip(0))


@pytest.mark.parametrize("view", [lambda t: t.detach(), lambda t: t[2:], lambda t: t.view(2, 4)])
def test_views_of_a_tensor_that_was_overwritten_are_warned_of(world, view):
    flip = world.tree.function(world.flip, name="my flip")
    x = world.put(torch.arange(8.0))
    kept = view(flip(x))
    with pytest.warns(RuntimeWarning, match="an output of my flip, of which there are views, was overwritten by a later call"):
        flip(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once for each
        flip(x)
    assert kept.shape[0] > 0


def test_a_kept_output_is_not_written_over_within_its_step(world):
    flip = world.tree.function(world.flip)
    x = world.put(torch.arange(8.0))
    for _ in range(3):
        world.tree.step()
        outs = [flip(x) for _ in range(4)]
        assert len({each.data_ptr() for each in outs}) == 4
        assert all(torch.equal(world.read(each), torch.arange(8.0).flip(0)) for each in outs)
        del outs
    assert world.tree.stats()["overwritten"] == 0


def test_counts_go_with_the_last_view(world):
    flip = world.tree.function(world.flip)
    out = flip(world.put(torch.arange(8.0)))
    view = out[1:]
    del out
    gc.collect()
    assert world.tree.stats()["buffers"] == 1
    with pytest.raises(lade.BusyError):
        world.tree.close()
    del view
    assert world.tree.stats()["buffers"] == 0
    world.tree.close()


def test_a_write_that_was_not_said_is_an_error(world):
    def writes(x):
        x.add_(0)
        return world.flip(x)

    x = world.put(torch.arange(8.0))
    with pytest.raises(lade.InvalidArgumentError, match="writes writes to x; expected its name in mutates"):
        world.tree.function(writes)(x)
    said = world.tree.function(writes, static=["x"], mutates=["x"])
    for _ in range(3):
        assert torch.equal(world.read(said(x)), torch.arange(8.0).flip(0))


def test_gradients_do_not_cross(world):
    flip = world.tree.function(world.flip)
    x = world.put(torch.arange(8.0)).requires_grad_()
    with pytest.raises(lade.InvalidArgumentError, match="flip: x requires gradients, which do not cross a recording"):
        flip(x)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(world.read(flip(x)), torch.arange(8.0).flip(0))

    def learns(x):
        return world.flip(x).requires_grad_()

    with pytest.raises(lade.InvalidArgumentError, match=r"value 0 that learns returns requires gradients.*tensor.detach\(\)"):
        world.tree.function(learns)(x.detach())


def test_pytorchs_state_is_part_of_the_form(world):
    flip = world.tree.function(world.flip)
    x = world.put(torch.arange(8.0))
    for _ in range(3):
        flip(x)
    assert world.calls == 2
    with torch.no_grad():
        flip(x)
    with torch.inference_mode():
        out = flip(x)
    torch.set_autocast_enabled("cuda", True)
    try:
        flip(x)
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert world.calls == 5 and out.is_inference()


def test_tensors_elsewhere_are_refused(world):
    flip = world.tree.function(world.flip)
    with pytest.raises(lade.InvalidArgumentError, match="flip: x is a tensor on meta of layout .*; expected one on cpu, of torch.strided"):
        flip(torch.ones(3, device="meta"))


def test_a_module_brings_its_weights(world):
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(world.put(torch.arange(8.0)), requires_grad=False)
    module.forward = lambda: world.flip(module.weight)
    run = world.tree.function(module)
    for _ in range(4):
        assert torch.equal(world.read(run()), torch.arange(8.0).flip(0))
    assert world.calls == 2
    module.weight.data = world.put(torch.arange(8.0) + 1)
    for _ in range(3):
        assert torch.equal(world.read(run()), torch.arange(8.0).flip(0) + 1)
    assert world.calls == 3 and world.tree.stats()["mismatches.static"] == 1


def test_a_failing_function_keeps_no_tensor(world):
    def fails(x):
        out = world.flip(x)
        pair = [out, out[1:]]
        pair.append(pair)
        raise ValueError("no")

    run, flip = world.tree.function(fails), world.tree.function(world.flip)
    x = world.put(torch.arange(8.0))
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            run(x)
        world.tree.step()
        assert torch.equal(world.read(flip(x)), torch.arange(8.0).flip(0))
    assert world.tree.stats()["buffers"] == 0


def test_a_result_kept_by_the_function_is_named(world):
    kept = []

    def keeps(x):
        kept.append(world.flip(x))
        return kept[-1][2:]

    with pytest.raises(lade.CallbackError, match="keeps kept the block"):
        world.tree.function(keeps)(world.put(torch.arange(8.0)))
    kept.clear()


@pytest.mark.skipif(torch.version.cuda is None, reason="this PyTorch has no CUDA")
def test_an_allocator_of_pytorch_is_lent_once_and_stays():
    import subprocess

    done = subprocess.run([sys.executable, "-c", """
import torch, lade, lade.torch, lade.graphs
torch.cuda._lazy_init = lambda: None
try: lade.torch.device_allocator(0)
except lade.UnsupportedError as error: print("install_device() at" in str(error))
lade.torch._device_native = lade.torch._native()
lade.torch._call(lade.torch._native().lade_torch_device_install, b"cpu", b"")
a = lade.torch.device_allocator(0)
print(a is lade.torch.device_allocator("cuda:0"), a.device.software)
p = torch._C._cuda_cudaCachingAllocator_raw_alloc(1000, 0)
print(a.usage()["allocated_bytes"])
try: a.close()
except lade.BusyError: print("stays")
stream = a.device.stream()
tree = lade.graphs.Tree(a, stream=stream)
@tree.function
def pick(n):
    # As PyTorch's tensors do: memory comes from its allocator, and goes back to that, in the function.
    address = torch._C._cuda_cudaCachingAllocator_raw_alloc(512, lade.graphs.stream())
    class Memory:
        __array_interface__ = None
    torch._C._cuda_cudaCachingAllocator_raw_delete(address)
    return n
print([pick(3) for _ in range(4)], tree.stats()["replays"], tree._torch is torch, a.usage()["allocated_bytes"])
"""], capture_output=True, text=True, timeout=100)
    if "no native part" in done.stderr:
        pytest.skip("this build of lade has no native part for this PyTorch")
    assert done.stdout.split("\n")[:5] == ["True", "True True", "1024", "stays", "[3, 3, 3, 3] 2 True 1024"], done.stderr


def test_tensors_that_are_gone_are_forgotten(world):
    """Else a loop would remember each of its results."""
    flip = world.tree.function(world.flip)
    x = world.put(torch.arange(float(ROWS)))
    kept = flip(x)
    world.tree.step()
    for _ in range(5000):
        out = flip(x)
        world.tree.step()
    assert len(world.tree._given) <= 4097
    with pytest.raises(RuntimeError, match="an output of flip was overwritten"):
        kept.sum()


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("turn", [lambda t: t, lambda t: t.t()])
def test_a_result_that_is_overwritten_while_it_is_made_is_refused(world, monkeypatch, at, after, turn):
    """Regression: a call of another thread took its outputs between the run and its tensors, and told of none of them."""
    flip = world.tree.function(world.flip)
    x = world.put(torch.arange(2.0 * ROWS).view(ROWS, 2))
    make, count, is_on = torch._C._from_dlpack, [], []

    def other():
        thread = threading.Thread(target=flip, args=(x,))
        thread.start()
        thread.join()

    def make_beside(capsule):
        if not is_on or threading.current_thread() is not threading.main_thread():
            return make(capsule)
        count.append(None)
        if len(count) == 1 + at and not after:
            other()
        tensor = make(capsule)
        if len(count) == 1 + at and after:
            other()
        return tensor

    monkeypatch.setattr(torch._C, "_from_dlpack", make_beside)
    two = world.tree.function(lambda x: (turn(world.flip(x)), turn(world.flip(x))))
    for _ in range(3):
        two(x)
        flip(x)
    is_on.append(True)
    outs = two(x)
    is_on.clear()
    assert len(count) == 2
    for out in outs:
        with pytest.raises(RuntimeError, match="was overwritten by a later call"):
            out.sum()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_results_whose_tensors_cannot_be_made_are_given_back(world, monkeypatch, at):
    """Of a run whose results are not made, no count stays: else the tree could not be closed."""
    make, left = torch._C._from_dlpack, []

    def make_or_fail(capsule):
        if left:
            left[0] -= 1
            if left[0] < 0:
                raise MemoryError("no tensor")
        return make(capsule)

    monkeypatch.setattr(torch._C, "_from_dlpack", make_or_fail)
    three = world.tree.function(lambda x: (world.flip(x), world.flip(x).t(), world.flip(x)))
    x = world.put(torch.arange(16.0).view(8, 2))
    for _ in range(3):
        three(x)
    left.append(at)
    with pytest.raises(MemoryError, match="no tensor"):
        three(x)
    left.clear()
    gc.collect()
    assert world.tree.stats()["buffers"] == 0
    assert torch.equal(world.read(three(x)[0]), torch.arange(16.0).view(8, 2).flip(0))
    world.stream.synchronize()
    gc.collect()
    world.tree.close()


@pytest.mark.parametrize("call", [0, 1])
def test_a_recording_whose_first_results_cannot_be_made_is_replayed(world, monkeypatch, call):
    """Regression: an interrupt while results of a recording were made took what says how its results look: each replay failed."""
    turn, kept = lade.graphs._Tensor.strided, world.put(torch.arange(3.0))
    two = world.tree.function(lambda x: (world.flip(x).t(), x, kept, 7))
    x = world.put(torch.arange(16.0).view(8, 2))
    for _ in range(call):
        two(x)

    interrupts = [KeyboardInterrupt]

    def interrupted(self, flat):
        if interrupts:
            raise interrupts.pop()
        return turn(self, flat)

    monkeypatch.setattr(lade.graphs._Tensor, "strided", interrupted)
    with pytest.raises(KeyboardInterrupt):
        two(x)
    gc.collect()
    assert world.tree.stats()["buffers"] == 0
    for _ in range(3):
        flipped, same, others, number = two(x)
        assert torch.equal(world.read(flipped), torch.arange(16.0).view(8, 2).flip(0).t())
        assert torch.equal(world.read(same), torch.arange(16.0).view(8, 2))
        assert others is kept and number == 7
    assert world.tree.stats()["recordings"] == 1
    del flipped, same
    gc.collect()
    world.tree.close()


@pytest.mark.filterwarnings("ignore:.*of which there are views")  # of a tensor that another thread is letting go of
def test_results_that_come_and_go_in_many_threads(world):
    """Results are valid or refuse access, whichever thread makes, keeps and drops them; in the end no count is left."""
    flip = world.tree.function(lambda x: [world.flip(x) for _ in range(4)])
    x = world.put(torch.arange(float(ROWS)))
    expected, wrong = torch.arange(float(ROWS)).flip(0), []

    def work(seed):
        kept = []
        for i in range(150):
            kept.append(flip(x)[(seed + i) % 4])
            if len(kept) > 3:
                kept.pop(i % 3)
            for each in kept:
                try:
                    each.data_ptr()
                except RuntimeError as error:
                    if "was overwritten by a later call" not in str(error):
                        wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert torch.equal(world.read(flip(x)[0]), expected)
    gc.collect()
    assert world.tree.stats()["buffers"] == 0
    world.tree.close()
