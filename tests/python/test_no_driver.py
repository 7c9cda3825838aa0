# SPDX-License-Identifier: Apache-2.0
"""Machines without NVIDIA's driver, or with something that is none in its place."""

import os
import pathlib
import subprocess
import sys

import pytest

PROGRAM = """
import lade
for call in (lade.cuda_device, lambda: lade.device("cuda:0"), lambda: lade.device(0), lambda: lade.PinnedPool("cuda")):
    try:
        call()
    except lade.NoDeviceError as error:
        print(error)
assert lade.device().software
"""


def texts(folder):
    """What the errors say, in a process whose loader looks into this folder first."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True,
                          env={**os.environ, "LD_LIBRARY_PATH": str(folder)})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(pathlib.Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_a_missing_driver_is_named(tmp_path):
    """The first error of a process had garbage in place of the loader's words."""
    said = texts(tmp_path)
    assert len(said) == 4
    for text in said:
        assert "no driver: libcuda.so.1: cannot open shared object file" in text
        assert text.endswith('; device="cpu" needs no GPU')


def test_a_file_that_is_no_driver_is_named(tmp_path):
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    said = texts(tmp_path)
    assert len(said) == 4 and all("libcuda.so.1" in text and "too short" in text for text in said), said
