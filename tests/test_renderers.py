"""The renderers of a summary for Markdown, JUnit and CI systems."""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_autotune.cache.diff import Change, ChangeKind, Diff
from pytest_autotune.cache.merge import MergeResult
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.report import ci_log, markdown
from pytest_autotune.report.findings import Cost, list_kernel_costs, list_test_costs
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.result import Finding, Gate, RunResult, Section, SourceLocation
from pytest_autotune.run.rows import ProblemRow
from tests.reasons import too_many_misses
from tests.results import result

GPU = Device("Toy GPU", "toy", 4)

#: The reason of each row.
REASON = "a reason in words"


def row(
    outcome: Outcome | None, kernel: str = "lib.op", test: str = "", seconds: float = 0.0, **key: object
) -> ProblemRow:
    problem = Problem("toy", kernel, tuple(Value(name, value) for name, value in key.items()), GPU)  # type: ignore[arg-type]
    tests = (test,) if test else ()
    searches = ((test, seconds),) if seconds else ()
    return ProblemRow(problem, outcome, REASON, "", tests, searches)


def missed(number: int, **fields: object) -> RunResult:
    """A summary of that many stale problems, each of a test of its own."""
    rows = [row(Outcome.STALE, test=f"test_a.py::test_{index}", M=index) for index in range(number)]
    places = {f"test_a.py::test_{index}": SourceLocation("test_a.py", 10 * index + 1) for index in range(number)}
    return result(loaded=(("c.textproto", 3),), rows=tuple(rows), test_places=places, **fields)  # type: ignore[arg-type]


def of_many_kernels(number: int) -> RunResult:
    rows = tuple(row(Outcome.STALE, f"lib.op_{index}", f"test_a.py::test_{index}") for index in range(number))
    return replace(missed(0), rows=rows)


FAILED = Gate("0", too_many_misses(2, "0"))


def test_the_failed_gate_is_the_first_github_annotation() -> None:
    """The annotation is an error and has the command to run. Errors of the run come next, then the tests."""
    summary = missed(
        2, gate=FAILED, update_arguments="--autotune-load=c --autotune-dump=c", errors=("100% full\nsecond, line",)
    )

    first, second, *rest = ci_log.list_annotations(summary)

    assert first == (
        f"::error title=autotune cache::{FAILED.failure}"
        "%0ARe-run with --autotune-load=c --autotune-dump=c to update the cache."
    )
    assert second.startswith("::error title=autotune cache::100%25 full second, line")
    assert [line.split(",title")[0] for line in rest] == [
        "::error file=test_a.py,line=1",
        "::error file=test_a.py,line=11",
    ]


def test_sweep_failures_and_slower_choices_annotate_their_test() -> None:
    """A test that failed in a sweep is an error. A slower choice is a warning."""
    (stale,) = missed(1).rows
    failed = Finding("FAILED", "toy:lib.op (M=0)", "ran with BLOCK=8", "test_a.py::test_0", is_failure=True)
    slow = Finding(
        "SLOWER", "toy:lib.op (M=0)", "the choice takes 3 us, 1.50 times as long as BLOCK=64", "test_a.py::test_0"
    )
    rows = (replace(stale, outcome=Outcome.HIT, reason=""),)
    sections = (Section("sweep", "7", findings=(failed,)), Section("verify", "all", findings=(slow,)))

    failure, slower = ci_log.list_annotations(replace(missed(1), rows=rows, sections=sections))

    at = "file=test_a.py,line=1,title=autotune cache%3A"
    assert failure == f"::error {at} failed::FAILED toy:lib.op (M=0): ran with BLOCK=8"
    assert slower.startswith(
        f"::warning {at} slower::SLOWER toy:lib.op (M=0): the choice takes 3 us, 1.50 times as long as BLOCK=64"
    )


def test_option_on_stale_error_shows_stale_problems_as_errors() -> None:
    """The GitHub annotation of the problem is an error."""
    assert ci_log.list_annotations(missed(1, on_stale="error"))[0].startswith("::error file=test_a.py")


def test_github_annotations_escape_special_characters() -> None:
    """Percent signs, colons, commas and line breaks are encoded."""
    strange = "dir,1/test:50%.py::test_a"
    rows = (row(Outcome.MISS, "lib.a,b:c%", test=strange, M=1),)
    (line,) = ci_log.list_annotations(
        result(rows=rows, test_places={strange: SourceLocation("dir,1/test:50%.py\n", 3)})
    )

    assert line == (
        "::warning file=dir%2C1/test%3A50%25.py ,line=3,title=autotune cache%3A miss::"
        f"MISS toy:lib.a,b:c%25 (M=1): {REASON}"
    )


def test_without_a_known_line_a_miss_is_annotated_at_its_file() -> None:
    (line,) = ci_log.list_annotations(replace(missed(1), test_places={}))
    assert line.startswith("::warning file=test_a.py,title=")


def test_misses_of_one_test_line_are_joined_in_one_annotation() -> None:
    rows = tuple(row(Outcome.MISS, f"lib.op_{number}", f"test_a.py::test_op[{number}]") for number in range(14))
    places = {problem_row.tests[0]: SourceLocation("test_a.py", 7) for problem_row in rows}

    (line,) = ci_log.list_annotations(result(rows=rows, test_places=places))

    assert line.count("%0A") == 10
    assert line.endswith("%0A… and 4 more")


def test_a_run_writes_at_most_ten_github_annotations() -> None:
    """GitHub shows ten annotations of a step. The last one counts the tests that are left out."""
    lines = ci_log.list_annotations(missed(40, gate=FAILED))

    assert len(lines) == 10
    assert "32 more tests have problems with the autotune cache (pytest -v lists all)" in lines[-1]


def test_a_run_with_ten_errors_writes_no_annotation_for_a_miss() -> None:
    failures = tuple(f"failure {number}" for number in range(10))
    lines = ci_log.list_annotations(replace(missed(3, gate=FAILED), errors=failures))

    assert len(lines) == 10


def test_misses_outside_of_tests_get_an_annotation_without_file() -> None:
    """A lookup outside of tests and an untracked kernel have no file and line. Unused entries have no annotation."""
    unused = Entry(Problem("toy", "lib.old", (), GPU))
    summary = result(rows=(row(Outcome.MISS, M=1),), untracked=("lib.hidden",), unused_entries=(unused,))

    assert ci_log.list_annotations(summary) == [
        f"::warning title=autotune cache%3A miss%2C untracked::MISS toy:lib.op (M=1): {REASON}"
        "%0AUNTRACKED lib.hidden: tuned without the plugin, so no cache was used or written (call "
        "it first in a test or fixture)",
    ]


def changed() -> RunResult:
    old, new = (Candidate(params=(Value("BLOCK", size),), time_us=time) for size, time in ((64, 12.0), (128, 10.0)))
    problem = Problem("toy", "lib.op", (Value("M", 1),), GPU)
    change = Change(ChangeKind.CHOICE, Entry(problem, choice=old), Entry(problem, choice=new))
    rows = (row(Outcome.STALE, test="test_a.py::test_x", seconds=2.0, M=1), row(Outcome.HIT, M=2))
    return replace(
        missed(0, gate=FAILED, update_arguments="--autotune-load=c"),
        rows=rows,
        merged=MergeResult(Cache(), changes=Diff((change,), 1)),
    )


def test_a_markdown_report_has_verdict_misses_changes_and_times() -> None:
    text = markdown.to_markdown(changed())

    assert f"❌ **`{FAILED.failure}`**" in text
    assert "`1 hit, 1 stale; 1 tuned in 2.0s`" in text
    assert f"| STALE | `test_a.py::test_x` | `toy:lib.op (M=1)` | `{REASON}` |" in text
    assert "| choice changed | `toy:lib.op (M=1)` | `BLOCK 64 -> 128` | 12 us -> 10 us |" in text
    assert "| `toy:lib.op` | 1 | 2 s |" in text
    assert "| `test_a.py::test_x` | 1 | 2 s |" in text
    assert "`Re-run with --autotune-load=c to update the cache.`" in text


def test_added_entries_are_no_changes_in_a_first_dump() -> None:
    """A first dump has no earlier choices to compare with."""
    added = Change(ChangeKind.ADDED, None, Entry(Problem("toy", "lib.op", (Value("M", 1),), GPU)))

    def changes(unchanged: int) -> tuple[Change, ...]:
        return replace(changed(), merged=MergeResult(Cache(), changes=Diff((added,), unchanged))).changes.changes

    assert changes(unchanged=0) == ()
    assert changes(unchanged=1) == (added,)


def test_the_markdown_report_names_all_versions_in_one_line() -> None:
    versions = {"triton": "triton 3.7.1, torch 2.13.0", "cute": "cutlass 4.8, torch 2.13.0"}
    parsed = {tuner: Versions.parse(text) for tuner, text in versions.items()}
    summary = changed()
    text = markdown.to_markdown(replace(summary, collected=replace(summary.collected, versions=parsed)))

    lines = [line for line in text.splitlines() if line.startswith("Versions: ")]
    assert lines == ["Versions: `cutlass 4.8, torch 2.13.0, triton 3.7.1`"]


def test_the_markdown_report_puts_cache_text_in_code_spans() -> None:
    """Pipes, backticks, HTML and line breaks cannot leave the cell or the code span."""
    assert markdown.format_cell("a|b") == r"`a\|b`"
    assert markdown.format_cell("a``b`") == "``` a``b` ```"
    assert markdown.format_code("a``b`") == "``` a``b` ```"
    assert markdown.format_code("<img src=x>@user\n# title") == "`<img src=x>@user # title`"
    assert markdown.format_code(" ") == ""


def test_a_markdown_report_escapes_vertical_bars_only_in_tables() -> None:
    """GitHub shows a backslash in a code span that is in no table."""
    summary = replace(missed(1, gate=FAILED), rows=(row(Outcome.MISS, test="test_a.py::test_x[a|b]"),))
    summary = replace(summary, request=replace(summary.request, update_arguments="--autotune-load='a|b'"))

    text = markdown.to_markdown(summary)

    assert "`Re-run with --autotune-load='a|b' to update the cache.`" in text
    assert r"| `test_a.py::test_x[a\|b]` |" in text


def test_a_markdown_report_shows_100_rows_and_counts_the_others() -> None:
    text = markdown.to_markdown(of_many_kernels(102))

    assert len(re.findall(r"^\| STALE ", text, re.MULTILINE)) == 100
    assert "2 more problems are only in the JSON report." in text


def test_a_markdown_report_sums_tuning_time_by_kernel_and_test() -> None:
    summary = result(
        rows=(
            row(None, "lib.a", "t::one", 1.0, M=1),
            row(None, "lib.a", "t::two", 2.0, M=2),
            row(None, "lib.b", "t::two", 4.0),
            row(None, "lib.c", "", 0.5),
        )
    )

    assert list_kernel_costs(summary) == [
        Cost("toy:lib.b", 1, 4.0),
        Cost("toy:lib.a", 2, 3.0),
        Cost("toy:lib.c", 1, 0.5),
    ]
    assert list_test_costs(summary) == [
        Cost("t::two", 2, 6.0),
        Cost("t::one", 1, 1.0),
        Cost("outside of tests", 1, 0.5),
    ]
    # Two tests may search for the choice of one problem, so the pages count searches.
    text = markdown.to_markdown(summary)
    assert text.count("|  | searches | time |") == 2
    assert "| `t::two` | 2 | 6 s |" in text
