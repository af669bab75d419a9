"""Everything that imports pytest; here is what the plugin, the controller and its workers spell alike.

It stands in no module of its own, since a run that asks for nothing would import that, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

#: The marker, and the fixture, of one test's caches.
MARKER = "autotune_cache"
#: What is ours in xdist's ``workerinput`` and ``workeroutput``.
INPUT_KEY = "autotune"


def asks_for_cache(item: pytest.Item) -> bool:
    """Whether a test has the marker or the fixture, and so may load caches of its own."""
    return item.get_closest_marker(MARKER) is not None or MARKER in getattr(item, "fixturenames", ())
