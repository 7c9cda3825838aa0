# SPDX-License-Identifier: Apache-2.0
"""What the tests share. They run on software devices, with the package that is installed."""

import signal
import sys

import pytest

import lade

# A shell's background jobs ignore SIGINT, and what they start does, too: the programs that the tests interrupt would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ends_in_the_dropping_thread():
    """For tests in which a thread drops what another one made, and waits for it, that has work to do: without a global lock an object ends
    in the thread that made it (docs/python.md)."""
    if "t" in sys.abiflags:
        pytest.skip("without a global lock an object ends in the thread that made it, which has work to do here")


@pytest.fixture
def device():
    """A software device of its own, whose streams are threads."""
    return lade.software_device(clock="cpu")


@pytest.fixture
def sim():
    """A software device with a virtual clock, on which nothing happens by itself."""
    return lade.software_device(clock="sim")


@pytest.fixture
def pool(device):
    return lade.PinnedPool(device)


@pytest.fixture
def unraisable(monkeypatch):
    """What callbacks raise, as sys.unraisablehook gets it."""
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda fault: caught.append((fault.exc_type, str(fault.exc_value), fault.object)))
    return caught
