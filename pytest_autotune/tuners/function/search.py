"""One search: compile, check and measure candidates, and choose the fastest that is right."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, as_completed, wait
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from pytest_autotune.devices import torch_cuda
from pytest_autotune.tuners.function.bench import Bench, Tells, tells_nobody
from pytest_autotune.tuners.function.plan import Found, Hold, Loss, Plan, Trial
from pytest_autotune.tuners.function.space import Configuration, TuningError, params_of
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.shared.compile_pool import CompilePool

#: A configuration, and what is made of it; None where nothing is compiled.
_Compiled = tuple[Configuration, "Future[object] | None"]


def search(plan: Plan, workers: int, hold: Hold, tries: Tells = tells_nobody, races: Tells = tells_nobody) -> Found:
    """Search a space for the fastest configuration.

    Compiling and the first run of a candidate, which may compile as well, take place beside
    what others measure. Then all candidates race, or are measured by a benchmark of the caller's own.

    :param workers: how many candidates may be compiled at a time.
    :param hold: has the device to itself, as far as other pytest processes go.
    :param tries: called for each candidate of a batch, with its number from 1 and how many there are.
    :param races: called with how many candidates are still in the race, and how many there are.
    :raises TuningError: when no candidate could be used, or the device no longer works.
    """
    bench = Bench(plan, hold, races)
    with ExitStack() as stack:
        compiled_of = stack.enter_context(_compiler(plan, bench, workers))
        batches = stack.enter_context(closing(plan.strategy.batches(plan.space, workers)))
        batch = next(batches, None)
        while batch is not None:
            numbers = {configuration: number for number, configuration in enumerate(batch)}
            checked = [Trial(configuration) for configuration in batch]
            for number, (configuration, compiled) in enumerate(compiled_of(batch), 1):
                tries(number, len(batch))
                checked[numbers[configuration]] = bench.check(configuration, compiled, bench.runs_before_measuring)
            times = [None if one.measured is None else one.median_us for one in bench.measure(checked)]
            try:
                batch = batches.send(times)
            except StopIteration:
                batch = None
    return bench.finish()


def compare(plan: Plan, config: object, workers: int, hold: Hold) -> Loss:
    """Compare one configuration with the fastest of its space; takes what :func:`search` takes.

    :raises TuningError: when the configuration cannot be used, or :func:`search` raises it.
    :raises ValueError: when it is not in the space.
    """
    wanted = plan.space.find(params_of(config))
    if wanted is None:
        raise ValueError(f"not in the space: {config!r}")
    found = search(plan, workers, hold)
    choice = next((trial for trial in found.trials if trial.configuration == wanted), None)
    if choice is None:  # the strategy left it out
        choice = Trial(wanted, None if plan.callbacks.compile is None else plan.callbacks.compile(wanted.config))
    others: list[Trial] = []
    if not choice.failed:
        bench = Bench(plan, hold)
        pair = [choice] if choice.configuration == found.best.configuration else [choice, found.best]
        bench.measure([replace(trial, measured=None) for trial in pair])
        choice, *others = bench.finish().trials
    if choice.failed:
        raise TuningError(f"{wanted} cannot be used here: {choice.failed}")
    best = min([choice, *others], key=lambda trial: trial.median_us)
    return Loss(choice.candidate, best.candidate)


def check(plan: Plan, configurations: Sequence[Configuration], workers: int) -> Iterator[tuple[Trial, Runner]]:
    """Compile configurations, run each once and verify it, as a search does; with what launches it.

    :raises TuningError: when the device no longer works.
    """
    bench = Bench(plan, nullcontext)
    with _compiler(plan, bench, workers) as compiled_of:
        for configuration, compiled in compiled_of(configurations):
            trial = bench.check(configuration, compiled)
            yield trial, bench.runner(trial)


@contextmanager
def _compiler(
    plan: Plan, bench: Bench, workers: int
) -> Iterator[Callable[[Iterable[Configuration]], Iterator[_Compiled]]]:
    """What compiles configurations side by side, in threads, for one search.

    Each comes back as soon as it is done, or failed; where the host takes the times, which compilers would lengthen,
    when all are.
    """
    compile = plan.callbacks.compile
    if compile is None:
        yield lambda configurations: ((configuration, None) for configuration in configurations)
        return
    with CompilePool(workers, bench.use_device()) as pool:

        def compiled_of(configurations: Iterable[Configuration]) -> Iterator[_Compiled]:
            futures = {pool.submit(compile, one.config): one for one in configurations}
            if not bench.times_events:
                wait(futures)
            for future in as_completed(futures) if bench.times_events else list(futures):
                yield futures[future], future

        yield compiled_of


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Give the generators of Python, numpy and torch (on the CPU and CUDA) their state back afterwards.

    So what a test draws does not depend on whether a search took place before.

    A library that is first imported inside is left as it is, and so are generators of the caller's own.
    """
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        numpy: Any = sys.modules.get("numpy.random")
        if numpy is not None:
            stack.callback(numpy.set_state, numpy.get_state())
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            # The state of a GPU cannot be read while it captures a graph; nothing can be tuned then.
            if (cuda := torch_cuda()) is not None:
                stack.callback(cuda.set_rng_state_all, cuda.get_rng_state_all())
        yield
