"""What is said of many rows at once: of those that say the same, and where the time of searches went. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.model import Value
from pytest_autotune.report.naming import described, readable, says_something
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.result import Result
from pytest_autotune.run.rows import Row

#: So many rows are shown one by one all the same,
FEW = 3
#: and so many values of one name.
LISTED = 3
#: Searches that no test asked for: at import, or in a fixture of the session.
OUTSIDE = "outside of tests"


#: An outcome as it is counted.
NOUNS = {
    Outcome.HIT: ("hit", "hits"),
    Outcome.MISS: ("miss", "misses"),
    Outcome.STALE: ("stale", "stale"),
    Outcome.MISMATCH: ("mismatch", "mismatches"),
    Outcome.UNCACHEABLE: ("uncacheable", "uncacheable"),
}


@dataclass(frozen=True)
class Group:
    """Rows of one kernel and device with the same outcome, for the same reason; never empty.

    :param rows: in the order in which they came.
    """

    rows: tuple[Row, ...]

    @property
    def outcome(self) -> Outcome:
        """What became of them all."""
        outcome = self.rows[0].outcome
        assert outcome is not None
        return outcome

    @property
    def common(self) -> tuple[Value, ...]:
        """The parts of the key that are the same in all rows."""
        return tuple(value for value, *others in self._parts if all(other == value for other in others))

    @property
    def spans(self) -> tuple[str, ...]:
        """The other parts, each with its values: ``n = 101 … 114``. Digests say nothing to a reader."""
        differing = [part for part in self._parts if any(value != part[0] for value in part)]
        return tuple(_span(part[0].name, part) for part in differing if says_something(part[0]))

    @property
    def reason(self) -> str:
        """Why they are no hits, as far as it is the same: ``the nearest has n 100``."""
        first = self.rows[0]
        if all(row.reason == first.reason for row in self.rows):
            return first.reason.removeprefix("no entry; ")
        return "; ".join(filter(None, [self._nearest(), first.became]))

    def _nearest(self) -> str:
        first = self.rows[0].nearest
        has = []
        for number, (name, _) in enumerate(first):
            texts = list(dict.fromkeys(row.nearest[number][1] for row in self.rows))
            if len(texts) > 1:
                return f"the nearest differ in {', '.join(name for name, _ in first)}"
            has.append(f"{name} {texts[0]}")
        return f"the nearest has {', '.join(has)}" if has else ""

    @property
    def key(self) -> str:
        """What a reader wants to know of the keys: ``m=8, n = 101 … 114``."""
        return ", ".join(filter(None, [readable(self.common), *self.spans]))

    def __str__(self) -> str:
        row = self.rows[0]
        if len(self.rows) == 1:
            return f"{described(row.problem, row.label)}: {row.reason}"
        number = counted(len(self.rows), *NOUNS[self.outcome])
        spans = "".join(f", {span}" for span in self.spans)
        reason = f"; {self.reason}" if self.reason else ""
        return f"{described(replace(row.problem, key=self.common))}: {number}{spans}{reason}"

    @property
    def _parts(self) -> list[tuple[Value, ...]]:
        return list(zip(*[row.problem.key for row in self.rows], strict=True))


def groups(rows: Sequence[Row]) -> list[Group]:
    """The rows, those of one kernel that say the same together where they are more than :data:`FEW`."""
    same: defaultdict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        same[_sameness(row)].append(row)
    found: list[Group] = []
    for row in rows:
        together = same[_sameness(row)]
        if len(together) <= FEW:
            found.append(Group((row,)))
        elif together[0] is row:
            found.append(Group(tuple(together)))
    return found


def _sameness(row: Row) -> tuple[object, ...]:
    problem = row.problem
    names = tuple((value.name, value.type) for value in problem.key)
    why = tuple(name for name, _ in row.nearest) or row.reason
    return row.outcome, problem.tuner, problem.kernel, problem.device, names, why, row.became


def _span(name: str, values: Sequence[Value]) -> str:
    numbers = sorted({value.value for value in values if isinstance(value.value, (int, float))})
    texts = sorted({value.words for value in values})
    if len(numbers) == len(texts):
        if len(numbers) > LISTED:
            return f"{name} = {numbers[0]} … {numbers[-1]}"
        texts = list(map(str, numbers))
    more = f", … ({len(texts)} values)" if len(texts) > LISTED else ""
    return f"{name} = {', '.join(texts[:LISTED])}{more}"


@dataclass(frozen=True)
class Cost:
    """What one kernel, or one test, took.

    :param problems: how many problems were searched.
    :param seconds: all searches together.
    """

    name: str
    problems: int
    seconds: float


def by_kernel(result: Result) -> list[Cost]:
    """Of each kernel, as ``tuner:kernel``; the longest first."""
    return _costs((row.problem.name, seconds) for row in result.rows for _, seconds in row.searches)


def by_test(result: Result) -> list[Cost]:
    """Of each test, by the one that searched; the longest first."""
    return _costs((test or OUTSIDE, seconds) for row in result.rows for test, seconds in row.searches)


def _costs(searches: Iterable[tuple[str, float]]) -> list[Cost]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for name, seconds in searches:
        found[name].append(seconds)
    costs = [Cost(name, len(each), sum(sorted(each))) for name, each in found.items()]
    return sorted(costs, key=lambda cost: (-cost.seconds, cost.name))
