"""A result in the terminal, in pytest's own manner."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.report.findings import list_findings
from pytest_autotune.report.hints import list_hints
from pytest_autotune.report.naming import describe_row_count
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.section import Finding

#: What is counted, in words that are not the name of the count.
_COUNTED = {"failed": "cannot be tuned", "unrecorded": "not recorded", "fallback": "used a fallback"}
#: Rows of one kind that are shown without ``-v``.
SHOWN = 10
NO_LOOKUPS = "no lookups: no autotuned kernel was called"
_OUTCOMES = ("hit", "miss", "stale", "mismatch", "uncacheable")


@dataclass(frozen=True)
class Line:
    """One line of the section, fit to be shown whatever foreign text it was made of.

    :param word: its first word, which ``color``, a markup name of pytest's terminal writer, is for.
    """

    text: str
    word: str = ""
    color: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", to_one_line(self.text))


def render_section(result: RunResult, verbosity: int) -> list[Line]:
    """The lines of the section; none when there is nothing to say at this verbosity.

    ``-qq`` reports only what fails the run, ``-q`` also what was asked for, a dump, what a crash cost, notes of what
    went wrong, and counts with what mends them when not all is well, ``-v`` every row. Rows that fail the gate are
    there in any case.
    """
    is_quiet, is_blamed = verbosity < 0, any(gate.failure for gate in (result.gate, *result.gates_of_modes))
    shown = [
        one
        for one in list_findings(result, is_grouped=verbosity <= 0)
        if not is_quiet or (is_blamed and one.is_failure)
    ]
    lines = [*_rows(shown, verbosity)]
    errors = [Line(f" {error}", "ERROR", "red") for error in result.errors]
    if verbosity < -1:
        return [*lines, *(_noted(result) if result.gate.failure else ()), *errors]
    lines += _notes(result, verbosity)
    nothing_judged = result.gate.limit and not result.problem_count
    is_bad = result.miss_count or result.unused_entries or result.gate.failure or result.counts["unrecorded"]
    is_noted = result.collected.unhooked or result.collected.notes
    has_more = bool(not is_quiet or is_bad or is_noted or nothing_judged)
    lines += [*describe_counts(result, with_counts=has_more), *(() if is_quiet else _modes(result)), *errors]
    lines += map(Line, list_hints(result) if has_more else ())
    return [*lines, *(Line(gate.skipped) for gate in (result.gate, *result.gates_of_modes) if gate.skipped)]


def _rows(found: Sequence[Finding], verbosity: int) -> Iterator[Line]:
    by_word: defaultdict[str, list[Finding]] = defaultdict(list)
    for one in found:
        by_word[one.word].append(one)
    for word, rows in by_word.items():
        shown = rows if verbosity > 0 else rows[:SHOWN]
        for row in shown:
            yield Line(f" {row}", word, "red" if row.is_failure else "yellow")
        if hidden := sum(row.problem_count for row in rows[len(shown) :]):
            yield Line(f"({describe_row_count(hidden, word, 'more ')} hidden.  Use -v to show all.)")


def _modes(result: RunResult) -> Iterator[Line]:
    for one in result.sections:
        for number, line in enumerate(() if one.stands_for_counts else one.lines):
            yield Line(line, color="yellow" if one.findings and not number else "")


def _notes(result: RunResult, verbosity: int) -> Iterator[Line]:
    for worker in result.collected.crashed_workers:
        kept = "every tuning that it had finished was kept" if result.dump else "its last test may be missing here"
        yield Line(f"worker {worker} crashed; {kept}", color="yellow")
    if result.recovered_count:
        lost = "that an earlier run with this dump path could not write"
        yield Line(f"recovered {describe_count(result.recovered_count, 'tuning')} {lost}")
    yield from _noted(result)
    if verbosity >= 0:
        yield from _of_entries(result)
    if result.collected.incomplete_reason and result.request.prune:
        yield Line(
            f"nothing was pruned, the run was not complete: {result.collected.incomplete_reason}", color="yellow"
        )
    elif result.collected.incomplete_reason and verbosity > 0 and (result.loaded or result.dump):
        yield Line(f"unused entries not checked: {result.collected.incomplete_reason}")
    for mode in result.sections:
        yield from map(Line, mode.notes if verbosity >= 0 else ())


def _noted(result: RunResult) -> Iterator[Line]:
    for tuner in result.tuners_without_adapter:
        yield Line(f"{tuner}: entries are loaded, and no adapter for it is installed", color="yellow")
    for note in result.collected.notes:
        yield Line(note, color="yellow")


def _of_entries(result: RunResult) -> Iterator[Line]:
    for (then, now), hits in result.other_version_counts.items():
        tells = f" ({'; '.join(result.request.version_checks)})" if result.request.version_checks else ""
        yield Line(f"{describe_count(hits, 'hit')}, tuned with {then}; this run has {now}{tells}")
    later = "; an update of a complete run renames the entries" if result.collected.incomplete_reason else ""
    for (old, new), hits in result.rename_counts.items():
        yield Line(f"{describe_count(hits, 'hit')} of {new} moved from {old}{later}")
    for device, other in result.alias_counts:
        yield Line(f"{device} used entries of {other} (autotune_device_alias)")
    if result.left_out_entries and result.dump is not None:
        of = Counter(str(entry.problem.device) for entry in result.left_out_entries)
        devices = "; ".join(f"{number} for {device}" for device, number in sorted(of.items()))
        are = describe_count(len(result.left_out_entries), "loaded entry is", "loaded entries are")
        yield Line(f"{are} not in {result.dump.path}, which no test asked for ({devices})")


def list_notes(result: RunResult) -> list[str]:
    """What is to be known of a run beside its rows, for other forms of the result."""
    return [line.word + line.text for line in _notes(result, 1)]


def describe_verdict(result: RunResult) -> tuple[str, str]:
    """Whether the run is ``"passed"``, ``"failed"`` or ``"unjudged"``, and what is to be read first."""
    if result.failures:
        return "failed", "; ".join(result.failures)
    if result.gate.skipped and not (result.dump is not None and result.dump.written_to):
        return "unjudged", result.gate.skipped
    if result.gate.limit and not result.gate.skipped:
        return "passed", f"within the limit of {result.gate.limit} misses"
    came_to = "; ".join(line.text for line in describe_counts(result)) or NO_LOOKUPS
    return "passed" if result.rows and not result.rows_to_update else "unjudged", came_to


def list_facts(result: RunResult) -> Iterator[tuple[str, str]]:
    """What the run was, as (word, text), for other forms of the result."""
    yield from (("Device", str(device)) for device in result.devices)
    yield from (("Loaded", f"{path} ({describe_count(entries, 'entry')})") for path, entries in result.loaded)
    dump, merged = result.dump, result.merged
    if dump is not None and dump.written_to:
        changed = f": {merged.describe_counts}" if merged.describe_counts else ""
        yield "Written", f"{dump.written_to} ({describe_count(len(merged.cache.entries), 'entry')}{changed})"
    yield from (("Versions", str(one)) for one in sorted(set(result.collected.versions.values()), key=str) if one)
    for mode in result.sections:
        if mode.lines:
            name = mode.name.replace("_", " ").capitalize()
            yield name, "; ".join(filter(None, [mode.typed_value, *mode.lines]))
    if result.collected.incomplete_reason:
        yield "Not complete", result.collected.incomplete_reason


def describe_counts(result: RunResult, *, with_counts: bool = True) -> Iterator[Line]:
    """What the run came to, in one line: what it looked up and what it has written."""
    if instead := [section for section in result.sections if section.stands_for_counts]:
        for one in instead:
            color = "red" if any(found.is_failure for found in one.findings) else "green"
            yield from (Line(line, color=color) for line in one.lines)
        return
    counts = _counts(result) if with_counts else ""
    dump, is_bad = _dump(result)
    color = "yellow" if result.miss_count or result.unused_entries else "green"
    if result.failures:
        color = "red"
    if not (result.is_judged and result.problem_count):
        color = ""
    if is_bad:  # a line of its own: something is to be done
        if counts:
            yield Line(counts, color=color)
        yield Line(dump, color="yellow")
    elif counts or dump:
        yield Line("; ".join(filter(None, [counts, dump])), color=color if counts else "")


def _counts(result: RunResult) -> str:
    def those(*names: str) -> list[str]:
        return [f"{result.counts[name]} {_COUNTED.get(name, name)}" for name in names if result.counts[name]]

    if result.is_judged and not result.problem_count:
        parts = [_no_lookups(result)]
        parts += (
            [f"{describe_count(result.loaded_entry_count, 'entry')} loaded for nothing"]
            if result.loaded_entry_count
            else []
        )
        return "; ".join(parts)
    number = result.counts["tuned"]
    tuned = [f"{number if result.is_judged else describe_count(number, 'problem')} tuned"] if number else []
    if tuned and result.tuning_seconds:
        tuned[0] += f" in {result.tuning_seconds:.1f}s"
    tuned += those("failed", "unrecorded")
    if not result.is_judged:
        asked_nothing = [_no_lookups(result)] if not result.problem_count and result.dump is not None else []
        return ", ".join([*tuned, *those("uncacheable", "untracked"), *asked_nothing])
    saved = f"about {result.saved_seconds:.1f}s of tuning saved" if result.saved_seconds >= 0.1 else ""
    asked = [
        describe_row_count(result.counts[one], one.upper()) for one in _OUTCOMES if result.counts[one] or one == "hit"
    ]
    asked += those("untracked", "unused")
    return "; ".join(filter(None, [", ".join(asked), ", ".join(tuned), *those("fallback"), saved]))


def _no_lookups(result: RunResult) -> str:
    if result.tuners_without_adapter:
        return f"no lookups: no adapter is installed for {' and '.join(result.tuners_without_adapter)}"
    alone = sorted({tuner for tuner, _ in result.collected.unhooked})
    if alone:
        return f"no lookups: {' and '.join(alone)} bypassed"
    leaves_out = " or ".join(result.bypasses)
    return f"{NO_LOOKUPS}, or {leaves_out} left it out" if leaves_out else NO_LOOKUPS


def _dump(result: RunResult) -> tuple[str, bool]:
    """What became of the dump, and whether that is not what was asked for."""
    dump = result.dump
    if dump is None or dump.error:
        return "", False
    if what := describe_dump(result):
        stale = result.counts["stale"] if result.request.new_only and not dump.remark else 0
        return what + (f"; {stale} stale left as they were" if stale else ""), bool(dump.remark)
    if not dump.written_to:
        # Who asked, was bypassed or tuned elsewhere has tuned all the same.
        what = "recorded" if result.problem_count or result.collected.unhooked else "tuned"
        return f"nothing was {what}: {dump.path} was not written", True
    is_left = (
        result.request.new_only or result.rows_to_update or result.counts["unrecorded"] or not result.problem_count
    )
    state = "left as it was" if is_left else "up to date"
    return f"{dump.path} is {state} ({describe_count(len(result.merged.cache.entries), 'entry')})", False


def describe_dump(result: RunResult) -> str:
    """What a dump has written, and where; empty where there is none, or nothing had to be."""
    dump, merged = result.dump, result.merged
    if dump is None or not (dump.remark or dump.is_changed):
        return ""
    if dump.remark:
        return f"{dump.path} {dump.remark}"
    changed = f": {merged.describe_counts}" if merged.describe_counts else ""
    return f"{describe_count(len(merged.cache.entries), 'entry')} written to {dump.path}{changed}"
