"""``inductor.config``: block sizes and warps of the Triton kernels that Inductor generates.

The part replaces ``CachingAutotuner.precompile``, which compiles the candidates, so that only the choice is compiled on
a hit. It also replaces the methods with which Inductor measures candidates. In a search, the candidates of the list
race. Whatever else Inductor measures, for example in a coordinate descent, is noted as Inductor measured it.
:mod:`.generated_kernel` has the way of each kernel.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from pytest_autotune.cache.model import Problem, UncacheableError
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.inductor import autotuners
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.generated_kernel import (
    TUNER,
    CompileThreads,
    GeneratedKernel,
    KernelQuestion,
    KernelState,
    KernelTools,
    Precompilation,
)
from pytest_autotune.tuners.inductor.identity import device_of, dtypes, kernel_key, kernel_name
from pytest_autotune.tuners.inductor.parts import Part
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.library import FunctionPatches


class Kernels(Part):
    """The part of the adapter for configurations of kernels."""

    tuner = TUNER
    module = "torch._inductor.runtime.triton_heuristics"

    def __init__(self, benchmarks: Benchmarks) -> None:
        self._benchmarks = benchmarks
        self._tools: KernelTools
        #: The autotuners in which Inductor has something to choose, and the kernel of each.
        self._kernels: WeakKeyDictionary[Any, GeneratedKernel] = WeakKeyDictionary()
        #: The digest of each autotuner's list of candidates. The list itself is gone once the choice is loaded.
        self._list_digests: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        #: Names of kernels that were measured without a question to the session.
        self.untracked: set[str] = set()

    def hook(self, module: ModuleType, session: Session, patches: FunctionPatches) -> None:
        self._session, self._module = session, module
        self._tools = KernelTools(session, self._benchmarks, CompileThreads(session, module))
        owner = module.CachingAutotuner
        parameters = ["self", "warm_cache_only", "reload_kernel", "static_triton_bundle_key"]
        patches.replace(owner, "precompile", parameters, self._precompile)
        patches.replace(owner, "bench", ["self", "launcher", "args", "with_profiler", "kwargs"], self._bench)
        try:
            patches.replace(owner, "benchmark_all_configs", ["self", "args", "kwargs"], self._benchmark_all_configs)
        except HookError as error:
            session.note(f"{self.tuner}: configurations are measured one after the other and not raced: {error}")

    # Compiling.

    def _precompile(
        self,
        original: Any,
        autotuner: Any,
        warm_cache_only: bool = False,
        reload_kernel: Any = None,
        static_triton_bundle_key: Any = None,
    ) -> Any:
        """Compile a kernel, in place of ``precompile``."""
        if warm_cache_only or not self._tools.acts_on(autotuner):
            return original(autotuner, warm_cache_only, reload_kernel, static_triton_bundle_key)
        if self._is_precompiled(autotuner):
            return None
        question = self._build_question(autotuner, reload_kernel)
        precompilation = Precompilation(original, reload_kernel, static_triton_bundle_key)
        kernel = GeneratedKernel(self._tools, autotuner, precompilation, question)
        self._kernels[autotuner] = kernel
        kernel.precompile()
        return None

    def _is_precompiled(self, autotuner: Any) -> bool:
        """Whether another graph has the same kernel, which is loaded, or which its first launch loads."""
        if "run" in vars(autotuner):
            return True
        return autotuner in self._list_digests and bool(autotuner.launchers)

    def _build_question(self, autotuner: Any, reload_kernel: Any) -> KernelQuestion | None:
        """Return the question for the choice of a kernel; None if there is nothing to choose, or no stable key."""
        autotuners.take_fresh_candidates(autotuner, reload_kernel)
        candidates = autotuners.read_candidates(autotuner)
        if candidates is None:
            return None
        digest_of_own_cache = autotuners.detach_own_cache(autotuner)
        list_digest = self._list_digests.get(autotuner) or digest_of_own_cache
        if not list_digest:
            list_digest = self._module.hash_configs(candidates.configs)
        self._list_digests[autotuner] = list_digest
        device = device_of(autotuner.device_props.type, autotuner.device_props.index)
        problem = Problem(self.tuner, kernel_name(autotuner), kernel_key(autotuner, list_digest), device)
        try:
            for config in candidates.configs:
                autotuners.params_of(config)
        except UncacheableError as error:
            self._session.report_uncacheable(problem, str(error))
            return None
        return KernelQuestion(problem, candidates, dtypes(autotuner))

    # Measuring.

    def _find_searching_kernel(self, autotuner: Any) -> GeneratedKernel | None:
        """Return the kernel of an autotuner if Inductor searches for its choice now."""
        kernel = self._kernels.get(autotuner)
        if kernel is None or kernel.state is not KernelState.SEARCHING:
            return None
        return kernel

    def _benchmark_all_configs(self, original: Any, autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        """Race the candidates of a list in a search. Inductor's method then asks :meth:`_bench` for their times."""
        kernel = self._find_searching_kernel(autotuner)
        if kernel is None:
            return original(autotuner, *args, **kwargs)
        kernel.race_candidates(args, kwargs)
        try:
            return original(autotuner, *args, **kwargs)
        finally:
            kernel.forget_race()

    def _bench(
        self, original: Any, autotuner: Any, launcher: Any, *args: Any, with_profiler: bool = False, **kwargs: Any
    ) -> Any:
        """Return the time of a launcher in the race, or let Inductor measure it; in a search, note the time."""
        kernel = self._find_searching_kernel(autotuner)
        if kernel is None:
            time_ms = original(autotuner, launcher, *args, with_profiler=with_profiler, **kwargs)
            if len(autotuner.launchers) > 1 and self._tools.acts_on(autotuner):
                self.untracked.add(kernel_name(autotuner))
            return time_ms
        time_ms = kernel.take_raced_time(launcher)
        if time_ms is None:
            with self._benchmarks.hold_device():
                time_ms = original(autotuner, launcher, *args, with_profiler=with_profiler, **kwargs)
        kernel.note_time(launcher, time_ms)
        return time_ms
