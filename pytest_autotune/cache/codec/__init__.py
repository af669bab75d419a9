"""Text, binary, YAML and JSON forms of a cache: bytes to :class:`Cache` and back."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from enum import Enum
from pathlib import PurePath

from pytest_autotune.cache.codec import binary, json_text, text, yaml_text
from pytest_autotune.cache.codec.mapping import MAX_FOREIGN_BYTES, sort_entries, without_duplicates
from pytest_autotune.cache.errors import CacheError, ReportError
from pytest_autotune.cache.model import Cache


class Format(Enum):
    """How a cache is written: to add a format, a module that ends with its row, and a line here."""

    TEXT = text.CODEC
    BINARY = binary.CODEC
    YAML = yaml_text.CODEC
    JSON = json_text.CODEC


#: What stands behind the suffix of what was written beside a cache that was locked.
_BESIDE = re.compile(r"\.new\d*$")
_SUFFIXES = {suffix: form for form in Format for suffix in form.value.suffixes}


def format_of(path: PurePath, where: str = "") -> Format:
    """The format that the path's suffix stands for.

    :param where: the path as the user wrote it, for the error.
    :raises CacheError: for an unknown suffix, listing the known ones.
    """
    name = _BESIDE.sub("", path.name)
    form = _SUFFIXES.get(PurePath(name).suffix.lower())
    if form is None:
        suffix = f'the suffix "{path.suffix}" is unknown' if path.suffix else "has no suffix"
        where = where or str(path)
        raise CacheError(where, suffix, f"one of {' '.join(_SUFFIXES)}, or a folder: {where}/")
    return form


def encode(cache: Cache, form: Format) -> bytes:
    """The cache in a format: the same bytes for the same entries in any order."""
    written = form.value.write(sort_entries(cache.entries))
    return written if isinstance(written, bytes) else written.encode()


def decode(data: bytes, form: Format, where: str) -> Cache:
    """The cache that the bytes hold.

    :param where: the path, for the error.
    :raises CacheError: where they hold none, and nothing else, whatever the bytes.
    """
    if data.startswith(_LFS_POINTER):
        raise CacheError(where, "is a pointer of Git LFS, not the file itself", "git lfs pull")
    if not data or data.isspace():
        raise CacheError(where, "is empty", "remove it, or restore it from version control")
    try:
        cache = _read(data, form, where)
    except ReportError:
        raise
    except CacheError as error:
        _check_conflict(data, where)
        others = reversed(Format) if len(data) <= MAX_FOREIGN_BYTES else ()
        other = next((other for other in others if _holds(data, other, where)), None)
        if other is not None:
            found = f"holds {other.value.name}, not {form.value.name}"
            raise CacheError(where, found, f"name it {other.value.suffixes[0]}") from None
        remedy = error.remedy or "mend it, or restore it from version control"
        raise CacheError(error.place, error.event, remedy) from None
    return replace(cache, entries=without_duplicates(cache.entries))


def _read(data: bytes, form: Format, where: str) -> Cache:
    if not form.value.is_text:
        return form.value.read(data, where)
    try:
        words = data.decode("utf-8-sig")  # some editors begin a file with a mark of its encoding
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CacheError(f"{where}:{line}", f"is not {form.value.name}: not encoded in UTF-8") from None
    return form.value.read(words, where)


def _holds(data: bytes, form: Format, where: str) -> bool:
    try:
        return bool(_read(data, form, where).entries)
    except ReportError:
        raise
    except CacheError:
        return False


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_CONFLICT = re.compile(rb"^<{7}(?: |$)", re.MULTILINE)


def _check_conflict(data: bytes, where: str) -> None:
    """Say so where a file that cannot be read has the lines of both sides of a merge.

    :raises CacheError: then.
    """
    if conflict := _CONFLICT.search(data):
        line = data.count(b"\n", 0, conflict.start()) + 1
        file = shlex.quote(where)
        commands = "pytest-autotune git-setup", "git checkout --merge --", "pytest-autotune check", "git add"
        remedy = f"in git: {' && '.join(f'{command} {file}' for command in commands)}"
        raise CacheError(f"{where}:{line}", "an unresolved merge conflict", remedy)
