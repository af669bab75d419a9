"""What searches leave behind, said alike for every tuner."""

from __future__ import annotations

from pytest_autotune.cache.model import Problem
from pytest_autotune.run.door import TuningRun

#: Digits of a time that are kept: more are noise.
DIGITS = 4


def rounded_us(time_us: float, digits: int = DIGITS) -> float:
    """A time as entries and reports hold it.

    :param time_us: in microseconds.
    :param digits: more where times are compared with each other later, and not only reported.
    """
    return float(f"{time_us:.{digits}g}")


def note_that_every_candidate_failed(run: TuningRun, problem: Problem) -> None:
    """Say that a search found nothing that works, for reasons that may be gone the next time."""
    run.note(f"{problem}: every candidate failed; nothing was recorded")
