"""The text format: our own printer, and a reader of protobuf's text format however it is laid out.

A file has the same bytes under every version of protobuf. Reading is one pass, errors have their line and column;
protobuf's own parser takes ten times as long, and warns about what it then refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from pytest_autotune.cache.codec.mapping import Plain, from_mapping, to_mapping
from pytest_autotune.cache.codec.schema import INT64, MESSAGES, UINT32
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import one_line
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
        lines += [f"{name} {_message(one, name[:-1])}\n" for one in plain.get(name, ())]
    for entry, fields in zip(entries, plain["entries"], strict=True):
        lines += _entry(entry.problem, fields)
    return "".join(lines)


def _entry(problem: Problem, fields: Plain) -> Iterator[str]:
    """An entry, a line for each value; that of the choice names the problem, for who reads a part of a difference."""
    yield "entries {\n"
    for name, found in fields.items():
        kind, repeated = MESSAGES["entry"][name]
        for one in found if repeated else (found,):
            yield f"  {name} {_message(one, kind)}" if kind in MESSAGES else f"  {name}: {_scalar(one)}"
            if name == "choice":
                words = " ".join([problem.kernel.rpartition(".")[2], *map(str, problem.key)])
                yield f"  # {one_line(words, _LONGEST)}"
            yield "\n"
    yield "}\n"


def _message(fields: Plain, kind: str) -> str:
    """A message in one line."""
    parts = []
    for name, found in fields.items():
        of, repeated = MESSAGES[kind][name]
        if of in MESSAGES:
            parts += [f"{name} {_message(one, of)}" for one in found]
        else:
            parts.append(f"{name}: [{', '.join(map(_scalar, found))}]" if repeated else f"{name}: {_scalar(found)}")
    return f"{{ {' '.join(parts)} }}" if parts else "{ }"


def _scalar(scalar: Any) -> str:
    if isinstance(scalar, str):
        return f'"{_SPECIAL.sub(_escape, scalar)}"'
    if isinstance(scalar, bytes):
        return f'"{"".join(map(_BYTES.__getitem__, scalar))}"'
    return str(scalar).lower() if isinstance(scalar, bool) else repr(scalar)


def _escape(match: re.Match[str]) -> str:
    special = match[0]
    return _SHORT.get(special) or "".join(f"\\{byte:03o}" for byte in special.encode())


_DEEPEST = 20
_UNKNOWN = "field"
_SPACES = re.compile(r"\s*")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ \t]*(:?)[ \t]*")
_ATOM = re.compile(r"-?[A-Za-z0-9_.][A-Za-z0-9_.+\-]*")
# What our printer writes, and most files hold: a text without escapes and another text after it; a short message.
_SIMPLE_TEXT = re.compile(r""""([^"\\\n]*)"(?=[ \n]+[a-z}])""")
_SIMPLE_MESSAGE = re.compile(r"""\{[^{}<>"'#\\\n]{,200}(?:"[^"\\\n]{,200}"[^{}<>"'#\\\n]{,200}){,3}\}""")

_INT = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,22}|[1-9][0-9]{0,19})")
_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[fF]?")
_NON_FINITE = re.compile(r"(-?(?:inf(?:inity)?|nan))f?", re.IGNORECASE)
_BOOLS = {**dict.fromkeys(("true", "True", "t", "1"), True), **dict.fromkeys(("false", "False", "f", "0"), False)}

_STOP = {quote: re.compile(rf"[{quote}\\\n]") for quote in "\"'"}
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"])|([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})"
    r"|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|.?)",
    re.DOTALL,
)
_SIMPLE = dict(zip("abfnrtv\\'\"", "\a\b\f\n\r\t\v\\'\"", strict=True))
# A byte as surrogateescape spells it.
_AS_BYTE = [chr(byte) if byte < 0x80 else chr(0xDC00 + byte) for byte in range(256)]


def decode(text: str, where: str) -> Cache:
    """The cache that the text holds.

    :raises CacheError: where it holds none, with line and column where it is no text of protobuf's.
    """
    return from_mapping(_Parser(text, where).message("cache", 0, "")[0], where, text)


class _Parser:
    """Makes a plain mapping of a text; every method that reads something returns where that ends, too.

    :param where: the path, for errors.
    """

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        # Of equal values, which are many, one object.
        self._values: dict[str, Plain] = {}
        self._depth = 0

    def message(self, kind: str, position: int, close: str) -> tuple[Plain, int]:
        """The fields of a message from behind its bracket on; that of the whole text has none."""
        text, found = self._text, Plain()
        position = self._gap(position)
        while not text.startswith(close, position) if close else position < len(text):
            position = self._gap(self._field(kind, position, found))
            if text.startswith((",", ";"), position):
                position = self._gap(position + 1)
        return found, position + len(close)

    def _field(self, kind: str, position: int, found: Plain) -> int:
        text = self._text
        match = _NAME.match(text, position)
        if match is None:
            self._fail(position, f"a field of {_article(kind)} belongs here, not {self._shown(position)}")
        name, colon = match.groups()
        after = self._gap(match.end())
        if not colon and text.startswith(":", after):
            colon, after = ":", self._gap(after + 1)
        field = MESSAGES[kind].get(name) if kind != _UNKNOWN else None
        if not colon and not (field.kind in MESSAGES if field else text.startswith(("{", "<"), after)):
            self._fail(after, f'a ":" belongs after "{name}", not {self._shown(after)}')
        if field is None:
            found[name], after = self._unknown(name, after)
            return after
        if not field.repeated:
            if name in found:
                self._fail(position, f'"{name}" is one value too many in {_article(kind)}')
            found[name], after = self._one(field.kind, name, after)
            return after
        items = found.setdefault(name, [])
        if not text.startswith("[", after):
            one, after = self._one(field.kind, name, after)
            items.append(one)
            return after
        return self._list(field.kind, name, after, items)

    def _list(self, kind: str, name: str, position: int, items: list[Any]) -> int:
        text = self._text
        position = self._gap(position + 1)
        while not text.startswith("]", position):
            one, position = self._one(kind, name, position)
            items.append(one)
            position = self._gap(position)
            if text.startswith(",", position):
                position = self._gap(position + 1)
                if text.startswith("]", position):
                    self._fail(position, "a list ends with a comma")
            elif not text.startswith("]", position):
                self._fail(position, f'"," or "]" belongs here, not {self._shown(position)}')
        return position + 1

    def _one(self, kind: str, name: str, position: int) -> tuple[Any, int]:
        """One message or scalar."""
        text = self._text
        if kind == _UNKNOWN:
            return self._unknown(name, position)
        if kind == "text" or kind == "bytes":
            simple = _SIMPLE_TEXT.match(text, position) if kind == "text" else None
            return (simple[1], simple.end()) if simple else self._string(position, kind == "text", name)
        if kind not in MESSAGES:
            return self._number(kind, name, position)
        if not text.startswith(("{", "<"), position):
            self._fail(position, f'{_article(kind)} in "{{ }}" belongs here, not {self._shown(position)}')
        simple = _SIMPLE_MESSAGE.match(text, position) if kind == "value" else None
        if simple is not None:
            value = self._values.get(simple[0])
            if value is None:
                value = self._values[simple[0]] = self.message(kind, position + 1, "}")[0]
            return value, simple.end()
        return self.message(kind, position + 1, "}" if text[position] == "{" else ">")

    def _number(self, kind: str, name: str, position: int) -> tuple[Any, int]:
        atom = _ATOM.match(self._text, position)
        word = atom[0] if atom and atom.end() - position <= 400 else ""
        read = _NUMBERS[kind](word)
        if atom is None or read is None:
            wanted = {"bool": "true or false", "float": "a number"}.get(kind, f"an integer of {kind[-2:]} bits")
            self._fail(position, f'{wanted} belongs after "{name}:", not {self._shown(position)}')
        return read, atom.end()

    def _string(self, position: int, is_text: bool, name: str) -> tuple[str | bytes, int]:
        start, after, parts = position, position, []
        while (quote := self._text[position : position + 1]) in ('"', "'") and quote:
            after = self._string_end(position, quote)
            parts.append(self._text[position + 1 : after - 1])
            position = self._gap(after)
        if not parts:
            self._fail(position, f'text in quotes belongs after "{name}:", not {self._shown(position)}')
        try:
            data = b"".join(_ESCAPE.sub(_unescaped, part).encode("utf-8", "surrogateescape") for part in parts)
            return (data.decode() if is_text else data), after
        except UnicodeDecodeError:
            self._fail(start, f'"{name}" is not encoded in UTF-8')
        except ValueError as error:
            self._fail(start, f'"{name}" has the escape {str(error)!r}, which there is none of')

    def _string_end(self, position: int, quote: str) -> int:
        start, position = position, position + 1
        while (stop := _STOP[quote].search(self._text, position)) and stop[0] != "\n":
            if stop[0] == quote:
                return stop.end()
            position = stop.end() + 1
        self._fail(start, "a text without an end")

    def _unknown(self, name: str, position: int) -> tuple[None, int]:
        """Past the value of a field that this version does not know, or one in a list of it."""
        if self._depth == _DEEPEST:
            raise CacheError(self._where, "is nested too deeply for a cache")
        self._depth += 1
        char = self._text[position : position + 1]
        if char == "[":
            after = self._list(_UNKNOWN, name, position, [])
        elif char in ("{", "<"):
            after = self.message(_UNKNOWN, position + 1, "}" if char == "{" else ">")[1]
        elif char in ('"', "'"):
            after = self._string(position, False, name)[1]
        elif atom := _ATOM.match(self._text, position):
            after = atom.end()
        else:
            self._fail(position, f"a value belongs here, not {self._shown(position)}")
        self._depth -= 1
        return None, after

    def _gap(self, position: int) -> int:
        """Where white space and comments end."""
        text = self._text
        while True:
            space = _SPACES.match(text, position)
            position = space.end() if space else position
            if not text.startswith("#", position):
                return position
            end = text.find("\n", position)
            position = len(text) if end < 0 else end + 1

    def _shown(self, position: int) -> str:
        if position >= len(self._text):
            return "the end of the file"
        atom = _ATOM.match(self._text, position, position + 40)
        return f'"{atom[0] if atom else self._text[position]}"'

    def _fail(self, position: int, found: str) -> NoReturn:
        """Refuse the text.

        :raises CacheError: with line and column of the position.
        """
        line = self._text.count("\n", 0, position) + 1
        column = position - self._text.rfind("\n", 0, position)
        raise CacheError(f"{self._where}:{line}:{column}", found)


def _article(kind: str) -> str:
    return f"{'an' if kind == 'entry' else 'a'} {kind}"


def _integer(allowed: range) -> Callable[[str], int | None]:
    def read(word: str) -> int | None:
        if not _INT.fullmatch(word):
            return None
        digits = word.lstrip("-")
        number = int(word, 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10)
        return number if number in allowed else None

    return read


def _float(word: str) -> float | None:
    if _FLOAT.fullmatch(word):
        return float(word.rstrip("fF"))
    non_finite = _NON_FINITE.fullmatch(word)
    return float(non_finite[1]) if non_finite else None


_NUMBERS: dict[str, Callable[[str], Any]] = {
    "uint32": _integer(UINT32),
    "int64": _integer(INT64),
    "float": _float,
    "bool": _BOOLS.get,
}


def _unescaped(match: re.Match[str]) -> str:
    """What an escape stands for.

    :raises ValueError: for one that there is none of, which is the message.
    """
    simple, octal, byte, *codes = match.groups()
    if simple:
        return _SIMPLE[simple]
    if octal and int(octal, 8) < 256:
        return _AS_BYTE[int(octal, 8)]
    if byte:
        return _AS_BYTE[int(byte, 16)]
    code = int(codes[0] or codes[1] or "d800", 16)
    if 0xD800 <= code < 0xE000:
        raise ValueError(match[0])
    return chr(code)
