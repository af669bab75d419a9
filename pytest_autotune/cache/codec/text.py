"""The text format: our own printer, and a reader of protobuf's text format however it is laid out.

A file has the same bytes under every version of protobuf. Reading is one pass, errors have their line and column;
protobuf's own parser takes ten times as long, and warns about what it then refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from pytest_autotune.cache.codec.mapping import Plain, from_mapping, to_mapping
from pytest_autotune.cache.codec.schema import MESSAGES
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.cache.model import INT64, UINT32, Cache, Entry, Problem

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
# What a token is: the number of its group.
_SIMPLE, _WORD, _STRING, _ATOM, _CHAR, _END = range(1, 7)
# The first is what our printer writes, and most files hold: a short message without others in it.
_TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*\s*)*(?:
      (\{ [^{}<>"'\#\\\n]{,200} (?:"[^"\\\n]{,200}"[^{}<>"'\#\\\n]{,200}){,3} \})
    | ([A-Za-z_][A-Za-z0-9_]*(?::|(?![A-Za-z0-9_.+\-])))
    | ("[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*')
    | (-?[A-Za-z0-9_.][A-Za-z0-9_.+\-]*)
    | (.)
    | (\Z))""",
    re.VERBOSE | re.DOTALL,
)

_INT = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,22}|[1-9][0-9]{0,19})")
_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[fF]?")
_NON_FINITE = re.compile(r"(-?(?:inf(?:inity)?|nan))f?", re.IGNORECASE)
_BOOLS = {**dict.fromkeys(("true", "True", "t", "1"), True), **dict.fromkeys(("false", "False", "f", "0"), False)}

_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"])|([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})"
    r"|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|.?)",
    re.DOTALL,
)
_CHARS = dict(zip("abfnrtv\\'\"", "\a\b\f\n\r\t\v\\'\"", strict=True))
# A byte as surrogateescape spells it.
_AS_BYTE = [chr(byte) if byte < 0x80 else chr(0xDC00 + byte) for byte in range(256)]


def decode(text: str, where: str) -> Cache:
    """The cache that the text holds.

    :raises CacheError: where it holds none, with line and column where it is no text of protobuf's.
    """
    return from_mapping(_Parser(text, where).message("cache", 0, ""), where, text)


class _Parser:
    """Makes a plain mapping of a text, token by token.

    :param where: the path, for errors.
    """

    _token: re.Match[str]
    #: What kind of token is next, and the token.
    _kind: int
    _word: str

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        # Of equal values, which are many, one object.
        self._values: dict[str, Plain] = {}
        self._depth = 0

    def _next(self) -> None:
        self._token = token = next(self._tokens)
        self._kind = kind = token.lastindex or _END
        self._word = token[kind]

    def message(self, kind: str, start: int, close: str) -> Plain:
        """The fields of a message from behind its bracket on; that of the whole text has none."""
        self._tokens = _TOKEN.finditer(self._text, start)
        self._next()
        found: Plain = {}
        while self._word != close:
            self._field(kind, found)
            if self._word in (",", ";"):
                self._next()
        if close:
            self._next()
        return found

    def _field(self, kind: str, found: Plain) -> None:
        if self._kind != _WORD:
            self._fail(f"a field of {_article(kind)} belongs here, not {self._shown()}")
        token, word = self._token, self._word
        name = word.removesuffix(":")
        field = MESSAGES[kind].get(name) if kind != _UNKNOWN else None
        self._next()
        if name is word and self._word == ":":
            word = f"{word}:"
            self._next()
        if not word.endswith(":") and not (field.kind in MESSAGES if field else self._opens()):
            self._fail(f'a ":" belongs after "{name}", not {self._shown()}')
        if field is None:
            found[name] = None
            self._unknown(name)
        elif field.repeated:
            items = found.setdefault(name, [])
            items += self._list(field.kind, name) if self._word == "[" else [self._one(field.kind, name)]
        elif name in found:
            self._fail(f'"{name}" is one value too many in {_article(kind)}', token)
        else:
            found[name] = self._one(field.kind, name)

    def _list(self, kind: str, name: str) -> list[Any]:
        items = []
        self._next()
        while self._word != "]":
            items.append(self._one(kind, name))
            if self._word == ",":
                self._next()
                if self._word == "]":
                    self._fail("a list ends with a comma")
            elif self._word != "]":
                self._fail(f'"," or "]" belongs here, not {self._shown()}')
        self._next()
        return items

    def _one(self, kind: str, name: str) -> Any:
        """One message or scalar."""
        if kind == "text" or kind == "bytes":
            return self._string(kind == "text", name)
        if kind == _UNKNOWN:
            return self._unknown(name)
        if kind not in MESSAGES:
            return self._number(kind, name)
        if not self._opens():
            self._fail(f'{_article(kind)} in "{{ }}" belongs here, not {self._shown()}')
        if kind != "value" or self._kind != _SIMPLE:
            return self._inside(kind)
        simple = self._word
        value = self._values.get(simple)
        if value is None:
            value = self._values[simple] = self._inside(kind)
        else:
            self._next()
        return value

    def _opens(self) -> bool:
        return self._kind == _SIMPLE or self._word in ("{", "<")

    def _inside(self, kind: str) -> Plain:
        return self.message(kind, self._token.start(self._kind) + 1, ">" if self._word == "<" else "}")

    def _number(self, kind: str, name: str) -> Any:
        word = self._word if self._kind in (_WORD, _ATOM) and len(self._word) <= 400 else ""
        read = _NUMBERS[kind](word)
        if read is None:
            wanted = {"bool": "true or false", "float": "a number"}.get(kind, f"an integer of {kind[-2:]} bits")
            self._fail(f'{wanted} belongs after "{name}:", not {self._shown()}')
        self._next()
        return read

    def _string(self, is_text: bool, name: str) -> str | bytes:
        first, parts = self._token, []
        while self._kind == _STRING:
            parts.append(self._word[1:-1])
            self._next()
        if self._word in ('"', "'"):
            self._fail("a text without an end")
        if not parts:
            self._fail(f'text in quotes belongs after "{name}:", not {self._shown()}')
        if is_text and len(parts) == 1 and "\\" not in parts[0]:
            return parts[0]
        try:
            data = b"".join(_ESCAPE.sub(_unescaped, part).encode("utf-8", "surrogateescape") for part in parts)
            return data.decode() if is_text else data
        except UnicodeDecodeError:
            self._fail(f'"{name}" is not encoded in UTF-8', first)
        except ValueError as error:
            self._fail(f'"{name}" has the escape {str(error)!r}, which there is none of', first)

    def _unknown(self, name: str) -> None:
        """Past the value of a field that this version does not know, or one in a list of it."""
        if self._depth == _DEEPEST:
            raise CacheError(self._where, "is nested too deeply for a cache")
        self._depth += 1
        if self._word == "[":
            self._list(_UNKNOWN, name)
        elif self._opens():
            self._inside(_UNKNOWN)
        elif self._kind in (_WORD, _ATOM) and not self._word.endswith(":"):
            self._next()
        elif self._kind == _STRING:
            self._string(False, name)
        else:
            self._fail(f"a value belongs here, not {self._shown()}")
        self._depth -= 1

    def _shown(self) -> str:
        if self._kind == _END:
            return "the end of the file"
        return f'"{self._word.removesuffix(":")[:40] if self._kind in (_WORD, _ATOM) else self._word[0]}"'

    def _fail(self, found: str, token: re.Match[str] | None = None) -> NoReturn:
        """Refuse the text at a token, or at the next one.

        :raises CacheError: with line and column.
        """
        token = token or self._token
        position = token.start(token.lastindex or _END)
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
        return _CHARS[simple]
    if octal and int(octal, 8) < 256:
        return _AS_BYTE[int(octal, 8)]
    if byte:
        return _AS_BYTE[int(byte, 16)]
    code = int(codes[0] or codes[1] or "d800", 16)
    if 0xD800 <= code < 0xE000:
        raise ValueError(match[0])
    return chr(code)
