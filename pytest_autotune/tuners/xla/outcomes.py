"""What became of the entries that XLA was offered: hit, stale, mismatch or miss, and why.

XLA looks up inside itself and reports to nobody. But what it was offered in a folder it only takes into its memory
where it uses it, and it writes its memory down after each compilation. So an entry of that memory that is, value and
all, one that was loaded is a hit; every other one XLA chose itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pytest_autotune.cache.model import Device, Entry
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.tuners.xla.entries import split_description, to_xla, word
from pytest_autotune.tuners.xla.files import XlaEntry, XlaLayout

_UNCHANGED = "XLA could not use the choice, or had tuned before it was offered"


@dataclass(frozen=True)
class Offered:
    """One entry that was offered to XLA."""

    ours: Entry
    xla: XlaEntry


class LoadedEntries:
    """The loaded entries of XLA, those that take precedence first, by what they are of."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = [Offered(entry, to_xla(entry)) for entry in entries]
        self._of: dict[tuple[XlaLayout, str], list[Offered]] = {}
        for loaded in self.entries:
            self._of.setdefault((loaded.xla.layout, loaded.xla.hlo), []).append(loaded)

    def judge(self, chosen: XlaEntry, device: Device, versions: Mapping[str, str]) -> tuple[Outcome, str, Entry | None]:
        """The outcome of what XLA has chosen, by what it was offered; the reason; our entry for its HLO and device."""
        same_hlo = self._of.get((chosen.layout, chosen.hlo), [])
        here = [loaded for loaded in same_hlo if same_device(loaded.xla, chosen)]
        for loaded in here:
            if _same_value(loaded.xla, chosen):
                return Outcome.HIT, "", loaded.ours
        if here:
            return Outcome.STALE, _what_changed(here[0], chosen, versions), here[0].ours
        if same_hlo:
            return Outcome.MISMATCH, _other_device(same_hlo, chosen, device), None
        others = {loaded.xla.layout for loaded in self.entries}
        if others and chosen.layout not in others:
            return Outcome.MISS, f"no entry; those that are loaded are of XLA's {_word(others.pop())} format", None
        return Outcome.MISS, "no entry for this HLO: new or changed code", None


def same_device(one: XlaEntry, other: XlaEntry) -> bool:
    """Whether XLA takes both for entries of one type of device, whatever the version of cuDNN."""
    return split_description(one.device)[0] == split_description(other.device)[0]


def _same_value(loaded: XlaEntry, chosen: XlaEntry) -> bool:
    # The new format also takes an entry of another codegen version while its own backend's version is the
    # same; that version is a part of the value.
    if chosen.layout is XlaLayout.NEW:
        return bool(loaded.message.value == chosen.message.value)
    return loaded.identity == chosen.identity and _without_time(loaded) == _without_time(chosen)


def _without_time(entry: XlaEntry) -> bytes:
    result = type(entry.message.result)()
    result.CopyFrom(entry.message.result)
    result.ClearField("run_time")
    return bytes(result.SerializeToString(deterministic=True))


def _what_changed(loaded: Offered, chosen: XlaEntry, versions: Mapping[str, str]) -> str:
    if chosen.layout is XlaLayout.LEGACY:
        return ", ".join(_legacy_changes(loaded.xla, chosen)) or _UNCHANGED
    if loaded.xla.message.key.environment == chosen.message.key.environment:
        return _UNCHANGED
    then = dict(loaded.ours.versions.libraries)
    theirs, mine = loaded.xla.message.value, chosen.message.value
    if theirs.optimal_config.backend == mine.optimal_config.backend:
        config = theirs.optimal_config
        name = word(config.DESCRIPTOR.fields_by_name["backend"], config.backend)
        then.setdefault(name, theirs.optimal_backend_version)
        versions = {name: mine.optimal_backend_version, **versions}
    changed = [name for name, now in sorted(versions.items()) if then.get(name, now) != now]
    differences = ", ".join(f"{name} {_short(then[name])} -> {_short(versions[name])}" for name in changed)
    return f"XLA codegen changed: {differences}" if differences else "XLA codegen changed"


def _legacy_changes(loaded: XlaEntry, chosen: XlaEntry) -> Iterator[str]:
    then, now = (split_description(entry.device)[1] for entry in (loaded, chosen))
    if then != now:
        yield f"cuDNN {then or '?'} -> {now or '?'}"
    old, new = loaded.message.version, chosen.message.version
    if old != new:
        yield f"XLA's entry version {old or '?'} -> {new}"


def _short(version: str) -> str:
    return version[:12] if re.fullmatch("[0-9a-f]{16,}", version) else version


def _other_device(same_hlo: list[Offered], chosen: XlaEntry, device: Device) -> str:
    others = sorted({str(loaded.ours.problem.device) for loaded in same_hlo})
    if others != [str(device)]:
        return f"tuned on {', '.join(others)}, running on {device}"
    then, now = (split_description(entry.device)[0].split(", ") for entry in (same_hlo[0].xla, chosen))
    differing = ", ".join(f"{a} -> {b}" for a, b in zip(then, now, strict=False) if a != b)
    return f"XLA tells this {device.name} from the one it was tuned on: {differing}"


def _word(layout: XlaLayout) -> str:
    return f"{layout.value} (jax {'>= 0.11.2' if layout is XlaLayout.NEW else '<= 0.11.1'})"
