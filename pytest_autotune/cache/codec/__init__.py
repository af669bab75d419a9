"""The formats of a cache: text, binary, YAML and JSON. Each turns a :class:`Cache` into bytes and back."""

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
    """A format. A new format needs a module that ends with its ``CODEC``, and a line here."""

    TEXT = text.CODEC
    BINARY = binary.CODEC
    YAML = yaml_text.CODEC
    JSON = json_text.CODEC


_FORMATS_BY_SUFFIX = {suffix: form for form in Format for suffix in form.value.suffixes}
#: The end of the name of a file that was written beside a locked cache.
_BESIDE = re.compile(r"\.new\d*$")
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_CONFLICT = re.compile(rb"^<{7}(?: |$)", re.MULTILINE)


def find_format(path: PurePath, place: str = "") -> Format:
    """Return the format that the path's suffix stands for.

    A file that was written beside a locked cache, such as ``cache.textproto.new2``, has the format of the cache.

    :param place: the path as the user wrote it, for the error.
    :raises CacheError: for an unknown suffix; the error lists the known suffixes.
    """
    name = _BESIDE.sub("", path.name)
    form = _FORMATS_BY_SUFFIX.get(PurePath(name).suffix.lower())
    if form is not None:
        return form
    place = place or str(path)
    _, query_sign, option = path.suffix.partition("?")
    if query_sign and option == "optional":
        raise CacheError(place, "?optional works only for --autotune-load and autotune_load", "leave it out")
    if query_sign:
        raise CacheError(place, f"the option ?{option} of a file is unknown", "a load knows ?optional")
    event = "has no suffix"
    if path.suffix:
        event = f'the suffix "{path.suffix}" is unknown'
    raise CacheError(place, event, f"end the name in {' '.join(_FORMATS_BY_SUFFIX)}, or in / for a folder")


def encode(cache: Cache, form: Format) -> bytes:
    """Return the cache in a format. The order of the entries does not change the bytes."""
    content = form.value.write(sort_entries(cache.entries))
    if isinstance(content, bytes):
        return content
    return content.encode()


def count_comment_lines(data: bytes, form: Format) -> int:
    """Return the number of lines in a file that are comments of users. They are lost if the file is written again.

    A comment behind other text in its line does not count, because the text format has such comments of its own.
    """
    if form not in (Format.TEXT, Format.YAML):
        return 0
    header_lines = text.HEADER.encode().splitlines()
    count = 0
    for line in data.splitlines():
        if line.lstrip().startswith(b"#") and line not in header_lines:
            count += 1
    return count


def decode(data: bytes, form: Format, place: str) -> Cache:
    """Return the cache that the bytes hold.

    :param place: the path, for the error.
    :raises CacheError: if the bytes are not a cache. No bytes raise another error.
    """
    if data.startswith(_LFS_POINTER):
        raise CacheError(place, "is a pointer of Git LFS, not the file itself", "run: git lfs pull")
    if not data or data.isspace():
        raise CacheError(place, "is empty", "remove it, or restore it from version control")
    try:
        cache = _read(data, form, place)
    except ReportError:
        # This error already says what the bytes are.
        raise
    except CacheError as error:
        # If the bytes are something else that is known, an error that names it helps the user more.
        _check_conflict(data, place)
        _check_other_formats(data, form, place)
        remedy = error.remedy or "correct it, or restore it from version control"
        raise CacheError(error.place, error.event, remedy) from None
    return replace(cache, entries=without_duplicates(cache.entries))


def _read(data: bytes, form: Format, place: str) -> Cache:
    """Return the cache that the bytes hold in a format, with all entries that the bytes have for an identity.

    :raises CacheError: if the bytes are not a cache in this format.
    """
    if not form.value.is_text:
        return form.value.read(data, place)
    try:
        # Some editors begin a file with a mark of its encoding.
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CacheError(f"{place}:{line}", f"is not {form.value.name}: not encoded in UTF-8") from None
    return form.value.read(content, place)


def _check_conflict(data: bytes, place: str) -> None:
    """Refuse a file that has the lines of both sides of a merge, with the commands that resolve the conflict.

    :raises CacheError: for such a file.
    """
    conflict = _CONFLICT.search(data)
    if conflict is None:
        return
    line = data.count(b"\n", 0, conflict.start()) + 1
    file = shlex.quote(place)
    commands = ["pytest-autotune git-setup", "git checkout --merge --", "pytest-autotune check", "git add"]
    remedy = " && ".join([f"{command} {file}" for command in commands])
    raise CacheError(f"{place}:{line}", "the file has an unresolved merge conflict", f"run: {remedy}")


def _check_other_formats(data: bytes, form: Format, place: str) -> None:
    """Refuse a file that is a cache in another format than its suffix says.

    :raises CacheError: for such a file, and for the report of a run.
    """
    if len(data) > MAX_FOREIGN_BYTES:
        return
    # JSON comes before YAML, because JSON is YAML, too.
    for other_form in reversed(Format):
        if _has_entries(data, other_form, place):
            event = f"is in the format {other_form.value.name}, but its name stands for {form.value.name}"
            raise CacheError(place, event, f"rename it to end in {other_form.value.suffixes[0]}") from None


def _has_entries(data: bytes, form: Format, place: str) -> bool:
    """Whether the bytes are a cache with entries in a format."""
    try:
        return bool(_read(data, form, place).entries)
    except ReportError:
        raise
    except CacheError:
        return False
