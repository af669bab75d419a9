"""The mode ``--autotune-problems``: which problems of production does no test ask for?

``pytest_autotune.use(…, report=PATH)`` wrote the problems of production into files, one JSON object for each line:
``{"tuner": "triton", "kernel": "lib.matmul", "key": {"M": 4096}}``. A problem is covered if a test of this run asks for
its kernel with its key, on any device.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_autotune.cache import stores
from pytest_autotune.cache.distance import distance, launch_key
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.wording import describe_count, to_one_line
from pytest_autotune.run.result import Finding, Gate, RunResult, Section
from pytest_autotune.run.session import Mode

#: The names and values of a problem's key.
Key = frozenset[tuple[str, Any]]
_NO_PROBLEM = "is not a line that pytest_autotune.use(report=PATH) wrote"


@dataclass(frozen=True)
class ProductionProblem:
    """A problem that production asked for, on any device."""

    tuner: str
    kernel: str
    key: Key

    def __str__(self) -> str:
        values = [f"{name}={value}" for name, value in sorted(self.key)]
        return f"{self.tuner}:{self.kernel} ({', '.join(values)})"


@dataclass
class ProblemReports:
    """The content of the files that production wrote.

    :param counts: how often each problem was reported.
    :param torn_lines: the places of lines that a kill or a full disk cut off.
    """

    counts: Counter[ProductionProblem] = field(default_factory=Counter)
    torn_lines: list[str] = field(default_factory=list)

    def add_file(self, path: str, typed_path: str) -> None:
        """Add the problems of a file. A line that is no JSON was probably cut off by a kill, and is left out.

        :param typed_path: the path as the user typed it, for messages.
        :raises CacheError: if the file holds anything else, or nothing but torn lines.
        """
        lines = stores.read_file(path, typed_path).decode("utf-8", "replace").splitlines()
        problem_count = 0
        torn_lines = []
        for number, line in enumerate(lines, 1):
            place = f"{typed_path}:{number}"
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                torn_lines.append(place)
                continue
            self.counts[_decode_problem(values, place)] += 1
            problem_count += 1
        if torn_lines and not problem_count:
            # The user named a file of another kind.
            raise CacheError(torn_lines[0], _NO_PROBLEM)
        self.torn_lines += torn_lines


def _decode_problem(values: Any, place: str) -> ProductionProblem:
    """Return the problem of a line. Every text in it is made one line, because a file may come from elsewhere.

    :param values: the parsed JSON of the line.
    :param place: of the line, for messages.
    :raises CacheError: if the line holds no problem.
    """
    try:
        key = {}
        for name, value in values["key"].items():
            key[to_one_line(str(name))] = _to_hashable(value)
        tuner, kernel = to_one_line(str(values["tuner"])), to_one_line(str(values["kernel"]))
        return ProductionProblem(tuner, kernel, frozenset(key.items()))
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise CacheError(place, _NO_PROBLEM) from None


def _to_hashable(value: Any) -> Any:
    """Return a value of JSON as Python had it: JSON writes the tuple ``(16, 32)`` as the list ``[16, 32]``."""
    if isinstance(value, list):
        return tuple(map(_to_hashable, value))
    return value


class ProblemsOfTests:
    """The problems of a run, and the first test of each."""

    def __init__(self, result: RunResult) -> None:
        #: (tuner, kernel) -> key -> node id of the first test that asks for the key; empty for a lookup outside tests.
        self._tests_by_kernel: dict[tuple[str, str], dict[Key, str]] = {}
        # If two tests are equally near, the test whose problem comes first in a file is named, as in runs.
        for row in sorted(result.rows, key=lambda row: row.problem.sort_key):
            key = frozenset(launch_key(row.problem.key).items())
            first_test = ""
            if row.tests:
                first_test = row.tests[0]
            test_by_key = self._tests_by_kernel.setdefault((row.problem.tuner, row.problem.kernel), {})
            # The same key on another device keeps the first test.
            test_by_key.setdefault(key, first_test)

    def has(self, problem: ProductionProblem) -> bool:
        """Whether a test asks for a problem."""
        return problem.key in self._tests_by_kernel.get((problem.tuner, problem.kernel), {})

    def build_finding(self, problem: ProductionProblem, count: int) -> Finding:
        """Return the finding about a problem that no test asks for. It names the test of the nearest problem.

        :param count: how often production asked for the problem.
        """
        text = "used in production, but by no test"
        if count > 1:
            text = f"used in production {count} times, but by no test"
        problem_text = to_one_line(str(problem))
        test_by_key = self._tests_by_kernel.get((problem.tuner, problem.kernel), {})
        if not test_by_key:
            # No test asks for the kernel at all, so there is no nearest problem.
            return Finding("UNCOVERED", problem_text, f"{text}; no test calls this kernel at all")
        wanted = dict(problem.key)
        nearest_key = min(test_by_key, key=lambda tested_key: distance(wanted, dict(tested_key)))
        differing_values = [f"{name}={value}" for name, value in sorted(nearest_key - problem.key)]
        # Without a differing value, the nearest key has only a part of the problem's values.
        nearest = ", ".join(differing_values) or "a key with fewer values"
        return Finding("UNCOVERED", problem_text, f"{text}; the nearest test has {nearest}", test_by_key[nearest_key])


class Problems(Mode):
    """The mode that compares the problems of production with the problems of the tests, when the run ends.

    :param files: the path of each file, and the path as the user typed it.
    """

    name = "problems"

    def __init__(self, files: Sequence[tuple[str, str]]) -> None:
        self._files = files

    @property
    def typed_value(self) -> str:
        """The paths of the files, as the user types them."""
        return " ".join(typed_path for _, typed_path in self._files)

    def build_section(self, result: RunResult) -> Section:
        """Return the section about the problems of production that no test asks for."""
        reports = ProblemReports()
        try:
            for path, typed_path in self._files:
                reports.add_file(path, typed_path)
        except CacheError as error:
            # A file that cannot be read fails the run.
            gate = Gate(self.typed_value, f"--autotune-problems: {error}")
            return Section(self.name, self.typed_value, gate=gate)
        tested = ProblemsOfTests(result)
        uncovered = [problem for problem in reports.counts if not tested.has(problem)]
        # The problem that production asked for most often comes first.
        uncovered.sort(key=lambda problem: (-reports.counts[problem], str(problem)))
        findings = [tested.build_finding(problem, reports.counts[problem]) for problem in uncovered]
        lines = _list_lines(reports, len(findings), result.collected.incomplete_reason)
        json_rows = []
        for finding in findings:
            json_rows.append({"problem": finding.problem, "nearest_test": finding.test, "reason": finding.text})
        return Section(self.name, self.typed_value, lines, tuple(findings), data={"uncovered": json_rows})


def _list_lines(reports: ProblemReports, uncovered_count: int, incomplete_reason: str) -> tuple[str, ...]:
    """Return the lines of the summary: the numbers, and the place of the first torn line.

    :param incomplete_reason: why the run was not complete; empty if it was complete.
    """
    problems = f"{describe_count(len(reports.counts), 'problem')} used in production"
    if not uncovered_count:
        line = f"{problems}, all covered by the tests"
    else:
        line = f"{problems}: {uncovered_count} not covered by the tests"
        if incomplete_reason:
            line += f" (tests that did not run may cover more: {incomplete_reason})"
    if not reports.torn_lines:
        return (line,)
    count = describe_count(len(reports.torn_lines), "line")
    return line, f"{reports.torn_lines[0]}: the line was cut off by a kill or a full disk ({count} ignored)"


def make(problems: Sequence[Any]) -> Problems:
    """Make the mode from its option.

    :param problems: the parsed arguments, each with a location.
    """
    return Problems([(file.location.url or str(file.location.path), file.typed) for file in problems])
