"""The adapter for cuTile's tuner: ``exhaustive_search`` of cuda-tile 1.7.

``cuda.tile.tune.exhaustive_search(configs, stream, grid_fn, kernel, args_fn)`` benchmarks each configuration, such as
``{"tile": (64, 64)}``, and returns a ``TuningResult``, whose ``best`` is the fastest. cuTile remembers nothing, so each
call asks the session. The adapter replaces this function in each module that has it under a name:

- On a hit the replacement returns a ``TuningResult`` of the loaded configuration. Nothing is compiled or benchmarked.
- On a miss cuTile searches as without the plugin, and the adapter records the ``TuningResult``.

cuTile has no key, so the adapter makes it from the kernel's arguments: see
:mod:`~pytest_autotune.tuners.cutile.search`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.cutile.search import NAME, TileSearch
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.arguments import list_holders
from pytest_autotune.tuners.shared.candidates import does_not_compile
from pytest_autotune.tuners.shared.configurations import (
    ConfigurationQuestion,
    SearchResults,
    was_measured_for_this_problem,
)
from pytest_autotune.tuners.shared.patches import (
    CallHook,
    CallResult,
    HookedCall,
    Patches,
    check_signature,
)
from pytest_autotune.tuners.source.libraries import find_version

#: The distribution of cuTile.
_LIBRARY = "cuda-tile"
_SEARCH_PARAMETERS = [
    "search_space",
    "stream",
    "grid_fn",
    "kernel",
    "args_fn",
    "hints_fn",
    "quiet",
    "single_run_timeout_sec",
    "flush_l2",
]
_MEASUREMENT_FIELDS = ["config", "mean_us", "num_samples", "error_margin_us"]
_RESULT_FIELDS = ["best", "successes", "failures"]
#: The error of tileiras, cuTile's compiler, if it loads the libnvvm of another CUDA.
_WRONG_LIBNVVM = "Return code 5"
_WRONG_LIBNVVM_NOTE = (
    f'cutile: every candidate failed with "{_WRONG_LIBNVVM}": tileiras loads the libnvvm of the CUDA that CUDA_HOME '
    "names; unset CUDA_HOME, or set it to the CUDA that tileiras belongs to"
)


class Adapter:
    """Hooks ``exhaustive_search``; see :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = "cuda.tile.tune"
    acts_without_entries = True

    def __init__(self) -> None:
        self._patches: Patches | None = None

    def hook(self, module: ModuleType, session: Session) -> None:
        library = TileLibrary(module)
        self._patches = Patches(session, NAME)
        hook = SearchHook(session, library)
        # A module that ran "from cuda.tile.tune import exhaustive_search" before now has its own name for it.
        for holder, name in list_holders(library.search):
            self._patches.replace(holder, name, _SEARCH_PARAMETERS, hook)

    def unhook(self) -> None:
        if self._patches is not None:
            self._patches.undo()

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Do nothing: cuTile has no memory of choices."""
        yield

    def untracked(self) -> list[str]:
        """Return nothing: cuTile has no memory that could show an earlier search."""
        return []


class TileLibrary:
    """The names of ``cuda.tile.tune`` that the adapter uses, after a check of their parameters and fields.

    :raises HookError: if this version of cuTile has other parameters or fields.
    """

    def __init__(self, module: ModuleType) -> None:
        search = getattr(module, "exhaustive_search", None)
        self.search: Any = check_signature(search, "exhaustive_search()", _LIBRARY, _SEARCH_PARAMETERS)
        self._measurement = _check_fields(module, "Measurement", _MEASUREMENT_FIELDS)
        self._result = _check_fields(module, "TuningResult", _RESULT_FIELDS)

    def build_result(self, config: object, mean_us: float) -> object:
        """Return the ``TuningResult`` of a search that measured this configuration only."""
        best = self._measurement(config=config, mean_us=mean_us, num_samples=0, error_margin_us=0.0)
        return self._result(best=best, successes=(best,), failures=())


def _check_fields(module: ModuleType, name: str, fields: list[str]) -> Any:
    """Return a dataclass of cuTile after a check of its fields.

    :raises HookError: if the module has no such dataclass, or it has other fields.
    """
    cls = getattr(module, name, None)
    if not dataclasses.is_dataclass(cls) or [field.name for field in dataclasses.fields(cls)] != fields:
        raise HookError(f"{name} of {_LIBRARY} {find_version(_LIBRARY)} has other fields")
    return cls


@dataclass(frozen=True)
class OpenTileSearch:
    """A search of cuTile that takes place, because no cache has a choice that can be used.

    :param tuning: the session's record of this search.
    """

    tuning: Tuning
    results: SearchResults


class SearchHook(CallHook):
    """Asks for the choice of each search, and records the results of the searches that take place."""

    def __init__(self, session: Session, library: TileLibrary) -> None:
        self._session = session
        self._library = library

    def ask(self, call: HookedCall) -> CallResult | None:
        """Return the ``TuningResult`` of the loaded choice; None to let cuTile search.

        If the result of the search is to be recorded, ``call.state`` has the open search. It is not recorded if the
        session does not act on the kernel, or if the problem has no stable form.
        """
        arguments = call.arguments
        search_space: Any = arguments["search_space"]
        # This check comes first: to find the name of the kernel, a function of the user may be called.
        if self._session.is_paused:
            return None
        # cuTile asks for the number of configurations, which an iterator does not have. It is left to cuTile unread.
        if not hasattr(search_space, "__len__") or len(search_space) == 0:
            return None
        search = TileSearch(
            configs=list(search_space),
            stream=arguments["stream"],
            grid_fn=arguments["grid_fn"],
            kernel=arguments["kernel"],
            args_fn=arguments["args_fn"],
            hints_fn=arguments["hints_fn"],
            flush_l2=arguments["flush_l2"],
        )
        if self._session.leaves_alone(NAME, search.kernel_name):
            return None
        try:
            question = search.build_question()
        except UncacheableError as error:
            self._session.report_uncacheable(search.problem, str(error))
            return None
        question.note_large_source(self._session)
        tuning = call.enter(self._session.tuning(question))
        result = self._find_loaded_result(search, question, tuning)
        if result is not None:
            return CallResult(result)
        call.state = OpenTileSearch(tuning, SearchResults(question.configurations))
        # cuTile compiles each configuration right before it benchmarks it, so the search holds the GPU to its end.
        call.enter(tuning.measuring(search.lock_name))
        return None

    def _find_loaded_result(self, search: TileSearch, question: ConfigurationQuestion, tuning: Tuning) -> object | None:
        """Return the ``TuningResult`` of the first entry that can be used; None if the session offers no such entry."""
        for entry in tuning.offered_entries():
            assert entry.choice is not None  # the session offers only entries with a choice
            config = question.configurations.find(entry.choice)
            # A TuningResult needs a time. Zero stands for the time of a choice whose time nobody measured.
            result = self._library.build_result(config, entry.choice.time_us or 0.0)
            if was_measured_for_this_problem(self._session, tuning):
                # The search that wrote the entry has launched the choice for this problem, so it needs no trial.
                tuning.race(search.build_contest)
                return result
            # The choice comes from another problem, so try whether it can be launched for this problem.
            error = search.find_launch_error(config)
            if error is None:
                return result
            first_line = str(error).partition("\n")[0]
            tuning.reject(does_not_compile(first_line))
        return None

    def note(self, call: HookedCall, result: Any) -> None:
        """Record a ``TuningResult``: the times of its successes, the errors of its failures, and its best."""
        search = call.state
        if search is None:
            return
        for measurement in result.successes:
            label = f"+-{measurement.error_margin_us:.2f} us, {measurement.num_samples} runs"
            search.results.note_time(measurement.config, measurement.mean_us, label)
        for config, error_class, message in result.failures:
            search.results.note_failure(config, f"{error_class.__name__}: {message}")
        search.results.record(search.tuning, result.best.config)

    def note_error(self, call: HookedCall, error: Exception) -> None:
        """Give the user the remedy, if every configuration failed because of ``CUDA_HOME``.

        If every configuration fails, cuTile raises a ValueError with the error of the first configuration.
        """
        if call.state is not None and _WRONG_LIBNVVM.lower() in str(error).lower():
            self._session.note(_WRONG_LIBNVVM_NOTE)
