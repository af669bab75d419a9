"""The text format: our own printer, so that a file has the same bytes under every version of protobuf."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_autotune.cache.codec.mapping import Plain, to_mapping
from pytest_autotune.cache.codec.schema import MESSAGES
from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.cache.model import Entry, Problem

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
