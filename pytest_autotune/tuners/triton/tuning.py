"""One search of Triton's: its own benchmark, or the race in its place; and the race of a loaded choice."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
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
from pytest_autotune.tuners.shared.candidates import EVERY_CANDIDATE_FAILED, clear_tracebacks, rounded_us
from pytest_autotune.tuners.triton import interpreter
from pytest_autotune.tuners.triton.compiling import compile_candidates, load_ahead
from pytest_autotune.tuners.triton.identity import Call, distinct_params
from pytest_autotune.tuners.triton.internals import autotuners, compiler


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


def runner(call: Call, config: Any, code: Hashable = None) -> Runner:
    """One launch as ``Autotuner._bench`` makes it.

    Copies for ``restore_value`` and zeroing for ``reset_to_zero`` are hooks of Triton's too, and are not timed.

    :param code: see :class:`Runner`.
    """
    autotuner = call.autotuner
    current = dict(call.kwargs, **config.all_kwargs())
    named = call.arguments(config)

    def before() -> None:
        if config.pre_hook:
            config.pre_hook(named)
        autotuner.pre_hook(named)

    def after(error: Exception | None) -> None:
        autotuner.post_hook(named, exception=error)

    return Runner(partial(autotuner.fn.run, *call.args, **current), before, after, code=code)


def tune(
    call: Call,
    configs: Sequence[Any],
    bench_fn: Callable[[], None],
    tuning: Tuning,
    session: Session,
    *,
    is_compiled: bool,
    threads: interpreter.InterpreterThreads | None = None,
) -> None:
    """Search: compile, measure, and record what was chosen.

    :param bench_fn: measures the candidates as Triton does.
    :param is_compiled: candidates can be compiled without a launch.
    :param threads: those that have launched interpreted kernels; None if this kernel is not interpreted.
    """
    autotuner = call.autotuner
    arguments = autotuner.nargs
    interpreted = threads.begin_search() if threads is not None else None
    codes: Mapping[Any, Hashable] = {}
    if is_compiled:
        compile_candidates(call, configs, session, tuning.report_trial)
        codes = load_ahead(call, configs)
    failed: dict[Any, BaseException] = {}
    with tuning.measuring():
        try:
            raced = _race(call, configs, codes, tuning) if is_compiled else None
            if raced is None:
                with noted_failures(autotuner, failed, partial(tuning.report_trial, of=len(configs))):
                    bench_fn()
        except Exception as error:
            # Triton keeps the arguments of a call in the autotuner, where another thread's call puts its own.
            is_of_this_call = autotuner.nargs is arguments is not None and not _is_disturbed(interpreted)
            if fails_again(error) and is_of_this_call:
                tuning.record_failure([failure_text(error)])
            raise
        if raced is not None:
            failed = {config: result.failed for config, result in raced.items() if result.failed}
        timings: Mapping[Any, object] = autotuner.configs_timings
        times_ms = {config: _median_ms(timings.get(config)) for config in configs}
        if _is_disturbed(interpreted) and not all(map(math.isfinite, times_ms.values())):
            tuning.not_recorded("a candidate failed while other threads launched interpreted kernels")
            return
        best = autotuner.cache[call.tuning_key]
        if not math.isfinite(times_ms.get(best, math.inf)):
            if len(failed) == len(configs) and all(map(fails_again, failed.values())):
                tuning.record_failure(map(failure_text, failed.values()))
            else:
                # The benchmark of the kernel has kept the reason to itself, or it may have been a passing one.
                why = next((failure_text(error) for error in failed.values() if not fails_again(error)), "")
                tuning.not_recorded(f"{EVERY_CANDIDATE_FAILED}{f' ({why})' if why else ''}")
            return
        if autotuner.do_bench is interpreter.interpreter_benchmark:
            best = autotuner.cache[call.tuning_key] = _settled(times_ms, NOISE_OF_INTERPRETER)
    labels = {config: _label(config, result, configs) for config, result in raced.items()} if raced else {}
    candidates = {
        config: candidate(params, times_ms[config], failed.get(config), labels.get(config, ""))
        for config, params in zip(configs, distinct_params(configs), strict=True)
        if config in timings
    }
    tuning.record(candidates[best], list(candidates.values()))


def _is_disturbed(interpreted: interpreter.InterpretedSearch | None) -> bool:
    return interpreted is not None and interpreted.may_be_disturbed()


def _race(
    call: Call, configs: Sequence[Any], codes: Mapping[Any, Hashable], tuning: Tuning
) -> Mapping[Any, CandidateResult] | None:
    """Race the candidates with the launches of Triton's own benchmark, and leave the autotuner as that would.

    :param codes: what candidates launch, by config; of those with the same code one is launched for all.
    :returns: what became of each; None where the kernel's benchmark is not Triton's own and is to be used as it is.
    :raises Exception: what Triton's own benchmark does not take for a failure of one candidate.
    """
    if stream_is_capturing():
        return None
    clocks = find_clocks(call.autotuner)
    if clocks is None:
        return None
    started = HostTime.time()
    running = Race(clocks.make_clock(), expected=autotuners.list_candidate_errors(), progress=tuning.report_race)
    running.probe([runner(call, config, codes.get(config)) for config in configs])
    raced = running.finish()
    if running.disturbed:
        tuning.mark_disturbed()
    # Of one that is given twice the first is launched.
    outcomes = dict(reversed(list(zip(configs, raced, strict=True))))
    results = {config: outcomes[config] for config in configs}
    best = configs[running.choice] if any(result.measured for result in raced) else configs[0]
    times_ms = {config: result.time_us / 1000 for config, result in results.items()}
    call.adopt(best, times_ms, HostTime.time() - started)
    return results


def _label(config: Any, result: CandidateResult, configs: Sequence[Any]) -> str:
    if result.same_as is None:
        return str(result.measured)
    return f"the same code as with {configs[result.same_as]}"


def _settled(times_ms: Mapping[Any, float], noise: float) -> Any:
    configs = list(times_ms)
    finite = {number: times_ms[config] for number, config in enumerate(configs) if math.isfinite(times_ms[config])}
    return configs[choose_candidate(finite, noise, tie=noise)]


def _median_ms(timing: object) -> float:
    """The median of what a benchmarker returned: [median, p20, p80], or a number, in milliseconds."""
    median = timing[0] if isinstance(timing, (list, tuple)) and timing else timing
    try:
        time_ms = float(median)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.inf
    return math.inf if math.isnan(time_ms) else time_ms


def candidate(
    params: tuple[Value, ...], time_ms: float, error: BaseException | None = None, label: str = ""
) -> Candidate:
    """A candidate as entries hold it, with its time or why it has none.

    :param error: that it failed with, where that is known.
    """
    if not math.isfinite(time_ms):
        reason = failure_text(error) if error else "did not compile, or needs more than the device has"
        return Candidate(params=params, failed=reason)
    return Candidate(params=params, time_us=rounded_us(time_ms * 1000), label=label)


def contest_of(call: Call, offered: Mapping[tuple[Value, ...], Any], session: Session) -> Contest | str:
    """What is raced where a loaded choice is, or why it cannot be.

    :param offered: the candidates by their params.
    """
    if autotuners.is_interpreted(call.autotuner):
        return "it was interpreted, and times mean nothing"
    if not autotuners.launches_triton_kernel(call.autotuner):
        return "it is a Python function, whose launches are its own"
    if stream_is_capturing():
        return CAPTURED
    clocks = find_clocks(call.autotuner)
    if clocks is None:
        return autotuners.explain_no_race(type(call.autotuner)) or "its kernel brings a benchmark of its own"

    def ready(candidates: Sequence[Candidate]) -> dict[Candidate, Runner]:
        configs = {candidate: offered[candidate.params] for candidate in candidates}
        compile_candidates(call, list(configs.values()), session)
        codes = load_ahead(call, list(configs.values()))  # what fails there fails alone, as in a search
        return {one: runner(call, config, codes[config]) for one, config in configs.items() if config in codes}

    return Contest(
        [Candidate(params=params) for params in offered], ready, clocks.make_clock, autotuners.list_candidate_errors()
    )


@contextmanager
def noted_failures(
    autotuner: Any, failed: dict[Any, BaseException], tries: Callable[[int], object] = lambda number: None
) -> Iterator[None]:
    """Note why a candidate failed, which Triton itself forgets.

    :param failed: gets the error of each candidate whose benchmark raised one.
    :param tries: called before each candidate, with its number from 1.
    """
    original = autotuner.do_bench
    numbers = count(1)

    def noting(kernel_call: Callable[[], object], *args: Any, **kwargs: Any) -> object:
        tries(next(numbers))
        try:
            return original(kernel_call, *args, **kwargs)
        except Exception as error:
            failed[autotuners.find_launched_config(kernel_call)] = error
            raise

    autotuner.do_bench = noting
    try:
        yield
    except BaseException:
        failed.clear()  # what is raised keeps its frames, and they are not to lead back to it
        raise
    finally:
        autotuner.do_bench = original
    for error in failed.values():  # none of them is raised any more
        clear_tracebacks(error)


def fails_again(error: BaseException) -> bool:
    """Whether a candidate that failed so will fail so in the next run, too, as far as the error shows.

    What Triton's compiler refuses, what needs more than the device has, and a call that is wrong will.
    Not an error of the device or of its driver, not a lack of memory, whoever has taken it, and not what Triton's
    interpreter raises, which launches in other threads change under it.
    """
    causes = (error, error.__cause__)
    if any(isinstance(one, (MemoryError, OSError)) or type(one).__module__.startswith("torch") for one in causes):
        return False
    return isinstance(error, (TypeError, ValueError, KeyError)) or compiler.is_refusal(error)


def failure_text(error: BaseException) -> str:
    """An error in one line: Triton's messages begin with the source and end with what is wrong."""
    return describe_error(error, compiler.find_message(error))
