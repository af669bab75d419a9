"""What is left to compile of a search, done side by side: in forked children, or in threads where none can be had.

Triton hands what is not in its cache on disk to an executor. All of it is collected first: most searches of a run that
repeats another one have nothing to compile, and the order in which it is compiled matters.

A compiler that crashes takes its process with it. A candidate that has ended two children, the second of which did
nothing else, is not compiled in this process: it fails, and the others go on.
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
from pytest_autotune.run.together.children import Bounds
from pytest_autotune.run.together.forked_jobs import MOST, Ended, ForkedJobs, thread_may_fork
from pytest_autotune.run.together.machine import FREE_MEMORY, free_memory
from pytest_autotune.run.together.shared_work import Work
from pytest_autotune.tuners.shared.candidates import clear_tracebacks
from pytest_autotune.tuners.shared.compile_pool import CompilePool
from pytest_autotune.tuners.triton.internals import crashes, knobs

#: After so many forks that hang in a run, threads compile: whatever has the first one hang is gone in the next one.
MOST_HUNG = 2


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

    :param work: whose pieces are the candidates.
    :param tries: called before each job, with its number from 1 and how many there are.
    :param ending: where it is waited for children that end; None: at once.
    :param helping: the search is another worker's.
    """

    def __init__(
        self,
        run: TuningRun,
        work: Work,
        tries: Callable[[int, int], object],
        ending: ExitStack | None = None,
        *,
        helping: bool = False,
    ) -> None:
        self._run = run
        self._work = work
        self._tries = tries
        self._ending = ending
        self._helping = helping
        self._jobs: dict[int, _Job] = {}
        self._begun: set[int] = set()
        #: What other workers have taken.
        self._others: list[int] = []
        #: The candidate that is submitted next, by its position.
        self.next = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See :meth:`concurrent.futures.Executor.submit`."""
        if self.next in self._jobs:
            self._jobs[self.next].run()  # what a hook of the candidate asked for comes before it
        job = self._jobs[self.next] = _Job(partial(function, *args, **kwargs))
        return job.result

    def compile(self, weight: Callable[[int], float]) -> list[int]:
        """Compile what was submitted, the heaviest first: begun last, it would be waited for alone.

        :param weight: of a candidate by its position.
        :returns: the candidates that other workers have taken.
        """
        run = self._run
        self._jobs = dict(sorted(self._jobs.items(), key=lambda job: weight(job[0]), reverse=True))
        while (left := self._left()) and self._may_fork(left):
            most = min(len(left), run.policy.cores, free_memory() // FREE_MEMORY)
            cores, hung = run.cores(most, helping=self._helping), run.hung_children
            if not cores:
                if self._helping:
                    return self._others + list(left)
                break
            died = self._in_children(left, cores, most)
            for number, code in died.items():
                self._try_again(number, code)
            if run.hung_children == hung:
                break
        self._in_threads()
        return self._others

    def _left(self) -> dict[int, _Job]:
        return {number: job for number, job in self._jobs.items() if not job.result.done()}

    def _may_fork(self, left: dict[int, _Job]) -> bool:
        is_possible = len(left) <= MOST and thread_may_fork() and knobs.reads_what_others_compile()
        return is_possible and self._run.hung_children < MOST_HUNG

    def _in_children(
        self, jobs: dict[int, _Job], cores: list[ExitStack], most: int, memory: int = Bounds.memory
    ) -> dict[int, int]:
        """Compile in children what they can; what is lost there stays open.

        :returns: which jobs have ended their child, and how it ended.
        """
        run = self._run
        compiles = {number: job.compile for number, job in jobs.items()}
        more = partial(run.cores, helping=True)
        with ExitStack() as held:
            try:
                for core in cores:
                    held.callback(core.close)
                forked = held.enter_context(
                    ForkedJobs(compiles, self._work.take, more, most, memory, ending=self._ending)
                )
                forked.fork(cores)
            except OSError:  # no descriptor, or no process, is left
                return {}
            for number, ended in forked.ended(self._tell):
                if ended is Ended.DONE:
                    jobs[number].run()  # from the disk
                elif ended in (Ended.FAILED, Ended.ELSEWHERE):
                    jobs[number].result.set_exception(NotCompiled())
                if ended is Ended.ELSEWHERE:
                    self._others.append(number)
            if forked.hung:
                run.hung_children += 1
                if run.hung_children == MOST_HUNG:
                    run.note("triton: children that compile candidates hung twice; threads compile from then on")
        return forked.died

    def _try_again(self, number: int, code: int) -> None:
        """Compile what has ended a child in another one that does nothing else: it may have been chance, or memory.

        :param code: how the child ended.
        """
        job = self._jobs[number]
        cores = self._run.cores(1, helping=self._helping) or [ExitStack()]
        died = self._in_children({number: job}, cores, 1, memory=max(free_memory(), Bounds.memory))
        if not job.result.done():
            job.result.set_result(crashes.crashed(died.get(number, code)))

    def _in_threads(self) -> None:
        left, run = self._left(), self._run
        with ExitStack() as stack:
            pool = stack.enter_context(CompilePool(run.policy.cores)) if left else None
            for number, job in left.items():
                with ExitStack() as held:
                    held.enter_context(run.core())
                    if pool is None or not held.enter_context(self._work.take(number)):
                        self._others.append(number)
                        job.result.set_exception(NotCompiled())
                        continue
                    self._tell(number)
                    pool.held_for_next = held.pop_all()
                    held.push(pool.held_for_next)
                    pool.submit(job.run)

    def _tell(self, number: int) -> None:
        if number not in self._begun:  # it may be begun again
            self._begun.add(number)
            self._tries(len(self._begun), len(self._jobs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See :meth:`concurrent.futures.Executor.shutdown`."""
        for job in self._jobs.values():
            if not job.result.done():
                job.result.set_exception(NotCompiled())

    def forget_frames(self) -> None:
        """Let go of where errors were raised, after the last that asks for a result: that holds the result, a circle.

        In such frames are the tensors of the call, which would stay until the garbage collector comes.
        """
        for job in self._jobs.values():
            error = job.result.exception() if job.result.done() else None
            if error is not None:
                clear_tracebacks(error)


def weight_of(config: Any) -> float:
    """How long a candidate takes to compile, beside others: what one thread of it holds, about.

    Of 48 tiles of a matmul the slowest took nine times as long as the fastest; by this number they are nearly in order.
    """
    sizes = [value for value in config.kwargs.values() if isinstance(value, int) and value > 1]
    return math.prod(sizes) / max(getattr(config, "num_warps", None) or 1, 1)
