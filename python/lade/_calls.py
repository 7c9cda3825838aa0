# SPDX-License-Identifier: Apache-2.0
"""Calls of the extension whose arguments fit no parameters: what is raised for them. Imported when the first one is made."""

from __future__ import annotations

import ast
import builtins
import difflib
import re
from typing import Any

from lade import _arguments, _lade


def refusal(function: Any, positional: list[Any], keywords: dict[str, Any]) -> Exception:
    """What a call of a function of the extension with these arguments raises."""
    text = function.__nb_signature__[-1][0].rsplit("\n", 1)[-1].rstrip(": .")
    text = re.sub(r"\blade\.(_lade\.)?", "", re.sub(r"= \\\d+", "= ...", text))  # a default stands there as its number
    parameters = ast.parse(text + ": ...").body[0].args  # type: ignore[attr-defined]
    by_place, by_name = parameters.posonlyargs + parameters.args, parameters.kwonlyargs
    every = {one.arg: one.annotation for one in by_place + by_name}
    optional = {one.arg for one in by_place[len(by_place) - len(parameters.defaults) :]}
    optional |= {one.arg for one, default in zip(by_name, parameters.kw_defaults) if default is not None}

    place = function.__qualname__.removesuffix(".__init__")
    shown = [text for text in ast.unparse(parameters).split(", ") if text not in ("self", "/")]
    method = "self" in every

    def mistake(what: str, expected: str = f"{place.rpartition('.')[2]}({', '.join(shown)})") -> Exception:
        return _lade.ArgumentTypeError(f"{place}() {what}; expected {expected}")

    given = dict(zip((one.arg for one in by_place), positional))
    if len(positional) > len(by_place) and parameters.vararg is None:
        return mistake(f"has {len(positional) - method} arguments by place", f"{len(by_place) - method} at most")
    for name, value in keywords.items():
        if name in given:
            return mistake(f"has two values for {name}", "one")
        if name not in every and parameters.kwarg is None:
            near = difflib.get_close_matches(name, every, 1)
            return mistake(f"has no argument {name}", near[0] if near else ", ".join(one for one in every if one != "self") or "none")
        given[name] = value
    for name in every:
        if name not in given and name not in optional:
            return mistake(f"misses {name}")

    owner = getattr(_lade, function.__qualname__.partition(".")[0])
    if method and isinstance(owner, type) and not isinstance(given["self"], owner):
        return _arguments.wrong_type("self", given.pop("self"), _words(owner.__name__))
    for name, value in given.items():
        if not _lade._is_made(value) and not (name == "self" and function.__name__ == "__init__"):
            return _lade.ArgumentTypeError(f"{name} is a {_arguments.class_text(value)} whose __init__() has not run; expected one that has")
    given.pop("self", None)
    for name, value in given.items():
        if name in every and not _fits(every[name], value):
            return _arguments.wrong_type(name, value, _expected(every[name]))
    for name, value in given.items():
        wrong = _beyond(every.get(name), value)
        if wrong:
            return _lade.ArgumentTypeError(f"{name} is {value!r}; expected {wrong}")
    return mistake("has " + (", ".join(f"{name} a {_arguments.class_text(value)}" for name, value in given.items()) or "no object that was made"))


def _class_of(node: ast.expr | None) -> Any:
    """The class that an annotation names; None where it is none that can be asked."""
    name = node.id if isinstance(node, ast.Name) else ""
    found = getattr(_lade, name, getattr(builtins, name, None))
    return found if isinstance(found, type) and found is not object else None


def _fits(node: ast.expr | None, value: Any) -> bool:
    """Whether a value is of an annotated type. Of a type that cannot be asked everything is, except None."""
    if isinstance(node, ast.BinOp):
        return _fits(node.left, value) or _fits(node.right, value)
    kind = _class_of(node)
    if kind is int:
        return hasattr(value, "__index__")
    if kind is float:
        return hasattr(value, "__float__") or hasattr(value, "__index__")
    if kind is not None:
        return isinstance(value, kind)
    return (value is None) == (isinstance(node, ast.Constant) and node.value is None)


def _expected(node: ast.expr | None) -> str:
    """The words for an annotation: "an int or None"."""
    if isinstance(node, ast.BinOp):
        return f"{_expected(node.left)} or {_expected(node.right)}"
    text = "object" if node is None else ast.unparse(node)
    return _words(text) if _class_of(node) or text == "object" else text.removeprefix("typing.").removeprefix("collections.abc.")


def _words(name: str) -> str:
    return ("an " if name[0] in "aeiouAEIOU" else "a ") + name


def _beyond(node: ast.expr | None, value: Any) -> str:
    """What a value of the right type is not."""
    kind = _class_of(node)
    if kind is int and isinstance(value, int):
        return "an int of 0 or more" if value < 0 else "a smaller int" if value >= 1 << 31 else ""
    if kind is str and isinstance(value, str) and any("\ud800" <= one <= "\udfff" for one in value):
        return "a text that UTF-8 has"
    return ""
