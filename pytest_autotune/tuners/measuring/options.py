"""The options of a hand-written tuner for the measurement of its candidates. One of them selects the clock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_autotune.devices import torch_cuda
from pytest_autotune.tuners.measuring.clocks import Clock, HostClock, HostLaunch, Runner, cupy_clock, torch_clock
from pytest_autotune.tuners.measuring.race import Limits
from pytest_autotune.tuners.measuring.times import Measurement, measurement

#: A benchmark of the user's code. It takes a function without arguments, and returns its time, or several times, in
#: microseconds.
CallersBenchmark = Callable[[Callable[[], object]], "float | Iterable[float]"]


@dataclass(frozen=True)
class Measuring:
    """Options for the measurement of a hand-written tuner's candidates.

    The candidates that may win take turns until each was measured for ``measure_ms``. Each is measured ``min_runs``
    times at least and ``max_runs`` times at most. The turns end sooner if the best candidate is certain.

    :param flush_l2: overwrite the GPU's L2 cache before each run, so that the run reads its inputs from memory.
    :param clock: ``"torch"`` or ``"cupy"`` (CUDA events on the library's current stream), ``"host"``, or a function.
        The function takes a function without arguments and returns its time, or several times, in microseconds.
        It makes its own warm-up runs. None: the clock that fits the device.
    """

    measure_ms: float = 100.0
    min_runs: int = 5
    max_runs: int = 1000
    flush_l2: bool = False
    clock: str | CallersBenchmark | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.min_runs <= self.max_runs:
            raise ValueError(f"expected 1 <= min_runs <= max_runs, not {self.min_runs} and {self.max_runs}")
        if self.flush_l2 and callable(self.clock):
            raise ValueError("flush_l2=True does nothing with your own clock: flush the L2 cache in that clock")

    @property
    def limits(self) -> Limits:
        """The limits of a race. All candidates together may take ten times as long as one."""
        return Limits(self.measure_ms * 1000, self.measure_ms * 10_000, self.min_runs, self.max_runs)


class CallersClock:
    """Takes the times of the caller's benchmark. A result of the benchmark counts as the time of a launch.

    :param device: the clock that would be used without the benchmark. The race uses it to wait for the device.
    """

    can_keep_busy = False

    def __init__(self, benchmark: CallersBenchmark, device: Clock) -> None:
        self._benchmark = benchmark
        self._device = device

    def synchronise(self) -> None:
        self._device.synchronise()

    def use_device(self) -> Callable[[], object]:
        return self._device.use_device()

    def measure(self, runner: Runner) -> Measurement:
        """Have the benchmark measure a candidate."""
        runner.before_launch()
        times = self._benchmark(runner.run)
        if isinstance(times, Iterable):
            return measurement(list(map(float, times)))
        return measurement([float(times)])

    def launch(self, runner: Runner, busy_us: float) -> HostLaunch:
        time_us = self.measure(runner).median_us
        return HostLaunch(time_us, time_us)


def make_clock(name: str | CallersBenchmark | None, on_gpu: bool, flush_l2: bool) -> Clock:
    """Return the clock of a name, a clock around the caller's benchmark, or the clock that fits the device.

    ========================================= ====================================
    ``name``                                  clock
    ========================================= ====================================
    a function                                a clock around this function
    ``"torch"``, ``"cupy"``, ``"host"``       the clock of this name
    None, torch has initialised the GPU       events of torch
    None, CuPy is imported                    events of CuPy
    None, the candidates run on the CPU       the host's clock
    ========================================= ====================================

    :param name: see :class:`Measuring`.
    :param on_gpu: whether the candidates run on a GPU.
    :raises ValueError: if no such clock works here.
    """
    library = ""
    if on_gpu:
        library = _find_library_on_gpu()
    if callable(name):
        return CallersClock(name, _make_waiting_clock(library))
    if name is None and on_gpu and not library:
        raise ValueError(
            "neither torch nor CuPy uses the GPU: pass Measuring(clock=…), a benchmark of your own or 'host' "
            "for calls that wait for the GPU themselves"
        )
    if name is None:
        clock_name = library or "host"
    else:
        clock_name = name
    if clock_name == "host":
        if flush_l2:
            raise ValueError("flush_l2=True is for GPUs that are timed with events of torch or CuPy")
        return HostClock()
    if clock_name not in _EVENT_CLOCKS:
        raise ValueError(f"clock={clock_name!r}: expected 'torch', 'cupy', 'host' or a benchmark of your own")
    if clock_name not in sys.modules:
        raise ValueError(f"clock={clock_name!r}: {clock_name} is not imported")
    return _EVENT_CLOCKS[clock_name](flush_l2)


#: Name of a library -> the function that makes its clock; the argument says whether to flush the L2 cache.
_EVENT_CLOCKS: dict[str, Callable[[bool], Clock]] = {"torch": torch_clock, "cupy": cupy_clock}


def _make_waiting_clock(library: str) -> Clock:
    """Return the clock with which a race waits for the device, if the caller's benchmark takes the times.

    :param library: the library that uses the GPU; empty if the candidates run on the CPU.
    """
    if not library:
        return HostClock()
    return _EVENT_CLOCKS[library](False)


def _find_library_on_gpu() -> str:
    """Return the library whose events can time the GPU; empty if no such library is imported."""
    if torch_cuda() is not None:
        return "torch"
    if "cupy" in sys.modules:
        return "cupy"
    return ""
