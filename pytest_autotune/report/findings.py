"""What is to be known of a run in rows, several that say the same as one, and where the time of searches went. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from pytest_autotune.cache.model import Value
from pytest_autotune.cache.quantities import describe_first
from pytest_autotune.report.naming import describe_problem, describe_row_count, is_readable
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.mode import Finding
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.rows import NOT_COVERED, ProblemRow

#: So many rows that say the same are shown one by one all the same.
FEW = 3
#: Of more, so many keys are listed.
_KEYS = 6
#: What is said of problems that an update covers until the next run.
_DRAWN = "; drawn anew in each run by Hypothesis"
#: The words of rows that count as misses.
MISSES = tuple(outcome.value.upper() for outcome in NOT_COVERED)
#: Searches that no test asked for: at import, or in a fixture of the session.
OUTSIDE = "outside of tests"


def list_findings(result: RunResult, *, is_unfolded: bool = False) -> list[Finding]:
    """All that is to be known of a run, in the order in which it is to be read.

    :param is_unfolded: every problem has a row of its own.
    """
    without = {} if is_unfolded else {key: rows for key, rows in result.rows_without_entries.items() if len(rows) > 1}
    summed_up = {row for rows in without.values() for row in rows}
    found = [_without_entries(result, tuner, rows) for (tuner, _), rows in without.items()]
    found += list_uncovered(result, [row for row in result.rows if row not in summed_up], each=is_unfolded)
    unrecorded = [replace(row, reason=row.unrecorded) for row in result.rows if row.unrecorded and not row.outcome]
    found += _folded("UNRECORDED", unrecorded, each=is_unfolded)
    fails_on_unused = result.gate.fail_on_unused and bool(result.gate.failure)
    found += _folded("UNUSED", _unused(result), each=is_unfolded, fails=fails_on_unused)
    found += result.findings
    behind = "tuned behind pytest-autotune's back; neither loaded nor dumped"
    found += [
        Finding("UNTRACKED", one, behind, is_failure=bool(result.gate.failure)) for one in result.collected.untracked
    ]
    return found


def list_uncovered(result: RunResult, rows: Sequence[ProblemRow], *, each: bool = False) -> Iterator[Finding]:
    """Of these rows, what was asked for and was no hit."""
    drawn = set(result.hypothesis_rows)
    for outcome in NOT_COVERED:
        fails = bool(result.gate.failure) or result.request.policy.is_error(outcome)
        found = [row for row in rows if row.outcome is outcome]
        yield from _folded(outcome.value.upper(), found, each=each, fails=fails, drawn=drawn)


def _without_entries(result: RunResult, tuner: str, rows: Sequence[ProblemRow]) -> Finding:
    """What a tuner asked for on a device that the loaded caches have nothing of it for."""
    word = "MISMATCH" if any(row.outcome is Outcome.MISMATCH for row in rows) else "MISS"
    others = sorted(map(str, result.devices_by_tuner.get(tuner, ())))
    has = f"; those for {', '.join(others)} do not hold here" if others else ""
    what = f"no entries for {rows[0].problem.device}{has}"
    fails = bool(result.gate.failure) or any(result.request.policy.is_error(row.outcome) for row in rows)
    return Finding(word, f"{len(rows)} problems of {tuner}", what, is_failure=fails, problem_count=len(rows))


def _unused(result: RunResult) -> list[ProblemRow]:
    asked = {row.problem for row in result.rows} if result.unused_entries else set()
    whys = ("not requested by any test", "only requested with other code or candidates")
    return [ProblemRow(entry.problem, None, whys[entry.problem in asked]) for entry in result.unused_entries]


def _folded(
    word: str,
    rows: Sequence[ProblemRow],
    *,
    each: bool = False,
    fails: bool = False,
    drawn: Set[ProblemRow] = frozenset(),
) -> Iterator[Finding]:
    """The rows, those of one kernel that say the same as one where they are more than :data:`FEW`."""
    same: defaultdict[tuple[object, ...], list[ProblemRow]] = defaultdict(list)
    for row in rows:
        same[_sameness(row)].append(row)
    for row in rows:
        together = same[_sameness(row)]
        if each or len(together) <= FEW:
            yield build_finding(word, row, row.reason + (_DRAWN if row in drawn else ""), fails=fails)
        elif together[0] is row:
            common = tuple(value for value, *others in _parts(together) if all(one == value for one in others))
            parts = [
                ", ".join(filter(None, [describe_row_count(len(together), word), "; ".join(_keys(together))])),
                _why(together),
            ]
            what = "; ".join(filter(None, parts)) + (_DRAWN if all(one in drawn for one in together) else "")
            test, *others = dict.fromkeys(one.tests[0] if one.tests else "" for one in together)
            problem = describe_problem(replace(row.problem, key=common))
            yield Finding(word, problem, what, test, fails, len(together), len(others))


def build_finding(word: str, row: ProblemRow, what: str, *, fails: bool) -> Finding:
    """What is to be known of one problem."""
    return Finding(word, describe_problem(row.problem, row.label), what, row.tests[0] if row.tests else "", fails)


def _sameness(row: ProblemRow) -> tuple[object, ...]:
    problem = row.problem
    names = tuple((value.name, value.type) for value in problem.key)
    why = tuple(name for name, _ in row.nearest) or row.reason
    return row.outcome, problem.tuner, problem.kernel, problem.device, names, why, row.consequence


def _parts(rows: Sequence[ProblemRow]) -> list[tuple[Value, ...]]:
    return list(zip(*[row.problem.key for row in rows], strict=True))


def _keys(rows: Sequence[ProblemRow]) -> Iterator[str]:
    """What differs in the keys of some rows: ``(M, N) = (16, 64), (32, 8)``, ``n = 101 … 114``; digests say nothing.

    Numbers stand as they belong together; of other parts, those that are always the same stand once.
    """
    parts = [part for part in _parts(rows) if is_readable(part[0]) and any(value != part[0] for value in part)]
    numbers = [part for part in parts if all(isinstance(value.value, (int, float)) for value in part)]
    found = list(dict.fromkeys(zip(*numbers, strict=True)))
    if len(numbers) == 1 and len(found) > _KEYS:
        (values,) = numbers
        least, most = (choose(values, key=lambda value: value.sort_key).display_text for choose in (min, max))
        yield f"{values[0].name} = {least} … {most}"
    elif numbers:
        keys = [_tuple([value.display_text for value in key]) for key in found]
        yield f"{_tuple([part[0].name for part in numbers])} = {describe_first(keys, _KEYS)}"
    names: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for part in parts:
        if part not in numbers:
            names[tuple(value.display_text for value in part)].append(part[0].name)
    for texts, of in names.items():
        shown = [f"({text})" if ", " in text and text[0] != "(" else text for text in sorted(set(texts))]
        yield f"{', '.join(of)} = {describe_first(shown, _KEYS)}"


def _tuple(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _why(rows: Sequence[ProblemRow]) -> str:
    """Why they are no hits, as far as it is the same: ``the nearest has n 100``."""
    first = rows[0]
    if all(row.reason == first.reason for row in rows):
        return first.reason.removeprefix("no entry; ")
    has = []
    for number, (name, _) in enumerate(first.nearest):
        texts = {row.nearest[number][1] for row in rows}
        if len(texts) > 1:
            names = ", ".join(name for name, _ in first.nearest)
            return "; ".join(filter(None, [f"the nearest differ in {names}", first.consequence]))
        has.append(f"{name} {texts.pop()}")
    return "; ".join(filter(None, [f"the nearest has {', '.join(has)}" if has else "", first.consequence]))


@dataclass(frozen=True)
class Cost:
    """What the searches of one kernel, or in one test, took."""

    name: str
    problems: int
    seconds: float


def list_kernel_costs(result: RunResult) -> list[Cost]:
    """Of each kernel, as ``tuner:kernel``; the longest first."""
    return _costs((row.problem.name, seconds) for row in result.rows for _, seconds in row.searches)


def list_test_costs(result: RunResult) -> list[Cost]:
    """Of each test, by the one that searched; the longest first."""
    return _costs((test or OUTSIDE, seconds) for row in result.rows for test, seconds in row.searches)


def _costs(searches: Iterable[tuple[str, float]]) -> list[Cost]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for name, seconds in searches:
        found[name].append(seconds)
    costs = [Cost(name, len(each), sum(sorted(each))) for name, each in found.items()]
    return sorted(costs, key=lambda cost: (-cost.seconds, cost.name))
