"""``pytest_autotune.use``: a library ships a cache, and launches of its kernels take their choices from the cache.

The code of an exported module, :mod:`~pytest_autotune.production.picker`, picks the choices. This module must not
import anything that only tests need, such as pytest. The cache is read when the first kernel asks.
"""

from __future__ import annotations

import hashlib
import json
import os
import pkgutil
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.production.shipped import KernelLaunch, LaunchedProblem, MissError, add_shipped_cache

if TYPE_CHECKING:
    from pytest_autotune.production.choices import DeviceIdentity

#: The values of ``on_miss=``; the first is the default.
ON_MISS = ("first", "nearest", "tune", "error")


@dataclass(frozen=True)
class ShippedAnswer:
    """The answer of a shipped cache to a launch.

    :param candidate: the candidate to launch; None if the tuner has to tune, or if ``used`` is ``"error"``.
    :param used: ``"nearest"``, ``"first"``, ``"tune"`` or ``"error"``, see :class:`LaunchedProblem`; empty if the
        candidate was tuned for this problem on this device.
    """

    candidate: Any
    used: str = ""


@dataclass(frozen=True)
class ShippedEntry:
    """The entry whose choice a launch may take.

    :param is_same_key: the entry is of the launch's own key, and not of the nearest.
    :param other_device: words about the device of the entry; empty if it is the device of the launch.
    """

    entry: Entry
    is_same_key: bool
    other_device: str


class Picker:
    """The functions of an exported module, with the choices for one device.

    :param choices: kernel -> device -> the keys and their entries. Devices are as in an exported module.
    """

    def __init__(self, choices: Mapping[str, Any], device: DeviceIdentity) -> None:
        from pytest_autotune.production.choices import PICKER

        self._device = (*device, "")
        self._namespace: dict[str, Any] = {}
        exec(compile(PICKER.read_bytes(), PICKER, "exec"), self._namespace)
        self._namespace.update(CHOICES=choices, KEYS=defaultdict(tuple), device=self._find_device)

    def _find_device(self) -> tuple[str, str, int, str]:
        return self._device

    def find_choices(self, kernel: str, other_devices: bool) -> Any:
        """Return the choices that the device may take, as the picker's ``KnownChoices``; None if there are none."""
        return self._namespace["find_choices"](kernel, other_devices)

    def find_nearest_key(self, choice_by_key: Mapping[Any, Entry], key: Any, nearest: Iterable[str]) -> Any:
        """Return the nearest key that has a choice; ``key`` itself if it has one, or if no key is near."""
        return self._namespace["find_nearest_key"](choice_by_key, key, nearest)


@dataclass(eq=False)
class ShippedCache:
    """A cache that a library ships, for its Triton kernels and its calls of :func:`pytest_autotune.tune`.

    The library's ``__init__`` makes the object, as ``pytest_autotune.use(…)``. In a run of pytest with the plugin the
    object does nothing. ``str()`` of the object is one line with a digest of the cache's bytes. If the line is equal on
    all ranks of a distributed job, they take the same choices.

    :param package: the library's package. Kernels of other packages are bypassed.
    :param resource: the cache: a file in the package, or an absolute path.
    :param on_miss: the answer to a problem without a choice. ``"first"``: the tuner's first candidate that works.
        ``"nearest"``: the choice of the nearest problem, else the first candidate. ``"tune"``: the tuner tunes.
        ``"error"``: a LookupError.
    :param nearest: the names of the numbers in keys that may differ from those of the nearest problem. Without names,
        all sizes may differ.
    :param other_devices: a GPU without choices may take those of a larger or smaller GPU of its architecture.
    :param aliases: name of a device -> name of a device of the same architecture, whose choices it takes.
    :param report: a file. Each miss is appended as a line of JSON, for ``pytest --autotune-problems``.
    :raises ValueError: for another ``on_miss``.
    """

    package: str
    resource: str | os.PathLike[str]
    on_miss: str = ON_MISS[0]
    _: KW_ONLY
    nearest: Sequence[str] = ()
    other_devices: bool = False
    aliases: Mapping[str, str] | None = None
    report: str | os.PathLike[str] | None = None
    #: The problems that were asked for and have no exact choice, each of them once.
    misses: list[LaunchedProblem] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.on_miss not in ON_MISS:
            raise ValueError(f"use(): on_miss takes {', '.join(ON_MISS)}, not {self.on_miss!r}")
        #: The bytes of the cache; None if they cannot be read, or are no cache.
        self._data = self._read_resource()
        # The path in most libraries' folders, for the commands in warnings.
        self._path = os.path.join(*self.package.split("."), self.resource)
        self.digest = hashlib.sha256(self._data or b"").hexdigest()[:16]
        #: The cache, once the first kernel has asked.
        self._cache: Cache | None = None
        #: The pickers by tuner and device.
        self._pickers: dict[tuple[str, DeviceIdentity], Picker] = {}
        #: (tuner, kernel, key, architecture) of the problems with several choices.
        self._ambiguous: set[tuple[object, ...]] = set()
        #: The line of JSON and the key of each miss, to report each of them once. The line alone does not tell the
        #: member of an enum from the text of its name.
        self._reported_misses: set[object] = set()
        #: (tuner, device, kind) of the warnings that were shown.
        self._shown_warnings: set[object] = set()
        add_shipped_cache(self)
        _hook_tuners()

    def __str__(self) -> str:
        return f"{self.package}: {os.fspath(self.resource)}, digest {self.digest}"

    def has_kernel(self, kernel: str) -> bool:
        """Whether a kernel belongs to this library.

        :param kernel: its module and name.
        """
        return self._data is not None and f"{kernel}.".startswith(f"{self.package}.")

    def choose(self, launch: KernelLaunch) -> Any:
        """Return the candidate to launch; None if the tuner has to tune.

        :raises MissError: if no choice is shipped, and ``on_miss`` says that this is an error.
        """
        problem = launch.problem
        try:
            answer = self._find_tuned_candidate(launch)
            if self._data is None:
                # The cache turned out to be damaged. The user was warned of that.
                return None
            if answer is None:
                answer = self._find_first_candidate(launch)
        except Exception as error:
            # A defect of this package or of the cache must not stop the user's program.
            _warn(f"{self.package}: an error left {problem} without a choice, so it is tuned: {error!r}")
            return None
        if not answer.used:
            return answer.candidate
        miss = replace(problem, used=answer.used)
        reason = self._explain_miss(problem)
        self._warn_of_miss(miss, reason)
        self._report_miss(miss)
        if miss.used == "error":
            raise MissError(f"{self}: {reason} on {problem.device[0]}")
        return answer.candidate

    # The answers.

    def _find_tuned_candidate(self, launch: KernelLaunch) -> ShippedAnswer | None:
        """Return the choice of the problem, or of the nearest problem if ``on_miss`` allows that.

        :returns: None if no choice is shipped, if the kernel no longer has the chosen candidate, or if the choice of
            another problem or device does not run here.
        """
        problem = launch.problem
        tuned = self._find_tuned_entry(problem)
        if tuned is None:
            return None
        # The picker has only entries with a choice.
        assert tuned.entry.choice is not None
        candidate = launch.find_candidate(tuned.entry.choice)
        if candidate is None:
            # The kernel no longer has the chosen candidate.
            return None
        self._warn_of_other_version(problem, tuned.entry)
        if tuned.is_same_key and not tuned.other_device:
            return ShippedAnswer(candidate)
        # The choice was tuned for another problem or device, so it may not compile or not fit this device.
        if not launch.can_run(candidate):
            return None
        kind_of_warning = "nearest"
        if tuned.is_same_key:
            kind_of_warning = tuned.other_device
        tuned_for = f"{tuned.entry.problem} on {tuned.entry.problem.device.name}"
        self._warn_once(problem, kind_of_warning, f"the choice of {tuned_for} is used for {problem}")
        return ShippedAnswer(candidate, "nearest")

    def _find_tuned_entry(self, problem: LaunchedProblem) -> ShippedEntry | None:
        """Return the entry of the problem, or of the nearest if ``on_miss`` allows that; None if there is none."""
        picker = self._find_picker(problem.tuner, problem.device)
        known = picker.find_choices(problem.kernel, self.other_devices)
        if known is None:
            return None
        entry = known.choice_by_key.get(problem.sorted_key)
        is_same_key = entry is not None
        if entry is None and self.on_miss == "nearest":
            entry = self._find_nearest_entry(picker, known.choice_by_key.values(), problem)
        if entry is None:
            return None
        # The picker's remark names a device, because no choice of this picker has a version of Triton.
        return ShippedEntry(entry, is_same_key, other_device=known.remark)

    def _find_nearest_entry(self, picker: Picker, entries: Iterable[Entry], problem: LaunchedProblem) -> Entry | None:
        """Return the entry whose key is the nearest to a problem without an entry; None if no key is near.

        Distances are computed from plain values, so the distance of ``1`` and ``1.0`` in two keys of ``tune()`` is 0.

        :param entries: those that the problem's device may use, in the order of a file.
        """
        from pytest_autotune.cache.distance import launch_key

        entry_by_key: dict[tuple[tuple[str, Any], ...], Entry] = {}
        for entry in entries:
            # If plain keys are equal, the first entry is used.
            entry_by_key.setdefault(tuple(sorted(launch_key(entry.problem.key).items())), entry)
        nearest = self.nearest or _list_size_names(entry_by_key)
        wanted_key = tuple(sorted(problem.key.items()))
        return entry_by_key.get(picker.find_nearest_key(entry_by_key, wanted_key, nearest))

    def _find_first_candidate(self, launch: KernelLaunch) -> ShippedAnswer:
        """Return the first candidate that works, if ``on_miss`` allows it."""
        if self.on_miss not in ("first", "nearest"):
            return ShippedAnswer(None, self.on_miss)
        for candidate in launch.list_candidates():
            if launch.can_run(candidate):
                return ShippedAnswer(candidate, "first")
        return ShippedAnswer(None, "tune")

    # The cache.

    def _read_resource(self) -> bytes | None:
        """Return the bytes of the cache; None, with a warning, if they cannot be read."""
        resource = os.fspath(self.resource)
        try:
            if os.path.isabs(resource):
                with open(resource, "rb") as file:
                    return file.read()
            data = pkgutil.get_data(self.package, resource)
            if data is None:
                raise ImportError(f"{self.package} is not a package with files")
            return data
        except (OSError, ImportError, ValueError) as error:  # a ValueError if the package is __main__
            reason = f"{resource} cannot be read, so its kernels are tuned (is it in package-data?): {error}"
            _warn(f"{self.package}: {reason}")
            return None

    def _decode(self) -> Cache:
        """Return the cache; empty, with a warning, if it is damaged. The caller holds the lock."""
        from pytest_autotune.cache.codec import decode, find_format
        from pytest_autotune.cache.errors import CacheError

        try:
            return decode(self._data or b"", find_format(PurePath(self.resource)), os.fspath(self.resource))
        except CacheError as error:
            _warn(f"{self.package}: {error}; its kernels are tuned")
            self._data = None
            return Cache()

    def _find_picker(self, tuner: str, device: DeviceIdentity) -> Picker:
        """Return the picker of a tuner's choices for a device. The first call reads the cache."""
        with _lock:
            if self._cache is None:
                self._cache = self._decode()
            if (tuner, device) not in self._pickers:
                self._pickers[tuner, device] = self._build_picker(self._cache, tuner, device)
            return self._pickers[tuner, device]

    def _build_picker(self, cache: Cache, tuner: str, device: DeviceIdentity) -> Picker:
        """Return a picker with the choices of a tuner, for a device."""
        from pytest_autotune.cache.codec.mapping import sort_entries
        from pytest_autotune.production.choices import resolve_aliases, select_choices

        # If two entries are equally near, the first in the order of a file is used, as in runs and exports.
        tuner_entries = [entry for entry in cache.entries if entry.problem.tuner == tuner]
        selected = select_choices(sort_entries(tuner_entries))
        self._add_ambiguous(selected.ambiguous)
        choices = _group_choices(selected.entries)
        tuned_devices = {entry.problem.device for entry in selected.entries}
        name, arch, _ = device
        alias_device = resolve_aliases(tuned_devices, self.aliases or {}).get((name, arch))
        if alias_device is not None:
            for choices_by_device in choices.values():
                alias_choices = choices_by_device.get((*alias_device, ""))
                # A device's own choices go before the choices of its alias.
                if alias_choices:
                    choices_by_device.setdefault((*device, ""), alias_choices)
        return Picker(choices, device)

    def _add_ambiguous(self, entries: Iterable[Entry]) -> None:
        """Remember the problems that have several choices.

        :param entries: an entry of each problem.
        """
        from pytest_autotune.production.choices import exact_key

        for entry in entries:
            problem = entry.problem
            key = tuple(sorted(exact_key(problem).items()))
            self._ambiguous.add((problem.tuner, problem.kernel, key, problem.device.arch))

    # The misses.

    def _explain_miss(self, problem: LaunchedProblem) -> str:
        """Return why a problem has no exact choice."""
        if self._is_ambiguous(problem):
            return f"several choices are shipped for {problem}"
        return f"no tuned choice is shipped for {problem}"

    def _is_ambiguous(self, problem: LaunchedProblem) -> bool:
        return (problem.tuner, problem.kernel, problem.sorted_key, problem.device[1]) in self._ambiguous

    def _warn_of_miss(self, miss: LaunchedProblem, reason: str) -> None:
        """Warn of a problem without a choice, unless the user would expect no warning.

        With ``"error"`` the user gets an error, and with ``"nearest"`` another warning. A problem that is tuned because
        nothing is shipped for it needs no warning.
        """
        if miss.used == "first":
            self._warn_once(miss, "", f"{reason}: its first candidate that works is used")
        elif miss.used == "tune" and self._is_ambiguous(miss):
            self._warn_once(miss, "several", f"{reason}, so it is tuned")

    def _warn_of_other_version(self, problem: LaunchedProblem, entry: Entry) -> None:
        """Warn once if another version of the tuner's library runs.

        The remedy is a fresh dump, because an update keeps an entry that is a hit as it is.
        """
        library, version = entry.versions.tuner_minor_version
        running_version = getattr(sys.modules.get(library), "__version__", version)
        if running_version.startswith(version) or not self._is_first_warning(problem, "version"):
            return
        remedy = f"tune again with this version: pytest --autotune-load= --autotune-dump={self._path}"
        _warn(f"{problem.kernel} was tuned with {library} {version}, and this is {running_version} ({remedy})")

    def _warn_once(self, problem: LaunchedProblem, kind: str, text: str) -> None:
        """Warn, with the remedy, once for each kind of warning."""
        if self._is_first_warning(problem, kind):
            remedy = f"cover it in the tests, then: pytest --autotune-load={self._path} --autotune-update=all"
            _warn(f"{self.package}: {text} ({remedy})")

    def _is_first_warning(self, problem: LaunchedProblem, kind: str) -> bool:
        """Whether this kind of warning was not shown before for the problem's tuner and device."""
        warning = (problem.tuner, problem.device, kind)
        if warning in self._shown_warnings:
            return False
        self._shown_warnings.add(warning)
        return True

    def _report_miss(self, miss: LaunchedProblem) -> None:
        """Add a miss to ``misses`` and to the file ``report``, unless an equal miss was added before."""
        fields = {name: value for name, value in vars(miss).items() if name != "exact_key"}
        line = json.dumps(fields, default=str)
        reported_miss = (line, miss.sorted_key)
        with _lock:
            if reported_miss in self._reported_misses:
                return
            self._reported_misses.add(reported_miss)
        self.misses.append(miss)
        if self.report is None:
            return
        try:
            _append_line(self.report, line)
        except OSError as error:
            _warn(f"{self.report}: a missing problem could not be written: {error.strerror}")


def _group_choices(entries: Iterable[Entry]) -> dict[str, dict[object, list[object]]]:
    """Return choices in the form of ``CHOICES`` of an exported module: kernel -> device -> a list of (key, entry).

    An export has the version of Triton behind the device. Here it is empty, which fits any version, because
    ``ShippedCache`` itself compares versions.
    """
    from pytest_autotune.production.choices import device_identity, exact_key

    choices: dict[str, dict[object, list[object]]] = {}
    for entry in entries:
        tuned_on = (*device_identity(entry.problem.device), "")
        choices_by_device = choices.setdefault(entry.problem.kernel, {})
        choices_by_device.setdefault(tuned_on, []).append((exact_key(entry.problem), entry))
    return choices


def _list_size_names(choice_by_key: Mapping[Any, Entry]) -> set[str]:
    """Return the names of the numbers in keys that look like sizes. Numbers up to 1 in all keys look like flags."""
    names = set()
    for key in choice_by_key:
        for name, value in key:
            if isinstance(value, (int, float)) and value > 1:
                names.add(name)
    return names


def _append_line(path: str | os.PathLike[str], line: str) -> None:
    """Append a line to a file in one write.

    The last line of the file may have been cut off by a kill or a full disk. The new line then begins after it.
    """
    with open(path, "ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        if file.read(1) not in (b"", b"\n"):
            line = "\n" + line
        file.write(f"{line}\n".encode())


#: Held while a thread reads a cache and imports modules for it. A fork waits for the lock: a child has none of its
#: parent's threads, so nothing in the child would ever release this lock or the lock of an import.
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # libraries run on systems without fork, too
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


#: The name that libraries call.
use = ShippedCache


@cache
def _hook_tuners() -> None:
    """Hook the tuners when the user's program imports them; only the first call does anything."""
    import wrapt

    from pytest_autotune.production import answering

    wrapt.register_post_import_hook(answering.hook_triton, "triton.runtime.autotuner")
    wrapt.register_post_import_hook(answering.hook_function, "pytest_autotune.tuners.function.tuner")


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)
