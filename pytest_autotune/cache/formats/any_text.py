"""Reads protobuf's text format however it is laid out: one pass, nothing copied, errors with their line.

Not protobuf's own parser: that one takes twenty times as long and a hundred
times the file's size in memory, and warns about what it then refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats.schema import FIELDS, UnknownField
from pytest_autotune.cache.model import Candidate, Device, Scalar, Value

Fields: TypeAlias = "dict[str, Any]"

_DEEPEST = 100
_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|\[[A-Za-z0-9_.\-/ ]{1,200}\])[ \t]*(:?)[ \t]*")
_ATOM = re.compile(r"-?[A-Za-z0-9_.][A-Za-z0-9_.+\-]*")
_STOP = {quote: re.compile(rf"[{quote}\\\n]") for quote in "\"'"}
# A value in one line; longer ones are read field by field.
_BLOCK = re.compile(r"""\{[^{}<>"'#\\\n]*(?:"[^"\\\n]*"[^{}<>"'#\\\n]*)*\}""")
_LONGEST_BLOCK = 300

_INT = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,22}|[1-9][0-9]{0,19})")
_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[fF]?")
_NON_FINITE = re.compile(r"(-?(?:inf(?:inity)?|nan))f?", re.IGNORECASE)
_BOOLS = {**dict.fromkeys(("true", "True", "t", "1"), True), **dict.fromkeys(("false", "False", "f", "0"), False)}

_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"])|([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})"
    r"|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|.?)",
    re.DOTALL,
)
_SIMPLE = dict(zip("abfnrtv\\'\"", "\a\b\f\n\r\t\v\\'\"", strict=True))
# A byte as surrogateescape spells it, made once: a file may hold millions.
_BYTES = [chr(byte) if byte < 0x80 else chr(0xDC00 + byte) for byte in range(256)]

_REPEATED = ("devices", "entries", "key", "fingerprint", "candidates", "params", "compiled", "made_of")
_SCALARS = ("bool", "int", "float", "text")


class TextParser:
    """Reads messages of a text.

    :param where: the path, for errors.
    """

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.unknown: UnknownField | None = None
        self._where = where
        self._values: dict[str, Value] = {}
        self._candidates: dict[str, Candidate] = {}

    def top_field(self, position: int, found: Fields) -> int:
        """Read the field of the cache at the position into ``found``.

        :returns: where it ends.
        :raises CacheError: where there is none.
        """
        return self._field("cache", position, found)

    def fail(self, position: int, found: str) -> NoReturn:
        """Refuse the text.

        :raises CacheError: with line and column of the position.
        """
        line = self.text.count("\n", 0, position) + 1
        column = position - self.text.rfind("\n", 0, position)
        raise CacheError(f"{self._where}:{line}:{column}", found)

    def gap(self, position: int) -> int:
        """Where white space and comments end."""
        text = self.text
        while True:
            space = _SPACE.match(text, position)
            position = space.end() if space else position
            if not text.startswith("#", position):
                return position
            end = text.find("\n", position)
            position = len(text) if end < 0 else end + 1

    def _found(self, position: int) -> str:
        if position >= len(self.text):
            return "the end of the file"
        atom = _ATOM.match(self.text, position, position + 40)
        return f'"{atom[0] if atom else self.text[position]}"'

    def _message(self, kind: str, position: int) -> tuple[Fields, int]:
        """The fields of the message whose bracket is at the position."""
        close = "}" if self.text[position] == "{" else ">"
        found: Fields = {}
        position = self.gap(position + 1)
        while not self.text.startswith(close, position):
            position = self.gap(self._field(kind, position, found))
        return found, position + 1

    def _field(self, kind: str, position: int, found: Fields) -> int:
        text = self.text
        match = _NAME.match(text, position)
        if match is None:
            self.fail(position, f"a field of {_article(kind)} belongs here, not {self._found(position)}")
        name, colon = match.groups()
        after = match.end()
        if not colon:
            after = self.gap(after)
            if text.startswith(":", after):
                colon, after = ":", after + 1
        after = self.gap(after)
        if name not in FIELDS[kind]:
            if self.unknown is None:
                self.unknown = UnknownField.of(name, FIELDS[kind], text.count("\n", 0, position) + 1)
            after = self._skip(after, bool(colon))
        elif name in _REPEATED:
            if FIELDS[kind][name] == "text" and not colon:
                self._no_colon(after, name)
            after = self._repeated(FIELDS[kind][name], name, after, found.setdefault(name, []))
        else:
            if name in found or (name in _SCALARS and any(scalar in found for scalar in _SCALARS)):
                self.fail(position, f'"{name}" is one value too many in {_article(kind)}')
            if FIELDS[kind][name] in FIELDS:
                found[name], after = self._one(FIELDS[kind][name], after)
            elif not colon:
                self._no_colon(after, name)
            else:
                found[name], after = self._scalar(FIELDS[kind][name], name, after)
        after = self.gap(after)
        return after + 1 if text[after : after + 1] in (",", ";") else after

    def _no_colon(self, position: int, name: str) -> NoReturn:
        self.fail(position, f'a ":" belongs after "{name}", not {self._found(position)}')

    def _repeated(self, kind: str, name: str, position: int, found: list[Any]) -> int:
        if not self.text.startswith("[", position):
            one, position = self._one(kind, position, name)
            found.append(one)
            return position
        position = self.gap(position + 1)
        while not self.text.startswith("]", position):
            one, position = self._one(kind, position, name)
            found.append(one)
            position = self.gap(position)
            if self.text.startswith(",", position):
                position = self.gap(position + 1)
                if self.text.startswith("]", position):
                    self.fail(position, "a list ends with a comma")
            elif not self.text.startswith("]", position):
                self.fail(position, f'"," or "]" belongs here, not {self._found(position)}')
        return position + 1

    def _one(self, kind: str, position: int, name: str = "") -> tuple[Any, int]:
        """One message, as what it stands for where it needs nothing from around it; or one text."""
        text = self.text
        if kind == "text":
            return self._string(position, True, name)
        if text[position : position + 1] not in ("{", "<"):
            self.fail(position, f'{_article(kind)} in "{{ }}" belongs here, not {self._found(position)}')
        if kind == "value":
            block = _BLOCK.match(text, position, position + _LONGEST_BLOCK)
            value = self._values.get(block[0]) if block else None
            if block and value is not None:
                return value, block.end()
            fields, end = self._message(kind, position)
            scalar: Scalar = next((fields[name] for name in _SCALARS if name in fields), None)
            value = Value(fields.get("name", ""), scalar, fields.get("type", ""))
            if end - position < _LONGEST_BLOCK:
                value = self._values.setdefault(text[position:end], value)
            return value, end
        fields, end = self._message(kind, position)
        if kind == "candidate":
            candidate = Candidate(
                fields.get("id", ""),
                tuple(fields.get("params", ())),
                fields.get("time_us"),
                fields.get("failed", ""),
                fields.get("label", ""),
            )
            # So short that millions of them may stand in a file.
            return (
                self._candidates.setdefault(text[position:end], candidate) if end - position < 20 else candidate
            ), end
        if kind == "device":
            device = Device(fields.get("name", ""), fields.get("arch", ""), fields.get("multiprocessors", 0))
            return (fields.get("id", ""), device), end
        return fields, end

    def _scalar(self, kind: str, name: str, position: int) -> tuple[Scalar | bytes, int]:
        if kind in ("text", "bytes"):
            return self._string(position, kind == "text", name)
        atom = _ATOM.match(self.text, position)
        word = atom[0] if atom and atom.end() - position <= 400 else ""
        read = _NUMBERS[kind](word)
        if atom is None or read is None:
            wanted = {"bool": "true or false", "float": "a number"}.get(kind, f"an integer of {kind[-2:]} bits")
            self.fail(position, f'{wanted} belongs after "{name}:", not {self._found(position)}')
        return read, atom.end()

    def _string(self, position: int, is_text: bool, name: str) -> tuple[str | bytes, int]:
        parts = []
        start = position
        while (quote := self.text[position : position + 1]) in ('"', "'"):
            end = self._string_end(position, quote)
            parts.append(self.text[position + 1 : end - 1])
            after = end
            position = self.gap(end)
        if not parts:
            self.fail(position, f'text in quotes belongs after "{name}:", not {self._found(position)}')
        plain = "".join(parts)
        if "\\" not in plain:
            return (plain if is_text else plain.encode()), after
        try:
            data = unescaped(parts)
            return (data.decode() if is_text else data), after
        except UnicodeDecodeError:
            self.fail(start, f'"{name}" is not encoded in UTF-8')
        except ValueError as error:
            self.fail(start, f'"{name}" has the escape {str(error)!r}, which there is none of')

    def _string_end(self, position: int, quote: str) -> int:
        start, position = position, position + 1
        while (stop := _STOP[quote].search(self.text, position)) and stop[0] != "\n":
            if stop[0] == quote:
                return stop.end()
            position = stop.end() + 1
        self.fail(start, "a text without an end")

    def _skip(self, position: int, colon: bool) -> int:
        """Where the value of an unknown field ends."""
        text = self.text
        open_brackets: list[str] = []
        while True:
            char = text[position : position + 1]
            if char in ("{", "<", "["):
                open_brackets.append({"{": "}", "<": ">", "[": "]"}[char])
                if len(open_brackets) > _DEEPEST:
                    raise CacheError(self._where, "is nested too deeply for a cache")
                position += 1
            elif open_brackets and char == open_brackets[-1]:
                open_brackets.pop()
                position += 1
            elif char in ('"', "'"):
                position = self._string_end(position, char)
                after = self.gap(position)
                if text[after : after + 1] in ('"', "'") and after < len(text):
                    position = after
                    continue
            elif open_brackets and char in (":", ",", ";"):
                position += 1
            elif atom := _ATOM.match(text, position):
                if not colon and not open_brackets:
                    self.fail(position, f'":" belongs here, not {self._found(position)}')
                position = atom.end()
            else:
                self.fail(position, f"a value belongs here, not {self._found(position)}")
            if not open_brackets:
                return position
            position = self.gap(position)


def _article(kind: str) -> str:
    return f"{'an' if kind == 'entry' else 'a'} {kind}"


def _integer(low: int, high: int) -> Callable[[str], int | None]:
    def read(word: str) -> int | None:
        if not _INT.fullmatch(word):
            return None
        digits = word.lstrip("-")
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
        number = int(word, base)
        return number if low <= number < high else None

    return read


def _float(word: str) -> float | None:
    if _FLOAT.fullmatch(word):
        return float(word.rstrip("fF"))
    non_finite = _NON_FINITE.fullmatch(word)
    return float(non_finite[1]) if non_finite else None


_NUMBERS: dict[str, Callable[[str], Any]] = {
    "uint32": _integer(0, 2**32),
    "int64": _integer(-(2**63), 2**63),
    "float": _float,
    "bool": _BOOLS.get,
}


def unescaped(parts: list[str]) -> bytes:
    """The bytes that the insides of quoted strings stand for.

    :raises ValueError: for an escape that there is none of, which is the message.
    """
    return b"".join(_ESCAPE.sub(_plain, part).encode("utf-8", "surrogateescape") for part in parts)


def _plain(match: re.Match[str]) -> str:
    simple, octal, byte, *codes = match.groups()
    if simple:
        return _SIMPLE[simple]
    if octal and int(octal, 8) < 256:
        return _BYTES[int(octal, 8)]
    if byte:
        return _BYTES[int(byte, 16)]
    code = int(codes[0] or codes[1] or "d800", 16)
    if 0xD800 <= code < 0xE000:
        raise ValueError(match[0])
    return chr(code)
