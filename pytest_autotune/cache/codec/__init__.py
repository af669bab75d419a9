"""Text, binary, YAML and JSON forms of a cache: bytes to :class:`Cache` and back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from pytest_autotune.cache.codec import binary, json_text, text, yaml_text
from pytest_autotune.cache.codec.mapping import entry_from_mapping, entry_to_mapping
from pytest_autotune.cache.codec.schema import FORMAT_VERSION, Format, in_order, one_of_each
from pytest_autotune.cache.errors import CacheError, UnresolvedConflictError
from pytest_autotune.cache.model import Cache, Entry

__all__ = [
    "FORMAT_VERSION",
    "Format",
    "decode",
    "encode",
    "entry_from_mapping",
    "entry_to_mapping",
    "format_of",
]


@dataclass(frozen=True)
class _Row:
    """A format.

    :param suffixes: those of its files; the first is the one that is recommended.
    :param read: text or bytes, and where they are from, to a cache; raises CacheError.
    :param write: entries in order to text or bytes; raises CacheError.
    :param start: how a file of it starts, or starts its first device or entry; None where it cannot be seen.
    :param is_text: a file of it is text in UTF-8.
    """

    suffixes: tuple[str, ...]
    read: Callable[..., Cache]
    write: Callable[[Sequence[Entry]], str | bytes]
    start: re.Pattern[str] | None
    is_text: bool = True


# To add a format: a member of Format, and a row here. JSON stands first: how it starts is the most distinctive.
_FORMATS = {
    Format.JSON: _Row((".json",), json_text.decode, json_text.encode, re.compile(r"\s*[{\[]")),
    Format.TEXT: _Row(
        (".textproto", ".txtpb", ".pbtxt", ".txt"),
        text.decode,
        text.encode,
        re.compile(r"(?:.*\n){0,99}?[ \t]*(?:entries|devices)[ \t]*:?[ \t]*[{<]"),
    ),
    Format.BINARY: _Row((".pb", ".binpb"), binary.decode, binary.encode, None, is_text=False),
    Format.YAML: _Row(
        (".yaml", ".yml"),
        yaml_text.decode,
        yaml_text.encode,
        re.compile(r"---|(?:.*\n){0,99}?(?:entries|devices):[ \t]*(?:\[.*)?$", re.MULTILINE),
    ),
}
#: What stands behind the suffix of what was written beside a cache that was locked.
_BESIDE = re.compile(r"\.new\d*$")
_SUFFIXES = {suffix: form for form in Format for suffix in _FORMATS[form].suffixes}


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
    written = _FORMATS[form].write(in_order(cache.entries))
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
    words, row = "", _FORMATS[form]
    try:
        if row.is_text:
            words = _words(data, form, where)
        elif _may_be_text(data):
            words = data.decode(errors="replace")
        cache = row.read(words if row.is_text else data, where)
    except CacheError as error:
        _check_what_it_is(words, form, where)
        if words and not row.is_text:
            raise CacheError(
                where, f"holds text, not {form.value} data", "name it .textproto, .yaml or .json"
            ) from None
        remedy = error.remedy or "mend it, or restore it from version control"
        raise CacheError(error.where, error.found, remedy) from None
    return replace(cache, entries=one_of_each(cache.entries))


def _may_be_text(data: bytes) -> bool:
    return all(byte >= 32 or byte in b"\t\n\r" for byte in data[:200])


def _words(data: bytes, form: Format, where: str) -> str:
    """The data as text.

    :raises CacheError: where it is none.
    """
    try:
        words = data.decode("utf-8-sig")  # some editors begin a file with a mark of its encoding
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"is not {form.value}: not encoded in UTF-8"
        raise CacheError(f"{where}:{line}", found, "is it a .pb file?") from None
    if "\0" in words or data[0] < 9:
        raise CacheError(where, f"holds binary data, not {form.value}", "is it a .pb file?")
    return words


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_CONFLICT = re.compile(r"^<{7}(?: |$)", re.MULTILINE)


def _check_what_it_is(words: str, form: Format, where: str) -> None:
    """Say what a text that cannot be read is, where that can be seen.

    :raises CacheError: then.
    """
    conflict = _CONFLICT.search(words)
    if conflict is not None:
        line = words.count("\n", 0, conflict.start()) + 1
        file = shlex.quote(where)
        remedy = f"in git: pytest-autotune git-setup {file} && git checkout --merge -- {file} && git add {file}"
        raise UnresolvedConflictError(f"{where}:{line}", "an unresolved merge conflict", remedy)
    found = next((other for other, row in _FORMATS.items() if row.start and row.start.match(words)), form)
    if found is not form and (found, form) != (Format.JSON, Format.YAML):  # JSON is YAML
        remedy = f"name it {_FORMATS[found].suffixes[0]}"
        raise CacheError(where, f"holds {found.value}, not {form.value}", remedy)
