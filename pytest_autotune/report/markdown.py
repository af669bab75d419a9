"""A result as Markdown: for the summary page of a CI job, a comment, a mail.

Foreign text stands in code spans, where only their end has a meaning.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pytest_autotune.cache.diff import Change
from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.cache.quantities import describe_count, describe_seconds
from pytest_autotune.report.findings import MISS_WORDS, Cost, list_findings, list_kernel_costs, list_test_costs
from pytest_autotune.report.hints import list_hints
from pytest_autotune.report.naming import describe_change, describe_problem
from pytest_autotune.report.terminal import describe_counts, describe_verdict, list_facts, list_notes
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.section import Finding

_SIGNS = {"failed": "❌", "passed": "✅", "unjudged": "❔"}
#: The titles of tables, by the word of their rows, where they are not that word.
_TITLES = dict.fromkeys(MISS_WORDS, "Not covered") | {
    "UNTRACKED": "Tuned without passing the plugin",
    "UNRECORDED": "Not recorded",
}
#: Rows of a table; what is more is counted.
SHOWN = 100
#: Characters of one cell.
_LONGEST_CELL = 300
#: And of what is to be done.
_LONGEST_LINE = 2000
_T = TypeVar("_T")


def to_markdown(result: RunResult) -> str:
    """The result as Markdown text, as GitHub and GitLab read it."""
    return "\n".join(_lines(result)) + "\n"


def code(text: str, longest: int = _LONGEST_CELL) -> str:
    """Foreign text as a code span, also of a table."""
    text = to_one_line(text, longest)
    if not text.strip():
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    # A table is cut at each bar, in code spans, too; a backslash before it is taken away again.
    return f"{fence}{padding}{text}{padding}{fence}".replace("|", r"\|")


def _lines(result: RunResult) -> Iterator[str]:
    yield "# Autotune cache"
    yield from _head(result)
    yield from _tables(result)
    yield from _part("Notes", [""], list_notes(result), lambda note: [code(note)])


def _head(result: RunResult) -> Iterator[str]:
    """Whether the run failed and why, the counts, and what it was."""
    state, why = describe_verdict(result)
    yield f"\n{_SIGNS[state]} **{code(why, _LONGEST_LINE)}**"
    yield from (f"\n{code(hint, _LONGEST_LINE)}" for hint in list_hints(result))
    yield from (f"\n{code(line.text)}" for line in describe_counts(result) if line.text != why)
    yield from (f"\n{word}: {code(text, _LONGEST_LINE)}" for word, text in list_facts(result))


def _tables(result: RunResult) -> Iterator[str]:
    titled: defaultdict[str, list[Finding]] = defaultdict(list)
    for one in list_findings(result):
        titled[_TITLES.get(one.word, one.word.capitalize())].append(one)
    for title, found in titled.items():
        head = ["", "test", "problem", "why"]
        yield from _part(title, head, found, _found, size=lambda one: one.problem_count)
    title = f"Different from {'what the file held' if result.dump else 'the loaded cache'}"
    yield from _part(title, ["", "problem", "choice", "time"], result.changes.changes, _change)
    head = ["", "problems", "time"]
    yield from _part("Time of tuning by kernel", head, list_kernel_costs(result), _cost)
    yield from _part("Time of tuning by test", head, list_test_costs(result), _cost)


def _found(one: Finding) -> list[str]:
    more = f" and {describe_count(one.other_test_count, 'more test')}" if one.other_test_count else ""
    return [one.word, code(one.test) + more, code(one.problem), code(one.text)]


def _change(change: Change) -> list[str]:
    what, times = describe_change(change)
    return [change.kind.value, code(describe_problem(change.entry.problem)), code(what), times]


def _cost(cost: Cost) -> list[str]:
    return [code(cost.name), str(cost.problems), describe_seconds(cost.seconds)]


def _part(
    title: str,
    head: Sequence[str],
    rows: Sequence[_T],
    cells: Callable[[_T], Sequence[str]],
    size: Callable[[_T], int] = lambda row: 1,
) -> Iterator[str]:
    """A heading with a table; nothing where there are no rows.

    :param size: how many things a row stands for.
    """
    if not rows:
        return
    yield f"\n### {title} ({sum(map(size, rows))})\n"
    yield f"| {' | '.join(head)} |"
    yield "|" + " --- |" * len(head)
    yield from (f"| {' | '.join(cells(row))} |" for row in rows[:SHOWN])
    if hidden := sum(map(size, rows[SHOWN:])):
        yield f"\n{describe_count(hidden, 'more is', 'more are')} in the JSON report."
