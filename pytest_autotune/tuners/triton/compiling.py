"""Compiling and loading candidates of Triton before the GPU is held."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.together.shared_work import UndividedWork, Work
from pytest_autotune.tuners.triton.call import Call
from pytest_autotune.tuners.triton.compile_jobs import CompileJobs, weight_of
from pytest_autotune.tuners.triton.internals import async_compile, compiled_kernels, kernel_layers


def _compile(call: Call, config: Any) -> Any:
    """Compile the kernel for one candidate, without a launch."""
    if config.pre_hook is not None:
        config.pre_hook(call.arguments(config))  # may change what is compiled, such as a descriptor's block shape
    kwargs = {**call.kwargs, "warmup": True}
    return call.autotuner.fn.run(*call.args, **kwargs, **config.all_kwargs())


def compile_candidates(
    call: Call,
    configs: Sequence[Any],
    run: TuningRun,
    work: Work,
    tries: Callable[[int, int], object] = lambda number, of: None,
    *,
    helping: bool = False,
    ending: ExitStack | None = None,
) -> list[int]:
    """Compile candidates before the GPU is held, side by side where this Triton can.

    What fails here fails again in the benchmark, which knows what to do about it: it is compiled again there, since it
    may have failed only because it was compiled beside others. What ended two children is not compiled here: whoever
    asks Triton for it gets an error that says so.

    :param work: whose pieces are the candidates, by their position.
    :param tries: called before each candidate that is compiled, with its number from 1 and how many there are.
    :param helping: the search is another worker's.
    :param ending: where it is waited for children that end; None: before this returns.
    :returns: the candidates that other workers have taken, by their position.
    """
    mode = async_compile.async_compile_mode() if run.policy.cores > 1 else None
    if mode is None:
        return _one_after_the_other(call, configs, run, work, tries)
    with ExitStack() as stack:
        stack.callback(async_compile.forget_failures, call.autotuner.fn)
        jobs = CompileJobs(run, work, tries, ending, helping=helping)
        stack.callback(jobs.forget_frames)
        stack.enter_context(mode(jobs, ignore_errors=True))
        stack.enter_context(jobs)
        for number, config in enumerate(configs):
            jobs.next = number
            with suppress(Exception):
                _compile(call, config)
        return jobs.compile(lambda number: weight_of(configs[number]))


def _one_after_the_other(
    call: Call, configs: Sequence[Any], run: TuningRun, work: Work, tries: Callable[[int, int], object]
) -> list[int]:
    others = []
    for number, config in enumerate(configs):
        tries(number + 1, len(configs))
        with run.core(), work.take(number) as is_mine:
            if not is_mine:
                others.append(number)
                continue
            with suppress(Exception):
                _compile(call, config)
    return others


def fetch_compiled(
    call: Call, configs: Sequence[Any], run: TuningRun, work: Work, numbers: Sequence[int], ending: ExitStack
) -> None:
    """Take from Triton's cache what other workers have compiled; what is not there is compiled here.

    :param ending: as of :func:`compile_candidates`.
    """
    for number in numbers:
        work.wait_for(number)
    compile_candidates(call, [configs[number] for number in numbers], run, UndividedWork(), ending=ending)


def compile_and_load(call: Call, config: Any) -> Any:
    """Compile and load the kernel for one candidate, which the launch needs anyway.

    :returns: Triton's compiled kernel.
    """
    kernel = _compile(call, config)
    compiled_kernels.load(kernel)
    return kernel


def load_ahead(call: Call, configs: Sequence[Any]) -> dict[Any, Hashable]:
    """Load the kernels of all candidates before the GPU is held; what fails here fails again in the race.

    :returns: what each launches, see :func:`launched_code`.
    """
    codes: dict[Any, Hashable] = {}
    if not stream_is_capturing():
        for config in configs:
            with suppress(Exception):
                codes[config] = launched_code(call, config, compile_and_load(call, config))
    return codes


def launched_code(call: Call, config: Any, kernel: Any) -> Hashable:
    """What tells candidates apart that are launched with other code, or in another way; None where that is not known.

    Candidates that differ in ``num_stages`` alone are often compiled to the same code: a kernel without a loop that
    Triton pipelines has no stages.

    :param kernel: what the candidate was compiled to.
    """
    code = compiled_kernels.machine_code(kernel)
    # A grid may depend on what the kernel is given; and what heuristics between the two give it, on all there is.
    is_called_directly = kernel_layers.jit_function(call.autotuner.fn) is call.autotuner.fn
    names = {*config.kwargs, *call.autotuner.arg_names}
    given = [one for one in config.all_kwargs().items() if one[0] in names or not is_called_directly]
    return None if code is None else (code, repr(sorted(given)), config.pre_hook)
