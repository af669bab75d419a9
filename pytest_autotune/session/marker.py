"""What the marker says of one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_autotune.session import MARKER


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
        unknown = set(mark.kwargs) - {"load", "enabled"}
        if mark.args or unknown:
            found = ", ".join([*map(repr, mark.args), *sorted(unknown)])
            pytest.fail(f"marker {MARKER}: expected load=PATH or enabled=False, not {found}", pytrace=False)
        enabled, load = mark.kwargs.get("enabled", True), mark.kwargs.get("load", [])
        if not isinstance(enabled, bool):
            pytest.fail(f"marker {MARKER}: enabled= takes True or False, not {enabled!r}", pytrace=False)
        paths = load if isinstance(load, (list, tuple)) else [load]
        if not all(isinstance(path, (str, Path)) for path in paths):
            pytest.fail(f"marker {MARKER}: load= takes a path or several, not {load!r}", pytrace=False)
        yield from map(str, paths)
