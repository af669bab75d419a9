"""Compile ahead: threads compile loaded choices while tests run. Each adapter lists the compilations of its tuner.

A test that launches a kernel waits if a thread is compiling the kernel. If no thread has begun the compilation, or the
compilation failed, the test compiles the kernel itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pytest_autotune import devices
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.wording import describe_count
from pytest_autotune.run.reporter import Reporter
from pytest_autotune.run.result import RunResult, Section
from pytest_autotune.run.session import Job, Mode
from pytest_autotune.tuners.shared.compile_pool import CompilePool
from pytest_autotune.workers.events import Event
from pytest_autotune.workers.locks import in_distributed_run

#: The kind of the event with the compilations of a process.
COMPILED = "compiled ahead"
#: The number was chosen, and not compared with others. Triton's compiler holds Python's lock for 15 % of its time, so
#: seven threads can use the whole lock, and the tests need it, too. In a search, in which no test runs meanwhile, more
#: threads still help: on an H200, compiling 48 candidates took 12 s in one thread, 4.0 s in four and 2.5 s in sixteen.
MOST_THREADS = 8


class CompileAhead(Mode):
    """The compilations of one process."""

    name = "compile_ahead"
    needs_loaded = True

    def __init__(self) -> None:
        #: The threads; None before they begin and after they have ended.
        self._pool: CompilePool | None = None
        #: The duration of each compilation.
        self._seconds: list[float] = []
        #: The error of each compilation that failed.
        self._failures: list[str] = []

    def begin_tests(
        self, reporter: Reporter, folder: Path | None, processes: int, jobs: Callable[[], Sequence[Job]]
    ) -> None:
        """Begin the compilations in threads, unless every core is needed for tests. Parameters: see :class:`Mode`."""
        if reporter.index is None or folder is None:
            # No choice is loaded, or there is no place for the locks that keep a test from compiling the same kernel.
            return
        if in_distributed_run():
            # The ranks of a distributed job take no locks.
            return
        # One core of each process is for its tests.
        spare_cores = devices.count_usable_cores() // processes - 1
        if spare_cores < 1:
            return
        compilations = jobs()
        if not compilations:
            return
        reporter.coordinator.compile_in(folder)
        self._pool = CompilePool(min(spare_cores, MOST_THREADS, len(compilations)))
        for compilation in compilations:
            self._pool.submit(self._compile, compilation)

    def _compile(self, job: Job) -> None:
        """Compile one kernel in a thread, and note the time or the error."""
        started = HostTime.perf_counter()
        try:
            if job():
                self._seconds.append(HostTime.perf_counter() - started)
        except Exception as error:  # a test that launches the kernel gets the error
            self._failures.append(f"{type(error).__name__}: {error}")

    def end(self) -> Iterable[Event]:
        """Begin no more compilations, and wait for those that have begun.

        :returns: an event with the number of compiled kernels, their seconds, and the number of failures.
        """
        if self._pool is None:
            return []
        self._pool.shutdown(cancel_futures=True)
        self._pool = None
        first_failure = ""
        if self._failures:
            first_failure = self._failures[0]
        data = {
            "kernels": len(self._seconds),
            "seconds": sum(self._seconds),
            "failed": len(self._failures),
            "reason": first_failure,
        }
        return [Event(COMPILED, data=data)]

    def build_section(self, result: RunResult) -> Section:
        """Return the section with the sums of all processes: ``12 kernels compiled before their tests in 3.4s``."""
        kernel_count = failed_count = 0
        seconds: float = 0
        reason = ""
        for event in result.collected.mode_events:
            if event.kind == COMPILED:
                kernel_count += event.data.get("kernels", 0)
                failed_count += event.data.get("failed", 0)
                seconds += event.data.get("seconds", 0)
                reason = reason or event.data.get("reason", "")
        notes: tuple[str, ...] = ()
        if kernel_count:
            notes = (f"{describe_count(kernel_count, 'kernel')} compiled before their tests in {seconds:.1f}s",)
        data = {"kernels": kernel_count, "seconds": round(seconds, 3), "failed": failed_count, "reason": reason}
        return Section(self.name, self.typed_value, notes=notes, data={"compiled_ahead": data})


def make(compile_ahead: str) -> CompileAhead | None:
    """Make the mode from its option."""
    if compile_ahead == "off":
        return None
    return CompileAhead()
