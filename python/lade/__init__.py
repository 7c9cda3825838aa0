# SPDX-License-Identifier: Apache-2.0
"""lade: pinned host memory, device memory, and a pipeline that stages bytes between them.

Needs no GPU: ``lade.software_device()`` is a device made of host memory. Nothing here imports NumPy, torch or CuPy, but for calls
that return their objects.
"""

import sys as _sys

if "t" in _sys.abiflags:
    raise ImportError(
        f"this is a free-threaded Python {_sys.version_info.major}.{_sys.version_info.minor}; lade's extension is for CPython with its global"
        " interpreter lock",
        name="lade",
    )

from lade import _lade
from lade._lade import *  # noqa: F403

__version__ = _lade.version()


def _take_in() -> None:
    """Show the classes that the extension defines as this package's own, in messages and help()."""
    for value in vars(_lade).values():
        if isinstance(value, type) and value.__module__ == "lade._lade":
            value.__module__ = "lade"


_take_in()

from lade import safetensors  # noqa: E402, F401
from lade.loader import Batch, Loader  # noqa: E402, F401
