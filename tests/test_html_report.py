"""The HTML report: one file that needs nothing else, whatever it shows and however much."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune.cache.diff import Change, ChangeKind, Diff
from pytest_autotune.cache.merge import MergeResult
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value
from pytest_autotune.report.html import build_page_data, to_html
from pytest_autotune.report.naming import describe_problem
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.result import DumpOutcome, Gate, ProblemRemark, RunResult, Section
from pytest_autotune.run.rows import ProblemRow
from tests.reasons import too_many_misses
from tests.results import result, tuned

GPU = Device("Toy GPU", "toy", 4)


def candidate(block: int, time_us: float | None = None, **fields: Any) -> Candidate:
    return Candidate(params=(Value("BLOCK", block), Value("num_warps", 4)), time_us=time_us, **fields)


def summary(problems: int = 3) -> RunResult:
    """A summary in which every third problem is a hit, a miss or stale; each has five candidates."""
    rows = []
    for number in range(problems):
        problem = Problem("toy", f"lib.ops.kernel_{number % 7}", (Value("M", number),), GPU)
        slow = [candidate(64 << at, 10.0 + at + number / 1000, label="+-0.25 us, 9 of 9 runs") for at in range(4)]
        test = f"tests/test_ops.py::test_op[{number}]"
        outcome = (Outcome.HIT, Outcome.MISS, Outcome.STALE)[number % 3]
        reason = "" if outcome is Outcome.HIT else "no entry"
        failed = candidate(2048, failed="out of resource")
        row = ProblemRow(problem, outcome, reason, tests=(test,), candidates=(*slow, failed))
        rows.append(tuned(row, slow[0], 1.5, test))
    change = Change(ChangeKind.CHOICE, *(Entry(rows[0].problem, choice=choice) for choice in rows[0].candidates[1::-1]))
    gate = Gate("0", too_many_misses(2, "0"))
    return result(
        loaded=(("c.textproto", 3),),
        rows=tuple(rows),
        gate=gate,
        merged=MergeResult(Cache(), changes=Diff((change,), 2)),
    )


def test_the_report_loads_no_urls_and_runs_only_its_own_script() -> None:
    page = to_html(summary())

    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        match = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert match is not None
        digest = base64.b64encode(hashlib.sha256(match[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]
    urls = set(re.findall(r"\w+://[^\"' ]+", page)) - {"http://www.w3.org/2000/svg"}
    assert not urls
    assert " src=" not in page
    assert "url(" not in page


def test_the_report_shows_the_verdict_without_javascript() -> None:
    page = to_html(summary())
    assert f'<p id="verdict" class="failed">{too_many_misses(2, "0")}</p>' in page
    assert "<noscript><p>1 hit, 1 miss, 1 stale; 3 tuned in 4.5s." in page


def test_the_report_does_not_say_passed_if_no_kernel_was_called() -> None:
    assert '<p id="verdict" class="unjudged">no test called an autotuned kernel; 3 loaded entries not used</p>' in (
        to_html(result(loaded=(("c.textproto", 3),)))
    )


def test_the_html_report_of_a_dump_counts_the_tuned_problems() -> None:
    dump = DumpOutcome("c.textproto", "c.textproto", is_changed=True)
    dumped = replace(summary(3), loaded=(), gate=Gate(skip_reason="not judged: nothing was loaded"), dump=dump)
    dumped = replace(dumped, rows=tuple(replace(row, outcome=None) for row in dumped.rows), merged=MergeResult(Cache()))
    assert '<p id="verdict" class="passed">3 problems tuned in 4.5s; 0 entries written to c.textproto</p>' in to_html(
        dumped
    )


def test_the_html_report_shows_the_commit_and_command_of_the_run() -> None:
    data = build_page_data(replace(summary(), run_facts=(("Commit", "5f2c"), ("Command", "pytest --autotune-load=c"))))
    assert data["facts"][:2] == [["Commit", "5f2c"], ["Command", "pytest --autotune-load=c"]]


@pytest.mark.parametrize(
    ("device", "share"),
    [(GPU, 0.03), (Device("CPU", "amx", 2), 0.1), (Device("Triton interpreter", "interpreter"), 2)],
)
def test_times_within_the_noise_of_the_gpu_are_called_a_tie(device: Device, share: float) -> None:
    (row,) = summary(1).rows
    row = replace(row, problem=replace(row.problem, device=device))

    assert build_page_data(result(rows=(row,)))["lookups"][0]["tie"] == share


def test_the_report_shows_problem_keys_like_the_terminal_summary() -> None:
    """Digests and settings are left out of the key."""
    key = (Value("M", 64), Value("code", "a1b2", "digest"), Value("settings", "deterministic", "settings"))
    row = replace(summary(1).rows[0], problem=Problem("toy", "lib.ops.kernel", key, GPU))
    data = build_page_data(result(rows=(row,)))

    assert data["lookups"][0]["key"] == "M=64"
    assert describe_problem(row.problem) == "toy:lib.ops.kernel (M=64)"


def test_the_html_report_omits_nan_and_infinite_times() -> None:
    shown = summary(1)
    row = replace(shown.rows[0], candidates=(candidate(64, float("nan")), candidate(128, float("inf"))))
    json.dumps(build_page_data(replace(shown, rows=(row,))), allow_nan=False)


NODE = shutil.which("node")
#: The parts of a browser's document that the page uses. The page's data is the first argument of the script.
DOCUMENT = """
class Element {
  constructor(tag) { Object.assign(this, { tagName: tag, children: [], attributes: {}, dataset: {}, listeners: {} }); }
  style = { setProperty() {} };
  append(...nodes) { this.children.push(...nodes); }
  prepend(...nodes) { this.children.unshift(...nodes); }
  replaceChildren(...nodes) { this.children = nodes; }
  setAttribute(name, value) { this.attributes[name] = value; }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  after(node) { elements.main.append(node); }
  // This element and all elements inside it.
  list() { return [this, ...this.children.flatMap((child) => (child instanceof Element ? child.list() : []))]; }
  get textContent() { return this.text ?? this.children.map((child) => child.textContent ?? child).join(""); }
  set textContent(text) { this.text = text; }
}
const elements = { data: new Element("script"), facts: new Element("dl"), main: new Element("main") };
elements.data.textContent = require("fs").readFileSync(process.argv[2], "utf8");
global.document = {
  createElement: (tag) => new Element(tag),
  createElementNS: (space, tag) => new Element(tag),
  getElementById: (id) => elements[id],
  querySelectorAll: () => [],
  addEventListener() {},
  documentElement: new Element("html"),
};
"""
#: A user unfolds the first problem. The text of the page follows.
UNFOLD = """
elements.main.list().find((element) => element.attributes.class === "open").listeners.click();
console.log(elements.main.textContent);
"""


@pytest.mark.skipif(NODE is None, reason="needs Node.js")
def test_the_report_lists_the_same_misses_as_the_terminal(tmp_path: Path) -> None:
    """The script and the data use the same names of fields: an unknown name ends the script or is shown."""
    shown = summary(120)
    remark = ProblemRemark("the choice takes 12 us", {}, "slower")
    section = Section("verify", "all", problem_remarks={shown.rows[2].problem: remark})
    data = tmp_path / "data.json"
    data.write_text(json.dumps(build_page_data(replace(shown, sections=(section,)))))
    page_script = (files("pytest_autotune.report.html") / "page.js").read_text()
    script = tmp_path / "script.js"
    script.write_text(f"{DOCUMENT}{page_script}{UNFOLD}")

    done = subprocess.run([str(NODE), str(script), str(data)], capture_output=True, text=True, timeout=60)

    assert done.stderr == ""
    assert "verify: the choice takes 12 us" in done.stdout
    assert "undefined" not in done.stdout
    assert "misstoy:lib.ops.kernel_16" in done.stdout, "a group of six problems"
    assert "and 5 more tests" in done.stdout
    assert "BLOCK=64 ★ chosen10 µs± 0.25 µs" in done.stdout
    assert "BLOCK=2048failed: out of resource" in done.stdout


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
#: A script that uses the page as a user does, and writes the result into the page's title.
USE = """<script>
const seen = [];
const press = (key, target) => target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const rows = () => document.querySelectorAll("#problems ~ div tbody")[0].querySelectorAll("tr").length;
press("/", document.body);
seen.push(document.activeElement.id);
const input = document.getElementById("filter");
input.value = "stale kernel_2"; input.dispatchEvent(new Event("input"));
seen.push(rows(), document.querySelector("output").textContent);
press("Escape", input);
document.querySelector("button.open").click();
seen.push(document.querySelectorAll(".chart tbody tr").length, document.querySelector(".chart .chosen th").textContent);
const table = document.querySelectorAll("#problems ~ div table")[0];
table.querySelectorAll(".sort")[5].click();
seen.push(table.querySelectorAll("th")[5].getAttribute("aria-sort"), rows());
document.title = JSON.stringify(seen);
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_the_table_can_be_filtered_sorted_and_unfolded(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    # The page's policy forbids any other script.
    text = re.sub(r"<meta http-equiv[^>]*>", "", to_html(summary(60)))
    page.write_text(text.replace("</body>", f"{USE}</body>"), encoding="utf-8")
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    done = subprocess.run([str(BROWSER), *arguments, page.as_uri()], capture_output=True, text=True, timeout=60)

    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    assert json.loads(title[1]) == ["filter", 3, "3 of 60 problems", 5, "BLOCK=64 ★ chosen", "descending", 25]
