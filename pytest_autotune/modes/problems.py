"""Problems that production asked for, as ``pytest_autotune.use(…, report=…)`` wrote them down: does a test, too?

One is covered where a test of this run asks for its kernel with its key, on whatever device.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_autotune.cache import stores
from pytest_autotune.cache.distance import distance, launch_key
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.run.mode import Mode
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.section import Finding, Gate, Section

_NO_PROBLEM = "is no problem that pytest_autotune.use() reported"


@dataclass(frozen=True)
class Wanted:
    """A problem that production asked for, wherever it ran."""

    tuner: str
    kernel: str
    key: frozenset[tuple[str, Any]]

    def __str__(self) -> str:
        return f"{self.tuner}:{self.kernel} ({', '.join(f'{name}={value}' for name, value in sorted(self.key))})"


class Problems(Mode):
    """See above; of each file the path, and how it was typed. They are read where the run comes together."""

    name = "problems"

    def __init__(self, files: Sequence[tuple[str, str]]) -> None:
        self._files = files

    def __str__(self) -> str:
        return " ".join(typed for _, typed in self._files)

    def build_section(self, result: RunResult) -> Section:
        wanted: Counter[Wanted] = Counter()
        torn: list[str] = []
        try:
            for path, typed in self._files:
                wanted.update(_read(path, typed, torn))
        except CacheError as error:
            return Section(self.name, str(self), gate=Gate(str(self), f"--autotune-problems: {error}"))
        tests: defaultdict[tuple[str, str], dict[frozenset[tuple[str, Any]], str]] = defaultdict(dict)
        # Of two tests that are equally near, the one whose problem comes first in a file is named, as in runs.
        for row in sorted(result.rows, key=lambda row: row.problem.sort_key):
            key = frozenset(launch_key(row.problem.key).items())
            tests[row.problem.tuner, row.problem.kernel].setdefault(key, row.tests[0] if row.tests else "")
        uncovered = [one for one in wanted if one.key not in tests[one.tuner, one.kernel]]
        uncovered.sort(key=lambda one: (-wanted[one], str(one)))
        found = [_finding(one, wanted[one], tests[one.tuner, one.kernel]) for one in uncovered]
        missing = f": {len(found)} not covered by the suite" if found else ", all covered"
        why = result.collected.incomplete_reason
        so_far = f" (this run was not complete: {why})" if found and why else ""
        line = f"{describe_count(len(wanted), 'problem')} of production{missing}{so_far}"
        lines = [line]
        if torn:
            lines.append(f"{torn[0]}: cut off, by a kill or a full disk ({describe_count(len(torn), 'line')} left out)")
        data = [{"problem": one.problem, "nearest_test": one.test, "reason": one.text} for one in found]
        return Section(self.name, str(self), tuple(lines), tuple(found), data={"uncovered": data})


def make(problems: Sequence[Any]) -> Problems:
    """The mode, by its options."""
    return Problems([(file.location.url or str(file.location.path), file.typed) for file in problems])


def _read(path: str, where: str, torn: list[str]) -> list[Wanted]:
    """Return the problems in a file, each as often as it stands there.

    :param torn: gets the place of each line that is only a part of one.
    :raises CacheError: for a file that holds something else.
    """
    found = []
    first_torn = len(torn)
    try:
        lines = stores.read_file(path).decode("utf-8", "replace").splitlines()
    except CacheError as error:
        raise CacheError(where, error.event) from None
    for number, line in enumerate(lines, 1):
        place = f"{where}:{number}"
        try:
            given = json.loads(line)
        except (ValueError, RecursionError):
            torn.append(place)
            continue
        try:
            key = {to_one_line(str(name)): _hashable(value) for name, value in given["key"].items()}
            found.append(
                Wanted(to_one_line(str(given["tuner"])), to_one_line(str(given["kernel"])), frozenset(key.items()))
            )
        except (KeyError, TypeError, AttributeError, RecursionError):
            raise CacheError(place, _NO_PROBLEM) from None
    if torn[first_torn:] and not found:
        raise CacheError(torn[first_torn], _NO_PROBLEM)
    return found


def _hashable(value: Any) -> Any:
    """A value of JSON, which writes a tuple as a list."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _finding(wanted: Wanted, times: int, tests: Mapping[frozenset[tuple[str, Any]], str]) -> Finding:
    often = f" {times} times" if times > 1 else ""
    what = f"asked for in production{often}, and by no test"
    if not tests:
        return Finding("UNCOVERED", to_one_line(str(wanted)), f"{what}, nor is this kernel with another key")
    near = min(tests, key=lambda key: distance(dict(wanted.key), dict(key)))
    differs = ", ".join(f"{name}={value}" for name, value in sorted(near - wanted.key))
    return Finding(
        "UNCOVERED", to_one_line(str(wanted)), f"{what}; the nearest has {differs or 'no more'}", tests[near]
    )
