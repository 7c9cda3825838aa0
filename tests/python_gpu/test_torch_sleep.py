# SPDX-License-Identifier: Apache-2.0
"""lade.torch.SleepPool on a GPU, behind PyTorch's own allocator and under install_device(). Each test is a process."""

import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

HEADS = ["", 'lade.torch.install_device("expandable_segments:True")\n']
MIB = 1 << 20


def program(text, head):
    text = "import gc, torch, lade, lade.torch\nMIB = 1 << 20\n" + head + textwrap.dedent(text)
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("keep", ["pinned", "file"])
def test_tensors_come_back_and_the_memory_is_others_meanwhile(head, keep, tmp_path):
    assert program(f"""
        pool = lade.torch.SleepPool()
        with pool.use("weights"):
            weights = [torch.full((64 * MIB,), i, dtype=torch.uint8, device="cuda") for i in range(8)]
        for cycle in range(2):
            torch.cuda.synchronize()
            before = torch.cuda.mem_get_info()[0]  # here: PyTorch keeps the memory of the comparisons below
            given = pool.suspend(keep={keep!r}, path={str(tmp_path)!r} if {keep!r} == "file" else None)
            print(given >= 512 * MIB, torch.cuda.mem_get_info()[0] - before >= 512 * MIB)
            pool.resume()
            print(all(bool((each == i).all()) for i, each in enumerate(weights)))
    """, head) == ["True"] * 6


@pytest.mark.parametrize("head", HEADS)
def test_a_graph_replays_after_the_resume(head):
    assert program("""
        pool = lade.torch.SleepPool()
        with pool.use("weights"):
            weight = torch.eye(256, device="cuda")
        source = torch.randn(256, 256, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side): source @ weight
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = source @ weight
        graph.replay(); torch.cuda.synchronize()
        print(bool(torch.equal(out, source)))
        pool.suspend("weights")
        pool.resume("weights")
        out.zero_()
        graph.replay(); torch.cuda.synchronize()
        print(bool(torch.equal(out, source)))
    """, head) == ["True", "True"]


def test_the_memory_of_a_graph_sleeps():
    assert program("""
        pool = lade.torch.SleepPool()
        source = torch.randn(1024, 1024, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side): (source + 1) * 2
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool.mem_pool("graphs").id):
            out = (source + 1) * 2
        graph.replay(); torch.cuda.synchronize()
        wanted = out.clone()
        print(pool.suspend("graphs") > 0)
        pool.resume("graphs")
        print(bool(torch.equal(out, wanted)))
        out.zero_(); graph.replay(); torch.cuda.synchronize()
        print(bool(torch.equal(out, wanted)))
    """, HEADS[1]) == ["True"] * 3


@pytest.mark.parametrize("head", HEADS)
def test_tensors_are_dropped_while_they_are_away(head):
    assert program("""
        pool = lade.torch.SleepPool()
        with pool.use("cache"):
            cache = [torch.empty(64 * MIB, dtype=torch.uint8, device="cuda") for i in range(4)]
        pool.suspend("cache", keep=None)
        del cache
        gc.collect(); torch.cuda.empty_cache()
        print(lade.torch._native().lade_torch_device_refused_frees())
        pool.resume()
        with pool.use("cache"):
            again = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
        print(int(again.sum()) == 64 * MIB)
    """, head) == ["0", "True"]
