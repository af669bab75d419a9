"""The reports of many pytest processes: reads a folder of reports, and builds the joint result of the processes.

``pytest-autotune gate`` judges the joint result: see :mod:`pytest_autotune.report.process_gate`.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Versions
from pytest_autotune.cache.wording import error_message
from pytest_autotune.report.json_report import FORMAT_VERSION
from pytest_autotune.run.ci_run import CiRun
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.finish import finish_run
from pytest_autotune.run.lookup import Lookup, Policy
from pytest_autotune.run.process_record import ProcessRecord, decode_record
from pytest_autotune.run.request import RunRequest
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.settle import EndedRun, InitialCaches, settle_run


@dataclass(frozen=True)
class LoadedCache:
    """A cache that a process loaded.

    :param digest: the digest of the cache's bytes; empty for a URL.
    """

    path: str
    digest: str


@dataclass(frozen=True)
class ProcessReport:
    """The JSON report of one process.

    :param path: the path of the report, for messages.
    :param error: why the report cannot be used, in words; empty for a usable report.
    :param loaded: the caches that the process loaded.
    :param record: the lookups and options of the process; None if the report cannot be used.
    :param no_part_reason: the library or GPU that the process lacked, so that it could not use its optional caches;
        empty if it could.
    """

    path: str
    ci_run: CiRun = field(default_factory=CiRun)
    error: str = ""
    loaded: tuple[LoadedCache, ...] = ()
    record: ProcessRecord | None = None
    no_part_reason: str = ""

    @property
    def retry_key(self) -> tuple[str, str, str]:
        """The job, command and folder. They are equal if a later attempt of a CI run repeats the process."""
        return self.ci_run.job, self.ci_run.command, self.ci_run.folder


def list_report_files(folder: str) -> list[Path]:
    """Return the JSON files in a folder and in its subfolders, sorted.

    :raises CacheError: if there is no such folder.
    """
    if not os.path.isdir(folder):
        raise CacheError(folder, "is no folder", "name the folder of --autotune-report=FOLDER/")
    return sorted(Path(folder).rglob("*.json"))


def read_process_report(path: Path) -> ProcessReport:
    """Return the report in a file. For a file that is no report of an ended process, ``error`` of the report is set."""
    name = str(path)
    try:
        report = json.loads(path.read_bytes())
        if report["format_version"] != FORMAT_VERSION:
            return ProcessReport(name, error=f"has the unknown format_version {report['format_version']}")
        ci_run = CiRun(**report["run"])
        if not report["finished"]:
            return ProcessReport(name, ci_run, error="the process has not ended: it was killed, or is still running")
        loaded = []
        for cache in report["loaded"]:
            loaded.append(LoadedCache(str(cache["path"]), str(cache["digest"])))
        return ProcessReport(
            name,
            ci_run,
            loaded=tuple(loaded),
            record=decode_record(report),
            no_part_reason=str(report["took_no_part"]),
        )
    except OSError as error:
        return ProcessReport(name, error=f"cannot be read: {error.strerror or error}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        words = f"{type(error).__name__}: {error_message(error)}"
        return ProcessReport(name, error=f"is no report of a process, or is damaged ({words})")


def without_repeated(reports: Sequence[ProcessReport]) -> list[ProcessReport]:
    """Return the reports, except the reports of processes that a later attempt of the CI run repeated.

    Several processes of an attempt may have the same job, command and folder. If the latest attempt has fewer of these
    processes than an earlier attempt, nobody knows which of them were repeated. The reports of both attempts are then
    kept.
    """
    #: Retry key -> number of an attempt -> the number of reports.
    report_counts: defaultdict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
    for report in reports:
        report_counts[report.retry_key][report.ci_run.attempt] += 1
    kept = []
    for report in reports:
        count_by_attempt = report_counts[report.retry_key]
        latest_attempt = max(count_by_attempt)
        is_latest = report.ci_run.attempt == latest_attempt
        is_repeated = count_by_attempt[latest_attempt] >= count_by_attempt[report.ci_run.attempt]
        if is_latest or not is_repeated:
            kept.append(report)
    return kept


def build_joint_result(reports: Sequence[ProcessReport], initial: InitialCaches, suite_error: str = "") -> RunResult:
    """Return the result that a single process would have if it ran the tests of all processes.

    :param reports: the reports of the processes that took part.
    :param initial: the caches that the processes loaded.
    :param suite_error: why the processes may be only a part of the suite; empty if they ran the whole suite.
    """
    records = {report.path: report.record for report in reports if report.record is not None}
    run = join_processes(records, initial, suite_error)
    return finish_run(settle_run(run), initial.dump_cache)


def join_processes(records: Mapping[str, ProcessRecord], initial: InitialCaches, suite_error: str = "") -> EndedRun:
    """Return the run of all processes as if it was the run of a single process.

    :param records: the records by the path of their report. The other parameters: see :func:`build_joint_result`.
    """
    requests = [record.request for record in records.values()]
    bypasses = tuple(record.bypass for record in records.values())
    return EndedRun(initial, _join_collected(records, suite_error), _join_requests(requests), bypasses)


def _join_collected(records: Mapping[str, ProcessRecord], suite_error: str) -> Collected:
    """Return the lookups and facts of all processes as those of a single process.

    Other facts keep their defaults, because they describe a single process. For example, a process may deselect tests
    that another process runs. If two processes have different versions of a library, the last process decides.

    :param records: the records by the path of their report.
    :param suite_error: why the processes may be only a part of the suite; empty if they ran the whole suite.
    """
    processes = [record.collected for record in records.values()]
    test_counts: Counter[str] = Counter()
    versions: dict[str, Versions] = {}
    for collected in processes:
        test_counts.update(collected.test_counts)
        versions.update(collected.versions)
    return Collected(
        lookups=_join_lookups(records),
        mode_events=tuple(chain.from_iterable([collected.mode_events for collected in processes])),
        crashed_workers=tuple(chain.from_iterable([collected.crashed_workers for collected in processes])),
        incomplete_reason=suite_error or _find_incomplete_process(records),
        test_counts=test_counts,
        notes=_join_texts([collected.notes for collected in processes]),
        untracked=_join_texts([collected.untracked for collected in processes]),
        unhooked=_join_unhooked(records.values()),
        versions=versions,
        imported_kernels=_join_texts([collected.imported_kernels for collected in processes]),
        hypothesis_tests=_join_texts([collected.hypothesis_tests for collected in processes]),
        disabled_tests=_join_texts([collected.disabled_tests for collected in processes]),
    )


def _join_lookups(records: Mapping[str, ProcessRecord]) -> tuple[Lookup, ...]:
    """Return the lookups of all processes. The name of each process begins with the path of its report: ``a.json/gw0``.

    Without the path, the worker ``gw0`` of one pytest run would be the same process as the ``gw0`` of another run.
    """
    lookups = []
    for path, record in records.items():
        for lookup in record.collected.lookups:
            lookups.append(replace(lookup, process=f"{path}/{lookup.process}"))
    return tuple(lookups)


def _find_incomplete_process(records: Mapping[str, ProcessRecord]) -> str:
    """Return the first process whose tests may need other entries, with the reason: ``a.json: t.py::test_a failed``.

    The text is empty if there is no such process.
    """
    for path, record in records.items():
        reason = record.collected.not_passed_reason or record.collected.bypass_reason
        if reason:
            return f"{path}: {reason}"
    return ""


def _join_unhooked(records: Iterable[ProcessRecord]) -> tuple[tuple[str, str], ...]:
    """Return (tuner, why it could not be hooked) for the tuners that a process needed, sorted."""
    unhooked: set[tuple[str, str]] = set()
    for record in records:
        # A process that loads only optional caches may lack their tuners. Its own gate ignores such tuners, too.
        if not record.is_optional:
            unhooked.update(record.collected.unhooked)
    return tuple(sorted(unhooked))


def _join_texts(lists: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return the texts of several lists, each text once, in their order."""
    joined: dict[str, None] = {}
    for texts in lists:
        joined.update(dict.fromkeys(texts))
    return tuple(joined)


def _join_requests(requests: Sequence[RunRequest]) -> RunRequest:
    """Return the requests of all processes as the request of a single process."""
    if not requests:
        return RunRequest()
    return RunRequest(
        # A command to update the cache is a good hint only if it fits every process.
        update_arguments=_find_shared_value([request.update_arguments for request in requests], ""),
        policy=_join_policies([request.policy for request in requests]),
        tuners_named_by=_find_naming_option(requests),
        adapters=_select_shared_adapters(requests),
    )


def _find_naming_option(requests: Sequence[RunRequest]) -> str:
    """Return the option that limits the tuners of a process: ``--autotune-tuners=triton``. The last process decides."""
    naming_option = requests[0].tuners_named_by
    for request in requests:
        if request.policy.tuners:
            naming_option = request.tuners_named_by
    return naming_option


def _select_shared_adapters(requests: Sequence[RunRequest]) -> tuple[str, ...] | None:
    """Return the tuners for which every process has an adapter; None if no process has listed its adapters.

    If a process had no adapter for a tuner, its lookups could not reach the entries of this tuner. The gate fails for
    such entries.
    """
    shared: tuple[str, ...] | None = None
    for request in requests:
        adapters = request.adapters
        if adapters is None:
            # This process has not listed its adapters.
            continue
        if shared is None:
            # This is the first process with a list.
            shared = adapters
        else:
            shared = tuple(name for name in shared if name in adapters)
    return shared


def _find_shared_value(values: Sequence[str], default: str) -> str:
    """Return the value that all processes share; the default if their values differ."""
    if len(set(values)) == 1:
        return values[0]
    return default


def _join_policies(policies: Sequence[Policy]) -> Policy:
    """Return the policy that a single process would need to act on every kernel on which any process acts.

    - It names the tuners of all policies, and ignores only the kernels that every policy ignores.
    - It fails tests for misses or stale problems only if all policies do. Otherwise such problems are tuned.
    - If two policies give a device different aliases, the alias of the last policy counts.
    """
    device_aliases: dict[str, str] = {}
    for policy in policies:
        device_aliases.update(policy.device_aliases)
    return Policy(
        on_miss=_find_shared_value([policy.on_miss for policy in policies], "tune"),
        on_stale=_find_shared_value([policy.on_stale for policy in policies], "tune"),
        tuners=_join_tuners(policies),
        ignore=_select_shared_globs(policies),
        device_aliases=device_aliases,
    )


def _join_tuners(policies: Sequence[Policy]) -> tuple[str, ...] | None:
    """Return the tuners of all policies. None means all tuners, so it is the result if any policy has None."""
    tuner_lists = []
    for policy in policies:
        if policy.tuners is None:
            return None
        tuner_lists.append(policy.tuners)
    return _join_texts(tuner_lists)


def _select_shared_globs(policies: Sequence[Policy]) -> tuple[str, ...]:
    """Return the globs of ``autotune_ignore`` that all policies have."""
    shared = policies[0].ignore
    for policy in policies[1:]:
        shared = tuple(glob for glob in shared if glob in policy.ignore)
    return shared
