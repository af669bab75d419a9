"""Decides the outcome of XLA's lookups: hit, stale, mismatch or miss, with the reason.

XLA looks up choices inside itself and reports nothing. But it takes an entry of the loaded folder into its memory only
if it uses the entry, and it writes its memory into a file after each compilation. So an entry of its memory that equals
a loaded entry, including the value, is a hit. XLA chose every other entry itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pytest_autotune.cache.model import Device, Entry
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.tuners.xla.entries import enum_name, split_description, to_xla
from pytest_autotune.tuners.xla.files import XlaEntry, XlaLayout

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

    def judge(self, chosen: XlaEntry, device: Device, versions: Mapping[str, str]) -> XlaAnswer:
        """Return the outcome of a lookup.

        :param chosen: the entry of XLA's memory after a compilation.
        :param device: the device of the compilation.
        :param versions: XLA's names of its backends, with their versions now.
        """
        same_hlo = self._by_hlo.get((chosen.layout, chosen.hlo), [])
        same_device = [loaded for loaded in same_hlo if is_same_device(loaded.xla_entry, chosen)]
        for loaded in same_device:
            if _has_same_value(loaded.xla_entry, chosen):
                return XlaAnswer(Outcome.HIT, "", loaded.cache_entry)
        if same_device:
            reason = _describe_change(same_device[0], chosen, versions)
            return XlaAnswer(Outcome.STALE, reason, same_device[0].cache_entry)
        if same_hlo:
            return XlaAnswer(Outcome.MISMATCH, _describe_other_device(same_hlo, chosen, device))
        layouts = {loaded.xla_entry.layout for loaded in self.entries}
        if layouts and chosen.layout not in layouts:
            reason = f"no entry; those that are loaded are of XLA's {_describe_layout(layouts.pop())} format"
            return XlaAnswer(Outcome.MISS, reason)
        return XlaAnswer(Outcome.MISS, "no entry for this HLO: new or changed code")


def is_same_device(one: XlaEntry, other: XlaEntry) -> bool:
    """Whether two entries are of one type of device, whatever the version of cuDNN."""
    return split_description(one.device)[0] == split_description(other.device)[0]


def _has_same_value(loaded: XlaEntry, chosen: XlaEntry) -> bool:
    """Whether XLA's choice is the loaded one.

    In the new format XLA also uses an entry of another codegen version, if the version of the entry's backend is the
    same. That version is a part of the value.
    """
    if chosen.layout is XlaLayout.NEW:
        return bool(loaded.message.value == chosen.message.value)
    return loaded.identity == chosen.identity and _without_time(loaded) == _without_time(chosen)


def _without_time(entry: XlaEntry) -> bytes:
    result = type(entry.message.result)()
    result.CopyFrom(entry.message.result)
    result.ClearField("run_time")
    return bytes(result.SerializeToString(deterministic=True))


def _describe_change(loaded: LoadedEntry, chosen: XlaEntry, versions: Mapping[str, str]) -> str:
    """Return the reason why XLA did not use a loaded entry for the same HLO and device."""
    if chosen.layout is XlaLayout.LEGACY:
        return ", ".join(_list_legacy_changes(loaded.xla_entry, chosen)) or _UNCHANGED
    if loaded.xla_entry.message.key.environment == chosen.message.key.environment:
        return _UNCHANGED
    loaded_versions = dict(loaded.cache_entry.versions.libraries)
    loaded_value, chosen_value = loaded.xla_entry.message.value, chosen.message.value
    config = loaded_value.optimal_config
    if config.backend == chosen_value.optimal_config.backend:
        backend = enum_name(config.DESCRIPTOR.fields_by_name["backend"], config.backend)
        loaded_versions.setdefault(backend, loaded_value.optimal_backend_version)
        versions = {backend: chosen_value.optimal_backend_version, **versions}
    differences = []
    for name, version in sorted(versions.items()):
        loaded_version = loaded_versions.get(name, version)
        if loaded_version != version:
            differences.append(f"{name} {_shorten(loaded_version)} -> {_shorten(version)}")
    if not differences:
        return "XLA codegen changed"
    return f"XLA codegen changed: {', '.join(differences)}"


def _list_legacy_changes(loaded: XlaEntry, chosen: XlaEntry) -> Iterator[str]:
    """Yield the differences between two entries of the legacy format for the same HLO and device."""
    loaded_cudnn = split_description(loaded.device)[1]
    chosen_cudnn = split_description(chosen.device)[1]
    if loaded_cudnn != chosen_cudnn:
        yield f"cuDNN {loaded_cudnn or '?'} -> {chosen_cudnn or '?'}"
    if loaded.message.version != chosen.message.version:
        yield f"XLA's entry version {loaded.message.version or '?'} -> {chosen.message.version}"


def _shorten(version: str) -> str:
    """Return a version; of a long digest its first 12 digits."""
    return version[:12] if re.fullmatch("[0-9a-f]{16,}", version) else version


def _describe_other_device(same_hlo: list[LoadedEntry], chosen: XlaEntry, device: Device) -> str:
    """Return the reason of a mismatch: the loaded entries for this HLO are of other devices."""
    loaded_devices = sorted({str(loaded.cache_entry.problem.device) for loaded in same_hlo})
    if loaded_devices != [str(device)]:
        return f"tuned on {', '.join(loaded_devices)}, running on {device}"
    loaded_parts = split_description(same_hlo[0].xla_entry.device)[0].split(", ")
    chosen_parts = split_description(chosen.device)[0].split(", ")
    differences = []
    for loaded_part, chosen_part in zip(loaded_parts, chosen_parts, strict=False):
        if loaded_part != chosen_part:
            differences.append(f"{loaded_part} -> {chosen_part}")
    return f"XLA tells this {device.name} from the one it was tuned on: {', '.join(differences)}"


def _describe_layout(layout: XlaLayout) -> str:
    """Return the word for a format, with the versions of JAX that write it."""
    if layout is XlaLayout.NEW:
        return f"{layout.value} (jax >= 0.11.2)"
    return f"{layout.value} (jax <= 0.11.1)"
