"""The mode of ``--autotune-verify``: it checks whether each loaded choice is still the fastest.

A process that runs tests races a choice against the tuner's other candidates when the tuner asks for this choice, and
writes the verdict as an event. :mod:`pytest_autotune.modes.verify_race` has the race itself. If several workers ask for
the same choice, a lock (the *claim*) lets only one of them race it.

The process that ends the run reads the verdicts of all workers. The *drift* of a cache is the number of its choices
that are slower than another candidate. A *contest* is the protocol by which a tuner brings its candidates to a race.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Entry, Identity, Problem
from pytest_autotune.cache.wording import describe_count, describe_error, round_significant
from pytest_autotune.modes import Portion, parse_portion
from pytest_autotune.modes.verify_race import Verdict, find_verdict
from pytest_autotune.report.findings import build_finding
from pytest_autotune.report.gate import (
    Limit,
    explain_early_end,
    explain_empty_run,
    explain_lost_gpus,
    explain_skipped_run,
    explain_unreachable_entries,
    is_whole_suite,
)
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.reporter import Reporter
from pytest_autotune.run.result import Gate, ProblemRemark, RunResult, Section
from pytest_autotune.run.session import Mode
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.measuring.race import Contest, TunerRace
from pytest_autotune.workers.coordinator import Claim
from pytest_autotune.workers.events import Event
from pytest_autotune.workers.locks import in_distributed_run

ALL = "all"
ALL_PROBLEMS = Portion(1, 1)
#: The kinds of events: a loaded choice was raced, or was not.
RACED = "raced"
NOT_RACED = "not raced"
#: Reasons for not racing a choice.
CANNOT_RACE = "this tuner does not support races"
NO_REPORT = "no process reported a race"
TIME_OVER = "the time for races was over (raise autotune_verify_seconds)"


class Verify(Mode):
    """The mode that races loaded choices.

    :param portion: the part of all problems that this run races. All parts have about the same number of problems.
    :param seconds: the time that each process may spend on races. A race that has begun is finished.
    :param limit: how many choices may be slower; None for no limit.
    """

    name = "verify"
    error_without_loaded = "there is no choice to race"

    def __init__(self, portion: Portion, seconds: float, limit: Limit | None = None) -> None:
        self._portion = portion
        self._limit = limit
        self._remaining_s = seconds

    @property
    def typed_value(self) -> str:
        """The value of ``--autotune-verify`` as the user types it: ``all``, or a part such as ``2/7``."""
        if self._portion == ALL_PROBLEMS:
            return ALL
        return str(self._portion)

    def _races_problem(self, problem: Problem) -> bool:
        """Whether a problem belongs to this run's part. The problem's digest alone decides, so the part is stable."""
        return int(problem.digest, 16) % self._portion.total == self._portion.number - 1

    # Methods for a process that runs tests.

    @property
    def _refusal(self) -> str:
        """Why no race may begin now; empty if a race may begin."""
        if in_distributed_run():
            # All ranks must launch a kernel with a collective operation, and they do not race the same choices.
            return "this process is one of several ranks, where a race could hang"
        if self._remaining_s <= 0:
            return TIME_OVER
        return ""

    def has_turn(self, problem: Problem, *, now: bool = False) -> bool:
        if now and self._refusal:
            return False
        return self._races_problem(problem)

    def race(self, reporter: Reporter, tuning: Tuning, contest: Callable[[], Any]) -> None:
        """Race the loaded choice of a tuning, and report the verdict as an event.

        A choice is raced once in a run: the first worker that gets the claim races it. If a race cannot begin, the
        verdict has the reason.

        :param contest: builds the contest. See :meth:`pytest_autotune.run.tuning.Tuning.race`.
        """
        lookup = tuning.lookup
        try:
            built_contest: Contest | TunerRace | str = contest()
        except Exception as error:
            built_contest = describe_error(error)
        if isinstance(built_contest, str):
            # The tuner has no race for this choice, and says why.
            reporter.append_event(build_verdict_event(Verdict(built_contest), lookup))
            return
        refusal = self._refusal
        if refusal:
            reporter.append_event(build_verdict_event(Verdict(refusal), lookup))
            return
        claiming = reporter.coordinator.claim(_claim_name(lookup), helper=None)
        # If the lock fails, this worker races the choice without a claim.
        with reporter.enter_under_guard(lookup.problem.tuner, claiming, default=Claim()) as claim:
            if not claim.is_claimed:
                # Another worker races the choice, or has raced it.
                return
            verdict = self._race_and_time(tuning, built_contest)
            # The event is written while the claim is held, so that a waiting worker finds it.
            reporter.append_event(build_verdict_event(verdict, lookup))

    def _race_and_time(self, tuning: Tuning, contest: Contest | TunerRace) -> Verdict:
        """Race the loaded choice of a tuning, and return the verdict. The time counts against the limit of this run."""
        started = HostTime.perf_counter()
        verdict = find_verdict(tuning, contest)
        seconds = HostTime.perf_counter() - started
        self._remaining_s -= seconds
        if isinstance(contest, Contest):
            # The tuner spent this time before the race, for example on compiling candidates.
            seconds += contest.spent_s
        return replace(verdict, seconds=round_significant(seconds))

    # Methods for the process that ends the run.

    def list_replacing_entries(self, events: Sequence[Event], lookups: Sequence[Lookup]) -> Iterable[Entry]:
        """Return the entries of faster candidates, one entry for each identity.

        Workers on two machines may have raced the same choice: see :func:`_rank_race`.

        :param lookups: without those in a test's own cache.
        """
        asked = {(lookup.identity, lookup.test) for lookup in lookups}
        entries: dict[Identity, Entry] = {}
        for report in sorted(list_verdicts(events), key=_rank_race):
            entry = report.verdict.entry
            if entry is None:
                # No candidate is faster than the choice.
                continue
            if (report.event.identity, report.event.test) not in asked:
                # The choice came from the own cache of a test, and its race belongs to that cache.
                continue
            # A later report replaces an earlier one.
            entries[entry.identity] = entry
        return list(entries.values())

    def check_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind in (RACED, NOT_RACED):
                read_verdict(event)

    def build_section(self, result: RunResult) -> Section:
        """Return the section about the races: a finding for each slower choice, and the verdict on their number."""
        verdict_by_problem = self._find_verdicts(result)
        remark_by_problem = {}
        slower_rows = []
        for row in result.rows:
            verdict = verdict_by_problem.get(row.problem)
            remark_by_problem[row.problem] = _build_remark(verdict)
            if verdict is not None and verdict.is_slower:
                slower_rows.append(row)
        # The choice with the largest difference comes first.
        slower_rows.sort(key=lambda row: -verdict_by_problem[row.problem].slower)
        tally = Tally.build(verdict_by_problem)
        gate = self._judge(result, len(slower_rows), tally)
        fails_run = bool(gate.failure)
        findings = []
        for row in slower_rows:
            verdict_text = str(verdict_by_problem[row.problem])
            findings.append(build_finding("SLOWER", row, verdict_text, is_failure=fails_run))
        return Section(
            self.name,
            self.typed_value,
            tuple(self._list_lines(result, len(slower_rows), tally)),
            tuple(findings),
            problem_remarks=remark_by_problem,
            data={"verify": self._build_data(len(slower_rows), tally, gate)},
            gate=gate,
        )

    def _build_data(self, slower_count: int, tally: Tally, gate: Gate) -> dict[str, Any]:
        """Return the mode's part of the JSON report."""
        not_raced = []
        for reason, count in sorted(tally.not_raced.items()):
            not_raced.append({"tuner": reason.tuner, "reason": reason.reason, "problems": count})
        return {
            "share": self.typed_value,
            "raced": tally.raced,
            "slower": slower_count,
            "not_raced": not_raced,
            "seconds": tally.seconds,
            "device_seconds": tally.device_seconds,
            "gate": {"limit": gate.limit, "failed": gate.failure, "skipped": gate.skip_reason},
        }

    def _list_lines(self, result: RunResult, slower_count: int, tally: Tally) -> list[str]:
        """Return the lines of the summary.

        Example: ``verify all: 12 choices raced in 3.4s: 1 slower than another candidate``. A line follows for each
        reason for not racing.
        """
        if not result.is_judged:
            return [
                f"verify {self.typed_value}: no cache was loaded, so no choice was raced (add --autotune-load=PATH)"
            ]
        line = f"verify {self.typed_value}: {describe_count(tally.raced, 'choice')} raced"
        if tally.seconds >= 0.1:
            line += f" in {tally.seconds:.1f}s"
        if slower_count:
            line += f": {slower_count} slower than another candidate"
        lines = [line]
        for reason, count in sorted(tally.not_raced.items()):
            lines.append(f"{describe_count(count, 'choice')} of {reason.tuner} not raced: {reason.reason}")
        update_arguments = result.request.shown_update_arguments
        if slower_count and update_arguments and result.dump is None:
            rerun = result.request.rerun_words
            lines.append(f"{rerun} with {update_arguments} --autotune-verify=all to replace slower choices.")
        return lines

    def _find_verdicts(self, result: RunResult) -> dict[Problem, Verdict]:
        """Return the verdict on each problem of this run's part that used a loaded choice, by problem.

        Workers on two machines may have raced the same choice: see :func:`_rank_race`.
        """
        verdicts = {}
        for report in sorted(list_verdicts(result.collected.mode_events), key=_rank_race):
            if report.event.identity is not None:
                # A later report replaces an earlier one.
                verdicts[report.event.identity.problem] = report.verdict
        racing_tuners = {problem.tuner for problem in verdicts}
        for row in result.rows:
            has_used_choice = row.outcome is Outcome.HIT and row.entry is not None and not row.entry.is_failure
            if not has_used_choice or row.problem in verdicts or not self._races_problem(row.problem):
                continue
            if row.problem.tuner in racing_tuners:
                # A process of the joint gate raced another part of the choices, or a worker crashed.
                verdicts[row.problem] = Verdict(NO_REPORT)
            else:
                # A tuner that cannot race reports no verdict.
                verdicts[row.problem] = Verdict(CANNOT_RACE)
        return verdicts

    def _judge(self, result: RunResult, slower_count: int, tally: Tally) -> Gate:
        """Return the verdict on the limit of slower choices (``--autotune-max-drift``).

        The gate fails if too many choices are slower. It also fails if it could not judge the choices that it should
        judge, because a gate that judged nothing must not pass. The gate is skipped if nothing was loaded, if no choice
        of this part was used, or if no used choice has a rival to race.
        """
        limit = self._limit
        if limit is None or result.gate.is_usage_error:
            # The user set no limit, or the options of the run are wrong and the run fails for this reason.
            return Gate()
        excess = limit.describe_excess(slower_count, tally.raced)
        if excess:
            return Gate(limit.text, failure=f"too many autotune choices are slower than another candidate: {excess}")
        failure = explain_unreachable_entries(result) or explain_early_end(result)
        if not failure and not tally.raced:
            failure = explain_empty_run(result)
        failure = failure or explain_lost_gpus(result)
        if failure or tally.raced:
            return Gate(limit.text, failure=failure)
        failure = _explain_unraced_run(result, tally)
        if failure:
            return Gate(limit.text, failure=failure)
        if result.is_judged:
            reason = "no choice was raced"
        else:
            reason = "no cache was loaded"
        return Gate(limit.text, skip_reason=f"the speed of the autotune choices was not checked: {reason}")


def _explain_unraced_run(result: RunResult, tally: Tally) -> str:
    """Return why a run that raced no choice fails; empty if it passes."""
    late_count = tally.count_not_raced(TIME_OVER)
    if late_count:
        choices = describe_count(late_count, "choice")
        return f"none of {choices} was raced: {TIME_OVER}"
    if not result.rows:
        # A machine that has lost its GPU skips all tests of its shard.
        skipped_tests = explain_skipped_run(result)
        if skipped_tests:
            return skipped_tests
    if result.loaded and not result.loaded_entry_count:
        return "the loaded cache is empty, so no choice was raced (fill it with --autotune-update)"
    return _explain_no_hits(result)


def _explain_no_hits(result: RunResult) -> str:
    """Return why a run of the whole suite fails in which no lookup was a hit. Empty for any other run.

    The loaded choices of such a run fit none of its problems, for example because it ran on another GPU. An update is
    not judged: it replaces the choices that do not fit.
    """
    has_hit = any(row.outcome is Outcome.HIT for row in result.rows)
    if has_hit or not result.loaded or not is_whole_suite(result):
        return ""
    if result.no_part_reason or result.request.plan.is_update:
        return ""
    entries = describe_count(result.loaded_entry_count, "entry was", "entries were")
    return f"{entries} loaded, but none fits this run, so no choice was raced (run --autotune-update)"


class NotRaced(NamedTuple):
    """A reason for which choices of a tuner were not raced."""

    tuner: str
    reason: str


@dataclass(frozen=True)
class Tally:
    """The numbers of a run's verdicts. Seconds are the sums of all processes.

    :param raced: the number of choices that were raced.
    :param not_raced: reason -> the number of choices that were not raced for this reason.
    :param seconds: the sum of the races' times, with compiling and waiting.
    :param device_seconds: the time in which races held devices.
    """

    raced: int
    not_raced: Counter[NotRaced]
    seconds: float
    device_seconds: float

    @classmethod
    def build(cls, verdicts: Mapping[Problem, Verdict]) -> Tally:
        """Return the numbers of some verdicts."""
        not_raced: Counter[NotRaced] = Counter()
        for problem, verdict in verdicts.items():
            if verdict.not_raced:
                not_raced[NotRaced(problem.tuner, verdict.not_raced)] += 1
        seconds = round(sum(verdict.seconds for verdict in verdicts.values()), 3)
        device_seconds = round(sum(verdict.device_seconds for verdict in verdicts.values()), 3)
        return cls(len(verdicts) - not_raced.total(), not_raced, seconds, device_seconds)

    def count_not_raced(self, reason: str) -> int:
        """Return the number of choices that were not raced for a reason."""
        return sum(count for not_raced, count in self.not_raced.items() if not_raced.reason == reason)


def parse(text: str) -> Portion:
    """Parse ``"all"``, or ``"2/7"`` for the second of seven parts.

    :raises ValueError: for any other text.
    """
    if text == ALL:
        return ALL_PROBLEMS
    portion = parse_portion(text)
    if portion is None:
        raise ValueError(f"expected {ALL}, or a part such as 2/7, not {text!r}")
    return portion


def make(verify: Portion, max_drift: Limit | None, verify_seconds: float) -> Verify:
    """Make the mode from its options."""
    return Verify(verify, verify_seconds, max_drift)


def build_verdict_event(verdict: Verdict, lookup: Lookup) -> Event:
    """Return a verdict as an event of the log. Only a race answers the claim, so another worker may still race."""
    data = {name: value for name, value in verdict.data.items() if value}
    if verdict.not_raced:
        return Event(NOT_RACED, lookup.identity, verdict.entry, lookup.test, data)
    return Event(RACED, lookup.identity, verdict.entry, lookup.test, data, _claim_name(lookup))


def _claim_name(lookup: Lookup) -> str:
    """Return the name under which workers claim a race. Its prefix keeps it apart from the claim of a tuning."""
    return f"verify-{lookup.identity.digest}"


class ReportedVerdict(NamedTuple):
    """A verdict, and the event that reported it."""

    event: Event
    verdict: Verdict


def list_verdicts(events: Iterable[Event]) -> Iterator[ReportedVerdict]:
    """Yield the verdicts among events. An event that only looks like a verdict, as in a damaged file, is left out."""
    for event in events:
        if event.kind in (RACED, NOT_RACED):
            with suppress(ValueError):
                yield ReportedVerdict(event, read_verdict(event))


def read_verdict(event: Event) -> Verdict:
    """Return the verdict in an event of this mode.

    :raises ValueError: if the event is damaged: it has no problem, or a field is unknown or has a wrong value.
    """
    if event.identity is None:
        raise ValueError("a verdict has no problem")
    try:
        verdict = Verdict(**event.data, entry=event.entry)
    except TypeError:
        raise ValueError(f"a verdict has unknown fields: {event.data!r}") from None
    for name, value in verdict.data.items():
        if name == "not_raced":
            is_valid = isinstance(value, str)
        else:
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            is_valid = is_number and math.isfinite(value) and value >= 0
        if not is_valid:
            raise ValueError(f"{name} of a verdict is {value!r}")
    return verdict


def _rank_race(report: ReportedVerdict) -> tuple[float, bool, float, str]:
    """Return a key that sorts the reports about one choice: the race that counts comes last.

    The race with the largest difference counts, and any race counts more than a reason for not racing. The other values
    make the order the same in each run if two differences are equal.
    """
    verdict = report.verdict
    return verdict.slower, not verdict.not_raced, verdict.seconds, repr(verdict.entry)


def _build_remark(verdict: Verdict | None) -> ProblemRemark:
    """Return the words about one problem for reports.

    :param verdict: None if the problem used no loaded choice, or is not in this run's part.
    """
    if verdict is None:
        return ProblemRemark("", {"verdict": None})
    word = ""
    if verdict.is_slower:
        word = "slower"
    return ProblemRemark(str(verdict), {"verdict": {**verdict.data, "faster": verdict.faster}}, word)
