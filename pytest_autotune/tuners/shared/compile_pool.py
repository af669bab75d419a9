"""The one pool in which tuners compile candidates ahead of measuring them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from pytest_autotune.tuners.shared.parsing import parsed_one_at_a_time

THREAD_NAME = "pytest-autotune-compile"


class CompilePool(Executor):
    """Threads that compile; an executor that a compiler may be handed.

    Leaving it waits for what was submitted. Leaving it by an error, or Ctrl-C, drops what has not begun.

    :param workers: how many compile at a time.
    :param begin_thread: called first in each thread: a new one has no current device, or another one.
    """

    def __init__(self, workers: int, begin_thread: Callable[[], object] | None = None) -> None:
        self._entered = ExitStack()
        self._executor = ThreadPoolExecutor(workers, THREAD_NAME, initializer=begin_thread)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See :meth:`concurrent.futures.Executor.submit`."""
        return self._executor.submit(function, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See :meth:`concurrent.futures.Executor.shutdown`."""
        self._executor.shutdown(wait, cancel_futures=cancel_futures)

    def __enter__(self) -> CompilePool:
        self._entered.enter_context(parsed_one_at_a_time())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._entered:
            if error is None:
                self.shutdown()
            else:
                self.shutdown(wait=False, cancel_futures=True)
