"""How ties are decided, all of it: between candidates, between measurements, and between a file and a measurement.

Of candidates that measuring cannot tell apart the one that is kept already is chosen, else the first
(:func:`settle`); of several measurements of one problem an undisturbed one counts, then the fastest
(:func:`ranked`); and a file keeps its choice while that is within the noise of the best (:func:`keeps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_autotune.cache.model import Device, Entry

#: Candidates within this share of the best one are as good.
TIE = 0.01
#: So are those within so many microseconds, on a GPU. Launches of one kernel of 5 us there differ by 0.15 us (half
#: their interquartile range on an H200, the L2 cache flushed), its events tick every 0.03 us, and over 500 launches of
#: each candidate still differ by 0.02 us between processes. With 0.1 us, two dumps of 94 problems with up to 64
#: candidates close to each other chose differently for 9.
TIE_US = 0.15
#: A choice that is kept stays while it is within this share of the best: two measurements on an idle GPU differ by it.
NOISE = 0.03
#: The same for a processor that does other things, too.
NOISE_ON_CPU = 0.10
#: The same where times mean nothing: an interpreter's are those of Python, and of what else the host does.
NOISE_OF_INTERPRETER = 2.0


def noise_of(device: Device) -> float:
    """The share by which two measurements on a device may differ."""
    if device.arch == "interpreter":
        return NOISE_OF_INTERPRETER
    return NOISE_ON_CPU if device.name == "CPU" else NOISE


def tie_on_gpu(best_us: float) -> float:
    """The share of the best time, in microseconds, by which another may be slower on a GPU and still is as good."""
    return max(TIE, min(TIE_US / best_us, NOISE)) if best_us else TIE


def hysteresis(device: Device, best_us: float) -> float:
    """The share of the best time, in microseconds, by which a choice that is kept may be slower and still stays.

    More than a tie: what was one by half the noise less when it was chosen is no worse now.
    """
    noise = noise_of(device)
    return max(noise, tie_on_gpu(best_us) + noise / 2 if noise == NOISE else 0.0)


def choose_candidate(
    times: Mapping[int, float],
    noise: float,
    kept: int | None = None,
    error: Callable[[int, int], float] = lambda number, best: 0.0,
    tie: float = TIE,
) -> int:
    """Which candidate to choose.

    :param times: of the candidates that may be chosen, by their position in the list; one at least.
    :param noise: a share of the best time, see :func:`noise_of` and :func:`hysteresis`.
    :param kept: the position of the choice that is kept already. It stays while it is within the noise.
    :param error: by which share of the best time the difference between two candidates may be wrong. What it
        hides is a tie, within the noise.
    :param tie: a difference up to this share of the best time is one, too.
    """
    best = min(times, key=lambda number: (times[number], number))
    if kept is not None and times.get(kept, float("inf")) <= times[best] * (1 + noise):
        return kept

    def is_as_good(number: int) -> bool:
        tolerated = max(tie, min(error(number, best), noise))
        return times[number] <= times[best] * (1 + tolerated)

    return next(number for number in order_of_preference(times) if is_as_good(number))


def order_of_preference(numbers: Iterable[int]) -> list[int]:
    """Candidates by their position in the list; of those that are as good, the first of these is chosen."""
    return sorted(numbers)


@dataclass(frozen=True, slots=True)
class MeasuredEntry:
    """An entry that came from a search in this run.

    :param origin: who measured it.
    :param disturbed: something else may have run on the device meanwhile.
    :param rejected: the loaded entry of this problem and fingerprint was tried before, and could not be used.
    """

    entry: Entry
    process: str = ""
    is_disturbed: bool = False
    rejected: bool = False


def rank_measurements(rivals: Sequence[MeasuredEntry]) -> list[MeasuredEntry]:
    """Measurements of one problem, the one to keep first, whatever their order: the higher generation, a choice before
    "every candidate failed", undisturbed before disturbed, the lower time; else by the encoding.
    """
    if len(rivals) == 1:
        return list(rivals)

    def quality(one: MeasuredEntry) -> tuple[object, ...]:
        entry = one.entry
        return -entry.generation, entry.is_failure, one.is_disturbed, find_best_time_us(entry), repr(entry), one.process

    return sorted(rivals, key=quality)


def keeps_entry(old: Entry, new: Entry, is_rejected: bool = False) -> bool:
    """Whether a file keeps its entry: the choice is as good as the new one, by the new measurement.

    :param is_rejected: this run has tried the entry's choice, and could not use it.
    """
    if new.is_failure:  # the cause may pass, and its words may hold what a test drew at random
        return old.is_failure or not is_rejected
    if old.choice is None or new.choice is None:
        return (old.choice, old.candidates, old.native) == (new.choice, new.candidates, new.native)
    best_us = find_best_time_us(new)
    if best_us == float("inf"):  # a tuner that reports no times gives no reason to change
        return True
    times = {number: one.time_us for number, one in enumerate(new.candidates) if one.time_us is not None}
    kept = next((number for number in times if new.candidates[number].is_same_configuration(old.choice)), None)
    return kept is not None and choose_candidate(times, hysteresis(new.problem.device, best_us), kept) == kept


def find_best_time_us(entry: Entry) -> float:
    """The lowest time that was measured for an entry, in microseconds; infinite if none was."""
    measured = entry.candidates or ((entry.choice,) if entry.choice else ())
    return min((one.time_us for one in measured if one.time_us is not None), default=float("inf"))
