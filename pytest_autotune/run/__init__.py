"""One run: lookups, tunings, and the result at the end. This room knows no pytest."""

from __future__ import annotations

#: The runs that see the launches of this process, and need all candidates. Outside of a run with a cache option the set
#: is empty. The top package has the set under the same name.
ACTIVE_RUNS: set[object] = set()
