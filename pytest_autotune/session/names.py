"""What the plugin, the controller and its workers spell alike."""

from __future__ import annotations

#: The marker, and the fixture, of one test's caches.
MARKER = "autotune_cache"
#: The attribute of a test report that carries what was looked up while the test ran.
REPORT_ATTRIBUTE = "autotune_lookups"
#: What is ours in xdist's ``workerinput`` and ``workeroutput``.
INPUT_KEY = "autotune"
