# SPDX-License-Identifier: Apache-2.0
"""CuPy with lade's memory, on a GPU."""

import gc
import threading

import pytest

cupy = pytest.importorskip("cupy")
cupyx = pytest.importorskip("cupyx")
import numpy as np

import lade
import lade.cupy


@pytest.fixture
def memory():
    with lade.cupy.install() as installed:
        yield installed
    gc.collect()


def in_use(memory):
    return memory.device(0).usage()["allocated_bytes"]


def test_arithmetic(memory):
    x = cupy.arange(1 << 20, dtype="float32")
    y = (x * 2 + 1).sum()
    expected = (1 << 20) * ((1 << 20) - 1) + (1 << 20)
    assert abs(float(y) - expected) < 1e-4 * expected
    assert in_use(memory) >= 4 << 20
    del x, y
    gc.collect()
    assert in_use(memory) == 0
    assert cupy.get_default_memory_pool().used_bytes() == 0


def test_views_hold_the_memory(memory):
    view = cupy.arange(1000)[10:20].reshape(2, 5)
    gc.collect()
    assert view.get().tolist() == [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]
    assert in_use(memory) > 0
    del view
    gc.collect()
    assert in_use(memory) == 0


def test_streams_have_blocks_of_their_own(memory):
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with first:
        address = cupy.empty(1 << 20, "uint8").data.ptr
    with second:
        other = cupy.empty(1 << 20, "uint8")
        assert other.data.ptr != address
    with first:
        again = cupy.empty(1 << 20, "uint8")
        assert again.data.ptr == address
    first.synchronize(), second.synchronize()


def test_streams_may_die_before_their_arrays(memory):
    """CuPy destroys a stream with its object. lade gives memory of that stream back later, and must not name it then."""
    arrays = []
    for number in range(50):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            arrays.append(cupy.full(1 << 16, number, "int32"))
            lade.cupy.record_stream(arrays[-1], cupy.cuda.Stream(non_blocking=True))
            stream.synchronize()
    del stream
    gc.collect()
    assert [int(array.sum()) for array in arrays] == [number << 16 for number in range(50)]
    del arrays[::2]
    memory.device(0).empty_cache()
    del arrays
    gc.collect()
    memory.device(0).empty_cache()
    assert in_use(memory) == 0


def test_work_in_flight_keeps_a_recorded_array(memory):
    """A kernel of another stream reads an array that dies; what comes next on its own stream must not write there before that."""
    own, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    out = cupy.zeros(1 << 22, "float32")
    for round_ in range(20):
        with own:
            array = cupy.full(1 << 22, round_, "float32")
            ready = own.record()
        with other:
            other.wait_event(ready)
            spin = cupy.sin(cupy.ones(1 << 24, "float32"))
            out[...] = array
            del spin
        lade.cupy.record_stream(array, other)
        del array
        with own:
            trash = cupy.full(1 << 22, -1, "float32")
            del trash
        other.synchronize()
        assert float(out.min()) == float(out.max()) == round_
    own.synchronize()


def test_pinned_memory_and_asynchronous_copies(memory):
    pinned = cupyx.empty_pinned((1 << 20,), "float32")
    pinned[...] = np.arange(1 << 20)
    assert memory.pinned(0).stats()["requested_bytes.current"] == 4 << 20
    array = cupy.empty(1 << 20, "float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    array.set(pinned, stream=stream)
    back = cupyx.empty_pinned((1 << 20,), "float32")
    array.get(stream=stream, out=back)
    stream.synchronize()
    assert (back == pinned).all()
    del pinned, back, array
    gc.collect()
    assert memory.pinned(0).stats()["in_use_blocks.current"] == 0


def test_to_the_device_and_back_through_cupys_own_staging(memory):
    host = np.random.default_rng(1).random(1 << 20)
    assert (cupy.asnumpy(cupy.asarray(host)) == host).all()


def test_out_of_memory_is_cupys_error(memory):
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="bytes"):
        cupy.empty(1 << 50, "uint8")
    assert cupy.zeros(10).sum() == 0, "and the program goes on"


def test_many_threads(memory):
    errors = []

    def work(mark):
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                for size in range(1, 100):
                    array = cupy.full(size * 1000, mark, "int32")
                    if int(array.sum()) != mark * size * 1000:
                        errors.append((mark, size))
                stream.synchronize()
        except BaseException as error:  # shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert errors == []
    gc.collect()
    assert in_use(memory) == 0


def test_libraries_of_cupy(memory):
    a = cupy.random.default_rng(1).random((256, 256))
    assert float(abs(a @ cupy.linalg.inv(a) - cupy.eye(256)).max()) < 1e-8
    assert float(abs(cupy.fft.ifft(cupy.fft.fft(a)) - a).max()) < 1e-10
    assert (cupy.sort(a.ravel())[1:] >= cupy.sort(a.ravel())[:-1]).all()


def test_a_captured_graph_runs(memory):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.arange(1000, dtype="float32")
        y = cupy.empty_like(x)
        cupy.multiply(x, 2, out=y)  # compiles
        stream.synchronize()
        stream.begin_capture()
        cupy.multiply(x, 3, out=y)
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
    assert (y.get() == np.arange(1000, dtype="float32") * 3).all()


def test_arrays_outlive_uninstall():
    installed = lade.cupy.install()
    array = cupy.arange(10)
    installed.uninstall()
    assert int(array.sum()) == 45
    assert cupy.arange(10).data.mem.__class__.__name__ == "PooledMemory"
    del array
    gc.collect()
    assert installed.device(0).usage()["allocated_bytes"] == 0


def test_dlpack_from_lades_buffers(memory):
    block = memory.device(0).empty((4, 5), "float32")
    array = cupy.from_dlpack(block)
    array[...] = 3
    assert float(array.sum()) == 60 and array.data.ptr == block.ptr
    assert float(cupy.asarray(block).sum()) == 60, "__cuda_array_interface__"
