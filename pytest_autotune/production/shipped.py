"""The caches that libraries ship, and the problems that tuners ask them for.

:mod:`~pytest_autotune.production.use` reads the caches, and :mod:`~pytest_autotune.production.answering` asks for them
from the tuners.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_autotune.cache.model import Candidate


@dataclass(frozen=True)
class AskedProblem:
    """A problem that a tuner asked for in production.

    :param key: as :func:`~pytest_autotune.cache.distance.launch_key` gives it.
    :param device: name, architecture, multiprocessors.
    :param used: the choice that the tuner got if no exact choice is shipped: ``"first"`` for its first candidate,
        ``"nearest"`` for the nearest choice, ``"tune"`` if it tuned; empty if an exact choice is shipped.
    """

    tuner: str
    kernel: str
    key: Mapping[str, Any]
    device: tuple[str, str, int]
    used: str = ""

    def __str__(self) -> str:
        return f"{self.tuner}:{self.kernel} ({', '.join(f'{name}={value}' for name, value in self.key.items())})"


class MissError(LookupError):
    """A kernel was launched for which no choice is shipped, and the library wants an error then."""


class CacheOfLibrary(Protocol):
    """A cache that a library ships."""

    package: str

    def holds(self, kernel: str) -> bool:
        """Whether a kernel is one of this library."""

    def choice(
        self,
        asked: AskedProblem,
        find: Callable[[Candidate], Any],
        candidates: Iterable[Any],
        works: Callable[[Any], bool],
    ) -> Any:
        """Return the candidate to launch; see :meth:`pytest_autotune.production.use.ShippedCache.choice`."""


#: The last cache of each library.
_caches: list[CacheOfLibrary] = []


def add_shipped_cache(cache: CacheOfLibrary) -> None:
    """Let a cache answer for its library, in place of an earlier cache of the same library."""
    _caches[:] = [cache, *(other for other in _caches if other.package != cache.package)]


def find_shipped_cache(kernel: str) -> CacheOfLibrary | None:
    """Return the cache that answers for a kernel; None in a run of pytest, which sees all candidates."""
    if getattr(sys.modules.get("pytest_autotune.tuners.hooks"), "active_runs", 0):
        return None
    caches = [cache for cache in _caches if cache.holds(kernel)]
    return max(caches, key=lambda cache: len(cache.package), default=None)
