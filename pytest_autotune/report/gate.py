"""Whether a run is within the limits that its user set: functions of a result, whoever made that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.model import is_named, library_of
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.result import Gate, Result


@dataclass(frozen=True)
class Limit:
    """How many of some things, such as misses, a run may have: a count, or a percentage of all of them."""

    text: str
    count: int | None = None
    percent: Decimal | None = None

    @classmethod
    def parse(cls, text: str) -> Limit:
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

    def exceeded_by(self, number: int, of: int) -> bool:
        """Whether ``number`` out of ``of`` is more than this allows; exact, never rounded."""
        if self.percent is None:
            assert self.count is not None
            return number > self.count
        return Decimal(number) * 100 > self.percent * of

    def compared(self, number: int, of: int) -> str:
        """What was compared, in words: ``"3 > 2"`` or ``"3 of 20 > 5%"``."""
        return f"{number} > {self.text}" if self.percent is None else f"{number} of {of} > {self.text}"


def judge(result: Result, limit: Limit | None, fail_on_unused: bool = False, unloaded: str = "") -> Gate:
    """Whether a run has more misses than its user allows, or unused entries where there are to be none.

    :param limit: None where the user has set none.
    :param unloaded: what is wrong with judging a run that loads nothing; nothing is where a test has loaded something.
    """
    gate = _judged(result, limit, fail_on_unused)
    if unloaded and not gate.failure and not result.is_judged:
        return replace(gate, failure=unloaded, skipped="", is_usage_error=True)
    return gate


def _judged(result: Result, limit: Limit | None, fail_on_unused: bool) -> Gate:
    gate = Gate(limit.text if limit is not None else "", fail_on_unused=fail_on_unused)
    judged = [*(["misses"] if limit is not None else []), *(["unused entries"] if fail_on_unused else [])]
    if not judged:
        # Where each miss fails its test, a run without one is judged by that as well.
        is_error = Outcome.MISS in result.request.refused and not result.request.updates
        if is_error and not result.is_judged:
            return replace(gate, skipped="autotune cache misses not judged: nothing was loaded")
        return replace(gate, failure=asked_nothing(result)) if is_error else gate
    why_not = ""
    if not result.is_judged:
        why_not = "nothing was loaded"
    elif result.request.updates:
        why_not = "this run updates the cache that it loads"
    elif result.collected.interrupted:
        why_not = "the run was interrupted"
    if why_not:
        return replace(gate, skipped=f"autotune cache {' and '.join(judged)} not judged: {why_not}")
    failures = _misses(result, limit) if limit is not None else []
    if not failures and (nothing := asked_nothing(result)):
        failures.append(nothing)
    if fail_on_unused:
        if result.incomplete:
            why_not = f"unused autotune cache entries not judged: {result.incomplete}"
        elif result.unused:
            failures.append(f"{_entries_were(len(result.unused))} loaded and not asked for (--autotune-fail-on-unused)")
    return replace(gate, failure="; ".join(failures), skipped=why_not)


def asked_nothing(result: Result) -> str:
    """Why a run of the whole suite that asked for nothing fails; empty where it is none.

    Skipped tests are no excuse: where a GPU is lost, every test of it is skipped, and the gate would be green for ever.
    """
    if result.problems or not result.loaded or (result.incomplete and not result.collected.only_skipped):
        return ""
    left_out = sorted(name for name in result.covered if not is_named(name, result.request.tuners))
    leaves = (
        f"{result.request.tuners_named_by} leaves out {', '.join(left_out)}"
        if result.request.tuners and left_out
        else ""
    )
    ignores = f"autotune_ignore (ini) leaves out {result.ignored}" if result.ignored else ""
    disabled = result.collected.disabled
    marked = f"autotune_cache(enabled=False) leaves out {counted(disabled, 'test')}" if disabled else ""
    why = "; ".join(filter(None, [leaves, ignores, marked, result.incomplete]))
    return f"{_entries_were(result.unasked)} loaded and not one was asked for{f' ({why})' if why else ''}"


def _misses(result: Result, limit: Limit) -> list[str]:
    # Who loads a tuner's entries wants it hooked; else the gate would pass for want of lookups.
    wanted = {library_of(name) for name in result.request.tuners or result.covered}
    if unhooked := [tuner for tuner, _ in result.unhooked if library_of(tuner) in wanted]:
        return [f"requested tuner could not be hooked: {', '.join(unhooked)}"]
    if result.without_adapter:
        return [f"entries are loaded, and no adapter is installed for {', '.join(result.without_adapter)}"]
    if limit.exceeded_by(result.misses, result.problems):
        return [f"maximum allowed autotune cache misses exceeded: {limit.compared(result.misses, result.problems)}"]
    return []


def _entries_were(number: int) -> str:
    return counted(number, "entry was", "entries were")
