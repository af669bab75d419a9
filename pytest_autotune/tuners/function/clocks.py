"""How long one call takes: by events on the GPU, by the clock of the host, or by the caller's own benchmark."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from pytest_autotune.tuners.function.errors import TuningError

#: What triton.testing writes to empty the L2 cache of any GPU; that of an H200 has 50 MB.
FLUSHED_BYTES = 256 * 1024 * 1024

#: No GPU's clock makes more cycles in a microsecond, so that it is kept busy no shorter than asked.
CYCLES_PER_US = 3000
#: Keeps one thread of the GPU busy; torch has such a kernel of its own.
_SPIN = """
extern "C" __global__ void pytest_autotune_spin(long long cycles) {
    for (long long start = clock64(); clock64() - start < cycles;);
}
"""

#: A benchmark of the caller: takes a call without arguments; returns its time, or several, in microseconds.
OwnClock = Callable[[Callable[[], object]], "float | Iterable[float]"]


class Clock(Protocol):
    """Times calls one by one."""

    def synchronise(self) -> None:
        """Wait until everything that was launched is done.

        :raises Exception: what the library raises when the device no longer works.
        """

    def use_device(self) -> Callable[[], object]:
        """What another thread calls to work on the device that is current in this one."""

    def samples_us(
        self, call: Callable[[], object], before: Callable[[], object], runs: int, launch_us: float = 0.0
    ) -> list[float]:
        """The time of each of several calls in microseconds.

        :param before: called before each of them and not timed.
        :param launch_us: how long a call needs to launch its kernels. A GPU is kept busy for as long
            before each call, or the time of a kernel that is shorter than its launch is the launch's.
        """


class HostClock:
    """The time until a call returns: for kernels on the CPU, and calls that wait for their device themselves."""

    def synchronise(self) -> None:
        pass

    def use_device(self) -> Callable[[], object]:
        return lambda: None

    def samples_us(
        self, call: Callable[[], object], before: Callable[[], object], runs: int, launch_us: float = 0.0
    ) -> list[float]:
        samples = []
        for _ in range(runs):
            before()
            started = time.perf_counter_ns()
            call()
            samples.append((time.perf_counter_ns() - started) / 1000)
        return samples


class TorchEvents:
    """CUDA events on torch's current stream."""

    def __init__(self, flush_l2: bool = False) -> None:
        self._torch: Any = sys.modules["torch"]
        self._buffer = self._torch.empty(FLUSHED_BYTES, dtype=self._torch.int8, device="cuda") if flush_l2 else None

    def synchronise(self) -> None:
        self._torch.cuda.synchronize()

    def use_device(self) -> Callable[[], object]:
        return partial(self._torch.cuda.set_device, self._torch.cuda.current_device())

    def samples_us(
        self, call: Callable[[], object], before: Callable[[], object], runs: int, launch_us: float = 0.0
    ) -> list[float]:
        event = self._torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(runs)]
        for start, end in pairs:
            before()
            if self._buffer is not None:
                self._buffer.zero_()
            if launch_us:
                self._torch.cuda._sleep(int(launch_us * CYCLES_PER_US))
            start.record()
            call()
            end.record()
        self.synchronise()
        return [start.elapsed_time(end) * 1000 for start, end in pairs]


class CupyEvents:
    """CUDA events on CuPy's current stream."""

    def __init__(self, flush_l2: bool = False) -> None:
        self._cupy: Any = sys.modules["cupy"]
        self._buffer = self._cupy.empty(FLUSHED_BYTES, dtype=self._cupy.int8) if flush_l2 else None
        self._spin = self._cupy.RawKernel(_SPIN, "pytest_autotune_spin")

    def synchronise(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()

    def use_device(self) -> Callable[[], object]:
        use: Callable[[], object] = self._cupy.cuda.Device().use
        return use

    def samples_us(
        self, call: Callable[[], object], before: Callable[[], object], runs: int, launch_us: float = 0.0
    ) -> list[float]:
        event, elapsed_ms = self._cupy.cuda.Event, self._cupy.cuda.get_elapsed_time
        pairs = [(event(), event()) for _ in range(runs)]
        for start, end in pairs:
            before()
            if self._buffer is not None:
                self._buffer.fill(0)
            if launch_us:
                self._spin((1,), (1,), (self._cupy.int64(launch_us * CYCLES_PER_US),))
            start.record()
            call()
            end.record()
        self.synchronise()
        return [elapsed_ms(start, end) * 1000 for start, end in pairs]


CLOCKS: dict[str, Callable[[bool], Clock]] = {"torch": TorchEvents, "cupy": CupyEvents}


def make_clock(name: str | OwnClock | None, on_gpu: bool, flush_l2: bool) -> Clock:
    """A clock by its name, or the one that fits the device.

    :param name: ``"torch"``, ``"cupy"``, ``"host"`` or None: on a GPU the events of torch where it
        has initialised the GPU, else of CuPy; elsewhere the host's clock. Beside a benchmark of the
        caller's own, what can wait for the device.
    :raises TuningError: when the library for it is not imported.
    :raises ValueError: when the host's clock is asked to flush the L2 cache.
    """
    if callable(name):
        library = _library_on_gpu() if on_gpu else ""
        return CLOCKS[library](False) if library else HostClock()
    if name is None and on_gpu:
        name = _library_on_gpu()
        if not name:
            raise TuningError(
                "neither torch nor CuPy uses the GPU: pass Measuring(clock=…), a benchmark of your own or 'host' "
                "for calls that wait for the GPU themselves"
            )
    name = name or "host"
    if name == "host":
        if flush_l2:
            raise ValueError("flush_l2=True is for GPUs that are timed with events of torch or CuPy")
        return HostClock()
    if name not in CLOCKS:
        raise ValueError(f"clock={name!r}: expected 'torch', 'cupy', 'host' or a benchmark of your own")
    if name not in sys.modules:
        raise TuningError(f"clock={name!r}: {name} is not imported")
    return CLOCKS[name](flush_l2)


def _library_on_gpu() -> str:
    """The library whose events can time the GPU; empty where there is none."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return "torch"
    return "cupy" if "cupy" in sys.modules else ""
