"""The hooks of a process that runs tests: a worker, or the only process of a run.

Under xdist two messages pass for each worker, of primitives only, under the key ``autotune``:

1. ``workerinput``, when the worker is configured: a :class:`Task`. Where no option asks for a run, there is none, and
   the worker begins one if a test's marker or fixture does.
2. ``workeroutput``, at its end: the lines of its log. That the key is there says that the worker has ended; one that
   crashed sends nothing. The first one of a run that only tests have asked for begins that run on the controller.

All else is in the files of the run's folder, :mod:`pytest_autotune.workers.events`.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import socket
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_autotune import devices
from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Entry
from pytest_autotune.cache.plain import entry_of
from pytest_autotune.plugin import names
from pytest_autotune.plugin.names import INPUT_KEY, MARKER
from pytest_autotune.plugin.progress import file_of_worker
from pytest_autotune.plugin.values import Options, path_argument
from pytest_autotune.run.collected import END
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome
from pytest_autotune.run.mode import Job, Suite
from pytest_autotune.run.nearest import nearest
from pytest_autotune.run.notes import Progress
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.hooks import Hooks
from pytest_autotune.tuners.shared.distributions import rootdir_of_run
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Event, Log, OtherWorkers
from pytest_autotune.workers.locks import Locks, shared_folder


@dataclass(frozen=True)
class WorkerContext:
    """What a process that runs tests finds.

    :param index: what is loaded; None when nothing is.
    :param workers: how many processes of this run share the machine.
    :param folder: the run's own on this machine; None where there is none.
    """

    index: EntryIndex | None
    coordination: Coordinator
    log: Log
    workers: int = 1
    progress: Progress = field(default_factory=Progress)
    folder: Path | None = None


@dataclass(frozen=True)
class Task:
    """What the controller sends a worker when it starts.

    :param entries: what is loaded, in the order of an index, as JSON; None when nothing is.
    :param run_folder: where the processes of this run write down what they do; empty where there is no place.
    :param host: the controller's; its paths mean nothing on another one.
    """

    entries: str | None = None
    run_folder: str = ""
    host: str = ""
    run_id: str = ""
    workers: int = 1


def context_of_worker(workerinput: Mapping[str, Any], options: Options) -> WorkerContext:
    """What a worker finds, by what its controller sent."""
    task, worker = Task(**workerinput.get(INPUT_KEY, {})), workerinput["workerid"]
    shared = shared_folder()
    folder = shared.run_folder(task.run_id) if task.run_id else None
    is_local = task.host == socket.gethostname()
    in_reach = Path(task.run_folder) if is_local and task.run_folder else None
    # What the controller cannot read, the workers of one machine do.
    log = Log(in_reach or folder, worker)
    others = OtherWorkers(log.folder, worker) if folder is not None and log.folder is not None else None
    return WorkerContext(
        EntryIndex(entry_of(*parts) for parts in json.loads(task.entries)) if task.entries is not None else None,
        Coordinator(Locks(options.wait_timeout, shared=shared), folder, others),
        log,
        workers=task.workers,
        progress=Progress(file_of_worker(folder, worker)) if is_local and folder is not None else Progress(),
        folder=folder,
    )


class TestProcess:
    """Hooks the tuners, knows which test runs, and hands on what is looked up.

    Attributes: ``session``, what the tuners ask; ``hooks``, the adapters. In this order: :meth:`begin`, once the
    process is configured; modes hear of the collected tests; for each test its caches are loaded before its fixtures
    and dropped after them; :meth:`end` writes the last event, after which the session is paused; the tuners are as they
    were in ``pytest_unconfigure``.
    """

    __test__ = False

    def __init__(self, config: pytest.Config, options: Options, context: WorkerContext) -> None:
        self._context = context
        share = max(devices.cpu().multiprocessors // context.workers, 1)
        policy = replace(options.policy, compile_threads=share)
        self.session = Session(policy, context.index, context.coordination, self._refuse, context.progress, context.log)
        self.hooks = Hooks(self.session, options.tuners)
        self._config = config
        self._options = options
        self._process_id = os.getpid()
        self._deselected = 0
        self._drawn: set[str] = set()
        self._disabled: set[str] = set()
        self._missing: set[str] = set()
        self._refused = ""
        self._run_ends = ExitStack()
        self._test_ends = ExitStack()
        self._is_isolated = False
        self._read_url = functools.cache(stores.read_cache)

    def begin(self) -> None:
        """Hook the tuners; until this run ends, they remember nothing of sessions before it."""
        self._run_ends.enter_context(rootdir_of_run(self._config.rootpath))
        self.hooks.install()
        if names.has_ended:
            self._run_ends.enter_context(self.hooks.isolated())

    def _refuse(self, message: str) -> NoReturn:
        self._refused = to_one_line(message)
        pytest.fail(self._refused, pytrace=False)

    def end(self) -> dict[str, list[str]]:
        """Write down what this process reports of itself; returns its log's name and all lines."""
        self.session.is_paused = True
        log = self._context.log
        self._end_modes()
        log.close(Event(END, data=self._facts()))
        return {log.name: log.lines}

    def _facts(self) -> dict[str, Any]:
        index = self._context.index
        untracked = self.hooks.untracked()  # may add a note
        if late := self.session.progress.open_tunings:
            self.session.note(f"not recorded, since a thread still tuned it after the tests: {', '.join(late)}")
        if error := self._context.log.error:
            self.session.note(f"the log of this run cannot be written, so a kill would lose tunings: {error}")
        return {
            "notes": [*self.session.notes, *self._context.coordination.notes],
            "untracked": sorted(untracked),
            "unhooked": self.session.unhooked_tuners,
            "versions": {tuner: str(versions) for tuner, versions in self.session.versions.items()},
            "imported_kernels": list(filter(_module_is_imported, index.list_kernels() if index is not None else ())),
            "hypothesis_tests": sorted(self._drawn),
            "disabled_tests": sorted(self._disabled),
            "missing_caches": sorted(self._missing),
            "deselected": self._deselected,
        }

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        # Shard plugins drop items without calling pytest_deselected: count what is gone.
        collected = len(items)
        yield
        self._deselected += collected - len(items)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not session.items or session.config.option.collectonly:
            return

        def jobs() -> Sequence[Job]:
            here, args = session.config.invocation_params.dir, session.config.args
            is_part = self._deselected > 0 or not all((here / arg).is_dir() for arg in args)
            return self.hooks.prepare(Suite(tuple(tuple(_parts_of(item)) for item in session.items), is_part))

        for mode in self._options.modes:
            with self.session.guard("session", mode.name):
                mode.begin_tests(self.session, self._context.folder, self._context.workers, jobs)

    def _end_modes(self) -> None:
        if os.getpid() == self._process_id:  # else what they have begun is the parent's
            for event in (event for mode in self._options.modes for event in mode.end()):
                self.session.append_event(event)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.session.begin_test(item.nodeid)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            self._drawn.add(item.nodeid)
        self.session.lookups.clear()
        try:
            with ExitStack() as self._test_ends:
                self._is_isolated = False
                if item.get_closest_marker(MARKER) is not None:
                    self._isolate()
                self.session.is_paused = not _enabled(item)
                if self.session.is_paused:
                    self._disabled.add(item.nodeid)
                return (yield)
        finally:
            self.session.current_test = ""
            self.session.is_paused = False

    def _isolate(self) -> None:
        """Until this test ends, nothing that was chosen before answers in the place of a cache."""
        if not self._is_isolated:
            self._is_isolated = True
            self._test_ends.enter_context(self.hooks.isolated())
            self._test_ends.enter_context(self.session.isolated())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for path in _caches(item):
            self.load(item, path)

    def load(self, item: pytest.Item, path: str) -> None:
        """Load one more cache for this test, relative to its file; one that cannot be read fails it with one line."""
        self._isolate()
        try:
            argument = path_argument(path, item.path.parent, MARKER, item.config)
            # This run may create it. A store at a URL is asked once: one that is down takes seconds to say nothing.
            read = self._read_url if argument.location.url else stores.read_cache
            cache = read(argument.location, self._options.writes)
        except CacheError as error:
            text = str(error).replace(f"--autotune-dump={error.place}", "--autotune-update")
            raise pytest.fail.Exception(f"{MARKER}: {text}", pytrace=False) from None
        if cache.lossy:
            self.session.note(str(CacheError(*cache.lossy)))
        dump = self._options.dump
        is_dump = dump is not None and argument.is_same_as(dump)
        if self._options.writes and not (cache.entries or is_dump or argument.location.url):
            self._missing.add(argument.typed)
        self.session.add_cache(EntryIndex.from_caches([cache]), "" if is_dump else argument.typed)
        self.hooks.install()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self._refused and report.outcome != "failed":
            report.outcome = "failed"  # the library under test has swallowed the error
            report.longrepr = self._refused
            vars(report).pop("wasxfail", None)  # pytest does not count a failure that was expected
        self._refused = ""
        for mode in self._options.modes if report.failed else ():
            lines, events = mode.test_failed(item.nodeid)
            if lines:
                rerun = f"rerun: {_rerun_command(item, self._options, f'--autotune-{mode.name}={mode}')}"
                report.sections.append((f"autotune {mode.name}", "\n".join([*lines, rerun])))
            for event in events:
                self.session.append_event(event)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        workeroutput: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if workeroutput is not None:
            workeroutput[INPUT_KEY] = self.end()

    def pytest_unconfigure(self) -> None:
        self._end_modes()
        self.session.begin_test("")  # a run may follow in this process: what the last test ran with is forgotten
        self._run_ends.close()
        self.hooks.uninstall()


class CacheFixture:
    """What the ``autotune_cache`` fixture gives; the problems are those that this test was the first to ask for."""

    def __init__(self, process: TestProcess, item: pytest.Item) -> None:
        self._process = process
        self._item = item

    def _with(self, outcome: Outcome) -> tuple[Lookup, ...]:
        indexes = self._process.session.indexes
        found = [lookup for lookup in self._process.session.lookups if lookup.outcome is outcome]
        reasons = [one.reason if one.reason != NO_ENTRY else nearest(indexes, one.problem).text for one in found]
        return tuple(replace(one, reason=reason) for one, reason in zip(found, reasons, strict=True))

    @property
    def hits(self) -> tuple[Lookup, ...]:
        """What a loaded cache had."""
        return self._with(Outcome.HIT)

    @property
    def misses(self) -> tuple[Lookup, ...]:
        """What no loaded cache had."""
        return self._with(Outcome.MISS)

    @property
    def stale(self) -> tuple[Lookup, ...]:
        """What a loaded cache had for other code or other candidates."""
        return self._with(Outcome.STALE)

    @property
    def mismatches(self) -> tuple[Lookup, ...]:
        """What loaded caches had for other devices only."""
        return self._with(Outcome.MISMATCH)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries that are loaded now, the ones that take precedence first."""
        return tuple(entry for index in self._process.session.indexes for entry in index)

    def load(self, path: str | Path) -> None:
        """Load one more cache until this test ends; the path is relative to its file."""
        self._process.load(self._item, str(path))

    def tune(self, kernel: str, **request: Any) -> Any:
        """Choose a configuration for a hand-written kernel: :func:`pytest_autotune.tune`, with its arguments."""
        from pytest_autotune.tuners.function.tuner import tune

        return tune(kernel, **request)

    def loss(self, config: object, **request: Any) -> Any:
        """What a choice costs here: :func:`pytest_autotune.loss`, with its arguments."""
        from pytest_autotune.tuners.function.tuner import loss

        return loss(config, **request)


def _enabled(item: pytest.Item) -> bool:
    """Whether the tuners may act in a test; the nearest marker that says so decides."""
    return next((bool(mark.kwargs["enabled"]) for mark in item.iter_markers(MARKER) if "enabled" in mark.kwargs), True)


def _caches(item: pytest.Item) -> Iterator[str]:
    """The caches that a test's markers name, the nearest one last: it wins. One without sense fails the test."""
    for mark in reversed(list(item.iter_markers(MARKER))):
        load, enabled = mark.kwargs.get("load", []), mark.kwargs.get("enabled", True)
        paths = load if isinstance(load, (list, tuple)) else [load]
        is_known = not mark.args and mark.kwargs.keys() <= {"load", "enabled"} and isinstance(enabled, bool)
        if not is_known or not all(isinstance(path, (str, Path)) for path in paths):
            named = [f"{name}={value!r}" for name, value in mark.kwargs.items()]
            found = ", ".join([*map(repr, mark.args), *named])
            pytest.fail(
                f"marker {MARKER}: expected load=PATH, or several, or enabled=False, not {found}", pytrace=False
            )
        yield from map(str, paths)


def _rerun_command(item: pytest.Item, options: Options, flag: str) -> str:
    typed = ["pytest", flag]
    if options.tuners is not None:
        typed.append(f"--autotune-tuners={','.join(options.tuners)}")
    _, colons, name = item.nodeid.partition("::")
    path = os.path.relpath(item.path, item.config.invocation_params.dir)
    return shlex.join([*typed, f"{path}{colons}{name}"])


def _parts_of(item: pytest.Item) -> Iterator[object]:
    """What a test calls, as far as pytest knows: its function, its fixtures' and what it is parametrized with."""
    found: Any = item
    yield getattr(found, "obj", None)
    with suppress(AttributeError):
        yield from found.callspec.params.values()
    with suppress(AttributeError, TypeError, IndexError):
        definitions: Sequence[Any]
        for definitions in found._fixtureinfo.name2fixturedefs.values():
            yield definitions[-1].func


def _module_is_imported(name: str) -> bool:
    """Whether the module that should define a kernel, ``tuner:module.qualname``, was imported here."""
    parts = name.partition(":")[2].split(".")
    for end in range(len(parts) - 1, 0, -1):
        if (module := sys.modules.get(".".join(parts[:end]))) is not None:
            path = getattr(module, "__path__", None)
            # Of a package, it may be in a module that is there and was not imported.
            return end == len(parts) - 1 or path is None or not PathFinder.find_spec(".".join(parts[: end + 1]), path)
    return False
