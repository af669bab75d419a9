"""The guard around an adapter's hooks: an error of the adapter never fails a test."""

from __future__ import annotations

import inspect
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from pytest_autotune import tuners
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Candidate, Device, Problem
from pytest_autotune.run.lookup import Outcome, Policy
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.hooks import Hooks
from pytest_autotune.tuners.measuring.clocks import HostClock, Runner
from pytest_autotune.tuners.measuring.race import Race
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, HookedCall, Patches
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

def fastest(kernel, blocks=(32, 64)):
    return min(blocks, key=kernel)

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

    monkeypatch.setattr("pytest_autotune.tuners.hooks.list_third_party_tuners", lambda: [EntryPoint])
    assert tuners.TUNERS
    session = Session(policy, index, Coordinator(Locks(1.0)), pytest.fail)
    hooks = Hooks(session, None)
    hooks.install()
    try:
        yield session
    finally:
        hooks.uninstall()


class ChooseHook(CallHook):
    """The hook of ``Tuner.choose``. Subclasses do something in a step of the call."""

    #: The session of the run.
    session: Session


def replacing_choose(choose_hook: ChooseHook) -> Callable[[Any, Session], None]:
    def hook(module: Any, session: Session) -> None:
        choose_hook.session = session
        Patches(session, "toy").replace(module.Tuner, "choose", ["self"], choose_hook)

    return hook


def fail(message: str) -> Any:
    raise AttributeError(message)


@contextmanager
def failing_at_the_end() -> Iterator[None]:
    yield
    fail("no such\nfield")


class FailsToAsk(ChooseHook):
    """Fails after it has opened a tuning."""

    def ask(self, call: HookedCall) -> None:
        call.enter(self.session.tuning(AnyChoice(PROBLEM)))
        fail("no such\nfield")


class FailsBeforeItLooksUp(ChooseHook):
    def ask(self, call: HookedCall) -> None:
        fail("no such\nfield")


class FailsToNote(ChooseHook):
    def note(self, call: HookedCall, result: Any) -> None:
        fail("no such\nfield")


class FailsAtTheEnd(ChooseHook):
    def ask(self, call: HookedCall) -> None:
        call.enter(failing_at_the_end())


class AnswersInAnotherWay(ChooseHook):
    def ask(self, call: HookedCall) -> Any:
        return 64


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        (FailsBeforeItLooksUp(), "AttributeError: no such field"),
        (FailsToAsk(), "AttributeError: no such field"),
        (FailsToNote(), "AttributeError: no such field"),
        (FailsAtTheEnd(), "AttributeError: no such field"),
        (AnswersInAnotherWay(), "TypeError: ask() returned int, and not a CallResult or CallInstead"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_after_an_adapter_error_a_tuner_tunes_without_the_plugin(
    library: Any, monkeypatch: pytest.MonkeyPatch, hook: ChooseHook, error: str
) -> None:
    with hooked(monkeypatch, replacing_choose(hook)) as session:
        assert library.Tuner(abs).choose() == 32

    assert session.notes == [f"toy: internal error in choose(): {error}; toy tuned by itself, and nothing was saved"]


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_call_whose_arguments_cannot_be_read_goes_to_the_tuner(
    library: Any, monkeypatch: pytest.MonkeyPatch, is_paused: bool
) -> None:
    """A call without an answer may be a miss. So it is reported, unless the test bypasses the tuners."""
    with hooked(monkeypatch, replacing_choose(ChooseHook())) as session:
        session.is_paused = is_paused
        with monkeypatch.context() as patch:
            patch.setattr(inspect.Signature, "bind", lambda *args, **kwargs: fail("a mock"))
            assert library.Tuner(abs).choose() == 32

    assert len(session.notes) == (0 if is_paused else 1)
    assert session.unhooked_tuners.keys() == (set() if is_paused else {"toy"})


class GetsSignal(ChooseHook):
    """A signal arrives while the plugin answers."""

    def ask(self, call: HookedCall) -> None:
        call.enter(self.session.tuning(AnyChoice(PROBLEM)))
        signal.raise_signal(signal.SIGUSR1)


def test_an_error_of_a_signal_handler_inside_the_plugin_fails_the_test(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decorators that end a slow test raise such an error in the handler of an alarm."""

    def end_test(number: int, frame: object) -> None:
        raise ValueError("the test took too long")

    handler_before = signal.signal(signal.SIGUSR1, end_test)
    try:
        with (
            hooked(monkeypatch, replacing_choose(GetsSignal())) as session,
            pytest.raises(ValueError, match="the test took too long"),
        ):
            library.Tuner(abs).choose()
    finally:
        signal.signal(signal.SIGUSR1, handler_before)

    assert session.notes == []


class Records(ChooseHook):
    """Records a value as the tuner's choice.

    :param choice: the value.
    """

    def __init__(self, choice: Any) -> None:
        self._choice = choice

    def ask(self, call: HookedCall) -> None:
        call.state = call.enter(self.session.tuning(AnyChoice(PROBLEM)))

    def note(self, call: HookedCall, result: Any) -> None:
        call.state.record(self._choice)


@pytest.mark.parametrize("choice", ["a", 7, ("BLOCK", 32)], ids=repr)
def test_recording_a_choice_that_is_no_candidate_adds_a_note(
    library: Any, monkeypatch: pytest.MonkeyPatch, choice: Any
) -> None:
    searches: list[int] = []

    with hooked(monkeypatch, replacing_choose(Records(choice))) as session:
        assert library.Tuner(lambda block: searches.append(block) or block).choose() == 32

    assert searches == [32, 64], "the tuner's result is used, and not searched for again"
    assert [(lookup.is_tuned, lookup.entry) for lookup in session.lookups] == [(False, None)]
    words = f"its choice is a {type(choice).__name__}, and not a Candidate"
    assert session.notes == [
        f"toy: internal error in choose(): UncacheableError: {words}; toy tuned by itself, and nothing was saved"
    ]


class LaunchesKernel(ChooseHook):
    """Has the user's kernel launched in one of three ways.

    :param way: whose call launches the kernel.
    """

    def __init__(self, way: str) -> None:
        self._way = way

    def ask(self, call: HookedCall) -> CallInstead | None:
        tuner = call.arguments["self"]
        if self._way == "tuner":
            return None
        call.enter(self.session.tuning(AnyChoice(PROBLEM)))
        if self._way == "call in place of the tuner's":
            return CallInstead(tuner.measure)
        race = Race(HostClock())
        race.probe([Runner(partial(tuner.kernel, 32))])
        return None


@pytest.mark.parametrize("error", [ValueError("block"), LookupError("block"), KeyboardInterrupt(), SystemExit(2)])
@pytest.mark.parametrize("way", ["tuner", "call in place of the tuner's", "race"])
def test_an_error_of_a_tuned_kernel_reaches_the_test_unchanged(
    library: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, way: str
) -> None:
    calls = []

    def kernel(block: int) -> None:
        calls.append(block)
        raise error

    with (
        hooked(monkeypatch, replacing_choose(LaunchesKernel(way))) as session,
        pytest.raises(type(error)) as raised,
    ):
        library.Tuner(kernel).choose()

    assert raised.value is error
    assert raised.value.__context__ is None
    assert calls == [32]
    assert session.notes == []


class Refuses(ChooseHook):
    def ask(self, call: HookedCall) -> None:
        pytest.fail("a miss")


def test_option_on_miss_error_fails_a_test_if_an_adapter_misses(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        hooked(monkeypatch, replacing_choose(Refuses())) as session,
        pytest.raises(pytest.fail.Exception, match="a miss"),
    ):
        library.Tuner(abs).choose()

    assert session.notes == []


class NotesErrors(ChooseHook):
    """Keeps the errors of the tuner's own calls, and changes an argument."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def ask(self, call: HookedCall) -> CallInstead:
        assert call.arguments == {"kernel": abs, "blocks": (32, 64)}
        return call.with_arguments(blocks=())

    def note_error(self, call: HookedCall, error: Exception) -> None:
        self.errors.append(error)
        fail("no such field")


def test_library_errors_are_raised_and_adapter_errors_are_noted(library: Any) -> None:
    session, _ = a_session()
    hook = NotesErrors()
    patches = Patches(session, "toy")
    patches.replace(library, "fastest", ["kernel"], hook, allow_more_parameters=True)

    with pytest.raises(ValueError, match="empty") as raised:
        library.fastest(abs)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'kernel'"):
        library.fastest()

    assert hook.errors == [raised.value]
    assert [note.partition(";")[0] for note in session.notes] == [
        "toy: internal error in fastest(): AttributeError: no such field"
    ]
    patches.undo()
    assert library.fastest(abs) == 32


def test_an_adapter_that_fails_to_patch_restores_the_library(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = library.Tuner.choose, library.other

    def hook(module: Any, session: Session) -> None:
        patches = Patches(session, "toy")
        patches.replace(module.Tuner, "choose", ["self"], CallHook())
        patches.replace(module, "other", [], CallHook())
        raise AttributeError("toy_library has no Tuner.remember")

    with hooked(monkeypatch, hook, unhook=lambda: fail("never hooked")) as session:
        assert (library.Tuner.choose, library.other) == before

    assert session.notes == [
        "toy: internal error in unhook(): AttributeError: never hooked",
        "toy tunes without the plugin: AttributeError: toy_library has no Tuner.remember",
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


def test_a_tuning_succeeds_if_worker_and_gpu_locks_raise_errors() -> None:
    session, lookups = a_session((), Broken())

    with session.tuning(AnyChoice(problem())) as tuning, tuning.measuring(), session.measuring():
        with session.compiling("k", wait=True) as is_mine:
            assert is_mine
        tuning.record(Candidate("a"))

    assert [(lookup.outcome, lookup.is_tuned, lookup.is_disturbed) for lookup in lookups] == [
        (Outcome.MISS, True, True)
    ]
    assert all("PermissionError: [Errno 13] Permission denied: '/dev/shm'" in note for note in session.notes)


def test_if_comparing_an_entry_raises_its_problem_is_tuned_again() -> None:
    entry = tune(a_session()[0])
    session, lookups = a_session((entry,))

    tune(session, offered=lambda entry: fail("params"))

    assert [(lookup.outcome, lookup.is_tuned) for lookup in lookups] == [(Outcome.MISS, True)]
    assert session.notes == ["toy: internal error in the session: AttributeError: params"]


def test_option_on_miss_error_fails_a_test_on_a_plugin_error() -> None:
    session, lookups = a_session((tune(a_session()[0]),), on_miss="error")

    with pytest.raises(Refused, match="autotune: MISS toy:k: an error of pytest-autotune"):
        tune(session, offered=lambda entry: fail("params"))

    assert [(lookup.outcome, lookup.is_tuned) for lookup in lookups] == [(Outcome.MISS, False)]
    assert session.notes == ["toy: internal error in the session: AttributeError: params"]


def test_option_on_miss_error_fails_a_test_on_an_adapter_error(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = replacing_choose(FailsBeforeItLooksUp())
    strict = Policy(on_miss="error")
    message = "autotune: MISS toy: internal error in choose(): AttributeError: no such field"

    loaded = hooked(monkeypatch, hook, policy=strict, index=EntryIndex.from_caches([]))
    with loaded, pytest.raises(pytest.fail.Exception, match=re.escape(message)):
        library.Tuner(abs).choose()
    with hooked(monkeypatch, hook, policy=strict) as session:
        assert library.Tuner(abs).choose() == 32, "a run that loads nothing"
    assert session.unhooked_tuners == {"toy": "internal error in choose(): AttributeError: no such field"}
