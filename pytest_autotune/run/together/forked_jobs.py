"""Jobs done in children that are forked for them, for what they leave on disk.

A compiler written in Python holds the interpreter's lock most of the time, so that threads of one process compile
little more than one candidate at a time. A forked child has all that the job needs: nothing is sent to it but a number,
and nothing comes back but how the job ended.
"""

from __future__ import annotations

import math
import os
import select
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from enum import IntEnum
from functools import partial
from types import TracebackType

from pytest_autotune.run.together import children, machine
from pytest_autotune.run.together.folders import for_temporary_files

#: So long may one job take, in seconds.
JOB_S = 120.0
#: A child that waits for a lock of another thread, copied when it was forked, waits for ever and at once. One that has
#: worked on a job for so long, and uses no processor time for as long again, hangs; and so do children of which none
#: has begun a job after twice as long, in seconds.
QUIET_S = 5.0
#: More children are forked on cores that have become free, and it is seen whether one hangs, so often, in seconds.
LOOK_S = 0.25
#: A pipe holds the numbers of so many jobs.
MOST = 10_000
#: So many children at most take the place of those that a job has ended.
_LIVES = 1000
_JOB = struct.Struct("=i")
#: Which job, what became of it, and the process that has begun it; or how a child has ended, that it has, and which.
_TOLD = struct.Struct("=iii")
_BEGUN, _OVER = -1, -2


class Ended(IntEnum):
    """How a job ended."""

    #: What it makes is on disk.
    DONE = 0
    #: It raised an error.
    FAILED = 1
    #: Another process does it, or has done it.
    ELSEWHERE = 2
    #: No child did it: one hung, or there was none left.
    LOST = 3
    #: It ended its child.
    DIED = 4


class ForkedJobs:
    """Children of one process that do its jobs; they end when it is left.

    :param jobs: by number, in the order in which they are begun; at most :data:`MOST`.
    :param take: entered in the child around each job; yields False where another process does it.
    :param cores: takes that many cores which nobody compiles on, or fewer; each is freed by closing it.
    :param most: children at a time.
    :param memory: as of :class:`children.Bounds`.
    :param ending: where it is waited for children that end; None: where this is left.
    """

    def __init__(
        self,
        jobs: Mapping[int, Callable[[], object]],
        take: Callable[[int], AbstractContextManager[bool]],
        cores: Callable[[int], list[ExitStack]],
        most: int,
        memory: int = children.Bounds.memory,
        ending: ExitStack | None = None,
    ) -> None:
        self._most = most
        self._jobs = jobs
        self._take = take
        self._cores = cores
        # The test waits for them.
        self._bounds = children.Bounds(job_s=math.inf, all_s=math.inf, nice=0, memory=memory)
        self._ending = ending
        self._held: list[ExitStack] = []
        self._families: list[children.Children] = []
        self._waiting = dict.fromkeys(jobs)
        #: job -> the process that has begun it, and when.
        self._begun: dict[int, tuple[int, float]] = {}
        #: process -> the processor time that it had used when that was last seen to change, and when that was.
        self._used: dict[int, tuple[float | None, float]] = {}
        #: When children were forked, or said something, last.
        self._heard_at = 0.0
        self._ends = ExitStack()
        #: Whether one of them hung.
        self.hung = False
        #: job -> how the child ended that it ended: the exit status, or the negative number of a signal.
        self.died: dict[int, int] = {}

    def __enter__(self) -> ForkedJobs:
        with ExitStack() as undo:
            self._told, self._tell = children.pipe(undo)
            self._queue, put = children.pipe(undo)
            os.set_blocking(put, False)  # a user with many pipes gets small ones: what is not in it is lost
            os.write(put, b"".join(map(_JOB.pack, self._jobs)))
            undo.pop_all()
            os.close(put)
            for end in (self._queue, self._told, self._tell):
                undo.callback(os.close, end)
            self._ends = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for family in self._families:
            family.tell_to_end()
        while self._held:
            self._held.pop().close()
        for family in self._families:
            self._ends.callback(family.stop)
        if self._ending is None:
            self._ends.close()
        else:
            self._ending.push(self._ends)

    def fork(self, cores: list[ExitStack]) -> None:
        """Have so many more children as cores, which are held while there is something to do on them.

        :raises OSError: when there can be none; the cores are free then.
        """
        with ExitStack() as undo:
            for core in cores:
                undo.callback(core.close)
            temporary = tempfile.mkdtemp(prefix="pytest-autotune-", dir=for_temporary_files())
            self._ends.callback(shutil.rmtree, temporary, ignore_errors=True)
            lives = min(len(cores) + len(self._waiting), _LIVES)
            served = [partial(self._serve, temporary)] * lives
            self._families.append(
                children.start(
                    lambda: served,
                    len(cores),
                    [self._queue, self._tell],
                    ended=lambda process, code: os.write(self._tell, _TOLD.pack(code, _OVER, process)),
                    bounds=replace(self._bounds, temporary=temporary),
                    stays=True,
                )
            )
            undo.pop_all()
        self._held += cores
        self._heard_at = time.monotonic()

    def _serve(self, temporary: str) -> None:
        """In a child: do jobs until there are none."""
        tempfile.tempdir = os.environ["TMPDIR"] = temporary  # compilers that are ended leave files there
        while record := os.read(self._queue, _JOB.size):
            number = _JOB.unpack(record)[0]
            ended = Ended.ELSEWHERE
            with self._take(number) as is_mine:
                if is_mine:
                    os.write(self._tell, _TOLD.pack(number, _BEGUN, os.getpid()))
                    try:
                        self._jobs[number]()
                        ended = Ended.DONE
                    except BaseException:  # sys.exit() and pytest.skip() do not end the child either
                        ended = Ended.FAILED
            os.write(self._tell, _TOLD.pack(number, ended, 0))

    def ended(self, begins: Callable[[int], object] = lambda number: None) -> Iterator[tuple[int, Ended]]:
        """Wait for the jobs: each with how it ended, as soon as it has.

        :param begins: called with the number of a job that a child begins.
        """
        poll = select.poll()
        poll.register(self._told, select.POLLIN)
        look_at = time.monotonic() + LOOK_S
        while self._waiting:
            if poll.poll(1000 * LOOK_S):
                self._heard_at = time.monotonic()
                for number, what, process in _TOLD.iter_unpack(os.read(self._told, 256 * _TOLD.size)):
                    if what == _BEGUN:
                        self._begun[number] = process, self._heard_at
                        begins(number)
                    elif what == _OVER:
                        for job in [job for job, (by, _) in self._begun.items() if by == process]:
                            self.died[job] = number
                            yield job, self._end(job, Ended.DIED)
                    else:
                        yield number, self._end(number, Ended(what))
            elif all(family.is_over for family in self._families):
                break
            self._free_cores()
            if time.monotonic() >= look_at:
                if self._one_hangs():
                    break
                self._grow()
                look_at = time.monotonic() + LOOK_S
        yield from [(number, self._end(number, Ended.LOST)) for number in list(self._waiting)]

    def _end(self, number: int, ended: Ended) -> Ended:
        self._waiting.pop(number, None)
        self._begun.pop(number, None)
        return ended

    def _one_hangs(self) -> bool:
        now = time.monotonic()
        self.hung = not self._begun and now - self._heard_at > 2 * QUIET_S
        for process, begun_at in self._begun.values():
            if now - begun_at > QUIET_S:
                used = machine.processor_s(process)
                last, changed_at = self._used.get(process, (None, now))
                if used is None or used != last:
                    changed_at = now
                self._used[process] = used, changed_at
                self.hung |= now - changed_at > QUIET_S or now - begun_at > JOB_S
        return self.hung

    def _free_cores(self) -> None:
        """Let others have the cores that nothing is left to do on."""
        while len(self._held) > len(self._waiting):
            self._held.pop().close()

    def _grow(self) -> None:
        wanted = min(len(self._waiting), self._most) - max(len(self._held), len(self._begun))
        if wanted > 0 and (cores := self._cores(wanted)):
            with suppress(OSError):
                self.fork(cores)


def thread_may_fork() -> bool:
    """Whether children can do jobs of this thread.

    Another thread may hold a lock that the jobs need, which a child would wait for in vain. So tests that run side by
    side in threads do not fork. The main thread does, and one that Python did not start: autograd has such for backward
    passes, while the test waits.
    """
    thread = threading.current_thread()
    alone = thread is threading.main_thread() or isinstance(thread, threading._DummyThread)
    return alone and hasattr(os, "fork") and os.path.isdir("/proc/self/fd")
