"""Compiling the configurations of a hand-written tuner, ahead of measuring them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, as_completed, wait
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_autotune.tuners.function.space import Configuration
from pytest_autotune.tuners.shared.compile_pool import CompilePool

#: A configuration, and what is made of it; None where nothing is compiled.
Compiled = tuple[Configuration, Future[object] | None]


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


@contextmanager
def compiler(
    compile: Callable[..., object],
    how: Compiling,
    workers: int,
    overlap: bool,
    begin_thread: Callable[[], object],
) -> Iterator[Callable[[Iterable[Configuration]], Iterator[Compiled]]]:
    """A function that compiles configurations, for one search; each comes back as soon as it is done, or failed.

    :param compile: the caller's callback.
    :param overlap: see :class:`Compiling`; otherwise all come back when all are done.
    :param begin_thread: see :class:`CompilePool`.
    :raises TypeError: when the callback cannot be sent to another process.
    """
    if how.pool == "process":
        try:
            pickle.dumps(compile)
        except Exception as error:
            message = f"compile= cannot be sent to another process ({error}): define it in a module, or use threads"
            raise TypeError(message) from None
    with CompilePool(workers, begin_thread, in_processes=how.pool == "process") as pool:

        def compiled(configurations: Iterable[Configuration]) -> Iterator[Compiled]:
            futures = {pool.submit(compile, one.config): one for one in configurations}
            if not overlap:
                wait(futures)
                yield from ((configuration, future) for future, configuration in futures.items())
                return
            for future in as_completed(futures):
                yield futures[future], future

        yield compiled
