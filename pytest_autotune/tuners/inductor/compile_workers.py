"""Configurations compiled by Inductor's own compile workers, into Triton's cache on disk.

A dump run has these processes: they compile the candidates of every list. Afterwards they are idle, while kernels are
measured one after the other. So what a coordinate descent is likely to try is handed to them beforehand; what it
tries for certain, at once. This process then takes it from Triton's cache. Threads do no such thing: they would hold
the interpreter's lock while launches are timed.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, ref

from pytest_autotune.tuners.inductor.configurations import Params, params_of

#: A compiler that takes longer than so many seconds is not waited for: it is done again in this process.
WAIT_S = 60.0
#: So many cores are left to who measures.
_LEFT = 2
_ENVIRONMENT = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_LIBDEVICE_PATH", "TRITON_PTXAS_PATH")


class CompileWorkers:
    """Inductor's compile workers, as far as this package hands them jobs.

    Nothing here raises: what is not compiled ahead is compiled where it is needed.

    :param config: ``torch._inductor.config``.
    """

    def __init__(self, config: Any) -> None:
        self._config = config
        self._begun: WeakKeyDictionary[Any, dict[Params, Future[Any]]] = WeakKeyDictionary()
        #: What may be needed, the likeliest first.
        self._maybe: deque[tuple[ref[Any], Any]] = deque()
        self._under_way: list[Future[Any]] = []
        self._process = os.getpid()

    def may_need(self, autotuner: Any, configs: Sequence[Any], *, soon: bool = False) -> None:
        """Compile these while workers are idle.

        :param soon: before what was named earlier.
        """
        if self._pool() is None:
            return
        wanted = [(ref(autotuner), config) for config in configs]
        if soon:
            self._maybe.extendleft(reversed(wanted))
        else:
            self._maybe.extend(wanted)
        self._begin_some()

    def need(self, autotuner: Any, configs: Sequence[Any]) -> None:
        """Compile these now, and wait for them."""
        if self._pool() is None:
            return
        begun = [self._begin(autotuner, config) for config in configs]
        futures.wait([one for one in begun if one is not None], timeout=WAIT_S)
        self._begin_some()

    def needs_no_more(self, autotuner: Any) -> None:
        """Drop what has not begun of a kernel."""
        self._maybe = deque(one for one in self._maybe if one[0]() not in (autotuner, None))
        self._begin_some()

    def _begin_some(self) -> None:
        most = (self._config.compile_threads or 1) - _LEFT
        self._under_way = [one for one in self._under_way if not one.done()]
        while self._maybe and len(self._under_way) < most:
            autotuner, config = self._maybe.popleft()
            if (found := autotuner()) is not None and (future := self._begin(found, config)) is not None:
                self._under_way.append(future)

    def _begin(self, autotuner: Any, config: Any) -> Future[Any] | None:
        begun = self._begun.setdefault(autotuner, {})
        params = params_of(config)
        if params not in begun:
            with suppress(Exception):  # a pool that has ended, a file that is gone
                source = Path(autotuner.filename).read_text(encoding="utf-8")
                begun[params] = self._pool().submit(
                    compile_there, autotuner.fn.__name__, source, config, self._environment()
                )
        return begun.get(params)

    @staticmethod
    def _environment() -> dict[str, str | None]:
        """The variables that decide where and by what is compiled.

        Inductor has its workers take the ptxas that comes with torch; and this process, wherever that compiles a
        list itself. Without it a kernel from a worker would be another one for Triton's cache.
        """
        tasks: Any = sys.modules.get("torch._inductor.runtime.compile_tasks")
        if hasattr(tasks, "_set_triton_ptxas_path"):
            tasks._set_triton_ptxas_path()
        return {name: os.environ.get(name) for name in _ENVIRONMENT}

    def _pool(self) -> Any:
        """Inductor's pool; None where there is none, or it has not started yet."""
        owner: Any = getattr(sys.modules.get("torch._inductor.async_compile"), "AsyncCompile", None)
        ready = getattr(owner, "_ready_future", None)
        if self._process != os.getpid() or (self._config.compile_threads or 1) <= _LEFT:
            return None
        return owner.process_pool() if ready is not None and ready.done() else None


def compile_there(name: str, source: str, config: Any, environment: dict[str, str | None]) -> None:
    """Compile one configuration of a kernel; called in a compile worker.

    :param name: the kernel's name in its module.
    :param source: the text of the module.
    """
    from torch._inductor.codecache import PyCodeCache

    for variable, value in environment.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    kernel: Any = getattr(PyCodeCache.load(source), name)
    if kernel.fn.fn is None:  # was handed to another process without its function
        PyCodeCache.cache_clear()
        kernel = getattr(PyCodeCache.load(source), name)
    kernel._precompile_config(config)
