"""Work that forked children of a process do beside its tests, on cores that are idle.

The process forks once, and never waits for what comes of it. What it forks leads the others: it makes the list of jobs,
forks workers that take them, and ends those that hang. It is no child of the test process, in which ``os.wait()`` is
the tests' own, unless no test runs meanwhile, and no member of its session: Ctrl-C does not reach it. All of them end
when they are told to, when the test process ends, however it does, and after a time at the latest. They share no
descriptor with it: what they write goes nowhere, and what is locked there is not locked by them.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import resource
import select
import shutil
import signal
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_autotune.run.together.machine import IdleCores, is_alive

#: So long may the end of those take that are told to end, in seconds.
END_S = 3.0
#: A pipe holds the numbers of so many jobs.
MOST_JOBS = 10_000
_POLL_S = 0.05
#: What is missing to a whole idle core may be so much.
IDLE_ENOUGH = 0.3
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_OWN_SIGNALS = ("SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGPROF", "SIGVTALRM", "SIGABRT")


@dataclass(frozen=True)
class Bounds:
    """What children may take.

    :param job_s: how long one job may take, in seconds.
    :param all_s: how long all of them may take.
    :param nice: how much other processes come first, as ``nice`` has it; by default tests do.
    :param memory: how much more than the test process one of them may use, in bytes.
    :param temporary: a folder that goes with them, also where the test process is killed.
    """

    job_s: float = 60.0
    all_s: float = 900.0
    nice: int = 5
    memory: int = 8 << 30
    temporary: str | None = None


class Children:
    """The children of this process; made by :func:`start`."""

    def __init__(self, stop: int, alive: int, child: int | None = None) -> None:
        self._stop = stop
        self._alive = alive
        self._child = child
        self._process = os.getpid()
        self._is_open = True

    @property
    def is_over(self) -> bool:
        """Whether all of them have ended."""
        return not self._is_open or bool(_readable([self._alive], 0))

    def tell_to_end(self) -> None:
        """Have them end, without a wait; :meth:`stop` is to follow."""
        if self._process == os.getpid() and not self.is_over:
            with suppress(OSError):
                os.write(self._stop, b".")

    def stop(self) -> None:
        """End them, and wait until they have ended, or :data:`END_S`; in a forked child of a test nothing is done."""
        if self._process != os.getpid() or not self._is_open:
            return
        self.tell_to_end()
        self._is_open = False
        have_ended = _readable([self._alive], END_S)
        for descriptor in (self._stop, self._alive):
            with suppress(OSError):
                os.close(descriptor)
        if self._child is not None:
            _reap(self._child, END_S if have_ended else 0.0)


def start(
    plan: Callable[[], Sequence[Callable[[], object]]],
    number: int,
    keep: Collection[int] = (),
    *,
    bounds: Bounds = Bounds(),
    wait: bool = False,
    ended: Callable[[int, int], object] = lambda process, code: None,
    stays: bool = False,
) -> Children:
    """Fork children that do some jobs.

    :param plan: called in the first child; makes the jobs, which are called in any order and in any of the children.
    :param number: how many of them work at a time.
    :param keep: descriptors that they may write to.
    :param bounds: what they may take.
    :param wait: only as many of them work as there are idle cores.
    :param ended: called in the first child when another one has ended, with its number and how it did: the exit
        status, or the negative number of the signal that killed it.
    :param stays: no test runs until they are stopped: a child of the test process may wait for all of them, so that
        none is left to the first process of a container, which may wait for nobody.
    :raises OSError: when there can be none.
    """
    process = os.getpid()
    with ExitStack() as undo:
        stop_read, stop_write = pipe(undo)
        alive_read, alive_write = pipe(undo)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns where there are threads: theirs are not needed here
            child = os.fork()
        undo.pop_all()
    if child == 0:
        try:
            warnings.simplefilter("ignore")  # for all that are forked here; some libraries warn of it, too
            os.setsid()
            for name in _OWN_SIGNALS:
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if stays:
                _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            if os.fork() == 0:
                os.setsid()  # who waits for all is not ended with them
                os.close(stop_write)
                kept = {*keep, stop_read, alive_write}
                if stays:
                    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it may hang before it listens
                _lead(plan, number, process, stop_read, kept, bounds, wait, ended)
            elif stays:
                _leave_alone_what_is_open(())
                with suppress(ChildProcessError):
                    while True:
                        os.wait()
        finally:
            os._exit(0)
    os.close(stop_read)
    os.close(alive_write)
    if stays:
        return Children(stop_write, alive_read, child)
    _reap(child)
    return Children(stop_write, alive_read)


def pipe(undo: ExitStack) -> tuple[int, int]:
    """A pipe whose two ends ``undo`` closes."""
    ends = os.pipe()
    for end in ends:
        undo.callback(os.close, end)
    return ends


def _prctl(what: int, value: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(what, int(value))


def _reap(child: int, patience_s: float = END_S) -> None:
    """Wait for a child that only forks, and waits for what it has forked; one that hangs is killed."""
    give_up_at = time.monotonic() + patience_s
    with suppress(ChildProcessError):  # a handler of the test process has done it
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() >= give_up_at:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.001)


def _lead(
    plan: Callable[[], Sequence[Callable[[], object]]],
    number: int,
    process: int,
    stop: int,
    keep: Collection[int],
    bounds: Bounds,
    wait: bool,
    ended: Callable[[int, int], object],
) -> None:
    """Do everything that the first child does."""
    _leave_alone_what_is_open(keep)
    # Not before: what it opens is to stay open.
    threading.Thread(target=_end_with, args=(process, stop, bounds), daemon=True).start()
    _bound(bounds)
    cores = IdleCores() if wait else None
    jobs = list(plan())[:MOST_JOBS]
    _Workers(jobs, number, cores, ended, bounds.job_s).work()
    _end_group(bounds)


def _end_with(process: int, stop: int, bounds: Bounds) -> None:
    """End all of this group when told to, when the test process ends, or after a time."""
    waited_for = [stop]
    with suppress(OSError, AttributeError):
        waited_for.append(os.pidfd_open(process))
    give_up_at = time.monotonic() + bounds.all_s
    while time.monotonic() < give_up_at and not _readable(waited_for, 1.0):
        if not is_alive(process):
            break
    _end_group(bounds)


def _end_group(bounds: Bounds) -> None:
    """End all of this group: what a worker that was killed had started, too."""
    if bounds.temporary is not None:
        shutil.rmtree(bounds.temporary, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _readable(descriptors: Sequence[int], timeout_s: float) -> list[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return [descriptor for descriptor, _ in poll.poll(timeout_s * 1000)]


def _leave_alone_what_is_open(keep: Collection[int]) -> None:
    """Let all that is open lead nowhere. It stays open, so that nothing else gets a number that something writes to."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor not in keep and descriptor != nowhere:
            with suppress(OSError):
                os.dup2(nowhere, descriptor, inheritable=descriptor < 3)
    sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115


def _bound(bounds: Bounds) -> None:
    """Take no more than what is left, and be the first to go."""
    sys.settrace(None)
    sys.setprofile(None)
    gc.disable()  # it would copy the memory that is shared with the test process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = pages * mmap.PAGESIZE + bounds.memory
        if hard == resource.RLIM_INFINITY or limit < hard:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with suppress(OSError):
        os.nice(bounds.nice)


class _Workers:
    """Forks of the first child that take jobs until there are none.

    :param number: how many at a time.
    :param cores: says how many are idle; None where that does not matter.
    :param ended: see :func:`start`.
    :param job_s: how long one job may take, in seconds.
    """

    def __init__(
        self,
        jobs: Sequence[Callable[[], object]],
        number: int,
        cores: IdleCores | None,
        ended: Callable[[int, int], object],
        job_s: float,
    ) -> None:
        self._jobs = jobs
        self._job_s = job_s
        self._number = min(number, len(jobs))
        self._cores = cores
        self._told = ended
        self._begun = mmap.mmap(-1, 8 * max(self._number, 1))
        self._queue, put = os.pipe()
        os.set_blocking(put, False)  # a user with many pipes gets small ones: what is not in it is not done
        os.write(put, struct.pack(f"{len(jobs)}i", *range(len(jobs))))
        os.close(put)
        self._slots: dict[int, int] = {}
        self._free = list(range(self._number))

    def work(self) -> None:
        """Have all jobs done."""
        while self._slots or self._free:
            for _ in range(self._wanted()):
                self._fork(self._free.pop(0))
            self._end_what_hangs()
            time.sleep(_POLL_S)
            while self._slots and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._ended(*ended)

    def _wanted(self) -> int:
        """How many more are to be forked now."""
        if self._cores is None or not self._free:
            return len(self._free)
        idle = self._cores.now()
        if idle is None:
            self._cores = None
            return len(self._free)
        return min(int(idle + IDLE_ENOUGH), len(self._free))

    def _ended(self, process: int, status: int) -> None:
        slot = self._slots.pop(process, None)
        if slot is None:
            return
        self._told(process, os.waitstatus_to_exitcode(status))
        if status or struct.unpack_from("d", self._begun, 8 * slot)[0]:  # a job ended it; another one does the rest
            self._fork(slot)
        else:  # there are no more jobs
            self._free.clear()

    def _end_what_hangs(self) -> None:
        for worker, slot in self._slots.items():
            begun = struct.unpack_from("d", self._begun, 8 * slot)[0]
            if begun and time.monotonic() - begun > self._job_s:
                os.kill(worker, signal.SIGKILL)
                struct.pack_into("d", self._begun, 8 * slot, 0.0)

    def _fork(self, slot: int) -> None:
        leader = os.getpid()
        struct.pack_into("d", self._begun, 8 * slot, 0.0)
        process = os.fork()
        if process:
            self._slots[process] = slot
            return
        try:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            while os.getppid() == leader and (job := os.read(self._queue, 4)):
                struct.pack_into("d", self._begun, 8 * slot, time.monotonic())
                with suppress(Exception):
                    self._jobs[struct.unpack("i", job)[0]]()
                struct.pack_into("d", self._begun, 8 * slot, 0.0)
        finally:
            os._exit(0)
