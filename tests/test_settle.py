"""The end of a run: what was collected and loaded in; the change of the cache, the summary and the verdict out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.report import json_report
from pytest_autotune.report.gate import Limit, judge
from pytest_autotune.report.summary import render_section
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.finish import finish_run
from pytest_autotune.run.lookup import SPECIALIZATION, Lookup, Outcome, Policy, TunedEntry, UsedEntry
from pytest_autotune.run.request import UPDATE_ALL, UPDATE_PRUNE, FileDump, NoDump, RunRequest, SharedDump
from pytest_autotune.run.result import DumpOutcome, RunResult
from pytest_autotune.run.rows import ProblemRow
from pytest_autotune.run.settle import EndedRun, InitialCaches, settle_run
from pytest_autotune.workers.events import Event
from tests.results import result

GPU = Device("GPU", "arch", 4)
OTHER = Device("Other GPU", "arch", 8)
VERSIONS = {"toy": Versions.parse("toy 1.0")}
DUMP = DumpOutcome("new.textproto", "new.textproto", is_changed=True)


def problem(kernel: str = "k", device: Device = GPU, **key: Any) -> Problem:
    return Problem("toy", kernel, tuple(Value(name, value) for name, value in key.items()), device)


def candidate(name: str, time_us: float | None = None) -> Candidate:
    return Candidate(params=(Value("config", name),), time_us=time_us)


def entry(of: Problem, choice: str = "a", source: str = "s", **times: float) -> Entry:
    timed = tuple(candidate(name, time) for name, time in times.items())
    chosen = next(
        (timed_candidate for timed_candidate in timed if timed_candidate.params[0].value == choice), candidate(choice)
    )
    return Entry(of, (Value("source", source),), chosen, timed, tuning_seconds=0.5, versions=Versions.parse("toy 1.0"))


def searched(
    made: Entry, outcome: Outcome | None = None, is_disturbed: bool = False, has_failed: bool = False, **facts: Any
) -> Lookup:
    return Lookup(made.identity, outcome, result=TunedEntry(made, is_disturbed, has_failed), **facts)


def hit(entry_hit: Entry, **facts: Any) -> Lookup:
    return Lookup(entry_hit.identity, Outcome.HIT, result=UsedEntry(entry_hit), **facts)


def beginning(*loaded: Entry, dump_entries: tuple[Entry, ...] = ()) -> InitialCaches:
    caches = (("old.textproto", Cache(loaded)),) if loaded else ()
    return InitialCaches(caches, Cache(dump_entries), EntryIndex.from_caches([Cache(loaded)]) if loaded else None)


def collected(*lookups: tuple[str, Lookup] | Lookup, **more: Any) -> Collected:
    with_process = []
    for lookup in lookups:
        process, lookup = lookup if isinstance(lookup, tuple) else ("", lookup)
        with_process.append(replace(lookup, process=process))
    return Collected(tuple(with_process), **{"versions": VERSIONS, **more})


def finished(began: InitialCaches, collected_run: Collected, **request: Any) -> RunResult:
    result = finish_at(began, collected_run, began.dump_cache, RunRequest(**request))
    return result.with_dump(DUMP) if result.request.plan.writes else result


def finish_at(began: InitialCaches, collected_run: Collected, dump_cache: Cache, request: RunRequest) -> RunResult:
    """Return the result of a run that finds this content in the dump path."""
    return finish_run(settle_run(EndedRun.of_one_process(began, collected_run, request)), dump_cache)


def test_the_row_of_a_problem_has_the_entry_that_was_tuned() -> None:
    used, tuned = entry(problem(), "a", source="old"), entry(problem(), "b", source="new")

    summary = finished(beginning(used), collected(hit(used), searched(tuned, Outcome.STALE)))

    [row] = summary.rows
    assert row.choice == tuned.choice


def test_a_failed_tuning_counts_as_failed_if_a_choice_is_kept() -> None:
    old = entry(problem())
    failed = replace(old, choice=None, candidates=(Candidate(failed="boo"),))

    summary = finished(beginning(dump_entries=(old,)), collected(searched(failed, has_failed=True)), plan=FileDump())

    assert (summary.counts["tuned"], summary.counts["failed"]) == (0, 1)
    assert summary.rows[0].choice == old.choice


def test_a_failed_tuning_keeps_the_old_choice_unless_rejected() -> None:
    old = entry(problem())
    failed = replace(old, choice=None, candidates=(Candidate(failed="boo"),))
    stale = searched(failed, has_failed=True, outcome=Outcome.STALE)

    tried = finished(
        beginning(old, dump_entries=(old,)), collected(replace(stale, has_rejected_entry=True)), plan=FileDump()
    )
    untried = finished(
        beginning(entry(problem(), source="old"), dump_entries=(old,)), collected(stale), plan=FileDump()
    )

    assert tried.merged.cache.entries[0].is_failure
    assert untried.merged.cache.entries == (old,)


def test_the_report_shows_the_old_choice_if_a_new_one_is_as_fast() -> None:
    old = entry(problem(), "b")
    new = entry(problem(), "a", a=10.0, b=10.1)

    summary = finished(beginning(dump_entries=(old,)), collected(searched(new)), plan=FileDump())

    assert summary.merged.cache.entries == (old,)
    assert [row.choice for row in summary.rows] == [old.choice]
    assert summary.rows[0].candidates == new.candidates


@pytest.mark.parametrize("dumps", [True, False])
def test_of_two_tunings_the_report_shows_the_undisturbed_one(dumps: bool) -> None:
    disturbed = searched(entry(problem(), "a", a=1.0, b=2.0), is_disturbed=True, test="test_a.py::test")
    good = searched(entry(problem(), "b", a=9.0, b=2.0), test="test_b.py::test")

    for lookups in itertools.permutations([("gw0", disturbed), ("gw1", good)]):
        summary = finished(beginning(), collected(*lookups), plan=FileDump() if dumps else NoDump())

        (row,) = summary.rows
        assert row.choice == summary.merged.cache.entries[0].choice == candidate("b", 2.0)
        assert row.candidates == good.entry.candidates  # type: ignore[union-attr]
        assert not row.is_disturbed


def test_summary_rows_do_not_depend_on_the_order_of_workers() -> None:
    kept = entry(problem(M=1))
    lookups = [
        ("gw0", hit(kept)),
        ("gw1", searched(entry(problem(M=2), a=1.0))),
        ("gw2", searched(entry(problem(M=2), "b", b=1.5))),
    ]
    began = beginning(kept)
    endings = [finished(began, collected(*order), plan=FileDump()).rows for order in itertools.permutations(lookups)]

    assert all(ending == endings[0] for ending in endings)


def test_an_entry_for_other_candidates_of_a_hit_is_not_unused() -> None:
    def of(pruned: str, key: int) -> Entry:
        made = entry(problem(M=key))
        return replace(made, fingerprint=(Value("pruned", pruned), *made.fingerprint))

    requested, another, unrequested = of("one", 1), of("other", 1), of("one", 2)

    summary = finished(beginning(requested, another, unrequested), collected(hit(requested)))

    assert summary.unused_entries == (unrequested,)


def test_update_prune_keeps_entries_of_a_simultaneous_run() -> None:
    tuned, written = entry(problem(M=1), a=1.0), entry(problem(M=2))

    summary = finish_at(beginning(), collected(searched(tuned)), Cache((written,)), RunRequest(FileDump(UPDATE_PRUNE)))

    assert {merged_entry.problem for merged_entry in summary.merged.cache.entries} == {tuned.problem, written.problem}
    assert summary.merged.counts_text == "1 added, 1 unchanged"


def pruned_for(kernel: str, candidates: str) -> Entry:
    """Return the entry of a kernel whose pruning left these candidates."""
    made = entry(problem(kernel))
    return replace(made, fingerprint=(Value("pruned", candidates), *made.fingerprint))


OLD, NEW = entry(problem("old")), entry(problem("new"))


def after_prune(loaded: tuple[Entry, ...], *lookups: Lookup, **request: Any) -> set[Entry]:
    """Return the entries of a cache after a complete run with these lookups and ``--autotune-update=prune``."""
    plan = FileDump(UPDATE_PRUNE, is_update=True)
    summary = finished(beginning(*loaded, dump_entries=loaded), collected(*lookups), plan=plan, **request)
    return set(summary.merged.cache.entries)


def test_update_prune_drops_the_old_name_of_a_renamed_kernel() -> None:
    assert after_prune((OLD, NEW), hit(NEW, may_be_renamed=True)) == {NEW}
    assert after_prune((OLD, NEW), hit(NEW)) == {OLD, NEW}, "kernels of this tuner keep their names"


OTHER_OLD = pruned_for("old", "other")
NESTED_OLD = replace(OLD, asked_by="toy:outer")
OUTER = entry(problem("outer"))


@pytest.mark.parametrize(
    ("loaded", "lookups"),
    [
        pytest.param((OLD, NEW), [hit(OLD)], id="a test asks for it"),
        pytest.param(
            (OLD, NEW),
            [Lookup(OTHER_OLD.identity, Outcome.HIT, result=UsedEntry(OLD))],
            id="a lookup with fewer candidates uses it",
        ),
        pytest.param(
            (OTHER_OLD, pruned_for("old", "one"), pruned_for("new", "other")),
            [hit(pruned_for("old", "one")), hit(pruned_for("new", "other"), may_be_renamed=True)],
            id="another order of tests asks for it",
        ),
        pytest.param((NESTED_OLD, NEW, OUTER), [hit(OUTER)], id="a tuning asks for it"),
    ],
)
def test_update_prune_keeps_a_kernel_with_the_source_of_another(
    loaded: tuple[Entry, ...], lookups: list[Lookup]
) -> None:
    assert after_prune(loaded, hit(NEW, may_be_renamed=True), *lookups) >= set(loaded)


def test_update_prune_drops_an_old_name_if_the_run_tuned_the_kernel() -> None:
    tuned = entry(problem("new"), a=1.0)
    failed = replace(tuned, choice=None, candidates=(Candidate(failed="boo"),))

    assert {kept.identity for kept in after_prune((OLD,), searched(tuned, may_be_renamed=True))} == {NEW.identity}
    failed_lookup = searched(failed, may_be_renamed=True, has_failed=True)
    assert OLD in after_prune((OLD,), failed_lookup)
    old_failure = replace(OLD, choice=None, candidates=failed.candidates)
    assert {kept.identity for kept in after_prune((old_failure,), failed_lookup)} == {NEW.identity}


def test_update_prune_keeps_an_old_name_if_the_cache_lacks_the_new_one() -> None:
    """The own cache of a test has the new name."""
    assert after_prune((OLD,), hit(NEW, may_be_renamed=True, test_cache="own.textproto")) == {OLD}


def test_update_prune_keeps_an_ignored_kernel_with_the_source_of_another() -> None:
    policy = Policy(ignore=("toy:old",))
    assert after_prune((OLD, NEW), hit(NEW, may_be_renamed=True), policy=policy) == {OLD, NEW}


def test_a_dump_keeps_an_entry_whose_lookup_used_the_entry_of_a_copy() -> None:
    """Only the other cache is loaded, and the dump path has the entry under the kernel's own name."""
    copy_lookup = Lookup(NEW.identity, Outcome.HIT, result=UsedEntry(OLD), may_be_renamed=True)
    other_source = entry(problem("new"), source="other", a=1.0)

    summary = finished(
        beginning(OLD, dump_entries=(NEW,)), collected(copy_lookup, searched(other_source)), plan=FileDump()
    )

    assert {kept.identity for kept in summary.merged.cache.entries} == {NEW.identity, other_source.identity}


def test_a_dump_keeps_an_entry_that_a_test_with_a_cache_of_its_own_used() -> None:
    """A copy uses the entry, too, and another test tunes the problem with other source."""
    copy_lookup = Lookup(NEW.identity, Outcome.HIT, result=UsedEntry(OLD), may_be_renamed=True)
    other_source = entry(problem("old"), source="other", a=1.0)

    summary = finished(
        beginning(dump_entries=(OLD,)),
        collected(hit(OLD, test_cache="own.textproto"), copy_lookup, searched(other_source)),
        plan=FileDump(),
    )

    assert {kept.identity for kept in summary.merged.cache.entries} >= {OLD.identity, other_source.identity}


def test_a_recovered_tuning_replaces_no_choice_in_the_file() -> None:
    """The file's choice may be newer than the killed run, for example from a pull."""
    pulled, recovered = entry(problem(), "b"), entry(problem(), "a", a=1.0)
    began = beginning(dump_entries=(pulled,))

    summary = finished(began, collected(recovered_lookups=(searched(recovered),)), plan=FileDump())

    assert summary.merged.cache.entries == (pulled,)
    assert summary.recovered_count == 0


def test_a_hit_keeps_the_choice_that_a_simultaneous_run_retuned() -> None:
    loaded, retuned = entry(problem(), "a"), entry(problem(), "b")
    began = beginning(loaded, dump_entries=(loaded,))

    summary = finish_at(began, collected(hit(loaded)), Cache((retuned,)), RunRequest(FileDump()))

    assert summary.merged.cache.entries == (retuned,)


def test_a_hit_keeps_compiled_variants_of_a_simultaneous_run() -> None:
    used, written = (replace(entry(problem(), "a"), compiled=(text,)) for text in ("n=64", "n=32"))

    summary = finish_at(beginning(), collected(hit(used)), Cache((written,)), RunRequest(FileDump()))

    assert summary.merged.cache.entries[0].compiled == ("n=32", "n=64")


def test_a_hit_stays_if_a_simultaneous_run_recorded_a_failure() -> None:
    loaded = entry(problem(), "a")
    failed = replace(loaded, choice=None, candidates=(Candidate(failed="boo"),))
    began = beginning(loaded, dump_entries=(loaded,))

    summary = finish_at(began, collected(hit(loaded)), Cache((failed,)), RunRequest(FileDump()))

    assert summary.merged.cache.entries == (loaded,)


def test_a_tuning_does_not_remove_an_entry_of_a_simultaneous_run() -> None:
    old, tuned, written = (entry(problem(), source=source, a=1.0) for source in ("old", "tuned", "written"))
    began = beginning(dump_entries=(old,))

    summary = finish_at(began, collected(searched(tuned)), Cache((old, written)), RunRequest(FileDump()))

    assert {merged.identity for merged in summary.merged.cache.entries} == {tuned.identity, written.identity}


def test_a_killed_runs_tuning_is_dropped_if_this_run_retuned_it() -> None:
    before, now = entry(problem(M=1), "a", a=1.0), entry(problem(M=1), "b", b=2.0)
    other = entry(problem(M=2), "a", a=1.0)
    collected_run = collected(searched(now), recovered_lookups=(searched(before), searched(other)))

    summary = finished(beginning(), collected_run, plan=FileDump())

    assert [merged_entry.choice for merged_entry in summary.merged.cache.entries] == [now.choice, other.choice]
    assert summary.recovered_count == 1
    assert finished(beginning(), collected_run).recovered_count == 0


def test_loaded_entries_that_a_dump_omits_are_counted_by_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    asked, stale = entry(problem(M=1)), entry(problem(M=2))
    missing = [entry(problem(M=3)), *(entry(problem(M=m, device=OTHER)) for m in range(7))]
    collected_run = collected(
        hit(asked), searched(entry(problem(M=2), source="new", a=1.0), Outcome.STALE), incomplete_reason="-k"
    )

    summary = finished(beginning(asked, stale, *missing), collected_run, plan=FileDump())

    assert set(summary.left_out_entries) == set(missing)
    assert (
        set(
            finished(
                beginning(asked, stale, *missing, dump_entries=tuple(missing)), collected_run, plan=FileDump()
            ).left_out_entries
        )
        == set()
    )
    assert finished(beginning(asked, *missing), collected_run).left_out_entries == ()
    lines = [line.text for line in render_section(summary, 0)]
    assert f"8 loaded entries that no test used: not written to new.textproto (1 for {GPU}; 7 for {OTHER})" in lines
    assert len(json_report.to_mapping(summary)["left_out"]) == 8


def rows(*outcomes: Outcome | None) -> tuple[ProblemRow, ...]:
    return tuple(ProblemRow(problem(M=number), outcome) for number, outcome in enumerate(outcomes))


MISSED = RunResult(loaded=(("a", 1),), rows=rows(Outcome.HIT, Outcome.MISS, Outcome.STALE, Outcome.MISMATCH))


@pytest.mark.parametrize(
    ("summary", "limit", "failure", "skipped"),
    [
        (MISSED, "3", "", ""),
        (MISSED, "2", "3 problems are not covered by the cache, at most 2 allowed (see the summary)", ""),
        (MISSED, "75%", "", ""),
        (MISSED, "74.9%", "3 of 4 problems are not covered by the cache, at most 74.9% allowed (see the summary)", ""),
        (
            result(MISSED, untracked=("triton:k",)),
            "3",
            "4 problems are not covered by the cache, at most 3 allowed (see the summary)",
            "",
        ),
        (
            result(MISSED, plan=FileDump(is_update=True)),
            "0",
            "",
            "this run updates the cache that it loads (check in a run without --autotune-update)",
        ),
        (result(MISSED, is_interrupted=True), "0", "", "the run was interrupted"),
        (RunResult(), "0", "", "no cache was loaded"),
        (replace(MISSED, rows=()), "9", "1 entry was loaded, but no test used any", ""),
        (
            result(
                MISSED,
                rows=(),
                incomplete_reason="-k selects tests",
                chosen_tests="-k selects tests",
                test_counts={"skipped": 9, "passed": 3, "error": 1},
            ),
            "0",
            "",
            "no test called an autotuned kernel (3 passed, 9 skipped, 1 error)",
        ),
        (
            result(MISSED, rows=rows(None), incomplete_reason="1 test deselected", deselected_count=1),
            "0",
            "",
            "no kernel of the tests was compared with the loaded cache",
        ),
        (
            result(MISSED, rows=(), incomplete_reason="t.py::t was skipped", is_only_skipped=True),
            "0",
            "1 entry was loaded, but no test used any (t.py::t was skipped)",
            "",
        ),
        (
            result(MISSED, unhooked=(("toy", "why"),), tuners=("toy.part",)),
            "9",
            "loaded entries were not used: the plugin could not hook toy (a line above has the reason)",
            "",
        ),
        (
            result(MISSED, unhooked=(("toy", "why"),), devices_by_tuner={"toy": frozenset()}),
            "9",
            "loaded entries were not used: the plugin could not hook toy (a line above has the reason)",
            "",
        ),
        (result(MISSED, unhooked=(("toy", "why"),), tuners=("other",)), "9", "", ""),
        (
            result(MISSED, devices_by_tuner={"gone": frozenset()}, adapters=("toy",)),
            "9",
            "loaded entries were not used: no adapter is installed for gone (install its package)",
            "",
        ),
        (
            result(
                MISSED, devices_by_tuner=dict.fromkeys(["other", "toy.part"]), tuners=("toy",), tuners_named_by="-o"
            ),
            "9",
            "loaded entries were not used: -o leaves out other (name it there, or add it to autotune_ignore)",
            "",
        ),
    ],
    ids=[
        "3 misses of 3",
        "3 misses of 2",
        "75% of 75%",
        "75% of 74.9%",
        "untracked",
        "update",
        "interrupted",
        "nothing loaded",
        "no lookup",
        "no lookup of a selection",
        "no outcome of a selection",
        "no lookup and a skipped test",
        "unhooked part of a tuner",
        "unhooked tuner with entries",
        "unhooked tuner that an option leaves out",
        "entries without an adapter",
        "entries that an option leaves out",
    ],
)
def test_the_gate_on_misses_fails_above_its_limit(summary: RunResult, limit: str, failure: str, skipped: str) -> None:
    """A run whose misses mean nothing skips the gate and says why."""
    gate = judge(summary, Limit.parse(limit))

    assert (gate.limit, gate.failure, gate.skip_reason.removeprefix("autotune cache misses were not checked: ")) == (
        limit,
        failure,
        skipped,
    )


def test_a_dump_to_a_store_writes_recovered_not_loaded_entries() -> None:
    """The run hits both. The entry of a loaded file stays in its file."""
    recovered_entry, file_entry = entry(problem(M=1)), entry(problem(M=2))
    collected_run = collected(
        hit(recovered_entry), hit(file_entry), recovered_lookups=(searched(entry(problem(M=1), a=1.0)),)
    )

    summary = finished(beginning(file_entry), collected_run, plan=SharedDump(is_update=True))

    assert [merged_entry.problem for merged_entry in summary.merged.cache.entries] == [recovered_entry.problem]


def test_with_on_miss_error_a_miss_fails_a_run_of_passed_tests() -> None:
    """A forked child of a test looked up the problem, and the error ended with the child."""
    strict = result(MISSED, on_miss="error", test_counts={"passed": 1})

    assert "no test failed" in judge(strict, None).failure
    assert judge(result(strict, test_counts={"failed": 1}), None).failure == ""


def test_without_a_load_uncacheable_problems_pass_the_gate() -> None:
    rows = tuple(replace(row, outcome=Outcome.UNCACHEABLE) for row in MISSED.rows)
    gate = judge(replace(MISSED, loaded=(), rows=rows), Limit.parse("0"))

    assert (gate.failure, gate.skip_reason) == ("", "autotune cache misses were not checked: no cache was loaded")


def test_option_max_misses_is_an_error_if_nothing_loads_a_cache() -> None:
    message = "--autotune-max-misses: nothing is loaded"
    nothing_loaded = replace(MISSED, loaded=(), rows=tuple(replace(row, outcome=None) for row in MISSED.rows))

    refused = judge(nothing_loaded, Limit.parse("0"), no_load_error=message)
    assert (refused.failure, refused.is_usage_error) == (message, True)
    assert judge(replace(MISSED, loaded=()), Limit.parse("9"), no_load_error=message).failure == ""


def test_the_json_report_has_crashes_recoveries_and_old_versions() -> None:
    old = replace(entry(problem(M=1)), versions=Versions.parse("toy 0.9"))
    collected_run = collected(
        ("gw0", hit(old)),
        ("gw1", searched(entry(problem(M=2), "a", a=1.0))),
        recovered_lookups=(searched(entry(problem(M=3), a=1.0)),),
        crashed_workers=("gw3",),
    )

    summary = finished(beginning(old), collected_run, plan=FileDump(), mode_hints=("another run tells",))

    text = "\n".join(line.word + line.text for line in render_section(summary, 1))
    report = json_report.to_mapping(summary)
    assert "worker gw3 crashed" in text
    assert report["crashed"] == ["gw3"]
    assert "recovered 1 tuning" in text
    assert report["recovered"] == 1
    assert (
        "1 hit was tuned with toy 0.9, but this run has toy 1.0 (the choices are still used; another run tells)" in text
    )
    assert report["other_versions"] == [{"tuned_with": "toy 0.9", "running": "toy 1.0", "hits": 1}]


def test_the_json_report_says_if_a_measurement_was_disturbed() -> None:
    chosen = replace(candidate("a", 10.0), label="+-0.1 us, 9 of 9 runs")
    made = replace(entry(problem()), choice=chosen, candidates=(chosen,))

    summary = finished(beginning(), collected(searched(made, Outcome.MISS, is_disturbed=True)))

    lookup = json_report.to_mapping(summary)["lookups"][0]
    assert lookup["disturbed"] is True
    assert lookup["candidates"][0]["label"] == "+-0.1 us, 9 of 9 runs"


def test_only_update_prune_drops_unneeded_compiled_variants() -> None:
    old = replace(entry(problem()), compiled=("*fp16", "*fp32"))
    event = Event(SPECIALIZATION, data={"entry": old.identity.digest, "text": "*fp16"})

    for prune, compiled in ((False, old.compiled), (True, ("*fp16",))):
        collected_run = collected(hit(old), mode_events=(event,))
        plan = FileDump(UPDATE_PRUNE if prune else UPDATE_ALL, is_update=True)
        summary = finished(beginning(old, dump_entries=(old,)), collected_run, plan=plan)

        assert [merged_entry.compiled for merged_entry in summary.merged.cache.entries] == [compiled]


def test_with_workers_on_two_gpus_use_on_one_counts_for_both() -> None:
    """Workers on two GPU types share the tests, so each type sees a part. Without workers, a type sees all tests."""
    shared, own, gone = problem(M=1), problem(M=2), problem(M=3)
    on_other = {one: entry(replace(one, device=OTHER)) for one in (shared, own, gone)}
    began = beginning(entry(shared), entry(own), *on_other.values())
    lookups = [("gw0", hit(entry(shared))), ("gw0", hit(entry(own))), ("gw1", hit(on_other[own]))]

    assert finished(began, collected(*lookups)).unused_entries == (on_other[gone],)
    alone = collected(*[lookup for _, lookup in lookups])
    assert set(finished(began, alone).unused_entries) == {on_other[shared], on_other[gone]}
