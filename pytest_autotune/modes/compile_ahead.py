"""Loaded choices are compiled beside the tests, in threads, as tuners say (``prepare`` of an adapter).

A test that launches what is being compiled waits for it; what has not begun, or fails, it compiles itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_autotune import devices
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.run.mode import Job, Mode
from pytest_autotune.run.reporter import Reporter
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.section import Section
from pytest_autotune.tuners.shared.compile_pool import CompilePool
from pytest_autotune.workers.events import Event
from pytest_autotune.workers.locks import in_distributed_run

#: The kind of event that tells what a process has compiled.
COMPILED = "compiled ahead"
#: More threads would only wait for Python's lock, of which Triton's compiler holds 15 %, and keep the tests from it.
MOST_THREADS = 8


class CompileAhead(Mode):
    """What one process compiles beside its tests; ``always``, whatever else runs on the machine."""

    name = "compile_ahead"
    needs_loaded = True

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        self._pool: CompilePool | None = None
        self._seconds: list[float] = []
        self._failures: list[str] = []

    def begin_tests(
        self, reporter: Reporter, folder: Path | None, processes: int, jobs: Callable[[], Sequence[Job]]
    ) -> None:
        threads = min(max(cores(devices.cpu().multiprocessors) // processes - 1, self._always), MOST_THREADS)
        if reporter.index is None or folder is None or not threads or in_distributed_run():
            return
        if not (found := jobs()):
            return
        reporter.coordinator.compile_in(folder)
        self._pool = CompilePool(min(threads, len(found)))
        for job in found:
            self._pool.submit(self._do, job)

    def _do(self, job: Job) -> None:
        started = HostTime.perf_counter()
        try:
            if job():
                self._seconds.append(HostTime.perf_counter() - started)
        except Exception as error:  # the test that launches it, if any does, gets the error
            self._failures.append(f"{type(error).__name__}: {error}")

    def end(self) -> Iterable[Event]:
        """Begin nothing any more, wait for what has begun, and say what was done."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        pool.shutdown(cancel_futures=True)
        done = {"kernels": len(self._seconds), "seconds": sum(self._seconds), "failed": len(self._failures)}
        yield Event(COMPILED, data={**done, "reason": next(iter(self._failures), "")})

    def build_section(self, result: RunResult) -> Section:
        reported = [event.data for event in result.collected.mode_events if event.kind == COMPILED]
        done = {name: sum(one.get(name, 0) for one in reported) for name in ("kernels", "seconds", "failed")}
        reason = next(filter(None, (one.get("reason") for one in reported)), "")
        kernels = describe_count(done["kernels"], "kernel")
        return Section(
            self.name,
            str(self),
            notes=(f"{kernels} compiled ahead in {done['seconds']:.1f}s",) if done["kernels"] else (),
            data={"compiled_ahead": {**done, "seconds": round(done["seconds"], 3), "reason": reason}},
        )


def make(compile_ahead: str) -> CompileAhead | None:
    """The mode, by its option."""
    return None if compile_ahead == "off" else CompileAhead(always=compile_ahead == "always")


def cores(affinity: int, quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores that this process may use: of those that it may run on, a container may have less time than there is.

    :param quota: where that stands, ``MICROSECONDS PERIOD``.
    """
    with suppress(OSError, ValueError, ZeroDivisionError):
        time_us, period_us = map(int, quota.read_text(encoding="ascii").split())
        return max(min(affinity, time_us // period_us), 1)
    return affinity
