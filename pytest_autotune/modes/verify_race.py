"""The race of a loaded choice against the other candidates of its problem, for the mode ``--autotune-verify``.

The tuner brings its candidates as a *contest*, or races them itself.
A race is a tuning in which the choice wins ties. Another candidate beats the choice only if it also wins a second race
against the choice alone: by :data:`SLOWER_THRESHOLD` less the allowance of a measurement, and by more than three
standard errors. Only times of one race are compared with each other. A race never uses the times in a cache file, which
may come from another machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_autotune.cache.diff import find_winner
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Entry
from pytest_autotune.cache.ties import measurement_noise
from pytest_autotune.cache.wording import describe_duration, describe_error, round_significant, rounded_us
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.measuring.clocks import Clock, Runner
from pytest_autotune.tuners.measuring.launching import CandidateResult
from pytest_autotune.tuners.measuring.race import Contest, Limits, Race, RaceOutcome, TunerRace
from pytest_autotune.tuners.shared.candidates import LaunchError

#: A choice is slower if its time exceeds the time of another candidate by this share of that candidate's time. Because
#: of ``ALLOWANCE`` in ``measuring/times.py``, a measured share counts from 0.0425 on.
SLOWER_THRESHOLD = 0.05
#: The reason for not counting a race.
DISTURBED = "another process may have used the device during the race"
#: The reason for not counting a race in which no candidate but the choice can be launched.
NO_RIVAL = "no candidate except the choice can be launched"
#: The most time of one race. Long kernels differ less from launch to launch.
LIMITS = Limits(each_us=50_000.0, all_us=300_000.0)


@dataclass(frozen=True)
class Verdict:
    """The result of racing a loaded choice, or the reason for not racing the choice.

    :param not_raced: why the choice was not raced; empty if it was raced.
    :param raced: the number of candidates that raced, the choice included.
    :param slower: the extra time of the choice, as a share of the faster candidate's time; 0 if no candidate is faster.
    :param choice_us: the time of the choice, in microseconds; 0 if no candidate is faster.
    :param faster_us: the time of the faster candidate, in microseconds; 0 if no candidate is faster.
    :param error_us: two standard errors of the difference between these times, in microseconds.
    :param seconds: the whole time of the race, with compiling and waiting for the device.
    :param device_seconds: the time for which the race held the device.
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

    @property
    def data(self) -> dict[str, Any]:
        """All fields but the entry, by name, for events and the JSON report."""
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
            return "no other candidate is faster"
        error = describe_duration(round_significant(self.error_us, 2))
        factor = f"{1 + self.slower:.2f}"
        faster = f"{self.faster}, which takes {describe_duration(self.faster_us)} +-{error}"
        return f"the choice takes {describe_duration(self.choice_us)}, {factor} times as long as {faster}"


@dataclass(frozen=True)
class Challenge:
    """The result of racing a choice against all other candidates, and then against the fastest of them alone.

    :param winner: the index of the candidate that beat the choice in both races; None if no candidate did.
    :param results: the results of all candidates in the first race.
    :param outcome: the outcome of both races.
    """

    winner: int | None
    results: Sequence[CandidateResult]
    outcome: RaceOutcome


def find_verdict(tuning: Tuning, contest: Contest | TunerRace) -> Verdict:
    """Race the loaded choice of a tuning, and return the verdict.

    An error of a candidate becomes the reason for not racing, and is not raised: the test itself launches only the
    choice.
    """
    # On a CPU, the times of equal candidates can differ by more than SLOWER_THRESHOLD.
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
        # There was no race, for this reason.
        return Verdict(outcome)
    return _build_verdict(outcome, tuning.is_disturbed)


def _build_verdict(outcome: RaceOutcome, is_disturbed: bool) -> Verdict:
    """Return the verdict of a race.

    :param is_disturbed: something else may have used the device because the tuning did not get its lock. The race
        itself cannot see this.
    """
    verdict = Verdict(raced=outcome.candidate_count, device_seconds=round_significant(outcome.measured_s))
    if outcome.disturbed or is_disturbed:
        # The times of such a race are not comparable.
        return replace(verdict, not_raced=DISTURBED)
    difference = outcome.slower
    if difference is None:
        # No candidate is faster than the choice.
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
    """Race the choice of a tuning, and return the outcome; or the reason for not racing the choice, in words.

    :param threshold: the share of its own time that a candidate must save to beat the choice.
    """
    entry = tuning.entry
    assert entry is not None
    choice = entry.choice
    assert choice is not None
    candidates = _list_choice_first(contest.candidates, choice)
    # The choice is the only candidate, or the tuner no longer has it among its candidates.
    if len(candidates) < 2 or not candidates[0].is_same_configuration(choice):
        return "the choice has no other candidate to race against"
    # A candidate without a runner cannot be launched, for example because it does not compile.
    runner_by_candidate = contest.ready(candidates)
    launchable = [candidate for candidate in candidates if candidate in runner_by_candidate]
    if candidates[0] not in launchable:
        return "the choice cannot be launched"
    if len(launchable) < 2:
        return NO_RIVAL
    runners = [runner_by_candidate[candidate] for candidate in launchable]
    with tuning.measuring(contest.processor):
        started = HostTime.perf_counter()
        challenge = race_choice(contest.make_clock(), runners, threshold, contest.expected)
        outcome = replace(challenge.outcome, measured_s=HostTime.perf_counter() - started)
    rival_results = challenge.results[1:]
    if all(result.failed is not None for result in rival_results):
        # Every rival failed in its launch, so the choice was compared with nothing.
        return NO_RIVAL
    if challenge.winner is None:
        return outcome
    return replace(outcome, entry=_build_faster_entry(entry, tuning, launchable, challenge))


def _list_choice_first(candidates: Iterable[Candidate], choice: Candidate) -> list[Candidate]:
    """Return the distinct candidates, with the choice in front if it is a candidate.

    The choice must be the first candidate because :class:`Race` lets the first candidate win ties.
    """
    ordered = list(dict.fromkeys(candidates))
    # The sort is stable, and False comes before True: only the choice moves.
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
    # The loaded entry may have the kernel's old name or, if only the pruning is new, another fingerprint. The new entry
    # has the problem and the fingerprint of this lookup.
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


def _with_time(candidate: Candidate, result: CandidateResult) -> Candidate:
    """Return a candidate with its time, or with the reason why it has none."""
    if result.measured is not None:
        return replace(candidate, time_us=rounded_us(result.time_us))
    if result.failed is not None:
        return replace(candidate, failed=describe_error(result.failed))
    return replace(candidate, failed="failed")


def race_choice(
    clock: Clock, runners: Sequence[Runner], threshold: float, expected: tuple[type[BaseException], ...]
) -> Challenge:
    """Race a choice against all other candidates, and once more against the fastest of them alone.

    The fastest of many candidates owes its first place partly to chance. The second race measures anew, and shows
    whether this candidate is faster than the choice.

    :param runners: the runners of the candidates, that of the choice first.
    :param threshold: the share of its own time that a candidate must save to beat the choice.
    :param expected: the errors with which a candidate may fail without ending the race.
    :raises BaseException: the error of the choice, if the choice itself fails.
    """
    race = Race(clock, LIMITS, expected, threshold=threshold)
    race.probe(runners)
    results = race.finish()
    choice_error = results[0].failed
    if choice_error is not None:
        raise choice_error
    if race.choice == 0:
        # The loaded choice has won.
        return Challenge(winner=None, results=results, outcome=RaceOutcome(len(runners), race.disturbed))
    second_race = Race(clock, LIMITS, expected, seed=1, threshold=threshold)
    second_race.probe([runners[0], runners[race.choice]])
    _, challenger_result = second_race.finish()
    outcome = RaceOutcome(len(runners), race.disturbed or second_race.disturbed)
    difference = second_race.compare(number=0, rival=1)
    if difference is None or not difference.is_slower(threshold):
        # The candidate won only the first race.
        return Challenge(winner=None, results=results, outcome=outcome)
    return Challenge(race.choice, results, replace(outcome, slower=difference, best_us=challenger_result.time_us))
