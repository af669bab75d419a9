"""The rule for ties: of candidates that measuring cannot tell apart, the one that is kept already, else the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_autotune.cache.model import Device

#: Candidates within this share of the best one are as good.
TIE = 0.01
#: So are those within so many microseconds, on a GPU. Launches of one kernel of 5 us there differ by 0.15 us (half
#: their interquartile range on an H200, the L2 cache flushed), its events tick every 0.03 us, and over 500 launches of
#: each candidate still differ by 0.02 us between processes. With 0.1 us, two dumps of 94 problems with up to 64
#: candidates close to each other chose differently for 9.
TIE_US = 0.15
#: A choice that is kept stays while it is within this share of the best. It is about what two measurements
#: of one kernel on an otherwise idle GPU differ by.
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


def kept_within(device: Device, best_us: float) -> float:
    """The share of the best time, in microseconds, by which a choice that is kept may be slower and still stays.

    More than a tie: what was one by half the noise less when it was chosen is no worse now.
    """
    noise = noise_of(device)
    return max(noise, tie_on_gpu(best_us) + noise / 2 if noise == NOISE else 0.0)


def settle(
    times: Mapping[int, float],
    noise: float,
    kept: int | None = None,
    error: Callable[[int, int], float] = lambda number, best: 0.0,
    tie: float = TIE,
) -> int:
    """Which candidate to choose.

    :param times: of the candidates that may be chosen, by their position in the list; one at least. Any unit.
    :param noise: a share of the best time, see :func:`noise_of` and :func:`kept_within`.
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

    return min(number for number in times if is_as_good(number))
