"""The terminal's section, as a function of a summary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_autotune.cache.merge import merge_run
from pytest_autotune.cache.model import Cache, Device, Entry, Problem, Value
from pytest_autotune.report.summary import render_section
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.result import DumpOutcome, Finding, Gate, RunResult, Section
from pytest_autotune.run.rows import ProblemRow
from tests.results import result

DEVICE = Device("Toy GPU", "toy", 4)
DUMP = DumpOutcome("cache.textproto", "cache.textproto", is_changed=True)


def row(outcome: Outcome | None, kernel: str = "lib.op", reason: str = "", n: int = 1, **fields: object) -> ProblemRow:
    return ProblemRow(Problem("toy", kernel, (Value("n", n),), DEVICE), outcome, reason, **fields)  # type: ignore[arg-type]


def shown(summary: RunResult, verbosity: int = 0) -> list[str]:
    return [line.word + line.text for line in render_section(summary, verbosity)]


@pytest.mark.parametrize("verbosity", [0, 1, 2])
def test_the_summary_of_a_dump_does_not_mention_hits(verbosity: int) -> None:
    rows = (row(None, searches=(("", 0.0),)), row(Outcome.UNCACHEABLE, "lib.list", "M is a list"))

    merged = merge_run(Cache(), used=[Entry(hit_row.problem) for hit_row in rows])
    lines = shown(result(rows=rows, merged=merged, dump=DUMP), verbosity)

    assert lines[-1] == "1 problem tuned, 1 uncacheable; 2 entries written to cache.textproto: 2 added"
    assert not [line for line in lines if "hit" in line]


def test_a_quiet_run_shows_crashed_workers_and_recovered_tunings() -> None:
    summary = result(loaded=(("cache.pb", 1),), rows=(row(Outcome.HIT),), crashed_workers=("gw1",), recovered=2)

    assert shown(summary, -1) == [
        "worker gw1 crashed; its last test may be missing in this summary",
        "recovered 2 tunings of an earlier run with this dump path, which ended before it wrote them",
    ]


def test_a_quiet_gated_run_shows_only_that_no_test_asked() -> None:
    only_hits = result(loaded=(("cache.pb", 1),), rows=(row(Outcome.HIT),))
    no_lookups = result(loaded=(("cache.pb", 1),))

    assert shown(replace(only_hits, gate=Gate("0")), -1) == []
    assert shown(replace(no_lookups, gate=Gate("0")), -1) != []
    assert shown(no_lookups, -1) == []


def test_notes_are_shown_with_option_q_and_hidden_with_qq() -> None:
    """CI systems often use ``-q``, and a note may be the only explanation of a run without lookups."""
    summary = result(loaded=(("cache.pb", 1),), rows=(row(Outcome.HIT),), notes=("toy was used before the tests",))

    assert shown(summary, -1) == ["toy was used before the tests", "1 hit"]
    assert shown(summary, -2) == []
    bypassed = result(
        summary, unhooked=(("toy", "why"),), notes=("toy tunes without the plugin: why",), gate=Gate("0", "no")
    )
    assert shown(bypassed, -1) == ["toy tunes without the plugin: why", "1 hit"]


def test_option_qq_still_shows_why_a_tuner_failed_the_gate() -> None:
    failed = Gate(
        "0", failure="loaded entries were not used: the plugin could not hook toy (a line above has the reason)"
    )
    summary = result(loaded=(("cache.pb", 1),), notes=("toy tunes without the plugin: why",), gate=failed)

    assert shown(summary, -2) == ["toy tunes without the plugin: why"]
    assert shown(replace(summary, gate=Gate("0")), -2) == []


@pytest.mark.parametrize("has_finding", [True, False])
def test_only_the_first_line_of_a_mode_with_findings_is_yellow(has_finding: bool) -> None:
    findings = (Finding("SLOWER", "toy:lib.op", "a choice is slower"),) if has_finding else ()
    section = Section("verify", "100%", lines=("1 choice raced", "the second line"), findings=findings)

    lines = render_section(result(loaded=(("cache.pb", 1),), sections=(section,)), 0)

    colors = [line.color for line in lines if line.text in section.lines]
    assert colors == ["yellow" if has_finding else "", ""]


def test_quiet_runs_list_slower_choices_if_their_gate_failed() -> None:
    """The mode's line has its counts, and the command that mends them."""
    slower = Finding("SLOWER", "toy:lib.op (n=1)", "b is faster", is_failure=True)
    drift = Section("verify", "all", ("verify all: 1 choice raced: 1 slower",), (slower,), gate=Gate("0", "exceeded"))
    failed = result(loaded=(("cache.pb", 1),), rows=(row(Outcome.HIT),), sections=(drift,))

    finding = "SLOWER toy:lib.op (n=1): b is faster"
    assert shown(failed, -1) == [finding, "1 hit", "verify all: 1 choice raced: 1 slower"]
    assert shown(result(failed, notes=("why",)), -2) == [finding, "why"]
    passed = replace(failed, sections=(replace(drift, gate=Gate("1")),))
    assert shown(passed, -1) == shown(passed, -2) == []


def test_at_most_ten_kernels_tuned_without_the_plugin_are_named() -> None:
    """With -v the summary names all of them. A run of untracked kernels alone does not say `no lookups`."""
    summary = result(untracked=tuple(f"lib.op_{number}" for number in range(12)), dump=DUMP)

    lines = shown(summary)

    assert len([line for line in lines if line.startswith("UNTRACKED")]) == 10
    assert "(2 more untracked hidden.  Use -v to show all.)" in lines
    assert lines[-1].startswith("12 untracked; ")
    assert len([line for line in shown(summary, 1) if line.startswith("UNTRACKED")]) == 12


def test_the_summary_says_if_unused_entries_lack_their_adapter() -> None:
    """Entries are loaded for a tuner that has no adapter. The summary names the tuner and counts the entries."""
    summary = result(loaded=(("cache.pb", 2),), devices_by_tuner={"gone": frozenset()}, adapters=("toy",))

    assert shown(summary) == [
        "gone: loaded entries are not used, because no adapter for this tuner is installed (install its package)",
        "the cache was not used: no adapter is installed for gone; 2 loaded entries not used",
    ]
