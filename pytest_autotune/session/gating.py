"""A limit on misses, an error for each, or a race of each choice, in a run that loads no entries: green for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_autotune.cache.model import Cache
from pytest_autotune.session.completeness import selection
from pytest_autotune.session.parsed_options import Options


def unloaded_gate(config: pytest.Config, options: Options) -> str:
    """What is wrong with judging this run, in one line; empty where nothing is.

    Nothing is wrong where a cache is loaded, where a new one is dumped and nothing is to be raced again, or where an
    empty ``--autotune-load=`` says that nothing is to be loaded. Markers may still load some for single tests, which
    only the tests know.
    """
    if options.load or config.getoption("autotune_load") is not None:
        return ""
    on_purpose = "add --autotune-load=PATH; an empty --autotune-load= loads nothing on purpose"
    if options.verify is not None:
        return f"--autotune-verify: nothing is loaded, so there is no choice to race ({on_purpose})"
    if options.dump is not None:
        return ""
    gate = _gate(config, options, on_miss=("error", "nearest"))  # without entries, none could be the nearest
    return gate and f"{gate}: nothing is loaded, so there is nothing to judge ({on_purpose})"


def empty_gate(config: pytest.Config, options: Options, loaded: Sequence[tuple[str, Cache]]) -> str:
    """What is wrong with judging this run by what it loads, in one line; empty where nothing is.

    :param loaded: (path as the user wrote it, what it held) of each loaded cache.
    """
    if options.updates or not loaded or any(cache.entries for _, cache in loaded):
        return ""
    gate = _gate(config, options)
    paths = ", ".join(path for path, _ in loaded)
    has = "has" if len(loaded) == 1 else "have"
    return gate and f"{gate}: {paths} {has} no entries, so there is nothing to judge (add them with --autotune-update)"


def _gate(config: pytest.Config, options: Options, on_miss: Sequence[str] = ("error",)) -> str:
    """The first option that is to judge this run, as the user spelt it; empty where none is.

    :param on_miss: the words of that option that judge.

    Who runs a part of a suite is not kept from it by what the ini file asks of the whole.
    """
    asks = {
        "max_misses": options.max_misses is not None,
        "fail_on_unused": options.fail_on_unused,
        "on_miss": options.on_miss in on_miss,
        "on_stale": options.on_stale == "error",
    }
    for name in (name for name, is_asked in asks.items() if is_asked):
        if config.getoption(f"autotune_{name}") is not None:
            return f"--autotune-{name.replace('_', '-')}"
        if not selection(config):
            return f"autotune_{name} (ini)"
    return ""
