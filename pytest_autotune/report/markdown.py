"""The Markdown face of a summary: for the summary page of a CI job, a comment, a mail.

Foreign text stands in code spans, where Markdown gives nothing else than their end a meaning: no link, no picture, no
mention of a user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.diff import Change, winner
from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.cache.model import Entry
from pytest_autotune.report.grouping import Cost, Group, by_kernel, by_test, groups
from pytest_autotune.report.naming import described
from pytest_autotune.report.rows import NOT_COVERED, Row
from pytest_autotune.report.summary import Summary
from pytest_autotune.report.terminal import notes

#: Rows of a table; what is more is counted.
SHOWN = 200
#: Characters of one cell.
_LONGEST_CELL = 300
_T = TypeVar("_T")


def to_markdown(summary: Summary, shown: int = SHOWN) -> str:
    """The summary as Markdown text, as GitHub and GitLab read it.

    :param shown: how many rows of a table, at most.
    """
    return "\n".join(_lines(summary, shown)) + "\n"


def fitting(summary: Summary, room: int) -> str:
    """The summary as Markdown text, with as many rows as fit.

    :param room: in bytes; a text that is longer all the same is empty.
    """
    for shown in (SHOWN, SHOWN // 4, SHOWN // 20, 0):
        text = to_markdown(summary, shown)
        if len(text.encode()) <= room:
            return text
    return ""


def code(text: str) -> str:
    """Foreign text as a code span, also of a table."""
    text = one_line(text, _LONGEST_CELL)
    if not text.strip():
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    # A table is cut at each bar, in code spans, too; a backslash before it is taken away again.
    return f"{fence}{padding}{text}{padding}{fence}".replace("|", r"\|")


def _lines(summary: Summary, shown: int) -> Iterator[str]:
    yield "# Autotune cache"
    yield from _head(summary)
    yield from _tables(summary, shown)
    yield from _part("Notes", [""], [*_notes(summary)], lambda note: [code(note)], shown)


def _head(summary: Summary) -> Iterator[str]:
    """Whether the run failed and why, the counts, and what it was."""
    yield from (f"\n❌ **{code(failure)}**" for failure in summary.failures)
    if summary.gate.limit and not summary.failures and not summary.gate.skipped:
        yield f"\n✅ **within the limit of {code(summary.gate.limit)} misses**"
    if summary.gate.skipped:
        yield f"\n{code(summary.gate.skipped)}"
    yield ""
    yield from _table(
        ["hit", "miss", "stale", "mismatch", "unportable", "unseen", "tuned", "unused"], [_counts(summary)]
    )
    for path, entries in summary.loaded:
        yield f"\nLoaded: {code(path)}, {counted(entries, 'entry')}."
    if summary.dump is not None and summary.dump.written:
        dump = summary.dump
        numbers = f"{dump.added} added, {dump.changed} changed, {dump.unchanged} unchanged, {dump.removed} removed"
        yield f"\nWritten: {code(dump.written_to)}, {counted(dump.entries, 'entry')}: {numbers}."
    for device in summary.devices:
        yield f"\nDevice: {code(str(device))}."
    if summary.saved_seconds >= 0.1:
        yield f"\nAbout {summary.saved_seconds:.1f} s of tuning saved."


def _tables(summary: Summary, shown: int) -> Iterator[str]:
    missed = [row for row in summary.rows if row.outcome in NOT_COVERED]
    head = ["", "test", "problem", "why"]
    yield from _part("Not covered", head, groups(missed), _missed, shown, size=lambda group: len(group.rows))
    if summary.update and summary.to_update:
        yield f"\nTo update the cache: {code('pytest ' + summary.update)}"
    slower = ["test", "problem", "faster", "times slower", "time"]
    yield from _part("Slower than another candidate", slower, summary.slower, _slower, shown)
    yield from _part("Ran in tests that failed", ["test", "problem", "ran with"], _failed(summary), _texts, shown)
    yield from _part("Tuned without passing the plugin", ["kernel"], summary.unseen, lambda name: [code(name)], shown)
    unrecorded = [row for row in summary.rows if row.unrecorded and row.outcome is None]
    yield from _part("Not recorded", ["problem", "why"], unrecorded, _unrecorded, shown)
    yield from _part("Unused", ["entry"], summary.unused, _unused, shown)
    title = f"Different from {'the loaded cache' if summary.loaded else 'what the file held'}"
    yield from _part(title, ["", "problem", "choice", "time"], summary.changes.changes, _change, shown)
    head = ["", "problems", "seconds"]
    yield from _part("Time of tuning by kernel", head, by_kernel(summary), _cost, shown)
    yield from _part("Time of tuning by test", head, by_test(summary), _cost, shown)


def _notes(summary: Summary) -> Iterator[str]:
    yield from notes(summary)
    if summary.verify is not None:
        raced = f"verify {summary.verify}: {counted(len(summary.verified), 'choice')} raced"
        yield f"{raced} in {summary.verifying_seconds:.1f} s"
    if summary.sweep:
        yield f"run with candidates of --autotune-sweep={summary.sweep}"


def _counts(summary: Summary) -> list[str]:
    counts = summary.counts
    outcomes = ("hit", "miss", "stale", "mismatch", "unportable")
    known = [str(counts[name]) if summary.is_judged or counts[name] else "" for name in outcomes]
    return [*known, str(len(summary.unseen)), str(counts["tuned"]), str(counts["unused"])]


def _unrecorded(row: Row) -> list[str]:
    return [code(described(row.problem, row.label)), code(row.unrecorded)]


def _missed(group: Group) -> list[str]:
    row, more = group.rows[0], len(group.rows) - 1
    outcome = group.outcome.value.upper()
    test = code(row.tests[0] if row.tests else "")
    if not more:
        return [outcome, test, code(described(row.problem, row.label)), code(row.reason)]
    problem = described(replace(row.problem, key=group.common))
    spans = [code(span) for span in group.spans]
    return [outcome, f"{test} and {more} more", ", ".join([code(problem), *spans]), code(group.reason)]


def _slower(row: Row) -> list[str]:
    verdict = row.verdict
    assert verdict is not None
    times = f"{verdict.choice_us:.4g} us → {verdict.best_us:.4g} us, ±{verdict.error_us:.2g}"
    test = row.tests[0] if row.tests else ""
    return [code(test), code(described(row.problem, row.label)), code(verdict.best), f"{1 + verdict.slower:.2f}", times]


def _failed(summary: Summary) -> list[list[str]]:
    """In a sweep, what ran in tests that failed."""
    return [
        [test, described(row.problem, row.label), str(one.candidate)]
        for row in summary.rows
        for one in row.swept
        for test in one.failed_tests
    ]


def _texts(cells: Sequence[str]) -> list[str]:
    return list(map(code, cells))


def _unused(entry: Entry) -> list[str]:
    return [code(described(entry.problem))]


def _change(change: Change) -> list[str]:
    sides = [winner(entry) if entry is not None else None for entry in (change.old, change.new)]
    choices = [code(str(one)) if one is not None else "" for one in sides]
    times = [f"{one.time_us:.4g} us" if one is not None and one.time_us is not None else "" for one in sides]
    return [change.kind.value, code(described(change.entry.problem)), _arrow(*choices), _arrow(*times)]


def _arrow(old: str, new: str) -> str:
    return f"{old} → {new}" if old and new and old != new else new or old


def _cost(cost: Cost) -> list[str]:
    return [code(cost.name), str(cost.problems), f"{cost.seconds:.1f}"]


def _part(
    title: str,
    head: Sequence[str],
    rows: Sequence[_T],
    cells: Callable[[_T], Sequence[str]],
    shown: int,
    size: Callable[[_T], int] = lambda row: 1,
) -> Iterator[str]:
    """A heading with a table; nothing where there are no rows.

    :param size: how many things a row stands for.
    """
    if not rows:
        return
    yield f"\n### {title} ({sum(map(size, rows))})\n"
    if shown:
        yield from _table(head, map(cells, islice(rows, shown)))
    if hidden := sum(map(size, rows[shown:])):
        yield f"\n{counted(hidden, 'more is', 'more are')} in the JSON report."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + " --- |" * len(head)
    yield from (f"| {' | '.join(row)} |" for row in rows)
