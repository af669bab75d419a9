"""``inductor.config``: block sizes and warps of the Triton kernels that Inductor generates.

Two members of ``CachingAutotuner`` are replaced: ``precompile``, which compiles the
candidates, so that on a hit only the choice is compiled; and ``bench``, which measures
one. A kernel for which a search is still to be made gets its ``run`` wrapped, in the
instance, for one call: Inductor tunes inside the first one. Later launches are its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from pytest_autotune.cache.model import Candidate, Entry, Problem, UnportableError
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.abilities import Abilities
from pytest_autotune.run.door import Tuning, TuningRun
from pytest_autotune.run.verify import Verdict
from pytest_autotune.tuners.inductor.benchmarks import STEP, Benchmarks, runners
from pytest_autotune.tuners.inductor.compile_children import CompileChildren
from pytest_autotune.tuners.inductor.compile_threads import CompileThreads
from pytest_autotune.tuners.inductor.configurations import (
    Params,
    candidate,
    descends,
    is_reached,
    made_of,
    may_be_scaled,
    params_of,
)
from pytest_autotune.tuners.inductor.descent import Descent
from pytest_autotune.tuners.inductor.graph_caches import forget_compiled
from pytest_autotune.tuners.inductor.identity import (
    device_of,
    dtypes,
    is_placeholder,
    kernel_key,
    kernel_name,
    versions,
)
from pytest_autotune.tuners.inductor.patches import Patches
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.verifying import CAPTURED, Contest, verify
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.candidates import EVERY_CANDIDATE_FAILED, error_line, no_longer_compiles
from pytest_autotune.tuners.shared.compile_pool import CompilePool

#: So many spilled registers Inductor puts up with where it says no number.
_SPILLED = 16
#: Arguments of a kernel's ``run`` that are none of the kernel's.
_OF_RUN = ("stream", "benchmark_run")


class _Pending(partial[Any]):
    """Stands in for the first ``run`` of a kernel that a thread compiles."""


@dataclass
class _Search:
    """The search for one kernel, from its compilation to its first call.

    :param configs: the candidates of the list, as Inductor had them.
    :param results: what a compile worker has made of them; empty if nothing.
    :param reaches: whether Inductor's search could come from a candidate to these params.
    :param rejected: the choice that could not be used, and why.
    """

    problem: Problem
    configs: tuple[Any, ...]
    results: tuple[Any, ...]
    label: str
    reaches: Callable[[Any, Params], bool]
    narrowed: bool = False
    #: All candidates are compiled though there may be a choice: it is raced again.
    compiles_all: bool = False
    compiled_s: float = 0.0
    rejected: dict[Params, str] = field(default_factory=dict)

    def offers(self, entry: Entry) -> bool:
        """Whether an entry's choice is in the list, or one that the search could have reached from there."""
        if entry.choice is None:
            return False
        params = entry.choice.params
        return any(params == params_of(config) or self.reaches(config, params) for config in self.configs)

    def candidates(self) -> list[Candidate]:
        """Those of the list."""
        return [Candidate(params=params_of(config)) for config in self.configs]

    def config(self, choice: Candidate) -> Any:
        """The candidate that is the choice, or one made of it."""
        found = next((config for config in self.configs if params_of(config) == choice.params), None)
        return found if found is not None else made_of(self.configs[0], choice.params)


class KernelConfigs:
    """The part of the adapter for configurations of kernels.

    :param describe: what is known of a kernel, by its numbered name: in short, and in full.
    :param children: where there are any, they compile what a descent tries.
    """

    tuner = "inductor.config"
    module = "torch._inductor.runtime.triton_heuristics"

    def __init__(
        self,
        describe: Callable[[str], tuple[str, str]],
        timed: Benchmarks | None = None,
        children: CompileChildren | None = None,
    ) -> None:
        self._describe = describe
        self._children = children or CompileChildren()
        self._timed = timed or Benchmarks()
        self._run: TuningRun | None = None
        self._hash_configs: Callable[[Sequence[Any]], str] = str
        self._threads: CompileThreads | None = None
        self._compile_one: Callable[[Any, Any], Any] = lambda autotuner, config: None
        #: What the search for an autotuner is known by: once it is narrowed to the choice, its list is gone.
        self._list_digests: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        #: What is measured now of each autotuner that is searched for, in milliseconds.
        self._measured: dict[int, dict[Params, float]] = {}
        #: The descents under way, by Inductor's tuner and by its autotuner.
        self._descents: dict[int, Descent] = {}
        #: What a race has found of those that Inductor asks for now, in milliseconds.
        self._raced_ms: dict[Any, float] = {}
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

        def make_bench(original: Any) -> Any:
            def bench(self: Any, launcher: Any, *args: Any, with_profiler: bool = False, **kwargs: Any) -> Any:
                time_ms = part._raced_time_ms(self, launcher)
                if time_ms is None:
                    with part._held(self):
                        time_ms = original(self, launcher, *args, with_profiler=with_profiler, **kwargs)
                part._saw(self, launcher, time_ms)
                return time_ms

            return bench

        def make_benchmark_all(original: Any) -> Any:
            def benchmark_all_configs(self: Any, *args: Any, **kwargs: Any) -> Any:
                part._race(self, args, kwargs)
                try:
                    return original(self, *args, **kwargs)
                finally:
                    part._raced_ms.clear()

            return benchmark_all_configs

        def make_descent(original: Any) -> Any:
            def coordinate_descent_tuning(self: Any, launcher: Any, *args: Any, **kwargs: Any) -> Any:
                with part._descending(self, launcher, args, kwargs):
                    return original(self, launcher, *args, **kwargs)

            return coordinate_descent_tuning

        def make_compare(original: Any) -> Any:
            def compare_config(self: Any, func: Any, candidate_config: Any, best_config: Any, best_timing: Any) -> Any:
                part._look_ahead(self, candidate_config, best_config, best_timing)
                return original(self, func, candidate_config, best_config, best_timing)

            return compare_config

        def make_compile_one(original: Any) -> Any:
            part._compile_one = original

            def _precompile_config(self: Any, cfg: Any) -> Any:
                descent = part._descents.get(id(self))
                ready = descent.compiled(cfg) if descent is not None else None
                return original(self, cfg) if ready is None else ready

            return _precompile_config

        owner = module.CachingAutotuner
        compiled = ["self", "warm_cache_only", "reload_kernel", "static_triton_bundle_key"]
        patches.replace(owner, "precompile", compiled, make_precompile)
        patches.replace(owner, "bench", ["self", "launcher", "args", "with_profiler", "kwargs"], make_bench)
        with suppress(HookError):  # then each is measured alone
            patches.replace(owner, "benchmark_all_configs", ["self", "args", "kwargs"], make_benchmark_all)
        with suppress(HookError, AttributeError):  # then each neighbour is compiled and measured at its turn
            compared = ["self", "func", "candidate_config", "best_config", "best_timing"]
            patches.replace(module.CoordescTuner, "compare_config", compared, make_compare)
            patches.replace(owner, "_precompile_config", ["self", "cfg"], make_compile_one)
            descended = ["self", "launcher", "args", "kwargs"]
            patches.replace(owner, "coordinate_descent_tuning", descended, make_descent)

    def _acts_on(self, autotuner: Any) -> bool:
        run = self._run
        assert run is not None
        return not (run.paused or is_placeholder(autotuner) or run.ignores(self.tuner, kernel_name(autotuner)))

    def _race(self, autotuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if id(autotuner) in self._measured:
            limits = STEP if descends(autotuner) else None
            launchers = _may_win(autotuner, autotuner.launchers)
            self._raced_ms.update(self._timed.raced_ms(autotuner, launchers, args, kwargs, limits))

    def _raced_time_ms(self, autotuner: Any, launcher: Any) -> float | None:
        """What a race has found of a launcher that Inductor is about to measure."""
        descent = self._descents.get(id(autotuner))
        return (self._raced_ms if descent is None else descent.raced_ms).pop(launcher, None)

    def _held(self, autotuner: Any) -> AbstractContextManager[None]:
        """The device, for a measurement of a search."""
        return self._timed.held() if id(autotuner) in self._measured else nullcontext()

    @contextmanager
    def _descending(
        self, autotuner: Any, launcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[None]:
        """Compile and race the neighbours that Inductor compares inside, where it searches for a kernel."""
        if id(autotuner) not in self._measured or not descends(autotuner):
            yield
            return

        def race(launchers: Sequence[Any], first_ms: float) -> Mapping[Any, float]:
            first, *others = launchers
            racing = [first, *_may_win(autotuner, others)]
            return self._timed.steps_ms(autotuner, racing, first_ms, args, kwargs)

        descent = Descent(autotuner, launcher, partial(self._compile_side_by_side, autotuner), race)
        self._descents[id(autotuner)] = self._descents[id(autotuner.coordesc_tuner)] = descent
        try:
            yield
        finally:
            for one in (autotuner, autotuner.coordesc_tuner):
                self._descents.pop(id(one), None)

    def _look_ahead(self, tuner: Any, candidate: Any, best: Any, best_ms: float) -> None:
        descent = self._descents.get(id(tuner))
        if descent is None:
            return
        try:
            descent.looks_at(candidate, best, best_ms)
        except Exception as error:  # Inductor's tuner goes on by itself
            assert self._run is not None
            del self._descents[id(tuner)]
            self._run.went_wrong(self.tuner, "compare_config()", error)

    def _compile_side_by_side(self, autotuner: Any, configs: Sequence[Any]) -> list[Any]:
        """Compile on the cores that are idle; what fails is None, and fails again where Inductor compiles it."""
        run = self._run
        assert run is not None
        if len(configs) < 2 or run.policy.cores < 2:
            return [None] * len(configs)
        ready = self._children.compiled(autotuner, configs)
        if ready is not None:
            pairs = zip(configs, ready, strict=True)
            return [self._compile_one(autotuner, config) if is_ready else None for config, is_ready in pairs]
        futures: list[Future[Any]] = []
        with CompilePool(min(run.policy.cores, len(configs))) as pool:
            for config in configs:
                with ExitStack() as held:
                    held.enter_context(run.core())
                    pool.held_for_next = held.pop_all()
                    held.push(pool.held_for_next)
                    # Inductor's settings hold in the context of the thread that asks.
                    futures.append(pool.submit(copy_context().run, self._compile_one, autotuner, config))
        return [None if future.exception() else future.result() for future in futures]

    def _saw(self, autotuner: Any, launcher: Any, time_ms: Any) -> None:
        measured = self._measured.get(id(autotuner))
        if measured is not None:
            measured[params_of(launcher.config)] = float(time_ms)
        elif len(autotuner.launchers) > 1 and self._acts_on(autotuner):
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
                        _narrow(autotuner, search, search.config(choice))
                        if ahead is None or autotuner.compile_results:
                            compile()
                            _settle(autotuner, choice.params)
                        else:
                            wait = ahead.start(compile_without_loading)
                            autotuner.run = _Pending(
                                self._first_run_of_choice, autotuner, search, choice, wait, compile
                            )
                        return None
                    except Exception as error:
                        self._reject(search, tuning, choice, error)
        _widen(autotuner, search)
        began = time.perf_counter()
        compile()
        search.compiled_s = time.perf_counter() - began
        if search.compiles_all or len(autotuner.launchers) > 1 or descends(autotuner):
            autotuner.run = lambda *args, **kwargs: self._first_run(autotuner, search, *args, **kwargs)
        return None

    def _first_run_of_choice(
        self,
        autotuner: Any,
        search: _Search,
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
            _settle(autotuner, choice.params)
        except Exception as error:
            search.rejected[choice.params] = no_longer_compiles(error_line(error))
            _widen(autotuner, search)
            compile()
            return self._first_run(autotuner, search, *args, **kwargs)
        return autotuner.run(*args, **kwargs)

    def _first_run(self, autotuner: Any, search: _Search, *args: Any, **kwargs: Any) -> Any:
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
                    _compile_too(autotuner, search, choice)
                    self._verify(autotuner, search, tuning, args, kwargs)
                    _settle(autotuner, choice.params)
                    break
                except Exception as error:
                    self._reject(search, tuning, choice, error)
            else:
                return self._tune(autotuner, tuning, args, kwargs)
        return autotuner.run(*args, **kwargs)

    def _door(self, search: _Search) -> Any:
        assert self._run is not None
        if self._run.policy.sweep is not None:  # the next test asks again what it runs with
            self._run.at_next_test(forget_compiled)
        return self._run.tuning(
            search.problem, (), search.offers, versions(), search.label, Abilities(search.candidates)
        )

    def _verify(
        self, autotuner: Any, search: _Search, tuning: Tuning, args: tuple[Any, ...], kwargs: dict[str, Any]
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
            params_of(launcher.config): launcher for launcher in [*own, *_may_win(autotuner, autotuner.launchers)]
        }

        def ready(candidates: Sequence[Candidate]) -> dict[Candidate, Runner]:
            some = [launchers[one.params] for one in candidates]
            return dict(zip(candidates, runners(autotuner, some, args, given), strict=True))

        candidates = [Candidate(params=params) for params in launchers]
        verify(tuning, Contest(candidates, ready, self._timed.clock, spent_s=search.compiled_s))

    def _reject(self, search: _Search, tuning: Tuning, choice: Candidate, error: Exception) -> None:
        reason = search.rejected[choice.params] = no_longer_compiles(error_line(error))
        tuning.reject(reason)

    def _tune(self, autotuner: Any, tuning: Tuning, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._timed.searching(tuning), self._watched(autotuner) as times_ms:
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

    @contextmanager
    def _watched(self, autotuner: Any) -> Iterator[dict[Params, float]]:
        times_ms: dict[Params, float] = {}
        self._measured[id(autotuner)] = times_ms
        try:
            yield times_ms
        finally:
            del self._measured[id(autotuner)]

    def _search(self, autotuner: Any, reload: Callable[[], Any] | None) -> _Search | None:
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
        return _Search(problem, configs, results, label, partial(is_reached, autotuner))


def _first_run_of_one(
    autotuner: Any, wait: Callable[[], None], compile: Callable[[], Any], *args: Any, **kwargs: Any
) -> Any:
    """Stand in for the first ``run`` of a kernel that has one candidate, which a thread compiles."""
    vars(autotuner).pop("run", None)
    wait()
    compile()
    return autotuner.run(*args, **kwargs)


def _narrow(autotuner: Any, search: _Search, config: Any) -> None:
    """Leave one candidate to compile, or the one that a compile worker has compiled."""
    params = params_of(config)
    compiled = [result for result in search.results if params_of(result.config) == params]
    _forget_compiled(autotuner)
    if compiled:
        autotuner.compile_results = compiled
    else:
        _load_function(autotuner)
        autotuner.configs = [config]


def _widen(autotuner: Any, search: _Search) -> None:
    """Give all candidates back."""
    if search.narrowed:
        search.narrowed = False
        _forget_compiled(autotuner)
        autotuner.compile_results = list(search.results)
        autotuner.configs = list(search.configs)


def _forget_compiled(autotuner: Any) -> None:
    autotuner.launchers, autotuner.compile_results = [], []


def _load_function(autotuner: Any) -> None:
    """Load the kernel's function, which stays behind in the compile worker."""
    if autotuner.fn.fn is None:
        autotuner.fn = autotuner._reload_kernel().fn


def _settle(autotuner: Any, params: Params) -> None:
    """Leave the launcher of the choice alone, as after a search.

    :raises LookupError: when it is not there.
    """
    found = [launcher for launcher in autotuner.launchers if params_of(launcher.config) == params]
    if not found:
        raise LookupError("Inductor compiled it in another way")
    launcher = found[0]
    autotuner.launchers = [launcher]
    results = [result for result in autotuner.compile_results if params_of(result.config) == params]
    autotuner.compile_results = results or autotuner.compile_results
    for config in {id(one): one for one in (launcher.config, *(result.config for result in results))}.values():
        config.found_by_coordesc = config.found_by_combo_autotune = True


def _compile_too(autotuner: Any, search: _Search, choice: Candidate) -> None:
    """Compile a choice beside the candidates that are, where it is none of these."""
    if not any(params_of(launcher.config) == choice.params for launcher in autotuner.launchers):
        _load_function(autotuner)
        result = autotuner._precompile_config(search.config(choice))
        autotuner.compile_results.append(result)
        autotuner.launchers.append(result.make_launcher())


def _may_win(autotuner: Any, launchers: Sequence[Any]) -> list[Any]:
    """Those launchers that Inductor would measure: it refuses those that spill many registers, without a launch."""
    limit = autotuner.inductor_meta.get("spill_threshold", _SPILLED)
    return [one for one in launchers if autotuner.custom_kernel or (one.n_spills or 0) <= limit]
