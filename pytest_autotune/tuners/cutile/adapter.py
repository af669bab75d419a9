"""The adapter for cuTile: it hooks ``cuda.tile.tune.exhaustive_search``.

cuTile itself neither remembers a choice nor has a key. The key is made of the kernel's arguments: see
:mod:`~pytest_autotune.tuners.cutile.search`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.cutile.internals import SEARCH_PARAMETERS, WRONG_LIBNVVM, TileLibrary
from pytest_autotune.tuners.cutile.search import NAME, TileSearch
from pytest_autotune.tuners.shared.arguments import list_holders
from pytest_autotune.tuners.shared.candidates import does_not_compile
from pytest_autotune.tuners.shared.configurations import ConfigurationQuestion, SearchResults
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, CallResult, HookedCall, Patches

_WRONG_LIBNVVM_NOTE = (
    f'cutile: every candidate failed with "{WRONG_LIBNVVM}": tileiras loads the libnvvm of the CUDA that CUDA_HOME '
    "names; unset CUDA_HOME, or set it to the CUDA that tileiras belongs to"
)


class Adapter:
    """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = "cuda.tile.tune"
    acts_without_entries = True

    def __init__(self) -> None:
        self._patches: Patches | None = None

    def hook(self, module: ModuleType, session: Session) -> None:
        library = TileLibrary(module)
        self._patches = Patches(session, NAME)
        hook = SearchHook(session, library)
        # A library that a conftest.py imported has taken the function by its name.
        for holder, name in list_holders(library.search):
            self._patches.replace(holder, name, SEARCH_PARAMETERS, hook)

    def unhook(self) -> None:
        if self._patches is not None:
            self._patches.undo()

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Do nothing: cuTile remembers no choice."""
        yield

    def untracked(self) -> list[str]:
        """Return nothing: cuTile remembers no choice that was made before."""
        return []


@dataclass
class OpenTileSearch:
    """A search of cuTile that is going on."""

    question: ConfigurationQuestion
    tuning: Tuning
    results: SearchResults


class SearchHook(CallHook):
    """Asks for the choice of each search, and records the results of the searches that take place."""

    def __init__(self, session: Session, library: TileLibrary) -> None:
        self._session = session
        self._library = library

    def ask(self, call: HookedCall) -> CallResult | CallInstead | None:
        arguments = call.arguments
        space = list(arguments["search_space"])
        if not space or self._session.is_paused:
            return None
        search = TileSearch(
            space,
            arguments["stream"],
            arguments["grid_fn"],
            arguments["kernel"],
            arguments["args_fn"],
            arguments["hints_fn"],
            arguments["flush_l2"],
        )
        if self._session.ignores(NAME, search.kernel_name):
            return None
        try:
            question = search.build_question()
        except UncacheableError as error:
            self._session.report_uncacheable(search.problem, str(error))
            return None
        question.note_large_source(self._session)
        tuning = call.enter(self._session.tuning(question))
        for entry in tuning.offered_entries():
            choice = entry.choice
            assert choice is not None
            config = question.configurations.find(choice)
            if self._can_be_used(search, config, tuning):
                return CallResult(self._library.build_result(config, choice.time_us or 0.0))
        call.state = OpenTileSearch(question, tuning, SearchResults(question.configurations))
        call.enter(tuning.measuring("" if search.is_on_gpu else "cpu"))
        return call.with_arguments(search_space=space)

    def _can_be_used(self, search: TileSearch, config: object, tuning: Tuning) -> bool:
        """Whether a configuration works. If it was not measured for this problem, it is launched once."""
        if not self._session.picks_candidates and not tuning.lookup.fallback:
            tuning.race(search.build_contest)
            return True
        if not search.is_on_gpu:
            return True
        error = search.explain_unusable(config)
        if error is not None:
            tuning.reject(does_not_compile(str(error).partition("\n")[0]))
        return error is None

    def note(self, call: HookedCall, result: object) -> None:
        opened = call.state
        if not isinstance(opened, OpenTileSearch):
            return
        measured = result  # a TuningResult
        for measurement in measured.successes:  # type: ignore[attr-defined]
            label = f"+-{measurement.error_margin_us:.2f} us, {measurement.num_samples} runs"
            opened.results.note_time(measurement.config, measurement.mean_us, label)
        for config, error_class, message in measured.failures:  # type: ignore[attr-defined]
            opened.results.note_failure(config, f"{error_class.__name__}: {message}")
        opened.results.record(opened.tuning, measured.best.config)  # type: ignore[attr-defined]

    def note_error(self, call: HookedCall, error: Exception) -> None:
        # If every configuration failed, cuTile raises a ValueError with the words of the first.
        if isinstance(call.state, OpenTileSearch) and WRONG_LIBNVVM.lower() in str(error).lower():
            self._session.note(_WRONG_LIBNVVM_NOTE)
