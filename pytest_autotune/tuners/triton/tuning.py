"""One search for the choice of a call: a race, or Triton's own benchmark. The module also races a loaded choice.

A call is a launch for which Triton's memory has no choice. Its candidates are Triton's ``Config`` objects. A cache
entry keeps each as a :class:`Candidate`, whose params are the values that the config gives to the kernel.

In a race, :class:`Race` launches all candidates in turns. Triton's own benchmark measures them one after the other.

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

    :param code: equal for candidates with the same machine code, of which the race launches only the first; None if
        the code is not known.
    """
    launcher = ConfigLauncher(call, config)
    return Runner(launcher.run, launcher.before_launch, launcher.after_launch, code=code)


# A search.

#: The reason why a search under the interpreter records nothing.
_DISTURBED = "a candidate failed, perhaps because another thread launched an interpreted kernel at the same time"


@dataclass(frozen=True)
class _ErrorsAndLabels:
    """The facts about measured candidates that stand beside their times. The autotuner itself keeps the times.

    :param error_by_config: the error of each candidate that failed.
    :param label_by_config: words about the measurement of each candidate that raced: ``+-0.05 us, 60 of 61 runs``.
    """

    error_by_config: Mapping[Any, BaseException]
    label_by_config: Mapping[Any, str] = field(default_factory=dict)


class CallSearch:
    """One search for a call: compiles and measures the candidates, and records the choice.

    :mod:`.choosing` calls :meth:`race`; if Triton's disk cache comes first, it calls :meth:`compile` instead. If the
    candidates did not race, it has Triton benchmark them in the context :meth:`benchmarking`. It then calls
    :meth:`record_benchmark`, or :meth:`record_error` after an error.

    :param configs: the candidates that pruning left.
    :param tuning: the session's object for this search, which records the result.
    :param can_compile: whether candidates can be compiled without a launch.
    :param interpreted_lookups: the identifier of a thread -> the number of its lookups of interpreted kernels. Other
        threads may disturb the search of an interpreted kernel. None for a compiled kernel.
    """

    def __init__(
        self,
        call: Call,
        configs: Sequence[Any],
        tuning: Tuning,
        *,
        can_compile: bool,
        interpreted_lookups: Counter[int] | None = None,
    ) -> None:
        self._call = call
        self._autotuner = call.autotuner
        self._configs = configs
        self._tuning = tuning
        self._can_compile = can_compile
        #: The object in which Triton keeps the arguments of the launch, to recognize a launch of another thread.
        self._triton_arguments = call.autotuner.nargs
        #: Watches for launches of other threads; None for a compiled kernel, which such launches do not disturb.
        self._interpreted_search: interpreter.InterpretedSearch | None = None
        if interpreted_lookups is not None:
            self._interpreted_search = interpreter.InterpretedSearch(interpreted_lookups)
        #: The contexts that are open while Triton benchmarks: the measurement on the device, and the noting of errors.
        self._benchmark_contexts = ExitStack()
        #: The error of each candidate that failed in Triton's benchmark, by config.
        self._benchmark_errors: dict[Any, BaseException] = {}

    def race(self, session: Session) -> bool:
        """Compile the candidates, race them and record the choice.

        :returns: whether the candidates raced. If they did, the choice is in the autotuner's memory. If not, Triton
            has to benchmark the candidates.
        :raises LaunchError: for an error that Triton's own benchmark would raise, too. Triton's benchmark takes only
            some errors for the failure of a single candidate.
        """
        # The kernel is interpreted, or the autotuned function is no kernel.
        if not self._can_compile:
            return False
        self.compile(session)
        code_by_config = load_ahead(self._call, self._configs)
        # A race waits for its launches, which is an error while the stream captures a CUDA graph.
        if stream_is_capturing():
            return False
        clocks = find_clocks(self._autotuner)
        # The autotuner has a benchmark that a race must not replace.
        if clocks is None:
            return False
        try:
            with self._tuning.measuring():
                result_by_config = self._launch_race(clocks, code_by_config)
        except LaunchError as error:
            self.record_error(error.kernel_error)
            raise
        self._record(_list_errors_and_labels(result_by_config, self._configs))
        return True

    def compile(self, session: Session) -> None:
        """Compile the candidates, if they can be compiled without a launch. Errors come again in the benchmark."""
        if self._can_compile:
            compile_candidates(self._call, self._configs, session, self._tuning)

    @contextmanager
    def benchmarking(self) -> Iterator[None]:
        """Hold the device for this measurement, and note the errors of candidates, while Triton benchmarks them."""
        with self._benchmark_contexts as contexts:
            contexts.enter_context(self._tuning.measuring())
            noting = noted_failures(self._autotuner, self._tuning, len(self._configs))
            self._benchmark_errors = contexts.enter_context(noting)
            yield

    def record_benchmark(self) -> None:
        """Record the result of Triton's benchmark, which left its choice in the autotuner's memory."""
        # The device is free again, and the autotuner has back its own do_bench, which _record looks at.
        self._benchmark_contexts.close()
        self._record(_ErrorsAndLabels(self._benchmark_errors))

    def record_error(self, error: Exception) -> None:
        """Record that every candidate failed, with the error that ended the search as the reason.

        An error that the next run may not have is not recorded.
        """
        # The error may be transient, such as a lack of memory.
        if not fails_again(error):
            return
        # Another thread launched the same kernel. Triton keeps the arguments of both launches in the same attribute, so
        # the arguments of the other launch may have caused the error.
        if not self._has_own_arguments():
            return
        # The kernel is interpreted, and a launch in another thread may have caused the error.
        if self._may_be_disturbed():
            return
        self._tuning.record_failure([describe_failure(error)])

    def _has_own_arguments(self) -> bool:
        """Whether the autotuner still has the arguments of this call. A launch in another thread replaces them."""
        return self._triton_arguments is not None and self._autotuner.nargs is self._triton_arguments

    def _may_be_disturbed(self) -> bool:
        """Whether an interpreted launch in another thread may have made candidates of this search fail."""
        return self._interpreted_search is not None and self._interpreted_search.may_be_disturbed()

    def _launch_race(
        self, clocks: DriverClocks, code_by_config: Mapping[Any, Hashable]
    ) -> Mapping[Any, CandidateResult]:
        """Race the candidates, and leave the autotuner in the state that Triton's own benchmark would leave.

        :param code_by_config: the code of each candidate; see :func:`build_runner`.
        :returns: the result of each candidate, by config.
        """
        started_s = HostTime.time()
        race = Race(clocks.make_clock(), expected=autotuners.list_candidate_errors(), progress=self._tuning.report_race)
        race.probe([build_runner(self._call, config, code_by_config.get(config)) for config in self._configs])
        results = race.finish()
        if race.disturbed:
            self._tuning.mark_disturbed()
        # If every candidate failed, Triton's own benchmark leaves the first candidate as the choice.
        choice = self._configs[0]
        if any(result.measured for result in results):
            choice = self._configs[race.choice]
        result_by_config: dict[Any, CandidateResult] = {}
        for config, result in zip(self._configs, results, strict=True):
            # If the list holds a config twice, the race launched only the first.
            result_by_config.setdefault(config, result)
        times_ms = {config: result.time_us / 1000 for config, result in result_by_config.items()}
        self._call.adopt(choice, times_ms, HostTime.time() - started_s)
        return result_by_config

    def _record(self, measured: _ErrorsAndLabels) -> None:
        """Record the choice and the times that a race or Triton's benchmark left in the autotuner.

        If every candidate failed, or the choice may be wrong, record a failure, or report why nothing is recorded.
        """
        triton_timings: Mapping[Any, object] = self._autotuner.configs_timings
        times_ms = {config: _median_ms(triton_timings.get(config)) for config in self._configs}
        some_failed = not all(map(math.isfinite, times_ms.values()))
        # Another thread may have made a candidate fail that would be the fastest. The choice may then be wrong.
        if some_failed and self._may_be_disturbed():
            self._tuning.not_recorded(_DISTURBED)
            return
        choice = self._autotuner.cache[self._call.tuning_key]
        # The choice has no time. Triton chooses such a candidate only if every candidate failed.
        if not math.isfinite(times_ms.get(choice, math.inf)):
            self._record_failure_of_all(measured.error_by_config)
            return
        # The times of the interpreter depend on the load of the host. The first candidate within their large noise is
        # the choice, so that equal runs record equal choices.
        if self._autotuner.do_bench is interpreter.interpreter_benchmark:
            choice = _choose_with_noise(times_ms, NOISE_OF_INTERPRETER)
            self._autotuner.cache[self._call.tuning_key] = choice
        candidate_by_config = self._build_candidates(times_ms, measured)
        self._tuning.record(candidate_by_config[choice], list(candidate_by_config.values()))

    def _build_candidates(self, times_ms: Mapping[Any, float], measured: _ErrorsAndLabels) -> dict[Any, Candidate]:
        """Return the candidates that were measured or failed, as entries hold them, by config.

        :param times_ms: the time of each candidate in milliseconds, infinite if it has none.
        """
        candidate_by_config: dict[Any, Candidate] = {}
        for config, params in zip(self._configs, distinct_params(self._configs), strict=True):
            # Triton takes the candidates with F=1 and F=True for one, and launches the first.
            is_repeated = config in candidate_by_config
            if config in self._autotuner.configs_timings and not is_repeated:
                error = measured.error_by_config.get(config)
                label = measured.label_by_config.get(config, "")
                candidate_by_config[config] = build_candidate(params, times_ms[config], error, label)
        return candidate_by_config

    def _record_failure_of_all(self, error_by_config: Mapping[Any, BaseException]) -> None:
        """Record that every candidate failed, if the next run will see the same. Else report why nothing is recorded.

        :param error_by_config: the errors that are known. A kernel's own benchmark may hide the error of a candidate.
        """
        errors = list(error_by_config.values())
        transient_errors = [error for error in errors if not fails_again(error)]
        every_error_is_known = len(errors) == len(self._configs)
        if every_error_is_known and not transient_errors:
            self._tuning.record_failure(map(describe_failure, errors))
            return
        reason = EVERY_CANDIDATE_FAILED
        if transient_errors:
            reason += f" ({describe_failure(transient_errors[0])})"
        self._tuning.not_recorded(reason)


def _list_errors_and_labels(
    result_by_config: Mapping[Any, CandidateResult], configs: Sequence[Any]
) -> _ErrorsAndLabels:
    """Return the error of each candidate that failed in a race, and words about the measurement of each.

    :param configs: the candidates in the order of the race. ``CandidateResult.same_as`` is a position in this list.
    """
    error_by_config = {}
    label_by_config = {}
    for config, result in result_by_config.items():
        if result.failed:
            error_by_config[config] = result.failed
        # The race launched an earlier candidate with the same code in place of this one.
        if result.same_as is not None:
            label_by_config[config] = f"the same code as with {configs[result.same_as]}"
        else:
            label_by_config[config] = str(result.measured)
    return _ErrorsAndLabels(error_by_config, label_by_config)


def _choose_with_noise(times_ms: Mapping[Any, float], noise: float) -> Any:
    """Return the first candidate whose time differs from the shortest time by no more than the noise.

    :param times_ms: the time of each candidate in milliseconds, infinite if it has none.
    :param noise: the tolerated difference as a part of the time: 0.1 is 10 %.
    """
    configs = list(times_ms)
    time_by_position = {}
    for position, config in enumerate(configs):
        if math.isfinite(times_ms[config]):
            time_by_position[position] = times_ms[config]
    return configs[choose_candidate(time_by_position, noise, tie=noise)]


def _median_ms(timing: object) -> float:
    """Return the median time from the result of a benchmark; infinity if the result holds no number.

    Examples: ``[0.2, 0.1, 0.3]`` and ``0.2`` give 0.2, ``None`` gives infinity.

    :param timing: the result in milliseconds: ``[median, p20, p80]``, or only the median. A kernel's own benchmark may
        give any object.
    """
    median = timing
    if isinstance(timing, (list, tuple)) and timing:
        median = timing[0]
    try:
        median_ms = float(median)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.inf
    if math.isnan(median_ms):
        return math.inf
    return median_ms


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

    ``--autotune-verify`` makes such races.

    :param config_by_params: the candidates by their params.
    """

    call: Call
    config_by_params: Mapping[tuple[Value, ...], Any]
    session: Session

    def build(self) -> Contest | str:
        """Return the contest. If the candidates cannot race, return the reason in words, for the report."""
        autotuner = self.call.autotuner
        if autotuners.is_interpreted(autotuner):
            return "the kernel was interpreted, so times mean nothing"
        if not autotuners.launches_triton_kernel(autotuner):
            return "the kernel is a Python function that launches other kernels"
        if stream_is_capturing():
            return CAPTURED
        clocks = find_clocks(autotuner)
        if clocks is None:
            return autotuners.explain_no_race(type(autotuner)) or "the kernel has its own benchmark"
        return Contest(
            candidates=[Candidate(params=params) for params in self.config_by_params],
            ready=self.build_runners,
            make_clock=clocks.make_clock,
            expected=autotuners.list_candidate_errors(),
        )

    def build_runners(self, candidates: Sequence[Candidate]) -> dict[Candidate, Runner]:
        """Compile and load candidates, and return the runners of the candidates that did not fail."""
        configs = [self.config_by_params[candidate.params] for candidate in candidates]
        compile_candidates(self.call, configs, self.session)
        code_by_config = load_ahead(self.call, configs)
        runner_by_candidate = {}
        for candidate, config in zip(candidates, configs, strict=True):
            if config in code_by_config:  # else the candidate failed
                runner_by_candidate[candidate] = build_runner(self.call, config, code_by_config[config])
        return runner_by_candidate


# The failures of candidates.


class _NotingBenchmark:
    """Replaces the ``do_bench`` of an autotuner, and notes why candidates failed.

    :param do_bench: the function that measures. Triton calls it for each candidate.
    :param tuning: shows the number of each candidate before its measurement.
    :param config_count: the number of candidates.
    """

    def __init__(self, do_bench: Callable[..., object], tuning: Tuning, config_count: int) -> None:
        self._do_bench = do_bench
        self._tuning = tuning
        self._config_count = config_count
        self._begun_count = 0
        self.error_by_config: dict[Any, BaseException] = {}

    def measure(self, kernel_call: Callable[[], object], *args: Any, **kwargs: Any) -> object:
        self._begun_count += 1
        self._tuning.report_trial(self._begun_count, self._config_count)
        try:
            return self._do_bench(kernel_call, *args, **kwargs)
        except Exception as error:
            self.error_by_config[autotuners.find_launched_config(kernel_call)] = error
            raise


@contextmanager
def noted_failures(autotuner: Any, tuning: Tuning, config_count: int) -> Iterator[dict[Any, BaseException]]:
    """Note the errors of candidates while an autotuner benchmarks them. Triton itself keeps no error.

    :param tuning: shows the number of each candidate before its measurement.
    :param config_count: the number of candidates.
    :returns: a context that yields a dict, to which each failed candidate adds its error, by config.
    """
    original = autotuner.do_bench
    noting = _NotingBenchmark(original, tuning, config_count)
    autotuner.do_bench = noting.measure
    try:
        yield noting.error_by_config
    except BaseException:
        # An error ended the benchmark. It has a traceback, whose frames refer to this dict. If the dict kept the error,
        # this circle would keep the tensors of the call alive until the next garbage collection.
        noting.error_by_config.clear()
        raise
    finally:
        autotuner.do_bench = original
    # These errors are only described and not raised. Their tracebacks would keep the tensors of the call alive.
    for error in noting.error_by_config.values():
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
