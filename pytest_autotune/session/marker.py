"""What one test asks for by the marker, and what it gets that asks for its caches by the fixture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome
from pytest_autotune.run.nearest import nearest
from pytest_autotune.session import MARKER

if TYPE_CHECKING:
    from pytest_autotune.session.worker import TestProcess


def enabled(item: pytest.Item) -> bool:
    """Whether the tuners may act in a test; the nearest marker that says so decides."""
    for mark in item.iter_markers(MARKER):
        if "enabled" in mark.kwargs:
            return bool(mark.kwargs["enabled"])
    return True


def caches(item: pytest.Item) -> Iterator[str]:
    """The caches that a test's markers name, the nearest one last, since the last one wins.

    A marker that makes no sense fails the test with one line.
    """
    for mark in reversed(list(item.iter_markers(MARKER))):
        load, enabled = mark.kwargs.get("load", []), mark.kwargs.get("enabled", True)
        paths = load if isinstance(load, (list, tuple)) else [load]
        is_known = not mark.args and mark.kwargs.keys() <= {"load", "enabled"} and isinstance(enabled, bool)
        if not is_known or not all(isinstance(path, (str, Path)) for path in paths):
            named = [f"{name}={value!r}" for name, value in mark.kwargs.items()]
            found = ", ".join([*map(repr, mark.args), *named])
            pytest.fail(
                f"marker {MARKER}: expected load=PATH, or several, or enabled=False, not {found}", pytrace=False
            )
        yield from map(str, paths)


class CacheFixture:
    """What the ``autotune_cache`` fixture gives to a test.

    The problems are those that this test was the first to ask for in its process.
    """

    def __init__(self, process: TestProcess, item: pytest.Item) -> None:
        self._process = process
        self._item = item

    def _with(self, outcome: Outcome) -> tuple[Lookup, ...]:
        indexes = self._process.session.indexes

        def explained(lookup: Lookup) -> Lookup:
            is_told = lookup.reason != NO_ENTRY
            return lookup if is_told else replace(lookup, reason=nearest(indexes, lookup.problem).reason)

        return tuple(explained(lookup) for lookup in self._process.in_this_test if lookup.outcome is outcome)

    @property
    def hits(self) -> tuple[Lookup, ...]:
        """What a loaded cache had."""
        return self._with(Outcome.HIT)

    @property
    def misses(self) -> tuple[Lookup, ...]:
        """What no loaded cache had."""
        return self._with(Outcome.MISS)

    @property
    def stale(self) -> tuple[Lookup, ...]:
        """What a loaded cache had for other code or other candidates."""
        return self._with(Outcome.STALE)

    @property
    def mismatches(self) -> tuple[Lookup, ...]:
        """What loaded caches had for other devices only."""
        return self._with(Outcome.MISMATCH)

    @property
    def entries(self) -> tuple[Any, ...]:
        """The entries that are loaded now, the ones that take precedence first."""
        return tuple(entry for index in self._process.session.indexes for entry in index)

    def load(self, path: str | Path) -> None:
        """Load one more cache until this test ends.

        :param path: relative to the test's file.
        """
        self._process.load(self._item, str(path))

    def tune(self, kernel: str, **request: Any) -> Any:
        """Choose a configuration for a hand-written kernel: :func:`pytest_autotune.tune`, with its arguments."""
        from pytest_autotune.tuners.function.tuner import tune

        return tune(kernel, **request)

    def loss(self, config: object, **request: Any) -> Any:
        """What a choice costs here: :func:`pytest_autotune.loss`, with its arguments."""
        from pytest_autotune.tuners.function.tuner import loss

        return loss(config, **request)
