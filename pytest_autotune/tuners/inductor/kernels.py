"""``inductor.config``: block sizes and warps of the Triton kernels that Inductor generates.

The part replaces ``CachingAutotuner.precompile``, which compiles all candidates. On a hit, only the choice is compiled.
The part also replaces the methods with which Inductor measures candidates. In a search, the candidates of the list
race. Inductor itself measures further candidates, for example in a coordinate descent, and the part notes their times.
:mod:`.generated_kernel` takes each kernel from its compilation to its choice.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from pytest_autotune.cache.model import Problem, UncacheableError
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.inductor import autotuners
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.compile_threads import CompileThreads, Precompilation
from pytest_autotune.tuners.inductor.generated_kernel import (
    TUNER,
    CompiledBy,
    GeneratedKernel,
    KernelQuestion,
    KernelState,
    KernelTools,
)
from pytest_autotune.tuners.inductor.identity import device_of, dtypes, kernel_key, kernel_name
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.patches import CallHook, CallResult, HookedCall, Patches


class Kernels:
    """The part of the adapter for configurations of kernels."""

    tuner = TUNER
    module = "torch._inductor.runtime.triton_heuristics"

    def __init__(self, benchmarks: Benchmarks) -> None:
        self._benchmarks = benchmarks
        #: The kernel of each autotuner that was compiled.
        self._kernels: WeakKeyDictionary[Any, GeneratedKernel] = WeakKeyDictionary()
        #: Names of kernels that were measured without a question to the session.
        self.untracked: set[str] = set()

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """Replace the methods of Inductor's autotuner that compile and measure.

        :raises HookError: if this torch has other methods.
        """
        tools = KernelTools(session, self._benchmarks, CompileThreads(session, module), patches)
        owner = module.CachingAutotuner
        precompile_parameters = ["self", "warm_cache_only", "reload_kernel", "static_triton_bundle_key"]
        patches.replace(owner, "precompile", precompile_parameters, PrecompileHook(tools, module, self._kernels))
        bench_parameters = ["self", "launcher", "args", "with_profiler", "kwargs"]
        patches.replace(owner, "bench", bench_parameters, BenchHook(tools, self._kernels, self.untracked))
        # Without this method, the candidates cannot race, but hits still work.
        try:
            hook = BenchmarkAllHook(self._kernels)
            patches.replace(owner, "benchmark_all_configs", ["self", "args", "kwargs"], hook)
        except HookError as error:
            session.note(
                f"{self.tuner}: candidates are timed one after the other, so new choices are less "
                f"exact: {error} (upgrade the plugin)"
            )


class PrecompileHook(CallHook):
    """Compiles only the choice of a kernel, in place of ``precompile``.

    :param module: Inductor's module ``triton_heuristics``.
    :param kernels: receives the kernels.
    """

    def __init__(self, tools: KernelTools, module: Any, kernels: WeakKeyDictionary[Any, GeneratedKernel]) -> None:
        self._tools = tools
        self._module = module
        self._kernels = kernels
        #: The digest of each autotuner's list of candidates. The list itself is not in the autotuner any more once the
        #: choice is loaded.
        self._list_digests: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def ask(self, call: HookedCall) -> CallResult | None:
        """Compile the choice, or have Inductor compile all candidates."""
        autotuner = call.arguments["self"]
        reload_kernel = call.arguments["reload_kernel"]
        # A compile worker compiles candidates for another process.
        if call.arguments["warm_cache_only"]:
            return None
        if not self._tools.acts_on(autotuner):
            return None
        if self._is_precompiled(autotuner):
            return CallResult(None)
        autotuners.take_fresh_candidates(autotuner, reload_kernel)
        question = self._build_question(autotuner)
        precompilation = Precompilation(call.original, reload_kernel, call.arguments["static_triton_bundle_key"])
        kernel = GeneratedKernel(self._tools, autotuner, precompilation, question)
        self._kernels[autotuner] = kernel
        if kernel.compile_choice() is not CompiledBy.INDUCTOR:
            return CallResult(None)  # Inductor's own precompile, which returns None, is not called
        kernel.begin_compiling_all()
        call.state = kernel
        return None

    def note(self, call: HookedCall, result: Any) -> None:
        """Tell the kernel that Inductor has compiled all candidates. Its choice is made at its first launch."""
        if isinstance(call.state, GeneratedKernel):
            call.state.end_compiling_all()

    def _is_precompiled(self, autotuner: Any) -> bool:
        """Whether the autotuner was compiled for another graph, so that nothing remains to be done."""
        # The plugin has replaced the autotuner's run(): the first launch will load the kernel or ask for the choice.
        if "run" in vars(autotuner):
            return True
        # The kernel is loaded.
        return autotuner in self._list_digests and bool(autotuner.launchers)

    def _build_question(self, autotuner: Any) -> KernelQuestion | None:
        """Return the question for the choice of a kernel.

        :returns: None if Inductor has nothing to choose, or if a configuration has a value that no cache can hold.
        """
        candidates = autotuners.read_candidates(autotuner)
        if candidates is None:
            return None
        list_digest = self._digest_list(autotuner, candidates)
        device = device_of(autotuner.device_props.type, autotuner.device_props.index)
        problem = Problem(TUNER, kernel_name(autotuner), kernel_key(autotuner, list_digest), device)
        try:
            for config in candidates.configs:
                autotuners.params_of(config)
        except UncacheableError as error:
            self._tools.session.report_uncacheable(problem, str(error))
            return None
        return KernelQuestion(problem, candidates, dtypes(autotuner))

    def _digest_list(self, autotuner: Any, candidates: autotuners.CandidateList) -> str:
        """Return the digest of the kernel's whole list of candidates, and disconnect Inductor's own cache."""
        digest_in_own_cache = autotuners.detach_own_cache(autotuner)
        # A second graph may compile the same autotuner, whose list then holds only the choice. The first digest counts.
        list_digest = self._list_digests.get(autotuner) or digest_in_own_cache
        if not list_digest:
            list_digest = self._module.hash_configs(autotuners.read_whole_list(autotuner, candidates))
        self._list_digests[autotuner] = list_digest
        return list_digest


def _find_searching_kernel(kernels: WeakKeyDictionary[Any, GeneratedKernel], autotuner: Any) -> GeneratedKernel | None:
    """Return the kernel of an autotuner if Inductor searches for its choice now."""
    kernel = kernels.get(autotuner)
    if kernel is None or kernel.state is not KernelState.SEARCHING:
        return None
    return kernel


class BenchmarkAllHook(CallHook):
    """Races the candidates of a list in a search, before ``benchmark_all_configs`` asks ``bench`` for their times."""

    def __init__(self, kernels: WeakKeyDictionary[Any, GeneratedKernel]) -> None:
        self._kernels = kernels

    def ask(self, call: HookedCall) -> None:
        """Race the candidates."""
        kernel = _find_searching_kernel(self._kernels, call.arguments["self"])
        if kernel is not None:
            call.enter(kernel.racing(call.arguments["args"], call.arguments["kwargs"]))


class BenchHook(CallHook):
    """Returns the time of a candidate in the race, in place of ``bench``, and notes all times of a search.

    :param untracked: receives the names of kernels that are measured outside of a search.
    """

    def __init__(
        self, tools: KernelTools, kernels: WeakKeyDictionary[Any, GeneratedKernel], untracked: set[str]
    ) -> None:
        self._tools = tools
        self._kernels = kernels
        self._untracked = untracked

    def ask(self, call: HookedCall) -> CallResult | None:
        """Return the time of a candidate that raced. Inductor measures a candidate that did not race."""
        kernel = _find_searching_kernel(self._kernels, call.arguments["self"])
        if kernel is None:
            return None
        launcher = call.arguments["launcher"]
        time_ms = kernel.take_raced_time(launcher)
        if time_ms is not None:
            kernel.note_time(launcher, time_ms)
            return CallResult(time_ms)
        call.enter(self._tools.benchmarks.hold_device())
        call.state = kernel  # so that note() gives it the time
        return None

    def note(self, call: HookedCall, result: Any) -> None:
        """Note the time that Inductor measured."""
        autotuner = call.arguments["self"]
        if isinstance(call.state, GeneratedKernel):
            call.state.note_time(call.arguments["launcher"], result)
        # Inductor chooses among several launchers without a search that the plugin began.
        elif len(autotuner.launchers) > 1 and self._tools.acts_on(autotuner):
            self._untracked.add(kernel_name(autotuner))
