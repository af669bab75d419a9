"""Tests that each adapter must pass. Subclass :class:`AdapterConformance` and define how a test uses the library."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar

import pytest

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Entry, Fingerprint
from pytest_autotune.run.lookup import Lookup, Outcome, Policy, TunedEntry
from pytest_autotune.run.session import Mode, Session
from pytest_autotune.tuners.protocol import Adapter, HookError
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Event, Log
from pytest_autotune.workers.locks import Locks

WAIT_S = 5.0


class AdapterConformance(ABC):
    """The tests of an adapter. Each test lets the library tune one problem.

    The name of a subclass begins with ``Test``, so that pytest collects it.
    """

    #: The name of the tuner and of its entry point.
    tuner: ClassVar[str]
    #: Makes the adapter. The entry point names it, too.
    adapter: ClassVar[Callable[[], Adapter]]
    #: The names of the tests that this tuner cannot pass, with the reasons. These tests are skipped.
    exempt: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture(autouse=True)
    def _skip_exempted(self, request: pytest.FixtureRequest) -> None:
        reason = self.exempt.get(request.node.originalname)
        if reason:
            pytest.skip(reason)

    @abstractmethod
    def tune(self) -> object:
        """Let the library tune one problem, the same at each call. Return its choice, which tests compare."""

    @abstractmethod
    def forget(self) -> None:
        """Empty the library's memory of choices, so that the next :meth:`tune` asks for one again."""

    @abstractmethod
    def searches(self) -> int:
        """Return how often the library has searched in this process."""

    @pytest.fixture
    def library(self) -> Iterator[ModuleType]:
        """Give a test the library without any choices."""
        library = importlib.import_module(self._make().module)
        self.forget()
        yield library
        self.forget()

    def _make(self) -> Adapter:
        return type(self).adapter()

    @contextmanager
    def _hooked(
        self, library: ModuleType, *entries: Entry, modes: Sequence[Mode] = (), **policy: Any
    ) -> Iterator[tuple[Session, list[Lookup], Adapter]]:
        """Hook the adapter for a run that loaded these entries; yield the session, its lookups and the adapter.

        :param policy: fields of :class:`pytest_autotune.run.lookup.Policy`, such as ``is_dumping=True``.
        """
        #: Gets the events of the run.
        self._log = Log(None, process="main")
        index = None
        if entries:
            index = EntryIndex.from_caches([Cache(entries)])
        session = Session(Policy(**policy), index, Coordinator(Locks(WAIT_S)), pytest.fail, log=self._log, modes=modes)
        adapter = self._make()
        try:
            adapter.hook(library, session)
            yield session, session.lookups, adapter
        finally:
            adapter.unhook()

    def _tuned(self, library: ModuleType) -> tuple[object, Entry]:
        """Tune with nothing loaded. Return the library's choice and the recorded entry."""
        with self._hooked(library) as (_, lookups, _):
            choice = self.tune()
        self.forget()
        assert len(lookups) == 1, f"one problem was tuned, and {len(lookups)} were reported"
        entry = lookups[0].entry
        assert entry is not None, "a search took place and nothing was recorded"
        return choice, entry

    def test_creating_the_adapter_imports_no_library(self) -> None:
        factory: Any = type(self).adapter
        script = (
            f"import sys; from {factory.__module__} import {factory.__qualname__} as make; "
            "adapter = make(); print(adapter.module in sys.modules)"
        )
        paths = [path for path in sys.path if path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
        assert process.stdout.strip() == "False", f"making the adapter imported its library\n{process.stderr}"

    def test_two_equal_calls_record_one_entry_with_its_choice(self, library: ModuleType) -> None:
        with self._hooked(library) as (session, lookups, adapter):
            self.tune()
            self.tune()
            assert list(adapter.untracked()) == []
        assert [lookup.problem.library for lookup in lookups] == [self.tuner]
        lookup = lookups[0]
        assert lookup.is_tuned
        assert lookup.entry is not None
        assert lookup.entry.choice is not None or lookup.entry.candidates or lookup.entry.native
        assert lookup.entry.tuning_seconds >= 0
        assert self.tuner in session.versions, "Question(versions=…) notes the library's version"
        choice = lookup.entry.choice
        if choice is not None and lookup.entry.candidates:
            assert any(choice.is_same_configuration(candidate) for candidate in lookup.entry.candidates)

    def test_a_loaded_choice_is_a_hit_and_used_without_a_search(self, library: ModuleType) -> None:
        choice, entry = self._tuned(library)
        before = self.searches()
        with self._hooked(library, entry) as (_, lookups, _):
            assert self.tune() == choice
        assert [(lookup.outcome, lookup.is_tuned) for lookup in lookups] == [(Outcome.HIT, False)]
        assert self.searches() == before, "a loaded choice was searched for all the same"

    def test_an_entry_survives_every_file_format_and_the_log(self, library: ModuleType) -> None:
        _, entry = self._tuned(library)
        for cache_format in Format:
            assert decode(encode(Cache((entry,)), cache_format), cache_format, "a file").entries == (entry,)
        lookup = Lookup(entry.identity, result=TunedEntry(entry))
        assert Lookup.from_event(Event.decode(lookup.to_event().encode())) == lookup

    def test_two_runs_give_a_call_the_same_problem_and_fingerprint(self, library: ModuleType) -> None:
        _, first = self._tuned(library)
        _, second = self._tuned(library)
        assert first.identity == second.identity

    def test_an_entry_with_another_fingerprint_is_stale_and_retuned(self, library: ModuleType) -> None:
        _, entry = self._tuned(library)
        assert entry.fingerprint, "a tuner whose entries have no fingerprint is exempt from this test"
        changed = _with_other_fingerprint(entry)
        before = self.searches()
        with self._hooked(library, changed) as (_, lookups, _):
            self.tune()
        assert [(lookup.outcome, lookup.is_tuned) for lookup in lookups] == [(Outcome.STALE, True)]
        assert self.searches() == before + 1

    def test_an_entry_whose_choice_is_no_candidate_is_stale(self, library: ModuleType) -> None:
        _, entry = self._tuned(library)
        assert entry.choice is not None, "a tuner whose entries have no choice is exempt from this test"
        gone = replace(entry, choice=replace(entry.choice, id="not on offer", params=()))
        with self._hooked(library, gone) as (_, lookups, _):
            self.tune()
        assert [(lookup.outcome, lookup.is_tuned) for lookup in lookups] == [(Outcome.STALE, True)]

    def test_on_miss_error_fails_the_call_before_a_search(self, library: ModuleType) -> None:
        _, entry = self._tuned(library)
        before = self.searches()
        problem = replace(entry.problem, kernel=f"{entry.problem.kernel}_other")
        # With the same fingerprint, the entry would be a hit of this kernel under its old name.
        other_entry = replace(entry, problem=problem, fingerprint=Fingerprint())
        with self._hooked(library, other_entry, on_miss="error"), pytest.raises(pytest.fail.Exception):
            self.tune()
        assert self.searches() == before
        self.forget()

    def test_two_sweeps_run_two_candidates_without_a_search(self, library: ModuleType) -> None:
        sweep = pytest.importorskip("pytest_autotune.modes.sweep")
        _, entry = self._tuned(library)
        before, picks = self.searches(), []
        for part in (1, 2):
            with self._hooked(library, modes=(sweep.parse(f"{part}/2"),)) as (session, lookups, _):
                session.begin_test("test_first")
                self.tune()
                self.forget()
            assert [lookup.is_tuned for lookup in lookups] == [False], (
                "Question.candidates() lists the candidates that a sweep may give"
            )
            assert lookups[0].entry is not None
            picks.append(lookups[0].entry.choice)
        assert self.searches() == before
        assert picks[0] is not None
        assert picks[1] is not None
        assert not picks[0].is_same_configuration(picks[1])
        if entry.choice is not None:
            assert {value.name for value in picks[0].params} == {value.name for value in entry.choice.params}

    def test_verify_races_a_loaded_choice_and_uses_it(self, library: ModuleType) -> None:
        verify = pytest.importorskip("pytest_autotune.modes.verify")
        choice, entry = self._tuned(library)
        before = self.searches()
        with self._hooked(library, entry, modes=(verify.Verify(verify.ALL_PROBLEMS, 60.0),)) as (_, lookups, _):
            assert self.tune() == choice
        [lookup] = lookups
        assert (lookup.outcome, lookup.is_tuned) == (Outcome.HIT, False)
        reported = list(verify.list_verdicts([Event.decode(line) for line in self._log.lines]))
        assert len(reported) == 1, "tuning.race(…) races the choice, or reports why it cannot"
        assert self.searches() == before or reported[0].verdict.raced

    def test_paused_and_ignored_kernels_get_no_lookup(self, library: ModuleType) -> None:
        _, entry = self._tuned(library)
        with self._hooked(library, ignore=(f"{entry.problem.tuner}:*",)) as (_, lookups, _):
            self.tune()
            self.forget()
        with self._hooked(library) as (session, paused_lookups, _):
            session.is_paused = True
            self.tune()
        assert [*lookups, *paused_lookups] == []

    def test_isolated_calls_share_no_choice_with_other_calls(self, library: ModuleType) -> None:
        with self._hooked(library) as (session, lookups, adapter):
            with adapter.isolated(), session.isolated():
                self.tune()
            self.tune()
            assert len(lookups) == 2, "the library kept a choice from the isolation"
            with adapter.isolated(), session.isolated():
                self.tune()
            assert len(lookups) == 3, "the library remembered an earlier choice inside the isolation"
            before = self.searches()
            self.tune()
            assert self.searches() == before, "the library did not get its earlier choice back"
            assert len(lookups) == 3

    def test_unhooking_restores_the_functions_of_the_library(self, library: ModuleType) -> None:
        before = _snapshot(library)
        with self._hooked(library) as (_, lookups, _):
            pass
        assert _snapshot(library) == before
        self.tune()
        assert lookups == []

    def test_after_a_plugin_error_the_library_tunes_by_itself(
        self, library: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = self.searches()
        with self._hooked(library) as (session, lookups, _):
            monkeypatch.setattr(session, "ignores", _raise_own_error)
            self.tune()
        assert lookups == []
        assert self.searches() >= before
        assert any("an error of the plugin" in note for note in session.notes), "Patches guards what it replaces"

    def test_hooking_a_library_with_unknown_internals_raises(self) -> None:
        # An AttributeError becomes a line of the summary, too, although a less helpful line.
        with pytest.raises((HookError, AttributeError)) as caught, self._hooked(ModuleType(self._make().module)):
            pass
        assert str(caught.value)
        assert "\n" not in str(caught.value)


def _raise_own_error(*args: object) -> bool:
    raise RuntimeError("an error of the plugin")


def _with_other_fingerprint(entry: Entry) -> Entry:
    first, *rest = entry.fingerprint
    return replace(entry, fingerprint=Fingerprint([replace(first, value=f"not {first.value}"), *rest]))


def _snapshot(library: ModuleType) -> dict[str, object]:
    """Return the ids of the objects that a library's names, and the attributes of its classes, are bound to."""
    ids: dict[str, object] = {}
    for name, value in vars(library).items():
        ids[name] = id(value)
        if isinstance(value, type):
            for attribute, member in vars(value).items():
                ids[f"{name}.{attribute}"] = id(member)
    return ids
