"""What is left to compile of a search, done side by side: in forked children, or in threads where none can be had.

Triton hands what is not in its cache on disk to an executor. All of it is collected first: most searches of a run that
repeats another one have nothing to compile, and the order in which it is compiled matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.together.children import FREE_MEMORY, free_memory
from pytest_autotune.run.together.forked_jobs import JOB_S, MOST, Ended, ForkedJobs, may_fork
from pytest_autotune.run.together.shared_work import Work
from pytest_autotune.tuners.shared.compile_pool import CompilePool
from pytest_autotune.tuners.triton.internals import knobs

#: Children take 0.05 s and more to begin: fewer jobs than these are as soon done in threads.
LEAST_FORKED = 3


class NotCompiled(Exception):
    """Something was not compiled by this process."""


@dataclass(frozen=True)
class _Job:
    compile: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)

    def run(self) -> None:
        try:
            self.result.set_result(self.compile())
        except Exception as error:
            self.result.set_exception(error)


class CompileJobs(Executor):
    """An executor that Triton may be handed: it keeps what it is given until it is told to compile it.

    Whoever leaves it leaves no result open.

    :param tries: called before each job, with its number from 1 and how many there are.
    """

    def __init__(self, tries: Callable[[int, int], object]) -> None:
        self._tries = tries
        self._jobs: dict[int, _Job] = {}
        self._begun: set[int] = set()
        #: The candidate that is submitted next, by its position.
        self.next = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See :meth:`concurrent.futures.Executor.submit`."""
        if self.next in self._jobs:
            self._jobs[self.next].run()  # what a hook of the candidate asked for comes before it
        job = self._jobs[self.next] = _Job(partial(function, *args, **kwargs))
        return job.result

    def compile(self, weight: Callable[[int], float], run: TuningRun, work: Work, *, helping: bool) -> list[int]:
        """Compile what was submitted, the heaviest first: begun last, it would be waited for alone.

        :param weight: of a candidate by its position.
        :param helping: the search is another worker's.
        :returns: the candidates that other workers have taken.
        """
        jobs = {number: self._jobs[number] for number in sorted(self._jobs, key=weight, reverse=True)}
        others: list[int] = []
        if LEAST_FORKED <= len(jobs) <= MOST and run.may_fork and may_fork() and knobs.reads_what_others_compile():
            most = min(len(jobs), run.policy.cores, free_memory() // FREE_MEMORY)
            cores = run.cores(most, helping=helping)
            if helping and not cores:
                return list(jobs)
            if len(cores) > 1:
                others = self._in_children(jobs, cores, most, run, work)
                jobs = {number: job for number, job in jobs.items() if not job.result.done()}
            else:
                for core in cores:
                    core.close()
        return others + self._in_threads(jobs, run, work)

    def _in_children(
        self, jobs: dict[int, _Job], cores: list[ExitStack], most: int, run: TuningRun, work: Work
    ) -> list[int]:
        """Compile in children what they can; what is lost there stays open."""
        others = []
        compiles = {number: job.compile for number, job in jobs.items()}
        with ExitStack() as held:
            try:
                for core in cores:
                    held.callback(core.close)
                forked = held.enter_context(ForkedJobs(compiles, work.take, partial(run.cores, helping=True), most))
                forked.fork(cores)
            except OSError:  # no descriptor, or no process, is left
                return []
            for number, ended in forked.ended(self._tell):
                if ended is Ended.DONE:
                    jobs[number].run()  # from the disk
                elif ended is not Ended.LOST:
                    jobs[number].result.set_exception(NotCompiled())
                if ended is Ended.ELSEWHERE:
                    others.append(number)
            if forked.hung:
                run.may_fork = False
                run.note(f"triton: a child compiled one candidate for over {JOB_S:.0f} s; threads compile from then on")
        return others

    def _in_threads(self, jobs: dict[int, _Job], run: TuningRun, work: Work) -> list[int]:
        others = []
        with ExitStack() as stack:
            pool = stack.enter_context(CompilePool(run.policy.cores)) if jobs else None
            for number, job in jobs.items():
                with ExitStack() as held:
                    held.enter_context(run.core())
                    if pool is None or not held.enter_context(work.take(number)):
                        others.append(number)
                        job.result.set_exception(NotCompiled())
                        continue
                    self._tell(number)
                    pool.held_for_next = held.pop_all()
                    held.push(pool.held_for_next)
                    pool.submit(job.run)
        return others

    def _tell(self, number: int) -> None:
        if number not in self._begun:  # a thread may begin it again
            self._begun.add(number)
            self._tries(len(self._begun), len(self._jobs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See :meth:`concurrent.futures.Executor.shutdown`."""
        for job in self._jobs.values():
            if not job.result.done():
                job.result.set_exception(NotCompiled())


def weight_of(config: Any) -> float:
    """How long a candidate takes to compile, beside others: what one thread of it holds, about.

    Of 48 tiles of a matmul the slowest took nine times as long as the fastest; by this number they are nearly in order.
    """
    sizes = [value for value in config.kwargs.values() if isinstance(value, int) and value > 1]
    return math.prod(sizes) / max(getattr(config, "num_warps", None) or 1, 1)
