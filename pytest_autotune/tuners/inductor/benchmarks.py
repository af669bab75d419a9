"""Times Inductor's measurements with the clocks and the race of this package.

Inductor asks ``InductorBenchmarker.benchmark_gpu`` for the time of each template, library call, fused kernel and
configuration. This part of the adapter acts in the method's place while another part has a search. The configurations
in a kernel's list can take turns, so they race. If the user replaced Inductor's benchmarker, the user's benchmarker
measures.

:class:`KernelRace` is for modes such as ``--autotune-verify``, which race a loaded choice with the other candidates.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pytest_autotune.cache.model import Candidate
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.inductor import autotuners
from pytest_autotune.tuners.inductor.autotuners import Params, params_of
from pytest_autotune.tuners.measuring.clocks import Clock, Runner, torch_clock
from pytest_autotune.tuners.measuring.race import CAPTURED, Contest, Limits, Race
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.patches import CallHook, CallResult, HookedCall, Patches

#: The digits of a time that an entry keeps. A dump run gives Inductor the rounded times, too, so that a load decides
#: as the dump did.
EXACT_DIGITS = 6
#: The limits for a call that is measured without other candidates. Inductor's own benchmark also takes 25 ms, and makes
#: 100 launches. Here 30 launches are enough, because the GPU is kept busy.
ALONE = Limits(each_us=25_000, least=2, most=30)
_OWNER = "torch._inductor.runtime.benchmarking"
#: Arguments of Inductor's benchmark that only limit its duration.
_DURATION_ARGUMENTS = frozenset(
    ["warmup", "rep", "estimation_iters", "memory_warmup_iters", "benchmark_iters", "max_benchmark_duration"]
)
_KNOWN_ARGUMENTS = _DURATION_ARGUMENTS | {"is_vetted_benchmarking", "device_type"}


def make_flushing_clock() -> Clock:
    """Return a clock that flushes the L2 cache before each launch, as Inductor does."""
    return torch_clock(flush_l2=True)


class _ThreadSearches(threading.local):
    """The searches of one thread. Two threads may launch compiled functions, and so search, at the same time."""

    def __init__(self) -> None:
        #: The searches that measure now. Each began inside the search before it.
        self.searches: list[Tuning] = []
        #: The clock of these searches, made for the first measurement.
        self.clock: Clock | None = None


class Benchmarks:
    """The part of the adapter that times Inductor's measurements on a GPU."""

    tuner = "inductor"
    module = _OWNER

    def __init__(self, make_clock: Callable[[], Clock] = make_flushing_clock) -> None:
        self.make_clock = make_clock
        #: Inductor's module ``benchmarking``; None until it is hooked.
        self._module: Any = None
        self._thread = _ThreadSearches()

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        self._module = module
        try:
            owner = module.InductorBenchmarker
            patches.replace(
                owner, "benchmark_gpu", ["self", "_callable"], BenchmarkGpuHook(self), allow_more_parameters=True
            )
        except (AttributeError, HookError):
            session.note("inductor: this torch has a benchmark that pytest-autotune does not know; torch measures")

    @contextmanager
    def measuring(self, tuning: Tuning) -> Iterator[None]:
        """Time a search, and hold the device for the whole search: no other worker measures meanwhile."""
        with self.searching(tuning), self.hold_device():
            yield

    @contextmanager
    def searching(self, tuning: Tuning) -> Iterator[None]:
        """Time a search that also compiles. Such a search holds the device only inside :meth:`hold_device`."""
        self._thread.searches.append(tuning)
        try:
            yield
        finally:
            self._thread.searches.pop()
            if not self._thread.searches:
                # The clock has a large buffer on the GPU, with which it flushes the L2 cache.
                self._thread.clock = None

    def hold_device(self) -> AbstractContextManager[None]:
        """Hold the device for a measurement of the search that began last."""
        return self._thread.searches[-1].measuring()

    @property
    def is_used(self) -> bool:
        """Whether Inductor's next measurement would be timed by this part."""
        module = self._module
        if not self._thread.searches or module is None:
            return False
        # The user may have replaced the benchmarker, or one of its methods.
        for name in ("benchmark", "benchmark_gpu"):
            function = getattr(type(module.benchmarker), name, None)
            if getattr(function, "__module__", "") != _OWNER:
                return False
        return True

    def find_time_ms(self, call: Callable[[], object], arguments: Mapping[str, Any]) -> float | None:
        """Return the time of a call in milliseconds, or None if Inductor has to time the call.

        :param call: a launch of a template, a kernel or a library function.
        :param arguments: the arguments of Inductor's benchmark that differ from their defaults, by name.
        """
        # No part of the adapter has a search.
        if not self._thread.searches:
            return None
        # An argument that is not known here may change what is measured.
        if not _KNOWN_ARGUMENTS.issuperset(arguments):
            return None
        if arguments.get("device_type") not in (None, "cuda"):
            return None
        # With `config.deterministic`, Inductor raises an error here unless it declared the measurement as harmless.
        if self._module.torch._inductor.config.deterministic and not arguments.get("is_vetted_benchmarking"):
            return None
        try:
            return Race(self._find_clock(), ALONE).alone(Runner(call)).time_us / 1000
        except Exception:
            # The call fails. Inductor makes it again, and handles the error.
            return None

    def race_launchers(
        self, autotuner: Any, launchers: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[Any, float]:
        """Race the launchers of a kernel, and return the time of each launcher in milliseconds.

        In a race the launchers take turns. A launcher is a candidate that is compiled and loaded.

        :param args: the arguments of the kernel's launch; ``kwargs`` as well.
        :returns: the times; an empty dictionary if Inductor has to measure the launchers one after the other.
        """
        # A race needs two launchers, and events of CUDA.
        if not self.is_used or len(launchers) < 2 or autotuner.device_props.type != "cuda":
            return {}
        search = self._thread.searches[-1]
        with self.hold_device():
            try:
                race = Race(self._find_clock(), progress=search.report_race)
                race.probe(build_runners(autotuner, launchers, args, kwargs))  # launches each a few times
                race.finish()  # times those that may win
            except Exception:
                # A launcher fails. Inductor measures all launchers again, and handles the error.
                return {}
        if race.disturbed:
            search.mark_disturbed()
        times_ms = {}
        for launcher, result in zip(launchers, race.results, strict=True):
            times_ms[launcher] = result.time_us / 1000
        # Inductor chooses the lowest time. The race may have chosen a launcher that is as good within the error, so
        # this launcher gets the lowest time.
        chosen_launcher = launchers[race.choice]
        times_ms[chosen_launcher] = min(times_ms.values())
        return times_ms

    def _find_clock(self) -> Clock:
        """Return the clock of this thread's searches, which is made for the first measurement."""
        if self._thread.clock is None:
            self._thread.clock = self.make_clock()
        return self._thread.clock


class BenchmarkGpuHook(CallHook):
    """Times a call in a search, in place of ``benchmark_gpu``."""

    def __init__(self, benchmarks: Benchmarks) -> None:
        self._benchmarks = benchmarks

    def ask(self, call: HookedCall) -> CallResult | None:
        """Time the call; None has Inductor time it."""
        time_ms = self._benchmarks.find_time_ms(call.arguments["_callable"], _list_changed_arguments(call))
        if time_ms is None:
            return None
        return CallResult(time_ms)


def _list_changed_arguments(call: HookedCall) -> dict[str, Any]:
    """Return the arguments of Inductor's benchmark that differ from their defaults, by name.

    The arguments of ``**kwargs`` have no defaults, so all of them are returned.
    """
    changed: dict[str, Any] = {}
    for parameter in inspect.signature(call.original).parameters.values():
        value = call.arguments[parameter.name]
        has_default = parameter.default is not parameter.empty
        if parameter.kind is parameter.VAR_KEYWORD:
            changed.update(value)
        elif has_default and value != parameter.default:
            changed[parameter.name] = value
    return changed


class KernelArguments:
    """The arguments of one launch. Inductor copies the tensors that the kernel changes before each measurement.

    A tensor whose copy does not fit on the device is copied to the host, and restored after the measurement.

    :param args: the arguments of the kernel's launch; ``kwargs`` as well.
    """

    def __init__(self, autotuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs
        self._autotuner = autotuner
        interface = autotuner.get_device_interface()
        self.stream = interface.get_raw_stream(interface.current_device())
        self._host_copies = autotuner.copy_args_to_cpu_if_needed(*args, **kwargs)

    def copy(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return arguments that a launch may change."""
        copied: tuple[Sequence[Any], dict[str, Any]] = self._autotuner.maybe_clone_args(
            self._host_copies, *self.args, **self.kwargs
        )
        self._autotuner.reset_to_zero_args(*self.args, **self.kwargs)
        return copied

    def restore(self) -> None:
        """Restore the tensors that were copied to the host to their values before the launch."""
        self._autotuner.restore_args_from_cpu(self._host_copies)


class TimedLauncher:
    """Launches a candidate as ``CachingAutotuner.bench`` does: the copies of changed arguments are not timed."""

    def __init__(self, launcher: Any, arguments: KernelArguments) -> None:
        self._launcher = launcher
        self._arguments = arguments
        self._args: Sequence[Any] = arguments.args
        self._kwargs = arguments.kwargs

    def before_launch(self) -> None:
        self._args, self._kwargs = self._arguments.copy()

    def run(self) -> object:
        return self._launcher(*self._args, **self._kwargs, stream=self._arguments.stream)

    def after_launch(self, error: Exception | None) -> None:
        # The copies are no longer needed, and their memory is freed.
        self._args, self._kwargs = self._arguments.args, self._arguments.kwargs
        self._arguments.restore()


def build_runners(
    autotuner: Any, launchers: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Runner]:
    """Return a runner for each launcher.

    :param args: the arguments of the kernel's launch; ``kwargs`` as well.
    """
    arguments = KernelArguments(autotuner, args, kwargs)
    runners = []
    for launcher in launchers:
        timed = TimedLauncher(launcher, arguments)
        runners.append(Runner(timed.run, timed.before_launch, timed.after_launch))
    return runners


@dataclass(frozen=True)
class KernelRace:
    """A race between a loaded choice and the candidates that Inductor would measure. All of them are loaded.

    :param args: the kernel's arguments in its first launch; ``kwargs`` as well.
    :param compiled_s: the seconds that the compilation of the candidates took.
    """

    autotuner: Any
    choice: Candidate
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    benchmarks: Benchmarks
    compiled_s: float

    def build(self) -> Contest | str:
        """Return the contest, or the reason why the choice cannot be raced."""
        if self.autotuner.device_props.type != "cuda":
            return "the kernel is not on a GPU"
        if stream_is_capturing():
            return CAPTURED
        candidates = [Candidate(params=params) for params in self._list_launchers()]
        return Contest(candidates, self.build_runners, self.benchmarks.make_clock, spent_s=self.compiled_s)

    def build_runners(self, candidates: Sequence[Candidate]) -> dict[Candidate, Runner]:
        """Return a runner for each of the candidates."""
        launcher_by_params = self._list_launchers()
        launchers = [launcher_by_params[candidate.params] for candidate in candidates]
        runners = build_runners(self.autotuner, launchers, self.args, self.kwargs)
        return dict(zip(candidates, runners, strict=True))

    def _list_launchers(self) -> dict[Params, Any]:
        """Return the launchers that race, by params: the choice, then the candidates that Inductor measures.

        The choice may also be among these candidates. Both have the same params then, and race once.
        """
        launchers = autotuners.select_measurable(self.autotuner, self.autotuner.launchers)
        choice = autotuners.find_launcher(self.autotuner, self.choice)
        return {params_of(launcher.config): launcher for launcher in (choice, *launchers)}
