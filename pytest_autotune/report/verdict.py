"""The verdict on a run, and facts about the run, for reports that are files. The terminal shows neither."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_autotune.cache.model import Versions
from pytest_autotune.cache.wording import describe_count, join_nonempty
from pytest_autotune.report.summary import NO_LOOKUPS, join_count_lines
from pytest_autotune.run.result import RunResult


@dataclass(frozen=True)
class RunVerdict:
    """Whether a run passed.

    :param state: ``"passed"``, ``"failed"`` or ``"unjudged"``.
    :param reason: why the run has this state. Reports begin with it.
    """

    state: str
    reason: str


def build_verdict(result: RunResult) -> RunVerdict:
    """Return the verdict on a run: the first of these rules that applies.

    1. A run with a failure has failed.
    2. A run with a gate that judged nothing is unjudged, unless the run wrote its dump.
    3. A run whose gate judged its misses has passed.
    4. A run without such a gate has passed if its tests asked for kernels and an update has nothing to do.
    5. Any other run is unjudged.
    """
    miss_gate = result.gate
    if result.failures:
        return RunVerdict("failed", "; ".join(result.failures))
    # The purpose of a run that writes a dump is the dump. Its counts say more than a gate that judged nothing.
    has_written_dump = result.dump is not None and bool(result.dump.written_to)
    # A gate that judged nothing has a reason for it. Modes such as --autotune-verify have gates of their own.
    skip_reasons = []
    for gate in result.gates:
        if gate.skip_reason:
            skip_reasons.append(gate.skip_reason)
    if skip_reasons and not has_written_dump:
        return RunVerdict("unjudged", "; ".join(skip_reasons))
    has_judged_misses = bool(miss_gate.limit) and not miss_gate.skip_reason
    if has_judged_misses:
        return RunVerdict("passed", f"within the limit of {miss_gate.limit} misses")
    counts = join_count_lines(result) or NO_LOOKUPS
    # The rows to update are the problems that an update would tune and write.
    if result.rows and not result.rows_to_update:
        return RunVerdict("passed", counts)
    return RunVerdict("unjudged", counts)


def list_facts(result: RunResult) -> list[tuple[str, str]]:
    """Return facts about the run as (title, text), such as ``("Loaded", "cache.pb (12 entries)")``."""
    facts = []
    for device in result.devices:
        facts.append(("Device", str(device)))
    for path, entry_count in result.loaded:
        facts.append(("Loaded", f"{path} ({describe_count(entry_count, 'entry')})"))
    if result.dump is not None and result.dump.written_to:
        counts = describe_count(len(result.merged.cache.entries), "entry")
        if result.merged.counts_text:
            # The numbers of changed entries: 2 added, 1 changed.
            counts += f": {result.merged.counts_text}"
        facts.append(("Written", f"{result.dump.written_to} ({counts})"))
    versions = _join_versions(result.collected.versions.values())
    if versions:
        facts.append(("Versions", versions))
    for section in result.sections:
        if section.lines:
            title = section.name.replace("_", " ").capitalize()
            facts.append((title, join_nonempty("; ", section.typed_value, *section.lines)))
    if result.collected.incomplete_reason:
        facts.append(("Incomplete run", result.collected.incomplete_reason))
    return facts


def _join_versions(all_versions: Iterable[Versions]) -> str:
    """Return the versions of all tuners' libraries, each once: ``cutlass 4.8, torch 2.13.0, triton 3.7.1``."""
    libraries: set[tuple[str, str]] = set()
    for versions in all_versions:
        libraries.update(versions.libraries)
    return str(Versions(tuple(sorted(libraries))))
