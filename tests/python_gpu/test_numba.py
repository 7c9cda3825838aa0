# SPDX-License-Identifier: Apache-2.0
"""Numba with lade as its external memory manager, on a GPU. Each case is a process: Numba's manager is chosen once."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("numba.cuda")

BEGIN = """
import gc
import numpy as np
from numba import cuda
manager = cuda.current_context().memory_manager
assert type(manager).__name__ == "LadeMemoryManager", manager
def in_use(): return manager.allocator.usage()["allocated_bytes"]
"""


def run(program, begin=BEGIN, **environment):
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", begin + textwrap.dedent(program) + "\nprint('done')"],
                          capture_output=True, text=True, timeout=300,
                          env={**os.environ, "NUMBA_CUDA_MEMORY_MANAGER": "lade.numba", **environment})
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout + done.stderr


def test_device_arrays():
    run("""
    host = np.random.default_rng(1).random(1 << 20)
    array = cuda.to_device(host)
    assert in_use() >= host.nbytes
    view = array[1000:2000]
    assert (view.copy_to_host() == host[1000:2000]).all()
    del array
    gc.collect()
    assert in_use() > 0, "the view holds it"
    assert (view.copy_to_host() == host[1000:2000]).all()
    del view
    gc.collect()
    assert in_use() == 0
    """)


def test_streams_of_numba():
    """An array dies while a copy on a stream of Numba still reads it; the next array of that size must not be there."""
    run("""
    streams = [cuda.stream() for _ in range(4)]
    host = [np.full(1 << 22, number, "float32") for number in range(4)]
    out = [cuda.pinned_array(1 << 22, "float32") for _ in range(4)]
    for round_ in range(20):
        for number, stream in enumerate(streams):
            array = cuda.to_device(host[number], stream=stream)
            array.copy_to_host(out[number], stream=stream)
            del array
        for number, stream in enumerate(streams):
            stream.synchronize()
            assert (out[number] == number).all(), (round_, number)
    """)


def test_pinned_and_mapped_arrays():
    run("""
    pinned = cuda.pinned_array(1000, "float64")
    pinned[:] = 3
    assert manager.pool.stats()["requested_bytes.current"] == 8000
    mapped = cuda.mapped_array(1000, "float64")
    mapped[:] = 4
    assert cuda.as_cuda_array(mapped).copy_to_host().sum() == 4000
    with cuda.pinned(np.zeros(10)): pass
    del pinned, mapped
    gc.collect()
    assert manager.pool.stats()["in_use_blocks.current"] == 0
    """)


def test_memory_info():
    run("""
    info = cuda.current_context().get_memory_info()
    assert 0 < info.free <= info.total
    """)


def test_deferred_cleanup():
    run("""
    with cuda.defer_cleanup():
        array = cuda.device_array(1 << 20, "uint8")
        del array
        gc.collect()
        assert in_use() == 1 << 20
    assert in_use() == 0
    """)


def test_ipc():
    run("""
    array = cuda.to_device(np.arange(1000))
    handle = array.get_ipc_handle()
    import multiprocessing, ipc_child
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        assert workers.apply(ipc_child.total, (handle,)) == 499500
    """, PYTHONPATH=os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]))


def test_out_of_memory():
    run("""
    try: cuda.device_array(1 << 50, "uint8")
    except MemoryError as error: assert "bytes" in str(error)
    else: raise AssertionError
    assert cuda.to_device(np.ones(10)).copy_to_host().sum() == 10
    """)


def test_install_instead_of_the_environment():
    run("", begin="""
import lade.numba
lade.numba.install()
from numba import cuda
assert isinstance(cuda.current_context().memory_manager, lade.numba.LadeMemoryManager)
import lade
try: lade.numba.install()
except lade.BusyError: pass
else: raise AssertionError
""", NUMBA_CUDA_MEMORY_MANAGER="default")


KERNEL = """
@cuda.jit
def add(x, y):
    i = cuda.grid(1)
    if i < x.size: x[i] += y[i]
x, y = cuda.to_device(np.ones(1000)), cuda.to_device(np.full(1000, 2.0))
add[8, 128](x, y)
assert x.copy_to_host().sum() == 3000
"""


def numba_compiles():
    """Skips where Numba alone, with its own memory, compiles no kernel: NVIDIA's libnvvm is missing, NumPy is too new for it."""
    alone = subprocess.run([sys.executable, "-c", "import numpy as np\nfrom numba import cuda\n" + KERNEL], capture_output=True, text=True,
                           timeout=300, env={name: value for name, value in os.environ.items() if name != "NUMBA_CUDA_MEMORY_MANAGER"})
    if alone.returncode != 0:
        pytest.skip(f"Numba compiles no kernel here, without lade: {(alone.stderr.strip() or 'no text').splitlines()[-1]}")


def test_a_kernel():
    numba_compiles()
    run(KERNEL)
