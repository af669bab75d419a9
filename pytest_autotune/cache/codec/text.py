"""The text format: our own printer, whose bytes are the same under every version of protobuf, and two readers.

What our printer writes is read in one pass. For whatever is laid out otherwise there is protobuf's own parser, which
takes five times as long, and says what is wrong, with line and column.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_autotune.cache.codec.mapping import MAX_FOREIGN_BYTES, MESSAGES, Codec, Plain, from_mapping, to_mapping
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.cache.model import Cache, Entry, Problem

_HEADER = "# proto-file: pytest_autotune/cache/autotune_cache.proto\n# proto-message: pytest_autotune.AutotuneCache\n"
# Of a comment that names a problem.
_LONGEST = 200

# Quotes and control characters, and what hides or reorders the text around it.
_SPECIAL = re.compile(r'[\\"\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff]')
_SHORT = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
_BYTES = [_SHORT.get(chr(b)) or (chr(b) if 0x20 <= b < 0x7F else f"\\{b:03o}") for b in range(256)]


def encode(entries: Sequence[Entry]) -> str:
    """A cache of these entries as text, in the order given."""
    plain = to_mapping(entries)
    lines = [_HEADER, f"format_version: {plain['format_version']}\n"]
    for name in ("devices", "digests"):
        lines += [f"{_field(name, one)}\n" for one in plain.get(name, ())]
    for entry, fields in zip(entries, plain["entries"], strict=True):
        lines += _entry(entry.problem, fields)
    return "".join(lines)


def _entry(problem: Problem, fields: Plain) -> Iterator[str]:
    """An entry, a line for each value; that of the choice names the problem, for who reads a part of a difference."""
    yield "entries {\n"
    for name, found in fields.items():
        for one in found if isinstance(found, list) else (found,):
            yield f"  {_field(name, one)}"
            if name == "choice":
                words = " ".join([problem.kernel.rpartition(".")[2], *map(str, problem.key)])
                yield f"  # {to_one_line(words, _LONGEST)}"
            yield "\n"
    yield "}\n"


def _field(name: str, found: Any) -> str:
    """A field in one line."""
    if isinstance(found, dict):
        parts = [_field(*field) for field in found.items()]
        return f"{name} {{ {' '.join(parts)} }}" if parts else f"{name} {{ }}"
    if isinstance(found, list) and isinstance(found[0], dict):
        return " ".join([_field(name, one) for one in found])
    return f"{name}: [{', '.join(map(_scalar, found))}]" if isinstance(found, list) else f"{name}: {_scalar(found)}"


def _scalar(scalar: Any) -> str:
    if isinstance(scalar, str):
        return f'"{_SPECIAL.sub(_escape, scalar)}"'
    if isinstance(scalar, bytes):
        return f'"{"".join(map(_BYTES.__getitem__, scalar))}"'
    return str(scalar).lower() if isinstance(scalar, bool) else repr(scalar)


def _escape(match: re.Match[str]) -> str:
    special = match[0]
    return _SHORT.get(special) or "".join(f"\\{byte:03o}" for byte in special.encode())


# A short message without others in it; text; a name, a number or a word; any other character; the end.
_TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*\s*)*(
      \{ [^{}<>"'\#\\\n]{,200} (?:"[^"\\\n]{,200}"[^{}<>"'\#\\\n]{,200}){,3} \}
    | "[^"\\\n]*(?:\\(?:[\\"nrt]|[0-3][0-7][0-7])[^"\\\n]*)*"
    | [\w.+-]+:?
    | .
    | \Z)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?|-?inf|nan")
_BOOLS = {"true": True, "false": False}


def decode(text: str, where: str) -> Cache:
    """The cache that the text holds.

    :raises CacheError: where it holds none, with line and column where it is no text of protobuf's.
    """
    try:
        plain = _Written().message("cache", iter(_TOKEN.findall(text)), "")
    except (LookupError, ValueError, StopIteration):
        if len(text) > MAX_FOREIGN_BYTES:
            found = f"is larger than {MAX_FOREIGN_BYTES >> 20} MiB, and not as pytest-autotune writes it"
            raise CacheError(where, found) from None
        return _read_by_protobuf(text, where)
    return from_mapping(plain, where, text)


class _Written:
    """Makes a plain mapping of text as our printer writes it; lines, blanks and comments may be others."""

    def __init__(self) -> None:
        # Of equal messages, which are many, one object.
        self._simple: dict[tuple[str, str], Plain] = {}

    def message(self, kind: str, tokens: Iterator[str], end: str) -> Plain:
        """A message, or the whole text.

        :raises LookupError, ValueError, StopIteration: where it is laid out otherwise, or wrong.
        """
        found: Plain = {}
        fields = MESSAGES[kind]
        while (token := next(tokens)) != end:
            name = token.removesuffix(":")
            of, repeated = fields[name]
            if (of in MESSAGES) is (name is not token):
                raise ValueError(token)
            one = self._one(of, next(tokens), tokens)
            if repeated:
                items = found.setdefault(name, [])
                items += one if isinstance(one, list) else [one]
            elif name in found:
                raise ValueError(name)
            else:
                found[name] = one
        return found

    def _one(self, kind: str, token: str, tokens: Iterator[str]) -> Any:
        if token == "[":
            return self._list(kind, tokens)
        if kind not in MESSAGES:
            return _scalar_of(kind, token)
        if token == "{":
            return self.message(kind, tokens, "}")
        if token[0] != "{":
            raise ValueError(token)
        if (kind, token) not in self._simple:
            self._simple[kind, token] = self.message(kind, iter(_TOKEN.findall(token, 1)), "}")
        return self._simple[kind, token]

    def _list(self, kind: str, tokens: Iterator[str]) -> list[Any]:
        items, token = [], ","
        while token == ",":
            items.append(self._one(kind, next(tokens), tokens))
            token = next(tokens)
        if token != "]":
            raise ValueError(token)
        return items


def _scalar_of(kind: str, token: str) -> Any:
    if kind in ("text", "bytes"):
        if token[0] != '"' or len(token) < 2:
            raise ValueError(token)
        if "\\" not in token:
            return token[1:-1] if kind == "text" else token[1:-1].encode()
        data = token[1:-1].encode().decode("unicode_escape").encode("latin-1")
        return data.decode() if kind == "text" else data
    if kind == "bool":
        return _BOOLS[token]
    if not _NUMBER.fullmatch(token):
        raise ValueError(token)
    return float(token) if kind == "float" else int(token)


# What protobuf says of a field that a message does not have.
_NO_FIELD = re.compile(r'type "[\w.]*\.(\w+)" has no field named "(\w+)"')


def _read_by_protobuf(text: str, where: str) -> Cache:
    """The cache that a text holds which is laid out otherwise.

    :raises CacheError: where it holds none, with line and column.
    """
    from google.protobuf import text_format

    from pytest_autotune.cache.codec.binary import new_message, plain_of

    unknown = None
    message = new_message()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is refused
            try:
                text_format.Parse(text, message)
            except text_format.ParseError as error:
                found = _NO_FIELD.search(str(error))
                if not found:
                    raise
                unknown = found[2], found[1].lower().replace("autotunecache", "cache")
                message = text_format.Parse(text, new_message(), allow_unknown_field=True)
    except text_format.ParseError as error:
        line, column = error.GetLine() or 1, error.GetColumn() or 1
        shown = "'" + text.split("\n")[line - 1] + "': "
        raise CacheError(f"{where}:{line}:{column}", str(error).partition(" : ")[2].removeprefix(shown)) from None
    except RecursionError:
        raise CacheError(where, "is nested too deeply for a cache") from None
    except ValueError as error:  # text that is not encoded in UTF-8
        raise CacheError(where, f"is not a cache: {error}") from None
    return from_mapping(plain_of(message, "cache", {}), where, text, unknown)


CODEC = Codec("text", (".textproto", ".txtpb", ".pbtxt", ".txt"), decode, encode)
