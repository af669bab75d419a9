"""The findings of a run, as its summary lists them, and the times of its searches.

A row of the result is a problem that a test asked for: a kernel with its key, such as ``M=64, N=64``. A finding is a
line of the summary: ``MISS t.py::test_a - toy:lib.matmul (M=64, N=64): no entry``. It is about a single row, or about a
group of similar rows, which differ only in the values of their keys.

All renderers use these functions, so that every report has the same groups. The functions only read the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from pytest_autotune.cache.model import Device, Value
from pytest_autotune.cache.wording import describe_first, join_nonempty
from pytest_autotune.report.naming import describe_problem, describe_row_count, is_readable
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.result import Finding, RunResult
from pytest_autotune.run.rows import NOT_COVERED, ProblemRow

#: The largest number of similar rows that are listed singly; more rows become a group.
MAX_SINGLE_ROWS = 3
#: The number of keys that a group lists.
_MAX_LISTED_KEYS = 6
#: The number of characters of an error that a row shows.
_MAX_ERROR_LENGTH = 150
#: The remark on problems that an update covers only until the next run.
_HYPOTHESIS_REMARK = "; Hypothesis draws other values in each run"
#: The words of findings that count as misses.
MISS_WORDS = tuple(outcome.value.upper() for outcome in NOT_COVERED)
#: The name that stands in place of a test for searches at import or in a fixture of the session.
OUTSIDE_TESTS = "outside of tests"


def list_findings(result: RunResult, *, is_grouped: bool = True) -> list[Finding]:
    """Return all findings of a run, in the order in which a user should read them.

    1. Tuners that have no entry at all for the device, if findings are grouped.
    2. Problems that are no hits, by outcome.
    3. Problems whose search recorded nothing.
    4. Entries that no test asked for.
    5. The findings of the modes.
    6. Kernels that were tuned without asking the session.

    :param is_grouped: similar rows become a single finding; else each problem has a finding of its own.
    """
    findings = []
    uncovered_rows = list(result.rows)
    if is_grouped:
        grouped_rows: set[ProblemRow] = set()
        for rows in _list_groups_without_entries(result):
            findings.append(_build_no_entries_finding(result, rows))
            grouped_rows.update(rows)
        # The finding of a group stands for all its rows, so they have no other finding.
        uncovered_rows = [row for row in result.rows if row not in grouped_rows]
    findings += list_uncovered(result, uncovered_rows, is_grouped=is_grouped)
    findings += _list_row_findings("UNRECORDED", _list_unrecorded_rows(result), is_grouped=is_grouped)
    has_failed_gate = bool(result.gate.failure)
    # A gate that does not judge unused entries has failed for another reason.
    fails_for_unused = has_failed_gate and result.gate.fail_on_unused
    unused_rows = _list_unused_rows(result)
    findings += _list_row_findings("UNUSED", unused_rows, is_grouped=is_grouped, is_failure=fails_for_unused)
    findings += result.findings
    text = "tuned without the plugin, so no cache was used or written (call it first in a test or fixture)"
    for kernel in result.collected.untracked:
        findings.append(Finding("UNTRACKED", kernel, text, is_failure=has_failed_gate))
    return findings


def _list_groups_without_entries(result: RunResult) -> list[tuple[ProblemRow, ...]]:
    """Return the rows of each tuner on each device, if no loaded entry is of this tuner and for this device.

    A tuner with a single row on a device is left out.
    """
    groups = []
    for rows in result.rows_without_entries.values():
        if len(rows) > 1:
            groups.append(rows)
    return groups


def list_uncovered(result: RunResult, rows: Sequence[ProblemRow], *, is_grouped: bool = True) -> list[Finding]:
    """Return the findings of the problems that the loaded caches do not cover, ordered by outcome.

    :param rows: rows of the result. Hits among them are left out.
    :param is_grouped: similar rows become a single finding; else each problem has a finding of its own.
    """
    hypothesis_rows = frozenset(result.hypothesis_rows)
    findings = []
    for outcome in NOT_COVERED:
        outcome_rows = [row for row in rows if row.outcome is outcome]
        # With --autotune-on-miss=error, each miss has failed its test. Otherwise the gate may fail the run for it.
        is_failure = result.request.policy.is_error(outcome) or bool(result.gate.failure)
        findings += _list_row_findings(
            outcome.value.upper(),
            outcome_rows,
            is_grouped=is_grouped,
            is_failure=is_failure,
            hypothesis_rows=hypothesis_rows,
        )
    return findings


def _build_no_entries_finding(result: RunResult, rows: Sequence[ProblemRow]) -> Finding:
    """Return a finding for a tuner that has no loaded entry at all for a device.

    Example: ``MISS 5 problems of triton: no entries for NVIDIA H200, only for NVIDIA A100``.

    :param rows: the tuner's rows on this device. Each is a miss or, if a cache has its kernel for another device, a
        mismatch.
    """
    word = "MISS"
    is_failure = bool(result.gate.failure)
    for row in rows:
        if row.outcome is Outcome.MISMATCH:
            word = "MISMATCH"
        if result.request.policy.is_error(row.outcome):
            is_failure = True
    tuner, device = rows[0].problem.tuner, rows[0].problem.device
    text = f"no entries for {device}"
    entry_devices = sorted(map(str, result.devices_by_tuner.get(tuner, ())))
    if entry_devices:
        text += f", only for {', '.join(entry_devices)}"
    return Finding(word, f"{len(rows)} problems of {tuner}", text, is_failure=is_failure, problem_count=len(rows))


def _list_unrecorded_rows(result: RunResult) -> list[ProblemRow]:
    """Return the rows without an outcome whose searches recorded nothing."""
    rows = []
    for row in result.rows:
        # A row with an outcome is listed under the outcome. Its reason already says why nothing was recorded.
        if row.unrecorded and row.outcome is None:
            rows.append(replace(row, reason=row.unrecorded))
    return rows


def _list_unused_rows(result: RunResult) -> list[ProblemRow]:
    """Return a row without an outcome for each entry that no test asked for."""
    if not result.unused_entries:
        return []
    requested_problems = {row.problem for row in result.rows}
    rows = []
    for entry in result.unused_entries:
        reason = "no test used this entry"
        if entry.problem in requested_problems:
            # The entry's fingerprint differs from the one that the test asked with.
            reason = "tests used this problem only with other code or candidates"
        rows.append(ProblemRow(entry.problem, None, reason))
    return rows


def count_problems(findings: Iterable[Finding]) -> int:
    """Return the number of problems in some findings."""
    return sum(finding.problem_count for finding in findings)


def build_finding(word: str, row: ProblemRow, text: str, *, is_failure: bool) -> Finding:
    """Return a finding about a single problem."""
    problem = describe_problem(row.problem, row.label)
    return Finding(word, problem, text, test=_find_first_test(row), is_failure=is_failure)


def _find_first_test(row: ProblemRow) -> str:
    """Return the node id of the first test that asked for the problem; empty if no test did."""
    return next(iter(row.tests), "")


def _list_row_findings(
    word: str,
    rows: Sequence[ProblemRow],
    *,
    is_grouped: bool,
    is_failure: bool = False,
    hypothesis_rows: frozenset[ProblemRow] = frozenset(),
) -> list[Finding]:
    """Return the findings of some rows, in the order of the rows.

    A large group of similar rows is a single finding, at the place of its first row.

    :param word: the first word of each finding, such as ``"MISS"``.
    :param is_grouped: False gives each row a finding of its own.
    :param is_failure: whether a test or the run fails because of the rows.
    :param hypothesis_rows: the rows that Hypothesis draws anew in each run.
    """
    groups: defaultdict[_GroupKey, list[ProblemRow]] = defaultdict(list)
    for row in rows:
        groups[_build_group_key(row)].append(row)
    findings = []
    for row in rows:
        group = groups[_build_group_key(row)]
        is_listed_singly = not is_grouped or len(group) <= MAX_SINGLE_ROWS
        if is_listed_singly:
            text = _shorten_error(row, row.reason) + _choose_hypothesis_remark([row], hypothesis_rows)
            findings.append(build_finding(word, row, text, is_failure=is_failure))
        elif row is group[0]:
            # This finding stands for the whole group. The later rows of the group have none.
            text = _shorten_error(row, _describe_group(word, group)) + _choose_hypothesis_remark(group, hypothesis_rows)
            findings.append(_build_group_finding(word, group, text, is_failure=is_failure))
    return findings


def _shorten_error(row: ProblemRow, text: str) -> str:
    """Return the text of a row whose search ended with an error, without the end of a long error.

    An error may show the values of tensors. The JSON report has the whole error.
    """
    error = row.unrecorded
    if len(error) <= _MAX_ERROR_LENGTH:
        return text
    return text.replace(error, f"{error[:_MAX_ERROR_LENGTH].rstrip()} …")


def _choose_hypothesis_remark(rows: Sequence[ProblemRow], hypothesis_rows: frozenset[ProblemRow]) -> str:
    """Return the remark for problems that Hypothesis draws; empty if another test asked for some of the rows."""
    if all(row in hypothesis_rows for row in rows):
        return _HYPOTHESIS_REMARK
    return ""


@dataclass(frozen=True)
class _GroupKey:
    """The facts that similar rows share. Similar rows differ only in the values of their keys.

    :param key_parts: (name, type) of each part of the key.
    :param reason: why the rows are no hits: the names of the key's parts in which the nearest entry differs, or the
        text of the reason if there is no nearest entry.
    :param consequence: the consequence of the missing entry: see :class:`ProblemRow`.
    """

    outcome: Outcome | None
    tuner: str
    kernel: str
    device: Device
    key_parts: tuple[tuple[str, str], ...]
    reason: tuple[str, ...] | str
    consequence: str


def _build_group_key(row: ProblemRow) -> _GroupKey:
    """Return the key of a row's group.

    Example: the problems ``M=64`` and ``M=128`` of a kernel are misses, and the nearest entry of both has another
    ``M``. They have equal keys.
    """
    problem = row.problem
    return _GroupKey(
        outcome=row.outcome,
        tuner=problem.tuner,
        kernel=problem.kernel,
        device=problem.device,
        key_parts=tuple((value.name, value.type) for value in problem.key),
        # With a nearest entry, the text of the reason names values of the key, so it differs between similar rows.
        reason=_list_nearest_names(row) or row.reason,
        consequence=row.consequence,
    )


def _list_nearest_names(row: ProblemRow) -> tuple[str, ...]:
    """Return the names of the key's parts in which the nearest entry differs; empty if there is no such entry."""
    return tuple(name for name, _ in row.nearest)


def _build_group_finding(word: str, rows: Sequence[ProblemRow], text: str, *, is_failure: bool) -> Finding:
    """Return the finding of a group. Its problem is described by the parts of the key that all rows share."""
    shared_values = [part.values[0] for part in _list_key_parts(rows) if part.is_shared]
    shared_problem = replace(rows[0].problem, key=tuple(shared_values))
    tests = list(dict.fromkeys(map(_find_first_test, rows)))
    return Finding(
        word,
        describe_problem(shared_problem),
        text,
        test=tests[0],
        is_failure=is_failure,
        problem_count=len(rows),
        other_test_count=len(tests) - 1,
    )


def _describe_group(word: str, rows: Sequence[ProblemRow]) -> str:
    """Return the size of a group, the keys of its rows and their reason: ``4 misses, n = 1, 2, 3, 4; no entry``."""
    keys = "; ".join(_describe_differing_keys(_list_key_parts(rows)))
    count_and_keys = join_nonempty(", ", describe_row_count(len(rows), word), keys)
    return join_nonempty("; ", count_and_keys, _describe_shared_reason(rows))


@dataclass(frozen=True)
class _KeyPart:
    """A part of the key of similar problems, such as ``M``.

    :param values: the part's value in each row of a group: ``M=16``, ``M=32``, ``M=64``.
    """

    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        return self.values[0].name

    @property
    def is_shared(self) -> bool:
        """Whether all rows have the same value."""
        return len(set(self.values)) == 1

    @property
    def is_numeric(self) -> bool:
        return all(isinstance(value.value, (int, float)) for value in self.values)


def _list_key_parts(rows: Sequence[ProblemRow]) -> list[_KeyPart]:
    """Return the parts of the key of similar rows. All these keys have the same parts, in the same order."""
    keys = [row.problem.key for row in rows]
    # A key is a row of a table, with a value for each part. zip gives the columns: the values of a part in all rows.
    columns = zip(*keys, strict=True)
    return list(map(_KeyPart, columns))


def _describe_differing_keys(parts: Sequence[_KeyPart]) -> Iterator[str]:
    """Yield texts with the values that differ between the rows of a group. Digests and settings are left out.

    Examples: ``(M, N) = (16, 64), (32, 8)`` has the numbers of each row in parentheses, ``n = 101 … 114`` is a range,
    and ``a, b = bf16, fp16`` has values that are no numbers.
    """
    numeric_parts = []
    other_parts = []
    for part in parts:
        if part.is_shared or not is_readable(part.values[0]):
            continue
        if part.is_numeric:
            numeric_parts.append(part)
        else:
            other_parts.append(part)
    if numeric_parts:
        yield _describe_numbers(numeric_parts)
    yield from _describe_texts(other_parts)


def _describe_numbers(parts: Sequence[_KeyPart]) -> str:
    """Return the distinct numbers in the order of the rows: ``(M, N) = (16, 64), (32, 8)``.

    Many numbers of a single part are a range: ``n = 101 … 114``.

    :param parts: the parts that are numbers and differ between the rows, such as ``M`` and ``N``.
    """
    if len(parts) == 1 and len(set(parts[0].values)) > _MAX_LISTED_KEYS:
        return _describe_range(parts[0])
    # Each part is a column of a table: M = 16, 32 and N = 64, 8. zip gives the rows of the table: (16, 64) and (32, 8).
    columns = [part.values for part in parts]
    numbers_of_rows = zip(*columns, strict=True)
    distinct_rows = dict.fromkeys(numbers_of_rows)
    texts = []
    for numbers in distinct_rows:
        texts.append(_join_in_parentheses([number.display_text for number in numbers]))
    names = _join_in_parentheses([part.name for part in parts])
    return f"{names} = {describe_first(texts, _MAX_LISTED_KEYS)}"


def _describe_range(part: _KeyPart) -> str:
    """Return the lowest and the highest number of a part: ``n = 101 … 114``."""
    numbers = sorted(part.values, key=attrgetter("sort_key"))
    return f"{part.name} = {numbers[0].display_text} … {numbers[-1].display_text}"


def _join_in_parentheses(texts: Sequence[str]) -> str:
    """Return ``(a, b)``; a single text stays without parentheses."""
    if len(texts) == 1:
        return texts[0]
    return f"({', '.join(texts)})"


def _describe_texts(parts: Sequence[_KeyPart]) -> Iterator[str]:
    """Yield the distinct values of each part, sorted: ``x.dtype = bf16, fp16``.

    Parts that have equal values in every row share a text: if ``a`` and ``b`` are both bf16 in one row and both fp16 in
    another, the text is ``a, b = bf16, fp16``.
    """
    #: The value of a part in each row, as text -> the names of the parts with these values.
    names_by_values: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for part in parts:
        values_of_rows = tuple(value.display_text for value in part.values)
        names_by_values[values_of_rows].append(part.name)
    for values_of_rows, names in names_by_values.items():
        shown_texts = []
        for text in sorted(set(values_of_rows)):
            # A text with commas would read as several values.
            if ", " in text and not text.startswith("("):
                text = f"({text})"
            shown_texts.append(text)
        yield f"{', '.join(names)} = {describe_first(shown_texts, _MAX_LISTED_KEYS)}"


def _describe_shared_reason(rows: Sequence[ProblemRow]) -> str:
    """Return why the rows of a group are no hits: ``the nearest entry has n 100``.

    The nearest entry is the entry of the same kernel whose key differs least. If the rows have different reasons, the
    text has only the facts that all rows share.
    """
    first_row = rows[0]
    if all(row.reason == first_row.reason for row in rows):
        # The finding begins with MISS, which already says that the rows have no entry.
        return first_row.reason.removeprefix("no entry; ")
    # Reasons differ if each names the values of its own nearest entry. All rows of a group have the same consequence.
    return join_nonempty("; ", _describe_nearest(rows), first_row.consequence)


def _describe_nearest(rows: Sequence[ProblemRow]) -> str:
    """Return how the nearest entries differ from the keys of a group.

    - All rows have the same nearest entry: ``the nearest entry has n 100``.
    - The rows have different nearest entries: ``the nearest entries differ in n``.
    - The rows have no nearest entry: an empty text. The rows of a group agree in this.
    """
    # (name, value of the nearest entry) of each part of the key that differs.
    nearest = rows[0].nearest
    if not nearest:
        return ""
    for row in rows:
        if row.nearest != nearest:
            return f"the nearest entries differ in {', '.join(_list_nearest_names(rows[0]))}"
    values = ", ".join(f"{name} {value}" for name, value in nearest)
    return f"the nearest entry has {values}"


@dataclass(frozen=True)
class Cost:
    """The searches of a kernel or of a test.

    :param search_count: the number of searches. Several tests or processes may search for the choice of one problem.
    :param seconds: their total time.
    """

    name: str
    search_count: int
    seconds: float


def list_kernel_costs(result: RunResult) -> list[Cost]:
    """Return the cost of each kernel, named ``tuner:kernel``. The most expensive kernel comes first."""
    seconds_by_kernel: defaultdict[str, list[float]] = defaultdict(list)
    for row in result.rows:
        for _, seconds in row.searches:
            seconds_by_kernel[row.problem.name].append(seconds)
    return _list_costs(seconds_by_kernel)


def list_test_costs(result: RunResult) -> list[Cost]:
    """Return the cost of each test in which a search took place. The most expensive test comes first."""
    seconds_by_test: defaultdict[str, list[float]] = defaultdict(list)
    for row in result.rows:
        for test, seconds in row.searches:
            seconds_by_test[test or OUTSIDE_TESTS].append(seconds)
    return _list_costs(seconds_by_test)


def _list_costs(seconds_by_name: dict[str, list[float]]) -> list[Cost]:
    """Return the costs, sorted by their time.

    :param seconds_by_name: name of a kernel or a test -> the seconds of each of its searches.
    """
    costs = []
    for name, seconds in seconds_by_name.items():
        # Sorted, so that the sum does not depend on the order of the processes.
        costs.append(Cost(name, len(seconds), sum(sorted(seconds))))
    return sorted(costs, key=lambda cost: (-cost.seconds, cost.name))
