"""The section ``autotune cache`` of the terminal's summary, as lines.

:mod:`pytest_autotune.plugin.reports` prints the lines. Its counts and its notes have modules of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pytest_autotune.report.counts import list_count_lines
from pytest_autotune.report.findings import count_problems, list_findings
from pytest_autotune.report.hints import list_hints
from pytest_autotune.report.line import Line
from pytest_autotune.report.naming import describe_row_count
from pytest_autotune.report.notes import list_notes, list_warnings
from pytest_autotune.run.result import Finding, RunResult

#: The number of findings with the same word that are shown without ``-v``.
_MAX_SHOWN = 10


def render_section(result: RunResult, verbosity: int) -> list[Line]:
    """Return the lines of the section; none if the verbosity leaves nothing to say.

    - ``-qq`` shows only what fails the run.
    - ``-q`` also shows the dump, crashed workers and warnings. If something needs attention, it shows counts and hints.
    - The default also shows findings, ten of each word.
    - ``-v`` shows all findings, and a row for each problem.

    Findings that fail the gate are shown at every verbosity.
    """
    lines = _list_finding_lines(_select_findings(result, verbosity), verbosity)
    if verbosity < -1:
        if result.gate.failure:
            lines += list_warnings(result)
        return lines + _list_error_lines(result)
    has_counts = verbosity >= 0 or _needs_attention(result)
    lines += list_notes(result, verbosity)
    lines += list_count_lines(result, has_counts=has_counts)
    if verbosity >= 0:
        lines += _list_mode_lines(result)
    lines += _list_error_lines(result)
    if has_counts:
        lines += map(Line, list_hints(result))
    for gate in (result.gate, *result.gates_of_modes):
        if gate.skip_reason:
            lines.append(Line(gate.skip_reason))
    return lines


def _select_findings(result: RunResult, verbosity: int) -> list[Finding]:
    """Return the findings to show: with ``-q``, only those that fail the run, if a gate fails."""
    findings = list_findings(result, is_grouped=verbosity <= 0)
    if verbosity >= 0:
        return findings
    for gate in (result.gate, *result.gates_of_modes):
        if gate.failure:
            return [finding for finding in findings if finding.is_failure]
    return []


def _needs_attention(result: RunResult) -> bool:
    """Whether a run is not all well, so that even ``-q`` shows its counts."""
    if result.miss_count or result.unused_entries or result.gate.failure or result.counts["unrecorded"]:
        return True
    if result.collected.unhooked or result.collected.notes:
        return True
    has_judged_nothing = bool(result.gate.limit) and not result.problem_count
    return has_judged_nothing


def _list_finding_lines(findings: Sequence[Finding], verbosity: int) -> list[Line]:
    """Return a line for each finding, ordered by word, and a line that counts the hidden findings of each word."""
    findings_by_word: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        findings_by_word[finding.word].append(finding)
    lines = []
    for word, word_findings in findings_by_word.items():
        shown_count = len(word_findings)
        if verbosity <= 0:
            shown_count = _MAX_SHOWN
        for finding in word_findings[:shown_count]:
            color = "red" if finding.is_failure else "yellow"
            lines.append(Line(f" {finding}", word, color))
        hidden_count = count_problems(word_findings[shown_count:])
        if hidden_count:
            rows = describe_row_count(hidden_count, word, "more ")
            lines.append(Line(f"({rows} hidden.  Use -v to show all.)"))
    return lines


def _list_error_lines(result: RunResult) -> list[Line]:
    lines = []
    for error in result.errors:
        lines.append(Line(f" {error}", "ERROR", "red"))
    return lines


def _list_mode_lines(result: RunResult) -> list[Line]:
    """Return the lines of the modes that follow the counts. The first line of a mode with findings is yellow."""
    lines = []
    for section in result.sections:
        if section.stands_for_counts:
            continue
        for number, text in enumerate(section.lines):
            color = ""
            if section.findings and number == 0:
                color = "yellow"
            lines.append(Line(text, color=color))
    return lines
