# SPDX-License-Identifier: Apache-2.0
"""PyTorch's C++ interface of host allocators for tests and benchmarks: what torch_calls.cpp exports.

The module for the PyTorch that runs is looked for in the folder that LADE_TORCH_CALLS names, and beside this file.
"""

import ctypes
import os
import re

_HERE = os.path.dirname(os.path.abspath(__file__))


def path(torch_version: str) -> str | None:
    minor = re.match(r"2\.(\d+)", torch_version)
    name = f"_torch_calls_2_{minor[1] if minor else '?'}.so"
    folders = [os.environ.get("LADE_TORCH_CALLS", ""), _HERE]
    return next((os.path.join(f, name) for f in folders if f and os.path.exists(os.path.join(f, name))), None)


class Refused(RuntimeError):
    pass


class Calls:
    """Each block is a handle; the blocks that are not released are this object's to release."""

    def __init__(self, torch_version: str) -> None:
        where = path(torch_version)
        assert where is not None
        self.native = ctypes.CDLL(where)
        pointer, size, stream = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
        self._declare("calls_error", ctypes.c_char_p)
        self._declare("calls_allocator", pointer)
        self._declare("calls_allocate", pointer, size)
        self._declare("calls_release", None, pointer)
        self._declare("calls_pointer", pointer, pointer)
        self._declare("calls_context", pointer, pointer)
        self._declare("calls_deleter", pointer, pointer)
        self._declare("calls_device_type", ctypes.c_int, pointer)
        self._declare("calls_record", ctypes.c_int, pointer, pointer, stream, ctypes.c_int)
        self._declare("calls_copy", ctypes.c_int, pointer, pointer, size)
        self._declare("calls_clone", pointer, pointer, size)
        self._declare("calls_pairs_ns", ctypes.c_double, size, size, size, ctypes.c_int)
        self._declare("calls_device_pairs_ns", ctypes.c_double, size, size, size, ctypes.c_int)
        self._declare("calls_device_event_context", ctypes.c_int64, ctypes.c_int)
        self._declare("calls_device_block_context", ctypes.c_int64, size)
        self._declare("calls_device_tracked", ctypes.c_int64, ctypes.c_int)
        self._declare("calls_device_failures", ctypes.c_int64)
        self.minor = self.native.calls_minor()
        if self.minor >= 11:
            for name in ("begin", "end", "release"):
                extra = [stream] if name == "begin" else []
                self._declare(f"calls_pool_{name}", ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, *extra)
        if self.minor >= 14:
            self._declare("calls_history", ctypes.c_int, ctypes.c_int, size, ctypes.c_int, ctypes.c_int)
            self._declare("calls_traces", ctypes.c_int, ctypes.c_int, ctypes.c_uint64, pointer, pointer)
            self._declare("calls_segment", ctypes.c_int, ctypes.c_uint64, pointer, pointer)
            self._declare("calls_external", ctypes.c_int, pointer, size)

    def _declare(self, name, result, *arguments):
        function = getattr(self.native, name)
        function.restype = result
        function.argtypes = list(arguments)

    def _check(self, result):
        if result is None or result == -1:
            raise Refused(self.native.calls_error().decode(errors="replace"))
        return result

    def allocator(self):
        return self.native.calls_allocator()

    def allocate(self, size):
        return self._check(self.native.calls_allocate(size))

    def release(self, block):
        self.native.calls_release(block)

    def pointer(self, block):
        return self.native.calls_pointer(block)

    def context(self, block):
        return self.native.calls_context(block)

    def clone(self, block, size):
        return self._check(self.native.calls_clone(block, size))

    def record(self, pointer, context=None, stream=0, device=0):
        """Whether the allocator knows the block."""
        return bool(self._check(self.native.calls_record(pointer, context, stream, device)))

    def empty_cache(self):
        self._check(self.native.calls_empty_cache())

    def stats(self):
        out = (ctypes.c_int64 * 20)()
        self._check(self.native.calls_stats(out))
        cells = ("current", "peak", "allocated", "freed")
        names = ("active_requests", "active_bytes", "allocations", "allocated_bytes")
        keys = [f"{name}.{cell}" for name in names for cell in cells]
        return dict(zip(keys + ["num_host_alloc", "num_host_free", "host_alloc_time.total", "host_free_time.total"], out))

    def reset(self, peaks):
        self._check(self.native.calls_reset(int(peaks)))

    def pool(self, what, identity, *stream):
        self._check(getattr(self.native, f"calls_pool_{what}")(*identity, *stream))

    def pairs_ns(self, size, count, depth=1, threads=1):
        ns = self.native.calls_pairs_ns(size, count, depth, threads)
        if ns < 0:
            raise Refused("see stderr")
        return ns
