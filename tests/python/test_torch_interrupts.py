# SPDX-License-Identifier: Apache-2.0
"""What a signal's handler raises in the midst of lade.torch: who serves pinned memory is whole, or as before.

A double stands for PyTorch and for the native part, so that this runs without them.
"""

import os
import subprocess
import sys
import textwrap

HEAD = """
import contextlib, gc, sys, types
import interrupts, lade

torch = types.ModuleType("torch")
torch.__version__ = "2.8.0"
torch.Tensor = type("Tensor", (), {})
torch.device = type("device", (), {})
torch.compiled_with_cxx11_abi = lambda: True
torch.version = types.SimpleNamespace(cuda="12.8", hip=None)
torch.cuda = types.SimpleNamespace(is_initialized=lambda: False, memory=types.SimpleNamespace())
sys.modules["torch"] = torch
import lade.torch

class Native:
    def __init__(self):
        self.serving, self.sources = -1, []
    def lade_torch_pinned_install(self, handle, runtime, is_software, text, text_bytes):
        if handle not in self.sources:
            self.sources.append(handle)
        self.serving = self.sources.index(handle)  # as the real one: it serves at once
        return self.serving
    def lade_torch_pinned_serve(self, index):
        self.serving = index
    def lade_torch_library(self):
        return library

device = lade.software_device()
pool, other = lade.PinnedPool(device), lade.PinnedPool(device)
library = pool._lend()[3]
FILES = (lade.torch.__file__, contextlib.__file__)

def start():
    global native
    native = Native()
    lade.torch._native = lambda: native
    lade.torch._serving.__init__()

def everywhere(prepare, call, check):
    def begin():
        start()
        prepare()
    def look(number):
        gc.collect()
        check(number)
    places = interrupts.everywhere(call, FILES, look, begin)
    assert places > 4, places

def serves(index):
    def check(number):
        state = lade.torch._serving
        assert not state.scopes, number
        assert (state.base, state.index(), native.serving) == (index, index, index), (number, state.base, native.serving)
    return check
"""


def program(text):
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
    result = subprocess.run([sys.executable, "-c", HEAD + textwrap.dedent(text)], capture_output=True, text=True, timeout=120, env=environment)
    assert result.returncode == 0, result.stderr


def test_an_interrupted_pinned_leaves_nothing_installed():
    program("""
    def part():
        with lade.torch.pinned(pool):
            pass
    everywhere(lambda: None, part, serves(-1))
    everywhere(lambda: lade.torch.install_pinned(other), part, serves(0))
    """)


def test_an_interrupted_install_leaves_who_served_before():
    program("""
    def before(number):
        if lade.torch._serving.base != native.serving or native.serving != 0:
            assert not was_interrupted, (number, lade.torch._serving.base, native.serving)
    def install():
        global was_interrupted
        was_interrupted = True
        lade.torch.install_pinned(pool)
        was_interrupted = False
    everywhere(lambda: lade.torch.install_pinned(other), install, before)
    assert native.serving == lade.torch._serving.base == 1
    """)


def test_an_interrupted_install_can_be_repeated():
    program("""
    def repeated(number):
        assert lade.torch.install_pinned(pool) is pool
        assert lade.torch.pinned_pool() is pool and native.serving == 0 and native.sources == [pool.handle], number
    everywhere(lambda: None, lambda: lade.torch.install_pinned(pool), repeated)
    """)


def test_an_interrupted_uninstall_is_whole_or_not_begun():
    program("""
    def whole(number):
        assert native.serving == lade.torch._serving.base, (number, native.serving, lade.torch._serving.base)
    everywhere(lambda: lade.torch.install_pinned(pool), lade.torch.uninstall_pinned, whole)
    assert native.serving == -1
    """)


def test_an_interrupted_install_device_knows_whether_pytorch_has_the_allocator():
    program("""
    Native.lade_torch_device_install = lambda *_: current.append(1) or 0
    Native.lade_torch_device_is_installed = lambda _: len(current)
    torch._C = types.SimpleNamespace(_accelerator_setAllocatorSettings=lambda env: None)
    def prepare():
        global current
        current = []
        lade.torch._device_native = None
        lade.torch._follow_settings.cache_clear()
    def same(number):
        assert lade.torch.device_is_installed() == bool(current), (number, current)
    everywhere(prepare, lade.torch.install_device, same)
    assert current
    """)


def test_settings_and_pools_of_a_wrong_type_are_refused_by_name():
    program("""
    start()
    for name, call in {"settings is a int": lambda: lade.torch.install_device(3), "settings is a bytes": lambda: lade.torch.mempool_allocator(b""),
                       "pool is a str": lambda: lade.torch.install_pinned("pool")}.items():
        try:
            call()
        except TypeError as fault:
            assert name in str(fault) and "expected" in str(fault), fault
        else:
            raise AssertionError(name)
    """)
