"""The clocks of the host, which no test can freeze.

A test may freeze the functions of the module ``time``, for example with freezegun, or replace them. The clocks of a
tuning in this test must go on: a frozen clock once ended a search with an error, or chose by chance.
"""

from __future__ import annotations

import time


class HostTime:
    """The functions of ``time`` as they are when this module is imported: a run imports it before its first test.

    They are attributes of a class, because a tool that freezes time replaces the names of functions in modules.
    """

    monotonic = staticmethod(time.monotonic)
    perf_counter = staticmethod(time.perf_counter)
    perf_counter_ns = staticmethod(time.perf_counter_ns)
    time = staticmethod(time.time)
