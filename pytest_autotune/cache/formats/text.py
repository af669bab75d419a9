"""The text format: our own printer, so that a file has the same bytes under every version of protobuf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache as remember

from pytest_autotune.cache.formats.schema import FORMAT_VERSION, check_scalar, device_ids, in_order, uncollected
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Value
from pytest_autotune.cache.packed_texts import packed
from pytest_autotune.cache.shared_values import OncePerValue

_HEADER = (
    "# proto-file: pytest_autotune/cache/autotune_cache.proto\n"
    "# proto-message: pytest_autotune.AutotuneCache\n"
    f"format_version: {FORMAT_VERSION}\n"
)

# Quotes and control characters, and what hides or reorders the text around it.
_SPECIAL = re.compile(r'[\\"\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff]')
_SHORT = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
_BYTES = [_SHORT.get(chr(b)) or (chr(b) if 0x20 <= b < 0x7F else f"\\{b:03o}") for b in range(256)]


def quote(text: str) -> str:
    """The text as a string of protobuf's text format."""
    return f'"{_SPECIAL.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    special = match[0]
    return _SHORT.get(special) or "".join(f"\\{byte:03o}" for byte in special.encode())


def quote_bytes(data: bytes) -> str:
    """The bytes as a string of protobuf's text format."""
    return f'"{"".join(map(_BYTES.__getitem__, data))}"'


def encode(cache: Cache) -> str:
    """The cache as text.

    :raises CacheError: for an entry that a reader would not take back.
    """
    with uncollected():
        return "".join(_parts(cache))


def _parts(cache: Cache) -> Iterator[str]:
    ids = device_ids(cache.devices)
    quoted_ids = {device: quote(id) for device, id in ids.items()}
    yield _HEADER
    yield from (f"devices {{ {_device_fields(id, device)} }}\n" for device, id in ids.items())
    printer = _Printer(quoted_ids)
    yield from map(printer.entry, in_order(cache.entries))


def _device_fields(id: str, device: Device) -> str:
    texts = (("id", id), ("name", device.name), ("arch", device.arch))
    fields = [f"{name}: {quote(text)}" for name, text in texts if text]
    if device.multiprocessors:
        fields.append(f"multiprocessors: {device.multiprocessors}")
    return " ".join(fields)


class _Printer:
    """Prints every value and text once, however often the entries repeat it."""

    def __init__(self, ids: dict[Device, str]) -> None:
        self._devices = {device: f"  device: {id}\n" for device, id in ids.items()}
        self._keys = OncePerValue(lambda value: f"  key {print_value(value)}\n")
        self._fingerprints = OncePerValue(lambda value: f"  fingerprint {print_value(value)}\n")
        self._params = OncePerValue(lambda value: f"params {print_value(value)} ")
        self._quoted = remember(quote)
        self._compiled = remember(_compiled)

    def entry(self, entry: Entry) -> str:
        problem = entry.problem
        lines = [
            f"entries {{\n  tuner: {self._quoted(problem.tuner)}\n  kernel: {self._quoted(problem.kernel)}\n",
            *self._keys.each(problem.key),
            self._devices[problem.device],
            *self._fingerprints.each(entry.fingerprint),
        ]
        if entry.choice is not None:
            lines.append(f"  choice {{ {self._candidate(entry.choice)}}}\n")
        lines += [f"  candidates {{ {self._candidate(candidate)}}}\n" for candidate in entry.candidates]
        if entry.native:
            lines.append(f"  native: {quote_bytes(entry.native)}\n")
        if entry.label:
            lines.append(f"  label: {quote(entry.label)}\n")
        if entry.tuning_seconds:
            lines.append(f"  tuning_seconds: {float(entry.tuning_seconds)!r}\n")
        if entry.versions:
            lines.append(f"  environment: {self._quoted(str(entry.versions))}\n")
        if entry.compiled:
            lines.append(self._compiled(entry.compiled))
        lines += [f"  made_of: {self._quoted(text)}\n" for text in entry.made_of]
        lines.append("}\n")
        return "".join(lines)

    def _candidate(self, candidate: Candidate) -> str:
        params = "".join(self._params.each(candidate.params))
        id = f"id: {quote(candidate.id)} " if candidate.id else ""
        time_us = "" if candidate.time_us is None else f"time_us: {float(candidate.time_us)!r} "
        failed = f"failed: {quote(candidate.failed)} " if candidate.failed else ""
        label = f"label: {quote(candidate.label)} " if candidate.label else ""
        return f"{id}{params}{time_us}{failed}{label}"


def _compiled(texts: tuple[str, ...]) -> str:
    return "".join([f"  compiled: {quote(field)}\n" for field in packed(texts)])


def print_value(value: Value) -> str:
    """The value as it stands behind the name of its field."""
    check_scalar(value)
    fields = [f"name: {quote(value.name)} "] if value.name else []
    scalar = value.value
    if isinstance(scalar, bool):
        fields.append(f"bool: {str(scalar).lower()} ")
    elif isinstance(scalar, int):
        fields.append(f"int: {scalar} ")
    elif isinstance(scalar, float):
        fields.append(f"float: {scalar!r} ")
    elif scalar is not None:
        fields.append(f"text: {quote(scalar)} ")
    if value.type:
        fields.append(f"type: {quote(value.type)} ")
    return f"{{ {''.join(fields)}}}"
