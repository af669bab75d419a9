"""What every store of caches can do, and what becomes of an update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_autotune.cache.model import AsRead, Cache

#: What to put in the place of a cache.
Change = Callable[[Cache], Cache]


@dataclass(frozen=True)
class Updated:
    """What an update came to.

    :param path: what was to be updated.
    :param written_to: the same, or a path beside it with ``.new`` at its end:
        the lock could not be had, or what is there must not be overwritten.
    :param changed: whether any byte was written.
    :param cache: what is there now.
    """

    path: Path
    written_to: Path
    changed: bool
    cache: Cache


class Store(Protocol):
    """Keeps a cache at a location."""

    def read(self, missing_ok: bool, as_read: AsRead | None = None) -> Cache:
        """The cache that is kept there.

        :param missing_ok: where there is nothing, it is an empty cache.
        :param as_read: entries that are known already; a store may do without.
        :raises CacheError: where there is none, or none that can be read.
        """

    def check_writable(self) -> Cache:
        """What is there now, where it could be replaced; leaves nothing behind.

        :raises CacheError: where it could not be.
        """

    def update(self, change: Change, lock_timeout_s: float) -> Updated:
        """Put ``change(what is there now)`` in its place, under a lock, as a whole or not at all.

        :raises CacheError: where nothing could be written.
        """
