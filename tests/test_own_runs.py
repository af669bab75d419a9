"""Autotuners of other libraries that search in a ``run`` of their own; kernels run under Triton's interpreter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import copy, deepcopy
from functools import wraps
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import KernelInterface

from pytest_autotune import devices
from pytest_autotune.run.sweep import Sweep
from pytest_autotune.tuners.triton import libtuner
from pytest_autotune.tuners.triton.internals import benchmark
from tests.test_triton import CONFIGS, Bench, configs, copy_kernel, grid, interpreter, session

__all__ = ["interpreter", "session"]

pytestmark = pytest.mark.usefixtures("forget_choices")


class CopiedRun(Autotuner):
    """Searches as Triton does, in a copy of its ``run`` whose key is a text, so that a file can hold it."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        key = repr(self.own_key({**self.nargs, **kwargs}))
        if key not in self.cache:
            left = self.prune_configs(kwargs)
            timings = {config: self._bench(*args, config=config, **kwargs) for config in left}
            self.cache[key] = min(timings, key=timings.get)  # type: ignore[arg-type]
            self.configs_timings = timings
        self.best_config = self.cache[key]
        return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())

    def own_key(self, named: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(named[name] for name in self.keys)


class Table(dict[Any, Any]):
    """A table of a database that stays when a process ends."""


class Database:
    """Hands out tables as FlagGems' ``LibCache`` does."""

    def __init__(self) -> None:
        self.tables: dict[Any, Table] = {}

    def __getitem__(self, name: Any) -> Table:
        return self.get_config(name) if isinstance(name, str) else self.get_benchmark(*name)

    def get_config(self, table: Any) -> Table:
        return self.tables.setdefault(table, Table())

    def get_benchmark(self, table: Any, key: Any) -> Table:
        return self.tables.setdefault((table, key), Table())


libcache = Database()


def libtuner_class() -> Any:
    """A class that behaves as ``LibTuner``: it rounds its keys, asks a policy, and keeps all in ``libcache``."""

    class Tuner(Autotuner):
        _dispatch_table: ClassVar[dict[str, Any]] = {}
        strategy: Callable[[int], int] = staticmethod(lambda value: -(-value // 32) * 32)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.cache = libcache["choices"]

        def get_key(self, named: dict[str, Any]) -> tuple[Any, ...]:
            values = tuple(self.strategy(named[name]) for name in self.keys)
            return values + tuple(str(value.dtype) for value in named.values() if hasattr(value, "dtype"))

        def run(self, *args: Any, **kwargs: Any) -> Any:
            self.nargs = dict(zip(self.arg_names, args, strict=False))
            config_key = self.get_key(self.nargs)
            if config_key not in self.cache:
                times = libcache["times", config_key]
                left = self.prune_configs(kwargs)

                def bench(config: Any) -> Any:
                    known = times.get(str(config))
                    if known is None:
                        known = times[str(config)] = self._bench(*args, config=config, **kwargs)
                    return known

                self.cache[config_key], self.configs_timings = self.policy(bench, left)
            self.best_config = self.cache[config_key]
            return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())

        def policy(self, bench: Any, left: Any) -> Any:
            timings = {config: bench(config) for config in left}
            return min(timings, key=timings.get), timings  # type: ignore[arg-type]

    Tuner._dispatch_table["default"] = Tuner
    return Tuner


MadeBefore = libtuner_class()


@pytest.fixture(autouse=True)
def empty_database() -> None:
    libcache.tables.clear()


def kernel_of(cls: Any, bench: Any, blocks: list[int] = CONFIGS, **options: Any) -> Any:
    stock = copy_kernel(bench)
    return cls(stock.fn, stock.arg_names, configs(blocks), ["n"], None, None, do_bench=bench, **options)


def call(kernel: Any, n: int = 100) -> int:
    x, y = torch.arange(128.0), torch.zeros(128)
    kernel[grid](x, y, n)
    assert torch.equal(y[:n], x[:n])
    block: int = kernel.best_config.kwargs["BLOCK"]
    return block


class CopiedPruning(CopiedRun):
    """A copy of all of Triton's, that prunes by itself, too."""

    def prune_configs(self, kwargs: dict[str, Any]) -> Any:
        return self.configs


@pytest.mark.parametrize(
    "own",
    [CopiedRun, CopiedPruning, MadeBefore, None],
    ids=["a copy", "its own pruning", "made before", "made after the hook"],
)
def test_a_run_of_its_own_is_dumped_with_all_candidates_and_loaded_without_measuring(session, own: Any) -> None:
    first = session(dumping=True)
    cls, bench, unused = own or libtuner_class(), Bench(best=64), Bench()
    assert call(kernel_of(cls, bench)) == 64
    (entry,) = first.entries

    loaded = session(first.entries)
    assert call(kernel_of(cls, unused)) == 64

    assert (bench.calls, unused.calls) == (2, 0)
    assert [candidate.time_us for candidate in entry.candidates] == [2000.0, 1000.0]
    assert loaded.outcomes == ["hit"]
    assert first.unseen == loaded.unseen == []


class OwnSearch(Autotuner):
    """Measures only what it thinks worth it, and asks Triton's ``check_disk_cache``."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        key = tuple(self.nargs[name] for name in self.keys)
        if key not in self.cache:
            left = self.prune_configs(kwargs)

            def benchmark() -> None:
                self.cache[key] = self.search(left, args, kwargs)

            self.check_disk_cache(key, left, benchmark)
        self.best_config = self.cache[key]
        return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())

    def search(self, left: Any, args: Any, kwargs: Any) -> Any:
        self.configs_timings = {config: self._bench(*args, config=config, **kwargs) for config in left[:2]}
        return min(self.configs_timings, key=self.configs_timings.get)  # type: ignore[arg-type]


def test_a_search_of_its_own_that_asks_triton_is_recorded_with_what_it_measured_and_loaded(session) -> None:
    first = session(dumping=True)
    bench, unused, blocks = Bench(best=64), Bench(), [16, 64, 128, 256]
    assert call(kernel_of(OwnSearch, bench, blocks)) == 64
    (entry,) = first.entries

    loaded = session(first.entries)
    assert call(kernel_of(OwnSearch, unused, blocks)) == 64

    assert [(candidate.time_us, candidate.failed) for candidate in entry.candidates] == [(2000.0, ""), (1000.0, "")]
    assert (bench.calls, unused.calls) == (2, 0)
    assert loaded.outcomes == ["hit"]


disk: dict[Any, Any] = {}


class OwnDiskCache(Autotuner):
    """Has a ``check_disk_cache`` in the place of Triton's, which keeps the choice alone."""

    def check_disk_cache(self, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
        if (kept := disk.get(tuning_key)) is not None:
            self.cache[tuning_key] = next(one for one in configs if one.kwargs == kept)
            return True
        bench_fn()
        disk[tuning_key] = self.cache[tuning_key].kwargs
        return False


def test_a_disk_cache_of_its_own_neither_answers_nor_is_written_where_choices_are_dumped(session) -> None:
    disk.clear()
    original = OwnDiskCache.check_disk_cache
    first = session(dumping=True)
    bench, unused = Bench(best=64), Bench()

    kernel = kernel_of(OwnDiskCache, bench)
    kernel.cache_results = True
    call(kernel)
    assert (disk, len(first.entries), first.unseen) == ({}, 1, [])

    loaded = session(first.entries)
    call(kernel_of(OwnDiskCache, unused))
    assert (disk, loaded.outcomes, unused.calls) == ({}, ["hit"], 0)

    loaded.adapter.unhook()
    assert OwnDiskCache.check_disk_cache is original


@pytest.mark.parametrize("is_on", [True, False])
def test_a_disk_cache_of_its_own_is_asked_about_a_miss_only_where_its_owner_has_switched_it_on(
    session, is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_autotune.tuners.triton.interpreter.interprets", lambda autotuner: False)
    monkeypatch.setattr("pytest_autotune.tuners.triton.identity.target_device", lambda: devices.INTERPRETER)
    disk.clear()
    session(())
    kernel = kernel_of(OwnDiskCache, Bench())
    kernel.cache_results = is_on

    call(kernel)

    assert bool(disk) is is_on


class FromFile(Autotuner):
    """Takes some choices from a file of its library's, as fla's does."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        if args[2] in (50, 51):
            self.cache[args[2], "torch.float32", "torch.float32"] = self.configs[0]
        return super().run(*args, **kwargs)


@pytest.mark.parametrize("order", [(100, 50), (50, 100), (50, 51)])
def test_choices_from_a_file_are_unseen_though_others_of_the_kernel_are_not(session, order: tuple[int, int]) -> None:
    first = session(dumping=True)
    kernel = kernel_of(FromFile, Bench())
    for n in order:
        call(kernel, n)

    (told,) = first.unseen
    assert told.endswith("copy (tests.test_own_runs.FromFile)")


@pytest.mark.parametrize("is_called", [True, False])
def test_choices_that_were_read_from_a_file_and_never_used_are_not_unseen(session, is_called: bool) -> None:
    first = session(dumping=True)
    kernel = kernel_of(CopiedRun, Bench())
    kernel.cache["read from a file"] = kernel.configs[0]
    if is_called:
        call(kernel)

    assert first.unseen == []


@pytest.mark.parametrize(
    ("used", "then"),
    [(True, "the run ends"), (True, "the next test"), (True, "another key is tuned"), (False, "the next test")],
)
def test_one_that_is_used_after_another_key_was_tuned_is_unseen(session, used: bool, then: str) -> None:
    first = session(dumping=True)
    before, kernel = kernel_of(Autotuner, Bench()), kernel_of(Autotuner, Bench())
    call(before, 50)
    (key,) = before.cache
    kernel.cache[key] = configs()[0]
    call(kernel)
    if used:
        call(kernel, 50)

    if then == "the next test":
        first.run.begin_test("test_next")
        call(kernel)
    elif then == "another key is tuned":
        call(kernel, 60)

    assert len(first.unseen) == used


@pytest.mark.parametrize("copied", [copy, deepcopy])
def test_a_kernel_that_is_copied_with_its_memory_is_not_unseen(session, copied: Any) -> None:
    first = session(dumping=True)
    kernel = kernel_of(Autotuner, Bench())
    call(kernel)
    copies = [copied(kernel), copied(kernel)]
    call(copies[0], 50)

    assert first.unseen == []


class NoSubclass(KernelInterface[Any]):
    """A copy of Triton's class that is none of its subclasses, as those of quack and triton-dejavu."""

    def __init__(self, fn: Any, cache: dict[Any, Any]) -> None:
        self.fn, self.configs, self.cache = fn, configs(), cache

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.nargs = args
        self.best_config = self.cache.setdefault("key", self.configs[0])
        return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())

    def prune_configs(self, kwargs: Any) -> Any: ...

    def _bench(self, *args: Any, config: Any, **meta: Any) -> Any: ...


def test_a_copy_that_is_no_subclass_is_unseen_once_it_has_chosen(session) -> None:
    first = session(dumping=True)
    kernel = NoSubclass(copy_kernel().fn, {"read from a file": configs()[0]})
    unseen_before = [told for told in first.adapter.unseen() if "NoSubclass" in told]
    call(kernel)

    (told,) = [told for told in first.adapter.unseen() if "NoSubclass" in told]
    assert unseen_before == []
    assert told == "tests.test_triton.copy_kernel.<locals>.copy (tests.test_own_runs.NoSubclass)"


def test_a_benchmark_that_was_put_on_one_autotuner_or_around_tritons_is_used_as_it_is(monkeypatch) -> None:
    driver = SimpleNamespace(get_device_interface=1, get_empty_cache_for_benchmark=1, clear_cache=1)
    monkeypatch.setattr(benchmark, "triton_driver", lambda: SimpleNamespace(active=driver))
    kernel = copy_kernel()
    triton_bench = Autotuner._bench
    assert benchmark.driver_of(kernel, is_known=True) is driver

    kernel._bench = lambda *args, config, **meta: [1.0] * 3
    assert benchmark.driver_of(kernel, is_known=True) is None

    @wraps(triton_bench)
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        return triton_bench(self, *args, config=config, **meta)

    monkeypatch.setattr(Autotuner, "_bench", _bench)
    assert benchmark.driver_of(copy_kernel(), is_known=True) is None


def test_heuristics_over_an_autotuner_count_though_a_library_has_put_a_lock_around_its_run(
    session, monkeypatch
) -> None:
    limit = 7

    def asked() -> Any:
        first = session(dumping=True)
        kernel = triton.heuristics({"n": lambda arguments: max(arguments["n"], limit)})(copy_kernel(Bench()))
        kernel[grid](torch.arange(128.0), torch.zeros(128), n=100)
        return first.lookups[0].fingerprint, first.lookups[0].problem

    plain = asked()
    original = Autotuner.run

    def locked(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        with threading.Lock():
            return original(tuner, *args, **kwargs)

    monkeypatch.setattr(Autotuner, "run", locked)

    assert asked() == plain
    assert "heuristics.n.limit" in [value.name for value in plain[1].key]


def test_calls_that_it_takes_for_one_problem_are_one_here(session) -> None:
    first = session(dumping=True)
    call(kernel_of(MadeBefore, Bench()), n=97)
    (entry,) = first.entries

    loaded = session(first.entries)
    kernel = kernel_of(MadeBefore, Bench())
    call(kernel, n=120)
    call(kernel, n=50)

    assert [(value.name, value.value) for value in entry.problem.key][:1] == [("n", 128)]
    assert loaded.outcomes == ["hit", "miss"]


def test_what_its_key_has_besides_the_arguments_is_in_the_key(session) -> None:
    class WithMore(MadeBefore):
        def get_key(self, named: dict[str, Any]) -> tuple[Any, ...]:
            return (*super().get_key(named), "fast")

    first = session(dumping=True)
    call(kernel_of(WithMore, Bench()))

    assert ("key.3", "fast") in [(value.name, value.value) for value in first.entries[0].problem.key]


def test_its_database_neither_answers_nor_is_written_and_is_back_after_the_run(session) -> None:
    call(kernel_of(MadeBefore, Bench(best=16)))
    kept = {name: dict(table) for name, table in libcache.tables.items()}
    first = session(dumping=True)
    bench = Bench(best=64)
    kernel = kernel_of(MadeBefore, bench)

    chosen_in_the_run = call(kernel), call(kernel)
    held = {name: dict(table) for name, table in libcache.tables.items()}
    first.adapter.unhook()

    assert chosen_in_the_run == (64, 64)
    assert bench.calls == 2
    assert held == kept
    assert type(kernel.cache) is Table
    assert call(kernel) == 16


def test_a_policy_that_searches_as_it_likes_is_unseen_and_keeps_its_database(session) -> None:
    class FirstOnly(MadeBefore):
        def policy(self, bench: Any, left: Any) -> Any:
            return left[0], {left[0]: bench(left[0])}

    first = session(dumping=True)
    bench = Bench()
    kernel = kernel_of(FirstOnly, bench)
    call(kernel)

    assert bench.calls == 1
    assert first.lookups == []
    assert libcache.tables["choices"]
    assert len(first.unseen) == 1


def test_ignored_kernels_keep_their_database(session) -> None:
    session(dumping=True, ignore=("triton:*copy",))
    call(kernel_of(MadeBefore, Bench()))

    assert len(libcache.tables["choices"]) == 1


def test_a_test_gets_the_choice_that_pruning_left_for_it(session) -> None:
    left: list[int] = []

    def prune(candidates: Any, named: Any, **kwargs: Any) -> Any:
        return [config for config in candidates if config.kwargs["BLOCK"] in left]

    first = session(dumping=True)
    kernel = kernel_of(CopiedRun, Bench(), [16, 32, 64, 128], prune_configs_by={"early_config_prune": prune})
    for number, left[:] in enumerate(([16, 64], [32, 128])):
        first.run.begin_test(f"test_{number}")
        assert call(kernel) in left

    assert len(first.entries) == 2


class LibEntry(KernelInterface):  # type: ignore[type-arg]
    """Launches what it has launched before without asking the autotuner inside."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.kernel_cache: tuple[dict[Any, Any], ...] = ({},)

    @property
    def best_config(self) -> Any:
        return self.kernel_cache[0][100]

    def run(self, *args: Any, **kwargs: Any) -> None:
        if args[2] in self.kernel_cache[0]:
            self.fn.fn.run(*args, **kwargs, **self.kernel_cache[0][args[2]].all_kwargs())
        else:
            self.fn.run(*args, **kwargs)
            self.kernel_cache[0][args[2]] = self.fn.best_config


def test_what_keeps_its_launches_asks_again_in_each_test_of_a_sweep(session) -> None:
    swept = session(sweep=Sweep("7"))
    entry = LibEntry(kernel_of(MadeBefore, Bench()))
    ran = set()
    for number in range(2):
        swept.run.begin_test(f"test_{number}")
        ran.add(call(entry))
        ran.add(call(entry))
        assert len(swept.run.ran_with) == 1

    assert ran <= set(CONFIGS)


def test_what_keeps_its_launches_is_empty_in_an_isolated_test_and_full_again_afterwards(session) -> None:
    first = session(dumping=True)
    bench = Bench()
    entry = LibEntry(kernel_of(MadeBefore, bench))
    call(entry)
    before = dict(entry.kernel_cache[0])

    with first.adapter.isolated(), first.run.isolated():
        assert entry.kernel_cache == ({},)
        call(entry)

    assert bench.calls == 4
    assert entry.kernel_cache == (before,)
    assert list(entry.fn.cache.values()) == [before[100]]


def test_an_error_of_a_candidate_reaches_the_test_and_records_nothing(session) -> None:
    def broken(kernel_call: Any, quantiles: Any = None) -> None:
        raise RuntimeError("the device is gone")

    first = session(dumping=True)
    with pytest.raises(RuntimeError, match="the device is gone"):
        call(kernel_of(CopiedRun, broken))

    assert first.entries == ()


def test_a_measurement_that_is_asked_for_later_is_made(session) -> None:
    session(dumping=True)
    bench = Bench()
    kernel = kernel_of(CopiedRun, bench)
    call(kernel)

    kernel.nargs = {"x": torch.arange(128.0), "y": torch.zeros(128), "n": 100}
    kernel._bench(*kernel.nargs.values(), config=kernel.configs[0], grid=grid, warmup=False)

    assert bench.calls == 3


@pytest.mark.parametrize(("policy", "is_cold"), [("warm_l2", False), ("cold_l2", True), ("other", None)])
def test_the_benchmark_of_its_library_may_be_replaced_with_the_l2_cache_as_it_has_it(policy: str, is_cold: Any) -> None:
    def benchmark() -> None: ...

    protocol = type("Protocol", (), {"cache_policy": policy})()

    assert libtuner.l2_is_cold(SimpleNamespace(benchmark_protocol=protocol, do_bench=benchmark)) is is_cold
    assert libtuner.l2_is_cold(SimpleNamespace(benchmark_protocol=protocol, do_bench=call.__class__)) is None
    assert libtuner.l2_is_cold(SimpleNamespace(do_bench=benchmark)) is None


class MeasuresNoneAlone(Autotuner):
    """Takes a candidate that is left alone without measuring it."""

    held: ClassVar[dict[str, Any]] = {}  # a new dictionary may get the address of one that is gone

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.held.update(zip(self.arg_names, args, strict=False))
        self.nargs = self.held
        key = tuple(self.nargs[name] for name in self.keys)
        if key not in self.cache:
            left = self.prune_configs(kwargs)
            timings = {one: self._bench(*args, config=one, **kwargs) for one in left} if len(left) > 1 else {left[0]: 0}
            self.cache[key] = min(timings, key=timings.get)  # type: ignore[arg-type]
            self.configs_timings = timings
        self.best_config = self.cache[key]
        return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())


def test_a_time_that_a_search_did_not_ask_for_is_none_of_the_next_search(session) -> None:
    session(dumping=True)
    bench = Bench(best=CONFIGS[0])
    kernel = kernel_of(MeasuresNoneAlone, bench)

    assert [call(kernel, n) for n in (100, 101)] == [CONFIGS[0]] * 2

    assert bench.calls == 4
