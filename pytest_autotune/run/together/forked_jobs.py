"""Jobs done in children that are forked for them, for what they leave on disk.

A compiler written in Python holds the interpreter's lock most of the time, so that threads of one process compile
little more than one candidate at a time. A forked child has all that the job needs: nothing is sent to it but a number,
and nothing comes back but how the job ended.
"""

from __future__ import annotations

import os
import select
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from enum import IntEnum
from functools import partial
from types import TracebackType

from pytest_autotune.run.together import children
from pytest_autotune.run.together.folders import for_temporary_files

#: So long may one job take, in seconds; a child that a lock of another thread was copied into hangs at once.
JOB_S = 120.0
#: More children are forked on cores that have become free, and it is seen which have died, so often, in seconds.
LOOK_S = 0.25
#: A pipe holds the numbers of so many jobs.
MOST = 10_000
#: So often another child takes the place of each.
_LIVES = 3
_JOB = struct.Struct("=i")
#: Which job, what became of it, and the process that has begun it.
_TOLD = struct.Struct("=iii")
_BEGUN = -1


class Ended(IntEnum):
    """How a job ended."""

    #: What it makes is on disk.
    DONE = 0
    #: It raised an error.
    FAILED = 1
    #: Another process does it, or has done it.
    ELSEWHERE = 2
    #: Its child died, or did not end in time.
    LOST = 3


class ForkedJobs:
    """Children of one process that do its jobs; they end when it is left.

    :param jobs: by number, in the order in which they are begun; at most :data:`MOST`.
    :param take: entered in the child around each job; yields False where another process does it.
    :param cores: takes that many cores which nobody compiles on, or fewer; each is freed by closing it.
    :param most: children at a time.
    """

    def __init__(
        self,
        jobs: Mapping[int, Callable[[], object]],
        take: Callable[[int], AbstractContextManager[bool]],
        cores: Callable[[int], list[ExitStack]],
        most: int,
    ) -> None:
        self._most = most
        self._jobs = jobs
        self._take = take
        self._cores = cores
        self._held: list[ExitStack] = []
        self._families: list[children.Children] = []
        self._waiting = dict.fromkeys(jobs)
        #: job -> the process that has begun it, and when.
        self._begun: dict[int, tuple[int, float]] = {}
        self._ends = ExitStack()
        #: Whether one of them did not end in time.
        self.hung = False

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
            family.stop()
        while self._held:
            self._held.pop().close()
        self._ends.close()

    def fork(self, cores: list[ExitStack]) -> None:
        """Have so many more children as cores, which are held while there is something to do on them.

        :raises OSError: when there can be none; the cores are free then.
        """
        with ExitStack() as undo:
            for core in cores:
                undo.callback(core.close)
            temporary = tempfile.mkdtemp(prefix="pytest-autotune-", dir=for_temporary_files())
            self._ends.callback(shutil.rmtree, temporary, ignore_errors=True)
            served = [partial(self._serve, temporary)] * (len(cores) * _LIVES)
            self._families.append(
                children.start(
                    lambda: served,
                    len(cores),
                    [self._queue, self._tell],
                    job_s=float("inf"),
                    all_s=float("inf"),
                    nice=0,  # the test waits for them
                    temporary=temporary,
                    stays=True,
                )
            )
            undo.pop_all()
        self._held += cores

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
                    except Exception:
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
                for number, what, process in _TOLD.iter_unpack(os.read(self._told, 256 * _TOLD.size)):
                    if what == _BEGUN:
                        self._begun[number] = process, time.monotonic()
                        begins(number)
                    else:
                        yield number, self._end(number, Ended(what))
            else:
                yield from [(lost, self._end(lost, Ended.LOST)) for lost in self._of_the_dead()]
                if all(family.is_over for family in self._families) or self._one_hangs():
                    break
            self._free_cores()
            if time.monotonic() >= look_at:
                self._grow()
                look_at = time.monotonic() + LOOK_S
        yield from [(number, self._end(number, Ended.LOST)) for number in list(self._waiting)]

    def _end(self, number: int, ended: Ended) -> Ended:
        self._waiting.pop(number, None)
        self._begun.pop(number, None)
        return ended

    def _of_the_dead(self) -> list[int]:
        return [number for number, (process, _) in self._begun.items() if not children.is_alive(process)]

    def _one_hangs(self) -> bool:
        longest = min((begun for _, begun in self._begun.values()), default=time.monotonic())
        self.hung = time.monotonic() - longest > JOB_S
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


def may_fork() -> bool:
    """Whether children can do jobs of this thread.

    Another thread may hold a lock that the jobs need, which a child would wait for in vain. So tests that run side by
    side in threads do not fork. The main thread does, and one that Python did not start: autograd has such for backward
    passes, while the test waits.
    """
    thread = threading.current_thread()
    alone = thread is threading.main_thread() or isinstance(thread, threading._DummyThread)
    return alone and hasattr(os, "fork") and os.path.isdir("/proc/self/fd")
