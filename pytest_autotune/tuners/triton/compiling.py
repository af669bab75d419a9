"""Compiles and loads Triton's candidates before a search takes the GPU lock.

Other workers can measure on the GPU while this worker compiles. :mod:`.compile_watcher` makes sure that no two
processes compile the same kernel at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.shared.compile_pool import CompilePool
from pytest_autotune.tuners.triton.compile_watcher import CompiledElsewhere, leave_to_others
from pytest_autotune.tuners.triton.identity import Call
from pytest_autotune.tuners.triton.internals import autotuners, compiler
from pytest_autotune.tuners.triton.internals.compile_time import CompileTime


def _compile(call: Call, config: Any) -> Any:
    """Compile the kernel for one candidate, without a launch.

    :returns: Triton's compiled kernel, or a stand-in if the candidate was submitted to a pool.
    """
    # The hook of a candidate may set a value that is compiled in, such as the block shape of a descriptor.
    if config.pre_hook is not None:
        with compiler.compile_at_once():
            config.pre_hook(call.arguments(config))
    kwargs = {**call.kwargs, "warmup": True}
    with compiler.remove_unfinished_hashes():
        return call.autotuner.fn.run(*call.args, **kwargs, **config.all_kwargs())


class _CandidatePool(CompilePool):
    """Threads that compile the candidates of a call.

    Some kernels run user code while they are compiled, and this code may depend on the thread. The calling thread
    itself compiles candidates of such a kernel, see :class:`CompileTime`.
    """

    def submit(self, job: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Compile a candidate. Triton calls this method for each candidate, because the pool is its executor.

        :param job: compiles the candidate. Triton passes no arguments for it.
        """
        source = compiler.find_job_source(job)
        # This Triton has another kind of job, so nothing is known of the kernel.
        if source is None:
            return self._compile_in_calling_thread(job)
        if CompileTime.from_kernel(source.fn, source.constants.values()).needs_launching_thread:
            return self._compile_in_calling_thread(job)
        return super().submit(_do_job, job)

    def _compile_in_calling_thread(self, job: Callable[[], object]) -> Future[Any]:
        """Compile the candidate now, and return a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(_do_job(job))
        except Exception as error:
            future.set_exception(error)
        return future


class _HelpersPool(_CandidatePool):
    """Threads that compile candidates for another worker, which tunes the same problem.

    The pool leaves out candidates that need the launching thread, because this thread is in the other worker.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(workers, leave_to_others)

    def _compile_in_calling_thread(self, job: Callable[[], object]) -> Future[Any]:
        """Leave the candidate to the other worker, because the calling thread here is not the launching thread."""
        future: Future[Any] = Future()
        future.set_exception(CompiledElsewhere())
        return future


def _do_job(job: Callable[[], object]) -> object:
    """Do a job that Triton submitted to a pool.

    The job runs in a copy of the submitting thread's context, in which Triton's mode for pools is on. A hook in the job
    may launch another kernel. With the mode on, Triton would submit that kernel to the pool and not launch it. The
    function therefore turns the mode off.
    """
    with compiler.compile_at_once(), compiler.remove_unfinished_hashes():
        return job()


def compile_candidates(call: Call, configs: Sequence[Any], session: Session, tuning: Tuning | None = None) -> None:
    """Compile candidates, in threads if this version of Triton can do so.

    The function ignores errors. A candidate may fail only because others compile at the same time, for example for a
    lack of memory. The benchmark compiles a failed candidate again, and reports its error.

    :param tuning: shows the number of the candidate, if the candidates compile one after the other.
    """
    uses_threads = session.policy.compile_threads > 1 and compiler.compiles_in_pools()
    if uses_threads:
        # The heaviest candidate comes first. If it began last, the other threads would be idle while it compiles.
        heaviest_first = sorted(configs, key=_weigh, reverse=True)
        pool = _CandidatePool(min(session.policy.compile_threads, len(configs)))
        _compile_in_threads(call, heaviest_first, pool)
        return
    for number, config in enumerate(configs, 1):
        if tuning is not None:
            tuning.report_trial(number, len(configs))
        with suppress(Exception):
            _compile(call, config)


def help_to_compile(call: Call, configs: Sequence[Any], session: Session) -> None:
    """Compile candidates into Triton's cache on disk, for a tuning of another worker.

    The other worker begins with the heaviest candidate, and this worker with the lightest, so that they meet in the
    middle. This worker skips a candidate that another worker compiles now.
    """
    if compiler.compiles_in_pools():
        pool = _HelpersPool(min(session.policy.compile_threads, len(configs)))
        _compile_in_threads(call, sorted(configs, key=_weigh), pool)


def _compile_in_threads(call: Call, configs: Sequence[Any], pool: CompilePool) -> None:
    with compiler.compile_in_pool(pool, call.autotuner.fn), pool:
        for config in configs:
            with suppress(Exception):
                _compile(call, config)


def _weigh(config: Any) -> float:
    """Return a number that grows with the time that a candidate takes to compile: its elements for each warp.

    Example: ``BLOCK_M=64, BLOCK_N=32, num_warps=4`` gives 64 * 32 / 4. Among 48 tiles of a matmul, the slowest took
    nine times as long as the fastest, and this number sorted them nearly by time.
    """
    sizes = [value for value in config.kwargs.values() if isinstance(value, int) and value > 1]
    # A config of another backend may lack the number of warps, or have None or 0.
    num_warps = getattr(config, "num_warps", None) or 1
    return math.prod(sizes) / max(num_warps, 1)


def compile_and_load(call: Call, config: Any) -> Any:
    """Compile and load the kernel for one candidate, as its launch would.

    :returns: Triton's compiled kernel.
    """
    kernel = _compile(call, config)
    compiler.load(kernel)
    return kernel


def load_ahead(call: Call, configs: Sequence[Any]) -> dict[Any, Hashable]:
    """Load the kernels of all candidates onto the GPU.

    The function ignores errors: a candidate that fails here fails again in the race, which reports the error.

    :returns: the code of each candidate that was loaded, by config; see :func:`find_launched_code`.
    """
    code_by_config: dict[Any, Hashable] = {}
    # While a stream captures a graph, CUDA refuses cuModuleLoadData, with which Triton loads a kernel ("operation not
    # permitted when stream is capturing").
    if stream_is_capturing():
        return code_by_config
    for config in configs:
        with suppress(Exception):
            kernel = compile_and_load(call, config)
            code_by_config[config] = find_launched_code(call, config, kernel)
    return code_by_config


def find_launched_code(call: Call, config: Any, kernel: Any) -> Hashable:
    """Return a value that is equal for two candidates if their code and their launches are equal.

    Such candidates need only a single measurement. Example: if a kernel has no loop that Triton pipelines, candidates
    that differ only in ``num_stages`` get the same code.

    :param kernel: Triton's compiled kernel of the candidate.
    :returns: None if the code is not known.
    """
    code = compiler.find_machine_code(kernel)
    if code is None:
        return None
    # Equal code can be launched with different grids. A grid may depend on the arguments of the kernel, so these
    # arguments count. Other values, such as num_stages, count only if triton.heuristics stands between the autotuner
    # and the kernel: the functions of the heuristics see all values.
    has_heuristics_between = autotuners.find_jit_function(call.autotuner.fn) is not call.autotuner.fn
    kernel_arguments = {*config.kwargs, *call.autotuner.arg_names}
    launched_with = []
    for name, value in config.all_kwargs().items():
        if has_heuristics_between or name in kernel_arguments:
            launched_with.append((name, value))
    # The hook of a candidate runs before each launch.
    return code, repr(sorted(launched_with)), config.pre_hook
