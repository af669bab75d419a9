"""A limit on misses, or an error for each, in a run that loads nothing would be green whatever happens."""

from __future__ import annotations

import pytest

from pytest_autotune.session.completeness import selection
from pytest_autotune.session.parsed_options import Options


def unloaded_gate(config: pytest.Config, options: Options) -> str:
    """What is wrong with judging this run, in one line; empty where nothing is.

    Nothing is wrong where a cache is loaded, where a new one is dumped, or where an empty ``--autotune-load=`` says
    that nothing is to be loaded. Markers may still load some for single tests, which only the tests know. Who runs a
    part of such a suite is not kept from it by what the ini file asks of the whole.
    """
    if options.load or options.dump is not None or config.getoption("autotune_load") is not None:
        return ""
    asks = {
        "max_misses": options.max_misses is not None,
        "fail_on_unused": options.fail_on_unused,
        "on_miss": options.on_miss in ("error", "nearest"),
    }
    for name in (name for name, is_asked in asks.items() if is_asked):
        is_typed = config.getoption(f"autotune_{name}") is not None
        if is_typed or not selection(config):
            where = f"--autotune-{name.replace('_', '-')}" if is_typed else f"autotune_{name} (ini)"
            return (
                f"{where}: nothing is loaded, so there is nothing to judge "
                "(add --autotune-load=PATH; an empty --autotune-load= loads nothing on purpose)"
            )
    return ""
