"""The adapter for Helion, with Helion itself where it is installed, else with a toy that has its signatures.

Under the real Helion, Triton's interpreter runs the kernels on the CPU. A clock of this module measures them.
"""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import pytest

from pytest_autotune.cache.model import Candidate, Entry
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.session import Session
from pytest_autotune.testing import AdapterConformance
from pytest_autotune.tuners.helion.adapter import Adapter
from pytest_autotune.tuners.helion.search import _list_argument_values
from pytest_autotune.tuners.protocol import HookError
from tests.acceptance.test_helion import HAS_HELION, KERNELS, TOY_FOLDER
from tests.sessions import a_session

torch = pytest.importorskip("torch")

needs_toy = pytest.mark.skipif(HAS_HELION, reason="needs the toy in place of Helion")


class BenchClock:
    """The clock of the tests in this module. Of each three configs, the second is the fastest."""

    def __init__(self) -> None:
        self.count = 0

    def do_bench(self, fn: Any, **kwargs: Any) -> float:
        self.count += 1
        fn()
        return [3.0, 1.0, 2.0][self.count % 3 - 1]


CLOCK = BenchClock()


def do_bench(fn: Any, **kwargs: Any) -> float:
    return CLOCK.do_bench(fn, **kwargs)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The kernels of this module's tests."""
    folder = tmp_path_factory.mktemp("helion")
    (folder / "helion_kernels.py").write_text(KERNELS)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("TRITON_INTERPRET", "1"),
            ("HELION_AUTOTUNE_BENCHMARK_SUBPROCESS", "0"),
            ("HELION_AUTOTUNE_IGNORE_ERRORS", "1"),
            ("HELION_AUTOTUNE_PRECOMPILE", ""),
            ("HELION_AUTOTUNE_PROGRESS_BAR", "0"),
        ):
            patch.setenv(name, value)
        patch.syspath_prepend(folder)
        if not HAS_HELION:
            patch.syspath_prepend(TOY_FOLDER)
        module = importlib.import_module("helion_kernels")
        provider: Any = sys.modules["helion.autotuner.benchmark_provider"]
        patch.setattr(provider, "do_bench", do_bench)
        yield module
    sys.modules.pop("helion_kernels")
    if not HAS_HELION:
        for name in [name for name in sys.modules if name.partition(".")[0] == "helion"]:
            del sys.modules[name]
    gc.collect()


@contextmanager
def hook_adapter(*entries: Entry) -> Iterator[tuple[Session, list[Lookup]]]:
    """Hook the adapter for a run that loaded these entries; yield its session and its lookups."""
    session, lookups = a_session(entries or None, is_dumping=True)
    with hook_session(session):
        yield session, lookups


@contextmanager
def hook_session(session: Session) -> Iterator[None]:
    """Hook the adapter for a session."""
    adapter = Adapter()
    adapter.hook(sys.modules["helion.autotuner"], session)
    try:
        yield
    finally:
        adapter.unhook()


@pytest.fixture
def hooked(kernels: Any) -> Iterator[tuple[Session, list[Lookup]]]:
    """The session of a run that loaded nothing, and its lookups."""
    with hook_adapter() as (session, lookups):
        yield session, lookups
    for kernel in (kernels.add, kernels.double, kernels.scale):
        kernel.reset()


@pytest.mark.usefixtures("kernels")
class TestFiniteSearch(AdapterConformance):
    """The rules of all adapters, for a kernel with a list of configs."""

    tuner = "helion"
    adapter = Adapter

    @property
    def kernel(self) -> Any:
        return sys.modules["helion_kernels"].add

    @property
    def args(self) -> tuple[Any, ...]:
        return torch.ones(100), torch.ones(100)

    def tune(self) -> object:
        self.kernel(*self.args)
        return dict(self.kernel.bind(self.args)._config)

    def forget(self) -> None:
        self.kernel.reset()

    def searches(self) -> int:
        return CLOCK.count // 3


class TestRandomSearch(TestFiniteSearch):
    """The rules of all adapters, for a kernel of which Helion makes the configs."""

    exempt: ClassVar[Mapping[str, str]] = {
        "test_two_sweeps_run_two_candidates_without_a_search": "the search makes its configs",
    }

    @property
    def kernel(self) -> Any:
        return sys.modules["helion_kernels"].double

    @property
    def args(self) -> tuple[Any, ...]:
        return (torch.ones(100),)

    def searches(self) -> int:
        return sys.modules["helion_kernels"].CountedSearch.count


def tune(kernel: Any, *args: Any) -> Any:
    """Launch a kernel and return its config."""
    kernel(*args)
    return kernel.bind(args)._config


def make_kernel(kernels: Any, function: Any, **settings: Any) -> Any:
    return kernels.helion.kernel(**settings)(function)


def describe_key(lookup: Lookup) -> dict[str, str]:
    return {value.name: value.display_text for value in lookup.problem.key}


def test_a_problem_key_has_dtype_shape_and_stride_of_tensors(kernels: Any, hooked: Any) -> None:
    _, lookups = hooked
    tune(kernels.add, torch.ones(100), torch.ones(200)[::2])

    key = describe_key(lookups[0])
    assert key["x.dtype"] == "fp32"
    assert key["x.shape"] == "(100,)"
    assert key["y.stride"] == "(2,)"
    assert key["specialization"] == '["cpu", null, false]'


def test_calls_differing_only_in_dynamic_shapes_are_one_problem(kernels: Any, hooked: Any) -> None:
    _, lookups = hooked
    tune(kernels.scale, torch.ones(100), 2.0)
    kernels.scale.reset()
    tune(kernels.scale, torch.ones(200), 3.0)

    assert len(lookups) == 1
    key = describe_key(lookups[0])
    assert key["x.shape"] == "(2,)"
    assert key["x.needs_int64"] == "False"
    assert key["factor"] == "builtins.float"


@needs_toy
def test_closure_values_of_a_kernel_are_in_the_problem_key(kernels: Any, hooked: Any) -> None:
    _, lookups = hooked

    def make(offset: int) -> Any:
        def shift(x: Any) -> Any:
            return x + offset

        return make_kernel(kernels, shift, configs=kernels.add.configs)

    tune(make(1), torch.ones(8))
    tune(make(2), torch.ones(8))

    assert [describe_key(lookup)["closure.offset"] for lookup in lookups] == ["1", "2"]


@needs_toy
def test_a_changed_helion_setting_makes_the_entry_stale(kernels: Any) -> None:
    """A default that the adapter did not read from the start leaves the fingerprint as it was."""
    kernel = make_kernel(kernels, kernels.double.fn, configs=kernels.add.configs)
    del kernel.settings.triton_do_not_specialize  # as in a version of Helion without this setting
    with hook_adapter() as (_, lookups):
        tune(kernel, torch.ones(8))
    entry = lookups[0].entry
    assert entry is not None

    outcomes = []
    for changed in (
        {"dot_precision": "ieee"},
        {"triton_do_not_specialize": True},
        {"debug_dtype_asserts": True},
        {"autotune_accuracy_check": False},
        {"triton_do_not_specialize": False},
    ):
        with hook_adapter(entry) as (_, loaded):
            tune(make_kernel(kernels, kernels.double.fn, configs=kernels.add.configs, **changed), torch.ones(8))
        outcomes.append((loaded[0].outcome, loaded[0].changed))

    assert outcomes == [(Outcome.STALE, ("settings",))] * 4 + [(Outcome.HIT, ())]


@needs_toy
def test_all_trials_of_the_setting_best_of_k_are_in_one_entry(kernels: Any, hooked: Any) -> None:
    """Every trial searches, and the entry has the candidates of all trials."""
    _, lookups = hooked
    kernel = make_kernel(kernels, kernels.double.fn, autotune_best_of_k=3)
    before = CLOCK.count

    config = tune(kernel, torch.ones(8))

    assert CLOCK.count - before == 12  # three trials of three configs, then the best config of each trial
    [lookup] = lookups
    assert lookup.entry is not None
    assert len(lookup.entry.candidates) == 9
    assert lookup.entry.choice is not None
    assert str(lookup.entry.choice) == f"block_sizes={config['block_sizes']}"


@needs_toy
def test_helion_tunes_although_its_own_cache_has_an_entry(kernels: Any) -> None:
    cache = sys.modules["helion.autotuner"].LocalAutotuneCache
    kernel = make_kernel(kernels, kernels.double.fn)
    cache.entries[kernel.name] = kernels.helion.Config(block_sizes=[7])

    with hook_adapter() as (_, lookups):
        config = tune(kernel, torch.ones(8))

    assert config["block_sizes"] != [7]
    assert [lookup.is_tuned for lookup in lookups] == [True]
    assert cache.entries.pop(kernel.name)["block_sizes"] == [7]
    assert "HELION_SKIP_CACHE" not in os.environ


@needs_toy
def test_a_failed_config_is_recorded_with_the_status_of_helion(kernels: Any, hooked: Any) -> None:
    _, lookups = hooked
    configs = [kernels.helion.Config(block_sizes=[0]), kernels.helion.Config(block_sizes=[16])]
    tune(make_kernel(kernels, kernels.double.fn, configs=configs), torch.ones(8))

    assert lookups[0].entry is not None
    failed = [candidate.failed for candidate in lookups[0].entry.candidates]
    assert failed == ["Helion: error", ""]


@needs_toy
def test_a_tuning_in_which_all_configs_fail_is_not_recorded(kernels: Any, hooked: Any) -> None:
    _, lookups = hooked
    configs = [kernels.helion.Config(block_sizes=[0]), kernels.helion.Config(block_sizes=[0], num_warps=4)]
    with pytest.raises(AssertionError):
        tune(make_kernel(kernels, kernels.double.fn, configs=configs), torch.ones(8))

    assert not lookups[0].is_tuned
    assert lookups[0].unrecorded_reason.startswith("every candidate failed: Helion: error")


@needs_toy
def test_a_loaded_helion_choice_that_does_not_compile_is_stale(kernels: Any) -> None:
    configs = [kernels.helion.Config(block_sizes=[0]), kernels.helion.Config(block_sizes=[16])]
    kernel = make_kernel(kernels, kernels.double.fn, configs=configs)
    with hook_adapter() as (_, lookups):
        tune(kernel, torch.ones(8))
    entry = lookups[0].entry
    assert entry is not None
    [broken] = [candidate for candidate in entry.candidates if candidate.failed]
    kernel.reset()

    with hook_adapter(replace(entry, choice=Candidate(params=broken.params))) as (_, loaded):
        config = tune(kernel, torch.ones(8))

    assert config["block_sizes"] == [16]
    assert [(lookup.outcome, lookup.is_tuned) for lookup in loaded] == [(Outcome.STALE, True)]


@needs_toy
def test_with_on_miss_first_helion_uses_the_first_config_that_compiles(kernels: Any) -> None:
    configs = [kernels.helion.Config(block_sizes=[0]), kernels.helion.Config(block_sizes=[16])]
    session, lookups = a_session((), on_miss="first")
    with hook_session(session):
        config = tune(make_kernel(kernels, kernels.double.fn, configs=configs), torch.ones(8))

    assert config["block_sizes"] == [16]
    [lookup] = lookups
    assert (lookup.outcome, lookup.is_tuned, lookup.fallback) == (Outcome.MISS, False, "first")


@needs_toy
def test_with_on_miss_first_a_search_that_makes_its_configs_takes_place(kernels: Any) -> None:
    session, lookups = a_session((), on_miss="first")
    with hook_session(session):
        tune(kernels.double, torch.ones(8))
    kernels.double.reset()

    assert [(lookup.outcome, lookup.is_tuned) for lookup in lookups] == [(Outcome.MISS, True)]


@needs_toy
def test_a_choice_changed_by_a_config_filter_loads_as_a_hit(kernels: Any) -> None:
    kernel = make_kernel(kernels, kernels.double.fn, configs=kernels.add.configs, autotune_config_filter=double_blocks)
    with hook_adapter() as (_, lookups):
        config = tune(kernel, torch.ones(8))
    entry = lookups[0].entry
    assert entry is not None
    kernel.reset()

    with hook_adapter(entry) as (_, loaded):
        loaded_config = tune(kernel, torch.ones(8))

    assert config["block_sizes"][0] in (64, 128, 256)
    assert dict(loaded_config) == dict(config)
    assert [lookup.outcome for lookup in loaded] == [Outcome.HIT]


def double_blocks(config: Any) -> Any:
    return type(config)(block_sizes=[2 * config["block_sizes"][0]])


@needs_toy
def test_a_search_for_several_sets_of_arguments_is_uncacheable(kernels: Any, hooked: Any) -> None:
    _, lookups = hooked
    search = sys.modules["helion.autotuner"].FiniteSearch(kernels.add.bind((torch.ones(8), torch.ones(8))), object())
    search._autotune = lambda: "a config"

    assert search.autotune() == "a config"
    assert [lookup.outcome for lookup in lookups] == [Outcome.UNCACHEABLE]


@needs_toy
def test_helion_locks_the_gpu_to_measure_but_not_to_compile(
    kernels: Any, hooked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = hooked
    events: list[str] = []
    monkeypatch.setattr(session, "measuring", lambda on="": NotingLock(events, on))
    bound_kernel_class = sys.modules["helion.runtime"].BoundKernel
    compile_config = bound_kernel_class.compile_config

    def noting_compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        events.append("compile")
        return compile_config(self, *args, **kwargs)

    monkeypatch.setattr(bound_kernel_class, "compile_config", noting_compile)
    tune(kernels.scale, torch.ones(8), 2.0)

    assert events[:6] == ["compile", "take cpu", "free", "compile", "take cpu", "free"]


class NotingLock:
    """A GPU lock that records when it is taken and released."""

    def __init__(self, events: list[str], processor: str) -> None:
        self._events = events
        self._processor = processor

    def __enter__(self) -> bool:
        self._events.append(f"take {self._processor}")
        return True

    def __exit__(self, *error: object) -> None:
        self._events.append("free")


def test_a_too_old_helion_is_an_error_naming_the_needed_version(kernels: Any) -> None:
    session, _ = a_session()

    with pytest.raises(HookError, match=r"helion.autotuner has no base_search; Helion 1.5 is needed"):
        Adapter().hook(ModuleType("helion.autotuner"), session)


@pytest.mark.skipif(not HAS_HELION, reason="compares the toy with Helion")
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("autotuner.base_cache", "AutotuneCacheBase.autotune"),
        ("autotuner.base_search", "BaseSearch.autotune"),
        ("autotuner.base_search", "BaseSearch.benchmark_batch"),
        ("autotuner.benchmark_worker", "BenchmarkWorker.run"),
    ],
)
def test_the_fake_helion_has_the_signatures_of_the_real_one(module: str, name: str) -> None:
    toy = TOY_FOLDER / "helion" / f"{module.replace('.', '/')}.py"
    class_name, _, method_name = name.partition(".")
    helions: Any = getattr(getattr(importlib.import_module(f"helion.{module}"), class_name), method_name)

    assert list_parameters(toy, class_name, method_name) == list(inspect.signature(helions).parameters)


def list_parameters(file: Path, class_name: str, method_name: str) -> list[str]:
    """Return the names of a method's parameters, as a file has them."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name == method_name:
                    return [argument.arg for argument in (*member.args.args, *member.args.kwonlyargs)]
    raise LookupError(f"{class_name}.{method_name}")


class Settings(NamedTuple):
    """An argument of a kernel that has the attributes of a tensor, and is not a tensor."""

    dtype: Any
    shape: tuple[int, ...]
    splits: int | None


def test_all_fields_of_a_non_tensor_argument_are_in_the_key() -> None:
    """A part that is no tensor's may hold falsy values, which a set of static dimensions cannot."""
    arguments = [Settings(torch.float16, (4,), splits) for splits in (0, None)]
    values = [list(_list_argument_values("x", argument, tuple(argument))) for argument in arguments]

    assert values[0] != values[1]
