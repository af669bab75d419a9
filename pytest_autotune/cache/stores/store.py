"""The protocol of a store, and the stores that wrap another store for the options of a URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.wording import join_nonempty


@dataclass(frozen=True)
class UpdateOutcome:
    """The outcome of an update.

    :param written_to: the store, as messages name it; or the file or folder that was written instead.
    :param changed: whether any byte was written.
    :param beside: why another file was written, or nothing; empty if the store was written.
    :param remedy: how to go on with the other file; empty if there is none.
    :param lost_comment_lines: the number of comment lines that the store's files had, and do not have now.
    :param is_refused: another file was written although the user asked for the store itself.
    """

    written_to: str
    changed: bool
    beside: str = ""
    remedy: str = ""
    lost_comment_lines: int = 0
    is_refused: bool = False

    @property
    def remark(self) -> str:
        """Why another file was written, and how to go on with it; empty if the store was written."""
        return join_nonempty("; ", self.beside, self.remedy)


class NotTakenError(CacheError):
    """A store does not take new entries.

    :param file: the file that keeps the entries; empty if there is none.
    :param remedy: the command that sends the entries from that file.
    """

    def __init__(self, place: str, event: str, file: str, remedy: str) -> None:
        super().__init__(place, event, remedy if file else "")
        self.file = file


class OpenedStore(Protocol):
    """A store that no other process updates now."""

    @property
    def cache(self) -> Cache:
        """The content of the store; empty if it is missing or cannot be read."""

    def write(self, cache: Cache) -> UpdateOutcome:
        """Replace the content of the store as a whole. On an error, the store stays as it is.

        If the store cannot be locked or read, the cache is written beside it.

        :raises CacheError: if nothing could be written.
        """


class Store(Protocol):
    """Keeps a cache. A store at a URL is read once, so that it knows which entries a run has added."""

    def __str__(self) -> str:
        """The path or URL, as messages name it."""

    def read(self, missing_ok: bool = False) -> Cache:
        """Return the content.

        :param missing_ok: a missing or empty store is an empty cache.
        :raises CacheError: if the store is missing or cannot be read.
        """

    def check_writable(self) -> Cache:
        """Check before a run whether its end can write to the store. The check leaves nothing behind.

        :returns: the content; an empty cache if there is none.
        :raises CacheError: if the store cannot be written, or its content must not be overwritten.
        """

    def open_for_update(self, removing: bool = False) -> AbstractContextManager[OpenedStore]:
        """Open the store. Other processes that open the same store wait until the context ends.

        A missing store is an empty cache; missing folders are made.

        :param removing: remove the entries that the new cache lacks from a store at a URL, too. They may belong to
            other runs.
        :raises CacheError: if the store cannot be written.
        """


class StoreWrapper:
    """A store around another store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __str__(self) -> str:
        return str(self._store)

    def read(self, missing_ok: bool = False) -> Cache:
        return self._store.read(missing_ok)


@dataclass(frozen=True)
class UnwritableOpened:
    """A read-only store that is opened for an update."""

    cache: Cache

    def write(self, cache: Cache) -> UpdateOutcome:
        """Write nothing."""
        return UpdateOutcome("", changed=False, beside="is read-only (?readonly), so nothing was written to it")


class ReadOnlyStore(StoreWrapper):
    """A store that is never written to."""

    def check_writable(self) -> Cache:
        raise CacheError(str(self), "is read-only (?readonly)", "leave ?readonly out, or name another cache")

    @contextmanager
    def open_for_update(self, removing: bool = False) -> Iterator[OpenedStore]:
        yield UnwritableOpened(self._store.read(missing_ok=True))


@dataclass(frozen=True)
class LocalCopyOpened:
    """A store that is opened for an update. If it does not take the entries, a local file keeps them."""

    opened: OpenedStore

    @property
    def cache(self) -> Cache:
        """The content of the store."""
        return self.opened.cache

    def write(self, cache: Cache) -> UpdateOutcome:
        """Replace the content; see :class:`OpenedStore`."""
        try:
            return self.opened.write(cache)
        except NotTakenError as error:
            if not error.file:
                raise
            return UpdateOutcome(error.file, changed=True, beside=error.event, remedy=error.remedy)


class LocalCopyStore(StoreWrapper):
    """A store that need not take new entries: a local file that keeps them is enough."""

    def check_writable(self) -> Cache:
        return self.read(missing_ok=True)

    @contextmanager
    def open_for_update(self, removing: bool = False) -> Iterator[OpenedStore]:
        with self._store.open_for_update(removing) as opened:
            yield LocalCopyOpened(opened)


class OptionalStore(LocalCopyStore):
    """A store that may be missing, too."""

    def read(self, missing_ok: bool = False) -> Cache:
        try:
            return self._store.read(missing_ok)
        except CacheError as error:
            return Cache(lossy=(error.place, error.event, "it is ?optional, so the run goes on without it"))
