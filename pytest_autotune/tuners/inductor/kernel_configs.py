"""``inductor.config``: block sizes and warps of the Triton kernels that Inductor generates.

``CachingAutotuner.precompile``, which compiles the candidates, is replaced, so that on a
hit only the choice is compiled. A kernel for which a search is still to be made gets its
``run`` wrapped, in the instance, for one call: Inductor tunes inside the first one. Later
launches are its own. What is measured inside is for :mod:`.kernel_measuring`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from pytest_autotune.cache.model import Candidate, Problem, UnportableError
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.abilities import Abilities
from pytest_autotune.run.door import Tuning, TuningRun
from pytest_autotune.run.verify import Verdict
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks, runners
from pytest_autotune.tuners.inductor.compile_children import CompileChildren
from pytest_autotune.tuners.inductor.compile_threads import CompileThreads
from pytest_autotune.tuners.inductor.configurations import (
    candidate,
    descends,
    is_reached,
    may_be_scaled,
    params_of,
)
from pytest_autotune.tuners.inductor.graph_caches import forget_compiled
from pytest_autotune.tuners.inductor.identity import (
    device_of,
    dtypes,
    is_placeholder,
    kernel_key,
    kernel_name,
    versions,
)
from pytest_autotune.tuners.inductor.kernel_measuring import TUNER, KernelMeasuring
from pytest_autotune.tuners.inductor.kernel_search import Search, compile_too, may_win, narrow, settle, widen
from pytest_autotune.tuners.inductor.patches import Patches
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.verifying import CAPTURED, Contest, verify
from pytest_autotune.tuners.shared.candidates import EVERY_CANDIDATE_FAILED, error_line, no_longer_compiles

#: Arguments of a kernel's ``run`` that are none of the kernel's.
_OF_RUN = ("stream", "benchmark_run")


class _Pending(partial[Any]):
    """Stands in for the first ``run`` of a kernel that a thread compiles."""


class KernelConfigs:
    """The part of the adapter for configurations of kernels.

    :param describe: what is known of a kernel, by its numbered name: in short, and in full.
    :param children: where there are any, they compile what a descent tries.
    """

    tuner = TUNER
    module = "torch._inductor.runtime.triton_heuristics"

    def __init__(
        self, describe: Callable[[str], tuple[str, str]], timed: Benchmarks, children: CompileChildren
    ) -> None:
        self._describe = describe
        self._timed = timed
        self._measuring = KernelMeasuring(self._timed, children, self._measured_elsewhere)
        self._run: TuningRun | None = None
        self._hash_configs: Callable[[Sequence[Any]], str] = str
        self._threads: CompileThreads | None = None
        #: What the search for an autotuner is known by: once it is narrowed to the choice, its list is gone.
        self._list_digests: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        #: Kernels that were measured without passing the door.
        self.unseen: set[str] = set()

    def hook(self, module: ModuleType, run: TuningRun, patches: Patches) -> None:
        """See :class:`~pytest_autotune.tuners.inductor.part.Part`."""
        part = self
        self._run = run
        self._hash_configs = module.hash_configs
        self._threads = CompileThreads(run, module.torch._inductor.config)

        def make_precompile(original: Any) -> Any:
            def precompile(
                self: Any,
                warm_cache_only: bool = False,
                reload_kernel: Any = None,
                static_triton_bundle_key: Any = None,
            ) -> Any:
                def compile() -> Any:
                    return original(self, warm_cache_only, reload_kernel, static_triton_bundle_key)

                def compile_without_loading() -> None:
                    original(self, True)

                if warm_cache_only or not part._acts_on(self):
                    return compile()
                return part._compile(self, compile, compile_without_loading, reload_kernel)

            return precompile

        compiled = ["self", "warm_cache_only", "reload_kernel", "static_triton_bundle_key"]
        patches.replace(module.CachingAutotuner, "precompile", compiled, make_precompile)
        self._measuring.hook(module, run, patches)

    def _acts_on(self, autotuner: Any) -> bool:
        run = self._run
        assert run is not None
        return not (run.paused or is_placeholder(autotuner) or run.ignores(self.tuner, kernel_name(autotuner)))

    def _measured_elsewhere(self, autotuner: Any) -> None:
        if len(autotuner.launchers) > 1 and self._acts_on(autotuner):
            self.unseen.add(kernel_name(autotuner))

    def _compile(
        self,
        autotuner: Any,
        compile: Callable[[], Any],
        compile_without_loading: Callable[[], None],
        reload: Callable[[], Any] | None,
    ) -> Any:
        """Stand in for ``precompile``: compile the choice alone, where there is one."""
        if "run" in vars(autotuner) or (autotuner in self._list_digests and autotuner.launchers):
            return None  # another graph has the same kernel, and its choice is made or will be
        search = self._search(autotuner, reload)
        ahead = self._threads if self._threads is not None and self._threads.is_wanted else None
        if search is None:
            if ahead is None or autotuner.compile_results:
                return compile()
            wait = ahead.start(compile_without_loading)
            autotuner.run = _Pending(_first_run_of_one, autotuner, wait, compile)
            return None
        if self._run is not None and self._run.may_verify(search.problem):  # its first call races all candidates
            search.compiles_all = True
        elif len(search.configs) > 1 or descends(autotuner):
            with self._door(search) as tuning:
                while tuning.entry is not None and tuning.entry.choice is not None:
                    choice = tuning.entry.choice
                    try:
                        search.narrowed = True
                        narrow(autotuner, search, search.config(choice))
                        if ahead is None or autotuner.compile_results:
                            compile()
                            settle(autotuner, choice.params)
                        else:
                            wait = ahead.start(compile_without_loading)
                            autotuner.run = _Pending(
                                self._first_run_of_choice, autotuner, search, choice, wait, compile
                            )
                        return None
                    except Exception as error:
                        self._reject(search, tuning, choice, error)
        widen(autotuner, search)
        began = time.perf_counter()
        compile()
        search.compiled_s = time.perf_counter() - began
        if search.compiles_all or len(autotuner.launchers) > 1 or descends(autotuner):
            autotuner.run = lambda *args, **kwargs: self._first_run(autotuner, search, *args, **kwargs)
        return None

    def _first_run_of_choice(
        self,
        autotuner: Any,
        search: Search,
        choice: Candidate,
        wait: Callable[[], None],
        compile: Callable[[], Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Stand in for the first ``run`` of a kernel whose choice a thread compiles."""
        vars(autotuner).pop("run", None)
        try:
            wait()
            compile()
            settle(autotuner, choice.params)
        except Exception as error:
            search.rejected[choice.params] = no_longer_compiles(error_line(error))
            widen(autotuner, search)
            compile()
            return self._first_run(autotuner, search, *args, **kwargs)
        return autotuner.run(*args, **kwargs)

    def _first_run(self, autotuner: Any, search: Search, *args: Any, **kwargs: Any) -> Any:
        """Stand in for the first ``run``, in which Inductor tunes."""
        vars(autotuner).pop("run", None)
        run = self._run
        assert run is not None
        is_settled = len(autotuner.launchers) == 1 and not search.compiles_all
        if is_settled and getattr(autotuner.launchers[0].config, "found_by_coordesc", False):
            return autotuner.run(*args, **kwargs)
        if not self._acts_on(autotuner):
            return autotuner.run(*args, **kwargs)
        with self._door(search) as tuning:
            while tuning.entry is not None and tuning.entry.choice is not None:
                choice = tuning.entry.choice
                if choice.params in search.rejected:
                    tuning.reject(search.rejected[choice.params])
                    continue
                try:
                    compile_too(autotuner, search, choice)
                    self._verify(autotuner, search, tuning, args, kwargs)
                    settle(autotuner, choice.params)
                    break
                except Exception as error:
                    self._reject(search, tuning, choice, error)
            else:
                return self._tune(autotuner, tuning, args, kwargs)
        return autotuner.run(*args, **kwargs)

    def _door(self, search: Search) -> Any:
        assert self._run is not None
        if self._run.policy.sweep is not None:  # the next test asks again what it runs with
            self._run.at_next_test(forget_compiled)
        return self._run.tuning(
            search.problem, (), search.offers, versions(), search.label, Abilities(search.candidates)
        )

    def _verify(
        self, autotuner: Any, search: Search, tuning: Tuning, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Race the loaded choice, whose launcher is there, where it is its turn."""
        entry = tuning.entry
        if not tuning.to_verify or entry is None or entry.choice is None:
            return
        if autotuner.device_props.type != "cuda":
            tuning.verified(Verdict("it is not on a GPU"))
            return
        if stream_is_capturing():
            tuning.verified(CAPTURED)
            return
        given = {name: value for name, value in kwargs.items() if name not in _OF_RUN}
        own = [one for one in autotuner.launchers if params_of(one.config) == entry.choice.params]
        launchers = {
            params_of(launcher.config): launcher for launcher in [*own, *may_win(autotuner, autotuner.launchers)]
        }

        def ready(candidates: Sequence[Candidate]) -> dict[Candidate, Runner]:
            some = [launchers[one.params] for one in candidates]
            return dict(zip(candidates, runners(autotuner, some, args, given), strict=True))

        candidates = [Candidate(params=params) for params in launchers]
        verify(tuning, Contest(candidates, ready, self._timed.clock, spent_s=search.compiled_s))

    def _reject(self, search: Search, tuning: Tuning, choice: Candidate, error: Exception) -> None:
        reason = search.rejected[choice.params] = no_longer_compiles(error_line(error))
        tuning.reject(reason)

    def _tune(self, autotuner: Any, tuning: Tuning, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._timed.searching(tuning), self._measuring.watched(autotuner) as times_ms:
            result = autotuner.run(*args, **kwargs)
        if not times_ms:  # one launcher was left, and Inductor had nothing to measure
            return result
        chosen = params_of(autotuner.launchers[0].config)
        time_ms = times_ms.get(chosen, math.inf)
        if not math.isfinite(time_ms):
            tuning.not_recorded(EVERY_CANDIDATE_FAILED)
            return result
        candidates = [candidate(params, time) for params, time in times_ms.items()]
        full = self._describe(str(autotuner.inductor_meta.get("kernel_name")))[1]
        label = "; ".join(filter(None, [dtypes(autotuner), full]))
        tuning.record(candidate(chosen, time_ms), candidates, label=label)
        return result

    def _search(self, autotuner: Any, reload: Callable[[], Any] | None) -> Search | None:
        """The search for this kernel; None where Inductor has nothing to choose."""
        assert self._run is not None
        if reload is not None:
            autotuner._reload_kernel = reload
        info = autotuner.autotune_cache_info or {}
        if info.get("autotune_cache_state") == "hit" and reload is not None:
            # A compile worker has taken a choice from Inductor's own cache: ask for all candidates.
            autotuner.fn, fresh = (again := reload()).fn, again.configs
            autotuner.configs, autotuner.compile_results, autotuner.autotune_cache_info = fresh, [], {}
        results = tuple(autotuner.compile_results)
        configs = tuple(result.config for result in results) or tuple(autotuner.configs or ())
        if not configs or getattr(autotuner.heuristic_type, "name", "") in ("TEMPLATE", "FIXED"):
            return None
        if len(configs) == 1 and not descends(autotuner) and not may_be_scaled(autotuner):
            return None
        # What Inductor's own cache knows of the list is of the whole one; compile workers drop what fails.
        own_cache = getattr(autotuner.save_cache_hook, "__self__", None)
        list_digest = self._list_digests.get(autotuner) or getattr(own_cache, "configs_hash", None)
        list_digest = self._list_digests[autotuner] = list_digest or self._hash_configs(configs)
        autotuner.save_cache_hook = None
        on = device_of(autotuner.device_props.type, autotuner.device_props.index)
        problem = Problem(self.tuner, kernel_name(autotuner), kernel_key(autotuner, list_digest), on)
        short = self._describe(str(autotuner.inductor_meta.get("kernel_name")))[0]
        label = "; ".join(filter(None, [dtypes(autotuner), short]))
        try:
            for config in configs:
                params_of(config)
        except UnportableError as error:
            self._run.unportable(problem, str(error))
            return None
        return Search(problem, configs, results, label, partial(is_reached, autotuner))


def _first_run_of_one(
    autotuner: Any, wait: Callable[[], None], compile: Callable[[], Any], *args: Any, **kwargs: Any
) -> Any:
    """Stand in for the first ``run`` of a kernel that has one candidate, which a thread compiles."""
    vars(autotuner).pop("run", None)
    wait()
    compile()
    return autotuner.run(*args, **kwargs)
