"""The command ``pytest-autotune gate``: one verdict on the reports of many pytest processes.

Each process of a CI run writes a JSON report with ``--autotune-report=FOLDER/``. This module reads the reports, and
prints or writes the verdict. :mod:`pytest_autotune.report.process_gate` judges them.

Drift means that loaded choices are slower now than other candidates. ``--autotune-verify`` races the choices in the
pytest processes. ``--max-drift`` judges the results of these races, which the reports hold.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Problem
from pytest_autotune.cache.stores.disk import compute_content_digest
from pytest_autotune.cache.wording import describe_count
from pytest_autotune.cli.output import FOUND, OK, PATH, print_lines, safe, with_warning
from pytest_autotune.modes import MODES, ModeRow, Option
from pytest_autotune.report import FILES, describe_obstacle
from pytest_autotune.report.gate import Limit, describe_test_counts
from pytest_autotune.report.markdown import to_markdown
from pytest_autotune.report.process_gate import GateRequest, JudgedCache, judge_processes, list_equal_commands
from pytest_autotune.report.process_reports import (
    ProcessReport,
    list_report_files,
    read_process_report,
    without_repeated,
)
from pytest_autotune.report.summary import render_section
from pytest_autotune.report.verdict import build_verdict
from pytest_autotune.run.ci_run import read_ci_run
from pytest_autotune.run.process_record import ProcessRecord
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.session import Mode
from pytest_autotune.run.settle import InitialCaches

#: The name of the option that limits slower choices. The mode that has this option races the choices.
_DRIFT_OPTION = "max_drift"
#: The name of the test suite in JUnit's report.
_JUNIT_SUITE = "pytest-autotune gate"
#: A regular expression for the beginning of an earlier JUnit report of this command.
_JUNIT_BEGINNING = rf"(<\?xml [^>]*>\s*)?<testsuites>\s*<testsuite name=\"{_JUNIT_SUITE}\""


def _parse_limit(context: click.Context, parameter: click.Parameter, text: str | None) -> Limit | None:
    """Return the limit of an option; None for ``off``, and if the option was not typed.

    An empty value is refused. It may come from a variable of a CI script that is not set, and must not turn off a gate.
    """
    if text is None or text.strip() == "off":
        return None
    if not text.strip():
        raise click.BadParameter("the value is empty (is a variable unset?); use `off` for no limit")
    try:
        return Limit.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("gate", short_help="check the reports of many pytest processes as one run")
@click.argument("files", metavar="CACHE...", nargs=-1, required=True, type=PATH)
@click.option(
    "--reports",
    "folder",
    metavar="FOLDER/",
    required=True,
    type=PATH,
    help="Read all reports in the folder of --autotune-report=FOLDER/ and in its subfolders.",
)
@click.option("--expect", metavar="N", type=click.IntRange(1), help="Fail unless N processes wrote a report.")
@click.option(
    "--max-misses",
    metavar="N|P%|off",
    default="0",
    show_default=True,
    callback=_parse_limit,
    help="Fail if more than N or P% of the problems were no hits.",
)
@click.option(
    "--fail-on-unused", is_flag=True, help="Fail if no process used some entry of the CACHEs. Needs --expect."
)
@click.option(
    "--max-drift",
    metavar="N|P%|off",
    callback=_parse_limit,
    help="Fail if more than N or P% of the choices that --autotune-verify raced are slower.",
)
@click.option("--junit", metavar="FILE", type=PATH, help="Write the result as a JUnit XML file with one test case.")
@click.option("--markdown", metavar="FILE", type=PATH, help="Write the result as a Markdown file.")
def command(
    files: tuple[str, ...],
    folder: str,
    expect: int | None,
    max_misses: Limit | None,
    fail_on_unused: bool,
    max_drift: Limit | None,
    junit: str | None,
    markdown: str | None,
) -> int:
    """Judge the pytest processes of a CI run as one, by the reports that --autotune-report=FOLDER/ wrote.

    Each process must have loaded the CACHEs as they are now. The exit status is 1, and lines say why, if a report is
    missing, unfinished or of another run, if no process called an autotuned kernel, or if a limit is exceeded.
    """
    if fail_on_unused and expect is None:
        raise click.UsageError("--fail-on-unused: a process may be missing (add --expect=N, the number of processes)")
    # Both files are checked before any work, so that a wrong path is an error at once.
    junit_file = None
    markdown_file = None
    if junit is not None:
        junit_file = _prepare_output_file(junit, _JUNIT_BEGINNING, files)
    if markdown is not None:
        markdown_file = _prepare_output_file(markdown, FILES[".md"].beginning, files)
    caches = [_read_cache(path) for path in files]
    reports = without_repeated([read_process_report(path) for path in list_report_files(folder)])
    request = GateRequest(caches, max_misses, fail_on_unused, expect, read_ci_run(os.environ).id, folder)
    result = judge_processes(reports, _build_initial(caches), request)
    if max_drift is not None:
        result = _with_drift_section(result, reports, max_drift)
    lines = _describe_reports(reports, fail_on_unused)
    lines += list_equal_commands(reports, expect)
    print_lines(map(safe, [*lines, *_describe_result(result)]))
    if junit_file is not None:
        junit_file.replace(_build_junit(result))
    if markdown_file is not None:
        markdown_file.replace(to_markdown(result).encode())
    if result.failures:
        return FOUND
    return OK


def _prepare_output_file(path: str, beginning: str, cache_paths: Sequence[str]) -> stores.OutputFile:
    """Return the file for the output of this command, without writing anything.

    :param path: the value of ``--junit`` or ``--markdown``.
    :param beginning: a regular expression for the beginning of an earlier report, which may be replaced.
    :param cache_paths: the judged caches.
    :raises CacheError: if the file holds something else, or is a judged cache.
    """
    location = Location.parse(path, Path())
    if location.url:
        raise CacheError(str(location), "is a URL, but a report must be a file", "name a path")
    for cache_path in cache_paths:
        if Location.parse(cache_path, Path()).resolved == location.resolved:
            raise CacheError(path, "is one of the caches to check, not a report", "name another file")
    file = stores.OutputFile(path)
    try:
        obstacle = describe_obstacle(Path(location.resolved), beginning)
    except OSError as error:
        raise CacheError(path, f"cannot be read: {error.strerror or error}") from None
    if obstacle:
        raise CacheError(path, obstacle)
    return file


def _read_cache(path: str) -> JudgedCache:
    """Read a cache that the processes should have loaded.

    :raises CacheError: if the cache cannot be read.
    """
    cache = with_warning(stores.read_cache(path))
    location = Location.parse(path, Path())
    return JudgedCache(str(location), compute_content_digest(location), cache)


def _build_initial(caches: Sequence[JudgedCache]) -> InitialCaches:
    """Return the judged caches as if a single process had loaded them."""
    loaded = tuple((judged.path, judged.cache) for judged in caches)
    return InitialCaches(loaded, index=EntryIndex.from_caches([cache for _, cache in loaded]))


def _with_drift_section(result: RunResult, reports: Sequence[ProcessReport], limit: Limit) -> RunResult:
    """Return the joint result with a section about the raced choices, and with the gate on their number.

    If no process raced choices, or if a report of races is damaged, the result gets errors instead.

    :param limit: how many choices may be slower.
    """
    row = _find_drift_mode()
    # The first option of the mode turns it on: --autotune-verify, or --autotune-verify=1/2 for a part of the choices.
    race_option = row.options[0]
    #: The value of ``race_option`` in each process that raced choices, such as ``all`` or ``1/2``.
    race_values = set()
    #: The problems of the processes that raced choices.
    raced_problems: set[Problem] = set()
    errors = []
    notes = []
    for report in reports:
        if report.record is None:
            continue
        if row.name not in report.record.modes:
            notes.append(f"{report.path}: ran without {race_option.flag}, so its choices were not raced")
            continue
        race_value = report.record.modes[row.name]
        race_values.add(race_value)
        raced_problems.update(lookup.problem for lookup in report.record.collected.lookups)
        damage = _describe_damage(row, race_value, limit, report.record)
        if damage:
            errors.append(f"{report.path}: is damaged ({damage})")
    if not race_values:
        errors.append(f"--max-drift: no process ran with {race_option.flag} (add it to their commands)")
    if errors:
        return replace(result, errors=(*result.errors, *errors))
    # Processes with different values, such as 1/2 and 2/2, are treated as if they had raced all choices together.
    joint_value = race_option.alone
    if len(race_values) == 1:
        joint_value = race_values.pop()
    mode = _make_mode(row, joint_value, limit)
    # The mode has no verdict on the problems of the other processes, and would take their tuners for unable to race.
    raced_rows = tuple(result_row for result_row in result.rows if result_row.problem in raced_problems)
    section = mode.build_section(replace(result, rows=raced_rows))
    return replace(result, sections=(replace(section, notes=(*section.notes, *notes)),))


def _describe_damage(row: ModeRow, race_value: str, limit: Limit, record: ProcessRecord) -> str:
    """Return why the races in a record cannot be judged; empty if they can."""
    try:
        _make_mode(row, race_value, limit).check_events(record.collected.mode_events)
    except ValueError as error:
        return str(error)
    return ""


def _find_drift_mode() -> ModeRow:
    """Return the mode that has the option ``--max-drift``."""
    for row in MODES:
        for option in row.options:
            if option.name == _DRIFT_OPTION:
                return row
    raise LookupError(_DRIFT_OPTION)


def _make_mode(row: ModeRow, value: str, limit: Limit) -> Mode:
    """Make the mode as in the judged processes, but with the limit of this command. It reads their results.

    :param value: the value of the mode's first option, which turns the mode on.
    :raises ValueError: if the mode refuses the value.
    """
    first_option, *_ = row.options
    values: dict[str, object] = {}
    for option in row.options:
        if option is first_option:
            values[option.name] = row.parse(value)
        elif option.name == _DRIFT_OPTION:
            values[option.name] = limit
        else:
            # The other options only matter while choices are raced, such as a time in seconds.
            values[option.name] = find_unset_value(option)
    mode = row.make(values)
    if mode is None:
        raise ValueError(f"{first_option.flag}: {value!r} is no value that asks for it")
    return mode


def find_unset_value(option: Option) -> float | str | bool | None:
    """Return the value of an option that nobody has set, as a pytest process reads it."""
    if option.kind == "seconds":
        return float(option.default)
    if option.kind == "switch":
        return False
    if option.kind == "word":
        # A flag that has a value of its own asks for something. Nobody has typed the flag.
        return "" if option.alone else option.default
    # A limit, or a value that only the mode can read.
    return None


def _describe_reports(reports: Sequence[ProcessReport], has_unused_gate: bool) -> list[str]:
    """Return lines about the reports: ``3 reports: 6 passed``, then the processes that took no part or are incomplete.

    A process takes no part if the machine lacks the library or the GPU of its optional caches.

    :param has_unused_gate: whether to list incomplete processes. They matter only to the gate on unused entries.
    """
    test_counts: Counter[str] = Counter()
    lines = []
    for report in reports:
        if report.no_part_reason:
            lines.append(f"{report.path}: did not use the cache: {report.no_part_reason}")
        elif report.record is not None:
            collected = report.record.collected
            test_counts.update(collected.test_counts)
            if has_unused_gate and collected.not_passed_reason:
                lines.append(f"{report.path}: not every test passed: {collected.not_passed_reason}")
    tests = describe_test_counts(test_counts)
    if reports and all(report.no_part_reason for report in reports):
        # Their tests are not counted. They may have run, but they used no cache.
        tests = "no process used the cache"
    return [f"{describe_count(len(reports), 'report')}: {tests}", *lines]


def _describe_result(result: RunResult) -> list[str]:
    """Return the summary of the joint result, and the verdict as its last lines."""
    # The summary would also show the errors. Here they belong to the verdict.
    summary = render_section(replace(result, errors=()), verbosity=0)
    lines = [line.word + line.text for line in summary]
    for failure in (*result.errors, *_list_gate_failures(result)):
        lines.append(f"FAILED: {failure}")
    if not result.failures:
        verdict = build_verdict(result)
        state = verdict.state
        if state == "unjudged":
            # The word alone does not say whether CI goes on.
            state = f"unjudged (exit status {OK})"
        lines.append(f"{state}: {verdict.reason}")
    return lines


def _list_gate_failures(result: RunResult) -> list[str]:
    """Return why the gates fail; the gates of the joint result come last."""
    return [gate.failure for gate in (*result.gates_of_modes, result.gate) if gate.failure]


def _build_junit(result: RunResult) -> bytes:
    """Return a report in JUnit's form, with one test case: failed, skipped if a gate judged nothing, or passed.

    A pytest process adds the same test case to its own JUnit report.
    """
    skip_reasons = [gate.skip_reason for gate in result.gates if gate.skip_reason]
    suite = ElementTree.Element("testsuite", name=_JUNIT_SUITE, tests="1", errors="0")
    suite.set("failures", str(int(bool(result.failures))))
    case = ElementTree.SubElement(suite, "testcase", classname="autotune_cache", name="gate", time="0")
    if result.failures:
        failure = ElementTree.SubElement(case, "failure", message=safe("; ".join(result.failures)))
        failure.text = "\n".join(map(safe, _describe_result(result)))
    elif skip_reasons:
        suite.set("skipped", "1")
        ElementTree.SubElement(case, "skipped", message=safe("; ".join(skip_reasons)))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    text: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text + b"\n"
