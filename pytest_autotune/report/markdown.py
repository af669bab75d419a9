"""A run's result as Markdown: for the summary page of a CI job, a comment or a mail.

Text from caches and tests stands in code spans, where GitHub and GitLab read no markup.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_autotune.cache.diff import Change
from pytest_autotune.cache.wording import describe_count, describe_seconds, to_one_line
from pytest_autotune.report.findings import MISS_WORDS, Cost, list_findings, list_kernel_costs, list_test_costs
from pytest_autotune.report.hints import list_hints
from pytest_autotune.report.naming import describe_change, describe_problem
from pytest_autotune.report.summary import list_count_lines, list_notes
from pytest_autotune.report.verdict import build_verdict, list_facts
from pytest_autotune.run.result import Finding, RunResult

_SIGNS = {"failed": "❌", "passed": "✅", "unjudged": "❔"}
#: The titles of the tables of findings, by the word of the findings. For other words, the word is the title.
_TITLES = dict.fromkeys(MISS_WORDS, "Missing or stale") | {
    "UNTRACKED": "Tuned without the plugin",
    "UNRECORDED": "Not saved",
}
#: The largest number of rows in a table.
_MAX_ROWS = 100
#: The largest number of characters in a cell, and in a line of counts.
_MAX_CELL_LENGTH = 300
#: The largest number of characters in a line outside tables, such as a command to type.
_MAX_LINE_LENGTH = 2000


def to_markdown(result: RunResult) -> str:
    """Return the result as Markdown text, in the dialect that GitHub and GitLab share."""
    lines = ["# Autotune cache", *_list_head_lines(result)]
    for table in _list_tables(result):
        lines += table.list_lines()
    return "\n".join(lines) + "\n"


def format_cell(text: str) -> str:
    """Return text as a code span for a cell of a table; empty for blank text."""
    # In a table, a bar ends a cell even inside a code span, and a backslash in front of the bar is not shown. Outside
    # of tables the backslash would be shown.
    return format_code(text, _MAX_CELL_LENGTH).replace("|", r"\|")


def format_code(text: str, max_length: int = _MAX_LINE_LENGTH) -> str:
    """Return text as a code span outside of tables; empty for blank text.

    If the text has backticks, Markdown needs more backticks around it: text with single backticks gets double ones.
    """
    text = to_one_line(text, max_length)
    if not text.strip():
        return ""
    longest_run = max(re.findall("`+", text), key=len, default="")
    fence = longest_run + "`"
    padding = ""
    if text.startswith("`") or text.endswith("`"):
        # A blank keeps the text's own backtick apart from the fence. Markdown does not show it.
        padding = " "
    return f"{fence}{padding}{text}{padding}{fence}"


def _list_head_lines(result: RunResult) -> Iterator[str]:
    """Yield the verdict, the hints, the counts and the facts."""
    verdict = build_verdict(result)
    yield f"\n{_SIGNS[verdict.state]} **{format_code(verdict.reason)}**"
    for hint in list_hints(result):
        yield f"\n{format_code(hint)}"
    for line in list_count_lines(result):
        if line.text != verdict.reason:
            yield f"\n{format_code(line.text, _MAX_CELL_LENGTH)}"
    for title, text in list_facts(result):
        yield f"\n{title}: {format_code(text)}"


@dataclass(frozen=True)
class _Row:
    """A row of a table.

    :param cells: Markdown.
    :param problem_count: the number of problems that the row stands for.
    """

    cells: Sequence[str]
    problem_count: int = 1


@dataclass(frozen=True)
class _Table:
    """A table with a heading."""

    title: str
    header: Sequence[str]
    rows: Sequence[_Row]

    def list_lines(self) -> list[str]:
        """Return the lines of the table, with a line about the rows that do not fit; none if it has no rows."""
        if not self.rows:
            return []
        lines = [
            f"\n### {self.title} ({_count_problems(self.rows)})\n",
            _join_cells(self.header),
            "|" + " --- |" * len(self.header),
        ]
        for row in self.rows[:_MAX_ROWS]:
            lines.append(_join_cells(row.cells))
        hidden_count = _count_problems(self.rows[_MAX_ROWS:])
        if hidden_count:
            lines.append(
                f"\n{describe_count(hidden_count, 'more problem is', 'more problems are')} only in the JSON report."
            )
        return lines


def _count_problems(rows: Sequence[_Row]) -> int:
    return sum(row.problem_count for row in rows)


def _join_cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _list_tables(result: RunResult) -> list[_Table]:
    """Return the tables in their order. Some may have no rows."""
    changes_title = "Different from the loaded cache"
    if result.dump is not None:
        changes_title = "Changes in the written file"
    change_rows = list(map(_build_change_row, result.changes.changes))
    note_rows = [_Row([format_cell(note.text)]) for note in list_notes(result, verbosity=1)]
    return [
        *_list_finding_tables(result),
        _Table(changes_title, ["", "problem", "choice", "time"], change_rows),
        _build_cost_table("Time of tuning by kernel", list_kernel_costs(result)),
        _build_cost_table("Time of tuning by test", list_test_costs(result)),
        _Table("Notes", [""], note_rows),
    ]


def _list_finding_tables(result: RunResult) -> list[_Table]:
    """Return a table for each title of findings, such as ``Missing or stale`` for all kinds of misses."""
    rows_by_title: defaultdict[str, list[_Row]] = defaultdict(list)
    for finding in list_findings(result):
        title = _TITLES.get(finding.word, finding.word.capitalize())
        rows_by_title[title].append(_build_finding_row(finding))
    tables = []
    for title, rows in rows_by_title.items():
        tables.append(_Table(title, ["", "test", "problem", "why"], rows))
    return tables


def _build_finding_row(finding: Finding) -> _Row:
    test = format_cell(finding.test)
    if finding.other_test_count:
        test += f" and {describe_count(finding.other_test_count, 'more test')}"
    return _Row([finding.word, test, format_cell(finding.problem), format_cell(finding.text)], finding.problem_count)


def _build_change_row(change: Change) -> _Row:
    choice, time = describe_change(change)
    return _Row([change.kind.value, format_cell(describe_problem(change.entry.problem)), format_cell(choice), time])


def _build_cost_table(title: str, costs: Sequence[Cost]) -> _Table:
    rows = []
    for cost in costs:
        rows.append(_Row([format_cell(cost.name), str(cost.search_count), describe_seconds(cost.seconds)]))
    return _Table(title, ["", "searches", "time"], rows)
