"""Which tuners are hooked: without their libraries being imported."""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import Loader
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any, ClassVar

import pytest
import wrapt

import pytest_autotune.cache
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem
from pytest_autotune.plugin import _forget_removed_modules
from pytest_autotune.run.session import Job, Session, Suite
from pytest_autotune.tuners import TUNERS, BuiltInTuner
from pytest_autotune.tuners.hooks import Hooks
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.patches import find_definer
from tests.sessions import a_session

ENTRY = Entry(Problem("costly.part", "kernel", (), Device("Toy GPU", "toy")), choice=Candidate("a"))


class CostlyAdapter:
    module = "costly_library"
    acts_without_entries = False
    hooked = 0

    def hook(self, module: ModuleType, session: Session) -> None:
        CostlyAdapter.hooked += 1

    def unhook(self) -> None:
        CostlyAdapter.hooked -= 1

    def isolated(self) -> AbstractContextManager[None]:
        return nullcontext()

    def untracked(self) -> list[str]:
        return []


@pytest.fixture(autouse=True)
def costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuner that costs something where nothing is tuned, and whose library is there."""
    module: Any = ModuleType("costly_adapter")
    module.Adapter = CostlyAdapter
    monkeypatch.setitem(sys.modules, "costly_adapter", module)
    monkeypatch.setitem(sys.modules, "costly_library", ModuleType("costly_library"))
    costly_tuner = BuiltInTuner("costly_adapter", "costly_library", acts_without_entries=False)
    monkeypatch.setattr("pytest_autotune.tuners.hooks.TUNERS", {"costly": costly_tuner})
    monkeypatch.setattr(CostlyAdapter, "hooked", 0)


@pytest.mark.parametrize("name", TUNERS)
def test_the_table_of_tuners_has_the_same_values_as_the_adapters(name: str) -> None:
    """The table is read before an adapter is imported."""
    adapter = importlib.import_module(TUNERS[name].adapter_module).Adapter

    assert TUNERS[name].module == adapter.module
    assert TUNERS[name].acts_without_entries is adapter.acts_without_entries
    assert TUNERS[name].names_candidates is getattr(adapter, "names_candidates", False)


def session_of(entries: tuple[Entry, ...] | None = None, **policy: Any) -> Session:
    return a_session(entries, **policy)[0]


@pytest.mark.parametrize(
    ("session", "tuners", "hooked"),
    [
        (session_of(is_dumping=True), None, 1),
        (session_of((ENTRY,)), None, 1),
        (session_of(()), None, 0),
        (session_of((), is_dumping=True), None, 1),
        (session_of(()), ("costly",), 1),
        (session_of(()), ("costly.part",), 1),
        (session_of((ENTRY,)), ("triton",), 0),
    ],
    ids=["dump", "load with entries", "load without", "update", "asked for", "a part asked for", "another asked for"],
)
def test_a_costly_adapter_starts_only_if_named_or_needed(
    session: Session, tuners: tuple[str, ...] | None, hooked: int
) -> None:
    """A dump and loaded entries need the adapter, unless an option names only other tuners."""
    hooks = Hooks(session, tuners)

    hooks.install()

    assert CostlyAdapter.hooked == hooked
    hooks.uninstall()


def test_a_cache_loaded_by_a_test_starts_its_adapter_only_once() -> None:
    session = session_of(())
    hooks = Hooks(session, None)
    hooks.install()
    session.add_cache(EntryIndex.from_caches([Cache((ENTRY,))]))

    with hooks.isolated():
        hooks.install()
        hooks.install()

    assert CostlyAdapter.hooked == 1
    hooks.uninstall()


def test_an_adapter_patches_a_library_as_soon_as_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "costly_library")
    adapter_module = sys.modules.pop("costly_adapter")
    session = session_of((ENTRY,))
    hooks = Hooks(session, None)

    # The adapter's module is missing, and the suite does not import the library: nothing happens.
    hooks.install()
    with hooks.isolated():
        pass
    assert (hooks.untracked(), session.notes) == ([], [])

    monkeypatch.setitem(sys.modules, "costly_adapter", adapter_module)
    monkeypatch.setattr(sys, "meta_path", [Rewriter(), *sys.meta_path])
    hooks.install()
    importlib.import_module("costly_library")
    assert CostlyAdapter.hooked == 1
    hooks.uninstall()


def test_a_run_continues_without_an_adapter_that_fails_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "costly_adapter")
    session = session_of((ENTRY,))
    hooks = Hooks(session, None)

    hooks.install()

    assert session.notes == ["costly tunes without the plugin: ModuleNotFoundError: No module named 'costly_adapter'"]
    hooks.uninstall()


class Rewriter:
    """A finder that answers by itself, as pytest's does for what it rewrites."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        return spec_from_loader(name, Empty()) if name == "costly_library" else None


class Empty(Loader):
    def exec_module(self, module: ModuleType) -> None:
        pass


@pytest.mark.parametrize("has_wrapts", [True, False])
def test_an_adapter_patches_a_library_despite_other_import_hooks(
    monkeypatch: pytest.MonkeyPatch, has_wrapts: bool
) -> None:
    monkeypatch.delitem(sys.modules, "costly_library")
    wrapt.register_post_import_hook(lambda module: None, "wrapt has its finder now")
    wrapts = [finder for finder in sys.meta_path if "wrapt" in type(finder).__module__]
    other_finders = [finder for finder in sys.meta_path if finder not in wrapts]
    monkeypatch.setattr(sys, "meta_path", [Rewriter(), *(wrapts if has_wrapts else []), *other_finders])
    hooks = Hooks(session_of((ENTRY,)), None)

    hooks.install()
    importlib.import_module("costly_library")

    assert CostlyAdapter.hooked == 1
    hooks.uninstall()


class PreparingAdapter(CostlyAdapter):
    asked: ClassVar[list[object]] = []

    def prepare(self, suite: Suite) -> list[Job]:
        self.asked.append(suite)
        if len(self.asked) > 1:
            raise RuntimeError("toy")
        return [lambda: True]


def test_an_error_in_prepare_of_an_adapter_adds_only_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["costly_adapter"], "Adapter", PreparingAdapter)
    session, suite = session_of((ENTRY,)), Suite((), is_part=False)
    hooks = Hooks(session, None)
    hooks.install()

    assert [job() for job in hooks.prepare(suite)] == [True]
    assert hooks.prepare(suite) == []

    assert PreparingAdapter.asked == [suite, suite]
    assert session.notes == ["costly: internal error in prepare(): RuntimeError: toy"]
    hooks.uninstall()


@pytest.mark.parametrize(
    ("tuners", "ignore", "ignored"),
    [
        (None, (), False),
        (("inductor",), (), False),
        (("inductor.config",), (), False),
        (("inductor.template",), (), True),
        (("inductor.con",), (), True),
        (None, ("inductor:triton_*",), True),
        (None, ("inductor.config:triton_*",), True),
        (None, ("inductor.template:triton_*",), False),
    ],
)
def test_options_for_inductor_also_cover_tuner_inductor_config(
    tuners: tuple[str, ...] | None, ignore: tuple[str, ...], ignored: bool
) -> None:
    session = session_of(tuners=tuners, ignore=ignore)

    for is_excluded in (session.is_left_out, session.ignores, session.leaves_alone):
        assert is_excluded("inductor.config", "triton_poi_fused_add") is ignored


def test_a_paused_or_ended_plugin_leaves_tuning_to_the_library(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After the end of the run, one line names each kernel, except for kernels that the user left out."""
    session = session_of(ignore=("toy:lib.left_out",))
    session.is_paused = True
    assert session.leaves_alone("toy", "lib.op")
    assert not session.ignores("toy", "lib.op")
    session.is_paused = False
    assert not session.leaves_alone("toy", "lib.op")
    assert capsys.readouterr().err == ""

    session.has_ended = True

    assert session.leaves_alone("toy", "lib.op")
    assert session.leaves_alone("toy", "lib.op")
    assert session.ignores("toy", "lib.op")
    assert session.leaves_alone("toy", "lib.left_out")
    assert not session.is_left_out("toy", "lib.op")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("autotune: toy:lib.op was called after the end of the run")


class Scheduling:
    def lookup(self) -> None: ...


class TritonScheduling(Scheduling):
    pass


def test_find_definer_returns_the_base_class_defining_a_method() -> None:
    assert find_definer(TritonScheduling, "lookup", "torch") is Scheduling


def test_patching_a_missing_method_raises_an_error_with_its_name() -> None:
    with pytest.raises(HookError, match=r"^torch \S+ has no TritonScheduling\.generate\(\)$"):
        find_definer(TritonScheduling, "generate", "torch")


def test_modules_that_an_inner_run_imported_are_imported_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytester removes them from ``sys.modules``. Their packages still have them as attributes."""
    removed = sys.modules["pytest_autotune.cache.index"]
    monkeypatch.setattr(pytest_autotune.cache, "index", removed)
    monkeypatch.delitem(sys.modules, "pytest_autotune.cache.index")

    _forget_removed_modules()

    from pytest_autotune.cache import index

    assert index is not removed
