"""A result as Markdown: for the summary page of a CI job, a comment, a mail.

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
from pytest_autotune.report.grouping import Cost, Group, by_kernel, by_test, groups
from pytest_autotune.report.naming import described
from pytest_autotune.report.terminal import notes
from pytest_autotune.run.result import Result
from pytest_autotune.run.rows import NOT_COVERED, Row

#: Rows of a table; what is more is counted.
SHOWN = 200
#: Characters of one cell.
_LONGEST_CELL = 300
_T = TypeVar("_T")


def to_markdown(result: Result, shown: int = SHOWN) -> str:
    """The result as Markdown text, as GitHub and GitLab read it.

    :param shown: how many rows of a table, at most.
    """
    return "\n".join(_lines(result, shown)) + "\n"


def fitting(result: Result, room: int) -> str:
    """The result as Markdown text, with as many rows as fit.

    :param room: in bytes; a text that is longer all the same is empty.
    """
    for shown in (SHOWN, SHOWN // 4, SHOWN // 20, 0):
        text = to_markdown(result, shown)
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


def _lines(result: Result, shown: int) -> Iterator[str]:
    yield "# Autotune cache"
    yield from _head(result)
    yield from _tables(result, shown)
    yield from _part("Notes", [""], [*_notes(result)], lambda note: [code(note)], shown)


def _head(result: Result) -> Iterator[str]:
    """Whether the run failed and why, the counts, and what it was."""
    yield from (f"\n❌ **{code(failure)}**" for failure in result.failures)
    if result.gate.limit and not result.failures and not result.gate.skipped:
        yield f"\n✅ **within the limit of {code(result.gate.limit)} misses**"
    if result.gate.skipped:
        yield f"\n{code(result.gate.skipped)}"
    yield ""
    yield from _table(
        ["hit", "miss", "stale", "mismatch", "uncacheable", "untracked", "tuned", "unused"], [_counts(result)]
    )
    for path, entries in result.loaded:
        yield f"\nLoaded: {code(path)}, {counted(entries, 'entry')}."
    if result.dump is not None and result.dump.written:
        dump, merged = result.dump, result.merged
        numbers = ", ".join(f"{number} {word}" for word, number in merged.counts.items())
        yield f"\nWritten: {code(dump.written_to)}, {counted(len(merged.cache.entries), 'entry')}: {numbers}."
    for device in result.devices:
        yield f"\nDevice: {code(str(device))}."
    if result.saved_seconds >= 0.1:
        yield f"\nAbout {result.saved_seconds:.1f} s of tuning saved."


def _tables(result: Result, shown: int) -> Iterator[str]:
    missed = [row for row in result.rows if row.outcome in NOT_COVERED]
    head = ["", "test", "problem", "why"]
    yield from _part("Not covered", head, groups(missed), _missed, shown, size=lambda group: len(group.rows))
    if result.request.update and result.to_update:
        yield f"\nTo update the cache: {code('pytest ' + result.request.update)}"
    slower = ["test", "problem", "faster", "times slower", "time"]
    yield from _part("Slower than another candidate", slower, result.slower, _slower, shown)
    for section in result.sections:
        cells = [[*map(code, (one.word, one.test, one.problem, one.what))] for one in section.findings]
        yield from _part(section.name.capitalize(), ["", "test", "problem", "what"], cells, list, shown)
    yield from _part("Tuned without passing the plugin", ["kernel"], result.untracked, lambda name: [code(name)], shown)
    unrecorded = [row for row in result.rows if row.unrecorded and row.outcome is None]
    yield from _part("Not recorded", ["problem", "why"], unrecorded, _unrecorded, shown)
    yield from _part("Unused", ["entry"], result.unused, lambda entry: [code(described(entry.problem))], shown)
    title = f"Different from {'the loaded cache' if result.loaded else 'what the file held'}"
    yield from _part(title, ["", "problem", "choice", "time"], result.changes.changes, _change, shown)
    head = ["", "problems", "seconds"]
    yield from _part("Time of tuning by kernel", head, by_kernel(result), _cost, shown)
    yield from _part("Time of tuning by test", head, by_test(result), _cost, shown)


def _notes(result: Result) -> Iterator[str]:
    yield from notes(result)
    if result.request.verify is not None:
        raced = f"verify {result.request.verify}: {counted(len(result.verified), 'choice')} raced"
        yield f"{raced} in {result.verifying_seconds:.1f} s"
    yield from (line for section in result.sections for line in section.lines)


def _counts(result: Result) -> list[str]:
    counts = result.counts
    outcomes = ("hit", "miss", "stale", "mismatch", "uncacheable")
    known = [str(counts[name]) if result.is_judged or counts[name] else "" for name in outcomes]
    return [*known, str(len(result.untracked)), str(counts["tuned"]), str(counts["unused"])]


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
