"""What Python's parser sees of source, as text that is equal on every Python.

``ast.dump`` and ``ast.unparse`` differ between versions of Python, which add fields
and leave out others. How source is laid out is nothing that the parser sees:
comments, line breaks, quotes, redundant parentheses and trailing commas.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

#: Fields that follow from others, or are about how something is written.
_UNSEEN = {"ctx", "kind", "simple", "type_comment", "type_ignores"}


def syntax_text(node: ast.AST, without: Iterable[str] = ()) -> str:
    """The text of a tree of the parser.

    Docstrings, and other statements that are only a string, are left out.

    :param without: fields of this node itself that are left out, such as ``"decorator_list"``.
    :raises RecursionError: for a tree that is nested deeper than Python's own limit.
    """
    return _text(node, frozenset(without))


def _text(value: Any, without: frozenset[str] = frozenset()) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_text(part) for part in value)}]"
    if not isinstance(value, ast.AST):
        return f"{type(value).__name__} {value!r}"
    fields = []
    for name in sorted(value._fields):
        if name in _UNSEEN or name in without:
            continue
        field = getattr(value, name, None)
        if isinstance(field, list):
            field = list(_parts(value, field))
        if field is None or field == []:  # a field that this Python does not have is an empty one of another
            continue
        fields.append(f"{name}={_text(field)}")
    return f"{type(value).__name__}({', '.join(fields)})"


def _parts(node: ast.AST, parts: list[Any]) -> Iterator[Any]:
    if isinstance(node, ast.JoinedStr):
        yield from _joined(parts)
        return
    for part in parts:
        if isinstance(node, ast.Delete) and isinstance(part, ast.Tuple):  # del (a, b) is del a, b
            yield from part.elts
        elif not _is_string_statement(part):
            yield part


def _is_string_statement(part: Any) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)


def _joined(parts: list[Any]) -> Iterator[Any]:
    """The parts of an f-string; Pythons differ in where they divide the text between two values."""
    text = ""
    for part in parts:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        if text:
            yield text
            text = ""
        yield part
    if text:
        yield text
