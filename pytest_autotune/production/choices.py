"""Entries as those read them who have nothing of this package: keys and candidates as plain values, one choice each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from pytest_autotune.cache.codec.mapping import sort_entries
from pytest_autotune.cache.distance import launch_key
from pytest_autotune.cache.model import Cache, Device, Entry

#: What picks in an exported module, and in ``use()``; run as a file, since pytest rewrites it as a module of a plugin.
PICKER = Path(__file__).with_name("picker.py")
#: name, architecture, multiprocessors
On: TypeAlias = "tuple[str, str, int]"


def chosen(entries: Iterable[Entry]) -> tuple[list[Entry], list[Entry]]:
    """An entry with a choice for each problem, in their order; and those of problems for which there are several.

    What the key does not tell, nobody can who is asked for a choice: kernels of one name with different code, and what
    pruning left of the candidates. The choice among all candidates goes before that among a part. One with NaN, which
    equals nothing, is nobody's.
    """
    same: dict[object, list[Entry]] = {}
    for entry in entries:
        problem = entry.problem
        if entry.choice and all(one.value == one.value for one in (*problem.key, *entry.choice.params)):
            key = frozenset(launch_key(problem.key).items())
            same.setdefault((problem.tuner, problem.kernel, problem.device, key), []).append(entry)
    found: list[Entry] = []
    ambiguous: list[Entry] = []
    for group in same.values():
        whole = [one for one in group if not one.fingerprint.is_pruned] or group
        configurations = {(one.choice.id, one.choice.params) for one in whole if one.choice is not None}
        (found if len(configurations) == 1 else ambiguous).append(whole[0])
    return found, ambiguous


def identity(device: Device) -> On:
    """A device as pickers know it."""
    return device.name, device.arch, device.multiprocessors


def aliased(devices: Iterable[Device], aliases: Mapping[str, str]) -> dict[tuple[str, str], On]:
    """The device whose choices others take, which have its architecture, by their name and architecture."""
    of = sorted(map(identity, devices))
    return {(name, one[1]): one for name, other in sorted(aliases.items()) for one in of if one[0] == other}


def triton_versions(entries: Iterable[Entry]) -> list[str]:
    """The minor versions of Triton that some entries were tuned with, in order."""
    found = {entry.versions.tuner_minor_version for entry in entries}
    versions = [version for library, version in found if library == "triton"]
    return sorted(versions, key=by_version)


def by_version(version: str) -> tuple[list[str], str]:
    """Orders versions by their numbers, the same way in every process."""
    return [number.zfill(9) for number in re.findall(r"\d+", version)], version


def selected(cache: Cache, kernels: Sequence[str] = (), devices: Sequence[str] = ()) -> list[Entry]:
    """The entries of some kernels and devices, each named by globs; of all, where none is given; in order."""

    def is_wanted(entry: Entry) -> bool:
        problem = entry.problem
        names = (problem.kernel, problem.name), (problem.device.name, problem.device.id)
        return all(
            not globs or any(fnmatchcase(name, glob) for name in of for glob in globs)
            for of, globs in zip(names, (kernels, devices), strict=True)
        )

    return sort_entries(filter(is_wanted, cache.entries))
