"""The threads in which tuners compile candidates before they measure them.

In some versions of Python, only one thread may parse at a time. From 3.11.0 to 3.11.7, and in 3.12.0 and 3.12.1, all
threads share the counter of the depth in ``ast.parse``. If Python switches threads in the middle, it raises
``SystemError: AST constructor recursion depth mismatch`` (python/cpython#106905). Compilers that are written in Python
parse, and Triton does not recover: it keeps the error, and an unfinished digest of the kernel.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def parse_one_at_a_time(version: tuple[int, ...]) -> None:
    """Let one thread parse at a time from now on, if this version of Python needs it."""
    is_needed = (3, 11) <= version < (3, 11, 8) or (3, 12) <= version < (3, 12, 2)
    if not is_needed or ast.parse.__module__ == __name__:
        return
    original, lock = ast.parse, threading.RLock()

    def parse(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return original(*args, **kwargs)

    ast.parse = parse


THREAD_NAME = "pytest-autotune-compile"


class CompilePool(ThreadPoolExecutor):
    """Threads that compile. Each job runs in a copy of the context of the thread that submits it.

    The end of the ``with`` block waits for all jobs. After an error or Ctrl-C it drops the jobs that have not begun.

    :param workers: the number of threads.
    :param begin_thread: called first in each thread. A new thread has no current device, or another one.
    """

    def __init__(self, workers: int, begin_thread: Callable[[], object] | None = None) -> None:
        parse_one_at_a_time(sys.version_info[:3])
        super().__init__(workers, THREAD_NAME, initializer=begin_thread)

    def submit(
        self, job: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Result]:
        run_in_context: Callable[..., _Result] = copy_context().run
        return super().submit(run_in_context, job, *args, **kwargs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown(wait=error is None, cancel_futures=error is not None)
