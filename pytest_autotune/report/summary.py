"""The section ``autotune cache`` of the terminal's summary, as lines.

The section has findings (``MISS t.py::test_a - toy:lib.k (N=2): no entry``), notes, counts (``3 hits, 1 miss``) with
the state of the dump, errors, hints and the gates that judged nothing, in this order. A mode, such as
``--autotune-verify``, adds lines of its own. The verbosity is pytest's: 0 by default, -1 for ``-q``, 1 for ``-v``.

:mod:`pytest_autotune.plugin.reports` prints the lines. Reports that are files use the notes and the counts, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_autotune.cache.diff import ChangeKind
from pytest_autotune.cache.wording import describe_count, describe_first, join_nonempty, to_one_line
from pytest_autotune.report.findings import count_problems, list_findings
from pytest_autotune.report.gate import has_lookup_on
from pytest_autotune.report.hints import list_hints
from pytest_autotune.report.naming import describe_problem, describe_row_count
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.result import DumpOutcome, Finding, RunResult

#: The number of removed problems that are named.
_MAX_REMOVED = 3
#: The number of findings with the same word that are shown without ``-v``.
_MAX_SHOWN = 10
#: The line of a run in which no kernel asked for its choice.
NO_LOOKUPS = "no test called an autotuned kernel"
#: The words for counts whose name is no word for a user.
_COUNT_WORDS = {"failed": "failed in every candidate", "unrecorded": "not saved", "fallback": "used a fallback choice"}
#: The counts of outcomes, in the order in which they are listed.
_OUTCOMES = ("hit", "miss", "stale", "mismatch", "uncacheable")
#: Saved times below this are not worth a word.
_LEAST_SAVED_SECONDS = 0.1


@dataclass(frozen=True)
class Line:
    """One line of the summary. Its text is made safe to print, because parts of it come from caches and libraries.

    :param text: the line, or the rest of the line behind ``word``.
    :param word: the first word; if there is one, only this word has the color.
    :param color: a markup name of pytest's terminal writer, such as ``"red"``; empty for no color.
    """

    text: str
    word: str = ""
    color: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", to_one_line(self.text))


def render_section(result: RunResult, verbosity: int) -> list[Line]:
    """Return the lines of the section; none if the verbosity leaves nothing to say.

    - ``-qq`` shows only what fails the run.
    - ``-q`` also shows the dump, crashed workers and warnings. If something needs attention, it shows counts and hints.
    - The default also shows findings, ten of each word.
    - ``-v`` shows all findings, and a row for each problem.

    Findings that fail the gate are shown at every verbosity.
    """
    lines = _list_finding_lines(_select_findings(result, verbosity), verbosity)
    if verbosity <= -2:
        if result.has_failed_gate:
            # They may name the cause, such as a tuner without an adapter.
            lines += list_warnings(result)
        return lines + _list_error_lines(result)
    shows_counts = verbosity >= 0 or _needs_attention(result)
    lines += list_notes(result, verbosity)
    lines += list_count_lines(result, has_counts=shows_counts)
    lines += _list_lines_after_counts(result, verbosity)
    lines += _list_error_lines(result)
    if shows_counts:
        hides_rows = verbosity < 0 and not result.has_failed_gate
        lines += map(Line, list_hints(result, is_quiet=hides_rows))
    for gate in result.gates:
        if gate.skip_reason:
            lines.append(Line(gate.skip_reason))
    return lines


def _select_findings(result: RunResult, verbosity: int) -> list[Finding]:
    """Return the findings to show: with ``-q``, only those that fail the run, if a gate fails."""
    findings = list_findings(result, is_grouped=verbosity <= 0)
    if verbosity >= 0:
        return findings
    if result.has_failed_gate:
        return [finding for finding in findings if finding.is_failure]
    return []


def _needs_attention(result: RunResult) -> bool:
    """Whether a user should look at something in the run, so that even ``-q`` shows its counts."""
    if result.miss_count or result.unused_entries or result.has_failed_gate or result.counts["unrecorded"]:
        return True
    if result.collected.unhooked or result.collected.notes:
        return True
    has_judged_nothing = bool(result.gate.limit) and not result.problem_count
    return has_judged_nothing


def _list_finding_lines(findings: Sequence[Finding], verbosity: int) -> list[Line]:
    """Return a line for each finding, ordered by word, and a line for the findings of a word that are not shown.

    Example of the second line: ``(2 more misses hidden.  Use -v to show all.)``.
    """
    findings_by_word: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        findings_by_word[finding.word].append(finding)
    lines = []
    for word, word_findings in findings_by_word.items():
        shown_count = len(word_findings)
        if verbosity <= 0:
            shown_count = _MAX_SHOWN
        for finding in word_findings[:shown_count]:
            color = "yellow"
            if finding.is_failure:
                color = "red"
            lines.append(Line(f" {finding}", word, color))
        hidden_count = count_problems(word_findings[shown_count:])
        if hidden_count:
            more_rows = describe_row_count(hidden_count, word, "more ")
            lines.append(Line(f"({more_rows} hidden.  Use -v to show all.)"))
    return lines


def _list_error_lines(result: RunResult) -> list[Line]:
    lines = []
    for error in result.errors:
        lines.append(Line(f" {error}", "ERROR", "red"))
    return lines


def _list_lines_after_counts(result: RunResult, verbosity: int) -> list[Line]:
    """Return the lines of the modes that follow the counts. The first line of a mode with findings is yellow.

    With ``-q``, these are only the lines of modes whose gate fails.
    """
    lines = []
    for section in result.sections:
        if section.stands_for_counts:
            continue
        if verbosity < 0 and (section.gate is None or not section.gate.failure):
            continue
        for number, text in enumerate(section.lines):
            color = ""
            if section.findings and number == 0:
                color = "yellow"
            lines.append(Line(text, color=color))
    return lines


def list_notes(result: RunResult, verbosity: int) -> list[Line]:
    """Return the notes of a run: lines about workers, versions, renamed kernels and pruning, above the counts.

    :param verbosity: pytest's verbosity: 0 by default, negative for ``-q``, positive for ``-v``.
    """
    notes = _list_crashes(result)
    if result.recovered_count:
        tunings = describe_count(result.recovered_count, "tuning")
        notes.append(
            Line(f"recovered {tunings} of an earlier run with this dump path, which ended before it wrote them")
        )
    notes += list_warnings(result)
    if result.no_part_reason and not result.gate.skip_reason:
        notes.append(
            Line(
                f"the cache was not used: {result.no_part_reason} (?optional in the load path allows this)",
                color="yellow",
            )
        )
    if verbosity >= 0:
        notes += _list_entry_notes(result)
    notes += _list_unchecked_notes(result)
    notes += _list_unasked_notes(result, verbosity)
    if verbosity >= 0:
        for section in result.sections:
            notes += map(Line, section.notes)
    return notes


def _list_unchecked_notes(result: RunResult) -> list[Line]:
    """Return a note if this machine has no GPU, and the entries for GPUs were therefore neither checked nor updated.

    The note is only for a run that did something else: it checked the entries of the CPU in an optional cache, or
    updated the cache for the CPU.
    """
    if result.no_part_reason or result.collected.has_visible_gpu:
        return []
    if has_lookup_on(result.collected.lookups, result.gpus, result.request.policy):
        return []
    # The loaded cache and the dump path may be one file, so an entry may occur twice.
    identities = {entry.identity for entry in result.initial_entries if entry.problem.device in result.gpus}
    if not identities:
        return []
    count = len(identities)
    names = " and ".join(sorted({gpu.name for gpu in result.gpus}))
    if result.request.plan.is_update:
        if not any(row.outcome is Outcome.MISMATCH for row in result.rows):
            return []
        verb, pronoun = "are", "them"
        if count == 1:
            verb, pronoun = "is", "it"
        text = f"The {describe_count(count, 'entry')} for {names} {verb} unchanged: update {pronoun} on that GPU."
        return [Line(text, color="yellow")]
    if result.has_only_optional_caches and result.problem_count:
        verb = "were"
        if count == 1:
            verb = "was"
        text = f"{describe_count(count, 'entry')} for {names} {verb} not checked: no GPU is visible (?optional)"
        return [Line(text, color="yellow")]
    return []


def _list_unasked_notes(result: RunResult, verbosity: int) -> list[Line]:
    """Return a note if the run cannot tell which entries are unused, because some tests may not have asked for theirs.

    In a run that prunes, the user expects that unused entries are removed. In other runs, only ``-v`` shows the note.
    """
    reason = result.collected.unasked_reason
    if not reason:
        return []
    if result.request.plan.prunes:
        event = "no unused entry was removed"
        if result.collected.incomplete_reason:
            event = "no unused entry was removed, because the run was not complete"
        return [Line(f"{event}: {reason}", color="yellow")]
    if verbosity > 0 and (result.loaded or result.dump):
        return [Line(f"unused entries were not checked: {reason}")]
    return []


def list_warnings(result: RunResult) -> list[Line]:
    """Return the notes about tuners that could not be used as the user wished, and about other failures."""
    warnings = []
    for tuner in result.tuners_without_adapter:
        warnings.append(
            Line(
                f"{tuner}: loaded entries are not used, because no adapter for this tuner is "
                f"installed (install its package)",
                color="yellow",
            )
        )
    for note in result.collected.notes:
        warnings.append(Line(note, color="yellow"))
    return warnings


def _list_crashes(result: RunResult) -> list[Line]:
    """Return a note for each xdist worker that crashed."""
    consequence = "its last test may be missing in this summary"
    if result.dump is not None:
        consequence = "the dump has all tunings that it had finished"
    notes = []
    for worker in result.collected.crashed_workers:
        notes.append(Line(f"worker {worker} crashed; {consequence}", color="yellow"))
    return notes


def _list_entry_notes(result: RunResult) -> list[Line]:
    """Return the notes about entries of other versions, names or devices, and about entries that a dump leaves out."""
    notes = []
    advice = "; ".join(["the choices are still used", *result.request.mode_hints])
    for (tuned_version, version), hit_count in result.other_version_counts.items():
        hits = describe_count(hit_count, "hit was", "hits were")
        notes.append(Line(f"{hits} tuned with {tuned_version}, but this run has {version} ({advice})"))
    notes += _list_copy_notes(result)
    for device, entry_device in result.alias_counts:
        notes.append(Line(f"{device} used the entries of {entry_device}, as autotune_device_alias (ini) says"))
    notes += _list_removed_notes(result)
    if result.left_out_entries and result.dump is not None:
        entries = describe_count(len(result.left_out_entries), "loaded entry", "loaded entries")
        devices = _describe_devices_left_out(result)
        notes.append(Line(f"{entries} that no test used: not written to {result.dump.path} ({devices})"))
    return notes


def _list_removed_notes(result: RunResult) -> list[Line]:
    """Return a note with the problems whose entries the dump has removed, because no test asked for them."""
    dump = result.dump
    if dump is None or not dump.written_to or not result.request.plan.prunes:
        return []
    problems = []
    for change in result.merged.changes.changes:
        if change.kind is ChangeKind.REMOVED:
            problem = change.entry.problem
            problems.append(f"{describe_problem(problem)} on {problem.device.name}")
    if not problems:
        return []
    return [Line(f"removed from {dump.written_to}: {describe_first(problems, _MAX_REMOVED)}")]


def _list_copy_notes(result: RunResult) -> list[Line]:
    """Return a note for each kernel that used the entries of another kernel, for example of its old name."""
    notes = []
    for (old_name, new_name), hit_count in result.copy_counts.items():
        hits = describe_count(hit_count, "hit")
        notes.append(Line(f"{hits} of {new_name} used the entries of {old_name}, which has the same source"))
    return notes


def _describe_devices_left_out(result: RunResult) -> str:
    """Return how many loaded entries of each device the dump leaves out: ``4 for NVIDIA A100; 2 for NVIDIA H200``."""
    counts: Counter[str] = Counter()
    for entry in result.left_out_entries:
        counts[str(entry.problem.device)] += 1
    return "; ".join(f"{count} for {device}" for device, count in sorted(counts.items()))


def list_count_lines(result: RunResult, *, has_counts: bool = True) -> list[Line]:
    """Return the counts and the state of the dump: ``3 hits; 1 tuned; 4 entries written to cache.textproto``.

    Both stand on the same line, unless the user must do something for the dump. If modes replace the counts, return
    their lines.

    :param has_counts: False leaves the counts out.
    """
    mode_lines = _list_lines_for_counts(result)
    if mode_lines is not None:
        return mode_lines
    counts = ""
    counts_color = ""
    if has_counts:
        counts = _describe_counts(result)
    if counts:
        counts_color = _choose_counts_color(result)
    dump_state = _describe_dump_state(result)
    if dump_state.needs_action:
        lines = [Line(counts, color=counts_color), Line(dump_state.text, color="yellow")]
    else:
        lines = [Line(join_nonempty("; ", counts, dump_state.text), color=counts_color)]
    return [line for line in lines if line.text]


def join_count_lines(result: RunResult) -> str:
    """Return the counts and the state of the dump as a single text."""
    return "; ".join(line.text for line in list_count_lines(result))


def _list_lines_for_counts(result: RunResult) -> list[Line] | None:
    """Return the lines of the modes that replace the counts, such as ``--autotune-sweep``; None if no mode does."""
    sections = [section for section in result.sections if section.stands_for_counts]
    if not sections:
        return None
    lines = []
    for section in sections:
        color = "green"
        for finding in section.findings:
            if finding.is_failure:
                color = "red"
        for text in section.lines:
            lines.append(Line(text, color=color))
    return lines


def _choose_counts_color(result: RunResult) -> str:
    """Return the color of the counts; empty if the run compared nothing with a cache."""
    if not result.is_judged or not result.problem_count:
        return ""
    if result.failures:
        return "red"
    if result.miss_count or result.unused_entries:
        return "yellow"
    return "green"


def _describe_counts(result: RunResult) -> str:
    """Return the numbers of problems: ``3 hits, 1 miss; 1 tuned in 0.2s``."""
    if not result.is_judged:
        return _describe_counts_without_load(result)
    if not result.problem_count:
        no_lookups = _explain_no_lookups(result)
        if result.loaded_entry_count:
            no_lookups += f"; {describe_count(result.loaded_entry_count, 'loaded entry', 'loaded entries')} not used"
        return no_lookups
    counts = result.counts
    outcomes = []
    for outcome in _OUTCOMES:
        # "0 hits" tells that the caches were of no use.
        if counts[outcome] or outcome == "hit":
            outcomes.append(describe_row_count(counts[outcome], outcome.upper()))
    outcomes += _list_counts(counts, "untracked", "unused")
    tuned = _list_tuned_counts(result, counts)
    fallbacks = _list_counts(counts, "fallback")
    saved = ""
    if result.saved_seconds >= _LEAST_SAVED_SECONDS:
        saved = f"about {result.saved_seconds:.1f}s of tuning saved"
    return join_nonempty("; ", ", ".join(outcomes), ", ".join(tuned), *fallbacks, saved)


def _describe_counts_without_load(result: RunResult) -> str:
    """Return the numbers of problems of a run that loaded nothing, so that no problem was a hit or a miss."""
    texts = _list_tuned_counts(result, result.counts)
    texts += _list_counts(result.counts, "uncacheable", "untracked")
    if not result.problem_count and result.dump is not None:
        texts.append(_explain_no_lookups(result))
    return ", ".join(texts)


def _list_counts(counts: Mapping[str, int], *names: str) -> list[str]:
    """Return the counts that are not 0, each with its word."""
    texts = []
    for name in names:
        if counts[name]:
            texts.append(f"{counts[name]} {_COUNT_WORDS.get(name, name)}")
    return texts


def _list_tuned_counts(result: RunResult, counts: Mapping[str, int]) -> list[str]:
    """Return how many problems were tuned, and how many could not be: ``["3 tuned in 0.5s", …]``."""
    texts = []
    if counts["tuned"]:
        number = str(counts["tuned"])
        if not result.is_judged:
            # No count of hits stands in front of the number, which would tell that it counts problems.
            number = describe_count(counts["tuned"], "problem")
        text = f"{number} tuned"
        if result.tuning_seconds:
            text += f" in {result.tuning_seconds:.1f}s"
        texts.append(text)
    return texts + _list_counts(counts, "failed", "unrecorded")


def _explain_no_lookups(result: RunResult) -> str:
    """Return why no lookup took place, as far as the run knows."""
    if result.tuners_without_adapter:
        return f"the cache was not used: no adapter is installed for {' and '.join(result.tuners_without_adapter)}"
    bypassed_tuners = sorted({tuner for tuner, _ in result.collected.unhooked})
    if bypassed_tuners:
        return f"the cache was not used: the plugin could not hook {' and '.join(bypassed_tuners)}"
    bypasses = " or ".join(result.bypasses)
    if bypasses:
        return f"{NO_LOOKUPS}, or only kernels that {bypasses} excludes"
    return NO_LOOKUPS


@dataclass(frozen=True)
class _DumpState:
    """The state of the dump path after the run.

    :param text: empty if there was no dump, or if writing it failed, which is an error of its own.
    :param needs_action: the dump is not as the user asked for, so its text needs a line of its own.
    """

    text: str = ""
    needs_action: bool = False


def _describe_dump_state(result: RunResult) -> _DumpState:
    """Return whether the dump was written, as in ``4 entries written to cache.textproto``, or why it was not."""
    dump = result.dump
    if dump is None or dump.error:
        return _DumpState()
    text = describe_dump(result)
    if text:
        stale_count = result.counts["stale"]
        if stale_count and result.request.plan.only_adds and not dump.remark:
            text += f"; {stale_count} stale not changed (--autotune-update replaces them)"
        return _DumpState(text, needs_action=bool(dump.remark))
    if not dump.written_to:
        return _DumpState(_explain_unwritten_dump(result, dump), needs_action=True)
    entries = describe_count(len(result.merged.cache.entries), "entry")
    return _DumpState(f"{dump.path} is {_describe_unchanged_dump(result)} ({entries})")


def _explain_unwritten_dump(result: RunResult, dump: DumpOutcome) -> str:
    """Return why no dump was written: ``no kernel was tuned, so cache.textproto was not written``."""
    if result.problem_count or result.collected.unhooked:
        # Kernels were tuned then, although the session recorded no result.
        return f"no tuning could be saved, so {dump.path} was not written"
    return f"no kernel was tuned, so {dump.path} was not written"


def _describe_unchanged_dump(result: RunResult) -> str:
    """Return ``up to date`` if an unchanged dump fits all problems of this run; else ``unchanged``."""
    may_have_stale_entries = result.request.plan.only_adds or result.rows_to_update
    lacks_results = result.counts["unrecorded"] or not result.problem_count
    if may_have_stale_entries or lacks_results:
        return "unchanged"
    devices = {entry.problem.device for entry in result.merged.cache.entries}
    gpus = [device for device in devices if device.is_gpu]
    if gpus and not has_lookup_on(result.collected.lookups, gpus, result.request.policy):
        # Nobody knows whether the entries for GPUs are up to date: this run asked for none of them.
        return "unchanged"
    return "up to date"


def describe_dump(result: RunResult) -> str:
    """Return how many entries the dump has written to which path; empty if it has written nothing."""
    dump = result.dump
    if dump is None or dump.error:
        return ""
    if dump.remark:
        return f"{dump.path} {dump.remark}"
    if not dump.is_changed:
        return ""
    text = f"{describe_count(len(result.merged.cache.entries), 'entry')} written to {dump.path}"
    if result.merged.counts_text:
        text += f": {result.merged.counts_text}"
    if dump.lost_comment_lines:
        lines = describe_count(dump.lost_comment_lines, "comment line")
        text += f"; {lines} of the old file dropped, because a dump keeps no comments"
    if dump.restored_count:
        entries = describe_count(dump.restored_count, "entry")
        text += f"; {entries} written again that the file lost during the run"
    return text
