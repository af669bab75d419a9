"""Whether a run is within the limits that its user set: functions of a result, whoever made that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.section import Gate

#: What becomes of tests, in pytest's words and order.
_TEST_OUTCOMES = ("failed", "passed", "skipped", "xfailed", "xpassed")


@dataclass(frozen=True)
class Limit:
    """How many of some things, such as misses, a run may have: a count, or a percentage of all of them."""

    text: str
    allowed: Decimal
    is_share: bool

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Parse ``"5"`` or ``"2.5%"``.

        :raises ValueError: for anything else, a negative number or more than 100 %.
        """
        found = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?) *%", text.strip(), re.ASCII)
        if found is None or (found[2] and Decimal(found[2]) > 100):
            raise ValueError(f"expected a count such as 0, or a percentage such as 5%, not {text!r}")
        return cls(text.strip(), Decimal(found[1] or found[2]), is_share=not found[1])

    def exceeded_by(self, number: int, of: int) -> str:
        """How ``number`` out of ``of`` is more than this allows, ``"3 > 2"``; empty where it is not; never rounded."""
        if self.is_share:
            return f"{number} of {of} > {self.text}" if number * 100 > self.allowed * of else ""
        return f"{number} > {self.text}" if number > self.allowed else ""


def judge(result: RunResult, limit: Limit | None, fail_on_unused: bool = False, unloaded: str = "") -> Gate:
    """Whether a run has more misses than its user allows, or unused entries where there are to be none.

    :param limit: None where the user has set none.
    :param unloaded: what is wrong with judging a run that loads nothing; nothing is where a test has loaded something.
    """
    # Where each miss or stale problem fails its test, a run without one is judged by that as well.
    refuses = result.request.policy.is_error(Outcome.STALE) and not result.request.is_update
    judged = ["misses"] if limit is not None or refuses else []
    judged += ["unused entries"] if fail_on_unused else []
    why_not = ""
    if not result.is_judged:
        why_not = "nothing was loaded"
    elif result.request.is_update:
        why_not = "this run updates the cache that it loads"
    elif result.collected.is_interrupted:
        why_not = "the run was interrupted"
    gate = Gate(limit.text if limit is not None else "", fail_on_unused=fail_on_unused)
    failures: list[str] = []
    if judged and why_not:
        gate = replace(gate, skipped=f"autotune cache {' and '.join(judged)} not judged: {why_not}")
    elif judged:
        of = sum(row.outcome is not None for row in result.rows) + len(result.collected.untracked)
        exceeded = limit.exceeded_by(result.miss_count, of) if limit is not None else ""
        misses = f"maximum allowed autotune cache misses exceeded: {exceeded}" if exceeded else ""
        failures += [explain_unreachable_entries(result) or misses or explain_empty_run(result)]
        skipped = []
        if not of and not failures[0] and "misses" in judged:
            skipped += [f"autotune cache misses not judged: {_nothing_to_judge(result)}"]
        if fail_on_unused and result.collected.incomplete_reason:
            skipped += [f"unused autotune cache entries not judged: {result.collected.incomplete_reason}"]
        elif fail_on_unused and result.unused_entries:
            failures += [
                f"{_entries_were(len(result.unused_entries))} loaded and not asked for (--autotune-fail-on-unused)"
            ]
        gate = replace(gate, skipped="; ".join(skipped))
    if any(failures):
        return replace(gate, failure="; ".join(filter(None, failures)))
    if unloaded and not result.is_judged:
        return replace(gate, failure=unloaded, skipped="", is_usage_error=True)
    return gate


def _nothing_to_judge(result: RunResult) -> str:
    """Return why a run has no problem that is a hit or a miss."""
    if result.rows:
        return "nothing came of what the tests asked for"
    return f"no test asked for a tuned kernel ({_tests_in_words(result.collected.test_counts)})"


def _tests_in_words(counts: Mapping[str, int]) -> str:
    """Return how many tests passed, failed and so on, as pytest says it: ``"1 failed, 3 passed, 9 skipped"``."""
    words = [f"{counts[outcome]} {outcome}" for outcome in _TEST_OUTCOMES if counts.get(outcome)]
    if counts.get("error"):
        words.append(describe_count(counts["error"], "error"))
    return ", ".join(words) or "no test ran"


def explain_empty_run(result: RunResult) -> str:
    """Why a run of the whole suite that asked for nothing fails; empty where it is none.

    Skipped tests are no excuse: where a GPU is lost, every test of it is skipped, and the gate would be green for ever.
    Nor is what a test finds in a cache of its own, or what nothing came of.
    """
    asks = any((row.outcome or row.entry) and row.problem not in result.test_cache_problems for row in result.rows)
    if asks or not result.loaded or (result.collected.incomplete_reason and not result.collected.is_only_skipped):
        return ""
    leaves = f"{' or '.join(result.bypasses)} may leave them out" if result.bypasses else ""
    why = "; ".join(filter(None, [leaves, result.collected.incomplete_reason]))
    return f"{_entries_were(result.loaded_entry_count)} loaded and not one was asked for{f' ({why})' if why else ''}"


def explain_unreachable_entries(result: RunResult) -> str:
    """Which loaded entries no lookup of this run could reach, so that a gate would be green for nothing."""
    if result.unhooked_tuners:
        return f"requested tuner could not be hooked: {', '.join(result.unhooked_tuners)}"
    if result.tuners_without_adapter:
        return f"entries are loaded, and no adapter is installed for {', '.join(result.tuners_without_adapter)}"
    if result.unnamed_tuners:
        named_by = result.request.tuners_named_by
        return f"entries of {', '.join(result.unnamed_tuners)} are loaded, which {named_by} leaves out: name them, too"
    return ""


def _entries_were(number: int) -> str:
    return describe_count(number, "entry was", "entries were")
