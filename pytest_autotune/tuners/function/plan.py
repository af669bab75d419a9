"""What one search is asked for, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.model import Candidate, Device
from pytest_autotune.tuners.function.space import Configuration, InvalidConfiguration, Space, TuningError
from pytest_autotune.tuners.function.strategies import Strategy
from pytest_autotune.tuners.measuring.how import Measuring
from pytest_autotune.tuners.measuring.times import Measurement
from pytest_autotune.tuners.shared.candidates import rounded_us

#: Has a measurement hold the device.
Hold = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Processor:
    """A device, and what a measurement holds to have it to itself.

    :param lock: the processor's name; empty for the current GPU.
    """

    device: Device
    lock: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU that torch or CuPy may time."""
        return not self.lock


def processor_of(device: object) -> Processor:
    """What a caller passed as ``device=``.

    :param device: a :class:`Device`; ``"cpu"``, or ``"cuda"`` for the current GPU, also as a
        ``torch.device``; None for the current GPU where the process uses one, else the CPU.
    :raises TuningError: when the process uses no GPU, and that was asked for.
    """
    name = None if device is None or isinstance(device, Device) else str(device)
    if name == "cpu":
        return Processor(devices.cpu(), "cpu")
    gpu = devices.current_gpu()
    if isinstance(device, Device):
        if device == gpu:
            return Processor(device)
        return Processor(device, "cpu" if device == devices.cpu() else device.id)
    if name not in (None, "cuda"):
        raise TypeError(f"device= takes 'cpu', 'cuda' or a pytest_autotune.Device, not {device!r}")
    if gpu is not None:
        return Processor(gpu)
    if name == "cuda":
        raise TuningError("device='cuda': no library of this process uses a GPU yet (allocate the inputs first)")
    return Processor(devices.cpu(), "cpu")


@dataclass(frozen=True)
class Callbacks:
    """What the caller does with one configuration; ``compile`` makes a second argument of ``run``.

    :param run: one call of the kernel: what is measured.
    :param setup: called before a candidate is checked, and whenever its turn comes.
    :param reset: called before each run and not timed.
    :param verify: gets the configuration and what ``run`` returned; raises or returns False for a wrong result.
    :param invalid: errors of these classes mean that a configuration cannot be used here.
    :param strict: other errors end the search; otherwise they, too, are those of one candidate.
    """

    run: Callable[..., object]
    compile: Callable[[Any], object] | None = None
    setup: Callable[[Any], object] | None = None
    reset: Callable[[Any], object] | None = None
    verify: Callable[[Any, Any], object] | None = None
    invalid: tuple[type[BaseException], ...] = ()
    strict: bool = True

    @property
    def expected(self) -> tuple[type[BaseException], ...]:
        """The errors that are those of one candidate."""
        return (InvalidConfiguration, *self.invalid) if self.strict else (Exception, *self.invalid)


@dataclass(frozen=True)
class Plan:
    """How a space is searched."""

    space: Space
    callbacks: Callbacks
    measuring: Measuring
    strategy: Strategy
    processor: Processor


@dataclass(frozen=True)
class Trial:
    """What became of one candidate.

    :param compiled: what the caller's ``compile`` made of it.
    :param failed: why it cannot be chosen; empty where it can.
    :param may_pass: it failed for want of what the next run may have: memory, a file, time.
    """

    configuration: Configuration
    compiled: object = None
    measured: Measurement | None = None
    failed: str = ""
    may_pass: bool = False

    @property
    def median_us(self) -> float:
        return self.measured.median_us if self.measured else float("inf")

    @property
    def candidate(self) -> Candidate:
        """The trial as a cache and reports hold it."""
        params = self.configuration.params
        if self.measured is None:
            return Candidate(params=params, failed=self.failed)
        return Candidate(params=params, time_us=rounded_us(self.median_us), label=str(self.measured))


@dataclass(frozen=True)
class Found:
    """The outcome of a search: the trial that won, and all of them in the order of the space or search.

    :param disturbed: measurements went on to disagree with each other.
    """

    best: Trial
    trials: Sequence[Trial] = field(default_factory=tuple)
    disturbed: bool = False


@dataclass(frozen=True)
class Loss:
    """What a choice costs where another one may be better.

    :param choice: the configuration in question, with its time in microseconds.
    :param best: the fastest one.
    """

    choice: Candidate
    best: Candidate

    @property
    def share(self) -> float:
        """How much longer the choice takes, as a share of the best time: 0.03 is 3 %."""
        if not self.choice.time_us or not self.best.time_us:
            return 0.0
        return max(self.choice.time_us / self.best.time_us - 1, 0.0)
