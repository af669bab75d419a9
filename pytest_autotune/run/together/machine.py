"""What the kernel says of this machine and its processes: idle cores, free memory, who is alive and works."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

#: So much memory has to be there for each child, in bytes.
FREE_MEMORY = 1 << 30
#: Idle cores are counted over so many seconds.
SAMPLE_S = 0.2
#: Of the clock of another process, whose number is in the other bits: what the scheduler has counted.
_CPUCLOCK_SCHED = 2


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
