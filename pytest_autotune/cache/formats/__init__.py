"""Text, binary, YAML and JSON forms of a cache: bytes to :class:`Cache` and back."""

from __future__ import annotations

import re
from pathlib import PurePath

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import binary, mapping, text
from pytest_autotune.cache.formats.mapping import entry_from_mapping, entry_to_mapping
from pytest_autotune.cache.formats.schema import FORMAT_VERSION, Format, check_not_empty
from pytest_autotune.cache.model import Cache

__all__ = [
    "FORMAT_VERSION",
    "Format",
    "decode",
    "encode",
    "entry_from_mapping",
    "entry_to_mapping",
    "format_of",
]

_SUFFIXES = {
    ".textproto": Format.TEXT,
    ".txtpb": Format.TEXT,
    ".pbtxt": Format.TEXT,
    ".txt": Format.TEXT,
    ".pb": Format.BINARY,
    ".binpb": Format.BINARY,
    ".yaml": Format.YAML,
    ".yml": Format.YAML,
    ".json": Format.JSON,
}


def format_of(path: PurePath, where: str = "") -> Format:
    """The format that the path's suffix stands for.

    :param where: the path as the user wrote it, for the error.
    :raises CacheError: for an unknown suffix, listing the known ones.
    """
    format = _SUFFIXES.get(path.suffix.lower())
    if format is None:
        suffix = f'the suffix "{path.suffix}" is unknown' if path.suffix else "has no suffix"
        where = where or str(path)
        raise CacheError(where, suffix, f"one of {' '.join(_SUFFIXES)}, or a folder: {where}/")
    return format


def encode(cache: Cache, format: Format) -> bytes:
    """The cache in a format: the same bytes for the same entries in any order.

    :raises CacheError: for an entry that a reader would not take back.
    """
    try:
        if format is Format.BINARY:
            return binary.encode(cache)
        if format is Format.TEXT:
            return text.encode(cache).encode()
        return (mapping.to_yaml(cache) if format is Format.YAML else mapping.to_json(cache)).encode()
    except UnicodeEncodeError as error:
        raise CacheError(error.object[:60].encode(errors="replace").decode(), "UTF-8 cannot encode this") from None


def decode(data: bytes, format: Format, where: str) -> Cache:
    """The cache that the bytes hold.

    :param where: the path, for the error.
    :raises CacheError: where they hold none, and nothing else, whatever the bytes.
    """
    if data.startswith(_LFS_POINTER):
        raise CacheError(where, "is a pointer of Git LFS, not the file itself", "git lfs pull")
    if format is Format.BINARY:
        try:
            return binary.decode(data, where)
        except CacheError:
            _check_what_it_is(data.decode(errors="replace") if binary.may_be_text(data) else "", format, where)
            raise
    check_not_empty(data, where)
    try:
        words = data.decode()
        if "\0" in words or data[0] < 9:
            raise CacheError(where, f"holds binary data, not {format.value}", "is it a .pb file?")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CacheError(
            f"{where}:{line}", f"is not {format.value}: not encoded in UTF-8", "is it a .pb file?"
        ) from None
    try:
        if format is Format.TEXT:
            return text.decode(words, where)
        return mapping.from_yaml(words, where) if format is Format.YAML else mapping.from_json(words, where)
    except CacheError:
        _check_what_it_is(words, format, where)
        raise


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_CONFLICT = re.compile(r"^<{7}(?: |$)", re.MULTILINE)
# How a file of each format starts, or starts its first device or entry.
_SIGNS = {
    Format.JSON: re.compile(r"\s*[{\[]"),
    Format.TEXT: re.compile(r"(?:.*\n){0,99}?[ \t]*(?:entries|devices)[ \t]*:?[ \t]*[{<]"),
    Format.YAML: re.compile(r"---|(?:.*\n){0,99}?(?:entries|devices):[ \t]*(?:\[.*)?$", re.MULTILINE),
}


def _check_what_it_is(words: str, format: Format, where: str) -> None:
    """Say what a text that cannot be read is, where that can be seen.

    :raises CacheError: then.
    """
    conflict = _CONFLICT.search(words)
    if conflict is not None:
        line = words.count("\n", 0, conflict.start()) + 1
        raise CacheError(f"{where}:{line}", "an unresolved merge conflict", "resolve it in version control")
    found = next((other for other, sign in _SIGNS.items() if sign.match(words)), format)
    if found is not format and (found, format) != (Format.JSON, Format.YAML):  # JSON is YAML
        raise CacheError(where, f"holds {found.value}, not {format.value}", f"name it {_suffix_of(found)}")


def _suffix_of(format: Format) -> str:
    return next(suffix for suffix, one in _SUFFIXES.items() if one is format)
