"""The files that XLA itself writes and reads: both formats, text and binary, and the folder of one file per fusion."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path, PurePath

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.tuners.xla import messages, wire

#: The version in the head of every legacy file; XLA refuses any other.
LEGACY_FILE_VERSION = 3
#: What XLA takes for the suffix of a text file; everything else is binary.
TEXT_SUFFIXES = (".txt", ".textproto", ".txtpb", ".prototxt", ".pbtxt")


class Layout(Enum):
    """XLA's two formats; the value is the word for it in messages and options."""

    NEW = "new"
    LEGACY = "legacy"

    @property
    def file_message(self) -> str:
        """The message that a file holds."""
        return "xla.autotuner.AutotuneCache" if self is Layout.NEW else "xla.AutotuneResults"

    @property
    def entry_message(self) -> str:
        """The message that an entry is."""
        return "xla.autotuner.AutotuneEntry" if self is Layout.NEW else "xla.AutotuneResultsEntry"

    @property
    def entries_field(self) -> int:
        """The number of the field of a file that holds its entries."""
        return 3 if self is Layout.NEW else 4


@dataclass(frozen=True)
class XlaEntry:
    """One entry as XLA has it.

    :param raw: the serialised message, which is the authority.
    """

    layout: Layout
    raw: bytes

    @cached_property
    def message(self) -> messages.Message:
        """The entry as a message; it must not be changed."""
        return messages.parsed(self.layout.entry_message, self.raw)

    @property
    def device(self) -> str:
        """XLA's word for the device: a fingerprint (new), or a description with cuDNN's version (legacy)."""
        return str(self.message.key.target.device if self.layout is Layout.NEW else self.message.device)

    @property
    def hlo(self) -> str:
        """What was tuned: a fingerprint of the HLO (new), or its text (legacy)."""
        return str(self.message.key.target.hlo_fingerprint if self.layout is Layout.NEW else self.message.hlo)

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """What XLA knows entries by: one for each in a file."""
        if self.layout is Layout.LEGACY:
            return self.layout, self.device, self.hlo, self.message.version
        key = self.message.key
        versions = key.target.explicit_version, key.environment.codegen_version
        return self.layout, self.device, self.hlo, *versions, key.environment.codegen_options_fingerprint

    @property
    def _order(self) -> tuple[object, ...]:
        if self.layout is Layout.LEGACY:
            return self.device.encode(), self.hlo.encode(), self.raw
        return self.device.encode(), self.message.key.target.explicit_version.encode(), self.hlo.encode(), self.raw


def is_text(path: PurePath) -> bool:
    """Whether XLA takes a file of this name for text."""
    return path.suffix in TEXT_SUFFIXES


def read(data: bytes, text: bool, where: str) -> tuple[XlaEntry, ...]:
    """The entries of a file that XLA wrote, or would read.

    :param where: the path, for the error.
    :raises CacheError: where it is none.
    """
    return tuple(_from_text(data, where) if text else _from_binary(data, where))


def write(entries: Iterable[XlaEntry], layout: Layout, text: bool) -> bytes:
    """A file with these entries as XLA would write it: sorted, one of each identity.

    :raises CacheError: for an entry that the text form cannot hold.
    """
    one_of_each: dict[tuple[object, ...], XlaEntry] = {}
    for entry in entries:
        one_of_each.setdefault(entry.identity, entry)
    ordered = sorted(one_of_each.values(), key=lambda entry: entry._order)
    head = wire.int_field(1, LEGACY_FILE_VERSION) if layout is Layout.LEGACY else b""
    data = head + b"".join(wire.bytes_field(layout.entries_field, entry.raw) for entry in ordered)
    return _to_text(layout.file_message, data).encode() if text else data


def _from_binary(data: bytes, where: str) -> Iterator[XlaEntry]:
    from google.protobuf.message import DecodeError

    layout = _binary_layout(data, where)
    try:
        for number, value in wire.fields(data):
            if number == layout.entries_field and isinstance(value, bytes):
                entry = XlaEntry(layout, value)
                _check(entry, where)
                yield entry
            else:
                _check_head(layout, number, value, where)
    except (ValueError, DecodeError):
        raise CacheError(where, "is damaged: not the binary form of XLA's autotuning results") from None


def _binary_layout(data: bytes, where: str) -> Layout:
    # Either format's parser takes the other's file for an empty one of its own: only the first byte tells.
    if not data:
        return Layout.NEW
    if data[:1] in (b"\x08", b"\x22"):
        return Layout.LEGACY
    if data[:1] in (b"\x0a", b"\x12", b"\x1a"):
        return Layout.NEW
    remedy = "name it .txt or .textproto, as XLA does" if _text_layout(data) else ""
    raise CacheError(where, "is not a binary file of XLA's autotuning results", remedy)


def _check_head(layout: Layout, number: int, value: int | bytes, where: str) -> None:
    if layout is Layout.LEGACY and number == 1:
        if value != LEGACY_FILE_VERSION:
            raise CacheError(where, f"XLA's file version is {value!r}, not {LEGACY_FILE_VERSION}", "make it anew")
    elif layout is Layout.NEW and number in (1, 2):
        if value:
            raise CacheError(where, "has a scope for all its entries, which is not known here")
    else:
        raise CacheError(where, f"has the field {number}, which is not known here", "upgrade pytest-autotune")


def _check(entry: XlaEntry, where: str) -> None:
    if not entry.device or not entry.hlo:
        raise CacheError(where, "has an entry without a device or an HLO", "is it a file of XLA's autotuning results?")


def _text_layout(data: bytes) -> Layout | None:
    match = re.match(rb"(?:\s*#[^\n]*\n)*\s*(version|results|entries|device_scope|explicit_version_scope)\b", data)
    if match is None:
        return None
    return Layout.LEGACY if match[1] in (b"version", b"results") else Layout.NEW


def _from_text(data: bytes, where: str) -> Iterator[XlaEntry]:
    from google.protobuf import text_format

    if not data.strip():
        return
    layout = _text_layout(data)
    if layout is None:
        remedy = "name it .pb, as XLA does" if data[:1] in (b"\x08", b"\x1a") else ""
        raise CacheError(where, "is not a text file of XLA's autotuning results", remedy)
    try:
        message = text_format.Parse(data.decode(), messages.new(layout.file_message), descriptor_pool=messages.pool())
    except UnicodeDecodeError:
        raise CacheError(where, "is not encoded in UTF-8") from None
    except text_format.ParseError as error:
        remedy = "where XLA has fields that are not known here, use its binary form (.pb)"
        raise CacheError(where, f"is not the text of XLA's autotuning results: {error}", remedy) from None
    for field, value in message.ListFields():
        if field.number != layout.entries_field:
            _check_head(layout, field.number, value, where)
    if layout is Layout.LEGACY and message.version != LEGACY_FILE_VERSION:
        _check_head(layout, 1, message.version, where)
    for one in message.results if layout is Layout.LEGACY else message.entries:
        entry = XlaEntry(layout, one.SerializeToString(deterministic=True))
        _check(entry, where)
        yield entry


def _to_text(name: str, data: bytes) -> str:
    """A message in the text form, as XLA prints it.

    :raises CacheError: where the text form would lose something.
    """
    from google.protobuf import text_format

    message = messages.parsed(name, data)
    text = str(
        text_format.MessageToString(
            message, descriptor_pool=messages.pool(), as_utf8=False, message_formatter=_as_in_cpp
        )
    )
    again = text_format.Parse(text, messages.new(name), descriptor_pool=messages.pool())
    if again.SerializeToString(deterministic=True) != message.SerializeToString(deterministic=True):
        raise CacheError("XLA's text form", "cannot hold an entry with fields of another version of XLA", "use .pb")
    return text


def _as_in_cpp(message: messages.Message, indent: int, as_one_line: bool) -> str | None:
    """XLA's printer does not spell out an ``Any`` without a value; protobuf's for Python does."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Any" and message.type_url and not message.value:
        return "type_url: " + json.dumps(message.type_url)
    return None


def write_folder(folder: Path, entries: Iterable[XlaEntry]) -> list[XlaEntry]:
    """Write entries as XLA's folder of one file per fusion; both formats may lie in one folder.

    :param entries: of two for one fusion the first is written.
    :returns: what such a folder cannot hold.
    """
    left_out = []
    written = set()
    for entry in entries:
        file = _file_of(entry)
        try:
            data = entry.raw if entry.layout is Layout.NEW else _to_text("xla.AutotuneResult", _result(entry)).encode()
        except CacheError:
            file = None
            data = b""
        if file is None:
            left_out.append(entry)
        elif file not in written:
            written.add(file)
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(data)
    return left_out


def _result(entry: XlaEntry) -> bytes:
    return bytes(entry.message.result.SerializeToString(deterministic=True))


def _file_of(entry: XlaEntry) -> str | None:
    """Where XLA looks for an entry, below its folder."""
    if entry.layout is Layout.NEW:
        target = entry.message.key.target
        # A cache is data: what it holds makes a path only where it is what XLA writes.
        if target.explicit_version or not all(
            re.fullmatch("[0-9a-f]{8,64}", part) for part in (entry.device, entry.hlo)
        ):
            return None
        return f"{entry.device}/{entry.hlo}.pb"
    version = entry.message.version
    if not version:  # from before XLA wrote it
        return None
    key = f"<key model='{entry.device}', hlo='{entry.hlo}', version={version}>"
    digest = base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()).rstrip(b"=")
    return f"{digest.decode()}.textproto"
