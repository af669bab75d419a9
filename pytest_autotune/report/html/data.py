"""What the HTML report shows, as plain values for its script: each text once, the rest numbers. Pure.

The names here are those that ``page.js`` reads.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.diff import Change, ChangeKind, Diff, winner
from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.cache.model import Candidate, Entry, Problem
from pytest_autotune.cache.ties import Spread, tied_within
from pytest_autotune.report.findings import OUTSIDE, Cost, by_kernel, by_test, findings
from pytest_autotune.report.hints import hints
from pytest_autotune.report.naming import readable
from pytest_autotune.report.terminal import notes
from pytest_autotune.run.mode import Finding, OfProblem
from pytest_autotune.run.result import Result
from pytest_autotune.run.rows import NOT_COVERED, Row

#: Counts as people read them: ``2,000 entries``.
_counted = partial(counted, separator=",")


class Texts:
    """Numbers the texts of a report, made fit to be shown, and the configurations, which are lists of them."""

    def __init__(self) -> None:
        self._shown: dict[str, int] = {"": 0}
        self._configurations: dict[tuple[str, ...], int] = {}

    def __call__(self, text: str) -> int:
        """The number of a text; that of an empty one is 0."""
        return self._shown.setdefault(one_line(text), len(self._shown))

    def configuration(self, candidate: Candidate) -> int:
        """The number of what a candidate configures."""
        parts = tuple(map(str, candidate.params)) or (str(candidate),)
        return self._configurations.setdefault(parts, len(self._configurations))

    @property
    def texts(self) -> list[str]:
        return list(self._shown)

    @property
    def configurations(self) -> list[list[int]]:
        return [[*map(self, parts)] for parts in self._configurations]


def page_data(result: Result) -> dict[str, Any]:
    """All that the report shows."""
    texts = Texts()
    dump = result.dump
    data = {
        "counts": result.counts,
        "found": Counter(one.word for section in result.sections for one in section.of_problems.values() if one.word),
        "judged": result.is_judged,
        "interpreted": [one_line(str(device)) for device in result.devices if device.arch == "interpreter"],
        "seconds": result.tuning_seconds,
        "saved": result.saved_seconds,
        "complete": not result.incomplete,
        "facts": _facts(result),
        "hints": [*map(one_line, hints(result))],
        "rows": [_row(row, _said(result, row), texts) for row in result.rows],
        "kernels": [_cost(cost, texts) for cost in by_kernel(result)],
        "tests": [_cost(cost, texts) for cost in by_test(result)],
        "findings": [_finding(one, texts) for one in findings(result)],
        "missed": _missed(result, texts),
        "compared": "the loaded cache" if result.loaded else one_line(dump.path) if dump is not None else "",
        "changed": _changed(result.changes),
        "changes": [_change(change, texts) for change in result.changes.changes],
        "notes": notes(result),
    }
    configurations = texts.configurations  # these are texts, too
    return {"texts": texts.texts, "configurations": configurations, **data}


def _facts(result: Result) -> list[tuple[str, str]]:
    """What is to be known of the run, as (word, text)."""
    facts = [*result.about, *(("Device", str(device)) for device in result.devices)]
    facts += [("Loaded", f"{path} ({_counted(entries, 'entry')})") for path, entries in result.loaded]
    dump, merged = result.dump, result.merged
    if dump is not None and dump.written:
        changed = merged.counts_in_words
        entries = _counted(len(merged.cache.entries), "entry")
        facts.append(("Written", f"{dump.written_to} ({entries}{': ' if changed else ''}{changed})"))
    facts += [
        ("Versions", str(versions)) for versions in sorted(set(result.collected.versions.values()), key=str) if versions
    ]
    for one in (one for one in result.sections if one.lines):
        name = one.name.replace("_", " ").capitalize()
        facts.append((name, "; ".join(filter(None, [one.about, *one.lines]))))
    if result.incomplete:
        facts.append(("Not complete", result.incomplete))
    return [(word, one_line(text)) for word, text in facts]


def _said(result: Result, row: Row) -> dict[str, OfProblem]:
    """What modes say of a row, by their names."""
    return {one.name: one.of_problems[row.problem] for one in result.sections if row.problem in one.of_problems}


def _row(row: Row, said: Mapping[str, OfProblem], texts: Texts) -> list[Any]:
    choice, candidates = row.choice, row.candidates
    chosen = next((at for at, one in enumerate(candidates) if choice and one.same_configuration(choice)), -1)
    best = min((one.time_us for one in candidates if one.time_us and not one.failed), default=0.0)
    chosen_us = (candidates[chosen].time_us if chosen >= 0 else None) or best
    about = {
        "label": texts(row.label),
        "reason": texts(row.reason),
        "moved": texts(row.moved_from),
        "alias": texts(row.alias),
        "versions": texts(str(row.versions)),
        "became": texts("failed" if row.failed else "unrecorded" if row.unrecorded else ""),
        "tie": _rounded(tied_within(row.problem.device, best, chosen_us)) if best else 0,
        "disturbed": int(row.disturbed),
        "found": texts(next((of.word for of in said.values() if of.word), "")),
        "said": texts("; ".join(f"{name}: {of.text}" for name, of in said.items() if of.text)),
    }
    return [
        texts(row.outcome.value if row.outcome else ""),
        *_problem(row.problem, texts),
        [*map(texts, row.tests)],
        _rounded(row.tuning_seconds) if row.tuned else -1,
        texts.configuration(choice) if choice is not None else -1,
        _rounded(choice.time_us) if choice is not None else None,
        chosen,
        [_candidate(candidate, texts) for candidate in candidates],
        {name: value for name, value in about.items() if value},
    ]


def _problem(problem: Problem, texts: Texts) -> list[int]:
    return [texts(problem.tuner), texts(problem.kernel), texts(readable(problem.key)), texts(str(problem.device))]


def _candidate(candidate: Candidate, texts: Texts) -> list[Any]:
    spread = Spread.of(candidate.label)
    about = "" if spread or not candidate.params else candidate.label
    known = [_rounded(candidate.time_us), _rounded(spread.us) if spread else 0, texts(candidate.failed), texts(about)]
    while known and not known[-1]:
        known.pop()
    return [texts.configuration(candidate), *known]


def _cost(cost: Cost, texts: Texts) -> list[Any]:
    return [texts(cost.name), cost.problems, _rounded(cost.seconds)]


def _finding(one: Finding, texts: Texts) -> list[Any]:
    return [
        texts(one.word.lower()), texts(one.problem), one.count, texts(one.what), texts(one.test), one.more_tests,
    ]  # fmt: skip


def _missed(result: Result, texts: Texts) -> list[list[Any]]:
    """Of each test the numbers of the rows that it was the first to ask for and that are no hits; most first."""
    by_test: defaultdict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(result.rows):
        if row.outcome in NOT_COVERED:
            by_test[row.tests[0] if row.tests else OUTSIDE].append(number)
    ordered = sorted(by_test.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [[texts(test), numbers] for test, numbers in ordered]


def _changed(found: Diff) -> str:
    kinds = Counter(change.kind for change in found.changes)
    return ", ".join([*(kind.count(kinds[kind]) for kind in ChangeKind if kinds[kind]), f"{found.unchanged} unchanged"])


def _change(change: Change, texts: Texts) -> list[Any]:
    return [
        texts(change.kind.value),
        *_problem(change.entry.problem, texts),
        *_side(change.old, texts),
        *_side(change.new, texts),
    ]


def _side(entry: Entry | None, texts: Texts) -> list[Any]:
    best = winner(entry) if entry is not None else None
    return [texts.configuration(best), _rounded(best.time_us)] if best is not None else [-1, None]


def _rounded(number: float | None) -> float | None:
    """To five digits: more is noise, and costs room. What JSON cannot hold is None."""
    if number is None or number != number or abs(number) == float("inf"):
        return None
    rounded = float(f"{number:.5g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
