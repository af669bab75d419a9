"""Compiling kernels in threads in a run that only loads.

A hit leaves one candidate of each kernel. A graph has many kernels, and Inductor
compiles them one after the other where it has no pool of processes, which take
longer to start than a few candidates take to compile. So the candidate is handed
to a thread as soon as its code is there, and waited for at the kernel's first call.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Any

from pytest_autotune.run.door import TuningRun
from pytest_autotune.tuners.shared.compile_pool import CompilePool


class CompileThreads:
    """Threads that compile for one process.

    :param run: decides whether, and on how many cores.
    :param config: ``torch._inductor.config``.
    """

    def __init__(self, run: TuningRun, config: Any) -> None:
        self._run = run
        self._config = config
        self._pool: CompilePool | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether kernels that are compiled now may be compiled in threads.

        Not where the user says how Inductor compiles, and not where a kernel has to
        be there when its graph is: for a cache of graphs and for code without Python.
        """
        policy = self._run.policy
        return (
            bool(self._run.indexes)
            and not policy.dumping
            and policy.compile_threads > 1
            and "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ
            and self._config.compile_threads == 1
            and not self._config.fx_graph_cache
            and not self._config.cpp_wrapper
        )

    def start(self, compile: Callable[[], None]) -> Callable[[], None]:
        """Begin to compile in a thread; what is returned waits for it.

        What fails in the thread is not raised: it fails again where the caller compiles
        what is missing. A forked child, which has no such thread, does not wait.
        """
        if self._pool is None:
            self._pool = CompilePool(self._run.policy.compile_threads)
        # Inductor's settings hold in the context of the thread that asks.
        future: Future[None] = self._pool.submit(contextvars.copy_context().run, compile)
        process = os.getpid()

        def wait() -> None:
            if os.getpid() == process:
                futures.wait([future])

        return wait
