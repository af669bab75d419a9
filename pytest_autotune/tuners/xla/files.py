"""Reads and writes XLA's own files: both formats as text and as binary, and the folder with a file for each fusion.

A format (``XlaLayout``) says which protobuf messages a file has. Each format has a text and a binary form.

:mod:`pytest_autotune.tuners.xla.entries` converts XLA's entries to entries of a cache.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any

from pytest_autotune.cache.errors import CacheError

#: The version at the beginning of every legacy file. XLA refuses a file with any other version.
LEGACY_FILE_VERSION = 3
#: The suffixes of files that XLA writes as text. All others are binary.
TEXT_SUFFIXES = (".txt", ".textproto", ".txtpb", ".prototxt", ".pbtxt")
_DIGEST = re.compile("[0-9a-f]{8,64}")
#: The first word of a text, after comments and empty lines.
_FIRST_WORD = re.compile(rb"(?:\s*#[^\n]*\n)*\s*(version|results|entries|device_scope|explicit_version_scope)\b")
#: A protobuf message. Its class is made at run time, so a type checker knows nothing of it.
Message = Any


class XlaLayout(Enum):
    """XLA's two formats. The value is the format's word in messages and options."""

    NEW = "new"
    LEGACY = "legacy"


@dataclass(frozen=True)
class _MessageNames:
    """The protobuf names of a format.

    :param file: the message of a whole file.
    :param entries: the field of the file with its entries.
    :param entry: the message of an entry.
    """

    file: str
    entries: str
    entry: str


_NAMES = {
    XlaLayout.NEW: _MessageNames("xla.autotuner.AutotuneCache", "entries", "xla.autotuner.AutotuneEntry"),
    XlaLayout.LEGACY: _MessageNames("xla.AutotuneResults", "results", "xla.AutotuneResultsEntry"),
}
#: The possible beginnings of a file of a format: the first word of a text, the first byte of a binary file.
_BEGINNINGS = {
    XlaLayout.NEW: (b"entries", b"device_scope", b"explicit_version_scope", b"\x0a", b"\x12", b"\x1a"),
    XlaLayout.LEGACY: (b"version", b"results", b"\x08", b"\x22"),
}


@dataclass(frozen=True)
class XlaEntry:
    """An entry of XLA.

    :param raw: the serialized message, from which all other values are read.
    """

    layout: XlaLayout
    raw: bytes

    @cached_property
    def message(self) -> Message:
        """The entry as a message, which must not be changed."""
        return parse_message(_NAMES[self.layout].entry, self.raw)

    @property
    def device(self) -> str:
        """XLA's name of the device: a fingerprint (new), or a description with cuDNN's version (legacy)."""
        if self.layout is XlaLayout.NEW:
            return str(self.message.key.target.device)
        return str(self.message.device)

    @property
    def hlo(self) -> str:
        """The tuned HLO: its fingerprint (new), or its text (legacy)."""
        if self.layout is XlaLayout.NEW:
            return str(self.message.key.target.hlo_fingerprint)
        return str(self.message.hlo)

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """The values by which XLA tells entries apart. A file has one entry for each identity."""
        if self.layout is XlaLayout.LEGACY:
            return self.layout, self.device, self.hlo, self.message.version
        key = self.message.key
        versions = key.target.explicit_version, key.environment.codegen_version
        return self.layout, self.device, self.hlo, *versions, key.environment.codegen_options_fingerprint

    @property
    def sort_key(self) -> tuple[object, ...]:
        """The values by which XLA sorts the entries of a file."""
        explicit_version = ""
        if self.layout is XlaLayout.NEW:
            explicit_version = self.message.key.target.explicit_version
        return self.device.encode(), explicit_version.encode(), self.hlo.encode(), self.raw


def is_text(path: PurePath) -> bool:
    """Whether XLA writes a file with this name as text."""
    return path.suffix in TEXT_SUFFIXES


def read(data: bytes, where: str) -> tuple[XlaEntry, ...]:
    """Return the entries of a file that XLA wrote as text or binary.

    A text in the new format begins with ``entries {``, a text in the legacy format with ``version: 3``.

    :param where: the path of the file, for messages.
    :raises CacheError: for another kind of file, a damaged file, or an unknown version.
    """
    # XLA writes an empty file if it has no entries.
    if not data.strip():
        return ()
    layout = _find_layout(data)
    if layout is None:
        raise CacheError(where, "is not a file of XLA's autotuning results")
    message = _parse_file(data, layout, where)
    if layout is XlaLayout.LEGACY and message.version != LEGACY_FILE_VERSION:
        event = f"is in version {message.version} of XLA's file format, not {LEGACY_FILE_VERSION}"
        raise CacheError(where, event, "write it again with the JAX of this environment")
    if layout is XlaLayout.NEW and (message.device_scope or message.explicit_version_scope):
        raise CacheError(where, "sets a device or version for all its entries, which pytest-autotune cannot read")
    entries = []
    for entry_message in getattr(message, _NAMES[layout].entries):
        entry = XlaEntry(layout, entry_message.SerializeToString(deterministic=True))
        if not (entry.device and entry.hlo):
            remedy = "name a file of XLA's autotuning results"
            raise CacheError(where, "has an entry without a device or an HLO", remedy)
        entries.append(entry)
    return tuple(entries)


def write(entries: Iterable[XlaEntry], layout: XlaLayout, text: bool) -> bytes:
    """Return the content of the file that XLA would write for these entries.

    The entries are sorted. If several entries have the same identity, the file has the first of them.

    :param text: whether to write the text form. Else the file has the binary form.
    :raises CacheError: if the text form cannot hold an entry.
    """
    entries_by_identity: dict[tuple[object, ...], XlaEntry] = {}
    for entry in entries:
        entries_by_identity.setdefault(entry.identity, entry)
    names = _NAMES[layout]
    message = new_message(names.file)
    if layout is XlaLayout.LEGACY:
        message.version = LEGACY_FILE_VERSION
    for entry in sorted(entries_by_identity.values(), key=attrgetter("sort_key")):
        getattr(message, names.entries).add().MergeFromString(entry.raw)
    if text:
        return _print_text(message).encode()
    return bytes(message.SerializeToString(deterministic=True))


def _find_layout(data: bytes) -> XlaLayout | None:
    """Return the format of a file; None for another kind of file.

    The beginning of the file decides. Trying both parsers would not help: each parser accepts a binary file of the
    other format, and returns no entries.
    """
    first_word = _FIRST_WORD.match(data)
    if first_word is not None:
        beginning = first_word[1]  # of a text
    else:
        beginning = data[:1]  # of a binary file
    for layout, beginnings in _BEGINNINGS.items():
        if beginning in beginnings:
            return layout
    return None


def _parse_file(data: bytes, layout: XlaLayout, where: str) -> Message:
    """Return the content of a file, text or binary, as a message.

    :raises CacheError: for a damaged file.
    """
    from google.protobuf.message import DecodeError
    from google.protobuf.text_format import Parse, ParseError

    file_message = new_message(_NAMES[layout].file)
    is_text_form = _FIRST_WORD.match(data) is not None
    try:
        if is_text_form:
            Parse(data.decode(), file_message, descriptor_pool=message_pool())
        else:
            file_message.MergeFromString(data)
        return file_message
    except (DecodeError, UnicodeDecodeError) as error:
        raise CacheError(where, f"is damaged: {error}") from None
    except ParseError as error:
        remedy = "if XLA is newer than this pytest-autotune, let XLA write the binary form, .pb"
        raise CacheError(where, f"is not the text of XLA's autotuning results: {error}", remedy) from None


def _print_text(message: Message) -> str:
    """Return the text form of a message as XLA prints it.

    :raises CacheError: if the text would lose a field.
    """
    from google.protobuf import text_format

    pool = message_pool()
    text: str = text_format.MessageToString(
        message, descriptor_pool=pool, as_utf8=False, message_formatter=_format_empty_any
    )
    # The printer leaves out fields that it does not know. Then the text parsed again differs from the message.
    parsed_again = text_format.Parse(text, type(message)(), descriptor_pool=pool)
    if parsed_again.SerializeToString(deterministic=True) != message.SerializeToString(deterministic=True):
        raise CacheError(
            "XLA's text form",
            "cannot hold an entry with fields of another version of XLA",
            "end the name of OUT in .pb",
        )
    return text


def _format_empty_any(message: Message, indent: int, as_one_line: bool) -> str | None:
    """Print an ``Any`` without a value as XLA's printer in C++ does: ``type_url: "…"``.

    :returns: None for every other message, which protobuf then prints in its usual form.
    """
    if message.DESCRIPTOR.full_name == "google.protobuf.Any" and message.type_url and not message.value:
        return "type_url: " + json.dumps(message.type_url)
    return None


def write_folder(folder: Path, entries: Iterable[XlaEntry]) -> int:
    """Write the folder from which XLA reads entries, with a file for each fusion.

    :param entries: the entries. If several are for the same fusion, the folder gets the first.
    :returns: the number of entries that were left out, because XLA's folder has no form for them.
    """
    left_out_count = 0
    for entry in entries:
        try:
            content = _content_in_folder(entry)
            file = folder / _path_in_folder(entry)
        except CacheError:
            left_out_count += 1
            continue
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    return left_out_count


def _content_in_folder(entry: XlaEntry) -> bytes:
    """Return the content of an entry's file: the whole new entry, or the result of a legacy entry as text.

    :raises CacheError: if the text cannot hold the result.
    """
    if entry.layout is XlaLayout.LEGACY:
        return _print_text(entry.message.result).encode()
    return entry.raw


def _path_in_folder(entry: XlaEntry) -> str:
    """Return the path at which XLA looks for an entry, relative to the folder.

    A new entry has the path ``DEVICE/HLO.pb`` with two fingerprints. A legacy entry has the path ``DIGEST.textproto``
    with the digest of its key, and the key is the text ``<key model='…', hlo='…', version=…>`` of XLA's C++ code.

    :raises CacheError: if XLA looks for no such entry.
    """
    if entry.layout is XlaLayout.NEW:
        # A cache file is data that somebody else may have written. A value such as "../.." would leave the folder, so
        # both values must be hexadecimal digests, as XLA writes them.
        has_digests = _DIGEST.fullmatch(entry.device) and _DIGEST.fullmatch(entry.hlo)
        if entry.message.key.target.explicit_version or not has_digests:
            raise CacheError(entry.hlo, "has no name in XLA's folder")
        return f"{entry.device}/{entry.hlo}.pb"
    version = entry.message.version
    if not version:
        raise CacheError("an entry", "is from before XLA wrote versions")
    key = f"<key model='{entry.device}', hlo='{entry.hlo}', version={version}>"
    digest = base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()).rstrip(b"=")
    return f"{digest.decode()}.textproto"


# The protobuf messages.


def new_message(name: str) -> Message:
    """Return an empty message.

    :param name: the full name of the message, such as ``xla.AutotuneResults``.
    """
    return _message_class(name)()


def parse_message(name: str, data: bytes) -> Message:
    """Return the message in binary data.

    :param name: the full name of the message, such as ``xla.AutotuneResults``.
    :raises google.protobuf.message.DecodeError: if the data is damaged or is no such message.
    """
    return _message_class(name).FromString(data)


@cache
def _message_class(name: str) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(message_pool().FindMessageTypeByName(name))


@cache
def message_pool() -> Any:
    """Return a separate descriptor pool with the messages of XLA's autotuning files, and the protobuf messages in them.

    The messages come from ``descriptors.textproto`` in this folder. TensorFlow registers messages of the same names,
    ``xla.*``, in protobuf's default pool, which refuses a second registration.
    """
    from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, text_format, wrappers_pb2

    descriptors = descriptor_pool.DescriptorPool()
    for module in (any_pb2, duration_pb2, wrappers_pb2):
        descriptors.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    description = importlib.resources.files(__package__).joinpath("descriptors.textproto").read_text(encoding="utf-8")
    for file in text_format.Parse(description, descriptor_pb2.FileDescriptorSet()).file:
        descriptors.AddSerializedFile(file.SerializeToString())
    return descriptors
