"""Pruners that are generators, make candidates of their own, or change those that they are given."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton

from pytest_autotune.run.lookup import Outcome
from tests.test_triton import call, configs, copy_kernel, grid, interpreter, session

__all__ = ["interpreter", "session"]

pytestmark = pytest.mark.usefixtures("forget_choices")


def largest(kernel_call: Any, quantiles: Any = None) -> list[float]:
    """A benchmark by which the largest block is the fastest."""
    kernel_call()
    cells = dict(zip(kernel_call.__code__.co_freevars, kernel_call.__closure__, strict=True))
    return [1.0 / cells["config"].cell_contents.kwargs["BLOCK"]] * 3


def kernel(prune: Any, key: tuple[str, ...] = (), blocks: tuple[int, ...] = (16, 32, 64)) -> Any:
    return copy_kernel(largest, list(blocks), key, prune_configs_by={"early_config_prune": prune})


def at_most_n(configs: Any, named: Any, **kwargs: Any) -> Any:
    """Candidates made anew, as many as there were: what is too large becomes as large as may be."""
    for config in configs:
        yield triton.Config({"BLOCK": min(config.kwargs["BLOCK"], named["n"])}, num_warps=config.num_warps)


def test_a_choice_among_candidates_a_pruner_creates_is_a_hit(session) -> None:
    """The pruner is a generator that makes new candidates at each call."""
    first = session(is_dumping=True)
    assert call(kernel(at_most_n), 32) == 32

    loaded = session(first.entries)
    assert call(kernel(at_most_n), 32) == 32
    assert loaded.outcomes == ["hit"]


def test_an_entry_is_stale_if_the_pruner_makes_other_candidates(session) -> None:
    """The pruner makes as many candidates for another size, but different ones. The entry is stale."""
    first = session(is_dumping=True)
    call(kernel(at_most_n), 32)

    loaded = session(first.entries)
    assert call(kernel(at_most_n), 64) == 64
    assert loaded.outcomes == ["stale"]


def test_an_entry_is_stale_if_the_pruner_now_adds_a_candidate(session) -> None:
    """The recorded choice is among the candidates, but the new ones were not measured.

    Both entries are hits afterwards.
    """
    first = session(is_dumping=True)
    assert call(kernel(None)) == 64

    def add_a_candidate(configs: Any, named: Any, **kwargs: Any) -> Any:
        return [*configs, *made(128)]

    loaded = session(first.entries)
    assert call(kernel(add_a_candidate)) == 128
    assert [(lookup.outcome, lookup.reason) for lookup in loaded.lookups] == [
        (Outcome.STALE, "the kernel's pruner now adds candidates that were not measured")
    ]
    again = session((*first.entries, *loaded.entries))
    assert [call(kernel(add_a_candidate)), call(kernel(None))] == [128, 64]
    assert again.outcomes == ["hit", "hit"]


def test_a_choice_is_a_hit_if_the_pruner_copies_some_candidates(session) -> None:
    """The pruner makes equal copies of some candidates of the list."""
    first = session(is_dumping=True)
    call(kernel(None))

    loaded = session(first.entries)
    assert call(kernel(lambda listed, named, **kwargs: made(32, 64))) == 64
    assert loaded.outcomes == ["hit"]


def made(*blocks: int) -> list[Any]:
    return configs(list(blocks))


def halved_if_odd(configs: Any, named: Any, **kwargs: Any) -> Any:
    """Changes the candidates themselves."""
    for config in configs:
        if named["n"] % 2:
            config.kwargs["BLOCK"] //= 2
    return configs


@pytest.mark.parametrize("order", [(100, 101), (101, 100), (100,), (101,)])
def test_choices_ignore_the_test_order_if_a_pruner_edits_configs(session, order) -> None:
    """The pruner changes the candidates in place. Every test gets the same choice in any order of tests."""

    def choices(run: Any, numbers: tuple[int, ...]) -> list[int]:
        autotuner = kernel(halved_if_odd, key=("n",))
        made = []
        for n in numbers:
            run.run.begin_test(f"test_{n}")
            made.append(call(autotuner, n))
        assert [config.kwargs["BLOCK"] for config in autotuner.configs] == [16, 32, 64]
        return made

    first = session(is_dumping=True)
    assert choices(first, (100, 101)) == [64, 32]

    loaded = session(first.entries)
    assert choices(loaded, order) == [64 if n == 100 else 32 for n in order]
    assert loaded.outcomes == ["hit"] * len(order)


@pytest.mark.parametrize("order", [(100, 40, 64), (40, 64, 100), (64, 100, 40)])
def test_choices_after_pruning_do_not_depend_on_the_test_order(session, order) -> None:
    """Each test gets the best of the candidates that the pruner left for it. A single test gets the same choice."""

    def early(configs: Any, named: Any, **options: Any) -> Any:
        return [config for config in configs if config.kwargs["BLOCK"] <= named["n"]]

    def tune_block(process: Any, kernel: Any, n: int) -> int:
        process.run.begin_test(f"test_{n}")
        call(kernel, n)
        return next(iter(kernel.cache.values())).kwargs["BLOCK"]

    first, kernel_of_all = session(is_dumping=True), kernel(early)
    assert [tune_block(first, kernel_of_all, n) for n in order] == [min(64, n // 32 * 32) for n in order]
    assert len({lookup.fingerprint for lookup in first.lookups}) == 2

    for n in order:
        alone = session(first.entries)
        assert tune_block(alone, kernel(early), n) == min(64, n // 32 * 32)
        assert alone.outcomes == ["hit"]


def test_a_choice_is_kept_after_the_pruner_ran_for_another_call(session) -> None:
    """The pruner changes a candidate in place for a second call. The first call keeps its choice."""
    session(is_dumping=True)
    autotuner = kernel(halved_if_odd, key=("n",))
    call(autotuner, 100)
    call(autotuner, 101)

    autotuner[grid](torch.arange(128.0), torch.zeros(128), 100)
    assert autotuner.best_config.kwargs["BLOCK"] == 64


def test_a_list_shortened_by_a_pruner_is_restored_after_the_call(session) -> None:
    """The kernel gets its whole list back after the pruner shortened it. An error of the pruner reaches the test."""

    def first_only(configs: Any, named: Any, **kwargs: Any) -> Any:
        del configs[1:]
        return configs

    def fails(configs: Any, named: Any, **kwargs: Any) -> Any:
        yield configs[0]
        raise LookupError("no candidate is left")

    session(is_dumping=True)
    autotuner = kernel(first_only)
    assert call(autotuner) == 16
    assert len(autotuner.configs) == 3
    with pytest.raises(LookupError, match="no candidate is left"):
        call(kernel(fails))


def test_calls_pruned_to_different_candidates_get_two_entries(session) -> None:
    """Two calls leave different candidates to the performance model. Each call has its own entry and is a hit."""

    def one_warp_for_few(configs: Any, named: Any, **kwargs: Any) -> Any:
        return [config for config in configs if (config.num_warps == 1) == (named["n"] < 50)]

    def pruned() -> Any:
        model = {"early_config_prune": one_warp_for_few, "perf_model": lambda BLOCK, **kwargs: BLOCK, "top_k": 2}
        kernel = copy_kernel(largest, key=(), prune_configs_by=model)
        kernel.configs = [*configs([16, 32, 64]), *configs([16, 32, 64], num_warps=1)]
        return kernel

    def tuned() -> None:
        for n in (100, 32):
            call(pruned(), n)

    first = session(is_dumping=True)
    tuned()
    loaded = session(first.entries)
    tuned()

    assert loaded.outcomes == ["hit", "hit"]


def test_a_pruner_that_leaves_no_candidate_raises_a_triton_error(session) -> None:
    """There is no lookup and no note."""
    first = session(is_dumping=True)

    with pytest.raises(ValueError, match="empty"):
        call(kernel(lambda configs, named, **kwargs: iter(())))

    assert (first.lookups, first.run.notes) == ([], [])


def test_a_pruner_gets_the_kernels_config_objects_and_no_copies(session) -> None:
    """The pruner gets the kernel's own list and candidates, and sees itself in the kernel."""
    listed = made(16, 32, 64)
    small, _, large = listed
    positions = {id(config): position for position, config in enumerate(listed)}

    def known(configs: Any, named: Any, **kwargs: Any) -> Any:
        assert configs is autotuner.configs is listed
        assert autotuner.early_config_prune is known
        assert [positions[id(config)] for config in configs] == [0, 1, 2]
        return [config for config in configs if config is small or config is large]

    for options in ({}, {"perf_model": lambda BLOCK, **kwargs: BLOCK, "top_k": 2}):
        first = session(is_dumping=True)
        autotuner = copy_kernel(largest, key=(), prune_configs_by={"early_config_prune": known, **options})
        autotuner.configs = listed
        assert call(autotuner) == 64
        assert autotuner.best_config is large
        assert autotuner.early_config_prune is known
        assert first.run.notes == []


class SlotConfig(triton.Config):
    """A candidate with an attribute that is not in its ``__dict__``."""

    __slots__ = ("tag", "unset")

    def __init__(self, block: int, tag: str) -> None:
        super().__init__({"BLOCK": block})
        self.tag = tag
        self.note = tag


class DictConfig(triton.Config, dict):  # type: ignore[type-arg]
    """A candidate that is a dict, too."""

    def __init__(self, block: int, tag: str) -> None:
        super().__init__({"BLOCK": block})
        self["tag"] = self.tag = tag


@pytest.mark.parametrize("config_class", [SlotConfig, DictConfig])
def test_a_pruners_changes_to_configs_of_a_subclass_are_undone(session, config_class) -> None:
    """The candidates keep all their attributes, and lose the pruner's changes after the launch."""
    seen = []

    def retagged(configs: Any, named: Any, **kwargs: Any) -> Any:
        seen.append([config.tag for config in configs])
        configs[0].kwargs["BLOCK"] = 128
        configs[0].tag = "changed"
        configs[0].unset = 1
        if isinstance(configs[0], dict):
            configs[0]["tag"] = "changed"
        return configs

    first = session(is_dumping=True)
    autotuner = kernel(retagged, key=("n",))
    autotuner.configs = [config_class(16, "small"), config_class(32, "large")]
    assert [call(autotuner, 100), autotuner.best_config.tag] == [128, "changed"]
    assert [call(autotuner, 101), autotuner.best_config.unset] == [128, 1]

    assert seen == [["small", "large"]] * 2
    restored = autotuner.configs[0]
    assert (restored.kwargs, restored.tag, hasattr(restored, "unset")) == ({"BLOCK": 16}, "small", False)
    assert type(autotuner.best_config) is config_class
    if isinstance(restored, dict):
        assert [dict(restored), dict(autotuner.best_config)] == [{"tag": "small"}, {"tag": "changed"}]
    assert first.run.notes == []


def test_a_pruner_permanently_changes_an_ignored_kernels_configs(session) -> None:
    """The pruner's changes stay in the kernel's list, as without the plugin."""
    session(is_dumping=True, ignore=("triton:*.copy",))
    autotuner = kernel(halved_if_odd, key=("n",))

    assert call(autotuner, 101) == 32
    assert [config.kwargs["BLOCK"] for config in autotuner.configs] == [8, 16, 32]


def test_after_a_plugin_error_triton_uses_the_pruned_candidates(session, monkeypatch) -> None:
    """The launch gets the candidates that it would get without the plugin."""

    def broken(config: Any) -> Any:
        raise AttributeError("an error of our own")

    monkeypatch.setattr("pytest_autotune.tuners.triton.internals.autotuners._copy_config", broken)
    first = session(is_dumping=True)

    assert call(kernel(halved_if_odd), 101) == 32
    assert ["an error of our own" in note for note in first.run.notes] == [True]


def test_a_pruner_gets_a_tuple_if_the_configs_are_a_tuple(session) -> None:
    """A kernel's candidates may be a tuple, which no pruner can shorten."""
    first = session(is_dumping=True)
    autotuner = kernel(lambda configs, named, **kwargs: configs[1:] if configs is listed else [])
    autotuner.configs = listed = tuple(made(16, 32, 64))

    assert call(autotuner) == 64
    assert autotuner.configs is listed
    assert first.run.notes == []


def test_a_pruners_new_configs_keep_edits_undone_in_the_old_ones(session) -> None:
    """The new candidates keep the change when the kernel's candidates lose it."""

    def halved_anew(configs: Any, named: Any, **kwargs: Any) -> Any:
        for config in configs:
            config.kwargs["BLOCK"] //= 2
            yield triton.Config(config.kwargs, num_warps=8)

    session(is_dumping=True)
    autotuner = kernel(halved_anew, key=("n",))

    assert [call(autotuner, 100), call(autotuner, 101)] == [32, 32]
    assert [config.kwargs["BLOCK"] for config in autotuner.configs] == [16, 32, 64]


def test_a_pruners_change_of_a_value_from_true_to_1_is_undone(session) -> None:
    """A digest holds the type of a value, so ``1`` in place of ``True`` is a change."""

    def retyped(configs: Any, named: Any, **kwargs: Any) -> Any:
        configs[0].is_fast = 1
        return configs

    session(is_dumping=True)
    autotuner = kernel(retyped, key=("n",))
    autotuner.configs[0].is_fast = True
    call(autotuner, 100)

    assert autotuner.configs[0].is_fast is True
