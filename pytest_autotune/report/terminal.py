"""The terminal face of a summary, in pytest's own manner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.cache.model import Device, Entry
from pytest_autotune.report.grouping import NOUNS, Group, groups
from pytest_autotune.report.hints import hints
from pytest_autotune.report.naming import described, disagreed, replaced
from pytest_autotune.report.rows import Row
from pytest_autotune.report.summary import Summary
from pytest_autotune.run.dumping import Dump
from pytest_autotune.run.lookup import Outcome

#: Rows of one kind that are shown without ``-v``.
SHOWN = 10
NO_LOOKUPS = "no lookups: no autotuned kernel was called"
_ORDER = (Outcome.MISS, Outcome.STALE, Outcome.MISMATCH, Outcome.UNPORTABLE)


@dataclass(frozen=True)
class Line:
    """One line of the section, fit to be shown whatever foreign text it was made of.

    :param word: its first word, shown in ``color``; may be empty.
    :param color: a markup name of pytest's terminal writer; empty for none.
    """

    text: str
    word: str = ""
    color: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", one_line(self.text))


def section(summary: Summary, verbosity: int) -> list[Line]:
    """The lines of the section; none when there is nothing to say at this verbosity.

    ``-qq`` reports only what fails the run, ``-q`` also what was asked for, a dump, what a crash cost, notes of what
    went wrong, and counts with what mends them when not all is well, ``-v`` every row and a table by tuner. Rows that
    fail the gate are there in any case.
    """
    nothing_judged = bool(summary.gate.limit and not summary.problems)
    bad = bool(summary.misses or summary.unused or summary.unhooked or summary.notes or summary.gate.failure)
    bad = bad or bool(summary.counts["unrecorded"])
    failed = bool(summary.failures)
    errors = [Line(f" {error}", "ERROR", "red") for error in summary.errors]
    skipped = [Line(why) for why in (summary.gate.skipped, summary.drift.skipped) if why]
    if verbosity < 0:
        blamed = [*_rows(summary, verbosity, failed), *_unhooked(summary)] if summary.gate.failure else []
        blamed += _slower(summary, verbosity) if summary.drift.failure and not blamed else []
        if verbosity < -1:
            return [*blamed, *errors]
        settled = [*_settled(summary, failed, with_counts=bad or nothing_judged)]
        hint = [*map(Line, hints(summary))] if bad or nothing_judged else []
        noted = [note for note in _noted(summary) if note not in blamed]
        return [*blamed, *_crashes(summary), *noted, *_refused_prune(summary), *settled, *hint, *errors, *skipped]
    lines: list[Line] = []
    if verbosity > 0:
        lines += _by_tuner(summary)
    lines += _rows(summary, verbosity, failed)
    lines += _notes(summary, verbosity)
    lines += _ahead(summary, verbosity)
    lines += _settled(summary, failed)
    lines += _raced(summary, verbosity)
    lines += errors
    lines += map(Line, hints(summary))
    return [*lines, *skipped]


def _rows(summary: Summary, verbosity: int, failed: bool) -> Iterator[Line]:
    color = "red" if failed else "yellow"
    yield from _not_covered(summary, verbosity, color)
    yield from _first(_unrecorded(summary), verbosity)
    unused = [
        Line(f" {described(one.problem)} - not requested by any test", "UNUSED", "yellow") for one in summary.unused
    ]
    yield from _first(unused, verbosity)
    yield from _slower(summary, verbosity)
    yield from _swept(summary, verbosity)
    behind = "tuned behind pytest-autotune's back; neither loaded nor dumped"
    yield from _first([Line(f" {kernel}: {behind}", "UNSEEN", color) for kernel in summary.unseen], verbosity)


def _not_covered(summary: Summary, verbosity: int, color: str) -> Iterator[Line]:
    summed_up: set[Row] = set()
    if verbosity <= 0:
        for (tuner, device), same in summary.without_any_entry.items():
            if len(same) > 1:
                summed_up.update(same)
                yield _summed_up(summary, tuner, device, same, color)
    for outcome in _ORDER:
        rows = [row for row in summary.rows if row.outcome is outcome and row not in summed_up]
        together = [Group((row,)) for row in rows] if verbosity > 0 else groups(rows)
        shown = together if verbosity > 0 else together[:SHOWN]
        for group in shown:
            row = group.rows[0]
            yield Line(f" {_where(row)}{group}", outcome.value.upper(), color)
            if verbosity > 1 and row.choice is not None and row.tuned:
                yield Line(f"     tuned in {row.tuning_seconds:.1f}s: {row.choice}{_quality(row)}")
        if hidden := sum(len(group.rows) for group in together[len(shown) :]):
            yield _hidden(hidden, *NOUNS[outcome])


def _unrecorded(summary: Summary) -> list[Line]:
    """The problems of which nothing was recorded, in a run in which they have no outcome."""
    rows = [row for row in summary.rows if row.unrecorded and row.outcome is None]
    return [
        Line(f" {_where(row)}{described(row.problem, row.label)}: {row.unrecorded}", "UNRECORDED", "yellow")
        for row in rows
    ]


def _first(lines: Sequence[Line], verbosity: int) -> Iterator[Line]:
    """Lines that begin with one word, as many as are shown."""
    shown = lines if verbosity > 0 else lines[:SHOWN]
    yield from shown
    if hidden := len(lines) - len(shown):
        word = lines[0].word.lower()
        yield _hidden(hidden, word, word)


def _slower(summary: Summary, verbosity: int) -> Iterator[Line]:
    """The loaded choices that a race of this run has found slower."""
    color = "red" if summary.drift.failure else "yellow"
    lines = [
        Line(f" {_where(row)}{described(row.problem, row.label)}: {row.verdict}", "SLOWER", color)
        for row in summary.slower
    ]
    yield from _first(lines, verbosity)


def _raced(summary: Summary, verbosity: int) -> Iterator[Line]:
    """What became of the choices that were to be raced again."""
    if summary.verify is None:
        return
    if not summary.is_judged:
        yield Line(f"verify {summary.verify}: nothing was loaded, so there was no choice to race")
        return
    raced, slower = len(summary.verified), len(summary.slower)
    took = f" in {summary.verifying_seconds:.1f}s" if summary.verifying_seconds >= 0.1 else ""
    found = f": {slower} slower" if slower else ""
    yield Line(
        f"verify {summary.verify}: {counted(raced, 'choice')} raced{took}{found}", color="yellow" if slower else ""
    )
    yield from _not_raced(summary)
    if slower and summary.update and summary.dump is None:
        yield Line(f"Re-run with {summary.update} --autotune-verify to replace slower choices.")


def _not_raced(summary: Summary) -> Iterator[Line]:
    for (tuner, reason), problems in summary.not_verified.items():
        yield Line(f"{counted(problems, 'choice')} of {tuner} not raced: {reason}")


def _swept(summary: Summary, verbosity: int) -> Iterator[Line]:
    """What ran in tests that failed; and, with ``-v``, what could not be used."""
    failed = [
        Line(f" {test} - {described(row.problem, row.label)}: ran with {one.candidate}", "FAILED", "red")
        for row in summary.rows
        for one in row.swept
        for test in one.failed_tests
    ]
    yield from _first(failed, verbosity)
    refused = [
        Line(f" {described(row.problem, row.label)}: {one}: {one.failed}", "REFUSED", "yellow")
        for row in summary.rows
        if row.swept
        for one in row.candidates
        if one.failed
    ]
    yield from _first(refused, verbosity)


def _counts_of_sweep(summary: Summary) -> Iterator[Line]:
    rows = [row for row in summary.rows if row.swept]
    if not rows:
        yield Line(NO_LOOKUPS)
        return
    failed = sum(any(one.failed_tests for one in row.swept) for row in rows)
    what = f"{counted(len(rows), 'problem')} ran with candidates of --autotune-sweep={summary.sweep}"
    in_tests = f"; {failed} of them in tests that failed" if failed else ""
    yield Line(what + in_tests, color="red" if failed else "green")
    most = max(rows, key=lambda row: len(row.candidates))
    _, _, parts = summary.sweep.partition("/")
    if parts and len(most.candidates) > int(parts):
        more = sum(len(row.candidates) > int(parts) for row in rows)
        yield Line(
            f"{counted(more, 'problem has', 'problems have')} more than {parts} candidates, "
            f"{len(most.candidates)} at most: in so many sweeps all of them run"
        )


def _quality(row: Row) -> str:
    """What is known of the measurement, in brackets."""
    spread = next((one.label for one in row.candidates if row.choice and one.same_configuration(row.choice)), "")
    notes = [spread] if spread else []
    if row.disturbed:
        notes.append("disturbed: something else may have run on the device")
    return f" ({'; '.join(notes)})" if notes else ""


def _summed_up(summary: Summary, tuner: str, device: Device, rows: Sequence[Row], color: str) -> Line:
    word = "MISMATCH" if any(row.outcome is Outcome.MISMATCH for row in rows) else "MISS"
    others = sorted(map(str, summary.covered.get(tuner, ())))
    has = f"; those for {', '.join(others)} do not hold here" if others else ""
    return Line(f" {len(rows)} problems of {tuner} - no entries for {device}{has}", word, color)


def _hidden(number: int, singular: str, plural: str) -> Line:
    them = "it" if number == 1 else "them"
    return Line(f"({counted(number, f'more {singular}', f'more {plural}')} hidden.  Use -v to show {them}.)")


def _where(row: Row) -> str:
    return f"{row.tests[0]} - " if row.tests else ""


def _crashes(summary: Summary) -> Iterator[Line]:
    for worker in summary.crashed:
        kept = "every tuning that it had finished was kept" if summary.dump else "its last test may be missing here"
        yield Line(f"worker {worker} crashed; {kept}", color="yellow")
    if summary.taken_over:
        yield Line(f"took over {counted(summary.taken_over, 'tuning')} of an interrupted run with this dump path")


def _unhooked(summary: Summary) -> Iterator[Line]:
    for tuner, reason in summary.unhooked:
        yield Line(f"{tuner} was left alone: {reason}", color="yellow")


def _noted(summary: Summary) -> Iterator[Line]:
    for note in summary.notes:
        yield Line(note, color="yellow")


def _notes(summary: Summary, verbosity: int) -> Iterator[Line]:
    yield from _crashes(summary)
    yield from _noted(summary)
    for (then, now), hits in summary.other_versions.items():
        yield Line(f"{counted(hits, 'hit')}, tuned with {then}; this run has {now}")
    for (old, new), hits in summary.moved.items():
        yield Line(f"{counted(hits, 'hit')} of {new} moved from {old}")
    for device, other in summary.aliases:
        yield Line(f"{device} used entries of {other} (autotune_device_alias)")
    if summary.left_out and summary.dump is not None:
        yield _left_out(summary.left_out, summary.dump)
    if summary.replaced:
        yield Line(replaced(summary.replaced), color="yellow")
    if summary.disagreements:
        yield Line(f"{counted(len(summary.disagreements), 'problem')} tuned more than once with different choices")
    if verbosity > 0:
        for disagreement in summary.disagreements:
            choices, kept = disagreed(disagreement)
            yield Line(f" {choices} - kept {kept}", "CONFLICT")
        for worker, seconds in summary.workers.items():
            if seconds >= 0.1:
                yield Line(f"{worker} waited {seconds:.1f}s for other workers' tunings")
    yield from _refused_prune(summary)
    if summary.incomplete and not summary.pruning and verbosity > 0 and (summary.loaded or summary.dump):
        yield Line(f"unused entries not checked: {summary.incomplete}")


def notes(summary: Summary) -> list[str]:
    """What is to be known of a run beside its rows, for other forms of the summary: the same words as here."""
    lines = [*_unhooked(summary), *_notes(summary, 1), *_not_raced(summary)]
    return list(dict.fromkeys(line.word + line.text for line in lines))


def _left_out(entries: Sequence[Entry], dump: Dump) -> Line:
    of = Counter(str(entry.problem.device) for entry in entries)
    devices = "; ".join(f"{number} for {device}" for device, number in sorted(of.items()))
    are = counted(len(entries), "loaded entry is", "loaded entries are")
    them = "it" if len(entries) == 1 else "them"
    return Line(f"{are} not in {dump.path}: no test asked for {them} ({devices})")


def _refused_prune(summary: Summary) -> Iterator[Line]:
    if summary.incomplete and summary.pruning:
        yield Line(f"nothing was pruned, the run was not complete: {summary.incomplete}", color="yellow")


def _by_tuner(summary: Summary) -> Iterator[Line]:
    """A table, where it says more than the counts of all."""
    tuners = sorted({row.problem.tuner for row in summary.rows})
    for tuner in tuners if len(tuners) > 1 else ():
        rows = [row for row in summary.rows if row.problem.tuner == tuner]
        parts = _outcomes(rows) if summary.is_judged else []
        tuned = sum(row.tuned and not row.failed for row in rows)
        if tuned:
            parts.append(f"{tuned} tuned")
        yield Line(f"{tuner:<18} {', '.join(parts)}")


def _settled(summary: Summary, failed: bool, *, with_counts: bool = True) -> Iterator[Line]:
    """What the run came to, in one line: what it looked up and what it has written."""
    if summary.sweep:
        yield from _counts_of_sweep(summary)
        return
    counts = _counts(summary) if with_counts else ""
    written, is_bad = _dump(summary)
    color = "yellow" if summary.misses or summary.unused else "green"
    if failed:
        color = "red"
    if not (summary.is_judged and summary.problems):
        color = ""
    if is_bad:  # a line of its own: something is to be done
        if counts:
            yield Line(counts, color=color)
        yield Line(written, color="yellow")
    elif counts or written:
        yield Line("; ".join(filter(None, [counts, written])), color=color if counts else "")


def _counts(summary: Summary) -> str:
    counts = summary.counts
    seconds = f" in {summary.tuning_seconds:.1f}s" if summary.tuning_seconds else ""
    if not summary.is_judged:
        parts = [f"{counted(counts['tuned'], 'problem')} tuned{seconds}"] if counts["tuned"] else []
        parts += _not_tuned(summary)
        parts += [f"{counts['unportable']} unportable"] if counts["unportable"] else []
        parts += [f"{len(summary.unseen)} unseen"] if summary.unseen else []
        if not summary.problems and summary.dump is not None:
            parts.append(_no_lookups(summary))
        return ", ".join(parts)
    if not summary.problems:
        unasked = f"; {counted(summary.unasked, 'entry')} loaded for nothing" if summary.unasked else ""
        return f"{_no_lookups(summary)}{unasked}"
    parts = _outcomes(summary.rows)
    if summary.unseen:
        parts.append(f"{len(summary.unseen)} unseen")
    if counts["unused"]:
        parts.append(f"{counts['unused']} unused")
    searched = [f"{counts['tuned']} tuned{seconds}"] if counts["tuned"] else []
    searched += _not_tuned(summary)
    tuned = f"; {', '.join(searched)}" if searched else ""
    saved = f"; about {summary.saved_seconds:.1f}s of tuning saved" if summary.saved_seconds >= 0.1 else ""
    untuned = f"; {counts['untuned']} used untuned" if counts["untuned"] else ""
    return ", ".join(parts) + tuned + untuned + saved


def _not_tuned(summary: Summary) -> list[str]:
    """How many searches chose nothing."""
    words = {"failed": "cannot be tuned", "unrecorded": "not recorded"}
    return [f"{summary.counts[name]} {word}" for name, word in words.items() if summary.counts[name]]


def _no_lookups(summary: Summary) -> str:
    alone = sorted({tuner for tuner, _ in summary.unhooked})
    if alone:
        return f"no lookups: {' and '.join(alone)} left alone"
    leaves_out = " or ".join(summary.left_to_tuners)
    return f"{NO_LOOKUPS}, or {leaves_out} left it out" if leaves_out else NO_LOOKUPS


def _ahead(summary: Summary, verbosity: int) -> Iterator[Line]:
    ahead = summary.ahead
    if ahead.kernels:
        yield Line(f"{counted(ahead.kernels, 'kernel')} compiled ahead in {ahead.seconds:.1f}s")
    if ahead.failed and verbosity > 0:
        yield Line(f"{counted(ahead.failed, 'kernel')} not compiled ahead: {ahead.reason}")


def _outcomes(rows: Sequence[Row]) -> list[str]:
    numbers = {outcome: sum(row.outcome is outcome for row in rows) for outcome in NOUNS}
    shown = [outcome for outcome in NOUNS if numbers[outcome] or outcome is Outcome.HIT]
    return [counted(numbers[outcome], *NOUNS[outcome]) for outcome in shown]


def _dump(summary: Summary) -> tuple[str, bool]:
    """What became of the dump, and whether that is not what was asked for."""
    dump = summary.dump
    if dump is None or dump.error:
        return "", False
    entries = counted(dump.entries, "entry")
    workers = f", {len(summary.workers)} workers" if len(summary.workers) > 1 else ""
    if dump.written_to and dump.written_to != dump.path:
        where = f"{entries} written to {dump.written_to}: compare and rename it"
        return f"{dump.path} could not be locked or read; {where}", True
    if not dump.written_to:
        # Who asked, was left alone or tuned elsewhere has tuned all the same.
        what = "recorded" if summary.problems or summary.unhooked else "tuned"
        return f"nothing was {what}: {dump.path} was not written", True
    if not dump.rewritten:
        is_left = dump.new_only or summary.to_update or summary.counts["unrecorded"] or not summary.problems
        state = "left as it was" if is_left else "up to date"
        return f"{dump.path} is {state} ({entries}{workers})", False
    numbers = {"added": dump.added, "changed": dump.changed, "unchanged": dump.unchanged, "removed": dump.removed}
    changes = ", ".join(f"{number} {word}" for word, number in numbers.items() if number)
    what = f": {changes}" if changes else ""
    if dump.new_only and (stale := summary.counts["stale"]):
        what += f"; {stale} stale left as they were"
    return f"{entries} written to {dump.path}{workers.replace(', ', ' from ')}{what}", False
