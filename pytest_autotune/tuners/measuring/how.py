"""How the caller of a hand-written tuner wants candidates to be measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_autotune.devices import torch_cuda
from pytest_autotune.tuners.measuring.clocks import Clock, HostClock, Launch, Runner, cupy_clock, torch_clock
from pytest_autotune.tuners.measuring.race import Limits
from pytest_autotune.tuners.measuring.times import Measurement, measurement

#: A benchmark of the caller: takes a call without arguments; returns its time, or several, in microseconds.
OwnClock = Callable[[Callable[[], object]], "float | Iterable[float]"]


@dataclass(frozen=True)
class Measuring:
    """How candidates are measured.

    Those that may win take turns until each was measured for ``measure_ms``, but no fewer than ``min_runs`` and
    no more than ``max_runs`` times; sooner where it is clear before which one is the best.

    :param flush_l2: overwrite the GPU's L2 cache before each run, so that it reads its inputs from memory.
    :param clock: ``"torch"`` or ``"cupy"`` (CUDA events on the current stream of either), ``"host"``, or a
        function that takes a call without arguments and returns its time, or several times, in
        microseconds; it does its own warming up. None: what fits the device.
    """

    measure_ms: float = 100.0
    min_runs: int = 5
    max_runs: int = 1000
    flush_l2: bool = False
    clock: str | OwnClock | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.min_runs <= self.max_runs:
            raise ValueError(f"expected 1 <= min_runs <= max_runs, not {self.min_runs} and {self.max_runs}")
        if self.flush_l2 and callable(self.clock):
            raise ValueError("flush_l2=True does nothing for a clock of your own: flush in it")

    @property
    def limits(self) -> Limits:
        """What a race may cost: all candidates together ten times what each may."""
        return Limits(self.measure_ms * 1000, self.measure_ms * 10_000, self.min_runs, self.max_runs)


class CallersClock:
    """A benchmark of the caller's as a clock: what it says of a call is the time of one launch."""

    can_keep_busy = False

    def __init__(self, own: OwnClock, device: Clock) -> None:
        self._own = own
        self.synchronise, self.use_device = device.synchronise, device.use_device

    def measured(self, runner: Runner) -> Measurement:
        """What the benchmark says of a candidate."""
        runner.before()
        times = self._own(runner.run)
        return measurement([float(time) for time in times] if isinstance(times, Iterable) else [float(times)])

    def launch(self, runner: Runner, busy_us: float) -> Launch:
        time_us = self.measured(runner).median_us
        return Launch(time_us, lambda: time_us)


def make_clock(name: str | OwnClock | None, on_gpu: bool, flush_l2: bool) -> Clock:
    """A clock by its name, a benchmark of the caller's as one, or the one that fits the device.

    On a GPU that is the events of torch where it has initialised the GPU, else of CuPy; elsewhere the host's clock.
    """
    library = _library_on_gpu() if on_gpu else ""
    if callable(name):
        return CallersClock(name, _CLOCKS[library](False) if library else HostClock())
    if name is None and on_gpu and not library:
        raise ValueError(
            "neither torch nor CuPy uses the GPU: pass Measuring(clock=…), a benchmark of your own or 'host' "
            "for calls that wait for the GPU themselves"
        )
    name = name or library or "host"
    if name == "host":
        if flush_l2:
            raise ValueError("flush_l2=True is for GPUs that are timed with events of torch or CuPy")
        return HostClock()
    if name not in _CLOCKS:
        raise ValueError(f"clock={name!r}: expected 'torch', 'cupy', 'host' or a benchmark of your own")
    if name not in sys.modules:
        raise ValueError(f"clock={name!r}: {name} is not imported")
    return _CLOCKS[name](flush_l2)


_CLOCKS: dict[str, Callable[[bool], Clock]] = {"torch": torch_clock, "cupy": cupy_clock}


def _library_on_gpu() -> str:
    """The library whose events can time the GPU; empty where there is none."""
    if torch_cuda() is not None:
        return "torch"
    return "cupy" if "cupy" in sys.modules else ""
