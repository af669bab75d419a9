"""Compiling candidates in threads or processes, ahead of measuring them."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass
from multiprocessing import get_context
from types import TracebackType

from pytest_autotune.tuners.function.space import Configuration


@dataclass(frozen=True)
class Compiling:
    """How candidates are compiled.

    :param pool: ``"thread"``, for compilers that run outside Python's lock or as programs of their own; or
        ``"process"``: then the callback, the configurations and what it returns cross by ``pickle``, and the
        callback is defined in a module that another process can import.
    :param workers: how many at a time; None: the cores, shared with the other workers of the run.
    :param overlap: measure what is compiled while the rest compiles. None: on a GPU; on a CPU the
        compilers would disturb the measurements.
    """

    pool: str = "thread"
    workers: int | None = None
    overlap: bool | None = None

    def __post_init__(self) -> None:
        if self.pool not in ("thread", "process"):
            raise ValueError(f"expected pool='thread' or 'process', not {self.pool!r}")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"expected one worker or more, not {self.workers}")


class CompilePool:
    """A pool for one search. Leaving it by an error, or Ctrl-C, drops what has not begun and ends its processes.

    :param compile: the caller's callback.
    :param begin_thread: called first in each thread: a new one has no current device, or another one.
    :raises TypeError: when the callback cannot be sent to another process.
    """

    def __init__(
        self,
        compile: Callable[..., object],
        how: Compiling,
        workers: int,
        overlap: bool,
        begin_thread: Callable[[], object],
    ) -> None:
        self._compile = compile
        self._overlap = overlap
        self._executor: Executor
        if how.pool == "thread":
            self._executor = ThreadPoolExecutor(workers, "autotune-compile", initializer=begin_thread)
            return
        try:
            pickle.dumps(compile)
        except Exception as error:
            told = f"compile= cannot be sent to another process ({error}): define it in a module, or use threads"
            raise TypeError(told) from None
        # A forked child would inherit a CUDA context that does not work there.
        context = get_context("spawn")
        self._executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupts)

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._executor.shutdown()
            return
        # Python 3.14 has terminate_workers(), which does the same.
        processes = dict(getattr(self._executor, "_processes", None) or {})
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join()

    def ahead(self, configurations: Iterable[Configuration]) -> Iterator[tuple[Configuration, Future[object]]]:
        """Compile all of these; each as soon as it is done, or failed."""
        futures = {self._executor.submit(self._compile, one.config): one for one in configurations}
        if not self._overlap:
            wait(futures)
            yield from ((configuration, future) for future, configuration in futures.items())
            return
        for future in as_completed(futures):
            yield futures[future], future


def _ignore_interrupts() -> None:
    # Ctrl-C reaches every process of a terminal; the parent ends these.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
