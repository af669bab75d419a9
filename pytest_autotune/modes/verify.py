"""Loaded choices are raced against the other candidates: is each still the fastest?

It is a tuning in which the choice holds the ties: another candidate has to be faster by a share that counts
(:data:`WORTH`), and by more than three standard errors where these two race once more. What is compared was measured in
one race; times in a file are never compared with new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pytest_autotune.cache.diff import find_winner
from pytest_autotune.cache.foreign_text import describe_error
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Entry, Identity, Problem
from pytest_autotune.cache.quantities import describe_count, describe_duration, round_significant
from pytest_autotune.cache.ties import measurement_noise
from pytest_autotune.modes import part_of
from pytest_autotune.report.findings import build_finding
from pytest_autotune.report.gate import Limit, explain_empty_run, explain_unreachable_entries
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.mode import Mode
from pytest_autotune.run.reporter import Reporter
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.section import Gate, ProblemRemark, Section
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.measuring.clocks import Clock, Runner
from pytest_autotune.tuners.measuring.launching import CandidateResult as Launched
from pytest_autotune.tuners.measuring.race import Contest, Limits, Race, RaceOutcome, TunerRace
from pytest_autotune.tuners.shared.candidates import LaunchError, rounded_us
from pytest_autotune.workers.coordinator import Claim
from pytest_autotune.workers.events import Event
from pytest_autotune.workers.locks import in_distributed_run

#: A choice is slower where another candidate saves this share of the other's time, or more.
WORTH = 0.05
ALL = "all"
#: The kinds of events: a loaded choice was raced, or why it was not.
RACED = "raced"
NOT_RACED = "not raced"
#: Why not.
NO_WAY_IN = "its tuner cannot race it"
TIME_OVER = "the time for it was over"
DISTURBED = "something else may have run on the device"
#: What one race may cost. Long kernels differ less from launch to launch.
LIMITS = Limits(each_us=50_000.0, all_us=300_000.0)


class Share(NamedTuple):
    """The problems whose turn it is: one of several parts, from 1, that together are all of them."""

    part: int = 1
    parts: int = 1

    def __str__(self) -> str:
        return ALL if self.parts == 1 else f"{self.part}/{self.parts}"

    def has_turn(self, problem: Problem) -> bool:
        """Whether it is this problem's turn."""
        return int(problem.digest, 16) % self.parts == self.part - 1


@dataclass(frozen=True)
class Verdict:
    """What became of a loaded choice whose turn it was.

    :param not_raced: why it was not raced; empty where it was.
    :param raced: how many candidates raced, the choice among them.
    :param slower: by which share of the fastest one's time the choice is slower; 0 where it is not.
    :param error_us: by how much the difference of the two may be wrong: two standard errors.
    :param seconds: what it took, with compiling and waiting.
    :param device_seconds: how long the device was held.
    :param entry: what a dump keeps instead of the entry that was loaded; None where the choice is good.
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
        """The verdict as it is written down."""
        kind, claim = (NOT_RACED, "") if self.not_raced else (RACED, _claim_of(lookup))
        data = {name: value for name, value in self.data.items() if value}
        return Event(kind, lookup.identity, self.entry, lookup.test, data, claim)

    @property
    def data(self) -> dict[str, Any]:
        """All but the entry."""
        return {name: value for name, value in vars(self).items() if name != "entry"}

    @property
    def is_slower(self) -> bool:
        """Whether another candidate is faster by so much that it counts."""
        return self.entry is not None

    @property
    def faster(self) -> str:
        """The candidate that is faster, in words."""
        return "" if self.entry is None else str(find_winner(self.entry) or "")

    def __str__(self) -> str:
        if self.not_raced:
            return f"not verified: {self.not_raced}"
        if not self.is_slower:
            return "as fast as any"
        error = describe_duration(round_significant(self.error_us, 2))
        times = f"{describe_duration(self.choice_us)} -> {describe_duration(self.faster_us)}, +-{error}"
        return f"the choice takes {1 + self.slower:.2f} x ({self.faster}), {times}"


class Verify(Mode):
    """Whose choices are raced again.

    :param seconds: each process spends no more than that, and what it has begun.
    :param limit: how many choices may be slower.
    """

    name = "verify"
    without_loaded = "there is no choice to race"

    def __init__(self, share: Share, seconds: float, limit: Limit | None = None) -> None:
        self._share = share
        self._limit = limit
        self._left_s = seconds

    def __str__(self) -> str:
        return str(self._share)

    # In a process that runs tests.

    @property
    def _why_not(self) -> str:
        """Why no race may begin now; empty where one may."""
        if in_distributed_run():  # ranks that race a kernel with a collective would wait for each other
            return "one of several ranks"
        return "" if self._left_s > 0 else TIME_OVER

    def has_turn(self, problem: Problem, *, now: bool = False) -> bool:
        return self._share.has_turn(problem) and not (now and self._why_not)

    def race(self, reporter: Reporter, tuning: Tuning, contest: Callable[[], Any]) -> None:
        lookup = tuning.lookup
        try:
            brought: Contest | TunerRace | str = contest()
        except Exception as error:
            brought = describe_error(error)
        if why := brought if isinstance(brought, str) else self._why_not:
            reporter.append_event(Verdict(why).event(lookup))
            return
        assert not isinstance(brought, str)
        claiming = reporter.coordinator.claim(_claim_of(lookup), None)
        with reporter.guarded(lookup.problem.tuner, claiming, Claim()) as claim:
            if not claim.is_claimed:  # another worker races it, or has
                return
            started = HostTime.perf_counter()
            verdict = self._verdict(tuning, brought)
            took_s = HostTime.perf_counter() - started
            self._left_s -= took_s
            took_s += brought.spent_s if isinstance(brought, Contest) else 0.0
            reporter.append_event(replace(verdict, seconds=round_significant(took_s)).event(lookup))

    def _verdict(self, tuning: Tuning, brought: Contest | TunerRace) -> Verdict:
        device = tuning.lookup.problem.device
        worth = max(WORTH, measurement_noise(device))
        try:
            if isinstance(brought, Contest):
                with brought.context():
                    raced = _race(brought, tuning, worth)
            else:
                raced = brought(worth)
        except LaunchError as error:  # a candidate's own error must not fail a test that does not launch it
            return Verdict(describe_error(error.kernel_error))
        except Exception as error:
            return Verdict(describe_error(error))
        return Verdict(raced) if isinstance(raced, str) else _result(raced, tuning.is_disturbed)

    # Where the run comes together.

    def list_replacing_entries(self, events: Sequence[Event], lookups: Sequence[Lookup]) -> Iterable[Entry]:
        """What is faster than the loaded choice; of several for one problem, the one that is so by most."""
        asked = {(lookup.identity, lookup.test) for lookup in lookups}
        found: dict[Identity, Entry] = {}
        for event, verdict in sorted(verdicts(events), key=lambda one: (one[1].slower, repr(one[1].entry))):
            if verdict.entry is not None and (event.identity, event.test) in asked:
                found[verdict.entry.identity] = verdict.entry
        return list(found.values())

    def build_section(self, result: RunResult) -> Section:
        found = self._by_problem(result)
        raced = sum(not verdict.not_raced for verdict in found.values())
        slower = [row for row in result.rows if row.problem in found and found[row.problem].is_slower]
        slower.sort(key=lambda row: -found[row.problem].slower)
        why_not = Counter((problem.tuner, one.not_raced) for problem, one in found.items() if one.not_raced)
        not_raced = sorted(why_not.items())
        gate = self._judged(result, len(slower), raced, why_not)
        seconds = round(sum(one.seconds for one in found.values()), 3)
        data = {
            "share": str(self),
            "raced": raced,
            "slower": len(slower),
            "not_raced": [{"tuner": tuner, "reason": why, "problems": of} for (tuner, why), of in not_raced],
            "seconds": seconds,
            "device_seconds": round(sum(one.device_seconds for one in found.values()), 3),
            "gate": {"limit": gate.limit, "failed": gate.failure, "skipped": gate.skipped},
        }
        took = f" in {seconds:.1f}s" if seconds >= 0.1 else ""
        lines = [
            f"verify {self}: {describe_count(raced, 'choice')} raced{took}{f': {len(slower)} slower' if slower else ''}"
        ]
        lines += [f"{describe_count(of, 'choice')} of {tuner} not raced: {why}" for (tuner, why), of in not_raced]
        if slower and result.request.update_arguments and result.dump is None:
            lines.append(f"Re-run with {result.request.update_arguments} --autotune-verify to replace slower choices.")
        if not result.is_judged:
            lines = [f"verify {self}: nothing was loaded, so there was no choice to race"]
        return Section(
            self.name,
            str(self),
            tuple(lines),
            tuple(
                build_finding("SLOWER", row, str(found[row.problem]), is_failure=bool(gate.failure)) for row in slower
            ),
            problem_remarks={row.problem: _of_problem(found.get(row.problem)) for row in result.rows},
            data={"verify": data},
            gate=gate,
        )

    def _by_problem(self, result: RunResult) -> dict[Problem, Verdict]:
        """The verdict on each problem whose turn it was."""
        # Of several races, such as those of workers on two machines, the one that found most.
        reported = sorted(
            verdicts(result.collected.mode_events),
            key=lambda one: (one[1].slower, not one[1].not_raced, one[1].seconds),
        )
        found = {event.identity.problem: verdict for event, verdict in reported if event.identity is not None}
        for row in result.rows:
            is_used = row.outcome is Outcome.HIT and row.entry is not None and not row.entry.is_failure
            if is_used and self._share.has_turn(row.problem):
                found.setdefault(row.problem, Verdict(NO_WAY_IN))
        return found

    def _judged(self, result: RunResult, slower: int, raced: int, why_not: Mapping[tuple[str, str], int]) -> Gate:
        """Whether more choices are slower than the user allows."""
        limit, gate = self._limit, Gate()
        if limit is None or result.gate.is_usage_error:
            return gate
        gate = replace(gate, limit=limit.text)
        late = sum(number for (_, why), number in why_not.items() if why == TIME_OVER)
        failure = skipped = ""
        if compared := limit.describe_excess(slower, raced):
            failure = f"maximum allowed drift of autotune choices exceeded: {compared}"
        elif (
            not (failure := explain_unreachable_entries(result))
            and not raced
            and not (failure := explain_empty_run(result))
        ):
            if late:
                choices = describe_count(late, "choice")
                failure = f"not one of {choices} was raced: {TIME_OVER} (raise autotune_verify_seconds)"
            elif result.loaded and not result.loaded_entry_count:
                failure = "no entry is loaded, so no choice was raced (add some with --autotune-update)"
            else:
                why = "not one was raced" if result.is_judged else "nothing was loaded"
                skipped = f"drift of autotune choices not judged: {why}"
        return replace(gate, failure=failure, skipped=skipped)


def parse(text: str) -> Share:
    """Parse ``"all"``, or ``"2/7"`` for the second of seven parts."""
    if text == ALL:
        return Share()
    if (part := part_of(text)) is None:
        raise ValueError(f"expected {ALL}, or a part such as 2/7, not {text!r}")
    return Share(*part)


def make(verify: Share, max_drift: Limit | None, verify_seconds: float) -> Verify:
    """The mode, by its options."""
    return Verify(verify, verify_seconds, max_drift)


def _claim_of(lookup: Lookup) -> str:
    """What a race is claimed by: another thing than the tuning of its problem."""
    return f"verify-{lookup.identity.digest}"


def verdicts(events: Iterable[Event]) -> Iterator[tuple[Event, Verdict]]:
    """The verdicts among events; what only looks like one, as in a damaged file, is none."""
    for event in events:
        if event.kind in (RACED, NOT_RACED) and event.identity is not None:
            with suppress(TypeError):
                yield event, Verdict(**event.data, entry=event.entry)


def _of_problem(verdict: Verdict | None) -> ProblemRemark:
    if verdict is None:
        return ProblemRemark("", {"verdict": None})
    data = {**verdict.data, "faster": verdict.faster}
    return ProblemRemark(str(verdict), {"verdict": data}, "slower" if verdict.is_slower else "")


# A race.


def _result(raced: RaceOutcome, is_disturbed: bool) -> Verdict:
    verdict = Verdict(raced=raced.candidate_count, device_seconds=round_significant(raced.measured_s))
    if raced.disturbed or is_disturbed:
        return replace(verdict, not_raced=DISTURBED)
    if raced.slower is None:
        return verdict
    return replace(
        verdict,
        slower=round_significant(raced.slower.slower),
        choice_us=rounded_us(raced.best_us * (1 + raced.slower.slower)),
        faster_us=rounded_us(raced.best_us),
        error_us=round_significant(2 * raced.slower.error * raced.best_us, 2),
        entry=raced.entry,
    )


def _race(contest: Contest, tuning: Tuning, worth: float) -> RaceOutcome | str:
    """Race what a tuner brings; or why that cannot be."""
    entry = tuning.entry
    assert entry is not None
    choice = entry.choice
    assert choice is not None
    ordered = sorted(dict.fromkeys(contest.candidates), key=lambda one: not one.is_same_configuration(choice))
    if len(ordered) < 2 or not ordered[0].is_same_configuration(choice):
        return "there is nothing to race it against"
    runners = contest.ready(ordered)
    racing = [candidate for candidate in ordered if candidate in runners]
    if ordered[0] not in racing:
        return "it cannot be launched"
    if len(racing) < 2:
        return "no other candidate can be launched"
    with tuning.measuring(contest.processor):
        began = HostTime.perf_counter()
        winner, results, raced = races(contest.make_clock(), [runners[one] for one in racing], worth, contest.expected)
        raced = replace(raced, measured_s=HostTime.perf_counter() - began)
    if winner is None:
        return raced
    timed = [_timed(candidate, result) for candidate, result in zip(racing, results, strict=True)]
    best = timed[winner] = replace(racing[winner], time_us=rounded_us(raced.best_us))
    problem, fingerprint = tuning.lookup.identity
    # What the old choice was compiled for says nothing of this one.
    new = replace(entry, problem=problem, fingerprint=fingerprint, choice=best, candidates=tuple(timed), compiled=())
    return replace(raced, entry=replace(new, versions=tuning.versions))


def _timed(candidate: Candidate, result: Launched) -> Candidate:
    if result.measured is not None:
        return replace(candidate, time_us=rounded_us(result.time_us))
    return replace(candidate, failed=describe_error(result.failed) if result.failed is not None else "failed")


def races(
    clock: Clock, runners: Sequence[Runner], worth: float, expected: tuple[type[BaseException], ...]
) -> tuple[int | None, Sequence[Launched], RaceOutcome]:
    """Race a choice, which is the first of the runners, against the others; and again against the one that beats it.

    :returns: the number of the one that beats it, what became of each in the first race, and what both came to.
    """
    race = Race(clock, LIMITS, expected, worth=worth)
    race.probe(runners)
    results = race.finish()
    if (failed := results[0].failed) is not None:
        raise failed
    if race.choice == 0:
        return None, results, RaceOutcome(len(runners), race.disturbed)
    again = Race(clock, LIMITS, expected, seed=1, worth=worth)
    again.probe([runners[0], runners[race.choice]])
    _, best = again.finish()
    raced = RaceOutcome(len(runners), race.disturbed or again.disturbed)
    found = again.compare(0, 1)
    if found is None or not found.is_slower(worth):
        return None, results, raced
    return race.choice, results, replace(raced, slower=found, best_us=best.time_us)
