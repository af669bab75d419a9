"""The clocks of the host. A test may freeze the functions of the module ``time``, or replace them."""

from __future__ import annotations

import time


class HostTime:
    """The functions of ``time`` as they were when the run began. A tool that freezes time replaces names of modules."""

    monotonic = staticmethod(time.monotonic)
    perf_counter = staticmethod(time.perf_counter)
    perf_counter_ns = staticmethod(time.perf_counter_ns)
    time = staticmethod(time.time)
