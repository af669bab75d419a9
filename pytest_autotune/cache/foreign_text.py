"""The one place that makes foreign text fit to be shown: what a cache, a kernel or a device is called, and messages.

Such text may hold newlines that forge rows, sequences that act upon a terminal, characters that nobody sees or that
turn the order of others, and words that a CI system takes for commands.
"""

from __future__ import annotations

import re

#: Characters of a line that is shown to a reader; more are left out in its middle.
MAX_LINE_LENGTH = 1000

# Python calls them printable, and nobody sees them: fillers, joiners, variation selectors.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Commands of CI systems: GitHub's "::error" and "##[error]", Azure's "##vso[", TeamCity's "##teamcity["; those with a
# bracket are found within a line, too.
_COMMAND = re.compile(r"^(\s*)([:#])(?=[:#])|()(#)(?=#\w*\[)")
#: A part of an encoded tuple: kind of scalar, scalar, type, each as Python writes text.
_PART = re.compile(r"""\('(\w+)', ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"), '(\w*)'\)""")
_TUPLE = re.compile(rf"\[(?:{_PART.pattern}(?:, {_PART.pattern})*)?\]")


def to_one_line(text: str, max_length: int = MAX_LINE_LENGTH) -> str:
    """The text as a part of one line of a terminal, a log or a message; of one that is too long, start and end stay.

    Line breaks become spaces. What is not seen, or has an effect, is written as Python escapes it. What looks like a
    command of a CI system is no longer one.
    """
    if len(text) > max_length:
        half = (max_length - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    if not text.isascii() or not text.isprintable():
        text = re.sub(r"\r\n|[\n\r\t]", " ", text)
        text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
        text = _UNSEEN.sub(lambda match: ascii(match[0])[1:-1], text)
    return _COMMAND.sub(lambda match: f"{match[1] or ''}\\x{ord(match[2] or match[4]):02x}", text)


def error_message(error: BaseException) -> str:
    """What an error says of itself; its type alone where that fails, too."""
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__} that cannot be shown>"


def first_line(text: str) -> str:
    """The first line of a text that is not blank; what UTF-8 cannot encode, as in some paths, is escaped."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line.encode("utf-8", "backslashreplace").decode()


def describe_error(error: BaseException, message: str = "") -> str:
    """An error in one line: its class, and the first line of what it says, or of ``message``."""
    first = first_line(message or error_message(error))
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def describe_tuple(encoded: str) -> str:
    """A tuple as a value of a key holds it, as people read it: ``(16, fp32)``."""
    if _TUPLE.fullmatch(encoded) is None:  # a file may say anything
        return encoded
    parts = [_part_words(*part) for part in _PART.findall(encoded)]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _part_words(kind: str, literal: str, type_name: str) -> str:
    scalar = _unquoted(_unquoted(literal)) if kind == "str" else _unquoted(literal)
    return describe_tuple(scalar) if type_name == "tuple" else scalar


def _unquoted(literal: str) -> str:
    return re.sub(r"\\(.)", r"\1", literal[1:-1])
