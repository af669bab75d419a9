"""A run's result as HTML: a single file, built from ``page.html``, ``page.css``, ``page.js`` and the data as JSON.

Text from caches and tests is only in the data, and the script shows it as text, never as HTML. The page loads nothing
and runs no other script, because its security policy names the digests of its style and of its script.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from pytest_autotune.cache.ties import kept_choice_tolerance
from pytest_autotune.cache.wording import round_significant, to_one_line
from pytest_autotune.report.findings import Cost, list_findings, list_kernel_costs, list_test_costs
from pytest_autotune.report.hints import list_hints
from pytest_autotune.report.json_report import to_mapping
from pytest_autotune.report.naming import describe_key
from pytest_autotune.report.summary import join_count_lines, list_notes
from pytest_autotune.report.verdict import build_verdict, list_facts
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.rows import ProblemRow

#: A place in ``page.html`` for a text that is made here, such as ``{{style}}``.
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
#: The label of a measured time: the spread, which the page shows, and more words.
_SPREAD_LABEL = re.compile(r"^(\+-[\d.e+-]+ us), .*")
#: The digits of numbers in the page.
_DIGITS = 5


def to_html(result: RunResult) -> str:
    """Return the result as an HTML document."""
    style, script = _read_part("page.css"), _read_part("page.js")
    verdict = build_verdict(result)
    data = json.dumps(build_page_data(result), separators=(",", ":"))
    parts = {
        "policy": _build_policy(style, script),
        "style": style,
        "script": script,
        "state": verdict.state,
        "verdict": html.escape(to_one_line(verdict.reason)),
        "counts": html.escape(join_count_lines(result)),
        # Without "<", no text in the data can end the script element or begin a comment.
        "data": data.replace("<", "\\u003c"),
    }
    return _PLACEHOLDER.sub(lambda match: parts[match[1]], _read_part("page.html"))


def _read_part(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def _build_policy(style: str, script: str) -> str:
    """Return the page's security policy. It allows only this style and this script."""
    style_digest, script_digest = _compute_digest(style), _compute_digest(script)
    return f"default-src 'none'; style-src {style_digest}; script-src {script_digest}; base-uri 'none'"


def _compute_digest(text: str) -> str:
    """Return the digest of a style or a script, as a security policy spells it."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest())
    return f"'sha256-{digest.decode()}'"


def build_page_data(result: RunResult) -> dict[str, Any]:
    """Return the data of the page, which ``page.js`` reads: the JSON report, and words of the other renderers.

    The data is smaller than the JSON report: candidates are encoded, and fields that the page does not show are absent.
    """
    report = to_mapping(result)
    encoder = _CandidateEncoder()
    # The report has a lookup for each row of the result, and a change for each change, in the same order.
    for lookup, row in zip(report["lookups"], result.rows, strict=True):
        lookup.update(_describe_row(result, row))
        # The candidates are encoded before the choice, so the numbers of their params follow the list of candidates.
        lookup["candidates"] = list(map(encoder.encode, lookup["candidates"]))
        lookup["choice"] = encoder.encode(lookup["choice"])
        del lookup["searches"]
    for change_mapping, change in zip(report["changes"], result.changes.changes, strict=True):
        change_mapping["key"] = describe_key(change.entry.problem.key)
        for side in ("old", "new"):
            change_mapping[side] = encoder.encode(change_mapping[side])
    del report["places"], report["process"]
    report["params"] = encoder.list_params()
    report["judged"] = result.is_judged
    report["facts"] = [*result.run_facts, *list_facts(result)]
    report["hints"] = list_hints(result)
    report["findings"] = list(map(asdict, list_findings(result)))
    report["by_kernel"] = list(map(_describe_cost, list_kernel_costs(result)))
    report["by_test"] = list(map(_describe_cost, list_test_costs(result)))
    report["changed"] = f"{result.changes}, {result.changes.unchanged} unchanged"
    report["notes"] = [note.text for note in list_notes(result, verbosity=1)]
    page: dict[str, Any] = _to_page_value(report)
    return page


def _describe_cost(cost: Cost) -> dict[str, Any]:
    """Return the searches of a kernel or a test for the page. Its data has their number as ``problems``."""
    return {"name": cost.name, "problems": cost.search_count, "seconds": cost.seconds}


class _CandidateEncoder:
    """Encodes candidates with a number in place of their params, because many problems have the same candidates."""

    def __init__(self) -> None:
        #: params as JSON -> their number.
        self._numbers: dict[str, int] = {}

    def encode(self, candidate: Mapping[str, Any] | None) -> list[Any] | None:
        """Return a candidate as ``[number that stands for its params, time, label, failure, id]``.

        :param candidate: the candidate as the JSON report has it.
        """
        if candidate is None:
            return None
        number = self._numbers.setdefault(json.dumps(candidate["params"]), len(self._numbers))
        label = _SPREAD_LABEL.sub(r"\1", candidate.get("label", ""))
        return [number, candidate.get("time_us"), label, candidate.get("failed", ""), candidate.get("id", "")]

    def list_params(self) -> list[dict[str, Any]]:
        """Return the params of all encoded candidates, in the order of their numbers."""
        return list(map(json.loads, self._numbers))


def _describe_row(result: RunResult, row: ProblemRow) -> dict[str, Any]:
    """Return the fields of a problem that the page has and the JSON report has not, and its key in words.

    - ``mode_word``: the first word that a mode has for the problem, such as ``slower``. The page counts and filters by
      it.
    - ``mode_remarks``: the full remarks of all modes.
    - ``tie``: the fraction of the best time by which a choice may be slower and still stay.
    """
    first_word = ""
    remarks = []
    for section in result.sections:
        remark = section.problem_remarks.get(row.problem)
        if remark is None:
            continue
        first_word = first_word or remark.word
        if remark.text:
            remarks.append(f"{section.name}: {remark.text}")
    times_us = []
    for candidate in row.candidates:
        if candidate.time_us and not candidate.failed:
            times_us.append(candidate.time_us)
    return {
        "key": describe_key(row.problem.key),
        "versions": str(row.versions),
        "mode_word": first_word,
        "mode_remarks": "; ".join(remarks),
        "tie": kept_choice_tolerance(row.problem.device, min(times_us, default=0.0)),
    }


def _to_page_value(value: Any) -> Any:
    """Return a plain value for the page, also inside lists and mappings.

    Texts are safe to show and numbers are rounded. NaN and infinity become None, because JSON has no form for them.
    """
    if isinstance(value, str):
        return to_one_line(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return round_significant(value, _DIGITS)
    if isinstance(value, Mapping):
        return {to_one_line(name): _to_page_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_to_page_value, value))
    return value
