"""The runs of the plugin in this process. The top package has the set under the same name."""

from __future__ import annotations

#: The runs that see the launches of this process, and need all candidates. Outside of a run with a cache option the set
#: is empty.
ACTIVE_RUNS: set[object] = set()
