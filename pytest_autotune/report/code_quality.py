"""GitLab's Code Quality face of a summary: a finding at each test that asked for what is no hit.

The format is that of Code Climate, as far as GitLab reads it: https://docs.gitlab.com/ci/testing/code_quality/.
"""

from __future__ import annotations

import json

from pytest_autotune.cache.foreign_text import one_line, plain_json
from pytest_autotune.report.findings import findings
from pytest_autotune.report.summary import Summary


def to_json(summary: Summary) -> str:
    """The findings as JSON text."""
    found = [
        {
            "check_name": f"autotune-{finding.word}",
            "description": one_line(str(finding)),
            "fingerprint": finding.identity,
            "severity": "major" if finding.fails else "minor",
            # A path is demanded; what no test asked for is of no file.
            "location": {"path": one_line(finding.place.path) or ".", "lines": {"begin": finding.place.line or 1}},
        }
        for finding in findings(summary)
    ]
    return plain_json(json.dumps(found, indent=1, ensure_ascii=False)) + "\n"
