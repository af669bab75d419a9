"""What pytest imports: it wires the parts together; what parsing options does not need is imported when asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_autotune.plugin import names
from pytest_autotune.plugin.names import (
    INPUT_KEY,
    MARKER,
    asks_for_cache,
    forget_removed_modules,
    supply_interpreter_benchmark,
)
from pytest_autotune.plugin.options import add_options, anything_set

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_autotune.plugin.controller import Controller
    from pytest_autotune.plugin.worker import CacheFixture, TestProcess

_process: pytest.StashKey[TestProcess] = pytest.StashKey()
_controller: pytest.StashKey[Controller] = pytest.StashKey()
_undo: pytest.StashKey[list[Callable[[], None]]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(load=PATH, enabled=True): load one more autotuning cache for this test, relative to its "
        "file; enabled=False bypasses the tuners in it",
    )
    if config.option.help:
        return
    has_task = INPUT_KEY in getattr(config, "workerinput", ())
    is_asked = has_task or anything_set(config)
    # As Triton reads it, when it is imported: a test's module may set it then.
    if is_asked or os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y"):
        supply_interpreter_benchmark(config.stash.setdefault(_undo, []))
    if is_asked:
        _start(config, is_asked=has_task)


def pytest_unconfigure(config: pytest.Config) -> None:
    names.has_ended = True
    for undo in config.stash.get(_undo, []):
        undo()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _process not in config.stash and any(map(asks_for_cache, items)):
        _start(config)


def _start(config: pytest.Config, *, is_asked: bool = True) -> None:
    """Begin a run in this process, if it ``is_asked`` for, or options ask for it."""
    forget_removed_modules()
    from pytest_autotune.plugin.completeness import find_unloaded_gate
    from pytest_autotune.plugin.values import read_options

    options, process = read_options(config), None
    if not (is_asked or options.active or find_unloaded_gate(config, options)):
        return
    from pytest_autotune.plugin.controller import Controller
    from pytest_autotune.plugin.worker import TestProcess, build_worker_context

    if (workerinput := getattr(config, "workerinput", None)) is not None:
        process = TestProcess(config, options, build_worker_context(workerinput, options))
    else:
        controller = config.stash[_controller] = Controller(config, options)
        config.pluginmanager.register(controller, "autotune-controller")
        process = controller.begin()
    if process is not None:
        config.stash[_process] = process
        process.begin()
        config.pluginmanager.register(process, "autotune-process")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Begin the run on xdist's controller where only a marker, which a worker has met, asks for one."""
    if INPUT_KEY in getattr(node, "workeroutput", ()) and _controller not in node.config.stash:
        _start(node.config)
        node.config.stash[_controller].pytest_testnodedown(node, error)


@pytest.fixture
def autotune_cache(request: pytest.FixtureRequest) -> CacheFixture:
    """What this test looked up in the loaded autotuning caches (.hits, .misses, …); .load(path) one more for it;
    .tune(kernel, key=…, space=…, run=…) for a hand-written kernel."""
    from pytest_autotune.plugin.worker import CacheFixture

    if _process not in request.config.stash:
        pytest.fail("autotune_cache was asked for after the run began: name it as an argument", pytrace=False)
    return CacheFixture(request.config.stash[_process], request.node)
