"""The caches that libraries ship, and the launches that ask them for a choice.

:mod:`~pytest_autotune.production.use` reads the caches. :mod:`~pytest_autotune.production.answering` asks them when a
tuner would search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_autotune.cache.model import Candidate
from pytest_autotune.run import ACTIVE_RUNS


@dataclass(frozen=True)
class LaunchedProblem:
    """A problem that a launch in production asks for.

    :param key: the key of the launch, see :func:`~pytest_autotune.cache.distance.launch_key`.
    :param device: name, architecture, multiprocessors.
    :param used: the answer if no exact choice is shipped: the ``"first"`` candidate, the choice of the ``"nearest"``
        problem, or ``"tune"`` or ``"error"``; empty if an exact choice is shipped.
    :param exact_key: the key in the form in which it is compared with the keys of entries, see
        :func:`~pytest_autotune.production.choices.exact_key`; None if that is ``key``, as for a launch of Triton.
    """

    tuner: str
    kernel: str
    key: Mapping[str, Any]
    device: tuple[str, str, int]
    used: str = ""
    exact_key: Mapping[str, Any] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value}" for name, value in self.key.items())
        return f"{self.tuner}:{self.kernel} ({key})"

    @property
    def sorted_key(self) -> tuple[tuple[str, Any], ...]:
        """The key by which an exact choice is found."""
        key = self.key
        if self.exact_key is not None:
            key = self.exact_key
        return tuple(sorted(key.items()))


class KernelLaunch(Protocol):
    """One launch of a kernel, and its candidates. Each tuner has a class of its own."""

    problem: LaunchedProblem

    def find_candidate(self, choice: Candidate) -> Any:
        """Return the candidate that an entry chose; None if the kernel no longer has it."""

    def list_candidates(self) -> Iterable[Any]:
        """Return all candidates, in the tuner's order."""

    def can_run(self, candidate: Any) -> bool:
        """Whether a candidate that was tuned for another problem can be launched."""


class MissError(LookupError):
    """A launch for which no choice is shipped, in a library that calls this an error."""


class CacheOfLibrary(Protocol):
    """A cache that a library ships."""

    package: str

    def has_kernel(self, kernel: str) -> bool:
        """Whether a kernel belongs to the library.

        :param kernel: its module and name.
        """

    def choose(self, launch: KernelLaunch) -> Any:
        """Return the candidate to launch; None if the tuner has to tune.

        :raises MissError: if no choice is shipped, and the library calls this an error.
        """


#: The last cache of each library.
_caches: list[CacheOfLibrary] = []


def add_shipped_cache(cache: CacheOfLibrary) -> None:
    """Let a cache answer for its library. It replaces an earlier cache of the same library."""
    other_caches = [known_cache for known_cache in _caches if known_cache.package != cache.package]
    _caches[:] = [cache, *other_caches]


def find_shipped_cache(kernel: str) -> CacheOfLibrary | None:
    """Return the cache that answers for a kernel; None if no library ships a cache for it, or during a test run."""
    if ACTIVE_RUNS:
        # A test run must see all candidates of a kernel.
        return None
    caches = [cache for cache in _caches if cache.has_kernel(kernel)]
    # A subpackage may ship a cache of its own. The longest package name is the innermost package.
    return max(caches, key=lambda cache: len(cache.package), default=None)
