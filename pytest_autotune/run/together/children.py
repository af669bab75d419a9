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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

#: So long may one job take, all of them, and the end of those that are told to end, in seconds.
JOB_S, ALL_S, END_S = 60.0, 900.0, 3.0
#: So much more memory than the test process may one of them use, in bytes.
MEMORY = 8 << 30
#: So much has to be there for each, in bytes.
FREE_MEMORY = 1 << 30
#: A pipe holds the numbers of so many jobs.
MOST_JOBS = 10_000
_POLL_S = 0.05
#: Tests come first.
NICE = 5
#: Idle cores are counted over so many seconds, and what is missing to a whole one may be so much less.
SAMPLE_S, IDLE_ENOUGH = 0.2, 0.3
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Of the clock of another process, whose number is in the other bits: what the scheduler has counted.
_CPUCLOCK_SCHED = 2
_OWN_SIGNALS = ("SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGPROF", "SIGVTALRM", "SIGABRT")


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
    wait: bool = False,
    ended: Callable[[int, int], object] = lambda process, code: None,
    job_s: float | None = None,
    all_s: float | None = None,
    nice: int = NICE,
    memory: int | None = None,
    temporary: str | None = None,
    stays: bool = False,
) -> Children:
    """Fork children that do some jobs.

    :param plan: called in the first child; makes the jobs, which are called in any order and in any of the children.
    :param number: how many of them work at a time.
    :param keep: descriptors that they may write to.
    :param wait: only as many of them work as there are idle cores.
    :param ended: called in the first child when another one has ended, with its number and how it did: the exit
        status, or the negative number of the signal that killed it.
    :param job_s: how long one job may take, in seconds; None: :data:`JOB_S`.
    :param all_s: how long all of them may take; None: :data:`ALL_S`.
    :param nice: how much other processes come first, as ``nice`` has it.
    :param memory: how much more than the test process one of them may use, in bytes; None: :data:`MEMORY`.
    :param temporary: a folder that goes with them, also where the test process is killed.
    :param stays: no test runs until they are stopped: a child of the test process may wait for all of them, so that
        none is left to the first process of a container, which may wait for nobody.
    :raises OSError: when there can be none.
    """
    job_s, all_s = JOB_S if job_s is None else job_s, ALL_S if all_s is None else all_s
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
                _adopt_orphans()
            if os.fork() == 0:
                os.setsid()  # who waits for all is not ended with them
                os.close(stop_write)
                kept = {*keep, stop_read, alive_write}
                if stays:
                    _end_with_parent()  # it may hang before it listens
                bound = partial(_bound, nice, MEMORY if memory is None else memory)
                _lead(plan, number, process, stop_read, kept, wait, ended, job_s, all_s, bound, temporary)
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


def _adopt_orphans() -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


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
    wait: bool,
    ended: Callable[[int, int], object],
    job_s: float,
    all_s: float,
    bound: Callable[[], None],
    temporary: str | None,
) -> None:
    """Do everything that the first child does."""
    _adopt_orphans()  # what a worker that was killed had started
    _leave_alone_what_is_open(keep)
    # Not before: what it opens is to stay open.
    threading.Thread(target=_end_with, args=(process, stop, all_s, temporary), daemon=True).start()
    bound()
    cores = IdleCores() if wait else None
    jobs = list(plan())[:MOST_JOBS]
    _Workers(jobs, number, cores, ended, job_s).work()
    _remove(temporary)


def _remove(temporary: str | None) -> None:
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)


def _end_with(process: int, stop: int, all_s: float, temporary: str | None) -> None:
    """End all of this group when told to, when the test process ends, or after a time."""
    waited_for = [stop]
    with suppress(OSError, AttributeError):
        waited_for.append(os.pidfd_open(process))
    give_up_at = time.monotonic() + all_s
    while time.monotonic() < give_up_at and not _readable(waited_for, 1.0):
        if not is_alive(process):
            break
    _remove(temporary)
    os.killpg(0, signal.SIGKILL)


def processor_s(process: int) -> float | None:
    """The processor time of a process and of those that its main thread has started; None where it cannot be told."""
    with suppress(OSError, ValueError):
        started = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
        used = [time.clock_gettime(~process << 3 | _CPUCLOCK_SCHED), *map(processor_s, map(int, started))]
        return None if None in used else sum(filter(None, used))
    return None


def is_alive(process: int) -> bool:
    """Whether a process runs: one that has ended and is not waited for does not."""
    try:
        os.kill(process, 0)
    except OSError:
        return False
    with suppress(OSError, IndexError):
        state = (
            Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
        )
        return state not in ("Z", "X")
    return True


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


def _bound(nice: int, memory: int) -> None:
    """Take no more than what is left, and be the first to go."""
    sys.settrace(None)
    sys.setprofile(None)
    gc.disable()  # it would copy the memory that is shared with the test process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = pages * mmap.PAGESIZE + memory
        if hard == resource.RLIM_INFINITY or limit < hard:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with suppress(OSError):
        os.nice(nice)


class IdleCores:
    """How many cores that this process may run on have been idle lately; it counts as idle what it used itself.

    :param stat: where the kernel says what its cores have done.
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._last = self._sample()

    def now(self) -> float | None:
        """Since it was last asked; none where that is too early to know, and None where the kernel does not say."""
        last = self._last
        if last is not None and time.monotonic() - last[0] < SAMPLE_S:
            return 0.0
        self._last = now = self._sample()
        if now is None or last is None:
            return None
        seconds = now[0] - last[0]
        all_s, idle_s, own_s = (now[number] - last[number] for number in (1, 2, 3))
        if all_s < seconds / 2:  # a sandbox that has no such counters
            return None
        return (idle_s + own_s) / seconds

    def _sample(self) -> tuple[float, float, float, float] | None:
        """The time, what the cores have done in all, how much of it was nothing, and what this process has used."""
        with suppress(OSError, ValueError):
            own = os.times()
            mine = os.sched_getaffinity(0)
            total = idle = 0
            for line in self._stat.read_text(encoding="ascii").splitlines():
                name, _, numbers = line.partition(" ")
                if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in mine:
                    # user, nice, system, idle, waiting for a disk, interrupts, soft ones, stolen; guests are in user
                    ticks = list(map(int, numbers.split()[:8]))
                    total += sum(ticks)
                    idle += sum(ticks[3:5])
            per_second = os.sysconf("SC_CLK_TCK")
            return time.monotonic(), total / per_second, idle / per_second, own.user + own.system
        return None


class _Workers:
    """Forks of the first child that take jobs until there are none.

    :param number: how many at a time.
    :param cores: says how many are idle; None where that does not matter.
    :param ended: see :func:`start`.
    :param job_s: see :func:`start`.
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
        if status:  # what it did has killed it; another one goes on with the rest
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
            _end_with_parent()
            while os.getppid() == leader and (job := os.read(self._queue, 4)):
                struct.pack_into("d", self._begun, 8 * slot, time.monotonic())
                with suppress(Exception):
                    self._jobs[struct.unpack("i", job)[0]]()
                struct.pack_into("d", self._begun, 8 * slot, 0.0)
        finally:
            os._exit(0)


def number_of(cores: int, processes: int, index: int, free: int | None = None) -> int:
    """How many children one of several processes may have: what is left of the cores, and of the memory, is shared.

    :param cores: of this machine.
    :param processes: how many share it.
    :param index: of this one among them, from 0.
    :param free: memory in bytes; None: what is free now.
    """
    free = free_memory() if free is None else free
    spare = min(cores - processes, free // FREE_MEMORY)
    return max(spare // processes + (index < spare % processes), 0) if spare > 0 else 0


def cores(affinity: int, quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores that this process may use: a container may have less time of them than there are.

    :param affinity: those that it may run on.
    :param quota: where the time of a container stands, ``MICROSECONDS PERIOD``.
    """
    with suppress(OSError, ValueError, ZeroDivisionError):
        time_us, period_us = map(int, quota.read_text(encoding="ascii").split())
        return max(min(affinity, time_us // period_us), 1)
    return affinity


def free_memory() -> int:
    """The memory that this process may still use, in bytes."""
    found = [1 << 40]
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        meminfo: Mapping[str, str] = dict(line.split(":", 1) for line in lines if ":" in line)
        found.append(int(meminfo["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, ValueError):  # of a container
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        found.append(max(limit - used, 0))
    return min(found)
