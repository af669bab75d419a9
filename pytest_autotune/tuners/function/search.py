"""One search: compile, check and measure candidates, and choose the fastest that is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace

from pytest_autotune.cache.model import Value
from pytest_autotune.tuners.function.benches import Bench, bench_of
from pytest_autotune.tuners.function.compiling import Compiled, compiler
from pytest_autotune.tuners.function.errors import TuningError
from pytest_autotune.tuners.function.plan import Found, Hold, Loss, Plan, Trial
from pytest_autotune.tuners.function.space import Configuration, params_of
from pytest_autotune.tuners.measuring.clocks import Runner

_Tells = Callable[[int, int], object]


def _tells_nobody(number: int, of: int) -> None: ...


def search(
    plan: Plan,
    on_gpu: bool,
    workers: int,
    hold: Hold,
    tries: _Tells = _tells_nobody,
    races: _Tells = _tells_nobody,
) -> Found:
    """Search a space for the fastest configuration.

    Compiling and the first run of a candidate, which may compile as well, take place beside
    what others measure. Then all candidates race. With a benchmark of the caller's own each is
    measured by it as soon as it is compiled.

    :param workers: how many candidates may be compiled at a time.
    :param hold: has the device to itself, as far as other pytest processes go.
    :param tries: called for each candidate of a batch, with its number from 1 and how many there are.
    :param races: called with how many candidates are still in the race, and how many there are.
    :raises TuningError: when no candidate could be used, or the device no longer works.
    """
    bench = bench_of(plan, on_gpu, hold, races)
    _try_all(plan, bench, workers, tries)
    return bench.finish()


def compare(plan: Plan, config: object, on_gpu: bool, workers: int, hold: Hold) -> Loss:
    """Compare one configuration with the fastest of its space; takes what :func:`search` takes.

    :raises TuningError: when the configuration cannot be used, or :func:`search` raises it.
    :raises ValueError: when it is not in the space.
    """
    wanted = plan.space.find(params_of(config))
    if wanted is None:
        raise ValueError(f"not in the space: {config!r}")
    found = search(plan, on_gpu, workers, hold)
    choice = next((trial for trial in found.trials if trial.configuration == wanted), None)
    if choice is None:  # the strategy left it out
        compiled = None if plan.callbacks.compile is None else plan.callbacks.compile(wanted.config)
        choice = Trial(wanted, compiled)
    if choice.failed:
        raise TuningError(f"{wanted} cannot be used here: {choice.failed}")
    bench = bench_of(plan, on_gpu, hold)
    pair = [choice] if choice.configuration == found.best.configuration else [choice, found.best]
    bench.measure([replace(trial, measured=None) for trial in pair])
    choice, *others = bench.finish().trials
    if choice.failed:
        raise TuningError(f"{wanted} cannot be used here: {choice.failed}")
    best = min([choice, *others], key=lambda trial: trial.median_us)
    return Loss(choice.candidate, best.candidate)


def why_unusable(plan: Plan, configuration: Configuration, on_gpu: bool) -> str:
    """Why a search would leave a configuration out, which is compiled and run once for that; empty where it would not.

    :raises TuningError: when the device no longer works.
    """
    return "; ".join(trial.failed for trial, _ in _checked(plan, [configuration], on_gpu, 1))


def runners(
    plan: Plan, configurations: Sequence[Configuration], on_gpu: bool, workers: int
) -> dict[tuple[Value, ...], Runner]:
    """What launches those of some configurations that a search would not leave out, by their params.

    :raises TuningError: when the device no longer works.
    """
    found = {}
    for trial, runner in _checked(plan, configurations, on_gpu, workers):
        if not trial.failed:
            found[trial.configuration.params] = runner
    return {one.params: found[one.params] for one in configurations if one.params in found}


def _checked(
    plan: Plan, configurations: Sequence[Configuration], on_gpu: bool, workers: int
) -> Iterator[tuple[Trial, Runner]]:
    bench = bench_of(plan, on_gpu, nullcontext)
    with ExitStack() as stack:
        compiled_of: Callable[[Iterable[Configuration]], Iterator[Compiled]] = _nothing_to_compile
        if plan.callbacks.compile is not None:
            compiling = compiler(plan.callbacks.compile, plan.compiling, workers, False, bench.use_device())
            compiled_of = stack.enter_context(compiling)
        for configuration, compiled in compiled_of(configurations):
            trial = bench.usable(configuration, compiled)
            yield trial, bench.runner(trial)


def _try_all(plan: Plan, bench: Bench, workers: int, tries: _Tells) -> None:
    """Compile, check and measure what the strategy names.

    :raises TuningError: when nothing can be used.
    """
    workers = plan.compiling.workers or workers
    with ExitStack() as stack:
        compiled_of: Callable[[Iterable[Configuration]], Iterator[Compiled]] = _nothing_to_compile
        if plan.callbacks.compile is not None:
            overlap = plan.compiling.overlap
            overlap = bench.times_events if overlap is None else overlap
            begin_thread = bench.use_device()
            compiling = compiler(plan.callbacks.compile, plan.compiling, workers, overlap, begin_thread)
            compiled_of = stack.enter_context(compiling)
        batches = stack.enter_context(closing(plan.strategy.batches(plan.space, workers)))
        batch = next(batches, None)
        while batch is not None:
            numbers = {configuration: number for number, configuration in enumerate(batch)}
            checked = [Trial(configuration) for configuration in batch]
            for number, (configuration, compiled) in enumerate(compiled_of(batch), 1):
                tries(number, len(batch))
                checked[numbers[configuration]] = bench.check(configuration, compiled)
            measured = bench.measure(checked)
            try:
                batch = batches.send([_time_us(trial) for trial in measured])
            except StopIteration:
                batch = None


def _nothing_to_compile(configurations: Iterable[Configuration]) -> Iterator[Compiled]:
    return ((configuration, None) for configuration in configurations)


def _time_us(trial: Trial) -> float | None:
    return None if trial.measured is None else trial.measured.median_us
