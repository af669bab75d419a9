"""The choices of a cache as production reads them: plain values, and one choice for each problem."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from pytest_autotune.cache.codec.mapping import sort_entries
from pytest_autotune.cache.distance import LaunchValue, launch_key
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value

#: The code of an exported module, which ``use()`` runs, too. It is run as a file, because pytest rewrites the imports
#: of a plugin's modules.
PICKER = Path(__file__).with_name("picker.py")
#: A device as pickers know it: name, architecture, multiprocessors.
DeviceIdentity: TypeAlias = "tuple[str, str, int]"
#: The beginnings of the names of key parts that a launch does not show: values that a kernel took from its factory, the
#: function that made it.
_FACTORY_VALUES = ("closure.", "heuristics.")


@dataclass(frozen=True)
class SelectedChoices:
    """The choices of some entries, with one choice for each problem.

    :param entries: for each problem an entry with a choice, in the order of the entries.
    :param ambiguous: an entry of each problem that has several choices.
    """

    entries: list[Entry]
    ambiguous: list[Entry]


def select_choices(entries: Iterable[Entry]) -> SelectedChoices:
    """Select an entry for each problem that has a single choice.

    A problem has several choices if kernels with different code share a name, or if a kernel's pruning left different
    candidates. If some entries chose among all candidates, the entries that chose among a part of them do not count.
    """
    selected: list[Entry] = []
    ambiguous: list[Entry] = []
    for same_problem in _group_by_launched_problem(entries):
        unpruned = [entry for entry in same_problem if not entry.fingerprint.is_pruned]
        rivals = unpruned or same_problem
        configurations = {_configuration(entry.choice) for entry in rivals}
        if len(configurations) == 1:
            selected.append(rivals[0])
        else:
            ambiguous.append(rivals[0])
    return SelectedChoices(selected, ambiguous)


def _group_by_launched_problem(entries: Iterable[Entry]) -> Iterable[list[Entry]]:
    """Return the entries with a choice, a list for each problem that a launch can tell apart from other problems.

    A launch of Triton shows less than an entry. For example, it does not show the digest of a function's source.
    """
    entries_by_problem: dict[object, list[Entry]] = {}
    for entry in entries:
        problem = entry.problem
        if entry.choice is None or _has_nan(problem.key) or _has_nan(entry.choice.params):
            continue
        key = frozenset(exact_key(problem).items())
        launched_problem = (problem.tuner, problem.kernel, problem.device, key)
        entries_by_problem.setdefault(launched_problem, []).append(entry)
    return entries_by_problem.values()


def exact_key(problem: Problem) -> Mapping[str, LaunchValue | Value]:
    """Return the values of a key by their names, in the form in which ``use()`` compares keys.

    - A call of ``tune()`` encodes its key in production as in a test run. So its encoded values are compared, in which
      ``True``, ``1`` and ``1.0`` differ.
    - A launch of Triton shows plain values of Python. They are compared as Triton's own memory compares them: ``True``
      and ``1`` are equal.
    """
    if problem.tuner == "function":
        return {value.name: value for value in problem.key}
    return launch_key(problem.key)


def _has_nan(values: Iterable[Value]) -> bool:
    """Whether a value is NaN. NaN equals nothing, so no launch could find the entry."""
    return any(value.value != value.value for value in values)


def _configuration(choice: Candidate | None) -> object:
    assert choice is not None
    return choice.id, choice.params


def device_identity(device: Device) -> DeviceIdentity:
    """Return a device as pickers know it."""
    return device.name, device.arch, device.multiprocessors


def resolve_aliases(devices: Iterable[Device], aliases: Mapping[str, str]) -> dict[tuple[str, str], DeviceIdentity]:
    """Return for each device with an alias the device whose choices it takes.

    Example: with choices for ``("NVIDIA H200", "sm_90", 132)``, the alias ``{"NVIDIA H200 NVL": "NVIDIA H200"}`` gives
    ``{("NVIDIA H200 NVL", "sm_90"): ("NVIDIA H200", "sm_90", 132)}``.

    :param devices: the devices that have choices.
    :param aliases: name of a device -> name of the device whose choices it takes. Both have the same architecture.
    """
    tuned_devices = sorted(map(device_identity, devices))
    resolved = {}
    for name, name_with_choices in sorted(aliases.items()):
        for tuned_device in tuned_devices:
            tuned_name, arch, _ = tuned_device
            if tuned_name == name_with_choices:
                resolved[name, arch] = tuned_device
    return resolved


def list_triton_versions(entries: Iterable[Entry]) -> list[str]:
    """Return the minor versions of Triton that some entries were tuned with, in order."""
    versions = set()
    for entry in entries:
        library, version = entry.versions.tuner_minor_version
        if library == "triton":
            versions.add(version)
    return sorted(versions, key=version_sort_key)


def version_sort_key(version: str) -> tuple[list[str], str]:
    """Return a key that sorts versions by their numbers."""
    return [number.zfill(9) for number in re.findall(r"\d+", version)], version


def find_triton_version(entry: Entry) -> str:
    """Return the version of Triton that an entry was tuned with; empty if the entry does not say."""
    return dict(entry.versions.libraries).get("triton", "")


def select_entries(cache: Cache, kernels: Sequence[str] = (), devices: Sequence[str] = ()) -> list[Entry]:
    """Return the entries of some kernels and devices, in the order of a file.

    :param kernels: globs of a kernel, with or without its tuner: ``ops.*`` or ``triton:ops.*``. Without globs, all.
    :param devices: globs of a device's name or id: ``NVIDIA H200*`` or ``nvidia-h200-*``. Without globs, all.
    """
    entries = []
    for entry in cache.entries:
        problem = entry.problem
        has_kernel = _matches(kernels, problem.kernel, problem.name)
        if has_kernel and _matches(devices, problem.device.name, problem.device.id):
            entries.append(entry)
    return sort_entries(entries)


def _matches(globs: Sequence[str], *names: str) -> bool:
    if not globs:
        return True
    return any(fnmatchcase(name, glob) for name in names for glob in globs)


@dataclass(frozen=True)
class ExportableEntries:
    """The entries of a cache that a user selected for an export, sorted by what an export can do with them.

    :param other_count: the number of entries of other tuners.
    :param triton_count: the number of entries of Triton's kernels.
    :param plain: the entries of Triton's kernels whose values a launch shows, so that an export can hold them.
    """

    other_count: int
    triton_count: int
    plain: list[Entry]

    @classmethod
    def select(cls, cache: Cache, kernels: Sequence[str], devices: Sequence[str]) -> ExportableEntries:
        """Select the entries of some kernels and devices.

        A kernel that a function of the user makes, a factory, is left out of ``plain``: a launch does not show the
        values that it took from its factory. The method looks for such kernels in the whole cache, because only an
        entry that is not selected may show that a factory makes the kernel.

        :param kernels: globs, see :func:`select_entries`.
        :param devices: globs, see :func:`select_entries`.
        """
        factory_kernels = _list_factory_kernels(list_triton_entries(cache))
        selected = select_entries(cache, kernels, devices)
        triton_entries = [entry for entry in selected if entry.problem.tuner == "triton"]
        plain = []
        for entry in triton_entries:
            if entry.problem.kernel not in factory_kernels and _is_plain(entry):
                plain.append(entry)
        return cls(
            other_count=len(selected) - len(triton_entries),
            triton_count=len(triton_entries),
            plain=plain,
        )


def list_triton_entries(cache: Cache) -> list[Entry]:
    """Return the entries of Triton's kernels, for any kernel and device."""
    return [entry for entry in cache.entries if entry.problem.tuner == "triton"]


def _is_plain(entry: Entry) -> bool:
    """Whether a launch shows the values of an entry: no functions, tuples, enums, nor dtypes that are values.

    The class of an argument, ``option.class``, is left out, too: an exported picker does not know the user's classes.
    """
    if any(value.name.endswith(".class") for value in entry.problem.key):
        return False
    values = list(entry.problem.key)
    if entry.choice is not None:
        values += entry.choice.params
    return all(value.type in ("", "int") or value.name.endswith(".dtype") for value in values)


def _list_factory_kernels(entries: Iterable[Entry]) -> set[str]:
    """Return the kernels whose keys have values of their factory. A launch does not show these values."""
    kernels = set()
    for entry in entries:
        if any(value.name.startswith(_FACTORY_VALUES) for value in entry.problem.key):
            kernels.add(entry.problem.kernel)
    return kernels
