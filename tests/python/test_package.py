# SPDX-License-Identifier: Apache-2.0
"""The distribution liblade beside others, the log in `logging`, and what objects say of themselves."""

import importlib.metadata
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

import lade

FOLDER = pathlib.Path(lade.__file__).parent


def run(code, folder=None, **environment):
    environment = {**os.environ, **environment}
    if folder is not None:
        environment["PYTHONPATH"] = str(folder)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)


# ---- The name --------------------------------------------------------------------------------------------------------


def test_the_distribution_is_liblade():
    assert importlib.metadata.version("liblade") == lade.__version__
    assert run("import lade").stderr == ""


@pytest.fixture
def copied(tmp_path):
    """The package in a folder of its own, as pip installs it."""
    shutil.copytree(FOLDER, tmp_path / "lade")
    if (FOLDER.parent / "liblade.libs").exists():  # of a wheel
        shutil.copytree(FOLDER.parent / "liblade.libs", tmp_path / "liblade.libs")
    return tmp_path


@pytest.mark.parametrize("beside", ["lade/decoding.py", "lade/models/llama.py", "lade-0.0.2.dist-info/METADATA"])
def test_another_lade_in_the_folder_is_told(copied, beside):
    path = copied / beside
    path.parent.mkdir(exist_ok=True)
    path.touch()
    done = run("import lade; print(lade.__file__)", copied)
    assert str(copied) in done.stdout and done.returncode == 0
    assert "another distribution named lade" in done.stderr and "pip uninstall lade liblade" in done.stderr
    assert beside.split("/")[1 if beside.startswith("lade/") else 0] in done.stderr


def test_another_lade_over_this_one_is_told(copied):
    (copied / "lade" / "__init__.py").write_text("Error = Exception\n")
    done = run("import lade.safetensors", copied)
    assert done.returncode != 0 and "pip uninstall lade liblade" in done.stderr


# ---- The log ---------------------------------------------------------------------------------------------------------


def test_the_software_device_is_told_once():
    code = "import lade; lade.PinnedPool(); lade.device(); lade.Pipeline()"
    if not lade.device().software:
        pytest.skip("here is a GPU")
    lines = run(code).stderr.splitlines()
    assert len(lines) == 1 and "software device" in lines[0] and 'device="cpu"' in lines[0]
    assert run("import lade; lade.PinnedPool('cpu'); lade.software_device()").stderr == ""


def test_lines_of_the_library_come_to_logging(device, caplog):
    lade.log_level("info")
    try:
        with caplog.at_level(logging.DEBUG, logger="lade"):
            pool = lade.PinnedPool(device)
            deadline = time.monotonic() + 30
            while not any("pinned pool" in record.getMessage() for record in caplog.records) and time.monotonic() < deadline:
                time.sleep(0.001)
            found = [record for record in caplog.records if "pinned pool" in record.getMessage()]
    finally:
        lade.log_level("warn")
    assert found and found[0].levelno == logging.INFO and found[0].name == "lade"
    del pool


def test_lines_that_wait_come_at_the_end():
    code = "import logging, lade; logging.basicConfig(level=10); lade.log_level('info'); p = lade.PinnedPool('cpu'); p.close(); import os"
    assert "INFO:lade:pinned pool" in run(code).stderr


def test_a_handler_may_use_the_package(device):
    """Its lines come in a thread that holds no lock of the library."""
    code = """
import logging, lade
class Handler(logging.Handler):
    def emit(self, record):
        lade.PinnedPool("cpu").empty(1)
        print(record.getMessage()[:11])
lade.log_level("info")
logging.getLogger("lade").setLevel(logging.INFO)
logging.getLogger("lade").addHandler(Handler())
lade.PinnedPool("cpu").empty(10)
lade.log_level("off")
"""
    done = run(code)
    assert done.returncode == 0 and "pinned pool" in done.stdout, done.stderr


def test_a_log_level_that_is_none_is_refused():
    with pytest.raises(lade.InvalidArgumentError, match="level is 'loud'; expected one of off, error, warn, info, debug"):
        lade.log_level("loud")
    with pytest.raises(TypeError, match="level is a int"):
        lade.log_level(3)


def test_the_environment_has_the_library_write_its_log(tmp_path):
    done = run("import lade; lade.PinnedPool('cpu')", LADE_LOG="info")
    assert re.search(r"^lade\[\d+\]: info: pinned pool", done.stderr, re.MULTILINE)
    run("import lade; lade.PinnedPool('cpu')", LADE_LOG=f"info:{tmp_path / 'log'}")
    assert "pinned pool" in (tmp_path / "log").read_text()
    wrong = run("import lade; lade.PinnedPool('cpu')", LADE_LOG="loud")
    assert wrong.returncode == 0 and 'LADE_LOG is "loud"' in wrong.stderr


def test_a_child_of_fork_logs_too():
    code = """
import logging, os, lade
logging.basicConfig(level=10)
lade.log_level("info")
p = lade.PinnedPool("cpu")
if os.fork() == 0:
    lade.PinnedPool(lade.software_device(clock="cpu"))
    raise SystemExit(0)
os.wait()
"""
    assert run(code).stderr.count("INFO:lade:pinned pool") >= 2


# ---- Texts -----------------------------------------------------------------------------------------------------------


def test_texts_say_bytes(device):
    pool, allocator = lade.PinnedPool(device), lade.DeviceAllocator(device)
    assert repr(pool) == "<lade.PinnedPool near cpu:0, 0 B in use of 0 B reserved>"
    buffer, block = pool.empty(3 << 20), allocator.empty((2, 1 << 20), "float32")
    assert "3.0 MiB in use of " in repr(pool) and "8.0 MiB allocated of " in repr(allocator)
    assert repr(buffer) == "<lade.Buffer (3145728,) uint8, 3.0 MiB near cpu:0>"
    assert repr(block) == "<lade.DeviceBuffer (2, 1048576) float32, 8.0 MiB on cpu:0>"
    for thing in (pool, allocator):
        page = thing._repr_html_()
        assert page.startswith("<table>") and "reserved" in page and "&lt;lade." in page and "MiB" in page
    del buffer, block
    pool.close()
    assert repr(pool).endswith(", closed>") and "closed" in pool._repr_html_()


def test_a_snapshot_is_a_page(device, tmp_path):
    pool = lade.PinnedPool(device)
    kept = pool.empty(12345)
    snapshot = pool.snapshot()
    assert type(snapshot) is lade.Snapshot and "<html" in snapshot.html()
    assert snapshot._repr_html_().startswith("<iframe") and "&lt;html" in snapshot._repr_html_()
    snapshot.save(tmp_path / "a.html")
    assert pool.snapshot(tmp_path / "b.html") is None
    assert len((tmp_path / "a.html").read_text()) > 1000 and (tmp_path / "b.html").exists()
    with pytest.raises(lade.InvalidArgumentError, match="expected None without a path"):
        pool.snapshot(format="html")
    with pytest.raises(lade.InvalidArgumentError, match="whose suffix means no format"):
        pool.snapshot(tmp_path / "a.txt")
    del pool, kept
    assert "<html" in snapshot.html()


# ---- NumPy, streams --------------------------------------------------------------------------------------------------


def test_numpy_reads_device_memory_of_a_software_device(device):
    allocator, stream = lade.DeviceAllocator(device), lade.Stream(device)
    buffer = allocator.empty((2, 3), "float32", stream)
    source = np.arange(6, dtype="float32").reshape(2, 3)
    lade.copy_async(device, buffer, source, stream)
    array = np.asarray(buffer)  # waits for the stream
    assert array.dtype == np.float32 and (array == source).all()
    array[0, 0] = 9
    assert np.from_dlpack(buffer)[0, 0] == 9
    with pytest.raises(TypeError, match="memory of the device"):
        buffer.__array__()


def test_a_stream_is_made_of_a_device(device):
    stream = lade.Stream(device)
    assert stream.device == device and stream.query()
    assert lade.Stream("cpu").device == lade.software_device()
    with pytest.raises(lade.InvalidArgumentError, match='device is "gpu"'):
        lade.Stream("gpu")


# ---- Publishing, stacks ----------------------------------------------------------------------------------------------


def test_counters_are_published(device):
    pool, allocator = lade.PinnedPool(device), lade.DeviceAllocator(device)
    with lade.publish(pool, allocator, interval=0.05) as publisher:
        publisher.update()
        links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
        assert any("memfd" in link and "lade" in link for link in links), links
        with pytest.raises(lade.BusyError):
            pool.close()
    pool.close()
    with pytest.raises(lade.InvalidArgumentError, match="the Publisher is closed"):
        publisher.update()
    for wrong, text in (((), "parts is empty"), ((3,), "parts is a int"), ((allocator,), "interval is 0")):
        with pytest.raises(lade.InvalidArgumentError, match=text):
            lade.publish(*wrong, interval=0.0)


def _allocating_function(pool):
    return pool.empty(4321)


@pytest.mark.parametrize("stacks", [True, False])
def test_histories_have_stacks_of_python(device, tmp_path, stacks):
    pool, allocator = lade.PinnedPool(device), lade.DeviceAllocator(device)
    for cache in (pool, allocator):
        cache.record_history(100, stacks=stacks)
    kept = _allocating_function(pool)
    block = allocator.alloc(1 << 20)  # grows: the interpreter's lock is not held meanwhile
    for cache in (pool, allocator):
        cache.snapshot(tmp_path / "a.json")
        text = (tmp_path / "a.json").read_text()
        assert ("test_histories_have_stacks_of_python" in text) is stacks
        assert ("test_package.py" in text) is stacks
        assert ("_allocating_function" in text) is (stacks and cache is pool)
    del kept, block
    pool.record_history(None)


def test_a_batch_is_a_table(device, tmp_path):
    (tmp_path / "rows").write_bytes(bytes(range(40)))
    loader = lade.Loader(tmp_path / "rows", 2, record_bytes=10, device=device)
    batch = next(loader)
    assert repr(batch) == f"<lade.Batch 0 of 2 records, {batch.nbytes} B, epoch 0>"
    assert batch._repr_html_().startswith("<table>") and "10 B" in batch._repr_html_() and "&lt;lade.Batch 0" in batch._repr_html_()
    batch.release()
    assert "released" in batch._repr_html_()


# ---- The command -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (FOLDER / "bin" / "lade").exists(), reason="this package was built without the command")
def test_the_command_comes_with_the_package(tmp_path):
    script = pathlib.Path(sys.executable).parent / "lade"
    for command in ([sys.executable, "-m", "lade"], *([[str(script)]] if script.exists() else [])):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and lade.__version__ in done.stdout, done
        assert subprocess.run([*command, "nonsense"], capture_output=True, timeout=60).returncode == 2
    lade.safetensors.save_file({"a": np.arange(10)}, tmp_path / "a.safetensors")
    done = subprocess.run([sys.executable, "-m", "lade", "load", "--runtime", "cpu", "--verify", tmp_path / "a.safetensors"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "verified" in done.stdout, done
    # The python3 that it asks is that of this environment, which need not be the first of the path.
    done = subprocess.run([sys.executable, "-m", "lade", "doctor"], capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": os.defpath})
    assert re.search(rf"^python .*{re.escape(sys.version.split()[0])}", done.stdout, re.M) and "without liblade" not in done.stdout, done
