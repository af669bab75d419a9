"""The text format: our own printer, whose bytes are the same under every version of protobuf, and two readers.

Our own reader reads text as our printer writes it. Protobuf's own parser reads all other text, and says what is wrong
with it, with line and column.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_autotune.cache.codec.mapping import MAX_FOREIGN_BYTES, MESSAGES, Codec, Plain, to_mapping
from pytest_autotune.cache.codec.reading import UnknownField, from_mapping
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry, Problem
from pytest_autotune.cache.wording import to_one_line

HEADER = "# proto-file: pytest_autotune/cache/autotune_cache.proto\n# proto-message: pytest_autotune.AutotuneCache\n"
#: The comment that names a problem has at most so many characters.
_MAX_COMMENT_LENGTH = 200

# Quotes and control characters, and characters that hide or reorder the text around them.
_SPECIAL = re.compile(r'[\\"\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff]')
_SHORT_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _byte_escapes() -> list[str]:
    """Return the text of each byte between quotes, by its number: ``a`` for 97, ``\\n`` for 10, ``\\001`` for 1."""
    escapes = []
    for byte in range(256):
        char = chr(byte)
        if char in _SHORT_ESCAPES:
            escapes.append(_SHORT_ESCAPES[char])
        elif 0x20 <= byte < 0x7F:
            escapes.append(char)
        else:
            escapes.append(f"\\{byte:03o}")
    return escapes


_BYTE_ESCAPES = _byte_escapes()


# The printer


def encode(entries: Sequence[Entry]) -> str:
    """Return a cache of these entries as text, in their order."""
    plain = to_mapping(entries)
    lines = [HEADER, f"format_version: {plain['format_version']}\n"]
    for name in ("devices", "digests"):
        for message in plain.get(name, ()):
            lines.append(f"{_print_field(name, message)}\n")
    for entry, fields in zip(entries, plain["entries"], strict=True):
        lines += _print_entry(entry.problem, fields)
    return "".join(lines)


def _print_entry(problem: Problem, fields: Plain) -> Iterator[str]:
    """Yield the text of an entry. Each field has a line, and so has each item of a list."""
    yield "entries {\n"
    for name, field in fields.items():
        items = [field]
        if isinstance(field, list):
            items = field
        for item in items:
            yield f"  {_print_field(name, item)}"
            if name == "choice":
                yield _print_comment(problem)
            yield "\n"
    yield "}\n"


def _print_comment(problem: Problem) -> str:
    """Return the comment behind a choice: ``# matmul_kernel M=4096 N=4096``.

    A reviewer sees only one hunk of a difference, so the line of the choice repeats the problem.
    """
    function_name = problem.kernel.rpartition(".")[2]
    words = [function_name, *map(str, problem.key)]
    return f"  # {to_one_line(' '.join(words), _MAX_COMMENT_LENGTH)}"


def _print_field(name: str, field: Any) -> str:
    """Return a field in one line.

    - a scalar: ``name: "text"``
    - a list of scalars: ``name: ["a", "b"]``
    - a message: ``name { id: "a" time_us: 1.5 }``
    - a list of messages: ``name { id: "a" } name { id: "b" }``
    """
    if isinstance(field, dict):
        parts = [_print_field(part_name, part) for part_name, part in field.items()]
        if not parts:
            return f"{name} {{ }}"
        return f"{name} {{ {' '.join(parts)} }}"
    if not isinstance(field, list):
        return f"{name}: {_print_scalar(field)}"
    if isinstance(field[0], dict):
        return " ".join([_print_field(name, message) for message in field])
    scalars = [_print_scalar(scalar) for scalar in field]
    return f"{name}: [{', '.join(scalars)}]"


def _print_scalar(scalar: Any) -> str:
    """Return a scalar as text: ``"text"``, ``true``, ``64`` or ``1.5``."""
    if isinstance(scalar, str):
        return f'"{_SPECIAL.sub(_escape, scalar)}"'
    if isinstance(scalar, bytes):
        escaped = [_BYTE_ESCAPES[byte] for byte in scalar]
        return f'"{"".join(escaped)}"'
    if isinstance(scalar, bool):
        return str(scalar).lower()
    # repr() gives the shortest text that is read as the same number.
    return repr(scalar)


def _escape(match: re.Match[str]) -> str:
    """Return a special character as its escape: ``\\n``, or the bytes of its UTF-8 encoding as ``\\342\\200\\213``."""
    special = match[0]
    if special in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[special]
    octal = [f"\\{byte:03o}" for byte in special.encode()]
    return "".join(octal)


# Our own reader

# A token is a short message without others in it; text; a name, a number or a word; any other character; the end.
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


def decode(text: str, place: str) -> Cache:
    """Return the cache that the text holds.

    :raises CacheError: if the text is not a cache; with line and column if it is not protobuf's text format.
    """
    # Protobuf's parser alone would do, but it is slow. For 100, 1,000 and 5,000 entries (0.1, 1.0 and 4.8 MB) it takes
    # 0.18, 1.2 and 6.0 s, and our reader 0.02, 0.19 and 0.90 s. A run that loads and dumps a cache reads the file three
    # times.
    try:
        plain = _TextprotoReader().read_message("cache", iter(_TOKEN.findall(text)), end="")
    except (LookupError, ValueError, StopIteration):
        if len(text) > MAX_FOREIGN_BYTES:
            event = f"is larger than {MAX_FOREIGN_BYTES >> 20} MiB, and not as pytest-autotune writes it"
            raise CacheError(place, event) from None
        return _read_by_protobuf(text, place)
    return from_mapping(plain, place, text)


class _TextprotoReader:
    """Makes a plain mapping from text as our printer writes it. Lines, blanks and comments may differ.

    All methods raise LookupError, ValueError or StopIteration for text that is laid out otherwise, or is wrong.
    """

    def __init__(self) -> None:
        #: The short messages by kind and text. A file has many equal messages, and each is read once.
        self._short_messages: dict[tuple[str, str], Plain] = {}

    def read_message(self, kind: str, tokens: Iterator[str], end: str) -> Plain:
        """Return the fields of a message.

        The fields ``kernel: "add" choice { id: "a" }`` have the tokens ``kernel:``, ``"add"``, ``choice`` and
        ``{ id: "a" }``.

        :param kind: the kind of the message: ``"cache"``, ``"entry"`` …
        :param tokens: the tokens behind the message's opening brace.
        :param end: the token that ends the message: its closing brace, or the empty token at the end of the file.
        """
        message: Plain = {}
        fields = MESSAGES[kind]
        for token in tokens:
            if token == end:
                return message
            # The token is the name of a field: "time_us:" in front of a scalar, "choice" in front of a message.
            name = token.removesuffix(":")
            field = fields[name]
            has_colon = token.endswith(":")
            needs_colon = field.kind not in MESSAGES
            if has_colon != needs_colon:
                raise ValueError(token)
            item = self._read_item(field.kind, next(tokens), tokens)
            _add_item(message, name, item, is_list=field.is_list)
        raise ValueError(f"no {end}")

    def _read_item(self, kind: str, token: str, tokens: Iterator[str]) -> Any:
        """Return a scalar, a message or a list that begins with the token.

        :param kind: the kind of the scalar or message, or of the items of the list.
        :param tokens: the tokens behind this token.
        """
        if token == "[":
            return self._read_list(kind, tokens)
        if kind not in MESSAGES:
            return _read_scalar(kind, token)
        if token == "{":
            # The message is too long for a token, or has other messages in it.
            return self.read_message(kind, tokens, end="}")
        if token[0] != "{":
            raise ValueError(token)
        # The token is a short message as a whole, such as '{ name: "M" int: 64 }'.
        if (kind, token) not in self._short_messages:
            tokens_behind_brace = iter(_TOKEN.findall(token, 1))
            self._short_messages[kind, token] = self.read_message(kind, tokens_behind_brace, end="}")
        return self._short_messages[kind, token]

    def _read_list(self, kind: str, tokens: Iterator[str]) -> list[Any]:
        """Return the items of a list whose opening bracket was read: ``"a", "b"]``."""
        items = []
        token = ","
        while token == ",":
            items.append(self._read_item(kind, next(tokens), tokens))
            token = next(tokens)
        if token != "]":
            raise ValueError(token)
        return items


def _add_item(message: Plain, name: str, item: Any, *, is_list: bool) -> None:
    """Add a scalar, a message or a list of them to the field of a message.

    :param is_list: whether the field holds a list. Its items are in brackets, ``name: ["a", "b"]``, or each of them
        stands behind the name of the field, ``name: "a" name: "b"``.
    :raises ValueError: if a field without a list stands there twice.
    """
    if not is_list:
        if name in message:
            raise ValueError(name)
        message[name] = item
    elif isinstance(item, list):
        message.setdefault(name, []).extend(item)
    else:
        message.setdefault(name, []).append(item)


def _read_scalar(kind: str, token: str) -> Any:
    """Return the scalar of a kind, such as ``"float"``, that a token stands for.

    :raises LookupError, ValueError: if the token is no scalar of this kind, as our printer writes it.
    """
    if kind == "bool":
        return _BOOLS[token]
    if kind == "bytes":
        return _read_quoted_bytes(token)
    if kind == "text":
        return _read_quoted_bytes(token).decode()
    if not _NUMBER.fullmatch(token):
        raise ValueError(token)
    if kind == "float":
        return float(token)
    return int(token)


def _read_quoted_bytes(token: str) -> bytes:
    """Return the bytes between the quotes of a token."""
    if token[0] != '"' or len(token) < 2:
        raise ValueError(token)
    quoted = token[1:-1].encode()
    if b"\\" not in quoted:
        return quoted
    # The pattern of tokens allows only escapes that mean the same in Python, such as \n and \001.
    return quoted.decode("unicode_escape").encode("latin-1")


# Protobuf's parser

#: The words of protobuf for a field that a message does not have.
_NO_FIELD = re.compile(r'type "[\w.]*\.(\w+)" has no field named "(\w+)"')


def _read_by_protobuf(text: str, place: str) -> Cache:
    """Return the cache that any text of protobuf's format holds.

    :raises CacheError: if the text is not a cache, with line and column.
    """
    from google.protobuf import text_format

    from pytest_autotune.cache.codec.binary import to_plain

    try:
        with warnings.catch_warnings():
            # Protobuf warns of escapes that it refuses.
            warnings.simplefilter("ignore")
            message, unknown = _parse(text)
    except text_format.ParseError as error:
        line, column = error.GetLine() or 1, error.GetColumn() or 1
        # The error is like `3:1 : 'LINE': Expected ":".`, and LINE is the whole line of the file.
        repeated_line = "'" + text.split("\n")[line - 1] + "': "
        event = str(error).partition(" : ")[2].removeprefix(repeated_line)
        raise CacheError(f"{place}:{line}:{column}", event) from None
    except RecursionError:
        raise CacheError(place, "is nested too deeply for a cache") from None
    except ValueError as error:
        # The text is not encoded in UTF-8.
        raise CacheError(place, f"is not a cache: {error}") from None
    return from_mapping(to_plain(message), place, text, unknown)


def _parse(text: str) -> tuple[Any, UnknownField | None]:
    """Return the generated message of a cache, and the first field of the text that is unknown; None if none is.

    :raises ParseError: if the text is not protobuf's text format.
    """
    from google.protobuf import text_format

    from pytest_autotune.cache.codec.binary import new_message

    message = new_message()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        match = _NO_FIELD.search(str(error))
        if match is None:
            raise
        # The name of the generated class is AutotuneCache, Entry … Here the message is "cache", "entry" …
        kind = match[1].lower().replace("autotunecache", "cache")
        unknown = UnknownField(match[2], kind)
        return text_format.Parse(text, new_message(), allow_unknown_field=True), unknown
    return message, None


CODEC = Codec("text", (".textproto", ".txtpb", ".pbtxt", ".txt"), decode, encode)
