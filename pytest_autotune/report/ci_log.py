"""What GitHub reads of a result from the log of a job: annotations at the tests.

A line ``::error file=F,line=N,title=T::message``, in which ``%``, line breaks and, in properties, ``:`` and
``,`` are percent-encoded. It shows ten errors and ten warnings of a step:
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.report.grouping import groups
from pytest_autotune.report.hints import hints
from pytest_autotune.report.naming import described
from pytest_autotune.run.result import Place, Result
from pytest_autotune.run.rows import NOT_COVERED, Row

#: How many annotations of one level GitHub shows of a step.
SHOWN = 10
#: How many problems, or groups of them that say the same, one annotation names.
_NAMED = 10
_TITLE = "autotune cache"
#: What GitHub takes of a step's result, in bytes, and some room for what other tools write there.
SUMMARY_BYTES = 1024 * 1024 - 64 * 1024
#: Of what no test asked for.
NOWHERE = Place("")


def github_annotations(result: Result) -> list[str]:
    """Lines that GitHub turns into annotations: why the run fails, and at each test what it asked for and was no hit.

    They are errors where the run or the test fails for it, and else warnings.
    """
    to_do = " ".join(hints(result))
    lines = [_command("error", failure, to_do) for failure in result.failures[:SHOWN]]
    found: defaultdict[str, defaultdict[Place, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for finding in findings(result):
        found["error" if finding.fails else "warning"][finding.place].append(finding)
    for level, room in (("error", SHOWN - len(lines)), ("warning", SHOWN)):
        places = sorted(found[level], key=lambda place: (place.path, place.line))
        shown = places if len(places) <= room else places[: max(room - 1, 0)]
        lines += [_annotation(level, place, found[level][place]) for place in shown]
        if hidden := len(places) - len(shown):
            what = counted(hidden, "more test asks", "more tests ask")
            lines += [_command(level, f"{what} for what is no hit; the section of the log names all with -v")]
    if result.unused:
        what = counted(len(result.unused), "entry is", "entries are")
        them = "it" if len(result.unused) == 1 else "them"
        lines.append(_command("notice", f"{what} unused: in this complete run no test asked for {them}"))
    return lines


@dataclass(frozen=True)
class Finding:
    """Something that the author of a test is to know.

    :param word: what it is, as rows of the terminal begin: ``"stale"``.
    :param text: problem and reason, or kernel and reason.
    :param fails: the run or the test fails for it.
    :param row: the problem, where it is one that is no hit: several of these may be told as one.
    """

    word: str
    text: str
    place: Place
    fails: bool
    row: Row | None = None

    def __str__(self) -> str:
        return f"{self.word.upper()} {self.text}"


def findings(result: Result) -> Iterator[Finding]:
    """All findings of a run, in the order of its rows."""

    def of(row: Row, word: str, why: str, fails: bool, tests: Sequence[str]) -> Finding:
        # Of a test whose worker died, only its name is known.
        known = [result.places.get(test) or Place(test.partition("::")[0]) for test in tests]
        place = max(known, key=lambda one: one.line > 0, default=NOWHERE)
        text = f"{described(row.problem, row.label)}: {why}"
        return Finding(word, text, place, fails)

    gate_fails, drift_fails = bool(result.gate.failure), bool(result.drift.failure)
    for row in result.rows:
        if row.outcome in NOT_COVERED:
            assert row.outcome is not None
            fails = gate_fails or row.outcome in result.request.refused
            yield replace(of(row, row.outcome.value, row.reason, fails, row.tests), row=row)
    for row in result.slower:
        yield of(row, "slower", str(row.verdict), drift_fails, row.tests)
    for one in (one for section in result.sections for one in section.findings if one.fails):
        place = result.places.get(one.test) or Place(one.test.partition("::")[0])
        yield Finding(one.word.lower(), f"{one.problem}: {one.what}", place, fails=True)
    for kernel in result.untracked:
        text = f"{kernel}: tuned without passing the plugin"
        yield Finding("untracked", text, NOWHERE, gate_fails)


def _annotation(level: str, place: Place, found: Sequence[Finding]) -> str:
    """All that is found at one place."""
    together = groups([one.row for one in found if one.row is not None])
    told = [(f"{group.outcome.value.upper()} {group}", len(group.rows)) for group in together]
    told += [(str(one), 1) for one in found if one.row is None]
    named = [words for words, _ in told[:_NAMED]]
    if more := sum(number for _, number in told[_NAMED:]):
        named.append(f"… and {more} more")
    where = {"file": place.path, "line": str(place.line) if place.line else ""} if place.path else {}
    return _command(level, *named, title=f"{_TITLE}: {', '.join(sorted({one.word for one in found}))}", **where)


def _command(level: str, *lines: str, title: str = _TITLE, **where: str) -> str:
    properties = {**where, "title": title}
    written = ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value)
    data = "%0A".join(one_line(line).replace("%", "%25") for line in lines if line)
    return f"::{level} {written}::{data}"


def _property(text: str) -> str:
    return one_line(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
