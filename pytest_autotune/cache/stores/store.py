"""What every store of caches can do, what becomes of an update, and how stores on a disk do it."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.stores.writing import check_creatable, locked, os_errors, unused

#: What to put in the place of a cache.
Change = Callable[[Cache], Cache]


@dataclass(frozen=True)
class Updated:
    """What an update came to.

    :param written_to: the store, as messages name it; or what was written beside it, with ``.new`` at its end.
    :param beside: it is the latter: the lock could not be had, or what is there must not be overwritten.
    :param changed: whether any byte was written.
    :param cache: what was to be written.
    """

    written_to: str
    beside: bool
    changed: bool
    cache: Cache


class Store(Protocol):
    """Keeps a cache; what it is kept in, a path or anything else, only the store knows."""

    def read(self, missing_ok: bool = False) -> Cache:
        """The cache that is kept there.

        :param missing_ok: where there is nothing, it is an empty cache.
        :raises CacheError: where there is none, or none that can be read.
        """

    def update(self, change: Change, timeout_s: float) -> Updated:
        """Put ``change(what is there now)`` in its place, under a lock, as a whole or not at all.

        :raises CacheError: where nothing could be written.
        """

    def check(self) -> Cache:
        """What is there now, where it could be replaced; leaves nothing behind.

        :raises CacheError: where it could not be.
        """

    def describe(self) -> str:
        """How messages name it."""


class PathStore(ABC):
    """What stores on a disk have in common: a lock beside what they keep, and a name for what cannot replace it."""

    #: It is a folder.
    _keeps_files = False

    def __init__(self, location: Location) -> None:
        self._path = location.path
        #: What links lead to.
        self._target = Path(location.real)
        self._where = str(location)

    @abstractmethod
    def read(self, missing_ok: bool = False) -> Cache:
        """See :class:`Store`."""

    @abstractmethod
    def _read(self, missing_ok: bool) -> Cache:
        """The same while nobody else writes."""

    @property
    @abstractmethod
    def _lock(self) -> Path:
        """The lock file; what is written has the folder that it is in."""

    @abstractmethod
    def _write(self, target: Path, cache: Cache) -> bool:
        """Write what differs; whether anything does."""

    @abstractmethod
    def _check_ours(self) -> None:
        """Refuse to put a cache in the place of something else.

        :raises CacheError: then.
        """

    def describe(self) -> str:
        """See :class:`Store`."""
        return self._where

    def check(self) -> Cache:
        """See :class:`Store`."""
        self._check_ours()
        cache = self.read(missing_ok=True)
        try:
            str(self._target).encode()
        except UnicodeEncodeError:
            raise CacheError(self._where, "the path is not encoded in UTF-8", "name it otherwise") from None
        if os.path.lexists(self._target) and not os.access(self._target, os.W_OK):
            raise CacheError(self._where, "is read-only")
        if cache.lossy:
            raise CacheError(*cache.lossy)
        check_creatable(self._lock, self._where)
        return cache

    def update(self, change: Change, timeout_s: float) -> Updated:
        """See :class:`Store`."""
        with os_errors(self._where):
            self._lock.parent.mkdir(parents=True, exist_ok=True)
            with locked(self._lock, timeout_s) as held:
                self._check_ours()
                try:
                    cache = self._read(missing_ok=True)
                    replaceable = held and not cache.lossy
                except CacheError:
                    cache, replaceable = Cache(), False
                cache = change(cache)
                if replaceable:
                    return Updated(self._where, False, self._write(self._target, cache), cache)
            beside = unused(self._target, as_folder=self._keeps_files)
            try:
                self._write(beside, cache)
            except BaseException:  # it was made here, a moment ago
                shutil.rmtree(beside) if beside.is_dir() else beside.unlink()
                raise
            return Updated(str(beside), True, True, cache)
