"""The reports of all processes of a run, collected from their events.

While tests run, each process writes events to its log: one for each lookup (a question of a tuner, with its outcome),
others for modes such as ``--autotune-verify``, and a last event with facts about the process. At the end, the
controller collects the events of all processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter

from pytest_autotune.cache.model import Entry, Identity, Versions
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.workers.events import Event, ProcessEvent

#: The kind of the last event of a process, with facts about the process.
END = "end"
#: The kind of an event with one entry of a cache that a test loads for itself.
TEST_CACHE_ENTRY = "test-cache"
#: The outcomes of tests, in pytest's words and in the order of its last line.
TEST_OUTCOMES = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")
#: The name of the only process of a run without workers, in events.
ALONE = "main"


@dataclass(frozen=True)
class Collected:
    """The reports of all processes, and facts that the controller adds.

    :param lookups: of all processes, each lookup once.
    :param recovered_lookups: the tunings of killed runs with this dump path.
    :param other_lookups: the lookups whose entries belong to other caches, for the dump of one test's own cache.
    :param mode_events: the events that are neither a lookup nor an end.
    :param crashed_workers: the workers that sent no last event.
    :param incomplete_reason: the first reason why the run was not complete; empty if it was complete.
    :param not_passed_reason: the first reason why a test that was selected did not pass; empty if all passed.
    :param has_only_skips: whether no test failed, and ``not_passed_reason`` is a skipped test or an ignored test file.
    :param is_only_skipped: whether the whole suite ran, and ``incomplete_reason`` is only a skipped test, an ignored
        test file or an option such as ``-o addopts`` or ``--noconftest``.
    :param chosen_tests: how the user chose single tests or files, such as ``-k selects tests``; empty for the whole
        suite, and for whole folders.
    :param early_end: how many tests did not run because something other than a failure ended the run, such as
        ``pytest.exit``; empty if all ran.
    :param test_counts: one of :data:`TEST_OUTCOMES` -> the number of these tests.
    :param untracked: the kernels that were tuned without asking the session.
    :param unhooked: (tuner, why it could not be hooked).
    :param versions: library of a tuner -> the versions that it ran with.
    :param imported_kernels: the loaded kernels, as ``tuner:kernel``, whose module was imported.
    :param unavailable: why loaded entries cannot be used here; only if all loaded caches are optional.
    :param missing_packages: (tuner of loaded entries, the package of its library), for packages that are not installed.
    :param has_visible_gpu: whether a process can see a GPU. It is False only if loaded entries are for GPUs.
    :param hypothesis_tests: node ids of the tests whose arguments Hypothesis draws.
    :param disabled_tests: node ids of the tests whose marker bypasses the tuners.
    :param missing_caches: the caches that tests load, as they are typed, that had no entry; only in a run that writes.
    :param test_cache_entries: a cache that tests load, as it is typed -> its entries; only in a run that writes.
    :param ignored_test_files: test files that a conftest.py kept pytest from collecting, relative to the rootdir, and
        node ids of such tests.
    :param has_replaced_paths: whether a plugin or conftest.py changed which paths pytest collected.
    """

    lookups: tuple[Lookup, ...] = ()
    recovered_lookups: tuple[Lookup, ...] = ()
    other_lookups: tuple[Lookup, ...] = ()
    mode_events: tuple[Event, ...] = ()
    crashed_workers: tuple[str, ...] = ()
    incomplete_reason: str = ""
    not_passed_reason: str = ""
    has_only_skips: bool = False
    is_only_skipped: bool = False
    chosen_tests: str = ""
    is_interrupted: bool = False
    early_end: str = ""
    test_counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    unhooked: tuple[tuple[str, str], ...] = ()
    versions: Mapping[str, Versions] = field(default_factory=dict)
    imported_kernels: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()
    missing_packages: tuple[tuple[str, str], ...] = ()
    has_visible_gpu: bool = True
    hypothesis_tests: tuple[str, ...] = ()
    disabled_tests: tuple[str, ...] = ()
    missing_caches: tuple[str, ...] = ()
    test_cache_entries: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    ignored_test_files: tuple[str, ...] = ()
    deselected_count: int = 0
    has_replaced_paths: bool = False

    @property
    def bypass_reason(self) -> str:
        """Why calls of any kernel may have bypassed the tuners; empty if none did."""
        if not self.disabled_tests:
            return ""
        return f"{self.disabled_tests[0]} turns the plugin off by its marker autotune_cache(enabled=False)"

    @property
    def unasked_reason(self) -> str:
        """Why a test may need an entry that no test of the run asked for; empty if the run asked for every entry.

        The entries of such a run are not judged: no entry is called unused, and none is pruned or loses its old name.
        """
        return self.incomplete_reason or self.bypass_reason


class _LastEvents:
    """The facts in the last events of all processes."""

    def __init__(self) -> None:
        #: Name of a field of :class:`Collected` -> its texts, each once, in the order of their first event. The texts
        #: are the keys of a dict, which keeps the order; the values mean nothing.
        self.texts: dict[str, dict[str, None]] = {
            "notes": {},
            "untracked": {},
            "imported_kernels": {},
            "unavailable": {},
            "hypothesis_tests": {},
            "disabled_tests": {},
            "missing_caches": {},
            "ignored_test_files": {},
        }
        self.unhooked: set[tuple[str, str]] = set()
        #: (tuner, the package of its library that is not installed).
        self.missing_packages: set[tuple[str, str]] = set()
        self.versions: dict[str, Versions] = {}
        self.deselected_count = 0
        self.has_replaced_paths = False
        #: Whether each process can see a GPU.
        self.gpu_views: list[bool] = []

    def add(self, event: Event) -> None:
        """Add the facts of a last event.

        :raises TypeError, KeyError, AttributeError: for an event of a damaged file. Some of its facts may be added.
        """
        for name, texts in self.texts.items():
            for text in event.data[name]:
                texts[str(text)] = None
        for tuner, reason in event.data["unhooked"].items():
            self.unhooked.add((tuner, str(reason)))
        for tuner, package in event.data["missing_packages"].items():
            self.missing_packages.add((tuner, str(package)))
        for library, text in event.data["versions"].items():
            self.versions[library] = Versions.parse(text)
        # Every worker collects the whole suite and deselects the same tests, so the numbers are not added.
        self.deselected_count = max(self.deselected_count, event.data["deselected"])
        self.has_replaced_paths = self.has_replaced_paths or bool(event.data["has_replaced_paths"])
        self.gpu_views.append(bool(event.data["has_visible_gpu"]))

    def to_collected(self) -> Collected:
        """Return the reports of a run with these facts, and without lookups."""
        texts = self.texts
        return Collected(
            notes=tuple(texts["notes"]),
            untracked=tuple(texts["untracked"]),
            unhooked=tuple(sorted(self.unhooked)),
            versions=self.versions,
            imported_kernels=tuple(texts["imported_kernels"]),
            unavailable=tuple(texts["unavailable"]),
            missing_packages=tuple(sorted(self.missing_packages)),
            # If every process crashed, nobody looked for a GPU.
            has_visible_gpu=any(self.gpu_views) or not self.gpu_views,
            hypothesis_tests=tuple(texts["hypothesis_tests"]),
            disabled_tests=tuple(texts["disabled_tests"]),
            missing_caches=tuple(texts["missing_caches"]),
            ignored_test_files=tuple(texts["ignored_test_files"]),
            deselected_count=self.deselected_count,
            has_replaced_paths=self.has_replaced_paths,
        )


class _TestCaches:
    """The entries of the caches that tests load for themselves."""

    def __init__(self) -> None:
        #: Cache, as it is typed -> identity -> entry. Each worker that runs a test of the cache sends its entries.
        self._entries_by_cache: defaultdict[str, dict[Identity, Entry]] = defaultdict(dict)

    def add(self, event: Event) -> None:
        """Add the entry of an event.

        :raises KeyError: for an event of a damaged file.
        """
        if event.entry is not None:
            self._entries_by_cache[str(event.data["cache"])][event.entry.identity] = event.entry

    def list_entries(self) -> dict[str, tuple[Entry, ...]]:
        """Return cache, as it is typed -> its entries."""
        return {name: tuple(entries.values()) for name, entries in self._entries_by_cache.items()}


class _SortedEvents:
    """The events of a run, sorted by their kind."""

    def __init__(self) -> None:
        self.lookups: list[Lookup] = []
        self.mode_events: list[Event] = []
        self.last_events = _LastEvents()
        self.test_caches = _TestCaches()

    def add(self, process: str, event: Event) -> None:
        """Add an event.

        :param process: the name of the process that wrote it.
        :raises ValueError, TypeError, KeyError, AttributeError: for an event of a damaged file.
        """
        if event.kind == END:
            self.last_events.add(event)
            return
        if event.kind == TEST_CACHE_ENTRY:
            self.test_caches.add(event)
            return
        lookup = Lookup.from_event(event)
        if lookup is None:
            self.mode_events.append(event)
            return
        if process != ALONE:
            lookup = replace(lookup, process=process)
        self.lookups.append(lookup)


def collect(events: Iterable[ProcessEvent], recovered: Iterable[ProcessEvent] = ()) -> Collected:
    """Return the reports that are in the events of a run. An event that is damaged or not understood is left out.

    :param events: of this run, each with the name of its process.
    :param recovered: of killed runs with the same dump path.
    """
    sorted_events = _SortedEvents()
    # The order of the processes is the same in each run. The events of a process keep their order.
    for process, event in sorted(events, key=itemgetter(0)):
        # One of these errors means that the event is damaged.
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            sorted_events.add(process, event)
    return replace(
        sorted_events.last_events.to_collected(),
        lookups=tuple(sorted_events.lookups),
        recovered_lookups=_collect_recovered(recovered),
        mode_events=tuple(sorted_events.mode_events),
        test_cache_entries=sorted_events.test_caches.list_entries(),
    )


def _collect_recovered(events: Iterable[ProcessEvent]) -> tuple[Lookup, ...]:
    """Return the tunings in the events of killed runs, without their other lookups."""
    if not events:
        return ()
    recovered_lookups = []
    for lookup in collect(events).lookups:
        if lookup.is_tuned:
            # No process of this run made the measurement.
            recovered_lookups.append(replace(lookup, process=""))
    return tuple(recovered_lookups)
