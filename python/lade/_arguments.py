# SPDX-License-Identifier: Apache-2.0
"""Types of arguments: what is wrong is refused by the argument's name, its type, and what was expected."""

from __future__ import annotations

import os

from lade import _lade

TYPE_CHECKING = False  # without typing and re, which the import of the package would wait for
if TYPE_CHECKING:
    from typing import Any


def class_text(value: Any) -> str:
    """The class of a value, with its module where that is not builtins, as the extension names it."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def wrong_type(name: str, value: Any, expected: str) -> Exception:
    """What is raised for an argument of a wrong type."""
    return _lade.ArgumentTypeError(f"{name} is a {class_text(value)}; expected {expected}")


def take(name: str, value: Any, kind: type[Any] | tuple[type[Any], ...], expected: str, optional: bool = False) -> None:
    """Refuses a value that is of none of these classes; None is taken where the argument is optional."""
    if not isinstance(value, kind) and not (optional and value is None):
        raise wrong_type(name, value, f"{expected} or None" if optional else expected)


def take_function(name: str, value: Any, call: str) -> None:
    """Refuses what cannot be called; None is taken."""
    if value is not None and not callable(value):
        raise wrong_type(name, value, f"{call} or None")


def is_url(path: Any) -> bool:
    """Whether a path is the URL of an object."""
    scheme, separator, _ = os.fsdecode(path).partition("://")
    return separator != "" and scheme.lower() in ("s3", "http", "https")


def path_text(path: Any) -> str:
    """A path for messages. The query of a URL may be a secret, and is left out."""
    text = os.fsdecode(os.fspath(path))
    return text.partition("?")[0] if is_url(text) else text


def take_path(name: str, value: Any) -> Any:
    """A path as str or bytes."""
    take(name, value, (str, bytes, os.PathLike), "a path: str, bytes or os.PathLike")
    return os.fspath(value)
