"""GitLab's Code Quality face of a summary: a finding at each test that asked for what is no hit.

The format is that of Code Climate, as far as GitLab reads it: https://docs.gitlab.com/ci/testing/code_quality/.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pytest_autotune.cache.foreign_text import one_line, plain_json
from pytest_autotune.report.summary import NOT_COVERED, Place, Row, Summary
from pytest_autotune.report.terminal import described


def to_json(summary: Summary) -> str:
    """The findings as JSON text; paths are relative to pytest's rootdir, which has to be that of the repository."""
    found = [_finding(row, summary) for row in summary.rows if row.outcome in NOT_COVERED]
    return plain_json(json.dumps(found, indent=1, ensure_ascii=False)) + "\n"


def _finding(row: Row, summary: Summary) -> dict[str, Any]:
    place = next((summary.places[test] for test in row.tests if test in summary.places), Place(""))
    outcome = row.outcome.value if row.outcome else ""
    fails = summary.gate.failure or row.outcome in summary.refused
    return {
        "check_name": f"autotune-{outcome}",
        "description": one_line(f"{outcome.upper()} {described(row.problem, row.label)}: {row.reason}"),
        # The same finding in two commits has the same one; its reason may name what another entry has.
        "fingerprint": hashlib.sha256(f"{outcome} {row.problem.digest}".encode()).hexdigest()[:32],
        "severity": "major" if fails else "minor",
        # A path is demanded; what no test asked for is of no file.
        "location": {"path": one_line(place.path) or ".", "lines": {"begin": place.line or 1}},
    }
