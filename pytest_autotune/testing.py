"""Tests that an adapter must pass: subclass :class:`AdapterConformance` and say how the library is used."""

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
from pytest_autotune.run.mode import Mode
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.protocol import Adapter, HookError
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Event, Log
from pytest_autotune.workers.locks import Locks

WAIT_S = 5.0


class AdapterConformance(ABC):
    """What any adapter must do; each test has one problem of the library's tuned.

    The name of a subclass begins with ``Test``.
    """

    #: The tuner's name: that of the entry point.
    tuner: ClassVar[str]
    #: Makes the adapter; what the entry point names.
    adapter: ClassVar[Callable[[], Adapter]]
    #: Tests that do not hold for this tuner, by name, and why: they are skipped with that reason.
    exempt: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture(autouse=True)
    def _skip_exempted(self, request: pytest.FixtureRequest) -> None:
        if reason := self.exempt.get(request.node.originalname):
            pytest.skip(reason)

    @abstractmethod
    def tune(self) -> object:
        """Have the library tune one problem, the same at each call, and return what it chose, to be compared."""

    @abstractmethod
    def forget(self) -> None:
        """Empty the library's memory of choices, so that the next :meth:`tune` asks again."""

    @abstractmethod
    def searches(self) -> int:
        """How often the library has searched in this process, by its own count or one of the test's."""

    @pytest.fixture
    def library(self) -> Iterator[ModuleType]:
        """The library, without choices before and after."""
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
        """Hook the adapter for a run that loaded these entries; yield the session, its lookups and the adapter."""
        self._log = Log(None, "main")
        index = EntryIndex.from_caches([Cache(entries)]) if entries else None
        session = Session(Policy(**policy), index, Coordinator(Locks(WAIT_S)), pytest.fail, log=self._log, modes=modes)
        adapter = self._make()
        try:
            adapter.hook(library, session)
            yield session, session.lookups, adapter
        finally:
            adapter.unhook()

    def _tuned(self, library: ModuleType) -> tuple[object, Entry]:
        """What was chosen with nothing loaded, and the entry that was recorded."""
        with self._hooked(library) as (_, lookups, _):
            choice = self.tune()
        self.forget()
        assert len(lookups) == 1, f"one problem was tuned, and {len(lookups)} were reported"
        entry = lookups[0].entry
        assert entry is not None, "a search took place and nothing was recorded"
        return choice, entry

    def test_making_the_adapter_imports_no_library(self) -> None:
        made: Any = type(self).adapter
        script = (
            f"import sys; from {made.__module__} import {made.__qualname__} as make; "
            "adapter = make(); print(adapter.module in sys.modules)"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
        assert done.stdout.strip() == "False", f"making the adapter imported its library\n{done.stderr}"

    def test_a_search_is_recorded_with_its_choice_and_told_once(self, library: ModuleType) -> None:
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

    def test_a_loaded_choice_is_taken_without_a_search(self, library: ModuleType) -> None:
        choice, entry = self._tuned(library)
        before = self.searches()
        with self._hooked(library, entry) as (_, lookups, _):
            assert self.tune() == choice
        assert [(lookup.outcome, lookup.is_tuned) for lookup in lookups] == [(Outcome.HIT, False)]
        assert self.searches() == before, "a loaded choice was searched for all the same"

    def test_an_entry_is_the_same_after_files_and_processes(self, library: ModuleType) -> None:
        _, entry = self._tuned(library)
        for form in Format:
            assert decode(encode(Cache((entry,)), form), form, "a file").entries == (entry,)
        lookup = Lookup(entry.identity, result=TunedEntry(entry))
        assert Lookup.from_event(Event.decode(lookup.to_event().encode())) == lookup

    def test_a_problem_asked_for_again_is_the_same_problem(self, library: ModuleType) -> None:
        _, first = self._tuned(library)
        _, second = self._tuned(library)
        assert first.identity == second.identity

    def test_another_fingerprint_is_stale_and_tuned_again(self, library: ModuleType) -> None:
        _, entry = self._tuned(library)
        assert entry.fingerprint, "where a tuner's entries have no fingerprint, exempt says so"
        changed = _with_other_fingerprint(entry)
        before = self.searches()
        with self._hooked(library, changed) as (_, lookups, _):
            self.tune()
        assert [(lookup.outcome, lookup.is_tuned) for lookup in lookups] == [(Outcome.STALE, True)]
        assert self.searches() == before + 1

    def test_a_choice_that_is_no_longer_on_offer_is_not_taken(self, library: ModuleType) -> None:
        _, entry = self._tuned(library)
        assert entry.choice is not None, "where a tuner's entries have no choice, exempt says so"
        gone = replace(entry, choice=replace(entry.choice, id="not on offer", params=()))
        with self._hooked(library, gone) as (_, lookups, _):
            self.tune()
        assert [(lookup.outcome, lookup.is_tuned) for lookup in lookups] == [(Outcome.STALE, True)]

    def test_an_error_on_a_miss_reaches_the_caller_before_a_search(self, library: ModuleType) -> None:
        _, entry = self._tuned(library)
        before = self.searches()
        # With the same fingerprint it may be taken for this kernel under its old name.
        problem = replace(entry.problem, kernel=f"{entry.problem.kernel}_other")
        other = replace(entry, problem=problem, fingerprint=Fingerprint())
        with self._hooked(library, other, on_miss="error"), pytest.raises(pytest.fail.Exception):
            self.tune()
        assert self.searches() == before
        self.forget()

    def test_sweeps_give_one_candidate_after_the_other_and_search_for_nothing(self, library: ModuleType) -> None:
        sweep = pytest.importorskip("pytest_autotune.modes.sweep")
        _, entry = self._tuned(library)
        before, picks = self.searches(), []
        for part in (1, 2):
            with self._hooked(library, modes=(sweep.Sweep(part=part, parts=2),)) as (session, lookups, _):
                session.begin_test("test_first")
                self.tune()
                self.forget()
            assert [lookup.is_tuned for lookup in lookups] == [False], (
                "Question.candidates() says what a sweep may give"
            )
            assert lookups[0].entry is not None
            picks.append(lookups[0].entry.choice)
        assert self.searches() == before
        assert picks[0] is not None
        assert picks[1] is not None
        assert not picks[0].is_same_configuration(picks[1])
        if entry.choice is not None:
            assert {value.name for value in picks[0].params} == {value.name for value in entry.choice.params}

    def test_a_loaded_choice_whose_turn_it_is_is_raced_and_taken(self, library: ModuleType) -> None:
        verify = pytest.importorskip("pytest_autotune.modes.verify")
        choice, entry = self._tuned(library)
        before = self.searches()
        with self._hooked(library, entry, modes=(verify.Verify(verify.Share(), 60.0),)) as (_, lookups, _):
            assert self.tune() == choice
        [lookup] = lookups
        assert (lookup.outcome, lookup.is_tuned) == (Outcome.HIT, False)
        verdicts = [verdict for _, verdict in verify.list_verdicts(Event.decode(line) for line in self._log.lines)]
        assert len(verdicts) == 1, "tuning.race(…) has it raced, or says why not"
        assert self.searches() == before or verdicts[0].raced

    def test_paused_and_ignored_kernels_are_tuned_as_without_the_plugin(self, library: ModuleType) -> None:
        _, entry = self._tuned(library)
        with self._hooked(library, ignore=(f"{entry.problem.tuner}:*",)) as (_, lookups, _):
            self.tune()
            self.forget()
        with self._hooked(library) as (session, also, _):
            session.is_paused = True
            self.tune()
        assert [*lookups, *also] == []

    def test_inside_isolation_nothing_is_remembered_and_nothing_is_left(self, library: ModuleType) -> None:
        with self._hooked(library) as (session, lookups, adapter):
            with adapter.isolated(), session.isolated():
                self.tune()
            self.tune()
            assert len(lookups) == 2, "a choice that was made in isolation was left"
            with adapter.isolated(), session.isolated():
                self.tune()
            assert len(lookups) == 3, "a choice from before was remembered in isolation"
            before = self.searches()
            self.tune()
            assert self.searches() == before, "a choice from before was not given back"
            assert len(lookups) == 3

    def test_after_unhooking_the_library_is_as_it_was(self, library: ModuleType) -> None:
        before = _snapshot(library)
        with self._hooked(library) as (_, lookups, _):
            pass
        assert _snapshot(library) == before
        self.tune()
        assert lookups == []

    def test_an_error_of_the_plugin_leaves_the_library_alone(
        self, library: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = self.searches()
        with self._hooked(library) as (session, lookups, _):
            monkeypatch.setattr(session, "ignores", _raise_own_error)
            self.tune()
        assert lookups == []
        assert self.searches() >= before
        assert any("an error of the plugin" in note for note in session.notes), "Patches guards what it replaces"

    def test_a_library_without_the_known_internals_is_refused_in_one_line(self) -> None:
        # An AttributeError becomes a line of the summary as well, if not a helpful one.
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
    """What the library's names and its classes' attributes are bound to."""
    found: dict[str, object] = {}
    for name, value in vars(library).items():
        found[name] = id(value)
        if isinstance(value, type):
            found.update((f"{name}.{attribute}", id(member)) for attribute, member in vars(value).items())
    return found
