"""Sessions for tests of tuners, with their modes. A test is skipped if its mode is not installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Digest, Entry, Problem, Value
from pytest_autotune.run.lookup import Lookup, Policy, Question
from pytest_autotune.run.session import Mode, Session
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.locks import Locks

#: The seconds for which a lookup waits for the tuning of another worker.
TIMEOUT_S = 1.0


def a_session(
    entries: tuple[Entry, ...] | None = None,
    coordination: Any = None,
    refuse: Any = pytest.fail,
    modes: Sequence[Mode] = (),
    **policy: Any,
) -> tuple[Session, list[Lookup]]:
    """Return the session of a run that loaded these entries, if any, and the list of its lookups."""
    index = None if entries is None else EntryIndex.from_caches([Cache(entries)])
    alone = coordination or Coordinator(Locks(TIMEOUT_S))
    session = Session(Policy(**policy), index, alone, refuse, modes=modes)
    return session, session.lookups


class AnyChoice(Question):
    """A question to which every entry of the problem is an answer.

    :param digests: the parts of the fingerprint's digests.
    """

    def __init__(self, problem: Problem, fingerprint: Iterable[Value] = (), digests: Iterable[Digest] = ()) -> None:
        super().__init__(problem, fingerprint, may_be_renamed=True)
        self._digests = digests

    def offers(self, entry: Entry) -> bool:
        return True

    def digests(self) -> Iterable[Digest]:
        return self._digests


class CountingHelper:
    """A helper of the worker that has a claim. It counts the calls."""

    def __init__(self) -> None:
        self.help_count = 0

    def help(self) -> None:
        self.help_count += 1


def verifying() -> Any:
    """Return a mode that races the choices of all problems. Its ``verdicts`` are recorded in their order."""
    verify = pytest.importorskip("pytest_autotune.modes.verify")

    class Noting(verify.Verify):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(verify.ALL_PROBLEMS, 100.0)
            self.verdicts: list[Any] = []

        def race(self, session: Any, tuning: Any, contest: Any) -> None:
            def append_event(event: Any) -> None:
                self.verdicts += [verdict for _, verdict in verify.list_verdicts([event])]
                session.append_event(event)

            noting = SimpleNamespace(
                append_event=append_event, enter_under_guard=session.enter_under_guard, coordinator=session.coordinator
            )
            super().race(noting, tuning, contest)

    return Noting()


def sweeping(part: int, parts: int) -> Any:
    """Return the mode of one part of a sweep."""
    return pytest.importorskip("pytest_autotune.modes.sweep").parse(f"{part}/{parts}")
