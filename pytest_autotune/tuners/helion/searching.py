"""The hooks in Helion's searches: they ask for the choice, note the candidates, and take the GPU for measurements."""

from __future__ import annotations

import copy
import math
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_autotune.cache.model import Candidate, Digest, Entry, UncacheableError, Value
from pytest_autotune.cache.structured import decode_params
from pytest_autotune.cache.wording import describe_error
from pytest_autotune.run.lookup import Question
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.helion.identity import NAME, HelionSearch, SearchIdentity, compute_identity, name_problem
from pytest_autotune.tuners.measuring.clocks import Runner, torch_clock
from pytest_autotune.tuners.measuring.race import Contest
from pytest_autotune.tuners.shared.candidates import does_not_compile
from pytest_autotune.tuners.shared.configurations import Configurations, SearchResults
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, CallResult, HookedCall
from pytest_autotune.tuners.source.libraries import list_versions
from pytest_autotune.tuners.source.source_digest import FORM

#: Helion's words for a config that was measured, and for a config whose code equals that of a measured config.
_MEASURED = ("ok", "deduplicated")


class SearchQuestion(Question):
    """Asks for the config of a search."""

    def __init__(self, search: HelionSearch, identity: SearchIdentity) -> None:
        fingerprint = [
            Value("source", identity.source.digest, FORM),
            Value("search", identity.space, "digest"),
            Value("settings", identity.settings.id, "digest"),
        ]
        libraries = [library for library in identity.source.libraries if library.name != "helion"]
        versions = list_versions("helion", "triton", "torch", distributions=libraries)
        super().__init__(identity.problem, fingerprint, versions=versions, may_be_renamed=True)
        self.search = search
        self.configurations = identity.configurations
        self._identity = identity

    def offers(self, entry: Entry) -> bool:
        """Whether Helion would accept the entry's choice now."""
        return self.find_config(entry.choice) is not None

    def candidates(self) -> Sequence[Candidate]:
        """Return the configs of a finite search. Any other search makes its configs while it runs."""
        if self.configurations is None:
            return ()
        return self.configurations.list_candidates()

    def digests(self) -> Iterable[Digest]:
        """Return the functions, configs and settings that the fingerprint is made of."""
        return self._identity.list_digests()

    def find_config(self, choice: Candidate | None) -> Any:
        """Return Helion's config for a choice; None if the choice is no candidate.

        A finite search gets its own object. For another search the config is built from the choice.
        """
        if choice is None:
            return None
        if self.configurations is not None:
            if not self.configurations.has(choice):
                return None
            return self.configurations.find(choice)
        if choice.id or not choice.params:
            return None
        try:
            config = sys.modules["helion"].Config.from_dict(decode_params(choice.params))
            # normalize() changes its argument, and refuses a config of another search space in many ways.
            self.search.search.config_spec.normalize(decode_params(choice.params))
        except Exception:
            return None
        return config


class ChoiceContest:
    """Brings the configs of a finite search to the race of a loaded choice."""

    def __init__(self, search: HelionSearch, configurations: Configurations | None) -> None:
        self._search = search
        self._configurations = configurations

    def build(self) -> Contest | str:
        """Return the contest, or the reason why the choice cannot be raced."""
        if self._configurations is None:
            return "its candidates are made by a search"
        if self._search.is_interpreted:
            return "it was interpreted, and times mean nothing"
        if not self._search.is_on_gpu:
            return "there is no GPU"
        clock = partial(torch_clock, flush_l2=True)
        return Contest(self._configurations.list_candidates(), self.build_runners, clock, expected=(Exception,))

    def build_runners(self, candidates: Sequence[Candidate]) -> dict[Candidate, Runner]:
        """Compile configs, and return a runner for each that compiles.

        The kernel may write into its arguments, so all launches get a copy of the test's arguments.
        """
        assert self._configurations is not None
        args = copy.deepcopy(self._search.search.args)
        runners = {}
        for candidate in candidates:
            config = self._configurations.find(candidate)
            try:
                launch = self._search.bound_kernel.compile_config(config, allow_print=False)
                launch(*args)  # compiles the Triton kernel
            except Exception:  # a candidate that fails drops out, as in a search
                continue
            runners[candidate] = Runner(partial(launch, *args))
        return runners


@dataclass(frozen=True)
class OpenSearch:
    """A search that runs now, because no cache has its choice.

    :param search: Helion's search. Helion may run further searches inside it; they are a part of this search.
    """

    search: HelionSearch
    tuning: Tuning
    results: SearchResults

    @property
    def processor(self) -> str:
        """The name of the processor to take for a measurement; empty for the current GPU."""
        if self.search.is_on_gpu:
            return ""
        return "cpu"

    def note(self, result: Any) -> None:
        """Note Helion's ``BenchmarkResult`` for one config. Its time is in milliseconds."""
        if result.status in _MEASURED and math.isfinite(result.perf):
            self.results.note_time(result.config, result.perf * 1000)
        # A search may measure a config again. A failure does not replace an earlier time.
        elif not self.results.has_time(result.config):
            self.results.note_failure(result.config, f"Helion: {result.status.replace('_', ' ')}")

    def record(self, config: Any) -> None:
        """Record the config that Helion chose.

        The last step of a search may simplify the fastest config into a config that no batch has measured. The method
        then notes the best time of the search for the simplified config.
        """
        if not self.results.has_time(config):
            self.results.note_time(config, self.search.search.best_perf_so_far * 1000)
        self.results.record(self.tuning, config)


#: The search that runs in this thread.
_open_search: ContextVar[OpenSearch | None] = ContextVar("open_search", default=None)


@contextmanager
def _opened(search: OpenSearch) -> Iterator[None]:
    token = _open_search.set(search)
    try:
        yield
    finally:
        _open_search.reset(token)


class AutotuneHook(CallHook):
    """Answers ``autotune()`` of a search, or of the cache around a search, and records the search's choice."""

    def __init__(self, session: Session) -> None:
        self._session = session
        #: The kernels that asked.
        self.kernels: weakref.WeakSet[Any] = weakref.WeakSet()

    def ask(self, call: HookedCall) -> CallResult | None:
        """Answer with a known choice. Else open a tuning that lasts until the search ends."""
        owner = call.arguments["self"]
        search = HelionSearch(getattr(owner, "autotuner", owner))
        # A search inside a search: a stage, a trial of autotune_best_of_k, or the search inside a cache.
        if _open_search.get() is not None:
            return None
        if self._session.is_paused or self._session.ignores(NAME, search.kernel_name):
            return None
        try:
            identity = compute_identity(search)
        except UncacheableError as error:
            self._session.report_uncacheable(name_problem(search), str(error))
            return None
        note = identity.source.note(identity.problem.name)
        if note:
            self._session.note(note)
        self._note_kernel(search.bound_kernel.kernel)
        question = SearchQuestion(search, identity)
        tuning = call.enter(self._session.tuning(question))
        config = self._take_choice(question, tuning)
        if config is not None:
            return CallResult(config)
        call.state = OpenSearch(search, tuning, SearchResults(identity.configurations or Configurations(())))
        call.enter(_opened(call.state))
        return None

    def note(self, call: HookedCall, result: Any) -> None:
        """Record the config that the search returned."""
        if call.state is not None:
            call.state.record(result)

    def note_error(self, call: HookedCall, error: Exception) -> None:
        """Say why each config failed, if the search ended without a config."""
        if call.state is not None and call.state.results.fastest is None and call.state.results.candidates:
            call.state.tuning.not_recorded(call.state.results.failure, is_over=True)

    def _note_kernel(self, kernel: Any) -> None:
        self.kernels.add(kernel)
        if self._session.picks_candidates:
            self._session.at_next_test(kernel.reset)

    def _take_choice(self, question: SearchQuestion, tuning: Tuning) -> Any:
        """Return the config of the first offered choice that compiles; None if there is none."""
        for entry in tuning.offered_entries():
            config = question.find_config(entry.choice)
            try:
                # Helion keeps the result, and compiles the config of a choice anyway.
                question.search.bound_kernel.compile_config(config, allow_print=False)
            except Exception as error:
                tuning.reject(does_not_compile(describe_error(error)))
                continue
            tuning.race(ChoiceContest(question.search, question.configurations).build)
            return config
        return None


class BatchHook(CallHook):
    """Notes the results of ``BaseSearch.benchmark_batch``."""

    def note(self, call: HookedCall, result: Any) -> None:
        """Note the result of each config in the batch."""
        open_search = _open_search.get()
        if open_search is None:
            return
        for benchmark_result in result:
            open_search.note(benchmark_result)


class MeasurementHook(CallHook):
    """Takes the GPU for a single measurement of a search.

    A search of Helion compiles between its measurements. If it held the GPU, other workers would wait for minutes.
    """

    def ask(self, call: HookedCall) -> CallResult | CallInstead | None:
        """Take the device until the measurement ends."""
        open_search = _open_search.get()
        if open_search is not None:
            call.enter(open_search.tuning.measuring(open_search.processor))
        return None
