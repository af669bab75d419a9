"""Annotations: lines in the log of a job that GitHub shows beside the code of a test.

A line is ``::error file=F,line=N,title=T::message``. ``%`` and line breaks are percent-encoded, in properties also
``:`` and ``,``. GitHub shows ten errors and ten warnings of a step:
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_autotune.cache.wording import describe_count, to_one_line
from pytest_autotune.report.findings import MISS_WORDS, count_problems, list_findings, list_uncovered
from pytest_autotune.report.hints import list_hints
from pytest_autotune.run.result import Finding, RunResult, SourceLocation
from pytest_autotune.run.rows import ProblemRow

#: The number of errors, and of warnings, that GitHub shows of a step.
_MAX_ANNOTATIONS = 10
#: The number of findings that an annotation lists.
_MAX_LISTED_FINDINGS = 10
_TITLE = "autotune cache"
#: The most bytes of a step's summary: GitHub's limit is 1 MiB, and 64 KiB of it are left to other tools.
SUMMARY_BYTES = 1024 * 1024 - 64 * 1024
#: The location of findings that no test asked for.
_NOWHERE = SourceLocation("")


@dataclass(frozen=True)
class _LocatedFinding:
    """A finding, and the place of its test."""

    location: SourceLocation
    finding: Finding


def list_annotations(result: RunResult) -> list[str]:
    """Return an annotation for each failure of the run, and for each test with findings.

    The findings of a test are the problems that it asked for and that are no hits, for example. An annotation is an
    error if the run or the test fails because of it, else a warning.
    """
    hints = list_hints(result)
    annotations = []
    for failure in result.failures[:_MAX_ANNOTATIONS]:
        annotations.append(_format_command("error", [failure, *hints]))
    error_findings: list[_LocatedFinding] = []
    other_findings: list[_LocatedFinding] = []
    for located in _locate_findings(result):
        if located.finding.is_failure:
            error_findings.append(located)
        else:
            other_findings.append(located)
    annotations += _annotate("error", error_findings, _MAX_ANNOTATIONS - len(annotations))
    annotations += _annotate("warning", other_findings, _MAX_ANNOTATIONS)
    return annotations


def _locate_findings(result: RunResult) -> list[_LocatedFinding]:
    """Return the findings with their locations in the code.

    Similar misses of tests at the same line, such as the parameters of a test, become a single finding.
    """
    rows_by_location: defaultdict[SourceLocation, list[ProblemRow]] = defaultdict(list)
    for row in result.rows:
        rows_by_location[_locate_row(result, row)].append(row)
    located_findings = []
    for location, rows in rows_by_location.items():
        for finding in list_uncovered(result, rows):
            located_findings.append(_LocatedFinding(location, finding))
    for finding in list_findings(result, is_grouped=False):
        if finding.word in MISS_WORDS:
            # The loop above has located all misses.
            continue
        # Unused entries have no test. They are shown only if they fail the run.
        if finding.test or finding.is_failure or finding.word == "UNTRACKED":
            located_findings.append(_LocatedFinding(_locate_test(result, finding.test), finding))
    return located_findings


def _locate_row(result: RunResult, row: ProblemRow) -> SourceLocation:
    """Return the location of the first test of a problem whose line is known, else that of its first test."""
    if not row.tests:
        return _NOWHERE
    for test in row.tests:
        location = _locate_test(result, test)
        if location.line > 0:
            return location
    return _locate_test(result, row.tests[0])


def _locate_test(result: RunResult, test: str) -> SourceLocation:
    """Return the location of a test. If its worker died, only its file is known, from its node id: ``t.py::test_a``."""
    test_file = test.partition("::")[0]
    return result.test_places.get(test, SourceLocation(test_file))


def _annotate(level: str, located_findings: Sequence[_LocatedFinding], room: int) -> list[str]:
    """Return an annotation for each location, ordered by file and line.

    :param level: ``"error"`` or ``"warning"``.
    :param room: the most annotations to return. The last annotation counts the locations that have no room.
    """
    if room <= 0:
        # GitHub would hide any further annotation.
        return []
    findings_by_location: defaultdict[SourceLocation, list[Finding]] = defaultdict(list)
    for located in located_findings:
        findings_by_location[located.location].append(located.finding)
    locations = sorted(findings_by_location, key=lambda location: (location.path, location.line))
    shown_count = len(locations)
    if shown_count > room:
        # The last annotation is for the count.
        shown_count = room - 1
    annotations = []
    for location in locations[:shown_count]:
        annotations.append(_format_annotation(level, location, findings_by_location[location]))
    hidden_count = len(locations) - shown_count
    if hidden_count:
        tests = describe_count(hidden_count, "more test has", "more tests have")
        line = f"{tests} problems with the autotune cache (pytest -v lists all)"
        annotations.append(_format_command(level, [line]))
    return annotations


def _format_annotation(level: str, location: SourceLocation, findings: Sequence[Finding]) -> str:
    """Return the annotation of a location, with a line for each of its first findings."""
    lines = []
    for finding in findings[:_MAX_LISTED_FINDINGS]:
        lines.append(f"{finding.word} {finding.problem}: {finding.text}")
    hidden_count = count_problems(findings[_MAX_LISTED_FINDINGS:])
    if hidden_count:
        lines.append(f"… and {hidden_count} more")
    words = sorted({finding.word.lower() for finding in findings})
    return _format_command(level, lines, location, f"{_TITLE}: {', '.join(words)}")


def _format_command(level: str, lines: Sequence[str], location: SourceLocation = _NOWHERE, title: str = _TITLE) -> str:
    """Return a line that GitHub reads as a command: ``::error file=t.py,line=3,title=autotune cache::MISS …``.

    :param level: ``"error"`` or ``"warning"``.
    :param lines: the lines of the message. Empty lines are left out.
    """
    properties = []
    if location.path:
        properties.append(f"file={_encode_property(location.path)}")
        if location.line:
            properties.append(f"line={location.line}")
    properties.append(f"title={_encode_property(title)}")
    encoded_lines = []
    for line in lines:
        if line:
            encoded_lines.append(to_one_line(line).replace("%", "%25"))
    return f"::{level} {','.join(properties)}::{'%0A'.join(encoded_lines)}"


def _encode_property(text: str) -> str:
    """Return the text with percent-encodings of the characters that would end a property."""
    return to_one_line(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
