"""Compiles Inductor's kernels in threads of this process, in a run that loads a cache and does not dump.

:mod:`.generated_kernel` asks for a thread and waits for it. In a run that dumps, :mod:`.compiling` compiles in forked
children.
"""

from __future__ import annotations

import os
from concurrent import futures
from dataclasses import dataclass
from typing import Any

from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.compile_pool import CompilePool


@dataclass(frozen=True)
class Precompilation:
    """Inductor's call of ``precompile``, which the plugin stopped and can make itself.

    The methods take the autotuner as an argument, because a stored reference would keep the autotuner alive.

    :param original: Inductor's own method.
    :param reload_kernel: the method's argument of this name.
    :param static_triton_bundle_key: the method's argument of this name.
    """

    original: Any
    reload_kernel: Any
    static_triton_bundle_key: Any

    def run(self, autotuner: Any) -> object:
        """Compile and load the autotuner's candidates."""
        return self.original(autotuner, False, self.reload_kernel, self.static_triton_bundle_key)

    def compile_only(self, autotuner: Any) -> None:
        """Compile the autotuner's candidates and load none of them, as Inductor does in a compile worker."""
        self.original(autotuner, True)  # warm_cache_only


class CompileThreads:
    """The threads that compile kernels in a run that loads a cache and does not dump.

    Such a run compiles only one candidate of each kernel. Inductor's compile processes take longer to start than these
    few candidates take to compile, so the adapter switches the processes off. Inductor itself would then compile the
    kernels of a graph one after the other.

    :param heuristics: Inductor's module ``triton_heuristics``.
    """

    def __init__(self, session: Session, heuristics: Any) -> None:
        self._session = session
        self._heuristics = heuristics
        self._pool: CompilePool | None = None

    def are_allowed(self) -> bool:
        """Whether a kernel that is compiled now may be compiled in a thread."""
        loads_only = bool(self._session.indexes) and not self._session.policy.is_dumping
        # A run that dumps compiles all candidates, in Inductor's processes or in forked children.
        if not loads_only:
            return False
        # A single thread would compile no sooner than the calling thread.
        if self._session.policy.compile_threads <= 1:
            return False
        config = self._heuristics.torch._inductor.config
        # In a run that only loads, the adapter sets `compile_threads` to 1. With any other value, or with the variable,
        # the user decided how Inductor compiles.
        if "TORCHINDUCTOR_COMPILE_THREADS" in os.environ or config.compile_threads != 1:
            return False
        # A graph that is cached, or called from C++, needs its compiled kernels before the first launch.
        return not config.fx_graph_cache and not config.cpp_wrapper

    def submit(self, precompilation: Precompilation, autotuner: Any) -> futures.Future[None]:
        """Compile the autotuner's candidates in a thread."""
        if self._pool is None:
            self._pool = CompilePool(self._session.policy.compile_threads)
        # The pool copies the context, and Inductor's settings belong to the context.
        return self._pool.submit(precompilation.compile_only, autotuner)
