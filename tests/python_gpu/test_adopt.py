# SPDX-License-Identifier: Apache-2.0
"""Memory of the program's own, and of several processes, pinned in place for a GPU."""

import mmap
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

import lade

NBYTES = 5 << 20


@pytest.fixture
def path():
    path = f"/dev/shm/lade-test-adopt-{os.getpid()}"
    with open(path, "wb") as file:
        file.write(bytes(range(256)) * (NBYTES // 256))
    yield path
    os.unlink(path)


def mapping(path, access):
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), NBYTES, access=access)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("access", [mmap.ACCESS_WRITE, mmap.ACCESS_READ])
def test_a_mapping_is_pinned_where_it_lies(path, access):
    view = mapping(path, access)  # a tensor would not tell that it cannot be written
    host = torch.frombuffer(view, dtype=torch.uint8)
    wanted = host.clone()
    with lade.PinnedPool(lade.device("cuda:0")).adopt(view):
        there = host.to("cuda:0", non_blocking=True)
        torch.cuda.synchronize()
        assert there.cpu().equal(wanted)
        if access == mmap.ACCESS_WRITE:  # the GPU writes into the file
            host.copy_(there + 1, non_blocking=True)
            torch.cuda.synchronize()
    with open(path, "rb") as file:
        assert file.read(2) == (b"\1\2" if access == mmap.ACCESS_WRITE else b"\0\1")


RANK = """
import mmap, sys, torch, lade
path, budget = sys.argv[1:]
with open(path, "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
pool = lade.PinnedPool(lade.device("cuda:0"), budget_name=budget)
adopted = pool.adopt(memory)
host = torch.frombuffer(memory, dtype=torch.uint8)
there = host.to("cuda:0", non_blocking=True)
torch.cuda.synchronize()
print(bool(there.cpu().equal(host)), pool.stats()["budget_held_bytes"], flush=True)
sys.stdin.read()
"""


def test_the_budget_counts_what_processes_share_once_while_any_lives(path):
    budget = f"test-{os.getpid()}"
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, path, budget], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        assert [rank.stdout.readline().split() for rank in ranks] == [["True", str(NBYTES)]] * 3
        for rank in ranks[:2]:  # one that came first among them, or not
            rank.kill()
            rank.wait()
        held = subprocess.run([sys.executable, "-m", "lade", "budget", "--json", budget], capture_output=True, text=True, check=True).stdout
        assert f'"held_bytes":{NBYTES},' in held
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        os.unlink(f"/dev/shm/lade-budget-{os.getuid()}-{budget}")
