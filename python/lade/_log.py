# SPDX-License-Identifier: Apache-2.0
"""The library's log in Python's: lines of the logger ``lade``.

The level is the library's: below it lines are not made. ``LADE_LOG`` in the environment has the library write them itself, at once and in
the thread that makes them, to standard error or a file; then none come here.
"""

from __future__ import annotations

import os
import warnings

import lade
from lade import _lade
from lade._arguments import take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_native: Any = _lade  # what is not for users is in no stub

_LEVELS = {"off": 0, "error": 1, "warn": 2, "info": 3, "debug": 4}
_OF_LOGGING = {1: 40, 2: 30, 3: 20, 4: 10}


def deliver(level: int, text: str) -> None:
    """Give a line to the logger. Called by the extension, with no lock held."""
    import logging

    logging.getLogger("lade").log(_OF_LOGGING[level], "%s", text)


def log_level(level: str) -> None:
    """How much of the library's log goes to ``logging.getLogger("lade")``: at first ``"warn"``.

    Lines come in a thread of their own soon after they were made (docs/log.md lists them): where a program hangs or crashes, set LADE_LOG
    instead.

    Parameters
    ----------
    level : str
        ``"off"``, ``"error"``, ``"warn"``, ``"info"`` or ``"debug"``.
    """
    take("level", level, str, "a str")
    if level not in _LEVELS:
        raise lade.InvalidArgumentError(f"level is {level!r}; expected one of {', '.join(_LEVELS)}")
    _native._log_level(_LEVELS[level])


def begin() -> None:
    """At the import of the package."""
    if not os.environ.get("LADE_LOG"):
        _native._log_level(_LEVELS["warn"])
    if os.environ.get("LADE_LOG") or os.environ.get("LADE_STATS"):
        try:
            _native._log_from_environment()
        except lade.Error as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
