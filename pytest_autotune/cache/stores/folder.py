"""A cache in a folder: one text file for each problem, for caches that grow across suites and processes."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import Format, encode
from pytest_autotune.cache.formats.schema import one_of_each
from pytest_autotune.cache.locations import MARKER, Location
from pytest_autotune.cache.model import AsRead, Cache, Entry
from pytest_autotune.cache.stores.file import FileStore, bytes_of
from pytest_autotune.cache.stores.store import Change, Updated
from pytest_autotune.cache.stores.writing import (
    check_creatable,
    check_lock,
    check_name,
    locked,
    os_errors,
    real,
    replace,
    unused_name,
)

_MARKER_TEXT = b"A folder of autotuning choices, one file for each problem, kept by pytest-autotune.\n"
_PROBLEM_FILE = re.compile(r"[0-9a-f]{32}\.textproto")
_NO_MARKER = (f"has no file {MARKER}, which marks a cache", "copies often leave hidden files out: copy it, too")


class FolderStore:
    """Keeps a cache in a folder that holds a marker file, which tells it from a folder of other things."""

    def __init__(self, location: Location) -> None:
        self._path = location.path
        self._where = str(location)

    def read(self, missing_ok: bool, as_read: AsRead | None = None) -> Cache:
        """See :class:`Store`; a folder without the marker file is like a missing one."""
        folder, where = self._path, self._where
        try:
            if not os.path.isfile(folder / MARKER):
                if missing_ok:
                    return Cache()
                found, remedy = "no such folder", f"create one with --autotune-dump={where}"
                with suppress(FileNotFoundError):
                    names = os.listdir(folder)
                    if names:  # none could be created there
                        remedy = "name the cache in it, or the folder that --autotune-dump made"
                    found = "is no folder of pytest-autotune"
                    if _has_lost_its_marker(names):
                        found, remedy = _NO_MARKER
                raise CacheError(where, found, remedy)
            names = _problem_files(folder)
        except OSError as error:
            raise CacheError(where, f"cannot be read: {error.strerror}") from None
        files = [Location(folder / name, shown=os.path.join(where, name)) for name in names]
        caches = [FileStore(file).read(missing_ok=False) for file in files]
        return Cache(
            one_of_each(entry for cache in caches for entry in cache.entries),
            lossy=next((cache.lossy for cache in caches if cache.lossy), ()),
        )

    def check_writable(self) -> Cache:
        """See :class:`Store`."""
        self._check_ours()
        cache = self.read(missing_ok=True)
        if cache.lossy:
            raise CacheError(*cache.lossy)
        check_name(real(self._path), self._where)
        check_lock(_lock(real(self._path)), self._where)
        check_creatable(self._path, self._where)
        return cache

    def update(self, change: Change, lock_timeout_s: float) -> Updated:
        """See :class:`Store`."""
        folder = real(self._path)
        with os_errors(self._where):
            folder.mkdir(parents=True, exist_ok=True)
            with locked(_lock(folder), lock_timeout_s) as held:
                self._check_ours()
                try:
                    cache = self.read(missing_ok=True)
                    replaceable = held and not cache.lossy
                except CacheError:
                    cache, replaceable = Cache(), False
                cache = change(cache)
                if replaceable:
                    return Updated(self._path, self._path, _write(folder, cache), cache)
            beside = unused_name(folder)
            beside.mkdir()
            try:
                changed = _write(beside, cache)
            except BaseException:
                shutil.rmtree(beside, ignore_errors=True)  # made here, a moment ago
                raise
            return Updated(self._path, beside, changed, cache)

    def _check_ours(self) -> None:
        """Refuse what is there and is no folder store: someone wrote ``--autotune-dump tests/``."""
        try:
            names = os.listdir(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise CacheError(self._where, f"cannot be used: {error.strerror}") from None
        if _has_lost_its_marker(names):
            raise CacheError(self._where, *_NO_MARKER)
        if MARKER not in names and any(MARKER not in name for name in names):
            raise CacheError(self._where, "is a folder with other things in it", "name a new or an empty folder")


def _has_lost_its_marker(names: Sequence[str]) -> bool:
    """Whether a folder with such files is a cache that was copied without its hidden file."""
    return MARKER not in names and any(map(_PROBLEM_FILE.fullmatch, names))


def _lock(folder: Path) -> Path:
    return folder / f"{MARKER}.lock"


def _problem_files(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if _PROBLEM_FILE.fullmatch(name))


def _write(folder: Path, cache: Cache) -> bool:
    if not (folder / MARKER).exists():
        replace(folder / MARKER, _MARKER_TEXT)
    problems: dict[str, list[Entry]] = {}
    for entry in cache.entries:
        problems.setdefault(f"{entry.problem.digest}.textproto", []).append(entry)
    new = {name: encode(Cache(tuple(entries)), Format.TEXT) for name, entries in problems.items()}
    gone = set(_problem_files(folder)) - new.keys()
    different = [name for name, data in new.items() if bytes_of(folder / name, name, missing_ok=True) != data]
    for name in sorted(different):
        replace(folder / name, new[name])
    for name in gone:
        (folder / name).unlink()
    return bool(different or gone)
