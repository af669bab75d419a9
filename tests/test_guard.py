"""The guard around what adapters put in place of a tuner's functions: an error of theirs never fails a test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import pytest

from pytest_autotune import tuners
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Candidate, Device, Problem
from pytest_autotune.run.lookup import Outcome, Policy
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.hooks import Hooks
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.locks import Locks
from tests.sessions import AnyChoice
from tests.test_session import Refused, a_session, problem, tune

PROBLEM = Problem("toy", "kernel", (), Device("Toy GPU", "toy"))
LIBRARY = """
class Tuner:
    def __init__(self, kernel):
        self.kernel = kernel

    def choose(self):
        return self.measure()

    def measure(self):
        return min((32, 64), key=self.kernel)

def other():
    return "the library's"
"""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A library with a tuner, and no adapters but those of the test."""
    module = ModuleType("toy_library")
    exec(compile(LIBRARY, "toy_library.py", "exec"), vars(module))
    monkeypatch.setitem(__import__("sys").modules, "toy_library", module)
    monkeypatch.setattr("pytest_autotune.tuners.hooks.TUNERS", {})
    return module


@contextmanager
def hooked(
    monkeypatch: pytest.MonkeyPatch,
    hook: Callable[[Any, Session], None],
    unhook: Callable[[], None] = lambda: None,
    policy: Policy = Policy(),  # noqa: B008
    index: EntryIndex | None = None,
) -> Iterator[Session]:
    """The tuner of the library, hooked by the adapter of another package."""

    class Adapter:
        module = "toy_library"
        acts_without_entries = True

        def hook(self, module: ModuleType, session: Session) -> None:
            hook(module, session)

        def unhook(self) -> None:
            unhook()

        def isolated(self) -> AbstractContextManager[None]:
            return nullcontext()

        def untracked(self) -> list[str]:
            return []

    class EntryPoint:
        name = "toy"
        value = "toy_adapter:Adapter"
        load = staticmethod(lambda: Adapter)

    monkeypatch.setattr("pytest_autotune.tuners.hooks.third_party_tuners", lambda: [EntryPoint])
    assert tuners.TUNERS
    session = Session(policy, index, Coordinator(Locks(1.0)), pytest.fail)
    hooks = Hooks(session, None)
    hooks.install()
    try:
        yield session
    finally:
        hooks.uninstall()


def replacing_choose(choose: Callable[[Any, Session, Any], Any]) -> Callable[[Any, Session], None]:
    def hook(module: Any, session: Session) -> None:
        original = module.Tuner.choose
        module.Tuner.choose = lambda self: choose(self, session, original)

    return hook


def fail(message: str) -> Any:
    raise AttributeError(message)


def test_an_error_of_another_packages_adapter_leaves_its_tuner_alone(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hooked(monkeypatch, replacing_choose(lambda self, session, original: fail("no such\nfield"))) as session:
        assert library.Tuner(abs).choose() == 32

    assert session.notes == [
        "toy: error in choose(): AttributeError: no such field; that call was left to toy, and not recorded"
    ]


@pytest.mark.parametrize("choice", ["a", 7, ("BLOCK", 32)], ids=repr)
def test_an_adapter_that_records_what_is_no_candidate_is_told_and_nothing_is_kept(
    library: Any, monkeypatch: pytest.MonkeyPatch, choice: Any
) -> None:
    def choose(self: Any, session: Session, original: Any) -> Any:
        with session.tuning(AnyChoice(PROBLEM)) as tuning:
            tuning.record(choice)

    with hooked(monkeypatch, replacing_choose(choose)) as session:
        assert library.Tuner(abs).choose() == 32

    assert [(lookup.is_tuned, lookup.entry) for lookup in session.lookups] == [(False, None)]
    words = f"its choice is a {type(choice).__name__}, and not a Candidate"
    assert session.notes == [
        f"toy: error in choose(): UncacheableError: {words}; that call was left to toy, and not recorded"
    ]


@pytest.mark.parametrize("error", [ValueError("block"), LookupError("block"), KeyboardInterrupt(), SystemExit(2)])
@pytest.mark.parametrize("way", ["tuner's own function", "tuner's benchmark through the session"])
def test_an_error_of_the_users_kernel_passes_unchanged(
    library: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, way: str
) -> None:
    calls = []

    def kernel(block: int) -> None:
        calls.append(block)
        raise error

    def choose(self: Any, session: Session, original: Any) -> Any:
        if way == "tuner's own function":
            return original(self)
        with session.tuning(AnyChoice(PROBLEM)):
            return self.measure()

    with hooked(monkeypatch, replacing_choose(choose)) as session, pytest.raises(type(error)) as raised:
        library.Tuner(kernel).choose()

    assert raised.value is error
    assert calls == [32]
    assert session.notes == []


def test_a_refusal_passes_the_guard(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(self: Any, session: Session, original: Any) -> Any:
        pytest.fail("a miss")

    with (
        hooked(monkeypatch, replacing_choose(choose)) as session,
        pytest.raises(pytest.fail.Exception, match="a miss"),
    ):
        library.Tuner(abs).choose()

    assert session.notes == []


def test_a_hook_that_fails_half_way_leaves_nothing_replaced(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = library.Tuner.choose, library.other

    def hook(module: Any, session: Session) -> None:
        module.Tuner.choose = lambda self: "the adapter's"
        module.other = lambda: "the adapter's"
        raise AttributeError("toy_library has no Tuner.remember")

    with hooked(monkeypatch, hook, unhook=lambda: fail("never hooked")) as session:
        assert (library.Tuner.choose, library.other) == before

    assert session.notes == [
        "toy: error in unhook(): AttributeError: never hooked",
        "toy was bypassed: AttributeError: toy_library has no Tuner.remember",
    ]


class Broken:
    """A coordination that cannot lock, claim or give a core."""

    @contextmanager
    def _broken(self) -> Iterator[Any]:
        raise PermissionError(13, "Permission denied: '/dev/shm'")
        yield

    def claim(self, *args: Any, **kwargs: Any) -> Any:
        return self._broken()

    def compiling(self, name: str, wait: bool) -> Any:
        return self._broken()

    def measuring(self, on: str = "") -> Any:
        return self._broken()


def test_a_claim_or_lock_that_cannot_be_had_fails_no_tuning() -> None:
    session, lookups = a_session((), Broken())

    with session.tuning(AnyChoice(problem())) as tuning, tuning.measuring(), session.measuring():
        with session.compiling("k", wait=True) as is_mine:
            assert is_mine
        tuning.record(Candidate("a"))

    assert [(lookup.outcome, lookup.is_tuned, lookup.is_disturbed) for lookup in lookups] == [
        (Outcome.MISS, True, True)
    ]
    assert all("PermissionError: [Errno 13] Permission denied: '/dev/shm'" in note for note in session.notes)


def test_an_error_of_an_adapters_offer_is_a_miss_that_is_tuned() -> None:
    entry = tune(a_session()[0])
    session, lookups = a_session((entry,))

    tune(session, offered=lambda entry: fail("params"))

    assert [(lookup.outcome, lookup.is_tuned) for lookup in lookups] == [(Outcome.MISS, True)]
    assert session.notes == ["toy: error in the session: AttributeError: params"]


def test_an_error_at_the_door_is_no_silent_tuning_where_a_miss_is_an_error() -> None:
    session, lookups = a_session((tune(a_session()[0]),), on_miss="error")

    with pytest.raises(Refused, match="autotune: MISS toy:k: an error of pytest-autotune"):
        tune(session, offered=lambda entry: fail("params"))

    assert [(lookup.outcome, lookup.is_tuned) for lookup in lookups] == [(Outcome.MISS, False)]
    assert session.notes == ["toy: error in the session: AttributeError: params"]


def test_neither_is_an_error_before_the_door(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = replacing_choose(lambda self, session, original: fail("no such field"))
    strict = Policy(on_miss="error")
    told = "autotune: MISS toy: error in choose(): AttributeError: no such field"

    loaded = hooked(monkeypatch, hook, policy=strict, index=EntryIndex.from_caches([]))
    with loaded, pytest.raises(pytest.fail.Exception, match=re.escape(told)):
        library.Tuner(abs).choose()
    with hooked(monkeypatch, hook, policy=strict) as session:
        assert library.Tuner(abs).choose() == 32, "a run that loads nothing"
    assert session.unhooked_tuners == {"toy": "error in choose(): AttributeError: no such field"}


def raise_(error: BaseException) -> None:
    raise error
