"""The digest of a kernel's source as it was first made: of how it is typed, and blind to more.

Entries that hold it stay hits while it is right, as long as nothing is found that it cannot see.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

from pytest_autotune.cache.model import UnportableError, Value
from pytest_autotune.tuners.shared.digest import digest
from pytest_autotune.tuners.shared.source.functions import closure_cells, python_function, qualified_name
from pytest_autotune.tuners.shared.source.tokens import code_text

#: The type of a value of a fingerprint that holds such a digest.
OLDER_FORM = "digest"
_LIBRARIES = {"triton", "torch", "numpy", "cupy", "numba", "pyopencl", "jax", "cutlass", "cuda", "pytest"}
_LIBRARIES |= {"pytest_autotune", *sys.stdlib_module_names} - {"test", "__main__"}


def older_source_digest(function: FunctionType, constant: Callable[[object], str | None]) -> str:
    """The digest in its first form.

    :param constant: the stable text of a constant, or None for what is none.
    :raises UnportableError: when the source of a function cannot be read.
    """
    return _digest(function, constant, {}, own_cells=False)


def _digest(
    function: FunctionType,
    constant: Callable[[object], str | None],
    seen: dict[FunctionType, str],
    own_cells: bool,
) -> str:
    if function in seen:
        return seen[function]
    seen[function] = f"recursive {function.__qualname__}"
    source = _definition(function)
    parts = [code_text(source)]
    for name, value in _used(function, source):
        inner = python_function(value)
        if inner is not None:
            if not _of_library(inner):
                parts.append(f"{name}: {_digest(inner, constant, seen, own_cells=True)}")
        elif inspect.isclass(value):
            if not _of_library(value):
                parts.append(f"{name}: {_class_text(value)}")
        elif own_cells or name not in function.__code__.co_freevars:
            text = constant(value)
            if text is not None:
                parts.append(f"{name}: {text}")
    seen[function] = digest("\n".join(parts))
    return seen[function]


def _of_library(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").split(".")[0] in _LIBRARIES


def _definition(function: FunctionType) -> str:
    """The text of a function from its ``def`` on."""
    try:
        lines, _ = inspect.getsourcelines(function)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        raise UnportableError(f"the source of {qualified_name(function)} cannot be read") from None
    source = textwrap.dedent("".join(lines))
    try:
        node = ast.parse(source).body[0]
    except (SyntaxError, IndexError):
        raise UnportableError(f"the source of {qualified_name(function)} cannot be parsed") from None
    # Python 3.13 takes code of exec() for lines of another "<string>".
    if getattr(node, "name", None) != function.__code__.co_name:
        raise UnportableError(f"the source of {qualified_name(function)} cannot be read")
    return "".join(source.splitlines(keepends=True)[node.lineno - 1 :])


def _class_text(cls: type) -> str:
    try:
        return digest(code_text(textwrap.dedent(inspect.getsource(cls))))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return cls.__qualname__


def _used(function: FunctionType, source: str) -> Iterator[tuple[str, object]]:
    """What a function takes from outside, by the name it uses, sorted by name."""
    local = set(function.__code__.co_varnames) - set(function.__code__.co_freevars)
    outside = {**vars(builtins), **function.__globals__, **closure_cells(function)}
    names: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(source)):
        chain: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id not in local and inner.id in outside:
            names.add((inner.id, *reversed(chain)))
    found: dict[str, object] = {}
    for name, *attributes in sorted(names):
        value = outside[name]
        path = name
        for attribute in attributes:
            if not isinstance(value, ModuleType):
                break
            value = getattr(value, attribute, None)
            path += f".{attribute}"
        if not isinstance(value, ModuleType) and getattr(builtins, name, found) is not value:
            found[path] = value
    yield from sorted(found.items(), key=lambda item: item[0])


def in_the_form_of_the_file(
    fingerprint: Sequence[Value],
    loaded: Sequence[tuple[Value, ...]],
    older: Callable[[], Sequence[Value] | None],
) -> tuple[Value, ...]:
    """A fingerprint, sorted by name, with a source digest by the older rule where a loaded entry has that one.

    Such an entry stays as it is until the problem is tuned again. What the older rule does not see is never trusted
    to it.

    :param loaded: the fingerprints of entries with the same key.
    :param older: makes the fingerprint by the older rule; None where that one does not see all there is.
    """
    now = sorted_by_name(fingerprint)
    if now in loaded or not any(_is_older(value) for one in loaded for value in one):
        return now
    by_older_rule = older()
    found = sorted_by_name(by_older_rule) if by_older_rule is not None else now
    return found if found in loaded else now


def _is_older(value: Value) -> bool:
    return value.name == "source" and value.type == OLDER_FORM


def sorted_by_name(fingerprint: Iterable[Value]) -> tuple[Value, ...]:
    """A fingerprint as entries hold it."""
    return tuple(sorted(fingerprint, key=lambda value: value.name))
