"""What a store is: four methods, for which it needs no path; and stores around another, as options of a URL ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache

#: What to put in the place of a cache.
Change = Callable[[Cache], Cache]


@dataclass(frozen=True)
class Updated:
    """What an update came to.

    :param written_to: the store, as messages name it; or the file or folder that was written instead.
    :param changed: whether any byte was written.
    :param beside: why it is not the store as it should be, and what to do; empty where it is.
    """

    written_to: str
    changed: bool
    beside: str = ""


class NotTakenError(CacheError):
    """A store does not take what is to be added to it.

    :param file: where that is kept; empty where there is no place.
    :param remedy: how it is sent from there.
    """

    def __init__(self, place: str, event: str, file: str, remedy: str) -> None:
        super().__init__(place, event, remedy if file else "")
        self.file = file


class Store(Protocol):
    """Keeps a cache, with a path or without. One at a URL is read once: what is added is found by that."""

    def __str__(self) -> str:
        """Where, as messages name it."""

    def read(self, missing_ok: bool = False) -> Cache:
        """The cache that is kept there.

        :param missing_ok: a missing or empty one is an empty cache.
        :raises CacheError: where there is none, or none that can be read.
        """

    def check_writable(self) -> Cache:
        """Find out before a run what would keep its end from writing there; leaves nothing behind.

        :returns: what is there now; an empty cache where there is nothing.
        :raises CacheError: where it could not be written, or what is there must not be overwritten.
        """

    def update(self, change: Change, removing: bool = False) -> Updated:
        """Put ``change(what is there now)`` in the place of what is there now.

        Other processes that update the same path wait meanwhile; where that takes too long, or what is there became
        unreadable, the cache is written beside it. What is there is replaced as a whole or, on any error, left as it
        is. A missing or empty file is an empty cache; missing folders are made.

        :param removing: from a store at a URL, too, what ``change`` leaves out is removed: it may be of others' runs.
        :raises CacheError: where nothing could be written.
        """


class StoreWrapper:
    """A store in another."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __str__(self) -> str:
        return str(self._store)

    def read(self, missing_ok: bool = False) -> Cache:
        return self._store.read(missing_ok)


class ReadOnlyStore(StoreWrapper):
    """A store that is never written to."""

    def check_writable(self) -> Cache:
        raise CacheError(str(self), "is only read (?readonly)", "leave the option out, or name another cache")

    def update(self, change: Change, removing: bool = False) -> Updated:
        return Updated("", False, "is only read (?readonly): nothing was written there")


class LocalCopyStore(StoreWrapper):
    """A store that need not take what is to be added: that it is kept is enough."""

    def check_writable(self) -> Cache:
        return self.read(missing_ok=True)

    def update(self, change: Change, removing: bool = False) -> Updated:
        try:
            return self._store.update(change, removing)
        except NotTakenError as error:
            if not error.file:
                raise
            return Updated(error.file, True, f"{error.event}; {error.remedy}")


class OptionalStore(LocalCopyStore):
    """A store that need not be there, either."""

    def read(self, missing_ok: bool = False) -> Cache:
        try:
            return self._store.read(missing_ok)
        except CacheError as error:
            return Cache(lossy=(error.place, error.event, "?optional: the run goes on without it"))
