"""How long one launch takes: by events on the GPU, or by the clock of the host.

A kernel of a few microseconds is shorter than the work of the host that launches it. Events around it
would time the host. So the GPU is kept busy while a launch is prepared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

from pytest_autotune.cache.host_time import HostTime

#: What triton.testing writes to empty the L2 cache of any GPU (that of an H200 has 50 MB); less where memory is full.
FLUSHED_BYTES = (256 << 20, 128 << 20, 64 << 20, 32 << 20)
#: A GPU that is kept busy counts its own cycles; this many, long enough to be timed, tell its speed.
_COUNTED_CYCLES = 1_000_000
#: No clock of a GPU is outside of these, in cycles per microsecond; one that sleeps counts fewer.
_SLOWEST, _FASTEST = 1000.0, 4000.0
_SPIN = """
extern "C" __global__ void pytest_autotune_spin(long long cycles) {
    for (long long start = clock64(); clock64() - start < cycles;);
}
"""


def _nothing(*args: object) -> None:
    pass


@dataclass(frozen=True)
class Runner:
    """One candidate, ready to be launched.

    :param run: one launch; this is timed.
    :param before: called before each launch and not timed.
    :param after: called after each with the error that the launch ended with, or None; not timed.
    :param set_up: called before a launch that follows one of another candidate. Where there is one,
        candidates take turns less often.
    :param code: what it runs, where that is known: of those whose code is equal one is launched for all.
    """

    run: Callable[[], object]
    before: Callable[[], object] = _nothing
    after: Callable[[Exception | None], object] = _nothing
    set_up: Callable[[], object] | None = None
    code: Hashable = None


@dataclass(frozen=True)
class Launch:
    """A launch: what the host took for it, and what it took once the clock was synchronised, in microseconds."""

    prepared_us: float
    time_us: Callable[[], float]


class Clock(Protocol):
    """Times launches one by one."""

    @property
    def can_keep_busy(self) -> bool:
        """Whether the device can be kept busy while a launch is prepared."""

    def synchronise(self) -> None:
        """Wait until everything that was launched is done; raises where the device no longer works."""

    def use_device(self) -> Callable[[], object]:
        """What another thread calls to work on the device that is current in this one."""

    def launch(self, runner: Runner, busy_us: float) -> Launch:
        """Launch once, with what is before and after it; keep the device busy meanwhile."""


def called(runner: Runner) -> None:
    """Launch once, with what belongs after a launch that fails."""
    try:
        runner.run()
    except Exception as error:
        runner.after(error)
        raise


class HostClock:
    """The time until a call returns: for kernels on the CPU, and calls that wait for their device themselves."""

    can_keep_busy = False

    def synchronise(self) -> None:
        pass

    def use_device(self) -> Callable[[], object]:
        return _nothing

    def launch(self, runner: Runner, busy_us: float) -> Launch:
        runner.before()
        started = HostTime.perf_counter_ns()
        called(runner)
        time_us = (HostTime.perf_counter_ns() - started) / 1000
        runner.after(None)
        return Launch(time_us, lambda: time_us)


@dataclass
class EventClock:
    """Events on the current stream of a library.

    The L2 cache is flushed first and what belongs before a launch comes then, as in Triton's own benchmark.

    :param event: makes one.
    :param elapsed_ms: the time between two, in milliseconds.
    :param synchronise: waits for the device.
    :param spin: keeps the device busy for so many cycles; None where it cannot be.
    :param use_device: what another thread calls to work on the device that is current now.
    :param flush: flushes the L2 cache; None where that is not wanted.
    """

    event: Callable[[], Any]
    elapsed_ms: Callable[[Any, Any], float]
    synchronise: Callable[[], None]
    spin: Callable[[int], object] | None
    use_device: Callable[[], Callable[[], object]]
    flush: Callable[[], object] | None

    @property
    def can_keep_busy(self) -> bool:
        return self.spin is not None

    def launch(self, runner: Runner, busy_us: float) -> Launch:
        start, end = self.event(), self.event()
        if self.flush is not None:
            self.flush()
        runner.before()
        began = HostTime.perf_counter_ns()
        if busy_us and self.spin is not None:
            self.spin(int(busy_us * self._cycles_per_us))
        start.record()
        called(runner)
        end.record()
        prepared_us = (HostTime.perf_counter_ns() - began) / 1000
        runner.after(None)
        return Launch(prepared_us, lambda: self._elapsed_us(start, end))

    @cached_property
    def _cycles_per_us(self) -> float:
        assert self.spin is not None
        start, end = self.event(), self.event()
        self.spin(_COUNTED_CYCLES)  # wakes the GPU, and loads the kernel
        start.record()
        self.spin(_COUNTED_CYCLES)
        end.record()
        self.synchronise()
        return min(max(_COUNTED_CYCLES / self._elapsed_us(start, end), _SLOWEST), _FASTEST)

    def _elapsed_us(self, start: Any, end: Any) -> float:
        return float(self.elapsed_ms(start, end)) * 1000


def torch_clock(flush_l2: bool, interface: Any = None) -> EventClock:
    """Events on torch's current stream; ``interface`` is what another backend has for ``torch.cuda``."""
    torch: Any = sys.modules["torch"]
    interface, buffer = interface or torch.cuda, None
    if flush_l2:
        allocate = partial(torch.empty, dtype=torch.int8, device=torch.accelerator.current_accelerator())
        buffer = as_large_as_fits(allocate, torch.OutOfMemoryError)
    return EventClock(
        partial(interface.Event, enable_timing=True),
        lambda start, end: start.elapsed_time(end),
        interface.synchronize,
        getattr(interface, "_sleep", None),
        lambda: partial(interface.set_device, interface.current_device()),
        buffer.zero_ if buffer is not None else None,
    )


def cupy_clock(flush_l2: bool) -> EventClock:
    """CUDA events on CuPy's current stream."""
    cupy: Any = sys.modules["cupy"]
    cuda, buffer = cupy.cuda, None
    if flush_l2:
        buffer = as_large_as_fits(partial(cupy.empty, dtype=cupy.int8), cuda.memory.OutOfMemoryError)
    kernel = cupy.RawKernel(_SPIN, "pytest_autotune_spin")
    return EventClock(
        cuda.Event,
        cuda.get_elapsed_time,
        cuda.runtime.deviceSynchronize,
        lambda cycles: kernel((1,), (1,), (cupy.int64(cycles),)),
        lambda: cuda.Device().use,
        partial(buffer.fill, 0) if buffer is not None else None,
    )


def as_large_as_fits(allocate: Callable[[int], Any], out_of_memory: type[Exception]) -> Any:
    """A buffer to flush the cache with; None where there is no memory for even a small one."""
    for size in FLUSHED_BYTES:
        with suppress(out_of_memory):
            return allocate(size)
    return None
