# SPDX-License-Identifier: Apache-2.0
"""lade.graphs with PyTorch and CuPy. Each test is a process: an allocator is chosen once."""

import importlib.util
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

HEAD = """
import gc, threading, torch, lade, lade.torch, lade.graphs
lade.torch.install_device()
torch.manual_seed(0)
tree = lade.graphs.Tree()
def stats(*names): return [tree.stats()[name] for name in names]
"""
CUPY = """
import gc, cupy, lade, lade.cupy, lade.graphs
memory = lade.cupy.install()
tree = lade.graphs.Tree()
"""


def program(text, head=HEAD):
    result = subprocess.run([sys.executable, "-c", head + textwrap.dedent(text)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.split("\n")[:-1]


def test_the_recipe_runs():
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "graphs.md").read_text(encoding="utf-8")
    code = re.search(r"<!-- recipe: graphs -->\n+```python\n(.*?)```", text, re.DOTALL)[1]
    assert int(program(code, head="")[0].split()[0]) == 100 - 2 * 4


def test_a_model_replays_what_it_computes():
    assert program("""
        model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).cuda()
        run = tree.function(model)
        with torch.no_grad():
            for i in range(6):
                x = torch.randn(32, 256, device="cuda")
                print(torch.equal(run(x), model(x)))
        print(stats("warmups", "recordings", "replays", "eager_runs"))
        print(lade.torch._native().lade_torch_device_refused_frees())
    """) == ["True"] * 6 + ["[1, 1, 4, 0]", "0"]


def test_a_loop_feeds_its_state_back_with_a_cache_in_place():
    assert program("""
        def step(state, cache, at):
            cache[at] = state.sum(0)
            return torch.tanh(state @ weight + cache.mean(0))
        weight = torch.randn(64, 64, device="cuda") / 8
        run = tree.function(step, static=["cache"], mutates=["cache"], weights=[weight])
        def loop(function, mark):
            state, cache = torch.ones(16, 64, device="cuda"), torch.zeros(4, 64, device="cuda")
            for i in range(24):
                mark()
                state = function(state, cache, i % 4)
            return state.clone(), cache
        with torch.no_grad():
            expected, kept = loop(step, lambda: None)
            for _ in range(2):
                state, cache = loop(run, tree.step)
                print(torch.equal(state, expected), torch.equal(cache, kept))
        print(stats("eager_runs"), tree.stats()["replays"] >= 24)
    """) == ["True True", "True True", "[0] True"]


def test_sixty_four_branches_share_one_pool():
    assert program("""
        x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
        def branch(i):
            return lambda given: sum([given * (i + k) for k in range(4)])
        calls = [(branch(i), tree.function(branch(i))) for i in range(64)]
        good = True
        with torch.no_grad():
            for _ in range(4):
                for function, call in calls:
                    tree.step()
                    out = call(x)
                    good &= torch.equal(out, function(x))
                    del out
        s = tree.stats()
        print(good, s["recordings"], s["replays"] >= 64, s["pool_peak_bytes"] < 64 << 20, s["alone_bytes"] > 1 << 30)
    """) == ["True 64 True True True"]


def test_outputs_alive_are_not_written_over():
    assert program("""
        def f(x): return x * 2, (x + 1).sum()
        def g(x): return torch.relu(x - 3)
        f_, g_ = tree.function(f), tree.function(g)
        good = True
        with torch.no_grad():
            for i in range(12):
                x = torch.randn(1000, device="cuda")
                tree.step()
                a, s = f_(x)
                if i % 3 == 0: del s
                b = g_(a)
                c = g_(x)
                good &= torch.equal(a, x * 2) and torch.equal(b, g(x * 2)) and torch.equal(c, g(x))
                if i % 3: good &= torch.equal(s, (x + 1).sum())
                a = s = b = c = None  # else the next step writes over them
        print(good, stats("overwritten", "eager_runs"))
    """) == ["True [0, 0]"]


def test_access_to_an_overwritten_tensor_is_refused():
    assert program("""
        run = tree.function(lambda x: x + 1, name="adds")
        x = torch.ones(10, device="cuda")
        old = run(x)
        new = run(x)
        for use in (lambda t: t.sum(), lambda t: t.cpu(), lambda t: t.data_ptr(), run):
            try: use(old); print("not refused")
            except RuntimeError as error: print("an output of adds was overwritten" in str(error))
        print(new.tolist() == [2.0] * 10)
    """) == ["True"] * 4 + ["True"]


def test_random_numbers_are_refused_and_the_tree_stays():
    assert program("""
        drop = tree.function(lambda x: torch.nn.functional.dropout(x))
        adds = tree.function(lambda x: x + 1)
        x = torch.ones(1000, device="cuda")
        drop(x)
        for _ in range(2):
            try: drop(x); print("not refused")
            except RuntimeError as error: print(error.__notes__[0].startswith("lade.graphs: raised while"))
        for _ in range(3): print(torch.equal(adds(x), x + 1))
        print(torch.rand(3, device="cuda").shape, stats("recordings"), torch.cuda.is_current_stream_capturing())
    """) == ["True"] * 5 + ["torch.Size([3]) [1] False"]


@pytest.mark.parametrize("wrong", ["x.sum().item()", "torch.cuda.synchronize()", "x.cpu()", "1 / 0"])
def test_what_cannot_be_recorded_leaves_all_as_it_was(wrong):
    assert program(f"""
        on = [False]
        def function(x):
            y = x * 3
            if on[0]: {wrong}
            return y
        run = tree.function(function)
        x = torch.ones(1000, device="cuda")
        run(x)
        on[0] = True
        for _ in range(3):
            try: run(x); print("not refused")
            except Exception as error: print("raised")
        on[0] = False
        for _ in range(3): print(torch.equal(run(x), x * 3))
        print(torch.cuda.is_current_stream_capturing(), stats("recordings"))
    """) == ["raised"] * 3 + ["True"] * 3 + ["False [1]"]


def test_a_training_step_is_a_function():
    assert program("""
        def make():
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1)).cuda()
            return model, torch.optim.SGD(model.parameters(), 0.05)
        def step_of(model, optimizer):
            def step(x, y):
                loss = (model(x) - y).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                return loss.detach()
            return step
        one, other = make(), make()
        for model, _ in (one, other):
            for p in model.parameters(): p.grad = torch.zeros_like(p)
        plain, run = step_of(*one), tree.function(step_of(*other), weights=other[0])
        good = True
        for i in range(20):
            x = torch.randn(256, 64, device="cuda"); y = x.sum(1, keepdim=True)
            good &= bool(torch.allclose(plain(x, y), run(x, y), rtol=1e-4))
        good &= all(bool(torch.allclose(a, b, rtol=1e-3, atol=1e-5)) for a, b in zip(one[0].parameters(), other[0].parameters()))
        print(good, stats("recordings", "eager_runs"))
    """) == ["True [1, 0]"]


def test_a_gradient_that_is_left_is_named():
    assert program("""
        model = torch.nn.Linear(64, 64).cuda()
        run = tree.function(lambda x: model(x).sum().backward())
        try: run(torch.randn(8, 64, device="cuda")); print("not refused")
        except lade.CallbackError as error: print("blocks in the pool" in str(error))
    """) == ["True"]


def test_moved_weights_are_recorded_anew():
    assert program("""
        model = torch.nn.Linear(64, 64).cuda()
        run = tree.function(model)
        x = torch.randn(8, 64, device="cuda")
        good, kept = True, []  # memory that is free again would be another weight's, at the same address
        with torch.no_grad():
            for i in range(12):
                if i % 4 == 3:
                    kept.append(model.weight.data)
                    model.weight.data = torch.randn(64, 64, device="cuda")
                good &= torch.equal(run(x), model(x))
        print(good, stats("recordings", "mismatches.static"))
    """) == ["True [4, 6]"]  # each move fits none of the recordings so far


def test_streams_and_threads():
    assert program("""
        run = tree.function(lambda x: (x * 2, x.sum()))
        xs = [torch.full((100000,), float(i), device="cuda") for i in range(4)]
        lock, good = threading.Lock(), []
        def work(x):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream), torch.no_grad():
                stream.wait_stream(torch.cuda.default_stream())
                for _ in range(50):
                    with lock:
                        tree.step()
                        y, s = run(x)
                        copied = y.clone()
                    good.append(torch.equal(copied, x * 2))
        threads = [threading.Thread(target=work, args=(x,)) for x in xs]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(all(good), len(good), stats("recordings", "eager_runs"))
        y, s = run(xs[1])
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side): total = y.sum()
        tree.record_stream(y, side)
        del y, s
        run(xs[2]); torch.cuda.synchronize()
        print(total.item())
    """) == ["True 200 [1, 0]", "200000.0"]


def test_strides_types_and_views():
    assert program("""
        def function(x): return x.t(), x[1:, ::2], x.bool(), x.to(torch.bfloat16), x.to(torch.complex64)
        run = tree.function(function)
        good = True
        for i in range(5):
            x = torch.randn(6, 8, device="cuda").t()[1:]
            got, want = run(x), function(x)
            good &= all(torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype for a, b in zip(got, want))
            del got
        print(good, stats("replays"))
    """) == ["True [3]"]


def test_memory_returns_and_the_process_ends():
    assert program("""
        torch.zeros(1, device="cuda")
        before = torch.cuda.memory_allocated()
        run = tree.function(lambda x: x @ x)
        x = torch.randn(1024, 1024, device="cuda")
        for _ in range(4): out = run(x)
        del x, out, run
        tree.close()
        gc.collect()
        print(torch.cuda.memory_allocated() - before <= 64 << 20, torch.cuda.memory_snapshot() is not None)
        kept = lade.graphs.Tree().function(lambda x: x + 1)(torch.ones(8, device="cuda"))
    """) == ["True True"]


def test_memory_that_is_not_lades_is_refused():
    assert program("""
        import torch, lade, lade.graphs
        tree = lade.graphs.Tree(lade.DeviceAllocator(0))
        try: tree.function(lambda x: x)(torch.ones(3, device="cuda"))
        except lade.UnsupportedError as error: print("install_device" in str(error))
        try: lade.graphs.Tree()
        except lade.InvalidArgumentError as error: print("install_device" in str(error))
    """, head="") == ["True", "True"]


needs_cupy = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="cupy is not installed")


@needs_cupy
def test_cupys_arrays():
    assert program("""
        def function(x, n):
            y = x * n
            return y, (y + 1).sum(axis=0)
        run = tree.function(function)
        for i in range(6):
            x = cupy.random.random((64, 32)).astype("f4")
            tree.step()
            y, s = run(x, 3)
            want = function(x, 3)
            print(type(y) is lade.GraphArray, bool((cupy.asarray(y) == want[0]).all() and (cupy.asarray(s) == want[1]).all()))
            z, _ = run(cupy.asarray(y), 2)
            print(bool((cupy.asarray(z) == want[0] * 2).all()))
            old = y
            del y, s, z
        tree.step(); run(x, 3)
        try: cupy.asarray(old)
        except lade.OverwrittenError as error: print("output of function" in str(error))
        print(tree.stats()["eager_runs"], tree.stats()["replays"] >= 6)
    """, head=CUPY) == ["True True", "True"] * 6 + ["True", "0 True"]


@needs_cupy
def test_cupys_own_memory_is_refused():
    assert program("""
        import cupy, lade, lade.graphs
        tree = lade.graphs.Tree(lade.DeviceAllocator(0))
        try: tree.function(lambda x: x)(cupy.ones(3))
        except lade.UnsupportedError as error: print("lade.cupy.install()" in str(error))
    """, head="") == ["True"]
