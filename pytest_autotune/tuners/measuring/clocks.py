"""Clocks: each times a launch, by events on the GPU or by the clock of the host.

A kernel of a few microseconds is shorter than the work of the host that launches it. Events around such a kernel
would time the host. A clock therefore keeps the GPU busy while the host prepares a launch.
The order of launches is in :mod:`~pytest_autotune.tuners.measuring.launching`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from pytest_autotune.cache.host_time import HostTime

#: The sizes of the buffer whose overwriting empties the L2 cache. triton.testing takes the first size, which is enough
#: for any GPU: the cache of an H200 has 50 MB. The smaller sizes are for a GPU whose memory is nearly full.
FLUSHED_BYTES = (256 << 20, 128 << 20, 64 << 20, 32 << 20)
#: A GPU is kept busy for a number of its own cycles. The clock times this many cycles, to learn how long a cycle takes.
_COUNTED_CYCLES = 1_000_000
#: The limits of a GPU's clock rate, in cycles per microsecond. A measured rate outside of them is wrong, for example
#: because the GPU was asleep.
_SLOWEST, _FASTEST = 1000.0, 4000.0
_SPIN = """
extern "C" __global__ void pytest_autotune_spin(long long cycles) {
    for (long long start = clock64(); clock64() - start < cycles;);
}
"""


def _do_nothing(*args: object) -> None:
    pass


@dataclass(frozen=True)
class Runner:
    """One candidate, ready to be launched.

    :param run: makes one launch, which is timed.
    :param before_launch: called before each launch, not timed.
    :param after_launch: called after each launch with the launch's error, or with None; not timed.
    :param set_up: called before a launch that follows another candidate's launch. Candidates that have a set-up
        take turns less often.
    :param code: a value that tells which code the candidate runs; None if it is unknown. If several candidates have
        equal values, the race launches only the first of these candidates.
    """

    run: Callable[[], object]
    before_launch: Callable[[], object] = _do_nothing
    after_launch: Callable[[Exception | None], object] = _do_nothing
    set_up: Callable[[], object] | None = None
    code: Hashable = None


class Launch(Protocol):
    """A launch that a clock made."""

    @property
    def prepared_us(self) -> float:
        """The time that the host took for the launch, in microseconds."""

    def time_us(self) -> float:
        """Return the time of the launch, in microseconds; called after the clock was synchronised."""


@dataclass(frozen=True)
class HostLaunch:
    """A launch whose time was known when it returned.

    :param prepared_us: see :class:`Launch`.
    :param measured_us: the time of the launch, in microseconds.
    """

    prepared_us: float
    measured_us: float

    def time_us(self) -> float:
        return self.measured_us


class Clock(Protocol):
    """Times launches, each by itself."""

    @property
    def can_keep_busy(self) -> bool:
        """Whether the device can be kept busy while a launch is prepared."""

    def synchronise(self) -> None:
        """Wait until the device has finished all launches; raises if the device no longer works."""

    def use_device(self) -> Callable[[], object]:
        """Return a function that another thread calls to work on the device that is current in this thread."""

    def launch(self, runner: Runner, busy_us: float) -> Launch:
        """Launch a candidate once, between the calls of its ``before_launch`` and its ``after_launch``.

        :param busy_us: keep the device busy for this long while the launch is prepared.
        """


def _run(runner: Runner) -> None:
    """Launch once. If the launch fails, call ``after_launch`` with the error, and raise the error."""
    try:
        runner.run()
    except Exception as error:
        runner.after_launch(error)
        raise


class HostClock:
    """Measures the time until a call returns. It fits kernels on the CPU, and calls that wait for their device."""

    can_keep_busy = False

    def synchronise(self) -> None:
        pass

    def use_device(self) -> Callable[[], object]:
        return _do_nothing

    def launch(self, runner: Runner, busy_us: float) -> HostLaunch:
        runner.before_launch()
        started_ns = HostTime.perf_counter_ns()
        _run(runner)
        time_us = (HostTime.perf_counter_ns() - started_ns) / 1000
        runner.after_launch(None)
        return HostLaunch(time_us, time_us)


class EventLibrary(Protocol):
    """A library whose events time a GPU: torch, or CuPy."""

    @property
    def can_spin(self) -> bool:
        """Whether :meth:`spin` works."""

    def spin(self, cycles: int) -> None:
        """Keep the GPU busy for this many cycles of its clock."""

    def make_event(self) -> Any:
        """Return an event whose ``record`` method puts it on the current stream."""

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return the time between two events, in milliseconds."""

    def synchronise(self) -> None:
        """Wait until the GPU has finished all launches."""

    def use_device(self) -> Callable[[], object]:
        """Return a function that another thread calls to work on the GPU that is current in this thread."""


class CacheFlush(Protocol):
    """Empties the L2 cache of a GPU."""

    def flush(self) -> None:
        """Overwrite a buffer that is larger than the cache."""


@dataclass(frozen=True)
class EventLaunch:
    """A launch between two events on the stream.

    :param prepared_us: see :class:`Launch`.
    """

    prepared_us: float
    start: Any
    end: Any
    library: EventLibrary

    def time_us(self) -> float:
        return float(self.library.elapsed_ms(self.start, self.end)) * 1000


@dataclass
class EventClock:
    """Measures the time between two events on the current stream of a library.

    The clock flushes the L2 cache before ``before_launch``, as Triton's own benchmark does.

    :param cache_flush: empties the L2 cache before each launch; None leaves the cache as it is.
    """

    library: EventLibrary
    cache_flush: CacheFlush | None = None

    @property
    def can_keep_busy(self) -> bool:
        return self.library.can_spin

    def synchronise(self) -> None:
        self.library.synchronise()

    def use_device(self) -> Callable[[], object]:
        return self.library.use_device()

    def launch(self, runner: Runner, busy_us: float) -> EventLaunch:
        start = self.library.make_event()
        end = self.library.make_event()
        if self.cache_flush is not None:
            self.cache_flush.flush()
        runner.before_launch()
        began_ns = HostTime.perf_counter_ns()
        if busy_us and self.can_keep_busy:
            # While the GPU spins, the host queues both events and the kernel. No time of the host is between them.
            self.library.spin(int(busy_us * self._cycles_per_us))
        start.record()
        _run(runner)
        end.record()
        prepared_us = (HostTime.perf_counter_ns() - began_ns) / 1000
        runner.after_launch(None)
        return EventLaunch(prepared_us, start, end, self.library)

    @cached_property
    def _cycles_per_us(self) -> float:
        """The GPU's clock rate, measured once for each clock."""
        start = self.library.make_event()
        end = self.library.make_event()
        # The first call wakes the GPU and loads the kernel, so it is not timed.
        self.library.spin(_COUNTED_CYCLES)
        start.record()
        self.library.spin(_COUNTED_CYCLES)
        end.record()
        self.synchronise()
        spun = EventLaunch(prepared_us=0.0, start=start, end=end, library=self.library)
        return min(max(_COUNTED_CYCLES / spun.time_us(), _SLOWEST), _FASTEST)


@dataclass(frozen=True)
class TorchDevice:
    """A GPU by torch's number of it."""

    interface: Any
    number: int

    def use(self) -> None:
        """Make this GPU the current device of the calling thread."""
        self.interface.set_device(self.number)


class TorchEvents:
    """torch's events.

    :param interface: ``torch.cuda``, or the module that stands for it in another backend.
    """

    def __init__(self, interface: Any) -> None:
        self._interface = interface

    @property
    def can_spin(self) -> bool:
        return getattr(self._interface, "_sleep", None) is not None

    def spin(self, cycles: int) -> None:
        self._interface._sleep(cycles)

    def make_event(self) -> Any:
        return self._interface.Event(enable_timing=True)

    def elapsed_ms(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end))

    def synchronise(self) -> None:
        self._interface.synchronize()

    def use_device(self) -> Callable[[], object]:
        return TorchDevice(self._interface, self._interface.current_device()).use


@dataclass(frozen=True)
class TorchFlush:
    """Empties the L2 cache with a tensor of torch."""

    tensor: Any

    def flush(self) -> None:
        self.tensor.zero_()


class CupyEvents:
    """CuPy's events."""

    can_spin = True

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._kernel = cupy.RawKernel(_SPIN, "pytest_autotune_spin")

    def spin(self, cycles: int) -> None:
        self._kernel((1,), (1,), (self._cupy.int64(cycles),))

    def make_event(self) -> Any:
        return self._cupy.cuda.Event()

    def elapsed_ms(self, start: Any, end: Any) -> float:
        return float(self._cupy.cuda.get_elapsed_time(start, end))

    def synchronise(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()

    def use_device(self) -> Callable[[], object]:
        use: Callable[[], object] = self._cupy.cuda.Device().use
        return use


@dataclass(frozen=True)
class CupyFlush:
    """Empties the L2 cache with an array of CuPy."""

    array: Any

    def flush(self) -> None:
        self.array.fill(0)


def torch_clock(flush_l2: bool, interface: Any = None) -> EventClock:
    """Return a clock by events on torch's current stream.

    :param flush_l2: empty the L2 cache before each launch, if the memory has room for the buffer that this needs.
    :param interface: the module that stands for ``torch.cuda`` in another backend.
    """
    torch: Any = sys.modules["torch"]
    events = TorchEvents(interface or torch.cuda)
    if not flush_l2:
        return EventClock(events)
    device = torch.accelerator.current_accelerator()

    def allocate(size: int) -> Any:
        return torch.empty(size, dtype=torch.int8, device=device)

    tensor = allocate_flushed_buffer(allocate, torch.OutOfMemoryError)
    # The memory has no room, so the clock does not empty the cache.
    if tensor is None:
        return EventClock(events)
    return EventClock(events, TorchFlush(tensor))


def cupy_clock(flush_l2: bool) -> EventClock:
    """Return a clock by CUDA events on CuPy's current stream.

    :param flush_l2: empty the L2 cache before each launch, if the memory has room for the buffer that this needs.
    """
    cupy: Any = sys.modules["cupy"]
    events = CupyEvents(cupy)
    if not flush_l2:
        return EventClock(events)

    def allocate(size: int) -> Any:
        return cupy.empty(size, dtype=cupy.int8)

    array = allocate_flushed_buffer(allocate, cupy.cuda.memory.OutOfMemoryError)
    # The memory has no room, so the clock does not empty the cache.
    if array is None:
        return EventClock(events)
    return EventClock(events, CupyFlush(array))


def allocate_flushed_buffer(allocate: Callable[[int], Any], out_of_memory: type[Exception]) -> Any:
    """Return a buffer that a clock writes to empty the L2 cache; None if the memory has no room for one.

    The buffer has the largest size in ``FLUSHED_BYTES`` for which the memory has room.

    :param allocate: returns a buffer of so many bytes.
    :param out_of_memory: the error that ``allocate`` raises if the memory is full.
    """
    for size in FLUSHED_BYTES:
        with suppress(out_of_memory):
            return allocate(size)
    return None
