"""Compiling and loading candidates of Triton before the GPU is held."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.compile_pool import CompilePool
from pytest_autotune.tuners.triton.compilations import CompiledElsewhere, leave_to_others
from pytest_autotune.tuners.triton.identity import Call
from pytest_autotune.tuners.triton.internals import autotuners, compiler
from pytest_autotune.tuners.triton.internals.compile_time import CompileTime


def _compile(call: Call, config: Any) -> Any:
    """Compile the kernel for one candidate, without a launch."""
    if config.pre_hook is not None:
        with compiler.compile_at_once():
            config.pre_hook(call.arguments(config))  # may change what is compiled, such as a descriptor's block shape
    kwargs = {**call.kwargs, "warmup": True}
    with compiler.remove_unfinished_hashes():
        return call.autotuner.fn.run(*call.args, **kwargs, **config.all_kwargs())


class _CandidatePool(CompilePool):
    """Threads that compile the candidates of a call; the calling thread compiles what no other thread may."""

    def submit(self, job: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Compile one candidate, as Triton asks its executor."""
        source = compiler.find_job_source(job)
        if source is None or CompileTime.of(source.fn, source.constants.values()).needs_thread:
            return self._compile_in_calling_thread(job)
        return super().submit(_compile_at_once, job)

    def _compile_in_calling_thread(self, job: Callable[[], object]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(_compile_at_once(job))
        except Exception as error:
            future.set_exception(error)
        return future


class _HelpersPool(_CandidatePool):
    """Threads that compile candidates for another worker, which compiles itself what no other thread may."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, leave_to_others)

    def _compile_in_calling_thread(self, job: Callable[[], object]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(CompiledElsewhere())
        return future


def _compile_at_once(job: Callable[[], object]) -> object:
    """Do the job of a pool, with which the context of the calling thread has come that submits to the pool."""
    with compiler.compile_at_once(), compiler.remove_unfinished_hashes():
        return job()


def compile_candidates(
    call: Call, configs: Sequence[Any], session: Session, tries: Callable[[int, int], object] = lambda number, of: None
) -> None:
    """Compile candidates before the GPU is held, in threads where this Triton can.

    What fails here fails again in the benchmark, which knows what to do about it: it is compiled again there, since it
    may have failed only because it was compiled beside others.

    :param tries: called before each candidate that is compiled alone, with its number from 1 and how many there are.
    """
    if session.policy.compile_threads > 1 and compiler.compiles_in_pools():
        # Begun last, the heaviest would be waited for alone.
        ordered = sorted(configs, key=_weight_of, reverse=True)
        _compile_in_threads(call, ordered, _CandidatePool(min(session.policy.compile_threads, len(configs))))
        return
    for number, config in enumerate(configs, 1):
        tries(number, len(configs))
        with suppress(Exception):
            _compile(call, config)


def help_to_compile(call: Call, configs: Sequence[Any], session: Session) -> None:
    """Compile candidates of a tuning that another worker is at, into Triton's cache on disk.

    That one begins with the heaviest, this one with the lightest; what another one compiles is left to it.
    """
    if compiler.compiles_in_pools():
        pool = _HelpersPool(min(session.policy.compile_threads, len(configs)))
        _compile_in_threads(call, sorted(configs, key=_weight_of), pool)


def _compile_in_threads(call: Call, configs: Sequence[Any], pool: CompilePool) -> None:
    with compiler.compile_in_pool(pool, call.autotuner.fn), pool:
        for config in configs:
            with suppress(Exception):
                _compile(call, config)


def _weight_of(config: Any) -> float:
    """How long a candidate takes to compile, beside others: what one thread of it holds, about.

    Of 48 tiles of a matmul the slowest took nine times as long as the fastest; by this number they are nearly in order.
    """
    sizes = [value for value in config.kwargs.values() if isinstance(value, int) and value > 1]
    return math.prod(sizes) / max(getattr(config, "num_warps", None) or 1, 1)


def compile_and_load(call: Call, config: Any) -> Any:
    """Compile and load the kernel for one candidate, which the launch needs anyway.

    :returns: Triton's compiled kernel.
    """
    kernel = _compile(call, config)
    compiler.load(kernel)
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
    code = compiler.find_machine_code(kernel)
    # A grid may depend on what the kernel is given; and what heuristics between the two give it, on all there is.
    is_called_directly = autotuners.find_jit_function(call.autotuner.fn) is call.autotuner.fn
    names = {*config.kwargs, *call.autotuner.arg_names}
    given = [one for one in config.all_kwargs().items() if one[0] in names or not is_called_directly]
    return None if code is None else (code, repr(sorted(given)), config.pre_hook)
