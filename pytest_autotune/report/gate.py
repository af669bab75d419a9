"""The verdict on the number of misses: a function of a summary, whoever made that."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from pytest_autotune.cache.model import library_of
from pytest_autotune.report.summary import Gate, Summary


@dataclass(frozen=True)
class MissLimit:
    """How many misses a run may have: a count, or a percentage of the problems looked up."""

    text: str
    count: int | None = None
    percent: Decimal | None = None

    @classmethod
    def parse(cls, text: str) -> MissLimit:
        """Parse ``"5"`` or ``"2.5%"``.

        :raises ValueError: for anything else, a negative number or more than 100 %.
        """
        text = text.strip()
        problem = f"expected a count such as 0, or a percentage such as 5%, not {text!r}"
        try:
            if text.endswith("%"):
                percent = Decimal(text[:-1].strip())
                if not (percent.is_finite() and 0 <= percent <= 100):
                    raise ValueError(problem)
                return cls(text, percent=percent)
            count = int(text)
        except (InvalidOperation, ValueError):
            raise ValueError(problem) from None
        if count < 0:
            raise ValueError(problem)
        return cls(text, count=count)

    def exceeded_by(self, misses: int, problems: int) -> bool:
        """Whether ``misses`` out of ``problems`` is more than this allows; exact, never rounded."""
        if self.percent is None:
            assert self.count is not None
            return misses > self.count
        return Decimal(misses) * 100 > self.percent * problems

    def compared(self, misses: int, problems: int) -> str:
        """What was compared, in words: ``"3 > 2"`` or ``"3 of 20 > 5%"``."""
        return f"{misses} > {self.text}" if self.percent is None else f"{misses} of {problems} > {self.text}"


def judge(summary: Summary, limit: MissLimit | None) -> Gate:
    """Whether a run has more misses than its user allows.

    :param limit: None where the user has set none.
    """
    if limit is None:
        return Gate()
    why_not = ""
    if not summary.loaded and not any(row.outcome for row in summary.rows):
        why_not = "nothing was loaded"
    elif summary.updates:
        why_not = "this run updates the cache that it loads"
    elif summary.interrupted:
        why_not = "the run was interrupted"
    if why_not:
        return Gate(limit.text, skipped=f"autotune cache misses not judged: {why_not}")
    # Who loads a tuner's entries wants it hooked; else the gate would pass for want of lookups.
    wanted = {library_of(name) for name in summary.requested or summary.covered}
    if unhooked := [tuner for tuner, _ in summary.unhooked if library_of(tuner) in wanted]:
        return Gate(limit.text, failure=f"requested tuner could not be hooked: {', '.join(unhooked)}")
    if summary.unasked and not summary.incomplete:
        entries = "1 entry was" if summary.unasked == 1 else f"{summary.unasked} entries were"
        return Gate(limit.text, failure=f"{entries} loaded and not one was asked for")
    if limit.exceeded_by(summary.misses, summary.problems):
        compared = limit.compared(summary.misses, summary.problems)
        return Gate(limit.text, failure=f"maximum allowed autotune cache misses exceeded: {compared}")
    return Gate(limit.text)
