"""A result as HTML: one file that needs nothing else, to be read by people.

``page.html`` is put together with its style, its script and the data. Foreign text is only in the data, and the script
shows it as text. The page may load nothing and run no other script: its policy names the digests of these two.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files

from pytest_autotune.cache.foreign_text import one_line, plain_json
from pytest_autotune.report import terminal
from pytest_autotune.report.html.data import page_data
from pytest_autotune.run.result import Result


def to_html(result: Result) -> str:
    """The result as an HTML document."""
    here = files(__name__)
    page, style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js"))
    state, why = _state(result)
    parts = {
        "policy": f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'",
        "style": style,
        "script": script,
        "state": state,
        "verdict": html.escape(one_line(why)),
        "counts": html.escape(", ".join(f"{count} {name}" for name, count in result.counts.items() if count)),
        "data": _embedded(page_data(result)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page)


def _state(result: Result) -> tuple[str, str]:
    """A word for the page's style, and what is to be read first."""
    dump, settled = result.dump, "; ".join(line.text for line in terminal.settled(result))
    if result.failures:
        return "failed", "; ".join(result.failures)
    if dump is not None and dump.written and not result.to_update:
        return "passed", settled
    if result.gate.skipped:
        return "unjudged", result.gate.skipped
    if result.gate.limit:
        return "passed", f"within the limit of {result.gate.limit} misses"
    if result.misses:
        return "unjudged", f"{result.misses} of {result.problems} problems are not covered; no limit was set"
    if result.loaded and result.rows:
        return "passed", "every problem was a hit"
    return "unjudged", settled or "nothing was asked for"


def _embedded(data: object) -> str:
    """JSON that a script element may hold: nothing in it ends the element or begins a comment."""
    return plain_json(json.dumps(data, ensure_ascii=False, separators=(",", ":"))).replace("<", "\\u003c")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
