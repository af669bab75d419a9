"""One compilation at a time.

``cute.compile`` is not safe in threads: of 8 compilations in 4 threads, a process of nvidia-cutlass-dsl 4.8.1 aborts.
``autotune_cache.tune(compile=…)`` compiles in threads, and so may a user's own pool.
"""

from __future__ import annotations

import threading

from pytest_autotune.tuners.shared.patches import CallHook, HookedCall

#: Re-entrant, because a compilation may start another one in its thread.
_compiling = threading.RLock()


class CompileHook(CallHook):
    """Lets one thread of this process compile at a time."""

    def ask(self, call: HookedCall) -> None:
        call.enter(_compiling)
