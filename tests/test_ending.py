"""The end of a run: what was collected and loaded in; the change of the cache, the summary and the verdict out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pytest

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.report import faces, html, json_report, markdown, terminal
from pytest_autotune.report.gate import Limit, judge, judge_drift
from pytest_autotune.report.rows import Row
from pytest_autotune.report.summary import Summary, summarise
from pytest_autotune.run.dumping import Dump
from pytest_autotune.run.encoding import ProcessFacts
from pytest_autotune.run.ending import Beginning, Collected, DumpPolicy, Ending, end
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.verify import TIME_OVER, Share, Verdict, Verification

GPU = Device("GPU", "arch", 4)
OTHER = Device("Other GPU", "arch", 8)
FACTS = ProcessFacts(versions=(("toy", Versions.of("toy 1.0")),))
DUMP = Dump("new.textproto", "new.textproto", rewritten=True)


def problem(kernel: str = "k", device: Device = GPU, **key: Any) -> Problem:
    return Problem("toy", kernel, tuple(Value(name, value) for name, value in key.items()), device)


def candidate(name: str, time_us: float | None = None) -> Candidate:
    return Candidate(params=(Value("config", name),), time_us=time_us)


def entry(of: Problem, choice: str = "a", source: str = "s", **times: float) -> Entry:
    timed = tuple(candidate(name, time) for name, time in times.items())
    found = next((one for one in timed if one.params[0].value == choice), candidate(choice))
    return Entry(of, (Value("source", source),), found, timed, tuning_seconds=0.5, versions=Versions.of("toy 1.0"))


def searched(made: Entry, outcome: Outcome | None = None, **told: Any) -> Lookup:
    return Lookup(made.problem, made.fingerprint, outcome, entry=made, tuned=True, **told)


def hit(found: Entry, **told: Any) -> Lookup:
    return Lookup(found.problem, found.fingerprint, Outcome.HIT, entry=found, **told)


def beginning(*loaded: Entry, held: tuple[Entry, ...] = ()) -> Beginning:
    caches = (("old.textproto", Cache(loaded)),) if loaded else ()
    return Beginning(caches, Cache(held), EntryIndex.of([Cache(loaded)]) if loaded else None)


def collected(*lookups: tuple[str, Lookup] | Lookup, **more: Any) -> Collected:
    pairs = [one if isinstance(one, tuple) else ("", one) for one in lookups]
    return Collected(tuple(pairs), **{"facts": (FACTS,), **more})


def finished(
    began: Beginning, found: Collected, policy: DumpPolicy | None = None, prune: bool = False
) -> tuple[Ending, Summary]:
    ending = end(began, found, began.held, policy)
    return ending, summarise(began, found, ending, DUMP if policy else None, prune=prune)


def test_the_report_shows_the_choice_that_the_file_keeps_where_it_is_as_good_as_the_new_one() -> None:
    old = entry(problem(), "b")
    new = entry(problem(), "a", a=10.0, b=10.1)

    ending, summary = finished(beginning(held=(old,)), collected(searched(new)), DumpPolicy())

    assert ending.merged.cache.entries == (old,)
    assert [row.choice for row in summary.rows] == [old.choice]
    assert summary.rows[0].candidates == new.candidates


@pytest.mark.parametrize("policy", [DumpPolicy(), None])
def test_of_two_searches_the_report_shows_the_one_that_counts(policy: DumpPolicy | None) -> None:
    disturbed = searched(entry(problem(), "a", a=1.0, b=2.0), disturbed=True, test="test_a.py::test")
    good = searched(entry(problem(), "b", a=9.0, b=2.0), test="test_b.py::test")

    for lookups in itertools.permutations([("gw0", disturbed), ("gw1", good)]):
        ending, summary = finished(beginning(), collected(*lookups), policy)

        (row,) = summary.rows
        assert row.choice == ending.merged.cache.entries[0].choice == candidate("b", 2.0)
        assert row.candidates == good.entry.candidates  # type: ignore[union-attr]
        assert not row.disturbed
        assert len(summary.disagreements) == (policy is not None)


def test_the_same_ending_in_whatever_order_processes_reported() -> None:
    kept = entry(problem(M=1))
    lookups = [
        ("gw0", hit(kept)),
        ("gw1", searched(entry(problem(M=2), a=1.0))),
        ("gw2", searched(entry(problem(M=2), "b", b=1.5))),
    ]
    began = beginning(kept)
    endings = [finished(began, collected(*order), DumpPolicy())[1] for order in itertools.permutations(lookups)]

    assert all(one == endings[0] for one in endings)


def test_an_entry_that_nobody_asked_for_in_a_complete_run_is_unused_and_pruned_only_where_that_is_wanted() -> None:
    asked, unasked = entry(problem(M=1)), entry(problem(M=2))
    began = beginning(asked, unasked, held=(asked, unasked))

    kept, told = finished(began, collected(hit(asked)), DumpPolicy())
    pruned, _ = finished(began, collected(hit(asked)), DumpPolicy(prune=True), prune=True)
    incomplete, silent = finished(began, collected(hit(asked), incomplete="-k selects tests"), DumpPolicy(prune=True))

    assert (kept.merged.removed, told.unused) == (0, (unasked,))
    assert (pruned.merged.removed, pruned.merged.cache.entries) == (1, (asked,))
    assert (incomplete.merged.removed, silent.unused) == (0, ())


def test_an_entry_for_another_list_that_pruning_left_is_not_unused_where_its_problem_was_asked_for() -> None:
    def of(pruned: str, key: int) -> Entry:
        made = entry(problem(M=key))
        return replace(made, fingerprint=(Value("pruned", pruned), *made.fingerprint))

    asked, another, unasked = of("one", 1), of("other", 1), of("one", 2)

    ending, _ = finished(beginning(asked, another, unasked), collected(hit(asked)))

    assert ending.unused == (unasked,)


@pytest.mark.parametrize(
    ("unasked", "facts"),
    [
        pytest.param(entry(problem(M=2, device=OTHER)), FACTS, id="another device"),
        pytest.param(entry(problem("elsewhere")), FACTS, id="a kernel that was not imported"),
        pytest.param(replace(entry(problem(M=2)), versions=Versions.of("toy 2.0")), FACTS, id="another version"),
        pytest.param(entry(problem(M=2)), ProcessFacts(), id="a tuner that was not active"),
    ],
)
def test_an_entry_that_this_run_could_not_have_asked_for_is_not_unused(unasked: Entry, facts: ProcessFacts) -> None:
    asked = entry(problem(M=1))

    ending, _ = finished(beginning(asked, unasked), collected(hit(asked), facts=(facts,)))

    assert ending.unused == ()


def test_what_another_run_wrote_meanwhile_stays() -> None:
    mine, theirs = entry(problem(M=1), a=1.0), entry(problem(M=2))

    ending = end(beginning(), collected(searched(mine)), Cache((theirs,)), DumpPolicy(prune=True))

    assert {one.problem for one in ending.merged.cache.entries} == {mine.problem, theirs.problem}
    assert (ending.merged.added, ending.merged.unchanged) == (1, 1)


def test_what_was_taken_over_counts_only_where_this_run_did_not_ask() -> None:
    before, now = entry(problem(M=1), "a", a=1.0), entry(problem(M=1), "b", b=2.0)
    other = entry(problem(M=2), "a", a=1.0)
    found = collected(searched(now), taken_over=(searched(before), searched(other)))

    ending, summary = finished(beginning(), found, DumpPolicy())

    assert [one.choice for one in ending.merged.cache.entries] == [now.choice, other.choice]
    assert summary.taken_over == 1
    assert finished(beginning(), found)[0].taken_over == 0


def test_loaded_entries_that_the_dump_does_not_hold_are_named_by_device(capsys: pytest.CaptureFixture[str]) -> None:
    asked, stale = entry(problem(M=1)), entry(problem(M=2))
    gone = [entry(problem(M=3)), *(entry(problem(M=m, device=OTHER)) for m in range(7))]
    found = collected(hit(asked), searched(entry(problem(M=2), source="new", a=1.0), Outcome.STALE), incomplete="-k")

    ending, summary = finished(beginning(asked, stale, *gone), found, DumpPolicy())

    assert set(ending.left_out) == set(gone)
    assert set(finished(beginning(asked, stale, *gone, held=tuple(gone)), found, DumpPolicy())[0].left_out) == set()
    assert finished(beginning(asked, *gone), found)[1].left_out == ()
    told = [line.text for line in terminal.section(summary, 0)]
    assert f"8 loaded entries are not in new.textproto: no test asked for them (1 for {GPU}; 7 for {OTHER})" in told
    assert len(json_report.to_mapping(summary)["left_out"]) == 8


def test_a_dump_names_the_kernels_of_which_it_drops_what_another_suite_may_have_tuned() -> None:
    ours, theirs = (entry(problem(f"k{n}"), source="ours", a=1.0) for n in range(5)), entry(problem("k0"), source="old")
    held = [theirs, *(entry(problem(f"k{n}", M=m), source="old") for n in range(1, 5) for m in (1, 2))]
    again = [*ours, *(entry(problem(f"k{n}", M=m), source="ours", a=1.0) for n in range(1, 5) for m in (1, 2))]

    _, summary = finished(beginning(held=tuple(held)), collected(*map(searched, again)), DumpPolicy())

    assert set(summary.replaced) == set(held)
    told = "9 entries of other code or candidates were replaced: toy:k0, toy:k1, toy:k2 and 2 other kernels"
    assert told in [line.text for line in terminal.section(summary, 0)]
    assert len(json_report.to_mapping(summary)["replaced"]) == 9
    for face in (markdown.to_markdown(summary), html.to_html(summary)):
        assert told in face


def test_what_a_row_tells_to_be_stale_is_not_told_again_when_it_is_replaced() -> None:
    old, new = entry(problem(), source="old"), entry(problem(), source="new", a=1.0)
    stale = collected(searched(new, Outcome.STALE))

    assert finished(beginning(old, held=(old,)), stale, DumpPolicy())[1].replaced == ()
    assert finished(beginning(old), stale)[1].replaced == ()
    pruned = finished(beginning(held=(old,)), collected(searched(entry(problem(M=1)))), DumpPolicy(prune=True))
    assert pruned[1].replaced == ()


def rows(*outcomes: Outcome) -> tuple[Row, ...]:
    return tuple(Row(problem(M=number), outcome) for number, outcome in enumerate(outcomes))


MISSED = Summary(loaded=(("a", 1),), rows=rows(Outcome.HIT, Outcome.MISS, Outcome.STALE, Outcome.MISMATCH))


@pytest.mark.parametrize(
    ("summary", "limit", "failure", "skipped"),
    [
        (MISSED, "3", "", ""),
        (MISSED, "2", "maximum allowed autotune cache misses exceeded: 3 > 2", ""),
        (MISSED, "75%", "", ""),
        (MISSED, "74.9%", "maximum allowed autotune cache misses exceeded: 3 of 4 > 74.9%", ""),
        (replace(MISSED, unseen=("triton:k",)), "3", "maximum allowed autotune cache misses exceeded: 4 > 3", ""),
        (replace(MISSED, updates=True), "0", "", "this run updates the cache that it loads"),
        (replace(MISSED, interrupted=True), "0", "", "the run was interrupted"),
        (Summary(), "0", "", "nothing was loaded"),
        (replace(MISSED, rows=()), "9", "1 entry was loaded and not one was asked for", ""),
        (replace(MISSED, rows=(), incomplete="1 test deselected"), "0", "", ""),
        (
            replace(MISSED, rows=(), incomplete="t.py::t was skipped", only_skipped=True),
            "0",
            "1 entry was loaded and not one was asked for (t.py::t was skipped)",
            "",
        ),
        (
            replace(MISSED, unhooked=(("toy", "why"),), requested=("toy.part",)),
            "9",
            "requested tuner could not be hooked: toy",
            "",
        ),
        (
            replace(MISSED, unhooked=(("toy", "why"),), covered={"toy": frozenset()}),
            "9",
            "requested tuner could not be hooked: toy",
            "",
        ),
        (replace(MISSED, unhooked=(("toy", "why"),), requested=("other",)), "9", "", ""),
    ],
)
def test_the_gate_needs_the_summary_and_the_limit_only(
    summary: Summary, limit: str, failure: str, skipped: str
) -> None:
    gate = judge(summary, Limit.parse(limit))

    assert (gate.limit, gate.failure, gate.skipped.removeprefix("autotune cache misses not judged: ")) == (
        limit,
        failure,
        skipped,
    )


def test_an_unportable_problem_of_a_run_that_loads_nothing_is_not_judged() -> None:
    rows = tuple(replace(row, outcome=Outcome.UNPORTABLE) for row in MISSED.rows)
    gate = judge(replace(MISSED, loaded=(), rows=rows), Limit.parse("0"))

    assert (gate.failure, gate.skipped) == ("", "autotune cache misses not judged: nothing was loaded")


def test_a_run_that_should_have_loaded_something_passes_only_where_a_test_has() -> None:
    why = "--autotune-max-misses: nothing is loaded"
    nothing_loaded = replace(MISSED, loaded=(), rows=tuple(replace(row, outcome=None) for row in MISSED.rows))

    refused = judge(nothing_loaded, Limit.parse("0"), unloaded=why)
    assert (refused.failure, refused.is_usage_error) == (why, True)
    assert judge(replace(MISSED, loaded=()), Limit.parse("9"), unloaded=why).failure == ""


def test_where_time_was_over_before_any_race_no_other_reason_makes_a_limit_on_drift_green() -> None:
    summary = replace(MISSED, rows=rows(Outcome.HIT, Outcome.HIT), verify=Verification(Share(), seconds=1.0))
    first, second = (Verdict("it cannot be launched"), Verdict(TIME_OVER))
    mixed = replace(
        summary, rows=tuple(replace(row, verdict=told) for row, told in zip(summary.rows, (first, second), strict=True))
    )

    gate = judge_drift(mixed, Limit.parse("0"))

    assert gate.failure == f"not one of 1 choice was raced: {TIME_OVER} (raise autotune_verify_seconds)"


def test_without_a_limit_nothing_is_judged() -> None:
    assert judge(MISSED, None) == Summary().gate


def test_a_crashed_worker_a_conflict_and_other_versions_are_in_the_json_report_as_in_the_terminal() -> None:
    old = replace(entry(problem(M=1)), versions=Versions.of("toy 0.9"))
    found = collected(
        ("gw0", hit(old)),
        ("gw1", searched(entry(problem(M=2), "a", a=1.0))),
        ("gw2", searched(entry(problem(M=2), "b", b=2.0))),
        taken_over=(searched(entry(problem(M=3), a=1.0)),),
        crashed=("gw3",),
        facts=(replace(FACTS, worker="gw1", waited_s=1.5),),
    )

    _, summary = finished(beginning(old), found, DumpPolicy())

    told = "\n".join(line.word + line.text for line in terminal.section(summary, 1))
    report = json_report.to_mapping(summary)
    assert "worker gw3 crashed" in told
    assert report["crashed"] == ["gw3"]
    assert "took over 1 tuning" in told
    assert report["taken_over"] == 1
    assert "1 hit, tuned with toy 0.9; this run has toy 1.0" in told
    assert report["other_versions"] == [{"tuned_with": "toy 0.9", "running": "toy 1.0", "hits": 1}]
    assert "CONFLICT toy:k (M=2): gw1 chose config=a, gw2 chose config=b - kept gw1" in told
    assert [one["process"] for one in report["conflicts"][0]["choices"]] == ["gw1", "gw2"]
    assert "gw1 waited 1.5s" in told
    assert report["waited_seconds"] == {"gw1": 1.5}


def test_very_verbose_output_tells_the_spread_of_a_measurement_and_that_it_was_disturbed() -> None:
    chosen = replace(candidate("a", 10.0), label="+-0.1 us, 9 of 9 runs")
    made = replace(entry(problem()), choice=chosen, candidates=(chosen,))

    _, summary = finished(beginning(), collected(searched(made, Outcome.MISS, disturbed=True)))

    (told,) = (line.text for line in terminal.section(summary, 2) if line.text.startswith("     tuned in"))
    assert told.endswith("(+-0.1 us, 9 of 9 runs; disturbed: something else may have run on the device)")
    lookup = json_report.to_mapping(summary)["lookups"][0]
    assert lookup["disturbed"] is True
    assert lookup["candidates"][0]["label"] == "+-0.1 us, 9 of 9 runs"


def test_a_face_is_found_by_the_suffix_of_its_file() -> None:
    face = faces.face_of(PurePath("out/report.json"))

    assert face is not None
    assert face.text(MISSED) == json_report.to_json(MISSED)
    assert faces.face_of(PurePath("report.toml")) is None
