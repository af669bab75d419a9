"""The host's time. A test may freeze what is in the module ``time``, or replace it by something of its own."""

from __future__ import annotations

import time


class HostTime:
    """What was there when the run began; a tool that freezes time replaces names of modules, not of this."""

    monotonic = staticmethod(time.monotonic)
    perf_counter = staticmethod(time.perf_counter)
    perf_counter_ns = staticmethod(time.perf_counter_ns)
    time = staticmethod(time.time)
