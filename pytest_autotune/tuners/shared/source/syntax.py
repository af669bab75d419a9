"""What Python's parser sees of source, as text that is equal on every Python.

``ast.dump`` and ``ast.unparse`` differ between versions of Python, which add fields
and leave out others. How source is laid out is nothing that the parser sees:
comments, line breaks, quotes, redundant parentheses and trailing commas. Code that no parser of ours has seen as a
function, such as what Inductor generates, is digested by its tokens (:func:`code_text`).
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from typing import Any

#: Fields that follow from others, or are about how something is written.
_UNSEEN = {"ctx", "kind", "simple", "type_comment", "type_ignores"}
_LAYOUT = {
    tokenize.INDENT: "<indent>",
    tokenize.DEDENT: "<dedent>",
    tokenize.NEWLINE: "<newline>",
}
_LEFT_OUT = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}


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
        if depth or token.type in _LEFT_OUT:
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
