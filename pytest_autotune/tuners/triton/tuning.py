"""One search for the choice of a call: a race, or Triton's own benchmark. The module also races a loaded choice.

:mod:`.choosing` decides that a call needs a search, and :mod:`.compiling` compiles the candidates.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Value
from pytest_autotune.cache.ties import NOISE_OF_INTERPRETER, choose_candidate
from pytest_autotune.cache.wording import describe_error, rounded_us
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.measuring.clocks import Clock, Runner, torch_clock
from pytest_autotune.tuners.measuring.launching import CandidateResult
from pytest_autotune.tuners.measuring.race import CAPTURED, Contest, Race
from pytest_autotune.tuners.shared.candidates import EVERY_CANDIDATE_FAILED, LaunchError, clear_tracebacks
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
    """Makes the clock for a race from the events of Triton's driver and its buffer for emptying the L2 cache."""

    driver: Any

    def make_clock(self) -> Clock:
        interface = self.driver.get_device_interface()
        try:
            buffer = self.driver.get_empty_cache_for_benchmark()
        except sys.modules["torch"].OutOfMemoryError:
            # Triton's buffer does not fit into the GPU's memory. The clock of torch makes a smaller buffer.
            return torch_clock(flush_l2=True, interface=interface)
        return replace(torch_clock(flush_l2=False, interface=interface), cache_flush=DriverFlush(self.driver, buffer))


def find_clocks(autotuner: Any) -> DriverClocks | None:
    """Return the maker of the clock for a race; None if the autotuner has a benchmark that a race must not replace."""
    driver = autotuners.find_benchmark_driver(autotuner)
    if driver is None:
        return None
    return DriverClocks(driver)


class ConfigLauncher:
    """Launches a candidate in the same steps as ``Autotuner._bench``: hooks, kernel, hook.

    The hooks of the autotuner also copy the tensors of ``restore_value``, and fill the tensors of ``reset_to_zero``
    with zeros. The clock times only :meth:`run`, so the hooks do not count.
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

#: The reason why a search under the interpreter records nothing.
_DISTURBED = "a candidate failed, perhaps because another thread launched an interpreted kernel at the same time"


@dataclass(frozen=True)
class _Measurements:
    """The results of a search's measurements except the times, which the autotuner keeps.

    :param errors: the error of each candidate that failed, by config.
    :param labels: words about the measurement of each candidate that raced, by config: ``+-0.05 us, 60 of 61 runs``.
    """

    errors: Mapping[Any, BaseException]
    labels: Mapping[Any, str] = field(default_factory=dict)


class CallSearch:
    """One search for a call: compiles and measures the candidates, and records the choice.

    The user of this class calls :meth:`race`. If the candidates cannot race, Triton benchmarks them in the context
    :meth:`benchmarking`. Afterwards the user calls :meth:`record_benchmark`, or :meth:`record_error` after an error.

    :param configs: the candidates that pruning left.
    :param is_compiled: whether candidates can be compiled without a launch.
    :param interpreted_lookups: the number of lookups of interpreted kernels, by the identifier of their thread; None if
        this kernel is not interpreted.
    """

    def __init__(
        self,
        call: Call,
        configs: Sequence[Any],
        tuning: Tuning,
        *,
        is_compiled: bool,
        interpreted_lookups: Counter[int] | None = None,
    ) -> None:
        self._call = call
        self._autotuner = call.autotuner
        self._configs = configs
        self._tuning = tuning
        self._is_compiled = is_compiled
        self._arguments = call.autotuner.nargs
        self._interpreted_search = None
        if interpreted_lookups is not None:
            self._interpreted_search = interpreter.InterpretedSearch(interpreted_lookups)
        #: The contexts that are open while Triton benchmarks: the measurement on the device, and the noting of errors.
        self._benchmark_exits = ExitStack()
        self._benchmark_errors: dict[Any, BaseException] = {}

    def race(self, session: Session) -> bool:
        """Compile the candidates, race them and record the choice.

        :returns: whether the candidates raced. If they did, the choice is in the autotuner's memory.
        :raises LaunchError: for an error that Triton's own benchmark would raise, too. Triton's benchmark takes only
            some errors for the failure of a single candidate.
        """
        # The kernel is interpreted, or the autotuned function is no kernel.
        if not self._is_compiled:
            return False
        compile_candidates(self._call, self._configs, session, self._tuning)
        codes = load_ahead(self._call, self._configs)
        # A race waits for its launches, which is an error while the stream captures a CUDA graph.
        if stream_is_capturing():
            return False
        clocks = find_clocks(self._autotuner)
        # The autotuner has a benchmark that a race must not replace.
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
        """Hold the device for this measurement, and note the errors of candidates, while Triton benchmarks them."""
        with self._benchmark_exits as exits:
            exits.enter_context(self._tuning.measuring())
            noting = noted_failures(self._autotuner, self._tuning, len(self._configs))
            self._benchmark_errors = exits.enter_context(noting)
            yield

    def record_benchmark(self) -> None:
        """Record the result of Triton's benchmark, which left its choice in the autotuner's memory."""
        self._benchmark_exits.close()
        self._record(_Measurements(self._benchmark_errors))

    def record_error(self, error: Exception) -> None:
        """Record the error that ended the search. The entry says that every candidate failed.

        Nothing is recorded if the error may have a cause that the next run does not have.
        """
        # The error is transient, such as a lack of memory.
        if not fails_again(error):
            return
        # A call in another thread replaced the arguments, and they may have caused the error.
        if not self._has_own_arguments():
            return
        # A launch in another thread may have caused the error.
        if self._may_be_disturbed():
            return
        self._tuning.record_failure([describe_failure(error)])

    def _has_own_arguments(self) -> bool:
        """Whether the autotuner still has the arguments of this call. A call in another thread replaces them."""
        return self._arguments is not None and self._autotuner.nargs is self._arguments

    def _may_be_disturbed(self) -> bool:
        """Whether an interpreted launch in another thread may have made candidates of this search fail."""
        return self._interpreted_search is not None and self._interpreted_search.may_be_disturbed()

    def _launch_race(self, clocks: DriverClocks, codes: Mapping[Any, Hashable]) -> Mapping[Any, CandidateResult]:
        """Race the candidates, and leave the autotuner in the state that Triton's own benchmark would leave.

        :param codes: the code of each candidate. If several candidates have equal code, the race launches the first.
        :returns: the result of each candidate.
        """
        started_s = HostTime.time()
        race = Race(clocks.make_clock(), expected=autotuners.list_candidate_errors(), progress=self._tuning.report_race)
        race.probe([build_runner(self._call, config, codes.get(config)) for config in self._configs])
        race_results = race.finish()
        if race.disturbed:
            self._tuning.mark_disturbed()
        results = _map_first_results(self._configs, race_results)
        times_ms = {config: result.time_us / 1000 for config, result in results.items()}
        # If every candidate failed, Triton's own benchmark leaves the first candidate as the choice.
        choice = self._configs[0]
        if any(result.measured for result in race_results):
            choice = self._configs[race.choice]
        self._call.adopt(choice, times_ms, HostTime.time() - started_s)
        return results

    def _record(self, measurements: _Measurements) -> None:
        """Record the choice that is in the autotuner's memory.

        If later runs could not use the choice, record a failure, or report why nothing is recorded.
        """
        timings: Mapping[Any, object] = self._autotuner.configs_timings
        times_ms = {config: _median_ms(timings.get(config)) for config in self._configs}
        # Another thread may have made a candidate fail that would be the fastest. The choice may then be wrong.
        if self._may_be_disturbed() and not all(map(math.isfinite, times_ms.values())):
            self._tuning.not_recorded(_DISTURBED)
            return
        choice = self._autotuner.cache[self._call.tuning_key]
        # Every candidate failed. Triton takes the first candidate as the choice then.
        if not math.isfinite(times_ms.get(choice, math.inf)):
            self._record_failure_of_all(measurements.errors)
            return
        # The interpreter's times vary by 10 %. The first candidate within the noise is the choice, so that equal runs
        # record equal choices.
        if self._autotuner.do_bench is interpreter.interpreter_benchmark:
            choice = _choose_with_noise(times_ms, NOISE_OF_INTERPRETER)
            self._autotuner.cache[self._call.tuning_key] = choice
        candidates = self._build_candidates(times_ms, measurements)
        self._tuning.record(candidates[choice], list(candidates.values()))

    def _build_candidates(self, times_ms: Mapping[Any, float], measurements: _Measurements) -> dict[Any, Candidate]:
        """Return the candidates that were measured or failed, as entries hold them, by config.

        :param times_ms: the time of each candidate in milliseconds, infinite if it has none.
        """
        candidates = {}
        for config, params in zip(self._configs, distinct_params(self._configs), strict=True):
            if config in self._autotuner.configs_timings:
                error = measurements.errors.get(config)
                label = measurements.labels.get(config, "")
                candidates[config] = build_candidate(params, times_ms[config], error, label)
        return candidates

    def _record_failure_of_all(self, errors: Mapping[Any, BaseException]) -> None:
        """Record that every candidate failed, if the next run will see the same. Else report why nothing is recorded.

        :param errors: the errors by candidate. A kernel's own benchmark may hide the error of a candidate.
        """
        # The error of each candidate is known and will come again.
        if len(errors) == len(self._configs) and all(map(fails_again, errors.values())):
            self._tuning.record_failure(map(describe_failure, errors.values()))
            return
        reason = EVERY_CANDIDATE_FAILED
        transient_errors = [error for error in errors.values() if not fails_again(error)]
        if transient_errors:
            reason += f" ({describe_failure(transient_errors[0])})"
        self._tuning.not_recorded(reason)


def _map_first_results(configs: Sequence[Any], race_results: Sequence[CandidateResult]) -> dict[Any, CandidateResult]:
    """Return the result of each candidate. If the list holds a config twice, the race launched only the first."""
    results: dict[Any, CandidateResult] = {}
    for config, result in zip(configs, race_results, strict=True):
        results.setdefault(config, result)
    return results


def _build_measurements(results: Mapping[Any, CandidateResult], configs: Sequence[Any]) -> _Measurements:
    """Return the errors and the labels of a race.

    :param configs: the candidates in the order of the race. If a candidate has the same code as an earlier candidate,
        its result has the position of the earlier candidate in this list.
    """
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
    """Return the first candidate whose time differs from the shortest time by no more than the noise.

    :param times_ms: the time of each candidate in milliseconds, infinite if it has none.
    :param noise: the tolerated difference as a part of the time: 0.1 is 10 %.
    """
    configs = list(times_ms)
    times_by_position = {}
    for position, config in enumerate(configs):
        if math.isfinite(times_ms[config]):
            times_by_position[position] = times_ms[config]
    return configs[choose_candidate(times_by_position, noise, tie=noise)]


def _median_ms(timing: object) -> float:
    """Return the median of a benchmark's result in milliseconds; infinity if the result holds no number.

    :param timing: the result in milliseconds: ``[median, p20, p80]``, or only the median.
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
    """Return a candidate as entries hold it: with its time, or with the reason of its failure.

    :param time_ms: the time in milliseconds; infinite if the candidate failed.
    :param error: the error of a failed candidate; None if a benchmark has hidden the error.
    """
    if math.isfinite(time_ms):
        return Candidate(params=params, time_us=rounded_us(time_ms * 1000), label=label)
    if error is None:
        return Candidate(params=params, failed="did not compile, or needs more than the device has")
    return Candidate(params=params, failed=describe_failure(error))


# The race of a loaded choice.


@dataclass(frozen=True)
class CallContest:
    """Builds the race in which a loaded choice competes with the other candidates of its call.

    :param config_by_params: the candidates by their params.
    """

    call: Call
    config_by_params: Mapping[tuple[Value, ...], Any]
    session: Session

    def build(self) -> Contest | str:
        """Return the contest, or one line with the reason why the candidates cannot race."""
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
        """Compile and load candidates, and return the runners of the candidates that did not fail."""
        configs = {candidate: self.config_by_params[candidate.params] for candidate in candidates}
        compile_candidates(self.call, list(configs.values()), self.session)
        codes = load_ahead(self.call, list(configs.values()))
        runners = {}
        for candidate, config in configs.items():
            if config in codes:  # else the candidate failed
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
    """Note the errors of candidates in an autotuner's benchmark. Triton itself keeps no error.

    :param tuning: shows the number of each candidate before its measurement.
    :param config_count: the number of candidates.
    :returns: a context that yields the error of each failed candidate.
    """
    original = autotuner.do_bench
    noting = _NotingBenchmark(original, tuning, config_count)
    autotuner.do_bench = noting.measure
    try:
        yield noting.errors
    except BaseException:
        # The raised error keeps its frames. A frame that leads back to the error would be a circle, which keeps the
        # tensors of the call alive until the next garbage collection.
        noting.errors.clear()
        raise
    finally:
        autotuner.do_bench = original
    # These errors are only described and not raised. Their frames would keep the tensors of the call alive.
    for error in noting.errors.values():
        clear_tracebacks(error)


def fails_again(error: BaseException) -> bool:
    """Whether a candidate that failed with this error will also fail in the next run.

    Three kinds of errors come again: Triton's compiler refuses the kernel, the kernel needs more than the device has,
    or the call is wrong. Other errors are transient: an error of the device or its driver, a lack of memory, or an
    error of Triton's interpreter, in which launches of other threads can cause errors.
    """
    # Triton may raise its own error because of a transient error. The transient error is then the cause.
    for linked in (error, error.__cause__):
        if isinstance(linked, (MemoryError, OSError)) or type(linked).__module__.startswith("torch"):
            return False
    return isinstance(error, (TypeError, ValueError, KeyError)) or compiler.is_refusal(error)


def describe_failure(error: BaseException) -> str:
    """Return an error in one line. Triton's messages show the source first, so the line shows only the fault."""
    return describe_error(error, compiler.find_message(error))
