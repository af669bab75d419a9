"""What GitHub reads of a result from the log of a job: annotations at the tests.

A line ``::error file=F,line=N,title=T::message``, in which ``%``, line breaks and, in properties, ``:`` and
``,`` are percent-encoded. It shows ten errors and ten warnings of a step:
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.report.findings import MISS_WORDS, list_findings, list_uncovered
from pytest_autotune.report.hints import list_hints
from pytest_autotune.run.result import RunResult, SourceLocation
from pytest_autotune.run.rows import ProblemRow
from pytest_autotune.run.section import Finding

#: How many annotations of one level GitHub shows of a step.
SHOWN = 10
#: How many problems, or groups of them that say the same, one annotation names.
_NAMED = 10
_TITLE = "autotune cache"
#: What GitHub takes of a step's result, in bytes, and some room for what other tools write there.
SUMMARY_BYTES = 1024 * 1024 - 64 * 1024
#: Of what no test asked for.
NOWHERE = SourceLocation("")


def github_annotations(result: RunResult) -> list[str]:
    """Lines that GitHub turns into annotations: why the run fails, and at each test what it asked for and was no hit.

    They are errors where the run or the test fails for it, and else warnings.
    """
    lines = [_command("error", failure, *list_hints(result)) for failure in result.failures[:SHOWN]]
    found = _by_place(result)
    for level, room in (("error", SHOWN - len(lines)), ("warning", SHOWN)):
        places = sorted(found[level], key=lambda place: (place.path, place.line))
        shown = places if len(places) <= room else places[: max(room - 1, 0)]
        lines += [_annotation(level, place, found[level][place]) for place in shown]
        if hidden := len(places) - len(shown):
            what = describe_count(hidden, "more test asks", "more tests ask")
            lines += [_command(level, f"{what} for what is no hit; the section of the log names all with -v")]
    return lines


def _by_place(result: RunResult) -> Mapping[str, Mapping[SourceLocation, list[Finding]]]:
    """Level -> place -> what is to be reported there."""
    rows: defaultdict[SourceLocation, list[ProblemRow]] = defaultdict(list)
    for row in result.rows:
        # Of a test whose worker died, only its name is known.
        known = [_place(result, test) for test in row.tests]
        rows[max(known, key=lambda one: one.line > 0, default=NOWHERE)].append(row)
    placed = [(place, one) for place, those in rows.items() for one in list_uncovered(result, those)]
    others = (one for one in list_findings(result, is_grouped=False) if one.word not in MISS_WORDS)
    others = (one for one in others if one.test or one.is_failure or one.word == "UNTRACKED")
    placed += [(_place(result, one.test), one) for one in others]
    found: Mapping[str, defaultdict[SourceLocation, list[Finding]]] = {
        "error": defaultdict(list),
        "warning": defaultdict(list),
    }
    for place, one in placed:
        found["error" if one.is_failure else "warning"][place].append(one)
    return found


def _place(result: RunResult, test: str) -> SourceLocation:
    return result.test_places.get(test) or SourceLocation(test.partition("::")[0])


def _annotation(level: str, place: SourceLocation, found: Sequence[Finding]) -> str:
    named = [f"{one.word} {one.problem}: {one.text}" for one in found[:_NAMED]]
    if more := sum(one.problem_count for one in found[_NAMED:]):
        named.append(f"… and {more} more")
    where = {"file": place.path, "line": str(place.line) if place.line else ""} if place.path else {}
    return _command(level, *named, title=f"{_TITLE}: {', '.join(sorted({one.word.lower() for one in found}))}", **where)


def _command(level: str, *lines: str, title: str = _TITLE, **where: str) -> str:
    properties = {**where, "title": title}
    written = ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value)
    data = "%0A".join(to_one_line(line).replace("%", "%25") for line in lines if line)
    return f"::{level} {written}::{data}"


def _property(text: str) -> str:
    return to_one_line(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
