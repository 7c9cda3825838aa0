# SPDX-License-Identifier: Apache-2.0
"""What lade.cupy, lade.rmm and lade.numba share: versions are refused by name, and each device has an allocator of its own."""

from __future__ import annotations

import importlib
import re
import threading
import types
from typing import Any, Callable, Generic, Mapping, Sequence, TypeVar

T = TypeVar("T")


def version_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "14.2.0rc1" is (14, 2, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def require(name: str, least: str, needed: Mapping[str, Sequence[str]]) -> types.ModuleType:
    """Import a package and see that it is one that lade serves.

    Parameters
    ----------
    name : str
        The package, as import names it.
    least : str
        The oldest version that is served.
    needed : mapping
        Module to names: what lade uses of it.

    Returns
    -------
    module
        The package.

    Raises
    ------
    ImportError
        It is not installed, is older, or lacks a name; the text says which.
    """
    package = importlib.import_module(name)
    version = str(getattr(package, "__version__", "of no version"))
    if version_of(version) < version_of(least):
        raise ImportError(f"lade serves {name} {least} and later; {name} {version} is installed", name=name)
    for module_name, names in needed.items():
        module = importlib.import_module(module_name)
        for needed_name in names:
            if not hasattr(module, needed_name):
                raise ImportError(f"lade cannot serve {name} {version}: it has no {module_name}.{needed_name}", name=name)
    return package


class PerDevice(Generic[T]):
    """One object for each device, made when it is first asked for.

    I1  A device has one object, however many threads ask at once; it stays for as long as this table.
    Locks: `_lock` guards making; an object that is there is read without it. A signal's handler may come here in the midst of making.
    """

    def __init__(self, make: Callable[[int], T], given: Mapping[int, T] | None = None) -> None:
        self._make = make
        self._objects: dict[int, T] = dict(given or {})
        self._lock = threading.RLock()

    def get(self, ordinal: int) -> T:
        found = self._objects.get(ordinal)
        return self._add(ordinal) if found is None else found

    def _add(self, ordinal: int) -> T:
        with self._lock:
            if ordinal not in self._objects:
                self._objects.setdefault(ordinal, self._make(ordinal))
            return self._objects[ordinal]

    def items(self) -> list[tuple[int, T]]:
        """The devices that were asked for so far, by ordinal."""
        with self._lock:
            return sorted(self._objects.items())


def table(make: Callable[[int], T], given: Any, kind: type[T], field: str) -> PerDevice[T] | None:
    """What an argument of install() asks for: True, False, one object or a dict of them by the number of the device."""
    if given is False:
        return None
    if given is True:
        return PerDevice(make)
    if isinstance(given, kind):
        given = {given.device.ordinal: given}  # type: ignore[attr-defined]
    if isinstance(given, Mapping):
        for ordinal, value in given.items():
            if not isinstance(ordinal, int) or not isinstance(value, kind):
                raise TypeError(f"{field}[{ordinal!r}] is {value!r}; expected lade.{kind.__name__} by the number of the device")
        return PerDevice(make, given)
    raise TypeError(f"{field} is {given!r}; expected True, False, a lade.{kind.__name__} or a dict of them")
