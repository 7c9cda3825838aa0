# SPDX-License-Identifier: Apache-2.0
"""Classes of errors that are also a package's own.

Such a class is made where a program has imported the package, so it is no name of a module that another process could look up. Pickled,
it is the call that makes it: a class alone, as torch's DataLoader sends it, and that of an error.
"""

from __future__ import annotations

import copyreg
from typing import Any, Callable


class Joined(type):
    """The type of these classes. `_make` in a class's own body: a function of a module, without arguments, that gives the class."""


def _reduced(cls: Joined) -> str | tuple[Callable[[], type], tuple[()]]:
    make: Any = vars(cls).get("_make")
    return cls.__qualname__ if make is None else (make.__func__, ())


copyreg.pickle(Joined, _reduced)  # type: ignore[arg-type]
