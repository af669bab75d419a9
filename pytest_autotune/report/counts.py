"""The last lines of a summary: the counts of a run's problems and the state of its dump."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_autotune.cache.wording import describe_count
from pytest_autotune.report.line import Line
from pytest_autotune.report.naming import describe_row_count, join_nonempty
from pytest_autotune.run.result import DumpOutcome, RunResult

NO_LOOKUPS = "no lookups: no autotuned kernel was called"
#: The words for counts whose name is no word for a user.
_COUNT_WORDS = {"failed": "cannot be tuned", "unrecorded": "not recorded", "fallback": "used a fallback"}
#: The counts of outcomes, in the order in which they are listed.
_OUTCOMES = ("hit", "miss", "stale", "mismatch", "uncacheable")
#: Saved times below this are not worth a word.
_LEAST_SAVED_SECONDS = 0.1


def list_count_lines(result: RunResult, *, has_counts: bool = True) -> list[Line]:
    """Return the counts and the state of the dump, on the same line unless the user must do something for the dump.

    If modes replace the counts, return their lines.

    :param has_counts: False leaves the counts out.
    """
    mode_lines = _list_mode_lines(result)
    if mode_lines is not None:
        return mode_lines
    counts = color = ""
    if has_counts:
        counts = _describe_counts(result)
    if counts:
        color = _choose_counts_color(result)
    state = _describe_dump_state(result)
    if state.needs_action:
        lines = [Line(counts, color=color), Line(state.text, color="yellow")]
    else:
        lines = [Line(join_nonempty("; ", counts, state.text), color=color)]
    return [line for line in lines if line.text]


def join_count_lines(result: RunResult) -> str:
    """Return the counts and the state of the dump as a single text."""
    return "; ".join(line.text for line in list_count_lines(result))


def _list_mode_lines(result: RunResult) -> list[Line] | None:
    """Return the lines of the modes that replace the counts; None if no mode does."""
    sections = [section for section in result.sections if section.stands_for_counts]
    if not sections:
        return None
    lines = []
    for section in sections:
        color = "green"
        for finding in section.findings:
            if finding.is_failure:
                color = "red"
        for text in section.lines:
            lines.append(Line(text, color=color))
    return lines


def _choose_counts_color(result: RunResult) -> str:
    if not result.is_judged or not result.problem_count:
        return ""
    if result.failures:
        return "red"
    if result.miss_count or result.unused_entries:
        return "yellow"
    return "green"


def _describe_counts(result: RunResult) -> str:
    counts = result.counts
    tuned = _list_tuned_counts(result, counts)
    if not result.is_judged:
        texts = [*tuned, *_list_counts(counts, "uncacheable", "untracked")]
        if not result.problem_count and result.dump is not None:
            texts.append(_explain_no_lookups(result))
        return ", ".join(texts)
    if not result.problem_count:
        text = _explain_no_lookups(result)
        if result.loaded_entry_count:
            text += f"; {describe_count(result.loaded_entry_count, 'entry')} loaded for nothing"
        return text
    outcomes = []
    for outcome in _OUTCOMES:
        # "0 hits" tells that the caches were of no use.
        if counts[outcome] or outcome == "hit":
            outcomes.append(describe_row_count(counts[outcome], outcome.upper()))
    outcomes += _list_counts(counts, "untracked", "unused")
    fallbacks = _list_counts(counts, "fallback")
    saved = ""
    if result.saved_seconds >= _LEAST_SAVED_SECONDS:
        saved = f"about {result.saved_seconds:.1f}s of tuning saved"
    return join_nonempty("; ", ", ".join(outcomes), ", ".join(tuned), *fallbacks, saved)


def _list_counts(counts: Mapping[str, int], *names: str) -> list[str]:
    """Return the counts that are not 0, each with its word."""
    texts = []
    for name in names:
        if counts[name]:
            texts.append(f"{counts[name]} {_COUNT_WORDS.get(name, name)}")
    return texts


def _list_tuned_counts(result: RunResult, counts: Mapping[str, int]) -> list[str]:
    """Return how many problems were tuned, with the time of it, and how many could not be."""
    texts = []
    if counts["tuned"]:
        number = str(counts["tuned"])
        if not result.is_judged:
            # No outcome stands before it that would tell the unit.
            number = describe_count(counts["tuned"], "problem")
        text = f"{number} tuned"
        if result.tuning_seconds:
            text += f" in {result.tuning_seconds:.1f}s"
        texts.append(text)
    return texts + _list_counts(counts, "failed", "unrecorded")


def _explain_no_lookups(result: RunResult) -> str:
    """Return why no lookup took place, as far as the run knows."""
    if result.tuners_without_adapter:
        return f"no lookups: no adapter is installed for {' and '.join(result.tuners_without_adapter)}"
    bypassed_tuners = sorted({tuner for tuner, _ in result.collected.unhooked})
    if bypassed_tuners:
        return f"no lookups: {' and '.join(bypassed_tuners)} bypassed"
    bypasses = " or ".join(result.bypasses)
    if bypasses:
        return f"{NO_LOOKUPS}, or {bypasses} left it out"
    return NO_LOOKUPS


@dataclass(frozen=True)
class _DumpState:
    """The state of the dump path after the run.

    :param text: empty if there was no dump, or if writing it failed, which is an error of its own.
    :param needs_action: the dump is not as the user asked for, so its text needs a line of its own.
    """

    text: str = ""
    needs_action: bool = False


def _describe_dump_state(result: RunResult) -> _DumpState:
    dump = result.dump
    if dump is None or dump.error:
        return _DumpState()
    text = describe_dump(result)
    if text:
        stale_count = result.counts["stale"]
        if stale_count and result.request.plan.only_adds and not dump.remark:
            text += f"; {stale_count} stale left as they were"
        return _DumpState(text, needs_action=bool(dump.remark))
    if not dump.written_to:
        return _DumpState(_explain_unwritten_dump(result, dump), needs_action=True)
    entries = describe_count(len(result.merged.cache.entries), "entry")
    return _DumpState(f"{dump.path} is {_describe_unchanged_dump(result)} ({entries})")


def _explain_unwritten_dump(result: RunResult, dump: DumpOutcome) -> str:
    verb = "tuned"
    if result.problem_count or result.collected.unhooked:
        # Kernels were tuned then, although the session recorded no result.
        verb = "recorded"
    return f"nothing was {verb}: {dump.path} was not written"


def _describe_unchanged_dump(result: RunResult) -> str:
    """Return whether an unchanged dump has all results of this run, or was left without some of them."""
    if (
        result.request.plan.only_adds
        or result.rows_to_update
        or result.counts["unrecorded"]
        or not result.problem_count
    ):
        return "left as it was"
    return "up to date"


def describe_dump(result: RunResult) -> str:
    """Return how many entries the dump has written to which path; empty if it has written nothing."""
    dump = result.dump
    if dump is None:
        return ""
    if dump.remark:
        return f"{dump.path} {dump.remark}"
    if not dump.is_changed:
        return ""
    text = f"{describe_count(len(result.merged.cache.entries), 'entry')} written to {dump.path}"
    if result.merged.counts_text:
        text += f": {result.merged.counts_text}"
    return text
