"""The reports of many pytest processes: reading a folder of them, and rebuilding the result of all together.

``pytest-autotune gate`` judges that result by :func:`pytest_autotune.report.gate.judge`, as a process judges its own.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import error_message
from pytest_autotune.report.json_report import FORMAT_VERSION
from pytest_autotune.run.ci_run import CiRun
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import Lookup, Policy
from pytest_autotune.run.process_record import ProcessRecord, decode_record
from pytest_autotune.run.result import RunRequest, RunResult
from pytest_autotune.run.settle import (
    EndedRun,
    InitialCaches,
    build_result,
    find_unused_entries,
    keep_entries,
    settle_lookups,
)


@dataclass(frozen=True)
class LoadedCache:
    """A cache that a process loaded.

    :param digest: of its bytes; empty for a URL.
    """

    path: str
    digest: str


@dataclass(frozen=True)
class ProcessReport:
    """The JSON report of one process.

    :param path: of the report, for messages.
    :param error: why the report cannot be used, in words; empty if it can.
    :param record: None if the report cannot be used.
    :param no_part_reason: why the process took no part; empty if it took part.
    """

    path: str
    ci_run: CiRun = field(default_factory=CiRun)
    error: str = ""
    loaded: tuple[LoadedCache, ...] = ()
    record: ProcessRecord | None = None
    no_part_reason: str = ""

    @property
    def retry_key(self) -> tuple[str, str, str]:
        """Equal for a process and its repetition in a later attempt: job, command and folder."""
        return self.ci_run.job, self.ci_run.command, self.ci_run.folder


def list_report_files(folder: str) -> list[Path]:
    """Return the JSON files in a folder and in its subfolders, sorted.

    :raises CacheError: if there is no such folder.
    """
    if not os.path.isdir(folder):
        raise CacheError(folder, "is no folder", "name the folder of --autotune-report=FOLDER/")
    return sorted(Path(folder).rglob("*.json"))


def read_process_report(path: Path) -> ProcessReport:
    """Return the report in a file. A file that is no report of an ended process has an error."""
    name = str(path)
    try:
        report = json.loads(path.read_bytes())
        if report["format_version"] != FORMAT_VERSION:
            return ProcessReport(name, error=f"has the unknown format_version {report['format_version']}")
        ci_run = CiRun(**report["run"])
        if not report["finished"]:
            return ProcessReport(name, ci_run, error="the process has not ended: it was killed, or is still running")
        loaded = tuple(LoadedCache(str(cache["path"]), str(cache["digest"])) for cache in report["loaded"])
        return ProcessReport(name, ci_run, "", loaded, decode_record(report), str(report["took_no_part"]))
    except OSError as error:
        return ProcessReport(name, error=f"cannot be read: {error.strerror or error}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        words = f"{type(error).__name__}: {error_message(error)}"
        return ProcessReport(name, error=f"is no report of a process, or is damaged ({words})")


def without_repeated(reports: Sequence[ProcessReport]) -> list[ProcessReport]:
    """Return the reports without those of processes that a later attempt of the CI run repeated.

    Several processes of an attempt may have one command. A later attempt with fewer processes then leaves open which of
    them it repeated, so all reports stay.
    """
    attempts_by_key: defaultdict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
    for report in reports:
        attempts_by_key[report.retry_key][report.ci_run.attempt] += 1
    kept = []
    for report in reports:
        attempts = attempts_by_key[report.retry_key]
        latest = max(attempts)
        if report.ci_run.attempt == latest or attempts[latest] < attempts[report.ci_run.attempt]:
            kept.append(report)
    return kept


def build_joint_result(reports: Sequence[ProcessReport], initial: InitialCaches, suite_error: str = "") -> RunResult:
    """Return the result that one process would have had that ran the tests of all processes.

    :param reports: of the processes that took part.
    :param initial: the caches that the processes loaded.
    :param suite_error: why the processes are not known to be the whole suite; empty if they are.
    """
    records = {report.path: report.record for report in reports if report.record is not None}
    collected = _join_collected(records, suite_error)
    policies = [record.request.policy for record in records.values()]
    request = _join_requests([record.request for record in records.values()])
    run = EndedRun(initial, collected, request)
    settled = settle_lookups(run)
    # An entry that one process ignores may be what another process leaves unused.
    all_ignored = dict.fromkeys(glob for policy in policies for glob in policy.ignore)
    cautious_policy = replace(request.policy, ignore=tuple(all_ignored))
    cautious_run = replace(run, request=replace(request, policy=cautious_policy))
    unused_entries = find_unused_entries(cautious_run, settled)
    kept = keep_entries(run, settled, unused_entries, initial.dump_cache)
    return build_result(run, settled, unused_entries, kept)


def _join_collected(records: Mapping[str, ProcessRecord], suite_error: str) -> Collected:
    """Return the reports of all processes as those of one.

    :param records: by the path of their report.
    """
    lookups: list[Lookup] = []
    test_counts: Counter[str] = Counter()
    joined = Collected(incomplete_reason=suite_error)
    for path, record in records.items():
        collected = record.collected
        for lookup in collected.lookups:
            lookups.append(replace(lookup, process=f"{path}/{lookup.process}"))
        test_counts.update(collected.test_counts)
        # Optional caches may be out of reach: no gate of their process fails for that.
        unhooked = () if record.is_optional else collected.unhooked
        incomplete_reason = joined.incomplete_reason
        if collected.not_passed_reason and not incomplete_reason:
            incomplete_reason = f"{path}: {collected.not_passed_reason}"
        joined = replace(
            joined,
            incomplete_reason=incomplete_reason,
            mode_events=joined.mode_events + collected.mode_events,
            crashed_workers=joined.crashed_workers + collected.crashed_workers,
            notes=_join(joined.notes, collected.notes),
            untracked=_join(joined.untracked, collected.untracked),
            unhooked=joined.unhooked + unhooked,
            versions={**joined.versions, **collected.versions},
            imported_kernels=_join(joined.imported_kernels, collected.imported_kernels),
            hypothesis_tests=_join(joined.hypothesis_tests, collected.hypothesis_tests),
            disabled_tests=_join(joined.disabled_tests, collected.disabled_tests),
        )
    all_unhooked = tuple(sorted(set(joined.unhooked)))
    return replace(joined, lookups=tuple(lookups), test_counts=test_counts, unhooked=all_unhooked)


def _join(texts: Iterable[str], more_texts: Iterable[str]) -> tuple[str, ...]:
    """Return all texts, each once."""
    return tuple(dict.fromkeys([*texts, *more_texts]))


def _join_requests(requests: Sequence[RunRequest]) -> RunRequest:
    """Return the wishes of all processes as those of one.

    A tuner counts as left out, or without adapter, if that would fail the gate of one of the processes.
    """
    if not requests:
        return RunRequest()
    first = requests[0]
    policy = _join_policies([request.policy for request in requests])
    adapters = first.adapters
    for request in requests[1:]:
        if adapters is None or request.adapters is None:
            adapters = adapters or request.adapters
        else:
            adapters = tuple(name for name in adapters if name in request.adapters)
    update_arguments = _find_shared_value([request.update_arguments for request in requests], "")
    named_by = first.tuners_named_by
    for request in requests:
        if request.policy.tuners:
            named_by = request.tuners_named_by
    return RunRequest(update_arguments=update_arguments, policy=policy, tuners_named_by=named_by, adapters=adapters)


def _find_shared_value(values: Sequence[str], default: str) -> str:
    """Return the value that all processes share; the default if they have several."""
    if len(set(values)) == 1:
        return values[0]
    return default


def _join_policies(policies: Sequence[Policy]) -> Policy:
    """Return the policy of a process that acts on what any of the processes acts on."""
    first = policies[0]
    tuners: tuple[str, ...] | None = ()
    ignored = list(first.ignore)
    device_aliases: dict[str, str] = {}
    for policy in policies:
        if tuners is None or policy.tuners is None:
            tuners = None
        else:
            tuners = _join(tuners, policy.tuners)
        ignored = [glob for glob in ignored if glob in policy.ignore]
        device_aliases.update(policy.device_aliases)
    return Policy(
        on_miss=_find_shared_value([policy.on_miss for policy in policies], "tune"),
        on_stale=_find_shared_value([policy.on_stale for policy in policies], "tune"),
        tuners=tuners,
        ignore=tuple(ignored),
        device_aliases=device_aliases,
    )
