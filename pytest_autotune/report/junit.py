"""JUnit's faces of a summary: what is added to pytest's own JUnit report, and a report of its own.

What is added: the counts as properties, and a test case for the gate and for each thing that was asked for
and could not be done, so that a run that fails for one of these has a failed test case. The report of its own also has
a test case for each problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.report.naming import described
from pytest_autotune.report.rows import NOT_COVERED, Row
from pytest_autotune.report.summary import Summary

#: The class of the test cases that are added to pytest's report.
CLASS = "autotune_cache"
# What XML has no way to write; what has an effect in a terminal is escaped before.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    """A test case.

    :param failed: why it failed, in one line; empty where it did not.
    :param skipped: why it says nothing, in one line; empty where it does.
    :param seconds: what it took.
    """

    classname: str
    name: str
    failed: str = ""
    skipped: str = ""
    seconds: float = 0.0


def properties(summary: Summary) -> dict[str, int]:
    """The properties of the whole suite."""
    return {f"autotune_{name}": count for name, count in summary.counts.items()}


def cases(summary: Summary) -> list[Case]:
    """The test cases of the run itself: the gate where there is one, and what could not be done."""
    gate = summary.gate
    found = []
    if gate.limit or gate.fail_on_unused or gate.failure:
        found.append(Case(CLASS, "gate", one_line(gate.failure), one_line(gate.skipped)))
    if summary.drift.limit:
        found.append(Case(CLASS, "drift", one_line(summary.drift.failure), one_line(summary.drift.skipped)))
    # Named by their order: the words of an error would be another test case in each run.
    found += [Case(CLASS, f"error_{number}", one_line(error)) for number, error in enumerate(summary.errors, 1)]
    return found


def to_xml(summary: Summary) -> str:
    """The summary as a JUnit report; a miss is a failed test case where the run fails for it, else a skipped one."""
    suite = ElementTree.Element("testsuite", name="autotune cache")
    found = [*cases(summary), *_of_problems(summary)]
    counts = {
        "tests": len(found),
        "failures": sum(bool(case.failed) for case in found),
        "errors": 0,
        "skipped": sum(bool(case.skipped) for case in found),
    }
    suite.attrib.update({name: str(number) for name, number in counts.items()}, time=f"{summary.tuning_seconds:.3f}")
    counted = ElementTree.SubElement(suite, "properties")
    for name, value in properties(summary).items():
        ElementTree.SubElement(counted, "property", name=name, value=str(value))
    for case in found:
        node = ElementTree.SubElement(
            suite, "testcase", classname=_plain(case.classname), name=_plain(case.name), time=f"{case.seconds:.3f}"
        )
        if case.failed:
            ElementTree.SubElement(node, "failure", message=_plain(case.failed))
        elif case.skipped:
            ElementTree.SubElement(node, "skipped", message=_plain(case.skipped))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _of_problems(summary: Summary) -> Iterator[Case]:
    for row in summary.rows:
        missed = _why(row) if row.outcome in NOT_COVERED or row.unrecorded else ""
        fails = bool(missed and row.outcome and (summary.gate.failure or row.outcome in summary.refused))
        name = described(row.problem, row.label).removeprefix(f"{row.problem.library}:")
        yield Case(
            row.problem.tuner, name, missed if fails else "", "" if fails else missed, seconds=row.tuning_seconds
        )
    for kernel in summary.unseen:
        missed = "unseen: tuned without passing the plugin"
        fails = bool(summary.gate.failure)
        yield Case(CLASS, kernel, missed if fails else "", "" if fails else missed)


def _why(row: Row) -> str:
    test = f" ({row.tests[0]})" if row.tests else ""
    return f"{row.outcome.value if row.outcome else 'unrecorded'}: {row.reason}{test}"


def _plain(text: str) -> str:
    return _NOT_XML.sub("", one_line(text))
