"""The JSON reports of many pytest processes: reads them from a folder, and builds the joint result of the processes.

A CI run may start pytest many times, for example once for each shard of a suite. Each of these processes writes a
report with ``--autotune-report=FOLDER/``. A report has a record of the process: its lookups and its options. The joint
result is the result that a single process would have if it ran the tests of all processes.

``pytest-autotune gate`` judges the joint result: see :mod:`pytest_autotune.report.process_gate`. ``pytest-autotune
prune`` uses the joint run to find unused entries.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Versions
from pytest_autotune.cache.wording import error_message
from pytest_autotune.report.json_report import FORMAT_VERSION
from pytest_autotune.run.ci_run import CiRun
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.finish import finish_run
from pytest_autotune.run.lookup import Lookup, Policy
from pytest_autotune.run.process_record import ProcessRecord, decode_record, read_text
from pytest_autotune.run.request import RunRequest
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.settle import EndedRun, InitialCaches, settle_run

#: The error of a report that was begun and not ended. Pytest refuses, for example, a path that does not exist.
_NOT_ENDED = "the process has not ended: it was killed, pytest refused its arguments, or it is still running"


@dataclass(frozen=True)
class LoadedCache:
    """A cache that a process loaded.

    :param path: as the user typed it for that process.
    :param digest: the digest of the cache's bytes; empty for a URL.
    """

    path: str
    digest: str


def may_be_same_file(path: str, other_path: str) -> bool:
    """Whether two paths or URLs may name one file, seen from different folders: the shorter is the end of the longer.

    This is so for ``tests/a.pb`` and ``/ci/tests/a.pb``, but not for ``tests/a.pb`` and ``b/a.pb``.
    """
    name_pairs = zip(_list_names_backwards(path), _list_names_backwards(other_path), strict=False)
    return all(name == other_name for name, other_name in name_pairs)


def _list_names_backwards(path: str) -> list[str]:
    """Return the names in a path or URL, the last first: ``["a.pb", "tests"]`` for ``../tests/a.pb?optional``."""
    names = path.partition("?")[0].split("/")
    return [name for name in reversed(names) if name not in ("", ".", "..")]


class RetryKey(NamedTuple):
    """The facts that stay equal if CI repeats a process in a later attempt of the same CI run.

    :param job: the name of the CI job.
    :param command: the command line of the process.
    :param folder: the folder in which the command ran; see :class:`~pytest_autotune.run.ci_run.CiRun`.
    :param report_folder: the folder of the report. It tells processes apart that have one command.
    """

    job: str
    command: str
    folder: str
    report_folder: str


@dataclass(frozen=True)
class ProcessReport:
    """The JSON report of one process.

    :param path: the path of the report, for messages.
    :param ci_run: the CI run of the process, with the number of its attempt.
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
    def retry_key(self) -> RetryKey:
        """The facts that are equal in the report of a later attempt which repeats the process."""
        return RetryKey(self.ci_run.job, self.ci_run.command, self.ci_run.folder, os.path.dirname(self.path))


def list_report_files(folder: str) -> list[Path]:
    """Return the JSON files in a folder and in its subfolders, sorted.

    :raises CacheError: if there is no such folder.
    """
    if not os.path.isdir(folder):
        raise CacheError(folder, "is not a folder", "name the folder of --autotune-report=FOLDER/")
    return sorted(Path(folder).rglob("*.json"))


def read_process_report(path: Path) -> ProcessReport:
    """Read the report in a file. If the file is no report of an ended process, the field ``error`` says why."""
    name = str(path)
    # A damaged report may lack any field, or have a field of another type.
    try:
        report = json.loads(path.read_bytes())
        if report["format_version"] != FORMAT_VERSION:
            return ProcessReport(name, error=_describe_format_version(report["format_version"]))
        ci_run = _decode_ci_run(report["run"])
        if not report["finished"]:
            return ProcessReport(name, ci_run, error=_NOT_ENDED)
        loaded = []
        for cache in report["loaded"]:
            loaded.append(LoadedCache(read_text(cache, "path"), read_text(cache, "digest")))
        return ProcessReport(
            name,
            ci_run,
            loaded=tuple(loaded),
            record=decode_record(report),
            no_part_reason=read_text(report, "took_no_part"),
        )
    except OSError as error:
        return ProcessReport(name, error=f"cannot be read: {error.strerror or error}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        damage = f"{type(error).__name__}: {error_message(error)}"
        return ProcessReport(name, error=f"is not a JSON report of --autotune-report, or is damaged ({damage})")


def _describe_format_version(version: object) -> str:
    """Return the error of a report in a format that this version of the plugin does not know."""
    return f"has format_version {version}, not {FORMAT_VERSION} (use the same pytest-autotune in all jobs)"


def _decode_ci_run(fields: Mapping[str, object]) -> CiRun:
    """Return the CI run of a report.

    :raises TypeError: if a field is unknown or has another type than in :class:`CiRun`.
    """
    ci_run = CiRun(**fields)  # type: ignore[arg-type]
    for name, default in asdict(CiRun()).items():
        if type(getattr(ci_run, name)) is not type(default):
            raise TypeError(f"{name} of the CI run is {getattr(ci_run, name)!r}")
    return ci_run


def without_repeated(reports: Sequence[ProcessReport]) -> list[ProcessReport]:
    """Return the reports, except the reports of processes that a later attempt of the CI run repeated.

    Example: a job has failed in attempt 1 and is repeated in attempt 2. Its report of attempt 1 is left out.

    Several processes of an attempt may have the same job, command and folder, because an environment variable selects
    their tests. The folders of their reports tell them apart. A report in another folder never replaces a report: the
    process that has no report of its own may have died before it could write one.

    If such processes share the folder of their reports, and if the latest attempt has fewer of them than an earlier
    attempt, nobody knows which of them were repeated. The reports of both attempts are then kept.
    """
    #: Retry key -> number of an attempt -> the number of reports of this attempt.
    report_counts: defaultdict[RetryKey, Counter[int]] = defaultdict(Counter)
    for report in reports:
        report_counts[report.retry_key][report.ci_run.attempt] += 1
    kept_reports = []
    for report in reports:
        count_by_attempt = report_counts[report.retry_key]
        attempt = report.ci_run.attempt
        latest_attempt = max(count_by_attempt)
        are_all_repeated = count_by_attempt[latest_attempt] >= count_by_attempt[attempt]
        if attempt == latest_attempt or not are_all_repeated:
            kept_reports.append(report)
    return kept_reports


def build_joint_result(reports: Sequence[ProcessReport], initial: InitialCaches, suite_error: str = "") -> RunResult:
    """Return the result that a single process would have if it ran the tests of all processes.

    :param reports: the usable reports of the processes that took part.
    :param initial: the caches that the processes loaded.
    :param suite_error: why the processes may be only a part of the suite; empty if they ran the whole suite.
    """
    records = {report.path: report.record for report in reports if report.record is not None}
    run = join_processes(records, initial, suite_error)
    return finish_run(settle_run(run), initial.dump_cache)


def join_processes(records: Mapping[str, ProcessRecord], initial: InitialCaches, suite_error: str = "") -> EndedRun:
    """Return the runs of all processes as the run of a single process.

    :param records: path of a report -> the record of its process.
    :param initial: the caches that the processes loaded.
    :param suite_error: why the processes may be only a part of the suite; empty if they ran the whole suite.
    """
    collected = _join_collected(records, suite_error)
    request = _join_requests([record.request for record in records.values()])
    bypasses = tuple(record.bypass for record in records.values())
    return EndedRun(initial, collected, request, bypasses)


def _join_collected(records: Mapping[str, ProcessRecord], suite_error: str) -> Collected:
    """Return the lookups of all processes, and the facts about their tests, as those of a single process.

    The fields of :class:`Collected` that are not set here keep their defaults, because they have no meaning for several
    processes. For example, a process may deselect tests that another process runs.

    :param records: path of a report -> the record of its process.
    :param suite_error: why the processes may be only a part of the suite; empty if they ran the whole suite.
    """
    mode_events: list[Any] = []
    crashed_workers: list[str] = []
    #: Outcome of a test, such as "passed" -> the number of these tests.
    test_counts: Counter[str] = Counter()
    #: Library of a tuner, such as "triton" -> the versions that it ran with.
    versions: dict[str, Versions] = {}
    has_visible_gpu = False
    all_collected = [record.collected for record in records.values()]
    for collected in all_collected:
        mode_events += collected.mode_events
        crashed_workers += collected.crashed_workers
        # This method of a Counter adds the numbers.
        test_counts.update(collected.test_counts)
        # If two processes have different versions of a library, the last process decides.
        versions.update(collected.versions)
        has_visible_gpu = has_visible_gpu or collected.has_visible_gpu
    return Collected(
        lookups=_join_lookups(records),
        mode_events=tuple(mode_events),
        crashed_workers=tuple(crashed_workers),
        incomplete_reason=suite_error or _find_incomplete_process(records),
        test_counts=test_counts,
        versions=versions,
        has_visible_gpu=has_visible_gpu,
        unhooked=_join_unhooked(records.values()),
        missing_packages=_join_missing_packages(records.values()),
        notes=_join_texts(collected.notes for collected in all_collected),
        untracked=_join_texts(collected.untracked for collected in all_collected),
        imported_kernels=_join_texts(collected.imported_kernels for collected in all_collected),
        hypothesis_tests=_join_texts(collected.hypothesis_tests for collected in all_collected),
        disabled_tests=_join_texts(collected.disabled_tests for collected in all_collected),
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
    """Return the first process whose tests may need more entries than they asked for: ``a.json: t.py::test_a failed``.

    The text has the path of the report and the reason: a test did not pass, or it bypassed the tuners. It is empty if
    there is no such process.
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


def _join_missing_packages(records: Iterable[ProcessRecord]) -> tuple[tuple[str, str], ...]:
    """Return (tuner, the package of its library) for the packages that a process needed and had not, sorted."""
    missing_packages: set[tuple[str, str]] = set()
    for record in records:
        # As with tuners that could not be hooked, optional caches may lack their libraries.
        if not record.is_optional:
            missing_packages.update(record.collected.missing_packages)
    return tuple(sorted(missing_packages))


def _join_texts(lists: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return the texts of several lists, each text once, in their order."""
    joined: list[str] = []
    for texts in lists:
        joined += texts
    # A dictionary keeps the order of its keys and has each key once.
    return tuple(dict.fromkeys(joined))


def _join_requests(requests: Sequence[RunRequest]) -> RunRequest:
    """Return the requests of all processes as the request of a single process.

    A request has the user's options for the end of a run.
    """
    if not requests:
        return RunRequest()
    return RunRequest(
        # A command to update the cache is a good hint only if it fits every process.
        update_arguments=_find_shared_value([request.update_arguments for request in requests], ""),
        policy=_join_policies([request.policy for request in requests]),
        tuners_named_by=_find_naming_option(requests),
        adapters=_select_shared_adapters(requests),
        rerun_words="Re-run pytest",
    )


def _find_naming_option(requests: Sequence[RunRequest]) -> str:
    """Return the option that limits the tuners of a process: ``--autotune-tuners=triton``.

    If several processes have such an option, the last of them decides.
    """
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
    adapter_lists = [request.adapters for request in requests if request.adapters is not None]
    if not adapter_lists:
        return None
    shared_adapters = []
    for adapter in adapter_lists[0]:
        if all(adapter in adapters for adapters in adapter_lists):
            shared_adapters.append(adapter)
    return tuple(shared_adapters)


def _find_shared_value(values: Sequence[str], default: str) -> str:
    """Return the value that all processes share; the default if their values differ."""
    if len(set(values)) == 1:
        return values[0]
    return default


def _join_policies(policies: Sequence[Policy]) -> Policy:
    """Return the policy that a single process would need to act on every kernel on which any process acts.

    A policy has the options that decide about lookups.

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
    shared_globs = []
    for glob in policies[0].ignore:
        if all(glob in policy.ignore for policy in policies):
            shared_globs.append(glob)
    return tuple(shared_globs)
