"""How Inductor's measurements are timed: by the clocks and the race of this package.

``InductorBenchmarker.benchmark_gpu`` is replaced: Inductor asks it for the time of one template, library call, fused
kernel or configuration after the other. The list of one kernel's configurations, which can take turns, races. Both
only while one of the parts measures; a benchmarker that somebody else has put in place of Inductor's is used as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.inductor.hooking import Part
from pytest_autotune.tuners.measuring.clocks import Clock, Runner, torch_clock
from pytest_autotune.tuners.measuring.race import Limits, Race
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.library import Patches

#: What one call is timed for, at most, where there is nothing that it could take turns with. As Inductor's own:
#: 25 ms; fewer launches than its 100 since the GPU is kept busy.
ALONE = Limits(each_us=25_000, least=2, most=30)
_OWNER = "torch._inductor.runtime.benchmarking"
#: Arguments of Inductor's benchmark that only say for how long.
_HOW_LONG = {"warmup", "rep", "estimation_iters", "memory_warmup_iters", "benchmark_iters", "max_benchmark_duration"}
#: What its own measurement of a configuration does around a launch.
_AROUND = ("copy_args_to_cpu_if_needed", "maybe_clone_args", "reset_to_zero_args", "restore_args_from_cpu")


class Benchmarks(Part):
    """The part of the adapter that times, with the L2 cache flushed before each launch, as Inductor does."""

    tuner = "inductor"
    module = _OWNER

    def __init__(self, make_clock: Callable[[], Clock] = lambda: torch_clock(flush_l2=True)) -> None:
        self.make_clock = make_clock
        self._clock: Clock | None = None
        #: The searches that measure now, each inside the one before it.
        self._searches: list[Tuning] = []

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        self._module = module
        try:
            asked = ["self", "_callable"]
            patches.replace(module.InductorBenchmarker, "benchmark_gpu", asked, self._benchmark, and_others=True)
        except (AttributeError, HookError):
            session.note("inductor: this torch measures in another way than those known here; it measures by itself")

    def _benchmark(self, original: Any, benchmarker: Any, _callable: Any, *args: Any, **kwargs: Any) -> Any:
        time_ms = None if args else self._time_ms(_callable, kwargs)
        return original(benchmarker, _callable, *args, **kwargs) if time_ms is None else time_ms

    @contextmanager
    def during(self, tuning: Tuning) -> Iterator[None]:
        """Have the device to oneself for a search, and time inside."""
        with self.searching(tuning), self.held():
            yield

    @contextmanager
    def searching(self, tuning: Tuning) -> Iterator[None]:
        """Time inside; who compiles there as well has the device only where it is :meth:`held`."""
        self._searches.append(tuning)
        try:
            yield
        finally:
            self._searches.pop()
            if not self._searches:
                self._clock = None  # and its buffer

    def held(self) -> AbstractContextManager[None]:
        """Have the device to oneself for a measurement of the search that goes on."""
        return self._searches[-1].measuring()

    @property
    def is_used(self) -> bool:
        """Whether a measurement that Inductor makes now would be timed here."""
        module = self._module
        if not self._searches or module is None:
            return False
        inside = [getattr(type(module.benchmarker), name, None) for name in ("benchmark", "benchmark_gpu")]
        return all(getattr(function, "__module__", "") in (_OWNER, Patches.__module__) for function in inside)

    def _time_ms(self, call: Callable[[], object], settings: dict[str, Any]) -> float | None:
        """The time of a call; None where Inductor is to time it itself, or to meet the error that it ends with."""
        vetted = settings.get("is_vetted_benchmarking") or not self._module.torch._inductor.config.deterministic
        on_gpu = settings.get("device_type") in (None, "cuda")
        known = settings.keys() <= _HOW_LONG | {"is_vetted_benchmarking", "device_type"}
        if not (self._searches and vetted and on_gpu and known):
            return None
        try:
            return Race(self._clock_now(), ALONE).alone(Runner(call)).time_us / 1000
        except Exception:
            return None

    def raced_ms(
        self, autotuner: Any, launchers: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[Any, float]:
        """The times, in ms, of a kernel's launchers by a race; none where Inductor measures one after the other."""
        if not self.is_used or len(launchers) < 2 or autotuner.device_props.type != "cuda":
            return {}
        search = self._searches[-1]
        with self.held():
            try:
                race = Race(self._clock_now(), progress=search.report_race)
                race.probe(runners(autotuner, launchers, args, kwargs))
                race.finish()
            except Exception:  # one of them fails: Inductor knows what to do about it
                return {}
        if race.disturbed:
            search.mark_disturbed()
        times_ms = {launcher: one.time_us / 1000 for launcher, one in zip(launchers, race.results, strict=True)}
        # Inductor takes the lowest time: of those that are as good, that has to be the first.
        times_ms[launchers[race.choice]] = min(times_ms.values())
        return times_ms

    def _clock_now(self) -> Clock:
        if self._clock is None:
            self._clock = self.make_clock()
        return self._clock


def runners(
    autotuner: Any, launchers: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Runner]:
    """Launches as ``CachingAutotuner.bench`` makes them; copies of what a kernel changes are not timed."""
    copy, clone, reset, restore = (getattr(autotuner, name) for name in _AROUND)
    interface = autotuner.get_device_interface()
    stream = interface.get_raw_stream(interface.current_device())
    copies = copy(*args, **kwargs)

    def runner(launcher: Any) -> Runner:
        usual: tuple[Sequence[Any], dict[str, Any]] = args, kwargs
        given = usual

        def before() -> None:
            nonlocal given
            given = clone(copies, *args, **kwargs)
            reset(*args, **kwargs)

        def run() -> object:
            return launcher(*given[0], **given[1], stream=stream)

        def after(error: Exception | None) -> None:
            nonlocal given
            given = usual
            restore(copies)

        return Runner(run, before, after)

    return map(runner, launchers)
