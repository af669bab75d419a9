"""The gate over many processes: whether their reports are complete, and whether the joint result passes.

Each pytest process of a CI run writes a JSON report. The joint result is the result of a single process that ran the
tests of all these processes. :func:`pytest_autotune.report.gate.judge` judges it. The functions here only look for
reports that are missing or belong to another CI run, and for processes that asked for no kernel.

A process takes no part if its caches are optional (``--autotune-load=PATH?optional``) and the machine lacks the
library or the GPU for their entries. Its report names this reason and is not judged.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_autotune.cache.locations import is_url
from pytest_autotune.cache.model import Cache, is_tuner_named
from pytest_autotune.cache.wording import describe_count, join_nonempty
from pytest_autotune.report.gate import (
    Limit,
    describe_lost_gpus,
    describe_skipped_tests,
    describe_test_counts,
    describe_unnamed_tuners,
    has_lookup_on,
    judge,
)
from pytest_autotune.report.process_reports import (
    LoadedCache,
    ProcessReport,
    RetryKey,
    build_joint_result,
    may_be_same_file,
)
from pytest_autotune.run.ci_run import RUN_ID_VARIABLE
from pytest_autotune.run.finish import list_gpus
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.process_record import ProcessRecord
from pytest_autotune.run.result import Gate, RunResult
from pytest_autotune.run.settle import InitialCaches

#: The advice if a process loaded another cache than the gate judges.
_BYTES_ADVICE = "remove old reports, and use one commit for all jobs"

#: The advice if several reports may be of runs of the same command.
_EQUAL_COMMANDS_ADVICE = (
    f"remove old reports; or give all processes of one run the same {RUN_ID_VARIABLE}, and the next run another"
)


#: The advice if two reports may be of one process.
_REPEATED_ADVICE = (
    "remove copies of reports; give each process a folder of its own for its report, and empty the folder before its "
    "command starts again"
)


@dataclass(frozen=True)
class JudgedCache:
    """A cache that the processes should have loaded.

    :param path: as the user typed it.
    :param digest: the digest of the cache's bytes; empty for a URL.
    """

    path: str
    digest: str
    cache: Cache

    def is_loaded_as(self, loaded: LoadedCache) -> bool:
        """Whether a process loaded this cache: a file with the same bytes, or the store at the same URL.

        A file may have another path on the machine of the process. A store has no digest.
        """
        if is_url(self.path):
            return _without_query(loaded.path) == _without_query(self.path)
        return bool(self.digest) and loaded.digest == self.digest


def _without_query(url: str) -> str:
    """Return a URL without its options and its last slash: ``s3://bucket/caches`` for ``s3://bucket/caches/?optional``."""
    return url.partition("?")[0].rstrip("/")


@dataclass(frozen=True)
class GateRequest:
    """The user's wishes for the gate over many processes.

    :param caches: the caches that each process should have loaded.
    :param limit: the limit on misses; None if the user set none.
    :param fails_on_unused: whether entries that no process asked for fail the gate.
    :param expected_count: the number of processes that should have a report; None if the user gave no number.
    :param run_id: the id of the CI run that the reports must belong to; empty if the id is not known.
    :param folder: the folder of the reports, as the user typed it.
    """

    caches: Sequence[JudgedCache]
    limit: Limit | None
    fails_on_unused: bool = False
    expected_count: int | None = None
    run_id: str = ""
    folder: str = ""

    @property
    def prune_command(self) -> str:
        """The commands that drop the unused entries, one for each cache; empty if a process may be missing.

        The gate shows this text in place of ``--autotune-update=prune``, which drops nothing in a process that runs
        only a part of the tests.
        """
        if self.expected_count is None:
            # A missing process may use entries that look unused.
            return ""
        commands = []
        for judged in self.caches:
            words = ["pytest-autotune", "prune", judged.path]
            words += [f"--reports={self.folder}", f"--expect={self.expected_count}"]
            commands.append(shlex.join(words))
        return f"{' and '.join(commands)} (with the reports of this run in {self.folder})"


def judge_processes(reports: Sequence[ProcessReport], initial: InitialCaches, request: GateRequest) -> RunResult:
    """Return the joint result of all processes, with its gate. Reports that are missing or wrong become its errors.

    :param initial: the caches of the request, as the joint run loads them.
    """
    suite_error = _explain_missing_tests(reports, request)
    usable_reports = []
    for report in reports:
        if report.record is not None and not report.no_part_reason:
            usable_reports.append(report)
    result = build_joint_result(usable_reports, initial, suite_error)
    # :func:`_explain_lost_gpus` judges lost GPUs, by the records of the processes.
    result = replace(result, gpus=frozenset())
    if usable_reports:
        gate = _judge_joint_result(result, usable_reports, request)
    else:
        gate = _judge_without_reports(reports, request)
    is_part = any(report.record is not None and report.record.collected.incomplete_reason for report in reports)
    if len(reports) > 1 or is_part:
        result = replace(result, request=replace(result.request, prune_command=request.prune_command))
    return replace(result, gate=gate, errors=tuple(list_report_errors(reports, request)))


def _explain_missing_tests(reports: Sequence[ProcessReport], request: GateRequest) -> str:
    """Return why tests may need entries for which no process of the reports asked; empty if the reports have all tests.

    The entries of such tests would look unused.
    """
    if request.expected_count is None:
        return "a process may be missing (add --expect=N, the number of processes)"
    for report in reports:
        if report.no_part_reason:
            remedy = "if other processes run its tests, too, leave its report out"
            return f"{report.path}: did not use the cache: {report.no_part_reason} ({remedy})"
    return ""


def _judge_without_reports(reports: Sequence[ProcessReport], request: GateRequest) -> Gate:
    """Return the gate if no process has a usable report.

    The gate fails if every process took no part. Otherwise the reports are missing or damaged. They become errors of
    the result, which fail the command, so the gate need not fail for them.
    """
    if reports and all(report.no_part_reason for report in reports):
        return _build_failed_gate(f"no process used the cache: {reports[0].no_part_reason}", request)
    return Gate(skip_reason="autotune cache misses were not checked: no report can be read")


def _judge_joint_result(result: RunResult, usable_reports: Sequence[ProcessReport], request: GateRequest) -> Gate:
    """Return the gate of the joint result.

    Beside the limits of the request, the gate fails if no process asked for a kernel, if a process left out a tuner of
    the entries that it loaded, or if GPUs were probably lost.
    """
    no_lookups = _explain_no_lookups(result)
    if no_lookups:
        return _build_failed_gate(no_lookups, request)
    gate = judge(result, request.limit, request.fails_on_unused)
    if not gate.failure and (request.limit is not None or request.fails_on_unused):
        gate = replace(gate, failure=_explain_unnamed_tuners(usable_reports, request.caches))
    records = [report.record for report in usable_reports if report.record is not None]
    lost_gpus = _explain_lost_gpus(records, request.caches)
    if lost_gpus:
        return replace(gate, failure=join_nonempty("; ", gate.failure, lost_gpus))
    return gate


def _build_failed_gate(failure: str, request: GateRequest) -> Gate:
    limit_text = ""
    if request.limit is not None:
        limit_text = request.limit.text
    return Gate(limit_text, failure, fail_on_unused=request.fails_on_unused)


def _explain_no_lookups(result: RunResult) -> str:
    """Return why the gate fails if no process asked for a tuned kernel; empty if a process did.

    A lookup has an outcome. An untracked kernel was tuned without a lookup, and counts as asked for.
    """
    if result.collected.untracked or any(row.outcome is not None for row in result.rows):
        return ""
    return f"no process called an autotuned kernel ({describe_test_counts(result.collected.test_counts)})"


def _explain_unnamed_tuners(reports: Sequence[ProcessReport], caches: Sequence[JudgedCache]) -> str:
    """Return the first process that loaded entries of a tuner and left the tuner out; empty if there is none.

    The gate of the process itself fails, too. Other processes may name the tuner, so the joint result does not show it.
    """
    for report in reports:
        record = report.record
        if record is None or record.is_optional or not record.request.policy.tuners:
            continue
        unnamed_tuners = []
        for tuner in _list_loaded_tuners(report, caches):
            is_ignored = record.request.policy.is_ignored(tuner, "*")
            if not is_ignored and not is_tuner_named(tuner, record.request.policy.tuners):
                unnamed_tuners.append(tuner)
        if unnamed_tuners:
            return f"{report.path}: {describe_unnamed_tuners(unnamed_tuners, record.request.tuners_named_by)}"
    return ""


def _list_loaded_tuners(report: ProcessReport, caches: Sequence[JudgedCache]) -> list[str]:
    """Return the tuners of the entries that a process loaded, sorted."""
    tuners: set[str] = set()
    for judged in caches:
        if any(map(judged.is_loaded_as, report.loaded)):
            tuners.update(entry.problem.tuner for entry in judged.cache.entries)
    return sorted(tuners)


def _explain_lost_gpus(records: Sequence[ProcessRecord], caches: Sequence[JudgedCache]) -> str:
    """Return why the gate fails if the machines have probably lost their GPUs; else an empty text.

    A machine without its GPU skips the tests of kernels, and all other tests pass. A loss is probable if three things
    come together: the caches have entries for GPUs, no test of any process asked for a kernel on such a GPU, and some
    tests may not have run. If all caches are optional, a machine needs no GPU, and the gate does not fail.
    """
    if all(record.is_optional for record in records):
        return ""
    cache_entries = [entry for judged in caches for entry in judged.cache.entries]
    gpus = list_gpus(cache_entries, [record.request.policy for record in records])
    lookups: list[Lookup] = []
    for record in records:
        if has_lookup_on(record.collected.lookups, gpus, record.request.policy):
            return ""
        lookups += record.collected.lookups
    return describe_lost_gpus(_explain_unrun_gpu_tests(records), gpus, lookups)


def _explain_unrun_gpu_tests(records: Sequence[ProcessRecord]) -> str:
    """Return why the tests of a GPU may not have run: ``3 tests or files were skipped``, ``no GPU is visible``.

    The text is empty if nothing kept tests from running.
    """
    skipped_count = 0
    for record in records:
        skipped_count += record.collected.test_counts.get("skipped", 0)
    if skipped_count:
        return describe_skipped_tests(skipped_count)
    if not any(record.collected.has_visible_gpu for record in records):
        return "no GPU is visible"
    for record in reversed(records):
        if record.collected.has_only_skips:
            # A test failed as expected, or a test file was not collected.
            return record.collected.not_passed_reason
    return ""


def list_report_errors(reports: Sequence[ProcessReport], request: GateRequest) -> list[str]:
    """Return a line for each report that is missing, unusable, of another CI run or of another cache."""
    errors = list_folder_errors(reports, request.expected_count, request.run_id)
    for report in reports:
        error = _find_cache_error(report, request.caches)
        if error:
            errors.append(f"{report.path}: {error}")
    loaded = [cache for report in reports for cache in report.loaded]
    if not loaded:
        # Each process that loaded no cache has an error of its own above.
        return errors
    for judged in request.caches:
        if not any(map(judged.is_loaded_as, loaded)):
            errors.append(f"{judged.path}: no process loaded this version of the cache (use one commit for all jobs)")
    return errors


def list_folder_errors(reports: Sequence[ProcessReport], expected_count: int | None, run_id: str) -> list[str]:
    """Return a line for each report that is missing, unusable, repeated or of another CI run.

    :param expected_count: the number of processes that should have a report; None if the number is not known.
    :param run_id: the id of the CI run that the reports must belong to; if it is empty, all must belong to one run.
    """
    errors = []
    if not reports:
        errors.append("there is no report in the folder (run each pytest process with --autotune-report=FOLDER/)")
    elif expected_count is not None and len(reports) != expected_count:
        errors.append(_describe_wrong_count(len(reports), expected_count))
    elif expected_count is not None:
        errors += _list_repeated_processes(reports)
    run_id = run_id or _find_common_run_id(reports)
    for report in reports:
        error = _find_run_error(report, run_id)
        if error:
            errors.append(f"{report.path}: {error}")
    return errors


def list_equal_commands(reports: Sequence[ProcessReport], expected_count: int | None) -> list[str]:
    """Return a line for each command that has several reports in one folder, if some of them may be old.

    Only reports without a run id count, because a run id tells the reports of an earlier run apart. The list is empty
    if there are as many reports as the user expects: :func:`list_folder_errors` has a line for such commands then.

    :param expected_count: the number of processes that should have a report; None if the number is not known.
    """
    if len(reports) == expected_count:
        return []
    counts: Counter[RetryKey] = Counter()
    for report in reports:
        if report.record is not None and not report.ci_run.id:
            counts[report.retry_key] += 1
    lines = []
    for key, count in counts.items():
        if count > 1:
            lines.append(
                f"{count} reports have the same command, so some may be of an earlier run: "
                f"{key.command} ({_EQUAL_COMMANDS_ADVICE})"
            )
    return lines


def _list_repeated_processes(reports: Sequence[ProcessReport]) -> list[str]:
    """Return a line for each process that may have two reports, and for each report that has a copy.

    A CI job may start a process again: ``pytest ... || pytest ...``. The two reports then stand for one process, and
    the report of another process may be missing, although there are as many reports as the user expects.
    """
    #: The retry key or the process id of a report -> the paths of the reports with this key or id.
    paths_by_key: defaultdict[RetryKey | str, list[str]] = defaultdict(list)
    for report in reports:
        # An unusable report has an error of its own.
        if report.record is not None:
            paths_by_key[report.retry_key].append(report.path)
            if report.ci_run.process_id:
                paths_by_key[report.ci_run.process_id].append(report.path)
    lines = []
    for paths in paths_by_key.values():
        if len(paths) > 1:
            lines.append(
                f"{paths[0]} and {paths[1]} may be of one process, so the report of another process may be missing "
                f"({_REPEATED_ADVICE})"
            )
    # A copy in the same folder has a line for its key and one for its process id.
    return list(dict.fromkeys(lines))


def _describe_wrong_count(count: int, expected_count: int) -> str:
    """Return the error if the number of reports is not the expected one."""
    difference = "there are too many (remove old reports)"
    if count < expected_count:
        difference = "some wrote none (did each job start and end?)"
    counts = describe_count(count, "report")
    return f"found {counts}, but --expect={expected_count}: {difference}"


def _find_run_error(report: ProcessReport, run_id: str) -> str:
    """Return why a report is unusable, of another CI run, or of a run that ended early; empty for others."""
    if report.error:
        return report.error
    if report.ci_run.id != run_id:
        return _describe_other_run(report.ci_run.id, run_id)
    if report.record is not None and report.record.collected.is_interrupted:
        return "the run was interrupted"
    if report.record is not None:
        return report.record.collected.early_end
    return ""


def _find_common_run_id(reports: Sequence[ProcessReport]) -> str:
    """Return the id of the CI run that most usable reports belong to; empty if no report is usable."""
    counts = Counter(report.ci_run.id for report in reports if not report.error)
    if not counts:
        return ""
    # If several ids have the highest count, take the largest id, so that messages do not depend on file names.
    highest_count = max(counts.values())
    return max(run_id for run_id, count in counts.items() if count == highest_count)


def _find_cache_error(report: ProcessReport, caches: Sequence[JudgedCache]) -> str:
    """Return why a report says nothing about the judged caches: the process loaded none of them, or changed one.

    The text is empty if the report can be judged by these caches.
    """
    if report.no_part_reason or report.record is None:
        # The process took no part, or the report is unusable and has another error.
        return ""
    if report.record.is_update:
        return "the process updated the cache that it loaded, so nothing was missing (run it without --autotune-update)"
    if not report.loaded:
        return "the process loaded no cache (add --autotune-load=PATH to its command)"
    for loaded in report.loaded:
        if any(judged.is_loaded_as(loaded) for judged in caches):
            continue
        if any(may_be_same_file(loaded.path, judged.path) for judged in caches):
            return f"the process loaded another version of {loaded.path} than this command checks ({_BYTES_ADVICE})"
        return f"the process loaded {loaded.path}, which this command does not check (add it to the command)"
    return ""


def _describe_other_run(other_run_id: str, run_id: str) -> str:
    """Return the difference between the CI run of a report and this run, with the remedy.

    Example: ``is a report of CI run 2, not of CI run 3 (remove old reports)``.

    :param other_run_id: the id of the report's run; empty if that run has no id.
    :param run_id: the id of this run; empty if this run has no id.
    """
    # A process in a container often lacks the variables of the CI system.
    if not run_id:
        return (
            f"is a report of CI run {other_run_id}, but other reports are of a run without an id (remove old reports; "
            f"or set {RUN_ID_VARIABLE}={other_run_id} for the other processes, for example in their container)"
        )
    if not other_run_id:
        return (
            f"is a report of a run without an id, not of CI run {run_id} (remove old reports; or set "
            f"{RUN_ID_VARIABLE}={run_id} for the process, for example in its container)"
        )
    return f"is a report of CI run {other_run_id}, not of CI run {run_id} (remove old reports)"
