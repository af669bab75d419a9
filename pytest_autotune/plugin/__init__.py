"""Pytest's entry point: the hooks and the fixture that exist in every run.

They start a :class:`~pytest_autotune.plugin.controller.Controller` or a
:class:`~pytest_autotune.plugin.worker.TestProcess` if an option, a marker or the fixture asks for the plugin. Most
modules are imported at that time, so that a run without the plugin's options does not pay for them.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_autotune.plugin.options import (
    INPUT_KEY,
    MARKER,
    PARSED_PATHS,
    add_options,
    has_marker_or_fixture,
    is_any_option_set,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pytest_autotune.plugin.controller import Controller
    from pytest_autotune.plugin.worker import CacheFixture, TestProcess

_process: pytest.StashKey[TestProcess] = pytest.StashKey()
_controller: pytest.StashKey[Controller] = pytest.StashKey()
_undo: pytest.StashKey[list[Callable[[], None]]] = pytest.StashKey()
#: Whether a run of pytest has ended in this process. The tuners then still have its choices in their memory.
_has_run_ended = False


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


# Pytest calls this hook once it has read the command line, and a wrapper before the functions that are no wrappers.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    config.stash[PARSED_PATHS] = tuple(getattr(config, "args", ()))
    exits = _Exits()
    if is_any_option_set(config):
        config.pluginmanager.register(exits)
    status = yield
    if exits.has_exit and status == pytest.ExitCode.OK:
        error = _explain_unjudged_exit(config)
        if error:
            print(f"autotune: {error}", file=sys.stderr)
            return pytest.ExitCode.TESTS_FAILED
    return status


class _Exits:
    """Notes whether ``pytest.exit`` or Ctrl-C ended the run.

    ``pytest.exit("no GPU", returncode=0)`` in a hook of a conftest.py ends the run before the controller can judge it.
    """

    def __init__(self) -> None:
        self.has_exit = False

    def pytest_keyboard_interrupt(self) -> None:
        self.has_exit = True


def _explain_unjudged_exit(config: pytest.Config) -> str:
    """Return the error of a run that ended before its gates could judge it; empty if they did, or if there are none."""
    from pytest_autotune.plugin.completeness import describe_unjudged_exit
    from pytest_autotune.plugin.values import read_options

    controller = config.stash.get(_controller, None)
    if controller is not None and controller.has_result:
        return ""
    try:
        return describe_unjudged_exit(config, read_options(config))
    except pytest.UsageError as error:
        # The run ended before the options were read.
        return str(error)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(load=PATH, enabled=True): load one more autotuning cache for this test, relative to the "
        "file of the test; enabled=False turns the plugin off in the test",
    )
    if config.option.help:
        return
    # xdist's controller has started the plugin, and has sent this worker a task.
    has_task = INPUT_KEY in getattr(config, "workerinput", ())
    has_options = is_any_option_set(config)
    # Triton reads the variable when it is imported, and accepts these values.
    is_interpreted = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")
    if has_task or has_options or is_interpreted:
        _supply_interpreter_benchmark(config.stash.setdefault(_undo, []))
    if has_task:
        _start(config)
    elif has_options:
        _start_if_active(config)


# Last: the user gets a warning if a conftest calls kernels in this hook.
@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    global _has_run_ended
    _has_run_ended = True
    process = config.stash.get(_process, None)
    if process is not None:
        process.hooks.uninstall()
    for undo in config.stash.get(_undo, []):
        undo()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _process not in config.stash and any(has_marker_or_fixture(item) for item in items):
        _start(config)


def _forget_removed_modules() -> None:
    """Delete the attributes of our packages that are modules which ``sys.modules`` no longer has.

    Pytester removes the modules that a run inside a test imported. Their packages stay, if the outer run imported them,
    and ``from package import module`` would still find the removed module.
    """
    our_packages = []
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "pytest_autotune" and hasattr(module, "__path__"):
            our_packages.append(module)
    for package in our_packages:
        for name, value in list(vars(package).items()):
            full_name = f"{package.__name__}.{name}"
            is_submodule = isinstance(value, ModuleType) and value.__name__ == full_name
            if is_submodule and sys.modules.get(full_name) is not value:
                delattr(package, name)


def _supply_interpreter_benchmark(undo_functions: list[Callable[[], None]]) -> None:
    """Let Triton's autotuner measure interpreted kernels, as soon as Triton is imported.

    :param undo_functions: a function that restores Triton is appended to this list.
    """
    import wrapt

    def supply(autotuner_module: Any) -> None:
        from pytest_autotune.tuners.triton.interpreter import supply_interpreter_benchmark

        undo_functions.append(supply_interpreter_benchmark(autotuner_module))

    wrapt.register_post_import_hook(supply, "triton.runtime.autotuner")


def _start_if_active(config: pytest.Config) -> None:
    """Start the plugin if an option turns it on, or if its options are an error."""
    _forget_removed_modules()
    from pytest_autotune.plugin.completeness import find_missing_load
    from pytest_autotune.plugin.values import read_options

    options = read_options(config)
    if options.active or find_missing_load(config, options):
        _start(config)


def _start(config: pytest.Config) -> None:
    """Start the plugin in this process: as an xdist worker, or as the controller, which runs the tests without xdist.

    :raises pytest.UsageError: for an option that makes no sense, and a cache that cannot be read.
    """
    _forget_removed_modules()
    from pytest_autotune.plugin.controller import Controller
    from pytest_autotune.plugin.values import read_options
    from pytest_autotune.plugin.worker import TestProcess, build_worker_context

    options = read_options(config)
    # Only an xdist worker has this attribute.
    workerinput = getattr(config, "workerinput", None)
    process: TestProcess | None
    if workerinput is not None:
        process = TestProcess(config, options, build_worker_context(workerinput, options))
    else:
        controller = config.stash[_controller] = Controller(config, options)
        config.pluginmanager.register(controller, "autotune-controller")
        process = controller.make_test_process()
    if process is not None:
        config.stash[_process] = process
        process.begin(hides_earlier_run=_has_run_ended)
        config.pluginmanager.register(process, "autotune-process")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Start the plugin on xdist's controller if only the marker or the fixture of a test asks for it.

    The controller collects no tests, so it learns this from the first message of a worker.
    """
    if INPUT_KEY in getattr(node, "workeroutput", ()) and _controller not in node.config.stash:
        _start(node.config)
        node.config.stash[_controller].pytest_testnodedown(node, error)


@pytest.fixture
def autotune_cache(request: pytest.FixtureRequest) -> CacheFixture:
    """Give this test's lookups in the loaded autotuning caches (.hits, .misses, …). Use .load(path) to load one more
    cache for this test, and .tune(kernel, key=…, space=…, run=…) to tune a hand-written kernel."""
    from pytest_autotune.plugin.worker import CacheFixture

    if _process not in request.config.stash:
        pytest.fail(
            "autotune_cache: the fixture was requested too late, by a running test (name it "
            "as an argument of the test)",
            pytrace=False,
        )
    return CacheFixture(request.config.stash[_process], request.node)
