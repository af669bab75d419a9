"""``inductor.config``: block sizes and warps of the Triton kernels that Inductor generates.

``CachingAutotuner.precompile``, which compiles the candidates, is replaced, so that on a hit only the choice is
compiled. A kernel for which a search is still to be made gets its ``run`` wrapped, in the instance, for one call:
Inductor tunes inside the first one. Later launches are its own. In a search its list of candidates races; what else it
measures, as in a descent by coordinates, is only noted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from pytest_autotune.cache.foreign_text import describe_error
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Problem, UncacheableError
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks, runners
from pytest_autotune.tuners.inductor.candidates import (
    Params,
    Search,
    SearchQuestion,
    candidate,
    descends,
    may_win,
    params_of,
)
from pytest_autotune.tuners.inductor.graph_caches import forget_compiled
from pytest_autotune.tuners.inductor.hooking import Part
from pytest_autotune.tuners.inductor.identity import (
    device_of,
    dtypes,
    is_placeholder,
    kernel_key,
    kernel_name,
)
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.race import CAPTURED, Contest
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.candidates import EVERY_CANDIDATE_FAILED, does_not_compile
from pytest_autotune.tuners.shared.compile_pool import CompilePool
from pytest_autotune.tuners.shared.library import Patches

#: Arguments of a kernel's ``run`` that are none of the kernel's.
_OF_RUN = ("stream", "benchmark_run")


class Kernels(Part):
    """The part of the adapter for configurations of kernels."""

    tuner = "inductor.config"
    module = "torch._inductor.runtime.triton_heuristics"

    def __init__(self, timed: Benchmarks) -> None:
        self._timed = timed
        self._threads: CompilePool | None = None
        #: What the search for an autotuner is known by: once it is narrowed to the choice, its list is gone.
        self._list_digests: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        #: What is measured now of each autotuner that is searched for, in milliseconds.
        self._times_ms: dict[int, dict[Params, float]] = {}
        #: What a race has found of the launchers that Inductor asks for now, in milliseconds.
        self._raced_ms: dict[Any, float] = {}
        #: Kernels that were measured without asking the session.
        self.untracked: set[str] = set()

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        self._session, self._module = session, module
        owner = module.CachingAutotuner
        compiled = ["self", "warm_cache_only", "reload_kernel", "static_triton_bundle_key"]
        patches.replace(owner, "precompile", compiled, self._precompile)
        patches.replace(owner, "bench", ["self", "launcher", "args", "with_profiler", "kwargs"], self._bench)
        try:
            patches.replace(owner, "benchmark_all_configs", ["self", "args", "kwargs"], self._benchmark_all)
        except HookError as error:
            session.note(f"{self.tuner}: configurations are measured one after the other and not raced: {error}")

    def _acts_on(self, autotuner: Any) -> bool:
        session = self._session
        return not (
            session.is_paused or is_placeholder(autotuner) or session.ignores(self.tuner, kernel_name(autotuner))
        )

    # Before the first call: what is compiled.

    def _precompile(
        self,
        original: Any,
        autotuner: Any,
        warm_cache_only: bool = False,
        reload_kernel: Any = None,
        static_triton_bundle_key: Any = None,
    ) -> Any:
        """Stand in for ``precompile``: compile the choice alone, where there is one."""
        compile_it = partial(original, autotuner, warm_cache_only, reload_kernel, static_triton_bundle_key)
        if warm_cache_only or not self._acts_on(autotuner):
            return compile_it()
        if "run" in vars(autotuner) or (autotuner in self._list_digests and autotuner.launchers):
            return None  # another graph has the same kernel, and its choice is made or will be
        search = self._search(autotuner, reload_kernel)
        ahead = partial(self._is_compiled_ahead, original, autotuner)
        if search is not None:
            self._prepare(search, compile_it, ahead)
        elif not ahead(compile_it):
            compile_it()
        return None

    def _prepare(
        self,
        search: Search,
        compile_it: Callable[[], object],
        ahead: Callable[[Callable[[], object]], bool] = lambda finish: False,
    ) -> None:
        """Compile the choice; all candidates, and search in the first call, where there is none that can be.

        :param ahead: has the choice compiled by a thread, after which this is done again.
        """
        autotuner = search.autotuner
        if self._session.may_race(search.problem):  # its first call races all candidates
            search.compiles_all = True
        elif len(search.configs) > 1 or descends(autotuner):
            with self._tuning(search) as tuning:
                while tuning.entry is not None and tuning.entry.choice is not None:
                    choice = tuning.entry.choice
                    try:
                        search.narrow(choice)
                        if not ahead(partial(self._prepare, search, compile_it)):
                            compile_it()
                            search.settle(choice)
                        return
                    except Exception as error:
                        tuning.reject(does_not_compile(describe_error(error)))
                tuning.postpone()  # to the first launch, if there is one
        search.widen()
        began = HostTime.perf_counter()
        compile_it()
        search.compiled_s = HostTime.perf_counter() - began
        if search.compiles_all or len(autotuner.launchers) > 1 or descends(autotuner):
            autotuner.run = partial(self._first_run, search)

    def _is_compiled_ahead(self, original: Any, autotuner: Any, finish: Callable[[], object]) -> bool:
        """Whether a thread compiles now what is left; if so, the first ``run`` begins with ``finish``.

        Inductor compiles the many kernels of a graph one after the other where it has no pool of processes, which
        take longer to start than a hit's few candidates to compile. What fails here fails again in ``finish``.
        """
        if not self._uses_threads or autotuner.compile_results:
            return False
        self._threads = self._threads or CompilePool(self._session.policy.compile_threads)
        # Inductor's settings hold in the context, which the pool copies.
        future = self._threads.submit(original, autotuner, True)

        def first_run(*args: Any, **kwargs: Any) -> Any:
            vars(autotuner).pop("run", None)
            futures.wait([future])
            finish()
            return autotuner.run(*args, **kwargs)

        autotuner.run = first_run
        return True

    @property
    def _uses_threads(self) -> bool:
        """Whether kernels that are compiled now may be compiled in threads.

        Not where the user says how, nor where a kernel has to be there with its graph: for a cache, or C++.
        """
        policy, config = self._session.policy, self._module.torch._inductor.config
        return (
            bool(self._session.indexes)
            and not policy.is_dumping
            and policy.compile_threads > 1
            and "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ
            and config.compile_threads == 1
            and not config.fx_graph_cache
            and not config.cpp_wrapper
        )

    def _search(self, autotuner: Any, reload: Callable[[], Any] | None) -> Search | None:
        """The search for this kernel; None where Inductor has nothing to choose."""
        if reload is not None:
            autotuner._reload_kernel = reload
        info = autotuner.autotune_cache_info or {}
        if info.get("autotune_cache_state") == "hit" and reload is not None:
            # A compile worker has taken a choice from Inductor's own cache: ask for all candidates.
            autotuner.fn, fresh = (again := reload()).fn, again.configs
            autotuner.configs, autotuner.compile_results, autotuner.autotune_cache_info = fresh, [], {}
        results = tuple(autotuner.compile_results)
        configs = tuple(result.config for result in results) or tuple(autotuner.configs or ())
        kind = getattr(autotuner.heuristic_type, "name", "")
        if not configs or kind in ("TEMPLATE", "FIXED"):
            return None
        # Inductor may add a candidate with a smaller block of the reduction once one is compiled.
        if len(configs) == 1 and not descends(autotuner) and kind != "REDUCTION":
            return None
        # What Inductor's own cache knows of the list is of the whole one; compile workers drop what fails.
        own_cache = getattr(autotuner.save_cache_hook, "__self__", None)
        list_digest = self._list_digests.get(autotuner) or getattr(own_cache, "configs_hash", None)
        list_digest = self._list_digests[autotuner] = list_digest or self._module.hash_configs(configs)
        autotuner.save_cache_hook = None
        on = device_of(autotuner.device_props.type, autotuner.device_props.index)
        problem = Problem(self.tuner, kernel_name(autotuner), kernel_key(autotuner, list_digest), on)
        try:
            for config in configs:
                params_of(config)
        except UncacheableError as error:
            self._session.report_uncacheable(problem, str(error))
            return None
        return Search(autotuner, problem, configs, results, dtypes(autotuner))

    def _tuning(self, search: Search) -> AbstractContextManager[Tuning]:
        if self._session.picks_candidates:  # the next test asks again what it runs with
            self._session.at_next_test(forget_compiled)
        return self._session.tuning(SearchQuestion(search))

    # The first call.

    def _first_run(self, search: Search, *args: Any, **kwargs: Any) -> Any:
        """Stand in for the first ``run``, in which Inductor tunes."""
        autotuner = search.autotuner
        vars(autotuner).pop("run", None)
        is_settled = len(autotuner.launchers) == 1 and not search.compiles_all
        if is_settled and getattr(autotuner.launchers[0].config, "found_by_coordesc", False):
            return autotuner.run(*args, **kwargs)
        if not self._acts_on(autotuner):
            return autotuner.run(*args, **kwargs)
        with self._tuning(search) as tuning:
            while tuning.entry is not None and tuning.entry.choice is not None:
                choice = tuning.entry.choice
                try:
                    search.compile_too(choice)
                    tuning.race(partial(self._contest, search, choice, args, kwargs))
                    search.settle(choice)
                    break
                except Exception as error:
                    tuning.reject(does_not_compile(describe_error(error)))
            else:
                return self._tune(search, tuning, args, kwargs)
        return autotuner.run(*args, **kwargs)

    def _contest(
        self, search: Search, choice: Candidate, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Contest | str:
        """What is raced where the loaded choice is, whose launcher is there."""
        autotuner = search.autotuner
        if autotuner.device_props.type != "cuda":
            return "it is not on a GPU"
        if stream_is_capturing():
            return CAPTURED
        given = {name: value for name, value in kwargs.items() if name not in _OF_RUN}
        own = [one for one in autotuner.launchers if params_of(one.config) == choice.params]
        launchers = {params_of(one.config): one for one in [*own, *may_win(autotuner, autotuner.launchers)]}

        def ready(candidates: Sequence[Candidate]) -> dict[Candidate, Runner]:
            some = [launchers[one.params] for one in candidates]
            return dict(zip(candidates, runners(autotuner, some, args, given), strict=True))

        candidates = [Candidate(params=params) for params in launchers]
        return Contest(candidates, ready, self._timed.make_clock, spent_s=search.compiled_s)

    def _tune(self, search: Search, tuning: Tuning, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        autotuner = search.autotuner
        times_ms = self._times_ms[id(autotuner)] = {}
        try:
            with self._timed.searching(tuning):
                result = autotuner.run(*args, **kwargs)
        except BaseException:
            autotuner.run = partial(self._first_run, search)  # the next call searches
            raise
        finally:
            del self._times_ms[id(autotuner)]
        if not times_ms:  # one launcher was left, and Inductor had nothing to measure
            return result
        chosen = params_of(autotuner.launchers[0].config)
        time_ms = times_ms.get(chosen, math.inf)
        if not math.isfinite(time_ms):
            tuning.not_recorded(EVERY_CANDIDATE_FAILED)
            return result
        candidates = [candidate(params, time) for params, time in times_ms.items()]
        tuning.record(candidate(chosen, time_ms), candidates)
        return result

    # What Inductor measures inside.

    def _benchmark_all(self, original: Any, autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        """Stand in for the measurement of a list: in a search, it races."""
        if id(autotuner) in self._times_ms:
            launchers = may_win(autotuner, autotuner.launchers)
            self._raced_ms.update(self._timed.raced_ms(autotuner, launchers, args, kwargs))
        try:
            return original(autotuner, *args, **kwargs)
        finally:
            self._raced_ms.clear()

    def _bench(
        self, original: Any, autotuner: Any, launcher: Any, *args: Any, with_profiler: bool = False, **kwargs: Any
    ) -> Any:
        """Stand in for the measurement of one launcher: hand over what a race has found, and note what it takes."""
        times_ms = self._times_ms.get(id(autotuner))
        time_ms = self._raced_ms.pop(launcher, None)
        if time_ms is None:
            with self._timed.held() if times_ms is not None else nullcontext():
                time_ms = original(autotuner, launcher, *args, with_profiler=with_profiler, **kwargs)
        if times_ms is not None:
            times_ms[params_of(launcher.config)] = float(time_ms)
        elif len(autotuner.launchers) > 1 and self._acts_on(autotuner):
            self.untracked.add(kernel_name(autotuner))
        return time_ms
