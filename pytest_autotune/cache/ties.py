"""Decides all ties: between candidates, between measurements of a problem, and between a file and a measurement.

1. :func:`choose_candidate`: if measuring cannot tell candidates apart, the choice that is kept already wins, else the
   first candidate of the list.
2. :func:`rank_measurements`: if a problem was measured several times, an undisturbed measurement counts, then the
   fastest.
3. :func:`keeps_entry`: a file keeps its choice while that choice is within the noise of the best.

Two candidates are tied if their times differ by so little that either may be chosen. Noise is the larger difference
that two measurements of the same candidate may have. Both are fractions of the best time: 0.03 is 3 %. A candidate's
number is its position in the list of candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_autotune.cache.model import Candidate, Device, Entry

#: A candidate is as good as the best candidate if it is slower by at most this fraction of the best time.
TIE = 0.01
#: On a GPU, a candidate is as good, too, if it is slower by at most so many microseconds. On an H200 with the L2 cache
#: flushed, launches of a kernel of 5 us differ by 0.15 us (half their interquartile range). The events tick every
#: 0.03 us. Over 500 launches of each candidate, processes still differ by 0.02 us. The number 0.1 was too small: two
#: dumps of 94 problems with up to 64 candidates close to each other chose differently for 9 problems. So the number was
#: chosen by the difference of the launches, and no larger number was compared.
TIE_US = 0.15
#: A kept choice stays while it is slower by at most this fraction of the best time. Two measurements on an idle GPU
#: differ by as much.
NOISE = 0.03
#: The same fraction for a CPU. It is larger, because a CPU also runs other programs.
NOISE_ON_CPU = 0.10
#: The same fraction for an interpreter. Its times mean nothing: they depend on Python, and on the load of the host.
NOISE_OF_INTERPRETER = 2.0


def measurement_noise(device: Device) -> float:
    """Return the fraction by which two measurements on a device may differ."""
    if device.arch == "interpreter":
        return NOISE_OF_INTERPRETER
    if device.name == "CPU":
        return NOISE_ON_CPU
    return NOISE


def tie_on_gpu(best_us: float) -> float:
    """Return the fraction of the best time by which a candidate may be slower on a GPU and still be as good.

    :param best_us: the best time, in microseconds; 0 if no time was measured.
    """
    if not best_us:
        return TIE
    return max(TIE, min(TIE_US / best_us, NOISE))


def kept_choice_tolerance(device: Device, best_us: float) -> float:
    """Return the fraction of the best time by which a kept choice may be slower and still stay.

    On a GPU, the fraction is larger than that of a tie. The choice may have won a tie in its first measurement, in
    which half of the noise may have made it look faster. Such a choice is no worse now.

    :param best_us: the best time, in microseconds.
    """
    noise = measurement_noise(device)
    has_gpu_noise = noise == NOISE
    if not has_gpu_noise:
        # The noise of a CPU and of an interpreter is larger than any tie.
        return noise
    return max(noise, tie_on_gpu(best_us) + noise / 2)


class TimeErrors(Protocol):
    """The errors of measured times, such as those that a race computes from its rounds."""

    def error_between(self, number: int, best: int) -> float:
        """Return the fraction of the best time by which the difference between two candidates may be wrong.

        :param number: the number of a candidate.
        :param best: the number of the best candidate.
        """


class NoErrors:
    """Times that are taken as exact."""

    def error_between(self, number: int, best: int) -> float:
        return 0.0


_NO_ERRORS = NoErrors()


def choose_candidate(
    times: Mapping[int, float],
    noise: float,
    kept: int | None = None,
    errors: TimeErrors = _NO_ERRORS,
    tie: float = TIE,
) -> int:
    """Return the number of the candidate to choose: the first of these that exists.

    1. The kept choice, if it is within the noise of the best candidate.
    2. The first candidate of the list that is tied with the best candidate.

    :param times: the time of each candidate that may be chosen, by its number; at least one.
    :param noise: a fraction of the best time, from :func:`measurement_noise` or :func:`kept_choice_tolerance`.
    :param kept: the number of the choice that a file keeps already; None if there is none.
    :param errors: the errors of the times. A difference within its error is a tie, up to the noise.
    :param tie: a difference up to this fraction of the best time is a tie, too.
    """
    best = min(times, key=lambda number: (times[number], number))
    best_time = times[best]
    if kept is not None and kept in times and times[kept] <= best_time * (1 + noise):
        return kept
    for number in order_of_preference(times):
        error = min(errors.error_between(number, best), noise)
        tolerance = max(tie, error)
        if times[number] <= best_time * (1 + tolerance):
            return number
    # The loop returns the best candidate at the latest, unless its time is NaN.
    return best


def order_of_preference(numbers: Iterable[int]) -> list[int]:
    """Return the numbers of tied candidates, the preferred candidate first: they are preferred as in the list."""
    return sorted(numbers)


@dataclass(frozen=True, slots=True)
class MeasuredEntry:
    """An entry that a search of this run recorded.

    :param process: the process that measured, or the cache that has the entry.
    :param is_disturbed: something else may have used the device during the measurement.
    :param has_rejected_entry: the loaded entry of this problem and fingerprint was tried before, and could not be used.
    """

    entry: Entry
    process: str = ""
    is_disturbed: bool = False
    has_rejected_entry: bool = False

    @property
    def rank(self) -> tuple[object, ...]:
        """The key that sorts measurements of the same problem; the lowest is the measurement to keep."""
        entry = self.entry
        best_us = find_best_time_us(entry)
        return -entry.generation, entry.is_failure, self.is_disturbed, best_us, repr(entry), self.process


def rank_measurements(rivals: Sequence[MeasuredEntry]) -> list[MeasuredEntry]:
    """Return the measurements of a problem, the measurement to keep first.

    :param rivals: the measurements, in any order. Several processes may have measured the same problem.

    The first of these rules that tells two measurements apart decides:

    1. The higher generation wins.
    2. A choice wins over "every candidate failed".
    3. An undisturbed measurement wins.
    4. The lower time wins.
    5. The text of the entry, and then the name of the process, decide between equal measurements.
    """
    if len(rivals) == 1:
        # The rank contains the whole entry as text, so it is computed only if it is needed.
        return list(rivals)
    return sorted(rivals, key=lambda measurement: measurement.rank)


def keeps_entry(old: Entry, new: Entry, is_rejected: bool = False) -> bool:
    """Whether a file keeps its entry although a run measured the problem again.

    It keeps the entry if the new measurement gives no reason for another choice: the old choice is as good as the new.

    :param old: the entry of the file.
    :param new: the entry that this run measured for the same problem.
    :param is_rejected: this run tried the old entry's choice, and could not use it.
    """
    if new.is_failure:
        if old.is_failure:
            # The messages may differ, because tests can draw arguments at random. The old messages stay.
            return True
        # The cause of the failure may be gone in the next run. So the file keeps its choice, unless this run could not
        # use it.
        return not is_rejected
    if old.choice is None or new.choice is None:
        # The times of all candidates, or the tuner's own bytes, are the result. Only an equal result stays.
        return (old.choice, old.candidates, old.native) == (new.choice, new.candidates, new.native)
    best_us = find_best_time_us(new)
    if best_us == float("inf"):
        # A tuner that reports no times gives no reason to change the choice.
        return True
    times = _times_by_number(new.candidates)
    old_number = _find_number(old.choice, times, new.candidates)
    if old_number is None:
        # The old choice is no candidate any more, or it was not measured.
        return False
    tolerance = kept_choice_tolerance(new.problem.device, best_us)
    return choose_candidate(times, tolerance, kept=old_number) == old_number


def _times_by_number(candidates: Sequence[Candidate]) -> dict[int, float]:
    """Return the times of the measured candidates, in microseconds, by the candidates' numbers."""
    times = {}
    for number, candidate in enumerate(candidates):
        if candidate.time_us is not None:
            times[number] = candidate.time_us
    return times


def _find_number(choice: Candidate, times: Mapping[int, float], candidates: Sequence[Candidate]) -> int | None:
    """Return the number of the first measured candidate with the choice's configuration; None if there is none.

    :param times: the times of the measured candidates, by their numbers.
    """
    for number in times:
        if candidates[number].is_same_configuration(choice):
            return number
    return None


def find_best_time_us(entry: Entry) -> float:
    """Return the lowest time that was measured for an entry, in microseconds; infinite if none was measured."""
    measured = entry.candidates
    if not measured and entry.choice is not None:
        measured = (entry.choice,)
    return min(_times_by_number(measured).values(), default=float("inf"))
