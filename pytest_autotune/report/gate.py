"""The gate: whether a run is within the limits that its user set on misses and unused entries.

The functions only read the result of a run. A mode that judges more, such as ``verify``, has a gate of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.report.naming import join_nonempty
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.section import Gate

#: The outcomes of tests, in pytest's words and order.
_TEST_OUTCOMES = ("failed", "passed", "skipped", "xfailed", "xpassed")


@dataclass(frozen=True)
class Limit:
    """The largest number of misses, or of other things, that a run may have.

    :param text: the limit as the user wrote it.
    :param allowed: a count, or a percentage of all.
    :param is_share: ``allowed`` is a percentage.
    """

    text: str
    allowed: Decimal
    is_share: bool

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Parse ``"5"`` or ``"2.5%"``.

        :raises ValueError: for any other text, a negative number or more than 100 %.
        """
        text = text.strip()
        if re.fullmatch(r"\d+", text, re.ASCII):
            return cls(text, Decimal(text), is_share=False)
        match = re.fullmatch(r"(\d+(?:\.\d+)?) *%", text, re.ASCII)
        if match is None or Decimal(match[1]) > 100:
            raise ValueError(f"expected a count such as 0, or a percentage such as 5%, not {text!r}")
        return cls(text, Decimal(match[1]), is_share=True)

    def describe_excess(self, count: int, total: int) -> str:
        """Return the comparison if a count is above the limit, ``"3 > 2"``, else an empty text. Nothing is rounded.

        :param total: the number of which a share allows a percentage.
        """
        if not self.is_share:
            return f"{count} > {self.text}" if count > self.allowed else ""
        if count * 100 > self.allowed * total:
            return f"{count} of {total} > {self.text}"
        return ""


def judge(result: RunResult, limit: Limit | None, fail_on_unused: bool = False, unloaded: str = "") -> Gate:
    """Return whether a run has more misses than its user allows, or unused entries although the user allows none.

    :param limit: on misses; None if the user set none.
    :param unloaded: the message of the usage error that a gate is in a run without a loaded cache; empty if it is none.
        A cache that a test loads for itself makes the gate right.
    """
    gate = Gate(fail_on_unused=fail_on_unused)
    if limit is not None:
        gate = replace(gate, limit=limit.text)
    if unloaded and not result.is_judged:
        return replace(gate, failure=unloaded, is_usage_error=True)
    # If the options fail each test with a stale problem or a miss, a run of no tests must fail, too.
    refuses_misses = result.request.policy.is_error(Outcome.STALE) and not result.request.plan.is_update
    judges_misses = limit is not None or refuses_misses
    subjects = []
    if judges_misses:
        subjects.append("misses")
    if fail_on_unused:
        subjects.append("unused entries")
    if not subjects:
        return gate
    reason = _explain_unjudged_run(result)
    if result.no_part_reason:
        reason = f"{result.no_part_reason} (?optional)"
    if reason:
        return replace(gate, skip_reason=f"autotune cache {' and '.join(subjects)} not judged: {reason}")
    misses = _judge_misses(result, limit, judges_misses)
    unused = _Verdict()
    if fail_on_unused:
        unused = _judge_unused(result)
    return replace(
        gate,
        failure=join_nonempty("; ", misses.failure, unused.failure),
        skip_reason=join_nonempty("; ", misses.skip_reason, unused.skip_reason),
    )


def _explain_unjudged_run(result: RunResult) -> str:
    """Return why a run as a whole cannot be judged; empty if it can."""
    if not result.is_judged:
        return "nothing was loaded"
    if result.request.plan.is_update:
        return "this run updates the cache that it loads"
    if result.collected.is_interrupted:
        return "the run was interrupted"
    return ""


@dataclass(frozen=True)
class _Verdict:
    """The verdict on misses or on unused entries.

    :param failure: why the run fails; empty if it does not.
    :param skip_reason: why nothing was judged; empty if something was.
    """

    failure: str = ""
    skip_reason: str = ""


def _judge_misses(result: RunResult, limit: Limit | None, judges_misses: bool) -> _Verdict:
    """Return the verdict on misses, and on runs whose lookups could not reach the loaded entries.

    :param judges_misses: False for a gate on unused entries alone.
    """
    judged_count = len(result.collected.untracked) + sum(row.outcome is not None for row in result.rows)
    failure = explain_unreachable_entries(result)
    if failure:
        return _Verdict(failure)
    if limit is not None:
        excess = limit.describe_excess(result.miss_count, judged_count)
        if excess:
            return _Verdict(f"maximum allowed autotune cache misses exceeded: {excess}")
    failure = explain_empty_run(result) or _explain_unseen_errors(result)
    if not failure and not judged_count:
        failure = _explain_skipped_run(result)
    if failure:
        return _Verdict(failure)
    if judges_misses and not judged_count:
        return _Verdict(skip_reason=f"autotune cache misses not judged: {_explain_no_outcomes(result)}")
    return _Verdict()


def _explain_skipped_run(result: RunResult) -> str:
    """Return why a run fails of which no test passed and some were skipped, also in a part of the suite; else empty.

    A machine that has lost its GPU skips the tests of a shard, and the shard would be green for nothing.
    """
    counts = result.collected.test_counts
    if not counts.get("skipped") or counts.get("passed") or counts.get("xpassed"):
        return ""
    return f"no test asked for a tuned kernel, and none passed ({describe_test_counts(counts)})"


def _explain_unseen_errors(result: RunResult) -> str:
    """Return which problems were errors that no test failed for; empty if there are none.

    A forked child of a test cannot fail the test.
    """
    counts = result.collected.test_counts
    if counts.get("failed") or counts.get("error"):
        return ""
    refused = [row for row in result.rows if result.request.policy.is_error(row.outcome)]
    if not refused:
        return ""
    verb = "is an error" if len(refused) == 1 else "are errors"
    return f"{describe_count(len(refused), 'problem')} of the autotune cache {verb}, and no test failed"


def _judge_unused(result: RunResult) -> _Verdict:
    if result.collected.incomplete_reason:
        return _Verdict(skip_reason=f"unused autotune cache entries not judged: {result.collected.incomplete_reason}")
    if result.unused_entries:
        entries = _describe_entries_were(len(result.unused_entries))
        return _Verdict(f"{entries} loaded and not asked for (--autotune-fail-on-unused)")
    return _Verdict()


def _explain_no_outcomes(result: RunResult) -> str:
    """Return why a run has no problem that is a hit or a miss."""
    if result.rows:
        return "nothing came of what the tests asked for"
    return f"no test asked for a tuned kernel ({describe_test_counts(result.collected.test_counts)})"


def describe_test_counts(counts: Mapping[str, int]) -> str:
    """Return the number of tests by outcome, in pytest's form: ``"1 failed, 3 passed, 9 skipped"``."""
    words = []
    for outcome in _TEST_OUTCOMES:
        if counts.get(outcome):
            words.append(f"{counts[outcome]} {outcome}")
    if counts.get("error"):
        words.append(describe_count(counts["error"], "error"))
    return ", ".join(words) or "no test ran"


def explain_empty_run(result: RunResult) -> str:
    """Return why a run of the whole suite fails if no lookup used the loaded caches; empty for any other run.

    Skipped tests are no excuse. If a GPU is lost, all its tests are skipped, and the gate would pass for ever.
    """
    if not result.loaded or result.no_part_reason or _has_used_caches(result):
        return ""
    if result.collected.incomplete_reason and not result.collected.is_only_skipped:
        return ""
    bypasses = ""
    if result.bypasses:
        bypasses = f"{' or '.join(result.bypasses)} may leave them out"
    text = f"{_describe_entries_were(result.loaded_entry_count)} loaded and not one was asked for"
    reasons = join_nonempty("; ", bypasses, result.collected.incomplete_reason)
    if reasons:
        text += f" ({reasons})"
    return text


def explain_no_part(result: RunResult) -> str:
    """Return why a run with optional caches took no part: nothing used the caches, and this machine lacks something.

    The text is empty if a lookup used the caches, and if the machine has all that the entries need.
    """
    if not result.has_only_optional_caches or _has_used_caches(result):
        return ""
    reasons = list(result.collected.unavailable)
    for tuner, reason in result.collected.unhooked:
        if tuner in result.unhooked_tuners:
            reasons.append(f"{tuner} cannot be hooked: {reason}")
    if result.tuners_without_adapter:
        reasons.append(f"no adapter is installed for {' and '.join(result.tuners_without_adapter)}")
    return "; ".join(reasons)


def _has_used_caches(result: RunResult) -> bool:
    """Whether a lookup of the run had a result, and could have found it in the caches that all tests load."""
    for row in result.rows:
        has_result = row.outcome is not None or row.entry is not None
        if has_result and row.problem not in result.test_cache_problems:
            return True
    return False


def explain_unreachable_entries(result: RunResult) -> str:
    """Return which loaded entries no lookup could reach; empty if there are none.

    A gate must fail then, because it would pass whatever the entries hold. Optional caches may be out of reach.
    """
    if result.has_only_optional_caches:
        return ""
    if result.unhooked_tuners:
        return f"requested tuner could not be hooked: {', '.join(result.unhooked_tuners)}"
    if result.tuners_without_adapter:
        return f"entries are loaded, and no adapter is installed for {', '.join(result.tuners_without_adapter)}"
    if result.unnamed_tuners:
        named_by = result.request.tuners_named_by
        return f"entries of {', '.join(result.unnamed_tuners)} are loaded, which {named_by} leaves out: name them, too"
    return ""


def _describe_entries_were(count: int) -> str:
    return describe_count(count, "entry was", "entries were")
