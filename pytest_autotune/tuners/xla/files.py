"""The files that XLA itself writes and reads: both formats, text and binary, and the folder of one file per fusion."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path, PurePath

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.tuners.xla import messages

#: The version in the head of every legacy file; XLA refuses any other.
LEGACY_FILE_VERSION = 3
#: What XLA takes for the suffix of a text file; everything else is binary.
TEXT_SUFFIXES = (".txt", ".textproto", ".txtpb", ".prototxt", ".pbtxt")
_FIRST_WORD = re.compile(rb"(?:\s*#[^\n]*\n)*\s*(version|results|entries|device_scope|explicit_version_scope)\b")


class XlaLayout(Enum):
    """XLA's two formats; the value is the word for it in messages and options."""

    NEW = "new"
    LEGACY = "legacy"


#: The message that a file holds, its field of entries, and the message that an entry is.
_FORMS = {
    XlaLayout.NEW: ("xla.autotuner.AutotuneCache", "entries", "xla.autotuner.AutotuneEntry"),
    XlaLayout.LEGACY: ("xla.AutotuneResults", "results", "xla.AutotuneResultsEntry"),
}
#: What a file of it begins with: the first word of a text, the first byte of binary.
_BEGINS = {
    XlaLayout.NEW: (b"entries", b"device_scope", b"explicit_version_scope", b"\x0a", b"\x12", b"\x1a"),
    XlaLayout.LEGACY: (b"version", b"results", b"\x08", b"\x22"),
}


@dataclass(frozen=True)
class XlaEntry:
    """One entry as XLA has it: the serialised message is the authority."""

    layout: XlaLayout
    raw: bytes

    @cached_property
    def message(self) -> messages.Message:
        """The entry as a message; it must not be changed."""
        return messages.parsed(_FORMS[self.layout][2], self.raw)

    @property
    def device(self) -> str:
        """XLA's word for the device: a fingerprint (new), or a description with cuDNN's version (legacy)."""
        return str(self.message.key.target.device if self.layout is XlaLayout.NEW else self.message.device)

    @property
    def hlo(self) -> str:
        """What was tuned: a fingerprint of the HLO (new), or its text (legacy)."""
        return str(self.message.key.target.hlo_fingerprint if self.layout is XlaLayout.NEW else self.message.hlo)

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """What XLA knows entries by: one for each in a file."""
        if self.layout is XlaLayout.LEGACY:
            return self.layout, self.device, self.hlo, self.message.version
        key = self.message.key
        versions = key.target.explicit_version, key.environment.codegen_version
        return self.layout, self.device, self.hlo, *versions, key.environment.codegen_options_fingerprint

    @property
    def _order(self) -> tuple[object, ...]:
        explicit = "" if self.layout is XlaLayout.LEGACY else self.message.key.target.explicit_version
        return self.device.encode(), explicit.encode(), self.hlo.encode(), self.raw


def is_text(path: PurePath) -> bool:
    """Whether XLA takes a file of this name for text."""
    return path.suffix in TEXT_SUFFIXES


def read(data: bytes, where: str) -> tuple[XlaEntry, ...]:
    """The entries of a file that XLA wrote, text or binary; ``where`` is its path, for the CacheError."""
    if not data.strip():
        return ()
    layout, message = _parsed(data, where)
    if layout is XlaLayout.LEGACY and message.version != LEGACY_FILE_VERSION:
        raise CacheError(where, f"XLA's file version is {message.version}, not {LEGACY_FILE_VERSION}", "make it anew")
    if layout is XlaLayout.NEW and (message.device_scope or message.explicit_version_scope):
        raise CacheError(where, "has a scope for all its entries, which is not known here")
    theirs = getattr(message, _FORMS[layout][1])
    found = tuple(XlaEntry(layout, one.SerializeToString(deterministic=True)) for one in theirs)
    if not all(entry.device and entry.hlo for entry in found):
        raise CacheError(where, "has an entry without a device or an HLO", "is it a file of XLA's autotuning results?")
    return found


def write(entries: Iterable[XlaEntry], layout: XlaLayout, text: bool) -> bytes:
    """A file with these entries as XLA would write it: sorted, one of each identity."""
    one_of_each: dict[tuple[object, ...], XlaEntry] = {}
    for entry in entries:
        one_of_each.setdefault(entry.identity, entry)
    name, field, _ = _FORMS[layout]
    message = messages.new(name)
    if layout is XlaLayout.LEGACY:
        message.version = LEGACY_FILE_VERSION
    for entry in sorted(one_of_each.values(), key=lambda entry: entry._order):
        getattr(message, field).add().MergeFromString(entry.raw)
    return _text(message).encode() if text else bytes(message.SerializeToString(deterministic=True))


def _parsed(data: bytes, where: str) -> tuple[XlaLayout, messages.Message]:
    from google.protobuf.message import DecodeError
    from google.protobuf.text_format import Parse, ParseError

    # Either format's parser takes the other's binary for an empty file of its own: only the beginning tells.
    word = _FIRST_WORD.match(data)
    layout = next((layout for layout, begins in _BEGINS.items() if (word[1] if word else data[:1]) in begins), None)
    if layout is None:
        raise CacheError(where, "is not a file of XLA's autotuning results")
    file = messages.new(_FORMS[layout][0])
    try:
        if word is not None:
            return layout, Parse(data.decode(), file, descriptor_pool=messages.pool())
        file.MergeFromString(data)
        return layout, file
    except (DecodeError, UnicodeDecodeError) as error:
        raise CacheError(where, f"is damaged: {error}") from None
    except ParseError as error:
        remedy = "where XLA has fields that are not known here, use its binary form (.pb)"
        raise CacheError(where, f"is not the text of XLA's autotuning results: {error}", remedy) from None


def _text(message: messages.Message) -> str:
    """A message in the text form, as XLA prints it; a CacheError where that would lose something."""
    from google.protobuf import text_format

    pool = messages.pool()
    text = str(text_format.MessageToString(message, descriptor_pool=pool, as_utf8=False, message_formatter=_as_in_cpp))
    again = text_format.Parse(text, type(message)(), descriptor_pool=pool)
    if again.SerializeToString(deterministic=True) != message.SerializeToString(deterministic=True):
        raise CacheError("XLA's text form", "cannot hold an entry with fields of another version of XLA", "use .pb")
    return text


def _as_in_cpp(message: messages.Message, indent: int, as_one_line: bool) -> str | None:
    """XLA's printer does not spell out an ``Any`` without a value; protobuf's for Python does."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Any" and message.type_url and not message.value:
        return "type_url: " + json.dumps(message.type_url)
    return None


def write_folder(folder: Path, entries: Iterable[XlaEntry]) -> int:
    """Write XLA's folder of one file per fusion, from the first entry of each; how many have no place there."""
    left_out = 0
    for entry in entries:
        try:
            data = entry.raw if entry.layout is XlaLayout.NEW else _text(entry.message.result).encode()
            file = folder / _file_of(entry)
        except CacheError:
            left_out += 1
            continue
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    return left_out


def _file_of(entry: XlaEntry) -> str:
    """Where XLA looks for an entry, below its folder; a CacheError where it looks for none like it."""
    if entry.layout is XlaLayout.NEW:
        # A cache is data: what it holds makes a path only where it is what XLA writes.
        parts = (entry.device, entry.hlo)
        if entry.message.key.target.explicit_version or not all(re.fullmatch("[0-9a-f]{8,64}", one) for one in parts):
            raise CacheError(entry.hlo, "has no name in XLA's folder")
        return f"{entry.device}/{entry.hlo}.pb"
    version = entry.message.version
    if not version:
        raise CacheError("an entry", "is from before XLA wrote versions")
    key = f"<key model='{entry.device}', hlo='{entry.hlo}', version={version}>"
    digest = base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()).rstrip(b"=")
    return f"{digest.decode()}.textproto"
