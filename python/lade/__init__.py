# SPDX-License-Identifier: Apache-2.0
"""lade: pinned host memory, device memory, and a pipeline that stages bytes between them.

The distribution is ``liblade``: ``lade`` on the package index is another project's, and both put a package ``lade`` into one folder.
Needs no GPU: ``lade.software_device()`` is a device made of host memory. Nothing here imports NumPy, torch or CuPy, except calls
that return their objects; ``lade.safetensors``, ``lade.Loader`` and ``lade.SleepPool`` are imported when they are first asked for.
"""

import os as _os
import sys as _sys
from importlib import import_module as _import_module


def _look_beside() -> None:
    """Say that another distribution's files lie in this package's folder, which pip does not refuse."""
    folder = _os.path.dirname(_os.path.abspath(__file__))
    found = [name for name in ("decoding.py", "models", "utils.py") if _os.path.exists(_os.path.join(folder, name))]
    try:
        around = _os.listdir(_os.path.dirname(folder))
    except OSError:
        around = []
    found += [name for name in around if name.startswith("lade-") and name.endswith((".dist-info", ".egg-info", ".egg"))]
    if found:
        import warnings

        warnings.warn(
            f"another distribution named lade has its files in {folder} too ({', '.join(sorted(found))}); this package is liblade."
            " Each replaces files of the other: run `pip uninstall lade liblade`, then install liblade again",
            RuntimeWarning,
            stacklevel=3,
        )


_look_beside()

# Here: importing the extension would take its classes from the main interpreter. A Python without these modules is left to the extension.
for _name in ("_interpreters", "_xxsubinterpreters"):  # since Python 3.13, before
    try:
        _interpreters = _import_module(_name)
    except ImportError:
        continue
    if _interpreters.get_current() != _interpreters.get_main():
        raise ImportError("lade serves the main interpreter of a process, and no subinterpreter", name="lade")


def _refuse_other_python(error: ImportError) -> None:
    """Say it where the extension is there for another kind of Python: with the global interpreter lock, or without."""
    from importlib.machinery import EXTENSION_SUFFIXES

    folder = _os.path.dirname(_os.path.abspath(__file__))
    if any(_os.path.exists(_os.path.join(folder, "_lade" + suffix)) for suffix in EXTENSION_SUFFIXES):
        return
    kind = "free-threaded " if "t" in _sys.abiflags else ""
    raise ImportError(
        f"this package of lade is not built for a {kind}{_sys.implementation.name} {_sys.version_info[0]}.{_sys.version_info[1]}:"
        " `pip install ./python` in a clone of lade builds it for the Python that runs",
        name="lade",
    ) from error


try:
    from lade import _lade
except ImportError as _error:
    _refuse_other_python(_error)
    raise
from lade._lade import *  # noqa: F403

__version__ = _lade.version()


def _take_in() -> None:
    """Show the classes that the extension defines as this package's own, in messages and help()."""
    for value in vars(_lade).values():
        if isinstance(value, type) and value.__module__ == "lade._lade":
            value.__module__ = "lade"


_take_in()

from lade import _log  # noqa: E402

_log.begin()
from lade._log import log_level as log_level  # noqa: E402

TYPE_CHECKING = False  # without typing, which takes longer to import than all of this
if TYPE_CHECKING:
    from lade import safetensors as safetensors
    from lade.loader import Batch as Batch, Loader as Loader
    from lade.sleep import SleepPool as SleepPool

# Names that are imported when they are first asked for, with their modules; of modules themselves none.
_LATER = {"safetensors": "", "loader": "", "sleep": "", "Batch": "loader", "Loader": "loader", "SleepPool": "sleep"}
globals()["__all__"] = [name for name in {**globals(), **_LATER} if not name.startswith("_") and name != "TYPE_CHECKING"]

if not TYPE_CHECKING:  # else no checker would miss a name

    def __getattr__(name):
        home = _LATER.get(name)
        if home is None:
            raise AttributeError(f"module 'lade' has no attribute {name!r}", name=name, obj=_sys.modules["lade"])
        module = _import_module("lade." + (home or name))
        value = getattr(module, name) if home else module
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
