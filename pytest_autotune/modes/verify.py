"""Verify: loaded choices are raced against the other candidates. Is each choice still the fastest?

A race is a tuning in which the choice wins ties. Another candidate beats the choice only if it also wins a second race
against the choice alone: by :data:`SLOWER_THRESHOLD`, and by more than three standard errors. Only times of one race
are compared with each other. A race never uses the times in a cache file, which may come from another machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pytest_autotune.cache.diff import find_winner
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Entry, Identity, Problem
from pytest_autotune.cache.ties import measurement_noise
from pytest_autotune.cache.wording import describe_count, describe_duration, describe_error, round_significant
from pytest_autotune.modes import parse_part
from pytest_autotune.report.findings import build_finding
from pytest_autotune.report.gate import Limit, explain_empty_run, explain_unreachable_entries
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.mode import Mode
from pytest_autotune.run.reporter import Reporter
from pytest_autotune.run.result import Gate, ProblemRemark, RunResult, Section
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.measuring.clocks import Clock, Runner
from pytest_autotune.tuners.measuring.launching import CandidateResult as Launched
from pytest_autotune.tuners.measuring.race import Contest, Limits, Race, RaceOutcome, TunerRace
from pytest_autotune.tuners.shared.candidates import LaunchError, rounded_us
from pytest_autotune.workers.coordinator import Claim
from pytest_autotune.workers.events import Event
from pytest_autotune.workers.locks import in_distributed_run

#: A choice counts as slower if its time exceeds the time of another candidate by this share of that candidate's time.
SLOWER_THRESHOLD = 0.05
ALL = "all"
#: The kinds of events: a loaded choice was raced, or was not.
RACED = "raced"
NOT_RACED = "not raced"
#: Reasons for not racing a choice.
CANNOT_RACE = "its tuner cannot race it"
TIME_OVER = "the time for it was over"
DISTURBED = "something else may have run on the device"
#: The most time of one race. Long kernels differ less from launch to launch.
LIMITS = Limits(each_us=50_000.0, all_us=300_000.0)


class Share(NamedTuple):
    """One of several parts of all problems, such as ``2/7``. Only the problems of the part are raced in this run.

    :param part: the number of the part, from 1 to ``parts``.
    :param parts: the number of parts. They have about the same number of problems.
    """

    part: int = 1
    parts: int = 1

    def __str__(self) -> str:
        if self.parts == 1:
            return ALL
        return f"{self.part}/{self.parts}"

    def has_turn(self, problem: Problem) -> bool:
        """Whether a problem belongs to this part. The problem's digest alone decides, so the part is stable."""
        return int(problem.digest, 16) % self.parts == self.part - 1


@dataclass(frozen=True)
class Verdict:
    """The result for a loaded choice of this run's part of the problems.

    :param not_raced: why the choice was not raced; empty if it was raced.
    :param raced: the number of candidates that raced, the choice included.
    :param slower: the extra time of the choice, as a share of the faster candidate's time; 0 if no candidate is faster.
    :param choice_us: the time of the choice, in microseconds; 0 if no candidate is faster.
    :param faster_us: the time of the faster candidate, in microseconds; 0 if no candidate is faster.
    :param error_us: two standard errors of the difference between these times, in microseconds.
    :param seconds: the whole time, with compiling and waiting.
    :param device_seconds: the time in which the race held the device.
    :param entry: replaces the loaded entry in a dump; None if no candidate is faster.
    """

    not_raced: str = ""
    raced: int = 0
    slower: float = 0.0
    choice_us: float = 0.0
    faster_us: float = 0.0
    error_us: float = 0.0
    seconds: float = 0.0
    device_seconds: float = 0.0
    entry: Entry | None = None

    def event(self, lookup: Lookup) -> Event:
        """Return the verdict as an event of the log."""
        kind, claim = RACED, _claim_name(lookup)
        if self.not_raced:
            kind, claim = NOT_RACED, ""
        data = {name: value for name, value in self.data.items() if value}
        return Event(kind, lookup.identity, self.entry, lookup.test, data, claim)

    @property
    def data(self) -> dict[str, Any]:
        """All fields but the entry."""
        return {name: value for name, value in vars(self).items() if name != "entry"}

    @property
    def is_slower(self) -> bool:
        """Whether another candidate beat the choice in both races."""
        return self.entry is not None

    @property
    def faster(self) -> str:
        """The faster candidate, in words; empty if there is none."""
        if self.entry is None:
            return ""
        return str(find_winner(self.entry) or "")

    def __str__(self) -> str:
        if self.not_raced:
            return f"not verified: {self.not_raced}"
        if not self.is_slower:
            return "as fast as any"
        error = describe_duration(round_significant(self.error_us, 2))
        times = f"{describe_duration(self.choice_us)} -> {describe_duration(self.faster_us)}, +-{error}"
        return f"the choice takes {1 + self.slower:.2f} x ({self.faster}), {times}"


class Verify(Mode):
    """The mode that races loaded choices.

    :param share: the part of the problems that this run races.
    :param seconds: the time that each process may spend on races. A race that has begun is finished.
    :param limit: how many choices may be slower; None for no limit.
    """

    name = "verify"
    error_without_loaded = "there is no choice to race"

    def __init__(self, share: Share, seconds: float, limit: Limit | None = None) -> None:
        self._share = share
        self._limit = limit
        self._remaining_s = seconds

    def __str__(self) -> str:
        return str(self._share)

    # In a process that runs tests.

    @property
    def _refusal(self) -> str:
        """Why no race may begin now; empty if a race may begin."""
        # Ranks that race a kernel with a collective operation would wait for each other.
        if in_distributed_run():
            return "one of several ranks"
        if self._remaining_s <= 0:
            return TIME_OVER
        return ""

    def has_turn(self, problem: Problem, *, now: bool = False) -> bool:
        if now and self._refusal:
            return False
        return self._share.has_turn(problem)

    def race(self, reporter: Reporter, tuning: Tuning, contest: Callable[[], Any]) -> None:
        """Race the loaded choice of a tuning, and report the verdict as an event.

        A choice is raced once in a run: the first worker that gets the claim races it.
        """
        lookup = tuning.lookup
        try:
            built_contest: Contest | TunerRace | str = contest()
        except Exception as error:
            built_contest = describe_error(error)
        if isinstance(built_contest, str):
            # The tuner has no race for this choice, and says why.
            reporter.append_event(Verdict(built_contest).event(lookup))
            return
        refusal = self._refusal
        if refusal:
            reporter.append_event(Verdict(refusal).event(lookup))
            return
        claiming = reporter.coordinator.claim(_claim_name(lookup), None)
        with reporter.guarded(lookup.problem.tuner, claiming, Claim()) as claim:
            if not claim.is_claimed:
                # Another worker races the choice, or has raced it.
                return
            started = HostTime.perf_counter()
            verdict = _find_verdict(tuning, built_contest)
            seconds = HostTime.perf_counter() - started
            self._remaining_s -= seconds
            if isinstance(built_contest, Contest):
                seconds += built_contest.spent_s
            # The event is written while the claim is held, so that a waiting worker finds it.
            reporter.append_event(replace(verdict, seconds=round_significant(seconds)).event(lookup))

    # In the process that ends the run.

    def list_replacing_entries(self, events: Sequence[Event], lookups: Sequence[Lookup]) -> Iterable[Entry]:
        """Return the entries of faster candidates, one entry for each problem.

        Workers on two machines may have raced the same choice. The race with the largest difference counts.
        """
        asked = {(lookup.identity, lookup.test) for lookup in lookups}
        reported = list(list_verdicts(events))
        # The entries make the order equal in each run if two differences are equal.
        reported.sort(key=lambda report: (report.verdict.slower, repr(report.verdict.entry)))
        entries: dict[Identity, Entry] = {}
        for report in reported:
            entry = report.verdict.entry
            # The race of a choice that a single test's own cache gave belongs into that cache.
            if entry is not None and (report.event.identity, report.event.test) in asked:
                entries[entry.identity] = entry
        return list(entries.values())

    def build_section(self, result: RunResult) -> Section:
        verdicts = self._find_verdicts(result)
        slower_rows = [row for row in result.rows if row.problem in verdicts and verdicts[row.problem].is_slower]
        slower_rows.sort(key=lambda row: -verdicts[row.problem].slower)
        tally = Tally.build(verdicts)
        gate = self._judge(result, len(slower_rows), tally)
        findings = []
        for row in slower_rows:
            is_failure = bool(gate.failure)
            findings.append(build_finding("SLOWER", row, str(verdicts[row.problem]), is_failure=is_failure))
        remarks = {row.problem: _build_remark(verdicts.get(row.problem)) for row in result.rows}
        return Section(
            self.name,
            str(self),
            tuple(self._list_lines(result, len(slower_rows), tally)),
            tuple(findings),
            problem_remarks=remarks,
            data={"verify": self._build_data(len(slower_rows), tally, gate)},
            gate=gate,
        )

    def _build_data(self, slower_count: int, tally: Tally, gate: Gate) -> dict[str, Any]:
        """Return the mode's part of the JSON report."""
        not_raced = []
        for reason, count in sorted(tally.not_raced.items()):
            not_raced.append({"tuner": reason.tuner, "reason": reason.reason, "problems": count})
        return {
            "share": str(self),
            "raced": tally.raced,
            "slower": slower_count,
            "not_raced": not_raced,
            "seconds": tally.seconds,
            "device_seconds": tally.device_seconds,
            "gate": {"limit": gate.limit, "failed": gate.failure, "skipped": gate.skip_reason},
        }

    def _list_lines(self, result: RunResult, slower_count: int, tally: Tally) -> list[str]:
        """Return the lines of the summary."""
        if not result.is_judged:
            return [f"verify {self}: nothing was loaded, so there was no choice to race"]
        line = f"verify {self}: {describe_count(tally.raced, 'choice')} raced"
        if tally.seconds >= 0.1:
            line += f" in {tally.seconds:.1f}s"
        if slower_count:
            line += f": {slower_count} slower"
        lines = [line]
        for reason, count in sorted(tally.not_raced.items()):
            lines.append(f"{describe_count(count, 'choice')} of {reason.tuner} not raced: {reason.reason}")
        update_arguments = result.request.update_arguments
        if slower_count and update_arguments and result.dump is None:
            lines.append(f"Re-run with {update_arguments} --autotune-verify to replace slower choices.")
        return lines

    def _find_verdicts(self, result: RunResult) -> dict[Problem, Verdict]:
        """Return the verdict on each problem of this run's part that used a loaded choice."""
        reported = list(list_verdicts(result.collected.mode_events))
        # Workers on two machines may race the same choice. The race with the largest difference counts: it comes last.
        reported.sort(key=_verdict_sort_key)
        verdicts = {}
        for report in reported:
            if report.event.identity is not None:
                verdicts[report.event.identity.problem] = report.verdict
        for row in result.rows:
            is_used = row.outcome is Outcome.HIT and row.entry is not None and not row.entry.is_failure
            if is_used and self._share.has_turn(row.problem):
                # A tuner that cannot race reports no verdict.
                verdicts.setdefault(row.problem, Verdict(CANNOT_RACE))
        return verdicts

    def _judge(self, result: RunResult, slower_count: int, tally: Tally) -> Gate:
        """Return the verdict on the limit of slower choices (``--autotune-max-drift``).

        The limit fails the run if too many choices are slower. It also fails the run if it could not judge what it
        should: a gate that judged nothing must not pass. If nothing was loaded, or no choice of this part was used,
        the gate is skipped.
        """
        limit = self._limit
        if limit is None or result.gate.is_usage_error:
            return Gate()
        excess = limit.describe_excess(slower_count, tally.raced)
        if excess:
            return Gate(limit.text, failure=f"maximum allowed drift of autotune choices exceeded: {excess}")
        failure = explain_unreachable_entries(result)
        if failure or tally.raced:
            return Gate(limit.text, failure=failure)
        failure = explain_empty_run(result) or _explain_unraced_run(result, tally)
        if failure:
            return Gate(limit.text, failure=failure)
        reason = "nothing was loaded"
        if result.is_judged:
            reason = "not one was raced"
        return Gate(limit.text, skip_reason=f"drift of autotune choices not judged: {reason}")


def _explain_unraced_run(result: RunResult, tally: Tally) -> str:
    """Return why a run that raced no choice fails; empty if it passes."""
    late_count = tally.count_not_raced(TIME_OVER)
    if late_count:
        choices = describe_count(late_count, "choice")
        return f"not one of {choices} was raced: {TIME_OVER} (raise autotune_verify_seconds)"
    if result.loaded and not result.loaded_entry_count:
        return "no entry is loaded, so no choice was raced (add some with --autotune-update)"
    return ""


class NotRaced(NamedTuple):
    """A reason for which choices of a tuner were not raced."""

    tuner: str
    reason: str


@dataclass(frozen=True)
class Tally:
    """The numbers of a run's verdicts.

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


def parse(text: str) -> Share:
    """Parse ``"all"``, or ``"2/7"`` for the second of seven parts.

    :raises ValueError: for any other text.
    """
    if text == ALL:
        return Share()
    part = parse_part(text)
    if part is None:
        raise ValueError(f"expected {ALL}, or a part such as 2/7, not {text!r}")
    return Share(part.number, part.total)


def make(verify: Share, max_drift: Limit | None, verify_seconds: float) -> Verify:
    """Make the mode from its options."""
    return Verify(verify, verify_seconds, max_drift)


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
        if event.kind in (RACED, NOT_RACED) and event.identity is not None:
            with suppress(TypeError):
                yield ReportedVerdict(event, Verdict(**event.data, entry=event.entry))


def _verdict_sort_key(report: ReportedVerdict) -> tuple[float, bool, float]:
    """Return a key that sorts the verdicts on one problem: the verdict that counts comes last."""
    verdict = report.verdict
    return verdict.slower, not verdict.not_raced, verdict.seconds


def _build_remark(verdict: Verdict | None) -> ProblemRemark:
    if verdict is None:
        return ProblemRemark("", {"verdict": None})
    word = ""
    if verdict.is_slower:
        word = "slower"
    return ProblemRemark(str(verdict), {"verdict": {**verdict.data, "faster": verdict.faster}}, word)


# A race.


def _find_verdict(tuning: Tuning, contest: Contest | TunerRace) -> Verdict:
    """Race a choice, and return the verdict.

    An error of a candidate becomes a verdict and is not raised: the test itself launches only the choice.
    """
    # On a CPU, equal candidates can differ by more than the threshold.
    threshold = max(SLOWER_THRESHOLD, measurement_noise(tuning.lookup.problem.device))
    try:
        if isinstance(contest, Contest):
            with contest.context():
                outcome = _race_contest(contest, tuning, threshold)
        else:
            outcome = contest(threshold)
    except LaunchError as error:
        return Verdict(describe_error(error.kernel_error))
    except Exception as error:
        return Verdict(describe_error(error))
    if isinstance(outcome, str):
        return Verdict(outcome)
    return _build_verdict(outcome, tuning.is_disturbed)


def _build_verdict(outcome: RaceOutcome, is_disturbed: bool) -> Verdict:
    """Return the verdict of a race.

    :param is_disturbed: the tuning was disturbed while it waited for the device. The race does not know of that.
    """
    verdict = Verdict(raced=outcome.candidate_count, device_seconds=round_significant(outcome.measured_s))
    if outcome.disturbed or is_disturbed:
        return replace(verdict, not_raced=DISTURBED)
    difference = outcome.slower
    if difference is None:
        return verdict
    return replace(
        verdict,
        slower=round_significant(difference.slower),
        choice_us=rounded_us(outcome.best_us * (1 + difference.slower)),
        faster_us=rounded_us(outcome.best_us),
        error_us=round_significant(2 * difference.error * outcome.best_us, 2),
        entry=outcome.entry,
    )


def _race_contest(contest: Contest, tuning: Tuning, threshold: float) -> RaceOutcome | str:
    """Race the choice of a tuning, and return the outcome; or the reason for not racing it, in words.

    :param threshold: the share of its own time that a candidate must save to beat the choice.
    """
    entry = tuning.entry
    assert entry is not None
    choice = entry.choice
    assert choice is not None
    ordered = _list_choice_first(contest.candidates, choice)
    if len(ordered) < 2 or not ordered[0].is_same_configuration(choice):
        return "there is nothing to race it against"
    runner_by_candidate = contest.ready(ordered)
    racing = [candidate for candidate in ordered if candidate in runner_by_candidate]
    if ordered[0] not in racing:
        return "it cannot be launched"
    if len(racing) < 2:
        return "no other candidate can be launched"
    runners = [runner_by_candidate[candidate] for candidate in racing]
    with tuning.measuring(contest.processor):
        started = HostTime.perf_counter()
        challenge = race_choice(contest.make_clock(), runners, threshold, contest.expected)
        outcome = replace(challenge.outcome, measured_s=HostTime.perf_counter() - started)
    if challenge.winner is None:
        return outcome
    return replace(outcome, entry=_build_faster_entry(entry, tuning, racing, challenge))


def _list_choice_first(candidates: Iterable[Candidate], choice: Candidate) -> list[Candidate]:
    """Return the distinct candidates, with the choice in front if it is a candidate. A race wants the choice first."""
    ordered = list(dict.fromkeys(candidates))
    ordered.sort(key=lambda candidate: not candidate.is_same_configuration(choice))
    return ordered


def _build_faster_entry(
    loaded_entry: Entry, tuning: Tuning, candidates: Sequence[Candidate], challenge: Challenge
) -> Entry:
    """Return the entry that replaces a loaded entry whose choice lost the race.

    :param candidates: the candidates that raced, in the order of the challenge's results.
    """
    assert challenge.winner is not None
    timed_candidates = []
    for candidate, result in zip(candidates, challenge.results, strict=True):
        timed_candidates.append(_with_time(candidate, result))
    faster_choice = replace(candidates[challenge.winner], time_us=rounded_us(challenge.outcome.best_us))
    timed_candidates[challenge.winner] = faster_choice
    # The loaded entry may have an old name of the kernel, or a fingerprint without pruning.
    identity = tuning.lookup.identity
    return replace(
        loaded_entry,
        problem=identity.problem,
        fingerprint=identity.fingerprint,
        choice=faster_choice,
        candidates=tuple(timed_candidates),
        # The loaded specializations belong to the slower choice.
        compiled=(),
        versions=tuning.versions,
    )


def _with_time(candidate: Candidate, result: Launched) -> Candidate:
    if result.measured is not None:
        return replace(candidate, time_us=rounded_us(result.time_us))
    if result.failed is not None:
        return replace(candidate, failed=describe_error(result.failed))
    return replace(candidate, failed="failed")


@dataclass(frozen=True)
class Challenge:
    """The result of racing a choice against all other candidates, and then against the fastest of them alone.

    :param winner: the index of the candidate that beat the choice in both races; None if no candidate did.
    :param results: the results of all candidates in the first race.
    :param outcome: the outcome of both races.
    """

    winner: int | None
    results: Sequence[Launched]
    outcome: RaceOutcome


def race_choice(
    clock: Clock, runners: Sequence[Runner], threshold: float, expected: tuple[type[BaseException], ...]
) -> Challenge:
    """Race a choice against other candidates, and once more against the candidate that beats it.

    The fastest of many candidates was partly lucky in the first race. The second race, with new measurements, tells
    whether it is really faster than the choice.

    :param runners: the runners of the candidates, that of the choice first.
    :param threshold: the share of its own time that a candidate must save to beat the choice.
    :param expected: the errors with which a candidate may fail without ending the race.
    """
    race = Race(clock, LIMITS, expected, worth=threshold)
    race.probe(runners)
    results = race.finish()
    choice_error = results[0].failed
    if choice_error is not None:
        raise choice_error
    if race.choice == 0:
        return Challenge(None, results, RaceOutcome(len(runners), race.disturbed))
    second_race = Race(clock, LIMITS, expected, seed=1, worth=threshold)
    second_race.probe([runners[0], runners[race.choice]])
    _, challenger_result = second_race.finish()
    outcome = RaceOutcome(len(runners), race.disturbed or second_race.disturbed)
    difference = second_race.compare(0, 1)
    if difference is None or not difference.is_slower(threshold):
        return Challenge(None, results, outcome)
    return Challenge(race.choice, results, replace(outcome, slower=difference, best_us=challenger_result.time_us))
