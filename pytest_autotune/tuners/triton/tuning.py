"""One search of Triton: its own benchmark, or the race in place of it; and the race of a loaded choice."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_autotune.cache.foreign_text import describe_error
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Value
from pytest_autotune.cache.ties import NOISE_OF_INTERPRETER, choose_candidate
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.measuring.clocks import Clock, Runner, torch_clock
from pytest_autotune.tuners.measuring.launching import CandidateResult
from pytest_autotune.tuners.measuring.race import CAPTURED, Contest, Race
from pytest_autotune.tuners.shared.candidates import EVERY_CANDIDATE_FAILED, LaunchError, clear_tracebacks, rounded_us
from pytest_autotune.tuners.triton import interpreter
from pytest_autotune.tuners.triton.compiling import compile_candidates, load_ahead
from pytest_autotune.tuners.triton.identity import Call, distinct_params
from pytest_autotune.tuners.triton.internals import autotuners, compiler

# The launches.


@dataclass(frozen=True)
class DriverFlush:
    """Empties the L2 cache with the buffer of Triton's driver."""

    driver: Any
    buffer: Any

    def flush(self) -> None:
        self.driver.clear_cache(self.buffer)


@dataclass(frozen=True)
class DriverClocks:
    """Makes the clock for a race: by the events and the buffer of Triton's driver."""

    driver: Any

    def make_clock(self) -> Clock:
        interface = self.driver.get_device_interface()
        try:
            buffer = self.driver.get_empty_cache_for_benchmark()
        except sys.modules["torch"].OutOfMemoryError:  # a smaller buffer may fit
            return torch_clock(True, interface)
        return replace(torch_clock(False, interface), cache_flush=DriverFlush(self.driver, buffer))


def find_clocks(autotuner: Any) -> DriverClocks | None:
    """Return the maker of the clock for a race; None if the kernel's own benchmark is to be used as it is."""
    driver = autotuners.find_benchmark_driver(autotuner)
    if driver is None:
        return None
    return DriverClocks(driver)


class ConfigLauncher:
    """Launches a candidate as ``Autotuner._bench`` does.

    Triton's hooks also make the copies for ``restore_value`` and the zeros for ``reset_to_zero``. They are not timed.
    """

    def __init__(self, call: Call, config: Any) -> None:
        self._autotuner = call.autotuner
        self._config = config
        self._args = call.args
        self._kwargs = {**call.kwargs, **config.all_kwargs()}
        self._named_arguments = call.arguments(config)

    def before_launch(self) -> None:
        if self._config.pre_hook:
            self._config.pre_hook(self._named_arguments)
        self._autotuner.pre_hook(self._named_arguments)

    def run(self) -> object:
        return self._autotuner.fn.run(*self._args, **self._kwargs)

    def after_launch(self, error: Exception | None) -> None:
        self._autotuner.post_hook(self._named_arguments, exception=error)


def build_runner(call: Call, config: Any, code: Hashable = None) -> Runner:
    """Return the runner of a candidate.

    :param code: see :class:`Runner`.
    """
    launcher = ConfigLauncher(call, config)
    return Runner(launcher.run, launcher.before_launch, launcher.after_launch, code=code)


# A search.


@dataclass(frozen=True)
class _Measurements:
    """The measurements of a search.

    :param errors: the error of each candidate that failed.
    :param labels: words about the measurement of each candidate that raced.
    """

    errors: Mapping[Any, BaseException]
    labels: Mapping[Any, str] = field(default_factory=dict)


class CallSearch:
    """One search for a call: compiles and measures the candidates, and records the choice.

    Candidates that can race do so in :meth:`race`. Else Triton benchmarks them inside of :meth:`benchmarking`, and
    :meth:`record_benchmark` or :meth:`record_error` follows.

    :param configs: the candidates that pruning left.
    :param is_compiled: whether candidates can be compiled without a launch.
    :param threads: the threads that launched interpreted kernels; None if this kernel is not interpreted.
    """

    def __init__(
        self,
        call: Call,
        configs: Sequence[Any],
        tuning: Tuning,
        *,
        is_compiled: bool,
        threads: interpreter.InterpreterThreads | None = None,
    ) -> None:
        self._call = call
        self._autotuner = call.autotuner
        self._configs = configs
        self._tuning = tuning
        self._is_compiled = is_compiled
        self._arguments = call.autotuner.nargs
        self._interpreted_search = None
        if threads is not None:
            self._interpreted_search = threads.begin_search()
        #: The device, and the notes of failed candidates, while Triton benchmarks.
        self._benchmark_exits = ExitStack()
        self._benchmark_errors: dict[Any, BaseException] = {}

    def race(self, session: Session) -> bool:
        """Compile the candidates, race them and record the choice; returns False if they cannot race.

        The choice is in the autotuner's memory afterwards, and recorded if later runs can use it.

        :raises LaunchError: for errors that Triton's own benchmark does not take for the failure of one candidate.
        """
        if not self._is_compiled:
            return False
        compile_candidates(self._call, self._configs, session, self._tuning)
        codes = load_ahead(self._call, self._configs)
        if stream_is_capturing():
            return False
        clocks = find_clocks(self._autotuner)
        if clocks is None:
            return False
        try:
            with self._tuning.measuring():
                results = self._launch_race(clocks, codes)
        except LaunchError as error:
            self.record_error(error.kernel_error)
            raise
        self._record(_build_measurements(results, self._configs))
        return True

    @contextmanager
    def benchmarking(self) -> Iterator[None]:
        """Take the device, and note why candidates fail, while Triton benchmarks them."""
        with self._benchmark_exits as exits:
            exits.enter_context(self._tuning.measuring())
            noting = noted_failures(self._autotuner, self._tuning, len(self._configs))
            self._benchmark_errors = exits.enter_context(noting)
            yield

    def record_benchmark(self) -> None:
        """Record the choice that Triton's benchmark left in the autotuner's memory, if later runs can use it."""
        self._benchmark_exits.close()
        self._record(_Measurements(self._benchmark_errors))

    def record_error(self, error: Exception) -> None:
        """Record that every candidate failed, if the error of one candidate will end the next search, too."""
        if fails_again(error) and self._has_own_arguments() and not self._may_be_disturbed():
            self._tuning.record_failure([describe_failure(error)])

    def _has_own_arguments(self) -> bool:
        """Whether the autotuner still has the arguments of this call: a call in another thread replaces them."""
        return self._arguments is not None and self._autotuner.nargs is self._arguments

    def _may_be_disturbed(self) -> bool:
        return self._interpreted_search is not None and self._interpreted_search.may_be_disturbed()

    def _launch_race(self, clocks: DriverClocks, codes: Mapping[Any, Hashable]) -> Mapping[Any, CandidateResult]:
        """Race the candidates with the launches of Triton's own benchmark, and leave the autotuner as it would.

        :param codes: the code of each candidate. The race launches only the first candidate of those with equal code.
        :returns: the result of each candidate.
        """
        started_s = HostTime.time()
        race = Race(clocks.make_clock(), expected=autotuners.list_candidate_errors(), progress=self._tuning.report_race)
        race.probe([build_runner(self._call, config, codes.get(config)) for config in self._configs])
        race_results = race.finish()
        if race.disturbed:
            self._tuning.mark_disturbed()
        results: dict[Any, CandidateResult] = {}
        for config, result in zip(self._configs, race_results, strict=True):
            results.setdefault(config, result)  # the list may hold a config twice: the first was launched
        best = self._configs[0]
        if any(result.measured for result in race_results):
            best = self._configs[race.choice]
        times_ms = {config: result.time_us / 1000 for config, result in results.items()}
        self._call.adopt(best, times_ms, HostTime.time() - started_s)
        return results

    def _record(self, measurements: _Measurements) -> None:
        """Record the choice in the autotuner's memory, if later runs can use it."""
        timings: Mapping[Any, object] = self._autotuner.configs_timings
        times_ms = {config: _median_ms(timings.get(config)) for config in self._configs}
        choice = self._find_choice(times_ms, measurements.errors)
        if choice is None:
            return
        if self._autotuner.do_bench is interpreter.interpreter_benchmark:
            choice = _choose_with_noise(times_ms, NOISE_OF_INTERPRETER)
            self._autotuner.cache[self._call.tuning_key] = choice
        candidates = {}
        for config, params in zip(self._configs, distinct_params(self._configs), strict=True):
            if config in timings:
                error = measurements.errors.get(config)
                label = measurements.labels.get(config, "")
                candidates[config] = build_candidate(params, times_ms[config], error, label)
        self._tuning.record(candidates[choice], list(candidates.values()))

    def _find_choice(self, times_ms: Mapping[Any, float], errors: Mapping[Any, BaseException]) -> Any:
        """Return the choice in the autotuner's memory. If later runs cannot use it, report why and return None.

        :param times_ms: the time of each candidate in milliseconds, infinite if it has none.
        """
        if self._may_be_disturbed() and not all(map(math.isfinite, times_ms.values())):
            self._tuning.not_recorded("a candidate failed while other threads launched interpreted kernels")
            return None
        choice = self._autotuner.cache[self._call.tuning_key]
        if math.isfinite(times_ms.get(choice, math.inf)):
            return choice
        if len(errors) == len(self._configs) and all(map(fails_again, errors.values())):
            self._tuning.record_failure(map(describe_failure, errors.values()))
            return None
        # The kernel's benchmark does not show its reason, or an error may not occur again.
        reason = EVERY_CANDIDATE_FAILED
        passing_errors = [error for error in errors.values() if not fails_again(error)]
        if passing_errors:
            reason += f" ({describe_failure(passing_errors[0])})"
        self._tuning.not_recorded(reason)
        return None


def _build_measurements(results: Mapping[Any, CandidateResult], configs: Sequence[Any]) -> _Measurements:
    errors = {}
    labels = {}
    for config, result in results.items():
        if result.failed:
            errors[config] = result.failed
        labels[config] = str(result.measured)
        if result.same_as is not None:
            labels[config] = f"the same code as with {configs[result.same_as]}"
    return _Measurements(errors, labels)


def _choose_with_noise(times_ms: Mapping[Any, float], noise: float) -> Any:
    """Return the first candidate that is as fast as the fastest within the noise, a share of its time."""
    configs = list(times_ms)
    finite = {}
    for number, config in enumerate(configs):
        if math.isfinite(times_ms[config]):
            finite[number] = times_ms[config]
    return configs[choose_candidate(finite, noise, tie=noise)]


def _median_ms(timing: object) -> float:
    """Return the median of a benchmark's result in milliseconds, infinite if it has none.

    :param timing: ``[median, p20, p80]``, or a number, in milliseconds.
    """
    median = timing
    if isinstance(timing, (list, tuple)) and timing:
        median = timing[0]
    try:
        time_ms = float(median)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.inf
    if math.isnan(time_ms):
        return math.inf
    return time_ms


def build_candidate(
    params: tuple[Value, ...], time_ms: float, error: BaseException | None = None, label: str = ""
) -> Candidate:
    """Return a candidate as entries hold it, with its time or with the reason why it has none.

    :param time_ms: infinite if the candidate failed.
    :param error: the candidate's error, None if it is not known.
    """
    if math.isfinite(time_ms):
        return Candidate(params=params, time_us=rounded_us(time_ms * 1000), label=label)
    if error is None:
        return Candidate(params=params, failed="did not compile, or needs more than the device has")
    return Candidate(params=params, failed=describe_failure(error))


# The race of a loaded choice.


@dataclass(frozen=True)
class CallContest:
    """Brings the candidates of a call to the race of a loaded choice.

    :param config_by_params: the candidates by their params.
    """

    call: Call
    config_by_params: Mapping[tuple[Value, ...], Any]
    session: Session

    def build(self) -> Contest | str:
        """Return the contest, or the reason why the choice cannot be raced."""
        autotuner = self.call.autotuner
        if autotuners.is_interpreted(autotuner):
            return "it was interpreted, and times mean nothing"
        if not autotuners.launches_triton_kernel(autotuner):
            return "it is a Python function, whose launches are its own"
        if stream_is_capturing():
            return CAPTURED
        clocks = find_clocks(autotuner)
        if clocks is None:
            return autotuners.explain_no_race(type(autotuner)) or "its kernel brings a benchmark of its own"
        candidates = [Candidate(params=params) for params in self.config_by_params]
        return Contest(candidates, self.build_runners, clocks.make_clock, autotuners.list_candidate_errors())

    def build_runners(self, candidates: Sequence[Candidate]) -> dict[Candidate, Runner]:
        """Compile and load candidates, and return a runner for each that did not fail."""
        configs = {candidate: self.config_by_params[candidate.params] for candidate in candidates}
        compile_candidates(self.call, list(configs.values()), self.session)
        codes = load_ahead(self.call, list(configs.values()))  # a candidate that fails drops out, as in a search
        runners = {}
        for candidate, config in configs.items():
            if config in codes:
                runners[candidate] = build_runner(self.call, config, codes[config])
        return runners


# The failures of candidates.


class _NotingBenchmark:
    """Replaces an autotuner's benchmark, and notes why candidates failed.

    :param config_count: the number of candidates.
    """

    def __init__(self, benchmark: Callable[..., object], tuning: Tuning, config_count: int) -> None:
        self._benchmark = benchmark
        self._tuning = tuning
        self._config_count = config_count
        self._benchmarked = 0
        #: The errors of the candidates that failed, by config.
        self.errors: dict[Any, BaseException] = {}

    def measure(self, kernel_call: Callable[[], object], *args: Any, **kwargs: Any) -> object:
        self._benchmarked += 1
        self._tuning.report_trial(self._benchmarked, self._config_count)
        try:
            return self._benchmark(kernel_call, *args, **kwargs)
        except Exception as error:
            self.errors[autotuners.find_launched_config(kernel_call)] = error
            raise


@contextmanager
def noted_failures(autotuner: Any, tuning: Tuning, config_count: int) -> Iterator[dict[Any, BaseException]]:
    """Note why candidates fail in an autotuner's benchmark: Triton itself forgets it.

    :param tuning: shows each candidate before it is measured.
    :param config_count: the number of candidates.
    :returns: a context that yields the error of each failed candidate.
    """
    original = autotuner.do_bench
    noting = _NotingBenchmark(original, tuning, config_count)
    autotuner.do_bench = noting.measure
    try:
        yield noting.errors
    except BaseException:
        noting.errors.clear()  # the raised error keeps its frames, and the frames must not lead back to the error
        raise
    finally:
        autotuner.do_bench = original
    for error in noting.errors.values():  # none of them is raised any more
        clear_tracebacks(error)


def fails_again(error: BaseException) -> bool:
    """Whether a candidate with this error will fail in the next run, too, as far as the error shows.

    Such errors are refusals of Triton's compiler, a need for more than the device has, and a wrong call. Other errors
    may not come again: errors of the device or its driver, a lack of memory, and errors of Triton's interpreter, which
    launches in other threads disturb.
    """
    for linked in (error, error.__cause__):
        if isinstance(linked, (MemoryError, OSError)) or type(linked).__module__.startswith("torch"):
            return False
    return isinstance(error, (TypeError, ValueError, KeyError)) or compiler.is_refusal(error)


def describe_failure(error: BaseException) -> str:
    """Return an error in one line. A message of Triton begins with the source and ends with the fault."""
    return describe_error(error, compiler.find_message(error))
