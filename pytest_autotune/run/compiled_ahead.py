"""What was compiled ahead of the tests in a run, and what that saved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class CompiledAhead:
    """What one process reports of it.

    :param compiled: (name of what was compiled, seconds that it took), by the children of this process.
    :param asked: the names of what its tests asked the compiler for.
    :param waited_s: seconds that its tests waited for what was being compiled by others.
    :param skipped: why nothing was compiled ahead, where something might have been; else empty.
    """

    compiled: tuple[tuple[str, float], ...] = ()
    asked: tuple[str, ...] = ()
    waited_s: float = 0.0
    skipped: str = ""


@dataclass(frozen=True)
class Ahead:
    """What was compiled ahead in a whole run.

    :param kernels: how many.
    :param seconds: that they took in all, on several cores.
    :param used: how many of them a test asked for.
    :param saved_seconds: that tests would have compiled instead, without what they waited.
    :param skipped: why a process compiled nothing ahead, where something might have been; else empty.
    """

    kernels: int = 0
    seconds: float = 0.0
    used: int = 0
    saved_seconds: float = 0.0
    skipped: str = ""


def summed_up(processes: Iterable[CompiledAhead]) -> Ahead:
    """What the processes of a run have compiled ahead. Whatever several of them asked for, one would have compiled."""
    processes = list(processes)
    compiled = {name: seconds for process in processes for name, seconds in process.compiled}
    used = compiled.keys() & {name for process in processes for name in process.asked}
    saved = sum(sorted(compiled[name] for name in used)) - sum(sorted(process.waited_s for process in processes))
    seconds = sum(sorted(compiled.values()))
    skipped = min((process.skipped for process in processes if process.skipped), default="")
    return Ahead(len(compiled), round(seconds, 3), len(used), round(max(saved, 0.0), 3), skipped)
