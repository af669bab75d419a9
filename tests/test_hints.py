"""The hints of a summary: options to copy, and the device on which to run them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_autotune.cache.model import Candidate, Device, Entry, Problem
from pytest_autotune.report.hints import list_hints
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.request import RunRequest
from pytest_autotune.run.result import DumpOutcome, Gate, RunResult
from pytest_autotune.run.rows import ProblemRow
from tests.results import result

GPU, OTHER = Device("GPU", "arch", 4), Device("Other GPU", "arch", 8)
LOADED = result(loaded=(("c.pb", 1),), devices_by_tuner={"toy": frozenset([GPU])}, update_arguments="--autotune-update")


def row(outcome: Outcome, device: Device = GPU, kernel: str = "lib.op") -> ProblemRow:
    return ProblemRow(Problem("toy", kernel, (), device), outcome)


UNUSED = (Entry(Problem("toy", "lib.old", (), GPU)),)
USED = Entry(Problem("toy", "lib.op", (), GPU), choice=Candidate())
PRUNED = "--autotune-update=prune"
UPDATE = "Re-run with --autotune-update=all to update the cache"
PRUNE = "to drop the unused entries, unless another suite uses them."


@pytest.mark.parametrize(
    ("summary", "expected_hints"),
    [
        (replace(LOADED, rows=(row(Outcome.HIT),)), []),
        (replace(LOADED, rows=(row(Outcome.STALE),)), [f"{UPDATE}."]),
        (replace(LOADED, rows=(row(Outcome.STALE),), request=RunRequest()), []),
        (
            replace(
                LOADED, rows=(replace(row(Outcome.STALE), searches=(("", 1.0),)),), dump=DumpOutcome("c.pb", "c.pb")
            ),
            [],
        ),
        (replace(LOADED, rows=(replace(row(Outcome.MISS), entry=USED),), dump=DumpOutcome("c.pb", "c.pb")), []),
        (replace(LOADED, rows=(row(Outcome.STALE),), dump=DumpOutcome("c.pb", "c.pb")), [f"{UPDATE}."]),
        (
            replace(LOADED, unused_entries=UNUSED, request=RunRequest(), dump=DumpOutcome("c.pb", "c.pb")),
            [f"Run with --autotune-load=c.pb {PRUNED} {PRUNE}"],
        ),
        (replace(LOADED, unused_entries=UNUSED), [f"Run with --autotune-update=prune {PRUNE}"]),
        (
            replace(LOADED, unused_entries=UNUSED, loaded=(("a.pb", 1), ("b.pb", 1))),
            [
                "Run with --autotune-report=r.json, then pytest-autotune prune --unused-in=r.json "
                f"for each of these caches, {PRUNE}"
            ],
        ),
        (
            replace(LOADED, unused_entries=UNUSED, rows=(row(Outcome.MISS),)),
            [
                f"Re-run with {PRUNED} to update the cache and to drop the unused entries. If another suite uses them, "
                f"re-run with --autotune-update=all."
            ],
        ),
        (replace(LOADED, loaded=(("c.pb", 0),), gate=Gate(failure="no entries")), [f"{UPDATE}."]),
    ],
    ids=[
        "a hit",
        "stale",
        "stale in a run without an update command",
        "stale and tuned in a dump",
        "a miss that a dump answers",
        "stale and not tuned in a dump",
        "unused after a dump",
        "unused",
        "unused with two caches",
        "unused beside a miss",
        "an empty cache",
    ],
)
def test_each_kind_of_miss_gets_a_hint_with_its_remedy(summary: RunResult, expected_hints: list[str]) -> None:
    assert list(list_hints(summary)) == expected_hints


@pytest.mark.parametrize("outcome", [Outcome.MISMATCH, Outcome.MISS])
def test_the_update_hint_names_the_gpu_of_the_misses(outcome: Outcome) -> None:
    (hint,) = list_hints(replace(LOADED, rows=(row(outcome, OTHER), row(Outcome.HIT))))

    assert hint == "Re-run on Other GPU (arch, 8 multiprocessors) with --autotune-update=all to update the cache."


def test_the_hint_to_update_an_empty_cache_names_no_device() -> None:
    (hint,) = list_hints(replace(LOADED, devices_by_tuner={}, rows=(row(Outcome.MISS),)))

    assert hint == f"{UPDATE}."


def test_uncacheable_kernels_get_a_hint_to_fix_or_ignore_them() -> None:
    """No update covers these kernels. The hint names the kernels and the option that ignores them."""
    uncacheable = tuple(row(Outcome.UNCACHEABLE, kernel=f"k{n}") for n in range(3))
    summary = result(LOADED, rows=uncacheable, untracked=("toy:k1 (lib.Mine)", "toy:k8 (lib.Mine)"))

    assert list(list_hints(summary)) == [
        "An update does not help for uncacheable or untracked problems: fix the cause that each row names, or add "
        "toy:k0, toy:k1, toy:k2 and 1 other kernel to autotune_ignore (ini)."
    ]
    assert list(list_hints(result(LOADED, untracked=("toy:k8 (lib.Mine)",)))) == [
        "An update does not help for untracked problems: fix the cause that each row names, or "
        "add toy:k8 to autotune_ignore (ini)."
    ]
    assert list(list_hints(result(rows=uncacheable, dump=DumpOutcome("c.pb", "c.pb")))) == [], (
        "a dump that loads nothing"
    )


def test_a_tuner_that_cannot_be_patched_gets_an_upgrade_hint() -> None:
    """If the gate fails, the hint says how to upgrade, report or ignore the tuner."""
    failed = result(LOADED, unhooked=(("toy", "other arguments"),), gate=Gate("0", "could not hook toy"))

    without = "or set autotune_ignore (ini) to toy:* to run without its entries."
    assert list(list_hints(failed)) == [
        f"The plugin could not hook toy: upgrade pytest-autotune or its adapter, or report the failure; {without}"
    ]
    assert list(list_hints(replace(failed, gate=Gate("0")))) == []


def test_a_cache_whose_adapter_is_missing_gets_an_install_hint() -> None:
    """The hint says to install the adapter or to ignore its tuner."""
    summary = replace(
        LOADED, devices_by_tuner={"gone": frozenset([GPU])}, request=RunRequest(adapters=()), gate=Gate("0", "gone")
    )

    (hint,) = list_hints(summary)
    assert hint == "Install the adapter of gone; or set autotune_ignore (ini) to gone:* to run without its entries."


def test_misses_of_hypothesis_tests_get_no_update_hint() -> None:
    """Hypothesis draws other problems in each run, so no update covers them. Other misses keep the update hint."""
    rows = tuple(replace(row(Outcome.MISS, kernel=f"lib.k{number}"), tests=("t.py::test",)) for number in range(4))
    (hint,) = list_hints(result(LOADED, rows=rows, hypothesis_tests=("t.py::test",)))

    assert hint.startswith("Hypothesis draws 4 of these problems anew in each run, so no update covers them: fix its")
    assert hint.endswith("or add toy:lib.k0, toy:lib.k1, toy:lib.k2 and 1 other kernel to autotune_ignore (ini).")
    (_, update) = list_hints(result(LOADED, rows=(*rows, row(Outcome.MISS)), hypothesis_tests=("t.py::test",)))
    assert update == f"{UPDATE}."
