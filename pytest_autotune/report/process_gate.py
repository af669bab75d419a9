"""The gate over many processes: whether their reports are all there, and whether the joint result passes.

The joint result is judged by :func:`pytest_autotune.report.gate.judge`. The functions here only look for reports that
are missing or of another run, and for processes that asked for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_autotune.cache.locations import is_url
from pytest_autotune.cache.model import Cache, Device
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.report.gate import Limit, describe_test_counts, judge
from pytest_autotune.report.naming import join_nonempty
from pytest_autotune.report.process_reports import LoadedCache, ProcessReport, build_joint_result
from pytest_autotune.run.process_record import ProcessRecord
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.section import Gate
from pytest_autotune.run.settle import InitialCaches


@dataclass(frozen=True)
class JudgedCache:
    """A cache that the processes should have loaded.

    :param path: as the user typed it.
    :param digest: of its bytes; empty for a URL.
    """

    path: str
    digest: str
    cache: Cache

    def is_loaded_as(self, loaded: LoadedCache) -> bool:
        """Whether a process loaded this cache: a file with the same bytes, or the store at the same URL."""
        if is_url(self.path):
            return _without_options(loaded.path) == _without_options(self.path)
        return bool(self.digest) and loaded.digest == self.digest


def _without_options(url: str) -> str:
    return url.partition("?")[0].rstrip("/")


@dataclass(frozen=True)
class GateRequest:
    """The user's wishes for the gate over many processes.

    :param limit: on misses; None if the user set none.
    :param expected_count: the number of processes; None if the user named none.
    :param run_id: the CI run that the reports must be of; empty if it is not known.
    """

    caches: Sequence[JudgedCache]
    limit: Limit | None
    fails_on_unused: bool = False
    expected_count: int | None = None
    run_id: str = ""


def judge_processes(reports: Sequence[ProcessReport], initial: InitialCaches, request: GateRequest) -> RunResult:
    """Return the joint result of all processes, with its gate. The reports that are missing or wrong are its errors.

    :param initial: the caches of the request.
    """
    suite_error = ""
    if request.expected_count is None:
        suite_error = "only a number of expected reports tells that no process is missing"
    taking_part = [report for report in reports if report.record is not None and not report.no_part_reason]
    result = build_joint_result(taking_part, initial, suite_error)
    records = [report.record for report in taking_part if report.record is not None]
    failure = ""
    if reports and not taking_part and all(report.no_part_reason for report in reports):
        failure = f"no process took part: {reports[0].no_part_reason}"
    elif taking_part:
        failure = _explain_no_lookups(result)
    if failure:
        limit = "" if request.limit is None else request.limit.text
        gate = Gate(limit, failure, fail_on_unused=request.fails_on_unused)
    elif taking_part:
        gate = judge(result, request.limit, request.fails_on_unused)
        lost_gpus = _explain_lost_gpus(records, request.caches)
        if lost_gpus:
            gate = replace(gate, failure=join_nonempty("; ", gate.failure, lost_gpus))
    else:
        gate = Gate(skip_reason="autotune cache misses not judged: no report can be used")
    return replace(result, gate=gate, errors=tuple(list_report_errors(reports, request)))


def _explain_no_lookups(result: RunResult) -> str:
    """Return why the gate fails if no process asked for a tuned kernel; empty if one did."""
    if result.collected.untracked or any(row.outcome is not None for row in result.rows):
        return ""
    return f"no process asked for a tuned kernel ({describe_test_counts(result.collected.test_counts)})"


def _explain_lost_gpus(records: Sequence[ProcessRecord], caches: Sequence[JudgedCache]) -> str:
    """Return why the gate fails if tests were skipped, and no test asked on a GPU of the caches; empty if one did."""
    gpus: dict[Device, None] = {}
    for judged in caches:
        for entry in judged.cache.entries:
            if entry.problem.device.is_gpu:
                gpus[entry.problem.device] = None
    skipped_count = sum(record.collected.test_counts.get("skipped", 0) for record in records)
    if not gpus or not skipped_count:
        return ""
    gpu_names = {gpu.name for gpu in gpus}
    for record in records:
        for lookup in record.collected.lookups:
            asked = lookup.problem.device
            if any(record.request.policy.may_use_entries_of(asked, gpu) for gpu in gpus):
                return ""
    tests = describe_count(skipped_count, "test was", "tests were")
    names = " and ".join(sorted(gpu_names))
    return f"the caches have entries for {names}, {tests} skipped, and no test asked on such a GPU"


def list_report_errors(reports: Sequence[ProcessReport], request: GateRequest) -> list[str]:
    """Return a line for each report that is missing, unusable, of another run or of another cache."""
    errors = list_folder_errors(reports, request.expected_count, request.run_id)
    for report in reports:
        error = _find_cache_error(report, request.caches)
        if error:
            errors.append(f"{report.path}: {error}")
    loaded = [cache for report in reports for cache in report.loaded]
    for judged in request.caches:
        if loaded and not any(map(judged.is_loaded_as, loaded)):
            errors.append(f"{judged.path}: no process loaded these bytes")
    return errors


def list_folder_errors(reports: Sequence[ProcessReport], expected_count: int | None, run_id: str) -> list[str]:
    """Return a line for each report that is missing, unusable or of another run.

    :param expected_count: the number of processes; None if it is not known.
    :param run_id: the CI run that the reports must be of; if it is empty, all must be of the same run.
    """
    errors = []
    if not reports:
        errors.append("there is no report (give --autotune-report=FOLDER/ to each process)")
    if reports and expected_count is not None and len(reports) != expected_count:
        difference = "a process wrote none" if len(reports) < expected_count else "more processes ran than are known"
        counts = describe_count(len(reports), "report is there", "reports are there")
        errors.append(f"{counts}, and {expected_count} are expected: {difference}")
    run_id = run_id or _find_common_run_id(reports)
    for report in reports:
        if report.error:
            errors.append(f"{report.path}: {report.error}")
        elif report.ci_run.id != run_id:
            errors.append(f"{report.path}: is of {_describe_run(report.ci_run.id)}, not of {_describe_run(run_id)}")
        elif report.record is not None and report.record.collected.is_interrupted:
            errors.append(f"{report.path}: the run was interrupted")
    return errors


def _find_common_run_id(reports: Sequence[ProcessReport]) -> str:
    """Return the id of the CI run that most of the usable reports are of."""
    counts = Counter(report.ci_run.id for report in reports if not report.error)
    return max(counts, key=lambda run_id: (counts[run_id], run_id), default="")


def _find_cache_error(report: ProcessReport, caches: Sequence[JudgedCache]) -> str:
    """Return why a report of an ended process says nothing about these caches; empty if it does."""
    if report.no_part_reason or report.record is None:
        return ""
    if report.record.is_update:
        return "the process updated the cache that it loaded, so its misses say nothing"
    if not report.loaded:
        return "the process loaded no cache"
    for loaded in report.loaded:
        if not any(judged.is_loaded_as(loaded) for judged in caches):
            return f"the process loaded {loaded.path} with other bytes than the judged caches have"
    return ""


def _describe_run(run_id: str) -> str:
    return f"run {run_id}" if run_id else "no CI run"
