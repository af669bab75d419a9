"""A cache in a folder: one text file for each problem, for caches that grow across suites and processes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pytest_autotune.cache.codec import Format, encode
from pytest_autotune.cache.codec.schema import one_of_each
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import MARKER, Location
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.stores.file import FileStore, bytes_of
from pytest_autotune.cache.stores.store import PathStore
from pytest_autotune.cache.stores.writing import locked, replace

_MARKER_TEXT = b"A folder of autotuning choices, one file for each problem, kept by pytest-autotune.\n"
_PROBLEM_FILE = re.compile(r"[0-9a-f]{32}\.textproto")
_LITTER = re.compile(rf"\.{_PROBLEM_FILE.pattern}\.tmp")
#: After so many seconds of waiting for whoever writes, what is there is read.
_LONGEST_WRITE_S = 5.0
_NO_MARKER = (f"has no file {MARKER}, which marks a cache", "copies often leave hidden files out: copy it, too")


class FolderStore(PathStore):
    """Keeps a cache in a folder that holds a marker file, which tells it from a folder of other things."""

    _keeps_files = True

    def read(self, missing_ok: bool = False) -> Cache:
        """See :class:`Store`; a folder without the marker file is like a missing one."""
        if MARKER in self._names():
            with suppress(OSError), locked(self._lock, _LONGEST_WRITE_S):  # who writes replaces files one by one
                return self._read(missing_ok)
        return self._read(missing_ok)  # nobody writes where there can be no lock

    def _read(self, missing_ok: bool) -> Cache:
        names = self._names()
        if MARKER not in names:
            if missing_ok:
                return Cache()
            raise self._is_no_cache(names)
        files = [name for name in sorted(names) if _PROBLEM_FILE.fullmatch(name)]
        shown = [Location(self._path / name, shown=os.path.join(self._where, name)) for name in files]
        caches = [FileStore(file).read() for file in shown]
        return Cache(
            one_of_each(entry for cache in caches for entry in cache.entries),
            lossy=next((cache.lossy for cache in caches if cache.lossy), ()),
        )

    @property
    def _lock(self) -> Path:
        return self._target / f"{MARKER}.lock"

    def _names(self) -> Sequence[str]:
        """The names of the files in the folder; none where it is missing."""
        try:
            return os.listdir(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise CacheError(self._where, f"cannot be read: {error.strerror}") from None

    def _is_no_cache(self, names: Sequence[str]) -> CacheError:
        if any(map(_PROBLEM_FILE.fullmatch, names)):
            return CacheError(self._where, *_NO_MARKER)
        if names:  # none could be created there
            remedy = "name the cache in it, or the folder that --autotune-dump made"
            return CacheError(self._where, "is no folder of pytest-autotune", remedy)
        return CacheError(self._where, "no such folder", f"create one with --autotune-dump={self._where}")

    def _check_ours(self) -> None:
        """Refuse what is there and is no folder store: someone wrote ``--autotune-dump tests/``."""
        names = self._names()
        if MARKER in names:
            return
        if any(map(_PROBLEM_FILE.fullmatch, names)):
            raise CacheError(self._where, *_NO_MARKER)
        if any(MARKER not in name for name in names):
            raise CacheError(self._where, "is a folder with other things in it", "name a new or an empty folder")

    def _write(self, target: Path, cache: Cache) -> bool:
        if not (target / MARKER).exists():
            replace(target / MARKER, _MARKER_TEXT)
        problems: dict[str, list[Entry]] = {}
        for entry in cache.entries:
            problems.setdefault(f"{entry.problem.digest}.textproto", []).append(entry)
        new = {name: encode(Cache(tuple(entries)), Format.TEXT) for name, entries in problems.items()}
        names = os.listdir(target)
        gone = [name for name in names if _PROBLEM_FILE.fullmatch(name) and name not in new]
        different = [name for name, data in new.items() if bytes_of(target / name, name, missing_ok=True) != data]
        for name in sorted(different):
            replace(target / name, new[name])
        for name in [*gone, *filter(_LITTER.fullmatch, names)]:
            (target / name).unlink(missing_ok=True)
        return bool(different or gone)
