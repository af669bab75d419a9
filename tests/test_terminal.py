"""The terminal's section, as a function of a summary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_autotune.cache.model import Device, Problem, Value
from pytest_autotune.report.rows import Row
from pytest_autotune.report.summary import Gate, Summary
from pytest_autotune.report.terminal import section
from pytest_autotune.run.dumping import Dump
from pytest_autotune.run.lookup import Outcome

DEVICE = Device("Toy GPU", "toy", 4)
DUMP = Dump("cache.textproto", "cache.textproto", entries=2, added=2, rewritten=True)


def row(outcome: Outcome | None, kernel: str = "lib.op", reason: str = "", n: int = 1, **more: object) -> Row:
    return Row(Problem("toy", kernel, (Value("n", n),), DEVICE), outcome, reason, **more)  # type: ignore[arg-type]


def shown(summary: Summary, verbosity: int = 0) -> list[str]:
    return [line.word + line.text for line in section(summary, verbosity)]


@pytest.mark.parametrize("verbosity", [0, 1, 2])
def test_a_dump_run_says_nothing_of_hits(verbosity: int) -> None:
    rows = (row(None, tuned=True), row(Outcome.UNPORTABLE, "lib.list", "M is a list"))

    lines = shown(Summary(rows=rows, dump=DUMP), verbosity)

    assert lines[-1] == "1 problem tuned, 1 unportable; 2 entries written to cache.textproto: 2 added"
    assert not [line for line in lines if "hit" in line]


def test_q_shows_crashed_workers_and_what_was_taken_over() -> None:
    summary = Summary(loaded=(("cache.pb", 1),), rows=(row(Outcome.HIT),), crashed=("gw1",), taken_over=2)

    assert shown(summary, -1) == [
        "worker gw1 crashed; its last test may be missing here",
        "took over 2 tunings of an interrupted run with this dump path",
    ]


def test_q_shows_what_went_wrong() -> None:
    """A log of a CI system is often one of ``-q``, and the note the only word of why nothing was asked for."""
    summary = Summary(loaded=(("cache.pb", 1),), rows=(row(Outcome.HIT),), notes=("Triton finds no GPU: …",))

    assert shown(summary, -1) == ["Triton finds no GPU: …", "1 hit"]
    assert shown(summary, -2) == []
    left_alone = replace(summary, unhooked=(("toy", "why"),), notes=("toy was left alone: why",), gate=Gate("0", "no"))
    assert shown(left_alone, -1) == ["toy was left alone: why", "1 hit"]


def test_qq_shows_why_a_tuner_that_failed_the_gate_was_left_alone() -> None:
    failed = Gate("0", failure="requested tuner could not be hooked: toy")
    summary = Summary(loaded=(("cache.pb", 1),), unhooked=(("toy", "its tune() takes other arguments"),), gate=failed)

    assert shown(summary, -2) == ["toy was left alone: its tune() takes other arguments"]
    assert shown(replace(summary, gate=Gate("0")), -2) == []


def test_the_first_ten_unseen_kernels_are_named_and_a_run_of_only_them_did_look_up() -> None:
    summary = Summary(unseen=tuple(f"lib.op_{number}" for number in range(12)), dump=DUMP)

    lines = shown(summary)

    assert len([line for line in lines if line.startswith("UNSEEN")]) == 10
    assert "(2 more unseen hidden.  Use -v to show them.)" in lines
    assert lines[-1].startswith("12 unseen; ")
    assert len([line for line in shown(summary, 1) if line.startswith("UNSEEN")]) == 12
