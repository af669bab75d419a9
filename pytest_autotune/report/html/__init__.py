"""A result as HTML: one file, put together of ``page.html``, its style, its script and the data.

Foreign text is only in the data, and the script shows it as text. The page may load nothing and run no other script:
its policy names the digests of these two.
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

from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.cache.quantities import round_significant
from pytest_autotune.cache.ties import hysteresis
from pytest_autotune.report.findings import list_findings, list_kernel_costs, list_test_costs
from pytest_autotune.report.hints import list_hints
from pytest_autotune.report.json_report import to_mapping
from pytest_autotune.report.naming import describe_key
from pytest_autotune.report.terminal import describe_counts, describe_verdict, list_facts, list_notes
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.rows import ProblemRow


def to_html(result: RunResult) -> str:
    """The result as an HTML document."""
    here = files(__name__)
    page, style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js"))
    state, why = describe_verdict(result)
    data = json.dumps(page_data(result), separators=(",", ":"))
    parts = {
        "policy": f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'",
        "style": style,
        "script": script,
        "state": state,
        "verdict": html.escape(to_one_line(why)),
        "counts": html.escape("; ".join(line.text for line in describe_counts(result))),
        # Nothing in it ends the script element or begins a comment.
        "data": data.replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page)


def page_data(result: RunResult) -> dict[str, Any]:
    """All that the page shows, as plain values: the JSON report, and what the other renderers show in words."""
    report = to_mapping(result)
    params: dict[str, int] = {}
    for lookup, row in zip(report["lookups"], result.rows, strict=True):
        candidates = [_listed(one, params) for one in lookup["candidates"]]
        lookup |= {**_of_row(result, row), "choice": _listed(lookup["choice"], params), "candidates": candidates}
        del lookup["searches"]
    for mapping, change in zip(report["changes"], result.changes.changes, strict=True):
        mapping["key"] = describe_key(change.entry.problem.key)
        mapping |= {side: _listed(mapping[side], params) for side in ("old", "new")}
    del report["places"]
    report |= {
        "params": [*map(json.loads, params)],
        "judged": result.is_judged,
        "facts": [*result.run_facts, *list_facts(result)],
        "hints": [*list_hints(result)],
        "findings": [*map(asdict, list_findings(result))],
        "by_kernel": [*map(asdict, list_kernel_costs(result))],
        "by_test": [*map(asdict, list_test_costs(result))],
        "changed": f"{result.changes}, {result.changes.unchanged} unchanged",
        "notes": list_notes(result),
    }
    shown: dict[str, Any] = _shown(report)
    return shown


def _listed(candidate: Mapping[str, Any] | None, params: dict[str, int]) -> list[Any] | None:
    """A candidate of the JSON report by the number of its parameters: many problems have the same ones."""
    if candidate is None:
        return None
    number = params.setdefault(json.dumps(candidate["params"]), len(params))
    label = re.sub(r"^(\+-[\d.e+-]+ us), .*", r"\1", candidate.get("label", ""))  # the page shows the spread alone
    return [number, candidate.get("time_us"), label, candidate.get("failed", ""), candidate.get("id", "")]


def _of_row(result: RunResult, row: ProblemRow) -> dict[str, Any]:
    """What the page knows of a problem beside the JSON report; its key in words."""
    of_modes = {one.name: said for one in result.sections if (said := one.problem_remarks.get(row.problem)) is not None}
    best_us = min((one.time_us for one in row.candidates if one.time_us and not one.failed), default=0.0)
    return {
        "key": describe_key(row.problem.key),
        "versions": str(row.versions),
        "found": next((said.word for said in of_modes.values() if said.word), ""),
        "said": "; ".join(f"{name}: {said.text}" for name, said in of_modes.items() if said.text),
        "tie": hysteresis(row.problem.device, best_us),
    }


def _shown(plain: Any) -> Any:
    """Plain values with texts fit to be shown, and numbers to five digits; None for those that JSON cannot hold."""
    if isinstance(plain, str):
        return to_one_line(plain)
    if isinstance(plain, float):
        return round_significant(plain, 5) if math.isfinite(plain) else None
    if isinstance(plain, Mapping):
        return {to_one_line(name): _shown(value) for name, value in plain.items()}
    return [*map(_shown, plain)] if isinstance(plain, (list, tuple)) else plain


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
