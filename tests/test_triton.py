"""The Triton adapter, hooked into the installed Triton; kernels run under its interpreter."""

from __future__ import annotations

import ast
import contextlib
import gc
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError
from triton.runtime import autotuner as autotuner_module
from triton.runtime.errors import InterpreterError, OutOfResources
from triton.runtime.jit import KernelInterface

from pytest_autotune import devices as device
from pytest_autotune.cache.model import Entry
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.testing import AdapterConformance
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.source.functions import python_function
from pytest_autotune.tuners.triton.adapter import Adapter
from pytest_autotune.tuners.triton.interpreter import supply_interpreter_benchmark
from tests.conftest import REPOSITORY
from tests.sessions import a_session

pytestmark = pytest.mark.usefixtures("forget_choices")
CONFIGS = [16, 64]


class Process:
    """One run of a process: its lookups, and what it measured."""

    def __init__(self, entries: tuple[Entry, ...] | None, **policy: Any) -> None:
        self.run, self.lookups = a_session(entries, **policy)
        self.adapter = Adapter()
        self.adapter.hook(autotuner_module, self.run)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(lookup.entry for lookup in self.lookups if lookup.entry is not None)

    @property
    def untracked(self) -> list[str]:
        gc.collect()
        self.run.is_paused = True  # as it is at the end
        kernels_of_this_module = [kernel for kernel in self.adapter.untracked() if kernel.startswith(f"{__name__}.")]
        self.run.is_paused = False
        return kernels_of_this_module

    @property
    def outcomes(self) -> list[str | None]:
        return [lookup.outcome and lookup.outcome.value for lookup in self.lookups]


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    undo = supply_interpreter_benchmark(autotuner_module)
    yield
    undo()


@pytest.fixture
def session() -> Iterator[Any]:
    """Return a function that begins a run, and ends the run before, as a new process would."""
    begun: list[Process] = []

    def begin(entries: tuple[Entry, ...] | None = None, **policy: Any) -> Process:
        if begun:
            begun[-1].adapter.unhook()
        begun.append(Process(entries, **policy))
        return begun[-1]

    yield begin
    for process in begun[-1:]:
        process.adapter.unhook()


class Bench:
    """A benchmarker that prefers one block size and counts its calls."""

    def __init__(self, best: int = 64, launches: bool = True) -> None:
        self.best = best
        self.launches = launches
        self.calls = 0

    def __call__(self, kernel_call: Any, quantiles: Any = None) -> list[float]:
        self.calls += 1
        if self.launches:
            kernel_call()
        position = (self.calls - 1) % len(CONFIGS)
        time_ms = 1.0 if CONFIGS[position] == self.best else 2.0
        return [time_ms, time_ms, time_ms]


def configs(blocks: list[int] = CONFIGS, **options: Any) -> list[Any]:
    return [triton.Config({"BLOCK": block}, **options) for block in blocks]


def copy_kernel(bench: Any = None, blocks: list[int] = CONFIGS, key: Any = ("n",), **options: Any) -> Any:
    """A kernel that copies ``n`` numbers; each call makes another kernel under the same name."""

    @triton.autotune(configs=configs(blocks), key=list(key), do_bench=bench, **options)
    @triton.jit
    def copy(x, y, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

    return copy


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def call(kernel: Any, n: Any = 100, x: Any = None) -> Any:
    x = torch.arange(128.0) if x is None else x
    y = torch.zeros_like(x)
    kernel[grid](x, y, n)
    assert torch.equal(y[: int(n)], x[: int(n)])
    return kernel.best_config.kwargs["BLOCK"]


def test_the_stale_reason_names_added_and_removed_candidates(session) -> None:
    dumped = session(is_dumping=True)
    call(copy_kernel(Bench()))
    (entry,) = dumped.entries
    assert {digest.id for digest in entry.digests} == {part.value for part in entry.fingerprint}
    blocks = [*CONFIGS[1:], 2 * CONFIGS[-1]]
    changed = f"search changed (BLOCK={blocks[-1]} added; BLOCK={CONFIGS[0]} removed)"

    for loaded_entry, reason in ((entry, changed), (replace(entry, digests=()), "search changed")):
        loaded = session((loaded_entry,))
        call(copy_kernel(Bench(), blocks))

        assert loaded.lookups[0].reason == reason


def test_with_on_miss_first_or_nearest_a_launch_measures_nothing(session) -> None:
    """With `first` or `nearest`, the adapter measures nothing and counts a miss with its fallback."""
    recorded = session(is_dumping=True)
    call(copy_kernel(Bench()))
    entries, bench = recorded.entries, Bench()

    first = session(entries, on_miss="first")
    assert call(copy_kernel(bench), n=99) == CONFIGS[0]
    nearest = session(entries, on_miss="nearest")
    assert call(copy_kernel(bench), n=99) == 64

    assert bench.calls == 0
    assert [first.lookups[0].fallback, nearest.lookups[0].fallback] == ["first", "nearest"]
    assert first.outcomes == nearest.outcomes == ["miss"]


@triton.jit
def doubled(value):
    return value * 2


@triton.jit
def squared(value):
    return value * value


@dataclass(frozen=True)
class Tile:
    size: int = 2

    @property
    def doubled_size(self) -> int:
        return 2 * self.size


@dataclass(frozen=True)
class LargeTile(Tile):
    size: int = 3


def run_with(kernel: Any, option: Any) -> int:
    """Launch a kernel that takes an option, and return the block of its choice."""
    kernel[grid](torch.arange(128.0), torch.zeros(128), 100, option)
    return kernel.best_config.kwargs["BLOCK"]


def build_kernel_with_option() -> Any:
    @triton.autotune(configs=configs(), key=["n"], do_bench=Bench())
    @triton.jit
    def copy(x, y, n, option: tl.constexpr, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

    return copy


@pytest.mark.parametrize(
    "options",
    [
        (doubled, squared),
        (Tile(), LargeTile()),
        ((torch.zeros(1),), (torch.zeros(1, dtype=torch.float16),)),
        (None, doubled),
        ((), (torch.zeros(1),)),
    ],
    ids=["functions", "objects", "dtypes in tuples", "None and a function", "tuples of two lengths"],
)
def test_each_test_asks_for_its_own_choice_in_any_test_order(session, options: tuple[Any, Any]) -> None:
    """Triton's memory does not tell such arguments apart. Each test asks for its own choice, in any order and alone."""

    def run_tests(process: Process, order: tuple[Any, ...]) -> list[int]:
        kernel, blocks = build_kernel_with_option(), []
        for position, option in enumerate(order):
            process.run.begin_test(f"test_{position}")
            blocks.append(run_with(kernel, option))
        return blocks

    dumped = session(is_dumping=True)
    assert run_tests(dumped, options) == [64, 64]
    assert len(dumped.entries) == 2

    for order in (options, options[::-1], options[:1], options[1:]):
        loaded = session(dumped.entries)
        assert run_tests(loaded, order) == [64] * len(order)
        assert loaded.outcomes == ["hit"] * len(order)


def test_each_test_asks_if_a_constexpr_is_none_by_default(session) -> None:
    @triton.autotune(configs=configs(), key=["n"], do_bench=Bench())
    @triton.jit
    def copy(x, y, n, BLOCK: tl.constexpr, option: tl.constexpr = None):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

    process = session(is_dumping=True)
    for test, options in {"test_none": {}, "test_doubled": {"option": doubled}}.items():
        process.run.begin_test(test)
        copy[grid](torch.arange(128.0), torch.zeros(128), 100, **options)

    assert len(process.entries) == 2


def test_an_ordinary_kernel_asks_once_for_all_tests(session) -> None:
    """BLOCK is None by default, but the candidates set it. So Triton's memory keeps the choice."""

    @triton.autotune(configs=configs(), key=["n"], do_bench=Bench())
    @triton.jit
    def copy(x, y, n, BLOCK: tl.constexpr = None):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

    process = session(is_dumping=True)
    for test in ("test_first", "test_second"):
        process.run.begin_test(test)
        copy[grid](torch.arange(128.0), torch.zeros(128), 100)

    assert len(process.lookups) == 1


def test_a_choice_under_a_perf_model_is_kept_for_the_next_test(session) -> None:
    """The model may look at the function, too, and then leave other candidates. No entry has these."""

    def fastest_first(BLOCK: int, option: Any, **options: Any) -> int:
        return BLOCK if option is doubled else -BLOCK

    @triton.autotune(
        configs=configs(), key=["n"], do_bench=Bench(), prune_configs_by={"perf_model": fastest_first, "top_k": 1}
    )
    @triton.jit
    def copy(x, y, n, option: tl.constexpr, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

    process = session()
    for option in (doubled, squared):
        process.run.begin_test(f"test_{option}")
        assert run_with(copy, option) == 16


def test_an_entry_records_key_device_candidates_and_tuning_time(session) -> None:
    """The entry also has the kernel, the device, the key, the choice and the versions of the libraries."""
    first = session(is_dumping=True)
    call(copy_kernel(Bench()))

    (lookup,) = first.lookups
    assert lookup.is_tuned
    assert lookup.problem.kernel.endswith("copy_kernel.<locals>.copy")
    assert lookup.problem.device == device.INTERPRETER
    assert [value.encoded for value in lookup.problem.key] == [
        ("n", "int", "100", ""),
        ("x.dtype", "str", "'fp32'", "dtype"),
        ("y.dtype", "str", "'fp32'", "dtype"),
    ]
    assert [candidate.time_us for candidate in lookup.entry.candidates] == [2000.0, 1000.0]
    assert str(lookup.entry.choice).startswith("BLOCK=64")
    assert lookup.entry.tuning_seconds > 0
    assert str(lookup.entry.versions).startswith(f"triton {triton.__version__}, torch ")


def test_a_hit_runs_the_pre_hook_of_the_chosen_config(session) -> None:
    """The adapter gives Triton the kernel's own candidate, because only that object carries the pre_hook."""
    hooked: list[int] = []

    def kernel() -> Any:
        made = copy_kernel(Bench())
        for config in made.configs:
            config.pre_hook = lambda arguments: hooked.append(arguments["BLOCK"])
        return made

    recorded = session(is_dumping=True)
    call(kernel())
    session(recorded.entries)
    hooked.clear()
    loaded = kernel()

    call(loaded)

    assert hooked == [64]
    assert loaded.best_config is loaded.configs[1]


def accumulate_kernel(bench: Any) -> Any:
    @triton.autotune(configs=configs(), key=["n"], reset_to_zero=["y"], do_bench=bench)
    @triton.jit
    def accumulate(x, y, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.atomic_add(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

    return accumulate


def test_a_hit_applies_reset_to_zero_as_a_tuning_does(session) -> None:
    def first_call() -> Any:
        y = torch.full((128,), 5.0)
        accumulate_kernel(Bench())[grid](torch.ones(128), y, 128)
        return y

    recorded = session(is_dumping=True)
    tuned = first_call()
    session(recorded.entries)
    loaded = first_call()

    assert torch.equal(tuned, torch.ones(128))
    assert torch.equal(loaded, tuned)


def test_a_hit_sets_best_config_and_timings_as_a_tuning_does(session, monkeypatch, capsys) -> None:
    recorded = session(is_dumping=True)
    call(copy_kernel(Bench()))
    session(recorded.entries)
    monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")
    kernel = copy_kernel(Bench())

    call(kernel)

    assert kernel.bench_time == 0.0
    assert list(kernel.configs_timings) == [kernel.best_config]
    assert "Triton autotuning" not in capsys.readouterr().out


def test_an_entry_is_stale_if_the_triton_pruner_drops_its_choice(session) -> None:
    recorded = session(is_dumping=True)
    call(copy_kernel(Bench(best=64)))
    loaded = session(recorded.entries)
    pruned = {"early_config_prune": lambda configs, nargs, **kwargs: [c for c in configs if c.kwargs["BLOCK"] != 64]}

    kernel = copy_kernel(None, blocks=CONFIGS, prune_configs_by=pruned)

    assert call(kernel) == 16
    # Triton >= 3.8 takes the only candidate that is left without asking anybody.
    assert loaded.outcomes == [] or loaded.lookups[0].outcome is Outcome.STALE


def test_a_kernel_pruned_to_one_candidate_is_not_counted(session) -> None:
    """Triton launches the only candidate that is left. The adapter neither measures nor counts it."""
    first = session(is_dumping=True)
    bench = Bench()
    pruned = {"early_config_prune": lambda configs, nargs, **kwargs: configs[:1]}

    assert call(copy_kernel(bench, prune_configs_by=pruned)) == 16
    assert bench.calls == 0
    assert first.lookups == []


def test_an_autotuner_subclass_that_calls_super_run_is_recorded(session) -> None:
    class Cached(autotuner_module.Autotuner):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            return super().run(*args, **kwargs)

    first = session(is_dumping=True)
    stock = copy_kernel(Bench())
    kernel = Cached(stock.fn, stock.arg_names, configs(), ["n"], None, None, do_bench=Bench())

    call(kernel)

    assert len(first.entries) == 1


def test_check_disk_cache_of_a_subclass_needs_cache_results(session) -> None:
    """Triton calls the subclass's own check_disk_cache only if cache_results is set.

    The first kernel stays untracked after its deletion.
    """
    keys = []

    class OwnDisk(autotuner_module.Autotuner):
        def check_disk_cache(self, key: Any, configs: Any, bench: Any) -> bool:
            keys.append(key)
            self.cache[key] = configs[0]
            return True

    first = session(is_dumping=True)
    stock = copy_kernel(Bench())
    for is_on in (False, True):
        kernel = OwnDisk(stock.fn, stock.arg_names, configs(), ["n"], None, None, do_bench=Bench(), cache_results=is_on)
        kernel.cache_results = is_on  # Triton does not switch it on for its interpreter

        call(kernel)

        assert bool(keys) is is_on
        del kernel
        assert len(first.untracked) == 1, "by the first, which nobody holds any more"


def test_after_a_nested_run_the_outer_run_still_records_tunings() -> None:
    outer = Process(None, is_dumping=True)
    Process(None, is_dumping=True).adapter.unhook()

    call(copy_kernel(Bench()))

    assert [lookup.is_tuned for lookup in outer.lookups] == [True]
    outer.adapter.unhook()


def test_a_hit_raises_the_error_of_the_pre_hook_of_a_user(session) -> None:
    def refuse(arguments: Any, reset_only: bool = False) -> None:
        if arguments["x"].stride(0) != 1:
            raise RuntimeError("x has to be contiguous")

    def kernel_with_hook() -> Any:
        kernel = copy_kernel(Bench())
        kernel.pre_hook = refuse
        return kernel

    first = session(is_dumping=True)
    call(kernel_with_hook())
    second = session(first.entries)
    kernel = kernel_with_hook()

    for _ in range(2):  # nothing was chosen by the first
        with pytest.raises(RuntimeError, match="x has to be contiguous"):
            kernel[grid](torch.ones(200)[::2], torch.zeros(128), 100)
    assert second.run.notes == []
    assert call(kernel) == 64


def test_an_autotuner_subclass_with_its_own_run_is_not_covered(session) -> None:
    class OwnRun(autotuner_module.Autotuner):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            self.best_config = self.cache["mine"] = self.configs[0]
            return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())

    first = session(is_dumping=True)
    stock = copy_kernel(Bench())
    kernel = OwnRun(stock.fn, stock.arg_names, configs(), ["n"], None, None)
    y = torch.zeros(128)
    kernel[grid](torch.ones(128), y, 100)

    (kernel_text,) = first.untracked
    assert "copy_kernel.<locals>.copy" in kernel_text
    assert "OwnRun" in kernel_text


def test_with_the_conftest_of_the_docs_a_subclass_is_recorded(session, monkeypatch) -> None:
    """The conftest of docs/adapters.md replaces the library's own search with Triton's.

    The adapter records an entry.
    """

    class Database(dict[Any, Any]):
        """Knows a choice for every call."""

        def __contains__(self, key: object) -> bool:
            return True

        def __missing__(self, key: object) -> Any:
            return kernel.configs[0]

    class MyTuner(autotuner_module.Autotuner):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, do_bench=bench)
            self.cache = Database()

        def run(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("a search of its own")

    bench, stock = Bench(), copy_kernel()
    kernel = MyTuner(stock.fn, stock.arg_names, configs(), ["n"], None, None)
    monkeypatch.setitem(sys.modules, "mylib.autotuner", SimpleNamespace(MyTuner=MyTuner))
    (conftest,) = re.findall(
        r"```python\n# conftest.py\n(.*?)```", (REPOSITORY / "docs/adapters.md").read_text(), re.DOTALL
    )
    page = (REPOSITORY / "docs/adapters.md").read_text()
    (conftest,) = re.findall(r"```python\n# conftest.py\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(conftest, names)
    names["pytest_collection_finish"](None)
    first = session(is_dumping=True)

    call(kernel)

    assert len(first.entries) == 1
    assert first.untracked == []
    assert bench.calls == 0


def test_a_kernel_first_called_while_paused_is_recorded_later(session) -> None:
    """A test with an empty memory calls the kernel first while the session is paused. The next call is a lookup."""
    first = session(is_dumping=True)
    first.run.paused = True
    with first.adapter.isolated():
        kernel = copy_kernel(Bench())
        call(kernel)
    first.run.paused = False

    call(kernel)

    assert len(first.entries) == 1


def test_a_kernel_tuned_before_the_plugin_starts_is_not_covered(session) -> None:
    """A kernel that autotune_ignore matches is not untracked. The kernel keeps its choice in memory."""
    kernel = copy_kernel(Bench())
    call(kernel)

    first = session(is_dumping=True)

    assert any("copy_kernel.<locals>.copy" in kernel_text for kernel_text in first.untracked)
    assert session(is_dumping=True, ignore=("triton:*.copy",)).untracked == []
    assert kernel.cache


def test_closures_of_heuristics_around_a_wrapper_are_in_the_key(session) -> None:
    class Locked(KernelInterface[Any]):
        def __init__(self, fn: Any) -> None:
            self.fn, self.arg_names = fn, fn.arg_names

        def run(self, *args: Any, **kwargs: Any) -> Any:
            with threading.Lock():
                return self.fn.run(*args, **kwargs)

    def ask(limit: int) -> None:
        heuristics = triton.heuristics({"n": lambda arguments: limit})
        heuristics(Locked(copy_kernel(Bench(), key=())))[grid](torch.ones(128), torch.zeros(128))

    first = session(is_dumping=True)
    ask(10)
    ask(20)

    limits = [value.value for lookup in first.lookups for value in lookup.problem.key if value.name.endswith("limit")]
    assert limits == [10, 20]


def test_heuristics_made_before_the_plugin_starts_are_in_the_key(session) -> None:
    limit = 10
    kernel = triton.heuristics({"n": lambda arguments: limit})(copy_kernel(Bench(), key=()))
    first = session(is_dumping=True)

    kernel[grid](torch.ones(128), torch.zeros(128))

    assert "heuristics.n.limit" in [value.name for value in first.lookups[0].problem.key]


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, ("flag", "NoneType", "None", "")),
        (True, ("flag", "int", "1", "")),
        (1, ("flag", "int", "1", "")),
        (1.0, ("flag", "int", "1", "")),
        (0.5, ("flag", "float", "0.5", "")),
        ("relu", ("flag", "str", "'relu'", "")),
        (tl.float16, ("flag", "str", "'fp16'", "dtype")),
        (torch.bfloat16, ("flag", "str", "'torch.bfloat16'", "dtype")),
        (tl.constexpr(3), ("flag", "int", "3", "")),
        ((1, 2), None),
    ],
    ids=["None", "True", "1", "1.0", "0.5", "text", "Triton dtype", "torch dtype", "constexpr", "tuple"],
)
def test_a_key_value_of_any_type_is_recorded_and_loads_as_a_hit(session, value: Any, encoded: Any) -> None:
    def kernel(bench: Any) -> Any:
        @triton.autotune(configs=configs(), key=["n", "flag"], do_bench=bench)
        @triton.jit
        def copy(x, y, n, flag: tl.constexpr, BLOCK: tl.constexpr):
            offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

        return copy

    try:
        hash(value)
    except TypeError:
        pytest.skip("this Triton cannot hold such a value in its own memory")
    recorded = session(is_dumping=True)
    kernel(Bench())[grid](torch.ones(128), torch.zeros(128), 100, value)
    loaded = session(recorded.entries)
    kernel(Bench())[grid](torch.ones(128), torch.zeros(128), 100, value)

    (part,) = [part for part in recorded.lookups[0].problem.key if part.name == "flag"]
    assert encoded is None or part.encoded == encoded
    assert loaded.outcomes == ["hit"]


def test_a_tensor_in_the_key_makes_a_problem_uncacheable(session) -> None:
    """The lookups have a reason and no entry. The stable parts of the key still separate the problems."""
    first = session(is_dumping=True)
    kernel = copy_kernel(Bench(), key=("x", "n"))

    assert [call(kernel, n) for n in (100, 101)] == [64, 64]

    assert len({lookup.problem for lookup in first.lookups}) == 2, "what has a stable form tells them apart"
    for lookup in first.lookups:
        assert lookup.outcome is Outcome.UNCACHEABLE
        assert lookup.reason == "x is a torch.Tensor, which has no stable form"
        assert lookup.entry is None


def test_arguments_by_position_and_by_keyword_are_one_problem(session) -> None:
    first = session(is_dumping=True)
    x, y = torch.ones(128), torch.zeros(128)
    copy_kernel(Bench())[grid](x, y, 100)
    copy_kernel(Bench())[grid](y=y, x=x, n=100)

    assert len({lookup.problem for lookup in first.lookups}) == 1


def test_a_kernel_with_two_candidate_lists_gets_two_entries(session) -> None:
    base = copy_kernel(None).fn
    lists = [[16, 64], [32, 64]]

    def kernels() -> list[Any]:
        return [triton.autotune(configs(blocks), key=["n"], do_bench=Bench(best=64))(base) for blocks in lists]

    recorded = session(is_dumping=True)
    for kernel in kernels():
        call(kernel)
    loaded = session(recorded.entries)
    for kernel in kernels():
        call(kernel)

    assert len({entry.problem for entry in recorded.entries}) == 1
    assert len({entry.fingerprint for entry in recorded.entries}) == 2
    assert loaded.outcomes == ["hit", "hit"]


def test_a_kernel_is_still_a_hit_if_its_candidates_are_reordered(session) -> None:
    base = copy_kernel(None).fn
    recorded = session(is_dumping=True)
    call(triton.autotune(configs([16, 64]), key=["n"], do_bench=Bench())(base))
    loaded = session(recorded.entries)
    call(triton.autotune(configs([64, 16]), key=["n"], do_bench=Bench())(base))

    assert loaded.outcomes == ["hit"]


def test_a_hit_launches_the_first_of_two_equal_candidates(session) -> None:
    """To Triton, candidates with the values 1 and True are equal, and it launches the first."""

    def launch(bench: Any) -> Any:
        pair = [triton.Config({"BLOCK": 16, "FLAG": value}) for value in (1, True)]

        @triton.autotune(configs=[*pair, triton.Config({"BLOCK": 32, "FLAG": 0})], key=["n"], do_bench=bench)
        @triton.jit
        def fill(y, n, BLOCK: tl.constexpr, FLAG: tl.constexpr):
            offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(y + offsets, offsets, mask=offsets < n)

        fill[grid](torch.zeros(128), 100)
        return repr(fill.best_config.kwargs["FLAG"])

    recorded = session(is_dumping=True)
    times = iter([1.0, 1.0, 3.0])
    assert launch(lambda kernel_call, quantiles: next(times)) == "1"
    session(recorded.entries)
    assert launch(None) == "1"


def test_changing_candidates_at_run_time_makes_the_entry_stale(session) -> None:
    recorded = session(is_dumping=True)
    call(copy_kernel(Bench()))
    loaded = session(recorded.entries)
    kernel = copy_kernel(Bench())
    kernel.configs = configs([16, 64, 128])

    call(kernel)

    assert loaded.outcomes == ["stale"]


def test_a_benchmark_that_hides_all_errors_is_not_recorded(session) -> None:
    """The user's benchmark returns infinity for every candidate and hides the errors. The lookup has no entry."""
    first = session(is_dumping=True)
    kernel = copy_kernel(lambda kernel_call, quantiles: [float("inf")] * 3)

    call(kernel)

    assert first.entries == ()
    assert [lookup.unrecorded_reason for lookup in first.lookups] == ["every candidate failed"]


class Refuses:
    """A benchmarker under which every candidate fails, until it does not."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, kernel_call: Any, quantiles: Any = None) -> list[float]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return [1.0, 1.0, 1.0]


TOO_LARGE = OutOfResources(300_000, 232_448, "shared memory")
DOES_NOT_COMPILE = CompilationError("def k():\n  x", ast.parse("x").body[0], "x is not defined")
FAILURES = [
    pytest.param(TOO_LARGE, "OutOfResources: out of resource: shared memory, Required: 300000", id="resources"),
    pytest.param(DOES_NOT_COMPILE, "CompilationError: x is not defined", id="compiler"),
    pytest.param(TypeError("missing a required argument: 'n'"), "TypeError: missing a required argument", id="call"),
]


def failing_call(kernel: Any, error: Exception) -> None:
    """A launch that fails as its tuning does: Triton goes on where a candidate needs too much."""
    with pytest.raises(type(error)) if not isinstance(error, OutOfResources) else contextlib.nullcontext():
        call(kernel)


@pytest.mark.parametrize(("error", "reason"), FAILURES)
def test_an_entry_is_a_hit_if_all_candidates_fail_as_recorded(session, error, reason) -> None:
    """Every candidate fails for a reason that the next run will see again.

    The next run counts a hit and adds no note.
    """
    first = session(is_dumping=True)
    failing_call(copy_kernel(Refuses(error)), error)
    (entry,) = first.entries
    assert entry.is_failure
    assert [candidate.failed[: len(reason)] for candidate in entry.candidates] == [reason]

    bench = Refuses(error)
    loaded = session(first.entries, on_miss="error")
    failing_call(copy_kernel(bench), error)

    assert [(lookup.outcome, lookup.is_tuned) for lookup in loaded.lookups] == [(Outcome.HIT, False)]
    assert bench.calls > 0
    assert loaded.run.notes == []


def test_an_entry_of_failed_candidates_is_stale_if_one_works_now(session) -> None:
    """The entry says that every candidate failed. The kernel is tuned again and gets a choice."""
    first = session(is_dumping=True)
    call(copy_kernel(Refuses(TOO_LARGE)))

    loaded = session(first.entries)
    call(copy_kernel(Bench(best=64)))

    (lookup,) = loaded.lookups
    assert (lookup.outcome, lookup.is_tuned) == (Outcome.STALE, True)
    assert lookup.reason == "every candidate failed when this entry was tuned, but one works now"
    assert str(lookup.entry.choice).startswith("BLOCK=64")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        OSError(28, "No space left on device"),
        InterpreterError("'_semantic' argument must be provided: another thread's launch has ended"),
    ],
)
def test_running_out_of_memory_or_a_gpu_fault_is_not_recorded(session, error: Exception) -> None:
    first = session(is_dumping=True)

    with pytest.raises(type(error)):
        call(copy_kernel(Refuses(error)))

    assert [(lookup.is_tuned, lookup.entry) for lookup in first.lookups] == [(False, None)]


@pytest.mark.parametrize("in_a_candidate", [True, False])
def test_a_tuning_that_another_thread_made_fail_is_not_recorded(session, in_a_candidate: bool) -> None:
    """Another call clears the autotuner's arguments during the search.

    Its error is not recorded as a failure of the candidates.
    """
    first = session(is_dumping=True)

    def another_call_ends(*args: Any, **kwargs: Any) -> Any:
        kernel.nargs = None
        return kernel.configs

    def bench(kernel_call: Any, quantiles: Any) -> list[float]:
        another_call_ends()
        return [kernel_call() or 1.0] * 3

    pruned = {} if in_a_candidate else {"prune_configs_by": {"early_config_prune": another_call_ends}}
    kernel = copy_kernel(bench, **pruned)
    with pytest.raises(TypeError, match="NoneType"):
        call(kernel)

    assert [(lookup.is_tuned, lookup.entry) for lookup in first.lookups] == [(False, None)]


class Disturbed:
    """A benchmark that one candidate fails in, while another thread launches a kernel of its own.

    :param error: that is raised; None for a benchmark that keeps it to itself.
    """

    def __init__(self, threads: int, error: Exception | None) -> None:
        self.threads = threads
        self.error = error
        self.calls = 0

    def __call__(self, kernel_call: Any, quantiles: Any) -> list[float]:
        self.calls += 1
        for _ in range(self.threads):
            thread = threading.Thread(target=call, args=(copy_kernel(Bench()),))
            thread.start()
            thread.join()
        self.threads = 0
        if self.error is not None:
            raise self.error
        kernel_call()
        return [float("inf") if self.calls == 1 else 1.0] * 3


@pytest.mark.parametrize("threads", [0, 1])
def test_a_tuning_while_other_threads_launch_is_not_recorded(session, threads: int) -> None:
    """Triton's interpreter replaces functions of its language for each launch, which all threads see."""
    run = session(is_dumping=True)

    call(copy_kernel(Disturbed(threads, error=None)))

    lookup = run.lookups[-1]
    assert lookup.is_tuned == (not threads)
    assert bool(lookup.unrecorded_reason) == bool(threads)


@pytest.mark.parametrize("threads", [0, 1])
def test_a_failed_tuning_while_other_threads_run_is_not_recorded(session, threads: int) -> None:
    run = session(is_dumping=True)

    with pytest.raises(TypeError, match="no such argument"):
        call(copy_kernel(Disturbed(threads, error=TypeError("no such argument"))))

    assert run.lookups[-1].has_failed == (not threads)


def test_a_tuning_while_another_thread_is_alive_is_not_recorded(session) -> None:
    """The thread may launch kernels that have their choice, which the adapter does not see."""
    run = session(is_dumping=True)
    has_launched, may_end = threading.Event(), threading.Event()

    def launch() -> None:
        call(copy_kernel(Bench()))
        has_launched.set()
        may_end.wait(30)

    thread = threading.Thread(target=launch)
    thread.start()
    assert has_launched.wait(30)
    call(copy_kernel(Disturbed(0, error=None)), 65)
    may_end.set()
    thread.join()
    call(copy_kernel(Disturbed(0, error=None)), 66)

    assert [lookup.is_tuned for lookup in run.lookups] == [True, False, True]


def restores(named: Any, exception: Any) -> None:
    """A hook that no test looks into."""


def test_a_kernel_with_an_observing_post_hook_is_uncacheable(session) -> None:
    """Triton's own tests see in a ``post_hook`` that a candidate was refused. The lookup is uncacheable."""
    seen: list[Any] = []

    def notes(named: Any, exception: Any) -> None:
        seen.append(exception)

    first = session(is_dumping=True)
    call(copy_kernel(Bench(), post_hook=restores))
    entries = first.entries
    loaded = session(entries)
    call(copy_kernel(Bench(), post_hook=restores))
    call(copy_kernel(Bench(), restore_value=["y"]))
    call(copy_kernel(Bench(), post_hook=notes))

    assert loaded.outcomes == ["hit", "uncacheable"], "the second one is remembered"
    assert len(seen) == len(CONFIGS)
    assert loaded.lookups[-1].reason == "its post_hook observes each search, so the search cannot be skipped"


def test_a_kernel_with_a_partial_as_post_hook_is_recorded(session) -> None:
    """Libraries use a ``partial``, a method or a decorated function as post_hook."""
    first = session(is_dumping=True)
    kernel = copy_kernel(Bench(), post_hook=partial(restores))
    python_function(kernel).__qualname__ = "copy"

    call(kernel)

    assert [lookup.is_tuned for lookup in first.lookups] == [True]


def test_passing_a_tuned_parameter_raises_the_error_of_triton(session) -> None:
    """Triton raises its own error about conflicting meta-parameters."""
    recorded = session(is_dumping=True)
    call(copy_kernel(Bench()))
    loaded = session(recorded.entries)
    x = torch.zeros(128)

    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        copy_kernel(Bench())[(1,)](x, x, 100, BLOCK=16)

    assert loaded.lookups == []


def test_a_failed_candidate_is_recorded_and_never_chosen(session) -> None:
    times = iter([[float("inf")] * 3, [2.0, 2.0, 2.0]])
    first = session(is_dumping=True)

    assert call(copy_kernel(lambda kernel_call, quantiles: next(times))) == 64

    failed, fastest = first.entries[0].candidates
    assert failed.failed
    assert failed.time_us is None
    assert fastest.time_us == 2000.0


def test_a_benchmark_that_returns_a_single_number_is_recorded(session) -> None:
    first = session(is_dumping=True)
    times = iter([2.0, 1.0])

    assert call(copy_kernel(lambda kernel_call, quantiles: next(times))) == 64
    assert first.entries[0].choice.time_us == 1000.0


class FakeDiskCache:
    """Stands in for Triton's disk cache: a benchmark fills it, and the next search of the problem reads it."""

    def __init__(self) -> None:
        self.searched_keys: list[Any] = []
        self.error_of_read: Exception | None = None
        self.error_of_write: Exception | None = None
        self.choice_by_key: dict[Any, Any] = {}

    def check(self, autotuner: Any, tuning_key: Any, bench_fn: Callable[[], None]) -> bool:
        """Do what ``Autotuner.check_disk_cache`` does, with a dict in place of the disk."""
        self.searched_keys.append(tuning_key)
        if self.error_of_read is not None:
            raise self.error_of_read
        if tuning_key in self.choice_by_key:
            autotuner.cache[tuning_key] = self.choice_by_key[tuning_key]
            return True
        bench_fn()
        if self.error_of_write is not None:
            raise self.error_of_write
        self.choice_by_key[tuning_key] = autotuner.cache[tuning_key]
        return False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FakeDiskCache:
    """Replace Triton's disk cache by a dict, and let the interpreted kernels of these tests use it."""
    disk = FakeDiskCache()

    def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
        return disk.check(self, tuning_key, bench_fn)

    monkeypatch.setattr(autotuner_module.Autotuner, "check_disk_cache", check_disk_cache)
    monkeypatch.setattr("pytest_autotune.tuners.triton.internals.autotuners.is_interpreted", lambda autotuner: False)
    monkeypatch.setattr("pytest_autotune.tuners.triton.choosing.find_target_device", lambda: device.INTERPRETER)
    return disk


def copy_kernel_with_cache_results(bench: Any) -> Any:
    kernel = copy_kernel(bench)
    kernel.cache_results = True
    return kernel


@pytest.mark.parametrize("dumping", [True, False])
def test_the_disk_cache_of_triton_is_used_except_in_a_dump(session, disk: FakeDiskCache, dumping: bool) -> None:
    """Triton's own check_disk_cache is called if the kernel sets cache_results and the run does not dump."""
    session((), is_dumping=dumping)

    assert call(copy_kernel_with_cache_results(Bench())) == 64
    assert bool(disk.searched_keys) is not dumping


def test_a_choice_from_tritons_disk_is_a_miss_without_a_tuning(session, disk: FakeDiskCache) -> None:
    first = session(())
    assert call(copy_kernel_with_cache_results(Bench())) == 64
    assert (first.outcomes, first.lookups[0].is_tuned) == (["miss"], True)

    bench = Bench()
    second = session(())
    assert call(copy_kernel_with_cache_results(bench)) == 64
    assert (second.outcomes, second.lookups[0].is_tuned, bench.calls) == (["miss"], False, 0)


@pytest.mark.parametrize("uses_disk_cache", [True, False], ids=["cache_results", "plain"])
def test_a_miss_whose_candidates_do_not_compile_stays_a_miss(
    session, disk: FakeDiskCache, uses_disk_cache: bool
) -> None:
    kernel = copy_kernel(Refuses(DOES_NOT_COMPILE))
    kernel.cache_results = uses_disk_cache
    loaded = session(())

    failing_call(kernel, DOES_NOT_COMPILE)

    assert loaded.outcomes == ["miss"]
    assert bool(disk.searched_keys) is uses_disk_cache


@pytest.mark.parametrize("error", [TypeError("Object of type dtype is not JSON serializable"), OSError(28, "full")])
def test_a_search_is_tuned_if_tritons_disk_cannot_be_written(session, disk, error: Exception) -> None:
    disk.error_of_write = error
    loaded = session(())

    with pytest.raises(type(error)):
        call(copy_kernel_with_cache_results(Bench()))

    (lookup,) = loaded.lookups
    assert (lookup.outcome, lookup.is_tuned, lookup.entry.is_failure) == (Outcome.MISS, True, False)


def test_an_error_of_reading_tritons_disk_fails_no_candidate(session, disk: FakeDiskCache) -> None:
    disk.error_of_read = ValueError("Expecting value: line 1 column 1 (char 0)")
    loaded = session(())

    with pytest.raises(ValueError, match="Expecting value"):
        call(copy_kernel_with_cache_results(Bench()))

    assert [(lookup.is_tuned, lookup.outcome) for lookup in loaded.lookups] == [(False, None)]


def test_a_failed_cache_results_kernel_that_works_now_is_stale(session, disk: FakeDiskCache) -> None:
    dumped = session(is_dumping=True)
    call(copy_kernel_with_cache_results(Refuses(TOO_LARGE)))
    (entry,) = dumped.entries
    assert entry.is_failure

    loaded = session((entry,))
    assert call(copy_kernel_with_cache_results(Bench())) == 64
    assert loaded.outcomes == ["stale"]


def test_cache_results_set_by_the_user_is_kept_after_the_run(session) -> None:
    before = copy_kernel(None)
    first = session(is_dumping=True)
    during = copy_kernel(None)
    during.cache_results = True
    first.adapter.unhook()

    assert before.cache_results is False
    assert during.cache_results is True
    assert "cache_results" not in autotuner_module.Autotuner.__dict__


def test_patching_a_triton_with_a_new_signature_raises_an_error(session) -> None:
    class Autotuner:
        def check_disk_cache(self, tuning_key: Any, configs: Any) -> None: ...

    with pytest.raises(HookError, match="has another signature"):
        Adapter().hook(SimpleNamespace(Autotuner=Autotuner), session().run)  # type: ignore[arg-type]


def test_the_error_for_an_old_triton_names_the_needed_version(session) -> None:
    """An Autotuner without check_disk_cache cannot be hooked. The error names the first version that has the method."""
    with pytest.raises(HookError, match=r"triton >= 3\.4 is needed"):
        Adapter().hook(SimpleNamespace(Autotuner=type("Autotuner", (), {})), session().run)  # type: ignore[arg-type]


def test_an_unknown_benchmark_function_of_triton_gets_a_note(session) -> None:
    """The adapter runs the function, as Triton does, and adds a note."""
    first = session((), is_dumping=True)
    kernel = copy_kernel(Bench())
    ran: list[bool] = []

    used = kernel.check_disk_cache(("key",), kernel.configs, lambda: ran.append(True))

    assert ran == [True]
    assert used is False
    assert "the benchmark of this Triton version is unknown; triton tuned by itself" in first.run.notes[0]


def test_kernels_under_the_interpreter_are_tuned_without_a_gpu(session) -> None:
    first = session(is_dumping=True)

    call(copy_kernel(None, blocks=[16, 128]))

    assert [candidate.time_us > 0 for candidate in first.entries[0].candidates] == [True, True]


class TestConformance(AdapterConformance):
    """The conformance tests for Triton's adapter."""

    tuner = "triton"
    adapter = Adapter

    @pytest.fixture(autouse=True)
    def kernel(self, interpreter: None) -> None:
        self._bench = Bench()
        self._kernel = copy_kernel(self._bench)

    def tune(self) -> object:
        return call(self._kernel)

    def forget(self) -> None:
        self._kernel.cache.clear()

    def searches(self) -> int:
        return self._bench.calls // len(CONFIGS)
