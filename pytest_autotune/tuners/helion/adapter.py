"""The adapter for Helion 1.5, which searches for the config of a ``@helion.kernel``.

A config is a ``helion.Config(block_sizes=[32], num_warps=4)``. The first call of a kernel with arguments of some kind
searches, and later calls run the kernel with the config that Helion remembers. They run no code of the adapter.

The adapter replaces five kinds of functions:

- ``BaseSearch.autotune`` runs one search. On a hit the adapter returns the loaded config, and Helion compiles it. On a
  miss Helion searches, and the adapter records the result.
- ``AutotuneCacheBase.autotune`` belongs to a cache object that Helion puts around a search that makes its configs. With
  ``autotune_best_of_k=3`` this method runs three searches. The adapter records them as a single search.
- ``BaseSearch.benchmark_batch`` returns the results of several configs, which the adapter notes.
- ``do_bench`` and ``interleaved_bench`` measure in this process. The adapter takes the GPU lock for them.
- ``BenchmarkWorker.run`` measures in another process, for which this process waits. The adapter takes the GPU lock.

Helion has a cache of its own. The adapter turns it off while it is hooked. Else a config of Helion's cache would be
neither recorded nor checked.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.cache.wording import describe_error
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.helion.search import NAME, ConfigContest, HelionSearch, SearchQuestion, build_question
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.candidates import does_not_compile
from pytest_autotune.tuners.shared.configurations import Configurations, SearchResults
from pytest_autotune.tuners.shared.patches import CallHook, CallResult, HookedCall, Patches

#: Helion's variable that turns its own cache off, for reading and for writing.
_SKIP_CACHE = "HELION_SKIP_CACHE"
_ADVICE = "1.5 is needed"
#: Helion's status of a config that has a time. A config is ``deduplicated`` if its code equals the code of another
#: config, whose time it then has.
_MEASURED = ("ok", "deduplicated")


class Adapter:
    """Hooks Helion's searches; see :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = "helion.autotuner"
    acts_without_entries = True

    def __init__(self) -> None:
        self._exits = ExitStack()
        self._autotune_hook: AutotuneHook | None = None

    def hook(self, module: ModuleType, session: Session) -> None:
        # Find all modules first: a HookError must come before the first function is replaced.
        search_module = _find_submodule(module, "base_search")
        cache_module = _find_submodule(module, "base_cache")
        provider_module = _find_submodule(module, "benchmark_provider")
        worker_module = _find_submodule(module, "benchmark_worker")
        patches = Patches(session, NAME)
        self._exits.callback(patches.undo)
        autotune_hook = AutotuneHook(session)
        # A cache object of Helion runs a search inside its own autotune(). AutotuneHook answers the outer call only.
        for cls in (search_module.BaseSearch, cache_module.AutotuneCacheBase):
            patches.replace(cls, "autotune", ["self", "skip_cache"], autotune_hook, advice=_ADVICE)
        patches.replace(
            search_module.BaseSearch, "benchmark_batch", ["self", "configs"], BatchHook(), allow_more_parameters=True
        )
        measurement_hook = MeasurementHook()
        # Both modules have imported do_bench by its name.
        for holder in (search_module, provider_module):
            patches.replace(holder, "do_bench", ["fn"], measurement_hook, allow_more_parameters=True, advice=_ADVICE)
        patches.replace(search_module, "interleaved_bench", ["fns"], measurement_hook, allow_more_parameters=True)
        patches.replace(worker_module.BenchmarkWorker, "run", ["self", "job", "timeout"], measurement_hook)
        self._set_variable(_SKIP_CACHE, "1")
        self._autotune_hook = autotune_hook

    def _set_variable(self, name: str, value: str) -> None:
        """Set a variable of the environment until the adapter is unhooked."""
        before = os.environ.get(name)
        if before is None:
            self._exits.callback(os.environ.pop, name, None)
        else:
            self._exits.callback(os.environ.__setitem__, name, before)
        os.environ[name] = value

    def unhook(self) -> None:
        self._exits.close()
        self._autotune_hook = None

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Have every kernel forget its configs, now and when the context ends.

        A kernel then asks the session again. The session remembers the choices from before the context, so nothing is
        tuned a second time.
        """
        self._reset_kernels()
        try:
            yield
        finally:
            self._reset_kernels()

    def _reset_kernels(self) -> None:
        if self._autotune_hook is not None:
            for kernel in list(self._autotune_hook.kernels):
                kernel.reset()

    def untracked(self) -> list[str]:
        """Return nothing: the adapter does not see searches that ended before the hook."""
        return []


def _find_submodule(package: ModuleType, name: str) -> Any:
    """Return a module of a package.

    :raises HookError: if the package has no such module.
    """
    module = getattr(package, name, None)
    if module is None:
        raise HookError(f"{package.__name__} has no {name}; Helion {_ADVICE}")
    return module


#: The search that runs in this thread; None if no search runs.
_open_search: ContextVar[OpenSearch | None] = ContextVar("open_search", default=None)


class AutotuneHook(CallHook):
    """Asks for the choice of each search, and records the results of the searches that take place."""

    def __init__(self, session: Session) -> None:
        self._session = session
        #: The kernels whose searches asked the session.
        self.kernels: weakref.WeakSet[Any] = weakref.WeakSet()

    def ask(self, call: HookedCall) -> CallResult | None:
        """Return the loaded config; None to let Helion search.

        If the result of the search is to be recorded, ``call.state`` has the open search. It is not recorded if the
        session does not act on the kernel, or if the problem has no stable form.
        """
        if _open_search.get() is not None:
            # A search runs, and this call is a part of it: a trial of autotune_best_of_k, or the search in a cache.
            return None
        # ``self`` is a search, or a cache object with the search in ``autotuner``.
        owner = call.arguments["self"]
        search = HelionSearch(getattr(owner, "autotuner", owner))
        if self._session.leaves_alone(NAME, search.kernel_name):
            return None
        try:
            question = build_question(search)
        except UncacheableError as error:
            self._session.report_uncacheable(search.problem, str(error))
            return None
        question.note_large_source(self._session)
        self._note_kernel(search.bound_kernel.kernel)
        tuning = call.enter(self._session.tuning(question))
        config = self._find_loaded_config(question, tuning)
        if config is not None:
            return CallResult(config)
        call.state = OpenSearch(search, tuning, SearchResults(question.configurations or Configurations(())))
        call.enter(call.state.as_current())
        return None

    def _note_kernel(self, kernel: Any) -> None:
        """Note a kernel that asked. In a sweep, the next test shall ask again."""
        self.kernels.add(kernel)
        if self._session.picks_candidates:
            self._session.at_next_test(kernel.reset)

    def _find_loaded_config(self, question: SearchQuestion, tuning: Tuning) -> Any:
        """Return the config of the first entry that compiles; None if the session offers no such entry."""
        for entry in tuning.offered_entries():
            # The config is not None: the session asked SearchQuestion.offers() before it offered the entry.
            config = question.find_config(entry.choice)
            try:
                # This costs nothing more: Helion keeps the compiled config, and uses it in the launch after the search.
                question.search.bound_kernel.compile_config(config, allow_print=False)
            except Exception as error:
                tuning.reject(does_not_compile(describe_error(error)))
                continue
            tuning.race(ConfigContest(question.search, question.configurations).build)
            return config
        return None

    def note(self, call: HookedCall, result: Any) -> None:
        """Record the config that the search returned."""
        if call.state is not None:
            call.state.record(result)

    def note_error(self, call: HookedCall, error: Exception) -> None:
        """Note why each config failed, if the search ended without a time."""
        search = call.state
        if search is None:
            return
        if search.results.fastest is None and search.results.candidates:
            # is_over: the search of an update would end with the same error, so the problem does not count as a miss.
            search.tuning.not_recorded(search.results.failure, is_over=True)


@dataclass(frozen=True)
class OpenSearch:
    """A search that takes place, because no cache has a choice that can be used.

    :param search: the search that asked. Helion may run further searches inside it, whose results count as well.
    :param tuning: the session's record of this search.
    """

    search: HelionSearch
    tuning: Tuning
    results: SearchResults

    @contextmanager
    def as_current(self) -> Iterator[None]:
        """Have :class:`BatchHook` and :class:`MeasurementHook` work for this search."""
        token = _open_search.set(self)
        try:
            yield
        finally:
            _open_search.reset(token)

    @property
    def lock_name(self) -> str:
        """The name of the processor that a measurement locks: empty for the current GPU, ``cpu`` without a GPU."""
        if self.search.is_on_gpu:
            return ""
        return "cpu"

    def note(self, result: Any) -> None:
        """Note Helion's ``BenchmarkResult`` of one config. Its ``perf`` is the time in milliseconds."""
        if result.status in _MEASURED and math.isfinite(result.perf):
            self.results.note_time(result.config, result.perf * 1000)
            return
        if self.results.has_time(result.config):
            return  # the search measured the config before: keep this time
        self.results.note_failure(result.config, f"Helion: {result.status.replace('_', ' ')}")

    def record(self, config: Any) -> None:
        """Record the config that Helion chose.

        At its end a search may simplify its fastest config into a config that it has not measured. The simplified
        config is then recorded with the best time of the search.
        """
        if not self.results.has_time(config):
            self.results.note_time(config, self.search.base_search.best_perf_so_far * 1000)
        self.results.record(self.tuning, config)


class BatchHook(CallHook):
    """Notes the results of ``BaseSearch.benchmark_batch``, which measures several configs."""

    def note(self, call: HookedCall, result: Any) -> None:
        open_search = _open_search.get()
        if open_search is None:
            return
        for benchmark_result in result:
            open_search.note(benchmark_result)


class MeasurementHook(CallHook):
    """Takes the GPU lock for a single measurement of a search.

    Helion compiles between its measurements. If the hook held the lock for a whole search, other workers would wait for
    minutes.
    """

    def ask(self, call: HookedCall) -> None:
        open_search = _open_search.get()
        if open_search is not None:
            call.enter(open_search.tuning.measuring(open_search.lock_name))
