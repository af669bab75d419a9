"""A digest of a kernel's source that changes when the kernel does, and only then.

It is equal across Python and Triton versions, under the interpreter and the
compiler, and wherever in a file the kernel stands: the text is compared token by
token, without comments, blank lines, docstrings and decorators, together with
the functions and constants that the kernel uses.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import io
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from pytest_autotune.cache.model import UnportableError

DIGEST_LENGTH = 12
#: Functions of these are left out of a digest: their versions are not the kernel's.
_LIBRARIES = {"triton", "torch", "numpy", "cupy", "numba", "pyopencl", "jax", "cutlass", "cuda", "pytest"}
_LIBRARIES |= {"pytest_autotune", *sys.stdlib_module_names} - {"test", "__main__"}
_LAYOUT = {
    tokenize.INDENT: "<indent>",
    tokenize.DEDENT: "<dedent>",
    tokenize.NEWLINE: "<newline>",
}
_UNSEEN = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}


def digest(text: str) -> str:
    """A short digest of text, as fingerprints hold them."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]


def python_function(value: object) -> FunctionType | None:
    """The Python function inside a kernel, a helper or the wrappers around them."""
    for _ in range(16):  # deeper than any stack of decorators
        if inspect.isfunction(value):
            return value
        inner = getattr(value, "fn", None)
        value = getattr(value, "py_func", None) if inner is None else inner  # Triton's name for it, and Numba's
        if value is None:
            return None
    return None


def qualified_name(function: FunctionType) -> str:
    """``module.qualname`` of a function."""
    return f"{function.__module__}.{function.__qualname__}"


def source_digest(function: FunctionType, constant: Callable[[object], str | None]) -> str:
    """The digest of a kernel's source with everything of its own that it uses.

    Plain values in closure cells are left out: kernels made by a factory share
    their source, and what tells them apart belongs into the key.

    :param constant: the stable text of a constant, or None for what is none.
    :raises UnportableError: when the source of a function cannot be read.
    """
    return _digest(function, constant, {}, own_cells=False)


def closure_cells(function: FunctionType) -> dict[str, object]:
    """The values that a function has taken from the functions around it, by name."""
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return cells


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


def code_text(source: str) -> str:
    """The tokens of Python source that matter, one per line."""
    # Since Python 3.12 an f-string is several tokens: take its text as one, as before.
    words: list[str] = []
    start_of_fstring: tuple[int, int] | None = None
    depth = 0
    lines = source.splitlines(keepends=True)
    statement_start = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in ("FSTRING_START", "TSTRING_START"):
            if depth == 0:
                start_of_fstring = token.start
            depth += 1
            continue
        if kind in ("FSTRING_END", "TSTRING_END"):
            depth -= 1
            if depth == 0 and start_of_fstring is not None:
                words.append(_between(lines, start_of_fstring, token.end))
                statement_start = False
            continue
        if depth or token.type in _UNSEEN:
            continue
        words.append(_LAYOUT.get(token.type, token.string))
        if token.type == tokenize.NEWLINE:
            if len(words) >= 2 and words[-2].startswith("<statement string>"):
                del words[-2:]
            statement_start = True
        elif token.type == tokenize.STRING and statement_start:
            words[-1] = "<statement string>" + token.string
            statement_start = False
        elif token.type not in (tokenize.INDENT, tokenize.DEDENT):
            statement_start = False
    return "\n".join(word.removeprefix("<statement string>") for word in words)


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    (first, left), (last, right) = start, end
    if first == last:
        return lines[first - 1][left:right]
    return "".join([lines[first - 1][left:], *lines[first : last - 1], lines[last - 1][:right]])


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
