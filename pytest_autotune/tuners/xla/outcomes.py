"""Decides the outcome of XLA's lookups: hit, stale, mismatch or miss, with the reason.

XLA reports no lookups, so this module derives the outcomes from two facts:

- XLA takes a loaded entry into its memory only if it uses the entry.
- XLA writes its memory into a file after each compilation.

An entry in this file is therefore a hit if it equals a loaded entry, including the value. XLA itself tuned every other
entry in the file. Here ``memory_entry`` is the entry of the file whose outcome is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pytest_autotune.cache.model import Device, Entry
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.tuners.xla.entries import enum_name, split_description, to_xla
from pytest_autotune.tuners.xla.files import XlaEntry, XlaLayout

#: The reason if nothing explains why XLA did not use a loaded entry.
_UNCHANGED = "XLA could not use the choice, or had tuned before it was offered"


@dataclass(frozen=True)
class LoadedEntry:
    """A loaded entry, as the cache holds it and as XLA reads it."""

    cache_entry: Entry
    xla_entry: XlaEntry


@dataclass(frozen=True)
class XlaAnswer:
    """The outcome of one lookup of XLA.

    :param entry: the loaded entry for the same HLO and device; None if there is none.
    """

    outcome: Outcome
    reason: str = ""
    entry: Entry | None = None


class LoadedEntries:
    """The loaded entries of XLA; an entry of a cache that takes precedence comes first.

    :raises CacheError: for an entry whose native bytes are not XLA's.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = [LoadedEntry(entry, to_xla(entry)) for entry in entries]
        self._by_hlo: dict[tuple[XlaLayout, str], list[LoadedEntry]] = {}
        for loaded in self.entries:
            self._by_hlo.setdefault((loaded.xla_entry.layout, loaded.xla_entry.hlo), []).append(loaded)

    def judge(self, memory_entry: XlaEntry, device: Device, versions: Mapping[str, str]) -> XlaAnswer:
        """Return the outcome of a lookup: hit, stale, mismatch or miss, in the order of the branches below.

        :param memory_entry: an entry that is new in XLA's memory after a compilation.
        :param device: the device of the compilation.
        :param versions: the present versions of XLA's backends, by XLA's names of the backends.
        """
        same_hlo = self._by_hlo.get((memory_entry.layout, memory_entry.hlo), [])
        same_device = [loaded for loaded in same_hlo if is_same_device(loaded.xla_entry, memory_entry)]
        # Hit: XLA's choice is a loaded choice.
        for loaded in same_device:
            if _has_same_value(loaded.xla_entry, memory_entry):
                return XlaAnswer(Outcome.HIT, "", loaded.cache_entry)
        # Stale: a loaded entry has the same HLO and device, but XLA did not use it.
        if same_device:
            reason = _describe_change(same_device[0], memory_entry, versions)
            return XlaAnswer(Outcome.STALE, reason, same_device[0].cache_entry)
        # Mismatch: the entries for this HLO are of other devices.
        if same_hlo:
            return XlaAnswer(Outcome.MISMATCH, _describe_other_device(same_hlo, memory_entry, device))
        # Miss: no entry has this HLO. Entries that another version of JAX wrote name an HLO in another format.
        layouts = {loaded.xla_entry.layout for loaded in self.entries}
        if layouts and memory_entry.layout not in layouts:
            # There are two formats, so the loaded entries all have the other one.
            reason = f"no entry; those that are loaded are of XLA's {_describe_layout(layouts.pop())} format"
            return XlaAnswer(Outcome.MISS, reason)
        return XlaAnswer(Outcome.MISS, "no entry for this HLO: new or changed code")


def is_same_device(one: XlaEntry, other: XlaEntry) -> bool:
    """Whether two entries are of the same type of device. A different version of cuDNN does not count."""
    return split_description(one.device)[0] == split_description(other.device)[0]


def _has_same_value(loaded: XlaEntry, memory_entry: XlaEntry) -> bool:
    """Whether XLA's choice equals a loaded choice.

    In the new format, only the values are compared, because XLA also uses entries of another codegen version. XLA then
    requires the same version of the entry's backend, and the value contains this version.
    """
    if memory_entry.layout is XlaLayout.NEW:
        return bool(loaded.message.value == memory_entry.message.value)
    return loaded.identity == memory_entry.identity and _without_time(loaded) == _without_time(memory_entry)


def _without_time(entry: XlaEntry) -> bytes:
    """Return the serialized result of a legacy entry without its time, which differs in each run."""
    result = type(entry.message.result)()
    result.CopyFrom(entry.message.result)
    result.ClearField("run_time")
    return bytes(result.SerializeToString(deterministic=True))


def _describe_change(loaded: LoadedEntry, memory_entry: XlaEntry, versions: Mapping[str, str]) -> str:
    """Return the reason why XLA did not use a loaded entry for the same HLO and device.

    :param versions: the present versions of XLA's backends.
    """
    if memory_entry.layout is XlaLayout.LEGACY:
        return ", ".join(_list_legacy_changes(loaded.xla_entry, memory_entry)) or _UNCHANGED
    if loaded.xla_entry.message.key.environment == memory_entry.message.key.environment:
        return _UNCHANGED
    differences = _list_version_changes(loaded, memory_entry, versions)
    if not differences:
        return "XLA codegen changed"
    return f"XLA codegen changed: {', '.join(differences)}"


def _list_version_changes(loaded: LoadedEntry, memory_entry: XlaEntry, versions: Mapping[str, str]) -> list[str]:
    """Return the versions of backends that differ between two entries of the new format: ``CUDNN 9.10.0 -> 9.19.0``.

    The loaded versions come from the cache entry, and the present versions from XLA's tuning log. If a version of the
    choices' backend is missing in either, the value of XLA's entry has it.
    """
    loaded_versions = dict(loaded.cache_entry.versions.libraries)
    present_versions = dict(versions)
    loaded_value = loaded.xla_entry.message.value
    present_value = memory_entry.message.value
    config = loaded_value.optimal_config
    if config.backend == present_value.optimal_config.backend:
        backend = enum_name(config.DESCRIPTOR.fields_by_name["backend"], config.backend)
        loaded_versions.setdefault(backend, loaded_value.optimal_backend_version)
        present_versions.setdefault(backend, present_value.optimal_backend_version)
    differences = []
    for backend, present_version in sorted(present_versions.items()):
        # A version that the loaded entry does not have is not known to differ.
        loaded_version = loaded_versions.get(backend, present_version)
        if loaded_version != present_version:
            differences.append(f"{backend} {_shorten(loaded_version)} -> {_shorten(present_version)}")
    return differences


def _list_legacy_changes(loaded: XlaEntry, memory_entry: XlaEntry) -> Iterator[str]:
    """Yield the versions that differ between two entries of the legacy format: ``cuDNN 9.10.0 -> 9.19.0``."""
    loaded_cudnn = split_description(loaded.device)[1]
    present_cudnn = split_description(memory_entry.device)[1]
    if loaded_cudnn != present_cudnn:
        yield f"cuDNN {loaded_cudnn or '?'} -> {present_cudnn or '?'}"
    if loaded.message.version != memory_entry.message.version:
        yield f"XLA's entry version {loaded.message.version or '?'} -> {memory_entry.message.version}"


def _shorten(version: str) -> str:
    """Return a version in short. Some backends have a digest as their version, of which 12 digits are enough."""
    if re.fullmatch("[0-9a-f]{16,}", version):
        return version[:12]
    return version


def _describe_other_device(same_hlo: list[LoadedEntry], memory_entry: XlaEntry, device: Device) -> str:
    """Return the reason of a mismatch: the loaded entries for this HLO are of other devices.

    :param same_hlo: the loaded entries.
    :param device: the device of the compilation, as pytest-autotune names it.
    """
    loaded_devices = sorted({str(loaded.cache_entry.problem.device) for loaded in same_hlo})
    if loaded_devices != [str(device)]:
        return f"tuned on {', '.join(loaded_devices)}, but this run is on {device}"
    # pytest-autotune gives both devices the same name, but XLA's descriptions differ, for example in the clock rate.
    loaded_parts = split_description(same_hlo[0].xla_entry.device)[0].split(", ")
    present_parts = split_description(memory_entry.device)[0].split(", ")
    differences = []
    for loaded_part, present_part in zip(loaded_parts, present_parts, strict=False):
        if loaded_part != present_part:
            differences.append(f"{loaded_part} -> {present_part}")
    return f"XLA tells this {device.name} from the one it was tuned on: {', '.join(differences)}"


def _describe_layout(layout: XlaLayout) -> str:
    """Return the word for a format, with the versions of JAX that write it."""
    if layout is XlaLayout.NEW:
        return f"{layout.value} (jax >= 0.11.2)"
    return f"{layout.value} (jax <= 0.11.1)"
