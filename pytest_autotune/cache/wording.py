"""Writes the parts of messages: counts and durations in words, errors, and foreign text in a safe form.

Foreign text is the names of caches, kernels and devices, and messages of others. No other module makes it safe to show.
It may have newlines that forge rows, and sequences that control a terminal. It may have characters that are invisible
or reorder the text around them, and words that a CI system takes for commands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: The digits of a time that an entry keeps. More digits are noise.
TIME_DIGITS = 4
#: Characters of a line that is shown to a reader. A longer line loses its middle.
MAX_LINE_LENGTH = 1000

# Invisible characters that Python calls printable: fillers, joiners, variation selectors.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Commands of CI systems: GitHub's "::error" and "##[error]", Azure's "##vso[", TeamCity's "##teamcity[". A command with
# a bracket may stand inside a line.
_COMMAND = re.compile(r"^(\s*)([:#])(?=[:#])|()(#)(?=#\w*\[)")
#: A part of an encoded tuple: kind of scalar, scalar, type, each as Python writes text.
_PART = re.compile(r"""\('(\w+)', ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"), '(\w*)'\)""")
_TUPLE = re.compile(rf"\[(?:{_PART.pattern}(?:, {_PART.pattern})*)?\]")


# Counts and durations


def describe_count(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun: ``"1 entry"``, ``"2 entries"``.

    :param plural: the noun for any number but 1; empty for the singular with an ``s``, or with ``ies`` in place of its
        last ``y``.
    """
    if number == 1:
        return f"{number} {singular}"
    if plural:
        return f"{number} {plural}"
    if singular.endswith("y"):
        return f"{number} {singular[:-1]}ies"
    return f"{number} {singular}s"


def join_nonempty(separator: str, *texts: str) -> str:
    """Join the texts, without the empty texts."""
    return separator.join(text for text in texts if text)


def describe_first(words: Sequence[str], limit: int) -> str:
    """Return the first words, and the number of the words that are left out: ``"a, b and 3 more"``."""
    text = ", ".join(words[:limit])
    omitted_count = len(words) - limit
    if omitted_count > 0:
        text += f" and {omitted_count} more"
    return text


def describe_duration(time_us: float) -> str:
    """Return a time with a readable unit: ``"7.68 us"``, ``"72.04 ms"``.

    :param time_us: the time in microseconds.
    """
    for unit, us in (("s", 1e6), ("ms", 1e3)):
        if abs(time_us) >= us:
            return f"{time_us / us:.4g} {unit}"
    return f"{time_us:.4g} us"


def describe_seconds(number: float) -> str:
    """Return a time with a readable unit: ``"72 ms"``, ``"1.5 s"``, ``"2.5 min"``.

    :param number: the time in seconds.
    """
    if not number:
        return "0 s"
    if number >= 5400:
        return f"{number / 3600:.1f} h"
    if number >= 90:
        return f"{number / 60:.1f} min"
    return describe_duration(float(f"{number * 1e6:.3g}"))


def round_significant(number: float, digits: int = 3) -> float:
    """Return a measured number without the digits that are noise."""
    return float(f"{number:.{digits}g}")


def rounded_us(time_us: float, digits: int = TIME_DIGITS) -> float:
    """Return a time in microseconds as an entry holds it.

    :param digits: the digits that are kept; more if the tuner will compare the times with each other.
    """
    return round_significant(time_us, digits)


# Foreign text and errors


def to_one_line(text: str, max_length: int = MAX_LINE_LENGTH) -> str:
    """Return the text as a part of one line of a terminal, a log or a message.

    A text that is too long keeps its start and its end. Line breaks become spaces. Characters that are invisible, or
    that control the terminal, are escaped as Python escapes them. A command of a CI system is changed so that it is no
    command any more.
    """
    if len(text) > max_length:
        half = (max_length - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    # For speed: most texts have nothing to replace.
    if not text.isascii() or not text.isprintable():
        text = re.sub(r"\r\n|[\n\r\t]", " ", text)
        chars = [char if char.isprintable() else _escape(char) for char in text]
        # Python calls some invisible characters printable.
        text = _INVISIBLE.sub(_escape_match, "".join(chars))
    return _COMMAND.sub(_disarm_command, text)


def _escape(char: str) -> str:
    return ascii(char)[1:-1]


def _escape_match(match: re.Match[str]) -> str:
    return _escape(match[0])


def _disarm_command(match: re.Match[str]) -> str:
    indent = match[1] or ""
    first_char = match[2] or match[4]
    return f"{indent}\\x{ord(first_char):02x}"


def error_message(error: BaseException) -> str:
    """Return the message of an error. An error whose own message fails is described by its type."""
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__} that cannot be shown>"


def first_line(text: str) -> str:
    """Return the first line with words in a text; empty if all lines are blank."""
    for line in text.splitlines():
        if line.strip():
            # Some paths have characters that UTF-8 cannot encode. They are escaped.
            return line.strip().encode("utf-8", "backslashreplace").decode()
    return ""


def describe_error(error: BaseException, message: str = "") -> str:
    """Return an error in one line: its class, and the first line of its message.

    :param message: replaces the error's own message.
    """
    name = type(error).__name__
    line = first_line(message or error_message(error))
    if not line:
        return name
    return f"{name}: {line}"


def describe_tuple(encoded: str) -> str:
    """Return the tuple in a value of a key as people read it: ``(16, fp32)``."""
    if _TUPLE.fullmatch(encoded) is None:
        # A file may have any text.
        return encoded
    parts = [_describe_part(*part) for part in _PART.findall(encoded)]
    if len(parts) == 1:
        return f"({parts[0]},)"
    return f"({', '.join(parts)})"


def _describe_part(kind: str, literal: str, type_name: str) -> str:
    """Return a part of a tuple as people read it."""
    scalar = _unquote(literal)
    if kind == "str":
        scalar = _unquote(scalar)
    if type_name == "tuple":
        return describe_tuple(scalar)
    return scalar


def _unquote(literal: str) -> str:
    return re.sub(r"\\(.)", r"\1", literal[1:-1])
