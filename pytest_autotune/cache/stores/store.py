"""What every store of caches can do, what becomes of an update, and how stores on a disk do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pytest_autotune.cache.model import Cache

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
