"""The words of a mode or of a gate at the end of a run, as data that renderers show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_autotune.cache.model import Problem


@dataclass(frozen=True)
class Gate:
    """The verdict on a limit of a run: on its misses and unused entries, or on the measurements of a mode.

    The limit itself, as a number, is a :class:`pytest_autotune.report.gate.Limit`. Only the code that judges needs it.

    :param limit: as the user wrote it; empty if the user set none.
    :param failure: why the run fails; empty if it passes.
    :param skip_reason: why nothing was judged; empty if something was.
    :param is_usage_error: the options of the run are wrong, and not its problems.
    :param fail_on_unused: unused entries fail the run, too.
    """

    limit: str = ""
    failure: str = ""
    skip_reason: str = ""
    is_usage_error: bool = False
    fail_on_unused: bool = False


@dataclass(frozen=True)
class Finding:
    """A line of the summary about one problem or several. Modes have findings, and reports build them from rows.

    :param word: the first word of the row: ``"FAILED"``.
    :param problem: the problem in words. A row about several problems has the words that they share.
    :param test: the node id of the first test that the row is about; empty if there is none.
    :param is_failure: a test or the run fails because of the row.
    :param problem_count: the number of problems in the row.
    :param other_test_count: the number of tests beside ``test``.
    """

    word: str
    problem: str
    text: str
    test: str = ""
    is_failure: bool = False
    problem_count: int = 1
    other_test_count: int = 0

    def __str__(self) -> str:
        if not self.test:
            return f"{self.problem}: {self.text}"
        return f"{self.test} - {self.problem}: {self.text}"


@dataclass(frozen=True)
class ProblemRemark:
    """The words of a mode about one problem.

    :param data: for the JSON report, by key, beside the data of the lookup.
    :param word: the word under which reports count and filter such problems, for example ``"slower"``; empty if the
        problem does not stand out.
    """

    text: str
    data: Mapping[str, Any]
    word: str = ""


@dataclass(frozen=True)
class Section:
    """The words of a mode at the end of a run.

    :param typed_value: the value of the mode's option, as a user types it.
    :param stands_for_counts: the lines replace the counts; else they follow the counts.
    :param notes: lines in front of the counts.
    :param data: for the JSON report, by key, beside the data of the run.
    :param gate: the verdict of the mode; None if the mode judges nothing.
    """

    name: str
    typed_value: str
    lines: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    stands_for_counts: bool = False
    notes: tuple[str, ...] = ()
    problem_remarks: Mapping[Problem, ProblemRemark] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    gate: Gate | None = None
